//! A topic that is held: nothing of it starts, and what waited goes on in due order.

use super::*;

const A: &str = "a";

#[test]
fn a_held_topic_starts_nothing_and_goes_on_in_due_order() {
    let mut shell = Shell::with(CoreOptions {
        running_max: 1,
        ..CoreOptions::default()
    });
    let late = shell.create(task().topic(A).push().due_in(DurationMs(300)));
    let soon = shell.create(task().topic(A).push().due_at(START.after(DurationMs(100))));
    let next = shell.create(task().topic(A).push().due_in(DurationMs(200)));
    let other = shell.create(task().topic("b").push().due_in(DurationMs(250)));
    shell.hold(A, PauseClock::Keep);
    shell.pass(DurationMs(1000));
    assert_eq!(
        shell
            .starts
            .iter()
            .map(|start| start.task)
            .collect::<Vec<_>>(),
        [other]
    );
    assert_eq!(shell.place(soon), Place::Held);
    let view = shell.get(Target::Id(soon)).unwrap();
    assert_eq!(view.blocked_by, Some("topic_paused"));
    shell.release(A);
    for nth in 0..4 {
        shell.answer(shell.starts[nth], succeeded()).unwrap();
    }
    let started: Vec<TaskId> = shell.starts.iter().map(|start| start.task).collect();
    assert_eq!(started, [other, soon, next, late]);
    assert_eq!(shell.task(late).attempts, 1, "a pause uses no attempt");
}

#[test]
fn what_waits_for_room_is_held_too_when_its_turn_comes() {
    let mut shell = Shell::with(CoreOptions {
        running_max: 1,
        ..CoreOptions::default()
    });
    shell.create(task().push());
    let queued = shell.create(task().topic(A).push());
    let behind = shell.create(task().push().due_in(DurationMs(1)));
    shell.pass(DurationMs(1));
    assert_eq!(shell.place(queued), Place::Queued);
    shell.hold(A, PauseClock::Keep);
    shell.answer(shell.starts[0], succeeded()).unwrap();
    assert_eq!(
        (shell.place(queued), shell.starts[1].task),
        (Place::Held, behind)
    );
    shell.answer(shell.starts[1], succeeded()).unwrap();
    shell.release(A);
    assert_eq!(shell.starts[2].task, queued);
}

#[test]
fn what_is_replaced_while_it_waits_for_room_is_what_it_was_replaced_by() {
    let mut shell = Shell::with(CoreOptions {
        running_max: 1,
        ..CoreOptions::default()
    });
    shell.create(task().push());
    let queued = shell.create(task().key("k").push());
    assert_eq!(shell.place(queued), Place::Queued);
    let at = shell.task(queued).due.at;
    shell.create_or(task().key("k").due_at(at), OnExisting::Replace);
    shell.pass(DurationMs(0));
    assert_eq!(
        shell.place(queued),
        Place::Ready,
        "a worker may take it now"
    );
    assert_eq!(shell.lease(&[USUAL], 1)[0].view.task.id, queued);
}

#[test]
fn an_armed_attempt_of_a_topic_that_is_paused_is_handed_back_unused() {
    let mut shell = Shell::new();
    let id = shell.create(task().topic(A).push().due_in(DurationMs(15)));
    assert_eq!(shell.state(id), State::Dispatched);
    shell.hold(A, PauseClock::Keep);
    let back = shell.disk.task(id).unwrap();
    assert_eq!(
        (back.state, back.attempts, back.attempt),
        (State::Pending, 0, AttemptNumber(0))
    );
    assert_eq!(back.changes.kept.last().unwrap().by, "topic");
    shell.pass(DurationMs::secs(10));
    assert_eq!(shell.starts, []);
    shell.release(A);
    let [start] = shell.starts[..] else { panic!() };
    assert_eq!((start.task, start.attempt), (id, AttemptNumber(1)));
    assert!(
        start.token > AttemptToken(1),
        "but the token that was out is never used again"
    );
}

#[test]
fn a_pause_outlives_the_process() {
    let mut shell = Shell::new();
    let id = shell.create(task().topic(A).push().due_in(DurationMs(15)));
    shell.hold(A, PauseClock::Keep);
    shell.crash();
    shell.pass(DurationMs::secs(10));
    assert_eq!((shell.place(id), shell.starts.len()), (Place::Held, 0));
    shell.release(A);
    assert_eq!(shell.starts.len(), 1);
}

#[test]
fn after_a_frozen_pause_tasks_have_the_time_left_that_they_had_and_are_moved_once() {
    let mut shell = Shell::new();
    let ahead = shell.create(task().topic(A).push().due_in(minutes(30)));
    let wall = shell.create(task().topic(A).push().due_at(START.after(minutes(20))));
    let meanwhile = shell.create(task().topic(A).push().due_in(minutes(15)));
    let pull = shell.create(task().topic(A).due_in(minutes(12)));
    shell.pass(minutes(10));
    shell.hold(A, PauseClock::Freeze);
    shell.pass(minutes(100));
    let born = shell.create(task().topic(A).due_in(minutes(30)));
    shell.pass(minutes(20));
    let thaw = shell.try_end_pause(A).unwrap().unwrap();
    let again = || thaw.clone();
    shell.ask(again());
    shell.pass(minutes(1));
    shell.ask(again());
    shell.crash();
    shell.pass(minutes(1));
    shell.ask(again());
    let late = shell.create(task().topic(A).due_in(minutes(30)));
    shell.ask(again());
    assert_eq!(shell.starts, [], "it is held until all have been moved");
    shell
        .try_set_topic(A, |topic, _| topic.thawing = None)
        .unwrap();

    let mut due = |id| shell.task(id).next.at.since(START).0 / 60_000;
    assert_eq!(
        [ahead, wall, meanwhile, pull].map(&mut due),
        [150, 140, 135, 132]
    );
    assert_eq!(due(born), 160, "by its own age only");
    assert_eq!(due(late), 162, "it was never frozen");
    shell.pass(minutes(4));
    assert_eq!(
        shell
            .starts
            .iter()
            .map(|start| start.task)
            .collect::<Vec<_>>(),
        [meanwhile]
    );
    assert_eq!(shell.place(pull), Place::Ready);
}

#[test]
fn a_retry_that_begins_to_wait_in_a_frozen_pause_has_its_whole_wait_after_it() {
    let mut shell = Shell::new();
    let id = shell.create(task().topic(A).push().retry_after(minutes(1)));
    shell.hold(A, PauseClock::Freeze);
    shell.pass(DurationMs::secs(20));
    shell.answer(shell.starts[0], failed("http_503")).unwrap();
    shell.pass(minutes(60));
    shell.release(A);
    assert_eq!(shell.task(id).next.remaining(shell.now()), minutes(1));
}

#[test]
fn total_time_stands_still_while_a_topic_is_frozen_and_not_while_it_is_held() {
    for (clock, ends) in [(PauseClock::Freeze, false), (PauseClock::Keep, true)] {
        let mut shell = Shell::new();
        let fixture = || task().topic(A).total(minutes(10)).retry_after(minutes(5));
        let pull = shell.create(fixture());
        let push = shell.create(fixture().push());
        shell.answer(shell.starts[0], failed("http_503")).unwrap();
        shell.pass(minutes(4));
        shell.hold(A, clock);
        shell.pass(minutes(60));
        for id in [pull, push] {
            assert_eq!(shell.state(id) == State::Dead, ends, "{clock:?}");
        }
        if ends {
            continue;
        }
        shell.release(A);
        shell.pass(DurationMs(5 * 60_000 + 59_999));
        assert_eq!((shell.state(pull), shell.starts.len()), (State::Pending, 2));
        shell.pass(DurationMs(1));
        for id in [pull, push] {
            assert_eq!(shell.task(id).dead_reason, Some(DeadReason::TotalTime));
        }
    }
}

#[test]
fn an_attempt_that_runs_through_a_frozen_pause_goes_on_and_can_still_be_stopped() {
    let mut shell = Shell::new();
    let id = shell.create(task().topic(A).push());
    shell.hold(A, PauseClock::Freeze);
    shell.pass(DurationMs::secs(5));
    shell.release(A);
    assert_eq!((shell.state(id), shell.running.len()), (State::Running, 1));
    let done = shell
        .verb(
            id,
            Event::Cancel {
                reason: String::new(),
            },
        )
        .unwrap();
    assert!(done.stopping && shell.running.is_empty());
}

#[test]
fn workers_get_nothing_of_a_held_topic_and_are_rung_for_when_it_goes_on() {
    let mut shell = Shell::new();
    shell.hold(A, PauseClock::Keep);
    let (held, free) = (
        shell.create(task().topic(A)),
        shell.create(task().topic("b")),
    );
    let leased = shell.lease(&[A, "b"], 10);
    assert_eq!(
        leased
            .iter()
            .map(|lease| lease.view.task.id)
            .collect::<Vec<_>>(),
        [free]
    );
    shell.rung.clear();
    shell.release(A);
    assert_eq!(shell.rung, [topic(A)]);
    assert_eq!(shell.lease(&[A], 10)[0].view.task.id, held);
}

#[test]
fn an_older_book_does_not_undo_a_newer_one() {
    let mut shell = Shell::new();
    let old = shell.core.book.clone();
    shell.hold(A, PauseClock::Keep);
    shell.ask(SetBook(old));
    assert!(shell.core.book.get(&topic(A)).is_held());
}
