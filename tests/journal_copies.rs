//! The journals in a second directory: what the loss of the data directory leaves, and what the loss of the second one
//! does.

#[expect(dead_code, reason = "each file uses its part of it")]
mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use support::receiver::{Answer, Receiver};
use support::service::{Service, command};
use support::{SOON, copy_directory, push, until};

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

/// Waits for the backup that is made when the service starts: where it is.
fn backed_up(service: &Service, home: &Path) -> PathBuf {
    until("a backup is made", SOON, || {
        let metrics = service.get("/metrics").text();
        metrics.contains("duetime_backup_age_seconds").then_some(())
    });
    let made = std::fs::read_dir(home.join("backups")).expect("it was made");
    let mut made = made.flatten().map(|entry| entry.path());
    made.next().expect("one")
}

/// How far the copies are behind; `None` while nothing was copied since the start.
fn behind_s(service: &Service) -> Option<f64> {
    let metrics = service.get("/metrics").text();
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix("duetime_journal_copy_behind_seconds "))?;
    Some(line.parse().expect("a number"))
}

/// Waits until all that was committed before is copied.
fn until_copied(service: &Service) {
    let called_at = Instant::now();
    until("it is copied", SOON, || {
        let asked_at = Instant::now();
        let behind = Duration::from_secs_f64(behind_s(service)?);
        (asked_at.checked_sub(behind)? > called_at).then_some(())
    });
}

/// A restore of a backup with copies that must not be laid over it: why not.
fn refused(home: &Path, backup: &Path, copies: &Path) -> String {
    let restored = home.join("refused");
    let output = command(&["store", "restore", "--data"])
        .args([&restored, backup])
        .arg("--journals")
        .arg(copies)
        .output()
        .expect("the binary can be started");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(!restored.join("FORMAT").exists());
    told
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
    let backup = backed_up(&service, home.path());
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
fn what_was_committed_while_the_service_stops_is_copied_too() {
    let home = tempfile::tempdir().expect("a directory");
    let copies = home.path().join("copies");
    let receiver = Receiver::start();
    let late = Answer::Later(2 * WINDOW, 200, "{}".to_owned());
    let url = receiver.on("/slow", &[late]);
    let mut service = copied(home.path(), &copies);
    let backup = backed_up(&service, home.path());
    let task = service.made(&json!({"topic": "lost", "key": "slow", "action": push(&url)}));
    receiver.wait("/slow", 1);
    until_copied(&service);
    service.terminate();
    std::fs::remove_dir_all(service.data()).expect("it can be removed");
    let restored = home.path().join("restored");
    let mut restore = vec!["restore", "--data", text(&restored), text(&backup)];
    restore.extend(["--journals", text(&copies)]);
    store(&restore);
    service.set_data(restored);
    service.start_again();
    let found = service.by_key("lost", "slow");
    assert_eq!(
        (&found["id"], &found["state"]),
        (&task["id"], &json!("succeeded"))
    );
    assert_eq!(receiver.hits("/slow").len(), 1);
}

#[test]
fn copies_that_are_gone_are_refused_and_nothing_is_made() {
    let home = tempfile::tempdir().expect("a directory");
    let copies = home.path().join("copies");
    let mut service = copied(home.path(), &copies);
    backed_up(&service, home.path());
    service.made(&json!({"topic": "lost", "delay": "PT5H"}));
    until_copied(&service);
    let backup = home.path().join("by-hand");
    store(&["backup", "--data", text(&service.data()), text(&backup)]);
    service.kill();
    std::fs::remove_dir_all(&copies).expect("it can be removed");
    let told = refused(home.path(), &backup, &copies);
    assert!(told.contains("no copies"), "{told}");
}

#[test]
fn copies_older_than_the_backup_are_not_laid_over_it() {
    let home = tempfile::tempdir().expect("a directory");
    let (copies, old) = (home.path().join("copies"), home.path().join("old"));
    let mut service = copied(home.path(), &copies);
    backed_up(&service, home.path());
    service.made(&json!({"topic": "lost", "key": "paid", "delay": "PT5H"}));
    until_copied(&service);
    copy_directory(&copies, &old).expect("it can be copied");
    let cancelled = service.verb_by_key("cancel", "lost", "paid", &json!({}));
    cancelled.must(200);
    until_copied(&service);
    let backup = home.path().join("by-hand");
    store(&["backup", "--data", text(&service.data()), text(&backup)]);
    service.kill();
    let told = refused(home.path(), &backup, &old);
    assert!(told.contains("before the backup was made"), "{told}");

    let restored = home.path().join("restored");
    let mut restore = vec!["restore", "--data", text(&restored), text(&backup)];
    restore.extend(["--journals", text(&copies)]);
    store(&restore);
    service.set_data(restored);
    service.start_again();
    assert_eq!(service.by_key("lost", "paid")["state"], "cancelled");
}

#[test]
fn a_backup_that_the_copies_do_not_reach_does_not_name_them() {
    let home = tempfile::tempdir().expect("a directory");
    let (copies, away) = (home.path().join("copies"), home.path().join("away"));
    let mut service = copied(home.path(), &copies);
    backed_up(&service, home.path());
    service.made(&json!({"topic": "lost", "key": "paid", "delay": "PT5H"}));
    until_copied(&service);
    std::fs::rename(&copies, &away).expect("it can be renamed");
    std::fs::write(&copies, "in the way").expect("it can be written");
    let cancelled = service.verb_by_key("cancel", "lost", "paid", &json!({}));
    cancelled.must(200);
    let backup = home.path().join("by-hand");
    store(&["backup", "--data", text(&service.data()), text(&backup)]);
    service.kill();
    let log = service.log();
    assert!(log.contains("do not reach this backup"), "{log}");
    let told = refused(home.path(), &backup, &away);
    assert!(told.contains("no journals were copied"), "{told}");
    // The backup itself is good.
    let restored = home.path().join("restored");
    store(&["restore", "--data", text(&restored), text(&backup)]);
    service.set_data(restored);
    service.start_again();
    assert_eq!(service.by_key("lost", "paid")["state"], "cancelled");
}

#[test]
fn a_second_directory_that_is_away_holds_nothing_up_and_is_caught_up_with_when_it_is_back() {
    let home = tempfile::tempdir().expect("a directory");
    let (copies, away) = (home.path().join("copies"), home.path().join("away"));
    std::fs::write(&copies, "in the way").expect("it can be written");
    let service = copied(home.path(), &copies);
    let warned = |of: &str| {
        until("readiness warns", SOON, || {
            service.made(&json!({"topic": "lost", "delay": "PT5H"}));
            let ready = service.get("/readyz").must(200).to_string();
            ready.contains(of).then_some(())
        });
    };
    warned("the journals were not copied since the start ");
    assert_eq!(behind_s(&service), None, "nobody knows");
    std::fs::remove_file(&copies).expect("it can be removed");
    until_copied(&service);
    std::fs::rename(&copies, &away).expect("it can be renamed");
    std::fs::write(&copies, "in the way").expect("it can be written");
    warned(" s behind: ");
    assert!(behind_s(&service) > Some(4.0));
    std::fs::remove_file(&copies).expect("it can be removed");
    std::fs::rename(&away, &copies).expect("it can be renamed");
    until_copied(&service);
    let log = service.log();
    assert!(log.contains("the service goes on without"), "{log}");
    assert_eq!(log.matches("complete again").count(), 2, "{log}");
    let metrics = service.get("/metrics").text();
    assert!(
        metrics.contains("duetime_journal_copy_gaps_total 0"),
        "{metrics}"
    );
}

#[test]
fn backups_and_copies_are_for_their_owner_alone() {
    let home = tempfile::tempdir().expect("a directory");
    let copies = home.path().join("copies");
    let service = copied(home.path(), &copies);
    until_copied(&service);
    let backup = backed_up(&service, home.path());
    let made = [
        &service.data(),
        &copies,
        &home.path().join("backups"),
        &backup,
    ];
    for made in made {
        let mode = std::fs::metadata(made).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o700, "{}", made.display());
    }
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
