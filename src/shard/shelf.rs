//! The shelf: where the records of a shard's tasks are, and how they get there.
//!
//! ```text
//!  committed ──▶ recent ──freeze──▶ folding ──the store writes──▶ chunks
//!                  ▲                                              │ mostly dead
//!                  └────────────── moved ─────────────────────────┘
//! ```
//!
//! What was committed lately stands in memory, as it was written to the journal. When that has become much, it is
//! frozen and handed to the store as a [`Fold`]; once the store says that the chunks are durable, the index is told
//! where each record is. A record that something newer replaces is marked dead in its chunk; the marks go with the
//! next fold. A chunk without a live record is dropped by the fold after that, never earlier: until its marks are
//! durable, a start would need it. What lives on in a chunk that is mostly dead is moved to the recent ones, and so
//! into a new chunk.
//!
//! The shelf knows chunks and records, not what they mean. It reads chunks on the shard's own thread: few of them are
//! opened ahead of their time and kept packed until they were used, within `OPEN_BYTES_MAX`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::clock::{DurationMs, MonoMs};
use crate::ids::TaskId;
use crate::shard::index::Home;
use crate::shard::snapshot::{Part, Pin};
use crate::store::chunk::{
    ChunkBody, ChunkId, ChunkIndex, Class, Entry, Fold, Marks, Mask, Memtable, PackedChunk,
    ReadChunks, Recent, full_mask,
};
use crate::store::{RecordKey, StoreError};

/// Chunks that were opened ahead of their time are kept in memory up to this many bytes, packed.
const OPEN_BYTES_MAX: usize = 96 * 1024 * 1024;
/// Unpacked chunks that are kept at hand.
const BODIES_MAX: usize = 24;
/// All masks are written anew each so many folds.
const MARKS_ANEW: u64 = 32;
/// A fold for tidiness' sake begins no sooner than this after the one before.
const TIDY_AFTER: DurationMs = DurationMs::secs(2);
/// What was committed is folded at the latest after this, so that a start has little to replay.
const FOLD_AFTER: DurationMs = DurationMs::secs(5 * 60);
/// A start that had to read more files than this folds at once, so that the next one does not.
const FILES_READ_MAX: usize = 32;
/// Dead chunks of so many bytes are worth a fold of their own.
const TIDY_BYTES: u64 = 4 * 1024 * 1024;
/// How long fewer dead bytes than that may lie about.
const TIDY_AT_LAST: DurationMs = DurationMs::secs(20);

/// When the shelf folds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShelfOptions {
    /// Recent records of so many bytes are folded.
    pub fold_bytes: usize,
}

impl Default for ShelfOptions {
    fn default() -> Self {
        Self {
            fold_bytes: 12 * 1024 * 1024,
        }
    }
}

/// What is known of a chunk without reading it.
#[derive(Clone, Debug)]
pub struct ChunkMeta {
    /// Its number.
    pub id: ChunkId,
    /// Of all its records.
    pub class: Class,
    /// How many records it has.
    pub count: u8,
    /// Which of them are dead.
    pub dead: Mask,
    /// Size of its body.
    pub packed_bytes: u32,
    /// The earliest and the latest `wake_ms`.
    pub wake_ms: (i64, i64),
    /// The earliest and the latest `due_ms`.
    pub due_ms: (i64, i64),
    /// The earliest and the latest `ended_ms`.
    pub ended_ms: (i64, i64),
}

impl ChunkMeta {
    fn of(index: &ChunkIndex, dead: Mask) -> Self {
        let range = |values: &mut dyn Iterator<Item = i64>| {
            values.fold((i64::MAX, i64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        Self {
            id: index.id,
            class: index.class,
            count: index.entries.len() as u8,
            dead: dead & full_mask(index.entries.len()),
            packed_bytes: index.packed_bytes,
            wake_ms: range(&mut index.entries.iter().map(|entry| entry.wake_ms)),
            due_ms: range(&mut index.entries.iter().map(|entry| entry.due_ms)),
            ended_ms: range(&mut index.entries.iter().map(|entry| entry.ended_ms)),
        }
    }

    /// How many of its records live.
    pub fn live(&self) -> u32 {
        u32::from(self.count) - self.dead.count_ones()
    }

    /// Whether the record at this place lives.
    pub fn is_live(&self, place: usize) -> bool {
        self.dead >> place & 1 == 0
    }

    fn is_sparse(&self) -> bool {
        let live = self.live();
        live > 0 && live * 4 <= u32::from(self.count)
    }
}

/// How much folding a commit takes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldAlong {
    /// As time allows.
    Nothing,
    /// At least so many bytes.
    Bytes(usize),
    /// The fold at work has to be through before the commit is answered.
    All,
}

/// Why a chunk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFor {
    /// A task is looked at or changed.
    Task,
    /// A list.
    List,
    /// Ahead of its time.
    Ahead,
    /// To move what lives in it.
    Move,
}

/// How many chunks were read from the store, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkReads {
    /// For a task that is looked at or changed.
    pub task: u64,
    /// For lists.
    pub list: u64,
    /// Ahead of their time.
    pub ahead: u64,
    /// To move what lives in them.
    pub moved: u64,
}

/// What the shelf holds, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShelfCounts {
    /// Chunks.
    pub chunks: u64,
    /// Bytes of their bodies.
    pub chunk_bytes: u64,
    /// Records of them that are dead.
    pub dead: u64,
    /// Bytes in memory of what was committed lately.
    pub recent_bytes: u64,
    /// Folds since the start.
    pub folds: u64,
    /// Records that could not be read.
    pub damaged: u64,
    /// Chunks read.
    pub reads: ChunkReads,
}

/// The records of a shard. See the module's header.
pub struct Shelf {
    options: ShelfOptions,
    reader: Option<Arc<dyn ReadChunks>>,
    /// The same for whoever reads beside the shard.
    beside: Option<Arc<dyn ReadChunks>>,
    recent: Memtable,
    /// Of the recent bytes, those of records that stayed through a fold.
    stayed_bytes: usize,
    folding: Option<Arc<Memtable>>,
    /// The store works on a fold.
    is_folding: bool,
    folded_at: MonoMs,
    /// The start was long for want of a fold.
    is_overdue: bool,
    /// Folded chunks whose records are still to be found there.
    placing: VecDeque<ChunkIndex>,
    chunks: Vec<Option<ChunkMeta>>,
    free: Vec<u32>,
    by_id: HashMap<ChunkId, u32>,
    changed: BTreeSet<u32>,
    /// Without a live record.
    empty: BTreeSet<u32>,
    /// Handed to the fold at work, to be dropped.
    dropping: Vec<u32>,
    sparse: BTreeSet<u32>,
    /// Somebody else reads the chunks that there are: none is dropped meanwhile.
    pins: Weak<()>,
    open: HashMap<ChunkId, PackedChunk>,
    open_bytes: usize,
    /// The most lately used last.
    bodies: Vec<(ChunkId, ChunkBody)>,
    counts: ShelfCounts,
}

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shelf of {:?}", self.counts())
    }
}

impl Shelf {
    /// An empty shelf.
    pub fn new(options: ShelfOptions) -> Self {
        Self {
            options,
            reader: None,
            beside: None,
            recent: Memtable::default(),
            stayed_bytes: 0,
            folding: None,
            is_folding: false,
            folded_at: MonoMs(0),
            is_overdue: false,
            placing: VecDeque::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            changed: BTreeSet::new(),
            empty: BTreeSet::new(),
            dropping: Vec::new(),
            sparse: BTreeSet::new(),
            pins: Weak::new(),
            open: HashMap::new(),
            open_bytes: 0,
            bodies: Vec::new(),
            counts: ShelfCounts::default(),
        }
    }

    /// So many files were read at the start.
    pub fn note_files_read(&mut self, files: usize) {
        self.is_overdue = files > FILES_READ_MAX;
    }

    /// From here on chunks are read there: by the shard itself, and by others beside it.
    pub fn read_from(&mut self, reader: Arc<dyn ReadChunks>, beside: Arc<dyn ReadChunks>) {
        self.reader = Some(reader);
        self.beside = Some(beside);
    }

    fn reader(&self) -> Result<&Arc<dyn ReadChunks>, StoreError> {
        self.reader.as_ref().ok_or(StoreError::Poisoned)
    }

    // ---------------------------------------------------------------- recent records

    /// A record that was written to the journal or moved, of so many bytes there.
    pub fn put(&mut self, entry: Entry, value: Bytes) {
        self.recent.bytes += value.len() + 64;
        self.recent.tasks.insert(entry.id, Recent { entry, value });
    }

    /// A note that was written to the journal.
    pub fn put_note(&mut self, key: RecordKey, value: Option<Bytes>) {
        self.recent.bytes += value.as_ref().map_or(0, Bytes::len) + 64;
        self.recent.notes.insert(key, value);
    }

    /// The record of a task is no longer needed.
    pub fn forget_recent(&mut self, id: TaskId) {
        self.recent.tasks.swap_remove(&id);
    }

    /// The latest record of a task whose home is the memtable.
    pub fn recent(&self, id: TaskId) -> Option<&Recent> {
        let folding = || self.folding.as_ref()?.tasks.get(&id);
        self.recent.tasks.get(&id).or_else(folding)
    }

    /// A record that was folded just now and stays in memory all the same.
    pub fn stay(&mut self, entry: Entry, value: Bytes) {
        let before = self.recent.bytes;
        self.put(entry, value);
        self.stayed_bytes += self.recent.bytes - before;
    }

    /// Whether records may stay in memory through a fold: as many as a fold holds. No fold is due for their sake.
    pub fn has_room_to_stay(&self) -> bool {
        self.stayed_bytes < self.options.fold_bytes
    }

    /// What is to be folded.
    fn unfolded_bytes(&self) -> usize {
        self.recent.bytes - self.stayed_bytes
    }

    /// Whether it was written since the last fold began.
    pub fn is_recent(&self, id: TaskId) -> bool {
        self.recent.tasks.contains_key(&id)
    }

    /// All records in memory. One that stands in both tables is given once, the newer one; some of those that are
    /// being folded may be forgotten or replaced: the index knows.
    pub fn all_recent(&self) -> impl Iterator<Item = &Recent> {
        let older = self.folding.iter().flat_map(|table| table.tasks.values());
        let older = older.filter(|recent| !self.is_recent(recent.entry.id));
        self.recent.tasks.values().chain(older)
    }

    /// The entries of all records in memory, as [`Shelf::all_recent`] gives them.
    pub fn recent_entries(&self) -> Vec<Entry> {
        let all = self.all_recent();
        all.map(|recent| recent.entry.clone()).collect()
    }

    // ---------------------------------------------------------------- chunks

    /// Takes in a chunk; its place in the shelf.
    pub fn add_chunk(&mut self, index: &ChunkIndex, dead: Mask) -> u32 {
        let meta = ChunkMeta::of(index, dead);
        let (id, live, is_sparse) = (meta.id, meta.live(), meta.is_sparse());
        self.counts.chunks += 1;
        self.counts.chunk_bytes += u64::from(meta.packed_bytes);
        self.counts.dead += u64::from(meta.dead.count_ones());
        let chunk = match self.free.pop() {
            Some(chunk) => {
                self.chunks[chunk as usize] = Some(meta);
                chunk
            }
            None => {
                self.chunks.push(Some(meta));
                u32::try_from(self.chunks.len() - 1).expect("a shard has fewer chunks than that")
            }
        };
        self.by_id.insert(id, chunk);
        if live == 0 {
            self.empty.insert(chunk);
        } else if is_sparse {
            self.sparse.insert(chunk);
        }
        chunk
    }

    /// What is known of a chunk.
    pub fn chunk(&self, chunk: u32) -> Option<&ChunkMeta> {
        self.chunks.get(chunk as usize)?.as_ref()
    }

    /// The place of a chunk in the shelf, while it has one.
    pub fn place_of(&self, id: ChunkId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// All chunks, with their places.
    pub fn chunks(&self) -> impl Iterator<Item = (u32, &ChunkMeta)> {
        let numbered = self.chunks.iter().enumerate();
        numbered.filter_map(|(chunk, meta)| Some((chunk as u32, meta.as_ref()?)))
    }

    /// Nothing needs this record any more.
    pub fn kill(&mut self, chunk: u32, place: u8) {
        let Some(meta) = self.chunks.get_mut(chunk as usize).and_then(Option::as_mut) else {
            return;
        };
        let bit = 1 << place;
        if meta.dead & bit != 0 {
            return;
        }
        meta.dead |= bit;
        let (id, live, is_sparse) = (meta.id, meta.live(), meta.is_sparse());
        self.counts.dead += 1;
        self.changed.insert(chunk);
        if live == 0 {
            self.empty.insert(chunk);
            self.sparse.remove(&chunk);
            self.close(id);
        } else if is_sparse {
            self.sparse.insert(chunk);
        }
    }

    /// The entries of a chunk, from the store.
    ///
    /// # Errors
    /// Of the store.
    pub fn index_of(&mut self, chunk: u32, why: ReadFor) -> Result<ChunkIndex, StoreError> {
        let id = self.chunk(chunk).ok_or(StoreError::Poisoned)?.id;
        self.count(why);
        self.reader()?.index(id)
    }

    fn count(&mut self, why: ReadFor) {
        let reads = &mut self.counts.reads;
        match why {
            ReadFor::Task => reads.task += 1,
            ReadFor::List => reads.list += 1,
            ReadFor::Ahead => reads.ahead += 1,
            ReadFor::Move => reads.moved += 1,
        }
    }

    /// Reads a chunk ahead of its time and keeps it at hand, if there is room.
    ///
    /// # Errors
    /// Of the store.
    pub fn open(&mut self, chunk: u32) -> Result<(), StoreError> {
        let id = self.chunk(chunk).ok_or(StoreError::Poisoned)?.id;
        if self.open.contains_key(&id) || self.open_bytes >= OPEN_BYTES_MAX {
            return Ok(());
        }
        self.count(ReadFor::Ahead);
        let packed = self.reader()?.packed(id)?;
        self.open_bytes += packed.bytes.len();
        self.open.insert(id, packed);
        Ok(())
    }

    fn close(&mut self, id: ChunkId) {
        if let Some(packed) = self.open.remove(&id) {
            self.open_bytes -= packed.bytes.len();
        }
        self.bodies.retain(|(other, _)| *other != id);
    }

    /// The value of a record in a chunk.
    ///
    /// # Errors
    /// Of the store, and when the chunk does not read back.
    pub fn value(&mut self, chunk: u32, place: u8, why: ReadFor) -> Result<Bytes, StoreError> {
        let id = self.chunk(chunk).ok_or(StoreError::Poisoned)?.id;
        let at_hand = self.bodies.iter().rposition(|(other, _)| *other == id);
        let (_, body) = match at_hand {
            Some(found) => self.bodies.remove(found),
            None => {
                let packed = match self.open.get(&id) {
                    Some(packed) => packed.clone(),
                    None => {
                        self.count(why);
                        self.reader()?.packed(id)?
                    }
                };
                let body = packed.unpack().map_err(|damaged| StoreError::Corrupt {
                    place: id.to_string(),
                    why: damaged.to_string(),
                })?;
                (id, body)
            }
        };
        let value = body.record(usize::from(place));
        if self.bodies.len() >= BODIES_MAX {
            self.bodies.remove(0);
        }
        self.bodies.push((id, body));
        value.ok_or_else(|| StoreError::Corrupt {
            place: id.to_string(),
            why: format!("it has no record {place}"),
        })
    }

    /// A chunk to move what lives from, if there is one.
    pub fn next_sparse(&mut self) -> Option<u32> {
        self.sparse.pop_first()
    }

    /// Whether chunks are there to move from.
    pub fn has_sparse(&self) -> bool {
        !self.sparse.is_empty()
    }

    // ---------------------------------------------------------------- folding

    /// Whether a fold should begin now.
    pub fn wants_fold(&self, now: MonoMs) -> bool {
        if !self.can_fold() {
            return false;
        }
        let since = MonoMs::since(now, self.folded_at);
        let empty_bytes = || {
            let bytes = self.empty.iter().filter_map(|chunk| self.chunk(*chunk));
            bytes.map(|meta| u64::from(meta.packed_bytes)).sum::<u64>()
        };
        let has_recent = !self.recent.tasks.is_empty() || !self.recent.notes.is_empty();
        let can_drop = !self.empty.is_empty() && !self.is_pinned();
        self.is_overdue
            || self.unfolded_bytes() >= self.options.fold_bytes
            || (since >= FOLD_AFTER && has_recent)
            || (since >= TIDY_AT_LAST && can_drop)
            || (since >= TIDY_AFTER && can_drop && empty_bytes() >= TIDY_BYTES)
    }

    /// Whether the fold before is through, and all of it is placed.
    pub fn can_fold(&self) -> bool {
        !self.is_folding && self.placing.is_empty() && self.folding.is_none()
    }

    /// From here on, until all pins are dropped, no chunk is.
    pub fn pin(&mut self) -> Pin {
        let pin = self.pins.upgrade().unwrap_or_default();
        self.pins = Arc::downgrade(&pin);
        Pin(pin)
    }

    fn is_pinned(&self) -> bool {
        self.pins.strong_count() > 0
    }

    /// The chunks with a record that lives, which of them are dead, and where to read them; with what
    /// [`Shelf::freeze`] has just frozen it is all there is.
    pub(super) fn parts(&self) -> Option<(Vec<Part>, Arc<dyn ReadChunks>)> {
        let live = self.chunks().filter(|(_, meta)| meta.live() > 0);
        let parts = live.map(|(_, meta)| Part {
            id: meta.id,
            class: meta.class,
            dead: meta.dead,
            live: meta.live(),
        });
        Some((parts.collect(), Arc::clone(self.beside.as_ref()?)))
    }

    /// How much folding a commit of so many bytes has to take along, so that memory stays bounded.
    pub fn fold_along(&self, bytes: usize) -> FoldAlong {
        let recent = self.unfolded_bytes();
        match self.options.fold_bytes {
            _ if !self.is_folding => FoldAlong::Nothing,
            most if recent > 2 * most => FoldAlong::All,
            most if recent > most / 2 => FoldAlong::Bytes(2 * bytes),
            _ => FoldAlong::Nothing,
        }
    }

    /// Freezes what is recent. The fold is to be handed to the store behind every commit so far.
    pub fn freeze(&mut self, now: MonoMs) -> Fold {
        // The next one will be about as large.
        let mut next = Memtable::default();
        next.tasks.reserve(self.recent.tasks.len());
        let table = Arc::new(std::mem::replace(&mut self.recent, next));
        self.stayed_bytes = 0;
        self.folding = Some(Arc::clone(&table));
        self.is_folding = true;
        self.folded_at = now;
        self.is_overdue = false;
        let marks = if self.counts.folds.is_multiple_of(MARKS_ANEW) {
            let all = self.chunks().map(|(_, meta)| (meta.id, meta.dead));
            Marks::All(all.filter(|(_, dead)| *dead != 0).collect())
        } else {
            let changed = self.changed.iter().filter_map(|chunk| self.chunk(*chunk));
            Marks::Changed(changed.map(|meta| (meta.id, meta.dead)).collect())
        };
        self.changed.clear();
        self.counts.folds += 1;
        if !self.is_pinned() {
            self.dropping = std::mem::take(&mut self.empty).into_iter().collect();
        }
        let drop = self.dropping.iter().filter_map(|chunk| self.chunk(*chunk));
        Fold {
            drop: drop.map(|meta| meta.id).collect(),
            table,
            marks,
        }
    }

    /// The fold is durable: what it dropped is gone, and its chunks are to be placed.
    pub fn folded(&mut self, chunks: Vec<ChunkIndex>) {
        self.is_folding = false;
        for chunk in std::mem::take(&mut self.dropping) {
            if let Some(meta) = self.chunks[chunk as usize].take() {
                self.counts.chunks -= 1;
                self.counts.chunk_bytes -= u64::from(meta.packed_bytes);
                self.counts.dead -= u64::from(meta.dead.count_ones());
                self.by_id.remove(&meta.id);
                self.changed.remove(&chunk);
                self.free.push(chunk);
            }
        }
        self.placing = chunks.into();
    }

    /// The next folded chunk whose records are to be found there.
    pub fn next_to_place(&mut self) -> Option<ChunkIndex> {
        self.placing.pop_front()
    }

    /// Whether chunks are left to be placed.
    pub fn is_placing(&self) -> bool {
        !self.placing.is_empty()
    }

    /// All is placed: the frozen table, to be dropped where it keeps nobody waiting.
    pub fn unfreeze(&mut self) -> Option<Arc<Memtable>> {
        if self.is_folding || !self.placing.is_empty() {
            return None;
        }
        self.folding.take()
    }

    /// A record could not be read.
    pub fn count_damaged(&mut self) {
        self.counts.damaged += 1;
    }

    /// What the shelf holds.
    pub fn counts(&self) -> ShelfCounts {
        ShelfCounts {
            recent_bytes: (self.recent.bytes + self.folding.as_ref().map_or(0, |table| table.bytes))
                as u64,
            ..self.counts
        }
    }
}

/// The value at a home, for a task whose record is there.
impl Shelf {
    /// The value of a task's record, wherever it is.
    ///
    /// # Errors
    /// Of the store, and when the record is not where it should be.
    pub fn read(&mut self, id: TaskId, home: Home, why: ReadFor) -> Result<Bytes, StoreError> {
        match home {
            Home::Memtable => {
                let recent = self.recent(id).ok_or_else(|| StoreError::Corrupt {
                    place: RecordKey::Task(id).to_string(),
                    why: "its record is in no table".to_owned(),
                })?;
                Ok(recent.value.clone())
            }
            Home::Chunk(chunk, place) => self.value(chunk, place, why),
        }
    }
}
