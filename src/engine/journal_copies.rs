//! The thread that has the journals copied to a second directory: see [`copies`](crate::store::local::copies).
//!
//! It reads files behind the committers' backs and never holds them up. A second directory that is slow, full or gone
//! holds up nothing but this thread; how far behind it is stands in the metrics, in readiness and in the log.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::archive::backup::JournalsAt;
use crate::clock::DurationMs;
use crate::engine::handle::Parts;
use crate::store::local::copies::Copies;

/// Between two rounds: what is lost with the data directory is what came in it, and while a round was running.
const ROUND_EVERY: Duration = Duration::from_millis(200);
/// Further behind than this, readiness warns.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// Between two lines of the log that say that it does not work.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// How the copying fares.
#[derive(Clone, Debug)]
pub struct CopyStatus {
    /// All that was committed so long ago is in the second directory.
    pub behind: DurationMs,
    /// How often something was folded before it was copied: the copies then begin to count with the next backup.
    pub gaps: u64,
    /// Why the latest round failed.
    pub failure: Option<String>,
}

impl CopyStatus {
    /// Whether it is so far behind that somebody should look.
    pub fn is_late(&self) -> bool {
        self.behind.to_std() > BEHIND_MAX
    }
}

/// What the thread and the engine share.
#[derive(Debug)]
pub(super) struct JournalCopies(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When the latest good round began.
    good_at: Instant,
    gaps: u64,
    failure: Option<String>,
    at: Option<JournalsAt>,
    /// What a backup has made superfluous.
    covered: Option<JournalsAt>,
}

impl JournalCopies {
    pub(super) fn status(&self) -> CopyStatus {
        let state = self.0.lock();
        CopyStatus {
            behind: DurationMs(
                u64::try_from(state.good_at.elapsed().as_millis()).unwrap_or(u64::MAX),
            ),
            gaps: state.gaps,
            failure: state.failure.clone(),
        }
    }

    /// How far they are, for a backup that has not begun to read.
    pub(super) fn at(&self) -> Option<JournalsAt> {
        self.0.lock().at.clone()
    }

    /// A good backup was made that begins there: what is before it is not needed any more.
    pub(super) fn covered(&self, by: JournalsAt) {
        self.0.lock().covered = Some(by);
    }
}

/// Starts the thread. It ends with the engine, after a last round.
pub(super) fn follow(engine: &Arc<Parts>, data: &Path, shards: u16, to: PathBuf) -> io::Result<()> {
    let shared = Arc::new(JournalCopies(Mutex::new(State {
        good_at: Instant::now(),
        gaps: 0,
        failure: None,
        at: None,
        covered: None,
    })));
    *engine.journal_copies.lock() = Some(Arc::clone(&shared));
    let (data, stopping) = (data.to_owned(), engine.stopping.clone());
    let engine: Weak<Parts> = Arc::downgrade(engine);
    let mut follower = Follower {
        begin: Box::new(move || Copies::begin(&data, shards, &to)),
        shared,
        copies: None,
        gaps_before: 0,
        said_at: None,
    };
    std::thread::Builder::new()
        .name("journal-copy".to_owned())
        .spawn(move || {
            loop {
                let is_last = stopping.is_cancelled() || engine.strong_count() == 0;
                follower.round();
                if is_last {
                    return;
                }
                std::thread::sleep(ROUND_EVERY);
            }
        })
        .map(|_| ())
}

struct Follower {
    begin: Box<dyn Fn() -> io::Result<Copies> + Send>,
    shared: Arc<JournalCopies>,
    copies: Option<Copies>,
    /// Of copies that were begun anew since.
    gaps_before: u64,
    /// When the log was last told that it does not work.
    said_at: Option<Instant>,
}

impl Follower {
    fn round(&mut self) {
        let begun = Instant::now();
        let done = self.copy();
        let gaps = self.gaps_before + self.copies.as_ref().map_or(0, Copies::gaps);
        let mut state = self.shared.0.lock();
        state.gaps = gaps;
        match done {
            Ok(at) => {
                state.good_at = begun;
                state.at = Some(at);
                state.failure = None;
                drop(state);
                if self.said_at.take().is_some() {
                    tracing::info!("the copies of the journals are complete again");
                }
            }
            Err(error) => {
                state.failure = Some(error.to_string());
                let behind = state.good_at.elapsed();
                drop(state);
                self.gaps_before = gaps;
                self.copies = None;
                if self.said_at.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                    self.said_at = Some(begun);
                    tracing::error!(%error, ?behind, "the journals can't be copied to the second directory; the service goes on without");
                }
            }
        }
    }

    /// One round; how far the copies are after it.
    fn copy(&mut self) -> io::Result<JournalsAt> {
        let copies = match &mut self.copies {
            Some(copies) => copies,
            None => self.copies.insert((self.begin)()?),
        };
        copies.round()?;
        let covered = self.shared.0.lock().covered.take();
        if let Some(covered) = covered.filter(|covered| covered.lineage == copies.lineage()) {
            copies.drop_through(&covered.after)?;
        }
        Ok(JournalsAt {
            lineage: copies.lineage().to_owned(),
            after: copies.positions(),
        })
    }
}
