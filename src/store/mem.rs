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
//!  take_over()                  another owner has begun: every owner there is has a stale epoch
//! ```

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::{SteadyMs, WallMs};
use crate::ids::ShardEpoch;
use crate::store::codec::{Damaged, RECORD_BYTES_MAX, decode_note, decode_task};
use crate::store::{Batch, Begun, Note, RecordKey, ShardStore, StoreError, Tended};
use crate::task::Task;

/// Longest wait for a held commit, from either side.
const HOLD_MAX: Duration = Duration::from_secs(30);

/// A disk in memory. Clones share it.
#[derive(Clone, Default)]
pub struct MemDisk(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    records: BTreeMap<RecordKey, Bytes>,
    steady: SteadyMs,
    epoch: ShardEpoch,
    /// How often the machine crashed; an owner from before is dead.
    crashes: u32,
    commits: u64,
    fault: Option<(u64, Fault)>,
    hold: Option<Hold>,
}

/// When a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Before it is durable: nothing of it is there.
    BeforeSync,
    /// After it became durable: all of it is there, and nobody was told.
    AfterSync,
}

impl MemDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// A store over this disk, for a new owner.
    pub fn store(&self) -> MemStore {
        MemStore {
            disk: self.clone(),
            crashes: self.0.lock().crashes,
            poisoned: false,
        }
    }

    /// Kills every owner and forgets what was not synced.
    pub fn crash(&self) {
        let mut disk = self.0.lock();
        disk.crashes += 1;
        disk.fault = None;
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

    fn write(&self, epoch: ShardEpoch, batch: Batch) -> Result<(), StoreError> {
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
            return Err(refused());
        }
        disk.steady = disk.steady.max(batch.steady());
        for (key, value) in batch.into_changes() {
            match value {
                Some(value) => disk.records.insert(key, value),
                None => disk.records.remove(&key),
            };
        }
        match fault {
            Some(_) => Err(refused()),
            None => Ok(()),
        }
    }
}

impl ShardStore for MemStore {
    fn begin(&mut self) -> Result<Begun, StoreError> {
        let mut disk = self.disk()?;
        disk.epoch.0 += 1;
        Ok(Begun {
            epoch: disk.epoch,
            steady: disk.steady,
        })
    }

    fn read_due(
        &mut self,
        due: Range<WallMs>,
        visit: &mut dyn FnMut(Task),
    ) -> Result<(), StoreError> {
        // Copied out, so that a visitor may use the disk.
        let records = self.disk()?.records.clone();
        let mut tasks = Vec::new();
        for (key, value) in records {
            if let RecordKey::Task(id) = key {
                tasks.push(decode_task(id, &value).map_err(|damaged| corrupt(key, &damaged))?);
            }
        }
        tasks.retain(|task| due.contains(&task.due.at));
        tasks.sort_by_key(|task| task.due.at);
        tasks.into_iter().for_each(visit);
        Ok(())
    }

    fn read_notes(&mut self, visit: &mut dyn FnMut(Note)) -> Result<(), StoreError> {
        let records = self.disk()?.records.clone();
        for (key, value) in records {
            if let Some(note) =
                decode_note(key, &value).map_err(|damaged| corrupt(key, &damaged))?
            {
                visit(note);
            }
        }
        Ok(())
    }

    fn commit(&mut self, epoch: ShardEpoch, batch: Batch) -> Result<(), StoreError> {
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

    fn tend(&mut self, epoch: ShardEpoch) -> Result<Tended, StoreError> {
        self.disk_of(epoch).map(|_| Tended::Idle)
    }
}

fn corrupt(key: RecordKey, damaged: &Damaged) -> StoreError {
    StoreError::Corrupt {
        place: key.to_string(),
        why: damaged.to_string(),
    }
}

fn refused() -> StoreError {
    StoreError::Io {
        doing: "commit",
        file: PathBuf::from("(in memory)"),
        source: io::Error::other("a test made it fail"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests {
    use super::*;
    use crate::store::EVERY_DUE;
    use crate::testing::arbitrary::plain_task;

    fn batch(n: u64) -> Batch {
        let mut batch = Batch::new(SteadyMs(1));
        batch.put_task(&plain_task(n));
        batch
    }

    fn count(disk: &MemDisk) -> usize {
        let (mut store, mut count) = (disk.store(), 0);
        store.read_due(EVERY_DUE, &mut |_| count += 1).unwrap();
        count
    }

    #[test]
    fn a_commit_fails_before_or_after_it_became_durable_as_the_test_asked() {
        for (fault, there) in [(Fault::BeforeSync, 1), (Fault::AfterSync, 2)] {
            let disk = MemDisk::new();
            let mut store = disk.store();
            let epoch = store.begin().unwrap().epoch;
            disk.fail_commit(2, fault);
            store.commit(epoch, batch(1)).unwrap();
            assert!(matches!(
                store.commit(epoch, batch(2)),
                Err(StoreError::Io { .. })
            ));
            assert!(matches!(
                store.commit(epoch, batch(3)),
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
        let writer = std::thread::spawn(move || store.commit(epoch, batch(1)));
        assert!(hold.wait_until_reached());
        disk.crash();
        hold.release();
        assert!(matches!(writer.join().unwrap(), Err(StoreError::Poisoned)));
        assert_eq!(count(&disk), 0);
    }

    #[test]
    fn another_owner_makes_every_epoch_stale() {
        let disk = MemDisk::new();
        let mut store = disk.store();
        let given = store.begin().unwrap().epoch;
        let present = disk.take_over();
        let refused = store.commit(given, batch(1)).unwrap_err();
        assert!(
            matches!(refused, StoreError::StaleEpoch { given: g, present: p } if (g, p) == (given, present))
        );
    }
}
