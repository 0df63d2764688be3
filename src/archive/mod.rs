//! Whole stores: copied, carried over, counted again. What `duetime store …` does, and the service's own backups.
//!
//! ```text
//!   data directory ──Snapshot──┐                     ┌──▶ sink ──▶ new/shards ──swap──▶ data directory
//!   running shard  ──Snapshot──┼──▶ tasks and notes ─┼──▶ backup   (frames, MANIFEST)
//!   backup         ──frames────┤  ▲                  └──▶ lines    (export)
//!   journal copies ────────────┼──┘
//!   lines          ──import────┘
//! ```
//!
//! One way in and one way out: everything that is read comes as whole tasks and notes, each once; everything that makes
//! a data directory goes through the [`sink`], which builds it aside and puts it in place in one step. So a reshard, an
//! import and a restore that are cut off leave what was there.
//!
//! Memory does not grow with the number of tasks, but for an import's: it remembers ids and keys, about 40 bytes a task,
//! to refuse what is there already.
//!
//! It knows shards at rest, stores and what stands on the wire; nothing of actors and engines.

pub mod backup;
pub mod doctor;
pub mod export;
pub mod frames;
pub mod import;
pub mod reshard;
pub mod since;
pub mod sink;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ids::ShardId;
use crate::shard::snapshot::{Fault, Snapshot};
use crate::store::StoreError;
use crate::store::data_dir::{DataDir, DataDirError};
use crate::store::local::{LocalHome, LocalOptions};
use crate::wire::Problem;

/// Most faults that are told one by one.
const FAULTS_TOLD_MAX: usize = 100;

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The data directory can't be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file system refused.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is to be written is there already.
    #[error("{} is there already", path.display())]
    Exists {
        /// What.
        path: PathBuf,
    },
    /// A backup that is not one, or not what was written.
    #[error("{}: {why}", path.display())]
    NotABackup {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Copies of a journal that do not reach the backup that they are to be laid over.
    #[error(
        "{}: these copies end with commit {reached}, before the backup was made: older states would take the place of newer ones",
        place.display()
    )]
    Behind {
        /// Where they are.
        place: PathBuf,
        /// Their last commit.
        reached: u64,
    },
    /// Some of what is stored does not read back.
    #[error("{count} of what is stored does not read back, as {}", first.place)]
    Damaged {
        /// How many places.
        count: u64,
        /// One of them.
        first: Fault,
    },
    /// A line of an import is wrong.
    #[error("line {line}: {}", problem.detail)]
    Line {
        /// Which, from 1.
        line: u64,
        /// What is wrong with it.
        problem: Problem,
    },
    /// A line of an import names what is there already.
    #[error("line {line}: {what} is there already")]
    Taken {
        /// Which, from 1.
        line: u64,
        /// Its id, or its topic and key.
        what: String,
    },
    /// Whoever asked for it no longer wants it.
    #[error("it was stopped before it was through")]
    Stopped,
    /// A part of the work ended without saying why.
    #[error("a thread ended before its time")]
    CutOff,
}

impl ArchiveError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}

/// How far a piece of work has come, for who watches it, and what it came upon. Shared by its threads.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
    stopped: AtomicBool,
    faults: Mutex<Vec<Fault>>,
    faults_count: AtomicU64,
}

impl Progress {
    /// How much there is to do, as far as is known: tasks, or bytes where tasks can't be counted.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// How much of it is done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Asks the work to stop; it leaves what was there.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// What did not read back, the first of it.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.lock().clone()
    }

    /// How much did not read back.
    pub fn faults_count(&self) -> u64 {
        self.faults_count.load(Ordering::Relaxed)
    }

    fn add_total(&self, more: u64) {
        self.total.fetch_add(more, Ordering::Relaxed);
    }

    fn add_done(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    fn go_on(&self) -> Result<(), ArchiveError> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(ArchiveError::Stopped),
            false => Ok(()),
        }
    }

    fn note(&self, fault: Fault) {
        tracing::warn!(place = fault.place, why = fault.why, "does not read back");
        self.faults_count.fetch_add(1, Ordering::Relaxed);
        let mut faults = self.faults.lock();
        if faults.len() < FAULTS_TOLD_MAX {
            faults.push(fault);
        }
    }

    /// Refuses to go on with what is damaged, unless that may be left out.
    fn undamaged(&self, options: &Options) -> Result<(), ArchiveError> {
        match self.faults.lock().first() {
            Some(first) if !options.skip_damaged => Err(ArchiveError::Damaged {
                count: self.faults_count(),
                first: first.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// How it is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many threads work side by side.
    pub threads: usize,
    /// What does not read back is left out.
    pub skip_damaged: bool,
    /// How stores are opened.
    pub store: LocalOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            skip_damaged: false,
            store: LocalOptions::default(),
        }
    }
}

/// What was carried over.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Tasks.
    pub tasks: u64,
    /// Tombstones, kept and late answers.
    pub notes: u64,
    /// Tasks that were there already, and were passed over.
    pub skipped: u64,
}

/// All shards of a data directory that this process holds, opened one after the other by a few threads.
fn each_shard(
    dir: &DataDir,
    options: &Options,
    work: impl Fn(ShardId, Snapshot) -> Result<(), ArchiveError> + Sync,
) -> Result<(), ArchiveError> {
    side_by_side(options.threads, dir.shards().into(), |number| {
        let shard = ShardId(number as u16);
        // Each shard's database is closed, and its memory given back, before the next is opened.
        let home = LocalHome::new(dir.path(), options.store.clone());
        let mut store = home.store(shard);
        let snapshot = Snapshot::of_store(&mut store)?;
        work(shard, snapshot)
    })
}

/// Does so many pieces of work with a few threads; the first error ends it, after what has begun.
fn side_by_side(
    threads: usize,
    pieces: usize,
    work: impl Fn(usize) -> Result<(), ArchiveError> + Sync,
) -> Result<(), ArchiveError> {
    let next = AtomicU64::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, pieces.max(1)) {
            scope.spawn(|| {
                while failed.lock().is_none() {
                    let piece = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if piece >= pieces {
                        return;
                    }
                    if let Err(error) = work(piece) {
                        failed.lock().get_or_insert(error);
                    }
                }
            });
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}
