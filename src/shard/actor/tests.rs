//! The actor on its own thread, over a disk that a test can hold, fail and hand to somebody else.

#![expect(
    clippy::unwrap_used,
    reason = "a test may stop at what it did not expect"
)]

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

use actix::Addr;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::*;
use crate::clock::{DurationMs, WallMs};
use crate::executor::handler::{HandlerLimits, handler};
use crate::executor::{AttemptReport, Commands, Handlers, ReportSink};
use crate::ids::{AttemptNumber, AttemptToken, SlotMap, TaskId};
use crate::shard::attempts::Attempts;
use crate::shard::completion::Completions;
use crate::shard::core::CoreOptions;
use crate::shard::create::{Created, Creation};
use crate::shard::messages::{ApplyVerb, CreateTask, FinishAttempt, GetTask, Target, Wants};
use crate::shard::query::TaskView;
use crate::shard::router::{NoAnswer, ShardRouter};
use crate::store::mem::{Fault, Hold, MemDisk};
use crate::task::event::Event;
use crate::task::model::State;
use crate::task::new_task::When;
use crate::task::outcome::Outcome;
use crate::task::spec::Action;
use crate::task::topic::OnExisting;
use crate::testing::fixtures::{START, TaskFixture, minutes, task};
use crate::watchdog::{ChildId, Death, DeathCause, Generation, named_arbiter};

/// Longest wait for anything.
const SOON: Duration = Duration::from_secs(20);
const SHARD: ShardId = ShardId(0);

/// One owner of a shard, the clock and what it acts on.
struct Bench {
    actor: Addr<ShardActor>,
    kill: KillSwitch,
    clock: Clock,
    wakes: Arc<WakeBoard>,
    /// Told when the actor is gone.
    death: mpsc::Receiver<Death>,
    /// Attempts that the handler was called for.
    called: mpsc::Receiver<(TaskId, AttemptNumber)>,
    /// What executors report.
    reports: mpsc::Receiver<AttemptReport>,
    attempts: Arc<Attempts>,
    #[expect(dead_code, reason = "it keeps them alive: they outlive each owner")]
    executors: Arc<Executors>,
    runtime: Runtime,
}

struct Sink(mpsc::Sender<AttemptReport>);

impl ReportSink for Sink {
    fn started(&self, _: TaskId, _: AttemptToken, _: Now) {}

    fn ended(&self, report: AttemptReport) {
        // A test that is over wants no reports.
        let _ = self.0.send(report);
    }
}

impl Bench {
    fn over(disk: &MemDisk) -> Self {
        Self::at(disk, START)
    }

    /// The owner after this one, in the same process.
    fn successor(&self, disk: &MemDisk) -> Self {
        Self::with(disk, self.clock.now().wall, Arc::clone(&self.attempts))
    }

    /// The first owner in its process.
    fn at(disk: &MemDisk, wall: WallMs) -> Self {
        Self::with(disk, wall, Arc::default())
    }

    /// A new owner, as the engine starts one.
    fn with(disk: &MemDisk, wall: WallMs, attempts: Arc<Attempts>) -> Self {
        let clock = Clock::by_hand(wall);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (call, called) = mpsc::channel();
        let wait = call.clone();
        let works = handler(move |task| {
            let call = call.clone();
            async move {
                call.send((task.id, task.attempt)).unwrap();
                Ok(None)
            }
        });
        let waits = handler(move |task| {
            let wait = wait.clone();
            async move {
                wait.send((task.id, task.attempt)).unwrap();
                task.cancel.cancelled().await;
                Ok(None)
            }
        });
        let handlers = HashMap::from([("works".to_owned(), works), ("waits".to_owned(), waits)]);
        let (report, reports) = mpsc::channel();
        let handlers = Handlers::new(handlers, HandlerLimits::default(), clock.clone()).unwrap();
        let outlets = Outlets {
            executors: Arc::new(Executors::new(
                handlers,
                Commands::new(None, clock.clone()),
                Arc::new(Sink(report)),
                clock.clone(),
            )),
            desk: Arc::default(),
            wakes: Arc::new(WakeBoard::new(1)),
            attempts: Arc::clone(&attempts),
            completions: Arc::new(Completions::new(&[7; 32])),
        };
        let wakes = Arc::clone(&outlets.wakes);
        let executors = Arc::clone(&outlets.executors);
        let (tell, death) = mpsc::channel();
        let notice = DeathNotice::new(ChildId(0), Generation(1), move |death| {
            let _ = tell.send(death);
        });
        let pulse = Arc::new(Pulse::new(clock.now().mono));
        let child = ChildContext::unwatched(Arc::clone(&pulse), notice);
        let kill = child.kill.clone();
        let core = |now| ShardCore::new(SHARD, CoreOptions::default(), Arc::default(), now);
        let recovered =
            ShardActor::recover(core, Box::new(disk.store()), &clock, &attempts, &pulse).unwrap();
        let thread = named_arbiter("shard-00").unwrap();
        let on = thread.handle();
        let its_clock = clock.clone();
        let actor = ShardActor::start_in_arbiter(&on, move |_| {
            ShardActor::new(recovered, its_clock, outlets, child, thread)
        });
        Self {
            actor,
            kill,
            clock,
            wakes,
            death,
            called,
            reports,
            attempts,
            executors,
            runtime,
        }
    }

    fn send<Q: Question>(&self, question: Q) -> oneshot::Receiver<Q::Answer> {
        let (reply, answer) = oneshot::channel();
        let permit = None;
        self.actor.do_send(Ask {
            question,
            reply,
            permit,
        });
        answer
    }

    /// The answer, or that there is none.
    fn wait<A>(&self, answer: oneshot::Receiver<A>) -> Option<A> {
        let answer = async { tokio::time::timeout(SOON, answer).await };
        self.runtime
            .block_on(answer)
            .expect("an answer, or the end of the actor")
            .ok()
    }

    fn ask<Q: Question>(&self, question: Q) -> Q::Answer {
        self.wait(self.send(question)).expect("an answer")
    }

    fn state(&self, id: TaskId) -> Option<State> {
        self.view(id).map(|view| view.task.state)
    }

    fn view(&self, id: TaskId) -> Option<TaskView> {
        self.ask(GetTask(Target::Id(id))).unwrap()
    }

    /// Time passes, and the scheduler says so.
    fn pass(&self, length: DurationMs) {
        self.clock.advance(length);
        self.actor.do_send(Tick);
    }

    /// Takes one report to the shard, as the engine does.
    fn deliver_report(&self) -> TaskView {
        let report = self.reports.recv_timeout(SOON).unwrap();
        let event = Event::Finished {
            token: report.token,
            outcome: report.outcome,
            started_at: report.started.map(|now| now.wall),
        };
        let by = "handler".to_owned();
        let task = report.task;
        self.ask(FinishAttempt { task, event, by }).unwrap()
    }

    fn death(&self) -> Death {
        self.death.recv_timeout(SOON).expect("the actor's end")
    }
}

fn create(fixture: TaskFixture) -> (TaskId, CreateTask) {
    let task = fixture.build(Clock::by_hand(START).now());
    let when = When::After(task.due.at.since(START));
    let creation = Creation {
        id: task.id,
        topic: task.topic,
        key: task.key,
        spec: task.spec,
        when: Some(when),
        on_existing: OnExisting::Reject,
        request: None,
        is_skipped: false,
    };
    let by = "test".to_owned();
    (creation.id, CreateTask { creation, by })
}

/// A task whose handler ends only when it is told to.
fn waits() -> TaskFixture {
    task().action(Action::Handler {
        name: "waits".to_owned(),
    })
}

fn cancel(id: TaskId) -> ApplyVerb {
    ApplyVerb {
        target: Target::Id(id),
        event: Event::Cancel {
            reason: String::new(),
        },
        by: "test".to_owned(),
        wants: Wants::Slim,
    }
}

fn works() -> TaskFixture {
    task().action(Action::Handler {
        name: "works".to_owned(),
    })
}

#[test]
fn an_answer_comes_when_what_it_rests_on_is_committed_and_not_before() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let hold = disk.hold_commit();
    let (id, question) = create(task().due_in_minutes(5));
    let mut created = bench.send(question);
    assert!(hold.wait_until_reached());
    // Neither does a look at the same task get ahead of the commit.
    let mut seen = bench.send(GetTask(Target::Id(id)));
    assert!(created.try_recv().is_err() && seen.try_recv().is_err());
    hold.release();
    assert!(matches!(bench.wait(created), Some(Created::New(view)) if view.task.id == id));
    assert_eq!(
        bench.wait(seen).unwrap().unwrap().map(|view| view.task.id),
        Some(id)
    );
}

#[test]
fn what_is_asked_while_a_commit_is_out_gathers_into_the_next_one() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let before = disk.commits();
    let hold = disk.hold_commit();
    let first = bench.send(create(task().due_in_minutes(5)).1);
    assert!(hold.wait_until_reached());
    let (ids, gathered): (Vec<_>, Vec<_>) = (0..500)
        .map(|_| {
            let (id, question) = create(task().due_in_minutes(5));
            (id, bench.send(question))
        })
        .unzip();
    hold.release();
    assert!(bench.wait(first).is_some());
    for answer in gathered {
        assert!(matches!(bench.wait(answer), Some(Created::New(_))));
    }
    assert_eq!(disk.commits() - before, 2);
    let looked_at = ids
        .into_iter()
        .filter(|id| bench.state(*id) == Some(State::Pending))
        .count();
    assert_eq!(
        (looked_at, disk.commits() - before),
        (500, 2),
        "a look needs no commit"
    );
}

#[test]
fn a_failed_commit_ends_the_actor_and_its_questions_have_no_answer() {
    for (fault, is_there) in [(Fault::BeforeSync, false), (Fault::AfterSync, true)] {
        let disk = MemDisk::new();
        let bench = Bench::over(&disk);
        let (kept, question) = create(task().due_in_minutes(5));
        bench.ask(question);
        disk.fail_commit(1, fault);
        let (doubtful, question) = create(task().due_in_minutes(5));
        let hold = disk.hold_commit();
        let out = bench.send(question);
        assert!(hold.wait_until_reached());
        let gathered = bench.send(cancel(kept));
        hold.release();
        assert!(bench.wait(out).is_none() && bench.wait(gathered).is_none());
        let death = bench.death();
        assert_eq!(death.cause, DeathCause::Stopped);
        let words = death.last_words.unwrap();
        assert!(
            words.contains("commit") && words.contains("a test made it fail"),
            "{words}"
        );
        assert!(
            bench.wait(bench.send(cancel(kept))).is_none(),
            "nor has any that comes later"
        );

        let successor = Bench::over(&disk);
        assert_eq!(successor.state(kept), Some(State::Pending));
        assert_eq!(successor.state(doubtful).is_some(), is_there);
        successor.ask(cancel(kept)).unwrap();
    }
}

#[test]
fn an_owner_whose_epoch_is_over_commits_nothing_and_stops() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (kept, question) = create(task().due_in_minutes(5));
    bench.ask(question);
    let successor = Bench::over(&disk);
    assert!(bench.wait(bench.send(cancel(kept))).is_none());
    let words = bench.death().last_words.unwrap();
    assert!(words.contains("epoch"), "{words}");
    assert_eq!(
        successor.state(kept),
        Some(State::Pending),
        "nothing of it counts"
    );
}

#[test]
fn an_attempt_starts_when_its_dispatch_is_committed_and_its_report_ends_the_task() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let hold = disk.hold_commit();
    let (id, question) = create(works());
    let created = bench.send(question);
    assert!(hold.wait_until_reached());
    bench.actor.do_send(Tick);
    assert!(bench.called.try_recv().is_err(), "not before the commit");
    hold.release();
    assert_eq!(bench.called.recv_timeout(SOON), Ok((id, AttemptNumber(1))));
    assert!(bench.wait(created).is_some());
    assert_eq!(bench.deliver_report().task.state, State::Succeeded);
    assert_eq!(
        disk.commits(),
        2,
        "one for create and dispatch, one for the end"
    );
}

#[test]
fn an_armed_attempt_starts_at_its_instant_even_while_a_commit_is_out() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (id, question) = create(works().due_in(DurationMs(20)));
    bench.ask(question);
    assert_eq!(bench.state(id), Some(State::Dispatched));
    let hold = disk.hold_commit();
    let other = bench.send(create(task().due_in_minutes(5)).1);
    assert!(hold.wait_until_reached());
    bench.pass(DurationMs(19));
    bench.pass(DurationMs(1));
    assert_eq!(bench.called.recv_timeout(SOON), Ok((id, AttemptNumber(1))));
    hold.release();
    assert!(bench.wait(other).is_some());
    assert_eq!(
        bench.view(id).unwrap().task.lateness_ms,
        Some(0),
        "nor before it"
    );
}

#[test]
fn a_cancel_that_is_being_committed_already_keeps_an_armed_attempt_from_starting() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (id, question) = create(works().due_in(DurationMs(20)));
    bench.ask(question);
    let hold = disk.hold_commit();
    let cancelled = bench.send(cancel(id));
    assert!(hold.wait_until_reached());
    bench.pass(DurationMs(20));
    hold.release();
    assert_eq!(
        bench.wait(cancelled).unwrap().unwrap().view.slim().state,
        State::Cancelled
    );
    // Two commits and a start later: had it been started, its call would be there by now.
    let (other, question) = create(works());
    bench.ask(question);
    assert_eq!(
        bench.called.recv_timeout(SOON),
        Ok((other, AttemptNumber(1)))
    );
}

/// A question over which the shard's thread is held.
struct HoldThread(Hold);

impl Question for HoldThread {
    type Answer = ();

    fn put(self, _: &mut ShardCore, _: Now) {
        self.0.stop_here();
    }
}

#[test]
fn an_owner_that_was_given_up_while_its_thread_was_held_starts_and_answers_nothing_any_more() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (id, question) = create(works().due_in(DurationMs(20)));
    bench.ask(question);
    assert_eq!(bench.state(id), Some(State::Dispatched));
    let hold = Hold::default();
    let held = bench.send(HoldThread(hold.clone()));
    assert!(hold.wait_until_reached());
    // Its successor takes the armed attempt back, since its instant is still ahead.
    let successor = Bench::over(&disk);
    bench.kill.throw();
    bench.pass(DurationMs(20));
    successor.pass(DurationMs(20));
    let first = Ok((id, AttemptNumber(1)));
    assert_eq!(successor.called.recv_timeout(SOON), first);
    hold.release();
    assert!(bench.wait(held).is_none(), "its word counts no more");
    assert_eq!(bench.death().cause, DeathCause::Stopped);
    assert!(bench.called.try_recv().is_err(), "started by both");
}

#[test]
fn a_successor_settles_what_its_predecessor_had_in_flight() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (again, question) = create(works());
    bench.ask(question);
    let (once, question) = create(works().at_most_once());
    bench.ask(question);
    let first = [
        bench.called.recv_timeout(SOON),
        bench.called.recv_timeout(SOON),
    ];
    assert_eq!(
        first,
        [Ok((again, AttemptNumber(1))), Ok((once, AttemptNumber(1)))]
    );
    disk.crash();

    let successor = Bench::over(&disk);
    assert_eq!(
        successor.called.recv_timeout(SOON),
        Ok((again, AttemptNumber(2)))
    );
    assert_eq!(successor.state(once), Some(State::Dead));
    // The predecessor's report is of another attempt.
    let late = bench.reports.recv_timeout(SOON).unwrap();
    assert!(matches!(late.outcome, Outcome::Succeeded { .. }));
    let event = Event::Finished {
        token: late.token,
        outcome: late.outcome,
        started_at: None,
    };
    let (task, by) = (late.task, "handler".to_owned());
    successor
        .ask(FinishAttempt { task, event, by })
        .unwrap_err();
    assert_eq!(successor.deliver_report().task.state, State::Succeeded);
}

#[test]
fn steady_time_goes_on_in_the_successor_though_the_wall_clock_went_back() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (id, question) = create(works().due_in(minutes(30)));
    bench.ask(question);
    bench.clock.advance(minutes(20));
    bench.ask(create(task().due_in_minutes(5)).1);
    disk.crash();
    let successor = Bench::at(&disk, WallMs(START.0 - 3_600_000));
    successor.pass(DurationMs(10 * 60_000 - 1));
    assert_eq!(successor.state(id), Some(State::Dispatched));
    successor.pass(DurationMs(1));
    assert_eq!(
        successor.called.recv_timeout(SOON),
        Ok((id, AttemptNumber(1)))
    );
    assert_eq!(successor.view(id).unwrap().task.lateness_ms, Some(0));
}

#[test]
fn a_thrown_kill_switch_ends_the_actor() {
    let bench = Bench::over(&MemDisk::new());
    bench.ask(create(task().due_in_minutes(5)).1);
    bench.kill.throw();
    assert_eq!(bench.death().cause, DeathCause::Stopped);
    assert!(bench.wait(bench.send(create(task()).1)).is_none());
}

#[test]
fn an_owner_that_was_given_up_answers_nobody_and_starts_nothing_when_it_wakes() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (armed, question) = create(works().due_in(DurationMs(20)));
    bench.ask(question);
    assert_eq!(bench.state(armed), Some(State::Dispatched));
    let wanted = bench.clock.edge_us().0;
    let hold = disk.hold_commit();
    let (due, question) = create(works());
    let out = bench.send(question);
    assert!(hold.wait_until_reached());
    bench.kill.throw();
    bench.pass(DurationMs(20));
    // Both are its successor's to see to, which has begun before the held commit goes on: that one is refused.
    let successor = Bench::over(&disk);
    hold.release();
    assert!(bench.wait(out).is_none());
    bench.death();
    assert!(bench.called.try_recv().is_err(), "nothing was started");
    assert!(bench.wakes.earliest_us() <= wanted + 20_000);
    assert_eq!(successor.state(due), None, "nobody was told of it");
    successor.pass(DurationMs(20));
    assert_eq!(successor.called.recv_timeout(SOON).unwrap().0, armed);
}

#[test]
fn what_an_owner_had_started_goes_on_and_its_successor_takes_the_answer() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (id, question) = create(waits());
    bench.ask(question);
    bench.called.recv_timeout(SOON).unwrap();
    let hold = disk.hold_commit();
    let _out = bench.send(create(task().due_in_minutes(5)).1);
    assert!(hold.wait_until_reached());
    bench.kill.throw();
    hold.release();
    bench.death();

    let successor = bench.successor(&disk);
    assert_eq!(successor.state(id), Some(State::Running));
    let view = successor.view(id).unwrap();
    assert_eq!((view.task.attempts, view.task.lateness_ms), (1, Some(0)));
    assert!(bench.reports.try_recv().is_err(), "it runs");
    // It ends only when it is told to, and its owner can tell it.
    assert!(successor.ask(cancel(id)).unwrap().stopping);
    assert_eq!(bench.reports.recv_timeout(SOON).unwrap().task, id);
    assert_eq!(successor.state(id), Some(State::Cancelled));
    assert!(
        successor.called.try_recv().is_err(),
        "nothing was started again"
    );
}

#[test]
fn an_attempt_of_an_owner_that_was_given_up_is_lost_when_its_time_to_answer_is_over() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (id, question) = create(waits());
    bench.ask(question);
    bench.called.recv_timeout(SOON).unwrap();
    bench.kill.throw();
    bench.death();
    let successor = bench.successor(&disk);
    assert_eq!(successor.state(id), Some(State::Running));
    successor.pass(DurationMs::secs(33));
    assert_eq!(successor.state(id), Some(State::Running));
    successor.pass(DurationMs::secs(2));
    assert_eq!(successor.state(id), Some(State::Retrying));
    assert_eq!(
        bench.reports.recv_timeout(SOON).unwrap().task,
        id,
        "it was stopped"
    );
}

#[test]
fn who_waits_for_an_owner_that_is_given_up_is_told_so_and_nobody_is_sent_to_it() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (router, up) = way_to(&bench);
    let (release, until) = mpsc::channel();
    let _never = bench.send(Block(until));
    let (_, question) = create(task().due_in_minutes(5));
    let answer = bench.runtime.block_on(async {
        let given_up = async { bench.kill.throw() };
        let both = async { tokio::join!(router.ask(up, question), given_up).0 };
        tokio::time::timeout(SOON / 2, both).await
    });
    assert_eq!(answer.expect("soon").err(), Some(NoAnswer::Unknown(up)));
    let (_, question) = create(task().due_in_minutes(5));
    let answer = bench.runtime.block_on(router.ask(up, question));
    assert_eq!(answer.err(), Some(NoAnswer::Down(up)));
    // One of no later epoch finds the door taken.
    let other = Bench::over(&MemDisk::new());
    for (epoch, is_up) in [(1, false), (2, true)] {
        router.open(
            up,
            other.actor.clone(),
            ShardEpoch(epoch),
            KillSwitch::new(),
        );
        assert_eq!(router.is_up(up), is_up);
    }
    drop(release);
}

/// A question that blocks the core's thread until the other end is dropped.
struct Block(mpsc::Receiver<()>);

impl Question for Block {
    type Answer = ();

    fn put(self, _: &mut ShardCore, _: Now) {
        let _ = self.0.recv();
    }
}

/// A question that breaks the core's thread.
struct Break;

impl Question for Break {
    type Answer = ();

    fn put(self, _: &mut ShardCore, _: Now) {
        panic!("a test's panic");
    }
}

#[test]
fn a_panic_ends_the_actor_without_an_answer_for_anybody_and_loses_nothing_committed() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (kept, question) = create(task().due_in_minutes(5));
    bench.ask(question);
    let hold = disk.hold_commit();
    let out = bench.send(create(task().due_in_minutes(5)).1);
    assert!(hold.wait_until_reached());
    let (lost, question) = create(task().due_in_minutes(5));
    let (before, broken) = (bench.send(question), bench.send(Break));
    hold.release();
    assert!(bench.wait(out).is_some());
    assert!(bench.wait(before).is_none() && bench.wait(broken).is_none());
    let death = bench.death();
    assert_eq!(death.cause, DeathCause::Panicked);
    assert_eq!(death.last_words.as_deref(), Some("a test's panic"));
    let successor = Bench::over(&disk);
    assert_eq!(
        (successor.state(kept), successor.state(lost)),
        (Some(State::Pending), None)
    );
}

/// A way to two shards, of which only the second is up.
fn way_to(bench: &Bench) -> (ShardRouter, ShardId) {
    let up = ShardId(1);
    let router = ShardRouter::new(SlotMap::new(2), 8);
    router.open(up, bench.actor.clone(), ShardEpoch(1), bench.kill.clone());
    (router, up)
}

#[test]
fn who_asks_a_shard_that_hangs_is_told_that_the_outcome_is_unknown() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (router, up) = way_to(&bench);
    let hold = disk.hold_commit();
    let (id, create) = create(task().due_in_minutes(5));
    let asked = router.ask_within(Duration::from_millis(20), up, create);
    let answer = bench.runtime.block_on(asked);
    assert_eq!(answer.err(), Some(NoAnswer::Unknown(up)));
    hold.release();
    assert_eq!(
        bench.state(id),
        Some(State::Pending),
        "it was done all the same"
    );
}

#[test]
fn all_shards_are_told_even_if_one_is_down() {
    let disk = MemDisk::new();
    let bench = Bench::over(&disk);
    let (router, _) = way_to(&bench);
    let (ids, creates): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| create(task().due_in_minutes(5)))
        .map(|(id, create)| (id, std::cell::Cell::new(Some(create))))
        .unzip();
    let question = |shard: ShardId| creates[usize::from(shard.0)].take().unwrap();
    let told = bench.runtime.block_on(router.tell_all(question));
    assert_eq!(told.err(), Some(NoAnswer::Down(ShardId(0))));
    assert_eq!(bench.state(ids[1]), Some(State::Pending));
}
