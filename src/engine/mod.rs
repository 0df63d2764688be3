//! The engine: all floors below put together, as one thing that can be started, asked and stopped.
//!
//! [`Duetime`] is the embedded API; the HTTP routes, the command line and the demo are built on it and decide
//! nothing of their own.

mod amend;
pub mod backup;
pub(crate) mod batch;
mod boot;
pub mod bulk;
pub mod disk;
pub mod error;
pub mod export;
pub mod forecast;
pub mod handle;
pub mod journal_copies;
mod keeper;
mod known_topics;
mod late;
mod maker;
pub mod options;
mod preview;
pub mod registry;
mod reports;
mod resources;
mod rule_counts;
mod schedules;
pub mod status;
mod stop;
#[cfg(test)]
mod tests;
mod topics;
pub mod what_if;
pub mod workers;

pub use error::{EngineError, StartError};
pub use handle::Duetime;
pub use options::Builder;
