//! Topics: the body of `PUT /v1/topics/{name}`, and a topic as it is answered.
//!
//! An answer's fields are the body's, so what was read can be changed and put back, but for `name`, `version` and
//! `paused`, which are not the caller's to set.

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::DurationMs;
use crate::task::TopicName;
use crate::task::spec::ResourceName;
use crate::task::topic::{Topic, TopicPause, TopicSettings};
use crate::task::transition::Retention;
use crate::wire::action::{self, ActionBody, VerifyBody};
use crate::wire::before_fire::{self, GuardBody};
use crate::wire::clocks::{self, TimeoutsBody};
use crate::wire::decode::{Node, Shape, decode, word_of};
use crate::wire::due::InLimits;
use crate::wire::late::{self, PolicyOut};
use crate::wire::on_end::{self, OnEndBody};
use crate::wire::problem::Problem;
use crate::wire::retry::{self, RetryBody};
use crate::wire::task_in::{CLASS, DELIVERY, ON_EXISTING};
use crate::wire::time::{Length, Time};
use crate::wire::verbs::CLOCKS;

const TOPIC: Shape = Shape {
    fields: &[
        "rule",
        "action",
        "retry",
        "timeouts",
        "class",
        "delivery",
        "verify",
        "guard",
        "retention",
        "late_answers",
        "on_existing",
        "on_end",
    ],
    not_built: &["limits"],
};
const RETENTION: Shape = Shape {
    fields: &["succeeded", "cancelled", "dead"],
    not_built: &[],
};

/// Longest retention, in milliseconds: ten years.
const RETENTION_MS_MAX: u64 = 3660 * 24 * 3600 * 1000;

/// Reads the body of `PUT /v1/topics/{name}`.
///
/// # Errors
/// 400, 422.
pub fn settings(bytes: &[u8], limits: &InLimits) -> Result<TopicSettings, Problem> {
    decode(bytes, |node| {
        let body = node.object(&TOPIC)?;
        Some(TopicSettings {
            rule: body.optional("rule", |node| node.name(ResourceName::parse)),
            action: body.optional("action", action::action),
            retry: body.optional("retry", retry::policy),
            timeouts: body
                .optional("timeouts", |node| clocks::timeouts(node, limits))
                .unwrap_or_default(),
            class: body.optional("class", |node| node.word(&CLASS)),
            delivery: body.optional("delivery", |node| node.word(&DELIVERY)),
            verify: body.optional("verify", action::verify),
            guard: body.optional("guard", before_fire::guard),
            on_existing: body.optional("on_existing", |node| node.word(&ON_EXISTING)),
            retention: body.optional("retention", retention).unwrap_or_default(),
            late_answers: body
                .optional("late_answers", late::policy)
                .unwrap_or_default(),
            on_end: body.optional("on_end", on_end::on_end),
        })
    })
}

fn retention(node: Node<'_, '_>) -> Option<Retention> {
    let body = node.object(&RETENTION)?;
    let length = |name, default: DurationMs| {
        body.optional(name, |node| node.length(0..=RETENTION_MS_MAX))
            .unwrap_or(default)
    };
    let default = Retention::default();
    Some(Retention {
        succeeded: length("succeeded", default.succeeded),
        cancelled: length("cancelled", default.cancelled),
        dead: length("dead", default.dead),
    })
}

/// Body of `PUT /v1/topics/{name}`: defaults for tasks that name none of their own.
#[derive(Debug, ToSchema)]
#[schema(example = json!({
    "action": {"http": {"url": "http://127.0.0.1:9000/close"}},
    "retry": {"ladder": ["PT1M", "PT5M"], "max_attempts": 5}, "timeouts": {"attempt": "PT10S"},
}))]
pub struct PutTopic {
    /// When tasks are due that do not say it: the rule of this name.
    pub rule: Option<String>,
    /// Default: `{"pull": {}}`.
    pub action: Option<ActionBody<'static>>,
    /// Default: a ladder of 1, 5, 10 and 30 minutes with 11 attempts.
    pub retry: Option<RetryBody<'static>>,
    /// Under the task's own, field by field.
    pub timeouts: Option<TimeoutsBody<'static>>,
    /// `core`, `normal` (default) or `bulk`.
    pub class: Option<String>,
    /// `at_least_once` (default) or `at_most_once`.
    pub delivery: Option<String>,
    /// Asked before a task is tried again when nobody knows whether it was done.
    #[schema(value_type = Option<VerifyBody>)]
    pub verify: Option<VerifyBody<'static>>,
    /// Decides, shortly before a task fires, whether it does.
    #[schema(value_type = Option<GuardBody>)]
    pub guard: Option<GuardBody<'static>>,
    /// How long ended tasks are kept.
    pub retention: Option<RetentionBody>,
    /// What becomes of answers that come too late: `refuse` (default), `accept_if_unfinished`, or
    /// `{"compensate": {"topic": …, "action": …}}`, which creates a task once for each late success.
    pub late_answers: Option<serde_json::Value>,
    /// `return` (default), `reject`, `replace`, `extend` or `keep_later`.
    pub on_existing: Option<String>,
    /// Told how tasks have ended.
    #[schema(value_type = Option<OnEndBody>)]
    pub on_end: Option<OnEndBody<'static>>,
}

/// How long records of ended tasks are kept.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Retention)]
pub struct RetentionBody {
    /// Default `P7D`.
    #[schema(required = false)]
    succeeded: Length,
    /// Default `P7D`.
    #[schema(required = false)]
    cancelled: Length,
    /// Default `P30D`.
    #[schema(required = false)]
    dead: Length,
}

/// A topic.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topic)]
pub struct TopicOut<'a> {
    #[schema(value_type = String)]
    name: &'a str,
    /// Grows with each PUT; 0 while it was never declared.
    version: u64,
    /// The rule that gives due times.
    #[schema(value_type = Option<String>)]
    rule: Option<&'a str>,
    action: Option<ActionBody<'a>>,
    retry: Option<RetryBody<'a>>,
    timeouts: TimeoutsBody<'a>,
    #[schema(value_type = Option<String>)]
    class: Option<&'static str>,
    #[schema(value_type = Option<String>)]
    delivery: Option<&'static str>,
    verify: Option<VerifyBody<'a>>,
    guard: Option<GuardBody<'a>>,
    #[schema(value_type = Option<serde_json::Value>)]
    limits: Option<()>,
    retention: RetentionBody,
    #[schema(value_type = serde_json::Value)]
    late_answers: PolicyOut<'a>,
    #[schema(value_type = Option<String>)]
    on_existing: Option<&'static str>,
    on_end: Option<OnEndBody<'a>>,
    /// Null unless its tasks are held.
    paused: Option<PausedOut>,
}

/// A topic's pause.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopicPause)]
pub struct PausedOut {
    /// `keep` or `freeze`.
    #[schema(value_type = String)]
    clock: &'static str,
    /// When it began.
    since: Time,
}

impl From<TopicPause> for PausedOut {
    fn from(pause: TopicPause) -> Self {
        Self {
            clock: word_of(&CLOCKS, &pause.clock),
            since: Time(pause.since),
        }
    }
}

impl<'a> TopicOut<'a> {
    /// The topic of that name.
    pub fn new(name: &'a TopicName, topic: &'a Topic) -> Self {
        let settings = &topic.settings;
        Self {
            name: name.as_str(),
            version: topic.version,
            rule: settings.rule.as_ref().map(ResourceName::as_str),
            action: settings.action.as_ref().map(ActionBody::from),
            retry: settings.retry.as_ref().map(RetryBody::from),
            timeouts: (&settings.timeouts).into(),
            class: settings.class.map(|class| word_of(&CLASS, &class)),
            delivery: settings
                .delivery
                .map(|delivery| word_of(&DELIVERY, &delivery)),
            verify: settings.verify.as_deref().map(VerifyBody::from),
            guard: settings.guard.as_ref().map(GuardBody::from),
            limits: None,
            retention: RetentionBody {
                succeeded: Length(settings.retention.succeeded),
                cancelled: Length(settings.retention.cancelled),
                dead: Length(settings.retention.dead),
            },
            late_answers: (&settings.late_answers).into(),
            on_existing: settings
                .on_existing
                .map(|on_existing| word_of(&ON_EXISTING, &on_existing)),
            on_end: settings.on_end.as_deref().map(OnEndBody::from),
            paused: topic.pause.map(PausedOut::from),
        }
    }
}

/// A list of topics.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topics)]
pub struct TopicsOut<'a> {
    /// By name.
    pub items: Vec<TopicOut<'a>>,
    /// Where the next page begins; null on the last.
    pub next_cursor: Option<String>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::SteadyMs;
    use crate::task::model::PauseClock;
    use crate::wire::tests::{NOW, WIDE, properties, refused};

    #[test]
    fn what_is_put_is_answered_with_name_version_and_pause() {
        let body = json!({
            "action": {"http": {"url": "http://a/b", "method": "POST", "headers": {}, "expect_status": []}},
            "retry": {"fixed": "PT0.1S", "jitter": 0.0, "max_attempts": 2},
            "timeouts": {"attempt": "PT10S", "grace": null, "total": null},
            "class": "core", "delivery": "at_most_once", "on_existing": "extend", "late_answers": "refuse",
            "retention": {"succeeded": "PT1S", "cancelled": "P7D", "dead": "P30D"},
            "rule": null, "limits": null, "verify": null, "guard": null,
            "on_end": {"http": {"url": "http://a/ended", "method": "POST", "headers": {}, "expect_status": []}},
        });
        let settings = settings(body.to_string().as_bytes(), &WIDE).unwrap();
        let topic = Topic {
            settings,
            version: 3,
            pause: Some(TopicPause {
                clock: PauseClock::Freeze,
                since: NOW,
                since_steady: SteadyMs(0),
            }),
            ..Topic::default()
        };
        let name = TopicName::parse("order.unpaid").unwrap();
        let mut expected = body;
        expected["name"] = json!("order.unpaid");
        expected["version"] = json!(3);
        expected["paused"] = json!({"clock": "freeze", "since": "2026-11-30T00:53:20.000Z"});
        assert_eq!(
            serde_json::to_value(TopicOut::new(&name, &topic)).unwrap(),
            expected
        );
    }

    #[test]
    fn what_becomes_of_late_answers_is_answered_as_it_was_put() {
        let name = TopicName::parse("order.unpaid").unwrap();
        for policy in [
            json!("refuse"),
            json!("accept_if_unfinished"),
            json!({"compensate": {"topic": "order.refund", "action": null}}),
            json!({"compensate": {"topic": "order.refund", "action": {"handler": {"name": "refund"}}}}),
        ] {
            let body = json!({"late_answers": policy}).to_string();
            let settings = settings(body.as_bytes(), &WIDE).unwrap();
            let topic = Topic {
                settings,
                ..Topic::default()
            };
            let answered = serde_json::to_value(TopicOut::new(&name, &topic)).unwrap();
            assert_eq!(answered["late_answers"], policy);
        }
    }

    #[test]
    fn an_empty_body_leaves_everything_to_the_defaults() {
        assert_eq!(settings(b"{}", &WIDE), Ok(TopicSettings::default()));
        let only_one = settings(br#"{"retention": {"dead": "P1D"}}"#, &WIDE).unwrap();
        assert_eq!(only_one.retention.succeeded, Retention::default().succeeded);
    }

    #[test]
    fn what_is_not_built_yet_is_refused_by_name() {
        for (body, pointer, code) in [
            (r#"{"rule": ""}"#, "/rule", "empty"),
            (
                r#"{"limits": {"running": 100}}"#,
                "/limits",
                "not_supported",
            ),
            (
                r#"{"late_answers": "accept"}"#,
                "/late_answers",
                "unknown_value",
            ),
            (r#"{"late_answers": 1}"#, "/late_answers", "wrong_type"),
            (
                r#"{"late_answers": {"compensate": {"action": {"none": {}}}}}"#,
                "/late_answers/compensate/topic",
                "missing",
            ),
            (
                r#"{"retention": {"dead": "P1Y"}}"#,
                "/retention/dead",
                "invalid_duration",
            ),
            (
                r#"{"retention": {"deed": "P1D"}}"#,
                "/retention/deed",
                "unknown_field",
            ),
            (r#"{"name": "x"}"#, "/name", "unknown_field"),
        ] {
            assert_eq!(
                refused(settings(body.as_bytes(), &WIDE)),
                [(pointer.to_owned(), code)],
                "{body}"
            );
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<PutTopic>(), TOPIC.fields);
        assert_eq!(properties::<RetentionBody>(), RETENTION.fields);
    }
}
