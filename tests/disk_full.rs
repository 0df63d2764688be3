//! On a full disk nothing new is taken in, what is there can end, nothing acknowledged is lost, and when there is space
//! again the service works again by itself.
//!
//! Most of it needs a disk that can be filled: a small tmpfs, which only root may mount.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};
use tempfile::TempDir;

use duetime::engine::handle::BatchOp;
use duetime::shard::messages::{OpDone, Target, Wants};
use duetime::task::event::Event;
use duetime::{Duetime, EngineError, NewTask, TopicName};
use support::client::Reply;
use support::service::Service;
use support::{SOON, until};

const RESERVE_BYTES: u64 = 8 << 20;
const ENVIRONMENT: [(&str, &str); 2] = [
    ("DUETIME_STORE__RESERVE", "8MiB"),
    ("DUETIME_SHARDS__COUNT", "2"),
];
/// Longest time from the return of the space to the first create.
const BACK_MAX: Duration = Duration::from_secs(10);

/// A file system in memory, unmounted when it is dropped.
struct SmallDisk {
    at: TempDir,
}

impl SmallDisk {
    /// 48 MiB. `None`, and said so on standard error whatever the test's output, where it may not be mounted.
    fn mount(test: &str) -> Option<Self> {
        let at = tempfile::tempdir().expect("a temporary directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"])
            .arg(at.path())
            .output();
        let why = match mounted {
            Ok(done) if done.status.success() => return Some(Self { at }),
            Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        let told = format!(
            "\nNOT RUN: {test}: it needs root, to mount a tmpfs: {}\n",
            why.trim()
        );
        io::stderr().write_all(told.as_bytes()).expect("it is told");
        None
    }

    fn data(&self) -> PathBuf {
        self.at.path().join("data")
    }

    fn grow(&self, size: &str) {
        let done = Command::new("mount")
            .args(["-o", &format!("remount,size={size}")])
            .arg(self.at.path())
            .status();
        assert!(done.is_ok_and(|status| status.success()), "it grows");
    }

    fn free_bytes(&self) -> u64 {
        let found = statvfs(self.at.path()).expect("it says");
        found.blocks_available() * found.fragment_size()
    }

    /// Takes all the space there is, until the file is removed.
    fn fill(&self) -> PathBuf {
        let path = self.at.path().join("filler");
        let mut filler = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .expect("a file");
        while filler.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.at.path())
            .status();
    }
}

fn large(key: &str) -> Value {
    json!({"topic": "full", "key": key, "delay": "PT24H", "payload": "x".repeat(20_000), "action": {"none": {}}})
}

/// Creates tasks until one is refused; their ids, and the refusal.
fn create_until_refused(api: &Service) -> (Vec<Value>, Reply) {
    let mut made = Vec::new();
    let end = Instant::now() + 3 * SOON;
    loop {
        let reply = api.post("/v1/tasks", &large(&format!("k{}", made.len())));
        if reply.status != 201 {
            return (made, reply);
        }
        made.push(reply.json()["id"].clone());
        assert!(Instant::now() < end, "never refused");
    }
}

fn assert_all_there(api: &Service, made: &[Value]) {
    for id in made {
        let task = api.task(id);
        assert_eq!(task["payload"].as_str().map(str::len), Some(20_000), "{id}");
    }
}

#[test]
fn with_the_reserve_left_creates_get_507_all_else_works_and_creates_return_without_a_restart() {
    let Some(disk) = SmallDisk::mount("with_the_reserve_left_…") else {
        return;
    };
    let mut api = Service::with_data(disk.data(), &ENVIRONMENT);
    let pull = json!({"topic": "pull", "delay": "PT0S", "action": {"pull": {}}});
    for _ in 0..3 {
        api.made(&pull);
    }
    let held = api.lease("pull", 2, 2_000, "PT5M");
    assert_eq!(held.len(), 2);

    let (made, refused) = create_until_refused(&api);
    assert_eq!(refused.problem(), (507, "storage_full".to_owned()));
    let detail = refused.json()["detail"].clone();
    assert!(
        detail
            .as_str()
            .is_some_and(|told| told.contains("[store] reserve")),
        "{detail}"
    );
    assert!(made.len() > 200, "a useful part of the disk was used");
    assert!(disk.free_bytes() > RESERVE_BYTES / 2, "there is space left");
    let items = api
        .post(
            "/v1/tasks/batch",
            &json!({"items": [large("b1"), large("b2")]}),
        )
        .must(200);
    for place in 0..2 {
        assert_eq!(items["items"][place]["status"], 507, "{items}");
        assert_eq!(items["items"][place]["error"]["code"], "storage_full");
    }

    // All else works, and the service is in use for it: it stays ready, and says what is the matter.
    let ready = api.get("/readyz").must(200);
    let warning = ready["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("the disk is full"), "{ready}");
    let metrics = api.get("/metrics").text();
    for name in [
        "duetime_disk_free_bytes",
        "duetime_disk_reserve_bytes 8388608",
    ] {
        assert!(metrics.contains(name), "{name} is missing");
    }
    api.say("heartbeat", &held[0], json!({})).must(200);
    api.say("complete", &held[0], json!({"result": "done"}))
        .must(200);
    let error = json!({"error": {"code": "e", "message": "m"}});
    api.say("fail", &held[1], error).must(200);
    assert_eq!(api.lease("pull", 1, 2_000, "PT5M").len(), 1);
    let (cancelled, kept) = made.split_at(made.len() / 4);
    for id in cancelled {
        api.verb("cancel", id, &json!({})).must(200);
    }
    assert_eq!(api.post("/v1/tasks", &large("still")).status, 507);

    let process = api.process_id();
    disk.grow("200m");
    let back = until("creates are taken again", BACK_MAX, || {
        let reply = api.post("/v1/tasks", &large("back"));
        (reply.status == 201).then(|| reply.json()["id"].clone())
    });
    assert_eq!(api.process_id(), process);
    let ready = api.get("/readyz").must(200);
    assert_eq!(ready["warnings"], json!([]));

    api.kill_and_start();
    assert_all_there(&api, kept);
    assert_all_there(&api, &[back]);
    for id in cancelled {
        assert_eq!(api.task(id)["state"], "cancelled");
    }
    let completed = api.task(&held[0]["task"]["id"]);
    assert_eq!(
        (&completed["state"], &completed["result"]),
        (&json!("succeeded"), &json!("done"))
    );
}

#[test]
fn a_disk_filled_from_outside_loses_nothing_and_the_service_comes_back_by_itself() {
    let Some(disk) = SmallDisk::mount("a_disk_filled_from_outside_…") else {
        return;
    };
    let mut api = Service::with_data(disk.data(), &ENVIRONMENT);
    let mut made: Vec<Value> = (0..20)
        .map(|n| api.made(&large(&format!("before{n}")))["id"].clone())
        .collect();
    let filler = disk.fill();
    // Until nothing can be written any more: each part that writes has died of it and waits for space.
    let mut n = 0;
    let topic = json!({"retention": {"dead": "PT1H"}});
    until("all that writes is down, and it is said why", SOON, || {
        disk.fill();
        n += 1;
        let reply = api.post("/v1/tasks", &large(&format!("full{n}")));
        match reply.status {
            201 => made.push(reply.json()["id"].clone()),
            507 | 503 => {}
            _ => panic!("{} {}", reply.status, reply.text()),
        }
        for id in made.iter().take(10) {
            let paused = api.verb("pause", id, &json!({}));
            assert!(
                [200, 409, 503].contains(&paused.status),
                "{}",
                paused.text()
            );
        }
        let put = api.put("/v1/topics/full", &topic);
        assert!([200, 201, 503, 507].contains(&put.status), "{}", put.text());
        let ready = api.get("/readyz").json();
        let down = ready["problems"].as_array().expect("a list");
        let waiting = |part: &&Value| {
            part.as_str()
                .is_some_and(|told| told.contains("disk is full"))
        };
        (down.iter().filter(waiting).count() == 3).then_some(())
    });
    // A few tries later they are still tried.
    let restarts = |api: &Service| {
        let actors = api.get("/v1/actors").must(200);
        let shard = |actor: &&Value| actor["name"] == "shard-00";
        let actors = actors["items"].as_array().expect("a list").clone();
        let found = actors.iter().find(shard).expect("it is shown").clone();
        assert_ne!(found["state"], "parked");
        found["restarts"].as_u64().expect("a number")
    };
    let before = restarts(&api);
    until("it is tried again", SOON, || {
        (restarts(&api) >= before + 2).then_some(())
    });

    let process = api.process_id();
    std::fs::remove_file(&filler).expect("it is there");
    let free_since = Instant::now();
    let body = json!({"topic": "full", "delay": "PT24H", "action": {"none": {}}});
    until("creates are taken again", BACK_MAX, || {
        (api.post("/v1/tasks", &body).status == 201).then_some(())
    });
    until("every part is up again", BACK_MAX, || {
        (api.get("/readyz").status == 200).then_some(())
    });
    assert!(free_since.elapsed() < BACK_MAX);
    assert_eq!(api.process_id(), process);
    until("the registry works, too", BACK_MAX, || {
        (api.put("/v1/topics/full", &topic).status < 300).then_some(())
    });
    assert_all_there(&api, &made);
    api.kill_and_start();
    assert_all_there(&api, &made);
    assert!(segments(&disk.data()) < 20, "tries leave nothing behind");
}

fn segments(data: &Path) -> usize {
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let shards = entries(data.join("shards"));
    shards
        .map(|shard| entries(shard.path().join("journal")).count())
        .sum()
}

#[tokio::test]
async fn in_the_process_a_refused_create_says_so_and_in_a_batch_the_verbs_are_done() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let topic = || TopicName::parse("full").expect("a name");
    let builder = || Duetime::builder().data_dir(data.path()).shards(2);
    let engine = builder().start().await.expect("it starts");
    let made = engine.create(NewTask::new(topic()), "test").await;
    let duetime::shard::create::Created::New(view) = made.expect("there is space") else {
        panic!("it is new");
    };
    engine.shutdown().await;

    // No disk has so much: every create is refused.
    let engine = builder()
        .reserve(u64::MAX)
        .start()
        .await
        .expect("it starts");
    let refused = engine.create(NewTask::new(topic()), "test").await;
    assert!(
        matches!(refused, Err(EngineError::StorageFull(_))),
        "{refused:?}"
    );
    let reason = String::new();
    let ops = vec![
        BatchOp::Create(Box::new(NewTask::new(topic()))),
        BatchOp::Verb(Target::Id(view.task.id), Event::Cancel { reason }),
    ];
    let answers = engine.batch(ops, None, Wants::Whole, "test").await;
    assert!(
        matches!(answers[0], Err(EngineError::StorageFull(_))),
        "{answers:?}"
    );
    assert!(matches!(answers[1], Ok(OpDone::Verb(Ok(_)))), "{answers:?}");
    let readiness = engine.readiness();
    assert!(
        readiness.is_ready() && readiness.warnings.len() == 1,
        "{readiness:?}"
    );
    engine.shutdown().await;
}
