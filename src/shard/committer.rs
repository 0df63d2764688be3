//! The thread that syncs: a shard's commits run here, never on the shard's own thread.
//!
//! One commit is out at a time; while it syncs, the shard gathers the next. Between commits the thread folds in
//! small slices, and it always prefers a commit that waits. A commit may have to take some folding along, so that
//! what is committed does not outrun what is folded.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use std::sync::Arc;

use crate::ids::{ShardEpoch, ShardId};
use crate::shard::shelf::FoldAlong;
use crate::store::chunk::{Fold, Folded, Memtable};
use crate::store::{Batch, ShardStore, StoreError, Tended};

/// A commit that is out, a fold behind it, and a table to drop.
const JOBS_MAX: usize = 4;

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
        done: impl Fn(Result<Done, StoreError>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, incoming) = sync_channel(JOBS_MAX);
        std::thread::Builder::new()
            .name(format!("journal-{:02}", shard.0))
            .spawn(move || run(epoch, store, &incoming, &done))?;
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

fn run(
    epoch: ShardEpoch,
    mut store: Box<dyn ShardStore>,
    incoming: &Receiver<Job>,
    done: &dyn Fn(Result<Done, StoreError>),
) {
    let mut is_idle = true;
    loop {
        let job = match is_idle {
            true => incoming.recv().map_err(|_| TryRecvError::Disconnected),
            false => incoming.try_recv(),
        };
        let mut along = FoldAlong::Nothing;
        let did = match job {
            Ok(Job::Commit { batch, fold_along }) => {
                along = fold_along;
                let committed = store.commit(epoch, &batch);
                committed.map(|()| done(Ok(Done::Committed)))
            }
            Ok(Job::Fold(fold)) => store.fold(epoch, fold),
            Ok(Job::Scrap(table)) => {
                drop(table);
                Ok(())
            }
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => return,
        };
        if let Err(error) = did {
            return done(Err(error));
        }
        loop {
            let bytes_min = match along {
                FoldAlong::Bytes(bytes) => bytes,
                FoldAlong::Nothing | FoldAlong::All => 0,
            };
            match store.tend(epoch, bytes_min) {
                Ok(Tended::Idle) => is_idle = true,
                Ok(Tended::More) if along == FoldAlong::All => continue,
                Ok(Tended::More) => is_idle = false,
                Ok(Tended::Folded(folded)) => {
                    is_idle = false;
                    done(Ok(Done::Folded(folded)));
                }
                Err(error) => return done(Err(error)),
            }
            break;
        }
    }
}
