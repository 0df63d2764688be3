//! All of a shard as it was at one instant, to be read by others while the shard goes on.
//!
//! ```text
//!  running   the next fold freezes what is recent; chunks and marks as they are then    TakeSnapshot
//!  at rest   what the store finds when it is opened: chunks, marks, journal             Snapshot::of_store
//!                └──▶ visit: what is recent, then chunk by chunk, the newest first, each body read once
//! ```
//!
//! Chunks never change, and the frozen table is shared, so taking it copies nothing but the list of chunks. While it
//! is held the shelf drops no chunk (its [`Pin`]); what is marked dead later does not concern it. If the shard dies
//! meanwhile, its successor may drop some: they are damaged then for whoever still reads, who begins anew.
//!
//! A cancel that stands beside its record is resolved: each task is given once, whole.
//!
//! Memory: the list of chunks (32 bytes for 128 records), the journal or frozen table, and about 130 bytes for each
//! cancel that stands beside its record.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Builder;

use crate::clock::SteadyMs;
use crate::ids::TaskId;
use crate::shard::table::cancel_record;
use crate::store::chunk::{ChunkId, Class, Mask, Memtable, ReadChunks};
use crate::store::codec::{Damaged, decode_cancel, decode_note, decode_task, encode_task};
use crate::store::{Batch, Begun, Change, Note, RecordKey, ShardStore, StoreError, Stored};

/// While it is held, no chunk of the shelf is dropped.
#[derive(Clone, Debug)]
pub struct Pin(#[expect(dead_code, reason = "it is held, not read")] pub(super) Arc<()>);

/// Something that does not read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// File and offset, key or chunk.
    pub place: String,
    /// What is wrong with it.
    pub why: String,
}

/// What a visit finds.
#[derive(Debug)]
pub enum Found {
    /// A task and its value.
    Task(TaskId, Bytes),
    /// Something that does not read back; what it held is not given.
    Damaged(Fault),
}

/// A chunk of which some records count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) id: ChunkId,
    pub(super) class: Class,
    pub(super) dead: Mask,
    pub(super) live: u32,
}

/// What is newer than the chunks.
pub(super) enum Newer {
    /// As a fold has frozen it. What it replaces is marked dead.
    Frozen(Arc<Memtable>),
    /// As the journal had it: the latest change of each task. It replaces what stands in chunks.
    Replayed(Box<Hashed<Change>>),
}

/// By task.
pub type Hashed<V> = HashMap<TaskId, V, Xxh3Builder>;
/// Cancels that stand beside records.
pub type Cancels = Hashed<Bytes>;

/// All of a shard at one instant. See the module's header.
pub struct Snapshot {
    pub(super) steady: SteadyMs,
    pub(super) parts: Vec<Part>,
    pub(super) newer: Newer,
    pub(super) notes: Vec<Note>,
    pub(super) faults: Vec<Fault>,
    pub(super) reader: Arc<dyn ReadChunks>,
    pub(super) _pin: Option<Pin>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot of about {} tasks", self.tasks())
    }
}

impl Snapshot {
    /// What a store holds that nobody else works with.
    ///
    /// # Errors
    /// Of the store.
    pub fn of_store(store: &mut dyn ShardStore) -> Result<Self, StoreError> {
        let Begun { steady, .. } = store.begin()?;
        let (mut parts, mut faults) = (Vec::new(), Vec::new());
        let mut newer = Hashed::<Change>::default();
        let mut notes = HashMap::new();
        let mut refused = Ok(());
        store.recover(&mut |stored| match stored {
            Stored::Chunk(index, dead) => parts.push(Part {
                id: index.id,
                class: index.class,
                dead,
                live: (0..index.entries.len())
                    .filter(|place| dead >> place & 1 == 0)
                    .count() as u32,
            }),
            Stored::Damaged { place, why } => faults.push(Fault { place, why }),
            Stored::Note(note) => {
                notes.insert(key_of(&note), note);
            }
            Stored::Change(key, change) if refused.is_ok() => {
                refused = match key {
                    RecordKey::Task(id) => replay(&mut newer, id, change),
                    _ => replay_note(&mut notes, key, &change),
                };
            }
            Stored::Change(..) => {}
        })?;
        refused?;
        Ok(Self {
            steady,
            parts,
            newer: Newer::Replayed(Box::new(newer)),
            notes: notes.into_values().collect(),
            faults,
            reader: store.reader()?,
            _pin: None,
        })
    }

    /// The steady time that it was taken at.
    pub fn steady(&self) -> SteadyMs {
        self.steady
    }

    /// Tombstones, kept and late answers.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// About how many tasks there are: some may have a newer record beside an older one.
    pub fn tasks(&self) -> u64 {
        let whole = self
            .parts
            .iter()
            .filter(|part| part.class != Class::Cancels);
        let newer = match &self.newer {
            Newer::Frozen(table) => table.tasks.len(),
            Newer::Replayed(changes) => changes.len(),
        };
        whole.map(|part| u64::from(part.live)).sum::<u64>() + newer as u64
    }

    /// The same without what was folded into other classes than these.
    #[must_use]
    pub fn only(mut self, classes: &[Class]) -> Self {
        let parts = &mut self.parts;
        parts.retain(|part| part.class == Class::Cancels || classes.contains(&part.class));
        self
    }

    /// Visits each task once, those written last first, and what does not read back.
    ///
    /// # Errors
    /// Those of the store that are no damage of a record, and what `visit` returns.
    pub fn visit<E: From<StoreError>>(
        &self,
        visit: &mut dyn FnMut(Found) -> Result<(), E>,
    ) -> Result<(), E> {
        for fault in &self.faults {
            visit(Found::Damaged(fault.clone()))?;
        }
        let (cancels, faults) = self.cancels()?;
        for fault in faults {
            visit(Found::Damaged(fault))?;
        }
        match &self.newer {
            Newer::Frozen(table) => {
                for (id, recent) in &table.tasks {
                    if recent.entry.class != Class::Cancels {
                        visit(Found::Task(*id, recent.value.clone()))?;
                    }
                }
            }
            Newer::Replayed(changes) => {
                for (id, change) in &**changes {
                    if let Change::Put(value) = change {
                        visit(Found::Task(*id, value.clone()))?;
                    }
                }
            }
        }
        let whole = self.parts.iter().rev();
        for part in whole.filter(|part| part.class != Class::Cancels) {
            let records = match self.read(part) {
                Ok(records) => records,
                Err(error) => {
                    visit(Found::Damaged(damage(error)?))?;
                    continue;
                }
            };
            for (id, value) in records {
                match self.resolve(id, value, cancels.get(&id)) {
                    Ok(Some(value)) => visit(Found::Task(id, value))?,
                    Ok(None) => {}
                    Err(why) => visit(Found::Damaged(Fault {
                        place: RecordKey::Task(id).to_string(),
                        why: why.to_string(),
                    }))?,
                }
            }
        }
        Ok(())
    }

    /// The records of a chunk that are not marked dead.
    fn read(&self, part: &Part) -> Result<Vec<(TaskId, Bytes)>, StoreError> {
        if part.live == 0 {
            return Ok(Vec::new());
        }
        let corrupt = |why: String| StoreError::Corrupt {
            place: part.id.to_string(),
            why,
        };
        let index = self.reader.index(part.id)?;
        let body = self.reader.packed(part.id)?.unpack();
        let body = body.map_err(|damaged| corrupt(damaged.to_string()))?;
        if body.len() != index.entries.len() {
            return Err(corrupt("its index and its body do not agree".to_owned()));
        }
        let entries = index.entries.iter().enumerate();
        let live = entries.filter(|(place, _)| part.dead >> place & 1 == 0);
        Ok(live
            .filter_map(|(place, entry)| Some((entry.id, body.record(place)?)))
            .collect())
    }

    /// A record that was got out of a damaged chunk, as it counts: `None` if something newer does. A cancel that stands
    /// beside it in another chunk has to be given.
    ///
    /// # Errors
    /// When record and cancel don't read back.
    pub fn resolve(
        &self,
        id: TaskId,
        value: Bytes,
        cancel: Option<&Bytes>,
    ) -> Result<Option<Bytes>, Damaged> {
        let cancel = match (self.newer(id), cancel) {
            (Some(Latest::Record | Latest::Removed), _) => return Ok(None),
            // The first cancel is the one that counts.
            (_, Some(cancel)) | (Some(Latest::Cancel(cancel)), None) => cancel,
            (None, None) => return Ok(Some(value)),
        };
        cancelled(id, &value, cancel).map(Some)
    }

    /// The cancels that stand beside records, in chunks.
    ///
    /// # Errors
    /// Those of the store that are no damage of a record.
    pub fn cancels(&self) -> Result<(Cancels, Vec<Fault>), StoreError> {
        let (mut cancels, mut faults) = (Cancels::default(), Vec::new());
        let parts = self.parts.iter();
        for part in parts.filter(|part| part.class == Class::Cancels) {
            match self.read(part) {
                Ok(records) => cancels.extend(records),
                Err(error) => faults.push(damage(error)?),
            }
        }
        Ok((cancels, faults))
    }

    fn newer(&self, id: TaskId) -> Option<Latest<'_>> {
        match &self.newer {
            Newer::Frozen(table) => table.tasks.get(&id).map(|recent| match recent.entry.class {
                Class::Cancels => Latest::Cancel(&recent.value),
                _ => Latest::Record,
            }),
            Newer::Replayed(changes) => changes.get(&id).map(|change| match change {
                Change::Put(_) => Latest::Record,
                Change::Cancel(value) => Latest::Cancel(value),
                Change::Remove => Latest::Removed,
            }),
        }
    }
}

/// What became of a task since its record was folded.
enum Latest<'a> {
    Record,
    Cancel(&'a Bytes),
    Removed,
}

/// A damage is told and passed over; any other error ends the visit.
fn damage(error: StoreError) -> Result<Fault, StoreError> {
    match error {
        StoreError::Corrupt { place, why } => Ok(Fault { place, why }),
        error => Err(error),
    }
}

/// A task's value, once it is cancelled.
///
/// # Errors
/// When either does not read back.
pub fn cancelled(id: TaskId, value: &[u8], cancel: &[u8]) -> Result<Bytes, Damaged> {
    let mut task = decode_task(id, value)?;
    cancel_record(&mut task, &decode_cancel(id, cancel)?);
    Ok(encode_task(&task))
}

/// Takes in the next change of a task, as the shard itself does with its journal at a start.
///
/// # Errors
/// When what is cancelled does not read back.
pub fn replay(newer: &mut Hashed<Change>, id: TaskId, change: Change) -> Result<(), StoreError> {
    let next = match (newer.get(&id), change) {
        (Some(Change::Put(value)), Change::Cancel(cancel)) => {
            let whole = cancelled(id, value, &cancel);
            Change::Put(whole.map_err(|damaged| damaged.of(id))?)
        }
        (Some(_), Change::Cancel(_)) => return Ok(()),
        (_, change) => change,
    };
    newer.insert(id, next);
    Ok(())
}

fn replay_note(
    notes: &mut HashMap<RecordKey, Note>,
    key: RecordKey,
    change: &Change,
) -> Result<(), StoreError> {
    match change {
        Change::Put(value) => {
            let note = decode_note(key, value).map_err(|damaged| StoreError::Corrupt {
                place: key.to_string(),
                why: damaged.to_string(),
            })?;
            notes.extend(note.map(|note| (key, note)));
        }
        _ => {
            notes.remove(&key);
        }
    }
    Ok(())
}

fn key_of(note: &Note) -> RecordKey {
    match note {
        Note::Tombstone(tombstone) => RecordKey::tombstone(&tombstone.topic, &tombstone.key),
        Note::Answer(answer) => RecordKey::Answer(answer.key),
        Note::Late(late) => RecordKey::late(late),
    }
}

/// A note as a record.
pub fn record_of(note: &Note) -> (RecordKey, Bytes) {
    let mut batch = Batch::new(SteadyMs(0));
    match note {
        Note::Tombstone(tombstone) => batch.put_tombstone(tombstone),
        Note::Answer(answer) => batch.put_answer(answer),
        Note::Late(late) => batch.put_late(late),
    }
    match batch.changes().next() {
        Some((key, Change::Put(value))) => (key, value),
        _ => unreachable!("one record was put"),
    }
}
