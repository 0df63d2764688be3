//! Outside workers: they lease tasks, keep their leases, and answer.

use std::sync::Arc;

use crate::clock::{DurationMs, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin};
use crate::executor::pull::Waiting;
use crate::ids::{AttemptToken, ShardId, Slot, TaskId};
use crate::shard::lease::Lease;
use crate::shard::messages::{FinishAttempt, FinishOnce, KeepLease, LeaseTasks};
use crate::shard::query::TaskView;
use crate::task::event::Event;
use crate::task::spec::TopicName;

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct LeaseAsk {
    /// Of these topics.
    pub topics: Vec<TopicName>,
    /// At most this many.
    pub max: usize,
    /// For so long.
    pub lease: DurationMs,
    /// Wait for the first so long.
    pub wait: DurationMs,
    /// The worker's name.
    pub worker: String,
}

impl Duetime {
    /// Leases due pull tasks; waits for the first when there is none. Empty when the wait is over.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn lease(&self, ask: LeaseAsk) -> Result<Vec<Lease>, EngineError> {
        let until = tokio::time::Instant::now() + ask.wait.to_std();
        let topics: Arc<[TopicName]> = ask.topics.into();
        let mut rung: Option<Waiting<'_>> = None;
        loop {
            self.accepting()?;
            // In line before the shards are asked, so that what comes due in between rings.
            let waiting = self.parts.desk.wait(&topics);
            let leases = self
                .lease_now(&topics, ask.max, ask.lease, &ask.worker)
                .await?;
            // Not before: without an answer, the ring is somebody else's.
            if let Some(rung) = rung.take() {
                rung.used();
            }
            if !leases.is_empty() || tokio::time::Instant::now() >= until {
                return Ok(leases);
            }
            tokio::select! {
                () = waiting.rung() => rung = Some(waiting),
                () = tokio::time::sleep_until(until) => {}
                () = self.parts.stopping.cancelled() => return Ok(Vec::new()),
            }
        }
    }

    async fn lease_now(
        &self,
        topics: &Arc<[TopicName]>,
        max: usize,
        lease: DurationMs,
        worker: &str,
    ) -> Result<Vec<Lease>, EngineError> {
        let shards: Vec<ShardId> = self.parts.router.shards().collect();
        let first = usize::from(Slot::random().number()) % shards.len().max(1);
        let mut leases = Vec::new();
        let mut down = None;
        for shard in shards.iter().cycle().skip(first).take(shards.len()) {
            let question = LeaseTasks {
                topics: Arc::clone(topics),
                max: max - leases.len(),
                lease,
                worker: worker.to_owned(),
            };
            match self.parts.router.ask(*shard, question).await {
                Ok(more) => leases.extend(more),
                // The other shards' tasks can be had all the same.
                Err(error) => down = Some(error),
            }
            if leases.len() >= max {
                break;
            }
        }
        match down {
            Some(error) if leases.is_empty() => Err(error.into()),
            _ => Ok(leases),
        }
    }

    /// Renews a lease; answers when it ends now.
    ///
    /// # Errors
    /// When the token is not that of the running attempt.
    pub async fn heartbeat(
        &self,
        task: TaskId,
        token: AttemptToken,
    ) -> Result<WallMs, EngineError> {
        let shard = self.parts.router.shard_of(task.slot());
        Ok(self
            .parts
            .router
            .ask(shard, KeepLease { task, token })
            .await??)
    }

    /// Says where receivers find this service: what the URLs begin with by which they complete later what they took on.
    /// Until then, no request carries one.
    pub fn set_public_url(&self, url: &str) {
        self.parts.completions.set_base(url);
    }

    /// The attempt that is completed by a URL that ends so; `None` if it was not made here.
    pub fn completed_by(&self, secret: &str) -> Option<(TaskId, AttemptToken)> {
        self.parts.completions.attempt_of(secret)
    }

    /// A worker's answer for its attempt: [`Event::Finished`] or [`Event::Snoozed`]. Of one that its receiver took on:
    /// [`Event::Answered`].
    ///
    /// # Errors
    /// When the token is not that of the running attempt; nothing has changed then.
    pub async fn finish_attempt(
        &self,
        task: TaskId,
        event: Event,
        by: &str,
    ) -> Result<TaskView, EngineError> {
        self.finish_attempt_from(task, event, None, by).await
    }

    /// The same, for a request that may be re-sent: it counts once.
    ///
    /// # Errors
    /// As [`Duetime::finish_attempt`].
    pub async fn finish_attempt_from(
        &self,
        task: TaskId,
        event: Event,
        origin: Option<Origin>,
        by: &str,
    ) -> Result<TaskView, EngineError> {
        let (router, by) = (&self.parts.router, by.to_owned());
        let shard = router.shard_of(task.slot());
        let finish = FinishAttempt { task, event, by };
        Ok(match origin.map(|origin| origin.request(0)) {
            Some(request) => router.ask(shard, FinishOnce { finish, request }).await??,
            None => router.ask(shard, finish).await??,
        })
    }
}
