//! How far a schedule is: what the registry stores of it beside what was said of it.

use serde::{Deserialize, Serialize};

use crate::clock::WallMs;
use crate::rule::Schedule;
use crate::rule::book::Kept;

/// How far a schedule is. Instants are those of occurrences, which their tasks' keys tell, in Unix milliseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Position {
    /// Of the schedule that this belongs to.
    pub version: u64,
    /// The topic of its tasks.
    pub topic: String,
    /// When this course began: the schedule was put, or resumed.
    pub since_ms: i64,
    /// The latest occurrence that was dealt with, in whichever way; where there is none, the beginning.
    pub last_ms: i64,
    /// Stored, and not let go yet.
    pub stored_ms: Option<i64>,
    /// Of the stored one: its time has come, and it is held until the one before has ended.
    pub is_held: bool,
    /// The latest that was let go.
    pub ran_ms: Option<i64>,
    /// How many were let go since the schedule was put.
    pub runs: u64,
    /// No occurrence is made.
    pub is_paused: bool,
}

impl Position {
    /// At the beginning of a course.
    pub(in crate::engine) fn begun(kept: &Kept<Schedule>, since: WallMs, is_paused: bool) -> Self {
        Self {
            version: kept.version,
            topic: kept.meaning.topic.as_str().to_owned(),
            since_ms: since.0,
            last_ms: since.0,
            stored_ms: None,
            is_held: false,
            ran_ms: None,
            runs: 0,
            is_paused,
        }
    }

    /// As it is stored.
    pub(super) fn text(&self) -> String {
        // Numbers and a text always become JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Read back.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}
