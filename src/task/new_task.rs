//! What a caller asks for when creating a task, before the topic's defaults fill the gaps.

use std::sync::Arc;

use crate::clock::{DurationMs, Now, WallMs};
use crate::task::guard::Guard;
use crate::task::model::Due;
use crate::task::retry::RetryPolicy;
use crate::task::spec::{
    Action, Class, Delivery, NameError, OnEnd, RawJson, TaskKey, TaskSpec, TopicName, Verify,
};
use crate::task::stage::Stages;
use crate::task::topic::{OnExisting, PartialTimeouts, Topic};

/// When a task is to be due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// At an instant; in the past means now.
    At(WallMs),
    /// After a length of time.
    After(DurationMs),
    /// At an instant that may have passed: it stays the due time, and the task is late.
    Missed(WallMs),
}

impl When {
    /// As a due time, from now.
    pub fn due(self, now: Now) -> Due {
        match self {
            Self::At(at) => Due::at(at, now),
            Self::After(length) => Due::after(length, now),
            Self::Missed(at) => Due::missed(at),
        }
    }
}

/// A task as a caller asks for it. Only the topic is always needed.
///
/// ```
/// use duetime::{Action, NewTask, TopicName};
/// use std::time::Duration;
///
/// let task = NewTask::new(TopicName::parse("order.unpaid")?)
///     .key("order-42")?
///     .after(Duration::from_secs(1800))
///     .action(Action::None);
/// # Ok::<(), duetime::NameError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct NewTask {
    /// Business line and kind of timeout.
    pub topic: TopicName,
    /// The caller's own id inside the topic.
    pub key: Option<TaskKey>,
    /// When; `None` is now. Stages have times of their own.
    pub when: Option<When>,
    /// What is done; `None` is the topic's, else to wait for a worker.
    pub action: Option<Action>,
    /// Its stages, if it has any.
    pub stages: Option<Stages>,
    /// Handed to the action.
    pub payload: Option<RawJson>,
    /// `None` is the topic's, else the default ladder.
    pub retry: Option<RetryPolicy>,
    /// Over the topic's, field by field.
    pub timeouts: PartialTimeouts,
    /// `None` is the topic's, else at least once.
    pub delivery: Option<Delivery>,
    /// `None` is the topic's, else normal.
    pub class: Option<Class>,
    /// `None` is the topic's, else to return the existing one.
    pub on_existing: Option<OnExisting>,
    /// How late it may start without anybody minding.
    pub max_lateness: Option<DurationMs>,
    /// Up to 16, names unique.
    pub tags: Vec<(String, String)>,
    /// What rules read.
    pub facts: Option<RawJson>,
    /// Asked when nobody knows whether it was done; `None` is the topic's.
    pub verify: Option<Box<Verify>>,
    /// Decides whether it fires; `None` is the topic's.
    pub guard: Option<Guard>,
    /// Told how it has ended; `None` is the topic's.
    pub on_end: Option<Box<OnEnd>>,
}

impl NewTask {
    /// A task of this topic, due now.
    pub fn new(topic: TopicName) -> Self {
        Self {
            topic,
            key: None,
            when: None,
            action: None,
            stages: None,
            payload: None,
            retry: None,
            timeouts: PartialTimeouts::default(),
            delivery: None,
            class: None,
            on_existing: None,
            max_lateness: None,
            tags: Vec::new(),
            facts: None,
            verify: None,
            guard: None,
            on_end: None,
        }
    }

    /// With the caller's own id.
    ///
    /// # Errors
    /// When it is not a key: 1 to 256 bytes without control characters.
    pub fn key(mut self, key: &str) -> Result<Self, NameError> {
        self.key = Some(TaskKey::parse(key)?);
        Ok(self)
    }

    /// Due after a length of time; finer than milliseconds is rounded up.
    #[must_use]
    pub fn after(mut self, length: std::time::Duration) -> Self {
        self.when = Some(When::After(DurationMs::at_least(length)));
        self
    }

    /// Due at an instant, in milliseconds of Unix time.
    #[must_use]
    pub fn at(mut self, at: WallMs) -> Self {
        self.when = Some(When::At(at));
        self
    }

    /// With this action.
    #[must_use]
    pub fn action(mut self, action: Action) -> Self {
        self.action = Some(action);
        self
    }

    /// With these stages, each at its time.
    ///
    /// ```
    /// use duetime::{Action, NewTask, Stage, Stages, Starts, StageName, TopicName};
    ///
    /// let stage = |name: &str, minutes: u64| -> Result<Stage, duetime::NameError> {
    ///     Ok(Stage {
    ///         name: StageName::parse(name)?,
    ///         starts: Starts::After(duetime::DurationMs::secs(60 * minutes)),
    ///         condition: None,
    ///         guard: None,
    ///         action: Some(Action::Handler { name: name.into() }),
    ///     })
    /// };
    /// let stages = Stages::new(vec![stage("dispatch", 60)?, stage("cancel", 120)?])?;
    /// let task = NewTask::new(TopicName::parse("order.no-courier")?).stages(stages);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stages(mut self, stages: Stages) -> Self {
        self.stages = Some(stages);
        self
    }

    /// When it, or its first stage, is due; `None` is now.
    pub fn first_when(&self) -> Option<When> {
        match &self.stages {
            Some(stages) => Some(When::After(stages.first_after())),
            None => self.when,
        }
    }

    /// With this payload.
    #[must_use]
    pub fn payload(mut self, payload: &serde_json::Value) -> Self {
        self.payload = Some(RawJson::from(payload.to_string()));
        self
    }

    /// With this retry policy.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    /// With this answer to a live task that has the key already.
    #[must_use]
    pub fn on_existing(mut self, on_existing: OnExisting) -> Self {
        self.on_existing = Some(on_existing);
        self
    }

    /// What the task is created with: its own, over the topic's, over the defaults. `timeouts` merge field by
    /// field, `retry`, `action` and `on_end` as a whole.
    pub fn spec(&self, topic: &Topic) -> Arc<TaskSpec> {
        let defaults = TaskSpec::default();
        let settings = &topic.settings;
        let mut tags = self.tags.clone();
        tags.sort();
        Arc::new(TaskSpec {
            action: self
                .action
                .clone()
                .or_else(|| settings.action.clone())
                .unwrap_or(defaults.action),
            stages: self.stages.clone(),
            payload: self.payload.clone(),
            retry: self
                .retry
                .clone()
                .or_else(|| settings.retry.clone())
                .unwrap_or(defaults.retry),
            timeouts: self
                .timeouts
                .over(settings.timeouts.over(defaults.timeouts)),
            delivery: self.delivery.or(settings.delivery).unwrap_or_default(),
            class: self.class.or(settings.class).unwrap_or_default(),
            max_lateness: self.max_lateness,
            tags,
            facts: self.facts.clone(),
            verify: self.verify.clone().or_else(|| settings.verify.clone()),
            guard: self.guard.clone().or_else(|| settings.guard.clone()),
            rule: None,
            on_end: self.on_end.clone().or_else(|| settings.on_end.clone()),
            callback_of: None,
        })
    }
}
