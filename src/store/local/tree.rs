//! A shard's home in sled: one entry per record, as large values allow.
//!
//! ```text
//!  00                        checkpoint: how far the journal is covered, steady time
//!  kind · id                 a value of at most 20 KiB, or a manifest: FF · stamp · parts · length
//!  80|kind · id · stamp · n  part n of the set `stamp`, of a value that is larger
//! ```
//!
//! How sled is opened and synced, and why entries are bounded: [`database`](crate::store::database).
//!
//! A set of parts is written before the manifest that makes it valid, and the set before is removed after. What
//! a crash leaves half done is done again, under another stamp, from the journal; sets that no manifest names
//! are removed then.
//!
//! It knows nothing of the journal and of owners: who may write is its caller's business.

use std::ops::Range;
use std::path::Path;

use crate::store::codec::{Checkpoint, RECORD_BYTES_MAX};
use crate::store::database::{self, Database};
use crate::store::local::LocalOptions;
use crate::store::{RecordKey, StoreError};

const CHECKPOINT_KEY: [u8; 1] = [0];
const TASKS: Range<[u8; 1]> = [1]..[2];
const NOTES: Range<[u8; 1]> = [2]..[4];
const PART: u8 = 0x80;
const PARTS: Range<[u8; 1]> = [PART]..[0xFF];

/// Largest value of an entry, in bytes.
const ENTRY_BYTES_MAX: usize = 20 * 1024;
/// No value's first byte: that is its format version.
const MANIFEST: u8 = 0xFF;

const _: () = assert!(ENTRY_BYTES_MAX + size_of::<[u8; 27]>() <= database::ENTRY_BYTES_MAX);

/// Which records are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Task,
    Note,
}

impl Kind {
    pub(super) fn of(key: RecordKey) -> Self {
        match key {
            RecordKey::Task(_) => Self::Task,
            RecordKey::Tombstone(_) | RecordKey::Answer(_) => Self::Note,
        }
    }
}

/// Is shown one record at a time.
pub(super) type VisitRecord<'a> = dyn FnMut(RecordKey, &[u8]) -> Result<(), StoreError> + 'a;

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

    /// The last checkpoint; all zero before the first.
    pub(super) fn checkpoint(&self) -> Result<Checkpoint, StoreError> {
        let value = self
            .db
            .get(CHECKPOINT_KEY)
            .map_err(|error| self.failed("read", error))?;
        value.map_or(Ok(Checkpoint::default()), |value| {
            Checkpoint::decode(&CHECKPOINT_KEY, &value)
                .map_err(|damaged| self.corrupt("the checkpoint", &damaged))
        })
    }

    /// Writes a checkpoint; it holds, with all that was written before it, once [`Tree::sync`] has returned.
    pub(super) fn put_checkpoint(&self, checkpoint: Checkpoint) -> Result<(), StoreError> {
        let value = checkpoint.encode(&CHECKPOINT_KEY);
        let put = self.db.insert(CHECKPOINT_KEY, value);
        put.map(|_| ()).map_err(|error| self.failed("write", error))
    }

    /// Whether any value is stored in parts.
    pub(super) fn has_parts(&self) -> Result<bool, StoreError> {
        let first = self.db.range(PARTS).next().transpose();
        Ok(first.map_err(|error| self.failed("read", error))?.is_some())
    }

    /// Puts a value under a key, or removes the key. `stamp` names its set of parts, if it needs one. With
    /// `sweep`, sets that a crash left behind are looked for and removed too.
    pub(super) fn write(
        &self,
        key: RecordKey,
        value: Option<&[u8]>,
        stamp: u64,
        sweep: bool,
    ) -> Result<(), StoreError> {
        let entry = key.to_bytes();
        let failed = |error| self.failed("write", error);
        let (before, kept) = match value {
            None => (self.db.remove(entry).map_err(failed)?, None),
            Some(value) if value.len() <= ENTRY_BYTES_MAX => {
                (self.db.insert(entry, value).map_err(failed)?, None)
            }
            Some(value) => {
                let parts = value.chunks(ENTRY_BYTES_MAX);
                let manifest = Manifest {
                    stamp,
                    parts: parts.len() as u16,
                    bytes: value.len() as u32,
                };
                for (n, part) in (0..).zip(parts) {
                    self.db
                        .insert(part_key(key, stamp, n), part)
                        .map_err(failed)?;
                }
                let before = self
                    .db
                    .insert(entry, manifest.encode().as_slice())
                    .map_err(failed)?;
                (before, Some(stamp))
            }
        };
        if sweep || before.is_some_and(|before| before.first() == Some(&MANIFEST)) {
            self.remove_parts(key, kept)?;
        }
        Ok(())
    }

    /// Visits every record of a kind, in the order of keys.
    pub(super) fn visit(&self, kind: Kind, visit: &mut VisitRecord<'_>) -> Result<(), StoreError> {
        let keys = match kind {
            Kind::Task => TASKS,
            Kind::Note => NOTES,
        };
        for entry in self.db.range(keys) {
            let (key, value) = entry.map_err(|error| self.failed("read", error))?;
            let key = (*key).try_into().ok().and_then(RecordKey::from_bytes);
            let key = key.ok_or_else(|| self.corrupt("a key", "is of no known kind"))?;
            if value.first() == Some(&MANIFEST) {
                visit(key, &self.assemble(key, &value)?)?;
            } else {
                visit(key, &value)?;
            }
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.db.sync()
    }

    /// An error that names a record of this database.
    pub(super) fn corrupt(
        &self,
        what: impl std::fmt::Display,
        why: impl std::fmt::Display,
    ) -> StoreError {
        self.db.corrupt(what, why)
    }

    fn assemble(&self, key: RecordKey, manifest: &[u8]) -> Result<Vec<u8>, StoreError> {
        let manifest = Manifest::decode(manifest)
            .ok_or_else(|| self.corrupt(key, "its manifest is cut short"))?;
        let mut value = Vec::with_capacity((manifest.bytes as usize).min(RECORD_BYTES_MAX));
        for n in 0..manifest.parts {
            let part = self
                .db
                .get(part_key(key, manifest.stamp, n))
                .map_err(|error| self.failed("read", error))?;
            let part =
                part.ok_or_else(|| self.corrupt(key, format_args!("part {n} is missing")))?;
            value.extend_from_slice(&part);
        }
        if value.len() != manifest.bytes as usize {
            return Err(self.corrupt(key, "its parts are not as long as its manifest says"));
        }
        Ok(value)
    }

    fn remove_parts(&self, key: RecordKey, kept: Option<u64>) -> Result<(), StoreError> {
        let failed = |error| self.failed("clean", error);
        for part in self.db.scan_prefix(part_prefix(key)).keys() {
            let part = part.map_err(failed)?;
            if kept.is_none_or(|stamp| !part[17..].starts_with(&stamp.to_be_bytes())) {
                self.db.remove(part).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn failed(&self, doing: &'static str, error: sled::Error) -> StoreError {
        self.db.failed(doing, error)
    }

    /// How many parts there are, named by a manifest or not.
    #[cfg(test)]
    pub(super) fn parts(&self) -> usize {
        self.db.range(PARTS).count()
    }

    /// Leaves a part of a set that no manifest names.
    #[cfg(test)]
    pub(super) fn leave_a_part(&self, key: RecordKey) {
        self.db
            .insert(part_key(key, u64::MAX, 3), b"torn")
            .expect("it can be written");
    }

    /// Removes the first part there is.
    #[cfg(test)]
    pub(super) fn lose_a_part(&self) {
        let part = self
            .db
            .range(PARTS)
            .keys()
            .next()
            .expect("there is a part")
            .expect("it reads");
        self.db.remove(part).expect("it can be removed");
    }
}

/// What stands in the place of a large value.
struct Manifest {
    stamp: u64,
    parts: u16,
    bytes: u32,
}

impl Manifest {
    fn encode(&self) -> Vec<u8> {
        let mut entry = vec![MANIFEST];
        entry.extend_from_slice(&self.stamp.to_be_bytes());
        entry.extend_from_slice(&self.parts.to_be_bytes());
        entry.extend_from_slice(&self.bytes.to_be_bytes());
        entry
    }

    fn decode(entry: &[u8]) -> Option<Self> {
        let (stamp, rest) = entry.get(1..)?.split_first_chunk()?;
        let (parts, rest) = rest.split_first_chunk()?;
        Some(Self {
            stamp: u64::from_be_bytes(*stamp),
            parts: u16::from_be_bytes(*parts),
            bytes: u32::from_be_bytes(rest.try_into().ok()?),
        })
    }
}

fn part_prefix(key: RecordKey) -> [u8; 17] {
    let mut prefix = key.to_bytes();
    prefix[0] |= PART;
    prefix
}

fn part_key(key: RecordKey, stamp: u64, n: u16) -> [u8; 27] {
    let mut bytes = [0; 27];
    bytes[..17].copy_from_slice(&part_prefix(key));
    bytes[17..25].copy_from_slice(&stamp.to_be_bytes());
    bytes[25..].copy_from_slice(&n.to_be_bytes());
    bytes
}
