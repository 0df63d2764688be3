//! The second net: what a fault of ours has lost is found. The faults are planted, so the shard here is a bare one that
//! nobody checks at every step.

use super::*;
use crate::clock::Clock;
use crate::ids::Slot;
use crate::shard::place::alarms_of;
use crate::shard::rescue::{DwellAction, RescueCounts, RescueOptions};
use crate::task::spec::Timeouts;

const SECOND: DurationMs = DurationMs::secs(1);

struct Bare {
    core: ShardCore,
    clock: Clock,
    starts: usize,
    created: u64,
}

impl Bare {
    fn new(on_dwell: DwellAction) -> Self {
        let clock = Clock::by_hand(START);
        let options = CoreOptions {
            rescue: RescueOptions {
                on_dwell,
                ..RescueOptions::default()
            },
            ..CoreOptions::default()
        };
        Self {
            core: ShardCore::new(ShardId(0), options, Arc::default(), clock.now()),
            clock,
            starts: 0,
            created: 0,
        }
    }

    /// Steps at each of so many seconds.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.clock.advance(SECOND);
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        self.core.advance(now);
        for effect in self.core.close(now).effects {
            if let Effect::Arm(armed) = effect {
                self.core.arm(armed);
            }
        }
        self.starts += self.core.launch(now).len();
    }

    fn create(&mut self, fixture: TaskFixture, timeouts: Timeouts) -> TaskId {
        let now = self.clock.now();
        let mut task = fixture.build(now);
        self.created += 1;
        task.id = TaskId::with_tail(Slot::of_hash(self.created), now.wall, self.created);
        Arc::make_mut(&mut task.spec).timeouts = timeouts;
        let id = task.id;
        self.core.add(task, now);
        self.turn();
        self.turn();
        id
    }

    fn task(&mut self, id: TaskId) -> Arc<Task> {
        self.core.table.read(id).unwrap().task
    }

    fn counts(&self) -> RescueCounts {
        self.core.rescued()
    }
}

fn push_now() -> TaskFixture {
    task().push().due_in(DurationMs(0))
}

#[test]
fn an_attempt_whose_alarm_is_lost_counts_as_lost_after_the_next_sweep() {
    let mut bare = Bare::new(DwellAction::Alert);
    let id = bare.create(push_now(), Timeouts::default());
    assert_eq!((bare.task(id).state, bare.starts), (State::Running, 1));
    let alarms = alarms_of(&bare.task(id), Place::InFlight);
    for alarm in alarms.into_iter().flatten() {
        bare.core.wheels.unset(alarm);
    }
    // The sweep of the first minute comes before half a minute has passed since the answer was due.
    bare.pass(119);
    assert_eq!(bare.task(id).state, State::Running);
    bare.pass(2);
    assert_eq!(bare.task(id).attempts_log.kept[0].outcome, "timeout");
    let counts = bare.counts();
    assert_eq!((counts.sweeps, counts.moved, counts.failed), (2, 1, 0));
}

#[test]
fn an_attempt_that_never_starts_is_told_of_handed_out_again_or_dead_as_is_wished() {
    let an_hour = Timeouts {
        attempt: DurationMs::secs(3_600),
        ..Timeouts::default()
    };
    for (action, state) in [
        (DwellAction::Alert, State::Dispatched),
        (DwellAction::Retry, State::Running),
        (DwellAction::Dead, State::Dead),
    ] {
        let mut bare = Bare::new(action);
        let id = bare.create(push_now().due_in(DurationMs(15)), an_hour.clone());
        assert_eq!(bare.task(id).state, State::Dispatched);
        bare.core.armed_wall.clear();
        bare.core.armed_steady.clear();
        bare.pass(600);
        assert_eq!(
            (bare.task(id).state, bare.counts().alerts),
            (State::Dispatched, 0)
        );
        bare.pass(63);
        assert_eq!(
            (bare.task(id).state, bare.counts().alerts),
            (state, 1),
            "{action:?}"
        );
    }
}

#[test]
fn an_answer_that_came_before_the_sweep_is_left_in_peace() {
    let mut bare = Bare::new(DwellAction::Dead);
    let id = bare.create(push_now(), Timeouts::default());
    let token = bare.task(id).token;
    let answer = Event::Finished {
        token,
        outcome: succeeded(),
        started_at: None,
    };
    let now = bare.clock.now();
    bare.core.change(id, answer, "test", now).unwrap().unwrap();
    bare.pass(700);
    assert_eq!(bare.task(id).state, State::Succeeded);
    let counts = bare.counts();
    assert!(counts.sweeps >= 11, "{counts:?}");
    assert_eq!((counts.looked_at, counts.moved, counts.alerts), (0, 0, 0));
}

#[test]
fn one_that_can_not_be_moved_on_is_counted_and_the_sweep_goes_on() {
    let mut bare = Bare::new(DwellAction::Alert);
    let ids = [1, 2, 3].map(|_| bare.create(push_now(), Timeouts::default()));
    for id in ids {
        for alarm in alarms_of(&bare.task(id), Place::InFlight)
            .into_iter()
            .flatten()
        {
            bare.core.wheels.unset(alarm);
        }
    }
    // In flight by its place, and without an attempt: no event moves it on.
    let broken = |entry: &mut Entry| Arc::make_mut(&mut entry.task).live = None;
    bare.core.table.change(ids[1], broken).unwrap();
    bare.pass(121);
    let counts = bare.counts();
    assert_eq!(
        (counts.looked_at, counts.moved, counts.failed),
        (6, 2, 2),
        "{counts:?}"
    );
}

#[test]
fn one_that_was_handed_out_and_whose_alarm_is_lost_is_handed_back_and_uses_no_attempt() {
    let mut bare = Bare::new(DwellAction::Alert);
    let id = bare.create(push_now().due_in(DurationMs(15)), Timeouts::default());
    assert_eq!(bare.task(id).state, State::Dispatched);
    bare.core.armed_wall.clear();
    bare.core.armed_steady.clear();
    for alarm in alarms_of(&bare.task(id), Place::InFlight)
        .into_iter()
        .flatten()
    {
        bare.core.wheels.unset(alarm);
    }
    bare.pass(121);
    let task = bare.task(id);
    assert_eq!((bare.counts().moved, bare.starts), (1, 1));
    assert_eq!(
        (task.attempts, task.attempts_log.total),
        (1, 0),
        "what never started is no attempt"
    );
}

#[test]
fn a_retry_that_nobody_takes_is_told_of_by_the_time_of_that_retry() {
    let mut bare = Bare::new(DwellAction::Dead);
    let id = bare.create(task().due_in(DurationMs(0)), Timeouts::default());
    // As of a task that was due a day ago and has just come back.
    let a_day_ago = |entry: &mut Entry| Arc::make_mut(&mut entry.task).due.at.0 -= 86_400_000;
    bare.core.table.change(id, a_day_ago).unwrap();
    bare.pass(61);
    assert_eq!(bare.counts().alerts, 0, "it has stood in line for a minute");
}

#[test]
fn a_due_task_that_nobody_takes_is_told_of_after_its_dwell_time() {
    let mut bare = Bare::new(DwellAction::Dead);
    let ids = ["a", "b"].map(|worker| task().key(worker).due_in(DurationMs(0)));
    let [id, _] = ids.map(|fixture| bare.create(fixture, Timeouts::default()));
    bare.pass(600);
    assert_eq!(bare.counts().alerts, 0);
    bare.pass(61);
    assert_eq!(bare.counts().alerts, 1);
    assert_eq!(
        bare.task(id).state,
        State::Pending,
        "a worker may still come"
    );
}

#[test]
fn due_tasks_and_free_slots_without_a_start_are_no_progress() {
    let mut bare = Bare::new(DwellAction::Alert);
    let id = bare.create(task().due_in(DurationMs::secs(3_600)), Timeouts::default());
    bare.core
        .slots
        .of_mut(Track::Work)
        .wait(&topic("stuck"), 0, id);
    for (passed, expected) in [(0, 0), (2_000, 2_000), (3_000, 5_000)] {
        bare.clock.advance(DurationMs(passed));
        let now = bare.clock.now();
        bare.core.watch_progress(now);
        assert_eq!(bare.counts().no_progress_ms, expected);
    }
    bare.core.rescue.note_start();
    let now = bare.clock.now();
    bare.core.watch_progress(now);
    assert_eq!(bare.counts().no_progress_ms, 0, "something started");
}

#[test]
fn one_that_is_not_there_does_not_stand_in_the_way_of_those_behind_it() {
    let mut bare = Bare::new(DwellAction::Alert);
    let gone = TaskId::with_tail(Slot::of_hash(99), START, 99);
    bare.core
        .slots
        .of_mut(Track::Work)
        .wait(&topic("stuck"), 0, gone);
    bare.create(push_now(), Timeouts::default());
    bare.pass(1);
    assert_eq!(bare.starts, 1);
}
