//! The index: what a shard has in memory of each of its tasks, 48 bytes and two places in hash tables.
//!
//! ```text
//!  by id ──┐
//!  by key ─┴─▶ row { id, hash of the key, due or ended at, state, stand, where its record is, topic ▸ prev ▸ next }
//! ```
//!
//! Every verb finds its task here, and most need nothing else: a cancel of a task that is due in a year reads no
//! record. The hash of topic and key is keyed by the store's seed and, with the slot, 76 bits of it must meet for two
//! keys to be taken for one. Rows of a topic are linked, so that a list of a small topic among large ones does not
//! look at the others.
//!
//! Cost: O(1) per change; a key that many ended tasks had costs a look at each of them when it is asked for and has
//! no live task. Rows stand in blocks, so growing copies nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashTable;

use crate::ids::TaskId;
use crate::shard::place::Place;
use crate::store::chunk::CHUNK_RECORDS_MAX;
use crate::task::model::State;

/// A row's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowId(u32);

/// A topic's number, in the table of topics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopicNumber(pub u32);

/// Where the record of a task is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// In a table of what was committed lately; or not committed yet.
    Memtable,
    /// In a chunk: the place of the chunk in the shelf, and of the record in the chunk.
    Chunk(u32, u8),
}

const MEMTABLE: u32 = u32::MAX;
const CHUNKS_MAX: u32 = (MEMTABLE >> 7) - 1;
const NONE: u32 = u32::MAX;
const _: () = assert!(CHUNK_RECORDS_MAX == 128);

impl Home {
    fn pack(self) -> u32 {
        match self {
            Self::Memtable => MEMTABLE,
            Self::Chunk(chunk, place) => {
                assert!(
                    chunk <= CHUNKS_MAX,
                    "a shard has fewer than 33 million chunks"
                );
                chunk << 7 | u32::from(place)
            }
        }
    }

    fn unpack(packed: u32) -> Self {
        match packed {
            MEMTABLE => Self::Memtable,
            _ => Self::Chunk(packed >> 7, (packed & 0x7f) as u8),
        }
    }
}

/// What is known of a task without its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its id.
    pub id: TaskId,
    /// Hash of topic and key; 0 without a key.
    pub key_hash: u64,
    /// Its topic.
    pub topic: TopicNumber,
    /// Its state.
    pub state: State,
    /// Where it stands.
    pub place: Place,
    /// When it is due or, once it has ended, when it did. Wall clock.
    pub at_ms: i64,
    /// Its generation ([`short_generation`]).
    pub generation: Option<u8>,
    /// When it comes due it may wait for a slot of the executors without being read. Where that is not known, it may
    /// not.
    pub queues_asleep: bool,
    /// Somebody is to be told when it ends: it can't be cancelled without being read.
    pub calls_back: bool,
    /// Where its record is.
    pub home: Home,
    /// A cancel stands beside its record.
    pub is_overlaid: bool,
    /// Its alarms are set.
    pub is_alarmed: bool,
}

/// As it is stored: 48 bytes.
#[derive(Clone, Copy)]
struct Packed {
    id: [u8; 16],
    key_hash: [u8; 8],
    at_ms: [u8; 6],
    /// State 3 bits, place 3, overlaid, alarmed.
    flags: u8,
    /// Generation 7 bits, whether it queues asleep.
    generation: u8,
    /// Topic 31 bits, whether it calls back.
    topic: u32,
    home: u32,
    /// In the topic's row of rows; `next` also links free rows.
    prev: u32,
    next: u32,
}

const _: () = assert!(size_of::<Packed>() == 48);

impl Packed {
    fn of(row: &Row) -> Self {
        let flags = row.state.index() as u8
            | (row.place as u8) << 3
            | u8::from(row.is_overlaid) << 6
            | u8::from(row.is_alarmed) << 7;
        let [_, _, at_ms @ ..] = row.at_ms.clamp(AT_MIN, AT_MAX).to_be_bytes();
        Self {
            id: row.id.to_bytes(),
            key_hash: row.key_hash.to_ne_bytes(),
            at_ms,
            flags,
            generation: row.generation.unwrap_or(GENERATION_LONG)
                | u8::from(row.queues_asleep) << 7,
            topic: row.topic.0 | if row.calls_back { CALLS_BACK } else { 0 },
            home: row.home.pack(),
            prev: NONE,
            next: NONE,
        }
    }

    fn row(&self) -> Row {
        let [a, b, c, d, e, f] = self.at_ms;
        // The sign is carried on into the two bytes that are not kept.
        let sign = if a & 0x80 == 0 { 0 } else { 0xff };
        Row {
            id: TaskId::from_bytes(self.id),
            key_hash: self.key_hash(),
            topic: self.topic(),
            state: State::ALL[usize::from(self.flags & 7)],
            place: Place::ALL[usize::from(self.flags >> 3 & 7)],
            at_ms: i64::from_be_bytes([sign, sign, a, b, c, d, e, f]),
            generation: short_generation(u32::from(self.generation & GENERATION_LONG)),
            queues_asleep: self.generation & 0x80 != 0,
            calls_back: self.topic & CALLS_BACK != 0,
            home: Home::unpack(self.home),
            is_overlaid: self.flags & 0x40 != 0,
            is_alarmed: self.flags & 0x80 != 0,
        }
    }

    fn key_hash(&self) -> u64 {
        u64::from_ne_bytes(self.key_hash)
    }

    /// There are far fewer topics than 31 bits count.
    fn topic(&self) -> TopicNumber {
        TopicNumber(self.topic & !CALLS_BACK)
    }

    fn has_ended(&self) -> bool {
        State::ALL[usize::from(self.flags & 7)].is_ended()
    }
}

const CALLS_BACK: u32 = 1 << 31;

/// Stands for a generation that has no room in a row.
const GENERATION_LONG: u8 = 0x7f;

/// A generation as a row has it; `None` from the 127th on: the record knows.
pub fn short_generation(generation: u32) -> Option<u8> {
    let short = u8::try_from(generation).ok();
    short.filter(|short| *short < GENERATION_LONG)
}

const AT_MAX: i64 = (1 << 47) - 1;
const AT_MIN: i64 = -(1 << 47);

const BLOCK: usize = 4096;

/// Rows in blocks, by number.
#[derive(Default)]
struct Rows {
    blocks: Vec<Vec<Packed>>,
    free: Option<u32>,
}

impl Rows {
    fn get(&self, row: u32) -> &Packed {
        &self.blocks[row as usize / BLOCK][row as usize % BLOCK]
    }

    fn get_mut(&mut self, row: u32) -> &mut Packed {
        &mut self.blocks[row as usize / BLOCK][row as usize % BLOCK]
    }

    fn add(&mut self, packed: Packed) -> u32 {
        if let Some(row) = self.free {
            let next = self.get(row).next;
            self.free = (next != NONE).then_some(next);
            *self.get_mut(row) = packed;
            return row;
        }
        if self.blocks.last().is_none_or(|block| block.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let last = self.blocks.len() - 1;
        let block = &mut self.blocks[last];
        block.push(packed);
        u32::try_from(last * BLOCK + block.len() - 1).expect("a shard has fewer tasks than that")
    }

    fn free(&mut self, row: u32) {
        let next = self.free.unwrap_or(NONE);
        self.get_mut(row).next = next;
        self.free = Some(row);
    }
}

fn hash_of_id(id: &[u8; 16]) -> u64 {
    // The last eight bytes are random, or follow one another.
    let [.., a, b, c, d, e, f, g, h] = *id;
    u64::from_be_bytes([a, b, c, d, e, f, g, h]).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Key hashes are hashes already.
#[derive(Clone, Copy, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.is_empty(), "only numbers are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The index of a shard. See the module's header.
#[derive(Default)]
pub struct Index {
    rows: Rows,
    by_id: HashTable<u32>,
    live_by_key: HashTable<u32>,
    ended_by_key: HashTable<u32>,
    /// Of keys that had several ended tasks, the one that ended last: it may have been in the same millisecond.
    ended_again: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    /// The first row of each topic.
    heads: Vec<u32>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index of {}", self.len())
    }
}

impl Index {
    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The row of a task.
    pub fn find(&self, id: TaskId) -> Option<RowId> {
        let bytes = id.to_bytes();
        let found = self
            .by_id
            .find(hash_of_id(&bytes), |row| self.rows.get(*row).id == bytes);
        found.copied().map(RowId)
    }

    /// The live task with this key.
    pub fn live(&self, key_hash: u64) -> Option<RowId> {
        let same = |row: &u32| self.rows.get(*row).key_hash() == key_hash;
        self.live_by_key.find(key_hash, same).copied().map(RowId)
    }

    /// The task with this key that ended last.
    pub fn ended_last(&self, key_hash: u64) -> Option<RowId> {
        if let Some(row) = self.ended_again.get(&key_hash) {
            return Some(RowId(*row));
        }
        let rows = self.ended_by_key.iter_hash(key_hash).copied();
        let same = rows.filter(|row| self.rows.get(*row).key_hash() == key_hash);
        // After a start, of two that ended in the same millisecond, the one that was created later.
        let last = same.max_by_key(|row| {
            let row = self.rows.get(*row).row();
            (row.at_ms, row.id)
        });
        last.map(RowId)
    }

    /// The row of this number, if a task stands in it.
    pub fn numbered(&self, number: u32) -> Option<Row> {
        let packed = self.rows.blocks.get(number as usize / BLOCK)?;
        let packed = packed.get(number as usize % BLOCK)?;
        let found = self
            .by_id
            .find(hash_of_id(&packed.id), |row| *row == number);
        found.map(|_| packed.row())
    }

    /// No row has this number or a larger one.
    pub fn end(&self) -> u32 {
        let last = self.rows.blocks.last().map_or(0, Vec::len);
        let full = self.rows.blocks.len().saturating_sub(1) * BLOCK;
        u32::try_from(full + last).unwrap_or(u32::MAX)
    }

    /// What stands in a row.
    pub fn row(&self, row: RowId) -> Row {
        self.rows.get(row.0).row()
    }

    /// Adds a task that is not there.
    pub fn add(&mut self, row: &Row) -> RowId {
        let number = self.rows.add(Packed::of(row));
        let rows = &self.rows;
        self.by_id
            .insert_unique(hash_of_id(&row.id.to_bytes()), number, |row| {
                hash_of_id(&rows.get(*row).id)
            });
        // At a start tasks come in any order.
        let known = self.ended_again.get(&row.key_hash).copied();
        if row.state.is_ended() && known.is_some_and(|last| self.row(RowId(last)).at_ms < row.at_ms)
        {
            self.ended_again.remove(&row.key_hash);
        }
        self.add_key(number);
        self.link(number);
        RowId(number)
    }

    /// Changes a row. Id, key and topic stay.
    pub fn change(&mut self, row: RowId, change: impl FnOnce(&mut Row)) -> Row {
        let before = *self.rows.get(row.0);
        let mut changed = before.row();
        change(&mut changed);
        let packed = self.rows.get_mut(row.0);
        *packed = Packed {
            prev: before.prev,
            next: before.next,
            ..Packed::of(&changed)
        };
        let (had_ended, has_ended) = (before.has_ended(), packed.has_ended());
        if had_ended != has_ended && before.key_hash() != 0 {
            self.take_key(row.0, had_ended);
            // Not if the clock was stepped back meanwhile.
            let last = self.ended_last(before.key_hash()).filter(|_| has_ended);
            if last.is_some_and(|last| self.row(last).at_ms <= changed.at_ms) {
                self.ended_again.insert(before.key_hash(), row.0);
            }
            self.add_key(row.0);
        }
        // A dead task that is settled has ended anew.
        if had_ended && has_ended && before.row().at_ms != changed.at_ms {
            self.ended_again.remove(&before.key_hash());
            let last = self.ended_last(before.key_hash());
            if last.is_some_and(|last| self.row(last).at_ms <= changed.at_ms) {
                self.ended_again.insert(before.key_hash(), row.0);
            }
        }
        changed
    }

    /// Takes a task out.
    pub fn remove(&mut self, row: RowId) -> Row {
        let packed = *self.rows.get(row.0);
        let id = hash_of_id(&packed.id);
        if let Ok(entry) = self.by_id.find_entry(id, |other| *other == row.0) {
            entry.remove();
        }
        if packed.key_hash() != 0 {
            self.take_key(row.0, packed.has_ended());
        }
        self.unlink(row.0);
        self.rows.free(row.0);
        self.give_room_back();
        packed.row()
    }

    /// Tables that have become nearly empty are made smaller, rarely enough to cost nothing.
    fn give_room_back(&mut self) {
        let rows = &self.rows;
        let shrink = |table: &mut HashTable<u32>, by_id: bool| {
            if table.capacity() > 65_536 && table.len() < table.capacity() / 8 {
                let room = table.len() * 2;
                table.shrink_to(room, |row| match by_id {
                    true => hash_of_id(&rows.get(*row).id),
                    false => rows.get(*row).key_hash(),
                });
            }
        };
        shrink(&mut self.by_id, true);
        shrink(&mut self.live_by_key, false);
        shrink(&mut self.ended_by_key, false);
        if self.by_id.is_empty() {
            self.rows = Rows::default();
        }
    }

    fn add_key(&mut self, row: u32) {
        let (key_hash, has_ended) = {
            let packed = self.rows.get(row);
            (packed.key_hash(), packed.has_ended())
        };
        if key_hash == 0 {
            return;
        }
        let rows = &self.rows;
        let table = match has_ended {
            true => &mut self.ended_by_key,
            false => &mut self.live_by_key,
        };
        table.insert_unique(key_hash, row, |row| rows.get(*row).key_hash());
    }

    fn take_key(&mut self, row: u32, has_ended: bool) {
        let key_hash = self.rows.get(row).key_hash();
        if has_ended && self.ended_again.get(&key_hash) == Some(&row) {
            self.ended_again.remove(&key_hash);
        }
        let table = match has_ended {
            true => &mut self.ended_by_key,
            false => &mut self.live_by_key,
        };
        if let Ok(entry) = table.find_entry(key_hash, |other| *other == row) {
            entry.remove();
        }
    }

    fn link(&mut self, row: u32) {
        let topic = self.rows.get(row).topic().0 as usize;
        if self.heads.len() <= topic {
            self.heads.resize(topic + 1, NONE);
        }
        let head = std::mem::replace(&mut self.heads[topic], row);
        let packed = self.rows.get_mut(row);
        (packed.prev, packed.next) = (NONE, head);
        if head != NONE {
            self.rows.get_mut(head).prev = row;
        }
    }

    fn unlink(&mut self, row: u32) {
        let packed = self.rows.get(row);
        let (topic, prev, next) = (packed.topic(), packed.prev, packed.next);
        match prev {
            NONE => self.heads[topic.0 as usize] = next,
            _ => self.rows.get_mut(prev).next = next,
        }
        if next != NONE {
            self.rows.get_mut(next).prev = prev;
        }
    }

    /// All rows of a topic, in no order.
    pub fn of_topic(&self, topic: TopicNumber) -> impl Iterator<Item = RowId> {
        let first = self.heads.get(topic.0 as usize).copied().unwrap_or(NONE);
        std::iter::successors((first != NONE).then_some(first), |row| {
            let next = self.rows.get(*row).next;
            (next != NONE).then_some(next)
        })
        .map(RowId)
    }

    /// All rows, in no order.
    pub fn all(&self) -> impl Iterator<Item = RowId> {
        self.by_id.iter().copied().map(RowId)
    }

    /// How many bytes it takes, all in all.
    pub fn bytes(&self) -> usize {
        let tables = [&self.by_id, &self.live_by_key, &self.ended_by_key];
        let table_bytes: usize = tables.map(HashTable::allocation_size).iter().sum();
        self.rows.blocks.len() * BLOCK * size_of::<Packed>() + table_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallMs;
    use crate::ids::Slot;

    fn row(n: u64) -> Row {
        Row {
            id: TaskId::with_tail(Slot::of_hash(n), WallMs(1_000), n),
            key_hash: n + 1,
            topic: TopicNumber((n % 3) as u32),
            state: State::Pending,
            place: Place::Wheel,
            at_ms: n as i64 - 5,
            generation: Some(1),
            queues_asleep: n.is_multiple_of(3),
            calls_back: n.is_multiple_of(5),
            home: Home::Memtable,
            is_overlaid: false,
            is_alarmed: n.is_multiple_of(2),
        }
    }

    #[test]
    fn what_stands_in_a_row_comes_back_whatever_it_is() {
        let mut index = Index::default();
        for (n, home) in [Home::Memtable, Home::Chunk(0, 0), Home::Chunk(70_000, 127)]
            .into_iter()
            .enumerate()
        {
            for state in State::ALL {
                for place in Place::ALL {
                    for at_ms in [0, -1, AT_MIN, AT_MAX, 1_796_000_000_000] {
                        let row = Row {
                            home,
                            state,
                            place,
                            at_ms,
                            ..row(n as u64)
                        };
                        let number = index.add(&row);
                        assert_eq!(index.row(number), row);
                        assert_eq!(index.remove(number), row);
                    }
                }
            }
        }
    }

    #[test]
    fn tasks_are_found_by_id_by_key_and_by_topic_through_ten_thousand_changes() {
        let mut index = Index::default();
        let numbers: Vec<RowId> = (0..10_000).map(|n| index.add(&row(n))).collect();
        for n in (0..10_000).filter(|n| n % 3 == 0) {
            index.change(numbers[n], |row| row.state = State::Cancelled);
        }
        for n in (0..10_000).filter(|n| n % 5 == 0) {
            index.remove(numbers[n]);
        }
        for n in 0..10_000_u64 {
            let is_there = n % 5 != 0;
            let has_ended = n % 3 == 0;
            let found = |is: bool| is.then(|| numbers[n as usize]);
            assert_eq!(index.find(row(n).id), found(is_there));
            assert_eq!(index.live(n + 1), found(is_there && !has_ended));
            assert_eq!(index.ended_last(n + 1), found(is_there && has_ended));
        }
        assert_eq!(index.len(), 8_000);
        for topic in 0..3_u64 {
            let there = (0..10_000_u64).filter(|n| n % 3 == topic && n % 5 != 0);
            let mut expected: Vec<TaskId> = there.map(|n| row(n).id).collect();
            let rows = index.of_topic(TopicNumber(topic as u32));
            let mut found: Vec<TaskId> = rows.map(|number| index.row(number).id).collect();
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn of_many_ended_tasks_of_a_key_the_last_to_end_is_found() {
        let mut index = Index::default();
        let mut numbers = Vec::new();
        for (n, at_ms) in [5, 9, 1, 9, 7].into_iter().enumerate() {
            numbers.push(index.add(&Row {
                key_hash: 77,
                state: State::Succeeded,
                at_ms,
                ..row(n as u64)
            }));
        }
        for last in [3, 1, 4, 0, 2] {
            assert_eq!(index.ended_last(77), Some(numbers[last]));
            index.remove(numbers[last]);
        }
        assert_eq!(index.ended_last(77), None);
    }

    #[test]
    fn of_two_that_end_in_the_same_millisecond_the_later_one_is_found() {
        let mut index = Index::default();
        let numbers: Vec<RowId> = (0..4)
            .map(|n| {
                index.add(&Row {
                    key_hash: 77,
                    ..row(n)
                })
            })
            .collect();
        for last in [2, 0, 3, 1] {
            index.change(numbers[last], |row| {
                row.state = State::Dead;
                row.at_ms = 9;
            });
            assert_eq!(index.ended_last(77), Some(numbers[last]));
        }
        index.remove(numbers[1]);
        assert_eq!(index.ended_last(77), Some(numbers[3]), "by id from here on");
    }

    #[test]
    fn a_task_takes_no_more_than_64_bytes() {
        let mut index = Index::default();
        let mut sizes = Vec::new();
        for n in 0..1_000_000 {
            index.add(&row(n));
            if n > 100_000 && n.is_multiple_of(50_000) {
                sizes.push(index.bytes() as f64 / index.len() as f64);
            }
        }
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        assert!(
            mean <= 65.0,
            "{mean} bytes a task, on the average of its sizes"
        );
    }
}
