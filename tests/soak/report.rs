//! What a soak has found: down times by kind of fault and part, availability, and whatever was not as promised.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::PROGRAM;
use super::faults::{Fault, Kind};
use super::house::SHARDS;

/// A fault, and what followed.
pub struct Happened {
    pub fault: Fault,
    /// Whether anybody came by its point in time.
    pub was_met: bool,
    /// Restarts of parts that followed, all in all.
    pub restarts: u64,
    /// Whether only a new process helped.
    pub has_left: bool,
    /// By shard.
    pub down_ms: Vec<u64>,
}

#[derive(Default)]
pub struct Report {
    pub seed: u64,
    /// Directories that were begun.
    pub chapters: u64,
    /// The seed of the last of them, and how long it was under load.
    pub last: (u64, Duration),
    /// Time under load.
    pub length: Duration,
    pub happened: Vec<Happened>,
    /// Down time by shard.
    pub down_ms: Vec<u64>,
    pub tasks: usize,
    pub starts: usize,
    /// Tasks whose history was gone through.
    pub histories: usize,
    pub violations: Vec<String>,
    /// Where data and log are, when something was not as promised.
    pub kept: Option<String>,
}

/// All faults of a kind in a sort of part.
#[derive(Default)]
struct Row {
    times: u64,
    unmet: u64,
    restarts: u64,
    left: u64,
    /// Of each fault, over all shards.
    down_ms: Vec<u64>,
}

impl Row {
    fn total_ms(&self) -> u64 {
        self.down_ms.iter().sum()
    }

    /// The value that so many of a hundred are not above.
    fn percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.down_ms.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(at).copied().unwrap_or_default()
    }
}

impl Report {
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            down_ms: vec![0; usize::from(SHARDS)],
            ..Self::default()
        }
    }

    /// What followed on another directory.
    pub fn add(&mut self, next: Self) {
        self.chapters += 1;
        self.last = (next.seed, next.length);
        self.length += next.length;
        self.happened.extend(next.happened);
        for (total, ms) in self.down_ms.iter_mut().zip(next.down_ms) {
            *total += ms;
        }
        self.tasks += next.tasks;
        self.starts += next.starts;
        self.histories += next.histories;
        self.violations.extend(next.violations);
        self.kept = next.kept;
    }

    fn rows(&self) -> BTreeMap<(Kind, &str), Row> {
        let mut rows: BTreeMap<(Kind, &str), Row> = BTreeMap::new();
        for happened in &self.happened {
            let fault = &happened.fault;
            let row = rows.entry((fault.kind, fault.sort_of_part())).or_default();
            row.times += 1;
            row.unmet += u64::from(!happened.was_met);
            row.restarts += happened.restarts;
            row.left += u64::from(happened.has_left);
            row.down_ms.push(happened.down_ms.iter().sum());
        }
        rows
    }

    fn shard_ms(&self) -> u64 {
        self.length.as_millis() as u64 * u64::from(SHARDS)
    }

    fn availability(&self) -> f64 {
        let down: u64 = self.down_ms.iter().sum();
        1.0 - down as f64 / self.shard_ms().max(1) as f64
    }

    pub fn json(&self) -> Value {
        let rows = self.rows();
        let faults: Vec<Value> = rows
            .iter()
            .map(|((kind, part), row)| {
                json!({
                    "kind": kind.name(), "part": part, "times": row.times, "unmet": row.unmet,
                    "restarts": row.restarts, "processes_left": row.left,
                    "down_ms": {"total": row.total_ms(), "p50": row.percentile(50), "max": row.percentile(100)},
                })
            })
            .collect();
        json!({
            "seed": self.seed,
            "seconds": self.length.as_secs_f64(),
            "shard_seconds": self.shard_ms() as f64 / 1000.0,
            "down_ms_by_shard": self.down_ms,
            "availability": self.availability(),
            "tasks": self.tasks, "starts": self.starts, "histories": self.histories,
            "faults": faults,
            "violations": self.violations,
            "kept": self.kept,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "fault", "in", "times", "not met", "restarts", "left", "down, ms", "p50", "max",
        ]);
        for ((kind, part), row) in self.rows() {
            let numbers = [
                row.times,
                row.unmet,
                row.restarts,
                row.left,
                row.total_ms(),
                row.percentile(50),
                row.percentile(100),
            ];
            let words = [kind.name().to_owned(), part.to_owned()];
            table.add_row(
                words
                    .into_iter()
                    .chain(numbers.map(|number| number.to_string())),
            );
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "{PROGRAM}: {} faults; {:.0} shard-seconds under load, down for {:.1}: {:.2} % available",
            self.happened.len(),
            self.shard_ms() as f64 / 1000.0,
            self.down_ms.iter().sum::<u64>() as f64 / 1000.0,
            100.0 * self.availability(),
        )?;
        writeln!(
            f,
            "{PROGRAM}: {} tasks, {} starts, {} histories gone through",
            self.tasks, self.starts, self.histories
        )?;
        if self.violations.is_empty() {
            return write!(f, "{PROGRAM}: no promise was broken");
        }
        for violation in self.violations.iter().take(10) {
            writeln!(f, "  - {violation}")?;
        }
        let last = self.happened.iter().rev().take(5);
        let last: Vec<String> = last.map(|happened| happened.fault.to_string()).collect();
        writeln!(f, "  the last faults, backwards: {}", last.join("; "))?;
        if let Some(kept) = &self.kept {
            writeln!(f, "  data and log are kept in {kept}")?;
        }
        let (seed, length) = self.last;
        write!(
            f,
            "{PROGRAM}: BROKEN, {} times; to repeat:\n  cargo test --features failpoints --test {PROGRAM} -- --for {}s --seed {seed}",
            self.violations.len(),
            length.as_secs(),
        )
    }
}
