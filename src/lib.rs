//! duetime: a durable timeout center.
pub mod clock;
pub mod ids;
pub mod limits;
pub mod metrics;
pub mod task;
pub mod wheel;
pub mod store;
pub mod watchdog;
pub mod executor;
pub mod shard;
pub mod scheduler;
#[cfg(test)]
mod testing;
