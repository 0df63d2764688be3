//! Cron patterns: the preview of a pattern's next times.

use serde::Serialize;
use utoipa::ToSchema;

use crate::rule::Cron;
use crate::wire::decode::{Node, Shape, decode};
use crate::wire::due::{InLimits, zone};
use crate::wire::problem::Problem;
use crate::wire::time::{self, Time};

/// Most times of one preview.
pub(super) const TIMES_MAX: u64 = 1_000;
/// Times of a preview that names no number.
pub(super) const TIMES_DEFAULT: u64 = 10;
/// Longest pattern that is looked at, in bytes; a longer one is refused as such.
const TEXT_BYTES_MAX: usize = 4 * 1024;

const PREVIEW: Shape = Shape {
    fields: &["cron", "tz", "after", "count"],
    not_built: &[],
};

/// Body of `POST /v1/preview/cron`.
#[derive(Debug, ToSchema)]
#[schema(example = json!({"cron": "30 9 * * MON-FRI", "tz": "Europe/Berlin", "after": "2026-12-01T00:00:00Z", "count": 3}))]
pub struct PreviewCron {
    /// Minute, hour, day of month, month, day of week; with a sixth field in front, the second.
    pub cron: String,
    /// Whose clocks count; default `UTC`.
    pub tz: Option<String>,
    /// Times strictly after this one; default now.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub after: Option<Time>,
    /// How many; default 10.
    #[schema(minimum = 1, maximum = 1000)]
    pub count: Option<u32>,
}

/// When something happens next.
#[derive(Debug, Serialize, ToSchema)]
pub struct Times {
    /// In order. Fewer than were asked for only when it ends.
    pub times: Vec<Time>,
}

/// Reads a pattern.
pub(super) fn pattern(node: Node<'_, '_>) -> Option<Cron> {
    match Cron::parse(&node.line(TEXT_BYTES_MAX)?) {
        Ok(cron) => Some(cron),
        Err(flaw) => node.refuse(flaw.code(), flaw.to_string()),
    }
}

/// Reads `{cron, tz, after, count}` and answers the next times. May take milliseconds.
///
/// # Errors
/// 400, 422.
pub fn preview(bytes: &[u8], limits: &InLimits) -> Result<Times, Problem> {
    decode(bytes, |node| {
        let body = node.object(&PREVIEW)?;
        let cron = body.required("cron", pattern);
        let zone = match body.has("tz") {
            true => body.optional("tz", zone),
            false => Some(jiff::tz::TimeZone::UTC),
        };
        let after = match body.has("after") {
            true => body.optional("after", |node| {
                // UTC is meant only when it is named.
                time::read(node, zone.as_ref().filter(|_| body.has("tz")))
            }),
            false => Some(limits.now),
        };
        let count = match body.has("count") {
            true => body.optional("count", |node| node.whole(1..=TIMES_MAX)),
            false => Some(TIMES_DEFAULT),
        };
        let (cron, zone, after, count) = (cron?, zone?, after?, count?);
        let times = cron.times(after, &zone).take(count as usize);
        let times: Vec<Time> = times.map(Time).collect();
        if times.is_empty() {
            let detail = "never fires after that by the clocks of this zone";
            return body.refuse("cron", "never_fires", detail);
        }
        Some(Times { times })
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::tests::{WIDE, properties, refused};

    #[test]
    fn the_next_times_are_answered() {
        let body = json!({"cron": "0 2 * * *", "tz": "Europe/Berlin", "after": "2027-10-29T12:00:00Z", "count": 3});
        let answered = preview(body.to_string().as_bytes(), &WIDE).unwrap();
        assert_eq!(
            serde_json::to_value(answered).unwrap(),
            json!({"times": ["2027-10-30T00:00:00.000Z", "2027-10-31T00:00:00.000Z", "2027-11-01T01:00:00.000Z"]})
        );
        let answered = preview(br#"{"cron": "* * * * *"}"#, &WIDE).unwrap();
        assert_eq!(answered.times.len(), 10);
        assert_eq!(
            serde_json::to_value(answered.times[0]).unwrap(),
            json!("2026-11-30T00:54:00.000Z")
        );
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_field() {
        for (body, pointer, code) in [
            (json!({}), "/cron", "missing"),
            (json!({"cron": ""}), "/cron", "empty"),
            (json!({"cron": "60 * * * *"}), "/cron", "invalid_cron"),
            (json!({"cron": "0 0 30 2 *"}), "/cron", "never_fires"),
            (
                json!({"cron": "0 2 ? 3 SUNL", "tz": "Europe/Berlin", "after": "9999-12-01T00:00:00"}),
                "/cron",
                "never_fires",
            ),
            (
                json!({"cron": "*/9 2 ? 3 SUNL", "tz": "Europe/Berlin"}),
                "/cron",
                "never_fires",
            ),
            (
                json!({"cron": "* * * * *", "tz": "Mars/Olympus"}),
                "/tz",
                "unknown_zone",
            ),
            (
                json!({"cron": "* * * * *", "after": "2027-01-01T00:00:00"}),
                "/after",
                "offset_missing",
            ),
            (
                json!({"cron": "* * * * *", "count": 0}),
                "/count",
                "out_of_range",
            ),
            (
                json!({"cron": "* * * * *", "count": 1_000_000_000}),
                "/count",
                "out_of_range",
            ),
        ] {
            let body = body.to_string();
            assert_eq!(
                refused(preview(body.as_bytes(), &WIDE)),
                [(pointer.to_owned(), code)],
                "{body}"
            );
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<PreviewCron>(), PREVIEW.fields);
    }
}
