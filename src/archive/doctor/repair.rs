//! Rebuilds all shards of a directory from what reads back: see [`doctor`](super).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use parking_lot::Mutex;

use super::read_chunk;
use crate::archive::reshard::{feed, latest_steady, settle};
use crate::archive::sink::{Item, OnTaken, Sink};
use crate::archive::{ArchiveError, Carried, Options, Progress, each_shard, side_by_side};
use crate::clock::WallMs;
use crate::ids::{ShardId, TaskId};
use crate::shard::snapshot::Fault;
use crate::store::StoreError;
use crate::store::chunk::{ChunkIndex, Mask};
use crate::store::codec::decode_task;
use crate::store::data_dir::DataDir;
use crate::store::directory;
use crate::store::local::inspect::Inspection;

/// Where what was damaged is kept.
const ASIDE: &str = "aside";

/// What a repair did.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Tasks and notes that are there now.
    pub carried: Carried,
    /// Records that were got out of damaged chunks.
    pub salvaged: u64,
    /// Where the rest is kept; `None` when there was nothing.
    pub aside: Option<PathBuf>,
    /// What did not read back.
    pub faults: Vec<Fault>,
}

/// A damaged chunk's records that are right by their own sums.
type Salvaged = HashMap<ShardId, Vec<(TaskId, Bytes)>>;

/// Rebuilds all shards from what reads back.
///
/// # Errors
/// When a journal is damaged, or the disk refuses; the directory is as it was.
pub fn repair(
    dir: &mut DataDir,
    now: WallMs,
    options: &Options,
    progress: &Progress,
) -> Result<Repaired, ArchiveError> {
    let aside = dir
        .path()
        .join(ASIDE)
        .join(now.to_string().replace(':', ""));
    let salvaged = Mutex::new(Salvaged::new());
    side_by_side(options.threads, dir.shards().into(), |number| {
        let shard = ShardId(number as u16);
        let found = salvage(dir.path(), shard, &aside, options)?;
        salvaged.lock().insert(shard, found);
        Ok(())
    })?;
    let salvaged = salvaged.into_inner();
    let place = dir.build()?;
    let rebuilt = (|| {
        let steady = latest_steady(dir, options)?;
        // A task may be there twice when marks are lost: the newer record comes first, and counts.
        let sink = Sink::begin(&place, dir.shards(), steady, OnTaken::Skip, options)?;
        let count = Mutex::new(0);
        let fed = each_shard(dir, options, |shard, snapshot| {
            progress.add_total(snapshot.tasks());
            let mut feeder = sink.feeder();
            feed(&snapshot, &mut feeder, progress)?;
            let (cancels, _) = snapshot.cancels()?;
            for (id, value) in salvaged.get(&shard).into_iter().flatten() {
                let resolved = snapshot.resolve(*id, value.clone(), cancels.get(id));
                // Its own sum was right; a cancel's that is not is a fault that was noted.
                let Ok(Some(value)) = resolved else { continue };
                *count.lock() += 1;
                feeder.put(Item::Task {
                    id: *id,
                    value,
                    line: 0,
                })?;
            }
            feeder.flush()
        });
        let carried = settle(fed, sink)?;
        Ok::<_, ArchiveError>((carried, count.into_inner()))
    })();
    match rebuilt {
        Ok((carried, salvaged)) => {
            let shards = dir.shards();
            dir.swap(shards)?;
            Ok(Repaired {
                carried,
                salvaged,
                aside: aside.is_dir().then_some(aside),
                faults: progress.faults(),
            })
        }
        Err(error) => {
            dir.give_up()?;
            Err(error)
        }
    }
}

/// The records of a shard's damaged chunks that can still be read. The chunks are copied aside as they are.
fn salvage(
    data: &Path,
    shard: ShardId,
    aside: &Path,
    options: &Options,
) -> Result<Vec<(TaskId, Bytes)>, ArchiveError> {
    let inspection = Inspection::open(data, shard, &options.store)?;
    let masks = inspection.masks(&mut |_, _| {})?;
    let mut salvaged = Vec::new();
    for chunk in inspection.chunks()? {
        let dead = masks.get(&chunk).copied().unwrap_or_default();
        if dead == Mask::MAX {
            continue;
        }
        match read_chunk(&inspection, chunk) {
            Ok(_) => continue,
            Err(StoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let index = inspection.raw_index(chunk)?.unwrap_or_default();
        let body = match inspection.body(chunk) {
            Ok(body) => Some(body),
            Err(StoreError::Corrupt { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let name = format!("shard-{:03}-chunk-{}", shard.0, chunk.0);
        keep(aside, &format!("{name}.index"), &index)?;
        let Some(body) = body else { continue };
        keep(aside, &format!("{name}.body"), &body.bytes)?;
        let records = body.salvage();
        let ids = ChunkIndex::salvage_ids(&index, records.len());
        let live = ids.into_iter().zip(records).enumerate();
        let live = live.filter(|(place, _)| dead >> place & 1 == 0);
        salvaged.extend(
            live.map(|(_, record)| record)
                .filter(|(id, value)| decode_task(*id, value).is_ok()),
        );
    }
    Ok(salvaged)
}

fn keep(aside: &Path, name: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
    directory::make(aside).map_err(ArchiveError::io("create", aside))?;
    let path = aside.join(name);
    fs::write(&path, bytes)
        .and_then(|()| fs::File::open(&path)?.sync_all())
        .map_err(ArchiveError::io("write", &path))
}
