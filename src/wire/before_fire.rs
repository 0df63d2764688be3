//! Guards, in and out: what decides, shortly before a task or a stage fires, whether it does.

use serde::Serialize;
use utoipa::ToSchema;

use crate::limits;
use crate::rule::expr::{self, Expr};
use crate::task::guard::{Guard, GuardQuestion, OnSilence};
use crate::wire::action::{self, HttpBody};
use crate::wire::decode::{Node, Shape, word_of};
use crate::wire::time::Length;

const KINDS: &[&str] = &["if", "http"];
const GUARD: Shape = Shape {
    fields: &[
        "if",
        "http",
        "fire_if",
        "cancel_if",
        "extend_by",
        "on_no_answer",
    ],
    not_built: &[],
};
const ON_NO_ANSWER: [(&str, OnSilence); 3] = [
    ("retry", OnSilence::Retry),
    ("fire", OnSilence::Fire),
    ("hold", OnSilence::Hold),
];

/// Reads a guard.
pub(super) fn guard(node: Node<'_, '_>) -> Option<Guard> {
    let body = node.object(&GUARD)?;
    if body.one_of(KINDS)? == "if" {
        let of_questions = GUARD.fields.iter().filter(|field| !KINDS.contains(field));
        if let Some(field) = of_questions.copied().find(|field| body.has(field)) {
            return body.refuse(field, "conflict", "goes with `http`, not with `if`");
        }
        return body.required("if", condition).map(Guard::If);
    }
    let http = body.required("http", action::question);
    let fire_if = body.optional("fire_if", action::condition);
    let cancel_if = body.optional("cancel_if", action::condition);
    let extend_by = body.optional("extend_by", |node| node.length(limits::GUARD_EXTEND_MS));
    let on_no_answer = body.optional("on_no_answer", |node| node.word(&ON_NO_ANSWER));
    if !body.has("fire_if") && !body.has("cancel_if") {
        return node.refuse(
            "missing",
            "has neither `fire_if` nor `cancel_if`; give one or both",
        );
    }
    if body.has("extend_by") && !body.has("fire_if") {
        let detail =
            "needs `fire_if`: without one it would be made later again and again, and never fire";
        return body.refuse("extend_by", "conflict", detail);
    }
    Some(Guard::Asks(Box::new(GuardQuestion {
        http: http?,
        fire_if,
        cancel_if,
        extend_by,
        on_no_answer: on_no_answer.unwrap_or_default(),
    })))
}

/// A condition over a task that its shard evaluates itself, as it was written.
pub(super) fn condition(node: Node<'_, '_>) -> Option<String> {
    let source = action::expression(node, expr::TASK)?;
    let cost = Expr::shared(&source, expr::TASK).map_or(0, |expr| expr.cost());
    let max = limits::STAGE_CONDITION_COST_MAX;
    if cost > max {
        let detail = format!(
            "may cost {cost} units at worst, at most {max} are allowed here: compare fewer things"
        );
        return node.refuse("invalid_expression", detail);
    }
    Some(source)
}

/// What decides, shortly before a task fires, whether it does: a condition over what is stored of it, or a question. That
/// of a stage decides for the stage only: where a task would be cancelled, the stage is passed over.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Guard)]
pub struct GuardBody<'a> {
    /// What must be true when it is due, else it is cancelled: a CEL expression as in the `if` of a stage. Without a value
    /// it is dead (`refused`, with `condition_error`). This or `http`.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1024, example = "!has(facts.paid)")]
    condition: Option<&'a str>,
    /// The question: asked 5 s ahead of the due time, or at once if that is nearer, for at most 3 s. Its method is `GET`
    /// unless it says otherwise, and then it has no body; it takes no `complete_by`. Uses no attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    http: Option<HttpBody<'a>>,
    /// What is true of an answer that lets it fire, at its due time: a CEL expression as in `success_if`. Default: any that
    /// is not `cancel_if`. Where there is neither `cancel_if` nor `extend_by`, any other answer cancels it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1024, example = "body.status == \"unpaid\"")]
    fire_if: Option<&'a str>,
    /// What is true of an answer that cancels it; looked at first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1024, example = "body.status == \"paid\"")]
    cancel_if: Option<&'a str>,
    /// How much later it is due, with the stages behind it, when neither is true; then it is asked again. `PT10S` or more.
    /// Without it such an answer is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    extend_by: Option<Length>,
    /// When there is no answer that the conditions can judge: `retry` (default: asked again after 1, 2, 4, … 30 s, ten
    /// times in all, then held), `fire`, or `hold` (paused for a person).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    on_no_answer: Option<&'static str>,
}

impl<'a> From<&'a Guard> for GuardBody<'a> {
    fn from(guard: &'a Guard) -> Self {
        let question = match guard {
            Guard::If(condition) => {
                return Self {
                    condition: Some(condition),
                    ..Self::default()
                };
            }
            Guard::Asks(question) => &**question,
        };
        Self {
            condition: None,
            http: Some((&question.http).into()),
            fire_if: question.fire_if.as_deref(),
            cancel_if: question.cancel_if.as_deref(),
            extend_by: question.extend_by.map(Length),
            on_no_answer: Some(word_of(&ON_NO_ANSWER, &question.on_no_answer)),
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
    use crate::wire::tests::{properties, refused};

    fn read(json: &Value) -> Result<Guard, Problem> {
        decode(json.to_string().as_bytes(), guard)
    }

    #[test]
    fn guards_are_read_and_shown_as_they_would_be_given() {
        let http = json!({"url": "http://127.0.0.1:9/x", "method": "GET", "headers": {}, "expect_status": []});
        for json in [
            json!({"if": "!has(facts.paid)"}),
            json!({"http": http, "cancel_if": "body.paid", "on_no_answer": "fire"}),
            json!({"http": http, "fire_if": "body.open", "cancel_if": "body.paid", "extend_by": "PT10M",
                "on_no_answer": "hold"}),
        ] {
            let guard = read(&json).unwrap();
            assert_eq!(serde_json::to_value(GuardBody::from(&guard)).unwrap(), json);
        }
    }

    #[test]
    fn what_is_wrong_with_a_guard_is_told_where_it_stands() {
        let http = || json!({"url": "http://127.0.0.1:9/x"});
        for (json, pointer, code) in [
            (json!([]), "", "wrong_type"),
            (json!({}), "", "missing"),
            (json!({"if": "body.x"}), "/if", "invalid_expression"),
            (json!({"if": "true", "http": http()}), "/http", "conflict"),
            (
                json!({"if": "true", "extend_by": "PT1M"}),
                "/extend_by",
                "conflict",
            ),
            (json!({"http": http()}), "", "missing"),
            (
                json!({"http": http(), "fire_if": "facts.x"}),
                "/fire_if",
                "invalid_expression",
            ),
            (
                json!({"http": http(), "cancel_if": "body.x", "extend_by": "PT1M"}),
                "/extend_by",
                "conflict",
            ),
            (
                json!({"http": http(), "fire_if": "body.x", "extend_by": "PT9S"}),
                "/extend_by",
                "out_of_range",
            ),
            (
                json!({"http": http(), "fire_if": "body.x", "on_no_answer": "dead"}),
                "/on_no_answer",
                "unknown_value",
            ),
            (
                json!({"http": {"url": "http://a/", "complete_by": "PT1M"}, "fire_if": "true"}),
                "/http/complete_by",
                "unknown_field",
            ),
        ] {
            let wrong = refused(read(&json));
            assert!(
                wrong.contains(&(pointer.to_owned(), code)),
                "{json}: {wrong:?}"
            );
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<GuardBody<'_>>(), GUARD.fields);
    }
}
