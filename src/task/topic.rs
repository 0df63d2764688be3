//! Topics: the defaults, limits and pauses that tasks of one business line share.

use std::sync::Arc;

use crate::clock::{DurationMs, SteadyMs, WallMs};
use crate::task::clocks::Thens;
use crate::task::guard::Guard;
use crate::task::late::LatePolicy;
use crate::task::model::PauseClock;
use crate::task::retry::RetryPolicy;
use crate::task::spec::{
    Action, ByTopic, Class, Delivery, OnEnd, ResourceName, Timeouts, TopicName, Verify,
};
use crate::task::transition::Retention;

/// What to do when a live task already has the key of a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnExisting {
    /// Answer the existing one, unchanged.
    #[default]
    Return,
    /// Refuse.
    Reject,
    /// Give it the new content and due time, as a new generation.
    Replace,
    /// Move only its due time (debounce).
    Extend,
    /// Move its due time if the new one is later.
    KeepLater,
}

/// Time limits of which only some are given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartialTimeouts {
    /// One attempt.
    pub attempt: Option<DurationMs>,
    /// From the cut-off to the hard stop.
    pub grace: Option<DurationMs>,
    /// All attempts together.
    pub total: Option<DurationMs>,
    /// From one sign of life to the next.
    pub heartbeat: Option<DurationMs>,
    /// From coming due to a start.
    pub queue: Option<DurationMs>,
    /// What follows when one of these is over, where that was said.
    pub then: Thens,
}

impl PartialTimeouts {
    /// These, and where they are silent, `under`.
    pub fn over(&self, under: Timeouts) -> Timeouts {
        Timeouts {
            attempt: self.attempt.unwrap_or(under.attempt),
            grace: self.grace.unwrap_or(under.grace),
            total: self.total.or(under.total),
            heartbeat: self.heartbeat.or(under.heartbeat),
            queue: self.queue.or(under.queue),
            then: self.thens_over(under.then),
        }
    }
}

/// A topic held as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopicPause {
    /// What becomes of the time left.
    pub clock: PauseClock,
    /// When it began, for people.
    pub since: WallMs,
    /// When it began, for arithmetic.
    pub since_steady: SteadyMs,
}

/// A topic that goes on after a frozen pause: its waiting tasks are being moved by `held`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thaw {
    /// Its number; each task goes through each thaw once.
    pub number: u32,
    /// How long the topic was held.
    pub held: DurationMs,
}

/// What is configured for a topic. `Default` is what an undeclared topic works with.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TopicSettings {
    /// When tasks are due that do not say it: the rule of this name. Live.
    pub rule: Option<ResourceName>,
    /// For tasks that name none.
    pub action: Option<Action>,
    /// For tasks that name none.
    pub retry: Option<RetryPolicy>,
    /// Under the task's own.
    pub timeouts: PartialTimeouts,
    /// For tasks that name none.
    pub class: Option<Class>,
    /// For tasks that name none.
    pub delivery: Option<Delivery>,
    /// For tasks that name none.
    pub verify: Option<Box<Verify>>,
    /// For tasks that name none.
    pub guard: Option<Guard>,
    /// For creates that name none.
    pub on_existing: Option<OnExisting>,
    /// Live: fixed for a task when it ends.
    pub retention: Retention,
    /// What becomes of answers that come too late. Live.
    pub late_answers: LatePolicy,
    /// For tasks that name none.
    pub on_end: Option<Box<OnEnd>>,
}

/// One topic as it is now.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Topic {
    /// What is configured.
    pub settings: TopicSettings,
    /// The body of the latest PUT, as it came.
    pub body: String,
    /// Grows with each PUT; 0 while it was never declared.
    pub version: u64,
    /// In force.
    pub pause: Option<TopicPause>,
    /// The latest thaw; 0 before the first.
    pub thaw: u32,
    /// A thaw that not all shards have been through.
    pub thawing: Option<Thaw>,
}

impl Topic {
    /// Whether its tasks are held back.
    pub fn is_held(&self) -> bool {
        self.pause.is_some() || self.thawing.is_some()
    }

    /// Whether it is held and the time of what waits stands still.
    pub fn is_frozen(&self) -> bool {
        self.thawing.is_some()
            || self
                .pause
                .is_some_and(|pause| pause.clock == PauseClock::Freeze)
    }
}

/// All topics at one moment; never changed, only replaced.
#[derive(Clone, Debug, Default)]
pub struct TopicBook {
    topics: ByTopic<Arc<Topic>>,
    undeclared: Arc<Topic>,
    edition: u64,
}

impl TopicBook {
    /// The topic, or what an undeclared one is like.
    pub fn get(&self, name: &TopicName) -> &Arc<Topic> {
        self.topics.get(name).unwrap_or(&self.undeclared)
    }

    /// Whether anything is known of the topic.
    pub fn is_known(&self, name: &TopicName) -> bool {
        self.topics.contains_key(name)
    }

    /// The book with one topic set.
    #[must_use]
    pub fn with(&self, name: TopicName, topic: Topic) -> Self {
        let mut next = self.clone();
        next.topics.insert(name, Arc::new(topic));
        next.edition += 1;
        next
    }

    /// The book without a topic.
    #[must_use]
    pub fn without(&self, name: &TopicName) -> Self {
        let mut next = self.clone();
        next.topics.remove(name);
        next.edition += 1;
        next
    }

    /// The book with these topics and no others.
    #[must_use]
    pub fn renewed(&self, topics: impl IntoIterator<Item = (TopicName, Topic)>) -> Self {
        let topics = topics.into_iter();
        Self {
            topics: topics
                .map(|(name, topic)| (name, Arc::new(topic)))
                .collect(),
            undeclared: Arc::clone(&self.undeclared),
            edition: self.edition + 1,
        }
    }

    /// Grows with each change, so that of two books the newer is known.
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// All known topics, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicName, &Arc<Topic>)> {
        self.topics.iter()
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }
}
