//! What a shard knows of each topic: counts, rates, and the lines of due tasks that wait in it.

use std::collections::BTreeSet;

use crate::clock::{MonoMs, SteadyMs};
use crate::ids::TaskId;
use crate::metrics::{Quantiles, Rate};
use crate::shard::index::TopicNumber;
use crate::task::late::Treatment;
use crate::task::model::State;
use crate::task::spec::{ByTopic, TopicName};

/// Fewer lines than this are never looked through for idle ones.
pub(super) const LINES_MIN: usize = 64;

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
    /// Late answers that changed nothing.
    pub late_refused: u64,
    /// Late answers that ended their task.
    pub late_accepted: u64,
    /// Late answers that changed nothing, and whose work is taken back.
    pub late_compensated: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, more: Self) {
        self.created += more.created;
        self.started += more.started;
        self.succeeded += more.succeeded;
        self.dead += more.dead;
        self.cancelled += more.cancelled;
        self.late_refused += more.late_refused;
        self.late_accepted += more.late_accepted;
        self.late_compensated += more.late_compensated;
    }
}

/// What a shard knows of one topic.
#[derive(Debug)]
pub struct TopicLine {
    /// Its name.
    pub name: TopicName,
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
    /// Due pull tasks, by firing time.
    pub ready: BTreeSet<(i64, TaskId)>,
    /// When workers had its turn last, as a number that grows with each turn of any topic.
    pub turn: u64,
    /// Due tasks that the topic's pause holds back.
    pub held: BTreeSet<(i64, TaskId)>,
    /// When the topic went on after a pause, in steady time.
    pub released: Option<SteadyMs>,
    /// Tasks whose total time ran out while the topic was frozen.
    pub overtime: Vec<TaskId>,
}

impl TopicLine {
    fn new(name: TopicName, now: MonoMs) -> Self {
        Self {
            name,
            counts: [0; State::ALL.len()],
            lateness: Quantiles::default(),
            created: Rate::new(now),
            started: Rate::new(now),
            ended: Rate::new(now),
            totals: Totals::default(),
            ready: BTreeSet::new(),
            turn: 0,
            held: BTreeSet::new(),
            released: None,
            overtime: Vec::new(),
        }
    }
}

impl TopicLine {
    /// Whether there is no task, and nothing happened in the last minute.
    fn is_idle(&mut self, now: MonoMs) -> bool {
        let is_empty = self.tasks() == 0;
        let rates = [&mut self.created, &mut self.started, &mut self.ended];
        is_empty && rates.into_iter().all(|rate| rate.per_second(now) <= 0.0)
    }

    /// How many tasks it has.
    pub fn tasks(&self) -> u64 {
        self.counts.iter().sum()
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

    /// An answer came too late, and was treated so.
    pub fn count_late(&mut self, treatment: Treatment) {
        match treatment {
            Treatment::Refused => self.totals.late_refused += 1,
            Treatment::Accepted => self.totals.late_accepted += 1,
            Treatment::Compensated(_) => self.totals.late_compensated += 1,
        }
    }
}

/// The lines of all topics, by name and by number.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) by_number: Vec<Option<TopicLine>>,
    pub(super) by_name: ByTopic<TopicNumber>,
    pub(super) free: Vec<TopicNumber>,
    /// With so many lines the idle ones are dropped before the next begins.
    pub(super) lines_max: usize,
    pub(super) dropped: Totals,
}

impl Lines {
    pub(super) fn get(&self, number: TopicNumber) -> Option<&TopicLine> {
        self.by_number.get(number.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: TopicNumber) -> Option<&mut TopicLine> {
        self.by_number.get_mut(number.0 as usize)?.as_mut()
    }

    pub(super) fn number_of(&mut self, name: &TopicName, now: MonoMs) -> TopicNumber {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        if self.by_name.len() >= self.lines_max.max(LINES_MIN) {
            self.drop_idle(now);
            self.lines_max = 2 * self.by_name.len();
        }
        let line = TopicLine::new(name.clone(), now);
        let number = match self.free.pop() {
            Some(number) => {
                self.by_number[number.0 as usize] = Some(line);
                number
            }
            None => {
                self.by_number.push(Some(line));
                TopicNumber((self.by_number.len() - 1) as u32)
            }
        };
        self.by_name.insert(name.clone(), number);
        number
    }

    pub(super) fn drop_idle(&mut self, now: MonoMs) {
        for (place, slot) in self.by_number.iter_mut().enumerate() {
            if let Some(line) = slot.take_if(|line| line.is_idle(now)) {
                self.dropped += line.totals;
                self.by_name.remove(&line.name);
                self.free.push(TopicNumber(place as u32));
            }
        }
    }
}
