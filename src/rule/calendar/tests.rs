#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use jiff::Timestamp;
use jiff::civil::date;
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> WallMs {
    let text = text.replace('Z', ":00Z");
    wall(text.parse::<Timestamp>().unwrap())
}

fn shown(at: WallMs) -> String {
    at.to_string().replace(":00.000Z", "Z")
}

/// `09:00-12:00 13:00-18:00`
fn stretches(text: &str) -> Vec<Stretch> {
    let one = |text: &str| {
        let (from, to) = text.split_once('-').unwrap();
        let time = |text| ClockTime::parse(text).unwrap();
        Stretch {
            from: time(from),
            to: time(to),
        }
    };
    text.split_ascii_whitespace().map(one).collect()
}

fn hours(text: &str) -> Hours {
    Hours::new(stretches(text)).unwrap()
}

const OFFICE: &str = "09:00-12:00 13:00-18:00";
const WHOLE_DAY: &str = "00:00-24:00";

/// From Monday to Friday, on Saturday, on Sunday.
fn calendar(tz: &str, week: [&str; 3]) -> Calendar {
    let [workday, saturday, sunday] = week.map(hours);
    let mut weekly = [(); 7].map(|()| workday.clone());
    (weekly[5], weekly[6]) = (saturday, sunday);
    Calendar {
        zone: TimeZone::get(tz).unwrap(),
        weekly,
        holidays: BTreeSet::new(),
        exceptions: BTreeMap::new(),
        quiet: Hours::default(),
    }
}

/// The calendars of the worked examples.
fn named(name: &str) -> Calendar {
    let daily = |tz, hours| calendar(tz, [hours; 3]);
    let office = |tz| calendar(tz, [OFFICE, "", ""]);
    let weekend = |tz| calendar(tz, ["", WHOLE_DAY, WHOLE_DAY]);
    match name {
        "berlin" => Calendar {
            holidays: [date(2027, 12, 24), date(2027, 12, 31), date(2028, 1, 3)].into(),
            exceptions: [(date(2027, 12, 18), hours("10:00-14:00"))].into(),
            ..office("Europe/Berlin")
        },
        "kolkata" => Calendar {
            holidays: [date(2028, 1, 26)].into(),
            ..office("Asia/Kolkata")
        },
        "newyork" => Calendar {
            holidays: [date(2027, 11, 25)].into(),
            ..calendar("America/New_York", [OFFICE, "08:00-12:00", ""])
        },
        "night" => weekend("Europe/Berlin"),
        "nepal" => Calendar {
            holidays: [date(2028, 2, 29)].into(),
            ..office("Asia/Kathmandu")
        },
        // A holiday with hours of its own is none.
        "adelaide" => Calendar {
            holidays: [date(2027, 1, 1)].into(),
            exceptions: [(date(2027, 1, 1), hours("01:30-02:15"))].into(),
            ..daily("Australia/Adelaide", "22:00-24:00 00:00-06:00")
        },
        "always" => Calendar {
            holidays: [date(2028, 2, 29)].into(),
            quiet: Hours::daily(stretches("22:00-07:00")).unwrap(),
            ..daily("UTC", WHOLE_DAY)
        },
        "lordhowe" => weekend("Australia/Lord_Howe"),
        "santiago" => daily("America/Santiago", "00:00-08:00"),
        _ => panic!("{name}"),
    }
}

#[test]
fn worked_examples_agree_with_another_tool() {
    let rows = include_str!("examples.txt").lines();
    let rows: Vec<&str> = rows.filter(|row| !row.starts_with('#')).collect();
    assert!(rows.len() >= 40);
    for row in rows {
        let [name, from, length, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let length = WorkingTime::parse(length).unwrap();
        let due = named(name).due(at(from), length).unwrap();
        assert_eq!(shown(due), expected, "{row}");
    }
}

#[test]
fn a_due_time_in_closed_time_is_shifted_in_one_of_three_ways() {
    let berlin = named("berlin");
    let hours = |hours: u64| DurationMs::secs(hours * 3600);
    let (open, extend, skip) = (Shift::NextOpen, Shift::ExtendByClosedTime, Shift::SkipDay);
    for (from, after, shift, expected) in [
        // In open time nothing moves, but closed time on the way may count.
        ("2027-12-14T09:00Z", 1, open, "2027-12-14T10:00Z"),
        ("2027-12-14T09:00Z", 1, extend, "2027-12-14T10:00Z"),
        ("2027-12-14T09:00Z", 1, skip, "2027-12-14T10:00Z"),
        // Lunch, and the evening.
        ("2027-12-14T10:30Z", 1, open, "2027-12-14T12:00Z"),
        ("2027-12-14T10:30Z", 1, extend, "2027-12-14T12:30Z"),
        ("2027-12-14T10:30Z", 1, skip, "2027-12-14T11:30Z"),
        ("2027-12-14T16:30Z", 4, open, "2027-12-15T08:00Z"),
        // Over a holiday and a weekend, from Thursday to Monday.
        ("2027-12-23T10:00Z", 24, open, "2027-12-27T08:00Z"),
        ("2027-12-23T10:00Z", 24, skip, "2027-12-27T10:00Z"),
        ("2027-12-23T10:00Z", 8, extend, "2027-12-27T10:00Z"),
        // A Saturday on which people work.
        ("2027-12-17T10:00Z", 24, skip, "2027-12-18T10:00Z"),
        ("2027-12-17T07:00Z", 24, open, "2027-12-18T09:00Z"),
    ] {
        let due = berlin.shifted(at(from), hours(after), shift).unwrap();
        assert_eq!(shown(due), expected, "{from} + {after} h, {shift:?}");
    }
}

#[test]
fn a_calendar_without_hours_says_so_at_once() {
    let closed = calendar("UTC", ["", "", ""]);
    assert!(!closed.is_ever_open());
    let from = at("2027-12-17T16:30Z");
    assert_eq!(closed.next_open(from), Err(NeverOpen));
    assert_eq!(closed.add(from, DurationMs(0)), Err(NeverOpen));
    let tomorrow = WorkingTime::parse("1 working day by 18:00").unwrap();
    assert_eq!(closed.due(from, tomorrow), Err(NeverOpen));
    assert_eq!(
        closed.open_between(from, at("2028-12-17T16:30Z")),
        DurationMs(0)
    );
    // Quiet at all hours is closed too.
    let quiet = Calendar {
        quiet: hours("09:00-18:00"),
        ..calendar("UTC", [OFFICE, "", ""])
    };
    assert!(!quiet.is_ever_open());
    // One day is enough, once.
    let once = Calendar {
        exceptions: [(date(2027, 12, 20), hours("09:00-10:00"))].into(),
        ..closed
    };
    assert!(once.is_ever_open());
    assert_eq!(once.next_open(from), Ok(at("2027-12-20T09:00Z")));
    assert_eq!(once.next_open(at("2027-12-20T10:00Z")), Err(NeverOpen));
}

#[test]
fn the_end_of_the_calendar_is_an_end() {
    let always = named("always");
    for from in [i64::MAX, 253_402_207_200_000, i64::MIN] {
        let ends = always.add(WallMs(from), DurationMs::secs(90_000 * 3600));
        assert_eq!(ends, Err(NeverOpen));
    }
}

#[test]
fn hours_are_in_order_and_have_no_time_in_common() {
    assert_eq!(hours("13:00-18:00 09:00-12:00"), hours(OFFICE));
    for (text, flaw) in [
        ("09:00-09:00", "09:00 to 09:00 is no stretch of one day"),
        ("22:00-06:00", "22:00 to 06:00 is no stretch of one day"),
        ("09:00-12:00 11:59-13:00", "11:59 to 13:00 overlaps"),
    ] {
        let refused = Hours::new(stretches(text)).unwrap_err().to_string();
        assert!(refused.starts_with(flaw), "{refused}");
    }
    assert!(Hours::daily(stretches("09:00-09:00")).is_err());
    for no_time in [
        "9:00", "24:01", "09:60", "0900", "-1:00", "09:00:00", "+9:00",
    ] {
        assert_eq!(ClockTime::parse(no_time), None, "{no_time}");
    }
    let left = hours("08:00-20:00").without(&hours("00:00-09:00 12:00-13:00 19:00-24:00"));
    assert_eq!(left, hours("09:00-12:00 13:00-19:00"));
}

#[test]
fn lengths_are_read_as_people_say_them() {
    let hours = |hours: u64| Some(WorkingTime::Hours(DurationMs::secs(hours * 3600)));
    assert_eq!(WorkingTime::parse("8 working hours"), hours(8));
    assert_eq!(WorkingTime::parse("120 working minutes"), hours(2));
    assert_eq!(
        WorkingTime::parse("2 working days by 18:00"),
        WorkingTime::days(2, ClockTime::parse("18:00"))
    );
    for other in [
        "8 hours",
        "8 working weeks",
        "-1 working hours",
        "0 working days",
        "1 working day by noon",
        "1 working hour by 18:00",
        "99999999999999999999 working hours",
        "18446744073709551615 working minutes",
        "3661 working days",
        "",
    ] {
        assert_eq!(WorkingTime::parse(other), None, "{other}");
    }
    assert_eq!(WorkingTime::hours(f64::NAN), None);
    assert_eq!(WorkingTime::hours(-0.5), None);
    assert_eq!(WorkingTime::hours(1e300), None);
}

/// Any calendar that is open every week.
fn calendars() -> impl Strategy<Value = Calendar> {
    let zones = prop::sample::select(vec![
        "Europe/Berlin",
        "America/Havana",
        "America/Santiago",
        "Asia/Kathmandu",
        "Australia/Lord_Howe",
        "UTC",
    ]);
    let days = || {
        prop::sample::select(vec![
            "",
            OFFICE,
            WHOLE_DAY,
            "00:00-01:30",
            "01:30-02:45 22:15-24:00",
        ])
    };
    let quiet = prop::sample::select(vec!["", "22:00-07:00", "12:30-13:30"]);
    let holidays = prop::collection::btree_set(0..800i32, 0..20);
    let exceptions = prop::collection::btree_map(0..800i32, days().prop_map(hours), 0..20);
    let week = prop::array::uniform7(days().prop_map(hours));
    let day = |days: i32| {
        date(2026, 1, 1)
            .checked_add(jiff::Span::new().days(days))
            .unwrap()
    };
    (zones, week, quiet, holidays, exceptions)
        .prop_map(move |(tz, weekly, quiet, holidays, exceptions)| Calendar {
            zone: TimeZone::get(tz).unwrap(),
            weekly,
            holidays: holidays.into_iter().map(day).collect(),
            exceptions: exceptions
                .into_iter()
                .map(|(of, hours)| (day(of), hours))
                .collect(),
            quiet: Hours::daily(stretches(quiet)).unwrap(),
        })
        .prop_filter("it is open every week", |calendar| {
            let mut hours = calendar
                .weekly
                .iter()
                .map(|hours| hours.without(&calendar.quiet));
            hours.any(|hours| {
                hours
                    .iter()
                    .any(|it| it.to > ClockTime::parse("03:00").unwrap())
            })
        })
}

/// Any millisecond of two years, and of lengths up to 200 hours.
fn instants() -> impl Strategy<Value = WallMs> {
    (1_767_225_600_000..1_830_297_600_000i64).prop_map(WallMs)
}

fn lengths() -> impl Strategy<Value = DurationMs> {
    (0..720_000_000u64).prop_map(DurationMs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn adding_and_then_measuring_gives_the_same_back(calendar in calendars(), from in instants(), length in lengths()) {
        let to = calendar.add(from, length).unwrap();
        prop_assert_eq!(calendar.open_between(from, to), length);
    }

    #[test]
    fn adding_in_two_parts_is_adding_at_once(calendar in calendars(), from in instants(), first in lengths(), second in lengths()) {
        let in_parts = calendar.add(calendar.add(from, first).unwrap(), second).unwrap();
        let at_once = calendar.add(from, DurationMs(first.0 + second.0)).unwrap();
        prop_assert_eq!(calendar.open_between(in_parts.min(at_once), in_parts.max(at_once)), DurationMs(0));
        prop_assert!(second.0 == 0 || in_parts == at_once);
    }

    #[test]
    fn a_later_start_or_a_longer_length_is_never_over_earlier(
        calendar in calendars(), from in instants(), later_ms in 0..90_000_000u64, length in lengths(), more in lengths(),
    ) {
        let due = calendar.add(from, length).unwrap();
        prop_assert!(due <= calendar.add(from.after(DurationMs(later_ms)), length).unwrap());
        prop_assert!(due <= calendar.add(from, DurationMs(length.0 + more.0)).unwrap());
        prop_assert!(due >= from.after(length));
    }

    #[test]
    fn the_result_is_never_inside_closed_time(calendar in calendars(), from in instants(), length in lengths()) {
        for shift in [Shift::NextOpen, Shift::ExtendByClosedTime] {
            let due = calendar.shifted(from, length, shift).unwrap();
            // An end that is reached is that end.
            prop_assert!(calendar.is_open(due) || calendar.is_open(WallMs(due.0 - 1)), "{:?}", shift);
            prop_assert!(due >= from.after(length));
        }
        let open = calendar.next_open(from).unwrap();
        prop_assert!(calendar.is_open(open));
        prop_assert_eq!(calendar.open_between(from, open), DurationMs(0));
        let due = calendar.shifted(from, length, Shift::SkipDay).unwrap();
        prop_assert!(due >= from.after(length));
        let day = calendar.zone.to_datetime(timestamp(due).unwrap()).date();
        prop_assert!(!calendar.hours(day).is_empty());
    }
}
