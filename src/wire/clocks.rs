//! Time limits, in and out: each a duration, or a duration with what follows when it is over.

use std::ops::RangeInclusive;

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::DurationMs;
use crate::limits;
use crate::task::clocks::{TaskClock, Then, Thens};
use crate::task::spec::Timeouts;
use crate::task::topic::PartialTimeouts;
use crate::wire::action::{self, ActionBody};
use crate::wire::decode::{Node, Object, Shape, word_of};
use crate::wire::due::InLimits;
use crate::wire::time::Length;

/// Longest grace, in milliseconds.
const GRACE_MS_MAX: u64 = 10 * 60 * 1000;

const TIMEOUTS: Shape = Shape {
    fields: &["attempt", "grace", "total", "heartbeat", "queue"],
    not_built: &[],
};
const CLOCK: Shape = Shape {
    fields: &["after", "then"],
    not_built: &[],
};
const ESCALATION: Shape = Shape {
    fields: &["escalate"],
    not_built: &[],
};
const THEN: [(&str, Then); 3] = [
    ("retry", Then::Retry),
    ("dead", Then::Dead),
    ("alert", Then::Alert),
];
/// The clocks' words, as they stand in tasks that are exported, too.
pub(super) const TASK_CLOCKS: [(&str, TaskClock); 4] = [
    ("queue", TaskClock::Queue),
    ("attempt", TaskClock::Attempt),
    ("heartbeat", TaskClock::Heartbeat),
    ("total", TaskClock::Total),
];

/// Reads time limits, of which any may be missing.
pub(super) fn timeouts(node: Node<'_, '_>, limits: &InLimits) -> Option<PartialTimeouts> {
    let body = node.object(&TIMEOUTS)?;
    let mut thens = Vec::new();
    let grace = body.optional("grace", |node| {
        if node.is_object() {
            let detail = "must be a duration: what follows it is always the hard stop";
            return node.refuse("wrong_type", detail);
        }
        node.length(0..=GRACE_MS_MAX)
    });
    let any = 1..=limits.max_delay.0;
    let mut clock = |clock, range| length(&body, clock, range, &mut thens);
    Some(PartialTimeouts {
        attempt: clock(TaskClock::Attempt, limits::ATTEMPT_TIMEOUT_MS),
        grace,
        total: clock(TaskClock::Total, any.clone()),
        heartbeat: clock(TaskClock::Heartbeat, limits::LEASE_MS),
        queue: clock(TaskClock::Queue, any),
        then: Thens::new(thens),
    })
}

/// The length of a clock, if it is given; what follows is added to the others.
fn length(
    body: &Object<'_, '_>,
    clock: TaskClock,
    range: RangeInclusive<u64>,
    thens: &mut Vec<(TaskClock, Then)>,
) -> Option<DurationMs> {
    body.optional(clock.name(), |node| {
        if !node.is_object() {
            return node.length(range);
        }
        let body = node.object(&CLOCK)?;
        let after = body.required("after", |node| node.length(range));
        if let Some(then) = body.optional("then", then) {
            thens.push((clock, then));
        }
        after
    })
}

fn then(node: Node<'_, '_>) -> Option<Then> {
    if node.is_object() {
        let body = node.object(&ESCALATION)?;
        let action = body.required("escalate", action::action)?;
        return Some(Then::Escalate(Box::new(action)));
    }
    let known = THEN;
    let words = known.each_ref().map(|(word, then)| (*word, then));
    node.word(&words).cloned()
}

/// Time limits; what is missing is the topic's, else the default. Each but `grace` may say what follows when it is over.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Timeouts)]
pub struct TimeoutsBody<'a> {
    /// One attempt; for a pull the lease. Default `PT30S`, and then as `retry` says.
    attempt: Option<ClockBody<'a>>,
    /// From the cut-off to the hard stop. Default `PT2S`.
    grace: Option<Length>,
    /// All attempts of a generation, from its first due time. Default: no limit; then the task is dead.
    total: Option<ClockBody<'a>>,
    /// From one sign of life to the next: of a worker, of a handler that tells of its progress, of a receiver that completes
    /// the task later. Default: no limit; then as `retry` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat: Option<ClockBody<'a>>,
    /// While it is due and waits for a worker or a slot, but not while its topic is paused. Default: no limit; then the task
    /// is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<ClockBody<'a>>,
}

/// A time limit: a duration, or one with what follows.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Clock)]
#[serde(untagged)]
pub enum ClockBody<'a> {
    /// What follows is the default.
    After(Length),
    /// This follows.
    Then {
        /// The limit.
        after: Length,
        /// What follows when it is over.
        then: ThenBody<'a>,
    },
}

/// What follows when a time limit is over.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ThenAfterClock)]
#[serde(untagged)]
pub enum ThenBody<'a> {
    /// `retry`: another attempt, if any is left; of `queue` and `total` it counts as one. `dead`: the task is dead, as
    /// `timed_out`. `alert`: it is told of, once, and goes on.
    #[schema(value_type = String)]
    Word(&'static str),
    /// The task goes on with this action: at once, with attempts of its own, and once.
    Escalate {
        /// The action.
        #[schema(no_recursion)]
        escalate: ActionBody<'a>,
    },
}

impl<'a> From<&'a Then> for ThenBody<'a> {
    fn from(then: &'a Then) -> Self {
        match then {
            Then::Escalate(action) => Self::Escalate {
                escalate: (&**action).into(),
            },
            word => Self::Word(word_of(&THEN, word)),
        }
    }
}

fn shown(length: Option<DurationMs>, then: Option<&Then>) -> Option<ClockBody<'_>> {
    let after = Length(length?);
    Some(match then {
        None => ClockBody::After(after),
        Some(then) => ClockBody::Then {
            after,
            then: then.into(),
        },
    })
}

impl<'a> From<&'a PartialTimeouts> for TimeoutsBody<'a> {
    fn from(timeouts: &'a PartialTimeouts) -> Self {
        let then = |clock| timeouts.then.of(clock);
        Self {
            attempt: shown(timeouts.attempt, then(TaskClock::Attempt)),
            grace: timeouts.grace.map(Length),
            total: shown(timeouts.total, then(TaskClock::Total)),
            heartbeat: shown(timeouts.heartbeat, then(TaskClock::Heartbeat)),
            queue: shown(timeouts.queue, then(TaskClock::Queue)),
        }
    }
}

impl<'a> From<&'a Timeouts> for TimeoutsBody<'a> {
    fn from(timeouts: &'a Timeouts) -> Self {
        let then = |clock| timeouts.then.of(clock);
        Self {
            attempt: shown(Some(timeouts.attempt), then(TaskClock::Attempt)),
            grace: Some(Length(timeouts.grace)),
            total: shown(timeouts.total, then(TaskClock::Total)),
            heartbeat: shown(timeouts.heartbeat, then(TaskClock::Heartbeat)),
            queue: shown(timeouts.queue, then(TaskClock::Queue)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::decode::decode;
    use crate::wire::problem::Problem;
    use crate::wire::tests::{WIDE, properties, refused};

    fn read(json: &Value) -> Result<PartialTimeouts, Problem> {
        decode(json.to_string().as_bytes(), |node| timeouts(node, &WIDE))
    }

    #[test]
    fn time_limits_are_bounded_and_mistakes_are_told_at_their_place() {
        let given = read(&json!({"attempt": "PT10S", "grace": "PT0S", "total": "PT2H"})).unwrap();
        assert_eq!(given.total, Some(DurationMs::secs(7200)));
        assert_eq!(read(&json!({})).unwrap(), PartialTimeouts::default());
        for (json, pointer, code) in [
            (json!({"attempt": "PT0.009S"}), "/attempt", "out_of_range"),
            (json!({"attempt": "P2D"}), "/attempt", "out_of_range"),
            (json!({"grace": "PT11M"}), "/grace", "out_of_range"),
            (json!({"total": "PT0S"}), "/total", "out_of_range"),
            (json!({"total": "P3661D"}), "/total", "out_of_range"),
            (
                json!({"heartbeat": "PT0.01S"}),
                "/heartbeat",
                "out_of_range",
            ),
            (
                json!({"queue": {"then": "dead"}}),
                "/queue/after",
                "missing",
            ),
            (
                json!({"queue": {"after": "PT0S", "then": "dead"}}),
                "/queue/after",
                "out_of_range",
            ),
            (
                json!({"attempt": {"after": "PT5M", "then": "fail"}}),
                "/attempt/then",
                "unknown_value",
            ),
            (
                json!({"attempt": {"after": "PT5M", "then": {"escalate": {"fax": {}}}}}),
                "/attempt/then/escalate/fax",
                "unknown_field",
            ),
            (
                json!({"attempt": {"after": "PT5M", "than": "dead"}}),
                "/attempt/than",
                "unknown_field",
            ),
            (
                json!({"grace": {"after": "PT5S", "then": "dead"}}),
                "/grace",
                "wrong_type",
            ),
        ] {
            assert_eq!(refused(read(&json)), [(pointer.to_owned(), code)], "{json}");
        }
    }

    #[test]
    fn what_follows_a_clock_is_shown_as_it_was_given() {
        let given = json!({
            "attempt": {"after": "PT10S", "then": "alert"}, "grace": "PT2S",
            "total": {"after": "PT2H", "then": {"escalate": {"handler": {"name": "call-a-person"}}}},
            "heartbeat": {"after": "PT30S", "then": "retry"}, "queue": {"after": "PT5M", "then": "dead"},
        });
        let read = read(&given).unwrap();
        assert_eq!(
            serde_json::to_value(TimeoutsBody::from(&read)).unwrap(),
            given
        );
        let whole = read.over(Timeouts::default());
        assert_eq!(
            serde_json::to_value(TimeoutsBody::from(&whole)).unwrap(),
            given
        );
        let plain = json!({"attempt": "PT1S", "grace": null, "total": null, "queue": "PT5M"});
        let read = super::tests::read(&plain).unwrap();
        assert_eq!(
            serde_json::to_value(TimeoutsBody::from(&read)).unwrap(),
            plain
        );
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read_and_each_clock_has_its_word() {
        assert_eq!(properties::<TimeoutsBody<'_>>(), TIMEOUTS.fields);
        assert_eq!(
            TASK_CLOCKS.map(|(word, _)| word),
            TASK_CLOCKS.map(|(_, clock)| clock.name())
        );
    }
}
