//! Clocks that run out, and tasks that go on with another action.

use crate::clock::DurationMs;
use crate::task::clocks::{TaskClock, Then};
use crate::task::event::Applied;
use crate::task::history::AttemptRecord;
use crate::task::model::{DeadReason, Due, LastOutcome, State, Task, WaitingFor};
use crate::task::outcome::Outcome;
use crate::task::transition::Context;
use crate::task::transition::steps::{
    begin_waiting, close_questions, die, log, settle, wait_again,
};

/// The last outcome of a task whose time in line was over.
const QUEUE_TIMEOUT: &str = "queue_timeout";

/// A clock has run out, unless it was wound up, or told of, meanwhile. The end of an attempt, and of a total time that
/// ends it, are told of in other ways.
pub(super) fn run_out(task: &mut Task, clock: TaskClock, ctx: &Context<'_>) -> Applied {
    let steady = |at: Option<_>| at.is_some_and(|at| at <= ctx.now.steady);
    let is_over = match clock {
        TaskClock::Queue => steady(task.queue_until()),
        TaskClock::Total => steady(task.total_alert_at()),
        TaskClock::Attempt | TaskClock::Heartbeat => {
            task.state == State::Running && task.ran_out(ctx.now) == Some(clock)
        }
    };
    if !is_over {
        return Applied::Unchanged;
    }
    if task.then(clock) == Some(&Then::Alert) {
        alert(task, clock, ctx);
        return Applied::Changed;
    }
    if clock == TaskClock::Heartbeat {
        let token = task.token;
        settle(task, Outcome::Silent, None, ctx);
        return Applied::ChangedAndStop(token);
    }
    end_of_queue(task, ctx);
    Applied::Changed
}

/// It is told of, once, and goes on.
fn alert(task: &mut Task, clock: TaskClock, ctx: &Context<'_>) {
    match (clock, &mut task.live) {
        (TaskClock::Heartbeat, Some(live)) => live.beat_by = None,
        (TaskClock::Attempt, Some(live)) => live.alert_at = None,
        _ => task.alerted = task.alerted.with(clock),
    }
    let why = format!("its {} time is over: alert", clock.name());
    log(task, task.state, &why, ctx);
}

/// Nobody took it in time.
fn end_of_queue(task: &mut Task, ctx: &Context<'_>) {
    ran_out(task, QUEUE_TIMEOUT);
    match task.then(TaskClock::Queue) {
        Some(Then::Retry) => {
            count_untaken(task, QUEUE_TIMEOUT, ctx);
            let delay = task.spec.retry.delay_after(task.attempts, ctx.random);
            try_again(
                task,
                delay,
                TaskClock::Queue,
                DeadReason::AttemptsUsedUp,
                ctx,
            );
        }
        Some(Then::Escalate(_)) if task.escalated.is_none() => {
            escalate(task, TaskClock::Queue, ctx);
        }
        _ => die(task, DeadReason::TimedOut, ctx),
    }
}

/// The time of all attempts together is over, and no attempt is out any more.
pub(super) fn end_of_total(task: &mut Task, ctx: &Context<'_>) {
    match task.then(TaskClock::Total) {
        // Of one that is in doubt nobody knows enough to try it again.
        Some(Then::Retry) if !task.is_asked_about() => {
            task.first_due = None;
            count_untaken(task, DeadReason::TotalTime.name(), ctx);
            try_again(
                task,
                DurationMs(0),
                TaskClock::Total,
                DeadReason::TotalTime,
                ctx,
            );
        }
        Some(Then::Escalate(_)) if task.escalated.is_none() => {
            escalate(task, TaskClock::Total, ctx);
        }
        _ => die(task, DeadReason::TotalTime, ctx),
    }
}

/// Its last outcome is that a clock has run out, with the failure that came before.
pub(super) fn ran_out(task: &mut Task, outcome: &'static str) {
    let error = task.last_outcome.take().and_then(|last| last.error);
    task.last_outcome = Some(LastOutcome { outcome, error });
}

/// It counts as an attempt that nobody took, so that it ends.
fn count_untaken(task: &mut Task, outcome: &'static str, ctx: &Context<'_>) {
    task.attempts = task.attempts.saturating_add(1);
    task.attempt.0 = task.attempt.0.saturating_add(1);
    task.token.0 += 1;
    task.attempts_log.push(AttemptRecord {
        attempt: task.attempt,
        token: task.token,
        generation: task.generation,
        stage: task.stage().map(|stage| stage.name.clone()),
        started_at: None,
        ended_at: ctx.now.wall,
        executor: task.action().kind(),
        worker: None,
        outcome,
        error: None,
    });
}

fn try_again(
    task: &mut Task,
    after: DurationMs,
    clock: TaskClock,
    spent: DeadReason,
    ctx: &Context<'_>,
) {
    if !task.has_attempts_left() {
        return die(task, spent, ctx);
    }
    let before = task.state;
    let waiting_for = task.waiting_for.unwrap_or(WaitingFor::Retry);
    wait_again(task, Due::after(after, ctx.now), waiting_for, ctx);
    let why = format!("its {} time is over: tried again", clock.name());
    log(task, before, &why, ctx);
}

/// The task goes on with the action of this clock: at once, with a budget of its own.
pub(super) fn escalate(task: &mut Task, clock: TaskClock, ctx: &Context<'_>) {
    let before = task.state;
    close_questions(task);
    task.escalated = Some(clock);
    task.checkpoint = None;
    task.state = State::Pending;
    let due = task.due;
    begin_waiting(task, Due::after(DurationMs(0), ctx.now), ctx);
    task.due = due;
    let kind = task.action().kind();
    let why = format!("its {} time is over: goes on with {kind}", clock.name());
    log(task, before, &why, ctx);
}
