//! How the engine is: counts, shards, children, readiness.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::clock::{ClockSteps, DurationMs};
use crate::engine::disk::DiskStatus;
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::journal_copies::CopyStatus;
use crate::executor::command::CommandCounts;
use crate::executor::handler::SeatsStatus;
use crate::ids::{ShardEpoch, ShardId};
use crate::shard::messages::{CountTasks, ShardCounts, TopicCounts};
use crate::shard::table::Totals;
use crate::task::spec::TopicName;
use crate::watchdog::ChildStatus;

/// One shard, as it is shown.
#[derive(Clone, Debug)]
pub struct ShardStatus {
    /// Its number.
    pub shard: ShardId,
    /// Incarnation of its owner.
    pub epoch: ShardEpoch,
    /// Its child's state.
    pub child: Option<ChildStatus>,
    /// What it counts; `None` while it gives no answer.
    pub counts: Option<ShardCounts>,
    /// How often one of its owners came too late: its epoch was over.
    pub zombie_writes_refused: u64,
}

/// Whether the service can be used.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// Why not; empty when it can.
    pub problems: Vec<String>,
    /// What does not work, or not well, although the service can be used.
    pub warnings: Vec<String>,
}

impl Readiness {
    /// Whether nothing stands against it.
    pub fn is_ready(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Duetime {
    /// What all shards count.
    ///
    /// # Errors
    /// When a shard gives no answer.
    pub async fn counts(&self) -> Result<Vec<ShardCounts>, EngineError> {
        Ok(self.parts.router.ask_all(|_| CountTasks).await?)
    }

    /// Counts by topic over all shards; and what happened, since their start, in topics of which nothing is left.
    ///
    /// # Errors
    /// When a shard gives no answer.
    pub async fn topic_counts(
        &self,
    ) -> Result<(BTreeMap<TopicName, TopicCounts>, Totals), EngineError> {
        let mut topics: BTreeMap<TopicName, TopicCounts> = BTreeMap::new();
        let mut gone = Totals::default();
        let shards = self.counts().await?;
        for (name, counts) in shards.into_iter().flat_map(|shard| {
            gone += shard.of_gone_topics;
            shard.topics
        }) {
            let sum = topics.entry(name).or_default();
            for (sum, more) in sum.states.iter_mut().zip(counts.states) {
                *sum += more;
            }
            sum.lateness.merge(&counts.lateness);
            sum.created_per_s += counts.created_per_s;
            sum.started_per_s += counts.started_per_s;
            sum.ended_per_s += counts.ended_per_s;
            sum.totals += counts.totals;
        }
        Ok((topics, gone))
    }

    /// All shards as they are now; one that is down is shown as such.
    pub async fn shards(&self) -> Vec<ShardStatus> {
        let board = self.parts.watchdog.board();
        let router = &self.parts.router;
        let refused = self.zombie_writes_refused();
        let shards = router.shards().zip(refused);
        let looked_at = shards.map(|(shard, zombie_writes_refused)| async move {
            ShardStatus {
                shard,
                epoch: router.epoch(shard),
                child: board.child(&super::boot::shard_child(shard)),
                counts: router.ask(shard, CountTasks).await.ok(),
                zombie_writes_refused,
            }
        });
        futures_util::future::join_all(looked_at).await
    }

    /// For each shard, how often one of its owners was refused because its epoch was over.
    pub fn zombie_writes_refused(&self) -> Vec<u64> {
        let refusals = self.parts.refusals.iter();
        refusals
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }

    /// All supervised parts.
    pub fn children(&self) -> Vec<ChildStatus> {
        self.parts.watchdog.board().children()
    }

    /// Whether the service can be used, without asking any actor.
    pub fn readiness(&self) -> Readiness {
        let mut problems: Vec<String> = self
            .children()
            .iter()
            .filter(|child| !child.is_running())
            .map(ToString::to_string)
            .collect();
        let now = self.now().mono;
        let silent = now.since(self.parts.watchdog.board().watchdog_pulse().beat);
        if self.parts.silence_max.is_some_and(|max| silent > max) {
            problems.push(format!("the watchdog has been silent for {} ms", silent.0));
        }
        if self.parts.stopping.is_cancelled() {
            problems.push("the service is stopping".to_owned());
        }
        // Cancels and completions work, and must not be sent elsewhere: the service is ready all the same.
        let full = self.disk().refuses;
        let full = full.map(|full| format!("creates are refused: {full}"));
        let failure = self.plan_status().and_then(|plan| plan.failure);
        let failure = failure.map(|why| format!("the last backup failed: {why}"));
        let stuck = self.handler_seats().into_iter();
        let stuck = stuck.filter(|(_, seats)| seats.is_at_limit());
        let stuck = stuck.map(|(kind, seats)| {
            format!(
                "{} threads of {kind} handlers have not come back, and no more are stood in for",
                seats.abandoned.len()
            )
        });
        let late = self.copy_status().filter(CopyStatus::is_late);
        let late = late.map(|status| {
            let why = status.failure.unwrap_or_else(|| "it is slow".to_owned());
            let seconds = status.without.0 / 1000;
            match status.behind {
                Some(_) => format!("the journals' copies are {seconds} s behind: {why}"),
                None => {
                    format!("the journals were not copied since the start {seconds} s ago: {why}")
                }
            }
        });
        Readiness {
            problems,
            warnings: full
                .into_iter()
                .chain(failure)
                .chain(late)
                .chain(stuck)
                .collect(),
        }
    }

    /// The space that the data directory's disk has.
    pub fn disk(&self) -> DiskStatus {
        self.parts.disk.status()
    }

    /// How often the wall clock has stepped since the start.
    pub fn clock_steps(&self) -> ClockSteps {
        self.parts.clock.steps()
    }

    /// How long the engine has been up.
    pub fn up_for(&self) -> DurationMs {
        self.now().mono.since(self.parts.started.mono)
    }

    /// The threads that handlers run on, by the kind of handler (`async`, `blocking`); of kinds that there are.
    pub fn handler_seats(&self) -> Vec<(&'static str, SeatsStatus)> {
        self.parts.executors.handlers().status()
    }

    /// What commands have come to since the start.
    pub fn commands(&self) -> CommandCounts {
        self.parts.executors.commands().counts()
    }

    /// How many workers wait for tasks.
    pub fn waiting_workers(&self) -> usize {
        self.parts.desk.places()
    }
}
