//! Bulk jobs in the registry: a record each, and pages of the tasks that they have had in hand.
//!
//! A record and the pages that belong to it are stored in one sync, so a crash finds all of it or nothing.

use actix::{Context, Handler, Message};

use crate::engine::registry::desk::Desk;
use crate::engine::registry::{RegistryActor, RegistryError};
use crate::store::StoreError;

use super::files::{Edit, Place, RegistryFiles};

/// Stores a bulk job as it is now.
#[derive(Clone, Debug)]
pub struct StoreBulk {
    /// Its number.
    pub id: u64,
    /// What is to be known of it.
    pub record: Vec<u8>,
    /// The tasks that it takes in hand now, page by page, each with its number.
    pub pages: Vec<(u32, Vec<u8>)>,
}

/// Forgets a bulk job and its pages.
#[derive(Clone, Debug)]
pub struct ForgetBulk {
    /// Its number.
    pub id: u64,
}

/// Pages that are forgotten in one sync.
const FORGOTTEN_AT_A_TIME: usize = 64;

impl Message for StoreBulk {
    type Result = Result<(), RegistryError>;
}

impl Message for ForgetBulk {
    type Result = Result<(), RegistryError>;
}

impl Handler<StoreBulk> for RegistryActor {
    type Result = Result<(), RegistryError>;

    fn handle(&mut self, store: StoreBulk, ctx: &mut Context<Self>) -> Self::Result {
        self.work(ctx, |desk| desk.store_bulk(&store))
    }
}

impl Handler<ForgetBulk> for RegistryActor {
    type Result = Result<(), RegistryError>;

    fn handle(&mut self, forget: ForgetBulk, ctx: &mut Context<Self>) -> Self::Result {
        self.work(ctx, |desk| desk.forget_bulk(forget.id))
    }
}

impl Desk {
    fn store_bulk(&self, store: &StoreBulk) -> Result<(), RegistryError> {
        let id = store.id.to_be_bytes();
        let pages = store.pages.iter();
        let pages: Vec<_> = pages
            .map(|(number, tasks)| (page_key(store.id, *number), tasks))
            .collect();
        let mut edits = vec![Edit {
            place: Place::Bulk,
            key: &id,
            record: Some(&store.record),
        }];
        edits.extend(pages.iter().map(|(key, tasks)| Edit {
            place: Place::BulkPages,
            key,
            record: Some(tasks),
        }));
        Ok(self.files.change(self.owner, &edits)?)
    }

    /// The record goes last: what a crash leaves is found by it.
    fn forget_bulk(&self, id: u64) -> Result<(), RegistryError> {
        loop {
            let keys = self.files.bulk_page_keys(id, FORGOTTEN_AT_A_TIME)?;
            let is_last = keys.len() < FORGOTTEN_AT_A_TIME;
            let gone = |place, key| Edit {
                place,
                key,
                record: None,
            };
            let pages = keys.iter().map(|key| gone(Place::BulkPages, key));
            let mut edits: Vec<Edit<'_>> = pages.collect();
            let key = id.to_be_bytes();
            if is_last {
                edits.push(gone(Place::Bulk, &key));
            }
            self.files.change(self.owner, &edits)?;
            if is_last {
                return Ok(());
            }
        }
    }
}

pub(super) fn page_key(id: u64, number: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

impl RegistryFiles {
    /// The records of all bulk jobs.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn bulk_jobs(&self) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let stored = self.stored(Place::Bulk, &[], usize::MAX)?;
        let number = |key: &[u8]| key.try_into().map(u64::from_be_bytes).ok();
        let jobs = stored.into_iter();
        Ok(jobs
            .filter_map(|(key, record)| Some((number(&key)?, record)))
            .collect())
    }

    /// One page of a bulk job.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn bulk_page(&self, id: u64, number: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let stored = self.stored(Place::BulkPages, &page_key(id, number), 1)?;
        Ok(stored.into_iter().next().map(|(_, page)| page))
    }

    fn bulk_page_keys(&self, id: u64, most: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let stored = self.stored(Place::BulkPages, &id.to_be_bytes(), most)?;
        Ok(stored.into_iter().map(|(key, _)| key).collect())
    }
}
