//! Calendars: when somebody works, and arithmetic with the time in which somebody does.
//!
//! A calendar is a rubber ruler: closed time has no length on it. "Eight working hours from Friday noon" lays the ruler
//! on; "how many working hours between" reads it off, and the two always agree.
//!
//! ```text
//!             Fri 09──12  13──18 │ Sat   Sun │ Mon 09──12  13──18
//!  from 16:00               ▓▓▓▓ │           │     ▓▓▓▓▓▓   ▓▓▓        + 8 working hours = Mon 16:00
//! ```
//!
//! Which hours a day has, the first that says it: its **exception** (working hours out of turn), else none if it is a
//! **holiday**, else those of its **weekday**; then **quiet hours**, the same every day, are taken out. Hours are what the
//! zone's clocks show, from 00:00 to 24:00, and become instants by the same policy as cron's
//! ([`local`](crate::rule::local)): a day on which clocks jump is an hour longer or shorter.
//!
//! A stretch is open from its beginning until just before its end. An end that is reached by adding is that end: eight
//! hours from nine on a day from nine to five are over at five, not at nine on the next.
//!
//! Cost: two look-ups in the zone for each stretch on the way, so a microsecond a day. It ends after twelve years.

mod hours;
mod length;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::clock::{DurationMs, WallMs};
use crate::rule::local::{first_pass, timestamp, wall};

pub use hours::{ClockTime, Hours, HoursFlaw, Stretch};
pub use length::WorkingTime;

/// Days that are looked at for working time: beyond the furthest that a task may be due.
const DAYS_MAX: usize = 4_400;

/// Hours, holidays and a zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Calendar {
    /// Whose clocks count.
    pub zone: TimeZone,
    /// From Monday on.
    pub weekly: [Hours; 7],
    /// Days without hours.
    pub holidays: BTreeSet<Date>,
    /// Days with hours of their own, holidays or not.
    pub exceptions: BTreeMap<Date, Hours>,
    /// Taken out of every day.
    pub quiet: Hours,
}

/// The calendar has no working time that far ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("has not so much working time in twelve years")]
pub struct NeverOpen;

/// What to do with a due time that falls into closed time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// It moves to the next opening.
    NextOpen,
    /// Closed time on the way does not count at all: the length is one of working time.
    ExtendByClosedTime,
    /// It moves to the next day with hours, at the same time of day, whatever these hours are.
    SkipDay,
}

impl Calendar {
    /// Whether any week, or any single day, has hours.
    pub fn is_ever_open(&self) -> bool {
        let mut hours = self.weekly.iter().chain(self.exceptions.values());
        hours.any(|hours| !hours.without(&self.quiet).is_empty())
    }

    /// The hours of a day.
    pub fn hours(&self, date: Date) -> Hours {
        let weekday = usize::from(date.weekday().to_monday_zero_offset().unsigned_abs());
        let hours = match self.exceptions.get(&date) {
            Some(hours) => hours,
            None if self.holidays.contains(&date) => return Hours::default(),
            None => &self.weekly[weekday],
        };
        hours.without(&self.quiet)
    }

    /// Whether it is open at that instant.
    pub fn is_open(&self, at: WallMs) -> bool {
        self.stretches(at)
            .next()
            .is_some_and(|(begin, _)| begin == at)
    }

    /// That instant if it is open then, else the next opening.
    ///
    /// # Errors
    /// When there is none.
    pub fn next_open(&self, at: WallMs) -> Result<WallMs, NeverOpen> {
        let mut stretches = self.stretches(at);
        stretches.next().map(|(begin, _)| begin).ok_or(NeverOpen)
    }

    /// When so much working time has passed since `from`.
    ///
    /// # Errors
    /// When there never is so much.
    pub fn add(&self, from: WallMs, length: DurationMs) -> Result<WallMs, NeverOpen> {
        let mut left = length;
        for (begin, end) in self.stretches(from) {
            let open = end.since(begin);
            if open >= left {
                return Ok(begin.after(left));
            }
            left.0 -= open.0;
        }
        Err(NeverOpen)
    }

    /// How much working time there is from one instant to a later one; beyond twelve years it is not counted.
    pub fn open_between(&self, from: WallMs, to: WallMs) -> DurationMs {
        let stretches = self.stretches(from);
        let within = stretches.take_while(|(begin, _)| *begin < to);
        DurationMs(within.map(|(begin, end)| end.min(to).since(begin).0).sum())
    }

    /// When a length of working time is over.
    ///
    /// # Errors
    /// When there never is so much.
    pub fn due(&self, from: WallMs, length: WorkingTime) -> Result<WallMs, NeverOpen> {
        let (days, by) = match length {
            WorkingTime::Hours(length) => return self.add(from, length),
            WorkingTime::Days { days, by } => (days, by),
        };
        let today = self.date(from).ok_or(NeverOpen)?;
        let mut ahead = self
            .days(today)
            .skip(1)
            .filter(|(_, hours)| !hours.is_empty());
        let day = ahead.nth(days.get() as usize - 1);
        let (date, hours) = day.ok_or(NeverOpen)?;
        let at = by.or(hours.close()).ok_or(NeverOpen)?;
        self.instant(date, at).ok_or(NeverOpen)
    }

    /// The due time `after` `from`, kept out of closed time in one of three ways.
    ///
    /// # Errors
    /// When there is no open time that far ahead.
    pub fn shifted(
        &self,
        from: WallMs,
        after: DurationMs,
        shift: Shift,
    ) -> Result<WallMs, NeverOpen> {
        let due = from.after(after);
        match shift {
            Shift::NextOpen => self.next_open(due),
            Shift::ExtendByClosedTime => self.add(from, after),
            Shift::SkipDay => {
                let local = timestamp(due).map(|at| self.zone.to_datetime(at));
                let local = local.ok_or(NeverOpen)?;
                let mut days = self.days(local.date());
                let open = days.find(|(_, hours)| !hours.is_empty());
                let (date, _) = open.ok_or(NeverOpen)?;
                if date == local.date() {
                    return Ok(due);
                }
                let moved = first_pass(date.to_datetime(local.time()), &self.zone);
                moved.map(wall).ok_or(NeverOpen)
            }
        }
    }

    /// The open stretches from an instant on, the first one cut off there. None is empty.
    fn stretches(&self, from: WallMs) -> impl Iterator<Item = (WallMs, WallMs)> {
        let days = self.date(from).into_iter().flat_map(|date| self.days(date));
        days.flat_map(move |(date, hours)| {
            let stretches: Vec<Stretch> = hours.iter().collect();
            stretches.into_iter().filter_map(move |stretch| {
                let end = self.instant(date, stretch.to)?;
                if end <= from {
                    return None;
                }
                let begin = self.instant(date, stretch.from)?.max(from);
                (begin < end).then_some((begin, end))
            })
        })
    }

    /// Days from a date on, with their hours.
    fn days(&self, from: Date) -> impl Iterator<Item = (Date, Hours)> {
        let dates = std::iter::successors(Some(from), |date| date.tomorrow().ok());
        dates.take(DAYS_MAX).map(|date| (date, self.hours(date)))
    }

    fn date(&self, at: WallMs) -> Option<Date> {
        timestamp(at).map(|at| self.zone.to_datetime(at).date())
    }

    fn instant(&self, date: Date, at: ClockTime) -> Option<WallMs> {
        first_pass(at.on(date)?, &self.zone).map(wall)
    }
}
