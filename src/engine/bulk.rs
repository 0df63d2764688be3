//! Bulk jobs: one verb for all tasks that a filter takes in. Durable, at a rate, held, ended and taken back by hand.
//!
//! ```text
//!  POST /v1/bulk ─▶ stored ─▶ 202          page by page, by due time ──▶
//!                     │         ░░░░░░░░▓▓▓▓·······························
//!                     │         done    in hand   still to come
//!                     └─ after a crash it goes on here ─┘
//! ```
//!
//! Nobody waits for all of it, and no request costs more because there are many tasks: a child of the watchdog takes
//! a page of at most [`BULK_STEP_MAX`](crate::limits::BULK_STEP_MAX) tasks at a time, looks at no more than
//! [`BULK_SCAN_MAX`](crate::limits::BULK_SCAN_MAX) records for it, and lets the job's rate pass before the next; so
//! what is due meanwhile finds every shard with a short queue.
//!
//! - **Once.** The tasks of a page are stored before anything happens to them. After a crash the same page is done
//!   again, and each task remembers the job that has been there, among the latest
//!   [`REQUESTS_KEPT`](crate::limits::REQUESTS_KEPT) requests that changed it.
//! - **An end.** Tasks newer than the job are none of its business, and one that it has been at is passed by wherever
//!   it goes; so there is less to do with each page.
//! - **Back.** Of a pause, a resume or a reschedule it is kept how each task was. An undo goes through the pages the
//!   other way, and touches only what nobody else has changed since: the latest line of the task's log is the job's.
//!
//! What somebody else moves to an earlier due time while a job is under way may be behind its place, and is missed by
//! it.
//!
//! Cost: two syncs of the registry's small database and one commit per shard for each page; 25 bytes for each task
//! that may be taken back, as long as the job is kept.

mod course;
mod driver;
pub mod job;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin, Parts};
use crate::engine::registry::{RegistryError, RegistryFiles};
use crate::store::StoreError;
use crate::wire::bulk::BulkAsk;

pub(super) use driver::run;
pub use job::{BulkId, BulkJob, BulkRefused, BulkState, BulkVerb};

/// Most wishes that wait.
const WISHES_MAX: usize = 256;
/// Longest wait for a wish to come true.
const WISH_TIME: Duration = Duration::from_secs(10);

/// What a caller may want.
enum Wish {
    Begin(Box<BulkJob>),
    Verb(BulkId, BulkVerb),
}

type Reply = oneshot::Sender<Result<Arc<BulkJob>, EngineError>>;

/// What the part and the rest of the engine share; it outlives the part's restarts.
#[derive(Default)]
pub(super) struct BulkBoard {
    wishes: Mutex<VecDeque<(Wish, Reply)>>,
    /// For whoever looks: as far as they are, of which a crash may forget the last second.
    jobs: RwLock<BTreeMap<BulkId, Arc<BulkJob>>>,
    bell: Notify,
    engine: OnceLock<Weak<Parts>>,
}

impl BulkBoard {
    /// Somebody moved the clock, or wishes something.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// The engine is up: the part may begin.
    pub fn open(&self, engine: &Duetime) {
        // Only one engine is started over these parts.
        let _ = self.engine.set(Arc::downgrade(&engine.parts));
        self.ring();
    }

    /// Shows what is stored, so that nobody who looks right after a start finds nothing.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn load(&self, files: &RegistryFiles) -> Result<(), StoreError> {
        for (id, stored) in files.bulk_jobs()? {
            if let Ok(job) = record::decode(BulkId(id), &stored) {
                self.show(&job);
            }
        }
        Ok(())
    }

    async fn rung(&self) {
        self.bell.notified().await;
    }

    fn next_wish(&self) -> Option<(Wish, Reply)> {
        self.wishes.lock().pop_front()
    }

    fn engine(&self) -> Option<Duetime> {
        let parts = self.engine.get()?.upgrade()?;
        Some(Duetime { parts })
    }

    fn show(&self, job: &BulkJob) -> Arc<BulkJob> {
        let shown = Arc::new(job.clone());
        self.jobs.write().insert(job.id, Arc::clone(&shown));
        shown
    }

    fn forget(&self, id: BulkId) {
        self.jobs.write().remove(&id);
    }
}

impl Duetime {
    /// Begins a bulk job. When this returns, it is on the disk and on its way. What is stored of the ask is its body,
    /// so it is one that [`BulkAsk::read`] has read.
    ///
    /// # Errors
    /// When as many as may be are under way; see [`EngineError`].
    pub async fn begin_bulk(
        &self,
        ask: BulkAsk,
        origin: Option<Origin>,
        by: &str,
    ) -> Result<Arc<BulkJob>, EngineError> {
        let now = self.now().wall;
        // Sent again, it is the same.
        let (id, begun) = match origin {
            Some(origin) => (origin.request(0), origin.first_at),
            None => (Uuid::new_v4().as_u64_pair().0, now),
        };
        let job = BulkJob::new(BulkId(id), ask, by.to_owned(), begun);
        let body = job.ask.body.clone();
        let job = self.wish_bulk(Wish::Begin(Box::new(job))).await?;
        self.audit_bulk(by, "begin", job.id, &body).await;
        Ok(job)
    }

    /// The bulk jobs that are kept, the latest first.
    pub fn bulk_jobs(&self) -> Vec<Arc<BulkJob>> {
        let mut jobs: Vec<Arc<BulkJob>> = self.parts.bulk.jobs.read().values().cloned().collect();
        jobs.sort_by_key(|job| (std::cmp::Reverse(job.progress.begun_ms), job.id));
        jobs
    }

    /// How far a bulk job is.
    ///
    /// # Errors
    /// When there is none of that id.
    pub fn bulk_job(&self, id: BulkId) -> Result<Arc<BulkJob>, EngineError> {
        let job = self.parts.bulk.jobs.read().get(&id).cloned();
        job.ok_or_else(|| BulkRefused::Unknown(id.to_string()).into())
    }

    /// Holds a bulk job, lets it go on, ends it, or takes back what it did.
    ///
    /// # Errors
    /// When its state or its action does not allow it; see [`EngineError`].
    pub async fn bulk_verb(
        &self,
        id: BulkId,
        verb: BulkVerb,
        by: &str,
    ) -> Result<Arc<BulkJob>, EngineError> {
        let job = self.wish_bulk(Wish::Verb(id, verb)).await?;
        self.audit_bulk(by, verb.name(), id, "").await;
        Ok(job)
    }

    async fn wish_bulk(&self, wish: Wish) -> Result<Arc<BulkJob>, EngineError> {
        self.accepting()?;
        let (reply, answer) = oneshot::channel();
        {
            let mut wishes = self.parts.bulk.wishes.lock();
            if wishes.len() >= WISHES_MAX {
                return Err(RegistryError::Overloaded.into());
            }
            wishes.push_back((wish, reply));
        }
        self.parts.bulk.ring();
        let done = tokio::time::timeout(WISH_TIME, answer).await;
        // Dropped unsaid when the part dies with it.
        done.unwrap_or(Ok(Err(RegistryError::Down.into())))
            .unwrap_or(Err(RegistryError::Down.into()))
    }

    async fn audit_bulk(&self, by: &str, verb: &str, id: BulkId, detail: &str) {
        let action = format!("bulk.{verb}");
        if let Err(error) = self.audit(by, &action, &id.to_string(), detail).await {
            // It is done, and is not undone by this.
            tracing::error!(%error, bulk = %id, verb, "audit line not written");
        }
    }
}
