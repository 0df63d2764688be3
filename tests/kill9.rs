//! Whatever was acknowledged survives SIGKILL at any moment, fires when due, and no attempt starts twice.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

use support::receiver::{Receiver, assert_sound, by_task, status};
use support::service::Service;
use support::{Random, fixed, length, ms, now_ms, pass, push, until};

/// At least so many tasks are acknowledged …
const TASKS: usize = 1000;
/// … while the process is killed so often.
const KILLS: usize = 20;

#[expect(
    clippy::print_stderr,
    reason = "a failure can only be repeated with its seed"
)]
fn random() -> Random {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| now_ms().unsigned_abs());
    eprintln!("SEED={seed}");
    Random::new(seed)
}

#[test]
fn every_acknowledged_task_outlives_twenty_kills_and_fires_once_it_is_due() {
    let mut random = random();
    let (mut api, receiver) = (Service::start(), Receiver::start());
    let url = receiver.on("/fire", &[status(200)]);
    let acknowledged: Mutex<HashMap<String, i64>> = Mutex::new(HashMap::new());
    let next = AtomicU64::new(0);

    for kill in 0..KILLS {
        let before: HashSet<String> = acknowledged.lock().keys().cloned().collect();
        let goal = TASKS * (kill + 1) / KILLS;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let client = *api;
                let (url, acknowledged, next) = (&url, &acknowledged, &next);
                // Each goes on until the process is gone from under it.
                scope.spawn(move || {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        let due_in = if n.is_multiple_of(2) { n % 900 } else { 1_000 + n * 7 % 5_000 };
                        let body = json!({
                            "topic": "kill", "key": format!("k{n}"), "delay": length(due_in), "action": push(url),
                            "payload": {"n": n, "pad": "x".repeat(n as usize % 700)}, "retry": fixed(100, 50),
                        });
                        let Ok(reply) = client.json("POST", "/v1/tasks", &[], &body) else { return };
                        let task = reply.must(201);
                        let id = task["id"].as_str().expect("an id").to_owned();
                        acknowledged.lock().insert(id, ms(&task["due_at"]));
                    }
                });
            }
            until("enough is acknowledged", support::SOON, || {
                (acknowledged.lock().len() >= goal).then_some(())
            });
            // At any moment of whatever it does then.
            pass(Duration::from_micros(random.below(100_000)));
            api.kill();
        });
        api.start_again();
        for (id, due) in acknowledged
            .lock()
            .iter()
            .filter(|(id, _)| !before.contains(*id))
        {
            let reply = api.get(&format!("/v1/tasks/{id}"));
            assert_eq!(
                reply.status, 200,
                "kill {kill}: {id} was acknowledged and is gone"
            );
            assert_eq!(ms(&reply.json()["due_at"]), *due);
        }
    }

    let due = acknowledged.into_inner();
    assert!(due.len() >= TASKS);
    let all_came = |hits: &[_]| {
        let came = by_task(hits);
        due.keys().all(|id| came.contains_key(id))
    };
    receiver.wait_until("every acknowledged task fires", "/fire", all_came);
    // Tasks whose answer was lost may be there, too; they are as good as the others.
    let all = api.list("topic=kill&limit=1000");
    assert!(all.len() >= due.len());
    for task in &all {
        let done = api.wait_state(&task["id"], "succeeded");
        assert_eq!(done["generation"], 1);
    }
    let hits = receiver.hits("/fire");
    assert_eq!(by_task(&hits).len(), all.len());
    assert_sound(&hits, &due);
    for hit in &hits {
        let payload = &hit.body["payload"];
        let whole = payload["n"].as_u64().map(|n| "x".repeat(n as usize % 700));
        assert_eq!(
            payload["pad"].as_str(),
            whole.as_deref(),
            "payloads are whole"
        );
    }
}

#[test]
fn what_was_done_to_a_task_before_a_kill_stays_done() {
    let (mut api, receiver) = (Service::start(), Receiver::start());
    let url = receiver.on("/undone", &[status(200)]);
    let make = |key: &str, delay: &str| {
        let body = json!({"topic": "stays", "key": key, "delay": delay, "action": push(&url)});
        api.made(&body)
    };
    let (cancelled, paused) = (make("cancelled", "PT0.8S"), make("paused", "PT0.8S"));
    let (completed, moved) = (make("completed", "PT0.8S"), make("moved", "PT0.8S"));
    let due = make("due", "PT1S");
    api.verb("cancel", &cancelled["id"], &json!({})).must(200);
    api.verb("pause", &paused["id"], &json!({})).must(200);
    api.verb(
        "complete",
        &completed["id"],
        &json!({"result": {"paid": true}}),
    )
    .must(200);
    let due_at = api
        .verb("reschedule", &moved["id"], &json!({"delay": "PT1H"}))
        .must(200)["due_at"]
        .clone();
    api.kill_and_start();
    receiver.wait("/undone", 1);
    api.wait_state(&due["id"], "succeeded");
    assert_eq!(
        receiver.hits("/undone").len(),
        1,
        "the others were due before, or are not yet"
    );
    assert_eq!(api.task(&cancelled["id"])["state"], "cancelled");
    assert_eq!(api.task(&paused["id"])["state"], "paused");
    let completed = api.task(&completed["id"]);
    assert_eq!(
        (&completed["state"], &completed["result"]),
        (&json!("succeeded"), &json!({"paid": true}))
    );
    let moved = api.task(&moved["id"]);
    assert_eq!(
        (&moved["state"], &moved["due_at"]),
        (&json!("pending"), &due_at)
    );
}
