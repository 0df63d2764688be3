//! What follows when a clock runs out, and how far the work had got.

use super::*;
use crate::task::spec::RawJson;

const QUEUE: DurationMs = DurationMs::secs(60);

fn escalation() -> Then {
    Then::Escalate(Box::new(Action::Handler {
        name: "call-a-person".to_owned(),
    }))
}

/// Due now and in line, with a queue clock.
fn in_line(fixture: TaskFixture, then: Option<Then>) -> Life {
    let fixture = fixture.clock(TaskClock::Queue, Some(QUEUE), then);
    Life::of(fixture.due_in(DurationMs(0))).then(Event::CameDue)
}

fn ran_out(clock: TaskClock) -> Event {
    Event::RanOut { clock }
}

fn at_page(token: AttemptToken, page: u32) -> Event {
    let checkpoint = Some(RawJson::from(page.to_string()));
    Event::Heartbeat { token, checkpoint }
}

#[test]
fn what_nobody_takes_in_time_is_dead_unless_something_else_was_said() {
    let mut life = in_line(task(), None);
    life.wait(DurationMs(QUEUE.0 - 1));
    assert_eq!(life.must(ran_out(TaskClock::Queue)), Applied::Unchanged);
    life.wait(DurationMs(1));
    life.must(ran_out(TaskClock::Queue));
    assert_eq!(life.dead_of(), Some(DeadReason::TimedOut));
    assert_eq!(
        (life.last_outcome(), life.task.attempts),
        ("queue_timeout", 0)
    );

    let mut life = in_line(task(), Some(Then::Alert));
    life.wait(QUEUE);
    life.must(ran_out(TaskClock::Queue));
    assert_eq!(life.task.state, State::Pending);
    let told = life.task.changes.kept.last().unwrap();
    assert_eq!(told.why, "its queue time is over: alert");
    life.wait(QUEUE);
    let again = life.must(ran_out(TaskClock::Queue));
    assert_eq!(again, Applied::Unchanged, "it is told once");

    let mut life = in_line(
        task().max_attempts(2).retry_after(minutes(5)),
        Some(Then::Retry),
    );
    life.wait(QUEUE);
    life.must(ran_out(TaskClock::Queue));
    assert_eq!(
        (life.task.state, life.left()),
        (State::Retrying, minutes(5))
    );
    assert_eq!(
        (life.task.attempts, life.task.attempts_log.total),
        (1, 1),
        "it counts as one"
    );
    life.wait(minutes(5));
    life.must(Event::CameDue);
    life.wait(QUEUE);
    life.must(ran_out(TaskClock::Queue));
    assert_eq!(life.dead_of(), Some(DeadReason::AttemptsUsedUp));
}

#[test]
fn who_took_it_stops_the_queue_clock_and_each_wait_in_line_has_one_of_its_own() {
    let mut life = in_line(task(), None);
    life.wait(DurationMs(QUEUE.0 - 1));
    life.must(leased());
    life.wait(QUEUE);
    assert_eq!(life.must(ran_out(TaskClock::Queue)), Applied::Unchanged);
    let (token, delay) = (life.task.token, DurationMs::secs(10));
    life.must(Event::Snoozed { token, delay });
    life.wait(delay);
    assert_eq!(life.task.queue_until(), None, "it is not in line again yet");
    life.must(Event::CameDue);
    assert_eq!(
        life.task.queue_until(),
        Some(life.now().steady.after(QUEUE))
    );
}

#[test]
fn an_escalated_task_goes_on_with_its_other_action_at_once_and_with_a_budget_of_its_own() {
    let mut life = in_line(
        task().max_attempts(2).retry_after(DurationMs(0)),
        Some(escalation()),
    );
    life.wait(QUEUE);
    let due = life.task.due;
    life.must(ran_out(TaskClock::Queue));
    assert_eq!(life.task.escalated, Some(TaskClock::Queue));
    assert_eq!(
        (life.task.state, life.left()),
        (State::Pending, DurationMs(0))
    );
    assert_eq!(life.task.due, due, "it is shown when it was due");
    assert_eq!(life.task.action().kind(), "handler");
    for _ in 0..2 {
        life.attempt(failed("busy"));
    }
    assert_eq!(life.dead_of(), Some(DeadReason::AttemptsUsedUp));
    assert_eq!(life.task.attempts_log.kept[0].executor, "handler");
    life.must(Event::Replay);
    assert_eq!(
        (life.task.escalated, life.task.action().kind()),
        (None, "pull")
    );
}

#[test]
fn it_is_escalated_once_and_then_that_clock_is_the_end() {
    let fixture = task().push().clock(
        TaskClock::Attempt,
        None,
        Some(Then::Escalate(Box::new(Action::Pull))),
    );
    let mut life = Life::of(fixture.due_in(DurationMs(0)));
    life.attempt(Outcome::TimedOut);
    assert_eq!(life.task.escalated, Some(TaskClock::Attempt));
    life.must(leased());
    life.answer(Outcome::LeaseExpired);
    assert_eq!(life.dead_of(), Some(DeadReason::TimedOut));
    assert_eq!(life.last_outcome(), "lease_expired");
}

#[test]
fn an_attempt_clock_says_more_of_a_timeout_than_the_retry_policy_does() {
    let on_timeout = |then| RetryPolicy {
        on: vec![("timeout".to_owned(), then)],
        ..RetryPolicy::default()
    };
    for (then, policy, dead) in [
        (Then::Dead, on_timeout(OnFailure::Retry), true),
        (Then::Retry, on_timeout(OnFailure::Dead), false),
    ] {
        let fixture = task()
            .push()
            .retry(policy)
            .clock(TaskClock::Attempt, None, Some(then));
        let mut life = Life::of(fixture.due_in(DurationMs(0)));
        life.attempt(Outcome::TimedOut);
        assert_eq!(life.task.state == State::Dead, dead);
    }
}

#[test]
fn an_attempt_clock_that_only_tells_lets_the_attempt_go_on() {
    let limit = DurationMs::secs(5);
    let fixture = task()
        .push()
        .clock(TaskClock::Attempt, Some(limit), Some(Then::Alert));
    let mut life = Life::of(fixture.due_in(DurationMs(0)))
        .then(due())
        .then(Event::Started);
    assert_eq!(life.task.looked_at(), Some(life.now().mono.after(limit)));
    life.wait(limit);
    assert_eq!(life.must(ran_out(TaskClock::Attempt)), Applied::Changed);
    assert_eq!(life.task.state, State::Running);
    assert_eq!(life.must(ran_out(TaskClock::Attempt)), Applied::Unchanged);
    assert!(
        life.task.attempt_limit() > DurationMs::secs(3600),
        "nothing cuts it off soon"
    );
    life.answer(succeeded());
    assert_eq!(life.task.state, State::Succeeded);
}

#[test]
fn a_handler_that_is_silent_too_long_is_lost_and_one_that_tells_of_its_progress_is_not() {
    let limit = DurationMs::secs(5);
    let handler = Action::Handler {
        name: "h".to_owned(),
    };
    let fixture = task()
        .action(handler)
        .clock(TaskClock::Heartbeat, Some(limit), None);
    let mut life = Life::of(fixture.due_in(DurationMs(0)))
        .then(due())
        .then(Event::Started);
    let token = life.task.token;
    for page in 1..4 {
        life.wait(DurationMs(limit.0 - 1));
        assert_eq!(life.must(ran_out(TaskClock::Heartbeat)), Applied::Unchanged);
        life.must(at_page(token, page));
    }
    life.wait(limit);
    assert_eq!(
        life.must(ran_out(TaskClock::Heartbeat)),
        Applied::ChangedAndStop(token)
    );
    assert_eq!(
        (life.task.state, life.last_outcome()),
        (State::Retrying, "heartbeat_lost")
    );
}

#[test]
fn a_lease_is_no_longer_than_the_heartbeat_clock_unless_that_only_tells() {
    let limit = DurationMs::secs(5);
    let lease = |then| {
        let fixture = task().clock(TaskClock::Heartbeat, Some(limit), then);
        Life::of(fixture.due_in(DurationMs(0))).then(leased())
    };
    let life = lease(None);
    assert_eq!(life.task.live.as_ref().unwrap().lease, Some(limit));
    let mut life = lease(Some(Then::Alert));
    assert_eq!(
        life.task.live.as_ref().unwrap().lease,
        Some(DurationMs::secs(30))
    );
    life.wait(limit);
    life.must(ran_out(TaskClock::Heartbeat));
    assert_eq!(life.task.state, State::Running);
    life.must(heartbeat(life.task.token));
    life.wait(limit);
    assert_eq!(
        life.must(ran_out(TaskClock::Heartbeat)),
        Applied::Changed,
        "silent again"
    );
}

#[test]
fn the_total_time_may_tell_or_begin_again_or_escalate() {
    let total = DurationMs::secs(10);
    let life = |then| {
        let fixture = task().total(total).max_attempts(2);
        let mut life = Life::of(
            fixture
                .clock(TaskClock::Total, None, Some(then))
                .due_in(DurationMs(0)),
        );
        life.must(Event::CameDue);
        life.wait(total);
        life
    };
    let mut tells = life(Then::Alert);
    assert_eq!(tells.task.total_until(), None);
    tells.must(ran_out(TaskClock::Total));
    tells.must(leased());
    assert_eq!(tells.must(ran_out(TaskClock::Total)), Applied::Unchanged);

    let mut again = life(Then::Retry);
    again.must(Event::TotalTimeOver);
    assert_eq!(
        (again.task.state, again.task.attempts),
        (State::Retrying, 1)
    );
    again.must(leased());
    again.wait(total);
    again.must(Event::TotalTimeOver);
    assert_eq!(again.dead_of(), Some(DeadReason::AttemptsUsedUp));

    let mut goes_on = life(escalation());
    goes_on.must(leased());
    goes_on.must(Event::TotalTimeOver);
    assert_eq!(goes_on.task.escalated, Some(TaskClock::Total));
    assert_eq!(
        (goes_on.task.state, goes_on.last_outcome()),
        (State::Pending, "total_time")
    );
}

#[test]
fn what_may_have_been_done_is_asked_about_before_it_is_escalated() {
    let fixture = task().push().verified(OnNoAnswer::Retry);
    let fixture = fixture.clock(TaskClock::Attempt, None, Some(escalation()));
    let mut life = Life::of(fixture.due_in(DurationMs(0)));
    life.attempt(Outcome::TimedOut);
    assert!(life.task.verifies() && life.task.escalated.is_none());
    life.must(due());
    life.must(Event::Started);
    let answer = String::new();
    life.answer(Outcome::NotYet { answer });
    assert_eq!(
        (life.task.escalated, life.task.state),
        (Some(TaskClock::Attempt), State::Pending)
    );
}

#[test]
fn at_most_once_does_not_keep_a_task_from_being_escalated() {
    let fixture = task().push().at_most_once();
    let fixture = fixture.clock(TaskClock::Attempt, None, Some(escalation()));
    let mut life = Life::of(fixture.due_in(DurationMs(0)));
    life.attempt(Outcome::TimedOut);
    assert_eq!(
        (life.task.state, life.task.action().kind()),
        (State::Pending, "handler")
    );
}

#[test]
fn so_many_lost_leases_are_the_end_though_attempts_are_left() {
    let fixture = task()
        .max_attempts(10)
        .retry_after(DurationMs(0))
        .max_lost_leases(Some(2));
    let mut life = Life::of(fixture.due_in(DurationMs(0)));
    life.must(leased());
    life.answer(Outcome::LeaseExpired);
    life.must(leased());
    life.answer(failed("busy"));
    assert_eq!(
        (life.task.state, life.task.lost_leases),
        (State::Retrying, 1)
    );
    life.must(leased());
    life.answer(Outcome::LeaseExpired);
    assert_eq!(life.dead_of(), Some(DeadReason::LeaseExpired));
    life.must(Event::Replay);
    assert_eq!(life.task.lost_leases, 0);
}

#[test]
fn a_checkpoint_is_written_once_kept_for_the_next_attempt_and_gone_with_the_generation() {
    let mut life = Life::of(
        task()
            .due_in(DurationMs(0))
            .max_attempts(2)
            .retry_after(DurationMs(0)),
    );
    life.must(leased());
    let token = life.task.token;
    assert_eq!(life.must(at_page(token, 7)), Applied::Changed);
    assert_eq!(
        life.must(at_page(token, 7)),
        Applied::InMemory,
        "nothing new"
    );
    assert_eq!(life.must(heartbeat(token)), Applied::InMemory);
    life.answer(Outcome::LeaseExpired);
    let kept = |life: &Life| {
        life.task
            .checkpoint
            .as_ref()
            .map(|json| json.as_str().to_owned())
    };
    assert_eq!(kept(&life).as_deref(), Some("7"));
    life.apply(at_page(token, 8)).unwrap_err();
    life.must(leased());
    assert_eq!(
        kept(&life).as_deref(),
        Some("7"),
        "it is there for the next"
    );
    life.answer(failed("busy"));
    assert_eq!(
        (life.task.state, kept(&life).as_deref()),
        (State::Dead, Some("7"))
    );
    life.must(Event::Replay);
    assert_eq!(kept(&life), None);
}
