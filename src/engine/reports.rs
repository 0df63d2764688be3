//! The way back: from an executor's report to the shard that owns the task.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Now;
use crate::executor::{AttemptReport, ReportSink};
use crate::ids::{AttemptToken, TaskId};
use crate::shard::messages::FinishAttempt;
use crate::shard::router::{NoAnswer, ShardRouter};
use crate::task::event::Event;

/// A report whose shard is down is tried again with these pauses; after the last it is dropped, and the shard's
/// own limit for answers (`report_by`) decides.
const PAUSES_MS: [u64; 9] = [10, 50, 200, 500, 1_000, 2_000, 4_000, 8_000, 15_000];

/// Routes reports. At most one per running attempt is on its way, so what waits is bounded.
pub struct Reports {
    router: Arc<ShardRouter>,
    io: Handle,
}

impl Reports {
    /// Reports go through `router`; waiting for a shard happens on `io`.
    pub fn new(router: Arc<ShardRouter>, io: Handle) -> Self {
        Self { router, io }
    }
}

impl ReportSink for Reports {
    fn started(&self, _: TaskId, _: AttemptToken, _: Now) {}

    fn ended(&self, report: AttemptReport) {
        let router = Arc::clone(&self.router);
        self.io.spawn(async move {
            let shard = router.shard_of(report.task.slot());
            let mut pauses = PAUSES_MS.into_iter();
            loop {
                let finish = FinishAttempt {
                    task: report.task,
                    event: Event::Finished {
                        token: report.token,
                        outcome: report.outcome.clone(),
                        started_at: report.started.map(|now| now.wall),
                    },
                    by: "executor".to_owned(),
                };
                match router.ask(shard, finish).await {
                    Ok(Ok(_)) => return,
                    Ok(Err(refused)) => {
                        tracing::debug!(task = %report.task, token = report.token.0, %refused, "late answer refused");
                        return;
                    }
                    // Told twice is harmless: the second one is stale.
                    Err(NoAnswer::Overloaded(_) | NoAnswer::Down(_) | NoAnswer::Unknown(_)) => {
                        let Some(pause) = pauses.next() else { return };
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                    }
                }
            }
        });
    }
}
