//! Tasks as they are answered: whole, in short, their attempts and their log.
//!
//! These shapes borrow from the task and are written out at once. JSON that came from outside (payload, result,
//! facts) is embedded as it came. Every field is always there, in this order; what is absent is `null`, but for
//! `result_dropped`, which is there only when it is true, `verify`, `escalated`, `checkpoint`, and what has to do with
//! callbacks.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::clock::DurationMs;
use crate::ids::TaskId;
use crate::shard::query::{Slim, TaskView};
use crate::task::clocks::TaskClock;
use crate::task::history::ErrorNote;
use crate::task::late::{LateAnswer, Treatment};
use crate::task::model::LastOutcome;
use crate::task::spec::{RawJson, RuleRef, StageName, TaskKey};
use crate::task::{State, Task};
use crate::wheel::minute_label;
use crate::wire::action::{ActionBody, VerifyBody};
use crate::wire::before_fire::GuardBody;
use crate::wire::clocks::TimeoutsBody;
use crate::wire::decode::word_of;
use crate::wire::on_end::{CallbackOut, OnEndBody};
use crate::wire::retry::RetryBody;
use crate::wire::stages::{self, StageBody};
use crate::wire::task_in::{CLASS, DELIVERY};
use crate::wire::time::{Length, Time};

/// Pairs shown as an object; the function makes a value's text.
#[derive(Debug)]
pub(super) struct Map<'a, V>(pub &'a [(String, V)], pub fn(&V) -> &str);

impl<V> Serialize for Map<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, (self.1)(value))))
    }
}

/// JSON that is embedded as it came. What is none (a damaged record) is left out rather than spoil the answer.
pub(super) fn embedded(json: Option<&RawJson>) -> Option<&RawValue> {
    serde_json::from_str(json?.as_str()).ok()
}

/// A failure: a stable code and a sentence.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Failure)]
pub struct ErrorOut<'a> {
    #[schema(value_type = String, example = "http_503")]
    code: &'a str,
    #[schema(value_type = String)]
    message: &'a str,
}

impl<'a> From<&'a ErrorNote> for ErrorOut<'a> {
    fn from(note: &'a ErrorNote) -> Self {
        Self {
            code: &note.code,
            message: &note.message,
        }
    }
}

/// How the latest attempt ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LastOutcome)]
pub struct LastOutcomeOut<'a> {
    /// `succeeded`, `failed`, `timeout`, `lease_expired`, `heartbeat_lost`, `snoozed`, `given_back`, `not_yet`, `outcome_unknown`,
    /// `queue_timeout`, `total_time`, …
    #[schema(value_type = String)]
    outcome: &'a str,
    /// Its failure, if it was one.
    error: Option<ErrorOut<'a>>,
}

impl<'a> From<&'a LastOutcome> for LastOutcomeOut<'a> {
    fn from(last: &'a LastOutcome) -> Self {
        Self {
            outcome: last.outcome,
            error: last.error.as_ref().map(ErrorOut::from),
        }
    }
}

/// A task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskOut<'a> {
    /// Its id: a UUIDv7.
    id: Uuid,
    #[schema(value_type = String)]
    topic: &'a str,
    #[schema(value_type = Option<String>)]
    key: Option<&'a str>,
    /// `pending`, `dispatched`, `running`, `retrying`, `paused`, `succeeded`, `dead` or `cancelled`.
    #[schema(value_type = String)]
    state: &'static str,
    /// When it was, or will be, due.
    due_at: Time,
    /// When its next attempt is made, while it waits for one.
    next_attempt_at: Option<Time>,
    /// Milliseconds to the due time.
    remaining_ms: u64,
    /// Grows with each replay and replace, from 1.
    generation: u32,
    /// Attempts of this generation, in the present stage.
    attempts: u32,
    /// The present stage, of a staged task: all that is said of due time and attempts is said of it.
    #[schema(value_type = Option<String>)]
    stage: Option<&'a str>,
    /// While retrying: `retry`, `snooze`, `poll` between two questions; `verify` while it is asked whether it was done.
    /// `guard` until the question of its guard is answered.
    #[schema(value_type = Option<String>)]
    waiting_for: Option<&'static str>,
    /// What keeps a due task from starting, such as `topic_paused`.
    #[schema(value_type = Option<String>)]
    blocked_by: Option<&'static str>,
    /// The clock (`queue`, `attempt`, `heartbeat`, `total`) that ran out and had the task go on with the action that stands
    /// with it in `timeouts`; left out when none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    escalated: Option<&'static str>,
    /// When dead: `attempts_used_up`, `lease_expired`, `total_time`, `refused`, `outcome_unknown`, or `timed_out` by a clock
    /// that says so.
    #[schema(value_type = Option<String>)]
    dead_reason: Option<&'static str>,
    /// How the latest attempt ended.
    last_outcome: Option<LastOutcomeOut<'a>>,
    /// What the work gave back.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<&'a RawValue>,
    /// How far the work had got when an attempt last said so: handed to the next one. Left out when nothing was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    checkpoint: Option<&'a RawValue>,
    /// There was a result, larger than may be kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    result_dropped: bool,
    created_at: Time,
    updated_at: Time,
    ended_at: Option<Time>,
    /// How late the latest attempt started, in milliseconds.
    lateness_ms: Option<i64>,
    /// Handed to the action.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    action: ActionBody<'a>,
    /// Of a staged task: its stages.
    stages: Option<Vec<StageBody<'a>>>,
    retry: RetryBody<'a>,
    timeouts: TimeoutsBody<'a>,
    /// `at_least_once` or `at_most_once`.
    #[schema(value_type = String)]
    delivery: &'static str,
    /// `core`, `normal` or `bulk`.
    #[schema(value_type = String)]
    class: &'static str,
    /// How late it may start without anybody minding.
    max_lateness: Option<Length>,
    #[schema(value_type = std::collections::HashMap<String, String>)]
    tags: Map<'a, String>,
    /// What rules read.
    #[schema(value_type = Option<serde_json::Value>)]
    facts: Option<&'a RawValue>,
    /// Asked before it is tried again when nobody knows whether it was done; left out when nobody is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    verify: Option<VerifyBody<'a>>,
    /// Decides, shortly before it fires, whether it does; left out when nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    guard: Option<GuardBody<'a>>,
    /// Told how it has ended; left out when nobody is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    on_end: Option<OnEndBody<'a>>,
    /// How that stands; left out while it has not ended, and when the record of the callback is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    callback: Option<CallbackOut<'a>>,
    /// Of a callback: the task whose end it tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    callback_of: Option<Uuid>,
    /// The rule that gave the due time.
    #[schema(value_type = Option<RuleRefOut>)]
    rule: Option<RuleRefOut<'a>>,
    /// Number of its shard.
    shard: u16,
    /// The minute (UTC) of its due time.
    #[schema(example = "202612011030")]
    bucket: String,
}

/// A version of a rule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleVersion)]
pub struct RuleRefOut<'a> {
    #[schema(value_type = String)]
    name: &'a str,
    version: u64,
}

impl<'a> From<&'a RuleRef> for RuleRefOut<'a> {
    fn from(rule: &'a RuleRef) -> Self {
        Self {
            name: rule.name.as_str(),
            version: rule.version,
        }
    }
}

impl<'a> From<&'a TaskView> for TaskOut<'a> {
    fn from(view: &'a TaskView) -> Self {
        let task = &view.task;
        let spec = &*task.spec;
        let waits = matches!(task.state, State::Pending | State::Retrying);
        Self {
            id: task.id.uuid(),
            topic: task.topic.as_str(),
            key: task.key.as_ref().map(TaskKey::as_str),
            state: task.state.name(),
            due_at: Time(task.due.at),
            next_attempt_at: waits.then(|| Time(task.fires_next().at)),
            remaining_ms: view.remaining_ms,
            generation: task.generation,
            attempts: task.attempts,
            stage: task.stage().map(|stage| stage.name.as_str()),
            waiting_for: task.waiting_for.map(|waits| waits.name()),
            blocked_by: view.blocked_by,
            escalated: task.escalated.map(TaskClock::name),
            dead_reason: task.dead_reason.map(|reason| reason.name()),
            last_outcome: task.last_outcome.as_ref().map(LastOutcomeOut::from),
            result: embedded(task.result.as_ref()),
            checkpoint: embedded(task.checkpoint.as_ref()),
            result_dropped: task.result_dropped,
            created_at: Time(task.created_at),
            updated_at: Time(task.updated_at),
            ended_at: task.ended_at.map(Time),
            lateness_ms: task.lateness_ms,
            payload: embedded(spec.payload.as_ref()),
            action: (&spec.action).into(),
            stages: stages::shown(spec.stages.as_ref()),
            retry: (&spec.retry).into(),
            timeouts: (&spec.timeouts).into(),
            delivery: word_of(&DELIVERY, &spec.delivery),
            class: word_of(&CLASS, &spec.class),
            max_lateness: spec.max_lateness.map(Length),
            tags: Map(&spec.tags, String::as_str),
            facts: embedded(spec.facts.as_ref()),
            verify: spec.verify.as_deref().map(VerifyBody::from),
            guard: spec.guard.as_ref().map(GuardBody::from),
            on_end: spec.on_end.as_deref().map(OnEndBody::from),
            callback: view.callback.as_deref().map(CallbackOut::from),
            callback_of: spec.callback_of.map(TaskId::uuid),
            rule: task.spec.rule.as_ref().map(RuleRefOut::from),
            shard: view.shard.0,
            bucket: minute_label(task.due.at.0),
        }
    }
}

/// A task in short, as verbs answer it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SlimTask)]
pub struct SlimOut {
    id: Uuid,
    #[schema(value_type = String)]
    state: &'static str,
    due_at: Time,
    generation: u32,
    updated_at: Time,
}

impl From<Slim> for SlimOut {
    fn from(task: Slim) -> Self {
        Self {
            id: task.id.uuid(),
            state: task.state.name(),
            due_at: Time(task.due_at),
            generation: task.generation,
            updated_at: Time(task.updated_at),
        }
    }
}

impl From<&Task> for SlimOut {
    fn from(task: &Task) -> Self {
        Slim::from(task).into()
    }
}

/// A task in short with the result that has just been given, as `complete` answers it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletedTask)]
pub struct CompletedOut<'a> {
    #[serde(flatten)]
    slim: SlimOut,
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<&'a RawValue>,
}

impl<'a> From<&'a Task> for CompletedOut<'a> {
    fn from(task: &'a Task) -> Self {
        Self {
            slim: task.into(),
            result: embedded(task.result.as_ref()),
        }
    }
}

/// One page of a list of tasks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskPage)]
pub struct PageOut<'a> {
    /// May be short, even empty, while there is a next page.
    pub items: Vec<TaskOut<'a>>,
    /// For `?cursor=`; null at the end.
    pub next_cursor: Option<String>,
}

/// One execution.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptOut<'a> {
    /// Its number, over all generations.
    attempt: u32,
    /// Its fencing number.
    token: u64,
    generation: u32,
    #[schema(value_type = Option<String>)]
    stage: Option<&'a str>,
    started_at: Option<Time>,
    /// Null while it is out.
    ended_at: Option<Time>,
    duration_ms: Option<u64>,
    /// `http`, `pull`, `handler` or `poll`.
    #[schema(value_type = String)]
    executor: &'a str,
    /// The worker that held it, for a pull.
    #[schema(value_type = Option<String>)]
    worker: Option<&'a str>,
    #[schema(value_type = Option<String>)]
    node: Option<&'a str>,
    /// How it ended; null while it is out.
    #[schema(value_type = Option<String>)]
    outcome: Option<&'a str>,
    error: Option<ErrorOut<'a>>,
}

/// A task's attempts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempts)]
pub struct AttemptsOut<'a> {
    /// The latest 100, oldest first.
    items: Vec<AttemptOut<'a>>,
    /// All there were.
    count: u32,
}

impl<'a> From<&'a Task> for AttemptsOut<'a> {
    fn from(task: &'a Task) -> Self {
        let ended = task.attempts_log.kept.iter().map(|record| AttemptOut {
            attempt: record.attempt.0,
            token: record.token.0,
            generation: record.generation,
            stage: record.stage.as_ref().map(StageName::as_str),
            started_at: record.started_at.map(Time),
            ended_at: Some(Time(record.ended_at)),
            duration_ms: record.started_at.map(|started| {
                let DurationMs(length) = record.ended_at.since(started);
                length
            }),
            executor: record.executor,
            worker: record.worker.as_deref(),
            node: None,
            outcome: Some(record.outcome),
            error: record.error.as_ref().map(ErrorOut::from),
        });
        // A question about it is no attempt.
        let live = task.live.as_ref().filter(|_| !task.is_asked_about());
        let live = live.map(|live| AttemptOut {
            attempt: task.attempt.0,
            token: task.token.0,
            generation: task.generation,
            stage: task.stage().map(|stage| stage.name.as_str()),
            started_at: live.started_at.map(Time),
            ended_at: None,
            duration_ms: None,
            executor: task.action().kind(),
            worker: live.worker.as_deref(),
            node: None,
            outcome: None,
            error: None,
        });
        let count = task
            .attempts_log
            .total
            .saturating_add(u32::from(live.is_some()));
        Self {
            items: ended.chain(live).collect(),
            count,
        }
    }
}

/// One change of state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Change)]
pub struct ChangeOut<'a> {
    at: Time,
    /// The state before; null at creation.
    #[schema(value_type = Option<String>)]
    from: Option<&'static str>,
    /// The state after.
    #[schema(value_type = String)]
    to: &'static str,
    /// Who: `api`, `shard`, `worker w1`, `recovery`, …
    #[schema(value_type = String)]
    by: &'a str,
    /// Why, in a few words.
    #[schema(value_type = String)]
    why: Cow<'a, str>,
}

/// A task's changes of state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Log)]
pub struct LogOut<'a> {
    /// The latest 100 and the late answers that changed nothing, oldest first.
    items: Vec<ChangeOut<'a>>,
    /// All there were.
    count: u32,
}

impl<'a> LogOut<'a> {
    /// The changes of a task, and the late answers that changed nothing, each at its time.
    pub fn new(task: &'a Task, late: &'a [LateAnswer]) -> Self {
        let changes = task.changes.kept.iter().map(|change| ChangeOut {
            at: Time(change.at),
            from: change.from.map(State::name),
            to: change.to.name(),
            by: &change.by,
            why: Cow::Borrowed(&change.why),
        });
        // One that was accepted is among the changes.
        let refused = late
            .iter()
            .filter(|late| late.treatment != Treatment::Accepted);
        let refused = refused.map(|late| ChangeOut {
            at: Time(late.at),
            from: Some(late.state.name()),
            to: late.state.name(),
            by: &late.by,
            why: Cow::Owned(late.why()),
        });
        let mut items: Vec<_> = changes.chain(refused).collect();
        items.sort_by_key(|item| item.at.0);
        let more = items.len() - task.changes.kept.len();
        Self {
            items,
            count: task.changes.total.saturating_add(more as u32),
        }
    }
}

#[cfg(test)]
mod tests;
