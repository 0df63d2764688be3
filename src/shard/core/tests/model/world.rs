//! Everything that can happen, one thing at a time: see [`Act`].

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use super::owner::{Answer, Asked, Did, Disk, Fed, Held, Known, Owner, Says};
use super::*;
use crate::ids::ShardEpoch;

/// Something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// The owner takes a step with this question.
    Ask(Asked),
    /// An owner is told that it is now.
    Tick(Who),
    /// The store takes or refuses what an owner has out.
    Commit(Who),
    /// An owner hears what the store said.
    Told(Who),
    /// Time passes, on all clocks.
    Pass,
    /// The wall clock is set back.
    StepBack(DurationMs),
    /// The process ends, and another begins.
    Crash,
    /// The watchdog gives the owner up, and another begins. The old one's thread goes on when it can.
    Replace,
    /// The rescue decides by what it saw when the attempt began. Never so, but as a planted fault.
    GiveUp(TaskId),
}

/// Which owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    Owner,
    Zombie,
}

/// How much may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    pub passes: u8,
    pub crashes: u8,
    pub replaces: u8,
    pub cancels: u8,
    pub failures: u8,
    pub steps_back: u8,
}

/// A promise of the service. Each is a property of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    NothingLost,
    NoNumberTwice,
    Committed,
    EndsAreFinal,
    OneSuccess,
    NotEarly,
    AtMostOnce,
    OneHolder,
    InTimeCounts,
}

/// What of an attempt that began is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Open,
    Failed,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    pub now: Now,
    pub disk: Disk,
    pub owner: Owner,
    pub zombie: Option<Owner>,
    /// What executors of this process work on.
    pub runs: BTreeSet<Held>,
    /// What workers hold.
    pub leases: [Option<Held>; 2],
    /// When a rescue that looks only once would give a leased task up.
    give_up_at: BTreeMap<TaskId, MonoMs>,
    pub left: Left,
    faults: Faults,
    watched: Option<Promise>,
    asked_for: BTreeSet<TaskId>,
    /// What somebody was told of a task: that it is there, or that it has ended.
    told: BTreeMap<TaskId, Option<State>>,
    successes: BTreeMap<TaskId, u8>,
    began: BTreeMap<(TaskId, AttemptNumber), Fate>,
    pub broken: BTreeSet<Promise>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let now = self.now;
        (now.wall, now.mono, now.steady).hash(hasher);
        (&self.disk, &self.owner, &self.zombie).hash(hasher);
        (&self.runs, &self.leases, &self.give_up_at, &self.left).hash(hasher);
        (&self.asked_for, &self.told, &self.successes, &self.began).hash(hasher);
        self.broken.hash(hasher);
    }
}

impl World {
    pub fn new(model: &ShardModel) -> Self {
        let mut disk = Disk::new();
        let (owner, now) = Owner::begin(&mut disk, at(0));
        let mut world = Self {
            now,
            disk,
            owner,
            zombie: None,
            runs: BTreeSet::new(),
            leases: [None; 2],
            give_up_at: BTreeMap::new(),
            left: model.left,
            faults: model.faults,
            watched: model.watched,
            asked_for: BTreeSet::new(),
            told: BTreeMap::new(),
            successes: BTreeMap::new(),
            began: BTreeMap::new(),
            broken: BTreeSet::new(),
        };
        if model.begins_with_its_tasks {
            for id in model.ids() {
                world.act(Act::Ask(Asked::Create(id)), model);
                world.act(Act::Commit(Who::Owner), model);
                world.act(Act::Told(Who::Owner), model);
            }
        }
        world
    }

    /// What may happen next.
    pub fn acts(&self, model: &ShardModel, acts: &mut Vec<Act>) {
        for (who, owner) in [
            (Who::Owner, Some(&self.owner)),
            (Who::Zombie, self.zombie.as_ref()),
        ] {
            match owner.and_then(|owner| owner.out.as_ref()) {
                Some(out) if out.is_durable.is_none() => acts.push(Act::Commit(who)),
                Some(_) => acts.push(Act::Told(who)),
                None => {}
            }
        }
        acts.push(Act::Tick(Who::Owner));
        if self.zombie.is_some() && self.faults.overlooks_its_kill {
            acts.push(Act::Tick(Who::Zombie));
        }
        if self.owner.out.is_none() {
            self.questions(model, acts);
            if self.faults.gives_up_blindly {
                let overdue = self
                    .give_up_at
                    .iter()
                    .filter(|(_, at)| **at <= self.now.mono);
                acts.extend(overdue.map(|(id, _)| Act::GiveUp(*id)));
            }
        }
        let left = &self.left;
        if left.passes > 0 {
            acts.push(Act::Pass);
        }
        if left.steps_back > 0 {
            acts.push(Act::StepBack(DurationMs::secs(5)));
        }
        if left.crashes > 0 {
            acts.push(Act::Crash);
        }
        if left.replaces > 0 && self.zombie.is_none() {
            acts.push(Act::Replace);
        }
    }

    fn questions(&self, model: &ShardModel, acts: &mut Vec<Act>) {
        let mut ask = |asked| acts.push(Act::Ask(asked));
        let next = model.ids().find(|id| !self.asked_for.contains(id));
        next.into_iter().for_each(|id| ask(Asked::Create(id)));
        if self.left.cancels > 0 {
            self.told.keys().for_each(|id| ask(Asked::Cancel(*id)));
        }
        let mut answers = |held: Held| {
            ask(Asked::Finish(held, Says::Done));
            if self.left.failures > 0 {
                ask(Asked::Finish(held, Says::Failed));
            }
        };
        self.runs.iter().copied().for_each(&mut answers);
        self.leases.iter().flatten().copied().for_each(&mut answers);
        for (worker, lease) in (0..).zip(&self.leases) {
            lease
                .iter()
                .for_each(|held| ask(Asked::Beat(worker, *held)));
        }
        // Workers are alike: it does not matter which of the idle ones comes first.
        let idle = (0..).zip(&self.leases).find(|(_, lease)| lease.is_none());
        if let Some((worker, _)) = idle
            && self.is_ready()
        {
            ask(Asked::Lease(worker));
        }
    }

    fn is_ready(&self) -> bool {
        let ready = |(_, place): &(_, u8)| *place == Place::Ready as u8;
        self.owner.view.tasks.values().any(ready)
    }

    /// What comes of it; `None` if nothing does.
    pub fn after(&self, act: Act, model: &ShardModel) -> Option<Self> {
        let mut next = self.clone();
        next.act(act, model);
        // All else takes something off what may still happen.
        let may_be_idle = matches!(
            act,
            Act::Tick(_) | Act::Ask(Asked::Beat(..) | Asked::Lease(_))
        );
        (!may_be_idle || next != *self).then_some(next)
    }

    fn act(&mut self, act: Act, model: &ShardModel) {
        match act {
            Act::Ask(asked) => self.ask(asked, model),
            Act::Tick(Who::Owner) => {
                let takes_step = self.owner.out.is_none();
                self.feed(None, takes_step, model);
            }
            Act::Tick(Who::Zombie) => self.tick_zombie(Vec::new(), model),
            Act::GiveUp(id) => {
                self.give_up_at.remove(&id);
                let fed = Fed {
                    given_up: Some(id),
                    takes_step: true,
                    ..Fed::default()
                };
                self.feed_owner(fed, model);
            }
            Act::Commit(who) => self.commit(who),
            Act::Told(Who::Owner) => self.tell_owner(model),
            Act::Told(Who::Zombie) => self.tell_zombie(model),
            Act::Pass => {
                let passed = model.lengths.len() - usize::from(self.left.passes);
                self.left.passes -= 1;
                self.pass(model.lengths[passed]);
            }
            Act::StepBack(length) => {
                self.left.steps_back -= 1;
                self.now.wall.0 -= length.0 as i64;
            }
            Act::Crash => {
                self.left.crashes -= 1;
                self.zombie = None;
                self.runs.clear();
                self.give_up_at.clear();
                let reborn = Now {
                    wall: self.now.wall,
                    ..Now::default()
                };
                (self.owner, self.now) = Owner::begin(&mut self.disk, reborn);
                self.see_disk();
            }
            Act::Replace => {
                self.left.replaces -= 1;
                let (owner, now) = Owner::begin(&mut self.disk, self.now);
                self.now = now;
                let zombie = std::mem::replace(&mut self.owner, owner);
                // One that has nothing out looks whether it was killed before it does anything.
                let is_blind = self.faults.overlooks_its_kill;
                self.zombie = (zombie.out.is_some() || is_blind).then_some(zombie);
            }
        }
    }

    fn pass(&mut self, length: DurationMs) {
        self.now = Now {
            wall: self.now.wall.after(length),
            mono: self.now.mono.after(length),
            steady: self.now.steady.after(length),
        };
    }

    fn ask(&mut self, asked: Asked, model: &ShardModel) {
        let mut in_time = None;
        match asked {
            Asked::Create(id) => drop(self.asked_for.insert(id)),
            Asked::Cancel(_) => self.left.cancels -= 1,
            Asked::Finish(held, says) => {
                self.left.failures -= u8::from(says == Says::Failed);
                let was_run = self.runs.remove(&held);
                for lease in &mut self.leases {
                    lease.take_if(|lease| *lease == held);
                }
                // Recovery settles what executors run, so an answer for another owner's attempt comes too late.
                let counts = !was_run || held.epoch == self.owner.epoch;
                in_time = (counts && self.now.steady < held.until).then_some(held);
            }
            Asked::Beat(_, held) => in_time = (self.now.steady < held.until).then_some(held),
            Asked::Lease(_) => {}
        }
        let did = self.feed(Some(asked), true, model);
        let out = self.owner.out.iter().flat_map(|out| &out.answers);
        let is_refused = did
            .iter()
            .chain(out)
            .any(|answer| *answer == Answer::Refused);
        if let Some(held) = in_time
            && is_refused
            && self.state_in_memory(held.task) != Some(State::Cancelled)
        {
            self.note_broken(Promise::InTimeCounts);
        }
    }

    fn state_in_memory(&self, id: TaskId) -> Option<State> {
        let (known, _) = self.owner.view.tasks.get(&id)?;
        Some(known.0.state)
    }

    fn feed(&mut self, asked: Option<Asked>, takes_step: bool, model: &ShardModel) -> Vec<Answer> {
        let fed = Fed {
            asked,
            takes_step,
            ..Fed::default()
        };
        self.feed_owner(fed, model)
    }

    fn feed_owner(&mut self, fed: Fed, model: &ShardModel) -> Vec<Answer> {
        let out = self.owner.out.take();
        let did = self.owner.feed(fed, self.now, model);
        // Only a look at what is armed happens while a batch is out.
        self.owner.out = self.owner.out.take().or(out);
        let epoch = self.owner.epoch;
        self.see(did, epoch)
    }

    fn see(&mut self, did: Did, epoch: ShardEpoch) -> Vec<Answer> {
        for launch in did.launches {
            self.see_start(launch, epoch);
        }
        for answer in &did.answers {
            self.hear(*answer);
        }
        did.answers
    }

    fn commit(&mut self, who: Who) {
        let present = self.disk.epoch;
        let owner = match who {
            Who::Owner => Some(&mut self.owner),
            Who::Zombie => self.zombie.as_mut(),
        };
        let Some((owner, out)) = owner.and_then(|owner| Some((owner.epoch, owner.out.as_mut()?)))
        else {
            return;
        };
        let epoch = match self.faults.takes_any_epoch {
            true => present,
            false => owner,
        };
        let before = self.disk.tasks.clone();
        let committed = self.disk.commit(epoch, &out.batch);
        out.is_durable = Some(committed.is_ok());
        for answer in out.answers.iter().filter(|_| committed.is_ok()) {
            if let Answer::Finished(held, Says::Failed) = answer {
                let attempt = (held.task, held.attempt);
                self.began.insert(attempt, Fate::Failed);
            }
        }
        for (id, before) in before {
            let (before, after) = (&before.0, &self.disk.tasks[&id].0);
            if before.state.is_ended() && before.state != after.state {
                self.note_broken(Promise::EndsAreFinal);
            }
        }
        self.see_disk();
    }

    fn tell_owner(&mut self, model: &ShardModel) {
        let Some((answers, effects)) = self.owner.take_out() else {
            return;
        };
        answers.into_iter().for_each(|answer| self.hear(answer));
        let fed = Fed {
            effects,
            takes_step: true,
            ..Fed::default()
        };
        self.feed_owner(fed, model);
    }

    /// It tells those who wait for it what was durable; then it sees that it was killed, and is gone.
    fn tell_zombie(&mut self, model: &ShardModel) {
        let Some(mut zombie) = self.zombie.take() else {
            return;
        };
        let Some((answers, effects)) = zombie.take_out() else {
            return;
        };
        answers.into_iter().for_each(|answer| self.hear(answer));
        if self.faults.overlooks_its_kill {
            self.zombie = Some(zombie);
            self.tick_zombie(effects, model);
        }
    }

    fn tick_zombie(&mut self, effects: Vec<Effect>, model: &ShardModel) {
        let Some(zombie) = &mut self.zombie else {
            return;
        };
        let fed = Fed {
            effects,
            ..Fed::default()
        };
        let (epoch, out) = (zombie.epoch, zombie.out.take());
        let did = zombie.feed(fed, self.now, model);
        zombie.out = out;
        self.see(did, epoch);
    }

    // ------------------------------------------------------------ what is seen of it

    fn note_broken(&mut self, promise: Promise) {
        if self.watched.is_none_or(|watched| watched == promise) {
            self.broken.insert(promise);
        }
    }

    fn see_start(&mut self, launch: Launch, epoch: ShardEpoch) {
        let written = self.disk.tasks.get(&launch.task).map(|known| &*known.0);
        let is_written = written.is_some_and(|task| {
            let handed_out = (task.state, task.token, task.attempt);
            handed_out == (State::Dispatched, launch.token, launch.attempt)
        });
        let is_early = written.is_some_and(|task| !task.next.is_reached(self.now));
        if !is_written {
            self.note_broken(Promise::Committed);
        }
        if is_early {
            self.note_broken(Promise::NotEarly);
        }
        let delivery = launch.spec.delivery;
        self.begin(launch.task, launch.attempt, delivery);
        self.runs.insert(Held {
            task: launch.task,
            attempt: launch.attempt,
            token: launch.token,
            until: self.now.steady.after(launch.time_left),
            epoch,
        });
    }

    fn begin(&mut self, task: TaskId, attempt: AttemptNumber, delivery: Delivery) {
        let mut before = self.began.iter().filter(|((id, _), _)| *id == task);
        let in_doubt = before.any(|(_, fate)| *fate == Fate::Open);
        if in_doubt && delivery == Delivery::AtMostOnce {
            self.note_broken(Promise::AtMostOnce);
        }
        if self.began.insert((task, attempt), Fate::Open).is_some() {
            self.note_broken(Promise::NoNumberTwice);
        }
    }

    /// Somebody is answered.
    fn hear(&mut self, answer: Answer) {
        match answer {
            Answer::Created(id) => drop(self.told.entry(id).or_default()),
            Answer::Cancelled(id) => drop(self.told.insert(id, Some(State::Cancelled))),
            Answer::Leased(worker, held) => {
                // An answer may come late, so that the lease it brings has run out.
                if held.until <= self.now.steady {
                    return;
                }
                let is_held = self
                    .leases
                    .iter()
                    .flatten()
                    .any(|other| other.task == held.task && other.until > self.now.steady);
                if is_held {
                    self.note_broken(Promise::OneHolder);
                }
                if !self.disk.tasks.contains_key(&held.task) {
                    self.note_broken(Promise::Committed);
                }
                self.begin(held.task, held.attempt, Delivery::AtLeastOnce);
                self.leases[usize::from(worker)] = Some(held);
                if self.faults.gives_up_blindly {
                    self.give_up_at
                        .insert(held.task, self.now.mono.after(LEASE));
                }
            }
            Answer::Kept(worker, held) => {
                let lease = &mut self.leases[usize::from(worker)];
                if lease.is_some_and(|lease| lease.token == held.token && lease.task == held.task) {
                    *lease = Some(held);
                }
            }
            Answer::Finished(held, Says::Failed) => {
                self.began.insert((held.task, held.attempt), Fate::Failed);
            }
            Answer::Finished(held, Says::Done) => {
                self.told.insert(held.task, Some(State::Succeeded));
                let successes = self.successes.entry(held.task).or_default();
                *successes += 1;
                if *successes > 1 {
                    self.note_broken(Promise::OneSuccess);
                }
            }
            Answer::Refused => {}
        }
    }

    /// What was told is so: looked at whenever the disk changes, and when only the disk is left.
    fn see_disk(&mut self) {
        let holds = self.told.iter().all(|(id, ended)| {
            let state = self.disk.tasks.get(id).map(|known| known.0.state);
            state.is_some() && (ended.is_none() || state == *ended)
        });
        if !holds {
            self.note_broken(Promise::NothingLost);
        }
    }

    // ------------------------------------------------------------ the way on

    /// Whether some task's latest attempt is written to have ended so.
    pub fn has_outcome(&self, outcome: &str) -> bool {
        let last = |known: &Known| known.0.last_outcome.as_ref().map(|last| last.outcome);
        self.disk
            .tasks
            .values()
            .any(|known| last(known) == Some(outcome))
    }

    /// Time is used up, and nothing is on its way.
    pub fn is_at_rest(&self) -> bool {
        self.left.passes == 0
            && self.owner.out.is_none()
            && self.zombie.is_none()
            && self.broken.is_empty()
    }

    /// Whether every task that was acknowledged ends if all goes well from here on, with all promises kept.
    pub fn comes_to_an_end(&self, model: &ShardModel) -> bool {
        let mut world = self.clone();
        let mut goes_on = true;
        while goes_on && world.broken.is_empty() {
            goes_on = world.go_well(model);
        }
        let mut ends = world.told.keys().map(|id| world.disk.tasks.get(id));
        world.broken.is_empty()
            && ends.all(|known| known.is_some_and(|known| known.0.state.is_ended()))
    }

    /// What there is to be done is done, and is done well; else time passes until there is. False once there is
    /// nothing left that time would bring.
    fn go_well(&mut self, model: &ShardModel) -> bool {
        let is_durable = self.owner.out.as_ref().map(|out| out.is_durable);
        let held = self.runs.first().or(self.leases.iter().flatten().next());
        let act = match (is_durable, held) {
            (Some(None), _) => Act::Commit(Who::Owner),
            (Some(_), _) => Act::Told(Who::Owner),
            (None, Some(held)) => Act::Ask(Asked::Finish(*held, Says::Done)),
            (None, None) if self.is_ready() => Act::Ask(Asked::Lease(0)),
            (None, None) => Act::Tick(Who::Owner),
        };
        self.act(act, model);
        let is_idle = act == Act::Tick(Who::Owner) && self.owner.out.is_none();
        if !is_idle || !self.runs.is_empty() || self.is_ready() {
            return true;
        }
        let wait_ms = self.owner.view.wakes_in_ms.unwrap_or(i64::MAX).max(0);
        let wait = DurationMs(wait_ms.unsigned_abs());
        self.pass(wait);
        wait < minutes(60)
    }
}
