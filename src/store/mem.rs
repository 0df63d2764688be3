//! The reference store: a shard's store in memory, over a disk that outlives its owners.
//!
//! [`MemDisk`] stands for the machine's disk: clones share it, and [`MemDisk::crash`] takes from it what was not
//! synced and from its owners the right to go on. It obeys the contract of [`crate::store`] to the letter, and a
//! test can make it do what real disks do:
//!
//! ```text
//!  fail_commit(n, BeforeSync)   the n-th commit fails, nothing of it is there
//!  fail_commit(n, AfterSync)    the n-th commit fails, all of it is there
//!  hold_commit()                the next commit waits, written but not synced, until it is let go
//!  fail_reads(n)                the next n reads of chunks fail
//!  damage(chunk)                a chunk's body no longer reads
//!  take_over()                  another owner has begun: every owner there is has a stale epoch
//! ```

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use uuid::Uuid;

use crate::clock::SteadyMs;
use crate::ids::ShardEpoch;
use crate::store::chunk::{
    ChunkId, ChunkIndex, Cut, Cutter, Fold, Folded, Marks, Mask, PackedChunk, ReadChunks,
};
use crate::store::codec::{RECORD_BYTES_MAX, decode_note};
use crate::store::{Batch, Begun, RecordKey, ShardStore, StoreError, Stored, Tended};

/// Longest wait for a held commit, from either side.
const HOLD_MAX: Duration = Duration::from_secs(30);
/// Slices of a fold: in the last of them it becomes visible as a whole.
const SLICES: u32 = 3;

/// A disk in memory. Clones share it.
#[derive(Clone)]
pub struct MemDisk(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    chunks: BTreeMap<ChunkId, (ChunkIndex, PackedChunk)>,
    masks: HashMap<ChunkId, Mask>,
    notes: BTreeMap<RecordKey, Bytes>,
    /// What no fold has covered yet.
    journal: Vec<Batch>,
    next_chunk: ChunkId,
    steady: SteadyMs,
    epoch: ShardEpoch,
    seed: u64,
    /// How often the machine crashed; an owner from before is dead.
    crashes: u32,
    commits: u64,
    fault: Option<(u64, Fault)>,
    hold: Option<Hold>,
    failing_reads: u32,
}

/// When a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Before it is durable: nothing of it is there.
    BeforeSync,
    /// After it became durable: all of it is there, and nobody was told.
    AfterSync,
}

impl Default for MemDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Disk {
            seed: Uuid::new_v4().as_u128() as u64,
            ..Disk::default()
        })))
    }

    /// A store over this disk, for a new owner.
    pub fn store(&self) -> MemStore {
        MemStore {
            disk: self.clone(),
            crashes: self.0.lock().crashes,
            poisoned: false,
            folding: None,
        }
    }

    /// Kills every owner and forgets what was not synced.
    pub fn crash(&self) {
        let mut disk = self.0.lock();
        disk.crashes += 1;
        disk.fault = None;
        disk.failing_reads = 0;
        if let Some(hold) = disk.hold.take() {
            hold.release();
        }
    }

    /// Mints an epoch in the name of another owner, as its `begin` would.
    pub fn take_over(&self) -> ShardEpoch {
        let mut disk = self.0.lock();
        disk.epoch.0 += 1;
        disk.epoch
    }

    /// Makes the `nth` commit from now (1 is the next) fail.
    pub fn fail_commit(&self, nth: u64, fault: Fault) {
        let mut disk = self.0.lock();
        disk.fault = Some((disk.commits + nth, fault));
    }

    /// Makes the next commit wait between write and sync until the hold is released or dropped.
    pub fn hold_commit(&self) -> Hold {
        let hold = Hold::default();
        self.0.lock().hold = Some(hold.clone());
        hold
    }

    /// Makes the next `count` reads of chunks fail.
    pub fn fail_reads(&self, count: u32) {
        self.0.lock().failing_reads = count;
    }

    /// Changes one byte of a chunk's body. Whether there is such a chunk.
    pub fn damage(&self, chunk: ChunkId) -> bool {
        let mut disk = self.0.lock();
        let Some((_, body)) = disk.chunks.get_mut(&chunk) else {
            return false;
        };
        let mut bytes = body.bytes.to_vec();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        body.bytes = bytes.into();
        true
    }

    /// The chunks there are, in order.
    pub fn chunks(&self) -> Vec<ChunkId> {
        self.0.lock().chunks.keys().copied().collect()
    }

    /// How many commits were tried.
    pub fn commits(&self) -> u64 {
        self.0.lock().commits
    }
}

/// A place where a commit waits until a test lets it go. Clones share it; waits end after 30 s by themselves.
#[derive(Clone, Default)]
pub struct Hold(Arc<(Mutex<HoldState>, Condvar)>);

#[derive(Default)]
struct HoldState {
    is_reached: bool,
    is_released: bool,
}

impl Hold {
    /// Waits until a commit has got here. Whether one has.
    pub fn wait_until_reached(&self) -> bool {
        self.wait(|state| state.is_reached)
    }

    /// Lets the commit go on.
    pub fn release(&self) {
        self.change(|state| state.is_released = true);
    }

    /// The held side: says that it is here and waits to be let go.
    pub fn stop_here(&self) {
        self.change(|state| state.is_reached = true);
        self.wait(|state| state.is_released);
    }

    fn change(&self, change: impl FnOnce(&mut HoldState)) {
        change(&mut self.0.0.lock());
        self.0.1.notify_all();
    }

    fn wait(&self, until: impl Fn(&HoldState) -> bool) -> bool {
        let end = Instant::now() + HOLD_MAX;
        let mut state = self.0.0.lock();
        while !until(&state) {
            if self.0.1.wait_until(&mut state, end).timed_out() {
                return until(&state);
            }
        }
        true
    }
}

/// The reference implementation of [`ShardStore`].
pub struct MemStore {
    disk: MemDisk,
    crashes: u32,
    poisoned: bool,
    folding: Option<Folding>,
}

/// A fold that is not through. It lives with its owner: a crash takes it back.
struct Folding {
    fold: Fold,
    /// How many batches of the journal it covers.
    covered: usize,
    slices: u32,
}

impl MemStore {
    fn disk(&self) -> Result<MutexGuard<'_, Disk>, StoreError> {
        let disk = self.disk.0.lock();
        if self.poisoned || disk.crashes != self.crashes {
            return Err(StoreError::Poisoned);
        }
        Ok(disk)
    }

    fn disk_of(&self, epoch: ShardEpoch) -> Result<MutexGuard<'_, Disk>, StoreError> {
        let disk = self.disk()?;
        if disk.epoch == epoch {
            return Ok(disk);
        }
        Err(StoreError::StaleEpoch {
            given: epoch,
            present: disk.epoch,
        })
    }

    fn write(&self, epoch: ShardEpoch, batch: &Batch) -> Result<(), StoreError> {
        let mut disk = self.disk_of(epoch)?;
        disk.commits += 1;
        if let Some(hold) = disk.hold.take() {
            drop(disk);
            hold.stop_here();
            disk = self.disk_of(epoch)?;
        }
        let commits = disk.commits;
        let fault = disk
            .fault
            .take_if(|(nth, _)| *nth <= commits)
            .map(|(_, fault)| fault);
        if fault == Some(Fault::BeforeSync) {
            return Err(refused("commit"));
        }
        disk.steady = disk.steady.max(batch.steady());
        disk.journal.push(batch.clone());
        match fault {
            Some(_) => Err(refused("commit")),
            None => Ok(()),
        }
    }
}

impl Disk {
    /// Makes a fold count, all at once.
    fn carry_over(&mut self, Folding { fold, covered, .. }: Folding) -> Folded {
        let mut cutter = Cutter::new(fold.table.clone(), self.next_chunk);
        let mut folded = Folded::default();
        for Cut { index, body, .. } in &mut cutter {
            folded.chunks.push(index.clone());
            self.chunks.insert(index.id, (index, body));
        }
        self.next_chunk = cutter.next_id();
        for (key, value) in &fold.table.notes {
            match value {
                Some(value) => self.notes.insert(*key, value.clone()),
                None => self.notes.remove(key),
            };
        }
        match fold.marks {
            Marks::Changed(masks) => self.masks.extend(masks),
            Marks::All(masks) => self.masks = masks.into_iter().collect(),
        }
        for chunk in &fold.drop {
            self.chunks.remove(chunk);
            self.masks.remove(chunk);
        }
        self.journal.drain(..covered);
        folded
    }
}

impl ShardStore for MemStore {
    fn begin(&mut self) -> Result<Begun, StoreError> {
        self.folding = None;
        let mut disk = self.disk()?;
        disk.epoch.0 += 1;
        Ok(Begun {
            epoch: disk.epoch,
            steady: disk.steady,
            seed: disk.seed,
            files_read: 0,
        })
    }

    fn recover(&mut self, visit: &mut dyn FnMut(Stored)) -> Result<(), StoreError> {
        // Copied out, so that a visitor may use the disk.
        let (chunks, notes, journal) = {
            let disk = self.disk()?;
            let mask = |id| disk.masks.get(id).copied().unwrap_or_default();
            let chunks = disk.chunks.iter();
            let chunks: Vec<_> = chunks
                .map(|(id, (index, _))| (index.clone(), mask(id)))
                .collect();
            (chunks, disk.notes.clone(), disk.journal.clone())
        };
        for (index, mask) in chunks {
            visit(Stored::Chunk(index, mask));
        }
        for (key, value) in notes {
            match decode_note(key, &value) {
                Ok(note) => note.into_iter().for_each(|note| visit(Stored::Note(note))),
                Err(why) => visit(Stored::Damaged {
                    place: key.to_string(),
                    why: why.to_string(),
                }),
            }
        }
        for mut batch in journal {
            for (key, change) in batch.changes() {
                visit(Stored::Change(key, change));
            }
        }
        Ok(())
    }

    fn reader(&self) -> Result<Arc<dyn ReadChunks>, StoreError> {
        drop(self.disk()?);
        Ok(Arc::new(MemReader {
            disk: self.disk.clone(),
            crashes: self.crashes,
        }))
    }

    fn commit(&mut self, epoch: ShardEpoch, batch: &Batch) -> Result<(), StoreError> {
        if batch.largest() > RECORD_BYTES_MAX {
            return Err(StoreError::TooLarge {
                bytes: batch.largest(),
                max: RECORD_BYTES_MAX,
            });
        }
        let written = self.write(epoch, batch);
        self.poisoned |= matches!(written, Err(StoreError::Io { .. }));
        written
    }

    fn fold(&mut self, epoch: ShardEpoch, fold: Fold) -> Result<(), StoreError> {
        let covered = self.disk_of(epoch)?.journal.len();
        if self.folding.is_some() {
            self.poisoned = true;
            return Err(StoreError::Poisoned);
        }
        self.folding = Some(Folding {
            fold,
            covered,
            slices: 0,
        });
        Ok(())
    }

    fn tend(&mut self, epoch: ShardEpoch, _bytes_min: usize) -> Result<Tended, StoreError> {
        let mut folding = self.folding.take();
        let mut disk = self.disk_of(epoch)?;
        let through = folding.take_if(|folding| {
            folding.slices += 1;
            folding.slices == SLICES
        });
        if let Some(through) = through {
            return Ok(Tended::Folded(disk.carry_over(through)));
        }
        drop(disk);
        self.folding = folding;
        Ok(match self.folding {
            Some(_) => Tended::More,
            None => Tended::Idle,
        })
    }
}

/// Reads the chunks of a disk in memory.
struct MemReader {
    disk: MemDisk,
    crashes: u32,
}

impl MemReader {
    fn read<T>(
        &self,
        chunk: ChunkId,
        take: impl FnOnce(&(ChunkIndex, PackedChunk)) -> T,
    ) -> Result<T, StoreError> {
        let mut disk = self.disk.0.lock();
        if disk.crashes != self.crashes {
            return Err(StoreError::Poisoned);
        }
        if disk.failing_reads > 0 {
            disk.failing_reads -= 1;
            return Err(refused("read"));
        }
        let found = disk.chunks.get(&chunk).map(take);
        found.ok_or_else(|| StoreError::Corrupt {
            place: chunk.to_string(),
            why: "is missing".to_owned(),
        })
    }
}

impl ReadChunks for MemReader {
    fn index(&self, chunk: ChunkId) -> Result<ChunkIndex, StoreError> {
        self.read(chunk, |(index, _)| index.clone())
    }

    fn packed(&self, chunk: ChunkId) -> Result<PackedChunk, StoreError> {
        self.read(chunk, |(_, body)| body.clone())
    }
}

fn refused(doing: &'static str) -> StoreError {
    StoreError::Io {
        doing,
        file: PathBuf::from("(in memory)"),
        source: io::Error::other("a test made it fail"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests {
    use super::*;
    use crate::store::Change;
    use crate::store::chunk::{Entry, Memtable, Recent};
    use crate::testing::arbitrary::plain_task;

    fn batch(n: u64) -> Batch {
        let mut batch = Batch::new(SteadyMs(1));
        batch.put_task(&plain_task(n));
        batch
    }

    fn count(disk: &MemDisk) -> usize {
        let (mut store, mut count) = (disk.store(), 0);
        store.recover(&mut |_| count += 1).unwrap();
        count
    }

    #[test]
    fn a_commit_fails_before_or_after_it_became_durable_as_the_test_asked() {
        for (fault, there) in [(Fault::BeforeSync, 1), (Fault::AfterSync, 2)] {
            let disk = MemDisk::new();
            let mut store = disk.store();
            let epoch = store.begin().unwrap().epoch;
            disk.fail_commit(2, fault);
            store.commit(epoch, &batch(1)).unwrap();
            assert!(matches!(
                store.commit(epoch, &batch(2)),
                Err(StoreError::Io { .. })
            ));
            assert!(matches!(
                store.commit(epoch, &batch(3)),
                Err(StoreError::Poisoned)
            ));
            assert_eq!(count(&disk), there);
        }
    }

    #[test]
    fn a_crash_forgets_a_commit_that_was_written_but_not_synced() {
        let disk = MemDisk::new();
        let mut store = disk.store();
        let epoch = store.begin().unwrap().epoch;
        let hold = disk.hold_commit();
        let writer = std::thread::spawn(move || store.commit(epoch, &batch(1)));
        assert!(hold.wait_until_reached());
        disk.crash();
        hold.release();
        assert!(matches!(writer.join().unwrap(), Err(StoreError::Poisoned)));
        assert_eq!(count(&disk), 0);
    }

    #[test]
    fn reads_of_chunks_fail_as_the_test_asked() {
        let disk = MemDisk::new();
        let mut store = disk.store();
        let epoch = store.begin().unwrap().epoch;
        let mut table = Memtable::default();
        let task = plain_task(1);
        let (_, change) = batch(1).changes().next().unwrap();
        let Change::Put(value) = change else {
            panic!("{change:?}");
        };
        let entry = Entry::of(&task, 0);
        table.tasks.insert(task.id, Recent { entry, value });
        let fold = Fold {
            table: Arc::new(table),
            marks: Marks::Changed(Vec::new()),
            drop: Vec::new(),
        };
        store.fold(epoch, fold).unwrap();
        while !matches!(store.tend(epoch, 0).unwrap(), Tended::Folded(_)) {}
        let [chunk] = disk.chunks()[..] else {
            panic!("one task is one chunk");
        };
        let reader = store.reader().unwrap();
        disk.fail_reads(1);
        assert!(reader.packed(chunk).is_err());
        assert_eq!(reader.packed(chunk).unwrap().unpack().unwrap().len(), 1);
        assert!(disk.damage(chunk));
        assert!(reader.packed(chunk).unwrap().unpack().is_err());
    }

    #[test]
    fn another_owner_makes_every_epoch_stale() {
        let disk = MemDisk::new();
        let mut store = disk.store();
        let given = store.begin().unwrap().epoch;
        let present = disk.take_over();
        let refused = store.commit(given, &batch(1)).unwrap_err();
        assert!(
            matches!(refused, StoreError::StaleEpoch { given: g, present: p } if (g, p) == (given, present))
        );
    }
}
