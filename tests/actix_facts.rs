//! What our supervision rests on: how actix 0.13.5 behaves when things go wrong. Each test pins one fact that
//! the design answers to; when an upgrade makes one fail, `watchdog` and the actors must be looked at again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use actix::prelude::*;

/// Longest wait for a signal that must come.
const SOON: Duration = Duration::from_secs(20);
/// Wait for a signal that must not come.
const A_WHILE: Duration = Duration::from_millis(60);

/// Says how it was dropped: `true` while a panic unwinds.
struct TellsItsDrop(Sender<bool>);

impl Drop for TellsItsDrop {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::panicking());
    }
}

/// An actor that counts what it is told and tells what happens to it.
struct Subject {
    count: usize,
    restarts: usize,
    ticks: Option<Sender<()>>,
    stopped: Sender<bool>,
    _guard: TellsItsDrop,
}

/// The other ends of a [`Subject`].
struct Ears {
    stopped: Receiver<bool>,
    dropped: Receiver<bool>,
}

impl Subject {
    fn new() -> (Self, Ears) {
        let ((tell_stopped, stopped), (tell_dropped, dropped)) = (mpsc::channel(), mpsc::channel());
        let subject = Self {
            count: 0,
            restarts: 0,
            ticks: None,
            stopped: tell_stopped,
            _guard: TellsItsDrop(tell_dropped),
        };
        (subject, Ears { stopped, dropped })
    }
}

impl Actor for Subject {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(ticks) = self.ticks.clone() {
            ctx.run_interval(Duration::from_millis(1), move |_, _| {
                let _ = ticks.send(());
            });
        }
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        let _ = self.stopped.send(std::thread::panicking());
    }
}

impl Supervised for Subject {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarts += 1;
    }
}

/// Counts, and answers with the count and the number of restarts.
#[derive(Message)]
#[rtype(result = "(usize, usize)")]
struct Count;

impl Handler<Count> for Subject {
    type Result = MessageResult<Count>;

    fn handle(&mut self, _: Count, _: &mut Context<Self>) -> Self::Result {
        self.count += 1;
        MessageResult((self.count, self.restarts))
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Panic;

impl Handler<Panic> for Subject {
    type Result = ();

    fn handle(&mut self, _: Panic, _: &mut Context<Self>) {
        panic!("a test's panic");
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Stop;

impl Handler<Stop> for Subject {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Tells that it was handled.
#[derive(Message)]
#[rtype(result = "()")]
struct Tell(Sender<()>);

impl Handler<Tell> for Subject {
    type Result = ();

    fn handle(&mut self, tell: Tell, _: &mut Context<Self>) {
        let _ = tell.0.send(());
    }
}

/// Blocks the actor's thread until released; tells when it begins and when it is done.
#[derive(Message)]
#[rtype(result = "()")]
struct Block {
    begun: Sender<()>,
    release: Receiver<()>,
    done: Sender<()>,
}

/// The test's ends of a [`Block`].
struct Blocked {
    begun: Receiver<()>,
    release: Sender<()>,
    done: Receiver<()>,
}

impl Block {
    fn new() -> (Self, Blocked) {
        let ((begun, has_begun), (release, released)) = (mpsc::channel(), mpsc::channel());
        let (done, is_done) = mpsc::channel();
        let block = Self {
            begun,
            release: released,
            done,
        };
        let blocked = Blocked {
            begun: has_begun,
            release,
            done: is_done,
        };
        (block, blocked)
    }

    fn run(self) {
        let _ = self.begun.send(());
        let _ = self.release.recv_timeout(SOON);
        let _ = self.done.send(());
    }
}

impl Handler<Block> for Subject {
    type Result = ();

    fn handle(&mut self, block: Block, _: &mut Context<Self>) {
        block.run();
    }
}

#[test]
fn a_supervised_actor_that_panics_is_gone_and_so_is_its_supervisor() {
    System::new().block_on(async {
        let (subject, ears) = Subject::new();
        let addr = Supervisor::start(|_| subject);
        assert_eq!(addr.send(Count).await, Ok((1, 0)));
        assert_eq!(addr.send(Panic).await, Err(MailboxError::Closed));
        assert!(ears.dropped.recv_timeout(SOON).is_ok());
        assert!(!addr.connected());
        assert_eq!(addr.send(Count).await, Err(MailboxError::Closed));
    });
}

#[test]
fn do_send_to_a_dead_actor_drops_the_message_without_a_word() {
    System::new().block_on(async {
        let (subject, _ears) = Subject::new();
        let addr = Supervisor::start(|_| subject);
        assert_eq!(addr.send(Panic).await, Err(MailboxError::Closed));
        let (tell, hear) = mpsc::channel();
        addr.do_send(Tell(tell));
        // The message, and with it the only sender, is gone; nothing was told.
        assert_eq!(hear.try_recv(), Err(TryRecvError::Disconnected));
    });
}

#[test]
fn a_supervised_actor_that_stops_comes_back_as_the_same_value() {
    System::new().block_on(async {
        let (subject, ears) = Subject::new();
        let addr = Supervisor::start(|_| subject);
        for round in 1..=50 {
            assert_eq!(addr.send(Count).await, Ok((round, round - 1)));
            assert_eq!(addr.send(Stop).await, Ok(()));
            assert_eq!(ears.stopped.recv_timeout(SOON), Ok(false));
        }
        // 50 restarts in no time: there is no limit, and no state was rebuilt.
        assert_eq!(addr.send(Count).await, Ok((51, 50)));
        assert_eq!(ears.dropped.try_recv(), Err(TryRecvError::Empty));
    });
}

#[test]
fn a_panic_runs_stopped_and_drops_the_actor_while_it_unwinds() {
    System::new().block_on(async {
        let (subject, ears) = Subject::new();
        let addr = subject.start();
        assert_eq!(addr.send(Panic).await, Err(MailboxError::Closed));
        assert_eq!(ears.stopped.recv_timeout(SOON), Ok(true));
        assert_eq!(ears.dropped.recv_timeout(SOON), Ok(true));
    });
}

#[test]
fn a_panic_leaves_the_other_actors_of_the_arbiter_alone() {
    System::new().block_on(async {
        let ((one, _one_ears), (other, _other_ears)) = (Subject::new(), Subject::new());
        let (one, other) = (one.start(), other.start());
        assert_eq!(one.send(Panic).await, Err(MailboxError::Closed));
        assert_eq!(other.send(Count).await, Ok((1, 0)));
    });
}

#[test]
fn stopping_an_arbiter_never_reaches_a_thread_that_is_blocked() {
    let system = System::new();
    let arbiter = system.block_on(async { Arbiter::new() });
    let (block, blocked) = Block::new();
    assert!(arbiter.spawn_fn(|| block.run()));
    assert_eq!(blocked.begun.recv_timeout(SOON), Ok(()));
    assert!(arbiter.stop(), "the message goes out");
    // Nobody reads it: the thread is where it was, and its arbiter calls itself alive.
    assert_eq!(
        blocked.done.recv_timeout(A_WHILE),
        Err(RecvTimeoutError::Timeout)
    );
    assert!(arbiter.alive());
    assert_eq!(blocked.release.send(()), Ok(()));
    assert_eq!(
        blocked.done.recv_timeout(SOON),
        Ok(()),
        "it ran on to the end"
    );
    assert!(arbiter.join().is_ok());
}

#[test]
fn run_interval_fires_missed_ticks_in_a_burst() {
    struct Ticker {
        turns: Arc<AtomicUsize>,
        ticks: Sender<usize>,
    }

    impl Actor for Ticker {
        type Context = Context<Self>;

        fn started(&mut self, ctx: &mut Context<Self>) {
            ctx.run_interval(Duration::from_millis(2), |ticker, _| {
                let _ = ticker.ticks.send(ticker.turns.load(Ordering::Relaxed));
            });
        }
    }

    System::new().block_on(async {
        let turns = Arc::new(AtomicUsize::new(0));
        let (ticks, ticked) = mpsc::channel();
        let _ticker = Ticker {
            turns: turns.clone(),
            ticks,
        }
        .start();
        let give_way = async || {
            turns.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        };
        // The actor begins its interval, then its thread is blocked for many ticks.
        give_way().await;
        let (_never, nothing) = mpsc::channel::<()>();
        assert_eq!(
            nothing.recv_timeout(A_WHILE),
            Err(RecvTimeoutError::Timeout)
        );
        let mut seen: Vec<usize> = Vec::new();
        let began = Instant::now();
        while seen.len() < 20 && began.elapsed() < SOON {
            give_way().await;
            seen.extend(ticked.try_iter());
        }
        // Ticks of one turn came without anybody else getting one in between.
        let most = seen.chunk_by(|a, b| a == b).map(<[usize]>::len).max();
        assert!(most >= Some(15), "ticks by turn of the loop: {seen:?}");
    });
}

#[test]
fn ctx_wait_silences_mailbox_and_intervals() {
    #[derive(Message)]
    #[rtype(result = "()")]
    struct WaitFor(tokio::sync::oneshot::Receiver<()>);

    impl Handler<WaitFor> for Subject {
        type Result = ();

        fn handle(&mut self, WaitFor(end): WaitFor, ctx: &mut Context<Self>) {
            ctx.wait(async { drop(end.await) }.into_actor(self));
        }
    }

    let system = System::new();
    let arbiter = system.block_on(async { Arbiter::new() });
    let (tick, ticks) = mpsc::channel();
    let (subject, _ears) = Subject::new();
    let addr = Subject::start_in_arbiter(&arbiter.handle(), move |_| Subject {
        ticks: Some(tick),
        ..subject
    });
    assert_eq!(ticks.recv_timeout(SOON), Ok(()));

    let (end, ended) = tokio::sync::oneshot::channel();
    let wait = addr.send(WaitFor(ended));
    assert_eq!(system.block_on(wait), Ok(()));
    while ticks.try_recv().is_ok() {}
    let (tell, hear) = mpsc::channel();
    addr.do_send(Tell(tell));
    let silence = Err(RecvTimeoutError::Timeout);
    assert_eq!(hear.recv_timeout(A_WHILE), silence);
    assert_eq!(ticks.try_recv(), Err(TryRecvError::Empty));

    assert_eq!(end.send(()), Ok(()));
    assert_eq!(hear.recv_timeout(SOON), Ok(()));
    assert_eq!(ticks.recv_timeout(SOON), Ok(()));
    arbiter.stop();
    assert!(arbiter.join().is_ok());
}

#[test]
fn a_sync_arbiter_loses_a_thread_at_each_panic() {
    struct Hand {
        _guard: TellsItsDrop,
    }

    impl Actor for Hand {
        type Context = SyncContext<Self>;
    }

    impl Handler<Panic> for Hand {
        type Result = ();

        fn handle(&mut self, _: Panic, _: &mut SyncContext<Self>) {
            panic!("a test's panic");
        }
    }

    System::new().block_on(async {
        let (dropped, drops) = mpsc::channel();
        let made = Arc::new(AtomicUsize::new(0));
        let making = made.clone();
        let addr = SyncArbiter::start(2, move || {
            making.fetch_add(1, Ordering::Relaxed);
            Hand {
                _guard: TellsItsDrop(dropped.clone()),
            }
        });
        for _ in 0..2 {
            assert_eq!(addr.send(Panic).await, Err(MailboxError::Closed));
            assert_eq!(drops.recv_timeout(SOON), Ok(true));
        }
        // Both hands are gone, and none was made in their place.
        assert_eq!(made.load(Ordering::Relaxed), 2);
        assert_eq!(addr.send(Panic).await, Err(MailboxError::Closed));
        assert!(drops.try_recv().is_err(), "a third hand");
    });
}

#[test]
fn mailbox_capacity_is_no_bound() {
    System::new().block_on(async {
        let (subject, _ears) = Subject::new();
        let addr = Subject::create(|ctx| {
            ctx.set_mailbox_capacity(1);
            subject
        });
        // The actor has no turn before this task awaits, so nothing leaves the mailbox meanwhile.
        assert!(addr.try_send(Count).is_ok());
        assert!(matches!(addr.try_send(Count), Err(SendError::Full(_))));
        // Each clone gets a slot of its own.
        for _ in 0..10 {
            let clone = addr.clone();
            assert!(clone.try_send(Count).is_ok());
            assert!(matches!(clone.try_send(Count), Err(SendError::Full(_))));
        }
        // `do_send` does not ask.
        for _ in 0..1000 {
            addr.do_send(Count);
        }
        assert_eq!(addr.send(Count).await, Ok((1 + 10 + 1000 + 1, 0)));
    });
}

#[test]
fn a_timeout_bounds_the_wait_and_not_the_message() {
    let system = System::new();
    let arbiter = system.block_on(async { Arbiter::new() });
    let (subject, _ears) = Subject::new();
    let addr = Subject::start_in_arbiter(&arbiter.handle(), |_| subject);
    let (block, blocked) = Block::new();
    let answer = system.block_on(async { addr.send(block).timeout(A_WHILE).await });
    assert_eq!(answer, Err(MailboxError::Timeout));
    // The caller has given up; the message is under way, and is carried out.
    assert_eq!(blocked.begun.recv_timeout(SOON), Ok(()));
    assert_eq!(blocked.release.send(()), Ok(()));
    assert_eq!(blocked.done.recv_timeout(SOON), Ok(()));
    arbiter.stop();
    assert!(arbiter.join().is_ok());
}

#[test]
fn a_queued_message_is_skipped_when_nobody_waits_for_its_answer_any_more() {
    System::new().block_on(async {
        let (subject, _ears) = Subject::new();
        let addr = subject.start();
        drop(addr.send(Count));
        assert_eq!(addr.send(Count).await, Ok((1, 0)), "only one was counted");
    });
}
