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

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Builder;

use crate::clock::{DurationMs, MonoMs, Now};
use crate::ids::{ById, TaskId};
use crate::metrics::{Quantiles, Rate};
use crate::shard::index::{Home, Index, Row, RowId, TopicNumber, short_generation};
use crate::shard::place::{Alarm, AlarmClock, Place, Setting, alarm_of_entry, alarms_of};
use crate::shard::shelf::{ReadFor, Shelf, ShelfOptions};
use crate::store::chunk::{
    CHUNK_BYTES, ChunkId, ChunkIndex, Class, Entry as ShelfEntry, Mask, key_hash,
};
use crate::store::codec::{
    Cancel, Change, SpecBytes, decode_cancel, decode_task, decode_task_and_spec,
};
use crate::store::{Batch, RecordKey, StoreError};
use crate::task::event::Event;
use crate::task::model::{State, Task};
use crate::task::spec::{ByTopic, TaskKey, TopicName};
use crate::task::transition::{Context, Retention, apply};

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

/// Counts that only grow.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Created tasks.
    pub created: u64,
    /// Started attempts.
    pub started: u64,
    /// Tasks that ended as succeeded.
    pub succeeded: u64,
    /// Tasks that ended as dead.
    pub dead: u64,
    /// Tasks that ended as cancelled.
    pub cancelled: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, more: Self) {
        self.created += more.created;
        self.started += more.started;
        self.succeeded += more.succeeded;
        self.dead += more.dead;
        self.cancelled += more.cancelled;
    }
}

/// What a shard knows of one topic.
#[derive(Debug)]
pub struct TopicLine {
    /// Its name.
    pub name: TopicName,
    /// Tasks by state, in the order of [`State::ALL`].
    pub counts: [u64; State::ALL.len()],
    /// How late attempts started.
    pub lateness: Quantiles,
    /// Creates.
    pub created: Rate,
    /// Started attempts.
    pub started: Rate,
    /// Ends.
    pub ended: Rate,
    /// What has happened in this topic since the shard's start.
    pub totals: Totals,
    /// Due pull tasks, by firing time.
    pub ready: BTreeSet<(i64, TaskId)>,
    /// Due tasks that the topic's pause holds back.
    pub held: BTreeSet<(i64, TaskId)>,
    /// Tasks whose total time ran out while the topic was frozen.
    pub overtime: Vec<TaskId>,
}

impl TopicLine {
    fn new(name: TopicName, now: MonoMs) -> Self {
        Self {
            name,
            counts: [0; State::ALL.len()],
            lateness: Quantiles::default(),
            created: Rate::new(now),
            started: Rate::new(now),
            ended: Rate::new(now),
            totals: Totals::default(),
            ready: BTreeSet::new(),
            held: BTreeSet::new(),
            overtime: Vec::new(),
        }
    }
}

impl TopicLine {
    /// Whether there is no task, and nothing happened in the last minute.
    fn is_idle(&mut self, now: MonoMs) -> bool {
        let is_empty = self.tasks() == 0;
        let rates = [&mut self.created, &mut self.started, &mut self.ended];
        is_empty && rates.into_iter().all(|rate| rate.per_second(now) <= 0.0)
    }

    /// How many tasks it has.
    pub fn tasks(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A task was created.
    pub fn count_created(&mut self, now: MonoMs) {
        self.created.add(1, now);
        self.totals.created += 1;
    }

    /// An attempt started, so much later than its time.
    pub fn count_started(&mut self, lateness_ms: i64, now: MonoMs) {
        self.started.add(1, now);
        self.totals.started += 1;
        self.lateness.add(lateness_ms);
    }

    /// A task ended in this state.
    pub fn count_ended(&mut self, state: State, now: MonoMs) {
        self.ended.add(1, now);
        match state {
            State::Succeeded => self.totals.succeeded += 1,
            State::Dead => self.totals.dead += 1,
            _ => self.totals.cancelled += 1,
        }
    }
}

/// Fewer lines than this are never looked through for idle ones.
const LINES_MIN: usize = 64;
/// What rings later than this is not set as an alarm while it stands in memory: it is in a chunk long before that.
const ALARM_HORIZON_MS: i64 = 60 * 60 * 1000;
/// Chunks are opened so long before the first of their tasks is due, unless the options say otherwise.
const LOOK_AHEAD: DurationMs = DurationMs::secs(10);
/// Folded chunks that are placed in one step, at least.
const PLACED_PER_STEP: usize = 6;
/// Chunks that are mostly dead and moved from in one step.
const MOVED_PER_STEP: usize = 2;

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

/// The lines of all topics, by name and by number.
#[derive(Debug, Default)]
struct Lines {
    by_number: Vec<Option<TopicLine>>,
    by_name: ByTopic<TopicNumber>,
    free: Vec<TopicNumber>,
    /// With so many lines the idle ones are dropped before the next begins.
    lines_max: usize,
    dropped: Totals,
}

impl Lines {
    fn get(&self, number: TopicNumber) -> Option<&TopicLine> {
        self.by_number.get(number.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, number: TopicNumber) -> Option<&mut TopicLine> {
        self.by_number.get_mut(number.0 as usize)?.as_mut()
    }

    fn number_of(&mut self, name: &TopicName, now: MonoMs) -> TopicNumber {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        if self.by_name.len() >= self.lines_max.max(LINES_MIN) {
            self.drop_idle(now);
            self.lines_max = 2 * self.by_name.len();
        }
        let line = TopicLine::new(name.clone(), now);
        let number = match self.free.pop() {
            Some(number) => {
                self.by_number[number.0 as usize] = Some(line);
                number
            }
            None => {
                self.by_number.push(Some(line));
                TopicNumber((self.by_number.len() - 1) as u32)
            }
        };
        self.by_name.insert(name.clone(), number);
        number
    }

    fn drop_idle(&mut self, now: MonoMs) {
        for (place, slot) in self.by_number.iter_mut().enumerate() {
            if let Some(line) = slot.take_if(|line| line.is_idle(now)) {
                self.dropped += line.totals;
                self.by_name.remove(&line.name);
                self.free.push(TopicNumber(place as u32));
            }
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
        let value = self.shelf.read(row.id, row.home, why)?;
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

    /// The entry of each task in memory: of those that are awake as they are, of others as they were written.
    pub fn entries_in_memory(&self, mut visit: impl FnMut(ShelfEntry)) {
        for entry in self.awake.values() {
            visit(ShelfEntry::of(&entry.task, self.seed));
        }
        for (id, (cancel, due_ms)) in &self.cancels {
            if let Some(number) = self.index.find(*id) {
                visit(self.entry_of_cancel(number, cancel, *due_ms));
            }
        }
        for recent in self.shelf.all_recent() {
            let id = recent.entry.id;
            let is_here = !self.awake.contains_key(&id)
                && self
                    .index
                    .find(id)
                    .is_some_and(|number| match recent.entry.class {
                        Class::Cancels => self.overlays.get(&number) == Some(&Home::Memtable),
                        _ => self.index.row(number).home == Home::Memtable,
                    });
            if is_here {
                visit(recent.entry.clone());
            }
        }
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

    /// Adds a new task, awake.
    pub fn insert(&mut self, task: Task, place: Place, now: MonoMs) {
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
            at_ms: at_of(&task),
            generation: short_generation(task.generation),
            queues_asleep: queues_asleep(&task),
            home: Home::Memtable,
            is_overlaid: false,
            is_alarmed: true,
        });
        self.count(topic, task.state, 1);
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
        self.touched.push(id);
        let number = entry.row;
        let before = self.index.row(number);
        self.index.change(number, |row| {
            row.state = state;
            row.place = place;
            row.at_ms = at_ms;
            row.generation = generation;
            row.queues_asleep = queues_asleep;
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

    /// Adds the cancels of this step that stand beside records.
    pub fn write_cancels(&self, batch: &mut Batch) {
        for (id, (cancel, _)) in &self.cancels {
            batch.put_cancel(*id, cancel);
        }
    }

    /// Puts what a step has written on the shelf; gives the alarms that are to be set for it.
    pub fn keep(&mut self, batch: &mut Batch, now: Now) -> Vec<Setting> {
        let mut alarms = Vec::new();
        for (key, change) in batch.changes() {
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

    /// Lets go of all that need not stay awake. What is in flight stays, and so does what has begun to count its
    /// total time without a record of it.
    pub fn rest(&mut self) {
        for id in std::mem::take(&mut self.touched) {
            let Some(entry) = self.awake.get(&id) else {
                continue;
            };
            let stays = match entry.place {
                Place::InFlight => true,
                Place::Ready | Place::Queued | Place::Held => entry.task.total_until().is_some(),
                // It came due and went back there: released, or its clock was stepped back.
                Place::Wheel => {
                    entry.task.state == State::Pending && entry.task.total_until().is_some()
                }
                Place::AtRest => false,
            };
            if stays {
                continue;
            }
            self.awake.remove(&id);
        }
    }

    // ---------------------------------------------------------------- chunks

    /// Finds the records of a few folded chunks there, of twice as many bytes as the step has written; the alarms to be
    /// taken back, and those to be set.
    pub fn place_some(&mut self, bytes: usize, now: Now) -> (Vec<Setting>, Vec<Setting>) {
        let (mut unset, mut set) = (Vec::new(), Vec::new());
        for _ in 0..PLACED_PER_STEP.max(2 * bytes / CHUNK_BYTES) {
            let Some(index) = self.shelf.next_to_place() else {
                break;
            };
            let chunk = self.shelf.add_chunk(&index, 0);
            for (place, entry) in index.entries.iter().enumerate() {
                self.place(chunk, place as u8, entry, now, &mut unset);
            }
            if self.shelf.chunk(chunk).is_some_and(|meta| meta.live() > 0) {
                set.extend(self.alarm_of_chunk(chunk));
            }
        }
        (unset, set)
    }

    fn place(
        &mut self,
        chunk: u32,
        place: u8,
        entry: &ShelfEntry,
        now: Now,
        unset: &mut Vec<Setting>,
    ) {
        let id = entry.id;
        let number = self.index.find(id).filter(|_| !self.shelf.is_recent(id));
        let here = Home::Chunk(chunk, place);
        let Some(number) = number else {
            return self.shelf.kill(chunk, place);
        };
        let row = self.index.row(number);
        if entry.class == Class::Cancels {
            if !row.is_overlaid || self.overlays.get(&number) != Some(&Home::Memtable) {
                return self.shelf.kill(chunk, place);
            }
            self.overlays.insert(number, here);
        } else {
            // What is dirty in this very step has left already.
            if row.home != Home::Memtable || self.cancels.contains_key(&id) {
                return self.shelf.kill(chunk, place);
            }
            if row.is_alarmed
                && matches!(row.place, Place::Wheel | Place::Queued)
                && self.is_soon(entry, now)
                && self.shelf.has_room_to_stay()
            {
                return self.stay(chunk, place, entry);
            }
            self.index.change(number, |row| row.home = here);
        }
        let stands = matches!(row.place, Place::Wheel | Place::AtRest);
        // What is awake may have an alarm more than its record tells.
        let is_asleep = !self.awake.contains_key(&id);
        if row.is_alarmed && stands && is_asleep && !entry.has_more_alarms {
            unset.extend(alarm_of_entry(entry.class, entry.wake_ms, id));
            self.set_row_alarmed(number, entry.id, false);
        }
    }

    /// Whether a task that waits would be read back at once from a chunk that it is put into.
    fn is_soon(&self, entry: &ShelfEntry, now: Now) -> bool {
        let clock_ms = match entry.class {
            Class::Wall => now.wall.0,
            _ => now.steady.0,
        };
        let ahead = self.options.look_ahead.0 as i64;
        entry.class.waits() && entry.wake_ms.saturating_sub(ahead) <= clock_ms
    }

    /// A task that is due in a moment stays in memory, as if it had been moved there from its new chunk.
    fn stay(&mut self, chunk: u32, place: u8, entry: &ShelfEntry) {
        if let Some(recent) = self.shelf.recent(entry.id).cloned() {
            self.shelf.kill(chunk, place);
            self.shelf.stay(recent.entry, recent.value);
        }
    }

    /// When a chunk matters next.
    fn alarm_of_chunk(&self, chunk: u32) -> Option<Setting> {
        let meta = self.shelf.chunk(chunk)?;
        let (first_ms, last_ms) = meta.wake_ms;
        let ahead = self.options.look_ahead.0 as i64;
        let alarm = Alarm::Chunk(meta.id);
        match meta.class {
            Class::Wall => Some((AlarmClock::Wall, first_ms.saturating_sub(ahead), alarm)),
            Class::Steady => Some((AlarmClock::Steady, first_ms.saturating_sub(ahead), alarm)),
            class if class.has_ended() => Some((AlarmClock::Steady, last_ms, alarm)),
            _ => None,
        }
    }

    /// When the first of a chunk's tasks that wait rings; when it expires, if they have ended.
    pub fn first_of_chunk(&self, id: ChunkId) -> Option<i64> {
        let meta = self.shelf.chunk(self.shelf.place_of(id)?)?;
        Some(match meta.class.waits() {
            true => meta.wake_ms.0,
            false => meta.wake_ms.1,
        })
    }

    /// A chunk matters now: the alarms of those that wait in it are to be set; those that have ended are gone.
    /// Whoever is cancelled in it gets a record of its own, since this one is at hand.
    pub fn open_chunk(&mut self, chunk: u32, now: Now) -> Vec<Setting> {
        let Some(meta) = self.shelf.chunk(chunk).cloned() else {
            return Vec::new();
        };
        let read = match meta.class.has_ended() {
            true => self.shelf.index_of(chunk, ReadFor::Ahead),
            false => self
                .shelf
                .open(chunk)
                .and_then(|()| self.shelf.index_of(chunk, ReadFor::Ahead)),
        };
        let index = match read {
            Ok(index) => index,
            Err(error) => {
                self.set_fault(error);
                return Vec::new();
            }
        };
        let mut alarms = Vec::new();
        for (place, entry) in index.entries.iter().enumerate() {
            let Some((number, row)) = self.still_at(chunk, place as u8, entry, &meta.dead) else {
                continue;
            };
            if meta.class.has_ended() {
                self.expire(number, &row);
            } else if row.is_overlaid {
                alarms.extend(self.own_record(number, &row, now));
            } else if !row.is_alarmed && row.place == Place::Wheel {
                if entry.has_more_alarms {
                    let task = self.read(entry.id);
                    let settings = task.map(|entry| alarms_of(&entry.task, Place::Wheel));
                    alarms.extend(settings.into_iter().flatten().flatten());
                } else {
                    alarms.extend(alarm_of_entry(entry.class, entry.wake_ms, entry.id));
                }
                self.set_row_alarmed(number, entry.id, true);
            }
        }
        alarms
    }

    /// The row of a chunk's record, if that is still its home.
    fn still_at(
        &self,
        chunk: u32,
        place: u8,
        entry: &ShelfEntry,
        dead: &Mask,
    ) -> Option<(RowId, Row)> {
        if dead >> place & 1 != 0 {
            return None;
        }
        let number = self.index.find(entry.id)?;
        let row = self.index.row(number);
        let home = match entry.class {
            Class::Cancels => *self.overlays.get(&number)?,
            _ => row.home,
        };
        (home == Home::Chunk(chunk, place)).then_some((number, row))
    }

    /// The retention of an ended task is over. Nothing is written: a start would find the same.
    fn expire(&mut self, number: RowId, row: &Row) {
        self.leave_home(number, row);
        self.shelf.forget_recent(row.id);
        self.awake.remove(&row.id);
        self.index.remove(number);
        self.count(row.topic, row.state, -1);
    }

    /// Makes one record of a task and the cancel that stands beside it, once that is written: what is moved is taken
    /// for committed, and a cancel of this very step would never be.
    fn own_record(&mut self, number: RowId, row: &Row, now: Now) -> Option<Setting> {
        if self.cancels.contains_key(&row.id) {
            return None;
        }
        let (task, _) = match self.decode(number, row, ReadFor::Move) {
            Ok(read) => read,
            Err(error) => {
                self.note_fault(row.id, error);
                return None;
            }
        };
        let value = crate::store::codec::encode_task(&task);
        let entry = ShelfEntry::of(&task, self.seed);
        self.move_to_memory(number, row, entry, value, now)
    }

    fn move_to_memory(
        &mut self,
        number: RowId,
        row: &Row,
        entry: ShelfEntry,
        value: Bytes,
        now: Now,
    ) -> Option<Setting> {
        self.leave_home(number, row);
        let alarm = match (row.is_alarmed, row.place) {
            (false, Place::Wheel | Place::AtRest) => self.alarm_in_memory(&entry, now),
            _ => None,
        };
        self.index.change(number, |row| {
            row.home = Home::Memtable;
            row.is_overlaid = false;
        });
        if alarm.is_some() {
            self.set_row_alarmed(number, row.id, true);
        }
        self.shelf.put(entry, value);
        alarm
    }

    /// Moves what lives in a few chunks that are mostly dead; the alarms to be set.
    pub fn move_some(&mut self, now: Now) -> Vec<Setting> {
        let mut alarms = Vec::new();
        for _ in 0..MOVED_PER_STEP {
            let Some(chunk) = self.shelf.next_sparse() else {
                break;
            };
            let Some(meta) = self.shelf.chunk(chunk).cloned() else {
                continue;
            };
            let index = match self.shelf.index_of(chunk, ReadFor::Move) {
                Ok(index) => index,
                Err(StoreError::Corrupt { .. }) => continue,
                Err(error) => {
                    self.fault = Some(error);
                    break;
                }
            };
            for (place, entry) in index.entries.iter().enumerate() {
                let Some((number, row)) = self.still_at(chunk, place as u8, entry, &meta.dead)
                else {
                    continue;
                };
                if entry.class == Class::Cancels {
                    // The record that it stands beside is elsewhere; only the cancel moves.
                    match self.shelf.value(chunk, place as u8, ReadFor::Move) {
                        Ok(value) => {
                            self.shelf.kill(chunk, place as u8);
                            self.overlays.insert(number, Home::Memtable);
                            let alarm = self.alarm_in_memory(entry, now);
                            let is_alarmed = alarm.is_some();
                            self.set_row_alarmed(number, entry.id, is_alarmed);
                            alarms.extend(alarm);
                            self.shelf.put(entry.clone(), value);
                        }
                        Err(error) => self.note_fault(entry.id, error),
                    }
                } else if row.is_overlaid {
                    alarms.extend(self.own_record(number, &row, now));
                } else if entry.has_more_alarms && !row.is_alarmed {
                    // Rare: its alarms need the task. It is left where it is.
                } else {
                    match self.shelf.value(chunk, place as u8, ReadFor::Move) {
                        Ok(value) => {
                            let alarm =
                                self.move_to_memory(number, &row, entry.clone(), value, now);
                            alarms.extend(alarm);
                        }
                        Err(error) => self.note_fault(entry.id, error),
                    }
                }
            }
        }
        alarms
    }

    /// Milliseconds until alarms of records in memory have to be set that were too far ahead.
    pub fn far_in_ms(&self, now: Now) -> Option<i64> {
        let ahead = self.options.look_ahead.0 as i64;
        let lanes = [AlarmClock::Wall, AlarmClock::Steady].into_iter();
        let left = lanes.filter_map(|clock| {
            let (lane, clock_ms) = lane_of(clock, now)?;
            let far_ms = self.far_ms[lane];
            let left = far_ms.saturating_sub(ahead).saturating_sub(clock_ms);
            (far_ms != i64::MAX).then_some(left)
        });
        left.min()
    }

    /// Alarms of records in memory whose time has come nearer than it was when they were put there.
    pub fn ring_far(&mut self, now: Now) -> Vec<Setting> {
        if self.far_in_ms(now).is_none_or(|left| left > 0) {
            return Vec::new();
        }
        self.far_ms = [i64::MAX; 2];
        let mut alarms = Vec::new();
        for entry in self.shelf.recent_entries() {
            let Some(number) = self.index.find(entry.id) else {
                continue;
            };
            let row = self.index.row(number);
            let is_here = match entry.class {
                Class::Cancels => self.overlays.get(&number) == Some(&Home::Memtable),
                _ => row.home == Home::Memtable && !self.awake.contains_key(&entry.id),
            };
            if !is_here || row.is_alarmed || entry.has_more_alarms {
                continue;
            }
            if let Some(alarm) = self.alarm_in_memory(&entry, now) {
                self.set_row_alarmed(number, entry.id, true);
                alarms.push(alarm);
            }
        }
        alarms
    }

    // ---------------------------------------------------------------- recovery

    /// The seed of the store's key hashes; before anything else.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Takes in a chunk as it was stored; the alarm to be set for it.
    pub fn recover_chunk(&mut self, index: &ChunkIndex, dead: Mask, now: Now) -> Option<Setting> {
        let chunk = self.shelf.add_chunk(index, dead);
        let has_ended = index.class.has_ended();
        for (place, entry) in index.entries.iter().enumerate() {
            if dead >> place & 1 != 0 {
                continue;
            }
            let place = place as u8;
            let here = Home::Chunk(chunk, place);
            let known = self.index.find(entry.id);
            if has_ended && entry.wake_ms <= now.steady.0 {
                self.shelf.kill(chunk, place);
                if let (Class::Cancels, Some(number)) = (entry.class, known) {
                    let row = self.index.row(number);
                    self.expire(number, &row);
                }
                continue;
            }
            if entry.class == Class::Cancels {
                match known {
                    Some(number) => self.overlay(number, entry.ended_ms, here),
                    None => self.shelf.kill(chunk, place),
                }
                continue;
            }
            self.recover_row(entry, here, now);
        }
        match self.shelf.chunk(chunk)?.live() {
            0 => None,
            _ => self.alarm_of_chunk(chunk),
        }
    }

    fn overlay(&mut self, number: RowId, at_ms: i64, home: Home) {
        let row = self.index.row(number);
        if let Some(Home::Chunk(chunk, place)) = self.overlays.insert(number, home) {
            self.shelf.kill(chunk, place);
        }
        self.index.change(number, |row| {
            row.state = State::Cancelled;
            row.place = Place::AtRest;
            row.at_ms = at_ms;
            row.is_overlaid = true;
        });
        self.count(row.topic, row.state, -1);
        self.count(row.topic, State::Cancelled, 1);
    }

    /// The row of a stored record; whatever was known of the task counts no more.
    fn recover_row(&mut self, entry: &ShelfEntry, home: Home, now: Now) {
        if let Some(number) = self.index.find(entry.id) {
            let row = self.index.row(number);
            self.leave_home(number, &row);
            self.index.remove(number);
            self.count(row.topic, row.state, -1);
        }
        let topic = self.lines.number_of(&entry.topic, now.mono);
        let place = match entry.class {
            Class::Wall | Class::Steady => Place::Wheel,
            Class::InFlight => Place::InFlight,
            _ => Place::AtRest,
        };
        self.index.add(&Row {
            id: entry.id,
            key_hash: entry.key_hash,
            topic,
            state: entry.state,
            place,
            at_ms: at_of_entry(entry),
            generation: short_generation(entry.generation),
            queues_asleep: false,
            home,
            is_overlaid: false,
            is_alarmed: false,
        });
        self.count(topic, entry.state, 1);
        if entry.class == Class::InFlight {
            self.in_flight.push(entry.id);
        }
    }

    /// Takes in a change as it was committed.
    ///
    /// # Errors
    /// When a task's record does not read back: the journal's own sums say that it was written like that.
    pub fn recover_change(
        &mut self,
        key: RecordKey,
        change: Change,
        now: Now,
    ) -> Result<(), StoreError> {
        let RecordKey::Task(id) = key else {
            let value = match change {
                Change::Put(value) => Some(value),
                _ => None,
            };
            self.shelf.put_note(key, value);
            return Ok(());
        };
        match change {
            Change::Put(value) => {
                let task = decode_task(id, &value).map_err(|damaged| damaged.of(id))?;
                let entry = ShelfEntry::of(&task, self.seed);
                self.recover_row(&entry, Home::Memtable, now);
                self.shelf.put(entry, value);
            }
            Change::Cancel(value) => {
                let Some(number) = self.index.find(id) else {
                    return Ok(());
                };
                let cancel = decode_cancel(id, &value).map_err(|damaged| damaged.of(id))?;
                let row = self.index.row(number);
                if row.home == Home::Memtable && !row.is_overlaid {
                    let (mut task, _) = self.decode(number, &row, ReadFor::Move)?;
                    cancel_record(&mut task, &cancel);
                    let entry = ShelfEntry::of(&task, self.seed);
                    self.recover_row(&entry, Home::Memtable, now);
                    self.shelf
                        .put(entry, crate::store::codec::encode_task(&task));
                } else if !row.is_overlaid {
                    self.overlay(number, cancel.at.0, Home::Memtable);
                    let entry = self.entry_of_cancel(number, &cancel, row.at_ms);
                    self.shelf.put(entry, value);
                }
            }
            Change::Remove => {
                self.remove(id);
            }
        }
        Ok(())
    }

    /// All is taken in: the alarms of what stands in memory, and the tasks that were in flight.
    pub fn recovered(&mut self, now: Now) -> (Vec<Setting>, Vec<TaskId>) {
        let mut alarms = Vec::new();
        for entry in self.shelf.recent_entries() {
            let Some(number) = self.index.find(entry.id) else {
                continue;
            };
            if entry.has_more_alarms {
                let task = self.read(entry.id);
                let settings = task.map(|entry| alarms_of(&entry.task, Place::Wheel));
                alarms.extend(settings.into_iter().flatten().flatten());
                self.set_row_alarmed(number, entry.id, true);
            } else if let Some(alarm) = self.alarm_in_memory(&entry, now) {
                self.set_row_alarmed(number, entry.id, true);
                alarms.push(alarm);
            }
        }
        let mut in_flight = std::mem::take(&mut self.in_flight);
        in_flight.retain(|id| self.row(*id).is_some_and(|row| row.state.is_in_flight()));
        in_flight.sort_unstable();
        in_flight.dedup();
        (alarms, in_flight)
    }
}

fn at_of_entry(entry: &ShelfEntry) -> i64 {
    match entry.state.is_ended() {
        true => entry.ended_ms,
        false => entry.due_ms,
    }
}

/// Whether nothing is to be noted of a task when it comes due, but that it waits for a slot.
fn queues_asleep(task: &Task) -> bool {
    task.spec.action.is_dispatched() && task.spec.timeouts.total.is_none()
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
mod tests {
    use super::*;
    use crate::testing::fixtures::{at, task};

    /// A task of `topic`, created and then ended at `ms`, in no time.
    fn come_and_go(table: &mut TaskTable, topic: &str, ms: i64) {
        let now = at(ms);
        let task = task().topic(topic).build(now);
        let (id, name) = (task.id, task.topic.clone());
        table.topic_mut(&name, now.mono).count_created(now.mono);
        table.insert(task, Place::Wheel, now.mono);
        let line = table.topic_mut(&name, now.mono);
        line.count_started(3, now.mono);
        line.count_ended(State::Dead, now.mono);
        assert!(table.remove(id).is_some());
    }

    fn created(table: &mut TaskTable) -> u64 {
        let lines = table.topics_mut().map(|line| line.totals.created);
        lines.sum::<u64>() + table.dropped_totals().created
    }

    fn topics(table: &mut TaskTable) -> Vec<String> {
        let names = table.topics_mut().map(|line| line.name.as_str().to_owned());
        names.collect()
    }

    #[test]
    fn an_idle_topic_is_dropped_and_what_was_counted_stays_counted() {
        let mut table = TaskTable::default();
        let stays = task().topic("stays").build(at(0));
        table.insert(stays, Place::Wheel, at(0).mono);
        come_and_go(&mut table, "goes", 0);
        table.drop_idle_topics(at(59_000).mono);
        assert_eq!(
            topics(&mut table).len(),
            2,
            "it has rates of the last minute"
        );
        table.drop_idle_topics(at(61_000).mono);
        assert_eq!(topics(&mut table), ["stays"]);
        let gone = table.dropped_totals();
        assert_eq!((gone.created, gone.started, gone.dead), (1, 1, 1));
    }

    #[test]
    fn topics_that_come_and_go_do_not_add_up() {
        let mut table = TaskTable::default();
        for number in 0..1_000 {
            come_and_go(&mut table, &format!("topic-{number}"), 10_000 * number);
        }
        let left = topics(&mut table).len();
        assert!(left <= 2 * LINES_MIN, "{left}");
        assert_eq!(created(&mut table), 1_000);
    }

    #[test]
    fn the_latest_holder_of_a_key_is_found_after_others_have_gone() {
        let mut table = TaskTable::default();
        let mono = at(0).mono;
        let mut ids = Vec::new();
        for ended_ms in [5, 1, 5, 5, 9] {
            let mut task = task().key("k").build(at(0));
            task.state = State::Cancelled;
            task.ended_at = Some(at(ended_ms).wall);
            ids.push(task.id);
            table.insert(task, Place::AtRest, mono);
        }
        let probe = task().key("k").build(at(0));
        let (topic, key) = (probe.topic.clone(), probe.key.clone().unwrap());
        let mut left: Vec<(i64, TaskId)> = ids
            .iter()
            .map(|id| (table.row(*id).unwrap().at_ms, *id))
            .collect();
        for gone in [4, 2, 3, 0, 1] {
            let latest = left.iter().max().map(|(_, id)| *id);
            assert_eq!(table.latest(&topic, &key), latest);
            assert!(table.remove(ids[gone]).is_some());
            left.retain(|(_, id)| *id != ids[gone]);
        }
        // A live one leaves those that ended alone.
        let live = probe.id;
        table.insert(probe, Place::Wheel, mono);
        assert_eq!(table.latest(&topic, &key), Some(live));
        assert!(table.remove(live).is_some());
        assert_eq!(table.latest(&topic, &key), None);
    }
}
