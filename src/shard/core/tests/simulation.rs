//! Random lives of a shard: people, workers, executors and their doors, clocks, slow disks and deaths, in any order.
//!
//! After each step the shell and `sound` check everything they know; at the end, when all goes well again, every
//! task must come to an end and in time be forgotten.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::RngSeed;

use super::shell::{Died, finish, verb};
use super::*;
use crate::executor::Door;
use crate::task::clocks::{TaskClock, Then};
use crate::task::event::NewDue;
use crate::task::guard::{Guard, OnSilence};
use crate::task::history::ErrorNote;
use crate::task::new_task::When;
use crate::task::outcome::Outcome;
use crate::task::spec::{OnNoAnswer, RawJson};
use crate::task::stage::Starts;

const TOPICS: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug)]
enum Act {
    Create(Box<TaskFixture>, OnExisting),
    Verb(Index, Verb),
    CancelAhead(u8, DurationMs),
    Lease(usize),
    Answer(Index, Outcome),
    Snooze(Index, DurationMs),
    Beat(Index, Option<u8>),
    /// An answer that comes again, or for the second time.
    Repeat(Index),
    Hold(&'static str, PauseClock),
    Release(&'static str),
    Shut(Door),
    Open,
    Resend(u128, Option<u16>),
    Pass(DurationMs),
    StepWall(i64),
    SyncTakes(DurationMs),
    DieAt(u32),
}

#[derive(Clone, Debug)]
enum Verb {
    Cancel,
    Pause(PauseClock),
    Resume,
    Reschedule(When),
    ExtendBy(DurationMs),
    RunNow,
    Complete,
    Fail,
    Replay,
    Resolve(bool),
    Discard,
}

fn wait() -> impl Strategy<Value = DurationMs> {
    let far = 0..100_000_u64;
    prop_oneof![3 => 0..40_u64, 2 => 0..3_000_u64, 1 => far].prop_map(DurationMs)
}

fn when() -> impl Strategy<Value = When> {
    let instant = (-5_000..60_000_i64).prop_map(|ms| When::At(at(ms).wall));
    // Far enough ahead that its record is put away without an alarm.
    let far = (3_000_000..9_000_000_i64).prop_map(|ms| When::At(at(ms).wall));
    let long = (3_000_000..9_000_000_u64).prop_map(|ms| When::After(DurationMs(ms)));
    prop_oneof![
        6 => wait().prop_map(When::After),
        6 => instant,
        1 => far,
        1 => long,
    ]
}

fn a_fixture() -> impl Strategy<Value = TaskFixture> {
    let action = prop_oneof![
        4 => Just(task().push()),
        2 => Just(task().push_to("http://127.0.0.1:9001/close")),
        3 => Just(task()),
        1 => Just(task().action(Action::None)),
        1 => Just(task().action(Action::Handler { name: "h".to_owned() })),
        1 => Just(task().action(Action::CompleteOnly)),
        3 => (1..5_000_u64, wait()).prop_map(|(every, within)| task().poll(DurationMs(every), within)),
    ];
    let key = option::weighted(0.7, 0..6_u8);
    let total = option::weighted(0.2, wait());
    let retry = (wait(), 1..4_u32);
    let stages = prop_oneof![3 => Just(Vec::new()), 1 => vec(a_stage(), 1..5)];
    let on_no_answer = select(vec![OnNoAnswer::Retry, OnNoAnswer::Hold, OnNoAnswer::Dead]);
    let verify = option::weighted(0.2, on_no_answer);
    let on_silence = select(vec![OnSilence::Retry, OnSilence::Fire, OnSilence::Hold]);
    let later = option::of((10_000..20_000_u64).prop_map(DurationMs));
    let condition = select(vec!["true", "key != 'k1'", "facts.missing"]);
    let guard = prop_oneof![
        3 => Just(None),
        1 => condition.prop_map(|it| Some(Guard::If(it.to_owned()))),
        2 => (later, on_silence).prop_map(|(later, on_silence)| Some(asking(later, on_silence))),
    ];
    (
        action,
        select(TOPICS.to_vec()),
        key,
        when(),
        total,
        retry,
        any::<bool>(),
        (verify, guard, stages, option::weighted(0.2, Just(()))),
    )
        .prop_map(
            |(
                action,
                topic,
                key,
                when,
                total,
                (retry_after, attempts),
                at_most_once,
                (verify, guard, stages, called_back),
            )| {
                let mut fixture = action
                    .topic(topic)
                    .retry_after(retry_after)
                    .max_attempts(attempts);
                if let Some(key) = key {
                    fixture = fixture.key(&format!("k{key}"));
                }
                if let Some(total) = total {
                    fixture = fixture.total(total);
                }
                if at_most_once {
                    fixture = fixture.at_most_once();
                }
                if called_back.is_some() {
                    fixture = fixture.called_back();
                }
                if let Some(on_no_answer) = verify {
                    fixture = fixture.verified(on_no_answer);
                }
                if let Some(guard) = guard.clone() {
                    fixture = fixture.guarded_by(guard);
                }
                let fixture = match when {
                    When::At(instant) | When::Missed(instant) => fixture.due_at(instant),
                    When::After(length) => fixture.due_in(length),
                };
                let of_stages = stages.len();
                let fixture = stages.into_iter().enumerate().fold(fixture, with_stage);
                match guard {
                    Some(guard) if of_stages > 1 => fixture.stage_guarded(guard),
                    _ => fixture,
                }
            },
        )
        .prop_flat_map(|fixture| {
            let clocks = option::weighted(0.4, a_clock());
            (Just(fixture), clocks, option::weighted(0.1, 1..3_u32))
        })
        .prop_map(|(fixture, clock, leases)| {
            let fixture = fixture.max_lost_leases(leases);
            match clock {
                Some((clock, length, then)) => fixture.clock(clock, Some(length), then),
                None => fixture,
            }
        })
}

/// A clock with its length, and what follows when it runs out.
fn a_clock() -> impl Strategy<Value = (TaskClock, DurationMs, Option<Then>)> {
    let then = prop_oneof![
        Just(None),
        select(vec![Then::Retry, Then::Dead, Then::Alert]).prop_map(Some),
        an_escalation().prop_map(|action| Some(Then::Escalate(Box::new(action)))),
    ];
    let length = (100..20_000_u64).prop_map(DurationMs);
    (select(TaskClock::ALL.to_vec()), length, then)
}

fn an_escalation() -> impl Strategy<Value = Action> {
    let poll = task().poll(DurationMs::secs(1), DurationMs::secs(5));
    select(vec![
        Action::Pull,
        Action::None,
        Action::CompleteOnly,
        Action::Handler {
            name: "h".to_owned(),
        },
        push_action(),
        poll.spec().action.clone(),
    ])
}

/// A stage: how much later than the one before it, from its end or not; its condition; its action.
type DrawnStage = (DurationMs, bool, Option<&'static str>, Option<Action>);

fn a_stage() -> impl Strategy<Value = DrawnStage> {
    let condition = select(vec![
        "false",
        "key != 'k1'",
        "facts.missing",
        "now > created_at",
    ]);
    let action = select(vec![Action::Pull, Action::None, push_action()]);
    let far = (3_000_000..5_000_000_u64).prop_map(DurationMs);
    let more = prop_oneof![8 => wait(), 1 => far];
    (
        more,
        any::<bool>(),
        option::weighted(0.4, condition),
        option::weighted(0.6, action),
    )
}

fn push_action() -> Action {
    task()
        .push_to("http://127.0.0.1:9002/stage")
        .spec()
        .action
        .clone()
}

fn with_stage(fixture: TaskFixture, (n, stage): (usize, DrawnStage)) -> TaskFixture {
    let (more, follows, condition, action) = stage;
    let starts = match follows && n > 0 {
        true => Starts::AfterPrevious(more),
        // Later than any before it.
        false => Starts::After(DurationMs(n as u64 * 5_000_001 + more.0)),
    };
    fixture.stage_if(&format!("s{n}"), starts, condition, action)
}

fn a_verb() -> impl Strategy<Value = Verb> {
    let clock = || select(vec![PauseClock::Keep, PauseClock::Freeze]);
    prop_oneof![
        3 => Just(Verb::Cancel),
        2 => clock().prop_map(Verb::Pause),
        2 => Just(Verb::Resume),
        2 => when().prop_map(Verb::Reschedule),
        1 => wait().prop_map(Verb::ExtendBy),
        1 => Just(Verb::RunNow),
        1 => Just(Verb::Complete),
        1 => Just(Verb::Fail),
        3 => Just(Verb::Replay),
        1 => any::<bool>().prop_map(Verb::Resolve),
        1 => Just(Verb::Discard),
    ]
}

fn an_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        3 => Just(succeeded()),
        3 => select(vec!["http_503", "protocol", "connect"]).prop_map(failed),
        1 => Just(Outcome::TimedOut),
        1 => Just(Outcome::GivenBack),
        1 => Just(Outcome::Unknown),
        2 => Just(Outcome::NotYet { answer: String::new() }),
        2 => wait().prop_map(|complete_by| Outcome::Accepted { complete_by }),
    ]
}

fn an_act() -> impl Strategy<Value = Act> {
    let on_existing = select(vec![
        OnExisting::Return,
        OnExisting::Reject,
        OnExisting::Replace,
        OnExisting::Extend,
        OnExisting::KeepLater,
    ]);
    let clock = select(vec![PauseClock::Keep, PauseClock::Freeze]);
    let topic = || select(TOPICS.to_vec());
    prop_oneof![
        10 => (a_fixture(), on_existing).prop_map(|(fixture, on)| Act::Create(Box::new(fixture), on)),
        6 => (any::<Index>(), a_verb()).prop_map(|(nth, verb)| Act::Verb(nth, verb)),
        1 => (0..6_u8, wait()).prop_map(|(key, wait)| Act::CancelAhead(key, wait)),
        3 => (1..4_usize).prop_map(Act::Lease),
        6 => (any::<Index>(), an_outcome()).prop_map(|(nth, outcome)| Act::Answer(nth, outcome)),
        1 => (any::<Index>(), wait()).prop_map(|(nth, wait)| Act::Snooze(nth, wait)),
        2 => (any::<Index>(), option::of(0..3_u8)).prop_map(|(nth, at)| Act::Beat(nth, at)),
        1 => any::<Index>().prop_map(Act::Repeat),
        1 => (topic(), clock).prop_map(|(topic, clock)| Act::Hold(topic, clock)),
        1 => topic().prop_map(Act::Release),
        1 => select(vec![Door::Pushes, Door::Handler("h".to_owned())]).prop_map(Act::Shut),
        1 => Just(Act::Open),
        1 => (0..3_u128, option::of(select(vec![201, 503]))).prop_map(|(key, status)| Act::Resend(key, status)),
        10 => wait().prop_map(Act::Pass),
        1 => (-20_000..20_000_i64).prop_map(Act::StepWall),
        1 => (-8_000_000..8_000_000_i64).prop_map(Act::StepWall),
        1 => select(vec![0, 0, 3, 30, 5_000]).prop_map(|ms| Act::SyncTakes(DurationMs(ms))),
        2 => (0..12_u32).prop_map(Act::DieAt),
    ]
}

/// A shell, and every attempt that anybody ever heard of.
struct Life {
    shell: Shell,
    heard_of: Vec<(TaskId, AttemptToken)>,
}

impl Life {
    fn act(&mut self, act: Act) -> Result<(), Died> {
        let shell = &mut self.shell;
        let now = shell.now();
        match act {
            Act::Create(fixture, on_existing) => {
                let creation = shell.creation(*fixture, on_existing);
                let by = "test".to_owned();
                shell.try_ask(CreateTask { creation, by })?;
            }
            Act::Verb(nth, verb_) => {
                if let Some(id) = pick(&shell.ids(), nth) {
                    // Refused or not: if not, all that holds of a task still does.
                    let _ = shell.try_ask(verb(Target::Id(id), event_of(verb_, now)))?;
                }
            }
            Act::CancelAhead(number, tombstone_for) => {
                let _ = shell.try_ask(CancelAhead {
                    topic: topic("a"),
                    key: key(&format!("k{number}")),
                    reason: String::new(),
                    tombstone_for,
                    by: "test".to_owned(),
                    wants: Wants::Slim,
                })?;
            }
            Act::Lease(max) => {
                let leases = shell.try_lease(&TOPICS, max)?;
                self.heard_of
                    .extend(leases.iter().map(|lease| (lease.view.task.id, lease.token)));
            }
            Act::Answer(nth, outcome) => {
                if let Some((id, token)) = self.pick_running(nth) {
                    let task = self.shell.task(id);
                    let action = task.action();
                    let asks = task.is_asked_about() || action.poll().is_some();
                    let outcome = match outcome {
                        Outcome::NotYet { .. } if !asks => succeeded(),
                        Outcome::Accepted { .. } if asks || !matches!(action, Action::Http(_)) => {
                            failed("http_503")
                        }
                        outcome => outcome,
                    };
                    self.shell.try_answer(id, token, outcome)?.unwrap();
                }
            }
            Act::Snooze(nth, delay) => {
                if let Some((id, token)) = self.pick_running(nth) {
                    let snoozed = finish(id, Event::Snoozed { token, delay });
                    self.shell.try_ask(snoozed)?.unwrap();
                }
            }
            Act::Beat(nth, at) => {
                if let Some((task, token)) = self.pick_running(nth) {
                    let checkpoint = at.map(|at| RawJson::from(at.to_string()));
                    let keep = KeepLease {
                        task,
                        token,
                        checkpoint,
                    };
                    self.shell.try_ask(keep)?.unwrap();
                }
            }
            Act::Repeat(nth) => self.repeat(nth)?,
            Act::Hold(topic, clock) => shell.try_hold(topic, clock)?,
            Act::Release(topic) => shell.try_release(topic)?,
            Act::Shut(door) => shell.doors.shut(door),
            Act::Open => shell.doors.open_all(),
            Act::Resend(key, status) => {
                shell.try_ask(AskResent { key, body: 0 })?;
                if let Some(status) = status {
                    let body = bytes::Bytes::new();
                    shell.try_ask(KeepAnswer { key, status, body })?;
                }
            }
            Act::Pass(length) => shell.try_pass(length)?,
            Act::StepWall(ms) => {
                shell.clock.step_wall(ms);
                shell.try_tick()?;
            }
            Act::SyncTakes(length) => shell.sync_takes = length,
            Act::DieAt(points) => shell.die_at(points),
        }
        Ok(())
    }

    /// One of the attempts that are out, by its token.
    fn pick_running(&mut self, nth: Index) -> Option<(TaskId, AttemptToken)> {
        let ids = self.shell.ids().into_iter();
        let tasks = ids
            .map(|id| self.shell.task(id))
            .filter(|task| task.state == State::Running);
        let out: Vec<(TaskId, AttemptToken)> = tasks.map(|task| (task.id, task.token)).collect();
        let picked = pick(&out, nth)?;
        self.heard_of.push(picked);
        Some(picked)
    }

    /// Unless the attempt is still out, its answer is refused and changes nothing.
    fn repeat(&mut self, nth: Index) -> Result<(), Died> {
        let Some((id, token)) = pick(&self.heard_of, nth) else {
            return Ok(());
        };
        let known = |shell: &mut Shell| shell.core.table.read(id).map(|entry| entry.task);
        let before = known(&mut self.shell);
        if before
            .as_ref()
            .is_some_and(|task| task.state.is_in_flight() && task.token == token)
        {
            return Ok(());
        }
        let outcome = succeeded();
        let event = Event::Finished {
            token,
            outcome,
            started_at: None,
        };
        let now = self.shell.now();
        let refused = finish(id, event)
            .put(&mut self.shell.core, now)
            .unwrap_err();
        match before {
            None => assert_eq!(refused, VerbRefused::NotFound),
            Some(_) => assert!(matches!(
                refused,
                VerbRefused::Refused(Refusal::StaleToken { .. })
            )),
        }
        assert_eq!(known(&mut self.shell), before);
        self.shell.try_tick()
    }
}

fn pick<T: Copy>(from: &[T], nth: Index) -> Option<T> {
    (!from.is_empty()).then(|| *nth.get(from))
}

fn event_of(verb: Verb, now: Now) -> Event {
    match verb {
        Verb::Cancel => Event::Cancel {
            reason: "no more".to_owned(),
        },
        Verb::Pause(clock) => Event::Pause { clock },
        Verb::Resume => Event::Resume,
        Verb::Reschedule(when) => Event::Reschedule {
            due: NewDue::To(when.due(now)),
        },
        Verb::ExtendBy(length) => Event::Reschedule {
            due: NewDue::ExtendBy(length),
        },
        Verb::RunNow => Event::RunNow,
        Verb::Complete => Event::Complete {
            result: None,
            token: None,
        },
        Verb::Fail => Event::Fail {
            error: ErrorNote {
                code: "no".to_owned(),
                message: String::new(),
            },
        },
        Verb::Replay => Event::Replay,
        Verb::Resolve(succeeded) => Event::Resolve {
            succeeded,
            note: String::new(),
        },
        Verb::Discard => Event::Discard,
    }
}

/// As many lives as `PROPTEST_CASES` says. They are the same in each run, so that what a run finds hangs on the change that
/// it is about; `PROPTEST_RNG_SEED` gives others.
fn lives() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    let cases = asked.and_then(|lives| lives.parse().ok()).unwrap_or(48);
    let usual = ProptestConfig::default();
    let rng_seed = match usual.rng_seed {
        RngSeed::Random => RngSeed::Fixed(7),
        asked => asked,
    };
    ProptestConfig {
        cases,
        max_shrink_iters: 200,
        rng_seed,
        ..usual
    }
}

proptest! {
    #![proptest_config(lives())]

    #[test]
    fn in_any_life_all_holds_that_must_and_everything_comes_to_an_end(
        acts in vec(an_act(), 20..120),
        running_max in 1..4_usize,
        per_host_max in 1..4_usize,
        alarms_per_step in select(vec![1, 3, 4096]),
    ) {
        let shell = Shell::with(CoreOptions { running_max, per_host_max, alarms_per_step, ..folding() });
        let mut life = Life { shell, heard_of: Vec::new() };
        for act in acts {
            // Who died goes on with what was committed.
            let (Ok(()) | Err(Died)) = life.act(act);
        }
        let mut shell = life.shell;
        shell.lives();
        shell.doors.open_all();
        shell.live_on();
        shell.pass(minutes(60 * 24 * 31));
        prop_assert_eq!(shell.ids().len(), 0, "everything is forgotten in time");
        (0..20).for_each(|_| shell.pass(minutes(1)));
        prop_assert_eq!(shell.chunks(), 0, "and the store is tidied");
    }
}
