//! What transitions are made of: taking and settling attempts, waiting again, going on to the next stage, ending,
//! writing it into the log.

use crate::clock::{DurationMs, MonoMs, Now, WallMs};
use crate::ids::{AttemptNumber, AttemptToken};
use crate::task::clocks::{ClockSet, Follow, TaskClock, Then};
use crate::task::event::{Applied, Refusal};
use crate::task::history::{AttemptRecord, Change, ErrorNote, note};
use crate::task::model::{
    DeadReason, Due, LastOutcome, LiveAttempt, Pause, PauseClock, State, Task, WaitingFor,
};
use crate::task::outcome::{Failure, Outcome};
use crate::task::retry::DELAY_MAX;
use crate::task::spec::{Delivery, RawJson};
use crate::task::transition::clocks::{end_of_total, escalate};
use crate::task::transition::{Context, HANDED_BACK_WAIT, guard, verify};

/// The token must be that of the attempt that is out.
pub(super) fn check_token(task: &Task, given: AttemptToken) -> Result<(), Refusal> {
    if task.state.is_in_flight() && task.token == given {
        Ok(())
    } else {
        let cancelled = task.state == State::Cancelled && task.token == given;
        Err(Refusal::StaleToken { given, cancelled })
    }
}

pub(super) fn stop_for(task: &Task, given: Option<AttemptToken>) -> Result<Applied, Refusal> {
    if let Some(token) = given {
        check_token(task, token)?;
    }
    Ok(if task.state.is_in_flight() {
        Applied::ChangedAndStop(task.token)
    } else {
        Applied::Changed
    })
}

pub(super) fn come_due(task: &mut Task, ctx: &Context<'_>) {
    // Handed out a little ahead of its instant, it counts from the instant.
    let due = ctx.now.steady.after(task.next.remaining(ctx.now));
    task.first_due.get_or_insert(due);
    task.come_into_line(due);
}

pub(super) fn lateness(task: &Task, now: Now) -> i64 {
    task.next.clock_ms(now).saturating_sub(task.next.fire_ms)
}

pub(super) fn take_attempt(
    task: &mut Task,
    state: State,
    worker: Option<String>,
    lease: Option<DurationMs>,
    report_by: MonoMs,
) {
    task.token.0 += 1;
    if !task.is_asked_about() {
        task.attempts += 1;
        task.attempt.0 += 1;
        task.waiting_for = None;
    }
    task.state = state;
    task.live = Some(LiveAttempt {
        started_at: None,
        worker,
        lease,
        report_by,
        beat_by: None,
        alert_at: None,
    });
}

/// Takes back an attempt that never started: nobody has seen its number, so the next start may have it. Its instant
/// stays, and may still be ahead.
pub(super) fn take_back_unstarted(task: &mut Task) {
    uncount_attempt(task);
    let has_asked = task.action().poll().is_some() && task.last_outcome.is_some();
    task.waiting_for = match task.attempts {
        _ if has_asked => Some(WaitingFor::Poll),
        0 => None,
        _ => Some(WaitingFor::Retry),
    };
    task.state = match task.waiting_for {
        Some(_) => State::Retrying,
        None => State::Pending,
    };
}

/// The attempt that is out was none: the next start has its number again, with a token of its own.
fn uncount_attempt(task: &mut Task) {
    task.live = None;
    task.attempts = task.attempts.saturating_sub(1);
    task.attempt = AttemptNumber(task.attempt.0.saturating_sub(1));
}

/// Something else begins in the place of a poll: the number that its questions have shared is used.
pub(super) fn close_questions(task: &mut Task) {
    // There were more tokens than numbers: a question gave its number back. At worst one is left out, which harms nobody.
    if task.action().poll().is_some() && task.token.0 > u64::from(task.attempt.0) {
        task.attempt = AttemptNumber(task.attempt.0.saturating_add(1));
    }
}

/// The question of a poll ended without saying anything about the end: it was no attempt, and the next one follows.
/// A poll that goes well asks hundreds of times, so its log says once that it waits.
pub(super) fn ask_again(task: &mut Task, after: DurationMs, why: &str, ctx: &Context<'_>) {
    let before = task.state;
    uncount_attempt(task);
    wait_again(task, Due::after(after, ctx.now), WaitingFor::Poll, ctx);
    let last = task.changes.kept.last();
    if last.is_some_and(|last| last.to == State::Dispatched) {
        log(task, before, why, ctx);
    }
    task.updated_at = ctx.now.wall;
}

/// What an answer makes of a poll. `Err`: what it makes of any task.
fn settle_question(task: &mut Task, outcome: &Outcome, ctx: &Context<'_>) -> Result<(), ()> {
    let every = task.action().poll().ok_or(())?.every;
    let was_last = task.asks_last();
    let is_over = task
        .total_until()
        .is_some_and(|until| ctx.now.steady >= until);
    let (after, why) = match outcome {
        Outcome::NotYet { .. } if !was_last => {
            task.last_outcome = Some(LastOutcome {
                outcome: outcome.name(),
                error: None,
            });
            (every, "not yet")
        }
        // To ask twice does no harm.
        Outcome::Unknown => (DurationMs(0), "cut off, to be asked again"),
        Outcome::Snoozed | Outcome::Cancelled | Outcome::GivenBack => {
            (HANDED_BACK_WAIT, "handed back")
        }
        // Cut off by the end of its time, which is when the last question is asked.
        Outcome::TimedOut
        | Outcome::Failed(Failure {
            retryable: true, ..
        }) if is_over && !was_last => (DurationMs(0), "its time is over: asked once more"),
        _ => return Err(()),
    };
    ask_again(task, after, why, ctx);
    Ok(())
}

/// The receiver took the work on: from here on the attempt is in its hands.
fn hand_over(task: &mut Task, complete_by: DurationMs, ctx: &Context<'_>) {
    let before = task.state;
    let left = task.total_until().map(|until| until.since(ctx.now.steady));
    let lease = left.map_or(complete_by, |left| complete_by.min(left));
    let lease = task.lease_within(lease);
    task.state = State::Running;
    if let Some(live) = &mut task.live {
        live.started_at.get_or_insert(ctx.now.wall);
        live.lease = Some(lease);
        live.report_by = ctx.now.mono.after(lease);
    }
    task.note_sign_of_life(ctx.now);
    log(
        task,
        before,
        "taken on by its receiver, which completes it later",
        ctx,
    );
}

pub(super) fn record_attempt(
    task: &mut Task,
    outcome: &Outcome,
    started_at: Option<WallMs>,
    ctx: &Context<'_>,
) {
    let live = task.live.take();
    let error = ErrorNote::of(outcome);
    if task.is_asked_about() {
        // It was a question, and no attempt.
        return;
    }
    task.last_outcome = Some(LastOutcome {
        outcome: outcome.name(),
        error: error.clone(),
    });
    task.attempts_log.push(AttemptRecord {
        attempt: task.attempt,
        token: task.token,
        generation: task.generation,
        stage: task.stage().map(|stage| stage.name.clone()),
        started_at: started_at.or(live.as_ref().and_then(|live| live.started_at)),
        ended_at: ctx.now.wall,
        executor: task.action().kind(),
        worker: live.and_then(|live| live.worker),
        outcome: outcome.name(),
        error,
    });
}

/// What an attempt's outcome makes of its task.
pub(super) fn settle(
    task: &mut Task,
    outcome: Outcome,
    started_at: Option<WallMs>,
    ctx: &Context<'_>,
) {
    if let Outcome::Accepted { complete_by } = outcome {
        return hand_over(task, complete_by, ctx);
    }
    if task.asks_guard() {
        return guard::settle(task, &outcome, ctx);
    }
    if task.verifies() {
        return verify::settle(task, outcome, ctx);
    }
    if settle_question(task, &outcome, ctx).is_ok() {
        return;
    }
    let before = task.state;
    record_attempt(task, &outcome, started_at, ctx);
    let is_poll = task.action().poll().is_some();
    let unknown = !is_poll && leaves_the_work_in_doubt(&outcome);
    if outcome == Outcome::LeaseExpired {
        task.lost_leases = task.lost_leases.saturating_add(1);
    }
    let then = task.follow(&outcome);
    let spent = match outcome {
        Outcome::Succeeded {
            result,
            result_dropped,
        } => {
            task.result = result.map(RawJson);
            task.result_dropped = result_dropped;
            return succeed(task, "the attempt succeeded", ctx);
        }
        Outcome::Snoozed | Outcome::Cancelled | Outcome::GivenBack => {
            task.attempts = task.attempts.saturating_sub(1);
            wait_again(
                task,
                Due::after(HANDED_BACK_WAIT, ctx.now),
                WaitingFor::Retry,
                ctx,
            );
            return log(task, before, "handed back", ctx);
        }
        Outcome::LeaseExpired => DeadReason::LeaseExpired,
        Outcome::Unknown => DeadReason::OutcomeUnknown,
        Outcome::NotYet { .. } => DeadReason::TotalTime,
        Outcome::Accepted { .. } | Outcome::TimedOut | Outcome::Silent | Outcome::Failed(_) => {
            DeadReason::AttemptsUsedUp
        }
    };
    let until = task.total_until();
    // The last answer of a poll may say what became of it, which is more than that it took too long.
    let says_more = is_poll && matches!(then, Follow::Dead(_));
    if until.is_some_and(|until| ctx.now.steady >= until) && !says_more
        || matches!(outcome, Outcome::NotYet { .. })
    {
        if let Some(last) = &mut task.last_outcome {
            last.outcome = DeadReason::TotalTime.name();
        }
        match task.then(TaskClock::Total) {
            // It counts anew, and what follows is what would have without it.
            Some(Then::Retry) => task.first_due = None,
            _ => return end_of_total(task, ctx),
        }
    }
    if unknown && task.spec.verify.is_some() && then != Follow::Park {
        // When it would be tried again; at once if it would not.
        let is_tried_again = then == Follow::Retry && task.has_attempts_left();
        let delay = match &outcome {
            Outcome::Unknown => DurationMs(0),
            _ if is_tried_again => task.spec.retry.delay_after(task.attempts, ctx.random),
            _ => DurationMs(0),
        };
        wait_again(task, Due::after(delay, ctx.now), WaitingFor::Verify, ctx);
        let name = outcome.name();
        let why = format!(
            "attempt {}: {name}, to be asked whether it was done",
            task.attempt.0
        );
        return log(task, before, &why, ctx);
    }
    let escalates = matches!(then, Follow::Escalate(_));
    if unknown && task.spec.delivery == Delivery::AtMostOnce && !escalates {
        if let Some(last) = &mut task.last_outcome {
            last.outcome = DeadReason::OutcomeUnknown.name();
        }
        return die(task, DeadReason::OutcomeUnknown, ctx);
    }
    match then {
        Follow::Dead(reason) => die(task, reason, ctx),
        Follow::Escalate(clock) => escalate(task, clock, ctx),
        Follow::Park => {
            task.next = Due::after(DurationMs(0), ctx.now);
            task.state = State::Paused;
            task.pause = Some(Pause {
                clock: PauseClock::Keep,
                since: ctx.now.steady,
            });
            log(
                task,
                before,
                "parked for a person after a failed attempt",
                ctx,
            );
        }
        Follow::Retry if !task.has_attempts_left() => die(task, spent, ctx),
        Follow::Retry => {
            let delay = match &outcome {
                // What a crash cut off is due at once: its own waiting is behind it.
                Outcome::Unknown => DurationMs(0),
                Outcome::Failed(failure) => {
                    let ladder = task.spec.retry.delay_after(task.attempts, ctx.random);
                    ladder
                        .max(failure.retry_after.unwrap_or_default())
                        .min(DELAY_MAX)
                }
                _ => task.spec.retry.delay_after(task.attempts, ctx.random),
            };
            wait_again(task, Due::after(delay, ctx.now), WaitingFor::Retry, ctx);
            log(
                task,
                before,
                &format!("attempt {}: {}", task.attempt.0, outcome.name()),
                ctx,
            );
        }
    }
}

/// Whether the work may have been done although no success was heard of.
pub(super) fn leaves_the_work_in_doubt(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::TimedOut | Outcome::LeaseExpired | Outcome::Silent | Outcome::Unknown => true,
        Outcome::Failed(failure) => failure.in_doubt,
        Outcome::Succeeded { .. }
        | Outcome::NotYet { .. }
        | Outcome::Accepted { .. }
        | Outcome::Snoozed
        | Outcome::Cancelled
        | Outcome::GivenBack => false,
    }
}

pub(super) fn finish_from_outside(task: &mut Task, outcome: Outcome, ctx: &Context<'_>) {
    if task.state.is_in_flight() && !task.is_asked_about() {
        record_attempt(task, &outcome, None, ctx);
    } else {
        task.last_outcome = Some(LastOutcome {
            outcome: outcome.name(),
            error: ErrorNote::of(&outcome),
        });
    }
    take_result(task, outcome);
}

/// What an attempt said that is not the present one any more.
pub(super) fn take_late(task: &mut Task, outcome: Outcome) {
    task.last_outcome = Some(LastOutcome {
        outcome: outcome.name(),
        error: ErrorNote::of(&outcome),
    });
    take_result(task, outcome);
}

fn take_result(task: &mut Task, outcome: Outcome) {
    if let Outcome::Succeeded {
        result,
        result_dropped,
    } = outcome
    {
        task.result = result.map(RawJson);
        task.result_dropped = result_dropped;
    }
}

pub(super) fn begin_generation(task: &mut Task, due: Due, ctx: &Context<'_>) {
    task.generation += 1;
    task.state = State::Pending;
    task.escalated = None;
    begin_waiting(task, due, ctx);
    task.pause = None;
    task.dead_reason = None;
    if let Some(at) = &mut task.at_stage {
        at.died = None;
    }
    task.ended_at = None;
    task.expires = None;
    task.result = None;
    task.result_dropped = false;
    task.checkpoint = None;
}

pub(super) fn wait_again(task: &mut Task, next: Due, waiting_for: WaitingFor, ctx: &Context<'_>) {
    task.live = None;
    task.state = State::Retrying;
    task.waiting_for = Some(waiting_for);
    task.next = match task.total_until() {
        // A poll is asked once more when its time is over, and never later.
        Some(until) if task.action().poll().is_some() && next.fire_ms > until.0 => {
            let left = until.since(ctx.now.steady);
            if left > DurationMs(0) {
                Due::after(left, ctx.now)
            } else {
                next
            }
        }
        _ => next,
    };
    task.waiting_since = ctx.now.steady;
}

pub(super) fn shift(task: &mut Task, length: DurationMs) {
    task.due = task.due.later_by(length);
    task.next = task.next.later_by(length);
    task.first_due = task.first_due.map(|first| first.after(length));
    if let Some(at) = &mut task.at_stage {
        at.from = at.from.later_by(length);
    }
}

/// Moves what the times of a task's stages count from, but not the present one's due time.
pub(super) fn move_stages(task: &mut Task, ms: i64) {
    if let Some(at) = &mut task.at_stage {
        at.from = at.from.moved_by(ms);
    }
}

/// The work is done: that of the whole task, or of its present stage.
pub(super) fn succeed(task: &mut Task, why: &str, ctx: &Context<'_>) {
    if let Some(at) = &mut task.at_stage {
        // What was given up later than this one still counts.
        at.died = at.died.filter(|(place, _)| *place > at.place);
    }
    go_on(task, why, ctx);
}

/// Nothing more is tried: for the whole task, or for its present stage.
pub(super) fn die(task: &mut Task, reason: DeadReason, ctx: &Context<'_>) {
    match task.stage_place() {
        Some(place) => {
            give_up(task, place, reason);
            go_on(task, reason.name(), ctx);
        }
        None => {
            task.dead_reason = Some(reason);
            end(task, State::Dead, reason.name(), ctx);
        }
    }
}

/// Notes that a stage was given up: if none after it runs, that is how the task ends.
pub(super) fn give_up(task: &mut Task, place: u8, reason: DeadReason) {
    if let Some(at) = &mut task.at_stage
        && at.died.is_none_or(|(later, _)| later <= place)
    {
        at.died = Some((place, reason));
    }
}

/// The present stage is over, or is passed over: the next one is waited for. Without one the task ends, as the last
/// stage did that was not passed over. A task without stages has succeeded.
pub(super) fn go_on(task: &mut Task, why: &str, ctx: &Context<'_>) {
    let before = task.state;
    if let Some((place, due)) = task.next_stage(ctx.now) {
        let name = |task: &Task| task.stage().map(|stage| stage.name.to_string());
        let over = name(task).unwrap_or_default();
        begin_stage(task, place, due, ctx);
        let next = name(task).unwrap_or_default();
        return log(
            task,
            before,
            &format!("{why}; after stage {over} comes {next}"),
            ctx,
        );
    }
    match task.at_stage.and_then(|at| at.died) {
        Some((place, reason)) => {
            if let Some(at) = &mut task.at_stage {
                at.place = place;
                // All behind it have been looked at.
                at.passed |= u32::MAX.checked_shl(u32::from(place) + 1).unwrap_or(0);
            }
            task.dead_reason = Some(reason);
            task.result = None;
            task.result_dropped = false;
            end(task, State::Dead, why, ctx);
        }
        None => end(task, State::Succeeded, why, ctx),
    }
}

/// A stage is waited for from now on, with a budget of its own. A task that is paused stays so.
pub(super) fn begin_stage(task: &mut Task, place: u8, due: Due, ctx: &Context<'_>) {
    close_questions(task);
    if let Some(at) = &mut task.at_stage {
        at.place = place;
    }
    task.state = match task.pause {
        Some(_) => State::Paused,
        None => State::Pending,
    };
    task.escalated = None;
    task.checkpoint = None;
    begin_waiting(task, due, ctx);
}

pub(super) fn begin_waiting(task: &mut Task, due: Due, ctx: &Context<'_>) {
    task.due = due;
    task.next = due;
    task.alerted = ClockSet::default();
    task.waiting_since = ctx.now.steady;
    task.first_due = None;
    task.attempts = 0;
    task.lost_leases = 0;
    task.live = None;
    task.waiting_for = None;
    task.unanswered = 0;
    task.ask_guard_first();
}

pub(super) fn end(task: &mut Task, state: State, why: &str, ctx: &Context<'_>) {
    let before = task.state;
    let kept = match state {
        State::Cancelled => ctx.retention.cancelled,
        State::Dead => ctx.retention.dead,
        _ => ctx.retention.succeeded,
    };
    task.state = state;
    task.ended_at = Some(ctx.now.wall);
    task.expires = Some(ctx.now.steady.after(kept));
    task.live = None;
    task.pause = None;
    task.waiting_for = None;
    task.unanswered = 0;
    log(task, before, why, ctx);
}

pub(super) fn log(task: &mut Task, from: State, why: &str, ctx: &Context<'_>) {
    task.updated_at = ctx.now.wall;
    task.changes.push(Change {
        at: ctx.now.wall,
        from: Some(from),
        to: task.state,
        by: ctx.by.to_owned(),
        why: note(why),
    });
}

pub(super) fn why(what: &str, reason: &str) -> String {
    if reason.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {reason}")
    }
}
