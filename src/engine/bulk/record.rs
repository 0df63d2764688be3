//! A bulk job as the registry keeps it.

use serde::{Deserialize, Serialize};

use crate::clock::WallMs;
use crate::engine::bulk::job::{BulkId, BulkJob, Progress};
use crate::limits;
use crate::wire::bulk::BulkAsk;
use crate::wire::due::InLimits;

/// The ask is kept as the body that it was read from.
#[derive(Serialize, Deserialize)]
struct Record {
    body: String,
    by: String,
    progress: Progress,
}

/// As it is stored.
pub fn encode(job: &BulkJob) -> Vec<u8> {
    let record = Record {
        body: job.ask.body.clone(),
        by: job.by.clone(),
        progress: job.progress.clone(),
    };
    // Texts and numbers always become JSON.
    serde_json::to_vec(&record).unwrap_or_default()
}

/// Reads it back.
///
/// # Errors
/// What is wrong with it.
pub fn decode(id: BulkId, record: &[u8]) -> Result<BulkJob, String> {
    let record: Record = serde_json::from_slice(record).map_err(|error| error.to_string())?;
    // What was allowed when it began stays allowed.
    let in_limits = InLimits {
        max_delay: limits::MAX_DELAY,
        now: WallMs(record.progress.begun_ms),
    };
    let ask = BulkAsk::read(record.body.as_bytes(), &in_limits);
    Ok(BulkJob {
        id,
        ask: ask.map_err(|problem| problem.to_string())?,
        by: record.by,
        progress: record.progress,
    })
}
