//! What users say about time and tasks in languages of their own: when something is due, and whether.
//!
//! - [`cron`] says when something repeats, [`calendar`] when somebody works; both stand on [`local`], the one policy for
//!   clocks that jump.
//! - [`expr`] holds conditions over an answer.

pub mod book;
pub mod calendar;
pub mod cron;
pub mod expr;
pub mod local;
pub mod schedule;

pub use calendar::Calendar;
pub use cron::Cron;
pub use expr::{Expr, Fault, Flaw};
pub use schedule::Schedule;
