//! All tasks of a running engine as lines: taken at one instant of each shard, read beside it, given out as fast as they
//! are asked for.
//!
//! A few blocks wait for whoever takes them, so memory is bounded. While they are read no chunk is dropped, so disk is not
//! given back; that is why one who stops taking is cut off.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::archive::{ArchiveError, Options, Progress, export};
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;

/// Blocks of some hundred KiB that wait to be taken.
const BLOCKS_MAX: usize = 4;
/// Longest wait for one of them to be taken.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// Why no export was begun.
#[derive(Debug, thiserror::Error)]
pub enum ExportRefused {
    /// One at a time: each holds back what its shards could give back.
    #[error("another export is being made")]
    InProgress,
    /// A shard that is being restarted gives no snapshot.
    #[error("{0}")]
    NoSnapshot(String),
    /// The machine gives no thread.
    #[error("start a thread: {0}")]
    Thread(io::Error),
    /// The engine does not take anything in.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Lines, or that they were all, or why there are no more.
type Piece = Result<Option<Vec<u8>>, String>;

/// An export that is being made. Dropping it ends it.
#[derive(Debug)]
pub struct Export {
    pieces: mpsc::Receiver<Piece>,
}

impl Export {
    /// The next lines, whole; why there are no more, if it could not be ended; `None` at its end.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, String>> {
        match self.pieces.recv().await {
            Some(piece) => piece.transpose(),
            None => Some(Err("it ended before its time".to_owned())),
        }
    }
}

impl Duetime {
    /// Begins to give out each task as a line: see [`task_line`](crate::wire::task_line). What does not read back ends it
    /// with a failure, after all that does, unless it may be left out.
    ///
    /// # Errors
    /// While another is being made, a shard does not answer, or the engine stops.
    pub async fn export(&self, skip_damaged: bool) -> Result<Export, ExportRefused> {
        self.accepting()?;
        let room = Arc::clone(&self.parts.exporting).try_acquire_owned();
        let room = room.map_err(|_| ExportRefused::InProgress)?;
        let snapshots = self.snapshots().await;
        let snapshots = snapshots.map_err(ExportRefused::NoSnapshot)?;
        let (give, pieces) = mpsc::channel(BLOCKS_MAX);
        let (on, stopping) = (self.parts.on_io.clone(), self.parts.stopping.clone());
        let options = Options {
            threads: 1,
            skip_damaged,
            ..Options::default()
        };
        let give_out = move |piece: Piece| {
            let given = async {
                tokio::select! {
                    given = tokio::time::timeout(STALLED_MAX, give.send(piece)) => Some(given),
                    () = stopping.cancelled() => None,
                }
            };
            match on.block_on(given) {
                Some(Ok(Ok(()))) => Ok(()),
                Some(Ok(Err(_))) => Err(ErrorKind::BrokenPipe.into()),
                Some(Err(_)) => Err(ErrorKind::TimedOut.into()),
                None => Err(io::Error::other("the service is stopping")),
            }
        };
        let work = move |_room: OwnedSemaphorePermit| {
            let progress = Progress::default();
            let give = |block| give_out(Ok(Some(block)));
            let last = match export::of_snapshots(snapshots, &give, &options, &progress) {
                Ok(exported) => {
                    tracing::info!(tasks = exported.tasks, "exported");
                    Ok(None)
                }
                Err(error) => {
                    let why = chain(&error);
                    tracing::warn!(why, "an export was not ended");
                    Err(why)
                }
            };
            // Whoever has gone does not hear it.
            let _ = give_out(last);
        };
        std::thread::Builder::new()
            .name("export".to_owned())
            .spawn(move || work(room))
            .map_err(ExportRefused::Thread)?;
        Ok(Export { pieces })
    }
}

fn chain(error: &ArchiveError) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
