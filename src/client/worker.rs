//! A worker: leases tasks, as many as it has seats free, and has them worked on.
//!
//! ```text
//!            seats: ▣ ▣ ▢ ▢                    each seat: work, heartbeats, one answer (`held`)
//!  ask for 2 ──▶ service ──▶ 1 task ──▶ ▣ ▣ ▣ ▢
//!      ▲    waits up to `poll` for the first     │
//!      └─────────────── ask for 1 ◀──────────────┘
//! ```
//!
//! Nothing is leased ahead: a lease runs from when it is given, and a task that waits here could be worked on elsewhere.
//! With the service away, the worker asks again and again, more and more seldom (at most every five seconds), and goes on
//! where it was when the service is back.
//!
//! A stop takes nothing new. A request that waits at the service is not hung up on, since a task may be on its way: what
//! still comes is given back at once, and uses no attempt. So the stop of an idle worker may take as long as `poll`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::client::again::Pauses;
use crate::client::call::{Body, Call, Service};
use crate::client::error::ClientError;
use crate::client::held::Held;
use crate::client::not_done::{NotDone, Said};
use crate::client::task::{LeasedTask, Leases};
use crate::clock::DurationMs;
use crate::limits;
use crate::task::{TopicName, duration};

/// How much longer than its wait an answer to a lease may take.
const LEASE_ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long it is tried to give tasks back at the end of a stop.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);
/// How long what was cut off may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// A worker that has not been started; see [`Client::worker`].
#[derive(Clone, Debug)]
#[must_use = "nothing is leased before it is started"]
pub struct NewWorker {
    service: Service,
    topics: Vec<TopicName>,
    name: String,
    at_once: usize,
    lease: Duration,
    poll: Duration,
    wind_down: Duration,
}

/// What all parts of a worker share.
pub(super) struct Desk {
    pub(super) service: Service,
    pub(super) lease: Duration,
    pub(super) wind_down: Duration,
    pub(super) counts: Mutex<WorkerCounts>,
    /// Why no tasks can be had at present.
    trouble: Mutex<Option<ClientError>>,
    /// Nothing new is taken.
    stop: CancellationToken,
    /// What runs is told to stop.
    pub(super) cut_off: CancellationToken,
    /// Nobody waits for anything any more.
    pub(super) quit: CancellationToken,
}

/// What a worker has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WorkerCounts {
    /// Tasks that it got.
    pub leased: u64,
    /// Of these, ended as done.
    pub completed: u64,
    /// Failed, panics among them.
    pub failed: u64,
    /// Put off, and given back at a stop.
    pub snoozed: u64,
    /// Answered when the attempt was over already. An answer that had to be sent again may be among them, although it
    /// had arrived the first time.
    pub lost: u64,
    /// Not answered at all: the service could not be told.
    pub untold: u64,
}

impl WorkerCounts {
    pub(super) fn of(&mut self, said: &Said) {
        match said {
            Said::Complete(_) => self.completed += 1,
            Said::NotDone(NotDone::Failed { .. }) => self.failed += 1,
            Said::NotDone(NotDone::Snooze(_)) => self.snoozed += 1,
        }
    }
}

impl NewWorker {
    pub(super) fn of(client: &Client, topics: Vec<TopicName>) -> Self {
        Self {
            service: client.service.clone(),
            topics,
            name: format!("pid-{}", std::process::id()),
            at_once: 1,
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(5),
            wind_down: Duration::from_secs(2),
        }
    }

    /// Called so in the service's logs and attempts; if nothing is said, after its process.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Works on so many tasks at a time, at least 1. Default: 1.
    pub fn at_once(mut self, tasks: usize) -> Self {
        self.at_once = tasks.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// Leases each task for so long, 0.1 s to a day; a heartbeat renews the lease at a third of it. So it is how long
    /// after the death of this worker another one gets the task, not how long the work may take. Default: 30 s.
    pub fn lease(mut self, length: Duration) -> Self {
        let (least, most) = limits::LEASE_MS.into_inner();
        self.lease = length.clamp(Duration::from_millis(least), Duration::from_millis(most));
        self
    }

    /// Waits at the service so long for the first task, at most 60 s, before it asks again. Default: 5 s.
    pub fn poll(mut self, wait: Duration) -> Self {
        self.poll = wait.min(Duration::from_millis(limits::LEASE_WAIT_MS_MAX));
        self
    }

    /// Work whose token has fired for good (cancelled, lost, or the worker stops) may take so long to come back; then it
    /// is dropped. Default: 2 s.
    pub fn wind_down(mut self, length: Duration) -> Self {
        self.wind_down = length;
        self
    }

    /// Begins to lease tasks and to have them worked on; to be called on a tokio runtime.
    ///
    /// `work` is called once for each task. Its result, as JSON, becomes the task's; `Err` says why it is not done. A
    /// panic is a failure with the code `panic`. The work should not block its thread; if it does, do it in
    /// `tokio::task::spawn_blocking`.
    pub fn start<F, Fut, T>(self, work: F) -> Worker
    where
        F: Fn(LeasedTask) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, NotDone>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        let desk = Arc::new(Desk {
            service: self.service.clone(),
            lease: self.lease,
            wind_down: self.wind_down,
            counts: Mutex::default(),
            trouble: Mutex::default(),
            stop: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            quit: CancellationToken::new(),
        });
        let work = Arc::new(work);
        let begin = {
            let desk = Arc::clone(&desk);
            move |leased: LeasedTask, seat: OwnedSemaphorePermit| {
                let (work, held) = (Arc::clone(&work), Held::new(Arc::clone(&desk), &leased));
                async move {
                    held.run(async move { Said::of(work(leased).await) }).await;
                    drop(seat);
                }
            }
        };
        let running = tokio::spawn(self.take_tasks(Arc::clone(&desk), begin));
        Worker { desk, running }
    }

    async fn take_tasks<B, R>(self, desk: Arc<Desk>, begin: B)
    where
        B: Fn(LeasedTask, OwnedSemaphorePermit) -> R,
        R: Future<Output = ()> + Send + 'static,
    {
        let seats = Arc::new(Semaphore::new(self.at_once));
        let mut runs = JoinSet::new();
        let mut pauses = Pauses::default();
        while let Some(mut free) = free_seats(&seats, &desk).await {
            while let Some(ended) = runs.try_join_next() {
                look_at(ended);
            }
            let call = self.lease_call(free.num_permits());
            let answered = tokio::select! {
                answered = desk.service.send(&call) => answered,
                () = desk.cut_off.cancelled() => break,
            };
            match answered.and_then(|answer| answer.read::<Leases>()) {
                Ok(leases) => {
                    if desk.trouble.lock().take().is_some() {
                        tracing::info!(worker = self.name, "the service is back");
                        pauses = Pauses::default();
                    }
                    desk.counts.lock().leased += leases.items.len() as u64;
                    for item in leases.items {
                        let leased = item.lent();
                        match free.split(1) {
                            Some(seat) if !desk.stop.is_cancelled() => {
                                runs.spawn(begin(leased, seat));
                            }
                            _ => {
                                runs.spawn(Held::new(Arc::clone(&desk), &leased).give_back());
                            }
                        }
                    }
                }
                Err(error) => {
                    drop(free);
                    let pause = pauses.after(&error);
                    let before = desk.trouble.lock().replace(error.clone());
                    if before.is_none_or(|before| before != error) {
                        let (worker, service) = (&self.name, desk.service.shown_address());
                        tracing::warn!(worker, service, %error, "no tasks can be had; it is tried again");
                    }
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = desk.stop.cancelled() => {}
                    }
                }
            }
        }
        while let Some(ended) = runs.join_next().await {
            look_at(ended);
        }
    }

    fn lease_call(&self, free: usize) -> Call {
        let lease = duration::format(DurationMs::at_least(self.lease));
        let topics: Vec<&str> = self.topics.iter().map(TopicName::as_str).collect();
        let body = Body::default()
            .with("topics", &Some(topics))
            .with("max", &Some(free))
            .with("wait_ms", &Some(DurationMs::at_least(self.poll).0))
            .with("lease", &Some(lease))
            .with("worker", &Some(&self.name));
        Call::post(&["leases"], body.bytes(), self.poll + LEASE_ANSWER_WITHIN)
    }
}

/// Waits for a free seat, and takes all that are free; nothing when the worker is being stopped.
async fn free_seats(seats: &Arc<Semaphore>, desk: &Desk) -> Option<OwnedSemaphorePermit> {
    let mut free = tokio::select! {
        biased;
        () = desk.stop.cancelled() => return None,
        seat = Arc::clone(seats).acquire_owned() => seat.expect("it is never closed"),
    };
    let more = seats.available_permits().min(limits::LEASE_ITEMS_MAX - 1);
    // Seats are only taken here, so those that were free still are.
    if let Ok(more) = Arc::clone(seats).try_acquire_many_owned(more as u32) {
        free.merge(more);
    }
    Some(free)
}

/// Foreign code panics in a task of its own: a panic here is a defect of ours, and the lease ends by itself.
fn look_at(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a worker's seat broke");
    }
}

/// A worker that runs. Dropping it takes nothing new, and lets what runs end by itself.
#[derive(Debug)]
#[must_use = "dropping it stops it"]
pub struct Worker {
    desk: Arc<Desk>,
    running: JoinHandle<()>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk")
            .field("counts", &*self.counts.lock())
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// What it has done so far.
    pub fn counts(&self) -> WorkerCounts {
        *self.desk.counts.lock()
    }

    /// Why it gets no tasks at present, if it gets none: the service is away, or refuses what is asked.
    pub fn trouble(&self) -> Option<ClientError> {
        self.desk.trouble.lock().clone()
    }

    /// Takes nothing new, and waits up to `grace` for what runs. What still runs then is told to stop; what does not
    /// within the wind-down is dropped, and its task given back: it is due again at once and no attempt is used. (A task
    /// that is `at_most_once` is not: it becomes `dead` with `outcome_unknown` when its lease is over.)
    ///
    /// Takes at most `grace`, the wind-down and six seconds.
    pub async fn stop(mut self, grace: Duration) -> WorkerCounts {
        self.desk.stop.cancel();
        if timeout(grace, &mut self.running).await.is_err() {
            self.desk.cut_off.cancel();
            let back = self.desk.wind_down + GIVE_BACK_WITHIN;
            if timeout(back, &mut self.running).await.is_err() {
                self.desk.quit.cancel();
                if timeout(GONE_WITHIN, &mut self.running).await.is_err() {
                    self.running.abort();
                }
            }
        }
        self.counts()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.desk.stop.cancel();
    }
}
