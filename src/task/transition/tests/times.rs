//! What becomes of a due time: pauses, new due times, steps of the clock, a topic's thaw.

use super::*;

const HOUR_MS: i64 = 3_600_000;

// ---------------------------------------------------------------- pauses and new due times

#[test]
fn a_frozen_pause_keeps_the_time_left_and_a_plain_one_does_not() {
    for (clock, left) in [
        (PauseClock::Freeze, minutes(30)),
        (PauseClock::Keep, DurationMs(0)),
    ] {
        for fixture in [
            task().due_in_minutes(40),
            task().due_at(START.after(minutes(40))),
        ] {
            let mut life = Life::of(fixture);
            life.wait(minutes(10));
            life.must(pause(clock));
            life.wait(minutes(24 * 60));
            life.must(Event::Resume);
            assert_eq!(life.task.state, State::Pending);
            assert_eq!(life.left(), left, "{clock:?}");
        }
    }
}

#[test]
fn a_frozen_pause_keeps_a_retry_waiting_and_its_total_time_from_counting() {
    let mut life = Life::of(task().push().total(minutes(10)));
    life.attempt(failed("http_503"));
    life.must(pause(PauseClock::Freeze));
    life.wait(minutes(100));
    assert_eq!(life.must(Event::TotalTimeOver), Applied::Unchanged);
    life.must(Event::Resume);
    assert_eq!(life.left(), minutes(1));
    assert_eq!(life.task.attempts, 1);
    assert_eq!(
        life.task.total_until(),
        Some(SteadyMs(START.0).after(minutes(110)))
    );
}

#[test]
fn a_second_pause_does_not_change_the_first() {
    let mut life = Life::of(task().due_in_minutes(40)).then(pause(PauseClock::Freeze));
    life.wait(minutes(5));
    assert_eq!(life.must(pause(PauseClock::Keep)), Applied::Unchanged);
    life.must(Event::Resume);
    assert_eq!(life.left(), minutes(40));
}

#[test]
fn a_paused_task_that_is_rescheduled_stays_paused_and_counts_from_then() {
    let mut life = Life::of(task().due_in_minutes(40)).then(pause(PauseClock::Freeze));
    life.wait(minutes(60));
    let in_ten = Due::after(minutes(10), life.now());
    life.must(reschedule(in_ten));
    assert_eq!((life.task.state, life.task.due), (State::Paused, in_ten));
    life.wait(minutes(60));
    life.must(Event::Resume);
    assert_eq!(life.left(), minutes(10));
}

#[test]
fn a_frozen_task_that_is_extended_keeps_what_was_left_and_gets_the_rest_on_top() {
    let mut life = Life::of(task().due_in_minutes(40)).then(pause(PauseClock::Freeze));
    life.wait(minutes(60));
    life.must(extend(minutes(5)));
    life.wait(minutes(60));
    life.must(Event::Resume);
    assert_eq!(life.left(), minutes(45));
}

#[test]
fn a_new_due_time_ends_the_waiting_for_a_retry_but_keeps_the_attempts() {
    for event in [reschedule(Due::after(minutes(9), at(0))), Event::RunNow] {
        let mut life = Life::of(task().push());
        life.attempt(failed("http_503"));
        life.must(event);
        assert_eq!((life.task.state, life.task.attempts), (State::Pending, 1));
        assert_eq!(life.task.waiting_for, None);
        assert_eq!(life.task.next, life.task.due);
    }
}

// ---------------------------------------------------------------- two lanes of time

#[test]
fn a_backward_step_of_the_wall_clock_does_not_stall_what_was_asked_for_as_a_length() {
    let lengths: [fn(&mut Life); 3] = [
        |_| {},
        |life| life.attempt(failed("http_503")),
        |life| {
            life.must(pause(PauseClock::Freeze));
            life.wait(minutes(5));
            life.must(Event::Resume);
        },
    ];
    for set in lengths {
        let mut life = Life::of(task().push().due_in_minutes(10).retry_after(minutes(10)));
        set(&mut life);
        life.clock.step_wall(-HOUR_MS);
        life.wait(minutes(10));
        assert!(life.task.next.is_reached(life.now()));
    }
}

#[test]
fn a_due_instant_follows_the_wall_clock_back() {
    let mut life = Life::of(task().due_at(START.after(minutes(10))));
    life.clock.step_wall(-HOUR_MS);
    life.wait(minutes(10));
    assert_eq!(life.left(), minutes(60));
}

#[test]
fn a_forward_step_of_the_wall_clock_fires_both_lanes() {
    for fixture in [
        task().due_in_minutes(10),
        task().due_at(START.after(minutes(10))),
    ] {
        let life = Life::of(fixture);
        life.clock.step_wall(HOUR_MS);
        assert!(life.task.next.is_reached(life.now()));
    }
}

#[test]
fn a_due_time_in_the_past_means_now() {
    let mut life = Life::of(task().due_at(WallMs(0)));
    assert_eq!(life.task.due.at, START);
    life.must(leased());
    assert_eq!(life.task.lateness_ms, Some(0));
}

// ---------------------------------------------------------------- thaw

fn thaw(number: u32, held: DurationMs) -> Event {
    Event::Thawed { thaw: number, held }
}

#[test]
fn a_thaw_moves_a_waiting_task_once_by_the_time_its_topic_was_held() {
    let mut life = Life::of(task().due_in_minutes(40));
    life.wait(minutes(30));
    life.must(thaw(1, minutes(20)));
    assert_eq!(life.left(), minutes(30));
    assert_eq!(life.must(thaw(1, minutes(20))), Applied::Unchanged);
    life.wait(minutes(10));
    life.must(thaw(2, minutes(5)));
    assert_eq!(life.left(), minutes(25));
    assert_eq!(life.must(thaw(1, minutes(20))), Applied::Unchanged);
}

#[test]
fn a_thaw_moves_a_task_by_no_more_than_its_age() {
    let mut life = Life::of(task().due_in_minutes(40));
    life.wait(minutes(3));
    life.must(thaw(1, minutes(24 * 60)));
    assert_eq!(life.left(), minutes(40));
}

#[test]
fn a_thaw_leaves_what_does_not_wait_where_it_is() {
    for end in [leased(), cancel(), fail(), complete(None)] {
        let mut life = Life::of(task().due_in_minutes(40)).then(end);
        life.wait(minutes(30));
        let mut expected = life.task.clone();
        expected.thaw = 1;
        life.must(thaw(1, minutes(20)));
        assert_eq!(life.task, expected);
    }
}

#[test]
fn a_thaw_moves_a_paused_task_too_but_not_by_what_its_own_freeze_gives_back() {
    let mut kept = Life::of(task().due_in_minutes(40)).then(pause(PauseClock::Keep));
    kept.wait(minutes(30));
    kept.must(thaw(1, minutes(20)));
    assert_eq!(kept.left(), minutes(30));

    // Its topic is held from minute 10, itself from minute 15, both until minute 30.
    let mut frozen = Life::of(task().due_in_minutes(40));
    frozen.wait(minutes(15));
    frozen.must(pause(PauseClock::Freeze));
    frozen.wait(minutes(15));
    frozen.must(thaw(1, minutes(20)));
    frozen.must(Event::Resume);
    assert_eq!(frozen.left(), minutes(30), "what was left at minute 10");
}

#[test]
fn what_is_moved_while_its_topic_is_frozen_is_moved_on_from_there() {
    // Held from minute 10 to minute 30.
    let mut extended = Life::of(task().due_in_minutes(40));
    extended.wait(minutes(20));
    extended.must(Event::Reschedule {
        due: NewDue::ExtendBy(minutes(5)),
    });
    extended.wait(minutes(10));
    extended.must(thaw(1, minutes(20)));
    assert_eq!(extended.left(), minutes(35), "30 were left, and 5 more");

    let mut anew = Life::of(task().due_in_minutes(40));
    anew.wait(minutes(20));
    let due = NewDue::To(Due::after(minutes(15), anew.now()));
    anew.must(Event::Reschedule { due });
    anew.wait(minutes(10));
    anew.must(thaw(1, minutes(20)));
    assert_eq!(anew.left(), minutes(15), "it has waited in the freeze only");
}
