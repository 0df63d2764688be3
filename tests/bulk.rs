//! Bulk jobs over HTTP, on the real binary: one verb for many tasks, also through a crash. Case 20 from the field, for
//! many dead letters at once.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use support::client::Client;
use support::receiver::{Answer, Receiver, ok};
use support::service::{Service, Shared};
use support::{fixed, push, until};

static SHARED: Shared = Shared::new();

/// Longest wait for a job, on a busy machine.
const THROUGH: Duration = Duration::from_secs(60);

fn begun(api: &Client, body: &Value) -> Value {
    api.post("/v1/bulk", body).must(202)["id"].clone()
}

fn job(api: &Client, id: &Value) -> Value {
    let id = id.as_str().expect("an id");
    api.get(&format!("/v1/bulk/{id}")).must(200)
}

/// Waits until the job stands so.
fn in_state(api: &Client, id: &Value, state: &str) -> Value {
    until(&format!("job {state}"), THROUGH, || {
        let job = job(api, id);
        (job["state"] == state).then_some(job)
    })
}

/// So many tasks, due from in an hour on.
fn waiting(api: &Client, topic: &str, count: u64) -> Vec<Value> {
    let task =
        |n| json!({"topic": topic, "key": format!("k{n:05}"), "delay": format!("PT{}S", 3600 + n)});
    let items: Vec<Value> = (0..count).map(task).collect();
    api.made_many(&items)
}

#[test]
fn case_20_fifty_dead_letters_are_replayed_by_one_job_each_once_with_a_fresh_budget() {
    let (api, receiver) = (SHARED.service(), Receiver::start());
    let url = receiver.on("/case20", &[Answer::Silence]);
    let task = |n: u64| {
        json!({"topic": "bulk.case20", "key": format!("k{n}"), "action": push(&url), "retry": fixed(10, 2),
               "timeouts": {"attempt": "PT0.2S", "grace": "PT0S"}})
    };
    let items: Vec<Value> = (0..50).map(task).collect();
    let tasks = api.made_many(&items);
    for task in &tasks {
        api.wait_state(&task["id"], "dead");
    }
    let before = receiver.hits("/case20").len();
    assert_eq!(before, 100);
    receiver.on("/case20", &[ok(&json!({"back": 1}))]);
    let replay = json!({"action": "replay", "filter": {"topic": "bulk.case20"}, "rate": 1000});
    let id = begun(&api, &replay);
    let done = in_state(&api, &id, "done");
    assert_eq!(
        (&done["counts"]["matched"], &done["counts"]["done"]),
        (&json!(50), &json!(50))
    );
    for task in &tasks {
        let back = api.wait_state(&task["id"], "succeeded");
        assert_eq!(
            (&back["generation"], &back["attempts"]),
            (&json!(2), &json!(1))
        );
        let attempts = api.attempts(&task["id"]);
        let numbers: Vec<&Value> = attempts.iter().map(|attempt| &attempt["attempt"]).collect();
        assert_eq!(numbers, [&json!(1), &json!(2), &json!(3)]);
    }
    assert_eq!(receiver.hits("/case20").len(), 150);
    // None is dead any more.
    let id = begun(&api, &replay);
    assert_eq!(in_state(&api, &id, "done")["counts"]["matched"], 0);
}

#[test]
fn a_filter_that_takes_in_everything_is_refused() {
    let api = SHARED.service();
    let empty = (422, "empty_filter".to_owned());
    for body in [
        json!({"action": "cancel"}),
        json!({"action": "cancel", "filter": {}}),
    ] {
        assert_eq!(api.post("/v1/bulk", &body).problem(), empty);
    }
    let wrong = api.post(
        "/v1/bulk",
        &json!({"action": "cancel", "filter": {"hue": "red"}}),
    );
    assert_eq!(wrong.json()["errors"][0]["pointer"], "/filter/hue");
    let gone = (404, "not_found".to_owned());
    for id in ["0123456789abcdef", "nobody"] {
        assert_eq!(api.get(&format!("/v1/bulk/{id}")).problem(), gone);
    }
}

#[test]
fn a_dry_run_changes_nothing_and_the_same_key_begins_one_job() {
    let api = SHARED.service();
    let tasks = waiting(&api, "bulk.dry", 30);
    let body = json!({"action": "cancel", "filter": {"topic": "bulk.dry"}, "dry_run": true});
    let first = api.post_once("/v1/bulk", "bulk-dry", &body).must(202);
    let again = api.post_once("/v1/bulk", "bulk-dry", &body).must(202);
    assert_eq!(first["id"], again["id"]);
    let done = in_state(&api, &first["id"], "done");
    assert_eq!(done["counts"]["done"], 30);
    assert_eq!(done["sample"].as_array().map(Vec::len), Some(20));
    for task in &tasks {
        assert_eq!(api.task(&task["id"])["updated_at"], task["updated_at"]);
    }
    let id = first["id"].as_str().expect("an id");
    let undo = api.post(&format!("/v1/bulk/{id}/undo"), &json!({}));
    assert_eq!(undo.problem(), (409, "not_undoable".to_owned()));
}

#[test]
fn a_job_is_held_goes_on_is_ended_and_taken_back() {
    let api = SHARED.service();
    waiting(&api, "bulk.hold", 200);
    let id = begun(
        &api,
        &json!({"action": "pause", "filter": {"topic": "bulk.hold"}, "rate": 40}),
    );
    let path = |verb: &str| format!("/v1/bulk/{}/{verb}", id.as_str().expect("an id"));
    let held = api.post(&path("pause"), &json!({})).must(200);
    assert_eq!(held["state"], "paused");
    api.post(&path("resume"), &json!({})).must(200);
    until("some are done", THROUGH, || {
        (job(&api, &id)["counts"]["done"] != 0).then_some(())
    });
    let stopped = api.post(&path("stop"), &json!({})).must(200);
    let done = stopped["counts"]["done"].as_u64().expect("a count");
    assert!(done < 200, "{stopped}");
    let refused = api.post(&path("resume"), &json!({}));
    assert_eq!(refused.problem(), (409, "illegal_state".to_owned()));
    assert_eq!(api.list("topic=bulk.hold&state=paused").len() as u64, done);
    api.post(&path("undo"), &json!({})).must(200);
    let undone = in_state(&api, &id, "undone");
    assert_eq!(undone["counts"]["undone"], done);
    assert!(api.list("topic=bulk.hold&state=paused").is_empty());
    assert_eq!(api.get("/v1/bulk").must(200)["next_cursor"], Value::Null);
}

#[test]
fn killed_in_the_midst_a_job_goes_on_and_moves_no_task_twice() {
    const TASKS: usize = 600;
    let mut service = Service::start();
    let tasks = waiting(&service, "bulk.kill", TASKS as u64);
    let due: HashMap<String, i64> = tasks
        .iter()
        .map(|task| (task["id"].to_string(), support::ms(&task["due_at"])))
        .collect();
    let id = begun(
        &service,
        &json!({"action": "reschedule", "filter": {"topic": "bulk.kill"}, "args": {"extend_by": "PT1H"}, "rate": 400}),
    );
    for part in 1..=3 {
        until("it is under way", THROUGH, || {
            let done = job(&service, &id)["counts"]["done"].as_u64()?;
            (done >= part * 100).then_some(())
        });
        service.kill_and_start();
    }
    let done = in_state(&service, &id, "done");
    assert_eq!(
        (&done["counts"]["matched"], &done["counts"]["done"]),
        (&json!(TASKS), &json!(TASKS))
    );
    let moved = service.list("topic=bulk.kill");
    assert_eq!(moved.len(), TASKS);
    for task in &moved {
        let before = due[&task["id"].to_string()];
        assert_eq!(support::ms(&task["due_at"]), before + 3_600_000, "{task}");
    }
    let hand = json!(format!("bulk:{}", id.as_str().expect("an id")));
    let log = service.get(&format!(
        "/v1/tasks/{}/log",
        moved[0]["id"].as_str().expect("an id")
    ));
    let log = log.must(200);
    let items = log["items"].as_array().expect("a list");
    assert_eq!(items.iter().filter(|line| line["by"] == hand).count(), 1);
}
