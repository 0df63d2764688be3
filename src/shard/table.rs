//! All tasks of a shard: those that something happens to, whole in memory, and a row for every one.
//!
//! ```text
//!  asleep   a row in the index; its record is on the shelf            almost all, almost always
//!  awake    the task as well, to be looked at and changed             in flight, or touched in this step
//! ```
//!
//! [`TaskTable::wake`] reads a record, [`TaskTable::rest`] lets go of all that need not stay awake. Whoever changes a
//! task does it through [`TaskTable::change`], which keeps the row in step; what a step has written is put on the
//! shelf by [`TaskTable::keep`]. A cancel needs no record at all: it is laid beside it
//! ([`TaskTable::cancel_asleep`]), and read with it.
//!
//! A topic has a line from its first task until it has no task and nothing has happened in it for a minute; idle
//! lines are looked for when their number has doubled, so that looking costs nothing per task. What was counted in
//! them stays counted, for the shard as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3Builder;

use crate::clock::{DurationMs, MonoMs, Now, SteadyMs};
use crate::ids::{ById, TaskId};
use crate::shard::index::{Home, Index, Row, RowId, TopicNumber, short_generation};
use crate::shard::place::{Alarm, AlarmClock, Place, Setting, alarm_of_entry};
use crate::shard::shelf::{ReadFor, Shelf, ShelfOptions};
use crate::store::chunk::{Class, Entry as ShelfEntry, key_hash};
use crate::store::codec::{Cancel, Change, SpecBytes, decode_cancel, decode_task_and_spec};
use crate::store::{Batch, RecordKey, StoreError};
use crate::task::event::Event;
use crate::task::model::{State, Task};
use crate::task::spec::{TaskKey, TopicName};
use crate::task::transition::{Context, Retention, apply};

mod chunks;
mod fresh;
mod recovery;
mod topics;

use fresh::Fresh;
use topics::Lines;
pub use topics::{TopicLine, Totals};

/// A task that is awake, and its place.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The task.
    pub task: Arc<Task>,
    /// Where it stands.
    pub place: Place,
    row: RowId,
    is_dirty: bool,
    /// As the row says.
    is_alarmed: bool,
    /// The task's spec as it was read.
    spec: Option<SpecBytes>,
}

impl Entry {
    /// Writes the task as it is.
    pub fn write(&self, batch: &mut Batch) {
        match &self.spec {
            Some(spec) => batch.put_read_task(&self.task, spec),
            None => batch.put_task(&self.task),
        }
    }
}

/// What rings later than this is not set as an alarm while it stands in memory: it is in a chunk long before that.
const ALARM_HORIZON_MS: i64 = 60 * 60 * 1000;
/// Chunks are opened so long before the first of their tasks is due, unless the options say otherwise.
const LOOK_AHEAD: DurationMs = DurationMs::secs(10);

/// How a table works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// How long before they are due tasks are read into memory.
    pub look_ahead: DurationMs,
    /// When the shelf folds.
    pub shelf: ShelfOptions,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            look_ahead: LOOK_AHEAD,
            shelf: ShelfOptions::default(),
        }
    }
}

/// What a cancel of a sleeping task needs to know.
#[derive(Debug)]
pub struct CancelAsleep<'a> {
    /// Why.
    pub reason: &'a str,
    /// Who.
    pub by: &'a str,
    /// How long the topic keeps cancelled tasks.
    pub retention: DurationMs,
    /// The request that may be sent again.
    pub request: Option<u64>,
}

/// The tasks of a shard.
#[derive(Debug)]
pub struct TaskTable {
    options: TableOptions,
    /// Of the store's key hashes.
    seed: u64,
    index: Index,
    awake: ById<Entry>,
    /// Created in this step, and asleep.
    fresh: Fresh,
    /// Woken in this step.
    touched: Vec<TaskId>,
    /// Laid beside sleeping records in this step, with the due time that each of them had.
    cancels: ById<(Cancel, i64)>,
    /// Where the cancels are that stand beside records.
    overlays: HashMap<RowId, Home, Xxh3Builder>,
    lines: Lines,
    shelf: Shelf,
    /// The store has failed: the shard has to be started anew.
    fault: Option<StoreError>,
    /// Tasks that were in flight when they were stored; known between a start and its end.
    in_flight: Vec<TaskId>,
    /// The earliest alarms of tasks in memory that are too far ahead to be set: on the wall clock, in steady time.
    far_ms: [i64; 2],
}

impl Default for TaskTable {
    fn default() -> Self {
        Self::new(TableOptions::default())
    }
}

impl TaskTable {
    /// An empty table.
    pub fn new(options: TableOptions) -> Self {
        Self {
            options,
            seed: 0,
            index: Index::default(),
            awake: HashMap::default(),
            fresh: Fresh::default(),
            touched: Vec::new(),
            cancels: HashMap::default(),
            overlays: HashMap::default(),
            lines: Lines::default(),
            shelf: Shelf::new(options.shelf),
            fault: None,
            in_flight: Vec::new(),
            far_ms: [i64::MAX; 2],
        }
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The shelf.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// The shelf, to read from it or to fold.
    pub fn shelf_mut(&mut self) -> &mut Shelf {
        &mut self.shelf
    }

    /// The error after which this table is of no use any more.
    pub fn fault(&mut self) -> Option<StoreError> {
        self.fault.take()
    }

    /// Whether there is such an error.
    pub fn has_failed(&self) -> bool {
        self.fault.is_some()
    }

    /// Bytes of the index.
    pub fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    // ---------------------------------------------------------------- looking

    /// What is known of a task without its record.
    pub fn row(&self, id: TaskId) -> Option<Row> {
        Some(self.index.row(self.number_of(id)?))
    }

    fn number_of(&self, id: TaskId) -> Option<RowId> {
        match self.awake.get(&id) {
            Some(entry) => Some(entry.row),
            None => self.index.find(id),
        }
    }

    /// A task that is awake has to be written; whether that was not known yet.
    pub fn mark(&mut self, id: TaskId) -> bool {
        let entry = self.awake.get_mut(&id);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.is_dirty, true))
    }

    /// The row of this number, if a task stands in it.
    pub fn row_numbered(&self, number: u32) -> Option<Row> {
        self.index.numbered(number)
    }

    /// No row has this number or a larger one.
    pub fn rows_end(&self) -> u32 {
        self.index.end()
    }

    /// Whether the record of a task, and the cancel that stands beside it, are where its row says.
    pub fn is_at_home(&self, row: &Row) -> bool {
        let is_there = |home: Home| match home {
            Home::Memtable => {
                self.awake.contains_key(&row.id)
                    || self.cancels.contains_key(&row.id)
                    || self.shelf.recent(row.id).is_some()
            }
            Home::Chunk(chunk, place) => self
                .shelf
                .chunk(chunk)
                .is_some_and(|meta| meta.is_live(usize::from(place))),
        };
        let overlay = || {
            let number = self.index.find(row.id)?;
            self.overlays.get(&number).copied()
        };
        is_there(row.home) && (!row.is_overlaid || overlay().is_some_and(is_there))
    }

    /// The name of a row's topic.
    pub fn topic_of(&self, row: &Row) -> Option<&TopicName> {
        Some(&self.lines.get(row.topic)?.name)
    }

    /// A task that is awake.
    pub fn awake(&self, id: TaskId) -> Option<&Entry> {
        self.awake.get(&id)
    }

    /// A task as it is, and its place, without waking it. `None` also if its record can't be read.
    pub fn read(&mut self, id: TaskId) -> Option<Entry> {
        if let Some(entry) = self.awake.get(&id) {
            return Some(entry.clone());
        }
        let number = self.index.find(id)?;
        self.read_row(number, ReadFor::Task)
    }

    fn read_row(&mut self, number: RowId, why: ReadFor) -> Option<Entry> {
        let row = self.index.row(number);
        match self.decode(number, &row, why) {
            Ok((task, spec)) => Some(Entry {
                task: Arc::new(task),
                spec,
                place: row.place,
                row: number,
                is_dirty: false,
                is_alarmed: row.is_alarmed,
            }),
            Err(error) => {
                self.note_fault(row.id, error);
                None
            }
        }
    }

    fn decode(
        &mut self,
        number: RowId,
        row: &Row,
        why: ReadFor,
    ) -> Result<(Task, Option<SpecBytes>), StoreError> {
        let fresh = (row.home == Home::Memtable).then(|| self.fresh.record(row.id));
        let value = match fresh.flatten() {
            Some(record) => record,
            None => self.shelf.read(row.id, row.home, why)?,
        };
        let read = decode_task_and_spec(row.id, &value);
        let (mut task, spec) = read.map_err(|damaged| damaged.of(row.id))?;
        if !row.is_overlaid {
            return Ok((task, spec));
        }
        let cancel = match self.cancels.get(&row.id) {
            Some((cancel, _)) => cancel.clone(),
            None => {
                let home = self.overlays.get(&number).copied();
                let value = self
                    .shelf
                    .read(row.id, home.unwrap_or(Home::Memtable), why)?;
                decode_cancel(row.id, &value).map_err(|damaged| damaged.of(row.id))?
            }
        };
        cancel_record(&mut task, &cancel);
        Ok((task, spec))
    }

    /// One damaged record is set aside; a store that fails is the end of this table.
    fn note_fault(&mut self, id: TaskId, error: StoreError) {
        match error {
            StoreError::Corrupt { place, why } => {
                self.shelf.count_damaged();
                tracing::error!(task = %id, place, why, "a record does not read back; it is set aside. `duetime store doctor` tells more");
            }
            error => self.fault = Some(error),
        }
    }

    /// The live task with this key.
    pub fn live(&self, topic: &TopicName, key: &TaskKey) -> Option<TaskId> {
        let row = self.index.live(key_hash(self.seed, topic, key))?;
        Some(self.index.row(row).id)
    }

    /// The live task with this key, else the one that ended last.
    pub fn latest(&self, topic: &TopicName, key: &TaskKey) -> Option<TaskId> {
        let hash = key_hash(self.seed, topic, key);
        let row = self.index.live(hash).or(self.index.ended_last(hash))?;
        Some(self.index.row(row).id)
    }

    // ---------------------------------------------------------------- topics

    /// What is known of a topic.
    pub fn topic(&self, name: &TopicName) -> Option<&TopicLine> {
        self.lines.get(*self.lines.by_name.get(name)?)
    }

    /// What is known of a topic; a line for it begins here.
    pub fn topic_mut(&mut self, name: &TopicName, now: MonoMs) -> &mut TopicLine {
        let number = self.lines.number_of(name, now);
        self.lines.get_mut(number).expect("the line was made above")
    }

    /// Drops the lines of topics in which there is nothing and nothing happens.
    pub fn drop_idle_topics(&mut self, now: MonoMs) {
        self.lines.drop_idle(now);
    }

    /// All topics, in no order.
    pub fn topics(&self) -> impl Iterator<Item = &TopicLine> {
        self.lines.by_number.iter().flatten()
    }

    /// The tasks that are awake and stand there, in no order.
    pub fn awake_in(&self, place: Place) -> Vec<TaskId> {
        let awake = self.awake.iter().filter(|(_, entry)| entry.place == place);
        awake.map(|(id, _)| *id).collect()
    }

    /// What had happened in topics whose lines were dropped.
    pub fn dropped_totals(&self) -> Totals {
        self.lines.dropped
    }

    /// All topics, in no order.
    pub fn topics_mut(&mut self) -> impl Iterator<Item = &mut TopicLine> {
        self.lines.by_number.iter_mut().flatten()
    }

    fn count(&mut self, topic: TopicNumber, state: State, by: i64) {
        if let Some(line) = self.lines.get_mut(topic) {
            let count = &mut line.counts[state.index()];
            *count = count.saturating_add_signed(by);
        }
    }

    /// All ids of a topic, in no order.
    pub fn ids_of_topic(&self, name: &TopicName) -> Vec<TaskId> {
        let Some(number) = self.lines.by_name.get(name) else {
            return Vec::new();
        };
        let rows = self.index.of_topic(*number);
        rows.map(|row| self.index.row(row).id).collect()
    }

    /// What `pick` makes of the entries in memory that count: tasks in hand, fresh cancels, records that are not folded. Only
    /// what is picked is looked up.
    pub fn pick_in_memory<T>(&self, mut pick: impl FnMut(&ShelfEntry) -> Option<T>) -> Vec<T> {
        let mut picked = Vec::new();
        for entry in self.awake.values() {
            picked.extend(pick(&ShelfEntry::of(&entry.task, self.seed)));
        }
        for entry in self.fresh.entries() {
            if !self.awake.contains_key(&entry.id) {
                picked.extend(pick(entry));
            }
        }
        for (id, (cancel, due_ms)) in &self.cancels {
            if let Some(number) = self.index.find(*id) {
                picked.extend(pick(&self.entry_of_cancel(number, cancel, *due_ms)));
            }
        }
        for recent in self.shelf.all_recent() {
            if let Some(found) = pick(&recent.entry)
                && self.is_at_hand(&recent.entry)
            {
                picked.push(found);
            }
        }
        picked
    }

    /// Whether a record that is not folded is the one that counts.
    fn is_at_hand(&self, entry: &ShelfEntry) -> bool {
        let Some(number) = self.index.find(entry.id) else {
            return false;
        };
        let counts = match entry.class {
            Class::Cancels => self.overlays.get(&number) == Some(&Home::Memtable),
            _ => self.index.row(number).home == Home::Memtable,
        };
        counts && !self.awake.contains_key(&entry.id)
    }

    /// The entries of a chunk that count: their tasks have no newer record, and are not awake.
    ///
    /// # Errors
    /// Of the store.
    pub fn entries_of_chunk(&mut self, chunk: u32) -> Result<Vec<ShelfEntry>, StoreError> {
        let Some(meta) = self.shelf.chunk(chunk).cloned() else {
            return Ok(Vec::new());
        };
        let mut index = self.shelf.index_of(chunk, ReadFor::List)?;
        let mut place = 0;
        index.entries.retain(|entry| {
            place += 1;
            self.still_at(chunk, place - 1, entry, &meta.dead)
                .is_some_and(|(_, row)| {
                    (entry.class == Class::Cancels || !row.is_overlaid)
                        && !self.awake.contains_key(&entry.id)
                })
        });
        Ok(index.entries)
    }

    /// A damaged chunk is set aside; a store that fails is the end of this table.
    pub fn set_fault(&mut self, error: StoreError) {
        match error {
            StoreError::Corrupt { place, why } => {
                self.shelf.count_damaged();
                tracing::error!(place, why, "a chunk does not read back; it is set aside");
            }
            error => self.fault = Some(error),
        }
    }

    /// The rows of a topic, in no order; `None` if there are more than `max`.
    pub fn rows_of_topic(&self, name: &TopicName, max: u64) -> Option<Vec<Row>> {
        let Some(number) = self.lines.by_name.get(name) else {
            return Some(Vec::new());
        };
        if self
            .lines
            .get(*number)
            .is_some_and(|line| line.tasks() > max)
        {
            return None;
        }
        let rows = self.index.of_topic(*number);
        Some(rows.map(|row| self.index.row(row)).collect())
    }

    /// The earliest time of a task in memory whose alarm is too far ahead to be set.
    #[cfg(test)]
    pub fn far_ms(&self, clock: AlarmClock) -> i64 {
        self.far_ms[usize::from(clock == AlarmClock::Steady)]
    }

    /// All ids, in no order; for tests that count everything again.
    #[cfg(test)]
    pub fn ids(&self) -> Vec<TaskId> {
        self.index.all().map(|row| self.index.row(row).id).collect()
    }

    // ---------------------------------------------------------------- changing

    /// Adds a new task that waits in the wheel, and lets it sleep: it is written here and now. Its alarm is put off.
    /// The size of its record in bytes.
    pub fn insert_asleep(&mut self, task: &Task, now: MonoMs) -> usize {
        let (_, key_hash) = self.add_row(task, Place::Wheel, false, now);
        self.fresh
            .write(task, ShelfEntry::with_key_hash(task, key_hash))
    }

    fn add_row(
        &mut self,
        task: &Task,
        place: Place,
        is_alarmed: bool,
        now: MonoMs,
    ) -> (RowId, u64) {
        let topic = self.lines.number_of(&task.topic, now);
        let key_hash = match &task.key {
            Some(key) => key_hash(self.seed, &task.topic, key),
            None => 0,
        };
        let row = self.index.add(&Row {
            id: task.id,
            key_hash,
            topic,
            state: task.state,
            place,
            at_ms: at_of(task),
            generation: short_generation(task.generation),
            queues_asleep: queues_asleep(task),
            calls_back: task.calls_back(),
            home: Home::Memtable,
            is_overlaid: false,
            is_alarmed,
        });
        self.count(topic, task.state, 1);
        (row, key_hash)
    }

    /// Adds a new task, awake.
    pub fn insert(&mut self, task: Task, place: Place, now: MonoMs) {
        let (row, _) = self.add_row(&task, place, true, now);
        let id = task.id;
        let entry = Entry {
            task: Arc::new(task),
            place,
            row,
            is_dirty: false,
            is_alarmed: true,
            spec: None,
        };
        self.awake.insert(id, entry);
        self.touched.push(id);
    }

    /// A task, awake from here on until the step ends. `None` also if its record can't be read.
    pub fn wake(&mut self, id: TaskId) -> Option<&Entry> {
        if !self.awake.contains_key(&id) {
            let number = self.index.find(id)?;
            let entry = self.read_row(number, ReadFor::Task)?;
            self.awake.insert(id, entry);
            self.touched.push(id);
        }
        self.awake.get(&id)
    }

    /// Changes a task and keeps its row in step; `None` when there is no such task.
    pub fn change<R>(&mut self, id: TaskId, f: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.wake(id)?;
        let entry = self.awake.get_mut(&id)?;
        let answer = f(entry);
        let (task, place) = (&entry.task, entry.place);
        let (state, at_ms) = (task.state, at_of(task));
        let generation = short_generation(task.generation);
        let queues_asleep = queues_asleep(task);
        let calls_back = task.calls_back();
        self.touched.push(id);
        let number = entry.row;
        let before = self.index.row(number);
        self.index.change(number, |row| {
            row.state = state;
            row.place = place;
            row.at_ms = at_ms;
            row.generation = generation;
            row.queues_asleep = queues_asleep;
            row.calls_back = calls_back;
        });
        if before.state != state {
            self.count(before.topic, before.state, -1);
            self.count(before.topic, state, 1);
        }
        Some(answer)
    }

    /// Whether the alarms of a task are set.
    pub fn is_alarmed(&self, id: TaskId) -> bool {
        match self.awake.get(&id) {
            Some(entry) => entry.is_alarmed,
            None => self.row(id).is_some_and(|row| row.is_alarmed),
        }
    }

    /// The alarms of a task are set, or none is.
    pub fn set_alarmed(&mut self, id: TaskId, is_alarmed: bool) {
        let number = match self.awake.get(&id) {
            Some(entry) if entry.is_alarmed == is_alarmed => return,
            Some(entry) => Some(entry.row),
            None => self.index.find(id),
        };
        if let Some(number) = number {
            self.set_row_alarmed(number, id, is_alarmed);
        }
    }

    fn set_row_alarmed(&mut self, number: RowId, id: TaskId, is_alarmed: bool) {
        if let Some(entry) = self.awake.get_mut(&id) {
            entry.is_alarmed = is_alarmed;
        }
        self.index.change(number, |row| row.is_alarmed = is_alarmed);
    }

    /// A due task goes from the wheel into the line before the slots, without being read. Whether it does: one that
    /// is awake, or has to be looked at when it comes due, does not.
    pub fn queue_asleep(&mut self, id: TaskId) -> bool {
        let Some(number) = self
            .index
            .find(id)
            .filter(|_| !self.awake.contains_key(&id))
        else {
            return false;
        };
        let row = self.index.row(number);
        if !row.queues_asleep || row.is_overlaid || row.place != Place::Wheel {
            return false;
        }
        self.index.change(number, |row| row.place = Place::Queued);
        true
    }

    /// The record of a task is to be written: what stood in a chunk counts no more.
    pub fn detach(&mut self, id: TaskId) {
        let Some(number) = self.number_of(id) else {
            return;
        };
        let row = self.index.row(number);
        if row.home == Home::Memtable && !row.is_overlaid {
            return;
        }
        self.leave_home(number, &row);
        self.index.change(number, |row| {
            row.home = Home::Memtable;
            row.is_overlaid = false;
        });
    }

    fn leave_home(&mut self, number: RowId, row: &Row) {
        if let Home::Chunk(chunk, place) = row.home {
            self.shelf.kill(chunk, place);
        }
        if row.is_overlaid {
            self.cancels.remove(&row.id);
            if let Some(Home::Chunk(chunk, place)) = self.overlays.remove(&number) {
                self.shelf.kill(chunk, place);
            }
        }
    }

    /// Takes a task out.
    pub fn remove(&mut self, id: TaskId) -> Option<Row> {
        let number = self.index.find(id)?;
        let row = self.index.row(number);
        self.leave_home(number, &row);
        self.shelf.forget_recent(id);
        self.fresh.forget(id);
        self.awake.remove(&id);
        self.index.remove(number);
        self.count(row.topic, row.state, -1);
        Some(row)
    }

    /// Cancels a task that sleeps in a chunk, without its record. The row as it was; `None` if it has to be woken.
    pub fn cancel_asleep(&mut self, id: TaskId, ask: &CancelAsleep<'_>, now: Now) -> Option<Row> {
        let number = self.index.find(id)?;
        let row = self.index.row(number);
        let is_asleep = !self.awake.contains_key(&id)
            && matches!(row.home, Home::Chunk(..))
            && !row.is_overlaid
            && !row.is_alarmed
            && !row.calls_back
            && row.generation.is_some();
        let waits = matches!(row.state, State::Pending | State::Retrying | State::Paused)
            && matches!(row.place, Place::Wheel | Place::AtRest);
        if !is_asleep || !waits {
            return None;
        }
        self.cancels.insert(
            id,
            (
                Cancel {
                    at: now.wall,
                    steady: now.steady,
                    retention: ask.retention,
                    by: ask.by.to_owned(),
                    reason: ask.reason.to_owned(),
                    request: ask.request,
                },
                row.at_ms,
            ),
        );
        self.overlays.insert(number, Home::Memtable);
        self.index.change(number, |row| {
            row.state = State::Cancelled;
            row.place = Place::AtRest;
            row.at_ms = now.wall.0;
            row.is_overlaid = true;
        });
        self.count(row.topic, row.state, -1);
        self.count(row.topic, State::Cancelled, 1);
        Some(row)
    }

    // ---------------------------------------------------------------- the end of a step

    /// The batch of this step, with the records of its new tasks in it. For what else there is it has room for so many
    /// bytes.
    pub fn take_batch(&mut self, steady: SteadyMs, room: usize) -> Batch {
        self.fresh.take_batch(steady, room)
    }

    /// Adds the cancels of this step that stand beside records.
    pub fn write_cancels(&self, batch: &mut Batch) {
        for (id, (cancel, _)) in &self.cancels {
            batch.put_cancel(*id, cancel);
        }
    }

    /// Puts what a step has written on the shelf; gives the alarms that are to be set for it.
    pub fn keep(&mut self, batch: &mut Batch, now: Now) -> Vec<Setting> {
        let mut alarms = Vec::new();
        let mut fresh = self.fresh.take_entries();
        for (key, change) in batch.changes() {
            if let Some(entry) = fresh.next() {
                if let (Some(entry), Change::Put(record)) = (entry, change) {
                    self.shelf.put(entry, record);
                }
                continue;
            }
            let id = match (key, &change) {
                (RecordKey::Task(id), _) => id,
                (_, Change::Put(value)) => {
                    self.shelf.put_note(key, Some(value.clone()));
                    continue;
                }
                _ => {
                    self.shelf.put_note(key, None);
                    continue;
                }
            };
            match change {
                Change::Put(value) => {
                    let Some(entry) = self.awake.get_mut(&id) else {
                        continue;
                    };
                    entry.is_dirty = false;
                    let number = entry.row;
                    let row = self.index.row(number);
                    let entry = ShelfEntry::with_key_hash(&entry.task, row.key_hash);
                    // One that came from a chunk, to be written but not moved, had no alarm of its own.
                    if !row.is_alarmed && !entry.has_more_alarms {
                        let alarm = self.alarm_in_memory(&entry, now);
                        self.set_alarmed(id, alarm.is_some());
                        alarms.extend(alarm);
                    }
                    self.shelf.put(entry, value);
                }
                Change::Cancel(value) => {
                    if let (Some((cancel, due_ms)), Some(number)) =
                        (self.cancels.remove(&id), self.index.find(id))
                    {
                        let entry = self.entry_of_cancel(number, &cancel, due_ms);
                        let alarm = self.alarm_in_memory(&entry, now);
                        let is_alarmed = alarm.is_some();
                        self.set_row_alarmed(number, id, is_alarmed);
                        alarms.extend(alarm);
                        self.shelf.put(entry, value);
                    }
                }
                Change::Remove => {}
            }
        }
        alarms
    }

    fn entry_of_cancel(&self, number: RowId, cancel: &Cancel, due_ms: i64) -> ShelfEntry {
        let row = self.index.row(number);
        let topic = self.topic_of(&row).expect("a row's topic has a line");
        ShelfEntry {
            id: row.id,
            topic: topic.clone(),
            key_hash: row.key_hash,
            class: Class::Cancels,
            state: State::Cancelled,
            generation: row.generation.map_or(1, u32::from),
            due_ms,
            ended_ms: cancel.at.0,
            wake_ms: cancel.steady.after(cancel.retention).0,
            has_more_alarms: false,
            // Whoever calls back is not cancelled like that.
            calls_back: false,
        }
    }

    /// The alarm of a record that stands in memory, if it rings soon enough; else it is remembered how long it may
    /// stay without one.
    fn alarm_in_memory(&mut self, entry: &ShelfEntry, now: Now) -> Option<Setting> {
        let alarm = alarm_of_entry(entry.class, entry.wake_ms, entry.id)?;
        (!self.puts_off(alarm, now)).then_some(alarm)
    }

    /// Whether an alarm may wait until its record is in a chunk. It is then remembered.
    pub fn puts_off(&mut self, (clock, at_ms, alarm): Setting, now: Now) -> bool {
        let Some((lane, clock_ms)) = lane_of(clock, now) else {
            return false;
        };
        let is_far = matches!(alarm, Alarm::Due(_) | Alarm::Expire(_))
            && at_ms > clock_ms.saturating_add(ALARM_HORIZON_MS);
        if is_far {
            self.far_ms[lane] = self.far_ms[lane].min(at_ms);
        }
        is_far
    }

    /// Lets go of all that need not stay awake. What is in flight stays, and so does what has begun to count a time
    /// without a record of it.
    pub fn rest(&mut self) {
        for id in std::mem::take(&mut self.touched) {
            let Some(entry) = self.awake.get(&id) else {
                continue;
            };
            let stays = match entry.place {
                Place::InFlight => true,
                Place::Ready | Place::Queued | Place::Held | Place::Awaiting => {
                    entry.task.counts_in_line()
                }
                // It came due and went back there: released, or its clock was stepped back.
                Place::Wheel => entry.task.state == State::Pending && entry.task.counts_in_line(),
                Place::AtRest => false,
            };
            if stays {
                continue;
            }
            self.awake.remove(&id);
        }
    }
}

/// Whether nothing is to be noted of a task when it comes due, but that it waits for a slot.
fn queues_asleep(task: &Task) -> bool {
    task.action().is_dispatched()
        && task.total().is_none()
        && task.spec.timeouts.total.is_none()
        && task.spec.timeouts.queue.is_none()
        && !task.is_asked_about()
        && task.spec.guard.is_none()
        && task.at_stage.is_none()
}

/// What a row says of when: the end of a task that has ended, else its due time.
fn at_of(task: &Task) -> i64 {
    task.ended_at.unwrap_or(task.due.at).0
}

/// The lane of a clock that alarms may be far ahead on, and what it says.
fn lane_of(clock: AlarmClock, now: Now) -> Option<(usize, i64)> {
    match clock {
        AlarmClock::Wall => Some((0, now.wall.0)),
        AlarmClock::Steady => Some((1, now.steady.0)),
        AlarmClock::Mono => None,
    }
}

/// Does to a task what a cancel that was laid beside its record says.
pub(super) fn cancel_record(task: &mut Task, cancel: &Cancel) {
    let now = Now {
        wall: cancel.at,
        mono: MonoMs(0),
        steady: cancel.steady,
    };
    let ctx = Context {
        now,
        retention: Retention {
            cancelled: cancel.retention,
            ..Retention::default()
        },
        random: 0.0,
        by: &cancel.by,
    };
    let reason = cancel.reason.clone();
    // Never refused: only a task that waits is cancelled without its record.
    let _ = apply(task, Event::Cancel { reason }, &ctx);
    if let Some(request) = cancel.request {
        task.note_request(request);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests;
