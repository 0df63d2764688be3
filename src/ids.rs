//! Ids and other numbers with a meaning: each is a type of its own, so that none can stand in for another.
//!
//! The one worth a picture is [`TaskId`]. It is an ordinary UUIDv7, so it sorts by creation time and any
//! UUID tool reads it; its 12 `rand_a` bits carry the **slot**, so that id and key lead to the same shard
//! without a look-up:
//!
//! ```text
//!  0192f0c1-2345 - 7 abc - 8def-0123456789ab
//!  └ 48 bits ms ┘  v └ slot (0…4095)  └ 62 random bits
//! ```
//!
//! Slots map to shards by rendezvous hashing ([`SlotMap`]): with another number of shards whole slots move,
//! and few of them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::str::FromStr;

use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::clock::WallMs;

/// How many hash slots there are. Fixed for ever: it is part of every task id.
pub const SLOTS: u16 = 4096;

/// One of 4096 hash slots, the unit in which tasks are placed on shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(u16);

impl Slot {
    /// The slot of a `(topic, key)` pair. Stable across versions and machines.
    pub fn of_key(topic: &str, key: &str) -> Self {
        let mut text = Vec::with_capacity(topic.len() + key.len() + 1);
        text.extend_from_slice(topic.as_bytes());
        text.push(0);
        text.extend_from_slice(key.as_bytes());
        Self((xxh3_64(&text) % u64::from(SLOTS)) as u16)
    }

    /// The slot of a task without a key: any will do.
    pub fn random() -> Self {
        Self((Uuid::new_v4().as_u128() as u16) % SLOTS)
    }

    /// The slot that a 64-bit hash falls into.
    pub fn of_hash(hash: u64) -> Self {
        Self((hash % u64::from(SLOTS)) as u16)
    }

    /// The slot's number, 0 to 4095.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// Which shard owns a slot.
#[derive(Clone, Debug)]
pub struct SlotMap {
    owners: Vec<ShardId>,
    shards: u16,
}

impl SlotMap {
    /// Places all slots on `shards` shards (at least 1) by rendezvous hashing.
    pub fn new(shards: u16) -> Self {
        let shards = shards.max(1);
        let owner = |slot: u16| {
            (0..shards)
                .max_by_key(|shard| xxh3_64_with_seed(&slot.to_be_bytes(), u64::from(*shard)))
                .map_or(ShardId(0), ShardId)
        };
        Self {
            owners: (0..SLOTS).map(owner).collect(),
            shards,
        }
    }

    /// The owner of a slot.
    pub fn shard_of(&self, slot: Slot) -> ShardId {
        self.owners[usize::from(slot.0)]
    }

    /// How many shards there are.
    pub fn shards(&self) -> u16 {
        self.shards
    }
}

/// The id of one task: a UUIDv7 that carries its slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Uuid);

impl TaskId {
    /// A new id for a task created at `at` in `slot`.
    pub fn new(slot: Slot, at: WallMs) -> Self {
        Self::with_tail(slot, at, Uuid::new_v4().as_u128() as u64)
    }

    /// The id that follows from `slot`, `at` and 62 bits of `tail`: the same arguments give the same id.
    /// A re-sent request derives its ids this way and so finds what it made the first time.
    pub fn with_tail(slot: Slot, at: WallMs, tail: u64) -> Self {
        let millis = u128::from(at.0.max(0) as u64 & 0xFFFF_FFFF_FFFF);
        let high = (millis << 80) | (0x7 << 76) | (u128::from(slot.0) << 64);
        let low = (0b10 << 62) | u128::from(tail & 0x3FFF_FFFF_FFFF_FFFF);
        Self(Uuid::from_u128(high | low))
    }

    /// The slot the id carries.
    pub fn slot(self) -> Slot {
        Slot(((self.0.as_u128() >> 64) & 0xFFF) as u16)
    }

    /// The id as a UUID.
    pub fn uuid(self) -> Uuid {
        self.0
    }

    /// The id as 16 big-endian bytes, which sort like the id.
    pub fn to_bytes(self) -> [u8; 16] {
        *self.0.as_bytes()
    }

    /// The reverse of [`TaskId::to_bytes`].
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

/// Hashes task ids by their last eight bytes, which are random or follow one another. Ids are made by us, so nobody can
/// choose them to collide.
#[derive(Clone, Copy, Default, Debug)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(tail) = bytes.last_chunk() {
            self.0 = u64::from_be_bytes(*tail).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    /// The length of the bytes, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        // Tables take their place from the low bits and a check from the high ones.
        self.0 ^ self.0 >> 32
    }
}

/// A set of task ids.
pub type IdSet = HashSet<TaskId, BuildHasherDefault<IdHasher>>;

/// A map by task id.
pub type ById<T> = HashMap<TaskId, T, BuildHasherDefault<IdHasher>>;

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is not a task id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a task id is a UUIDv7 such as 0192f0c1-2345-7abc-8def-0123456789ab")]
pub struct NotATaskId;

impl FromStr for TaskId {
    type Err = NotATaskId;

    fn from_str(text: &str) -> Result<Self, NotATaskId> {
        // Only the hyphenated form, so that one task has one name.
        let uuid = Uuid::try_parse(text).map_err(|_| NotATaskId)?;
        if text.len() == 36 && uuid.get_version_num() == 7 {
            Ok(Self(uuid))
        } else {
            Err(NotATaskId)
        }
    }
}

/// Number of a shard, from 0. Shown as `s07`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{:02}", self.0)
    }
}

/// Incarnation of a shard's owner; grows by one at each start of the shard. Shown as `e12`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardEpoch(pub u64);

impl fmt::Display for ShardEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// Fencing number of an attempt: grows with each attempt of a task, over all its generations. 0 before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AttemptToken(pub u64);

/// Number of an attempt, from 1, over all generations of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AttemptNumber(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_slot_and_is_a_uuid_v7() {
        let slot = Slot::of_key("order.unpaid", "order-42");
        let id = TaskId::new(slot, WallMs(1_796_000_000_000));
        assert_eq!(id.slot(), slot);
        assert_eq!(id.uuid().get_version_num(), 7);
        assert_eq!(id.uuid().get_variant(), uuid::Variant::RFC4122);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(TaskId::from_bytes(id.to_bytes()), id);
    }

    #[test]
    fn ids_sort_by_creation_time() {
        let slot = Slot::of_hash(9);
        assert!(TaskId::new(slot, WallMs(10)) < TaskId::new(slot, WallMs(11)));
    }

    #[test]
    fn a_text_that_is_no_uuid_v7_is_no_task_id() {
        for text in [
            "nonsense",
            "",
            "0192f0c1-2345-4abc-8def-0123456789ab",
            "0192f0c123457abc8def0123456789ab",
        ] {
            assert_eq!(text.parse::<TaskId>(), Err(NotATaskId), "{text}");
        }
    }

    #[test]
    fn one_more_shard_moves_few_slots_and_only_to_itself() {
        let (four, five) = (SlotMap::new(4), SlotMap::new(5));
        let mut moved = 0;
        for hash in 0..u64::from(SLOTS) {
            let slot = Slot::of_hash(hash);
            let (from, to) = (four.shard_of(slot), five.shard_of(slot));
            if from != to {
                assert_eq!(to, ShardId(4));
                moved += 1;
            }
        }
        assert!((600..1050).contains(&moved), "{moved} of 4096 slots moved");
    }
}
