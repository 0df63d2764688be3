//! Several ends at one instant: exactly one of them counts, ten thousand times over.
//!
//! Each trial is one task in a shard of its own. What could end it comes within a few milliseconds of the same instant, in
//! an order that a seed decides; in one step or in several, before or after what rings in it, as the actor would have it.
//! Then all else runs out, and the books are opened: one change to an end, by the one who was told that it counted.

use std::collections::BTreeMap;

use super::shell::{finish, recovered, verb};
use super::*;
use crate::clock::Clock;
use crate::ids::Slot;
use crate::store::mem::MemDisk;
use crate::task::outcome::Outcome;
use crate::task::spec::RawJson;

const TRIALS: u64 = 10_000;
/// When it all happens.
const AT_MS: i64 = 20_000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    fn flips(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// One task in a shard of its own.
struct Trial {
    core: ShardCore,
    clock: Clock,
    random: Random,
    id: TaskId,
    launched: Vec<Launch>,
}

impl Trial {
    fn of(fixture: TaskFixture, seed: u64) -> Self {
        let clock = Clock::by_hand(START);
        let disk = MemDisk::new();
        let (mut core, ..) = recovered(&disk, &CoreOptions::default(), Arc::default(), &clock);
        let mut task = fixture.build(clock.now());
        task.id = TaskId::with_tail(Slot::of_hash(seed), START, seed);
        let id = task.id;
        core.add(task, clock.now());
        let (random, launched) = (Random(seed), Vec::new());
        let mut trial = Self {
            core,
            clock,
            random,
            id,
            launched,
        };
        trial.turn();
        trial
    }

    /// A step: what rings, what is written, what starts.
    fn turn(&mut self) {
        let now = self.clock.now();
        self.core.advance(now);
        for effect in self.core.close(now).effects {
            match effect {
                Effect::Arm(armed) => self.core.arm(armed),
                Effect::Stop(_) | Effect::Over(_) | Effect::Ready(..) => {}
            }
        }
        let now = self.clock.now();
        self.launched.extend(self.core.launch(now));
    }

    fn put<Q: Question>(&mut self, question: Q) -> Q::Answer {
        let now = self.clock.now();
        question.put(&mut self.core, now)
    }

    fn task(&mut self) -> Arc<Task> {
        self.core.table.read(self.id).unwrap().task
    }

    /// Lets everything happen around the instant: each at a time of its own, in any order, with steps in between or not.
    fn happen(&mut self, mut acts: Vec<&mut dyn FnMut(&mut Self)>) {
        let mut times: Vec<(i64, usize)> = (0..acts.len())
            .map(|act| (AT_MS - 2 + self.random.below(5) as i64, act))
            .collect();
        // Of the same millisecond any may be first.
        if self.random.flips() {
            times.reverse();
        }
        times.sort_by_key(|(time, _)| *time);
        for (time, act) in times {
            let left = time - self.clock.now().mono.0;
            self.clock.advance(DurationMs(left.max(0) as u64));
            if self.random.flips() {
                self.turn();
            }
            acts[act](self);
            if self.random.flips() {
                self.turn();
            }
        }
        self.turn();
    }

    /// The books: how it ended, once.
    fn end(&mut self) -> Arc<Task> {
        let task = self.task();
        let ends = task
            .changes
            .kept
            .iter()
            .filter(|change| change.to.is_ended());
        assert_eq!(ends.count(), 1, "never both, never neither: {task:#?}");
        assert!(task.state.is_ended());
        task
    }

    fn answer(&mut self, token: AttemptToken, outcome: Outcome) -> bool {
        let event = Event::Finished {
            token,
            outcome,
            started_at: None,
        };
        self.put(finish(self.id, event)).is_ok()
    }
}

fn result(text: &str) -> Option<RawJson> {
    Some(RawJson::from(text.to_owned()))
}

fn gives(text: &'static str) -> Outcome {
    Outcome::Succeeded {
        result: Some(text.as_bytes().into()),
        result_dropped: false,
    }
}

/// How often each side won: a race that one side always wins is none.
#[derive(Default, Debug)]
struct Wins(BTreeMap<&'static str, u64>);

impl Wins {
    fn note(&mut self, winner: &'static str) {
        *self.0.entry(winner).or_default() += 1;
    }

    fn assert_contested(&self, sides: &[&'static str]) {
        for side in sides {
            let won = self.0.get(side).copied().unwrap_or(0);
            assert!(won > TRIALS / 50, "{side} won {won} times: {self:?}");
        }
        assert_eq!(self.0.len(), sides.len(), "{self:?}");
        assert_eq!(self.0.values().sum::<u64>(), TRIALS);
    }
}

#[test]
fn a_completion_and_the_loss_of_its_lease_never_both_count() {
    let mut wins = Wins::default();
    for seed in 0..TRIALS {
        let mut trial = Trial::of(task().max_attempts(1), seed);
        let leases = trial.put(LeaseTasks {
            topics: [topic(USUAL)].into(),
            max: 1,
            lease: DurationMs(AT_MS as u64),
            worker: "w1".to_owned(),
        });
        trial.turn();
        let token = leases[0].token;
        let mut taken = false;
        let mut complete = |trial: &mut Trial| taken = trial.answer(token, gives("1"));
        trial.happen(vec![&mut complete]);
        trial.clock.advance(DurationMs(10));
        trial.turn();
        let task = trial.end();
        assert_eq!(task.state == State::Succeeded, taken);
        assert_eq!(task.dead_reason == Some(DeadReason::LeaseExpired), !taken);
        wins.note(if taken { "completion" } else { "loss" });
    }
    wins.assert_contested(&["completion", "loss"]);
}

#[test]
fn a_cancel_and_a_completion_never_both_count() {
    let mut wins = Wins::default();
    for seed in 0..TRIALS {
        let mut trial = Trial::of(task().push(), seed);
        let token = trial.launched[0].token;
        let (mut completed, mut cancelled) = (false, false);
        let mut complete = |trial: &mut Trial| completed = trial.answer(token, gives("1"));
        let mut cancel = |trial: &mut Trial| {
            let reason = String::new();
            let question = verb(Target::Id(trial.id), Event::Cancel { reason });
            cancelled = trial.put(question).is_ok_and(|done| done.stopping);
        };
        trial.happen(vec![&mut complete, &mut cancel]);
        assert!(completed != cancelled);
        let task = trial.end();
        assert_eq!(task.state == State::Succeeded, completed);
        assert_eq!(task.result.is_some(), completed);
        wins.note(if completed { "completion" } else { "cancel" });
    }
    wins.assert_contested(&["completion", "cancel"]);
}

#[test]
fn of_a_polls_answer_a_callback_and_the_deadline_the_first_counts_and_no_other() {
    let mut wins = Wins::default();
    for seed in 0..TRIALS {
        let for_ms = DurationMs(AT_MS as u64);
        let mut trial = Trial::of(task().poll(DurationMs::secs(600), for_ms), seed);
        let first = trial.launched[0].token;
        let (mut polled, mut called_back) = (false, false);
        // The answer to the question that is out, whichever that is by then.
        let mut answer = |trial: &mut Trial| {
            let token = match trial.random.flips() {
                true => first,
                false => trial.task().token,
            };
            polled = trial.answer(token, gives("\"polled\""));
        };
        let mut call_back = |trial: &mut Trial| {
            let result = result("\"called\"");
            let complete = Event::Complete {
                result,
                token: None,
            };
            called_back = trial.put(verb(Target::Id(trial.id), complete)).is_ok();
        };
        // Some callers don't come at all, so the deadline has its chance.
        let mut acts: Vec<&mut dyn FnMut(&mut Trial)> = Vec::new();
        let who = trial.random.below(4);
        if who != 1 {
            acts.push(&mut answer);
        }
        if who != 2 && who != 3 || trial.random.flips() {
            acts.push(&mut call_back);
        }
        trial.happen(acts);
        // The last question, if it is out, hears nothing new; or nothing at all.
        trial.clock.advance(DurationMs(10));
        trial.turn();
        let out = trial.task();
        if out.state == State::Running && trial.random.flips() {
            let answer = "200 {}".to_owned();
            assert!(trial.answer(out.token, Outcome::NotYet { answer }));
        }
        for _ in 0..40 {
            trial.clock.advance(DurationMs::secs(1));
            trial.turn();
        }
        let task = trial.end();
        assert!(!(polled && called_back), "never both");
        let won = match (polled, called_back) {
            (true, _) => "poll",
            (_, true) => "callback",
            _ => "deadline",
        };
        match won {
            "poll" => assert_eq!(task.result, result("\"polled\"")),
            "callback" => assert_eq!(task.result, result("\"called\"")),
            _ => assert_eq!(task.dead_reason, Some(DeadReason::TotalTime)),
        }
        assert!(
            trial.launched.len() <= 2,
            "and nothing is asked after the last question"
        );
        wins.note(won);
    }
    wins.assert_contested(&["poll", "callback", "deadline"]);
}
