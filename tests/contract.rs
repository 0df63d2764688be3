//! Creating and finding: keys that are taken, requests that are sent again, cancels that come first, many at once,
//! lists, counts.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use support::client::segment;
use support::receiver::{Answer, Gate, Receiver, status};
use support::service::{Service, Shared};
use support::{SOON, iso, length, ms, now_ms, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

/// A task of this topic and key, due in so many minutes, that ends by itself then.
fn marker(topic: &str, key: &str, minutes: u64) -> Value {
    json!({"topic": topic, "key": key, "delay": length(minutes * 60_000), "action": {"none": {}}})
}

fn minutes_ahead(task: &Value) -> i64 {
    (ms(&task["due_at"]) - now_ms() + 30_000).div_euclid(60_000)
}

// ---------------------------------------------------------------- a key that is taken

#[test]
fn on_existing_return_and_reject_leave_the_first_task_as_it_is() {
    let api = service();
    let first = api.made(&marker("existing", "a", 60));
    for on_existing in [None, Some("return")] {
        let mut again = marker("existing", "a", 120);
        again["on_existing"] = json!(on_existing);
        let mut found = api.post("/v1/tasks", &again).must(200);
        found["remaining_ms"] = first["remaining_ms"].clone();
        assert_eq!(found, first, "all but the time left is as it was");
    }
    let mut again = marker("existing", "a", 120);
    again["on_existing"] = json!("reject");
    let refused = api.post("/v1/tasks", &again);
    assert_eq!(refused.problem(), (409, "exists".to_owned()));
    assert_eq!(refused.json()["id"], first["id"]);
    assert_eq!(api.task(&first["id"])["updated_at"], first["updated_at"]);
}

#[test]
fn on_existing_extend_and_keep_later_move_only_the_due_time() {
    let api = service();
    let mut first = marker("moved", "a", 60);
    first["payload"] = json!({"v": 1});
    let first = api.made(&first);
    let again = |on_existing: &str, minutes| {
        let mut again = marker("moved", "a", minutes);
        again["on_existing"] = json!(on_existing);
        again["payload"] = json!({"v": 2});
        let moved = api.post("/v1/tasks", &again).must(200);
        assert_eq!(
            (&moved["id"], &moved["payload"], &moved["generation"]),
            (&first["id"], &json!({"v": 1}), &json!(1))
        );
        minutes_ahead(&moved)
    };
    assert_eq!(again("keep_later", 180), 180);
    assert_eq!(again("keep_later", 60), 180, "the later of the two");
    assert_eq!(again("extend", 30), 30, "the new one, though it is sooner");
    assert_eq!(again("extend", 90), 90);
}

#[test]
fn on_existing_replace_takes_everything_new_unless_the_task_is_running() {
    let (api, receiver, gate) = (service(), Receiver::start(), Gate::default());
    let first = api.made(&marker("replaced", "a", 60));
    let mut again = marker("replaced", "a", 120);
    again["on_existing"] = json!("replace");
    again["payload"] = json!({"v": 2});
    let new = api.post("/v1/tasks", &again).must(200);
    assert_eq!((&new["id"], &new["generation"]), (&first["id"], &json!(2)));
    assert_eq!(
        (minutes_ahead(&new), &new["payload"]),
        (120, &json!({"v": 2}))
    );

    let url = receiver.on("/replaced", &[Answer::Held(gate.clone())]);
    let running = api.made(&json!({"topic": "replaced", "key": "b", "action": push(&url)}));
    receiver.wait("/replaced", 1);
    again["key"] = json!("b");
    assert_eq!(
        api.post("/v1/tasks", &again).problem(),
        (409, "illegal_state".to_owned())
    );
    gate.open();
    let done = api.wait_state(&running["id"], "succeeded");
    assert_eq!(
        (&done["generation"], &done["payload"]),
        (&json!(1), &Value::Null)
    );
}

#[test]
fn a_topics_on_existing_counts_where_the_call_says_nothing() {
    let api = service();
    api.put("/v1/topics/strict", &json!({"on_existing": "reject"}))
        .must(201);
    api.made(&marker("strict", "a", 60));
    assert_eq!(
        api.post("/v1/tasks", &marker("strict", "a", 60)).status,
        409
    );
}

#[test]
fn case_34_of_fifty_creates_at_once_one_is_new_and_its_body_is_what_is_kept() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/case34", &[status(200)]);
    let create = |key: &str, payload: usize, on_existing: &str| {
        let body = json!({
            "topic": "case34", "key": key, "delay": "PT0.7S", "payload": payload, "action": push(&url),
            "on_existing": on_existing,
        });
        api.post("/v1/tasks", &body)
    };
    for (key, on_existing, other) in [("rejected", "reject", 409), ("returned", "return", 200)] {
        for mixed in [false, true] {
            let key = format!("{key}-{mixed}");
            let replies: Vec<_> = std::thread::scope(|scope| {
                let (create, key) = (&create, &key);
                let one = |n: usize| {
                    scope.spawn(move || create(key, if mixed { n } else { 0 }, on_existing))
                };
                let callers: Vec<_> = (0..50).map(one).collect();
                callers
                    .into_iter()
                    .map(|caller| caller.join().expect("an answer"))
                    .collect()
            });
            let new: Vec<usize> = (0..50).filter(|n| replies[*n].status == 201).collect();
            assert_eq!(new.len(), 1, "{key}: one is new");
            assert!(
                replies
                    .iter()
                    .all(|reply| [201, other].contains(&reply.status)),
                "{key}"
            );
            let kept = api.by_key("case34", &key);
            assert_eq!(
                (&kept["id"], &kept["payload"]),
                (
                    &replies[new[0]].json()["id"],
                    &replies[new[0]].json()["payload"]
                )
            );
        }
    }
    // A key belongs to its topic.
    let url_of_other = push(&receiver.on("/case34/other", &[status(200)]));
    api.made(&json!({"topic": "case34.other", "key": "rejected-false", "delay": "PT0.2S", "action": url_of_other}));
    for task in api.list("topic=case34") {
        api.wait_state(&task["id"], "succeeded");
    }
    assert_eq!(receiver.hits("/case34").len(), 4, "each key once");
}

#[test]
fn topics_and_keys_may_have_any_character_that_is_no_control_character() {
    let api = service();
    for (topic, key) in [
        ("a/b", "c/d?e#f"),
        ("ü", "100 % \"sure\""),
        ("..", "."),
        ("a b", "+%2F"),
        ("日本", "🙂"),
    ] {
        let made = api.made(&marker(topic, key, 60));
        assert_eq!(api.by_key(topic, key)["id"], made["id"], "{topic} {key}");
        api.verb_by_key("cancel", topic, key, &json!({})).must(200);
        let listed = api.list(&format!("topic={}&key={}", segment(topic), segment(key)));
        assert_eq!(listed.len(), 1, "{topic} {key}");
    }
}

// ---------------------------------------------------------------- requests that are sent again

#[test]
fn a_request_sent_again_with_its_idempotency_key_gets_the_same_answer() {
    let api = service();
    let body = json!({"topic": "again", "delay": "PT1H", "action": {"none": {}}});
    let first = api.post_once("/v1/tasks", "again-1", &body);
    let second = api.post_once("/v1/tasks", "again-1", &body);
    assert_eq!(
        (first.status, first.header("idempotency-replayed")),
        (201, None)
    );
    assert_eq!(
        (second.status, second.header("idempotency-replayed")),
        (201, Some("true"))
    );
    assert_eq!(first.json(), second.json());

    let mut other = body.clone();
    other["delay"] = json!("PT2H");
    let mismatch = (422, "idempotency_mismatch".to_owned());
    assert_eq!(
        api.post_once("/v1/tasks", "again-1", &other).problem(),
        mismatch
    );
    assert_eq!(
        api.post_once("/v1/tasks", &"k".repeat(256), &body).status,
        422
    );
    assert_eq!(
        api.post_once("/v1/tasks", &"k".repeat(255), &body).status,
        201
    );
    assert_eq!(api.list("topic=again").len(), 2);

    let task = first.json()["id"].as_str().expect("an id").to_owned();
    api.post_once(&format!("/v1/tasks/{task}/pause"), "again-2", &json!({}))
        .must(200);
    let elsewhere = api.post_once(&format!("/v1/tasks/{task}/resume"), "again-2", &json!({}));
    assert_eq!(
        elsewhere.problem(),
        mismatch,
        "the same body on another route is another request"
    );
}

#[test]
fn a_verb_sent_again_with_its_idempotency_key_happens_once() {
    let api = service();
    let task = api.made(&marker("extended", "a", 60));
    let path = format!(
        "/v1/tasks/{}/reschedule",
        task["id"].as_str().expect("an id")
    );
    for _ in 0..3 {
        api.post_once(&path, "extend-1", &json!({"extend_by": "PT10M"}))
            .must(200);
    }
    assert_eq!(
        ms(&api.task(&task["id"])["due_at"]) - ms(&task["due_at"]),
        600_000
    );
    // What was refused stays refused, too.
    let missing = "/v1/topics/extended/keys/nobody/cancel";
    assert_eq!(api.post_once(missing, "extend-2", &json!({})).status, 404);
    api.made(&marker("extended", "nobody", 60));
    let again = api.post_once(missing, "extend-2", &json!({}));
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (404, Some("true"))
    );
}

#[test]
fn an_idempotency_key_outlives_kill_9_for_a_create_and_for_a_batch() {
    let mut api = Service::start();
    let one = json!({"topic": "again", "delay": "PT1H", "action": {"none": {}}});
    let many = json!({"items": (0..300).map(|n| json!({
        "topic": "again.many", "delay": "PT1H", "payload": n, "action": {"none": {}},
    })).collect::<Vec<_>>()});
    let (first_one, first_many) = (
        api.post_once("/v1/tasks", "one", &one),
        api.post_once("/v1/tasks/batch", "many", &many),
    );
    api.kill_and_start();
    let (second_one, second_many) = (
        api.post_once("/v1/tasks", "one", &one),
        api.post_once("/v1/tasks/batch", "many", &many),
    );
    assert_eq!(second_one.must(201)["id"], first_one.must(201)["id"]);
    let ids = |answer: &Value| -> Vec<Value> {
        let items = answer["items"].as_array().expect("items");
        items
            .iter()
            .map(|item| item["task"]["id"].clone())
            .collect()
    };
    assert_eq!(ids(&second_many.must(200)), ids(&first_many.must(200)));
    assert_eq!(
        (
            api.list("topic=again").len(),
            api.list("topic=again.many&limit=1000").len()
        ),
        (1, 300)
    );
    let mut other = one.clone();
    other["delay"] = json!("PT2H");
    assert_eq!(api.post_once("/v1/tasks", "one", &other).status, 422);
}

// ---------------------------------------------------------------- a cancel that comes first

#[test]
fn a_tombstone_cancels_a_create_that_comes_after_it_even_over_kill_9() {
    let mut api = Service::start();
    let receiver = Receiver::start();
    let url = receiver.on("/tomb", &[status(200)]);
    for key in ["a", "b"] {
        let early = api.verb_by_key(
            "cancel",
            "tomb",
            key,
            &json!({"tombstone_for": "PT1M", "reason": "paid"}),
        );
        assert_eq!(early.must(200)["state"], "cancelled");
    }
    let create = |api: &Service, key: &str| {
        let body = json!({"topic": "tomb", "key": key, "action": push(&url)});
        api.post("/v1/tasks", &body)
    };
    let cancelled = create(&api, "a").must(200);
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(
        create(&api, "a").must(200)["id"],
        cancelled["id"],
        "and again the same"
    );
    api.kill_and_start();
    assert_eq!(create(&api, "b").must(200)["state"], "cancelled");
    assert_eq!(api.by_key("tomb", "a")["state"], "cancelled");

    let live = create(&api, "c").must(201);
    api.wait_state(&live["id"], "succeeded");
    assert_eq!(
        receiver.hits("/tomb").len(),
        1,
        "only the one that nobody cancelled"
    );
    let by_id = api.verb("cancel", &live["id"], &json!({"tombstone_for": "PT1M"}));
    assert_eq!(by_id.status, 422, "a tombstone needs a key");
}

#[test]
fn a_cancel_with_a_tombstone_still_cancels_the_live_task() {
    let api = service();
    let task = api.made(&marker("tomb.live", "a", 60));
    let done = api
        .verb_by_key(
            "cancel",
            "tomb.live",
            "a",
            &json!({"tombstone_for": "PT1M"}),
        )
        .must(200);
    assert_eq!(
        (&done["id"], &done["state"]),
        (&task["id"], &json!("cancelled"))
    );
    assert_eq!(
        api.post("/v1/tasks", &marker("tomb.live", "a", 60)).status,
        201,
        "the key is free"
    );
    assert_eq!(
        api.verb_by_key("cancel", "tomb.live", "nobody", &json!({}))
            .status,
        404,
        "without one it needs a task"
    );
}

// ---------------------------------------------------------------- many at once

#[test]
fn a_batch_answers_item_by_item_in_order() {
    let api = service();
    let mut bad = marker("batch", "bad", 1);
    bad["delay"] = json!("soon");
    let mut taken = marker("batch", "k0", 1);
    taken["on_existing"] = json!("reject");
    let items = json!({"items": [marker("batch", "k0", 60), bad, marker("batch", "k1", 60), taken, marker("batch", "k0", 1)]});
    let answer = api.post("/v1/tasks/batch", &items).must(200);
    let items = answer["items"].as_array().expect("items");
    let statuses: Vec<&Value> = items.iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [201, 422, 201, 409, 200]);
    assert_eq!(items[1]["error"]["errors"][0]["pointer"], "/delay");
    assert_eq!(items[3]["error"]["code"], "exists");
    assert_eq!(items[0]["task"], items[4]["task"], "the same task twice");
    assert_eq!(api.list("topic=batch").len(), 2);
}

#[test]
fn a_batch_may_come_as_lines_and_answer_only_ids() {
    let api = service();
    let lines: Vec<String> = (0..3)
        .map(|n| marker("lines", &format!("m{n}"), 60).to_string())
        .collect();
    let text = format!("{}\nnot JSON\n\n{}\n{}\n", lines[0], lines[1], lines[2]);
    let headers = [("content-type", "application/x-ndjson")];
    let reply = api
        .send(
            "POST",
            "/v1/tasks/batch?return=ids",
            &headers,
            text.as_bytes(),
        )
        .expect("an answer");
    let answer = reply.must(200);
    let items = answer["items"].as_array().expect("items");
    let statuses: Vec<&Value> = items.iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [201, 400, 201, 201], "an empty line is none");
    for (item, key) in [(0, "m0"), (2, "m1"), (3, "m2")] {
        assert_eq!(
            items[item],
            json!({"status": 201, "id": api.by_key("lines", key)["id"]})
        );
    }
    assert_eq!(
        api.post("/v1/tasks/batch?return=nothing", &json!({"items": []}))
            .status,
        422
    );
}

#[test]
fn mixed_operations_are_applied_in_order_for_each_task() {
    let api = service();
    let known = api.made(&marker("mixed", "known", 60));
    let key = |key: &str| json!({"topic": "mixed", "key": key});
    let with = |mut target: Value, name: &str, value: Value| {
        target[name] = value;
        target
    };
    let ops = json!({"ops": [
        {"create": marker("mixed", "a", 60)},
        {"reschedule": with(key("a"), "delay", json!("PT2H"))},
        {"pause": key("a")},
        {"resume": key("a")},
        {"cancel": with(key("a"), "reason", json!("paid"))},
        {"create": marker("mixed", "a", 60)},
        {"complete": {"id": known["id"], "result": {"ok": true}}},
        {"cancel": key("nobody")},
        {"cancel": {"id": known["id"], "key": "known"}},
        {"dance": key("a")},
        {"fail": with(key("a"), "error", json!({"code": "e", "message": "m"}))},
        {"replay": key("a")},
        {"run_now": key("a")},
    ]});
    let answer = api.post("/v1/batch", &ops).must(200);
    let items = answer["items"].as_array().expect("items");
    let statuses: Vec<u64> = items
        .iter()
        .filter_map(|item| item["status"].as_u64())
        .collect();
    assert_eq!(
        statuses,
        [
            201, 200, 200, 200, 200, 201, 200, 404, 422, 422, 200, 200, 200
        ],
        "{answer}"
    );
    assert_ne!(
        items[0]["task"]["id"], items[5]["task"]["id"],
        "the key was free again"
    );
    assert_eq!(items[4]["task"]["state"], "cancelled");
    assert_eq!(api.task(&items[0]["task"]["id"])["state"], "cancelled");
    let done = api.task(&known["id"]);
    assert_eq!(
        (&done["state"], &done["result"]),
        (&json!("succeeded"), &json!({"ok": true}))
    );
    let last = api.wait_state(&items[5]["task"]["id"], "succeeded");
    assert_eq!(last["generation"], 2);

    let ids = api.post(
        "/v1/batch?return=ids",
        &json!({"ops": [{"cancel": key("a")}, {"create": marker("mixed", "b", 1)}]}),
    );
    let ids = ids.must(200);
    assert_eq!(ids["items"][0]["status"], 409, "{ids}");
    assert_eq!(
        ids["items"][1],
        json!({"status": 201, "id": api.by_key("mixed", "b")["id"]})
    );
}

// ---------------------------------------------------------------- lists and counts

#[test]
fn pages_show_every_task_once_in_the_order_asked_for() {
    let api = service();
    let keys: Vec<String> = (0..250).map(|n| format!("k{n:03}")).collect();
    let items: Vec<Value> = (0..250)
        .map(|n| marker("pages", &keys[n as usize], 100 + n))
        .collect();
    api.made_many(&items);
    let shown = |query: &str| -> Vec<String> {
        let own = |task: &Value| task["key"].as_str().expect("a key").to_owned();
        api.list(query).iter().map(own).collect()
    };
    assert_eq!(shown("topic=pages&limit=37"), keys);
    assert_eq!(shown("topic=pages&limit=1000&order=due_at"), keys);
    let backwards: Vec<String> = keys.iter().rev().cloned().collect();
    assert_eq!(shown("topic=pages&limit=100&order=-due_at"), backwards);
    assert_eq!(shown("topic=pages&key_prefix=k01&limit=3"), keys[10..20]);

    let page = api.get("/v1/tasks?topic=pages&limit=10").must(200);
    let cursor = page["next_cursor"].as_str().expect("there is more");
    let other = api.get(&format!("/v1/tasks?topic=other&limit=10&cursor={cursor}"));
    assert_eq!(other.problem().0, 422, "a cursor belongs to its list");
    // What comes and goes meanwhile neither hides nor repeats the rest.
    api.made(&marker("pages", "late", 1));
    api.verb_by_key("cancel", "pages", "k005", &json!({}))
        .must(200);
    let rest = api
        .get(&format!("/v1/tasks?topic=pages&limit=1000&cursor={cursor}"))
        .must(200);
    let rest: Vec<&Value> = rest["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|task| &task["key"])
        .collect();
    assert_eq!(rest, keys[10..].iter().collect::<Vec<_>>());
}

#[test]
fn a_list_can_be_narrowed_by_everything_that_the_contract_names() {
    let api = service();
    let now = now_ms();
    let make = |key: &str, minutes: u64, odd: &str, class: &str| {
        let mut body = marker("narrow", key, minutes);
        body["tags"] = json!({"odd": odd, "all": "yes"});
        body["class"] = json!(class);
        body["payload"] = json!({"note": format!("needle-{key}")});
        api.made(&body)
    };
    let a = make("a", 10, "1", "core");
    let b = make("b", 20, "0", "normal");
    let c = make("c", 30, "1", "bulk");
    let d = make("d", 40, "0", "normal");
    api.verb("cancel", &a["id"], &json!({})).must(200);
    api.verb("pause", &b["id"], &json!({})).must(200);
    api.verb(
        "fail",
        &d["id"],
        &json!({"error": {"code": "e", "message": "m"}}),
    )
    .must(200);
    let at = |minutes: i64| iso(now + minutes * 60_000);
    let bucket = c["bucket"].as_str().expect("a bucket");
    for (query, keys) in [
        ("".to_owned(), "abcd"),
        ("&key=b".to_owned(), "b"),
        ("&key_prefix=c".to_owned(), "c"),
        ("&state=cancelled".to_owned(), "a"),
        ("&state=cancelled,paused".to_owned(), "ab"),
        ("&state=dead&state=pending".to_owned(), "cd"),
        ("&tag.odd=1".to_owned(), "ac"),
        ("&tag.odd=0&tag.all=yes".to_owned(), "bd"),
        (format!("&due_after={}", at(25)), "cd"),
        (format!("&due_before={}", at(25)), "ab"),
        (format!("&due_after={}&due_before={}", at(15), at(35)), "bc"),
        (format!("&created_before={}", at(-1)), ""),
        (format!("&created_after={}", at(-1)), "abcd"),
        (format!("&ended_after={}", at(-1)), "ad"),
        (format!("&ended_before={}", at(-1)), ""),
        ("&order=-ended_at".to_owned(), "da"),
        ("&dead_reason=refused".to_owned(), "d"),
        ("&class=core".to_owned(), "a"),
        (format!("&bucket={bucket}"), "c"),
        ("&text=needle-b".to_owned(), "b"),
    ] {
        let shown: String = api
            .list(&format!("topic=narrow{query}"))
            .iter()
            .filter_map(|task| task["key"].as_str())
            .collect();
        assert_eq!(shown, keys, "{query}");
    }
}

#[test]
fn counts_by_topic_and_state_add_up() {
    let api = service();
    let items: Vec<Value> = (0..12)
        .map(|n| marker("sums", &format!("k{n}"), 60))
        .collect();
    api.made_many(&items);
    for n in 0..5 {
        api.verb_by_key("cancel", "sums", &format!("k{n}"), &json!({}))
            .must(200);
    }
    let stats = api.get("/v1/stats").must(200);
    let rows = stats["topics"].as_array().expect("rows");
    let row = rows
        .iter()
        .find(|row| row["topic"] == "sums")
        .expect("its row");
    assert_eq!(
        (&row["states"]["pending"], &row["states"]["cancelled"]),
        (&json!(7), &json!(5))
    );
    let names: HashSet<&String> = row["states"].as_object().expect("states").keys().collect();
    assert_eq!(names.len(), 8, "every state has a number: {names:?}");
    assert!(row["lateness_ms"].is_object());
    let total: u64 = rows
        .iter()
        .filter_map(|row| row["states"]["cancelled"].as_u64())
        .sum();
    assert_eq!(stats["totals"]["states"]["cancelled"], total);
    let shards = api.get("/v1/shards").must(200);
    assert!(
        shards["items"]
            .as_array()
            .is_some_and(|shards| shards.len() >= 2)
    );
}

#[test]
fn a_restart_of_a_shard_is_asked_for_once_per_key_and_only_of_a_shard_that_is_there() {
    // Of two shards, the second keeps the answer for key `a`: the first is restarted.
    let api = Service::with(&[("DUETIME_SHARDS__COUNT", "2")]);
    let restart = |shard: &str, key: &str| {
        let path = format!("/v1/shards/{shard}/restart");
        api.post_once(&path, key, &json!({}))
    };
    let restarts = || {
        let shards = api.get("/v1/shards").must(200);
        shards["items"][0]["epoch"].as_u64().expect("an epoch")
    };
    let before = restarts();
    let (first, again) = (restart("0", "a"), restart("0", "a"));
    assert_eq!(first.must(202), again.must(202));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    until("it is back", SOON, || (restarts() > before).then_some(()));
    assert_eq!(restarts(), before + 1);
    assert_eq!(
        restart("4000", "b").problem(),
        (404, "not_found".to_owned())
    );
    let unknown = api.post("/v1/shards/0/restart?now=1", &json!({}));
    assert_eq!(unknown.problem().0, 422);
    let unknown = api.post("/v1/preview/retry?attempts=1", &json!({"attempts": 1}));
    assert_eq!(unknown.problem().0, 422);
}

// ---------------------------------------------------------------- looking back

#[test]
fn log_and_attempts_are_found_by_key_as_by_id() {
    let api = service();
    let task = api.made(&marker("look-back", "k/1", 60));
    let id = task["id"].as_str().expect("an id");
    for what in ["log", "attempts"] {
        let by_id = api.get(&format!("/v1/tasks/{id}/{what}")).must(200);
        let path = format!("/v1/topics/look-back/keys/{}/{what}", segment("k/1"));
        assert_eq!(api.get(&path).must(200), by_id, "{what}");
        let nobody = format!("/v1/topics/look-back/keys/nobody/{what}");
        assert_eq!(api.get(&nobody).must(404)["code"], "not_found");
    }
}
