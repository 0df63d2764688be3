//! The query of `GET /v1/tasks`: which tasks, in which order, which page.
//!
//! A page ends with a **cursor**, the place of its last record. It is opaque, but no secret: version, order, a hash of
//! the filter, and the place, as hexadecimal digits. The hash is there because a cursor of another list would be a
//! place that means nothing in this one: pages would silently lack tasks or show them twice.

use std::borrow::Cow;

use utoipa::IntoParams;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::WallMs;
use crate::ids::TaskId;
use crate::limits;
use crate::shard::query::{Order, Position, Span, TaskFilter};
use crate::task::model::DeadReason;
use crate::task::spec::ResourceName;
use crate::task::{State, TaskKey, TopicName};
use crate::wheel::bucket::{BucketId, Level};
use crate::wheel::minute_label;
use crate::wire::decode::Node;
use crate::wire::params::{LIMIT_DEFAULT, Params};
use crate::wire::problem::Problem;
use crate::wire::task_in::CLASS;
use crate::wire::time;

/// Grows when a cursor's layout or a filter's text changes.
const CURSOR_VERSION: u8 = 1;
/// Version, order, filter's hash, time, id.
const CURSOR_BYTES: usize = 1 + 1 + 8 + 8 + 16;
/// Longest text that is searched for, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Most words of a filter in a body.
const WORDS_MAX: usize = 40;

const ORDERS: [(&str, Order); 3] = [
    ("due_at", Order::DueFirst),
    ("-due_at", Order::DueLast),
    ("-ended_at", Order::EndedLast),
];

/// What a list is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ListAsk {
    /// Which tasks.
    pub filter: TaskFilter,
    /// In which order.
    pub order: Order,
    /// Behind this place.
    pub after: Option<Position>,
    /// At most this many.
    pub limit: usize,
}

impl ListAsk {
    /// Reads a query string (what stands behind the `?`).
    ///
    /// # Errors
    /// 422 with all parameters that are not valid, each as `/name`.
    pub fn parse(query: &str) -> Result<Self, Problem> {
        let mut params = Params::default();
        let mut reading = Reading {
            ask: Self {
                filter: TaskFilter::default(),
                order: Order::default(),
                after: None,
                limit: LIMIT_DEFAULT,
            },
            bucket: Span::default(),
            cursor: None,
        };
        // Several states are alternatives; several of anything else would be a riddle.
        params.each(query, &["state"], |params, name, value| {
            reading.take(params, name, value);
        });
        let ask = reading.finish(&params);
        params.close()?;
        Ok(ask)
    }

    /// The cursor of a page of this list that ends at `place`.
    pub fn cursor(&self, place: Position) -> String {
        let mut bytes = Vec::with_capacity(CURSOR_BYTES);
        bytes.extend(self.cursor_head());
        bytes.extend(place.at.0.to_be_bytes());
        bytes.extend(place.id.to_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The place that a cursor of this list names.
    fn place(&self, cursor: &str) -> Option<Position> {
        let digits = cursor.as_bytes();
        if digits.len() != 2 * CURSOR_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let value = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default() as u8;
        let bytes: Vec<u8> = digits
            .chunks_exact(2)
            .map(|pair| (value(pair[0]) << 4) | value(pair[1]))
            .collect();
        let rest = bytes.strip_prefix(&self.cursor_head())?;
        let (at, id) = rest.split_first_chunk()?;
        Some(Position {
            at: WallMs(i64::from_be_bytes(*at)),
            id: TaskId::from_bytes(id.try_into().ok()?),
        })
    }

    fn cursor_head(&self) -> [u8; 10] {
        let order = ORDERS
            .iter()
            .position(|(_, order)| *order == self.order)
            .unwrap_or_default() as u8;
        // The filter's debug text is the same for the same filter, which is all that is asked of it.
        let hash = xxh3_64(format!("{:?}", self.filter).as_bytes()).to_be_bytes();
        let mut head = [CURSOR_VERSION; 10];
        head[1] = order;
        head[2..].copy_from_slice(&hash);
        head
    }
}

/// A query half read.
struct Reading {
    ask: ListAsk,
    bucket: Span,
    cursor: Option<String>,
}

impl Reading {
    fn take(&mut self, params: &Params, name: &str, value: &str) {
        match name {
            "topic" => self.ask.filter.topic = params.name(name, value, TopicName::parse),
            "key" => self.ask.filter.key = params.name(name, value, TaskKey::parse),
            "key_prefix" => {
                self.ask.filter.key_prefix = text(params, name, value, limits::KEY_BYTES_MAX)
            }
            "text" => self.ask.filter.text = text(params, name, value, TEXT_BYTES_MAX),
            "state" => self.states(params, value),
            "class" => self.ask.filter.class = params.word(name, value, &CLASS),
            "dead_reason" => {
                let words = DeadReason::ALL.map(|reason| (reason.name(), reason));
                self.ask.filter.dead_reason = params.word(name, value, &words);
            }
            "due_after" => self.ask.filter.due.after = params.time(name, value),
            "due_before" => self.ask.filter.due.before = params.time(name, value),
            "created_after" => self.ask.filter.created.after = params.time(name, value),
            "created_before" => self.ask.filter.created.before = params.time(name, value),
            "ended_after" => self.ask.filter.ended.after = params.time(name, value),
            "ended_before" => self.ask.filter.ended.before = params.time(name, value),
            "bucket" => self.bucket = bucket(params, value).unwrap_or_default(),
            "order" => self.ask.order = params.word(name, value, &ORDERS).unwrap_or_default(),
            "limit" => {
                self.ask.limit = params.limit(name, value).unwrap_or(LIMIT_DEFAULT);
            }
            "cursor" => self.cursor = Some(value.to_owned()),
            "rule" => self.ask.filter.rule = params.name(name, value, ResourceName::parse),
            _ => match name.strip_prefix("tag.") {
                Some(tag) if !tag.is_empty() => self
                    .ask
                    .filter
                    .tags
                    .push((tag.to_owned(), value.to_owned())),
                _ => {
                    let detail = "is no parameter of this list; known are topic, key, key_prefix, state, tag.NAME, \
                        due_after, due_before, created_after, created_before, ended_after, ended_before, dead_reason, \
                        rule, class, bucket, text, order, limit, cursor";
                    params.refuse::<()>(name, "unknown_parameter", detail);
                }
            },
        }
    }

    /// What only the whole query tells.
    fn finish(mut self, params: &Params) -> ListAsk {
        let filter = &mut self.ask.filter;
        filter.states.sort_unstable();
        filter.states.dedup();
        filter.tags.sort_unstable();
        filter.due.after = filter.due.after.max(self.bucket.after);
        filter.due.before = match (filter.due.before, self.bucket.before) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        if let Some(cursor) = self.cursor.take() {
            self.ask.after = self.ask.place(&cursor).or_else(|| {
                params.refuse(
                    "cursor",
                    "invalid_cursor",
                    "is not a `next_cursor` of a list with this filter and order",
                )
            });
        }
        self.ask
    }

    fn states(&mut self, params: &Params, value: &str) {
        let words = State::ALL.map(|state| (state.name(), state));
        let states = value
            .split(',')
            .filter_map(|word| params.word("state", word, &words));
        let states: Vec<State> = states.collect();
        self.ask.filter.states.extend(states);
    }
}

/// Reads a filter that stands in a body: an object of the words that a list's query has; `state` may be a list. Words of
/// a page (`order`, `limit`, `cursor`) mean nothing there and are refused.
pub(super) fn filter(node: Node<'_, '_>) -> Option<TaskFilter> {
    let entries = node.entries(WORDS_MAX, |name, node| {
        if ["order", "limit", "cursor"].contains(&name) {
            return node.refuse("unknown_field", "is no word of a filter");
        }
        let values = match node.is_null() {
            true => Vec::new(),
            false if node.is_list() => node.list(State::ALL.len(), |node| node.text())?,
            false => vec![node.text()?],
        };
        let values = values.into_iter().map(Cow::into_owned);
        Some((name.to_owned(), values.collect::<Vec<_>>()))
    })?;
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, values) in &entries {
        query.extend_pairs(values.iter().map(|value| (name, value)));
    }
    let ask = node.taken(ListAsk::parse(&query.finish()))?;
    Some(ask.filter)
}

/// Parameters of `GET /v1/tasks`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// Of this topic.
    pub topic: Option<String>,
    /// With this key.
    pub key: Option<String>,
    /// With a key that begins so.
    pub key_prefix: Option<String>,
    /// In one of these states: repeated, or with commas.
    pub state: Option<String>,
    /// With this value of the tag NAME.
    #[param(rename = "tag.NAME")]
    pub tag: Option<String>,
    /// Due at this time or later (RFC 3339, with offset; write `+` as `%2B`).
    pub due_after: Option<String>,
    /// Due before this time.
    pub due_before: Option<String>,
    /// Created at this time or later.
    pub created_after: Option<String>,
    /// Created before this time.
    pub created_before: Option<String>,
    /// Ended at this time or later.
    pub ended_after: Option<String>,
    /// Ended before this time.
    pub ended_before: Option<String>,
    /// Dead for this reason: `attempts_used_up`, `lease_expired`, `total_time`, `refused`, `outcome_unknown`.
    pub dead_reason: Option<String>,
    /// Whose due time this rule gives.
    pub rule: Option<String>,
    /// `core`, `normal` or `bulk`.
    pub class: Option<String>,
    /// Due in this minute (UTC): `202612011030`.
    pub bucket: Option<String>,
    /// With this text in key, tags, payload or last error.
    pub text: Option<String>,
    /// `due_at` (default), `-due_at` or `-ended_at` (ended tasks only).
    pub order: Option<String>,
    /// Items of a page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

fn text(params: &Params, name: &str, value: &str, bytes_max: usize) -> Option<String> {
    if value.is_empty() || value.len() > bytes_max {
        return params.refuse(
            name,
            "out_of_range",
            format!("must have 1 to {bytes_max} bytes"),
        );
    }
    Some(value.to_owned())
}

/// The minute of a bucket's name: `202612011030`.
fn bucket(params: &Params, value: &str) -> Option<Span> {
    let part = |from: usize, to: usize| value.get(from..to).unwrap_or_default();
    let text = format!(
        "{}-{}-{}T{}:{}:00Z",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(8, 10),
        part(10, 12)
    );
    let start = time::parse(&text, None)
        .ok()
        .filter(|start| minute_label(start.0) == value);
    let Some(start) = start else {
        return params.refuse(
            "bucket",
            "invalid_bucket",
            "must be a minute in UTC such as 202612011030",
        );
    };
    Some(Span {
        after: Some(start),
        before: Some(WallMs(BucketId::of(Level::Minute, start.0).end_ms())),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::spec::Class;
    use crate::wire::decode::decode;
    use crate::wire::tests::refused;

    const AT: &str = "2026-12-01T10:30:00Z";
    const AT_MS: WallMs = WallMs(1_796_121_000_000);

    fn filter(query: &str) -> TaskFilter {
        ListAsk::parse(query).unwrap().filter
    }

    fn a_place() -> Position {
        Position {
            at: WallMs(-5),
            id: TaskId::from_bytes(*b"0123456789abcdef"),
        }
    }

    #[test]
    fn an_empty_query_is_the_first_hundred_by_due_time() {
        let ask = ListAsk::parse("").unwrap();
        assert_eq!(
            (ask.limit, ask.order, ask.after),
            (100, Order::DueFirst, None)
        );
        assert_eq!(ask.filter, TaskFilter::default());
    }

    #[test]
    fn every_parameter_is_read() {
        let query = format!(
            "topic=order.unpaid&key=a%2Fb&key_prefix=a&state=pending,dead&state=paused&tag.region=eu&tag.odd=1\
             &due_after={AT}&due_before={AT}&created_after={AT}&created_before={AT}&ended_after={AT}&ended_before={AT}\
             &dead_reason=refused&rule=r&class=bulk&text=x+y&order=-ended_at&limit=37"
        );
        let ask = ListAsk::parse(&query).unwrap();
        let both = Span {
            after: Some(AT_MS),
            before: Some(AT_MS),
        };
        let expected = TaskFilter {
            topic: TopicName::parse("order.unpaid").ok(),
            key: TaskKey::parse("a/b").ok(),
            key_prefix: Some("a".into()),
            states: vec![State::Pending, State::Paused, State::Dead],
            tags: vec![("odd".into(), "1".into()), ("region".into(), "eu".into())],
            due: both,
            created: both,
            ended: both,
            dead_reason: Some(DeadReason::Refused),
            rule: ResourceName::parse("r").ok(),
            class: Some(Class::Bulk),
            text: Some("x y".into()),
        };
        assert_eq!(ask.filter, expected);
        assert_eq!((ask.order, ask.limit), (Order::EndedLast, 37));
    }

    #[test]
    fn a_bucket_is_the_span_of_its_minute() {
        let minute = Span {
            after: Some(AT_MS),
            before: Some(WallMs(AT_MS.0 + 60_000)),
        };
        assert_eq!(filter("bucket=202612011030").due, minute);
        let half = filter(
            "bucket=202612011030&due_before=2026-12-01T10:30:30Z&due_after=2026-12-01T10:00:00Z",
        )
        .due;
        assert_eq!(
            half,
            Span {
                after: Some(AT_MS),
                before: Some(WallMs(AT_MS.0 + 30_000))
            }
        );
    }

    #[test]
    fn a_filter_in_a_body_is_that_of_a_query_and_has_no_words_of_a_page() {
        let read = |body: &[u8]| decode(body, super::filter);
        let body = br#"{"topic": "a", "state": ["dead", "paused"], "tag.b": "1", "key": null}"#;
        assert_eq!(
            read(body).unwrap(),
            filter("topic=a&state=dead,paused&tag.b=1")
        );
        assert_eq!(read(b"{}").unwrap(), TaskFilter::default());
        for (body, pointer, code) in [
            (r#"{"limit": "5"}"#, "/limit", "unknown_field"),
            (r#"{"colour": "red"}"#, "/colour", "unknown_parameter"),
            (r#"{"state": ["gone"]}"#, "/state", "unknown_value"),
            (r#"{"topic": 7}"#, "/topic", "wrong_type"),
        ] {
            assert_eq!(refused(read(body.as_bytes())), [(pointer.to_owned(), code)]);
        }
    }

    #[test]
    fn a_plus_sign_that_became_a_space_is_understood() {
        let due = |query| filter(query).due.after;
        assert_eq!(due("due_after=2026-12-01T11:30:00+01:00"), Some(AT_MS));
        assert_eq!(due("due_after=2026-12-01T11:30:00%2B01:00"), Some(AT_MS));
    }

    #[test]
    fn what_is_not_known_or_not_valid_is_named() {
        for (query, pointer, code) in [
            ("colour=red", "/colour", "unknown_parameter"),
            ("tag.=x", "/tag.", "unknown_parameter"),
            ("limit=1001", "/limit", "out_of_range"),
            ("limit=0", "/limit", "out_of_range"),
            ("limit=x", "/limit", "out_of_range"),
            ("cursor=zzz", "/cursor", "invalid_cursor"),
            ("cursor=", "/cursor", "invalid_cursor"),
            ("rule=", "/rule", "invalid_name"),
            ("topic=", "/topic", "invalid_name"),
            ("state=pending,gone", "/state", "unknown_value"),
            ("class=gold", "/class", "unknown_value"),
            ("dead_reason=sad", "/dead_reason", "unknown_value"),
            ("order=key", "/order", "unknown_value"),
            (
                "due_after=2026-12-01T10:30:00",
                "/due_after",
                "offset_missing",
            ),
            ("due_after=now", "/due_after", "invalid_time"),
            ("bucket=2026120110", "/bucket", "invalid_bucket"),
            ("bucket=202613011030", "/bucket", "invalid_bucket"),
            ("bucket=2026120110301", "/bucket", "invalid_bucket"),
            ("topic=a&topic=b", "/topic", "duplicate_field"),
            ("tag.a=1&tag.a=2", "/tag.a", "duplicate_field"),
            ("key_prefix=", "/key_prefix", "out_of_range"),
        ] {
            assert_eq!(
                refused(ListAsk::parse(query)),
                [(pointer.to_owned(), code)],
                "{query}"
            );
        }
        assert_eq!(refused(ListAsk::parse("colour=red&limit=0")).len(), 2);
    }

    #[test]
    fn a_cursor_leads_back_to_its_place() {
        for query in [
            "",
            "topic=a&state=dead,pending&order=-due_at",
            "bucket=202612011030&tag.b=1&tag.a=2",
        ] {
            let cursor = ListAsk::parse(query).unwrap().cursor(a_place());
            let next = ListAsk::parse(&format!("{query}&limit=7&cursor={cursor}")).unwrap();
            assert_eq!(next.after, Some(a_place()), "{query}");
        }
    }

    #[test]
    fn a_cursor_of_another_list_is_refused() {
        let cursor = ListAsk::parse("topic=a").unwrap().cursor(a_place());
        for query in ["", "topic=b", "topic=a&order=-due_at", "topic=a&state=dead"] {
            let read = ListAsk::parse(&format!("{query}&cursor={cursor}"));
            assert_eq!(
                refused(read),
                [("/cursor".to_owned(), "invalid_cursor")],
                "{query}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_refused(query in r"(((state|limit|due_after|bucket|cursor|tag\.a|order)=)?[%0-9A-Za-z+:.=&-]{0,20}&?){0,4}|.{0,60}") {
            let _ = ListAsk::parse(&query);
        }

        #[test]
        fn any_cursor_is_read_or_refused(cursor in "[0-9a-f]{68}|[0-9a-fA-F]{0,70}|.{0,70}") {
            let ask = ListAsk::parse("").unwrap();
            if let Some(place) = ask.place(&cursor) {
                prop_assert_eq!(ask.cursor(place), cursor.to_ascii_lowercase());
            }
        }
    }
}
