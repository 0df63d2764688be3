//! The thread that syncs: a shard's commits run here, never on the shard's own thread.
//!
//! One commit is out at a time; while it syncs, the shard gathers the next. Between commits the thread folds in
//! small slices, and it always prefers a commit that waits. A commit may have to take some folding along, so that
//! what is committed does not outrun what is folded.
//!
//! Two pulses tell of it. The thread's own says before each call of the store that it waits for the disk, for as long
//! as a wait may be ([`Bounds::wait_max`](crate::watchdog::Bounds)). The fold's says the same each time the fold has
//! come further, and nothing while that waits for its threads: so it tells of theirs.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use crate::clock::Clock;
use crate::failpoints;
use crate::ids::{ShardEpoch, ShardId};
use crate::panics::{contained, panicked};
use crate::shard::shelf::FoldAlong;
use crate::store::chunk::{Fold, Folded, Memtable};
use crate::store::{Batch, ShardStore, StoreError, Tended};
use crate::watchdog::{ThreadPulse, Threads};

/// A commit that is out, a fold behind it, and a table to drop.
const JOBS_MAX: usize = 4;
/// How often a thread that has nothing to do shows that it lives.
const BEAT: Duration = Duration::from_millis(500);

/// What the thread is given to do.
enum Job {
    Commit {
        batch: Batch,
        fold_along: FoldAlong,
    },
    Fold(Fold),
    /// To be dropped here, where it keeps nobody waiting.
    Scrap(Arc<Memtable>),
}

/// What the thread has done.
#[derive(Debug)]
pub enum Done {
    /// The batch that was out is durable.
    Committed,
    /// The fold is durable.
    Folded(Folded),
}

/// Where batches are handed in. Dropping it ends the thread after the batch that is out.
pub struct Committer {
    jobs: SyncSender<Job>,
}

/// What has ended the committer's thread.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A panic with these words.
    #[error("{}", panicked(.0))]
    Panicked(String),
    /// A test wanted it.
    #[error(transparent)]
    Injected(std::io::Error),
}

/// The committer's thread is gone.
#[derive(Debug, thiserror::Error)]
#[error("the committer's thread is gone")]
pub struct CommitterGone;

impl Committer {
    /// Starts the thread. `done` is called on it after each commit, and once with the error that ended it.
    ///
    /// # Errors
    /// When the machine gives no thread.
    pub fn start(
        shard: ShardId,
        epoch: ShardEpoch,
        store: Box<dyn ShardStore>,
        (clock, threads): (Clock, &Threads),
        done: impl Fn(Result<Done, Broken>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, incoming) = sync_channel(JOBS_MAX);
        let name = format!("journal-{:02}", shard.0);
        let now = clock.now().mono;
        let pulses = Pulses {
            fold: threads.watch(format!("fold-{:02}", shard.0), now),
            journal: threads.watch(name.clone(), now),
            folds: Cell::new(false),
            clock,
        };
        std::thread::Builder::new().name(name).spawn(move || {
            let ended = contained(|| run(epoch, store, &pulses, &incoming, &done))
                .unwrap_or_else(|words| Err(Broken::Panicked(words)));
            if let Err(broken) = ended {
                done(Err(broken));
            }
        })?;
        Ok(Self { jobs })
    }

    /// Hands in a batch, and how much folding it takes along. The shard hands in one only after the one
    /// before is done, so this never waits.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn commit(&self, batch: Batch, fold_along: FoldAlong) -> Result<(), CommitterGone> {
        self.hand_in(Job::Commit { batch, fold_along })
    }

    /// Hands in a fold, behind all batches so far. One at a time.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn fold(&self, fold: Fold) -> Result<(), CommitterGone> {
        self.hand_in(Job::Fold(fold))
    }

    /// Lets a table be dropped.
    pub fn scrap(&self, table: Arc<Memtable>) {
        // If there is no room, it is dropped here.
        let _ = self.hand_in(Job::Scrap(table));
    }

    fn hand_in(&self, job: Job) -> Result<(), CommitterGone> {
        self.jobs.try_send(job).map_err(|_| CommitterGone)
    }
}

/// What the thread shows of itself and of the fold.
struct Pulses {
    journal: ThreadPulse,
    fold: ThreadPulse,
    /// Whether a fold is at work.
    folds: Cell<bool>,
    clock: Clock,
}

impl Pulses {
    /// The thread is about to call the store. Without a fold there is nothing else to be heard of one meanwhile.
    fn in_store(&self) {
        let now = self.clock.now().mono;
        self.journal.waiting_long(now);
        if !self.folds.get() {
            self.fold.waiting_long(now);
        }
    }

    fn fold_came_further(&self) {
        self.folds.set(true);
        let now = self.clock.now().mono;
        self.fold.waiting_long(now);
    }

    fn idle(&self) {
        self.folds.set(false);
        let now = self.clock.now().mono;
        self.journal.idle(now);
        self.fold.idle(now);
    }
}

fn run(
    epoch: ShardEpoch,
    mut store: Box<dyn ShardStore>,
    pulses: &Pulses,
    incoming: &Receiver<Job>,
    done: &dyn Fn(Result<Done, Broken>),
) -> Result<(), Broken> {
    let mut is_idle = true;
    loop {
        let job = match is_idle {
            true => incoming.recv_timeout(BEAT).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            }),
            false => incoming.try_recv(),
        };
        let mut along = FoldAlong::Nothing;
        match job {
            Ok(Job::Commit { batch, fold_along }) => {
                along = fold_along;
                pulses.in_store();
                failpoints::reach("shard::future").map_err(Broken::Injected)?;
                store.commit(epoch, &batch)?;
                done(Ok(Done::Committed));
            }
            Ok(Job::Fold(fold)) => {
                pulses.fold_came_further();
                store.fold(epoch, fold)?;
            }
            Ok(Job::Scrap(table)) => drop(table),
            Err(TryRecvError::Empty) if is_idle => {
                pulses.idle();
                continue;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        loop {
            let bytes_min = match along {
                FoldAlong::Bytes(bytes) => bytes,
                FoldAlong::Nothing | FoldAlong::All => 0,
            };
            pulses.in_store();
            let tended = store.tend(epoch, bytes_min)?;
            is_idle = matches!(tended, Tended::Idle);
            match tended {
                Tended::Idle => pulses.idle(),
                Tended::More => pulses.fold_came_further(),
                Tended::Waits => {}
                Tended::Folded(folded) => {
                    pulses.fold_came_further();
                    done(Ok(Done::Folded(folded)));
                    break;
                }
            }
            if is_idle || along != FoldAlong::All {
                break;
            }
        }
    }
}
