//! A task as one line of JSON with all that is stored of it, and a late answer as another: what an export writes, an
//! import reads.
//!
//! ```text
//!  {"id": …, "topic": …, "state": "retrying", "due_at": "2026-12-01T10:30:00.000Z", "lane": "steady", "fire_ms": …,
//!   "next": {"at": …, "lane": …, "fire_ms": …}, …, "attempts_log": {"items": [ … ], "count": 3}, "log": { … }}
//! ```
//!
//! Names and forms are the API's where it has them. The rest is what makes it the same task again: which clock a due
//! time follows (`lane`) and the instant on it that fires (`fire_ms`), the instants of steady time (`…_ms`), the latest
//! attempt's number and token; of a staged task, where it stands among its stages (`at_stage`). What is absent is left
//! out.
//!
//! A line is read as strictly as a create: it may have come from anywhere, and whoever sends a request later does not
//! ask again whether a header could break out of its line. Beyond that it must hold together: the id carries the slot of
//! topic and key, and a task that is paused, in flight or ended has what goes with it.
//!
//! Payload, facts and result come back byte for byte, but for line breaks between their parts, which become spaces.

mod late;
mod read;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::task::Task;
use crate::task::clocks::TaskClock;
use crate::task::history::{AttemptRecord, Change};
use crate::task::model::{DeadReason, Due, Lane, PauseClock, State, WaitingFor};
use crate::task::spec::{StageName, TaskKey, TaskSpec};
use crate::task::stage::AtStage;
use crate::wire::action::{ActionBody, VerifyBody};
use crate::wire::before_fire::GuardBody;
use crate::wire::clocks::TimeoutsBody;
use crate::wire::decode::word_of;
use crate::wire::on_end::OnEndBody;
use crate::wire::retry::RetryBody;
use crate::wire::stages::{self, StageBody};
use crate::wire::task_in::{CLASS, DELIVERY};
use crate::wire::task_out::{ErrorOut, Map, RuleRefOut, embedded};
use crate::wire::time::{Length, Time};

pub use late::write_late;
pub use read::{Line, read};

/// Longest line that is read, in bytes: more than any task comes to.
pub const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

const LANES: [(&str, Lane); 2] = [("wall", Lane::Wall), ("steady", Lane::Steady)];
const CLOCKS: [(&str, PauseClock); 2] =
    [("keep", PauseClock::Keep), ("freeze", PauseClock::Freeze)];

#[derive(Serialize)]
struct TaskLine<'a> {
    id: uuid::Uuid,
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    state: &'static str,
    due_at: Time,
    lane: &'static str,
    fire_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<DueOut>,
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_stage: Option<AtStageOut>,
    attempts: u32,
    attempt: u32,
    token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<LiveOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    unanswered: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_outcome: Option<LastOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_dropped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    escalated: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alerted: Vec<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    lost_leases: u32,
    created_at: Time,
    updated_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lateness_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    action: ActionBody<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stages: Option<Vec<StageBody<'a>>>,
    retry: RetryBody<'a>,
    timeouts: TimeoutsBody<'a>,
    delivery: &'static str,
    class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lateness: Option<Length>,
    tags: Map<'a, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<VerifyBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<GuardBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_end: Option<OnEndBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callback_of: Option<uuid::Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RuleRefOut<'a>>,
    waiting_since_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_due_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<i64>,
    thaw: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requests: Vec<String>,
    attempts_log: LatestOut<AttemptLine<'a>>,
    log: LatestOut<ChangeLine<'a>>,
}

#[derive(Serialize)]
struct DueOut {
    at: Time,
    lane: &'static str,
    fire_ms: i64,
}

#[derive(Serialize)]
struct AtStageOut {
    place: u8,
    #[serde(skip_serializing_if = "is_zero")]
    passed: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    died: Option<DiedOut>,
    from: DueOut,
}

#[derive(Serialize)]
struct DiedOut {
    place: u8,
    reason: &'static str,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks like that")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Serialize)]
struct LiveOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<Length>,
}

#[derive(Serialize)]
struct PauseOut {
    clock: &'static str,
    since_ms: i64,
}

#[derive(Serialize)]
struct LastOut<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorOut<'a>>,
}

#[derive(Serialize)]
struct LatestOut<T> {
    items: Vec<T>,
    count: u32,
}

#[derive(Serialize)]
struct AttemptLine<'a> {
    attempt: u32,
    token: u64,
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Time>,
    ended_at: Time,
    executor: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorOut<'a>>,
}

#[derive(Serialize)]
struct ChangeLine<'a> {
    at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    to: &'static str,
    by: &'a str,
    why: &'a str,
}

/// Writes a task as a line, with its end.
///
/// # Errors
/// When the task has no JSON form: its payload is none, say.
pub fn write(task: &Task, line: &mut Vec<u8>) -> serde_json::Result<()> {
    for (name, json) in [
        ("payload", &task.spec.payload),
        ("facts", &task.spec.facts),
        ("result", &task.result),
        ("checkpoint", &task.checkpoint),
    ] {
        if json.is_some() && embedded(json.as_ref()).is_none() {
            // It is never left out without a word.
            let what = format!("its {name} is no JSON");
            return Err(serde::ser::Error::custom(what));
        }
    }
    write_line(&TaskLine::from(task), line)
}

fn write_line(of: &impl Serialize, line: &mut Vec<u8>) -> serde_json::Result<()> {
    let start = line.len();
    serde_json::to_writer(&mut *line, of)?;
    // JSON that came with line breaks between its parts: inside a text there are none.
    for byte in &mut line[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.push(b'\n');
    Ok(())
}

impl<'a> From<&'a Task> for TaskLine<'a> {
    fn from(task: &'a Task) -> Self {
        let Task {
            id,
            topic,
            key,
            spec,
            state,
            generation,
            at_stage,
            due,
            next,
            waiting_since,
            first_due,
            created_at,
            updated_at,
            ended_at,
            expires,
            escalated,
            alerted,
            // A start begins it anew.
            in_line: _,
            lost_leases,
            checkpoint,
            attempts,
            attempt,
            token,
            live,
            pause,
            waiting_for,
            unanswered,
            dead_reason,
            last_outcome,
            result,
            result_dropped,
            lateness_ms,
            thaw,
            requests,
            attempts_log,
            changes,
        } = task;
        let TaskSpec {
            action,
            stages,
            payload,
            retry,
            timeouts,
            delivery,
            class,
            max_lateness,
            tags,
            facts,
            verify,
            guard,
            rule,
            on_end,
            callback_of,
        } = &**spec;
        Self {
            id: id.uuid(),
            topic: topic.as_str(),
            key: key.as_ref().map(TaskKey::as_str),
            state: state.name(),
            due_at: Time(due.at),
            lane: word_of(&LANES, &due.lane),
            fire_ms: due.fire_ms,
            next: (next != due).then(|| next.into()),
            generation: *generation,
            at_stage: at_stage.map(Into::into),
            attempts: *attempts,
            attempt: attempt.0,
            token: token.0,
            live: live.as_ref().map(|live| LiveOut {
                started_at: live.started_at.map(Time),
                worker: live.worker.as_deref(),
                lease: live.lease.map(Length),
            }),
            pause: pause.map(|pause| PauseOut {
                clock: word_of(&CLOCKS, &pause.clock),
                since_ms: pause.since.0,
            }),
            waiting_for: waiting_for.map(WaitingFor::name),
            unanswered: *unanswered,
            dead_reason: dead_reason.map(DeadReason::name),
            last_outcome: last_outcome.as_ref().map(|last| LastOut {
                outcome: last.outcome,
                error: last.error.as_ref().map(ErrorOut::from),
            }),
            result: embedded(result.as_ref()),
            result_dropped: *result_dropped,
            checkpoint: embedded(checkpoint.as_ref()),
            escalated: escalated.map(TaskClock::name),
            alerted: TaskClock::ALL
                .into_iter()
                .filter(|clock| alerted.has(*clock))
                .map(TaskClock::name)
                .collect(),
            lost_leases: *lost_leases,
            created_at: Time(*created_at),
            updated_at: Time(*updated_at),
            ended_at: ended_at.map(Time),
            lateness_ms: *lateness_ms,
            payload: embedded(payload.as_ref()),
            action: action.into(),
            stages: stages::shown(stages.as_ref()),
            retry: retry.into(),
            timeouts: timeouts.into(),
            delivery: word_of(&DELIVERY, delivery),
            class: word_of(&CLASS, class),
            max_lateness: max_lateness.map(Length),
            tags: Map(tags, String::as_str),
            facts: embedded(facts.as_ref()),
            verify: verify.as_deref().map(VerifyBody::from),
            guard: guard.as_ref().map(GuardBody::from),
            on_end: on_end.as_deref().map(OnEndBody::from),
            callback_of: callback_of.map(|task| task.uuid()),
            rule: rule.as_ref().map(RuleRefOut::from),
            waiting_since_ms: waiting_since.0,
            first_due_ms: first_due.map(|at| at.0),
            expires_ms: expires.map(|at| at.0),
            thaw: *thaw,
            // Numbers of 64 bits would lose digits in many a reader.
            requests: requests.iter().map(|hash| format!("{hash:016x}")).collect(),
            attempts_log: LatestOut {
                items: attempts_log.kept.iter().map(AttemptLine::from).collect(),
                count: attempts_log.total,
            },
            log: LatestOut {
                items: changes.kept.iter().map(ChangeLine::from).collect(),
                count: changes.total,
            },
        }
    }
}

impl From<&Due> for DueOut {
    fn from(due: &Due) -> Self {
        Self {
            at: Time(due.at),
            lane: word_of(&LANES, &due.lane),
            fire_ms: due.fire_ms,
        }
    }
}

impl From<AtStage> for AtStageOut {
    fn from(at: AtStage) -> Self {
        Self {
            place: at.place,
            passed: at.passed,
            died: at.died.map(|(place, reason)| DiedOut {
                place,
                reason: reason.name(),
            }),
            from: (&at.from).into(),
        }
    }
}

impl<'a> From<&'a AttemptRecord> for AttemptLine<'a> {
    fn from(record: &'a AttemptRecord) -> Self {
        Self {
            attempt: record.attempt.0,
            token: record.token.0,
            generation: record.generation,
            stage: record.stage.as_ref().map(StageName::as_str),
            started_at: record.started_at.map(Time),
            ended_at: Time(record.ended_at),
            executor: record.executor,
            worker: record.worker.as_deref(),
            outcome: record.outcome,
            error: record.error.as_ref().map(ErrorOut::from),
        }
    }
}

impl<'a> From<&'a Change> for ChangeLine<'a> {
    fn from(change: &'a Change) -> Self {
        Self {
            at: Time(change.at),
            from: change.from.map(State::name),
            to: change.to.name(),
            by: &change.by,
            why: &change.why,
        }
    }
}
