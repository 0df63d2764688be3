//! All tasks of a data directory, or of a running service, and their late answers, as lines of JSON: see [`task_line`].
//!
//! Topics, tombstones and kept answers are not in it; a backup has them. Tasks come in no order, late answers behind all
//! tasks of their shard.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::archive::{ArchiveError, Carried, Options, Progress, each_shard};
use crate::shard::snapshot::{Fault, Found, Snapshot};
use crate::store::codec::decode_task;
use crate::store::data_dir::DataDir;
use crate::store::{Note, RecordKey};
use crate::wire::task_line;

/// Lines are given out so many bytes at a time.
const BLOCK_BYTES: usize = 256 * 1024;

/// Takes some hundred KiB of whole lines, at least one.
pub type GiveLines<'a> = dyn Fn(Vec<u8>) -> io::Result<()> + Sync + 'a;

/// Gives each task of a directory that this process holds as a line, from a few threads.
///
/// # Errors
/// When something does not read back, after all that does was given; what `give` returns.
pub fn of_directory(
    dir: &DataDir,
    give: &GiveLines<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Carried, ArchiveError> {
    let lines = Lines::to(give, progress);
    each_shard(dir, options, |_, snapshot| lines.of(&snapshot))?;
    lines.end(options)
}

/// Gives each task of what was taken of running shards, one after the other; each is let go once it is through.
///
/// # Errors
/// As [`of_directory`].
pub fn of_snapshots(
    snapshots: Vec<Snapshot>,
    give: &GiveLines<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Carried, ArchiveError> {
    let lines = Lines::to(give, progress);
    let mut snapshots = snapshots.into_iter();
    snapshots.try_for_each(|snapshot| lines.of(&snapshot))?;
    lines.end(options)
}

/// The lines of all shards.
struct Lines<'a> {
    give: &'a GiveLines<'a>,
    progress: &'a Progress,
    exported: AtomicU64,
}

impl<'a> Lines<'a> {
    fn to(give: &'a GiveLines<'a>, progress: &'a Progress) -> Self {
        Self {
            give,
            progress,
            exported: AtomicU64::new(0),
        }
    }

    /// Those of one shard.
    fn of(&self, snapshot: &Snapshot) -> Result<(), ArchiveError> {
        self.progress.add_total(snapshot.tasks());
        let (mut block, mut tasks) = (Vec::new(), 0);
        snapshot.visit(&mut |found| {
            let (id, value) = match found {
                Found::Task(id, value) => (id, value),
                Found::Damaged(fault) => {
                    self.progress.note(fault);
                    return Ok(());
                }
            };
            self.progress.go_on()?;
            let start = block.len();
            let line = decode_task(id, &value)
                .map_err(|damaged| damaged.to_string())
                .and_then(|task| {
                    task_line::write(&task, &mut block).map_err(|error| error.to_string())
                });
            match line {
                Ok(()) => tasks += 1,
                Err(why) => {
                    block.truncate(start);
                    let place = RecordKey::Task(id).to_string();
                    self.progress.note(Fault { place, why });
                }
            }
            match block.len() >= BLOCK_BYTES {
                true => self.hand_over(&mut block, &mut tasks),
                false => Ok(()),
            }
        })?;
        let late = snapshot.notes().iter().filter_map(|note| match note {
            Note::Late(late) => Some(late),
            Note::Tombstone(_) | Note::Answer(_) => None,
        });
        for late in late {
            let start = block.len();
            if let Err(error) = task_line::write_late(late, &mut block) {
                block.truncate(start);
                let (place, why) = (RecordKey::late(late).to_string(), error.to_string());
                self.progress.note(Fault { place, why });
            }
            if block.len() >= BLOCK_BYTES {
                self.hand_over(&mut block, &mut tasks)?;
            }
        }
        self.hand_over(&mut block, &mut tasks)
    }

    fn hand_over(&self, block: &mut Vec<u8>, tasks: &mut u64) -> Result<(), ArchiveError> {
        if block.is_empty() {
            return Ok(());
        }
        let next = Vec::with_capacity(BLOCK_BYTES + 8 * 1024);
        let given = (self.give)(std::mem::replace(block, next));
        given.map_err(ArchiveError::io("write", "the output".as_ref()))?;
        self.exported.fetch_add(*tasks, Ordering::Relaxed);
        self.progress.add_done(std::mem::take(tasks));
        Ok(())
    }

    fn end(self, options: &Options) -> Result<Carried, ArchiveError> {
        self.progress.undamaged(options)?;
        Ok(Carried {
            tasks: self.exported.into_inner(),
            ..Carried::default()
        })
    }
}
