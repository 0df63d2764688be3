//! A shard's home in sled: chunks, marks and notes, in entries small enough that no leaf grows large.
//!
//! ```text
//!  k                     checkpoint: how far the journal is covered; the last fold and the next chunk
//!  s                     the seed of key hashes
//!  i · chunk             a chunk's index
//!  c · chunk · n         part n of its body
//!  m · fold · n          marks that a fold changed, or all of them
//!  M · fold · n          the same once more: without its marks a chunk's dead would live
//!  n · key · fold        a note of at most 20 KiB, FF and the manifest of its parts, or nothing: it is gone
//!  p · key · fold · n    part n of a note that is larger
//! ```
//!
//! How sled is opened and synced, and why entries are bounded: [`database`](crate::store::database).
//!
//! **Whole or not at all.** Everything is written under numbers that were never used, and the checkpoint that counts
//! it comes last. What is numbered past it was left behind by a fold that was cut off: [`Tree::left_behind`] names
//! it, and the journal still has it. What it replaces is removed only after the checkpoint is synced; until then, of
//! two notes of one key the later counts.
//!
//! **Nothing missing.** sled reads its log as far as it is good, or around what is not, and says nothing: a damaged
//! file may come up with less than was stored, or with what was removed. So the checkpoint keeps a [`Tally`] of
//! chunks, sets of marks and notes, and whoever reads them compares.
//!
//! **Dropping.** A chunk whose mask is full is dead: that is how a drop is made durable with its fold. Its entries
//! go after the sync, the index last, so that a start finds what a crash left of it.
//!
//! It knows nothing of the journal and of owners: who may write is its caller's business.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::store::chunk::{ChunkId, ChunkIndex, INDEX_BYTES_MAX, Mask, PackedChunk, ReadChunks};
use crate::store::codec::{self, Checkpoint, Damaged, KeyBytes, Manifest, RECORD_BYTES_MAX, Tally};
use crate::store::database::{self, Database};
use crate::store::local::LocalOptions;
use crate::store::{Note, RecordKey, StoreError, Stored};

const CHECKPOINT_KEY: [u8; 1] = *b"k";
const SEED_KEY: [u8; 1] = *b"s";
const INDEX: u8 = b'i';
const BODY: u8 = b'c';
const MARKS: u8 = b'm';
/// Sorts far from the first, so that one damaged page does not hold both.
const MARKS_AGAIN: u8 = b'M';
const NOTE: u8 = b'n';
const NOTE_PART: u8 = b'p';

/// Entries of a leaf of sled's.
const LEAF_ENTRIES: u64 = 16;
/// Looks after which sled 0.34.7 takes account of what its cache holds.
const CACHE_LOOKS: usize = 64;
/// Largest part of a value, in bytes.
const PART_BYTES_MAX: usize = 20 * 1024;
/// Most marks of one entry: each takes at most 26 bytes.
pub(super) const MARKS_MAX: usize = 700;
/// No note's first byte: that is its format version.
const MANIFEST: u8 = 0xFF;
/// In the place of a note that is gone.
const GRAVE: &[u8] = &[];

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

impl From<Fault> for StoreError {
    fn from(Fault { place, why }: Fault) -> Self {
        Self::Corrupt { place, why }
    }
}

/// An entry of a note, and whether it counts.
enum NoteFound {
    Counts(RecordKey, sled::IVec, sled::IVec),
    LeftBehind(sled::IVec),
}

impl NoteFound {
    /// The last entry of a key.
    fn settled((key, entry, value): (RecordKey, sled::IVec, sled::IVec)) -> Self {
        match value == GRAVE {
            true => Self::LeftBehind(entry),
            false => Self::Counts(key, entry, value),
        }
    }
}

/// An open database.
pub(super) struct Tree {
    db: Database,
    /// How often something was written, once more for what a killed process may have left in the page cache; and how many
    /// of these are durable.
    writes: AtomicU64,
    synced: AtomicU64,
}

impl Tree {
    /// Opens the database at `path`; see [`Database::open`].
    pub(super) fn open(path: &Path, options: &LocalOptions) -> Result<Self, StoreError> {
        let db = Database::open(path, options.cache_bytes, options.flush_every_ms)?;
        Ok(Self {
            db,
            writes: AtomicU64::new(1),
            synced: AtomicU64::new(0),
        })
    }

    /// Makes everything written and removed durable.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let writes = self.writes.load(Ordering::SeqCst);
        self.db.sync()?;
        self.synced.fetch_max(writes, Ordering::SeqCst);
        Ok(())
    }

    /// Makes everything written durable, if it is not. (What was removed may come back: a start removes it again.)
    pub(super) fn sync_writes(&self) -> Result<(), StoreError> {
        match self.synced.load(Ordering::SeqCst) == self.writes.load(Ordering::SeqCst) {
            true => Ok(()),
            false => self.sync(),
        }
    }

    /// The last checkpoint, if an owner has ever begun.
    pub(super) fn checkpoint(&self) -> Result<Option<Checkpoint>, StoreError> {
        let value = self.get(&CHECKPOINT_KEY)?;
        let decoded = value.map(|value| Checkpoint::decode(&CHECKPOINT_KEY, &value));
        decoded
            .transpose()
            .map_err(|damaged| self.db.corrupt("the checkpoint", damaged))
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

    /// Writes a chunk: its index, as it is stored, and its body.
    pub(super) fn put_chunk(
        &self,
        index: &[u8],
        body: &PackedChunk,
        tally: &mut Tally,
    ) -> Result<(), StoreError> {
        for (n, part) in (0..).zip(body.bytes.chunks(PART_BYTES_MAX)) {
            self.put(&body_key(body.id, n), part)?;
        }
        let key = index_key(body.id);
        tally.add(&key);
        self.put(&key, index)
    }

    /// Counts out a chunk that is to be dropped.
    pub(super) fn forget_chunk(&self, id: ChunkId, tally: &mut Tally) -> Result<(), StoreError> {
        let key = index_key(id);
        if self.get(&key)?.is_some() {
            tally.take(&key);
        }
        Ok(())
    }

    /// Removes a chunk, or what is left of it.
    pub(super) fn remove_chunk(&self, id: ChunkId) -> Result<(), StoreError> {
        let (first, end) = (body_key(id, 0), body_key(ChunkId(id.0 + 1), 0));
        for part in self.db.scan(&first[..]..&end) {
            self.remove(&part?.0)?;
        }
        self.remove(&index_key(id))
    }

    /// Writes a part of a fold's marks: at most [`MARKS_MAX`].
    pub(super) fn put_marks(
        &self,
        fold: u64,
        n: u32,
        marks: &[(ChunkId, Mask)],
        tally: &mut Tally,
    ) -> Result<(), StoreError> {
        tally.add(&marks_key(MARKS, fold, n)[1..]);
        for kind in [MARKS, MARKS_AGAIN] {
            let key = marks_key(kind, fold, n);
            self.put(&key, &codec::encode_marks(&key, marks))?;
        }
        Ok(())
    }

    /// The key of the oldest marks written before `fold`.
    pub(super) fn oldest_marks_before(&self, fold: u64) -> Result<Option<sled::IVec>, StoreError> {
        let oldest = |kind| {
            let (first, end) = (marks_key(kind, 0, 0), marks_key(kind, fold, 0));
            self.db.scan(&first[..]..&end).next()
        };
        let oldest = oldest(MARKS).or_else(|| oldest(MARKS_AGAIN)).transpose()?;
        Ok(oldest.map(|(key, _)| key))
    }

    /// Writes a note, or that it is gone, as of this fold; keeps `tally`. What is superseded once the fold is durable
    /// is added to `superseded`, in the order of its removal.
    pub(super) fn write_note(
        &self,
        key: RecordKey,
        value: Option<&[u8]>,
        fold: u64,
        tally: &mut Tally,
        superseded: &mut Vec<sled::IVec>,
    ) -> Result<(), StoreError> {
        let key = key.to_bytes();
        let entry = note_key(key, fold);
        let before = self.db.last_of(&note_key(key, 0)[..]..&entry)?;
        match value {
            Some(value) if value.len() <= PART_BYTES_MAX => self.put(&entry, value)?,
            Some(value) => {
                let parts = value.chunks(PART_BYTES_MAX);
                let manifest = Manifest {
                    stamp: fold,
                    parts: parts.len() as u16,
                    bytes: value.len() as u32,
                };
                let manifest = [&[MANIFEST], &*manifest.encode(&entry)].concat();
                for (n, part) in (0..).zip(parts) {
                    self.put(&part_key(key, fold, n), part)?;
                }
                self.put(&entry, &manifest)?;
            }
            None if before.is_some() => self.put(&entry, GRAVE)?,
            None => {}
        }
        if let Some((before, _)) = before {
            tally.take(&before);
            superseded.push(before);
            if value.is_none() {
                // Behind the one that it hides.
                superseded.push(entry.as_slice().into());
            }
        }
        if value.is_some() {
            tally.add(&entry);
        }
        Ok(())
    }

    /// Removes an entry of a note and its parts.
    pub(super) fn remove_note(&self, entry: &[u8]) -> Result<(), StoreError> {
        let parts = [&[NOTE_PART], entry.get(1..).unwrap_or_default()].concat();
        let end = [&*parts, &[0xFF; 3]].concat();
        for part in self.db.scan(&*parts..&*end) {
            self.remove(&part?.0)?;
        }
        self.remove(entry)
    }

    /// Removes an entry that [`Tree::left_behind`] or [`Tree::oldest_marks_before`] has named.
    pub(super) fn remove(&self, entry: &[u8]) -> Result<(), StoreError> {
        self.db.erase(entry)
    }

    /// The masks in force. Sets of marks of which no copy is good, and those that are missing, are faults.
    pub(super) fn masks(
        &self,
        checkpoint: &Checkpoint,
        damaged: &mut dyn FnMut(Fault),
    ) -> Result<HashMap<ChunkId, Mask>, StoreError> {
        // In their order: of two marks of one chunk the later counts.
        let mut sets = BTreeMap::new();
        for kind in [MARKS, MARKS_AGAIN] {
            let first = marks_key(kind, checkpoint.marks_from, 0);
            let end = marks_key(kind, checkpoint.fold + 1, 0);
            for entry in self.db.scan(&first[..]..&end) {
                let (key, value) = entry?;
                let set = sets.entry(key[1..].to_vec()).or_insert(Err(Vec::new()));
                match codec::decode_marks(&key, &value) {
                    Ok(marks) => *set = Ok(marks),
                    Err(why) => {
                        let fault = self.fault(format_args!("marks {}", Hex(&key[1..])), why);
                        if let Err(faults) = set {
                            faults.push(fault);
                        }
                    }
                }
            }
        }
        let (mut masks, mut found) = (HashMap::new(), Tally::default());
        for (set, marks) in sets {
            found.add(&set);
            match marks {
                Ok(marks) => masks.extend(marks),
                Err(faults) => faults.into_iter().for_each(&mut *damaged),
            }
        }
        if let Some(fault) = self.missed("sets of marks", found, checkpoint.marks) {
            damaged(fault);
        }
        Ok(masks)
    }

    /// What is wrong if so many were found where so many had been stored.
    fn missed(&self, what: &str, found: Tally, stored: Tally) -> Option<Fault> {
        if found == stored {
            return None;
        }
        let why = format!(
            "{} of {} that were stored are there, or others: its file was damaged, and sled reads around what is",
            found.count, stored.count
        );
        Some(self.fault(format_args!("the {what}"), why))
    }

    /// Visits the indexes of all chunks that count, by their numbers. What is wrong if, given the masks in force, some
    /// are missing, or too many.
    pub(super) fn indexes(
        &self,
        checkpoint: &Checkpoint,
        masks: &HashMap<ChunkId, Mask>,
        visit: &mut dyn FnMut(ChunkId, Result<ChunkIndex, Fault>),
    ) -> Result<Option<Fault>, StoreError> {
        let mut tally = Tally::default();
        let (first, end) = (index_key(ChunkId(0)), index_key(checkpoint.next_chunk));
        for entry in self.db.scan(&first[..]..&end) {
            let (key, value) = entry?;
            let Some(id) = chunk_of(&key) else { continue };
            // Those of a full mask are dropped, and some of them removed.
            if masks.get(&id) != Some(&Mask::MAX) {
                tally.add(&key);
            }
            let index = ChunkIndex::decode(id, &value);
            visit(id, index.map_err(|why| self.fault(id, why)));
            if id.0.is_multiple_of(LEAF_ENTRIES) {
                self.let_go_of_leaf(&key)?;
            }
        }
        Ok(self.missed("chunks", tally, checkpoint.chunks))
    }

    /// sled looks what to take out of its cache only when pages of one 256th of them were looked at [`CACHE_LOOKS`]
    /// times. A scan that comes by once would stay in memory as a whole: at ten million tasks 540 MB, whatever the
    /// cache's size.
    fn let_go_of_leaf(&self, key: &[u8]) -> Result<(), StoreError> {
        for _ in 0..CACHE_LOOKS {
            self.get(key)?;
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
            for entry in self.db.scan(&*range.start..&*range.end) {
                let (key, _) = entry?;
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

    /// Visits all notes. What is wrong if some are missing, or too many.
    pub(super) fn notes(
        &self,
        checkpoint: &Checkpoint,
        visit: &mut dyn FnMut(RecordKey, Result<Note, Fault>),
    ) -> Result<Option<Fault>, StoreError> {
        let mut tally = Tally::default();
        self.walk_notes(checkpoint, &mut |found| {
            let NoteFound::Counts(key, entry, value) = found else {
                return Ok(());
            };
            tally.add(&entry);
            let whole = match manifest_of(&entry, &value) {
                Some(Ok(manifest)) => self.assemble(key, &manifest)?,
                Some(Err(why)) => Err(why.to_string()),
                None => Ok(value.to_vec()),
            };
            let note = whole.and_then(|value| {
                let note = codec::decode_note(key, &value).map_err(|why| why.to_string())?;
                note.ok_or_else(|| "is no note".to_owned())
            });
            visit(key, note.map_err(|why| self.fault(key, why)));
            Ok(())
        })?;
        Ok(self.missed("notes", tally, checkpoint.notes))
    }

    /// Visits the entries of all notes, by key: of each key the last one up to the checkpoint counts.
    fn walk_notes(
        &self,
        checkpoint: &Checkpoint,
        visit: &mut dyn FnMut(NoteFound) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut last: Option<(RecordKey, sled::IVec, sled::IVec)> = None;
        for entry in self.db.scan(&[NOTE][..]..&[NOTE + 1]) {
            let (entry, value) = entry?;
            let Some((key, fold)) = note_of(&entry) else {
                continue;
            };
            if fold > checkpoint.fold {
                visit(NoteFound::LeftBehind(entry))?;
                continue;
            }
            match last.replace((key, entry, value)) {
                Some((of, before, _)) if of == key => visit(NoteFound::LeftBehind(before))?,
                Some(other) => visit(NoteFound::settled(other))?,
                None => {}
            }
        }
        last.map_or(Ok(()), |last| visit(NoteFound::settled(last)))
    }

    /// The entries that do not count: what a fold that was cut off has written, and what one that is through has
    /// not removed any more, save chunks. In the order in which they may be removed.
    pub(super) fn left_behind(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<sled::IVec>, StoreError> {
        let mut found = Vec::new();
        let next = checkpoint.next_chunk;
        let (first, newer) = (checkpoint.marks_from, checkpoint.fold + 1);
        let marks = [MARKS, MARKS_AGAIN].map(|kind| {
            [
                marks_key(kind, 0, 0).to_vec()..marks_key(kind, first, 0).to_vec(),
                marks_key(kind, newer, 0).to_vec()..vec![kind + 1],
            ]
        });
        let chunks = [
            index_key(next).to_vec()..vec![INDEX + 1],
            body_key(next, 0).to_vec()..vec![BODY + 1],
        ];
        for range in chunks.into_iter().chain(marks.into_iter().flatten()) {
            for entry in self.db.scan(&*range.start..&*range.end) {
                found.push(entry?.0);
            }
        }
        let mut left = HashSet::new();
        self.walk_notes(checkpoint, &mut |note| {
            if let NoteFound::LeftBehind(entry) = note {
                left.insert(entry.clone());
                found.push(entry);
            }
            Ok(())
        })?;
        // Parts stay with the note that names them, even if what it says of them is damaged.
        let mut named: Option<(sled::IVec, bool)> = None;
        for part in self.db.scan(&[NOTE_PART][..]..&[NOTE_PART + 1]) {
            let (part, _) = part?;
            let entry: sled::IVec = match part.get(1..NOTE_KEY_BYTES) {
                Some(of) => [&[NOTE], of].concat().into(),
                None => continue,
            };
            let counts = match &named {
                Some((of, counts)) if *of == entry => *counts,
                _ => {
                    let counts = !left.contains(&entry) && self.get(&entry)?.is_some();
                    named.insert((entry, counts)).1
                }
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
        self.db.read(key)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let written = self.db.write(key, value);
        self.writes.fetch_add(1, Ordering::SeqCst);
        written
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

const NOTE_KEY_BYTES: usize = 26;
type PartKey = [u8; NOTE_KEY_BYTES + 2];

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

fn marks_key(kind: u8, fold: u64, n: u32) -> [u8; 13] {
    key_of(kind, &[&fold.to_be_bytes(), &n.to_be_bytes()])
}

fn note_key(key: KeyBytes, fold: u64) -> [u8; NOTE_KEY_BYTES] {
    key_of(NOTE, &[&key, &fold.to_be_bytes()])
}

fn part_key(key: KeyBytes, stamp: u64, n: u16) -> PartKey {
    key_of(NOTE_PART, &[&key, &stamp.to_be_bytes(), &n.to_be_bytes()])
}

fn chunk_of(index_key: &[u8]) -> Option<ChunkId> {
    let id = index_key.get(1..)?.try_into().ok()?;
    Some(ChunkId(u64::from_be_bytes(id)))
}

fn note_of(note_key: &[u8]) -> Option<(RecordKey, u64)> {
    let (key, fold) = note_key.get(1..)?.split_first_chunk()?;
    let fold = u64::from_be_bytes(fold.try_into().ok()?);
    Some((RecordKey::from_bytes(*key)?, fold))
}

struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
