//! What a rule would make of the tasks that are stored, before it is put.
//!
//! ```text
//!  shards ── a snapshot each ──▶ a thread of its own: record by record, ≤ 4 s ──▶ Preview
//! ```
//!
//! The shards go on meanwhile: they are asked for a snapshot and for nothing else. The thread gives its turn away every
//! 64 tasks, so that it takes the time that is left over. Memory: one chunk at a time. What it does not get to in its
//! time it does not tell of: it says how many it has looked at, of how many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinError;

use crate::clock::{DurationMs, Now};
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::registry::RegistryError;
use crate::engine::what_if::{WhatIfRefused, draft};
use crate::rule::Rule;
use crate::rule::book::RuleBook;
use crate::rule::preview::Preview;
use crate::shard::query::TaskFilter;
use crate::shard::snapshot::{Found, Snapshot};
use crate::store::StoreError;
use crate::store::chunk::Class;
use crate::store::codec::decode_task;
use crate::task::spec::ResourceName;

/// Longest time that stored tasks are looked at.
const LOOK_TIME: Duration = Duration::from_secs(4);
/// So many tasks are looked at before others get their turn.
const TURN: u64 = 64;

/// Why a look at a snapshot ended.
enum Ended {
    /// Its time is over.
    Over,
    Storage(StoreError),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Storage(error)
    }
}

impl Duetime {
    /// What a rule would make of the stored tasks that go by it and match the filter, if it had this content and were in
    /// force for all of them; `None`: the content that it has. Nothing is changed.
    ///
    /// # Errors
    /// When there is no such rule, its content needs what is not there, or others are looking; see [`EngineError`].
    pub async fn preview_rule(
        &self,
        name: &ResourceName,
        candidate: Option<Rule>,
        filter: TaskFilter,
    ) -> Result<Preview, EngineError> {
        self.accepting()?;
        let kept = self.resource::<Rule>(name)?;
        let room = Arc::clone(&self.parts.what_ifs.room);
        let place = room.try_acquire_owned().map_err(|_| WhatIfRefused::Busy)?;
        let meaning = candidate.unwrap_or_else(|| kept.meaning.clone());
        let book = draft(&self.rules(), name, meaning, self.now().wall)?;
        let snapshots = self.snapshots().await.map_err(WhatIfRefused::NoSnapshot)?;
        let look = Look {
            name: name.clone(),
            book,
            filter,
            now: self.now(),
            max_delay: self.max_delay(),
        };
        let looked = self.parts.on_io.spawn_blocking(move || {
            let _place = place;
            look.at_all(snapshots)
        });
        match looked.await.map_err(JoinError::try_into_panic) {
            Ok(looked) => looked.map_err(|error| RegistryError::Storage(error).into()),
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => Err(EngineError::ShuttingDown),
        }
    }
}

/// What is looked for.
struct Look {
    name: ResourceName,
    book: RuleBook,
    filter: TaskFilter,
    now: Now,
    max_delay: DurationMs,
}

impl Look {
    fn at_all(&self, snapshots: Vec<Snapshot>) -> Result<Preview, StoreError> {
        let end = Instant::now() + LOOK_TIME;
        let waiting = [Class::Wall, Class::Steady, Class::InFlight, Class::Paused];
        let snapshots = snapshots.into_iter();
        let snapshots: Vec<Snapshot> = snapshots.map(|it| it.only(&waiting)).collect();
        let mut preview = Preview {
            of: snapshots.iter().map(Snapshot::tasks).sum(),
            ..Preview::default()
        };
        for snapshot in snapshots {
            match self.at(&snapshot, &mut preview, end) {
                Err(Ended::Storage(error)) => return Err(error),
                Err(Ended::Over) => break,
                Ok(()) => {}
            }
        }
        // It was an estimate.
        preview.of = preview.of.max(preview.looked_at);
        Ok(preview)
    }

    fn at(&self, snapshot: &Snapshot, preview: &mut Preview, end: Instant) -> Result<(), Ended> {
        snapshot.visit(&mut |found| {
            // What does not read back is told by doctor and by an export.
            let Found::Task(id, value) = found else {
                return Ok(());
            };
            preview.looked_at += 1;
            if preview.looked_at.is_multiple_of(TURN) {
                if Instant::now() > end {
                    return Err(Ended::Over);
                }
                std::thread::yield_now();
            }
            if let Ok(task) = decode_task(id, &value)
                && self.filter.admits(&task)
            {
                preview.look(&self.name, &task, &self.book, self.now, self.max_delay);
            }
            Ok(())
        })
    }
}
