//! What workers hold of a shard's tasks, and what became of what they had: by their names, since the owner's start.
//!
//! It follows from the changes of tasks alone ([`Tallies::note`]), so that what a worker holds is right whatever led to
//! it, also after a restart. A name of which nothing is held may make room for another.

use std::collections::{BTreeMap, HashMap};

use crate::clock::{Now, WallMs};
use crate::executor::roster::NAMES_MAX;
use crate::ids::TaskId;
use crate::task::model::Task;

/// Tasks of one worker that are told of.
const HELD_SHOWN: usize = 10;

/// By worker.
#[derive(Debug, Default)]
pub struct Tallies(HashMap<String, Tally>);

/// Of one worker.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    held: BTreeMap<TaskId, WallMs>,
    /// When it was last heard of: it leased, kept or ended something.
    pub last: WallMs,
    /// Counts.
    pub counts: TallyCounts,
}

/// What became of the tasks that a worker has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallyCounts {
    /// It has them now.
    pub leases: u64,
    /// It had them at some time.
    pub leased: u64,
    /// It did them.
    pub completed: u64,
    /// It said that they failed.
    pub failed: u64,
    /// Its lease ran out, or the task's time.
    pub lost: u64,
}

impl TallyCounts {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            leases: self.leases + other.leases,
            leased: self.leased + other.leased,
            completed: self.completed + other.completed,
            failed: self.failed + other.failed,
            lost: self.lost + other.lost,
        }
    }
}

/// A worker, as a shard knows it.
#[derive(Clone, Debug)]
pub struct TallyPart {
    /// Its name; empty if it has none.
    pub worker: String,
    /// When it was last heard of.
    pub last: WallMs,
    /// Counts.
    pub counts: TallyCounts,
    /// Some of what it holds, and since when.
    pub held: Vec<(TaskId, WallMs)>,
}

/// Who holds a task.
pub fn holder(task: &Task) -> Option<&str> {
    task.live.as_ref()?.worker.as_deref()
}

impl Tallies {
    /// A task was changed that `before` held.
    pub fn note(&mut self, before: Option<&str>, task: &Task, now: Now) {
        let after = holder(task);
        if let Some(worker) = before {
            let tally = self.of(worker);
            tally.last = now.wall;
            if after.is_none() && tally.held.remove(&task.id).is_some() {
                // Of the attempt, which is more than what became of the task by it.
                match task.attempts_log.kept.last().map(|attempt| attempt.outcome) {
                    Some("succeeded") => tally.counts.completed += 1,
                    Some("failed") => tally.counts.failed += 1,
                    Some("lease_expired" | "timeout") => tally.counts.lost += 1,
                    _ => {}
                }
            }
        }
        if let (None, Some(worker)) = (before, after) {
            let tally = self.of(worker);
            tally.last = now.wall;
            tally.counts.leased += 1;
            tally.held.insert(task.id, now.wall);
        }
    }

    /// A task was found in a worker's hands at a start.
    pub fn recover(&mut self, task: &Task) {
        if let Some(worker) = holder(task) {
            let since = task.live.as_ref().and_then(|live| live.started_at);
            let tally = self.of(worker);
            tally.last = tally.last.max(since.unwrap_or_default());
            tally.held.insert(task.id, since.unwrap_or_default());
        }
    }

    fn of(&mut self, worker: &str) -> &mut Tally {
        if self.0.len() >= NAMES_MAX && !self.0.contains_key(worker) {
            self.0.retain(|_, tally| !tally.held.is_empty());
        }
        self.0.entry(worker.to_owned()).or_default()
    }

    /// All of them.
    pub fn parts(&self) -> Vec<TallyPart> {
        let all = self.0.iter();
        let part = |(worker, tally): (&String, &Tally)| TallyPart {
            worker: worker.clone(),
            last: tally.last,
            counts: TallyCounts {
                leases: tally.held.len() as u64,
                ..tally.counts
            },
            held: tally
                .held
                .iter()
                .take(HELD_SHOWN)
                .map(|(id, since)| (*id, *since))
                .collect(),
        };
        all.map(part).collect()
    }
}
