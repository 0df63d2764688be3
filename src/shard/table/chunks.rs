//! Where records go when they are folded, and how they come back: chunks are placed, opened ahead of their time, and moved
//! from when they are mostly dead; alarms too far ahead wait until they are near.

use bytes::Bytes;

use super::{TaskTable, lane_of};
use crate::clock::Now;
use crate::shard::index::{Home, Row, RowId};
use crate::shard::place::{Alarm, AlarmClock, Place, Setting, alarm_of_entry, alarms_of};
use crate::shard::shelf::ReadFor;
use crate::store::StoreError;
use crate::store::chunk::{CHUNK_BYTES, ChunkId, Class, Entry as ShelfEntry, Mask};

/// Folded chunks that are placed in one step, at least.
const PLACED_PER_STEP: usize = 6;
/// Chunks that are mostly dead and moved from in one step.
const MOVED_PER_STEP: usize = 2;

impl TaskTable {
    /// Finds the records of a few folded chunks there, of twice as many bytes as the step has written; the alarms to be
    /// taken back, and those to be set.
    pub fn place_some(&mut self, bytes: usize, now: Now) -> (Vec<Setting>, Vec<Setting>) {
        let (mut unset, mut set) = (Vec::new(), Vec::new());
        for _ in 0..PLACED_PER_STEP.max(2 * bytes / CHUNK_BYTES) {
            let Some(index) = self.shelf.next_to_place() else {
                break;
            };
            let chunk = self.shelf.add_chunk(&index, 0);
            // As a whole or not at all: one that is left half empty is moved from and folded once more, for ever.
            let is_soon = index.entries.iter().all(|entry| self.is_soon(entry, now));
            let stays = is_soon && self.shelf.has_room_to_stay();
            for (place, entry) in index.entries.iter().enumerate() {
                self.place(chunk, place as u8, entry, stays, &mut unset);
            }
            if self.shelf.chunk(chunk).is_some_and(|meta| meta.live() > 0) {
                set.extend(self.alarm_of_chunk(chunk));
            }
        }
        (unset, set)
    }

    fn place(
        &mut self,
        chunk: u32,
        place: u8,
        entry: &ShelfEntry,
        stays: bool,
        unset: &mut Vec<Setting>,
    ) {
        let id = entry.id;
        let number = self.index.find(id).filter(|_| !self.shelf.is_recent(id));
        let here = Home::Chunk(chunk, place);
        let Some(number) = number else {
            return self.shelf.kill(chunk, place);
        };
        let row = self.index.row(number);
        if entry.class == Class::Cancels {
            if !row.is_overlaid || self.overlays.get(&number) != Some(&Home::Memtable) {
                return self.shelf.kill(chunk, place);
            }
            self.overlays.insert(number, here);
        } else {
            // What is dirty in this very step has left already.
            if row.home != Home::Memtable || self.cancels.contains_key(&id) {
                return self.shelf.kill(chunk, place);
            }
            if stays && row.is_alarmed && matches!(row.place, Place::Wheel | Place::Queued) {
                return self.stay(chunk, place, entry);
            }
            self.index.change(number, |row| row.home = here);
        }
        let stands = matches!(row.place, Place::Wheel | Place::AtRest);
        // What is awake may have an alarm more than its record tells.
        let is_asleep = !self.awake.contains_key(&id);
        if row.is_alarmed && stands && is_asleep && !entry.has_more_alarms {
            unset.extend(alarm_of_entry(entry.class, entry.wake_ms, id));
            self.set_row_alarmed(number, entry.id, false);
        }
    }

    /// Whether a task that waits would be read back at once from a chunk that it is put into.
    fn is_soon(&self, entry: &ShelfEntry, now: Now) -> bool {
        let clock_ms = match entry.class {
            Class::Wall => now.wall.0,
            _ => now.steady.0,
        };
        let ahead = self.options.look_ahead.0 as i64;
        entry.class.waits() && entry.wake_ms.saturating_sub(ahead) <= clock_ms
    }

    /// A task that is due in a moment stays in memory, as if it had been moved there from its new chunk.
    fn stay(&mut self, chunk: u32, place: u8, entry: &ShelfEntry) {
        if let Some(recent) = self.shelf.recent(entry.id).cloned() {
            self.shelf.kill(chunk, place);
            self.shelf.stay(recent.entry, recent.value);
        }
    }

    /// When a chunk matters next.
    pub(super) fn alarm_of_chunk(&self, chunk: u32) -> Option<Setting> {
        let meta = self.shelf.chunk(chunk)?;
        let (first_ms, last_ms) = meta.wake_ms;
        let ahead = self.options.look_ahead.0 as i64;
        let alarm = Alarm::Chunk(meta.id);
        match meta.class {
            Class::Wall => Some((AlarmClock::Wall, first_ms.saturating_sub(ahead), alarm)),
            Class::Steady => Some((AlarmClock::Steady, first_ms.saturating_sub(ahead), alarm)),
            class if class.has_ended() => Some((AlarmClock::Steady, last_ms, alarm)),
            _ => None,
        }
    }

    /// When the first of a chunk's tasks that wait rings; when it expires, if they have ended.
    pub fn first_of_chunk(&self, id: ChunkId) -> Option<i64> {
        let meta = self.shelf.chunk(self.shelf.place_of(id)?)?;
        Some(match meta.class.waits() {
            true => meta.wake_ms.0,
            false => meta.wake_ms.1,
        })
    }

    /// A chunk matters now: the alarms of those that wait in it are to be set; those that have ended are gone.
    /// Whoever is cancelled in it gets a record of its own, since this one is at hand.
    pub fn open_chunk(&mut self, chunk: u32, now: Now) -> Vec<Setting> {
        let Some(meta) = self.shelf.chunk(chunk).cloned() else {
            return Vec::new();
        };
        let read = match meta.class.has_ended() {
            true => self.shelf.index_of(chunk, ReadFor::Ahead),
            false => self
                .shelf
                .open(chunk)
                .and_then(|()| self.shelf.index_of(chunk, ReadFor::Ahead)),
        };
        let index = match read {
            Ok(index) => index,
            Err(error) => {
                self.set_fault(error);
                return Vec::new();
            }
        };
        let mut alarms = Vec::new();
        for (place, entry) in index.entries.iter().enumerate() {
            let Some((number, row)) = self.still_at(chunk, place as u8, entry, &meta.dead) else {
                continue;
            };
            if meta.class.has_ended() {
                self.expire(number, &row);
            } else if row.is_overlaid {
                alarms.extend(self.own_record(number, &row, now));
            } else if !row.is_alarmed && row.place == Place::Wheel {
                if entry.has_more_alarms {
                    let task = self.read(entry.id);
                    let settings = task.map(|entry| alarms_of(&entry.task, Place::Wheel));
                    alarms.extend(settings.into_iter().flatten().flatten());
                } else {
                    alarms.extend(alarm_of_entry(entry.class, entry.wake_ms, entry.id));
                }
                self.set_row_alarmed(number, entry.id, true);
            }
        }
        alarms
    }

    /// The row of a chunk's record, if that is still its home.
    pub(super) fn still_at(
        &self,
        chunk: u32,
        place: u8,
        entry: &ShelfEntry,
        dead: &Mask,
    ) -> Option<(RowId, Row)> {
        if dead >> place & 1 != 0 {
            return None;
        }
        let number = self.index.find(entry.id)?;
        let row = self.index.row(number);
        let home = match entry.class {
            Class::Cancels => *self.overlays.get(&number)?,
            _ => row.home,
        };
        (home == Home::Chunk(chunk, place)).then_some((number, row))
    }

    /// The retention of an ended task is over. Nothing is written: a start would find the same.
    pub(super) fn expire(&mut self, number: RowId, row: &Row) {
        self.leave_home(number, row);
        self.shelf.forget_recent(row.id);
        self.awake.remove(&row.id);
        self.index.remove(number);
        self.count(row.topic, row.state, -1);
    }

    /// Makes one record of a task and the cancel that stands beside it, once that is written: what is moved is taken
    /// for committed, and a cancel of this very step would never be.
    fn own_record(&mut self, number: RowId, row: &Row, now: Now) -> Option<Setting> {
        if self.cancels.contains_key(&row.id) {
            return None;
        }
        let (task, _) = match self.decode(number, row, ReadFor::Move) {
            Ok(read) => read,
            Err(error) => {
                self.note_fault(row.id, error);
                return None;
            }
        };
        let value = crate::store::codec::encode_task(&task);
        let entry = ShelfEntry::of(&task, self.seed);
        self.move_to_memory(number, row, entry, value, now)
    }

    fn move_to_memory(
        &mut self,
        number: RowId,
        row: &Row,
        entry: ShelfEntry,
        value: Bytes,
        now: Now,
    ) -> Option<Setting> {
        self.leave_home(number, row);
        let alarm = match (row.is_alarmed, row.place) {
            (false, Place::Wheel | Place::AtRest) => self.alarm_in_memory(&entry, now),
            _ => None,
        };
        self.index.change(number, |row| {
            row.home = Home::Memtable;
            row.is_overlaid = false;
        });
        if alarm.is_some() {
            self.set_row_alarmed(number, row.id, true);
        }
        self.shelf.put(entry, value);
        alarm
    }

    /// Moves what lives in a few chunks that are mostly dead; the alarms to be set.
    pub fn move_some(&mut self, now: Now) -> Vec<Setting> {
        let mut alarms = Vec::new();
        for _ in 0..MOVED_PER_STEP {
            let Some(chunk) = self.shelf.next_sparse() else {
                break;
            };
            let Some(meta) = self.shelf.chunk(chunk).cloned() else {
                continue;
            };
            let index = match self.shelf.index_of(chunk, ReadFor::Move) {
                Ok(index) => index,
                Err(StoreError::Corrupt { .. }) => continue,
                Err(error) => {
                    self.fault = Some(error);
                    break;
                }
            };
            for (place, entry) in index.entries.iter().enumerate() {
                let Some((number, row)) = self.still_at(chunk, place as u8, entry, &meta.dead)
                else {
                    continue;
                };
                if entry.class == Class::Cancels {
                    // The record that it stands beside is elsewhere; only the cancel moves.
                    match self.shelf.value(chunk, place as u8, ReadFor::Move) {
                        Ok(value) => {
                            self.shelf.kill(chunk, place as u8);
                            self.overlays.insert(number, Home::Memtable);
                            let alarm = self.alarm_in_memory(entry, now);
                            let is_alarmed = alarm.is_some();
                            self.set_row_alarmed(number, entry.id, is_alarmed);
                            alarms.extend(alarm);
                            self.shelf.put(entry.clone(), value);
                        }
                        Err(error) => self.note_fault(entry.id, error),
                    }
                } else if row.is_overlaid {
                    alarms.extend(self.own_record(number, &row, now));
                } else if entry.has_more_alarms && !row.is_alarmed {
                    // Rare: its alarms need the task. It is left where it is.
                } else {
                    match self.shelf.value(chunk, place as u8, ReadFor::Move) {
                        Ok(value) => {
                            let alarm =
                                self.move_to_memory(number, &row, entry.clone(), value, now);
                            alarms.extend(alarm);
                        }
                        Err(error) => self.note_fault(entry.id, error),
                    }
                }
            }
        }
        alarms
    }

    /// Milliseconds until alarms of records in memory have to be set that were too far ahead.
    pub fn far_in_ms(&self, now: Now) -> Option<i64> {
        let ahead = self.options.look_ahead.0 as i64;
        let lanes = [AlarmClock::Wall, AlarmClock::Steady].into_iter();
        let left = lanes.filter_map(|clock| {
            let (lane, clock_ms) = lane_of(clock, now)?;
            let far_ms = self.far_ms[lane];
            let left = far_ms.saturating_sub(ahead).saturating_sub(clock_ms);
            (far_ms != i64::MAX).then_some(left)
        });
        left.min()
    }

    /// Alarms of records in memory whose time has come nearer than it was when they were put there.
    pub fn ring_far(&mut self, now: Now) -> Vec<Setting> {
        if self.far_in_ms(now).is_none_or(|left| left > 0) {
            return Vec::new();
        }
        self.far_ms = [i64::MAX; 2];
        let mut alarms = Vec::new();
        for entry in self.shelf.recent_entries() {
            let Some(number) = self.index.find(entry.id) else {
                continue;
            };
            let row = self.index.row(number);
            let is_here = match entry.class {
                Class::Cancels => self.overlays.get(&number) == Some(&Home::Memtable),
                _ => row.home == Home::Memtable && !self.awake.contains_key(&entry.id),
            };
            if !is_here || row.is_alarmed || entry.has_more_alarms {
                continue;
            }
            if let Some(alarm) = self.alarm_in_memory(&entry, now) {
                self.set_row_alarmed(number, entry.id, true);
                alarms.push(alarm);
            }
        }
        alarms
    }
}
