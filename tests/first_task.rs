//! The first thing a caller does: a task that is due soon, and arrives.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use support::receiver::{Answer, Receiver, assert_sound, ok, status};
use support::service::{Service, Shared};
use support::{LATE_MS_MAX, SOON, length, ms, now_ms, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

#[test]
fn a_task_reaches_its_receiver_when_due_with_the_body_and_headers_of_the_contract() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/close", &[ok(&json!({"closed": 42}))]);
    let before = now_ms();
    let reply = api.post(
        "/v1/tasks",
        &json!({
            "topic": "order.unpaid", "key": "order-42", "delay": "PT0.6S", "payload": {"order_id": 42, "n": "ü"},
            "action": {"http": {"url": url, "headers": {"x-shop": "a"}}},
        }),
    );
    let (task, after) = (reply.must(201), now_ms());
    let id = task["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        reply.header("location"),
        Some(format!("/v1/tasks/{id}").as_str())
    );
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(&id[14..15], "7", "a UUIDv7: {id}");
    assert_eq!(
        (&task["state"], &task["attempts"], &task["generation"]),
        (&json!("pending"), &json!(0), &json!(1))
    );
    let due = ms(&task["due_at"]);
    assert!(
        (before + 600..=after + 601).contains(&due),
        "due {} ms after the create",
        due - before
    );

    let hit = receiver.wait("/close", 1).remove(0);
    let late = hit.at_ms - due;
    assert!(
        (0..=LATE_MS_MAX).contains(&late),
        "{late} ms after it was due"
    );
    assert_eq!((hit.method.as_str(), hit.header("x-shop")), ("POST", "a"));
    assert_eq!(
        hit.body,
        json!({
            "id": id, "topic": "order.unpaid", "key": "order-42", "stage": null, "attempt": 1, "token": 1,
            "generation": 1, "due_at": task["due_at"], "payload": {"order_id": 42, "n": "ü"},
        })
    );
    assert_eq!(hit.header("content-type"), "application/json");
    assert_eq!(hit.header("webhook-id"), format!("{id}.1."));
    assert_eq!(hit.header("duetime-attempt"), "1");
    let sent_at_s: i64 = hit.header("webhook-timestamp").parse().expect("seconds");
    assert!((0..=2).contains(&(hit.at_ms / 1000 - sent_at_s)));
    assert_eq!(
        hit.header("user-agent"),
        format!("duetime/{}", env!("CARGO_PKG_VERSION"))
    );
    let deadline = ms(&json!(hit.header("duetime-deadline")));
    assert!(
        (due + 30_000..due + 30_000 + LATE_MS_MAX).contains(&deadline),
        "the default is 30 s"
    );
    let trace: Vec<usize> = hit.header("traceparent").split('-').map(str::len).collect();
    assert_eq!(trace, [2, 32, 16, 2], "{}", hit.header("traceparent"));

    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(
        (&done["result"], &done["attempts"]),
        (&json!({"closed": 42}), &json!(1))
    );
    assert_eq!(
        done["last_outcome"],
        json!({"outcome": "succeeded", "error": null})
    );
    assert!((0..=LATE_MS_MAX).contains(&done["lateness_ms"].as_i64().expect("a number")));
    let attempts = api.attempts(&task["id"]);
    assert_eq!(attempts.len(), 1);
    assert_eq!(
        (&attempts[0]["outcome"], &attempts[0]["executor"]),
        (&json!("succeeded"), &json!("http"))
    );
}

#[test]
fn a_second_create_finds_the_live_task_and_the_key_is_free_after_its_end() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/once", &[status(200)]);
    let body = |delay| json!({"topic": "once", "key": "k", "delay": delay, "action": push(&url)});
    let first = api.made(&body("PT0.3S"));
    let again = api.post("/v1/tasks", &body("PT9S")).must(200);
    assert_eq!(
        (&again["id"], &again["due_at"]),
        (&first["id"], &first["due_at"])
    );
    assert_eq!(api.by_key("once", "k")["id"], first["id"]);

    api.wait_state(&first["id"], "succeeded");
    let second = api.made(&body("PT1H"));
    assert_ne!(second["id"], first["id"]);
    assert_eq!(api.by_key("once", "k")["id"], second["id"], "the live one");
    assert_eq!(receiver.hits("/once").len(), 1);
}

#[test]
fn tasks_due_at_scattered_milliseconds_are_never_early_and_hardly_late() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/many", &[status(200)]);
    let one =
        |n: u64| json!({"topic": "many", "delay": length(400 + n * 17), "action": push(&url)});
    let made: Vec<Value> = (0..40).map(|n| api.made(&one(n))).collect();
    let due: HashMap<String, i64> = made
        .iter()
        .map(|task| {
            (
                task["id"].as_str().expect("an id").to_owned(),
                ms(&task["due_at"]),
            )
        })
        .collect();
    let hits = receiver.wait_tasks("/many", 40);
    assert_sound(&hits, &due);
    let latest = hits.iter().map(|hit| hit.at_ms - due[&hit.id()]).max();
    assert!(latest <= Some(LATE_MS_MAX), "{latest:?} ms");
    for task in &made {
        api.wait_state(&task["id"], "succeeded");
    }
    assert_eq!(receiver.hits("/many").len(), 40, "each once");
}

#[test]
fn a_task_without_a_time_is_due_now_and_a_time_in_the_past_too() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/now", &[status(200)]);
    api.made(&json!({"topic": "now", "action": push(&url)}));
    api.made(&json!({"topic": "now", "due_at": "2020-01-01T00:00:00Z", "action": push(&url)}));
    receiver.wait("/now", 2);
}

#[test]
fn method_and_expected_statuses_are_the_callers() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/put", &[status(404)]);
    let action = json!({"http": {"url": url, "method": "PUT", "expect_status": [404]}});
    let task = api.made(&json!({"topic": "put", "action": action}));
    api.wait_state(&task["id"], "succeeded");
    assert_eq!(receiver.hits("/put")[0].method, "PUT");
}

#[test]
fn an_answer_that_is_too_large_to_keep_is_success_without_a_result() {
    let (api, receiver) = (service(), Receiver::start());
    let large = Answer::Say(200, format!("\"{}\"", "x".repeat(70_000)));
    let url = receiver.on("/large", &[large]);
    let task = api.made(&json!({"topic": "large", "action": push(&url)}));
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(
        (&done["result"], &done["result_dropped"]),
        (&Value::Null, &json!(true))
    );
}

#[test]
fn counts_say_what_has_happened() {
    let api = service();
    api.made(&json!({"topic": "counted", "delay": "PT0S", "action": {"none": {}}}));
    api.made(&json!({"topic": "counted", "delay": "PT1H", "action": {"none": {}}}));
    until("one has ended", SOON, || {
        let stats = api.get("/v1/stats").must(200);
        let rows = stats["topics"].as_array().expect("rows").clone();
        let row = rows.into_iter().find(|row| row["topic"] == "counted")?;
        let states = &row["states"];
        (states["pending"] == 1 && states["succeeded"] == 1).then_some(())
    });
}
