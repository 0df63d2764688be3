//! Slots of the executors: who has one, who waits for one, and no topic and no host with more than its share.
//!
//! A silent receiver keeps its attempts' slots until their time is up. If it could have all of them, everybody else
//! would wait with it. So a topic may have three quarters of a shard's slots, a host only so many and of these three
//! quarters for one topic, and the rest stays for the others:
//!
//! ```text
//!  slots    [A A A A A A A A A A A A · · · ·]      A has its share, and waits
//!  waiting   A A A A …   B                         B, due later, goes first
//! ```
//!
//! Hundreds of silent hosts could fill them all the same, a few each. So of the last eighth that a topic may have, a host
//! that has as many as are left takes none: with `n` hosts that take all they get, each has at most one part in `n + 1`,
//! and another host finds a part as large.
//!
//! Who waits is served in due order, but for topics and hosts that have their share. Whom a task is for is not known
//! while it sleeps. So all wait in their topic's line, and one whose host turns out to be full when it has its turn is
//! set aside, into a line for that host:
//!
//! ```text
//!  topic's line        x? y? y? …      the first is read: it is for x, and x is full
//!  aside, for host x   x x             has its turn again when x has room
//! ```
//!
//! Commands wait for this machine as pushes wait for a host. So does everybody, aside, whose executor has nobody to take
//! an attempt (its [`Door`] is shut): that costs a look now and then, and no commit.
//!
//! At most 4096 tasks of a topic are set aside; then it waits as a whole. Cost: O(log n) per change; a look for the next
//! passes over the lines whose topic or host has its share, and over none while no slot is free.
//!
//! There are several sets of slots, one per [`Track`], each with lines and shares of its own. So questions that hang keep
//! no work waiting, and the last question of a poll does not stand behind those that it is to put an end to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::executor::{Door, Doors};
use crate::ids::{ById, IdSet, TaskId};
use crate::task::model::Task;
use crate::task::spec::{Action, ByTopic, HostId, TopicName};

/// Most tasks of a topic that are set aside for full hosts, each of which was read to learn its host.
const ASIDE_MAX: usize = 4096;

/// What an attempt is to its shard: each kind has slots of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// A push, a handler, or a command.
    Work,
    /// A question of a poll.
    Questions,
    /// The last question of a poll.
    LastQuestions,
    /// The question whether something was done.
    Verifications,
    /// The question whether something is to fire.
    Guards,
}

impl Track {
    /// All of them. Who waits longest for a slot is the one who has the most time.
    pub const ALL: [Self; 5] = [
        Self::LastQuestions,
        Self::Guards,
        Self::Verifications,
        Self::Questions,
        Self::Work,
    ];

    /// That of a task's next attempt, or of the one that is out.
    pub fn of(task: &Task) -> Self {
        match task.action() {
            _ if task.asks_guard() => Self::Guards,
            _ if task.verifies() => Self::Verifications,
            Action::Poll(_) if task.asks_last() => Self::LastQuestions,
            Action::Poll(_) => Self::Questions,
            _ => Self::Work,
        }
    }
}

/// The slots of all tracks.
#[derive(Debug)]
pub struct Tracks {
    work: Slots,
    questions: Slots,
    last_questions: Slots,
    verifications: Slots,
    guards: Slots,
}

impl Tracks {
    /// So many slots for work and for questions, of each so many for one host, and so many for commands.
    pub fn new(
        running_max: usize,
        questions_max: usize,
        per_host_max: usize,
        commands_max: usize,
    ) -> Self {
        let slots = |max| Slots::new(max, per_host_max, commands_max);
        Self {
            work: slots(running_max),
            questions: slots(questions_max),
            last_questions: slots(questions_max),
            verifications: slots(questions_max),
            guards: slots(questions_max),
        }
    }

    /// The slots of a track.
    pub fn of(&self, track: Track) -> &Slots {
        match track {
            Track::Work => &self.work,
            Track::Questions => &self.questions,
            Track::LastQuestions => &self.last_questions,
            Track::Verifications => &self.verifications,
            Track::Guards => &self.guards,
        }
    }

    /// The same, to be changed.
    pub fn of_mut(&mut self, track: Track) -> &mut Slots {
        match track {
            Track::Work => &mut self.work,
            Track::Questions => &mut self.questions,
            Track::LastQuestions => &mut self.last_questions,
            Track::Verifications => &mut self.verifications,
            Track::Guards => &mut self.guards,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Slots> {
        Track::ALL.into_iter().map(|track| self.of(track))
    }

    /// Whether nobody waits on any track.
    pub fn nobody_waits(&self) -> bool {
        self.all().all(Slots::nobody_waits)
    }

    /// Whether somebody waits who may have a slot.
    pub fn could_serve(&self) -> bool {
        self.all().any(|slots| slots.next().is_some())
    }

    /// Who has a slot, in no order.
    pub fn taken(&self) -> impl Iterator<Item = TaskId> {
        self.all().flat_map(|slots| slots.taken().iter().copied())
    }

    /// Looks which doors are open again.
    pub fn look_at_doors(&mut self, doors: &dyn Doors) {
        for track in Track::ALL {
            self.of_mut(track).look_at_doors(doors);
        }
    }

    /// Whether somebody waits for a door.
    pub fn waits_at_door(&self) -> bool {
        let mut all = self.all();
        all.any(|slots| !slots.shut.is_empty() && !slots.aside.is_empty())
    }

    /// The first of each line.
    pub fn heads(&self) -> impl Iterator<Item = (&TopicName, i64, TaskId)> {
        self.all().flat_map(Slots::heads)
    }
}

/// Slots and the lines before them. See the module's header.
#[derive(Debug)]
pub struct Slots {
    max: usize,
    per_host: usize,
    commands: usize,
    taken: IdSet,
    taken_by: ByTopic<usize>,
    /// The hosts of those who have a slot, where they have one.
    hosts: ById<HostId>,
    taken_for: HashMap<HostId, Taken>,
    lines: HashMap<Line, BTreeSet<(i64, TaskId)>>,
    /// The first of each line.
    heads: BTreeMap<(i64, TaskId), Line>,
    aside: ById<HostId>,
    aside_by: ByTopic<usize>,
    /// Doors that were shut when somebody came to them, as the hosts that stand for them.
    shut: HashMap<HostId, Door>,
}

/// Slots that are taken for one host.
#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: ByTopic<usize>,
}

/// Tasks of a topic in due order: all of them, or those set aside for a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Line {
    topic: TopicName,
    host: Option<HostId>,
}

impl Slots {
    /// This many free slots, of which so many may be taken for one host, and so many for commands.
    pub fn new(max: usize, per_host: usize, commands: usize) -> Self {
        Self {
            max,
            per_host,
            commands,
            taken: IdSet::default(),
            taken_by: ByTopic::default(),
            hosts: ById::default(),
            taken_for: HashMap::new(),
            lines: HashMap::new(),
            heads: BTreeMap::new(),
            aside: ById::default(),
            aside_by: ByTopic::default(),
            shut: HashMap::new(),
        }
    }

    /// How many more a topic may have: what is left of all, and of its share. One that was over its share when its
    /// attempts were taken over has nothing left.
    fn left_for(&self, topic: &TopicName) -> usize {
        let has = self.taken_by.get(topic).copied().unwrap_or(0);
        let left = self.max.saturating_sub(self.taken.len());
        left.min(share_of(self.max).saturating_sub(has))
    }

    /// Whether a task of this topic may have a slot now, if its host has room.
    pub fn has_room_for(&self, topic: &TopicName) -> bool {
        self.left_for(topic) > 0
    }

    /// Whether fewer attempts are out to this host than may be: so many, three quarters of them for one topic, and fewer
    /// than are left for the topic where that is little.
    pub fn host_has_room(&self, topic: &TopicName, host: Option<HostId>) -> bool {
        let Some(host) = host else { return true };
        if self.shut.contains_key(&host) {
            return false;
        }
        let most = match host {
            HostId::COMMANDS => self.commands,
            _ => self.per_host,
        };
        let left = self.left_for(topic);
        let Some(taken) = self.taken_for.get(&host) else {
            return left > 0;
        };
        let of_topic = taken.by.get(topic).copied().unwrap_or(0);
        let is_little = left <= share_of(self.max) / 8;
        taken.all < most && of_topic < share_of(most) && (taken.all < left || !is_little)
    }

    /// Takes a slot. The caller has asked whether there is room, or takes over an attempt that runs already.
    pub fn take(&mut self, topic: &TopicName, host: Option<HostId>, id: TaskId) {
        if !self.taken.insert(id) {
            return;
        }
        *self.taken_by.entry(topic.clone()).or_default() += 1;
        if let Some(host) = host {
            self.hosts.insert(id, host);
            let taken = self.taken_for.entry(host).or_default();
            taken.all += 1;
            *taken.by.entry(topic.clone()).or_default() += 1;
        }
    }

    /// Gives a slot back.
    pub fn give_back(&mut self, topic: &TopicName, id: TaskId) {
        if !self.taken.remove(&id) {
            return;
        }
        count_down(&mut self.taken_by, topic);
        if let Some(host) = self.hosts.remove(&id)
            && let Some(taken) = self.taken_for.get_mut(&host)
        {
            taken.all -= 1;
            count_down(&mut taken.by, topic);
            if taken.all == 0 {
                self.taken_for.remove(&host);
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
        self.change_line(topic, None, |line| line.insert((fire_ms, id)));
    }

    /// Goes from the topic's line into that for a host which is full.
    pub fn set_aside(&mut self, topic: &TopicName, fire_ms: i64, id: TaskId, host: HostId) {
        self.leave(topic, fire_ms, id);
        self.aside.insert(id, host);
        *self.aside_by.entry(topic.clone()).or_default() += 1;
        self.change_line(topic, Some(host), |line| line.insert((fire_ms, id)));
    }

    /// Whom a task that waits was set aside for.
    pub fn is_aside_for(&self, id: TaskId) -> Option<HostId> {
        self.aside.get(&id).copied()
    }

    /// A door is shut: the host by which those stand aside who wait for it, until it is found open.
    pub fn shut(&mut self, door: Door) -> HostId {
        let host = match &door {
            Door::Pushes => HostId::PUSHES,
            Door::Handler(name) => HostId::of_handler(name),
        };
        self.shut.insert(host, door);
        host
    }

    /// Looks which doors are open again.
    pub fn look_at_doors(&mut self, doors: &dyn Doors) {
        self.shut.retain(|_, door| !doors.takes(door));
    }

    /// Leaves the line.
    pub fn leave(&mut self, topic: &TopicName, fire_ms: i64, id: TaskId) {
        let host = self.aside.remove(&id);
        if host.is_some() {
            count_down(&mut self.aside_by, topic);
        }
        self.change_line(topic, host, |line| line.remove(&(fire_ms, id)));
    }

    fn change_line(
        &mut self,
        topic: &TopicName,
        host: Option<HostId>,
        change: impl FnOnce(&mut BTreeSet<(i64, TaskId)>) -> bool,
    ) {
        let topic = topic.clone();
        let name = Line { topic, host };
        let line = self.lines.entry(name.clone()).or_default();
        let before = line.first().copied();
        change(line);
        let after = line.first().copied();
        if before != after
            && let Some(head) = before
        {
            self.heads.remove(&head);
        }
        match after {
            Some(head) if before != after => drop(self.heads.insert(head, name)),
            Some(_) => {}
            None => drop(self.lines.remove(&name)),
        }
    }

    /// Who is to have the next slot: the first in due order whose topic, and whose host if it is known, may have one.
    pub fn next(&self) -> Option<(TopicName, i64, TaskId)> {
        if self.taken.len() >= self.max {
            return None;
        }
        let may_have_one = |line: &Line| {
            self.has_room_for(&line.topic)
                && match line.host {
                    Some(_) => self.host_has_room(&line.topic, line.host),
                    None => self
                        .aside_by
                        .get(&line.topic)
                        .is_none_or(|n| *n < ASIDE_MAX),
                }
        };
        let (head, line) = self.heads.iter().find(|(_, line)| may_have_one(line))?;
        Some((line.topic.clone(), head.0, head.1))
    }

    /// The first of each line.
    pub fn heads(&self) -> impl Iterator<Item = (&TopicName, i64, TaskId)> {
        let heads = self.heads.iter();
        heads.map(|((fire_ms, id), line)| (&line.topic, *fire_ms, *id))
    }

    /// Everybody who waits, in no order.
    #[cfg(test)]
    pub fn waiting(&self) -> impl Iterator<Item = (i64, TaskId)> + '_ {
        self.lines.values().flatten().copied()
    }

    /// Each host with the slots that are taken for it.
    #[cfg(test)]
    pub fn taken_for(&self) -> HashMap<HostId, usize> {
        let hosts = self.taken_for.iter();
        hosts.map(|(host, taken)| (*host, taken.all)).collect()
    }
}

/// The most slots of so many that one topic may have.
fn share_of(slots: usize) -> usize {
    slots - slots / 4
}

/// Counts one less, and nothing at zero.
fn count_down<K: Eq + std::hash::Hash, S: std::hash::BuildHasher>(
    counts: &mut HashMap<K, usize, S>,
    of: &K,
) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
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
        let mut slots = Slots::new(8, 8, 8);
        for n in 0..6 {
            assert!(slots.has_room_for(&a));
            slots.take(&a, None, id(n));
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
        let mut slots = Slots::new(2, 2, 2);
        for (n, name) in ["a", "b"].into_iter().enumerate() {
            assert!(slots.has_room_for(&topic(name)));
            slots.take(&topic(name), None, id(n as u64));
        }
        assert!(!slots.has_room_for(&topic("c")));
        slots.give_back(&topic("a"), id(0));
        assert!(slots.has_room_for(&topic("c")));
        assert!(Slots::new(1, 1, 1).has_room_for(&topic("a")));
    }

    #[test]
    fn within_and_between_topics_the_earliest_due_is_served_first() {
        let mut slots = Slots::new(4, 4, 4);
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

    #[test]
    fn a_full_host_is_waited_for_aside_and_others_go_before_it() {
        let (a, b) = (topic("a"), topic("b"));
        let (silent, other) = (HostId::of("silent"), HostId::of("other"));
        let mut slots = Slots::new(8, 2, 2);
        for n in 0..2 {
            assert!(slots.host_has_room(&a, Some(silent)));
            slots.take(&a, Some(silent), id(n));
        }
        assert!(!slots.host_has_room(&a, Some(silent)));
        assert!(slots.host_has_room(&a, Some(other)) && slots.host_has_room(&a, None));
        for (name, fire_ms, n) in [(&a, 10, 10), (&a, 20, 11), (&b, 30, 12), (&a, 40, 13)] {
            slots.wait(name, fire_ms, id(n));
        }
        // The first two are for the silent one, as they are read.
        for (fire_ms, n) in [(10, 10), (20, 11)] {
            assert_eq!(slots.next(), Some((a.clone(), fire_ms, id(n))));
            slots.set_aside(&a, fire_ms, id(n), silent);
            assert_eq!(slots.is_aside_for(id(n)), Some(silent));
        }
        assert_eq!(slots.next(), Some((b.clone(), 30, id(12))));
        slots.leave(&b, 30, id(12));
        assert_eq!(slots.next(), Some((a.clone(), 40, id(13))));
        slots.give_back(&a, id(0));
        assert_eq!(slots.next(), Some((a.clone(), 10, id(10))), "due first");
        slots.leave(&a, 10, id(10));
        slots.take(&a, Some(silent), id(10));
        assert_eq!(slots.next(), Some((a.clone(), 40, id(13))));
        slots.leave(&a, 20, id(11));
        slots.leave(&a, 40, id(13));
        assert!(slots.nobody_waits() && slots.lines.is_empty());
        assert!(slots.aside.is_empty() && slots.aside_by.is_empty());
        for n in [1, 10] {
            slots.give_back(&a, id(n));
        }
        assert!(slots.hosts.is_empty() && slots.taken_for.is_empty());
    }

    #[test]
    fn commands_have_a_share_of_their_own() {
        let (a, commands) = (topic("a"), Some(HostId::COMMANDS));
        let mut slots = Slots::new(8, 4, 1);
        assert!(slots.host_has_room(&a, commands));
        slots.take(&a, commands, id(1));
        assert!(!slots.host_has_room(&a, commands));
        assert!(slots.host_has_room(&a, Some(HostId::of("other"))));
        slots.give_back(&a, id(1));
        assert!(slots.host_has_room(&a, commands));
    }

    #[test]
    fn a_topic_with_its_share_of_a_host_leaves_the_rest_of_it_to_others() {
        let (a, b, host) = (topic("a"), topic("b"), Some(HostId::of("busy")));
        let mut slots = Slots::new(100, 8, 8);
        for n in 0..6 {
            assert!(slots.host_has_room(&a, host));
            slots.take(&a, host, id(n));
        }
        assert!(!slots.host_has_room(&a, host));
        for n in 6..8 {
            assert!(slots.host_has_room(&b, host));
            slots.take(&b, host, id(n));
        }
        assert!(!slots.host_has_room(&b, host));
        slots.give_back(&a, id(0));
        assert!(slots.host_has_room(&a, host) && slots.host_has_room(&b, host));
    }

    #[test]
    fn hosts_that_take_all_they_get_leave_another_one_as_much_as_each_of_them_has() {
        let a = topic("a");
        let mut slots = Slots::new(400, 100, 100);
        let mut try_to_take = |host: u64, n: u64| {
            let host = Some(HostId::of(&format!("host-{host}")));
            let has_room = slots.host_has_room(&a, host);
            if has_room {
                slots.take(&a, host, id(n));
            }
            has_room
        };
        let taken = (0..29 * 20).filter(|n| try_to_take(n % 29, *n)).count();
        assert_eq!(taken, 29 * 10, "of the topic's share, which is 300");
        let more = (1_000..1_020).filter(|n| try_to_take(29, *n)).count();
        assert_eq!(more, 5, "half of what was left");
        let each = slots.taken_for();
        assert_eq!(each.values().filter(|each| **each == 10).count(), 29);
    }

    #[test]
    fn a_topic_with_too_many_aside_waits_as_a_whole_and_others_do_not() {
        let (a, b) = (topic("a"), topic("b"));
        let silent = HostId::of("silent");
        let mut slots = Slots::new(8, 1, 1);
        slots.take(&a, Some(silent), id(0));
        let many = ASIDE_MAX as u64 + 2;
        for n in 1..=many {
            slots.wait(&a, n as i64, id(n));
        }
        slots.wait(&b, i64::MAX, id(many + 1));
        let mut read = 0;
        while let Some((next, fire_ms, id)) = slots.next().filter(|(next, ..)| *next == a) {
            slots.set_aside(&next, fire_ms, id, silent);
            read += 1;
        }
        assert_eq!(read, ASIDE_MAX);
        assert_eq!(slots.next().map(|(next, ..)| next), Some(b));
        slots.give_back(&a, id(0));
        assert_eq!(slots.next(), Some((a, 1, id(1))));
    }
}
