//! Resources that are kept by name under growing versions: calendars, schedules. Read from the book in force, changed
//! through the registry; a change is on the disk, and in force for whatever reads the book next, when it is answered.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::registry::kind::{Kind, Resource};
use crate::engine::registry::resources::{DeleteResource, ListVersions, Put, PutResource};
use crate::engine::registry::{RegistryError, Version};
use crate::rule::book::{Kept, RuleBook};
use crate::shard::messages::TopicCounts;
use crate::task::spec::{ResourceName, TopicName};
use crate::task::topic::Topic;

impl Duetime {
    /// Calendars, schedules and the like as they are now.
    pub fn rules(&self) -> Arc<RuleBook> {
        self.parts.rules.read().clone()
    }

    /// A resource as it is now.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn resource<R: Resource>(&self, name: &ResourceName) -> Result<Arc<Kept<R>>, EngineError> {
        let found = R::all(&self.rules()).get(name).cloned();
        found.ok_or_else(|| {
            let (kind, name) = (R::KIND, name.clone());
            RegistryError::Unknown { kind, name }.into()
        })
    }

    /// Puts a resource in the place of what has its name. `body` is what is kept and shown of it.
    ///
    /// # Errors
    /// When it needs another that is not there, when there are too many, and see [`EngineError`].
    pub async fn put_resource<R: Resource>(
        &self,
        name: ResourceName,
        body: String,
        meaning: R,
        by: &str,
    ) -> Result<Put<R>, EngineError> {
        // What would be refused at each create is refused here.
        for (at, action) in meaning.actions() {
            self.may_do(action, format_args!("{at}"))?;
        }
        let by = by.to_owned();
        let put = PutResource {
            name,
            body,
            meaning,
            by,
        };
        let put = self.ask_registry(put).await;
        // A schedule begins at once.
        self.parts.schedules.ring();
        put
    }

    /// Takes a resource away.
    ///
    /// # Errors
    /// When there is none of that name, or another needs it; see [`EngineError`].
    pub async fn delete_resource<R: Resource>(
        &self,
        name: ResourceName,
        by: &str,
    ) -> Result<(), EngineError> {
        let (by, kind) = (by.to_owned(), PhantomData::<R>);
        self.ask_registry(DeleteResource { name, by, kind }).await
    }

    /// The versions that are kept of a resource, the latest first; of a deleted one its last.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn versions<R: Resource>(
        &self,
        name: ResourceName,
    ) -> Result<Vec<Version>, EngineError> {
        let kind = R::KIND;
        self.ask_registry(ListVersions { kind, name }).await
    }
}

impl Duetime {
    /// By which versions of a rule creates went since the start, the latest first, and how many.
    pub fn rule_counts(&self, name: &ResourceName) -> Vec<(u64, u64)> {
        self.parts.rule_counts.of(name)
    }
}

/// What goes by a calendar.
#[derive(Clone, Debug, Default)]
pub struct CalendarUse {
    /// The rules that count by it.
    pub rules: Vec<ResourceName>,
    /// The topics that go by these rules, and how many tasks each of them has that have not ended; `None` if the shards
    /// can't be asked now.
    pub topics: Vec<(TopicName, Option<u64>)>,
}

impl Duetime {
    /// What goes by a calendar. Due times that were given before it was changed stay as they are.
    pub async fn calendar_use(&self, name: &ResourceName) -> CalendarUse {
        let book = self.rules();
        let need = (Kind::Calendar, name.clone());
        let rules = book.rules.iter().filter(|(rule, kept)| {
            let rollout = book.rollout(rule, kept.version);
            kept.meaning.needs().contains(&need)
                || rollout.is_some_and(|rollout| rollout.meaning.needs().contains(&need))
        });
        let rules: Vec<ResourceName> = rules.map(|(rule, _)| rule.clone()).collect();
        let topics = self.book();
        let goes_by = |topic: &Topic| {
            let rule = topic.settings.rule.as_ref();
            rule.is_some_and(|rule| rules.contains(rule))
        };
        let topics = topics.iter().filter(|(_, topic)| goes_by(topic));
        let mut topics: Vec<TopicName> = topics.map(|(topic, _)| topic.clone()).collect();
        topics.sort_unstable();
        let counts = match topics.is_empty() {
            true => None,
            false => self.topic_counts().await.ok(),
        };
        let count = |topic: TopicName| {
            let counts = counts.as_ref().map(|(counts, _)| counts);
            let live = counts.map(|counts| counts.get(&topic).map_or(0, TopicCounts::live));
            (topic, live)
        };
        CalendarUse {
            topics: topics.into_iter().map(count).collect(),
            rules,
        }
    }
}
