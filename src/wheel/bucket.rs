//! Ranges of time: a bucket is one UTC day, hour, minute or second, and its name says which.
//!
//! ```text
//!  Day     20261201          86 400 000 ms
//!  Hour    2026120110         3 600 000 ms     each name begins with its parent's,
//!  Minute  202612011030          60 000 ms     so names sort and group as text
//!  Second  20261201103007         1 000 ms
//! ```
//!
//! Every `i64` of milliseconds lies in exactly one bucket of each level, the first and the last `i64`
//! included: the two buckets at the ends of time are cut short instead of overflowing.

use std::fmt;

const SECOND_MS: i64 = 1_000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// How wide a bucket is. A coarser level sorts before a finer one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// A UTC day.
    Day,
    /// An hour.
    Hour,
    /// A minute.
    Minute,
    /// A second. What is finer stands in exact milliseconds.
    Second,
}

impl Level {
    /// All levels, the coarsest first.
    pub const ALL: [Self; 4] = [Self::Day, Self::Hour, Self::Minute, Self::Second];

    /// Width of a bucket of this level, in milliseconds.
    pub const fn width_ms(self) -> i64 {
        match self {
            Self::Day => DAY_MS,
            Self::Hour => HOUR_MS,
            Self::Minute => MINUTE_MS,
            Self::Second => SECOND_MS,
        }
    }

    /// The level a bucket is divided into; none below seconds.
    pub const fn finer(self) -> Option<Self> {
        match self {
            Self::Day => Some(Self::Hour),
            Self::Hour => Some(Self::Minute),
            Self::Minute => Some(Self::Second),
            Self::Second => None,
        }
    }

    /// The level a bucket is part of; none above days.
    pub const fn coarser(self) -> Option<Self> {
        match self {
            Self::Day => None,
            Self::Hour => Some(Self::Day),
            Self::Minute => Some(Self::Hour),
            Self::Second => Some(Self::Minute),
        }
    }
}

/// One bucket. Sorts by start; shown by its UTC name, such as `202612011030` for a minute.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BucketId {
    start_ms: i64,
    level: Level,
}

impl BucketId {
    /// The bucket of `level` in which the millisecond `at_ms` lies.
    pub const fn of(level: Level, at_ms: i64) -> Self {
        // Saturating: the bucket of the first i64 would begin before it.
        let start_ms = at_ms.saturating_sub(at_ms.rem_euclid(level.width_ms()));
        Self { start_ms, level }
    }

    /// The bucket's level.
    pub const fn level(self) -> Level {
        self.level
    }

    /// Its first millisecond.
    pub const fn start_ms(self) -> i64 {
        self.start_ms
    }

    /// Its last millisecond, inclusive: unlike the end, there is always one.
    pub const fn last_ms(self) -> i64 {
        let width_ms = self.level.width_ms();
        // The remainder is 0, but for the bucket that the first i64 cuts short.
        let rest_ms = width_ms - 1 - self.start_ms.rem_euclid(width_ms);
        self.start_ms.saturating_add(rest_ms)
    }

    /// The first millisecond after it; at the end of time, its last millisecond.
    pub const fn end_ms(self) -> i64 {
        self.last_ms().saturating_add(1)
    }

    /// Whether the millisecond `at_ms` lies in it.
    pub const fn contains(self, at_ms: i64) -> bool {
        self.start_ms <= at_ms && at_ms <= self.last_ms()
    }

    /// The bucket of the next coarser level that this one is part of; none above days.
    pub fn parent(self) -> Option<Self> {
        Some(Self::of(self.level.coarser()?, self.start_ms))
    }
}

impl fmt::Display for BucketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_date(self.start_ms.div_euclid(DAY_MS));
        let in_day_ms = self.start_ms.rem_euclid(DAY_MS);
        write!(f, "{year:04}{month:02}{day:02}")?;
        if self.level >= Level::Hour {
            write!(f, "{:02}", in_day_ms / HOUR_MS)?;
        }
        if self.level >= Level::Minute {
            write!(f, "{:02}", in_day_ms % HOUR_MS / MINUTE_MS)?;
        }
        if self.level >= Level::Second {
            write!(f, "{:02}", in_day_ms % MINUTE_MS / SECOND_MS)?;
        }
        Ok(())
    }
}

/// The name of the minute in which the wall-clock millisecond `at_ms` lies, as the API shows a task's bucket:
/// `202612011030`, in UTC.
pub fn minute_label(at_ms: i64) -> String {
    BucketId::of(Level::Minute, at_ms).to_string()
}

/// Year, month and day of the Gregorian calendar, for a count of days since 1970-01-01. Plain arithmetic,
/// since a calendar library's years end long before `i64` does.
fn civil_date(days_since_1970: i64) -> (i64, i64, i64) {
    // Years are counted from 1 March, so that the leap day is the last of a year, a century and an era.
    const DAYS_TO_1970: i64 = 719_468; // from 0000-03-01
    const ERA: i64 = 146_097; // 400 years
    const CENTURY: i64 = 36_524;
    const OLYMPIAD: i64 = 1_461; // 4 years
    const MONTHS: [i64; 12] = [31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 29];

    let days = days_since_1970 + DAYS_TO_1970;
    let (era, mut day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let century = (day / CENTURY).min(3);
    day -= century * CENTURY;
    let olympiad = day / OLYMPIAD;
    day -= olympiad * OLYMPIAD;
    let year_of_four = (day / 365).min(3);
    day -= year_of_four * 365;

    let mut month = 3;
    for length in MONTHS {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let year = era * 400 + century * 100 + olympiad * 4 + year_of_four;
    if month > 12 {
        (year + 1, month - 12, day + 1)
    } else {
        (year, month, day + 1)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENDS_AND_MIDDLE: [i64; 9] = [
        i64::MIN,
        i64::MIN + 1,
        -DAY_MS - 1,
        -1,
        0,
        1,
        DAY_MS,
        i64::MAX - 1,
        i64::MAX,
    ];

    #[test]
    fn a_minute_is_named_as_the_api_shows_it() {
        assert_eq!(minute_label(1_796_121_059_999), "202612011030");
        assert_eq!(minute_label(0), "197001010000");
        assert_eq!(minute_label(-1), "196912312359");
        assert_eq!(minute_label(951_782_400_000), "200002290000");
    }

    #[test]
    fn a_name_begins_with_the_name_of_its_parent() {
        let mut id = BucketId::of(Level::Second, 1_796_121_007_123);
        assert_eq!(id.to_string(), "20261201103007");
        for name in ["202612011030", "2026120110", "20261201"] {
            id = id.parent().unwrap();
            assert_eq!(id.to_string(), name);
        }
        assert_eq!(id.parent(), None);
    }

    #[test]
    fn the_ends_of_time_have_buckets_and_names() {
        for at_ms in ENDS_AND_MIDDLE {
            for level in Level::ALL {
                let id = BucketId::of(level, at_ms);
                assert!(id.contains(at_ms), "{id:?} {at_ms}");
                assert!(id.end_ms() >= id.last_ms());
                assert_eq!(BucketId::of(level, id.start_ms()), id);
                assert_eq!(BucketId::of(level, id.last_ms()), id);
            }
        }
        // 17 August of the year 292 278 994, 07:12.
        assert_eq!(minute_label(i64::MAX), "29227899408170712");
    }

    proptest! {
        #[test]
        fn neighbours_touch_without_a_gap(at_ms in any::<i64>(), level in 0..4_usize) {
            let id = BucketId::of(Level::ALL[level], at_ms);
            prop_assert!(id.contains(at_ms));
            if let Some(next_ms) = id.last_ms().checked_add(1) {
                prop_assert_eq!(id.end_ms(), next_ms);
                prop_assert_eq!(BucketId::of(id.level(), next_ms).start_ms(), next_ms);
            }
            if let Some(parent) = id.parent() {
                prop_assert!(parent.contains(id.start_ms()) && parent.contains(id.last_ms()));
            }
        }

        #[test]
        fn names_agree_with_a_calendar_library(at_ms in -62_135_596_800_000_i64..253_402_200_000_000) {
            let at = jiff::Timestamp::from_millisecond(at_ms).unwrap();
            let second = BucketId::of(Level::Second, at_ms);
            prop_assert_eq!(second.to_string(), at.strftime("%Y%m%d%H%M%S").to_string());
        }
    }
}
