//! The embedded API: everything the HTTP routes can do, as async functions. Here is the engine itself, and what is
//! done with one task; many at once are in `engine/batch`, workers in `engine/workers`, topics in
//! `engine/topics`, the end in `engine/stop`.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use actix::Addr;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::clock::{Clock, DurationMs, Now, WallMs};
use crate::engine::backup::Backups;
use crate::engine::bulk::BulkBoard;
use crate::engine::disk::Disk;
use crate::engine::error::{EngineError, StartError};
use crate::engine::export::Exports;
use crate::engine::journal_copies::JournalCopies;
use crate::engine::known_topics::KnownTopics;
use crate::engine::options::Builder;
use crate::engine::registry::{RegistryActor, RegistryFiles, SharedBook, SharedRules};
use crate::engine::reports::ask_patiently;
use crate::engine::rule_counts::RuleCounts;
use crate::engine::schedules::{self, ScheduleBoard};
use crate::engine::what_if::WhatIfs;
use crate::executor::Executors;
use crate::executor::pull::PullDesk;
use crate::executor::roster::Roster;
use crate::ids::{ShardId, Slot};
use crate::limits;
use crate::shard::completion::Completions;
use crate::shard::create::Created;
use crate::shard::messages::{
    ApplyOnce, ApplyVerb, AskResent, CancelAhead, CreateTask, GetTask, KeepAnswer, ListTasks,
    Target, VerbDone, Wants,
};
use crate::shard::notes::Resent;
use crate::shard::query::{PageAsk, Position, TaskView, merge};
use crate::shard::router::ShardRouter;
use crate::store::data_dir::DataDir;
use crate::task::event::Event;
use crate::task::new_task::NewTask;
use crate::task::spec::{Action, TaskKey, TopicName};
use crate::task::topic::TopicBook;
use crate::watchdog::{Office, Watchdog};

pub use super::batch::BatchOp;
pub use super::workers::LeaseAsk;

/// Most answers for re-sent requests that wait for a shard that does not take them.
pub(super) const KEEPING_MAX: usize = 1_024;

/// A running engine. Clones are the same engine; it stops when the last is dropped, cleanly after
/// [`Duetime::shutdown`].
#[derive(Clone)]
pub struct Duetime {
    pub(super) parts: Arc<Parts>,
}

/// What an engine is made of.
pub(super) struct Parts {
    pub max_delay: DurationMs,
    pub grace: DurationMs,
    pub desk: Arc<PullDesk>,
    pub roster: Roster,
    pub completions: Arc<Completions>,
    pub executors: Arc<Executors>,
    /// Topics that tasks were created in, declared or not: bounded like declared ones.
    pub known_topics: KnownTopics,
    pub started: Now,
    pub clock: Clock,
    pub router: Arc<ShardRouter>,
    pub registry: Arc<Office<Addr<RegistryActor>>>,
    /// A place for each question to the registry that waits.
    pub registry_room: Arc<Semaphore>,
    pub book: SharedBook,
    /// Calendars, schedules and the like.
    pub rules: SharedRules,
    pub schedules: Arc<ScheduleBoard>,
    pub rule_counts: RuleCounts,
    pub bulk: Arc<BulkBoard>,
    pub what_ifs: WhatIfs,
    /// Topics that shards are being told of in the background.
    pub settling: Mutex<HashSet<TopicName>>,
    /// A place for each answer that waits to be kept.
    pub keeping_room: Arc<Semaphore>,
    pub watchdog: Watchdog,
    /// The watchdog counts as silent after this; never on a clock that a test moves.
    pub silence_max: Option<DurationMs>,
    /// Per shard, how often one of its owners was refused because its epoch was over.
    pub refusals: Vec<Arc<AtomicU64>>,
    pub io: Mutex<Option<Runtime>>,
    /// Where work runs that nobody need wait for.
    pub on_io: Handle,
    /// Dead once no shard's files are open any more.
    pub files_open: Weak<()>,
    pub dir: Mutex<Option<DataDir>>,
    /// Where the registry stands, to be backed up; let go of before the directory is.
    pub files: Mutex<Option<RegistryFiles>>,
    pub backups: Backups,
    pub exports: Arc<Exports>,
    /// If the journals are copied.
    pub journal_copies: Mutex<Option<Arc<JournalCopies>>>,
    /// What lets a request at the store; it stands in the directory's lock.
    pub admin_token: String,
    pub disk: Arc<Disk>,
    pub stopping: CancellationToken,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.watchdog.shutdown();
        self.executors.handlers().close();
        if let Some(copies) = &*self.journal_copies.lock() {
            copies.let_end();
        }
        if let Some(io) = self.io.lock().take() {
            io.shutdown_background();
        }
    }
}

impl fmt::Debug for Duetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duetime").finish_non_exhaustive()
    }
}

/// A request that came with an `Idempotency-Key`: ids of what it creates follow from it.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Hash of the key.
    pub key: u128,
    /// When it first came.
    pub first_at: WallMs,
}

impl Origin {
    /// What tells the request's operation in this place from all others.
    pub(super) fn request(self, place: usize) -> u64 {
        xxh3_64_with_seed(&self.key.to_be_bytes(), self.key as u64 ^ place as u64)
    }
}

impl Duetime {
    /// Begins a configuration. See the crate's first example.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(super) fn over(parts: Parts) -> Self {
        Self {
            parts: Arc::new(parts),
        }
    }

    /// Blocks until all parts run. A watchdog that hangs or is dead starts nothing, so that is no reason to wait on.
    pub(super) fn wait_until_up(&self, longest: DurationMs) -> Result<(), StartError> {
        let watchdog = &self.parts.watchdog;
        let up = watchdog.wait_all_running(longest, self.parts.silence_max);
        up.map_err(|why| StartError::NotRunning(why.to_string()))
    }

    /// After the start: topics in use are counted, a thaw that a crash cut off goes on, and occurrences of schedules that
    /// were missed are dropped or made up for.
    pub(super) fn settle_in(&self) -> Result<(), StartError> {
        self.parts
            .on_io
            .block_on(self.count_topics())
            .map_err(|error| StartError::NotRunning(error.to_string()))?;
        for (name, _) in self
            .book()
            .iter()
            .filter(|(_, topic)| topic.thawing.is_some())
        {
            self.settle_in_background(name);
        }
        let caught_up = self.parts.on_io.block_on(schedules::catch_up(self));
        caught_up.map_err(StartError::Registry)
    }

    /// Does `work` apart from who asked for it: it begins at once, and ends even if nobody waits for it any more.
    pub(crate) fn apart<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, EngineError>> + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        let working = self.parts.on_io.spawn(work);
        async {
            match working.await.map_err(JoinError::try_into_panic) {
                Ok(done) => done,
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // Only a runtime that is going away cancels.
                Err(Err(_)) => Err(EngineError::ShuttingDown),
            }
        }
    }

    /// Reads the engine's clocks.
    pub fn now(&self) -> Now {
        self.parts.clock.now()
    }

    /// The furthest ahead a task may be due.
    pub fn max_delay(&self) -> DurationMs {
        self.parts.max_delay
    }

    /// The topics as they are now.
    pub fn book(&self) -> Arc<TopicBook> {
        self.parts.book.read().clone()
    }

    pub(super) fn accepting(&self) -> Result<(), EngineError> {
        if self.parts.stopping.is_cancelled() {
            Err(EngineError::ShuttingDown)
        } else {
            Ok(())
        }
    }

    /// Whether tasks may have this action here. `at` is where it was given, as a JSON pointer.
    pub(super) fn may_do(
        &self,
        action: &Action,
        at: fmt::Arguments<'_>,
    ) -> Result<(), EngineError> {
        let Action::Command(command) = action else {
            return Ok(());
        };
        let checked = self.parts.executors.commands().check(command);
        checked.map_err(|refused| EngineError::Command {
            at: at.to_string(),
            refused,
        })
    }

    pub(super) fn shard_of(&self, target: &Target) -> ShardId {
        let slot = match target {
            Target::Id(id) => id.slot(),
            Target::Key(topic, key) => Slot::of_key(topic.as_str(), key.as_str()),
        };
        self.parts.router.shard_of(slot)
    }

    // ---------------------------------------------------------------- creating

    /// Creates a task. When this returns [`Created::New`], the task is on the disk.
    ///
    /// # Errors
    /// See [`EngineError`]. After [`NoAnswer::Unknown`](crate::shard::router::NoAnswer::Unknown) the task may or may not be there.
    pub async fn create(&self, new: NewTask, by: &str) -> Result<Created, EngineError> {
        self.create_from(new, None, by).await
    }

    /// The same, for a request that may be re-sent.
    ///
    /// # Errors
    /// As [`Duetime::create`].
    pub async fn create_from(
        &self,
        new: NewTask,
        origin: Option<Origin>,
        by: &str,
    ) -> Result<Created, EngineError> {
        self.make_room_for_topics().await;
        let creation = self.maker().creation(new, origin, 0)?;
        let shard = self.parts.router.shard_of(creation.id.slot());
        let by = by.to_owned();
        Ok(self
            .parts
            .router
            .ask(shard, CreateTask { creation, by })
            .await?)
    }

    // ---------------------------------------------------------------- one task

    /// Looks at a task.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn get(&self, target: Target) -> Result<Option<TaskView>, EngineError> {
        let shard = self.shard_of(&target);
        Ok(self.parts.router.ask(shard, GetTask(target)).await??)
    }

    /// Lets a verb happen to a task: cancel, pause, resume, reschedule, run now, complete, fail, replay, resolve,
    /// discard.
    ///
    /// # Errors
    /// When the task's state does not allow it; see [`EngineError`].
    pub async fn verb(
        &self,
        target: Target,
        event: Event,
        by: &str,
    ) -> Result<VerbDone, EngineError> {
        self.verb_from(target, event, None, by, Wants::Whole).await
    }

    /// The same, for a request that may be re-sent: it happens once.
    ///
    /// # Errors
    /// As [`Duetime::verb`].
    pub async fn verb_from(
        &self,
        target: Target,
        event: Event,
        origin: Option<Origin>,
        by: &str,
        wants: Wants,
    ) -> Result<VerbDone, EngineError> {
        let shard = self.shard_of(&target);
        let audited = super::batch::is_audited(&event).then(|| event.verb());
        let verb = ApplyVerb {
            target,
            event,
            by: by.to_owned(),
            wants,
        };
        let router = &self.parts.router;
        let done = match origin.map(|origin| origin.request(0)) {
            Some(request) => router.ask(shard, ApplyOnce { verb, request }).await??,
            None => router.ask(shard, verb).await??,
        };
        if let Some(verb) = audited {
            let views = done.view.whole().map(|view| (verb, view));
            self.audit_verbs(by, views.as_slice()).await;
        }
        Ok(done)
    }

    /// Cancels a task.
    ///
    /// # Errors
    /// As [`Duetime::verb`].
    pub async fn cancel(&self, target: Target, reason: &str) -> Result<VerbDone, EngineError> {
        let reason = reason.to_owned();
        self.verb(target, Event::Cancel { reason }, "embedder")
            .await
    }

    /// Cancels the live task of a key; when there is none, a create within `tombstone_for` finds itself
    /// cancelled, and this answers `None`.
    ///
    /// # Errors
    /// As [`Duetime::verb`].
    pub async fn cancel_ahead(
        &self,
        topic: TopicName,
        key: TaskKey,
        reason: &str,
        tombstone_for: DurationMs,
        by: &str,
        wants: Wants,
    ) -> Result<Option<VerbDone>, EngineError> {
        let shard = self
            .parts
            .router
            .shard_of(Slot::of_key(topic.as_str(), key.as_str()));
        let cancel = CancelAhead {
            topic,
            key,
            reason: reason.to_owned(),
            tombstone_for,
            by: by.to_owned(),
            wants,
        };
        Ok(self.parts.router.ask(shard, cancel).await??)
    }

    // ---------------------------------------------------------------- many

    /// One page of a list, and the place to go on from.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn list(
        &self,
        mut ask: PageAsk,
    ) -> Result<(Vec<TaskView>, Option<Position>), EngineError> {
        let shards = self.parts.router.shards().count().max(1);
        ask.scan_max = limits::PAGE_SCAN_MAX.div_ceil(shards);
        let (order, limit, ask) = (ask.order, ask.limit, Arc::new(ask));
        let parts = self
            .parts
            .router
            .ask_all(|_| ListTasks(Arc::clone(&ask)))
            .await?;
        Ok(merge(parts, order, limit))
    }

    // ---------------------------------------------------------------- re-sent requests

    /// Whether a request with an `Idempotency-Key` came before.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn ask_resent(&self, key: u128, body: &[u8]) -> Result<Resent, EngineError> {
        let shard = self.parts.router.shard_of(Slot::of_hash(key as u64));
        let body = xxh3_128(body);
        Ok(self
            .parts
            .router
            .ask(shard, AskResent { key, body })
            .await?)
    }

    /// Keeps the answer of such a request, or forgets that it is being worked on if the answer says that another
    /// try may fare better. When the shard does not take it now, it is told in the background; what it never hears
    /// it forgets by itself.
    pub async fn keep_answer(&self, key: u128, status: u16, body: Bytes) {
        let shard = self.parts.router.shard_of(Slot::of_hash(key as u64));
        let keep = move || KeepAnswer {
            key,
            status,
            body: body.clone(),
        };
        let Err(error) = self.parts.router.ask(shard, keep()).await else {
            return;
        };
        let Ok(room) = Arc::clone(&self.parts.keeping_room).try_acquire_owned() else {
            tracing::warn!(%error, "the answer for an Idempotency-Key was not kept, nor do more wait to be");
            return;
        };
        let router = Arc::clone(&self.parts.router);
        self.parts.on_io.spawn(async move {
            if let Err(error) = ask_patiently(&router, shard, keep).await {
                tracing::warn!(%error, "the answer for an Idempotency-Key was not kept");
            }
            drop(room);
        });
    }
}
