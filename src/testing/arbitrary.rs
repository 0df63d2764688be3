//! Tasks and notes as nobody would write them: generators for property tests, and two plain fixtures.
//!
//! Every field is drawn on its own, so states occur here that no transition leads to: a store must take them.

use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::clock::{DurationMs, MonoMs, Now, SteadyMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken, Slot, TaskId};
use crate::store::{KeptAnswer, Tombstone};
use crate::task::clocks::{ClockSet, TaskClock, Then, Thens};
use crate::task::guard::{Guard, GuardQuestion, OnSilence};
use crate::task::history::{AttemptRecord, Change, ErrorNote, Latest};
use crate::task::late::{LateAnswer, Treatment};
use crate::task::model::{
    DeadReason, Due, Lane, LastOutcome, LiveAttempt, Pause, PauseClock, State, Task, WaitingFor,
};
use crate::task::retry::{Backoff, OnFailure, RetryPolicy};
use crate::task::spec::{
    Action, Class, CommandAction, Delivery, HttpAction, OnEnd, OnNoAnswer, Poll, RawJson,
    ResourceName, RuleRef, StageName, TaskKey, TaskSpec, Timeouts, TopicName, Verify,
};
use crate::task::stage::{AtStage, Stage, Stages, Starts};

const OUTCOMES: [&str; 10] = [
    "succeeded",
    "failed",
    "timeout",
    "lease_expired",
    "snoozed",
    "cancelled",
    "given_back",
    "outcome_unknown",
    "total_time",
    "not_yet",
];

/// Task number `n` of many alike: a keyed push with 60 bytes of payload, due half an hour after its creation.
pub fn plain_task(n: u64) -> Task {
    let wall = WallMs(1_796_000_000_000 + i64::try_from(n).expect("a test's number is small"));
    let now = Now {
        wall,
        mono: MonoMs(0),
        steady: SteadyMs(wall.0),
    };
    let topic = TopicName::parse("order.unpaid").expect("a good name");
    let key = TaskKey::parse(&format!("order-{n:08}")).expect("a good name");
    let id = TaskId::with_tail(Slot::of_key(topic.as_str(), key.as_str()), wall, n);
    let spec = TaskSpec {
        action: Action::Http(HttpAction {
            url: "http://127.0.0.1:9000/close".into(),
            method: "POST".into(),
            headers: Vec::new(),
            expect_status: Vec::new(),
            success_if: None,
            complete_by: None,
        }),
        payload: Some(RawJson::from(format!(
            r#"{{"order_id":{n:08},"customer":"c-17","amount_cents":129900}}"#
        ))),
        ..TaskSpec::default()
    };
    let due = Due::after(DurationMs::secs(1800), now);
    Task::new(id, topic, Some(key), Arc::new(spec), due, now, "api")
}

/// One fixed task with something in every field.
pub fn golden_task() -> Task {
    let error = || ErrorNote {
        code: "http_503".into(),
        message: "busy".into(),
    };
    let mut task = plain_task(42);
    task.spec = Arc::new(TaskSpec {
        action: Action::Http(HttpAction {
            url: "https://example.org/close".into(),
            method: "PUT".into(),
            headers: vec![("x-shop".into(), "a".into())],
            expect_status: vec![200, 404],
            success_if: None,
            complete_by: None,
        }),
        stages: None,
        payload: Some(RawJson::from(r#"{"order_id":42}"#.to_owned())),
        retry: RetryPolicy {
            backoff: Backoff::Exponential {
                base: DurationMs(1000),
                factor: 2.0,
                cap: DurationMs(60_000),
            },
            jitter: 0.25,
            max_attempts: 5,
            max_lost_leases: None,
            on: vec![("http_4xx".into(), OnFailure::Dead)],
        },
        timeouts: Timeouts {
            attempt: DurationMs(10_000),
            grace: DurationMs(2_000),
            total: Some(DurationMs(7_200_000)),
            ..Timeouts::default()
        },
        delivery: Delivery::AtMostOnce,
        class: Class::Core,
        max_lateness: Some(DurationMs(60_000)),
        tags: vec![("region".into(), "eu".into())],
        facts: Some(RawJson::from(r#"{"vip":true}"#.to_owned())),
        verify: None,
        guard: None,
        rule: None,
        on_end: None,
        callback_of: None,
    });
    task.state = State::Dead;
    task.generation = 2;
    task.next = Due::at(WallMs(1_796_000_009_000), Now::default());
    task.first_due = Some(SteadyMs(1_796_000_000_500));
    task.ended_at = Some(WallMs(1_796_000_010_000));
    task.expires = Some(SteadyMs(1_798_592_010_000));
    task.attempts = 1;
    task.attempt = AttemptNumber(3);
    task.token = AttemptToken(300);
    task.live = Some(LiveAttempt {
        started_at: Some(WallMs(1_796_000_009_001)),
        worker: Some("w1".into()),
        lease: Some(DurationMs(30_000)),
        report_by: MonoMs(0),
        beat_by: None,
        alert_at: None,
    });
    task.pause = Some(Pause {
        clock: PauseClock::Freeze,
        since: SteadyMs(7),
    });
    task.waiting_for = Some(WaitingFor::Snooze);
    task.dead_reason = Some(DeadReason::OutcomeUnknown);
    task.last_outcome = Some(LastOutcome {
        outcome: "outcome_unknown",
        error: Some(error()),
    });
    task.result = Some(RawJson::from("[]".to_owned()));
    task.result_dropped = true;
    task.lateness_ms = Some(-1);
    task.thaw = 4;
    task.waiting_since = SteadyMs(9);
    task.requests = vec![0x0102_0304_0506_0708];
    task.attempts_log.push(AttemptRecord {
        attempt: AttemptNumber(3),
        token: AttemptToken(300),
        generation: 2,
        stage: None,
        started_at: None,
        ended_at: WallMs(1_796_000_010_000),
        executor: "http",
        worker: None,
        outcome: "failed",
        error: Some(error()),
    });
    task
}

/// A task with something in every part of version 3 of its record, and in all that a spec says of its clocks.
pub fn clocked_task() -> Task {
    let mut task = golden_task();
    let spec = Arc::make_mut(&mut task.spec);
    spec.retry.max_lost_leases = Some(3);
    spec.timeouts.heartbeat = Some(DurationMs(30_000));
    spec.timeouts.queue = Some(DurationMs(300_000));
    let call = Action::Handler {
        name: "call".into(),
    };
    spec.timeouts.then = Thens(vec![
        (TaskClock::Attempt, Then::Retry),
        (TaskClock::Heartbeat, Then::Dead),
        (TaskClock::Queue, Then::Escalate(Box::new(call))),
        (TaskClock::Total, Then::Alert),
    ]);
    task.checkpoint = Some(RawJson::from(r#"{"page":7}"#.to_owned()));
    task.escalated = Some(TaskClock::Queue);
    task.alerted = ClockSet::default().with(TaskClock::Total);
    task.lost_leases = 2;
    task
}

/// A task with all that belongs to guards: its own asks, and so does that of its first stage.
pub fn guarded_task() -> Task {
    let mut task = staged_task();
    let spec = Arc::make_mut(&mut task.spec);
    let Action::Http(http) = &spec.action else {
        unreachable!("the golden task pushes");
    };
    let guard = Guard::Asks(Box::new(GuardQuestion {
        http: http.clone(),
        fire_if: Some("body.unpaid".to_owned()),
        cancel_if: Some("body.paid".to_owned()),
        extend_by: Some(DurationMs(600_000)),
        on_no_answer: OnSilence::Hold,
    }));
    let stages = spec.stages.iter().flat_map(Stages::iter);
    let mut stages: Vec<_> = stages.cloned().collect();
    stages[0].guard = Some(guard);
    spec.stages = Some(Stages::new(stages).expect("good stages"));
    spec.guard = Some(Guard::If("!has(facts.paid)".to_owned()));
    task.waiting_for = Some(WaitingFor::Guard);
    task.unanswered = 3;
    task
}

/// A task with something in every field that belongs to stages.
pub fn staged_task() -> Task {
    let mut task = golden_task();
    let stage = |name: &str, starts, action| Stage {
        name: StageName::parse(name).expect("a good name"),
        starts,
        condition: Some("has(facts.vip)".to_owned()),
        guard: None,
        action,
    };
    let stages = vec![
        stage("dispatch", Starts::After(DurationMs(5)), Some(Action::Pull)),
        stage("remind", Starts::AfterPrevious(DurationMs(0)), None),
        stage(
            "cancel",
            Starts::After(DurationMs(70_000)),
            Some(Action::None),
        ),
    ];
    let name = stages[0].name.clone();
    Arc::make_mut(&mut task.spec).stages = Some(Stages::new(stages).expect("good stages"));
    task.at_stage = Some(AtStage {
        place: 1,
        passed: 4,
        died: Some((0, DeadReason::LeaseExpired)),
        from: task.due.moved_by(-5),
    });
    task.attempts_log.kept[0].stage = Some(name);
    task
}

prop_compose! {
    /// Any task, without what is not stored (`report_by` and the like).
    pub fn a_task()(
        (slot, at, tail) in (any::<u64>(), 0..1_i64 << 47, any::<u64>()),
        (topic, key, mut spec) in (a_topic(), option::of(a_key()), a_spec().boxed()),
        (state, generation) in (a_state(), any::<u32>()),
        (due, next) in (a_due(), option::of(a_due())),
        (place, passed, died) in (0..4_u8, any::<u32>(), option::of((0..4_u8, a_dead_reason()))),
        from in a_due(),
        (waiting_since, first_due, expires) in (steady(), option::of(steady()), option::of(steady())),
        requests in prop::collection::vec(any::<u64>(), 0..4),
        (created_at, updated_at, ended_at) in (wall(), wall(), option::of(wall())),
        (attempts, attempt, token, thaw) in any::<(u32, u32, u64, u32)>(),
        (alerted, lost_leases, checkpoint) in (0..16_u8, any::<u32>(), option::of(some_json())),
        is_escalated in any::<bool>(),
        (live, pause) in (option::of(a_live_attempt()), option::of(a_pause())),
        waiting_for in option::of(prop::sample::select(vec![
            WaitingFor::Retry, WaitingFor::Snooze, WaitingFor::Poll, WaitingFor::Verify, WaitingFor::Guard,
        ])),
        unanswered in any::<u32>(),
        dead_reason in option::of(a_dead_reason()),
        last_outcome in option::of(a_last_outcome()),
        (result, result_dropped, lateness_ms) in (option::of(some_json()), any::<bool>(), any::<Option<i64>>()),
        attempts_log in latest(an_attempt()),
        changes in latest(a_change()),
    ) -> Task {
        if let Some(rule) = &mut spec.rule {
            rule.at = created_at;
        }
        let escalation = spec.timeouts.then.escalations().next();
        let escalated = escalation.map(|(clock, _)| clock).filter(|_| is_escalated);
        Task {
            id: TaskId::with_tail(Slot::of_hash(slot), WallMs(at), tail),
            escalated, alerted: ClockSet(alerted), in_line: None, lost_leases, checkpoint,
            at_stage: spec.stages.as_ref().map(|_| AtStage { place, passed, died, from }),
            topic, key, spec: Arc::new(spec), state, generation,
            due, next: next.unwrap_or(due), waiting_since, first_due, created_at, updated_at, ended_at, expires,
            attempts, attempt: AttemptNumber(attempt), token: AttemptToken(token),
            live, pause, waiting_for, unanswered, dead_reason, last_outcome,
            result, result_dropped, lateness_ms, thaw, requests, attempts_log, changes,
        }
    }
}

prop_compose! {
    /// Any tombstone.
    pub fn a_tombstone()(topic in a_topic(), key in a_key(), until in steady(), reason in text()) -> Tombstone {
        Tombstone { topic, key, until, reason }
    }
}

prop_compose! {
    /// Any late answer.
    pub fn a_late_answer()(
        slot in any::<u64>(),
        topic in a_topic(),
        key in option::of(a_key()),
        (attempt, generation) in option::of(any::<(u32, u32)>()).prop_map(|both| both.unzip()),
        token in any::<u64>(),
        is_success in any::<bool>(),
        (result_dropped, accepted) in any::<(bool, bool)>(),
        (by, worker) in (text(), option::of(text())),
        at in wall(),
    ) -> LateAnswer {
        let task = TaskId::with_tail(Slot::of_hash(slot), at, slot);
        LateAnswer {
            task, topic, key, attempt: attempt.map(AttemptNumber), generation, token: AttemptToken(token),
            outcome: if is_success { "succeeded" } else { "failed" },
            error: (!is_success).then(|| ErrorNote { code: "busy".into(), message: by.clone() }),
            result: is_success.then(|| RawJson::from("[]".to_owned())),
            result_dropped, by, worker, at,
            ended_as: attempt.map(|_| "lease_expired"),
            state: State::Cancelled,
            treatment: if accepted { Treatment::Accepted } else { Treatment::Compensated(task) },
        }
    }
}

prop_compose! {
    /// Any kept answer.
    pub fn an_answer()(
        (key, body) in any::<(u128, u128)>(),
        first_at in wall(),
        until in steady(),
        answer in option::of((any::<u16>(), vec(any::<u8>(), 0..100).prop_map(Bytes::from))),
    ) -> KeptAnswer {
        KeptAnswer { key, body, first_at, until, answer }
    }
}

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..12).prop_map(String::from_iter)
}

fn name() -> impl Strategy<Value = String> {
    vec(
        any::<char>().prop_filter("no control characters", |c| !c.is_control()),
        1..20,
    )
    .prop_map(String::from_iter)
}

fn a_topic() -> impl Strategy<Value = TopicName> {
    name().prop_map(|name| TopicName::parse(&name).expect("a good name"))
}

fn a_key() -> impl Strategy<Value = TaskKey> {
    name().prop_map(|name| TaskKey::parse(&name).expect("a good name"))
}

fn some_json() -> impl Strategy<Value = RawJson> {
    text().prop_map(RawJson::from)
}

fn wall() -> impl Strategy<Value = WallMs> {
    any::<i64>().prop_map(WallMs)
}

fn steady() -> impl Strategy<Value = SteadyMs> {
    any::<i64>().prop_map(SteadyMs)
}

fn length() -> impl Strategy<Value = DurationMs> {
    any::<u64>().prop_map(DurationMs)
}

fn a_state() -> impl Strategy<Value = State> {
    prop::sample::select(State::ALL.to_vec())
}

fn a_dead_reason() -> impl Strategy<Value = DeadReason> {
    prop::sample::select(DeadReason::ALL.to_vec())
}

fn a_stage_name() -> impl Strategy<Value = StageName> {
    name().prop_map(|name| {
        StageName::parse(&name[..name.floor_char_boundary(60)]).expect("a good name")
    })
}

/// Four to eight of them, each with a number in its name and so many milliseconds more from one to the next.
fn some_stages() -> impl Strategy<Value = Stages> {
    let stage = (
        any::<bool>(),
        1..1_000_000_u64,
        option::of(text()),
        option::of(a_guard()),
        option::of(an_action()),
    );
    vec(stage, 4..8).prop_map(|list| {
        let mut at_ms = 0;
        let stages = list.into_iter().enumerate();
        let stages = stages.map(
            |(n, (is_from_creation, more_ms, condition, guard, action))| {
                at_ms += more_ms;
                Stage {
                    name: StageName::parse(&format!("stage {n}")).expect("a good name"),
                    starts: match is_from_creation || n == 0 {
                        true => Starts::After(DurationMs(at_ms)),
                        false => Starts::AfterPrevious(DurationMs(more_ms)),
                    },
                    condition,
                    guard,
                    action,
                }
            },
        );
        Stages::new(stages.collect()).expect("good stages")
    })
}

fn a_due() -> impl Strategy<Value = Due> {
    let lane = prop::sample::select(vec![Lane::Wall, Lane::Steady]);
    (wall(), lane, any::<i64>()).prop_map(|(at, lane, fire_ms)| Due { at, lane, fire_ms })
}

fn a_live_attempt() -> impl Strategy<Value = LiveAttempt> {
    (option::of(wall()), option::of(text()), option::of(length())).prop_map(
        |(started_at, worker, lease)| LiveAttempt {
            started_at,
            worker,
            lease,
            report_by: MonoMs(0),
            beat_by: None,
            alert_at: None,
        },
    )
}

fn a_pause() -> impl Strategy<Value = Pause> {
    let clock = prop::sample::select(vec![PauseClock::Keep, PauseClock::Freeze]);
    (clock, steady()).prop_map(|(clock, since)| Pause { clock, since })
}

fn an_error() -> impl Strategy<Value = ErrorNote> {
    (text(), text()).prop_map(|(code, message)| ErrorNote { code, message })
}

fn an_outcome() -> impl Strategy<Value = &'static str> {
    prop::sample::select(OUTCOMES.to_vec())
}

fn a_last_outcome() -> impl Strategy<Value = LastOutcome> {
    (an_outcome(), option::of(an_error()))
        .prop_map(|(outcome, error)| LastOutcome { outcome, error })
}

fn latest<T: std::fmt::Debug>(entry: impl Strategy<Value = T>) -> impl Strategy<Value = Latest<T>> {
    (vec(entry, 0..4), any::<u32>()).prop_map(|(kept, total)| Latest { kept, total })
}

prop_compose! {
    fn an_attempt()(
        (attempt, token, generation) in any::<(u32, u64, u32)>(),
        stage in option::of(a_stage_name()),
        (started_at, ended_at) in (option::of(wall()), wall()),
        executor in prop::sample::select(vec!["http", "pull", "handler", "poll"]),
        worker in option::of(text()),
        outcome in an_outcome(),
        error in option::of(an_error()),
    ) -> AttemptRecord {
        AttemptRecord {
            attempt: AttemptNumber(attempt), token: AttemptToken(token), generation, stage,
            started_at, ended_at, executor, worker, outcome, error,
        }
    }
}

prop_compose! {
    fn a_change()(
        at in wall(),
        from in option::of(a_state()),
        to in a_state(),
        by in text(),
        why in text(),
    ) -> Change {
        Change { at, from, to, by, why }
    }
}

fn an_action() -> impl Strategy<Value = Action> {
    let http = (an_http_action(), option::of(length()));
    let poll = (
        (an_http_action(), length(), option::of(length())),
        (text(), option::of(text())),
    );
    prop_oneof![
        http.prop_map(|(http, complete_by)| Action::Http(HttpAction {
            complete_by,
            ..http
        })),
        poll.prop_map(|((http, every, within), (done_if, failed_if))| {
            Action::Poll(Box::new(Poll {
                http,
                every,
                within,
                done_if,
                failed_if,
            }))
        }),
        Just(Action::CompleteOnly),
        Just(Action::Pull),
        text().prop_map(|name| Action::Handler { name }),
        (text(), vec(text(), 0..3), pairs(), option::of(text())).prop_map(
            |(program, args, env, cwd)| Action::Command(CommandAction {
                program,
                args,
                env,
                cwd,
            })
        ),
        Just(Action::None),
    ]
}

fn a_verify() -> impl Strategy<Value = Verify> {
    let on_no_answer = vec![OnNoAnswer::Retry, OnNoAnswer::Hold, OnNoAnswer::Dead];
    let on_no_answer = prop::sample::select(on_no_answer);
    (an_http_action(), text(), option::of(text()), on_no_answer).prop_map(
        |(http, done_if, failed_if, on_no_answer)| Verify {
            http,
            done_if,
            failed_if,
            on_no_answer,
        },
    )
}

fn a_guard() -> impl Strategy<Value = Guard> {
    let on_no_answer = vec![OnSilence::Retry, OnSilence::Fire, OnSilence::Hold];
    let on_no_answer = prop::sample::select(on_no_answer);
    let conditions = (option::of(text()), option::of(text()), option::of(length()));
    let question = (an_http_action(), conditions, on_no_answer).prop_map(
        |(http, (fire_if, cancel_if, extend_by), on_no_answer)| {
            Guard::Asks(Box::new(GuardQuestion {
                http,
                fire_if,
                cancel_if,
                extend_by,
                on_no_answer,
            }))
        },
    );
    prop_oneof![text().prop_map(Guard::If), question]
}

const TASK_CLOCKS: [TaskClock; 4] = [
    TaskClock::Attempt,
    TaskClock::Heartbeat,
    TaskClock::Queue,
    TaskClock::Total,
];

/// What follows a clock, if anything is said of it.
fn a_then() -> impl Strategy<Value = Option<Then>> {
    option::of(prop_oneof![
        Just(Then::Retry),
        Just(Then::Dead),
        Just(Then::Alert),
        text().prop_map(|name| Then::Escalate(Box::new(Action::Handler { name }))),
    ])
}

fn an_http_action() -> impl Strategy<Value = HttpAction> {
    let statuses = vec(any::<u16>(), 0..3);
    (text(), text(), pairs(), statuses, option::of(text())).prop_map(
        |(url, method, headers, expect_status, success_if)| HttpAction {
            url,
            method,
            headers,
            expect_status,
            success_if,
            complete_by: None,
        },
    )
}

fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
    vec((text(), text()), 0..3)
}

fn a_retry_policy() -> impl Strategy<Value = RetryPolicy> {
    let on_failure = prop::sample::select(vec![OnFailure::Retry, OnFailure::Dead, OnFailure::Park]);
    let exponential = (length(), 1.0..10.0_f64, length());
    let backoff = prop_oneof![
        vec(length(), 1..5).prop_map(Backoff::Ladder),
        length().prop_map(Backoff::Fixed),
        exponential.prop_map(|(base, factor, cap)| Backoff::Exponential { base, factor, cap }),
    ];
    let on = vec((text(), on_failure), 0..3);
    (backoff, 0.0..1.0_f64, any::<u32>(), on).prop_map(|(backoff, jitter, max_attempts, on)| {
        RetryPolicy {
            backoff,
            jitter,
            max_attempts,
            max_lost_leases: None,
            on,
        }
    })
}

prop_compose! {
    fn a_spec()(
        (action, retry) in (an_action(), a_retry_policy()),
        (payload, facts) in (option::of(some_json()), option::of(some_json())),
        (attempt, grace, total) in (length(), length(), option::of(length())),
        (heartbeat, queue, max_lost_leases) in (option::of(length()), option::of(length()), option::of(any::<u32>())),
        then in vec(a_then(), 4),
        delivery in prop::sample::select(vec![Delivery::AtLeastOnce, Delivery::AtMostOnce]),
        class in prop::sample::select(vec![Class::Core, Class::Normal, Class::Bulk]),
        max_lateness in option::of(length()),
        tags in pairs(),
        stages in option::of(some_stages()),
        (verify, guard) in (option::of(a_verify()), option::of(a_guard())),
        rule in option::of(("[a-z]{1,9}", any::<u64>())),
        on_end in option::of((an_http_action(), option::of(a_retry_policy()))),
        callback_of in option::of(any::<u64>()),
    ) -> TaskSpec {
        let rule = rule.map(|(name, version)| RuleRef {
            name: ResourceName::parse(&name).expect("letters"),
            version,
            at: WallMs(0),
        });
        let clocks = [Some(attempt), heartbeat, queue, total];
        let clocks = TASK_CLOCKS.into_iter().zip(clocks).zip(then);
        let then = clocks.filter_map(|((clock, length), then)| Some((clock, length.and(then)?)));
        let then = Thens(then.collect());
        let retry = RetryPolicy { max_lost_leases, ..retry };
        TaskSpec {
            action, stages, payload, retry,
            timeouts: Timeouts { attempt, grace, total, heartbeat, queue, then },
            delivery, class, max_lateness, tags, facts, rule, verify: verify.map(Box::new), guard,
            on_end: on_end.map(|(http, retry)| Box::new(OnEnd { http, retry })),
            callback_of: callback_of.map(|tail| TaskId::with_tail(Slot::of_hash(tail), WallMs(0), tail)),
        }
    }
}
