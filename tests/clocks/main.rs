//! Time that is lost, and time that jumps: the process stands still for a while, and the wall clock steps by an hour,
//! forth and back. No task is early, none starts twice, none is forgotten; and each of it is told.
//!
//! ```text
//!   SIGSTOP … SIGCONT ──▶ duetime serve ──▶ receiver
//!   + 1 h, − 1 h ───────▶  └ its wall clock, and nobody else's
//! ```
//!
//! ```sh
//! cargo test --features failpoints --test clocks                   # it stands still for 4 s
//! cargo test --features failpoints --test clocks -- --for 60
//! ```

#![expect(clippy::print_stdout, reason = "a program says what it does")]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

mod wall_clock;

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use support::program::{is_asked_for, number};
use support::receiver::{Answer, Hit, Receiver, assert_sound, status};
use support::service::Service;
use support::{SOON, iso, length, ms, now_ms, pass, push, signal, until};
use wall_clock::WallClock;

const PROGRAM: &str = "clocks";
/// So long it stands still, unless something else is asked for: longer than a part may be silent here.
const STANDS_STILL_S: u64 = 4;
const SILENCE_S: u64 = 1;
const HOUR_MS: i64 = 3_600_000;
/// How soon what has come due meanwhile is on its way.
const CAUGHT_UP_MS_MAX: i64 = 2_000;

fn main() -> ExitCode {
    let mut stands_still_s = STANDS_STILL_S;
    let is_meant = is_asked_for(PROGRAM, |option, value| {
        let is_mine = option == "--for";
        if is_mine {
            stands_still_s = number(option, &value());
        }
        is_mine
    });
    if is_meant {
        a_process_that_stood_still_catches_up_and_gives_up_nobody(stands_still_s);
        a_wall_clock_that_steps_makes_no_length_longer_and_nothing_early();
    }
    ExitCode::SUCCESS
}

fn a_process_that_stood_still_catches_up_and_gives_up_nobody(for_s: u64) {
    let silence = format!("PT{SILENCE_S}S");
    let mut service = Service::with(&[
        ("DUETIME_SUPERVISION__SILENCE", &silence),
        ("DUETIME_SUPERVISION__DISK_WAIT", &silence),
    ]);
    let receiver = Receiver::start();
    let action = push(&receiver.on("/push", &[status(200)]));
    // One each 50 ms, before, while and after it stands still; by instant and by length in turns.
    let (begin_ms, lasts_ms) = (now_ms(), 3_000 + 1_000 * for_s);
    let tasks = (500..lasts_ms).step_by(50).map(|in_ms| {
        let mut task = json!({"topic": "still", "action": action});
        match in_ms % 100 {
            0 => task["due_at"] = iso(begin_ms + in_ms as i64).into(),
            _ => task["delay"] = length(in_ms).into(),
        }
        task
    });
    let made = service.made_many(&tasks.collect::<Vec<_>>());
    let lease = service.made(&json!({"topic": "held", "delay": "PT0S", "action": {"pull": {}}}));
    let held = until("it can be leased", SOON, || {
        service.lease("held", 1, 1_000, "PT10M").pop()
    });
    // The answer to this one comes while nobody reads it, and its time is over when somebody does.
    let answer = Answer::Later(Duration::from_secs(1), 200, String::new());
    let slow = push(&receiver.on("/slow", &[answer]));
    let slow = service.made(&json!({"topic": "still", "delay": "PT0S", "action": slow,
                                    "timeouts": {"attempt": "PT2S"}}));
    receiver.wait("/push", 5);
    receiver.wait("/slow", 1);
    signal(service.process_id(), "STOP");
    pass(Duration::from_secs(for_s));
    let goes_on_ms = now_ms();
    signal(service.process_id(), "CONT");
    for task in &made {
        service.wait_state(&task["id"], "succeeded");
    }
    service.wait_state(&slow["id"], "succeeded");
    assert_eq!(receiver.hits("/slow").len(), 1, "its answer was read");
    let hits = receiver.hits("/push");
    let due_ms = due_of(&made);
    assert_sound(&hits, &due_ms);
    assert_eq!(hits.len(), made.len(), "each once");
    let late = late_after(&hits, |hit| due_ms[&hit.id()].max(goes_on_ms));
    println!(
        "{PROGRAM}: stood still for {for_s} s; {} tasks, each once; late by at most {late} ms, from when it went on",
        made.len()
    );
    assert!(late <= CAUGHT_UP_MS_MAX, "{late} ms late");
    // Nobody beat his pulse all that time, and nobody was taken to hang for it.
    let actors = service.get("/v1/actors").must(200);
    for actor in actors["items"].as_array().expect("a list") {
        assert_eq!(
            (&actor["restarts"], &actor["quarantined"]),
            (&json!(0), &json!(0)),
            "{actor}"
        );
    }
    assert_eq!(service.say("complete", &held, json!({})).status, 200);
    service.wait_state(&lease["id"], "succeeded");
    assert!(service.log().contains("watchdog was away"), "it is told");
    assert_eq!(steps(&service), (0, 0), "no clock has stepped");
    let (status, _) = service.terminate();
    assert_eq!(status.code(), Some(0));
}

fn a_wall_clock_that_steps_makes_no_length_longer_and_nothing_early() {
    const MANY: usize = 50;
    const WAIT_MS: i64 = 2_000;
    let mut clock = WallClock::new();
    let environment = clock.environment();
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let mut service = Service::with(&environment);
    let receiver = Receiver::start();
    let on = |path: &str| push(&receiver.on(path, &[status(200)]));
    let at = |path: &str, due_ms: i64| json!({"topic": "steps", "due_at": iso(due_ms), "action": on(path)});
    let after =
        |path: &str| json!({"topic": "steps", "delay": length(WAIT_MS as u64), "action": on(path)});
    let mut made = Vec::new();

    // An hour forth: what is due by then fires, and nothing else.
    let base_ms = clock.now_ms();
    let soon = (0..MANY).map(|n| at("/soon", base_ms + HOUR_MS / 2 + 1_000 * n as i64));
    let soon = service.made_many(&soon.collect::<Vec<_>>());
    let far_ms = base_ms + HOUR_MS + HOUR_MS / 2;
    made.push(service.made(&at("/far", far_ms)));
    assert!(receiver.hits("/soon").is_empty());
    clock.step(HOUR_MS);
    let stepped_ms = now_ms();
    let hits = receiver.wait_tasks("/soon", MANY);
    let late = late_after(&hits, |_| stepped_ms);
    println!("{PROGRAM}: an hour forth: {MANY} came due, late by at most {late} ms");
    assert!(late <= CAUGHT_UP_MS_MAX, "{late} ms late");
    until("the step is told", SOON, || {
        (steps(&service) == (1, 0)).then_some(())
    });

    // An hour back: what was to take two seconds takes two seconds, asked for before or after; what was to be at an
    // instant waits for it.
    let asked_ms = now_ms();
    made.push(service.made(&after("/before")));
    let instant_ms = clock.now_ms() + WAIT_MS;
    made.push(service.made(&at("/instant", instant_ms)));
    clock.step(-HOUR_MS);
    made.push(service.made(&after("/after")));
    let made_ms = now_ms();
    for path in ["/before", "/after"] {
        let took_ms = receiver.wait(path, 1)[0].at_ms - asked_ms;
        println!("{PROGRAM}: an hour back: asked for {path} it, {WAIT_MS} ms took {took_ms} ms");
        let longest_ms = WAIT_MS + (made_ms - asked_ms) + CAUGHT_UP_MS_MAX;
        assert!(
            (WAIT_MS..=longest_ms).contains(&took_ms),
            "{path}: {took_ms} ms"
        );
    }
    until("the step is told", SOON, || {
        (steps(&service) == (1, 1)).then_some(())
    });
    assert!(
        receiver.hits("/instant").is_empty(),
        "its instant is an hour away"
    );

    // Forth again, and again to a second before the last.
    clock.step(HOUR_MS);
    let hit = receiver.wait("/instant", 1).remove(0);
    assert!(clock.shown_at(hit.at_ms) >= instant_ms);
    assert!(receiver.hits("/far").is_empty());
    clock.step(far_ms - 1_000 - clock.now_ms());
    let hit = receiver.wait("/far", 1).remove(0);
    let late = clock.shown_at(hit.at_ms) - far_ms;
    println!("{PROGRAM}: forth to a second before an instant: late by {late} ms");
    assert!((0..=CAUGHT_UP_MS_MAX).contains(&late), "{late} ms late");

    until("the steps are told", SOON, || {
        (steps(&service) == (3, 1)).then_some(())
    });
    let told = |direction: &str| {
        let log = service.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("the wall clock stepped"));
        lines.filter(|line| line.contains(direction)).count()
    };
    assert_eq!((told("forward"), told("back")), (3, 1), "{}", service.log());
    for task in soon.iter().chain(&made) {
        service.wait_state(&task["id"], "succeeded");
    }
    let hits = receiver.hits_after(0);
    assert_eq!(hits.len(), soon.len() + made.len(), "each once");
    let (status, _) = service.terminate();
    assert_eq!(status.code(), Some(0));
}

fn due_of(made: &[Value]) -> HashMap<String, i64> {
    let due = made.iter().map(|task| {
        let id = task["id"].as_str().expect("an id");
        (id.to_owned(), ms(&task["due_at"]))
    });
    due.collect()
}

/// The most that one came after when it could.
fn late_after(hits: &[Hit], from_ms: impl Fn(&Hit) -> i64) -> i64 {
    let late = hits.iter().map(|hit| hit.at_ms - from_ms(hit));
    late.max().expect("some came")
}

/// How often its wall clock has stepped forth and back, as the service counts it.
fn steps(service: &Service) -> (u64, u64) {
    let metrics = service.get("/metrics").text();
    let count = |direction: &str| {
        let name = format!("duetime_clock_steps_total{{direction=\"{direction}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|count| count.parse().ok())
            .expect("it is counted")
    };
    (count("forward"), count("backward"))
}
