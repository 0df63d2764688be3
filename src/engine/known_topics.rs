//! Topics in use, declared or not: so many ([`limits::TOPICS_MAX`]) and no more, for each costs memory in every shard
//! and a line in every metric.
//!
//! A create is let through by a set that is only added to. When it is full, the shards are asked which topics still
//! have tasks, at most once a second, and the others are taken out. What is created while they are asked may be taken
//! out too; it is added again by its next create.

use std::collections::HashSet;

use parking_lot::{Mutex, RwLock};

use crate::clock::{DurationMs, MonoMs};
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::limits;
use crate::task::spec::TopicName;
use crate::task::topic::TopicBook;

/// The shards are not asked more often.
const ASK_PAUSE: DurationMs = DurationMs::secs(1);

/// Topics that tasks were created in.
#[derive(Debug)]
pub(super) struct KnownTopics {
    most: usize,
    used: RwLock<HashSet<TopicName>>,
    asked_at: Mutex<Option<MonoMs>>,
}

impl Default for KnownTopics {
    fn default() -> Self {
        Self {
            most: limits::TOPICS_MAX,
            used: RwLock::default(),
            asked_at: Mutex::default(),
        }
    }
}

impl KnownTopics {
    /// Lets a topic be used.
    pub fn admit(&self, name: &TopicName, book: &TopicBook) -> Result<(), EngineError> {
        if book.is_known(name) || self.used.read().contains(name) {
            return Ok(());
        }
        let mut used = self.used.write();
        if self.count(&used, book) >= self.most && !used.contains(name) {
            return Err(EngineError::TooManyTopics);
        }
        used.insert(name.clone());
        Ok(())
    }

    /// Whether no further topic can be used, and it is time to ask the shards whether that is still so.
    fn wants_to_ask(&self, book: &TopicBook, now: MonoMs) -> bool {
        if self.count(&self.used.read(), book) < self.most {
            return false;
        }
        let mut asked_at = self.asked_at.lock();
        let is_time = asked_at.is_none_or(|at| now.since(at) >= ASK_PAUSE);
        if is_time {
            *asked_at = Some(now);
        }
        is_time
    }

    /// Only these have tasks.
    pub fn replace(&self, used: HashSet<TopicName>) {
        *self.used.write() = used;
    }

    /// Declared and used ones together.
    fn count(&self, used: &HashSet<TopicName>, book: &TopicBook) -> usize {
        if used.len() + book.len() < self.most {
            return used.len() + book.len();
        }
        let only_declared = book.iter().filter(|(name, _)| !used.contains(*name));
        used.len() + only_declared.count()
    }
}

impl Duetime {
    /// When there are as many topics as there may be: takes out those that have no task any more.
    pub(super) async fn make_room_for_topics(&self) {
        let known = &self.parts.known_topics;
        if known.wants_to_ask(&self.book(), self.now().mono) {
            // While a shard gives no answer, all count that ever were used.
            let _ = self.count_topics().await;
        }
    }

    /// Counts the topics that have tasks.
    pub(super) async fn count_topics(&self) -> Result<(), EngineError> {
        let shards = self.counts().await?;
        let topics = shards.into_iter().flat_map(|shard| shard.topics);
        let used = topics.map(|(name, _)| name).collect();
        self.parts.known_topics.replace(used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::topic::Topic;

    fn named(name: &str) -> TopicName {
        TopicName::parse(name).expect("a good name")
    }

    #[test]
    fn declared_and_used_topics_count_together_and_each_once() {
        let known = KnownTopics {
            most: 3,
            ..KnownTopics::default()
        };
        let book = TopicBook::default()
            .with(named("declared"), Topic::default())
            .with(named("both"), Topic::default());
        known.replace([named("both")].into());
        assert!(known.admit(&named("used"), &book).is_ok());
        let refused = known.admit(&named("one-more"), &book);
        assert!(matches!(refused, Err(EngineError::TooManyTopics)));
        for name in ["declared", "both", "used"] {
            assert!(known.admit(&named(name), &book).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_shards_are_asked_when_it_is_full_and_at_most_once_a_second() {
        let known = KnownTopics {
            most: 1,
            ..KnownTopics::default()
        };
        let book = TopicBook::default();
        assert!(!known.wants_to_ask(&book, MonoMs(0)));
        assert!(known.admit(&named("a"), &book).is_ok());
        assert!(known.wants_to_ask(&book, MonoMs(0)));
        assert!(!known.wants_to_ask(&book, MonoMs(999)));
        assert!(known.wants_to_ask(&book, MonoMs(1_000)));
        known.replace(HashSet::new());
        assert!(known.admit(&named("b"), &book).is_ok());
    }
}
