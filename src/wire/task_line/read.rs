//! Lines in: as strict as a create.

use std::sync::Arc;

use super::{CLOCKS, LANES};
use crate::clock::{DurationMs, MonoMs, SteadyMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken, Slot, TaskId};
use crate::limits;
use crate::task::Task;
use crate::task::clocks::{ClockSet, TaskClock, Then};
use crate::task::guard::Guard;
use crate::task::history::{AttemptRecord, Change, ErrorNote, Latest};
use crate::task::late::LateAnswer;
use crate::task::model::{
    DeadReason, Due, Lane, LastOutcome, LiveAttempt, Pause, State, WaitingFor,
};
use crate::task::retry::RetryPolicy;
use crate::task::spec::{
    Action, Class, Delivery, OnEnd, RawJson, ResourceName, RuleRef, StageName, TaskKey, TaskSpec,
    Timeouts, TopicName, Verify,
};
use crate::task::stage::{AtStage, Stages};
use crate::task::topic::PartialTimeouts;
use crate::wire::action;
use crate::wire::before_fire;
use crate::wire::clocks;
use crate::wire::decode::{Node, Shape, decode};
use crate::wire::due::InLimits;
use crate::wire::on_end;
use crate::wire::problem::Problem;
use crate::wire::retry;
use crate::wire::stages;
use crate::wire::task_in::{self, CLASS, DELIVERY};
use crate::wire::time;
use crate::wire::verbs;

const RULE: Shape = Shape {
    fields: &["name", "version"],
    not_built: &[],
};
/// More fields than a line has.
const FIELDS_MAX: usize = 64;
/// Longest text that stands in a log, in bytes.
const TEXT_BYTES_MAX: usize = 4 * 1024;
/// What was allowed when the task was created stays allowed.
const NO_LIMITS: InLimits = InLimits {
    max_delay: limits::MAX_DELAY,
    now: WallMs(0),
};

const WAITING: [(&str, WaitingFor); 5] = [
    ("retry", WaitingFor::Retry),
    ("snooze", WaitingFor::Snooze),
    ("poll", WaitingFor::Poll),
    ("verify", WaitingFor::Verify),
    ("guard", WaitingFor::Guard),
];
/// How attempts end, and why a task ends without one.
pub(super) const OUTCOMES: [(&str, &str); 15] = same_words([
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
    "not_yet",
    "timed_out",
    "heartbeat_lost",
    "queue_timeout",
]);
const EXECUTORS: [(&str, &str); 7] = same_words([
    "http",
    "pull",
    "handler",
    "none",
    "poll",
    "complete_only",
    "command",
]);

const fn same_words<const N: usize>(words: [&'static str; N]) -> [(&'static str, &'static str); N] {
    let mut pairs = [("", ""); N];
    let mut at = 0;
    while at < N {
        pairs[at] = (words[at], words[at]);
        at += 1;
    }
    pairs
}

/// What a line holds.
#[derive(Debug)]
pub enum Line {
    /// A task.
    Task(Box<Task>),
    /// A late answer.
    Late(Box<LateAnswer>),
}

/// Reads a line.
///
/// # Errors
/// All that is wrong with it, each with its pointer.
pub fn read(line: &[u8]) -> Result<Line, Problem> {
    decode(line, of_either)
}

fn of_either(node: Node<'_, '_>) -> Option<Line> {
    let (mut draft, mut late, mut fields) = (Draft::default(), None, 0);
    node.entries(FIELDS_MAX, |name, node| {
        fields += 1;
        match name {
            _ if node.is_null() => {}
            "late_answer" => late = Some(super::late::late(node)),
            _ => draft.take(name, node),
        }
        Some(())
    })?;
    match late {
        Some(_) if fields > 1 => node.refuse("conflict", "has more than its `late_answer`"),
        Some(late) => late.map(|late| Line::Late(Box::new(late))),
        None => draft.whole(node).map(|task| Line::Task(Box::new(task))),
    }
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
    at_stage: Option<AtStage>,
    attempts: Option<u32>,
    attempt: Option<u32>,
    token: Option<AttemptToken>,
    live: Option<LiveAttempt>,
    pause: Option<Pause>,
    waiting_for: Option<WaitingFor>,
    unanswered: Option<u32>,
    dead_reason: Option<DeadReason>,
    last_outcome: Option<LastOutcome>,
    result: Option<RawJson>,
    result_dropped: Option<bool>,
    checkpoint: Option<RawJson>,
    escalated: Option<TaskClock>,
    alerted: ClockSet,
    lost_leases: Option<u32>,
    created_at: Option<WallMs>,
    updated_at: Option<WallMs>,
    ended_at: Option<WallMs>,
    lateness_ms: Option<i64>,
    payload: Option<RawJson>,
    action: Option<Action>,
    stages: Option<Stages>,
    retry: Option<RetryPolicy>,
    timeouts: Option<PartialTimeouts>,
    delivery: Option<Delivery>,
    class: Option<Class>,
    max_lateness: Option<DurationMs>,
    tags: Option<Vec<(String, String)>>,
    facts: Option<RawJson>,
    verify: Option<Box<Verify>>,
    guard: Option<Guard>,
    on_end: Option<Box<OnEnd>>,
    callback_of: Option<TaskId>,
    rule: Option<(ResourceName, u64)>,
    waiting_since_ms: Option<i64>,
    first_due_ms: Option<i64>,
    expires_ms: Option<i64>,
    thaw: Option<u32>,
    requests: Option<Vec<u64>>,
    attempts_log: Option<Latest<AttemptRecord>>,
    log: Option<Latest<Change>>,
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
            "at_stage" => self.at_stage = at_stage(node),
            "attempts" => self.attempts = number(node),
            "attempt" => self.attempt = number(node),
            "token" => self.token = verbs::token(node),
            "live" => self.live = live(node),
            "pause" => self.pause = pause(node),
            "waiting_for" => self.waiting_for = node.word(&WAITING),
            "unanswered" => self.unanswered = number(node),
            "dead_reason" => self.dead_reason = dead_reason(node),
            "last_outcome" => self.last_outcome = last_outcome(node),
            "result" => self.result = node.raw(limits::RESULT_BYTES_MAX),
            "result_dropped" => self.result_dropped = node.flag(),
            "checkpoint" => self.checkpoint = node.raw(limits::CHECKPOINT_BYTES_MAX),
            "escalated" => self.escalated = node.word(&clocks::TASK_CLOCKS),
            "alerted" => self.alerted = alerted(node).unwrap_or_default(),
            "lost_leases" => self.lost_leases = number(node),
            "created_at" => self.created_at = instant(node),
            "updated_at" => self.updated_at = instant(node),
            "ended_at" => self.ended_at = instant(node),
            "lateness_ms" => self.lateness_ms = node.signed(),
            "payload" => self.payload = node.raw(limits::PAYLOAD_BYTES_MAX),
            "action" => self.action = action::action(node),
            "stages" => self.stages = stages::stages(node, &NO_LIMITS),
            "retry" => self.retry = retry::policy(node),
            "timeouts" => self.timeouts = clocks::timeouts(node, &NO_LIMITS),
            "delivery" => self.delivery = node.word(&DELIVERY),
            "class" => self.class = node.word(&CLASS),
            "max_lateness" => self.max_lateness = node.length(0..=limits::MAX_DELAY.0),
            "tags" => self.tags = task_in::tags(node),
            "facts" => self.facts = task_in::facts(node),
            "verify" => self.verify = action::verify(node),
            "guard" => self.guard = before_fire::guard(node),
            "on_end" => self.on_end = on_end::on_end(node),
            "callback_of" => self.callback_of = id(node),
            "rule" => self.rule = rule(node),
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
        let count = self.stages.as_ref().map(|stages| stages.iter().count());
        let is_at_one = |at: AtStage| {
            let last = at.died.map_or(at.place, |(place, _)| place.max(at.place));
            count.is_some_and(|count| usize::from(last) < count)
        };
        if !self.at_stage.is_none_or(is_at_one) {
            return node.refuse("conflict", "has an `at_stage` that is none of its `stages`");
        }
        let timeouts = self.timeouts.unwrap_or_default().over(Timeouts::default());
        let goes_on_with = |clock| matches!(timeouts.then.of(clock), Some(Then::Escalate(_)));
        if !self.escalated.is_none_or(goes_on_with) {
            let detail = "was `escalated` by a clock that has no action in its `timeouts`";
            return node.refuse("conflict", detail);
        }
        let lacks = [
            (count.is_some() && self.at_stage.is_none(), "at_stage"),
            (state == State::Paused && self.pause.is_none(), "pause"),
            (state.is_in_flight() && self.live.is_none(), "live"),
            (state.is_ended() && self.ended_at.is_none(), "ended_at"),
            (
                state == State::Dead && self.dead_reason.is_none(),
                "dead_reason",
            ),
        ];
        if let Some((_, field)) = lacks.into_iter().find(|(lacks, _)| *lacks) {
            let detail = format!("has no `{field}`, which goes with what it is ({state})");
            return node.refuse("missing", detail);
        }
        let due = Due {
            at: due_at,
            lane,
            fire_ms,
        };
        Some(Task {
            id,
            topic,
            key,
            spec: Arc::new(TaskSpec {
                action,
                stages: self.stages,
                payload: self.payload,
                retry,
                timeouts,
                delivery: self.delivery.unwrap_or_default(),
                class: self.class.unwrap_or_default(),
                max_lateness: self.max_lateness,
                tags: self.tags.unwrap_or_default(),
                facts: self.facts,
                verify: self.verify,
                guard: self.guard,
                on_end: self.on_end,
                callback_of: self.callback_of,
                rule: self.rule.map(|(name, version)| RuleRef {
                    name,
                    version,
                    at: created_at,
                }),
            }),
            state,
            generation,
            at_stage: self.at_stage,
            due,
            next: self.next.unwrap_or(due),
            waiting_since: SteadyMs(waiting_since_ms),
            first_due: self.first_due_ms.map(SteadyMs),
            created_at,
            updated_at,
            ended_at: self.ended_at,
            expires: self.expires_ms.map(SteadyMs),
            escalated: self.escalated,
            alerted: self.alerted,
            in_line: None,
            lost_leases: self.lost_leases.unwrap_or_default(),
            checkpoint: self.checkpoint,
            attempts: self.attempts.unwrap_or_default(),
            attempt: AttemptNumber(self.attempt.unwrap_or_default()),
            token: self.token.unwrap_or(AttemptToken(0)),
            live: self.live,
            pause: self.pause,
            waiting_for: self.waiting_for,
            unanswered: self.unanswered.unwrap_or_default(),
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

pub(super) fn id(node: Node<'_, '_>) -> Option<TaskId> {
    let text = node.text()?;
    let id = text.parse().ok();
    id.or_else(|| node.refuse("invalid_id", crate::ids::NotATaskId.to_string()))
}

pub(super) fn state(node: Node<'_, '_>) -> Option<State> {
    node.word(&State::ALL.map(|state| (state.name(), state)))
}

fn dead_reason(node: Node<'_, '_>) -> Option<DeadReason> {
    node.word(&DeadReason::ALL.map(|reason| (reason.name(), reason)))
}

fn alerted(node: Node<'_, '_>) -> Option<ClockSet> {
    let clocks = node.list(TaskClock::ALL.len(), |node| node.word(&clocks::TASK_CLOCKS))?;
    let add = |set: ClockSet, clock| set.with(clock);
    Some(clocks.into_iter().fold(ClockSet::default(), add))
}

pub(super) fn instant(node: Node<'_, '_>) -> Option<WallMs> {
    match time::parse(&node.text()?, None) {
        Ok(at) => Some(at),
        Err(error) => node.refuse(error.code(), error.to_string()),
    }
}

pub(super) fn number(node: Node<'_, '_>) -> Option<u32> {
    let number = node.whole(0..=u32::MAX.into())?;
    u32::try_from(number).ok()
}

/// A text of a log.
pub(super) fn text(node: Node<'_, '_>) -> Option<String> {
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

fn at_stage(node: Node<'_, '_>) -> Option<AtStage> {
    const AT_STAGE: Shape = Shape {
        fields: &["place", "passed", "died", "from"],
        not_built: &[],
    };
    let body = node.object(&AT_STAGE)?;
    let place = body.required("place", stage_place);
    let from = body.required("from", due);
    Some(AtStage {
        passed: body.optional("passed", number).unwrap_or_default(),
        died: body.optional("died", died),
        place: place?,
        from: from?,
    })
}

fn died(node: Node<'_, '_>) -> Option<(u8, DeadReason)> {
    const DIED: Shape = Shape {
        fields: &["place", "reason"],
        not_built: &[],
    };
    let body = node.object(&DIED)?;
    let place = body.required("place", stage_place);
    let reason = body.required("reason", dead_reason);
    Some((place?, reason?))
}

fn stage_place(node: Node<'_, '_>) -> Option<u8> {
    let place = node.whole(0..=limits::STAGES_MAX as u64 - 1)?;
    u8::try_from(place).ok()
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
        lease: body.optional("lease", |node| {
            node.length(0..=*limits::COMPLETE_BY_MS.end())
        }),
        report_by: MonoMs(0),
        beat_by: None,
        alert_at: None,
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

pub(super) fn error(node: Node<'_, '_>) -> Option<ErrorNote> {
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

fn rule(node: Node<'_, '_>) -> Option<(ResourceName, u64)> {
    let body = node.object(&RULE)?;
    let name = body.required("name", |node| node.name(ResourceName::parse));
    let version = body.required("version", |node| node.whole(0..=u64::MAX));
    Some((name?, version?))
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
            "stage",
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
        stage: body.optional("stage", |node| node.name(StageName::parse)),
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
