//! Minutes of load with a part that fails every second or two: every promise holds, and how long each fault keeps a
//! shard from serving is told.
//!
//! ```text
//!   callers, a worker, a probe per shard ──▶ engine and API, a process ──▶ receiver
//!                                                ▲  ▲ panic, error, block, livelock, slow: at a point
//!                                     director ──┘  └ SIGKILL and a new start, SIGSTOP for a second
//!   ledger: what was answered and seen ── history: who started what ──▶ is all of it as promised?
//! ```
//!
//! After each round all tasks are looked at ([`ledger`]), in the end so is how each came to its end ([`history`]).
//!
//! ```sh
//! cargo test --features failpoints --test soak                            # a minute
//! cargo test --features failpoints --test soak -- --for 10m --seed 7 --json
//! ```
//!
//! The seed repeats requests and faults; which of them meet is up to the machine.

#![expect(clippy::print_stdout, reason = "a program says what it does")]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

mod faults;
mod history;
mod house;
#[path = "../crash/ledger.rs"]
mod ledger;
#[path = "../crash/look.rs"]
mod look;
mod meter;
mod report;
mod run;
#[path = "../crash/traffic.rs"]
#[expect(dead_code, reason = "each program uses its part")]
mod traffic;

use std::process::ExitCode;
use std::time::Duration;

use report::Report;
use run::Soak;
use support::now_ms;
use support::program::{is_asked_for, number};

const PROGRAM: &str = "soak";
const LENGTH: Duration = Duration::from_secs(60);
const CHAPTER: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if house::is_meant() {
        return house::serve();
    }
    let (mut length, mut seed, mut json) = (LENGTH, now_ms().unsigned_abs(), false);
    let is_meant = is_asked_for(PROGRAM, |option, value| {
        match option {
            "--for" => length = length_of(option, &value()),
            "--seed" => seed = number(option, &value()),
            "--json" => json = true,
            _ => return false,
        }
        true
    });
    if !is_meant {
        return ExitCode::SUCCESS;
    }
    history::finds_what_is_planted();
    if !json {
        println!("{PROGRAM}: {} s, seed {seed}", length.as_secs());
    }
    let report = soak(seed, length, |so_far| {
        if !json {
            let (seconds, faults) = (so_far.length.as_secs(), so_far.happened.len());
            println!(
                "{PROGRAM}: {seconds} s, {faults} faults, {} tasks",
                so_far.tasks
            );
        }
    });
    if json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    match report.violations.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Minute after minute, each on a directory of its own, so that looking at everything stays quick; until something is
/// not as promised.
fn soak(seed: u64, length: Duration, progress: impl Fn(&Report)) -> Report {
    let mut report = Report::of(seed);
    while report.violations.is_empty() && report.length < length {
        // A seed for each, so that it can be had again without those before it.
        let seed = seed.wrapping_add(report.chapters);
        let left = length.saturating_sub(report.length);
        report.add(Soak::new(seed).run(CHAPTER.min(left)));
        progress(&report);
    }
    report
}

/// `90`, `90s` or `10m`.
fn length_of(option: &str, text: &str) -> Duration {
    let (digits, unit_s) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    Duration::from_secs(number(option, digits) * unit_s)
}
