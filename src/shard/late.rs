//! Late answers of one shard: what is kept of them, and what the topic's policy makes of one.
//!
//! They are notes, kept in memory as in the store: bounded per task and in all, by number and by bytes, and the oldest
//! go first. One goes with its task. A task whose chunk is dropped as a whole says nothing of it, so it is looked once a
//! day whether the task of an answer is still there.
//!
//! An attempt may say one thing of each kind (that it succeeded, that it failed); the first of a kind is kept. So an
//! answer that is sent again and again costs nothing, and what compensates it is run once.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::{DurationMs, Now, WallMs};
use crate::ids::TaskId;
use crate::limits;
use crate::shard::core::ShardCore;
use crate::shard::create::{Created, Creation};
use crate::shard::place::{Alarm, AlarmClock, Setting};
use crate::store::Batch;
use crate::store::codec::late_key;
use crate::task::event::{Applied, Event, Refusal};
use crate::task::late::{Compensation, LateAnswer, LatePolicy, Treatment};
use crate::task::new_task::NewTask;
use crate::task::spec::{RawJson, TaskKey, TopicName};
use crate::task::topic::OnExisting;

/// How often it is looked whether the task of a late answer is still there.
const LOOK_EVERY: DurationMs = DurationMs::secs(24 * 3600);

/// Which late answers are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LateFilter {
    /// Of this task.
    pub task: Option<TaskId>,
    /// Of tasks of this topic.
    pub topic: Option<TopicName>,
    /// Of tasks with this key.
    pub key: Option<TaskKey>,
    /// Of this outcome.
    pub outcome: Option<&'static str>,
    /// Treated so.
    pub treatment: Option<&'static str>,
    /// That came then or later.
    pub after: Option<WallMs>,
    /// That came before.
    pub before: Option<WallMs>,
}

impl LateFilter {
    fn admits(&self, late: &LateAnswer) -> bool {
        self.task.is_none_or(|task| late.task == task)
            && self.topic.as_ref().is_none_or(|topic| late.topic == *topic)
            && (self.key.is_none() || late.key == self.key)
            && self.outcome.is_none_or(|outcome| late.outcome == outcome)
            && self
                .treatment
                .is_none_or(|treatment| late.treatment.name() == treatment)
            && self.after.is_none_or(|after| late.at >= after)
            && self.before.is_none_or(|before| late.at < before)
    }
}

/// Where a late answer stands in a list: the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LatePlace {
    /// When it came.
    pub at: WallMs,
    /// Tells apart what came in the same millisecond.
    pub key: u128,
}

impl LatePlace {
    /// The place of this one.
    pub fn of(late: &LateAnswer) -> Self {
        let at = late.at;
        let key = late_key(late);
        Self { at, key }
    }
}

/// One page of late answers, the newest first.
#[derive(Clone, Debug, Default)]
pub struct LateAsk {
    /// Which.
    pub filter: LateFilter,
    /// Behind this place.
    pub after: Option<LatePlace>,
    /// At most this many.
    pub limit: usize,
}

/// Late answers in the order of a list, and whether there are more behind them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatePage {
    /// At most as many as were asked for, and about [`limits::PAGE_SEARCH_BYTES_MAX`].
    pub items: Vec<LateAnswer>,
    /// Behind the last of them.
    pub has_more: bool,
    bytes: usize,
}

impl LatePage {
    /// Takes one more; else there are more than it has room for.
    fn take(&mut self, late: LateAnswer, limit: usize) -> bool {
        self.has_more = self.items.len() >= limit || self.bytes >= limits::PAGE_SEARCH_BYTES_MAX;
        if !self.has_more {
            self.bytes += late.bytes();
            self.items.push(late);
        }
        !self.has_more
    }

    /// One page of those of all shards. What a shard has behind its own page is not known, so nothing from there on is
    /// in it.
    pub fn merged(pages: Vec<Self>, limit: usize) -> Self {
        let ends = pages.iter().filter(|page| page.has_more);
        let end = ends.filter_map(|page| page.items.last()).map(LatePlace::of);
        let end = end.max();
        let items = pages.into_iter().flat_map(|page| page.items);
        let mut items: Vec<_> = items.map(|late| (LatePlace::of(&late), late)).collect();
        items.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
        let mut merged = Self::default();
        for (place, late) in items {
            if end.is_some_and(|end| place < end) || !merged.take(late, limit) {
                break;
            }
        }
        merged.has_more |= end.is_some();
        merged
    }
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
struct Room {
    per_task: usize,
    answers: usize,
    bytes: usize,
}

/// The late answers of one shard. See the module's header.
#[derive(Debug)]
pub struct LateAnswers {
    room: Room,
    kept: HashMap<u128, LateAnswer>,
    by_age: BTreeSet<LatePlace>,
    by_task: BTreeSet<(TaskId, LatePlace)>,
    bytes: usize,
    dirty: HashSet<u128>,
}

impl Default for LateAnswers {
    fn default() -> Self {
        Self::with(Room {
            per_task: limits::LATE_ANSWERS_PER_TASK_MAX,
            answers: limits::LATE_ANSWERS_MAX,
            bytes: limits::LATE_ANSWERS_BYTES_MAX,
        })
    }
}

impl LateAnswers {
    fn with(room: Room) -> Self {
        Self {
            room,
            kept: HashMap::new(),
            by_age: BTreeSet::new(),
            by_task: BTreeSet::new(),
            bytes: 0,
            dirty: HashSet::new(),
        }
    }

    /// Takes in one as it was stored; it is to be looked after then.
    pub fn adopt(&mut self, late: LateAnswer) -> Setting {
        let place = LatePlace::of(&late);
        self.take_out(place.key);
        self.by_age.insert(place);
        self.by_task.insert((late.task, place));
        self.bytes += late.bytes();
        let look_at = late.at.after(LOOK_EVERY);
        self.kept.insert(place.key, late);
        look_after(place.key, look_at)
    }

    /// All of them, in no order.
    pub fn all(&self) -> impl Iterator<Item = &LateAnswer> {
        self.kept.values()
    }

    /// Whether the attempt has said so before.
    fn has(&self, late: &LateAnswer) -> bool {
        self.kept.contains_key(&late_key(late))
    }

    /// Keeps one from the next commit on; it is to be looked after then.
    fn keep(&mut self, late: LateAnswer) -> Setting {
        let (task, key) = (late.task, late_key(&late));
        let setting = self.adopt(late);
        self.dirty.insert(key);
        let too_many = self
            .places_of(task)
            .count()
            .saturating_sub(self.room.per_task);
        let oldest: Vec<_> = self.places_of(task).take(too_many).collect();
        for place in oldest {
            self.forget(place.key);
        }
        while (self.kept.len() > self.room.answers || self.bytes > self.room.bytes)
            && let Some(oldest) = self.by_age.first().copied()
        {
            self.forget(oldest.key);
        }
        setting
    }

    /// Forgets one from the next commit on.
    fn forget(&mut self, key: u128) {
        if self.take_out(key).is_some() {
            self.dirty.insert(key);
        }
    }

    /// Takes one out that is not stored any more.
    pub fn take_out(&mut self, key: u128) -> Option<LateAnswer> {
        let late = self.kept.remove(&key)?;
        let place = LatePlace::of(&late);
        self.by_age.remove(&place);
        self.by_task.remove(&(late.task, place));
        self.bytes -= late.bytes();
        Some(late)
    }

    /// Forgets those of a task that is gone.
    pub fn forget_task(&mut self, task: TaskId) {
        let places: Vec<_> = self.places_of(task).collect();
        for place in places {
            self.forget(place.key);
        }
    }

    fn places_of(&self, task: TaskId) -> impl DoubleEndedIterator<Item = LatePlace> + use<'_> {
        let place = |at, key| (task, LatePlace { at, key });
        let (first, last) = (
            place(WallMs(i64::MIN), u128::MIN),
            place(WallMs(i64::MAX), u128::MAX),
        );
        self.by_task.range(first..=last).map(|(_, place)| *place)
    }

    /// Those of a task, the oldest first.
    pub fn of_task(&self, task: TaskId) -> Vec<LateAnswer> {
        let found = self.places_of(task).map(|place| &self.kept[&place.key]);
        found.cloned().collect()
    }

    /// One page.
    pub fn page(&self, ask: &LateAsk) -> LatePage {
        let last = LatePlace {
            at: WallMs(i64::MAX),
            key: u128::MAX,
        };
        let end = ask.after.unwrap_or(last);
        let mut page = LatePage::default();
        let places: &mut dyn Iterator<Item = LatePlace> = match ask.filter.task {
            Some(task) => &mut self.places_of(task).rev(),
            None => &mut self.by_age.range(..=end).rev().copied(),
        };
        for place in places.filter(|place| ask.after.is_none_or(|after| *place < after)) {
            let late = &self.kept[&place.key];
            if ask.filter.admits(late) && !page.take(late.clone(), ask.limit) {
                break;
            }
        }
        page
    }

    /// Writes what changed since the last call.
    pub fn write_changes(&mut self, batch: &mut Batch) {
        for key in self.dirty.drain() {
            match self.kept.get(&key) {
                Some(late) => batch.put_late(late),
                None => batch.remove_late(key),
            }
        }
    }
}

fn look_after(key: u128, at: WallMs) -> Setting {
    (AlarmClock::Wall, at.0, Alarm::Late(key.to_be_bytes()))
}

impl ShardCore {
    /// Lets an answer for an attempt happen to its task. One that comes late is kept and treated as the topic says;
    /// whoever gave it is told only when it is committed. `None` when there is no such task.
    pub fn answer(
        &mut self,
        id: TaskId,
        event: Event,
        by: &str,
        now: Now,
    ) -> Option<Result<Applied, Refusal>> {
        let task = &self.table.wake(id)?.task;
        let Some(mut late) = LateAnswer::of(task, &event, by, now.wall) else {
            return self.change(id, event, by, now);
        };
        let can_finish = late.can_finish(task);
        let topic = std::sync::Arc::clone(self.book.get(&late.topic));
        match &topic.settings.late_answers {
            LatePolicy::AcceptIfUnfinished if can_finish => {
                let done = self.change(id, late.accepted(), by, now);
                if matches!(done, Some(Ok(_))) {
                    late.treatment = Treatment::Accepted;
                }
                self.keep_late(late, now);
                return done;
            }
            _ if self.notes.late.has(&late) => {}
            LatePolicy::Compensate(compensation) if late.succeeded_too_late() => {
                late.treatment = self.compensate(compensation, &late, now);
                self.keep_late(late, now);
            }
            _ => self.keep_late(late, now),
        }
        self.change(id, event, by, now)
    }

    fn keep_late(&mut self, late: LateAnswer, now: Now) {
        let line = self.table.topic_mut(&late.topic, now.mono);
        line.count_late(late.treatment);
        self.note_bytes(late.bytes());
        let alarm = self.notes.late.keep(late);
        self.set_alarm(alarm);
    }

    /// Creates the task that takes back what a late attempt has done. Its id follows from the attempt, so even if the
    /// late answer itself had to make room, there is one such task at a time. It is in this shard, for it is part of
    /// the same commit.
    fn compensate(&mut self, how: &Compensation, late: &LateAnswer, now: Now) -> Treatment {
        let Some(entry) = self.table.read(late.task) else {
            return Treatment::Refused;
        };
        let token = late.token.0.to_be_bytes();
        let tail = xxh3_64(&[&late.task.to_bytes()[..], &token].concat());
        let id = TaskId::with_tail(late.task.slot(), entry.task.created_at, tail);
        let new = NewTask {
            action: how.action.clone(),
            payload: Some(payload_of(late, entry.task.spec.payload.as_ref())),
            ..NewTask::new(how.topic.clone())
        };
        let creation = Creation {
            id,
            spec: new.spec(self.book.get(&how.topic)),
            topic: new.topic,
            key: None,
            when: None,
            on_existing: OnExisting::Return,
            request: None,
            is_skipped: false,
        };
        match self.create(creation, "late answer", now) {
            Created::New(view) => Treatment::Compensated(view.task.id),
            // Without a key there is nothing in its way.
            _ => Treatment::Refused,
        }
    }

    /// A late answer goes with its task.
    pub(super) fn look_after_late(&mut self, key: [u8; 16], now: Now) {
        let key = u128::from_be_bytes(key);
        let Some(task) = self.notes.late.kept.get(&key).map(|late| late.task) else {
            return;
        };
        match self.table.row(task) {
            Some(_) => self.set_alarm(look_after(key, now.wall.after(LOOK_EVERY))),
            None => self.notes.late.forget(key),
        }
    }
}

/// What a compensation is told: the late answer, and the payload of the task that it is of unless both are too large
/// for one.
fn payload_of(late: &LateAnswer, payload: Option<&RawJson>) -> RawJson {
    let text = |of: Option<&RawJson>| of.map_or("null", RawJson::as_str).to_owned();
    let head = serde_json::json!({
        "task": late.task.to_string(), "topic": late.topic.as_str(),
        "key": late.key.as_ref().map(TaskKey::as_str),
        "attempt": late.attempt.map(|attempt| attempt.0), "token": late.token.0,
    })
    .to_string();
    // The rest as it came, byte for byte.
    let head = head.strip_suffix('}').unwrap_or_default();
    let mut json = format!("{head},\"result\":{}", text(late.result.as_ref()));
    let payload = text(payload);
    let field = ",\"payload\":";
    if json.len() + field.len() + payload.len() < limits::PAYLOAD_BYTES_MAX {
        json.push_str(field);
        json.push_str(&payload);
    }
    json.push('}');
    RawJson(Bytes::from(json))
}

#[cfg(test)]
mod tests;
