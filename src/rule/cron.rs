//! Cron: which wall times a pattern names, and when a zone's clocks show them.
//!
//! ```text
//!  (second) minute hour day-of-month month day-of-week        *  a  a-b  a,b  */n  a/n  a-b/n
//!     30      0     9       L          *      MON-FRI         days: L last · 15W weekday nearest · LW last weekday
//!                                                             weekdays: 5L last Friday · 5#2 second Friday
//! ```
//!
//! Two questions, kept apart. *Which wall times* is a matter of bit sets and the Gregorian calendar ([`Cron`]'s
//! `next_local`); days go by before hours are looked at, months before days. *When is that* is the zone's, and there
//! are two kinds of patterns, as in Vixie's cron and the Open Cron Pattern Specification:
//!
//! - A **fixed** one (no `*` and no `/` in second, minute, hour) means clock times: each runs once on its day, in a gap
//!   at the first instant behind it, in a fold at the first pass ([`local`](crate::rule::local)).
//! - A **periodic** one means a rhythm: it runs at every real instant at which the clocks show a time that matches. So
//!   it is looked for along stretches between two jumps of the clocks, in each of which they run evenly.
//!
//! **It always ends.** The Gregorian calendar repeats itself after 400 years, so what does not come in 400 years never
//! does; and in any 28 years without a missed leap year every kind of year comes by, so that days which no year has
//! (30 February) are refused when the pattern is read, by looking at ten thousand days. Cost: a microsecond for a daily
//! pattern, some ten for one of each year, a millisecond or two for the proof of never.

mod read;
#[cfg(test)]
mod tests;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use crate::clock::WallMs;
use crate::rule::local::{first_pass, timestamp, wall};

pub use read::CronFlaw;

/// After so many years the calendar repeats itself.
const CYCLE_YEARS: i64 = 400;

/// A cron pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cron {
    text: String,
    seconds: Bits,
    minutes: Bits,
    hours: Bits,
    months: Bits,
    days: Days,
    weekdays: Weekdays,
    /// A day matches by either of both; else it must match by both.
    is_either: bool,
    is_periodic: bool,
}

/// A set of small numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bits(u64);

impl Bits {
    fn has(self, number: i8) -> bool {
        self.0 >> number & 1 == 1
    }

    fn add(&mut self, number: u8) {
        self.0 |= 1 << number;
    }

    /// The smallest that is not below `from`.
    fn first_from(self, from: i8) -> Option<i8> {
        let left = self.0.checked_shr(from.unsigned_abs().into()).unwrap_or(0);
        (left != 0).then(|| from + left.trailing_zeros() as i8)
    }
}

/// Days of the month.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Days {
    plain: Bits,
    /// The weekday nearest to it, in the same month.
    nearest_weekday: Bits,
    last: bool,
    last_weekday: bool,
}

/// Days of the week, Sunday as 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Weekdays {
    plain: Bits,
    /// By how often that day has come in its month: the first at 0.
    nth: [Bits; 5],
    last: Bits,
}

impl Days {
    fn have(&self, date: Date) -> bool {
        let (day, end) = (date.day(), date.days_in_month());
        self.plain.has(day)
            || self.last && day == end
            || self.last_weekday && day == nearest_weekday(date, end)
            || (self.nearest_weekday.0 != 0 && {
                // No weekday is more than two days off.
                let mut near = day.saturating_sub(2).max(1)..=(day + 2).min(end);
                near.any(|of| self.nearest_weekday.has(of) && nearest_weekday(date, of) == day)
            })
    }
}

/// The day from Monday to Friday that is nearest to a day of this date's month, and in that month.
fn nearest_weekday(date: Date, of: i8) -> i8 {
    let weekday = date.weekday().to_monday_zero_offset();
    match (weekday + (of - date.day())).rem_euclid(7) {
        5 if of == 1 => 3,
        5 => of - 1,
        6 if of == date.days_in_month() => of - 2,
        6 => of + 1,
        _ => of,
    }
}

impl Weekdays {
    fn have(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let place = usize::from((date.day() - 1).unsigned_abs() / 7);
        self.plain.has(weekday)
            || self.nth[place].has(weekday)
            || self.last.has(weekday) && date.day() + 7 > date.days_in_month()
    }
}

impl Cron {
    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first instant after `after` at which it runs by this zone's clocks; `None` when it never does, or not
    /// before the year 9999.
    pub fn next(&self, after: WallMs, zone: &TimeZone) -> Option<WallMs> {
        let after = timestamp(after)?;
        match self.is_periodic {
            true => self.next_periodic(after, zone),
            false => self.next_fixed(after, zone),
        }
    }

    /// The next `count` of them.
    pub fn times(&self, after: WallMs, zone: &TimeZone) -> impl Iterator<Item = WallMs> + use<'_> {
        let zone = zone.clone();
        std::iter::successors(self.next(after, &zone), move |at| self.next(*at, &zone))
    }

    fn next_fixed(&self, after: Timestamp, zone: &TimeZone) -> Option<WallMs> {
        // Wall times before this one have come: a gap and a fold keep their order.
        let mut from = zone.to_datetime(after);
        let until = bound(from);
        loop {
            from = self.next_local(from, until)?;
            let at = first_pass(from, zone)?;
            if at > after {
                return Some(wall(at));
            }
            from = from.checked_add(Span::new().seconds(1)).ok()?;
        }
    }

    fn next_periodic(&self, after: Timestamp, zone: &TimeZone) -> Option<WallMs> {
        // Whole seconds from here on.
        let mut from = Timestamp::from_second(after.as_millisecond().div_euclid(1000) + 1).ok()?;
        let end = bound(zone.to_datetime(from));
        loop {
            let offset = zone.to_offset(from);
            let jump = zone.following(from).next().map(|jump| jump.timestamp());
            let until = jump.map_or(end, |jump| offset.to_datetime(jump).min(end));
            if let Some(local) = self.next_local(offset.to_datetime(from), until) {
                return offset.to_timestamp(local).ok().map(wall);
            }
            from = jump.filter(|_| until < end)?;
        }
    }

    /// The first matching wall time that is not before `from`, and before `until`.
    fn next_local(&self, from: DateTime, until: DateTime) -> Option<DateTime> {
        let mut date = from.date();
        let mut time = from.time();
        if time.subsec_nanosecond() > 0 {
            time = time.with().subsec_nanosecond(0).build().ok()?;
        }
        while date <= until.date() {
            if !self.months.has(date.month()) {
                date = date.last_of_month().tomorrow().ok()?;
                time = Time::midnight();
                continue;
            }
            if self.day_matches(date)
                && let Some(time) = self.next_time(time)
            {
                return Some(date.to_datetime(time)).filter(|found| *found < until);
            }
            date = date.tomorrow().ok()?;
            time = Time::midnight();
        }
        None
    }

    fn day_matches(&self, date: Date) -> bool {
        match self.is_either {
            true => self.days.have(date) || self.weekdays.have(date),
            false => self.days.have(date) && self.weekdays.have(date),
        }
    }

    /// The first matching time of day that is not before `from`.
    fn next_time(&self, from: Time) -> Option<Time> {
        let of = |hour, minute, second| Time::new(hour, minute, second, 0).ok();
        let first_second = self.seconds.first_from(0)?;
        let first_minute = self.minutes.first_from(0)?;
        if self.hours.has(from.hour()) {
            if self.minutes.has(from.minute())
                && let Some(second) = self.seconds.first_from(from.second())
            {
                return of(from.hour(), from.minute(), second);
            }
            if let Some(minute) = self.minutes.first_from(from.minute() + 1) {
                return of(from.hour(), minute, first_second);
            }
        }
        let hour = self.hours.first_from(from.hour() + 1)?;
        of(hour, first_minute, first_second)
    }

    /// Whether any year has a day that matches.
    fn ever_fires(&self) -> bool {
        let from = jiff::civil::date(2001, 1, 1).to_datetime(Time::midnight());
        let until = jiff::civil::date(2029, 1, 1).to_datetime(Time::midnight());
        self.next_local(from, until).is_some()
    }
}

/// Where the search ends: when the calendar has repeated itself.
fn bound(from: DateTime) -> DateTime {
    from.checked_add(Span::new().years(CYCLE_YEARS))
        .unwrap_or(DateTime::MAX)
}
