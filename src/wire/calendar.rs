//! Calendars: the body of `PUT /v1/calendars/{name}`, a calendar as it is answered, and holidays from an iCalendar file.
//!
//! An answer's fields are the body's, so what was read can be changed and put back, but for `name` and `version`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Date;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::rule::Calendar;
use crate::rule::book::Kept;
use crate::rule::calendar::{ClockTime, Hours, HoursFlaw, Stretch};
use crate::task::spec::ResourceName;
use crate::wire::decode::{Node, Shape, decode};
use crate::wire::due;
use crate::wire::problem::Problem;

const CALENDAR: Shape = Shape {
    fields: &["tz", "weekly", "holidays", "exceptions", "quiet"],
    not_built: &[],
};
const WEEKLY: Shape = Shape {
    fields: &["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
    not_built: &[],
};
const EXCEPTION: Shape = Shape {
    fields: &["date", "hours"],
    not_built: &[],
};
/// Most holidays, and most exceptions.
const DAYS_MAX: usize = 1_000;
/// More stretches than a day may have, so that it is said how many that is.
const STRETCHES_READ_MAX: usize = 48;

/// Reads the body of `PUT /v1/calendars/{name}`.
///
/// # Errors
/// 400, 422; `never_open` for one that has no hours at all.
pub fn calendar(bytes: &[u8]) -> Result<Calendar, Problem> {
    decode(bytes, |node| {
        let body = node.object(&CALENDAR)?;
        let zone = body.required("tz", due::zone);
        let weekly = body.required("weekly", |node| {
            let week = node.object(&WEEKLY)?;
            let mut weekly = [(); 7].map(|()| Hours::default());
            for (hours, day) in weekly.iter_mut().zip(WEEKLY.fields) {
                *hours = week.optional(day, hours_of_day).unwrap_or_default();
            }
            Some(weekly)
        });
        let holidays = body.optional("holidays", |node| node.list(DAYS_MAX, date));
        let exceptions = body.optional("exceptions", |node| node.list(DAYS_MAX, exception));
        let quiet = body.optional("quiet", |node| hours(node, Hours::daily));
        let days: BTreeMap<Date, Hours> = exceptions.unwrap_or_default().into_iter().collect();
        let calendar = Calendar {
            zone: zone?,
            weekly: weekly?,
            holidays: holidays.unwrap_or_default().into_iter().collect(),
            exceptions: days,
            quiet: quiet.unwrap_or_default(),
        };
        match calendar.is_ever_open() {
            true => Some(calendar),
            false => body.refuse("weekly", "never_open", "leaves no hours on any day"),
        }
    })
}

fn exception(node: Node<'_, '_>) -> Option<(Date, Hours)> {
    let body = node.object(&EXCEPTION)?;
    let date = body.required("date", date);
    let hours = body.required("hours", hours_of_day);
    Some((date?, hours?))
}

fn date(node: Node<'_, '_>) -> Option<Date> {
    let text = node.text()?;
    // As it is shown, and no other way.
    let date = text.parse::<Date>().ok();
    let date = date.filter(|date| date.to_string() == text);
    date.or_else(|| node.refuse("invalid_date", "is no date such as 2026-10-01"))
}

fn hours_of_day(node: Node<'_, '_>) -> Option<Hours> {
    hours(node, Hours::new)
}

fn hours(
    node: Node<'_, '_>,
    make: impl FnOnce(Vec<Stretch>) -> Result<Hours, HoursFlaw>,
) -> Option<Hours> {
    let stretches = node.list(STRETCHES_READ_MAX, |node| {
        let times = node.list(2, |node| {
            let time = ClockTime::parse(&node.text()?);
            time.or_else(|| {
                node.refuse(
                    "invalid_clock_time",
                    "is no time of day from 00:00 to 24:00",
                )
            })
        })?;
        match times[..] {
            [from, to] => Some(Stretch { from, to }),
            _ => node.refuse(
                "wrong_count",
                "is a beginning and an end such as [\"09:00\", \"17:00\"]",
            ),
        }
    })?;
    match make(stretches) {
        Ok(hours) => Some(hours),
        Err(flaw) => node.refuse("invalid_hours", format!("can't be: {flaw}")),
    }
}

/// A day with hours of its own.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CalendarException)]
pub struct ExceptionOut {
    /// The day.
    #[schema(value_type = String, format = Date)]
    date: Shown<Date>,
    /// Its hours; none for a day on which nobody works.
    #[schema(value_type = Vec<Vec<String>>)]
    hours: Vec<[Shown<ClockTime>; 2]>,
}

/// Hours by weekday; a day that is not named has none.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Weekly, example = json!({"mon": [["09:00", "12:00"], ["13:00", "17:00"]], "tue": [["09:00", "17:00"]]}))]
pub struct WeeklyOut {
    /// Stretches of time, from 00:00 to 24:00.
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    mon: Vec<[Shown<ClockTime>; 2]>,
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    tue: Vec<[Shown<ClockTime>; 2]>,
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    wed: Vec<[Shown<ClockTime>; 2]>,
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    thu: Vec<[Shown<ClockTime>; 2]>,
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    fri: Vec<[Shown<ClockTime>; 2]>,
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    sat: Vec<[Shown<ClockTime>; 2]>,
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    sun: Vec<[Shown<ClockTime>; 2]>,
}

/// Body of `PUT /v1/calendars/{name}`: when people work.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PutCalendar, example = json!({
    "tz": "Asia/Shanghai", "weekly": {"mon": [["09:00", "17:00"]]}, "holidays": ["2026-10-01"],
    "exceptions": [{"date": "2026-10-10", "hours": [["09:00", "17:00"]]}],
}))]
pub struct CalendarBody {
    /// Whose clocks count, such as `Europe/Berlin`.
    tz: String,
    weekly: WeeklyOut,
    /// Days on which nobody works.
    #[schema(value_type = Vec<String>, required = false)]
    holidays: Vec<Shown<Date>>,
    /// Days with hours of their own, such as a Saturday on which people work; they win over holidays.
    #[schema(required = false)]
    exceptions: Vec<ExceptionOut>,
    /// Taken out of every day; one that ends before it begins goes over midnight.
    #[schema(value_type = Vec<Vec<String>>, required = false)]
    quiet: Vec<[Shown<ClockTime>; 2]>,
}

/// What is shown as it is displayed.
#[derive(Debug)]
struct Shown<T>(T);

impl<T: std::fmt::Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

fn shown(hours: &Hours) -> Vec<[Shown<ClockTime>; 2]> {
    let stretches = hours.iter();
    stretches.map(|it| [Shown(it.from), Shown(it.to)]).collect()
}

impl From<&Calendar> for CalendarBody {
    fn from(calendar: &Calendar) -> Self {
        let [mon, tue, wed, thu, fri, sat, sun] = calendar.weekly.each_ref().map(shown);
        let exceptions = calendar.exceptions.iter();
        Self {
            tz: calendar.zone.iana_name().unwrap_or("UTC").to_owned(),
            weekly: WeeklyOut {
                mon,
                tue,
                wed,
                thu,
                fri,
                sat,
                sun,
            },
            holidays: calendar.holidays.iter().copied().map(Shown).collect(),
            exceptions: exceptions
                .map(|(date, hours)| ExceptionOut {
                    date: Shown(*date),
                    hours: shown(hours),
                })
                .collect(),
            quiet: shown(&calendar.quiet),
        }
    }
}

/// A calendar.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Calendar)]
pub struct CalendarOut<'a> {
    #[schema(value_type = String)]
    name: &'a str,
    /// Grows with each PUT.
    version: u64,
    #[serde(flatten)]
    body: CalendarBody,
}

impl<'a> CalendarOut<'a> {
    /// The calendar of that name.
    pub fn new(name: &'a ResourceName, kept: &Kept<Calendar>) -> Self {
        Self {
            name: name.as_str(),
            version: kept.version,
            body: (&kept.meaning).into(),
        }
    }
}

/// Adds holidays; gives the calendar and the body that says it, or how many holidays would be too many.
///
/// # Errors
/// 422.
pub fn with_holidays(
    calendar: &Calendar,
    holidays: &BTreeSet<Date>,
) -> Result<(Calendar, String), Problem> {
    let mut next = calendar.clone();
    next.holidays.extend(holidays);
    if next.holidays.len() > DAYS_MAX {
        let count = next.holidays.len();
        let detail = format!("would make {count} holidays, at most {DAYS_MAX} are allowed");
        return Err(Problem::of_field("", "too_many", detail));
    }
    // Texts and lists always become JSON.
    let body = serde_json::to_string(&CalendarBody::from(&next)).unwrap_or_default();
    Ok((next, body))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::WallMs;
    use crate::wire::tests::{properties, refused};

    fn read(body: &Value) -> Result<Calendar, Problem> {
        calendar(body.to_string().as_bytes())
    }

    #[test]
    fn what_is_put_is_answered_with_name_and_version() {
        let body = json!({
            "tz": "Asia/Shanghai",
            "weekly": {"mon": [["09:00", "12:00"], ["13:00", "17:00"]], "tue": [], "wed": [], "thu": [], "fri": [], "sat": [], "sun": [["00:00", "24:00"]]},
            "holidays": ["2026-10-01", "2026-10-02"],
            "exceptions": [{"date": "2026-10-10", "hours": [["09:00", "17:00"]]}],
            "quiet": [["00:00", "07:00"], ["22:00", "24:00"]],
        });
        let meaning = read(&body).unwrap();
        let (again, text) = with_holidays(&meaning, &BTreeSet::new()).unwrap();
        assert_eq!(
            (&again, read(&serde_json::from_str(&text).unwrap())),
            (&meaning, Ok(meaning.clone()))
        );
        let kept = Kept {
            meaning,
            body: String::new(),
            version: 3,
            changed_at: WallMs(0),
        };
        let mut expected = body;
        expected["name"] = json!("cn");
        expected["version"] = json!(3);
        let name = ResourceName::parse("cn").unwrap();
        let answered = serde_json::to_value(CalendarOut::new(&name, &kept)).unwrap();
        assert_eq!(answered, expected);
    }

    #[test]
    fn little_is_needed_and_quiet_hours_go_over_midnight() {
        let body = json!({"tz": "UTC", "weekly": {"fri": [["00:00", "24:00"]]}, "quiet": [["22:00", "07:00"]]});
        let read = read(&body).unwrap();
        let friday = jiff::civil::date(2027, 1, 1);
        assert_eq!(shown(&read.hours(friday)).len(), 1);
        assert_eq!(read.hours(friday).close(), ClockTime::parse("22:00"));
        assert!(read.hours(friday.tomorrow().unwrap()).is_empty());
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_field() {
        let open = json!({"mon": [["09:00", "17:00"]]});
        for (body, pointer, code) in [
            (json!({"weekly": open}), "/tz", "missing"),
            (json!({"tz": "UTC"}), "/weekly", "missing"),
            (json!({"tz": "UTC", "weekly": {}}), "/weekly", "never_open"),
            (
                json!({"tz": "UTC", "weekly": open, "quiet": [["08:00", "18:00"]]}),
                "/weekly",
                "never_open",
            ),
            (
                json!({"tz": "Mars/Olympus", "weekly": open}),
                "/tz",
                "unknown_zone",
            ),
            (
                json!({"tz": "UTC", "weekly": {"monday": []}}),
                "/weekly/monday",
                "unknown_field",
            ),
            (
                json!({"tz": "UTC", "weekly": {"mon": [["9:00", "17:00"]]}}),
                "/weekly/mon/0/0",
                "invalid_clock_time",
            ),
            (
                json!({"tz": "UTC", "weekly": {"mon": [["09:00"]]}}),
                "/weekly/mon/0",
                "wrong_count",
            ),
            (
                json!({"tz": "UTC", "weekly": {"mon": [["17:00", "09:00"]]}}),
                "/weekly/mon",
                "invalid_hours",
            ),
            (
                json!({"tz": "UTC", "weekly": open, "holidays": ["2026-02-30"]}),
                "/holidays/0",
                "invalid_date",
            ),
            (
                json!({"tz": "UTC", "weekly": open, "holidays": ["20261001"]}),
                "/holidays/0",
                "invalid_date",
            ),
            (
                json!({"tz": "UTC", "weekly": open, "exceptions": [{"date": "2026-10-01"}]}),
                "/exceptions/0/hours",
                "missing",
            ),
        ] {
            let found = refused(read(&body));
            assert!(
                found.contains(&(pointer.to_owned(), code)),
                "{body}: {found:?}"
            );
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<CalendarBody>(), CALENDAR.fields);
        assert_eq!(properties::<WeeklyOut>(), WEEKLY.fields);
        assert_eq!(properties::<ExceptionOut>(), EXCEPTION.fields);
    }
}
