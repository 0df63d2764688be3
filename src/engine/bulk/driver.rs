//! The part that drives bulk jobs: a [keeper](crate::engine::keeper).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs};
use crate::engine::bulk::course::Course;
use crate::engine::bulk::job::{BulkId, BulkJob, BulkRefused};
use crate::engine::bulk::{BulkBoard, Reply, Wish};
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::registry::bulk::ForgetBulk;
use crate::failpoints;
use crate::limits;
use crate::store::StoreError;
use crate::watchdog::{KillSwitch, LastWords};

/// Longest sleep: so soon a job is forgotten whose time is over.
const SLEEP_MAX: DurationMs = DurationMs::secs(1);
/// How soon a step is tried again that something has refused.
const AGAIN: DurationMs = DurationMs(250);

/// All bulk jobs that are kept.
struct Courses {
    of: BTreeMap<BulkId, Course>,
    kill: KillSwitch,
}

impl Courses {
    /// From what is stored.
    fn load(engine: &Duetime, kill: &KillSwitch) -> Result<Self, StoreError> {
        let files = engine.parts.files.lock().clone();
        let files = files.ok_or(StoreError::Poisoned)?;
        let mut of = BTreeMap::new();
        for (id, record) in files.bulk_jobs()? {
            let id = BulkId(id);
            if let Some(course) = Course::load(id, &record, engine)? {
                engine.parts.bulk.show(&course.job);
                of.insert(id, course);
            }
        }
        let kill = kill.clone();
        Ok(Self { of, kill })
    }

    /// A step of each whose time has come. Says how soon to come again.
    async fn round(&mut self, engine: &Duetime) -> DurationMs {
        let now = engine.now().mono;
        let kill = &self.kill;
        let is_due = |course: &&mut Course| course.wakes_at().is_some_and(|at| at <= now);
        let steps = self.of.values_mut().filter(is_due).map(|course| async move {
            let done = course.step(engine, kill).await;
            if let Err(error) = &done {
                tracing::warn!(bulk = %course.job.id, %error, "a bulk job could not go on; it is tried again");
            }
            engine.parts.bulk.show(&course.job);
            done.is_ok()
        });
        let done = futures_util::future::join_all(steps).await;
        if done.contains(&false) {
            return AGAIN;
        }
        let now = engine.now().mono;
        let next: Option<MonoMs> = self.of.values().filter_map(Course::wakes_at).min();
        next.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))
    }

    /// Forgets what ended too long ago, or is one too many.
    async fn forget(&mut self, engine: &Duetime) -> Result<(), EngineError> {
        let now = engine.now().wall;
        let mut ended: Vec<(i64, BulkId)> = self
            .of
            .iter()
            .filter_map(|(id, course)| Some((course.job.progress.ended_ms?, *id)))
            .collect();
        ended.sort_unstable();
        let too_many = ended.len().saturating_sub(limits::BULK_ENDED_MAX);
        let kept_ms = i64::try_from(limits::BULK_KEPT_MS).unwrap_or(i64::MAX);
        for (place, (ended_ms, id)) in ended.into_iter().enumerate() {
            if place < too_many || now.0.saturating_sub(ended_ms) >= kept_ms {
                engine.ask_registry(ForgetBulk { id: id.0 }).await?;
                self.of.remove(&id);
                engine.parts.bulk.forget(id);
            }
        }
        Ok(())
    }

    async fn grant(&mut self, engine: &Duetime, wish: Wish) -> Result<Arc<BulkJob>, EngineError> {
        match wish {
            Wish::Begin(job) => self.begin(engine, *job).await,
            Wish::Verb(id, verb) => {
                let unknown = || BulkRefused::Unknown(id.to_string());
                let course = self.of.get_mut(&id).ok_or_else(unknown)?;
                let as_it_was = course.job.clone();
                course.look_anew();
                if course.job.wish(verb, engine.now().wall)?
                    && let Err(error) = course.store(engine, Vec::new()).await
                {
                    course.job = as_it_was;
                    return Err(error);
                }
                Ok(engine.parts.bulk.show(&course.job))
            }
        }
    }

    async fn begin(&mut self, engine: &Duetime, job: BulkJob) -> Result<Arc<BulkJob>, EngineError> {
        // Asked for again.
        if let Some(present) = self.of.get(&job.id) {
            return Ok(engine.parts.bulk.show(&present.job));
        }
        let is_live = |course: &&Course| !course.job.progress.state.has_ended();
        if self.of.values().filter(is_live).count() >= limits::BULK_LIVE_MAX {
            return Err(BulkRefused::TooMany.into());
        }
        let id = job.id;
        let mut course = Course::new(job);
        course.store(engine, Vec::new()).await?;
        let course = self.of.entry(id).or_insert(course);
        Ok(engine.parts.bulk.show(&course.job))
    }
}

/// Drives all bulk jobs, until it is told to leave or what is stored can't be read; says why it left.
pub(in crate::engine) async fn run(
    board: Arc<BulkBoard>,
    kill: KillSwitch,
    words: LastWords,
) -> String {
    let mut courses = None;
    while !kill.is_thrown() {
        let mut sleep = SLEEP_MAX;
        // Held only for a round: an engine that nobody holds any more ends.
        if let Some(engine) = board.engine()
            && engine.accepting().is_ok()
        {
            if let Err(error) = words.hear(|| failpoints::reach("bulk::round")) {
                return error.to_string();
            }
            let courses = match &mut courses {
                Some(courses) => courses,
                none => match Courses::load(&engine, &kill) {
                    Ok(loaded) => none.insert(loaded),
                    Err(error) => return format!("bulk jobs: {error}"),
                },
            };
            while let Some((wish, reply)) = board.next_wish() {
                answer(reply, courses.grant(&engine, wish).await);
            }
            sleep = courses.round(&engine).await;
            if let Err(error) = courses.forget(&engine).await {
                tracing::warn!(%error, "an ended bulk job is not forgotten yet");
            }
        }
        // Whoever rings while it works is heard now.
        let _ = tokio::time::timeout(sleep.to_std(), board.rung()).await;
    }
    "asked to leave".to_owned()
}

fn answer(reply: Reply, done: Result<Arc<BulkJob>, EngineError>) {
    // Nobody need wait any more.
    let _ = reply.send(done);
}
