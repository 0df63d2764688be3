//! What a shard decides, without an actor, a store, a clock or a thread.
//!
//! ```text
//!  requests ─┐
//!            ├─▶ tasks change in memory ─▶ Step { batch, effects } ─▶ commit ─▶ effects
//!  alarms  ──┘      (task::transition)
//! ```
//!
//! The shell (`shard::actor`) runs a few requests, lets alarms ring ([`ShardCore::advance`]), and closes the
//! step ([`ShardCore::close`]). It commits the batch and only then performs the effects. Whatever is lost in a
//! crash between the two follows again from the state: recovery ([`ShardCore::adopt`]) uses the same function.
//!
//! Invariants: a live task stands in exactly one [`Place`]; nothing starts that is not committed as dispatched;
//! a slot is taken by each task whose attempt an executor of ours runs, and by no other.

mod dispatch;
mod hold;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs, Now, SteadyMs};
use crate::ids::{AttemptNumber, AttemptToken, ShardId, TaskId};
use crate::shard::notes::Notes;
use crate::shard::place::{ARM_AHEAD, Place, Setting, Wheels, alarms_of};
use crate::shard::query::{PageAsk, PagePart, TaskView, page};
use crate::shard::slots::Slots;
use crate::shard::table::TaskTable;
use crate::store::{Batch, Note};
use crate::task::event::{Applied, Event, Refusal};
use crate::task::model::{State, Task};
use crate::task::spec::{TaskKey, TaskSpec, TopicName};
use crate::task::topic::TopicBook;
use crate::task::transition::{Context, apply};

/// An attempt without an answer counts as lost this long after its cut-off and grace.
pub const REPORT_MARGIN: DurationMs = DurationMs::secs(2);

/// A step that has changed this much, in bytes of memory, is committed; more waits for the next. It keeps a commit
/// quick to sync, and far below what one frame of the journal takes.
const STEP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a shard works with.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Attempts of executors of ours at a time.
    pub running_max: usize,
    /// Alarms served in one step, per clock.
    pub alarms_per_step: usize,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self {
            running_max: 512,
            alarms_per_step: 4096,
        }
    }
}

/// What is to be done once the step is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start this attempt at its instant, not before.
    Arm(Armed),
    /// Stop the attempt of this task.
    Stop(TaskId),
    /// The attempt of this task is over.
    Over(TaskId),
    /// So many tasks of this topic can be leased.
    Ready(TopicName, usize),
}

/// A committed attempt that starts at its instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Armed {
    /// Milliseconds of its lane's clock.
    pub fire_ms: i64,
    /// Its task.
    pub task: TaskId,
    /// Its token.
    pub token: AttemptToken,
}

/// An attempt to be handed to an executor now.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its task.
    pub task: TaskId,
    /// Of the task.
    pub topic: TopicName,
    /// Of the task.
    pub key: Option<TaskKey>,
    /// Of the task.
    pub generation: u32,
    /// Its number.
    pub attempt: AttemptNumber,
    /// Its fencing number.
    pub token: AttemptToken,
    /// When the task was due.
    pub due_at: crate::clock::WallMs,
    /// How long it may take.
    pub time_left: DurationMs,
    /// What to do.
    pub spec: Arc<TaskSpec>,
}

/// What one step leaves to be done.
#[derive(Debug)]
pub struct Step {
    /// To be committed; `None` when nothing changed.
    pub batch: Option<Batch>,
    /// To be performed after the commit.
    pub effects: Vec<Effect>,
    /// Alarms are left that were due: another step is to follow at once.
    pub more: bool,
}

/// All that one shard knows. See the module's header.
#[derive(Debug)]
pub struct ShardCore {
    id: ShardId,
    options: CoreOptions,
    pub(super) table: TaskTable,
    pub(super) notes: Notes,
    pub(super) book: Arc<TopicBook>,
    wheels: Wheels,
    armed_wall: BTreeSet<Armed>,
    armed_steady: BTreeSet<Armed>,
    slots: Slots,
    dirty: BTreeSet<TaskId>,
    dirty_bytes: usize,
    effects: Vec<Effect>,
    more: bool,
    draining: bool,
    random: u64,
}

impl ShardCore {
    /// An empty shard.
    pub fn new(id: ShardId, options: CoreOptions, book: Arc<TopicBook>, now: Now) -> Self {
        let slots = Slots::new(options.running_max);
        Self {
            id,
            options,
            table: TaskTable::default(),
            notes: Notes::default(),
            book,
            wheels: Wheels::new(now),
            armed_wall: BTreeSet::new(),
            armed_steady: BTreeSet::new(),
            slots,
            dirty: BTreeSet::new(),
            dirty_bytes: 0,
            effects: Vec::new(),
            more: false,
            draining: false,
            random: 0x9E37_79B9_7F4A_7C15 ^ u64::from(id.0) ^ now.wall.0 as u64,
        }
    }

    /// The shard's number.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        self.table.len()
    }

    // ---------------------------------------------------------------- recovery

    /// Takes in a task as it was stored. What was in flight is settled by its delivery policy.
    pub fn adopt(&mut self, task: Task, now: Now) {
        let id = task.id;
        let (in_flight, resting) = (
            task.state.is_in_flight(),
            task.state.is_ended() || task.state == State::Paused,
        );
        let place = match (in_flight, resting) {
            (true, _) => Place::InFlight,
            (_, true) => Place::AtRest,
            _ => Place::Wheel,
        };
        if in_flight && task.spec.action.is_dispatched() {
            self.slots.take(&task.topic, id);
        }
        for alarm in alarms_of(&task, place).into_iter().flatten() {
            self.wheels.set(alarm);
        }
        self.table.insert(task, place, now.mono);
        if in_flight {
            // Never refused: every task in flight can be recovered.
            let _ = self.change(id, Event::Recovered, "recovery", now);
        }
    }

    /// Takes in a note as it was stored.
    pub fn adopt_note(&mut self, note: Note) {
        let alarm = self.notes.adopt(note);
        self.wheels.set(alarm);
    }

    // ---------------------------------------------------------------- changing tasks

    /// Lets one event happen to a task. `None` when there is no such task.
    pub fn change(
        &mut self,
        id: TaskId,
        event: Event,
        by: &str,
        now: Now,
    ) -> Option<Result<Applied, Refusal>> {
        let entry = self.table.get(id)?;
        let retention = self.book.get(&entry.task.topic).settings.retention;
        let random = self.next_random();
        let ctx = Context {
            now,
            retention,
            random,
            by,
        };
        let entry = self.table.get(id)?;
        let (state, next, place) = (entry.task.state, entry.task.next, entry.place);
        let first_due = entry.task.first_due;
        let alarms = alarms_of(&entry.task, place);
        let done = self.table.change(id, now.mono, |entry| {
            let done = apply(&mut entry.task, event, &ctx);
            if done.is_ok() {
                let task = &entry.task;
                entry.place = match task.state {
                    State::Dispatched | State::Running => Place::InFlight,
                    State::Paused | State::Succeeded | State::Dead | State::Cancelled => {
                        Place::AtRest
                    }
                    // A new due time begins in the wheel, even if it is the same instant.
                    State::Pending | State::Retrying
                        if (task.next, task.first_due) == (next, first_due)
                            && matches!(place, Place::Ready | Place::Queued | Place::Held) =>
                    {
                        place
                    }
                    State::Pending | State::Retrying => Place::Wheel,
                };
            }
            done
        })?;
        let applied = match done {
            Ok(applied) => applied,
            Err(refusal) => return Some(Err(refusal)),
        };
        self.keep_in_step(id, state, next.fire_ms, place, alarms, now);
        match applied {
            Applied::Unchanged | Applied::InMemory => {}
            Applied::Changed => {
                self.mark(id);
                let goes_on = self
                    .table
                    .get(id)
                    .is_some_and(|entry| entry.task.state.is_in_flight());
                if state.is_in_flight() && !goes_on {
                    self.effects.push(Effect::Over(id));
                }
            }
            Applied::ChangedAndStop(_) => {
                self.mark(id);
                self.effects.push(Effect::Stop(id));
            }
            Applied::Gone => self.forget(id, now.mono),
        }
        Some(Ok(applied))
    }

    /// After a change: places, alarms and counts that followed from the task as it was give way to those that
    /// follow from it now.
    fn keep_in_step(
        &mut self,
        id: TaskId,
        state: State,
        fire_ms: i64,
        place: Place,
        alarms: [Option<Setting>; 2],
        now: Now,
    ) {
        let Some(entry) = self.table.get(id) else {
            return;
        };
        let (task, new_place) = (&entry.task, entry.place);
        let new_alarms = alarms_of(task, new_place);
        let (topic, new_state, lateness) = (task.topic.clone(), task.state, task.lateness_ms);
        let dispatched = task.spec.action.is_dispatched();
        for alarm in alarms.into_iter().flatten() {
            if !new_alarms.contains(&Some(alarm)) {
                self.wheels.unset(alarm);
            }
        }
        for alarm in new_alarms.into_iter().flatten() {
            if !alarms.contains(&Some(alarm)) {
                self.wheels.set(alarm);
            }
        }
        if place != new_place {
            self.leave(id, &topic, fire_ms, place, now.mono);
        }
        if dispatched && state.is_in_flight() && !new_state.is_in_flight() {
            self.slots.give_back(&topic, id);
        }
        if dispatched && !state.is_in_flight() && new_state.is_in_flight() {
            self.slots.take(&topic, id);
        }
        let line = self.table.topic_mut(&topic, now.mono);
        if !state.is_ended() && new_state.is_ended() {
            line.count_ended(new_state, now.mono);
        }
        let started = state != State::Running && new_state == State::Running;
        let ran_in_place =
            state != State::Succeeded && new_state == State::Succeeded && !state.is_in_flight();
        if started || (ran_in_place && lateness.is_some()) {
            line.count_started(lateness.unwrap_or(0), now.mono);
        }
    }

    fn leave(&mut self, id: TaskId, topic: &TopicName, fire_ms: i64, place: Place, now: MonoMs) {
        match place {
            Place::Ready => {
                self.table
                    .topic_mut(topic, now)
                    .ready
                    .remove(&(fire_ms, id));
            }
            Place::Held => {
                self.table.topic_mut(topic, now).held.remove(&(fire_ms, id));
            }
            Place::Queued => {
                self.slots.leave(topic, fire_ms, id);
            }
            Place::Wheel | Place::InFlight | Place::AtRest => {}
        }
    }

    /// Puts a due task, whose alarm has rung, into `place`.
    fn stand(&mut self, id: TaskId, place: Place, now: Now) {
        let _ = self.change(id, Event::CameDue, "shard", now);
        let Some(Some((topic, fire_ms))) = self.table.change(id, now.mono, |entry| {
            let waits = matches!(entry.task.state, State::Pending | State::Retrying);
            waits.then(|| {
                entry.place = place;
                (entry.task.topic.clone(), entry.task.next.fire_ms)
            })
        }) else {
            return;
        };
        match place {
            Place::Ready => {
                self.table
                    .topic_mut(&topic, now.mono)
                    .ready
                    .insert((fire_ms, id));
                self.effects.push(Effect::Ready(topic, 1));
            }
            Place::Held => {
                self.table
                    .topic_mut(&topic, now.mono)
                    .held
                    .insert((fire_ms, id));
            }
            Place::Queued => {
                self.slots.wait(&topic, fire_ms, id);
            }
            Place::Wheel | Place::InFlight | Place::AtRest => {}
        }
    }

    /// Puts a task that waited elsewhere, and was taken from there, back into the wheel.
    fn back_to_wheel(&mut self, id: TaskId, now: Now) {
        let alarms = self.table.change(id, now.mono, |entry| {
            entry.place = Place::Wheel;
            alarms_of(&entry.task, Place::Wheel)
        });
        for alarm in alarms.into_iter().flatten().flatten() {
            self.wheels.set(alarm);
        }
    }

    /// Adds a new task.
    pub(super) fn add(&mut self, task: Task, now: Now) {
        let id = task.id;
        self.table
            .topic_mut(&task.topic, now.mono)
            .count_created(now.mono);
        for alarm in alarms_of(&task, Place::Wheel).into_iter().flatten() {
            self.wheels.set(alarm);
        }
        self.table.insert(task, Place::Wheel, now.mono);
        self.mark(id);
    }

    fn forget(&mut self, id: TaskId, now: MonoMs) {
        if let Some(entry) = self.table.remove(id, now) {
            for alarm in alarms_of(&entry.task, entry.place).into_iter().flatten() {
                self.wheels.unset(alarm);
            }
            self.mark(id);
        }
    }

    /// The task, if this request has changed it before.
    pub(super) fn done_before(&self, id: TaskId, request: u64, now: Now) -> Option<TaskView> {
        let is_done = self.table.get(id)?.task.requests.contains(&request);
        is_done.then(|| self.view_of(id, now)).flatten()
    }

    /// Notes, in the same commit as the change itself, that this request has changed the task.
    pub(super) fn note_request(&mut self, id: TaskId, request: u64, now: Now) {
        let noted = self
            .table
            .change(id, now.mono, |entry| entry.task.note_request(request));
        if noted.is_some() {
            self.mark(id);
        }
    }

    /// The task is to be written at the end of this step.
    fn mark(&mut self, id: TaskId) {
        if self.dirty.insert(id) {
            self.dirty_bytes += self.table.get(id).map_or(0, |entry| entry.task.weight());
        }
    }

    /// Whether this step has changed as much as one commit should hold. What is left waits for the next.
    pub fn is_full(&self) -> bool {
        self.dirty_bytes >= STEP_BYTES_MAX
    }

    pub(super) fn set_alarm(&mut self, alarm: Setting) {
        self.wheels.set(alarm);
    }

    fn next_random(&mut self) -> f64 {
        // splitmix64: spread is all that jitter needs.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    // ---------------------------------------------------------------- answers

    /// A task as it is shown.
    pub fn view(&self, task: &Task, place: Place, now: Now) -> TaskView {
        let held = self.book.get(&task.topic).is_held();
        let due = task.next.is_reached(now);
        let blocked_by = match (task.state, place) {
            (State::Pending | State::Retrying, _) if due && held => Some("topic_paused"),
            (State::Pending | State::Retrying, Place::Queued) => Some("executor_full"),
            (State::Pending | State::Retrying, Place::Ready) => Some("no_worker"),
            _ => None,
        };
        TaskView {
            task: task.clone(),
            blocked_by,
            shard: self.id,
            remaining_ms: if task.state.is_ended() {
                0
            } else {
                task.due.remaining(now).0
            },
        }
    }

    /// A task as it is shown, by id.
    pub fn view_of(&self, id: TaskId, now: Now) -> Option<TaskView> {
        let entry = self.table.get(id)?;
        Some(self.view(&entry.task, entry.place, now))
    }

    /// One page of a list.
    pub fn page(&self, ask: &PageAsk, now: Now) -> PagePart {
        page(&self.table, ask, |task| {
            let place = self
                .table
                .get(task.id)
                .map_or(Place::AtRest, |entry| entry.place);
            self.view(task, place, now)
        })
    }

    /// Closes the step: what changed, as one batch, and what follows from it.
    pub fn close(&mut self, steady: SteadyMs) -> Step {
        let mut batch = Batch::new(steady);
        self.dirty_bytes = 0;
        for id in std::mem::take(&mut self.dirty) {
            match self.table.get(id) {
                Some(entry) => batch.put_task(&entry.task),
                None => batch.remove_task(id),
            }
        }
        self.notes.write_changes(&mut batch);
        Step {
            batch: (!batch.is_empty()).then_some(batch),
            effects: std::mem::take(&mut self.effects),
            more: self.more,
        }
    }
}

// Armed no earlier than a dispatch can have been committed for.
const _: () = assert!(ARM_AHEAD.0 <= 20);

#[cfg(test)]
mod tests;
