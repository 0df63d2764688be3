//! What an engine is started with.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;

use crate::clock::{Clock, DurationMs};
use crate::engine::backup::BackupPlan;
use crate::engine::disk::RESERVE_BYTES;
use crate::engine::error::StartError;
use crate::engine::handle::Duetime;
use crate::executor::command::CommandOptions;
use crate::executor::egress::EgressPolicy;
use crate::executor::handler::{
    Handler, HandlerLimits, HandlerResult, HandlerTask, blocking_handler, handler,
};
use crate::limits;
use crate::shard::rescue::RescueOptions;
use crate::shard::table::TableOptions;
use crate::store::local::LocalOptions;
use crate::watchdog::Supervision;

/// Everything that can be chosen before the start. Made by [`Duetime::builder`].
pub struct Builder {
    pub(super) data: Option<PathBuf>,
    pub(super) shards: u16,
    pub(super) queue: usize,
    pub(super) running_max: usize,
    pub(super) per_host_max: usize,
    pub(super) questions_max: usize,
    pub(super) max_delay: DurationMs,
    pub(super) grace: DurationMs,
    pub(super) store: LocalOptions,
    pub(super) table: TableOptions,
    pub(super) rescue: RescueOptions,
    pub(super) reserve_bytes: u64,
    pub(super) backups: Option<BackupPlan>,
    pub(super) journal_dir: Option<PathBuf>,
    pub(super) egress: EgressPolicy,
    pub(super) root_certificates: Option<PathBuf>,
    pub(super) handlers: HashMap<String, Handler>,
    pub(super) handler_limits: HandlerLimits,
    pub(super) commands: Option<CommandOptions>,
    pub(super) clock: Clock,
    pub(super) supervision: Option<Supervision>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("data", &self.data)
            .field("shards", &self.shards)
            .field("handlers", &self.handlers.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            data: None,
            shards: 0,
            queue: 20_000,
            running_max: 512,
            per_host_max: 256,
            questions_max: 256,
            max_delay: limits::MAX_DELAY,
            grace: DurationMs::secs(10),
            store: LocalOptions::default(),
            table: TableOptions::default(),
            rescue: RescueOptions::default(),
            reserve_bytes: RESERVE_BYTES,
            backups: None,
            journal_dir: None,
            egress: EgressPolicy {
                allow_loopback: true,
                allow_private: false,
            },
            root_certificates: None,
            handlers: HashMap::new(),
            handler_limits: HandlerLimits::default(),
            commands: None,
            clock: Clock::machine(),
            supervision: None,
        }
    }
}

impl Builder {
    /// Where tasks are kept; made if it is not there. Needed.
    #[must_use]
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data = Some(path.into());
        self
    }

    /// How many shards a new directory gets; 0 means as many as cores, at least 2. An existing one keeps its own.
    #[must_use]
    pub fn shards(mut self, count: u16) -> Self {
        self.shards = count;
        self
    }

    /// How many questions may wait for each shard.
    #[must_use]
    pub fn queue(mut self, questions: usize) -> Self {
        self.queue = questions.clamp(1, crate::shard::actor::MAILBOX_MAX / 2);
        self
    }

    /// How many attempts may run at a time, over all shards: handlers, pushes, commands; 512 unless it is said. A push
    /// takes a socket and some 50 KiB, no thread: where there are no handlers it may be 10 000.
    #[must_use]
    pub fn running_max(mut self, attempts: usize) -> Self {
        self.running_max = attempts.max(1);
        self
    }

    /// How many questions of polls may be out at a time, over all shards, beside the attempts that run: so many that may
    /// be asked again, and so many last ones.
    #[must_use]
    pub fn questions_max(mut self, questions: usize) -> Self {
        self.questions_max = questions.max(1);
        self
    }

    /// How many pushes (and how many questions) may run at a time to one host (and port), over all shards: as few as keep
    /// one that is silent from being in everybody's way. Each shard may have its part, rounded up.
    #[must_use]
    pub fn per_host_max(mut self, pushes: usize) -> Self {
        self.per_host_max = pushes.max(1);
        self
    }

    /// How far ahead a task may be due.
    #[must_use]
    pub fn max_delay(mut self, length: DurationMs) -> Self {
        self.max_delay = length;
        self
    }

    /// How long a stop waits for attempts that run.
    #[must_use]
    pub fn grace(mut self, length: DurationMs) -> Self {
        self.grace = length;
        self
    }

    /// How shards keep their tasks.
    #[must_use]
    pub fn table(mut self, options: TableOptions) -> Self {
        self.table = options;
        self
    }

    /// How the second net under what is on its way works.
    #[must_use]
    pub fn rescue(mut self, options: RescueOptions) -> Self {
        self.rescue = options;
        self
    }

    /// How the store spends memory and time.
    #[must_use]
    pub fn store(mut self, options: LocalOptions) -> Self {
        self.store = options;
        self
    }

    /// How much of the disk is kept free: below it nothing new is taken in, and what is there can end.
    #[must_use]
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve_bytes = bytes;
        self
    }

    /// When backups are made by themselves.
    #[must_use]
    pub fn backups(mut self, plan: BackupPlan) -> Self {
        self.backups = Some(plan);
        self
    }

    /// Where the journals are copied to as they grow, so that a backup and they bring back all but the last second. What
    /// a planned backup has covered is removed there, so it takes [`backups`](Self::backups).
    #[must_use]
    pub fn journal_copies(mut self, dir: impl Into<PathBuf>) -> Self {
        self.journal_dir = Some(dir.into());
        self
    }

    /// Which addresses pushes may go to.
    #[must_use]
    pub fn egress(mut self, policy: EgressPolicy) -> Self {
        self.egress = policy;
        self
    }

    /// A PEM file with root certificates that pushes trust beside the machine's: those of receivers inside a company.
    #[must_use]
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(path.into());
        self
    }

    /// Registers an async function under a name, for tasks with `action: {"handler": {"name": …}}`.
    ///
    /// Its task's token is cancelled when the attempt's time is up or the task is cancelled; at the end of the grace
    /// its future is dropped. It should not block its thread; one that does is stood in for by another after 20 ms.
    #[must_use]
    pub fn handler<F, Fut>(mut self, name: impl Into<String>, f: F) -> Self
    where
        F: Fn(HandlerTask) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handlers.insert(name.into(), handler(f));
        self
    }

    /// Registers a function that blocks its thread: a call of a library without futures, a long computation.
    ///
    /// It has a thread of its own for as long as it runs, and no way to be stopped but to look at its task's token. When
    /// it has not returned by the end of the grace, its attempt has timed out all the same, its thread is left behind,
    /// and what it returns later has no effect.
    #[must_use]
    pub fn blocking_handler<F>(mut self, name: impl Into<String>, f: F) -> Self
    where
        F: Fn(HandlerTask) -> HandlerResult + Send + Sync + 'static,
    {
        self.handlers.insert(name.into(), blocking_handler(f));
        self
    }

    /// How many blocking handlers may run at a time; 64 unless it is said. More of them wait, for half of their
    /// attempt's time at most; then they are given back, which uses no attempt.
    #[must_use]
    pub fn blocking_max(mut self, calls: usize) -> Self {
        self.handler_limits.blocking_max = calls.max(1);
        self
    }

    /// How many threads may stand in for those that handlers do not give back, for async and for blocking handlers
    /// each; 64 unless it is said. Beyond it every abandoned thread leaves one less, which readiness warns of; when all
    /// are abandoned, attempts are given back at once.
    #[must_use]
    pub fn stand_ins_max(mut self, threads: usize) -> Self {
        self.handler_limits.stand_ins_max = threads;
        self
    }

    /// Lets tasks run programs on this machine, for `action: {"command": {…}}`; without it none is.
    ///
    /// A guard, a small process beside each, sees to it that nothing is left of it when this process is killed. It can be
    /// this program, if its `main` begins with [`CommandGuard::enter`], or the `duetime` binary.
    ///
    /// [`CommandGuard::enter`]: crate::CommandGuard::enter
    #[must_use]
    pub fn commands(mut self, options: CommandOptions) -> Self {
        self.commands = Some(options);
        self
    }

    /// Runs on another clock than the machine's; for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// What is done about parts that hang. By default one that can't be replaced inside this process is parked, and
    /// the engine says that it is [not ready](Duetime::readiness); give a
    /// [`last_rung`](Supervision::last_rung) to leave the process instead.
    #[must_use]
    pub fn supervision(mut self, supervision: Supervision) -> Self {
        self.supervision = Some(supervision);
        self
    }

    /// Starts the engine and waits until every part is up and recovered.
    ///
    /// # Errors
    /// When the data directory is in use or can't be read, or a part does not come up.
    pub async fn start(self) -> Result<Duetime, StartError> {
        // Recovery reads files: not on the caller's executor, whichever that is.
        let (tell, hear) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("boot".to_owned())
            .spawn(move || drop(tell.send(super::boot::boot(self))))
            .map_err(StartError::Threads)?;
        hear.await.map_err(|_| StartError::CutOff)?
    }
}
