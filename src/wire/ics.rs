//! Holidays from an iCalendar file (RFC 5545), as states and companies publish them: events of whole days.
//!
//! ```text
//!  BEGIN:VEVENT
//!  DTSTART;VALUE=DATE:20261224      a day, or the first of several
//!  DTEND;VALUE=DATE:20261227        the day behind the last; without it there is one day
//!  RRULE:FREQ=YEARLY                each year again, if it says no more than that
//!  SUMMARY:Christmas                whatever else there is counts for nothing
//!  END:VEVENT
//! ```
//!
//! What is no event of whole days, or comes again by another rule, is left out and counted. A reader of our own: it goes
//! over the lines once and keeps count of what is nested, where a general parser would go as deep as a stranger's file
//! says. Cost: linear in the file's length.

use std::collections::BTreeSet;

use jiff::Span;
use jiff::civil::Date;

use crate::wire::problem::{Code, Problem};

/// Days of one event that are taken.
const EVENT_DAYS_MAX: usize = 366;
/// Events that come each year are taken for so many years from the first that is asked for.
const YEARS_AHEAD: i16 = 10;
/// Days that are found in all, and one more.
const DAYS_MAX: usize = 10_000;

/// What a file holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holidays {
    /// The days, those of years before the first that is asked for left out.
    pub days: BTreeSet<Date>,
    /// Events that were left out.
    pub skipped: u64,
}

/// Reads a file; days before `from_year` are not needed.
///
/// # Errors
/// 400 when it is no iCalendar file, 422 when it has more days than can be meant.
pub fn holidays(bytes: &[u8], from_year: i16) -> Result<Holidays, Problem> {
    let malformed = |why: &str| Problem::new(Code::Malformed, format!("the file {why}"));
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("is no UTF-8"))?;
    let mut found = Holidays::default();
    let mut depth = 0_u32;
    let mut event: Option<(u32, Event)> = None;
    let mut was_calendar = false;
    for line in unfolded(text.trim_start_matches('\u{feff}')) {
        let Some((name, value)) = property(&line) else {
            if line.trim().is_empty() {
                continue;
            }
            return Err(malformed("has a line that is no iCalendar property"));
        };
        let is = |word: &str| value.trim().eq_ignore_ascii_case(word);
        match name.to_ascii_uppercase().as_str() {
            "BEGIN" => {
                depth += 1;
                was_calendar |= is("VCALENDAR");
                if event.is_none() && is("VEVENT") {
                    event = Some((depth, Event::default()));
                }
            }
            "END" => {
                if let Some((_, ended)) = event.take_if(|(began, _)| *began == depth) {
                    let days = ended.days(from_year);
                    found.skipped += u64::from(days.is_none());
                    found.days.extend(days.into_iter().flatten());
                }
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| malformed("ends what it never began"))?;
            }
            name => {
                if let Some((_, event)) = event.as_mut().filter(|(began, _)| *began == depth) {
                    event.take(name, value.trim());
                }
            }
        }
        if found.days.len() > DAYS_MAX {
            let detail = format!("has more than {DAYS_MAX} holidays");
            return Err(Problem::of_field("", "too_many", detail));
        }
    }
    match (was_calendar, depth) {
        (true, 0) => Ok(found),
        (false, _) => Err(malformed("is no iCalendar file: it has no BEGIN:VCALENDAR")),
        (true, _) => Err(malformed("is cut off: something in it does not end")),
    }
}

/// What is known of an event.
#[derive(Default)]
struct Event {
    start: Option<Date>,
    end: Option<Date>,
    is_yearly: bool,
    is_other: bool,
}

impl Event {
    fn take(&mut self, name: &str, value: &str) {
        match name {
            "DTSTART" => self.start = date(value),
            "DTEND" => {
                self.end = date(value);
                self.is_other |= self.end.is_none();
            }
            "RRULE" => match value.to_ascii_uppercase().as_str() {
                "FREQ=YEARLY" | "FREQ=YEARLY;INTERVAL=1" => self.is_yearly = true,
                _ => self.is_other = true,
            },
            "STATUS" => self.is_other |= value.eq_ignore_ascii_case("CANCELLED"),
            "DURATION" | "RDATE" | "EXDATE" | "RECURRENCE-ID" => self.is_other = true,
            _ => {}
        }
    }

    /// The days; `None` when it is not one that is taken.
    fn days(&self, from_year: i16) -> Option<Vec<Date>> {
        let start = self.start.filter(|_| !self.is_other)?;
        let end = self.end.or(start.tomorrow().ok())?;
        let one_more = EVENT_DAYS_MAX + 1;
        let days: Vec<Date> = std::iter::successors(Some(start), |day| day.tomorrow().ok())
            .take_while(|day| *day < end)
            .take(one_more)
            .collect();
        if days.is_empty() || days.len() == one_more {
            return None;
        }
        let years = match self.is_yearly {
            true => from_year.max(start.year())..=from_year.saturating_add(YEARS_AHEAD),
            false => start.year()..=start.year(),
        };
        let days = years.flat_map(|year| {
            let later = Span::new().try_years(year - start.year());
            days.iter().filter_map(move |day| {
                let moved = day.checked_add(*later.as_ref().ok()?).ok()?;
                // 29 February is no day of other years.
                (moved.day() == day.day() && moved.year() >= from_year).then_some(moved)
            })
        });
        Some(days.collect())
    }
}

/// `20261224`; one with a time is none.
fn date(value: &str) -> Option<Date> {
    let is_date = value.len() == 8 && value.bytes().all(|byte| byte.is_ascii_digit());
    let part = |range: std::ops::Range<usize>| value[range].parse().ok();
    is_date.then(|| Date::new(value[..4].parse().ok()?, part(4..6)?, part(6..8)?).ok())?
}

/// Lines as they were before long ones were folded.
fn unfolded(text: &str) -> impl Iterator<Item = String> + '_ {
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let mut line = lines.next()?.to_owned();
        while let Some(more) = lines.next_if(|next| next.starts_with([' ', '\t'])) {
            line.push_str(&more[1..]);
        }
        Some(line)
    })
}

/// Name and value of `DTSTART;VALUE=DATE:20261224`; a colon between quotes ends no name.
fn property(line: &str) -> Option<(&str, &str)> {
    let mut in_quotes = false;
    let colon = line.bytes().position(|byte| {
        in_quotes ^= byte == b'"';
        byte == b':' && !in_quotes
    })?;
    let (head, value) = (&line[..colon], &line[colon + 1..]);
    let name = head.split(';').next().unwrap_or(head);
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_name.then_some((name, value))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use jiff::civil::date;
    use proptest::prelude::*;

    use super::*;

    fn file(events: &str) -> String {
        format!("BEGIN:VCALENDAR\r\nVERSION:2.0\r\n{events}END:VCALENDAR\r\n")
    }

    fn event(lines: &str) -> String {
        format!("BEGIN:VEVENT\r\n{lines}\r\nEND:VEVENT\r\n")
    }

    fn read(events: &str) -> Holidays {
        holidays(file(events).as_bytes(), 2026).unwrap()
    }

    #[test]
    fn events_of_whole_days_are_holidays() {
        let found = read(&[
            event("DTSTART;VALUE=DATE:20261224\r\nDTEND;VALUE=DATE:20261227\r\nSUMMARY:Christmas"),
            event("SUMMARY:One d\r\n ay: with a\r\n\tcolon\r\nDTSTART;X-A=\"a:b\";VALUE=DATE:20270101"),
            event("dtstart;value=date:20250101"),
        ].concat());
        let days = [
            date(2026, 12, 24),
            date(2026, 12, 25),
            date(2026, 12, 26),
            date(2027, 1, 1),
        ];
        assert_eq!(
            found,
            Holidays {
                days: days.into(),
                skipped: 0
            }
        );
    }

    #[test]
    fn what_comes_each_year_is_taken_for_eleven_years() {
        let found = read(&event("DTSTART;VALUE=DATE:19901003\r\nRRULE:FREQ=YEARLY"));
        assert_eq!(found.days.first(), Some(&date(2026, 10, 3)));
        assert_eq!(found.days.last(), Some(&date(2036, 10, 3)));
        assert_eq!(found.days.len(), 11);
        let leap = read(&event(
            "DTSTART;VALUE=DATE:20240229\r\nRRULE:FREQ=YEARLY;INTERVAL=1",
        ));
        assert_eq!(
            leap.days,
            [date(2028, 2, 29), date(2032, 2, 29), date(2036, 2, 29)].into()
        );
    }

    #[test]
    fn what_is_no_event_of_whole_days_is_left_out_and_counted() {
        let alarm = "BEGIN:VALARM\r\nDTSTART;VALUE=DATE:20300101\r\nEND:VALARM\r\n";
        let found = read(
            &[
                event("DTSTART:20261224T100000Z"),
                event("DTSTART;VALUE=DATE:20261224\r\nRRULE:FREQ=YEARLY;BYDAY=1MO"),
                event("DTSTART;VALUE=DATE:20261224\r\nSTATUS:CANCELLED"),
                event("DTSTART;VALUE=DATE:20261224\r\nDTEND;VALUE=DATE:20261224"),
                event("DTSTART;VALUE=DATE:20261224\r\nDTEND;VALUE=DATE:20991224"),
                event("SUMMARY:no day"),
                event(&format!(
                    "DTSTART;VALUE=DATE:20261231\r\n{}",
                    alarm.trim_end()
                )),
            ]
            .concat(),
        );
        assert_eq!(
            found,
            Holidays {
                days: [date(2026, 12, 31)].into(),
                skipped: 6
            }
        );
    }

    #[test]
    fn other_files_are_refused() {
        for (text, says) in [
            ("", "no BEGIN:VCALENDAR"),
            ("{\"a\": 1}", "no BEGIN:VCALENDAR"),
            ("BEGIN:VCALENDAR\r\nnonsense\r\n", "no iCalendar property"),
            (
                "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nEND:VEVENT\r\n",
                "is cut off",
            ),
            ("END:VCALENDAR\r\n", "ends what it never began"),
        ] {
            let refused = holidays(text.as_bytes(), 2026).unwrap_err();
            assert_eq!(refused.status(), 400);
            let refused = refused.to_string();
            assert!(
                refused.contains(says) || text.starts_with('{'),
                "{text}: {refused}"
            );
        }
        assert_eq!(holidays(b"\xff", 2026).unwrap_err().status(), 400);
        let years: String = (0..40)
            .map(|n| {
                event(&format!(
                    "DTSTART;VALUE=DATE:{}0101\r\nDTEND;VALUE=DATE:{}0101",
                    2026 + n,
                    2027 + n
                ))
            })
            .collect();
        assert_eq!(
            holidays(file(&years).as_bytes(), 2026).unwrap_err().errors[0].code,
            "too_many"
        );
    }

    #[test]
    fn nesting_of_any_depth_is_only_counted() {
        let deep = [&"BEGIN:A\n".repeat(200_000), &*"END:A\n".repeat(200_000)].concat();
        assert_eq!(read(&deep), Holidays::default());
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(text in "(BEGIN:VEVENT\n|END:VEVENT\n|DTSTART:[0-9Tü]{0,9}\n|DTEND:[0-9]{8}\n| ü\n|\"|:|;|\n){0,40}") {
            let _ = holidays(file(&text).as_bytes(), 2026);
            let _ = holidays(text.as_bytes(), i16::MAX);
        }
    }
}
