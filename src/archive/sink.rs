//! Makes the shards of a data directory out of tasks and notes, in any order.
//!
//! ```text
//!   feeder ─┐ by slot     ┌─▶ maker 0: shards 0, 2, 4    table ──fold──▶ chunks
//!   feeder ─┼────────────▶┤
//!   feeder ─┘ 256 a time  └─▶ maker 1: shards 1, 3       table ──fold──▶ chunks
//! ```
//!
//! No journal is written but for one frame that carries the steady time: a table that has grown large is folded into
//! chunks by the store itself, as in a running shard. So the new shards are what a service would have made of these
//! tasks, at a cost of about 4 µs a task and core. Nothing counts before [`Sink::finish`] has returned, which it does
//! once all is durable.
//!
//! Memory: a table for each maker's largest shards, 32 MiB a maker, and sled's cache.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Builder;

use crate::archive::{ArchiveError, Carried, Options};
use crate::clock::SteadyMs;
use crate::ids::{ShardEpoch, ShardId, Slot, SlotMap, TaskId};
use crate::shard::snapshot::record_of;
use crate::store::chunk::{Entry, Fold, Marks, Memtable, Recent};
use crate::store::codec::decode_task;
use crate::store::local::{LocalHome, LocalOptions, LocalStore};
use crate::store::{Batch, Note, ShardStore, Tended};

/// Items that are handed over at a time.
const BATCH: usize = 256;
/// Batches that wait for one maker.
const WAITING_MAX: usize = 16;
/// All tables of a maker are folded at so many bytes together.
const TABLES_BYTES: usize = 32 * 1024 * 1024;
/// sled's cache, of all shards together; nothing is read while they are made.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;
const CACHE_BYTES_MIN: u64 = 1024 * 1024;
/// What a record takes in a table beside its value.
const RECORD_BYTES: usize = 200;

/// What is put into the shards.
#[derive(Debug)]
pub enum Item {
    /// A task.
    Task {
        /// Its id.
        id: TaskId,
        /// Its value.
        value: Bytes,
        /// The line that it came in: it may name what is there already. 0: it was there before.
        line: u64,
    },
    /// A tombstone, kept or late answer.
    Note(Note),
}

impl Item {
    fn slot(&self) -> Slot {
        match self {
            Self::Task { id, .. } => id.slot(),
            Self::Note(Note::Tombstone(it)) => Slot::of_key(it.topic.as_str(), it.key.as_str()),
            Self::Note(Note::Answer(it)) => Slot::of_hash(it.key as u64),
            Self::Note(Note::Late(it)) => it.task.slot(),
        }
    }
}

/// What becomes of a task that is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnTaken {
    /// There is none: all come from one store. Nothing is remembered.
    Impossible,
    /// It ends the work.
    Refuse,
    /// It is passed over and counted.
    Skip,
}

/// Shards that are being made. See the module's header.
pub struct Sink {
    slots: Arc<SlotMap>,
    makers: Vec<JoinHandle<Result<Carried, ArchiveError>>>,
    ways: Vec<SyncSender<Vec<Item>>>,
}

impl Sink {
    /// Begins `shards` shards under `<place>/shards`, where none are. `steady` is the latest time that what is put in
    /// knows of.
    ///
    /// # Errors
    /// When the machine gives no threads.
    pub fn begin(
        place: &Path,
        shards: u16,
        steady: SteadyMs,
        on_taken: OnTaken,
        options: &Options,
    ) -> Result<Self, ArchiveError> {
        let slots = Arc::new(SlotMap::new(shards));
        let makers = options.threads.clamp(1, usize::from(shards).max(1));
        let store = LocalOptions {
            cache_bytes: (CACHE_BYTES / u64::from(shards.max(1))).max(CACHE_BYTES_MIN),
            ..options.store.clone()
        };
        let mut sink = Self {
            slots,
            makers: Vec::new(),
            ways: Vec::new(),
        };
        for number in 0..makers {
            let (way, incoming) = sync_channel(WAITING_MAX);
            let home = LocalHome::new(place, store.clone());
            let maker = Maker {
                slots: Arc::clone(&sink.slots),
                home,
                steady,
                on_taken,
                skip_damaged: options.skip_damaged,
                carried: Carried::default(),
                shards: HashMap::new(),
                bytes: 0,
                own: (0..shards)
                    .filter(|shard| usize::from(*shard) % makers == number)
                    .map(ShardId)
                    .collect(),
            };
            let maker = std::thread::Builder::new()
                .name(format!("maker-{number}"))
                .spawn(move || maker.run(&incoming))
                .map_err(ArchiveError::io("start a thread for", place))?;
            sink.makers.push(maker);
            sink.ways.push(way);
        }
        Ok(sink)
    }

    /// A way in, for one thread.
    pub fn feeder(&self) -> Feeder {
        Feeder {
            slots: Arc::clone(&self.slots),
            ways: self.ways.clone(),
            waiting: self.ways.iter().map(|_| Vec::new()).collect(),
        }
    }

    /// Waits until all that was fed is durable; what was carried.
    ///
    /// # Errors
    /// The first thing that went wrong.
    pub fn finish(self) -> Result<Carried, ArchiveError> {
        drop(self.ways);
        let mut all = Carried::default();
        let mut failed = None;
        for maker in self.makers {
            match maker.join() {
                Ok(Ok(carried)) => {
                    all.tasks += carried.tasks;
                    all.notes += carried.notes;
                    all.skipped += carried.skipped;
                }
                Ok(Err(error)) => {
                    failed.get_or_insert(error);
                }
                Err(_) => {
                    failed.get_or_insert(ArchiveError::CutOff);
                }
            }
        }
        failed.map_or(Ok(all), Err)
    }
}

/// A way into a [`Sink`]. What it still holds is handed over by [`Feeder::flush`].
pub struct Feeder {
    slots: Arc<SlotMap>,
    ways: Vec<SyncSender<Vec<Item>>>,
    waiting: Vec<Vec<Item>>,
}

impl Feeder {
    /// Puts an item in.
    ///
    /// # Errors
    /// [`ArchiveError::CutOff`] when its maker has ended; [`Sink::finish`] says why.
    pub fn put(&mut self, item: Item) -> Result<(), ArchiveError> {
        let shard = self.slots.shard_of(item.slot());
        let maker = usize::from(shard.0) % self.ways.len();
        let waiting = &mut self.waiting[maker];
        waiting.push(item);
        match waiting.len() >= BATCH {
            true => self.hand_over(maker),
            false => Ok(()),
        }
    }

    /// Hands over what is left.
    ///
    /// # Errors
    /// As [`Feeder::put`].
    pub fn flush(&mut self) -> Result<(), ArchiveError> {
        (0..self.ways.len()).try_for_each(|maker| self.hand_over(maker))
    }

    fn hand_over(&mut self, maker: usize) -> Result<(), ArchiveError> {
        let batch = std::mem::take(&mut self.waiting[maker]);
        if batch.is_empty() {
            return Ok(());
        }
        let sent = self.ways[maker].send(batch);
        sent.map_err(|_| ArchiveError::CutOff)
    }
}

/// Makes some of the shards.
struct Maker {
    slots: Arc<SlotMap>,
    home: LocalHome,
    steady: SteadyMs,
    on_taken: OnTaken,
    skip_damaged: bool,
    carried: Carried,
    shards: HashMap<ShardId, Shard>,
    own: Vec<ShardId>,
    /// Of all its tables.
    bytes: usize,
}

impl Maker {
    fn run(mut self, incoming: &Receiver<Vec<Item>>) -> Result<Carried, ArchiveError> {
        // Each shard there is to be, also one that stays empty.
        for shard in std::mem::take(&mut self.own) {
            let made = Shard::begin(self.home.store(shard), self.steady)?;
            self.shards.insert(shard, made);
        }
        while let Ok(batch) = incoming.recv() {
            for item in batch {
                self.take(item)?;
            }
            while self.bytes >= TABLES_BYTES {
                let largest = self
                    .shards
                    .values_mut()
                    .max_by_key(|shard| shard.table.bytes);
                self.bytes -= largest.map_or(Ok(self.bytes), Shard::fold)?;
            }
        }
        for shard in self.shards.values_mut() {
            shard.fold()?;
        }
        Ok(self.carried)
    }

    fn take(&mut self, item: Item) -> Result<(), ArchiveError> {
        let owner = self.slots.shard_of(item.slot());
        let shard = self.shards.get_mut(&owner).ok_or(ArchiveError::CutOff)?;
        let before = shard.table.bytes;
        match item {
            Item::Note(note) => {
                let (key, value) = record_of(&note);
                shard.table.bytes += value.len() + RECORD_BYTES;
                shard.table.notes.insert(key, Some(value));
                self.carried.notes += 1;
            }
            Item::Task { id, value, line } => {
                let task = match decode_task(id, &value) {
                    Ok(task) => task,
                    Err(damaged) if self.skip_damaged => {
                        tracing::warn!(task = %id, %damaged, "a record that does not read back is left out");
                        return Ok(());
                    }
                    Err(damaged) => return Err(damaged.of(id).into()),
                };
                let entry = Entry::of(&task, shard.seed);
                let met = match self.on_taken {
                    OnTaken::Impossible => None,
                    _ => shard.known.meet(&entry),
                };
                match (met, self.on_taken) {
                    (Some(what), OnTaken::Refuse) if line > 0 => {
                        let what = match (what, &task.key) {
                            (What::Key, Some(key)) => {
                                format!("a live task with topic {} and key {key}", task.topic)
                            }
                            _ => format!("task {id}"),
                        };
                        return Err(ArchiveError::Taken { line, what });
                    }
                    // What was there before keeps its key, whoever else has it: no task is lost over that.
                    (Some(what), OnTaken::Skip) if line > 0 || matches!(what, What::Id) => {
                        self.carried.skipped += 1;
                        return Ok(());
                    }
                    _ => {}
                }
                shard.table.bytes += value.len() + RECORD_BYTES;
                shard.table.tasks.insert(id, Recent { entry, value });
                self.carried.tasks += 1;
            }
        }
        self.bytes += shard.table.bytes - before;
        Ok(())
    }
}

/// One shard that is being made.
struct Shard {
    store: LocalStore,
    epoch: ShardEpoch,
    seed: u64,
    table: Memtable,
    known: Known,
}

impl Shard {
    fn begin(mut store: LocalStore, steady: SteadyMs) -> Result<Self, ArchiveError> {
        let begun = store.begin()?;
        store.recover(&mut |_| {})?;
        store.commit(begun.epoch, &Batch::new(steady))?;
        Ok(Self {
            store,
            epoch: begun.epoch,
            seed: begun.seed,
            table: Memtable::default(),
            known: Known::default(),
        })
    }

    /// Makes chunks of the table, durably; how many bytes it had.
    fn fold(&mut self) -> Result<usize, ArchiveError> {
        let table = std::mem::take(&mut self.table);
        let bytes = table.bytes;
        let fold = Fold {
            table: Arc::new(table),
            marks: Marks::Changed(Vec::new()),
            drop: Vec::new(),
        };
        self.store.fold(self.epoch, fold)?;
        while !matches!(
            self.store.tend(self.epoch, usize::MAX)?,
            Tended::Folded(_) | Tended::Idle
        ) {}
        Ok(bytes)
    }
}

/// Ids and live keys that were put into a shard.
#[derive(Default)]
struct Known {
    ids: HashSet<TaskId, Xxh3Builder>,
    live_keys: HashSet<u64, Xxh3Builder>,
}

#[derive(Clone, Copy)]
enum What {
    Id,
    Key,
}

impl Known {
    /// Remembers a task, unless its id or its live key is there.
    fn meet(&mut self, entry: &Entry) -> Option<What> {
        if self.ids.contains(&entry.id) {
            return Some(What::Id);
        }
        let is_live = !entry.state.is_ended() && entry.key_hash != 0;
        if is_live && !self.live_keys.insert(entry.key_hash) {
            return Some(What::Key);
        }
        self.ids.insert(entry.id);
        None
    }
}
