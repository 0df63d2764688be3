//! The embedded API: everything the HTTP routes can do, as async functions.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::clock::{Clock, DurationMs, Now, WallMs};
use crate::engine::boot::shard_child;
use crate::engine::data_dir::DataDir;
use crate::engine::error::{EngineError, StartError};
use crate::engine::options::Builder;
use crate::engine::registry::{
    AuditLine, DeleteTopic, EndThaw, Note, PauseTopic, PutTopic, RegistryActor, RegistryError,
    ResumeTopic, SharedBook,
};
use crate::executor::pull::PullDesk;
use crate::ids::{AttemptToken, ShardId, Slot, TaskId};
use crate::limits;
use crate::shard::create::{Created, Creation};
use crate::shard::lease::Lease;
use crate::shard::messages::{
    ApplyVerb, AskResent, CancelAhead, CreateTask, Drain, FinishAttempt, GetTask, KeepAnswer,
    KeepLease, LeaseTasks, ListTasks, Op, OpDone, RunOps, SetBook, Target, ThawTopic, VerbDone,
};
use crate::shard::notes::Resent;
use crate::shard::query::{PageAsk, Position, TaskView, merge};
use crate::shard::router::{NoAnswer, ShardRouter};
use crate::task::event::Event;
use crate::task::model::PauseClock;
use crate::task::new_task::NewTask;
use crate::task::spec::{TaskKey, TopicName};
use crate::task::topic::{OnExisting, Topic, TopicBook, TopicSettings};
use crate::watchdog::{ChildState, ChildStatus, Watchdog};

/// How often a stop looks whether the running attempts, and then the parts, have ended.
const STOP_LOOK: Duration = Duration::from_millis(10);
/// Longest wait of a stop for its parts to end. One that is stuck by then is left behind.
const PARTS_END_MAX: Duration = Duration::from_secs(5);

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
    /// Topics that tasks were created in, declared or not: bounded like declared ones.
    pub known_topics: RwLock<HashSet<TopicName>>,
    pub started: Now,
    pub clock: Clock,
    pub router: Arc<ShardRouter>,
    pub registry: Arc<RwLock<Option<Addr<RegistryActor>>>>,
    pub book: SharedBook,
    pub watchdog: Watchdog,
    pub io: Mutex<Option<Runtime>>,
    /// Dead once no shard's files are open any more.
    pub files_open: Weak<()>,
    pub dir: Mutex<Option<DataDir>>,
    pub stopping: CancellationToken,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.watchdog.shutdown();
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

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct LeaseAsk {
    /// Of these topics.
    pub topics: Vec<TopicName>,
    /// At most this many.
    pub max: usize,
    /// For so long.
    pub lease: DurationMs,
    /// Wait for the first so long.
    pub wait: DurationMs,
    /// The worker's name.
    pub worker: String,
}

/// One operation of a mixed batch.
#[derive(Clone, Debug)]
pub enum BatchOp {
    /// Create a task.
    Create(Box<NewTask>),
    /// Let a verb happen to a task.
    Verb(Target, Event),
}

/// What an operator's hand ends or begins anew leaves a line in the audit.
fn is_audited(event: &Event) -> bool {
    matches!(
        event,
        Event::Replay | Event::Resolve { .. } | Event::Discard
    )
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

    /// After the start: topics in use are counted, and a thaw that a crash cut off goes on.
    pub(super) fn settle_in(&self) -> Result<(), StartError> {
        let engine = self.clone();
        let work = async move {
            let counts = engine
                .counts()
                .await
                .map_err(|error| StartError::NotRunning(error.to_string()))?;
            let used = counts
                .into_iter()
                .flat_map(|shard| shard.topics)
                .map(|(name, _)| name);
            engine.parts.known_topics.write().extend(used);
            let book = engine.book();
            for (name, topic) in book.iter().filter(|(_, topic)| topic.thawing.is_some()) {
                let thawed = engine.finish_thaw(name, topic).await;
                thawed.map_err(|error| StartError::NotRunning(error.to_string()))?;
            }
            Ok(())
        };
        match self.parts.io.lock().as_ref().map(Runtime::handle).cloned() {
            Some(io) => io.block_on(work),
            None => Err(StartError::CutOff),
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

    fn accepting(&self) -> Result<(), EngineError> {
        if self.parts.stopping.is_cancelled() {
            Err(EngineError::ShuttingDown)
        } else {
            Ok(())
        }
    }

    fn shard_of(&self, target: &Target) -> ShardId {
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
    /// See [`EngineError`]. After [`NoAnswer::Unknown`] the task may or may not be there.
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
        let creation = self.creation(new, origin, 0)?;
        let shard = self.parts.router.shard_of(creation.id.slot());
        let by = by.to_owned();
        Ok(self
            .parts
            .router
            .ask(shard, CreateTask { creation, by })
            .await?)
    }

    /// Applies operations: in order for each task, one commit per shard, an answer for each.
    pub async fn batch(
        &self,
        ops: Vec<BatchOp>,
        origin: Option<Origin>,
        by: &str,
    ) -> Vec<Result<OpDone, EngineError>> {
        let mut answers: Vec<Option<Result<OpDone, EngineError>>> = Vec::with_capacity(ops.len());
        answers.resize_with(ops.len(), || None);
        // A task's operations all go to one shard, so order within a shard is order for each task.
        let mut by_shard: BTreeMap<ShardId, (Vec<usize>, Vec<Op>)> = BTreeMap::new();
        let mut audited = Vec::new();
        for (place, op) in ops.into_iter().enumerate() {
            let (shard, op) = match op {
                BatchOp::Create(new) => match self.creation(*new, origin, place) {
                    Ok(creation) => (
                        self.parts.router.shard_of(creation.id.slot()),
                        Op::Create(creation),
                    ),
                    Err(error) => {
                        answers[place] = Some(Err(error));
                        continue;
                    }
                },
                BatchOp::Verb(target, event) => {
                    if is_audited(&event) {
                        audited.push((place, event.verb()));
                    }
                    (self.shard_of(&target), Op::Verb(target, event))
                }
            };
            let (places, ops) = by_shard.entry(shard).or_default();
            places.push(place);
            ops.push(op);
        }
        let asked = by_shard.into_iter().map(|(shard, (places, ops))| {
            let by = by.to_owned();
            async move {
                (
                    places,
                    self.parts.router.ask(shard, RunOps { ops, by }).await,
                )
            }
        });
        for (places, answer) in futures_util::future::join_all(asked).await {
            match answer {
                Ok(done) => {
                    for (place, done) in places.into_iter().zip(done) {
                        answers[place] = Some(Ok(done));
                    }
                }
                Err(error) => {
                    for place in places {
                        answers[place] = Some(Err(error.into()));
                    }
                }
            }
        }
        for (place, verb) in audited {
            if let Some(Ok(OpDone::Verb(Ok(done)))) = &answers[place]
                && let Err(error) = self.audit_verb(by, verb, &done.view).await
            {
                tracing::error!(%error, verb, task = %done.view.task.id, "audit line not written");
            }
        }
        let missing = || Err(EngineError::NoAnswer(NoAnswer::Unknown(ShardId(0))));
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    fn creation(
        &self,
        new: NewTask,
        origin: Option<Origin>,
        place: usize,
    ) -> Result<Creation, EngineError> {
        self.accepting()?;
        let book = self.book();
        let topic = book.get(&new.topic);
        self.admit_topic(&new.topic, &book)?;
        let tail = origin.map(|origin| {
            let seed = origin.key as u64 ^ place as u64;
            xxh3_64_with_seed(&origin.key.to_be_bytes(), seed)
        });
        let slot = match (&new.key, tail) {
            (Some(key), _) => Slot::of_key(new.topic.as_str(), key.as_str()),
            (None, Some(tail)) => Slot::of_hash(tail),
            (None, None) => Slot::random(),
        };
        let id = match (origin, tail) {
            (Some(origin), Some(tail)) => TaskId::with_tail(slot, origin.first_at, tail),
            _ => TaskId::new(slot, self.now().wall),
        };
        let spec = new.spec(topic);
        let on_existing = new.on_existing.or(topic.settings.on_existing);
        Ok(Creation {
            id,
            spec,
            topic: new.topic,
            key: new.key,
            when: new.when,
            on_existing: on_existing.unwrap_or(OnExisting::Return),
        })
    }

    fn admit_topic(&self, name: &TopicName, book: &TopicBook) -> Result<(), EngineError> {
        if self.parts.known_topics.read().contains(name) || book.is_known(name) {
            return Ok(());
        }
        let mut known = self.parts.known_topics.write();
        if known.len() >= limits::TOPICS_MAX {
            return Err(EngineError::TooManyTopics);
        }
        known.insert(name.clone());
        Ok(())
    }

    // ---------------------------------------------------------------- one task

    /// Looks at a task.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn get(&self, target: Target) -> Result<Option<TaskView>, EngineError> {
        let shard = self.shard_of(&target);
        Ok(self.parts.router.ask(shard, GetTask(target)).await?)
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
        let shard = self.shard_of(&target);
        let audited = is_audited(&event).then(|| event.verb());
        let verb = ApplyVerb {
            target,
            event,
            by: by.to_owned(),
        };
        let done = self.parts.router.ask(shard, verb).await??;
        if let Some(verb) = audited {
            self.audit_verb(by, verb, &done.view).await?;
        }
        Ok(done)
    }

    async fn audit_verb(&self, by: &str, verb: &str, view: &TaskView) -> Result<(), EngineError> {
        let task = &view.task;
        let detail = format!(
            "{} {}",
            task.topic,
            task.key.as_ref().map_or("", TaskKey::as_str)
        );
        self.audit(by, &format!("task.{verb}"), &task.id.to_string(), &detail)
            .await
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

    // ---------------------------------------------------------------- workers

    /// Leases due pull tasks; waits for the first when there is none. Empty when the wait is over.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn lease(&self, ask: LeaseAsk) -> Result<Vec<Lease>, EngineError> {
        let until = tokio::time::Instant::now() + ask.wait.to_std();
        let topics: Arc<[TopicName]> = ask.topics.into();
        loop {
            self.accepting()?;
            // In line before the shards are asked, so that what comes due in between rings.
            let waiting = self.parts.desk.wait(&topics);
            let leases = self
                .lease_now(&topics, ask.max, ask.lease, &ask.worker)
                .await?;
            if !leases.is_empty() || tokio::time::Instant::now() >= until {
                return Ok(leases);
            }
            tokio::select! {
                () = waiting.rung() => waiting.used(),
                () = tokio::time::sleep_until(until) => {}
                () = self.parts.stopping.cancelled() => return Ok(Vec::new()),
            }
        }
    }

    async fn lease_now(
        &self,
        topics: &Arc<[TopicName]>,
        max: usize,
        lease: DurationMs,
        worker: &str,
    ) -> Result<Vec<Lease>, EngineError> {
        let shards: Vec<ShardId> = self.parts.router.shards().collect();
        let first = usize::from(Slot::random().number()) % shards.len().max(1);
        let mut leases = Vec::new();
        let mut down = None;
        for shard in shards.iter().cycle().skip(first).take(shards.len()) {
            let question = LeaseTasks {
                topics: Arc::clone(topics),
                max: max - leases.len(),
                lease,
                worker: worker.to_owned(),
            };
            match self.parts.router.ask(*shard, question).await {
                Ok(more) => leases.extend(more),
                // The other shards' tasks can be had all the same.
                Err(error) => down = Some(error),
            }
            if leases.len() >= max {
                break;
            }
        }
        match down {
            Some(error) if leases.is_empty() => Err(error.into()),
            _ => Ok(leases),
        }
    }

    /// Renews a lease; answers when it ends now.
    ///
    /// # Errors
    /// When the token is not that of the running attempt.
    pub async fn heartbeat(
        &self,
        task: TaskId,
        token: AttemptToken,
    ) -> Result<WallMs, EngineError> {
        let shard = self.parts.router.shard_of(task.slot());
        Ok(self
            .parts
            .router
            .ask(shard, KeepLease { task, token })
            .await??)
    }

    /// A worker's answer for its attempt: [`Event::Finished`] or [`Event::Snoozed`].
    ///
    /// # Errors
    /// When the token is not that of the running attempt; nothing has changed then.
    pub async fn finish_attempt(
        &self,
        task: TaskId,
        event: Event,
        by: &str,
    ) -> Result<TaskView, EngineError> {
        let shard = self.parts.router.shard_of(task.slot());
        let by = by.to_owned();
        Ok(self
            .parts
            .router
            .ask(shard, FinishAttempt { task, event, by })
            .await??)
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

    /// Keeps the answer of such a request.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn keep_answer(
        &self,
        key: u128,
        status: u16,
        body: Bytes,
    ) -> Result<(), EngineError> {
        let shard = self.parts.router.shard_of(Slot::of_hash(key as u64));
        Ok(self
            .parts
            .router
            .ask(shard, KeepAnswer { key, status, body })
            .await?)
    }

    // ---------------------------------------------------------------- topics and audit

    async fn registry<M>(&self, message: M) -> Result<<M as RegistryMessage>::Done, EngineError>
    where
        M: RegistryMessage
            + actix::Message<Result = Result<<M as RegistryMessage>::Done, RegistryError>>,
        RegistryActor: actix::Handler<M>,
    {
        let actor = self
            .parts
            .registry
            .read()
            .clone()
            .ok_or(RegistryError::Down)?;
        let answer = actor.send(message).await.map_err(|_| RegistryError::Down)?;
        Ok(answer?)
    }

    /// Tells all shards the topics as they are now, and waits until they work by them.
    async fn tell_shards(&self, book: &Arc<TopicBook>) -> Result<(), EngineError> {
        self.parts
            .router
            .ask_all(|_| SetBook(Arc::clone(book)))
            .await?;
        Ok(())
    }

    /// Declares a topic or replaces its settings; in force for the next create when it returns.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn put_topic(
        &self,
        name: TopicName,
        body: String,
        settings: TopicSettings,
        by: &str,
    ) -> Result<Arc<Topic>, EngineError> {
        let by = by.to_owned();
        let put = PutTopic {
            name: name.clone(),
            body,
            settings,
            by,
        };
        let book = self.registry(put).await?;
        self.tell_shards(&book).await?;
        Ok(Arc::clone(book.get(&name)))
    }

    /// Forgets a topic's settings.
    ///
    /// # Errors
    /// When it was never declared; see [`EngineError`].
    pub async fn delete_topic(&self, name: TopicName, by: &str) -> Result<(), EngineError> {
        let by = by.to_owned();
        let book = self.registry(DeleteTopic { name, by }).await?;
        self.tell_shards(&book).await
    }

    /// Holds all tasks of a topic: nothing of it starts after this has returned.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn pause_topic(
        &self,
        name: TopicName,
        clock: PauseClock,
        by: &str,
    ) -> Result<Arc<Topic>, EngineError> {
        let pause = PauseTopic {
            name: name.clone(),
            clock,
            by: by.to_owned(),
        };
        let book = self.registry(pause).await?;
        self.tell_shards(&book).await?;
        Ok(Arc::clone(book.get(&name)))
    }

    /// Lets a topic go on; after a frozen pause its tasks have the time left that they had.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn resume_topic(&self, name: TopicName, by: &str) -> Result<Arc<Topic>, EngineError> {
        let resume = ResumeTopic {
            name: name.clone(),
            by: by.to_owned(),
        };
        let book = self.registry(resume).await?;
        self.tell_shards(&book).await?;
        let topic = Arc::clone(book.get(&name));
        self.finish_thaw(&name, &topic).await?;
        Ok(Arc::clone(self.book().get(&name)))
    }

    async fn finish_thaw(&self, name: &TopicName, topic: &Topic) -> Result<(), EngineError> {
        let Some(thaw) = topic.thawing else {
            return Ok(());
        };
        let question = |_| ThawTopic {
            topic: name.clone(),
            thaw,
        };
        self.parts.router.ask_all(question).await?;
        let end = EndThaw {
            name: name.clone(),
            number: thaw.number,
        };
        let book = self.registry(end).await?;
        self.tell_shards(&book).await
    }

    /// Writes a line of the audit.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn audit(
        &self,
        by: &str,
        action: &str,
        target: &str,
        detail: &str,
    ) -> Result<(), EngineError> {
        let line = AuditLine {
            at_ms: self.now().wall.0,
            by: by.to_owned(),
            action: action.to_owned(),
            target: target.to_owned(),
            detail: detail.to_owned(),
        };
        self.registry(Note { line }).await
    }

    // ---------------------------------------------------------------- stopping

    /// Asks a shard to leave; the watchdog starts it anew from its store.
    ///
    /// # Errors
    /// When there is no such shard.
    pub fn restart_shard(&self, shard: ShardId) -> Result<(), EngineError> {
        self.parts
            .watchdog
            .restart(&shard_child(shard))
            .map_err(|_| EngineError::UnknownShard(shard.0))
    }

    /// Takes nothing new in, lets running attempts finish within the grace, hands back the rest, and stops.
    /// All that was acknowledged is on the disk, and the directory is free for another engine.
    pub async fn shutdown(&self) {
        if self.parts.stopping.is_cancelled() {
            return;
        }
        self.parts.stopping.cancel();
        let until = tokio::time::Instant::now() + self.parts.grace.to_std();
        loop {
            let running = self.drain(false).await;
            if running == 0 || tokio::time::Instant::now() >= until {
                break;
            }
            tokio::time::sleep(STOP_LOOK).await;
        }
        let cut_off = self.drain(true).await;
        tracing::info!(
            cut_off,
            "stopped: running attempts have ended or were handed back"
        );
        self.parts.watchdog.shutdown();
        let until = tokio::time::Instant::now() + PARTS_END_MAX;
        while !self.has_ended() && tokio::time::Instant::now() < until {
            tokio::time::sleep(STOP_LOOK).await;
        }
        // Only now may another engine have the directory.
        drop(self.parts.dir.lock().take());
    }

    /// Whether every part has ended and no file is open any more.
    fn has_ended(&self) -> bool {
        let stopped = |child: &ChildStatus| child.state == ChildState::Stopped;
        self.children().iter().all(stopped) && self.parts.files_open.strong_count() == 0
    }

    async fn drain(&self, give_up: bool) -> usize {
        let shards = self.parts.router.shards();
        let asked = shards.map(|shard| self.parts.router.ask(shard, Drain { give_up }));
        let answers = futures_util::future::join_all(asked).await;
        // A shard that is down has nothing running that could be waited for.
        answers.into_iter().filter_map(Result::ok).sum()
    }
}

/// A registry message and what it gives.
trait RegistryMessage: actix::Message<Result: Send> + Send + 'static {
    type Done;
}

macro_rules! registry_messages {
    ($($name:ident => $done:ty),*) => {$(impl RegistryMessage for $name { type Done = $done; })*};
}
registry_messages!(
    PutTopic => Arc<TopicBook>, DeleteTopic => Arc<TopicBook>, PauseTopic => Arc<TopicBook>,
    ResumeTopic => Arc<TopicBook>, EndThaw => Arc<TopicBook>, Note => ()
);
