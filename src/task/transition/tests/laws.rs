//! What holds after any events at any times. Times and lengths are drawn to their very ends: the arithmetic of
//! a task must never wrap, whatever a clock or a caller says.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::limits;
use crate::task::model::Lane;
use crate::task::stage::Starts;

/// Time goes by, the wall clock jumps by so many milliseconds, or something happens.
#[derive(Clone, Debug)]
enum Step {
    Wait(DurationMs),
    Jump(i64),
    Happen(Happening),
}

/// An event, but for what only the task of the moment knows.
#[derive(Clone, Debug)]
enum Happening {
    Plain(Event),
    Beat(Whose, Option<u8>),
    Snooze(Whose, DurationMs),
    Answer(Whose, Outcome),
    Told(Whose, Outcome),
    Overdue(Whose),
    Complete(Option<Whose>),
    DueAfter(DurationMs),
    DueAt(i64),
    Replace(u32),
    PassOver(u8, bool),
    TakeOver,
    Bar(bool),
    Outdated,
}

/// Whose token is shown.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Present,
    Former,
    Future,
}

fn length() -> impl Strategy<Value = DurationMs> {
    prop_oneof![
        4 => 0..100_000u64,
        2 => 0..10_000_000_000u64,
        1 => select(vec![0, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX]),
        1 => any::<u64>(),
    ]
    .prop_map(DurationMs)
}

/// Mostly what passes between two events of a task, rarely the rest of all time.
fn passing() -> impl Strategy<Value = DurationMs> {
    prop_oneof![12 => (0..600_000u64).prop_map(DurationMs), 1 => length()]
}

fn wall_step() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -10_000_000..10_000_000i64,
        1 => select(vec![i64::MIN, i64::MAX]),
        1 => any::<i64>(),
    ]
}

fn whose() -> impl Strategy<Value = Whose> {
    prop_oneof![
        8 => Just(Whose::Present),
        1 => Just(Whose::Former),
        1 => Just(Whose::Future),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let codes = select(vec![
        "http_503",
        "http_404",
        "protocol",
        "connect",
        "failed_if",
    ]);
    let failed = (codes, any::<bool>(), proptest::option::of(length())).prop_map(
        |(code, retryable, retry_after)| {
            Outcome::Failed(Failure {
                retryable,
                retry_after,
                ..failure(code)
            })
        },
    );
    prop_oneof![
        1 => Just(succeeded()),
        6 => failed,
        2 => Just(Outcome::TimedOut),
        1 => Just(Outcome::LeaseExpired),
        1 => Just(Outcome::Silent),
        1 => Just(Outcome::Snoozed),
        1 => Just(Outcome::Cancelled),
        1 => Just(Outcome::GivenBack),
        2 => Just(Outcome::Unknown),
        2 => Just(Outcome::NotYet { answer: String::new() }),
        2 => length().prop_map(|complete_by| Outcome::Accepted { complete_by }),
    ]
}

/// What the executor of this action never says, and nobody outside can.
fn is_out_of_place(outcome: &Outcome, task: &Task) -> bool {
    let asks = task.is_asked_about() || task.spec.action.poll().is_some();
    match outcome {
        Outcome::NotYet { .. } => !asks,
        Outcome::Accepted { .. } => asks || !matches!(task.spec.action, Action::Http(_)),
        _ => false,
    }
}

fn clock() -> impl Strategy<Value = PauseClock> {
    select(vec![PauseClock::Keep, PauseClock::Freeze])
}

/// What carries a task on, and what is done to it from outside, about as often.
fn happening() -> impl Strategy<Value = Happening> {
    let started = prop_oneof![
        4 => any::<i64>().prop_map(|at| Event::Due { report_by: MonoMs(at) }),
        4 => Just(Event::Started),
        4 => length().prop_map(|lease| Event::Leased { worker: "w1".to_owned(), lease }),
        1 => Just(Event::CameDue),
        1 => Just(Event::Recovered),
        1 => any::<bool>().prop_map(|was_started| Event::HandedBack { was_started }),
    ];
    let asked = prop_oneof![
        1 => Just(cancel()),
        3 => clock().prop_map(pause),
        4 => Just(Event::Resume),
        2 => length().prop_map(extend),
        2 => Just(Event::RunNow),
        1 => Just(fail()),
        6 => Just(Event::Replay),
        1 => any::<bool>().prop_map(resolve),
        1 => Just(Event::Discard),
        1 => Just(Event::TotalTimeOver),
        4 => select(TaskClock::ALL.to_vec()).prop_map(|clock| Event::RanOut { clock }),
        2 => (0..5u32, length()).prop_map(|(thaw, held)| Event::Thawed { thaw, held }),
    ];
    prop_oneof![
        12 => started.prop_map(Happening::Plain),
        8 => asked.prop_map(Happening::Plain),
        2 => (whose(), proptest::option::of(0..3u8)).prop_map(|(whose, at)| Happening::Beat(whose, at)),
        2 => (whose(), length()).prop_map(|(whose, delay)| Happening::Snooze(whose, delay)),
        12 => (whose(), outcome()).prop_map(|(whose, outcome)| Happening::Answer(whose, outcome)),
        2 => (whose(), outcome()).prop_map(|(whose, outcome)| Happening::Told(whose, outcome)),
        2 => whose().prop_map(Happening::Overdue),
        1 => proptest::option::of(whose()).prop_map(Happening::Complete),
        1 => length().prop_map(Happening::DueAfter),
        1 => any::<i64>().prop_map(Happening::DueAt),
        1 => (1..4u32).prop_map(Happening::Replace),
        2 => (0..4u8, any::<bool>()).prop_map(|(place, fails)| Happening::PassOver(place, fails)),
        2 => Just(Happening::TakeOver),
        1 => any::<bool>().prop_map(Happening::Bar),
        1 => Just(Happening::Outdated),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => passing().prop_map(Step::Wait),
        1 => wall_step().prop_map(Step::Jump),
        12 => happening().prop_map(Step::Happen),
    ];
    vec(step, 1..80)
}

fn policy() -> impl Strategy<Value = RetryPolicy> {
    let backoff =
        prop_oneof![
            vec(length(), 1..4).prop_map(Backoff::Ladder),
            length().prop_map(Backoff::Fixed),
            (length(), 1.0..1e6f64, length())
                .prop_map(|(base, factor, cap)| Backoff::Exponential { base, factor, cap }),
        ];
    let then = select(vec![OnFailure::Retry, OnFailure::Dead, OnFailure::Park]);
    let on = vec((select(vec!["http_4xx", "timeout", "connect"]), then), 0..2);
    (backoff, 0.0..=1.0f64, 1..6u32, on).prop_map(|(backoff, jitter, max_attempts, on)| {
        RetryPolicy {
            backoff,
            jitter,
            max_attempts,
            max_lost_leases: None,
            on: on
                .into_iter()
                .map(|(code, then)| (code.to_owned(), then))
                .collect(),
        }
    })
}

fn fixture() -> impl Strategy<Value = TaskFixture> {
    let handler = Action::Handler {
        name: "close".to_owned(),
    };
    let kinds = prop_oneof![
        4 => Just(task()),
        4 => Just(task().push()),
        1 => Just(task().action(handler)),
        1 => Just(task().action(Action::None)),
        1 => Just(task().action(Action::CompleteOnly)),
        3 => (length(), length()).prop_map(|(every, within)| task().poll(every, within)),
    ];
    let total = proptest::option::of(length());
    let on_no_answer = select(vec![OnNoAnswer::Retry, OnNoAnswer::Hold, OnNoAnswer::Dead]);
    let verify = proptest::option::weighted(0.3, on_no_answer);
    let on_silence = select(vec![OnSilence::Retry, OnSilence::Fire, OnSilence::Hold]);
    let asks = (proptest::option::of(length()), on_silence);
    let guard = proptest::option::weighted(0.3, (any::<bool>(), asks));
    let stages = vec(
        (
            any::<bool>(),
            length(),
            select(vec![Action::Pull, Action::None]),
        ),
        0..4,
    );
    let then = || {
        prop_oneof![
            Just(None),
            select(vec![Then::Retry, Then::Dead, Then::Alert]).prop_map(Some),
            select(vec![Action::Pull, Action::None])
                .prop_map(|action| Some(Then::Escalate(Box::new(action)))),
        ]
    };
    let clock = move || (proptest::option::of(length()), then());
    let clocks = (
        clock(),
        then(),
        clock(),
        then(),
        proptest::option::of(1..3u32),
    );
    let kind = (
        kinds,
        policy(),
        any::<bool>(),
        total,
        length(),
        (verify, guard),
        stages,
    )
        .prop_map(
            |(kind, policy, at_most_once, total, due, (verify, guard), stages)| {
                let kind = kind.retry(policy).due_in(due);
                let mut kind = match verify {
                    Some(on_no_answer) => kind.verified(on_no_answer),
                    None => kind,
                };
                let (mut of_stage, mut of_task) = (None, None);
                if let Some((is_of_stage, (extend_by, on_no_answer))) = guard {
                    let guard = asking(extend_by, on_no_answer);
                    match is_of_stage {
                        true => of_stage = Some(guard),
                        false => of_task = Some((extend_by, on_no_answer)),
                    }
                }
                if let Some((extend_by, on_no_answer)) = of_task {
                    kind = kind.guarded(extend_by, on_no_answer);
                }
                let mut latest = 0_u64;
                for (n, (is_from_creation, length, action)) in stages.into_iter().enumerate() {
                    let starts = if is_from_creation || n == 0 {
                        latest = length.0.max(latest.saturating_add(1));
                        Starts::After(DurationMs(latest))
                    } else {
                        Starts::AfterPrevious(length)
                    };
                    if latest < u64::MAX {
                        let action = (n % 2 == 0).then_some(action);
                        kind = kind.stage_if(&format!("s{n}"), starts, None, action);
                        if let Some(guard) = of_stage.clone().filter(|_| n % 2 == 1) {
                            kind = kind.stage_guarded(guard);
                        }
                    }
                }
                let kind = if at_most_once {
                    kind.at_most_once()
                } else {
                    kind
                };
                total.map_or(kind.clone(), |total| kind.total(total))
            },
        );
    (kind, clocks).prop_map(|(kind, clocks)| {
        let ((queue, on_queue), on_attempt, (heartbeat, on_heartbeat), on_total, leases) = clocks;
        let mut kind = kind.max_lost_leases(leases);
        for (clock, length, then) in [
            (TaskClock::Queue, queue, on_queue),
            (TaskClock::Attempt, None, on_attempt),
            (TaskClock::Heartbeat, heartbeat, on_heartbeat),
            (TaskClock::Total, None, on_total),
        ] {
            kind = kind.clock(clock, length, then);
        }
        kind
    })
}

impl Happening {
    fn event(self, life: &Life) -> Event {
        let token = |whose: Whose| match whose {
            Whose::Present => life.task.token,
            Whose::Former => AttemptToken(life.task.token.0.saturating_sub(1)),
            Whose::Future => AttemptToken(life.task.token.0 + 1),
        };
        match self {
            Self::Plain(event) => event,
            Self::Beat(whose, at) => Event::Heartbeat {
                token: token(whose),
                checkpoint: at.map(|at| RawJson::from(at.to_string())),
            },
            Self::Snooze(whose, delay) => Event::Snoozed {
                token: token(whose),
                delay,
            },
            Self::Answer(whose, outcome) => match is_out_of_place(&outcome, &life.task) {
                true => finished(token(whose), Outcome::TimedOut),
                false => finished(token(whose), outcome),
            },
            Self::Told(whose, outcome) => Event::Answered {
                token: token(whose),
                outcome: match outcome {
                    Outcome::Failed(failure) => Outcome::Failed(failure),
                    _ => succeeded(),
                },
            },
            Self::Overdue(whose) => Event::Overdue {
                token: token(whose),
            },
            Self::Complete(whose) => complete(whose.map(token)),
            Self::DueAfter(length) => reschedule(Due::after(length, life.now())),
            Self::DueAt(at) => reschedule(Due::at(WallMs(at), life.now())),
            Self::PassOver(place, fails) => Event::StagePassedOver {
                place,
                error: fails.then(|| ErrorNote {
                    code: "condition_error".to_owned(),
                    message: "no value".to_owned(),
                }),
            },
            Self::TakeOver => Event::StageTookOver {
                place: life.task.takes_over().map_or(0, |(place, _)| place),
            },
            Self::Bar(fails) => Event::Barred {
                error: fails.then(|| ErrorNote {
                    code: "condition_error".to_owned(),
                    message: "no value".to_owned(),
                }),
            },
            Self::Outdated => Event::AnswerOutdated,
            Self::Replace(max_attempts) => Event::Replace {
                spec: task().push().max_attempts(max_attempts).spec(),
                due: Due::after(minutes(1), life.now()),
            },
        }
    }
}

/// What a task's parts say of each other, in every state.
fn is_whole(task: &Task) {
    let state = task.state;
    assert_eq!(
        task.at_stage.is_some(),
        task.stage().is_some(),
        "it is at one of its stages"
    );
    assert_eq!(task.at_stage.is_some(), task.spec.stages.is_some());
    if let Some((place, due)) = task.takes_over() {
        let at = task.at_stage.unwrap();
        assert!(place > at.place && due.lane == Lane::Steady);
    }
    assert_eq!(
        task.live.is_some(),
        state.is_in_flight(),
        "an attempt is out while it is in flight"
    );
    assert_eq!(
        task.pause.is_some(),
        state == State::Paused,
        "a pause is in force while it is paused"
    );
    assert_eq!(
        task.waiting_for.is_some(),
        state == State::Retrying
            || state.is_in_flight() && task.is_asked_about()
            || state == State::Pending && task.asks_guard(),
        "it waits for something while it retries, or is asked about"
    );
    assert!(
        !task.asks_guard() || task.guard_question().is_some() && task.attempts == 0,
        "a guard is asked before the first attempt"
    );
    assert!(task.unanswered == 0 || task.asks_guard());
    assert_eq!(
        task.dead_reason.is_some(),
        state == State::Dead,
        "there is a reason while it is dead"
    );
    assert_eq!(
        task.ended_at.is_some(),
        state.is_ended(),
        "it has an end when it has ended"
    );
    assert_eq!(
        task.expires.is_some(),
        state.is_ended(),
        "its record goes some time after its end"
    );
    assert!(task.attempts <= task.attempt.0, "what counts was made");
    assert!(
        u64::from(task.attempt.0) <= task.token.0,
        "each attempt has a token of its own"
    );
    assert!(task.generation >= 1);
    assert_eq!(
        task.changes.kept.len(),
        limits::HISTORY_KEPT.min(task.changes.total as usize)
    );
    assert_eq!(
        task.attempts_log.kept.len(),
        limits::HISTORY_KEPT.min(task.attempts_log.total as usize)
    );
    assert_eq!(
        task.changes.kept.last().map(|change| change.to.is_ended()),
        Some(state.is_ended())
    );
}

/// What an event may make of a task, whichever it is.
fn may_follow(
    before: &Task,
    event: &Event,
    done: &Result<Applied, Refusal>,
    after: &Task,
    now: Now,
) {
    let logged = after.changes.total - before.changes.total;
    match done {
        Err(_) | Ok(Applied::Unchanged | Applied::Gone) => assert_eq!(after, before),
        Ok(Applied::InMemory) => {
            // What is not written may be forgotten: only what a restart finds again, or does without.
            let mut allowed = before.clone();
            allowed.live.clone_from(&after.live);
            allowed.first_due = after.first_due;
            allowed.in_line = after.in_line;
            allowed.lateness_ms = after.lateness_ms;
            if before.state == State::Dispatched {
                allowed.state = after.state;
            }
            assert_eq!(&allowed, after);
        }
        Ok(Applied::Changed | Applied::ChangedAndStop(_)) => {
            let thaw_of_what_does_not_wait = matches!(event, Event::Thawed { .. }) && logged == 0;
            // How far it has got is no change of what it is.
            let is_checkpoint = matches!(event, Event::Heartbeat { .. }) && logged == 0;
            if !thaw_of_what_does_not_wait && !is_checkpoint {
                // Of all the questions of a poll only the first is told of.
                let is_question = before.spec.action.poll().is_some();
                assert!(
                    logged == 1 || is_question && logged == 0 && !after.state.is_ended(),
                    "one change, one line in its log"
                );
                assert_eq!(after.updated_at, now.wall);
            }
        }
    }
    if let Ok(Applied::ChangedAndStop(token)) = done {
        assert!(before.state.is_in_flight() && *token == before.token && after.live.is_none());
    }

    assert_eq!(
        (after.id, after.created_at, &after.key),
        (before.id, before.created_at, &before.key)
    );
    assert!(after.token >= before.token, "tokens only grow");
    // A question that says nothing of the end is no attempt.
    let asks_on = after.spec.action.poll().is_some()
        && before.state.is_in_flight()
        && after.waiting_for == Some(WaitingFor::Poll);
    let unseen = asks_on
        || before.is_asked_about()
        || matches!(
            event,
            Event::HandedBack { was_started: false } | Event::Recovered
        );
    assert!(after.attempt >= before.attempt || (unseen && after.attempt.0 + 1 == before.attempt.0));
    // What comes in the place of a poll leaves the number to its questions.
    let is_replaced = matches!(event, Event::Replace { .. })
        || after.at_stage != before.at_stage
        || after.escalated != before.escalated;
    // What ended the stage before may have counted as an attempt; the stage it came to is only asked about.
    let comes_to_a_question = after.at_stage != before.at_stage && after.is_asked_about();
    let leaves_a_number = is_replaced && before.action().poll().is_some();
    assert!(
        (after.attempt.0 > before.attempt.0)
            == (after.token > before.token && !after.is_asked_about())
            || (leaves_a_number || comes_to_a_question) && after.attempt.0 <= before.attempt.0 + 1,
        "a new number has a new token, and a question has no number"
    );
    let begins = matches!(event, Event::Replay | Event::Replace { .. }) && done.is_ok();
    assert_eq!(after.generation, before.generation + u32::from(begins));
    if now.wall >= before.updated_at {
        assert!(after.updated_at >= before.updated_at);
    }
    if before.state.is_ended() {
        let by_a_person = matches!(event, Event::Replay | Event::Resolve { .. });
        let mut thawed = before.clone();
        thawed.thaw = after.thaw;
        assert!(
            after == &thawed || (before.state == State::Dead && by_a_person),
            "{event:?} changed an ended task"
        );
    }
    if before.state.is_in_flight() && !after.state.is_in_flight() && !unseen {
        assert_eq!(
            after.attempts_log.total,
            before.attempts_log.total + 1,
            "an attempt that ends is recorded"
        );
    }
    let settled = matches!(event, Event::Finished { .. } | Event::Snoozed { .. }) && done.is_ok();
    let same_stage = after.stage_place() == before.stage_place();
    // Its guard may answer late, and lets it fire at the due time that has passed.
    let settled = settled && !before.asks_guard();
    if settled && same_stage && !after.state.is_ended() && !after.state.is_in_flight() {
        assert!(
            after.next.fire_ms >= after.next.clock_ms(now),
            "no attempt is due before the one before it ended"
        );
    }
    if let (Some(was), Some(is)) = (before.at_stage, after.at_stage)
        && !begins
    {
        assert!(
            is.place >= was.place || after.state == State::Dead,
            "stages only follow one another"
        );
        assert!(is.place == was.place || after.attempts == 0 || after.state == State::Dead);
    }
    if let Err(Refusal::StaleToken { given, .. }) = done {
        assert!(!before.state.is_in_flight() || before.token != *given);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn whatever_happens_to_a_task_it_stays_whole(fixture in fixture(), steps in steps(), random in 0.0..=1.0f64) {
        let mut life = Life::of(fixture);
        life.random = random;
        // A person who lets a parked task go on gives it an attempt that its budget has no more.
        let mut granted = 0;
        for step in steps {
            match step {
                Step::Wait(length) => life.wait(length),
                Step::Jump(ms) => life.clock.step_wall(ms),
                Step::Happen(happening) => {
                    let event = happening.event(&life);
                    let before = life.task.clone();
                    let done = life.apply(event.clone());
                    may_follow(&before, &event, &done, &life.task, life.now());
                    is_whole(&life.task);
                    if life.task.generation > before.generation {
                        granted = 0;
                    } else if matches!(event, Event::Resume) && done == Ok(Applied::Changed) && !life.task.has_attempts_left() {
                        granted += 1;
                    }
                    prop_assert!(life.task.attempts <= life.task.spec.retry.max_attempts + granted);
                    if done == Ok(Applied::Gone) {
                        break;
                    }
                }
            }
        }
    }
}
