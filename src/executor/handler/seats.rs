//! Seats: the threads that handlers run on, and what keeps their number up when handlers do not give them back.
//!
//! A handler may block its thread, for seconds or for good, and no thread can be killed. So nothing is bound to a
//! thread: what is ready stands in one queue, and any seat takes the next. One thread more, the watch, looks every ten
//! milliseconds who still sits where it sat the last time:
//!
//! ```text
//!  queue  c9 c8 c7 ──▶ seat 1 [c6]          a poll of microseconds
//!                      seat 2 [c2 ██████]   held: the same call at two looks; seat 4 stands in for it
//!                      seat 3 [c1 ██████]   abandoned: its report has been sent, and it still is not back
//!                      seat 4 [c5]
//! ```
//!
//! So a held seat costs the others one look, not its whole time. A seat that comes back finds its place taken, and its
//! thread ends. Seats of blocking handlers are held by design: for them only an abandoned one is stood in for.
//!
//! The watch also keeps the calls' time: for each it has the next instant at which something is to be done (given
//! back if it has not begun, told to stop, cut off), and a cancel rings it. Time limits follow the engine's clock; how
//! long a thread is held is read off the machine's, whatever a test's clock says.
//!
//! Cost: two locks of a microsecond's part each per poll; a thread that wakes a hundred times a second while seats are
//! taken, ten times while calls wait, once when there are none, and for each cancel. Limits: `wanted + stand_ins`
//! threads. When each of them is abandoned, calls are given back at once.

use std::collections::{BTreeMap, VecDeque};
use std::io;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::Handle;

use super::call::{Call, Order, Ran, Turn, Work};
use super::{SeatsStatus, Stuck};
use crate::clock::{Clock, DurationMs, MonoMs};
use crate::ids::TaskId;
use crate::task::outcome::Outcome;

/// From look to look while seats are taken.
const LOOK: Duration = Duration::from_millis(10);
/// While calls wait or hold their seats.
const LONG_LOOK: Duration = Duration::from_millis(100);
/// While there is nothing to look at.
const REST: Duration = Duration::from_secs(1);
/// At so many looks on the same call a seat is held.
const LOOKS_HELD: u8 = 2;
/// A seat without work leaves after this.
const IDLE_KEPT: Duration = Duration::from_secs(10);
/// So many stay all the same.
const IDLE_SEATS: usize = 2;

/// What handlers' threads are there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// For futures, which come back soon each time.
    Async,
    /// For calls that take a thread for as long as they last.
    Blocking,
}

/// Seats of one kind. See the module's header.
pub(super) struct Seats {
    kind: Kind,
    /// So many calls at a time.
    wanted: usize,
    /// Threads in all, those included that are stood in for.
    most: usize,
    clock: Clock,
    /// Timers and sockets of the futures, and what handlers spawn.
    runtime: Handle,
    state: Mutex<State>,
    /// Where seats without work wait.
    work: Condvar,
    /// Where the watch waits.
    watch: Condvar,
    /// Rings it when a shard cancels.
    bell: Waker,
    #[cfg(test)]
    pub spy: super::tests::Spy,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Call>>,
    /// All calls that owe a report, by the instant at which the watch has to do something.
    calls: BTreeMap<(MonoMs, u64), Arc<Call>>,
    next_call: u64,
    seats: BTreeMap<u64, Seat>,
    next_seat: u64,
    /// Seats that wait for work, or are about to look for it.
    idle: usize,
    /// One of them was woken and has not come yet; it wakes the next, so that a burst does not wake all for each call.
    waking: bool,
    /// Seats that others stand in for.
    away: usize,
    /// The watch will not look for a while, unless it is rung.
    watch_rests: bool,
    /// A call was cancelled since the watch looked for such.
    cancels: bool,
    /// A thread could not be made: until then none is tried. It is said once.
    short_until: Option<Instant>,
    closed: bool,
    counts: Counts,
}

#[derive(Default)]
struct Seat {
    on: Option<Arc<Call>>,
    looks: u8,
    held: bool,
    abandoned: bool,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    abandoned: u64,
    late: u64,
    panics: u64,
    given_back: u64,
}

/// Woken by the token of a call that its shard cancels, on the shard's thread: so it does no more than ring.
struct Bell(Weak<Seats>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(seats) = self.0.upgrade() {
            let mut state = seats.state.lock();
            state.cancels = true;
            seats.ring(&mut state);
        }
    }
}

impl State {
    fn regular(&self) -> usize {
        self.seats.len() - self.away
    }

    fn abandoned(&self) -> usize {
        self.seats.values().filter(|seat| seat.abandoned).count()
    }

    fn leave(&mut self, number: u64, kind: Kind) {
        if let Some(seat) = self.seats.remove(&number) {
            self.away -= usize::from(seat.is_away(kind));
        }
    }

    /// The seat has its thread back, and what became of the call is written down.
    fn came_back(&mut self, number: u64, call: Arc<Call>, ran: Ran, kind: Kind) {
        if let Some(seat) = self.seats.get_mut(&number) {
            let was_away = seat.is_away(kind);
            *seat = Seat::default();
            self.away -= usize::from(was_away);
        }
        match ran {
            Ran::Waits => {}
            Ran::Again => self.queue.push_back(call),
            Ran::Over { panicked, late } => {
                self.calls.remove(&call.watch_key());
                self.counts.panics += u64::from(panicked);
                self.counts.late += u64::from(late);
            }
        }
    }
}

impl Seat {
    /// Whether another seat may stand in for it.
    fn is_away(&self, kind: Kind) -> bool {
        match kind {
            Kind::Async => self.held,
            Kind::Blocking => self.abandoned,
        }
    }
}

impl Seats {
    /// Seats for `wanted` calls at a time, and for so many more when threads do not come back. They come when they are
    /// needed.
    pub fn start(
        kind: Kind,
        wanted: usize,
        stand_ins: usize,
        clock: &Clock,
        runtime: Handle,
    ) -> io::Result<Arc<Self>> {
        let seats = Arc::new_cyclic(|seats| Self {
            kind,
            wanted,
            most: wanted + stand_ins,
            clock: clock.clone(),
            runtime,
            state: Mutex::default(),
            work: Condvar::new(),
            watch: Condvar::new(),
            bell: Waker::from(Arc::new(Bell(Weak::clone(seats)))),
            #[cfg(test)]
            spy: super::tests::Spy::default(),
        });
        let watch = Arc::clone(&seats);
        std::thread::Builder::new()
            .name("handler-watch".to_owned())
            .spawn(move || watch.watch())?;
        let moved = Arc::downgrade(&seats);
        clock.on_move(move || {
            if let Some(seats) = moved.upgrade() {
                seats.ring(&mut seats.state.lock());
            }
        });
        Ok(seats)
    }

    /// Whether there is a seat that may come back, or room for one.
    pub fn has_one(&self) -> bool {
        self.has_one_in(&self.state.lock())
    }

    fn has_one_in(&self, state: &State) -> bool {
        !state.closed && (state.away < self.most || state.abandoned() < self.most)
    }

    /// Queues a call. A report that can't be worked off is sent at once: the attempt was not begun.
    pub fn take(self: &Arc<Self>, order: Order, now: MonoMs) {
        // With less than half of its time left it had better not begin: given back, it has all of it again.
        let time_left = order.task.deadline.since(now);
        let begin_by = now.after(DurationMs(time_left.0.div_ceil(2)));
        let mut listening = Box::pin(order.cancelled.clone().cancelled_owned());
        let mut context = Context::from_waker(&self.bell);
        if listening.as_mut().poll(&mut context).is_ready() {
            return order.report.settle(Outcome::Cancelled);
        }
        let mut state = self.state.lock();
        if !self.has_one_in(&state) {
            state.counts.given_back += 1;
            drop(state);
            return drop(order);
        }
        let number = state.next_call;
        state.next_call += 1;
        let call = Call::new(number, order, listening, begin_by, Arc::downgrade(self));
        let call = Arc::new(call);
        state.calls.insert((begin_by, number), Arc::clone(&call));
        self.queue(&mut state, call);
    }

    /// Queues a call that was woken.
    pub fn queue_again(&self, call: Arc<Call>) {
        self.queue(&mut self.state.lock(), call);
    }

    fn queue(&self, state: &mut MutexGuard<'_, State>, call: Arc<Call>) {
        state.queue.push_back(call);
        self.wake_one(state);
        let wants_a_seat = state.queue.len() > state.idle
            && state.regular() < self.wanted
            && state.seats.len() < self.most;
        if state.watch_rests || wants_a_seat {
            self.ring(state);
        }
    }

    fn wake_one(&self, state: &mut MutexGuard<'_, State>) {
        if state.idle > 0 && !state.waking {
            state.waking = self.work.notify_one();
        }
    }

    fn ring(&self, state: &mut MutexGuard<'_, State>) {
        state.watch_rests = false;
        self.watch.notify_one();
    }

    /// Nothing is taken any more, and what runs is cut off: futures are dropped, who blocks is left behind.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        for call in calls.values() {
            // What was not begun is taken off the queue with this.
            let _ = call.turn(MonoMs(i64::MIN));
            call.stop();
        }
        if !calls.is_empty() {
            // Not here, where the engine ends. Without a thread nobody is told, and all are left behind alike.
            let thread = std::thread::Builder::new().name("handler-tell".to_owned());
            let tell = thread.spawn(move || calls.values().for_each(|call| call.tell()));
            drop(tell);
        }
        self.work.notify_all();
        self.watch.notify_one();
    }

    pub fn status(&self) -> SeatsStatus {
        let state = self.state.lock();
        let stuck = state.seats.values().filter(|seat| seat.abandoned);
        let stuck = stuck.filter_map(|seat| seat.on.as_ref());
        SeatsStatus {
            threads: state.seats.len(),
            threads_max: self.most,
            busy: state
                .seats
                .values()
                .filter(|seat| seat.on.is_some())
                .count(),
            queued: state.queue.len(),
            calls: state.calls.len(),
            held: state.seats.values().filter(|seat| seat.held).count(),
            abandoned: stuck
                .map(|call| Stuck {
                    handler: call.handler.clone(),
                    task: call.task,
                })
                .collect(),
            stand_ins_max: self.most - self.wanted,
            abandoned_since_start: state.counts.abandoned,
            late_since_start: state.counts.late,
            panics_since_start: state.counts.panics,
            given_back_since_start: state.counts.given_back,
        }
    }

    // ------------------------------------------------------------ a seat

    fn sit(&self, number: u64) {
        let _on_runtime = self.runtime.enter();
        let _leaves = Leaves {
            seats: self,
            number,
        };
        self.state.lock().idle -= 1;
        let mut done = None;
        while let Some((call, work)) = self.next(number, done) {
            let ran = call.run(work);
            done = Some((call, ran));
        }
    }

    /// What the seat does next; `None` when it is to leave.
    fn next(&self, number: u64, done: Option<(Arc<Call>, Ran)>) -> Option<(Arc<Call>, Work)> {
        let mut state = self.state.lock();
        if let Some((call, ran)) = done {
            state.came_back(number, call, ran, self.kind);
            if state.regular() > self.wanted {
                // At once, that no other seat takes itself for the one too many.
                state.leave(number, self.kind);
                // Its own call may be among those that wait.
                if !state.queue.is_empty() {
                    self.wake_one(&mut state);
                }
                return None;
            }
        }
        loop {
            while let Some(call) = state.queue.pop_front() {
                let Some(work) = call.take_up() else { continue };
                if let Some(seat) = state.seats.get_mut(&number) {
                    seat.on = Some(Arc::clone(&call));
                }
                if !state.queue.is_empty() {
                    self.wake_one(&mut state);
                }
                if state.watch_rests {
                    self.ring(&mut state);
                }
                return Some((call, work));
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            let waited = self.work.wait_for(&mut state, IDLE_KEPT);
            state.idle -= 1;
            state.waking = false;
            if waited.timed_out() && state.queue.is_empty() && state.regular() > IDLE_SEATS {
                return None;
            }
        }
    }

    // ------------------------------------------------------------ the watch

    fn watch(self: &Arc<Self>) {
        let mut last_look = Instant::now();
        let mut due = Due::default();
        loop {
            let now = self.clock.now().mono;
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            #[cfg(test)]
            self.spy.rounds.fetch_add(1, Ordering::SeqCst);
            self.keep_time(&mut state, now, &mut due);
            if last_look.elapsed() >= LOOK {
                last_look = Instant::now();
                self.look(&mut state, &mut due);
            }
            if std::mem::take(&mut state.cancels) {
                self.look_for_cancels(&mut state, now, &mut due);
            }
            let hired = self.hire(&mut state);
            if due.is_empty() && hired.is_empty() {
                let wait = self.until_next(&state, now);
                state.watch_rests = wait > LOOK;
                self.watch.wait_for(&mut state, wait);
                state.watch_rests = false;
                continue;
            }
            drop(state);
            due.act(&self.runtime);
            self.seat(hired);
        }
    }

    /// Calls whose instant has come.
    fn keep_time(&self, state: &mut State, now: MonoMs, due: &mut Due) {
        let mut given_back = 0;
        while let Some(first) = state.calls.first_entry()
            && first.key().0 <= now
        {
            let call = first.remove();
            match call.turn(now) {
                Turn::LookAgain => {}
                Turn::Tell => due.tell.push(Arc::clone(&call)),
                over @ (Turn::GiveBack | Turn::Stop) => {
                    given_back += u64::from(matches!(over, Turn::GiveBack));
                    due.stop.push(call);
                    continue;
                }
            }
            state.calls.insert(call.watch_key(), call);
        }
        if given_back > 0 {
            state.counts.given_back += given_back;
            state.queue.retain(|call| !call.is_over());
        }
    }

    /// Who still sits where it sat at the last look.
    fn look(&self, state: &mut State, due: &mut Due) {
        for seat in state.seats.values_mut() {
            let Some(call) = &seat.on else { continue };
            let was_away = seat.is_away(self.kind);
            seat.looks = seat.looks.saturating_add(1);
            seat.held = seat.looks >= LOOKS_HELD;
            if seat.held && !seat.abandoned && call.is_stopped() {
                seat.abandoned = true;
                state.counts.abandoned += 1;
                due.abandoned.push((call.handler.clone(), call.task));
            }
            state.away += usize::from(!was_away && seat.is_away(self.kind));
        }
    }

    /// Whose task was cancelled.
    fn look_for_cancels(&self, state: &mut State, now: MonoMs, due: &mut Due) {
        let cancelled: Vec<_> = state
            .calls
            .iter()
            .filter(|(_, call)| call.is_newly_cancelled())
            .map(|(key, _)| *key)
            .collect();
        for key in cancelled {
            let Some(call) = state.calls.remove(&key) else {
                continue;
            };
            if let Turn::Stop = call.note_cancel(now) {
                due.stop.push(call);
            } else {
                due.tell.push(Arc::clone(&call));
                state.calls.insert(call.watch_key(), call);
            }
        }
        if !due.stop.is_empty() {
            state.queue.retain(|call| !call.is_over());
        }
    }

    /// Makes room for seats that are missing, and gives their numbers.
    fn hire(&self, state: &mut State) -> Vec<u64> {
        if (state.short_until).is_some_and(|until| Instant::now() < until) {
            return Vec::new();
        }
        let waiting = state.queue.len().saturating_sub(state.idle);
        let missing = waiting
            .min(self.wanted.saturating_sub(state.regular()))
            .min(self.most.saturating_sub(state.seats.len()));
        let first = state.next_seat;
        state.next_seat += missing as u64;
        let hired: Vec<u64> = (first..state.next_seat).collect();
        for number in &hired {
            state.seats.insert(*number, Seat::default());
            state.idle += 1;
        }
        hired
    }

    /// Makes their threads. If one can't be had, neither can the rest, and what waits is given back when its time to
    /// begin is over; until then a later look tries again.
    fn seat(self: &Arc<Self>, hired: Vec<u64>) {
        let mut hired = hired.into_iter();
        while let Some(number) = hired.next() {
            let made = self.thread(number);
            let mut state = self.state.lock();
            let short_until = made.is_err().then(|| Instant::now() + LOOK);
            let was_short = std::mem::replace(&mut state.short_until, short_until).is_some();
            let Err(error) = made else { continue };
            for number in std::iter::once(number).chain(hired.by_ref()) {
                state.seats.remove(&number);
                state.idle -= 1;
            }
            drop(state);
            if !was_short {
                tracing::error!(%error, "a thread for handlers could not be made");
            }
        }
    }

    fn thread(self: &Arc<Self>, number: u64) -> io::Result<()> {
        #[cfg(test)]
        self.spy.a_thread_is_made()?;
        let name = match self.kind {
            Kind::Async => "handler",
            Kind::Blocking => "handler-block",
        };
        let seats = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || seats.sit(number)).map(drop)
    }

    fn until_next(&self, state: &State, now: MonoMs) -> Duration {
        let is_new = |seat: &Seat| seat.on.is_some() && seat.looks < LOOKS_HELD;
        let look = if state.seats.values().any(is_new) || !state.queue.is_empty() {
            LOOK
        } else if state.calls.is_empty() && state.seats.values().all(|seat| seat.on.is_none()) {
            REST
        } else {
            LONG_LOOK
        };
        match state.calls.first_key_value() {
            Some(((at, _), _)) if self.clock.runs_by_itself() => look.min(at.since(now).to_std()),
            _ => look,
        }
    }
}

/// The seat's place, given up however its thread ends.
struct Leaves<'a> {
    seats: &'a Seats,
    number: u64,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let seats = self.seats;
        seats.state.lock().leave(self.number, seats.kind);
    }
}

/// What the watch has found, to be done without the lock: reports and tokens call elsewhere, tokens even foreign code.
#[derive(Default)]
struct Due {
    tell: Vec<Arc<Call>>,
    stop: Vec<Arc<Call>>,
    abandoned: Vec<(String, TaskId)>,
}

impl Due {
    fn is_empty(&self) -> bool {
        self.tell.is_empty() && self.stop.is_empty() && self.abandoned.is_empty()
    }

    fn act(&mut self, runtime: &Handle) {
        for call in self.tell.drain(..) {
            // Who is woken with it may block: not the watch, which keeps everybody's time.
            runtime.spawn_blocking(move || call.tell());
        }
        self.stop.drain(..).for_each(|call| call.stop());
        for (handler, task) in self.abandoned.drain(..) {
            tracing::warn!(handler, %task, "a handler has not come back; its thread is left behind");
        }
    }
}
