//! The stored forms of a chunk: its index and its body, each one value.
//!
//! ```text
//!  index    version 1 │ crc32 4 │ class 1 │ records 1 │ topics 1 │ packed bytes 4 │ topic … │ entry …
//!  topic    length 1 │ name
//!  entry    id 16 │ key hash 8 │ due 8 │ ended 8 │ wake 8 │ generation 4 │ topic 1 │ state 1, top bit: has more alarms
//!
//!  body     version 1 │ crc32 4 │ packing 1 │ bytes 4 │ content bytes 4 │ content, packed
//!  content  records 2 │ end 4 … │ record …         an end counts from the first record's first byte
//! ```
//!
//! Numbers are little-endian. A sum covers the chunk's number, which of the two it is, and all of the value but
//! itself; so a value that turns up in another's place is noticed like one with a flipped bit. Lengths are bounded
//! before anything is allocated.

use bytes::Bytes;

use super::{
    CHUNK_BYTES, CHUNK_RECORDS_MAX, ChunkBody, ChunkId, ChunkIndex, Class, Entry, PackedChunk,
};
use crate::ids::TaskId;
use crate::limits;
use crate::store::codec::{Damaged, RECORD_BYTES_MAX};
use crate::task::model::State;
use crate::task::spec::TopicName;

/// A stored form that changes gets the next number and a golden test.
const VERSION: u8 = 1;
const SUM_END: usize = 5;

const INDEX_HEADER_BYTES: usize = SUM_END + 7;
const ENTRY_BYTES: usize = 54;
/// Beside the state. An entry from before there was the second has it not set, and calls nobody back.
const MORE_ALARMS: u8 = 0x80;
const CALLS_BACK: u8 = 0x40;

/// Largest index, in bytes.
pub(in crate::store) const INDEX_BYTES_MAX: usize =
    INDEX_HEADER_BYTES + CHUNK_RECORDS_MAX * (1 + limits::TOPIC_BYTES_MAX + ENTRY_BYTES);

const BODY_HEADER_BYTES: usize = SUM_END + 9;
const CONTENT_HEADER_BYTES: usize = 2;
/// All records but the last come to less than [`CHUNK_BYTES`].
const CONTENT_BYTES_MAX: usize =
    CONTENT_HEADER_BYTES + 4 * CHUNK_RECORDS_MAX + CHUNK_BYTES + RECORD_BYTES_MAX;
const PLAIN: u8 = 0;
const LZ4: u8 = 1;

/// By their numbers. Only appended to.
const STATES: [State; 8] = [
    State::Pending,
    State::Dispatched,
    State::Running,
    State::Retrying,
    State::Paused,
    State::Succeeded,
    State::Dead,
    State::Cancelled,
];

impl ChunkIndex {
    /// The index as it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut topics: Vec<&TopicName> = Vec::new();
        let mut entries = Vec::with_capacity(self.entries.len() * ENTRY_BYTES);
        for entry in &self.entries {
            let known = topics.iter().rposition(|topic| **topic == entry.topic);
            let topic = known.unwrap_or_else(|| {
                topics.push(&entry.topic);
                topics.len() - 1
            });
            let state = STATES.iter().position(|state| *state == entry.state);
            let state = state.expect("every state is in the table") as u8;
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            let flags =
                flag(entry.has_more_alarms, MORE_ALARMS) | flag(entry.calls_back, CALLS_BACK);
            entries.extend_from_slice(&entry.id.to_bytes());
            entries.extend_from_slice(&entry.key_hash.to_le_bytes());
            entries.extend_from_slice(&entry.due_ms.to_le_bytes());
            entries.extend_from_slice(&entry.ended_ms.to_le_bytes());
            entries.extend_from_slice(&entry.wake_ms.to_le_bytes());
            entries.extend_from_slice(&entry.generation.to_le_bytes());
            entries.extend_from_slice(&[topic as u8, state | flags]);
        }
        let counts = [
            self.class as u8,
            self.entries.len() as u8,
            topics.len() as u8,
        ];
        let mut value = Vec::with_capacity(INDEX_HEADER_BYTES + 32 + entries.len());
        value.extend_from_slice(&[VERSION, 0, 0, 0, 0]);
        value.extend_from_slice(&counts);
        value.extend_from_slice(&self.packed_bytes.to_le_bytes());
        for topic in topics {
            value.push(topic.as_str().len() as u8);
            value.extend_from_slice(topic.as_str().as_bytes());
        }
        value.extend_from_slice(&entries);
        seal(&mut value, self.id, Part::Index);
        value
    }

    /// The reverse of [`ChunkIndex::encode`].
    ///
    /// # Errors
    /// When the value is not what was written for this chunk.
    pub fn decode(id: ChunkId, value: &[u8]) -> Result<Self, Damaged> {
        let mut rest = Fields(unsealed(value, id, Part::Index)?);
        let class = Class::ALL.get(usize::from(rest.u8()?)).copied();
        let class = class.ok_or_else(|| Damaged::new("a class that is not known"))?;
        let (count, topics) = (usize::from(rest.u8()?), usize::from(rest.u8()?));
        if count > CHUNK_RECORDS_MAX || topics > count {
            return Err(Damaged::new("more entries than a chunk holds"));
        }
        let packed_bytes = u32::from_le_bytes(rest.take()?);
        let mut names = Vec::with_capacity(topics);
        for _ in 0..topics {
            let length = usize::from(rest.u8()?);
            let name = str::from_utf8(rest.bytes(length)?).ok();
            let name = name.and_then(|name| TopicName::parse(name).ok());
            names.push(name.ok_or_else(|| Damaged::new("a topic that is no name"))?);
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let mut entry = Fields(rest.bytes(ENTRY_BYTES)?);
            let id = TaskId::from_bytes(entry.take()?);
            let key_hash = u64::from_le_bytes(entry.take()?);
            let due_ms = i64::from_le_bytes(entry.take()?);
            let ended_ms = i64::from_le_bytes(entry.take()?);
            let wake_ms = i64::from_le_bytes(entry.take()?);
            let generation = u32::from_le_bytes(entry.take()?);
            let topic = names.get(usize::from(entry.u8()?));
            let state = entry.u8()?;
            let (Some(topic), Some(known)) = (
                topic,
                STATES.get(usize::from(state & !(MORE_ALARMS | CALLS_BACK))),
            ) else {
                return Err(Damaged::new("a topic or state that is not known"));
            };
            entries.push(Entry {
                id,
                topic: topic.clone(),
                key_hash,
                class,
                state: *known,
                generation,
                due_ms,
                ended_ms,
                wake_ms,
                has_more_alarms: state & MORE_ALARMS != 0,
                calls_back: state & CALLS_BACK != 0,
            });
        }
        rest.end()?;
        Ok(Self {
            id,
            class,
            entries,
            packed_bytes,
        })
    }
}

impl PackedChunk {
    /// Packs these records.
    pub fn pack<'a>(id: ChunkId, records: impl IntoIterator<Item = &'a [u8]> + Clone) -> Self {
        let (mut count, mut bytes) = (0, 0);
        for record in records.clone() {
            count += 1;
            bytes += record.len();
        }
        let mut content = Vec::with_capacity(CONTENT_HEADER_BYTES + 4 * count + bytes);
        content.extend_from_slice(&(count as u16).to_le_bytes());
        let mut end = 0_u32;
        for record in records.clone() {
            end += record.len() as u32;
            content.extend_from_slice(&end.to_le_bytes());
        }
        for record in records {
            content.extend_from_slice(record);
        }
        let room = lz4_flex::block::get_maximum_output_size(content.len());
        let mut value = vec![0; BODY_HEADER_BYTES + room];
        let packed = lz4_flex::block::compress_into(&content, &mut value[BODY_HEADER_BYTES..]);
        let packing = match packed {
            Ok(packed) if packed < content.len() => {
                value.truncate(BODY_HEADER_BYTES + packed);
                LZ4
            }
            _ => {
                value.truncate(BODY_HEADER_BYTES);
                value.extend_from_slice(&content);
                PLAIN
            }
        };
        let stored = (value.len() as u32).to_le_bytes();
        value[0] = VERSION;
        value[SUM_END] = packing;
        value[SUM_END + 1..SUM_END + 5].copy_from_slice(&stored);
        value[SUM_END + 5..SUM_END + 9].copy_from_slice(&(content.len() as u32).to_le_bytes());
        seal(&mut value, id, Part::Body);
        Self {
            id,
            bytes: value.into(),
        }
    }

    /// How many bytes a body has that begins so; not checked, but bounded.
    pub(in crate::store) fn bytes_of(first: &[u8]) -> Option<usize> {
        let length = first.get(SUM_END + 1..)?.first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        (length <= BODY_HEADER_BYTES + CONTENT_BYTES_MAX).then_some(length)
    }

    /// The records, if the stored bytes are what was written for this chunk.
    ///
    /// # Errors
    /// When they are not.
    pub fn unpack(&self) -> Result<ChunkBody, Damaged> {
        let mut rest = Fields(unsealed(&self.bytes, self.id, Part::Body)?);
        let packing = rest.u8()?;
        let stored = u32::from_le_bytes(rest.take()?) as usize;
        let length = u32::from_le_bytes(rest.take()?) as usize;
        if stored != self.bytes.len() || length > CONTENT_BYTES_MAX {
            return Err(Damaged::new("a body of another length than it says"));
        }
        let content = match packing {
            PLAIN => self.bytes.slice(BODY_HEADER_BYTES..),
            LZ4 => {
                let mut content = vec![0; length];
                lz4_flex::block::decompress_into(rest.0, &mut content)
                    .ok()
                    .filter(|unpacked| *unpacked == length)
                    .ok_or_else(|| Damaged::new("a body that does not unpack"))?;
                Bytes::from(content)
            }
            other => return Err(Damaged::new(format!("an unknown packing {other}"))),
        };
        let mut rest = Fields(&content);
        let count = usize::from(u16::from_le_bytes(rest.take()?));
        if count > CHUNK_RECORDS_MAX {
            return Err(Damaged::new("more records than a chunk holds"));
        }
        let mut ends = Vec::with_capacity(count);
        for _ in 0..count {
            ends.push(u32::from_le_bytes(rest.take()?));
        }
        let bytes = content.slice(content.len() - rest.0.len()..);
        if !ends.is_sorted() || ends.last().map_or(0, |end| *end as usize) != bytes.len() {
            return Err(Damaged::new("records that end where they do not"));
        }
        Ok(ChunkBody { bytes, ends })
    }
}

/// What can be had of a chunk that does not read back. Whoever takes something of it checks it: each record's own sum
/// covers its task's id.
impl ChunkIndex {
    /// The ids that stand where those of a chunk of `count` records would.
    pub fn salvage_ids(value: &[u8], count: usize) -> Vec<TaskId> {
        let Some(start) = value.len().checked_sub(count * ENTRY_BYTES) else {
            return Vec::new();
        };
        let entries = value[start..].chunks_exact(ENTRY_BYTES);
        let ids = entries.filter_map(|entry| entry.first_chunk().copied());
        ids.map(TaskId::from_bytes).collect()
    }
}

impl PackedChunk {
    /// What stands where its records would, as far as it unpacks.
    pub fn salvage(&self) -> Vec<Bytes> {
        let Some((header, packed)) = self.bytes.split_at_checked(BODY_HEADER_BYTES) else {
            return Vec::new();
        };
        let length = header[SUM_END + 5..].first_chunk().copied();
        let length = length.map_or(0, u32::from_le_bytes) as usize;
        let content = match header[SUM_END] {
            PLAIN => packed.to_vec(),
            _ => {
                let mut content = vec![0; length.min(CONTENT_BYTES_MAX)];
                // As far as it gets: what comes behind stays zero, and is no record by its sum.
                let _ = lz4_flex::block::decompress_into(packed, &mut content);
                content
            }
        };
        let content = Bytes::from(content);
        let mut rest = Fields(&content);
        let Ok(count) = rest.take().map(u16::from_le_bytes) else {
            return Vec::new();
        };
        let count = usize::from(count).min(CHUNK_RECORDS_MAX);
        let ends: Vec<usize> = (0..count)
            .map_while(|_| rest.take().ok())
            .map(|end| u32::from_le_bytes(end) as usize)
            .collect();
        let records = content.slice(content.len() - rest.0.len()..);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts
            .zip(&ends)
            .map(
                |(start, end)| match start <= *end && *end <= records.len() {
                    true => records.slice(start..*end),
                    false => Bytes::new(),
                },
            )
            .collect()
    }
}

/// Which of a chunk's values a sum is for.
#[derive(Clone, Copy)]
enum Part {
    Index = 1,
    Body = 2,
}

fn sum_of(id: ChunkId, part: Part, rest: &[u8]) -> [u8; 4] {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&id.0.to_be_bytes());
    sum.update(&[part as u8, VERSION]);
    sum.update(rest);
    sum.finalize().to_le_bytes()
}

fn seal(value: &mut [u8], id: ChunkId, part: Part) {
    let sum = sum_of(id, part, &value[SUM_END..]);
    value[1..SUM_END].copy_from_slice(&sum);
}

fn unsealed(value: &[u8], id: ChunkId, part: Part) -> Result<&[u8], Damaged> {
    let mut fields = Fields(value);
    let version = fields.u8()?;
    if version != VERSION {
        return Err(Damaged::new(format!(
            "a chunk of the unknown format {version}"
        )));
    }
    if fields.take()? != sum_of(id, part, fields.0) {
        return Err(Damaged::new("the checksum is wrong"));
    }
    Ok(fields.0)
}

/// What is still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (head, rest) = self.0.split_at_checked(count).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(head)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Damaged> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn end(&self) -> Result<(), Damaged> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Damaged::new("more bytes than its fields")),
        }
    }
}

fn cut_short() -> Damaged {
    Damaged::new("a chunk that is cut short")
}

/// These bytes as an index and as a body, with right sums.
#[cfg(test)]
pub(super) fn sealed_for_test(id: ChunkId, rest: &[u8]) -> [Vec<u8>; 2] {
    [Part::Index, Part::Body].map(|part| {
        let mut value = vec![VERSION, 0, 0, 0, 0];
        value.extend_from_slice(rest);
        seal(&mut value, id, part);
        value
    })
}
