//! What came after a backup, as the copies of the journals have it: see [`copies`].
//!
//! ```text
//!   backup    a  b  c  d                    each a whole record
//!   journal      b' ×c     e  f  f'         what it has of a task replaces what the backup has
//!   restored  a  b'    d   e     f'
//! ```
//!
//! A change is a whole record, or the cancel of one, so the last of a task counts, wherever reading began: the journal may
//! be read from a place before the backup. A cancel without its record is one of a task that the backup resolved.
//!
//! Memory: what was changed since the backup, of one shard for each thread. Where the copies are large, a shard is read
//! in several parts, by the hash of the keys, so that no part is much over 512 MiB of journal.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::archive::ArchiveError;
use crate::archive::backup::JournalsAt;
use crate::clock::SteadyMs;
use crate::shard::snapshot::{Hashed, cancelled, replay};
use crate::store::codec::decode_task;
use crate::store::local::copies;
use crate::store::{Change, RecordKey, StoreError};

/// Of the journal's bytes, so many make a part.
const PART_BYTES: u64 = 512 * 1024 * 1024;

/// The copies that belong to a backup.
pub(super) struct Journals {
    copies: PathBuf,
    at: JournalsAt,
    /// How many parts each shard is read in.
    parts: Vec<u64>,
    /// The latest time that they know of.
    pub(super) steady: SteadyMs,
}

impl Journals {
    /// Reads them once, so that what is missing or damaged is known before anything is built: also that they end before
    /// the backup was made, for then their older states would take the place of its newer ones.
    pub(super) fn look_at(copies: &Path, at: &JournalsAt) -> Result<Self, ArchiveError> {
        let mut looked = Self {
            copies: copies.to_owned(),
            at: at.clone(),
            parts: Vec::new(),
            steady: SteadyMs(0),
        };
        for shard in 0..at.after.len() {
            let (mut bytes, mut steady) = (0, looked.steady);
            let reached = looked.replay(shard, &mut |batch| {
                bytes += batch.bytes() as u64;
                steady = steady.max(batch.steady());
            })?;
            let through = at.through.get(shard).copied().unwrap_or(u64::MAX);
            if reached < through {
                let place = copies::place_of(copies, &at.lineage, shard as u16);
                return Err(ArchiveError::Behind { place, reached });
            }
            looked.parts.push(bytes.div_ceil(PART_BYTES).max(1));
            looked.steady = steady;
        }
        Ok(looked)
    }

    /// What became of one part of a shard's records.
    pub(super) fn of_shard(&self, shard: usize, part: Part) -> Result<Since, ArchiveError> {
        let of = self.parts.get(shard).copied().unwrap_or(1);
        let mut since = Since {
            part: Part { of, ..part },
            ..Since::default()
        };
        let mut failed = Ok(());
        self.replay(shard, &mut |mut batch| {
            for (key, change) in batch.changes() {
                if failed.is_ok() && since.part.has(&key.to_bytes()) {
                    failed = since.take(key, change);
                }
            }
        })?;
        failed?;
        Ok(since)
    }

    fn replay(
        &self,
        shard: usize,
        visit: &mut dyn FnMut(crate::store::Batch),
    ) -> Result<u64, StoreError> {
        let after = self.at.after.get(shard).copied().unwrap_or_default();
        copies::replay(&self.copies, &self.at.lineage, shard as u16, after, visit)
    }
}

/// Some of all keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    number: u64,
    of: u64,
}

impl Part {
    pub(super) const FIRST: Self = Self { number: 0, of: 1 };

    pub(super) fn has(self, key: &[u8]) -> bool {
        self.of == 1 || xxh3_64(key) % self.of == self.number
    }

    /// The one after it; the first after the last.
    pub(super) fn next(self) -> Self {
        match self.number + 1 < self.of {
            true => Self {
                number: self.number + 1,
                ..self
            },
            false => Self::FIRST,
        }
    }
}

/// What became of records since a backup.
pub(super) struct Since {
    pub(super) part: Part,
    tasks: Hashed<Change>,
    notes: HashMap<RecordKey, Change>,
}

impl Default for Since {
    fn default() -> Self {
        Self {
            part: Part::FIRST,
            tasks: Hashed::default(),
            notes: HashMap::new(),
        }
    }
}

impl Since {
    fn take(&mut self, key: RecordKey, change: Change) -> Result<(), StoreError> {
        // A slice would hold the whole commit that it came in.
        let change = match change {
            Change::Put(value) => Change::Put(Bytes::copy_from_slice(&value)),
            Change::Cancel(value) => Change::Cancel(Bytes::copy_from_slice(&value)),
            Change::Remove => Change::Remove,
        };
        match key {
            RecordKey::Task(id) => replay(&mut self.tasks, id, change),
            _ => {
                self.notes.insert(key, change);
                Ok(())
            }
        }
    }

    /// A record of the backup as it is now; `None` if it is gone.
    pub(super) fn over(&mut self, key: &[u8], value: Bytes) -> Result<Option<Bytes>, StoreError> {
        let known = key.try_into().ok().and_then(RecordKey::from_bytes);
        let change = match known {
            Some(RecordKey::Task(id)) => match self.tasks.remove(&id) {
                // The backup may have been made after it.
                Some(Change::Cancel(cancel)) => {
                    let task = decode_task(id, &value).map_err(|damaged| damaged.of(id))?;
                    if task.state.is_ended() {
                        return Ok(Some(value));
                    }
                    let whole = cancelled(id, &value, &cancel);
                    Some(Change::Put(whole.map_err(|damaged| damaged.of(id))?))
                }
                change => change,
            },
            Some(note) => self.notes.remove(&note),
            None => None,
        };
        Ok(match change {
            None => Some(value),
            Some(Change::Put(newer)) => Some(newer),
            Some(Change::Cancel(_) | Change::Remove) => None,
        })
    }

    /// What the backup has nothing of, once all of it was set against this.
    pub(super) fn rest(self) -> impl Iterator<Item = (RecordKey, Bytes)> {
        let tasks = self.tasks.into_iter();
        let tasks = tasks.map(|(id, change)| (RecordKey::Task(id), change));
        tasks
            .chain(self.notes)
            .filter_map(|(key, change)| match change {
                Change::Put(value) => Some((key, value)),
                Change::Cancel(_) | Change::Remove => None,
            })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::ids::{Slot, TaskId};

    #[test]
    fn each_key_is_in_one_part_and_the_parts_end() {
        let mut parts = vec![Part { number: 0, of: 5 }];
        while parts.last().unwrap().next() != Part::FIRST {
            parts.push(parts.last().unwrap().next());
        }
        assert_eq!(parts.len(), 5);
        for n in 0_u64..1000 {
            let having = parts.iter().filter(|part| part.has(&n.to_le_bytes()));
            assert_eq!(having.count(), 1);
        }
    }

    #[test]
    fn the_last_change_of_a_record_counts_and_what_is_new_is_left_over() {
        let ids: Vec<_> = (0..4)
            .map(|n| TaskId::with_tail(Slot::of_hash(n), crate::clock::WallMs(1), n))
            .collect();
        let key = |n: usize| RecordKey::Task(ids[n]).to_bytes();
        let mut since = Since::default();
        let value = |text: &'static str| Bytes::from_static(text.as_bytes());
        for (n, change) in [
            (1, Change::Put(value("older"))),
            (1, Change::Put(value("newer"))),
            (2, Change::Put(value("gone soon"))),
            (2, Change::Remove),
            (3, Change::Put(value("new"))),
        ] {
            since.take(RecordKey::Task(ids[n]), change).unwrap();
        }
        let mut over = |n: usize| since.over(&key(n), value("backed up")).unwrap();
        assert_eq!(over(0), Some(value("backed up")));
        assert_eq!(over(1), Some(value("newer")));
        assert_eq!(over(2), None);
        let rest: Vec<_> = since.rest().collect();
        assert_eq!(rest, [(RecordKey::Task(ids[3]), value("new"))]);
    }
}
