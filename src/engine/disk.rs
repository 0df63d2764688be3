//! How much space the data directory's file system has left, and who may still use it.
//!
//! A task that was taken in still has to be cancelled, leased, completed, and each of these writes something; and what
//! stands in the journals still has to be folded, which takes its space twice until the journals are dropped. So
//! creates stop while there is space left, and the rest is for ending what is there:
//!
//! ```text
//!   free space   ├─ too little to start on ─┼──── reserve ────┼── upkeep ──┼── margin ──┼────── room ─────▶
//!                                           │                 │            │            └ once refused, creates
//!   creates                  507            │       507       │     507    └ are refused    are taken again
//!   all else       fails, is tried again    │      works      │     works      from here down
//! ```
//!
//! *Reserve* is what is configured, on a small file system too: one smaller than that takes no creates at all.
//! *Upkeep* is what folding the journals may take, twice their size: a fold that runs into the end of the
//! disk kills its shard, and would do so again at each start. The margin, a quarter of the reserve, keeps the edge
//! from flickering.
//!
//! A thread asks the file system four times a second. Between two looks the creates are counted against the room
//! there was at the last one, so a burst can't run through the reserve unseen.
//!
//! Nothing here makes a write safe: a disk may fill up from outside in a moment. A shard that can't write dies and
//! is built again from its store. While the reserve is being used up its deaths are excused (see
//! [`ChildSpec::excused_while`](crate::watchdog::ChildSpec::excused_while)), and it is not started on a disk that is
//! full to the brim, where each try would only fail half way and leave something behind.
//!
//! Cost: a look is one `statvfs` and one `stat` a journal segment (some dozens a shard at most); a create is one short lock.
//! Limits: blocks are looked at, not inodes; a file system that can't be asked counts as having room.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::task::new_task::NewTask;
use crate::task::spec::RawJson;

/// What is kept free if nothing else is configured.
pub const RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// How often the file system is asked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What a task takes beside its payload and facts, in bytes: on the large side of the usual.
const TASK_BYTES: u64 = 1024;
/// What folding takes, as a multiple of the journals: what is written, and what the database has rewritten by then.
const FOLDING: u64 = 2;
/// With less than this no shard and no registry is started, in bytes.
const START_BYTES_MIN: u64 = 256 * 1024;

/// Why a create was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the disk is full: {} are free, and {} are kept for what is there to end ({} by `[store] reserve`, {} for the \
     journals to be folded); make room, and from {} free on creates work again by themselves",
    Size(*.free_bytes), Size(.reserve_bytes.saturating_add(*.upkeep_bytes)), Size(*.reserve_bytes), Size(*.upkeep_bytes),
    Size(*.resume_bytes)
)]
pub struct StorageFull {
    /// Free space.
    pub free_bytes: u64,
    /// What is kept free.
    pub reserve_bytes: u64,
    /// What the store needs beside it for its own upkeep.
    pub upkeep_bytes: u64,
    /// From here on creates are taken again.
    pub resume_bytes: u64,
}

/// Why a part that writes was not even started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the disk is full: less than {} of space are free",
    Size(START_BYTES_MIN)
)]
pub struct NoSpaceToStart;

/// What is known of the space. Pure: the file system's answers are handed in.
#[derive(Clone, Copy, Debug)]
struct Space {
    reserve_bytes: u64,
    upkeep_bytes: u64,
    /// `None` until the file system has been asked, and when it does not say.
    free_bytes: Option<u64>,
    /// What creates may still take before the next look, with what follows from them.
    room_bytes: u64,
    /// Creates are refused.
    is_short: bool,
}

impl Space {
    fn new(reserve_bytes: u64) -> Self {
        Self {
            reserve_bytes,
            upkeep_bytes: 0,
            free_bytes: None,
            room_bytes: u64::MAX,
            is_short: false,
        }
    }

    fn kept_bytes(&self) -> u64 {
        self.reserve_bytes.saturating_add(self.upkeep_bytes)
    }

    fn resume_bytes(&self) -> u64 {
        self.kept_bytes().saturating_add(self.reserve_bytes / 4)
    }

    /// Takes in what the file system says, and how large the journals are.
    fn look(&mut self, free_bytes: Option<u64>, journal_bytes: u64) {
        self.free_bytes = free_bytes;
        self.upkeep_bytes = journal_bytes.saturating_mul(FOLDING);
        let free = free_bytes.unwrap_or(u64::MAX);
        self.room_bytes = free.saturating_sub(self.kept_bytes());
        let enough = if self.is_short {
            self.resume_bytes()
        } else {
            self.kept_bytes()
        };
        self.is_short = free < enough;
    }

    /// Whether this much more may come into the journals; counts it.
    fn admit(&mut self, bytes: u64) -> bool {
        if !self.is_short {
            let left = self
                .room_bytes
                .checked_sub(bytes.saturating_mul(1 + FOLDING));
            self.room_bytes = left.unwrap_or(0);
            self.is_short = left.is_none();
        }
        !self.is_short
    }

    fn storage_full(&self) -> StorageFull {
        // What has come in since the last look is taken, as far as anybody knows.
        let left = self.kept_bytes().saturating_add(self.room_bytes);
        StorageFull {
            free_bytes: self.free_bytes.unwrap_or(0).min(left),
            reserve_bytes: self.reserve_bytes,
            upkeep_bytes: self.upkeep_bytes,
            resume_bytes: self.resume_bytes(),
        }
    }
}

/// The space as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskStatus {
    /// Free for us when it was last looked at; `None` when the file system does not say.
    pub free_bytes: Option<u64>,
    /// What is kept free.
    pub reserve_bytes: u64,
    /// What the store needs beside it for its own upkeep.
    pub upkeep_bytes: u64,
    /// Why creates are refused, while they are.
    pub refuses: Option<StorageFull>,
}

/// Watches the space under a data directory. See the module's header.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    space: Mutex<Space>,
}

impl Disk {
    /// Looks once, and from then on on a thread of its own: until `stopping`, or nobody holds this any more.
    ///
    /// # Errors
    /// When the machine gives no thread.
    pub fn watch(
        path: &Path,
        reserve_bytes: u64,
        stopping: CancellationToken,
    ) -> io::Result<Arc<Self>> {
        let disk = Arc::new(Self {
            path: path.to_owned(),
            space: Mutex::new(Space::new(reserve_bytes)),
        });
        disk.look();
        let watched = Arc::downgrade(&disk);
        std::thread::Builder::new()
            .name("disk".to_owned())
            .spawn(move || keep_looking(&watched, &stopping))?;
        Ok(disk)
    }

    /// Whether a new task may come in; counts it.
    ///
    /// # Errors
    /// When the space that is left is kept for other things.
    pub fn admit(&self, new: &NewTask) -> Result<(), StorageFull> {
        let bytes = |json: &Option<RawJson>| json.as_ref().map_or(0, |json| json.0.len() as u64);
        let bytes = TASK_BYTES + bytes(&new.payload) + bytes(&new.facts);
        self.change(|space| space.admit(bytes).then_some(()).ok_or(space.storage_full()))
    }

    /// Whether a part that writes may be started; looks first.
    ///
    /// # Errors
    /// When its first write would fail.
    pub fn room_to_start(&self) -> Result<(), NoSpaceToStart> {
        self.look();
        match self.status().free_bytes {
            Some(free) if free < START_BYTES_MIN => Err(NoSpaceToStart),
            _ => Ok(()),
        }
    }

    /// Whether the reserve is being used up, so that a part that dies may have died of that.
    pub fn is_in_reserve(&self) -> bool {
        let space = *self.space.lock();
        space
            .free_bytes
            .is_some_and(|free| free < space.reserve_bytes)
    }

    /// How it is.
    pub fn status(&self) -> DiskStatus {
        let space = *self.space.lock();
        DiskStatus {
            free_bytes: space.free_bytes,
            reserve_bytes: space.reserve_bytes,
            upkeep_bytes: space.upkeep_bytes,
            refuses: space.is_short.then(|| space.storage_full()),
        }
    }

    fn look(&self) {
        // Before the lock is taken: a file system may take its time.
        let journal_bytes = journal_bytes(&self.path);
        let free = statvfs(&self.path).map(|found| {
            found
                .blocks_available()
                .saturating_mul(found.fragment_size())
        });
        self.change(|space| {
            if let Err(error) = free
                && space.free_bytes.is_some()
            {
                let path = self.path.display();
                tracing::warn!(%error, %path, "the file system does not say how much space it has; creates are taken");
            }
            space.look(free.ok(), journal_bytes);
        });
    }

    /// Says in the log when creates begin and cease to be refused.
    fn change<R>(&self, change: impl FnOnce(&mut Space) -> R) -> R {
        let mut space = self.space.lock();
        let was_short = space.is_short;
        let done = change(&mut space);
        let now = *space;
        drop(space);
        if now.is_short && !was_short {
            let why = now.storage_full();
            tracing::warn!(path = %self.path.display(), "creates are refused: {why}");
        } else if was_short && !now.is_short {
            let free = Size(now.free_bytes.unwrap_or(0));
            tracing::info!(path = %self.path.display(), %free, "there is space again, creates are taken");
        }
        done
    }
}

/// What the journals of all shards take. What is gone by the time it is looked at counts as nothing.
fn journal_bytes(data: &Path) -> u64 {
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let segments =
        entries(data.join("shards")).flat_map(|shard| entries(shard.path().join("journal")));
    // What is allocated: a segment is as long as it may become.
    let sizes = segments.filter_map(|segment| Some(segment.metadata().ok()?.blocks() * 512));
    sizes.sum()
}

fn keep_looking(watched: &Weak<Disk>, stopping: &CancellationToken) {
    loop {
        std::thread::sleep(LOOK_EVERY);
        match watched.upgrade() {
            Some(disk) if !stopping.is_cancelled() => disk.look(),
            _ => return,
        }
    }
}

/// Bytes for a person.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0 as f64;
        match self.0 {
            0..0x400 => write!(f, "{size} B"),
            0x400..0x10_0000 => write!(f, "{:.0} KiB", size / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", size / 1_048_576.0),
            _ => write!(f, "{:.1} GiB", size / 1_073_741_824.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::spec::TopicName;

    const RESERVE: u64 = 800;

    fn space(free: u64) -> Space {
        let mut space = Space::new(RESERVE);
        space.look(Some(free), 0);
        space
    }

    #[test]
    fn creates_stop_at_the_reserve_and_begin_again_only_a_quarter_above_it() {
        let mut space = space(RESERVE);
        for (free, is_taken) in [
            (800, true),
            (799, false),
            (800, false),
            (999, false),
            (1_000, true),
            (800, true),
        ] {
            space.look(Some(free), 0);
            assert_eq!(space.admit(0), is_taken, "{free} free");
        }
    }

    #[test]
    fn what_stands_in_the_journals_has_room_to_be_folded() {
        let mut space = space(RESERVE);
        for (free, journal, is_taken) in [(1_000, 100, true), (1_000, 101, false), (1_000, 0, true)]
        {
            space.look(Some(free), journal);
            assert_eq!(
                space.admit(0),
                is_taken,
                "{free} free, {journal} in journals"
            );
        }
        space.look(Some(u64::MAX), u64::MAX);
        assert_eq!(space.storage_full().upkeep_bytes, u64::MAX);
    }

    #[test]
    fn a_burst_between_two_looks_does_not_go_through_the_reserve() {
        let mut space = space(RESERVE + 300);
        assert!(space.admit(60) && space.admit(40));
        assert!(
            !space.admit(1),
            "the room is used up, with what folding will take"
        );
        assert!(!space.admit(0), "and stays so until the next look");
        space.look(Some(RESERVE + 10), 0);
        assert!(!space.admit(1), "it has come near the reserve");
        space.look(Some(2 * RESERVE), 0);
        assert!(space.admit(RESERVE / 3), "it was less than was counted");
    }

    #[test]
    fn before_the_first_look_and_when_the_file_system_does_not_say_creates_are_taken() {
        let mut space = Space::new(RESERVE);
        assert!(space.admit(1));
        space.look(Some(0), 0);
        assert!(!space.admit(1));
        space.look(None, 0);
        assert!(space.admit(1 << 40));
    }

    #[test]
    fn no_reserve_is_too_large_to_reckon_with() {
        let mut space = Space::new(u64::MAX);
        space.look(Some(u64::MAX - 1), 1);
        assert!(!space.admit(u64::MAX));
        assert!(space.storage_full().to_string().contains("GiB"));
    }

    #[test]
    fn a_refusal_says_what_is_free_what_is_kept_for_what_and_what_to_do() {
        let mut space = Space::new(8 << 20);
        space.look(Some(9_900 << 10), 1 << 20);
        let told = space.storage_full().to_string();
        for part in [
            "disk is full: 9.7 MiB are free",
            "10.0 MiB are kept",
            "8.0 MiB by `[store] reserve`",
            "2.0 MiB for the journals",
            "from 12.0 MiB free on",
        ] {
            assert!(told.contains(part), "{part} is missing: {told}");
        }
        assert_eq!(
            NoSpaceToStart.to_string(),
            "the disk is full: less than 256 KiB of space are free"
        );
    }

    #[test]
    fn a_real_disk_is_asked_at_once_and_a_reserve_that_is_never_met_still_lets_parts_start() {
        let data = tempfile::tempdir().expect("a directory");
        let new = NewTask::new(TopicName::parse("t").expect("a name"));
        let watch = |reserve| {
            Disk::watch(data.path(), reserve, CancellationToken::new()).expect("a thread")
        };
        let roomy = watch(0);
        assert!(roomy.status().free_bytes.is_some_and(|free| free > 0));
        assert!(roomy.admit(&new).is_ok() && !roomy.is_in_reserve());
        assert_eq!(roomy.room_to_start(), Ok(()));
        let never = watch(u64::MAX);
        let refused = never.admit(&new).expect_err("no disk has so much");
        assert_eq!(never.status().refuses, Some(refused));
        assert_eq!(never.room_to_start(), Ok(()), "what is there may end");
        assert!(never.is_in_reserve());
    }

    #[test]
    fn journals_count_by_what_they_take_not_by_how_long_they_may_become() {
        let data = tempfile::tempdir().expect("a directory");
        assert_eq!(journal_bytes(data.path()), 0);
        for shard in ["000", "001"] {
            let journal = data.path().join("shards").join(shard).join("journal");
            std::fs::create_dir_all(&journal).expect("it can be made");
            let segment = std::fs::File::create(journal.join("1.segment")).expect("a file");
            segment.set_len(2 << 20).expect("a hole");
            std::fs::write(journal.join("2.segment"), [1; 100_000]).expect("it is written");
        }
        let bytes = journal_bytes(data.path());
        assert!((200_000..400_000).contains(&bytes), "{bytes}");
    }
}
