//! The auditor: a slow, steady look at every task of a shard, that nothing is where nobody looks for it.
//!
//! ```text
//!  row ─▶ its record is where the row says            else: counted as wrong, and said in the log
//!      ─▶ what waits, and whose time is long past     is put before its alarm again
//!  topic ─▶ as many rows as it counts, by state       else: counted anew
//! ```
//!
//! It is a net, not a mechanism: what it finds is a bug of ours, and what it mends would else have waited for the
//! next start. It looks at a few rows at a time, a few thousand a second, and begins again when it is through; so its
//! cost does not grow with the tasks there are, only the time of a round does. It reads no record but that of a task
//! that seems to be passed over.

use crate::clock::{DurationMs, MonoMs, Now, WallMs};
use crate::shard::core::ShardCore;
use crate::shard::index::{Home, Row};
use crate::shard::place::{Place, alarms_of};
use crate::task::model::State;

/// Rows looked at per millisecond that has passed, and at most at a time.
const ROWS_PER_MS: u64 = 2;
const ROWS_MAX: u64 = 1_024;
/// What should have rung so long ago was passed over.
const PASSED_OVER: DurationMs = DurationMs::secs(30);
/// Records read at a time, of tasks that seem to be passed over.
const READS_MAX: usize = 4;
/// Topics of at most so many tasks are counted again.
const RECOUNTED_MAX: u64 = 1_000;

/// What an auditor has seen since the shard's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Rounds through all tasks.
    pub rounds: u64,
    /// Rows looked at.
    pub looked_at: u64,
    /// Of them, with something wrong.
    pub wrong: u64,
    /// Of these, mended.
    pub mended: u64,
}

/// Where the auditor is.
#[derive(Debug, Default)]
pub struct Auditor {
    next: u32,
    looked: MonoMs,
    counts: AuditCounts,
}

impl Auditor {
    /// What it has seen.
    pub fn counts(&self) -> AuditCounts {
        self.counts
    }
}

impl ShardCore {
    /// Looks at the next few rows.
    pub(super) fn audit(&mut self, now: Now) {
        let passed = now.mono.since(self.auditor.looked).0;
        let rows = (passed * ROWS_PER_MS).min(ROWS_MAX);
        if rows == 0 {
            return;
        }
        self.auditor.looked = now.mono;
        let mut reads = READS_MAX;
        for _ in 0..rows {
            if self.auditor.next >= self.table.rows_end() {
                self.auditor.next = 0;
                self.auditor.counts.rounds += 1;
                self.recount();
                return;
            }
            let row = self.table.row_numbered(self.auditor.next);
            self.auditor.next += 1;
            let Some(row) = row else {
                continue;
            };
            self.auditor.counts.looked_at += 1;
            if !self.table.is_at_home(&row) {
                self.auditor.counts.wrong += 1;
                tracing::error!(shard = %self.id(), task = %row.id, home = ?row.home, "the record of a task is not where it should be");
            } else if seems_passed_over(&row, now) && reads > 0 {
                reads -= 1;
                self.look_closer(&row, now);
            }
        }
    }

    /// A due time long past may be one that an attempt followed, or that its topic holds back.
    fn look_closer(&mut self, row: &Row, now: Now) {
        let Some(entry) = self.table.read(row.id) else {
            return;
        };
        let task = &entry.task;
        let rings_at = task.next.later_by(PASSED_OVER);
        // What was changed a moment ago may be late for another reason, and its alarm be about to ring.
        let is_fresh = now.wall.since(task.updated_at) <= PASSED_OVER;
        if entry.place != Place::Wheel || !rings_at.is_reached(now) || is_fresh {
            return;
        }
        self.auditor.counts.wrong += 1;
        self.auditor.counts.mended += 1;
        tracing::error!(shard = %self.id(), task = %row.id, due_at = %task.due.at, "a task was passed over; it is put before its alarm again");
        for alarm in alarms_of(task, Place::Wheel).into_iter().flatten() {
            self.set_alarm(alarm);
        }
        self.table.set_alarmed(row.id, true);
    }

    /// Counts a small topic's rows again, one topic a round.
    fn recount(&mut self) {
        let round = self.auditor.counts.rounds as usize;
        let lines = self.table.topics_mut();
        let mut small: Vec<_> = lines
            .filter(|line| line.tasks() <= RECOUNTED_MAX)
            .map(|line| line.name.clone())
            .collect();
        if small.is_empty() {
            return;
        }
        let name = small.swap_remove(round % small.len());
        let Some(rows) = self.table.rows_of_topic(&name, RECOUNTED_MAX) else {
            return;
        };
        let mut counts = [0; State::ALL.len()];
        for row in rows {
            counts[row.state.index()] += 1;
        }
        for line in self.table.topics_mut().filter(|line| line.name == name) {
            if line.counts != counts {
                self.auditor.counts.wrong += 1;
                self.auditor.counts.mended += 1;
                tracing::error!(topic = %name, counted = ?line.counts, there_are = ?counts, "the counts of a topic were wrong; they are right now");
                line.counts = counts;
            }
        }
    }
}

/// Only a look at its record can tell.
fn seems_passed_over(row: &Row, now: Now) -> bool {
    matches!(row.state, State::Pending | State::Retrying)
        && row.place == Place::Wheel
        && WallMs(row.at_ms).after(PASSED_OVER) < now.wall
        && (row.is_alarmed || matches!(row.home, Home::Chunk(..)))
}
