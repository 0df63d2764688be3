//! What a store brings to the suite: how another owner gets at the same shard, how the process dies, and how a
//! commit is held or refused on its way to the disk. And an [`Owner`], which stands for the shard: it keeps the
//! memtable, knows where each record is, and marks what is dead.
//!
//! For the local store the process "dies" by copying its files as they stand and going on with the copy: that is
//! what `kill -9` leaves, and what only sled's buffers held is lost.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::clock::SteadyMs;
use crate::ids::{AttemptToken, ShardId, TaskId};
use crate::store::chunk::{
    ChunkBody, ChunkId, Class, Entry, Fold, Folded, Marks, Mask, Memtable, Recent, full_mask,
};
use crate::store::codec::{Cancel, decode_cancel, decode_note, decode_task};
use crate::store::local::journal::{JournalDirectory, JournalFiles, SegmentFile, SegmentId};
use crate::store::local::{LocalHome, LocalOptions, LocalStore};
use crate::store::mem::{Fault, Hold, MemDisk, MemStore};
use crate::store::{
    Batch, Begun, Change, KeptAnswer, Note, RecordKey, ShardStore, StoreError, Stored, Tended,
    Tombstone,
};
use crate::task::Task;
use crate::task::late::LateAnswer;
use crate::task::model::State;

/// One shard's place of storage, over the lives of its owners.
pub(in crate::store) trait Harness {
    type Store: ShardStore;

    /// A store for another owner, beside those that there are.
    fn store(&self) -> Self::Store;

    /// The process dies. Owners from before may live on, as after a partition, but see nothing of what follows.
    fn crash(&mut self);

    /// Holds the next commit on its way to the disk.
    fn hold_commit(&self) -> Hold;

    /// Makes the disk refuse the next commit.
    fn fail_commit(&self);

    /// What must be true of the files at any time.
    fn check(&self) {}
}

#[derive(Default)]
pub(in crate::store) struct Mem(MemDisk);

impl Harness for Mem {
    type Store = MemStore;

    fn store(&self) -> MemStore {
        self.0.store()
    }

    fn crash(&mut self) {
        self.0.crash();
    }

    fn hold_commit(&self) -> Hold {
        self.0.hold_commit()
    }

    fn fail_commit(&self) {
        self.0.fail_commit(1, Fault::BeforeSync);
    }
}

pub(in crate::store) struct Local {
    data: TempDir,
    home: LocalHome,
    slice: Duration,
    next_write: Arc<Mutex<Option<Trick>>>,
}

/// What befalls the next write to the journal.
enum Trick {
    Hold(Hold),
    Fail,
}

impl Default for Local {
    fn default() -> Self {
        Self::with_slices_of(Duration::ZERO)
    }
}

impl Local {
    pub(in crate::store) fn with_slices_of(slice: Duration) -> Self {
        Self::over(tempfile::tempdir().expect("a directory for a test"), slice)
    }

    fn over(data: TempDir, slice: Duration) -> Self {
        let next_write = Arc::new(Mutex::new(None));
        let options = LocalOptions {
            cache_bytes: 4 * 1024 * 1024,
            // Not in a test's time: it would write while files are copied.
            flush_every_ms: 600_000,
            slice,
            ..LocalOptions::default()
        };
        let tricks = next_write.clone();
        let home = LocalHome::with_journal(data.path(), options, move |path| {
            Ok(Box::new(TrickyFiles {
                files: JournalDirectory::open(path)?,
                next_write: tricks.clone(),
            }))
        });
        Self {
            data,
            home,
            slice,
            next_write,
        }
    }

    pub(in crate::store) fn wheel(&self) -> PathBuf {
        self.data.path().join("shards/000/wheel")
    }
}

impl Harness for Local {
    type Store = LocalStore;

    fn store(&self) -> LocalStore {
        self.home.store(ShardId(0))
    }

    fn crash(&mut self) {
        let copy = tempfile::tempdir().expect("a directory for a test");
        copy_directory(self.data.path(), copy.path()).expect("files can be copied");
        *self = Self::over(copy, self.slice);
    }

    fn hold_commit(&self) -> Hold {
        let hold = Hold::default();
        *self.next_write.lock() = Some(Trick::Hold(hold.clone()));
        hold
    }

    fn fail_commit(&self) {
        *self.next_write.lock() = Some(Trick::Fail);
    }

    fn check(&self) {
        if let Ok(mut spilled) = fs::read_dir(self.wheel().join("blobs")) {
            assert!(spilled.next().is_none(), "sled wrote a blob");
        }
    }
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

struct TrickyFiles {
    files: JournalDirectory,
    next_write: Arc<Mutex<Option<Trick>>>,
}

struct TrickyFile {
    file: Box<dyn SegmentFile>,
    next_write: Arc<Mutex<Option<Trick>>>,
}

impl TrickyFiles {
    fn tricky(&self, file: Box<dyn SegmentFile>) -> Box<dyn SegmentFile> {
        let next_write = self.next_write.clone();
        Box::new(TrickyFile { file, next_write })
    }
}

impl JournalFiles for TrickyFiles {
    fn directory(&self) -> &Path {
        self.files.directory()
    }

    fn list(&self) -> io::Result<Vec<SegmentId>> {
        self.files.list()
    }

    fn read(&self, id: SegmentId, bytes_max: u64) -> io::Result<Vec<u8>> {
        self.files.read(id, bytes_max)
    }

    fn create(&self, id: SegmentId, bytes: u64) -> io::Result<Box<dyn SegmentFile>> {
        Ok(self.tricky(self.files.create(id, bytes)?))
    }

    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        Ok(self.tricky(self.files.open(id)?))
    }

    fn remove(&self, id: SegmentId) -> io::Result<()> {
        self.files.remove(id)
    }

    fn read_bookmark(&self) -> io::Result<Vec<u8>> {
        self.files.read_bookmark()
    }

    fn open_bookmark(&self) -> io::Result<Box<dyn SegmentFile>> {
        self.files.open_bookmark()
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.files.sync_directory()
    }
}

impl SegmentFile for TrickyFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let trick = self.next_write.lock().take();
        match trick {
            Some(Trick::Hold(hold)) => hold.stop_here(),
            Some(Trick::Fail) => return Err(io::Error::other("a test made it fail")),
            None => {}
        }
        self.file.write_at(offset, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

/// All that a store holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::store) struct Content {
    pub(in crate::store) tasks: BTreeMap<TaskId, Task>,
    /// Of tasks whose records were not read for it.
    pub(in crate::store) cancels: BTreeMap<TaskId, Cancel>,
    pub(in crate::store) tombstones: BTreeMap<String, Tombstone>,
    pub(in crate::store) answers: BTreeMap<u128, KeptAnswer>,
    pub(in crate::store) late: BTreeMap<AttemptToken, LateAnswer>,
}

/// Where a record stands.
#[derive(Clone, Debug)]
struct Place {
    chunk: ChunkId,
    at: usize,
    entry: Entry,
}

/// How far tending has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Progress {
    Idle,
    More,
    Folded,
}

/// What an owner knows of a chunk.
#[derive(Clone, Copy, Debug)]
struct Known {
    records: usize,
    mask: Mask,
}

/// A store, the epoch it began, and what a shard keeps beside it.
pub(in crate::store) struct Owner<S> {
    pub(in crate::store) store: S,
    pub(in crate::store) begun: Begun,
    /// What did not read back.
    pub(in crate::store) damaged: Vec<(String, String)>,
    /// Whether the next fold writes all marks.
    pub(in crate::store) writes_all_marks: bool,
    table: Memtable,
    folding: Option<Arc<Memtable>>,
    /// Tasks whose records in the table that is being folded are dead by now.
    outdated: HashSet<TaskId>,
    chunks: BTreeMap<ChunkId, Known>,
    changed_masks: BTreeSet<ChunkId>,
    drop: Vec<ChunkId>,
    /// Live records in chunks: a task's own, and a cancel of it after that.
    places: HashMap<TaskId, Vec<Place>>,
    notes: BTreeMap<RecordKey, Note>,
}

impl<S: ShardStore> Owner<S> {
    /// A new owner that has read everything, and found nothing damaged.
    pub(in crate::store) fn of(harness: &impl Harness<Store = S>) -> Self {
        let owner = Self::of_damaged(harness);
        assert_eq!(owner.damaged, [], "nothing is damaged");
        owner
    }

    /// A new owner that has read what can be read.
    pub(in crate::store) fn of_damaged(harness: &impl Harness<Store = S>) -> Self {
        let mut store = harness.store();
        let begun = store.begin().expect("a new owner can begin");
        let mut stored = Vec::new();
        store
            .recover(&mut |found| stored.push(found))
            .expect("a new owner can read");
        let mut owner = Self {
            store,
            begun,
            damaged: Vec::new(),
            writes_all_marks: false,
            table: Memtable::default(),
            folding: None,
            outdated: HashSet::new(),
            chunks: BTreeMap::new(),
            changed_masks: BTreeSet::new(),
            drop: Vec::new(),
            places: HashMap::new(),
            notes: BTreeMap::new(),
        };
        owner.take_in(stored);
        owner
    }

    fn take_in(&mut self, stored: Vec<Stored>) {
        let mut has_changes = false;
        for found in stored {
            assert!(
                matches!(found, Stored::Change(..)) || !has_changes,
                "changes come after all else"
            );
            match found {
                Stored::Chunk(index, mask) => {
                    let last = self.chunks.last_key_value().map(|(id, _)| *id);
                    assert!(last < Some(index.id), "{last:?} before {}", index.id);
                    self.add_chunk(index.id, index.entries, mask);
                }
                Stored::Damaged { place, why } => self.damaged.push((place, why)),
                Stored::Note(note) => {
                    let key = match &note {
                        Note::Tombstone(it) => RecordKey::tombstone(&it.topic, &it.key),
                        Note::Answer(it) => RecordKey::Answer(it.key),
                        Note::Late(it) => RecordKey::late(it),
                    };
                    let twice = self.notes.insert(key, note);
                    assert_eq!(twice, None, "a note is visited once");
                }
                Stored::Change(key, change) => {
                    has_changes = true;
                    self.apply(key, change);
                }
            }
        }
        for (id, places) in &self.places {
            let own = places
                .iter()
                .filter(|place| place.entry.class != Class::Cancels);
            assert!(own.count() <= 1, "marks leave one record of task {id}");
        }
    }

    fn add_chunk(&mut self, chunk: ChunkId, entries: Vec<Entry>, mask: Mask) {
        let records = entries.len();
        self.chunks.insert(chunk, Known { records, mask });
        for (at, entry) in entries.into_iter().enumerate() {
            if mask >> at & 1 == 0 {
                let places = self.places.entry(entry.id).or_default();
                places.push(Place { chunk, at, entry });
            }
        }
    }

    fn apply(&mut self, key: RecordKey, change: Change) {
        let RecordKey::Task(id) = key else {
            let (note, value) = match change {
                Change::Put(value) => (decode_note(key, &value).expect("a note"), Some(value)),
                Change::Cancel(_) => panic!("a cancel of a note"),
                Change::Remove => (None, None),
            };
            match note {
                Some(note) => self.notes.insert(key, note),
                None => self.notes.remove(&key),
            };
            self.table.notes.insert(key, value);
            return;
        };
        match change {
            Change::Put(value) => {
                let task = decode_task(id, &value).expect("a task");
                let entry = Entry::of(&task, self.begun.seed);
                self.outdate(id);
                self.table.tasks.insert(id, Recent { entry, value });
            }
            Change::Cancel(value) => {
                let cancel = decode_cancel(id, &value).expect("a cancel");
                let places = &self.places[&id];
                let until = cancel.steady.0.saturating_add(cancel.retention.0 as i64);
                let entry = Entry {
                    class: Class::Cancels,
                    state: State::Cancelled,
                    wake_ms: until,
                    ..places[0].entry.clone()
                };
                self.table.tasks.insert(id, Recent { entry, value });
            }
            Change::Remove => {
                self.outdate(id);
                self.table.tasks.swap_remove(&id);
            }
        }
    }

    /// All records of the task in chunks are dead.
    fn outdate(&mut self, id: TaskId) {
        self.outdated.insert(id);
        for place in self.places.remove(&id).unwrap_or_default() {
            self.kill(place.chunk, place.at);
        }
    }

    fn kill(&mut self, chunk: ChunkId, at: usize) {
        let known = self.chunks.get_mut(&chunk).expect("a chunk that is there");
        known.mask |= 1 << at;
        self.changed_masks.insert(chunk);
    }

    pub(in crate::store) fn commit(&mut self, mut batch: Batch) -> Result<(), StoreError> {
        self.store.commit(self.begun.epoch, &batch)?;
        for (key, change) in batch.changes() {
            self.apply(key, change);
        }
        self.table.bytes += batch.bytes();
        Ok(())
    }

    pub(in crate::store) fn put(&mut self, tasks: &[Task]) {
        let mut batch = Batch::new(SteadyMs(0));
        tasks.iter().for_each(|task| batch.put_task(task));
        self.commit(batch).expect("the owner can commit");
    }

    pub(in crate::store) fn remove(&mut self, task: &Task) {
        let mut batch = Batch::new(SteadyMs(0));
        batch.remove_task(task.id);
        self.commit(batch).expect("the owner can commit");
    }

    /// The chunks that there are, as far as this owner knows.
    pub(in crate::store) fn chunks(&self) -> Vec<ChunkId> {
        self.chunks.keys().copied().collect()
    }

    /// Drops a chunk with the next fold, whatever is in it.
    pub(in crate::store) fn drop_chunk(&mut self, chunk: ChunkId) {
        self.drop.push(chunk);
    }

    /// Hands in all that was committed, with what is dead of older chunks.
    pub(in crate::store) fn fold(&mut self) -> Result<(), StoreError> {
        let dead = self.chunks.iter().filter(|(_, known)| {
            let full = full_mask(known.records);
            known.mask & full == full
        });
        let mut drop = std::mem::take(&mut self.drop);
        drop.extend(dead.map(|(chunk, _)| *chunk));
        drop.sort_unstable();
        drop.dedup();
        for chunk in &drop {
            self.chunks.remove(chunk);
            self.changed_masks.remove(chunk);
        }
        self.places.retain(|_, places| {
            places.retain(|place| self.chunks.contains_key(&place.chunk));
            !places.is_empty()
        });
        let changed = std::mem::take(&mut self.changed_masks);
        let masks = self
            .chunks
            .iter()
            .map(|(chunk, known)| (*chunk, known.mask));
        let marks = if std::mem::take(&mut self.writes_all_marks) {
            Marks::All(masks.filter(|(_, mask)| *mask != 0).collect())
        } else {
            Marks::Changed(masks.filter(|(chunk, _)| changed.contains(chunk)).collect())
        };
        let table = Arc::new(std::mem::take(&mut self.table));
        self.outdated.clear();
        self.folding = Some(table.clone());
        let fold = Fold { table, marks, drop };
        self.store.fold(self.begun.epoch, fold)
    }

    fn folded(&mut self, folded: Folded) {
        self.folding = None;
        for index in folded.chunks {
            let records = index.entries.len();
            self.chunks.insert(index.id, Known { records, mask: 0 });
            for (at, entry) in index.entries.into_iter().enumerate() {
                if self.outdated.contains(&entry.id) {
                    self.kill(index.id, at);
                } else {
                    let chunk = index.id;
                    let places = self.places.entry(entry.id).or_default();
                    places.push(Place { chunk, at, entry });
                }
            }
        }
    }

    /// Folds what there is to be folded, one slice further.
    pub(in crate::store) fn tend(&mut self) -> Progress {
        let has_work = !self.table.tasks.is_empty()
            || !self.table.notes.is_empty()
            || !self.changed_masks.is_empty()
            || !self.drop.is_empty()
            || self.writes_all_marks;
        if self.folding.is_none() && has_work {
            self.fold().expect("the owner can fold");
        }
        let tended = self.store.tend(self.begun.epoch, 0);
        match tended.expect("the owner can tend") {
            Tended::Idle => Progress::Idle,
            Tended::More | Tended::Waits => Progress::More,
            Tended::Folded(folded) => {
                self.folded(folded);
                Progress::Folded
            }
        }
    }

    pub(in crate::store) fn tend_to_the_end(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.tend() != Progress::Idle {
            assert!(Instant::now() < end, "tending does not end");
        }
    }

    /// What this owner can read.
    pub(in crate::store) fn content(&self) -> Content {
        let mut content = Content::default();
        let reader = self.store.reader().expect("the owner can read");
        let mut bodies: HashMap<ChunkId, ChunkBody> = HashMap::new();
        for place in self.places.values().flatten() {
            let body = bodies.entry(place.chunk).or_insert_with(|| {
                let packed = reader.packed(place.chunk).expect("a chunk that is there");
                packed.unpack().expect("a body that is whole")
            });
            let index = reader.index(place.chunk).expect("a chunk that is there");
            assert_eq!(index.entries[place.at], place.entry);
            let record = body.record(place.at).expect("a record for each entry");
            content.take_in(&place.entry, &record);
        }
        let folding = self.folding.iter().flat_map(|table| table.tasks.values());
        let folding = folding.filter(|recent| !self.outdated.contains(&recent.entry.id));
        for recent in folding.chain(self.table.tasks.values()) {
            content.take_in(&recent.entry, &recent.value);
        }
        for note in self.notes.values() {
            match note.clone() {
                Note::Tombstone(it) => {
                    let key = format!("{}\0{}", it.topic, it.key);
                    content.tombstones.insert(key, it);
                }
                Note::Answer(it) => {
                    content.answers.insert(it.key, it);
                }
                Note::Late(it) => {
                    content.late.insert(it.token, *it);
                }
            }
        }
        content
    }
}

impl Content {
    fn take_in(&mut self, entry: &Entry, record: &[u8]) {
        if entry.class == Class::Cancels {
            let cancel = decode_cancel(entry.id, record).expect("a cancel");
            self.cancels.insert(entry.id, cancel);
        } else {
            let task = decode_task(entry.id, record).expect("a task");
            self.tasks.insert(entry.id, task);
        }
    }
}
