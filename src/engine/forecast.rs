//! What is to come: tasks by when they are due, and how long it takes until what is due already is through.

use crate::clock::{DurationMs, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::shard::forecast::{Foresee, Foreseen};

/// A forecast of all tasks that wait.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Where the first bucket begins; it has begun already.
    pub from: WallMs,
    /// How wide each is.
    pub width: DurationMs,
    /// How many come due in which.
    pub tasks: Foreseen,
    /// Starts per second, over the last minute.
    pub started_per_s: f64,
}

impl Forecast {
    /// How long it takes, at the pace of the last minute, until what is due already has started; `None` if nothing starts.
    pub fn drain_time(&self) -> Option<DurationMs> {
        match (self.tasks.due, self.started_per_s) {
            (0, _) => Some(DurationMs(0)),
            (_, pace) if pace <= 0.0 => None,
            (due, pace) => Some(DurationMs((due as f64 / pace * 1000.0).ceil() as u64)),
        }
    }
}

impl Duetime {
    /// How many tasks come due in each of `count` buckets from now on. No task is read for it: see
    /// [`shard::forecast`](crate::shard::forecast).
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn forecast(&self, width: DurationMs, count: usize) -> Result<Forecast, EngineError> {
        let now = self.now().wall;
        let wide = i64::try_from(width.0.max(1)).unwrap_or(i64::MAX);
        let from = WallMs(now.0.div_euclid(wide).saturating_mul(wide));
        let ask = Foresee { from, width, count };
        let mut tasks = Foreseen::default();
        for shard in self.parts.router.ask_all(|_| ask).await? {
            tasks.add(&shard);
        }
        let (topics, _) = self.topic_counts().await?;
        let started_per_s = topics.values().map(|topic| topic.started_per_s).sum();
        Ok(Forecast {
            from,
            width,
            tasks,
            started_per_s,
        })
    }
}
