//! From due to done: written ahead, started at the instant, watched until there is an answer.

use super::shell::due_in;
use super::*;
use crate::task::history::ErrorNote;
use crate::task::outcome::Outcome;

#[test]
fn a_push_is_written_20_ms_ahead_and_starts_at_its_instant_on_either_lane() {
    for lane in [Lane::Wall, Lane::Steady] {
        let mut shell = Shell::new();
        let due = due_in(lane, 1000, shell.now());
        let id = shell.create(match lane {
            Lane::Wall => task().push().due_at(due.at),
            Lane::Steady => task().push().due_in(DurationMs(1000)),
        });
        assert_eq!(shell.task(id).due, due);
        shell.pass(DurationMs(979));
        assert_eq!(shell.state(id), State::Pending);
        shell.pass(DurationMs(1));
        assert_eq!(shell.disk.task(id).unwrap().state, State::Dispatched);
        shell.pass(DurationMs(19));
        assert_eq!(shell.starts, []);
        shell.pass(DurationMs(1));
        assert_eq!(shell.starts[0].at, due.at);
        assert_eq!(
            (shell.state(id), shell.task(id).lateness_ms),
            (State::Running, Some(0))
        );
        shell.answer(shell.starts[0], succeeded()).unwrap();
        assert_eq!(shell.state(id), State::Succeeded);
    }
}

#[test]
fn nothing_starts_before_its_commit_is_through() {
    let mut shell = Shell::new();
    let now = shell.now();
    let creation = shell.creation(task().push(), OnExisting::Return);
    let by = "test".to_owned();
    CreateTask { creation, by }.put(&mut shell.core, now);
    shell.core.advance(now);
    let step = shell.core.close(now);
    assert_eq!(shell.core.launch(now).len(), 0, "written only");
    let [Effect::Arm(armed)] = step.effects[..] else {
        panic!("{:?}", step.effects)
    };
    shell.core.arm(armed);
    assert_eq!(shell.core.launch(now).len(), 1);
    assert_eq!(shell.core.launch(now).len(), 0, "and only once");
}

#[test]
fn an_armed_attempt_that_is_cancelled_never_starts() {
    let mut shell = Shell::new();
    let id = shell.create(task().push().due_in(DurationMs(10)));
    assert_eq!(shell.state(id), State::Dispatched);
    shell.cancel(id);
    shell.pass(DurationMs::secs(60));
    assert_eq!((shell.state(id), shell.starts.len()), (State::Cancelled, 0));
}

#[test]
fn a_task_with_nothing_to_do_ends_at_its_instant_in_one_commit() {
    let mut shell = Shell::new();
    let id = shell.create(task().action(Action::None).due_in(DurationMs(500)));
    shell.pass(DurationMs(499));
    assert_eq!(shell.state(id), State::Pending);
    shell.pass(DurationMs(1));
    assert_eq!(shell.disk.task(id).unwrap().state, State::Succeeded);
    assert_eq!(shell.task(id).attempt, AttemptNumber(0));
}

#[test]
fn an_attempt_without_an_answer_is_tried_again_and_its_late_answer_is_refused() {
    let mut shell = Shell::new();
    let id = shell.create(task().push().retry_after(DurationMs::secs(1)));
    let [first] = shell.starts[..] else { panic!() };
    // Its limit, its grace, and the margin.
    shell.pass(DurationMs(30_000 + 2_000 + 2_000 - 1));
    assert_eq!(shell.state(id), State::Running);
    shell.pass(DurationMs(1));
    assert_eq!((shell.state(id), shell.running.len()), (State::Retrying, 0));
    shell.pass(DurationMs::secs(1));
    let [_, second] = shell.starts[..] else {
        panic!()
    };
    assert!(second.token > first.token && second.attempt > first.attempt);

    let before = shell.task(id).clone();
    let late = shell.answer(first, succeeded()).unwrap_err();
    assert!(matches!(
        late,
        VerbRefused::Refused(Refusal::StaleToken {
            cancelled: false,
            ..
        })
    ));
    assert_eq!(shell.task(id), before);
    shell.answer(second, succeeded()).unwrap();
    assert_eq!(shell.state(id), State::Succeeded);
}

#[test]
fn the_time_to_answer_counts_from_the_start_however_slow_the_commit_was() {
    let mut shell = Shell::new();
    shell.sync_takes = DurationMs::secs(60);
    let id = shell.create(task().push());
    shell.sync_takes = DurationMs(0);
    assert_eq!((shell.state(id), shell.starts.len()), (State::Running, 1));
    shell.pass(DurationMs(33_999));
    assert_eq!(shell.state(id), State::Running, "it has just begun");
    shell.answer(shell.starts[0], succeeded()).unwrap();
    assert_eq!(shell.task(id).attempts, 1);
}

#[test]
fn a_silent_host_has_its_share_and_the_others_go_on_in_due_order() {
    let mut shell = Shell::with(CoreOptions {
        running_max: 8,
        per_host_max: 2,
        ..CoreOptions::default()
    });
    let to = |host: &str, ms| {
        task()
            .push_to(&format!("http://{host}/x"))
            .due_in(DurationMs(ms))
    };
    let silent: Vec<TaskId> = (0..4)
        .map(|n| shell.create(to("silent", 100 + n)))
        .collect();
    let others: Vec<TaskId> = (0..4)
        .map(|n| shell.create(to(&format!("other-{n}"), 110 + n)))
        .collect();
    shell.pass(DurationMs(200));
    let started = |shell: &Shell| {
        shell
            .starts
            .iter()
            .map(|start| start.task)
            .collect::<Vec<_>>()
    };
    assert_eq!(started(&shell), [&silent[..2], &others].concat());
    for id in &silent[2..] {
        let view = shell.get(Target::Id(*id)).unwrap();
        assert_eq!(view.blocked_by, Some("host_full"));
    }
    // Each answer of the silent one makes room for one more of its own, the first that is due; a cancel leaves none.
    shell.answer(shell.starts[0], succeeded()).unwrap();
    shell.pass(DurationMs(1));
    assert_eq!(shell.starts.last().unwrap().task, silent[2]);
    shell.answer(shell.starts[1], succeeded()).unwrap();
    shell.pass(DurationMs(1));
    assert_eq!(shell.starts.last().unwrap().task, silent[3]);
    assert_eq!(
        shell.task(silent[3]).attempts,
        1,
        "waiting for room is no attempt"
    );
}

#[test]
fn no_more_run_than_may_and_the_rest_follows_in_due_order() {
    let mut shell = Shell::with(CoreOptions {
        running_max: 2,
        ..CoreOptions::default()
    });
    let at = |ms| START.after(DurationMs(ms));
    let later = shell.create(task().push().due_in(DurationMs(300)));
    let ids = [
        shell.create(task().push().due_in(DurationMs(100))),
        shell.create(task().push().due_at(at(110))),
        shell.create(task().push().due_in(DurationMs(120))),
        shell.create(task().push().due_at(at(130))),
        shell.create(task().push().due_in(DurationMs(140))),
    ];
    shell.pass(DurationMs(270));
    assert_eq!(shell.running.len(), 2);
    let view = shell.get(Target::Id(ids[3])).unwrap();
    assert_eq!(view.blocked_by, Some("executor_full"));
    // The last one comes due while two wait: it waits behind them, also when there is room in that moment.
    for nth in 0..6 {
        if nth == 1 {
            shell.clock.advance(DurationMs(30));
        }
        shell.answer(shell.starts[nth], succeeded()).unwrap();
    }
    let started: Vec<TaskId> = shell.starts.iter().map(|start| start.task).collect();
    assert_eq!(started, [ids.as_slice(), &[later]].concat());
    assert_eq!(
        shell.task(ids[4]).attempts,
        1,
        "waiting for room is no attempt"
    );
}

#[test]
fn what_came_due_while_nobody_looked_starts_in_due_order_over_both_lanes() {
    let mut shell = Shell::with(CoreOptions {
        running_max: 3,
        alarms_per_step: 2,
        ..folding()
    });
    let ids: Vec<TaskId> = (1..=9)
        .map(|n| {
            let due = DurationMs(n * 50);
            let fixture = task().push();
            shell.create(if n % 3 == 0 {
                fixture.due_at(START.after(due))
            } else {
                fixture.due_in(due)
            })
        })
        .collect();
    shell.clock.advance(DurationMs(10_000));
    shell.crash();
    for nth in 0..9 {
        shell.answer(shell.starts[nth], succeeded()).unwrap();
    }
    let started: Vec<TaskId> = shell.starts.iter().map(|start| start.task).collect();
    assert_eq!(started, ids);
}

#[test]
fn an_executor_without_room_uses_no_attempt() {
    let mut shell = Shell::new();
    let id = shell.create(task().push());
    shell.answer(shell.starts[0], Outcome::GivenBack).unwrap();
    assert_eq!(
        (shell.state(id), shell.task(id).attempts),
        (State::Retrying, 0)
    );
    shell.pass(DurationMs(100));
    assert_eq!(shell.starts.len(), 2);
}

#[test]
fn the_last_allowed_attempt_leaves_a_dead_letter() {
    let mut shell = Shell::new();
    let id = shell.create(task().push().retry_after(DurationMs(50)).max_attempts(2));
    shell.answer(shell.starts[0], failed("http_503")).unwrap();
    shell.pass(DurationMs(50));
    shell.answer(shell.starts[1], failed("http_503")).unwrap();
    assert_eq!(shell.task(id).dead_reason, Some(DeadReason::AttemptsUsedUp));
    shell.verb(id, Event::Replay).unwrap();
    assert_eq!((shell.task(id).generation, shell.starts.len()), (2, 3));
    assert_eq!(shell.starts[2].attempt, AttemptNumber(3));
}

#[test]
fn when_the_total_time_is_over_a_waiting_task_is_dead_and_a_running_attempt_is_stopped() {
    let mut shell = Shell::new();
    let fixture = || {
        task()
            .push()
            .total(DurationMs::secs(10))
            .retry_after(minutes(5))
    };
    let (waiting, running) = (shell.create(fixture()), shell.create(fixture()));
    shell.answer(shell.starts[0], failed("http_503")).unwrap();
    shell.pass(DurationMs(9_999));
    assert_eq!(
        (shell.state(waiting), shell.state(running)),
        (State::Retrying, State::Running)
    );
    shell.pass(DurationMs(1));
    for id in [waiting, running] {
        assert_eq!(shell.task(id).dead_reason, Some(DeadReason::TotalTime));
    }
    assert!(shell.running.is_empty());
}

#[test]
fn a_shutdown_hands_back_what_is_armed_and_in_the_end_what_runs() {
    let mut shell = Shell::new();
    let running = shell.create(task().push());
    let once = shell.create(task().push().at_most_once());
    let armed = shell.create(task().push().due_in(DurationMs(10)));
    assert_eq!(shell.ask(Drain { give_up: false }), 2);
    assert_eq!(
        (shell.state(armed), shell.task(armed).attempt),
        (State::Pending, AttemptNumber(0))
    );
    shell.pass(DurationMs(100));
    assert_eq!(shell.starts.len(), 2, "nothing starts any more");
    shell.ask(Drain { give_up: true });
    assert_eq!(
        (shell.state(running), shell.task(running).attempts),
        (State::Retrying, 0)
    );
    assert_eq!(
        shell.task(once).dead_reason,
        Some(DeadReason::OutcomeUnknown)
    );
    shell.crash();
    let again: Vec<TaskId> = shell.starts[2..].iter().map(|start| start.task).collect();
    assert_eq!(again, [armed, running]);
    assert_eq!(
        shell.starts[2].attempt,
        AttemptNumber(1),
        "its number was never used"
    );
}

#[test]
fn many_operations_are_one_step_and_each_sees_those_before_it() {
    let mut shell = Shell::new();
    let first = shell.creation(task().key("a").due_in_minutes(1), OnExisting::Reject);
    let again = shell.creation(task().key("a").due_in_minutes(2), OnExisting::Extend);
    let named = Target::Key(topic(USUAL), key("a"));
    let id = first.id;
    let cancel = Event::Cancel {
        reason: String::new(),
    };
    let done = shell.ask(RunOps::new(
        vec![
            Op::Create(first),
            Op::Create(again),
            Op::Verb(named.clone(), cancel),
            Op::Verb(named, Event::Resume),
        ],
        Wants::Slim,
        "test".to_owned(),
    ));
    assert!(matches!(&done[0], OpDone::Created(Created::New(task)) if task.id() == id));
    let extended = shell.task(id).due.at;
    assert!(
        matches!(&done[1], OpDone::Created(Created::Existing(task)) if task.slim().due_at == extended)
    );
    assert!(
        matches!(&done[2], OpDone::Verb(Ok(done)) if done.view.slim().state == State::Cancelled)
    );
    assert!(matches!(
        &done[3],
        OpDone::Verb(Err(VerbRefused::Refused(Refusal::IllegalState { .. })))
    ));
    assert_eq!(extended, START.after(minutes(2)));
}

#[test]
fn what_is_created_and_sleeps_at_once_can_be_met_in_the_same_step() {
    let mut shell = Shell::new();
    let reason = || Event::Cancel {
        reason: "paid".to_owned(),
    };
    let far = |name: &str| task().key(name).due_in_minutes(600);
    let creations = ["kept", "cancelled", "moved", "gone"].map(|name| {
        let creation = shell.creation(far(name), OnExisting::Reject);
        (creation.id, creation)
    });
    let [kept, cancelled, moved, gone] = creations.each_ref().map(|(id, _)| *id);
    let again = shell.creation(far("moved").due_in_minutes(700), OnExisting::Extend);
    let free = shell.creation(far("cancelled").due_in_minutes(800), OnExisting::Reject);
    let second = free.id;
    let never = shell.creation(far("kept"), OnExisting::Reject);
    let error = ErrorNote {
        code: "no".to_owned(),
        message: "not wanted".to_owned(),
    };
    let mut ops: Vec<Op> = creations
        .into_iter()
        .map(|(_, new)| Op::Create(new))
        .collect();
    ops.extend([
        Op::Verb(Target::Id(cancelled), reason()),
        Op::Create(again),
        Op::Create(free),
        Op::Create(never),
        Op::Verb(Target::Id(gone), Event::Fail { error }),
        Op::Verb(Target::Id(gone), Event::Discard),
    ]);
    let done = shell.ask(RunOps::new(ops, Wants::Slim, "test".to_owned()));
    assert!(matches!(&done[7], OpDone::Created(Created::Exists(id)) if *id == kept));
    assert!(
        done[8..]
            .iter()
            .all(|done| matches!(done, OpDone::Verb(Ok(_))))
    );
    for _ in 0..2 {
        assert_eq!(shell.state(kept), State::Pending);
        assert_eq!(shell.state(cancelled), State::Cancelled);
        assert_eq!(shell.task(moved).due.at, START.after(minutes(700)));
        assert_eq!(shell.state(second), State::Pending);
        assert!(shell.get(Target::Id(gone)).is_none());
        shell.crash();
    }
    shell.pass(minutes(800));
    assert_eq!(shell.lease(&[USUAL], 10).len(), 3);
}

#[test]
fn a_folded_chunk_stays_in_memory_as_a_whole_or_not_at_all() {
    let facts = serde_json::json!({ "text": "x".repeat(500) });
    // Half of one would be moved from and folded once more, and if it is as much as a fold holds, for ever.
    for later in [DurationMs::secs(4), minutes(300)] {
        let mut shell = Shell::new();
        shell.create(task().due_in(later));
        for n in 5..8 {
            shell.create(task().facts(&facts).due_in(DurationMs::secs(n)));
        }
        // The store folds a little in each step.
        (0..5).for_each(|_| shell.pass(DurationMs(1)));
        let chunks = shell.core.table.shelf().chunks();
        let in_chunks: u32 = chunks.map(|(_, meta)| meta.live()).sum();
        let stays = later < DurationMs::secs(10);
        assert_eq!(in_chunks, if stays { 0 } else { 3 });
        shell.pass(DurationMs::secs(10));
        assert_eq!(shell.lease(&[USUAL], 10).len(), if stays { 4 } else { 3 });
    }
}
