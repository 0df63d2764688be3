//! Backups of a running engine: one at a time, asked for or by plan.
//!
//! ```text
//!  asked ─▶ each shard: snapshot (its next fold) ─▶ thread `backup`: copy, sync, read back, rename
//!                                                      └ a shard that dies meanwhile: all of it anew, three times
//!  journals copied? ─▶ wait until their copies hold all that is in the snapshots, then name them
//! ```
//!
//! A shard is held up for as long as it takes to list its chunks, less than a millisecond for a million tasks; all the
//! rest is done beside it, on one thread, so that a backup takes one core at most.
//!
//! **By plan.** A thread looks each second whether the next one is due, counted from the last good one in the directory,
//! also over restarts. Only after a good one are older ones removed. One that failed is tried again after at most ten
//! minutes, and readiness warns until one succeeds.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::archive::backup::{self, Manifest, Wanted};
use crate::archive::{ArchiveError, Options, Progress};
use crate::causes::chain;
use crate::clock::{DurationMs, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Parts};
use crate::engine::journal_copies::{CopyStatus, JournalCopies};
use crate::shard::messages::TakeSnapshot;
use crate::shard::snapshot::Snapshot;

/// Longest wait for a shard's snapshot, which is the time of two folds.
const SNAPSHOT_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the journals' copies to hold what the snapshots do: some ten rounds, of a disk that is not late.
const REACH_MAX: Duration = Duration::from_secs(10);
/// How often a backup is tried: a shard may die while it is copied.
const TRIES: u32 = 3;
/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// How often the plan is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A planned backup that failed is tried again after this, or sooner if more are planned.
const PLAN_AGAIN: DurationMs = DurationMs::secs(600);
/// What the names of planned backups begin with.
const PREFIX: &str = "duetime-";

/// When backups are made by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPlan {
    /// How long after the one before.
    pub every: DurationMs,
    /// How many are kept.
    pub keep: usize,
    /// Under which directory.
    pub dir: PathBuf,
}

/// Why no backup was begun.
#[derive(Debug, thiserror::Error)]
pub enum BackupRefused {
    /// One at a time.
    #[error("a backup to {} is being made", .0.display())]
    InProgress(PathBuf),
    /// Something is there already.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// The machine gives no thread.
    #[error("start a thread: {0}")]
    Thread(io::Error),
    /// The engine does not take anything in.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A backup as it is shown.
#[derive(Clone, Debug)]
pub struct BackupStatus {
    /// Where it goes.
    pub to: PathBuf,
    /// When it was begun.
    pub begun_at: WallMs,
    /// When it ended, and how.
    pub ended: Option<(WallMs, Result<Manifest, String>)>,
    /// Tasks copied.
    pub tasks: u64,
    /// Tasks to copy, once that is known.
    pub tasks_total: u64,
}

/// How backups by plan fare.
#[derive(Clone, Debug, Default)]
pub struct PlanStatus {
    /// When the last good one was begun.
    pub last_good_at: Option<WallMs>,
    /// Why the one after that failed.
    pub failure: Option<String>,
}

/// What is known of backups.
#[derive(Debug, Default)]
pub(super) struct Backups {
    latest: Mutex<Option<Current>>,
    plan: Mutex<Option<PlanStatus>>,
}

#[derive(Clone, Debug)]
struct Current {
    to: PathBuf,
    begun_at: WallMs,
    progress: Arc<Progress>,
    ended: Option<(WallMs, Result<Manifest, String>)>,
}

impl Backups {
    /// Asks the backup that is being made to stop.
    pub(super) fn stop(&self) {
        if let Some(current) = &*self.latest.lock() {
            current.progress.stop();
        }
    }

    /// Whether one is being made.
    pub(super) fn is_busy(&self) -> bool {
        self.latest
            .lock()
            .as_ref()
            .is_some_and(|current| current.ended.is_none())
    }
}

impl Duetime {
    /// Begins a backup to a directory that is not there yet. It goes on by itself: see [`Duetime::backup_status`].
    ///
    /// # Errors
    /// While another is being made, when something is there, or the engine stops.
    pub fn begin_backup(&self, to: PathBuf) -> Result<BackupStatus, BackupRefused> {
        self.accepting()?;
        if std::fs::read_dir(&to).map_or(to.exists(), |mut entries| entries.next().is_some()) {
            return Err(BackupRefused::Exists(to));
        }
        let backups = &self.parts.backups;
        {
            let mut latest = backups.latest.lock();
            if let Some(busy) = latest.as_ref().filter(|current| current.ended.is_none()) {
                return Err(BackupRefused::InProgress(busy.to.clone()));
            }
            *latest = Some(Current {
                to: to.clone(),
                begun_at: self.now().wall,
                progress: Arc::default(),
                ended: None,
            });
        }
        let engine = Arc::downgrade(&self.parts);
        let thread = std::thread::Builder::new()
            .name("backup".to_owned())
            .spawn(move || make(&engine, &to));
        if let Err(error) = thread {
            backups.latest.lock().take();
            return Err(BackupRefused::Thread(error));
        }
        self.backup_status()
            .ok_or(BackupRefused::Engine(EngineError::ShuttingDown))
    }

    /// The backup that is being made, else the last one.
    pub fn backup_status(&self) -> Option<BackupStatus> {
        let current = self.parts.backups.latest.lock().clone()?;
        Some(BackupStatus {
            tasks: current.progress.done(),
            tasks_total: current.progress.total(),
            to: current.to,
            begun_at: current.begun_at,
            ended: current.ended,
        })
    }

    /// How backups by plan fare, if there is a plan.
    pub fn plan_status(&self) -> Option<PlanStatus> {
        self.parts.backups.plan.lock().clone()
    }

    /// Writes into the data directory's lock where this engine is served, with a token for requests to its store: only
    /// who may read that file can make them.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn announce(&self, address: SocketAddr) -> io::Result<()> {
        match &*self.parts.dir.lock() {
            Some(dir) => dir.say(Some(address), Some(&self.parts.admin_token)),
            None => Ok(()),
        }
    }

    /// Whether this is the token in the data directory's lock. Takes as long for any of its length.
    pub fn is_admin_token(&self, given: &[u8]) -> bool {
        let token = self.parts.admin_token.as_bytes();
        let pairs = token.iter().zip(given);
        token.len() == given.len() && pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }

    /// How the copying of the journals fares, if they are copied.
    pub fn copy_status(&self) -> Option<CopyStatus> {
        Some(self.journal_copies()?.status())
    }

    fn journal_copies(&self) -> Option<Arc<JournalCopies>> {
        self.parts.journal_copies.lock().clone()
    }

    pub(super) async fn snapshots(&self) -> Result<Vec<Snapshot>, String> {
        let asked = self.parts.router.shards().map(|shard| async move {
            let (to, taken) = oneshot::channel();
            let told = self.parts.router.ask(shard, TakeSnapshot(to)).await;
            told.map_err(|error| error.to_string())?;
            match tokio::time::timeout(SNAPSHOT_MAX, taken).await {
                Ok(Ok(snapshot)) => Ok(snapshot),
                _ => Err(format!("shard {shard} gave no snapshot")),
            }
        });
        try_join_all(asked).await
    }
}

/// Makes a backup, on its own thread.
fn make(engine: &Weak<Parts>, to: &Path) {
    let mut tries = 1;
    let made = loop {
        let Some(parts) = engine.upgrade() else {
            return;
        };
        let engine = Duetime { parts };
        match make_once(engine, to) {
            Ok(manifest) => break Ok(manifest),
            Err((why, is_final)) if is_final || tries >= TRIES => break Err(why),
            Err((why, _)) => tracing::warn!(why, tries, "a backup is begun anew"),
        }
        tries += 1;
        std::thread::sleep(TRY_AGAIN);
    };
    match &made {
        Ok(manifest) => {
            tracing::info!(to = %to.display(), tasks = manifest.tasks, bytes = manifest.bytes(), "backup made and read back");
        }
        Err(why) => tracing::error!(to = %to.display(), why, "a backup failed"),
    }
    if let Some(parts) = engine.upgrade() {
        let now = parts.clock.now().wall;
        if let Some(current) = &mut *parts.backups.latest.lock() {
            current.ended = Some((now, made));
        }
    }
}

/// One try; why it failed, and whether another can't fare better. Holds the engine only until it has the snapshots.
fn make_once(engine: Duetime, to: &Path) -> Result<Manifest, (String, bool)> {
    let progress = Arc::new(Progress::default());
    {
        let mut latest = engine.parts.backups.latest.lock();
        if let Some(current) = &mut *latest {
            current.progress = Arc::clone(&progress);
        }
    }
    if engine.parts.stopping.is_cancelled() {
        return Err((EngineError::ShuttingDown.to_string(), true));
    }
    let now = engine.now().wall;
    // Before anything is read: all that is copied by now was handed to the journals, so it is in the snapshots.
    let copies = engine.journal_copies();
    let stood = copies.as_ref().map(|copies| copies.stand());
    let snapshots = engine.parts.on_io.block_on(engine.snapshots());
    let snapshots = snapshots.map_err(|why| (why, false))?;
    let (taken_at, stopping) = (Instant::now(), engine.parts.stopping.clone());
    let registry = engine.parts.files.lock().clone();
    let registry = registry.ok_or_else(|| (EngineError::ShuttingDown.to_string(), true))?;
    drop(engine);
    let journals = copies.zip(stood).and_then(|(copies, stood)| {
        let nothing = || "nothing was copied since the start".to_owned();
        let reached = stood
            .ok_or_else(nothing)
            .and_then(|stood| copies.reach(stood, taken_at, REACH_MAX, &stopping));
        reached
            .inspect_err(|why| {
                tracing::warn!(why, "the journals' copies do not reach this backup: it can be restored, but what comes after it can't be added");
            })
            .ok()
    });
    if stopping.is_cancelled() {
        return Err((EngineError::ShuttingDown.to_string(), true));
    }
    let options = Options {
        threads: 1,
        ..Options::default()
    };
    let entries = |take: &mut backup::TakeEntry<'_>| registry.entries(take);
    let wanted = Wanted { to, now, journals };
    backup::of_snapshots(snapshots, &entries, wanted, &options, &progress).map_err(|error| {
        let is_final = matches!(error, ArchiveError::Exists { .. } | ArchiveError::Stopped);
        (chain(&error), is_final)
    })
}

/// Starts the thread that makes backups by plan. It ends with the engine.
pub(super) fn follow(engine: &Duetime, plan: BackupPlan) -> io::Result<()> {
    let last_good_at = latest_in(&plan.dir);
    *engine.parts.backups.plan.lock() = Some(PlanStatus {
        last_good_at,
        failure: None,
    });
    let engine = Arc::downgrade(&engine.parts);
    std::thread::Builder::new()
        .name("backup-plan".to_owned())
        .spawn(move || {
            let mut next_at = last_good_at.map(|at| at.after(plan.every));
            loop {
                std::thread::sleep(LOOK_EVERY);
                let Some(parts) = engine.upgrade() else {
                    return;
                };
                if parts.stopping.is_cancelled() {
                    return;
                }
                let now = parts.clock.now().wall;
                // A clock that was set back must not put the next one off for long.
                let is_due = next_at.is_none_or(|at| now >= at || at.since(now) > plan.every);
                if is_due {
                    next_at = Some(keep_to(&plan, &Duetime { parts }));
                }
            }
        })
        .map(|_| ())
}

/// Makes one backup of the plan and waits for its end; when the next one is due.
fn keep_to(plan: &BackupPlan, engine: &Duetime) -> WallMs {
    let begun_at = engine.now().wall;
    let made = engine
        .begin_backup(plan.dir.join(name_at(begun_at)))
        .map_err(|refused| refused.to_string())
        .and_then(|_| {
            loop {
                std::thread::sleep(TRY_AGAIN);
                let status = engine.backup_status();
                let (_, made) = match status.map(|status| status.ended) {
                    Some(None) => continue,
                    Some(Some(ended)) => ended,
                    None => return Err("nothing became of it".to_owned()),
                };
                return made;
            }
        });
    let is_good = made.is_ok();
    if let (
        Ok(Manifest {
            journals: Some(at), ..
        }),
        Some(copies),
    ) = (&made, engine.journal_copies())
    {
        copies.covered(at.clone());
    }
    {
        let mut status = engine.parts.backups.plan.lock();
        let status = status.get_or_insert_default();
        if is_good {
            status.last_good_at = Some(begun_at);
        }
        status.failure = made.err();
    }
    if is_good {
        thin_out(plan);
    }
    begun_at.after(match is_good {
        true => plan.every,
        false => plan.every.min(PLAN_AGAIN),
    })
}

/// `duetime-20261201T103000Z`.
fn name_at(at: WallMs) -> String {
    let time: String = at
        .to_string()
        .chars()
        .filter(|c| !"-:".contains(*c))
        .collect();
    let seconds = time.split('.').next().unwrap_or_default();
    format!("{PREFIX}{seconds}Z")
}

/// The backups of a plan, oldest first.
fn made_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut made: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(PREFIX) && path.join("MANIFEST").is_file()
        })
        .collect();
    made.sort_unstable();
    made
}

fn latest_in(dir: &Path) -> Option<WallMs> {
    let manifest = Manifest::read(made_in(dir).last()?).ok()?;
    Some(WallMs(manifest.made_at_ms))
}

fn thin_out(plan: &BackupPlan) {
    let made = made_in(&plan.dir);
    for old in &made[..made.len().saturating_sub(plan.keep.max(1))] {
        match std::fs::remove_dir_all(old) {
            Ok(()) => tracing::info!(backup = %old.display(), "an old backup removed"),
            Err(error) => {
                tracing::warn!(%error, backup = %old.display(), "an old backup could not be removed");
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    #[test]
    fn names_of_planned_backups_sort_by_their_time() {
        assert_eq!(
            name_at(WallMs(1_796_000_000_123)),
            "duetime-20261130T005320Z"
        );
        assert!(name_at(WallMs(1_796_000_000_000)) < name_at(WallMs(1_796_000_001_000)));
    }

    #[test]
    fn only_the_latest_planned_backups_are_kept_and_nothing_else_is_touched() {
        let temp = tempfile::tempdir().unwrap();
        let plan = BackupPlan {
            every: DurationMs::secs(60),
            keep: 2,
            dir: temp.path().to_owned(),
        };
        let names = [
            "duetime-20260101T000000Z",
            "duetime-20260102T000000Z",
            "duetime-20260103T000000Z",
        ];
        for name in names {
            std::fs::create_dir(temp.path().join(name)).unwrap();
            std::fs::write(temp.path().join(name).join("MANIFEST"), "{}").unwrap();
        }
        for other in ["monday", "duetime-20250101T000000Z.partial"] {
            std::fs::create_dir(temp.path().join(other)).unwrap();
        }
        thin_out(&plan);
        let there = |name: &str| temp.path().join(name).exists();
        assert_eq!(names.map(there), [false, true, true]);
        assert!(there("monday") && there("duetime-20250101T000000Z.partial"));
    }
}
