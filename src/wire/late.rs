//! Late answers: as they are answered, the query of their lists, and a topic's policy on them.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::clock::WallMs;
use crate::shard::late::{LateAsk, LatePage, LatePlace};
use crate::task::late::{Compensation, LateAnswer, LatePolicy, Treatment};
use crate::task::{TaskKey, TopicName};
use crate::wire::action::{self, ActionBody};
use crate::wire::decode::{Node, Shape};
use crate::wire::params::{LIMIT_DEFAULT, Params};
use crate::wire::problem::Problem;
use crate::wire::task_out::{ErrorOut, embedded};
use crate::wire::time::Time;

const POLICY: Shape = Shape {
    fields: &["compensate"],
    not_built: &[],
};
const COMPENSATE: Shape = Shape {
    fields: &["topic", "action"],
    not_built: &[],
};
const REFUSE: &str = "refuse";
const ACCEPT: &str = "accept_if_unfinished";
const POLICIES: [(&str, LatePolicy); 2] = [
    (REFUSE, LatePolicy::Refuse),
    (ACCEPT, LatePolicy::AcceptIfUnfinished),
];

/// Reads a policy: a word, or an object that says what compensates.
pub(super) fn policy(node: Node<'_, '_>) -> Option<LatePolicy> {
    if !node.is_object() {
        let word = node.text()?;
        let known = POLICIES.iter().find(|(known, _)| *known == word);
        return known.map(|(_, policy)| policy.clone()).or_else(|| {
            let detail =
                format!("must be {REFUSE}, {ACCEPT} or {{\"compensate\": {{\"topic\": …}}}}");
            node.refuse("unknown_value", detail)
        });
    }
    node.object(&POLICY)?.required("compensate", |node| {
        let body = node.object(&COMPENSATE)?;
        let action = body.optional("action", action::action);
        let topic = body.required("topic", |node| node.name(TopicName::parse))?;
        Some(LatePolicy::Compensate(Compensation { topic, action }))
    })
}

/// A policy, as it was put.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum PolicyOut<'a> {
    /// A word.
    Word(&'static str),
    /// What compensates.
    Compensate {
        /// How.
        compensate: CompensateOut<'a>,
    },
}

/// What compensates.
#[derive(Debug, Serialize)]
pub(super) struct CompensateOut<'a> {
    topic: &'a str,
    action: Option<ActionBody<'a>>,
}

impl<'a> From<&'a LatePolicy> for PolicyOut<'a> {
    fn from(policy: &'a LatePolicy) -> Self {
        match policy {
            LatePolicy::Refuse => Self::Word(REFUSE),
            LatePolicy::AcceptIfUnfinished => Self::Word(ACCEPT),
            LatePolicy::Compensate(Compensation { topic, action }) => Self::Compensate {
                compensate: CompensateOut {
                    topic: topic.as_str(),
                    action: action.as_ref().map(ActionBody::from),
                },
            },
        }
    }
}

/// An answer for an attempt that was over.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LateAnswer)]
pub struct LateOut<'a> {
    task: Uuid,
    #[schema(value_type = String)]
    topic: &'a str,
    #[schema(value_type = Option<String>)]
    key: Option<&'a str>,
    /// The attempt; null if it is so long ago that only its token is known.
    attempt: Option<u32>,
    /// Its fencing number.
    token: u64,
    generation: Option<u32>,
    /// What is said: `succeeded` or `failed`.
    #[schema(value_type = String)]
    outcome: &'static str,
    error: Option<ErrorOut<'a>>,
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<&'a RawValue>,
    /// It had a result of more than 64 KiB, which was not kept.
    result_dropped: bool,
    /// Who said it: `worker`, `executor`, `api`.
    #[schema(value_type = String)]
    by: &'a str,
    /// The worker that had held the attempt.
    #[schema(value_type = Option<String>)]
    worker: Option<&'a str>,
    /// When it came.
    at: Time,
    /// How the attempt had ended before, as its task's `attempts` have it.
    #[schema(value_type = Option<String>)]
    attempt_outcome: Option<&'static str>,
    /// The state that the task was in.
    #[schema(value_type = String)]
    task_state: &'static str,
    /// Why it came too late, and what became of it, in a sentence.
    why: String,
    /// `refused`, `accepted` or `compensated`.
    #[schema(value_type = String)]
    treatment: &'static str,
    /// The task that takes back what was done.
    compensation: Option<Uuid>,
}

impl<'a> From<&'a LateAnswer> for LateOut<'a> {
    fn from(late: &'a LateAnswer) -> Self {
        Self {
            task: late.task.uuid(),
            topic: late.topic.as_str(),
            key: late.key.as_ref().map(TaskKey::as_str),
            attempt: late.attempt.map(|attempt| attempt.0),
            token: late.token.0,
            generation: late.generation,
            outcome: late.outcome,
            error: late.error.as_ref().map(ErrorOut::from),
            result: embedded(late.result.as_ref()),
            result_dropped: late.result_dropped,
            by: &late.by,
            worker: late.worker.as_deref(),
            at: Time(late.at),
            attempt_outcome: late.ended_as,
            task_state: late.state.name(),
            why: late.why(),
            treatment: late.treatment.name(),
            compensation: match late.treatment {
                Treatment::Compensated(task) => Some(task.uuid()),
                Treatment::Refused | Treatment::Accepted => None,
            },
        }
    }
}

/// One page of late answers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LateAnswers)]
pub struct LatePageOut<'a> {
    /// The newest first.
    pub items: Vec<LateOut<'a>>,
    /// For `?cursor=`; null at the end.
    pub next_cursor: Option<String>,
}

impl<'a> From<&'a LatePage> for LatePageOut<'a> {
    fn from(page: &'a LatePage) -> Self {
        let last = page.items.last().filter(|_| page.has_more);
        Self {
            items: page.items.iter().map(LateOut::from).collect(),
            next_cursor: last.map(cursor),
        }
    }
}

/// Time and key, as hexadecimal digits.
fn cursor(last: &LateAnswer) -> String {
    let LatePlace { at, key } = LatePlace::of(last);
    format!("{:016x}{key:032x}", at.0)
}

/// The reverse of [`cursor`].
fn place(cursor: &str) -> Option<LatePlace> {
    let is_ours = cursor.len() == 48 && cursor.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (at, key) = is_ours.then(|| cursor.split_at(16))?;
    Some(LatePlace {
        at: WallMs(u64::from_str_radix(at, 16).ok()? as i64),
        key: u128::from_str_radix(key, 16).ok()?,
    })
}

const OUTCOMES: [(&str, &str); 2] = [("succeeded", "succeeded"), ("failed", "failed")];
const TREATMENTS: [(&str, &str); 3] = [
    ("refused", "refused"),
    ("accepted", "accepted"),
    ("compensated", "compensated"),
];

/// Parameters of lists of late answers.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LateParams {
    /// That say so: `succeeded` or `failed`.
    pub outcome: Option<String>,
    /// Treated so: `refused`, `accepted` or `compensated`.
    pub treatment: Option<String>,
    /// That came then or later.
    pub after: Option<String>,
    /// That came before.
    pub before: Option<String>,
    /// 1 to 1000; default 100.
    pub limit: Option<usize>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// Further parameters of the list over all tasks.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LateOfParams {
    /// Of tasks of this topic.
    pub topic: Option<String>,
    /// Of tasks with this key.
    pub key: Option<String>,
}

/// Whose late answers a query is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LateOf {
    /// Of the task that the path names.
    One,
    /// Of all tasks.
    All,
}

/// Reads the query of a list of late answers.
///
/// # Errors
/// 422 with all parameters that are not valid, each as `/name`.
pub fn ask(query: &str, of: LateOf) -> Result<LateAsk, Problem> {
    let mut params = Params::default();
    let mut ask = LateAsk {
        limit: LIMIT_DEFAULT,
        ..LateAsk::default()
    };
    params.each(query, &[], |params, name, value| {
        take(&mut ask, of, params, name, value);
    });
    params.close()?;
    Ok(ask)
}

fn take(ask: &mut LateAsk, of: LateOf, params: &Params, name: &str, value: &str) {
    let filter = &mut ask.filter;
    match name {
        "topic" if of == LateOf::All => filter.topic = params.name(name, value, TopicName::parse),
        "key" if of == LateOf::All => filter.key = params.name(name, value, TaskKey::parse),
        "outcome" => filter.outcome = params.word(name, value, &OUTCOMES),
        "treatment" => filter.treatment = params.word(name, value, &TREATMENTS),
        "after" => filter.after = params.time(name, value),
        "before" => filter.before = params.time(name, value),
        "limit" => ask.limit = params.limit(name, value).unwrap_or(LIMIT_DEFAULT),
        "cursor" => {
            let refuse = || {
                let detail = "is not a `next_cursor` of such a list";
                params.refuse(name, "invalid_cursor", detail)
            };
            ask.after = place(value).or_else(refuse);
        }
        _ => {
            let own = match of {
                LateOf::All => "topic, key, ",
                LateOf::One => "",
            };
            let detail = format!(
                "is no parameter of this list; known are {own}outcome, treatment, after, before, limit, cursor"
            );
            params.refuse::<()>(name, "unknown_parameter", detail);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::ids::{AttemptToken, TaskId};
    use crate::shard::late::LateFilter;
    use crate::task::State;
    use crate::wire::tests::refused;

    #[test]
    fn a_query_says_which_late_answers_are_wanted() {
        let asked = ask(
            "topic=a&key=b&outcome=failed&treatment=refused&limit=7",
            LateOf::All,
        )
        .unwrap();
        let filter = LateFilter {
            topic: Some(TopicName::parse("a").unwrap()),
            key: Some(TaskKey::parse("b").unwrap()),
            outcome: Some("failed"),
            treatment: Some("refused"),
            ..LateFilter::default()
        };
        assert_eq!((asked.filter, asked.limit), (filter, 7));
        let asked = ask("after=2026-11-30T01:53:20+01:00", LateOf::One).unwrap();
        assert_eq!(asked.filter.after, Some(crate::wire::tests::NOW));
    }

    #[test]
    fn each_parameter_that_is_wrong_is_named() {
        let query =
            "outcome=timeout&treatment=x&limit=0&cursor=12&after=now&nonsense=1&key=&limit=1";
        let wrong = refused(ask(query, LateOf::All));
        let expected = [
            ("/outcome", "unknown_value"),
            ("/treatment", "unknown_value"),
            ("/limit", "out_of_range"),
            ("/cursor", "invalid_cursor"),
            ("/after", "invalid_time"),
            ("/nonsense", "unknown_parameter"),
            ("/key", "invalid_name"),
            ("/limit", "duplicate_field"),
        ];
        assert_eq!(wrong, expected.map(|(name, code)| (name.to_owned(), code)));
        let wrong = refused(ask("topic=a", LateOf::One));
        assert_eq!(wrong, [("/topic".to_owned(), "unknown_parameter")]);
    }

    fn late() -> LateAnswer {
        LateAnswer {
            task: TaskId::from_bytes([7; 16]),
            topic: TopicName::parse("a").unwrap(),
            key: None,
            attempt: None,
            generation: None,
            token: AttemptToken(3),
            outcome: "succeeded",
            error: None,
            result: None,
            result_dropped: false,
            by: "worker".to_owned(),
            worker: None,
            at: WallMs(0),
            ended_as: None,
            state: State::Dead,
            treatment: Treatment::Refused,
        }
    }

    #[test]
    fn a_cursor_names_the_place_behind_which_the_next_page_begins() {
        for at in [WallMs(0), WallMs(-1), WallMs(1_796_000_000_000)] {
            let late = LateAnswer { at, ..late() };
            assert_eq!(place(&cursor(&late)), Some(LatePlace::of(&late)));
        }
        assert_eq!(place(&"+".repeat(48)), None);
    }
}
