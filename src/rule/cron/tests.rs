#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::clock::DurationMs;

fn at(text: &str) -> WallMs {
    let text = text.replace('Z', ":00Z");
    wall(text.parse::<Timestamp>().unwrap())
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

/// The next times, as in the table: `2026-12-01T10:30Z`.
fn shown(cron: &str, tz: &str, after: &str, count: usize) -> Vec<String> {
    let cron = Cron::parse(cron).unwrap();
    let times = cron.times(at(after), &zone(tz)).take(count);
    times
        .map(|time| time.to_string().replace(":00.000Z", "Z"))
        .collect()
}

/// Cases 7, 9, 11, 13, and the rare dates of case 15.
#[test]
fn the_cases_from_the_field_come_out_exactly() {
    for (cron, tz, after, expected) in [
        (
            "0 6 * * 1",
            "America/New_York",
            "2021-10-31T12:00Z",
            "2021-11-01T10:00Z 2021-11-08T11:00Z 2021-11-15T11:00Z",
        ),
        (
            "0 6 * * 1",
            "America/New_York",
            "2027-10-31T12:00Z",
            "2027-11-01T10:00Z 2027-11-08T11:00Z 2027-11-15T11:00Z",
        ),
        (
            "0 2 * * *",
            "Europe/Berlin",
            "2023-10-27T12:00Z",
            "2023-10-28T00:00Z 2023-10-29T00:00Z 2023-10-30T01:00Z",
        ),
        (
            "0 2 * * *",
            "Europe/Berlin",
            "2027-10-29T12:00Z",
            "2027-10-30T00:00Z 2027-10-31T00:00Z 2027-11-01T01:00Z",
        ),
        (
            "20 2 * * *",
            "Europe/Paris",
            "2020-10-23T12:00Z",
            "2020-10-24T00:20Z 2020-10-25T00:20Z 2020-10-26T01:20Z",
        ),
        (
            "30 2 * * *",
            "Europe/Amsterdam",
            "2025-03-28T12:00Z",
            "2025-03-29T01:30Z 2025-03-30T01:00Z 2025-03-31T00:30Z 2025-04-01T00:30Z",
        ),
        (
            "30 2 * * *",
            "Europe/Amsterdam",
            "2025-04-01T00:00Z",
            "2025-04-01T00:30Z",
        ),
        (
            "0 0 * * *",
            "America/Santiago",
            "2026-09-05T00:00Z",
            "2026-09-05T04:00Z 2026-09-06T04:00Z 2026-09-07T03:00Z",
        ),
        (
            "0 2 * * *",
            "America/New_York",
            "2019-03-09T00:00Z",
            "2019-03-09T07:00Z 2019-03-10T07:00Z 2019-03-11T06:00Z",
        ),
        (
            "0 0 29 2 *",
            "UTC",
            "2027-01-01T00:00Z",
            "2028-02-29T00:00Z",
        ),
        (
            "0 0 29 2 *",
            "UTC",
            "2096-03-01T00:00Z",
            "2104-02-29T00:00Z",
        ),
    ] {
        let expected: Vec<&str> = expected.split(' ').collect();
        assert_eq!(
            shown(cron, tz, after, expected.len()),
            expected,
            "{cron} {tz}"
        );
    }
}

#[test]
fn next_times_around_jumps_agree_with_another_tool() {
    let rows = include_str!("around_jumps.txt").lines();
    let rows: Vec<&str> = rows.filter(|row| !row.starts_with('#')).collect();
    assert!(rows.len() >= 100);
    for row in rows {
        let [tz, cron, after, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        assert_eq!(shown(cron, tz, after, 4).join(" "), expected, "{row}");
    }
}

#[test]
fn days_that_no_year_has_are_refused() {
    for cron in [
        "0 0 31 4 *",
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "*/5 * 30-31 2 *",
        "0 0 31W feb ?",
    ] {
        let refused = Cron::parse(cron).unwrap_err();
        assert_eq!(refused.code(), "never_fires", "{cron}");
    }
    // By either of both days it does fire.
    assert!(Cron::parse("0 0 30 2 mon").is_ok());
}

#[test]
fn a_rhythm_that_lies_in_a_gap_for_ever_is_found_never_to_fire_in_bounded_time() {
    // Berlin's clocks jump from two to three on the last Sunday of March, by its rule for all years to come.
    let cron = Cron::parse("*/20 2 ? 3 SUNL").unwrap();
    let begun = Instant::now();
    assert_eq!(
        cron.next(at("2026-01-01T00:00Z"), &zone("Europe/Berlin")),
        None
    );
    // A debug build on a busy machine; a release build takes a few milliseconds.
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        cron.next(at("2026-01-01T00:00Z"), &zone("Europe/London"))
            .is_some()
    );
}

#[test]
fn special_days_are_found() {
    for (cron, after, expected) in [
        // The last day, also of a February.
        (
            "0 0 L * *",
            "2027-02-01T00:00Z",
            "2027-02-28T00:00Z 2027-03-31T00:00Z",
        ),
        ("0 0 l 2 *", "2027-03-01T00:00Z", "2028-02-29T00:00Z"),
        // 1 May 2027 is a Saturday: the Monday after it. 31 October 2027 is a Sunday: the Friday before it.
        ("0 0 1W 5 *", "2027-01-01T00:00Z", "2027-05-03T00:00Z"),
        ("0 0 31W 10 *", "2027-01-01T00:00Z", "2027-10-29T00:00Z"),
        (
            "0 0 15W 5,8 *",
            "2027-01-01T00:00Z",
            "2027-05-14T00:00Z 2027-08-16T00:00Z",
        ),
        ("0 0 LW 10 *", "2027-01-01T00:00Z", "2027-10-29T00:00Z"),
        // Second Friday, fifth Monday, last Sunday.
        (
            "0 0 ? * FRI#2",
            "2027-01-01T00:00Z",
            "2027-01-08T00:00Z 2027-02-12T00:00Z",
        ),
        (
            "0 0 * * 1#5",
            "2027-01-01T00:00Z",
            "2027-03-29T00:00Z 2027-05-31T00:00Z",
        ),
        (
            "0 0 * * 7L",
            "2027-01-01T00:00Z",
            "2027-01-31T00:00Z 2027-02-28T00:00Z",
        ),
        (
            "0 0 * * 0L",
            "2027-01-01T00:00Z",
            "2027-01-31T00:00Z 2027-02-28T00:00Z",
        ),
        // Either of both, when both are said.
        (
            "0 0 13 * fri",
            "2027-01-01T00:00Z",
            "2027-01-08T00:00Z 2027-01-13T00:00Z",
        ),
        // Over the week's end, and steps from somewhere.
        (
            "0 0 * * fri-sun",
            "2027-01-04T00:00Z",
            "2027-01-08T00:00Z 2027-01-09T00:00Z 2027-01-10T00:00Z 2027-01-15T00:00Z",
        ),
        (
            "0 0 * jan,MAR-apr 0",
            "2027-01-31T00:00Z",
            "2027-03-07T00:00Z",
        ),
        (
            "5/20 10-14/2 * * *",
            "2027-01-01T10:06Z",
            "2027-01-01T10:25Z 2027-01-01T10:45Z 2027-01-01T12:05Z",
        ),
        // Strictly after.
        ("30 9 * * *", "2027-01-01T09:30Z", "2027-01-02T09:30Z"),
    ] {
        let expected: Vec<&str> = expected.split(' ').collect();
        assert_eq!(
            shown(cron, "UTC", after, expected.len()),
            expected,
            "{cron}"
        );
    }
}

#[test]
fn six_fields_begin_with_the_second() {
    let cron = Cron::parse("*/20 59 23 31 12 *").unwrap();
    let after = WallMs(at("2027-12-31T23:59Z").0 + 19_999);
    let times: Vec<String> = cron
        .times(after, &TimeZone::UTC)
        .take(3)
        .map(|time| time.to_string())
        .collect();
    assert_eq!(
        times,
        [
            "2027-12-31T23:59:20.000Z",
            "2027-12-31T23:59:40.000Z",
            "2028-12-31T23:59:00.000Z"
        ]
    );
}

#[test]
fn what_is_wrong_is_named_with_its_field() {
    for (cron, says) in [
        ("", "has 0 field(s)"),
        ("* * * *", "has 4 field(s)"),
        ("* * * * * * *", "has 7 field(s)"),
        ("60 * * * *", "`60` as its minute, where 0 to 59 are known"),
        ("-1 * * * *", "`-1` as its minute"),
        ("+1 * * * *", "`+1` as its minute"),
        ("1- * * * *", "`1-` as its minute"),
        ("1,,2 * * * *", "`` as its minute"),
        ("*/0 * * * *", "a step is 1 to 59"),
        ("*/60 * * * *", "a step is 1 to 59"),
        ("a b c d e", "`a` as its minute"),
        ("0 24 * * *", "`24` as its hour, where 0 to 23 are known"),
        ("0 17-9 * * *", "from the smaller to the larger"),
        ("0 0 0 * *", "`0` as its day of month"),
        ("0 0 32W * *", "`32W` as its day of month"),
        ("0 0 W * *", "`W` as its day of month"),
        ("0 0 * 13 *", "`13` as its month"),
        ("0 0 * mon *", "`mon` as its month"),
        (
            "0 0 * * 8",
            "`8` as its day of week, where 0 to 7 are known",
        ),
        ("0 0 * * L", "`L` as its day of week"),
        ("0 0 * * 1#6", "1 to 5 may stand behind the `#`"),
        ("0 0 * * 1#", "1 to 5 may stand behind the `#`"),
        ("99999999999999999999 * * * *", "as its minute"),
    ] {
        let refused = Cron::parse(cron).unwrap_err();
        assert_eq!(refused.code(), "invalid_cron");
        assert!(refused.to_string().contains(says), "{cron}: {refused}");
    }
    assert_eq!(Cron::parse(&"1,".repeat(200)), Err(CronFlaw::TooLong));
}

#[test]
fn the_end_of_the_calendar_is_an_end() {
    let daily = Cron::parse("0 0 * * *").unwrap();
    for zone in [
        TimeZone::UTC,
        zone("Pacific/Kiritimati"),
        zone("Europe/Berlin"),
    ] {
        assert_eq!(daily.next(WallMs(i64::MAX), &zone), None);
        assert_eq!(daily.next(at("9999-12-30T21:00Z"), &zone), None);
        assert!(daily.next(at("9999-12-20T21:00Z"), &zone).is_some());
    }
}

/// Zones with jumps of an hour, half an hour, at midnight, and of a whole day.
fn zones() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "Europe/Berlin",
        "Europe/Dublin",
        "America/Havana",
        "America/Santiago",
        "Australia/Lord_Howe",
        "Asia/Kathmandu",
        "Pacific/Apia",
        "UTC",
    ])
}

/// What runs several times a week.
fn patterns() -> impl Strategy<Value = String> {
    let minute = prop_oneof![
        (0..60u8).prop_map(|m| m.to_string()),
        (1..60u8).prop_map(|n| format!("*/{n}")),
        (0..30u8, 30..60u8).prop_map(|(a, b)| format!("{a},{b}")),
        Just("*".to_owned()),
    ];
    let hour = prop_oneof![
        (0..24u8).prop_map(|h| h.to_string()),
        (0..4u8, 0..4u8).prop_map(|(a, n)| format!("{a}-{}", a + n)),
        (1..24u8).prop_map(|n| format!("*/{n}")),
        Just("*".to_owned()),
    ];
    let days = prop::sample::select(vec!["* * *", "* * 5-7", "*/2 * *", "* * 1,6"]);
    (minute, hour, days).prop_map(|(minute, hour, days)| format!("{minute} {hour} {days}"))
}

/// The next time by a walk over every minute, without any arithmetic on zones.
fn walked(cron: &Cron, after: WallMs, zone: &TimeZone) -> Option<WallMs> {
    const MINUTE: DurationMs = DurationMs::secs(60);
    let shows = |at: WallMs| zone.to_datetime(timestamp(at).unwrap());
    let matches = |local: DateTime| {
        cron.day_matches(local.date())
            && cron.months.has(local.month())
            && cron.hours.has(local.hour())
            && cron.minutes.has(local.minute())
    };
    // From two days before, so that the furthest that the clocks have shown is known.
    let mut at = WallMs(after.0 - 48 * 3_600_000);
    let mut furthest = shows(at);
    for _ in 0..20 * 1440 {
        at = at.after(MINUTE);
        let local = shows(at);
        let mut fires = cron.is_periodic && matches(local);
        while furthest < local {
            furthest = furthest.checked_add(Span::new().minutes(1)).unwrap();
            fires |= !cron.is_periodic && matches(furthest);
        }
        if fires && at > after {
            return Some(at);
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_next_time_is_what_a_walk_over_every_minute_finds(
        tz in zones(), pattern in patterns(), jump in 0..5usize, minutes in -3000..1500i64,
    ) {
        let (cron, zone) = (Cron::parse(&pattern).unwrap(), zone(tz));
        // Around a jump of the clocks, if the zone has any.
        let from = timestamp(at("2010-01-01T00:00Z")).unwrap();
        let jump = zone.following(from).nth(jump).map_or(from, |jump| jump.timestamp());
        let after = WallMs((wall(jump).0.div_euclid(60_000) + minutes) * 60_000);
        let found = cron.next(after, &zone);
        prop_assert!(found.is_none_or(|found| found > after));
        if let Some(walked) = walked(&cron, after, &zone) {
            prop_assert_eq!(found, Some(walked), "{} {} after {}", pattern, tz, after);
        }
    }

    #[test]
    fn later_starts_never_give_earlier_times(tz in zones(), pattern in patterns(), from in 0..2_000_000i64, more in 0..5_000i64) {
        let (cron, zone) = (Cron::parse(&pattern).unwrap(), zone(tz));
        let early = WallMs(1_262_304_000_000 + from * 60_000);
        let late = WallMs(early.0 + more * 60_000);
        let (first, second) = (cron.next(early, &zone).unwrap(), cron.next(late, &zone).unwrap());
        prop_assert!(first <= second);
        // The first is the second, or it lies before the later start.
        prop_assert!(first == second || first <= late);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[-*/0-9,LW#a-f? ]{0,40}|.{0,40}") {
        if let Ok(cron) = Cron::parse(&text) {
            let _ = cron.next(WallMs(0), &TimeZone::UTC);
        }
    }
}
