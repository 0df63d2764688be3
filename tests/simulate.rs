//! What-ifs over HTTP and on the command line, on the real binary: what would fire, with nothing sent and nothing changed.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use support::client::Reply;
use support::receiver::{Receiver, status};
use support::service::{Service, Shared, command};
use support::{SOON, iso, ms, push, until};

static SHARED: Shared = Shared::new();

fn simulated(api: &Service, what_if: &Value) -> Value {
    api.post("/v1/simulate", what_if).must(200)
}

/// What happens, each as `what key at-from-the-beginning`.
fn events(played: &Value) -> Vec<String> {
    let from = ms(&played["from"]);
    let events = played["events"].as_array().expect("a list").iter();
    let told = events.map(|event| {
        let text = |name: &str| event[name].as_str().unwrap_or("-");
        let at = (ms(&event["at"]) - from) / 1000;
        format!("{} {} {at} s", text("what"), text("key"))
    });
    told.collect()
}

#[test]
fn given_tasks_are_played_through_their_retries_and_nothing_is_created_or_sent() {
    let api = SHARED.service();
    let receiver = Receiver::start();
    let url = receiver.on("/close", &[status(200)]);
    let task = json!({"topic": "sim.given", "key": "order-1", "delay": "PT30M",
                      "action": push(&url), "retry": {"ladder": ["PT1M", "PT5M"], "max_attempts": 3}});
    let what_if = json!({"from": "2027-03-01T10:00:00Z", "for": "P1D", "bucket": "PT1H", "tasks": [task],
                         "assume": {"ends": "fail", "takes": "PT1S"}});
    let played = simulated(&api, &what_if);
    assert_eq!(
        events(&played),
        [
            "fire order-1 1800 s",
            "retry order-1 1861 s",
            "retry order-1 2162 s",
            "dead order-1 2163 s"
        ]
    );
    assert_eq!(
        played["buckets"],
        json!([{"at": "2027-03-01T10:00:00.000Z", "topic": "sim.given", "fires": 1, "retries": 2, "questions": 0}])
    );
    assert_eq!(played["counts"]["dead"], 1);
    assert_eq!(
        (&played["truncated"], &played["cut_off"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(
        simulated(&api, &what_if),
        played,
        "it is the same each time"
    );
    assert_eq!(
        api.get("/v1/topics/sim.given/keys/order-1").problem(),
        (404, "not_found".to_owned())
    );
    assert_eq!(receiver.hits("/close").len(), 0);
}

#[test]
fn stored_tasks_are_played_from_now_on_and_stay_as_they_are() {
    let api = SHARED.service();
    let task = json!({"topic": "sim.stored", "key": "a", "delay": "PT30M", "action": {"none": {}}});
    let a = api.made(&task);
    let late = json!({"topic": "sim.stored", "key": "b", "delay": "P3D", "action": {"none": {}}});
    api.made(&late);
    let played = simulated(
        &api,
        &json!({"for": "PT1H", "filter": {"topic": "sim.stored"}}),
    );
    let [event] = played["events"].as_array().expect("a list").as_slice() else {
        panic!("{played}");
    };
    assert_eq!((&event["id"], &event["at"]), (&a["id"], &a["due_at"]));
    assert_eq!(played["counts"]["stored"], 1);
    assert_eq!(api.task(&a["id"])["state"], "pending");
    let topic = api.post("/v1/topics/sim.stored/pause", &json!({}));
    assert_eq!(topic.status, 200);
    let held = simulated(
        &api,
        &json!({"for": "PT1H", "filter": {"topic": "sim.stored"}}),
    );
    assert_eq!(events(&held), [""; 0], "its topic is held");
}

#[test]
fn a_draft_of_a_rule_is_in_force_in_the_what_if_alone() {
    let api = SHARED.service();
    api.put("/v1/rules/sim-pay", &json!({"fixed": {"after": "PT30M"}}))
        .must(201);
    api.put(
        "/v1/topics/sim.rule",
        &json!({"rule": "sim-pay", "action": {"none": {}}}),
    )
    .must(201);
    let task = json!({"topic": "sim.rule", "key": "k"});
    let what_if = |more: Value| {
        let mut what_if = json!({"from": "2027-03-05T16:00:00Z", "for": "P7D", "tasks": [task]});
        for (name, value) in more.as_object().expect("an object") {
            what_if[name] = value.clone();
        }
        simulated(&api, &what_if)
    };
    assert_eq!(events(&what_if(json!({}))), ["fire k 1800 s"]);
    // A Friday; it opens again on Monday.
    let shop =
        json!({"tz": "UTC", "weekly": {"mon": [["09:00", "17:00"]], "fri": [["09:00", "17:00"]]}});
    let hours = json!({"excluding": {"calendar": "sim-shop", "working_hours": 2}});
    let draft = what_if(json!({"rules": {"sim-pay": hours}, "calendars": {"sim-shop": shop}}));
    assert_eq!(draft["events"][0]["at"], "2027-03-08T10:00:00.000Z");
    let refused = json!({"fixed": {"due": "timestamp(facts.pay_by)"}});
    let refused = what_if(json!({"rules": {"sim-pay": refused}}));
    assert_eq!(refused["refused"][0]["place"], 0);
    assert!(
        refused["refused"][0]["why"]
            .as_str()
            .is_some_and(|why| why.contains("pay_by"))
    );
    let missing = json!({"for": "P1D", "rules": {"sim-pay": hours}});
    let missing = api.post("/v1/simulate", &missing);
    assert_eq!(missing.json()["errors"][0]["pointer"], "/rules/sim-pay");
    assert_eq!(api.get("/v1/rules/sim-pay").must(200)["version"], 1);
}

#[test]
fn schedules_that_are_given_or_stored_fire_by_the_clocks_of_their_zone() {
    let api = SHARED.service();
    let nightly = json!({"cron": "0 2 * * *", "tz": "Europe/Berlin", "topic": "sim.nightly", "action": {"none": {}}});
    let what_if = json!({"from": "2027-03-27T00:00:00Z", "for": "P3D", "schedules": {"sim-nightly": nightly}});
    let times = |played: &Value| -> Vec<String> {
        let events = played["events"].as_array().expect("a list").iter();
        events
            .map(|event| event["at"].as_str().expect("a time").to_owned())
            .collect()
    };
    // On the 28th the clocks go from 02:00 to 03:00.
    assert_eq!(
        times(&simulated(&api, &what_if)),
        [
            "2027-03-27T01:00:00.000Z",
            "2027-03-28T01:00:00.000Z",
            "2027-03-29T00:00:00.000Z"
        ]
    );
    let every = json!({"every": "PT10M", "topic": "sim.every", "action": {"none": {}}});
    api.put("/v1/schedules/sim-every", &every).must(201);
    let played = simulated(
        &api,
        &json!({"for": "PT1H", "filter": {"topic": "sim.every"}}),
    );
    assert!(
        (5..=6).contains(&played["counts"]["fires"].as_u64().expect("a number")),
        "{played}"
    );
    assert_eq!(api.get("/v1/schedules/sim-every").must(200)["runs"], 0);
}

#[test]
fn what_is_wrong_with_a_what_if_is_told_with_its_place() {
    let api = SHARED.service();
    for (body, pointer, code) in [
        (json!({"for": "P1Y"}), "/for", "invalid_duration"),
        (
            json!({"for": "P1D", "until": "2027-01-01T00:00:00Z"}),
            "/for",
            "conflict",
        ),
        (
            json!({"until": "2020-01-01T00:00:00Z"}),
            "/until",
            "out_of_range",
        ),
        (
            json!({"from": "2020-01-01T00:00:00Z"}),
            "/from",
            "out_of_range",
        ),
        (
            json!({"filter": {"stat": "dead"}}),
            "/filter/stat",
            "unknown_parameter",
        ),
        (
            json!({"tasks": [{"key": "a"}]}),
            "/tasks/0/topic",
            "missing",
        ),
        (
            json!({"calendars": {"a": {"tz": "UTC"}}}),
            "/calendars/a/weekly",
            "missing",
        ),
        (
            json!({"schedules": {"a": {"cron": "0 0 30 2 *", "topic": "t"}}}),
            "/schedules/a/cron",
            "never_fires",
        ),
        (
            json!({"assume": {"ends": "well"}}),
            "/assume/ends",
            "unknown_value",
        ),
        (
            json!({"assume": {"topics": {"t": {"share": 2}}}}),
            "/assume/topics/t/share",
            "out_of_range",
        ),
        (
            json!({"tasks": [{"topic": "t", "action": {"command": {"program": "true"}}}]}),
            "/tasks/0/action/command",
            "commands_off",
        ),
        (json!({"bucket": "PT0.1S"}), "/bucket", "out_of_range"),
        (json!({"typo": 1}), "/typo", "unknown_field"),
    ] {
        let refused = api.post("/v1/simulate", &body);
        assert_eq!(refused.status, 422, "{body}");
        let error = &refused.json()["errors"][0];
        assert_eq!(
            (&error["pointer"], &error["code"]),
            (&json!(pointer), &json!(code)),
            "{body}"
        );
    }
}

#[test]
fn the_command_shows_a_timetable_and_the_answer_as_it_came() {
    let api = SHARED.service();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("what-if.json");
    let what_if = json!({"from": "2027-03-01T10:00:00Z", "for": "PT2H", "bucket": "PT30M", "tasks": [
        {"topic": "sim.cli", "key": "a", "delay": "PT5M", "action": {"none": {}}},
        {"topic": "sim.cli", "key": "b", "delay": "PT65M", "action": {"none": {}}}]});
    std::fs::write(&file, what_if.to_string()).expect("written");
    let file = file.to_str().expect("a path");
    let url = format!("http://{}", api.address);
    let run = |more: &[&str]| {
        let arguments = [&["simulate", "--file", file, "--url", &url], more].concat();
        let done = command(&arguments).output().expect("it runs");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("a text")
    };
    let shown = run(&[]);
    for part in ["2027-03-01T10:05:00.000Z", "sim.cli", "2 fire", "█"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let answer: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    assert_eq!(answer, simulated(&api, &what_if));
}

#[test]
fn two_are_played_at_a_time_and_one_that_nobody_waits_for_ends() {
    let api = Service::start();
    // Polled ten times a second for a month: more than can be played.
    let poll = json!({"http": {"url": "http://127.0.0.1:9/"}, "every": "PT0.1S", "for": "P30D", "done_if": "false"});
    let endless =
        json!({"for": "P30D", "tasks": [{"topic": "sim.endless", "action": {"poll": poll}}],
                         "assume": {"ends": "fail", "takes": "PT0S"}})
        .to_string();
    let ask = || {
        let mut stream = api.connect().expect("a connection");
        let head = format!(
            "POST /v1/simulate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{endless}",
            endless.len()
        );
        stream.write_all(head.as_bytes()).expect("it is sent");
        stream
    };
    // Whichever comes last is refused; the others are being played.
    let mut streams = vec![ask(), ask(), ask()];
    let last = until("two are played", SOON, || {
        streams.iter().position(is_answered)
    });
    let refused = Reply::read(&mut streams.remove(last)).expect("an answer");
    assert_eq!(refused.problem(), (429, "too_many_requests".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(!streams.iter().any(is_answered), "two are played");
    drop(streams);
    // Long before they would be cut off.
    let small = json!({"for": "PT1M", "tasks": []});
    let played = until("there is room again", Duration::from_secs(5), || {
        let reply = api.post("/v1/simulate", &small);
        (reply.status == 200).then(|| reply.json())
    });
    assert_eq!(played["counts"]["fires"], 0);
}

/// Whether something came back, without taking it.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("it is set");
    let seen = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("it is set");
    seen.is_ok_and(|bytes| bytes > 0)
}

/// The requests of the page, each with the answer that it shows.
fn examples() -> Vec<(Value, Value)> {
    let page = include_str!("../src/docs/what-if.md");
    let blocks = page.split("```json\n").skip(1).map(|rest| {
        let (json, _) = rest.split_once("```").expect("a block ends");
        serde_json::from_str(json).expect("JSON")
    });
    let blocks: Vec<Value> = blocks.collect();
    let pairs = blocks
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()));
    pairs.collect()
}

#[test]
fn the_examples_of_the_page_give_what_it_says() {
    let api = SHARED.service();
    let examples = examples();
    assert_eq!(examples.len(), 2);
    for (what_if, shown) in examples {
        let played = simulated(&api, &what_if);
        for (name, value) in shown.as_object().expect("an object") {
            assert_eq!(played[name], *value, "{name} of {what_if}");
        }
    }
}

#[test]
fn the_forecast_counts_what_waits_by_the_minute_it_is_due() {
    let api = Service::start();
    let from = ms(&api.get("/v1/forecast").must(200)["from"]);
    let due = |minutes: i64| json!({"topic": "sim.forecast", "due_at": iso(from + minutes * 60_000), "action": {"none": {}}});
    let many: Vec<Value> = [5, 5, 5, 7, 90].map(due).to_vec();
    api.made_many(&many);
    api.made(&json!({"topic": "sim.waits"}));
    let foreseen = until("the pull is due", SOON, || {
        let foreseen = api.get("/v1/forecast?count=60").must(200);
        (foreseen["due"] == 1).then_some(foreseen)
    });
    let buckets = foreseen["buckets"].as_array().expect("a list").iter();
    let some: Vec<(i64, u64)> = buckets
        .map(|bucket| {
            (
                ms(&bucket["at"]) - from,
                bucket["tasks"].as_u64().expect("a number"),
            )
        })
        .filter(|(_, tasks)| *tasks > 0)
        .collect();
    // Unless a minute has passed meanwhile, they begin where they began.
    assert_eq!(some, [(300_000, 3), (420_000, 1)]);
    assert_eq!(
        (&foreseen["later"], &foreseen["drain_time"]),
        (&json!(1), &Value::Null)
    );
    let hours = api.get("/v1/forecast?bucket=PT1H&count=3").must(200);
    let tasks = |it: &Value| it["tasks"].as_u64().expect("a number");
    let sum: u64 = hours["buckets"]
        .as_array()
        .expect("a list")
        .iter()
        .map(tasks)
        .sum();
    assert_eq!(sum, 5, "{hours}");
}
