#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::Arc;

use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use super::*;
use crate::clock::Clock;
use crate::clock::WallMs;
use crate::engine::registry::kind::Resource;
use crate::shard::messages::Target;
use crate::task::model::{State, Task};
use crate::task::spec::{TaskKey, TopicName};
use crate::wire::due::InLimits;

/// Longest wait for what must come.
const SOON: Duration = Duration::from_secs(20);
const HOUR: DurationMs = DurationMs::secs(3600);

fn at(text: &str) -> WallMs {
    WallMs(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

/// An engine on a clock that is moved by hand, whose handler `note` tells what it is given.
struct Center {
    engine: Duetime,
    clock: Clock,
    data: TempDir,
    ran: UnboundedReceiver<String>,
    /// A permit for each call of the handler `wait`.
    gate: Arc<Semaphore>,
}

impl Center {
    async fn at(now: &str) -> Self {
        Self::over(tempfile::tempdir().unwrap(), now).await
    }

    async fn over(data: TempDir, now: &str) -> Self {
        let clock = Clock::by_hand(at(now));
        let (tell, ran) = unbounded_channel();
        let gate = Arc::new(Semaphore::new(0));
        let (tell_too, open) = (tell.clone(), Arc::clone(&gate));
        let key = |task: &crate::HandlerTask| task.key.as_ref().unwrap().to_string();
        let engine = Duetime::builder()
            .data_dir(data.path())
            .shards(2)
            .clock(clock.clone())
            .grace(DurationMs(0))
            .handler("note", move |task| {
                let _ = tell.send(key(&task));
                async { Ok(None) }
            })
            .handler("wait", move |task| {
                let _ = tell_too.send(key(&task));
                let open = Arc::clone(&open);
                async move {
                    open.acquire().await.unwrap().forget();
                    Ok(None)
                }
            })
            .start()
            .await
            .unwrap();
        // Hours pass at once here, and no attempt is to run out of time by it.
        let body = r#"{"timeouts": {"attempt": "PT20H"}}"#;
        let limits = InLimits {
            max_delay: engine.max_delay(),
            now: engine.now().wall,
        };
        let settings = crate::wire::topic::settings(body.as_bytes(), &limits).unwrap();
        let topic = TopicName::parse("t").unwrap();
        let put = engine
            .put_topic(topic, body.to_owned(), settings, "test")
            .await;
        put.unwrap();
        Self {
            engine,
            clock,
            data,
            ran,
            gate,
        }
    }

    /// As if the process had been stopped and was started at another time.
    async fn restarted(self, now: &str) -> Self {
        self.engine.shutdown().await;
        Self::over(self.data, now).await
    }

    async fn put(&self, name: &str, fields: &str) {
        let body =
            format!(r#"{{"topic": "t", "action": {{"handler": {{"name": "note"}}}}, {fields}}}"#);
        let limits = InLimits {
            max_delay: self.engine.max_delay(),
            now: self.engine.now().wall,
        };
        // The later of two fields of one name would be refused.
        let body = match fields.contains("\"action\"") {
            true => body.replacen(r#""action": {"handler": {"name": "note"}}, "#, "", 1),
            false => body,
        };
        let meaning = Schedule::read(body.as_bytes(), &limits).unwrap();
        let put = self
            .engine
            .put_resource(named(name), body, meaning, "test")
            .await;
        let version = put.unwrap().kept.version;
        let is_it =
            |position: &Position| position.version == version && position.stored_ms.is_some();
        self.until(name, is_it).await;
    }

    /// Waits until a schedule's position is so.
    async fn until(&self, name: &str, is_so: impl Fn(&Position) -> bool) -> Position {
        let end = Instant::now() + SOON;
        loop {
            let position = self.engine.schedule_position(&named(name));
            match position {
                Some(position) if is_so(&position) => return position,
                other => assert!(Instant::now() < end, "{name}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the next occurrence is stored and none is overdue.
    async fn settled(&self, name: &str) -> Position {
        let now = self.engine.now().wall.0;
        self.until(name, |it| it.stored_ms.is_some_and(|stored| stored > now))
            .await
    }

    async fn task(&self, name: &str, time: &str) -> Option<Task> {
        let key = TaskKey::parse(&format!("{name}@{}", at(time))).unwrap();
        let target = Target::Key(TopicName::parse("t").unwrap(), key);
        let view = self.engine.get(target).await.unwrap();
        view.map(|view| Task::clone(&view.task))
    }

    async fn state(&self, name: &str, time: &str) -> Option<State> {
        self.task(name, time).await.map(|task| task.state)
    }

    async fn ends(&self, name: &str, time: &str, state: State) {
        let end = Instant::now() + SOON;
        while self.state(name, time).await != Some(state) {
            assert!(
                Instant::now() < end,
                "{name}@{time}: {:?}",
                self.state(name, time).await
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// What ran next.
    async fn next_run(&mut self) -> String {
        let next = tokio::time::timeout(SOON, self.ran.recv()).await;
        next.expect("something runs").unwrap()
    }

    fn runs(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.ran.try_recv().ok()).collect()
    }
}

fn named(name: &str) -> ResourceName {
    ResourceName::parse(name).unwrap()
}

const HOURLY: &str = r#""cron": "0 * * * *""#;

/// Case 16.
#[tokio::test]
async fn what_was_missed_while_the_service_was_down_is_caught_up_as_its_schedule_says() {
    let center = Center::at("2027-03-01T09:50:00Z").await;
    for catch_up in ["none", "latest", "all"] {
        let fields = format!(r#"{HOURLY}, "catch_up": "{catch_up}""#);
        center.put(catch_up, &fields).await;
        let stored = center.state(catch_up, "2027-03-01T10:00:00Z").await;
        assert_eq!(stored, Some(State::Pending));
    }

    let mut center = center.restarted("2027-03-01T12:10:00Z").await;
    for name in ["none", "latest", "all"] {
        assert_eq!(
            center.settled(name).await.stored_ms,
            Some(at("2027-03-01T13:00:00Z").0),
            "{name}"
        );
    }
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(center.next_run().await);
    }
    let of_all: Vec<&String> = all.iter().filter(|key| key.starts_with("all@")).collect();
    assert_eq!(
        of_all,
        [
            "all@2027-03-01T10:00:00.000Z",
            "all@2027-03-01T11:00:00.000Z",
            "all@2027-03-01T12:00:00.000Z"
        ]
    );
    assert!(all.contains(&"latest@2027-03-01T12:00:00.000Z".to_owned()));
    for (name, dropped) in [("none", "10"), ("latest", "10")] {
        let time = format!("2027-03-01T{dropped}:00:00Z");
        assert_eq!(
            center.state(name, &time).await,
            Some(State::Cancelled),
            "{name}"
        );
    }
    let made_up = center.task("latest", "2027-03-01T12:00:00Z").await.unwrap();
    assert_eq!(made_up.due.at, at("2027-03-01T12:00:00Z"));

    // A second restart adds nothing.
    let mut center = center.restarted("2027-03-01T12:11:00Z").await;
    for name in ["none", "latest", "all"] {
        center.settled(name).await;
    }
    assert_eq!(center.runs(), [""; 0]);
    center.clock.advance(HOUR);
    for name in ["none", "latest", "all"] {
        center
            .ends(name, "2027-03-01T13:00:00Z", State::Succeeded)
            .await;
        center.settled(name).await;
    }
    let mut runs = center.runs();
    runs.sort_unstable();
    assert_eq!(
        runs,
        ["all", "latest", "none"].map(|name| format!("{name}@2027-03-01T13:00:00.000Z"))
    );
    center.engine.shutdown().await;
}

/// Case 7.
#[tokio::test]
async fn a_weekly_schedule_runs_once_after_the_clocks_go_back_also_over_a_restart() {
    let center = Center::at("2021-11-05T12:00:00Z").await;
    let monday = r#""cron": "0 6 * * 1", "tz": "America/New_York""#;
    center.put("monday", monday).await;
    let mut center = center.restarted("2021-11-07T06:30:00Z").await;
    // To 2021-11-16, with a look every half hour.
    let mut runs = Vec::new();
    for _ in 0..430 {
        let stored = center.settled("monday").await.stored_ms.unwrap();
        center.clock.advance(DurationMs::secs(1800));
        if stored <= center.engine.now().wall.0 {
            runs.push(center.next_run().await);
        }
    }
    center.settled("monday").await;
    runs.extend(center.runs());
    assert_eq!(
        runs,
        [
            "monday@2021-11-08T11:00:00.000Z",
            "monday@2021-11-15T11:00:00.000Z"
        ]
    );
    center.engine.shutdown().await;
}

#[tokio::test]
async fn one_that_meets_the_one_before_is_left_out_waits_or_runs_beside_it() {
    let mut center = Center::at("2027-03-01T09:50:00Z").await;
    for overlap in ["skip", "queue", "allow"] {
        let fields = format!(
            r#"{HOURLY}, "overlap": "{overlap}", "action": {{"handler": {{"name": "wait"}}}}"#
        );
        center.put(overlap, &fields).await;
    }
    let hour = |name: &str, hour: u32| format!("{name}@2027-03-01T{hour}:00:00.000Z");
    // Up to the moment in which it is decided, and then over it.
    let next_hour = async |center: &mut Center| {
        for length in [HOUR.0 - 30, 30] {
            center.clock.advance(DurationMs(length));
            for name in ["skip", "queue", "allow"] {
                let now = center.engine.now().wall.0;
                center
                    .until(name, |it| {
                        it.is_held || it.stored_ms.is_some_and(|at| at > now + 60)
                    })
                    .await;
            }
        }
    };
    center.clock.advance(DurationMs::secs(600));
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(center.next_run().await);
    }
    first.sort_unstable();
    assert_eq!(first, ["allow", "queue", "skip"].map(|name| hour(name, 10)));
    for name in ["skip", "queue", "allow"] {
        center.settled(name).await;
    }
    next_hour(&mut center).await;
    assert_eq!(center.next_run().await, hour("allow", 11));
    assert_eq!(
        center.state("skip", "2027-03-01T11:00:00Z").await,
        Some(State::Cancelled)
    );
    center
        .ends("queue", "2027-03-01T11:00:00Z", State::Paused)
        .await;
    // All that run end: the one that waited runs.
    center.gate.add_permits(100);
    assert_eq!(center.next_run().await, hour("queue", 11));
    center
        .ends("queue", "2027-03-01T11:00:00Z", State::Succeeded)
        .await;
    center.settled("queue").await;
    next_hour(&mut center).await;
    let mut last = Vec::new();
    for _ in 0..3 {
        last.push(center.next_run().await);
    }
    last.sort_unstable();
    assert_eq!(last, ["allow", "queue", "skip"].map(|name| hour(name, 12)));
    center.engine.shutdown().await;
}

#[tokio::test]
async fn one_whose_predecessor_runs_is_held_before_its_time_and_runs_on_time_if_that_ends() {
    let mut center = Center::at("2027-03-01T09:50:00Z").await;
    let fields = format!(r#"{HOURLY}, "action": {{"handler": {{"name": "wait"}}}}"#);
    center.put("hourly", &fields).await;
    center.clock.advance(DurationMs::secs(600));
    center.next_run().await;
    center.settled("hourly").await;
    // Nobody has decided yet, and it could not begin.
    center.clock.advance(DurationMs(HOUR.0 - 400));
    let eleven = "2027-03-01T11:00:00Z";
    center.ends("hourly", eleven, State::Paused).await;
    center.gate.add_permits(100);
    center
        .ends("hourly", "2027-03-01T10:00:00Z", State::Succeeded)
        .await;
    center.clock.advance(DurationMs(350));
    center.until("hourly", |it| !it.is_held).await;
    assert_eq!(center.state("hourly", eleven).await, Some(State::Pending));
    center.clock.advance(DurationMs(50));
    assert_eq!(center.next_run().await, "hourly@2027-03-01T11:00:00.000Z");
    center.engine.shutdown().await;
}

#[tokio::test]
async fn the_next_one_is_stored_before_its_predecessor_fires_and_no_other_waits() {
    let center = Center::at("2027-03-01T09:50:00Z").await;
    center.put("hourly", HOURLY).await;
    assert_eq!(center.state("hourly", "2027-03-01T11:00:00Z").await, None);
    center.clock.advance(DurationMs::secs(600 - 1));
    center.settled("hourly").await;
    assert_eq!(center.state("hourly", "2027-03-01T11:00:00Z").await, None);
    center.clock.advance(DurationMs(950));
    center
        .until("hourly", |it| {
            it.stored_ms == Some(at("2027-03-01T11:00:00Z").0)
        })
        .await;
    let stored = center.task("hourly", "2027-03-01T11:00:00Z").await.unwrap();
    assert_eq!(stored.state, State::Pending);
    let first = center.task("hourly", "2027-03-01T10:00:00Z").await.unwrap();
    assert_eq!((first.state, first.attempts), (State::Pending, 0));
    center.engine.shutdown().await;
}

#[tokio::test]
async fn a_step_that_a_crash_cut_off_makes_no_occurrence_twice() {
    let mut center = Center::at("2027-03-01T09:50:00Z").await;
    center
        .put("all", &format!(r#"{HOURLY}, "catch_up": "all""#))
        .await;
    let before = center.settled("all").await;
    center.clock.advance(HOUR);
    assert_eq!(center.next_run().await, "all@2027-03-01T10:00:00.000Z");
    center
        .ends("all", "2027-03-01T10:00:00Z", State::Succeeded)
        .await;
    center.settled("all").await;
    // The task of 11:00 was made, and 10:00 has run; the position knows of neither.
    let positions = vec![(named("all"), Some(before.text()))];
    let stored = center
        .engine
        .ask_registry(StorePositions { positions })
        .await;
    stored.unwrap();
    let mut center = center.restarted("2027-03-01T11:30:00Z").await;
    assert_eq!(center.next_run().await, "all@2027-03-01T11:00:00.000Z");
    let position = center.settled("all").await;
    assert_eq!(position.stored_ms, Some(at("2027-03-01T12:00:00Z").0));
    assert_eq!(center.runs(), [""; 0]);
    center.engine.shutdown().await;
}

#[tokio::test]
async fn a_schedule_is_paused_run_by_hand_resumed_replaced_and_deleted() {
    let mut center = Center::at("2027-03-01T09:50:00Z").await;
    center.put("hourly", HOURLY).await;
    let name = named("hourly");
    center
        .engine
        .pause_schedule(name.clone(), "test")
        .await
        .unwrap();
    let ten = "2027-03-01T10:00:00Z";
    assert_eq!(center.state("hourly", ten).await, Some(State::Cancelled));
    center.clock.advance(DurationMs::secs(1800));
    let run = center.engine.run_schedule_now(&name, None, "test").await;
    assert!(matches!(run, Ok(Created::New(_))));
    assert_eq!(center.next_run().await, "hourly@2027-03-01T10:20:00.000Z");
    center
        .engine
        .resume_schedule(name.clone(), "test")
        .await
        .unwrap();
    let position = center.settled("hourly").await;
    assert_eq!(position.stored_ms, Some(at("2027-03-01T11:00:00Z").0));
    // Held and let go in the same hour: 11:00 is made a second time.
    center
        .engine
        .pause_schedule(name.clone(), "test")
        .await
        .unwrap();
    center.clock.advance(DurationMs(1_000));
    center
        .engine
        .resume_schedule(name.clone(), "test")
        .await
        .unwrap();
    center.settled("hourly").await;
    assert_eq!(
        center.state("hourly", "2027-03-01T11:00:00Z").await,
        Some(State::Pending)
    );
    // Another time: the stored one is called off.
    center.put("hourly", r#""cron": "30 * * * *""#).await;
    assert_eq!(
        center.state("hourly", "2027-03-01T11:00:00Z").await,
        Some(State::Cancelled)
    );
    assert_eq!(
        center.state("hourly", "2027-03-01T10:30:00Z").await,
        Some(State::Pending)
    );
    center
        .engine
        .delete_schedule(name.clone(), "test")
        .await
        .unwrap();
    assert_eq!(
        center.state("hourly", "2027-03-01T10:30:00Z").await,
        Some(State::Cancelled)
    );
    let gone = center.engine.pause_schedule(name, "test").await;
    assert!(matches!(
        gone,
        Err(EngineError::Registry(RegistryError::Unknown { .. }))
    ));
    center.clock.advance(HOUR);
    let mut center = center.restarted("2027-03-01T14:00:00Z").await;
    assert_eq!(center.runs(), [""; 0]);
    center.engine.shutdown().await;
}

#[tokio::test]
async fn what_is_paused_or_deleted_in_the_last_moments_before_an_occurrence_does_not_run_it() {
    let (ten, eleven) = ("2027-03-01T10:00:00Z", "2027-03-01T11:00:00Z");
    for (before, handed_out) in [(50, false), (5, true)] {
        for is_deleted in [false, true] {
            let mut center = Center::at("2027-03-01T09:50:00Z").await;
            center.put("hourly", HOURLY).await;
            center.clock.advance(DurationMs(600_000 - before));
            let let_go = |it: &Position| it.stored_ms == Some(at(eleven).0);
            center.until("hourly", let_go).await;
            if handed_out {
                center.ends("hourly", ten, State::Dispatched).await;
            }
            let name = named("hourly");
            if is_deleted {
                center.engine.delete_schedule(name, "test").await.unwrap();
            } else {
                center.engine.pause_schedule(name, "test").await.unwrap();
                let position = center.engine.schedule_position(&named("hourly")).unwrap();
                assert_eq!((position.runs, position.stored_ms), (0, None));
            }
            for time in [ten, eleven] {
                let state = center.state("hourly", time).await;
                assert_eq!(state, Some(State::Cancelled), "{time} {before} ms");
            }
            center.clock.advance(HOUR);
            // What would have run is over before this one is.
            center.put("other", r#""cron": "30 * * * *""#).await;
            center.clock.advance(HOUR);
            assert_eq!(center.next_run().await, "other@2027-03-01T11:30:00.000Z");
            center.engine.shutdown().await;
        }
    }
}

#[tokio::test]
async fn a_schedule_ends_after_its_count_and_after_its_end() {
    let mut center = Center::at("2027-03-01T09:50:00Z").await;
    center.put("two", &format!(r#"{HOURLY}, "count": 2"#)).await;
    center
        .put(
            "till",
            &format!(r#"{HOURLY}, "end": "2027-03-01T10:30:00Z""#),
        )
        .await;
    for _ in 0..4 {
        center.clock.advance(HOUR);
        let (now, two) = (center.engine.now().wall.0, named("two"));
        for name in ["two", "till"] {
            center
                .until(name, |it| it.stored_ms.is_none_or(|stored| stored > now))
                .await;
        }
        let runs = center.engine.schedule_position(&two).unwrap().runs;
        assert!(runs <= 2);
    }
    center
        .ends("two", "2027-03-01T11:00:00Z", State::Succeeded)
        .await;
    center
        .ends("till", "2027-03-01T10:00:00Z", State::Succeeded)
        .await;
    let mut runs = center.runs();
    runs.sort_unstable();
    let hours = [
        "till@2027-03-01T10",
        "two@2027-03-01T10",
        "two@2027-03-01T11",
    ];
    assert_eq!(runs, hours.map(|hour| format!("{hour}:00:00.000Z")));
    center.engine.shutdown().await;
}
