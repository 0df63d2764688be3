//! How records become bytes and back. The one module that knows bincode.
//!
//! ```text
//!  value   version 1 │ crc32 4 │ body …            the body is a record of `record.rs`, in bincode
//!                      └ over the record's key, the version and the body
//!  batch   version 1 │ steady 8 │ change │ change │ …
//!  change  kind 1 │ id 16 │ length 4 │ value …     kind with its top bit set: removed, no value
//!                                                 with the next bit set: a cancel of the task, not a task
//! ```
//!
//! The key is part of the sum, so a value that turns up under another key, like one with a flipped bit or a
//! missing end, reads as [`Damaged`] and never as something else. The sum is checked before anything is decoded,
//! and decoding is limited in size besides.
//!
//! A [`Batch`] is one buffer that grows: a task is written into it once, and the same bytes go to the journal,
//! stand in the memtable (as slices of that buffer) and end in the wheel. This is the create path's hot spot.
//! Limits: [`RECORD_BYTES_MAX`] for one value; the stores refuse more.

mod record;

use std::sync::Arc;

use bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use bincode::{BorrowDecode, Encode};
use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use self::record::{
    CancelRecordV1, CheckpointRecordV2, KeptAnswerRecordV1, LateAnswerRecordV1, ManifestRecordV1,
    MarksRecordV1, SeedRecordV1, TaskRecordV1, TombstoneRecordV1,
};
use crate::clock::{DurationMs, SteadyMs, WallMs};
use crate::ids::TaskId;
use crate::store::chunk::{ChunkId, Mask};
use crate::store::{KeptAnswer, Note, RecordKey, StoreError, Tombstone};
use crate::task::Task;
use crate::task::late::LateAnswer;
use crate::task::spec::{TaskKey, TaskSpec, TopicName};

/// Largest value, in bytes: payload, facts, result and a full history come to about one third of it.
pub const RECORD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A stored form that changes gets the next number, a record struct of its own and a golden test.
const VALUE_VERSION: u8 = 1;
const BATCH_VERSION: u8 = 2;

const VALUE_HEADER_BYTES: usize = 5;
const BATCH_HEADER_BYTES: usize = 9;
const REMOVED: u8 = 0x80;
const CANCEL: u8 = 0x40;

/// Decoded records are larger than their bytes: short strings become slices, numbers get their full width.
const DECODED_BYTES_MAX: usize = 16 * RECORD_BYTES_MAX;
const CONFIG: Configuration<LittleEndian, Varint, Limit<DECODED_BYTES_MAX>> =
    standard().with_limit::<DECODED_BYTES_MAX>();

/// Bytes that are not what was written. Says why; the caller knows where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(String);

impl Damaged {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    /// As the store's error about the record of this task.
    pub fn of(self, id: TaskId) -> StoreError {
        StoreError::Corrupt {
            place: RecordKey::Task(id).to_string(),
            why: self.0,
        }
    }
}

/// A record key as it stands in stores: its kind and 16 bytes, big-endian, so that it sorts like the key.
pub type KeyBytes = [u8; 17];

impl RecordKey {
    /// The key of the tombstone of a topic and key.
    pub fn tombstone(topic: &TopicName, key: &TaskKey) -> Self {
        // Names have no control characters, so the zero keeps `a, bc` and `ab, c` apart.
        let text = [topic.as_str().as_bytes(), &[0], key.as_str().as_bytes()].concat();
        Self::Tombstone(xxh3_128(&text))
    }

    /// The key of a late answer: an attempt may say one thing of each kind.
    pub fn late(answer: &LateAnswer) -> Self {
        let token = answer.token.0.to_be_bytes();
        let id = answer.task.to_bytes();
        Self::Late(xxh3_128(
            &[&id[..], &token, answer.outcome.as_bytes()].concat(),
        ))
    }

    /// The key as bytes.
    pub fn to_bytes(self) -> KeyBytes {
        let (kind, id) = match self {
            Self::Task(id) => (1, id.to_bytes()),
            Self::Tombstone(hash) => (2, hash.to_be_bytes()),
            Self::Answer(hash) => (3, hash.to_be_bytes()),
            Self::Late(hash) => (4, hash.to_be_bytes()),
        };
        let mut bytes = [kind; 17];
        bytes[1..].copy_from_slice(&id);
        bytes
    }

    /// The reverse of [`RecordKey::to_bytes`]; `None` for a kind that is not known.
    pub fn from_bytes(bytes: KeyBytes) -> Option<Self> {
        let [kind, id @ ..] = bytes;
        match kind {
            1 => Some(Self::Task(TaskId::from_bytes(id))),
            2 => Some(Self::Tombstone(u128::from_be_bytes(id))),
            3 => Some(Self::Answer(u128::from_be_bytes(id))),
            4 => Some(Self::Late(u128::from_be_bytes(id))),
            _ => None,
        }
    }
}

impl std::fmt::Display for RecordKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Task(id) => write!(f, "task {id}"),
            Self::Tombstone(hash) => write!(f, "tombstone {hash:032x}"),
            Self::Answer(hash) => write!(f, "kept answer {hash:032x}"),
            Self::Late(hash) => write!(f, "late answer {hash:032x}"),
        }
    }
}

/// What a commit does to one record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// This value stands under the key from here on.
    Put(Bytes),
    /// The task is cancelled, without its record having been read: see [`Cancel`].
    Cancel(Bytes),
    /// It is gone.
    Remove,
}

/// A cancel that is kept beside the record of its task until that is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancel {
    /// When.
    pub at: WallMs,
    /// When, in steady time.
    pub steady: SteadyMs,
    /// How long the cancelled task is kept.
    pub retention: DurationMs,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The request that may be sent again.
    pub request: Option<u64>,
}

/// Changes that are committed together, in order, and the steady time at which they were made.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch {
    buffer: Buffer,
    changes: usize,
    largest: usize,
}

/// Grows until it is sealed; then its slices are shared.
#[derive(Clone, PartialEq, Eq)]
enum Buffer {
    Open(Vec<u8>),
    Sealed(Bytes),
}

impl Batch {
    /// An empty batch of that time.
    pub fn new(steady: SteadyMs) -> Self {
        Self::with_room(steady, 0)
    }

    /// An empty batch of that time that has room for so many bytes, and grows when it needs more.
    pub fn with_room(steady: SteadyMs, bytes: usize) -> Self {
        let mut buffer = Vec::with_capacity(BATCH_HEADER_BYTES + bytes);
        buffer.push(BATCH_VERSION);
        buffer.extend_from_slice(&steady.0.to_le_bytes());
        Self {
            buffer: Buffer::Open(buffer),
            changes: 0,
            largest: 0,
        }
    }

    /// Writes a task, new or changed.
    pub fn put_task(&mut self, task: &Task) {
        self.put(RecordKey::Task(task.id), 0, &TaskRecordV1::of(task, None));
    }

    /// The same for a task whose spec is at hand as it was read.
    pub fn put_read_task(&mut self, task: &Task, spec: &SpecBytes) {
        let record = TaskRecordV1::of(task, spec.of(task));
        self.put(RecordKey::Task(task.id), 0, &record);
    }

    /// Cancels a task whose record stands in a chunk.
    pub fn put_cancel(&mut self, id: TaskId, cancel: &Cancel) {
        self.put(RecordKey::Task(id), CANCEL, &CancelRecordV1::from(cancel));
    }

    /// Forgets a task.
    pub fn remove_task(&mut self, id: TaskId) {
        self.remove(RecordKey::Task(id));
    }

    /// Writes a tombstone.
    pub fn put_tombstone(&mut self, tombstone: &Tombstone) {
        let key = RecordKey::tombstone(&tombstone.topic, &tombstone.key);
        self.put(key, 0, &TombstoneRecordV1::from(tombstone));
    }

    /// Forgets a tombstone.
    pub fn remove_tombstone(&mut self, topic: &TopicName, key: &TaskKey) {
        self.remove(RecordKey::tombstone(topic, key));
    }

    /// Writes a kept answer.
    pub fn put_answer(&mut self, kept: &KeptAnswer) {
        let key = RecordKey::Answer(kept.key);
        self.put(key, 0, &KeptAnswerRecordV1::from(kept));
    }

    /// Forgets a kept answer.
    pub fn remove_answer(&mut self, key: u128) {
        self.remove(RecordKey::Answer(key));
    }

    /// Writes a late answer.
    pub fn put_late(&mut self, late: &LateAnswer) {
        self.put(RecordKey::late(late), 0, &LateAnswerRecordV1::from(late));
    }

    /// Forgets a late answer.
    pub fn remove_late(&mut self, key: u128) {
        self.remove(RecordKey::Late(key));
    }

    /// The steady time it was made at.
    pub fn steady(&self) -> SteadyMs {
        let mut mark = [0; 8];
        mark.copy_from_slice(&self.encode()[1..BATCH_HEADER_BYTES]);
        SteadyMs(i64::from_le_bytes(mark))
    }

    /// How many changes it holds.
    pub fn len(&self) -> usize {
        self.changes
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// Its size as a journal's payload, in bytes.
    pub fn bytes(&self) -> usize {
        self.encode().len()
    }

    /// The batch as a journal's payload.
    pub fn encode(&self) -> &[u8] {
        match &self.buffer {
            Buffer::Open(bytes) => bytes,
            Buffer::Sealed(bytes) => bytes,
        }
    }

    /// The reverse of [`Batch::encode`].
    ///
    /// # Errors
    /// When the payload is not a row of whole changes, or of a format that is not known. The values' own sums are
    /// checked when they are read.
    pub fn decode(payload: Vec<u8>) -> Result<Self, Damaged> {
        match payload.first() {
            Some(&BATCH_VERSION) if payload.len() >= BATCH_HEADER_BYTES => {}
            Some(&BATCH_VERSION) | None => return Err(Damaged::new("a batch that is cut short")),
            Some(version) => {
                return Err(Damaged::new(format!(
                    "a batch of the unknown format {version}"
                )));
            }
        }
        let (mut changes, mut largest) = (0, 0);
        let mut at = BATCH_HEADER_BYTES;
        while at < payload.len() {
            let found = Found::read(&payload, at)
                .ok_or_else(|| Damaged::new("a batch that is cut short"))?;
            changes += 1;
            largest = largest.max(found.value.map_or(0, |range| range.len()));
            at = found.end;
        }
        Ok(Self {
            buffer: Buffer::Sealed(Bytes::from(payload)),
            changes,
            largest,
        })
    }

    /// The size of its largest value, in bytes.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Nothing is added any more: from here on its values can be shared.
    pub fn seal(&mut self) -> Bytes {
        if let Buffer::Open(bytes) = &mut self.buffer {
            self.buffer = Buffer::Sealed(Bytes::from(std::mem::take(bytes)));
        }
        match &self.buffer {
            Buffer::Sealed(bytes) => bytes.clone(),
            Buffer::Open(_) => Bytes::new(),
        }
    }

    /// The changes in order, as slices that share the batch's buffer.
    pub fn changes(&mut self) -> impl Iterator<Item = (RecordKey, Change)> + use<> {
        let buffer = self.seal();
        let mut at = BATCH_HEADER_BYTES;
        std::iter::from_fn(move || {
            let found = Found::read(&buffer, at)?;
            at = found.end;
            let change = match found.value {
                Some(range) if found.is_cancel => Change::Cancel(buffer.slice(range)),
                Some(range) => Change::Put(buffer.slice(range)),
                None => Change::Remove,
            };
            Some((found.key, change))
        })
    }

    fn open(&mut self) -> &mut Vec<u8> {
        match &mut self.buffer {
            Buffer::Open(bytes) => bytes,
            Buffer::Sealed(_) => panic!("nothing is added to a sealed batch"),
        }
    }

    fn put(&mut self, key: RecordKey, flag: u8, record: &impl Encode) {
        let bytes = key.to_bytes();
        self.put_bytes(key, flag, |buffer| encode_value(buffer, &bytes, record));
    }

    fn put_bytes(&mut self, key: RecordKey, flag: u8, write: impl FnOnce(&mut Vec<u8>)) {
        let [kind, id @ ..] = key.to_bytes();
        let buffer = self.open();
        buffer.push(kind | flag);
        buffer.extend_from_slice(&id);
        let length_at = buffer.len();
        buffer.extend_from_slice(&[0; 4]);
        write(buffer);
        let length = buffer.len() - length_at - 4;
        buffer[length_at..length_at + 4].copy_from_slice(&(length as u32).to_le_bytes());
        self.changes += 1;
        self.largest = self.largest.max(length);
    }

    fn remove(&mut self, key: RecordKey) {
        let [kind, id @ ..] = key.to_bytes();
        let buffer = self.open();
        buffer.push(kind | REMOVED);
        buffer.extend_from_slice(&id);
        self.changes += 1;
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut copy = self.clone();
        let keys = copy.changes().map(|(key, change)| match change {
            Change::Put(_) => format!("put {key}"),
            Change::Cancel(_) => format!("cancel {key}"),
            Change::Remove => format!("remove {key}"),
        });
        f.debug_list().entries(keys).finish()
    }
}

/// Where one change stands in a batch's buffer.
struct Found {
    key: RecordKey,
    is_cancel: bool,
    value: Option<std::ops::Range<usize>>,
    end: usize,
}

impl Found {
    fn read(buffer: &[u8], at: usize) -> Option<Self> {
        let mut key: KeyBytes = *buffer.get(at..)?.first_chunk()?;
        let flags = key[0] & (REMOVED | CANCEL);
        key[0] &= !(REMOVED | CANCEL);
        let key = RecordKey::from_bytes(key)?;
        let mut end = at + size_of::<KeyBytes>();
        let mut value = None;
        if flags & REMOVED == 0 {
            let length = u32::from_le_bytes(*buffer.get(end..)?.first_chunk()?);
            let start = end + 4;
            end = start
                .checked_add(length as usize)
                .filter(|end| *end <= buffer.len())?;
            value = Some(start..end);
        }
        Some(Self {
            key,
            is_cancel: flags & CANCEL != 0,
            value,
            end,
        })
    }
}

/// How many keys a store should find, and the sum of their hashes: what was lost, or came back, shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// The sum of their hashes.
    pub sum: u64,
}

impl Tally {
    /// Counts a key in.
    pub fn add(&mut self, key: &[u8]) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(xxh3_64(key));
    }

    /// Counts a key out.
    pub fn take(&mut self, key: &[u8]) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(xxh3_64(key));
    }
}

/// How far folding has come: what must outlive the journal segments that are dropped. Whatever is numbered past it
/// was left behind by a fold that was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// The last journal sequence that is in chunks.
    pub covered: u64,
    /// The largest steady time that was committed.
    pub steady: SteadyMs,
    /// The last fold that is through.
    pub fold: u64,
    /// The fold whose marks replaced all older ones.
    pub marks_from: u64,
    /// The number of the next chunk.
    pub next_chunk: ChunkId,
    /// The chunks that there are.
    pub chunks: Tally,
    /// The sets of marks in force.
    pub marks: Tally,
    /// The notes that there are.
    pub notes: Tally,
}

impl Checkpoint {
    /// As a value that stands under `key`.
    pub fn encode(&self, key: &[u8]) -> Vec<u8> {
        encoded(key, &CheckpointRecordV2::from(*self))
    }

    /// The reverse of [`Checkpoint::encode`].
    ///
    /// # Errors
    /// When the value is not what was written under `key`.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Damaged> {
        decode_value(key, value).map(CheckpointRecordV2::into)
    }
}

/// Names the parts of a value that is too large for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Which set of parts.
    pub stamp: u64,
    /// How many they are.
    pub parts: u16,
    /// How long they are together.
    pub bytes: u32,
}

impl Manifest {
    /// As a value that stands under `key`.
    pub fn encode(&self, key: &[u8]) -> Vec<u8> {
        encoded(key, &ManifestRecordV1::from(*self))
    }

    /// The reverse of [`Manifest::encode`].
    ///
    /// # Errors
    /// When the value is not what was written under `key`.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Damaged> {
        decode_value(key, value).map(ManifestRecordV1::into)
    }
}

/// Marks as a value that stands under `key`.
pub fn encode_marks(key: &[u8], marks: &[(ChunkId, Mask)]) -> Vec<u8> {
    encoded(key, &MarksRecordV1::from(marks))
}

/// The reverse of [`encode_marks`].
///
/// # Errors
/// When the value is not what was written under `key`.
pub fn decode_marks(key: &[u8], value: &[u8]) -> Result<Vec<(ChunkId, Mask)>, Damaged> {
    decode_value(key, value).map(MarksRecordV1::into)
}

/// A store's seed as a value that stands under `key`.
pub fn encode_seed(key: &[u8], seed: u64) -> Vec<u8> {
    encoded(key, &SeedRecordV1 { seed })
}

/// The reverse of [`encode_seed`].
///
/// # Errors
/// When the value is not what was written under `key`.
pub fn decode_seed(key: &[u8], value: &[u8]) -> Result<u64, Damaged> {
    decode_value(key, value).map(|record: SeedRecordV1| record.seed)
}

/// A task's value.
pub fn encode_task(task: &Task) -> Bytes {
    let mut value = Vec::new();
    let record = TaskRecordV1::of(task, None);
    encode_value(&mut value, &RecordKey::Task(task.id).to_bytes(), &record);
    Bytes::from(value)
}

/// The stored bytes of a task's spec, so that they need not be made again.
#[derive(Clone, Debug)]
pub struct SpecBytes {
    spec: Arc<TaskSpec>,
    encoded: Bytes,
}

impl SpecBytes {
    /// Unless the task has another spec by now.
    fn of(&self, task: &Task) -> Option<&[u8]> {
        Arc::ptr_eq(&self.spec, &task.spec).then_some(&self.encoded)
    }
}

/// Reads a task's value that may be written again soon.
///
/// # Errors
/// When the value is not what was written for this task.
pub fn decode_task_and_spec(
    id: TaskId,
    value: &[u8],
) -> Result<(Task, Option<SpecBytes>), Damaged> {
    let record: TaskRecordV1<'_> = decode_value(&RecordKey::Task(id).to_bytes(), value)?;
    let encoded = record.spec_in(value).map(Bytes::copy_from_slice);
    let task = record.into_task(id)?;
    let spec = Arc::clone(&task.spec);
    let bytes = encoded.map(|encoded| SpecBytes { spec, encoded });
    Ok((task, bytes))
}

/// Reads a task's value.
///
/// # Errors
/// When the value is not what was written for this task.
pub fn decode_task(id: TaskId, value: &[u8]) -> Result<Task, Damaged> {
    let record: TaskRecordV1<'_> = decode_value(&RecordKey::Task(id).to_bytes(), value)?;
    record.into_task(id)
}

/// Reads a cancel's value.
///
/// # Errors
/// When the value is not what was written for this task.
pub fn decode_cancel(id: TaskId, value: &[u8]) -> Result<Cancel, Damaged> {
    let record: CancelRecordV1<'_> = decode_value(&RecordKey::Task(id).to_bytes(), value)?;
    Ok(record.into())
}

/// Reads a note's value; `None` if the key is not a note's.
///
/// # Errors
/// When the value is not what was written under this key.
pub fn decode_note(key: RecordKey, value: &[u8]) -> Result<Option<Note>, Damaged> {
    match key {
        RecordKey::Task(_) => Ok(None),
        RecordKey::Tombstone(_) => {
            let record: TombstoneRecordV1<'_> = decode_value(&key.to_bytes(), value)?;
            record
                .into_tombstone()
                .map(|tombstone| Some(Note::Tombstone(tombstone)))
        }
        RecordKey::Answer(hash) => {
            let record: KeptAnswerRecordV1<'_> = decode_value(&key.to_bytes(), value)?;
            Ok(Some(Note::Answer(record.into_answer(hash))))
        }
        RecordKey::Late(_) => {
            let record: LateAnswerRecordV1<'_> = decode_value(&key.to_bytes(), value)?;
            let late = record.into_late()?;
            Ok(Some(Note::Late(Box::new(late))))
        }
    }
}

fn encoded(key: &[u8], record: &impl Encode) -> Vec<u8> {
    let mut value = Vec::new();
    encode_value(&mut value, key, record);
    value
}

fn encode_value(buffer: &mut Vec<u8>, key: &[u8], record: &impl Encode) {
    let at = buffer.len();
    buffer.extend_from_slice(&[VALUE_VERSION, 0, 0, 0, 0]);
    bincode::encode_into_writer(record, Tail(buffer), CONFIG).expect("memory takes every record");
    let sum = checksum(key, &buffer[at + VALUE_HEADER_BYTES..]);
    buffer[at + 1..at + VALUE_HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
}

fn decode_value<'a, R: BorrowDecode<'a, ()>>(key: &[u8], value: &'a [u8]) -> Result<R, Damaged> {
    let Some((&[version, ref sum @ ..], body)) = value.split_first_chunk::<VALUE_HEADER_BYTES>()
    else {
        return Err(Damaged::new("a value that is cut short"));
    };
    if version != VALUE_VERSION {
        return Err(Damaged::new(format!(
            "a value of the unknown format {version}"
        )));
    }
    if u32::from_le_bytes(*sum) != checksum(key, body) {
        return Err(Damaged::new("the checksum is wrong"));
    }
    let (record, read) = bincode::borrow_decode_from_slice(body, CONFIG).map_err(|error| {
        Damaged::new(format!(
            "the checksum is right but the record is not: {error}"
        ))
    })?;
    if read != body.len() {
        return Err(Damaged::new("the record is shorter than its value"));
    }
    Ok(record)
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(key);
    sum.update(&[VALUE_VERSION]);
    sum.update(body);
    sum.finalize()
}

/// Appends what bincode writes.
struct Tail<'a>(&'a mut Vec<u8>);

impl bincode::enc::write::Writer for Tail<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::ids::{AttemptNumber, AttemptToken};
    use crate::task::history::ErrorNote;
    use crate::task::late::Treatment;
    use crate::task::model::State;
    use crate::task::spec::{Action, RawJson};
    use crate::testing::arbitrary::{
        a_late_answer, a_task, a_tombstone, an_answer, golden_task, plain_task,
    };

    fn value_of(task: &Task) -> Vec<u8> {
        let mut batch = Batch::new(SteadyMs(0));
        batch.put_task(task);
        first_value(&mut batch)
    }

    fn first_value(batch: &mut Batch) -> Vec<u8> {
        match batch.changes().next().unwrap().1 {
            Change::Put(value) | Change::Cancel(value) => value.to_vec(),
            Change::Remove => panic!("it has no value"),
        }
    }

    fn a_cancel() -> Cancel {
        Cancel {
            at: WallMs(1_796_000_000_000),
            steady: SteadyMs(-3),
            retention: DurationMs(86_400_000),
            by: "api".into(),
            reason: "paid".into(),
            request: Some(9),
        }
    }

    fn tally(count: u64, sum: u64) -> Tally {
        Tally { count, sum }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_bytes_of_a_task_are_what_they_always_were() {
        // A change here means that stored tasks no longer read: give the new form a version of its own.
        let task = golden_task();
        assert_eq!(hex(&value_of(&task)), GOLDEN);
        assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
        let mut task = plain_task(1);
        let spec = Arc::make_mut(&mut task.spec);
        let Action::Http(http) = &mut spec.action else {
            panic!("a plain task pushes");
        };
        http.success_if = Some("body.ok".to_owned());
        assert_eq!(hex(&value_of(&task)), GOLDEN_WITH_CONDITION);
        assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
    }

    const GOLDEN: &str = concat!(
        "015110acdafdd43e19544403000001fdd43e19544403000001fd5096e2534403000000fd5096e253",
        "440300000c6f726465722e756e70616964010e6f726465722d303030303030343200196874747073",
        "3a2f2f6578616d706c652e6f72672f636c6f7365035055540106782d73686f70016102c8fb940101",
        "0f7b226f726465725f6964223a34327d02fbe8030000000000000040fb60ea000000000000d03f05",
        "0108687474705f34787801fb1027fbd00701fc00dd6d00010001fb60ea0106726567696f6e026575",
        "010c7b22766970223a747275657d0602011201fde853e25344030000fd5450e25344030000fd5450",
        "e2534403000001fd209ee2534403000001fd202ee088450300000103fb2c010101fd5296e2534403",
        "00000102773101fb307501010e0101010401070108687474705f353033046275737901025b5d0101",
        "010401fd08070605040302010103fb2c010200fd209ee253440300000000010108687474705f3530",
        "3304627573790101fd5450e25344030000000003617069076372656174656401",
    );

    const GOLDEN_WITH_CONDITION: &str = concat!(
        "01a4e7c4cffd823e19544403000001fd823e195444030000000c6f726465722e756e70616964010e",
        "6f726465722d3030303030303031041b687474703a2f2f3132372e302e302e313a393030302f636c",
        "6f736504504f5354000007626f64792e6f6b013d7b226f726465725f6964223a3030303030303031",
        "2c22637573746f6d6572223a22632d3137222c22616d6f756e745f63656e7473223a313239393030",
        "7d0004fb60eafce0930400fcc0270900fc40771b0000000000000000000b00fb3075fbd007000001",
        "00000000010000fd0250e25344030000fd0250e25344030000000000000000000000000000000000",
        "000001fd0250e25344030000000003617069076372656174656401",
    );

    #[test]
    fn the_bytes_of_notes_batches_and_checkpoints_are_what_they_always_were() {
        let task = plain_task(1);
        let tombstone = Tombstone {
            topic: task.topic,
            key: task.key.unwrap(),
            until: SteadyMs(1_796_000_000_000),
            reason: "paid".into(),
        };
        let answer = KeptAnswer {
            key: 0x11,
            body: 0x22,
            first_at: crate::clock::WallMs(3),
            until: SteadyMs(4),
            answer: Some((201, Bytes::from_static(b"{}"))),
        };
        let mut batch = Batch::new(SteadyMs(0x0102));
        batch.put_tombstone(&tombstone);
        batch.put_answer(&answer);
        batch.put_cancel(task.id, &a_cancel());
        batch.remove_task(task.id);
        assert_eq!(hex(batch.encode()), GOLDEN_BATCH);
        let checkpoint = Checkpoint {
            covered: 1000,
            steady: SteadyMs(-2),
            fold: 300,
            marks_from: 7,
            next_chunk: ChunkId(70_000),
            chunks: tally(3, 1 << 40),
            marks: tally(2, 5),
            notes: tally(300, u64::MAX),
        };
        let marks = [(ChunkId(1), 5), (ChunkId(9), Mask::MAX)];
        let manifest = Manifest {
            stamp: 4,
            parts: 50,
            bytes: 1_000_000,
        };
        let values = [
            checkpoint.encode(b"k"),
            encode_marks(b"m", &marks),
            encode_seed(b"s", u64::MAX - 1),
            manifest.encode(b"n"),
        ];
        assert_eq!(values.map(|value| hex(&value)), GOLDEN_VALUES);
    }

    const GOLDEN_BATCH: &str = concat!(
        "0202010000000000000296598c3be8493152f4fd358a5bcdf4a32f000000018cf7a3530c6f726465",
        "722e756e706169640e6f726465722d3030303030303031fd0050e253440300000470616964030000",
        "00000000000000000000000000110d00000001cd8ea26122060801c9027b7d4101a229f12801785b",
        "80000000000000011f000000013098d863fd0050e2534403000005fc005c26050361706904706169",
        "6401098101a229f12801785b8000000000000001",
    );
    const GOLDEN_VALUES: [&str; 4] = [
        "018808a538fbe80303fb2c0107fc7011010003fd00000000000100000205fb2c01fdffffffffffffffff",
        "0163820ff202010509feffffffffffffffffffffffffffffffff",
        "0106caf00cfdfeffffffffffffff",
        "01b36ca9e10432fc40420f00",
    ];

    #[test]
    fn the_bytes_of_a_late_answer_are_what_they_always_were() {
        let task = plain_task(1);
        let late = LateAnswer {
            task: task.id,
            topic: task.topic,
            key: task.key,
            attempt: Some(AttemptNumber(3)),
            generation: Some(2),
            token: AttemptToken(300),
            outcome: "succeeded",
            error: None,
            result: Some(RawJson::from("[1]".to_owned())),
            result_dropped: false,
            by: "worker".into(),
            worker: Some("w1".into()),
            at: WallMs(1_796_000_000_000),
            ended_as: Some("lease_expired"),
            state: State::Running,
            treatment: Treatment::Compensated(plain_task(2).id),
        };
        let failed = LateAnswer {
            outcome: "failed",
            error: Some(ErrorNote {
                code: "no_stock".into(),
                message: "none left".into(),
            }),
            result: None,
            worker: None,
            treatment: Treatment::Refused,
            ..late.clone()
        };
        let mut batch = Batch::new(SteadyMs(0x0102));
        for late in [&late, &failed] {
            batch.put_late(late);
        }
        let RecordKey::Late(key) = RecordKey::late(&late) else {
            panic!("it is a late answer's key")
        };
        batch.remove_late(key);
        assert_eq!(hex(batch.encode()), GOLDEN_LATE);
    }

    const GOLDEN_LATE: &str = concat!(
        "02020100000000000004edaa6a02599ea3c5beddbd67d0d78abb69000000018e10c78b01a229f128",
        "01785b80000000000000010c6f726465722e756e70616964010e6f726465722d3030303030303031",
        "01030102fb2c01000001035b315d0006776f726b657201027731fd0050e253440300000103020201",
        "a229f128027c8080000000000000020407f1a3c15b8ee3a05d854a7d43905fad6500000001ae44ad",
        "8801a229f12801785b80000000000000010c6f726465722e756e70616964010e6f726465722d3030",
        "30303030303101030102fb2c010101086e6f5f73746f636b096e6f6e65206c656674000006776f72",
        "6b657200fd0050e253440300000103020084edaa6a02599ea3c5beddbd67d0d78abb",
    );

    #[test]
    fn a_typical_task_is_small() {
        let bytes = value_of(&plain_task(7)).len();
        assert!((150..=260).contains(&bytes), "{bytes} bytes");
    }

    #[test]
    fn a_batch_of_another_format_is_refused() {
        let mut payload = Batch::new(SteadyMs(5)).encode().to_vec();
        payload[0] = 9;
        let error = Batch::decode(payload).unwrap_err();
        assert_eq!(error.to_string(), "a batch of the unknown format 9");
        assert!(Batch::decode(Vec::new()).is_err());
    }

    #[test]
    fn a_checkpoint_comes_back_only_under_its_own_key() {
        let checkpoint = Checkpoint {
            covered: 7,
            steady: SteadyMs(-4),
            fold: 3,
            marks_from: 2,
            next_chunk: ChunkId(1),
            chunks: tally(1, 2),
            ..Checkpoint::default()
        };
        let value = checkpoint.encode(&[0]);
        assert_eq!(Checkpoint::decode(&[0], &value), Ok(checkpoint));
        assert!(Checkpoint::decode(&[1], &value).is_err());
    }

    #[test]
    fn a_cancel_comes_back_only_for_its_own_task() {
        let (task, other) = (plain_task(1).id, plain_task(2).id);
        let mut batch = Batch::new(SteadyMs(0));
        batch.put_cancel(task, &a_cancel());
        let (key, change) = batch.changes().next().unwrap();
        assert!(matches!(change, Change::Cancel(_)), "{change:?}");
        assert_eq!(key, RecordKey::Task(task));
        let value = first_value(&mut batch);
        assert_eq!(decode_cancel(task, &value), Ok(a_cancel()));
        assert!(decode_cancel(other, &value).is_err());
    }

    #[test]
    fn marks_seeds_and_manifests_come_back_only_under_their_own_keys() {
        // As wide as a mark can be, so that their number bounds an entry.
        let marks = vec![(ChunkId(u64::MAX), Mask::MAX); 700];
        let value = encode_marks(b"m1", &marks);
        assert!(value.len() <= 20 * 1024, "{} bytes", value.len());
        assert_eq!(decode_marks(b"m1", &value), Ok(marks));
        assert!(decode_marks(b"m2", &value).is_err());
        let value = encode_seed(b"s", 17);
        assert_eq!(decode_seed(b"s", &value), Ok(17));
        assert!(decode_seed(b"k", &value).is_err());
        let manifest = Manifest {
            stamp: u64::MAX,
            parts: 1,
            bytes: u32::MAX,
        };
        let value = manifest.encode(b"n1");
        assert_eq!(Manifest::decode(b"n1", &value), Ok(manifest));
        assert!(Manifest::decode(b"n2", &value).is_err());
    }

    #[test]
    fn keys_sort_by_kind_and_then_by_id_as_bytes_too() {
        let task = RecordKey::Task(plain_task(1).id);
        let keys = [
            task,
            RecordKey::Tombstone(1),
            RecordKey::Tombstone(256),
            RecordKey::Answer(0),
        ];
        assert!(keys.is_sorted());
        assert!(keys.map(RecordKey::to_bytes).is_sorted());
        for key in keys {
            assert_eq!(RecordKey::from_bytes(key.to_bytes()), Some(key));
        }
        assert_eq!(RecordKey::from_bytes([0; 17]), None);
    }

    proptest! {
        #[test]
        fn every_task_comes_back_as_it_was(task in a_task()) {
            prop_assert_eq!(&decode_task(task.id, &value_of(&task)).unwrap(), &task);
        }

        #[test]
        fn a_task_that_was_read_is_written_again_byte_for_byte(task in a_task()) {
            let value = value_of(&task);
            let (mut read, spec) = decode_task_and_spec(task.id, &value).unwrap();
            let spec = spec.unwrap();
            prop_assert!(spec.of(&read).is_some_and(|spec| spec.len() > 10));
            let write = |task: &Task| {
                let mut batch = Batch::new(SteadyMs(0));
                batch.put_read_task(task, &spec);
                first_value(&mut batch)
            };
            prop_assert_eq!(write(&read), value);
            // With another spec the old bytes are not taken.
            read.spec = Arc::new(TaskSpec { max_lateness: Some(DurationMs(7)), ..(*read.spec).clone() });
            prop_assert_eq!(write(&read), value_of(&read));
        }

        #[test]
        fn every_note_comes_back_as_it_was(
            tombstone in a_tombstone(), answer in an_answer(), late in a_late_answer(),
        ) {
            let mut batch = Batch::new(SteadyMs(0));
            batch.put_tombstone(&tombstone);
            batch.put_answer(&answer);
            batch.put_late(&late);
            let notes: Vec<Note> = batch
                .changes()
                .filter_map(|(key, change)| match change {
                    Change::Put(value) => decode_note(key, &value).unwrap(),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(notes, [Note::Tombstone(tombstone), Note::Answer(answer), Note::Late(late.into())]);
        }

        #[test]
        fn a_flipped_bit_or_a_missing_end_is_never_read_as_something_else(
            task in a_task(),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u32,
            other in 0..u64::MAX,
        ) {
            let value = value_of(&task);
            let mut flipped = value.clone();
            flipped[at.index(value.len())] ^= 1_u8 << bit;
            prop_assert!(decode_task(task.id, &flipped).is_err());
            prop_assert!(decode_task(task.id, &value[..at.index(value.len())]).is_err());
            let longer = [value.as_slice(), &[0]].concat();
            prop_assert!(decode_task(task.id, &longer).is_err());
            let stranger = TaskId::with_tail(task.id.slot(), crate::clock::WallMs(1), other);
            prop_assert!(stranger == task.id || decode_task(stranger, &value).is_err());
        }

        #[test]
        fn nothing_that_is_not_ours_makes_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            // With a right sum too, so that the decoder itself meets it.
            let id = plain_task(3).id;
            let mut value = vec![VALUE_VERSION];
            value.extend(checksum(&RecordKey::Task(id).to_bytes(), &bytes).to_le_bytes());
            value.extend(&bytes);
            let _ = decode_task(id, &value);
            let _ = decode_note(RecordKey::Answer(1), &bytes);
            let mut payload = vec![BATCH_VERSION];
            payload.extend(bytes);
            let _ = Batch::decode(payload);
        }

        #[test]
        fn a_batch_comes_back_with_all_its_changes_in_order(
            tasks in prop::collection::vec((a_task(), any::<bool>()), 0..6),
            steady in any::<i64>(),
        ) {
            let mut batch = Batch::new(SteadyMs(steady));
            for (task, put) in &tasks {
                if *put { batch.put_task(task) } else { batch.remove_task(task.id) }
            }
            prop_assert_eq!((batch.len(), batch.is_empty()), (tasks.len(), tasks.is_empty()));
            let mut copy = Batch::decode(batch.encode().to_vec()).unwrap();
            prop_assert_eq!(copy.largest(), batch.largest());
            prop_assert_eq!(copy.steady(), SteadyMs(steady));
            let read: Vec<_> = copy.changes().collect();
            prop_assert_eq!(&read, &batch.changes().collect::<Vec<_>>());
            prop_assert_eq!(&copy, &batch);
            for ((key, change), (task, put)) in read.iter().zip(&tasks) {
                prop_assert_eq!(*key, RecordKey::Task(task.id));
                prop_assert_eq!(matches!(change, Change::Put(_)), *put);
            }
            for cut in BATCH_HEADER_BYTES..batch.bytes() {
                // A cut at a change's edge gives a shorter batch; everything else is refused.
                if let Ok(shorter) = Batch::decode(batch.encode()[..cut].to_vec()) {
                    prop_assert!(shorter.len() < batch.len());
                }
            }
        }
    }
}
