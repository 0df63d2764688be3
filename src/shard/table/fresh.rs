//! Tasks that are created in this step and sleep at once: written while they are at hand, and not woken at all.
//!
//! Almost all that is created is due much later. So its record goes into the step's batch there and then, and what the
//! shelf has to know of it is kept here until the batch is sealed. It may be asked for, changed or removed in the same
//! step; then it is found here.

use std::ops::Range;

use bytes::Bytes;

use crate::clock::SteadyMs;
use crate::ids::{ById, TaskId};
use crate::store::Batch;
use crate::store::chunk::Entry;
use crate::task::model::Task;

/// Room for the first batch, in bytes; later ones get what the one before came to.
const ROOM_MIN: usize = 4 * 1024;
const ROOM_MAX: usize = 2 * 1024 * 1024;

/// The records of this step's new tasks. See the module's header.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    batch: Option<Batch>,
    tasks: Vec<FreshTask>,
    /// Where each is; made when the first is looked for.
    places: ById<usize>,
    room: usize,
}

#[derive(Debug)]
struct FreshTask {
    entry: Entry,
    /// Its record in the batch's bytes.
    record: Range<usize>,
    is_removed: bool,
}

impl Fresh {
    /// Writes a new task; its size in bytes.
    pub fn write(&mut self, task: &Task, entry: Entry) -> usize {
        let batch = self
            .batch
            .get_or_insert_with(|| Batch::with_room(SteadyMs(0), self.room));
        let record = batch.place_task(task);
        let bytes = record.len();
        self.tasks.push(FreshTask {
            entry,
            record,
            is_removed: false,
        });
        bytes
    }

    fn find(&mut self, id: TaskId) -> Option<&mut FreshTask> {
        for place in self.places.len()..self.tasks.len() {
            self.places.insert(self.tasks[place].entry.id, place);
        }
        let place = *self.places.get(&id)?;
        self.tasks.get_mut(place)
    }

    /// The record of a task that was created in this step.
    pub fn record(&mut self, id: TaskId) -> Option<Bytes> {
        if self.tasks.is_empty() {
            return None;
        }
        let record = self.find(id)?.record.clone();
        let written = self.batch.as_ref()?.encode();
        Some(Bytes::copy_from_slice(written.get(record)?))
    }

    /// It is not to come onto the shelf.
    pub fn forget(&mut self, id: TaskId) {
        if !self.tasks.is_empty()
            && let Some(task) = self.find(id)
        {
            task.is_removed = true;
        }
    }

    /// Those there are, in order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        let there = self.tasks.iter().filter(|task| !task.is_removed);
        there.map(|task| &task.entry)
    }

    /// The batch, to which the rest of the step is added. The records written here are the first in it.
    pub fn take_batch(&mut self, steady: SteadyMs, room: usize) -> Batch {
        let batch = self.batch.take();
        let written = batch.as_ref().map_or(0, Batch::bytes);
        if written > 0 {
            self.room = (written + written / 8).clamp(ROOM_MIN, ROOM_MAX);
        }
        let mut batch = batch.unwrap_or_else(|| Batch::with_room(steady, room));
        batch.set_steady(steady);
        batch
    }

    /// What the first records of the sealed batch are; `None` for one that is not to come onto the shelf.
    pub fn take_entries(&mut self) -> impl Iterator<Item = Option<Entry>> + use<> {
        self.places.clear();
        let tasks = std::mem::take(&mut self.tasks);
        tasks
            .into_iter()
            .map(|task| (!task.is_removed).then_some(task.entry))
    }
}
