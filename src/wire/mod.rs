//! What stands on the wire: JSON bodies and queries in, JSON answers out.
//!
//! A border post. Inside there are domain types that can't be wrong ([`TopicName`](crate::task::TopicName), `DurationMs`,
//! [`NewTask`](crate::task::NewTask)); outside there are bytes that may be anything. Whoever comes in is looked at once,
//! here, and never again:
//!
//! ```text
//!            scan             decode                 task_in, verbs, leases, topic, batch
//!  bytes ──────────▶ text ──────────▶ Node, Object ──────────────────────────────────────▶ domain types
//!    │  grammar, depth,     places of     words, ranges,
//!    │  surrogates          everything    defaults
//!    └─▶ 400 (guard)        └──────▶ 422: all mistakes, each with a JSON pointer (problem)
//!
//!  domain types ──────▶ task_out, topic, leases, batch: shapes that borrow ──────▶ bytes
//! ```
//!
//! Read [`problem`] first (what a caller is told), then [`decode`] (how bodies are read), then [`task_in`] (the
//! create, with all that can be said of a task). [`time`] has the rules for instants, [`list`] those for queries.
//!
//! - A field that is unknown is refused by name; a field of the contract that is not built yet says `not_supported`.
//! - `null` is the same as absent, in every field.
//! - Payload, facts and results are kept and answered as they came, byte for byte.
//! - Each body's fields are declared twice: in a `Shape`, which is read, and in a type with `ToSchema`, from which the
//!   OpenAPI document is made. A test for each pair keeps them the same.
//!
//! **Invariants.** `wire` knows the domain and what a shard is asked and shows (`Target`, `TaskFilter`, `TaskView`), and
//! nothing of HTTP servers, running actors or stores; it reads no clock. No input makes it panic or recurse, and its
//! work is linear in the input's length. What it lets through needs no second look.
//!
//! Cost, measured on a busy 2-core machine: 0.5 µs to read a create of 180 bytes without a push, 1.5 µs with one (a URL
//! is parsed), 0.4 µs a cancel by key; 2 µs to write a whole task, 0.3 µs a slim one. `benches/decode.rs` has a general
//! parser beside it.

pub mod action;
pub mod amend;
pub mod batch;
pub mod batch_out;
pub mod before_fire;
pub mod bulk;
pub mod calendar;
pub mod clocks;
pub mod completion;
pub mod create_out;
pub mod cron;
pub mod decode;
pub mod diff;
pub mod due;
pub mod forecast;
pub mod guard;
pub mod ics;
pub mod late;
pub mod leases;
pub mod list;
pub mod on_end;
mod params;
pub mod preview;
pub mod problem;
pub mod retry;
pub mod rule;
mod scan;
pub mod schedule;
pub mod simulate;
pub mod stages;
pub mod task_in;
pub mod task_line;
pub mod task_out;
pub mod time;
pub mod topic;
pub mod verbs;

pub use due::InLimits;
pub use problem::{Code, FieldError, Problem};

#[cfg(test)]
pub(crate) mod tests {
    use utoipa::ToSchema;
    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::Schema;

    use super::{InLimits, Problem};
    use crate::clock::{DurationMs, WallMs};

    /// When these tests play: 2026-11-30T00:53:20Z.
    pub const NOW: WallMs = WallMs(1_796_000_000_000);
    /// The limits of a service as it comes.
    pub const WIDE: InLimits = InLimits {
        max_delay: DurationMs::secs(3660 * 24 * 3600),
        now: NOW,
    };

    /// Pointers and codes of a 422.
    pub fn refused<T: std::fmt::Debug>(read: Result<T, Problem>) -> Vec<(String, &'static str)> {
        let problem = read.expect_err("it is to be refused");
        assert_eq!(problem.status(), 422, "{problem}");
        problem
            .errors
            .into_iter()
            .map(|error| (error.pointer, error.code))
            .collect()
    }

    /// The fields that the OpenAPI document shows for a body.
    pub fn properties<T: ToSchema>() -> Vec<String> {
        match T::schema() {
            RefOr::T(Schema::Object(object)) => object.properties.keys().cloned().collect(),
            _ => panic!("its schema is no object"),
        }
    }
}
