//! Who asks for work: outside workers, by the names that they give themselves.
//!
//! A worker is on the roster from its first question on, and until it has not been heard of for a day. It is known by
//! its name only: two that have the same are one here. At most [`NAMES_MAX`] names are kept; while that many were heard
//! of within the hour, further ones are served and not listed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::{DurationMs, Now, WallMs};
use crate::task::spec::TopicName;

/// Most names that are kept.
pub const NAMES_MAX: usize = 10_000;
/// So long after it was last heard of, a name may make room for another.
const QUIET: DurationMs = DurationMs::secs(3600);
/// So long after it was last heard of, a worker counts as gone.
const GONE: DurationMs = DurationMs::secs(24 * 3600);

/// See the module's header.
#[derive(Debug, Default)]
pub struct Roster(Mutex<HashMap<String, Seen>>);

/// What is known of a worker from its questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When it first asked.
    pub since: WallMs,
    /// When it asked last, or was last answered.
    pub last: WallMs,
    /// What it asked for last.
    pub topics: Arc<[TopicName]>,
    /// How many of its questions wait.
    pub waiting: u32,
}

/// A question that waits; over when it is dropped.
#[derive(Debug)]
pub struct Visit<'a> {
    roster: &'a Roster,
    worker: &'a str,
}

impl Roster {
    /// A worker asks for tasks of these topics.
    pub fn asks<'a>(&'a self, worker: &'a str, topics: &Arc<[TopicName]>, now: Now) -> Visit<'a> {
        let mut seen = self.0.lock();
        if seen.len() >= NAMES_MAX && !seen.contains_key(worker) {
            seen.retain(|_, seen| seen.waiting > 0 || now.wall.since(seen.last) < QUIET);
        }
        if seen.len() < NAMES_MAX || seen.contains_key(worker) {
            let seen = seen.entry(worker.to_owned()).or_insert_with(|| Seen {
                since: now.wall,
                last: now.wall,
                topics: Arc::clone(topics),
                waiting: 0,
            });
            seen.last = now.wall;
            seen.topics = Arc::clone(topics);
            seen.waiting += 1;
        }
        drop(seen);
        Visit {
            roster: self,
            worker,
        }
    }

    /// All that were heard of within a day.
    pub fn all(&self, now: Now) -> HashMap<String, Seen> {
        let mut seen = self.0.lock();
        seen.retain(|_, seen| seen.waiting > 0 || now.wall.since(seen.last) < GONE);
        seen.clone()
    }
}

impl Visit<'_> {
    /// It has its answer.
    pub fn answered(&self, now: Now) {
        if let Some(seen) = self.roster.0.lock().get_mut(self.worker) {
            seen.last = seen.last.max(now.wall);
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(seen) = self.roster.0.lock().get_mut(self.worker) {
            seen.waiting = seen.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::at;

    fn topics() -> Arc<[TopicName]> {
        [TopicName::parse("a").expect("a name")].into()
    }

    #[test]
    fn a_worker_is_known_by_its_name_from_its_first_question_until_a_day_after_its_last() {
        let roster = Roster::default();
        let (first, second) = (
            roster.asks("w1", &topics(), at(0)),
            roster.asks("w1", &topics(), at(5)),
        );
        let seen = roster.all(at(5)).remove("w1").expect("it is known");
        assert_eq!((seen.since, seen.last), (at(0).wall, at(5).wall));
        assert_eq!(seen.waiting, 2);
        first.answered(at(9));
        drop((first, second));
        let day_ms = GONE.0 as i64;
        let seen = roster.all(at(8 + day_ms)).remove("w1").expect("still");
        assert_eq!((seen.last, seen.waiting), (at(9).wall, 0));
        assert!(roster.all(at(9 + day_ms)).is_empty());
    }

    #[test]
    fn more_names_than_are_kept_make_room_once_they_are_quiet() {
        let roster = Roster::default();
        for n in 0..NAMES_MAX {
            drop(roster.asks(&format!("w{n}"), &topics(), at(0)));
        }
        drop(roster.asks("late", &topics(), at(1)));
        assert_eq!(roster.all(at(1)).len(), NAMES_MAX, "served, and not listed");
        let hour = at(QUIET.0 as i64);
        drop(roster.asks("late", &topics(), hour));
        assert!(roster.all(hour).contains_key("late"));
        assert_eq!(roster.all(hour).len(), 1);
    }
}
