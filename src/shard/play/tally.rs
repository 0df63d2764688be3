//! What a play has come to: events in order, counts by bucket and topic, peaks.

use std::collections::BTreeMap;

use crate::clock::{DurationMs, WallMs};
use crate::ids::{ById, IdSet, TaskId};
use crate::shard::core::Happened;
use crate::task::model::{DeadReason, State, WaitingFor};
use crate::task::spec::{StageName, TaskKey, TopicName};

/// Most pairs of bucket and topic that are counted.
const BUCKETS_MAX: usize = 20_000;

/// What an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A first attempt, or the end of what needs none.
    Fire,
    /// The first attempt of a later stage.
    Stage,
    /// Another attempt.
    Retry,
    /// A question: of a poll, or whether something was done.
    Question,
    /// It is called off, or a stage of it is passed over.
    Skip,
    /// Its time is over.
    Expire,
    /// It is given up.
    Dead,
    /// It is paused for a person.
    Park,
}

impl What {
    /// The word in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fire => "fire",
            Self::Stage => "stage",
            Self::Retry => "retry",
            Self::Question => "question",
            Self::Skip => "skip",
            Self::Expire => "expire",
            Self::Dead => "dead",
            Self::Park => "park",
        }
    }
}

/// One thing that would happen.
#[derive(Clone, PartialEq, Debug)]
pub struct PlayedEvent {
    /// When.
    pub at: WallMs,
    /// The task's topic.
    pub topic: TopicName,
    /// Its key.
    pub key: Option<TaskKey>,
    /// Its id, if it is a stored one.
    pub id: Option<TaskId>,
    /// What.
    pub what: What,
    /// In which stage.
    pub stage: Option<StageName>,
    /// Which attempt of the stage, from 1; 0 before the first.
    pub attempt: u32,
    /// When that was due.
    pub due: WallMs,
    /// Why, where that is not plain.
    pub why: Option<String>,
}

/// What fires in one bucket of time, of one topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bucket {
    /// First attempts.
    pub fires: u64,
    /// Others.
    pub retries: u64,
    /// Questions of polls and verifications.
    pub questions: u64,
}

/// Counts of a whole play, from where it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlayedCounts {
    /// Stored tasks that took part.
    pub stored: u64,
    /// Tasks that were given.
    pub given: u64,
    /// Tasks that schedules made.
    pub occurrences: u64,
    /// First attempts.
    pub fires: u64,
    /// Others.
    pub retries: u64,
    /// Questions.
    pub questions: u64,
    /// Called off, or a stage passed over.
    pub skipped: u64,
    /// Out of time.
    pub expired: u64,
    /// Given up for another reason.
    pub dead: u64,
    /// Paused for a person.
    pub parked: u64,
    /// Ended as done.
    pub succeeded: u64,
}

/// A highest value, and when it was reached first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peak {
    /// When.
    pub at: WallMs,
    /// How much.
    pub value: u64,
}

fn raise(peak: &mut Option<Peak>, at: WallMs, value: u64) {
    if peak.is_none_or(|peak| value > peak.value) {
        *peak = Some(Peak { at, value });
    }
}

/// Most of what there was at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peaks {
    /// Attempts and questions that started in one bucket, over all topics.
    pub starts: Option<Peak>,
    /// Attempts under way.
    pub running: Option<Peak>,
    /// How much later than it was due something started, in milliseconds.
    pub late_ms: Option<Peak>,
}

/// Why a play ended before its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutOff {
    /// More changes of tasks than are played.
    Changes,
    /// More buckets than are counted.
    Buckets,
    /// It took too long to work out.
    Time,
    /// It took too much memory.
    Memory,
    /// Nobody waits for it any more.
    Unwanted,
}

impl CutOff {
    /// The word in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Changes => "changes",
            Self::Buckets => "buckets",
            Self::Time => "time",
            Self::Memory => "memory",
            Self::Unwanted => "unwanted",
        }
    }
}

/// A given task that could not be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotCreated {
    /// Its place among those that were given.
    pub place: usize,
    /// Why.
    pub why: String,
}

/// What would happen.
#[derive(Clone, PartialEq, Debug)]
pub struct Played {
    /// From when it is told.
    pub from: WallMs,
    /// Until when.
    pub until: WallMs,
    /// Whether, when and why it ended before that.
    pub cut_off: Option<(WallMs, CutOff)>,
    /// Width of a bucket.
    pub bucket: DurationMs,
    /// By time, then topic: the bucket's beginning, and what it counts.
    pub buckets: Vec<(WallMs, TopicName, Bucket)>,
    /// In order.
    pub events: Vec<PlayedEvent>,
    /// There were more than are listed.
    pub is_truncated: bool,
    /// All of it.
    pub counts: PlayedCounts,
    /// The most at a time.
    pub peaks: Peaks,
    /// Given tasks that could not be created.
    pub refused: Vec<NotCreated>,
    /// What chance followed from.
    pub seed: u64,
}

/// Counts while it is played.
#[derive(Debug)]
pub struct Tally {
    from: WallMs,
    bucket: DurationMs,
    events_max: usize,
    buckets: BTreeMap<(i64, TopicName), Bucket>,
    events: Vec<PlayedEvent>,
    is_truncated: bool,
    /// The counts so far.
    pub counts: PlayedCounts,
    peaks: Peaks,
    running: u64,
    /// What they wait for that are handed out and have not started.
    asking: ById<WaitingFor>,
    stored: IdSet,
    /// Changes in all.
    pub changes: u64,
}

impl Tally {
    /// Of what happens from an instant on.
    pub fn new(from: WallMs, bucket: DurationMs, events_max: usize) -> Self {
        Self {
            from,
            bucket,
            events_max,
            buckets: BTreeMap::new(),
            events: Vec::new(),
            is_truncated: false,
            counts: PlayedCounts::default(),
            peaks: Peaks::default(),
            running: 0,
            asking: ById::default(),
            stored: IdSet::default(),
            changes: 0,
        }
    }

    /// A stored task takes part.
    pub fn note_stored(&mut self, id: TaskId) {
        self.stored.insert(id);
        self.counts.stored += 1;
    }

    /// An attempt is under way when the play begins.
    pub fn note_running(&mut self) {
        self.running += 1;
    }

    /// Whether there are more buckets than are counted.
    pub fn is_full(&self) -> bool {
        self.buckets.len() > BUCKETS_MAX
    }

    /// Takes in what has happened.
    pub fn take(&mut self, happened: &Happened) {
        self.changes += 1;
        let (from, to) = (&happened.from, &happened.to);
        match (from.state == State::Running, to.state == State::Running) {
            (false, true) => self.running += 1,
            (true, false) => self.running = self.running.saturating_sub(1),
            _ => {}
        }
        if happened.verb == "due" && to.state == State::Dispatched {
            // Once it has started, nothing tells a question of a poll from its first.
            match from.waiting_for {
                Some(asks @ (WaitingFor::Poll | WaitingFor::Verify | WaitingFor::Guard)) => {
                    self.asking.insert(happened.task, asks)
                }
                _ => self.asking.remove(&happened.task),
            };
            return;
        }
        let asks = match happened.verb {
            "start" => self.asking.remove(&happened.task),
            _ => None,
        };
        if happened.at < self.from {
            return;
        }
        if let Some(what) = start_of(happened, asks) {
            self.start(happened, what);
        }
        if let Some((what, why)) = end_of(happened) {
            let due = match what {
                What::Skip => to.next_at,
                _ => from.next_at,
            };
            self.list(happened, what, due, why);
        }
        let ended = |state| from.state != state && to.state == state;
        self.counts.succeeded += u64::from(ended(State::Succeeded));
    }

    fn start(&mut self, happened: &Happened, what: What) {
        let (at, due) = (happened.at, happened.from.next_at);
        raise(&mut self.peaks.running, at, self.running);
        raise(&mut self.peaks.late_ms, at, at.since(due).0);
        let width = self.bucket.0.max(1) as i64;
        let begins = at.0.div_euclid(width) * width;
        let bucket = self.buckets.entry((begins, happened.topic.clone()));
        let bucket = bucket.or_default();
        let (here, all) = match what {
            What::Retry => (&mut bucket.retries, &mut self.counts.retries),
            What::Question => (&mut bucket.questions, &mut self.counts.questions),
            _ => (&mut bucket.fires, &mut self.counts.fires),
        };
        *here += 1;
        *all += 1;
        self.list(happened, what, due, None);
    }

    fn list(&mut self, happened: &Happened, what: What, due: WallMs, why: Option<String>) {
        let count = match what {
            What::Skip => Some(&mut self.counts.skipped),
            What::Expire => Some(&mut self.counts.expired),
            What::Dead => Some(&mut self.counts.dead),
            What::Park => Some(&mut self.counts.parked),
            What::Fire | What::Stage | What::Retry | What::Question => None,
        };
        let is_start = count.is_none();
        if let Some(count) = count {
            *count += 1;
        }
        if self.events.len() >= self.events_max {
            self.is_truncated = true;
            return;
        }
        let stage = happened.spec.stage_at(happened.stage);
        self.events.push(PlayedEvent {
            at: happened.at,
            topic: happened.topic.clone(),
            key: happened.key.clone(),
            id: self.stored.get(&happened.task).copied(),
            what,
            stage: stage.map(|stage| stage.name.clone()),
            attempt: match (happened.verb, is_start) {
                // What needs no attempt counts as the first.
                ("due", true) => 1,
                _ => happened.to.attempts.max(happened.from.attempts),
            },
            due,
            why,
        });
    }

    /// All that there was, to `until` or to where it was cut off.
    pub fn close(self, until: WallMs, cut_off: Option<(WallMs, CutOff)>) -> Played {
        let mut peaks = self.peaks;
        let mut starts: BTreeMap<i64, u64> = BTreeMap::new();
        for ((begins, _), bucket) in &self.buckets {
            *starts.entry(*begins).or_default() += bucket.fires + bucket.retries + bucket.questions;
        }
        for (begins, count) in starts {
            raise(&mut peaks.starts, WallMs(begins), count);
        }
        let buckets = self.buckets.into_iter();
        let buckets = buckets.map(|((begins, topic), bucket)| (WallMs(begins), topic, bucket));
        Played {
            from: self.from,
            until,
            cut_off,
            bucket: self.bucket,
            buckets: buckets.collect(),
            events: self.events,
            is_truncated: self.is_truncated,
            counts: self.counts,
            peaks,
            refused: Vec::new(),
            seed: 0,
        }
    }
}

/// Whether something starts, and what. `asks` is what it was handed out for.
fn start_of(happened: &Happened, asks: Option<WaitingFor>) -> Option<What> {
    let (from, to) = (&happened.from, &happened.to);
    let first = || match from.stage {
        Some(1..) => What::Stage,
        _ => What::Fire,
    };
    match happened.verb {
        // What needs no attempt is over when it is due.
        "due" => Some(first()),
        "start" if asks.is_some() => Some(What::Question),
        "start" | "lease" if to.attempts > 1 => Some(What::Retry),
        "start" | "lease" => Some(first()),
        _ => None,
    }
}

/// Whether something comes to nothing, in which way and why.
fn end_of(happened: &Happened) -> Option<(What, Option<String>)> {
    let (from, to) = (&happened.from, &happened.to);
    let becomes = |state| from.state != state && to.state == state;
    let is_over = happened.verb == "total time" && to.stage != from.stage;
    if becomes(State::Dead) {
        let reason = to.dead_reason.map(DeadReason::name);
        return Some(match to.dead_reason {
            Some(DeadReason::TotalTime) => (What::Expire, None),
            _ => (What::Dead, reason.map(str::to_owned)),
        });
    }
    match happened.verb {
        _ if is_over => Some((What::Expire, None)),
        "cancel" if becomes(State::Cancelled) => Some((What::Skip, happened.why.clone())),
        "bar" if becomes(State::Cancelled) => {
            let why = "the condition of its guard is not true";
            Some((What::Skip, Some(why.to_owned())))
        }
        "pass over a stage" => {
            let why = "its condition is not true, or has no value";
            Some((What::Skip, Some(why.to_owned())))
        }
        _ if becomes(State::Paused) => Some((What::Park, None)),
        _ => None,
    }
}
