//! All tasks of a running engine as lines: taken at one instant of each shard, read beside it, given out as fast as they
//! are asked for.
//!
//! What does not read back is logged, place by place, and told to who asks how the export went: the lines alone can't say
//! what is not among them.
//!
//! A few blocks wait for whoever takes them, so memory is bounded. While they are read no chunk is dropped, so disk is not
//! given back; that is why one who stops taking is cut off.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::archive::{Options, Progress, export};
use crate::causes::chain;
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::shard::snapshot::Fault;

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

/// How an export goes, or went.
#[derive(Clone, Debug)]
pub struct ExportStatus {
    /// Which, counted from the start.
    pub number: u64,
    /// Tasks given out.
    pub tasks: u64,
    /// How many places did not read back: what they hold was not given out.
    pub left_out: u64,
    /// The first of them.
    pub places: Vec<Fault>,
    /// `None` while it goes; whether it came to its end.
    pub ended: Option<Result<(), String>>,
}

/// What is known of exports.
#[derive(Debug)]
pub(super) struct Exports {
    /// A place for one.
    room: Arc<Semaphore>,
    latest: Mutex<Option<Latest>>,
}

#[derive(Debug)]
struct Latest {
    number: u64,
    progress: Arc<Progress>,
    ended: Option<Result<(), String>>,
}

impl Default for Exports {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(1)),
            latest: Mutex::new(None),
        }
    }
}

impl Exports {
    /// Its number.
    fn begin(&self, progress: &Arc<Progress>) -> u64 {
        let mut latest = self.latest.lock();
        let number = latest.as_ref().map_or(1, |before| before.number + 1);
        *latest = Some(Latest {
            number,
            progress: Arc::clone(progress),
            ended: None,
        });
        number
    }

    fn end(&self, how: Result<(), String>) {
        if let Some(latest) = &mut *self.latest.lock() {
            latest.ended = Some(how);
        }
    }
}

/// Lines, or that they were all, or why there are no more.
type Piece = Result<Option<Vec<u8>>, String>;

/// An export that is being made. Dropping it ends it.
#[derive(Debug)]
pub struct Export {
    /// Which, counted from the start.
    pub number: u64,
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
        let exports = Arc::clone(&self.parts.exports);
        let room = Arc::clone(&exports.room).try_acquire_owned();
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
        let progress = Arc::new(Progress::default());
        let number = exports.begin(&progress);
        let work = move |_room: OwnedSemaphorePermit| {
            let give = |block| give_out(Ok(Some(block)));
            let exported = export::of_snapshots(snapshots, &give, &options, &progress);
            let ended = exported.map_err(|error| chain(&error));
            let left_out = progress.faults_count();
            match &ended {
                Ok(carried) if left_out == 0 => tracing::info!(tasks = carried.tasks, "exported"),
                Ok(carried) => {
                    tracing::warn!(
                        tasks = carried.tasks,
                        left_out,
                        "exported, but for what does not read back"
                    );
                }
                Err(why) => tracing::warn!(why, left_out, "an export was not ended"),
            }
            let ended = ended.map(drop);
            // Before its last piece: who has taken that may ask.
            exports.end(ended.clone());
            // Whoever has gone does not hear it.
            let _ = give_out(ended.map(|()| None));
        };
        std::thread::Builder::new()
            .name("export".to_owned())
            .spawn(move || work(room))
            .map_err(ExportRefused::Thread)?;
        Ok(Export { number, pieces })
    }

    /// How the latest export goes, or went.
    pub fn export_status(&self) -> Option<ExportStatus> {
        let latest = self.parts.exports.latest.lock();
        let latest = latest.as_ref()?;
        Some(ExportStatus {
            number: latest.number,
            tasks: latest.progress.done(),
            left_out: latest.progress.faults_count(),
            places: latest.progress.faults(),
            ended: latest.ended.clone(),
        })
    }
}
