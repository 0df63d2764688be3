//! A checked model of the shard: every order of events, within small bounds.
//!
//! Think of a chess problem with very few pieces: a task or two, the shard's owner and the one before it, two workers,
//! an executor, a clock that moves a few times, a death or two. [`stateright`] plays *every* game that there is, and
//! looks at each position whether a promise was broken.
//!
//! ```text
//!             asks            step            commit            told
//!  worker,  ────────▶  owner ──────▶ out ─────────────▶ disk ─────────▶ answers, starts
//!  client,             zombie ─ ─ ─▶ out ─ ─ ─ ✗ fence
//!  executor                      ✗ crash   ✗ replaced   ✗           any of it at any time
//! ```
//!
//! **What is real.** The pieces move by the production code: [`ShardCore`] with its table, wheels and slots, all its
//! questions, [`apply`](crate::task::transition::apply), recovery, the codec (each record goes through its bytes), and
//! the epoch check of the memory store. What the model adds is the actor's order of things (`owner`), and the world
//! around it (`world`): which of its steps come when, and what is lost with a process.
//!
//! **What is a move.** A step ends where the actor's does: with a batch out. That the store takes it, and that the actor
//! hears of it, are moves of their own, so a death or a successor comes between any two of them. A replaced owner is a
//! zombie: its thread goes on from wherever it was held, commits what it had out, and tells whoever waits for it. It
//! starts nothing any more: it looks at its kill switch first, and the list of attempts is closed to it (`shard::attempts`).
//!
//! **What is not.** Two questions in one step; lost or repeated messages, but for those that a death swallows; chunks
//! and folds, notes (but for late answers) and keys, topics and pauses, snoozes, total time (the random simulation has all of these); several
//! shards, as they share nothing; a disk that lies (see `tests/torn`). Retention never ends, so nothing is forgotten. Times that
//! nobody looks at are left out of what makes two states equal: [`owner::Known`] says which.
//!
//! **That it can end** is checked where time is used up: from each such state everything goes well, and every task that
//! was acknowledged must end, with no promise broken. Each state leads to one of these, so each has a way on.
//!
//! **That it would notice** is checked by faults planted in the model, never in the code: see [`Faults`]. Each must be
//! found, and its shortest counterexample is printed (`cargo test model -- --nocapture`).
//!
//! **What it takes**, in a debug build: seven games with 25 700 states and 46 100 moves, and eleven counterexamples, all in
//! 25 s of processor time, which two cores share.

mod owner;
mod world;

use std::fmt;

use stateright::{Checker, Model, Path, Property};

use super::*;
use crate::clock::SteadyMs;
use crate::ids::Slot;
use crate::shard::create::Creation;
use crate::task::new_task::When;
use crate::task::spec::Delivery;
use owner::Asked;
use world::{Act, Left, Promise, Who, World};

/// How long a worker may keep a task without a heartbeat.
const LEASE: DurationMs = DurationMs::secs(30);

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    /// Commits of an old epoch are taken.
    takes_any_epoch: bool,
    /// An answer counts for whatever attempt is out.
    takes_any_token: bool,
    /// Effects and answers do not wait for the commit.
    acts_before_its_commit: bool,
    /// A lease is given up by when it began, whatever was heard of it since.
    gives_up_blindly: bool,
    /// A zombie starts what it had armed.
    overlooks_its_kill: bool,
}

/// The game: its pieces, and how often each may move.
#[derive(Clone, Debug)]
struct ShardModel {
    tasks: Vec<Creation>,
    /// By how much time passes, one after the other.
    lengths: Vec<DurationMs>,
    /// Else their creates are moves, too.
    begins_with_its_tasks: bool,
    left: Left,
    faults: Faults,
    /// Only this promise ends the game when it is broken; `None`: any.
    watched: Option<Promise>,
}

impl ShardModel {
    fn of(fixtures: impl IntoIterator<Item = TaskFixture>) -> Self {
        let creation = |(number, fixture): (u64, TaskFixture)| {
            let task = fixture.build(at(0));
            Creation {
                id: TaskId::with_tail(Slot::of_hash(0), START, number),
                topic: task.topic,
                key: None,
                when: Some(match task.due.lane {
                    Lane::Wall => When::At(task.due.at),
                    Lane::Steady => When::After(task.due.remaining(at(0))),
                }),
                spec: task.spec,
                on_existing: OnExisting::Reject,
                request: None,
                is_skipped: false,
            }
        };
        Self {
            tasks: (1..).zip(fixtures).map(creation).collect(),
            lengths: Vec::new(),
            begins_with_its_tasks: true,
            left: Left {
                passes: 0,
                crashes: 0,
                replaces: 0,
                cancels: 0,
                failures: 0,
                steps_back: 0,
            },
            faults: Faults::default(),
            watched: None,
        }
    }

    /// Time passes so often, by so much.
    fn passing(mut self, lengths: impl IntoIterator<Item = DurationMs>) -> Self {
        self.lengths = lengths.into_iter().collect();
        self.left.passes = self.lengths.len() as u8;
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Left)) -> Self {
        change(&mut self.left);
        self
    }

    fn ids(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.iter().map(|task| task.id)
    }

    fn creation(&self, id: TaskId) -> Creation {
        let mut tasks = self.tasks.iter();
        tasks.find(|task| task.id == id).unwrap().clone()
    }
}

const WAY_ON: &str = "every acknowledged task has a way on";

/// What must come to pass somewhere, or nothing is proven.
const UNKNOWN: &str = "an attempt is cut off, and nobody knows how it ended";
const LEASE_OVER: &str = "a lease runs out";
const STALE: &str = "a commit of an old owner is refused";
const RARE: [&str; 3] = [UNKNOWN, LEASE_OVER, STALE];

impl Promise {
    /// As a sentence.
    const fn name(self) -> &'static str {
        match self {
            Self::NothingLost => "what was acknowledged is so, and stays so",
            Self::NoNumberTwice => "no attempt number is started twice",
            Self::Committed => "only what is committed is started",
            Self::EndsAreFinal => "what has ended stays as it ended",
            Self::OneSuccess => "at most one success is taken",
            Self::NotEarly => "nothing starts early",
            Self::AtMostOnce => "at most once is never tried again in doubt",
            Self::OneHolder => "a lease has one holder at a time",
            Self::InTimeCounts => "an answer in time counts",
        }
    }
}

impl Model for ShardModel {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        // A broken promise ends the game.
        if world.broken.is_empty() {
            world.acts(self, acts);
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        world.after(act, self)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! kept {
            ($($promise:ident),*) => {
                vec![$(Property::always(Promise::$promise.name(), |_, world: &World| {
                    !world.broken.contains(&Promise::$promise)
                })),*]
            };
        }
        let mut properties = kept![
            NothingLost,
            NoNumberTwice,
            Committed,
            EndsAreFinal,
            OneSuccess,
            NotEarly,
            AtMostOnce,
            OneHolder,
            InTimeCounts
        ];
        properties.push(Property::always(WAY_ON, |model: &Self, world: &World| {
            !world.is_at_rest() || world.comes_to_an_end(model)
        }));
        properties.push(Property::sometimes(UNKNOWN, |_, world: &World| {
            world.has_outcome("outcome_unknown")
        }));
        properties.push(Property::sometimes(LEASE_OVER, |_, world: &World| {
            world.has_outcome("lease_expired")
        }));
        properties.push(Property::sometimes(STALE, |_, world: &World| {
            let out = world.zombie.as_ref().and_then(|zombie| zombie.out.as_ref());
            out.is_some_and(|out| out.is_durable == Some(false))
        }));
        properties
    }
}

/// What happened, line by line.
fn tell(path: Path<World, Act>) -> String {
    let mut story = String::new();
    for (number, (world, act)) in path.into_vec().into_iter().enumerate() {
        let disk: Vec<_> = world.disk.tasks.values().collect();
        let (now, owner) = (world.now.mono.0, &world.owner);
        story += &format!("{number:3} {now:6} ms  disk {disk:?}; owner {owner:?}");
        if let Some(zombie) = &world.zombie {
            story += &format!("; zombie {zombie:?}");
        }
        match act {
            Some(act) => story += &format!("\n      {act:?}\n"),
            None => story += &format!("\n      broken: {:?}\n", world.broken),
        }
        for (number, id) in (1..).zip(world.disk.tasks.keys()) {
            story = story.replace(&id.to_string(), &format!("task {number}"));
        }
    }
    story
}

/// Plays every game: no promise may be broken, and all of `seen` must come to pass.
fn explore(model: ShardModel, seen: &[&'static str]) {
    let begun = std::time::Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    let (examples, broken): (Vec<_>, Vec<_>) = checker
        .discoveries()
        .into_iter()
        .partition(|(name, _)| RARE.contains(name));
    let broken: Vec<String> = broken
        .into_iter()
        .map(|(name, path)| format!("not so: {name}\n{}", tell(path)))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let unseen = seen
        .iter()
        .filter(|rare| examples.iter().all(|(name, _)| name != *rare));
    assert_eq!(unseen.collect::<Vec<_>>(), Vec::<&&str>::new(), "never so");
    say(&format!(
        "{} states, {} moves, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        begun.elapsed().as_secs_f64()
    ));
}

/// Plays ever longer games until this promise is broken, so in as few moves as can be, and tells how.
fn counterexample(model: &ShardModel, promise: Promise, plant: fn(&mut Faults)) -> Vec<Act> {
    let mut model = model.clone();
    plant(&mut model.faults);
    model.watched = Some(promise);
    for moves in 2..MOVES_MAX {
        let builder = model.clone().checker().target_max_depth(moves);
        let checker = builder.spawn_bfs().join();
        if let Some(path) = checker.discovery(promise.name()) {
            let story = tell(path.clone());
            say(&format!("not so: {}\n{story}", promise.name()));
            return path.into_actions();
        }
    }
    panic!("{} is kept in spite of the fault", promise.name());
}

#[expect(clippy::print_stdout, reason = "a counterexample is there to be read")]
fn say(what: &str) {
    println!("{what}");
}

const SHORT: DurationMs = DurationMs(10);
const LONG: DurationMs = DurationMs::secs(40);
/// No planted fault needs more to show.
const MOVES_MAX: usize = 20;

/// Of a push that is due in a moment.
fn a_push(change: impl Fn(TaskFixture) -> TaskFixture) -> ShardModel {
    ShardModel::of([change(push())]).passing([SHORT, LONG])
}

fn push() -> TaskFixture {
    let push = task().push().due_in(SHORT);
    push.max_attempts(3).retry_after(DurationMs(100))
}

/// Of a task that is due, for workers. A lease outlives one length of time, and not two.
fn a_pull() -> ShardModel {
    ShardModel::of([pull()]).passing([DurationMs::secs(20); 3])
}

fn pull() -> TaskFixture {
    task().max_attempts(3).retry_after(DurationMs(100))
}

#[test]
fn a_push_outlives_processes() {
    let mut model = a_push(|push| push).with(|left| {
        left.crashes = 2;
        left.cancels = 1;
        left.failures = 1;
    });
    model.begins_with_its_tasks = false;
    explore(model, &[UNKNOWN]);
}

#[test]
fn a_push_outlives_owners_that_do_not_know_that_they_are_none_any_more() {
    let model = a_push(|push| push).with(|left| {
        left.crashes = 1;
        left.replaces = 1;
        left.failures = 1;
    });
    explore(model, &[UNKNOWN, STALE]);
}

#[test]
fn a_push_at_most_once_is_never_tried_again_in_doubt() {
    let model = a_push(TaskFixture::at_most_once).with(|left| {
        left.crashes = 1;
        left.replaces = 1;
        left.failures = 1;
    });
    explore(model, &[UNKNOWN, STALE]);
}

#[test]
fn a_push_is_not_early_though_the_wall_clock_steps_back() {
    let model = a_push(|push| push.due_at(START.after(SHORT))).with(|left| {
        left.crashes = 1;
        left.replaces = 1;
        left.steps_back = 1;
    });
    explore(model, &[UNKNOWN]);
}

#[test]
fn workers_keep_what_they_hold_and_lose_what_they_leave() {
    let model = a_pull().with(|left| {
        left.crashes = 1;
        left.cancels = 1;
        left.failures = 1;
    });
    explore(model, &[LEASE_OVER]);
}

#[test]
fn workers_hold_a_task_one_at_a_time_though_owners_change() {
    let model = a_pull().with(|left| {
        left.replaces = 1;
        left.cancels = 1;
    });
    explore(model, &[LEASE_OVER, STALE]);
}

#[test]
fn two_tasks_keep_out_of_each_others_way() {
    let model = ShardModel::of([push(), pull()]);
    let model = model.passing([SHORT, LONG]).with(|left| left.crashes = 1);
    explore(model, &[UNKNOWN, LEASE_OVER]);
}

// ---------------------------------------------------------------- planted faults

#[test]
fn planted_without_the_fence_an_old_owner_undoes_what_the_new_one_did() {
    let plant = |faults: &mut Faults| faults.takes_any_epoch = true;
    let pull = a_pull().with(|left| left.replaces = 1);
    let acts = counterexample(&pull, Promise::NoNumberTwice, plant);
    assert!(acts.contains(&Act::Commit(Who::Zombie)), "{acts:?}");
    let push = a_push(|push| push).with(|left| left.replaces = 1);
    for promise in [Promise::EndsAreFinal, Promise::NothingLost] {
        let acts = counterexample(&push, promise, plant);
        assert!(acts.contains(&Act::Commit(Who::Zombie)), "{acts:?}");
    }
}

#[test]
fn planted_without_tokens_a_late_answer_counts_for_somebody_elses_attempt() {
    let plant = |faults: &mut Faults| faults.takes_any_token = true;
    let acts = counterexample(&a_pull(), Promise::InTimeCounts, plant);
    let asks = acts
        .iter()
        .filter(|act| matches!(act, Act::Ask(Asked::Lease(_))));
    assert_eq!(asks.count(), 2, "{acts:?}");
}

#[test]
fn planted_acting_before_the_commit_loses_what_was_acknowledged_and_starts_twice() {
    let plant = |faults: &mut Faults| faults.acts_before_its_commit = true;
    let mut created = a_pull();
    created.begins_with_its_tasks = false;
    let once = push().at_most_once().due_in(LONG);
    let once = ShardModel::of([once]).passing([LONG, LONG]);
    for (model, promise) in [
        (created, Promise::NothingLost),
        (a_pull(), Promise::NoNumberTwice),
        (once, Promise::AtMostOnce),
    ] {
        let model = model.with(|left| left.crashes = 1);
        let acts = counterexample(&model, promise, plant);
        assert!(acts.contains(&Act::Crash), "{acts:?}");
    }
}

#[test]
fn planted_a_rescue_that_ignores_a_fresh_answer_takes_a_lease_that_was_kept() {
    let plant = |faults: &mut Faults| faults.gives_up_blindly = true;
    for promise in [Promise::InTimeCounts, Promise::OneHolder] {
        let acts = counterexample(&a_pull(), promise, plant);
        let beat = |act: &Act| matches!(act, Act::Ask(Asked::Beat(..)));
        let given_up = |act: &Act| matches!(act, Act::GiveUp(_));
        let kept = acts.iter().position(beat);
        assert!(
            kept < acts.iter().position(given_up) && kept.is_some(),
            "{acts:?}"
        );
    }
}

#[test]
fn planted_an_old_owner_that_overlooks_its_kill_switch_starts_what_another_has_started() {
    let plant = |faults: &mut Faults| faults.overlooks_its_kill = true;
    let push = a_push(|push| push).with(|left| left.replaces = 1);
    let acts = counterexample(&push, Promise::NoNumberTwice, plant);
    assert!(acts.contains(&Act::Tick(Who::Zombie)), "{acts:?}");
    let once = a_push(TaskFixture::at_most_once).with(|left| left.replaces = 1);
    counterexample(&once, Promise::AtMostOnce, plant);
}
