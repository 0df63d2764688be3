//! From what a caller asks for to what a shard is told: the gaps filled from the topic's settings, an id, its slot.

use std::sync::Arc;

use crate::clock::WallMs;
use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin};
use crate::ids::{Slot, TaskId};
use crate::rule::book::{RuleBook, RuleFailed};
use crate::rule::model::{Asked, Given, RuleFault};
use crate::shard::create::Creation;
use crate::task::callback;
use crate::task::new_task::{NewTask, When};
use crate::task::spec::{ResourceName, RuleRef, TopicName};
use crate::task::stage::Stages;
use crate::task::topic::{OnExisting, Topic, TopicBook};

/// Makes creations, one or many: what is the same for all of them is looked at once.
pub(super) struct Maker<'e> {
    engine: &'e Duetime,
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
            engine: self,
            is_accepting: self.accepting().is_ok(),
            book: self.book(),
            rules: self.rules(),
            now: self.now().wall,
            latest: None,
        }
    }

    /// A due time that a rule gave, if it is not too far ahead.
    pub(super) fn bounded(
        &self,
        name: &ResourceName,
        version: u64,
        due: When,
    ) -> Result<When, RuleFailed> {
        let most = self.max_delay();
        let is_too_far = match due {
            When::At(at) | When::Missed(at) => at > self.now().wall.after(most),
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
        engine.parts.disk.admit(&new)?;
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
            engine.parts.known_topics.admit(&callbacks, &self.book)?;
        }
        engine.may_do(&spec.action, format_args!("/action"))?;
        for (place, stage) in spec.stages.iter().flat_map(Stages::iter).enumerate() {
            if let Some(action) = &stage.action {
                engine.may_do(action, format_args!("/stages/{place}/action"))?;
            }
        }
        let mut when = new.first_when();
        let mut is_skipped = false;
        // What stands in the call wins over the rule.
        if let (None, Some(name)) = (when, rule) {
            let (given, version) = self.rules.due(&name, &Asked::new(&new, now))?;
            match given {
                Given::Due(due) => when = Some(self.engine.bounded(&name, version, due)?),
                Given::Skip => is_skipped = true,
            }
            let at = now;
            Arc::make_mut(&mut spec).rule = Some(RuleRef { name, version, at });
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
            self.engine.parts.known_topics.admit(name, &self.book)?;
            let topic = Arc::clone(self.book.get(name));
            self.latest = Some((name.clone(), topic));
        }
        let (_, topic) = self.latest.as_ref().expect("it was set above");
        Ok(topic)
    }
}
