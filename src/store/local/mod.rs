//! The store of a node that stands alone: a synced journal file in front of sled.
//!
//! Think of a shop's till roll and its ledger. Every sale goes on the roll at once, which is quick and safe; from
//! time to time the roll is carried over into the ledger, a page at a time, and what was carried over is torn off.
//!
//! ```text
//!  commit ──▶ journal (one append, one sync)
//!                ▲                            fold ──▶ the shard's memtable, shared
//!                │ drop what is covered                  ▼
//!                └─── checkpoint, sync ◀── chunks, notes, marks in sled, in slices of about 2 ms
//! ```
//!
//! **Folding.** A thread of its own sorts the table, cuts it into chunks and packs them;
//! [`tend`](crate::store::ShardStore::tend) writes them and the notes and marks that changed, then the [`Checkpoint`]
//! that counts them and names the last sequence covered, has all of it synced by another thread, and only then
//! removes what was dropped and replaced, and the journal's segments. Until the checkpoint is synced the journal holds
//! all of it, so a crash anywhere loses nothing; what a fold that was cut off has written is numbered past the
//! checkpoint, and the next owner removes it.
//!
//! **Damage.** Each value has its sum, and what could be lost without a trace is counted: chunks, marks and notes by
//! the checkpoint, frames and segments by the journal's bookmark. What does not read back is set
//! aside by name if only tasks of its own are in it; where dead ones would live again, or it can't be told what is
//! missing, nobody begins. See `tests/damage.rs`.
//!
//! **Owners.** [`LocalHome`] is one per process and data directory. It keeps each shard's open database (sled
//! opens a directory once) and its `EpochGate`. A new owner raises the gate, waits for a slice that is being
//! written to end (at most 5 s: the one lock, and it is never waited for without an end), and replays the
//! journal. An old owner that wakes meets the gate before each append, after each sync and in each slice; its
//! frames stand past the journal's seal, and it is counted. What the new owner has read before the old one was
//! refused does count; nobody was told of it. An old owner that hangs in the middle of a slice can't be survived: the
//! new one is told that its store is [held](StoreError::Held).
//!
//! Cost: a commit is one write and one sync; a task is written to sled once per fold in which it changed, which takes
//! about 1 µs and, for a typical one, 50 bytes packed and 54 of index (a fold of 100 000 tasks of 280 bytes; sled's
//! own file is about twice that). A start reads the journal and the indexes, 0.06 µs a record; a read of one record
//! takes 12 µs, and 8 µs once its chunk is in sled's cache.
//! Limits: one record at most [`RECORD_BYTES_MAX`], one batch what a journal's frame takes.

pub mod copies;
mod folding;
pub mod inspect;
pub mod journal;
pub mod salvage;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use self::folding::{Folding, Slice};
use self::journal::{Journal, JournalDirectory, JournalError, JournalFiles, Met};
use self::salvage::LostCommits;
use self::tree::{Fault, Tree};
use crate::clock::SteadyMs;
use crate::ids::{ShardEpoch, ShardId};
use crate::store::chunk::{ChunkId, ChunkIndex, Fold, Mask, PackedChunk, ReadChunks};
use crate::store::codec::{Checkpoint, RECORD_BYTES_MAX};
use crate::store::{Batch, Begun, ShardStore, StoreError, Stored, Tended};

/// How a local store spends memory and time.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Memory of one shard's database, in bytes.
    pub cache_bytes: u64,
    /// How often sled flushes and collects garbage, in milliseconds.
    pub flush_every_ms: u64,
    /// Longest slice of folding; zero writes one chunk a slice.
    pub slice: Duration,
    /// Longest wait of a new owner for the slice that the old one is writing.
    pub take_over: Duration,
    /// Segments of the journal stay until the fold after the one that covered them: who copies them has that much longer.
    pub drops_late: bool,
    /// For a repair alone: what can be read behind damage in the journal counts, too. See [`salvage`].
    pub salvage: bool,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 32 * 1024 * 1024,
            flush_every_ms: 500,
            slice: Duration::from_millis(2),
            take_over: Duration::from_secs(5),
            drops_late: false,
            salvage: false,
        }
    }
}

/// Opens the directory of a shard's journal.
pub type OpenJournal = dyn Fn(&Path) -> Result<Box<dyn JournalFiles>, JournalError> + Send + Sync;

/// All local shards of one data directory. One per process and directory.
pub struct LocalHome {
    data: PathBuf,
    options: LocalOptions,
    open_journal: Arc<OpenJournal>,
    shards: Mutex<HashMap<ShardId, Arc<ShardHome>>>,
    /// Held by the home and by each store, behind all that they hold open.
    open: Arc<()>,
}

impl LocalHome {
    /// The shards under `<data>/shards`. Nothing is opened yet.
    pub fn new(data: &Path, options: LocalOptions) -> Self {
        let opened = Mutex::new(HashSet::new());
        Self::with_journal(data, options, move |path| {
            let is_known = opened.lock().contains(path);
            let directory = match is_known {
                true => JournalDirectory::open_again(path)?,
                false => JournalDirectory::open(path)?,
            };
            opened.lock().insert(path.to_owned());
            Ok(Box::new(directory))
        })
    }

    /// The same with journal files of another kind, for tests that tear, hold and fail writes.
    pub fn with_journal(
        data: &Path,
        options: LocalOptions,
        open: impl Fn(&Path) -> Result<Box<dyn JournalFiles>, JournalError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            data: data.to_owned(),
            options,
            open_journal: Arc::new(open),
            shards: Mutex::default(),
            open: Arc::default(),
        }
    }

    /// Dead once the home and all its stores are gone, and with them every open file: the thread that commits
    /// holds its store a little longer than the shard lives.
    pub fn open(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    /// A store for a new owner of a shard. It opens what it needs when it begins.
    pub fn store(&self, shard: ShardId) -> LocalStore {
        LocalStore {
            home: self.home_of(shard),
            owned: None,
            _open: self.open.clone(),
        }
    }

    /// How often an owner of a shard was refused because its epoch was over. Read without opening anything.
    pub fn refusals(&self, shard: ShardId) -> Arc<AtomicU64> {
        self.home_of(shard).refused.clone()
    }

    fn home_of(&self, shard: ShardId) -> Arc<ShardHome> {
        let mut shards = self.shards.lock();
        let home = shards.entry(shard).or_insert_with(|| {
            Arc::new(ShardHome {
                shard,
                path: path_of(&self.data, shard),
                options: self.options.clone(),
                open_journal: self.open_journal.clone(),
                gate: EpochGate::default(),
                refused: Arc::default(),
                tree: Mutex::default(),
            })
        });
        home.clone()
    }
}

/// Where a shard's files are.
fn path_of(data: &Path, shard: ShardId) -> PathBuf {
    data.join("shards").join(format!("{:03}", shard.0))
}

/// What all owners of one shard share.
struct ShardHome {
    shard: ShardId,
    path: PathBuf,
    options: LocalOptions,
    open_journal: Arc<OpenJournal>,
    gate: EpochGate,
    /// How often the gate has refused.
    refused: Arc<AtomicU64>,
    /// Who holds this lock may write to the tree. `None` until it is opened, and again after an error: sled
    /// has to be opened anew then.
    tree: Mutex<Option<Arc<Tree>>>,
}

impl ShardHome {
    /// The shard's database, open and synced, once nobody writes to it any more.
    fn take_tree(&self) -> Result<Arc<Tree>, StoreError> {
        let path = self.path.join("wheel");
        let Some(mut slot) = self.tree.try_lock_for(self.options.take_over) else {
            return Err(StoreError::Held { file: path });
        };
        let tree = match &*slot {
            Some(tree) => tree.clone(),
            None => slot
                .insert(Arc::new(Tree::open(&path, &self.options)?))
                .clone(),
        };
        // A killed process may have left a checkpoint in the page cache only, and an owner in this one.
        tree.sync_writes().inspect_err(|_| *slot = None)?;
        Ok(tree)
    }
}

/// Which epoch is in force. Raised before a new owner reads anything, so that an older one that checks it after
/// its sync has either been read or is refused.
#[derive(Default)]
struct EpochGate(AtomicU64);

impl EpochGate {
    /// Closes the gate to all owners there are. The claim is settled once the durable epoch is known.
    fn claim(&self) -> ShardEpoch {
        ShardEpoch(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Turns a claim into an epoch larger than `durable`, unless somebody else has claimed since.
    fn settle(&self, claim: ShardEpoch, durable: ShardEpoch) -> Result<ShardEpoch, StoreError> {
        let epoch = claim.max(ShardEpoch(durable.0 + 1));
        match self
            .0
            .compare_exchange(claim.0, epoch.0, Ordering::SeqCst, Ordering::SeqCst)
        {
            Ok(_) => Ok(epoch),
            Err(present) => Err(StoreError::StaleEpoch {
                given: claim,
                present: ShardEpoch(present),
            }),
        }
    }

    fn check(&self, given: ShardEpoch) -> Result<(), StoreError> {
        let present = ShardEpoch(self.0.load(Ordering::SeqCst));
        if given == present {
            Ok(())
        } else {
            Err(StoreError::StaleEpoch { given, present })
        }
    }
}

/// One owner's view of a local shard.
pub struct LocalStore {
    home: Arc<ShardHome>,
    /// `None` before `begin`, and again after an error.
    owned: Option<Owned>,
    _open: Arc<()>,
}

impl LocalStore {
    /// Lets the owner of `epoch` do something; an error takes the shard from it.
    fn as_owner<T>(
        &mut self,
        epoch: ShardEpoch,
        act: impl FnOnce(&mut Owned, &ShardHome) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let checked = self.home.gate.check(epoch);
        let owned = self.owned.as_mut().ok_or(StoreError::Poisoned);
        let mut done = checked.and_then(|()| act(owned?, &self.home));
        if done.is_err() {
            // Whatever a zombie has met, first of all it was too late.
            done = self.home.gate.check(epoch).and(done);
        }
        if matches!(done, Err(StoreError::StaleEpoch { .. })) {
            self.home.refused.fetch_add(1, Ordering::Relaxed);
        }
        if !matches!(done, Ok(_) | Err(StoreError::TooLarge { .. })) {
            self.owned = None;
        }
        done
    }
}

impl ShardStore for LocalStore {
    fn begin(&mut self) -> Result<Begun, StoreError> {
        self.owned = None;
        let claim = self.home.gate.claim();
        let tree = self.home.take_tree()?;
        let stored = tree.checkpoint()?;
        let checkpoint = stored.unwrap_or_default();
        let seed = tree.seed()?;
        let mut steady = checkpoint.steady;
        let mut replayed = Vec::new();
        let files = (self.home.open_journal)(&self.home.path.join("journal"))?;
        let covered = checkpoint.covered;
        let mut journal = Journal::salvage(files, covered, &mut |met| {
            match met {
                Met::Frame(frame) => {
                    let batch =
                        Batch::decode(frame.payload).map_err(|damaged| damaged.to_string())?;
                    steady = steady.max(batch.steady());
                    replayed.push(batch);
                }
                Met::Lost(lost) if self.home.options.salvage => {
                    replayed.extend(LostCommits::of(lost, covered).readable);
                }
                Met::Lost(lost) => return Err(lost.why.to_owned()),
            }
            Ok(())
        })?;
        if stored.is_some() && journal.last_epoch().is_none() {
            return Err(StoreError::Corrupt {
                place: self.home.path.join("journal").display().to_string(),
                why: "the journal is gone, though an owner had begun it".to_owned(),
            });
        }
        // The journal keeps its last segment for ever, and with it the last epoch.
        let epoch = self
            .home
            .gate
            .settle(claim, journal.last_epoch().unwrap_or_default())?;
        let files_read = journal.segments();
        journal.start_epoch(epoch)?;
        if stored.is_none() {
            tree.put_checkpoint(checkpoint)?;
            tree.sync()?;
        }
        self.owned = Some(Owned {
            epoch,
            steady,
            tree,
            journal,
            checkpoint,
            covered,
            replayed: Some(replayed),
            folding: None,
        });
        Ok(Begun {
            epoch,
            steady,
            seed,
            files_read,
        })
    }

    fn recover(&mut self, visit: &mut dyn FnMut(Stored)) -> Result<(), StoreError> {
        let epoch = self.owned.as_ref().ok_or(StoreError::Poisoned)?.epoch;
        self.as_owner(epoch, |owned, home| owned.recover(home, visit))
    }

    fn reader(&self) -> Result<Arc<dyn ReadChunks>, StoreError> {
        let owned = self.owned.as_ref().ok_or(StoreError::Poisoned)?;
        Ok(Arc::new(Reader(Arc::downgrade(&owned.tree))))
    }

    fn commit(&mut self, epoch: ShardEpoch, batch: &Batch) -> Result<(), StoreError> {
        if batch.largest() > RECORD_BYTES_MAX {
            return Err(StoreError::TooLarge {
                bytes: batch.largest(),
                max: RECORD_BYTES_MAX,
            });
        }
        self.as_owner(epoch, |owned, home| {
            owned.journal.append(&[batch.encode()])?;
            home.gate.check(epoch)?;
            owned.steady = owned.steady.max(batch.steady());
            Ok(())
        })
    }

    fn fold(&mut self, epoch: ShardEpoch, fold: Fold) -> Result<(), StoreError> {
        self.as_owner(epoch, |owned, _| {
            // What an older fold left behind is not removed before `recover`, and would be in the way.
            if owned.folding.is_some() || owned.replayed.is_some() {
                return Err(StoreError::Poisoned);
            }
            let checkpoint = Checkpoint {
                covered: owned.journal.last_sequence(),
                steady: owned.steady,
                ..owned.checkpoint
            };
            owned.folding = Some(Folding::of(fold, checkpoint));
            Ok(())
        })
    }

    fn tend(&mut self, epoch: ShardEpoch, bytes_min: usize) -> Result<Tended, StoreError> {
        self.as_owner(epoch, |owned, home| owned.tend(home, bytes_min))
    }
}

/// Reads chunks as long as the database is open. It does not keep it open: after an error sled has to be opened
/// anew, which takes that nobody holds it.
struct Reader(Weak<Tree>);

impl ReadChunks for Reader {
    fn index(&self, chunk: ChunkId) -> Result<ChunkIndex, StoreError> {
        self.0.upgrade().ok_or(StoreError::Poisoned)?.index(chunk)
    }

    fn packed(&self, chunk: ChunkId) -> Result<PackedChunk, StoreError> {
        self.0.upgrade().ok_or(StoreError::Poisoned)?.packed(chunk)
    }
}

/// What only the owner has.
struct Owned {
    epoch: ShardEpoch,
    steady: SteadyMs,
    tree: Arc<Tree>,
    journal: Journal,
    /// The last that is durable.
    checkpoint: Checkpoint,
    /// What the last fold has covered.
    covered: u64,
    /// What the journal held, until it is handed out.
    replayed: Option<Vec<Batch>>,
    folding: Option<Folding>,
}

impl Owned {
    fn recover(
        &mut self,
        home: &ShardHome,
        visit: &mut dyn FnMut(Stored),
    ) -> Result<(), StoreError> {
        let replayed = self.replayed.take().ok_or(StoreError::Poisoned)?;
        let left_behind = self.tree.left_behind(&self.checkpoint)?;
        let mut fault = None;
        let masks = self.tree.masks(&self.checkpoint, &mut |found| {
            fault.get_or_insert(found);
        })?;
        // Without its marks what was dead would live, and be started again.
        stop_for(fault)?;
        let mut dropped = Vec::new();
        let missed = self
            .tree
            .indexes(&self.checkpoint, &masks, &mut |id, index| match (
                masks.get(&id).copied().unwrap_or_default(),
                index,
            ) {
                (Mask::MAX, _) => dropped.push(id),
                (mask, Ok(index)) => visit(Stored::Chunk(index, mask)),
                (_, Err(fault)) => visit(fault.into()),
            })?;
        stop_for(missed)?;
        let missed = self
            .tree
            .notes(&self.checkpoint, &mut |_, note| match note {
                Ok(note) => visit(Stored::Note(note)),
                Err(fault) => visit(fault.into()),
            })?;
        stop_for(missed)?;
        // A newer owner may have begun by now, whose entries are no business of this one's.
        let Some(mut slot) = home.tree.try_lock_for(home.options.take_over) else {
            let file = home.path.join("wheel");
            return Err(StoreError::Held { file });
        };
        home.gate.check(self.epoch)?;
        let removed = (left_behind.iter())
            .try_for_each(|entry| self.tree.remove(entry))
            .and_then(|()| {
                dropped
                    .iter()
                    .try_for_each(|id| self.tree.remove_chunk(*id))
            });
        removed.inspect_err(|_| *slot = None)?;
        drop(slot);
        for mut batch in replayed {
            for (key, change) in batch.changes() {
                visit(Stored::Change(key, change));
            }
        }
        Ok(())
    }

    /// Does one slice of folding: as long as `options.slice` lasts, and at least `bytes_min` bytes.
    fn tend(&mut self, home: &ShardHome, bytes_min: usize) -> Result<Tended, StoreError> {
        let Some(folding) = &mut self.folding else {
            return Ok(Tended::Idle);
        };
        // A new owner raises the gate first and then waits for this lock: no two write at once.
        let Some(mut slot) = home.tree.try_lock() else {
            home.gate.check(self.epoch)?;
            return Ok(Tended::More);
        };
        home.gate.check(self.epoch)?;
        let slice = folding
            .advance(&self.tree, home, bytes_min)
            .inspect_err(|_| *slot = None)?;
        match slice {
            Slice::Through => {}
            Slice::More => return Ok(Tended::More),
            Slice::Waits => return Ok(Tended::Waits),
        }
        let (checkpoint, folded) = self.folding.take().map(Folding::end).unwrap_or_default();
        self.checkpoint = checkpoint;
        // Still under the lock, or a new owner would see files go that it is about to read.
        let before = std::mem::replace(&mut self.covered, checkpoint.covered);
        let superfluous = match home.options.drops_late {
            true => before,
            false => checkpoint.covered,
        };
        self.journal.drop_through(superfluous)?;
        drop(slot);
        folding::reach("fold::dropped", home)?;
        Ok(Tended::Folded(folded))
    }
}

fn stop_for(fault: Option<Fault>) -> Result<(), StoreError> {
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}

impl From<JournalError> for StoreError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io {
                doing,
                file,
                source,
            } => Self::Io {
                doing,
                file,
                source,
            },
            JournalError::Corrupt { file, offset, why } => Self::Corrupt {
                place: format!("{} at byte {offset}", file.display()),
                why,
            },
            JournalError::TooLarge { bytes } => Self::TooLarge {
                bytes,
                max: journal::FRAME_BYTES_MAX,
            },
            JournalError::StaleEpoch { asked, last } => Self::StaleEpoch {
                given: asked,
                present: last,
            },
            JournalError::Poisoned | JournalError::NoEpoch => Self::Poisoned,
        }
    }
}
