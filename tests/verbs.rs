//! What can be done to a task in which state, and to a topic as a whole.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use support::receiver::{Answer, Gate, Receiver, status};
use support::service::{Service, Shared};
use support::{SOON, ms, now_ms, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

// ---------------------------------------------------------------- the table of the contract

const STATES: [&str; 7] = [
    "pending",
    "retrying",
    "running",
    "paused",
    "succeeded",
    "cancelled",
    "dead",
];

/// Statuses by state, in the order of [`STATES`]; the body that goes with the verb.
const TABLE: [(&str, [u16; 7], &str); 10] = [
    (
        "cancel",
        [200, 200, 202, 200, 200, 200, 409],
        r#"{"reason": "paid"}"#,
    ),
    ("pause", [200, 200, 409, 200, 409, 409, 409], "{}"),
    ("resume", [200, 200, 409, 200, 409, 409, 409], "{}"),
    (
        "reschedule",
        [200, 200, 409, 200, 409, 409, 409],
        r#"{"delay": "PT2H"}"#,
    ),
    ("run-now", [200, 200, 409, 409, 409, 409, 409], "{}"),
    (
        "complete",
        [200, 200, 200, 200, 409, 409, 409],
        r#"{"result": 1}"#,
    ),
    (
        "fail",
        [200, 200, 200, 200, 409, 409, 409],
        r#"{"error": {"code": "c", "message": "m"}}"#,
    ),
    ("replay", [409, 409, 409, 409, 409, 409, 200], "{}"),
    (
        "resolve",
        [409, 409, 409, 409, 409, 409, 200],
        r#"{"outcome": "succeeded", "note": "seen"}"#,
    ),
    ("discard", [409, 409, 409, 409, 409, 409, 200], "{}"),
];

/// Where a verb leads to; unchanged when the table does not allow it.
fn state_after(verb: &str, state: &str, status: u16) -> &'static str {
    let same = STATES
        .iter()
        .find(|known| **known == state)
        .expect("a known state");
    match (verb, state) {
        _ if status == 409 => same,
        ("cancel", "succeeded") => "succeeded",
        ("cancel", _) => "cancelled",
        ("pause", _) => "paused",
        ("resume", "retrying") => "retrying",
        ("reschedule", "paused") => "paused",
        ("resume" | "reschedule" | "run-now" | "replay", _) => "pending",
        ("complete" | "resolve", _) => "succeeded",
        ("fail", _) => "dead",
        _ => "gone",
    }
}

/// A pull task of that state, with a key of its own.
fn task_in(api: &Service, topic: &str, state: &str) -> Value {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let key = format!("k{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let due = if ["retrying", "running"].contains(&state) {
        "PT0S"
    } else {
        "PT1H"
    };
    let body = json!({
        "topic": topic, "key": key, "delay": due, "retry": {"fixed": "PT1H", "max_attempts": 5},
    });
    let task = api.made(&body);
    let id = &task["id"];
    match state {
        "pending" => {}
        "running" | "retrying" => {
            let leases = api.lease(topic, 1, 5_000, "PT10M");
            assert_eq!(&leases[0]["task"]["id"], id);
            if state == "retrying" {
                let error = json!({"error": {"code": "c", "message": "m"}});
                api.say("fail", &leases[0], error).must(200);
            }
        }
        "paused" => drop(api.verb("pause", id, &json!({})).must(200)),
        "succeeded" => drop(api.verb("complete", id, &json!({})).must(200)),
        "cancelled" => drop(api.verb("cancel", id, &json!({})).must(200)),
        _ => drop(
            api.verb("fail", id, &json!({"error": {"code": "c", "message": "m"}}))
                .must(200),
        ),
    }
    let task = api.task(id);
    assert_eq!(task["state"], state);
    task
}

fn try_the_table(topic: &str, by_key: bool) {
    let api = service();
    for (verb, statuses, body) in TABLE {
        let body: Value = serde_json::from_str(body).expect("JSON");
        for (state, status) in STATES.into_iter().zip(statuses) {
            let case = format!("{verb} of a task that is {state}");
            let task = task_in(&api, topic, state);
            let (reply, status) = if by_key {
                let key = task["key"].as_str().expect("it has a key");
                let reply = api.verb_by_key(verb, topic, key, &body);
                // By key one speaks of what is live: a cancel that finds only a finished task came too late.
                (
                    reply,
                    if (verb, state) == ("cancel", "succeeded") {
                        409
                    } else {
                        status
                    },
                )
            } else {
                (api.verb(verb, &task["id"], &body), status)
            };
            assert_eq!(reply.status, status, "{case}: {}", reply.text());
            let after = state_after(verb, state, status);
            if status == 409 {
                assert_eq!(reply.problem().1, "illegal_state", "{case}");
                assert_eq!(
                    reply.json()["state"],
                    state,
                    "{case}: the refusal names the state"
                );
            } else if after != "gone" {
                let slim = reply.json();
                assert_eq!(
                    (&slim["id"], &slim["state"]),
                    (&task["id"], &json!(after)),
                    "{case}"
                );
                for field in ["due_at", "generation", "updated_at"] {
                    assert!(!slim[field].is_null(), "{case}: {field}");
                }
                assert!(
                    slim["payload"].is_null() && slim["retry"].is_null(),
                    "{case}: the slim task"
                );
            }
            if after == "gone" {
                assert_eq!(reply.status, 200, "{case}");
                let path = format!("/v1/tasks/{}", task["id"].as_str().expect("an id"));
                assert_eq!(
                    api.get(&path).problem(),
                    (404, "not_found".to_owned()),
                    "{case}"
                );
            } else {
                assert_eq!(api.task(&task["id"])["state"], after, "{case}");
                // So that the next case leases its own task.
                api.verb("cancel", &task["id"], &json!({}));
            }
        }
    }
}

#[test]
fn every_verb_by_id_does_in_every_state_what_the_table_says() {
    try_the_table("table.id", false);
}

#[test]
fn every_verb_by_key_does_in_every_state_what_the_table_says() {
    try_the_table("table.key", true);
}

#[test]
fn a_verb_answers_the_whole_task_when_asked_to() {
    let api = service();
    let task = task_in(&api, "whole", "pending");
    let path = format!("/v1/tasks/{}/pause", task["id"].as_str().expect("an id"));
    let whole = api
        .post(&format!("{path}?return=task"), &json!({}))
        .must(200);
    assert_eq!(
        (&whole["topic"], &whole["retry"]),
        (&task["topic"], &task["retry"])
    );
    assert_eq!(
        api.post(&format!("{path}?return=half"), &json!({})).status,
        422
    );
    assert_eq!(
        api.verb(
            "pause",
            &json!("01a22c2d-38ae-7a92-a512-4288b3290db5"),
            &json!({})
        )
        .status,
        404
    );
}

// ---------------------------------------------------------------- what verbs do

#[test]
fn a_cancelled_push_is_stopped_and_its_late_answer_changes_nothing() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on(
        "/stopped",
        &[Answer::Later(Duration::from_secs(2), 200, "1".to_owned())],
    );
    let task = api.made(&json!({"topic": "stopped", "key": "a", "action": push(&url)}));
    receiver.wait("/stopped", 1);
    let cancelled = api.verb("cancel", &task["id"], &json!({"reason": "paid"}));
    assert_eq!(cancelled.must(202)["state"], "cancelled");
    let hits = receiver.wait_until("the connection is closed", "/stopped", |hits| {
        hits[0].hung_up.is_some()
    });
    let open = hits[0].hung_up.map(|closed| closed - hits[0].at);
    assert!(open < Some(Duration::from_secs(2)), "{open:?}");
    let task = api.task(&task["id"]);
    assert_eq!(
        (&task["state"], &task["result"]),
        (&json!("cancelled"), &Value::Null)
    );
    api.made(&json!({"topic": "stopped", "key": "a", "delay": "PT1H", "action": {"none": {}}}));
}

#[test]
fn a_task_completed_from_outside_is_not_delivered_and_a_running_one_is_stopped() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/outside", &[Answer::Silence]);
    let early = api.made(&json!({"topic": "outside", "delay": "PT0.3S", "action": push(&url)}));
    let done = api
        .verb("complete", &early["id"], &json!({"result": {"paid": true}}))
        .must(200);
    assert_eq!(
        (&done["state"], &done["result"]),
        (&json!("succeeded"), &json!({"paid": true}))
    );

    let running = api.made(&json!({"topic": "outside", "delay": "PT0.4S", "action": push(&url)}));
    let hits = receiver.wait("/outside", 1);
    assert_eq!(
        hits[0].body["id"], running["id"],
        "the first was due before, and did not come"
    );
    let stale = api.verb(
        "complete",
        &running["id"],
        &json!({"result": 1, "token": 77}),
    );
    assert_eq!(stale.problem(), (409, "stale_token".to_owned()));
    api.verb(
        "complete",
        &running["id"],
        &json!({"result": 2, "token": hits[0].body["token"]}),
    )
    .must(200);
    receiver.wait_until("the connection is closed", "/outside", |hits| {
        hits[0].hung_up.is_some()
    });
    assert_eq!(api.task(&running["id"])["result"], 2);
    assert_eq!(receiver.hits("/outside").len(), 1);
}

#[test]
fn run_now_delivers_now_and_reschedule_moves_by_time_length_and_extension() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/soon", &[status(200)]);
    let task = api.made(&json!({"topic": "soon", "delay": "PT1H", "action": push(&url)}));
    let id = &task["id"];
    let moved = |body: Value| ms(&api.verb("reschedule", id, &body).must(200)["due_at"]);
    let before = now_ms();
    let due = moved(json!({"delay": "PT2H"}));
    assert!((before + 7_200_000..now_ms() + 7_200_001).contains(&due));
    assert_eq!(moved(json!({"extend_by": "PT10M"})), due + 600_000);
    assert_eq!(
        moved(json!({"due_at": "2027-06-01T12:00:00+01:00"})),
        ms(&json!("2027-06-01T11:00:00.000Z"))
    );
    for wrong in [
        json!({}),
        json!({"delay": "PT1H", "extend_by": "PT1H"}),
        json!({"due_at": "2027-06-01T12:00:00"}),
    ] {
        assert_eq!(api.verb("reschedule", id, &wrong).status, 422, "{wrong}");
    }
    api.verb("run-now", id, &json!({})).must(200);
    receiver.wait("/soon", 1);
    api.wait_state(id, "succeeded");
}

#[test]
fn the_log_says_when_from_to_by_whom_and_why() {
    let api = service();
    let task = task_in(&api, "logged", "pending");
    api.verb("pause", &task["id"], &json!({})).must(200);
    api.verb(
        "cancel",
        &task["id"],
        &json!({"reason": "the order was paid"}),
    )
    .must(200);
    let path = format!("/v1/tasks/{}/log", task["id"].as_str().expect("an id"));
    let log = api.get(&path).must(200);
    let steps: Vec<(&Value, &Value)> = log["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|change| (&change["from"], &change["to"]))
        .collect();
    let (pending, paused, cancelled) = (json!("pending"), json!("paused"), json!("cancelled"));
    assert_eq!(
        steps,
        [
            (&Value::Null, &pending),
            (&pending, &paused),
            (&paused, &cancelled)
        ]
    );
    let last = &log["items"][2];
    assert_eq!(last["by"], "api");
    assert!(
        last["why"]
            .as_str()
            .is_some_and(|why| why.contains("the order was paid")),
        "{last}"
    );
    assert!(ms(&last["at"]) >= ms(&task["created_at"]));
}

// ---------------------------------------------------------------- pauses

#[test]
fn a_paused_task_keeps_its_due_time_or_the_time_it_had_left() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/paused", &[status(200)]);
    let make = |key: &str| {
        let body = json!({"topic": "paused", "key": key, "delay": "PT0.5S", "action": push(&url)});
        api.made(&body)
    };
    let (kept, frozen) = (make("keep"), make("freeze"));
    let paused_from = now_ms();
    api.verb("pause", &kept["id"], &json!({"clock": "keep"}))
        .must(200);
    api.verb("pause", &frozen["id"], &json!({"clock": "freeze"}))
        .must(200);
    let paused_to = now_ms();
    until("the due time is past", SOON, || {
        (api.task(&kept["id"])["remaining_ms"] == 0).then_some(())
    });
    assert_eq!(
        (
            api.task(&kept["id"])["state"].as_str(),
            receiver.hits("/paused").len()
        ),
        (Some("paused"), 0)
    );

    api.verb("resume", &kept["id"], &json!({})).must(200);
    assert_eq!(receiver.wait("/paused", 1)[0].body["key"], "keep");
    assert_eq!(api.task(&kept["id"])["due_at"], kept["due_at"]);
    let resumed_from = now_ms();
    let thawed = api.verb("resume", &frozen["id"], &json!({})).must(200);
    let moved = ms(&thawed["due_at"]) - ms(&frozen["due_at"]);
    let held = resumed_from - paused_to..=now_ms() - paused_from + 1;
    assert!(
        held.contains(&moved),
        "moved by {moved} ms, held for {held:?}"
    );
    let hit = receiver.wait("/paused", 2).remove(1);
    assert!(hit.at_ms >= ms(&thawed["due_at"]));
}

/// Case 29, with lengths of tenths of a second instead of tens of seconds; the service is killed while it is held.
fn hold_a_topic(topic: &str, clock: &str) {
    let (mut api, receiver) = (Service::start(), Receiver::start());
    let url = receiver.on("/held", &[status(200)]);
    let make = |api: &Service, delay: &str| {
        let body = json!({"topic": topic, "delay": delay, "action": push(&url)});
        api.made(&body)
    };
    let made: Vec<Value> = ["PT0.5S", "PT1S", "PT1.5S"]
        .iter()
        .map(|delay| make(&api, delay))
        .collect();
    let pause = format!("/v1/topics/{topic}/pause");
    let paused_from = now_ms();
    let paused = api.post(&pause, &json!({"clock": clock})).must(200);
    let paused_to = now_ms();
    assert_eq!(paused["paused"]["clock"], clock);
    api.kill_and_start();
    let now = make(&api, "PT0S");
    until("all are past their due times", SOON, || {
        let all: Vec<Value> = made
            .iter()
            .chain([&now])
            .map(|task| api.task(&task["id"]))
            .collect();
        let held = |task: &Value| task["remaining_ms"] == 0 && task["blocked_by"] == "topic_paused";
        all.iter().all(held).then_some(())
    });
    // A task of another topic that became due after them is delivered: theirs would have been, too.
    let other = receiver.on("/other", &[status(200)]);
    api.made(&json!({"topic": "free", "action": push(&other)}));
    receiver.wait("/other", 1);
    assert_eq!(receiver.hits("/held").len(), 0, "nothing of it starts");

    let resumed_from = now_ms();
    api.post(&format!("/v1/topics/{topic}/resume"), &json!({}))
        .must(200);
    let held = resumed_from - paused_to..=now_ms() - paused_from + 1;
    let after: Vec<Value> = made.iter().map(|task| api.task(&task["id"])).collect();
    for (before, after) in made.iter().zip(&after) {
        let moved = ms(&after["due_at"]) - ms(&before["due_at"]);
        if clock == "keep" {
            assert_eq!(moved, 0);
        } else {
            assert!(
                held.contains(&moved),
                "moved by {moved} ms, held for {held:?}"
            );
        }
    }
    let hits = receiver.wait_tasks("/held", 4);
    for (task, n) in after.iter().zip(1..) {
        let hit = hits
            .iter()
            .find(|hit| hit.body["id"] == task["id"])
            .expect("it came");
        assert!(hit.at_ms >= ms(&task["due_at"]), "task {n}");
        assert!(
            clock == "freeze" || hit.at_ms - resumed_from < 2_000,
            "task {n} was overdue"
        );
    }
    for task in api.list(&format!("topic={topic}")) {
        let done = api.wait_state(&task["id"], "succeeded");
        assert_eq!(done["attempts"], 1);
    }
    assert_eq!(receiver.hits("/held").len(), 4, "each once");
}

#[test]
fn case_29_a_topic_held_with_clock_keep_delivers_all_that_is_overdue_at_its_resume() {
    hold_a_topic("case29.keep", "keep");
}

#[test]
fn case_29_a_topic_held_with_clock_freeze_delivers_after_the_time_that_was_left() {
    hold_a_topic("case29.freeze", "freeze");
}

#[test]
fn a_held_topic_gives_no_leases_and_its_waiting_worker_gets_them_at_the_resume() {
    let api = service();
    api.post("/v1/topics/held.pull/pause", &json!({})).must(200);
    let task = api.made(&json!({"topic": "held.pull"}));
    until("it is held back", SOON, || {
        (api.task(&task["id"])["blocked_by"] == "topic_paused").then_some(())
    });
    assert!(api.lease("held.pull", 1, 0, "PT10S").is_empty());
    let leases = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| api.lease("held.pull", 1, 20_000, "PT10S"));
        until("the worker waits", SOON, || {
            let stats = api.get("/v1/stats").must(200);
            (stats["totals"]["waiting_workers"].as_u64() >= Some(1)).then_some(())
        });
        api.post("/v1/topics/held.pull/resume", &json!({}))
            .must(200);
        waiting.join().expect("its leases")
    });
    assert_eq!(leases[0]["task"]["id"], task["id"]);
}

#[test]
fn a_topics_settings_are_defaults_that_can_be_read_changed_and_forgotten() {
    let (mut api, receiver) = (Service::start(), Receiver::start());
    let url = receiver.on("/default", &[status(500), status(200)]);
    let settings = json!({
        "action": push(&url), "retry": {"fixed": "PT0.05S", "max_attempts": 2}, "timeouts": {"attempt": "PT7S"},
        "retention": {"succeeded": "P1D"}, "class": "core",
    });
    assert_eq!(
        api.get("/v1/topics/defaults").problem(),
        (404, "not_found".to_owned())
    );
    let first = api.put("/v1/topics/defaults", &settings).must(201);
    assert_eq!(
        (&first["version"], &first["retry"]["max_attempts"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(
        api.put("/v1/topics/defaults", &settings).must(200)["version"],
        2
    );
    api.kill_and_start();
    assert_eq!(
        api.get("/v1/topics/defaults").must(200)["timeouts"]["attempt"],
        "PT7S"
    );
    assert_eq!(
        api.get("/v1/topics").must(200)["items"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );

    let task = api.made(&json!({"topic": "defaults", "timeouts": {"grace": "PT1S"}}));
    assert_eq!(
        (&task["timeouts"]["attempt"], &task["timeouts"]["grace"]),
        (&json!("PT7S"), &json!("PT1S"))
    );
    assert_eq!(
        (&task["class"], &task["retry"]["fixed"]),
        (&json!("core"), &json!("PT0.05S"))
    );
    api.wait_state(&task["id"], "succeeded");
    assert_eq!(receiver.hits("/default").len(), 2);

    let path = "/v1/topics/defaults";
    assert_eq!(
        api.json("DELETE", path, &[], &json!({}))
            .map(|reply| reply.status)
            .ok(),
        Some(200)
    );
    assert_eq!(api.get(path).status, 404);
    assert_eq!(
        api.made(&json!({"topic": "defaults", "delay": "PT1H"}))["action"],
        json!({"pull": {}})
    );
}

#[test]
fn a_topic_in_use_is_not_deleted_and_the_user_is_named() {
    let api = service();
    let path = "/v1/topics/used";
    let delete = || {
        api.json("DELETE", path, &[], &json!({}))
            .expect("an answer")
    };
    let refused = |user: &str| {
        let problem = delete().must(409);
        assert_eq!(problem["code"], "in_use");
        let detail = problem["detail"].as_str().expect("a text");
        assert!(detail.contains(user), "{detail}");
    };
    api.put(path, &json!({"class": "core"})).must(201);
    let task = api.made(&json!({"topic": "used", "delay": "PT1H"}));
    refused("1 live task");
    api.post(&format!("{path}/pause"), &json!({})).must(200);
    api.verb("cancel", &task["id"], &json!({})).must(200);
    refused("its pause");
    api.post(&format!("{path}/resume"), &json!({})).must(200);
    delete().must(200);
    delete().must(404);
}

#[test]
fn a_topic_whose_body_is_too_long_is_refused_as_a_whole() {
    let api = service();
    let body = format!("{{{}}}", " ".repeat(16 * 1024));
    let json = [("content-type", "application/json")];
    let sent = api.send("PUT", "/v1/topics/long", &json, body.as_bytes());
    let problem = sent.expect("an answer").must(422);
    assert_eq!(problem["errors"][0]["pointer"], "");
    assert_eq!(
        problem["detail"],
        "the body has 16386 bytes, at most 16384 are allowed"
    );
    assert_eq!(api.get("/v1/topics/long").status, 404);
}

#[test]
fn an_ended_task_goes_when_its_retention_is_over() {
    let api = service();
    api.put(
        "/v1/topics/short",
        &json!({"retention": {"succeeded": "PT0.3S", "cancelled": "PT0.3S"}}),
    )
    .must(201);
    let done = task_in(&api, "short", "succeeded");
    let dead = task_in(&api, "short", "dead");
    let path = format!("/v1/tasks/{}", done["id"].as_str().expect("an id"));
    until("it is gone", SOON, || {
        (api.get(&path).status == 404).then_some(())
    });
    assert_eq!(
        api.task(&dead["id"])["state"],
        "dead",
        "another state, another retention"
    );
}

#[test]
fn a_long_request_does_not_hold_the_others_up() {
    let (api, receiver, gate) = (service(), Receiver::start(), Gate::default());
    let url = receiver.on("/held-up", &[Answer::Held(gate.clone())]);
    for _ in 0..20 {
        api.made(&json!({"topic": "held-up", "action": push(&url)}));
    }
    receiver.wait("/held-up", 20);
    let free = receiver.on("/not-held-up", &[status(200)]);
    api.made(&json!({"topic": "not-held-up", "action": push(&free)}));
    receiver.wait("/not-held-up", 1);
    gate.open();
}
