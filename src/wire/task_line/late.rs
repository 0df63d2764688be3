//! Late answers as lines: `{"late_answer": {…}}`, with the names of the API's lists.

use serde::Serialize;

use super::read::{OUTCOMES, error, id, instant, number, state, text};
use crate::ids::TaskId;
use crate::limits;
use crate::task::late::{LateAnswer, Treatment};
use crate::wire::decode::{Node, Object, Shape};
use crate::wire::late::LateOut;
use crate::wire::task_in;
use crate::wire::task_out::embedded;
use crate::wire::verbs;

const LATE: Shape = Shape {
    fields: &[
        "task",
        "topic",
        "key",
        "attempt",
        "token",
        "generation",
        "outcome",
        "error",
        "result",
        "result_dropped",
        "by",
        "worker",
        "at",
        "attempt_outcome",
        "task_state",
        "why",
        "treatment",
        "compensation",
    ],
    not_built: &[],
};
/// A treatment, with the task that compensates.
type Treats = fn(Option<TaskId>) -> Option<Treatment>;
const TREATMENTS: [(&str, Treats); 3] = [
    ("refused", |_| Some(Treatment::Refused)),
    ("accepted", |_| Some(Treatment::Accepted)),
    ("compensated", |by| by.map(Treatment::Compensated)),
];

#[derive(Serialize)]
struct Line<'a> {
    late_answer: LateOut<'a>,
}

/// Writes a late answer as a line, with its end.
///
/// # Errors
/// When its result is no JSON.
pub fn write_late(late: &LateAnswer, line: &mut Vec<u8>) -> serde_json::Result<()> {
    if late.result.is_some() && embedded(late.result.as_ref()).is_none() {
        return Err(serde::ser::Error::custom("its result is no JSON"));
    }
    let late_answer = late.into();
    super::write_line(&Line { late_answer }, line)
}

pub(super) fn late(node: Node<'_, '_>) -> Option<LateAnswer> {
    let body = node.object(&LATE)?;
    let task = body.required("task", id);
    let topic = body.required("topic", task_in::topic_name);
    let token = body.required("token", verbs::token);
    let outcome = body.required("outcome", |node| node.word(&OUTCOMES));
    let by = body.required("by", text);
    let at = body.required("at", instant);
    let state = body.required("task_state", state);
    let treatment = treatment(&body);
    Some(LateAnswer {
        key: body.optional("key", task_in::task_key),
        attempt: body
            .optional("attempt", number)
            .map(crate::ids::AttemptNumber),
        generation: body.optional("generation", number),
        error: body.optional("error", error),
        result: body.optional("result", |node| node.raw(limits::RESULT_BYTES_MAX)),
        result_dropped: body
            .optional("result_dropped", |node| node.flag())
            .unwrap_or_default(),
        worker: body.optional("worker", text),
        ended_as: body.optional("attempt_outcome", |node| node.word(&OUTCOMES)),
        task: task?,
        topic: topic?,
        token: token?,
        outcome: outcome?,
        by: by?,
        at: at?,
        state: state?,
        treatment: treatment?,
    })
}

fn treatment(body: &Object<'_, '_>) -> Option<Treatment> {
    let compensation = body.optional("compensation", id);
    let treatment = body.required("treatment", |node| node.word(&TREATMENTS))?;
    treatment(compensation).or_else(|| {
        body.refuse(
            "compensation",
            "missing",
            "is missing: it goes with `compensated`",
        )
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::WallMs;
    use crate::task::spec::RawJson;
    use crate::testing::arbitrary::a_late_answer;
    use crate::wire::task_line::{Line, read};
    use crate::wire::tests::refused;

    fn sane(late: LateAnswer) -> LateAnswer {
        let as_json = |text: &RawJson| RawJson::from(json!([text.as_str()]).to_string());
        LateAnswer {
            at: WallMs(late.at.0.rem_euclid(253_402_200_000_000)),
            result: late.result.as_ref().map(as_json),
            ..late
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back_unchanged(late in a_late_answer()) {
            let late = sane(late);
            let mut line = Vec::new();
            write_late(&late, &mut line).unwrap();
            prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            match read(&line).unwrap() {
                Line::Late(back) => prop_assert_eq!(*back, late),
                Line::Task(task) => panic!("{task:?}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_is_refused_at_its_place_and_nothing_else_is_missed() {
        for (late, pointer, code) in [
            (json!({"colour": 1}), "/late_answer/colour", "unknown_field"),
            (json!({"task": "x"}), "/late_answer/task", "invalid_id"),
        ] {
            let line = json!({ "late_answer": late }).to_string();
            let wrong = refused(read(line.as_bytes()));
            assert!(wrong.contains(&(pointer.to_owned(), code)), "{wrong:?}");
            let is_inside = |(pointer, _): &(String, _)| pointer.starts_with("/late_answer");
            assert!(wrong.iter().all(is_inside), "{wrong:?}");
        }
        let mut line = json!({"late_answer": {
            "task": "0192f0c1-2345-7abc-8def-0123456789ab", "topic": "t", "token": 1, "outcome": "succeeded",
            "by": "worker", "at": "2026-11-30T00:53:20.000Z", "task_state": "dead", "treatment": "compensated",
        }});
        let wrong = refused(read(line.to_string().as_bytes()));
        assert_eq!(wrong, [("/late_answer/compensation".to_owned(), "missing")]);
        line["late_answer"]["treatment"] = Value::from("refused");
        assert!(read(line.to_string().as_bytes()).is_ok());
    }
}
