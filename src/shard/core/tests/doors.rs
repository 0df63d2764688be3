//! Executors that take nothing: who waits for them costs no commit, and keeps nobody else waiting.

use super::*;
use crate::executor::Door;
use crate::task::outcome::Outcome;

const LOOK: DurationMs = DurationMs(50);

fn roomy() -> Shell {
    let mut options = folding();
    (options.running_max, options.per_host_max) = (1_000, 1_000);
    Shell::with(options)
}

#[test]
fn a_hundred_pushes_that_nobody_would_take_wait_without_a_commit_and_all_go_when_somebody_does() {
    let mut shell = roomy();
    shell.doors.shut(Door::Pushes);
    let pushes: Vec<_> = (0..100).map(|_| shell.create(task().push())).collect();
    shell.pass(DurationMs::secs(1));
    let commits = shell.commits;
    shell.pass(DurationMs::secs(1));
    assert_eq!((shell.commits, shell.starts.len()), (commits, 0));
    let shown = shell.get(Target::Id(pushes[0])).unwrap();
    assert_eq!(shown.blocked_by, Some("executor_full"));
    // Who goes elsewhere goes at once.
    let name = "close".to_owned();
    let other = shell.create(task().action(Action::Handler { name }));
    shell.pass(DurationMs(0));
    assert_eq!(
        shell.starts.iter().map(|it| it.task).collect::<Vec<_>>(),
        [other]
    );
    shell.doors.open_all();
    shell.pass(LOOK);
    assert_eq!(shell.starts.len(), 101);
}

#[test]
fn an_attempt_that_comes_back_from_a_door_that_was_just_shut_goes_there_once() {
    let mut shell = Shell::new();
    let name = "close".to_owned();
    let door = Door::Handler(name.clone());
    let id = shell.create(task().action(Action::Handler { name }).max_attempts(1));
    shell.pass(DurationMs(0));
    shell.doors.shut(door);
    let start = shell.starts[0];
    let commits = shell.commits;
    shell.answer(start, Outcome::GivenBack).unwrap();
    shell.pass(DurationMs::secs(5));
    assert_eq!((shell.commits, shell.starts.len()), (commits + 1, 1));
    shell.crash();
    shell.pass(DurationMs::secs(1));
    assert_eq!(shell.starts.len(), 1);
    shell.doors.open_all();
    shell.pass(LOOK);
    let start = shell.starts[1];
    assert_eq!((start.task, start.attempt.0), (id, 2));
    shell.answer(start, succeeded()).unwrap();
    assert_eq!(shell.task(id).attempts, 1, "it used none");
}

#[test]
fn a_task_that_waits_at_a_door_can_be_cancelled_and_held() {
    let mut shell = Shell::new();
    shell.doors.shut(Door::Pushes);
    let (first, second) = (shell.create(task().push()), shell.create(task().push()));
    shell.pass(LOOK);
    shell.cancel(first);
    shell.hold(USUAL, PauseClock::Keep);
    shell.doors.open_all();
    shell.pass(LOOK);
    assert_eq!(shell.starts, []);
    shell.release(USUAL);
    shell.pass(LOOK);
    assert_eq!(
        shell.starts.iter().map(|it| it.task).collect::<Vec<_>>(),
        [second]
    );
}
