//! An owner of the shard: a real core, and the commit it has out.
//!
//! A core can't be copied, and a checker needs as many copies of it as there are ways on. So an owner is kept as what
//! made it: what was on the disk when it was born, and what it was fed since. [`Owner::feed`] raises the core anew,
//! feeds it everything again, and then one thing more. Two owners are the same if their cores know the same
//! ([`View`]), however they came to know it.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use super::*;
use crate::clock::Clock;
use crate::ids::ShardEpoch;
use crate::shard::create::Creation;
use crate::store::codec::{decode_note, decode_task};
use crate::store::mem::MemDisk;
use crate::store::{RecordKey, ShardStore, StoreError};
use crate::task::late::LateAnswer;

/// A task as far as it decides what comes next: without its log, and without times that nobody looks at.
#[derive(Clone)]
pub struct Known(pub Arc<Task>);

impl Known {
    fn told(&self) -> impl Hash + PartialEq {
        let task = &self.0;
        let live = task.live.as_ref();
        (
            (task.id, task.state, task.generation),
            (task.next.lane, task.next.fire_ms, task.first_due),
            (task.attempts, task.attempt, task.token),
            live.map(|live| (live.lease, live.report_by, live.worker.clone())),
            task.last_outcome.as_ref().map(|last| last.outcome),
        )
    }
}

impl Hash for Known {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.told().hash(hasher);
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.told() == other.told()
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (task, attempt) = (&self.0, self.0.attempt.0);
        match task.state {
            State::Dispatched | State::Running => {
                write!(f, "{} #{attempt} t{}", task.state, task.token.0)
            }
            state => write!(f, "{state}"),
        }
    }
}

/// A late answer. Which ones there are decides what is written next; when they came does not.
#[derive(Clone, Debug)]
pub struct Late(LateAnswer);

impl Late {
    fn told(&self) -> (TaskId, AttemptToken, &'static str) {
        (self.0.task, self.0.token, self.0.outcome)
    }
}

impl Hash for Late {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.told().hash(hasher);
    }
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.told() == other.told()
    }
}

/// What is durable.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Disk {
    /// The last that was minted.
    pub epoch: ShardEpoch,
    steady: SteadyMs,
    pub tasks: BTreeMap<TaskId, Known>,
    late: BTreeMap<RecordKey, Late>,
}

impl Disk {
    pub fn new() -> Self {
        Self {
            epoch: ShardEpoch(0),
            steady: SteadyMs(0),
            tasks: BTreeMap::new(),
            late: BTreeMap::new(),
        }
    }

    /// Commits a batch, if the store lets the owner of this epoch do so.
    pub fn commit(&mut self, epoch: ShardEpoch, batch: &Batch) -> Result<(), StoreError> {
        let mut store = MemDisk::new().store();
        while store.begin()?.epoch < self.epoch {}
        store.commit(epoch, batch)?;
        self.steady = self.steady.max(batch.steady());
        let (tasks, late) = written(batch);
        self.tasks
            .extend(tasks.into_iter().map(|known| (known.0.id, known)));
        let late = late.into_iter();
        self.late
            .extend(late.map(|late| (RecordKey::late(&late.0), late)));
        Ok(())
    }

    /// The core that a new owner raises from it, and the time it is then.
    fn raise(&self, clock: &Clock) -> (ShardCore, Now) {
        let mem = MemDisk::new();
        let mut store = mem.store();
        let mut batch = Batch::new(self.steady);
        for Known(task) in self.tasks.values() {
            batch.put_task(task);
        }
        for Late(late) in self.late.values() {
            batch.put_late(late);
        }
        let epoch = store.begin().unwrap().epoch;
        store.commit(epoch, &batch).unwrap();
        let options = CoreOptions::default();
        let (core, ..) = shell::recovered(&mem, &options, Arc::default(), clock);
        (core, clock.now())
    }
}

/// Something an owner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    Create(TaskId),
    Cancel(TaskId),
    /// By a worker.
    Lease(u8),
    Beat(u8, Held),
    /// Of a worker or an executor.
    Finish(Held, Says),
}

/// What is said of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Says {
    Done,
    Failed,
}

/// An attempt in somebody's hands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    pub task: TaskId,
    pub attempt: AttemptNumber,
    pub token: AttemptToken,
    /// An answer before that is in time. Steady, since a wall clock that steps back gives nobody more time.
    pub until: SteadyMs,
    /// Of the owner it came from.
    pub epoch: ShardEpoch,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "#{} t{} of e{}",
            self.attempt.0, self.token.0, self.epoch.0
        )
    }
}

/// What an owner answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Created(TaskId),
    Cancelled(TaskId),
    Leased(u8, Held),
    Kept(u8, Held),
    Finished(Held, Says),
    Refused,
}

/// A batch on its way to the disk, and what waits for it.
#[derive(Clone, Debug)]
pub struct Out {
    pub batch: Batch,
    writes: (Vec<Known>, Vec<Late>),
    pub answers: Vec<Answer>,
    effects: Vec<Effect>,
    /// What the store said, once it has said something.
    pub is_durable: Option<bool>,
}

/// What a core is fed at a time.
#[derive(Clone, Debug, Default)]
pub struct Fed {
    pub asked: Option<Asked>,
    /// What was out is durable: its effects are performed.
    pub effects: Vec<Effect>,
    /// This attempt is taken for lost without a look at what it has said since.
    pub given_up: Option<TaskId>,
    /// Not so if only what is armed is looked at.
    pub takes_step: bool,
}

/// What came of it.
#[derive(Default)]
pub struct Did {
    pub launches: Vec<Launch>,
    pub answers: Vec<Answer>,
}

/// All that a core knows, as far as it matters.
#[derive(Clone, Default)]
pub struct View {
    pub tasks: BTreeMap<TaskId, (Known, u8)>,
    armed: Vec<(i64, TaskId, AttemptToken)>,
    late: BTreeMap<RecordKey, Late>,
    /// Follows from the rest.
    pub wakes_in_ms: Option<i64>,
}

impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        (&self.tasks, &self.armed, &self.late) == (&other.tasks, &other.armed, &other.late)
    }
}

impl Hash for View {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.tasks, &self.armed, &self.late).hash(hasher);
    }
}

/// See the module's header.
#[derive(Clone)]
pub struct Owner {
    pub epoch: ShardEpoch,
    pub out: Option<Out>,
    pub view: View,
    born: Arc<(Disk, Now)>,
    fed: Vec<(Fed, Now)>,
}

impl Owner {
    /// Takes the shard over, at `now` of a process that lives, or in a new one.
    pub fn begin(disk: &mut Disk, now: Now) -> (Self, Now) {
        disk.epoch.0 += 1;
        let mut known = disk.clone();
        known.steady = known.steady.max(now.steady);
        let born = Arc::new((known, now));
        let mut owner = Self {
            epoch: disk.epoch,
            out: None,
            view: View::default(),
            born,
            fed: Vec::new(),
        };
        let (mut core, now) = owner.born.0.raise(&clock_at(owner.born.1));
        owner.view = view_of(&mut core, now);
        (owner, now)
    }

    /// Feeds it one thing more.
    pub fn feed(&mut self, fed: Fed, now: Now, model: &ShardModel) -> Did {
        let (mut core, _) = self.born.0.raise(&clock_at(self.born.1));
        for (fed, now) in &self.fed {
            self.run(&mut core, fed.clone(), *now, model);
        }
        let (did, out) = self.run(&mut core, fed.clone(), now, model);
        self.fed.push((fed, now));
        self.out = out;
        self.view = view_of(&mut core, now);
        did
    }

    /// What the actor does with it.
    fn run(
        &self,
        core: &mut ShardCore,
        fed: Fed,
        now: Now,
        model: &ShardModel,
    ) -> (Did, Option<Out>) {
        let mut did = Did::default();
        perform(core, fed.effects);
        did.launches.extend(core.launch(now));
        let mut asked = fed.asked;
        if let Some(id) = fed.given_up {
            let token = core.table.read(id).unwrap().task.token;
            let _ = core.change(id, Event::Overdue { token }, "rescue", now);
        }
        if !fed.takes_step {
            return (did, None);
        }
        loop {
            let answer = asked.take().map(|asked| self.put(core, asked, now, model));
            core.advance(now);
            let step = core.close(now);
            let is_out = step.batch.is_some();
            if !is_out || model.faults.acts_before_its_commit {
                did.answers.extend(answer);
                perform(core, step.effects.clone());
                did.launches.extend(core.launch(now));
            }
            if let Some(batch) = step.batch {
                let acted = model.faults.acts_before_its_commit;
                let out = Out {
                    writes: written(&batch),
                    batch,
                    answers: if acted {
                        Vec::new()
                    } else {
                        answer.into_iter().collect()
                    },
                    effects: if acted { Vec::new() } else { step.effects },
                    is_durable: None,
                };
                return (did, Some(out));
            }
            if !step.more {
                return (did, None);
            }
        }
    }

    fn put(&self, core: &mut ShardCore, asked: Asked, now: Now, model: &ShardModel) -> Answer {
        match asked {
            Asked::Create(id) => {
                let creation: Creation = model.creation(id);
                let by = "client".to_owned();
                match (CreateTask { creation, by }).put(core, now) {
                    Created::New(_) => Answer::Created(id),
                    _ => Answer::Refused,
                }
            }
            Asked::Cancel(id) => {
                let reason = String::new();
                let cancel = shell::verb(Target::Id(id), Event::Cancel { reason });
                match cancel.put(core, now) {
                    Ok(done) if done.view.slim().state == State::Cancelled => Answer::Cancelled(id),
                    _ => Answer::Refused,
                }
            }
            Asked::Lease(worker) => {
                let lease = LeaseTasks {
                    topics: [topic(USUAL)].into(),
                    max: 1,
                    lease: LEASE,
                    worker: format!("w{worker}"),
                };
                match lease.put(core, now).first() {
                    Some(lease) => Answer::Leased(
                        worker,
                        Held {
                            task: lease.view.task.id,
                            attempt: lease.attempt,
                            token: lease.token,
                            until: now.steady.after(lease.expires_at.since(now.wall)),
                            epoch: self.epoch,
                        },
                    ),
                    None => Answer::Refused,
                }
            }
            Asked::Beat(worker, held) => {
                let (task, token) = (held.task, held.token);
                let keep = KeepLease {
                    task,
                    token,
                    checkpoint: None,
                };
                match keep.put(core, now) {
                    Ok(until) => {
                        let until = now.steady.after(until.since(now.wall));
                        Answer::Kept(worker, Held { until, ..held })
                    }
                    Err(_) => Answer::Refused,
                }
            }
            Asked::Finish(held, says) => {
                let token = match model.faults.takes_any_token {
                    true => core.table.read(held.task).unwrap().task.token,
                    false => held.token,
                };
                let outcome = match says {
                    Says::Done => succeeded(),
                    Says::Failed => failed("http_503"),
                };
                let started_at = None;
                let event = Event::Finished {
                    token,
                    outcome,
                    started_at,
                };
                match shell::finish(held.task, event).put(core, now) {
                    Ok(_) => Answer::Finished(held, says),
                    Err(_) => Answer::Refused,
                }
            }
        }
    }

    /// What is out was committed, or refused: whoever waits for it is told, if it was committed.
    pub fn take_out(&mut self) -> Option<(Vec<Answer>, Vec<Effect>)> {
        let out = self.out.take()?;
        (out.is_durable == Some(true)).then_some((out.answers, out.effects))
    }
}

/// The tasks and late answers of a batch, as they read back.
fn written(batch: &Batch) -> (Vec<Known>, Vec<Late>) {
    let (mut tasks, mut late) = (Vec::new(), Vec::new());
    for (key, change) in batch.clone().changes() {
        match (key, change) {
            (RecordKey::Task(id), Change::Put(value)) => {
                tasks.push(Known(Arc::new(decode_task(id, &value).unwrap())));
            }
            (RecordKey::Late(_), Change::Put(value)) => match decode_note(key, &value).unwrap() {
                Some(Note::Late(answer)) => late.push(Late(*answer)),
                other => panic!("{other:?} under a late answer's key"),
            },
            other => panic!("nothing expires or sleeps in this model: {other:?}"),
        }
    }
    (tasks, late)
}

fn perform(core: &mut ShardCore, effects: Vec<Effect>) {
    for effect in effects {
        if let Effect::Arm(armed) = effect {
            core.arm(armed);
        }
    }
}

fn view_of(core: &mut ShardCore, now: Now) -> View {
    let armed = core.armed_wall.iter().chain(&core.armed_steady);
    let armed = armed.map(|armed| (armed.fire_ms, armed.task, armed.token));
    View {
        armed: armed.collect(),
        late: core
            .notes
            .late
            .all()
            .map(|late| (RecordKey::late(late), Late(late.clone())))
            .collect(),
        wakes_in_ms: core.next_in_ms(now),
        tasks: core
            .table
            .ids()
            .into_iter()
            .map(|id| {
                let entry = core.table.read(id).unwrap();
                (id, (Known(entry.task), entry.place as u8))
            })
            .collect(),
    }
}

/// A clock that shows `now`, but for steady time, which the store's mark raises.
fn clock_at(now: Now) -> Clock {
    let clock = Clock::by_hand(WallMs(now.wall.0 - now.mono.0));
    clock.advance(DurationMs(now.mono.0.unsigned_abs()));
    clock
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        (self.epoch, &self.view) == (other.epoch, &other.view) && self.out == other.out
    }
}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.epoch, &self.view, &self.out).hash(hasher);
    }
}

impl PartialEq for Out {
    fn eq(&self, other: &Self) -> bool {
        (self.is_durable, &self.answers) == (other.is_durable, &other.answers)
            && self.effects == other.effects
            && self.writes == other.writes
    }
}

impl Hash for Out {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.is_durable, &self.answers, &self.writes).hash(hasher);
        // The armed are the effects that matter.
        for effect in &self.effects {
            if let Effect::Arm(armed) = effect {
                (armed.fire_ms, armed.task, armed.token).hash(hasher);
            }
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks: Vec<_> = self.view.tasks.values().map(|(known, _)| known).collect();
        write!(f, "e{} knows {tasks:?}", self.epoch.0)?;
        match &self.out {
            Some(out) => {
                let said = match out.is_durable {
                    None => "out",
                    Some(true) => "durable",
                    Some(false) => "refused",
                };
                write!(f, ", {said}: {:?}", out.writes.0)
            }
            None => Ok(()),
        }
    }
}
