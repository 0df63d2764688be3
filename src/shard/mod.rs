//! A shard owns a slice of all tasks: it keeps them, wakes them, and is the only one that changes them.
//!
//! ```text
//!   router ──▶ actor ──▶ core ──▶ task::transition        what is asked, or rings
//!               │  ▲      └─▶ place (wheels)  table (index, shelf)  notes
//!               ▼  │
//!            committer ──▶ store                          what is written, before anything is done
//!               │
//!               └─▶ launch ──▶ executors                  what is started
//! ```
//!
//! [`core`] is pure: no actix, no store, no clock. [`actor`] is the thin shell around it. Other floors reach a
//! shard through [`router`] with one of the questions of [`messages`].

pub mod actor;
pub mod attempts;
pub mod audit;
mod callback;
pub mod committer;
pub mod completion;
pub mod core;
pub mod create;
pub mod forecast;
pub mod index;
pub mod late;
pub mod launch;
pub mod lease;
pub mod messages;
pub mod notes;
pub mod place;
pub mod play;
pub mod query;
pub mod rescue;
pub mod router;
pub mod shelf;
pub mod slots;
pub mod snapshot;
pub mod table;
pub mod tally;
pub mod wakes;
mod watched_reads;
