//! Lengths of working time, as people say them.

use std::num::NonZeroU32;

use crate::clock::DurationMs;
use crate::rule::calendar::ClockTime;

/// Most working days in one length.
const DAYS_MAX: u32 = 3_660;
/// Longest length in hours and minutes: as many days, around the clock.
const MINUTES_MAX: u64 = DAYS_MAX as u64 * 24 * 60;

/// A length of working time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkingTime {
    /// So much time while it is open.
    Hours(DurationMs),
    /// The so-manieth day with hours after the present one.
    Days {
        /// 1 is the next.
        days: NonZeroU32,
        /// At this time of it; `None` is when it closes.
        by: Option<ClockTime>,
    },
}

impl WorkingTime {
    /// So many hours; `None` beyond ten years of them.
    pub fn hours(hours: f64) -> Option<Self> {
        let minutes = hours * 60.0;
        // Not a number is in no range.
        let is_possible = (0.0..=MINUTES_MAX as f64).contains(&minutes);
        is_possible.then(|| Self::Hours(DurationMs((hours * 3_600_000.0).round() as u64)))
    }

    /// So many days; `None` for none, and beyond ten years of them.
    pub fn days(days: u64, by: Option<ClockTime>) -> Option<Self> {
        let days = u32::try_from(days).ok().filter(|days| *days <= DAYS_MAX)?;
        Some(Self::Days {
            days: NonZeroU32::new(days)?,
            by,
        })
    }

    /// Reads `8 working hours`, `90 working minutes`, `2 working days`, `1 working day by 18:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [count, "working", unit, rest @ ..] = words.as_slice() else {
            return None;
        };
        let count: u64 = count.parse().ok()?;
        match (*unit, rest) {
            ("hour" | "hours", []) => Self::hours(count as f64),
            ("minute" | "minutes", []) if count <= MINUTES_MAX => {
                Some(Self::Hours(DurationMs(count * 60_000)))
            }
            ("day" | "days", []) => Self::days(count, None),
            ("day" | "days", ["by", at]) => Self::days(count, Some(ClockTime::parse(at)?)),
            _ => None,
        }
    }
}
