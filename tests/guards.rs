//! Guards before fire, over HTTP: who is asked ahead of the due time, and what becomes of the task.
#![expect(clippy::print_stdout, reason = "figures are for whoever looks")]

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use support::receiver::{Answer, Gate, Receiver, ok, status};
use support::service::{Service, Shared};
use support::{ms, push};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

/// Fires what is open, calls off what is paid, and makes all else later.
fn asking(url: &str) -> Value {
    json!({"http": {"url": url}, "fire_if": "body.is == \"open\"", "cancel_if": "body.is == \"paid\"", "extend_by": "PT10S"})
}

fn is(word: &str) -> Answer {
    ok(&json!({ "is": word }))
}

/// Its log says so.
fn says(api: &Service, task: &Value, what: &str) -> bool {
    let id = task["id"].as_str().expect("an id");
    let log = api.get(&format!("/v1/tasks/{id}/log")).must(200);
    log.to_string().contains(what)
}

#[test]
fn a_slow_guard_makes_nothing_late() {
    let (api, receiver) = (service(), Receiver::start());
    let slow = Answer::Later(
        Duration::from_millis(2_500),
        200,
        json!({"is": "open"}).to_string(),
    );
    let guard = asking(&receiver.on("/slow", &[slow]));
    let url = receiver.on("/fires", &[status(200)]);
    let task = api.made(&json!({"topic": "slow", "key": "o-1", "delay": "PT6S", "action": push(&url), "guard": guard}));
    assert_eq!(
        (&task["waiting_for"], &task["state"]),
        (&json!("guard"), &json!("pending"))
    );
    assert_eq!(task["next_attempt_at"], task["due_at"]);
    let ended = api.wait_state(&task["id"], "succeeded");
    let (asked, fired) = (receiver.hits("/slow"), receiver.hits("/fires"));
    assert_eq!(
        (asked.len(), fired.len(), &ended["attempts"]),
        (1, 1, &json!(1))
    );
    let due_ms = ms(&task["due_at"]);
    let (ahead, late) = (due_ms - asked[0].at_ms, fired[0].at_ms - due_ms);
    println!("asked {ahead} ms ahead, fired {late} ms late");
    assert!((4_000..=5_000).contains(&ahead), "{ahead}");
    assert!((0..1_000).contains(&late), "{late}");
    assert_eq!(
        (asked[0].method.as_str(), &asked[0].body),
        ("GET", &Value::Null)
    );
    assert!(asked[0].header("webhook-id").ends_with("~guard"));
    assert_ne!(asked[0].header("webhook-id"), fired[0].header("webhook-id"));
    assert!(says(&api, &task, "its guard lets it fire"));
    assert_eq!(
        api.attempts(&task["id"]).len(),
        1,
        "a question is no attempt"
    );
    let metrics = api.get("/metrics").text();
    assert!(
        metrics.contains("duetime_guards_asked_total{answer=\"fire\"}"),
        "{metrics}"
    );
}

#[test]
fn what_is_paid_is_cancelled_and_what_is_not_decided_comes_later() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/decided", &[status(200)]);
    let made = |path: &str, answers: &[Answer]| {
        let guard = asking(&receiver.on(path, answers));
        api.made(&json!({"topic": "decided", "action": push(&url), "guard": guard}))
    };
    let paid = made("/paid", &[is("paid")]);
    let later = made("/later", &[is("checked"), is("paid")]);
    let ended = api.wait_state(&paid["id"], "cancelled");
    assert_eq!(ended["attempts"], 0);
    assert!(says(&api, &paid, "cancelled: guard: cancel_if is true"));
    let moved = receiver.wait("/later", 1).len();
    assert_eq!(moved, 1);
    let ended = api.wait_state(&later["id"], "cancelled");
    let by = ms(&ended["due_at"]) - ms(&later["due_at"]);
    assert!((10_000..11_000).contains(&by), "{by}");
    assert_eq!(receiver.hits("/later").len(), 2);
    assert!(receiver.hits("/decided").is_empty());
}

#[test]
fn without_an_answer_it_is_as_was_asked_for() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/unknown", &[status(200)]);
    let made = |path: &str, answers: &[Answer], then: &str| {
        let mut guard = asking(&receiver.on(path, answers));
        guard["on_no_answer"] = json!(then);
        api.made(&json!({"topic": "unknown", "action": push(&url), "guard": guard}))
    };
    let fires = made("/no-1", &[Answer::Silence], "fire");
    let held = made("/no-2", &[status(500)], "hold");
    let again = made(
        "/no-3",
        &[status(500), ok(&json!({"odd": 1})), is("open")],
        "retry",
    );
    let ended = api.wait_state(&held["id"], "paused");
    assert_eq!(ended["waiting_for"], Value::Null);
    assert!(says(&api, &held, "http_500"));
    for task in [&fires, &again] {
        api.wait_state(&task["id"], "succeeded");
    }
    assert_eq!(
        receiver.hits("/no-3").len(),
        3,
        "what can't be judged is no answer"
    );
    receiver.on("/no-2", &[is("open")]);
    api.verb("resume", &held["id"], &json!({})).must(200);
    api.wait_state(&held["id"], "succeeded");
}

#[test]
fn a_stage_has_a_guard_of_its_own_and_a_topic_one_for_all() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/staged", &[status(200)]);
    let guard = asking(&receiver.on("/courier", &[is("paid")]));
    let stages = json!([{"name": "dispatch", "after": "PT0S"},
        {"name": "cancel", "after": "PT0.5S", "guard": guard}]);
    let task = api.made(&json!({"topic": "staged", "action": push(&url), "stages": stages}));
    let ended = api.wait_state(&task["id"], "succeeded");
    assert!(says(
        &api,
        &ended,
        "stage cancel is passed over: its guard: cancel_if is true"
    ));
    assert_eq!(
        (
            receiver.hits("/staged").len(),
            receiver.hits("/courier").len()
        ),
        (1, 1)
    );

    let defaults = json!({"guard": {"if": "!has(facts.paid)"}, "action": push(&url)});
    api.put("/v1/topics/guarded", &defaults).must(201);
    let topic = api.get("/v1/topics/guarded").must(200);
    assert_eq!(topic["guard"], defaults["guard"]);
    let paid = api.made(&json!({"topic": "guarded", "facts": {"paid": true}}));
    assert_eq!(paid["guard"], defaults["guard"]);
    api.wait_state(&paid["id"], "cancelled");
    let open = api.made(&json!({"topic": "guarded"}));
    api.wait_state(&open["id"], "succeeded");
}

#[test]
fn an_answer_to_a_question_that_was_dropped_changes_nothing() {
    let (api, receiver) = (service(), Receiver::start());
    let gate = Gate::default();
    let url = receiver.on("/dropped", &[status(200)]);
    let guard = asking(&receiver.on("/waits", &[Answer::Held(gate.clone()), is("paid")]));
    let task = api.made(&json!({"topic": "dropped", "action": push(&url), "guard": guard}));
    receiver.wait("/waits", 1);
    let moved = api
        .verb("reschedule", &task["id"], &json!({"delay": "PT1H"}))
        .must(200);
    gate.open();
    assert_eq!(moved["state"], "pending");
    let id = task["id"].as_str().expect("an id");
    let late = api.get(&format!("/v1/tasks/{id}/late-answers")).must(200);
    assert_eq!(late["items"], json!([]));
    api.verb("run-now", &task["id"], &json!({})).must(200);
    api.wait_state(&task["id"], "cancelled");
    assert_eq!(
        (
            receiver.hits("/waits").len(),
            receiver.hits("/dropped").len()
        ),
        (2, 0)
    );
}

#[test]
fn a_kill_between_question_and_fire_has_it_asked_again() {
    let mut service = Service::start();
    let receiver = Receiver::start();
    let url = receiver.on("/after-kill", &[status(200)]);
    let guard = asking(&receiver.on("/killed", &[Answer::Silence, is("open")]));
    let api = *service;
    let task = api
        .made(&json!({"topic": "killed", "delay": "PT6S", "action": push(&url), "guard": guard}));
    receiver.wait("/killed", 1);
    service.kill_and_start();
    let ended = service.wait_state(&task["id"], "succeeded");
    let fired = receiver.hits("/after-kill");
    assert_eq!((fired.len(), receiver.hits("/killed").len()), (1, 2));
    assert!(fired[0].at_ms >= ms(&task["due_at"]));
    assert_eq!(ended["attempts"], 1);
}
