//! A create: from the body of `POST /v1/tasks`, or an item of a batch, to a [`NewTask`].
//!
//! All mistakes of a body are told together. Payload and facts are taken as they came, byte for byte; what stands
//! twice inside them is the caller's own affair.

use utoipa::ToSchema;

use crate::limits;
use crate::rule::staged;
use crate::task::spec::{Class, Delivery, RawJson};
use crate::task::topic::OnExisting;
use crate::task::{Action, NewTask, TaskKey, TopicName};
use crate::wire::action::{self, ActionBody, VerifyBody};
use crate::wire::before_fire::{self, GuardBody};
use crate::wire::clocks::{self, TimeoutsBody};
use crate::wire::decode::{Node, Object, Shape, decode_object};
use crate::wire::due::{self, InLimits};
use crate::wire::on_end::{self, OnEndBody};
use crate::wire::problem::Problem;
use crate::wire::retry::{self, RetryBody};
use crate::wire::stages::{self, StageBody};
use crate::wire::time::{Length, Time};

/// Longest lateness that may be said not to matter, in milliseconds: ten years, which is never.
const LATENESS_MS_MAX: u64 = 3660 * 24 * 3600 * 1000;

const CREATE: Shape = Shape {
    fields: &[
        "topic",
        "key",
        "due_at",
        "tz",
        "delay",
        "payload",
        "action",
        "stages",
        "retry",
        "timeouts",
        "delivery",
        "class",
        "on_existing",
        "max_lateness",
        "tags",
        "facts",
        "verify",
        "guard",
        "on_end",
    ],
    not_built: &[],
};

pub(super) const DELIVERY: [(&str, Delivery); 2] = [
    ("at_least_once", Delivery::AtLeastOnce),
    ("at_most_once", Delivery::AtMostOnce),
];
pub(super) const CLASS: [(&str, Class); 3] = [
    ("core", Class::Core),
    ("normal", Class::Normal),
    ("bulk", Class::Bulk),
];
pub(super) const ON_EXISTING: [(&str, OnExisting); 5] = [
    ("return", OnExisting::Return),
    ("reject", OnExisting::Reject),
    ("replace", OnExisting::Replace),
    ("extend", OnExisting::Extend),
    ("keep_later", OnExisting::KeepLater),
];

/// Reads the body of a create.
///
/// # Errors
/// 400 when it is not JSON, 422 with all fields that are not valid.
pub fn create(bytes: &[u8], limits: &InLimits) -> Result<NewTask, Problem> {
    decode_object(bytes, &CREATE, |body| of_body(body, limits))
}

/// Reads a create that is part of a larger body.
pub(super) fn new_task(node: Node<'_, '_>, limits: &InLimits) -> Option<NewTask> {
    of_body(&node.object(&CREATE)?, limits)
}

fn of_body(body: &Object<'_, '_>, limits: &InLimits) -> Option<NewTask> {
    let topic = body.required("topic", topic_name);
    let action = body.optional("action", action::action);
    let stages = body.optional("stages", |node| stages::stages(node, limits));
    let key = body.optional("key", task_key);
    let when = due::when(body, limits);
    let payload = body.optional("payload", |node| node.raw(limits::PAYLOAD_BYTES_MAX));
    let retry = body.optional("retry", retry::policy);
    let timeouts = body.optional("timeouts", |node| clocks::timeouts(node, limits));
    let delivery = body.optional("delivery", |node| node.word(&DELIVERY));
    let class = body.optional("class", |node| node.word(&CLASS));
    let on_existing = body.optional("on_existing", |node| node.word(&ON_EXISTING));
    let max_lateness = body.optional("max_lateness", |node| node.length(0..=LATENESS_MS_MAX));
    let tags = body.optional("tags", tags);
    let facts = body.optional("facts", facts);
    let verify = body.optional("verify", action::verify);
    let guard = body.optional("guard", before_fire::guard);
    let on_end = body.optional("on_end", on_end::on_end);
    let topic = topic?;
    if let Some(field) = ["due_at", "delay"]
        .into_iter()
        .find(|field| body.has(field))
        && body.has("stages")
    {
        return body.refuse(
            field,
            "conflict",
            "stands beside `stages`, which have times of their own",
        );
    }
    if let Some(flaw) = staged::facts_flaw(stages.as_ref(), guard.as_ref(), facts.as_ref()) {
        return body.refuse("facts", "too_long", flaw);
    }
    if action == Some(Action::None) && !has_time(body) {
        return body.refuse(
            "due_at",
            "missing",
            "is missing: a `none` task marks a time; give `due_at` or `delay`",
        );
    }
    Some(NewTask {
        topic,
        key,
        when,
        action,
        stages,
        payload,
        retry,
        timeouts: timeouts.unwrap_or_default(),
        delivery,
        class,
        on_existing,
        max_lateness,
        tags: tags.unwrap_or_default(),
        facts,
        verify,
        guard,
        on_end,
    })
}

fn has_time(body: &Object<'_, '_>) -> bool {
    ["due_at", "delay", "stages"]
        .into_iter()
        .any(|field| body.has(field))
}

/// The delivery with that word.
pub fn delivery(word: &str) -> Option<Delivery> {
    let known = DELIVERY.iter().find(|(known, _)| *known == word);
    known.map(|(_, delivery)| *delivery)
}

/// Reads a topic's name.
pub(super) fn topic_name(node: Node<'_, '_>) -> Option<TopicName> {
    node.name(TopicName::parse)
}

/// Reads a key.
pub(super) fn task_key(node: Node<'_, '_>) -> Option<TaskKey> {
    node.name(TaskKey::parse)
}

pub(super) fn tags(node: Node<'_, '_>) -> Option<Vec<(String, String)>> {
    node.entries(limits::TAGS_MAX, |name, node| {
        Some((name.to_owned(), tag(name, node)?))
    })
}

/// The value of a tag of that name.
pub(super) fn tag(name: &str, node: Node<'_, '_>) -> Option<String> {
    let value = node.text()?;
    let too_long = value.len() > limits::TAG_VALUE_BYTES_MAX;
    if name.is_empty()
        || name.len() > limits::TAG_NAME_BYTES_MAX
        || name.chars().any(char::is_control)
    {
        let max = limits::TAG_NAME_BYTES_MAX;
        return node.refuse(
            "invalid_name",
            format!("must have a name of 1 to {max} bytes without control characters"),
        );
    }
    if too_long || value.chars().any(char::is_control) {
        let max = limits::TAG_VALUE_BYTES_MAX;
        return node.refuse(
            "invalid_value",
            format!("must be at most {max} bytes without control characters"),
        );
    }
    Some(value.into_owned())
}

pub(super) fn facts(node: Node<'_, '_>) -> Option<RawJson> {
    if !node.is_object() {
        return node.refuse("wrong_type", "must be an object");
    }
    node.raw(limits::FACTS_BYTES_MAX)
}

/// Body of `POST /v1/tasks`. Only the topic is always needed; without a time the task is due now.
#[derive(Debug, ToSchema)]
#[schema(example = json!({
    "topic": "order.unpaid", "key": "order-42", "delay": "PT30M", "payload": {"order_id": 42},
    "action": {"http": {"url": "http://127.0.0.1:9000/close"}},
}))]
pub struct CreateTask {
    /// Business line and kind of timeout: at most 128 bytes, no control characters.
    #[schema(example = "order.unpaid")]
    pub topic: String,
    /// The caller's own id inside the topic: at most 256 bytes, no control characters.
    #[schema(example = "order-42")]
    pub key: Option<String>,
    /// Due at this time (RFC 3339). An offset is needed, unless `tz` stands beside it. In the past means now.
    #[schema(value_type = Option<Time>)]
    pub due_at: Option<Time>,
    /// Time zone (IANA) of a `due_at` without offset. In a gap of its clocks the time is taken as far behind the gap; of
    /// two, it is the earlier.
    #[schema(example = "Europe/Berlin")]
    pub tz: Option<String>,
    /// Due after this long (ISO 8601). Not beside `due_at`.
    pub delay: Option<Length>,
    /// Handed to the action: any JSON of at most 256 KiB.
    pub payload: Option<serde_json::Value>,
    /// What is done when due. Default: the topic's, else `{"pull": {}}`. With `{"none": {}}` a time is needed.
    pub action: Option<ActionBody<'static>>,
    /// 1 to 32 stages, instead of a time: each has a time, an action and attempts of its own, and the task ends as the last
    /// of them does.
    pub stages: Option<Vec<StageBody<'static>>>,
    /// Default: the topic's, else a ladder of 1, 5, 10 and 30 minutes with 11 attempts.
    pub retry: Option<RetryBody<'static>>,
    /// Over the topic's, field by field.
    pub timeouts: Option<TimeoutsBody<'static>>,
    /// What an unknown outcome means: `at_least_once` (default) or `at_most_once`.
    pub delivery: Option<String>,
    /// `core`, `normal` (default) or `bulk`.
    pub class: Option<String>,
    /// When a live task has the key: `return` (default), `reject`, `replace`, `extend` or `keep_later`.
    pub on_existing: Option<String>,
    /// How late it may start without anybody minding.
    pub max_lateness: Option<Length>,
    /// At most 16 names (64 bytes) with texts (256 bytes).
    pub tags: Option<std::collections::HashMap<String, String>>,
    /// What rules read: an object of at most 64 KiB.
    pub facts: Option<serde_json::Value>,
    /// Asked before it is tried again when nobody knows whether it was done.
    #[schema(value_type = Option<VerifyBody>)]
    pub verify: Option<VerifyBody<'static>>,
    /// Decides, shortly before it fires, whether it does. Default: the topic's.
    #[schema(value_type = Option<GuardBody>)]
    pub guard: Option<GuardBody<'static>>,
    /// Told how it has ended. Default: the topic's.
    #[schema(value_type = Option<OnEndBody>)]
    pub on_end: Option<OnEndBody<'static>>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::{DurationMs, WallMs};
    use crate::task::When;
    use crate::wire::decode::decode;
    use crate::wire::tests::{WIDE, properties, refused};

    fn with(field: &str, value: Value) -> Result<NewTask, Problem> {
        let mut body = json!({"topic": "orders"});
        body[field] = value;
        create(body.to_string().as_bytes(), &WIDE)
    }

    #[test]
    fn a_topic_is_all_that_is_needed() {
        let task = create(br#"{"topic": "orders"}"#, &WIDE).unwrap();
        assert_eq!(task, NewTask::new(TopicName::parse("orders").unwrap()));
        assert_eq!(
            refused(create(b"{}", &WIDE)),
            [("/topic".to_owned(), "missing")]
        );
    }

    #[test]
    fn the_contracts_example_is_read() {
        let body = br#"{
            "topic": "order.unpaid", "key": "order-42", "delay": "PT30M", "payload": {"order_id": 42},
            "action": {"http": {"url": "http://127.0.0.1:9000/close", "method": "POST", "headers": {"x-shop": "a"}}},
            "retry": {"ladder": ["PT1M", "PT5M", "PT10M", "PT30M"], "max_attempts": 10},
            "timeouts": {"attempt": "PT10S", "grace": "PT2S", "total": "PT2H", "heartbeat": "PT30S", "queue": "PT5M"},
            "delivery": "at_least_once", "class": "core", "on_existing": "return",
            "max_lateness": "PT1M", "tags": {"region": "eu"}, "facts": {"created_at": "2026-12-01T10:00:00Z", "vip": true}
        }"#;
        let task = create(body, &WIDE).unwrap();
        assert_eq!(task.key.as_ref().map(TaskKey::as_str), Some("order-42"));
        assert_eq!(task.when, Some(When::After(DurationMs::secs(1800))));
        assert_eq!(task.payload.unwrap().as_str(), r#"{"order_id": 42}"#);
        assert_eq!(task.retry.unwrap().max_attempts, 10);
        assert_eq!(
            (task.class, task.delivery),
            (Some(Class::Core), Some(Delivery::AtLeastOnce))
        );
        assert_eq!(task.on_existing, Some(OnExisting::Return));
        assert_eq!(task.tags, [("region".to_owned(), "eu".to_owned())]);
        assert_eq!(
            task.facts.unwrap().as_str(),
            r#"{"created_at": "2026-12-01T10:00:00Z", "vip": true}"#
        );
    }

    #[test]
    fn a_time_is_an_instant_or_a_length_but_not_both() {
        let when = |json: &str| {
            create(format!(r#"{{"topic": "t", {json}}}"#).as_bytes(), &WIDE).map(|task| task.when)
        };
        let noon = Some(When::At(WallMs(1_811_847_600_000)));
        assert_eq!(when(r#""due_at": "2027-06-01T12:00:00+01:00""#), Ok(noon));
        assert_eq!(
            when(r#""due_at": "2027-06-01T12:00:00", "tz": "Europe/London""#),
            Ok(noon)
        );
        assert_eq!(
            when(r#""due_at": "2020-01-01T00:00:00Z""#),
            Ok(Some(When::At(WallMs(1_577_836_800_000))))
        );
        assert_eq!(
            when(r#""delay": "PT0.0001S", "due_at": null"#),
            Ok(Some(When::After(DurationMs(1))))
        );
        assert_eq!(
            when(r#""delay": "P3660D""#),
            Ok(Some(When::After(WIDE.max_delay)))
        );
        for (json, pointer, code) in [
            (
                r#""due_at": "2027-06-01T12:00:00""#,
                "/due_at",
                "offset_missing",
            ),
            (
                r#""due_at": "2027-02-30T12:00:00Z""#,
                "/due_at",
                "impossible_time",
            ),
            (
                r#""due_at": "2038-01-01T12:00:00Z""#,
                "/due_at",
                "out_of_range",
            ),
            (r#""due_at": 1796121000"#, "/due_at", "wrong_type"),
            (
                r#""due_at": "2027-06-01T12:00:00", "tz": "Middle/Earth""#,
                "/tz",
                "unknown_zone",
            ),
            (
                r#""due_at": "2027-06-01T12:00:00+09:00", "tz": "Europe/London""#,
                "/due_at",
                "offset_conflict",
            ),
            (
                r#""delay": "PT1H", "tz": "Europe/London""#,
                "/tz",
                "conflict",
            ),
            (
                r#""delay": "PT1H", "due_at": "2027-06-01T12:00:00Z""#,
                "/delay",
                "conflict",
            ),
            (r#""delay": 5"#, "/delay", "wrong_type"),
            (r#""delay": "-PT1S""#, "/delay", "out_of_range"),
            (r#""delay": "P11Y""#, "/delay", "invalid_duration"),
            (r#""delay": "PT2147483648S""#, "/delay", "out_of_range"),
            (
                r#""delay": "PT99999999999999999999S""#,
                "/delay",
                "out_of_range",
            ),
            (r#""delay": "soon""#, "/delay", "invalid_duration"),
        ] {
            assert_eq!(refused(when(json)), [(pointer.to_owned(), code)], "{json}");
        }
    }

    #[test]
    fn a_none_task_needs_a_time_and_any_other_is_due_now() {
        assert_eq!(
            refused(with("action", json!({"none": {}}))),
            [("/due_at".to_owned(), "missing")]
        );
        assert!(with("action", json!({"pull": {}})).is_ok());
        let body = json!({"topic": "t", "action": {"none": {}}, "delay": "PT0S"});
        assert!(create(body.to_string().as_bytes(), &WIDE).is_ok());
        let body = json!({"topic": "t", "action": {"none": {}}, "delay": "soon"});
        assert_eq!(
            refused(create(body.to_string().as_bytes(), &WIDE)),
            [("/delay".to_owned(), "invalid_duration")]
        );
    }

    #[test]
    fn fields_are_refused_at_their_place() {
        for (field, value, pointer, code) in [
            ("dely", json!("PT1S"), "/dely", "unknown_field"),
            ("topic", json!(7), "/topic", "wrong_type"),
            ("topic", json!(""), "/topic", "empty"),
            ("topic", json!("t".repeat(129)), "/topic", "too_long"),
            ("topic", json!("a\nb"), "/topic", "control_character"),
            ("key", json!(123), "/key", "wrong_type"),
            ("key", json!("k".repeat(257)), "/key", "too_long"),
            (
                "payload",
                json!("x".repeat(256 << 10)),
                "/payload",
                "too_long",
            ),
            ("action", json!({"fax": {}}), "/action/fax", "unknown_field"),
            (
                "retry",
                json!({"fixed": "PT1S", "maxattempts": 3}),
                "/retry/maxattempts",
                "unknown_field",
            ),
            (
                "timeouts",
                json!({"heartbeet": "PT30S"}),
                "/timeouts/heartbeet",
                "unknown_field",
            ),
            (
                "delivery",
                json!("exactly_once"),
                "/delivery",
                "unknown_value",
            ),
            ("class", json!("gold"), "/class", "unknown_value"),
            (
                "on_existing",
                json!("ignore"),
                "/on_existing",
                "unknown_value",
            ),
            (
                "max_lateness",
                json!("P1M"),
                "/max_lateness",
                "invalid_duration",
            ),
            ("tags", json!({"a": 1}), "/tags/a", "wrong_type"),
            ("tags", json!({"": "v"}), "/tags/", "invalid_name"),
            ("tags", json!({"a\tb": "v"}), "/tags/a\tb", "invalid_name"),
            ("tags", json!({"a": "v\n"}), "/tags/a", "invalid_value"),
            (
                "tags",
                json!({"a": "v".repeat(257)}),
                "/tags/a",
                "invalid_value",
            ),
            ("facts", json!([1]), "/facts", "wrong_type"),
            (
                "facts",
                json!({"a": "x".repeat(64 << 10)}),
                "/facts",
                "too_long",
            ),
            ("stages", json!([]), "/stages", "empty"),
            ("verify", json!([]), "/verify", "wrong_type"),
            (
                "guard",
                json!({"if": "("}),
                "/guard/if",
                "invalid_expression",
            ),
            ("on_end", json!({}), "/on_end/http", "missing"),
        ] {
            assert_eq!(
                refused(with(field, value)),
                [(pointer.to_owned(), code)],
                "{field}"
            );
        }
        let many = |n: usize| {
            (0..n)
                .map(|i| (format!("t{i}"), json!("v")))
                .collect::<serde_json::Map<_, _>>()
        };
        assert_eq!(
            refused(with("tags", many(17).into())),
            [("/tags".to_owned(), "too_many")]
        );
        assert_eq!(with("tags", many(16).into()).unwrap().tags.len(), 16);
        assert_eq!(
            with("payload", json!("x".repeat((256 << 10) - 2)))
                .unwrap()
                .payload
                .unwrap()
                .0
                .len(),
            256 << 10
        );
    }

    #[test]
    fn mistakes_in_several_fields_are_told_together() {
        let body = json!({"delay": 5, "key": 1, "action": {"http": {"url": "x", "headers": {"host": "y"}}},
            "retry": {"ladder": [], "max_attempts": 0}, "dely": 1});
        let mut pointers: Vec<String> = refused(create(body.to_string().as_bytes(), &WIDE))
            .into_iter()
            .map(|(pointer, _)| pointer)
            .collect();
        pointers.sort_unstable();
        let all = [
            "/action/http/headers/host",
            "/action/http/url",
            "/delay",
            "/dely",
            "/key",
            "/retry/ladder",
            "/retry/max_attempts",
            "/topic",
        ];
        assert_eq!(pointers, all);
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<CreateTask>(), CREATE.fields);
    }

    /// A JSON value of any shape, mostly of the words that bodies are made of.
    fn any_json() -> impl Strategy<Value = Value> {
        let words = prop::sample::select(vec![
            "PT1S",
            "2027-01-01T00:00:00Z",
            "2027-01-01T00:00:00",
            "UTC",
            "http://a/b",
            "x",
            "",
            "core",
            "return",
            "a\n",
        ]);
        let leaf = prop_oneof![
            words.prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ];
        let names = prop::sample::select(vec![
            "topic",
            "key",
            "due_at",
            "tz",
            "delay",
            "payload",
            "action",
            "retry",
            "timeouts",
            "tags",
            "facts",
            "http",
            "url",
            "headers",
            "none",
            "pull",
            "ladder",
            "fixed",
            "exponential",
            "base",
            "on",
            "jitter",
            "attempt",
            "x",
        ]);
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((names.clone(), inner), 0..6).prop_map(|fields| {
                    fields
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect::<serde_json::Map<_, _>>()
                        .into()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = create(&bytes, &WIDE);
        }

        #[test]
        fn any_json_is_read_or_refused_with_pointers(json in any_json(), now in any::<i64>(), max in any::<u64>()) {
            let limits = InLimits { max_delay: DurationMs(max), now: WallMs(now) };
            let body = json.to_string();
            let read = create(body.as_bytes(), &limits);
            prop_assert_eq!(&read, &decode(body.as_bytes(), |node| new_task(node, &limits)));
            if let Err(problem) = read {
                prop_assert_eq!(problem.status(), 422);
                prop_assert!(!problem.errors.is_empty());
                for error in problem.errors {
                    prop_assert!(error.code == "missing" || json.pointer(&error.pointer).is_some(), "{}", error.pointer);
                }
            }
        }

        #[test]
        fn one_changed_byte_never_panics_and_one_walk_reads_as_two(at in 0_usize..200, byte in any::<u8>()) {
            let mut body = br#"{"topic":"t","key":"k","due_at":"2027-06-01T12:00:00","tz":"Europe/London","payload":{"a":"\ud83d\ude00"},"action":{"http":{"url":"http://a/","headers":{"x-a":"b"}}},"retry":{"fixed":"PT1S"}}"#.to_vec();
            let at = at % body.len();
            body[at] = byte;
            prop_assert_eq!(create(&body, &WIDE), decode(&body, |node| new_task(node, &WIDE)));
        }
    }
}
