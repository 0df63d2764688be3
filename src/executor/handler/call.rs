//! One call of a handler: from the attempt that asks for it to the one report that it owes.
//!
//! ```text
//!            a seat takes it          it waits for something
//!  Queued ───────────────────▶ OnSeat ───────────────────▶ Waiting
//!    ▲                           │  │                          │
//!    └──────── woken meanwhile ──┘  │ returned, panicked       │
//!    └──────────────────────────────┼─────────────── woken ────┘
//!                                   ▼
//!                                  Over
//! ```
//!
//! Whoever has the future may poll it, and exactly one has it: the stage, or the seat. The report is apart from that:
//! when time is up it is sent whether the seat comes back or not, and what comes back later finds it gone.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::seats::Seats;
use super::{Handler, HandlerResult, HandlerTask, Running};
use crate::clock::{DurationMs, MonoMs};
use crate::executor::OwedReport;
use crate::ids::TaskId;
use crate::limits;
use crate::panics::contained;
use crate::task::history::note;
use crate::task::outcome::{Failure, Outcome};

/// What a call is made of.
pub(super) struct Order {
    pub handler: Handler,
    pub task: HandlerTask,
    pub grace: DurationMs,
    /// The shard's own token: the task was cancelled. Handlers never see it: whoever listens to a token is woken on the
    /// thread that cancels it, and that is the shard's. Only the watch's bell listens.
    pub cancelled: CancellationToken,
    pub report: OwedReport,
}

/// See the module's header.
pub(super) struct Call {
    /// Tells calls of the same instant apart.
    pub number: u64,
    pub handler: String,
    pub task: TaskId,
    deadline: MonoMs,
    grace: DurationMs,
    /// The task was cancelled.
    cancelled: CancellationToken,
    /// What the handler listens to, and perhaps others that it has told of it.
    soft: CancellationToken,
    stage: Mutex<Stage>,
    owed: Mutex<Owed>,
    seats: Weak<Seats>,
}

enum Stage {
    Queued(Work),
    OnSeat { woken: bool },
    Waiting(Running),
    Over,
}

/// What a seat is to do.
pub(super) enum Work {
    Begin(Handler, Box<HandlerTask>),
    GoOn(Running),
}

/// What is still to be said of the attempt.
struct Owed {
    report: Option<OwedReport>,
    /// What it will be, since the handler was told to stop.
    cut_off: Option<Outcome>,
    /// It was sent without waiting for the handler.
    stopped: bool,
    /// When the watch looks next.
    look_at: MonoMs,
    /// Kept, so that a cancel rings the watch.
    _listening: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// What the watch has to do about a call whose instant has come.
pub(super) enum Turn {
    /// It was not begun, and will not be: only its report is left.
    GiveBack,
    /// It runs; nothing is to be done before it is looked at again.
    LookAgain,
    /// Its time is up: it is told to stop.
    Tell,
    /// Its grace is up, too, or it has none.
    Stop,
}

/// What became of the call on its seat.
pub(super) enum Ran {
    /// It waits, and is queued when it is woken.
    Waits,
    /// It was woken meanwhile.
    Again,
    Over {
        panicked: bool,
        /// Its report had been sent before.
        late: bool,
    },
}

impl Call {
    /// `listening` is to the cancel, and rings the watch.
    pub fn new(
        number: u64,
        order: Order,
        listening: Pin<Box<WaitForCancellationFutureOwned>>,
        begin_by: MonoMs,
        seats: Weak<Seats>,
    ) -> Self {
        let Order { handler, task, .. } = order;
        Self {
            number,
            handler: task.handler.clone(),
            task: task.id,
            deadline: task.deadline,
            grace: order.grace,
            cancelled: order.cancelled,
            soft: task.cancel.clone(),
            stage: Mutex::new(Stage::Queued(Work::Begin(handler, Box::new(task)))),
            owed: Mutex::new(Owed {
                report: Some(order.report),
                cut_off: None,
                stopped: false,
                look_at: begin_by,
                _listening: listening,
            }),
            seats,
        }
    }

    /// Where the call stands among those that are watched.
    pub fn watch_key(&self) -> (MonoMs, u64) {
        (self.owed.lock().look_at, self.number)
    }

    /// Whether its report was sent without waiting for it.
    pub fn is_stopped(&self) -> bool {
        self.owed.lock().stopped
    }

    pub fn is_over(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Over)
    }

    /// Whether its task was cancelled, and the handler's grace does not run yet.
    pub fn is_newly_cancelled(&self) -> bool {
        self.cancelled.is_cancelled() && self.owed.lock().cut_off.is_none()
    }

    /// Its task was cancelled: from now on its grace runs, unless it was not begun.
    pub fn note_cancel(&self, now: MonoMs) -> Turn {
        let mut stage = self.stage.lock();
        let mut owed = self.owed.lock();
        owed.cut_off = Some(Outcome::Cancelled);
        if let Stage::Queued(Work::Begin(..)) = *stage {
            *stage = Stage::Over;
            return Turn::Stop;
        }
        owed.look_at = now.after(self.grace);
        Turn::Tell
    }

    /// Its instant has come; afterwards [`watch_key`](Self::watch_key) is the next one.
    pub fn turn(&self, now: MonoMs) -> Turn {
        let mut stage = self.stage.lock();
        if let Stage::Queued(Work::Begin(..)) = *stage {
            *stage = Stage::Over;
            return Turn::GiveBack;
        }
        let mut owed = self.owed.lock();
        if owed.cut_off.is_some() {
            return Turn::Stop;
        }
        if now < self.deadline {
            owed.look_at = self.deadline;
            return Turn::LookAgain;
        }
        owed.cut_off = Some(Outcome::TimedOut);
        owed.look_at = self.deadline.max(now).after(self.grace);
        Turn::Tell
    }

    /// Asks the handler to stop. Whoever else listens is woken with it, on this thread, and may be any code.
    pub fn tell(&self) {
        if let Err(words) = contained(|| self.soft.cancel()) {
            let (handler, task) = (&self.handler, self.task);
            tracing::warn!(handler, %task, words, "who listened for the handler's end has panicked");
        }
    }

    /// Sends the report, and has the future dropped as soon as a seat has it.
    pub fn stop(self: &Arc<Self>) {
        let (report, cut_off) = {
            let mut owed = self.owed.lock();
            owed.stopped = owed.report.is_some();
            (owed.report.take(), owed.cut_off.take())
        };
        match (report, cut_off) {
            (Some(report), Some(outcome)) => report.settle(outcome),
            // Dropped, it says what is known: given back when the handler was not begun, else unknown.
            (report, _) => drop(report),
        }
        Arc::clone(self).wake();
    }

    /// Takes what is to be done, for a seat.
    pub fn take_up(&self) -> Option<Work> {
        let mut stage = self.stage.lock();
        match mem::replace(&mut *stage, Stage::Over) {
            Stage::Queued(work) => {
                *stage = Stage::OnSeat { woken: false };
                Some(work)
            }
            other => {
                *stage = other;
                None
            }
        }
    }

    /// Does it, on a seat's thread. Comes back when the handler does.
    pub fn run(self: &Arc<Self>, work: Work) -> Ran {
        let mut running = match work {
            Work::Begin(..) if !self.begin() => return self.over(None),
            Work::Begin(Handler::Blocking(call), task) => {
                return self.over(Some(contained(move || call(*task))));
            }
            Work::Begin(Handler::Async(call), task) => match contained(move || call(*task)) {
                Ok(running) => running,
                Err(panic) => return self.over(Some(Err(panic))),
            },
            Work::GoOn(running) => running,
        };
        let ended = if self.is_stopped() {
            None
        } else {
            let waker = Waker::from(Arc::clone(self));
            let mut context = Context::from_waker(&waker);
            // Outside of it, so that a panic's unwinding does not meet the future's own destructor.
            match contained(|| running.as_mut().poll(&mut context)) {
                Ok(Poll::Pending) => return self.wait(running),
                Ok(Poll::Ready(result)) => Some(Ok(result)),
                Err(panic) => Some(Err(panic)),
            }
        };
        let dropped = contained(move || drop(running));
        self.over(match (ended, dropped) {
            (Some(Ok(_)) | None, Err(panic)) => Some(Err(panic)),
            (ended, _) => ended,
        })
    }

    /// Whether it may begin; from here on a loss leaves the outcome unknown.
    fn begin(&self) -> bool {
        let mut owed = self.owed.lock();
        if self.cancelled.is_cancelled() {
            owed.cut_off = Some(Outcome::Cancelled);
            return false;
        }
        match &mut owed.report {
            Some(report) => {
                report.start();
                true
            }
            None => false,
        }
    }

    fn wait(&self, running: Running) -> Ran {
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::OnSeat { woken: true }) {
            *stage = Stage::Queued(Work::GoOn(running));
            return Ran::Again;
        }
        *stage = Stage::Waiting(running);
        Ran::Waits
    }

    /// `ended` is what the handler gave back, or its panic's words; `None` when it was not asked.
    fn over(&self, ended: Option<Result<HandlerResult, String>>) -> Ran {
        *self.stage.lock() = Stage::Over;
        let (report, cut_off) = {
            let mut owed = self.owed.lock();
            (owed.report.take(), owed.cut_off.take())
        };
        let panicked = matches!(ended, Some(Err(_)));
        let late = report.is_none() && ended.is_some();
        if let Some(report) = report {
            match (cut_off, ended) {
                (Some(outcome), _) => report.settle(outcome),
                (None, Some(ended)) => report.settle(outcome_of(ended)),
                (None, None) => drop(report),
            }
        }
        Ran::Over { panicked, late }
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        {
            let mut stage = self.stage.lock();
            match mem::replace(&mut *stage, Stage::Over) {
                Stage::Waiting(running) => *stage = Stage::Queued(Work::GoOn(running)),
                Stage::OnSeat { .. } => {
                    *stage = Stage::OnSeat { woken: true };
                    return;
                }
                other => {
                    *stage = other;
                    return;
                }
            }
        }
        if let Some(seats) = self.seats.upgrade() {
            seats.queue_again(self);
        }
    }
}

fn outcome_of(ended: Result<HandlerResult, String>) -> Outcome {
    let failed = |code: String, message: &str, retryable, in_doubt| {
        Outcome::Failed(Failure {
            code,
            message: note(message),
            retryable,
            retry_after: None,
            in_doubt,
        })
    };
    match ended {
        Ok(Ok(result)) => {
            let text = result.map(|json| json.to_string());
            let result_dropped = text
                .as_ref()
                .is_some_and(|text| text.len() > limits::RESULT_BYTES_MAX);
            Outcome::Succeeded {
                result: text.filter(|_| !result_dropped).map(Bytes::from),
                result_dropped,
            }
        }
        Ok(Err(error)) => failed(note(&error.code), &error.message, error.retryable, false),
        // Nobody knows how far it got.
        Err(panic) => failed("panic".to_owned(), &panic, true, true),
    }
}
