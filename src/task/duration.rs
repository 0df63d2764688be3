//! Lengths of time as text: ISO 8601 durations in and out.
//!
//! ```text
//!  P 1 W 2 D T 3 H 30 M 0.25 S
//!  │ └─ days ┘ │ └─ clock ────┘     the smallest unit written may carry decimals
//!  period      time                 an M before the T would be months, after it minutes
//! ```
//!
//! Only units of one fixed length are taken: a day is 24 hours, a week 7 days, whatever a calendar does in
//! between. Years and months have no such length and are refused by name, since `P1M` is most often a
//! mistyped `PT1M`. What is finer than a millisecond is rounded **up**, so that nothing fires early.
//!
//! [`format()`] writes the one text that the service answers with, and [`parse`] reads it back unchanged.

use std::fmt::Write;

use crate::clock::DurationMs;

const SECOND_MS: u64 = 1000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
const WEEK_MS: u64 = 7 * DAY_MS;

/// Most decimals that are read: attoseconds. It bounds the arithmetic, not anybody's need.
const DECIMALS_MAX: usize = 18;

/// Why a text is not a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is not written as ISO 8601 asks.
    #[error("is not an ISO 8601 duration such as PT30M, P1DT12H or PT0.25S")]
    Malformed,
    /// It names years or months.
    #[error("years and months have no fixed length; use days")]
    CalendarUnit,
    /// It has a minus sign, before the `P` or before a number.
    #[error("must not be negative")]
    Negative,
    /// It is longer than 64 bits of milliseconds can say, which is half a billion years.
    #[error("is too long")]
    TooLong,
}

/// Reads an ISO 8601 duration of weeks, days, hours, minutes and seconds, with decimals on the smallest unit
/// written. Designators may be lower case.
pub fn parse(text: &str) -> Result<DurationMs, DurationError> {
    if text.starts_with("-P") || text.starts_with("-p") {
        return Err(DurationError::Negative);
    }
    let body = text
        .strip_prefix(['P', 'p'])
        .ok_or(DurationError::Malformed)?;
    let (date, time) = match body.split_once(['T', 't']) {
        Some((_, "")) => return Err(DurationError::Malformed),
        Some((date, time)) => (date, Some(time)),
        None => (body, None),
    };

    let mut total_ms = 0_u128;
    // A unit may only be followed by a smaller one, and by none at all once decimals were given.
    let mut unit_below_ms = u64::MAX;
    for (mut rest, in_time) in [(date, false), (time.unwrap_or_default(), true)] {
        while !rest.is_empty() {
            let (number, unit_ms, after) = next_part(rest, in_time)?;
            if unit_ms >= unit_below_ms {
                return Err(DurationError::Malformed);
            }
            unit_below_ms = if number.decimals.is_empty() {
                unit_ms
            } else {
                0
            };
            let part_ms = number.times(unit_ms)?;
            total_ms = total_ms
                .checked_add(part_ms)
                .ok_or(DurationError::TooLong)?;
            rest = after;
        }
    }
    if unit_below_ms == u64::MAX {
        return Err(DurationError::Malformed);
    }
    let total_ms = u64::try_from(total_ms).map_err(|_| DurationError::TooLong)?;
    Ok(DurationMs(total_ms))
}

/// Writes a duration in the shortest form with days, hours, minutes and seconds: `PT1H30M`, `P3DT4H`, `PT0.25S`.
pub fn format(length: DurationMs) -> String {
    if length.0 == 0 {
        return "PT0S".to_owned();
    }
    let mut text = String::from("P");
    let mut rest_ms = length.0;
    let mut put = |text: &mut String, unit_ms: u64, designator: char| {
        let count = rest_ms / unit_ms;
        rest_ms %= unit_ms;
        if count > 0 {
            write!(text, "{count}{designator}").expect("a string takes any text");
        }
    };
    let mut clock = String::new();
    put(&mut text, DAY_MS, 'D');
    put(&mut clock, HOUR_MS, 'H');
    put(&mut clock, MINUTE_MS, 'M');
    if rest_ms > 0 {
        let seconds = format!("{}.{:03}", rest_ms / SECOND_MS, rest_ms % SECOND_MS);
        clock.push_str(seconds.trim_end_matches('0').trim_end_matches('.'));
        clock.push('S');
    }
    if !clock.is_empty() {
        text.push('T');
        text.push_str(&clock);
    }
    text
}

/// A number as it is written: digits, and digits behind the point.
struct Number<'a> {
    whole: &'a str,
    decimals: &'a str,
}

impl Number<'_> {
    /// The number times a unit, in milliseconds, rounded up.
    fn times(&self, unit_ms: u64) -> Result<u128, DurationError> {
        let unit_ms = u128::from(unit_ms);
        let whole: u128 = self.whole.parse().map_err(|_| DurationError::TooLong)?;
        let whole_ms = whole.checked_mul(unit_ms).ok_or(DurationError::TooLong)?;
        let part_ms = if self.decimals.is_empty() {
            0
        } else {
            let decimals: u128 = self
                .decimals
                .parse()
                .map_err(|_| DurationError::Malformed)?;
            let scale = 10_u128.pow(self.decimals.len() as u32);
            (decimals * unit_ms).div_ceil(scale)
        };
        whole_ms.checked_add(part_ms).ok_or(DurationError::TooLong)
    }
}

/// Takes `30M` off the front of a text: the number, its unit in milliseconds, and what follows.
fn next_part(text: &str, in_time: bool) -> Result<(Number<'_>, u64, &str), DurationError> {
    if text.starts_with('-') {
        return Err(DurationError::Negative);
    }
    let (whole, mut rest) = digits(text);
    let mut decimals = "";
    if let Some(behind_point) = rest.strip_prefix(['.', ',']) {
        (decimals, rest) = digits(behind_point);
        if decimals.is_empty() || decimals.len() > DECIMALS_MAX {
            return Err(DurationError::Malformed);
        }
    }
    let mut letters = rest.chars();
    let unit = letters.next().map(|letter| letter.to_ascii_uppercase());
    let unit_ms = match (unit, in_time) {
        _ if whole.is_empty() => return Err(DurationError::Malformed),
        (Some('Y' | 'M'), false) => return Err(DurationError::CalendarUnit),
        (Some('W'), false) => WEEK_MS,
        (Some('D'), false) => DAY_MS,
        (Some('H'), true) => HOUR_MS,
        (Some('M'), true) => MINUTE_MS,
        (Some('S'), true) => SECOND_MS,
        _ => return Err(DurationError::Malformed),
    };
    Ok((Number { whole, decimals }, unit_ms, letters.as_str()))
}

/// Splits a text behind its leading digits.
fn digits(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_of_fixed_length_are_read() {
        for (text, ms) in [
            ("PT30M", 30 * MINUTE_MS),
            ("P1D", DAY_MS),
            ("P1W", 7 * DAY_MS),
            ("P1W2D", 9 * DAY_MS),
            ("P3DT4H", 3 * DAY_MS + 4 * HOUR_MS),
            ("PT1H30M5S", HOUR_MS + 30 * MINUTE_MS + 5 * SECOND_MS),
            ("PT36H", 36 * HOUR_MS),
            ("PT0S", 0),
            ("P0D", 0),
            ("pt1m", MINUTE_MS),
            ("PT2147483648S", 2_147_483_648 * SECOND_MS),
            ("PT00000000000000000000000000000000000000001S", SECOND_MS),
        ] {
            assert_eq!(parse(text), Ok(DurationMs(ms)), "{text}");
        }
    }

    #[test]
    fn the_smallest_unit_may_have_decimals_and_they_are_rounded_up() {
        for (text, ms) in [
            ("PT0.25S", 250),
            ("PT0,25S", 250),
            ("PT1.5H", 90 * MINUTE_MS),
            ("P0.5D", 12 * HOUR_MS),
            ("PT1M0.001S", MINUTE_MS + 1),
            ("PT0.0001S", 1),
            ("PT1.0000000001S", 1001),
            ("PT0.000000000000000001S", 1),
            ("P0.000000000000000001W", 1),
            ("PT1.000S", 1000),
        ] {
            assert_eq!(parse(text), Ok(DurationMs(ms)), "{text}");
        }
        for text in [
            "PT1.5H30M",
            "P0.5DT1H",
            "PT.5S",
            "PT1.S",
            "PT0.0000000000000000001S",
        ] {
            assert_eq!(parse(text), Err(DurationError::Malformed), "{text}");
        }
    }

    #[test]
    fn years_and_months_are_refused_by_name() {
        for text in ["P1Y", "P1M", "P11Y", "P1Y2M3DT4H", "p1m", "P1MT1M"] {
            assert_eq!(parse(text), Err(DurationError::CalendarUnit), "{text}");
        }
    }

    #[test]
    fn a_negative_length_is_refused_wherever_the_sign_stands() {
        for text in ["-PT1S", "PT-1S", "P-1D", "PT1H-30M", "-PT0S"] {
            assert_eq!(parse(text), Err(DurationError::Negative), "{text}");
        }
    }

    #[test]
    fn what_no_clock_can_count_is_refused_and_never_wraps() {
        let digits = "9".repeat(1000);
        for text in [
            "PT99999999999999999999S".to_owned(),
            "PT18446744073709551.616S".to_owned(),
            "P99999999999999999DT1S".to_owned(),
            format!("PT{digits}S"),
            format!("P{}W", u128::MAX),
        ] {
            assert_eq!(parse(&text), Err(DurationError::TooLong), "{text}");
        }
        assert_eq!(parse("PT18446744073709551.615S"), Ok(DurationMs(u64::MAX)));
    }

    #[test]
    fn anything_else_is_not_a_duration() {
        for text in [
            "", "P", "PT", "P1DT", "T1S", "soon", "-soon", "30", "1H", "P1H", "PT1D", "PT1W",
            "PT1", "PTS", "PT1S1M", "PT1S1S", "P1D1W", "PT1H T1M", " PT1S", "PT1S ", "+PT1S",
            "PT+1S", "PT1E3S", "PT1ſ", "PT١S", "PT1HT1M",
        ] {
            assert_eq!(parse(text), Err(DurationError::Malformed), "{text}");
        }
    }

    #[test]
    fn lengths_are_written_in_their_shortest_form() {
        for (ms, text) in [
            (0, "PT0S"),
            (1, "PT0.001S"),
            (250, "PT0.25S"),
            (1_000, "PT1S"),
            (10_000, "PT10S"),
            (60_500, "PT1M0.5S"),
            (90 * MINUTE_MS, "PT1H30M"),
            (DAY_MS, "P1D"),
            (3 * DAY_MS + 4 * HOUR_MS, "P3DT4H"),
            (DAY_MS + 1, "P1DT0.001S"),
            (3660 * DAY_MS, "P3660D"),
        ] {
            assert_eq!(format(DurationMs(ms)), text);
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back_unchanged(ms in prop_oneof![any::<u64>(), 0..=10 * DAY_MS]) {
            prop_assert_eq!(parse(&format(DurationMs(ms))), Ok(DurationMs(ms)));
        }

        #[test]
        fn no_text_makes_it_panic(text in "(P|p|-P)?[0-9.,WDTHMSY+-]{0,24}|.{0,12}") {
            let _ = parse(&text);
        }
    }
}
