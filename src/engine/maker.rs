//! From what a caller asks for to what a shard is told: the gaps filled from the topic's settings, an id, its slot.

use std::fmt;
use std::sync::Arc;

use crate::clock::{DurationMs, Now, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin};
use crate::ids::{Slot, TaskId};
use crate::rule::book::{RuleBook, RuleFailed};
use crate::rule::model::{Asked, Given, RuleFault};
use crate::rule::staged::latest;
use crate::shard::create::Creation;
use crate::task::callback;
use crate::task::new_task::{NewTask, When};
use crate::task::spec::{Action, ResourceName, RuleRef, TopicName};
use crate::task::stage::Stages;
use crate::task::topic::{OnExisting, Topic, TopicBook};

/// Makes creations, one or many: what is the same for all of them is looked at once.
pub(super) struct Maker<'e> {
    engine: Gate<'e>,
    is_accepting: bool,
    book: Arc<TopicBook>,
    rules: Arc<RuleBook>,
    now: WallMs,
    /// The topic that was let through last: in a batch it is mostly the next one's too.
    latest: Option<(TopicName, Arc<Topic>)>,
}

impl Duetime {
    pub(super) fn maker(&self) -> Maker<'_> {
        Maker {
            is_accepting: self.accepting().is_ok(),
            ..Gate::Engine(self).maker()
        }
    }
}

fn bounded(
    name: &ResourceName,
    version: u64,
    due: When,
    (now, most): (WallMs, DurationMs),
) -> Result<When, RuleFailed> {
    let is_too_far = match due {
        When::At(at) | When::Missed(at) => at > now.after(most),
        When::After(length) => length > most,
    };
    if is_too_far {
        let (name, fault) = (name.clone(), RuleFault::TooFar(most));
        return Err(RuleFailed {
            name,
            version,
            fault,
        });
    }
    Ok(due)
}

/// What a create has to get past, and what it is worked out from.
#[derive(Clone, Copy)]
pub(super) enum Gate<'e> {
    /// The engine.
    Engine(&'e Duetime),
    /// What would be so, if it were.
    Play(&'e Premises),
}

/// What creates are worked out from in a play.
pub(super) struct Premises {
    pub now: Now,
    pub max_delay: DurationMs,
    pub book: Arc<TopicBook>,
    pub rules: Arc<RuleBook>,
}

impl<'e> Gate<'e> {
    pub fn maker(self) -> Maker<'e> {
        let book = match self {
            Self::Engine(engine) => engine.book(),
            Self::Play(premises) => Arc::clone(&premises.book),
        };
        Maker {
            engine: self,
            is_accepting: true,
            book,
            rules: self.rules(),
            now: self.now().wall,
            latest: None,
        }
    }

    pub fn now(self) -> Now {
        match self {
            Self::Engine(engine) => engine.now(),
            Self::Play(premises) => premises.now,
        }
    }

    pub fn rules(self) -> Arc<RuleBook> {
        match self {
            Self::Engine(engine) => engine.rules(),
            Self::Play(premises) => Arc::clone(&premises.rules),
        }
    }

    fn max_delay(self) -> DurationMs {
        match self {
            Self::Engine(engine) => engine.max_delay(),
            Self::Play(premises) => premises.max_delay,
        }
    }

    /// Whether there is room for the task.
    fn admit(self, new: &NewTask) -> Result<(), EngineError> {
        match self {
            Self::Engine(engine) => Ok(engine.parts.disk.admit(new)?),
            Self::Play(_) => Ok(()),
        }
    }

    /// A create goes by this version of a rule.
    fn count(self, name: &ResourceName, version: u64, book: &RuleBook) {
        match self {
            Self::Engine(engine) => engine.parts.rule_counts.count(name, version, book),
            Self::Play(_) => {}
        }
    }

    /// Whether there is room for its topic.
    fn admit_topic(self, name: &TopicName, book: &TopicBook) -> Result<(), EngineError> {
        match self {
            Self::Engine(engine) => engine.parts.known_topics.admit(name, book),
            Self::Play(_) => Ok(()),
        }
    }

    /// In a play it has been asked before.
    fn may_do(self, action: &Action, at: fmt::Arguments<'_>) -> Result<(), EngineError> {
        match self {
            Self::Engine(engine) => engine.may_do(action, at),
            Self::Play(_) => Ok(()),
        }
    }

    fn bounded(self, name: &ResourceName, version: u64, due: When) -> Result<When, RuleFailed> {
        bounded(name, version, due, (self.now().wall, self.max_delay()))
    }
}

impl Maker<'_> {
    /// What is told to the shard that the id leads to. `place` is that in the request.
    pub fn creation(
        &mut self,
        new: NewTask,
        origin: Option<Origin>,
        place: usize,
    ) -> Result<Creation, EngineError> {
        if !self.is_accepting {
            return Err(EngineError::ShuttingDown);
        }
        let engine = self.engine;
        engine.admit(&new)?;
        let now = self.now;
        let topic = self.topic(&new.topic)?;
        let tail = origin.map(|origin| origin.request(place));
        let slot = match (&new.key, tail) {
            (Some(key), _) => Slot::of_key(new.topic.as_str(), key.as_str()),
            (None, Some(tail)) => Slot::of_hash(tail),
            (None, None) => Slot::random(),
        };
        let id = match (origin, tail) {
            (Some(origin), Some(tail)) => TaskId::with_tail(slot, origin.first_at, tail),
            _ => TaskId::new(slot, now),
        };
        let mut spec = new.spec(topic);
        let on_existing = new.on_existing.or(topic.settings.on_existing);
        let rule = topic.settings.rule.clone();
        if spec.on_end.is_some() {
            let callbacks = callback::topic_of(&new.topic);
            engine.admit_topic(&callbacks, &self.book)?;
        }
        engine.may_do(&spec.action, format_args!("/action"))?;
        for (clock, action) in spec.timeouts.then.escalations() {
            let clock = clock.name();
            engine.may_do(action, format_args!("/timeouts/{clock}/then/escalate"))?;
        }
        let mut when = new.first_when();
        let mut is_skipped = false;
        // What stands in the call wins over the rule.
        if let (None, Some(name)) = (when, rule) {
            let (given, version) = self.rules.due(&name, &Asked::new(&new, now))?;
            let spec = Arc::make_mut(&mut spec);
            match given {
                Given::Due(due) => when = Some(engine.bounded(&name, version, due)?),
                Given::Skip => is_skipped = true,
                // As if they stood in the call.
                Given::Staged(stages) => {
                    engine.bounded(&name, version, When::After(latest(&stages)))?;
                    when = Some(When::After(stages.first_after()));
                    spec.stages = Some(stages);
                }
            }
            engine.count(&name, version, &self.rules);
            let at = now;
            spec.rule = Some(RuleRef { name, version, at });
        }
        for (place, stage) in spec.stages.iter().flat_map(Stages::iter).enumerate() {
            if let Some(action) = &stage.action {
                engine.may_do(action, format_args!("/stages/{place}/action"))?;
            }
        }
        Ok(Creation {
            id,
            spec,
            topic: new.topic,
            key: new.key,
            when,
            on_existing: on_existing.unwrap_or(OnExisting::Return),
            request: tail,
            is_skipped,
        })
    }

    fn topic(&mut self, name: &TopicName) -> Result<&Arc<Topic>, EngineError> {
        if self
            .latest
            .as_ref()
            .is_none_or(|(latest, _)| latest != name)
        {
            self.engine.admit_topic(name, &self.book)?;
            let topic = Arc::clone(self.book.get(name));
            self.latest = Some((name.clone(), topic));
        }
        let (_, topic) = self.latest.as_ref().expect("it was set above");
        Ok(topic)
    }
}
