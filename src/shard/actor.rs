//! The actor around a [`ShardCore`]: it gathers questions, closes steps, commits, and only then acts.
//!
//! ```text
//!  mailbox ─▶ gathered ─▶ step ─▶ committer ─▶ Told ─▶ answers, armed attempts, stops
//!                 ▲                   │
//!                 └── gathers while ──┘ one batch is out
//! ```
//!
//! A failed or doubtful commit stops the actor: nothing is rolled back in memory, the watchdog starts it anew
//! from the store. Armed attempts start at their instant whether or not a batch is out.
//!
//! An owner that was given up and wakes again is a zombie. Nothing that it does counts: the store refuses its commits,
//! and everything else that others could see leaves by one of three doors (`perform`, `launch`, `report_wake`), which
//! are shut once its kill switch is thrown. What it had launched goes on: its successor adopts it, and closes the list of
//! attempts to it (`shard::attempts`). Those who wait for its answers are told by the router.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};

use crate::clock::{Clock, Now};
use crate::executor::pull::PullDesk;
use crate::executor::{Doors, Executors};
use crate::failpoints;
use crate::ids::{ShardEpoch, ShardId};
use crate::shard::attempts::Attempts;
use crate::shard::committer::{Broken, Committer, CommitterGone, Done};
use crate::shard::completion::Completions;
use crate::shard::core::{Effect, ShardCore};
use crate::shard::launch::attempt_of;
use crate::shard::messages::{Ask, Question, Worked};
use crate::shard::wakes::WakeBoard;
use crate::shard::watched_reads::WatchedReads;
use crate::store::{Begun, ShardStore, StoreError};
use crate::watchdog::{ChildContext, DeathNotice, KillSwitch, NamedArbiter, Pulse, Threads};

/// Most questions that wait in the mailbox; admission (the router's permits) keeps below it.
pub const MAILBOX_MAX: usize = 65_536;
/// Most questions answered in one step, so that a batch stays small enough to sync quickly.
const QUESTIONS_PER_STEP: usize = 2_048;
/// Longest time that steps are taken in a row, in microseconds; then other messages have their turn.
const STEPS_US_MAX: i64 = 5_000;
/// Longest time without a tick.
const TICK_MS_MAX: i64 = 1_000;
/// How often the actor shows that it lives, whether or not it is told the time.
const BEAT: Duration = Duration::from_millis(250);

/// A start beats each time it has taken in so many things: to read the clock for each takes a tenth of it.
const BEAT_EACH: u32 = 64;

/// What a shard acts on.
#[derive(Clone)]
pub struct Outlets {
    /// Runs attempts.
    pub executors: Arc<Executors>,
    /// Wakes waiting workers.
    pub desk: Arc<PullDesk>,
    /// Tells the scheduler when to come back.
    pub wakes: Arc<WakeBoard>,
    /// The shard's attempts that run.
    pub attempts: Arc<Attempts>,
    /// Makes the URLs by which receivers complete later.
    pub completions: Arc<Completions>,
}

/// It is now. Sent by the scheduler.
#[derive(Debug)]
pub struct Tick;

impl Message for Tick {
    type Result = ();
}

/// The committer has done something, or has failed.
struct Told(Result<Done, Broken>);

impl Message for Told {
    type Result = ();
}

/// Leave, so that the watchdog starts a successor.
struct Leave;

impl Message for Leave {
    type Result = ();
}

type Answer = Box<dyn FnOnce()>;

/// How far an errand got in one step.
enum Ran {
    Done(Answer),
    Again(Box<dyn Errand>),
}

/// A question whose type the shard need not know.
trait Errand {
    fn run(self: Box<Self>, core: &mut ShardCore, now: Now) -> Ran;
}

impl<Q: Question> Errand for Ask<Q> {
    fn run(self: Box<Self>, core: &mut ShardCore, now: Now) -> Ran {
        let Self {
            question,
            reply,
            permit,
        } = *self;
        let answer = match question.work(core, now) {
            Worked::Done(answer) => answer,
            Worked::Again(question) => {
                return Ran::Again(Box::new(Ask {
                    question,
                    reply,
                    permit,
                }));
            }
        };
        // Who asked may have gone meanwhile; what was done stays done.
        Ran::Done(Box::new(move || {
            let _ = reply.send(answer);
            drop(permit);
        }))
    }
}

/// What waits for the commit that is out.
struct Out {
    answers: Vec<Answer>,
    effects: Vec<Effect>,
}

/// One shard. See the module's header.
pub struct ShardActor {
    core: ShardCore,
    clock: Clock,
    outlets: Outlets,
    committer: Option<Committer>,
    store: Option<Box<dyn ShardStore>>,
    epoch: ShardEpoch,
    gathered: VecDeque<Box<dyn Errand>>,
    out: Option<Out>,
    again: bool,
    pulse: Arc<Pulse>,
    threads: Threads,
    kill: KillSwitch,
    _thread: NamedArbiter,
    death: DeathNotice,
}

impl ShardActor {
    /// Builds a shard from its store: a new epoch, then every task and note as they were committed. Attempts that an
    /// earlier owner has started and that run are this one's from here on.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn recover(
        core: impl FnOnce(Now) -> ShardCore,
        mut store: Box<dyn ShardStore>,
        clock: &Clock,
        attempts: &Attempts,
        pulse: &Arc<Pulse>,
    ) -> Result<(ShardCore, Box<dyn ShardStore>, ShardEpoch), StoreError> {
        let begun @ Begun { epoch, steady, .. } = store.begin()?;
        clock.raise_steady(steady);
        let now = clock.now();
        let mut core = core(now);
        let beside = store.reader()?;
        let reader = WatchedReads::over(Arc::clone(&beside), Arc::clone(pulse), clock.clone());
        core.begin_recovery(begun, Arc::new(reader), beside);
        let (mut recovered, mut count) = (Ok(()), 0_u32);
        store.recover(&mut |stored| {
            if count.is_multiple_of(BEAT_EACH) {
                pulse.beat(clock.now().mono);
            }
            count = count.wrapping_add(1);
            if recovered.is_ok() {
                recovered = core.recover(stored, now);
            }
        })?;
        recovered?;
        let running = attempts.take_over(epoch);
        core.end_recovery(&running, now);
        attempts.keep(epoch, |task, token| core.is_present(task, token));
        Ok((core, store, epoch))
    }

    /// The actor, to be started on `thread`, which ends with it.
    pub fn new(
        (mut core, store, epoch): (ShardCore, Box<dyn ShardStore>, ShardEpoch),
        clock: Clock,
        outlets: Outlets,
        child: ChildContext,
        thread: NamedArbiter,
    ) -> Self {
        core.ask_at(Arc::clone(&outlets.executors) as Arc<dyn Doors>);
        Self {
            core,
            clock,
            outlets,
            committer: None,
            store: Some(store),
            epoch,
            gathered: VecDeque::new(),
            out: None,
            again: false,
            pulse: child.pulse,
            threads: child.threads,
            kill: child.kill,
            _thread: thread,
            death: child.death,
        }
    }

    fn shard(&self) -> ShardId {
        self.core.id()
    }

    fn leave(&mut self, why: String, ctx: &mut Context<Self>) {
        self.death.last_words(why);
        ctx.stop();
    }

    /// Whether nothing of this owner counts any more: the fence before all that others can see.
    fn is_fenced(&self) -> bool {
        self.kill.is_thrown()
    }

    fn beat(&self) {
        self.pulse.beat(self.clock.now().mono);
    }

    /// Works on; a panic is heard, and then takes the actor down.
    fn heard(&mut self, ctx: &mut Context<Self>, work: impl FnOnce(&mut Self, &mut Context<Self>)) {
        let words = self.death.words();
        words.hear(|| {
            if let Err(error) = failpoints::reach("shard::handler") {
                return self.leave(error.to_string(), ctx);
            }
            work(self, ctx);
        });
    }

    /// Takes steps until a batch is out, nothing is left to do, or others should have their turn.
    fn step(&mut self, ctx: &mut Context<Self>) {
        let until_us = self.clock.edge_us().0 + STEPS_US_MAX;
        let mut now = self.clock.now();
        self.launch(now);
        while self.out.is_none() {
            if self.is_fenced() {
                return ctx.stop();
            }
            let answers = self.answer_some(now, until_us);
            if self.outlets.wakes.is_open() {
                self.core.advance(now);
            }
            let step = self.core.close(now);
            if let Some(error) = self.core.fault() {
                let shard = self.shard();
                return self.leave(format!("{shard}: read: {error}"), ctx);
            }
            let out = Out {
                answers,
                effects: step.effects,
            };
            match step.batch {
                Some(batch) => {
                    self.out = Some(out);
                    if !self.hand_in(|committer| committer.commit(batch, step.fold_along)) {
                        return self.leave("the committer is gone".to_owned(), ctx);
                    }
                }
                None => self.perform(out, now),
            }
            if let Some(fold) = step.fold
                && !self.hand_in(|committer| committer.fold(fold))
            {
                return self.leave("the committer is gone".to_owned(), ctx);
            }
            if let (Some(table), Some(committer)) = (step.scrap, &self.committer) {
                committer.scrap(table);
            }
            now = self.clock.now();
            if self.gathered.is_empty() && !step.more {
                break;
            }
            if self.clock.edge_us().0 >= until_us && !self.again {
                self.again = true;
                ctx.notify(Tick);
                break;
            }
        }
        self.launch(now);
        self.pulse.idle(now.mono);
        self.report_wake(now);
    }

    /// Whether the committer is there to take it.
    fn hand_in(&self, give: impl FnOnce(&Committer) -> Result<(), CommitterGone>) -> bool {
        self.committer
            .as_ref()
            .is_some_and(|committer| give(committer).is_ok())
    }

    /// Works on what was gathered, as far as this step has room and time; one question at least.
    fn answer_some(&mut self, now: Now, until_us: i64) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(errand) = self.gathered.pop_front() {
            match errand.run(&mut self.core, now) {
                Ran::Done(answer) => answers.push(answer),
                Ran::Again(errand) => {
                    self.gathered.push_front(errand);
                    break;
                }
            }
            if answers.len() >= QUESTIONS_PER_STEP
                || self.core.is_full()
                || self.clock.edge_us().0 >= until_us
            {
                break;
            }
        }
        answers
    }

    fn perform(&mut self, out: Out, now: Now) {
        // What it says without a commit may not be so any more, and what was committed its successor finds.
        if self.is_fenced() {
            return;
        }
        for answer in out.answers {
            answer();
        }
        for effect in out.effects {
            match effect {
                Effect::Arm(armed) => self.core.arm(armed),
                Effect::Stop(task) => self.outlets.attempts.stop(self.epoch, task),
                Effect::Over(task) => self.outlets.attempts.end(self.epoch, task),
                Effect::Ready(topic, count) => self.outlets.desk.wake(&topic, count),
            }
        }
        self.launch(now);
    }

    /// Starts nothing once it was given up: its successor takes back what was armed, and starts it itself.
    fn launch(&mut self, now: Now) {
        if self.is_fenced() {
            return;
        }
        let Outlets {
            attempts,
            completions,
            executors,
            ..
        } = &self.outlets;
        let launched = self.core.launch(now).into_iter().filter_map(|launch| {
            let cancel = attempts.begin(self.epoch, launch.task, launch.token, now)?;
            Some(attempt_of(launch, completions, now, cancel))
        });
        executors.run(launched);
    }

    fn report_wake(&self, now: Now) {
        if self.is_fenced() {
            return;
        }
        let wait_ms = self
            .core
            .next_in_ms(now)
            .unwrap_or(TICK_MS_MAX)
            .clamp(0, TICK_MS_MAX);
        // While a batch is out, only armed attempts are served; the rest waits for its commit anyway.
        let wait_ms = if self.out.is_some() {
            wait_ms.max(1)
        } else {
            wait_ms
        };
        let (mono_us, into_ms_us) = self.clock.edge_us();
        self.outlets
            .wakes
            .set(self.shard(), mono_us + (wait_ms * 1000 - into_ms_us).max(0));
    }
}

impl Actor for ShardActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(MAILBOX_MAX);
        let me = ctx.address();
        self.kill.on_throw({
            let me = me.clone();
            move || me.do_send(Leave)
        });
        ctx.run_interval(BEAT, |actor, _| actor.beat());
        if let Err(error) = failpoints::reach("shard::started") {
            return self.leave(error.to_string(), ctx);
        }
        // Never more than one batch and one fold are out, so this queue is bounded.
        let done = move |result| me.do_send(Told(result));
        let Some(store) = self.store.take() else {
            return;
        };
        let watched = (self.clock.clone(), &self.threads);
        match Committer::start(self.shard(), self.epoch, store, watched, done) {
            Ok(committer) => self.committer = Some(committer),
            Err(error) => return self.leave(format!("start the committer: {error}"), ctx),
        }
        self.step(ctx);
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        if let Err(error) = failpoints::reach("shard::stopped") {
            self.death.last_words(error.to_string());
        }
    }
}

impl<Q: Question> Handler<Ask<Q>> for ShardActor {
    type Result = ();

    fn handle(&mut self, ask: Ask<Q>, ctx: &mut Context<Self>) {
        self.gathered.push_back(Box::new(ask));
        if self.out.is_none() && !self.again {
            // What else is in the mailbox by now belongs into the same step.
            self.again = true;
            ctx.notify(Tick);
        }
    }
}

impl Handler<Tick> for ShardActor {
    type Result = ();

    fn handle(&mut self, _: Tick, ctx: &mut Context<Self>) {
        self.again = false;
        self.heard(ctx, Self::step);
    }
}

impl Handler<Told> for ShardActor {
    type Result = ();

    fn handle(&mut self, Told(result): Told, ctx: &mut Context<Self>) {
        self.heard(ctx, |actor, ctx| match result {
            Ok(Done::Committed) => {
                if let Some(out) = actor.out.take() {
                    actor.perform(out, actor.clock.now());
                }
                actor.step(ctx);
            }
            Ok(Done::Folded(folded)) => {
                actor.core.folded(folded);
                actor.step(ctx);
            }
            Err(error) => {
                let shard = actor.shard();
                actor.leave(format!("{shard}: commit: {error}"), ctx);
            }
        });
    }
}

impl Handler<Leave> for ShardActor {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Context<Self>) {
        self.leave("asked to leave".to_owned(), ctx);
    }
}

#[cfg(test)]
mod tests;
