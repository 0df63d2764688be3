//! Handlers without an engine: on a clock that a test moves, with reports that a test reads.

#![expect(
    clippy::unwrap_used,
    reason = "a test may stop at what it did not expect"
)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use serde_json::json;

use super::*;
use crate::clock::{DurationMs, Now};
use crate::executor::AttemptReport;
use crate::ids::{AttemptToken, Slot};

/// Longest wait for anything.
const SOON: Duration = Duration::from_secs(20);
/// What an attempt has, and its grace.
const TIME: DurationMs = DurationMs::secs(10);
const GRACE: DurationMs = DurationMs::secs(2);
/// An idle seat looks by itself after ten seconds.
const IDLE: Duration = Duration::from_secs(9);

/// What tests see of seats, and do to them.
#[derive(Default)]
pub(super) struct Spy {
    /// How often the watch has gone around.
    pub rounds: AtomicU64,
    threads_wanted: AtomicU64,
    no_threads: AtomicBool,
}

impl Spy {
    pub fn a_thread_is_made(&self) -> io::Result<()> {
        self.threads_wanted.fetch_add(1, Ordering::SeqCst);
        match self.no_threads.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    }
}

struct Sink(mpsc::Sender<AttemptReport>, mpsc::Sender<Option<RawJson>>);

impl ReportSink for Sink {
    fn started(&self, _: TaskId, _: AttemptToken, _: Now) {}

    fn progressed(&self, _: TaskId, _: AttemptToken, so_far: Option<RawJson>) {
        let _ = self.1.send(so_far);
    }

    fn ended(&self, report: AttemptReport) {
        // A test that is over wants no reports.
        let _ = self.0.send(report);
    }
}

/// Handlers, and what they report.
struct Bench {
    handlers: Handlers,
    clock: Clock,
    sink: Arc<dyn ReportSink>,
    reports: mpsc::Receiver<AttemptReport>,
    progress: mpsc::Receiver<Option<RawJson>>,
    made: u64,
}

impl Bench {
    fn of<const N: usize>(handlers: [(&str, Handler); N]) -> Self {
        Self::within(HandlerLimits::default(), handlers)
    }

    fn within<const N: usize>(limits: HandlerLimits, handlers: [(&str, Handler); N]) -> Self {
        let clock = Clock::by_hand(WallMs(0));
        let by_name = handlers.map(|(name, handler)| (name.to_owned(), handler));
        let (tell, reports) = mpsc::channel();
        let (say, progress) = mpsc::channel();
        Self {
            handlers: Handlers::new(by_name.into(), limits, clock.clone()).unwrap(),
            clock,
            sink: Arc::new(Sink(tell, say)),
            reports,
            progress,
            made: 0,
        }
    }

    /// Orders an attempt with ten seconds of time and two of grace; gives the task and what cancels it.
    fn run(&mut self, handler: &str) -> (TaskId, CancellationToken) {
        self.made += 1;
        let task = TaskId::with_tail(Slot::of_hash(1), WallMs(1), self.made);
        let cancel = CancellationToken::new();
        let call = HandlerCall {
            handler: handler.to_owned(),
            topic: TopicName::parse("t").unwrap(),
            key: None,
            generation: 1,
            stage: None,
            attempt: AttemptNumber(1),
            due_at: WallMs(0),
            payload: None,
            checkpoint: None,
            heartbeat: None,
        };
        let attempt = RunAttempt {
            task,
            token: AttemptToken(1),
            deadline: self.clock.now().mono.after(TIME),
            grace: GRACE,
            cancel: cancel.clone(),
            work: Work::Handler(call),
        };
        self.handlers.run(attempt, &self.sink);
        (task, cancel)
    }

    fn report(&self) -> AttemptReport {
        self.reports.recv_timeout(SOON).expect("a report in time")
    }

    fn no_report(&self, why: &str) {
        let report = self.reports.try_recv();
        assert!(report.is_err(), "{why}: {report:?}");
    }

    /// The one kind of seats that there is.
    fn seats(&self) -> &Arc<Seats> {
        let seats = self.handlers.asynchronous.as_ref();
        seats.or(self.handlers.blocking.as_ref()).unwrap()
    }

    /// Until the watch has gone around with the time and the cancels as they are now, and done what follows from them:
    /// one round may be under way and have read the time before; the one after it is whole, and over when the next
    /// begins.
    fn looked(&self) {
        let rounds = || self.seats().spy.rounds.load(Ordering::SeqCst);
        let (from, end) = (rounds(), Instant::now() + SOON);
        while rounds() < from + 3 {
            assert!(Instant::now() < end, "the watch goes around");
            self.clock.advance(DurationMs(0));
            std::thread::yield_now();
        }
    }

    fn status(&self) -> SeatsStatus {
        let [(_, status)] = &self.handlers.status()[..] else {
            panic!("one kind of handler");
        };
        status.clone()
    }

    /// Whether the one call there is waits for something.
    fn waits(seats: &SeatsStatus) -> bool {
        (seats.calls, seats.busy, seats.queued) == (1, 0, 0)
    }

    /// Waits until the seats are like this.
    fn until(&self, what: &str, so: impl Fn(&SeatsStatus) -> bool) -> SeatsStatus {
        let end = Instant::now() + SOON;
        loop {
            let status = self.status();
            if so(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not {what}: {status:?}");
            std::thread::yield_now();
        }
    }
}

/// A handler that blocks its thread until the test lets go, and what lets go.
fn stubborn() -> (
    impl Fn() + Clone + Send + Sync + 'static,
    mpsc::Receiver<()>,
    impl FnOnce(),
) {
    let (tell, begun) = mpsc::channel();
    let gate = Arc::new((Mutex::new(false), parking_lot::Condvar::new()));
    let opens = Arc::clone(&gate);
    let block = move || {
        tell.send(()).unwrap();
        let mut open = gate.0.lock();
        let end = Instant::now() + 6 * SOON;
        while !*open && !gate.1.wait_until(&mut open, end).timed_out() {}
    };
    let let_go = move || {
        *opens.0.lock() = true;
        opens.1.notify_all();
    };
    (block, begun, let_go)
}

fn is_success(report: &AttemptReport) -> bool {
    matches!(report.outcome, Outcome::Succeeded { .. })
}

#[test]
fn futures_that_wait_are_polled_again_when_they_are_woken() {
    let mut bench = Bench::of([(
        "waits",
        handler(async |_| {
            tokio::task::yield_now().await;
            let (tell, hear) = tokio::sync::oneshot::channel();
            // From a thread of the handlers' runtime, and of its timer.
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_micros(10)).await;
                tell.send(7)
            });
            Ok(Some(json!(hear.await.expect("it is sent"))))
        }),
    )]);
    for _ in 0..500 {
        bench.run("waits");
    }
    for _ in 0..500 {
        let report = bench.report();
        let Outcome::Succeeded { result, .. } = report.outcome else {
            panic!("{report:?}");
        };
        assert_eq!(result.as_deref(), Some(&b"7"[..]));
        assert!(report.started.is_some());
    }
    bench.until("empty", |seats| {
        seats.calls == 0 && seats.busy == 0 && seats.queued == 0
    });
}

#[test]
fn each_seat_that_is_held_is_stood_in_for_and_leaves_when_it_is_back() {
    let (block, begun, let_go) = stubborn();
    let blocks = handler(move |_| {
        block();
        async { Ok(None) }
    });
    let mut bench = Bench::of([("blocks", blocks), ("good", handler(async |_| Ok(None)))]);
    for _ in 0..12 {
        bench.run("blocks");
    }
    // The clock stands still: no time limit helps here.
    for _ in 0..12 {
        begun.recv_timeout(SOON).unwrap();
    }
    for _ in 0..100 {
        bench.run("good");
    }
    for _ in 0..100 {
        assert!(is_success(&bench.report()));
    }
    let held = bench.until("held", |seats| seats.held == 12);
    assert!(held.abandoned.is_empty() && held.threads > 12);
    let wanted = held.threads_max - held.stand_ins_max;
    assert!(held.threads <= 12 + wanted);
    let_go();
    for _ in 0..12 {
        assert!(is_success(&bench.report()), "it had its time");
    }
    let seats = bench.until("few again", |seats| {
        seats.held == 0 && seats.threads <= wanted && seats.calls == 0
    });
    assert_eq!(
        (seats.abandoned_since_start, seats.late_since_start),
        (0, 0)
    );
}

#[test]
fn who_blocks_beyond_the_grace_has_timed_out_and_what_it_returns_is_only_counted() {
    let (block, begun, let_go) = stubborn();
    let (hand_out, tokens) = mpsc::channel();
    let blocks = blocking_handler(move |task: HandlerTask| {
        hand_out.send(task.cancel).unwrap();
        block();
        Ok(Some(json!("too late")))
    });
    let mut bench = Bench::of([("blocks", blocks)]);
    let (task, _) = bench.run("blocks");
    begun.recv_timeout(SOON).unwrap();
    let told = tokens.recv_timeout(SOON).unwrap();
    bench.clock.advance(DurationMs(9_999));
    bench.looked();
    assert!(!told.is_cancelled());
    bench.clock.advance(DurationMs(1));
    bench.until("told", |_| told.is_cancelled());
    bench.clock.advance(DurationMs(1_999));
    bench.looked();
    bench.no_report("its grace runs");
    bench.clock.advance(DurationMs(1));
    let report = bench.report();
    assert_eq!((report.task, report.outcome), (task, Outcome::TimedOut));
    let seats = bench.until("abandoned", |seats| !seats.abandoned.is_empty());
    let stuck = Stuck {
        handler: "blocks".to_owned(),
        task,
    };
    assert_eq!(seats.abandoned, [stuck]);
    let_go();
    let seats = bench.until("back", |seats| seats.abandoned.is_empty());
    assert_eq!(
        (seats.abandoned_since_start, seats.late_since_start),
        (1, 1)
    );
    bench.no_report("one report");
}

#[test]
fn a_call_that_finds_no_thread_for_half_of_its_time_is_given_back() {
    let (block, begun, let_go) = stubborn();
    let blocks = blocking_handler(move |_| {
        block();
        Ok(None)
    });
    let limits = HandlerLimits {
        blocking_max: 1,
        stand_ins_max: 0,
    };
    let mut bench = Bench::within(limits, [("blocks", blocks)]);
    let (first, _) = bench.run("blocks");
    begun.recv_timeout(SOON).unwrap();
    let (second, _) = bench.run("blocks");
    bench.clock.advance(DurationMs(4_999));
    bench.looked();
    bench.no_report("it may still begin");
    bench.clock.advance(DurationMs(1));
    let report = bench.report();
    assert_eq!((report.task, report.outcome), (second, Outcome::GivenBack));
    assert!(report.started.is_none());
    assert_eq!(bench.status().queued, 0);
    let_go();
    let report = bench.report();
    assert!(report.task == first && is_success(&report), "{report:?}");
}

#[test]
fn when_every_thread_is_abandoned_attempts_are_given_back_at_once_until_one_returns() {
    let (block, begun, let_go) = stubborn();
    let blocks = blocking_handler(move |_| {
        block();
        Ok(None)
    });
    let limits = HandlerLimits {
        blocking_max: 2,
        stand_ins_max: 1,
    };
    let mut bench = Bench::within(limits, [("blocks", blocks)]);
    for lost in 1..=3 {
        bench.run("blocks");
        begun.recv_timeout(SOON).unwrap();
        bench.clock.advance(TIME);
        bench.looked();
        bench.clock.advance(GRACE);
        assert_eq!(bench.report().outcome, Outcome::TimedOut);
        let seats = bench.until("abandoned", |seats| seats.abandoned.len() == lost);
        assert_eq!(seats.threads, lost, "none is made ahead");
        assert!(seats.is_at_limit());
        assert_eq!(bench.handlers.takes("blocks"), lost < 3);
    }
    assert!(
        bench.handlers.takes("nobody"),
        "and says that there is none"
    );
    let (task, _) = bench.run("blocks");
    let report = bench.report();
    assert_eq!((report.task, report.outcome), (task, Outcome::GivenBack));
    let seats = bench.status();
    assert_eq!((seats.threads, seats.threads_max), (3, 3));
    assert_eq!(seats.given_back_since_start, 1);
    let_go();
    bench.until("back", |seats| seats.abandoned.is_empty());
    assert!(bench.handlers.takes("blocks"));
    bench.run("blocks");
    assert!(is_success(&bench.report()));
}

#[test]
fn a_cancelled_call_has_its_grace_whether_it_waits_or_blocks() {
    let (block, begun, let_go) = stubborn();
    let (tell, told) = mpsc::channel();
    let deaf = handler(move |task: HandlerTask| {
        let tell = tell.clone();
        async move {
            task.cancel.cancelled().await;
            tell.send(()).unwrap();
            std::future::pending().await
        }
    });
    let blocks = handler(move |_| {
        block();
        async { Ok(None) }
    });
    let mut bench = Bench::of([("deaf", deaf), ("blocks", blocks)]);
    for name in ["deaf", "blocks"] {
        let (task, cancel) = bench.run(name);
        if name == "blocks" {
            begun.recv_timeout(SOON).unwrap();
        } else {
            bench.until("begun", Bench::waits);
        }
        cancel.cancel();
        if name == "deaf" {
            told.recv_timeout(SOON).unwrap();
        }
        // From when the watch has seen it, two seconds; its time is not up meanwhile.
        bench.looked();
        bench.clock.advance(DurationMs(1_999));
        bench.looked();
        bench.no_report(name);
        bench.clock.advance(DurationMs(1));
        let report = bench.report();
        assert_eq!((report.task, report.outcome), (task, Outcome::Cancelled));
    }
    let_go();
    bench.until("back", |seats| seats.held == 0);
}

#[test]
fn a_cancelled_call_that_had_not_begun_ends_at_once_and_was_not_given_back() {
    let (block, begun, let_go) = stubborn();
    let blocks = blocking_handler(move |_| {
        block();
        Ok(None)
    });
    let limits = HandlerLimits {
        blocking_max: 1,
        stand_ins_max: 0,
    };
    let mut bench = Bench::within(limits, [("blocks", blocks)]);
    bench.run("blocks");
    begun.recv_timeout(SOON).unwrap();
    let (second, cancel) = bench.run("blocks");
    cancel.cancel();
    let report = bench.report();
    assert_eq!((report.task, report.outcome), (second, Outcome::Cancelled));
    assert!(report.started.is_none());
    let seats = bench.until("gone", |seats| seats.queued == 0 && seats.calls == 1);
    assert_eq!(seats.given_back_since_start, 0);
    let_go();
    assert!(is_success(&bench.report()));
}

/// Somebody who listens to a token and does what a test says when he is woken.
struct Listener(Box<dyn Fn() + Send + Sync>);

impl Wake for Listener {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// He listens for as long as what this returns is kept.
fn listens(token: CancellationToken, then: impl Fn() + Send + Sync + 'static) -> impl Future {
    let mut cancelled = Box::pin(token.cancelled_owned());
    let waker = Waker::from(Arc::new(Listener(Box::new(then))));
    let polled = cancelled.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    cancelled
}

#[test]
fn who_listens_for_a_handlers_end_and_panics_or_blocks_holds_up_nobody_else() {
    let (tell, tokens) = mpsc::channel();
    let deaf = handler(move |task: HandlerTask| {
        tell.send(task.cancel).unwrap();
        std::future::pending()
    });
    let good = handler(async |_| Ok(None));
    let mut bench = Bench::of([("deaf", deaf), ("good", good)]);
    let (block, woken, let_go) = stubborn();
    let (tell, panicking) = mpsc::channel();
    let mut listeners: Vec<Box<dyn std::any::Any>> = Vec::new();
    let (first, cancel_first) = bench.run("deaf");
    let token = tokens.recv_timeout(SOON).unwrap();
    listeners.push(Box::new(listens(token, move || {
        tell.send(()).unwrap();
        panic!("a listener's panic")
    })));
    let (second, cancel_second) = bench.run("deaf");
    let token = tokens.recv_timeout(SOON).unwrap();
    listeners.push(Box::new(listens(token, block)));
    // As a shard does: it comes back at once, whoever listens.
    cancel_first.cancel();
    cancel_second.cancel();
    panicking.recv_timeout(SOON).unwrap();
    woken.recv_timeout(SOON).unwrap();
    bench.looked();
    bench.run("good");
    assert!(is_success(&bench.report()));
    bench.clock.advance(GRACE);
    let mut ended = [bench.report(), bench.report()];
    ended.sort_by_key(|report| report.task);
    assert_eq!(ended.each_ref().map(|report| report.task), [first, second]);
    assert!(
        ended
            .iter()
            .all(|report| report.outcome == Outcome::Cancelled)
    );
    let_go();
}

#[test]
fn without_a_thread_for_a_seat_the_watch_keeps_everybodys_time_all_the_same() {
    let blocks = blocking_handler(|_| Ok(None));
    let mut bench = Bench::of([("blocks", blocks)]);
    bench.seats().spy.no_threads.store(true, Ordering::SeqCst);
    for _ in 0..50 {
        bench.run("blocks");
    }
    let spy = &bench.seats().spy;
    let before = spy.rounds.load(Ordering::SeqCst);
    let wanted = spy.threads_wanted.load(Ordering::SeqCst);
    for _ in 0..5 {
        bench.looked();
    }
    let wanted = spy.threads_wanted.load(Ordering::SeqCst) - wanted;
    let rounds = spy.rounds.load(Ordering::SeqCst) - before;
    assert!(wanted <= rounds, "one in a round: {wanted} in {rounds}");
    bench.clock.advance(DurationMs(TIME.0 / 2));
    for _ in 0..50 {
        assert_eq!(bench.report().outcome, Outcome::GivenBack);
    }
    spy.no_threads.store(false, Ordering::SeqCst);
    bench.run("blocks");
    assert!(is_success(&bench.report()));
}

/// Panics when it is dropped, unless a panic is on its way.
struct Careless(&'static str);

impl Drop for Careless {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("{}", self.0);
        }
    }
}

/// A future with a careless destructor of its own.
struct Sealed(
    bool,
    #[expect(dead_code, reason = "it is dropped")] Careless,
);

impl Future for Sealed {
    type Output = HandlerResult;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<HandlerResult> {
        match self.0 {
            true => Poll::Ready(Ok(Some(json!("done")))),
            false => Poll::Pending,
        }
    }
}

#[test]
fn a_panic_is_a_failed_attempt_wherever_it_comes_from_and_no_seat_is_lost() {
    let ready = handler(|_| Sealed(true, Careless("from the future's destructor")));
    let at_once = handler(|task: HandlerTask| {
        if task.generation == 1 {
            panic!("before the future");
        }
        async { Ok(None) }
    });
    let inside = handler(async |_| panic!("inside"));
    let mut bench = Bench::of([("ready", ready), ("at once", at_once), ("inside", inside)]);
    for (name, words) in [
        ("ready", "from the future's destructor"),
        ("at once", "before the future"),
        ("inside", "inside"),
    ] {
        bench.run(name);
        let report = bench.report();
        let Outcome::Failed(failure) = report.outcome else {
            panic!("{name}: {report:?}");
        };
        assert_eq!(
            (failure.code.as_str(), failure.message.as_str()),
            ("panic", words)
        );
        assert!(failure.retryable && failure.in_doubt);
    }
    let seats = bench.until("counted", |seats| seats.panics_since_start == 3);
    assert!(seats.threads > 0, "{seats:?}");

    let blocks = blocking_handler(|_| panic!("on its own thread"));
    let mut bench = Bench::of([("blocks", blocks)]);
    bench.run("blocks");
    let report = bench.report();
    assert!(
        matches!(&report.outcome, Outcome::Failed(failure) if failure.message == "on its own thread"),
        "{report:?}"
    );
}

#[test]
fn a_future_that_is_cut_off_may_panic_as_it_goes() {
    let never = handler(|_| Sealed(false, Careless("as it goes")));
    let mut bench = Bench::of([("never", never)]);
    bench.run("never");
    bench.until("begun", Bench::waits);
    bench.clock.advance(TIME);
    bench.looked();
    bench.clock.advance(GRACE);
    assert_eq!(bench.report().outcome, Outcome::TimedOut);
    bench.until("counted", |seats| seats.panics_since_start == 1);
}

#[test]
fn handlers_that_are_closed_drop_what_waits_and_report_it_as_unknown() {
    struct Last(mpsc::Sender<()>);
    impl Drop for Last {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (tell, gone) = mpsc::channel();
    let waits = handler(move |_| {
        let last = Last(tell.clone());
        async move {
            let _last = last;
            std::future::pending().await
        }
    });
    let mut bench = Bench::of([("waits", waits)]);
    bench.run("waits");
    bench.until("begun", Bench::waits);
    bench.handlers.close();
    assert_eq!(bench.report().outcome, Outcome::Unknown);
    gone.recv_timeout(SOON).unwrap();
    bench.run("waits");
    assert_eq!(bench.report().outcome, Outcome::GivenBack);
    bench.until("gone", |seats| seats.threads == 0);
}

#[test]
fn a_payload_that_does_not_fit_is_an_error_that_names_its_field() {
    #[derive(serde::Deserialize, Debug)]
    struct Order {
        items: Vec<Item>,
    }
    #[derive(serde::Deserialize, Debug)]
    struct Item {
        count: u32,
    }
    let clock = Clock::by_hand(WallMs(0));
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let sink: Arc<dyn ReportSink> = Arc::new(Sink(mpsc::channel().0, mpsc::channel().0));
    let attempt = RunAttempt {
        task: TaskId::with_tail(Slot::of_hash(1), WallMs(1), 1),
        token: AttemptToken(1),
        deadline: MonoMs(1_500),
        grace: GRACE,
        cancel: CancellationToken::new(),
        work: Work::Unfit(crate::testing::fixtures::failure("x")),
    };
    let task = |payload: Option<&str>| HandlerTask {
        handler: "h".to_owned(),
        id: TaskId::with_tail(Slot::of_hash(1), WallMs(1), 1),
        topic: TopicName::parse("t").unwrap(),
        key: None,
        generation: 1,
        stage: None,
        attempt: AttemptNumber(1),
        due_at: WallMs(0),
        payload: payload.map(|text| RawJson(text.to_owned().into())),
        checkpoint: Some(RawJson::from(r#"{"page": 7}"#.to_owned())),
        cancel: CancellationToken::new(),
        deadline: MonoMs(1_500),
        clock: clock.clone(),
        progress: Progress::of(&attempt, None, &sink, runtime.handle()),
    };
    let order: Order = task(Some(r#"{"items": [{"count": 3}]}"#))
        .payload_as()
        .unwrap();
    assert_eq!(order.items[0].count, 3);
    let wrong = |payload| task(payload).payload_as::<Order>().unwrap_err();
    let error = wrong(Some(r#"{"items": [{"count": 3}, {"count": "many"}]}"#));
    assert_eq!((error.code.as_str(), error.retryable), ("payload", false));
    assert!(
        error
            .message
            .starts_with("payload.items[1].count: invalid type: string"),
        "{}",
        error.message
    );
    assert!(
        wrong(Some("{}"))
            .message
            .starts_with("payload: missing field `items`")
    );
    assert!(
        wrong(None)
            .message
            .starts_with("payload: invalid type: null")
    );
    assert_eq!(task(None).payload_as::<Option<u32>>().unwrap(), None);

    #[derive(serde::Deserialize, Debug, PartialEq)]
    struct Place {
        page: u32,
    }
    let place = task(None).checkpoint_as::<Place>().unwrap();
    assert_eq!(place, Some(Place { page: 7 }));
    let wrong = task(None).checkpoint_as::<Vec<u32>>().unwrap_err();
    assert_eq!(
        (wrong.code.as_str(), wrong.retryable),
        ("checkpoint", false)
    );
    let large = task(None)
        .progress(&"x".repeat(limits::CHECKPOINT_BYTES_MAX))
        .unwrap_err();
    assert!(large.message.contains("at most 16384"), "{}", large.message);

    assert_eq!(task(None).remaining(), Duration::from_millis(1_500));
    clock.advance(DurationMs::secs(2));
    assert_eq!(task(None).remaining(), Duration::ZERO);
}

#[test]
fn a_call_that_is_woken_on_a_seat_that_was_held_is_gone_on_with_by_another() {
    let (block, begun, let_go) = stubborn();
    let blocks_and_yields = handler(move |_| {
        let block = block.clone();
        async move {
            block();
            tokio::task::yield_now().await;
            Ok(None)
        }
    });
    let good = handler(async |_| Ok(None));
    let mut bench = Bench::of([("blocks", blocks_and_yields), ("good", good)]);
    bench.run("blocks");
    begun.recv_timeout(SOON).unwrap();
    bench.until("held", |seats| seats.held == 1);
    // As many stand-ins as are wanted, and they have nothing to do: the one that comes back is one too many.
    let wanted = bench.status().threads_max - bench.status().stand_ins_max;
    while bench.status().threads <= wanted {
        for _ in 0..100 {
            bench.run("good");
        }
        for _ in 0..100 {
            bench.report();
        }
    }
    bench.until("idle", |seats| seats.busy == 1 && seats.queued == 0);
    let begun = Instant::now();
    let_go();
    assert!(is_success(&bench.report()));
    assert!(begun.elapsed() < IDLE, "it was woken at once");
}

#[test]
fn progress_that_is_said_often_is_told_now_and_then_and_the_last_of_it_with_the_end() {
    let worker = blocking_handler(|task| {
        for page in 1..=1_000 {
            task.progress(&page)?;
        }
        Err(HandlerError::new("busy", "not today"))
    });
    let good = blocking_handler(|task| {
        task.progress(&"all")?;
        Ok(None)
    });
    let mut bench = Bench::of([("worker", worker), ("good", good)]);
    bench.run("worker");
    let report = bench.report();
    assert_eq!(report.checkpoint.unwrap().as_str(), "1000");
    let told = bench.progress.try_iter().count();
    assert!(told <= 3, "told {told} times within a moment");
    bench.run("good");
    assert_eq!(
        bench.report().checkpoint,
        None,
        "what is done is not gone on with"
    );
}
