//! A table as it is built anew: from chunks, then from what the journal holds behind them.

use super::{TaskTable, cancel_record};
use crate::clock::Now;
use crate::ids::TaskId;
use crate::shard::index::{Home, Row, RowId, short_generation};
use crate::shard::place::{Place, Setting, alarms_of};
use crate::shard::shelf::ReadFor;
use crate::store::chunk::{ChunkIndex, Class, Entry as ShelfEntry, Mask};
use crate::store::codec::{Change, decode_cancel, decode_task, encode_task};
use crate::store::{RecordKey, StoreError};
use crate::task::model::State;

impl TaskTable {
    /// The seed of the store's key hashes; before anything else.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Takes in a chunk as it was stored; the alarm to be set for it.
    pub fn recover_chunk(&mut self, index: &ChunkIndex, dead: Mask, now: Now) -> Option<Setting> {
        let chunk = self.shelf.add_chunk(index, dead);
        let has_ended = index.class.has_ended();
        for (place, entry) in index.entries.iter().enumerate() {
            if dead >> place & 1 != 0 {
                continue;
            }
            let place = place as u8;
            let here = Home::Chunk(chunk, place);
            let known = self.index.find(entry.id);
            if has_ended && entry.wake_ms <= now.steady.0 {
                self.shelf.kill(chunk, place);
                if let (Class::Cancels, Some(number)) = (entry.class, known) {
                    let row = self.index.row(number);
                    self.expire(number, &row);
                }
                continue;
            }
            if entry.class == Class::Cancels {
                match known {
                    Some(number) => self.overlay(number, entry.ended_ms, here),
                    None => self.shelf.kill(chunk, place),
                }
                continue;
            }
            self.recover_row(entry, here, now);
        }
        match self.shelf.chunk(chunk)?.live() {
            0 => None,
            _ => self.alarm_of_chunk(chunk),
        }
    }

    fn overlay(&mut self, number: RowId, at_ms: i64, home: Home) {
        let row = self.index.row(number);
        if let Some(Home::Chunk(chunk, place)) = self.overlays.insert(number, home) {
            self.shelf.kill(chunk, place);
        }
        self.index.change(number, |row| {
            row.state = State::Cancelled;
            row.place = Place::AtRest;
            row.at_ms = at_ms;
            row.is_overlaid = true;
        });
        self.count(row.topic, row.state, -1);
        self.count(row.topic, State::Cancelled, 1);
    }

    /// The row of a stored record; whatever was known of the task counts no more.
    fn recover_row(&mut self, entry: &ShelfEntry, home: Home, now: Now) {
        if let Some(number) = self.index.find(entry.id) {
            let row = self.index.row(number);
            self.leave_home(number, &row);
            self.index.remove(number);
            self.count(row.topic, row.state, -1);
        }
        let topic = self.lines.number_of(&entry.topic, now.mono);
        let place = match entry.class {
            Class::Wall | Class::Steady => Place::Wheel,
            Class::InFlight => Place::InFlight,
            _ => Place::AtRest,
        };
        self.index.add(&Row {
            id: entry.id,
            key_hash: entry.key_hash,
            topic,
            state: entry.state,
            place,
            at_ms: at_of_entry(entry),
            generation: short_generation(entry.generation),
            queues_asleep: false,
            calls_back: entry.calls_back,
            home,
            is_overlaid: false,
            is_alarmed: false,
        });
        self.count(topic, entry.state, 1);
        if entry.class == Class::InFlight {
            self.in_flight.push(entry.id);
        }
    }

    /// Takes in a change as it was committed.
    ///
    /// # Errors
    /// When a task's record does not read back: the journal's own sums say that it was written like that.
    pub fn recover_change(
        &mut self,
        key: RecordKey,
        change: Change,
        now: Now,
    ) -> Result<(), StoreError> {
        let RecordKey::Task(id) = key else {
            let value = match change {
                Change::Put(value) => Some(value),
                _ => None,
            };
            self.shelf.put_note(key, value);
            return Ok(());
        };
        match change {
            Change::Put(value) => {
                let task = decode_task(id, &value).map_err(|damaged| damaged.of(id))?;
                let entry = ShelfEntry::of(&task, self.seed);
                self.recover_row(&entry, Home::Memtable, now);
                self.shelf.put(entry, value);
            }
            Change::Cancel(value) => {
                let Some(number) = self.index.find(id) else {
                    return Ok(());
                };
                let cancel = decode_cancel(id, &value).map_err(|damaged| damaged.of(id))?;
                let row = self.index.row(number);
                if row.home == Home::Memtable && !row.is_overlaid {
                    let (mut task, _) = self.decode(number, &row, ReadFor::Move)?;
                    cancel_record(&mut task, &cancel);
                    let entry = ShelfEntry::of(&task, self.seed);
                    self.recover_row(&entry, Home::Memtable, now);
                    self.shelf.put(entry, encode_task(&task));
                } else if !row.is_overlaid {
                    self.overlay(number, cancel.at.0, Home::Memtable);
                    let entry = self.entry_of_cancel(number, &cancel, row.at_ms);
                    self.shelf.put(entry, value);
                }
            }
            Change::Remove => {
                self.remove(id);
            }
        }
        Ok(())
    }

    /// All is taken in: the alarms of what stands in memory, and the tasks that were in flight.
    pub fn recovered(&mut self, now: Now) -> (Vec<Setting>, Vec<TaskId>) {
        let mut alarms = Vec::new();
        for entry in self.shelf.recent_entries() {
            let Some(number) = self.index.find(entry.id) else {
                continue;
            };
            if entry.has_more_alarms {
                let task = self.read(entry.id);
                let settings = task.map(|entry| alarms_of(&entry.task, Place::Wheel));
                alarms.extend(settings.into_iter().flatten().flatten());
                self.set_row_alarmed(number, entry.id, true);
            } else if let Some(alarm) = self.alarm_in_memory(&entry, now) {
                self.set_row_alarmed(number, entry.id, true);
                alarms.push(alarm);
            }
        }
        let mut in_flight = std::mem::take(&mut self.in_flight);
        in_flight.retain(|id| self.row(*id).is_some_and(|row| row.state.is_in_flight()));
        in_flight.sort_unstable();
        in_flight.dedup();
        (alarms, in_flight)
    }
}

fn at_of_entry(entry: &ShelfEntry) -> i64 {
    match entry.state.is_ended() {
        true => entry.ended_ms,
        false => entry.due_ms,
    }
}
