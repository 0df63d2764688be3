//! Schedules at work: each occurrence becomes a task ahead of its time. A child of the watchdog, alone on its thread.
//!
//! ```text
//!   stored: the task of the next occurrence, pending like any other           time ──▶
//!     02:00 ░░░░░░░░░░░░░░░░░░░░░░░░▓  just before 02:00: 03:00 is stored, then 02:00 is let go
//!                                   03:00 ░░░░░░░░░░░░░░░░░░▓
//! ```
//!
//! So a schedule has exactly one task that waits, and it fires on time whatever becomes of this part. How far a schedule
//! is, its [`Position`], is stored in the registry after each step; a step that a crash cuts off is taken again, and finds
//! the task that it made, for ids follow from name and time.
//!
//! - **Overlap** is decided just before an occurrence is let go: it is called off, held, or let go.
//! - **Catch-up**: what passed while nobody was there is made up for one after the other, or not at all. At a start it is
//!   decided before anything may come due (the [`WakeBoard`](crate::shard::wakes::WakeBoard) opens after it), so that
//!   an occurrence that is to be dropped does not fire before it is.
//!
//! What a caller wishes (pause, resume) waits in a short queue; this part alone changes positions.

mod course;
mod position;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot};

use crate::clock::DurationMs;
use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin, Parts};
use crate::engine::registry::RegistryError;
use crate::engine::registry::kind::Kind;
use crate::engine::registry::resources::{DeleteResource, StorePositions};
use crate::failpoints;
use crate::rule::Schedule;
use crate::rule::book::RuleBook;
use crate::shard::create::Created;
use crate::store::StoreError;
use crate::task::spec::ResourceName;
use crate::watchdog::{KillSwitch, LastWords};

pub(super) use course::{Course, Tasks, Wake};
pub use position::Position;

/// Longest sleep: so soon a step of the wall clock is noticed.
const SLEEP_MAX: DurationMs = DurationMs::secs(1);
/// Steps that are taken at a time.
const STEPS_AT_A_TIME: usize = 64;
/// Most wishes that wait.
const WISHES_MAX: usize = 256;
/// Longest wait for a wish to come true.
const WISH_TIME: Duration = Duration::from_secs(10);
/// Longest catch-up of a start; what is left is made up for later.
const START_TIME: Duration = Duration::from_secs(20);
/// How soon it is looked again whether something has ended, or whether what refused does so still.
pub(super) const LOOK_AGAIN: DurationMs = DurationMs(100);
/// How soon positions are stored again that the registry did not take.
const AGAIN: DurationMs = DurationMs(250);

/// What a caller may want of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Pause,
    Resume,
}

type Reply = oneshot::Sender<Result<(), EngineError>>;

/// What the part and the rest of the engine share; it outlives the part's restarts.
#[derive(Debug, Default)]
pub(super) struct ScheduleBoard {
    wishes: Mutex<VecDeque<(ResourceName, Wish, Reply)>>,
    /// As they are stored, for whoever looks.
    positions: RwLock<HashMap<ResourceName, Position>>,
    bell: Notify,
    engine: OnceLock<Weak<Parts>>,
}

impl ScheduleBoard {
    /// Somebody moved the clock, changed a schedule, or wishes something.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// The engine is up: the part may begin.
    pub fn open(&self, engine: &Duetime) {
        // Only one engine is started over these parts.
        let _ = self.engine.set(Arc::downgrade(&engine.parts));
        self.ring();
    }

    fn next_wish(&self) -> Option<(ResourceName, Wish, Reply)> {
        self.wishes.lock().pop_front()
    }

    fn engine(&self) -> Option<Duetime> {
        let parts = self.engine.get()?.upgrade()?;
        Some(Duetime { parts })
    }
}

/// All schedules on their way.
#[derive(Default)]
struct Courses {
    of: HashMap<ResourceName, Course>,
    /// The book that they were last brought in step with.
    seen: Option<Arc<RuleBook>>,
    /// Thrown when another part keeps them.
    kill: Option<KillSwitch>,
}

impl Courses {
    /// From what is stored.
    fn load(engine: &Duetime) -> Result<Self, StoreError> {
        let files = engine.parts.files.lock().clone();
        let files = files.ok_or(StoreError::Poisoned)?;
        let mut of = HashMap::new();
        for (name, text) in files.positions()? {
            let read = ResourceName::parse(&name).ok().zip(Position::read(&text));
            match read {
                Some((name, position)) => {
                    of.insert(name.clone(), Course::at(name, position));
                }
                None => tracing::warn!(
                    name,
                    "a schedule's position does not read back; it begins anew"
                ),
            }
        }
        let (seen, kill) = (None, None);
        Ok(Self { of, seen, kill })
    }

    /// Whether nothing that is done here counts any more.
    fn is_fenced(&self) -> bool {
        self.kill.as_ref().is_some_and(KillSwitch::is_thrown)
    }

    /// New schedules begin, those that are gone end, changed ones look at once.
    fn follow(&mut self, book: Arc<RuleBook>) {
        if self
            .seen
            .as_ref()
            .is_some_and(|seen| Arc::ptr_eq(seen, &book))
        {
            return;
        }
        self.of.retain(|name, _| book.schedules.contains_key(name));
        for (name, kept) in &book.schedules {
            let course = self.of.entry(name.clone());
            let course = course.or_insert_with(|| {
                let position = Position::begun(kept, kept.changed_at, false);
                Course::new(name.clone(), position)
            });
            if course.position.version != kept.version {
                course.look_now();
            }
        }
        self.seen = Some(book);
    }

    /// One step of all whose time has come, and then their positions, stored together. Says how soon to come again.
    async fn round(&mut self, engine: &Duetime, at_start: bool) -> Result<DurationMs, EngineError> {
        self.follow(engine.rules());
        let book = self.seen.clone().unwrap_or_default();
        let now = engine.now().wall;
        let mut due: Vec<(&mut Course, _)> = (self.of.values_mut())
            .filter(|course| course.wake.has_come(now) && !course.is_dirty)
            .filter_map(|course| Some((book.schedules.get(&course.name)?, course)))
            .map(|(kept, course)| (course, kept))
            .collect();
        for some in due.chunks_mut(STEPS_AT_A_TIME) {
            let steps = some.iter_mut().map(|(course, kept)| async move {
                if let Err(error) = course.step(engine, kept, at_start).await {
                    tracing::warn!(schedule = %course.name, %error, "a schedule could not go on; it is tried again");
                    course.wake = Wake::Soon;
                }
            });
            futures_util::future::join_all(steps).await;
        }
        // A step that is not stored is taken again, and finds the tasks that it made.
        if self.is_fenced() {
            return Ok(SLEEP_MAX);
        }
        self.store(engine).await?;
        let now = engine.now().wall;
        let sleeps = self.of.values().map(|course| match course.wake {
            Wake::Now => DurationMs(0),
            Wake::Soon => LOOK_AGAIN,
            Wake::At(at) => at.since(now),
            Wake::Never => SLEEP_MAX,
        });
        Ok(sleeps.min().unwrap_or(SLEEP_MAX))
    }

    /// Stores the positions that have changed.
    async fn store(&mut self, engine: &Duetime) -> Result<(), EngineError> {
        let dirty = self.of.values().filter(|course| course.is_dirty);
        let positions: Vec<_> = dirty
            .map(|course| (course.name.clone(), Some(course.position.text())))
            .collect();
        let shown = &engine.parts.schedules.positions;
        if positions.is_empty() && shown.read().len() == self.of.len() {
            return Ok(());
        }
        if !positions.is_empty() {
            engine.ask_registry(StorePositions { positions }).await?;
        }
        for course in self.of.values_mut() {
            course.is_dirty = false;
        }
        let all = self.of.values();
        let all = all.map(|course| (course.name.clone(), course.position.clone()));
        *shown.write() = all.collect();
        Ok(())
    }

    fn wish(&mut self, engine: &Duetime, name: &ResourceName, wish: Wish, reply: Reply) {
        let found = engine.resource::<Schedule>(name);
        match (found, self.of.get_mut(name)) {
            (Ok(kept), Some(course)) => {
                let now = engine.now().wall;
                match wish {
                    Wish::Pause => course.position.is_paused = true,
                    Wish::Resume if course.position.is_paused => course.resume(&kept, now),
                    Wish::Resume => {}
                }
                course.is_dirty = true;
                course.look_now();
                course.replies.push(reply);
            }
            (Err(error), _) => drop(reply.send(Err(error))),
            (Ok(_), None) => drop(reply.send(Err(RegistryError::Down.into()))),
        }
    }

    /// Tells those whose wish has come true.
    fn reply(&mut self) {
        for course in self.of.values_mut().filter(|course| course.is_settled()) {
            for reply in course.replies.drain(..) {
                // Nobody need wait any more.
                let _ = reply.send(Ok(()));
            }
        }
    }
}

/// At a start, before anything may come due: what was missed is dropped or made up for.
pub(super) async fn catch_up(engine: &Duetime) -> Result<(), StoreError> {
    let mut courses = Courses::load(engine)?;
    let rounds = async {
        loop {
            match courses.round(engine, true).await {
                // What waits for something to end waits for the service to run.
                Ok(sleep) if sleep > DurationMs(0) => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "positions of schedules are not stored");
                    tokio::time::sleep(AGAIN.to_std()).await;
                }
            }
        }
    };
    if tokio::time::timeout(START_TIME, rounds).await.is_err() {
        tracing::warn!("schedules are not caught up yet; the start goes on");
    }
    Ok(())
}

/// Keeps all schedules going, until it is told to leave or its files can't be read; says why it left.
pub(super) async fn run(board: Arc<ScheduleBoard>, kill: KillSwitch, words: LastWords) -> String {
    let mut courses = None;
    while !kill.is_thrown() {
        let mut sleep = SLEEP_MAX;
        // Held only for a round: an engine that nobody holds any more ends.
        if let Some(engine) = board.engine()
            && engine.accepting().is_ok()
        {
            if let Err(error) = words.hear(|| failpoints::reach("schedules::round")) {
                return error.to_string();
            }
            if kill.is_thrown() {
                break;
            }
            let courses = match &mut courses {
                Some(courses) => courses,
                none => match Courses::load(&engine) {
                    Ok(loaded) => none.insert(Courses {
                        kill: Some(kill.clone()),
                        ..loaded
                    }),
                    Err(error) => return format!("positions: {error}"),
                },
            };
            courses.follow(engine.rules());
            while let Some((name, wish, reply)) = board.next_wish() {
                courses.wish(&engine, &name, wish, reply);
            }
            let done = match courses.store(&engine).await {
                Ok(()) => courses.round(&engine, false).await,
                Err(error) => Err(error),
            };
            match done {
                Ok(then) => {
                    courses.reply();
                    sleep = sleep.min(then);
                }
                Err(error) => {
                    tracing::warn!(%error, "positions of schedules are not stored");
                    sleep = AGAIN;
                }
            }
        }
        // Whoever rings while it works is heard now.
        let _ = tokio::time::timeout(sleep.to_std(), board.bell.notified()).await;
    }
    "asked to leave".to_owned()
}

impl Duetime {
    /// Holds a schedule: its next occurrence is called off, and none is made until it is resumed.
    ///
    /// # Errors
    /// When there is none of that name; see [`EngineError`].
    pub async fn pause_schedule(&self, name: ResourceName, by: &str) -> Result<(), EngineError> {
        self.wish(name, Wish::Pause, by).await
    }

    /// Lets a schedule go on with its next occurrence; those that passed while it was held are gone.
    ///
    /// # Errors
    /// As [`Duetime::pause_schedule`].
    pub async fn resume_schedule(&self, name: ResourceName, by: &str) -> Result<(), EngineError> {
        self.wish(name, Wish::Resume, by).await
    }

    /// Takes a schedule away, and calls off its next occurrence. One that runs goes on.
    ///
    /// # Errors
    /// As [`Duetime::pause_schedule`].
    pub async fn delete_schedule(&self, name: ResourceName, by: &str) -> Result<(), EngineError> {
        // First held, so that a crash in between leaves nothing that would still fire.
        self.pause_schedule(name.clone(), by).await?;
        let (by, kind) = (by.to_owned(), std::marker::PhantomData::<Schedule>);
        let deleted = self.ask_registry(DeleteResource { name, by, kind }).await;
        self.parts.schedules.ring();
        deleted
    }

    /// Makes an occurrence now, beside all others, also of a schedule that is held.
    ///
    /// # Errors
    /// When there is no such schedule; else as [`Duetime::create`].
    pub async fn run_schedule_now(
        &self,
        name: &ResourceName,
        origin: Option<Origin>,
        by: &str,
    ) -> Result<Created, EngineError> {
        let kept = self.resource::<Schedule>(name)?;
        // Sent again, it is the same.
        let at = origin.map_or_else(|| self.now().wall, |origin| origin.first_at);
        let new = course::task_of(name, &kept.meaning, at, None);
        self.create_from(new, origin, by).await
    }

    /// How far a schedule is.
    pub fn schedule_position(&self, name: &ResourceName) -> Option<Position> {
        self.parts.schedules.positions.read().get(name).cloned()
    }

    async fn wish(&self, name: ResourceName, wish: Wish, by: &str) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        {
            let mut wishes = self.parts.schedules.wishes.lock();
            if wishes.len() >= WISHES_MAX {
                return Err(RegistryError::Overloaded.into());
            }
            wishes.push_back((name.clone(), wish, reply));
        }
        self.parts.schedules.ring();
        let done = tokio::time::timeout(WISH_TIME, answer).await;
        // Dropped unsaid when the part dies with it.
        done.unwrap_or(Ok(Err(RegistryError::Down.into())))
            .unwrap_or(Err(RegistryError::Down.into()))?;
        let verb = match wish {
            Wish::Pause => "pause",
            Wish::Resume => "resume",
        };
        let action = format!("{}.{verb}", Kind::Schedule);
        if let Err(error) = self.audit(by, &action, name.as_str(), "").await {
            // It is done, and is not undone by this.
            tracing::error!(%error, schedule = %name, verb, "audit line not written");
        }
        Ok(())
    }
}
