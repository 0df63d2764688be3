//! Lists: what a page asks for, and the bounded look at the records that answers it.

use std::ops::Bound;

use crate::clock::WallMs;
use crate::ids::{ShardId, TaskId};
use crate::limits;
use crate::shard::table::TaskTable;
use crate::task::model::{DeadReason, State, Task};
use crate::task::spec::{Class, TaskKey, TopicName};

/// A task as it is shown, with what only its shard knows.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// The task.
    pub task: Task,
    /// What keeps a due task from starting.
    pub blocked_by: Option<&'static str>,
    /// Its shard.
    pub shard: ShardId,
    /// Milliseconds to its due time.
    pub remaining_ms: u64,
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
    /// Of this class.
    pub class: Option<Class>,
    /// With this text in key, tags, payload or last error.
    pub text: Option<String>,
}

impl TaskFilter {
    fn admits(&self, task: &Task) -> bool {
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
}

/// What one shard has for a page.
#[derive(Clone, Debug, Default)]
pub struct PagePart {
    /// In the list's order.
    pub items: Vec<(Position, TaskView)>,
    /// Where the look stopped; `None` when there is nothing behind it.
    pub stopped_at: Option<Position>,
}

/// Looks through a shard's tasks for one page. `view` makes a task's view.
pub fn page(table: &TaskTable, ask: &PageAsk, view: impl Fn(&Task) -> TaskView) -> PagePart {
    let filter = &ask.filter;
    let after = ask.after.map(|position| (position.at, position.id));
    let lowest = TaskId::from_bytes([0; 16]);
    match ask.order {
        Order::EndedLast => {
            let end = after.map_or(Bound::Unbounded, Bound::Excluded);
            let ids = table.ids_by_end().range((Bound::Unbounded, end)).rev();
            look(table, ask, ids, view)
        }
        Order::DueFirst => {
            let Some(ids) = table.ids_by_due(filter.topic.as_ref()) else {
                return PagePart::default();
            };
            let from = filter.due.after.map(|at| (at, lowest));
            let start = match (after, from) {
                (Some(after), Some(from)) if from > after => Bound::Included(from),
                (Some(after), _) => Bound::Excluded(after),
                (None, Some(from)) => Bound::Included(from),
                (None, None) => Bound::Unbounded,
            };
            let end = filter
                .due
                .before
                .map_or(Bound::Unbounded, |at| Bound::Excluded((at, lowest)));
            if is_empty(&start, &end) {
                return PagePart::default();
            }
            look(table, ask, ids.range((start, end)), view)
        }
        Order::DueLast => {
            let Some(ids) = table.ids_by_due(filter.topic.as_ref()) else {
                return PagePart::default();
            };
            let until = filter.due.before.map(|at| (at, lowest));
            let end = match (after, until) {
                (Some(after), Some(until)) => Bound::Excluded(after.min(until)),
                (Some(one), None) | (None, Some(one)) => Bound::Excluded(one),
                (None, None) => Bound::Unbounded,
            };
            let start = filter
                .due
                .after
                .map_or(Bound::Unbounded, |at| Bound::Included((at, lowest)));
            if is_empty(&start, &end) {
                return PagePart::default();
            }
            look(table, ask, ids.range((start, end)).rev(), view)
        }
    }
}

/// `BTreeSet::range` panics on a range that ends before it starts.
fn is_empty<T: Ord>(start: &Bound<T>, end: &Bound<T>) -> bool {
    match (start, end) {
        (
            Bound::Included(start) | Bound::Excluded(start),
            Bound::Included(end) | Bound::Excluded(end),
        ) => start >= end,
        _ => false,
    }
}

fn look<'a>(
    table: &TaskTable,
    ask: &PageAsk,
    ids: impl Iterator<Item = &'a (WallMs, TaskId)>,
    view: impl Fn(&Task) -> TaskView,
) -> PagePart {
    let mut part = PagePart::default();
    let scan_max = ask.scan_max.clamp(1, limits::PAGE_SCAN_MAX);
    let mut searched_bytes = 0;
    for (looked_at, (at, id)) in ids.enumerate() {
        let position = Position { at: *at, id: *id };
        if part.items.len() >= ask.limit
            || looked_at >= scan_max
            || searched_bytes >= limits::PAGE_SEARCH_BYTES_MAX
        {
            return part;
        }
        part.stopped_at = Some(position);
        if ask.filter.text.is_some() {
            searched_bytes += table.get(*id).map_or(0, |entry| entry.task.weight());
        }
        if let Some(entry) = table.get(*id)
            && ask.filter.admits(&entry.task)
        {
            part.items.push((position, view(&entry.task)));
        }
    }
    part.stopped_at = None;
    part
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
