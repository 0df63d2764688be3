//! The clocks of a task run on the shard's alarms, through restarts and pauses; and what attempts leave for the next.

use super::*;
use crate::task::clocks::{TaskClock, Then};
use crate::task::outcome::Outcome;
use crate::task::spec::RawJson;

const LIMIT: DurationMs = DurationMs::secs(60);

fn handler(name: &str) -> Action {
    Action::Handler {
        name: name.to_owned(),
    }
}

fn queued(then: Option<Then>) -> TaskFixture {
    task().clock(TaskClock::Queue, Some(LIMIT), then)
}

fn escalation() -> Option<Then> {
    Some(Then::Escalate(Box::new(handler("call-a-person"))))
}

#[test]
fn a_task_that_no_worker_takes_goes_on_with_its_other_action() {
    let mut shell = Shell::new();
    let id = shell.create(queued(escalation()));
    shell.pass(DurationMs(LIMIT.0 - 1));
    assert_eq!(
        (shell.state(id), shell.place(id)),
        (State::Pending, Place::Ready)
    );
    shell.pass(DurationMs(1));
    assert_eq!(shell.starts.len(), 1, "the handler is called at once");
    assert_eq!(shell.task(id).escalated, Some(TaskClock::Queue));
    shell.answer(shell.starts[0], failed("busy")).unwrap();
    shell.crash();
    let task = shell.task(id);
    assert_eq!((task.escalated, task.attempts), (Some(TaskClock::Queue), 1));
    shell.pass(minutes(1));
    shell.answer(shell.starts[1], succeeded()).unwrap();
    assert_eq!(shell.state(id), State::Succeeded);
}

#[test]
fn a_push_that_waits_too_long_for_a_slot_is_dead_and_one_that_gets_one_is_not() {
    let mut shell = Shell::with(CoreOptions {
        running_max: 1,
        ..folding()
    });
    let push = || task().push().clock(TaskClock::Queue, Some(LIMIT), None);
    let first = shell.create(push().clock(TaskClock::Attempt, Some(minutes(5)), None));
    let second = shell.create(push());
    shell.pass(LIMIT);
    assert_eq!(shell.state(first), State::Running);
    assert_eq!(shell.task(second).dead_reason, Some(DeadReason::TimedOut));
    let third = shell.create(push());
    shell.pass(DurationMs(LIMIT.0 - 1));
    shell.answer(shell.starts[0], succeeded()).unwrap();
    shell.pass(LIMIT);
    assert_eq!(shell.task(third).attempts, 1, "it was out in time");
}

#[test]
fn the_queue_clock_stands_still_while_the_topic_is_held_and_begins_anew_at_a_start() {
    let mut shell = Shell::new();
    let id = shell.create(queued(None));
    shell.pass(DurationMs(LIMIT.0 - 1));
    shell.hold(USUAL, PauseClock::Keep);
    shell.pass(minutes(60));
    shell.release(USUAL);
    shell.pass(DurationMs(LIMIT.0 - 1));
    assert_eq!(shell.state(id), State::Pending);
    shell.crash();
    shell.pass(DurationMs(LIMIT.0 - 1));
    assert_eq!(shell.state(id), State::Pending);
    shell.pass(DurationMs(1));
    assert_eq!(shell.task(id).dead_reason, Some(DeadReason::TimedOut));
}

#[test]
fn a_clock_that_only_tells_is_counted_as_an_alert_once_also_after_a_restart() {
    let mut shell = Shell::new();
    let total = task()
        .total(LIMIT)
        .clock(TaskClock::Total, None, Some(Then::Alert));
    let ids = [shell.create(queued(Some(Then::Alert))), shell.create(total)];
    shell.pass(LIMIT);
    assert_eq!(shell.counts().rescue.alerts, 2);
    shell.crash();
    shell.pass(minutes(5));
    assert_eq!(shell.counts().rescue.alerts, 0, "each was told of before");
    assert_eq!(ids.map(|id| shell.state(id)), [State::Pending; 2]);
}

#[test]
fn an_attempt_whose_clock_only_tells_goes_on_past_it() {
    let mut shell = Shell::new();
    let push = task()
        .push()
        .clock(TaskClock::Attempt, Some(LIMIT), Some(Then::Alert));
    let id = shell.create(push);
    shell.pass(minutes(30));
    assert_eq!(
        (shell.state(id), shell.counts().rescue.alerts),
        (State::Running, 1)
    );
    shell.answer(shell.starts[0], succeeded()).unwrap();
    assert_eq!(shell.state(id), State::Succeeded);
}

#[test]
fn a_handler_that_is_not_heard_of_is_lost_and_the_next_begins_where_it_was() {
    let mut shell = Shell::new();
    let beats =
        task()
            .action(handler("h"))
            .clock(TaskClock::Heartbeat, Some(DurationMs::secs(5)), None);
    let id = shell.create(beats.retry_after(DurationMs::secs(1)));
    let start = shell.starts[0];
    let keep = |page: u32| KeepLease {
        task: id,
        token: start.token,
        checkpoint: Some(RawJson::from(page.to_string())),
    };
    for page in 0..4 {
        shell.pass(DurationMs(4_999));
        shell.ask(keep(page)).unwrap();
    }
    shell.pass(DurationMs::secs(5));
    assert_eq!(
        shell.task(id).last_outcome.as_ref().unwrap().outcome,
        "heartbeat_lost"
    );
    shell.crash();
    shell.pass(DurationMs::secs(1));
    assert_eq!(shell.starts.len(), 2);
    assert_eq!(shell.task(id).checkpoint.as_ref().unwrap().as_str(), "3");
    shell.answer(start, succeeded()).unwrap_err();
}

#[test]
fn a_checkpoint_is_on_the_disk_when_its_heartbeat_is_answered() {
    let mut shell = Shell::new();
    let id = shell.create(task());
    let lease = shell.lease(&[USUAL], 1).remove(0);
    let keep = KeepLease {
        task: id,
        token: lease.token,
        checkpoint: Some(RawJson::from("{\"page\":7}".to_owned())),
    };
    shell.ask(keep).unwrap();
    shell.crash();
    assert_eq!(
        shell.task(id).checkpoint.as_ref().unwrap().as_str(),
        "{\"page\":7}"
    );
    shell.pass(DurationMs::secs(30));
    shell.pass(minutes(1));
    let next = shell.lease(&[USUAL], 1).remove(0);
    assert!(next.attempt > lease.attempt && next.view.task.checkpoint.is_some());
}

#[test]
fn what_an_attempt_says_of_its_progress_last_comes_with_its_end() {
    let mut shell = Shell::new();
    let id = shell.create(task().action(handler("h")));
    let start = shell.starts[0];
    let report = crate::executor::AttemptReport {
        task: id,
        token: start.token,
        outcome: Outcome::TimedOut,
        started: None,
        ended: shell.now(),
        checkpoint: Some(RawJson::from("9".to_owned())),
    };
    assert_eq!(shell.ask(FinishMany::new([report].into())).len(), 0);
    let task = shell.task(id);
    assert_eq!(
        (task.state, task.checkpoint.as_ref().unwrap().as_str()),
        (State::Retrying, "9")
    );
}

#[test]
fn a_poll_whose_total_time_only_tells_is_told_of_once_and_ends_by_its_own_time() {
    let mut shell = Shell::new();
    let poll = task().poll(DurationMs::secs(10), DurationMs(2));
    let total = DurationMs(100);
    let poll = poll.clock(TaskClock::Total, Some(total), Some(Then::Alert));
    let id = shell.create(poll.max_attempts(1));
    // Its last question hangs when the clock runs out.
    shell.pass(DurationMs::secs(1));
    assert_eq!(
        (shell.state(id), shell.counts().rescue.alerts),
        (State::Running, 1)
    );
    shell.pass(minutes(1));
    assert_eq!(shell.task(id).dead_reason, Some(DeadReason::TotalTime));
    assert_eq!(shell.counts().rescue.alerts, 1);
}
