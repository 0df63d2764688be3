//! The stored shape of things: one struct per record and version, and the way from and to the domain's types.
//!
//! A record borrows from what it was made of or read from, so neither way copies text twice. It is written field
//! by field in the order below: **fields and variants are never moved, removed or given another type**. A new
//! variant goes to the end of its enum; a new field makes a new version of its record. Words that the domain
//! keeps as `&'static str` are stored as their place in a closed table that only grows.

use std::ops::Range;
use std::sync::Arc;

use bincode::de::BorrowDecoder;
use bincode::de::read::Reader;
use bincode::enc::Encoder;
use bincode::enc::write::Writer;
use bincode::error::{DecodeError, EncodeError};
use bincode::{BorrowDecode, Decode, Encode};
use bytes::Bytes;

use super::{Cancel, Checkpoint, Damaged, Manifest, Tally};
use crate::clock::{DurationMs, MonoMs, SteadyMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken, TaskId};
use crate::store::chunk::{ChunkId, Mask};
use crate::store::{KeptAnswer, Tombstone};
use crate::task::clocks::{ClockSet, TaskClock, Then, Thens};
use crate::task::guard::{Guard, GuardQuestion, OnSilence};
use crate::task::history::{AttemptRecord, Change, ErrorNote, Latest};
use crate::task::late::{LateAnswer, Treatment};
use crate::task::model::{
    DeadReason, Due, Lane, LastOutcome, LiveAttempt, Pause, PauseClock, State, Task, WaitingFor,
};
use crate::task::retry::{Backoff, OnFailure, RetryPolicy};
use crate::task::spec::{
    Action, Class, CommandAction, Delivery, HttpAction, NameError, OnEnd, OnNoAnswer, Poll,
    RawJson, ResourceName, RuleRef, StageName, TaskKey, TaskSpec, Timeouts, TopicName, Verify,
};
use crate::task::stage::{AtStage, Stage, Stages, Starts};

/// How attempts end: the names of outcomes and, where a task ended without one, of reasons. Only appended to.
const OUTCOMES: [&str; 15] = [
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
];

/// Who makes attempts: the kinds of actions. Only appended to.
const EXECUTORS: [&str; 7] = [
    "http",
    "pull",
    "handler",
    "none",
    "poll",
    "complete_only",
    "command",
];

fn place_in(table: &[&str], word: &str) -> u8 {
    let place = table.iter().position(|known| *known == word);
    place.expect("every word that the domain stores is in its table") as u8
}

fn word_at(table: &[&'static str], place: u8) -> Result<&'static str, Damaged> {
    let word = table.get(usize::from(place)).copied();
    word.ok_or_else(|| Damaged::new(format!("there is no word number {place}")))
}

fn bad_name(error: NameError) -> Damaged {
    Damaged::new(format!("a stored name {error}"))
}

/// Enums without content, variant for variant.
macro_rules! mirrors {
    ($($record:ident of $domain:ident { $($variant:ident),+ })*) => {$(
        #[derive(Clone, Copy, Encode, Decode)]
        enum $record { $($variant),+ }

        impl From<$domain> for $record {
            fn from(it: $domain) -> Self {
                match it { $($domain::$variant => Self::$variant),+ }
            }
        }

        impl From<$record> for $domain {
            fn from(it: $record) -> Self {
                match it { $($record::$variant => Self::$variant),+ }
            }
        }
    )*};
}
mirrors! {
    StateV1 of State { Pending, Dispatched, Running, Retrying, Paused, Succeeded, Dead, Cancelled }
    LaneV1 of Lane { Wall, Steady }
    WaitingForV1 of WaitingFor { Retry, Snooze, Poll, Verify, Guard }
    DeadReasonV1 of DeadReason { AttemptsUsedUp, LeaseExpired, TotalTime, Refused, OutcomeUnknown, TimedOut }
    PauseClockV1 of PauseClock { Keep, Freeze }
    OnFailureV1 of OnFailure { Retry, Dead, Park }
    OnNoAnswerV1 of OnNoAnswer { Retry, Hold, Dead }
    OnSilenceV1 of OnSilence { Retry, Fire, Hold }
    DeliveryV1 of Delivery { AtLeastOnce, AtMostOnce }
    ClassV1 of Class { Core, Normal, Bulk }
    TaskClockV1 of TaskClock { Queue, Attempt, Heartbeat, Total }
}

/// A task; its id is its key.
#[derive(Encode, BorrowDecode)]
pub(super) struct TaskRecordV1<'a> {
    due: DueV1,
    /// `None`: the same as `due`, as in every task that was never attempted.
    next: Option<DueV1>,
    topic: &'a str,
    key: Option<&'a str>,
    spec: StoredSpec<'a>,
    state: StateV1,
    generation: u32,
    /// `None`: since it was created, as in every task that was never moved.
    waiting_since_ms: Option<i64>,
    first_due_ms: Option<i64>,
    created_at_ms: i64,
    updated_at_ms: i64,
    ended_at_ms: Option<i64>,
    expires_ms: Option<i64>,
    attempts: u32,
    attempt: u32,
    token: u64,
    live: Option<LiveV1<'a>>,
    pause: Option<PauseV1>,
    waiting_for: Option<WaitingForV1>,
    dead_reason: Option<DeadReasonV1>,
    last_outcome: Option<LastOutcomeV1<'a>>,
    result: Option<&'a [u8]>,
    result_dropped: bool,
    lateness_ms: Option<i64>,
    thaw: u32,
    requests: Vec<u64>,
    attempts_kept: Vec<AttemptV1<'a>>,
    attempts_total: u32,
    changes_kept: Vec<ChangeV1<'a>>,
    changes_total: u32,
}

#[derive(Clone, Copy, Encode, Decode)]
struct DueV1 {
    at_ms: i64,
    lane: LaneV1,
    fire_ms: i64,
}

#[derive(Encode, BorrowDecode)]
struct LiveV1<'a> {
    started_at_ms: Option<i64>,
    worker: Option<&'a str>,
    lease_ms: Option<u64>,
}

#[derive(Encode, Decode)]
struct PauseV1 {
    clock: PauseClockV1,
    since_ms: i64,
}

#[derive(Encode, BorrowDecode)]
struct ErrorV1<'a> {
    code: &'a str,
    message: &'a str,
}

#[derive(Encode, BorrowDecode)]
struct LastOutcomeV1<'a> {
    outcome: u8,
    error: Option<ErrorV1<'a>>,
}

#[derive(Encode, BorrowDecode)]
struct AttemptV1<'a> {
    attempt: u32,
    token: u64,
    generation: u32,
    started_at_ms: Option<i64>,
    ended_at_ms: i64,
    executor: u8,
    worker: Option<&'a str>,
    outcome: u8,
    error: Option<ErrorV1<'a>>,
}

#[derive(Encode, BorrowDecode)]
struct ChangeV1<'a> {
    at_ms: i64,
    from: Option<StateV1>,
    to: StateV1,
    by: &'a str,
    why: &'a str,
}

#[derive(Encode, BorrowDecode)]
struct SpecV1<'a> {
    action: ActionV1<'a>,
    payload: Option<&'a [u8]>,
    retry: RetryV1<'a>,
    attempt_ms: u64,
    grace_ms: u64,
    total_ms: Option<u64>,
    delivery: DeliveryV1,
    class: ClassV1,
    max_lateness_ms: Option<u64>,
    tags: Vec<(&'a str, &'a str)>,
    facts: Option<&'a [u8]>,
}

/// A spec within a task. It never changes, so one that was read is written again as it stood, which saves a third of
/// the work on a record.
enum StoredSpec<'a> {
    /// To be written.
    Parts(SpecV1<'a>),
    /// To be written as it stood.
    Encoded(&'a [u8]),
    /// As it was read, from these addresses of the value.
    Read(SpecV1<'a>, Range<usize>),
}

impl StoredSpec<'_> {
    fn into_spec(self) -> TaskSpec {
        match self {
            Self::Parts(spec) | Self::Read(spec, _) => spec.into(),
            Self::Encoded(_) => unreachable!("no record is read like that"),
        }
    }
}

impl Encode for StoredSpec<'_> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        match self {
            Self::Parts(spec) | Self::Read(spec, _) => spec.encode(encoder),
            Self::Encoded(bytes) => encoder.writer().write(bytes),
        }
    }
}

impl<'de, C> BorrowDecode<'de, C> for StoredSpec<'de> {
    fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(
        decoder: &mut D,
    ) -> Result<Self, DecodeError> {
        let from = address_in(decoder);
        let spec = SpecV1::borrow_decode(decoder)?;
        Ok(Self::Read(spec, from..address_in(decoder)))
    }
}

/// Where a reader stands; fields follow, so it never stands at the end.
fn address_in<'de, D: BorrowDecoder<'de>>(decoder: &mut D) -> usize {
    let next = decoder.borrow_reader().peek_read(1);
    next.map_or(0, |next| next.as_ptr().addr())
}

impl<'a> TaskRecordV1<'a> {
    /// The bytes of its spec in the value that it was read from.
    pub(super) fn spec_in<'v>(&self, value: &'v [u8]) -> Option<&'v [u8]> {
        let StoredSpec::Read(_, Range { start, end }) = self.spec else {
            return None;
        };
        let base = value.as_ptr().addr();
        value.get(start.checked_sub(base)?..end.checked_sub(base)?)
    }
}

#[derive(Encode, BorrowDecode)]
enum ActionV1<'a> {
    Http {
        url: &'a str,
        method: &'a str,
        headers: Vec<(&'a str, &'a str)>,
        expect_status: Vec<u16>,
    },
    Pull,
    Handler {
        name: &'a str,
    },
    None,
    /// `Http` with a condition.
    HttpIf {
        url: &'a str,
        method: &'a str,
        headers: Vec<(&'a str, &'a str)>,
        expect_status: Vec<u16>,
        success_if: &'a str,
    },
    /// `Http` that may be completed later.
    HttpLater {
        http: HttpV1<'a>,
        complete_by_ms: u64,
    },
    Poll {
        http: HttpV1<'a>,
        every_ms: u64,
        within_ms: Option<u64>,
        done_if: &'a str,
        failed_if: Option<&'a str>,
    },
    CompleteOnly,
    Command {
        program: &'a str,
        args: Vec<&'a str>,
        env: Vec<(&'a str, &'a str)>,
        cwd: Option<&'a str>,
    },
    /// Another action, and what is asked when nobody knows whether that was done: here, because a spec has no more fields
    /// than it had, and most have none of this.
    Verified {
        action: Box<ActionV1<'a>>,
        verify: VerifyV1<'a>,
    },
    /// Another action, and the rule that gave the due time: here for the same reason.
    ByRule {
        action: Box<ActionV1<'a>>,
        name: &'a str,
        version: u64,
    },
    /// Another action, and who is told how the task has ended: here for the same reason.
    WithEnd {
        action: Box<ActionV1<'a>>,
        http: HttpV1<'a>,
        retry: Option<RetryV1<'a>>,
    },
    /// Another action, and the task whose end it tells of: here for the same reason.
    CallbackOf {
        action: Box<ActionV1<'a>>,
        task: [u8; 16],
    },
    /// Another action, and the clocks and limits that most have none of: here for the same reason.
    Clocked {
        action: Box<ActionV1<'a>>,
        clocks: ClocksV1<'a>,
    },
    /// Another action, and what decides whether the task fires: here for the same reason.
    Guarded {
        action: Box<ActionV1<'a>>,
        guard: GuardV1<'a>,
    },
}

#[derive(Encode, BorrowDecode)]
enum GuardV1<'a> {
    If(&'a str),
    Asks {
        http: HttpV1<'a>,
        fire_if: Option<&'a str>,
        cancel_if: Option<&'a str>,
        extend_by_ms: Option<u64>,
        on_no_answer: OnSilenceV1,
    },
}

#[derive(Encode, BorrowDecode)]
struct ClocksV1<'a> {
    heartbeat_ms: Option<u64>,
    queue_ms: Option<u64>,
    then: Vec<(TaskClockV1, ThenV1<'a>)>,
    max_lost_leases: Option<u32>,
}

#[derive(Encode, BorrowDecode)]
enum ThenV1<'a> {
    Retry,
    Dead,
    Alert,
    Escalate(ActionV1<'a>),
}

#[derive(Encode, BorrowDecode)]
struct VerifyV1<'a> {
    http: HttpV1<'a>,
    done_if: &'a str,
    failed_if: Option<&'a str>,
    on_no_answer: OnNoAnswerV1,
}

#[derive(Encode, BorrowDecode)]
struct HttpV1<'a> {
    url: &'a str,
    method: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    expect_status: Vec<u16>,
    success_if: Option<&'a str>,
}

#[derive(Encode, BorrowDecode)]
struct RetryV1<'a> {
    backoff: BackoffV1,
    jitter: f64,
    max_attempts: u32,
    on: Vec<(&'a str, OnFailureV1)>,
}

#[derive(Encode, Decode)]
enum BackoffV1 {
    Ladder(Vec<u64>),
    Fixed(u64),
    Exponential {
        base_ms: u64,
        factor: f64,
        cap_ms: u64,
    },
}

/// A task that has stages, or had attempts in stages. Version 1 knows nothing of stages, and is still what a task without
/// them is written as; the stages stand behind it.
#[derive(Encode, BorrowDecode)]
pub(super) struct TaskRecordV2<'a> {
    pub(super) task: TaskRecordV1<'a>,
    stages: Vec<StageV1<'a>>,
    at_stage: Option<AtStageV1>,
    /// One for each of the attempts that are kept.
    of_attempts: Vec<Option<&'a str>>,
}

/// A task of which more is to be said than the first two versions have room for. What is said of it stands behind it,
/// part by part; a new part goes to the end of their enum, and needs no new version.
#[derive(Encode, BorrowDecode)]
pub(super) struct TaskRecordV3<'a> {
    pub(super) staged: TaskRecordV2<'a>,
    parts: Vec<PartV1<'a>>,
}

#[derive(Encode, BorrowDecode)]
enum PartV1<'a> {
    Checkpoint(&'a [u8]),
    Escalated(TaskClockV1),
    /// The clocks that were told of, and how many leases were lost.
    Clocks {
        alerted: u8,
        lost_leases: u32,
    },
    /// Questions of the guard in a row that nobody answered.
    Unanswered(u32),
    /// The guards that stages have of their own, by their places.
    StageGuards(Vec<(u8, GuardV1<'a>)>),
}

#[derive(Encode, BorrowDecode)]
struct StageV1<'a> {
    name: &'a str,
    starts: StartsV1,
    condition: Option<&'a str>,
    action: Option<ActionV1<'a>>,
}

#[derive(Encode, Decode)]
enum StartsV1 {
    After(u64),
    AfterPrevious(u64),
}

#[derive(Encode, Decode)]
struct AtStageV1 {
    place: u8,
    passed: u32,
    died: Option<(u8, DeadReasonV1)>,
    from: DueV1,
}

/// A tombstone; its key is a hash, so topic and key stand in it.
#[derive(Encode, BorrowDecode)]
pub(super) struct TombstoneRecordV1<'a> {
    topic: &'a str,
    key: &'a str,
    until_ms: i64,
    reason: &'a str,
}

/// A kept answer; the hash of its request's key is its key.
#[derive(Encode, BorrowDecode)]
pub(super) struct KeptAnswerRecordV1<'a> {
    body: u128,
    first_at_ms: i64,
    until_ms: i64,
    answer: Option<(u16, &'a [u8])>,
}

/// A late answer; its key is a hash, so all that the hash is of stands in it.
#[derive(Encode, BorrowDecode)]
pub(super) struct LateAnswerRecordV1<'a> {
    task: [u8; 16],
    topic: &'a str,
    key: Option<&'a str>,
    attempt: Option<u32>,
    generation: Option<u32>,
    token: u64,
    outcome: u8,
    error: Option<ErrorV1<'a>>,
    result: Option<&'a [u8]>,
    result_dropped: bool,
    by: &'a str,
    worker: Option<&'a str>,
    at_ms: i64,
    ended_as: Option<u8>,
    state: StateV1,
    treatment: TreatmentV1,
}

#[derive(Encode, Decode)]
enum TreatmentV1 {
    Refused,
    Accepted,
    Compensated([u8; 16]),
}

/// A cancel; the task's id is its key.
#[derive(Encode, BorrowDecode)]
pub(super) struct CancelRecordV1<'a> {
    at_ms: i64,
    steady_ms: i64,
    retention_ms: u64,
    by: &'a str,
    reason: &'a str,
    request: Option<u64>,
}

impl<'a> From<&'a Cancel> for CancelRecordV1<'a> {
    fn from(cancel: &'a Cancel) -> Self {
        let Cancel {
            at,
            steady,
            retention,
            by,
            reason,
            request,
        } = cancel;
        Self {
            at_ms: at.0,
            steady_ms: steady.0,
            retention_ms: retention.0,
            by,
            reason,
            request: *request,
        }
    }
}

impl From<CancelRecordV1<'_>> for Cancel {
    fn from(record: CancelRecordV1<'_>) -> Self {
        Self {
            at: WallMs(record.at_ms),
            steady: SteadyMs(record.steady_ms),
            retention: DurationMs(record.retention_ms),
            by: record.by.to_owned(),
            reason: record.reason.to_owned(),
            request: record.request,
        }
    }
}

/// A checkpoint. Version 1 had the first two fields only; no data directory that holds it is opened any more.
#[derive(Encode, Decode)]
pub(super) struct CheckpointRecordV2 {
    covered: u64,
    steady_ms: i64,
    fold: u64,
    marks_from: u64,
    next_chunk: u64,
    chunks: TallyV1,
    marks: TallyV1,
    notes: TallyV1,
}

#[derive(Encode, Decode)]
struct TallyV1 {
    count: u64,
    sum: u64,
}

/// The parts of a large value.
#[derive(Encode, Decode)]
pub(super) struct ManifestRecordV1 {
    stamp: u64,
    parts: u16,
    bytes: u32,
}

/// Which records of which chunks are dead.
#[derive(Encode, Decode)]
pub(super) struct MarksRecordV1 {
    masks: Vec<(u64, u128)>,
}

/// The seed of key hashes.
#[derive(Encode, Decode)]
pub(super) struct SeedRecordV1 {
    pub(super) seed: u64,
}

// From the domain. Every struct is taken apart by name, so that a new field can't be forgotten here.

fn pairs(list: &[(String, String)]) -> Vec<(&str, &str)> {
    list.iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

impl<'a> TaskRecordV1<'a> {
    /// The record of a task, whose spec may be at hand as it is stored.
    pub(super) fn of(task: &'a Task, encoded_spec: Option<&'a [u8]>) -> Self {
        let Task {
            id: _,
            topic,
            key,
            spec,
            state,
            generation,
            // What belongs to stages is in version 2.
            at_stage: _,
            due,
            next,
            waiting_since,
            first_due,
            created_at,
            updated_at,
            ended_at,
            expires,
            // Parts of version 3, but for the last, which is not stored.
            escalated: _,
            alerted: _,
            lost_leases: _,
            checkpoint: _,
            unanswered: _,
            in_line: _,
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
        Self {
            due: (*due).into(),
            next: (next != due).then(|| (*next).into()),
            topic: topic.as_str(),
            key: key.as_ref().map(TaskKey::as_str),
            spec: match encoded_spec {
                Some(encoded) => StoredSpec::Encoded(encoded),
                None => StoredSpec::Parts((&**spec).into()),
            },
            state: (*state).into(),
            generation: *generation,
            waiting_since_ms: (waiting_since.0 != created_at.0).then_some(waiting_since.0),
            first_due_ms: first_due.map(|at| at.0),
            created_at_ms: created_at.0,
            updated_at_ms: updated_at.0,
            ended_at_ms: ended_at.map(|at| at.0),
            expires_ms: expires.map(|at| at.0),
            attempts: *attempts,
            attempt: attempt.0,
            token: token.0,
            live: live.as_ref().map(Into::into),
            pause: pause.map(Into::into),
            waiting_for: waiting_for.map(Into::into),
            dead_reason: dead_reason.map(Into::into),
            last_outcome: last_outcome.as_ref().map(Into::into),
            result: result.as_ref().map(|json| &*json.0),
            result_dropped: *result_dropped,
            lateness_ms: *lateness_ms,
            thaw: *thaw,
            requests: requests.clone(),
            attempts_kept: attempts_log.kept.iter().map(Into::into).collect(),
            attempts_total: attempts_log.total,
            changes_kept: changes.kept.iter().map(Into::into).collect(),
            changes_total: changes.total,
        }
    }
}

impl<'a> TaskRecordV2<'a> {
    /// Whether a task has to do with stages. The record of any other is that of version 1.
    pub(super) fn is_needed(task: &Task) -> bool {
        let attempts = &task.attempts_log.kept;
        task.spec.stages.is_some()
            || task.at_stage.is_some()
            || attempts.iter().any(|attempt| attempt.stage.is_some())
    }

    /// The record of a task, whose spec may be at hand as version 1 stores it.
    pub(super) fn of(task: &'a Task, encoded_spec: Option<&'a [u8]>) -> Self {
        let stages = task.spec.stages.iter().flat_map(Stages::iter);
        let attempts = task.attempts_log.kept.iter();
        let of_attempts = attempts.map(|attempt| attempt.stage.as_ref());
        Self {
            task: TaskRecordV1::of(task, encoded_spec),
            stages: stages.map(StageV1::from).collect(),
            at_stage: task.at_stage.map(Into::into),
            of_attempts: of_attempts
                .map(|stage| stage.map(StageName::as_str))
                .collect(),
        }
    }
}

impl<'a> TaskRecordV3<'a> {
    /// The record of a task of which there is more to say; `None` for any other, whose record is of an older version.
    pub(super) fn of(task: &'a Task, encoded_spec: Option<&'a [u8]>) -> Option<Self> {
        let checkpoint = task.checkpoint.as_ref();
        let checkpoint = checkpoint.map(|json| PartV1::Checkpoint(&json.0));
        let escalated = task.escalated.map(|clock| PartV1::Escalated(clock.into()));
        let (alerted, lost_leases) = (task.alerted.0, task.lost_leases);
        let clocks = (alerted != 0 || lost_leases != 0).then_some(PartV1::Clocks {
            alerted,
            lost_leases,
        });
        let unanswered = task.unanswered;
        let unanswered = (unanswered != 0).then_some(PartV1::Unanswered(unanswered));
        let stages = (0..).zip(task.spec.stages.iter().flat_map(Stages::iter));
        let guards: Vec<_> = stages
            .filter_map(|(place, stage)| Some((place, stage.guard.as_ref()?.into())))
            .collect();
        let guards = (!guards.is_empty()).then_some(PartV1::StageGuards(guards));
        let parts: Vec<_> = [checkpoint, escalated, clocks, unanswered, guards]
            .into_iter()
            .flatten()
            .collect();
        (!parts.is_empty()).then(|| Self {
            staged: TaskRecordV2::of(task, encoded_spec),
            parts,
        })
    }
}

impl<'a> From<&'a Stage> for StageV1<'a> {
    fn from(
        Stage {
            name,
            starts,
            condition,
            // In version 3 of the task's record.
            guard: _,
            action,
        }: &'a Stage,
    ) -> Self {
        Self {
            name: name.as_str(),
            starts: match starts {
                Starts::After(length) => StartsV1::After(length.0),
                Starts::AfterPrevious(length) => StartsV1::AfterPrevious(length.0),
            },
            condition: condition.as_deref(),
            action: action.as_ref().map(Into::into),
        }
    }
}

impl From<AtStage> for AtStageV1 {
    fn from(
        AtStage {
            place,
            passed,
            died,
            from,
        }: AtStage,
    ) -> Self {
        Self {
            place,
            passed,
            died: died.map(|(place, reason)| (place, reason.into())),
            from: from.into(),
        }
    }
}

impl From<Due> for DueV1 {
    fn from(Due { at, lane, fire_ms }: Due) -> Self {
        Self {
            at_ms: at.0,
            lane: lane.into(),
            fire_ms,
        }
    }
}

impl<'a> From<&'a LiveAttempt> for LiveV1<'a> {
    fn from(live: &'a LiveAttempt) -> Self {
        let LiveAttempt {
            started_at,
            worker,
            lease,
            report_by: _,
            beat_by: _,
            alert_at: _,
        } = live;
        Self {
            started_at_ms: started_at.map(|at| at.0),
            worker: worker.as_deref(),
            lease_ms: lease.map(|length| length.0),
        }
    }
}

impl From<Pause> for PauseV1 {
    fn from(Pause { clock, since }: Pause) -> Self {
        Self {
            clock: clock.into(),
            since_ms: since.0,
        }
    }
}

impl<'a> From<&'a ErrorNote> for ErrorV1<'a> {
    fn from(ErrorNote { code, message }: &'a ErrorNote) -> Self {
        Self { code, message }
    }
}

impl<'a> From<&'a LastOutcome> for LastOutcomeV1<'a> {
    fn from(LastOutcome { outcome, error }: &'a LastOutcome) -> Self {
        Self {
            outcome: place_in(&OUTCOMES, outcome),
            error: error.as_ref().map(Into::into),
        }
    }
}

impl<'a> From<&'a AttemptRecord> for AttemptV1<'a> {
    fn from(record: &'a AttemptRecord) -> Self {
        let AttemptRecord {
            attempt,
            token,
            generation,
            // In version 2 of the task's record.
            stage: _,
            started_at,
            ended_at,
            executor,
            worker,
            outcome,
            error,
        } = record;
        Self {
            attempt: attempt.0,
            token: token.0,
            generation: *generation,
            started_at_ms: started_at.map(|at| at.0),
            ended_at_ms: ended_at.0,
            executor: place_in(&EXECUTORS, executor),
            worker: worker.as_deref(),
            outcome: place_in(&OUTCOMES, outcome),
            error: error.as_ref().map(Into::into),
        }
    }
}

impl<'a> From<&'a Change> for ChangeV1<'a> {
    fn from(
        Change {
            at,
            from,
            to,
            by,
            why,
        }: &'a Change,
    ) -> Self {
        Self {
            at_ms: at.0,
            from: from.map(Into::into),
            to: (*to).into(),
            by,
            why,
        }
    }
}

impl<'a> From<&'a TaskSpec> for SpecV1<'a> {
    fn from(spec: &'a TaskSpec) -> Self {
        let TaskSpec {
            action,
            // In version 2 of the task's record.
            stages: _,
            payload,
            retry,
            timeouts:
                Timeouts {
                    attempt,
                    grace,
                    total,
                    heartbeat,
                    queue,
                    then,
                },
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
        } = spec;
        let mut action = ActionV1::from(action);
        if let Some(guard) = guard {
            action = ActionV1::Guarded {
                action: Box::new(action),
                guard: guard.into(),
            };
        }
        if let Some(verify) = verify {
            action = ActionV1::Verified {
                action: Box::new(action),
                verify: verify.as_ref().into(),
            };
        }
        let max_lost_leases = retry.max_lost_leases;
        if heartbeat.is_some() || queue.is_some() || !then.0.is_empty() || max_lost_leases.is_some()
        {
            let then = then.0.iter();
            action = ActionV1::Clocked {
                action: Box::new(action),
                clocks: ClocksV1 {
                    heartbeat_ms: heartbeat.map(|length| length.0),
                    queue_ms: queue.map(|length| length.0),
                    then: then
                        .map(|(clock, then)| ((*clock).into(), then.into()))
                        .collect(),
                    max_lost_leases,
                },
            };
        }
        // When it was created stands in the task's own record.
        if let Some(RuleRef { name, version, .. }) = rule {
            action = ActionV1::ByRule {
                action: Box::new(action),
                name: name.as_str(),
                version: *version,
            };
        }
        if let Some(OnEnd { http, retry }) = on_end.as_deref() {
            action = ActionV1::WithEnd {
                action: Box::new(action),
                http: http.into(),
                retry: retry.as_ref().map(Into::into),
            };
        }
        if let Some(task) = callback_of {
            action = ActionV1::CallbackOf {
                action: Box::new(action),
                task: task.to_bytes(),
            };
        }
        Self {
            action,
            payload: payload.as_ref().map(|json| &*json.0),
            retry: retry.into(),
            attempt_ms: attempt.0,
            grace_ms: grace.0,
            total_ms: total.map(|length| length.0),
            delivery: (*delivery).into(),
            class: (*class).into(),
            max_lateness_ms: max_lateness.map(|length| length.0),
            tags: pairs(tags),
            facts: facts.as_ref().map(|json| &*json.0),
        }
    }
}

impl<'a> From<&'a Then> for ThenV1<'a> {
    fn from(then: &'a Then) -> Self {
        match then {
            Then::Retry => Self::Retry,
            Then::Dead => Self::Dead,
            Then::Alert => Self::Alert,
            Then::Escalate(action) => Self::Escalate((&**action).into()),
        }
    }
}

impl<'a> From<&'a Action> for ActionV1<'a> {
    fn from(action: &'a Action) -> Self {
        match action {
            Action::Http(HttpAction {
                url,
                method,
                headers,
                expect_status,
                success_if: None,
                complete_by: None,
            }) => Self::Http {
                url,
                method,
                headers: pairs(headers),
                expect_status: expect_status.clone(),
            },
            Action::Http(HttpAction {
                url,
                method,
                headers,
                expect_status,
                success_if: Some(success_if),
                complete_by: None,
            }) => Self::HttpIf {
                url,
                method,
                headers: pairs(headers),
                expect_status: expect_status.clone(),
                success_if,
            },
            Action::Http(
                http @ HttpAction {
                    complete_by: Some(complete_by),
                    ..
                },
            ) => Self::HttpLater {
                http: http.into(),
                complete_by_ms: complete_by.0,
            },
            Action::Pull => Self::Pull,
            Action::Handler { name } => Self::Handler { name },
            Action::Command(CommandAction {
                program,
                args,
                env,
                cwd,
            }) => Self::Command {
                program,
                args: args.iter().map(String::as_str).collect(),
                env: pairs(env),
                cwd: cwd.as_deref(),
            },
            Action::None => Self::None,
            Action::Poll(poll) => poll.as_ref().into(),
            Action::CompleteOnly => Self::CompleteOnly,
        }
    }
}

impl<'a> From<&'a Poll> for ActionV1<'a> {
    fn from(
        Poll {
            http,
            every,
            within,
            done_if,
            failed_if,
        }: &'a Poll,
    ) -> Self {
        Self::Poll {
            http: http.into(),
            every_ms: every.0,
            within_ms: within.map(|length| length.0),
            done_if,
            failed_if: failed_if.as_deref(),
        }
    }
}

impl<'a> From<&'a Guard> for GuardV1<'a> {
    fn from(guard: &'a Guard) -> Self {
        let question = match guard {
            Guard::If(condition) => return Self::If(condition),
            Guard::Asks(question) => &**question,
        };
        let GuardQuestion {
            http,
            fire_if,
            cancel_if,
            extend_by,
            on_no_answer,
        } = question;
        Self::Asks {
            http: http.into(),
            fire_if: fire_if.as_deref(),
            cancel_if: cancel_if.as_deref(),
            extend_by_ms: extend_by.map(|length| length.0),
            on_no_answer: (*on_no_answer).into(),
        }
    }
}

impl<'a> From<&'a Verify> for VerifyV1<'a> {
    fn from(
        Verify {
            http,
            done_if,
            failed_if,
            on_no_answer,
        }: &'a Verify,
    ) -> Self {
        Self {
            http: http.into(),
            done_if,
            failed_if: failed_if.as_deref(),
            on_no_answer: (*on_no_answer).into(),
        }
    }
}

impl<'a> From<&'a HttpAction> for HttpV1<'a> {
    /// Without the time to complete it, which stands beside it.
    fn from(
        HttpAction {
            url,
            method,
            headers,
            expect_status,
            success_if,
            complete_by: _,
        }: &'a HttpAction,
    ) -> Self {
        Self {
            url,
            method,
            headers: pairs(headers),
            expect_status: expect_status.clone(),
            success_if: success_if.as_deref(),
        }
    }
}

impl<'a> From<&'a RetryPolicy> for RetryV1<'a> {
    fn from(policy: &'a RetryPolicy) -> Self {
        let RetryPolicy {
            backoff,
            jitter,
            max_attempts,
            // Among a spec's clocks.
            max_lost_leases: _,
            on,
        } = policy;
        Self {
            backoff: match backoff {
                Backoff::Ladder(steps) => {
                    BackoffV1::Ladder(steps.iter().map(|step| step.0).collect())
                }
                Backoff::Fixed(delay) => BackoffV1::Fixed(delay.0),
                Backoff::Exponential { base, factor, cap } => BackoffV1::Exponential {
                    base_ms: base.0,
                    factor: *factor,
                    cap_ms: cap.0,
                },
            },
            jitter: *jitter,
            max_attempts: *max_attempts,
            on: on
                .iter()
                .map(|(code, then)| (code.as_str(), (*then).into()))
                .collect(),
        }
    }
}

impl<'a> From<&'a Tombstone> for TombstoneRecordV1<'a> {
    fn from(tombstone: &'a Tombstone) -> Self {
        let Tombstone {
            topic,
            key,
            until,
            reason,
        } = tombstone;
        Self {
            topic: topic.as_str(),
            key: key.as_str(),
            until_ms: until.0,
            reason,
        }
    }
}

impl<'a> From<&'a KeptAnswer> for KeptAnswerRecordV1<'a> {
    fn from(kept: &'a KeptAnswer) -> Self {
        let KeptAnswer {
            key: _,
            body,
            first_at,
            until,
            answer,
        } = kept;
        Self {
            body: *body,
            first_at_ms: first_at.0,
            until_ms: until.0,
            answer: answer.as_ref().map(|(status, body)| (*status, &**body)),
        }
    }
}

impl<'a> From<&'a LateAnswer> for LateAnswerRecordV1<'a> {
    fn from(late: &'a LateAnswer) -> Self {
        let LateAnswer {
            task,
            topic,
            key,
            attempt,
            generation,
            token,
            outcome,
            error,
            result,
            result_dropped,
            by,
            worker,
            at,
            ended_as,
            state,
            treatment,
        } = late;
        Self {
            task: task.to_bytes(),
            topic: topic.as_str(),
            key: key.as_ref().map(TaskKey::as_str),
            attempt: attempt.map(|attempt| attempt.0),
            generation: *generation,
            token: token.0,
            outcome: place_in(&OUTCOMES, outcome),
            error: error.as_ref().map(ErrorV1::from),
            result: result.as_ref().map(|json| &*json.0),
            result_dropped: *result_dropped,
            by,
            worker: worker.as_deref(),
            at_ms: at.0,
            ended_as: ended_as.map(|word| place_in(&OUTCOMES, word)),
            state: (*state).into(),
            treatment: match treatment {
                Treatment::Refused => TreatmentV1::Refused,
                Treatment::Accepted => TreatmentV1::Accepted,
                Treatment::Compensated(task) => TreatmentV1::Compensated(task.to_bytes()),
            },
        }
    }
}

impl From<Checkpoint> for CheckpointRecordV2 {
    fn from(checkpoint: Checkpoint) -> Self {
        let Checkpoint {
            covered,
            steady,
            fold,
            marks_from,
            next_chunk,
            chunks,
            marks,
            notes,
        } = checkpoint;
        Self {
            covered,
            steady_ms: steady.0,
            fold,
            marks_from,
            next_chunk: next_chunk.0,
            chunks: chunks.into(),
            marks: marks.into(),
            notes: notes.into(),
        }
    }
}

impl From<Tally> for TallyV1 {
    fn from(Tally { count, sum }: Tally) -> Self {
        Self { count, sum }
    }
}

impl From<Manifest> for ManifestRecordV1 {
    fn from(
        Manifest {
            stamp,
            parts,
            bytes,
        }: Manifest,
    ) -> Self {
        Self {
            stamp,
            parts,
            bytes,
        }
    }
}

impl From<&[(ChunkId, Mask)]> for MarksRecordV1 {
    fn from(marks: &[(ChunkId, Mask)]) -> Self {
        Self {
            masks: marks.iter().map(|(chunk, mask)| (chunk.0, *mask)).collect(),
        }
    }
}

// And back.

fn owned_pairs(list: Vec<(&str, &str)>) -> Vec<(String, String)> {
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    list.into_iter().map(own).collect()
}

fn json(bytes: &[u8]) -> RawJson {
    RawJson(Bytes::copy_from_slice(bytes))
}

impl TaskRecordV1<'_> {
    pub(super) fn into_task(self, id: TaskId) -> Result<Task, Damaged> {
        let due = Due::from(self.due);
        let mut spec = self.spec.into_spec();
        if let Some(rule) = &mut spec.rule {
            rule.at = WallMs(self.created_at_ms);
        }
        let attempts_kept: Result<_, Damaged> = self
            .attempts_kept
            .into_iter()
            .map(TryInto::try_into)
            .collect();
        Ok(Task {
            id,
            topic: TopicName::parse(self.topic).map_err(bad_name)?,
            key: self.key.map(TaskKey::parse).transpose().map_err(bad_name)?,
            spec: Arc::new(spec),
            state: self.state.into(),
            generation: self.generation,
            at_stage: None,
            due,
            next: self.next.map_or(due, Into::into),
            waiting_since: SteadyMs(self.waiting_since_ms.unwrap_or(self.created_at_ms)),
            first_due: self.first_due_ms.map(SteadyMs),
            created_at: WallMs(self.created_at_ms),
            updated_at: WallMs(self.updated_at_ms),
            ended_at: self.ended_at_ms.map(WallMs),
            expires: self.expires_ms.map(SteadyMs),
            escalated: None,
            alerted: ClockSet::default(),
            in_line: None,
            lost_leases: 0,
            checkpoint: None,
            attempts: self.attempts,
            attempt: AttemptNumber(self.attempt),
            token: AttemptToken(self.token),
            live: self.live.map(Into::into),
            pause: self.pause.map(Into::into),
            waiting_for: self.waiting_for.map(Into::into),
            unanswered: 0,
            dead_reason: self.dead_reason.map(Into::into),
            last_outcome: self.last_outcome.map(TryInto::try_into).transpose()?,
            result: self.result.map(json),
            result_dropped: self.result_dropped,
            lateness_ms: self.lateness_ms,
            thaw: self.thaw,
            requests: self.requests,
            attempts_log: Latest {
                kept: attempts_kept?,
                total: self.attempts_total,
            },
            changes: Latest {
                kept: self.changes_kept.into_iter().map(Into::into).collect(),
                total: self.changes_total,
            },
        })
    }
}

impl TaskRecordV2<'_> {
    pub(super) fn into_task(self, id: TaskId) -> Result<Task, Damaged> {
        let mut task = self.task.into_task(id)?;
        let name = |name: &str| StageName::parse(name).map_err(bad_name);
        if !self.stages.is_empty() {
            let stages = self.stages.into_iter().map(|stage| {
                Ok(Stage {
                    name: name(stage.name)?,
                    starts: match stage.starts {
                        StartsV1::After(length) => Starts::After(DurationMs(length)),
                        StartsV1::AfterPrevious(length) => {
                            Starts::AfterPrevious(DurationMs(length))
                        }
                    },
                    condition: stage.condition.map(str::to_owned),
                    guard: None,
                    action: stage.action.map(Into::into),
                })
            });
            let stages = Stages::new(stages.collect::<Result<_, Damaged>>()?);
            let stages = stages.map_err(|flaw| Damaged::new(format!("stored stages: {flaw}")))?;
            Arc::make_mut(&mut task.spec).stages = Some(stages);
        }
        task.at_stage = self.at_stage.map(Into::into);
        let kept = task.attempts_log.kept.iter_mut();
        for (attempt, stage) in kept.zip(self.of_attempts) {
            attempt.stage = stage.map(name).transpose()?;
        }
        Ok(task)
    }
}

impl TaskRecordV3<'_> {
    pub(super) fn into_task(self, id: TaskId) -> Result<Task, Damaged> {
        let mut task = self.staged.into_task(id)?;
        for part in self.parts {
            match part {
                PartV1::Checkpoint(bytes) => task.checkpoint = Some(json(bytes)),
                PartV1::Escalated(clock) => task.escalated = Some(clock.into()),
                PartV1::Clocks {
                    alerted,
                    lost_leases,
                } => {
                    task.alerted = ClockSet(alerted);
                    task.lost_leases = lost_leases;
                }
                PartV1::Unanswered(count) => task.unanswered = count,
                PartV1::StageGuards(guards) => {
                    let spec = Arc::make_mut(&mut task.spec);
                    let stages = spec.stages.iter().flat_map(Stages::iter);
                    let mut stages: Vec<_> = stages.cloned().collect();
                    for (place, guard) in guards {
                        if let Some(stage) = stages.get_mut(usize::from(place)) {
                            stage.guard = Some(guard.into());
                        }
                    }
                    let flaw = |flaw| Damaged::new(format!("stored stages: {flaw}"));
                    spec.stages = Some(Stages::new(stages).map_err(flaw)?);
                }
            }
        }
        Ok(task)
    }
}

impl From<AtStageV1> for AtStage {
    fn from(at: AtStageV1) -> Self {
        Self {
            place: at.place,
            passed: at.passed,
            died: at.died.map(|(place, reason)| (place, reason.into())),
            from: at.from.into(),
        }
    }
}

impl From<DueV1> for Due {
    fn from(due: DueV1) -> Self {
        Self {
            at: WallMs(due.at_ms),
            lane: due.lane.into(),
            fire_ms: due.fire_ms,
        }
    }
}

impl From<LiveV1<'_>> for LiveAttempt {
    fn from(live: LiveV1<'_>) -> Self {
        Self {
            started_at: live.started_at_ms.map(WallMs),
            worker: live.worker.map(str::to_owned),
            lease: live.lease_ms.map(DurationMs),
            // The monotonic clock of another process says nothing here: recovery sets it anew.
            report_by: MonoMs(0),
            beat_by: None,
            alert_at: None,
        }
    }
}

impl From<PauseV1> for Pause {
    fn from(pause: PauseV1) -> Self {
        Self {
            clock: pause.clock.into(),
            since: SteadyMs(pause.since_ms),
        }
    }
}

impl From<ErrorV1<'_>> for ErrorNote {
    fn from(error: ErrorV1<'_>) -> Self {
        Self {
            code: error.code.to_owned(),
            message: error.message.to_owned(),
        }
    }
}

impl TryFrom<LastOutcomeV1<'_>> for LastOutcome {
    type Error = Damaged;

    fn try_from(last: LastOutcomeV1<'_>) -> Result<Self, Damaged> {
        Ok(Self {
            outcome: word_at(&OUTCOMES, last.outcome)?,
            error: last.error.map(Into::into),
        })
    }
}

impl TryFrom<AttemptV1<'_>> for AttemptRecord {
    type Error = Damaged;

    fn try_from(record: AttemptV1<'_>) -> Result<Self, Damaged> {
        Ok(Self {
            attempt: AttemptNumber(record.attempt),
            token: AttemptToken(record.token),
            generation: record.generation,
            stage: None,
            started_at: record.started_at_ms.map(WallMs),
            ended_at: WallMs(record.ended_at_ms),
            executor: word_at(&EXECUTORS, record.executor)?,
            worker: record.worker.map(str::to_owned),
            outcome: word_at(&OUTCOMES, record.outcome)?,
            error: record.error.map(Into::into),
        })
    }
}

impl From<ChangeV1<'_>> for Change {
    fn from(change: ChangeV1<'_>) -> Self {
        Self {
            at: WallMs(change.at_ms),
            from: change.from.map(Into::into),
            to: change.to.into(),
            by: change.by.to_owned(),
            why: change.why.to_owned(),
        }
    }
}

impl From<SpecV1<'_>> for TaskSpec {
    fn from(spec: SpecV1<'_>) -> Self {
        let (mut verify, mut rule, mut on_end, mut callback_of) = (None, None, None, None);
        let (mut clocks, mut guard) = (None, None);
        let mut action = spec.action;
        // What stands around the action, from the outermost in.
        let action = loop {
            action = match action {
                ActionV1::CallbackOf { action, task } => {
                    callback_of = Some(TaskId::from_bytes(task));
                    *action
                }
                ActionV1::WithEnd {
                    action,
                    http,
                    retry,
                } => {
                    on_end = Some(Box::new(OnEnd {
                        http: http.into(),
                        retry: retry.map(Into::into),
                    }));
                    *action
                }
                ActionV1::ByRule {
                    action,
                    name,
                    version,
                } => {
                    rule = ResourceName::parse(name).ok().map(|name| (name, version));
                    *action
                }
                ActionV1::Clocked { action, clocks: of } => {
                    clocks = Some(of);
                    *action
                }
                ActionV1::Guarded { action, guard: by } => {
                    guard = Some(by.into());
                    *action
                }
                ActionV1::Verified { action, verify: by } => {
                    verify = Some(Box::new(by.into()));
                    *action
                }
                action => break action,
            };
        };
        let mut retry = RetryPolicy::from(spec.retry);
        let mut timeouts = Timeouts {
            attempt: DurationMs(spec.attempt_ms),
            grace: DurationMs(spec.grace_ms),
            total: spec.total_ms.map(DurationMs),
            ..Timeouts::default()
        };
        if let Some(clocks) = clocks {
            retry.max_lost_leases = clocks.max_lost_leases;
            timeouts.heartbeat = clocks.heartbeat_ms.map(DurationMs);
            timeouts.queue = clocks.queue_ms.map(DurationMs);
            let then = clocks.then.into_iter();
            timeouts.then = Thens(
                then.map(|(clock, then)| (clock.into(), then.into()))
                    .collect(),
            );
        }
        Self {
            verify,
            guard,
            on_end,
            callback_of,
            action: action.into(),
            stages: None,
            payload: spec.payload.map(json),
            retry,
            timeouts,
            delivery: spec.delivery.into(),
            class: spec.class.into(),
            max_lateness: spec.max_lateness_ms.map(DurationMs),
            tags: owned_pairs(spec.tags),
            facts: spec.facts.map(json),
            rule: rule.map(|(name, version)| RuleRef {
                name,
                version,
                at: WallMs(0),
            }),
        }
    }
}

impl From<ThenV1<'_>> for Then {
    fn from(then: ThenV1<'_>) -> Self {
        match then {
            ThenV1::Retry => Self::Retry,
            ThenV1::Dead => Self::Dead,
            ThenV1::Alert => Self::Alert,
            ThenV1::Escalate(action) => Self::Escalate(Box::new(action.into())),
        }
    }
}

impl From<ActionV1<'_>> for Action {
    fn from(action: ActionV1<'_>) -> Self {
        match action {
            ActionV1::Http {
                url,
                method,
                headers,
                expect_status,
            } => Self::Http(HttpAction {
                url: url.to_owned(),
                method: method.to_owned(),
                headers: owned_pairs(headers),
                expect_status,
                success_if: None,
                complete_by: None,
            }),
            ActionV1::HttpIf {
                url,
                method,
                headers,
                expect_status,
                success_if,
            } => Self::Http(HttpAction {
                url: url.to_owned(),
                method: method.to_owned(),
                headers: owned_pairs(headers),
                expect_status,
                success_if: Some(success_if.to_owned()),
                complete_by: None,
            }),
            ActionV1::HttpLater {
                http,
                complete_by_ms,
            } => Self::Http(HttpAction {
                complete_by: Some(DurationMs(complete_by_ms)),
                ..http.into()
            }),
            ActionV1::Poll {
                http,
                every_ms,
                within_ms,
                done_if,
                failed_if,
            } => Self::Poll(Box::new(Poll {
                http: http.into(),
                every: DurationMs(every_ms),
                within: within_ms.map(DurationMs),
                done_if: done_if.to_owned(),
                failed_if: failed_if.map(str::to_owned),
            })),
            ActionV1::CompleteOnly => Self::CompleteOnly,
            ActionV1::Verified { action, .. }
            | ActionV1::Guarded { action, .. }
            | ActionV1::ByRule { action, .. }
            | ActionV1::WithEnd { action, .. }
            | ActionV1::CallbackOf { action, .. }
            | ActionV1::Clocked { action, .. } => (*action).into(),
            ActionV1::Pull => Self::Pull,
            ActionV1::Handler { name } => Self::Handler {
                name: name.to_owned(),
            },
            ActionV1::Command {
                program,
                args,
                env,
                cwd,
            } => Self::Command(CommandAction {
                program: program.to_owned(),
                args: args.into_iter().map(str::to_owned).collect(),
                env: owned_pairs(env),
                cwd: cwd.map(str::to_owned),
            }),
            ActionV1::None => Self::None,
        }
    }
}

impl From<GuardV1<'_>> for Guard {
    fn from(guard: GuardV1<'_>) -> Self {
        match guard {
            GuardV1::If(condition) => Self::If(condition.to_owned()),
            GuardV1::Asks {
                http,
                fire_if,
                cancel_if,
                extend_by_ms,
                on_no_answer,
            } => Self::Asks(Box::new(GuardQuestion {
                http: http.into(),
                fire_if: fire_if.map(str::to_owned),
                cancel_if: cancel_if.map(str::to_owned),
                extend_by: extend_by_ms.map(DurationMs),
                on_no_answer: on_no_answer.into(),
            })),
        }
    }
}

impl From<VerifyV1<'_>> for Verify {
    fn from(verify: VerifyV1<'_>) -> Self {
        Self {
            http: verify.http.into(),
            done_if: verify.done_if.to_owned(),
            failed_if: verify.failed_if.map(str::to_owned),
            on_no_answer: verify.on_no_answer.into(),
        }
    }
}

impl From<HttpV1<'_>> for HttpAction {
    fn from(http: HttpV1<'_>) -> Self {
        Self {
            url: http.url.to_owned(),
            method: http.method.to_owned(),
            headers: owned_pairs(http.headers),
            expect_status: http.expect_status,
            success_if: http.success_if.map(str::to_owned),
            complete_by: None,
        }
    }
}

impl From<RetryV1<'_>> for RetryPolicy {
    fn from(policy: RetryV1<'_>) -> Self {
        Self {
            backoff: match policy.backoff {
                BackoffV1::Ladder(steps) => {
                    Backoff::Ladder(steps.into_iter().map(DurationMs).collect())
                }
                BackoffV1::Fixed(delay) => Backoff::Fixed(DurationMs(delay)),
                BackoffV1::Exponential {
                    base_ms,
                    factor,
                    cap_ms,
                } => Backoff::Exponential {
                    base: DurationMs(base_ms),
                    factor,
                    cap: DurationMs(cap_ms),
                },
            },
            jitter: policy.jitter,
            max_attempts: policy.max_attempts,
            max_lost_leases: None,
            on: policy
                .on
                .into_iter()
                .map(|(code, then)| (code.to_owned(), then.into()))
                .collect(),
        }
    }
}

impl From<CheckpointRecordV2> for Checkpoint {
    fn from(record: CheckpointRecordV2) -> Self {
        Self {
            covered: record.covered,
            steady: SteadyMs(record.steady_ms),
            fold: record.fold,
            marks_from: record.marks_from,
            next_chunk: ChunkId(record.next_chunk),
            chunks: record.chunks.into(),
            marks: record.marks.into(),
            notes: record.notes.into(),
        }
    }
}

impl From<TallyV1> for Tally {
    fn from(TallyV1 { count, sum }: TallyV1) -> Self {
        Self { count, sum }
    }
}

impl From<ManifestRecordV1> for Manifest {
    fn from(record: ManifestRecordV1) -> Self {
        Self {
            stamp: record.stamp,
            parts: record.parts,
            bytes: record.bytes,
        }
    }
}

impl From<MarksRecordV1> for Vec<(ChunkId, Mask)> {
    fn from(record: MarksRecordV1) -> Self {
        let marks = record.masks.into_iter();
        marks.map(|(chunk, mask)| (ChunkId(chunk), mask)).collect()
    }
}

impl TombstoneRecordV1<'_> {
    pub(super) fn into_tombstone(self) -> Result<Tombstone, Damaged> {
        Ok(Tombstone {
            topic: TopicName::parse(self.topic).map_err(bad_name)?,
            key: TaskKey::parse(self.key).map_err(bad_name)?,
            until: SteadyMs(self.until_ms),
            reason: self.reason.to_owned(),
        })
    }
}

impl KeptAnswerRecordV1<'_> {
    pub(super) fn into_answer(self, key: u128) -> KeptAnswer {
        KeptAnswer {
            key,
            body: self.body,
            first_at: WallMs(self.first_at_ms),
            until: SteadyMs(self.until_ms),
            answer: self
                .answer
                .map(|(status, body)| (status, Bytes::copy_from_slice(body))),
        }
    }
}

impl LateAnswerRecordV1<'_> {
    pub(super) fn into_late(self) -> Result<LateAnswer, Damaged> {
        let ended_as = self.ended_as.map(|place| word_at(&OUTCOMES, place));
        Ok(LateAnswer {
            task: TaskId::from_bytes(self.task),
            topic: TopicName::parse(self.topic).map_err(bad_name)?,
            key: self.key.map(TaskKey::parse).transpose().map_err(bad_name)?,
            attempt: self.attempt.map(AttemptNumber),
            generation: self.generation,
            token: AttemptToken(self.token),
            outcome: word_at(&OUTCOMES, self.outcome)?,
            error: self.error.map(ErrorNote::from),
            result: self.result.map(json),
            result_dropped: self.result_dropped,
            by: self.by.to_owned(),
            worker: self.worker.map(str::to_owned),
            at: WallMs(self.at_ms),
            ended_as: ended_as.transpose()?,
            state: self.state.into(),
            treatment: match self.treatment {
                TreatmentV1::Refused => Treatment::Refused,
                TreatmentV1::Accepted => Treatment::Accepted,
                TreatmentV1::Compensated(task) => Treatment::Compensated(TaskId::from_bytes(task)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::outcome::{Failure, Outcome};

    #[test]
    fn every_word_that_the_domain_stores_is_in_its_table() {
        let failure = Failure {
            code: String::new(),
            message: String::new(),
            retryable: false,
            retry_after: None,
            in_doubt: false,
        };
        let succeeded = Outcome::Succeeded {
            result: None,
            result_dropped: false,
        };
        let outcomes = [
            succeeded,
            Outcome::Failed(failure),
            Outcome::NotYet {
                answer: String::new(),
            },
            Outcome::TimedOut,
            Outcome::LeaseExpired,
            Outcome::Silent,
            Outcome::Snoozed,
            Outcome::Cancelled,
            Outcome::GivenBack,
            Outcome::Unknown,
        ];
        let words = outcomes
            .iter()
            .map(Outcome::name)
            .chain(DeadReason::ALL.map(DeadReason::name));
        for word in words {
            assert_eq!(word_at(&OUTCOMES, place_in(&OUTCOMES, word)), Ok(word));
        }
        let http = HttpAction {
            url: String::new(),
            method: String::new(),
            headers: Vec::new(),
            expect_status: Vec::new(),
            success_if: None,
            complete_by: None,
        };
        let poll = Action::Poll(Box::new(Poll {
            http: http.clone(),
            every: DurationMs(1),
            within: None,
            done_if: String::new(),
            failed_if: None,
        }));
        let handler = Action::Handler {
            name: String::new(),
        };
        let command = Action::Command(CommandAction {
            program: String::new(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
        });
        for action in [
            Action::Http(http),
            Action::Pull,
            handler,
            Action::None,
            poll,
            Action::CompleteOnly,
            command,
        ] {
            let word = action.kind();
            assert_eq!(word_at(&EXECUTORS, place_in(&EXECUTORS, word)), Ok(word));
        }
        assert!(word_at(&EXECUTORS, 200).is_err());
    }
}
