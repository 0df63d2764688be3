//! One leased task: its work, its heartbeats, and the one thing that is said of it at the end.
//!
//! ```text
//!  leased ──▶ work ─────────────────────────▶ said ──▶ told (tried until the service has heard it)
//!    └─ heartbeats, at a third of the lease ──────────────┘
//!        │ cancelled, lost, unsure                the worker's grace is over
//!        ▼                                             ▼
//!      the work's token fires ── wind-down ──▶ the work is dropped, the task given back
//! ```
//!
//! Heartbeats go on until the answer has arrived: with the service away for a while, the lease must outlive that.
//!
//! | when the work comes back                  | what is told                                                |
//! |-------------------------------------------|-------------------------------------------------------------|
//! | the lease is still ours, or may be        | what it says                                                |
//! | the lease is gone, the work was done      | `complete` all the same: the service keeps late answers     |
//! | the lease is gone, the work was not done  | nothing                                                     |
//! | never, and the worker stops               | `snooze` by nothing: the task is due again, no attempt used |
//! | the same, of a task that is `at_most_once`| nothing: nobody knows how far it got                        |

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::again::send_until;
use crate::client::call::{Body, Call};
use crate::client::error::ClientError;
use crate::client::not_done::{NotDone, Said};
use crate::client::saying::{News, Saying};
use crate::client::task::{Beat, Cord, Cut, LeasedTask};
use crate::client::worker::{Desk, WorkerCounts};
use crate::ids::{AttemptToken, TaskId};
use crate::panics;
use crate::task::spec::Delivery;

/// How long it is tried to tell the service what became of a task: longer than any restart takes.
const TELL_WITHIN: Duration = Duration::from_secs(10 * 60);
/// Longest wait for one answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How far the work has got is told so often at most.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Shortest wait for the answer to a heartbeat, and between two of them.
const BEAT_MIN: Duration = Duration::from_millis(20);

/// See the module's header.
pub(super) struct Held {
    desk: Arc<Desk>,
    id: TaskId,
    token: AttemptToken,
    delivery: Delivery,
    cord: Cord,
    saying: Saying,
    lease: Duration,
    leased_at: Instant,
}

/// A tokio task that ends with its owner.
struct Work(JoinHandle<Said>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Held {
    pub(super) fn new(desk: Arc<Desk>, leased: &LeasedTask) -> Self {
        Self {
            id: leased.id,
            token: leased.token,
            delivery: leased.delivery,
            cord: leased.cord.clone(),
            saying: leased.saying.clone(),
            lease: leased.lease.unwrap_or(desk.lease),
            leased_at: Instant::now(),
            desk,
        }
    }

    /// Does the work, keeps the lease meanwhile, and tells the service how it ended.
    pub(super) async fn run(self, work: impl Future<Output = Said> + Send + 'static) {
        let job = async {
            // A tokio task of its own, so that a panic stays in it, and heartbeats go on beside work that blocks.
            let work = Work(tokio::spawn(work));
            if let Some(said) = self.end_of(work).await {
                self.tell(said).await;
            }
        };
        tokio::select! {
            () = job => {}
            never = self.keep() => match never {},
        }
    }

    /// It was leased, and is not to be worked on.
    pub(super) async fn give_back(self) {
        self.tell(Said::NotDone(NotDone::Snooze(Duration::ZERO)))
            .await;
    }

    /// What is to be said of the task, once its work has ended or is not waited for any more.
    async fn end_of(&self, mut work: Work) -> Option<Said> {
        tokio::select! {
            ended = &mut work.0 => return self.said(ended),
            () = self.is_cut_for_good() => {}
        }
        if let Ok(ended) = timeout(self.desk.wind_down, &mut work.0).await {
            return self.said(ended);
        }
        tracing::warn!(task = %self.id, why = ?self.cord.why(), "the work did not stop in time and was dropped");
        let may_run_again = self.delivery == Delivery::AtLeastOnce;
        (may_run_again && !self.cord.over.is_cancelled())
            .then_some(Said::NotDone(NotDone::Snooze(Duration::ZERO)))
    }

    /// Waits until nothing that the work still does can be of use here.
    async fn is_cut_for_good(&self) {
        tokio::select! {
            () = self.cord.over.cancelled() => {}
            () = self.desk.cut_off.cancelled() => self.cord.cut(Cut::WorkerStops),
        }
    }

    fn said(&self, ended: Result<Said, JoinError>) -> Option<Said> {
        let said = match ended.map_err(JoinError::try_into_panic) {
            Ok(said) => said,
            Err(Ok(panic)) => {
                let words = panics::told(panic);
                // Nobody knows how far it got: what must not run twice goes to a person.
                Said::NotDone(match self.delivery {
                    Delivery::AtLeastOnce => NotDone::failed("panic", words),
                    Delivery::AtMostOnce => NotDone::for_good("panic", words),
                })
            }
            // Only a runtime that is going away cancels.
            Err(Err(_)) => return None,
        };
        let is_of_use = !self.cord.over.is_cancelled() || matches!(said, Said::Complete(_));
        is_of_use.then_some(said)
    }

    /// Renews the lease until it is gone. Never comes back.
    async fn keep(&self) -> Infallible {
        let lease = self.lease;
        let mut sure_until = self.leased_at + lease;
        let mut next = self.leased_at + lease / 3;
        let mut asked_at = self.leased_at;
        loop {
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.saying.changed() => sleep_until(next.min(asked_at + TOLD_EVERY)).await,
            }
            asked_at = Instant::now();
            let news = self.saying.news();
            // An answer that comes when the lease may be over is too late to tell the work in time.
            let sure_for = sure_until.saturating_duration_since(asked_at);
            let within = match sure_for {
                Duration::ZERO => lease / 3,
                left => left.min(lease / 3),
            };
            let call = self.heartbeat(news.as_ref(), within.max(BEAT_MIN));
            let answer = self.desk.service.send(&call).await;
            match answer.and_then(|answer| answer.read::<Beat>()) {
                Ok(Beat { cancelled: true }) => break self.cord.cut(Cut::TaskCancelled),
                Ok(Beat { cancelled: false }) => {
                    news.iter().for_each(|news| self.saying.told(news));
                    sure_until = asked_at + lease;
                    next = asked_at + lease / 3;
                }
                Err(error) if is_over(&error) => break self.cord.cut(Cut::LeaseLost),
                Err(error) => {
                    let now = Instant::now();
                    tracing::debug!(task = %self.id, %error, "a heartbeat was not answered");
                    if now >= sure_until {
                        self.cord.cut(Cut::LeaseUnsure);
                    }
                    let pause = (lease / 9).clamp(BEAT_MIN, ANSWER_WITHIN);
                    next = match now < sure_until {
                        true => (now + pause).min(sure_until),
                        false => now + pause,
                    };
                }
            }
        }
        pending().await
    }

    /// Says it until the service has heard it.
    async fn tell(&self, mut said: Said) {
        let until = Instant::now() + TELL_WITHIN;
        // What was done needs no going on.
        if let (Said::NotDone(_), Some(news)) = (&said, self.saying.news()) {
            let call = self.heartbeat(Some(&news), ANSWER_WITHIN);
            // Without it the next attempt begins a little further back.
            let _ = self.desk.service.send(&call).await;
        }
        loop {
            let (verb, body) = said.body(self.token);
            let call = self.call(verb, body, ANSWER_WITHIN);
            let told = tokio::select! {
                told = send_until(&self.desk.service, &call, until) => told,
                () = self.desk.quit.cancelled() => {
                    tracing::warn!(task = %self.id, verb, "the service could not be told before the worker had to go");
                    return self.count(|counts| counts.untold += 1);
                }
            };
            let error = match told {
                Ok(_) => return self.count(|counts| counts.of(&said)),
                Err(error) => error,
            };
            if is_over(&error) {
                tracing::info!(task = %self.id, verb, %error, "the answer came too late");
                return self.count(|counts| counts.lost += 1);
            }
            match refused(&said, &error) {
                Some(instead) => said = instead,
                None => {
                    tracing::warn!(task = %self.id, verb, %error, "the service did not take what became of a task");
                    return self.count(|counts| counts.untold += 1);
                }
            }
        }
    }

    fn heartbeat(&self, news: Option<&News>, within: Duration) -> Call {
        let so_far = news.map(|news| &*news.so_far);
        let body = Body::default().with("token", &Some(self.token.0));
        let body = body.with("checkpoint", &so_far);
        self.call("heartbeat", body.bytes(), within)
    }

    fn call(&self, verb: &str, body: bytes::Bytes, within: Duration) -> Call {
        Call::post(&["leases", &self.id.to_string(), verb], body, within)
    }

    fn count(&self, change: impl FnOnce(&mut WorkerCounts)) {
        change(&mut self.desk.counts.lock());
    }
}

/// Of an answer: the attempt is not the present one any more.
fn is_over(error: &ClientError) -> bool {
    matches!(
        error.code(),
        Some("stale_token" | "not_found" | "illegal_state")
    )
}

/// What is said instead of what the service does not take, so that the task does not hang until its lease is over.
fn refused(said: &Said, error: &ClientError) -> Option<Said> {
    const CODE: &str = "answer_refused";
    if !matches!(error.status(), Some(400 | 413 | 422)) {
        return None;
    }
    match said {
        // Once more would be done once more, and refused once more.
        Said::Complete(_) => Some(Said::NotDone(NotDone::for_good(CODE, error.to_string()))),
        Said::NotDone(NotDone::Failed { code, .. }) if code == CODE => None,
        Said::NotDone(NotDone::Failed { retryable, .. }) => Some(Said::NotDone(match retryable {
            true => NotDone::failed(CODE, error.to_string()),
            false => NotDone::for_good(CODE, error.to_string()),
        })),
        Said::NotDone(NotDone::Snooze(_)) => {
            Some(Said::NotDone(NotDone::failed(CODE, error.to_string())))
        }
    }
}
