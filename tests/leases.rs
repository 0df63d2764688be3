//! Outside workers: leases, what they say of them, and what they can no longer say.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use support::service::{Service, Shared};
use support::{LATE_MS_MAX, SOON, ms, now_ms, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

fn leased(api: &Service, topic: &str, lease: &str) -> Value {
    let mut leases = api.lease(topic, 1, 10_000, lease);
    assert_eq!(leases.len(), 1, "{topic}");
    leases.remove(0)
}

fn stale() -> (u16, String) {
    (409, "stale_token".to_owned())
}

#[test]
fn a_lease_has_the_task_its_attempt_and_token_and_ends_with_a_result() {
    let api = service();
    let task = api.made(&json!({"topic": "done", "payload": {"n": 1}}));
    let before = now_ms();
    let lease = leased(&api, "done", "PT10S");
    assert_eq!(
        (&lease["task"]["id"], &lease["task"]["payload"]),
        (&task["id"], &json!({"n": 1}))
    );
    assert_eq!(
        (&lease["attempt"], &lease["token"], &lease["task"]["state"]),
        (&json!(1), &json!(1), &json!("running"))
    );
    let expires_at = ms(&lease["expires_at"]);
    assert!((before + 10_000..=now_ms() + 10_001).contains(&expires_at));
    assert!(
        api.lease("done", 1, 0, "PT10S").is_empty(),
        "nobody else gets it"
    );

    assert_eq!(
        api.say("complete", &lease, json!({"result": {"b": 2}}))
            .must(200)["state"],
        "succeeded"
    );
    assert_eq!(api.task(&task["id"])["result"], json!({"b": 2}));
    let attempt = api.attempts(&task["id"]).remove(0);
    assert_eq!(
        (
            &attempt["worker"],
            &attempt["executor"],
            &attempt["outcome"]
        ),
        (&json!("w1"), &json!("pull"), &json!("succeeded"))
    );
    assert_eq!(api.say("complete", &lease, json!({})).problem(), stale());
}

#[test]
fn a_heartbeat_renews_the_lease_for_as_long_as_it_comes() {
    let api = service();
    let task = api.made(&json!({"topic": "alive", "retry": {"fixed": "PT0S", "max_attempts": 2}}));
    let lease = leased(&api, "alive", "PT0.4S");
    let begun = Instant::now();
    // Three times the lease: the passing of real time is the subject.
    while begun.elapsed() < Duration::from_millis(1200) {
        let kept = api.say("heartbeat", &lease, json!({})).must(200);
        assert_eq!(kept["cancelled"], false);
        assert!(ms(&kept["expires_at"]) > now_ms());
        support::pass(Duration::from_millis(50));
        assert!(api.lease("alive", 1, 0, "PT10S").is_empty());
    }
    let beats_end = now_ms();
    let second = leased(&api, "alive", "PT10S");
    assert_eq!(
        (&second["task"]["id"], &second["attempt"]),
        (&task["id"], &json!(2))
    );
    // The last renewal was at most one pause and one look before this.
    let waited = now_ms() - beats_end;
    assert!(
        (250..=400 + LATE_MS_MAX).contains(&waited),
        "{waited} ms after the last heartbeat"
    );
}

#[test]
fn case_24_the_worker_whose_lease_is_over_can_change_nothing() {
    let api = service();
    let task = api.made(&json!({"topic": "case24", "retry": {"fixed": "PT0S", "max_attempts": 5}}));
    let first = leased(&api, "case24", "PT0.2S");
    let second = leased(&api, "case24", "PT10S");
    assert!(second["token"].as_u64() > first["token"].as_u64());
    for (verb, body) in [
        ("heartbeat", json!({})),
        ("complete", json!({"result": "A"})),
        ("fail", json!({"error": {"code": "c", "message": "m"}})),
        ("snooze", json!({"delay": "PT1H"})),
    ] {
        assert_eq!(api.say(verb, &first, body).problem(), stale(), "{verb}");
    }
    assert_eq!(api.task(&task["id"])["state"], "running");
    api.say("complete", &second, json!({"result": "B"}))
        .must(200);
    for (verb, body) in [
        ("complete", json!({"result": "A"})),
        ("heartbeat", json!({})),
        ("fail", json!({"error": {"code": "c", "message": "m"}})),
    ] {
        assert_eq!(api.say(verb, &first, body).problem(), stale(), "{verb}");
    }
    let done = api.task(&task["id"]);
    assert_eq!(
        (&done["result"], &done["attempts"], &done["state"]),
        (&json!("B"), &json!(2), &json!("succeeded"))
    );
}

#[test]
fn a_failed_lease_is_retried_as_the_policy_says_and_for_good_means_dead() {
    let api = service();
    let task = api.made(&json!({"topic": "failed", "retry": {"fixed": "PT1H", "max_attempts": 5}}));
    let error = json!({"error": {"code": "no_stock", "message": "none left"}});
    let lease = leased(&api, "failed", "PT10S");
    assert_eq!(
        api.say("fail", &lease, error.clone()).must(200)["state"],
        "retrying"
    );
    let waits = api.task(&task["id"]);
    assert_eq!(
        (&waits["waiting_for"], &waits["attempts"]),
        (&json!("retry"), &json!(1))
    );
    assert_eq!(
        waits["last_outcome"],
        json!({"outcome": "failed", "error": error["error"]})
    );
    assert!(ms(&waits["next_attempt_at"]) > now_ms() + 3_590_000);

    api.verb("run-now", &task["id"], &json!({})).must(200);
    let lease = leased(&api, "failed", "PT10S");
    let mut for_good = error.clone();
    for_good["retryable"] = json!(false);
    assert_eq!(api.say("fail", &lease, for_good).must(200)["state"], "dead");
    assert_eq!(api.task(&task["id"])["attempts"], 2);

    let task = api.made(&json!({"topic": "failed", "retry": {"fixed": "PT0S", "max_attempts": 5}}));
    let mut later = error;
    later["retry_after"] = json!("PT2H");
    api.say("fail", &leased(&api, "failed", "PT10S"), later)
        .must(200);
    assert!(
        ms(&api.task(&task["id"])["next_attempt_at"]) > now_ms() + 7_190_000,
        "the later of the two"
    );
}

#[test]
fn a_snoozed_task_comes_back_without_having_used_an_attempt() {
    let api = service();
    let task =
        api.made(&json!({"topic": "snoozed", "retry": {"fixed": "PT0S", "max_attempts": 1}}));
    for round in 1..=3 {
        let lease = leased(&api, "snoozed", "PT10S");
        assert_eq!(lease["attempt"], round, "each has a number of its own");
        let asked = now_ms();
        api.say("snooze", &lease, json!({"delay": "PT0.1S"}))
            .must(200);
        let waits = api.task(&task["id"]);
        assert_eq!(
            (&waits["attempts"], &waits["waiting_for"]),
            (&json!(0), &json!("snooze"))
        );
        assert!(ms(&waits["next_attempt_at"]) >= asked + 100);
    }
    api.say("complete", &leased(&api, "snoozed", "PT10S"), json!({}))
        .must(200);
    assert_eq!(api.task(&task["id"])["attempts"], 1);
}

#[test]
fn a_worker_that_waits_gets_a_task_when_it_comes_due_and_nothing_when_none_does() {
    let api = service();
    let begun = Instant::now();
    assert!(api.lease("waiting", 1, 200, "PT10S").is_empty());
    let waited = begun.elapsed();
    assert!(
        (Duration::from_millis(200)..Duration::from_millis(900)).contains(&waited),
        "{waited:?}"
    );

    let task = api.made(&json!({"topic": "waiting", "delay": "PT0.4S"}));
    let lease = leased(&api, "waiting", "PT10S");
    let late = now_ms() - ms(&task["due_at"]);
    assert!(
        (0..=LATE_MS_MAX).contains(&late),
        "{late} ms after it was due"
    );
    assert_eq!(lease["task"]["id"], task["id"]);
    api.say("complete", &lease, json!({})).must(200);
}

#[test]
fn of_many_waiting_workers_each_task_wakes_one() {
    let api = service();
    let mut taken = std::thread::scope(|scope| {
        let ask = || api.lease("shared", 1, 20_000, "PT1M");
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
        until("all six wait", SOON, || {
            let stats = api.get("/v1/stats").must(200);
            (stats["totals"]["waiting_workers"].as_u64() >= Some(6)).then_some(())
        });
        for n in 0..6 {
            api.made(&json!({"topic": "shared", "key": format!("k{n}")}));
        }
        let taken = workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("its leases"));
        taken
            .map(|lease| lease["task"]["key"].to_string())
            .collect::<Vec<_>>()
    });
    taken.sort_unstable();
    assert_eq!(
        taken,
        ["\"k0\"", "\"k1\"", "\"k2\"", "\"k3\"", "\"k4\"", "\"k5\""]
    );
}

#[test]
fn a_lease_request_takes_no_more_than_it_asked_for_and_from_all_its_topics() {
    let api = service();
    let items: Vec<Value> = (0..30)
        .map(|n| json!({"topic": format!("bulk.{}", n % 3), "key": format!("k{n}")}))
        .collect();
    api.made_many(&items);
    let ask = json!({"topics": ["bulk.0", "bulk.1"], "max": 15, "wait_ms": 5000, "lease": "PT1M", "worker": "w1"});
    let mut got = 0;
    until("all of both topics are leased", SOON, || {
        let answer = api.post("/v1/leases", &ask).must(200);
        let items = answer["items"].as_array().expect("items");
        assert!(
            items.len() <= 15 && items.iter().all(|lease| lease["task"]["topic"] != "bulk.2"),
            "{answer}"
        );
        got += items.len();
        (got == 20).then_some(())
    });
    assert_eq!(api.lease("bulk.2", 1000, 5_000, "PT1M").len(), 10);
}

#[test]
fn a_heartbeat_of_a_cancelled_task_says_so_and_all_else_is_refused() {
    let api = service();
    let task = api.made(&json!({"topic": "called-off"}));
    let lease = leased(&api, "called-off", "PT10S");
    assert_eq!(
        api.verb("cancel", &task["id"], &json!({})).must(202)["state"],
        "cancelled"
    );
    assert_eq!(
        api.say("heartbeat", &lease, json!({})).must(200)["cancelled"],
        true
    );
    assert_eq!(
        api.say("complete", &lease, json!({"result": 1})).status,
        409
    );
    assert_eq!(
        api.say(
            "fail",
            &lease,
            json!({"error": {"code": "c", "message": "m"}})
        )
        .status,
        409
    );
    let task = api.task(&task["id"]);
    assert_eq!(
        (&task["state"], &task["result"]),
        (&json!("cancelled"), &Value::Null)
    );
}

#[test]
fn a_lease_outlives_kill_9_of_the_service() {
    let mut api = Service::start();
    let task =
        api.made(&json!({"topic": "survives", "retry": {"fixed": "PT0S", "max_attempts": 3}}));
    let lease = leased(&api, "survives", "PT30S");
    api.kill_and_start();
    assert!(
        api.lease("survives", 1, 0, "PT30S").is_empty(),
        "it is still leased"
    );
    assert_eq!(
        api.say("heartbeat", &lease, json!({})).must(200)["cancelled"],
        false
    );
    api.say("complete", &lease, json!({"result": 1})).must(200);
    let done = api.task(&task["id"]);
    assert_eq!(
        (&done["state"], &done["attempts"]),
        (&json!("succeeded"), &json!(1))
    );
}

/// The whole half minute is in the shard's own tests, on a clock that is moved.
#[test]
fn case_26_a_second_worker_gets_a_task_when_the_heartbeats_of_the_first_stop_and_not_before() {
    let api = service();
    api.made(&json!({"topic": "case26", "retry": {"fixed": "PT0S", "max_attempts": 5}}));
    let first = leased(&api, "case26", "PT1S");
    let begun = Instant::now();
    let mut last_beat = now_ms();
    // The passing of real time is the subject.
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(api.lease("case26", 1, 300, "PT10S").is_empty());
        last_beat = now_ms();
        api.say("heartbeat", &first, json!({})).must(200);
    }
    let task = api.task(&first["task"]["id"]);
    assert_eq!(task["attempts"], 1);
    let second = leased(&api, "case26", "PT10S");
    let waited = now_ms() - last_beat;
    assert_eq!(second["attempt"], 2);
    assert!((1_000..=3_000).contains(&waited), "{waited} ms");
}

/// Watched for ten seconds, and more, in the shard's own tests.
#[test]
fn case_30_a_paused_topic_gives_out_nothing_also_after_a_restart_and_all_of_it_when_it_goes_on() {
    let mut api = Service::start();
    let lost = json!({"topic": "case30", "retry": {"fixed": "PT0S", "max_attempts": 5}});
    let lost = api.made(&lost)["id"].clone();
    leased(&api, "case30", "PT1S");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| api.lease("case30", 9, 1_500, "PT10S"));
        until("a worker waits", SOON, || {
            let stats = api.get("/v1/stats").must(200);
            (stats["totals"]["waiting_workers"].as_u64() >= Some(1)).then_some(())
        });
        api.post("/v1/topics/case30/pause", &json!({})).must(200);
        api.made(&json!({"topic": "case30", "key": "now"}));
        api.made(&json!({"topic": "case30", "key": "soon", "delay": "PT1S"}));
        let leases = waits.join().expect("its leases");
        assert!(leases.is_empty(), "{leases:?}");
    });
    api.kill_and_start();
    assert!(api.lease("case30", 9, 2_000, "PT10S").is_empty());
    let held = api.list("topic=case30");
    assert_eq!(held.len(), 3);
    for task in held {
        assert_eq!(task["blocked_by"], "topic_paused", "{task}");
    }
    assert_eq!(api.task(&lost)["last_outcome"]["outcome"], "lease_expired");
    let resumed = Instant::now();
    api.post("/v1/topics/case30/resume", &json!({})).must(200);
    let mut got = 0;
    until("all three are given out", SOON, || {
        got += api.lease("case30", 9, 1_000, "PT10S").len();
        (got == 3).then_some(())
    });
    assert!(resumed.elapsed() < Duration::from_secs(2));
}

/// A lease of a topic with this policy that has run out, its task, and the lease that came after it.
fn lost(api: &Service, topic: &str, late_answers: &Value) -> (Value, Value, Value) {
    let settings =
        json!({"late_answers": late_answers, "retry": {"fixed": "PT0S", "max_attempts": 5}});
    api.put(&format!("/v1/topics/{topic}"), &settings).must(201);
    let task = api.made(&json!({"topic": topic, "key": "k"}));
    let first = leased(api, topic, "PT0.2S");
    let second = leased(api, topic, "PT10S");
    (task, first, second)
}

fn late_answers(api: &Service, path: &str) -> Vec<Value> {
    let answer = api.get(path).must(200);
    answer["items"].as_array().expect("items").clone()
}

#[test]
fn what_a_worker_says_too_late_is_kept_and_found_by_id_key_and_topic() {
    let mut api = Service::start();
    let (task, first, second) = lost(&api, "late", &json!("refuse"));
    let late = |api: &Service| api.say("complete", &first, json!({"result": {"paid": 7}}));
    assert_eq!(late(&api).problem(), stale());
    // Refused means kept: nothing of it is lost with the process.
    api.kill_and_start();
    let id = task["id"].as_str().expect("an id");
    let of_task = format!("/v1/tasks/{id}/late-answers");
    let paths = [
        of_task.clone(),
        "/v1/topics/late/keys/k/late-answers".to_owned(),
        "/v1/late-answers?topic=late&key=k".to_owned(),
        "/v1/late-answers?outcome=succeeded&treatment=refused&limit=1".to_owned(),
    ];
    for path in paths {
        let found = late_answers(&api, &path);
        assert_eq!(found.len(), 1, "{path}");
        let kept = &found[0];
        assert_eq!(
            (
                &kept["task"],
                &kept["attempt"],
                &kept["token"],
                &kept["outcome"]
            ),
            (&task["id"], &json!(1), &first["token"], &json!("succeeded"))
        );
        assert_eq!(
            (
                &kept["result"],
                &kept["worker"],
                &kept["attempt_outcome"],
                &kept["task_state"]
            ),
            (
                &json!({"paid": 7}),
                &json!("w1"),
                &json!("lease_expired"),
                &json!("running")
            )
        );
        assert!(ms(&kept["at"]) <= now_ms() && kept["treatment"] == "refused");
    }
    api.say("complete", &second, json!({"result": "B"}))
        .must(200);
    assert_eq!(late(&api).problem(), stale(), "sent again, it is kept once");
    let error = json!({"error": {"code": "no_stock", "message": "none left"}});
    assert_eq!(api.say("fail", &first, error).problem(), stale());
    let found = late_answers(&api, &of_task);
    assert_eq!(found.len(), 2, "the newest first");
    assert_eq!(found[0]["error"]["code"], "no_stock");
    // One is new since the start.
    let metrics = api.get("/metrics").text();
    let counted = "duetime_late_answers_total{treatment=\"refused\"} 1\n";
    assert!(metrics.contains(counted), "{metrics}");
    assert!(late_answers(&api, "/v1/late-answers?topic=other").is_empty());

    let page = api.get(&format!("{of_task}?limit=1")).must(200);
    let cursor = page["next_cursor"].as_str().expect("there is more");
    let rest = api
        .get(&format!("{of_task}?limit=1&cursor={cursor}"))
        .must(200);
    assert_eq!(
        (&rest["items"][0], &rest["next_cursor"]),
        (&found[1], &Value::Null)
    );

    let log = api.get(&format!("/v1/tasks/{id}/log")).must(200);
    let log = log["items"].as_array().expect("items");
    let lines = log.iter().filter(|line| {
        line["why"]
            .as_str()
            .is_some_and(|why| why.starts_with("late answer of attempt 1"))
    });
    let lines: Vec<_> = lines
        .map(|line| (&line["from"], &line["to"], &line["by"]))
        .collect();
    let [running, succeeded, worker] = ["running", "succeeded", "worker"].map(Value::from);
    assert_eq!(
        lines,
        [
            (&running, &running, &worker),
            (&succeeded, &succeeded, &worker)
        ]
    );

    assert_eq!(api.get("/v1/late-answers?nonsense=1").status, 422);
    assert_eq!(api.get(&format!("{of_task}?topic=late")).status, 422);
    let nobody = "/v1/tasks/0192f0c1-2345-7abc-8def-0123456789ab/late-answers";
    assert_eq!(api.get(nobody).status, 404);
}

#[test]
fn a_late_success_ends_a_task_whose_topic_accepts_it() {
    let api = service();
    let (task, first, second) = lost(&api, "late.accepted", &json!("accept_if_unfinished"));
    api.say("complete", &first, json!({"result": "A"}))
        .must(200);
    assert_eq!(
        api.say("complete", &second, json!({"result": "B"}))
            .problem(),
        stale()
    );
    let ended = api.task(&task["id"]);
    assert_eq!(
        (&ended["state"], &ended["result"]),
        (&json!("succeeded"), &json!("A"))
    );
    let treated = late_answers(&api, "/v1/late-answers?topic=late.accepted");
    let treated: Vec<_> = treated.iter().map(|late| &late["treatment"]).collect();
    assert_eq!(treated, ["refused", "accepted"]);
}

#[test]
fn a_late_success_is_compensated_once_where_its_topic_says_how() {
    let api = service();
    let how = json!({"compensate": {"topic": "late.refund"}});
    let (task, first, second) = lost(&api, "late.compensated", &how);
    assert_eq!(
        api.get("/v1/topics/late.compensated").must(200)["late_answers"]["compensate"]["topic"],
        "late.refund"
    );
    api.say("complete", &second, json!({})).must(200);
    for _ in 0..3 {
        let said = api.say("complete", &first, json!({"result": {"charge": "c1"}}));
        assert_eq!(said.problem(), stale());
    }
    let refund = leased(&api, "late.refund", "PT10S");
    let payload = &refund["task"]["payload"];
    assert_eq!(
        (&payload["task"], &payload["result"]),
        (&task["id"], &json!({"charge": "c1"}))
    );
    assert!(api.lease("late.refund", 1, 0, "PT10S").is_empty(), "once");
    let kept = late_answers(&api, "/v1/late-answers?treatment=compensated");
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0]["compensation"], refund["task"]["id"]);
}
