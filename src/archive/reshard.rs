//! Another number of shards, with the same tasks.
//!
//! The new shards are made beside the old ones and swapped in, so a crash leaves all of the old or all of the new (see
//! [`data_dir`](crate::store::data_dir)). Needs as much space again as the shards take.

use bytes::Bytes;

use crate::archive::sink::{Feeder, Item, OnTaken, Sink};
use crate::archive::{ArchiveError, Carried, Options, Progress, each_shard};
use crate::clock::SteadyMs;
use crate::ids::{ShardId, TaskId};
use crate::shard::snapshot::{Found, Snapshot};
use crate::store::ShardStore;
use crate::store::data_dir::DataDir;
use crate::store::local::LocalHome;

/// Gives a directory that many shards.
///
/// # Errors
/// When something does not read back, or the disk refuses; the old shards stay.
pub fn reshard(
    dir: &mut DataDir,
    shards: u16,
    options: &Options,
    progress: &Progress,
) -> Result<Carried, ArchiveError> {
    let place = dir.build()?;
    let steady = latest_steady(dir, options)?;
    let sink = Sink::begin(&place, shards, steady, OnTaken::Impossible, options)?;
    let fed = feed_all(dir, &sink, options, progress);
    match settle(fed, sink).and_then(|carried| {
        progress.undamaged(options)?;
        Ok(carried)
    }) {
        Ok(carried) => {
            dir.swap(shards)?;
            Ok(carried)
        }
        Err(error) => {
            dir.give_up()?;
            Err(error)
        }
    }
}

/// The latest steady time that any shard has committed.
pub(super) fn latest_steady(dir: &DataDir, options: &Options) -> Result<SteadyMs, ArchiveError> {
    let mut latest = SteadyMs(0);
    for shard in 0..dir.shards() {
        let home = LocalHome::new(dir.path(), options.store.clone());
        latest = latest.max(home.store(ShardId(shard)).begin()?.steady);
    }
    Ok(latest)
}

/// Feeds all that a directory holds into a sink.
pub(super) fn feed_all(
    dir: &DataDir,
    sink: &Sink,
    options: &Options,
    progress: &Progress,
) -> Result<(), ArchiveError> {
    each_shard(dir, options, |_, snapshot| {
        progress.add_total(snapshot.tasks());
        let mut feeder = sink.feeder();
        feed(&snapshot, &mut feeder, progress)?;
        feeder.flush()
    })
}

/// Feeds one shard into a sink.
pub(super) fn feed(
    snapshot: &Snapshot,
    feeder: &mut Feeder,
    progress: &Progress,
) -> Result<(), ArchiveError> {
    feed_changed(snapshot, feeder, progress, &mut |_, value| value)
}

/// The same, each task's value as `change` makes it.
pub(super) fn feed_changed(
    snapshot: &Snapshot,
    feeder: &mut Feeder,
    progress: &Progress,
    change: &mut dyn FnMut(TaskId, Bytes) -> Bytes,
) -> Result<(), ArchiveError> {
    for note in snapshot.notes() {
        feeder.put(Item::Note(note.clone()))?;
    }
    snapshot.visit(&mut |found| {
        match found {
            Found::Task(id, value) => {
                progress.go_on()?;
                progress.add_done(1);
                let value = change(id, value);
                feeder.put(Item::Task { id, value, line: 0 })?;
            }
            Found::Damaged(fault) => progress.note(fault),
        }
        Ok::<_, ArchiveError>(())
    })
}

/// What came of feeding a sink: why a maker ended comes before that it had.
pub(super) fn settle(fed: Result<(), ArchiveError>, sink: Sink) -> Result<Carried, ArchiveError> {
    let finished = sink.finish();
    match (fed, finished) {
        (Ok(()), finished) => finished,
        (Err(ArchiveError::CutOff), Err(error)) | (Err(error), _) => Err(error),
    }
}
