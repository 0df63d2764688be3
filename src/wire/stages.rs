//! The stages of a task, in and out.

use serde::Serialize;
use utoipa::ToSchema;

use crate::limits;
use crate::task::spec::StageName;
use crate::task::stage::{Stage, Stages, StagesError, Starts};
use crate::wire::action::{self, ActionBody};
use crate::wire::before_fire::{self, GuardBody};
use crate::wire::decode::{Node, Object, Shape};
use crate::wire::due::{self, InLimits};
use crate::wire::time::Length;

const STARTS: &[&str] = &["after", "after_previous"];
const STAGE: Shape = Shape {
    fields: &["name", "after", "after_previous", "if", "guard", "action"],
    not_built: &[],
};

/// Reads the stages of a task.
pub(super) fn stages(node: Node<'_, '_>, limits: &InLimits) -> Option<Stages> {
    let mut earlier = Vec::new();
    let list = node.list(limits::STAGES_MAX, |node| {
        let stage = stage(node, &earlier, limits)?;
        earlier.push(stage.clone());
        Some(stage)
    })?;
    match Stages::new(list) {
        Ok(stages) => Some(stages),
        // All else was told where it stands.
        Err(flaw) => node.refuse("empty", flaw.to_string()),
    }
}

fn stage(node: Node<'_, '_>, earlier: &[Stage], limits: &InLimits) -> Option<Stage> {
    let body = node.object(&STAGE)?;
    let starts = body.one_of(STARTS);
    let starts = starts.and_then(|field| self::starts(&body, field, limits));
    stage_of(&body, starts, earlier)
}

/// Reads when a stage comes, from that field.
pub(super) fn starts(
    body: &Object<'_, '_>,
    field: &'static str,
    limits: &InLimits,
) -> Option<Starts> {
    let length = body.required(field, |node| due::delay(node, limits))?;
    Some(match field {
        "after" => Starts::After(length),
        _ => Starts::AfterPrevious(length),
    })
}

/// Reads all of a stage but its time.
pub(super) fn stage_of(
    body: &Object<'_, '_>,
    starts: Option<Starts>,
    earlier: &[Stage],
) -> Option<Stage> {
    let name = body.required("name", |node| node.name(StageName::parse));
    let condition = body.optional("if", before_fire::condition);
    let guard = body.optional("guard", before_fire::guard);
    let action = body.optional("action", action::action);
    let stage = Stage {
        name: name?,
        starts: starts?,
        condition,
        guard,
        action,
    };
    match stage.may_follow(earlier) {
        Ok(()) => Some(stage),
        Err(flaw) => {
            let (field, code) = match flaw {
                StagesError::SameName { .. } => ("name", "conflict"),
                StagesError::NothingBefore => ("after_previous", "conflict"),
                _ => ("after", "out_of_order"),
            };
            body.refuse(field, code, flaw.to_string())
        }
    }
}

/// Stages as they are shown.
pub(super) fn shown(stages: Option<&Stages>) -> Option<Vec<StageBody<'_>>> {
    Some(stages?.iter().map(StageBody::from).collect())
}

/// A stage of a task. A later one runs at its time even if an earlier one is not over: what is left of that is dropped.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Stage)]
pub struct StageBody<'a> {
    /// Its name, unique in its task: at most 64 bytes, no control characters.
    #[schema(value_type = String, max_length = 64, example = "dispatch")]
    name: &'a str,
    /// It comes so long after the creation: later than the stages before it. This or `after_previous`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    after: Option<Length>,
    /// It comes so long after the stage before it is over. Not of the first stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    after_previous: Option<Length>,
    /// What must be true when it comes, else it is passed over: a CEL expression without loops over `facts`, `topic`,
    /// `key`, `tags`, `created_at` and `now` (times), each at most 8 KiB. Without a value the stage counts as given up,
    /// and its error is in `last_outcome` as `condition_error`.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1024, example = "!has(facts.courier)")]
    condition: Option<&'a str>,
    /// What decides whether it fires, and says no more than that of the stage. Default: the task's, else the topic's, which
    /// decides for the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    guard: Option<GuardBody<'a>>,
    /// What is done then. Default: the task's action, else the topic's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    action: Option<ActionBody<'a>>,
}

impl<'a> From<&'a Stage> for StageBody<'a> {
    fn from(stage: &'a Stage) -> Self {
        let (after, after_previous) = match stage.starts {
            Starts::After(length) => (Some(Length(length)), None),
            Starts::AfterPrevious(length) => (None, Some(Length(length))),
        };
        Self {
            name: stage.name.as_str(),
            after,
            after_previous,
            condition: stage.condition.as_deref(),
            guard: stage.guard.as_ref().map(GuardBody::from),
            action: stage.action.as_ref().map(Into::into),
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

    fn read(json: &Value) -> Result<Stages, Problem> {
        decode(json.to_string().as_bytes(), |node| stages(node, &WIDE))
    }

    #[test]
    fn stages_are_read_and_shown_as_they_would_be_given() {
        let json = json!([
            {"name": "dispatch", "after": "PT1H", "action": {"http": {"url": "http://127.0.0.1:9/x", "method": "POST",
                "headers": {}, "expect_status": []}}},
            {"name": "remind", "after_previous": "PT0S", "if": "!has(facts.courier) && key != ''",
                "guard": {"if": "tags.region == 'eu'"}},
            {"name": "cancel", "after": "PT2H", "action": {"none": {}}},
        ]);
        let stages = read(&json).unwrap();
        assert_eq!(serde_json::to_value(shown(Some(&stages))).unwrap(), json);
    }

    #[test]
    fn what_is_wrong_with_a_stage_is_told_where_it_stands() {
        let stage = |name: &str, after: &str| json!({"name": name, "after": after});
        let first = || stage("a", "PT1H");
        for (json, pointer, code) in [
            (json!([]), "", "empty"),
            (json!({}), "", "wrong_type"),
            (json!([{"after": "PT1H"}]), "/0/name", "missing"),
            (json!([{"name": "a"}]), "/0", "missing"),
            (json!([stage("", "PT1H")]), "/0/name", "empty"),
            (
                json!([stage(&"s".repeat(65), "PT1H")]),
                "/0/name",
                "too_long",
            ),
            (
                json!([stage("a\nb", "PT1H")]),
                "/0/name",
                "control_character",
            ),
            (json!([stage("a", "P1Y")]), "/0/after", "invalid_duration"),
            (json!([stage("a", "P3661D")]), "/0/after", "out_of_range"),
            (
                json!([{"name": "a", "after_previous": "PT1H"}]),
                "/0/after_previous",
                "conflict",
            ),
            (
                json!([{"name": "a", "after": "PT1H", "after_previous": "PT1H"}]),
                "/0/after_previous",
                "conflict",
            ),
            (json!([first(), stage("a", "PT2H")]), "/1/name", "conflict"),
            (
                json!([first(), stage("b", "PT1H")]),
                "/1/after",
                "out_of_order",
            ),
            (
                json!([first(), stage("b", "PT5M")]),
                "/1/after",
                "out_of_order",
            ),
            (
                json!([{"name": "a", "after": "PT1H", "guard": {}}]),
                "/0/guard",
                "missing",
            ),
            (
                json!([{"name": "a", "after": "PT1H", "if": "body.x"}]),
                "/0/if",
                "invalid_expression",
            ),
            (
                json!([{"name": "a", "after": "PT1H", "action": {"fax": {}}}]),
                "/0/action/fax",
                "unknown_field",
            ),
        ] {
            assert_eq!(refused(read(&json)), [(pointer.to_owned(), code)], "{json}");
        }
        let many: Vec<Value> = (0..33)
            .map(|n| stage(&format!("s{n}"), &format!("PT{n}S")))
            .collect();
        assert_eq!(refused(read(&json!(many))), [(String::new(), "too_many")]);
    }

    #[test]
    fn what_the_shard_evaluates_itself_is_bounded_further() {
        let compares = |count: usize| {
            let all: Vec<String> = (0..count).map(|n| format!("facts.f{n} == {n}")).collect();
            let stages = json!([{"name": "a", "after": "PT1H", "if": all.join(" && ")}]);
            read(&stages)
        };
        assert!(compares(7).is_ok());
        assert_eq!(
            refused(compares(20)),
            [("/0/if".to_owned(), "invalid_expression")]
        );
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<StageBody<'_>>(), STAGE.fields);
    }
}
