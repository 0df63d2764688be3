//! What is to be played through: which tasks, under which rules, and how attempts are assumed to end.

use crate::clock::{DurationMs, WallMs};
use crate::rule::{Calendar, Rule, Schedule};
use crate::shard::query::TaskFilter;
use crate::task::new_task::NewTask;
use crate::task::spec::{ByTopic, ResourceName, TopicName};
use crate::task::topic::TopicSettings;

/// A what-if: what would fire, if this were so.
///
/// ```
/// use duetime::{DurationMs, NewTask, TopicName, WhatIf};
///
/// let order = NewTask::new(TopicName::parse("order.unpaid")?).after(std::time::Duration::from_secs(1800));
/// let what_if = WhatIf {
///     tasks: vec![order],
///     ..WhatIf::lasting(DurationMs::secs(7 * 24 * 3600))
/// };
/// # Ok::<(), duetime::NameError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// What is told begins here, and what is given comes in; `None` is now.
    pub from: Option<WallMs>,
    /// When it ends.
    pub until: Until,
    /// Tasks that are created at the beginning.
    pub tasks: Vec<NewTask>,
    /// Topics as they were put, in the place of those of their names.
    pub topics: Vec<(TopicName, TopicSettings)>,
    /// Rules that are in force from the beginning.
    pub rules: Vec<(ResourceName, Rule)>,
    /// The same of calendars.
    pub calendars: Vec<(ResourceName, Calendar)>,
    /// Schedules that begin at the beginning.
    pub schedules: Vec<(ResourceName, Schedule)>,
    /// Which of the stored tasks take part; `None`: no task, and no stored schedule either.
    pub stored: Option<TaskFilter>,
    /// How attempts end.
    pub assume: Assumptions,
    /// Width of the buckets in which is counted what fires.
    pub bucket: DurationMs,
    /// At most so many events are listed; all are counted.
    pub events_max: usize,
    /// Whatever is left to chance follows from it.
    pub seed: u64,
}

impl WhatIf {
    /// Nothing but all that is stored, from now on, for so long.
    pub fn lasting(length: DurationMs) -> Self {
        Self {
            from: None,
            until: Until::For(length),
            tasks: Vec::new(),
            topics: Vec::new(),
            rules: Vec::new(),
            calendars: Vec::new(),
            schedules: Vec::new(),
            stored: Some(TaskFilter::default()),
            assume: Assumptions::default(),
            bucket: DurationMs::secs(60),
            events_max: 1_000,
            seed: 0,
        }
    }
}

/// When a play ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Then.
    At(WallMs),
    /// So long after its beginning.
    For(DurationMs),
}

/// How attempts end.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    /// Of topics that are not named.
    pub usual: Assumption,
    /// Of others.
    pub topics: ByTopic<Assumption>,
}

impl Assumptions {
    pub(super) fn of(&self, topic: &TopicName) -> &Assumption {
        self.topics.get(topic).unwrap_or(&self.usual)
    }
}

/// How the attempts of a topic end.
#[derive(Clone, PartialEq, Debug)]
pub struct Assumption {
    /// In which way.
    pub ends: Ends,
    /// So large a share of them, from 0 to 1; the others succeed.
    pub share: f64,
    /// The error code of those that fail: `http_503`, say.
    pub code: String,
    /// How long one takes; what takes longer than it may times out.
    pub takes: DurationMs,
}

impl Default for Assumption {
    fn default() -> Self {
        Self {
            ends: Ends::Succeed,
            share: 1.0,
            code: "assumed".to_owned(),
            takes: DurationMs(100),
        }
    }
}

/// In which way attempts end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ends {
    /// The work is done; what is asked is so.
    #[default]
    Succeed,
    /// It is not; what is asked is not so yet.
    Fail,
    /// There is no answer in time, or a worker is never heard of again.
    TimeOut,
}
