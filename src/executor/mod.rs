//! Executors run attempts. They are handed one, do the work, and say once how it ended.
//!
//! ```text
//!   shard ── RunAttempt{task, token, deadline} ──▶ executor ──▶ the target
//!     ▲                                               │
//!     └───────────── ReportSink::ended ◀──────────────┘   exactly one report per attempt
//! ```
//!
//! An executor is told the *instant* at which the attempt's time is up, not a length: the time an attempt
//! spent waiting in a mailbox is spent. It never decides what an outcome means (retry, dead, …); that is
//! the task's transition. Whatever happens inside an executor, [`OwedReport`] sees to it that the report
//! goes out.
//!
//! Invariant: this floor knows no shard, no store and no engine. Reports leave through [`ReportSink`].

pub mod command;
mod deadline;
pub mod egress;
pub mod handler;
pub mod http_push;
mod progress;
pub mod pull;
pub mod roster;

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, DurationMs, MonoMs, Now};
use crate::ids::{AttemptToken, TaskId};
use crate::task::outcome::{Failure, Outcome};
use crate::task::spec::RawJson;
use crate::watchdog::{Generation, Office};

pub use command::{CommandCall, Commands};
pub use handler::{HandlerCall, HandlerTask, Handlers};
pub use http_push::{Conditions, HttpCall, HttpPushActor, PushDoor, PushOptions};
pub use progress::Progress;

/// One attempt to run, as it is handed to an executor.
#[derive(Debug)]
pub struct RunAttempt {
    /// The task the attempt belongs to.
    pub task: TaskId,
    /// The attempt's fencing number; comes back with every report.
    pub token: AttemptToken,
    /// The instant at which the attempt's time is up.
    pub deadline: MonoMs,
    /// From the deadline to the hard stop, for work that is asked to stop first.
    pub grace: DurationMs,
    /// Fires when the task is cancelled while the attempt runs.
    pub cancel: CancellationToken,
    /// What to do.
    pub work: Work,
}

impl RunAttempt {
    /// Which attempt of which task.
    pub fn which(&self) -> (TaskId, AttemptToken) {
        (self.task, self.token)
    }
}

/// What an attempt does.
#[derive(Debug)]
pub enum Work {
    /// Sends an HTTP request and reads the answer.
    Http(HttpCall),
    /// Calls a handler of the embedding process.
    Handler(HandlerCall),
    /// Runs a program.
    Command(CommandCall),
    /// Can't be run at all.
    Unfit(Failure),
}

/// How one attempt ended.
#[derive(Clone, Debug)]
pub struct AttemptReport {
    /// The task the attempt belongs to.
    pub task: TaskId,
    /// The attempt's fencing number.
    pub token: AttemptToken,
    /// What became of it.
    pub outcome: Outcome,
    /// When the work was begun; `None` when it never was.
    pub started: Option<Now>,
    /// When it was over.
    pub ended: Now,
    /// How far it got, for the next attempt.
    pub checkpoint: Option<RawJson>,
}

/// Where reports go; the engine routes them to the shard that owns the task.
///
/// No method may block or panic: they are called on the executors' own threads, and while unwinding.
pub trait ReportSink: Send + Sync + 'static {
    /// The attempt's work begins now.
    fn started(&self, task: TaskId, token: AttemptToken, at: Now);
    /// The attempt goes on, and has got so far.
    fn progressed(&self, _: TaskId, _: AttemptToken, _so_far: Option<RawJson>) {}
    /// The attempt is over. Called exactly once per attempt.
    fn ended(&self, report: AttemptReport);
}

/// What an attempt goes through to whoever does its work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// To the actor that pushes.
    Pushes,
    /// To the threads of a handler, by its name.
    Handler(String),
}

/// Who knows whether a door is open.
///
/// Asked by a shard for each attempt that it is about to hand out: it may not block.
pub trait Doors: Send + Sync + std::fmt::Debug {
    /// Whether there is somebody behind it to take an attempt; `false` when it would be given back at once.
    fn takes(&self, door: &Door) -> bool;
}

/// All executors, by the work they do.
pub struct Executors {
    http: Office<PushDoor>,
    handlers: Handlers,
    commands: Commands,
    sink: Arc<dyn ReportSink>,
    clock: Clock,
}

impl Executors {
    /// Executors that report to `sink`; pushes are given back until there is an actor for them.
    pub fn new(
        handlers: Handlers,
        commands: Commands,
        sink: Arc<dyn ReportSink>,
        clock: Clock,
    ) -> Self {
        Self {
            http: Office::default(),
            handlers,
            commands,
            sink,
            clock,
        }
    }

    /// Where pushes go from now on.
    pub fn set_http(&self, generation: Generation, door: PushDoor) {
        self.http.take(generation, door);
    }

    /// The handlers of this process.
    pub fn handlers(&self) -> &Handlers {
        &self.handlers
    }

    /// The commands of this process.
    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    /// Takes attempts and returns at once. Exactly one report follows for each, whatever happens. One that is cancelled
    /// already is not begun: its shard may have got another owner since it was entered, which has no use for it.
    pub fn run(&self, attempts: impl Iterator<Item = RunAttempt>) {
        // With the reports that are owed, so that whatever goes wrong on the way gives them back.
        let mut pushes = Vec::new();
        for attempt in attempts {
            let owed = || OwedReport::new(&attempt, Arc::clone(&self.sink), self.clock.clone());
            match &attempt.work {
                _ if attempt.cancel.is_cancelled() => owed().settle(Outcome::Cancelled),
                Work::Unfit(failure) => owed().settle(Outcome::Failed(failure.clone())),
                Work::Handler(_) => self.handlers.run(attempt, &self.sink),
                Work::Command(_) => {
                    let owed = owed();
                    self.commands.run(attempt, owed);
                }
                Work::Http(_) => {
                    let owed = owed();
                    pushes.push((attempt, owed));
                }
            }
        }
        if !pushes.is_empty()
            && let Some(door) = self.http.who()
        {
            door.run(pushes);
        }
    }
}

impl Doors for Executors {
    fn takes(&self, door: &Door) -> bool {
        match door {
            Door::Pushes => self.http.who().is_some_and(|door| door.takes()),
            Door::Handler(name) => self.handlers.takes(name),
        }
    }
}

impl std::fmt::Debug for Executors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Executors").field(&self.handlers).finish()
    }
}

/// Why an executor could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The HTTP client could not be set up.
    #[error("set up the HTTP client")]
    HttpClient(#[source] reqwest::Error),
    /// Certificates that are to be trusted can't be read.
    #[error("read root certificates from {}", path.display())]
    RootCertificates {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There are no threads for handlers.
    #[error("make threads for handlers")]
    Threads(#[source] std::io::Error),
}

/// An attempt that was taken, and whose report is still owed. Dropping it sends the report, so that a
/// panic or a stopped runtime gives one too: `GivenBack` before [`start`](Self::start), `Unknown` after.
pub struct OwedReport {
    sink: Arc<dyn ReportSink>,
    clock: Clock,
    task: TaskId,
    token: AttemptToken,
    started: Option<Now>,
    outcome: Outcome,
    progress: Option<Arc<Progress>>,
}

impl OwedReport {
    /// Takes on the duty to report on `attempt`.
    pub fn new(attempt: &RunAttempt, sink: Arc<dyn ReportSink>, clock: Clock) -> Self {
        Self {
            sink,
            clock,
            task: attempt.task,
            token: attempt.token,
            started: None,
            outcome: Outcome::GivenBack,
            progress: None,
        }
    }

    /// Ends this with the attempt, and reports what it has come to.
    pub fn ends_with(&mut self, progress: Arc<Progress>) {
        self.progress = Some(progress);
    }

    /// Says that the work begins now. From here on a loss leaves the outcome unknown.
    pub fn start(&mut self) {
        let now = self.clock.now();
        self.started = Some(now);
        self.outcome = Outcome::Unknown;
        self.sink.started(self.task, self.token, now);
    }

    /// Reports how the attempt ended.
    pub fn settle(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for OwedReport {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Outcome::Unknown);
        let checkpoint = self.progress.as_ref().and_then(|progress| progress.end());
        self.sink.ended(AttemptReport {
            task: self.task,
            token: self.token,
            checkpoint: checkpoint.filter(|_| !matches!(outcome, Outcome::Succeeded { .. })),
            outcome,
            started: self.started,
            ended: self.clock.now(),
        });
    }
}
