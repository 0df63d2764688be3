//! One bulk job on its way: a step at a time, each some pages of tasks.
//!
//! ```text
//!  look: tasks behind the place ─▶ store: these are in hand, and how they were ─▶ do it ─▶ count
//!    ▲                                   │                                          ▲ │
//!    │                                   └── a crash: done once more, each task ────┘ │
//!    │                                       remembers that this job has been there   │
//!    └───────────────────── the next look, while this page is at work ────────────────┘
//! ```
//!
//! Pages go by due time. A task that its change moves ahead would be met again: the job knows whom it had in hand, 16 bytes
//! each, and the task itself knows this job by its request, if there were too many, or the process has ended meanwhile.
//!
//! What a recompute does is another thing for each task, and is worked out when it is looked at; whoever changes the task
//! between that and the change is not overruled.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs, Now, WallMs};
use crate::engine::bulk::job::{
    Before, BulkId, BulkJob, BulkState, InHand, Progress, page_bytes, read_page,
};
use crate::engine::bulk::record;
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::registry::RegistryError;
use crate::engine::registry::bulk::StoreBulk;
use crate::ids::{IdSet, ShardId, TaskId};
use crate::limits;
use crate::shard::messages::{ListTasks, Op, OpDone, RunOps, Target, VerbDone, VerbRefused, Wants};
use crate::shard::query::{Order, PageAsk, Position, TaskView, merge};
use crate::store::StoreError;
use crate::task::event::{Event, Refusal};
use crate::task::transition::{Context, Retention, apply};
use crate::watchdog::KillSwitch;
use crate::wire::bulk::BulkAction;

/// How long tasks that were looked for ahead may wait.
const AHEAD_MAX: DurationMs = DurationMs::secs(1);
/// How long counts that only looking has changed wait to be stored.
const STORE_EVERY: DurationMs = DurationMs::secs(1);
/// Why a task was left as it is whose rule gave nothing.
const RULE_FAILED: &str = "rule_failed";

/// A bulk job, and what is not stored of it.
pub(super) struct Course {
    pub job: BulkJob,
    /// The tasks of its latest pages, if these are not counted yet.
    in_hand: Vec<InHand>,
    /// What is to happen to them, where that is another thing for each and is known.
    planned: HashMap<TaskId, Event>,
    /// Some of these may be done already.
    is_again: bool,
    /// The next ones, looked for while those in hand were at work, and since when they are known.
    ahead: Option<(MonoMs, Sought)>,
    /// Those that were in hand since the start, as many as [`limits::BULK_PASSED_MAX`]: need not be looked at again.
    passed: Arc<IdSet>,
    /// Its rate allows the next page then.
    next_at: MonoMs,
    stored_at: MonoMs,
    is_dirty: bool,
}

impl Course {
    /// One that begins.
    pub fn new(job: BulkJob) -> Self {
        Self {
            job,
            in_hand: Vec::new(),
            planned: HashMap::new(),
            is_again: false,
            ahead: None,
            passed: Arc::default(),
            next_at: MonoMs(i64::MIN),
            stored_at: MonoMs(i64::MIN),
            is_dirty: false,
        }
    }

    /// One that is stored.
    ///
    /// # Errors
    /// When its page can't be read.
    pub fn load(id: BulkId, stored: &[u8], engine: &Duetime) -> Result<Option<Self>, StoreError> {
        let job = match record::decode(id, stored) {
            Ok(job) => job,
            Err(why) => {
                tracing::warn!(bulk = %id, why, "a bulk job does not read back; it is left as it is");
                return Ok(None);
            }
        };
        let mut course = Self::new(job);
        for page in course.job.pages_in_hand() {
            course
                .in_hand
                .extend(read_tasks(engine, &course.job, page)?);
            course.is_again = true;
        }
        Ok(Some(course))
    }

    /// When it can go on; `None` if there is nothing to do.
    pub fn wakes_at(&self) -> Option<MonoMs> {
        self.job.is_at_work().then_some(self.next_at)
    }

    /// One step. After an error the same is tried again.
    pub async fn step(&mut self, engine: &Duetime, kill: &KillSwitch) -> Result<(), EngineError> {
        let now = engine.now();
        let before = self.job.progress.state;
        if self.job.progress.in_hand == 0 && before == BulkState::Running {
            let ahead = self.ahead.take();
            let sought = match ahead.filter(|(at, _)| now.mono.since(*at) < AHEAD_MAX) {
                Some((_, sought)) => sought,
                None => self.seeker(engine).seek(engine).await?,
            };
            // A part that was given up changes nothing any more.
            if kill.is_thrown() {
                return Ok(());
            }
            self.take_in_hand(engine, sought).await?;
            if self.job.progress.in_hand == 0 {
                // The shards have as much time for others as the look has taken.
                let end = engine.now().mono;
                self.next_at = end.after(end.since(now.mono));
            }
        }
        if kill.is_thrown() {
            return Ok(());
        }
        if self.job.progress.in_hand > 0 {
            let tasks = self.in_hand.len();
            self.work_and_seek(engine).await?;
            self.pace(now, tasks);
        } else if self.job.progress.state == BulkState::Undoing {
            let tasks = self.undo(engine).await?;
            self.pace(now, tasks);
        }
        if self.job.progress.is_looked_through && self.job.progress.state == BulkState::Running {
            self.job.turn(BulkState::Done, engine.now().wall);
        }
        let has_turned = self.job.progress.state != before;
        let is_time = engine.now().mono.since(self.stored_at) >= STORE_EVERY;
        if has_turned || (self.is_dirty && is_time) {
            let stored = self.store(engine, Vec::new()).await;
            if stored.is_err() {
                // It turns again with the next try.
                self.job.progress.state = before;
                self.job.progress.ended_ms = None;
            }
            stored?;
        }
        Ok(())
    }

    /// So many tasks had their step; the next have theirs when the rate allows it.
    fn pace(&mut self, now: Now, tasks: usize) {
        let length = tasks as u64 * 1000 / u64::from(self.job.ask.rate);
        self.next_at = self.next_at.max(now.mono.after(DurationMs(length)));
    }

    /// Stores the job, with pages that it takes in hand.
    pub async fn store(
        &mut self,
        engine: &Duetime,
        pages: Vec<(u32, Vec<u8>)>,
    ) -> Result<(), EngineError> {
        let (id, record) = (self.job.id.0, record::encode(&self.job));
        let store = StoreBulk { id, record, pages };
        engine.ask_registry(store).await?;
        self.stored_at = engine.now().mono;
        self.is_dirty = false;
        Ok(())
    }

    // ---------------------------------------------------------------- there

    /// Who looks for the tasks behind the place that the job has come to.
    fn seeker(&self, engine: &Duetime) -> Seeker {
        let shards = engine.parts.router.shards().count().max(1);
        let step = self.job.step_max();
        Seeker {
            page: Arc::new(PageAsk {
                filter: self.job.ask.tasks_at(WallMs(self.job.progress.begun_ms)),
                order: Order::DueFirst,
                after: self.job.after(),
                // What one shard finds beyond another's last is looked at again with the next page.
                limit: step.div_ceil(shards),
                scan_max: limits::BULK_SCAN_MAX.div_ceil(shards),
                besides: Some(Arc::clone(&self.passed)),
            }),
            step,
            action: self.job.ask.action.clone(),
            request: self.job.request(),
        }
    }

    /// Does it to those in hand. The next are looked for meanwhile: one goes on while the other waits for the shards.
    async fn work_and_seek(&mut self, engine: &Duetime) -> Result<(), EngineError> {
        let Progress {
            state,
            is_looked_through,
            ..
        } = self.job.progress;
        let seeks = state == BulkState::Running && !is_looked_through;
        let seeker = seeks.then(|| self.seeker(engine));
        let seek = async {
            match seeker {
                Some(seeker) => seeker.seek(engine).await.map(Some),
                None => Ok(None),
            }
        };
        let (worked, sought) = futures_util::future::join(self.work(engine), seek).await;
        let now = engine.now().mono;
        // One that failed is looked for again in its turn.
        self.ahead = sought.ok().flatten().map(|sought| (now, sought));
        worked
    }

    /// Forgets what it has looked for ahead: it is not to be done now.
    pub fn look_anew(&mut self) {
        self.ahead = None;
    }

    /// Takes these tasks in hand.
    async fn take_in_hand(&mut self, engine: &Duetime, sought: Sought) -> Result<(), EngineError> {
        let Sought {
            looked_at,
            planned,
            failed,
            next,
        } = sought;
        let as_it_was = self.job.progress.clone();
        let progress = &mut self.job.progress;
        progress.counts.looked_at += looked_at as u64;
        progress.counts.matched += (planned.len() + failed.len()) as u64;
        match next {
            Some(place) => progress.after = Some((place.at.0, place.id.to_string())),
            None => progress.is_looked_through = true,
        }
        for id in failed {
            self.job.count_refused(id, RULE_FAILED);
        }
        self.is_dirty = true;
        if self.job.ask.dry_run {
            self.foresee(planned, engine.now());
        } else if !planned.is_empty() {
            let passed = Arc::make_mut(&mut self.passed);
            let room = limits::BULK_PASSED_MAX.saturating_sub(passed.len());
            passed.extend(planned.iter().take(room).map(|(view, _)| view.task.id));
            let action = &self.job.ask.action;
            let tasks = planned.iter().map(|(view, event)| InHand {
                id: view.task.id,
                before: match action {
                    BulkAction::Recompute => Before::of_recomputed(&view.task, event),
                    _ => Before::of(&view.task, action),
                },
            });
            self.in_hand = tasks.collect();
            self.planned = match action {
                BulkAction::Recompute => planned
                    .into_iter()
                    .map(|(view, event)| (view.task.id, event))
                    .collect(),
                _ => HashMap::new(),
            };
            self.is_again = false;
            let pages = self.in_hand.chunks(limits::BULK_PAGE_MAX).map(page_bytes);
            let pages: Vec<_> = pages.collect();
            // At most a few.
            self.job.progress.in_hand = pages.len() as u32;
            self.job.progress.pages += self.job.progress.in_hand;
            let pages = self.job.pages_in_hand().zip(pages).collect();
            if let Err(error) = self.store(engine, pages).await {
                self.job.progress = as_it_was;
                return Err(error);
            }
        }
        Ok(())
    }

    /// What would become of these tasks.
    fn foresee(&mut self, planned: Vec<(TaskView, Event)>, now: Now) {
        for (view, event) in planned {
            let context = Context {
                now,
                retention: Retention::default(),
                random: 0.0,
                by: "",
            };
            let mut task = (*view.task).clone();
            match apply(&mut task, event, &context) {
                Ok(_) => {
                    self.job.progress.counts.done += 1;
                    self.job.name(task.id, None);
                }
                Err(refusal) => self.job.count_refused(task.id, code_of(&refusal.into())),
            }
        }
    }

    /// Does it to the tasks in hand, and counts them.
    async fn work(&mut self, engine: &Duetime) -> Result<(), EngineError> {
        let (now, request) = (engine.now(), self.job.request());
        let action = &self.job.ask.action;
        let (mut ops, mut settled) = (Vec::with_capacity(self.in_hand.len()), Vec::new());
        for task in &self.in_hand {
            let known = self.planned.remove(&task.id);
            let event = match action.event(now).or(known) {
                Some(event) => Ok(event),
                None => self.look_again(engine, task.id).await?,
            };
            match event {
                Ok(event) => ops.push((task.id, Op::VerbOnce(Target::Id(task.id), event, request))),
                Err(outcome) => settled.push((task.id, outcome)),
            }
        }
        let is_again = std::mem::replace(&mut self.is_again, true);
        let answers = ask_shards(engine, ops.into_iter(), &self.job.hand()).await?;
        self.audit(engine, &answers).await;
        let is_discard = *action == BulkAction::Discard;
        for (id, outcome) in settled {
            match outcome {
                None => self.job.progress.counts.done += 1,
                Some(code) => self.job.count_refused(id, code),
            }
        }
        for (id, answer) in answers {
            match answer {
                Ok(_) => self.job.progress.counts.done += 1,
                // It went before the crash.
                Err(VerbRefused::NotFound) if is_discard && is_again => {
                    self.job.progress.counts.done += 1;
                }
                Err(VerbRefused::Damaged(_)) => {
                    self.job.progress.counts.failed += 1;
                    self.job.name(id, Some("damaged"));
                }
                Err(refused) => self.job.count_refused(id, code_of(&refused)),
            }
        }
        self.in_hand.clear();
        self.job.progress.in_hand = 0;
        self.is_dirty = true;
        Ok(())
    }

    /// What is to happen to a task of a page that was in hand before: else how it is settled already, with the code of
    /// the reason if it was not done.
    async fn look_again(
        &self,
        engine: &Duetime,
        id: TaskId,
    ) -> Result<Result<Event, Option<&'static str>>, EngineError> {
        let Some(view) = engine.get(Target::Id(id)).await? else {
            return Ok(Err(Some("not_found")));
        };
        if view.task.requests.contains(&self.job.request()) {
            return Ok(Err(None));
        }
        Ok(match engine.recomputed(&view.task) {
            Ok(Some(event)) => Ok(event),
            Ok(None) => Err(None),
            Err(_) => Err(Some(RULE_FAILED)),
        })
    }

    /// What an operator's hand ends or begins anew leaves a line for each task.
    async fn audit(&self, engine: &Duetime, answers: &[Answer]) {
        let verb = match self.job.ask.action {
            BulkAction::Replay => "replay",
            BulkAction::Discard => "discard",
            _ => return,
        };
        let views = answers.iter().filter_map(|(_, answer)| {
            let view = answer.as_ref().ok()?.view.whole()?;
            Some((verb, view))
        });
        let views: Vec<_> = views.collect();
        engine.audit_verbs(&self.job.hand(), &views).await;
    }

    // ---------------------------------------------------------------- and back

    /// Takes a page back, the latest first; how many tasks it has.
    async fn undo(&mut self, engine: &Duetime) -> Result<usize, EngineError> {
        let Some(page) = self
            .job
            .progress
            .undo_before
            .and_then(|page| page.checked_sub(1))
        else {
            self.job.turn(BulkState::Undone, engine.now().wall);
            return Ok(0);
        };
        let tasks = read_tasks(engine, &self.job, page);
        let tasks = tasks.map_err(RegistryError::from)?;
        let (now, hand) = (engine.now(), Arc::from(self.job.hand()));
        let ops = tasks.iter().filter_map(|task| {
            let op = Op::VerbAfter(task.id, task.before.back(now)?, Arc::clone(&hand));
            Some((task.id, op))
        });
        let answers = ask_shards(engine, ops, &self.job.undoing_hand()).await?;
        let is_undone = |(_, answer): &&Answer| answer.is_ok();
        let undone = answers.iter().filter(is_undone).count();
        let counts = &mut self.job.progress.counts;
        counts.undone += undone as u64;
        counts.kept += (tasks.len() - undone) as u64;
        self.job.progress.undo_before = Some(page);
        // A page that a crash has taken back twice is counted once.
        self.store(engine, Vec::new()).await?;
        Ok(tasks.len())
    }
}

/// Looks for the next tasks of a job.
struct Seeker {
    page: Arc<PageAsk>,
    /// At most so many tasks.
    step: usize,
    action: BulkAction,
    request: u64,
}

/// The next tasks of a job, and what is to happen to each.
struct Sought {
    looked_at: usize,
    planned: Vec<(TaskView, Event)>,
    /// Those whose rule fails.
    failed: Vec<TaskId>,
    /// Where to go on; `None`: there is nothing behind them.
    next: Option<Position>,
}

impl Seeker {
    async fn seek(self, engine: &Duetime) -> Result<Sought, EngineError> {
        let page = Arc::clone(&self.page);
        let looked = engine
            .parts
            .router
            .ask_all(|_| ListTasks(Arc::clone(&page)));
        let parts = looked.await?;
        let looked_at = parts.iter().map(|part| part.looked_at).sum();
        let (views, next) = merge(parts, Order::DueFirst, self.step);
        let fresh = |view: &TaskView| !view.task.requests.contains(&self.request);
        let views = views.into_iter().filter(fresh);
        let (planned, failed) = self.plan(engine, views);
        Ok(Sought {
            looked_at,
            planned,
            failed,
            next,
        })
    }

    /// What is to happen to each of these, and those whose rule fails. A task that stands as its rule says is in neither.
    fn plan(
        &self,
        engine: &Duetime,
        views: impl Iterator<Item = TaskView>,
    ) -> (Vec<(TaskView, Event)>, Vec<TaskId>) {
        let now = engine.now();
        let (mut planned, mut failed) = (Vec::with_capacity(self.step), Vec::new());
        for view in views {
            match self.action.event(now) {
                Some(event) => planned.push((view, event)),
                None => match engine.recomputed(&view.task) {
                    Ok(Some(event)) => planned.push((view, event)),
                    Ok(None) => {}
                    Err(_) => failed.push(view.task.id),
                },
            }
        }
        (planned, failed)
    }
}

type Answer = (TaskId, Result<Box<VerbDone>, VerbRefused>);

/// Puts operations to their shards; all answers, or none.
async fn ask_shards(
    engine: &Duetime,
    ops: impl Iterator<Item = (TaskId, Op)>,
    by: &str,
) -> Result<Vec<Answer>, EngineError> {
    let mut by_shard: BTreeMap<ShardId, (Vec<TaskId>, Vec<Op>)> = BTreeMap::new();
    for (id, op) in ops {
        let shard = engine.parts.router.shard_of(id.slot());
        let (ids, ops) = by_shard.entry(shard).or_default();
        ids.push(id);
        ops.push(op);
    }
    let asked = by_shard.into_iter().map(|(shard, (ids, ops))| async move {
        let ops = RunOps::new(ops, Wants::Slim, by.to_owned());
        let done = engine.parts.router.ask(shard, ops).await?;
        Ok::<_, EngineError>(ids.into_iter().zip(done))
    });
    let mut answers = Vec::new();
    // All are waited for, so that what is tried again meets none of them under way.
    for part in futures_util::future::join_all(asked).await {
        let verbs = part?.filter_map(|(id, done)| match done {
            OpDone::Verb(done) => Some((id, done)),
            OpDone::Created(_) => None,
        });
        answers.extend(verbs);
    }
    Ok(answers)
}

fn read_tasks(engine: &Duetime, job: &BulkJob, page: u32) -> Result<Vec<InHand>, StoreError> {
    let files = engine.parts.files.lock().clone();
    let files = files.ok_or(StoreError::Poisoned)?;
    let stored = files.bulk_page(job.id.0, page)?;
    let tasks = stored.and_then(|bytes| read_page(&bytes));
    if tasks.is_none() {
        tracing::warn!(bulk = %job.id, page, "a page of a bulk job is not there, or does not read back; its tasks are left as they are");
    }
    Ok(tasks.unwrap_or_default())
}

/// The code of a refusal, as the verb itself would answer it.
fn code_of(refused: &VerbRefused) -> &'static str {
    match refused {
        VerbRefused::NotFound => "not_found",
        VerbRefused::Exists(_) => "exists",
        VerbRefused::Damaged(_) => "damaged",
        VerbRefused::TooManyTombstones(_) => "too_many_tombstones",
        VerbRefused::Refused(Refusal::IllegalState { .. }) => "illegal_state",
        VerbRefused::Refused(Refusal::StaleToken { .. }) => "stale_token",
        VerbRefused::Refused(Refusal::ChangedMeanwhile) => "changed_meanwhile",
    }
}
