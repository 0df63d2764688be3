//! A client of a running service: creates tasks, asks after them, and works on them as a worker.
//!
//! It speaks the HTTP API, so it needs no engine in its process, only a tokio runtime. What is sent may be sent twice:
//! every call carries a key or token by which the service knows it again, so the client repeats by itself what was not
//! answered, through restarts of the service too.
//!
//! ```
//! use std::time::Duration;
//! use duetime::client::{Client, LeasedTask, NotDone};
//! use duetime::{NewTask, State, Target, TaskKey, TopicName};
//! use serde::Deserialize;
//! use serde_json::json;
//!
//! #[derive(Deserialize)]
//! struct Order {
//!     courier: Option<String>,
//! }
//!
//! async fn call_courier(task: LeasedTask) -> Result<serde_json::Value, NotDone> {
//!     let order: Order = task.payload_as()?; // fails for good, and names the field
//!     let Some(courier) = order.courier else {
//!         return Err(NotDone::snooze(Duration::from_secs(60))); // uses no attempt
//!     };
//!     tokio::select! {
//!         () = tokio::time::sleep(Duration::from_millis(5)) => Ok(json!({"called": courier})),
//!         // The task was cancelled, the lease is lost, or the worker stops.
//!         () = task.cancel.cancelled() => Err(NotDone::failed("cut_short", "nobody was called")),
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let data = tempfile::tempdir()?;
//! # let engine = duetime::Duetime::builder().data_dir(data.path()).start().await?;
//! # let routes = duetime::http::configure(engine.clone(), Default::default());
//! # let server = actix_web::HttpServer::new(move || actix_web::App::new().configure(routes.clone()))
//! #     .h1_allow_half_closed(false).workers(1).disable_signals().bind("127.0.0.1:0")?;
//! # let address = format!("http://{}", server.addrs()[0]);
//! # tokio::spawn(server.run());
//! let client = Client::new(&address)?; // http://127.0.0.1:7420
//! let topic = TopicName::parse("courier.missing")?;
//! let task = NewTask::new(topic.clone())
//!     .key("order-42")?
//!     .after(Duration::from_millis(50))
//!     .payload(&json!({"courier": "Ada"}));
//! client.create(&task).await?; // answered: it is on the service's disk
//!
//! let worker = client
//!     .worker([topic.clone()])
//!     .at_once(8)
//!     .lease(Duration::from_secs(30)) // renewed by heartbeats for as long as the work takes
//!     .start(call_courier);
//!
//! let order_42 = Target::Key(topic, TaskKey::parse("order-42")?);
//! let done = loop {
//!     match client.get(&order_42).await? {
//!         Some(task) if task.state == State::Succeeded => break task,
//!         _ => tokio::task::yield_now().await,
//!     }
//! };
//! assert_eq!(done.result.as_ref().map(|json| json.as_str()), Some(r#"{"called":"Ada"}"#));
//!
//! let counts = worker.stop(Duration::from_secs(30)).await; // waits for what runs
//! assert_eq!((counts.leased, counts.completed), (1, 1));
//! # engine.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Work that is handed out twice
//!
//! A worker that dies, hangs or is cut off from the service loses its lease, and the task goes to the next one. So work
//! may begin twice, and its effect should not count twice: give the task's id, or the attempt's [`token`] (it only
//! grows), to whatever the work changes. The token [`cancel`] fires when a lease is lost or can't be renewed, which is
//! when another worker may get the task; work that listens to it seldom overlaps.
//!
//! [`token`]: LeasedTask::token
//! [`cancel`]: LeasedTask::cancel
//!
//! # Limits
//!
//! No authentication (the service has none yet). A create costs the service a second write for its `Idempotency-Key`;
//! leases and their answers need none, since they have their token.

mod again;
pub(crate) mod call;
mod error;
mod held;
mod not_done;
mod saying;
#[cfg(test)]
pub(crate) mod scripted;
mod task;
#[cfg(test)]
mod tests;
mod verbs;
mod worker;

use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use tokio::time::Instant;
use uuid::Uuid;

use crate::client::again::send_until;
use crate::client::call::{Answer, Call, Service, parse_address};
pub use crate::client::error::ClientError;
pub use crate::client::not_done::NotDone;
use crate::client::task::Answered;
pub use crate::client::task::{Cut, FailureSeen, LastOutcome, LeasedTask, RemoteTask};
pub use crate::client::worker::{NewWorker, Worker, WorkerCounts};
use crate::clock::DurationMs;
use crate::shard::messages::Target;
use crate::shard::query::Slim;
use crate::task::history::ErrorNote;
use crate::task::spec::RawJson;
use crate::task::{NewTask, TaskKey, TopicName, When};
use crate::wire::create_out::CreateOut;
pub use crate::wire::verbs::{NewTime, Verb};

/// Longest wait for one answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a call is tried, if nothing else is said.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the client calls itself.
const AGENT: &str = concat!("duetime-client/", env!("CARGO_PKG_VERSION"));

/// A client of one service. Cheap to clone; clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    service: Service,
    patience: Duration,
}

/// What a create led to.
#[derive(Clone, Debug)]
pub struct CreatedTask {
    /// The task: the new one, or the one that has its key.
    pub task: RemoteTask,
    /// This create has made it (201).
    pub is_new: bool,
}

/// What a verb led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The task now; `None` when a cancel by key met none, and stands for one that is still to be created.
    pub task: Option<Slim>,
    /// An attempt was running and is being stopped; its result can't win (202).
    pub stopping: bool,
}

impl Client {
    /// A client of the service at this address, such as `http://127.0.0.1:7420`. Nothing is sent yet.
    ///
    /// # Errors
    /// When it is no such address, or the machine's certificates can't be read for `https`.
    pub fn new(address: &str) -> Result<Self, ClientError> {
        let address = parse_address(address).map_err(ClientError::Address)?;
        Ok(Self {
            service: Service::at(address, AGENT)?,
            patience: PATIENCE,
        })
    }

    /// Tries each call for so long while the service is away, busy or restarting; zero means once. Default: 30 s. A
    /// worker has a patience of its own.
    #[must_use]
    pub fn patience(mut self, length: Duration) -> Self {
        self.patience = length;
        self
    }

    /// A worker for these topics, at most 100.
    pub fn worker(&self, topics: impl IntoIterator<Item = TopicName>) -> NewWorker {
        NewWorker::of(self, topics.into_iter().collect())
    }

    // ---------------------------------------------------------------- creating

    /// Creates a task. When this returns, it is on the service's disk.
    ///
    /// # Errors
    /// `exists` under [`OnExisting::Reject`](crate::OnExisting::Reject); see [`ClientError`].
    pub async fn create(&self, new: &NewTask) -> Result<CreatedTask, ClientError> {
        self.create_once(&Uuid::new_v4().to_string(), new).await
    }

    /// The same, for a caller that may itself ask twice (it was restarted, say): the same `idempotency_key`, 1 to 255
    /// visible ASCII characters, makes the same task once. Kept for 24 hours.
    ///
    /// # Errors
    /// As [`create`](Self::create); `idempotency_mismatch` when the key came with another task.
    pub async fn create_once(
        &self,
        idempotency_key: &str,
        new: &NewTask,
    ) -> Result<CreatedTask, ClientError> {
        let body = CreateOut::new(new).and_then(|body| serde_json::to_vec(&body));
        let body = Bytes::from(body.map_err(not_json)?);
        let mut call = Call::post(&["tasks"], body, ANSWER_WITHIN);
        call.idempotency_key = Some(idempotency_key.to_owned());
        let answer = self.send(&call).await?;
        Ok(CreatedTask {
            task: answer.read()?,
            is_new: answer.status == 201,
        })
    }

    // ---------------------------------------------------------------- one task

    /// Looks at a task.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get(&self, target: &Target) -> Result<Option<RemoteTask>, ClientError> {
        let call = Call::new(Method::GET, verbs::path(target), ANSWER_WITHIN);
        match self.send(&call).await {
            Ok(answer) => answer.read().map(Some),
            Err(error) if error.code() == Some("not_found") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lets a verb happen to a task, once, however often it has to be sent.
    ///
    /// # Errors
    /// `not_found`; `illegal_state` when the task's state does not allow it; see [`ClientError`].
    pub async fn verb(&self, target: &Target, verb: &Verb) -> Result<Changed, ClientError> {
        let (name, body) = verbs::body(verb).map_err(not_json)?;
        let mut call = Call::new(Method::POST, verbs::path(target), ANSWER_WITHIN);
        call.path.push(name.in_path().to_owned());
        call.body = Some(body.bytes());
        call.idempotency_key = Some(Uuid::new_v4().to_string());
        let answer = self.send(&call).await?;
        Ok(Changed {
            task: answer.read::<Answered>()?.slim(),
            stopping: answer.status == 202,
        })
    }

    /// Calls a task off. If an attempt is running, it is stopped.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn cancel(&self, target: &Target, reason: &str) -> Result<Changed, ClientError> {
        let cancel = Verb::Cancel {
            reason: Some(reason.to_owned()),
            tombstone_for: None,
        };
        self.verb(target, &cancel).await
    }

    /// Calls the live task of a key off; if there is none, a create within `tombstone_for` finds itself cancelled.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn cancel_ahead(
        &self,
        topic: TopicName,
        key: TaskKey,
        reason: &str,
        tombstone_for: Duration,
    ) -> Result<Changed, ClientError> {
        let cancel = Verb::Cancel {
            reason: Some(reason.to_owned()),
            tombstone_for: Some(DurationMs::at_least(tombstone_for)),
        };
        self.verb(&Target::Key(topic, key), &cancel).await
    }

    /// Holds a task; its due time stays, and may pass meanwhile.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn pause(&self, target: &Target) -> Result<Changed, ClientError> {
        let clock = Default::default();
        self.verb(target, &Verb::Pause { clock }).await
    }

    /// Lets a paused task go on.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn resume(&self, target: &Target) -> Result<Changed, ClientError> {
        self.verb(target, &Verb::Resume).await
    }

    /// Moves a task's due time to so long from now.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn reschedule(
        &self,
        target: &Target,
        delay: Duration,
    ) -> Result<Changed, ClientError> {
        let time = NewTime::To(When::After(DurationMs::at_least(delay)));
        self.verb(target, &Verb::Reschedule(time)).await
    }

    /// Makes a task due now.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn run_now(&self, target: &Target) -> Result<Changed, ClientError> {
        self.verb(target, &Verb::RunNow).await
    }

    /// Ends a task as succeeded, from outside.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn complete(
        &self,
        target: &Target,
        result: Option<&serde_json::Value>,
    ) -> Result<Changed, ClientError> {
        let complete = Verb::Complete {
            result: result.map(|json| RawJson::from(json.to_string())),
            token: None,
        };
        self.verb(target, &complete).await
    }

    /// Ends a task as dead, from outside.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn fail(
        &self,
        target: &Target,
        code: &str,
        message: &str,
    ) -> Result<Changed, ClientError> {
        let error = ErrorNote {
            code: code.to_owned(),
            message: message.to_owned(),
        };
        self.verb(target, &Verb::Fail { error }).await
    }

    /// Runs a dead task again: a new generation with all its attempts.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn replay(&self, target: &Target) -> Result<Changed, ClientError> {
        self.verb(target, &Verb::Replay).await
    }

    /// Settles a dead task whose outcome a person knows.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn resolve(
        &self,
        target: &Target,
        succeeded: bool,
        note: &str,
    ) -> Result<Changed, ClientError> {
        let note = note.to_owned();
        self.verb(target, &Verb::Resolve { succeeded, note }).await
    }

    /// Drops the record of a dead task.
    ///
    /// # Errors
    /// As [`verb`](Self::verb).
    pub async fn discard(&self, target: &Target) -> Result<Changed, ClientError> {
        self.verb(target, &Verb::Discard).await
    }

    async fn send(&self, call: &Call) -> Result<Answer, ClientError> {
        send_until(&self.service, call, Instant::now() + self.patience).await
    }
}

fn not_json(error: serde_json::Error) -> ClientError {
    ClientError::NotJson(error.to_string())
}
