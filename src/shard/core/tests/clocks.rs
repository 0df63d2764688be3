//! Clocks that are stepped: an instant follows the wall clock, a length takes its time, and nothing fires twice.

use super::shell::due_in;
use super::*;
use crate::task::event::NewDue;

const HOUR_MS: i64 = 3_600_000;

#[test]
fn a_forward_step_fires_what_is_due_on_either_lane_once() {
    let mut shell = Shell::new();
    let wall = shell.create(task().push().due_at(START.after(minutes(30))));
    let steady = shell.create(task().push().due_in(minutes(40)));
    let pull = shell.create(task().due_in(minutes(50)));
    let later = shell.create(task().push().due_in(minutes(90)));
    shell.step_wall(HOUR_MS);
    assert_eq!(
        shell
            .starts
            .iter()
            .map(|start| start.task)
            .collect::<Vec<_>>(),
        [wall, steady]
    );
    assert_eq!(shell.place(pull), Place::Ready);
    shell.step_wall(-HOUR_MS);
    shell.step_wall(HOUR_MS);
    shell.pass(DurationMs::secs(20));
    assert_eq!(shell.starts.len(), 2, "nothing fires twice");
    assert_eq!(shell.state(later), State::Pending);
}

#[test]
fn a_backward_step_moves_instants_but_stalls_no_length() {
    let mut shell = Shell::new();
    let wall = shell.create(task().push().due_at(START.after(minutes(10))));
    let steady = shell.create(task().push().due_in(minutes(20)));
    let failing = shell.create(task().push().retry_after(minutes(5)));
    shell.answer(shell.starts[0], failed("http_503")).unwrap();
    shell.step_wall(-HOUR_MS);
    shell.pass(minutes(5));
    assert_eq!(shell.starts[1].task, failing);
    shell.answer(shell.starts[1], succeeded()).unwrap();
    shell.pass(minutes(15));
    assert_eq!(shell.starts[2].task, steady);
    shell.answer(shell.starts[2], succeeded()).unwrap();
    shell.pass(minutes(49));
    assert_eq!(shell.starts.len(), 3);
    shell.pass(minutes(1));
    assert_eq!(
        (shell.starts[3].task, shell.starts[3].at),
        (wall, START.after(minutes(10)))
    );
}

#[test]
fn an_armed_attempt_whose_clock_is_stepped_back_waits_for_its_instant_and_is_not_judged() {
    let mut shell = Shell::new();
    let due_at = START.after(DurationMs(15));
    let id = shell.create(task().push().at_most_once().due_at(due_at));
    assert_eq!(shell.state(id), State::Dispatched);
    shell.step_wall(-HOUR_MS);
    shell.pass(minutes(59));
    assert_eq!(
        (shell.starts.len(), shell.task(id).state.is_ended()),
        (0, false)
    );
    shell.pass(DurationMs(60_015));
    let [start] = shell.starts[..] else { panic!() };
    assert_eq!((start.at, start.attempt), (due_at, AttemptNumber(1)));
    shell.answer(start, succeeded()).unwrap();
    assert_eq!(shell.task(id).attempts, 1);
}

#[test]
fn leases_and_time_limits_do_not_follow_the_wall_clock() {
    let mut shell = Shell::new();
    let (pull, push) = (shell.create(task()), shell.create(task().push()));
    shell.lease(&[USUAL], 1);
    shell.step_wall(24 * HOUR_MS);
    shell.step_wall(-48 * HOUR_MS);
    shell.pass(DurationMs(29_999));
    assert_eq!([pull, push].map(|id| shell.state(id)), [State::Running; 2]);
    shell.pass(DurationMs(1));
    assert_eq!(shell.state(pull), State::Retrying);
    shell.pass(DurationMs(4_000));
    assert_eq!(shell.state(push), State::Retrying);
}

#[test]
fn a_restart_after_a_backward_step_does_not_lengthen_a_length() {
    let mut shell = Shell::new();
    let id = shell.create(task().push().due_in(minutes(30)));
    shell.pass(minutes(20));
    shell.create(task().due_in_minutes(60));
    shell.step_wall(-HOUR_MS);
    shell.crash();
    shell.pass(DurationMs(10 * 60_000 - 1));
    assert_eq!(shell.starts, []);
    shell.pass(DurationMs(1));
    assert_eq!(shell.starts[0].task, id);
}

#[test]
fn the_total_time_of_a_task_whose_clock_was_stepped_back_ends_with_its_due_time() {
    let options = CoreOptions {
        running_max: 1,
        ..folding()
    };
    let mut shell = Shell::with(options);
    shell.create(task().push());
    let soon = START.after(DurationMs::secs(1));
    let waiting = shell.create(task().push().due_at(soon).total(minutes(10)));
    shell.pass(DurationMs::secs(2));
    assert_eq!(shell.place(waiting), Place::Queued);
    shell.step_wall(-HOUR_MS);
    shell.answer(shell.starts[0], succeeded()).unwrap();
    assert_eq!(shell.place(waiting), Place::Wheel);
    let due = NewDue::To(due_in(Lane::Steady, minutes(120).0, shell.now()));
    shell.verb(waiting, Event::Reschedule { due }).unwrap();
    shell.pass(minutes(60));
    assert_eq!(shell.state(waiting), State::Pending);
}
