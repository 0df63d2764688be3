//! Lists: what a page asks for, and the bounded look at the records that answers it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::clock::{Now, WallMs};
use crate::ids::{IdSet, ShardId, TaskId};
use crate::limits;
use crate::shard::core::ShardCore;
use crate::shard::shelf::ChunkMeta;
use crate::store::chunk::{self, Entry};
use crate::task::model::{DeadReason, State, Task};
use crate::task::spec::{Class, ResourceName, TaskKey, TopicName};

/// A task as it is shown, with what only its shard knows.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// The task.
    pub task: Arc<Task>,
    /// What keeps a due task from starting.
    pub blocked_by: Option<&'static str>,
    /// The task that tells how it has ended, if there is one.
    pub callback: Option<Arc<Task>>,
    /// Its shard.
    pub shard: ShardId,
    /// Milliseconds to its due time.
    pub remaining_ms: u64,
}

/// A task in short: what its shard knows of it without its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slim {
    /// Its id.
    pub id: TaskId,
    /// Where it stands.
    pub state: State,
    /// When it is, or was, due.
    pub due_at: WallMs,
    /// Grows with each replay and replace.
    pub generation: u32,
    /// When it last changed.
    pub updated_at: WallMs,
}

impl From<&Task> for Slim {
    fn from(task: &Task) -> Self {
        Self {
            id: task.id,
            state: task.state,
            due_at: task.due.at,
            generation: task.generation,
            updated_at: task.updated_at,
        }
    }
}

/// A task as a verb left it: whole or, where nothing more had to be read, in short.
#[derive(Clone, Debug)]
pub enum Shown {
    /// With all that is known of it.
    Whole(Box<TaskView>),
    /// In short.
    Slim(Slim),
}

impl Shown {
    /// In short.
    pub fn slim(&self) -> Slim {
        match self {
            Self::Whole(view) => Slim::from(&*view.task),
            Self::Slim(slim) => *slim,
        }
    }

    /// As a whole, if it was read.
    pub fn whole(&self) -> Option<&TaskView> {
        match self {
            Self::Whole(view) => Some(view),
            Self::Slim(_) => None,
        }
    }

    /// Its id.
    pub fn id(&self) -> TaskId {
        self.slim().id
    }
}

/// From an instant (included) to another (excluded).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Not before this.
    pub after: Option<WallMs>,
    /// Before this.
    pub before: Option<WallMs>,
}

impl Span {
    fn holds(&self, at: Option<WallMs>) -> bool {
        match at {
            Some(at) => {
                self.after.is_none_or(|after| at >= after)
                    && self.before.is_none_or(|before| at < before)
            }
            None => self.after.is_none() && self.before.is_none(),
        }
    }
}

/// Which tasks a list shows. Empty means all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskFilter {
    /// Of this topic.
    pub topic: Option<TopicName>,
    /// With this key.
    pub key: Option<TaskKey>,
    /// With a key that begins so.
    pub key_prefix: Option<String>,
    /// In one of these states.
    pub states: Vec<State>,
    /// With all of these tags.
    pub tags: Vec<(String, String)>,
    /// Due in this span.
    pub due: Span,
    /// Created in this span.
    pub created: Span,
    /// Ended in this span.
    pub ended: Span,
    /// Dead for this reason.
    pub dead_reason: Option<DeadReason>,
    /// Whose due time this rule gives.
    pub rule: Option<ResourceName>,
    /// Of this class.
    pub class: Option<Class>,
    /// With this text in key, tags, payload or last error.
    pub text: Option<String>,
}

impl TaskFilter {
    /// Whether it shows a task.
    pub fn admits(&self, task: &Task) -> bool {
        let key = task.key.as_ref().map(TaskKey::as_str);
        self.topic.as_ref().is_none_or(|topic| task.topic == *topic)
            && self
                .key
                .as_ref()
                .is_none_or(|wanted| key == Some(wanted.as_str()))
            && self
                .key_prefix
                .as_ref()
                .is_none_or(|prefix| key.is_some_and(|key| key.starts_with(prefix)))
            && (self.states.is_empty() || self.states.contains(&task.state))
            && self.tags.iter().all(|tag| task.spec.tags.contains(tag))
            && self.due.holds(Some(task.due.at))
            && self.created.holds(Some(task.created_at))
            && self.ended.holds(task.ended_at)
            && self
                .dead_reason
                .is_none_or(|reason| task.dead_reason == Some(reason))
            && self.rule.as_ref().is_none_or(|name| {
                let rule = task.spec.rule.as_ref();
                rule.is_some_and(|rule| rule.name == *name)
            })
            && self.class.is_none_or(|class| task.spec.class == class)
            && self.text.as_ref().is_none_or(|text| mentions(task, text))
    }
}

fn mentions(task: &Task, text: &str) -> bool {
    let error = task
        .last_outcome
        .as_ref()
        .and_then(|last| last.error.as_ref());
    task.key
        .as_ref()
        .is_some_and(|key| key.as_str().contains(text))
        || task
            .spec
            .tags
            .iter()
            .any(|(name, value)| name.contains(text) || value.contains(text))
        || task
            .spec
            .payload
            .as_ref()
            .is_some_and(|json| json.as_str().contains(text))
        || error.is_some_and(|error| error.code.contains(text) || error.message.contains(text))
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Earliest due time first.
    #[default]
    DueFirst,
    /// Latest due time first.
    DueLast,
    /// Latest end first; ended tasks only.
    EndedLast,
}

/// A place in a list: the sort key and the id of the last record looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Due or end time.
    pub at: WallMs,
    /// Tells equal times apart.
    pub id: TaskId,
}

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct PageAsk {
    /// Which tasks.
    pub filter: TaskFilter,
    /// In which order.
    pub order: Order,
    /// Behind this place.
    pub after: Option<Position>,
    /// At most this many.
    pub limit: usize,
    /// Look at no more records than this.
    pub scan_max: usize,
    /// None of these, whatever the filter says: they are not even read.
    pub besides: Option<Arc<IdSet>>,
}

/// What one shard has for a page.
#[derive(Clone, Debug, Default)]
pub struct PagePart {
    /// In the list's order.
    pub items: Vec<(Position, TaskView)>,
    /// Where the look stopped; `None` when there is nothing behind it.
    pub stopped_at: Option<Position>,
    /// How many records were looked at.
    pub looked_at: usize,
}

/// A topic of at most so many tasks is looked through as a whole, by its rows.
const SMALL_TOPIC: u64 = 4_096;

/// A list's order as numbers that only go up, so that one way of looking serves all three.
type Key = (i64, [u8; 16]);

impl Order {
    fn key(self, at_ms: i64, id: TaskId) -> Key {
        match self {
            Self::DueFirst => (at_ms, id.to_bytes()),
            Self::DueLast | Self::EndedLast => (!at_ms, id.to_bytes().map(|byte| !byte)),
        }
    }

    fn position(self, (at_ms, id): Key) -> Position {
        match self {
            Self::DueFirst => Position {
                at: WallMs(at_ms),
                id: TaskId::from_bytes(id),
            },
            Self::DueLast | Self::EndedLast => Position {
                at: WallMs(!at_ms),
                id: TaskId::from_bytes(id.map(|byte| !byte)),
            },
        }
    }

    /// The place before all that stands at a time: behind it in this order comes what is there.
    fn before_all_at(self, at_ms: i64) -> Position {
        // The lowest and the highest that an id can be.
        let (low, high) = (
            0x0000_0000_0000_7000_8000_0000_0000_0000_u128,
            0xffff_ffff_ffff_7fff_bfff_ffff_ffff_ffff_u128,
        );
        let (at_ms, id) = match self {
            Self::DueFirst => (at_ms, low),
            Self::DueLast | Self::EndedLast => (!at_ms, high),
        };
        Position {
            at: WallMs(at_ms),
            id: TaskId::from_bytes(id.to_be_bytes()),
        }
    }

    /// What the order sorts by, of an entry; `None` if it has no place in it.
    fn at_of(self, entry: &Entry) -> Option<i64> {
        match self {
            Self::DueFirst | Self::DueLast => Some(entry.due_ms),
            Self::EndedLast => entry.state.is_ended().then_some(entry.ended_ms),
        }
    }

    /// The earliest key that a record of the chunk can have, and the latest.
    fn keys_of(self, chunk: &ChunkMeta) -> (i64, i64) {
        match self {
            Self::DueFirst => chunk.due_ms,
            Self::DueLast => (!chunk.due_ms.1, !chunk.due_ms.0),
            Self::EndedLast => (!chunk.ended_ms.1, !chunk.ended_ms.0),
        }
    }
}

/// What a page takes of the entries.
struct Wanted<'a> {
    ask: &'a PageAsk,
    /// Where to begin, excluded.
    after: Option<Key>,
    range_ms: (i64, i64),
}

impl Wanted<'_> {
    /// Where an entry stands that the filter may admit.
    fn key_of(&self, entry: &Entry) -> Option<Key> {
        let key = self.ask.order.key(self.ask.order.at_of(entry)?, entry.id);
        let is_in = key.0 >= self.range_ms.0
            && key.0 <= self.range_ms.1
            && self.after.is_none_or(|after| key > after);
        (is_in && self.admits(entry)).then_some(key)
    }

    fn admits(&self, entry: &Entry) -> bool {
        let filter = &self.ask.filter;
        let besides = self.ask.besides.as_ref();
        filter.topic.as_ref().is_none_or(|it| entry.topic == *it)
            && (filter.states.is_empty()
                || filter.states.contains(&entry.state)
                || may_run(entry, &filter.states))
            && besides.is_none_or(|besides| !besides.contains(&entry.id))
    }

    /// The earliest that is still to be looked for.
    fn after_ms(&self) -> i64 {
        self.after.map_or(i64::MIN, |(at_ms, _)| at_ms)
    }
}

/// The look for one page: what was found so far in order, and what is still to be opened.
struct Look<'a> {
    core: &'a mut ShardCore,
    wanted: Wanted<'a>,
    now: Now,
    found: BinaryHeap<Reverse<Key>>,
    looked_at: usize,
}

/// Looks through a shard's tasks for one page.
pub fn page(core: &mut ShardCore, ask: &PageAsk, now: Now) -> PagePart {
    let order = ask.order;
    let span = match order {
        Order::EndedLast => ask.filter.ended,
        _ => ask.filter.due,
    };
    let low = span.after.map_or(i64::MIN, |at| at.0);
    let high = span.before.map_or(i64::MAX, |at| at.0.saturating_sub(1));
    if low > high {
        return PagePart::default();
    }
    let wanted = Wanted {
        ask,
        after: ask.after.map(|after| order.key(after.at.0, after.id)),
        range_ms: match order {
            Order::DueFirst => (low, high),
            _ => (!high, !low),
        },
    };
    let look = Look {
        core,
        wanted,
        now,
        found: BinaryHeap::new(),
        looked_at: 0,
    };
    look.page()
}

impl Look<'_> {
    fn page(mut self) -> PagePart {
        let chunks = if self.look_through_small_topic() {
            Vec::new()
        } else {
            self.look_through_memory();
            self.chunks()
        };
        let mut chunks = chunks.into_iter().peekable();
        let mut part = PagePart::default();
        let ask = self.wanted.ask;
        let scan_max = ask.scan_max.clamp(1, limits::PAGE_SCAN_MAX);
        let mut searched_bytes = 0;
        loop {
            // Whatever may come before the next that was found has to be looked into first.
            let next = self.found.peek().map(|Reverse((at_ms, _))| *at_ms);
            if let Some((first_ms, chunk)) =
                chunks.next_if(|(first_ms, _)| next.is_none_or(|next| *first_ms <= next))
            {
                // All before this chunk is looked through, even if nothing of it was wanted.
                if self.looked_at >= scan_max && first_ms > self.wanted.after_ms() {
                    part.stopped_at = Some(ask.order.before_all_at(first_ms));
                    return part;
                }
                self.look_into(chunk);
                continue;
            }
            let Some(Reverse(key)) = self.found.pop() else {
                part.stopped_at = None;
                return part;
            };
            if part.items.len() >= ask.limit
                || (part.stopped_at.is_some() && self.looked_at >= scan_max)
                || searched_bytes >= limits::PAGE_SEARCH_BYTES_MAX
            {
                return part;
            }
            part.looked_at += 1;
            self.looked_at += 1;
            let position = ask.order.position(key);
            part.stopped_at = Some(position);
            let Some(mut view) = self.core.bare_view_of(position.id, self.now) else {
                continue;
            };
            if ask.filter.text.is_some() {
                searched_bytes += view.task.weight();
            }
            if ask.filter.admits(&view.task) {
                view.callback = self.core.callback_of(&view.task);
                part.items.push((position, view));
            }
        }
    }

    /// Takes an entry that the filter may admit.
    fn take(&mut self, entry: &Entry) {
        self.found.extend(self.wanted.key_of(entry).map(Reverse));
    }

    /// A topic with few tasks is looked through by its rows, however many others there are.
    fn look_through_small_topic(&mut self) -> bool {
        let Some(topic) = &self.wanted.ask.filter.topic else {
            return false;
        };
        let Some(rows) = self.core.table.rows_of_topic(topic, SMALL_TOPIC) else {
            return false;
        };
        // What a row knows of an ended task is its end.
        if self.wanted.ask.order != Order::EndedLast && rows.iter().any(|row| row.state.is_ended())
        {
            return false;
        }
        for row in rows {
            self.take(&Entry {
                id: row.id,
                topic: topic.clone(),
                key_hash: row.key_hash,
                class: chunk::Class::Wall,
                state: row.state,
                generation: 0,
                due_ms: row.at_ms,
                ended_ms: row.at_ms,
                wake_ms: 0,
                has_more_alarms: false,
                calls_back: false,
            });
        }
        true
    }

    fn look_through_memory(&mut self) {
        let table = &self.core.table;
        let keys = table.pick_in_memory(|entry| self.wanted.key_of(entry));
        self.found.extend(keys.into_iter().map(Reverse));
    }

    /// The chunks that may hold something, by the earliest that it can be.
    fn chunks(&self) -> Vec<(i64, u32)> {
        let Wanted { ask, range_ms, .. } = self.wanted;
        let (low, high) = (range_ms.0.max(self.wanted.after_ms()), range_ms.1);
        let states = &ask.filter.states;
        let admits = |class: chunk::Class| {
            let is_of = |state: &State| match class {
                chunk::Class::Wall | chunk::Class::Steady => {
                    matches!(state, State::Pending | State::Retrying)
                }
                chunk::Class::InFlight => state.is_in_flight(),
                chunk::Class::Paused => *state == State::Paused,
                chunk::Class::Succeeded => *state == State::Succeeded,
                chunk::Class::Dead => *state == State::Dead,
                chunk::Class::Cancelled | chunk::Class::Cancels => *state == State::Cancelled,
            };
            (states.is_empty() || states.iter().any(is_of))
                && (ask.order != Order::EndedLast || class.has_ended())
        };
        let mut chunks: Vec<(i64, u32)> = self
            .core
            .table
            .shelf()
            .chunks()
            .filter(|(_, meta)| meta.live() > 0 && admits(meta.class))
            .map(|(chunk, meta)| (ask.order.keys_of(meta), chunk))
            .filter(|((first_ms, last_ms), _)| *first_ms <= high && *last_ms >= low)
            .map(|((first_ms, _), chunk)| (first_ms, chunk))
            .collect();
        chunks.sort_unstable();
        chunks
    }

    fn look_into(&mut self, chunk: u32) {
        match self.core.table.entries_of_chunk(chunk) {
            Ok(entries) => {
                self.looked_at += entries.len().div_ceil(8);
                for entry in entries {
                    self.take(&entry);
                }
            }
            Err(error) => self.core.table.set_fault(error),
        }
    }
}

/// A dispatched task that has started is running, in memory only.
fn may_run(entry: &Entry, states: &[State]) -> bool {
    entry.state == State::Dispatched && states.contains(&State::Running)
}

/// Merges the shards' parts into one page; the place to go on from, or `None` at the end.
///
/// A shard that stopped early knows nothing beyond its place, so the page ends at the earliest such place.
pub fn merge(
    parts: Vec<PagePart>,
    order: Order,
    limit: usize,
) -> (Vec<TaskView>, Option<Position>) {
    let before = |a: &Position, b: &Position| match order {
        Order::DueFirst => a.cmp(b),
        Order::DueLast | Order::EndedLast => b.cmp(a),
    };
    let horizon = parts
        .iter()
        .filter_map(|part| part.stopped_at)
        .min_by(|a, b| before(a, b));
    let mut items: Vec<(Position, TaskView)> =
        parts.into_iter().flat_map(|part| part.items).collect();
    items.sort_by(|(a, _), (b, _)| before(a, b));
    if let Some(horizon) = horizon {
        items.retain(|(position, _)| before(position, &horizon).is_le());
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more {
        items.last().map(|(position, _)| *position)
    } else {
        horizon
    };
    (items.into_iter().map(|(_, view)| view).collect(), next)
}
