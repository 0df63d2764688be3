//! When: `due_at` with `tz` beside it, or `delay`.

use crate::clock::{DurationMs, WallMs};
use crate::task::When;
use crate::wire::decode::{Node, Object};
use crate::wire::time;

/// What bounds a body's times.
#[derive(Clone, Copy, Debug)]
pub struct InLimits {
    /// How far ahead a due time may lie.
    pub max_delay: DurationMs,
    /// The time.
    pub now: WallMs,
}

/// Reads the fields `due_at`, `tz` and `delay`; `None` when there is no time, or it is wrong and noted.
pub(super) fn when(body: &Object<'_, '_>, limits: &InLimits) -> Option<When> {
    let zone = body.optional("tz", zone);
    let zone_is_wrong = body.has("tz") && zone.is_none();
    if body.has("tz") && !body.has("due_at") {
        return body.refuse("tz", "conflict", "only goes with `due_at`");
    }
    if body.has("due_at") && body.has("delay") {
        return body.refuse(
            "delay",
            "conflict",
            "stands beside `due_at`; give one of them",
        );
    }
    if zone_is_wrong {
        return None;
    }
    let at = body
        .optional("due_at", |node| due_at(node, zone.as_ref(), limits))
        .map(When::At);
    at.or_else(|| {
        body.optional("delay", |node| delay(node, limits))
            .map(When::After)
    })
}

fn due_at(
    node: Node<'_, '_>,
    zone: Option<&jiff::tz::TimeZone>,
    limits: &InLimits,
) -> Option<WallMs> {
    match time::parse(&node.text()?, zone) {
        Ok(at) if at > limits.now.after(limits.max_delay) => {
            let detail = format!(
                "must be at most {} ahead",
                crate::task::duration::format(limits.max_delay)
            );
            node.refuse("out_of_range", detail)
        }
        Ok(at) => Some(at),
        Err(error) => node.refuse(error.code(), error.to_string()),
    }
}

/// Reads the name of a time zone.
pub(super) fn zone(node: Node<'_, '_>) -> Option<jiff::tz::TimeZone> {
    let name = node.line(64)?;
    let unknown = || {
        node.refuse(
            "unknown_zone",
            "is no time zone of the IANA database such as Europe/Berlin",
        )
    };
    time::zone(&name).or_else(unknown)
}

/// Reads a delay.
pub(super) fn delay(node: Node<'_, '_>, limits: &InLimits) -> Option<DurationMs> {
    node.length(0..=limits.max_delay.0)
}
