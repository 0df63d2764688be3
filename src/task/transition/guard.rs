//! What the guard of a task makes of it: see [`guard`](crate::task::guard).

use crate::clock::DurationMs;
use crate::task::event::{Applied, Event, Refusal};
use crate::task::guard::{OnSilence, ask_again_after};
use crate::task::history::ErrorNote;
use crate::task::model::{
    DeadReason, Due, LastOutcome, Pause, PauseClock, State, Task, WaitingFor,
};
use crate::task::outcome::{FAILED_IF, Outcome};
use crate::task::transition::steps::{die, end, go_on, log, move_stages};
use crate::task::transition::{Context, HANDED_BACK_WAIT, apply_to};

/// The reason with which its guard calls a task off.
const CANCELLED: &str = "cancelled: guard";

/// Whether an event moves what the question that is next, or out, is about, or has it asked anew.
pub(super) fn is_dropped_by(task: &Task, event: &Event) -> bool {
    task.asks_guard()
        && matches!(
            event,
            Event::Pause { .. }
                | Event::Resume
                | Event::Reschedule { .. }
                | Event::RunNow
                | Event::Replace { .. }
                | Event::Amend { .. }
                | Event::Thawed { .. }
        )
}

/// Lets such an event happen, as if nothing were asked. One that is refused, or changes nothing, leaves the question as it
/// is.
pub(super) fn drop_question(
    task: &mut Task,
    event: Event,
    ctx: &Context<'_>,
) -> Result<Applied, Refusal> {
    let (token, was_out) = (task.token, task.state.is_in_flight());
    let mut moved = task.clone();
    moved.leave_guard();
    let applied = apply_to(&mut moved, event, ctx)?;
    if applied == Applied::Unchanged {
        return Ok(applied);
    }
    *task = moved;
    Ok(match applied {
        Applied::Changed if was_out => Applied::ChangedAndStop(token),
        applied => applied,
    })
}

/// The condition of its guard is not true, or has no value.
pub(super) fn bar(task: &mut Task, error: Option<ErrorNote>, ctx: &Context<'_>) {
    let Some(error) = error else {
        return call_off(task, "its condition is not true", ctx);
    };
    task.last_outcome = Some(LastOutcome {
        outcome: "failed",
        error: Some(error),
    });
    die(task, DeadReason::Refused, ctx);
}

/// Its answer is too old for what comes only now.
pub(super) fn ask_anew(task: &mut Task, ctx: &Context<'_>) {
    task.ask_guard_first();
    log(
        task,
        task.state,
        "its guard is asked again: its answer is old",
        ctx,
    );
}

/// What an answer makes of the task.
pub(super) fn settle(task: &mut Task, outcome: &Outcome, ctx: &Context<'_>) {
    let question = task.guard_question();
    let (extend_by, cancels) = question.map_or((None, false), |question| {
        (question.extend_by, question.cancel_if.is_some())
    });
    match outcome {
        Outcome::Succeeded { .. } => let_fire(task, "its guard lets it fire", ctx),
        Outcome::Failed(failure) if failure.code == FAILED_IF => {
            call_off(task, "cancel_if is true", ctx);
        }
        Outcome::NotYet { .. } => match extend_by {
            Some(length) => extend(task, length, ctx),
            None if cancels => no_answer(task, "neither fire_if nor cancel_if is true", ctx),
            None => call_off(task, "fire_if is not true", ctx),
        },
        Outcome::Snoozed | Outcome::Cancelled | Outcome::GivenBack => {
            ask_again(task, HANDED_BACK_WAIT, "handed back", ctx);
        }
        Outcome::Unknown => ask_again(task, DurationMs(0), "cut off, to be asked again", ctx),
        Outcome::TimedOut
        | Outcome::LeaseExpired
        | Outcome::Silent
        | Outcome::Accepted { .. }
        | Outcome::Failed(_) => {
            let why = match ErrorNote::of(outcome) {
                Some(error) => format!("{}: {}", error.code, error.message),
                None => outcome.name().to_owned(),
            };
            no_answer(task, &why, ctx);
        }
    }
}

/// The question that is out, or was to be asked, is asked so much later.
fn ask_again(task: &mut Task, after: DurationMs, why: &str, ctx: &Context<'_>) {
    let before = task.state;
    task.live = None;
    task.state = State::Pending;
    task.waiting_for = Some(WaitingFor::Guard);
    task.next = Due::after(after, ctx.now);
    log(
        task,
        before,
        &format!("the question of its guard: {why}"),
        ctx,
    );
}

fn let_fire(task: &mut Task, why: &str, ctx: &Context<'_>) {
    let before = task.state;
    task.leave_guard();
    log(task, before, why, ctx);
}

/// Neither to fire nor called off: due later, as are the stages behind it.
fn extend(task: &mut Task, length: DurationMs, ctx: &Context<'_>) {
    let before = task.state;
    task.leave_guard();
    let due = match task.due.is_reached(ctx.now) {
        true => Due::after(length, ctx.now),
        false => task.due.later_by(length),
    };
    move_stages(task, due.at.0.saturating_sub(task.due.at.0));
    (task.due, task.next) = (due, due);
    task.waiting_since = ctx.now.steady;
    task.ask_guard_first();
    log(
        task,
        before,
        &format!("its guard makes it {} s later", length.0 / 1000),
        ctx,
    );
}

fn no_answer(task: &mut Task, why: &str, ctx: &Context<'_>) {
    let on_no_answer = task.guard_question().map(|question| question.on_no_answer);
    let unanswered = task.unanswered.saturating_add(1);
    let again = match on_no_answer.unwrap_or_default() {
        OnSilence::Fire => {
            let why = format!("its guard does not answer, so it fires: {why}");
            return let_fire(task, &why, ctx);
        }
        OnSilence::Hold => None,
        OnSilence::Retry => ask_again_after(unanswered),
    };
    match again {
        Some(after) => {
            task.unanswered = unanswered;
            ask_again(task, after, &format!("no answer: {why}"), ctx);
        }
        None => hold(task, why, ctx),
    }
}

fn hold(task: &mut Task, why: &str, ctx: &Context<'_>) {
    let before = task.state;
    task.leave_guard();
    task.state = State::Paused;
    task.pause = Some(Pause {
        clock: PauseClock::Keep,
        since: ctx.now.steady,
    });
    let why = format!("held for a person: its guard does not answer: {why}");
    log(task, before, &why, ctx);
}

/// It does not fire: its stage is passed over if the guard is that one's, else the task is cancelled.
fn call_off(task: &mut Task, why: &str, ctx: &Context<'_>) {
    task.live = None;
    if task.is_guarded_by_stage() {
        let what = task.stage().map_or("", |stage| stage.name.as_str());
        let what = format!("stage {what} is passed over: its guard: {why}");
        return go_on(task, &what, ctx);
    }
    end(task, State::Cancelled, &format!("{CANCELLED}: {why}"), ctx);
}
