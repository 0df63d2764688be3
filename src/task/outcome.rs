//! How an attempt ended. A failing target is an outcome, not an error of ours.

use bytes::Bytes;

use crate::clock::DurationMs;

/// The code of a failure that an answer tells of: the user's `failed_if` is true of it.
pub const FAILED_IF: &str = "failed_if";

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work was done.
    Succeeded {
        /// What the target answered, as JSON text of at most 64 KiB.
        result: Option<Bytes>,
        /// The answer was larger than a result may be and was not kept.
        result_dropped: bool,
    },
    /// The target said no, could not be reached, or broke.
    Failed(Failure),
    /// What was asked is not so yet; uses no attempt.
    NotYet {
        /// The status and the beginning of the answer, for people.
        answer: String,
    },
    /// The receiver took the work on (202) and will say within this time what became of it.
    Accepted {
        /// Counted from now, and anew from each of its heartbeats.
        complete_by: DurationMs,
    },
    /// The attempt's time was up before an answer came.
    TimedOut,
    /// A worker's lease ran out without an answer.
    LeaseExpired,
    /// Nothing was heard of a handler for longer than may be.
    Silent,
    /// The worker asked for the task later; uses no attempt.
    Snoozed,
    /// The task was cancelled while the attempt ran.
    Cancelled,
    /// The attempt never started, or was handed back before anything was sent; uses no attempt.
    GivenBack,
    /// The process died, or was stopped, between start and answer: nobody knows.
    Unknown,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Stable code: `http_503`, `connect`, `dns`, `tls`, `redirect`, `protocol`, `blocked_address`, `condition_false`,
    /// `condition_error`, `failed_if`, `panic`, `exit_7`, `signal_9`, `program_not_found`, or a worker's own.
    pub code: String,
    /// What happened, for a person; at most 1 KiB.
    pub message: String,
    /// Whether another attempt may help.
    pub retryable: bool,
    /// The target asked to be left alone this long.
    pub retry_after: Option<DurationMs>,
    /// The work may have been done all the same: the connection broke after the request, or a handler panicked.
    pub in_doubt: bool,
}

impl Outcome {
    /// The outcome's stable name, as it stands in an attempt's `outcome`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Succeeded { .. } => "succeeded",
            Self::Failed(_) => "failed",
            Self::NotYet { .. } => "not_yet",
            Self::Accepted { .. } => "accepted",
            Self::TimedOut => "timeout",
            Self::LeaseExpired => "lease_expired",
            Self::Silent => "heartbeat_lost",
            Self::Snoozed => "snoozed",
            Self::Cancelled => "cancelled",
            Self::GivenBack => "given_back",
            Self::Unknown => "outcome_unknown",
        }
    }
}
