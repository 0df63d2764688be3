//! Many at once: creates as a JSON list or as lines (NDJSON), and lists of mixed operations.
//!
//! One bad item spoils itself, not its neighbours: it gets its own problem, in its place, with pointers that count
//! from the item. Only what leaves no items to speak of fails as a whole: a JSON list that is no JSON, or too many.
//! In NDJSON each line is read on its own, so even a broken line is only that line's.

use std::io::BufRead;
use std::ops::Range;

use bytes::Bytes;
use utoipa::ToSchema;

use crate::limits;
use crate::shard::messages::Target;
use crate::task::NewTask;
use crate::wire::decode::{Node, Object, Shape, decode, decode_part};
use crate::wire::due::InLimits;
use crate::wire::problem::Problem;
use crate::wire::task_in::{self, CreateTask, task_key, topic_name};
use crate::wire::verbs::{Verb, VerbName};

const ITEMS: Shape = Shape {
    fields: &["items"],
    not_built: &[],
};
const OPS: Shape = Shape {
    fields: &["ops"],
    not_built: &[],
};
/// What names a verb's task.
const TARGET: &[&str] = &["id", "topic", "key"];
const OP_NAMES: &[&str] = &[
    "create",
    "cancel",
    "complete",
    "fail",
    "pause",
    "resume",
    "reschedule",
    "run_now",
    "replay",
    "discard",
];
const OP: Shape = Shape {
    fields: OP_NAMES,
    not_built: &[],
};

/// One operation of a batch.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Create a task.
    Create(Box<NewTask>),
    /// Do something with one.
    Verb(Target, Verb),
}

/// A batch whose items have been found in its body, but not read yet: each is read when its turn comes, so that a
/// large batch never stands there twice, and whoever reads it can pause in between.
#[derive(Clone, Debug)]
pub struct Unread {
    body: Bytes,
    items: Vec<Range<usize>>,
    /// Lines are known to be lines; whether they are JSON shows when they are read.
    are_lines: bool,
}

impl Unread {
    /// Finds the items of `{"items": […]}`.
    ///
    /// # Errors
    /// 400 when the whole is not JSON, 422 when it is not such a list or too long.
    pub fn items(body: Bytes) -> Result<Self, Problem> {
        Self::list(body, &ITEMS)
    }

    /// Finds the operations of `{"ops": […]}`.
    ///
    /// # Errors
    /// 400 when the whole is not JSON, 422 when it is not such a list or too long.
    pub fn ops(body: Bytes) -> Result<Self, Problem> {
        Self::list(body, &OPS)
    }

    fn list(body: Bytes, shape: &'static Shape) -> Result<Self, Problem> {
        let items = decode(&body, |node| {
            let object = node.object(shape)?;
            let items = object.required(shape.fields[0], |node| {
                node.elements(limits::BATCH_ITEMS_MAX)
            })?;
            let place = |item: &str| {
                let begin = item.as_ptr().addr() - body.as_ptr().addr();
                begin..begin + item.len()
            };
            Some(items.into_iter().map(place).collect())
        })?;
        let are_lines = false;
        Ok(Self {
            body,
            items,
            are_lines,
        })
    }

    /// Finds the lines; empty ones are skipped.
    ///
    /// # Errors
    /// 422 when there are too many.
    pub fn lines(body: Bytes) -> Result<Self, Problem> {
        let mut items = Vec::new();
        let (mut rest, mut begin) = (&*body, 0);
        while let Ok(length @ 1..) = rest.skip_until(b'\n') {
            let end = begin + length;
            let line = begin..end - usize::from(body[end - 1] == b'\n');
            begin = end;
            if body[line.clone()].iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if items.len() >= limits::BATCH_ITEMS_MAX {
                let detail = format!("has more than {} lines", limits::BATCH_ITEMS_MAX);
                return Err(Problem::of_field("", "too_many", detail));
            }
            items.push(line);
        }
        let are_lines = true;
        Ok(Self {
            body,
            items,
            are_lines,
        })
    }

    /// Reads each item as a create.
    pub fn read_creates(
        &self,
        limits: &InLimits,
    ) -> impl Iterator<Item = Result<NewTask, Problem>> {
        self.parts().map(|part| match self.are_lines {
            true => task_in::create(part, limits),
            false => decode_part(part, |node| task_in::new_task(node, limits)),
        })
    }

    /// Reads each item as an operation.
    pub fn read_ops(&self, limits: &InLimits) -> impl Iterator<Item = Result<Op, Problem>> {
        self.parts()
            .map(|part| decode_part(part, |node| op(node, limits)))
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.items.iter().map(|item| &self.body[item.clone()])
    }
}

fn op(node: Node<'_, '_>, limits: &InLimits) -> Option<Op> {
    let body = node.object(&OP)?;
    let name = body.one_of(OP_NAMES)?;
    body.required(name, |node| {
        let Some(verb) = VerbName::ALL.iter().find(|verb| verb.in_batch() == name) else {
            return task_in::new_task(node, limits).map(|task| Op::Create(Box::new(task)));
        };
        let body = node.object_beside(verb.shape(), TARGET)?;
        let target = target(&body);
        let verb = verb.read(&body, limits)?;
        Some(Op::Verb(target?, verb))
    })
}

/// Reads `id`, or `topic` and `key`.
fn target(body: &Object<'_, '_>) -> Option<Target> {
    let id = body.optional("id", |node| {
        let text = node.text()?;
        let parsed = text.parse();
        parsed.map_or_else(
            |error: crate::ids::NotATaskId| node.refuse("invalid_id", format!("is none: {error}")),
            Some,
        )
    });
    let by_key = body.has("topic") || body.has("key");
    match (body.has("id"), by_key) {
        (true, false) => id.map(Target::Id),
        (true, true) => body.refuse(
            "id",
            "conflict",
            "stands beside `topic` or `key`; give one or the other",
        ),
        (false, true) => {
            let topic = body.required("topic", topic_name);
            let key = body.required("key", task_key);
            Some(Target::Key(topic?, key?))
        }
        (false, false) => body.refuse(
            "id",
            "missing",
            "is missing: name the task by `id`, or by `topic` and `key`",
        ),
    }
}

/// Body of `POST /v1/tasks/batch` as JSON; as NDJSON each line is one item.
#[derive(Debug, ToSchema)]
pub struct CreateBatch {
    /// At most 10 000.
    #[schema(max_items = 10000)]
    pub items: Vec<CreateTask>,
}

/// Body of `POST /v1/batch`.
#[derive(Debug, ToSchema)]
pub struct OpBatch {
    /// At most 10 000 objects of one field: `create` with a task, or `cancel`, `complete`, `fail`, `pause`, `resume`,
    /// `reschedule`, `run_now`, `replay`, `discard` with `id`, or `topic` and `key`, beside the verb's own fields.
    #[schema(max_items = 10000)]
    pub ops: Vec<std::collections::HashMap<String, serde_json::Value>>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::task::{TaskKey, TopicName};

    use crate::wire::problem::Code;
    use crate::wire::tests::{WIDE, properties, refused};

    fn read<T>(
        found: Result<Unread, Problem>,
        read: impl FnOnce(&Unread) -> Items<T>,
    ) -> Result<Items<T>, Problem> {
        found.map(|unread| read(&unread))
    }

    fn creates(body: &[u8], limits: &InLimits) -> Result<Items<NewTask>, Problem> {
        let body = Bytes::copy_from_slice(body);
        read(Unread::items(body), |unread| {
            unread.read_creates(limits).collect()
        })
    }

    fn creates_by_line(body: &[u8], limits: &InLimits) -> Result<Items<NewTask>, Problem> {
        let body = Bytes::copy_from_slice(body);
        read(Unread::lines(body), |unread| {
            unread.read_creates(limits).collect()
        })
    }

    fn ops(body: &[u8], limits: &InLimits) -> Result<Items<Op>, Problem> {
        let body = Bytes::copy_from_slice(body);
        read(Unread::ops(body), |unread| {
            unread.read_ops(limits).collect()
        })
    }

    const GOOD: &str = r#"{"topic": "t", "delay": "PT1H", "action": {"none": {}}}"#;

    type Items<T> = Vec<Result<T, Problem>>;

    fn statuses<T>(items: &Items<T>) -> Vec<u16> {
        items
            .iter()
            .map(|item| item.as_ref().map_or_else(Problem::status, |_| 201))
            .collect()
    }

    #[test]
    fn each_item_stands_for_itself() {
        let body =
            format!(r#"{{"items": [{GOOD}, {{"topic": "t", "delay": "soon"}}, 7, null, {GOOD}]}}"#);
        let items = creates(body.as_bytes(), &WIDE).unwrap();
        assert_eq!(statuses(&items), [201, 422, 422, 422, 201]);
        let soon = items.into_iter().nth(1).unwrap();
        assert_eq!(refused(soon), [("/delay".to_owned(), "invalid_duration")]);
        assert_eq!(creates(br#"{"items": []}"#, &WIDE).unwrap().len(), 0);
    }

    #[test]
    fn a_broken_line_is_that_lines_problem_only() {
        let deep = format!(
            r#"{{"topic": "t", "payload": {}{}}}"#,
            "[".repeat(70),
            "]".repeat(70)
        );
        let body = format!("{GOOD}\n\n  {GOOD}\r\n{{\"topic\": \n{deep}\nhello\n{GOOD}");
        let items = creates_by_line(body.as_bytes(), &WIDE).unwrap();
        assert_eq!(statuses(&items), [201, 201, 400, 400, 400, 201]);
        let items = creates_by_line(b"{\"topic\": \"\xff\"}\n{\"topic\": \"t\"}", &WIDE).unwrap();
        assert_eq!(statuses(&items), [400, 201]);
        assert_eq!(creates_by_line(b"", &WIDE).unwrap().len(), 0);
    }

    #[test]
    fn a_broken_list_fails_as_a_whole() {
        assert_eq!(
            creates(b"{\"items\": [", &WIDE).unwrap_err().code,
            Code::NotJson
        );
        for (body, pointer, code) in [
            ("{}", "/items", "missing"),
            (r#"{"items": {}}"#, "/items", "wrong_type"),
            (r#"{"items": [], "x": 1}"#, "/x", "unknown_field"),
            ("[]", "", "wrong_type"),
        ] {
            assert_eq!(
                refused(creates(body.as_bytes(), &WIDE)),
                [(pointer.to_owned(), code)],
                "{body}"
            );
        }
    }

    #[test]
    fn ten_thousand_are_taken_and_one_more_is_not() {
        let list = |n| format!(r#"{{"items": [{}]}}"#, vec!["1"; n].join(","));
        assert_eq!(
            creates(list(10_000).as_bytes(), &WIDE).unwrap().len(),
            10_000
        );
        assert_eq!(
            refused(creates(list(10_001).as_bytes(), &WIDE)),
            [("/items".to_owned(), "too_many")]
        );
        assert_eq!(
            creates_by_line("1\n".repeat(10_000).as_bytes(), &WIDE)
                .unwrap()
                .len(),
            10_000
        );
        assert_eq!(
            refused(creates_by_line("1\n".repeat(10_001).as_bytes(), &WIDE)),
            [(String::new(), "too_many")]
        );
    }

    #[test]
    fn operations_name_their_task_by_id_or_by_topic_and_key() {
        let id = "0192f0c1-2345-7abc-8def-0123456789ab";
        let body = json!({"ops": [
            {"create": {"topic": "t"}},
            {"cancel": {"topic": "t", "key": "k", "reason": "paid"}},
            {"complete": {"id": id, "result": {"a": 1}}},
            {"reschedule": {"id": id, "delay": "PT1H"}},
            {"run_now": {"id": id}},
            {"discard": {"id": id}},
        ]});
        let read: Vec<Op> = ops(body.to_string().as_bytes(), &WIDE)
            .unwrap()
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let by_key = Target::Key(TopicName::parse("t").unwrap(), TaskKey::parse("k").unwrap());
        let by_id = Target::Id(id.parse().unwrap());
        assert_eq!(
            read[0],
            Op::Create(Box::new(NewTask::new(TopicName::parse("t").unwrap())))
        );
        let cancel = Verb::Cancel {
            reason: Some("paid".into()),
            tombstone_for: None,
        };
        assert_eq!(read[1], Op::Verb(by_key, cancel));
        assert!(matches!(
            &read[2],
            Op::Verb(
                Target::Id(_),
                Verb::Complete {
                    result: Some(_),
                    ..
                }
            )
        ));
        assert!(matches!(&read[3], Op::Verb(_, Verb::Reschedule(_))));
        assert_eq!(
            read[4..],
            [
                Op::Verb(by_id.clone(), Verb::RunNow),
                Op::Verb(by_id, Verb::Discard)
            ]
        );
    }

    #[test]
    fn an_operation_that_is_not_clear_is_refused() {
        for (op, pointer, code) in [
            (r#"{}"#, "", "missing"),
            (
                r#"{"cancel": {"id": "0192f0c1-2345-7abc-8def-0123456789ab"}, "pause": {}}"#,
                "/pause",
                "conflict",
            ),
            (r#"{"kill": {}}"#, "/kill", "unknown_field"),
            (r#"{"cancel": {}}"#, "/cancel/id", "missing"),
            (r#"{"cancel": {"topic": "t"}}"#, "/cancel/key", "missing"),
            (r#"{"cancel": {"key": "k"}}"#, "/cancel/topic", "missing"),
            (
                r#"{"cancel": {"id": "nonsense"}}"#,
                "/cancel/id",
                "invalid_id",
            ),
            (
                r#"{"cancel": {"id": "0192f0c1-2345-7abc-8def-0123456789ab", "key": "k"}}"#,
                "/cancel/id",
                "conflict",
            ),
            (
                r#"{"cancel": {"topic": "t", "key": "k", "why": 1}}"#,
                "/cancel/why",
                "unknown_field",
            ),
            (
                r#"{"create": {"topic": "t", "delay": 5}}"#,
                "/create/delay",
                "wrong_type",
            ),
        ] {
            let body = format!(r#"{{"ops": [{op}]}}"#);
            let read = ops(body.as_bytes(), &WIDE).unwrap().remove(0);
            assert_eq!(refused(read), [(pointer.to_owned(), code)], "{op}");
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<CreateBatch>(), ITEMS.fields);
        assert_eq!(properties::<OpBatch>(), OPS.fields);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..100),
            r#"\{"(ops|items)":\[(\{"(create|cancel|fail)":\{("(id|topic|key|error)":("a"|1|null|\{\}),?){0,3}\}\},?){0,3}\]\}"#
                .prop_map(String::into_bytes),
        ]) {
            let _ = creates(&bytes, &WIDE);
            let _ = creates_by_line(&bytes, &WIDE);
            let _ = ops(&bytes, &WIDE);
        }
    }
}
