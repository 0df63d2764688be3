//! Whatever was acknowledged outlives a power cut: a last write that is torn at any length, and a disk that loses
//! what was not synced.
//!
//! ```sh
//! cargo test --features failpoints --test torn                          # every length, then 10 power cuts
//! cargo test --features failpoints --test torn -- --cycles 200 --seed 7
//! ```
//!
//! The power cuts are the cycles of the crash program ([`run`]), with the data directory on a [`disk`] that forgets.

#![expect(clippy::print_stdout, reason = "a program says what it does")]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

#[cfg(target_os = "linux")]
mod disk;
#[path = "../crash/ledger.rs"]
#[expect(dead_code, reason = "each program uses its part")]
mod ledger;
#[path = "../crash/look.rs"]
mod look;
#[path = "../crash/run.rs"]
mod run;
#[path = "../crash/traffic.rs"]
mod traffic;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use duetime::store::local::journal::{Journal, JournalDirectory};
use serde_json::{Value, json};

use run::Asked;
use support::service::Service;

const CYCLES: u64 = 10;
/// What a journal's frame begins with, on 8 bytes.
const MAGIC: &[u8] = b"dueJ";

fn main() -> ExitCode {
    let Some(asked) = Asked::of("torn", CYCLES) else {
        return ExitCode::SUCCESS;
    };
    tear_the_last_write_at_every_length();
    cut_the_power(&asked)
}

/// A frame that was cut is gone or whole, and all before it are there; for the journal, and for the service.
fn tear_the_last_write_at_every_length() {
    let mut service = Service::with(&[
        ("DUETIME_SHARDS__COUNT", "1"),
        ("DUETIME_LOG__LEVEL", "error"),
    ]);
    let tasks: Vec<Value> = (0..20)
        .map(|n| {
            let key = format!("k{n}");
            let pad = "x".repeat(n * 37 % 500);
            service.made(
                &json!({"topic": "torn", "key": key, "delay": "PT1H", "payload": {"pad": pad}}),
            )
        })
        .collect();
    service.kill();
    let data = service.data();
    let journal = data.join("shards/000/journal");
    let whole = frames(&journal);
    assert!(
        whole.len() >= tasks.len(),
        "each task was committed by itself"
    );
    let torn = LastFrame::of(&journal);
    for length in torn.start..torn.end {
        for is_shortened in [false, true] {
            torn.cut_to(length, is_shortened);
            let left = frames(&journal);
            let is_whole = left.len() == whole.len();
            assert!(
                left == whole[..left.len()] && left.len() + 1 >= whole.len(),
                "torn at {length} of {}..{}: {} of {} frames are left",
                torn.start,
                torn.end,
                left.len(),
                whole.len()
            );
            assert!(
                !is_whole || torn.lost_nothing(),
                "a torn frame passes for a whole one"
            );
            torn.mend();
        }
    }
    // The service takes what the journal gives it, and goes on behind the cut.
    let frame = torn.end - torn.start;
    for length in [0, 1, 47, 48, frame / 2, frame - 9].map(|at| torn.start + at) {
        torn.cut_to(length, false);
        let copy = service.data().with_file_name(format!("torn-at-{length}"));
        let copied = Command::new("cp").arg("-r").arg(&data).arg(&copy).status();
        assert!(
            copied.is_ok_and(|status| status.success()),
            "a directory can be copied"
        );
        torn.mend();
        service.set_data(copy);
        service.start_again();
        let (last, before) = tasks.split_last().expect("there are some");
        for task in before {
            let found = service.task(&task["id"]);
            assert_eq!(
                (&found["due_at"], &found["payload"]),
                (&task["due_at"], &task["payload"])
            );
        }
        let reply = service.get(&format!(
            "/v1/tasks/{}",
            last["id"].as_str().expect("an id")
        ));
        assert_eq!(reply.status, 404, "{}", reply.text());
        let next = service.made(&json!({"topic": "torn", "key": "next", "delay": "PT1H"}));
        service.kill_and_start();
        assert_eq!(service.list("topic=torn&limit=1000").len(), tasks.len());
        assert_eq!(service.by_key("torn", "next")["id"], next["id"]);
        service.kill();
    }
    println!(
        "torn: the last of {} frames cut at each of its {frame} bytes",
        whole.len()
    );
}

/// What a journal replays; reading changes nothing on the disk.
fn frames(journal: &Path) -> Vec<(u64, Vec<u8>)> {
    let files = JournalDirectory::open(journal).expect("the journal's directory opens");
    let mut frames = Vec::new();
    let opened = Journal::open(Box::new(files), 0, &mut |frame| {
        frames.push((frame.sequence, frame.payload));
        Ok(())
    });
    drop(opened.expect("the journal opens"));
    frames
}

/// The last frame of a journal's last segment.
struct LastFrame {
    segment: PathBuf,
    file: File,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl LastFrame {
    fn of(journal: &Path) -> Self {
        let names = fs::read_dir(journal).expect("it can be listed");
        let paths = names.map(|entry| entry.expect("it can be listed").path());
        let segments = paths.filter(|path| path.extension().is_some_and(|it| it == "segment"));
        let segment = segments.max().expect("there is a segment");
        let bytes = fs::read(&segment).expect("it can be read");
        let file = OpenOptions::new().write(true).open(&segment);
        let file = file.expect("it can be written");
        // It was written once the frame was synced. One that is torn was not.
        fs::remove_file(journal.join("bookmark")).expect("there is a bookmark");
        let last = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .expect("it was written to");
        let is_start = |at: &usize| bytes[*at..].starts_with(MAGIC);
        let start = (0..last)
            .step_by(8)
            .rfind(is_start)
            .expect("it holds a frame");
        Self {
            segment,
            file,
            bytes,
            start,
            end: (last + 1).next_multiple_of(8),
        }
    }

    /// What is behind `length` was never written: the file ends there, or has zeros there.
    fn cut_to(&self, length: usize, is_shortened: bool) {
        let set = |length: usize| {
            self.file
                .set_len(length as u64)
                .expect("its length can be set")
        };
        set(length);
        if !is_shortened {
            set(self.bytes.len());
        }
    }

    /// Whether only zeros were cut, that the file has anyway.
    fn lost_nothing(&self) -> bool {
        let now = fs::read(&self.segment).expect("it can be read");
        now.get(..self.end) == Some(&self.bytes[..self.end])
    }

    fn mend(&self) {
        self.file
            .write_all_at(&self.bytes, 0)
            .expect("it can be written");
    }
}

#[cfg(target_os = "linux")]
fn cut_the_power(asked: &Asked) -> ExitCode {
    use disk::LossyDisk;
    use support::Random;

    // Whether this machine lets us have such a disk at all.
    if let Err(error) = LossyDisk::mount() {
        println!("torn: power cuts NOT RUN: a FUSE file system can't be mounted here: {error}");
        return ExitCode::SUCCESS;
    }
    asked.run(|run| {
        let mut disk = LossyDisk::mount().expect("it could be mounted just now");
        run.service.set_data(disk.path().join("data"));
        let mut random = Random::new(asked.seed);
        run.after_death = Box::new(move || {
            let seed = (random.below(2) == 0).then(|| random.below(u64::MAX));
            disk.cut_power(seed).expect("the disk comes back");
        });
    })
}

#[cfg(not(target_os = "linux"))]
fn cut_the_power(_: &Asked) -> ExitCode {
    println!("torn: power cuts NOT RUN: they need FUSE, and so Linux");
    ExitCode::SUCCESS
}
