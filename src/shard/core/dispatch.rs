//! Time passing: alarms ring, due tasks are handed out, armed attempts start at their instant.

use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs, Now, SteadyMs};
use crate::executor::{Door, Doors};
use crate::ids::TaskId;
use crate::limits::GUARD_TIME_MAX;
use crate::shard::core::{Armed, Effect, Launch, REPORT_MARGIN, ShardCore};
use crate::shard::index::Row;
use crate::shard::place::{ARM_AHEAD, Alarm, AlarmClock, Place, Setting, alarms_of};
use crate::shard::slots::Track;
use crate::task::clocks::{TaskClock, Then};
use crate::task::event::{Applied, Event};
use crate::task::model::{Lane, State, Task};
use crate::task::spec::Action;

/// Alarms that ring, per clock, before it is looked again whether the step is full.
const ALARMS_PER_ROUND: usize = 64;
/// Tasks that one step reads at the head of a line and can't dispatch: held, for a full host, not due after all.
const PASSED_PER_STEP: usize = 64;
/// From one look at the doors of executors that took nothing to the next.
const DOORS_LOOK: DurationMs = DurationMs(50);
/// How often it is looked at, at most, what becomes of a task whose time in line is over while its topic is held.
const HELD_LOOK: DurationMs = DurationMs::secs(1);
/// Longest time for the last question of a poll, and for the one whether something was done.
const LAST_QUESTION_MAX: DurationMs = DurationMs::secs(5);

impl ShardCore {
    /// Lets ring what has come due.
    pub fn advance(&mut self, now: Now) {
        self.more = false;
        if !self.is_played() {
            self.rescue(now);
        }
        for _ in 0..self.options.alarms_per_step.div_ceil(ALARMS_PER_ROUND) {
            if self.is_full() {
                break;
            }
            if !self.open_next(now) {
                self.advance_some(now);
            }
            if !self.more {
                break;
            }
        }
        self.look_at_doors(now);
        self.serve_queues(now);
        self.more |= self.rescue.is_sweeping();
    }

    /// Opens the earliest chunk whose time has come, if there is one. Nothing rings before it is open: what is in it
    /// may be due earlier.
    fn open_next(&mut self, now: Now) -> bool {
        let Some((_, id)) = self.to_open.pop_first() else {
            return false;
        };
        self.more = true;
        if let Some(chunk) = self.table.shelf().place_of(id) {
            for alarm in self.table.open_chunk(chunk, now) {
                self.wheels.set(alarm);
            }
        }
        true
    }

    /// Lets ring a few, so that what they change is seen before more ring.
    fn advance_some(&mut self, now: Now) {
        let mut rung = Vec::new();
        self.wheels.advance(now, ALARMS_PER_ROUND, &mut rung);
        self.more = rung.len() >= ALARMS_PER_ROUND;
        if self.put_to_open(&rung, now) {
            self.more = true;
            return;
        }
        // In due order over both clocks that tasks are due by; attempts that are over make room first.
        rung.sort_by_key(|(clock, at, _)| (*clock != AlarmClock::Mono, *at));
        for (_, at, alarm) in rung {
            match alarm {
                Alarm::Due(id) => self.on_due(id, at, now),
                Alarm::Overdue(id) => self.on_overdue(id, now),
                Alarm::Until(id) => self.on_until(id, now),
                Alarm::Expire(id) => self.forget(id),
                Alarm::Tombstone(hash) => self.notes.end_tombstone(hash, now),
                Alarm::Answer(hash) => self.notes.end_answer(hash, now),
                Alarm::Late(key) => self.look_after_late(key, now),
                Alarm::Chunk(_) => {}
            }
        }
    }

    /// If chunks are among what has rung, they are to be opened first; all else rings again. A chunk that should have
    /// been opened long ago has its turn when its first task has: not all that is overdue is read at once.
    fn put_to_open(&mut self, rung: &[Setting], now: Now) -> bool {
        if !rung
            .iter()
            .any(|(.., alarm)| matches!(alarm, Alarm::Chunk(_)))
        {
            return false;
        }
        for setting @ (clock, at, alarm) in rung.iter().copied() {
            let Alarm::Chunk(id) = alarm else {
                self.wheels.set(setting);
                continue;
            };
            let clock_ms = match clock {
                AlarmClock::Wall => now.wall.0,
                _ => now.steady.0,
            };
            match self.table.first_of_chunk(id) {
                Some(first_ms) if at < first_ms && first_ms <= clock_ms => {
                    self.wheels.set((clock, first_ms, alarm));
                }
                Some(_) => {
                    self.to_open.insert((at, id));
                }
                None => {}
            }
        }
        true
    }

    fn on_due(&mut self, id: TaskId, alarm_ms: i64, now: Now) {
        let Some(row) = self.table.row(id).filter(|row| row.place == Place::Wheel) else {
            return;
        };
        if row.queues_asleep && self.queue_asleep(&row, alarm_ms + ARM_AHEAD.0 as i64) {
            return;
        }
        let Some(entry) = self.table.wake(id) else {
            return;
        };
        let task = Arc::clone(&entry.task);
        let topic = self.book.get(&task.topic);
        let (held, frozen) = (topic.is_held(), topic.is_frozen());
        // While time stands still no stage comes.
        if task.at_stage.is_some()
            && !frozen
            && (self.take_over(id, now) || self.pass_over(id, now))
        {
            return self.go_on(id, now);
        }
        if !frozen && self.is_barred(id, held, now) {
            return self.go_on(id, now);
        }
        match task.action() {
            _ if held && task.is_asked_about() => self.stand(id, Place::Held, now),
            Action::Pull if !task.is_asked_about() => self.stand(id, Place::Ready, now),
            Action::CompleteOnly if !task.is_asked_about() => self.stand(id, Place::Awaiting, now),
            _ if held => self.stand(id, Place::Held, now),
            Action::None if !task.is_asked_about() => self.dispatch(id, now),
            // Whoever waits for a slot already goes first.
            _ if self.slots.of(Track::of(&task)).nobody_waits() && self.has_room_for(id) => {
                self.dispatch(id, now);
            }
            _ => self.stand(id, Place::Queued, now),
        }
    }

    /// Another stage of a task is waited for: if its time has come, it need not wait for its alarm.
    fn go_on(&mut self, id: TaskId, now: Now) {
        let Some(entry) = self.table.awake(id) else {
            return;
        };
        let [main, _] = alarms_of(&entry.task, entry.place);
        let rings = main.filter(|(clock, at, alarm)| {
            let clock_ms = match clock {
                AlarmClock::Wall => now.wall.0,
                AlarmClock::Steady => now.steady.0,
                AlarmClock::Mono => now.mono.0,
            };
            matches!(alarm, Alarm::Due(_)) && *at <= clock_ms
        });
        if let Some((_, at, _)) = rings {
            self.on_due(id, at, now);
        }
    }

    /// Puts a due task into the line before the slots, without reading it, if that is where it belongs.
    fn queue_asleep(&mut self, row: &Row, fire_ms: i64) -> bool {
        let Some(topic) = self.table.topic_of(row) else {
            return false;
        };
        // Polls have to be looked at when they come due.
        let slots = self.slots.of(Track::Work);
        let has_room = slots.nobody_waits() && !self.draining && slots.has_room_for(topic);
        if has_room || self.book.get(topic).is_held() {
            return false;
        }
        let topic = topic.clone();
        let queues = self.table.queue_asleep(row.id);
        if queues {
            let slots = self.slots.of_mut(Track::Work);
            slots.wait(&topic, fire_ms, row.id);
        }
        queues
    }

    fn on_overdue(&mut self, id: TaskId, now: Now) {
        let Some(task) = self.table.wake(id).map(|entry| &*entry.task) else {
            return;
        };
        if let Some(clock) = task.ran_out(now) {
            return self.run_out(id, clock, now);
        }
        if task
            .live
            .as_ref()
            .is_none_or(|live| live.report_by > now.mono)
        {
            return;
        }
        // Still armed: the wall clock was stepped back. What never started can't be late with its answer.
        if task.state == State::Dispatched {
            return self.hand_back(id, "shard", now);
        }
        let token = task.token;
        let _ = self.change(id, Event::Overdue { token }, "shard", now);
    }

    fn on_until(&mut self, id: TaskId, now: Now) {
        let Some(task) = self.table.wake(id).map(|entry| &*entry.task) else {
            return;
        };
        if !task.state.is_in_flight() && self.book.get(&task.topic).is_frozen() {
            // Its time stands still; it is looked at again when the topic goes on.
            let topic = task.topic.clone();
            self.table.topic_mut(&topic, now.mono).overtime.push(id);
            return;
        }
        if self.take_over(id, now) {
            self.go_on(id, now);
        }
        // A stage that came may have been passed over; then the one it came to has to end by its own time. This alarm has
        // rung, and is not set again.
        let Some(task) = self.table.awake(id).map(|entry| &*entry.task) else {
            return;
        };
        let is_over = |until: Option<SteadyMs>| until.is_some_and(|until| until <= now.steady);
        // What is only told of comes first: a poll that is asked for the last time goes on, whatever else is over.
        if is_over(task.total_alert_at()) {
            self.run_out(id, TaskClock::Total, now);
        } else if is_over(task.total_until()) {
            let _ = self.change(id, Event::TotalTimeOver, "shard", now);
        } else if is_over(task.queue_until()) {
            self.leave_line(id, now);
        }
    }

    /// A task's time in line is over, unless its topic was held meanwhile: it begins anew when that goes on.
    fn leave_line(&mut self, id: TaskId, now: Now) {
        let Some(entry) = self.table.awake(id) else {
            return;
        };
        let (task, place) = (&entry.task, entry.place);
        let (Some((_, since)), Some(length)) = (task.in_line, task.spec.timeouts.queue) else {
            return;
        };
        if !matches!(place, Place::Ready | Place::Queued) {
            return;
        }
        let released = self.table.topic(&task.topic).and_then(|line| line.released);
        let anew = match self.book.get(&task.topic).is_held() {
            // Looked at again by then, and not too often.
            true => Some(
                now.steady
                    .after(DurationMs(HELD_LOOK.0.saturating_sub(length.0))),
            ),
            false => released.filter(|released| since < *released),
        };
        let Some(anew) = anew else {
            return self.run_out(id, TaskClock::Queue, now);
        };
        let alarms = self.table.change(id, |entry| {
            let task = Arc::make_mut(&mut entry.task);
            task.come_into_line(anew);
            alarms_of(task, entry.place)
        });
        for alarm in alarms.into_iter().flatten().flatten() {
            self.wheels.set(alarm);
        }
    }

    /// One of a task's clocks has run out.
    fn run_out(&mut self, id: TaskId, clock: TaskClock, now: Now) {
        let Some(task) = self.table.awake(id).map(|entry| &entry.task) else {
            return;
        };
        let (topic, tells) = (task.topic.clone(), task.then(clock) == Some(&Then::Alert));
        let done = self.change(id, Event::RanOut { clock }, "shard", now);
        if tells && matches!(done, Some(Ok(Applied::Changed))) {
            self.rescue.note_alert();
            let clock = clock.name();
            tracing::warn!(shard = %self.id, task = %id, %topic, clock, "a clock of a task has run out; it goes on");
        }
        // It may be due at once, with another action.
        self.go_on(id, now);
    }

    fn has_room_for(&self, id: TaskId) -> bool {
        !self.draining
            && self.table.awake(id).is_some_and(|entry| {
                let task = &entry.task;
                let slots = self.slots.of(Track::of(task));
                slots.has_room_for(&task.topic)
                    && slots.host_has_room(&task.topic, task.host())
                    && shut_door(self.doors.as_deref(), task).is_none()
            })
    }

    fn look_at_doors(&mut self, now: Now) {
        if let Some(doors) = &self.doors
            && self.slots.waits_at_door()
            && now.mono >= self.doors_seen.after(DOORS_LOOK)
        {
            self.doors_seen = now.mono;
            self.slots.look_at_doors(&**doors);
        }
    }

    /// Hands out what waited for a slot, in due order.
    fn serve_queues(&mut self, now: Now) {
        for track in Track::ALL {
            self.serve_queue(track, now);
        }
    }

    fn serve_queue(&mut self, track: Track, now: Now) {
        let mut passed = 0;
        while !self.draining
            && let Some((topic, fire_ms, id)) = self.slots.of(track).next()
        {
            if self.is_full() || passed == PASSED_PER_STEP {
                self.more = true;
                return;
            }
            let Some(task) = self.table.wake(id).map(|entry| &*entry.task) else {
                if self.table.has_failed() {
                    return;
                }
                // What does not read back is set aside; it must not stand in the way of those behind it.
                self.slots.of_mut(track).leave(&topic, fire_ms, id);
                passed += 1;
                continue;
            };
            let held = self.book.get(&task.topic).is_held();
            let ahead = task.next.remaining(now);
            let (host, shut) = (task.host(), shut_door(self.doors.as_deref(), task));
            passed += 1;
            if held {
                self.slots.of_mut(track).leave(&topic, fire_ms, id);
                self.stand(id, Place::Held, now);
            } else if ahead > ARM_AHEAD {
                // Its clock was stepped back: it is not due after all, and would only take up the slot.
                self.slots.of_mut(track).leave(&topic, fire_ms, id);
                self.back_to_wheel(id);
            } else if let Some(door) = shut {
                let slots = self.slots.of_mut(track);
                let host = slots.shut(door);
                slots.set_aside(&topic, fire_ms, id, host);
            } else if let Some(host) = host
                && !self.slots.of(track).host_has_room(&topic, Some(host))
            {
                self.slots
                    .of_mut(track)
                    .set_aside(&topic, fire_ms, id, host);
            } else {
                passed -= 1;
                // Out of the line first: whatever becomes of it, it is not the next one again.
                self.slots.of_mut(track).leave(&topic, fire_ms, id);
                self.dispatch(id, now);
            }
        }
    }

    fn dispatch(&mut self, id: TaskId, now: Now) {
        let Some(task) = self.table.wake(id).map(|entry| &*entry.task) else {
            return;
        };
        let report_by = report_by(task, now.mono.after(task.next.remaining(now)));
        if let Some(Err(refused)) = self.change(id, Event::Due { report_by }, "shard", now) {
            // Its alarm is gone, so the auditor will find it and set another.
            tracing::error!(shard = %self.id, task = %id, %refused, "a due task could not be dispatched");
        }
        if let Some(task) = self.table.awake(id).map(|entry| &entry.task)
            && task.state == State::Dispatched
        {
            self.effects.push(Effect::Arm(Armed {
                fire_ms: task.next.fire_ms,
                task: id,
                token: task.token,
            }));
        }
    }

    /// Arms a committed attempt.
    pub fn arm(&mut self, armed: Armed) {
        match self
            .table
            .awake(armed.task)
            .map(|entry| entry.task.next.lane)
        {
            Some(Lane::Wall) => self.armed_wall.insert(armed),
            Some(Lane::Steady) => self.armed_steady.insert(armed),
            None => false,
        };
    }

    /// The armed attempts whose instant has come; they count as started from here on.
    pub fn launch(&mut self, now: Now) -> Vec<Launch> {
        if self.draining {
            return Vec::new();
        }
        let mut due = Vec::new();
        for (set, clock_ms) in [
            (&mut self.armed_wall, now.wall.0),
            (&mut self.armed_steady, now.steady.0),
        ] {
            while let Some(first) = set
                .first()
                .copied()
                .filter(|armed| armed.fire_ms <= clock_ms)
            {
                set.pop_first();
                due.push(first);
            }
        }
        due.sort_unstable();
        due.into_iter()
            .filter_map(|armed| self.start(armed, now))
            .collect()
    }

    fn start(&mut self, armed: Armed, now: Now) -> Option<Launch> {
        let task = &self.table.awake(armed.task)?.task;
        if task.token != armed.token || task.state != State::Dispatched {
            return None;
        }
        self.change(armed.task, Event::Started, "shard", now)?
            .ok()?;
        self.await_report(armed.task, now);
        let task = &self.table.awake(armed.task)?.task;
        let attempt = task.attempt_limit();
        let time_left = match task.total_until() {
            _ if task.asks_guard() => GUARD_TIME_MAX,
            _ if task.asks_last() || task.verifies() => attempt.min(LAST_QUESTION_MAX),
            // Its time goes on until it is asked for the last time.
            Some(until) if task.action().poll().is_none() => attempt.min(until.since(now.steady)),
            _ => attempt,
        };
        Some(Launch {
            task: task.id,
            topic: task.topic.clone(),
            key: task.key.clone(),
            generation: task.generation,
            stage: task.stage_place(),
            escalated: task.escalated,
            checkpoint: task.checkpoint.clone(),
            attempt: task.attempt,
            token: task.token,
            due_at: task.due.at,
            time_left,
            spec: Arc::clone(&task.spec),
            question: task.question(),
        })
    }

    /// The time for an answer counts from the start, which a slow commit may have put off.
    pub(super) fn await_report(&mut self, id: TaskId, now: Now) {
        let alarms = self.table.change(id, |entry| {
            let before = alarms_of(&entry.task, entry.place);
            let until = report_by(&entry.task, now.mono);
            if let Some(live) = &mut Arc::make_mut(&mut entry.task).live {
                live.report_by = until;
            }
            (before[0], alarms_of(&entry.task, entry.place)[0])
        });
        if let Some((Some(before), Some(after))) = alarms {
            self.wheels.unset(before);
            self.wheels.set(after);
        }
    }

    /// Milliseconds until something is to be done; `None` when nothing is.
    pub fn next_in_ms(&self, now: Now) -> Option<i64> {
        if self.more || !self.to_open.is_empty() {
            return Some(0);
        }
        let doors = self.slots.waits_at_door();
        let doors_look = self.doors_seen.after(DOORS_LOOK);
        [
            doors.then(|| doors_look.since(now.mono).0 as i64),
            self.wheels.next_in_ms(now),
            self.table.far_in_ms(now),
            self.armed_wall
                .first()
                .map(|armed| armed.fire_ms - now.wall.0),
            self.armed_steady
                .first()
                .map(|armed| armed.fire_ms - now.steady.0),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// The door that this task's next attempt would find shut.
fn shut_door(doors: Option<&dyn Doors>, task: &Task) -> Option<Door> {
    let doors = doors?;
    let door = match task.action() {
        _ if task.is_asked_about() => Door::Pushes,
        Action::Handler { name } => Door::Handler(name.clone()),
        Action::Http(_) | Action::Poll(_) => Door::Pushes,
        _ => return None,
    };
    (!doors.takes(&door)).then_some(door)
}

/// So long after its start an attempt without an answer counts as lost.
pub fn report_time(task: &Task) -> DurationMs {
    let grace = task.spec.timeouts.grace;
    let limit = match task.asks_guard() {
        true => GUARD_TIME_MAX,
        false => task.attempt_limit(),
    };
    let parts = [limit, grace, REPORT_MARGIN];
    DurationMs(
        parts
            .iter()
            .fold(0, |sum, part| u64::saturating_add(sum, part.0)),
    )
}

/// When an attempt that starts at `start` counts as lost.
fn report_by(task: &Task, start: MonoMs) -> MonoMs {
    start.after(report_time(task))
}
