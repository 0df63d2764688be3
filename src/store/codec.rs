//! How records become bytes and back. The one module that knows bincode.
//!
//! ```text
//!  value   version 1 │ crc32 4 │ body …            the body is a record of `record.rs`, in bincode;
//!                                                 version 2 of a task's is that of one with stages,
//!                                                 version 3 of one of which there is more to say
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

use std::ops::Range;

use bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use bincode::{BorrowDecode, Encode};
use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use self::record::{
    CancelRecordV1, CheckpointRecordV2, KeptAnswerRecordV1, LateAnswerRecordV1, ManifestRecordV1,
    MarksRecordV1, SeedRecordV1, TaskRecordV1, TaskRecordV2, TaskRecordV3, TombstoneRecordV1,
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
const STAGED_VERSION: u8 = 2;
const PARTS_VERSION: u8 = 3;
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

/// What tells late answers apart: an attempt may say one thing of each kind.
pub fn late_key(answer: &LateAnswer) -> u128 {
    let token = answer.token.0.to_be_bytes();
    let id = answer.task.to_bytes();
    xxh3_128(&[&id[..], &token, answer.outcome.as_bytes()].concat())
}

impl RecordKey {
    /// The key of the tombstone of a topic and key.
    pub fn tombstone(topic: &TopicName, key: &TaskKey) -> Self {
        // Names have no control characters, so the zero keeps `a, bc` and `ab, c` apart.
        let text = [topic.as_str().as_bytes(), &[0], key.as_str().as_bytes()].concat();
        Self::Tombstone(xxh3_128(&text))
    }

    /// The key of a late answer.
    pub fn late(answer: &LateAnswer) -> Self {
        Self::Late(late_key(answer))
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

/// What was got out of a batch that is damaged.
#[derive(Debug)]
pub struct Salvaged {
    /// The changes that read back.
    pub batch: Batch,
    /// The records of changes that do not, by the names that stand there.
    pub doubtful: Vec<RecordKey>,
    /// Whether these are all its changes; else what follows in it can't be told apart.
    pub is_all: bool,
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

    /// It counts as made at that time.
    pub fn set_steady(&mut self, steady: SteadyMs) {
        self.open()[1..BATCH_HEADER_BYTES].copy_from_slice(&steady.0.to_le_bytes());
    }

    /// Writes a task, new or changed.
    pub fn put_task(&mut self, task: &Task) {
        self.place_task(task);
    }

    /// The same; where its record stands in the batch's bytes.
    pub fn place_task(&mut self, task: &Task) -> Range<usize> {
        self.put_task_with(task, None)
    }

    /// The same for a task whose spec is at hand as it was read.
    pub fn put_read_task(&mut self, task: &Task, spec: &SpecBytes) {
        self.put_task_with(task, spec.of(task));
    }

    fn put_task_with(&mut self, task: &Task, spec: Option<&[u8]>) -> Range<usize> {
        let key = RecordKey::Task(task.id);
        self.put_bytes(key, 0, |buffer| encode_task_value(buffer, task, spec))
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

    /// What can be read of a payload that is not what was written: each value by its own sum. Its time is not known.
    pub fn salvage(payload: &[u8]) -> Salvaged {
        let mut salvaged = Salvaged {
            batch: Self::new(SteadyMs(0)),
            doubtful: Vec::new(),
            is_all: true,
        };
        let mut at = BATCH_HEADER_BYTES;
        while at < payload.len() {
            let Some(found) = Found::read(payload, at) else {
                // A journal fills its frames up with zeros.
                salvaged.is_all = payload[at..].iter().all(|byte| *byte == 0);
                break;
            };
            let reads = match (&found.value, found.key) {
                (None, _) => true,
                (Some(range), RecordKey::Task(id)) if found.is_cancel => {
                    decode_cancel(id, &payload[range.clone()]).is_ok()
                }
                (Some(range), RecordKey::Task(id)) => {
                    decode_task(id, &payload[range.clone()]).is_ok()
                }
                (Some(range), note) => decode_note(note, &payload[range.clone()]).is_ok(),
            };
            match reads {
                true => salvaged.batch.copy(&payload[at..found.end], &found),
                false => salvaged.doubtful.push(found.key),
            }
            at = found.end;
        }
        salvaged
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

    fn put(&mut self, key: RecordKey, flag: u8, record: &impl Encode) -> Range<usize> {
        let bytes = key.to_bytes();
        self.put_bytes(key, flag, |buffer| encode_value(buffer, &bytes, record))
    }

    fn put_bytes(
        &mut self,
        key: RecordKey,
        flag: u8,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Range<usize> {
        let [kind, id @ ..] = key.to_bytes();
        let buffer = self.open();
        buffer.push(kind | flag);
        buffer.extend_from_slice(&id);
        let length_at = buffer.len();
        buffer.extend_from_slice(&[0; 4]);
        write(buffer);
        let length = buffer.len() - length_at - 4;
        buffer[length_at..length_at + 4].copy_from_slice(&(length as u32).to_le_bytes());
        let record = length_at + 4..buffer.len();
        self.changes += 1;
        self.largest = self.largest.max(length);
        record
    }

    /// Adds a change as it stands in another batch.
    fn copy(&mut self, bytes: &[u8], found: &Found) {
        self.open().extend_from_slice(bytes);
        self.changes += 1;
        let value = found.value.as_ref().map_or(0, std::ops::Range::len);
        self.largest = self.largest.max(value);
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
    value: Option<Range<usize>>,
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
    encode_task_value(&mut value, task, None);
    Bytes::from(value)
}

fn encode_task_value(buffer: &mut Vec<u8>, task: &Task, spec: Option<&[u8]>) {
    let key = RecordKey::Task(task.id).to_bytes();
    if let Some(record) = TaskRecordV3::of(task, spec) {
        encode_version(PARTS_VERSION, buffer, &key, &record);
    } else if TaskRecordV2::is_needed(task) {
        encode_version(STAGED_VERSION, buffer, &key, &TaskRecordV2::of(task, spec));
    } else {
        encode_value(buffer, &key, &TaskRecordV1::of(task, spec));
    }
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
    let key = RecordKey::Task(id).to_bytes();
    let (task, encoded) = match value.first() {
        Some(&PARTS_VERSION) => {
            let record: TaskRecordV3<'_> = decode_version(PARTS_VERSION, &key, value)?;
            let encoded = record.staged.task.spec_in(value);
            let encoded = encoded.map(Bytes::copy_from_slice);
            (record.into_task(id)?, encoded)
        }
        Some(&STAGED_VERSION) => {
            let record: TaskRecordV2<'_> = decode_version(STAGED_VERSION, &key, value)?;
            let encoded = record.task.spec_in(value).map(Bytes::copy_from_slice);
            (record.into_task(id)?, encoded)
        }
        _ => {
            let record: TaskRecordV1<'_> = decode_value(&key, value)?;
            let encoded = record.spec_in(value).map(Bytes::copy_from_slice);
            (record.into_task(id)?, encoded)
        }
    };
    let spec = Arc::clone(&task.spec);
    let bytes = encoded.map(|encoded| SpecBytes { spec, encoded });
    Ok((task, bytes))
}

/// Reads a task's value.
///
/// # Errors
/// When the value is not what was written for this task.
pub fn decode_task(id: TaskId, value: &[u8]) -> Result<Task, Damaged> {
    let key = RecordKey::Task(id).to_bytes();
    match value.first() {
        Some(&PARTS_VERSION) => {
            let record: TaskRecordV3<'_> = decode_version(PARTS_VERSION, &key, value)?;
            record.into_task(id)
        }
        Some(&STAGED_VERSION) => {
            let record: TaskRecordV2<'_> = decode_version(STAGED_VERSION, &key, value)?;
            record.into_task(id)
        }
        _ => {
            let record: TaskRecordV1<'_> = decode_value(&key, value)?;
            record.into_task(id)
        }
    }
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
    encode_version(VALUE_VERSION, buffer, key, record);
}

fn encode_version(version: u8, buffer: &mut Vec<u8>, key: &[u8], record: &impl Encode) {
    let at = buffer.len();
    buffer.extend_from_slice(&[version, 0, 0, 0, 0]);
    bincode::encode_into_writer(record, Tail(buffer), CONFIG).expect("memory takes every record");
    let sum = checksum(version, key, &buffer[at + VALUE_HEADER_BYTES..]);
    buffer[at + 1..at + VALUE_HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
}

fn decode_value<'a, R: BorrowDecode<'a, ()>>(key: &[u8], value: &'a [u8]) -> Result<R, Damaged> {
    decode_version(VALUE_VERSION, key, value)
}

fn decode_version<'a, R: BorrowDecode<'a, ()>>(
    wanted: u8,
    key: &[u8],
    value: &'a [u8],
) -> Result<R, Damaged> {
    let Some((&[version, ref sum @ ..], body)) = value.split_first_chunk::<VALUE_HEADER_BYTES>()
    else {
        return Err(Damaged::new("a value that is cut short"));
    };
    if version != wanted {
        return Err(Damaged::new(format!(
            "a value of the unknown format {version}"
        )));
    }
    if u32::from_le_bytes(*sum) != checksum(version, key, body) {
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

fn checksum(version: u8, key: &[u8], body: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(key);
    sum.update(&[version]);
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
mod tests;
