//! Changes of what a task carries: facts, tags, payload. If facts change, its rule is asked again.
//!
//! The task is read, the new content is worked out here, and it is put in only if nobody has changed the task
//! meanwhile; else all begins anew, a few times.

use std::sync::Arc;

use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::rule::model::{Asked, Given};
use crate::shard::messages::{Target, VerbDone, VerbRefused, Wants};
use crate::task::amendment::Amendment;
use crate::task::event::{Event, Refusal};
use crate::task::model::{Due, State, Task};
use crate::task::new_task::{NewTask, When};
use crate::task::spec::RuleRef;

/// Asks before somebody who is never first is told so.
const TRIES: usize = 5;

impl Duetime {
    /// Changes what a task carries.
    ///
    /// # Errors
    /// When it has begun to run or has ended, when it would carry too much, when its rule gives no due time any more;
    /// see [`EngineError`].
    pub async fn amend(
        &self,
        target: Target,
        amendment: &Amendment,
        by: &str,
        wants: Wants,
    ) -> Result<VerbDone, EngineError> {
        let mut tries = 1;
        loop {
            let view = self.get(target.clone()).await?;
            let view = view.ok_or(VerbRefused::NotFound)?;
            let event = self.amended(&view.task, amendment)?;
            let done = self.verb_from(target.clone(), event, None, by, wants).await;
            match done {
                Err(EngineError::Refused(VerbRefused::Refused(Refusal::ChangedMeanwhile)))
                    if tries < TRIES =>
                {
                    tries += 1;
                }
                done => return done,
            }
        }
    }

    fn amended(&self, task: &Task, amendment: &Amendment) -> Result<Event, EngineError> {
        let mut spec = amendment.of(&task.spec)?;
        let waits_first = matches!(task.state, State::Pending | State::Paused) || task.asks_guard();
        let rule = spec.rule.clone();
        let rule = rule.filter(|_| amendment.facts.is_some() && waits_first);
        let mut due = None;
        if let Some(rule) = rule {
            let asked = NewTask {
                key: task.key.clone(),
                tags: spec.tags.clone(),
                facts: spec.facts.clone(),
                ..NewTask::new(task.topic.clone())
            };
            let now = self.now();
            let asked = Asked::again(&asked, task.created_at, now.wall);
            let (given, version) = self.rules().due(&rule.name, &asked)?;
            let at = match given {
                Given::Skip => {
                    let reason = rule.skip_reason();
                    return Ok(Event::Cancel { reason });
                }
                Given::Due(When::After(length)) => task.created_at.after(length),
                Given::Due(When::At(at) | When::Missed(at)) => at,
            };
            self.bounded(&rule.name, version, When::At(at))?;
            due = Some(Due::at(at, now));
            spec.rule = Some(RuleRef { version, ..rule });
        }
        Ok(Event::Amend {
            spec: Arc::new(spec),
            due,
            changes_seen: task.changes.total,
        })
    }
}
