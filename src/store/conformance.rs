//! The contract of [`ShardStore`] as sentences, each run over every store.
//!
//! A store brings a [`Harness`]: how another owner gets at the same shard, how the process dies, and how a commit
//! is held on its way to the disk. For the local store the process "dies" by copying its files as they stand and
//! going on with the copy, which is what `kill -9` leaves; its owners write one record per slice of folding, so
//! that a crash can come between any two.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::clock::{SteadyMs, WallMs};
use crate::ids::{ShardEpoch, ShardId, TaskId};
use crate::limits;
use crate::store::local::journal::{JournalDirectory, JournalFiles, SegmentFile, SegmentId};
use crate::store::local::{LocalHome, LocalOptions, LocalStore};
use crate::store::mem::{Fault, Hold, MemDisk, MemStore};
use crate::store::{Batch, Begun, EVERY_DUE, KeptAnswer, Note, ShardStore, StoreError, Tended, Tombstone};
use crate::task::Task;
use crate::task::spec::RawJson;
use crate::testing::arbitrary::plain_task;

/// One shard's place of storage, over the lives of its owners.
pub(super) trait Harness {
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

pub(super) struct Mem(MemDisk);

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

pub(super) struct Local {
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
    pub(super) fn with_checkpoints_of(bytes: usize) -> Self {
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

    pub(super) fn wheel(&self) -> PathBuf {
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
pub(super) struct Content {
    pub(super) tasks: BTreeMap<TaskId, Task>,
    tombstones: BTreeMap<String, Tombstone>,
    answers: BTreeMap<u128, KeptAnswer>,
}

/// A store and the epoch it began.
pub(super) struct Owner<S> {
    pub(super) store: S,
    pub(super) begun: Begun,
}

impl<S: ShardStore> Owner<S> {
    pub(super) fn of(harness: &impl Harness<Store = S>) -> Self {
        let mut store = harness.store();
        let begun = store.begin().expect("a new owner can begin");
        Self { store, begun }
    }

    pub(super) fn commit(&mut self, batch: Batch) -> Result<(), StoreError> {
        self.store.commit(self.begun.epoch, batch)
    }

    pub(super) fn put(&mut self, tasks: &[Task]) {
        let mut batch = Batch::new(SteadyMs(0));
        tasks.iter().for_each(|task| batch.put_task(task));
        self.commit(batch).expect("the owner can commit");
    }

    pub(super) fn remove(&mut self, task: &Task) {
        let mut batch = Batch::new(SteadyMs(0));
        batch.remove_task(task.id);
        self.commit(batch).expect("the owner can commit");
    }

    pub(super) fn tend(&mut self) -> Tended {
        self.store.tend(self.begun.epoch).expect("the owner can tend")
    }

    pub(super) fn tend_to_the_end(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.tend() == Tended::More {
            assert!(Instant::now() < end, "tending does not end");
        }
    }

    fn tasks(&mut self, due: std::ops::Range<WallMs>) -> BTreeMap<TaskId, Task> {
        let mut tasks = BTreeMap::new();
        let mut visit = |task: Task| {
            let twice = tasks.insert(task.id, task);
            assert_eq!(twice, None, "a task is visited once");
        };
        self.store.read_due(due, &mut visit).expect("the owner can read");
        tasks
    }

    pub(super) fn content(&mut self) -> Content {
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
        self.store.read_notes(&mut visit).expect("the owner can read");
        content
    }
}

fn holding(tasks: &[Task]) -> Content {
    Content {
        tasks: tasks.iter().map(|task| (task.id, task.clone())).collect(),
        ..Content::default()
    }
}

fn task(n: u64, attempts: u32) -> Task {
    Task {
        attempts,
        ..plain_task(n)
    }
}

pub(super) fn large_task(n: u64, payload_bytes: usize) -> Task {
    let mut task = plain_task(n);
    // Not all alike, so that parts in the wrong order are noticed.
    let text: String = (0..payload_bytes).map(|at| char::from(b'a' + (at / 1000 % 23) as u8)).collect();
    Arc::make_mut(&mut task.spec).payload = Some(RawJson::from(text));
    task
}

fn a_tombstone(n: u64) -> Tombstone {
    let task = plain_task(n);
    Tombstone {
        topic: task.topic,
        key: task.key.expect("a plain task has a key"),
        until: SteadyMs(i64::try_from(n).expect("a test's number is small")),
        reason: "cancelled first".into(),
    }
}

fn an_answer(n: u64, answer: Option<(u16, Bytes)>) -> KeptAnswer {
    KeptAnswer {
        key: u128::from(n) << 100,
        body: u128::MAX,
        first_at: WallMs(1),
        until: SteadyMs(2),
        answer,
    }
}

fn is_stale<T>(result: &Result<T, StoreError>, given: ShardEpoch, present: ShardEpoch) -> bool {
    matches!(result, Err(StoreError::StaleEpoch { given: g, present: p }) if (*g, *p) == (given, present))
}

/// Makes a test of each sentence for each store.
macro_rules! sentences {
    ($($sentence:ident)*) => {
        mod mem {
            $(#[test] fn $sentence() { super::$sentence(super::Mem::default()); })*
        }
        mod local {
            $(#[test] fn $sentence() { super::$sentence(super::Local::default()); })*
        }
    };
}
sentences! {
    a_new_store_is_empty
    what_was_committed_is_there_after_a_crash_in_its_latest_form
    a_removed_task_is_gone
    a_batch_is_all_or_nothing
    changes_of_one_batch_count_in_their_order
    a_stale_epoch_is_refused_and_changes_nothing
    an_owner_is_refused_when_the_next_one_began_during_its_commit
    epochs_only_grow
    the_steady_mark_is_the_largest_committed
    notes_come_back_and_go
    only_what_is_due_in_the_range_is_visited
    a_crash_between_any_two_slices_of_tending_changes_nothing
    commits_between_slices_of_tending_win_over_what_is_folded
    a_new_owner_in_the_middle_of_tending_reads_the_same
    a_record_of_the_largest_size_comes_back_whole
    a_record_that_is_too_large_is_refused_and_the_store_goes_on
    a_failed_commit_ends_the_owner_and_leaves_the_rest_to_the_next
}

fn a_new_store_is_empty(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), Content::default());
    assert_eq!(owner.begun.epoch, ShardEpoch(1));
    assert_eq!(owner.tend(), Tended::Idle);
}

fn what_was_committed_is_there_after_a_crash_in_its_latest_form(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0), task(2, 0)]);
    owner.put(&[task(1, 7)]);
    let expected = holding(&[task(1, 7), task(2, 0)]);
    assert_eq!(owner.content(), expected);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn a_removed_task_is_gone(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0), task(2, 0), task(3, 0)]);
    owner.remove(&task(1, 0));
    assert_eq!(owner.content(), holding(&[task(2, 0), task(3, 0)]));
    owner.tend_to_the_end();
    owner.remove(&task(2, 0));
    let expected = holding(&[task(3, 0)]);
    assert_eq!(owner.content(), expected);
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), expected);
    owner.tend_to_the_end();
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn a_batch_is_all_or_nothing(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(9, 0)]);
    let hold = harness.hold_commit();
    let writer = std::thread::spawn(move || {
        let mut batch = Batch::new(SteadyMs(0));
        (0..50).for_each(|n| batch.put_task(&task(n, 1)));
        owner.commit(batch)
    });
    assert!(hold.wait_until_reached());
    harness.crash();
    hold.release();
    // Whatever the dead owner was told, nobody heard it.
    let _ = writer.join().expect("no panic");
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), holding(&[task(9, 0)]));
    let whole: Vec<Task> = (0..50).map(|n| task(n, 2)).collect();
    owner.put(&whole);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), holding(&whole));
}

fn changes_of_one_batch_count_in_their_order(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(&task(1, 0));
    batch.remove_task(task(1, 0).id);
    batch.put_task(&task(1, 5));
    batch.put_task(&task(2, 0));
    batch.remove_task(task(2, 0).id);
    owner.commit(batch).expect("the owner can commit");
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), holding(&[task(1, 5)]));
}

fn a_stale_epoch_is_refused_and_changes_nothing(mut harness: impl Harness) {
    let mut old = Owner::of(&harness);
    old.put(&[task(1, 0), task(2, 0)]);
    let mut new = Owner::of(&harness);
    for _ in 0..2 {
        let mut batch = Batch::new(SteadyMs(77));
        batch.put_task(&task(1, 9));
        batch.remove_task(task(2, 0).id);
        let refused = old.commit(batch);
        assert!(is_stale(&refused, old.begun.epoch, new.begun.epoch), "{refused:?}");
        let refused = old.store.tend(old.begun.epoch);
        assert!(is_stale(&refused, old.begun.epoch, new.begun.epoch), "{refused:?}");
    }
    let expected = holding(&[task(1, 0), task(2, 0)]);
    assert_eq!(new.content(), expected);
    new.put(&[]);
    harness.crash();
    let mut next = Owner::of(&harness);
    assert_eq!((next.content(), next.begun.steady), (expected, SteadyMs(0)));
}

fn an_owner_is_refused_when_the_next_one_began_during_its_commit(mut harness: impl Harness) {
    let mut old = Owner::of(&harness);
    old.put(&[task(1, 0)]);
    let given = old.begun.epoch;
    let hold = harness.hold_commit();
    let writer = std::thread::spawn(move || {
        let mut batch = Batch::new(SteadyMs(0));
        batch.put_task(&task(1, 9));
        old.commit(batch)
    });
    assert!(hold.wait_until_reached());
    let mut new = Owner::of(&harness);
    let seen = new.content();
    assert_eq!(seen, holding(&[task(1, 0)]));
    hold.release();
    let refused = writer.join().expect("no panic");
    assert!(is_stale(&refused, given, new.begun.epoch), "{refused:?}");
    assert_eq!(new.content(), seen);
    new.put(&[task(2, 0)]);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), holding(&[task(1, 0), task(2, 0)]));
}

fn epochs_only_grow(mut harness: impl Harness) {
    let mut last = ShardEpoch(0);
    for round in 0..8 {
        let mut owner = Owner::of(&harness);
        assert!(owner.begun.epoch > last, "{} after {last}", owner.begun.epoch);
        last = owner.begun.epoch;
        if round % 2 == 0 {
            owner.put(&[task(round, 0)]);
            owner.tend_to_the_end();
        }
        if round % 3 > 0 {
            harness.crash();
        }
    }
}

fn the_steady_mark_is_the_largest_committed(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    for steady in [5, 900, 30] {
        let mut batch = Batch::new(SteadyMs(steady));
        batch.put_task(&task(1, 0));
        owner.commit(batch).expect("the owner can commit");
    }
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.begun.steady, SteadyMs(900));
    owner.tend_to_the_end();
    owner.commit(Batch::new(SteadyMs(901))).expect("the owner can commit");
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.begun.steady, SteadyMs(901));
    owner.tend_to_the_end();
    harness.crash();
    assert_eq!(Owner::of(&harness).begun.steady, SteadyMs(901));
}

fn notes_come_back_and_go(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let (kept, gone) = (a_tombstone(1), a_tombstone(2));
    let answered = an_answer(1, Some((201, Bytes::from(vec![b'x'; limits::IDEMPOTENCY_ANSWER_BYTES_MAX]))));
    let unanswered = an_answer(2, None);
    let mut batch = Batch::new(SteadyMs(0));
    [&kept, &gone].into_iter().for_each(|tombstone| batch.put_tombstone(tombstone));
    [&answered, &unanswered, &an_answer(3, None)].into_iter().for_each(|answer| batch.put_answer(answer));
    owner.commit(batch).expect("the owner can commit");
    let mut batch = Batch::new(SteadyMs(0));
    batch.remove_tombstone(&gone.topic, &gone.key);
    batch.remove_answer(an_answer(3, None).key);
    owner.commit(batch).expect("the owner can commit");
    let content = owner.content();
    assert_eq!(content.tombstones.into_values().collect::<Vec<_>>(), [kept]);
    assert_eq!(content.answers.into_values().collect::<Vec<_>>(), [answered, unanswered]);
    let content = owner.content();
    for _ in 0..2 {
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.content(), content);
        owner.tend_to_the_end();
        assert_eq!(owner.content(), content);
    }
}

fn only_what_is_due_in_the_range_is_visited(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let tasks: Vec<Task> = (0..10).map(|n| task(n, 0)).collect();
    owner.put(&tasks);
    let range = tasks[3].due.at..tasks[7].due.at;
    let expected = holding(&tasks[3..7]).tasks;
    assert_eq!(owner.tasks(range.clone()), expected);
    owner.tend_to_the_end();
    assert_eq!(owner.tasks(range), expected);
}

/// Eight tasks of all sizes, then changes to them: what a fold over an earlier fold meets.
pub(super) fn two_rounds<S: ShardStore>(owner: &mut Owner<S>) -> Content {
    owner.put(&[task(1, 0), large_task(2, 50_000), large_task(3, 50_000), large_task(4, 70_000)]);
    owner.tend_to_the_end();
    let latest = [task(1, 1), large_task(2, 90_000), task(3, 1), large_task(5, 30_000)];
    let mut batch = Batch::new(SteadyMs(0));
    latest.iter().for_each(|task| batch.put_task(task));
    batch.remove_task(task(4, 0).id);
    owner.commit(batch).expect("the owner can commit");
    holding(&latest)
}

fn a_crash_between_any_two_slices_of_tending_changes_nothing(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let expected = two_rounds(&mut owner);
    // Each life gets one slice further before it ends, until one gets through.
    for slices in 1.. {
        assert!(slices < 100_000, "tending does not end");
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.content(), expected, "before {slices} slices");
        let is_through = (0..slices).any(|_| owner.tend() == Tended::Idle);
        assert_eq!(owner.content(), expected, "after {slices} slices");
        harness.check();
        if is_through || slices > 12 {
            break;
        }
    }
    owner.tend_to_the_end();
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn commits_between_slices_of_tending_win_over_what_is_folded(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&(0..6).map(|n| task(n, 0)).collect::<Vec<_>>());
    for n in 0..6 {
        owner.tend();
        if n % 2 == 0 {
            owner.put(&[large_task(n, 30_000)]);
        } else {
            owner.remove(&task(n, 0));
        }
    }
    let expected = holding(&[0, 2, 4].map(|n| large_task(n, 30_000)));
    assert_eq!(owner.content(), expected);
    owner.tend_to_the_end();
    assert_eq!(owner.content(), expected);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn a_new_owner_in_the_middle_of_tending_reads_the_same(harness: impl Harness) {
    let mut old = Owner::of(&harness);
    let mut expected = two_rounds(&mut old);
    for round in 0..10 {
        for _ in 0..round {
            old.tend();
        }
        let mut new = Owner::of(&harness);
        assert_eq!(new.content(), expected);
        let change = task(1, round);
        new.put(std::slice::from_ref(&change));
        expected.tasks.insert(change.id, change);
        let refused = old.store.tend(old.begun.epoch);
        assert!(is_stale(&refused, old.begun.epoch, new.begun.epoch), "{refused:?}");
        old = new;
    }
    old.tend_to_the_end();
    assert_eq!(old.content(), expected);
}

fn a_record_of_the_largest_size_comes_back_whole(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let tasks: Vec<Task> = (0..12).map(|n| large_task(n, limits::PAYLOAD_BYTES_MAX)).collect();
    owner.put(&tasks);
    owner.tend_to_the_end();
    harness.check();
    assert_eq!(owner.content(), holding(&tasks));
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), holding(&tasks));
    tasks[1..].iter().for_each(|task| owner.remove(task));
    owner.tend_to_the_end();
    harness.check();
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), holding(&tasks[..1]));
}

fn a_record_that_is_too_large_is_refused_and_the_store_goes_on(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(&task(1, 0));
    batch.put_task(&large_task(2, 5_000_000));
    let refused = owner.commit(batch);
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    owner.put(&[task(3, 0)]);
    assert_eq!(owner.content(), holding(&[task(3, 0)]));
}

fn a_failed_commit_ends_the_owner_and_leaves_the_rest_to_the_next(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0)]);
    harness.fail_commit();
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(&task(1, 1));
    let failed = owner.commit(batch.clone());
    assert!(matches!(failed, Err(StoreError::Io { .. })), "{failed:?}");
    let refused = owner.commit(batch);
    assert!(matches!(refused, Err(StoreError::Poisoned)), "{refused:?}");
    let mut next = Owner::of(&harness);
    assert_eq!(next.content(), holding(&[task(1, 0)]));
    next.put(&[task(2, 0)]);
    assert_eq!(next.content(), holding(&[task(1, 0), task(2, 0)]));
}

#[derive(Clone, Debug)]
enum Step {
    /// Puts (with this payload) or removes tasks, together with a tombstone and an answer.
    Commit(Vec<(u64, Option<usize>)>),
    Tend(usize),
    /// Another owner begins; the old one stays around.
    Replace,
    /// Old owners try to commit and to tend.
    Zombies,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let payload = prop_oneof![6 => 0..300_usize, 1 => 18_000..24_000_usize, 1 => 40_000..130_000_usize];
    let change = (0..10_u64, prop::option::weighted(0.7, payload));
    let step = prop_oneof![
        8 => prop::collection::vec(change, 0..5).prop_map(Step::Commit),
        6 => (1..40_usize).prop_map(Step::Tend),
        1 => Just(Step::Replace),
        1 => Just(Step::Zombies),
        2 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..40)
}

fn what_can_be_read_is_what_was_committed(mut harness: impl Harness, steps: Vec<Step>) {
    let mut owner = Owner::of(&harness);
    let mut zombies = VecDeque::new();
    let mut expected = Content::default();
    let mut steady = 0;
    for step in steps {
        match step {
            Step::Commit(changes) => {
                steady += 1;
                let mut batch = Batch::new(SteadyMs(steady));
                for (n, payload) in changes {
                    if let Some(bytes) = payload {
                        let task = large_task(n, bytes);
                        batch.put_task(&task);
                        expected.tasks.insert(task.id, task);
                        let (tombstone, answer) = (a_tombstone(n), an_answer(n, None));
                        batch.put_tombstone(&tombstone);
                        batch.put_answer(&answer);
                        expected.tombstones.insert(format!("{}\0{}", tombstone.topic, tombstone.key), tombstone);
                        expected.answers.insert(answer.key, answer);
                    } else {
                        let tombstone = a_tombstone(n);
                        batch.remove_task(plain_task(n).id);
                        batch.remove_tombstone(&tombstone.topic, &tombstone.key);
                        expected.tasks.remove(&plain_task(n).id);
                        expected.tombstones.remove(&format!("{}\0{}", tombstone.topic, tombstone.key));
                    }
                }
                owner.commit(batch).expect("the owner can commit");
            }
            Step::Tend(slices) => {
                for _ in 0..slices {
                    if owner.tend() == Tended::Idle {
                        break;
                    }
                }
            }
            Step::Replace => {
                zombies.push_back(std::mem::replace(&mut owner, Owner::of(&harness)));
                assert_eq!(owner.content(), expected);
            }
            Step::Zombies => {
                for zombie in &mut zombies {
                    let mut batch = Batch::new(SteadyMs(i64::MAX));
                    batch.put_task(&task(1, 666));
                    let refused = zombie.commit(batch);
                    assert!(is_stale(&refused, zombie.begun.epoch, owner.begun.epoch), "{refused:?}");
                    assert!(zombie.store.tend(zombie.begun.epoch).is_err());
                }
            }
            Step::Crash => {
                zombies.clear();
                harness.crash();
                let last = owner.begun.epoch;
                owner = Owner::of(&harness);
                assert!(owner.begun.epoch > last);
                assert_eq!(owner.begun.steady, SteadyMs(steady));
                assert_eq!(owner.content(), expected);
            }
        }
        harness.check();
    }
    assert_eq!(owner.content(), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_can_be_read_is_what_was_committed_in_memory(steps in steps()) {
        what_can_be_read_is_what_was_committed(Mem::default(), steps);
    }
}

proptest! {
    // A database is opened and its files are copied at each crash.
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_can_be_read_is_what_was_committed_locally(steps in steps(), checkpoint_bytes in 0..200_000_usize) {
        what_can_be_read_is_what_was_committed(Local::with_checkpoints_of(checkpoint_bytes), steps);
    }
}
