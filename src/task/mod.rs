//! What a task is, and everything that can happen to it. Pure: no clock, no store, no actor.
//!
//! Read in this order: [`model`] (the nouns), [`event`] (what can happen), [`transition`] (the one function that
//! says what an event makes of a task), then [`stage`], [`clocks`], [`retry`] and [`duration`].

pub mod amendment;
pub mod callback;
pub mod clocks;
pub mod duration;
pub mod event;
pub mod guard;
pub mod history;
pub mod late;
pub mod model;
pub mod new_task;
pub mod outcome;
pub mod retry;
pub mod spec;
pub mod stage;
pub mod topic;
pub mod transition;

pub use event::{Event, Refusal};
pub use model::{Due, Lane, State, Task};
pub use new_task::{NewTask, When};
pub use outcome::{Failure, Outcome};
pub use spec::{Action, CommandAction, HttpAction, StageName, TaskKey, TaskSpec, TopicName};
pub use stage::{Stage, Stages, Starts};
