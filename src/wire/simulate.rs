//! What-ifs: the body of `POST /v1/simulate`, and what would happen, as it is answered.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::{DurationMs, WallMs};
use crate::ids::TaskId;
use crate::limits;
use crate::shard::play::{
    Assumption, Assumptions, Bucket, Ends, Peak, Played, PlayedEvent, Until, WhatIf,
};
use crate::shard::query::TaskFilter;
use crate::task::spec::{ByTopic, NameError, ResourceName, StageName, TaskKey, TopicName};
use crate::wire::calendar::calendar;
use crate::wire::decode::{Node, Object, Shape, decode};
use crate::wire::due::InLimits;
use crate::wire::list;
use crate::wire::problem::Problem;
use crate::wire::rule::rule;
use crate::wire::schedule::schedule;
use crate::wire::task_in::new_task;
use crate::wire::time::{self, Length, Time};
use crate::wire::topic::settings;

const WHAT_IF: Shape = Shape {
    fields: &[
        "from",
        "until",
        "for",
        "tasks",
        "topics",
        "rules",
        "calendars",
        "schedules",
        "filter",
        "assume",
        "bucket",
        "limit",
        "seed",
    ],
    not_built: &[],
};
const ASSUMPTION: Shape = Shape {
    fields: &["ends", "share", "code", "takes"],
    not_built: &[],
};
const ENDS: [(&str, Ends); 3] = [
    ("succeed", Ends::Succeed),
    ("fail", Ends::Fail),
    ("timeout", Ends::TimeOut),
];
/// How long it goes on, unless it is said.
const LENGTH: DurationMs = DurationMs::secs(24 * 3600);
/// Most topics, rules, calendars or schedules that are given, and most topics of which something is assumed.
const GIVEN_MAX: usize = 100;
/// Most events that are listed.
const EVENTS_MAX: u64 = 10_000;
/// Narrowest and widest bucket, in milliseconds.
const BUCKET_MS: RangeInclusive<u64> = 1_000..=31 * 24 * 3600 * 1000;
/// Longest that an attempt is assumed to take, in milliseconds.
const TAKES_MS_MAX: u64 = 31 * 24 * 3600 * 1000;
/// Most bytes of a name of an error.
const CODE_BYTES_MAX: usize = 128;

/// Reads the body of `POST /v1/simulate`.
///
/// # Errors
/// 400, 422.
pub fn what_if(bytes: &[u8], limits: &InLimits) -> Result<WhatIf, Problem> {
    decode(bytes, |node| {
        let body = node.object(&WHAT_IF)?;
        let from = body.optional("from", |node| time::read(node, None));
        // What is given comes in then.
        let limits = &InLimits {
            now: from.unwrap_or(limits.now),
            ..*limits
        };
        if body.has("until") && body.has("for") {
            let detail = "stands beside `until`; give one of them";
            return body.refuse("for", "conflict", detail);
        }
        let most = limits::WHAT_IF_DAYS_MAX * 24 * 3600 * 1000;
        let length = body.optional("for", |node| node.length(1..=most));
        let until = body.optional("until", |node| time::read(node, None));
        let until = until.map_or(Until::For(length.unwrap_or(LENGTH)), Until::At);
        let tasks = body.optional("tasks", |node| {
            node.list(limits::BATCH_ITEMS_MAX, |node| new_task(node, limits))
        });
        let topics = body.optional("topics", |node| {
            given(node, TopicName::parse, |body| settings(body, limits))
        });
        let rules = body.optional("rules", |node| {
            given(node, ResourceName::parse, |body| rule(body, limits))
        });
        let calendars = body.optional("calendars", |node| {
            given(node, ResourceName::parse, calendar)
        });
        let schedules = body.optional("schedules", |node| {
            given(node, ResourceName::parse, |body| schedule(body, limits))
        });
        let is_given = body.has("tasks") || body.has("schedules");
        let filter = body.optional("filter", list::filter);
        let assume = body.optional("assume", assumptions);
        let defaults = WhatIf::lasting(LENGTH);
        Some(WhatIf {
            from,
            until,
            tasks: tasks.unwrap_or_default(),
            topics: topics.unwrap_or_default(),
            rules: rules.unwrap_or_default(),
            calendars: calendars.unwrap_or_default(),
            schedules: schedules.unwrap_or_default(),
            stored: filter.or_else(|| (!is_given).then(TaskFilter::default)),
            assume: assume.unwrap_or_default(),
            bucket: body
                .optional("bucket", |node| node.length(BUCKET_MS))
                .unwrap_or(defaults.bucket),
            events_max: body
                .optional("limit", |node| node.whole(0..=EVENTS_MAX))
                .map_or(defaults.events_max, |limit| limit as usize),
            seed: body
                .optional("seed", |node| node.whole(0..=u64::MAX))
                .unwrap_or(defaults.seed),
        })
    })
}

/// Things by name, each with the body that it would be put with.
fn given<N, T>(
    node: Node<'_, '_>,
    name: impl Fn(&str) -> Result<N, NameError>,
    read: impl Fn(&[u8]) -> Result<T, Problem>,
) -> Option<Vec<(N, T)>> {
    by_name(node, name, |node| node.taken(read(node.bytes())))
}

fn by_name<'j, N, T>(
    node: Node<'j, '_>,
    name: impl Fn(&str) -> Result<N, NameError>,
    read: impl Fn(Node<'j, '_>) -> Option<T>,
) -> Option<Vec<(N, T)>> {
    node.entries(GIVEN_MAX, |text, node| match name(text) {
        Ok(name) => Some((name, read(node)?)),
        Err(error) => node.refuse("invalid_name", error.to_string()),
    })
}

fn assumptions(node: Node<'_, '_>) -> Option<Assumptions> {
    let body = node.object_beside(&ASSUMPTION, &["topics"])?;
    let usual = assumption_of(&body, &Assumption::default())?;
    let topics = body.optional("topics", |node| {
        by_name(node, TopicName::parse, |node| {
            assumption_of(&node.object(&ASSUMPTION)?, &usual)
        })
    });
    let topics: ByTopic<Assumption> = topics.unwrap_or_default().into_iter().collect();
    Some(Assumptions { usual, topics })
}

/// What is not said is as `usual`.
fn assumption_of(body: &Object<'_, '_>, usual: &Assumption) -> Option<Assumption> {
    Some(Assumption {
        ends: body
            .optional("ends", |node| node.word(&ENDS))
            .unwrap_or(usual.ends),
        share: body
            .optional("share", |node| node.number(0.0..=1.0))
            .unwrap_or(usual.share),
        code: body
            .optional("code", |node| node.line(CODE_BYTES_MAX))
            .map_or_else(|| usual.code.clone(), Cow::into_owned),
        takes: body
            .optional("takes", |node| node.length(0..=TAKES_MS_MAX))
            .unwrap_or(usual.takes),
    })
}

/// Body of `POST /v1/simulate`. All fields may be left out.
#[derive(Debug, ToSchema)]
#[schema(example = json!({
    "for": "P7D", "calendars": {"shop": {"tz": "Europe/Berlin", "weekly": {"mon": [["09:00", "17:00"]]}}},
    "tasks": [{"topic": "order.unpaid", "key": "order-42", "facts": {"total": 120}}],
    "assume": {"ends": "fail", "code": "http_503", "takes": "PT1S"}, "bucket": "PT1H"
}))]
pub struct SimulateBody {
    /// When what is given comes in, and what is told begins; without it, now. Stored tasks are played from now on.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub from: (),
    /// When it ends, at most 400 days ahead.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: (),
    /// In its place: how long it goes on. `P1D` unless it is said.
    #[schema(value_type = Option<String>, format = "duration", example = "P7D")]
    pub r#for: (),
    /// Tasks that are created, as in `POST /v1/tasks`, at most 10 000.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tasks: (),
    /// Topics by name, as in `PUT /v1/topics/{name}`, in the place of those that are there.
    #[schema(value_type = Option<Object>)]
    pub topics: (),
    /// The same of rules: what if they were in force?
    #[schema(value_type = Option<Object>)]
    pub rules: (),
    /// The same of calendars.
    #[schema(value_type = Option<Object>)]
    pub calendars: (),
    /// The same of schedules.
    #[schema(value_type = Option<Object>)]
    pub schedules: (),
    /// Which stored tasks take part: the words of `GET /v1/tasks`; `state` may be a list. `{}` is all. Without it all do,
    /// unless tasks or schedules are given: then only those. Stored schedules take part where the filter is about topics.
    #[schema(value_type = Option<Object>, example = json!({"topic": "order.unpaid"}))]
    pub filter: (),
    /// How attempts end: `ends` (`succeed`, `fail`, `timeout`), `share` of them that do (0 to 1; the others succeed),
    /// `code` of those that fail, and how long one `takes`; `topics`: the same by topic.
    #[schema(value_type = Option<Object>, example = json!({"takes": "PT0.2S", "topics": {"order.unpaid": {"ends": "fail", "share": 0.05}}}))]
    pub assume: (),
    /// Width of the buckets.
    #[schema(value_type = Option<String>, format = "duration", example = "PT1M")]
    pub bucket: (),
    /// At most so many events are listed; 1000 unless it is said, at most 10 000.
    #[schema(value_type = Option<u16>)]
    pub limit: (),
    /// Whatever is left to chance (jitter, which attempts fail) follows from it.
    #[schema(value_type = Option<u64>)]
    pub seed: (),
}

/// What fires in a bucket, of one topic.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimulatedBucket)]
pub struct BucketOut<'a> {
    at: Time,
    #[schema(value_type = String)]
    topic: &'a str,
    /// First attempts.
    fires: u64,
    /// Others.
    retries: u64,
    /// Questions: of polls, and whether something was done.
    questions: u64,
}

/// One thing that would happen.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimulatedEvent)]
pub struct EventOut<'a> {
    at: Time,
    #[schema(value_type = String)]
    topic: &'a str,
    #[schema(value_type = Option<String>)]
    key: Option<&'a str>,
    /// Of a stored task.
    #[schema(value_type = Option<String>)]
    id: Option<String>,
    /// `fire` (a first attempt), `stage` (that of a later stage), `retry`, `question`, `skip` (called off, or a stage
    /// passed over), `expire` (its time is over), `dead` (given up), `park` (paused for a person).
    #[schema(value_type = String, example = "fire")]
    what: &'static str,
    #[schema(value_type = Option<String>)]
    stage: Option<&'a str>,
    /// Which attempt of the stage.
    attempt: u32,
    /// When that was due.
    due_at: Time,
    #[schema(value_type = Option<String>)]
    why: Option<&'a str>,
}

/// How much there was of each.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimulatedCounts)]
pub struct CountsOut {
    /// Stored tasks that took part.
    stored: u64,
    /// Given ones.
    given: u64,
    /// Tasks that schedules made.
    occurrences: u64,
    fires: u64,
    retries: u64,
    questions: u64,
    skipped: u64,
    expired: u64,
    dead: u64,
    parked: u64,
    succeeded: u64,
}

/// A highest value, and when.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimulatedPeak)]
pub struct PeakOut {
    at: Time,
    value: u64,
}

impl From<Peak> for PeakOut {
    fn from(peak: Peak) -> Self {
        let (at, value) = (Time(peak.at), peak.value);
        Self { at, value }
    }
}

/// The most at a time; `null` where there was nothing.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimulatedPeaks)]
pub struct PeaksOut {
    /// Starts in one bucket, over all topics.
    starts: Option<PeakOut>,
    /// Attempts under way.
    running: Option<PeakOut>,
    /// How late something started.
    late_ms: Option<PeakOut>,
}

/// Why it ended before its time.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimulationCutOff)]
pub struct CutOffOut {
    at: Time,
    /// `changes`, `buckets`, `time`, `memory`: there was more of it than is played.
    #[schema(value_type = String)]
    why: &'static str,
}

/// A given task that could not be created.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SimulationRefused)]
pub struct RefusedOut<'a> {
    /// Its place in `tasks`.
    place: usize,
    #[schema(value_type = String)]
    why: &'a str,
}

/// What would happen. Nothing was sent, and nothing was changed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Simulation)]
pub struct PlayedOut<'a> {
    from: Time,
    until: Time,
    /// What chance followed from.
    seed: u64,
    bucket: Length,
    /// What fires, by bucket and topic. Those without anything are left out.
    buckets: Vec<BucketOut<'a>>,
    /// In order.
    events: Vec<EventOut<'a>>,
    /// There were more events than are listed. They are counted.
    truncated: bool,
    counts: CountsOut,
    peaks: PeaksOut,
    /// Given tasks that could not be created.
    refused: Vec<RefusedOut<'a>>,
    /// `null` if it was played to its end.
    cut_off: Option<CutOffOut>,
}

impl<'a> PlayedOut<'a> {
    /// As it is answered.
    pub fn new(played: &'a Played) -> Self {
        let counts = &played.counts;
        let peak = |peak: Option<Peak>| peak.map(PeakOut::from);
        let refused = played.refused.iter().map(|it| RefusedOut {
            place: it.place,
            why: &it.why,
        });
        Self {
            from: Time(played.from),
            until: Time(played.until),
            seed: played.seed,
            bucket: Length(played.bucket),
            buckets: played.buckets.iter().map(bucket).collect(),
            events: played.events.iter().map(event).collect(),
            truncated: played.is_truncated,
            counts: CountsOut {
                stored: counts.stored,
                given: counts.given,
                occurrences: counts.occurrences,
                fires: counts.fires,
                retries: counts.retries,
                questions: counts.questions,
                skipped: counts.skipped,
                expired: counts.expired,
                dead: counts.dead,
                parked: counts.parked,
                succeeded: counts.succeeded,
            },
            peaks: PeaksOut {
                starts: peak(played.peaks.starts),
                running: peak(played.peaks.running),
                late_ms: peak(played.peaks.late_ms),
            },
            refused: refused.collect(),
            cut_off: played.cut_off.map(|(at, why)| CutOffOut {
                at: Time(at),
                why: why.name(),
            }),
        }
    }
}

fn bucket((at, topic, bucket): &(WallMs, TopicName, Bucket)) -> BucketOut<'_> {
    BucketOut {
        at: Time(*at),
        topic: topic.as_str(),
        fires: bucket.fires,
        retries: bucket.retries,
        questions: bucket.questions,
    }
}

fn event(event: &PlayedEvent) -> EventOut<'_> {
    EventOut {
        at: Time(event.at),
        topic: event.topic.as_str(),
        key: event.key.as_ref().map(TaskKey::as_str),
        id: event.id.map(|id: TaskId| id.to_string()),
        what: event.what.name(),
        stage: event.stage.as_ref().map(StageName::as_str),
        attempt: event.attempt,
        due_at: Time(event.due),
        why: event.why.as_deref(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::task::State;
    use crate::wire::tests::{WIDE, properties, refused};

    fn read(body: &Value) -> Result<WhatIf, Problem> {
        what_if(body.to_string().as_bytes(), &WIDE)
    }

    #[test]
    fn the_document_names_the_fields_that_are_read() {
        assert_eq!(properties::<SimulateBody>(), WHAT_IF.fields);
    }

    #[test]
    fn nothing_said_is_a_day_of_all_that_is_stored_and_what_is_given_is_alone() {
        let all = read(&json!({})).unwrap();
        assert_eq!(all.until, Until::For(LENGTH));
        assert_eq!(all.stored, Some(TaskFilter::default()));
        let given = json!({"tasks": [{"topic": "t"}]});
        assert_eq!(read(&given).unwrap().stored, None);
        let both = json!({"tasks": [{"topic": "t"}], "filter": {"state": ["pending", "retrying"]}});
        let states = read(&both).unwrap().stored.unwrap().states;
        assert_eq!(states, [State::Pending, State::Retrying]);
    }

    #[test]
    fn a_topics_assumption_is_the_usual_one_but_for_what_it_says() {
        let assume =
            json!({"assume": {"takes": "PT2S", "topics": {"t": {"ends": "fail", "share": 0.5}}}});
        let assume = read(&assume).unwrap().assume;
        let topic = &assume.topics[&TopicName::parse("t").unwrap()];
        assert_eq!(
            (topic.ends, topic.share, topic.takes),
            (Ends::Fail, 0.5, DurationMs(2_000))
        );
        assert_eq!(
            (assume.usual.ends, assume.usual.share),
            (Ends::Succeed, 1.0)
        );
    }

    #[test]
    fn each_part_tells_what_is_wrong_with_it_in_its_place() {
        let body = json!({
            "rules": {"a/b": {"fixed": {"after": "soon"}}}, "filter": {"key": "", "x": "y"},
            "topics": {"t": {"retry": 1}}, "tasks": [{"topic": "t"}, {}], "seed": -1,
        });
        let mut wrong = refused(read(&body));
        wrong.sort_unstable();
        let wrong: Vec<&str> = wrong.iter().map(|(at, _)| at.as_str()).collect();
        let expected = [
            "/filter/key",
            "/filter/x",
            "/rules/a~1b/fixed/after",
            "/seed",
            "/tasks/1/topic",
            "/topics/t/retry",
        ];
        assert_eq!(wrong, expected);
    }
}
