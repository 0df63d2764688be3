//! Handlers: functions of the embedding process, async or blocking.
//!
//! ```text
//!  shard ── RunAttempt ──▶ Handlers ─┬▶ seats of async handlers      as many as cores, and stand-ins
//!                                    └▶ seats of blocking handlers   64, and stand-ins
//! ```
//!
//! A handler is code that we do not know. It never runs on an actor's thread, nor on those of pushes and the API; it
//! may block, panic, or never come back, and only its own attempt suffers:
//!
//! | what it does                         | what becomes of the attempt                                  |
//! |--------------------------------------|--------------------------------------------------------------|
//! | returns in time                      | `succeeded`, or `failed` with its code                       |
//! | panics, in a destructor too          | `failed` with code `panic` and the message                   |
//! | goes on when its time is up          | it is told; `timeout` when it returns or its grace is over   |
//! | its task is cancelled                | the same, as `cancelled`; at once if it was not begun        |
//! | still waits after the grace          | its future is dropped                                        |
//! | still blocks after the grace         | its thread is left behind, and another one stands in for it  |
//! | returns after that                   | counted, and nothing else                                    |
//! | finds no seat for half of its time   | given back: it was not begun, and no attempt is used         |
//!
//! A timeout leaves open whether the work was done, or even goes on: a task that must not run twice asks for
//! `at_most_once`. What can't be survived is Rust's own limit: a destructor that panics while a panic unwinds ends
//! the process. How threads are kept: `seats`.
//!
//! Timers, sockets and `tokio::spawn` work in handlers: they belong to a runtime of the handlers' own. A task that a
//! handler spawns there is its own business and must not block.

mod call;
mod seats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{self, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, DurationMs, MonoMs, WallMs};
use crate::executor::{ExecutorError, OwedReport, Progress, ReportSink, RunAttempt, Work};
use crate::ids::{AttemptNumber, TaskId};
use crate::limits;
use crate::task::outcome::{Failure, Outcome};
use crate::task::spec::{RawJson, StageName, TaskKey, TopicName};
use call::Order;
use seats::{Kind, Seats};

/// Threads of the handlers' runtime: for its timers and sockets, and for what handlers spawn.
const RUNTIME_THREADS: usize = 2;

/// What a shard orders of a handler.
#[derive(Clone, Debug)]
pub struct HandlerCall {
    /// The handler's name.
    pub handler: String,
    /// The task's topic.
    pub topic: TopicName,
    /// The caller's own id.
    pub key: Option<TaskKey>,
    /// Which generation of the task.
    pub generation: u32,
    /// Which stage of the task, if it has stages.
    pub stage: Option<StageName>,
    /// Which attempt, from 1, over all generations.
    pub attempt: AttemptNumber,
    /// When the task was due.
    pub due_at: WallMs,
    /// The task's payload, as JSON.
    pub payload: Option<RawJson>,
    /// How far the attempt before had got, as JSON.
    pub checkpoint: Option<RawJson>,
    /// How long nothing may be heard of it.
    pub heartbeat: Option<DurationMs>,
}

/// What a handler is given.
#[derive(Clone, Debug)]
pub struct HandlerTask {
    /// The handler's name.
    pub handler: String,
    /// The task.
    pub id: TaskId,
    /// Its topic.
    pub topic: TopicName,
    /// The caller's own id.
    pub key: Option<TaskKey>,
    /// Which generation of the task.
    pub generation: u32,
    /// Which stage of the task, if it has stages.
    pub stage: Option<StageName>,
    /// Which attempt, from 1, over all generations.
    pub attempt: AttemptNumber,
    /// When the task was due.
    pub due_at: WallMs,
    /// The task's payload, as JSON; as a type: [`payload_as`](Self::payload_as).
    pub payload: Option<RawJson>,
    /// How far an attempt before this one had got, as JSON; as a type: [`checkpoint_as`](Self::checkpoint_as).
    pub checkpoint: Option<RawJson>,
    /// Cancelled when the attempt's time is up, or within a tenth of a second of the task's being cancelled: return
    /// soon.
    pub cancel: CancellationToken,
    /// When the attempt's time is up, on `clock`.
    pub deadline: MonoMs,
    /// The engine's clock.
    pub clock: Clock,
    progress: Arc<Progress>,
}

impl HandlerTask {
    /// The payload as a type of the handler's own; a task without one counts as JSON's `null`.
    ///
    /// # Errors
    /// `payload`, for good, with the field that does not fit and why: another attempt would read the same.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        RawJson::read_as(self.payload.as_ref(), "payload")
            .map_err(|why| HandlerError::for_good("payload", why))
    }

    /// Says how far the work has got, in any JSON of at most 16 KiB. It is shown on the task while the work runs, and is
    /// the `checkpoint` of the next attempt; it is also a sign of life for the task's heartbeat clock. It may be said as
    /// often as one likes: the latest of each second is kept.
    ///
    /// # Errors
    /// `checkpoint`, for good, when it is too large or can't be written as JSON.
    pub fn progress(&self, so_far: &impl Serialize) -> Result<(), HandlerError> {
        let bad = |why: String| HandlerError::for_good("checkpoint", why);
        let text = serde_json::to_string(so_far).map_err(|error| bad(error.to_string()))?;
        let (is, max) = (text.len(), limits::CHECKPOINT_BYTES_MAX);
        if is > max {
            return Err(bad(format!(
                "is {is} bytes long, at most {max} are allowed"
            )));
        }
        self.progress.say(Some(RawJson::from(text)));
        Ok(())
    }

    /// A sign of life, for the task's heartbeat clock.
    pub fn is_at_work(&self) {
        self.progress.say(None);
    }

    /// How far an attempt before this one had got; `None` when none has said so.
    ///
    /// # Errors
    /// `checkpoint`, for good, with the field that does not fit and why.
    pub fn checkpoint_as<T: DeserializeOwned>(&self) -> Result<Option<T>, HandlerError> {
        RawJson::read_as(self.checkpoint.as_ref(), "checkpoint")
            .map_err(|why| HandlerError::for_good("checkpoint", why))
    }

    /// How much of the attempt's time is left. When it is nothing, `cancel` is cancelled.
    pub fn remaining(&self) -> Duration {
        self.deadline.since(self.clock.now().mono).to_std()
    }
}

/// Why a handler failed.
#[derive(Clone, Debug)]
pub struct HandlerError {
    /// Stable code, for `retry.on` and for people.
    pub code: String,
    /// What happened.
    pub message: String,
    /// Whether another attempt may help.
    pub retryable: bool,
}

impl HandlerError {
    /// A failure that another attempt may mend.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            retryable: true,
        }
    }

    /// A failure for good: the task is dead.
    pub fn for_good(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            retryable: false,
            ..Self::new(code, message)
        }
    }
}

/// What a handler gives back: a result of at most 64 KiB of JSON, or why it failed.
pub type HandlerResult = Result<Option<serde_json::Value>, HandlerError>;

type Running = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

/// A registered handler.
#[derive(Clone)]
pub enum Handler {
    /// Makes a future.
    Async(Arc<dyn Fn(HandlerTask) -> Running + Send + Sync>),
    /// Takes a thread until it returns.
    Blocking(Arc<dyn Fn(HandlerTask) -> HandlerResult + Send + Sync>),
}

/// Wraps an async function as a [`Handler`].
pub fn handler<F, Fut>(f: F) -> Handler
where
    F: Fn(HandlerTask) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    Handler::Async(Arc::new(move |task| Box::pin(f(task))))
}

/// Wraps a function that blocks its thread as a [`Handler`].
pub fn blocking_handler<F>(f: F) -> Handler
where
    F: Fn(HandlerTask) -> HandlerResult + Send + Sync + 'static,
{
    Handler::Blocking(Arc::new(f))
}

/// How many threads handlers may have.
#[derive(Clone, Copy, Debug)]
pub struct HandlerLimits {
    /// Blocking handlers that run at a time; more of them wait.
    pub blocking_max: usize,
    /// Threads that stand in for others that handlers do not give back, for each kind of handler.
    pub stand_ins_max: usize,
}

impl Default for HandlerLimits {
    fn default() -> Self {
        Self {
            blocking_max: 64,
            stand_ins_max: 64,
        }
    }
}

/// How the threads of one kind of handler are.
#[derive(Clone, Debug, Default)]
pub struct SeatsStatus {
    /// Threads there are, those included that are stood in for.
    pub threads: usize,
    /// The most there may be.
    pub threads_max: usize,
    /// Threads with a call on them.
    pub busy: usize,
    /// Calls that are ready and wait for a thread.
    pub queued: usize,
    /// Calls that have not been reported on.
    pub calls: usize,
    /// Threads that did not come back within some 20 ms, the abandoned ones among them.
    pub held: usize,
    /// Calls that still have their thread although their attempt is over.
    pub abandoned: Vec<Stuck>,
    /// So many threads may stand in for others.
    pub stand_ins_max: usize,
    /// How many threads were abandoned since the start.
    pub abandoned_since_start: u64,
    /// How many calls came back after their attempt was over.
    pub late_since_start: u64,
    /// How many calls panicked.
    pub panics_since_start: u64,
    /// How many attempts were given back because there was no thread for them.
    pub given_back_since_start: u64,
}

/// A call that does not come back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The handler's name.
    pub handler: String,
    /// The task that it was called for.
    pub task: TaskId,
}

impl SeatsStatus {
    /// Whether no more threads can be stood in for: each further one that is abandoned leaves one less.
    pub fn is_at_limit(&self) -> bool {
        self.abandoned.len() >= self.stand_ins_max && !self.abandoned.is_empty()
    }
}

/// Runs handlers.
pub struct Handlers {
    by_name: HashMap<String, Handler>,
    asynchronous: Option<Arc<Seats>>,
    blocking: Option<Arc<Seats>>,
    runtime: Mutex<Option<Runtime>>,
    io: Option<Handle>,
    clock: Clock,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_name.keys()).finish()
    }
}

impl Handlers {
    /// Handlers by name. A process without any has no threads for them.
    ///
    /// # Errors
    /// When threads can't be made.
    pub fn new(
        by_name: HashMap<String, Handler>,
        limits: HandlerLimits,
        clock: Clock,
    ) -> Result<Self, ExecutorError> {
        let mut handlers = Self {
            by_name,
            asynchronous: None,
            blocking: None,
            runtime: Mutex::new(None),
            io: None,
            clock,
        };
        if handlers.by_name.is_empty() {
            return Ok(handlers);
        }
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("duetime-handlers")
            .enable_all()
            .build()
            .map_err(ExecutorError::Threads)?;
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let seats = |kind, wanted: usize| {
            Seats::start(
                kind,
                wanted.max(1),
                limits.stand_ins_max,
                &handlers.clock,
                runtime.handle().clone(),
            )
            .map_err(ExecutorError::Threads)
        };
        let blocks = |handler: &Handler| matches!(handler, Handler::Blocking(_));
        let blocking = handlers
            .by_name
            .values()
            .any(blocks)
            .then(|| seats(Kind::Blocking, limits.blocking_max));
        let waits = handlers.by_name.values().any(|handler| !blocks(handler));
        let asynchronous = waits.then(|| seats(Kind::Async, cores.clamp(2, 8)));
        (handlers.blocking, handlers.asynchronous) =
            (blocking.transpose()?, asynchronous.transpose()?);
        handlers.io = Some(runtime.handle().clone());
        *handlers.runtime.lock() = Some(runtime);
        Ok(handlers)
    }

    /// Whether an attempt for this handler would be taken: there are threads for it, or it fails for want of the handler.
    pub fn takes(&self, name: &str) -> bool {
        let seats = match self.by_name.get(name) {
            Some(Handler::Async(_)) => &self.asynchronous,
            Some(Handler::Blocking(_)) => &self.blocking,
            None => return true,
        };
        seats.as_ref().is_none_or(|seats| seats.has_one())
    }

    /// Takes an attempt and returns at once; the report follows in every case.
    pub fn run(&self, attempt: RunAttempt, sink: &Arc<dyn ReportSink>) {
        let mut report = OwedReport::new(&attempt, Arc::clone(sink), self.clock.clone());
        let heartbeat = match &attempt.work {
            Work::Handler(call) => call.heartbeat,
            _ => None,
        };
        let runtime = self.io.as_ref();
        let progress = runtime.map(|io| Progress::of(&attempt, heartbeat, sink, io));
        let RunAttempt {
            task: id,
            deadline,
            grace,
            cancel: cancelled,
            work: Work::Handler(call),
            ..
        } = attempt
        else {
            return;
        };
        let handler = self.by_name.get(&call.handler).cloned();
        let seats = match handler {
            Some(Handler::Async(_)) => &self.asynchronous,
            Some(Handler::Blocking(_)) => &self.blocking,
            None => &None,
        };
        let (Some(handler), Some(seats), Some(progress)) = (handler, seats, progress) else {
            return report.settle(Outcome::Failed(Failure {
                code: "no_handler".to_owned(),
                message: format!(
                    "no handler named {:?} is registered in this process",
                    call.handler
                ),
                retryable: true,
                retry_after: None,
                in_doubt: false,
            }));
        };
        let now = self.clock.now().mono;
        if now >= deadline {
            return;
        }
        let task = HandlerTask {
            handler: call.handler,
            id,
            topic: call.topic,
            key: call.key,
            generation: call.generation,
            stage: call.stage,
            attempt: call.attempt,
            due_at: call.due_at,
            payload: call.payload,
            checkpoint: call.checkpoint,
            cancel: CancellationToken::new(),
            deadline,
            clock: self.clock.clone(),
            progress: Arc::clone(&progress),
        };
        report.ends_with(progress);
        let order = Order {
            handler,
            task,
            grace,
            cancelled,
            report,
        };
        seats.take(order, now);
    }

    /// The threads of async and of blocking handlers, where there are any.
    pub fn status(&self) -> Vec<(&'static str, SeatsStatus)> {
        let kinds = [("async", &self.asynchronous), ("blocking", &self.blocking)];
        let status =
            |(kind, seats): (_, &Option<Arc<Seats>>)| Some((kind, seats.as_ref()?.status()));
        kinds.into_iter().filter_map(status).collect()
    }

    /// Takes nothing more and cuts off what runs. Who blocks its thread is left behind.
    pub fn close(&self) {
        for seats in [&self.asynchronous, &self.blocking].into_iter().flatten() {
            seats.close();
        }
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        self.close();
    }
}
