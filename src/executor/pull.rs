//! The desk at which outside workers wait for tasks.
//!
//! A worker that finds nothing leaves its bell here and waits; a shard that has a new task for a topic rings as
//! many bells as it has tasks, oldest first. A bell is only a hint: who is rung asks the shards again. A worker
//! that goes away after it was rung passes the ring on, so that no task lies there with workers waiting.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::task::spec::TopicName;

/// Who waits for which topic. See the module's header. Coming, leaving and ringing cost the logarithm of a line's
/// length, under one lock.
#[derive(Debug, Default)]
pub struct PullDesk {
    lines: Mutex<Lines>,
}

/// A line for each topic, by ticket: the longest wait comes first.
#[derive(Debug, Default)]
struct Lines {
    by_topic: HashMap<TopicName, BTreeMap<u64, Arc<Bell>>>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct Bell {
    notify: Notify,
    rung: AtomicBool,
}

/// A place at the desk; leaving it (dropping) passes on a ring that was not used.
#[derive(Debug)]
pub struct Waiting<'a> {
    desk: &'a PullDesk,
    topics: Arc<[TopicName]>,
    ticket: u64,
    bell: Arc<Bell>,
}

impl PullDesk {
    /// Takes a place in the lines of these topics.
    pub fn wait(&self, topics: &Arc<[TopicName]>) -> Waiting<'_> {
        let bell = Arc::new(Bell::default());
        let mut lines = self.lines.lock();
        let ticket = lines.next_ticket;
        lines.next_ticket += 1;
        for topic in topics.iter() {
            let line = lines.by_topic.entry(topic.clone()).or_default();
            line.insert(ticket, Arc::clone(&bell));
        }
        drop(lines);
        Waiting {
            desk: self,
            topics: Arc::clone(topics),
            ticket,
            bell,
        }
    }

    /// Rings up to `count` bells of a topic, those first who have waited longest.
    pub fn wake(&self, topic: &TopicName, count: usize) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.by_topic.get_mut(topic) else {
            return;
        };
        let mut left = count;
        while left > 0
            && let Some((_, bell)) = line.pop_first()
        {
            // A bell that rang for another topic already is no news.
            if !bell.rung.swap(true, Ordering::AcqRel) {
                bell.notify.notify_one();
                left -= 1;
            }
        }
        if line.is_empty() {
            lines.by_topic.remove(topic);
        }
    }

    /// How many places are taken, for all topics together.
    pub fn places(&self) -> usize {
        self.lines.lock().by_topic.values().map(BTreeMap::len).sum()
    }
}

impl Waiting<'_> {
    /// Waits until the bell rings.
    pub async fn rung(&self) {
        self.bell.notify.notified().await;
    }

    /// The ring was used: the shards have answered again because of it.
    pub fn used(&self) {
        self.bell.rung.store(false, Ordering::Release);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut lines = self.desk.lines.lock();
        for topic in self.topics.iter() {
            if let Some(line) = lines.by_topic.get_mut(topic) {
                line.remove(&self.ticket);
                if line.is_empty() {
                    lines.by_topic.remove(topic);
                }
            }
        }
        drop(lines);
        if self.bell.rung.load(Ordering::Acquire) {
            for topic in self.topics.iter() {
                self.desk.wake(topic, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn topics(names: &[&str]) -> Arc<[TopicName]> {
        names
            .iter()
            .map(|name| TopicName::parse(name).expect("a name"))
            .collect()
    }

    #[test]
    fn who_waited_longest_is_rung_first_and_only_as_many_as_there_are_tasks() {
        let (desk, topics) = (PullDesk::default(), topics(&["a"]));
        let (first, second) = (desk.wait(&topics), desk.wait(&topics));
        desk.wake(&topics[0], 1);
        assert!(first.rung().now_or_never().is_some());
        assert!(second.rung().now_or_never().is_none());
    }

    #[test]
    fn a_ring_that_was_not_used_is_passed_on() {
        let (desk, topics) = (PullDesk::default(), topics(&["a", "b"]));
        let (first, second) = (desk.wait(&topics), desk.wait(&topics));
        desk.wake(&topics[1], 1);
        drop(first);
        assert!(second.rung().now_or_never().is_some());
    }

    #[test]
    fn a_ring_that_was_used_ends_there_and_an_empty_desk_keeps_nothing() {
        let (desk, topics) = (PullDesk::default(), topics(&["a"]));
        let (first, second) = (desk.wait(&topics), desk.wait(&topics));
        desk.wake(&topics[0], 1);
        first.used();
        drop(first);
        assert!(second.rung().now_or_never().is_none());
        drop(second);
        assert_eq!(desk.places(), 0);
    }
}
