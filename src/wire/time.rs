//! Instants and lengths as text: RFC 3339 in and out, ISO 8601 durations out.
//!
//! ```text
//!  2026-12-01T11:30:00.25+01:00        in: any offset, any decimals (finer than a millisecond is rounded up)
//!  2026-12-01T11:30:00 and a zone      in: what the zone's clocks show
//!  2026-12-01T10:30:00.250Z            out: UTC, always three decimals
//! ```
//!
//! A time without an offset means something else on every machine, so it is refused unless a time zone stands
//! beside it. A zone's clocks jump twice a year; one policy for both, as most calendars have it:
//!
//! - in the **gap** (02:30 when clocks go from 02:00 to 03:00) the time is taken as far behind the gap: 03:30;
//! - in the **fold** (02:30 when clocks go back from 03:00 to 02:00) it is the earlier of the two.
//!
//! Years are 0 to 9999, up to what the calendar library takes (the end of 30 December 9999, 22:00 UTC).

use std::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::clock::{DurationMs, WallMs};
use crate::task::duration;
use crate::wire::decode::Node;

/// Why a text is not an instant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimeError {
    /// Not written as RFC 3339 asks.
    #[error("is not an RFC 3339 time such as 2026-12-01T10:30:00Z or 2026-12-01T11:30:00+01:00")]
    Malformed,
    /// No calendar or clock shows it.
    #[error("does not exist: {0}")]
    Impossible(String),
    /// No offset, and no zone beside it.
    #[error("has no offset; write {0}Z or {0}+01:00, or name a time zone in `tz`")]
    OffsetMissing(String),
    /// The zone's clocks show another offset then.
    #[error("has an offset that {0} does not have then; leave out one of them")]
    OffsetConflict(String),
}

impl TimeError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed => "invalid_time",
            Self::Impossible(_) => "impossible_time",
            Self::OffsetMissing(_) => "offset_missing",
            Self::OffsetConflict(_) => "offset_conflict",
        }
    }
}

/// The time zone with this IANA name.
pub fn zone(name: &str) -> Option<TimeZone> {
    TimeZone::get(name).ok()
}

/// Reads an instant. `zone` is what stands beside it.
///
/// # Errors
/// See [`TimeError`].
pub fn parse(text: &str, zone: Option<&TimeZone>) -> Result<WallMs, TimeError> {
    let written = Written::read(text).ok_or(TimeError::Malformed)?;
    let impossible = |error: jiff::Error| TimeError::Impossible(error.to_string());
    let civil = written.civil().map_err(impossible)?;
    let at = match (written.offset_s, zone) {
        (Some(offset_s), zone) => {
            let offset = Offset::from_seconds(offset_s).map_err(impossible)?;
            let at = offset.to_timestamp(civil).map_err(impossible)?;
            if let Some(zone) = zone
                && zone.to_offset(at) != offset
            {
                let name = zone.iana_name().unwrap_or("the time zone");
                return Err(TimeError::OffsetConflict(name.to_owned()));
            }
            at
        }
        (None, Some(zone)) => zone
            .to_ambiguous_timestamp(civil)
            .compatible()
            .map_err(impossible)?,
        (None, None) => return Err(TimeError::OffsetMissing(text.to_owned())),
    };
    let leap = SignedDuration::from_secs(i64::from(written.second == 60));
    let at = at.checked_add(leap).map_err(impossible)?;
    let part_ms = i64::from(at.as_nanosecond().rem_euclid(1_000_000) > 0);
    let whole_ms = at.as_nanosecond().div_euclid(1_000_000);
    Ok(WallMs(
        i64::try_from(whole_ms)
            .unwrap_or(i64::MAX)
            .saturating_add(part_ms),
    ))
}

/// Reads an instant of a body. One without an offset is what the zone's clocks show.
pub(super) fn read(node: Node<'_, '_>, zone: Option<&TimeZone>) -> Option<WallMs> {
    let text = node.text()?;
    let mut read = parse(&text, None);
    if zone.is_some() && matches!(read, Err(TimeError::OffsetMissing(_))) {
        read = parse(&text, zone);
    }
    match read {
        Ok(at) => Some(at),
        Err(error) => node.refuse(error.code(), error.to_string()),
    }
}

/// The parts of a time, as they are written.
struct Written {
    year: i16,
    month: i8,
    day: i8,
    hour: i8,
    minute: i8,
    second: i8,
    nanos: i32,
    offset_s: Option<i32>,
}

impl Written {
    /// `YYYY-MM-DDTHH:MM:SS`, decimals, and `Z`, an offset or nothing.
    fn read(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let (fixed, mut rest) = bytes.split_at_checked(19)?;
        let two = |at: usize| number(&fixed[at..at + 2]).map(|n| n as i8);
        let marks = [
            fixed[4],
            fixed[7],
            fixed[10].to_ascii_uppercase(),
            fixed[13],
            fixed[16],
        ];
        if !matches!(&marks, b"--T::" | b"-- ::") {
            return None;
        }
        let mut nanos = 0;
        if let Some((b'.', decimals)) = rest.split_first() {
            let count = decimals
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            let (digits, behind) = decimals.split_at(count);
            nanos = nanos_of(digits)?;
            rest = behind;
        }
        Some(Self {
            year: number(&fixed[..4])? as i16,
            month: two(5)?,
            day: two(8)?,
            hour: two(11)?,
            minute: two(14)?,
            second: two(17)?,
            nanos,
            offset_s: offset(rest)?,
        })
    }

    fn civil(&self) -> Result<DateTime, jiff::Error> {
        // A leap second is the first of the next minute to all clocks that have none.
        let second = if self.second == 60 { 59 } else { self.second };
        DateTime::new(
            self.year,
            self.month,
            self.day,
            self.hour,
            self.minute,
            second,
            self.nanos,
        )
    }
}

fn number(digits: &[u8]) -> Option<i32> {
    digits.iter().try_fold(0, |number, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + i32::from(digit - b'0'))
    })
}

/// Decimals of a second as nanoseconds; what is finer counts as one more, so that it is rounded up later.
fn nanos_of(decimals: &[u8]) -> Option<i32> {
    let (nano_digits, finer) = decimals.split_at(decimals.len().min(9));
    if nano_digits.is_empty() {
        return None;
    }
    let scale = 10_i32.pow(9 - nano_digits.len() as u32);
    let nanos = number(nano_digits)? * scale;
    let up = finer.iter().any(|digit| *digit != b'0') && nanos % 1_000_000 == 0;
    Some(nanos + i32::from(up))
}

/// The offset in seconds; `Some(None)` when there is none at all.
fn offset(text: &[u8]) -> Option<Option<i32>> {
    match text {
        b"" => Some(None),
        b"Z" | b"z" => Some(Some(0)),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
            let seconds = hours * 3600 + minutes * 60;
            (hours < 24 && minutes < 60).then_some(Some(if *sign == b'-' {
                -seconds
            } else {
                seconds
            }))
        }
        _ => None,
    }
}

/// An instant as the API shows it: `2026-12-01T10:30:00.000Z`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-12-01T10:30:00.000Z")]
pub struct Time(pub WallMs);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A length of time as the API shows it: `PT30M`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ToSchema)]
#[schema(value_type = String, format = "duration", example = "PT30M")]
pub struct Length(pub DurationMs);

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration::format(self.0))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str, tz: Option<&str>) -> Result<String, &'static str> {
        let zone = tz.map(|name| zone(name).unwrap());
        parse(text, zone.as_ref())
            .map(|at| Time(at).to_string())
            .map_err(|error| error.code())
    }

    #[test]
    fn times_are_shown_in_utc_with_three_decimals() {
        for (text, out) in [
            ("2026-12-01T10:30:00Z", "2026-12-01T10:30:00.000Z"),
            ("2026-12-01t10:30:00z", "2026-12-01T10:30:00.000Z"),
            ("2026-12-01 10:30:00Z", "2026-12-01T10:30:00.000Z"),
            ("2027-06-01T12:00:00+01:00", "2027-06-01T11:00:00.000Z"),
            ("2027-06-01T00:30:00.25-05:30", "2027-06-01T06:00:00.250Z"),
            ("2027-01-25T20:31:23.647Z", "2027-01-25T20:31:23.647Z"),
            ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000Z"),
            ("2028-02-29T00:00:00-00:00", "2028-02-29T00:00:00.000Z"),
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(shown(text, None).as_deref(), Ok(out), "{text}");
        }
    }

    #[test]
    fn what_is_finer_than_a_millisecond_is_rounded_up() {
        for (decimals, out) in [
            ("0001", "00.001"),
            ("000000001", "00.001"),
            ("0000000000000000000001", "00.001"),
            ("0000000000", "00.000"),
            ("1230000000000", "00.123"),
            ("1230000000001", "00.124"),
            ("9999", "01.000"),
        ] {
            let text = format!("2026-12-01T10:30:00.{decimals}Z");
            assert_eq!(
                shown(&text, None),
                Ok(format!("2026-12-01T10:30:{out}Z")),
                "{decimals}"
            );
        }
        assert_eq!(
            shown("1969-12-31T23:59:59.0001Z", None).as_deref(),
            Ok("1969-12-31T23:59:59.001Z")
        );
    }

    #[test]
    fn a_time_without_offset_is_refused_and_told_what_to_write() {
        let error = parse("2027-06-01T12:00:00", None).unwrap_err();
        assert_eq!(error.code(), "offset_missing");
        assert_eq!(
            error.to_string(),
            "has no offset; write 2027-06-01T12:00:00Z or 2027-06-01T12:00:00+01:00, or name a time zone in `tz`"
        );
    }

    #[test]
    fn a_zone_gives_the_offset_later_in_a_gap_and_earlier_in_a_fold() {
        let berlin = Some("Europe/Berlin");
        for (text, out) in [
            ("2027-06-01T12:00:00", "2027-06-01T10:00:00.000Z"),
            ("2027-03-28T02:30:00", "2027-03-28T01:30:00.000Z"),
            ("2027-10-31T02:30:00", "2027-10-31T00:30:00.000Z"),
            ("2027-10-31T02:30:00+01:00", "2027-10-31T01:30:00.000Z"),
        ] {
            assert_eq!(shown(text, berlin).as_deref(), Ok(out), "{text}");
        }
        assert_eq!(
            shown("2027-06-01T12:00:00", Some("Europe/London")).as_deref(),
            Ok("2027-06-01T11:00:00.000Z")
        );
        assert_eq!(
            shown("2027-06-01T12:00:00+01:00", berlin),
            Err("offset_conflict")
        );
        assert!(zone("Middle/Earth").is_none());
    }

    #[test]
    fn impossible_dates_are_refused() {
        for text in [
            "2027-02-30T12:00:00Z",
            "2027-13-01T12:00:00Z",
            "2027-00-01T12:00:00Z",
            "2027-01-01T24:00:00Z",
            "2027-01-01T12:60:00Z",
            "2027-01-01T12:00:61Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(shown(text, None), Err("impossible_time"), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_time() {
        for text in [
            "",
            "tomorrow",
            "2027-06-01",
            "2027-06-01T12:00Z",
            "2027-06-01T12:00:00 Z",
            "2027-06-01T12:00:00+0100",
            "2027-06-01T12:00:00+24:00",
            "2027-06-01T12:00:00.Z",
            "2027-06-01T12:00:00,5Z",
            "2027-6-1T12:00:00Z",
            "+02027-06-01T12:00:00Z",
            "2027-06-01T12:00:00Z[Europe/London]",
            "1796121000",
            "2027-06-01T1२:00:00Z",
        ] {
            assert_eq!(shown(text, None), Err("invalid_time"), "{text}");
        }
    }

    #[test]
    fn instants_beyond_the_calendar_are_shown_at_its_ends() {
        assert_eq!(
            Time(WallMs(i64::MIN)).to_string(),
            "0000-01-01T00:00:00.000Z"
        );
        assert_eq!(
            Time(WallMs(i64::MAX)).to_string(),
            "9999-12-30T22:00:00.000Z"
        );
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back_unchanged(at in crate::clock::SHOWN_MS) {
            prop_assert_eq!(parse(&Time(WallMs(at)).to_string(), None), Ok(WallMs(at)));
        }

        #[test]
        fn the_calendar_library_agrees(at in crate::clock::SHOWN_MS) {
            let theirs = jiff::Timestamp::from_millisecond(at).unwrap();
            prop_assert_eq!(Time(WallMs(at)).to_string(), format!("{theirs:.3}"));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.+Zz-]{0,40}|.{0,30}") {
            let _ = parse(&text, TimeZone::get("Europe/Berlin").ok().as_ref());
        }
    }
}
