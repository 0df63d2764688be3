//! From what a wall clock shows to an instant: one policy, for cron and for calendars.
//!
//! A zone's clocks jump. When they go forward there is a **gap** that no clock ever shows; when they go back there is
//! a **fold** that they show twice:
//!
//! ```text
//!  gap    01:59:59 │ 03:00:00           02:30 is never: it counts as the first instant behind the gap, 03:00
//!  fold   02:59:59 │ 02:00:00           02:30 comes twice: it counts once, at the first pass
//! ```
//!
//! So a wall time that is later never gives an earlier instant, and each wall time gives exactly one.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

use crate::clock::WallMs;

/// When a zone's clocks first show `local`, or, if they never do, the first instant behind the gap that it lies in.
/// `None` beyond the years that the calendar has.
pub fn first_pass(local: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(local).ok()
        }
        AmbiguousOffset::Gap { after, .. } => {
            // By the clocks behind the gap it is an instant before the jump.
            let before_jump = after.to_timestamp(local).ok()?;
            zone.following(before_jump)
                .next()
                .map(|jump| jump.timestamp())
        }
    }
}

/// The instant in milliseconds. Whole seconds never need rounding.
pub fn wall(at: Timestamp) -> WallMs {
    WallMs(at.as_millisecond())
}

/// The instant as the calendar library has it; `None` beyond its years.
pub fn timestamp(at: WallMs) -> Option<Timestamp> {
    Timestamp::from_millisecond(at.0).ok()
}
