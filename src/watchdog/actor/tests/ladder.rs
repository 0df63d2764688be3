//! The watchdog over children that hang.

use super::*;
use crate::watchdog::{Bounds, ChildContext, Supervision, ThreadPulse, Threads};

const STEP: DurationMs = DurationMs(200);

/// A default watchdog, but for what a test changes.
fn watching(
    clock: &Clock,
    children: Vec<ChildSpec>,
    change: impl FnOnce(&mut Supervision),
) -> Watchdog {
    let mut supervision = Supervision::default();
    change(&mut supervision);
    Watchdog::start_with(clock.clone(), children, supervision)
}

impl Watchdog {
    /// Time passes while the watchdog looks on; `beat` is what others do meanwhile.
    fn pass(&self, clock: &Clock, length: DurationMs, beat: impl Fn()) {
        for _ in 0..length.0 / STEP.0 {
            clock.advance(STEP);
            beat();
            self.wait_until_idle();
        }
    }
}

/// Until the bounds of silence are passed, and the grace.
fn too_long() -> DurationMs {
    DurationMs(Bounds::default().stuck.0 + 3 * STEP.0)
}

fn hang(post: &Post) -> mpsc::Sender<()> {
    let (release, until) = mpsc::channel();
    post.order(Order::Hang(until));
    release
}

#[test]
fn a_child_that_hangs_is_given_up_and_replaced_and_its_end_is_noted() {
    let (clock, post) = (by_hand(), Post::default());
    let watchdog = Watchdog::start(clock.clone(), vec![post.child("dummy-00")]);
    watchdog.wait_for("dummy-00", runs_as(1));
    let release = hang(&post);
    watchdog.pass(&clock, too_long(), || {});
    let child = watchdog.wait_for("dummy-00", runs_as(2));
    assert_eq!((child.restarts, child.quarantined), (1, 1));
    let fault = child.last_fault.expect("it is told");
    assert!(fault.starts_with("hung: dummy-00 was silent"), "{fault}");
    drop(release);
    let child = watchdog.wait_for("dummy-00", |child| child.quarantined == 0);
    assert!(runs_as(2)(&child), "its words from beyond change nothing");
    assert_eq!(post.starts(), 2);
}

#[test]
fn one_that_leaves_when_it_is_asked_is_replaced_without_quarantine() {
    let (clock, post) = (by_hand(), Post::default());
    let grace = |supervision: &mut Supervision| supervision.grace = DurationMs::secs(3_600);
    let watchdog = watching(&clock, vec![post.child("dummy-00")], grace);
    watchdog.wait_for("dummy-00", runs_as(1));
    watchdog.pass(&clock, too_long(), || {});
    let child = watchdog.wait_for("dummy-00", runs_as(2));
    assert_eq!((child.restarts, child.quarantined), (1, 0));
}

#[test]
fn one_that_lives_but_does_not_leave_when_it_is_asked_is_given_up() {
    let clock = by_hand();
    let (give, contexts) = mpsc::channel::<ChildContext>();
    let deaf = ChildSpec::new("deaf", move |context| {
        let _ = give.send(context);
        Ok(())
    });
    let watchdog = Watchdog::start(clock.clone(), vec![deaf]);
    watchdog.wait_for("deaf", runs_as(1));
    let context = contexts.recv_timeout(SOON.to_std()).expect("it started");
    let beat = || context.pulse.beat(clock.now().mono);
    watchdog.restart("deaf").expect("it is known");
    watchdog.pass(&clock, too_long(), beat);
    let child = watchdog.wait_for("deaf", runs_as(2));
    assert_eq!(child.quarantined, 1);
    let fault = "hung: it was asked to leave and did not";
    assert_eq!(child.last_fault.as_deref(), Some(fault));
    drop(context);
    watchdog.wait_for("deaf", |child| child.quarantined == 0);
}

#[test]
fn a_thread_that_hangs_costs_its_child_the_life_and_is_a_zombie_until_it_ends() {
    let clock = by_hand();
    let (give, threads) = mpsc::channel::<(ThreadPulse, Arc<Pulse>)>();
    let (post, now) = (Post::default(), clock.now().mono);
    let inner = post.child("writer").start;
    let child = ChildSpec::new("writer", move |context| {
        let journal = context.threads.watch("journal-00", now);
        let _ = give.send((journal, context.pulse.clone()));
        inner(context)
    });
    let watchdog = Watchdog::start(clock.clone(), vec![child]);
    watchdog.wait_for("writer", runs_as(1));
    let (journal, pulse) = threads.recv_timeout(SOON.to_std()).expect("it started");
    let beat = || pulse.beat(clock.now().mono);
    // A wait that was declared, as long as it may be, is no silence.
    journal.waiting(clock.now().mono, MonoMs(i64::MAX));
    watchdog.pass(&clock, Bounds::default().wait_max, beat);
    assert!(runs_as(1)(&watchdog.child("writer")));
    watchdog.pass(&clock, too_long(), beat);
    let child = watchdog.wait_for("writer", runs_as(2));
    assert_eq!(child.quarantined, 1);
    let fault = child.last_fault.expect("it is told");
    assert!(fault.starts_with("hung: journal-00 was silent"), "{fault}");
    drop(journal);
    watchdog.wait_for("writer", |child| child.quarantined == 0);
}

#[test]
fn a_thread_that_outlives_its_child_by_an_instant_is_no_zombie() {
    let (clock, post) = (by_hand(), Post::default());
    let (give, threads) = mpsc::channel::<ThreadPulse>();
    let inner = post.child("writer").start;
    let child = ChildSpec::new("writer", move |context| {
        let _ = give.send(context.threads.watch("journal-00", MonoMs(0)));
        inner(context)
    });
    let watchdog = Watchdog::start(clock.clone(), vec![child]);
    watchdog.wait_for("writer", runs_as(1));
    post.order(Order::Fail("commit failed"));
    assert_eq!(watchdog.wait_for("writer", runs_as(2)).quarantined, 0);
    watchdog.pass(&clock, LINGER, || {});
    assert_eq!(watchdog.child("writer").quarantined, 1);
    drop(threads.recv_timeout(SOON.to_std()));
    watchdog.wait_for("writer", |child| child.quarantined == 0);
}

/// A child whose first start is held until the other end is dropped, and then brings up a dummy all the same.
fn slow_starter(post: &Post) -> (ChildSpec, mpsc::Sender<()>, mpsc::Receiver<Arc<Pulse>>) {
    let (release, until) = mpsc::channel::<()>();
    let (give, pulses) = mpsc::channel();
    let (until, inner) = (Mutex::new(until), post.child("slow").start);
    let child = ChildSpec::new("slow", move |context| {
        if context.generation == Generation(1) {
            let _ = give.send(context.pulse.clone());
            let _ = until.lock().recv();
        }
        inner(context)
    });
    (child, release, pulses)
}

#[test]
fn a_start_that_says_nothing_for_too_long_is_given_up_and_what_it_brings_up_leaves() {
    let (clock, post) = (by_hand(), Post::default());
    let (child, release, _pulses) = slow_starter(&post);
    let watchdog = watching(&clock, vec![child], |supervision| {
        supervision.start_silence_max = DurationMs::secs(3);
    });
    watchdog.pass(&clock, DurationMs::secs(4), || {});
    let child = watchdog.wait_for("slow", runs_as(2));
    assert_eq!(child.quarantined, 1);
    drop(release);
    let child = watchdog.wait_for("slow", |child| child.quarantined == 0);
    assert!(runs_as(2)(&child), "{child}");
    assert_eq!(post.starts(), 2);
}

#[test]
fn a_start_that_beats_as_it_goes_takes_as_long_as_it_takes() {
    let (clock, post) = (by_hand(), Post::default());
    let (child, release, pulses) = slow_starter(&post);
    let watchdog = watching(&clock, vec![child], |supervision| {
        supervision.start_silence_max = DurationMs::secs(3);
    });
    let pulse = pulses.recv_timeout(SOON.to_std()).expect("it starts");
    let beat = || pulse.beat(clock.now().mono);
    watchdog.pass(&clock, DurationMs::secs(10), beat);
    assert_eq!(watchdog.child("slow").state, ChildState::Starting);
    drop(release);
    watchdog.wait_for("slow", runs_as(1));
}

/// What was said on the last rung.
fn told() -> (Arc<Mutex<Vec<String>>>, impl FnOnce(&mut Supervision)) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let tell = said.clone();
    let change = move |supervision: &mut Supervision| {
        supervision.last_rung = Arc::new(move |why: &str| tell.lock().push(why.to_owned()));
    };
    (said, change)
}

#[test]
fn one_zombie_too_many_is_the_last_rung_and_then_the_child_is_parked() {
    let (clock, post) = (by_hand(), Post::default());
    let (said, tell) = told();
    let watchdog = watching(&clock, vec![post.child("dummy-00")], |supervision| {
        tell(supervision);
        supervision.quarantine_max = 1;
    });
    watchdog.wait_for("dummy-00", runs_as(1));
    let first = hang(&post);
    watchdog.pass(&clock, too_long(), || {});
    watchdog.wait_for("dummy-00", runs_as(2));
    assert!(said.lock().is_empty());
    let second = hang(&post);
    watchdog.pass(&clock, too_long(), || {});
    let child = watchdog.wait_for("dummy-00", ChildStatus::is_parked);
    assert_eq!(child.quarantined, 2);
    let said = said.lock().join("\n");
    assert!(
        said.starts_with("dummy-00: it hangs, and so do 1 threads already"),
        "{said}"
    );
    drop((first, second));
    watchdog.wait_for("dummy-00", |child| child.quarantined == 0);
}

#[test]
fn what_a_zombie_holds_is_tried_for_a_few_times_and_then_is_the_last_rung() {
    let (said, tell) = told();
    let clock = by_hand();
    let holds = Arc::new(AtomicBool::new(true));
    let held = holds.clone();
    let child = ChildSpec::new("shard-00", move |_| match held.load(Ordering::SeqCst) {
        true => Err(StartFault::held("the wheel is held")),
        false => Err(StartFault::new("something else")),
    });
    let watchdog = watching(&clock, vec![child], tell);
    // Three in a row; another fault in between begins anew.
    watchdog.wait_for("shard-00", |child| child.generation == Generation(2));
    holds.store(false, Ordering::SeqCst);
    let until = |generation| {
        clock.advance(DurationMs::secs(1));
        watchdog.wait_for("shard-00", move |child| {
            child.generation == Generation(generation)
                && matches!(child.state, ChildState::BackingOff { .. })
        })
    };
    watchdog.wait_for("shard-00", |child| {
        matches!(child.state, ChildState::BackingOff { .. })
    });
    until(3);
    holds.store(true, Ordering::SeqCst);
    until(4);
    until(5);
    assert!(said.lock().is_empty());
    clock.advance(DurationMs::secs(1));
    let child = watchdog.wait_for("shard-00", ChildStatus::is_parked);
    assert_eq!(child.generation, Generation(6));
    let said = said.lock().join("\n");
    assert!(
        said.starts_with("shard-00: a thread that was given up holds what it needs")
            && said.ends_with("the wheel is held"),
        "{said}"
    );
    // Who asks for a start anew is not told of the old ones.
    watchdog.restart("shard-00").expect("it is known");
    watchdog.wait_for("shard-00", |child| {
        child.generation == Generation(8) && matches!(child.state, ChildState::BackingOff { .. })
    });
}

#[test]
fn heavy_starts_take_turns_and_light_ones_wait_for_none() {
    let (begun, begins) = mpsc::channel();
    let (release, until) = mpsc::channel::<()>();
    let until = Arc::new(Mutex::new(until));
    let heavy = |name: &'static str| {
        let (begun, until) = (begun.clone(), until.clone());
        let start = move |context: ChildContext| {
            let _ = begun.send(name);
            let _ = until.lock().recv_timeout(SOON.to_std());
            std::mem::forget(context.death);
            Ok(())
        };
        ChildSpec::new(name, start).in_turn()
    };
    let post = Post::default();
    let children = vec![heavy("a"), heavy("b"), heavy("c"), post.child("light")];
    let watchdog = watching(&by_hand(), children, |supervision| {
        supervision.starts_max = 1;
    });
    watchdog.wait_for("light", runs_as(1));
    for name in ["a", "b", "c"] {
        assert_eq!(begins.recv_timeout(SOON.to_std()), Ok(name));
        watchdog.wait_until_idle();
        assert!(begins.try_recv().is_err(), "the others wait");
        release.send(()).expect("the start waits");
        watchdog.wait_for(name, runs_as(1));
    }
}

#[test]
fn threads_that_have_ended_are_forgotten() {
    let threads = Threads::default();
    let first = threads.watch("fold-00", MonoMs(0));
    let second = threads.watch("fold-00", MonoMs(1));
    assert_eq!(threads.readings().len(), 2);
    drop(first);
    assert_eq!(threads.readings().len(), 1);
    assert!(!threads.have_ended());
    drop(second);
    assert!(threads.have_ended());
}
