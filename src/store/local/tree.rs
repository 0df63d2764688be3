//! A shard's home in sled: chunks, marks and notes, in entries small enough that no leaf grows large.
//!
//! ```text
//!  k                     checkpoint: how far the journal is covered; the last fold and the next chunk
//!  s                     the seed of key hashes
//!  i · chunk             a chunk's index
//!  c · chunk · n         part n of its body
//!  m · fold · n          marks that a fold changed, or all of them
//!  n · key               a note of at most 20 KiB, or FF and the manifest of its parts
//!  p · key · stamp · n   part n of the set `stamp`, of a note that is larger
//! ```
//!
//! How sled is opened and synced, and why entries are bounded: [`database`](crate::store::database).
//!
//! **Whole or not at all.** Chunks, marks and sets of parts are written under numbers that were never used, and the
//! checkpoint that counts them comes last. What is numbered past it was left behind by a fold that was cut off:
//! [`Tree::left_behind`] names it, and the journal still has it. Notes alone are written over, which does no harm:
//! each note that such a fold wrote or removed is in the journal too. A set of parts is written before the manifest
//! that makes it valid, and the set before is removed after.
//!
//! **Dropping.** A chunk whose mask is full is dead: that is how a drop is made durable with its fold. Its entries
//! go after the sync, the index last, so that a start finds what a crash left of it.
//!
//! It knows nothing of the journal and of owners: who may write is its caller's business.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::path::Path;

use bytes::Bytes;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::store::chunk::{ChunkId, ChunkIndex, INDEX_BYTES_MAX, Mask, PackedChunk, ReadChunks};
use crate::store::codec::{self, Checkpoint, Damaged, KeyBytes, Manifest, RECORD_BYTES_MAX};
use crate::store::database::{self, Database};
use crate::store::local::LocalOptions;
use crate::store::{Note, RecordKey, StoreError, Stored};

const CHECKPOINT_KEY: [u8; 1] = *b"k";
const SEED_KEY: [u8; 1] = *b"s";
const INDEX: u8 = b'i';
const BODY: u8 = b'c';
const MARKS: u8 = b'm';
const NOTE: u8 = b'n';
const NOTE_PART: u8 = b'p';

/// Largest part of a value, in bytes.
/// Entries of a leaf of sled's.
const LEAF_ENTRIES: u64 = 16;
/// Looks after which sled 0.34.7 takes account of what its cache holds.
const CACHE_LOOKS: usize = 64;
const PART_BYTES_MAX: usize = 20 * 1024;
/// Most marks of one entry: each takes at most 26 bytes.
pub(super) const MARKS_MAX: usize = 700;
/// No note's first byte: that is its format version.
const MANIFEST: u8 = 0xFF;

const _: () = assert!(PART_BYTES_MAX + size_of::<PartKey>() <= database::ENTRY_BYTES_MAX);
const _: () = assert!(INDEX_BYTES_MAX + 9 <= database::ENTRY_BYTES_MAX);
const _: () = assert!(MARKS_MAX * 26 <= PART_BYTES_MAX);

/// A fault of one entry: where it is and what is wrong with it.
pub(super) struct Fault {
    pub(super) place: String,
    pub(super) why: String,
}

impl From<Fault> for Stored {
    fn from(Fault { place, why }: Fault) -> Self {
        Self::Damaged { place, why }
    }
}

/// An open database.
pub(super) struct Tree {
    db: Database,
}

impl Tree {
    /// Opens the database at `path`; see [`Database::open`].
    pub(super) fn open(path: &Path, options: &LocalOptions) -> Result<Self, StoreError> {
        let db = Database::open(path, options.cache_bytes, options.flush_every_ms)?;
        Ok(Self { db })
    }

    /// Makes everything written durable.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.db.sync()
    }

    /// The last checkpoint; all zero before the first.
    pub(super) fn checkpoint(&self) -> Result<Checkpoint, StoreError> {
        let value = self.get(&CHECKPOINT_KEY)?;
        value.map_or(Ok(Checkpoint::default()), |value| {
            Checkpoint::decode(&CHECKPOINT_KEY, &value)
                .map_err(|damaged| self.db.corrupt("the checkpoint", damaged))
        })
    }

    /// Writes a checkpoint; it holds, with all that was written before it, once [`Tree::sync`] has returned.
    pub(super) fn put_checkpoint(&self, checkpoint: Checkpoint) -> Result<(), StoreError> {
        self.put(&CHECKPOINT_KEY, &checkpoint.encode(&CHECKPOINT_KEY))
    }

    /// The seed; drawn, and synced, if there is none yet.
    pub(super) fn seed(&self) -> Result<u64, StoreError> {
        let corrupt = |why: &dyn Display| self.db.corrupt("the seed", why);
        match self.get(&SEED_KEY)? {
            Some(value) => codec::decode_seed(&SEED_KEY, &value).map_err(|why| corrupt(&why)),
            None if self.get(&CHECKPOINT_KEY)?.is_some() => Err(corrupt(&"is missing")),
            None => {
                let seed = xxh3_64(Uuid::new_v4().as_bytes());
                self.put(&SEED_KEY, &codec::encode_seed(&SEED_KEY, seed))?;
                self.sync()?;
                Ok(seed)
            }
        }
    }

    /// Writes a chunk.
    pub(super) fn put_chunk(
        &self,
        index: &ChunkIndex,
        body: &PackedChunk,
    ) -> Result<(), StoreError> {
        for (n, part) in (0..).zip(body.bytes.chunks(PART_BYTES_MAX)) {
            self.put(&body_key(index.id, n), part)?;
        }
        self.put(&index_key(index.id), &index.encode())
    }

    /// Removes a chunk, or what is left of it.
    pub(super) fn remove_chunk(&self, id: ChunkId) -> Result<(), StoreError> {
        for part in self.db.scan_prefix(&body_key(id, 0)[..9]).keys() {
            self.remove(&part.map_err(|error| self.failed("clean", error))?)?;
        }
        self.remove(&index_key(id))
    }

    /// Writes a part of a fold's marks: at most [`MARKS_MAX`].
    pub(super) fn put_marks(
        &self,
        fold: u64,
        n: u32,
        marks: &[(ChunkId, Mask)],
    ) -> Result<(), StoreError> {
        let key = marks_key(fold, n);
        self.put(&key, &codec::encode_marks(&key, marks))
    }

    /// The key of the oldest marks written before `fold`.
    pub(super) fn oldest_marks_before(&self, fold: u64) -> Result<Option<sled::IVec>, StoreError> {
        let range = marks_key(0, 0)..marks_key(fold, 0);
        let oldest = self.db.range(range).keys().next().transpose();
        oldest.map_err(|error| self.failed("read", error))
    }

    /// Puts a note's value under its key, or removes the key. `fold` names its set of parts, if it needs one.
    pub(super) fn write_note(
        &self,
        key: RecordKey,
        value: Option<&[u8]>,
        fold: u64,
    ) -> Result<(), StoreError> {
        let entry = note_key(key.to_bytes());
        let failed = |error| self.failed("write", error);
        let (before, kept) = match value {
            None => (self.db.remove(entry).map_err(failed)?, None),
            Some(value) if value.len() <= PART_BYTES_MAX => {
                (self.db.insert(entry, value).map_err(failed)?, None)
            }
            Some(value) => {
                let parts = value.chunks(PART_BYTES_MAX);
                let manifest = Manifest {
                    stamp: fold,
                    parts: parts.len() as u16,
                    bytes: value.len() as u32,
                };
                let manifest = [&[MANIFEST], &*manifest.encode(&entry)].concat();
                for (n, part) in (0..).zip(parts) {
                    self.put(&part_key(key.to_bytes(), fold, n), part)?;
                }
                let before = self.db.insert(entry, manifest).map_err(failed)?;
                (before, Some(fold))
            }
        };
        if let Some(Ok(before)) = before.and_then(|before| manifest_of(&entry, &before))
            && kept != Some(before.stamp)
        {
            for n in 0..before.parts {
                self.remove(&part_key(key.to_bytes(), before.stamp, n))?;
            }
        }
        Ok(())
    }

    /// Removes an entry that [`Tree::left_behind`] or [`Tree::oldest_marks_before`] has named.
    pub(super) fn remove(&self, entry: &[u8]) -> Result<(), StoreError> {
        let removed = self.db.remove(entry);
        removed
            .map(|_| ())
            .map_err(|error| self.failed("clean", error))
    }

    /// The masks in force.
    pub(super) fn masks(
        &self,
        checkpoint: &Checkpoint,
        damaged: &mut dyn FnMut(Fault),
    ) -> Result<HashMap<ChunkId, Mask>, StoreError> {
        let mut masks = HashMap::new();
        let range = marks_key(checkpoint.marks_from, 0)..marks_key(checkpoint.fold + 1, 0);
        for entry in self.db.range(range) {
            let (key, value) = entry.map_err(|error| self.failed("read", error))?;
            match codec::decode_marks(&key, &value) {
                Ok(marks) => masks.extend(marks),
                Err(why) => damaged(self.fault(format_args!("marks {}", Hex(&key[1..])), why)),
            }
        }
        Ok(masks)
    }

    /// Visits the indexes of all chunks that count, by their numbers.
    pub(super) fn indexes(
        &self,
        checkpoint: &Checkpoint,
        visit: &mut dyn FnMut(ChunkId, Result<ChunkIndex, Fault>),
    ) -> Result<(), StoreError> {
        for entry in self
            .db
            .range(index_key(ChunkId(0))..index_key(checkpoint.next_chunk))
        {
            let (key, value) = entry.map_err(|error| self.failed("read", error))?;
            let Some(id) = chunk_of(&key) else { continue };
            let index = ChunkIndex::decode(id, &value);
            visit(id, index.map_err(|why| self.fault(id, why)));
            if id.0.is_multiple_of(LEAF_ENTRIES) {
                self.let_go_of_leaf(&key)?;
            }
        }
        Ok(())
    }

    /// sled looks what to take out of its cache only when pages of one 256th of them were looked at [`CACHE_LOOKS`]
    /// times. A scan that comes by once would stay in memory as a whole: at ten million tasks 540 MB, whatever the
    /// cache's size.
    fn let_go_of_leaf(&self, key: &[u8]) -> Result<(), StoreError> {
        for _ in 0..CACHE_LOOKS {
            let looked = self.db.contains_key(key);
            looked.map_err(|error| self.failed("read", error))?;
        }
        Ok(())
    }

    /// All chunks that count, by an index or a part of a body.
    pub(super) fn chunks(&self, checkpoint: &Checkpoint) -> Result<BTreeSet<ChunkId>, StoreError> {
        let next = checkpoint.next_chunk;
        let mut found = BTreeSet::new();
        for range in [
            index_key(ChunkId(0)).to_vec()..index_key(next).to_vec(),
            body_key(ChunkId(0), 0).to_vec()..body_key(next, 0).to_vec(),
        ] {
            for key in self.db.range(range).keys() {
                let key = key.map_err(|error| self.failed("read", error))?;
                found.extend(key.get(..9).and_then(chunk_of));
            }
        }
        Ok(found)
    }

    /// A chunk's index as it stands there.
    pub(super) fn raw_index(&self, chunk: ChunkId) -> Result<Option<Bytes>, StoreError> {
        let value = self.get(&index_key(chunk))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// Visits all notes.
    pub(super) fn notes(
        &self,
        checkpoint: &Checkpoint,
        visit: &mut dyn FnMut(RecordKey, Result<Note, Fault>),
    ) -> Result<(), StoreError> {
        for entry in self.db.scan_prefix([NOTE]) {
            let (entry, value) = entry.map_err(|error| self.failed("read", error))?;
            let key = entry.get(1..).and_then(|key| key.try_into().ok());
            let Some(key) = key.and_then(RecordKey::from_bytes) else {
                continue;
            };
            let whole = match manifest_of(&entry, &value) {
                Some(Ok(manifest)) if manifest.stamp > checkpoint.fold => continue,
                Some(Ok(manifest)) => self.assemble(key, &manifest)?,
                Some(Err(why)) => Err(why.to_string()),
                None => Ok(value.to_vec()),
            };
            let note = whole.and_then(|value| {
                let note = codec::decode_note(key, &value).map_err(|why| why.to_string())?;
                note.ok_or_else(|| "is no note".to_owned())
            });
            visit(key, note.map_err(|why| self.fault(key, why)));
        }
        Ok(())
    }

    /// The entries that do not count: what a fold that was cut off has written, and what one that is through has
    /// not removed any more, save chunks.
    pub(super) fn left_behind(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<sled::IVec>, StoreError> {
        let mut found = Vec::new();
        let next = checkpoint.next_chunk;
        let newer_marks = checkpoint.fold + 1;
        for range in [
            index_key(next).to_vec()..vec![INDEX + 1],
            body_key(next, 0).to_vec()..vec![BODY + 1],
            marks_key(0, 0).to_vec()..marks_key(checkpoint.marks_from, 0).to_vec(),
            marks_key(newer_marks, 0).to_vec()..vec![MARKS + 1],
        ] {
            for key in self.db.range(range).keys() {
                found.push(key.map_err(|error| self.failed("read", error))?);
            }
        }
        // Sets of parts by the notes that name them: both are sorted by key.
        let mut named: Option<(KeyBytes, Option<Result<Manifest, Damaged>>)> = None;
        for part in self.db.scan_prefix([NOTE_PART]).keys() {
            let part = part.map_err(|error| self.failed("read", error))?;
            let Some((key, stamp, n)) = part_of(&part) else {
                continue;
            };
            let manifest = match &named {
                Some((of, manifest)) if *of == key => manifest,
                _ => {
                    let note = note_key(key);
                    let value = self.get(&note)?;
                    let manifest = value.and_then(|value| manifest_of(&note, &value));
                    if matches!(&manifest, Some(Ok(it)) if it.stamp > checkpoint.fold) {
                        found.push(note.as_slice().into());
                    }
                    &named.insert((key, manifest)).1
                }
            };
            let counts = match manifest {
                None => false,
                Some(Ok(it)) => it.stamp <= checkpoint.fold && it.stamp == stamp && n < it.parts,
                // What it was is not known: nothing is thrown away.
                Some(Err(_)) => true,
            };
            if !counts {
                found.push(part);
            }
        }
        Ok(found)
    }

    fn assemble(
        &self,
        key: RecordKey,
        manifest: &Manifest,
    ) -> Result<Result<Vec<u8>, String>, StoreError> {
        let mut value = Vec::with_capacity((manifest.bytes as usize).min(RECORD_BYTES_MAX));
        for n in 0..manifest.parts {
            match self.get(&part_key(key.to_bytes(), manifest.stamp, n))? {
                Some(part) => value.extend_from_slice(&part),
                None => return Ok(Err(format!("part {n} is missing"))),
            }
        }
        Ok(match value.len() == manifest.bytes as usize {
            true => Ok(value),
            false => Err("its parts are not as long as its manifest says".to_owned()),
        })
    }

    fn get(&self, key: &[u8]) -> Result<Option<sled::IVec>, StoreError> {
        self.db.get(key).map_err(|error| self.failed("read", error))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let put = self.db.insert(key, value);
        put.map(|_| ()).map_err(|error| self.failed("write", error))
    }

    fn failed(&self, doing: &'static str, error: sled::Error) -> StoreError {
        self.db.failed(doing, error)
    }

    fn fault(&self, what: impl Display, why: impl Display) -> Fault {
        Fault {
            place: self.db.place_of(what),
            why: why.to_string(),
        }
    }

    /// For tests that damage what is stored.
    #[cfg(test)]
    pub(super) fn entries(&self) -> &sled::Tree {
        &self.db
    }
}

impl ReadChunks for Tree {
    fn index(&self, chunk: ChunkId) -> Result<ChunkIndex, StoreError> {
        let value = self.get(&index_key(chunk))?;
        let value = value.ok_or_else(|| self.db.corrupt(chunk, "is missing"))?;
        ChunkIndex::decode(chunk, &value).map_err(|why| self.db.corrupt(chunk, why))
    }

    fn packed(&self, chunk: ChunkId) -> Result<PackedChunk, StoreError> {
        let part = |n| {
            let part = self.get(&body_key(chunk, n))?;
            part.ok_or_else(|| {
                self.db
                    .corrupt(chunk, format_args!("part {n} of its body is missing"))
            })
        };
        let first = part(0)?;
        let length = PackedChunk::bytes_of(&first)
            .ok_or_else(|| self.db.corrupt(chunk, "its body is cut short"))?;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&first);
        for n in 1.. {
            if bytes.len() >= length {
                break;
            }
            bytes.extend_from_slice(&part(n)?);
        }
        Ok(PackedChunk {
            id: chunk,
            bytes: Bytes::from(bytes),
        })
    }
}

/// What stands in the place of a large note; `None` if the value is the note itself.
fn manifest_of(entry: &[u8], value: &[u8]) -> Option<Result<Manifest, Damaged>> {
    let manifest = value.strip_prefix(&[MANIFEST])?;
    Some(Manifest::decode(entry, manifest))
}

type PartKey = [u8; 28];

fn key_of<const N: usize>(kind: u8, fields: &[&[u8]]) -> [u8; N] {
    let mut key = [kind; N];
    let mut at = 1;
    for field in fields {
        key[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    key
}

fn index_key(id: ChunkId) -> [u8; 9] {
    key_of(INDEX, &[&id.0.to_be_bytes()])
}

fn body_key(id: ChunkId, n: u16) -> [u8; 11] {
    key_of(BODY, &[&id.0.to_be_bytes(), &n.to_be_bytes()])
}

fn marks_key(fold: u64, n: u32) -> [u8; 13] {
    key_of(MARKS, &[&fold.to_be_bytes(), &n.to_be_bytes()])
}

fn note_key(key: KeyBytes) -> [u8; 18] {
    key_of(NOTE, &[&key])
}

fn part_key(key: KeyBytes, stamp: u64, n: u16) -> PartKey {
    key_of(NOTE_PART, &[&key, &stamp.to_be_bytes(), &n.to_be_bytes()])
}

fn chunk_of(index_key: &[u8]) -> Option<ChunkId> {
    let id = index_key.get(1..)?.try_into().ok()?;
    Some(ChunkId(u64::from_be_bytes(id)))
}

fn part_of(part_key: &[u8]) -> Option<(KeyBytes, u64, u16)> {
    let (key, rest) = part_key.get(1..)?.split_first_chunk()?;
    let (stamp, rest) = rest.split_first_chunk()?;
    let n = rest.try_into().ok()?;
    Some((*key, u64::from_be_bytes(*stamp), u16::from_be_bytes(n)))
}

struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
