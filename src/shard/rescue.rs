//! The rescue sweep: a second net under what is on its way.
//!
//! ```text
//!  every minute, over what is in a middle state:
//!   an attempt whose answer was due half a minute ago    ─▶ lost: as if its alarm had rung
//!   one that was handed out and never started            ─▶ the action: alert, retry or dead
//!   due, and not started for as long                     ─▶ alert, by topic
//!  at each look: due tasks, free slots, and no start     ─▶ no progress, since when
//! ```
//!
//! An attempt that has started has an end of its own, by its limits or its last heartbeat; so does a wait. What has
//! none is to be handed out and not started, and to be due and not taken: these have a longest dwell time.
//!
//! Leases, answers and due times are alarms like all others, so a sweep that moves anything has found a fault of ours;
//! it says so in the log. It looks at what is in memory only: attempts that are out, and the first of each line. One
//! that fails is counted, and the sweep goes on. A few at a time, between steps, so that it keeps nobody waiting.

use std::collections::BTreeMap;

use crate::clock::{DurationMs, MonoMs, Now};
use crate::ids::TaskId;
use crate::shard::core::{ShardCore, report_time};
use crate::shard::place::Place;
use crate::task::event::Event;
use crate::task::history::ErrorNote;
use crate::task::model::State;

/// What should have rung so long ago was passed over.
const PASSED_OVER: DurationMs = DurationMs::secs(30);
/// Attempts looked at in one step.
const LOOKS_PER_STEP: usize = 128;

/// What is done with an attempt that stays in its state longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DwellAction {
    /// It is told.
    #[default]
    Alert,
    /// It is handed back, and handed out again.
    Retry,
    /// The task is dead.
    Dead,
}

/// How the rescue sweep works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RescueOptions {
    /// From one sweep to the next.
    pub every: DurationMs,
    /// How long a task may stay in a middle state, beyond what its own limits allow.
    pub dwell: DurationMs,
    /// What follows then.
    pub on_dwell: DwellAction,
}

impl Default for RescueOptions {
    fn default() -> Self {
        Self {
            every: DurationMs::secs(60),
            dwell: DurationMs::secs(600),
            on_dwell: DwellAction::Alert,
        }
    }
}

/// What sweeps have come to since the shard's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RescueCounts {
    /// Sweeps.
    pub sweeps: u64,
    /// Attempts looked at.
    pub looked_at: u64,
    /// Of them, moved on: lost, or by the action for those that stayed too long.
    pub moved: u64,
    /// Of them, not to be moved on though they had to be.
    pub failed: u64,
    /// Those of whom was told that they stay too long: attempts, topics whose due tasks do not start, and tasks with a
    /// clock that only tells of it.
    pub alerts: u64,
    /// Polls whose time was over, and which were given up after they had been asked once more.
    pub given_up: u64,
    /// How long there have been due tasks and free slots, and nothing started; 0 while there is progress.
    pub no_progress_ms: u64,
}

/// Where the rescue sweep is.
#[derive(Debug, Default)]
pub struct Rescue {
    options: RescueOptions,
    next: Option<MonoMs>,
    left: Vec<TaskId>,
    counts: RescueCounts,
    /// Attempts that were started.
    started: u64,
    stuck: Option<Stuck>,
}

/// Since when nothing has started though it could.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    since: MonoMs,
    started: u64,
}

impl Rescue {
    /// A sweep that works so.
    pub fn new(options: RescueOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// An attempt was started.
    pub fn note_start(&mut self) {
        self.started += 1;
    }

    /// A clock of a task has run out, of which only is to be told.
    pub fn note_alert(&mut self) {
        self.counts.alerts += 1;
    }

    /// A poll was given up.
    pub fn note_given_up(&mut self) {
        self.counts.given_up += 1;
    }

    /// Whether the sweep goes on.
    pub fn is_sweeping(&self) -> bool {
        !self.left.is_empty()
    }

    /// What it has come to.
    pub fn counts(&self) -> RescueCounts {
        self.counts
    }
}

impl ShardCore {
    /// Looks at the next few attempts, or begins a sweep when it is time for one.
    pub(super) fn rescue(&mut self, now: Now) {
        if self.rescue.left.is_empty() {
            let next = *self
                .rescue
                .next
                .get_or_insert(now.mono.after(self.rescue.options.every));
            if now.mono < next {
                return;
            }
            self.rescue.next = Some(now.mono.after(self.rescue.options.every));
            self.rescue.counts.sweeps += 1;
            self.rescue.left = self.table.awake_in(Place::InFlight);
            self.look_at_lines(now);
        }
        for _ in 0..LOOKS_PER_STEP {
            let Some(id) = self.rescue.left.pop() else {
                break;
            };
            self.rescue.counts.looked_at += 1;
            self.look_at_attempt(id, now);
        }
    }

    fn look_at_attempt(&mut self, id: TaskId, now: Now) {
        let Some(entry) = self.table.awake(id) else {
            return;
        };
        if entry.place != Place::InFlight {
            return;
        }
        let task = &entry.task;
        let Some(live) = task.live.as_ref().filter(|_| task.state.is_in_flight()) else {
            self.rescue.counts.failed += 1;
            tracing::error!(shard = %self.id(), task = %id, state = %task.state, "counts as in flight and has no attempt");
            return;
        };
        let token = task.token;
        if live.report_by.after(PASSED_OVER) <= now.mono {
            tracing::error!(shard = %self.id(), task = %id, "an attempt without an answer was passed over; it counts as lost now");
            let event = match task.state {
                // What never started can't be late with its answer.
                State::Dispatched => Event::HandedBack { was_started: false },
                _ => Event::Overdue { token },
            };
            return self.move_on(id, event, now);
        }
        // Counted on the clock that no step moves.
        let stays = now.mono.after(report_time(task)).since(live.report_by);
        if task.state != State::Dispatched || stays <= self.rescue.options.dwell {
            return;
        }
        self.rescue.counts.alerts += 1;
        tracing::warn!(shard = %self.id(), task = %id, for_ms = stays.0, "an attempt was handed out and has not started");
        match self.rescue.options.on_dwell {
            DwellAction::Alert => {}
            DwellAction::Retry => {
                let was_started = false;
                self.move_on(id, Event::HandedBack { was_started }, now);
            }
            DwellAction::Dead => {
                let error = ErrorNote {
                    code: "dwell".to_owned(),
                    message: format!("handed out {} s ago and not started", stays.0 / 1000),
                };
                self.move_on(id, Event::Fail { error }, now);
            }
        }
    }

    fn move_on(&mut self, id: TaskId, event: Event, now: Now) {
        let done = self.change(id, event, "rescue", now);
        match done {
            Some(Ok(_)) => self.rescue.counts.moved += 1,
            Some(Err(refused)) => {
                self.rescue.counts.failed += 1;
                tracing::error!(shard = %self.id(), task = %id, %refused, "a task that had to be moved on could not be");
            }
            None => self.rescue.counts.failed += 1,
        }
    }

    /// The first of each line: if it has been due for too long, nobody may be there to take it.
    fn look_at_lines(&mut self, now: Now) {
        let dwell = self.rescue.options.dwell;
        // A topic may have lines for several hosts: it is told of once.
        let mut late = BTreeMap::new();
        for (topic, fire_ms, id) in self.first_in_lines() {
            if fire_ms.saturating_add(dwell.0 as i64) < now.wall.0 {
                late.entry(topic.clone()).or_insert(id);
            }
        }
        for (topic, task) in late {
            self.rescue.counts.alerts += 1;
            tracing::warn!(shard = %self.id(), %topic, %task, "due for longer than it should be, and not started: is anybody there to take it?");
        }
    }

    /// Due tasks, free slots, and no start: how long that has been so.
    pub(super) fn watch_progress(&mut self, now: Now) {
        if self.slots.nobody_waits() || self.draining {
            self.rescue.stuck = None;
            self.rescue.counts.no_progress_ms = 0;
            return;
        }
        let started = self.rescue.started;
        let stuck = self.rescue.stuck.filter(|stuck| stuck.started == started);
        let could = self.slots.could_serve();
        let since = stuck
            .filter(|_| could)
            .map_or(now.mono, |stuck| stuck.since);
        self.rescue.stuck = Some(Stuck { since, started });
        self.rescue.counts.no_progress_ms = now.mono.since(since).0;
    }
}
