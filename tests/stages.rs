//! Tasks with stages, as a caller and a receiver see them: in order, at their times, and through kills.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use support::receiver::{Answer, Gate, Hit, Receiver, ok, status};
use support::service::{Service, Shared};
use support::{fixed, ms, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

/// Later than asked for by at most this: a debug build on a shared machine.
const LATE_MS: i64 = 400;

fn stage(name: &str, after: &str, url: &str) -> Value {
    json!({"name": name, "after": after, "action": push(url)})
}

fn assert_at(hit: &Hit, task: &Value, after_ms: i64) {
    let at = hit.at_ms - ms(&task["created_at"]);
    assert!(
        (after_ms..=after_ms + LATE_MS).contains(&at),
        "{at} ms for {after_ms}"
    );
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn stages_of(values: &[Value]) -> Vec<&str> {
    values.iter().map(|value| text(&value["stage"])).collect()
}

#[test]
fn stages_are_pushed_in_order_at_their_times_each_with_its_own_attempts() {
    let (api, receiver) = (service(), Receiver::start());
    let dispatch = receiver.on("/dispatch", &[status(500), ok(&json!({"courier": 7}))]);
    let cancel = receiver.on("/cancel", &[ok(&json!({"gone": true}))]);
    let task = api.made(&json!({
        "topic": "courier", "retry": fixed(100, 3),
        "stages": [stage("dispatch", "PT0.3S", &dispatch), stage("ab sagen.", "PT1S", &cancel)],
    }));
    assert_eq!(
        (
            &task["stage"],
            ms(&task["due_at"]) - ms(&task["created_at"])
        ),
        (&json!("dispatch"), 300)
    );
    let first = receiver.wait("/dispatch", 2);
    assert_at(&first[0], &task, 300);
    let between = until("the second stage waits", Duration::from_secs(5), || {
        let task = api.task(&task["id"]);
        (task["stage"] == "ab sagen.").then_some(task)
    });
    assert_eq!(
        (&between["attempts"], &between["result"]),
        (&json!(0), &json!({"courier": 7}))
    );
    let second = receiver.wait("/cancel", 1);
    assert_at(&second[0], &task, 1000);
    assert_eq!(
        (&second[0].body["stage"], &second[0].body["attempt"]),
        (&json!("ab sagen."), &json!(3))
    );
    let id = text(&task["id"]);
    let ids: Vec<&str> = first
        .iter()
        .chain(&second)
        .map(|hit| hit.header("webhook-id"))
        .collect();
    let (one, two) = (format!("{id}.1.dispatch"), format!("{id}.1.ab%20sagen%2E"));
    assert_eq!(ids, [one.as_str(), &one, &two], "one id per stage");
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(done["result"], json!({"gone": true}));
    assert_eq!(
        stages_of(&api.attempts(&task["id"])),
        ["dispatch", "dispatch", "ab sagen."]
    );
    assert_eq!(done["stages"][1]["after"], "PT1S");
}

#[test]
fn a_stage_stops_the_attempt_of_the_one_before_it_and_its_answer_is_late() {
    let (api, receiver) = (service(), Receiver::start());
    let gate = Gate::default();
    let slow = receiver.on("/slow", &[Answer::Held(gate.clone())]);
    let next = receiver.on("/next", &[status(200)]);
    let task = api.made(&json!({
        "topic": "courier.slow", "stages": [stage("a", "PT0.1S", &slow), stage("b", "PT0.6S", &next)],
    }));
    receiver.wait_until("the first push is hung up", "/slow", |hits| {
        hits.iter().any(|hit| hit.hung_up.is_some())
    });
    gate.open();
    assert_at(&receiver.wait("/next", 1)[0], &task, 600);
    api.wait_state(&task["id"], "succeeded");
    let attempts = api.attempts(&task["id"]);
    assert_eq!(
        (&attempts[0]["outcome"], &attempts[0]["stage"]),
        (&json!("cancelled"), &json!("a"))
    );

    // A worker's, too: its token is of no use any more.
    let task = api.made(&json!({
        "topic": "courier.pull",
        "stages": [{"name": "a", "after": "PT0S", "action": {"pull": {}}}, stage("b", "PT0.6S", &next)],
    }));
    let lease = api.lease("courier.pull", 1, 5000, "PT30S").remove(0);
    assert_eq!(lease["task"]["stage"], "a");
    receiver.wait("/next", 2);
    let (code, problem) = api.say("complete", &lease, json!({"result": 1})).problem();
    assert_eq!((code, problem.as_str()), (409, "stale_token"));
    let late = api
        .get(&format!("/v1/tasks/{}/late-answers", text(&task["id"])))
        .must(200);
    assert_eq!(late["items"][0]["outcome"], "succeeded");
    assert_eq!(
        api.wait_state(&task["id"], "succeeded")["result"],
        Value::Null
    );
}

#[test]
fn conditions_pass_stages_over_and_the_log_says_so() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/vip", &[status(200)]);
    let with = |condition: &str| json!({"name": "only", "after": "PT0.05S", "if": condition, "action": push(&url)});
    let made = |condition: &str| {
        let last = json!({"name": "last", "after": "PT0.2S", "action": {"none": {}}, "if": "facts.vip || tags.a == 'b'"});
        let task = api.made(&json!({
            "topic": "vip", "facts": {"vip": false}, "tags": {"a": "b"}, "stages": [with(condition), last],
        }));
        api.wait_state(&task["id"], "succeeded");
        let log = api
            .get(&format!("/v1/tasks/{}/log", text(&task["id"])))
            .must(200);
        text(&log["items"][1]["why"]).to_owned()
    };
    assert_eq!(
        made("facts.vip"),
        "stage only is passed over: its condition is not true; after stage only comes last"
    );
    assert!(
        made("facts.gold").starts_with("stage only is passed over: its condition has no value")
    );
    assert_eq!(receiver.hits("/vip").len(), 0);
    made("!facts.vip && now > created_at");
    assert_eq!(receiver.hits("/vip").len(), 1);

    // Nothing ran and something was given up: that is for a person.
    let task = api.made(&json!({"topic": "vip", "stages": [with("facts.gold")]}));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["dead_reason"], &dead["last_outcome"]["error"]["code"]),
        (&json!("refused"), &json!("condition_error"))
    );
}

#[test]
fn what_can_not_be_the_stages_of_a_task_is_refused_where_it_stands() {
    let api = service();
    let none =
        |name: &str, after: &str| json!({"name": name, "after": after, "action": {"none": {}}});
    for (body, pointer) in [
        (json!({"stages": []}), "/stages"),
        (
            json!({"stages": [none("a", "PT2H"), none("b", "PT1H")]}),
            "/stages/1/after",
        ),
        (
            json!({"stages": [none("a", "PT2H")], "delay": "PT1H"}),
            "/delay",
        ),
        (
            json!({"stages": [none("a", "PT2H")], "due_at": "2030-01-01T00:00:00Z"}),
            "/due_at",
        ),
        (
            json!({"stages": [{"name": "a", "after": "PT1H", "if": "size(facts.x) > 1"}], "facts": {"x": "y".repeat(9000)}}),
            "/facts",
        ),
        (
            json!({"stages": [{"name": "a", "after": "PT1H", "action": {"http": {"url": "ftp://x"}}}]}),
            "/stages/0/action/http/url",
        ),
        // Whatever may not be done as a task's action may not be done in a stage.
        (
            json!({"stages": [{"name": "a", "after": "PT1H", "action": {"command": {"program": "/bin/sh"}}}]}),
            "/stages/0/action/command",
        ),
    ] {
        let mut body = body;
        body["topic"] = json!("t");
        let problem = api.post("/v1/tasks", &body).must(422);
        let given = text(&problem["errors"][0]["pointer"]);
        assert!(given.starts_with(pointer), "{problem}");
    }
}

#[test]
fn kills_before_between_and_while_stages_run_lose_none_and_come_at_their_times() {
    let (mut service, receiver) = (Service::start(), Receiver::start());
    let gate = Gate::default();
    let a = receiver.on("/a", &[Answer::Held(gate.clone()), status(200)]);
    let b = receiver.on("/b", &[status(200)]);
    let c = receiver.on("/c", &[status(200)]);
    let task = service.made(&json!({
        "topic": "killed", "retry": fixed(50, 5),
        "stages": [
            stage("a", "PT1S", &a),
            json!({"name": "b", "after_previous": "PT1S", "action": push(&b)}),
            stage("c", "PT8S", &c),
        ],
    }));
    service.kill_and_start();
    receiver.wait("/a", 1);
    service.kill_and_start();
    // Nobody knows what became of the first attempt, so it is made again, in the same stage.
    let hits = receiver.wait("/a", 2);
    assert_eq!(hits[0].header("webhook-id"), hits[1].header("webhook-id"));
    until("the second stage waits", Duration::from_secs(5), || {
        (service.task(&task["id"])["stage"] == "b").then_some(())
    });
    service.kill_and_start();
    let second = &receiver.wait("/b", 1)[0];
    assert!(
        second.at_ms >= hits[1].at_ms + 1000,
        "it counts from the end of the one before"
    );
    // An answer that is not written yet would be asked for again.
    until("the third stage waits", Duration::from_secs(5), || {
        (service.task(&task["id"])["stage"] == "c").then_some(())
    });
    service.kill_and_start();
    assert_eq!(service.task(&task["id"])["stage"], "c");
    let third = &receiver.wait("/c", 1)[0];
    assert!(third.at_ms >= ms(&task["created_at"]) + 8000);
    service.wait_state(&task["id"], "succeeded");
    assert_eq!(
        (receiver.hits("/b").len(), receiver.hits("/c").len()),
        (1, 1)
    );
    gate.open();
}
