//! Looks through a data directory at rest, and rebuilds it from what is still readable.
//!
//! ```text
//!  look     each shard: journal, chunks (index, body, each record), marks, notes, each task in one place ─▶ findings
//!  repair   what is damaged, as it stands ─▶ aside/     what reads back ─▶ new/shards ─▶ swapped in
//! ```
//!
//! Looking writes nothing of ours. A repair is a reshard to the same number of shards that leaves out what does not read
//! back, after it has tried each record of a damaged chunk by itself: a record's own sum covers its task's id, so what is
//! got out of one is right or is not taken. What was left out stays in `<data>/aside/`, byte for byte.
//!
//! A journal that is damaged in its midst has lost what was acknowledged there. A repair takes what can be read of the
//! damaged commits, change by change, and all that stands behind them; it pauses each task of which the latest change is
//! known to be lost, for a person to decide, and says which. What was in there that nobody can name it can't hold: copies
//! of the journals (`[backup] journal_dir`) have it, and a restore with them loses nothing. Where the opening of a segment is
//! damaged, or one is missing, it can't be told what counts: restore a backup.
//!
//! Memory: about 50 bytes a task of the shards that are looked at side by side.

mod repair;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use parking_lot::Mutex;

use crate::archive::{ArchiveError, Options, Progress, side_by_side};
use crate::ids::{ShardId, SlotMap, TaskId};
use crate::store::chunk::{ChunkBody, ChunkId, ChunkIndex, Class, Entry, Mask};
use crate::store::codec::{decode_cancel, decode_note, decode_task};
use crate::store::data_dir::DataDir;
use crate::store::database::Database;
use crate::store::local::inspect::{Committed, Inspection};
use crate::store::{Batch, Change, RecordKey, StoreError};

const CACHE_BYTES: u64 = 4 * 1024 * 1024;
const FLUSH_EVERY_MS: u64 = 1_000;

pub use repair::{Repaired, repair};

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// As a crash leaves it; the next start sets it right.
    Note,
    /// Something is lost or wrong.
    Error,
}

impl Severity {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Error => "error",
        }
    }
}

/// Something that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// File and offset, key or chunk.
    pub place: String,
    /// What is the matter.
    pub what: String,
    /// What to do.
    pub then: &'static str,
}

const REPAIR: &str = "`--repair` keeps what can still be read of it and sets the rest aside";
const REPAIR_JOURNAL: &str = "restore a backup with copies of the journals, which have it; without them `--repair` keeps all that can be read, pauses the tasks that are named here, and sets the segment aside";
const RESTORE: &str = "restore a backup";
const NOTHING: &str = "nothing: the next start sets it right";

/// What one shard holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ShardFigures {
    /// Its number.
    pub shard: u16,
    /// Tasks.
    pub tasks: u64,
    /// Of those, tasks that have not ended.
    pub live: u64,
    /// Chunks.
    pub chunks: u64,
    /// Records of them that are dead.
    pub dead_records: u64,
    /// Batches in the journal that are in no chunk yet.
    pub journal_batches: u64,
    /// Tombstones, kept and late answers.
    pub notes: u64,
}

/// What was found.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Each shard that could be opened.
    pub shards: Vec<ShardFigures>,
    /// Topics and audit lines.
    pub registry_entries: u64,
    /// All that is the matter.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether `--repair` helps against some of it.
    pub fn is_repairable(&self) -> bool {
        let helps = [REPAIR, REPAIR_JOURNAL];
        self.findings
            .iter()
            .any(|found| helps.contains(&found.then))
    }

    /// Whether nothing is lost or wrong.
    pub fn is_healthy(&self) -> bool {
        let findings = &self.findings;
        findings
            .iter()
            .all(|found| found.severity == Severity::Note)
    }
}

/// Looks through a directory that this process holds.
///
/// # Errors
/// When it was stopped.
pub fn look(dir: &DataDir, options: &Options, progress: &Progress) -> Result<Report, ArchiveError> {
    let report = Mutex::new(Report::default());
    look_at_layout(dir, &mut report.lock());
    side_by_side(options.threads, dir.shards().into(), |number| {
        let shard = ShardId(number as u16);
        let mut look = Look::new(dir, shard, progress);
        let looked = look.at_shard(options);
        if let Err(ArchiveError::Stopped) = looked {
            return looked;
        }
        if let Err(error) = looked {
            let place = dir.path().join("shards").join(format!("{number:03}"));
            look.error(place.display(), error, RESTORE);
        }
        let mut report = report.lock();
        report
            .shards
            .extend(look.was_opened.then_some(look.figures));
        report.findings.append(&mut look.findings);
        Ok(())
    })?;
    let mut report = report.into_inner();
    look_at_registry(dir.path(), &mut report);
    report.shards.sort_by_key(|figures| figures.shard);
    // The same store gives the same report, whichever shard was through first.
    let order = |found: &Finding| (found.severity == Severity::Note, found.place.clone());
    report.findings.sort_by_cached_key(order);
    Ok(report)
}

fn look_at_layout(dir: &DataDir, report: &mut Report) {
    let entries = fs::read_dir(dir.path().join("shards"));
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u16>().ok());
        if number.is_none_or(|number| number >= dir.shards()) {
            report.findings.push(Finding {
                severity: Severity::Error,
                place: entry.path().display().to_string(),
                what: format!("is none of the {} shards that FORMAT names", dir.shards()),
                then: "move it away if it is not yours; if FORMAT is wrong, restore a backup",
            });
        }
    }
}

fn look_at_registry(data: &Path, report: &mut Report) {
    let path = data.join("registry");
    if !path.is_dir() {
        return;
    }
    let mut broken = Vec::new();
    let entries = &mut report.registry_entries;
    let read = Database::open(&path, CACHE_BYTES, FLUSH_EVERY_MS).and_then(|db| {
        super::backup::entries_of(&db, &mut |tree, key, value| {
            let tree = String::from_utf8_lossy(tree);
            let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(value).is_ok();
            if matches!(&*tree, "topics" | "audit") {
                *entries += 1;
                if !is_json() {
                    broken.push(format!("{tree} {}", String::from_utf8_lossy(key)));
                }
            }
            Ok(())
        })
    });
    let told = broken
        .into_iter()
        .map(|entry| (entry, "is not what was written".to_owned()));
    let told = told.chain(
        read.err()
            .map(|error| (path.display().to_string(), error.to_string())),
    );
    report.findings.extend(told.map(|(place, what)| Finding {
        severity: Severity::Error,
        place: format!("registry: {place}"),
        what,
        then: "restore a backup, or move the registry away: topics are then to be declared anew",
    }));
}

/// One shard that is looked at.
struct Look<'a> {
    dir: &'a DataDir,
    shard: ShardId,
    slots: SlotMap,
    progress: &'a Progress,
    figures: ShardFigures,
    was_opened: bool,
    findings: Vec<Finding>,
    /// Tasks with a record in a chunk.
    whole: Vec<TaskId>,
    /// Tasks with a cancel in a chunk.
    cancelled: HashSet<TaskId>,
    /// Live keys.
    keys: Vec<(u64, TaskId)>,
    /// What the journal says of tasks: the state, or that it is gone.
    newer: HashMap<TaskId, Option<Entry>>,
    /// Cancelled by the journal alone.
    cancelled_newer: HashSet<TaskId>,
}

impl<'a> Look<'a> {
    fn new(dir: &'a DataDir, shard: ShardId, progress: &'a Progress) -> Self {
        Self {
            dir,
            shard,
            slots: SlotMap::new(dir.shards()),
            progress,
            figures: ShardFigures {
                shard: shard.0,
                ..ShardFigures::default()
            },
            was_opened: false,
            findings: Vec::new(),
            whole: Vec::new(),
            cancelled: HashSet::new(),
            keys: Vec::new(),
            newer: HashMap::new(),
            cancelled_newer: HashSet::new(),
        }
    }

    fn error(
        &mut self,
        place: impl std::fmt::Display,
        what: impl std::fmt::Display,
        then: &'static str,
    ) {
        self.findings.push(Finding {
            severity: Severity::Error,
            place: format!("shard {}: {place}", self.shard),
            what: what.to_string(),
            then,
        });
    }

    fn note(&mut self, place: impl std::fmt::Display, what: impl std::fmt::Display) {
        self.findings.push(Finding {
            severity: Severity::Note,
            place: format!("shard {}: {place}", self.shard),
            what: what.to_string(),
            then: NOTHING,
        });
    }

    fn at_shard(&mut self, options: &Options) -> Result<(), ArchiveError> {
        if !Inspection::is_there(self.dir.path(), self.shard) {
            return Err(ArchiveError::DataDir(
                crate::store::data_dir::DataDirError::Absent {
                    path: self.dir.path().join("shards"),
                },
            ));
        }
        let shard = Inspection::open(self.dir.path(), self.shard, &options.store)?;
        let seed = shard.seed()?;
        self.was_opened = true;
        self.at_journal(&shard, seed);
        let mut faults = Vec::new();
        let masks = shard.masks(&mut |place, why| faults.push((place, why)))?;
        for (place, why) in faults {
            self.error(place, why, REPAIR);
        }
        for chunk in shard.chunks()? {
            self.progress.go_on()?;
            let dead = masks.get(&chunk).copied().unwrap_or_default();
            if dead == Mask::MAX {
                continue;
            }
            self.figures.chunks += 1;
            self.at_chunk(&shard, chunk, dead, seed)?;
        }
        self.at_notes(&shard)?;
        let left_behind = shard.left_behind()?;
        if left_behind > 0 {
            let what = format!("{left_behind} entries of a fold that was cut off");
            self.note("the database", what);
        }
        self.at_places();
        Ok(())
    }

    fn at_journal(&mut self, shard: &Inspection, seed: u64) {
        let mut wrong = Vec::new();
        let found = shard.journal(&mut |committed| match committed {
            Committed::Batch(batch) => self.take_batch(batch, seed, &mut wrong),
            Committed::Lost(lost) => {
                self.error(&lost.place, lost.words(), REPAIR_JOURNAL);
                for batch in lost.readable {
                    self.take_batch(batch, seed, &mut wrong);
                }
            }
        });
        for (place, what) in wrong {
            self.error(place, what, RESTORE);
        }
        match found {
            Ok(found) => {
                self.figures.journal_batches = found.batches;
                if let Some((file, offset)) = found.torn {
                    let place = format!("{} at byte {offset}", file.display());
                    self.note(place, "a torn tail, of which nobody was told");
                }
            }
            Err(StoreError::Corrupt { place, why }) => self.error(place, why, RESTORE),
            Err(error) => self.error("the journal", error, RESTORE),
        }
    }

    fn take_batch(&mut self, mut batch: Batch, seed: u64, wrong: &mut Vec<(String, String)>) {
        for (key, change) in batch.changes() {
            let place = || format!("{key} in the journal");
            let id = match (key, &change) {
                (RecordKey::Task(id), _) => id,
                (note, Change::Put(value)) => {
                    if let Err(damaged) = decode_note(note, value) {
                        wrong.push((place(), damaged.to_string()));
                    }
                    continue;
                }
                _ => continue,
            };
            match change {
                Change::Put(value) => match decode_task(id, &value) {
                    Ok(task) => {
                        self.cancelled_newer.remove(&id);
                        self.newer.insert(id, Some(Entry::of(&task, seed)));
                    }
                    Err(damaged) => wrong.push((place(), damaged.to_string())),
                },
                Change::Cancel(value) => match decode_cancel(id, &value) {
                    Ok(_) if matches!(self.newer.get(&id), Some(None)) => {}
                    Ok(_) => {
                        self.cancelled_newer.insert(id);
                    }
                    Err(damaged) => wrong.push((place(), damaged.to_string())),
                },
                Change::Remove => {
                    self.newer.insert(id, None);
                }
            }
        }
    }

    fn at_chunk(
        &mut self,
        shard: &Inspection,
        chunk: ChunkId,
        dead: Mask,
        seed: u64,
    ) -> Result<(), StoreError> {
        let place = shard.place_of(chunk);
        let (index, body) = match read_chunk(shard, chunk) {
            Ok(read) => read,
            Err(StoreError::Corrupt { why, .. }) => {
                self.error(place, why, REPAIR);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.figures.dead_records += u64::from(dead.count_ones());
        for (at, entry) in index.entries.iter().enumerate() {
            let Some(value) = body.record(at).filter(|_| dead >> at & 1 == 0) else {
                continue;
            };
            self.progress.add_done(1);
            if let Some(why) = record_flaw(entry, &value, seed) {
                self.error(format!("{place}, record {at}"), why, REPAIR);
            }
            if self.slots.shard_of(entry.id.slot()) != self.shard {
                let what = format!("task {} belongs to another shard", entry.id);
                self.error(&place, what, REPAIR);
            }
            if entry.class == Class::Cancels {
                self.cancelled.insert(entry.id);
                continue;
            }
            self.whole.push(entry.id);
            let is_newer = self.newer.contains_key(&entry.id);
            if !is_newer && !entry.state.is_ended() && !self.cancelled_newer.contains(&entry.id) {
                self.keys.push((entry.key_hash, entry.id));
            }
        }
        Ok(())
    }

    fn at_notes(&mut self, shard: &Inspection) -> Result<(), StoreError> {
        let (mut faults, mut notes) = (Vec::new(), 0);
        shard.notes(&mut |_, note| match note {
            Ok(_) => notes += 1,
            Err(fault) => faults.push(fault),
        })?;
        self.figures.notes = notes;
        for (place, why) in faults {
            self.error(place, why, REPAIR);
        }
        Ok(())
    }

    /// Each task stands in one place, and no two live ones have one key.
    fn at_places(&mut self) {
        self.whole.sort_unstable();
        let twice: Vec<TaskId> = (self.whole.windows(2))
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
            .collect();
        for id in twice {
            self.error(format!("task {id}"), "has two records that count", REPAIR);
        }
        let alone: Vec<TaskId> = (self.cancelled.iter())
            .filter(|id| self.whole.binary_search(id).is_err() && !self.newer.contains_key(id))
            .copied()
            .collect();
        for id in alone {
            self.error(
                format!("task {id}"),
                "is cancelled, and has no record",
                REPAIR,
            );
        }
        let newer: Vec<Option<Entry>> = self.newer.values().cloned().collect();
        let replaced = self.newer.keys();
        let replaced = replaced.filter(|id| self.whole.binary_search(id).is_ok());
        let replaced = replaced.count() as u64;
        let added = newer.iter().flatten().count() as u64;
        self.figures.tasks = self.whole.len() as u64 - replaced + added;
        for entry in newer.iter().flatten() {
            if !entry.state.is_ended() && !self.cancelled_newer.contains(&entry.id) {
                self.keys.push((entry.key_hash, entry.id));
            }
        }
        // The entry of a task with a cancel beside it still says that it lives.
        let beside = |id: &TaskId| self.cancelled.contains(id) && !self.newer.contains_key(id);
        self.keys.retain(|(_, id)| !beside(id));
        self.figures.live = self.keys.len() as u64;
        self.keys.sort_unstable();
        let pairs = self.keys.windows(2);
        let same = pairs.filter(|pair| pair[0].0 != 0 && pair[0].0 == pair[1].0);
        let same: Vec<TaskId> = same.map(|pair| pair[1].1).collect();
        for id in same {
            let place = format!("task {id}");
            self.error(
                place,
                "another live task has its key",
                "cancel one of them: `duetime task list --topic … --key …` shows both",
            );
        }
    }
}

/// Index and body of a chunk, if both read back and agree.
fn read_chunk(shard: &Inspection, chunk: ChunkId) -> Result<(ChunkIndex, ChunkBody), StoreError> {
    let corrupt = |why: String| StoreError::Corrupt {
        place: shard.place_of(chunk),
        why,
    };
    let index = shard.index(chunk)?;
    let packed = shard.body(chunk)?;
    let body = packed.unpack();
    let body = body.map_err(|damaged| corrupt(format!("its body: {damaged}")))?;
    if index.entries.len() != body.len() || index.packed_bytes as usize != packed.bytes.len() {
        return Err(corrupt("its index and its body do not agree".to_owned()));
    }
    Ok((index, body))
}

/// What is wrong with a record, or with what its entry says of it.
fn record_flaw(entry: &Entry, value: &[u8], seed: u64) -> Option<String> {
    if entry.class == Class::Cancels {
        return decode_cancel(entry.id, value)
            .err()
            .map(|why| why.to_string());
    }
    match decode_task(entry.id, value) {
        Ok(task) if Entry::of(&task, seed) == *entry => None,
        Ok(_) => Some(format!("task {}: its entry says something else", entry.id)),
        Err(why) => Some(format!("task {}: {why}", entry.id)),
    }
}
