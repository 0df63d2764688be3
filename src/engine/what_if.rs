//! What-ifs: stored or given tasks, under the rules, calendars and schedules of now or of a draft, played through on a
//! virtual clock. Nothing is sent, and nothing is changed.
//!
//! ```text
//!  stored tasks, page by page ─┐
//!  topics and rules, as they   ├─▶ Scene ─▶ Play (shards, virtual clock) ─▶ Played
//!  are or as they are given   ─┘    └─ schedules, by their own Course
//! ```
//!
//! It runs on a thread of its own, so many at a time and no more, and is bounded in tasks, changes, memory and time; when
//! nobody waits for it any more, it ends.

mod scene;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::clock::{DurationMs, Now, SteadyMs, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::registry::kind::{Resource, is_there};
use crate::engine::schedules::{Course, Position};
use crate::ids::IdSet;
use crate::limits;
use crate::rule::Rule;
use crate::rule::book::{Kept, RuleBook};
use crate::shard::core::CoreOptions;
use crate::shard::messages::Target;
use crate::shard::play::{Play, Played, Tally, Until, WhatIf};
use crate::shard::query::{PageAsk, TaskFilter};
use crate::task::model::{State, Task};
use crate::task::new_task::NewTask;
use crate::task::spec::ResourceName;
use crate::task::stage::Stages;
use crate::task::topic::{Topic, TopicBook};

use scene::{Drafts, Playing, Scene};

/// Plays at a time; one keeps a processor busy.
const AT_A_TIME: usize = 2;
/// Stored tasks that are read at a time.
const PAGE: usize = 1_000;
/// Longest time for reading stored tasks.
const READ_TIME: Duration = Duration::from_secs(8);
/// Keys that are looked up at a time.
const KEYS_AT_A_TIME: usize = 64;

/// What plays need of the engine.
pub(super) struct WhatIfs {
    pub room: Arc<Semaphore>,
    core: CoreOptions,
}

impl WhatIfs {
    /// Plays of shards that work like this.
    pub fn new(core: CoreOptions) -> Self {
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        Self { room, core }
    }
}

/// Why a what-if is not played.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfRefused {
    /// As many as may be are played already.
    #[error("{AT_A_TIME} what-ifs are being played already; try again")]
    Busy,
    /// More stored tasks would take part than may.
    #[error(
        "takes in more than {} tasks, which is the most; narrow the filter or the time",
        limits::WHAT_IF_TASKS_MAX
    )]
    TooManyTasks,
    /// Reading them took too long.
    #[error("the stored tasks could not be read in {} s; narrow the filter", READ_TIME.as_secs())]
    TooLong,
    /// A shard that is being restarted gives no snapshot.
    #[error("{0}; try again")]
    NoSnapshot(String),
    /// It would end before it begins.
    #[error("ends before it begins")]
    NoTime,
    /// Further ahead than is played.
    #[error("reaches more than {} days ahead", limits::WHAT_IF_DAYS_MAX)]
    TooFar,
    /// Stored tasks are as they are now.
    #[error("lies in the past, and stored tasks are as they are now")]
    Past,
    /// Something given does not go together.
    #[error("{why}")]
    Given {
        /// Where, as a JSON pointer.
        at: String,
        /// What is wrong.
        why: String,
    },
}

impl Duetime {
    /// What would fire, and when, if this were so. Nothing is sent, and nothing is changed.
    ///
    /// # Errors
    /// When it takes in more than is played, when what is given does not go together, when others are played already; see
    /// [`EngineError`].
    pub async fn simulate(&self, what_if: WhatIf) -> Result<Played, EngineError> {
        self.accepting()?;
        if what_if.tasks.len() > limits::WHAT_IF_TASKS_MAX {
            return Err(WhatIfRefused::TooManyTasks.into());
        }
        let room = Arc::clone(&self.parts.what_ifs.room);
        let place = room.try_acquire_owned().map_err(|_| WhatIfRefused::Busy)?;
        let scene = self.scene(what_if).await?;
        let unwanted = self.parts.stopping.child_token();
        let _unwanted_when_dropped = unwanted.clone().drop_guard();
        let played = self.parts.on_io.spawn_blocking(move || {
            let _place = place;
            // What happens in it is no business of the service's log.
            let nobody = tracing::Dispatch::none();
            tracing::dispatcher::with_default(&nobody, || scene.play(&unwanted))
        });
        match played.await.map_err(JoinError::try_into_panic) {
            Ok(played) => played,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => Err(EngineError::ShuttingDown),
        }
    }

    /// All that a play begins with.
    async fn scene(&self, what_if: WhatIf) -> Result<Scene, EngineError> {
        let now = self.now();
        let from = what_if.from.unwrap_or(now.wall);
        let until = match what_if.until {
            Until::At(at) => at,
            Until::For(length) => from.after(length),
        };
        // Stored tasks are played from now on, even if it is told from later on only.
        let start = match what_if.stored {
            Some(_) if from < now.wall => return Err(WhatIfRefused::Past.into()),
            Some(_) => now,
            // Of another time there is no steady time but the same.
            None => Now {
                wall: from,
                mono: now.mono,
                steady: SteadyMs(from.0),
            },
        };
        if until <= from {
            return Err(WhatIfRefused::NoTime.into());
        }
        if until.since(start.wall) > DurationMs::secs(limits::WHAT_IF_DAYS_MAX * 24 * 3600) {
            return Err(WhatIfRefused::TooFar.into());
        }
        let drafts = self.drafts(&what_if, from)?;
        let stored = match &what_if.stored {
            Some(filter) => self.stored_for(&what_if, filter, until).await?,
            None => Vec::new(),
        };
        let shards = self.parts.router.shards().count().max(1) as u16;
        let tally = Tally::new(from, what_if.bucket, what_if.events_max);
        let play = Play::new(
            shards,
            &self.parts.what_ifs.core,
            &drafts.book,
            start,
            (what_if.assume.clone(), what_if.seed),
            tally,
        );
        let ms = |at: WallMs| i64::try_from(at.since(start.wall).0).unwrap_or(i64::MAX);
        Ok(Scene {
            play,
            drafts,
            stored,
            courses: self.courses_for(&what_if, start),
            what_if,
            max_delay: self.max_delay(),
            span_ms: (ms(from), ms(until)),
            until,
        })
    }

    /// Topics and rules with what is given in the place of what there is.
    fn drafts(&self, what_if: &WhatIf, from: WallMs) -> Result<Drafts, EngineError> {
        let mut book = TopicBook::clone(&self.book());
        for (name, settings) in &what_if.topics {
            let settings = settings.clone();
            let topic = Topic {
                settings,
                ..Topic::clone(book.get(name))
            };
            book = book.with(name.clone(), topic);
        }
        let mut rules = RuleBook::clone(&self.rules());
        lay_over(&mut rules, &what_if.calendars, from);
        lay_over(&mut rules, &what_if.rules, from);
        lay_over(&mut rules, &what_if.schedules, from);
        needs_met(&rules, &what_if.rules)?;
        for (place, new) in what_if.tasks.iter().enumerate() {
            let spec = new.spec(book.get(&new.topic));
            self.may_do(&spec.action, format_args!("/tasks/{place}/action"))?;
            let stages = spec.stages.iter().flat_map(Stages::iter).enumerate();
            for (stage, action) in stages.filter_map(|(n, stage)| Some((n, stage.action.as_ref()?)))
            {
                let at = format_args!("/tasks/{place}/stages/{stage}/action");
                self.may_do(action, at)?;
            }
        }
        self.may_do_all(&what_if.schedules)?;
        self.may_do_all(&what_if.rules)?;
        let (book, rules) = (Arc::new(book), Arc::new(rules));
        Ok(Drafts { book, rules })
    }

    fn may_do_all<R: Resource>(&self, given: &[(ResourceName, R)]) -> Result<(), EngineError> {
        for (name, meaning) in given {
            for (at, action) in meaning.actions() {
                self.may_do(action, format_args!("/{}/{name}{at}", R::KIND.words()))?;
            }
        }
        Ok(())
    }

    /// The stored tasks that take part: those that may come due in time, and those whose keys are given anew.
    async fn stored_for(
        &self,
        what_if: &WhatIf,
        filter: &TaskFilter,
        until: WallMs,
    ) -> Result<Vec<Task>, EngineError> {
        const LIVE: [State; 4] = [
            State::Pending,
            State::Dispatched,
            State::Running,
            State::Retrying,
        ];
        let mut filter = filter.clone();
        filter.states = match filter.states.as_slice() {
            [] => LIVE.to_vec(),
            given => given
                .iter()
                .copied()
                .filter(|state| LIVE.contains(state))
                .collect(),
        };
        if filter.states.is_empty() {
            return Ok(Vec::new());
        }
        // What is due later takes no part.
        let before = filter.due.before.map_or(until, |before| before.min(until));
        filter.due.before = Some(before);
        let begun = Instant::now();
        let mut ask = PageAsk {
            filter,
            limit: PAGE,
            ..PageAsk::default()
        };
        let mut tasks = Vec::new();
        loop {
            let (page, next) = self.list(ask.clone()).await?;
            tasks.extend(page.into_iter().map(|view| Task::clone(&view.task)));
            if tasks.len() > limits::WHAT_IF_TASKS_MAX {
                return Err(WhatIfRefused::TooManyTasks.into());
            }
            match next {
                None => break,
                Some(_) if begun.elapsed() > READ_TIME => return Err(WhatIfRefused::TooLong.into()),
                Some(next) => ask.after = Some(next),
            }
        }
        // A page may tell of a task again that was moved between two.
        let mut known = IdSet::default();
        tasks.retain(|task| known.insert(task.id));
        let keyed: Vec<Target> = what_if.tasks.iter().filter_map(target_of).collect();
        for some in keyed.chunks(KEYS_AT_A_TIME) {
            let found = join_all(some.iter().map(|target| self.get(target.clone()))).await;
            for found in found {
                let Some(view) = found? else { continue };
                if LIVE.contains(&view.task.state) && known.insert(view.task.id) {
                    tasks.push(Task::clone(&view.task));
                }
            }
        }
        Ok(tasks)
    }

    /// The stored schedules that take part: if the filter is about more than topics, none does.
    fn courses_for(&self, what_if: &WhatIf, start: Now) -> Vec<Playing> {
        let Some(filter) = &what_if.stored else {
            return Vec::new();
        };
        let by_topic = TaskFilter {
            topic: filter.topic.clone(),
            ..TaskFilter::default()
        };
        if *filter != by_topic {
            return Vec::new();
        }
        let rules = self.rules();
        let all = rules.schedules.iter().filter(|(_, kept)| {
            let topic = filter.topic.as_ref();
            topic.is_none_or(|topic| kept.meaning.topic == *topic)
        });
        let playing = all.map(|(name, kept)| {
            let position = self.schedule_position(name);
            let position = position
                .unwrap_or_else(|| Position::begun(kept, kept.changed_at.min(start.wall), false));
            Playing::new(Course::at(name.clone(), position), Arc::clone(kept))
        });
        playing.collect()
    }
}

fn target_of(new: &NewTask) -> Option<Target> {
    Some(Target::Key(new.topic.clone(), new.key.clone()?))
}

/// All rules, with one of them as it would be, in force for all.
pub(super) fn draft(
    book: &RuleBook,
    name: &ResourceName,
    meaning: Rule,
    at: WallMs,
) -> Result<RuleBook, WhatIfRefused> {
    let mut book = RuleBook::clone(book);
    let given = [(name.clone(), meaning)];
    lay_over(&mut book, &given, at);
    needs_met(&book, &given)?;
    Ok(book)
}

/// Puts what is given into the book, each as the next version of what has its name.
fn lay_over<R: Resource>(book: &mut RuleBook, given: &[(ResourceName, R)], at: WallMs) {
    for (name, meaning) in given {
        let all = R::all_mut(book);
        let version = all.get(name).map_or(0, |kept| kept.version) + 1;
        let kept = Kept {
            meaning: meaning.clone(),
            body: String::new(),
            version,
            changed_at: at,
        };
        all.insert(name.clone(), Arc::new(kept));
    }
}

fn needs_met<R: Resource>(
    book: &RuleBook,
    given: &[(ResourceName, R)],
) -> Result<(), WhatIfRefused> {
    for (name, meaning) in given {
        if let Some((kind, needed)) = meaning
            .needs()
            .into_iter()
            .find(|need| !is_there(book, need))
        {
            return Err(WhatIfRefused::Given {
                at: format!("/{}/{name}", R::KIND.words()),
                why: format!("needs the {kind} {needed}, which is neither given nor stored"),
            });
        }
    }
    Ok(())
}
