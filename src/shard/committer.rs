//! The thread that syncs: a shard's commits run here, never on the shard's own thread.
//!
//! One commit is out at a time; while it syncs, the shard gathers the next. Between commits the thread does the
//! store's housekeeping in small slices, and it always prefers a commit that waits.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use crate::ids::{ShardEpoch, ShardId};
use crate::store::{Batch, ShardStore, StoreError, Tended};

/// Where batches are handed in. Dropping it ends the thread after the batch that is out.
#[derive(Debug)]
pub struct Committer {
    batches: SyncSender<Batch>,
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
        done: impl Fn(Result<(), StoreError>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (batches, incoming) = sync_channel(1);
        std::thread::Builder::new()
            .name(format!("journal-{:02}", shard.0))
            .spawn(move || run(epoch, store, &incoming, &done))?;
        Ok(Self { batches })
    }

    /// Hands in a batch. The shard hands in one only after the one before is done, so this never waits.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn commit(&self, batch: Batch) -> Result<(), CommitterGone> {
        self.batches.try_send(batch).map_err(|_| CommitterGone)
    }
}

fn run(
    epoch: ShardEpoch,
    mut store: Box<dyn ShardStore>,
    incoming: &Receiver<Batch>,
    done: &dyn Fn(Result<(), StoreError>),
) {
    let mut tended = Tended::Idle;
    loop {
        let batch = match tended {
            Tended::Idle => incoming.recv().map_err(|_| TryRecvError::Disconnected),
            Tended::More => incoming.try_recv(),
        };
        let outcome = match batch {
            Ok(batch) => {
                let committed = store.commit(epoch, batch);
                let failed = committed.is_err();
                done(committed);
                if failed {
                    return;
                }
                store.tend(epoch)
            }
            Err(TryRecvError::Empty) => store.tend(epoch),
            Err(TryRecvError::Disconnected) => return,
        };
        match outcome {
            Ok(next) => tended = next,
            Err(error) => return done(Err(error)),
        }
    }
}
