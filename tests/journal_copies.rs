//! The journals in a second directory: what the loss of the data directory leaves, and what the loss of the second one
//! does.

#[expect(dead_code, reason = "each file uses its part of it")]
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use support::service::{Service, command};
use support::{SOON, until};

/// What may be lost with the data directory.
const WINDOW: Duration = Duration::from_secs(1);

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of UTF-8")
}

fn store(arguments: &[&str]) -> String {
    let output = command(&["store"]).args(arguments).output();
    let output = output.expect("the binary can be started");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {told}");
    told
}

/// A service that copies its journals to `copies` and makes a backup when it starts, and then for an hour none.
fn copied(home: &Path, copies: &Path) -> Service {
    Service::with(&[
        ("DUETIME_BACKUP__EVERY", "PT1H"),
        ("DUETIME_BACKUP__DIR", text(&home.join("backups"))),
        ("DUETIME_BACKUP__JOURNAL_DIR", text(copies)),
    ])
}

fn behind_s(service: &Service) -> f64 {
    let metrics = service.get("/metrics").text();
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("duetime_journal_copy_behind_seconds "));
    let line = line.unwrap_or_else(|| panic!("{metrics}"));
    line.parse().expect("a number")
}

#[test]
fn a_lost_data_directory_comes_back_but_for_the_last_second() {
    let home = tempfile::tempdir().expect("a directory");
    let copies = home.path().join("copies");
    let mut service = copied(home.path(), &copies);
    for n in 0..40 {
        let key = format!("early-{n}");
        service.made(&json!({"topic": "lost", "key": key, "delay": "PT5H", "payload": n}));
    }
    let backup = until("a backup is made", SOON, || {
        let made = std::fs::read_dir(home.path().join("backups")).ok()?;
        let mut made = made.flatten().map(|entry| entry.path());
        made.find(|path| path.extension().is_none() && path.join("MANIFEST").is_file())
    });
    // One that the backup has as pending, and that must not come back to life.
    let cancel = |key: &str| {
        let reply = service.verb_by_key("cancel", "lost", key, &json!({"reason": "paid"}));
        reply.must(200);
    };
    cancel("early-7");
    service
        .verb_by_key("reschedule", "lost", "early-8", &json!({"delay": "PT9H"}))
        .must(200);
    let begun = Instant::now();
    let mut answered = Vec::new();
    while begun.elapsed() < 3 * WINDOW {
        let key = format!("late-{}", answered.len());
        service.made(&json!({"topic": "lost", "key": key, "delay": "PT5H"}));
        answered.push(Instant::now());
        if answered.len() == 10 {
            cancel("late-3");
        }
    }
    let killed_at = Instant::now();
    service.kill();
    std::fs::remove_dir_all(service.data()).expect("it can be removed");

    let restored = home.path().join("restored");
    store(&[
        "restore",
        "--data",
        text(&restored),
        text(&backup),
        "--journals",
        text(&copies),
        "--shards",
        "3",
    ]);
    service.set_data(restored);
    service.start_again();
    let safe = answered.iter().filter(|at| **at + WINDOW <= killed_at);
    let safe = safe.count();
    assert!(safe > 20, "{safe} of {}", answered.len());
    for n in 0..40 {
        let task = service.by_key("lost", &format!("early-{n}"));
        let state = if n == 7 { "cancelled" } else { "pending" };
        assert_eq!(
            (&task["state"], &task["payload"]),
            (&json!(state), &json!(n))
        );
    }
    let later = service.by_key("lost", "early-8");
    assert!(
        later["remaining_ms"].as_u64() > Some(8 * 3_600_000),
        "{later}"
    );
    for n in 0..safe {
        let task = service.by_key("lost", &format!("late-{n}"));
        let state = if n == 3 { "cancelled" } else { "pending" };
        assert_eq!(task["state"], state, "late-{n} of {safe}");
    }
    // Keys are as free or taken as they were.
    let again = json!({"topic": "lost", "key": "late-1", "delay": "PT1H", "on_existing": "reject"});
    service.post("/v1/tasks", &again).must(409);
    service.made(&json!({"topic": "lost", "key": "late-3", "delay": "PT1H"}));
}

#[test]
fn copies_that_do_not_reach_the_backup_are_refused_and_nothing_is_made() {
    let home = tempfile::tempdir().expect("a directory");
    let copies = home.path().join("copies");
    let mut service = copied(home.path(), &copies);
    service.made(&json!({"topic": "lost", "delay": "PT5H"}));
    let backup = home.path().join("by-hand");
    until("it is copied", SOON, || {
        let told = service.get("/metrics").text();
        told.contains("journal_copy_behind_seconds 0").then_some(())
    });
    store(&["backup", "--data", text(&service.data()), text(&backup)]);
    service.kill();
    std::fs::remove_dir_all(&copies).expect("it can be removed");
    let restored = home.path().join("restored");
    let output = command(&["store", "restore", "--data"])
        .args([&restored, &backup])
        .arg("--journals")
        .arg(&copies)
        .output()
        .expect("the binary can be started");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("no copies"), "{told}");
    assert!(!restored.join("FORMAT").exists());
}

#[test]
fn a_second_directory_that_is_away_holds_nothing_up_and_is_caught_up_with_when_it_is_back() {
    let home = tempfile::tempdir().expect("a directory");
    let copies = home.path().join("copies");
    std::fs::write(&copies, "in the way").expect("it can be written");
    let service = copied(home.path(), &copies);
    let warning = until("readiness warns", SOON, || {
        service.made(&json!({"topic": "lost", "delay": "PT5H"}));
        let ready = service.get("/readyz").must(200).to_string();
        ready.contains("the journals' copies are").then_some(ready)
    });
    assert!(warning.contains(" s behind: "), "{warning}");
    assert!(behind_s(&service) > 4.0);
    std::fs::remove_file(&copies).expect("it can be removed");
    until("all is copied", SOON, || {
        (behind_s(&service) < 1.0).then_some(())
    });
    let log = service.log();
    assert!(log.contains("the service goes on without"), "{log}");
    assert!(log.contains("complete again"), "{log}");
}

#[test]
fn copies_without_backups_are_a_mistake_in_the_configuration() {
    let home = tempfile::tempdir().expect("a directory");
    let output = command(&["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(home.path().join("data"))
        .env("DUETIME_BACKUP__JOURNAL_DIR", home.path().join("copies"))
        .output()
        .expect("the binary can be started");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("[backup] every"), "{told}");
}
