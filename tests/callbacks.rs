//! `on_end`: how a task has ended is told to who asked for it, at least once, whatever happens in between.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::sync::Arc;

use serde_json::{Value, json};

use support::receiver::{Answer, Hit, Receiver, ok, status};
use support::service::{Service, Shared};
use support::{fixed, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

fn told_to(url: &str) -> Value {
    json!({"http": {"url": url}, "retry": fixed(100, 50)})
}

/// The task, once its callback is in this state.
fn wait_callback(api: &Service, id: &Value, state: &str) -> Value {
    until(
        &format!("a callback that is {state}"),
        support::SOON,
        || {
            let task = api.task(id);
            (task["callback"]["state"] == state).then_some(task)
        },
    )
}

#[test]
fn the_outcome_is_posted_with_what_the_task_gave() {
    let (api, receiver) = (service(), Receiver::start());
    let work = receiver.on("/work", &[ok(&json!({"closed": 1}))]);
    let told = receiver.on("/told", &[status(200)]);
    let task = api.made(&json!({
        "topic": "told", "key": "order-1", "action": push(&work), "on_end": told_to(&told), "tags": {"region": "eu"},
    }));
    assert!(task.get("callback").is_none(), "it has not ended");
    assert_eq!(task["on_end"]["http"]["url"], told);
    let hit = receiver.wait("/told", 1).remove(0);
    let body = &hit.body;
    for (field, value) in [
        ("id", task["id"].clone()),
        ("topic", json!("told")),
        ("key", json!("order-1")),
        ("state", json!("succeeded")),
        ("result", json!({"closed": 1})),
        ("generation", json!(1)),
        ("attempts", json!(1)),
        ("tags", json!({"region": "eu"})),
    ] {
        assert_eq!(body[field], value, "{field} of {body}");
    }
    let ended = wait_callback(&api, &task["id"], "succeeded");
    assert_eq!(body["ended_at"], ended["ended_at"]);
    let callback = api.task(&ended["callback"]["task"]);
    assert_eq!(
        (&callback["topic"], &callback["callback_of"]),
        (&json!("told.on_end"), &task["id"])
    );
    let callback_id = callback["id"].as_str().unwrap_or_default();
    assert!(hit.header("webhook-id").starts_with(callback_id));
    assert!(callback.get("on_end").is_none() && callback.get("callback").is_none());
    let metrics = api.get("/metrics").text();
    assert!(
        metrics.contains("duetime_callbacks{state=\"succeeded\"} "),
        "{metrics}"
    );
}

#[test]
fn a_receiver_that_is_down_is_told_when_it_is_back_and_its_secrets_stay_secret() {
    let (api, receiver) = (service(), Receiver::start());
    let echo = Answer::Say(503, "you said: Bearer very-secret-1".to_owned());
    let url = receiver.on("/down", &[echo.clone(), echo, status(204)]);
    let mut on_end = told_to(&url);
    on_end["http"]["headers"] = json!({"authorization": "Bearer very-secret-1"});
    let task = api.made(&json!({"topic": "down", "delay": "PT1H", "on_end": on_end}));
    api.verb("cancel", &task["id"], &json!({"reason": "paid"}))
        .must(200);
    let hits = receiver.wait("/down", 2);
    assert_eq!(hits[0].header("authorization"), "Bearer very-secret-1");
    assert_eq!(
        (&hits[0].body["state"], &hits[0].body["why"]),
        (&json!("cancelled"), &json!("cancelled: paid"))
    );
    let shown = api.task(&task["id"]);
    assert_eq!(shown["state"], "cancelled");
    let hits = receiver.wait("/down", 3);
    let same: Vec<&str> = hits.iter().map(|hit| hit.header("webhook-id")).collect();
    assert_eq!(same, [same[0]; 3]);
    let told = wait_callback(&api, &task["id"], "succeeded");
    assert_eq!(told["callback"]["attempts"], 3);
    let attempts = api.attempts(&told["callback"]["task"]);
    assert_eq!(attempts[0]["error"]["code"], "http_503");
    assert!(!json!(attempts).to_string().contains("very-secret"));
}

#[test]
fn a_callback_that_is_given_up_is_a_dead_letter_and_can_be_replayed() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/given-up", &[status(500), status(200)]);
    let on_end = json!({"http": {"url": url}, "retry": fixed(0, 1)});
    api.put("/v1/topics/given-up", &json!({ "on_end": on_end }))
        .must(201);
    let task = api.made(&json!({"topic": "given-up", "delay": "PT1H"}));
    api.verb("complete", &task["id"], &json!({"result": 7}))
        .must(200);
    let told = wait_callback(&api, &task["id"], "dead");
    assert_eq!(told["state"], "succeeded", "that stands");
    assert_eq!(
        told["callback"]["last_outcome"]["error"]["code"],
        "http_500"
    );
    let dead = api
        .get("/v1/tasks?topic=given-up.on_end&state=dead")
        .must(200);
    assert_eq!(dead["items"][0]["id"], told["callback"]["task"]);
    api.verb("replay", &told["callback"]["task"], &json!({}))
        .must(200);
    wait_callback(&api, &task["id"], "succeeded");
    assert_eq!(receiver.hits("/given-up").len(), 2);
}

#[test]
fn a_dead_task_is_told_of_and_again_when_it_is_replayed() {
    let (api, receiver) = (service(), Receiver::start());
    let work = receiver.on("/fails", &[status(500), status(200)]);
    let told = receiver.on("/of-each", &[status(200)]);
    let task = api.made(&json!({
        "topic": "of-each", "action": push(&work), "retry": fixed(0, 1), "on_end": told_to(&told),
    }));
    receiver.wait("/of-each", 1);
    api.verb("replay", &task["id"], &json!({})).must(200);
    let hits = receiver.wait("/of-each", 2);
    let ends: Vec<_> = hits
        .iter()
        .map(|hit| (&hit.body["generation"], &hit.body["state"]))
        .collect();
    assert_eq!(
        ends,
        [
            (&json!(1), &json!("dead")),
            (&json!(2), &json!("succeeded"))
        ]
    );
    assert_eq!(hits[0].body["dead_reason"], "attempts_used_up");
    assert_ne!(hits[0].header("webhook-id"), hits[1].header("webhook-id"));
}

#[test]
fn what_is_owed_is_told_after_a_kill_between_the_end_and_the_post() {
    let receiver = Receiver::start();
    let url = receiver.on("/after", &[status(200)]);
    let mut api = Service::start();
    // Its topic is held, so that the kill comes before the post.
    api.post("/v1/topics/killed.on_end/pause", &json!({}))
        .must(200);
    let ids: Vec<String> = (0..20)
        .map(|n| {
            let task =
                api.made(&json!({"topic": "killed", "delay": "PT1H", "on_end": told_to(&url)}));
            let verb = ["cancel", "complete", "fail"][n % 3];
            let body = match verb {
                "fail" => json!({"error": {"code": "no", "message": "no"}}),
                _ => json!({}),
            };
            api.verb(verb, &task["id"], &body).must(200);
            task["id"].as_str().expect("an id").to_owned()
        })
        .collect();
    api.kill();
    assert_eq!(receiver.hits("/after").len(), 0);
    api.start_again();
    api.post("/v1/topics/killed.on_end/resume", &json!({}))
        .must(200);
    let hits = receiver.wait("/after", ids.len());
    let mut told: Vec<String> = hits.iter().map(Hit::id).collect();
    told.sort();
    let mut ids = ids;
    ids.sort();
    assert_eq!(told, ids, "each once");
}
