#![expect(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::clock::{MonoMs, Now, SteadyMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken, ShardId, Slot, TaskId};
use crate::task::clocks::{TaskClock, Then, Thens};
use crate::task::history::{AttemptRecord, Change};
use crate::task::model::{DeadReason, Due, LastOutcome, LiveAttempt, WaitingFor};
use crate::task::retry::{Backoff, DELAY_MAX, OnFailure, RetryPolicy};
use crate::task::spec::{Action, Class, CommandAction, Delivery, HttpAction, Timeouts, TopicName};
use crate::task::topic::{PartialTimeouts, Topic};
use crate::task::{NewTask, TaskSpec};
use crate::wire::task_in::create;
use crate::wire::tests::{NOW, WIDE};

fn now() -> Now {
    Now {
        wall: NOW,
        mono: MonoMs(0),
        steady: SteadyMs(NOW.0),
    }
}

/// The task that a create makes, as its shard would show it.
fn view(new: &NewTask) -> TaskView {
    let spec = new.spec(&Topic::default());
    view_of(new.topic.clone(), new.key.clone(), spec)
}

fn view_of(topic: TopicName, key: Option<TaskKey>, spec: Arc<TaskSpec>) -> TaskView {
    let id = TaskId::with_tail(Slot::of_hash(7), NOW, 9);
    let due = Due::after(DurationMs::secs(1800), now());
    TaskView {
        task: Arc::new(Task::new(id, topic, key, spec, due, now(), "api")),
        blocked_by: None,
        callback: None,
        shard: ShardId(3),
        remaining_ms: 1_800_000,
    }
}

fn to_json(shape: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(shape).unwrap()
}

fn shown(shape: &impl Serialize) -> Value {
    serde_json::from_slice(&to_json(shape)).unwrap()
}

fn task_of(view: &mut TaskView) -> &mut Task {
    Arc::make_mut(&mut view.task)
}

#[test]
fn a_new_task_is_shown_with_every_field_in_a_stable_order() {
    let body = br#"{"topic": "order.unpaid", "key": "order-42", "delay": "PT30M", "payload": {"b": 1, "a":  "\u00fc"},
        "action": {"http": {"url": "http://127.0.0.1:9000/close", "headers": {"x-shop": "a"}}},
        "retry": {"ladder": ["PT1M", "PT5M"], "max_attempts": 10}, "timeouts": {"total": "PT2H"},
        "class": "core", "max_lateness": "PT1M", "tags": {"region": "eu"}, "facts": {"vip": true}}"#;
    let view = view(&create(body, &WIDE).unwrap());
    let text = String::from_utf8(to_json(&TaskOut::from(&view))).unwrap();
    let expected = concat!(
        r#"{"id":"01a229f1-2800-7007-8000-000000000009","topic":"order.unpaid","key":"order-42","state":"pending","#,
        r#""due_at":"2026-11-30T01:23:20.000Z","next_attempt_at":"2026-11-30T01:23:20.000Z","remaining_ms":1800000,"#,
        r#""generation":1,"attempts":0,"stage":null,"waiting_for":null,"blocked_by":null,"dead_reason":null,"#,
        r#""last_outcome":null,"result":null,"created_at":"2026-11-30T00:53:20.000Z","#,
        r#""updated_at":"2026-11-30T00:53:20.000Z","ended_at":null,"lateness_ms":null,"#,
        r#""payload":{"b": 1, "a":  "\u00fc"},"#,
        r#""action":{"http":{"url":"http://127.0.0.1:9000/close","method":"POST","headers":{"x-shop":"a"},"expect_status":[]}},"#,
        r#""stages":null,"retry":{"ladder":["PT1M","PT5M"],"jitter":0.0,"max_attempts":10},"#,
        r#""timeouts":{"attempt":"PT30S","grace":"PT2S","total":"PT2H"},"delivery":"at_least_once","class":"core","#,
        r#""max_lateness":"PT1M","tags":{"region":"eu"},"facts":{"vip": true},"rule":null,"shard":3,"#,
        r#""bucket":"202611300123"}"#,
    );
    assert_eq!(text, expected);
}

#[test]
fn an_ended_task_tells_how_it_ended() {
    let mut view = view(&NewTask::new(TopicName::parse("t").unwrap()));
    task_of(&mut view).state = State::Dead;
    task_of(&mut view).ended_at = Some(NOW);
    task_of(&mut view).dead_reason = Some(DeadReason::AttemptsUsedUp);
    task_of(&mut view).last_outcome = Some(LastOutcome {
        outcome: "timeout",
        error: None,
    });
    task_of(&mut view).lateness_ms = Some(-3);
    view.blocked_by = Some("topic_paused");
    let task = shown(&TaskOut::from(&view));
    assert_eq!(
        task["last_outcome"],
        json!({"outcome": "timeout", "error": null})
    );
    assert_eq!(task["dead_reason"], "attempts_used_up");
    assert_eq!(
        (&task["next_attempt_at"], &task["lateness_ms"]),
        (&Value::Null, &json!(-3))
    );
    assert_eq!(task["blocked_by"], "topic_paused");
    assert!(task.get("result_dropped").is_none());

    task_of(&mut view).state = State::Succeeded;
    task_of(&mut view).result = Some(RawJson::from(r#"{"closed":42}"#.to_owned()));
    task_of(&mut view).result_dropped = true;
    let task = shown(&TaskOut::from(&view));
    assert_eq!(
        (&task["result"], &task["result_dropped"]),
        (&json!({"closed": 42}), &json!(true))
    );
}

#[test]
fn a_damaged_record_does_not_spoil_the_answer() {
    let mut view = view(&NewTask::new(TopicName::parse("t").unwrap()));
    task_of(&mut view).result = Some(RawJson::from(r#"{"closed":"#.to_owned()));
    assert_eq!(shown(&TaskOut::from(&view))["result"], Value::Null);
}

#[test]
fn verbs_answer_a_task_in_short() {
    let view = view(&NewTask::new(TopicName::parse("t").unwrap()));
    let slim = json!({"id": view.task.id.to_string(), "state": "pending", "due_at": "2026-11-30T01:23:20.000Z",
        "generation": 1, "updated_at": "2026-11-30T00:53:20.000Z"});
    assert_eq!(shown(&SlimOut::from(&*view.task)), slim);
}

#[test]
fn attempts_are_listed_in_order_with_the_one_that_is_out() {
    let mut task = Task::clone(&view(&NewTask::new(TopicName::parse("t").unwrap())).task);
    task.attempts_log.push(AttemptRecord {
        attempt: AttemptNumber(1),
        token: AttemptToken(16),
        generation: 1,
        stage: None,
        started_at: Some(NOW),
        ended_at: WallMs(NOW.0 + 250),
        executor: "pull",
        worker: Some("w1".into()),
        outcome: "failed",
        error: Some(ErrorNote {
            code: "bad_card".into(),
            message: "no".into(),
        }),
    });
    task.state = State::Running;
    task.attempt = AttemptNumber(2);
    task.token = AttemptToken(17);
    task.live = Some(LiveAttempt {
        started_at: Some(NOW),
        worker: Some("w2".into()),
        lease: None,
        report_by: MonoMs(9),
        beat_by: None,
        alert_at: None,
    });
    let expected = json!({"count": 2, "items": [
        {"attempt": 1, "token": 16, "generation": 1, "stage": null, "started_at": "2026-11-30T00:53:20.000Z",
         "ended_at": "2026-11-30T00:53:20.250Z", "duration_ms": 250, "executor": "pull", "worker": "w1", "node": null,
         "outcome": "failed", "error": {"code": "bad_card", "message": "no"}},
        {"attempt": 2, "token": 17, "generation": 1, "stage": null, "started_at": "2026-11-30T00:53:20.000Z",
         "ended_at": null, "duration_ms": null, "executor": "pull", "worker": "w2", "node": null,
         "outcome": null, "error": null},
    ]});
    assert_eq!(shown(&AttemptsOut::from(&task)), expected);
}

#[test]
fn the_log_shows_who_changed_what_and_why() {
    let mut task = Task::clone(&view(&NewTask::new(TopicName::parse("t").unwrap())).task);
    task.changes.push(Change {
        at: NOW,
        from: Some(State::Pending),
        to: State::Cancelled,
        by: "api".into(),
        why: "paid".into(),
    });
    let at = "2026-11-30T00:53:20.000Z";
    let expected = json!({"count": 2, "items": [
        {"at": at, "from": null, "to": "pending", "by": "api", "why": "created"},
        {"at": at, "from": "pending", "to": "cancelled", "by": "api", "why": "paid"},
    ]});
    assert_eq!(shown(&LogOut::new(&task, &[])), expected);
}

#[test]
fn a_snoozed_task_is_told_from_a_failed_one() {
    let mut view = view(&NewTask::new(TopicName::parse("t").unwrap()));
    task_of(&mut view).state = State::Retrying;
    task_of(&mut view).waiting_for = Some(WaitingFor::Snooze);
    let task = shown(&TaskOut::from(&view));
    assert_eq!(
        (&task["waiting_for"], &task["state"]),
        (&json!("snooze"), &json!("retrying"))
    );
    assert!(task["next_attempt_at"].is_string());
}

fn a_text() -> impl Strategy<Value = String> {
    "[a-z\"\\\\ü/~{}😀]{1,12}"
}

fn an_action() -> impl Strategy<Value = Action> {
    let headers = prop::collection::btree_map("x-[a-z]{1,5}", a_text(), 0..4);
    let statuses = prop::collection::vec(200_u16..600, 0..4);
    let method = prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]);
    prop_oneof![
        Just(Action::Pull),
        Just(Action::None),
        a_text().prop_map(|name| Action::Handler { name }),
        (
            a_text(),
            prop::collection::vec(a_text(), 0..3),
            prop::option::of("/[a-z]{1,5}")
        )
            .prop_map(|(name, args, cwd)| Action::Command(CommandAction {
                program: format!("/{}", name.replace(['/', '.'], "")),
                args,
                env: vec![("REGION".to_owned(), name)],
                cwd,
            })),
        (method, headers, statuses, "[a-z]{0,9}").prop_map(
            |(method, headers, expect_status, path)| {
                Action::Http(HttpAction {
                    url: format!("http://127.0.0.1:9000/{path}"),
                    method: method.to_owned(),
                    headers: headers.into_iter().collect(),
                    expect_status,
                    success_if: None,
                    complete_by: None,
                })
            }
        ),
    ]
}

fn a_policy() -> impl Strategy<Value = RetryPolicy> {
    let length = || (0..=DELAY_MAX.0).prop_map(DurationMs);
    let backoff =
        prop_oneof![
            prop::collection::vec(length(), 1..6).prop_map(Backoff::Ladder),
            length().prop_map(Backoff::Fixed),
            (length(), 1.0..1000.0, length())
                .prop_map(|(base, factor, cap)| Backoff::Exponential { base, factor, cap }),
        ];
    let then = prop::sample::select(vec![OnFailure::Retry, OnFailure::Dead, OnFailure::Park]);
    let on = prop::collection::btree_map(a_text(), then, 0..4);
    (backoff, 0.0..=1.0, 1..=10_000_u32, on).prop_map(|(backoff, jitter, max_attempts, on)| {
        RetryPolicy {
            backoff,
            jitter,
            max_attempts,
            max_lost_leases: (max_attempts % 2 == 0).then_some(max_attempts),
            on: on.into_iter().collect(),
        }
    })
}

/// What follows the clocks, in the order in which they are read; different for different numbers.
fn thens(number: u64, has_all: bool) -> Thens {
    let escalation = Then::Escalate(Box::new(Action::Pull));
    let all = [Then::Retry, Then::Dead, Then::Alert, escalation];
    let clocks = [
        (TaskClock::Attempt, true),
        (TaskClock::Heartbeat, true),
        (TaskClock::Queue, has_all),
        (TaskClock::Total, has_all),
    ];
    let given = clocks.into_iter().filter(|(_, is_given)| *is_given);
    let then = |(nth, (clock, _)): (u64, _)| (clock, all[((number >> nth) % 4) as usize].clone());
    Thens((0..).zip(given).map(then).collect())
}

fn a_spec() -> impl Strategy<Value = TaskSpec> {
    let payload = prop::option::of(
        a_text().prop_map(|text| RawJson::from(json!({"text": text, "n": [1, null]}).to_string())),
    );
    let facts = prop::option::of(
        a_text().prop_map(|text| RawJson::from(json!({ "fact": text }).to_string())),
    );
    let timeouts = (
        10..86_400_000_u64,
        0..=600_000_u64,
        prop::option::of(1..WIDE.max_delay.0),
    );
    let tags = prop::collection::btree_map(a_text(), a_text(), 0..5);
    let rest = (
        any::<bool>(),
        0..3_usize,
        prop::option::of(0..1_000_000_000_u64),
    );
    (
        an_action(),
        payload,
        a_policy(),
        timeouts,
        tags,
        facts,
        rest,
    )
        .prop_map(
            |(
                action,
                payload,
                retry,
                (attempt, grace, total),
                tags,
                facts,
                (twice, class, lateness),
            )| TaskSpec {
                verify: None,
                guard: None,
                action,
                stages: None,
                payload,
                retry,
                timeouts: Timeouts {
                    attempt: DurationMs(attempt),
                    grace: DurationMs(grace),
                    total: total.map(DurationMs),
                    heartbeat: Some(DurationMs(100 + attempt % 1_000)),
                    queue: total.map(DurationMs),
                    then: thens(attempt, total.is_some()),
                },
                delivery: if twice {
                    Delivery::AtLeastOnce
                } else {
                    Delivery::AtMostOnce
                },
                class: [Class::Core, Class::Normal, Class::Bulk][class],
                max_lateness: lateness.map(DurationMs),
                tags: tags.into_iter().collect(),
                facts,
                rule: None,
                on_end: None,
                callback_of: None,
            },
        )
}

proptest! {
    /// What is answered can be given again: the same content comes of it.
    #[test]
    fn a_task_that_is_shown_and_read_again_has_the_same_content(spec in a_spec(), topic in a_text(), key in prop::option::of(a_text())) {
        let topic = TopicName::parse(&topic).unwrap();
        let key = key.map(|key| TaskKey::parse(&key).unwrap());
        let view = view_of(topic.clone(), key.clone(), Arc::new(spec));
        // As text: a tree of values would round the numbers.
        let json = to_json(&TaskOut::from(&view));
        let mut body: BTreeMap<String, &RawValue> = serde_json::from_slice(&json).unwrap();
        let given = ["topic", "key", "due_at", "payload", "action", "retry", "timeouts", "delivery", "class",
            "max_lateness", "tags", "facts"];
        body.retain(|name, _| given.contains(&name.as_str()));
        let again = create(&to_json(&body), &WIDE).unwrap();
        prop_assert_eq!((&again.topic, &again.key), (&topic, &key));
        prop_assert_eq!(again.when.unwrap().due(now()).at, view.task.due.at);
        let want = &*view.task.spec;
        let timeouts = PartialTimeouts {
            attempt: Some(want.timeouts.attempt),
            grace: Some(want.timeouts.grace),
            total: want.timeouts.total,
            heartbeat: want.timeouts.heartbeat,
            queue: want.timeouts.queue,
            then: want.timeouts.then.clone(),
        };
        prop_assert_eq!(&again.timeouts, &timeouts);
        prop_assert_eq!(&*again.spec(&Topic::default()), want);
    }
}
