//! Slots of the executors: who has one, who waits for one, and no topic with more than its share.
//!
//! A silent receiver keeps its attempts' slots until their time is up. If it could have all of them, every other
//! topic would wait with it; so a topic may have three quarters of a shard's slots, and the rest stays for the others:
//!
//! ```text
//!  slots  [A A A A A A A A A A A A · · · ·]      A has its share, and waits
//!  waiting  A A A A …   B                        B, due later, goes first
//! ```
//!
//! Who waits is served in due order, but for topics that have their share. Cost: O(log n) per change; a look for the
//! next passes over at most one topic per share that is full.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{IdSet, TaskId};
use crate::task::spec::{ByTopic, TopicName};

/// Slots and the line before them. See the module's header.
#[derive(Debug)]
pub struct Slots {
    max: usize,
    taken: IdSet,
    taken_by: ByTopic<usize>,
    lines: ByTopic<BTreeSet<(i64, TaskId)>>,
    /// The first of each line.
    heads: BTreeMap<(i64, TaskId), TopicName>,
}

impl Slots {
    /// This many free slots.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            taken: IdSet::default(),
            taken_by: ByTopic::default(),
            lines: ByTopic::default(),
            heads: BTreeMap::new(),
        }
    }

    /// The most slots that one topic may have.
    fn share(&self) -> usize {
        self.max - self.max / 4
    }

    /// Whether a task of this topic may have a slot now.
    pub fn has_room_for(&self, topic: &TopicName) -> bool {
        let has = self.taken_by.get(topic).copied().unwrap_or(0);
        self.taken.len() < self.max && has < self.share()
    }

    /// Takes a slot. The caller has asked whether there is room, or takes over an attempt that runs already.
    pub fn take(&mut self, topic: &TopicName, id: TaskId) {
        if self.taken.insert(id) {
            *self.taken_by.entry(topic.clone()).or_default() += 1;
        }
    }

    /// Gives a slot back.
    pub fn give_back(&mut self, topic: &TopicName, id: TaskId) {
        if self.taken.remove(&id)
            && let Some(has) = self.taken_by.get_mut(topic)
        {
            *has -= 1;
            if *has == 0 {
                self.taken_by.remove(topic);
            }
        }
    }

    /// Who has a slot.
    pub fn taken(&self) -> &IdSet {
        &self.taken
    }

    /// Whether nobody waits.
    pub fn nobody_waits(&self) -> bool {
        self.heads.is_empty()
    }

    /// Gets in line.
    pub fn wait(&mut self, topic: &TopicName, fire_ms: i64, id: TaskId) {
        self.change_line(topic, |line| line.insert((fire_ms, id)));
    }

    /// Leaves the line.
    pub fn leave(&mut self, topic: &TopicName, fire_ms: i64, id: TaskId) {
        self.change_line(topic, |line| line.remove(&(fire_ms, id)));
    }

    fn change_line(
        &mut self,
        topic: &TopicName,
        change: impl FnOnce(&mut BTreeSet<(i64, TaskId)>) -> bool,
    ) {
        let line = self.lines.entry(topic.clone()).or_default();
        let before = line.first().copied();
        change(line);
        let after = line.first().copied();
        if before != after {
            if let Some(head) = before {
                self.heads.remove(&head);
            }
            match after {
                Some(head) => drop(self.heads.insert(head, topic.clone())),
                None => drop(self.lines.remove(topic)),
            }
        } else if after.is_none() {
            self.lines.remove(topic);
        }
    }

    /// Who is to have the next slot: the first in due order whose topic may have one.
    pub fn next(&self) -> Option<(TopicName, i64, TaskId)> {
        let (head, topic) = self
            .heads
            .iter()
            .find(|(_, topic)| self.has_room_for(topic))?;
        Some((topic.clone(), head.0, head.1))
    }

    /// The first of each line.
    pub fn heads(&self) -> impl Iterator<Item = (&TopicName, TaskId)> {
        self.heads.iter().map(|((_, id), topic)| (topic, *id))
    }

    /// Everybody who waits, in no order.
    #[cfg(test)]
    pub fn waiting(&self) -> impl Iterator<Item = (i64, TaskId)> + '_ {
        self.lines.values().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallMs;
    use crate::ids::Slot;

    fn topic(name: &str) -> TopicName {
        TopicName::parse(name).expect("a name")
    }

    fn id(n: u64) -> TaskId {
        TaskId::with_tail(Slot::of_hash(1), WallMs(1), n)
    }

    #[test]
    fn a_topic_with_its_share_waits_and_others_go_before_it() {
        let (a, b) = (topic("a"), topic("b"));
        let mut slots = Slots::new(8);
        for n in 0..6 {
            assert!(slots.has_room_for(&a));
            slots.take(&a, id(n));
        }
        slots.wait(&a, 10, id(10));
        slots.wait(&b, 20, id(11));
        assert_eq!(slots.next(), Some((b.clone(), 20, id(11))));
        slots.leave(&b, 20, id(11));
        assert_eq!(slots.next(), None);
        slots.give_back(&a, id(3));
        assert_eq!(slots.next(), Some((a.clone(), 10, id(10))));
        slots.leave(&a, 10, id(10));
        assert!(slots.nobody_waits());
    }

    #[test]
    fn all_slots_are_given_out_and_not_one_more() {
        let mut slots = Slots::new(2);
        for (n, name) in ["a", "b"].into_iter().enumerate() {
            assert!(slots.has_room_for(&topic(name)));
            slots.take(&topic(name), id(n as u64));
        }
        assert!(!slots.has_room_for(&topic("c")));
        slots.give_back(&topic("a"), id(0));
        assert!(slots.has_room_for(&topic("c")));
        assert!(Slots::new(1).has_room_for(&topic("a")));
    }

    #[test]
    fn within_and_between_topics_the_earliest_due_is_served_first() {
        let mut slots = Slots::new(4);
        for (name, fire_ms, n) in [("a", 30, 1), ("a", 10, 2), ("b", 20, 3), ("a", 10, 1)] {
            slots.wait(&topic(name), fire_ms, id(n));
        }
        let mut served = Vec::new();
        while let Some((topic, fire_ms, id)) = slots.next() {
            slots.leave(&topic, fire_ms, id);
            served.push((fire_ms, id));
        }
        assert_eq!(served, [(10, id(1)), (10, id(2)), (20, id(3)), (30, id(1))]);
        assert!(slots.lines.is_empty());
    }
}
