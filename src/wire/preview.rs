//! `POST /v1/rules/{name}/preview`: a content that a rule might have, and what it would make of the stored tasks.

use serde::Serialize;
use utoipa::ToSchema;

use crate::rule::Rule;
use crate::rule::preview::Preview;
use crate::shard::query::TaskFilter;
use crate::wire::decode::{Shape, decode};
use crate::wire::due::InLimits;
use crate::wire::list::filter;
use crate::wire::problem::Problem;
use crate::wire::rule::rule;
use crate::wire::time::Time;

const PREVIEW: Shape = Shape {
    fields: &["rule", "filter"],
    not_built: &[],
};

/// Reads the body: the content, if it is another than the rule has, and which stored tasks are looked at.
///
/// # Errors
/// 400, 422.
pub fn preview(bytes: &[u8], limits: &InLimits) -> Result<(Option<Rule>, TaskFilter), Problem> {
    decode(bytes, |node| {
        let body = node.object(&PREVIEW)?;
        let candidate = body.optional("rule", |node| node.taken(rule(node.bytes(), limits)));
        let stored = body.optional("filter", filter);
        Some((candidate, stored.unwrap_or_default()))
    })
}

/// Body of `POST /v1/rules/{name}/preview`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PreviewRule, example = json!({"rule": {"fixed": {"after": "PT45M"}}, "filter": {"topic": "order.unpaid"}}))]
pub struct PreviewBody {
    /// What would be put. Left out: what the rule says now, such as after a calendar was changed.
    #[schema(value_type = Object, required = false)]
    rule: (),
    /// Parameters of `GET /v1/tasks` that choose among the stored tasks that go by the rule. Left out: all of them.
    #[schema(value_type = Object, required = false)]
    filter: (),
}

/// What a rule would make of the stored tasks that go by it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RulePreview)]
pub struct PreviewOut<'a> {
    /// Stored tasks that were looked at, of whatever rule: as many as 4 s are enough for.
    looked_at: u64,
    /// About how many there are that wait. If it is more than `looked_at`, the counts are those of a part.
    of: u64,
    /// Those that were looked at, go by the rule, match the filter, and wait.
    tasks: u64,
    /// Would get another due time, or other stages.
    moves: u64,
    /// Of these: would be due at once, and are not due now.
    due_at_once: u64,
    /// Would be called off, as the rule would need none.
    ends: u64,
    /// Would stay as they are.
    unchanged: u64,
    /// Of these the rule would say nothing, and they would stay as they are.
    failed: u64,
    /// The first 20 that would move or end.
    sample: Vec<ChangeOut<'a>>,
    /// The first 20 of which it would say nothing.
    failures: Vec<FailureOut<'a>>,
}

/// What would become of one task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PreviewedTask)]
pub struct ChangeOut<'a> {
    id: String,
    #[schema(value_type = String)]
    topic: &'a str,
    #[schema(value_type = Option<String>)]
    key: Option<&'a str>,
    /// When it is due.
    from: Time,
    /// When it would be due; null: it would be called off.
    to: Option<Time>,
}

/// A task of which a rule would say nothing.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PreviewFailure)]
pub struct FailureOut<'a> {
    id: String,
    /// Why.
    #[schema(value_type = String)]
    detail: &'a str,
}

impl<'a> From<&'a Preview> for PreviewOut<'a> {
    fn from(preview: &'a Preview) -> Self {
        let sample = preview.sample.iter().map(|change| ChangeOut {
            id: change.id.to_string(),
            topic: change.topic.as_str(),
            key: change.key.as_ref().map(|key| key.as_str()),
            from: Time(change.from),
            to: change.to.map(Time),
        });
        let failures = preview.faults.iter().map(|(id, why)| FailureOut {
            id: id.to_string(),
            detail: why,
        });
        Self {
            looked_at: preview.looked_at,
            of: preview.of,
            tasks: preview.tasks,
            moves: preview.moves,
            due_at_once: preview.due_at_once,
            ends: preview.ends,
            unchanged: preview.unchanged,
            failed: preview.failed,
            sample: sample.collect(),
            failures: failures.collect(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::wire::tests::{WIDE, properties, refused};

    #[test]
    fn a_preview_takes_what_could_be_put_and_the_filter_of_a_list() {
        let (rule, filter) = preview(
            br#"{"rule":{"fixed":{"after":"PT1M"}},"filter":{"topic":"a"}}"#,
            &WIDE,
        )
        .unwrap();
        assert!(rule.is_some() && filter.topic.is_some());
        let (rule, filter) = preview(b"{}", &WIDE).unwrap();
        assert!(rule.is_none() && filter == TaskFilter::default());
        let wrong = refused(preview(
            br#"{"rule":{"fixed":{}},"filter":{"x":"y"},"z":1}"#,
            &WIDE,
        ));
        let at: Vec<&str> = wrong.iter().map(|(at, _)| at.as_str()).collect();
        for pointer in ["/rule/fixed", "/filter/x", "/z"] {
            assert!(at.contains(&pointer), "{wrong:?}");
        }
        assert_eq!(properties::<PreviewBody>(), PREVIEW.fields);
    }
}
