//! Rebuilds all shards of a directory from what reads back: see [`doctor`](super).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use parking_lot::Mutex;

use super::read_chunk;
use crate::archive::reshard::{feed_changed, latest_steady, settle};
use crate::archive::sink::{Item, OnTaken, Sink};
use crate::archive::{ArchiveError, Carried, Options, Progress, each_shard, side_by_side};
use crate::clock::{Now, WallMs};
use crate::ids::{ShardId, TaskId};
use crate::shard::snapshot::Fault;
use crate::store::chunk::{ChunkIndex, Mask};
use crate::store::codec::{decode_task, encode_task};
use crate::store::data_dir::DataDir;
use crate::store::directory;
use crate::store::local::LocalOptions;
use crate::store::local::inspect::{Committed, Inspection};
use crate::store::{Change, RecordKey, StoreError};
use crate::task::event::{Applied, Event};
use crate::task::model::PauseClock;
use crate::task::transition::{Context, Retention, apply};

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
    /// Tasks that were paused, since the latest change of each is lost.
    pub held: Vec<TaskId>,
    /// What did not read back.
    pub faults: Vec<Fault>,
}

/// What was got out of a shard before it is read as a whole.
#[derive(Default)]
struct Salvaged {
    /// A damaged chunk's records that are right by their own sums.
    records: Vec<(TaskId, Bytes)>,
    /// Tasks of which the journal has lost the latest change.
    doubtful: HashSet<TaskId>,
}

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
    let options = &Options {
        store: LocalOptions {
            salvage: true,
            ..options.store.clone()
        },
        ..options.clone()
    };
    let salvaged = Mutex::new(HashMap::new());
    side_by_side(options.threads, dir.shards().into(), |number| {
        let shard = ShardId(number as u16);
        let found = salvage(dir.path(), shard, &aside, options, progress)?;
        salvaged.lock().insert(shard, found);
        Ok(())
    })?;
    let salvaged = salvaged.into_inner();
    let place = dir.build()?;
    let rebuilt = (|| {
        let steady = latest_steady(dir, options)?;
        // A task may be there twice when marks are lost: the newer record comes first, and counts.
        let sink = Sink::begin(&place, dir.shards(), steady, OnTaken::Skip, options)?;
        let (count, held) = (Mutex::new(0), Mutex::new(Vec::new()));
        let nothing = Salvaged::default();
        let fed = each_shard(dir, options, |shard, snapshot| {
            progress.add_total(snapshot.tasks());
            let salvaged = salvaged.get(&shard).unwrap_or(&nothing);
            let mut feeder = sink.feeder();
            let time = Now {
                wall: now,
                steady: snapshot.steady(),
                ..Now::default()
            };
            let mut hold = |id: TaskId, value: Bytes| {
                let paused = salvaged
                    .doubtful
                    .contains(&id)
                    .then(|| paused(id, &value, time));
                let Some(paused) = paused.flatten() else {
                    return value;
                };
                held.lock().push(id);
                paused
            };
            feed_changed(&snapshot, &mut feeder, progress, &mut hold)?;
            let (cancels, _) = snapshot.cancels()?;
            for (id, value) in &salvaged.records {
                let resolved = snapshot.resolve(*id, value.clone(), cancels.get(id));
                // Its own sum was right; a cancel's that is not is a fault that was noted.
                let Ok(Some(value)) = resolved else { continue };
                *count.lock() += 1;
                let value = hold(*id, value);
                feeder.put(Item::Task {
                    id: *id,
                    value,
                    line: 0,
                })?;
            }
            feeder.flush()
        });
        let carried = settle(fed, sink)?;
        Ok::<_, ArchiveError>((carried, count.into_inner(), held.into_inner()))
    })();
    match rebuilt {
        Ok((carried, salvaged, mut held)) => {
            held.sort_unstable();
            let shards = dir.shards();
            dir.swap(shards)?;
            Ok(Repaired {
                carried,
                salvaged,
                aside: aside.is_dir().then_some(aside),
                held,
                faults: progress.faults(),
            })
        }
        Err(error) => {
            dir.give_up()?;
            Err(error)
        }
    }
}

/// A task that waits, paused: what is lost may have ended it. `None` of one in another state, which does not start by
/// itself, or which the next start settles as after a crash.
fn paused(id: TaskId, value: &[u8], now: Now) -> Option<Bytes> {
    let mut task = decode_task(id, value).ok()?;
    let pause = Event::Pause {
        clock: PauseClock::Keep,
    };
    let ctx = Context {
        now,
        retention: Retention::default(),
        random: 0.0,
        by: "doctor",
    };
    let applied = apply(&mut task, pause, &ctx);
    matches!(applied, Ok(Applied::Changed)).then(|| encode_task(&task))
}

/// The records of a shard's damaged chunks that can still be read, and the tasks that its journal leaves in doubt. What is
/// damaged is copied aside as it is.
fn salvage(
    data: &Path,
    shard: ShardId,
    aside: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Salvaged, ArchiveError> {
    let inspection = Inspection::open(data, shard, &options.store)?;
    let doubtful = in_doubt(&inspection, shard, aside, progress)?;
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
    Ok(Salvaged {
        records: salvaged,
        doubtful,
    })
}

/// Tasks of which the latest change is lost, as far as the journal still names them.
fn in_doubt(
    shard: &Inspection,
    number: ShardId,
    aside: &Path,
    progress: &Progress,
) -> Result<HashSet<TaskId>, ArchiveError> {
    let (mut doubtful, mut damaged) = (HashSet::new(), BTreeSet::new());
    shard.journal(&mut |committed| match committed {
        Committed::Batch(mut batch) => {
            for (key, change) in batch.changes() {
                if let (RecordKey::Task(id), Change::Put(_) | Change::Remove) = (key, change) {
                    doubtful.remove(&id);
                }
            }
        }
        Committed::Lost(lost) => {
            progress.note(Fault {
                place: lost.place.clone(),
                why: lost.words(),
            });
            doubtful.extend(lost.doubtful.iter().filter_map(|key| match key {
                RecordKey::Task(id) => Some(*id),
                _ => None,
            }));
            damaged.insert(lost.file);
        }
    })?;
    for file in damaged {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::read(&file).map_err(ArchiveError::io("read", &file))?;
        keep(aside, &format!("shard-{:03}-{name}", number.0), &bytes)?;
    }
    Ok(doubtful)
}

fn keep(aside: &Path, name: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
    directory::make(aside).map_err(ArchiveError::io("create", aside))?;
    let path = aside.join(name);
    fs::write(&path, bytes)
        .and_then(|()| fs::File::open(&path)?.sync_all())
        .map_err(ArchiveError::io("write", &path))
}
