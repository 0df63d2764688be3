//! The way back: from an executor's report to the shard that owns the task, with patience.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Now;
use crate::executor::{AttemptReport, ReportSink};
use crate::ids::{AttemptToken, ShardId, TaskId};
use crate::shard::messages::{FinishAttempt, Question};
use crate::shard::router::{NoAnswer, ShardRouter};
use crate::task::event::Event;

/// What a shard does not take now is tried again after these pauses.
const PAUSES_MS: [u64; 9] = [10, 50, 200, 500, 1_000, 2_000, 4_000, 8_000, 15_000];

/// Asks a shard that may be down or overloaded until it answers or patience is at its end. For questions that may
/// be asked twice.
pub(super) async fn ask_patiently<Q: Question>(
    router: &ShardRouter,
    shard: ShardId,
    question: impl Fn() -> Q,
) -> Result<Q::Answer, NoAnswer> {
    for pause in PAUSES_MS {
        if let Ok(answer) = router.ask(shard, question()).await {
            return Ok(answer);
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    router.ask(shard, question()).await
}

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
            let finish = || FinishAttempt {
                task: report.task,
                event: Event::Finished {
                    token: report.token,
                    outcome: report.outcome.clone(),
                    started_at: report.started.map(|now| now.wall),
                },
                by: "executor".to_owned(),
            };
            // Told twice is harmless: the second one is stale. What is never taken is settled by the shard's own
            // limit for answers (`report_by`).
            if let Ok(Err(refused)) = ask_patiently(&router, shard, finish).await {
                tracing::debug!(task = %report.task, token = report.token.0, %refused, "late answer refused");
            }
        });
    }
}
