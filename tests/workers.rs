//! Workers in a crowd, what they leave for the next attempt, and the clocks of what they hold.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use support::client::Reply;
use support::receiver::{Receiver, ok, status};
use support::service::{Service, Shared, command};
use support::{SOON, ms, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

fn push(url: &str) -> Value {
    json!({"http": {"url": url}})
}

fn leased(api: &Service, topic: &str, lease: &str) -> Value {
    let mut leases = api.lease(topic, 1, 10_000, lease);
    assert_eq!(leases.len(), 1, "{topic}");
    leases.remove(0)
}

fn waiting(api: &Service) -> u64 {
    let stats = api.get("/v1/stats").must(200);
    stats["totals"]["waiting_workers"]
        .as_u64()
        .expect("a number")
}

/// A worker on a connection of its own that has asked for one task, and waits.
fn asks(api: &Service, topic: &str, worker: &str) -> TcpStream {
    let body = json!({"topics": [topic], "wait_ms": 60_000, "lease": "PT1M", "worker": worker});
    let body = body.to_string();
    let mut stream = api.connect().expect("a connection");
    let head = format!(
        "POST /v1/leases HTTP/1.1\r\nhost: duetime\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())
        .expect("it is sent");
    stream
}

#[test]
fn two_thousand_workers_wait_at_a_time_and_each_of_two_thousand_tasks_goes_to_one_of_them() {
    const WORKERS: usize = 2_000;
    let api = Service::start();
    let mut workers = Vec::new();
    // A quarter of them is there before the others come.
    for count in [WORKERS / 4, WORKERS] {
        let more = workers.len()..count;
        workers.extend(more.map(|n| asks(&api, "crowd", &format!("w{n:04}"))));
        until("all of them wait", SOON, || {
            (waiting(&api) == count as u64).then_some(())
        });
    }
    // They cost nothing: the service answers others as ever.
    let begun = Instant::now();
    for n in 0..100 {
        api.made(&json!({"topic": "others", "key": format!("k{n}"), "delay": "PT1H"}));
    }
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );

    // Those who have waited longest are served first.
    let tasks = |range: std::ops::Range<usize>| -> Vec<Value> {
        let task = |n| json!({"topic": "crowd", "key": format!("k{n}")});
        range.map(task).collect()
    };
    api.made_many(&tasks(0..WORKERS / 4));
    let mut served = Vec::new();
    let mut workers = workers.into_iter();
    for mut worker in workers.by_ref().take(WORKERS / 4) {
        served.push(Reply::read(&mut worker).expect("an answer").must(200));
    }
    assert_eq!(waiting(&api), (WORKERS - WORKERS / 4) as u64);
    api.made_many(&tasks(WORKERS / 4..WORKERS));
    for mut worker in workers {
        served.push(Reply::read(&mut worker).expect("an answer").must(200));
    }
    let mut keys: Vec<String> = served
        .iter()
        .map(|answer| {
            let items = answer["items"].as_array().expect("items");
            assert_eq!(items.len(), 1, "one each: {answer}");
            items[0]["task"]["key"].to_string()
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), WORKERS);

    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = api
            .get(&format!("/v1/workers?limit=1000{cursor}"))
            .must(200);
        for worker in page["items"].as_array().expect("items") {
            assert_eq!(
                (&worker["leases"], &worker["waiting"]),
                (&json!(1), &json!(0))
            );
            names.push(worker["name"].as_str().expect("a name").to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names.len(), WORKERS);
    assert!(names.is_sorted());
}

#[test]
fn a_worker_is_listed_with_what_it_asks_for_holds_and_has_come_to() {
    let mut api = Service::start();
    for n in 0..4 {
        api.made(&json!({"topic": "listed", "key": format!("k{n}"), "retry": {"fixed": "PT1H", "max_attempts": 5}}));
    }
    let leases = api.lease("listed", 4, 10_000, "PT10S");
    api.say("complete", &leases[0], json!({})).must(200);
    let error = json!({"error": {"code": "c", "message": "m"}});
    api.say("fail", &leases[1], error).must(200);
    let worker = |api: &Service| {
        let answer = api.get("/v1/workers").must(200);
        let items = answer["items"].as_array().expect("items").clone();
        assert_eq!((items.len(), &answer["next_cursor"]), (1, &Value::Null));
        items[0].clone()
    };
    let seen = worker(&api);
    assert_eq!(
        (&seen["name"], &seen["topics"]),
        (&json!("w1"), &json!(["listed"]))
    );
    assert_eq!(
        [
            &seen["leases"],
            &seen["leased"],
            &seen["completed"],
            &seen["failed"],
            &seen["lost"]
        ],
        [2, 4, 1, 1, 0]
    );
    let held = seen["tasks"].as_array().expect("tasks");
    let ids = [&leases[2]["task"]["id"], &leases[3]["task"]["id"]];
    assert!(
        held.len() == 2 && held.iter().all(|held| ids.contains(&&held["id"])),
        "{seen}"
    );
    assert!(ms(&seen["last_seen_at"]) >= ms(&seen["since"]));

    let list = command(&[
        "worker",
        "list",
        "--url",
        &format!("http://{}", api.address),
    ])
    .output()
    .expect("it runs");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("COMPLETED") && list.contains("w1"), "{list}");

    // What it holds is known after a crash, too.
    api.kill_and_start();
    assert_eq!(worker(&api)["leases"], 2);
    assert_eq!(api.get("/v1/workers?limit=0").status, 422);
}

#[test]
fn a_checkpoint_outlives_the_process_and_comes_with_the_next_lease() {
    let mut api = Service::start();
    let task = api.made(&json!({"topic": "pages", "retry": {"fixed": "PT0S", "max_attempts": 3}}));
    let first = leased(&api, "pages", "PT0.3S");
    assert_eq!(
        (&first["checkpoint"], &first["lease"]),
        (&Value::Null, &json!("PT0.3S"))
    );
    let at = |page: u32| json!({"checkpoint": {"page": page}});
    for page in 1..=7 {
        api.say("heartbeat", &first, at(page)).must(200);
    }
    api.kill_and_start();
    assert_eq!(api.task(&task["id"])["checkpoint"], json!({"page": 7}));
    let second = leased(&api, "pages", "PT10S");
    assert_eq!(
        (&second["checkpoint"], &second["attempt"]),
        (&json!({"page": 7}), &json!(2))
    );
    assert_eq!(second["task"]["checkpoint"], json!({"page": 7}));
    assert_eq!(
        api.say("heartbeat", &first, at(9)).status,
        409,
        "it is not the first's any more"
    );
    let large = json!({"checkpoint": "x".repeat(16 * 1024)});
    let refused = api.say("heartbeat", &second, large);
    assert_eq!(
        (
            refused.status,
            refused.json()["errors"][0]["pointer"].clone()
        ),
        (422, json!("/checkpoint"))
    );
    api.say("complete", &second, json!({})).must(200);
}

#[test]
fn a_checkpoint_that_a_receiver_gives_is_in_the_body_of_the_next_push() {
    let (api, receiver) = (service(), Receiver::start());
    let later = |name: &str| {
        let url = receiver.on(name, &[status(202), status(200)]);
        json!({"http": {"url": url, "complete_by": "PT0.5S"}})
    };
    let task = api.made(&json!({"topic": "pushed", "action": later("/later"), "retry": {"fixed": "PT0S", "max_attempts": 2}}));
    let hit = receiver.wait("/later", 1).remove(0);
    let url = hit.body["complete_url"].as_str().expect("a URL").to_owned();
    let path = &url[url.find("/v1/").expect("a path")..];
    until("the receiver has it", SOON, || {
        (api.task(&task["id"])["state"] == "running").then_some(())
    });
    let said = api.post(path, &json!({"heartbeat": true, "checkpoint": [1, 2]}));
    assert_eq!(said.status, 200, "{}", said.text());
    api.wait_state(&task["id"], "succeeded");
    let bodies: Vec<Value> = receiver
        .hits("/later")
        .iter()
        .map(|hit| hit.body.clone())
        .collect();
    assert_eq!(
        (&bodies[0]["checkpoint"], &bodies[1]["checkpoint"]),
        (&Value::Null, &json!([1, 2]))
    );
}

#[test]
fn a_task_that_no_worker_takes_in_time_is_escalated_to_a_push_and_says_so() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/escalated", &[status(500), status(200)]);
    let queue = json!({"after": "PT0.3S", "then": {"escalate": push(&url)}});
    let task = api.made(&json!({
        "topic": "nobody", "retry": {"fixed": "PT0S", "max_attempts": 2}, "timeouts": {"queue": queue}, "payload": 7,
    }));
    assert_eq!(
        task["timeouts"]["queue"]["then"]["escalate"]["http"]["url"],
        json!(url)
    );
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(
        (&done["escalated"], &done["attempts"]),
        (&json!("queue"), &json!(2))
    );
    let hits = receiver.hits("/escalated");
    assert!(hits.iter().all(|hit| hit.body["payload"] == 7));
    assert!(hits[0].at_ms >= ms(&task["due_at"]) + 300);
    let id = hits[0].header("webhook-id").to_owned();
    assert!(id.ends_with("~queue"), "{id}");
    assert!(api.lease("nobody", 1, 0, "PT1S").is_empty());
}

#[test]
fn the_clocks_of_a_topic_hold_for_its_tasks_and_their_ends_are_told_apart() {
    let api = service();
    let settings = json!({
        "timeouts": {"queue": {"after": "PT0.2S", "then": "dead"}, "heartbeat": "PT0.2S"},
        "retry": {"fixed": "PT0S", "max_attempts": 9, "max_lost_leases": 2},
    });
    api.put("/v1/topics/clocked", &settings).must(201);
    let answered = api.get("/v1/topics/clocked").must(200);
    assert_eq!(answered["timeouts"]["queue"], settings["timeouts"]["queue"]);
    let task = api.made(&json!({"topic": "clocked"}));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["dead_reason"], &dead["last_outcome"]["outcome"]),
        (&json!("timed_out"), &json!("queue_timeout"))
    );

    let task = api.made(&json!({"topic": "clocked", "timeouts": {"queue": "PT1H"}}));
    for _ in 0..2 {
        let lease = leased(&api, "clocked", "PT30S");
        assert_eq!(lease["lease"], "PT0.2S", "no longer than its heartbeats");
        until("it is lost", SOON, || {
            (api.task(&task["id"])["state"] != "running").then_some(())
        });
    }
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["attempts"], &dead["dead_reason"]),
        (&json!(2), &json!("lease_expired"))
    );
}

#[test]
fn a_topic_can_say_who_is_asked_whether_it_was_done() {
    let (api, receiver) = (service(), Receiver::start());
    let asked = receiver.on("/was-it-done", &[ok(&json!({"done": true}))]);
    let verify = json!({"http": {"url": asked, "method": "GET"}, "done_if": "body.done"});
    api.put(
        "/v1/topics/verified",
        &json!({"verify": verify, "retry": {"fixed": "PT0S", "max_attempts": 5}}),
    )
    .must(201);
    let task = api.made(&json!({"topic": "verified"}));
    assert_eq!(task["verify"]["done_if"], "body.done");
    leased(&api, "verified", "PT0.2S");
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(done["attempts"], 1);
    assert_eq!(receiver.hits("/was-it-done").len(), 1);
}
