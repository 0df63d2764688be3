//! Late answers, looked at.

use std::sync::Arc;

use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::shard::late::{LateAsk, LatePage};
use crate::shard::messages::{GetWithLate, ListLate, Target};
use crate::shard::query::TaskView;
use crate::task::late::LateAnswer;

impl Duetime {
    /// One page of late answers of all tasks, or of the one that the filter names; the newest first.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn late_answers(&self, ask: LateAsk) -> Result<LatePage, EngineError> {
        let router = &self.parts.router;
        let (limit, ask) = (ask.limit, Arc::new(ask));
        let pages = match ask.filter.task {
            Some(task) => {
                let shard = router.shard_of(task.slot());
                vec![router.ask(shard, ListLate(ask)).await?]
            }
            None => router.ask_all(|_| ListLate(Arc::clone(&ask))).await?,
        };
        Ok(LatePage::merged(pages, limit))
    }

    /// Looks at a task and at the late answers for its attempts, the oldest first.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn get_with_late(
        &self,
        target: Target,
    ) -> Result<Option<(TaskView, Vec<LateAnswer>)>, EngineError> {
        let shard = self.shard_of(&target);
        Ok(self.parts.router.ask(shard, GetWithLate(target)).await??)
    }
}
