//! Outside workers: they lease tasks, keep their leases, and answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::{DurationMs, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin};
use crate::executor::pull::Waiting;
use crate::ids::{AttemptToken, ShardId, Slot, TaskId};
use crate::shard::lease::Lease;
use crate::shard::messages::{FinishAttempt, FinishOnce, KeepLease, LeaseTasks, ListWorkers};
use crate::shard::query::TaskView;
use crate::shard::tally::TallyCounts;
use crate::task::event::Event;
use crate::task::spec::{RawJson, TopicName};

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

/// A worker, as the whole service knows it.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its name; empty for all that have none.
    pub name: String,
    /// What it asked for last.
    pub topics: Arc<[TopicName]>,
    /// When it was first heard of since the start.
    pub since: WallMs,
    /// When it was last heard of.
    pub last_seen: WallMs,
    /// How many of its questions wait.
    pub waiting: u32,
    /// What it holds, and what became of what it had.
    pub counts: TallyCounts,
    /// Some of what it holds, the longest held first.
    pub held: Vec<HeldTask>,
}

/// A task in a worker's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldTask {
    /// The task.
    pub id: TaskId,
    /// Since when.
    pub since: WallMs,
}

/// Tasks of one worker that are told of.
const HELD_SHOWN: usize = 10;

impl Duetime {
    /// The workers there are, by name: those that were heard of within a day, and those that hold something.
    ///
    /// # Errors
    /// When a shard does not answer; see [`EngineError`].
    pub async fn workers(&self) -> Result<Vec<WorkerView>, EngineError> {
        let parts = self.parts.router.ask_all(|_| ListWorkers).await?;
        let seen = self.parts.roster.all(self.now());
        let seen = seen.into_iter().map(|(name, seen)| {
            let view = WorkerView {
                name: name.clone(),
                topics: seen.topics,
                since: seen.since,
                last_seen: seen.last,
                waiting: seen.waiting,
                counts: TallyCounts::default(),
                held: Vec::new(),
            };
            (name, view)
        });
        let mut workers: BTreeMap<String, WorkerView> = seen.collect();
        for part in parts.into_iter().flatten() {
            let first = part.held.iter().map(|(_, since)| *since).min();
            if !workers.contains_key(&part.worker) && first.is_none() {
                // It has gone, and left nothing here.
                continue;
            }
            let name = part.worker.clone();
            let view = workers.entry(part.worker).or_insert_with(|| WorkerView {
                name,
                topics: Arc::new([]),
                since: first.unwrap_or(part.last),
                last_seen: part.last,
                waiting: 0,
                counts: TallyCounts::default(),
                held: Vec::new(),
            });
            view.last_seen = view.last_seen.max(part.last);
            view.counts = view.counts.and(part.counts);
            let held = part.held.into_iter();
            view.held
                .extend(held.map(|(id, since)| HeldTask { id, since }));
        }
        let mut workers: Vec<WorkerView> = workers.into_values().collect();
        for worker in &mut workers {
            worker
                .held
                .sort_unstable_by_key(|held| (held.since, held.id));
            worker.held.truncate(HELD_SHOWN);
        }
        Ok(workers)
    }

    /// Leases due pull tasks; waits for the first when there is none. Empty when the wait is over.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn lease(&self, ask: LeaseAsk) -> Result<Vec<Lease>, EngineError> {
        let until = tokio::time::Instant::now() + ask.wait.to_std();
        let topics: Arc<[TopicName]> = ask.topics.into();
        let visit = self.parts.roster.asks(&ask.worker, &topics, self.now());
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
            visit.answered(self.now());
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

    /// Renews a lease; answers when it ends now. What is said of how far the work has got is kept for the next attempt.
    ///
    /// # Errors
    /// When the token is not that of the running attempt.
    pub async fn heartbeat(
        &self,
        task: TaskId,
        token: AttemptToken,
        checkpoint: Option<RawJson>,
    ) -> Result<WallMs, EngineError> {
        let shard = self.parts.router.shard_of(task.slot());
        Ok(self
            .parts
            .router
            .ask(
                shard,
                KeepLease {
                    task,
                    token,
                    checkpoint,
                },
            )
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
