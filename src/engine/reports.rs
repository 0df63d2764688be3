//! The way back: from an executor's report to the shard that owns the task, with patience.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock::Now;
use crate::executor::{AttemptReport, ReportSink};
use crate::ids::{AttemptToken, ShardId, TaskId};
use crate::shard::messages::{FinishMany, KeepLease, Question, VerbRefused};
use crate::shard::router::{NoAnswer, ShardRouter};
use crate::task::spec::RawJson;

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

/// Most asks with reports that wait for one shard's commit: while one syncs, the next is gathered.
const ASKS_MAX: usize = 2;
/// Most reports in one ask.
const REPORTS_PER_ASK: usize = 2_048;

/// Longest that reports are kept for a shard that does not take them: parked, or started again and again.
const PATIENCE: Duration = Duration::from_secs(600);

/// Tells a shard how attempts ended, until it has taken that in; answers which came late. Told twice is harmless: the
/// second one is stale. What is never taken is settled by the shard's own limit for answers (`report_by`).
async fn tell(
    router: &ShardRouter,
    shard: ShardId,
    reports: &Arc<[AttemptReport]>,
) -> Vec<(TaskId, VerbRefused)> {
    let begun = Instant::now();
    loop {
        let finish = || FinishMany::new(Arc::clone(reports));
        match ask_patiently(router, shard, finish).await {
            Ok(refused) => return refused,
            Err(why) if begun.elapsed() < PATIENCE => {
                tracing::warn!(%shard, %why, reports = reports.len(), "a shard does not take reports; they are sent again");
            }
            Err(why) => {
                tracing::error!(%shard, %why, reports = reports.len(), "a shard did not take reports for 10 min; their attempts will count as lost");
                return Vec::new();
            }
        }
    }
}

/// Routes reports. They gather while others are on their way, so that a burst costs a shard few messages:
///
/// ```text
///  ended ──▶ line of its shard ──▶ up to 2 asks of many reports ──▶ shard
/// ```
///
/// At most one per running attempt is on its way, so what waits is bounded.
pub struct Reports {
    router: Arc<ShardRouter>,
    io: Handle,
    lines: Vec<Arc<Mutex<Line>>>,
}

/// The reports for one shard that are not on their way yet.
#[derive(Default)]
struct Line {
    waiting: Vec<AttemptReport>,
    asks: usize,
}

impl Line {
    /// The next to go; `None` ends an ask.
    fn next(&mut self) -> Option<Arc<[AttemptReport]>> {
        if self.waiting.is_empty() {
            self.asks -= 1;
            return None;
        }
        let count = self.waiting.len().min(REPORTS_PER_ASK);
        Some(self.waiting.drain(..count).collect())
    }
}

impl Reports {
    /// Reports go through `router`; waiting for a shard happens on `io`.
    pub fn new(router: Arc<ShardRouter>, io: Handle) -> Self {
        let lines = router.shards().map(|_| Arc::default()).collect();
        Self { router, io, lines }
    }
}

impl ReportSink for Reports {
    fn started(&self, _: TaskId, _: AttemptToken, _: Now) {}

    fn progressed(&self, task: TaskId, token: AttemptToken, checkpoint: Option<RawJson>) {
        let router = Arc::clone(&self.router);
        let shard = router.shard_of(task.slot());
        self.io.spawn(async move {
            let keep = KeepLease {
                task,
                token,
                checkpoint,
            };
            // What is not heard now is said again in a moment.
            match router.ask(shard, keep).await {
                Ok(Ok(_)) => {}
                Ok(Err(refused)) => tracing::debug!(%task, %refused, "progress was refused"),
                Err(why) => tracing::debug!(%task, %why, "progress was not heard"),
            }
        });
    }

    fn ended(&self, report: AttemptReport) {
        let shard = self.router.shard_of(report.task.slot());
        let line = &self.lines[usize::from(shard.0)];
        {
            let mut line = line.lock();
            line.waiting.push(report);
            if line.asks == ASKS_MAX {
                return;
            }
            line.asks += 1;
        }
        let (router, line) = (Arc::clone(&self.router), Arc::clone(line));
        self.io.spawn(async move {
            loop {
                let Some(reports) = line.lock().next() else {
                    return;
                };
                let refused = tell(&router, shard, &reports).await;
                for (task, refused) in refused {
                    tracing::debug!(%task, %refused, "late answer refused");
                }
            }
        });
    }
}
