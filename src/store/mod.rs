//! The store of one shard, as a crash contract: for each call, what recovery sees if the process dies before
//! it, during it and after it.
//!
//! ```text
//!  begin()      a new epoch is minted; whatever an older owner still tries is refused from here on
//!  read_due()   every task whose due time lies in a range      ┐ recovery: the whole range once,
//!  read_notes() tombstones and kept answers                    ┘ then only commits
//!  commit()     one batch: all of it or nothing, synced to the disk when it returns
//!  tend()       a slice of the store's own housekeeping, between commits
//! ```
//!
//! It takes commits and due ranges, never single records on a verb's path: the shard answers from memory. There
//! are two stores, [`mem`] (the reference, which forgets what was not synced on `crash()`) and [`local`] (a
//! synced journal file in front of sled), and one suite ([`conformance`]) that both must pass.
//!
//! A store has one owner at a time and is used from one thread. It knows nothing of shards, actors or clocks.

pub mod codec;
#[cfg(test)]
mod conformance;
pub mod database;
pub mod local;
pub mod mem;

use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;

use crate::clock::{SteadyMs, WallMs};
use crate::ids::{ShardEpoch, TaskId};
use crate::task::Task;
use crate::task::spec::{TaskKey, TopicName};

pub use codec::Batch;

/// A cancel that came before its create and still wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The topic it stands in.
    pub topic: TopicName,
    /// The key it holds.
    pub key: TaskKey,
    /// Until when.
    pub until: SteadyMs,
    /// The reason that the cancel gave.
    pub reason: String,
}

/// An answer kept for a re-sent request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Hash of the `Idempotency-Key` and the route.
    pub key: u128,
    /// Hash of the request's body.
    pub body: u128,
    /// When the request first came: ids are derived from it, so a re-sent create finds its own tasks.
    pub first_at: WallMs,
    /// Until when it is kept.
    pub until: SteadyMs,
    /// Status and body; `None` while the first request has not been answered, or if it was too large to keep.
    pub answer: Option<(u16, Bytes)>,
}

/// What is stored beside tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A tombstone.
    Tombstone(Tombstone),
    /// A kept answer.
    Answer(KeptAnswer),
}

/// What a new owner starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The epoch minted for it.
    pub epoch: ShardEpoch,
    /// The largest steady time that was committed.
    pub steady: SteadyMs,
}

/// What a slice of housekeeping found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tended {
    /// Nothing to do.
    Idle,
    /// More of it waits.
    More,
}

/// Why the store did not do it. After any error but [`StoreError::StaleEpoch`] and [`StoreError::TooLarge`] the
/// outcome of that call is unknown and the store must be opened anew.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A newer owner has begun; this one must stop. Nothing of the batch counts; if that owner began during the
    /// call, it has read all of the batch or nothing, and what it has read stays. Nobody may be told of it.
    #[error("epoch {given} is over, {present} has begun")]
    StaleEpoch {
        /// The caller's epoch.
        given: ShardEpoch,
        /// The one in force.
        present: ShardEpoch,
    },
    /// The disk or the file system refused.
    #[error("{doing}: {file}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something that had been synced does not read back.
    #[error("{place}: {why}")]
    Corrupt {
        /// File and offset, or key.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// An earlier error left the store in doubt.
    #[error("the store had an error before and must be opened anew")]
    Poisoned,
    /// One record is larger than a store takes.
    #[error("a record of {bytes} bytes is larger than {max} bytes")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is taken.
        max: usize,
    },
}

/// All that ever can be due.
pub const EVERY_DUE: Range<WallMs> = WallMs(i64::MIN)..WallMs(i64::MAX);

/// The store of one shard. See the module's header for the order of calls.
pub trait ShardStore: Send + 'static {
    /// Mints the next epoch, durably, and takes the store over.
    ///
    /// Dies before: the old owner's epoch stands. Dies after: the next `begin` mints a higher one still.
    ///
    /// # Errors
    /// I/O and corruption; the store can't be used then.
    fn begin(&mut self) -> Result<Begun, StoreError>;

    /// Visits every task whose due time lies in `due`, in due order as far as the layout has one, each exactly
    /// once and in its latest committed form. Ended tasks count by the due time they had.
    ///
    /// # Errors
    /// I/O and corruption.
    fn read_due(
        &mut self,
        due: Range<WallMs>,
        visit: &mut dyn FnMut(Task),
    ) -> Result<(), StoreError>;

    /// Visits every tombstone and kept answer.
    ///
    /// # Errors
    /// I/O and corruption.
    fn read_notes(&mut self, visit: &mut dyn FnMut(Note)) -> Result<(), StoreError>;

    /// Commits one batch: all or nothing, synced when it returns.
    ///
    /// Dies before or during: recovery sees all of the batch or nothing of it, and nobody was told. Dies after:
    /// recovery sees all of it.
    ///
    /// # Errors
    /// `StaleEpoch` when a newer owner has begun, also if that happened while this batch was being synced;
    /// `TooLarge`, and nothing was written; I/O.
    fn commit(&mut self, epoch: ShardEpoch, batch: Batch) -> Result<(), StoreError>;

    /// Does one bounded slice (a few milliseconds) of housekeeping; changes nothing that can be read.
    ///
    /// # Errors
    /// I/O.
    fn tend(&mut self, epoch: ShardEpoch) -> Result<Tended, StoreError>;
}

/// Where the records of one task live, for the stores' own maps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RecordKey {
    /// A task.
    Task(TaskId),
    /// A tombstone, by the hash of topic and key.
    Tombstone(u128),
    /// A kept answer, by its key's hash.
    Answer(u128),
}
