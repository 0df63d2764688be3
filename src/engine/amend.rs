//! Changes of what a task carries: facts, tags, payload. If facts change, its rule is asked again.
//!
//! The task is read, the new content is worked out here, and it is put in only if nobody has changed the task
//! meanwhile; else all begins anew, a few times.

use std::sync::Arc;

use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::rule::again::{Again, again, is_open};
use crate::rule::book::RuleFailed;
use crate::shard::messages::{Target, VerbDone, VerbRefused, Wants};
use crate::task::amendment::Amendment;
use crate::task::event::{Event, Refusal};
use crate::task::model::Task;
use crate::task::spec::TaskSpec;

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
        let spec = amendment.of(&task.spec)?;
        let again = match amendment.facts.is_some() && is_open(task) {
            true => again(task, &spec, &self.rules(), self.now(), self.max_delay())?,
            false => None,
        };
        Ok(event_of(task, spec, again))
    }

    /// What the rule of a task, asked again, makes of it; `None` if it stands as the rule says.
    pub(super) fn recomputed(&self, task: &Task) -> Result<Option<Event>, RuleFailed> {
        if !is_open(task) {
            return Ok(None);
        }
        let said = again(
            task,
            &task.spec,
            &self.rules(),
            self.now(),
            self.max_delay(),
        )?;
        let stands_so = match &said {
            Some(Again::Stands(stand)) => {
                stand.due.is_none()
                    && stand.stages == task.spec.stages
                    && stand.at_stage == task.at_stage
            }
            Some(Again::Skip { .. }) => false,
            None => true,
        };
        Ok((!stands_so).then(|| event_of(task, TaskSpec::clone(&task.spec), said)))
    }
}

fn event_of(task: &Task, mut spec: TaskSpec, again: Option<Again>) -> Event {
    let (mut due, mut at_stage) = (None, task.at_stage);
    match again {
        Some(Again::Skip { reason }) => return Event::Cancel { reason },
        Some(Again::Stands(stand)) => {
            (due, at_stage) = (stand.due, stand.at_stage);
            (spec.rule, spec.stages) = (Some(stand.rule), stand.stages);
        }
        None => {}
    }
    Event::Amend {
        spec: Arc::new(spec),
        due,
        at_stage,
        changes_seen: task.changes.total,
    }
}
