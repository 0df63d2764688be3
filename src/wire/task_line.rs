//! A task as one line of JSON with all that is stored of it: what an export writes, an import reads.
//!
//! ```text
//!  {"id": …, "topic": …, "state": "retrying", "due_at": "2026-12-01T10:30:00.000Z", "lane": "steady", "fire_ms": …,
//!   "next": {"at": …, "lane": …, "fire_ms": …}, …, "attempts_log": {"items": [ … ], "count": 3}, "log": { … }}
//! ```
//!
//! Names and forms are the API's where it has them. The rest is what makes it the same task again: which clock a due
//! time follows (`lane`) and the instant on it that fires (`fire_ms`), the instants of steady time (`…_ms`), the latest
//! attempt's number and token. What is absent is left out.
//!
//! A line is read as strictly as a create: it may have come from anywhere, and whoever sends a request later does not
//! ask again whether a header could break out of its line. Beyond that it must hold together: the id carries the slot of
//! topic and key, and a task that is paused, in flight or ended has what goes with it.
//!
//! Payload, facts and result come back byte for byte, but for line breaks between their parts, which become spaces.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::clock::{DurationMs, MonoMs, SteadyMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken, Slot, TaskId};
use crate::limits;
use crate::task::Task;
use crate::task::history::{AttemptRecord, Change, ErrorNote, Latest};
use crate::task::model::{
    DeadReason, Due, Lane, LastOutcome, LiveAttempt, Pause, PauseClock, State, WaitingFor,
};
use crate::task::retry::RetryPolicy;
use crate::task::spec::{Action, Class, Delivery, RawJson, TaskKey, TaskSpec, Timeouts, TopicName};
use crate::task::topic::PartialTimeouts;
use crate::wire::action::{self, ActionBody};
use crate::wire::decode::{Node, Shape, decode, word_of};
use crate::wire::due::InLimits;
use crate::wire::problem::Problem;
use crate::wire::retry::{self, RetryBody, TimeoutsBody};
use crate::wire::task_in::{self, CLASS, DELIVERY};
use crate::wire::task_out::{ErrorOut, Map, embedded};
use crate::wire::time::{self, Length, Time};
use crate::wire::verbs;

/// Longest line that is read, in bytes: more than any task comes to.
pub const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// More fields than a line has.
const FIELDS_MAX: usize = 64;
/// Longest text that stands in a log, in bytes.
const TEXT_BYTES_MAX: usize = 4 * 1024;
/// What was allowed when the task was created stays allowed.
const NO_LIMITS: InLimits = InLimits {
    max_delay: limits::MAX_DELAY,
    now: WallMs(0),
};

const LANES: [(&str, Lane); 2] = [("wall", Lane::Wall), ("steady", Lane::Steady)];
const WAITING: [(&str, WaitingFor); 2] =
    [("retry", WaitingFor::Retry), ("snooze", WaitingFor::Snooze)];
const CLOCKS: [(&str, PauseClock); 2] =
    [("keep", PauseClock::Keep), ("freeze", PauseClock::Freeze)];
/// How attempts end, and why a task ends without one.
const OUTCOMES: [(&str, &str); 11] = same_words([
    "succeeded",
    "failed",
    "timeout",
    "lease_expired",
    "snoozed",
    "cancelled",
    "given_back",
    "outcome_unknown",
    "total_time",
    "attempts_used_up",
    "refused",
]);
const EXECUTORS: [(&str, &str); 4] = same_words(["http", "pull", "handler", "none"]);

const fn same_words<const N: usize>(words: [&'static str; N]) -> [(&'static str, &'static str); N] {
    let mut pairs = [("", ""); N];
    let mut at = 0;
    while at < N {
        pairs[at] = (words[at], words[at]);
        at += 1;
    }
    pairs
}

// ---------------------------------------------------------------- out

#[derive(Serialize)]
struct Line<'a> {
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
    attempts: u32,
    attempt: u32,
    token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<LiveOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_outcome: Option<LastOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_dropped: bool,
    created_at: Time,
    updated_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lateness_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    action: ActionBody<'a>,
    retry: RetryBody<'a>,
    timeouts: TimeoutsBody,
    delivery: &'static str,
    class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lateness: Option<Length>,
    tags: Map<'a, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<&'a RawValue>,
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
    let start = line.len();
    for (name, json) in [
        ("payload", &task.spec.payload),
        ("facts", &task.spec.facts),
        ("result", &task.result),
    ] {
        if json.is_some() && embedded(json.as_ref()).is_none() {
            // It is never left out without a word.
            let what = format!("its {name} is no JSON");
            return Err(serde::ser::Error::custom(what));
        }
    }
    serde_json::to_writer(&mut *line, &Line::from(task))?;
    // JSON that came with line breaks between its parts: inside a text there are none.
    for byte in &mut line[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.push(b'\n');
    Ok(())
}

impl<'a> From<&'a Task> for Line<'a> {
    fn from(task: &'a Task) -> Self {
        let Task {
            id,
            topic,
            key,
            spec,
            state,
            generation,
            due,
            next,
            waiting_since,
            first_due,
            created_at,
            updated_at,
            ended_at,
            expires,
            attempts,
            attempt,
            token,
            live,
            pause,
            waiting_for,
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
            payload,
            retry,
            timeouts,
            delivery,
            class,
            max_lateness,
            tags,
            facts,
        } = &**spec;
        Self {
            id: id.uuid(),
            topic: topic.as_str(),
            key: key.as_ref().map(TaskKey::as_str),
            state: state.name(),
            due_at: Time(due.at),
            lane: word_of(&LANES, &due.lane),
            fire_ms: due.fire_ms,
            next: (next != due).then(|| DueOut {
                at: Time(next.at),
                lane: word_of(&LANES, &next.lane),
                fire_ms: next.fire_ms,
            }),
            generation: *generation,
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
            dead_reason: dead_reason.map(DeadReason::name),
            last_outcome: last_outcome.as_ref().map(|last| LastOut {
                outcome: last.outcome,
                error: last.error.as_ref().map(ErrorOut::from),
            }),
            result: embedded(result.as_ref()),
            result_dropped: *result_dropped,
            created_at: Time(*created_at),
            updated_at: Time(*updated_at),
            ended_at: ended_at.map(Time),
            lateness_ms: *lateness_ms,
            payload: embedded(payload.as_ref()),
            action: action.into(),
            retry: retry.into(),
            timeouts: (*timeouts).into(),
            delivery: word_of(&DELIVERY, delivery),
            class: word_of(&CLASS, class),
            max_lateness: max_lateness.map(Length),
            tags: Map(tags, String::as_str),
            facts: embedded(facts.as_ref()),
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

impl<'a> From<&'a AttemptRecord> for AttemptLine<'a> {
    fn from(record: &'a AttemptRecord) -> Self {
        Self {
            attempt: record.attempt.0,
            token: record.token.0,
            generation: record.generation,
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

// ---------------------------------------------------------------- in

/// Reads a line.
///
/// # Errors
/// All that is wrong with it, each with its pointer.
pub fn read(line: &[u8]) -> Result<Task, Problem> {
    decode(line, task)
}

/// Fields as they come; what was wrong is noted where it stood.
#[derive(Default)]
struct Draft {
    id: Option<TaskId>,
    topic: Option<TopicName>,
    key: Option<TaskKey>,
    state: Option<State>,
    due_at: Option<WallMs>,
    lane: Option<Lane>,
    fire_ms: Option<i64>,
    next: Option<Due>,
    generation: Option<u32>,
    attempts: Option<u32>,
    attempt: Option<u32>,
    token: Option<AttemptToken>,
    live: Option<LiveAttempt>,
    pause: Option<Pause>,
    waiting_for: Option<WaitingFor>,
    dead_reason: Option<DeadReason>,
    last_outcome: Option<LastOutcome>,
    result: Option<RawJson>,
    result_dropped: Option<bool>,
    created_at: Option<WallMs>,
    updated_at: Option<WallMs>,
    ended_at: Option<WallMs>,
    lateness_ms: Option<i64>,
    payload: Option<RawJson>,
    action: Option<Action>,
    retry: Option<RetryPolicy>,
    timeouts: Option<PartialTimeouts>,
    delivery: Option<Delivery>,
    class: Option<Class>,
    max_lateness: Option<DurationMs>,
    tags: Option<Vec<(String, String)>>,
    facts: Option<RawJson>,
    waiting_since_ms: Option<i64>,
    first_due_ms: Option<i64>,
    expires_ms: Option<i64>,
    thaw: Option<u32>,
    requests: Option<Vec<u64>>,
    attempts_log: Option<Latest<AttemptRecord>>,
    log: Option<Latest<Change>>,
}

fn task(node: Node<'_, '_>) -> Option<Task> {
    let mut it = Draft::default();
    node.entries(FIELDS_MAX, |name, node| {
        if !node.is_null() {
            it.take(name, node);
        }
        Some(())
    })?;
    it.whole(node)
}

impl Draft {
    fn take(&mut self, name: &str, node: Node<'_, '_>) {
        match name {
            "id" => self.id = id(node),
            "topic" => self.topic = task_in::topic_name(node),
            "key" => self.key = task_in::task_key(node),
            "state" => self.state = state(node),
            "due_at" => self.due_at = instant(node),
            "lane" => self.lane = node.word(&LANES),
            "fire_ms" => self.fire_ms = node.signed(),
            "next" => self.next = due(node),
            "generation" => self.generation = number(node),
            "attempts" => self.attempts = number(node),
            "attempt" => self.attempt = number(node),
            "token" => self.token = verbs::token(node),
            "live" => self.live = live(node),
            "pause" => self.pause = pause(node),
            "waiting_for" => self.waiting_for = node.word(&WAITING),
            "dead_reason" => self.dead_reason = dead_reason(node),
            "last_outcome" => self.last_outcome = last_outcome(node),
            "result" => self.result = node.raw(limits::RESULT_BYTES_MAX),
            "result_dropped" => self.result_dropped = node.flag(),
            "created_at" => self.created_at = instant(node),
            "updated_at" => self.updated_at = instant(node),
            "ended_at" => self.ended_at = instant(node),
            "lateness_ms" => self.lateness_ms = node.signed(),
            "payload" => self.payload = node.raw(limits::PAYLOAD_BYTES_MAX),
            "action" => self.action = action::action(node),
            "retry" => self.retry = retry::policy(node),
            "timeouts" => self.timeouts = retry::timeouts(node, &NO_LIMITS),
            "delivery" => self.delivery = node.word(&DELIVERY),
            "class" => self.class = node.word(&CLASS),
            "max_lateness" => self.max_lateness = node.length(0..=limits::MAX_DELAY.0),
            "tags" => self.tags = task_in::tags(node),
            "facts" => self.facts = task_in::facts(node),
            "waiting_since_ms" => self.waiting_since_ms = node.signed(),
            "first_due_ms" => self.first_due_ms = node.signed(),
            "expires_ms" => self.expires_ms = node.signed(),
            "thaw" => self.thaw = number(node),
            "requests" => self.requests = node.list(limits::REQUESTS_KEPT, request),
            "attempts_log" => self.attempts_log = latest(node, attempt),
            "log" => self.log = latest(node, change),
            _ => {
                node.refuse::<()>("unknown_field", "is no field of an exported task");
            }
        }
    }

    /// The task, if nothing is missing and it holds together.
    fn whole(self, node: Node<'_, '_>) -> Option<Task> {
        macro_rules! needed {
            ($($field:ident),+) => {$(
                let Some($field) = self.$field else {
                    let detail = concat!("has no `", stringify!($field), "`, or not a right one");
                    return node.refuse("missing", detail);
                };
            )+};
        }
        needed!(
            id, topic, state, due_at, lane, fire_ms, generation, action, retry
        );
        needed!(created_at, updated_at, waiting_since_ms);
        let key = self.key;
        if let Some(key) = &key
            && id.slot() != Slot::of_key(topic.as_str(), key.as_str())
        {
            return node.refuse(
                "conflict",
                "has an `id` that is not one of its `topic` and `key`",
            );
        }
        let lacks = [
            (state == State::Paused && self.pause.is_none(), "pause"),
            (state.is_in_flight() && self.live.is_none(), "live"),
            (state.is_ended() && self.ended_at.is_none(), "ended_at"),
            (
                state == State::Dead && self.dead_reason.is_none(),
                "dead_reason",
            ),
        ];
        if let Some((_, field)) = lacks.into_iter().find(|(lacks, _)| *lacks) {
            return node.refuse("missing", format!("is {state} and has no `{field}`"));
        }
        let due = Due {
            at: due_at,
            lane,
            fire_ms,
        };
        let usual = Timeouts::default();
        let timeouts = self.timeouts.unwrap_or_default();
        Some(Task {
            id,
            topic,
            key,
            spec: Arc::new(TaskSpec {
                action,
                payload: self.payload,
                retry,
                timeouts: Timeouts {
                    attempt: timeouts.attempt.unwrap_or(usual.attempt),
                    grace: timeouts.grace.unwrap_or(usual.grace),
                    total: timeouts.total,
                },
                delivery: self.delivery.unwrap_or_default(),
                class: self.class.unwrap_or_default(),
                max_lateness: self.max_lateness,
                tags: self.tags.unwrap_or_default(),
                facts: self.facts,
            }),
            state,
            generation,
            due,
            next: self.next.unwrap_or(due),
            waiting_since: SteadyMs(waiting_since_ms),
            first_due: self.first_due_ms.map(SteadyMs),
            created_at,
            updated_at,
            ended_at: self.ended_at,
            expires: self.expires_ms.map(SteadyMs),
            attempts: self.attempts.unwrap_or_default(),
            attempt: AttemptNumber(self.attempt.unwrap_or_default()),
            token: self.token.unwrap_or(AttemptToken(0)),
            live: self.live,
            pause: self.pause,
            waiting_for: self.waiting_for,
            dead_reason: self.dead_reason,
            last_outcome: self.last_outcome,
            result: self.result,
            result_dropped: self.result_dropped.unwrap_or_default(),
            lateness_ms: self.lateness_ms,
            thaw: self.thaw.unwrap_or_default(),
            requests: self.requests.unwrap_or_default(),
            attempts_log: self.attempts_log.unwrap_or_default(),
            changes: self.log.unwrap_or_default(),
        })
    }
}

fn id(node: Node<'_, '_>) -> Option<TaskId> {
    let text = node.text()?;
    let id = text.parse().ok();
    id.or_else(|| node.refuse("invalid_id", crate::ids::NotATaskId.to_string()))
}

fn state(node: Node<'_, '_>) -> Option<State> {
    node.word(&State::ALL.map(|state| (state.name(), state)))
}

fn dead_reason(node: Node<'_, '_>) -> Option<DeadReason> {
    node.word(&DeadReason::ALL.map(|reason| (reason.name(), reason)))
}

fn instant(node: Node<'_, '_>) -> Option<WallMs> {
    match time::parse(&node.text()?, None) {
        Ok(at) => Some(at),
        Err(error) => node.refuse(error.code(), error.to_string()),
    }
}

fn number(node: Node<'_, '_>) -> Option<u32> {
    let number = node.whole(0..=u32::MAX.into())?;
    u32::try_from(number).ok()
}

/// A text of a log.
fn text(node: Node<'_, '_>) -> Option<String> {
    let text = node.text()?;
    if text.len() > TEXT_BYTES_MAX {
        return node.refuse("too_long", format!("is over {TEXT_BYTES_MAX} bytes long"));
    }
    Some(text.into_owned())
}

fn request(node: Node<'_, '_>) -> Option<u64> {
    let text = node.text()?;
    let hash = u64::from_str_radix(&text, 16).ok();
    hash.or_else(|| node.refuse("invalid_value", "must be a hexadecimal number of 64 bits"))
}

fn due(node: Node<'_, '_>) -> Option<Due> {
    const DUE: Shape = Shape {
        fields: &["at", "lane", "fire_ms"],
        not_built: &[],
    };
    let body = node.object(&DUE)?;
    let at = body.required("at", instant);
    let lane = body.required("lane", |node| node.word(&LANES));
    let fire_ms = body.required("fire_ms", |node| node.signed());
    Some(Due {
        at: at?,
        lane: lane?,
        fire_ms: fire_ms?,
    })
}

fn live(node: Node<'_, '_>) -> Option<LiveAttempt> {
    const LIVE: Shape = Shape {
        fields: &["started_at", "worker", "lease"],
        not_built: &[],
    };
    let body = node.object(&LIVE)?;
    Some(LiveAttempt {
        started_at: body.optional("started_at", instant),
        worker: body.optional("worker", text),
        lease: body.optional("lease", |node| node.length(0..=*limits::LEASE_MS.end())),
        report_by: MonoMs(0),
    })
}

fn pause(node: Node<'_, '_>) -> Option<Pause> {
    const PAUSE: Shape = Shape {
        fields: &["clock", "since_ms"],
        not_built: &[],
    };
    let body = node.object(&PAUSE)?;
    let clock = body.required("clock", |node| node.word(&CLOCKS));
    let since_ms = body.required("since_ms", |node| node.signed());
    Some(Pause {
        clock: clock?,
        since: SteadyMs(since_ms?),
    })
}

fn error(node: Node<'_, '_>) -> Option<ErrorNote> {
    const ERROR: Shape = Shape {
        fields: &["code", "message"],
        not_built: &[],
    };
    let body = node.object(&ERROR)?;
    let (code, message) = (body.required("code", text), body.required("message", text));
    Some(ErrorNote {
        code: code?,
        message: message?,
    })
}

fn last_outcome(node: Node<'_, '_>) -> Option<LastOutcome> {
    const LAST: Shape = Shape {
        fields: &["outcome", "error"],
        not_built: &[],
    };
    let body = node.object(&LAST)?;
    let outcome = body.required("outcome", |node| node.word(&OUTCOMES));
    Some(LastOutcome {
        error: body.optional("error", error),
        outcome: outcome?,
    })
}

fn latest<T>(node: Node<'_, '_>, read: fn(Node<'_, '_>) -> Option<T>) -> Option<Latest<T>> {
    const LATEST: Shape = Shape {
        fields: &["items", "count"],
        not_built: &[],
    };
    let body = node.object(&LATEST)?;
    let kept = body.required("items", |node| node.list(limits::HISTORY_KEPT, read));
    let total = body.required("count", number);
    Some(Latest {
        kept: kept?,
        total: total?,
    })
}

fn attempt(node: Node<'_, '_>) -> Option<AttemptRecord> {
    const ATTEMPT: Shape = Shape {
        fields: &[
            "attempt",
            "token",
            "generation",
            "started_at",
            "ended_at",
            "executor",
            "worker",
            "outcome",
            "error",
        ],
        not_built: &[],
    };
    let body = node.object(&ATTEMPT)?;
    let attempt = body.required("attempt", number);
    let token = body.required("token", verbs::token);
    let generation = body.required("generation", number);
    let ended_at = body.required("ended_at", instant);
    let executor = body.required("executor", |node| node.word(&EXECUTORS));
    let outcome = body.required("outcome", |node| node.word(&OUTCOMES));
    Some(AttemptRecord {
        started_at: body.optional("started_at", instant),
        worker: body.optional("worker", text),
        error: body.optional("error", error),
        attempt: AttemptNumber(attempt?),
        token: token?,
        generation: generation?,
        ended_at: ended_at?,
        executor: executor?,
        outcome: outcome?,
    })
}

fn change(node: Node<'_, '_>) -> Option<Change> {
    const CHANGE: Shape = Shape {
        fields: &["at", "from", "to", "by", "why"],
        not_built: &[],
    };
    let body = node.object(&CHANGE)?;
    let at = body.required("at", instant);
    let to = body.required("to", state);
    let (by, why) = (body.required("by", text), body.required("why", text));
    Some(Change {
        from: body.optional("from", state),
        at: at?,
        to: to?,
        by: by?,
        why: why?,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests;
