//! A play at work: the virtual clock, schedules and given tasks brought together until the time is over, or it is enough.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::{DurationMs, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::Origin;
use crate::engine::maker::{Gate, Premises};
use crate::engine::registry::RegistryError;
use crate::engine::schedules::{Course, LOOK_AGAIN, Position, Tasks, Wake};
use crate::ids::Slot;
use crate::rule::Schedule;
use crate::rule::book::{Kept, RuleBook};
use crate::shard::create::Created;
use crate::shard::messages::{ApplyVerb, CreateTask, GetTask, Target, VerbRefused, Wants};
use crate::shard::play::{CutOff, NotCreated, Play, Played, WhatIf};
use crate::shard::query::TaskView;
use crate::task::event::Event;
use crate::task::model::Task;
use crate::task::new_task::NewTask;
use crate::task::topic::TopicBook;

/// Most changes of tasks in one play.
const CHANGES_MAX: u64 = 2_000_000;
/// Longest time that a play is worked on.
const WORK_TIME: Duration = Duration::from_secs(15);
/// Most bytes of tasks in memory.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// So many moments are played before it is looked whether that is enough.
const LOOK_EACH: u32 = 64;
/// Who creates the tasks that are given.
const BY: &str = "what-if";

/// Topics and rules as they would be.
pub(super) struct Drafts {
    pub book: Arc<TopicBook>,
    pub rules: Arc<RuleBook>,
}

/// A schedule that takes part.
pub(super) struct Playing {
    course: Course,
    kept: Arc<Kept<Schedule>>,
    /// When it was looked at last, and how many changes there had been then.
    looked: (i64, u64),
}

impl Playing {
    pub fn new(course: Course, kept: Arc<Kept<Schedule>>) -> Self {
        let looked = (i64::MIN, 0);
        Self {
            course,
            kept,
            looked,
        }
    }

    /// When it is to be looked at next, in milliseconds since the start.
    fn next_ms(&self, play: &Play, passed_ms: i64) -> Option<i64> {
        match self.course.wake {
            Wake::Now => Some(passed_ms),
            Wake::At(at) => {
                let left = at.since(play.now().wall).0;
                Some(passed_ms.saturating_add(i64::try_from(left).unwrap_or(i64::MAX)))
            }
            // What it waits for has happened at the earliest when anything has.
            Wake::Soon if play.tally.changes > self.looked.1 => {
                let again = self.looked.0.saturating_add(LOOK_AGAIN.0 as i64);
                Some(again.max(passed_ms))
            }
            Wake::Soon | Wake::Never => None,
        }
    }
}

/// A play with all that takes part in it.
pub(super) struct Scene {
    pub play: Play,
    pub what_if: WhatIf,
    pub drafts: Drafts,
    /// The tasks that are stored.
    pub stored: Vec<Task>,
    /// The schedules that are stored.
    pub courses: Vec<Playing>,
    pub max_delay: DurationMs,
    /// When what is given comes in, and when it ends, in milliseconds since the start.
    pub span_ms: (i64, i64),
    pub until: WallMs,
}

impl Scene {
    /// Plays until the time is over, or it is enough.
    ///
    /// # Errors
    /// When what is given does not make a task, for another reason than its rule or key.
    pub fn play(mut self, unwanted: &CancellationToken) -> Result<Played, EngineError> {
        let end = Instant::now() + WORK_TIME;
        let stored = std::mem::take(&mut self.stored);
        self.play.recover(stored).map_err(RegistryError::Storage)?;
        let (from_ms, until_ms) = self.span_ms;
        let mut refused = None;
        let mut passed_ms = 0;
        let mut cut_off = None;
        for moment in 1_u32.. {
            let play = &self.play;
            let courses = self.courses.iter();
            let courses = courses.filter_map(|playing| playing.next_ms(play, passed_ms));
            let begins = refused.is_none().then_some(from_ms);
            let next = courses.chain(play.next_ms()).chain(begins).min();
            let Some(next) = next.filter(|next| *next < until_ms) else {
                break;
            };
            passed_ms = next.max(passed_ms);
            self.play.run_to(passed_ms);
            if refused.is_none() && passed_ms >= from_ms {
                refused = Some(self.begin()?);
            }
            self.let_schedules_go_on(passed_ms);
            if moment.is_multiple_of(LOOK_EACH) {
                cut_off = self.is_enough(unwanted, end);
            }
            if cut_off.is_some() {
                break;
            }
        }
        let cut_off = cut_off.map(|why| (self.play.now().wall, why));
        let mut played = self.play.tally.close(self.until, cut_off);
        played.refused = refused.unwrap_or_default();
        played.counts.given = (self.what_if.tasks.len() - played.refused.len()) as u64;
        played.seed = self.what_if.seed;
        Ok(played)
    }

    fn is_enough(&self, unwanted: &CancellationToken, end: Instant) -> Option<CutOff> {
        let tally = &self.play.tally;
        if unwanted.is_cancelled() {
            Some(CutOff::Unwanted)
        } else if tally.changes > CHANGES_MAX {
            Some(CutOff::Changes)
        } else if tally.is_full() {
            Some(CutOff::Buckets)
        } else if self.play.bytes() > BYTES_MAX {
            Some(CutOff::Memory)
        } else {
            (Instant::now() > end).then_some(CutOff::Time)
        }
    }

    /// What is given comes in; what of it can't.
    fn begin(&mut self) -> Result<Vec<NotCreated>, EngineError> {
        for (name, _) in &self.what_if.schedules {
            let Some(kept) = self.drafts.rules.schedules.get(name).cloned() else {
                continue;
            };
            match self.courses.iter_mut().find(|it| it.course.name == *name) {
                // It is changed, as by a PUT.
                Some(playing) => {
                    playing.kept = kept;
                    playing.course.look_now();
                }
                None => {
                    let position = Position::begun(&kept, kept.changed_at, false);
                    let course = Course::new(name.clone(), position);
                    self.courses.push(Playing::new(course, kept));
                }
            }
        }
        let house = House::of(&mut self.play, self.max_delay, &self.drafts);
        let mut refused = Vec::new();
        for (place, new) in self.what_if.tasks.iter().enumerate() {
            let seed = self.what_if.seed;
            let key = u128::from(seed) << 64 | u128::from(xxh3_64(BY.as_bytes()));
            let first_at = house.time();
            let created = match house.create(new.clone(), Origin { key, first_at }, place, BY) {
                Ok(Created::Exists(id)) => Err(EngineError::Exists(id)),
                Ok(Created::Refused(refused)) => Err(VerbRefused::Refused(refused).into()),
                created => created.map(drop),
            };
            match created {
                Ok(()) => {}
                Err(
                    error @ (EngineError::Rule(_)
                    | EngineError::Exists(_)
                    | EngineError::Refused(_)),
                ) => {
                    let why = error.to_string();
                    refused.push(NotCreated { place, why });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    fn let_schedules_go_on(&mut self, passed_ms: i64) {
        for playing in &mut self.courses {
            while playing
                .next_ms(&self.play, passed_ms)
                .is_some_and(|next| next <= passed_ms)
            {
                playing.looked = (passed_ms, self.play.tally.changes);
                let house = House::of(&mut self.play, self.max_delay, &self.drafts);
                let step = playing.course.step(&house, &playing.kept, false);
                // Nobody is waited for in a play.
                if step.now_or_never().is_none_or(|step| step.is_err()) {
                    playing.course.wake = Wake::Soon;
                }
            }
        }
    }
}

/// Where schedules and given tasks meet the play.
struct House<'p> {
    play: RefCell<&'p mut Play>,
    premises: Premises,
}

impl<'p> House<'p> {
    fn of(play: &'p mut Play, max_delay: DurationMs, drafts: &Drafts) -> Self {
        let premises = Premises {
            now: play.now(),
            max_delay,
            book: Arc::clone(&drafts.book),
            rules: Arc::clone(&drafts.rules),
        };
        let play = RefCell::new(play);
        Self { play, premises }
    }

    fn create(
        &self,
        new: NewTask,
        origin: Origin,
        place: usize,
        by: &str,
    ) -> Result<Created, EngineError> {
        let creation = Gate::Play(&self.premises)
            .maker()
            .creation(new, Some(origin), place)?;
        let (slot, by) = (creation.id.slot(), by.to_owned());
        Ok(self
            .play
            .borrow_mut()
            .ask(slot, CreateTask { creation, by }))
    }
}

fn slot_of(target: &Target) -> Slot {
    match target {
        Target::Id(id) => id.slot(),
        Target::Key(topic, key) => Slot::of_key(topic.as_str(), key.as_str()),
    }
}

impl Tasks for House<'_> {
    fn time(&self) -> WallMs {
        self.premises.now.wall
    }

    async fn make(&self, new: NewTask, origin: Origin, by: &str) -> Result<(), EngineError> {
        self.play.borrow_mut().tally.counts.occurrences += 1;
        self.create(new, origin, 0, by).map(drop)
    }

    async fn look(&self, target: Target) -> Result<Option<TaskView>, EngineError> {
        let slot = slot_of(&target);
        Ok(self.play.borrow_mut().ask(slot, GetTask(target))?)
    }

    async fn tell(&self, target: Target, event: Event, by: &str) -> Result<(), EngineError> {
        let slot = slot_of(&target);
        let verb = ApplyVerb {
            target,
            event,
            by: by.to_owned(),
            wants: Wants::Whole,
        };
        Ok(self.play.borrow_mut().ask(slot, verb).map(drop)?)
    }
}
