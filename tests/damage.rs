//! Damage is named, never served: whatever one place of a data directory is turned into, a start on it refuses and
//! says which file or record, or answers what is true, or says of a task that it does not read back.
//!
//! ```text
//!   make a directory ──▶ copy ──▶ damage one place ──▶ start in a process of its own, look at everything ──▶ compare
//!                         ▲                                                                                    │
//!                         └────────────────────────────── so often ◀───────────────────────────────────────────┘
//! ```
//!
//! Places are drawn; `SEED=…` repeats a run, `DUETIME_FLIPS=1000` makes it longer.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duetime::config::{LogConfig, LogFilter};
use duetime::shard::shelf::ShelfOptions;
use duetime::shard::table::TableOptions;
use duetime::store::local::LocalOptions;
use duetime::task::model::PauseClock;
use duetime::wire::due::InLimits;
use duetime::{
    Action, Backoff, Created, Duetime, DurationMs, Event, HandlerError, HandlerTask, NewTask,
    RetryPolicy, State, Target, TaskId, TaskKey, TopicName, WallMs,
};
use parking_lot::Mutex;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use support::{Random, SOON, assert_no_blobs, copy_directory, files_of, now_ms, until};

/// Places that are damaged in a plain run.
const FLIPS: usize = 200;
/// So many of them at a time: each waits for its disk most of the time.
const AT_A_TIME: usize = 4;
/// A start on a damaged directory, and all answers, take no longer than this.
const START_MAX: Duration = Duration::from_secs(20);
/// How long sled waits with a flush.
const FLUSH_EVERY_MS: u64 = 50;
/// Where the process that looks finds its directory.
const LOOK_AT: &str = "DUETIME_LOOK_AT";

// ---------------------------------------------------------------- the directory

/// What is true of a directory: a line for each thing that can be asked for.
type Truth = BTreeMap<String, String>;

fn builder(data: &Path) -> duetime::Builder {
    Duetime::builder()
        .data_dir(data)
        .shards(2)
        .reserve(0)
        .table(TableOptions {
            shelf: ShelfOptions {
                fold_bytes: 96 * 1024,
            },
            ..TableOptions::default()
        })
        .store(LocalOptions {
            flush_every_ms: FLUSH_EVERY_MS,
            ..LocalOptions::default()
        })
        .handler("works", |task: HandlerTask| async move {
            said_if_looking(task.id);
            Ok(Some(json!("done")))
        })
        .handler("fails", |task: HandlerTask| async move {
            said_if_looking(task.id);
            Err(HandlerError::new("busy", "not today"))
        })
}

fn topic(n: usize) -> TopicName {
    TopicName::parse(["orders", "bills", "calls"][n % 3]).expect("a name")
}

fn key(n: usize) -> TaskKey {
    TaskKey::parse(&format!("key-{n}")).expect("a key")
}

/// Task number `n`, due so far ahead that nothing happens by itself.
fn task(n: usize) -> NewTask {
    let bytes = match n % 40 {
        39 => 120_000,
        19 | 29 => 24_000,
        other => other * 200,
    };
    let mut random = Random::new(n as u64);
    let noise: String = (0..bytes / 8)
        .map(|_| format!("{:08x}", random.below(1 << 32)))
        .collect();
    let new = NewTask::new(topic(n))
        .after(Duration::from_secs(86_400 + n as u64 * 60))
        .payload(&json!({"n": n, "noise": noise}))
        .action(Action::Handler {
            name: "works".to_owned(),
        });
    match n % 5 {
        0 => new,
        _ => new.key(key(n).as_str()).expect("a key"),
    }
}

/// Fills a directory with tasks in all states that last, and gives what was asked for by name.
async fn fill(engine: &Duetime, rounds: Range<usize>) -> Vec<TaskId> {
    let limits = InLimits {
        max_delay: DurationMs::secs(86_400 * 365),
        now: WallMs(0),
    };
    for (name, body) in [
        ("orders", r#"{"action":{"pull":{}}}"#),
        ("calls", r#"{"on_existing":"replace"}"#),
    ] {
        let settings = duetime::wire::topic::settings(body.as_bytes(), &limits).expect("settings");
        let name = TopicName::parse(name).expect("a name");
        let put = engine.put_topic(name, body.to_owned(), settings, "test");
        put.await.expect("it is declared");
    }
    let paused = TopicName::parse("held").expect("a name");
    let held = engine.pause_topic(paused, PauseClock::Keep, "test").await;
    held.expect("it is held");
    let mut ids = Vec::new();
    for round in rounds {
        let mut waiting = Vec::new();
        for n in round * 80..(round + 1) * 80 {
            let mut new = task(n);
            if n % 10 == 7 {
                let action = if n % 20 == 7 { "works" } else { "fails" };
                new = new.after(Duration::ZERO).action(Action::Handler {
                    name: action.to_owned(),
                });
                new = new.retry(RetryPolicy {
                    backoff: Backoff::Fixed(DurationMs::secs(86_400)),
                    max_attempts: if n % 80 == 57 { 1 } else { 3 },
                    ..RetryPolicy::default()
                });
            }
            let id = match engine.create(new, "test").await {
                Ok(Created::New(view)) => view.task.id,
                other => panic!("{other:?}"),
            };
            ids.push(id);
            match n % 10 {
                7 => waiting.push(id),
                3 => {
                    let pause = Event::Pause {
                        clock: PauseClock::Keep,
                    };
                    let done = engine.verb(Target::Id(id), pause, "test").await;
                    done.expect("it is paused");
                }
                _ => {}
            }
        }
        // Some of this round and, in chunks by now, of those before.
        for n in (round % 7..(round + 1) * 80).step_by(9) {
            if n % 10 != 7 && n % 5 != 0 {
                let target = Target::Key(topic(n), key(n));
                let _ = engine.cancel(target, "paid").await;
            }
        }
        for n in 0..10 {
            let (topic, key) = (topic(n), key(10_000 + round * 10 + n));
            let lasts = DurationMs::secs(86_400);
            let ahead = engine.cancel_ahead(
                topic,
                key,
                "early",
                lasts,
                "test",
                duetime::shard::messages::Wants::Whole,
            );
            assert!(ahead.await.expect("it is kept").is_none());
        }
        for id in waiting {
            let end = Instant::now() + SOON;
            loop {
                let task = engine.get(Target::Id(id)).await;
                let task = task.expect("an answer").expect("it is there").task;
                if matches!(task.state, State::Succeeded | State::Retrying | State::Dead) {
                    break;
                }
                assert!(Instant::now() < end, "{task:?}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    let discard = engine
        .verb(Target::Id(ids[57]), Event::Discard, "test")
        .await;
    discard.expect("it is discarded");
    ids
}

/// Asks for everything, and says it line by line.
async fn look(engine: &Duetime, ids: &[TaskId]) -> Truth {
    let mut seen = Truth::new();
    for id in ids {
        let found = match engine.get(Target::Id(*id)).await {
            Ok(Some(view)) => {
                let whole = format!("{:?}", view.task);
                format!("{} {:016x}", view.task.state, xxh3_64(whole.as_bytes()))
            }
            Ok(None) => "is gone".to_owned(),
            Err(error) => format!("error: {error}"),
        };
        seen.insert(format!("task {id}"), found);
    }
    let book = engine.book();
    let topics: BTreeMap<String, String> = book
        .iter()
        .map(|(name, topic)| (name.to_string(), format!("{topic:?}")))
        .collect();
    seen.insert("topics".to_owned(), format!("{topics:?}"));
    for n in 0..60 {
        let new = task(n % 10).key(key(10_000 + n).as_str()).expect("a key");
        let made = match engine.create(new, "test").await {
            Ok(Created::New(_)) => "is free".to_owned(),
            Ok(Created::Cancelled(_)) => "is cancelled".to_owned(),
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("error: {error}"),
        };
        seen.insert(format!("tombstone {n}"), made);
    }
    seen
}

// ---------------------------------------------------------------- the process that looks

/// One line for the process that compares.
fn say(what: &str, how: &str) {
    let line = format!("~{what}: {how}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).expect("somebody listens");
    out.flush().expect("somebody listens");
}

/// A task was started.
fn said_if_looking(task: TaskId) {
    if std::env::var_os(LOOK_AT).is_some() {
        say(&format!("fired {task}"), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it is a process of another test"]
async fn looks_at_a_directory() {
    let Some(place) = std::env::var_os(LOOK_AT).map(PathBuf::from) else {
        return;
    };
    let log = LogConfig {
        level: LogFilter::parse("warn").expect("a level"),
        ..Default::default()
    };
    duetime::telemetry::init(&log).expect("the first to log");
    let ids = fs::read_to_string(place.join("ids")).expect("the ids");
    let ids: Vec<TaskId> = ids.lines().map(|id| id.parse().expect("an id")).collect();
    match builder(&place.join("data")).start().await {
        Err(refused) => say("refused", &refused.to_string().replace('\n', " ")),
        Ok(engine) => {
            for (what, how) in look(&engine, &ids).await {
                say(&what, &how);
            }
            for shard in engine.shards().await {
                for damaged in shard.counts.iter().flat_map(|counts| &counts.damaged) {
                    say("damaged", damaged);
                }
                let fault = shard.child.and_then(|child| child.last_fault);
                if let Some(fault) = fault {
                    say("fault", &fault);
                }
            }
            say("seen", "all");
        }
    }
    // Not by way of all the ends of a process that may hold on to what is damaged.
    std::process::exit(0);
}

/// What a start on a directory came to.
struct Looked {
    said: Vec<(String, String)>,
    log: String,
    has_ended: bool,
}

impl Looked {
    fn at(place: &Path) -> Self {
        let start = Instant::now();
        let mut child = Command::new(std::env::current_exe().expect("this test's program"))
            .args([
                "looks_at_a_directory",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(LOOK_AT, place)
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("another process");
        let mut out = child.stdout.take().expect("it is piped");
        let mut err = child.stderr.take().expect("it is piped");
        let out = std::thread::spawn(move || {
            let mut text = Vec::new();
            out.read_to_end(&mut text).expect("it can be read");
            String::from_utf8_lossy(&text).into_owned()
        });
        let err = std::thread::spawn(move || {
            let mut text = Vec::new();
            err.read_to_end(&mut text).expect("it can be read");
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut has_ended = true;
        while child.try_wait().expect("it is a child").is_none() {
            if start.elapsed() > START_MAX {
                has_ended = false;
                child.kill().expect("it is a child");
                child.wait().expect("it is a child");
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let out = out.join().expect("it ends with the process");
        let said = out
            .lines()
            .filter_map(|line| line.split_once('~')?.1.split_once(": "));
        Self {
            said: said
                .map(|(what, how)| (what.to_owned(), how.to_owned()))
                .collect(),
            log: err.join().expect("it ends with the process"),
            has_ended,
        }
    }

    fn all(&self, what: &str) -> impl Iterator<Item = &str> {
        let said = self.said.iter().filter(move |(it, _)| it == what);
        said.map(|(_, how)| &**how)
    }

    fn truth(&self) -> Truth {
        let said = self.said.iter().filter(|(what, _)| {
            what.starts_with("task ") || what.starts_with("tombstone ") || what == "topics"
        });
        said.cloned().collect()
    }

    /// What is not as it must be, in one line; `None` if all is well.
    fn complaint(&self, truth: &Truth, data: &Path) -> Option<String> {
        if !self.has_ended {
            return Some("it hangs".to_owned());
        }
        if self.log.contains("panicked") {
            return Some("it panics".to_owned());
        }
        if let Some((what, _)) = self
            .said
            .iter()
            .find(|(what, _)| what.starts_with("fired "))
        {
            return Some(format!("a task that rests: {what}"));
        }
        let path = data.to_string_lossy();
        if let Some(refused) = self.all("refused").next() {
            return (!refused.contains(&*path))
                .then(|| format!("it refuses and names nothing: {refused}"));
        }
        if self.all("seen").next().is_none() {
            return Some("it dies".to_owned());
        }
        let is_named = self
            .all("damaged")
            .chain(self.all("fault"))
            .any(|it| it.contains(&*path));
        let seen = self.truth();
        for (what, is) in truth {
            match seen.get(what) {
                Some(found) if found == is => {}
                Some(found)
                    if found.starts_with("error: ") && (is_named || self.log.contains(&*path)) => {}
                Some(found) if what.starts_with("task ") && found == "is gone" && is_named => {}
                Some(found) if what.starts_with("tombstone ") && is_named && found == "is free" => {
                }
                Some(found) => return Some(format!("{what} is {is}, not {found}")),
                None => return Some(format!("{what} is not answered")),
            }
        }
        None
    }
}

// ---------------------------------------------------------------- damage

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip(u64, u8),
    ZeroPage(u64),
    Cut(u64),
    Remove,
}

/// A file, its path under `data`, and what befalls it.
fn drawn(random: &mut Random, data: &Path) -> (PathBuf, Damage) {
    let mut files = files_of(data);
    files.sort();
    // Small files as well as large ones, and in large ones where something is written.
    let sizes: Vec<u64> = files
        .iter()
        .map(|it| fs::metadata(it).expect("it is there").len())
        .collect();
    let file = match random.below(3) {
        0 => random.below(files.len() as u64) as usize,
        _ => {
            let mut at = random.below(sizes.iter().sum());
            let found = sizes.iter().position(|size| match at.checked_sub(*size) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            });
            found.expect("within the sum of all sizes")
        }
    };
    let bytes = fs::read(&files[file]).expect("it can be read");
    let size = bytes.len() as u64;
    let mut place = random.below(size.max(1));
    for _ in 0..40 {
        if bytes.get(place as usize).is_some_and(|byte| *byte != 0) {
            break;
        }
        place = random.below(size.max(1));
    }
    let damage = match random.below(20) {
        _ if size == 0 => Damage::Remove,
        0 => Damage::Remove,
        1 | 2 => Damage::Cut(place),
        3..=5 => Damage::ZeroPage(place / 4096 * 4096),
        _ => Damage::Flip(place, 1 << random.below(8)),
    };
    let file = files[file].strip_prefix(data).expect("it is in there");
    (file.to_owned(), damage)
}

fn inflict(file: &Path, damage: Damage) {
    let mut bytes = fs::read(file).expect("it can be read");
    match damage {
        Damage::Remove => return fs::remove_file(file).expect("it can be removed"),
        Damage::Flip(at, bit) => bytes[at as usize] ^= bit,
        Damage::Cut(length) => bytes.truncate(length as usize),
        Damage::ZeroPage(at) => {
            let end = bytes.len().min(at as usize + 4096);
            bytes[at as usize..end].fill(0);
        }
    }
    fs::write(file, bytes).expect("it can be written");
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
#[expect(
    clippy::print_stderr,
    reason = "a failure can only be repeated with its seed"
)]
fn a_damaged_place_is_named_and_nothing_wrong_is_served() {
    let flips = number_of("DUETIME_FLIPS").map_or(FLIPS, |flips| flips as usize);
    let seed = number_of("SEED").unwrap_or_else(|| now_ms().unsigned_abs());
    eprintln!("SEED={seed}");
    let (running, stopped) = directories();
    let truth = Looked::at(copied(stopped.path()).path()).truth();
    for place in [&running, &stopped] {
        let copy = copied(place.path());
        let looked = Looked::at(copy.path());
        let complaint = looked.complaint(&truth, &copy.path().join("data"));
        assert_eq!(complaint, None, "before any damage\n{}", looked.log);
        assert!(looked.all("damaged").next().is_none());
    }
    assert!(truth.len() > 500, "{} things to ask for", truth.len());

    let mut random = Random::new(seed);
    let drawn: Vec<_> = (0..flips)
        .map(|n| {
            let place = if n % 2 == 0 { &running } else { &stopped };
            let (file, damage) = drawn(&mut random, &place.path().join("data"));
            (n, place, file, damage)
        })
        .collect();
    let next = AtomicUsize::new(0);
    let (refused, complaints) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((n, place, file, damage)) =
                    drawn.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let copy = copied(place.path());
                    let data = copy.path().join("data");
                    inflict(&data.join(file), *damage);
                    let looked = Looked::at(copy.path());
                    let is_refused = looked.all("refused").next().is_some();
                    refused.fetch_add(usize::from(is_refused), Ordering::Relaxed);
                    if let Some(complaint) = looked.complaint(&truth, &data) {
                        let log: Vec<&str> = looked.log.lines().rev().take(3).collect();
                        let words = format!("{n}: {} {damage:?}: {complaint}", file.display());
                        complaints
                            .lock()
                            .push(format!("{words}\n    {}", log.join("\n    ")));
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner();
    eprintln!("{flips} places, {} starts refused", refused.into_inner());
    assert!(
        complaints.is_empty(),
        "{} of {flips}:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

/// A copy of a running engine's directory, and the same directory after its stop.
fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
    let work = tempfile::tempdir().expect("a directory");
    let data = work.path().join("data");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let running = runtime.block_on(async {
        // In two lives, so that there is a snapshot with a log behind it, and more than one segment.
        let engine = builder(&data).start().await.expect("it starts");
        let mut ids = fill(&engine, 0..3).await;
        engine.shutdown().await;
        drop(engine);
        let engine = builder(&data).start().await.expect("it starts");
        ids.extend(fill(&engine, 3..9).await);
        let folds: u64 = engine
            .counts()
            .await
            .expect("they answer")
            .iter()
            .map(|it| it.shelf.folds)
            .sum();
        assert!(folds >= 4, "{folds} folds");
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        fs::write(work.path().join("ids"), ids.join("\n")).expect("it is written");
        until("its last fold and its last flush are over", SOON, || {
            is_at_rest(&data).then_some(())
        });
        let running = copied(work.path());
        engine.shutdown().await;
        running
    });
    assert_no_blobs(&data);
    (running, work)
}

/// Nothing has been written for several times as long as sled waits with a flush, and a fold between two slices.
fn is_at_rest(data: &Path) -> bool {
    let files = files_of(data);
    let written = files.iter().map(|file| fs::metadata(file)?.modified());
    // A file that goes while it is looked at is a change, too.
    let Ok(last) = written.collect::<std::io::Result<Vec<_>>>() else {
        return false;
    };
    let last = last.into_iter().max();
    let since = last.and_then(|last| last.elapsed().ok());
    since > Some(Duration::from_millis(4 * FLUSH_EVERY_MS))
}

fn copied(place: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a directory");
    copy_directory(place, copy.path()).expect("files can be copied");
    copy
}
