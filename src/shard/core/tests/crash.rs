//! Death at every point: whatever was acknowledged is there afterwards, and everything still comes to its end.
//!
//! That no attempt number starts twice, that nothing uncommitted starts and that memory, counts and disk agree is
//! checked by the shell and by `sound` at each step, before and after the death.

use super::shell::{Died, due_in, finish, verb};
use super::*;
use crate::shard::index::Home;

/// What was acknowledged: a task, and the state it must end in. `None`: any of those that a doubt allows.
type Acknowledged = Vec<(TaskId, Option<State>)>;

const ONCE: &str = "at.most.once";

/// A busy minute with something of everything.
fn a_busy_minute(shell: &mut Shell, acknowledged: &mut Acknowledged) -> Result<(), Died> {
    let mut create = |shell: &mut Shell, fixture: TaskFixture, ends: Option<State>| {
        let creation = shell.creation(fixture, OnExisting::Reject);
        let (id, by) = (creation.id, "test".to_owned());
        shell.try_ask(CreateTask { creation, by })?;
        acknowledged.push((id, ends));
        Ok(id)
    };
    let done = Some(State::Succeeded);
    let first = create(shell, task().push(), done)?;
    let once = create(shell, task().topic(ONCE).push().at_most_once(), None)?;
    let soon = create(shell, task().push().due_in(DurationMs(15)), done)?;
    let wall = due_in(Lane::Wall, 2_000, shell.now()).at;
    let held = create(shell, task().topic("held").push().due_at(wall), done)?;
    let pull = create(shell, task().retry_after(DurationMs(100)), done)?;
    let paused = create(shell, task().due_in(DurationMs(500)), done)?;
    create(
        shell,
        task().action(Action::None).due_in(DurationMs(700)),
        done,
    )?;
    let called_off = create(shell, task().key("a").push().due_in(DurationMs(20)), None)?;

    if let Some(token) = shell.running.get(&first).copied() {
        shell.try_answer(first, token, failed("http_503"))?.unwrap();
    }
    let reason = String::new();
    let cancelled = shell.try_ask(verb(Target::Id(called_off), Event::Cancel { reason }))?;
    assert_eq!(cancelled.unwrap().view.slim().state, State::Cancelled);
    acknowledged.push((called_off, Some(State::Cancelled)));

    shell.try_pass(DurationMs(15))?;
    let clock = PauseClock::Freeze;
    shell
        .try_ask(verb(Target::Id(paused), Event::Pause { clock }))?
        .unwrap();
    if let Some(lease) = shell.try_lease(&[USUAL], 1)?.first() {
        assert_eq!(lease.view.task.id, pull);
        let (token, delay) = (lease.token, DurationMs(300));
        shell
            .try_ask(finish(pull, Event::Snoozed { token, delay }))?
            .unwrap();
    }
    shell.try_pass(DurationMs(1_970))?;
    assert_eq!(shell.state(held), State::Dispatched);
    shell.try_hold("held", PauseClock::Freeze)?;
    if let Some(token) = shell.running.get(&soon).copied() {
        let view = shell.try_answer(soon, token, succeeded())?.unwrap();
        assert_eq!(view.task.state, State::Succeeded);
    }
    if let Some(token) = shell.running.get(&once).copied() {
        shell.try_answer(once, token, succeeded())?.unwrap();
        acknowledged.push((once, done));
    }
    shell.try_pass(DurationMs(5_000))?;
    shell.try_release("held")?;
    shell.try_pass(DurationMs(50_000))
}

#[test]
fn a_death_at_any_point_loses_nothing_and_starts_nothing_twice() {
    let mut points = 0;
    loop {
        let mut shell = Shell::new();
        let mut acknowledged = Vec::new();
        shell.die_at(points);
        let ended = a_busy_minute(&mut shell, &mut acknowledged);
        if ended.is_ok() {
            assert!(shell.lives());
            break;
        }
        shell.live_on();
        for (id, ends) in acknowledged {
            let task = shell.disk.task(id).expect("what was acknowledged is there");
            match ends {
                Some(state) => assert_eq!(task.state, state, "{id}, death at {points}"),
                None => assert!(
                    matches!(task.state, State::Succeeded | State::Cancelled)
                        || task.dead_reason == Some(DeadReason::OutcomeUnknown)
                ),
            }
        }
        points += 1;
    }
    assert!(points > 100, "only {points} points at which it could die");
}

#[test]
fn what_was_in_flight_is_settled_by_its_delivery_policy() {
    let mut shell = Shell::new();
    let again = shell.create(task().push());
    let once = shell.create(task().push().at_most_once());
    let last = shell.create(task().push().max_attempts(1));
    let leased = shell.create(task().at_most_once());
    let lease = shell.lease(&[USUAL], 1).remove(0);
    shell.crash();
    assert_eq!(shell.starts.len(), 4, "at once, without the ladder");
    assert_eq!(
        (shell.starts[3].task, shell.starts[3].attempt),
        (again, AttemptNumber(2))
    );
    assert!(shell.starts[3].token > shell.starts[0].token);
    for id in [once, last] {
        assert_eq!(shell.task(id).dead_reason, Some(DeadReason::OutcomeUnknown));
    }
    assert_eq!(
        (shell.state(leased), shell.task(leased).token),
        (State::Running, lease.token)
    );
    // What is armed with its instant still ahead can't have started: it uses nothing, and is not early.
    let armed = shell.create(task().push().due_in(DurationMs(10)));
    let first = shell.task(armed).token;
    shell.crash();
    let again = shell.task(armed);
    assert_eq!((again.attempts, again.attempt), (1, AttemptNumber(1)));
    assert!(again.token > first);
    assert!(shell.starts.iter().all(|start| start.task != armed));
}

#[test]
fn down_time_adds_nothing_and_what_came_due_meanwhile_fires_once() {
    let mut shell = Shell::new();
    let ids = [
        shell.create(task().push().due_in(minutes(10))),
        shell.create(task().push().due_at(START.after(minutes(20)))),
        shell.create(task().push().due_in(minutes(70))),
    ];
    shell.clock.advance(minutes(60));
    shell.crash();
    shell.crash();
    let started: Vec<TaskId> = shell.starts.iter().map(|start| start.task).collect();
    assert_eq!(started[..2], ids[..2]);
    shell.pass(DurationMs(10 * 60_000 - 1));
    assert_eq!(shell.state(ids[2]), State::Dispatched);
    assert_eq!(
        shell
            .starts
            .iter()
            .filter(|start| start.task == ids[2])
            .count(),
        0
    );
    shell.pass(DurationMs(1));
    assert_eq!(shell.starts.last().unwrap().task, ids[2]);
}

#[test]
fn a_cancel_in_the_step_that_opens_its_chunk_is_committed() {
    let mut shell = Shell::new();
    let id = shell.create(task().push().due_in_minutes(2));
    let is_asleep = |shell: &Shell| {
        let row = shell.core.table.row(id).unwrap();
        matches!(row.home, Home::Chunk(..)) && !row.is_alarmed
    };
    for _ in 0..50 {
        if !is_asleep(&shell) {
            shell.create(task().push().due_in_minutes(10));
        }
    }
    assert!(is_asleep(&shell));
    let ahead = shell.core.options.table.look_ahead;
    shell.clock.advance(DurationMs(minutes(2).0 - ahead.0));
    shell.cancel(id);
    shell.crash();
    assert_eq!(shell.state(id), State::Cancelled);
}
