//! What a store brings to the suite: how another owner gets at the same shard, how the process dies, and how a
//! commit is held or refused on its way to the disk.
//!
//! For the local store the process "dies" by copying its files as they stand and going on with the copy: that is
//! what `kill -9` leaves, and what only sled's buffers held is lost.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::clock::{SteadyMs, WallMs};
use crate::ids::{ShardId, TaskId};
use crate::store::local::journal::{JournalDirectory, JournalFiles, SegmentFile, SegmentId};
use crate::store::local::{LocalHome, LocalOptions, LocalStore};
use crate::store::mem::{Fault, Hold, MemDisk, MemStore};
use crate::store::{
    Batch, Begun, EVERY_DUE, KeptAnswer, Note, ShardStore, StoreError, Tended, Tombstone,
};
use crate::task::Task;

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

pub(in crate::store) struct Mem(MemDisk);

impl Default for Mem {
    fn default() -> Self {
        Self(MemDisk::new())
    }
}

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
    checkpoint_bytes: usize,
    next_write: Arc<Mutex<Option<Trick>>>,
}

/// What befalls the next write to the journal.
enum Trick {
    Hold(Hold),
    Fail,
}

impl Default for Local {
    fn default() -> Self {
        Self::with_checkpoints_of(0)
    }
}

impl Local {
    pub(in crate::store) fn with_checkpoints_of(bytes: usize) -> Self {
        Self::over(tempfile::tempdir().expect("a directory for a test"), bytes)
    }

    fn over(data: TempDir, checkpoint_bytes: usize) -> Self {
        let next_write = Arc::new(Mutex::new(None));
        let options = LocalOptions {
            checkpoint_bytes,
            cache_bytes: 4 * 1024 * 1024,
            // Not in a test's time: it would write while files are copied.
            flush_every_ms: 600_000,
            slice: Duration::ZERO,
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
            checkpoint_bytes,
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
        *self = Self::over(copy, self.checkpoint_bytes);
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
    pub(in crate::store) tombstones: BTreeMap<String, Tombstone>,
    pub(in crate::store) answers: BTreeMap<u128, KeptAnswer>,
}

/// A store and the epoch it began.
pub(in crate::store) struct Owner<S> {
    pub(in crate::store) store: S,
    pub(in crate::store) begun: Begun,
}

impl<S: ShardStore> Owner<S> {
    pub(in crate::store) fn of(harness: &impl Harness<Store = S>) -> Self {
        let mut store = harness.store();
        let begun = store.begin().expect("a new owner can begin");
        Self { store, begun }
    }

    pub(in crate::store) fn commit(&mut self, batch: Batch) -> Result<(), StoreError> {
        self.store.commit(self.begun.epoch, batch)
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

    pub(in crate::store) fn tend(&mut self) -> Tended {
        self.store
            .tend(self.begun.epoch)
            .expect("the owner can tend")
    }

    pub(in crate::store) fn tend_to_the_end(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.tend() == Tended::More {
            assert!(Instant::now() < end, "tending does not end");
        }
    }

    pub(in crate::store) fn tasks(&mut self, due: Range<WallMs>) -> BTreeMap<TaskId, Task> {
        let mut tasks = BTreeMap::new();
        let mut visit = |task: Task| {
            let twice = tasks.insert(task.id, task);
            assert_eq!(twice, None, "a task is visited once");
        };
        self.store
            .read_due(due, &mut visit)
            .expect("the owner can read");
        tasks
    }

    pub(in crate::store) fn content(&mut self) -> Content {
        let mut content = Content {
            tasks: self.tasks(EVERY_DUE),
            ..Content::default()
        };
        let mut visit = |note| {
            let is_new = match note {
                Note::Tombstone(tombstone) => {
                    let key = format!("{}\0{}", tombstone.topic, tombstone.key);
                    content.tombstones.insert(key, tombstone).is_none()
                }
                Note::Answer(answer) => content.answers.insert(answer.key, answer).is_none(),
            };
            assert!(is_new, "a note is visited once");
        };
        self.store
            .read_notes(&mut visit)
            .expect("the owner can read");
        content
    }
}
