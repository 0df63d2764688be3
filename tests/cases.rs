//! Cases from the field: faults of other systems of our kind, as they were reported, and what is right instead.
//! Those of retries, pauses and leases stand with their subjects.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use duetime::{
    Action, Clock, Created, Duetime, DurationMs, HandlerTask, NewTask, State, Target, TopicName,
    WallMs,
};
use support::receiver::{Answer, Hit, Receiver, assert_sound, by_task, status};
use support::service::{Service, Shared};
use support::{LATE_MS_MAX, Random, fixed, iso, length, ms, now_ms, pass, push, until};

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
