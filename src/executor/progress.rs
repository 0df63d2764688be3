//! How far an attempt has got, as its work says it: often, and told to the shard now and then.
//!
//! ```text
//!  work    1 2 3 4 5 6 7 8      9                 says where it is
//!  told    1           8        9                 at once, then the latest of each second
//!  report                                  9      with the end of the attempt, if that was no success
//! ```
//!
//! Saying it costs a lock and a copy, so it may be said in every turn of a loop. What was not told is lost in a crash.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::clock::DurationMs;
use crate::executor::{ReportSink, RunAttempt};
use crate::ids::{AttemptToken, TaskId};
use crate::task::spec::RawJson;

/// From one telling to the next.
const TOLD_EVERY: DurationMs = DurationMs::secs(1);

/// See the module's header.
pub struct Progress {
    task: TaskId,
    token: AttemptToken,
    sink: Arc<dyn ReportSink>,
    runtime: Handle,
    every: Duration,
    said: Mutex<Said>,
}

#[derive(Default)]
struct Said {
    latest: Option<RawJson>,
    has_news: bool,
    /// Somebody tells it now and then.
    is_told: bool,
    is_over: bool,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress")
            .field(&self.said.lock().latest)
            .finish()
    }
}

impl Progress {
    /// Of this attempt, told to `sink` from `runtime`: once a second, or three times in `heartbeat` if that is less.
    pub fn of(
        attempt: &RunAttempt,
        heartbeat: Option<DurationMs>,
        sink: &Arc<dyn ReportSink>,
        runtime: &Handle,
    ) -> Arc<Self> {
        let often = heartbeat.map_or(TOLD_EVERY, |heartbeat| DurationMs(heartbeat.0 / 3));
        Arc::new(Self {
            task: attempt.task,
            token: attempt.token,
            sink: Arc::clone(sink),
            runtime: runtime.clone(),
            every: often.min(TOLD_EVERY).to_std(),
            said: Mutex::default(),
        })
    }

    /// The work goes on, and has got so far, if it says that.
    pub fn say(self: &Arc<Self>, so_far: Option<RawJson>) {
        let mut said = self.said.lock();
        if said.is_over {
            return;
        }
        said.has_news = true;
        if so_far.is_some() {
            said.latest = so_far;
        }
        if !said.is_told {
            said.is_told = true;
            let me = Arc::clone(self);
            self.runtime.spawn(async move { me.tell().await });
        }
    }

    async fn tell(self: Arc<Self>) {
        loop {
            let so_far = {
                let mut said = self.said.lock();
                if said.is_over || !said.has_news {
                    said.is_told = false;
                    return;
                }
                said.has_news = false;
                said.latest.clone()
            };
            self.sink.progressed(self.task, self.token, so_far);
            tokio::time::sleep(self.every).await;
        }
    }

    /// The attempt is over: nothing more is told. How far it got.
    pub(super) fn end(&self) -> Option<RawJson> {
        let mut said = self.said.lock();
        said.is_over = true;
        said.latest.take()
    }
}
