//! Plays of one shard: what would fire, to the millisecond.

use super::*;
use crate::clock::WallMs;
use crate::shard::create::Creation;
use crate::shard::messages::CreateTask;
use crate::task::model::PauseClock;
use crate::task::new_task::When;
use crate::task::spec::{Action, TopicName};
use crate::task::stage::Starts;
use crate::task::topic::{OnExisting, Topic, TopicPause, TopicSettings};
use crate::testing::fixtures::*;

struct Scene {
    play: Play,
    made: u64,
}

impl Scene {
    fn new(assume: Assumption) -> Self {
        Self::with(assume, CoreOptions::default(), TopicBook::default())
    }

    fn with(usual: Assumption, options: CoreOptions, book: TopicBook) -> Self {
        let topics = Default::default();
        let assume = Assumptions { usual, topics };
        let tally = Tally::new(START, minutes(1), 10_000);
        let play = Play::new(1, &options, &Arc::new(book), at(0), (assume, 7), tally);
        Self { play, made: 0 }
    }

    fn create(mut self, fixture: TaskFixture) -> Self {
        self.made += 1;
        let now = self.play.now();
        let task = fixture.build(now);
        let id = TaskId::with_tail(Slot::of_hash(self.made), now.wall, self.made);
        let creation = Creation {
            id,
            when: Some(When::After(task.due.remaining(now))),
            topic: task.topic,
            key: task.key,
            spec: task.spec,
            on_existing: OnExisting::Return,
            request: None,
            is_skipped: false,
        };
        let by = "test".to_owned();
        self.play.ask(id.slot(), CreateTask { creation, by });
        self
    }

    /// Plays on until then, and gives all that it came to.
    fn played(mut self, until_ms: i64) -> Played {
        while let Some(next) = self.play.next_ms().filter(|next| *next <= until_ms) {
            self.play.run_to(next);
        }
        self.play.tally.close(at(until_ms).wall, None)
    }
}

/// What happens, and when, in milliseconds from the beginning.
fn told(played: &Played) -> Vec<(&'static str, i64)> {
    let events = played.events.iter();
    events
        .map(|event| (event.what.name(), event.at.0 - START.0))
        .collect()
}

fn ends(ends: Ends) -> Assumption {
    Assumption {
        ends,
        takes: DurationMs(250),
        ..Assumption::default()
    }
}

#[test]
fn a_push_fires_at_its_instant_and_is_tried_again_as_its_ladder_says() {
    let task = task()
        .push()
        .due_in(minutes(30))
        .retry_after(minutes(1))
        .max_attempts(3);
    let played = Scene::new(ends(Ends::Fail)).create(task).played(10_000_000);
    assert_eq!(
        told(&played),
        [
            ("fire", 1_800_000),
            ("retry", 1_860_250),
            ("retry", 1_920_500),
            ("dead", 1_920_750)
        ]
    );
    let attempts: Vec<u32> = played.events.iter().map(|event| event.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 3]);
    let starts: Vec<_> = played
        .buckets
        .iter()
        .map(|(begins, _, bucket)| (begins.0 - START.0, bucket.fires, bucket.retries))
        .collect();
    assert_eq!(
        starts
            .iter()
            .map(|(_, fires, retries)| fires + retries)
            .sum::<u64>(),
        3
    );
    assert_eq!(
        (
            played.counts.fires,
            played.counts.retries,
            played.counts.dead
        ),
        (1, 2, 1)
    );
}

#[test]
fn an_attempt_that_takes_longer_than_it_may_times_out_and_a_lost_worker_loses_its_lease() {
    let long = Assumption {
        takes: minutes(5),
        ..Assumption::default()
    };
    let push = task().push().max_attempts(1);
    let played = Scene::new(long).create(push).played(1_000_000);
    assert_eq!(told(&played), [("fire", 0), ("dead", 30_000)]);
    let pull = task().max_attempts(1);
    let played = Scene::new(ends(Ends::TimeOut))
        .create(pull.clone())
        .played(1_000_000);
    assert_eq!(told(&played), [("fire", 0), ("dead", 30_000)]);
    let played = Scene::new(ends(Ends::Succeed))
        .create(pull)
        .played(1_000_000);
    assert_eq!(
        (told(&played), played.counts.succeeded),
        (vec![("fire", 0)], 1)
    );
}

#[test]
fn no_more_run_at_once_than_may_and_who_waits_is_late() {
    let options = CoreOptions {
        running_max: 4,
        per_host_max: 2,
        ..CoreOptions::default()
    };
    let mut scene = Scene::with(ends(Ends::Succeed), options, TopicBook::default());
    for _ in 0..6 {
        scene = scene.create(task().push());
    }
    let played = scene.played(60_000);
    let at: Vec<i64> = told(&played).iter().map(|(_, at)| *at).collect();
    assert_eq!(at, [0, 0, 250, 250, 500, 500]);
    let peak = |peak: Option<Peak>| peak.map(|peak| (peak.at.0 - START.0, peak.value));
    assert_eq!(peak(played.peaks.running), Some((0, 2)));
    assert_eq!(peak(played.peaks.late_ms), Some((500, 500)));
    assert_eq!(played.counts.succeeded, 6);
}

#[test]
fn stages_come_are_passed_over_and_take_over_at_their_times() {
    let nothing = || Some(Action::None);
    let task = task()
        .push()
        .stage("ask", Starts::After(minutes(60)))
        .stage_if("warn", Starts::After(minutes(90)), Some("false"), nothing())
        .stage_if("cancel", Starts::After(minutes(120)), None, nothing());
    let played = Scene::new(ends(Ends::Succeed))
        .create(task)
        .played(10_000_000);
    assert_eq!(
        told(&played),
        [
            ("fire", 3_600_000),
            ("skip", 5_400_000),
            ("stage", 7_200_000)
        ]
    );
    let stages: Vec<_> = played
        .events
        .iter()
        .map(|event| event.stage.as_ref().map(|name| name.as_str()))
        .collect();
    assert_eq!(stages, [Some("ask"), Some("warn"), Some("cancel")]);
    assert_eq!(played.counts.succeeded, 1);
}

#[test]
fn a_poll_asks_until_its_time_is_over_and_then_once_more() {
    let poll = task()
        .poll(DurationMs::secs(20), minutes(1))
        .due_in(minutes(1));
    let played = Scene::new(ends(Ends::Fail)).create(poll).played(1_000_000);
    let told = told(&played);
    let whats: Vec<&str> = told.iter().map(|(what, _)| *what).collect();
    assert_eq!(
        whats,
        ["fire", "question", "question", "question", "expire"]
    );
    assert_eq!((told[0].1, told[3].1), (60_000, 120_000));
}

#[test]
fn what_a_paused_topic_holds_back_does_not_fire() {
    let name = TopicName::parse("held").expect("a name");
    let pause = TopicPause {
        clock: PauseClock::Keep,
        since: START,
        since_steady: at(0).steady,
    };
    let topic = Topic {
        settings: TopicSettings::default(),
        pause: Some(pause),
        ..Topic::default()
    };
    let book = TopicBook::default().with(name, topic);
    let scene = Scene::with(ends(Ends::Succeed), CoreOptions::default(), book);
    let scene = scene
        .create(task().topic("held").push())
        .create(task().push());
    assert_eq!(told(&scene.played(1_000_000)), [("fire", 0)]);
}

#[test]
fn stored_tasks_go_on_where_they_stand_attempts_under_way_too() {
    let mut before = Scene::new(ends(Ends::Succeed)).create(task().push().due_in(minutes(1)));
    before = before.create(task().due_in(minutes(1)));
    let assumed = Assumption {
        takes: DurationMs(10_000),
        ..Assumption::default()
    };
    before.play.assume.usual = assumed.clone();
    while let Some(next) = before.play.next_ms().filter(|next| *next <= 60_000) {
        before.play.run_to(next);
    }
    let now = before.play.now();
    let page = crate::shard::query::PageAsk {
        limit: 10,
        scan_max: 10,
        ..Default::default()
    };
    let part = before.play.cores[0].page(&page, now);
    let stored: Vec<Task> = part
        .items
        .iter()
        .map(|(_, view)| Task::clone(&view.task))
        .collect();
    assert_eq!(
        stored
            .iter()
            .filter(|task| task.state == State::Running)
            .count(),
        2
    );
    let assume = Assumptions {
        usual: assumed,
        ..Assumptions::default()
    };
    let tally = Tally::new(now.wall, minutes(1), 100);
    let mut play = Play::new(
        1,
        &CoreOptions::default(),
        &Arc::default(),
        now,
        (assume, 7),
        tally,
    );
    play.recover(stored).expect("they read back");
    let played = Scene { play, made: 0 }.played(100_000);
    assert_eq!((played.counts.stored, played.counts.succeeded), (2, 2));
    assert_eq!(told(&played), [], "both had started before");
}

#[test]
fn chance_follows_from_the_seed() {
    let half = Assumption {
        share: 0.5,
        ..ends(Ends::Fail)
    };
    let dead = |seed: u64| {
        let mut scene = Scene::new(half.clone());
        scene.play.seed = seed;
        for _ in 0..200 {
            scene = scene.create(task().push().max_attempts(1));
        }
        let played = scene.played(60_000);
        let dead = played
            .events
            .iter()
            .filter(|event| event.what == What::Dead);
        dead.map(|event| event.at).collect::<Vec<WallMs>>().len()
    };
    assert!((70..130).contains(&dead(1)), "{}", dead(1));
    assert_eq!(dead(1), dead(1));
}
