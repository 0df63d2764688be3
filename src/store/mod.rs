//! The store of one shard, as a crash contract: for each call, what recovery sees if the process dies before
//! it, during it and after it.
//!
//! ```text
//!  begin()     a new epoch is minted; whatever an older owner still tries is refused from here on
//!  recover()   chunks with their marks, notes, then what was committed since the last fold, in order
//!  commit()    one batch: all of it or nothing, synced to the disk when it returns
//!  fold()      carries what was committed so far over into chunks …
//!  tend()      … in slices, between commits
//!  reader()    reads chunks, from other threads too
//! ```
//!
//! It takes commits and folds, and reads chunks; what a verb needs to know of a task stands in the shard's index.
//! There are two stores, [`mem`] (the reference, which forgets what was not synced on `crash()`) and [`local`] (a
//! synced journal file in front of sled), and one suite (`conformance`) that both must pass.
//!
//! A store has one owner at a time and is used from one thread. It knows nothing of shards, actors or clocks.

pub mod chunk;
pub mod codec;
#[cfg(test)]
mod conformance;
pub mod data_dir;
pub mod database;
pub mod directory;
pub mod local;
pub mod mem;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::{SteadyMs, WallMs};
use crate::ids::{ShardEpoch, TaskId};
use crate::store::chunk::{ChunkIndex, Fold, Folded, Mask, ReadChunks};
use crate::task::late::LateAnswer;
use crate::task::spec::{TaskKey, TopicName};

pub use codec::{Batch, Change};

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
    /// An answer of an attempt that was over.
    Late(Box<LateAnswer>),
}

/// What a new owner starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The epoch minted for it.
    pub epoch: ShardEpoch,
    /// The largest steady time that was committed.
    pub steady: SteadyMs,
    /// The seed of this store's key hashes: drawn once, the same for ever.
    pub seed: u64,
    /// Files that had to be read for what was committed since the last fold. Each owner begins one, so that one which
    /// dies again and again makes every next start longer, until there is a fold.
    pub files_read: usize,
}

/// Something that a new owner finds.
#[derive(Debug)]
pub enum Stored {
    /// A chunk, older ones first, and which of its records are dead. One that is dead throughout may be left out.
    Chunk(ChunkIndex, Mask),
    /// Something that does not read back. It is set aside; the rest is served.
    Damaged {
        /// File and offset, or key.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// A tombstone, kept or late answer.
    Note(Note),
    /// A change that was committed since the last fold, in the order of commits, after all else.
    Change(RecordKey, Change),
}

/// What a slice of housekeeping found.
#[derive(Debug)]
pub enum Tended {
    /// Nothing to do.
    Idle,
    /// More of it waits.
    More,
    /// It waits for a thread of its own, in vain so far.
    Waits,
    /// The fold is through and durable. The next may begin.
    Folded(Folded),
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
    /// An owner that counts as dead still holds what the new one needs. It may let go of it, or never.
    #[error("{}: a thread that was given up still holds it", file.display())]
    Held {
        /// What it holds.
        file: PathBuf,
    },
    /// One record is larger than a store takes.
    #[error("a record of {bytes} bytes is larger than {max} bytes")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is taken.
        max: usize,
    },
}

/// The store of one shard. See the module's header for the order of calls.
pub trait ShardStore: Send + 'static {
    /// Mints the next epoch, durably, and takes the store over.
    ///
    /// Dies before: the old owner's epoch stands. Dies after: the next `begin` mints a higher one still.
    ///
    /// # Errors
    /// I/O and corruption; the store can't be used then.
    fn begin(&mut self) -> Result<Begun, StoreError>;

    /// Visits all that is stored, once, after `begin` and before the first commit. Changes nothing that counts: a
    /// fold that was cut off is taken back, its journal is still there.
    ///
    /// # Errors
    /// I/O, and corruption of what nothing else can make good (the journal).
    fn recover(&mut self, visit: &mut dyn FnMut(Stored)) -> Result<(), StoreError>;

    /// Reads this store's chunks, for as long as its owner lives.
    ///
    /// # Errors
    /// Before `begin`, or after an error.
    fn reader(&self) -> Result<Arc<dyn ReadChunks>, StoreError>;

    /// Commits one batch: all or nothing, synced when it returns.
    ///
    /// Dies before or during: recovery sees all of the batch or nothing of it, and nobody was told. Dies after:
    /// recovery sees all of it.
    ///
    /// # Errors
    /// `StaleEpoch` when a newer owner has begun, also if that happened while this batch was being synced;
    /// `TooLarge`, and nothing was written; I/O.
    fn commit(&mut self, epoch: ShardEpoch, batch: &Batch) -> Result<(), StoreError>;

    /// Hands in a fold, which covers every commit before it. One at a time: the next only after `tend` has answered
    /// `Folded`.
    ///
    /// Dies before it is through: recovery sees the chunks and marks of the fold before, and the journal. Dies after:
    /// the new chunks and marks, and the journal from here on.
    ///
    /// # Errors
    /// `StaleEpoch`; `Poisoned` also if a fold is at work.
    fn fold(&mut self, epoch: ShardEpoch, fold: Fold) -> Result<(), StoreError>;

    /// Does one bounded slice (a few milliseconds) of folding, and at least so many bytes of it; changes nothing that
    /// can be read.
    ///
    /// # Errors
    /// `StaleEpoch`, I/O.
    fn tend(&mut self, epoch: ShardEpoch, bytes_min: usize) -> Result<Tended, StoreError>;
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
    /// A late answer, by the hash of its task, token and outcome.
    Late(u128),
}
