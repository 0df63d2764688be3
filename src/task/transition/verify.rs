//! Whether it was done after all: asked before anything is tried again whose outcome nobody knows.
//!
//! ```text
//!  timeout, lost lease, crash ─▶ retrying, waiting_for verify ── when it would be tried again ──▶ question
//!       done_if ─▶ succeeded     failed_if ─▶ dead     neither ─▶ tried again now     no answer ─▶ on_no_answer
//! ```
//!
//! The question is no attempt: it has a token, and nothing else of one.

use crate::clock::DurationMs;
use crate::task::clocks::Follow;
use crate::task::history::ErrorNote;
use crate::task::model::{
    DeadReason, Due, LastOutcome, Pause, PauseClock, State, Task, WaitingFor,
};
use crate::task::outcome::{FAILED_IF, Failure, Outcome};
use crate::task::spec::{Delivery, OnNoAnswer, RawJson};
use crate::task::transition::clocks::escalate;
use crate::task::transition::steps::{die, log, succeed, wait_again};
use crate::task::transition::{Context, HANDED_BACK_WAIT};

/// Whether the work may have been done all the same after a failure, as it stands in a task's last outcome.
fn leaves_in_doubt(code: &str) -> bool {
    ["protocol", "condition_error", "panic"].contains(&code) || code.starts_with("signal_")
}

/// Whether it is to be asked before this task is tried again.
pub(super) fn is_in_doubt(task: &Task) -> bool {
    let Some(last) = &task.last_outcome else {
        return false;
    };
    let code = last.error.as_ref().map(|error| error.code.as_str());
    let in_doubt = match last.outcome {
        "timeout" | "lease_expired" | "heartbeat_lost" | "outcome_unknown" => true,
        "failed" => code.is_some_and(leaves_in_doubt),
        _ => false,
    };
    task.spec.verify.is_some() && task.attempts > 0 && in_doubt
}

/// The state of a task that waits again because somebody let it go on, or gave it another due time.
pub(super) fn wait_as_before(task: &mut Task) {
    (task.state, task.waiting_for) = match is_in_doubt(task) {
        true => (State::Retrying, Some(WaitingFor::Verify)),
        false => (State::Pending, None),
    };
    task.ask_guard_first();
}

/// The question that is out ended without an answer through no fault of its own.
pub(super) fn ask_again(task: &mut Task, after: DurationMs, why: &str, ctx: &Context<'_>) {
    let before = task.state;
    wait_again(task, Due::after(after, ctx.now), WaitingFor::Verify, ctx);
    log(task, before, why, ctx);
}

/// What is to be done after all that is known.
pub(super) fn settle(task: &mut Task, outcome: Outcome, ctx: &Context<'_>) {
    let before = task.state;
    let on_no_answer = task.spec.verify.as_ref().map(|verify| verify.on_no_answer);
    task.live = None;
    match outcome {
        Outcome::Succeeded {
            result,
            result_dropped,
        } => {
            task.last_outcome = Some(LastOutcome {
                outcome: "succeeded",
                error: None,
            });
            task.result = result.map(RawJson);
            task.result_dropped = result_dropped;
            succeed(task, "asked: it had been done", ctx);
        }
        Outcome::NotYet { .. } => try_again(task, before, true, ctx),
        Outcome::Failed(ref failure) if failure.code == FAILED_IF => {
            task.last_outcome = Some(LastOutcome {
                outcome: outcome.name(),
                error: ErrorNote::of(&outcome),
            });
            die(task, DeadReason::Refused, ctx);
        }
        Outcome::Snoozed | Outcome::Cancelled | Outcome::GivenBack => {
            ask_again(task, HANDED_BACK_WAIT, "handed back", ctx);
        }
        Outcome::Unknown => ask_again(task, DurationMs(0), "cut off, to be asked again", ctx),
        Outcome::TimedOut
        | Outcome::LeaseExpired
        | Outcome::Silent
        | Outcome::Accepted { .. }
        | Outcome::Failed(_) => match on_no_answer {
            Some(OnNoAnswer::Hold) => {
                task.next = Due::after(DurationMs(0), ctx.now);
                task.state = State::Paused;
                task.waiting_for = None;
                task.pause = Some(Pause {
                    clock: PauseClock::Keep,
                    since: ctx.now.steady,
                });
                let why = "parked for a person: nobody answered whether it was done";
                log(task, before, why, ctx);
            }
            Some(OnNoAnswer::Dead) => die(task, DeadReason::OutcomeUnknown, ctx),
            Some(OnNoAnswer::Retry) | None => try_again(task, before, false, ctx),
        },
    }
}

/// Tries it again, if it may be: `is_known` says that it was not done.
fn try_again(task: &mut Task, before: State, is_known: bool, ctx: &Context<'_>) {
    let doubt = doubtful(task);
    let then = task.follow(&doubt);
    if let Follow::Escalate(clock) = then {
        return escalate(task, clock, ctx);
    }
    let reason = match doubt {
        _ if !is_known && task.spec.delivery == Delivery::AtMostOnce => {
            return die(task, DeadReason::OutcomeUnknown, ctx);
        }
        Outcome::LeaseExpired => DeadReason::LeaseExpired,
        Outcome::Unknown if !is_known => DeadReason::OutcomeUnknown,
        _ => DeadReason::AttemptsUsedUp,
    };
    if let Follow::Dead(reason) = then {
        return die(task, reason, ctx);
    }
    if !task.has_attempts_left() {
        return die(task, reason, ctx);
    }
    wait_again(
        task,
        Due::after(DurationMs(0), ctx.now),
        WaitingFor::Retry,
        ctx,
    );
    let why = match is_known {
        true => "asked: it was not done",
        false => "nobody answered whether it was done",
    };
    log(task, before, why, ctx);
}

/// The outcome that nobody knows the truth of, as far as it is kept.
fn doubtful(task: &Task) -> Outcome {
    let last = task.last_outcome.as_ref();
    match last.map(|last| last.outcome) {
        Some("lease_expired") => Outcome::LeaseExpired,
        Some("heartbeat_lost") => Outcome::Silent,
        Some("timeout") => Outcome::TimedOut,
        Some("failed") => Outcome::Failed(Failure {
            code: last
                .and_then(|last| last.error.as_ref())
                .map(|error| error.code.clone())
                .unwrap_or_default(),
            message: String::new(),
            retryable: true,
            retry_after: None,
            in_doubt: true,
        }),
        _ => Outcome::Unknown,
    }
}
