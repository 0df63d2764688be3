//! The watchdog actor: starts the children, listens, restarts, and writes the board.
//!
//! One incarnation of a child, from here: a start under way, then an actor somewhere, then two reports in
//! either order, `StartEnded` and [`Death`]. Only both together end it:
//!
//! ```text
//!                    no death yet                 death noted
//!   start under way  Starting                     Starting (wait: never two starts at once)
//!   start was Ok     Running                      over → again, back off, or park
//!   start was Err    told to leave what it began  over → again, back off, or park
//! ```
//!
//! Or it hangs in any of these places: then it is told to leave, and given up after the grace ([`ladder`](super::ladder)).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, System};
use parking_lot::Mutex;
use tracing::{debug, error, info, warn};

use crate::clock::{Clock, DurationMs, MonoMs};
use crate::failpoints;
use crate::panics::{contained, panicked};

use super::Board;
use super::child::{
    ChildContext, ChildId, ChildSpec, ChildState, ChildStatus, Excused, FaultKind, Generation,
    KillSwitch, PulseStatus, StartChild, StartFault,
};
use super::death_notice::{Death, DeathCause, DeathNotice};
use super::ladder::{Supervision, Zombie};
use super::liveness::{Verdict, verdict};
use super::pulse::Pulse;
use super::restart::{EXCUSED_PAUSE, NextStart, RestartHistory};
use super::threads::Threads;

/// How often pulses are read.
const ROUND: Duration = Duration::from_millis(50);
/// A pause between two rounds beyond which the watchdog itself was away (a stopped process, a starved
/// machine), so that silence says nothing about anybody else.
const AWAY: DurationMs = DurationMs(500);
/// A thread that outlives its child by this much is a zombie.
const LINGER: DurationMs = DurationMs(1_000);

/// Starts, watches and restarts the children.
pub(super) struct WatchdogActor {
    me: Addr<Self>,
    clock: Clock,
    board: Arc<Board>,
    children: Vec<Child>,
    supervision: Supervision,
    quarantine: Vec<Zombie>,
    last_round: MonoMs,
    /// Silence before this is forgiven.
    away_until: MonoMs,
    shut_down: bool,
}

pub(super) struct Child {
    id: ChildId,
    start: Arc<StartChild>,
    history: RestartHistory,
    excused: Box<Excused>,
    in_turn: bool,
    pub(super) status: ChildStatus,
    /// It is to be started as soon as it is its turn.
    waits: bool,
    /// So many starts in a row have found what they need held by a zombie.
    held: u32,
    /// The incarnation that is not over yet.
    life: Option<Life>,
}

/// What is held against a child that has ended. There are none once all are to end.
#[derive(Clone, Copy)]
struct Rules<'a> {
    supervision: &'a Supervision,
    /// How many threads were given up and have not ended.
    zombies: usize,
}

struct Life {
    pulse: Arc<Pulse>,
    threads: Threads,
    kill: KillSwitch,
    arbiter: Arc<Mutex<Option<System>>>,
    /// Silence counts from the start's beginning, and anew from its end.
    watched_from: MonoMs,
    /// When it was asked to leave.
    told_at: Option<MonoMs>,
    /// When it was found to hang, and how.
    doomed: Option<(MonoMs, String)>,
    /// What the start came to, once it has returned.
    start: Option<Result<(), StartFault>>,
    /// What the death notice said, once it was dropped.
    death: Option<Death>,
    /// A person asked for the restart.
    asked: bool,
}

impl Child {
    /// A child that was never started.
    pub(super) fn new(id: ChildId, spec: ChildSpec, now: MonoMs) -> Self {
        Self {
            id,
            start: Arc::from(spec.start),
            history: RestartHistory::new(spec.restart),
            excused: spec.excused,
            in_turn: spec.in_turn,
            status: ChildStatus {
                name: spec.name,
                generation: Generation::default(),
                state: ChildState::Starting,
                since: now,
                pulse: None,
                restarts: 0,
                quarantined: 0,
                last_fault: None,
            },
            waits: true,
            held: 0,
            life: None,
        }
    }

    fn enter(&mut self, state: ChildState, now: MonoMs) {
        self.status.state = state;
        self.status.since = now;
        self.status.pulse = None;
    }

    /// Is to be started as soon as it is its turn.
    fn wait_for_turn(&mut self, now: MonoMs) {
        self.enter(ChildState::Starting, now);
        self.waits = true;
    }

    /// A person asks for it: nothing that was counted before is held against it.
    fn start_afresh(&mut self, now: MonoMs) {
        self.history.clear();
        self.held = 0;
        self.wait_for_turn(now);
    }

    /// Whether a start is under way that others have to wait for.
    fn has_turn(&self) -> bool {
        let starts = |life: &Life| life.start.is_none();
        self.in_turn && self.life.as_ref().is_some_and(starts)
    }

    /// Begins the next incarnation. The result comes back as messages.
    fn start(&mut self, watchdog: &Addr<WatchdogActor>, now: MonoMs) {
        self.waits = false;
        let (child, generation) = (self.id, Generation(self.status.generation.0 + 1));
        self.status.restarts = generation.0 - 1;
        self.status.generation = generation;
        self.enter(ChildState::Starting, now);
        let life = Life {
            pulse: Arc::new(Pulse::new(now)),
            threads: Threads::default(),
            kill: KillSwitch::new(),
            arbiter: Arc::default(),
            watched_from: now,
            told_at: None,
            doomed: None,
            start: None,
            death: None,
            asked: false,
        };
        let tell = watchdog.clone();
        let context = ChildContext {
            generation,
            pulse: life.pulse.clone(),
            threads: life.threads.clone(),
            death: DeathNotice::new(child, generation, move |death| tell.do_send(Died(death))),
            kill: life.kill.clone(),
            arbiter: life.arbiter.clone(),
        };
        self.life = Some(life);
        let ended = move |result| StartEnded {
            child,
            generation,
            result,
        };
        let (start, tell) = (self.start.clone(), watchdog.clone());
        let thread = std::thread::Builder::new()
            .name(format!("start-{}", self.status.name))
            .spawn(move || {
                let result = contained(|| start(context)).unwrap_or_else(|words| {
                    Err(StartFault::new(format!("start {}", panicked(words))))
                });
                tell.do_send(ended(result));
            });
        if let Err(fault) = thread {
            let fault = StartFault::new(format!("starting a thread: {fault}"));
            watchdog.do_send(ended(Err(fault)));
        }
    }

    /// The incarnation that `generation` names, if it is this child's newest and not over.
    fn life_of(&mut self, generation: Generation) -> Option<&mut Life> {
        let newest = self.status.generation == generation;
        self.life.as_mut().filter(|_| newest)
    }

    /// Takes in what has been reported of the newest incarnation; what is left of it once it is over.
    fn settle(&mut self, now: MonoMs, rules: Option<Rules<'_>>) -> Option<Zombie> {
        let life = self.life.as_mut()?;
        match (&life.start, &life.death) {
            (None, _) => {}
            (Some(Ok(())), None) => {
                life.watched_from = now;
                if rules.is_none() {
                    life.ask_to_leave(now);
                }
                self.held = 0;
                self.enter(ChildState::Running, now);
                let (child, generation) = (&self.status.name, self.status.generation);
                info!(%child, %generation, "child runs");
            }
            // It left something alive behind: the notice will tell when that is gone.
            (Some(Err(_)), None) => life.ask_to_leave(now),
            (Some(_), Some(_)) => return self.bury(now, rules),
        }
        None
    }

    /// The newest incarnation is over, or counts as such; what is left of it.
    fn bury(&mut self, now: MonoMs, rules: Option<Rules<'_>>) -> Option<Zombie> {
        let life = self.life.take()?;
        let (child, generation) = (&self.status.name, self.status.generation);
        let is_given_up = life.start.is_none() || life.death.is_none();
        let zombie = Zombie {
            child: self.id,
            generation,
            starts: life.start.is_none(),
            lives: life.death.is_none(),
            threads: life.threads.clone(),
            counts_from: match is_given_up || life.doomed.is_some() {
                true => now,
                false => now.after(LINGER),
            },
            counts: false,
        };
        if is_given_up {
            warn!(%child, %generation, "child is given up: its thread is left to itself");
        }
        match rules {
            None => {
                info!(%child, %generation, "child stopped");
                self.retire(now);
            }
            Some(_) if life.asked && life.doomed.is_none() => {
                info!(%child, %generation, "child is started again, as asked");
                self.start_afresh(now);
            }
            Some(rules) => self.decide(life, now, rules),
        }
        Some(zombie).filter(|zombie| !zombie.has_ended())
    }

    /// It ended unasked: decides what comes next.
    fn decide(&mut self, life: Life, now: MonoMs, rules: Rules<'_>) {
        let Rules {
            supervision,
            zombies,
        } = rules;
        let (child, generation) = (&self.status.name, self.status.generation);
        let kind = match &life.start {
            Some(Err(fault)) => fault.kind(),
            _ => FaultKind::Passing,
        };
        let hung = life.doomed.is_some();
        let fault = life.fault();
        let excused = (self.excused)();
        self.held = match kind {
            FaultKind::Held => self.held + 1,
            _ => 0,
        };
        // What only a new process is rid of.
        let beyond_help = if self.held >= supervision.held_max.max(1) {
            Some("a thread that was given up holds what it needs".to_owned())
        } else if hung && zombies >= supervision.quarantine_max {
            let max = supervision.quarantine_max;
            Some(format!("it hangs, and so do {max} threads already"))
        } else {
            None
        };
        let (next, why) = if let Some(why) = beyond_help {
            let why = format!("{why}; only a new process is rid of that");
            (supervision.last_rung)(&format!("{child}: {why}: {fault}"));
            (NextStart::Park, why)
        } else if excused {
            (NextStart::RestartAfter(EXCUSED_PAUSE), String::new())
        } else if kind == FaultKind::ForGood {
            (
                NextStart::Park,
                "another start would be no better".to_owned(),
            )
        } else {
            (self.history.next(now), "died too often, at last".to_owned())
        };
        match next {
            // It may go on for a night: told once, and then only to who looks closer.
            NextStart::RestartAfter(_)
                if excused && self.status.last_fault.as_ref() == Some(&fault) =>
            {
                debug!(%child, %generation, %fault, "child died again of the same");
                self.enter(
                    ChildState::BackingOff {
                        until: now.after(EXCUSED_PAUSE),
                    },
                    now,
                );
            }
            NextStart::RestartAfter(DurationMs(0)) => {
                warn!(%child, %generation, %fault, "child died, is started again");
                self.wait_for_turn(now);
            }
            NextStart::RestartAfter(backoff) => {
                warn!(%child, %generation, %fault, backoff_ms = backoff.0, "child died, backs off");
                let until = now.after(backoff);
                self.enter(ChildState::BackingOff { until }, now);
            }
            NextStart::Park => self.park(&why, &fault, now),
        }
        self.status.last_fault = Some(fault);
    }

    fn park(&mut self, why: &str, fault: &str, now: MonoMs) {
        let (child, generation) = (&self.status.name, self.status.generation);
        error!(%child, %generation, fault, why, "child parked");
        self.waits = false;
        let reason = format!("{why}: {fault}");
        self.enter(ChildState::Parked { reason }, now);
    }

    /// It is not started again. What a start would be made of (files, connections) is let go of first.
    fn retire(&mut self, now: MonoMs) {
        self.start = Arc::new(|_| Err(StartFault::new("its watchdog was shut down")));
        self.waits = false;
        self.enter(ChildState::Stopped, now);
    }

    /// Reads the pulses of the child and its threads, and takes the next rung of the ladder if it hangs. Whether it
    /// hangs for longer than the grace.
    fn judge(&mut self, now: MonoMs, away_until: MonoMs, supervision: &Supervision) -> bool {
        let Some(life) = &mut self.life else {
            return false;
        };
        let is_running = self.status.state == ChildState::Running;
        let Some(bounds) = supervision.bounds_of(life.start.is_none()) else {
            return false;
        };
        let since = life.watched_from.max(away_until);
        let own = (self.status.name.clone(), life.pulse.read());
        let all = life.threads.readings().into_iter().chain([own]);
        let found = all.map(|(thread, reading)| {
            let found = PulseStatus {
                phase: reading.phase,
                age: now.since(reading.beat),
                verdict: verdict(reading.forgiven(since), now, bounds),
            };
            (thread, found)
        });
        let Some((thread, worst)) = found.max_by_key(|(_, found)| (found.verdict, found.age))
        else {
            return false;
        };
        let (child, generation) = (&self.status.name, self.status.generation);
        if is_running {
            let before = self.status.pulse.replace(worst);
            let before = before.map_or(Verdict::Live, |pulse| pulse.verdict);
            if worst.verdict != before {
                let (is, silent_ms) = (worst.verdict.name(), worst.age.0);
                warn!(%child, %generation, thread, is, silent_ms, "child's pulse");
            }
        }
        let stays =
            (life.told_at).is_some_and(|told_at| now.since(told_at.max(since)) > bounds.stuck);
        if life.doomed.is_none() && (worst.verdict == Verdict::Stuck || stays) {
            let why = match worst.verdict {
                Verdict::Stuck => format!("{thread} was silent for {} ms", worst.age.0),
                _ => "it was asked to leave and did not".to_owned(),
            };
            warn!(%child, %generation, why, "child hangs: it is asked to leave, and then given up");
            life.ask_to_leave(now);
            if let Some(arbiter) = &*life.arbiter.lock() {
                arbiter.stop();
            }
            life.doomed = Some((now, why));
        }
        life.is_past(now, supervision.grace)
    }
}

impl Life {
    fn ask_to_leave(&mut self, now: MonoMs) {
        self.told_at.get_or_insert(now);
        self.kill.throw();
    }

    /// Whether it has been hanging for longer than the grace.
    fn is_past(&self, now: MonoMs, grace: DurationMs) -> bool {
        let doomed = self.doomed.as_ref();
        doomed.is_some_and(|(at, _)| now.since(*at) >= grace)
    }

    /// Why it is over. That it hung, a failed start, the child's own words: in this order.
    fn fault(self) -> String {
        if let Some((_, why)) = self.doomed {
            return format!("hung: {why}");
        }
        if let Some(Err(fault)) = self.start {
            return fault.to_string();
        }
        let (cause, words) = match self.death {
            Some(death) => (death.cause, death.last_words),
            None => (DeathCause::Stopped, None),
        };
        match (cause, words) {
            (DeathCause::Panicked, Some(words)) => panicked(words),
            (DeathCause::Panicked, None) => "panicked".to_owned(),
            (DeathCause::Stopped, Some(words)) => words,
            (DeathCause::Stopped, None) => "stopped unasked".to_owned(),
        }
    }
}

impl WatchdogActor {
    /// A watchdog over `children`, none of them started yet.
    pub(super) fn new(
        clock: Clock,
        board: Arc<Board>,
        children: Vec<Child>,
        supervision: Supervision,
        me: Addr<Self>,
    ) -> Self {
        let now = clock.now().mono;
        Self {
            me,
            clock,
            board,
            children,
            supervision,
            quarantine: Vec::new(),
            last_round: now,
            away_until: now,
            shut_down: false,
        }
    }

    fn round(&mut self) {
        reach("watchdog::future");
        let now = self.clock.now().mono;
        let gap = now.since(self.last_round);
        self.last_round = now;
        if gap > AWAY {
            info!(gap_ms = gap.0, "watchdog was away, all silence is forgiven");
            self.away_until = now;
        }
        self.board.watchdog_pulse.beat(now);
        if !self.shut_down {
            for place in 0..self.children.len() {
                let child = &mut self.children[place];
                if matches!(child.status.state, ChildState::BackingOff { until } if until <= now) {
                    child.wait_for_turn(now);
                } else if child.judge(now, self.away_until, &self.supervision) {
                    self.with_child(place, |child, rules| child.bury(now, rules));
                }
            }
        }
        self.look_at_quarantine(now);
        self.start_in_turn(now);
        self.publish();
    }

    /// Lets something happen to a child, and keeps what is left of an incarnation that it ends.
    fn with_child(
        &mut self,
        place: usize,
        happens: impl FnOnce(&mut Child, Option<Rules<'_>>) -> Option<Zombie>,
    ) {
        let counted = self.quarantine.iter().filter(|zombie| zombie.counts);
        let rules = Rules {
            supervision: &self.supervision,
            zombies: counted.count(),
        };
        let rules = Some(rules).filter(|_| !self.shut_down);
        let left = happens(&mut self.children[place], rules);
        self.quarantine.extend(left);
        self.look_at_quarantine(self.clock.now().mono);
    }

    /// Starts those that wait and whose turn it is.
    fn start_in_turn(&mut self, now: MonoMs) {
        if self.board.shut_down.load(Ordering::Acquire) {
            return;
        }
        let under_way = self.children.iter().filter(|child| child.has_turn());
        let mut free = (self.supervision.starts_max.max(1)).saturating_sub(under_way.count());
        for child in self.children.iter_mut().filter(|child| child.waits) {
            if child.in_turn {
                if free == 0 {
                    continue;
                }
                free -= 1;
            }
            child.start(&self.me, now);
        }
    }

    /// Strikes off zombies that have ended, and counts those that have not.
    fn look_at_quarantine(&mut self, now: MonoMs) {
        let Self {
            quarantine,
            children,
            ..
        } = self;
        quarantine.retain_mut(|zombie| {
            let ended = zombie.has_ended();
            let (child, generation) = (&children[zombie.child.0].status.name, zombie.generation);
            if ended && zombie.counts {
                info!(%child, %generation, "the zombie of {child} {generation} has ended");
            } else if !ended && !zombie.counts && zombie.counts_from <= now {
                zombie.counts = true;
                warn!(%child, %generation, "child is in quarantine: a thread of it does not end");
            }
            !ended
        });
        for (n, child) in children.iter_mut().enumerate() {
            let mine = (quarantine.iter()).filter(|zombie| zombie.child.0 == n && zombie.counts);
            child.status.quarantined = mine.count();
        }
    }

    /// Not `run_interval`: after a pause that would fire all missed rounds at once.
    fn next_round(&self, ctx: &mut Context<Self>) {
        let hangs = |child: &Child| {
            child
                .life
                .as_ref()
                .is_some_and(|life| life.doomed.is_some())
        };
        let grace = self.supervision.grace.to_std();
        let pause = match self.children.iter().any(hangs) {
            true => ROUND.min(grace.max(Duration::from_millis(1))),
            false => ROUND,
        };
        ctx.run_later(pause, |watchdog, ctx| {
            watchdog.round();
            watchdog.next_round(ctx);
        });
    }

    fn publish(&self) {
        let mut shown = self.board.children.lock();
        for (shown, child) in shown.iter_mut().zip(&self.children) {
            shown.clone_from(&child.status);
        }
        self.board.changed.notify_all();
    }

    /// Notes a report about one incarnation; words of one that is over only tell of its end.
    fn note(
        &mut self,
        child: ChildId,
        generation: Generation,
        of_life: impl FnOnce(&mut Life),
        of_zombie: impl FnOnce(&mut Zombie),
    ) {
        reach("watchdog::handler");
        let now = self.clock.now().mono;
        let Some(of) = self.children.get_mut(child.0) else {
            return;
        };
        if let Some(life) = of.life_of(generation) {
            of_life(life);
            self.with_child(child.0, |child, rules| child.settle(now, rules));
            self.start_in_turn(now);
        } else {
            let mut all = self.quarantine.iter_mut();
            if let Some(zombie) = all.find(|it| (it.child, it.generation) == (child, generation)) {
                of_zombie(zombie);
            }
            self.look_at_quarantine(now);
        }
        self.publish();
    }
}

impl Actor for WatchdogActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        reach("watchdog::started");
        self.start_in_turn(self.clock.now().mono);
        self.publish();
        self.next_round(ctx);
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        reach("watchdog::stopped");
    }
}

/// An error here is the watchdog's own, and no reason to look after nobody.
fn reach(point: &'static str) {
    if let Err(error) = failpoints::reach(point) {
        error!(%error, "the watchdog goes on");
    }
}

/// A child's start has returned.
#[derive(Message)]
#[rtype(result = "()")]
struct StartEnded {
    child: ChildId,
    generation: Generation,
    result: Result<(), StartFault>,
}

impl Handler<StartEnded> for WatchdogActor {
    type Result = ();

    fn handle(&mut self, ended: StartEnded, _: &mut Context<Self>) {
        let start = Some(ended.result);
        self.note(
            ended.child,
            ended.generation,
            |life| life.start = start,
            |zombie| zombie.starts = false,
        );
    }
}

/// A child's death notice was dropped.
#[derive(Message)]
#[rtype(result = "()")]
struct Died(Death);

impl Handler<Died> for WatchdogActor {
    type Result = ();

    fn handle(&mut self, Died(death): Died, _: &mut Context<Self>) {
        let (child, generation) = (death.child, death.generation);
        self.note(
            child,
            generation,
            |life| life.death = Some(death),
            |zombie| zombie.lives = false,
        );
    }
}

/// A person wants a child started again.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Restart(pub ChildId);

impl Handler<Restart> for WatchdogActor {
    type Result = ();

    fn handle(&mut self, Restart(child): Restart, _: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(child.0) else {
            return;
        };
        if self.shut_down {
            return;
        }
        let now = self.clock.now().mono;
        match &mut child.life {
            Some(life) => {
                life.asked = true;
                life.ask_to_leave(now);
            }
            None => {
                child.start_afresh(now);
                self.start_in_turn(now);
                self.publish();
            }
        }
    }
}

/// Nothing is started again from here on.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Shutdown;

impl Handler<Shutdown> for WatchdogActor {
    type Result = ();

    fn handle(&mut self, _: Shutdown, _: &mut Context<Self>) {
        self.shut_down = true;
        let now = self.clock.now().mono;
        for child in &mut self.children {
            child.status.pulse = None;
            match &mut child.life {
                Some(life) => life.ask_to_leave(now),
                None => child.retire(now),
            }
        }
        self.publish();
    }
}

/// A test's clock was moved.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Look;

impl Handler<Look> for WatchdogActor {
    type Result = ();

    fn handle(&mut self, _: Look, _: &mut Context<Self>) {
        self.round();
    }
}

#[cfg(test)]
mod tests;
