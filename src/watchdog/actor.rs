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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message};
use tracing::{debug, error, info, warn};

use crate::clock::{Clock, DurationMs, MonoMs};

use super::Board;
use super::child::{
    ChildContext, ChildId, ChildSpec, ChildState, ChildStatus, Excused, Generation, KillSwitch,
    PulseStatus, StartChild, StartFault,
};
use super::death_notice::{Death, DeathCause, DeathNotice};
use super::liveness::{Bounds, Verdict, verdict};
use super::pulse::Pulse;
use super::restart::{EXCUSED_PAUSE, NextStart, RestartHistory};

/// How often pulses are read.
const ROUND: Duration = Duration::from_millis(50);
/// A pause between two rounds beyond which the watchdog itself was away (a stopped process, a starved
/// machine), so that silence says nothing about anybody else.
const AWAY: DurationMs = DurationMs(500);

/// Starts, watches and restarts the children.
pub(super) struct WatchdogActor {
    me: Addr<Self>,
    clock: Clock,
    board: Arc<Board>,
    children: Vec<Child>,
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
    pub(super) status: ChildStatus,
    /// The incarnation that is not over yet.
    life: Option<Life>,
}

struct Life {
    pulse: Arc<Pulse>,
    kill: KillSwitch,
    /// A start says nothing for as long as it takes; silence counts from its end.
    watched_from: MonoMs,
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
            status: ChildStatus {
                name: spec.name,
                generation: Generation::default(),
                state: ChildState::Starting,
                since: now,
                pulse: None,
                restarts: 0,
                last_fault: None,
            },
            life: None,
        }
    }

    fn enter(&mut self, state: ChildState, now: MonoMs) {
        self.status.state = state;
        self.status.since = now;
        self.status.pulse = None;
    }

    /// Begins the next incarnation. The result comes back as messages.
    fn start(&mut self, watchdog: &Addr<WatchdogActor>, now: MonoMs) {
        let (child, generation) = (self.id, Generation(self.status.generation.0 + 1));
        self.status.restarts = generation.0 - 1;
        self.status.generation = generation;
        self.enter(ChildState::Starting, now);
        let life = Life {
            pulse: Arc::new(Pulse::new(now)),
            kill: KillSwitch::new(),
            watched_from: now,
            start: None,
            death: None,
            asked: false,
        };
        let tell = watchdog.clone();
        let context = ChildContext {
            generation,
            pulse: life.pulse.clone(),
            death: DeathNotice::new(child, generation, move |death| tell.do_send(Died(death))),
            kill: life.kill.clone(),
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
                let result = catch_unwind(AssertUnwindSafe(|| start(context)));
                let result = result.unwrap_or_else(|panic| Err(fault_of_panic(&*panic)));
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

    /// Takes in what has been reported of the newest incarnation.
    fn settle(&mut self, watchdog: &Addr<WatchdogActor>, now: MonoMs, shut_down: bool) {
        let Some(life) = &mut self.life else { return };
        match (&life.start, &life.death) {
            (None, _) => {}
            (Some(Ok(())), None) => {
                life.watched_from = now;
                if shut_down {
                    life.kill.throw();
                }
                self.enter(ChildState::Running, now);
                let (child, generation) = (&self.status.name, self.status.generation);
                info!(%child, %generation, "child runs");
            }
            // It left something alive behind: the notice will tell when that is gone.
            (Some(Err(_)), None) => life.kill.throw(),
            (Some(_), Some(_)) => self.bury(watchdog, now, shut_down),
        }
    }

    /// The newest incarnation is over: decides what comes next.
    fn bury(&mut self, watchdog: &Addr<WatchdogActor>, now: MonoMs, shut_down: bool) {
        let Some(life) = self.life.take() else { return };
        let (child, generation) = (&self.status.name, self.status.generation);
        if shut_down {
            info!(%child, %generation, "child stopped");
            return self.retire(now);
        }
        if life.asked {
            info!(%child, %generation, "child is started again, as asked");
            self.history.clear();
            return self.start(watchdog, now);
        }
        let is_for_good = matches!(&life.start, Some(Err(fault)) if fault.is_for_good());
        let fault = life.fault();
        let excused = (self.excused)();
        let next = if excused {
            NextStart::RestartAfter(EXCUSED_PAUSE)
        } else if is_for_good {
            NextStart::Park
        } else {
            self.history.next(now)
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
                self.start(watchdog, now);
            }
            NextStart::RestartAfter(backoff) => {
                warn!(%child, %generation, %fault, backoff_ms = backoff.0, "child died, backs off");
                let until = now.after(backoff);
                self.enter(ChildState::BackingOff { until }, now);
            }
            NextStart::Park => {
                let why = match is_for_good {
                    true => "another start would be no better",
                    false => "died too often, at last",
                };
                error!(%child, %generation, %fault, why, "child parked");
                let reason = format!("{why}: {fault}");
                self.enter(ChildState::Parked { reason }, now);
            }
        }
        self.status.last_fault = Some(fault);
    }

    /// It is not started again. What a start would be made of (files, connections) is let go of first.
    fn retire(&mut self, now: MonoMs) {
        self.start = Arc::new(|_| Err(StartFault::new("its watchdog was shut down")));
        self.enter(ChildState::Stopped, now);
    }

    /// Reads the pulse of a running child.
    fn judge(&mut self, now: MonoMs, away_until: MonoMs) {
        let Some(life) = &self.life else { return };
        if !self.status.is_running() {
            return;
        }
        let reading = life.pulse.read();
        let heard = reading.forgiven(life.watched_from.max(away_until));
        let found = PulseStatus {
            phase: reading.phase,
            age: now.since(reading.beat),
            verdict: verdict(heard, now, Bounds::default()),
        };
        let before = self.status.pulse.replace(found);
        let before = before.map_or(Verdict::Live, |pulse| pulse.verdict);
        if found.verdict != before {
            let (child, generation) = (&self.status.name, self.status.generation);
            let (is, silent_ms) = (found.verdict.name(), found.age.0);
            warn!(%child, %generation, is, silent_ms, "child's pulse");
        }
    }
}

impl Life {
    /// Why it is over. A failed start knows best; then the child's own words.
    fn fault(self) -> String {
        if let Some(Err(fault)) = self.start {
            return fault.to_string();
        }
        let (cause, words) = match self.death {
            Some(death) => (death.cause, death.last_words),
            None => (DeathCause::Stopped, None),
        };
        match (cause, words) {
            (DeathCause::Panicked, Some(words)) => format!("panicked: {words}"),
            (DeathCause::Panicked, None) => "panicked".to_owned(),
            (DeathCause::Stopped, Some(words)) => words,
            (DeathCause::Stopped, None) => "stopped unasked".to_owned(),
        }
    }
}

fn fault_of_panic(panic: &(dyn std::any::Any + Send)) -> StartFault {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    StartFault::new(format!("start panicked: {}", words.unwrap_or("no message")))
}

impl WatchdogActor {
    /// A watchdog over `children`, none of them started yet.
    pub(super) fn new(
        clock: Clock,
        board: Arc<Board>,
        children: Vec<Child>,
        me: Addr<Self>,
    ) -> Self {
        let now = clock.now().mono;
        Self {
            me,
            clock,
            board,
            children,
            last_round: now,
            away_until: now,
            shut_down: false,
        }
    }

    fn round(&mut self) {
        let now = self.clock.now().mono;
        let gap = now.since(self.last_round);
        self.last_round = now;
        if gap > AWAY {
            info!(gap_ms = gap.0, "watchdog was away, all silence is forgiven");
            self.away_until = now;
        }
        self.board.watchdog_pulse.beat(now);
        if !self.shut_down {
            for child in &mut self.children {
                match child.status.state {
                    ChildState::BackingOff { until } if until <= now => child.start(&self.me, now),
                    _ => child.judge(now, self.away_until),
                }
            }
        }
        self.publish();
    }

    /// Not `run_interval`: after a pause that would fire all missed rounds at once.
    fn next_round(ctx: &mut Context<Self>) {
        ctx.run_later(ROUND, |watchdog, ctx| {
            watchdog.round();
            Self::next_round(ctx);
        });
    }

    fn publish(&self) {
        let mut shown = self.board.children.lock();
        for (shown, child) in shown.iter_mut().zip(&self.children) {
            shown.clone_from(&child.status);
        }
        self.board.changed.notify_all();
    }

    /// Notes a report about one incarnation; words from one that is over change nothing.
    fn note(&mut self, child: ChildId, generation: Generation, report: impl FnOnce(&mut Life)) {
        let now = self.clock.now().mono;
        let Some(child) = self.children.get_mut(child.0) else {
            return;
        };
        if let Some(life) = child.life_of(generation) {
            report(life);
            child.settle(&self.me, now, self.shut_down);
            self.publish();
        }
    }
}

impl Actor for WatchdogActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.now().mono;
        for child in &mut self.children {
            child.start(&self.me, now);
        }
        self.publish();
        Self::next_round(ctx);
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
        self.note(ended.child, ended.generation, |life| {
            life.start = Some(ended.result);
        });
    }
}

/// A child's death notice was dropped.
#[derive(Message)]
#[rtype(result = "()")]
struct Died(Death);

impl Handler<Died> for WatchdogActor {
    type Result = ();

    fn handle(&mut self, Died(death): Died, _: &mut Context<Self>) {
        self.note(death.child, death.generation, |life| {
            life.death = Some(death);
        });
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
        match &mut child.life {
            Some(life) => {
                life.asked = true;
                life.kill.throw();
            }
            None => {
                child.history.clear();
                child.start(&self.me, self.clock.now().mono);
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
            match &child.life {
                Some(life) => life.kill.throw(),
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
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use actix::ActorContext;
    use parking_lot::Mutex;

    use super::*;
    use crate::clock::WallMs;
    use crate::watchdog::{NamedArbiter, RestartPolicy, UnknownChild, Watchdog, named_arbiter};

    const SOON: DurationMs = DurationMs::secs(20);
    /// Parks at the first death.
    const NEVER: RestartPolicy = RestartPolicy {
        window: DurationMs::secs(60),
        restarts_max: 0,
        backoff_first: DurationMs(0),
        backoff_max: DurationMs(0),
    };

    /// A child without any work: it obeys.
    struct Dummy {
        _pulse: Arc<Pulse>,
        _arbiter: NamedArbiter,
        death: DeathNotice,
    }

    impl Actor for Dummy {
        type Context = Context<Self>;
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    enum Order {
        Panic,
        Fail(&'static str),
        Leave,
    }

    impl Handler<Order> for Dummy {
        type Result = ();

        fn handle(&mut self, order: Order, ctx: &mut Context<Self>) {
            match order {
                Order::Panic => panic!("a test's panic"),
                Order::Fail(why) => {
                    self.death.last_words(why);
                    ctx.stop();
                }
                Order::Leave => ctx.stop(),
            }
        }
    }

    /// Where a test finds its newest dummy, and how often one was started.
    #[derive(Clone, Default)]
    struct Post {
        dummy: Arc<Mutex<Option<Addr<Dummy>>>>,
        starts: Arc<Mutex<Vec<Generation>>>,
    }

    impl Post {
        fn child(&self, name: &str) -> ChildSpec {
            let post = self.clone();
            ChildSpec::new(name, move |context| {
                post.starts.lock().push(context.generation);
                let arbiter = named_arbiter("dummy").map_err(StartFault::new)?;
                let kill = context.kill.clone();
                let addr = Dummy::start_in_arbiter(&arbiter.handle(), move |_| Dummy {
                    _pulse: context.pulse,
                    _arbiter: arbiter,
                    death: context.death,
                });
                let dummy = addr.clone();
                kill.on_throw(move || dummy.do_send(Order::Leave));
                *post.dummy.lock() = Some(addr);
                Ok(())
            })
        }

        fn order(&self, order: Order) {
            let dummy = self.dummy.lock().clone();
            dummy.expect("a dummy was started").do_send(order);
        }

        fn starts(&self) -> usize {
            self.starts.lock().len()
        }
    }

    impl Watchdog {
        fn child(&self, name: &str) -> ChildStatus {
            self.board.child(name).expect("a child of this name")
        }

        fn wait_for(&self, name: &str, wanted: impl Fn(&ChildStatus) -> bool) -> ChildStatus {
            let holds = self.board.wait_until(SOON, |children| {
                children
                    .iter()
                    .any(|child| child.name == name && wanted(child))
            });
            assert!(holds, "in the end: {}", self.child(name));
            self.child(name)
        }

        /// Until everything sent to the watchdog before has been handled.
        fn wait_until_idle(&self) {
            let (tell, hear) = mpsc::channel();
            self.addr.do_send(Flush(tell));
            assert_eq!(hear.recv_timeout(SOON.to_std()), Ok(()));
        }
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Flush(mpsc::Sender<()>);

    impl Handler<Flush> for WatchdogActor {
        type Result = ();

        fn handle(&mut self, Flush(tell): Flush, _: &mut Context<Self>) {
            let _ = tell.send(());
        }
    }

    fn by_hand() -> Clock {
        Clock::by_hand(WallMs(1_800_000_000_000))
    }

    fn runs_as(generation: u64) -> impl Fn(&ChildStatus) -> bool {
        move |child| child.is_running() && child.generation == Generation(generation)
    }

    #[test]
    fn a_panicking_child_is_started_again_as_generation_2_exactly_once() {
        let (clock, post) = (by_hand(), Post::default());
        let watchdog = Watchdog::start(clock.clone(), vec![post.child("dummy-00")]);
        assert_eq!(watchdog.wait_all_running(SOON), Ok(()));
        post.order(Order::Panic);
        let child = watchdog.wait_for("dummy-00", runs_as(2));
        assert_eq!(child.last_fault.as_deref(), Some("panicked"));
        watchdog.wait_until_idle();
        let child = watchdog.child("dummy-00");
        assert!(runs_as(2)(&child) && child.restarts == 1, "{child}");
        assert_eq!(post.starts(), 2);
    }

    #[test]
    fn a_child_that_fails_each_start_is_parked_after_the_pauses_of_its_policy() {
        let clock = by_hand();
        let restart = RestartPolicy {
            window: DurationMs::secs(60),
            restarts_max: 4,
            backoff_first: DurationMs(1_000),
            backoff_max: DurationMs(1_500),
        };
        let failing = ChildSpec {
            restart,
            ..ChildSpec::new("broken", |_| Err(StartFault::new("opening the store")))
        };
        let watchdog = Watchdog::start(clock.clone(), vec![failing]);
        // The first restart comes at once, so the second incarnation is the first to back off.
        for (generation, pause_ms) in [(2, 1_000), (3, 1_500), (4, 1_500)] {
            let until = clock.now().mono.after(DurationMs(pause_ms));
            let child = watchdog.wait_for("broken", |child| {
                child.generation == Generation(generation)
                    && matches!(child.state, ChildState::BackingOff { .. })
            });
            assert_eq!(child.state, ChildState::BackingOff { until });
            clock.advance(DurationMs(pause_ms - 1));
            watchdog.wait_until_idle();
            assert_eq!(watchdog.child("broken"), child, "not before its time");
            clock.advance(DurationMs(1));
        }
        let child = watchdog.wait_for("broken", ChildStatus::is_parked);
        assert_eq!((child.generation, child.restarts), (Generation(5), 4));
        assert_eq!(child.last_fault.as_deref(), Some("opening the store"));
        let not_running = watchdog.wait_all_running(SOON).expect_err("one is parked");
        assert_eq!(
            not_running.to_string(),
            "not running: broken g5 parked (opening the store)"
        );
        // Parked is for good, until a person asks.
        clock.advance(DurationMs::secs(3600));
        watchdog.wait_until_idle();
        assert!(watchdog.child("broken").is_parked());
        watchdog.restart("broken").expect("it is known");
        watchdog.wait_for("broken", |child| child.generation > Generation(5));
    }

    #[test]
    fn a_fault_for_good_parks_the_child_at_once() {
        let fault = || StartFault::for_good("the store is damaged");
        let broken = ChildSpec::new("broken", move |_| Err(fault()));
        let watchdog = Watchdog::start(by_hand(), vec![broken]);
        let child = watchdog.wait_for("broken", ChildStatus::is_parked);
        assert_eq!((child.generation, child.restarts), (Generation(1), 0));
        assert_eq!(child.last_fault.as_deref(), Some("the store is damaged"));
        watchdog.restart("broken").expect("it is known");
        watchdog.wait_for("broken", |child| {
            child.generation == Generation(2) && child.is_parked()
        });
    }

    #[test]
    fn an_excused_child_is_tried_at_a_steady_pace_never_parked_and_nothing_of_it_counts() {
        let clock = by_hand();
        let excused = Arc::new(AtomicBool::new(true));
        let holds = Arc::clone(&excused);
        let once = RestartPolicy {
            restarts_max: 1,
            ..NEVER
        };
        let failing = ChildSpec {
            restart: once,
            ..ChildSpec::new("writer", |_| Err(StartFault::new("no space left")))
        };
        let failing = failing.excused_while(move || holds.load(Ordering::SeqCst));
        let watchdog = Watchdog::start(clock.clone(), vec![failing]);
        for generation in 1..=30 {
            let until = clock.now().mono.after(EXCUSED_PAUSE);
            let child = watchdog.wait_for("writer", |child| {
                child.generation == Generation(generation)
                    && matches!(child.state, ChildState::BackingOff { .. })
            });
            assert_eq!(child.state, ChildState::BackingOff { until });
            excused.store(generation < 30, Ordering::SeqCst);
            clock.advance(EXCUSED_PAUSE);
        }
        // The restart that its policy grants is still to be had.
        let child = watchdog.wait_for("writer", ChildStatus::is_parked);
        assert_eq!(child.generation, Generation(32));
        assert_eq!(child.last_fault.as_deref(), Some("no space left"));
    }

    #[test]
    fn a_start_that_panics_is_a_failed_start() {
        let hasty = ChildSpec {
            restart: NEVER,
            ..ChildSpec::new("hasty", |_| panic!("not yet"))
        };
        let watchdog = Watchdog::start(by_hand(), vec![hasty]);
        let child = watchdog.wait_for("hasty", ChildStatus::is_parked);
        assert_eq!(child.last_fault.as_deref(), Some("start panicked: not yet"));
    }

    #[test]
    fn what_a_failed_start_leaves_behind_is_asked_to_leave_first() {
        let post = Post::default();
        let begin = post.child("half").start;
        let half = ChildSpec {
            restart: NEVER,
            ..ChildSpec::new("half", move |context| {
                begin(context)?;
                Err(StartFault::new("half way"))
            })
        };
        let watchdog = Watchdog::start(by_hand(), vec![half]);
        // It is only over, and so parked, when the dummy's death notice has come too.
        let child = watchdog.wait_for("half", ChildStatus::is_parked);
        assert_eq!(child.last_fault.as_deref(), Some("half way"));
    }

    #[test]
    fn a_stale_death_notice_changes_nothing() {
        let (clock, post) = (by_hand(), Post::default());
        let watchdog = Watchdog::start(clock.clone(), vec![post.child("dummy-00")]);
        watchdog.wait_for("dummy-00", runs_as(1));
        post.order(Order::Panic);
        watchdog.wait_for("dummy-00", runs_as(2));
        for generation in [0, 1, 3] {
            watchdog.addr.do_send(Died(Death {
                child: ChildId(0),
                generation: Generation(generation),
                cause: DeathCause::Stopped,
                last_words: Some("from beyond".into()),
            }));
        }
        watchdog.wait_until_idle();
        let child = watchdog.child("dummy-00");
        assert!(runs_as(2)(&child), "{child}");
        assert_eq!(child.last_fault.as_deref(), Some("panicked"));
        assert_eq!(post.starts(), 2);
    }

    #[test]
    fn one_failing_child_does_not_disturb_the_others() {
        let (clock, post) = (by_hand(), Post::default());
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Mutex::new(blocked);
        let children = vec![
            ChildSpec::new("broken", |_| Err(StartFault::new("no luck"))),
            ChildSpec::new("slow", move |_| {
                let _ = blocked.lock().recv_timeout(SOON.to_std());
                Err(StartFault::new("slow, and no luck"))
            }),
            post.child("dummy-00"),
        ];
        let watchdog = Watchdog::start(clock.clone(), children);
        watchdog.wait_for("dummy-00", runs_as(1));
        watchdog.wait_for("broken", |child| child.last_fault.is_some());
        assert_eq!(watchdog.child("slow").state, ChildState::Starting);
        post.order(Order::Fail("commit failed"));
        let child = watchdog.wait_for("dummy-00", runs_as(2));
        assert_eq!(child.last_fault.as_deref(), Some("commit failed"));
        drop(release);
    }

    #[test]
    fn the_next_start_waits_for_the_end_of_the_last_one() {
        let (release, blocked) = mpsc::channel::<()>();
        let (tell, hear) = mpsc::channel();
        let blocked = Mutex::new(blocked);
        let child = ChildSpec::new("hasty", move |context| {
            // The notice is gone long before the start returns.
            drop(context.death);
            let _ = tell.send(());
            let _ = blocked.lock().recv_timeout(SOON.to_std());
            Ok(())
        });
        let watchdog = Watchdog::start(by_hand(), vec![child]);
        assert_eq!(hear.recv_timeout(SOON.to_std()), Ok(()));
        watchdog.wait_until_idle();
        let child = watchdog.child("hasty");
        assert_eq!(child.state, ChildState::Starting);
        assert_eq!(child.generation, Generation(1));
        release.send(()).expect("the start waits");
        let child = watchdog.wait_for("hasty", |child| child.generation == Generation(2));
        assert_eq!(child.last_fault.as_deref(), Some("stopped unasked"));
    }

    #[test]
    fn a_long_start_is_not_held_against_a_child() {
        let (clock, post) = (by_hand(), Post::default());
        let (release, blocked) = mpsc::channel::<()>();
        let (blocked, inner) = (Mutex::new(blocked), post.child("slow").start);
        let child = ChildSpec::new("slow", move |context| {
            let _ = blocked.lock().recv_timeout(SOON.to_std());
            inner(context)
        });
        let watchdog = Watchdog::start(clock.clone(), vec![child]);
        for _ in 0..40 {
            clock.advance(DurationMs(200));
            watchdog.wait_until_idle();
        }
        assert_eq!(watchdog.child("slow").pulse, None);
        drop(release);
        let child = watchdog.wait_for("slow", |child| child.pulse.is_some());
        assert_eq!(child.pulse.map(|pulse| pulse.verdict), Some(Verdict::Live));
    }

    #[test]
    fn a_restart_that_was_asked_for_is_no_fault_and_wipes_the_sheet() {
        let post = Post::default();
        let restart = RestartPolicy {
            restarts_max: 1,
            ..NEVER
        };
        let child = ChildSpec {
            restart,
            ..post.child("dummy-00")
        };
        let watchdog = Watchdog::start(by_hand(), vec![child]);
        watchdog.wait_for("dummy-00", runs_as(1));
        for generation in [2, 4] {
            assert_eq!(watchdog.restart("dummy-00"), Ok(()));
            let child = watchdog.wait_for("dummy-00", runs_as(generation));
            assert_eq!(child.last_fault.is_some(), generation > 2);
            post.order(Order::Panic);
            watchdog.wait_for("dummy-00", runs_as(generation + 1));
        }
        post.order(Order::Panic);
        watchdog.wait_for("dummy-00", ChildStatus::is_parked);
        let unknown = UnknownChild("dummy-01".into());
        assert_eq!(watchdog.restart("dummy-01"), Err(unknown));
    }

    #[test]
    fn after_shutdown_nothing_is_started_again() {
        let (clock, post) = (by_hand(), Post::default());
        let (release, blocked) = mpsc::channel::<()>();
        let (late, blocked) = (Post::default(), Mutex::new(blocked));
        let inner = late.child("late").start;
        let children = vec![
            post.child("dummy-00"),
            ChildSpec::new("late", move |context| {
                let _ = blocked.lock().recv_timeout(SOON.to_std());
                inner(context)
            }),
        ];
        let watchdog = Watchdog::start(clock.clone(), children);
        watchdog.wait_for("dummy-00", runs_as(1));
        watchdog.shutdown();
        // One that runs is asked to leave.
        watchdog.wait_for("dummy-00", |child| child.state == ChildState::Stopped);
        // One that comes up afterwards is asked to leave.
        drop(release);
        watchdog.wait_for("late", |child| child.state == ChildState::Stopped);
        watchdog.restart("dummy-00").expect("it is known");
        watchdog.wait_until_idle();
        assert_eq!(watchdog.child("dummy-00").state, ChildState::Stopped);
        assert_eq!((post.starts(), late.starts()), (1, 1));
    }

    #[test]
    fn a_silent_child_is_shown_as_stuck_but_not_for_the_watchdogs_own_absence() {
        let (clock, post) = (by_hand(), Post::default());
        let watchdog = Watchdog::start(clock.clone(), vec![post.child("dummy-00")]);
        watchdog.wait_for("dummy-00", runs_as(1));
        let shown = |watchdog: &Watchdog| {
            watchdog.wait_until_idle();
            let pulse = watchdog.child("dummy-00").pulse;
            pulse.map(|pulse| pulse.verdict)
        };
        // The whole process stood still: no verdict on anybody.
        clock.advance(DurationMs::secs(3600));
        assert_eq!(shown(&watchdog), Some(Verdict::Live));
        // The watchdog looks on while the child says nothing.
        let mut seen = Vec::new();
        for _ in 0..40 {
            clock.advance(DurationMs(200));
            seen.extend(shown(&watchdog));
        }
        seen.dedup();
        assert_eq!(seen, [Verdict::Live, Verdict::Late, Verdict::Stuck]);
        assert!(watchdog.child("dummy-00").is_running());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_watchdog_has_a_thread_of_its_own_under_its_name() {
        let watchdog = Watchdog::start(Clock::machine(), Vec::new());
        let began = watchdog.board().watchdog_pulse().beat;
        let beats = |_: &[ChildStatus]| watchdog.board.watchdog_pulse().beat > began;
        assert!(watchdog.board().wait_until(SOON, beats), "no rounds");
        let tasks = std::fs::read_dir("/proc/self/task").expect("a list of threads");
        let names = tasks.flatten().map(|task| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.unwrap_or_default().trim_end().to_owned()
        });
        assert!(names.into_iter().any(|name| name == "watchdog"));
    }

    #[test]
    fn the_handle_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Watchdog>();
    }

    #[test]
    #[should_panic(expected = "two children are named twin")]
    fn two_children_never_share_a_name() {
        let twin = || ChildSpec::new("twin", |_| Ok(()));
        Watchdog::start(by_hand(), vec![twin(), twin()]);
    }
}
