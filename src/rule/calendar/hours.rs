//! Hours of a day: stretches of what a clock shows, from 00:00 to 24:00.

use std::fmt;

use jiff::Span;
use jiff::civil::{Date, DateTime, Time};

const DAY_MINUTES: u16 = 24 * 60;
/// Most stretches of one day.
const STRETCHES_MAX: usize = 24;

/// A time of day in minutes, up to 24:00, which is the next day's 00:00.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClockTime(u16);

impl ClockTime {
    /// Midnight at the end of a day.
    pub const END: Self = Self(DAY_MINUTES);
    const BEGIN: Self = Self(0);

    /// Reads `09:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (hour, minute) = text.split_once(':')?;
        let two = |text: &str| {
            let is_it = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
            is_it.then(|| text.parse::<u16>().ok())?
        };
        let (hour, minute) = (two(hour)?, two(minute)?);
        let minutes = hour * 60 + minute;
        (minute < 60 && minutes <= DAY_MINUTES).then_some(Self(minutes))
    }

    /// That time on a day.
    pub fn on(self, date: Date) -> Option<DateTime> {
        let midnight = date.to_datetime(Time::midnight());
        midnight.checked_add(Span::new().minutes(self.0)).ok()
    }
}

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

/// From one time of day until just before a later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stretch {
    /// Its beginning.
    pub from: ClockTime,
    /// Its end.
    pub to: ClockTime,
}

/// Why stretches are no hours of a day.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HoursFlaw {
    /// One ends before it begins, or as it begins.
    #[error(
        "{0} to {1} is no stretch of one day; one over midnight is two, the second on the day after"
    )]
    Backwards(ClockTime, ClockTime),
    /// Two have time in common.
    #[error("{0} to {1} overlaps with the one before it")]
    Overlap(ClockTime, ClockTime),
    /// Too many.
    #[error("a day has at most {STRETCHES_MAX} stretches")]
    TooMany,
}

/// Hours of a day: stretches in order that have no time in common.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hours(Vec<Stretch>);

impl Hours {
    /// Hours of one day, in any order.
    ///
    /// # Errors
    /// See [`HoursFlaw`].
    pub fn new(mut stretches: Vec<Stretch>) -> Result<Self, HoursFlaw> {
        stretches.sort_unstable();
        if stretches.len() > STRETCHES_MAX {
            return Err(HoursFlaw::TooMany);
        }
        if let Some(it) = stretches.iter().find(|it| it.from >= it.to) {
            return Err(HoursFlaw::Backwards(it.from, it.to));
        }
        match stretches.windows(2).find(|two| two[1].from < two[0].to) {
            Some(two) => Err(HoursFlaw::Overlap(two[1].from, two[1].to)),
            None => Ok(Self(stretches)),
        }
    }

    /// Hours of every day: one that ends before it begins goes over midnight.
    ///
    /// # Errors
    /// See [`HoursFlaw`].
    pub fn daily(stretches: Vec<Stretch>) -> Result<Self, HoursFlaw> {
        let parts = stretches.into_iter().flat_map(|it| {
            let (begin, end) = (ClockTime::BEGIN, ClockTime::END);
            let over_midnight = it.to < it.from;
            let first = Stretch {
                from: it.from,
                to: if over_midnight { end } else { it.to },
            };
            let second = Stretch {
                from: begin,
                to: it.to,
            };
            let second = (over_midnight && it.to > begin).then_some(second);
            [Some(first), second].into_iter().flatten()
        });
        Self::new(parts.collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stretches, in order.
    pub fn iter(&self) -> impl Iterator<Item = Stretch> + '_ {
        self.0.iter().copied()
    }

    /// When the last of them ends.
    pub fn close(&self) -> Option<ClockTime> {
        self.0.last().map(|last| last.to)
    }

    /// What is left without others.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        let mut left = self.0.clone();
        for other in &others.0 {
            let cut = |it: &Stretch| {
                let before = Stretch {
                    to: it.to.min(other.from),
                    ..*it
                };
                let behind = Stretch {
                    from: it.from.max(other.to),
                    ..*it
                };
                [before, behind]
                    .into_iter()
                    .filter(|part| part.from < part.to)
            };
            left = left.iter().flat_map(cut).collect();
        }
        Self(left)
    }
}
