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
//! crash between the two follows again from the state: recovery ([`ShardCore::recover`]) uses the same function.
//!
//! Invariants: a live task stands in exactly one [`Place`]; nothing starts that is not committed as dispatched;
//! a slot is taken by each task whose attempt an executor of ours runs, and by no other.

mod dispatch;
mod guards;
mod hold;
mod stages;
mod watch;

pub use dispatch::report_time;
pub use guards::GuardCounts;
pub use watch::{Happened, Moment};

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::clock::{DurationMs, MonoMs, Now, WallMs};
use crate::executor::Doors;
use crate::ids::{AttemptNumber, AttemptToken, ShardId, TaskId};
use crate::shard::attempts::Running;
use crate::shard::audit::{AuditCounts, Auditor};
use crate::shard::notes::Notes;
use crate::shard::place::{ARM_AHEAD, Place, Setting, Wheels, alarms_of};
use crate::shard::query::{PageAsk, PagePart, Slim, TaskView, page};
use crate::shard::rescue::{Rescue, RescueCounts, RescueOptions};
use crate::shard::shelf::FoldAlong;
use crate::shard::slots::{Track, Tracks};
use crate::shard::snapshot::{Newer, Snapshot};
use crate::shard::table::{CancelAsleep, Entry, TableOptions, TaskTable};
use crate::shard::tally::{Tallies, holder};
use crate::store::chunk::{ChunkId, Fold, Folded, Memtable, ReadChunks};
use crate::store::codec::decode_note;
use crate::store::{Batch, Begun, Change, Note, RecordKey, StoreError, Stored};
use crate::task::clocks::TaskClock;
use crate::task::event::{Applied, Event, Refusal};
use crate::task::model::{State, Task, WaitingFor};
use crate::task::spec::{HostId, RawJson, TaskKey, TaskSpec, TopicName};
use crate::task::topic::TopicBook;
use crate::task::transition::{Context, apply};

/// An attempt without an answer counts as lost this long after its cut-off and grace.
pub const REPORT_MARGIN: DurationMs = DurationMs::secs(2);

/// A step that has changed this much, in bytes of memory, is committed; more waits for the next. It keeps a commit
/// quick to sync, and far below what one frame of the journal takes.
const STEP_BYTES_MAX: usize = 1024 * 1024;

/// About what a removal and a cancel of a sleeping task come to, in bytes.
const REMOVAL_BYTES: usize = 32;
const CANCEL_BYTES: usize = 128;

/// What a shard works with.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Attempts of executors of ours at a time.
    pub running_max: usize,
    /// Of them, pushes to one host.
    pub per_host_max: usize,
    /// Of them, commands.
    pub commands_max: usize,
    /// Questions at a time, beside them: of polls those that may be asked again, and last ones; whether something was
    /// done, and whether something is to fire. So many of each.
    pub questions_max: usize,
    /// Alarms served in one step, per clock.
    pub alarms_per_step: usize,
    /// How its tasks are kept.
    pub table: TableOptions,
    /// How what is on its way is looked after.
    pub rescue: RescueOptions,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self {
            running_max: 512,
            per_host_max: 128,
            commands_max: 16,
            questions_max: 256,
            alarms_per_step: 4096,
            table: TableOptions::default(),
            rescue: RescueOptions::default(),
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
    /// The place of the task's present stage, if it has stages.
    pub stage: Option<u8>,
    /// The clock by which it was escalated.
    pub escalated: Option<TaskClock>,
    /// How far the attempt before had got.
    pub checkpoint: Option<RawJson>,
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
    /// The question about it that is asked, if it is one.
    pub question: Option<WaitingFor>,
}

/// Where a task stood before a change.
struct Before {
    state: State,
    fire_ms: i64,
    place: Place,
    track: Track,
    ran_here: bool,
    alarms: [Option<Setting>; 2],
}

/// What one step leaves to be done.
#[derive(Debug)]
pub struct Step {
    /// To be committed; `None` when nothing changed.
    pub batch: Option<Batch>,
    /// How much folding this commit is to take along.
    pub fold_along: FoldAlong,
    /// To be handed to the store behind the batch.
    pub fold: Option<Fold>,
    /// Of no use any more; to be dropped where it keeps nobody waiting.
    pub scrap: Option<Arc<Memtable>>,
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
    pub(super) slots: Tracks,
    /// Changed or removed in this step; one may stand here twice.
    dirty: Vec<TaskId>,
    dirty_bytes: usize,
    /// What a task's record came to of late, in bytes.
    record_bytes: usize,
    pub(super) auditor: Auditor,
    pub(super) rescue: Rescue,
    guards: GuardCounts,
    /// What workers hold.
    pub(super) workers: Tallies,
    /// Turns that topics have had with workers.
    pub(super) turns: u64,
    /// Chunks whose time has come, waiting to be opened.
    to_open: BTreeSet<(i64, ChunkId)>,
    /// Found when the shard was recovered, and set aside.
    damaged: Vec<String>,
    /// Who waits for a snapshot.
    wanted: Vec<oneshot::Sender<Snapshot>>,
    /// Snapshots of the fold at work: handed out once it is durable.
    taken: Vec<(oneshot::Sender<Snapshot>, Snapshot)>,
    effects: Vec<Effect>,
    more: bool,
    pub(super) draining: bool,
    random: u64,
    /// Who is asked whether an executor takes anything; nobody, where none is reached.
    doors: Option<Arc<dyn Doors>>,
    doors_seen: MonoMs,
    /// What has happened, if the shard is only played through.
    happened: Option<Vec<Happened>>,
}

impl ShardCore {
    /// An empty shard.
    pub fn new(id: ShardId, options: CoreOptions, book: Arc<TopicBook>, now: Now) -> Self {
        let slots = Tracks::new(
            options.running_max,
            options.questions_max,
            options.per_host_max,
            options.commands_max,
        );
        let table = TaskTable::new(options.table);
        let rescue = Rescue::new(options.rescue);
        Self {
            id,
            options,
            table,
            notes: Notes::default(),
            book,
            wheels: Wheels::new(now),
            armed_wall: BTreeSet::new(),
            armed_steady: BTreeSet::new(),
            slots,
            dirty: Vec::new(),
            dirty_bytes: 0,
            record_bytes: 256,
            auditor: Auditor::default(),
            rescue,
            guards: GuardCounts::default(),
            workers: Tallies::default(),
            turns: 0,
            to_open: BTreeSet::new(),
            damaged: Vec::new(),
            wanted: Vec::new(),
            taken: Vec::new(),
            effects: Vec::new(),
            more: false,
            draining: false,
            random: 0x9E37_79B9_7F4A_7C15 ^ u64::from(id.0) ^ now.wall.0 as u64,
            doors: None,
            doors_seen: now.mono,
            happened: None,
        }
    }

    /// Whom to ask, from now on, whether an executor takes anything.
    pub fn ask_at(&mut self, doors: Arc<dyn Doors>) {
        self.doors = Some(doors);
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

    /// Begins to take in what a store holds. Its chunks are read from `reader`, and by others from `beside`.
    pub fn begin_recovery(
        &mut self,
        begun: Begun,
        reader: Arc<dyn ReadChunks>,
        beside: Arc<dyn ReadChunks>,
    ) {
        self.table.set_seed(begun.seed);
        let shelf = self.table.shelf_mut();
        shelf.note_files_read(begun.files_read);
        shelf.read_from(reader, beside);
    }

    /// Takes in something as it was stored.
    ///
    /// # Errors
    /// When a committed change does not read back.
    pub fn recover(&mut self, stored: Stored, now: Now) -> Result<(), StoreError> {
        match stored {
            Stored::Chunk(index, dead) => {
                if let Some(alarm) = self.table.recover_chunk(&index, dead, now) {
                    self.wheels.set(alarm);
                }
            }
            Stored::Damaged { place, why } => {
                tracing::error!(
                    shard = %self.id, place, why,
                    "a stored value does not read back; it is set aside. `duetime store doctor` tells more"
                );
                self.damaged.push(format!("{place}: {why}"));
            }
            Stored::Note(note) => self.adopt_note(note),
            Stored::Change(key, change) => {
                if let Some(note) = note_of(key, &change)? {
                    self.adopt_note(note);
                }
                // The others end by their own time.
                if let (RecordKey::Late(key), Change::Remove) = (key, &change) {
                    self.notes.late.take_out(key);
                }
                self.table.recover_change(key, change, now)?;
            }
        }
        Ok(())
    }

    /// All is taken in: what was in flight and still runs goes on, the rest is settled by its delivery policy.
    pub fn end_recovery(&mut self, running: &Running, now: Now) {
        let (alarms, in_flight) = self.table.recovered(now);
        for alarm in alarms {
            self.wheels.set(alarm);
        }
        for id in in_flight {
            let Some(entry) = self.table.wake(id) else {
                continue;
            };
            let task = Arc::clone(&entry.task);
            let (token, runs_here) = (task.token, task.runs_here());
            self.workers.recover(&task);
            let alarms = alarms_of(&task, Place::InFlight);
            if runs_here {
                let slots = self.slots.of_mut(Track::of(&task));
                slots.take(&task.topic, task.host(), id);
            }
            for alarm in alarms.into_iter().flatten() {
                self.wheels.set(alarm);
            }
            self.table.set_alarmed(id, true);
            match running.get(&id) {
                Some((runs, started)) if *runs == token && runs_here => self.adopt(id, *started),
                // Never refused: every task in flight can be recovered.
                _ => drop(self.change(id, Event::Recovered, "recovery", now)),
            }
        }
    }

    /// An attempt that an earlier owner of this process has started goes on as it was.
    fn adopt(&mut self, id: TaskId, started: Now) {
        let _ = self.change(id, Event::Started, "recovery", started);
        self.await_report(id, started);
    }

    /// Whether this is the present attempt of a task, and under way.
    pub fn is_present(&self, id: TaskId, token: AttemptToken) -> bool {
        let task = self.table.awake(id).map(|entry| &entry.task);
        task.is_some_and(|task| task.state.is_in_flight() && task.token == token)
    }

    /// Takes in a note as it was stored.
    pub fn adopt_note(&mut self, note: Note) {
        let alarm = self.notes.adopt(note);
        self.wheels.set(alarm);
    }

    /// What the auditor has seen.
    pub fn audited(&self) -> AuditCounts {
        self.auditor.counts()
    }

    /// What the rescue sweeps have come to.
    pub fn rescued(&self) -> RescueCounts {
        self.rescue.counts()
    }

    /// The first of each line of due tasks that wait to be taken, by a worker or by an executor, and the time that it
    /// was due to start at.
    pub(super) fn first_in_lines(&self) -> impl Iterator<Item = (&TopicName, i64, TaskId)> {
        let ready = self.table.topics();
        let ready = ready.filter_map(|line| {
            let (fire_ms, id) = *line.ready.first()?;
            Some((&line.name, fire_ms, id))
        });
        ready.chain(self.slots.heads())
    }

    /// What guards have answered.
    pub fn guarded(&self) -> GuardCounts {
        self.guards
    }

    /// What did not read back when the shard was recovered.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// The error of the store after which this core is of no use any more.
    pub fn fault(&mut self) -> Option<StoreError> {
        self.table.fault()
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
        let entry = self.table.wake(id)?;
        let (state, next, place) = (entry.task.state, entry.task.next, entry.place);
        let topic = entry.task.topic.clone();
        let held_by = holder(&entry.task).map(str::to_owned);
        let is_leased = matches!(event, Event::Leased { .. });
        let asked = what_is_asked(&entry.task);
        let answered = guards::answer_in(&event, &entry.task);
        let (track, ran_here) = (Track::of(&entry.task), entry.task.runs_here());
        let alarms = alarms_of(&entry.task, place);
        let alarms = match self.table.is_alarmed(id) {
            true => alarms,
            false => [None, None],
        };
        let retention = self.book.get(&topic).settings.retention;
        let random = self.next_random();
        let ctx = Context {
            now,
            retention,
            random,
            by,
        };
        let came_due = matches!(event, Event::CameDue);
        let watched = self.begin_watching(id, &event);
        let done = self.table.change(id, |entry| {
            let task = Arc::make_mut(&mut entry.task);
            let done = apply(task, event, &ctx);
            if done.is_ok() {
                entry.place = match task.state {
                    State::Dispatched | State::Running => Place::InFlight,
                    State::Paused | State::Succeeded | State::Dead | State::Cancelled => {
                        Place::AtRest
                    }
                    // What is asked for anew begins in the wheel, even if it is due at the same instant.
                    State::Pending | State::Retrying
                        if came_due || what_is_asked(task) == asked && place.is_due() =>
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
        if (held_by.is_some() || is_leased)
            && let Some(task) = self.table.awake(id).map(|entry| &*entry.task)
        {
            self.workers.note(held_by.as_deref(), task, now);
        }
        self.note_guard(id, answered);
        self.end_watching(id, watched, now);
        // What sleeps in a chunk and stays as it is goes on without an alarm of its own.
        if applied != Applied::Unchanged || self.table.is_alarmed(id) {
            let is_written = matches!(applied, Applied::Changed | Applied::ChangedAndStop(_));
            let before = Before {
                state,
                fire_ms: next.fire_ms,
                place,
                track,
                ran_here,
                alarms,
            };
            self.keep_in_step(id, &before, is_written, now);
        }
        match applied {
            Applied::Unchanged | Applied::InMemory => {}
            Applied::Changed => {
                self.mark(id);
                let entry = self.table.awake(id);
                let goes_on = entry.is_some_and(|entry| match ran_here {
                    true => entry.task.runs_here(),
                    false => entry.task.state.is_in_flight(),
                });
                if state.is_in_flight() && !goes_on {
                    self.effects.push(Effect::Over(id));
                }
            }
            Applied::ChangedAndStop(_) => {
                self.mark(id);
                self.effects.push(Effect::Stop(id));
            }
            Applied::Gone => self.forget(id),
        }
        let task = self.table.awake(id).map(|entry| &entry.task);
        // Dead, and settled as succeeded, is another end.
        if task.is_some_and(|it| it.calls_back() && it.state.is_ended() && it.state != state) {
            self.call_back(id, now);
        }
        Some(Ok(applied))
    }

    /// After a change: places, alarms and counts that followed from the task as it was give way to those that
    /// follow from it now.
    fn keep_in_step(&mut self, id: TaskId, before: &Before, is_written: bool, now: Now) {
        let (state, place, alarms) = (before.state, before.place, before.alarms);
        let Some(entry) = self.table.awake(id) else {
            return;
        };
        let (task, new_place) = (&entry.task, entry.place);
        let mut new_alarms = alarms_of(task, new_place);
        let (topic, new_state, lateness) = (task.topic.clone(), task.state, task.lateness_ms);
        let (track, runs_here) = (Track::of(task), task.runs_here());
        let takes_slot = !before.ran_here && runs_here;
        let host = takes_slot.then(|| task.host()).flatten();
        // A record that is written anew stands in memory, and its chunk will have an alarm for it.
        if let [Some(alarm), None] = new_alarms
            && is_written
            && self.table.puts_off(alarm, now)
        {
            new_alarms = [None, None];
            self.table.set_alarmed(id, false);
        } else {
            self.table.set_alarmed(id, true);
        }
        for alarm in alarms.into_iter().flatten() {
            if !new_alarms.contains(&Some(alarm)) {
                self.wheels.unset(alarm);
            }
        }
        // Also one that was there: it may just have rung, and what comes next be due at the same instant.
        for alarm in new_alarms.into_iter().flatten() {
            self.wheels.set(alarm);
        }
        if place != new_place {
            self.leave(id, &topic, before, now.mono);
        }
        if before.ran_here && !runs_here {
            self.slots.of_mut(before.track).give_back(&topic, id);
        }
        if takes_slot {
            self.slots.of_mut(track).take(&topic, host, id);
        }
        if before.track == Track::LastQuestions && new_state == State::Dead && !state.is_ended() {
            self.rescue.note_given_up();
            tracing::warn!(shard = %self.id, task = %id, %topic, "a poll was given up: its time is over, and it was asked once more");
        }
        let line = self.table.topic_mut(&topic, now.mono);
        if !state.is_ended() && new_state.is_ended() {
            line.count_ended(new_state, now.mono);
        }
        let started =
            state != State::Running && new_state == State::Running && track != Track::Guards;
        let ran_in_place =
            state != State::Succeeded && new_state == State::Succeeded && !state.is_in_flight();
        if started || (ran_in_place && lateness.is_some()) {
            line.count_started(lateness.unwrap_or(0), now.mono);
            self.rescue.note_start();
        }
    }

    fn leave(&mut self, id: TaskId, topic: &TopicName, before: &Before, now: MonoMs) {
        let fire_ms = before.fire_ms;
        match before.place {
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
                self.slots.of_mut(before.track).leave(topic, fire_ms, id);
            }
            Place::Wheel | Place::InFlight | Place::AtRest | Place::Awaiting => {}
        }
    }

    /// Puts a due task, whose alarm has rung, into `place`.
    fn stand(&mut self, id: TaskId, place: Place, now: Now) {
        let _ = self.change(id, Event::CameDue, "shard", now);
        let Some(Some((topic, fire_ms, track))) = self.table.change(id, |entry| {
            let waits = matches!(entry.task.state, State::Pending | State::Retrying);
            waits.then(|| {
                let task = &entry.task;
                (task.topic.clone(), task.next.fire_ms, Track::of(task))
            })
        }) else {
            return;
        };
        self.put_into(id, place);
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
                self.slots.of_mut(track).wait(&topic, fire_ms, id);
            }
            Place::Wheel | Place::InFlight | Place::AtRest | Place::Awaiting => {}
        }
    }

    /// Puts a task that waited elsewhere, and was taken from there, back into the wheel.
    fn back_to_wheel(&mut self, id: TaskId) {
        self.put_into(id, Place::Wheel);
        self.table.set_alarmed(id, true);
    }

    /// Puts a task whose alarm has rung, or that had none, into another place, with the alarms that it has there.
    fn put_into(&mut self, id: TaskId, place: Place) {
        let alarms = self.table.change(id, |entry| {
            let before = alarms_of(&entry.task, entry.place);
            entry.place = place;
            [before, alarms_of(&entry.task, place)]
        });
        let Some([before, after]) = alarms else {
            return;
        };
        for alarm in before.into_iter().flatten() {
            if !after.contains(&Some(alarm)) {
                self.wheels.unset(alarm);
            }
        }
        for alarm in after.into_iter().flatten() {
            self.wheels.set(alarm);
        }
    }

    /// Adds a new task. One that is due much later is written here and now, and sleeps.
    pub(super) fn add(&mut self, task: Task, now: Now) {
        let id = task.id;
        self.table
            .topic_mut(&task.topic, now.mono)
            .count_created(now.mono);
        let alarms = alarms_of(&task, Place::Wheel);
        if let [Some(alarm), None] = alarms
            && self.table.puts_off(alarm, now)
        {
            self.dirty_bytes += self.table.insert_asleep(&task, now.mono);
            return;
        }
        self.table.insert(task, Place::Wheel, now.mono);
        for alarm in alarms.into_iter().flatten() {
            self.wheels.set(alarm);
        }
        self.mark(id);
    }

    fn forget(&mut self, id: TaskId) {
        if let Some(Entry { task, place, .. }) = self.table.read(id)
            && self.table.is_alarmed(id)
        {
            for alarm in alarms_of(&task, place).into_iter().flatten() {
                self.wheels.unset(alarm);
            }
        }
        if self.table.remove(id).is_some() {
            self.notes.late.forget_task(id);
            self.dirty.push(id);
            self.dirty_bytes += REMOVAL_BYTES;
        }
    }

    /// Cancels a task whose record is in a chunk, without reading it. `None` if it has to be done the other way.
    pub(super) fn cancel_asleep(
        &mut self,
        id: TaskId,
        reason: &str,
        by: &str,
        request: Option<u64>,
        now: Now,
    ) -> Option<Slim> {
        let row = self.table.row(id)?;
        let topic = self.table.topic_of(&row)?.clone();
        let ask = CancelAsleep {
            reason,
            by,
            retention: self.book.get(&topic).settings.retention.cancelled,
            request,
        };
        let before = self.table.cancel_asleep(id, &ask, now)?;
        self.dirty_bytes += CANCEL_BYTES;
        let line = self.table.topic_mut(&topic, now.mono);
        line.count_ended(State::Cancelled, now.mono);
        Some(Slim {
            id,
            state: State::Cancelled,
            due_at: WallMs(before.at_ms),
            generation: before.generation.map_or(1, u32::from),
            updated_at: now.wall,
        })
    }

    /// The task, if this request has changed it before.
    pub(super) fn done_before(&mut self, id: TaskId, request: u64, now: Now) -> Option<TaskView> {
        let is_done = self.table.read(id)?.task.requests.contains(&request);
        is_done.then(|| self.view_of(id, now)).flatten()
    }

    /// Notes, in the same commit as the change itself, that this request has changed the task.
    pub(super) fn note_request(&mut self, id: TaskId, request: u64) {
        let noted = self.table.change(id, |entry| {
            Arc::make_mut(&mut entry.task).note_request(request)
        });
        if noted.is_some() {
            self.mark(id);
        }
    }

    /// The task is to be written at the end of this step.
    fn mark(&mut self, id: TaskId) {
        self.table.detach(id);
        if self.table.mark(id) {
            self.dirty.push(id);
            let weight = self.table.awake(id).map_or(0, |entry| entry.task.weight());
            self.dirty_bytes += weight;
        }
    }

    /// This step writes so much beside tasks.
    pub(super) fn note_bytes(&mut self, bytes: usize) {
        self.dirty_bytes += bytes;
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
    pub fn view(&self, task: &Arc<Task>, place: Place, now: Now) -> TaskView {
        let held = self.book.get(&task.topic).is_held();
        let due = task.next.is_reached(now);
        let blocked_by = match (task.state, place) {
            (State::Pending | State::Retrying, _) if due && held => Some("topic_paused"),
            (State::Pending | State::Retrying, Place::Queued) => {
                let aside_for = self.slots.of(Track::of(task)).is_aside_for(task.id);
                Some(match aside_for {
                    Some(HostId::COMMANDS) => "commands_full",
                    Some(host) if task.host() == Some(host) => "host_full",
                    _ => "executor_full",
                })
            }
            (State::Pending | State::Retrying, Place::Ready) => Some("no_worker"),
            (State::Pending | State::Retrying, Place::Awaiting) => Some("not_completed"),
            _ => None,
        };
        TaskView {
            task: Arc::clone(task),
            blocked_by,
            callback: None,
            shard: self.id,
            remaining_ms: if task.state.is_ended() {
                0
            } else {
                task.due.remaining(now).0
            },
        }
    }

    /// A task as it is shown, by id. One whose retention is over is not shown, even if its chunk is still there.
    pub fn view_of(&mut self, id: TaskId, now: Now) -> Option<TaskView> {
        let mut view = self.bare_view_of(id, now)?;
        view.callback = self.callback_of(&view.task);
        Some(view)
    }

    /// The same, without a look at its callback.
    pub(super) fn bare_view_of(&mut self, id: TaskId, now: Now) -> Option<TaskView> {
        let Entry { task, place, .. } = self.table.read(id)?;
        let is_over = task.state.is_ended() && task.expires.is_some_and(|at| at <= now.steady);
        (!is_over || self.table.awake(id).is_some()).then(|| self.view(&task, place, now))
    }

    /// One page of a list.
    pub fn page(&mut self, ask: &PageAsk, now: Now) -> PagePart {
        page(self, ask, now)
    }

    /// The store has made a fold durable.
    pub fn folded(&mut self, folded: Folded) {
        self.table.shelf_mut().folded(folded.chunks);
        self.more = true;
        for (to, snapshot) in self.taken.drain(..) {
            // Who wanted it may have gone.
            let _ = to.send(snapshot);
        }
    }

    /// The next fold begins as soon as it can; a snapshot of what it makes durable is sent to `to`.
    pub fn want_snapshot(&mut self, to: oneshot::Sender<Snapshot>) {
        self.wanted.push(to);
    }

    /// What is recent has just been frozen: with the chunks it is all there is.
    fn take_snapshots(&mut self, table: &Arc<Memtable>, now: Now) {
        for to in std::mem::take(&mut self.wanted) {
            let shelf = self.table.shelf_mut();
            let (pin, parts) = (shelf.pin(), shelf.parts());
            let Some((parts, reader)) = parts else {
                continue;
            };
            let snapshot = Snapshot {
                steady: now.steady,
                parts,
                newer: Newer::Frozen(Arc::clone(table)),
                notes: self.notes.all().collect(),
                faults: Vec::new(),
                reader,
                _pin: Some(pin),
            };
            self.taken.push((to, snapshot));
        }
    }

    /// Closes the step: what changed, as one batch, and what follows from it.
    pub fn close(&mut self, now: Now) -> Step {
        let room = (self.record_bytes + self.record_bytes / 4) * self.dirty.len();
        let mut batch = self.table.take_batch(now.steady, room);
        self.dirty_bytes = 0;
        for id in std::mem::take(&mut self.dirty) {
            match self.table.awake(id) {
                Some(entry) => entry.write(&mut batch),
                None if self.table.row(id).is_none() => batch.remove_task(id),
                // It can't be read, so nothing of it has changed.
                None => {}
            }
        }
        if !batch.is_empty() {
            self.record_bytes = (batch.bytes() / batch.len()).clamp(64, 4096);
        }
        self.table.write_cancels(&mut batch);
        self.notes.write_changes(&mut batch);
        let mut alarms = self.table.keep(&mut batch, now);
        self.table.rest();
        let fold_along = self.table.shelf().fold_along(batch.bytes());
        let fold = self.tidy(now, batch.bytes(), &mut alarms);
        for alarm in alarms {
            self.wheels.set(alarm);
        }
        Step {
            batch: (!batch.is_empty()).then_some(batch),
            fold_along,
            fold,
            scrap: self.table.shelf_mut().unfreeze(),
            effects: std::mem::take(&mut self.effects),
            more: self.more,
        }
    }

    /// A little of what keeps the shelf in order; a fold, when it is time for one.
    /// The more this step writes, the more of the last fold it puts in its place, so that the next can begin in time.
    fn tidy(&mut self, now: Now, bytes: usize, alarms: &mut Vec<Setting>) -> Option<Fold> {
        // While it catches up, much is late and nothing is passed over.
        if !self.more && !self.is_played() {
            self.audit(now);
        }
        self.watch_progress(now);
        let (unset, set) = self.table.place_some(bytes, now);
        for alarm in unset {
            self.wheels.unset(alarm);
        }
        alarms.extend(set);
        alarms.extend(self.table.ring_far(now));
        alarms.extend(self.table.move_some(now));
        // There is no store that it could be folded into.
        if self.is_played() {
            return None;
        }
        let shelf = self.table.shelf_mut();
        self.more |= shelf.is_placing() || shelf.has_sparse();
        let is_wanted = !self.wanted.is_empty() && shelf.can_fold();
        if !is_wanted && !shelf.wants_fold(now.mono) {
            return None;
        }
        let fold = shelf.freeze(now.mono);
        self.take_snapshots(&fold.table, now);
        Some(fold)
    }
}

/// What an alarm, or a place among what is due, is for. What is asked for anew has another.
fn what_is_asked(task: &Task) -> impl PartialEq + use<> {
    let stage = task.stage_place();
    (
        task.generation,
        stage,
        task.escalated,
        task.next,
        task.first_due,
    )
}

/// The note that a change of the journal puts, if it is one.
fn note_of(key: RecordKey, change: &Change) -> Result<Option<Note>, StoreError> {
    match change {
        Change::Put(value) => decode_note(key, value).map_err(|damaged| StoreError::Corrupt {
            place: key.to_string(),
            why: damaged.to_string(),
        }),
        _ => Ok(None),
    }
}

// Armed no earlier than a dispatch can have been committed for.
const _: () = assert!(ARM_AHEAD.0 <= 20);

#[cfg(test)]
mod tests;
