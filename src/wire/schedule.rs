//! Schedules: the body of `PUT /v1/schedules/{name}`, a schedule as it is answered, and the preview of its times.
//!
//! An answer's fields are the body's, so what was read can be changed and put back, but for `name`, `version`, `paused`,
//! `next`, `last` and `runs`.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::clock::WallMs;
use crate::rule::Schedule;
use crate::rule::schedule::{CatchUp, Overlap, Rhythm};
use crate::task::TopicName;
use crate::task::spec::ResourceName;
use crate::wire::action::{self, ActionBody};
use crate::wire::cron::{self, TIMES_DEFAULT, TIMES_MAX, Times};
use crate::wire::decode::{Shape, decode, word_of};
use crate::wire::due::{self, InLimits};
use crate::wire::problem::Problem;
use crate::wire::task_out::embedded;
use crate::wire::time::{self, Length, Time};

const SCHEDULE: Shape = Shape {
    fields: &[
        "cron", "every", "tz", "topic", "action", "payload", "catch_up", "overlap", "jitter",
        "start", "end", "count",
    ],
    not_built: &[],
};
const RHYTHMS: &[&str] = &["cron", "every"];
const CATCH_UP: [(&str, CatchUp); 3] = [
    ("none", CatchUp::None),
    ("latest", CatchUp::Latest),
    ("all", CatchUp::All),
];
const OVERLAP: [(&str, Overlap); 3] = [
    ("skip", Overlap::Skip),
    ("queue", Overlap::Queue),
    ("allow", Overlap::Allow),
];
/// Shortest length between two, in milliseconds: as with cron.
const EVERY_MS_MIN: u64 = 1_000;
/// Most jitter, in milliseconds.
const JITTER_MS_MAX: u64 = 24 * 3600 * 1000;
/// Largest payload, in bytes: it stands in the schedule's own record.
const PAYLOAD_BYTES_MAX: usize = 8 * 1024;

/// Reads the body of `PUT /v1/schedules/{name}`.
///
/// # Errors
/// 400, 422; `never_fires` for a cron that never does.
pub fn schedule(bytes: &[u8], limits: &InLimits) -> Result<Schedule, Problem> {
    decode(bytes, |node| {
        let body = node.object(&SCHEDULE)?;
        let rhythm = body.one_of(RHYTHMS).and_then(|rhythm| match rhythm {
            "cron" => body.required("cron", cron::pattern).map(Rhythm::Cron),
            _ => body
                .required("every", |node| {
                    node.length(EVERY_MS_MIN..=limits.max_delay.0)
                })
                .map(Rhythm::Every),
        });
        let zone = match body.has("tz") {
            true => body.optional("tz", due::zone),
            false => Some(jiff::tz::TimeZone::UTC),
        };
        let named = zone.as_ref().filter(|_| body.has("tz"));
        let instant = |name| body.optional(name, |node| time::read(node, named));
        let (start, end) = (instant("start"), instant("end"));
        let topic = body.required("topic", |node| node.name(TopicName::parse));
        let schedule = Schedule {
            action: body.optional("action", action::action),
            payload: body.optional("payload", |node| node.raw(PAYLOAD_BYTES_MAX)),
            catch_up: body
                .optional("catch_up", |node| node.word(&CATCH_UP))
                .unwrap_or_default(),
            overlap: body
                .optional("overlap", |node| node.word(&OVERLAP))
                .unwrap_or_default(),
            jitter: body
                .optional("jitter", |node| node.length(0..=JITTER_MS_MAX))
                .unwrap_or_default(),
            start,
            end,
            count: body.optional("count", |node| node.whole(1..=u64::MAX)),
            rhythm: rhythm?,
            zone: zone?,
            topic: topic?,
        };
        // When it was put counts for nothing here: what has passed stays allowed.
        match schedule.next(WallMs(0), WallMs(0)) {
            Some(_) => Some(schedule),
            None => body.refuse(
                if body.has("end") { "end" } else { "cron" },
                "never_fires",
                "leaves no time at which it fires",
            ),
        }
    })
}

/// Body of `PUT /v1/schedules/{name}`.
#[derive(Debug, ToSchema)]
#[schema(example = json!({
    "cron": "0 2 * * *", "tz": "Europe/Berlin", "topic": "report.nightly",
    "action": {"http": {"url": "http://127.0.0.1:9000/report"}}, "catch_up": "latest",
}))]
pub struct PutSchedule {
    /// When it repeats, by the zone's clocks; or `every`.
    pub cron: Option<String>,
    /// The length between two, of a second or more; or `cron`. Counted from `start`, else from this PUT.
    #[schema(inline = false)]
    pub every: Option<Length>,
    /// Whose clocks count; default `UTC`.
    pub tz: Option<String>,
    /// The topic of its tasks.
    pub topic: String,
    /// What is done; default the topic's.
    pub action: Option<ActionBody<'static>>,
    /// Handed to the action: any JSON of at most 8 KiB.
    pub payload: Option<serde_json::Value>,
    /// Of occurrences that passed while the service was down: `none` (default), the `latest` or `all` are made up for.
    pub catch_up: Option<String>,
    /// While the one before has not ended: `skip` (default), `queue` or `allow`.
    pub overlap: Option<String>,
    /// Each is due up to so much later; default none.
    #[schema(inline = false)]
    pub jitter: Option<Length>,
    /// None before it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub start: Option<Time>,
    /// None after it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub end: Option<Time>,
    /// So many in all.
    #[schema(minimum = 1)]
    pub count: Option<u64>,
}

/// How far a schedule is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// It is held.
    pub is_paused: bool,
    /// Its next occurrence.
    pub next: Option<WallMs>,
    /// The latest that ran.
    pub last: Option<WallMs>,
    /// How many have run since it was put.
    pub runs: u64,
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleOut<'a> {
    #[schema(value_type = String)]
    name: &'a str,
    /// Grows with each PUT.
    version: u64,
    /// It starts nothing until it is resumed.
    paused: bool,
    /// Its next occurrence.
    next: Option<Time>,
    /// The latest that ran.
    last: Option<Time>,
    /// How many have run since it was put.
    runs: u64,
    #[schema(value_type = Option<String>)]
    cron: Option<&'a str>,
    every: Option<Length>,
    tz: String,
    #[schema(value_type = String)]
    topic: &'a str,
    action: Option<ActionBody<'a>>,
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    #[schema(value_type = String)]
    catch_up: &'static str,
    #[schema(value_type = String)]
    overlap: &'static str,
    jitter: Length,
    start: Option<Time>,
    end: Option<Time>,
    count: Option<u64>,
}

impl<'a> ScheduleOut<'a> {
    /// The schedule of that name.
    pub fn new(
        name: &'a ResourceName,
        version: u64,
        schedule: &'a Schedule,
        progress: Progress,
    ) -> Self {
        let (cron, every) = match &schedule.rhythm {
            Rhythm::Cron(cron) => (Some(cron.as_str()), None),
            Rhythm::Every(length) => (None, Some(Length(*length))),
        };
        Self {
            name: name.as_str(),
            version,
            paused: progress.is_paused,
            next: progress.next.map(Time),
            last: progress.last.map(Time),
            runs: progress.runs,
            cron,
            every,
            tz: schedule.zone.iana_name().unwrap_or("UTC").to_owned(),
            topic: schedule.topic.as_str(),
            action: schedule.action.as_ref().map(ActionBody::from),
            payload: embedded(schedule.payload.as_ref()),
            catch_up: word_of(&CATCH_UP, &schedule.catch_up),
            overlap: word_of(&OVERLAP, &schedule.overlap),
            jitter: Length(schedule.jitter),
            start: schedule.start.map(Time),
            end: schedule.end.map(Time),
            count: schedule.count,
        }
    }
}

/// Reads `?after=&count=` and answers a schedule's next times.
///
/// # Errors
/// 422.
pub fn preview(
    schedule: &Schedule,
    anchor: WallMs,
    query: &[(String, String)],
    now: WallMs,
) -> Result<Times, Problem> {
    let find = |wanted: &str| query.iter().find(|(name, _)| name == wanted);
    let after = match find("after") {
        Some((_, text)) => time::parse(text, None)
            .map_err(|error| Problem::of_field("/after", error.code(), error.to_string()))?,
        None => now,
    };
    let count = match find("count") {
        Some((_, text)) => text
            .parse()
            .ok()
            .filter(|count| (1..=TIMES_MAX).contains(count)),
        None => Some(TIMES_DEFAULT),
    };
    let count = count.ok_or_else(|| {
        let detail = format!("must be a whole number from 1 to {TIMES_MAX}");
        Problem::of_field("/count", "out_of_range", detail)
    })?;
    let next = |after: &WallMs| schedule.next(*after, anchor);
    let times = std::iter::successors(next(&after), next).take(count as usize);
    let times = times.map(Time).collect();
    Ok(Times { times })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::tests::{WIDE, properties, refused};

    fn read(body: &Value) -> Result<Schedule, Problem> {
        schedule(body.to_string().as_bytes(), &WIDE)
    }

    #[test]
    fn what_is_put_is_answered_with_name_version_and_progress() {
        let body = json!({
            "cron": "0 2 * * *", "every": null, "tz": "Europe/Berlin", "topic": "report.nightly",
            "action": {"http": {"url": "http://a/b", "method": "POST", "headers": {}, "expect_status": []}},
            "payload": {"a": 1}, "catch_up": "latest", "overlap": "queue", "jitter": "PT10S",
            "start": "2026-12-01T00:00:00.000Z", "end": "2027-12-01T00:00:00.000Z", "count": 7,
        });
        let schedule = read(&body).unwrap();
        let name = ResourceName::parse("nightly").unwrap();
        let progress = Progress {
            is_paused: true,
            next: None,
            last: Some(WallMs(0)),
            runs: 4,
        };
        let answered = serde_json::to_value(ScheduleOut::new(&name, 3, &schedule, progress));
        let mut expected = body;
        for (field, value) in [
            ("name", json!("nightly")),
            ("version", json!(3)),
            ("paused", json!(true)),
            ("next", Value::Null),
            ("last", json!("1970-01-01T00:00:00.000Z")),
            ("runs", json!(4)),
        ] {
            expected[field] = value;
        }
        assert_eq!(answered.unwrap(), expected);
    }

    #[test]
    fn times_of_a_schedule_are_previewed() {
        let schedule =
            read(&json!({"every": "PT10M", "topic": "t", "end": "2026-12-01T00:30:00Z"})).unwrap();
        let anchor = WallMs(1_796_083_200_000); // 2026-12-01T00:00:00Z
        let query = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let times = |pairs: &[(&str, &str)]| preview(&schedule, anchor, &query(pairs), anchor);
        let all = times(&[]).unwrap();
        assert_eq!(
            serde_json::to_value(all).unwrap(),
            json!({"times": ["2026-12-01T00:10:00.000Z", "2026-12-01T00:20:00.000Z", "2026-12-01T00:30:00.000Z"]})
        );
        let one = times(&[("after", "2026-12-01T00:10:00Z"), ("count", "1")]).unwrap();
        assert_eq!(one.times.len(), 1);
        for (name, value, code) in [
            ("after", "tomorrow", "invalid_time"),
            ("count", "0", "out_of_range"),
            ("count", "x", "out_of_range"),
        ] {
            let refused = times(&[(name, value)]).unwrap_err();
            assert_eq!(refused.errors[0].code, code);
        }
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_field() {
        for (body, pointer, code) in [
            (json!({"topic": "t"}), "", "missing"),
            (json!({"cron": "* * * * *"}), "/topic", "missing"),
            (
                json!({"cron": "* * * * *", "every": "PT1M", "topic": "t"}),
                "/every",
                "conflict",
            ),
            (
                json!({"cron": "* * * *", "topic": "t"}),
                "/cron",
                "invalid_cron",
            ),
            (
                json!({"cron": "0 0 31 4 *", "topic": "t"}),
                "/cron",
                "never_fires",
            ),
            (
                json!({"every": "PT0.9S", "topic": "t"}),
                "/every",
                "out_of_range",
            ),
            (
                json!({"cron": "* * * * *", "topic": "t", "tz": "Mars/Olympus"}),
                "/tz",
                "unknown_zone",
            ),
            (
                json!({"cron": "* * * * *", "topic": "t", "start": "2026-12-01T00:00:00"}),
                "/start",
                "offset_missing",
            ),
            (
                json!({"cron": "* * * * *", "topic": "t", "catch_up": "some"}),
                "/catch_up",
                "unknown_value",
            ),
            (
                json!({"cron": "* * * * *", "topic": "t", "count": 0}),
                "/count",
                "out_of_range",
            ),
            (
                json!({"cron": "* * * * *", "topic": "t", "start": "2027-12-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}),
                "/end",
                "never_fires",
            ),
        ] {
            assert_eq!(refused(read(&body)), [(pointer.to_owned(), code)], "{body}");
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<PutSchedule>(), SCHEDULE.fields);
    }
}
