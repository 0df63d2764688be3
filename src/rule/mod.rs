//! What users say about tasks in a language of their own. So far that is [`expr`]: conditions over an answer.

pub mod expr;

pub use expr::{Expr, Fault, Flaw};
