//! The world around a core: clock, disk, executors, and an end that may come at any time.
//!
//! ```text
//!  question ─▶ advance ─▶ close ─✗─▶ commit ─✗─▶ effects ─✗─▶ launch ─✗
//!                                 ✗  where `die_at` lets the process end
//! ```
//!
//! A process that ends is followed by another at once: a new core from what was committed, a monotonic clock
//! that begins at 0 again, no attempts running. The disk and the topics outlive it, and so does the
//! [`Witness`], which saw everything that was ever started.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::sound::assert_sound;
use super::*;
use parking_lot::Mutex;

use crate::clock::{Clock, WallMs};
use crate::executor::{Door, Doors};
use crate::ids::{ShardEpoch, Slot};
use crate::shard::attempts::Running;
use crate::shard::create::Creation;
use crate::shard::lease::Lease;
use crate::shard::shelf::ShelfOptions;
use crate::shard::snapshot::{Found, Snapshot};
use crate::shard::table::cancel_record;
use crate::store::codec::{decode_cancel, decode_note, decode_task, encode_task};
use crate::store::mem::{MemDisk, MemStore};
use crate::store::{Note, ShardStore, Stored, Tended};
use crate::task::callback;
use crate::task::clocks::TaskClock;
use crate::task::model::Due;
use crate::task::new_task::When;
use crate::task::outcome::Outcome;
use crate::task::spec::{Delivery, StageName};
use crate::task::topic::{Thaw, Topic, TopicPause};

/// The process ended in this step: what was asked may be done or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Died;

/// An attempt that an executor was handed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    pub task: TaskId,
    pub attempt: AttemptNumber,
    pub token: AttemptToken,
    pub at: WallMs,
}

/// Doors that a test shuts.
#[derive(Default, Debug)]
pub struct TestDoors(Mutex<HashSet<Door>>);

impl TestDoors {
    pub fn shut(&self, door: Door) {
        self.0.lock().insert(door);
    }

    pub fn open_all(&self) {
        self.0.lock().clear();
    }
}

impl Doors for TestDoors {
    fn takes(&self, door: &Door) -> bool {
        !self.0.lock().contains(door)
    }
}

/// See the module's header.
pub struct Shell {
    pub core: ShardCore,
    pub clock: Clock,
    /// What was committed, kept beside the store to compare.
    pub disk: Disk,
    pub mem: MemDisk,
    store: MemStore,
    epoch: ShardEpoch,
    /// What executors of this process work on.
    pub running: BTreeMap<TaskId, AttemptToken>,
    /// All starts since the test began or last took them.
    pub starts: Vec<Start>,
    /// Which topics' workers were rung for.
    pub rung: Vec<TopicName>,
    /// How long each commit takes.
    pub sync_takes: DurationMs,
    /// How many there were.
    pub commits: usize,
    pub doors: Arc<TestDoors>,
    options: CoreOptions,
    book: TopicBook,
    witness: Witness,
    fuse: Option<u32>,
    created: u64,
    copy: Option<Copied>,
    steps: u32,
}

pub fn topic(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

pub fn key(name: &str) -> TaskKey {
    TaskKey::parse(name).unwrap()
}

impl Shell {
    /// A shell whose core folds again and again, so that records are met wherever they may be.
    pub fn new() -> Self {
        Self::with(folding())
    }

    pub fn with(options: CoreOptions) -> Self {
        let clock = Clock::by_hand(START);
        let mem = MemDisk::new();
        let (core, store, epoch) = recovered(&mem, &options, Arc::default(), &clock);
        let mut shell = Self {
            core,
            clock,
            disk: Disk::default(),
            mem,
            store,
            epoch,
            running: BTreeMap::new(),
            starts: Vec::new(),
            rung: Vec::new(),
            sync_takes: DurationMs(0),
            commits: 0,
            doors: Arc::default(),
            options,
            book: TopicBook::default(),
            witness: Witness::default(),
            fuse: None,
            created: 0,
            copy: None,
            steps: 0,
        };
        shell
            .core
            .ask_at(Arc::clone(&shell.doors) as Arc<dyn Doors>);
        shell
    }

    pub fn now(&self) -> Now {
        self.clock.now()
    }

    pub fn task(&mut self, id: TaskId) -> Arc<Task> {
        self.core.table.read(id).expect("the task is there").task
    }

    pub fn get(&mut self, target: Target) -> Option<TaskView> {
        self.ask(GetTask(target)).unwrap()
    }

    /// What a start would find beside tasks.
    pub fn notes(&mut self) -> Vec<Note> {
        let mut store = self.mem.store();
        store.begin().unwrap();
        let mut notes = BTreeMap::new();
        let mut take_in = |stored| match stored {
            Stored::Note(Note::Tombstone(note)) => {
                notes.insert(
                    RecordKey::tombstone(&note.topic, &note.key),
                    Note::Tombstone(note),
                );
            }
            Stored::Note(Note::Answer(note)) => {
                notes.insert(RecordKey::Answer(note.key), Note::Answer(note));
            }
            Stored::Note(Note::Late(note)) => {
                notes.insert(RecordKey::late(&note), Note::Late(note));
            }
            Stored::Change(key, Change::Put(value)) => {
                if let Some(note) = decode_note(key, &value).unwrap() {
                    notes.insert(key, note);
                }
            }
            Stored::Change(key, Change::Remove) => {
                notes.remove(&key);
            }
            _ => {}
        };
        store.recover(&mut take_in).unwrap();
        // That was another owner.
        self.crash();
        notes.into_values().collect()
    }

    /// How many chunks the store holds.
    pub fn chunks(&self) -> usize {
        self.mem.chunks().len()
    }

    pub fn state(&self, id: TaskId) -> State {
        self.core.table.row(id).expect("the task is there").state
    }

    pub fn place(&self, id: TaskId) -> Place {
        self.core.table.row(id).expect("the task is there").place
    }

    /// By due time.
    pub fn ids(&mut self) -> Vec<TaskId> {
        let mut ids = self.core.table.ids();
        ids.sort_by_key(|id| (self.task(*id).due.at, *id));
        ids
    }

    // ------------------------------------------------------------ steps

    /// Asks and takes a whole step.
    pub fn ask<Q: Question>(&mut self, question: Q) -> Q::Answer {
        self.try_ask(question).expect("no death was planned")
    }

    pub fn try_ask<Q: Question>(&mut self, question: Q) -> Result<Q::Answer, Died> {
        let now = self.now();
        self.launch();
        let answer = question.put(&mut self.core, now);
        self.take_step(now)?;
        Ok(answer)
    }

    /// Lets so much time pass, with a tick whenever the core wants one.
    pub fn pass(&mut self, length: DurationMs) {
        self.try_pass(length).expect("no death was planned");
    }

    pub fn try_pass(&mut self, length: DurationMs) -> Result<(), Died> {
        let mut left = length.0;
        let mut at_once = 0;
        loop {
            let wanted = self.core.next_in_ms(self.now()).unwrap_or(i64::MAX);
            let sleep = u64::try_from(wanted).unwrap_or(0).min(left);
            self.clock.advance(DurationMs(sleep));
            left -= sleep;
            at_once = if sleep == 0 { at_once + 1 } else { 0 };
            assert!(
                at_once < 200,
                "it wants ticks for ever and does nothing with them"
            );
            self.try_tick()?;
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Steps the wall clock and takes a step.
    pub fn step_wall(&mut self, ms: i64) {
        self.clock.step_wall(ms);
        self.try_tick().expect("no death was planned");
    }

    pub fn try_tick(&mut self) -> Result<(), Died> {
        self.launch();
        self.take_step(self.now())
    }

    fn take_step(&mut self, now: Now) -> Result<(), Died> {
        loop {
            self.core.advance(now);
            self.begin_copy();
            let step = self.core.close(now);
            self.may_die()?;
            if let Some(mut batch) = step.batch {
                self.clock.advance(self.sync_takes);
                self.store.commit(self.epoch, &batch).unwrap();
                self.commits += 1;
                for task in self.disk.commit(&mut batch, now) {
                    self.witness.hears_of(&task);
                }
            }
            // Even if nothing was written: then there was nothing to write.
            self.disk.assert_holds(&mut self.core);
            if let Some(fold) = step.fold {
                self.store.fold(self.epoch, fold).unwrap();
                self.copy_is_of(now);
            }
            self.may_die()?;
            if let Tended::Folded(folded) = self.store.tend(self.epoch, 0).unwrap() {
                self.core.folded(folded);
            }
            self.read_copy();
            for effect in step.effects {
                self.perform(effect);
            }
            self.may_die()?;
            self.launch();
            self.may_die()?;
            if !step.more {
                break;
            }
        }
        assert_sound(&mut self.core, self.options.running_max, &self.running);
        Ok(())
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Arm(armed) => self.core.arm(armed),
            Effect::Stop(task) | Effect::Over(task) => {
                self.running.remove(&task);
            }
            Effect::Ready(topic, count) => {
                assert!(count > 0);
                self.rung.push(topic);
            }
        }
    }

    fn launch(&mut self) {
        let now = self.now();
        for launch in self.core.launch(now) {
            let written = self
                .disk
                .task(launch.task)
                .expect("what starts was committed");
            assert_eq!(
                (written.state, written.token, written.attempt),
                (State::Dispatched, launch.token, launch.attempt),
                "what starts was committed as dispatched"
            );
            assert!(written.next.is_reached(now), "started before its instant");
            assert!(
                !self.book.get(&launch.topic).is_held(),
                "started while its topic is held"
            );
            self.witness.begins(&written);
            self.running.insert(launch.task, launch.token);
            self.starts.push(Start {
                task: launch.task,
                attempt: launch.attempt,
                token: launch.token,
                at: now.wall,
            });
        }
    }

    // ------------------------------------------------------------ a copy, now and then

    /// Wants one every few steps, and lets go of it a little later.
    fn begin_copy(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(COPY_EVERY) {
            let (to, taken) = oneshot::channel();
            self.core.want_snapshot(to);
            let old = self.copy.replace(Copied {
                taken,
                of: None,
                snapshot: None,
            });
            drop(old);
        } else if self.steps.is_multiple_of(COPY_HELD) {
            self.copy = None;
        }
    }

    /// A fold has begun: if a copy is wanted it is of all that is committed now.
    fn copy_is_of(&mut self, now: Now) {
        if let Some(copy) = &mut self.copy
            && copy.of.is_none()
        {
            copy.of = Some((self.disk.tasks(), now));
        }
    }

    /// What is copied is what was there, however often it is read while the shard goes on.
    fn read_copy(&mut self) {
        let Some(copy) = &mut self.copy else { return };
        if let Ok(snapshot) = copy.taken.try_recv() {
            copy.snapshot = Some(snapshot);
        }
        if let (Some(snapshot), Some((tasks, now))) = (&copy.snapshot, &copy.of) {
            let copied = read(snapshot, *now);
            let there = unexpired(tasks.clone(), *now);
            let differ = copied
                .iter()
                .zip(&there)
                .find(|(copied, there)| copied != there);
            if let Some((copied, there)) = differ {
                // What is the same is left out: a task in full is a page.
                let (copied, there) = (format!("{copied:?}"), format!("{there:?}"));
                let same = copied
                    .bytes()
                    .zip(there.bytes())
                    .take_while(|(a, b)| a == b);
                let from = same.count().saturating_sub(100);
                panic!(
                    "copied: …{}\nwas there: …{}",
                    &copied[from..],
                    &there[from..]
                );
            }
            assert_eq!(copied.len(), there.len());
        }
    }

    // ------------------------------------------------------------ death

    /// The process ends after so many more points at which it may.
    pub fn die_at(&mut self, points: u32) {
        self.fuse = Some(points);
    }

    /// Whether the planned death is still to come.
    pub fn lives(&mut self) -> bool {
        self.fuse.take().is_some()
    }

    fn may_die(&mut self) -> Result<(), Died> {
        match &mut self.fuse {
            None => Ok(()),
            Some(0) => {
                self.crash();
                Err(Died)
            }
            Some(points) => {
                *points -= 1;
                Ok(())
            }
        }
    }

    /// The process ends, and another begins from what was committed.
    pub fn crash(&mut self) {
        self.fuse = None;
        self.running.clear();
        self.clock = Clock::by_hand(self.now().wall);
        let now = self.now();
        let book = Arc::new(self.book.clone());
        self.mem.crash();
        self.copy = None;
        let at_rest = Snapshot::of_store(&mut self.mem.store()).unwrap();
        assert_eq!(
            read(&at_rest, now),
            unexpired(self.disk.tasks(), now),
            "at rest"
        );
        (self.core, self.store, self.epoch) =
            recovered(&self.mem, &self.options, book, &self.clock);
        self.core.ask_at(Arc::clone(&self.doors) as Arc<dyn Doors>);
        self.disk.forget_expired(now);
        self.try_tick().expect("the fuse has burnt");
    }

    // ------------------------------------------------------------ what people do

    pub fn create(&mut self, fixture: TaskFixture) -> TaskId {
        match self.create_or(fixture, OnExisting::Reject) {
            Created::New(view) => view.task.id,
            other => panic!("not created: {other:?}"),
        }
    }

    /// The create of a fixture's task. Ids follow one another, so that a test takes the same course each time.
    pub fn creation(&mut self, fixture: TaskFixture, on_existing: OnExisting) -> Creation {
        let now = self.now();
        let task = fixture.build(now);
        self.created += 1;
        Creation {
            id: TaskId::with_tail(Slot::of_hash(self.created), now.wall, self.created),
            when: Some(match task.due.lane {
                Lane::Wall => When::At(task.due.at),
                Lane::Steady => When::After(task.due.remaining(now)),
            }),
            topic: task.topic,
            key: task.key,
            spec: task.spec,
            on_existing,
            request: None,
            is_skipped: false,
        }
    }

    pub fn create_or(&mut self, fixture: TaskFixture, on_existing: OnExisting) -> Created {
        let creation = self.creation(fixture, on_existing);
        let by = "test".to_owned();
        self.ask(CreateTask { creation, by })
    }

    pub fn verb(&mut self, id: TaskId, event: Event) -> Result<VerbDone, VerbRefused> {
        self.ask(verb(Target::Id(id), event))
    }

    pub fn cancel(&mut self, id: TaskId) {
        let reason = String::new();
        self.verb(id, Event::Cancel { reason }).unwrap();
    }

    /// What the executor says of an attempt it was handed.
    pub fn answer(&mut self, start: Start, outcome: Outcome) -> Result<TaskView, VerbRefused> {
        self.try_answer(start.task, start.token, outcome)
            .expect("no death was planned")
    }

    pub fn try_answer(
        &mut self,
        task: TaskId,
        token: AttemptToken,
        outcome: Outcome,
    ) -> Result<Result<TaskView, VerbRefused>, Died> {
        let event = Event::Finished {
            token,
            outcome,
            started_at: None,
        };
        self.try_ask(finish(task, event))
    }

    pub fn lease(&mut self, topics: &[&str], max: usize) -> Vec<Lease> {
        self.try_lease(topics, max).expect("no death was planned")
    }

    pub fn try_lease(&mut self, topics: &[&str], max: usize) -> Result<Vec<Lease>, Died> {
        let leases = self.try_ask(LeaseTasks {
            topics: topics.iter().map(|name| topic(name)).collect(),
            max,
            lease: DurationMs::secs(30),
            worker: "w1".to_owned(),
        })?;
        for lease in &leases {
            assert!(
                !self.book.get(&lease.view.task.topic).is_held(),
                "leased while its topic is held"
            );
            self.witness.begins(&lease.view.task);
        }
        Ok(leases)
    }

    pub fn counts(&mut self) -> ShardCounts {
        self.ask(CountTasks)
    }

    /// Settings of a topic, leaving its pause as it is.
    pub fn try_set_topic(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Topic, Now),
    ) -> Result<(), Died> {
        let name = topic(name);
        let mut settings = Topic::clone(self.book.get(&name));
        change(&mut settings, self.now());
        self.book = self.book.with(name, settings);
        self.try_ask(SetBook(Arc::new(self.book.clone())))
    }

    pub fn hold(&mut self, name: &str, clock: PauseClock) {
        self.try_hold(name, clock).expect("no death was planned");
    }

    pub fn try_hold(&mut self, name: &str, clock: PauseClock) -> Result<(), Died> {
        self.try_set_topic(name, |topic, now| {
            topic.pause.get_or_insert(TopicPause {
                clock,
                since: now.wall,
                since_steady: now.steady,
            });
        })
    }

    /// Ends a topic's pause, as the registry and the engine do; a frozen one is left thawing.
    pub fn try_end_pause(&mut self, name: &str) -> Result<Option<ThawTopic>, Died> {
        self.try_set_topic(name, |topic, now| {
            if let Some(pause) = topic.pause.take()
                && pause.clock == PauseClock::Freeze
            {
                topic.thaw += 1;
                topic.thawing = Some(Thaw {
                    number: topic.thaw,
                    held: now.steady.since(pause.since_steady),
                });
            }
        })?;
        let topic = topic(name);
        let thawing = self.book.get(&topic).thawing;
        Ok(thawing.map(|thaw| ThawTopic::new(topic, thaw)))
    }

    pub fn release(&mut self, name: &str) {
        self.try_release(name).expect("no death was planned");
    }

    pub fn try_release(&mut self, name: &str) -> Result<(), Died> {
        if let Some(thaw) = self.try_end_pause(name)? {
            self.try_ask(thaw)?;
            self.try_set_topic(name, |topic, _| topic.thawing = None)?;
        }
        Ok(())
    }

    /// All goes well from here on: topics and tasks are let go on, workers take what there is, and each attempt
    /// succeeds, until every task has ended. Nothing may be stuck.
    pub fn live_on(&mut self) {
        self.sync_takes = DurationMs(0);
        let names: Vec<TopicName> = self.book.iter().map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.release(name.as_str()));
        let mut unfinished = Vec::new();
        for _ in 0..1_000 {
            unfinished = self.ids();
            unfinished.retain(|id| !self.state(*id).is_ended());
            if unfinished.is_empty() {
                return;
            }
            let topics: BTreeSet<TopicName> = self
                .ids()
                .iter()
                .map(|id| self.task(*id).topic.clone())
                .collect();
            let topics: Vec<&str> = topics.iter().map(TopicName::as_str).collect();
            self.lease(&topics, 100);
            for id in self.ids() {
                // Also what was held meanwhile, since nobody could say whether it was done.
                if self.state(id) == State::Paused {
                    self.verb(id, Event::Resume).unwrap();
                }
                let task = self.task(id);
                if self.place(id) == Place::Awaiting {
                    let (result, token) = (None, None);
                    self.verb(id, Event::Complete { result, token }).unwrap();
                }
                if task.state == State::Running {
                    let token = task.token;
                    self.try_answer(id, token, succeeded()).unwrap().unwrap();
                }
            }
            // At least a millisecond, so that time goes on even if a fold ends in the last step of each round.
            let wanted = self.core.next_in_ms(self.now()).unwrap_or(1).max(1);
            self.pass(DurationMs(wanted.unsigned_abs()));
        }
        let stuck = unfinished.into_iter();
        let stuck: Vec<_> = stuck.map(|id| (self.place(id), self.task(id))).collect();
        panic!("tasks do not end at {:?}: {stuck:#?}", self.now());
    }
}

/// Options with which a core folds after every few records.
pub fn folding() -> CoreOptions {
    let mut options = CoreOptions::default();
    options.table.shelf = ShelfOptions { fold_bytes: 1_500 };
    options
}

/// A core with all that a disk holds.
pub fn recovered(
    mem: &MemDisk,
    options: &CoreOptions,
    book: Arc<TopicBook>,
    clock: &Clock,
) -> (ShardCore, MemStore, ShardEpoch) {
    let core = |now| ShardCore::new(ShardId(3), options.clone(), book, now);
    let mut store = mem.store();
    let begun = store.begin().unwrap();
    clock.raise_steady(begun.steady);
    let now = clock.now();
    let mut core = core(now);
    core.begin_recovery(begun, store.reader().unwrap(), store.reader().unwrap());
    let take_in = &mut |stored| core.recover(stored, now).unwrap();
    store.recover(take_in).unwrap();
    core.end_recovery(&Running::default(), now);
    (core, store, begun.epoch)
}

pub fn verb(target: Target, event: Event) -> ApplyVerb {
    ApplyVerb {
        target,
        event,
        by: "test".to_owned(),
        wants: Wants::Slim,
    }
}

pub fn finish(task: TaskId, event: Event) -> FinishAttempt {
    FinishAttempt {
        task,
        event,
        by: "test".to_owned(),
    }
}

/// Steps from one copy to the next, and for how many it is not held.
const COPY_EVERY: u32 = 12;
const COPY_HELD: u32 = 8;

/// A snapshot that was asked for.
struct Copied {
    taken: oneshot::Receiver<Snapshot>,
    /// What is to be in it, and as of when.
    of: Option<(Vec<Task>, Now)>,
    snapshot: Option<Snapshot>,
}

/// All that a snapshot gives, each task once.
fn read(snapshot: &Snapshot, now: Now) -> Vec<Task> {
    let mut tasks = Vec::new();
    snapshot
        .visit(&mut |found| match found {
            Found::Task(id, value) => {
                tasks.push(decode_task(id, &value).unwrap());
                Ok::<_, StoreError>(())
            }
            Found::Damaged(fault) => panic!("{fault:?}"),
        })
        .unwrap();
    unexpired(tasks, now)
}

/// Whether what has expired is there still is nobody's business.
fn unexpired(mut tasks: Vec<Task>, now: Now) -> Vec<Task> {
    tasks.retain(|task| !task.state.is_ended() || task.expires.is_none_or(|at| at > now.steady));
    tasks.sort_by_key(|task| task.id);
    tasks
}

/// What was committed.
#[derive(Default)]
pub struct Disk {
    records: BTreeMap<RecordKey, Vec<u8>>,
}

impl Disk {
    pub fn task(&self, id: TaskId) -> Option<Task> {
        let bytes = self.records.get(&RecordKey::Task(id))?;
        Some(decode_task(id, bytes).unwrap())
    }

    pub fn tasks(&self) -> Vec<Task> {
        let ids = self.records.keys().filter_map(|key| match key {
            RecordKey::Task(id) => Some(*id),
            _ => None,
        });
        let mut tasks: Vec<Task> = ids.filter_map(|id| self.task(id)).collect();
        tasks.sort_by_key(|task| task.due.at);
        tasks
    }

    /// A shard does not write that a retention is over: it forgets.
    fn forget_expired(&mut self, now: Now) {
        for task in self.tasks() {
            if task.state.is_ended() && task.expires.is_some_and(|at| at <= now.steady) {
                self.records.remove(&RecordKey::Task(task.id));
            }
        }
    }

    /// Writes a batch that was closed at `now`, and gives the tasks that are written.
    fn commit(&mut self, batch: &mut Batch, now: Now) -> Vec<Task> {
        let mut written = Vec::new();
        let mut owed = Vec::new();
        for (key, change) in batch.changes() {
            let before = match key {
                RecordKey::Task(id) => self.task(id),
                _ => None,
            };
            match (change, key) {
                (Change::Put(value), _) => self.records.insert(key, value.to_vec()),
                (Change::Cancel(value), RecordKey::Task(id)) => {
                    let mut task = before.clone().expect("what is cancelled is there");
                    cancel_record(&mut task, &decode_cancel(id, &value).unwrap());
                    self.records.insert(key, encode_task(&task).to_vec())
                }
                _ => self.records.remove(&key),
            };
            if let RecordKey::Task(id) = key
                && let Some(after) = self.task(id)
            {
                assert_may_follow(before.as_ref(), &after, now);
                if before.is_none_or(|before| before.state != after.state) {
                    owed.extend(callback::id_of(&after));
                }
                written.push(after);
            }
        }
        for callback in owed {
            let is_there = self.records.contains_key(&RecordKey::Task(callback));
            assert!(is_there, "who is told of an end is written with it");
        }
        written
    }

    /// All that the core knows is written, but for what is not worth a write.
    fn assert_holds(&mut self, core: &mut ShardCore) {
        for task in self.tasks() {
            let is_over = task.state.is_ended() && core.table.row(task.id).is_none();
            if is_over {
                // Its chunk was dropped as a whole, once the last of it had expired.
                self.records.remove(&RecordKey::Task(task.id));
            }
        }
        let written = self.tasks();
        assert_eq!(written.len(), core.tasks(), "tasks on disk and in memory");
        for task in written {
            let known = core
                .table
                .read(task.id)
                .expect("what is on disk is in memory");
            let mut known = Task::clone(&known.task);
            if let Some(live) = &mut known.live {
                live.report_by = MonoMs(0);
                (live.beat_by, live.alert_at) = (None, None);
            }
            known.in_line = None;
            if (known.state, task.state) == (State::Running, State::Dispatched) {
                known.state = State::Dispatched;
                known.live = task.live.clone();
                known.lateness_ms = task.lateness_ms;
            }
            if task.first_due.is_none() {
                known.first_due = None;
            }
            assert_eq!(known, task, "in memory, and on disk");
        }
    }
}

/// What may stand on the disk after what stood there.
fn assert_may_follow(before: Option<&Task>, after: &Task, now: Now) {
    let token = before.map(|before| before.token).unwrap_or_default();
    assert!(after.token >= token, "a token never comes back");
    if after.state == State::Dispatched && after.token > token {
        assert!(
            after.next.remaining(now) <= ARM_AHEAD,
            "handed out too long ahead"
        );
    }
    match before.map(|before| before.state) {
        Some(State::Succeeded | State::Cancelled) => {
            assert_eq!(Some(after.state), before.map(|task| task.state))
        }
        Some(State::Dead) => {
            let replayed = before.is_some_and(|before| after.generation == before.generation + 1);
            assert!(after.state.is_ended() || replayed, "what ended stays ended");
        }
        _ => {}
    }
}

/// Who saw all attempts begin, in every process.
#[derive(Default)]
struct Witness {
    begun: HashSet<(TaskId, AttemptNumber)>,
    tokens: HashMap<TaskId, AttemptToken>,
    /// Attempts that may have done their work, by task, generation and stage, and by the clock that had it go on.
    in_doubt: HashSet<(TaskId, u32, Option<StageName>, Option<TaskClock>)>,
}

impl Witness {
    fn begins(&mut self, task: &Task) {
        let id = task.id;
        let is_question = task.is_asked_about() || task.action().poll().is_some();
        assert!(
            self.begun.insert((id, task.attempt)) || is_question,
            "{:?} of {id} begins twice",
            task.attempt
        );
        let former = self.tokens.insert(id, task.token);
        assert!(
            former < Some(task.token),
            "a later attempt has a higher token"
        );
        // To ask twice does no harm; and who was asked may know that it was not done.
        if is_question || task.spec.verify.is_some() {
            return;
        }
        let stage = task.stage().map(|stage| stage.name.clone());
        let in_doubt = !self
            .in_doubt
            .insert((id, task.generation, stage, task.escalated));
        assert!(
            !in_doubt || task.spec.delivery == Delivery::AtLeastOnce,
            "{id} is attempted again although it may have been done"
        );
    }

    /// The latest attempt may have been answered so that nobody doubts what became of it.
    fn hears_of(&mut self, task: &Task) {
        let Some(ended) = task.attempts_log.kept.last() else {
            return;
        };
        let sure = match ended.outcome {
            "failed" => ended
                .error
                .as_ref()
                .is_some_and(|error| error.code != "protocol"),
            outcome => ["snoozed", "given_back"].contains(&outcome),
        };
        if sure && self.tokens.get(&task.id) == Some(&ended.token) {
            self.in_doubt.retain(|(id, generation, stage, _)| {
                (id, *generation, stage) != (&task.id, ended.generation, &ended.stage)
            });
        }
    }
}

/// The due time of an instant on the wall clock or of a length, `ms` from now.
pub fn due_in(lane: Lane, ms: u64, now: Now) -> Due {
    match lane {
        Lane::Wall => Due::at(now.wall.after(DurationMs(ms)), now),
        Lane::Steady => Due::after(DurationMs(ms), now),
    }
}
