//! The watchdog over children that obey.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use actix::ActorContext;
use parking_lot::Mutex;

use super::*;
use crate::clock::WallMs;
use crate::watchdog::{NamedArbiter, RestartPolicy, UnknownChild, Watchdog, named_arbiter};

const SOON: DurationMs = DurationMs::secs(20);
/// Parks at the first death.
const NEVER: RestartPolicy = RestartPolicy {
    window: DurationMs::secs(60),
    restarts_max: 0,
    backoff_first: DurationMs(0),
    backoff_max: DurationMs(0),
};

/// A child without any work: it obeys.
struct Dummy {
    _pulse: Arc<Pulse>,
    _arbiter: NamedArbiter,
    death: DeathNotice,
}

impl Actor for Dummy {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "()")]
enum Order {
    Panic,
    Fail(&'static str),
    /// Blocks its thread until the other end is dropped.
    Hang(mpsc::Receiver<()>),
    Leave,
}

impl Handler<Order> for Dummy {
    type Result = ();

    fn handle(&mut self, order: Order, ctx: &mut Context<Self>) {
        match order {
            Order::Panic => panic!("a test's panic"),
            Order::Fail(why) => {
                self.death.last_words(why);
                ctx.stop();
            }
            Order::Hang(until) => {
                let _ = until.recv();
            }
            Order::Leave => ctx.stop(),
        }
    }
}

/// Where a test finds its newest dummy, and how often one was started.
#[derive(Clone, Default)]
struct Post {
    dummy: Arc<Mutex<Option<Addr<Dummy>>>>,
    starts: Arc<Mutex<Vec<Generation>>>,
}

impl Post {
    fn child(&self, name: &str) -> ChildSpec {
        let post = self.clone();
        ChildSpec::new(name, move |context| {
            post.starts.lock().push(context.generation);
            let arbiter = named_arbiter("dummy").map_err(StartFault::new)?;
            let kill = context.kill.clone();
            let addr = Dummy::start_in_arbiter(&arbiter.handle(), move |_| Dummy {
                _pulse: context.pulse,
                _arbiter: arbiter,
                death: context.death,
            });
            let dummy = addr.clone();
            kill.on_throw(move || dummy.do_send(Order::Leave));
            *post.dummy.lock() = Some(addr);
            Ok(())
        })
    }

    fn order(&self, order: Order) {
        let dummy = self.dummy.lock().clone();
        dummy.expect("a dummy was started").do_send(order);
    }

    fn starts(&self) -> usize {
        self.starts.lock().len()
    }
}

impl Watchdog {
    fn child(&self, name: &str) -> ChildStatus {
        self.board.child(name).expect("a child of this name")
    }

    fn wait_for(&self, name: &str, wanted: impl Fn(&ChildStatus) -> bool) -> ChildStatus {
        let holds = self.board.wait_until(SOON, |children| {
            children
                .iter()
                .any(|child| child.name == name && wanted(child))
        });
        assert!(holds, "in the end: {}", self.child(name));
        self.child(name)
    }

    /// Until everything sent to the watchdog before has been handled.
    fn wait_until_idle(&self) {
        let (tell, hear) = mpsc::channel();
        self.addr.do_send(Flush(tell));
        assert_eq!(hear.recv_timeout(SOON.to_std()), Ok(()));
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Flush(mpsc::Sender<()>);

impl Handler<Flush> for WatchdogActor {
    type Result = ();

    fn handle(&mut self, Flush(tell): Flush, _: &mut Context<Self>) {
        let _ = tell.send(());
    }
}

fn by_hand() -> Clock {
    Clock::by_hand(WallMs(1_800_000_000_000))
}

fn runs_as(generation: u64) -> impl Fn(&ChildStatus) -> bool {
    move |child| child.is_running() && child.generation == Generation(generation)
}

#[test]
fn a_panicking_child_is_started_again_as_generation_2_exactly_once() {
    let (clock, post) = (by_hand(), Post::default());
    let watchdog = Watchdog::start(clock.clone(), vec![post.child("dummy-00")]);
    assert_eq!(watchdog.wait_all_running(SOON, None), Ok(()));
    post.order(Order::Panic);
    let child = watchdog.wait_for("dummy-00", runs_as(2));
    assert_eq!(child.last_fault.as_deref(), Some("panicked"));
    watchdog.wait_until_idle();
    let child = watchdog.child("dummy-00");
    assert!(runs_as(2)(&child) && child.restarts == 1, "{child}");
    assert_eq!(post.starts(), 2);
}

#[test]
fn a_child_that_fails_each_start_is_parked_after_the_pauses_of_its_policy() {
    let clock = by_hand();
    let restart = RestartPolicy {
        window: DurationMs::secs(60),
        restarts_max: 4,
        backoff_first: DurationMs(1_000),
        backoff_max: DurationMs(1_500),
    };
    let failing = ChildSpec {
        restart,
        ..ChildSpec::new("broken", |_| Err(StartFault::new("opening the store")))
    };
    let watchdog = Watchdog::start(clock.clone(), vec![failing]);
    // The first restart comes at once, so the second incarnation is the first to back off.
    for (generation, pause_ms) in [(2, 1_000), (3, 1_500), (4, 1_500)] {
        let until = clock.now().mono.after(DurationMs(pause_ms));
        let child = watchdog.wait_for("broken", |child| {
            child.generation == Generation(generation)
                && matches!(child.state, ChildState::BackingOff { .. })
        });
        assert_eq!(child.state, ChildState::BackingOff { until });
        clock.advance(DurationMs(pause_ms - 1));
        watchdog.wait_until_idle();
        assert_eq!(watchdog.child("broken"), child, "not before its time");
        clock.advance(DurationMs(1));
    }
    let child = watchdog.wait_for("broken", ChildStatus::is_parked);
    assert_eq!((child.generation, child.restarts), (Generation(5), 4));
    assert_eq!(child.last_fault.as_deref(), Some("opening the store"));
    let not_running = watchdog
        .wait_all_running(SOON, None)
        .expect_err("one is parked");
    assert_eq!(
        not_running.to_string(),
        "not running: broken g5 parked (opening the store)"
    );
    // Parked is for good, until a person asks.
    clock.advance(DurationMs::secs(3600));
    watchdog.wait_until_idle();
    assert!(watchdog.child("broken").is_parked());
    watchdog.restart("broken").expect("it is known");
    watchdog.wait_for("broken", |child| child.generation > Generation(5));
}

#[test]
fn a_fault_for_good_parks_the_child_at_once() {
    let fault = || StartFault::for_good("the store is damaged");
    let broken = ChildSpec::new("broken", move |_| Err(fault()));
    let watchdog = Watchdog::start(by_hand(), vec![broken]);
    let child = watchdog.wait_for("broken", ChildStatus::is_parked);
    assert_eq!((child.generation, child.restarts), (Generation(1), 0));
    assert_eq!(child.last_fault.as_deref(), Some("the store is damaged"));
    watchdog.restart("broken").expect("it is known");
    watchdog.wait_for("broken", |child| {
        child.generation == Generation(2) && child.is_parked()
    });
}

#[test]
fn an_excused_child_is_tried_at_a_steady_pace_never_parked_and_nothing_of_it_counts() {
    let clock = by_hand();
    let excused = Arc::new(AtomicBool::new(true));
    let holds = Arc::clone(&excused);
    let once = RestartPolicy {
        restarts_max: 1,
        ..NEVER
    };
    let failing = ChildSpec {
        restart: once,
        ..ChildSpec::new("writer", |_| Err(StartFault::new("no space left")))
    };
    let failing = failing.excused_while(move || holds.load(Ordering::SeqCst));
    let watchdog = Watchdog::start(clock.clone(), vec![failing]);
    for generation in 1..=30 {
        let until = clock.now().mono.after(EXCUSED_PAUSE);
        let child = watchdog.wait_for("writer", |child| {
            child.generation == Generation(generation)
                && matches!(child.state, ChildState::BackingOff { .. })
        });
        assert_eq!(child.state, ChildState::BackingOff { until });
        excused.store(generation < 30, Ordering::SeqCst);
        clock.advance(EXCUSED_PAUSE);
    }
    // The restart that its policy grants is still to be had.
    let child = watchdog.wait_for("writer", ChildStatus::is_parked);
    assert_eq!(child.generation, Generation(32));
    assert_eq!(child.last_fault.as_deref(), Some("no space left"));
}

#[test]
fn a_start_that_panics_is_a_failed_start() {
    let hasty = ChildSpec {
        restart: NEVER,
        ..ChildSpec::new("hasty", |_| panic!("not yet"))
    };
    let watchdog = Watchdog::start(by_hand(), vec![hasty]);
    let child = watchdog.wait_for("hasty", ChildStatus::is_parked);
    assert_eq!(child.last_fault.as_deref(), Some("start panicked: not yet"));
}

#[test]
fn what_a_failed_start_leaves_behind_is_asked_to_leave_first() {
    let post = Post::default();
    let begin = post.child("half").start;
    let half = ChildSpec {
        restart: NEVER,
        ..ChildSpec::new("half", move |context| {
            begin(context)?;
            Err(StartFault::new("half way"))
        })
    };
    let watchdog = Watchdog::start(by_hand(), vec![half]);
    // It is only over, and so parked, when the dummy's death notice has come too.
    let child = watchdog.wait_for("half", ChildStatus::is_parked);
    assert_eq!(child.last_fault.as_deref(), Some("half way"));
}

#[test]
fn a_stale_death_notice_changes_nothing() {
    let (clock, post) = (by_hand(), Post::default());
    let watchdog = Watchdog::start(clock.clone(), vec![post.child("dummy-00")]);
    watchdog.wait_for("dummy-00", runs_as(1));
    post.order(Order::Panic);
    watchdog.wait_for("dummy-00", runs_as(2));
    for generation in [0, 1, 3] {
        watchdog.addr.do_send(Died(Death {
            child: ChildId(0),
            generation: Generation(generation),
            cause: DeathCause::Stopped,
            last_words: Some("from beyond".into()),
        }));
    }
    watchdog.wait_until_idle();
    let child = watchdog.child("dummy-00");
    assert!(runs_as(2)(&child), "{child}");
    assert_eq!(child.last_fault.as_deref(), Some("panicked"));
    assert_eq!(post.starts(), 2);
}

#[test]
fn one_failing_child_does_not_disturb_the_others() {
    let (clock, post) = (by_hand(), Post::default());
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let children = vec![
        ChildSpec::new("broken", |_| Err(StartFault::new("no luck"))),
        ChildSpec::new("slow", move |_| {
            let _ = blocked.lock().recv_timeout(SOON.to_std());
            Err(StartFault::new("slow, and no luck"))
        }),
        post.child("dummy-00"),
    ];
    let watchdog = Watchdog::start(clock.clone(), children);
    watchdog.wait_for("dummy-00", runs_as(1));
    watchdog.wait_for("broken", |child| child.last_fault.is_some());
    assert_eq!(watchdog.child("slow").state, ChildState::Starting);
    post.order(Order::Fail("commit failed"));
    let child = watchdog.wait_for("dummy-00", runs_as(2));
    assert_eq!(child.last_fault.as_deref(), Some("commit failed"));
    drop(release);
}

#[test]
fn the_next_start_waits_for_the_end_of_the_last_one() {
    let (release, blocked) = mpsc::channel::<()>();
    let (tell, hear) = mpsc::channel();
    let blocked = Mutex::new(blocked);
    let child = ChildSpec::new("hasty", move |context| {
        // The notice is gone long before the start returns.
        drop(context.death);
        let _ = tell.send(());
        let _ = blocked.lock().recv_timeout(SOON.to_std());
        Ok(())
    });
    let watchdog = Watchdog::start(by_hand(), vec![child]);
    assert_eq!(hear.recv_timeout(SOON.to_std()), Ok(()));
    watchdog.wait_until_idle();
    let child = watchdog.child("hasty");
    assert_eq!(child.state, ChildState::Starting);
    assert_eq!(child.generation, Generation(1));
    release.send(()).expect("the start waits");
    let child = watchdog.wait_for("hasty", |child| child.generation == Generation(2));
    assert_eq!(child.last_fault.as_deref(), Some("stopped unasked"));
}

#[test]
fn a_long_start_is_not_held_against_a_child() {
    let (clock, post) = (by_hand(), Post::default());
    let (release, blocked) = mpsc::channel::<()>();
    let (blocked, inner) = (Mutex::new(blocked), post.child("slow").start);
    let child = ChildSpec::new("slow", move |context| {
        let _ = blocked.lock().recv_timeout(SOON.to_std());
        inner(context)
    });
    let watchdog = Watchdog::start(clock.clone(), vec![child]);
    for _ in 0..40 {
        clock.advance(DurationMs(200));
        watchdog.wait_until_idle();
    }
    assert_eq!(watchdog.child("slow").pulse, None);
    drop(release);
    let child = watchdog.wait_for("slow", |child| child.pulse.is_some());
    assert_eq!(child.pulse.map(|pulse| pulse.verdict), Some(Verdict::Live));
}

#[test]
fn a_restart_that_was_asked_for_is_no_fault_and_wipes_the_sheet() {
    let post = Post::default();
    let restart = RestartPolicy {
        restarts_max: 1,
        ..NEVER
    };
    let child = ChildSpec {
        restart,
        ..post.child("dummy-00")
    };
    let watchdog = Watchdog::start(by_hand(), vec![child]);
    watchdog.wait_for("dummy-00", runs_as(1));
    for generation in [2, 4] {
        assert_eq!(watchdog.restart("dummy-00"), Ok(()));
        let child = watchdog.wait_for("dummy-00", runs_as(generation));
        assert_eq!(child.last_fault.is_some(), generation > 2);
        post.order(Order::Panic);
        watchdog.wait_for("dummy-00", runs_as(generation + 1));
    }
    post.order(Order::Panic);
    watchdog.wait_for("dummy-00", ChildStatus::is_parked);
    let unknown = UnknownChild("dummy-01".into());
    assert_eq!(watchdog.restart("dummy-01"), Err(unknown));
}

#[test]
fn after_shutdown_nothing_is_started_again() {
    let (clock, post) = (by_hand(), Post::default());
    let (release, blocked) = mpsc::channel::<()>();
    let (late, blocked) = (Post::default(), Mutex::new(blocked));
    let inner = late.child("late").start;
    let children = vec![
        post.child("dummy-00"),
        ChildSpec::new("late", move |context| {
            let _ = blocked.lock().recv_timeout(SOON.to_std());
            inner(context)
        }),
    ];
    let watchdog = Watchdog::start(clock.clone(), children);
    watchdog.wait_for("dummy-00", runs_as(1));
    watchdog.shutdown();
    // One that runs is asked to leave.
    watchdog.wait_for("dummy-00", |child| child.state == ChildState::Stopped);
    // One that comes up afterwards is asked to leave.
    drop(release);
    watchdog.wait_for("late", |child| child.state == ChildState::Stopped);
    watchdog.restart("dummy-00").expect("it is known");
    watchdog.wait_until_idle();
    assert_eq!(watchdog.child("dummy-00").state, ChildState::Stopped);
    assert_eq!((post.starts(), late.starts()), (1, 1));
}

#[test]
fn a_silent_child_is_shown_as_stuck_but_not_for_the_watchdogs_own_absence() {
    let (clock, post) = (by_hand(), Post::default());
    let watchdog = Watchdog::start(clock.clone(), vec![post.child("dummy-00")]);
    watchdog.wait_for("dummy-00", runs_as(1));
    let shown = |watchdog: &Watchdog| {
        watchdog.wait_until_idle();
        let pulse = watchdog.child("dummy-00").pulse;
        pulse.map(|pulse| pulse.verdict)
    };
    // The whole process stood still: no verdict on anybody.
    clock.advance(DurationMs::secs(3600));
    assert_eq!(shown(&watchdog), Some(Verdict::Live));
    // The watchdog looks on while the child says nothing, and does not hear that it is to leave.
    let (_release, until) = mpsc::channel();
    post.order(Order::Hang(until));
    let mut seen = Vec::new();
    for _ in 0..40 {
        clock.advance(DurationMs(200));
        seen.extend(shown(&watchdog));
    }
    seen.dedup();
    assert_eq!(seen[..3], [Verdict::Live, Verdict::Late, Verdict::Stuck]);
}

#[cfg(target_os = "linux")]
#[test]
fn the_watchdog_has_a_thread_of_its_own_under_its_name() {
    let watchdog = Watchdog::start(Clock::machine(), Vec::new());
    let began = watchdog.board().watchdog_pulse().beat;
    let beats = |_: &[ChildStatus]| watchdog.board.watchdog_pulse().beat > began;
    assert!(watchdog.board().wait_until(SOON, beats), "no rounds");
    let tasks = std::fs::read_dir("/proc/self/task").expect("a list of threads");
    let names = tasks.flatten().map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.unwrap_or_default().trim_end().to_owned()
    });
    assert!(names.into_iter().any(|name| name == "watchdog"));
}

#[test]
fn the_handle_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Watchdog>();
}

#[test]
#[should_panic(expected = "two children are named twin")]
fn two_children_never_share_a_name() {
    let twin = || ChildSpec::new("twin", |_| Ok(()));
    Watchdog::start(by_hand(), vec![twin(), twin()]);
}

mod ladder;
