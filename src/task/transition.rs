//! The one function that says what an event makes of a task.
//!
//! ```text
//!             due                 answer
//!  pending ─────────▶ dispatched ─────────▶ succeeded
//!   ▲   │    lease      running  ──┐        dead ──replay──▶ pending, generation + 1
//!   │   └──────────────▶           │ failed, attempts left
//!   │ resume                       ▼
//!  paused ◀──pause── retrying ◀────┘      cancel: from everywhere that has not ended
//! ```
//!
//! A staged task goes through this once per stage: where it says succeeded or dead, the next stage is pending instead,
//! as long as there is one ([`stage`](crate::task::stage)).
//!
//! It is the same for live work, for recovery and for tests. It decides and changes the task in memory; the
//! shard writes the change and only then acts on it. An event that is refused has changed nothing.

mod clocks;
mod guard;
mod steps;
mod verify;

use crate::clock::{DurationMs, Now};
use crate::task::event::{Applied, Event, NewDue, Refusal};
use crate::task::history::note;
use crate::task::model::{
    DeadReason, Due, LastOutcome, Pause, PauseClock, State, Task, WaitingFor,
};
use crate::task::outcome::{Failure, Outcome};
use crate::task::spec::{Action, Delivery};
use crate::task::stage::AtStage;
use clocks::{end_of_total, ran_out};
use steps::{
    begin_generation, begin_stage, check_token, close_questions, come_due, end,
    finish_from_outside, give_up, go_on, lateness, log, move_stages, record_attempt, settle, shift,
    stop_for, succeed, take_attempt, take_back_unstarted, take_late, wait_again, why,
};

/// How long a task waits that an executor had no room for.
const HANDED_BACK_WAIT: DurationMs = DurationMs(100);

/// How long records of ended tasks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Of succeeded tasks.
    pub succeeded: DurationMs,
    /// Of cancelled tasks.
    pub cancelled: DurationMs,
    /// Of dead tasks.
    pub dead: DurationMs,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |n: u64| DurationMs::secs(n * 24 * 3600);
        Self {
            succeeded: days(7),
            cancelled: days(7),
            dead: days(30),
        }
    }
}

/// What a transition may look at beside the task.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The time.
    pub now: Now,
    /// The topic's retention, fixed for a task when it ends.
    pub retention: Retention,
    /// 0 to 1, for jitter.
    pub random: f64,
    /// Who makes it happen, for the log.
    pub by: &'a str,
}

/// Applies one event.
///
/// # Errors
/// When the task's state, or its present attempt, does not allow it; the task is then unchanged.
pub fn apply(task: &mut Task, event: Event, ctx: &Context<'_>) -> Result<Applied, Refusal> {
    match guard::is_dropped_by(task, &event) {
        true => guard::drop_question(task, event, ctx),
        false => apply_to(task, event, ctx),
    }
}

fn apply_to(task: &mut Task, event: Event, ctx: &Context<'_>) -> Result<Applied, Refusal> {
    let state = task.state;
    let verb = event.verb();
    let illegal = Err(Refusal::IllegalState { state, verb });
    let waits = matches!(state, State::Pending | State::Retrying);
    let open = waits || state == State::Paused;

    match event {
        // Its question has come, and not yet its own time.
        Event::CameDue if waits && task.asks_guard() => Ok(Applied::InMemory),
        Event::CameDue if waits => {
            let is_first = task.first_due.is_none();
            come_due(task, ctx);
            // Nothing else writes when its time began.
            if is_first && *task.action() == Action::CompleteOnly {
                log(task, state, "due, to be completed from outside", ctx);
                Ok(Applied::Changed)
            } else {
                Ok(Applied::InMemory)
            }
        }
        Event::CameDue => illegal,

        Event::Due { report_by } if waits && task.asks_guard() => {
            take_attempt(task, State::Dispatched, None, None, report_by);
            log(task, state, "its guard is asked", ctx);
            Ok(Applied::Changed)
        }
        Event::Due { report_by } if waits => {
            come_due(task, ctx);
            if *task.action() == Action::None {
                task.lateness_ms = Some(lateness(task, ctx.now));
                succeed(task, "due", ctx);
            } else {
                let asks_on = task.waiting_for == Some(WaitingFor::Poll);
                take_attempt(task, State::Dispatched, None, None, report_by);
                if !asks_on {
                    log(task, state, "handed out, to start at its due time", ctx);
                }
                task.updated_at = ctx.now.wall;
            }
            Ok(Applied::Changed)
        }
        Event::Due { .. } => illegal,

        Event::Started if state == State::Dispatched => {
            task.state = State::Running;
            if !task.asks_guard() {
                task.lateness_ms = Some(lateness(task, ctx.now));
            }
            if let Some(live) = &mut task.live {
                live.started_at = Some(ctx.now.wall);
            }
            task.begin_clocks(ctx.now);
            Ok(Applied::InMemory)
        }
        Event::Started => illegal,

        Event::Leased { worker, lease } if waits && !task.is_asked_about() => {
            come_due(task, ctx);
            let left = task.total_until().map(|until| until.since(ctx.now.steady));
            let lease = left.map_or(lease, |left| lease.min(left));
            let lease = task.lease_within(lease);
            task.lateness_ms = Some(lateness(task, ctx.now));
            let why = if worker.is_empty() {
                "leased".to_owned()
            } else {
                format!("leased by {worker}")
            };
            take_attempt(
                task,
                State::Running,
                Some(note(&worker)),
                Some(lease),
                ctx.now.mono.after(lease),
            );
            if let Some(live) = &mut task.live {
                live.started_at = Some(ctx.now.wall);
            }
            task.begin_clocks(ctx.now);
            log(task, state, &why, ctx);
            Ok(Applied::Changed)
        }
        Event::Leased { .. } => illegal,

        Event::Heartbeat { token, checkpoint } => {
            check_token(task, token)?;
            // A push or handler has no lease: being alive does not lengthen its time.
            if let Some(live) = &mut task.live
                && let Some(lease) = live.lease
            {
                live.report_by = ctx.now.mono.after(lease);
            }
            task.note_sign_of_life(ctx.now);
            if checkpoint.is_none() || task.checkpoint == checkpoint {
                return Ok(Applied::InMemory);
            }
            task.checkpoint = checkpoint;
            task.updated_at = ctx.now.wall;
            Ok(Applied::Changed)
        }

        Event::Snoozed { token, delay } => {
            check_token(task, token)?;
            if task.is_asked_about() {
                settle(task, Outcome::Snoozed, None, ctx);
                return Ok(Applied::Changed);
            }
            record_attempt(task, &Outcome::Snoozed, None, ctx);
            task.attempts = task.attempts.saturating_sub(1);
            wait_again(task, Due::after(delay, ctx.now), WaitingFor::Snooze, ctx);
            log(task, state, "snoozed by its worker", ctx);
            Ok(Applied::Changed)
        }

        Event::Finished {
            token,
            outcome,
            started_at,
        } => {
            check_token(task, token)?;
            // Said twice: the receiver has it already.
            if matches!(outcome, Outcome::Accepted { .. }) && !task.runs_here() {
                return Ok(Applied::Unchanged);
            }
            settle(task, outcome, started_at, ctx);
            Ok(Applied::Changed)
        }

        Event::Answered { token, outcome } => {
            check_token(task, token)?;
            settle(task, outcome, None, ctx);
            Ok(Applied::ChangedAndStop(token))
        }

        Event::AcceptedLate { attempt, outcome } if open || state.is_in_flight() => {
            let stop = stop_for(task, None)?;
            if state.is_in_flight() {
                record_attempt(task, &Outcome::Cancelled, None, ctx);
            }
            take_late(task, outcome);
            let why = format!("the late answer of attempt {} was accepted", attempt.0);
            succeed(task, &why, ctx);
            Ok(stop)
        }
        Event::AcceptedLate { .. } => illegal,

        Event::Overdue { token } => {
            check_token(task, token)?;
            if *task.action() == Action::Pull && !task.is_asked_about() {
                settle(task, Outcome::LeaseExpired, None, ctx);
                Ok(Applied::Changed)
            } else {
                // What its receiver took on is lent no longer than to its next sign of life.
                let lease = task.live.as_ref().and_then(|live| live.lease);
                let is_silent = lease.is_some() && lease == task.spec.timeouts.heartbeat;
                let outcome = match is_silent {
                    true => Outcome::Silent,
                    false => Outcome::TimedOut,
                };
                settle(task, outcome, None, ctx);
                Ok(Applied::ChangedAndStop(token))
            }
        }

        // It has not begun.
        Event::TotalTimeOver if task.asks_guard() => Ok(Applied::Unchanged),
        // It is asked once more, now.
        Event::TotalTimeOver if task.asks_last() => Ok(Applied::Unchanged),
        Event::TotalTimeOver if waits && task.action().poll().is_some() => {
            wait_again(
                task,
                Due::after(DurationMs(0), ctx.now),
                WaitingFor::Poll,
                ctx,
            );
            log(task, state, "its time is over: asked once more", ctx);
            Ok(Applied::Changed)
        }
        Event::TotalTimeOver if waits => {
            ran_out(task, DeadReason::TotalTime.name());
            end_of_total(task, ctx);
            Ok(Applied::Changed)
        }
        Event::TotalTimeOver if state.is_in_flight() => {
            let token = task.token;
            if task.is_asked_about() {
                end_of_total(task, ctx);
                return Ok(Applied::ChangedAndStop(token));
            }
            settle(task, Outcome::TimedOut, None, ctx);
            Ok(Applied::ChangedAndStop(token))
        }
        Event::TotalTimeOver => Ok(Applied::Unchanged),

        Event::RanOut { clock } => Ok(clocks::run_out(task, clock, ctx)),

        Event::StagePassedOver { place, error }
            if (waits && task.stage_place() == Some(place))
                || (waits || state.is_in_flight()) && task.has_to_come(place) =>
        {
            let what = task
                .spec
                .stage_at(Some(place))
                .map_or("", |stage| stage.name.as_str());
            let what = format!("stage {what} is passed over");
            let what = match &error {
                None => format!("{what}: its condition is not true"),
                Some(error) => format!("{what}: its condition has no value: {}", error.message),
            };
            if let Some(error) = error {
                task.last_outcome = Some(LastOutcome {
                    outcome: "failed",
                    error: Some(error),
                });
                give_up(task, place, DeadReason::Refused);
            }
            if task.stage_place() == Some(place) {
                go_on(task, &what, ctx);
            } else {
                if let Some(at) = &mut task.at_stage {
                    at.passed |= 1 << place;
                }
                log(task, state, &what, ctx);
            }
            Ok(Applied::Changed)
        }
        Event::StagePassedOver { .. } => illegal,

        Event::StageTookOver { place } if waits || state.is_in_flight() => {
            let Some((_, due)) = task.takes_over().filter(|(later, _)| *later == place) else {
                return illegal;
            };
            let stop = stop_for(task, None)?;
            if state.is_in_flight() {
                record_attempt(task, &Outcome::Cancelled, None, ctx);
            }
            begin_stage(task, place, due, ctx);
            let what = task.stage().map_or("", |stage| stage.name.as_str());
            let what = format!("stage {what} takes over: its time has come");
            log(task, state, &what, ctx);
            Ok(stop)
        }
        Event::StageTookOver { .. } => illegal,

        Event::Barred { error } if task.has_yet_to_fire() => {
            guard::bar(task, error, ctx);
            Ok(Applied::Changed)
        }
        Event::Barred { .. } => illegal,

        Event::AnswerOutdated if task.is_let_fire_long_ago(ctx.now) => {
            guard::ask_anew(task, ctx);
            Ok(Applied::Changed)
        }
        Event::AnswerOutdated => illegal,

        Event::Recovered if state.is_in_flight() && task.is_asked_about() => {
            settle(task, Outcome::Unknown, None, ctx);
            Ok(Applied::Changed)
        }
        Event::Recovered if state.is_in_flight() => {
            if let Some(live) = task.live.as_mut().filter(|live| live.lease.is_some()) {
                live.report_by = ctx.now.mono.after(live.lease.unwrap_or_default());
                task.begin_clocks(ctx.now);
                Ok(Applied::InMemory)
            } else if task.next.is_reached(ctx.now) {
                settle(task, Outcome::Unknown, None, ctx);
                Ok(Applied::Changed)
            } else if ctx.now.steady.0 <= ctx.now.wall.0 {
                // Armed, and its instant is still ahead: it can't have started.
                take_back_unstarted(task);
                log(task, state, "not started yet when its shard was", ctx);
                Ok(Applied::Changed)
            } else {
                // The wall clock has stepped back meanwhile: it may have started, and its instant comes again.
                let instant = task.next;
                settle(task, Outcome::Unknown, None, ctx);
                if task.state == State::Retrying {
                    task.next = instant;
                }
                Ok(Applied::Changed)
            }
        }
        Event::Recovered => Ok(Applied::Unchanged),

        Event::HandedBack { was_started } if state.is_in_flight() => {
            let token = task.token;
            if task.is_asked_about() || was_started && task.action().poll().is_some() {
                settle(task, Outcome::Unknown, None, ctx);
                return Ok(Applied::ChangedAndStop(token));
            }
            if was_started && task.spec.delivery == Delivery::AtMostOnce {
                settle(task, Outcome::Unknown, None, ctx);
                return Ok(Applied::ChangedAndStop(token));
            }
            if was_started {
                task.attempts = task.attempts.saturating_sub(1);
                record_attempt(task, &Outcome::GivenBack, None, ctx);
                let waiting_for = match task.spec.verify {
                    Some(_) => WaitingFor::Verify,
                    None => WaitingFor::Retry,
                };
                wait_again(task, Due::after(DurationMs(0), ctx.now), waiting_for, ctx);
            } else {
                take_back_unstarted(task);
            }
            log(task, state, "handed back", ctx);
            Ok(Applied::ChangedAndStop(token))
        }
        Event::HandedBack { .. } => illegal,

        Event::Cancel { reason } => match state {
            State::Pending | State::Retrying | State::Paused => {
                end(task, State::Cancelled, &why("cancelled", &reason), ctx);
                Ok(Applied::Changed)
            }
            State::Dispatched | State::Running => {
                let token = task.token;
                record_attempt(task, &Outcome::Cancelled, None, ctx);
                end(task, State::Cancelled, &why("cancelled", &reason), ctx);
                Ok(Applied::ChangedAndStop(token))
            }
            State::Succeeded | State::Cancelled => Ok(Applied::Unchanged),
            State::Dead => illegal,
        },

        Event::Pause { clock } if waits => {
            task.pause = Some(Pause {
                clock,
                since: ctx.now.steady,
            });
            task.state = State::Paused;
            task.waiting_for = None;
            log(task, state, "paused", ctx);
            Ok(Applied::Changed)
        }
        Event::Pause { .. } if state == State::Paused => Ok(Applied::Unchanged),
        Event::Pause { .. } => illegal,

        Event::Resume if state == State::Paused => {
            if let Some(pause) = task.pause.take()
                && pause.clock == PauseClock::Freeze
            {
                shift(task, ctx.now.steady.since(pause.since));
            }
            verify::wait_as_before(task);
            log(task, state, "resumed", ctx);
            Ok(Applied::Changed)
        }
        Event::Resume if waits => Ok(Applied::Unchanged),
        Event::Resume => illegal,

        Event::Reschedule { due } if open => {
            let (due, is_new) = match due {
                NewDue::To(due) => (due, true),
                NewDue::ExtendBy(length) => (task.next.later_by(length), false),
            };
            // What comes later comes as much later.
            move_stages(task, due.at.0.saturating_sub(task.next.at.0));
            task.due = due;
            task.next = due;
            if is_new {
                task.waiting_since = ctx.now.steady;
            }
            // The total time counts from the new due time, else it could be over before that.
            task.first_due = None;
            task.waiting_for = None;
            match &mut task.pause {
                // What was left when a frozen pause began is in an extended due time, but not in a new one.
                Some(pause) if is_new => pause.since = ctx.now.steady,
                Some(_) => {}
                None => verify::wait_as_before(task),
            }
            log(task, state, "rescheduled", ctx);
            Ok(Applied::Changed)
        }
        Event::Reschedule { .. } => illegal,

        Event::RunNow if waits => {
            task.due = Due::at(ctx.now.wall, ctx.now);
            task.next = task.due;
            task.waiting_since = ctx.now.steady;
            verify::wait_as_before(task);
            log(task, state, "run now", ctx);
            Ok(Applied::Changed)
        }
        Event::RunNow => illegal,

        Event::Complete { result, token } if open || state.is_in_flight() => {
            let stop = stop_for(task, token)?;
            let outcome = Outcome::Succeeded {
                result: result.map(|json| json.0),
                result_dropped: false,
            };
            finish_from_outside(task, outcome, ctx);
            end(task, State::Succeeded, "completed from outside", ctx);
            Ok(stop)
        }
        Event::Complete { .. } => illegal,

        Event::Fail { error } if open || state.is_in_flight() => {
            let stop = stop_for(task, None)?;
            let reason = why("failed from outside", &error.message);
            let outcome = Outcome::Failed(Failure {
                code: error.code,
                message: error.message,
                retryable: false,
                retry_after: None,
                in_doubt: false,
            });
            finish_from_outside(task, outcome, ctx);
            task.dead_reason = Some(DeadReason::Refused);
            end(task, State::Dead, &reason, ctx);
            Ok(stop)
        }
        Event::Fail { .. } => illegal,

        Event::Replay if state == State::Dead => {
            let due = Due::at(ctx.now.wall, ctx.now);
            // The stage that it ended in begins again, and those behind it come as much later as they would have.
            move_stages(task, due.at.0.saturating_sub(task.due.at.0));
            begin_generation(task, due, ctx);
            log(task, state, "replayed", ctx);
            Ok(Applied::Changed)
        }
        Event::Replay => illegal,

        Event::Resolve {
            succeeded,
            note: text,
        } if state == State::Dead => {
            if succeeded {
                task.dead_reason = None;
                end(
                    task,
                    State::Succeeded,
                    &why("settled as succeeded", &text),
                    ctx,
                );
            } else {
                task.dead_reason = Some(DeadReason::Refused);
                log(task, state, &why("settled as failed", &text), ctx);
            }
            Ok(Applied::Changed)
        }
        Event::Resolve { .. } => illegal,

        Event::Discard if state == State::Dead => Ok(Applied::Gone),
        Event::Discard => illegal,

        Event::Replace { spec, due } if open => {
            close_questions(task);
            task.at_stage = AtStage::first(&spec, ctx.now);
            // What a rule has counted from is what is shown.
            if let Some(rule) = &spec.rule {
                task.created_at = rule.at;
            }
            task.spec = spec;
            begin_generation(task, due, ctx);
            log(task, state, "replaced by a new create", ctx);
            Ok(Applied::Changed)
        }
        Event::Replace { .. } => illegal,

        Event::Amend { changes_seen, .. } if open && changes_seen != task.changes.total => {
            Err(Refusal::ChangedMeanwhile)
        }
        Event::Amend {
            spec,
            due,
            at_stage,
            ..
        } if open => {
            (task.spec, task.at_stage) = (spec, at_stage);
            let mut reason = "given other content";
            if let Some(due) = due.filter(|due| due.at != task.due.at) {
                (task.due, task.next) = (due, due);
                task.waiting_since = ctx.now.steady;
                task.first_due = None;
                if let Some(pause) = &mut task.pause {
                    pause.since = ctx.now.steady;
                }
                reason = "given other content, and another due time by its rule";
            }
            // Its guard may say something else of it now.
            task.ask_guard_first();
            log(task, state, reason, ctx);
            Ok(Applied::Changed)
        }
        Event::Amend { .. } => illegal,

        Event::Thawed { thaw, held } => {
            if task.thaw >= thaw {
                return Ok(Applied::Unchanged);
            }
            task.thaw = thaw;
            // What began to wait while the topic was held has waited only since then; what a freeze of its own keeps
            // gets that part back when it is resumed.
            let waited = held.min(ctx.now.steady.since(task.waiting_since));
            let kept_by_own = match &task.pause {
                Some(pause) if pause.clock == PauseClock::Freeze => {
                    ctx.now.steady.since(pause.since)
                }
                _ => DurationMs(0),
            };
            if open {
                shift(task, DurationMs(waited.0.saturating_sub(kept_by_own.0)));
                task.ask_guard_first();
                log(
                    task,
                    state,
                    "its topic goes on, with the time that was left",
                    ctx,
                );
            }
            Ok(Applied::Changed)
        }
    }
}

#[cfg(test)]
mod tests;
