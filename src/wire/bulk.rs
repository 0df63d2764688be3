//! What a bulk job is asked to do: the body of `POST /v1/bulk`.
//!
//! ```text
//!  {"action": "reschedule", "args": {"delay": "PT1H"}, "filter": {"topic": "order.unpaid"}, "rate": 500}
//! ```
//!
//! `filter` has the words of a list; one without any would be everything, and is refused. `args` are the fields of the
//! verb's own body. A filter that names no states means those in which the verb does something: a replay of a topic is
//! one of its dead tasks, not a refusal for each of the others.

use utoipa::ToSchema;

use crate::clock::{Now, WallMs};
use crate::limits;
use crate::shard::query::TaskFilter;
use crate::task::State;
use crate::task::event::{Event, NewDue};
use crate::task::model::PauseClock;
use crate::wire::decode::{NO_FIELDS, Object, Shape, decode, word_of};
use crate::wire::due::InLimits;
use crate::wire::list;
use crate::wire::problem::{Code, Problem};
use crate::wire::verbs::{NewTime, Verb, VerbName};

/// Tasks per second of a bulk job that does not say it.
pub const RATE_DEFAULT: u32 = 500;

const BULK: Shape = Shape {
    fields: &["action", "filter", "args", "rate", "dry_run"],
    not_built: &[],
};
/// By their verbs; what is no verb of one task has none.
const ACTIONS: [(&str, Option<VerbName>); 8] = [
    ("cancel", Some(VerbName::Cancel)),
    ("pause", Some(VerbName::Pause)),
    ("resume", Some(VerbName::Resume)),
    ("reschedule", Some(VerbName::Reschedule)),
    ("replay", Some(VerbName::Replay)),
    ("run_now", Some(VerbName::RunNow)),
    ("discard", Some(VerbName::Discard)),
    ("recompute", None),
];

/// What is done to each task of a bulk job.
#[derive(Clone, PartialEq, Debug)]
pub enum BulkAction {
    /// Called off.
    Cancel {
        /// Why.
        reason: String,
    },
    /// Held.
    Pause {
        /// What becomes of the time left.
        clock: PauseClock,
    },
    /// Let go on.
    Resume,
    /// Given another due time; a delay counts from when it happens to the task.
    Reschedule(NewTime),
    /// Run again from the start.
    Replay,
    /// Made due now.
    RunNow,
    /// Its record dropped.
    Discard,
    /// What its rule, asked again, makes of it.
    Recompute,
}

impl BulkAction {
    /// Its word in the API.
    pub fn word(&self) -> &'static str {
        let name = match self {
            Self::Cancel { .. } => Some(VerbName::Cancel),
            Self::Pause { .. } => Some(VerbName::Pause),
            Self::Resume => Some(VerbName::Resume),
            Self::Reschedule(_) => Some(VerbName::Reschedule),
            Self::Replay => Some(VerbName::Replay),
            Self::RunNow => Some(VerbName::RunNow),
            Self::Discard => Some(VerbName::Discard),
            Self::Recompute => None,
        };
        word_of(&ACTIONS, &name)
    }

    /// The states in which it does something, or is refused only because the task is under way.
    pub fn states(&self) -> &'static [State] {
        use State::{Dead, Dispatched, Paused, Pending, Retrying, Running};
        match self {
            Self::Cancel { .. } => &[Pending, Retrying, Dispatched, Running, Paused],
            Self::Pause { .. } => &[Pending, Retrying, Dispatched, Running],
            Self::Resume => &[Paused],
            Self::Recompute => &[Pending, Paused],
            Self::Reschedule(_) => &[Pending, Retrying, Dispatched, Running, Paused],
            Self::RunNow => &[Pending, Retrying],
            Self::Replay | Self::Discard => &[Dead],
        }
    }

    /// Whether each task can be brought back to what it was.
    pub fn can_be_undone(&self) -> bool {
        matches!(
            self,
            Self::Pause { .. } | Self::Resume | Self::Reschedule(_) | Self::Recompute
        )
    }

    /// What happens to each task, now; `None` if that is another thing for each.
    pub fn event(&self, now: Now) -> Option<Event> {
        Some(match self {
            Self::Cancel { reason } => Event::Cancel {
                reason: reason.clone(),
            },
            Self::Pause { clock } => Event::Pause { clock: *clock },
            Self::Resume => Event::Resume,
            Self::Reschedule(NewTime::To(when)) => Event::Reschedule {
                due: NewDue::To(when.due(now)),
            },
            Self::Reschedule(NewTime::ExtendBy(length)) => Event::Reschedule {
                due: NewDue::ExtendBy(*length),
            },
            Self::Replay => Event::Replay,
            Self::RunNow => Event::RunNow,
            Self::Discard => Event::Discard,
            Self::Recompute => return None,
        })
    }
}

/// What a bulk job is asked to do.
#[derive(Clone, PartialEq, Debug)]
pub struct BulkAsk {
    /// To each task.
    pub action: BulkAction,
    /// To which.
    pub filter: TaskFilter,
    /// To how many per second, at most.
    pub rate: u32,
    /// Nothing is done: it is only counted what would be.
    pub dry_run: bool,
    /// The body, as it came.
    pub body: String,
}

impl BulkAsk {
    /// Reads the body.
    ///
    /// # Errors
    /// 400, 422; a filter without any word is `empty_filter`.
    pub fn read(bytes: &[u8], limits: &InLimits) -> Result<Self, Problem> {
        let ask = decode(bytes, |node| {
            if bytes.len() > limits::BULK_BODY_BYTES_MAX {
                let detail = format!(
                    "has {} bytes, at most {} are allowed",
                    bytes.len(),
                    limits::BULK_BODY_BYTES_MAX
                );
                return node.refuse("too_long", detail);
            }
            let body = node.object(&BULK)?;
            let action = body.required("action", |node| node.word(&ACTIONS));
            let filter = body.optional("filter", list::filter);
            let rate = body.optional("rate", |node| node.whole(limits::BULK_RATE));
            let dry_run = body.optional("dry_run", |node| node.flag());
            let action = match action? {
                Some(verb) => read_action(verb, &body, limits),
                None => {
                    body.optional("args", |node| node.object(&NO_FIELDS).map(drop));
                    Some(BulkAction::Recompute)
                }
            };
            Some(Self {
                action: action?,
                filter: filter.unwrap_or_default(),
                rate: rate.map_or(RATE_DEFAULT, |rate| rate as u32),
                dry_run: dry_run.unwrap_or_default(),
                body: String::from_utf8_lossy(bytes).into_owned(),
            })
        })?;
        if ask.filter == TaskFilter::default() {
            let detail = "`/filter` takes in every task there is; name at least one of topic, key, key_prefix, state, …";
            return Err(Problem::new(Code::EmptyFilter, detail));
        }
        Ok(ask)
    }

    /// The tasks of a job that began then: in the states that the action is about, and none that is newer.
    pub fn tasks_at(&self, begun: WallMs) -> TaskFilter {
        let mut filter = self.filter.clone();
        if filter.states.is_empty() {
            filter.states = self.action.states().to_vec();
        }
        let newer = WallMs(begun.0.saturating_add(1));
        filter.created.before = Some(filter.created.before.map_or(newer, |it| it.min(newer)));
        filter
    }
}

fn read_action(name: VerbName, body: &Object<'_, '_>, limits: &InLimits) -> Option<BulkAction> {
    let verb = match body.has("args") {
        true => body.required("args", |node| {
            let args = node.object(name.shape())?;
            if name == VerbName::Cancel && args.has("tombstone_for") {
                // It is for a key that has no task.
                return args.refuse(
                    "tombstone_for",
                    "unknown_field",
                    "is no field of a bulk cancel",
                );
            }
            name.read(&args, limits)
        })?,
        false if name == VerbName::Reschedule => {
            return body.refuse("args", "missing", "needs one of due_at, delay, extend_by");
        }
        // Of all others every field may be left out.
        false => name.decode(b"{}", limits).ok()?,
    };
    Some(match verb {
        Verb::Cancel { reason, .. } => BulkAction::Cancel {
            reason: reason.unwrap_or_default(),
        },
        Verb::Pause { clock } => BulkAction::Pause { clock },
        Verb::Resume => BulkAction::Resume,
        Verb::Reschedule(time) => BulkAction::Reschedule(time),
        Verb::Replay => BulkAction::Replay,
        Verb::RunNow => BulkAction::RunNow,
        Verb::Discard => BulkAction::Discard,
        Verb::Complete { .. } | Verb::Fail { .. } | Verb::Resolve { .. } => return None,
    })
}

/// Body of `POST /v1/bulk`.
#[derive(Debug, ToSchema)]
pub struct CreateBulk {
    /// `cancel`, `pause`, `resume`, `reschedule`, `replay`, `run_now`, `discard` or `recompute`: what the rule of each
    /// task, asked again, makes of it.
    #[schema(example = "replay")]
    pub action: String,
    /// Which tasks: the words of `GET /v1/tasks`; `state` may be a list. At least one word. Without `state`: the
    /// states in which the action does something.
    #[schema(value_type = Object, example = json!({"topic": "order.unpaid", "dead_reason": "attempts_used_up"}))]
    pub filter: (),
    /// The fields of the verb's own body: `reason` of a cancel, `clock` of a pause, one of `due_at`, `delay`,
    /// `extend_by` of a reschedule. A `delay` counts from when it happens to the task.
    #[schema(value_type = Option<Object>)]
    pub args: (),
    /// Tasks per second, at most: 1 to 100 000.
    #[schema(default = 500)]
    pub rate: Option<u32>,
    /// Nothing is done: the job counts, and names some of, the tasks that would be changed.
    #[schema(default = false)]
    pub dry_run: Option<bool>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::clock::DurationMs;
    use crate::wire::tests::{WIDE, refused};

    fn read(body: &str) -> Result<BulkAsk, Problem> {
        BulkAsk::read(body.as_bytes(), &WIDE)
    }

    #[test]
    fn a_filter_without_a_word_would_be_everything_and_is_refused() {
        for filter in ["", r#", "filter": {}"#, r#", "filter": {"topic": null}"#] {
            let problem = read(&format!(r#"{{"action": "cancel"{filter}}}"#)).unwrap_err();
            assert_eq!(problem.code, Code::EmptyFilter);
        }
    }

    #[test]
    fn a_filter_without_states_means_those_in_which_the_action_does_something() {
        let at = WallMs(5);
        let states = |body: &str| read(body).unwrap().tasks_at(at).states;
        assert_eq!(
            states(r#"{"action": "replay", "filter": {"topic": "a"}}"#),
            [State::Dead]
        );
        let named = r#"{"action": "replay", "filter": {"state": "paused"}}"#;
        assert_eq!(states(named), [State::Paused]);
        let before = |body: &str| read(body).unwrap().tasks_at(at).created.before;
        let body = r#"{"action": "resume", "filter": {"topic": "a"}}"#;
        assert_eq!(before(body), Some(WallMs(6)));
        let body =
            r#"{"action": "resume", "filter": {"created_before": "1970-01-01T00:00:00.002Z"}}"#;
        assert_eq!(before(body), Some(WallMs(2)));
    }

    #[test]
    fn arguments_are_those_of_the_verb() {
        let action = |body: &str| read(body).unwrap().action;
        let body =
            r#"{"action": "reschedule", "filter": {"key": "a"}, "args": {"extend_by": "PT1S"}}"#;
        let later = BulkAction::Reschedule(NewTime::ExtendBy(DurationMs::secs(1)));
        assert_eq!(action(body), later);
        let body = r#"{"action": "pause", "filter": {"key": "a"}, "args": {"clock": "freeze"}}"#;
        let clock = PauseClock::Freeze;
        assert_eq!(action(body), BulkAction::Pause { clock });
        let body = r#"{"action": "cancel", "filter": {"key": "a"}}"#;
        let reason = String::new();
        assert_eq!(action(body), BulkAction::Cancel { reason });
    }

    #[test]
    fn what_is_not_valid_is_named() {
        for (body, pointer, code) in [
            (r#"{"filter": {"key": "a"}}"#, "/action", "missing"),
            (
                r#"{"action": "complete", "filter": {"key": "a"}}"#,
                "/action",
                "unknown_value",
            ),
            (
                r#"{"action": "replay", "filter": {"hue": "a"}}"#,
                "/filter/hue",
                "unknown_parameter",
            ),
            (
                r#"{"action": "replay", "filter": {"key": "a"}, "rate": 0}"#,
                "/rate",
                "out_of_range",
            ),
            (
                r#"{"action": "cancel", "filter": {"key": "a"}, "args": {"tombstone_for": "PT1S"}}"#,
                "/args/tombstone_for",
                "unknown_field",
            ),
            (
                r#"{"action": "reschedule", "filter": {"key": "a"}}"#,
                "/args",
                "missing",
            ),
            (
                r#"{"action": "reschedule", "filter": {"key": "a"}, "args": {}}"#,
                "/args",
                "missing",
            ),
        ] {
            assert_eq!(refused(read(body)), [(pointer.to_owned(), code)], "{body}");
        }
    }
}
