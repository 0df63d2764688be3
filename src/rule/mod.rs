//! What users say about time and tasks in languages of their own: when something is due, and whether.
//!
//! - [`cron`] says when something repeats, [`calendar`] when somebody works; both stand on [`local`], the one policy for
//!   clocks that jump.
//! - [`expr`] holds conditions and times over an answer or a task.
//! - [`model`] is a rule: the due time of a task that names none. [`rollout`] says who gets its latest version.
//! - [`book`] is all of them at one moment.

pub mod book;
pub mod calendar;
pub mod cron;
pub mod expr;
pub mod local;
pub mod model;
pub mod rollout;
pub mod schedule;

pub use calendar::Calendar;
pub use cron::Cron;
pub use expr::{Expr, Fault, Flaw};
pub use model::Rule;
pub use rollout::Rollout;
pub use schedule::Schedule;
