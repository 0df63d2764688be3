//! **duetime** is a durable timeout center: it is told *what must happen and when*, and makes it happen on time,
//! once, within a deadline, through crashes.
//!
//! It runs as a service (`duetime serve`, HTTP API) or inside your own process, which is what this page shows.
//!
//! # First steps
//!
//! An engine has a data directory of its own and runs what is due: pushes to URLs, handlers of this process, or
//! leases to outside workers. A create that was answered is on the disk.
//!
//! ```
//! use std::time::Duration;
//! use duetime::{Action, Created, Duetime, HandlerTask, NewTask, State, Target, TaskKey, TopicName};
//! use serde_json::json;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (closed, mut orders) = tokio::sync::mpsc::channel(8);
//!     let data = tempfile::tempdir()?; // a real service keeps its directory
//!
//!     let engine = Duetime::builder()
//!         .data_dir(data.path())
//!         .handler("close-order", move |task: HandlerTask| {
//!             let closed = closed.clone();
//!             async move {
//!                 // `task.cancel` fires when the time is up: long work listens to it.
//!                 let _ = closed.send(task.key).await;
//!                 Ok(Some(json!({"closed": true})))
//!             }
//!         })
//!         .start()
//!         .await?;
//!
//!     let topic = TopicName::parse("order.unpaid")?;
//!     let close_in = |key: &str, ms| -> Result<NewTask, duetime::NameError> {
//!         Ok(NewTask::new(topic.clone())
//!             .key(key)?
//!             .after(Duration::from_millis(ms))
//!             .action(Action::Handler { name: "close-order".into() })
//!             .payload(&json!({"order_id": key})))
//!     };
//!     let created = engine.create(close_in("order-1", 50)?, "shop").await?;
//!     assert!(matches!(created, Created::New(_)));
//!     engine.create(close_in("order-2", 60_000)?, "shop").await?;
//!
//!     // Order 2 is paid: its timeout is called off. Order 1 is not, and is closed on time.
//!     let order_2 = Target::Key(topic.clone(), TaskKey::parse("order-2")?);
//!     engine.cancel(order_2, "paid").await?;
//!     assert_eq!(orders.recv().await.flatten(), Some(TaskKey::parse("order-1")?));
//!
//!     let order_1 = Target::Key(topic, TaskKey::parse("order-1")?);
//!     while engine.get(order_1.clone()).await?.is_some_and(|view| view.task.state != State::Succeeded) {
//!         tokio::task::yield_now().await;
//!     }
//!     engine.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # Handlers
//!
//! A handler is an async function, or one that blocks its thread and gets one of its own. It reads its task's payload as
//! a type, sees how much time it has left, and listens to its token. It may panic, block or never return: its own
//! attempt fails or times out, and nothing else is held up ([`executor::handler`] has the table).
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//! use duetime::{Action, Duetime, HandlerError, HandlerResult, HandlerTask, NewTask, State, Target, TopicName};
//! use serde::Deserialize;
//! use serde_json::json;
//!
//! #[derive(Deserialize)]
//! struct Transfer {
//!     number: u64,
//!     pages: u32,
//! }
//!
//! async fn ask_bank(task: HandlerTask) -> HandlerResult {
//!     let transfer: Transfer = task.payload_as()?; // fails for good, and names the field
//!     tokio::select! {
//!         () = tokio::time::sleep(Duration::from_millis(5)) => Ok(Some(json!({"through": transfer.number}))),
//!         () = task.cancel.cancelled() => Err(HandlerError::new("cut_short", "the bank takes its time")),
//!     }
//! }
//!
//! fn print(task: HandlerTask) -> HandlerResult {
//!     let transfer: Transfer = task.payload_as()?;
//!     for page in 0..transfer.pages {
//!         if task.cancel.is_cancelled() || task.remaining() < Duration::from_secs(1) {
//!             return Err(HandlerError::new("unfinished", format!("{page} pages are printed")));
//!         }
//!         thread::sleep(Duration::from_millis(1)); // a printer
//!     }
//!     Ok(None)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let data = tempfile::tempdir()?;
//! let engine = Duetime::builder()
//!     .data_dir(data.path())
//!     .handler("ask-bank", ask_bank)
//!     .blocking_handler("print", print)
//!     .start()
//!     .await?;
//! # for name in ["ask-bank", "print"] {
//! #     let task = NewTask::new(TopicName::parse("transfer")?).key(name)?.payload(&json!({"number": 7, "pages": 2}));
//! #     engine.create(task.action(Action::Handler { name: name.into() }), "shop").await?;
//! #     let task = Target::Key(TopicName::parse("transfer")?, duetime::TaskKey::parse(name)?);
//! #     while engine.get(task.clone()).await?.is_some_and(|view| view.task.state != State::Succeeded) {
//! #         tokio::task::yield_now().await;
//! #     }
//! # }
//! # engine.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! The same HTTP API that the service has can be mounted into your own actix-web `App`: see [`http::configure`].
//!
//! # Three ways to have it done
//!
//! A [receiver of pushes](docs::push_receiver), a [worker](docs::pull_worker) that leases tasks of a running service
//! ([`client`] is that service's client), or a [handler](docs::embedded_handlers) of this process.
//!
//! # Reading the code
//!
//! The modules, from the ground up. The whole picture, one task's way through it, and what is never so:
//! [`docs::architecture`]; the words: [`docs::glossary`].

// 0 ground: no domain, no async
pub mod causes;
pub mod clock;
pub mod descriptors;
pub mod failpoints;
pub mod ids;
pub mod limits;
pub mod metrics;
mod panics;
// 1 domain: pure
pub mod rule;
pub mod task;
pub mod wheel;
// 2 persistence
pub mod store;
// 3 supervision: knows no domain actor
pub mod watchdog;
// 4 execution: knows no shard
pub mod executor;
// 5 the owner of a slice of all tasks
pub mod shard;
// 6 who tells it the time
pub mod scheduler;
// 7 what stands on the wire and in the registry
pub mod wire;
// 8 a running service, asked from outside: knows no engine
pub mod client;
// 9 whole stores: copied, carried over, looked through
pub mod archive;
// 10 assembly, and the embedded API
pub mod engine;
// 11 surfaces: translate, never decide
pub mod http;
// 12 the process
pub mod cli;
pub mod config;
pub mod telemetry;

#[cfg(test)]
mod testing;

pub use clock::{Clock, DurationMs, Now, WallMs};
pub use engine::bulk::{BulkId, BulkJob, BulkState, BulkVerb};
pub use engine::handle::{BatchOp, LeaseAsk};
pub use engine::{Builder, Duetime, EngineError, StartError};
pub use executor::command::{Allow, CommandGuard, CommandOptions};
pub use executor::handler::{HandlerError, HandlerResult, HandlerTask};
pub use ids::{AttemptToken, TaskId};
pub use shard::create::Created;
pub use shard::lease::Lease;
pub use shard::messages::{OpDone, Target, VerbDone, Wants};
pub use shard::play::{Assumption, Assumptions, Ends, Played, Until, WhatIf};
pub use shard::query::{Shown, TaskFilter, TaskView};
pub use task::event::{Event, NewDue};
pub use task::guard::{Guard, GuardQuestion, OnSilence};
pub use task::model::State;
pub use task::retry::{Backoff, RetryPolicy};
pub use task::spec::{
    Action, CommandAction, HttpAction, NameError, OnEnd, OnNoAnswer, Poll, StageName, TaskKey,
    TopicName, Verify,
};
pub use task::stage::{Stage, Stages, StagesError, Starts};
pub use task::topic::OnExisting;
pub use task::{NewTask, Outcome, Task, When};
pub use wire::bulk::{BulkAction, BulkAsk};

/// Supervision for an embedder's own actors: the same watchdog that looks after the shards.
pub use watchdog as supervision;

/// What is written about the code, beside the code.
pub mod docs {
    #[doc = include_str!("docs/architecture.md")]
    pub mod architecture {}
    #[doc = include_str!("docs/glossary.md")]
    pub mod glossary {}
    #[doc = include_str!("docs/push-receiver.md")]
    pub mod push_receiver {}
    #[doc = include_str!("docs/pull-worker.md")]
    pub mod pull_worker {}
    #[doc = include_str!("docs/embedded-handlers.md")]
    pub mod embedded_handlers {}
    #[doc = include_str!("docs/three-ends.md")]
    pub mod three_ends {}
    #[doc = include_str!("docs/guards.md")]
    pub mod guards {}
    #[doc = include_str!("docs/rules.md")]
    pub mod rules {}
    #[doc = include_str!("docs/what-if.md")]
    pub mod what_if {}
}
