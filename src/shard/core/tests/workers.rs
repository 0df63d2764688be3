//! Outside workers: what is due is ready, a lease is kept by heartbeats, and its answer counts once.

use super::shell::finish;
use super::*;
use crate::clock::WallMs;
use crate::shard::lease::Lease;
use crate::task::outcome::Outcome;

fn ids(leases: &[Lease]) -> Vec<TaskId> {
    leases.iter().map(|lease| lease.view.task.id).collect()
}

fn answer(lease: &Lease, outcome: Outcome) -> FinishAttempt {
    let event = Event::Finished {
        token: lease.token,
        outcome,
        started_at: None,
    };
    finish(lease.view.task.id, event)
}

fn keep(lease: &Lease) -> KeepLease {
    KeepLease {
        task: lease.view.task.id,
        token: lease.token,
    }
}

#[test]
fn due_tasks_are_leased_in_due_order_over_topics_and_lanes() {
    let mut shell = Shell::new();
    let fourth = shell.create(task().topic("b").due_in(DurationMs(400)));
    let second = shell.create(task().topic("b").due_at(START.after(DurationMs(200))));
    let first = shell.create(task().topic("a").due_in(DurationMs(100)));
    let third = shell.create(task().topic("a").due_in(DurationMs(300)));
    shell.pass(DurationMs(300));
    assert_eq!(shell.place(third), Place::Ready);
    assert_eq!(shell.rung, ["a", "b", "a"].map(topic));
    assert_eq!(
        ids(&shell.lease(&["a", "b", "a", "unknown"], 2)),
        [first, second]
    );
    assert_eq!(ids(&shell.lease(&["b"], 2)), [], "none is due");
    shell.pass(DurationMs(100));
    assert_eq!(ids(&shell.lease(&["b", "a"], 9)), [third, fourth]);
    assert_eq!(
        shell.counts().in_flight,
        0,
        "what workers hold takes no room of ours"
    );
}

#[test]
fn a_lease_ends_without_heartbeats_and_counts_as_an_attempt() {
    let mut shell = Shell::new();
    let id = shell.create(task().retry_after(DurationMs::secs(1)).max_attempts(2));
    let lost = shell.lease(&[USUAL], 1).remove(0);
    assert_eq!(lost.expires_at, START.after(DurationMs::secs(30)));
    shell.pass(DurationMs(29_999));
    assert_eq!(shell.state(id), State::Running);
    shell.pass(DurationMs(1));
    assert_eq!(
        (shell.state(id), shell.task(id).attempts),
        (State::Retrying, 1)
    );
    let stale = shell.ask(answer(&lost, succeeded())).unwrap_err();
    assert!(matches!(
        stale,
        VerbRefused::Refused(Refusal::StaleToken { .. })
    ));
    shell.pass(DurationMs::secs(1));
    let last = shell.lease(&[USUAL], 1).remove(0);
    assert!(last.token > lost.token && last.attempt > lost.attempt);
    shell.pass(DurationMs::secs(30));
    assert_eq!(shell.task(id).dead_reason, Some(DeadReason::LeaseExpired));
}

#[test]
fn a_heartbeat_keeps_a_lease_for_its_whole_length_again() {
    let mut shell = Shell::new();
    let id = shell.create(task());
    let lease = shell.lease(&[USUAL], 1).remove(0);
    for beat in 1..=5 {
        shell.pass(DurationMs::secs(29));
        let until = shell.ask(keep(&lease)).unwrap();
        assert_eq!(until, WallMs(START.0 + beat * 29_000 + 30_000));
    }
    shell.pass(DurationMs(29_999));
    shell.ask(answer(&lease, succeeded())).unwrap();
    assert_eq!(shell.state(id), State::Succeeded);
    shell.ask(keep(&lease)).unwrap_err();
}

#[test]
fn a_snoozed_task_comes_back_later_and_has_used_no_attempt() {
    let mut shell = Shell::new();
    let id = shell.create(task());
    let lease = shell.lease(&[USUAL], 1).remove(0);
    let (token, delay) = (lease.token, DurationMs::secs(90));
    shell
        .ask(finish(id, Event::Snoozed { token, delay }))
        .unwrap();
    assert_eq!(
        (shell.task(id).attempts, shell.task(id).waiting_for),
        (0, Some(WaitingFor::Snooze))
    );
    shell.pass(DurationMs(89_999));
    assert_eq!(ids(&shell.lease(&[USUAL], 1)), []);
    shell.pass(DurationMs(1));
    assert_eq!(ids(&shell.lease(&[USUAL], 1)), [id]);
}

#[test]
fn the_worker_of_a_cancelled_task_learns_of_it_by_its_heartbeat() {
    let mut shell = Shell::new();
    let id = shell.create(task());
    let lease = shell.lease(&[USUAL], 1).remove(0);
    shell.cancel(id);
    let told = shell.ask(keep(&lease)).unwrap_err();
    assert!(matches!(
        told,
        VerbRefused::Refused(Refusal::StaleToken {
            cancelled: true,
            ..
        })
    ));
    shell.ask(answer(&lease, succeeded())).unwrap_err();
    assert_eq!(shell.state(id), State::Cancelled);
}

#[test]
fn a_lease_outlives_the_process_with_its_token_and_its_whole_length() {
    let mut shell = Shell::new();
    let id = shell.create(task());
    let lease = shell.lease(&[USUAL], 1).remove(0);
    shell.pass(DurationMs::secs(20));
    shell.crash();
    shell.pass(DurationMs(29_999));
    assert_eq!(shell.state(id), State::Running);
    shell.ask(answer(&lease, succeeded())).unwrap();
    assert_eq!(
        (shell.state(id), shell.task(id).attempts),
        (State::Succeeded, 1)
    );
}

#[test]
fn a_lease_is_no_longer_than_the_total_time_that_is_left() {
    let mut shell = Shell::new();
    let id = shell.create(task().total(DurationMs::secs(10)));
    shell.pass(DurationMs::secs(4));
    let lease = shell.lease(&[USUAL], 1).remove(0);
    assert_eq!(lease.expires_at, START.after(DurationMs::secs(10)));
    shell.pass(DurationMs::secs(6));
    assert_eq!(shell.task(id).dead_reason, Some(DeadReason::TotalTime));
}
