//! Schedules: what repeats, and what becomes of occurrences that nobody was there for, or that meet the one before.
//!
//! An **occurrence** is one instant of a schedule; it becomes a task with key `<schedule>@<time>`. Here is only the
//! arithmetic of instants; what is done about them is the engine's (`engine/schedules`).

use jiff::tz::TimeZone;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::{DurationMs, WallMs};
use crate::rule::Cron;
use crate::task::spec::{Action, RawJson, TopicName};

/// When it repeats.
#[derive(Clone, PartialEq, Debug)]
pub enum Rhythm {
    /// By what a zone's clocks show.
    Cron(Cron),
    /// Always after the same length of time.
    Every(DurationMs),
}

/// What becomes of occurrences that passed while the service was down, or had no time for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CatchUp {
    /// They are gone.
    #[default]
    None,
    /// The last of them runs at once.
    Latest,
    /// All of them run, one after the other.
    All,
}

/// What becomes of an occurrence whose time comes while the one before it has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overlap {
    /// It is left out.
    #[default]
    Skip,
    /// It waits for the end of the other.
    Queue,
    /// It runs beside it.
    Allow,
}

/// A schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// When it repeats.
    pub rhythm: Rhythm,
    /// Whose clocks count.
    pub zone: TimeZone,
    /// The topic of its tasks.
    pub topic: TopicName,
    /// What is done; `None` is the topic's.
    pub action: Option<Action>,
    /// Handed to the action.
    pub payload: Option<RawJson>,
    /// For those that were missed.
    pub catch_up: CatchUp,
    /// For those that meet the one before.
    pub overlap: Overlap,
    /// Each is due up to so much later, always by the same.
    pub jitter: DurationMs,
    /// None before it.
    pub start: Option<WallMs>,
    /// None after it.
    pub end: Option<WallMs>,
    /// So many in all.
    pub count: Option<u64>,
}

impl Schedule {
    /// The first occurrence after an instant. `anchor` is what lengths are counted from where no start is named.
    pub fn next(&self, after: WallMs, anchor: WallMs) -> Option<WallMs> {
        let after = match self.start {
            Some(start) => after.max(WallMs(start.0.saturating_sub(1))),
            None => after,
        };
        let next = match &self.rhythm {
            Rhythm::Cron(cron) => cron.next(after, &self.zone)?,
            Rhythm::Every(length) => {
                // The start itself is one; where there is none, the first is one length later.
                let first = self.start.unwrap_or(anchor.after(*length));
                let every = i64::try_from(length.0).ok().filter(|every| *every > 0)?;
                let passed = after.0.checked_sub(first.0)?;
                let count = if passed < 0 { 0 } else { passed / every + 1 };
                WallMs(first.0.checked_add(count.checked_mul(every)?)?)
            }
        };
        Some(next).filter(|next| self.end.is_none_or(|end| *next <= end))
    }

    /// The last occurrence after `after` and not after `until`, if there is any.
    pub fn latest(&self, after: WallMs, until: WallMs, anchor: WallMs) -> Option<WallMs> {
        let far = self.next(after, anchor).filter(|next| *next <= until)?;
        // Back from the end in growing steps, so that a frequent one is not counted through from the start.
        let mut back = DurationMs::secs(60);
        let mut latest = loop {
            let from = WallMs(until.0.saturating_sub_unsigned(back.0)).max(after);
            match self.next(from, anchor).filter(|next| *next <= until) {
                Some(found) => break found,
                None if from == after => break far,
                None => back = DurationMs(back.0.saturating_mul(16)),
            }
        };
        while let Some(next) = self.next(latest, anchor).filter(|next| *next <= until) {
            latest = next;
        }
        Some(latest)
    }

    /// When the task of an occurrence is due: the occurrence, and its jitter.
    pub fn due(&self, name: &str, at: WallMs) -> WallMs {
        let hash = xxh3_64(format!("{name}@{}", at.0).as_bytes());
        at.after(DurationMs(hash % (self.jitter.0 + 1)))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn hourly() -> Schedule {
        Schedule {
            rhythm: Rhythm::Cron(Cron::parse("0 * * * *").unwrap()),
            zone: TimeZone::UTC,
            topic: TopicName::parse("t").unwrap(),
            action: None,
            payload: None,
            catch_up: CatchUp::None,
            overlap: Overlap::Skip,
            jitter: DurationMs(0),
            start: None,
            end: None,
            count: None,
        }
    }

    fn every(length: DurationMs) -> Schedule {
        Schedule {
            rhythm: Rhythm::Every(length),
            ..hourly()
        }
    }

    #[test]
    fn a_length_is_counted_from_the_start_or_from_the_anchor() {
        let schedule = every(DurationMs(1_000));
        let anchor = WallMs(250);
        for (after, next) in [(0, 1_250), (1_249, 1_250), (1_250, 2_250), (9_999, 10_250)] {
            assert_eq!(
                schedule.next(WallMs(after), anchor),
                Some(WallMs(next)),
                "{after}"
            );
        }
        let started = Schedule {
            start: Some(WallMs(5_000)),
            ..schedule
        };
        for (after, next) in [(0, 5_000), (4_999, 5_000), (5_000, 6_000)] {
            assert_eq!(
                started.next(WallMs(after), anchor),
                Some(WallMs(next)),
                "{after}"
            );
        }
        assert_eq!(started.next(WallMs(i64::MAX), anchor), None);
    }

    #[test]
    fn there_is_none_before_the_start_and_none_after_the_end() {
        let schedule = Schedule {
            start: Some(WallMs(2 * HOUR)),
            end: Some(WallMs(3 * HOUR)),
            ..hourly()
        };
        let next = |after| schedule.next(WallMs(after), WallMs(0));
        assert_eq!(next(0), Some(WallMs(2 * HOUR)));
        assert_eq!(next(2 * HOUR), Some(WallMs(3 * HOUR)));
        assert_eq!(next(3 * HOUR), None);
    }

    #[test]
    fn the_latest_is_found_however_many_there_were() {
        let year = WallMs(365 * 24 * HOUR + 999);
        let none = WallMs(0);
        assert_eq!(
            every(DurationMs(1_000)).latest(none, year, none),
            Some(WallMs(year.0 - 999))
        );
        assert_eq!(
            hourly().latest(none, year, none),
            Some(WallMs(year.0 - 999))
        );
        assert_eq!(hourly().latest(none, WallMs(HOUR - 1), none), None);
        assert_eq!(
            hourly().latest(none, WallMs(HOUR), none),
            Some(WallMs(HOUR))
        );
        let leap = Schedule {
            rhythm: Rhythm::Cron(Cron::parse("0 0 29 2 *").unwrap()),
            ..hourly()
        };
        let found = leap.latest(none, WallMs(1_800_000_000_000), none).unwrap();
        assert_eq!(found.to_string(), "2024-02-29T00:00:00.000Z");
    }

    #[test]
    fn jitter_is_the_same_each_time_and_never_more_than_it_may_be() {
        let schedule = Schedule {
            jitter: DurationMs(1_000),
            ..hourly()
        };
        let late = |at| schedule.due("a", WallMs(at)).since(WallMs(at)).0;
        let all: Vec<u64> = (0..1_000).map(|n| late(n * HOUR)).collect();
        assert!(all.iter().all(|late| *late <= 1_000));
        assert!(all.iter().max() > Some(&900) && all.iter().min() < Some(&100));
        assert_eq!(late(HOUR), late(HOUR));
        assert_eq!(hourly().due("a", WallMs(HOUR)), WallMs(HOUR));
    }
}
