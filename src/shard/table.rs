//! All tasks of a shard, and the orders in which they are looked for: by key, by due time, by end, by topic.
//!
//! This is the plain form: whole tasks in memory. The table keeps its indexes in step by itself; whoever changes
//! a task does it through [`TaskTable::change`].
//!
//! A topic has a line from its first task until it has no task and nothing has happened in it for a minute; idle
//! lines are looked for when their number has doubled, so that looking costs nothing per task. What was counted in
//! them stays counted, for the shard as a whole.

use std::collections::{BTreeSet, HashMap};

use xxhash_rust::xxh3::Xxh3Builder;

use crate::clock::{MonoMs, WallMs};
use crate::ids::TaskId;
use crate::metrics::{Quantiles, Rate};
use crate::shard::place::Place;
use crate::task::model::{State, Task};
use crate::task::spec::{TaskKey, TopicName};

/// A task and its place.
#[derive(Debug)]
pub struct Entry {
    /// The task.
    pub task: Task,
    /// Where it stands.
    pub place: Place,
}

/// Who has a key: at most one live task, and those that ended, the latest last.
#[derive(Default, Debug)]
struct KeyHolders {
    live: Option<TaskId>,
    ended: Vec<(WallMs, TaskId)>,
}

impl KeyHolders {
    fn forget_ended(&mut self, at: WallMs, id: TaskId) {
        let first = self.ended.partition_point(|(earlier, _)| *earlier < at);
        let same = self.ended[first..].iter();
        let place = same
            .take_while(|(ended, _)| *ended == at)
            .position(|(_, ended)| *ended == id);
        if let Some(place) = place {
            self.ended.remove(first + place);
        }
    }
}

/// Counts that only grow.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Created tasks.
    pub created: u64,
    /// Started attempts.
    pub started: u64,
    /// Tasks that ended as succeeded.
    pub succeeded: u64,
    /// Tasks that ended as dead.
    pub dead: u64,
    /// Tasks that ended as cancelled.
    pub cancelled: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, more: Self) {
        self.created += more.created;
        self.started += more.started;
        self.succeeded += more.succeeded;
        self.dead += more.dead;
        self.cancelled += more.cancelled;
    }
}

/// What a shard knows of one topic.
#[derive(Debug)]
pub struct TopicLine {
    /// Tasks by state, in the order of [`State::ALL`].
    pub counts: [u64; State::ALL.len()],
    /// How late attempts started.
    pub lateness: Quantiles,
    /// Creates.
    pub created: Rate,
    /// Started attempts.
    pub started: Rate,
    /// Ends.
    pub ended: Rate,
    /// What has happened in this topic since the shard's start.
    pub totals: Totals,
    by_due: BTreeSet<(WallMs, TaskId)>,
    /// Due pull tasks, by firing time.
    pub ready: BTreeSet<(i64, TaskId)>,
    /// Due tasks that the topic's pause holds back.
    pub held: BTreeSet<(i64, TaskId)>,
    /// Tasks whose total time ran out while the topic was frozen.
    pub overtime: Vec<TaskId>,
}

impl TopicLine {
    fn new(now: MonoMs) -> Self {
        Self {
            counts: [0; State::ALL.len()],
            lateness: Quantiles::default(),
            created: Rate::new(now),
            started: Rate::new(now),
            ended: Rate::new(now),
            totals: Totals::default(),
            by_due: BTreeSet::new(),
            ready: BTreeSet::new(),
            held: BTreeSet::new(),
            overtime: Vec::new(),
        }
    }
}

impl TopicLine {
    /// Whether there is no task, and nothing happened in the last minute.
    fn is_idle(&mut self, now: MonoMs) -> bool {
        let rates = [&mut self.created, &mut self.started, &mut self.ended];
        self.by_due.is_empty() && rates.into_iter().all(|rate| rate.per_second(now) <= 0.0)
    }

    /// A task was created.
    pub fn count_created(&mut self, now: MonoMs) {
        self.created.add(1, now);
        self.totals.created += 1;
    }

    /// An attempt started, so much later than its time.
    pub fn count_started(&mut self, lateness_ms: i64, now: MonoMs) {
        self.started.add(1, now);
        self.totals.started += 1;
        self.lateness.add(lateness_ms);
    }

    /// A task ended in this state.
    pub fn count_ended(&mut self, state: State, now: MonoMs) {
        self.ended.add(1, now);
        match state {
            State::Succeeded => self.totals.succeeded += 1,
            State::Dead => self.totals.dead += 1,
            _ => self.totals.cancelled += 1,
        }
    }
}

/// Fewer lines than this are never looked through for idle ones.
const LINES_MIN: usize = 64;

type Hashed<K, V> = HashMap<K, V, Xxh3Builder>;

/// The tasks of a shard.
#[derive(Debug, Default)]
pub struct TaskTable {
    tasks: Hashed<TaskId, Entry>,
    keys: Hashed<(TopicName, TaskKey), KeyHolders>,
    topics: Hashed<TopicName, TopicLine>,
    /// With so many lines the idle ones are dropped before the next begins.
    lines_max: usize,
    dropped: Totals,
    by_due: BTreeSet<(WallMs, TaskId)>,
    by_end: BTreeSet<(WallMs, TaskId)>,
}

/// What the indexes know of a task.
#[derive(Clone, Copy, PartialEq)]
struct Indexed {
    state: State,
    due: WallMs,
    ended: Option<WallMs>,
}

impl Indexed {
    fn of(task: &Task) -> Self {
        Self {
            state: task.state,
            due: task.due.at,
            ended: task.ended_at,
        }
    }
}

impl TaskTable {
    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// One entry.
    pub fn get(&self, id: TaskId) -> Option<&Entry> {
        self.tasks.get(&id)
    }

    /// The live task with this key.
    pub fn live(&self, topic: &TopicName, key: &TaskKey) -> Option<TaskId> {
        self.holders(topic, key)?.live
    }

    /// The live task with this key, else the one that ended last.
    pub fn latest(&self, topic: &TopicName, key: &TaskKey) -> Option<TaskId> {
        let holders = self.holders(topic, key)?;
        holders.live.or(holders.ended.last().map(|(_, id)| *id))
    }

    fn holders(&self, topic: &TopicName, key: &TaskKey) -> Option<&KeyHolders> {
        self.keys.get(&(topic.clone(), key.clone()))
    }

    /// What is known of a topic.
    pub fn topic(&self, name: &TopicName) -> Option<&TopicLine> {
        self.topics.get(name)
    }

    /// What is known of a topic; a line for it begins here.
    pub fn topic_mut(&mut self, name: &TopicName, now: MonoMs) -> &mut TopicLine {
        if !self.topics.contains_key(name) {
            if self.topics.len() >= self.lines_max.max(LINES_MIN) {
                self.drop_idle_topics(now);
                self.lines_max = 2 * self.topics.len();
            }
            self.topics.insert(name.clone(), TopicLine::new(now));
        }
        self.topics.get_mut(name).expect("the line was made above")
    }

    /// Drops the lines of topics in which there is nothing and nothing happens.
    pub fn drop_idle_topics(&mut self, now: MonoMs) {
        let dropped = &mut self.dropped;
        self.topics.retain(|_, line| {
            let is_idle = line.is_idle(now);
            if is_idle {
                *dropped += line.totals;
            }
            !is_idle
        });
    }

    /// What had happened in topics whose lines were dropped.
    pub fn dropped_totals(&self) -> Totals {
        self.dropped
    }

    /// All topics, in no order.
    pub fn topics_mut(&mut self) -> impl Iterator<Item = (&TopicName, &mut TopicLine)> {
        self.topics.iter_mut()
    }

    /// Adds a task.
    pub fn insert(&mut self, task: Task, place: Place, now: MonoMs) {
        let id = task.id;
        let indexed = Indexed::of(&task);
        let (topic, key) = (task.topic.clone(), task.key.clone());
        self.tasks.insert(id, Entry { task, place });
        self.index(id, &topic, key.as_ref(), indexed, now);
    }

    /// Changes a task and brings the indexes in step; `None` when there is no such task.
    pub fn change<R>(
        &mut self,
        id: TaskId,
        now: MonoMs,
        f: impl FnOnce(&mut Entry) -> R,
    ) -> Option<R> {
        let entry = self.tasks.get_mut(&id)?;
        let before = Indexed::of(&entry.task);
        let answer = f(entry);
        let after = Indexed::of(&entry.task);
        if before != after {
            let (topic, key) = (entry.task.topic.clone(), entry.task.key.clone());
            self.unindex(id, &topic, key.as_ref(), before, now);
            self.index(id, &topic, key.as_ref(), after, now);
        }
        Some(answer)
    }

    /// Takes a task out.
    pub fn remove(&mut self, id: TaskId, now: MonoMs) -> Option<Entry> {
        let entry = self.tasks.remove(&id)?;
        let task = &entry.task;
        self.unindex(id, &task.topic, task.key.as_ref(), Indexed::of(task), now);
        Some(entry)
    }

    fn index(
        &mut self,
        id: TaskId,
        topic: &TopicName,
        key: Option<&TaskKey>,
        is: Indexed,
        now: MonoMs,
    ) {
        self.by_due.insert((is.due, id));
        if let Some(ended) = is.ended {
            self.by_end.insert((ended, id));
        }
        if let Some(key) = key {
            let holders = self.keys.entry((topic.clone(), key.clone())).or_default();
            match is.ended {
                Some(at) => {
                    // Of two that end in the same millisecond, the one that ends later is the latest.
                    let place = holders.ended.partition_point(|(earlier, _)| *earlier <= at);
                    holders.ended.insert(place, (at, id));
                }
                None => holders.live = Some(id),
            }
        }
        let line = self.topic_mut(topic, now);
        line.by_due.insert((is.due, id));
        line.counts[is.state.index()] += 1;
    }

    fn unindex(
        &mut self,
        id: TaskId,
        topic: &TopicName,
        key: Option<&TaskKey>,
        was: Indexed,
        now: MonoMs,
    ) {
        self.by_due.remove(&(was.due, id));
        if let Some(ended) = was.ended {
            self.by_end.remove(&(ended, id));
        }
        if let Some(key) = key {
            let named = (topic.clone(), key.clone());
            if let Some(holders) = self.keys.get_mut(&named) {
                match was.ended {
                    Some(at) => holders.forget_ended(at, id),
                    None => holders.live = holders.live.filter(|live| *live != id),
                }
                if holders.live.is_none() && holders.ended.is_empty() {
                    self.keys.remove(&named);
                }
            }
        }
        let line = self.topic_mut(topic, now);
        line.by_due.remove(&(was.due, id));
        line.counts[was.state.index()] -= 1;
    }

    /// Ids by due time, of one topic or of all.
    pub fn ids_by_due(&self, topic: Option<&TopicName>) -> Option<&BTreeSet<(WallMs, TaskId)>> {
        match topic {
            Some(name) => self.topics.get(name).map(|line| &line.by_due),
            None => Some(&self.by_due),
        }
    }

    /// Ids of ended tasks, by their end.
    pub fn ids_by_end(&self) -> &BTreeSet<(WallMs, TaskId)> {
        &self.by_end
    }

    /// All ids of a topic, by due time.
    pub fn ids_of_topic(&self, name: &TopicName) -> Vec<TaskId> {
        self.topics
            .get(name)
            .map(|line| line.by_due.iter().map(|(_, id)| *id).collect())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fixtures::{at, task};

    /// A task of `topic`, created and then ended at `ms`, in no time.
    fn come_and_go(table: &mut TaskTable, topic: &str, ms: i64) {
        let now = at(ms);
        let task = task().topic(topic).build(now);
        let (id, name) = (task.id, task.topic.clone());
        table.topic_mut(&name, now.mono).count_created(now.mono);
        table.insert(task, Place::Wheel, now.mono);
        let line = table.topic_mut(&name, now.mono);
        line.count_started(3, now.mono);
        line.count_ended(State::Dead, now.mono);
        assert!(table.remove(id, now.mono).is_some());
    }

    fn created(table: &mut TaskTable) -> u64 {
        let lines = table.topics_mut().map(|(_, line)| line.totals.created);
        lines.sum::<u64>() + table.dropped_totals().created
    }

    #[test]
    fn an_idle_topic_is_dropped_and_what_was_counted_stays_counted() {
        let mut table = TaskTable::default();
        let stays = task().topic("stays").build(at(0));
        table.insert(stays, Place::Wheel, at(0).mono);
        come_and_go(&mut table, "goes", 0);
        table.drop_idle_topics(at(59_000).mono);
        assert_eq!(table.topics.len(), 2, "it has rates of the last minute");
        table.drop_idle_topics(at(61_000).mono);
        let left: Vec<&str> = table.topics.keys().map(TopicName::as_str).collect();
        assert_eq!(left, ["stays"]);
        let gone = table.dropped_totals();
        assert_eq!((gone.created, gone.started, gone.dead), (1, 1, 1));
    }

    #[test]
    fn topics_that_come_and_go_do_not_add_up() {
        let mut table = TaskTable::default();
        for number in 0..1_000 {
            come_and_go(&mut table, &format!("topic-{number}"), 10_000 * number);
        }
        assert!(
            table.topics.len() <= 2 * LINES_MIN,
            "{}",
            table.topics.len()
        );
        assert_eq!(created(&mut table), 1_000);
    }

    #[test]
    fn the_latest_holder_of_a_key_is_found_after_others_have_gone() {
        let mut table = TaskTable::default();
        let mono = at(0).mono;
        let mut ids = Vec::new();
        for ended_ms in [5, 1, 5, 5, 9] {
            let mut task = task().key("k").build(at(0));
            task.state = State::Cancelled;
            task.ended_at = Some(at(ended_ms).wall);
            ids.push(task.id);
            table.insert(task, Place::AtRest, mono);
        }
        let probe = task().key("k").build(at(0));
        let (topic, key) = (probe.topic.clone(), probe.key.clone().expect("it has one"));
        let latest = |table: &TaskTable| table.latest(&topic, &key);
        for (gone, next) in [
            (4, Some(3)),
            (2, Some(3)),
            (3, Some(0)),
            (0, Some(1)),
            (1, None),
        ] {
            assert!(table.remove(ids[gone], mono).is_some());
            assert_eq!(latest(&table), next.map(|place: usize| ids[place]));
        }
        // A live one leaves those that ended alone.
        let live = probe.id;
        table.insert(probe, Place::Wheel, mono);
        assert_eq!(latest(&table), Some(live));
        assert!(table.remove(live, mono).is_some());
        assert!(table.keys.is_empty());
    }
}
