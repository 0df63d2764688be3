//! The store of a node that stands alone: a synced journal file in front of sled.
//!
//! Think of a shop's till roll and its ledger. Every sale goes on the roll at once, which is quick and safe; from
//! time to time the roll is carried over into the ledger, in order, and what was carried over is torn off.
//!
//! ```text
//!  commit ──▶ journal (one append, one sync) ──▶ memtable: the latest value of each record
//!                ▲                                  │ checkpoint_bytes reached: frozen
//!                │ drop what is covered             ▼
//!                └──────── checkpoint, sync ◀── tree (sled), written in slices of about 2 ms
//! ```
//!
//! **Folding.** [`LocalStore::tend`](crate::store::ShardStore::tend) writes the frozen memtable into the tree in
//! the order of keys, then the [`Checkpoint`] that names the last sequence covered, has both synced by a thread
//! of its own, and only then drops journal segments. Until the sync is through, the frozen table answers reads
//! and the journal holds all of it; so a crash anywhere in it loses nothing, and folding again is harmless. A
//! full memtable makes its writers fold two bytes for each one they add, which keeps it below about twice
//! `checkpoint_bytes` and what comes in during one sync.
//!
//! **Owners.** [`LocalHome`] is one per process and data directory. It keeps each shard's open database (sled
//! opens a directory once) and its [`EpochGate`]. A new owner raises the gate, waits for a slice that is being
//! written to end (at most 5 s: the one lock, and it is never waited for without an end), and replays the
//! journal. An old owner that wakes meets the gate before each append, after each sync and in each slice; its
//! frames stand past the journal's seal. What the new owner has read before the old one was refused does count;
//! nobody was told of it.
//!
//! Cost: a commit is one write and one sync; a task is written to sled once per checkpoint in which it changed;
//! a start reads the journal, and [`read_due`](crate::store::ShardStore::read_due) reads every task there is.
//! Limits: one record at most [`RECORD_BYTES_MAX`], one batch what a journal's frame takes.

pub mod journal;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use self::journal::{Journal, JournalDirectory, JournalError, JournalFiles};
use self::tree::{Kind, Tree, VisitRecord};
use crate::clock::{SteadyMs, WallMs};
use crate::ids::{ShardEpoch, ShardId};
use crate::store::codec::{Checkpoint, RECORD_BYTES_MAX, decode_note, decode_task};
use crate::store::{Batch, Begun, Note, RecordKey, ShardStore, StoreError, Tended};
use crate::task::Task;

/// Longest wait of a new owner for the slice that the old one is writing.
const TAKE_OVER_MAX: Duration = Duration::from_secs(5);

/// How a local store spends memory and time.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// A memtable of this size is folded into the tree.
    pub checkpoint_bytes: usize,
    /// Memory of one shard's database, in bytes.
    pub cache_bytes: u64,
    /// How often sled flushes and collects garbage, in milliseconds.
    pub flush_every_ms: u64,
    /// Longest slice of folding; zero writes one record a slice.
    pub slice: Duration,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            checkpoint_bytes: 32 * 1024 * 1024,
            cache_bytes: 32 * 1024 * 1024,
            flush_every_ms: 500,
            slice: Duration::from_millis(2),
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
        Self::with_journal(data, options, |path| {
            Ok(Box::new(JournalDirectory::open(path)?))
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
        let mut shards = self.shards.lock();
        let home = shards.entry(shard).or_insert_with(|| {
            Arc::new(ShardHome {
                shard,
                path: self.data.join("shards").join(format!("{:03}", shard.0)),
                options: self.options.clone(),
                open_journal: self.open_journal.clone(),
                gate: EpochGate::default(),
                tree: Mutex::default(),
            })
        });
        LocalStore {
            home: home.clone(),
            owned: None,
            _open: self.open.clone(),
        }
    }
}

/// What all owners of one shard share.
struct ShardHome {
    shard: ShardId,
    path: PathBuf,
    options: LocalOptions,
    open_journal: Arc<OpenJournal>,
    gate: EpochGate,
    /// Who holds this lock may write to the tree. `None` until it is opened, and again after an error: sled
    /// has to be opened anew then.
    tree: Mutex<Option<Arc<Tree>>>,
}

impl ShardHome {
    /// The shard's database, open and synced, once nobody writes to it any more.
    fn take_tree(&self) -> Result<Arc<Tree>, StoreError> {
        let path = self.path.join("wheel");
        let Some(mut slot) = self.tree.try_lock_for(TAKE_OVER_MAX) else {
            return Err(StoreError::Io {
                doing: "take over from an owner that does not stop writing",
                file: path,
                source: io::ErrorKind::TimedOut.into(),
            });
        };
        let tree = match &*slot {
            Some(tree) => tree.clone(),
            None => slot
                .insert(Arc::new(Tree::open(&path, &self.options)?))
                .clone(),
        };
        // A killed process may have left a checkpoint in the page cache only.
        tree.sync().inspect_err(|_| *slot = None)?;
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
        let done = checked.and_then(|()| act(owned?, &self.home));
        if !matches!(done, Ok(_) | Err(StoreError::TooLarge { .. })) {
            self.owned = None;
        }
        done
    }

    fn owned(&self) -> Result<&Owned, StoreError> {
        self.owned.as_ref().ok_or(StoreError::Poisoned)
    }
}

impl ShardStore for LocalStore {
    fn begin(&mut self) -> Result<Begun, StoreError> {
        self.owned = None;
        let claim = self.home.gate.claim();
        let tree = self.home.take_tree()?;
        let checkpoint = tree.checkpoint()?;
        let mut steady = checkpoint.steady;
        let mut active = Memtable {
            is_replayed: true,
            ..Memtable::default()
        };
        let files = (self.home.open_journal)(&self.home.path.join("journal"))?;
        let mut journal = Journal::open(files, checkpoint.covered, &mut |frame| {
            let batch = Batch::decode(frame.payload).map_err(|damaged| damaged.to_string())?;
            steady = steady.max(batch.steady());
            active.take_in(batch);
            Ok(())
        })?;
        // The journal keeps its last segment for ever, and with it the last epoch.
        let epoch = self
            .home
            .gate
            .settle(claim, journal.last_epoch().unwrap_or_default())?;
        journal.start_epoch(epoch)?;
        self.owned = Some(Owned {
            epoch,
            steady,
            tree,
            journal,
            active,
            fold: None,
        });
        Ok(Begun { epoch, steady })
    }

    fn read_due(
        &mut self,
        due: Range<WallMs>,
        visit: &mut dyn FnMut(Task),
    ) -> Result<(), StoreError> {
        let owned = self.owned()?;
        owned.visit(Kind::Task, &mut |key, value| {
            let RecordKey::Task(id) = key else {
                return Ok(());
            };
            let task =
                decode_task(id, value).map_err(|damaged| owned.tree.corrupt(key, damaged))?;
            if due.contains(&task.due.at) {
                visit(task);
            }
            Ok(())
        })
    }

    fn read_notes(&mut self, visit: &mut dyn FnMut(Note)) -> Result<(), StoreError> {
        let owned = self.owned()?;
        owned.visit(Kind::Note, &mut |key, value| {
            let note =
                decode_note(key, value).map_err(|damaged| owned.tree.corrupt(key, damaged))?;
            note.into_iter().for_each(&mut *visit);
            Ok(())
        })
    }

    fn commit(&mut self, epoch: ShardEpoch, batch: Batch) -> Result<(), StoreError> {
        if batch.largest() > RECORD_BYTES_MAX {
            return Err(StoreError::TooLarge {
                bytes: batch.largest(),
                max: RECORD_BYTES_MAX,
            });
        }
        self.as_owner(epoch, |owned, home| {
            if owned.active.bytes > home.options.checkpoint_bytes {
                owned.fold(home, 2 * batch.bytes())?;
            }
            owned.journal.append(&[batch.encode()])?;
            home.gate.check(epoch)?;
            owned.steady = owned.steady.max(batch.steady());
            owned.active.take_in(batch);
            Ok(())
        })
    }

    fn tend(&mut self, epoch: ShardEpoch) -> Result<Tended, StoreError> {
        self.as_owner(epoch, |owned, home| owned.fold(home, 0))
    }
}

/// What the journal holds and the tree does not yet: for each record its latest value, `None` where it is gone.
#[derive(Default)]
struct Memtable {
    latest: BTreeMap<RecordKey, Option<Bytes>>,
    /// Of the batches taken in: the values are slices of them.
    bytes: usize,
    /// Taken from the journal at the start: an earlier fold of it may have been cut off.
    is_replayed: bool,
}

impl Memtable {
    fn take_in(&mut self, batch: Batch) {
        self.bytes += batch.bytes();
        self.latest.extend(batch.into_changes());
    }
}

/// What only the owner has.
struct Owned {
    epoch: ShardEpoch,
    steady: SteadyMs,
    tree: Arc<Tree>,
    journal: Journal,
    active: Memtable,
    fold: Option<Fold>,
}

/// A memtable on its way into the tree.
struct Fold {
    table: Memtable,
    checkpoint: Checkpoint,
    /// Whether parts that a crash left behind are to be looked for.
    sweep: bool,
    step: Step,
}

enum Step {
    /// Everything after this key has to be written.
    Write(Bound<RecordKey>),
    /// Everything is written and being synced.
    Sync(Receiver<Result<(), StoreError>>),
}

impl Owned {
    /// Visits the latest value of every record of a kind: the newer tables first, each hiding what is older.
    fn visit(&self, kind: Kind, visit: &mut VisitRecord<'_>) -> Result<(), StoreError> {
        let active = &self.active.latest;
        let empty = BTreeMap::new();
        let frozen = self.fold.as_ref().map_or(&empty, |fold| &fold.table.latest);
        let newer = frozen.iter().filter(|(key, _)| !active.contains_key(key));
        for (key, value) in active
            .iter()
            .chain(newer)
            .filter(|(key, _)| Kind::of(**key) == kind)
        {
            if let Some(value) = value {
                visit(*key, value)?;
            }
        }
        self.tree.visit(kind, &mut |key, value| {
            if active.contains_key(&key) || frozen.contains_key(&key) {
                return Ok(());
            }
            visit(key, value)
        })
    }

    /// Does one slice of folding: as long as `options.slice` lasts, and at least `bytes_min` bytes.
    fn fold(&mut self, home: &ShardHome, bytes_min: usize) -> Result<Tended, StoreError> {
        if self.fold.is_none() && self.active.bytes > home.options.checkpoint_bytes {
            self.fold = Some(self.freeze()?);
        }
        let Some(fold) = &mut self.fold else {
            return Ok(Tended::Idle);
        };
        // A new owner raises the gate first and then waits for this lock: no two write at once.
        let Some(mut slot) = home.tree.try_lock() else {
            home.gate.check(self.epoch)?;
            return Ok(Tended::More);
        };
        home.gate.check(self.epoch)?;
        let is_synced = fold
            .advance(&self.tree, home, bytes_min)
            .inspect_err(|_| *slot = None)?;
        if is_synced {
            self.journal.drop_through(fold.checkpoint.covered)?;
            self.fold = None;
        }
        Ok(Tended::More)
    }

    fn freeze(&mut self) -> Result<Fold, StoreError> {
        let table = std::mem::take(&mut self.active);
        Ok(Fold {
            sweep: table.is_replayed && self.tree.has_parts()?,
            table,
            checkpoint: Checkpoint {
                covered: self.journal.last_sequence(),
                steady: self.steady,
            },
            step: Step::Write(Bound::Unbounded),
        })
    }
}

impl Fold {
    /// Whether everything is in the tree and synced.
    fn advance(
        &mut self,
        tree: &Arc<Tree>,
        home: &ShardHome,
        bytes_min: usize,
    ) -> Result<bool, StoreError> {
        let slice = home.options.slice;
        match &mut self.step {
            Step::Write(after) => {
                let end = Instant::now() + slice;
                let mut written = 0;
                for (key, value) in self.table.latest.range((*after, Bound::Unbounded)) {
                    tree.write(*key, value.as_deref(), self.checkpoint.covered, self.sweep)?;
                    *after = Bound::Excluded(*key);
                    written += size_of::<RecordKey>() + value.as_ref().map_or(0, Bytes::len);
                    if written >= bytes_min && Instant::now() >= end {
                        return Ok(false);
                    }
                }
                tree.put_checkpoint(self.checkpoint)?;
                self.step = Step::Sync(sync_beside(tree, home)?);
                Ok(false)
            }
            Step::Sync(done) => match done.recv_timeout(slice) {
                Ok(synced) => synced.map(|()| true),
                Err(RecvTimeoutError::Timeout) => Ok(false),
                Err(RecvTimeoutError::Disconnected) => Err(StoreError::Poisoned),
            },
        }
    }
}

/// Syncs the tree on a thread of its own: commits must not wait for it.
fn sync_beside(
    tree: &Arc<Tree>,
    home: &ShardHome,
) -> Result<Receiver<Result<(), StoreError>>, StoreError> {
    let (tell, done) = mpsc::channel();
    let tree = tree.clone();
    let sync = move || {
        // An owner that is gone does not hear it, and its successor syncs again.
        let _ = tell.send(tree.sync());
    };
    let thread = thread::Builder::new()
        .name(format!("sync-{}", home.shard))
        .spawn(sync);
    thread.map(|_| done).map_err(|source| StoreError::Io {
        doing: "start a thread to sync",
        file: home.path.clone(),
        source,
    })
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
