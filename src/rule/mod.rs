//! What users say about time and tasks in languages of their own: when something is due, and whether.
//!
//! - [`cron`] says when something repeats, [`calendar`] when somebody works; both stand on [`local`], the one policy for
//!   clocks that jump.
//! - [`expr`] holds conditions and times over an answer or a task.
//! - [`model`] is a rule: the due time of a task that names none, or its stages ([`staged`]). [`rollout`] says who gets its
//!   latest version; [`again`] what it makes of a task that is stored, and [`preview`] of all of them.
//! - [`book`] is all of them at one moment.

pub mod again;
pub mod book;
pub mod calendar;
pub mod cron;
pub mod expr;
pub mod local;
pub mod model;
pub mod preview;
pub mod rollout;
pub mod schedule;
pub mod staged;

pub use calendar::Calendar;
pub use cron::Cron;
pub use expr::{Expr, Fault, Flaw};
pub use model::Rule;
pub use rollout::Rollout;
pub use schedule::Schedule;
