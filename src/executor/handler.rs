//! Handlers: async functions of the embedding process.
//!
//! A handler runs on the runtime for foreign work, never on an actor's thread. When its time is up, or its task
//! is cancelled, its token is cancelled; if it has not returned by the end of the grace, it is aborted at its
//! next await. A panic is a failed attempt with the panic's message.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, WallMs};
use crate::executor::{OwedReport, ReportSink, RunAttempt, Work};
use crate::ids::{AttemptNumber, TaskId};
use crate::limits;
use crate::task::history::note;
use crate::task::outcome::{Failure, Outcome};
use crate::task::spec::{RawJson, TaskKey, TopicName};

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
    /// Which attempt, from 1, over all generations.
    pub attempt: AttemptNumber,
    /// When the task was due.
    pub due_at: WallMs,
    /// The task's payload, as JSON.
    pub payload: Option<RawJson>,
    /// Cancelled when the attempt's time is up or the task is cancelled: return soon.
    pub cancel: CancellationToken,
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
pub type Handler = Arc<dyn Fn(HandlerTask) -> Running + Send + Sync>;

/// Wraps an async function as a [`Handler`].
pub fn handler<F, Fut>(f: F) -> Handler
where
    F: Fn(HandlerTask) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    Arc::new(move |task| Box::pin(f(task)))
}

/// Runs handlers.
pub struct Handlers {
    by_name: HashMap<String, Handler>,
    io: Handle,
    clock: Clock,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_name.keys()).finish()
    }
}

impl Handlers {
    /// Handlers by name; they run on `io`.
    pub fn new(by_name: HashMap<String, Handler>, io: Handle, clock: Clock) -> Self {
        Self { by_name, io, clock }
    }

    /// Takes an attempt and returns at once; the report follows in every case.
    pub fn run(&self, attempt: RunAttempt, sink: &Arc<dyn ReportSink>) {
        let mut owed = OwedReport::new(&attempt, Arc::clone(sink), self.clock.clone());
        let RunAttempt {
            deadline,
            grace,
            cancel,
            work: Work::Handler(task),
            ..
        } = attempt
        else {
            return;
        };
        let Some(handler) = self.by_name.get(&task.handler).cloned() else {
            return owed.settle(Outcome::Failed(Failure {
                code: "no_handler".to_owned(),
                message: format!(
                    "no handler named {:?} is registered in this process",
                    task.handler
                ),
                retryable: true,
                retry_after: None,
                in_doubt: false,
            }));
        };
        let now = self.clock.now();
        if now.mono >= deadline {
            return;
        }
        let time_left = deadline.since(now.mono).to_std();
        let soft = task.cancel.clone();
        owed.start();
        self.io.spawn(async move {
            // A task of its own, so that a panic ends it alone and an abort is possible.
            let mut running = tokio::spawn(async move { handler(task).await });
            let cut_off = tokio::select! {
                ended = &mut running => return owed.settle(outcome_of(ended)),
                () = cancel.cancelled() => Outcome::Cancelled,
                () = tokio::time::sleep(time_left) => Outcome::TimedOut,
            };
            soft.cancel();
            if tokio::time::timeout(grace.to_std(), &mut running)
                .await
                .is_err()
            {
                running.abort();
            }
            owed.settle(cut_off);
        });
    }
}

fn outcome_of(ended: Result<HandlerResult, JoinError>) -> Outcome {
    let failed = |code: String, message: &str, retryable, in_doubt| {
        Outcome::Failed(Failure {
            code,
            message: note(message),
            retryable,
            retry_after: None,
            in_doubt,
        })
    };
    match ended {
        Ok(Ok(result)) => {
            let text = result.map(|json| json.to_string());
            let result_dropped = text
                .as_ref()
                .is_some_and(|text| text.len() > limits::RESULT_BYTES_MAX);
            Outcome::Succeeded {
                result: text.filter(|_| !result_dropped).map(Bytes::from),
                result_dropped,
            }
        }
        Ok(Err(error)) => failed(note(&error.code), &error.message, error.retryable, false),
        Err(ended) => match ended.try_into_panic() {
            // Nobody knows how far it got.
            Ok(panic) => failed("panic".to_owned(), &words_of(panic.as_ref()), true, true),
            Err(_) => Outcome::Unknown,
        },
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|words| (*words).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked without a message".to_owned())
}
