//! Cases from the field: faults of other systems of our kind, as they were reported, and what is right instead.
//! Those of retries, pauses and leases stand with their subjects.
#![expect(clippy::print_stdout, reason = "figures are for whoever looks")]

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use duetime::{
    Action, Clock, Created, Duetime, DurationMs, HandlerTask, NewTask, State, Target, TopicName,
    WallMs,
};
use support::receiver::{Answer, Gate, Hit, Receiver, assert_sound, by_task, status};
use support::service::{Service, Shared};
use support::{LATE_MS_MAX, Over, Random, fixed, iso, length, ms, now_ms, pass, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

/// Lengths around 2³¹ and 2³² milliseconds and 30 days, and where they lead from the first instant of 2027.
const CASE_1: [(u64, &str); 5] = [
    (2_147_483_647, "2027-01-25T20:31:23.647Z"),
    (2_147_483_648, "2027-01-25T20:31:23.648Z"),
    (2_592_000_000, "2027-01-31T00:00:00.000Z"),
    (4_294_962_296, "2027-02-19T17:02:42.296Z"),
    (4_294_972_296, "2027-02-19T17:02:52.296Z"),
];

#[test]
fn case_1_delays_beyond_31_and_32_bits_of_milliseconds_do_not_wrap() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/never", &[status(200)]);
    for (delay_ms, due_at) in CASE_1 {
        let task =
            api.made(&json!({"topic": "case1", "delay": length(delay_ms), "action": push(&url)}));
        let ahead = ms(&task["due_at"]) - ms(&task["created_at"]);
        assert_eq!(ahead.unsigned_abs(), delay_ms);
        let task = api.made(&json!({"topic": "case1", "due_at": due_at, "action": push(&url)}));
        assert_eq!(task["due_at"], due_at);
    }
    // A task that is due meanwhile comes, and theirs do not.
    let soon = receiver.on("/soon", &[status(200)]);
    api.made(&json!({"topic": "case1.soon", "delay": "PT0.3S", "action": push(&soon)}));
    receiver.wait("/soon", 1);
    assert!(receiver.hits("/never").is_empty());
}

#[test]
fn case_1_a_limit_of_thirty_days_admits_exactly_thirty_days() {
    let api = Service::with(&[("DUETIME_LIMITS__MAX_DELAY", "PT2592000S")]);
    let create = |delay_ms| {
        let body = json!({"topic": "case1", "delay": length(delay_ms), "action": {"none": {}}});
        api.post("/v1/tasks", &body)
    };
    create(2_592_000_000).must(201);
    let refused = create(2_592_000_001);
    assert_eq!(refused.problem().0, 422);
    let detail = refused.json()["errors"][0]["detail"].to_string();
    assert!(
        detail.contains("P30D") && !detail.contains('-'),
        "it names a positive maximum: {detail}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn case_1_on_a_moved_clock_nothing_comes_a_millisecond_early_and_each_comes_once() {
    let start = WallMs(ms(&json!("2027-01-01T00:00:00.000Z")));
    let clock = Clock::by_hand(start);
    let (tell, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let data = tempfile::tempdir().expect("a temporary directory");
    let on_call = {
        let clock = clock.clone();
        move |task: HandlerTask| {
            let (tell, at) = (tell.clone(), clock.now().wall);
            async move {
                let key = task.key.map(|key| key.as_str().to_owned());
                tell.send((key.unwrap_or_default(), at))
                    .expect("the test listens");
                Ok(None)
            }
        }
    };
    // One shard, so that a task that comes shows that everything before it was looked at.
    let engine = Duetime::builder()
        .data_dir(data.path())
        .shards(1)
        .clock(clock.clone())
        .handler("tell", on_call);
    let engine = engine.start().await.expect("it starts");
    let topic = TopicName::parse("case1").expect("a name");
    let create = async |key: &str, delay_ms: u64| {
        let new = NewTask::new(topic.clone())
            .key(key)
            .expect("a key")
            .after(Duration::from_millis(delay_ms));
        let created = engine
            .create(
                new.action(Action::Handler {
                    name: "tell".into(),
                }),
                "test",
            )
            .await;
        let Ok(Created::New(view)) = created else {
            panic!("{created:?}")
        };
        view.task
    };
    let mut ids = Vec::new();
    for (delay_ms, due_at) in CASE_1 {
        let task = create(&format!("case {delay_ms}"), delay_ms).await;
        assert_eq!(task.due.at.to_string(), due_at);
        ids.push(task.id);
    }
    let mut before = Vec::new();
    // Each has a companion that is due one millisecond before.
    for (delay_ms, _) in CASE_1 {
        before.push(create(&format!("before {delay_ms}"), delay_ms - 1).await.id);
    }
    let ended = async |id| {
        loop {
            let view = engine
                .get(Target::Id(id))
                .await
                .expect("an answer")
                .expect("it is there");
            if view.task.state == State::Succeeded {
                return view.task;
            }
            tokio::task::yield_now().await;
        }
    };
    let mut passed = 0;
    let mut heard = Vec::new();
    for (n, (delay_ms, _)) in CASE_1.into_iter().enumerate() {
        for (what, at_ms, id) in [
            ("before", delay_ms - 1, before[n]),
            ("case", delay_ms, ids[n]),
        ] {
            // The first length and the companion of the second are due together.
            if at_ms > passed {
                clock.advance(DurationMs(at_ms - passed));
                passed = at_ms;
            }
            let wanted = format!("{what} {delay_ms}");
            while !heard.iter().any(|(key, _)| *key == wanted) {
                let next = tokio::time::timeout(Duration::from_secs(20), hear.recv()).await;
                heard.push(
                    next.unwrap_or_else(|_| panic!("{wanted} does not come"))
                        .expect("the engine lives"),
                );
            }
            // Its answer is on the disk before weeks pass again, else it would be long overdue.
            let task = ended(id).await;
            assert_eq!((task.attempts, task.lateness_ms), (1, Some(0)), "{wanted}");
        }
    }
    for (key, at) in &heard {
        let (what, delay) = key.split_once(' ').expect("two words");
        let delay: u64 = delay.parse().expect("milliseconds");
        let due = if what == "before" { delay - 1 } else { delay };
        assert_eq!(
            at.since(start),
            DurationMs(due),
            "{key} comes at its instant"
        );
    }
    assert_eq!(heard.len(), 2 * CASE_1.len(), "each once: {heard:?}");
    engine.shutdown().await;
    assert!(hear.try_recv().is_err(), "and nothing more");
}

#[test]
fn case_3_the_time_left_of_a_task_that_a_pause_made_late_is_zero() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/case3", &[status(200)]);
    api.post("/v1/topics/case3/pause", &json!({})).must(200);
    let task = api.made(&json!({"topic": "case3", "delay": "PT0.4S", "action": push(&url)}));
    assert!((1..=400).contains(&task["remaining_ms"].as_i64().expect("a number")));
    // That the time left stays at nothing while time goes on is the subject.
    until("it is half a second late", support::SOON, || {
        (now_ms() > ms(&task["due_at"]) + 500).then_some(())
    });
    for shown in [api.task(&task["id"]), api.list("topic=case3").remove(0)] {
        assert_eq!(
            (&shown["remaining_ms"], &shown["state"]),
            (&json!(0), &json!("pending"))
        );
        assert_eq!(
            (&shown["due_at"], &shown["blocked_by"]),
            (&task["due_at"], &json!("topic_paused"))
        );
    }
    assert!(receiver.hits("/case3").is_empty());
    let resumed = now_ms();
    api.post("/v1/topics/case3/resume", &json!({})).must(200);
    let late = receiver.wait("/case3", 1)[0].at_ms - resumed;
    assert!(late < 1_000, "{late} ms after the resume");
}

#[test]
fn case_4_the_zone_of_the_process_means_nothing() {
    let receiver = Receiver::start();
    for zone in ["Asia/Shanghai", "UTC"] {
        let api = Service::with(&[("TZ", zone)]);
        let create = |mut body: Value| {
            body["topic"] = json!("case4");
            api.post("/v1/tasks", &body)
        };
        let no_offset = create(json!({"due_at": "2027-06-01T12:00:00"}));
        assert_eq!(no_offset.problem().0, 422, "{zone}");
        assert!(no_offset.text().contains("offset"), "{}", no_offset.text());
        for time in [
            json!({"due_at": "2027-06-01T12:00:00+01:00"}),
            json!({"due_at": "2027-06-01T12:00:00", "tz": "Europe/London"}),
        ] {
            assert_eq!(
                create(time).must(201)["due_at"],
                "2027-06-01T11:00:00.000Z",
                "{zone}"
            );
        }
        let path = format!("/{zone}");
        let url = receiver.on(&path, &[status(200)]);
        let task = create(json!({"delay": "PT0.5S", "action": push(&url)})).must(201);
        let took = receiver.wait(&path, 1)[0].at_ms - ms(&task["created_at"]);
        assert!(
            (500..=500 + LATE_MS_MAX).contains(&took),
            "{zone}: {took} ms"
        );
    }
}

/// Tasks that are all due at once, and their due times by id.
fn due_at_once(
    api: &Service,
    topic: &str,
    url: &str,
    count: usize,
    at_ms: i64,
) -> HashMap<String, i64> {
    let one = |n| {
        json!({
            "topic": topic, "key": format!("k{n}"), "due_at": iso(at_ms), "action": push(url), "retry": fixed(50, 20),
        })
    };
    let items: Vec<Value> = (0..count).map(one).collect();
    let made = api.made_many(&items);
    let id = |task: &Value| task["id"].as_str().expect("an id").to_owned();
    made.iter()
        .map(|task| (id(task), ms(&task["due_at"])))
        .collect()
}

fn assert_all_succeeded(api: &Service, topic: &str, count: usize) {
    let all = api.list(&format!("topic={topic}&limit=1000"));
    assert_eq!(all.len(), count);
    for task in all {
        api.wait_state(&task["id"], "succeeded");
    }
}

#[test]
fn case_37_a_kill_around_the_due_time_loses_and_repeats_nothing() {
    let (mut api, receiver, mut random) = (Service::start(), Receiver::start(), Random::new(37));
    for round in 0..6 {
        let (path, topic) = (format!("/case37/{round}"), format!("case37.{round}"));
        let url = receiver.on(&path, &[status(200)]);
        let at_ms = now_ms() + 500;
        let due = due_at_once(&api, &topic, &url, 200, at_ms);
        let kill_at = at_ms + i64::try_from(random.below(200)).expect("a small number");
        pass(Duration::from_millis(
            u64::try_from(kill_at - now_ms()).unwrap_or(0),
        ));
        api.kill_and_start();
        let ready_ms = now_ms();
        let hits = receiver.wait_tasks(&path, 200);
        assert_sound(&hits, &due);
        let firsts = hits
            .iter()
            .filter(|hit| hit.attempt() == 1 || hit.at_ms > ready_ms);
        let latest = firsts.map(|hit| hit.at_ms).max().unwrap_or_default();
        assert!(
            latest <= ready_ms.max(at_ms) + 2_000,
            "round {round}: {} ms after ready",
            latest - ready_ms
        );
        assert_all_succeeded(&api, &topic, 200);
        assert_sound(&receiver.hits(&path), &due);
    }
}

/// A service in the middle of many deliveries: of `count` tasks a third has come.
fn in_the_middle(path: &str, count: usize) -> (Service, Receiver, HashMap<String, i64>) {
    // Few at a time, so that it stays in the middle for a while.
    let (api, receiver) = (
        Service::with(&[("DUETIME_PUSH__RUNNING", "16")]),
        Receiver::start(),
    );
    let answer = Answer::Later(Duration::from_millis(5), 200, String::new());
    let url = receiver.on(path, &[answer]);
    let due = due_at_once(&api, "case39", &url, count, now_ms() + 800);
    let hits = receiver.wait(path, count / 3);
    assert!(hits.len() < count);
    (api, receiver, due)
}

#[test]
fn case_39_sigterm_in_the_middle_of_deliveries_delivers_each_exactly_once() {
    let (mut api, receiver, due) = in_the_middle("/term", 900);
    let (exit, _) = api.terminate();
    assert_eq!(exit.code(), Some(0));
    assert!(
        by_task(&receiver.hits("/term")).len() < 900,
        "it stopped in the middle"
    );
    api.start_again();
    receiver.wait_tasks("/term", 900);
    assert_all_succeeded(&api, "case39", 900);
    let hits = receiver.hits("/term");
    assert_sound(&hits, &due);
    assert_eq!(hits.len(), 900, "each once");
}

#[test]
fn case_39_kill_in_the_middle_of_deliveries_repeats_only_what_was_in_flight_with_a_higher_attempt()
{
    let (mut api, receiver, due) = in_the_middle("/kill", 900);
    api.kill_and_start();
    receiver.wait_tasks("/kill", 900);
    assert_all_succeeded(&api, "case39", 900);
    let hits = receiver.hits("/kill");
    assert_sound(&hits, &due);
    let again: Vec<&Hit> = hits.iter().filter(|hit| hit.attempt() > 1).collect();
    let repeated = hits.len() - 900;
    // Beside the 16 that ran, answers may have been on their way to the disk.
    assert!(
        repeated <= 64 && again.len() >= repeated,
        "{repeated} came again"
    );
}

#[test]
fn case_22_a_task_that_is_cancelled_never_runs_whatever_comes_between() {
    let (mut api, receiver) = (
        Service::with(&[
            ("DUETIME_SHARDS__COUNT", "1"),
            ("DUETIME_PUSH__PER_HOST", "2"),
        ]),
        Receiver::start(),
    );
    let cancelled = |api: &Service, id: &Value| assert_eq!(api.task(id)["state"], "cancelled");
    // (a) Killed right after the cancel.
    let url = receiver.on("/killed", &[status(200)]);
    let killed = api.made(&json!({"topic": "case22", "delay": "PT1S", "action": push(&url)}));
    api.verb("cancel", &killed["id"], &json!({})).must(200);
    api.kill_and_start();
    cancelled(&api, &killed["id"]);

    // (b) Cancelled while no worker is there.
    let pulled = api.made(&json!({"topic": "case22.pull"}));
    api.verb("cancel", &pulled["id"], &json!({})).must(200);
    assert!(api.lease("case22.pull", 10, 200, "PT10S").is_empty());
    cancelled(&api, &pulled["id"]);

    // (c) Two at a time, and the third is cancelled while it waits behind them.
    let gate = Gate::default();
    let url = receiver.on("/held", &[Answer::Held(gate.clone())]);
    let held = |key: &str| {
        api.made(
            &json!({"topic": "case22", "key": key, "action": push(&url), "retry": fixed(50, 1)}),
        )
    };
    let first = [held("one"), held("two")];
    receiver.wait("/held", 2);
    let third = held("three");
    until("it waits for the host", support::SOON, || {
        api.task(&third["id"])["blocked_by"]
            .is_string()
            .then_some(())
    });
    api.verb("cancel", &third["id"], &json!({})).must(200);
    gate.open();
    for task in &first {
        api.wait_state(&task["id"], "succeeded");
    }
    cancelled(&api, &third["id"]);

    // (d) Cancelled while it runs; the worker completes it then.
    let leased = api.made(&json!({"topic": "case22.pull"}));
    let lease = api.lease("case22.pull", 1, 10_000, "PT1M").remove(0);
    assert_eq!(lease["task"]["id"], leased["id"]);
    api.verb("cancel", &leased["id"], &json!({})).must(202);
    assert_eq!(
        api.say("heartbeat", &lease, json!({})).must(200)["cancelled"],
        true
    );
    assert_eq!(
        api.say("complete", &lease, json!({"result": 1})).status,
        409
    );
    cancelled(&api, &leased["id"]);

    // Whatever would have come of the first has had its time.
    let url = receiver.on("/after", &[status(200)]);
    let due_at = iso(ms(&killed["due_at"]) + 100);
    api.made(&json!({"topic": "case22", "due_at": due_at, "action": push(&url)}));
    receiver.wait("/after", 1);
    assert!(receiver.hits("/killed").is_empty());
    assert_eq!(receiver.hits("/held").len(), 2);
}

#[test]
fn case_32_a_zero_character_comes_back_as_it_went_in_and_half_a_character_is_refused() {
    let (api, receiver) = (service(), Receiver::start());
    let zero = json!({"s": "a\0b"});
    let (sent, half) = (r#"{"s": "a\u0000b"}"#, r#"{"s": "\ud800"}"#);
    let say = |path: &str, body: String| {
        let kind = [("content-type", "application/json")];
        api.send("POST", path, &kind, body.as_bytes())
            .expect("an answer")
    };
    let url = receiver.on(
        "/case32",
        &[
            Answer::Say(200, sent.to_owned()),
            Answer::Say(200, half.to_owned()),
        ],
    );
    let create = |payload: &str| {
        let body = format!(
            r#"{{"topic": "case32", "payload": {payload}, "action": {}}}"#,
            push(&url)
        );
        say("/v1/tasks", body)
    };

    // A payload, and what a receiver answers.
    assert_eq!(create(half).problem(), (422, "invalid".to_owned()));
    let task = create(sent).must(201);
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!((&done["payload"], &done["result"]), (&zero, &zero));
    assert_eq!(receiver.wait("/case32", 1)[0].body["payload"], zero);
    let task = create("1").must(201);
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(
        done["result"],
        Value::Null,
        "half a character is no JSON that can be kept"
    );

    // A worker's result and its error.
    let leased = |verb: &str| {
        let task = api.made(&json!({"topic": "case32.pull", "retry": fixed(50, 1)}));
        let lease = api.lease("case32.pull", 1, 10_000, "PT1M").remove(0);
        let id = task["id"].as_str().expect("an id").to_owned();
        let token = lease["token"].clone();
        (task["id"].clone(), format!("/v1/leases/{id}/{verb}"), token)
    };
    let (id, path, token) = leased("complete");
    let result = |text: &str| say(&path, format!(r#"{{"token": {token}, "result": {text}}}"#));
    assert_eq!(result(half).problem(), (422, "invalid".to_owned()));
    result(sent).must(200);
    assert_eq!(api.task(&id)["result"], zero);
    let (id, path, token) = leased("fail");
    let error = |text: &str| {
        say(
            &path,
            format!(r#"{{"token": {token}, "error": {{"code": "odd", "message": "{text}"}}}}"#),
        )
    };
    assert_eq!(error(r"\ud800").problem(), (422, "invalid".to_owned()));
    error(r"a\u0000b").must(200);
    assert_eq!(
        api.wait_state(&id, "dead")["last_outcome"]["error"]["message"],
        "a\0b"
    );

    // A name, and a header.
    let refused = |body: Value| assert_eq!(api.post("/v1/tasks", &body).problem().0, 422, "{body}");
    refused(json!({"topic": "case32", "key": "a\0b"}));
    let half_key = r#"{"topic": "case32", "key": "\ud800"}"#.to_owned();
    assert_eq!(
        say("/v1/tasks", half_key).problem(),
        (422, "invalid".to_owned())
    );
    refused(
        json!({"topic": "case32", "action": {"http": {"url": url, "headers": {"x-odd": "a\0b"}}}}),
    );
    for task in api
        .list("topic=case32")
        .into_iter()
        .chain(api.list("topic=case32.pull"))
    {
        assert!(!task["ended_at"].is_null(), "{task}");
    }
}

/// The case has 100 000 tasks, which takes a minute: `DUETIME_CASE_44=100000`.
#[test]
fn case_44_what_is_due_all_at_once_drains_steadily_and_keeps_no_other_topic_waiting() {
    let many = std::env::var("DUETIME_CASE_44").ok();
    let many: usize = many.map_or(2_000, |many| many.parse().expect("a number"));
    let few = (many / 1_000).clamp(20, 100);
    let (api, receiver) = (Service::start(), Receiver::start());
    let slow = || [Answer::Later(Duration::from_millis(5), 200, String::new())];
    let (url_a, url_b) = (receiver.on("/a", &slow()), receiver.on("/b", &slow()));
    // Time enough to create them all.
    let at_ms = now_ms() + 2_000 + i64::try_from(many / 2).expect("a small number");
    let due_a = due_at_once(&api, "case44.a", &url_a, many, at_ms);
    let due_b = due_at_once(&api, "case44.b", &url_b, few, at_ms);
    let due_later = due_at_once(&api, "case44.later", &url_b, few / 2, at_ms + 3_000);
    assert!(now_ms() < at_ms, "they were made too slowly");

    let over = AtomicBool::new(false);
    let mut slowest = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut took = Vec::new();
            while !over.load(Ordering::Acquire) {
                let begun = Instant::now();
                api.made(&json!({"topic": "case44.api", "delay": "P1D"}));
                took.push(begun.elapsed());
            }
            took
        });
        let over = Over(&over);
        let end = Instant::now() + Duration::from_secs(30) + Duration::from_millis(2 * many as u64);
        until("all have come", end - Instant::now(), || {
            (receiver.count() >= many + few + few / 2).then_some(())
        });
        drop(over);
        asking.join().expect("it was answered")
    });
    slowest.sort_unstable();
    let p99 = slowest[slowest.len() * 99 / 100];
    assert!(p99 < Duration::from_millis(500), "{p99:?}");

    let (hits_a, hits_b) = (receiver.hits("/a"), receiver.hits("/b"));
    let late = |hits: &[Hit], due: &HashMap<String, i64>| {
        let ours = hits.iter().filter(|hit| due.contains_key(&hit.id()));
        let late: Vec<_> = ours.map(|hit| hit.at_ms - due[&hit.id()]).collect();
        assert_eq!(late.len(), due.len(), "each once");
        late
    };
    for due in [&due_b, &due_later] {
        let latest = late(&hits_b, due).into_iter().max();
        assert!(
            latest.is_some_and(|late| late < 2_000),
            "{latest:?} ms late"
        );
    }
    let mut late = late(&hits_a, &due_a);
    assert!(late.iter().all(|late| *late >= 0));
    late.sort_unstable();
    // Half of them in about half of the time: the rate holds.
    let (half, all) = (late[many / 2], late[many - 1]);
    println!("{many} in {all} ms, half of them in {half} ms; API p99 {p99:?}");
    assert!(
        all <= 2 * half + 2_000,
        "{half} ms for half, {all} ms for all"
    );
    assert_all_succeeded(&api, "case44.b", few);
}
