//! `duetime store …` with the real binary: what is carried over is the same, and what goes wrong changes nothing.

#[expect(dead_code, reason = "each file uses its part of it")]
mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use support::service::{Service, command};
use support::{Over, SOON, files_of, until};

fn store(arguments: &[&str]) -> Output {
    let mut command = command(&["store"]);
    let output = command.args(arguments).output();
    output.expect("the binary can be started")
}

/// What a command says on standard output, if it succeeds.
fn done(arguments: &[&str]) -> String {
    let output = store(arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What a command says on standard error, if it fails.
fn refused(arguments: &[&str]) -> String {
    let output = store(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of UTF-8")
}

/// A task without what passes, or depends on where it is.
fn fixed_part(mut task: Value) -> Value {
    for field in ["remaining_ms", "shard"] {
        task.as_object_mut().expect("a task").remove(field);
    }
    task
}

/// All tasks as they are shown, with their logs and attempts.
fn all(service: &Service) -> BTreeMap<String, (Value, Value, Value)> {
    let tasks = service.list("limit=1000");
    let whole = tasks.into_iter().map(|task| {
        let id = task["id"].as_str().expect("an id").to_owned();
        let part = |of: &str| service.get(&format!("/v1/tasks/{id}/{of}")).must(200);
        let (log, attempts) = (part("log"), part("attempts"));
        (id, (fixed_part(task), log, attempts))
    });
    whole.collect()
}

/// A late answer.
fn answered_late(service: &Service) {
    let called_off = service.made(&json!({"topic": "late"}));
    let leases = service.lease("late", 1, 5_000, "PT1M");
    service
        .verb("cancel", &called_off["id"], &json!({}))
        .must(202);
    let too_late = service.say("complete", &leases[0], json!({"result": 7}));
    assert_eq!(too_late.status, 409);
}

/// Tasks in every state that stays as it is.
fn filled(service: &Service) {
    let far = |n: usize| {
        json!({"topic": "far", "key": format!("order-{n}"), "delay": format!("PT{}M", n + 60),
               "payload": {"n": n}, "tags": {"region": "eu"}, "action": {"none": {}}})
    };
    let made = service.made_many(&(0..200).map(far).collect::<Vec<_>>());
    for (n, task) in made.iter().enumerate().take(60) {
        let (verb, body) = match n % 3 {
            0 => ("cancel", json!({"reason": "paid"})),
            1 => ("pause", json!({"clock": "freeze"})),
            _ => ("reschedule", json!({"delay": "PT9H"})),
        };
        service.verb(verb, &task["id"], &body).must(200);
    }
    let fast = |n: usize| json!({"topic": "fast", "key": format!("k{n}"), "delay": "PT0S", "action": {"none": {}}});
    for task in service.made_many(&(0..20).map(fast).collect::<Vec<_>>()) {
        service.wait_state(&task["id"], "succeeded");
    }
    let pulled = service.made(&json!({"topic": "pull", "retry": {"fixed": "PT5H"}}));
    let leases = service.lease("pull", 1, 5_000, "PT1M");
    let failure = json!({"error": {"code": "busy", "message": "later"}});
    service.say("fail", &leases[0], failure).must(200);
    service.wait_state(&pulled["id"], "retrying");
    let dead = service.made(&json!({"topic": "dead", "delay": "PT8H"}));
    let failure = json!({"error": {"code": "no", "message": "never"}});
    service.verb("fail", &dead["id"], &failure).must(200);
    service
        .put(
            "/v1/topics/far",
            &json!({"retention": {"cancelled": "P3D"}}),
        )
        .must(201);
}

#[test]
fn a_backup_of_a_running_service_under_load_holds_all_that_was_answered_before_it() {
    let home = tempfile::tempdir().expect("a directory");
    let (backup, restored) = (home.path().join("backup"), home.path().join("restored"));
    let mut service = Service::start();
    filled(&service);
    let before = all(&service);
    let (stop, created) = (AtomicBool::new(false), AtomicU64::new(0));
    let answered = std::thread::scope(|scope| {
        let over_all = Over(&stop);
        for worker in 0..2 {
            let (service, stop, created) = (&service, &stop, &created);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("w{worker}-{n}");
                    service.made(&json!({"topic": "load", "key": key, "delay": "PT5H"}));
                    created.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("there is load", SOON, || {
            (created.load(Ordering::Relaxed) > 50).then_some(())
        });
        let answered = created.load(Ordering::Relaxed);
        let told = done(&[
            "backup",
            "--json",
            "--data",
            text(&service.data()),
            text(&backup),
        ]);
        drop(over_all);
        let told: Value = serde_json::from_str(&told).expect("JSON");
        assert!(
            told["tasks"].as_u64() >= Some(before.len() as u64 + answered),
            "{told}"
        );
        answered
    });
    let after: BTreeMap<String, Value> = service
        .list("topic=load&limit=1000")
        .into_iter()
        .map(|task| (task["id"].to_string(), fixed_part(task)))
        .collect();
    service.terminate();
    done(&[
        "restore",
        "--data",
        text(&restored),
        text(&backup),
        "--shards",
        "3",
    ]);
    let service = Service::with_data(restored.clone(), &[]);
    let shards = service.get("/v1/shards").must(200);
    assert_eq!(shards["items"].as_array().map(Vec::len), Some(3));
    let (loaded, rest): (BTreeMap<_, _>, BTreeMap<_, _>) = all(&service)
        .into_iter()
        .partition(|(_, (task, ..))| task["topic"] == "load");
    assert_eq!(rest, before);
    assert!(
        loaded.len() as u64 >= answered,
        "{} of {answered}",
        loaded.len()
    );
    for (_, (task, ..)) in loaded {
        assert_eq!(after.get(&task["id"].to_string()), Some(&task));
    }
    let topic = service.get("/v1/topics/far").must(200);
    assert_eq!(topic["retention"]["cancelled"], "P3D");
    drop(service);
    let told = refused(&["restore", "--data", text(&restored), text(&backup)]);
    assert!(
        told.contains("is a data directory already") && told.contains("--replace"),
        "{told}"
    );
}

#[test]
fn a_backup_that_was_changed_is_refused_and_leaves_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    let (backup, restored) = (home.path().join("backup"), home.path().join("restored"));
    let mut service = Service::start();
    filled(&service);
    service.terminate();
    done(&["backup", "--data", text(&service.data()), text(&backup)]);
    let told = refused(&["backup", "--data", text(&service.data()), text(&backup)]);
    assert!(told.contains("is there already"), "{told}");
    let file = backup.join("shard-000.records");
    let mut bytes = std::fs::read(&file).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("it is written");
    let told = refused(&["restore", "--data", text(&restored), text(&backup)]);
    assert!(
        told.contains("shard-000.records") && told.contains("wrong sum"),
        "{told}"
    );
    let left: Vec<_> = std::fs::read_dir(&restored)
        .expect("it was made")
        .map(|entry| entry.expect("it reads").file_name())
        .collect();
    assert_eq!(left, ["LOCK"]);
}

#[test]
fn what_was_exported_is_imported_as_it_was_and_a_wrong_line_changes_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    let imported = home.path().join("imported");
    let mut service = Service::start();
    filled(&service);
    answered_late(&service);
    let late = |service: &Service| service.get("/v1/late-answers").must(200);
    let (before, late_before) = (all(&service), late(&service));
    assert_eq!(late_before["items"][0]["result"], 7);
    service.terminate();
    let lines = done(&["export", "--data", text(&service.data())]);
    assert_eq!(lines.lines().count(), before.len() + 1);
    let file = home.path().join("tasks.ndjson");
    std::fs::write(&file, &lines).expect("it is written");
    done(&["import", "--data", text(&imported), text(&file)]);
    let same = |data: &Path| {
        let service = Service::with_data(data.to_owned(), &[]);
        assert_eq!(all(&service), before);
        assert_eq!(late(&service), late_before);
    };
    same(&imported);

    let told = refused(&["import", "--data", text(&imported), text(&file)]);
    assert!(told.contains("is there already"), "{told}");
    let of_far = lines.lines().find(|line| line.contains("\"far\""));
    let moved = of_far.expect("a line").replace("\"far\"", "\"other\"");
    std::fs::write(&file, format!("{lines}\n{moved}\n")).expect("it is written");
    let told = refused(&[
        "import",
        "--skip-existing",
        "--data",
        text(&imported),
        text(&file),
    ]);
    // Behind the late answer and an empty line.
    let number = before.len() + 3;
    assert!(
        told.contains(&format!("line {number}: ")) && told.contains("not one of its `topic`"),
        "{told}"
    );
    std::fs::write(&file, format!("{lines}{{\"topic\": 5}}\n")).expect("it is written");
    let told = refused(&[
        "import",
        "--data",
        text(&home.path().join("new")),
        text(&file),
    ]);
    assert!(
        told.contains("/topic") && told.contains("must be a text"),
        "{told}"
    );
    same(&imported);

    std::fs::write(&file, &lines).expect("it is written");
    let told = done(&[
        "import",
        "--json",
        "--skip-existing",
        "--data",
        text(&imported),
        text(&file),
    ]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(
        (&told["tasks"], &told["skipped"]),
        (&json!(0), &json!(before.len()))
    );
    same(&imported);
}

#[test]
fn lines_come_through_a_pipe() {
    let home = tempfile::tempdir().expect("a directory");
    let mut service = Service::start();
    filled(&service);
    service.terminate();
    let lines = done(&["export", "--data", text(&service.data())]);
    let piped = home.path().join("piped");
    let mut importing = command(&["store", "import", "--data", text(&piped), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary can be started");
    let mut pipe = importing.stdin.take().expect("it is piped");
    pipe.write_all(lines.as_bytes()).expect("it reads them");
    drop(pipe);
    assert!(importing.wait().expect("it ends").success());
    let again = done(&["export", "--data", text(&piped)]);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(&again), sorted(&lines));
}

#[test]
fn another_number_of_shards_has_the_same_tasks() {
    let mut service = Service::with(&[("DUETIME_SHARDS__COUNT", "2")]);
    filled(&service);
    answered_late(&service);
    let late = |service: &Service| service.get("/v1/late-answers").must(200);
    let (before, late_before) = (all(&service), late(&service));
    assert_eq!(late_before["items"][0]["result"], 7);
    for shards in ["5", "3"] {
        service.terminate();
        done(&[
            "reshard",
            "--data",
            text(&service.data()),
            "--shards",
            shards,
        ]);
        service.start_again();
        let found = service.get("/v1/shards").must(200);
        let found = found["items"].as_array().map(Vec::len);
        assert_eq!(
            found.map(|count| count.to_string()).as_deref(),
            Some(shards)
        );
        assert_eq!(all(&service), before);
        assert_eq!(late(&service), late_before);
    }
    // It goes on as it would have: keys are held, and what waits can be cancelled.
    let again = json!({"topic": "far", "key": "order-100", "delay": "PT1H"});
    service.post("/v1/tasks", &again).must(200);
    service
        .verb_by_key("cancel", "far", "order-100", &json!({}))
        .must(200);
}

/// One byte of the first entry of a shard's database that begins so.
fn damage_chunk(data: &Path, shard: &str, key: &[u8], at: usize) {
    let path = data.join("shards").join(shard).join("wheel");
    let db = sled::Config::new()
        .path(path)
        .segment_size(2 * 1024 * 1024)
        .open();
    let db = db.expect("it opens");
    let (key, value) = db
        .scan_prefix(key)
        .next()
        .expect("it is there")
        .expect("it reads");
    let mut value = value.to_vec();
    let at = at.min(value.len() - 1);
    value[at] ^= 1;
    db.insert(key, value).expect("it is written");
    db.flush().expect("it is written");
}

#[test]
fn what_a_running_service_leaves_out_of_an_export_is_told_place_by_place() {
    let home = tempfile::tempdir().expect("a directory");
    let mut service = Service::with(&[("DUETIME_SHARDS__COUNT", "2")]);
    filled(&service);
    let before = all(&service).len();
    service.terminate();
    let data = service.data();
    done(&["reshard", "--data", text(&data), "--shards", "2"]);
    damage_chunk(&data, "000", b"c", usize::MAX);
    service.start_again();

    let told = refused(&["export", "--data", text(&data)]);
    assert!(told.contains("was cut off"), "{told}");
    let output = store(&["export", "--skip-damaged", "--data", text(&data)]);
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{told}");
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert!((1..before).contains(&lines), "{lines} of {before}");
    assert!(
        told.contains("left out 1 place that does not read back"),
        "{told}"
    );
    let place = told
        .lines()
        .find(|line| line.starts_with("does not read back: "));
    let place = place.unwrap_or_else(|| panic!("{told}"));
    let output = store(&["export", "--json", "--skip-damaged", "--data", text(&data)]);
    let told: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!(told["left_out"], 1, "{told}");
    let named = told["places"][0]["place"].as_str().expect("a place");
    assert!(place.contains(named), "{place}");
    let log = service.log();
    assert!(log.contains(named) && log.contains("left_out=1"), "{log}");

    let backup = home.path().join("backup");
    let arguments = ["backup", "--skip-damaged", "--data", text(&data)];
    let told = refused(&[&arguments[..], &[text(&backup)]].concat());
    assert!(
        told.contains("makes no backup that leaves something out"),
        "{told}"
    );
    assert!(!backup.exists());
    service.terminate();
    let told = done(&[&arguments[..], &["--json", text(&backup)]].concat());
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["left_out"], 1, "{told}");
    // None was made since this start.
    service.start_again();
    let token = std::fs::read_to_string(data.join("LOCK")).expect("a lock");
    let token = token.lines().find_map(|line| line.strip_prefix("token "));
    let headers = [("duetime-admin-token", token.expect("a token"))];
    let reply = service.send("GET", "/v1/store/export/1", &headers, b"");
    assert_eq!(
        reply.expect("an answer").problem(),
        (404, "not_found".to_owned())
    );
}

#[test]
fn the_doctor_finds_damage_and_keeps_what_can_be_read() {
    let mut service = Service::with(&[("DUETIME_SHARDS__COUNT", "2")]);
    filled(&service);
    let before = all(&service);
    service.terminate();
    let data = service.data();
    let healthy = |when: &str| {
        let told: Value = serde_json::from_str(&done(&["doctor", "--json", "--data", text(&data)]))
            .expect("JSON");
        assert_eq!(told["healthy"], true, "{when}: {told}");
        told["shards"]
            .as_array()
            .expect("shards")
            .iter()
            .map(|shard| shard["tasks"].as_u64().expect("a number"))
            .sum::<u64>()
    };
    assert_eq!(healthy("at first"), before.len() as u64);
    done(&["reshard", "--data", text(&data), "--shards", "2"]);
    assert_eq!(healthy("in chunks"), before.len() as u64);

    // One byte of the first chunk's body, one of another's index.
    let damage = |shard: &str, key: &[u8], at: usize| damage_chunk(&data, shard, key, at);
    damage("000", b"c", usize::MAX);
    damage("001", b"i", 3);
    let output = store(&["doctor", "--json", "--data", text(&data)]);
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = told["findings"].as_array().expect("findings");
    assert_eq!(
        (&told["healthy"], findings.len()),
        (&json!(false), 2),
        "{told}"
    );
    let again = store(&["doctor", "--json", "--data", text(&data)]);
    assert_eq!(again.stdout, output.stdout, "it has changed nothing");
    let told = refused(&["reshard", "--data", text(&data), "--shards", "3"]);
    assert!(told.contains("doctor"), "{told}");

    let told = done(&["doctor", "--json", "--repair", "--data", text(&data)]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let aside = told["repaired"]["aside"].as_str().expect("a directory");
    assert_eq!(std::fs::read_dir(aside).expect("it is there").count(), 4);
    service.start_again();
    let after = all(&service);
    // A byte of the last record at most is lost, and nothing is changed.
    assert!(
        after.len() + 1 >= before.len(),
        "{} of {}",
        after.len(),
        before.len()
    );
    for (id, task) in &after {
        assert_eq!(before.get(id), Some(task));
    }
    service.terminate();
    assert_eq!(healthy("after the repair"), after.len() as u64);
}

/// Flips a bit of the place in a shard's journals where this stands for the `nth` time.
fn damage_journal(data: &Path, what: &str, nth: usize) {
    let segments = files_of(&data.join("shards"));
    let mut segments = segments.into_iter().filter(|it| it.extension().is_some());
    let found = segments.find_map(|segment| {
        let bytes = std::fs::read(&segment).expect("it reads");
        let places = bytes.windows(what.len()).enumerate();
        let mut places = places.filter(|(_, window)| *window == what.as_bytes());
        let (place, _) = places.nth(nth)?;
        Some((segment, bytes, place))
    });
    let (segment, mut bytes, place) = found.expect("it stands in a journal");
    bytes[place] ^= 1;
    std::fs::write(segment, bytes).expect("it is written");
}

#[test]
fn a_repair_of_a_journal_damaged_in_its_midst_keeps_all_that_reads_and_holds_what_is_in_doubt() {
    let mut service = Service::with(&[("DUETIME_SHARDS__COUNT", "1")]);
    filled(&service);
    let due = |name: &str| json!({"topic": "doubt", "key": name, "delay": "PT5H", "payload": format!("{name}-payload")});
    let moved = service.made(&due("moved"));
    // In one commit, of which one record is damaged; only it is lost, and only its task was never there before.
    let names = ["north", "south", "west"];
    service.made_many(&names.map(due));
    service.made(&due("between"));
    service
        .verb_by_key("reschedule", "doubt", "moved", &json!({"delay": "PT9H"}))
        .must(200);
    service
        .verb_by_key("cancel", "doubt", "west", &json!({}))
        .must(200);
    let mut before = all(&service);
    service.kill();
    let data = service.data();
    damage_journal(&data, "south-payload", 0);
    damage_journal(&data, "moved-payload", 1);

    let why = service.try_start(SOON).expect_err("it is damaged");
    assert!(why.contains("segment at byte"), "{why}");
    let told = refused(&["reshard", "--data", text(&data), "--shards", "2"]);
    assert!(told.contains("segment"), "{told}");
    let output = store(&["doctor", "--json", "--data", text(&data)]);
    let again = store(&["doctor", "--json", "--data", text(&data)]);
    assert_eq!(output.stdout, again.stdout, "it has changed nothing");
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = told["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 2, "{told}");
    let doubtful = findings[1]["what"].as_str().expect("a text");
    let named = format!("task {}", moved["id"].as_str().expect("an id"));
    assert!(
        doubtful.contains("does not read back") && doubtful.contains(&named),
        "{doubtful}"
    );

    let told = done(&["doctor", "--json", "--repair", "--data", text(&data)]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["repaired"]["held"], json!([moved["id"]]), "{told}");
    let aside = Path::new(told["repaired"]["aside"].as_str().expect("a directory"));
    let kept = files_of(aside);
    assert!(
        kept.iter()
            .all(|it| it.extension().is_some_and(|it| it == "segment"))
    );
    assert!(!kept.is_empty());
    service.start_again();
    let held = service.by_key("doubt", "moved");
    assert_eq!(held["state"], "paused");
    assert!(
        held["remaining_ms"].as_u64() < Some(5 * 3_600_000),
        "{held}"
    );
    let path = support::client::key_path("doubt", "south");
    assert_eq!(service.get(&path).status, 404);
    assert_eq!(service.by_key("doubt", "west")["state"], "cancelled");
    // All else is as it was.
    let mut after = all(&service);
    let in_doubt =
        |task: &Value| ["moved", "south"].contains(&task["key"].as_str().unwrap_or_default());
    before.retain(|_, (task, ..)| !in_doubt(task));
    after.retain(|_, (task, ..)| !in_doubt(task));
    assert_eq!(after, before);
    service
        .verb_by_key("resume", "doubt", "moved", &json!({}))
        .must(200);
}

#[test]
fn a_directory_in_use_is_refused_at_once_and_says_by_whom() {
    let service = Service::start();
    let data = service.data();
    let data = text(&data);
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0", "--data", data] as &[&str],
        &["store", "doctor", "--data", data],
        &["store", "reshard", "--shards", "3", "--data", data],
    ] {
        let begun = Instant::now();
        let output = command(arguments)
            .output()
            .expect("the binary can be started");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(begun.elapsed() < Duration::from_secs(2), "{arguments:?}");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        let holder = format!("pid {}", service.process_id());
        assert!(
            told.contains("is in use by another process") && told.contains(&holder),
            "{told}"
        );
        assert!(!told.contains("token"), "{told}");
    }
}

#[test]
fn an_export_of_a_running_service_under_load_holds_all_that_was_answered_before_it() {
    let home = tempfile::tempdir().expect("a directory");
    let mut service = Service::start();
    filled(&service);
    let before = all(&service);
    let stop = AtomicBool::new(false);
    let lines = std::thread::scope(|scope| {
        let over_all = Over(&stop);
        let (service, stop) = (&service, &stop);
        scope.spawn(move || {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                service.made(&json!({"topic": "load", "key": format!("k{n}"), "delay": "PT5H"}));
            }
        });
        let lines = done(&["export", "--data", text(&service.data())]);
        drop(over_all);
        lines
    });
    service.terminate();
    let (file, imported) = (home.path().join("tasks"), home.path().join("imported"));
    std::fs::write(&file, &lines).expect("it can be written");
    done(&["import", "--data", text(&imported), text(&file)]);
    let service = Service::with_data(imported, &[]);
    let mut after = all(&service);
    after.retain(|_, (task, ..)| task["topic"] != "load");
    assert_eq!(after, before);
}

#[test]
fn an_export_over_http_is_for_who_can_read_the_lock() {
    let service = Service::start();
    service.made(&json!({"topic": "far", "delay": "PT5H"}));
    let reply = service.get("/v1/store/export");
    assert_eq!(reply.problem(), (403, "forbidden".to_owned()));
    let lock = std::fs::read_to_string(service.data().join("LOCK")).expect("a lock");
    let token = lock.lines().find_map(|line| line.strip_prefix("token "));
    let headers = [("duetime-admin-token", token.expect("a token"))];
    let get = |path: &str| service.send("GET", path, &headers, b"").expect("an answer");
    let exported = get("/v1/store/export");
    assert_eq!(exported.status, 200);
    let text = exported.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    let odd = get("/v1/store/export?skip_damaged=2");
    assert_eq!(odd.status, 422);
}

#[test]
fn a_backup_over_http_is_for_who_can_read_the_lock() {
    let service = Service::start();
    let home = tempfile::tempdir().expect("a directory");
    let to = home.path().join("backup");
    let ask = |token: &str, to: &str| {
        let headers = [("duetime-admin-token", token)];
        let body = json!({"to": to});
        let reply = service.json("POST", "/v1/store/backup", &headers, &body);
        reply.expect("an answer")
    };
    assert_eq!(
        ask("guess", text(&to)).problem(),
        (403, "forbidden".to_owned())
    );
    let status = service.get("/v1/store/backup");
    assert_eq!(status.problem(), (403, "forbidden".to_owned()));
    let lock = std::fs::read_to_string(service.data().join("LOCK")).expect("it is ours");
    let token = lock.lines().find_map(|line| line.strip_prefix("token "));
    let token = token.expect("a token");
    assert_eq!(ask(token, "relative").status, 422);
    assert_eq!(
        ask(token, text(home.path())).status,
        202,
        "an empty directory may become one"
    );
    let ended = until("the backup has ended", SOON, || {
        let headers = [("duetime-admin-token", token)];
        let reply = service.send("GET", "/v1/store/backup", &headers, b"");
        let told = reply.expect("an answer").must(200);
        (told["state"] != "running").then_some(told)
    });
    assert_eq!(ended["state"], "done", "{ended}");
    assert_eq!(
        ask(token, text(home.path())).problem(),
        (409, "exists".to_owned())
    );
}

#[test]
fn what_a_kill_leaves_is_healthy_and_can_be_copied() {
    let home = tempfile::tempdir().expect("a directory");
    let mut service = Service::with(&[("DUETIME_STORE__CHECKPOINT_BYTES", "64KiB")]);
    filled(&service);
    let (service_, stop) = (&service, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = Over(stop);
        scope.spawn(move || {
            for n in 0.. {
                let body = json!({"topic": "load", "key": format!("k{n}"), "delay": "PT5H",
                                  "payload": "x".repeat(2_000)});
                let answered = service_.json("POST", "/v1/tasks", &[], &body);
                if stop.load(Ordering::Relaxed) || answered.is_err() {
                    return;
                }
                if n % 3 == 0 {
                    let path = format!(
                        "{}/cancel",
                        support::client::key_path("load", &format!("k{n}"))
                    );
                    let _ = service_.json("POST", &path, &[], &json!({}));
                }
            }
        });
        until("it folds", SOON, || {
            let shards = service_.get("/v1/shards").must(200);
            let items = shards["items"].as_array().expect("shards");
            let mut folds = items.iter().map(|shard| shard["store"]["folds"].as_u64());
            folds.all(|folds| folds >= Some(5)).then_some(())
        });
        let killed = std::process::Command::new("kill")
            .args(["-KILL", &service_.process_id().to_string()])
            .status();
        assert!(killed.is_ok_and(|status| status.success()));
    });
    service.kill();
    let told = done(&["doctor", "--json", "--data", text(&service.data())]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let tasks = told["shards"].as_array().expect("shards").iter();
    let tasks: u64 = tasks
        .map(|shard| shard["tasks"].as_u64().expect("a number"))
        .sum();
    let backup = home.path().join("backup");
    let copied = done(&[
        "backup",
        "--json",
        "--data",
        text(&service.data()),
        text(&backup),
    ]);
    let copied: Value = serde_json::from_str(&copied).expect("JSON");
    assert_eq!(copied["tasks"], tasks, "{told}");
    service.start_again();
    let before = all(&service);
    service.terminate();
    let restored = home.path().join("restored");
    done(&["restore", "--data", text(&restored), text(&backup)]);
    let service = Service::with_data(restored, &[]);
    assert_eq!(all(&service), before);
}

#[test]
fn a_planned_backup_that_fails_is_a_warning() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("file");
    std::fs::write(&file, "in the way").expect("it is written");
    let service = Service::with(&[
        ("DUETIME_BACKUP__EVERY", "PT1S"),
        ("DUETIME_BACKUP__DIR", text(&file)),
    ]);
    until("it warns", SOON, || {
        let ready = service.get("/readyz").must(200);
        let warning = ready["warnings"][0].as_str().unwrap_or_default();
        warning
            .starts_with("the last backup failed: ")
            .then_some(())
    });
}

#[test]
fn planned_backups_are_made_and_old_ones_go() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("backups");
    let service = Service::with(&[
        ("DUETIME_BACKUP__EVERY", "PT1S"),
        ("DUETIME_BACKUP__KEEP", "2"),
        ("DUETIME_BACKUP__DIR", text(&dir)),
    ]);
    filled(&service);
    let made = || {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        names
    };
    let first = until("one is made", SOON, || made().first().cloned());
    until("old ones have gone", SOON, || {
        let made = made();
        (made.len() >= 2 && !made.contains(&first)).then_some(())
    });
    let metrics = service.get("/metrics").text();
    assert!(metrics.contains("duetime_backup_age_seconds"), "{metrics}");
    let ready = service.get("/readyz").must(200);
    assert_eq!(ready["warnings"], json!([]));
}
