//! Receivers that misbehave on the wire: what becomes of the attempts that meet them, and of everybody else's.
#![expect(clippy::print_stdout, reason = "figures are for whoever looks")]

#[expect(dead_code, reason = "each file of tests uses its part")]
#[path = "../support/mod.rs"]
mod support;

mod receiver;

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use receiver::{Authority, Hostile, Manner, self_signed};
use support::receiver::{Receiver, status};
use support::service::Service;
use support::{SOON, fixed, iso, now_ms, push, until};

/// The deadline of an attempt, in milliseconds, and what counts as at it, and as at once.
const DEADLINE_MS: u64 = 3_000;
const AT_DEADLINE: RangeInclusive<u64> = 2_700..=3_300;
const AT_ONCE: RangeInclusive<u64> = 0..=1_500;
/// What may be kept of an answer, in bytes.
const KEPT_MAX: usize = 64 * 1024;

/// One that misbehaves, and what is to become of its attempt.
struct Case {
    what: &'static str,
    url: String,
    outcome: &'static str,
    code: &'static str,
    says: &'static str,
    when: RangeInclusive<u64>,
}

fn cases(hostile: &Hostile, authority: &Authority) -> Vec<Case> {
    use Manner::{
        Bomb, ClosesMidway, DripsBody, DripsHead, Endless, Gigabyte, Greets, HangsUp, Headers,
        Nonsense, Redirects, Refuses, Silent,
    };
    let plain = |what, manner, (outcome, code, says), when| Case {
        what,
        url: format!("http://{}/", hostile.target(manner)),
        outcome,
        code,
        says,
        when,
    };
    let tls = |what, manner, (outcome, code, says)| Case {
        url: format!("https://{}/", hostile.target(manner)),
        ..plain(what, Refuses, (outcome, code, says), AT_ONCE)
    };
    let (timeout, dropped) = (("timeout", "", ""), ("succeeded", "", "dropped"));
    vec![
        plain(
            "refuses",
            Refuses,
            ("failed", "connect", "refused"),
            AT_ONCE,
        ),
        plain("silent", Silent, timeout, AT_DEADLINE),
        plain(
            "a byte of the head per 10 s",
            DripsHead,
            timeout,
            AT_DEADLINE,
        ),
        plain(
            "a byte of the body per 10 s",
            DripsBody,
            timeout,
            AT_DEADLINE,
        ),
        plain("endless body", Endless(200), dropped, AT_ONCE),
        plain(
            "endless refusal",
            Endless(503),
            ("failed", "http_503", ""),
            AT_ONCE,
        ),
        plain("1 GiB", Gigabyte, dropped, AT_ONCE),
        // It is not unpacked, so it is not JSON.
        plain("gzip bomb", Bomb, ("succeeded", "", ""), AT_ONCE),
        plain(
            "100 MiB of headers",
            Headers,
            ("failed", "protocol", "too large"),
            AT_ONCE,
        ),
        plain("no HTTP", Nonsense, ("failed", "protocol", "HTTP"), AT_ONCE),
        plain(
            "closes midway",
            ClosesMidway,
            (
                "failed",
                "protocol",
                "end of file before message length reached",
            ),
            AT_ONCE,
        ),
        plain(
            "hangs up",
            HangsUp,
            ("failed", "protocol", "closed"),
            AT_ONCE,
        ),
        plain(
            "redirects to itself",
            Redirects,
            ("failed", "redirect", "302"),
            AT_ONCE,
        ),
        tls(
            "TLS, expired",
            authority.vouched_for("127.0.0.1"),
            ("failed", "tls", "expired"),
        ),
        tls(
            "TLS, wrong host",
            authority.vouches_for("elsewhere.example"),
            ("failed", "tls", "not valid for name"),
        ),
        tls(
            "TLS, self-signed",
            self_signed("127.0.0.1"),
            ("failed", "tls", "nknown"),
        ),
        tls("TLS, not TLS", Greets, ("failed", "tls", "")),
        tls(
            "TLS, as it should be",
            authority.vouches_for("127.0.0.1"),
            ("succeeded", "", ""),
        ),
    ]
}

/// A service that trusts this authority, with some memory for each of its allocator's threads and no more.
fn trusting(authority: &Authority) -> (tempfile::TempDir, Service) {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("roots.pem");
    fs::write(&file, authority.pem()).expect("a file");
    let file = file.to_str().expect("a plain path");
    let service = Service::with(&[("DUETIME_PUSH__ROOT_CERTIFICATES", file)]);
    (place, service)
}

fn attempt_at(url: &str) -> Value {
    json!({
        "topic": "hostile", "action": push(url), "retry": fixed(60_000, 1),
        "timeouts": {"attempt": support::length(DEADLINE_MS), "grace": "PT0S"},
    })
}

#[test]
fn every_kind_of_misbehaviour_ends_at_once_or_at_the_deadline_with_an_outcome_of_its_own_and_little_is_kept()
 {
    let (hostile, authority) = (Hostile::start(), Authority::new());
    let (_place, api) = trusting(&authority);
    let cases = cases(&hostile, &authority);
    let made: Vec<_> = cases
        .iter()
        .map(|case| api.made(&attempt_at(&case.url)))
        .collect();
    for (case, task) in cases.iter().zip(&made) {
        let what = case.what;
        let state = if case.outcome == "succeeded" {
            "succeeded"
        } else {
            "dead"
        };
        let task = api.wait_state(&task["id"], state);
        let last = &task["last_outcome"];
        let (code, message) = (&last["error"]["code"], &last["error"]["message"]);
        assert_eq!(last["outcome"], case.outcome, "{what}: {last}");
        assert_eq!(
            code.as_str().unwrap_or_default(),
            case.code,
            "{what}: {last}"
        );
        match case.says {
            "dropped" => assert_eq!(
                (&task["result"], &task["result_dropped"]),
                (&Value::Null, &json!(true)),
                "{what}"
            ),
            says => assert!(
                message.as_str().unwrap_or_default().contains(says),
                "{what}: {last}"
            ),
        }
        assert!(task.to_string().len() < KEPT_MAX, "{what}");
        let attempts = api.attempts(&task["id"]);
        let took = attempts[0]["duration_ms"].as_u64();
        assert!(
            took.is_some_and(|took| case.when.contains(&took)),
            "{what}: {took:?} ms"
        );
        assert_eq!(attempts.len(), 1, "{what}");
    }
    let open = || (hostile.open() == 0).then_some(());
    until("all connections are closed", SOON, open);
}

#[test]
fn memory_is_flat_whatever_comes_back() {
    const EACH: usize = 20;
    let (hostile, authority) = (Hostile::start(), Authority::new());
    let (_place, api) = trusting(&authority);
    let cases = cases(&hostile, &authority);
    let meet_all = |each: usize| {
        let all = cases
            .iter()
            .flat_map(|case| vec![attempt_at(&case.url); each]);
        let made = api.made_many(&all.collect::<Vec<_>>());
        for task in made {
            until("it has ended", SOON, || {
                let task = api.task(&task["id"]);
                (!task["ended_at"].is_null()).then_some(())
            });
        }
    };
    let process = api.process_id();
    let peak_of = |rounds: usize| {
        // From here on the peak counts.
        fs::write(format!("/proc/{process}/clear_refs"), "5").expect("a process of ours");
        for _ in 0..rounds {
            meet_all(EACH);
        }
        kib_of(process, "VmHWM")
    };
    let rounds = std::env::var("DUETIME_HOSTILE_ROUNDS").ok();
    let rounds = rounds.map_or(2, |rounds| rounds.parse().expect("a number"));
    let before = kib_of(process, "VmRSS");
    let (first, later) = (peak_of(1), peak_of(rounds));
    let tasks = EACH * cases.len();
    println!(
        "{before} KiB; at most {first} KiB with {tasks} attempts at hostile receivers, {later} KiB with {tasks} {rounds} times more"
    );
    // Hundreds of heads and bodies, of which up to 400 KiB lie in a buffer; one that was kept would be a gigabyte.
    assert!(
        first < before + 128 * 1024,
        "{before} KiB, then {first} KiB"
    );
    assert!(later < first + 48 * 1024, "{first} KiB, then {later} KiB");
}

/// So much of a process's memory, in KiB.
fn kib_of(process: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process of ours");
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|text| text.parse().ok())
        .expect("a number of KiB")
}

/// How late the slowest of a hundred is, in milliseconds, of pushes to a healthy receiver, 100 a second.
fn p99_ms(api: &Service, receiver: &Receiver, topic: &str, path: &str) -> i64 {
    const PUSHES: usize = 300;
    let url = receiver.on(path, &[status(200)]);
    let first = now_ms() + 1_000;
    let due = |n: usize| first + 10 * i64::try_from(n).expect("a small number");
    let items = (0..PUSHES)
        .map(|n| json!({"topic": topic, "key": format!("{path}{n}"), "due_at": iso(due(n)), "action": push(&url)}));
    api.made_many(&items.collect::<Vec<_>>());
    let hits = receiver.wait(path, PUSHES);
    let late = hits
        .iter()
        .map(|hit| hit.at_ms - support::ms(&hit.body["due_at"]));
    let mut late: Vec<i64> = late.collect();
    late.sort_unstable();
    assert!(late[0] >= 0, "{} ms early", -late[0]);
    late[PUSHES * 99 / 100 - 1]
}

#[test]
fn five_hundred_silent_targets_move_no_healthy_one() {
    const TARGETS: usize = 500;
    // So many want all slots that there are.
    let each = if descriptors() >= 18_000 { 18 } else { 1 };
    let api = Service::start();
    let (hostile, receiver) = (Hostile::start(), Receiver::start());
    // The machine may be busy with other things for a while: the best of a few counts.
    let p99_ms = |topic: &str, path: &str| {
        let tries = (0..4).map(|n| p99_ms(&api, &receiver, topic, &format!("{path}/{n}")));
        let mut best = i64::MAX;
        for p99 in tries {
            best = best.min(p99);
            if best <= 50 {
                break;
            }
        }
        best
    };
    let before = p99_ms("healthy", "/before");
    let memory = kib_of(api.process_id(), "VmRSS");

    let silent: Vec<_> = (0..TARGETS)
        .map(|_| format!("http://{}/", hostile.target(Manner::Silent)))
        .collect();
    let to_silent = |n: usize, topic: &str, url: &String| json!({"topic": topic, "key": n.to_string(), "action": push(url), "timeouts": {"attempt": "PT5M"}});
    let all = (0..each).flat_map(|_| &silent).enumerate();
    let items = all.map(|(n, url)| to_silent(n, ["silent", "mute"][n % 2], url));
    api.made_many(&items.collect::<Vec<_>>());
    // Each has what it may; the rest waits.
    let wanted = TARGETS * each.min(8);
    let mut last = (0, Instant::now());
    until("they are all silent", 3 * SOON, || {
        let open = hostile.open();
        if open != last.0 {
            last = (open, Instant::now());
        }
        (open >= wanted && last.1.elapsed() > Duration::from_millis(500)).then_some(())
    });

    let beside = p99_ms("healthy", "/beside");
    let among = p99_ms("silent", "/among");
    let open = hostile.open();
    let grown = kib_of(api.process_id(), "VmRSS").saturating_sub(memory);
    let each_kib = grown / u64::try_from(open).expect("a small number");
    println!(
        "{open} silent pushes: {grown} KiB more, {each_kib} KiB each; healthy p99 {before} ms before, {beside} ms \
         beside them, {among} ms in their topic"
    );
    assert!(each_kib <= 64, "{each_kib} KiB each");
    for p99 in [beside, among] {
        assert!(
            p99 <= before.max(0) + 50,
            "{p99} ms beside {open} silent pushes, {before} ms before"
        );
    }
}

/// How many descriptors this process may have: it holds the other end of everything.
fn descriptors() -> u64 {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(soft, |()| hard)
}

#[test]
fn a_file_without_a_certificate_stops_the_start_and_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("roots.pem");
    fs::write(&file, "nothing\n").expect("a file");
    let file = file.to_str().expect("a plain path");
    let mut api = Service::unstarted(&[("DUETIME_PUSH__ROOT_CERTIFICATES", file)]);
    let refused = api.try_start(support::service::START_MAX).err();
    let refused = refused.unwrap_or_default();
    assert!(
        refused.contains("roots.pem") && refused.contains("no certificate"),
        "{refused}"
    );
}
