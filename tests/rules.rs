//! Rules: when tasks are due that do not say it, over HTTP, through versions, rollouts and a kill.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use support::service::{Service, Shared};
use support::{Over, SOON, ms, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

/// Puts a rule, and a topic that is called like it and goes by it.
fn put(api: &Service, name: &str, rule: &Value) -> u64 {
    let version = api.put(&format!("/v1/rules/{name}"), rule).json()["version"].clone();
    let topic = json!({"rule": name, "action": {"none": {}}});
    let put = api.put(&format!("/v1/topics/{name}"), &topic);
    assert!(matches!(put.status, 200 | 201), "{}", put.text());
    version.as_u64().expect("it has a version")
}

fn after(seconds: u64) -> Value {
    json!({"fixed": {"due": format!("created_at + duration('{seconds}s')")}})
}

fn span(task: &Value) -> i64 {
    ms(&task["due_at"]) - ms(&task["created_at"])
}

#[test]
fn a_topics_rule_gives_the_due_time_and_what_the_call_says_wins_over_it() {
    let api = service();
    let version = put(&api, "pay", &after(1800));
    let task = api.made(&json!({"topic": "pay"}));
    assert_eq!(span(&task), 1_800_000);
    assert_eq!(task["rule"], json!({"name": "pay", "version": version}));
    assert_eq!(api.task(&task["id"])["rule"], task["rule"]);
    let own = api.made(&json!({"topic": "pay", "delay": "PT1H"}));
    assert_eq!((span(&own), &own["rule"]), (3_600_000, &Value::Null));
    // From the next create on, and for no task that is stored.
    put(&api, "pay", &json!({"fixed": {"after": "PT10M"}}));
    assert_eq!(span(&api.made(&json!({"topic": "pay"}))), 600_000);
    assert_eq!(api.task(&task["id"])["due_at"], task["due_at"]);
    let shown = api.get("/v1/rules/pay").must(200);
    assert_eq!(shown["fixed"], json!({"after": "PT10M"}));
    assert_eq!(
        (&shown["version"], &shown["rollout"]),
        (&json!(version + 1), &Value::Null)
    );
}

#[test]
fn a_missing_fact_is_refused_and_named_and_never_a_silent_deadline() {
    let api = service();
    let rule = json!({"conditional": {"cases": [{"if": "facts.vip == true", "after": "PT1H"}], "else": {"after": "PT10M"}}});
    put(&api, "vip", &rule);
    let create = |facts: &Value| api.post("/v1/tasks", &json!({"topic": "vip", "facts": facts}));
    assert_eq!(span(&create(&json!({"vip": true})).must(201)), 3_600_000);
    assert_eq!(span(&create(&json!({"vip": false})).must(201)), 600_000);
    let refused = create(&json!({"other": 1})).must(422);
    let error = &refused["errors"][0];
    assert_eq!(
        (&error["pointer"], &error["code"]),
        (&json!("/facts"), &json!("rule_failed"))
    );
    let detail = error["detail"].as_str().expect("words");
    assert!(
        detail.contains("vip") && detail.contains("rule vip, version 1"),
        "{detail}"
    );
    let items = json!({"items": [{"topic": "vip", "facts": {"vip": true}}, {"topic": "vip"}]});
    let batch = api.post("/v1/tasks/batch", &items).must(200);
    assert_eq!(
        (&batch["items"][0]["status"], &batch["items"][1]["status"]),
        (&json!(201), &json!(422))
    );
}

#[test]
fn a_rule_may_say_that_no_task_is_needed() {
    let api = service();
    let rule = json!({"conditional": {"cases": [{"if": "facts.paid", "skip": true}], "else": {"after": "PT10M"}}});
    put(&api, "skip", &rule);
    let reply = api.post(
        "/v1/tasks",
        &json!({"topic": "skip", "key": "a", "facts": {"paid": true}}),
    );
    assert_eq!(reply.must(200)["state"], "cancelled");
    let log = api.get("/v1/topics/skip/keys/a/log").must(200).to_string();
    assert!(log.contains("rule skip says that none is needed"), "{log}");
    // Its key is free.
    let live = api.made(&json!({"topic": "skip", "key": "a", "facts": {"paid": false}}));
    // There is no due time that a live task could be given: it is not due at once.
    let again = |on_existing: &str| {
        let body = json!({"topic": "skip", "key": "a", "facts": {"paid": true}, "on_existing": on_existing});
        api.post("/v1/tasks", &body)
    };
    for on_existing in ["return", "extend", "keep_later"] {
        let met = again(on_existing).must(200);
        assert_eq!(
            (&met["id"], &met["state"]),
            (&live["id"], &json!("pending"))
        );
        assert_eq!(met["due_at"], live["due_at"], "{on_existing}");
    }
    assert_eq!(again("reject").problem(), (409, "exists".to_owned()));
    let called_off = again("replace").must(200);
    assert_eq!(
        (&called_off["id"], &called_off["state"]),
        (&live["id"], &json!("cancelled"))
    );
}

#[test]
fn no_create_uses_half_of_one_version_and_half_of_another() {
    let api = service();
    let first = put(&api, "live", &after(3_000));
    let over = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let over_all = Over(&over);
        let load = |_| {
            scope.spawn(|| {
                let api = service();
                let mut made = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    made.push(api.made(&json!({"topic": "live"})));
                }
                made
            })
        };
        let loads: Vec<_> = (0..2).map(load).collect();
        let mut seconds = BTreeMap::from([(first, 3_000)]);
        for n in 1..30 {
            let before = api.put("/v1/rules/live", &after(3_000 + n)).must(200);
            seconds.insert(before["version"].as_u64().expect("a number"), 3_000 + n);
            let seen = api.made(&json!({"topic": "live"}));
            assert_eq!(
                span(&seen),
                (3_000 + n as i64) * 1000,
                "the next create sees it"
            );
        }
        drop(over_all);
        let made: Vec<Value> = loads
            .into_iter()
            .flat_map(|load| load.join().expect("it went well"))
            .collect();
        (made, seconds)
    });
    let (made, seconds) = made;
    assert!(made.len() > 30, "{}", made.len());
    for task in made {
        let version = task["rule"]["version"].as_u64().expect("a number");
        assert_eq!(
            span(&task),
            seconds[&version] as i64 * 1000,
            "version {version}"
        );
    }
}

#[test]
fn a_rollout_takes_a_stable_share_and_a_rollback_brings_an_old_version_again() {
    let api = service();
    let first = put(&api, "gray", &after(600));
    let alone = api.post("/v1/rules/gray/rollout", &json!({"percent": 10}));
    assert_eq!(alone.problem(), (409, "no_version_before".to_owned()));
    put(&api, "gray", &after(7_200));
    let rolled = api
        .post(
            "/v1/rules/gray/rollout",
            &json!({"percent": 10, "keys": ["k-vip"]}),
        )
        .must(200);
    assert_eq!(
        rolled["rollout"],
        json!({"base_version": first, "reach": {"percent": 10, "keys": ["k-vip"]}})
    );
    let gets_new = |key: String| {
        let body = json!({"topic": "gray", "key": key, "on_existing": "replace"});
        let task = api.post("/v1/tasks", &body).json();
        match span(&task) {
            7_200_000 => true,
            600_000 => false,
            other => panic!("{other}: {task}"),
        }
    };
    let shares = || {
        (0..200)
            .map(|n| gets_new(format!("k{n}")))
            .collect::<Vec<_>>()
    };
    let once = shares();
    let count = once.iter().filter(|it| **it).count();
    assert!((5..45).contains(&count), "{count} of 200");
    assert_eq!(shares(), once, "the same keys again");
    assert!(gets_new("k-vip".to_owned()));
    api.post("/v1/rules/gray/rollout", &json!({"percent": 100}))
        .must(200);
    assert!(shares().iter().all(|it| *it));
    let back = api
        .post("/v1/rules/gray/rollback", &json!({"version": first}))
        .must(200);
    assert_eq!(back["version"], json!(first + 2));
    assert_eq!(span(&api.made(&json!({"topic": "gray"}))), 600_000);
    let versions = api.get("/v1/rules/gray/versions").must(200);
    let numbers: Vec<_> = versions["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| it["version"].clone())
        .collect();
    assert_eq!(numbers, [json!(first + 2), json!(first + 1), json!(first)]);
    let unknown = api.post("/v1/rules/gray/rollback", &json!({"version": 99}));
    assert_eq!(unknown.must(422)["errors"][0]["code"], "unknown_version");
}

#[test]
fn what_is_needed_is_not_deleted_and_what_is_not_there_can_not_be_named() {
    let api = service();
    let unknown = api.put("/v1/topics/none", &json!({"rule": "nowhere"}));
    assert_eq!(unknown.must(422)["errors"][0]["code"], "unknown_rule");
    let by = json!({"excluding": {"calendar": "nowhere", "working_hours": 8}});
    assert_eq!(
        api.put("/v1/rules/by", &by).must(422)["errors"][0]["code"],
        "unknown_calendar"
    );
    put(&api, "kept", &after(60));
    let delete = |path| api.send("DELETE", path, &[], b"").expect("an answer");
    let refused = delete("/v1/rules/kept");
    let (status, code) = refused.problem();
    assert_eq!((status, code.as_str()), (409, "in_use"));
    assert!(refused.text().contains("topic kept"), "{}", refused.text());
    api.put("/v1/topics/kept", &json!({})).must(200);
    delete("/v1/rules/kept").must(200);
    api.get("/v1/rules/kept").must(404);
}

#[test]
fn a_rollout_that_has_ended_needs_no_calendar_any_more() {
    let api = service();
    let shop = json!({"tz": "UTC", "weekly": {"mon": [["09:00", "18:00"]]}});
    api.put("/v1/calendars/once", &shop).must(201);
    put(
        &api,
        "worked",
        &json!({"excluding": {"calendar": "once", "working_hours": 8}}),
    );
    put(&api, "worked", &after(600));
    api.post("/v1/rules/worked/rollout", &json!({"percent": 10}))
        .must(200);
    let delete = || {
        api.send("DELETE", "/v1/calendars/once", &[], b"")
            .expect("an answer")
    };
    let refused = delete();
    assert_eq!(refused.problem(), (409, "in_use".to_owned()));
    assert!(
        refused.text().contains("rollout worked"),
        "{}",
        refused.text()
    );
    put(&api, "worked", &after(900));
    delete().must(200);
    assert_eq!(span(&api.made(&json!({"topic": "worked"}))), 900_000);
}

#[test]
fn a_rule_and_what_it_gave_outlive_the_process() {
    let mut api = Service::start();
    put(&api, "pay", &after(600));
    put(&api, "pay", &after(1_800));
    api.post("/v1/rules/pay/rollout", &json!({"keys": ["new"]}))
        .must(200);
    let task = api.made(&json!({"topic": "pay", "key": "old"}));
    api.kill();
    api.start_again();
    assert_eq!(
        api.task(&task["id"])["rule"],
        json!({"name": "pay", "version": 1})
    );
    for (key, expected) in [("new", 1_800_000), ("other", 600_000)] {
        assert_eq!(
            span(&api.made(&json!({"topic": "pay", "key": key}))),
            expected
        );
    }
}

#[test]
fn changed_facts_move_the_deadline_until_the_task_runs() {
    let api = service();
    put(
        &api,
        "pre",
        &json!({"fixed": {"due": "timestamp(facts.pay_by)"}}),
    );
    let facts = json!({"pay_by": "2031-05-01T10:00:00Z", "shop": 7});
    let task = api
        .made(&json!({"topic": "pre", "key": "p", "facts": facts, "tags": {"a": "1", "b": "2"}}));
    assert_eq!(task["due_at"], "2031-05-01T10:00:00.000Z");
    let patch = |body: Value| {
        let path = "/v1/topics/pre/keys/p";
        let reply = api.json("PATCH", path, &[], &body);
        reply.expect("an answer")
    };
    let moved =
        patch(json!({"facts": {"pay_by": "2031-05-02T10:00:00Z"}, "tags": {"a": null, "c": "3"}}))
            .must(200);
    assert_eq!(moved["due_at"], "2031-05-02T10:00:00.000Z");
    let now = api.task(&task["id"]);
    assert_eq!(
        now["facts"],
        json!({"pay_by": "2031-05-02T10:00:00Z", "shop": 7})
    );
    assert_eq!(now["tags"], json!({"b": "2", "c": "3"}));
    assert_eq!(now["created_at"], task["created_at"]);
    // What makes no sense leaves everything as it is.
    assert_eq!(
        patch(json!({"facts": {"pay_by": null}})).must(422)["errors"][0]["code"],
        "rule_failed"
    );
    assert_eq!(patch(json!({})).must(422)["errors"][0]["code"], "missing");
    assert_eq!(api.task(&task["id"])["due_at"], "2031-05-02T10:00:00.000Z");
    patch(json!({"payload": {"x": 1}})).must(200);
    assert_eq!(api.task(&task["id"])["payload"], json!({"x": 1}));
    let log = api.get("/v1/topics/pre/keys/p/log").must(200).to_string();
    assert!(log.contains("another due time by its rule"), "{log}");
    api.verb("cancel", &task["id"], &json!({})).must(200);
    assert_eq!(
        patch(json!({"payload": 1})).problem(),
        (409, "illegal_state".to_owned())
    );
}

#[test]
fn a_staged_rule_gives_a_task_its_stages_and_changed_facts_give_it_others() {
    let api = service();
    let stage =
        |name: &str, after: &str| json!({"name": name, "after": after, "action": {"none": {}}});
    let usual = json!({"stages": [stage("dispatch", "PT1H"), stage("cancel", "PT2H")]});
    let vip = json!({"stages": [stage("dispatch", "PT30M"), stage("cancel", "PT3H")]});
    let rule = json!({"conditional": {
        "cases": [{"if": "has(facts.vip) && facts.vip", "staged": vip}], "else": {"staged": usual}}});
    let version = put(&api, "courier", &rule);
    let task = api.made(&json!({"topic": "courier", "key": "c"}));
    assert_eq!(
        (span(&task), &task["stage"]),
        (3_600_000, &json!("dispatch"))
    );
    assert_eq!(task["stages"], usual["stages"]);
    assert_eq!(task["rule"], json!({"name": "courier", "version": version}));
    // What stands in the call wins.
    let own = api.made(&json!({"topic": "courier", "delay": "PT5M"}));
    assert_eq!((span(&own), &own["stages"]), (300_000, &Value::Null));
    let patch = |facts: Value| {
        let path = "/v1/topics/courier/keys/c";
        let reply = api.json("PATCH", path, &[], &json!({"facts": facts}));
        reply.expect("an answer").must(200)
    };
    patch(json!({"vip": true}));
    let moved = api.task(&task["id"]);
    assert_eq!(
        (span(&moved), &moved["stages"]),
        (1_800_000, &vip["stages"])
    );
    // What has come stays, and so does the stage that it waits for.
    let path = "/v1/topics/courier/keys/c/run-now";
    api.post(path, &json!({})).must(200);
    until("its first stage is over", SOON, || {
        (api.task(&task["id"])["stage"] == "cancel").then_some(())
    });
    patch(json!({"vip": false}));
    let later = api.task(&task["id"]);
    assert_eq!(later["stages"], vip["stages"]);
    assert_eq!(later["stage"], "cancel");
}

#[test]
fn a_command_in_a_stage_of_a_rule_is_refused_when_the_rule_is_put() {
    let api = service();
    let command = json!({"command": {"program": "/bin/true"}});
    let rule = json!({"staged": {"stages": [{"name": "a", "after": "PT1H", "action": command}]}});
    let refused = api.put("/v1/rules/commanding", &rule);
    assert!(refused.status >= 400, "{}", refused.text());
    assert!(
        refused.text().contains("/staged/stages/0/action"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_preview_tells_what_a_change_would_make_of_the_stored_tasks_and_changes_none() {
    let api = service();
    put(
        &api,
        "seen",
        &json!({"fixed": {"due": "created_at + duration('1h')"}}),
    );
    let mut tasks = Vec::new();
    for n in 0..40 {
        let facts = json!({"n": n});
        tasks.push(api.made(&json!({"topic": "seen", "key": format!("k{n}"), "facts": facts})));
    }
    // Of another rule, of none, or ended: not looked for.
    put(&api, "unseen", &after(60));
    api.made(&json!({"topic": "unseen"}));
    api.made(&json!({"topic": "seen", "delay": "PT1H"}));
    api.verb("cancel", &tasks[39]["id"], &json!({})).must(200);
    let candidate = json!({"conditional": {"cases": [
        {"if": "facts.n < 10", "after": "PT2H"},
        {"if": "facts.n < 15", "due": "created_at"},
        {"if": "facts.n < 18", "skip": true},
        {"if": "facts.n < 20", "due": "timestamp(facts.missing)"},
    ], "else": {"after": "PT1H"}}});
    let body = json!({"rule": candidate});
    let told = api.post("/v1/rules/seen/preview", &body).must(200);
    let counts = [
        "tasks",
        "moves",
        "due_at_once",
        "ends",
        "unchanged",
        "failed",
    ];
    let counts = counts.map(|count| told[count].as_u64().expect("a number"));
    assert_eq!(counts, [39, 15, 5, 3, 19, 2], "{told}");
    assert!(told["looked_at"].as_u64() <= told["of"].as_u64(), "{told}");
    let sample = told["sample"].as_array().expect("a list");
    assert_eq!(sample.len(), 18);
    for change in sample {
        let before = tasks.iter().find(|task| task["id"] == change["id"]);
        assert_eq!(before.expect("it is one of them")["due_at"], change["from"]);
    }
    let failure = told["failures"][0]["detail"].as_str().expect("words");
    assert!(failure.contains("missing"), "{failure}");
    for task in &tasks[..39] {
        assert_eq!(
            api.task(&task["id"])["due_at"],
            task["due_at"],
            "nothing is changed"
        );
    }
    // As the rule is, nothing would move; and a filter takes some of them.
    let as_it_is = api.post("/v1/rules/seen/preview", &json!({})).must(200);
    assert_eq!(
        (&as_it_is["moves"], &as_it_is["unchanged"]),
        (&json!(0), &json!(39))
    );
    let body = json!({"rule": {"fixed": {"after": "PT3H"}}, "filter": {"key_prefix": "k1"}});
    let some = api.post("/v1/rules/seen/preview", &body).must(200);
    assert_eq!((&some["tasks"], &some["moves"]), (&json!(11), &json!(11)));
    api.post("/v1/rules/nowhere/preview", &json!({})).must(404);
}

#[test]
fn versions_are_compared_counted_and_put_out_of_force_and_into_it() {
    let api = service();
    let first = put(&api, "many", &json!({"fixed": {"after": "PT30M"}}));
    api.made(&json!({"topic": "many"}));
    let second = put(&api, "many", &json!({"fixed": {"after": "PT45M"}}));
    for _ in 0..2 {
        api.made(&json!({"topic": "many"}));
    }
    let shown = api.get("/v1/rules/many").must(200);
    let count = |version: u64, creates: u64| json!({"version": version, "creates": creates});
    assert_eq!(shown["creates"], json!([count(second, 2), count(first, 1)]));
    let path = format!("/v1/rules/many/versions/{first}/diff");
    let change = json!([{"pointer": "/fixed/after", "from": "PT30M", "to": "PT45M"}]);
    let expected = json!({"from": first, "to": second, "changes": change});
    assert_eq!(api.get(&path).must(200), expected);
    assert_eq!(
        api.get(&format!("{path}?to={first}")).must(200)["changes"],
        json!([])
    );
    let unknown = api.get(&format!("{path}?to=99")).must(422);
    assert_eq!(unknown["errors"][0]["pointer"], "/to");
    let off = api.post("/v1/rules/many/disable", &json!({})).must(200);
    assert_eq!(
        (&off["enabled"], &off["version"]),
        (&json!(false), &json!(second + 1))
    );
    let again = api.post("/v1/rules/many/disable", &json!({})).must(200);
    assert_eq!(
        again["version"], off["version"],
        "the same again changes nothing"
    );
    let refused = api.post("/v1/tasks", &json!({"topic": "many"})).must(422);
    assert!(refused.to_string().contains("is disabled"), "{refused}");
    api.post("/v1/rules/many/enable", &json!({})).must(200);
    assert_eq!(span(&api.made(&json!({"topic": "many"}))), 2_700_000);
}
