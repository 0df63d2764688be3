//! Creating tasks: keys, what is done when one is taken, and cancels that came first.

use std::sync::Arc;

use crate::clock::{DurationMs, Now};
use crate::ids::TaskId;
use crate::shard::core::ShardCore;
use crate::shard::messages::Wants;
use crate::shard::notes::TooManyTombstones;
use crate::shard::query::{Shown, Slim, TaskView};
use crate::store::Tombstone;
use crate::task::event::{Event, NewDue, Refusal};
use crate::task::model::{Due, State, Task};
use crate::task::new_task::When;
use crate::task::spec::{RuleRef, TaskKey, TaskSpec, TopicName};
use crate::task::topic::OnExisting;

/// A task to be created, with the topic's defaults filled in.
#[derive(Clone, Debug)]
pub struct Creation {
    /// The id it gets if it is new. The same id again finds the task that it made.
    pub id: TaskId,
    /// Its topic.
    pub topic: TopicName,
    /// The caller's own id.
    pub key: Option<TaskKey>,
    /// What was asked for.
    pub spec: Arc<TaskSpec>,
    /// When; `None` is now.
    pub when: Option<When>,
    /// If a live task has the key.
    pub on_existing: OnExisting,
    /// Hash of the request, if it may be sent again.
    pub request: Option<u64>,
    /// Its rule says that none is needed: it is cancelled at once.
    pub is_skipped: bool,
}

impl Creation {
    fn skip_reason(&self) -> String {
        let rule = self.spec.rule.as_ref();
        rule.map(RuleRef::skip_reason).unwrap_or_default()
    }

    /// When it is due. What a rule has given counts from when the rule was asked, a moment ago.
    fn due(&self, now: Now) -> Due {
        let when = self.when.unwrap_or(When::After(DurationMs(0)));
        let mut due = when.due(now);
        if let (When::After(length), Some(rule)) = (when, &self.spec.rule) {
            due.at = rule.at.after(length);
        }
        due
    }
}

/// What became of it. A task is shown as `V`.
#[derive(Clone, Debug)]
pub enum Created<V = Box<TaskView>> {
    /// A new task.
    New(V),
    /// The live task that has the key, as it is now.
    Existing(V),
    /// A cancel had come first: the task is cancelled.
    Cancelled(V),
    /// The key is taken.
    Exists(TaskId),
    /// The live task that has the key can't be changed now.
    Refused(Refusal),
}

impl<V> Created<V> {
    /// The same, with tasks shown in another way.
    pub fn map<W>(self, show: impl FnOnce(V) -> W) -> Created<W> {
        match self {
            Self::New(task) => Created::New(show(task)),
            Self::Existing(task) => Created::Existing(show(task)),
            Self::Cancelled(task) => Created::Cancelled(show(task)),
            Self::Exists(id) => Created::Exists(id),
            Self::Refused(refusal) => Created::Refused(refusal),
        }
    }
}

impl ShardCore {
    /// Creates one task, or does with the live one of the same key what was asked for.
    pub fn create(&mut self, new: Creation, by: &str, now: Now) -> Created {
        self.make(new, by, now).map(|slim| {
            let view = self.view_of(slim.id, now);
            Box::new(view.expect("it was there just now"))
        })
    }

    /// The same, with no more than what is wanted to be shown.
    pub fn create_shown(
        &mut self,
        new: Creation,
        wants: Wants,
        by: &str,
        now: Now,
    ) -> Created<Shown> {
        match wants {
            Wants::Whole => self.create(new, by, now).map(Shown::Whole),
            Wants::Slim => self.make(new, by, now).map(Shown::Slim),
        }
    }

    fn make(&mut self, new: Creation, by: &str, now: Now) -> Created<Slim> {
        if self.table.row(new.id).is_some()
            && let Some(there) = self.view_of(new.id, now)
        {
            return Created::New(Slim::from(&*there.task));
        }
        let due = new.due(now);
        if let Some(key) = &new.key {
            if let Some(live) = self.table.live(&new.topic, key) {
                return self.meet_existing(live, &new, by, now);
            }
            if let Some(tombstone) = self.notes.tombstone(&new.topic, key, now) {
                let reason = tombstone.reason.clone();
                return self.create_cancelled(new, reason, by, now);
            }
        }
        if new.is_skipped {
            return self.create_skipped(new, by, now);
        }
        let mut task = Task::new(new.id, new.topic, new.key, new.spec, due, now, by);
        task.thaw = self.book.get(&task.topic).thaw;
        let slim = Slim::from(&task);
        self.add(task, now);
        Created::New(slim)
    }

    /// A task that could be read before.
    fn slim_of(&mut self, id: TaskId) -> Slim {
        let entry = self.table.read(id);
        Slim::from(&*entry.expect("it was read in this step").task)
    }

    fn meet_existing(&mut self, live: TaskId, new: &Creation, by: &str, now: Now) -> Created<Slim> {
        // Its record may not read back. The key is taken all the same.
        let Some(entry) = self.table.read(live) else {
            return Created::Exists(live);
        };
        let state = entry.task.state;
        if new.is_skipped {
            return self.meet_skipped(live, state, new, now);
        }
        let due = new.due(now);
        let later = due.at > entry.task.fires_next().at;
        let event = match new.on_existing {
            OnExisting::Reject => return Created::Exists(live),
            OnExisting::Replace => Some(Event::Replace {
                spec: Arc::clone(&new.spec),
                due,
            }),
            OnExisting::Extend => Some(Event::Reschedule {
                due: NewDue::To(due),
            }),
            OnExisting::KeepLater if later => Some(Event::Reschedule {
                due: NewDue::To(due),
            }),
            OnExisting::Return | OnExisting::KeepLater => None,
        };
        let done_before = new
            .request
            .is_some_and(|request| self.done_before(live, request, now).is_some());
        if let Some(event) = event
            && !done_before
        {
            if let Some(Err(refusal)) = self.change(live, event, by, now) {
                return Created::Refused(refusal);
            }
            if let Some(request) = new.request {
                self.note_request(live, request);
            }
        }
        Created::Existing(self.slim_of(live))
    }

    /// A live task meets a create whose rule says that none is needed: there is no due time to be given to it. What was
    /// to take its place calls it off; all else leaves it as it is.
    fn meet_skipped(
        &mut self,
        live: TaskId,
        state: State,
        new: &Creation,
        now: Now,
    ) -> Created<Slim> {
        match new.on_existing {
            OnExisting::Reject => Created::Exists(live),
            OnExisting::Return | OnExisting::Extend | OnExisting::KeepLater => {
                Created::Existing(self.slim_of(live))
            }
            OnExisting::Replace if state.is_in_flight() => {
                let verb = "replace";
                Created::Refused(Refusal::IllegalState { state, verb })
            }
            OnExisting::Replace => {
                let reason = new.skip_reason();
                let _ = self.change(live, Event::Cancel { reason }, "rule", now);
                Created::Cancelled(self.slim_of(live))
            }
        }
    }

    fn create_cancelled(
        &mut self,
        new: Creation,
        reason: String,
        by: &str,
        now: Now,
    ) -> Created<Slim> {
        let by_tombstone = "tombstone";
        let earlier = new
            .key
            .as_ref()
            .and_then(|key| self.table.latest(&new.topic, key))
            .and_then(|id| self.view_of(id, now))
            .filter(|view| {
                let last = view.task.changes.kept.last();
                view.task.state == State::Cancelled
                    && last.is_some_and(|last| last.by == by_tombstone)
            })
            .map(|view| view.task.id);
        let id = earlier.unwrap_or(new.id);
        if earlier.is_none() {
            let due = new.due(now);
            self.add(
                Task::new(id, new.topic, new.key, new.spec, due, now, by),
                now,
            );
            let _ = self.change(id, Event::Cancel { reason }, by_tombstone, now);
        }
        Created::Cancelled(self.slim_of(id))
    }

    fn create_skipped(&mut self, new: Creation, by: &str, now: Now) -> Created<Slim> {
        let due = new.due(now);
        let (id, reason) = (new.id, new.skip_reason());
        self.add(
            Task::new(id, new.topic, new.key, new.spec, due, now, by),
            now,
        );
        let _ = self.change(id, Event::Cancel { reason }, "rule", now);
        Created::Cancelled(self.slim_of(id))
    }

    /// Lays a tombstone on a key that has no live task.
    ///
    /// # Errors
    /// When there are too many.
    pub fn lay_tombstone(&mut self, tombstone: Tombstone) -> Result<(), TooManyTombstones> {
        let alarm = self.notes.lay(tombstone)?;
        self.set_alarm(alarm);
        Ok(())
    }
}
