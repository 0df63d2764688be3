//! What a shard is asked. Each question is a struct with one typed answer; the answer leaves the shard only when
//! all it rests on is committed.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::clock::{DurationMs, Now};
use crate::executor::AttemptReport;
use crate::ids::{AttemptToken, TaskId};
use crate::metrics::Quantiles;
use crate::shard::audit::AuditCounts;
use crate::shard::core::GuardCounts;
use crate::shard::core::ShardCore;
use crate::shard::create::{Created, Creation};
use crate::shard::late::{LateAsk, LatePage};
use crate::shard::lease::{Lease, expires_at};
use crate::shard::notes::{Resent, TooManyTombstones};
use crate::shard::query::{PageAsk, PagePart, Shown, TaskView};
use crate::shard::rescue::RescueCounts;
use crate::shard::shelf::ShelfCounts;
use crate::shard::snapshot::Snapshot;
use crate::shard::table::Totals;
use crate::shard::tally::TallyPart;
use crate::store::Tombstone;
use crate::task::event::{Applied, Event, Refusal};
use crate::task::late::LateAnswer;
use crate::task::model::State;
use crate::task::spec::{RawJson, TaskKey, TopicName};
use crate::task::topic::{Thaw, TopicBook};

/// Something a shard can be asked.
pub trait Question: Send + 'static {
    /// What it answers.
    type Answer: Send + 'static;

    /// Works it out. Called on the shard's own thread, between commits.
    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer;

    /// Works on it as long as the step has room. A question that can fill more than one step comes again in the
    /// next; the others are worked out at once.
    fn work(self, core: &mut ShardCore, now: Now) -> Worked<Self>
    where
        Self: Sized,
    {
        Worked::Done(self.put(core, now))
    }
}

/// How far a question got in one step.
#[derive(Debug)]
pub enum Worked<Q: Question> {
    /// It is answered.
    Done(Q::Answer),
    /// The step is full; what is left of it.
    Again(Q),
}

/// A question that is worked out in parts, all of them now.
fn put_in_parts<Q: Question>(mut question: Q, core: &mut ShardCore, now: Now) -> Q::Answer {
    loop {
        match question.work(core, now) {
            Worked::Done(answer) => return answer,
            Worked::Again(left) => question = left,
        }
    }
}

/// A question on its way to a shard, with the way back.
#[derive(Debug)]
pub struct Ask<Q: Question> {
    /// The question.
    pub question: Q,
    /// Dropped unanswered when the shard dies: the outcome is then unknown.
    pub reply: oneshot::Sender<Q::Answer>,
    /// The caller's place in the shard's queue, held until the answer even if the caller goes away.
    pub permit: Option<OwnedSemaphorePermit>,
}

impl<Q: Question> actix::Message for Ask<Q> {
    type Result = ();
}

/// A task, by either of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By id.
    Id(TaskId),
    /// By the caller's own names: the live task, else the one that ended last.
    Key(TopicName, TaskKey),
}

impl Target {
    fn find(&self, core: &ShardCore) -> Option<TaskId> {
        match self {
            Self::Id(id) => core.table.row(*id).map(|row| row.id),
            Self::Key(topic, key) => core.table.latest(topic, key),
        }
    }
}

/// Why a verb was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbRefused {
    /// There is no such task.
    #[error("there is no such task")]
    NotFound,
    /// Its state or its present attempt does not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A replay while its key is live again.
    #[error("its key is held by the live task {0}")]
    Exists(TaskId),
    /// No more cancels can stand for a create still to come.
    #[error(transparent)]
    TooManyTombstones(#[from] TooManyTombstones),
    /// The task is there, but what is stored of it does not read back. It is set aside, never guessed at.
    #[error("what is stored of the task {0} does not read back; `duetime store doctor` tells more")]
    Damaged(TaskId),
}

/// Why a task could not be shown.
fn absent(core: &mut ShardCore, id: TaskId) -> VerbRefused {
    if core.table.row(id).is_some() && core.table.read(id).is_none() {
        VerbRefused::Damaged(id)
    } else {
        VerbRefused::NotFound
    }
}

/// A verb that was done.
#[derive(Clone, Debug)]
pub struct VerbDone {
    /// The task afterwards.
    pub view: Shown,
    /// A cancel met an attempt that runs; it is being stopped. What another verb ends is over at once.
    pub stopping: bool,
}

/// How much of a task is to be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// All of it: its record is read if need be.
    Whole,
    /// What is at hand.
    Slim,
}

/// Creates one task.
#[derive(Debug)]
pub struct CreateTask {
    /// The task.
    pub creation: Creation,
    /// Who asks.
    pub by: String,
}

impl Question for CreateTask {
    type Answer = Created;

    fn put(self, core: &mut ShardCore, now: Now) -> Created {
        core.create(self.creation, &self.by, now)
    }
}

/// One operation of a batch.
#[derive(Debug)]
pub enum Op {
    /// Create a task.
    Create(Creation),
    /// Let a verb happen to a task.
    Verb(Target, Event),
    /// The same, once per request.
    VerbOnce(Target, Event, u64),
    /// The same, only if this hand made the latest change of the task; if the batch's own did, it is done already.
    VerbAfter(TaskId, Event, Arc<str>),
}

/// What became of an operation.
#[derive(Debug)]
pub enum OpDone {
    /// Of a create.
    Created(Created<Shown>),
    /// Of a verb.
    Verb(Result<Box<VerbDone>, VerbRefused>),
}

/// Applies many operations in order, in as few commits as their size allows.
#[derive(Debug)]
pub struct RunOps {
    ops: VecDeque<Op>,
    wants: Wants,
    by: String,
    done: Vec<OpDone>,
}

impl RunOps {
    /// These operations, for `by`. So much is shown of what is created; of all else what is at hand.
    pub fn new(ops: Vec<Op>, wants: Wants, by: String) -> Self {
        let done = Vec::with_capacity(ops.len());
        let ops = ops.into();
        Self {
            ops,
            wants,
            by,
            done,
        }
    }

    fn verb(&self, target: Target, event: Event) -> ApplyVerb {
        ApplyVerb {
            target,
            event,
            by: self.by.clone(),
            wants: Wants::Slim,
        }
    }
}

impl Question for RunOps {
    type Answer = Vec<OpDone>;

    fn put(self, core: &mut ShardCore, now: Now) -> Vec<OpDone> {
        put_in_parts(self, core, now)
    }

    fn work(mut self, core: &mut ShardCore, now: Now) -> Worked<Self> {
        while let Some(op) = self.ops.pop_front() {
            self.done.push(match op {
                Op::Create(creation) => {
                    OpDone::Created(core.create_shown(creation, self.wants, &self.by, now))
                }
                Op::Verb(target, event) => {
                    let verb = self.verb(target, event);
                    OpDone::Verb(verb.put(core, now).map(Box::new))
                }
                Op::VerbOnce(target, event, request) => {
                    let verb = self.verb(target, event);
                    OpDone::Verb(ApplyOnce { verb, request }.put(core, now).map(Box::new))
                }
                Op::VerbAfter(id, event, hand) => {
                    let verb = self.verb(Target::Id(id), event);
                    OpDone::Verb(verb.after(&hand, id, core, now).map(Box::new))
                }
            });
            if core.is_full() && !self.ops.is_empty() {
                return Worked::Again(self);
            }
        }
        Worked::Done(self.done)
    }
}

/// Lets a verb happen to a task.
#[derive(Debug)]
pub struct ApplyVerb {
    /// To which.
    pub target: Target,
    /// What.
    pub event: Event,
    /// Who asks.
    pub by: String,
    /// How much of the task is to be shown.
    pub wants: Wants,
}

impl ApplyVerb {
    fn work(
        self,
        request: Option<u64>,
        core: &mut ShardCore,
        now: Now,
    ) -> Result<VerbDone, VerbRefused> {
        let id = self.target.find(core).ok_or(VerbRefused::NotFound)?;
        // By key one speaks of what is live: a cancel that finds only a finished task came too late.
        if let (Event::Cancel { .. }, Target::Key(..)) = (&self.event, &self.target)
            && core.table.row(id).map(|row| row.state) == Some(State::Succeeded)
        {
            return Err(VerbRefused::Refused(Refusal::IllegalState {
                state: State::Succeeded,
                verb: "cancel",
            }));
        }
        if let (Event::Cancel { reason }, Wants::Slim) = (&self.event, self.wants)
            && let Some(slim) = core.cancel_asleep(id, reason, &self.by, request, now)
        {
            return Ok(VerbDone {
                view: Shown::Slim(slim),
                stopping: false,
            });
        }
        let Some(before) = core.view_of(id, now) else {
            return Err(absent(core, id));
        };
        if let (Event::Replay, Some(key)) = (&self.event, &before.task.key)
            && let Some(live) = core.table.live(&before.task.topic, key)
            && live != id
        {
            return Err(VerbRefused::Exists(live));
        }
        let is_cancel = matches!(self.event, Event::Cancel { .. });
        let applied = core
            .answer(id, self.event, &self.by, now)
            .ok_or(VerbRefused::NotFound)??;
        if let Some(request) = request {
            core.note_request(id, request);
        }
        Ok(VerbDone {
            view: Shown::Whole(Box::new(core.view_of(id, now).unwrap_or(before))),
            stopping: is_cancel && matches!(applied, Applied::ChangedAndStop(_)),
        })
    }
}

impl ApplyVerb {
    fn after(
        self,
        hand: &str,
        id: TaskId,
        core: &mut ShardCore,
        now: Now,
    ) -> Result<VerbDone, VerbRefused> {
        let Some(view) = core.view_of(id, now) else {
            return Err(absent(core, id));
        };
        let latest = view.task.changes.kept.last();
        match latest.map(|latest| latest.by.as_str()) {
            Some(by) if by == self.by => Ok(VerbDone {
                view: Shown::Whole(Box::new(view)),
                stopping: false,
            }),
            Some(by) if by == hand => self.work(None, core, now),
            _ => Err(Refusal::ChangedMeanwhile.into()),
        }
    }
}

impl Question for ApplyVerb {
    type Answer = Result<VerbDone, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        self.work(None, core, now)
    }
}

/// Lets a verb happen to a task, once per request: sent again, the request finds that it has been done. What is
/// noted of a request is committed with what it changed, so no crash comes between the two.
#[derive(Debug)]
pub struct ApplyOnce {
    /// The verb.
    pub verb: ApplyVerb,
    /// Hash of the request.
    pub request: u64,
}

impl Question for ApplyOnce {
    type Answer = Result<VerbDone, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        let id = self.verb.target.find(core).ok_or(VerbRefused::NotFound)?;
        // Read once: to see whether it is done, and to do it. A cancel is laid beside its record instead.
        if !matches!(self.verb.event, Event::Cancel { .. }) {
            core.table.wake(id);
        }
        if let Some(view) = core.done_before(id, self.request, now) {
            return Ok(VerbDone {
                view: Shown::Whole(Box::new(view)),
                stopping: false,
            });
        }
        self.verb.work(Some(self.request), core, now)
    }
}

/// Cancels the live task of a key or, when there is none, makes the cancel stand for a create still to come.
#[derive(Debug)]
pub struct CancelAhead {
    /// The topic.
    pub topic: TopicName,
    /// The key.
    pub key: TaskKey,
    /// Why.
    pub reason: String,
    /// For how long a create will find itself cancelled.
    pub tombstone_for: DurationMs,
    /// Who asks.
    pub by: String,
    /// How much of the task is to be shown.
    pub wants: Wants,
}

impl Question for CancelAhead {
    /// `None` when no live task was found and a tombstone was laid.
    type Answer = Result<Option<VerbDone>, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        if core.table.live(&self.topic, &self.key).is_some() {
            let verb = ApplyVerb {
                target: Target::Key(self.topic, self.key),
                event: Event::Cancel {
                    reason: self.reason,
                },
                by: self.by,
                wants: self.wants,
            };
            return verb.put(core, now).map(Some);
        }
        core.lay_tombstone(Tombstone {
            topic: self.topic,
            key: self.key,
            until: now.steady.after(self.tombstone_for),
            reason: self.reason,
        })?;
        Ok(None)
    }
}

/// Looks at one task.
#[derive(Debug)]
pub struct GetTask(pub Target);

impl Question for GetTask {
    /// `None` when there is no such task.
    type Answer = Result<Option<TaskView>, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        let Some(id) = self.0.find(core) else {
            return Ok(None);
        };
        match core.view_of(id, now) {
            Some(view) => Ok(Some(view)),
            None => match absent(core, id) {
                VerbRefused::NotFound => Ok(None),
                damaged => Err(damaged),
            },
        }
    }
}

/// Looks at one task and at the late answers for its attempts, the oldest first.
#[derive(Debug)]
pub struct GetWithLate(pub Target);

impl Question for GetWithLate {
    /// `None` when there is no such task.
    type Answer = Result<Option<(TaskView, Vec<LateAnswer>)>, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        let view = GetTask(self.0).put(core, now)?;
        Ok(view.map(|view| {
            let late = core.notes.late.of_task(view.task.id);
            (view, late)
        }))
    }
}

/// One page of late answers, the newest first.
#[derive(Debug)]
pub struct ListLate(pub Arc<LateAsk>);

impl Question for ListLate {
    type Answer = LatePage;

    fn put(self, core: &mut ShardCore, _: Now) -> LatePage {
        core.notes.late.page(&self.0)
    }
}

/// One page of a list.
#[derive(Debug)]
pub struct ListTasks(pub Arc<PageAsk>);

impl Question for ListTasks {
    type Answer = PagePart;

    fn put(self, core: &mut ShardCore, now: Now) -> PagePart {
        core.page(&self.0, now)
    }
}

/// Leases due pull tasks.
#[derive(Debug)]
pub struct LeaseTasks {
    /// Of these topics.
    pub topics: Arc<[TopicName]>,
    /// At most this many.
    pub max: usize,
    /// For so long.
    pub lease: DurationMs,
    /// To this worker.
    pub worker: String,
}

impl Question for LeaseTasks {
    type Answer = Vec<Lease>;

    fn put(self, core: &mut ShardCore, now: Now) -> Vec<Lease> {
        core.lease(&self.topics, self.max, self.lease, &self.worker, now)
    }
}

/// Keeps a lease.
#[derive(Debug)]
pub struct KeepLease {
    /// The task.
    pub task: TaskId,
    /// The lease's token.
    pub token: AttemptToken,
    /// How far the work has got, if that is said.
    pub checkpoint: Option<RawJson>,
}

impl Question for KeepLease {
    /// When the lease ends now.
    type Answer = Result<crate::clock::WallMs, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        let event = Event::Heartbeat {
            token: self.token,
            checkpoint: self.checkpoint,
        };
        core.change(self.task, event, "worker", now)
            .ok_or(VerbRefused::NotFound)??;
        let view = core.view_of(self.task, now).ok_or(VerbRefused::NotFound)?;
        Ok(expires_at(&view, now))
    }
}

/// Tells what workers hold, and what became of what they had.
#[derive(Debug)]
pub struct ListWorkers;

impl Question for ListWorkers {
    type Answer = Vec<TallyPart>;

    fn put(self, core: &mut ShardCore, _: Now) -> Self::Answer {
        core.workers.parts()
    }
}

/// An executor's or worker's answer for an attempt.
#[derive(Debug)]
pub struct FinishAttempt {
    /// The task.
    pub task: TaskId,
    /// `Finished` or `Snoozed`.
    pub event: Event,
    /// Who says so.
    pub by: String,
}

impl Question for FinishAttempt {
    type Answer = Result<TaskView, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        core.answer(self.task, self.event, &self.by, now)
            .ok_or(VerbRefused::NotFound)??;
        core.view_of(self.task, now).ok_or(VerbRefused::NotFound)
    }
}

/// What executors report of many attempts.
#[derive(Debug)]
pub struct FinishMany {
    reports: Arc<[AttemptReport]>,
    /// How many are taken in.
    done: usize,
    refused: Vec<(TaskId, VerbRefused)>,
}

impl FinishMany {
    /// All of these.
    pub fn new(reports: Arc<[AttemptReport]>) -> Self {
        Self {
            reports,
            done: 0,
            refused: Vec::new(),
        }
    }
}

impl Question for FinishMany {
    /// Those that changed nothing, and why.
    type Answer = Vec<(TaskId, VerbRefused)>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        put_in_parts(self, core, now)
    }

    fn work(mut self, core: &mut ShardCore, now: Now) -> Worked<Self> {
        while let Some(report) = self.reports.get(self.done) {
            self.done += 1;
            if let checkpoint @ Some(_) = report.checkpoint.clone() {
                let token = report.token;
                let event = Event::Heartbeat { token, checkpoint };
                let _ = core.change(report.task, event, "executor", now);
            }
            let event = Event::Finished {
                token: report.token,
                outcome: report.outcome.clone(),
                started_at: report.started.map(|now| now.wall),
            };
            let changed = core.answer(report.task, event, "executor", now);
            if let Err(refused) = changed.map_or(Err(VerbRefused::NotFound), |done| Ok(done?)) {
                self.refused.push((report.task, refused));
            }
            if core.is_full() && self.done < self.reports.len() {
                return Worked::Again(self);
            }
        }
        Worked::Done(self.refused)
    }
}

/// A worker's answer for its attempt, once per request.
#[derive(Debug)]
pub struct FinishOnce {
    /// The answer.
    pub finish: FinishAttempt,
    /// Hash of the request.
    pub request: u64,
}

impl Question for FinishOnce {
    type Answer = Result<TaskView, VerbRefused>;

    fn put(self, core: &mut ShardCore, now: Now) -> Self::Answer {
        let id = self.finish.task;
        if let Some(view) = core.done_before(id, self.request, now) {
            return Ok(view);
        }
        let view = self.finish.put(core, now)?;
        core.note_request(id, self.request);
        Ok(view)
    }
}

/// Is this request a re-sent one?
#[derive(Debug)]
pub struct AskResent {
    /// Hash of the key.
    pub key: u128,
    /// Hash of the body.
    pub body: u128,
}

impl Question for AskResent {
    type Answer = Resent;

    fn put(self, core: &mut ShardCore, now: Now) -> Resent {
        let (resent, alarm) = core.notes.ask(self.key, self.body, now);
        if let Some(alarm) = alarm {
            core.set_alarm(alarm);
        }
        resent
    }
}

/// Keeps the answer of a request for when it is re-sent.
#[derive(Debug)]
pub struct KeepAnswer {
    /// Hash of the key.
    pub key: u128,
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

impl Question for KeepAnswer {
    type Answer = ();

    fn put(self, core: &mut ShardCore, _: Now) {
        core.notes.answered(self.key, self.status, self.body);
    }
}

/// Takes the topics as they are now.
#[derive(Debug)]
pub struct SetBook(pub Arc<TopicBook>);

impl Question for SetBook {
    type Answer = ();

    fn put(self, core: &mut ShardCore, now: Now) {
        core.set_book(self.0, now);
    }
}

/// Moves a topic's waiting tasks by the time it was frozen, in as many commits as it takes.
#[derive(Clone, Debug)]
pub struct ThawTopic {
    topic: TopicName,
    thaw: Thaw,
    left: Option<Vec<TaskId>>,
}

impl ThawTopic {
    /// This thaw of this topic.
    pub fn new(topic: TopicName, thaw: Thaw) -> Self {
        Self {
            topic,
            thaw,
            left: None,
        }
    }
}

impl Question for ThawTopic {
    type Answer = ();

    fn put(self, core: &mut ShardCore, now: Now) {
        put_in_parts(self, core, now);
    }

    fn work(mut self, core: &mut ShardCore, now: Now) -> Worked<Self> {
        let mut left = self
            .left
            .take()
            .unwrap_or_else(|| core.table.ids_of_topic(&self.topic));
        while let Some(id) = left.pop() {
            core.thaw(id, self.thaw, now);
            if core.is_full() && !left.is_empty() {
                self.left = Some(left);
                return Worked::Again(self);
            }
        }
        Worked::Done(())
    }
}

/// Begins or ends the shutdown of a shard's work.
#[derive(Debug)]
pub struct Drain {
    /// Cut off what still runs.
    pub give_up: bool,
}

impl Question for Drain {
    /// How many attempts still run.
    type Answer = usize;

    fn put(self, core: &mut ShardCore, now: Now) -> usize {
        let running = core.drain(now);
        if self.give_up {
            core.give_up_running(now);
        }
        running
    }
}

/// What a shard counts.
#[derive(Debug)]
pub struct CountTasks;

/// Counts of one topic in one shard.
#[derive(Clone, Debug, Default)]
pub struct TopicCounts {
    /// Tasks by state, in the order of [`State::ALL`].
    pub states: [u64; State::ALL.len()],
    /// How late attempts started.
    pub lateness: Quantiles,
    /// Creates per second, over the last minute.
    pub created_per_s: f64,
    /// Starts per second, over the last minute.
    pub started_per_s: f64,
    /// Ends per second, over the last minute.
    pub ended_per_s: f64,
    /// Since the shard's start.
    pub totals: Totals,
}

impl TopicCounts {
    /// Tasks that have not ended.
    pub fn live(&self) -> u64 {
        let states = State::ALL.iter().zip(self.states);
        let live = states.filter(|(state, _)| !state.is_ended());
        live.map(|(_, count)| count).sum()
    }
}

/// Counts of one shard.
#[derive(Clone, Debug, Default)]
pub struct ShardCounts {
    /// By topic.
    pub topics: Vec<(TopicName, TopicCounts)>,
    /// What had happened, since the shard's start, in topics of which nothing is left.
    pub of_gone_topics: Totals,
    /// All tasks.
    pub tasks: usize,
    /// Bytes of the index over them.
    pub index_bytes: usize,
    /// What its shelf holds.
    pub shelf: ShelfCounts,
    /// What its auditor has seen.
    pub audit: AuditCounts,
    /// What its rescue sweeps have come to.
    pub rescue: RescueCounts,
    /// What guards have answered.
    pub guards: GuardCounts,
    /// What did not read back at its start, and is set aside.
    pub damaged: Vec<String>,
    /// Attempts that run.
    pub in_flight: usize,
}

impl Question for CountTasks {
    type Answer = ShardCounts;

    fn put(self, core: &mut ShardCore, now: Now) -> ShardCounts {
        core.table.drop_idle_topics(now.mono);
        let topics = core
            .table
            .topics_mut()
            .map(|line| {
                let counts = TopicCounts {
                    states: line.counts,
                    lateness: line.lateness.clone(),
                    created_per_s: line.created.per_second(now.mono),
                    started_per_s: line.started.per_second(now.mono),
                    ended_per_s: line.ended.per_second(now.mono),
                    totals: line.totals,
                };
                (line.name.clone(), counts)
            })
            .collect();
        ShardCounts {
            topics,
            of_gone_topics: core.table.dropped_totals(),
            tasks: core.table.len(),
            index_bytes: core.table.index_bytes(),
            shelf: core.table.shelf().counts(),
            audit: core.audited(),
            rescue: core.rescued(),
            guards: core.guarded(),
            damaged: core.damaged().to_vec(),
            in_flight: core.in_flight(),
        }
    }
}

/// A snapshot is wanted. It is sent on its own once a fold has made it durable; if the shard dies first, never.
#[derive(Debug)]
pub struct TakeSnapshot(pub oneshot::Sender<Snapshot>);

impl Question for TakeSnapshot {
    type Answer = ();

    fn put(self, core: &mut ShardCore, _: Now) {
        core.want_snapshot(self.0);
    }
}
