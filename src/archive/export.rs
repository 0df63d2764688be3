//! All tasks of a data directory as lines of JSON: see [`task_line`](crate::wire::task_line).
//!
//! Topics, tombstones and kept answers are not in it; a backup has them. Tasks come in no order.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::archive::{ArchiveError, Carried, Options, Progress, each_shard};
use crate::shard::snapshot::{Fault, Found};
use crate::store::RecordKey;
use crate::store::codec::decode_task;
use crate::store::data_dir::DataDir;
use crate::wire::task_line;

/// Lines are given out so many bytes at a time.
const BLOCK_BYTES: usize = 256 * 1024;

/// Gives each task as a line, some hundred KiB of whole lines at a time, from a few threads.
///
/// # Errors
/// When something does not read back, after all that does was given; what `give` returns.
pub fn export(
    dir: &DataDir,
    give: &(dyn Fn(Vec<u8>) -> io::Result<()> + Sync),
    options: &Options,
    progress: &Progress,
) -> Result<Carried, ArchiveError> {
    let exported = AtomicU64::new(0);
    let give = |block: &mut Vec<u8>, tasks: &mut u64| {
        let next = Vec::with_capacity(BLOCK_BYTES + 8 * 1024);
        give(std::mem::replace(block, next))
            .map_err(ArchiveError::io("write", "the output".as_ref()))?;
        exported.fetch_add(*tasks, Ordering::Relaxed);
        progress.add_done(std::mem::take(tasks));
        Ok::<_, ArchiveError>(())
    };
    each_shard(dir, options, |_, snapshot| {
        progress.add_total(snapshot.tasks());
        let (mut block, mut tasks) = (Vec::new(), 0);
        snapshot.visit(&mut |found| {
            let (id, value) = match found {
                Found::Task(id, value) => (id, value),
                Found::Damaged(fault) => {
                    progress.note(fault);
                    return Ok(());
                }
            };
            progress.go_on()?;
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
                    progress.note(Fault { place, why });
                }
            }
            match block.len() >= BLOCK_BYTES {
                true => give(&mut block, &mut tasks),
                false => Ok(()),
            }
        })?;
        give(&mut block, &mut tasks)
    })?;
    progress.undamaged(options)?;
    Ok(Carried {
        tasks: exported.into_inner(),
        ..Carried::default()
    })
}
