//! The wheel: who is due, and when to look again. Arithmetic only: it has no clock, no store, no I/O.
//!
//! Think of a desk calendar. Next year's appointments lie in a pile per day, unsorted, because nobody
//! needs their order yet; today's are sorted by hour, this hour's by minute, and only those of the present
//! second stand in a strict line. Each appointment is touched once per step on the way, never more.
//!
//! - [`bucket`]: the ranges of time, and their names (`202612011030`).
//! - [`Wheel`]: the piles, and how they are opened.
//!
//! **Invariants.** `wheel` knows nothing of the store, of tasks or of actors: an entry is any small `Copy`
//! value. Time is a plain `i64` of milliseconds of whichever clock the owner uses (a shard has one wheel
//! for each of its three); the names of buckets mean something only if that is the wall clock.

pub mod bucket;
#[expect(
    clippy::module_inception,
    reason = "the file is named for its subject, as all are"
)]
mod wheel;

pub use bucket::{BucketId, Level, minute_label};
pub use wheel::Wheel;
