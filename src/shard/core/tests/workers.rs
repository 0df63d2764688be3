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
        checkpoint: None,
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

#[test]
fn what_workers_hold_and_what_became_of_it_is_counted_by_their_names() {
    let mut shell = Shell::new();
    let ids = [1, 2, 3, 4].map(|_| shell.create(task().retry_after(minutes(60))));
    let leases = shell.lease(&[USUAL], 4);
    let of = |shell: &mut Shell| shell.ask(ListWorkers).remove(0);
    let part = of(&mut shell);
    assert_eq!((part.counts.leases, part.counts.leased), (4, 4));
    assert_eq!(part.held.len(), 4);
    assert!(
        part.held
            .iter()
            .all(|(id, since)| ids.contains(id) && *since == START)
    );
    shell.ask(answer(&leases[0], succeeded())).unwrap();
    shell.ask(answer(&leases[1], failed("busy"))).unwrap();
    shell.cancel(leases[2].view.task.id);
    shell.pass(DurationMs::secs(30));
    let part = of(&mut shell);
    let counts = part.counts;
    assert_eq!((counts.leases, counts.leased), (0, 4));
    assert_eq!((counts.completed, counts.failed, counts.lost), (1, 1, 1));
    assert_eq!(
        part.last,
        START.after(DurationMs::secs(30)),
        "then it lost one"
    );
    shell.create(task());
    let next = shell.lease(&[USUAL], 1).remove(0);
    shell.crash();
    let part = of(&mut shell);
    assert_eq!(part.held[0].0, next.view.task.id, "it still has that one");
}

#[test]
fn a_lease_that_ends_with_the_time_of_its_task_counts_as_lost() {
    let mut shell = Shell::new();
    shell.create(task().total(DurationMs::secs(10)));
    shell.lease(&[USUAL], 1);
    shell.pass(DurationMs::secs(10));
    let counts = shell.ask(ListWorkers).remove(0).counts;
    assert_eq!((counts.leases, counts.lost, counts.failed), (0, 1, 0));
}

#[test]
fn a_crowd_in_one_topic_keeps_no_other_topic_waiting() {
    let mut shell = Shell::new();
    for _ in 0..50 {
        shell.create(task().topic("crowd").due_in(DurationMs(0)));
    }
    let other = |shell: &mut Shell| shell.create(task().topic("other").due_in(DurationMs(100)));
    let others = [other(&mut shell), other(&mut shell)];
    shell.pass(DurationMs(100));
    let topics = |leases: Vec<Lease>| {
        let of = |lease: &Lease| lease.view.task.topic.as_str().to_owned();
        leases.iter().map(of).collect::<Vec<_>>()
    };
    let first = shell.lease(&["crowd", "other"], 1);
    assert_eq!(topics(first), ["crowd"], "it was due first");
    let second = shell.lease(&["crowd", "other"], 1);
    assert_eq!(ids(&second), [others[0]], "and this is the other's turn");
    let next = shell.lease(&["crowd", "other"], 4);
    assert_eq!(topics(next), ["crowd", "other", "crowd", "crowd"]);
}

/// W1 heartbeats every 300 ms for 30 s while W2 asks all the time.
#[test]
fn case_26_who_heartbeats_keeps_a_task_for_as_long_as_that_and_a_second_no_longer() {
    const BEAT: DurationMs = DurationMs(300);
    let mut shell = Shell::new();
    let id = shell.create(task().retry_after(DurationMs(0)));
    let ask = |shell: &mut Shell, worker: &str| {
        shell.ask(LeaseTasks {
            topics: [topic(USUAL)].into(),
            max: 1,
            lease: DurationMs::secs(1),
            worker: worker.to_owned(),
        })
    };
    let first = ask(&mut shell, "w1").remove(0);
    for _ in 0..100 {
        for _ in 0..BEAT.0 / 10 {
            shell.pass(DurationMs(10));
            assert_eq!(ids(&ask(&mut shell, "w2")), []);
        }
        shell.ask(keep(&first)).unwrap();
    }
    assert_eq!(shell.task(id).attempts, 1, "one delivery");
    let last_beat = shell.now();
    let second = loop {
        shell.pass(DurationMs(10));
        if let Some(lease) = ask(&mut shell, "w2").pop() {
            break lease;
        }
    };
    let waited = shell.now().mono.since(last_beat.mono);
    // Lost after a second, and due again at once: the next question finds it.
    assert!((1_000..=1_010).contains(&waited.0), "{waited:?}");
    assert_eq!(second.attempt.0, 2);
    shell.ask(answer(&first, succeeded())).unwrap_err();
}

#[test]
fn case_30_a_paused_topic_gives_out_nothing_also_after_a_restart_and_all_of_it_when_it_goes_on() {
    let mut shell = Shell::new();
    let leased = shell.create(task().retry_after(DurationMs(0)));
    let lost = shell.lease(&[USUAL], 1).remove(0);
    shell.hold(USUAL, PauseClock::Keep);
    let now = shell.create(task());
    let soon = shell.create(task().due_in(DurationMs::secs(1)));
    for part in 0..2 {
        for _ in 0..40 {
            shell.pass(DurationMs::secs(1));
            assert_eq!(ids(&shell.lease(&[USUAL], 9)), []);
        }
        if part == 0 {
            shell.crash();
        }
    }
    for id in [leased, now, soon] {
        let view = shell.get(Target::Id(id)).unwrap();
        assert_eq!(view.blocked_by, Some("topic_paused"));
    }
    assert_eq!(
        shell.task(leased).last_outcome.as_ref().unwrap().outcome,
        "lease_expired"
    );
    shell.release(USUAL);
    let mut all = ids(&shell.lease(&[USUAL], 9));
    let mut expected = [leased, now, soon];
    all.sort_unstable();
    expected.sort_unstable();
    assert_eq!(all, expected);
    shell.ask(answer(&lost, succeeded())).unwrap_err();
}
