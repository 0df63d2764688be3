//! What follows a failed attempt: waits, limits, dead letters, and a replay. Cases 17, 18 and 20 from the field.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use support::receiver::{Answer, Gate, Hit, Receiver, ok, status};
use support::service::{Service, Shared};
use support::{fixed, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

/// Later than asked for by at most this: a debug build on a shared machine.
const LATE: Duration = Duration::from_millis(250);
/// A wait is counted in whole milliseconds by the service's clock, which may cut off almost one.
const CLOCK_GRAIN: Duration = Duration::from_millis(1);

fn assert_gaps(hits: &[Hit], waits_ms: &[u64]) {
    let gaps: Vec<Duration> = hits
        .windows(2)
        .map(|pair| pair[1].at - pair[0].at)
        .collect();
    assert_eq!(gaps.len(), waits_ms.len(), "{gaps:?}");
    for (gap, wait_ms) in gaps.iter().zip(waits_ms) {
        let wait = Duration::from_millis(*wait_ms);
        assert!(
            (wait - CLOCK_GRAIN..=wait + LATE).contains(gap),
            "{gap:?} for a wait of {wait:?}, of {gaps:?}"
        );
    }
}

fn attempt_numbers(hits: &[Hit]) -> Vec<u64> {
    hits.iter().map(Hit::attempt).collect()
}

#[test]
fn after_500_and_500_comes_200_at_the_ladders_times() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on(
        "/ladder",
        &[status(500), status(500), ok(&json!({"third": true}))],
    );
    let task = api.made(&json!({
        "topic": "ladder", "delay": "PT0.05S", "action": push(&url),
        "retry": {"ladder": ["PT0.3S", "PT0.6S"], "max_attempts": 5},
    }));
    let hits = receiver.wait("/ladder", 3);
    assert_gaps(&hits, &[300, 600]);
    assert_eq!(attempt_numbers(&hits), [1, 2, 3]);
    let told = |name: &str| {
        hits.iter()
            .map(|hit| hit.header(name).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(told("duetime-attempt"), ["1", "2", "3"]);
    let same = told("webhook-id");
    assert!(
        same.iter().all(|id| *id == same[0]),
        "a receiver can drop repeats: {same:?}"
    );
    let tokens: Vec<u64> = hits
        .iter()
        .filter_map(|hit| hit.body["token"].as_u64())
        .collect();
    assert!(
        tokens.is_sorted() && tokens.len() == 3 && tokens[0] != tokens[2],
        "{tokens:?}"
    );

    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(
        (&done["result"], &done["attempts"]),
        (&json!({"third": true}), &json!(3))
    );
    let outcomes: Vec<Value> = api
        .attempts(&task["id"])
        .iter()
        .map(|a| a["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["failed", "failed", "succeeded"]);
    assert_eq!(api.attempts(&task["id"])[0]["error"]["code"], "http_500");
}

#[test]
fn an_answer_that_success_if_is_not_true_of_is_a_failed_attempt() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on(
        "/paid",
        &[
            ok(&json!({"paid": false})),
            ok(&json!({})),
            ok(&json!({"paid": true})),
        ],
    );
    let mut action = push(&url);
    action["http"]["success_if"] = json!("body.paid");
    let task = api.made(&json!({"topic": "paid", "action": action, "retry": fixed(50, 5)}));
    assert_eq!(task["action"]["http"]["success_if"], "body.paid");
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(done["result"], json!({"paid": true}));
    let codes: Vec<Value> = api
        .attempts(&task["id"])
        .iter()
        .map(|attempt| attempt["error"]["code"].clone())
        .collect();
    assert_eq!(
        codes,
        [
            json!("condition_false"),
            json!("condition_error"),
            Value::Null
        ]
    );

    // What the condition can't judge may have been done: under at_most_once it goes to a person.
    let url = receiver.on("/paid-once", &[ok(&json!({}))]);
    action["http"]["url"] = json!(url);
    let task = api.made(&json!({"topic": "paid", "action": action, "retry": fixed(50, 5), "delivery": "at_most_once"}));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(dead["dead_reason"], "outcome_unknown");
    assert_eq!(receiver.hits("/paid-once").len(), 1);
}

#[test]
fn the_last_step_of_a_ladder_repeats_until_the_task_is_dead() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/last", &[status(503)]);
    let task = api.made(&json!({
        "topic": "last", "action": push(&url), "retry": {"ladder": ["PT0.05S", "PT0.1S"], "max_attempts": 4},
    }));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["attempts"], &dead["dead_reason"]),
        (&json!(4), &json!("attempts_used_up"))
    );
    assert_eq!(dead["last_outcome"]["error"]["code"], "http_503");
    assert_gaps(&receiver.hits("/last"), &[50, 100, 100]);
    let late = api.verb("complete", &task["id"], &json!({}));
    assert_eq!(late.problem(), (409, "illegal_state".to_owned()));
}

#[test]
fn one_silent_receiver_does_not_keep_the_others_of_its_topic_waiting() {
    // Others would share the slots.
    let (api, silent, healthy) = (Service::start(), Receiver::start(), Receiver::start());
    let to =
        |url: &str| json!({"topic": "shops", "action": push(url), "timeouts": {"attempt": "PT1M"}});
    // More than all the slots that there are.
    let url = silent.on("/silent", &[Answer::Silence]);
    let tasks = api.made_many(&vec![to(&url); 1200]);
    silent.wait("/silent", 64);
    let url = healthy.on("/healthy", &[ok(&json!(1))]);
    for task in api.made_many(&vec![to(&url); 50]) {
        api.wait_state(&task["id"], "succeeded");
    }
    // What is aside was looked at meanwhile, and none of it started.
    let waits = until("one waits for its host", support::SOON, || {
        let last = api.task(&tasks[1199]["id"]);
        (last["blocked_by"] == "host_full").then_some(last)
    });
    assert_eq!(
        (&waits["state"], &waits["attempts"]),
        (&json!("pending"), &json!(0))
    );
    let running = silent.hits("/silent").len();
    // Three quarters of a host's 256 are the most that one topic has.
    assert!((64..=192).contains(&running), "{running}");
}

#[test]
fn a_silent_receiver_is_cut_off_when_the_time_of_the_attempt_is_up() {
    let (api, receiver) = (service(), Receiver::start());
    let late = Answer::Later(Duration::from_millis(1500), 200, "1".to_owned());
    let url = receiver.on("/silent", &[Answer::Silence, late]);
    let task = api.made(&json!({
        "topic": "silent", "action": push(&url), "retry": fixed(100, 2), "timeouts": {"attempt": "PT0.4S", "grace": "PT0S"},
    }));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["attempts"], &dead["last_outcome"]["outcome"]),
        (&json!(2), &json!("timeout"))
    );
    let all_cut = |hits: &[Hit]| hits.len() == 2 && hits.iter().all(|hit| hit.hung_up.is_some());
    let hits = receiver.wait_until("both connections are closed", "/silent", all_cut);
    for hit in &hits {
        let open = hit
            .hung_up
            .map(|closed| closed - hit.at)
            .unwrap_or_default();
        // The attempt's time began before its request had arrived.
        let allowed = Duration::from_millis(300)..=Duration::from_millis(400) + LATE;
        assert!(
            allowed.contains(&open),
            "the connection was open for {open:?}"
        );
    }
    let outcomes: Vec<Value> = api
        .attempts(&task["id"])
        .iter()
        .map(|a| a["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["timeout", "timeout"]);
}

#[test]
fn case_20_a_replay_is_a_new_generation_with_a_fresh_budget_and_the_old_history() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/case20", &[Answer::Silence]);
    let task = api.made(&json!({
        "topic": "case20", "key": "k", "action": push(&url), "retry": fixed(20, 2),
        "timeouts": {"attempt": "PT0.2S", "grace": "PT0S"},
    }));
    let id = &task["id"];
    api.wait_state(id, "dead");

    // It hangs again: the second generation has two attempts of its own, no more and no less.
    api.verb("replay", id, &json!({})).must(200);
    let dead = until("dead again", support::SOON, || {
        let task = api.task(id);
        (task["state"] == "dead" && task["generation"] == 2).then_some(task)
    });
    assert_eq!(dead["attempts"], 2);
    assert_eq!(attempt_numbers(&receiver.hits("/case20")), [1, 2, 3, 4]);

    receiver.on("/case20", &[ok(&json!({"back": 1}))]);
    let answered = api.verb("replay", id, &json!({})).must(200);
    assert_eq!(answered["generation"], 3);
    let back = api.wait_state(id, "succeeded");
    assert_eq!(
        (&back["generation"], &back["attempts"], &back["result"]),
        (&json!(3), &json!(1), &json!({"back": 1}))
    );
    let last = receiver.hits("/case20").pop().expect("it was delivered");
    assert_eq!((&last.body["generation"], last.attempt()), (&json!(3), 5));
    assert!(
        last.header("webhook-id").ends_with(".3."),
        "another generation is another message"
    );
    let history: Vec<(Value, Value)> = api
        .attempts(id)
        .iter()
        .map(|attempt| (attempt["attempt"].clone(), attempt["generation"].clone()))
        .collect();
    let expected = [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)]
        .map(|(attempt, generation)| (json!(attempt), json!(generation)));
    assert_eq!(history, expected);
}

#[test]
fn case_20_of_two_replays_at_once_one_is_refused() {
    let (api, receiver, gate) = (service(), Receiver::start(), Gate::default());
    for round in 0..10 {
        let path = format!("/twice/{round}");
        let url = receiver.on(&path, &[status(500), Answer::Held(gate.clone())]);
        let task = api.made(&json!({"topic": "twice", "action": push(&url), "retry": fixed(0, 1)}));
        api.wait_state(&task["id"], "dead");
        let replay = || api.verb("replay", &task["id"], &json!({})).status;
        let mut statuses = std::thread::scope(|scope| {
            let other = scope.spawn(replay);
            [replay(), other.join().expect("the other caller")]
        });
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "round {round}");
        receiver.wait(&path, 2);
    }
    gate.open();
    for task in api.list("topic=twice") {
        let done = api.wait_state(&task["id"], "succeeded");
        assert_eq!(done["generation"], 2);
    }
    for round in 0..10 {
        assert_eq!(receiver.hits(&format!("/twice/{round}")).len(), 2);
    }
}

/// The case has a base of 100 ms, a cap of 1 s and 80 attempts; the shape is the same at a fifth of it.
#[test]
fn case_17_exponential_waits_grow_to_their_cap_and_stay_there() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/case17", &[status(500)]);
    let waits = json!({"base": "PT0.02S", "factor": 2, "cap": "PT0.2S", "jitter": 0});
    let task = api.made(&json!({
        "topic": "case17", "action": push(&url), "retry": {"exponential": waits, "max_attempts": 12},
    }));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(dead["attempts"], 12);
    let hits = receiver.hits("/case17");
    assert_gaps(&hits, &[20, 40, 80, 160, 200, 200, 200, 200, 200, 200, 200]);
}

#[test]
fn case_17_the_preview_of_ten_thousand_attempts_never_overflows() {
    let api = service();
    let preview = |retry: Value, attempts| -> Vec<Duration> {
        let answer = api
            .post(
                "/v1/preview/retry",
                &json!({"retry": retry, "attempts": attempts}),
            )
            .must(200);
        let delays = answer["delays"].as_array().expect("a list of delays");
        let parse = |delay: &Value| -> Duration {
            let span: jiff::Span = delay
                .as_str()
                .expect("a length")
                .parse()
                .expect("an ISO 8601 duration");
            let exact = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours());
            exact
                .expect("no years or months")
                .try_into()
                .expect("not negative")
        };
        delays.iter().map(parse).collect()
    };
    let waits = json!({"base": "PT1S", "factor": 2, "cap": "PT1H", "jitter": 0});
    let delays = preview(
        json!({"exponential": waits, "max_attempts": 10_000}),
        10_000,
    );
    assert_eq!(delays.len(), 10_000);
    for (n, delay) in (1..).zip(&delays) {
        let expected = if n <= 12 { 1 << (n - 1) } else { 3600 };
        assert_eq!(*delay, Duration::from_secs(expected), "n = {n}");
    }

    let ladder = json!({"ladder": ["PT1M", "PT5M", "PT10M", "PT30M"], "max_attempts": 11});
    let cumulative: Vec<u64> = preview(ladder, 10)
        .iter()
        .scan(Duration::ZERO, |sum, delay| {
            *sum += *delay;
            Some(sum.as_secs() / 60)
        })
        .collect();
    assert_eq!(cumulative, [1, 6, 16, 46, 76, 106, 136, 166, 196, 226]);
}

#[test]
fn case_18_a_push_that_times_out_is_an_attempt_and_only_the_last_one_is_the_end() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/case18", &[Answer::Silence]);
    let task = api.made(&json!({
        "topic": "case18.push", "action": push(&url), "retry": fixed(400, 3),
        "timeouts": {"attempt": "PT0.2S", "grace": "PT0S"},
    }));
    for timed_out in 1..=2 {
        let waiting = until("it waits for its next attempt", support::SOON, || {
            let task = api.task(&task["id"]);
            assert_ne!(task["state"], "dead", "{task}");
            (task["state"] == "retrying" && task["attempts"] == timed_out).then_some(task)
        });
        assert_eq!(waiting["waiting_for"], "retry");
        assert_eq!(waiting["last_outcome"]["outcome"], "timeout");
    }
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["attempts"], &dead["dead_reason"]),
        (&json!(3), &json!("attempts_used_up"))
    );
    assert_eq!(receiver.hits("/case18").len(), 3);
}

#[test]
fn case_18_a_lost_lease_is_an_attempt_and_only_the_last_one_is_the_end() {
    let api = service();
    let task = api.made(&json!({"topic": "case18", "retry": fixed(0, 3), "payload": 1}));
    for lost in 1..=3 {
        let leased = api.lease("case18", 1, 5_000, "PT0.15S");
        assert_eq!((leased.len(), &leased[0]["attempt"]), (1, &json!(lost)));
        // The worker vanishes.
        let after = until("the lease is over", support::SOON, || {
            let task = api.task(&task["id"]);
            (task["state"] != "running").then_some(task)
        });
        assert_eq!(after["attempts"], lost);
        assert_eq!(after["last_outcome"]["outcome"], "lease_expired");
        if lost < 3 {
            assert!(
                ["retrying", "pending"].contains(&after["state"].as_str().unwrap_or_default()),
                "{after}"
            );
        } else {
            assert_eq!(
                (&after["state"], &after["dead_reason"]),
                (&json!("dead"), &json!("lease_expired"))
            );
        }
    }
    assert_eq!(api.lease("case18", 1, 0, "PT1S"), [json!(null); 0]);
}

#[test]
fn what_a_failure_leads_to_can_be_said_by_its_code() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/404", &[status(404)]);
    let on = |then: &str| json!({"fixed": "PT0S", "max_attempts": 5, "on": {"http_4xx": then}});
    let task = api.made(&json!({"topic": "on", "action": push(&url), "retry": on("dead")}));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["attempts"], &dead["dead_reason"]),
        (&json!(1), &json!("refused"))
    );

    let task = api.made(&json!({"topic": "on", "action": push(&url), "retry": on("park")}));
    let parked = api.wait_state(&task["id"], "paused");
    assert_eq!(parked["attempts"], 1);
    receiver.on("/404", &[status(200)]);
    api.verb("resume", &task["id"], &json!({})).must(200);
    api.wait_state(&task["id"], "succeeded");
}

#[test]
fn a_redirect_and_a_closed_port_are_failures_that_say_so() {
    let (api, receiver) = (service(), Receiver::start());
    let nobody = support::service::free_address();
    for (url, code) in [
        (receiver.on("/moved", &[status(302)]), "redirect"),
        (format!("http://{nobody}/"), "connect"),
    ] {
        let task =
            api.made(&json!({"topic": "broken", "action": push(&url), "retry": fixed(0, 1)}));
        let dead = api.wait_state(&task["id"], "dead");
        assert_eq!(dead["last_outcome"]["error"]["code"], code);
    }
}

#[test]
fn the_total_time_ends_a_task_that_has_attempts_left() {
    let (api, receiver) = (service(), Receiver::start());
    let url = receiver.on("/total", &[status(500)]);
    let task = api.made(&json!({
        "topic": "total", "action": push(&url), "retry": fixed(50, 1000), "timeouts": {"total": "PT0.4S"},
    }));
    let dead = api.wait_state(&task["id"], "dead");
    assert_eq!(
        (&dead["dead_reason"], &dead["last_outcome"]["outcome"]),
        (&json!("total_time"), &json!("total_time"))
    );
    let attempts = receiver.hits("/total").len();
    assert!((2..=9).contains(&attempts), "{attempts} attempts in 0.4 s");
}

// ---------------------------------------------------------------- a new owner

#[test]
fn a_push_that_runs_while_its_shard_is_started_again_is_made_once_and_its_answer_taken() {
    // Others would see their shard go.
    let (api, receiver, gate) = (Service::start(), Receiver::start(), Gate::default());
    let url = receiver.on("/adopted", &[Answer::Held(gate.clone())]);
    let task = api.made(&json!({"topic": "adopted", "action": push(&url)}));
    let shard = task["shard"].clone();
    let epoch = || {
        let shards = api.get("/v1/shards").must(200);
        let mut all = shards["items"].as_array()?.iter();
        let it = all.find(|it| it["shard"] == shard && it["state"] == "running")?;
        it["epoch"].as_u64()
    };
    let before = epoch().expect("it runs");
    receiver.wait("/adopted", 1);
    let restart = api.post(&format!("/v1/shards/{shard}/restart"), &json!({}));
    assert!((200..300).contains(&restart.status), "{}", restart.text());
    until("the shard has another owner", support::SOON, || {
        epoch().filter(|epoch| *epoch > before)
    });
    assert_eq!(api.task(&task["id"])["state"], "running");
    gate.open();
    let ended = api.wait_state(&task["id"], "succeeded");
    assert_eq!(ended["attempts"], 1);
    assert_eq!(receiver.hits("/adopted").len(), 1);
}
