//! Chunks: up to 128 records that were folded together, sorted by when they matter, never changed again.
//!
//! ```text
//!  body    the records, packed (LZ4): about 100 bytes a task, read when one of them is needed
//!  index   54 bytes a record: id, hash of the key, times, state; all that a start reads of them
//!  marks   one bit a record: it is dead, something newer counts (kept apart, for a chunk never changes)
//! ```
//!
//! All records of a chunk are of one [`Class`], so each chunk matters at a time of its own: those that wait, from
//! a little before the first of them rings; those that have ended, when the last of them expires, and then the whole
//! chunk goes at once. A task is written to a chunk once while it waits and once after it has ended, however far
//! ahead it is due; nothing is split or moved on the way, but for chunks that are mostly dead.

mod cut;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::ids::{IdHasher, TaskId};
use crate::limits::ARM_AHEAD;
use crate::store::{RecordKey, StoreError};
use crate::task::model::{Lane, State, Task};
use crate::task::spec::{TaskKey, TopicName};

pub(super) use cut::{Cut, Cutter};
pub(super) use stored::INDEX_BYTES_MAX;

/// Most records of a chunk: one bit each in a mask.
pub const CHUNK_RECORDS_MAX: usize = 128;
/// A chunk is closed once its records come to so many bytes, unpacked. One record may be larger.
pub const CHUNK_BYTES: usize = 40 * 1024;

/// Number of a chunk. Later ones are larger; none is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ChunkId(pub u64);

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.0)
    }
}

/// What the records of a chunk have in common. Stored as its number: only appended to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Class {
    /// Wait for an instant of the wall clock.
    Wall = 0,
    /// Wait for steady time.
    Steady = 1,
    /// Were in flight when they were folded: a start looks at them first.
    InFlight = 2,
    /// Paused: nothing happens by itself.
    Paused = 3,
    /// Ended so.
    Succeeded = 4,
    /// Ended so.
    Dead = 5,
    /// Ended so.
    Cancelled = 6,
    /// Cancels of tasks whose records stand in earlier chunks.
    Cancels = 7,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Wall,
        Self::Steady,
        Self::InFlight,
        Self::Paused,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
        Self::Cancels,
    ];

    /// Whether its records wait for a time to come.
    pub fn waits(self) -> bool {
        matches!(self, Self::Wall | Self::Steady)
    }

    /// Whether its records have ended, and `wake_ms` is when they expire.
    pub fn has_ended(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Dead | Self::Cancelled | Self::Cancels
        )
    }
}

/// What is kept of a record beside it, so that it need not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Of the task.
    pub id: TaskId,
    /// Of the task.
    pub topic: TopicName,
    /// Hash of topic and key; 0 without a key.
    pub key_hash: u64,
    /// Where it belongs.
    pub class: Class,
    /// Of the task.
    pub state: State,
    /// Of the task.
    pub generation: u32,
    /// When it is, or was, due. Wall clock.
    pub due_ms: i64,
    /// When it ended; 0 while it lives. Wall clock.
    pub ended_ms: i64,
    /// When it matters next, on its class's clock: its alarm, or its expiry in steady time.
    pub wake_ms: i64,
    /// Its alarm is more than the due time alone: the record has to be read to set it.
    pub has_more_alarms: bool,
    /// Somebody is to be told when it ends: the record has to be read for that too.
    pub calls_back: bool,
}

/// The entries of a chunk, in the order of its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkIndex {
    /// Whose.
    pub id: ChunkId,
    /// Of all its records.
    pub class: Class,
    /// At most [`CHUNK_RECORDS_MAX`], by `wake_ms`.
    pub entries: Vec<Entry>,
    /// Size of the packed body, in bytes.
    pub packed_bytes: u32,
}

/// A body as it is stored.
#[derive(Clone, Debug)]
pub struct PackedChunk {
    /// Whose.
    pub id: ChunkId,
    /// The stored bytes, checked when they are unpacked.
    pub bytes: Bytes,
}

/// The records of a chunk.
#[derive(Clone, Debug)]
pub struct ChunkBody {
    bytes: Bytes,
    /// Where each record ends.
    ends: Vec<u32>,
}

impl ChunkBody {
    /// How many records there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The value of the record at this place.
    pub fn record(&self, place: usize) -> Option<Bytes> {
        let end = *self.ends.get(place)? as usize;
        let start = match place {
            0 => 0,
            _ => self.ends[place - 1] as usize,
        };
        Some(self.bytes.slice(start..end))
    }
}

/// Reads chunks while their shard's store goes on writing others. Shared by the shard's thread and helpers.
pub trait ReadChunks: Send + Sync {
    /// A chunk's entries.
    ///
    /// # Errors
    /// I/O, and corruption: the chunk is named.
    fn index(&self, chunk: ChunkId) -> Result<ChunkIndex, StoreError>;

    /// A chunk's body, still packed.
    ///
    /// # Errors
    /// I/O, and corruption: the chunk is named.
    fn packed(&self, chunk: ChunkId) -> Result<PackedChunk, StoreError>;
}

/// A record in the memtable.
#[derive(Clone, Debug)]
pub struct Recent {
    /// What it is.
    pub entry: Entry,
    /// Its value: a task's or, in class [`Class::Cancels`], a cancel's.
    pub value: Bytes,
}

/// What the journal holds and no chunk does yet: of each task its latest record.
#[derive(Default, Debug)]
pub struct Memtable {
    /// Tasks that are there, one beside the other in memory. One that was removed is in none.
    pub tasks: IndexMap<TaskId, Recent, BuildHasherDefault<IdHasher>>,
    /// Tombstones, kept and late answers that changed; `None` where one is gone.
    pub notes: HashMap<RecordKey, Option<Bytes>>,
    /// What was written to the journal for it, in bytes.
    pub bytes: usize,
}

/// Which records of chunks are dead: one bit each, the lowest for the first.
pub type Mask = u128;

/// Marks that a fold makes durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Marks {
    /// The masks that changed since the last fold.
    Changed(Vec<(ChunkId, Mask)>),
    /// All masks that are not zero; they replace all that was written before.
    All(Vec<(ChunkId, Mask)>),
}

/// What is to be carried over from the journal into chunks. All commits handed in before it are covered by it.
#[derive(Debug)]
pub struct Fold {
    /// What to write.
    pub table: Arc<Memtable>,
    /// Which older records are dead.
    pub marks: Marks,
    /// Chunks that nobody needs any more: removed once the rest is durable.
    pub drop: Vec<ChunkId>,
}

/// What a fold has written, durable by now.
#[derive(Debug, Default)]
pub struct Folded {
    /// The new chunks, in the order of their numbers.
    pub chunks: Vec<ChunkIndex>,
}

/// A mask with the first `count` bits set.
pub fn full_mask(count: usize) -> Mask {
    match count {
        0 => 0,
        n if n >= CHUNK_RECORDS_MAX => Mask::MAX,
        n => (1 << n) - 1,
    }
}

/// The hash that stands for a topic and key; never 0.
pub fn key_hash(seed: u64, topic: &TopicName, key: &TaskKey) -> u64 {
    let of_topic = xxh3_64_with_seed(topic.as_str().as_bytes(), seed);
    xxh3_64_with_seed(key.as_str().as_bytes(), of_topic).max(1)
}

impl Entry {
    /// The entry of a task's record.
    pub fn of(task: &Task, seed: u64) -> Self {
        let key_hash = match &task.key {
            Some(key) => key_hash(seed, &task.topic, key),
            None => 0,
        };
        Self::with_key_hash(task, key_hash)
    }

    /// The entry of a task's record, the hash of whose key is known.
    pub fn with_key_hash(task: &Task, key_hash: u64) -> Self {
        let until = task.until_while_waiting().map(|until| until.0);
        let class = match task.state {
            State::Dispatched | State::Running => Class::InFlight,
            State::Paused => Class::Paused,
            State::Succeeded => Class::Succeeded,
            State::Dead => Class::Dead,
            State::Cancelled => Class::Cancelled,
            // Its end is steady, whatever its next attempt waits for.
            State::Pending | State::Retrying if until.is_some() => Class::Steady,
            State::Pending | State::Retrying => match task.next.lane {
                Lane::Wall => Class::Wall,
                Lane::Steady => Class::Steady,
            },
        };
        let ahead = match task.starts_here() {
            true => ARM_AHEAD.0 as i64,
            false => 0,
        };
        let rings = task.next.fire_ms.saturating_sub(ahead);
        let wake_ms = match class {
            Class::Wall | Class::Steady => until.map_or(rings, |until| rings.min(until)),
            Class::InFlight | Class::Paused => 0,
            _ => task.expires.map_or(i64::MAX, |at| at.0),
        };
        Self {
            id: task.id,
            topic: task.topic.clone(),
            key_hash,
            class,
            state: task.state,
            generation: task.generation,
            due_ms: task.due.at.0,
            ended_ms: task.ended_at.map_or(0, |at| at.0),
            wake_ms,
            has_more_alarms: class.waits() && until.is_some(),
            calls_back: task.calls_back(),
        }
    }
}
