//! What can happen to a task, and why it may be refused.

use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken};
use crate::task::clocks::TaskClock;
use crate::task::history::ErrorNote;
use crate::task::model::{Due, PauseClock, State};
use crate::task::outcome::Outcome;
use crate::task::spec::{RawJson, TaskSpec};
use crate::task::stage::AtStage;

/// One thing that happens to a task.
#[derive(Clone, Debug)]
pub enum Event {
    /// Its time has come and the gate lets it through: a push or handler is handed out, a `none` ends.
    Due {
        /// Without an answer by then, the attempt counts as lost.
        report_by: MonoMs,
    },
    /// Its due time passed while something holds it back (for the total time).
    CameDue,
    /// The executor was told to start it.
    Started,
    /// A worker took it.
    Leased {
        /// The worker's name.
        worker: String,
        /// For how long.
        lease: DurationMs,
    },
    /// The worker is alive.
    Heartbeat {
        /// The attempt it works on.
        token: AttemptToken,
        /// How far it has got, if it says so.
        checkpoint: Option<RawJson>,
    },
    /// The worker wants it later.
    Snoozed {
        /// The attempt it gives up.
        token: AttemptToken,
        /// How much later.
        delay: DurationMs,
    },
    /// An attempt's answer.
    Finished {
        /// The attempt.
        token: AttemptToken,
        /// Its outcome.
        outcome: Outcome,
        /// When it had started.
        started_at: Option<WallMs>,
    },
    /// What somebody outside says became of an attempt, which may still be under way here.
    Answered {
        /// The attempt.
        token: AttemptToken,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The topic lets an answer count that came when its attempt was over.
    AcceptedLate {
        /// The attempt.
        attempt: AttemptNumber,
        /// Its outcome, a success.
        outcome: Outcome,
    },
    /// No answer came by the time it had to.
    Overdue {
        /// The attempt.
        token: AttemptToken,
    },
    /// The total time over all attempts is over.
    TotalTimeOver,
    /// A clock has run out, but for those whose end another event tells of.
    RanOut {
        /// Which.
        clock: TaskClock,
    },
    /// The condition of the stage at this place, whose time has come, is not true.
    StagePassedOver {
        /// Its place.
        place: u8,
        /// Why it has no value: the stage counts as given up.
        error: Option<ErrorNote>,
    },
    /// The time of the later stage at this place has come, whatever is left of the present one.
    StageTookOver {
        /// Its place.
        place: u8,
    },
    /// The condition of the task's guard, whose due time has come, is not true.
    Barred {
        /// Why it has no value: the task is given up.
        error: Option<ErrorNote>,
    },
    /// It comes only now, and what its guard has answered is old.
    AnswerOutdated,
    /// The process that ran the attempt is gone.
    Recovered,
    /// At shutdown, or because its topic is held from now on: the attempt is handed back.
    HandedBack {
        /// Something may have reached the target.
        was_started: bool,
    },
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
    /// Given another due time.
    Reschedule {
        /// The new one.
        due: NewDue,
    },
    /// Made due now.
    RunNow,
    /// Ended as done from outside.
    Complete {
        /// What it gave.
        result: Option<RawJson>,
        /// Only if this attempt is still the one.
        token: Option<AttemptToken>,
    },
    /// Ended as failed from outside.
    Fail {
        /// What was wrong.
        error: ErrorNote,
    },
    /// Run again from the start.
    Replay,
    /// A person settles a dead task.
    Resolve {
        /// As succeeded; else it stays dead, as refused.
        succeeded: bool,
        /// What the person knows.
        note: String,
    },
    /// Its record is to go.
    Discard,
    /// A create with the same key took its place.
    Replace {
        /// The new content.
        spec: Arc<TaskSpec>,
        /// The new due time.
        due: Due,
    },
    /// Given other content of the same kind: facts, tags, payload.
    Amend {
        /// The new content.
        spec: Arc<TaskSpec>,
        /// The due time that follows from it, if its rule was asked.
        due: Option<Due>,
        /// Where it stands among the stages of the new content.
        at_stage: Option<AtStage>,
        /// So many changes were known of when it was worked out.
        changes_seen: u32,
    },
    /// Its topic was frozen and goes on.
    Thawed {
        /// Which thaw of the topic.
        thaw: u32,
        /// How long it was held.
        held: DurationMs,
    },
}

/// Another due time, as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewDue {
    /// An absolute one, already on its lane.
    To(Due),
    /// Later than the present one by this.
    ExtendBy(DurationMs),
}

impl Event {
    /// The verb, as a caller knows it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Due { .. } => "due",
            Self::CameDue => "come due",
            Self::Started => "start",
            Self::Leased { .. } => "lease",
            Self::Heartbeat { .. } => "heartbeat",
            Self::Snoozed { .. } => "snooze",
            Self::Finished { .. } => "finish",
            Self::Answered { .. } => "complete",
            Self::AcceptedLate { .. } => "accept",
            Self::Overdue { .. } => "overdue",
            Self::TotalTimeOver => "total time",
            Self::RanOut { .. } => "run out",
            Self::StagePassedOver { .. } => "pass over a stage",
            Self::StageTookOver { .. } => "begin a stage",
            Self::Barred { .. } => "bar",
            Self::AnswerOutdated => "ask again",
            Self::Recovered => "recover",
            Self::HandedBack { .. } => "hand back",
            Self::Cancel { .. } => "cancel",
            Self::Pause { .. } => "pause",
            Self::Resume => "resume",
            Self::Reschedule { .. } => "reschedule",
            Self::RunNow => "run-now",
            Self::Complete { .. } => "complete",
            Self::Fail { .. } => "fail",
            Self::Replay => "replay",
            Self::Resolve { .. } => "resolve",
            Self::Discard => "discard",
            Self::Replace { .. } => "replace",
            Self::Amend { .. } => "amend",
            Self::Thawed { .. } => "thaw",
        }
    }
}

/// What would be possible instead, for verbs that are often mistaken.
fn hint(verb: &str) -> &'static str {
    match verb {
        "replay" => ": only a dead task can; to try it now, use run-now",
        "resolve" | "discard" => ": only a dead task can",
        "run-now" => ": only a pending or retrying task can",
        "cancel" => ": it has ended already",
        _ => "",
    }
}

/// Why an event does not change the task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not in this state.
    #[error("a task that is {state} can't {verb}{}", hint(verb))]
    IllegalState {
        /// The state it is in.
        state: State,
        /// What was asked for.
        verb: &'static str,
    },
    /// It was changed after it was read.
    #[error("the task was changed by somebody else again and again; ask once more")]
    ChangedMeanwhile,
    /// The attempt is not the present one.
    #[error("token {} is not that of a live attempt of this task", given.0)]
    StaleToken {
        /// The token given.
        given: AttemptToken,
        /// The attempt's task was cancelled (a heartbeat says so kindly).
        cancelled: bool,
    },
}

/// What an event made of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Nothing: it was so already.
    Unchanged,
    /// Something that need not be written.
    InMemory,
    /// A change to be written.
    Changed,
    /// A change to be written, and this attempt is to be stopped.
    ChangedAndStop(AttemptToken),
    /// The record is to go.
    Gone,
}
