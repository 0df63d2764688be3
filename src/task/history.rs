//! What a task keeps of its past: its latest attempts and changes of state, and how many there were in all.

use crate::clock::WallMs;
use crate::ids::{AttemptNumber, AttemptToken};
use crate::limits;
use crate::task::model::State;
use crate::task::outcome::Outcome;
use crate::task::spec::StageName;

/// One attempt that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptRecord {
    /// Its number over all generations, from 1.
    pub attempt: AttemptNumber,
    /// Its fencing number.
    pub token: AttemptToken,
    /// The generation it belonged to.
    pub generation: u32,
    /// The stage it belonged to, of a staged task.
    pub stage: Option<StageName>,
    /// When it started; `None` if nobody knows that it did.
    pub started_at: Option<WallMs>,
    /// When its end was learnt.
    pub ended_at: WallMs,
    /// `http`, `pull`, `handler`, `poll`.
    pub executor: &'static str,
    /// The worker that held it, for a pull.
    pub worker: Option<String>,
    /// How it ended: an [`Outcome`]'s name.
    pub outcome: &'static str,
    /// The failure's code and message.
    pub error: Option<ErrorNote>,
}

/// A failure as it is shown: a stable code and a sentence, each cut by [`note`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorNote {
    /// Stable code.
    pub code: String,
    /// What happened.
    pub message: String,
}

impl ErrorNote {
    /// The note of a failed outcome; `None` for the others.
    pub fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Failed(failure) => Some(Self {
                code: note(&failure.code),
                message: note(&failure.message),
            }),
            Outcome::NotYet { answer } => Some(Self {
                code: outcome.name().to_owned(),
                message: note(answer),
            }),
            _ => None,
        }
    }
}

/// One change of state.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// When.
    pub at: WallMs,
    /// The state before; `None` at creation.
    pub from: Option<State>,
    /// The state after.
    pub to: State,
    /// Who: `api`, `shard`, `worker w1`, `recovery`, …
    pub by: String,
    /// Why, in a few words.
    pub why: String,
}

/// The latest entries of a growing list, and how many there were in all.
#[derive(Clone, Debug, PartialEq)]
pub struct Latest<T> {
    /// Oldest first, at most [`limits::HISTORY_KEPT`].
    pub kept: Vec<T>,
    /// All that ever were.
    pub total: u32,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            total: 0,
        }
    }
}

impl<T> Latest<T> {
    /// Adds the newest entry.
    pub fn push(&mut self, entry: T) {
        if self.kept.len() >= limits::HISTORY_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(entry);
        self.total = self.total.saturating_add(1);
    }
}

/// Cuts a text to [`limits::NOTE_BYTES_MAX`] at a character's edge.
pub fn note(text: &str) -> String {
    let mut end = text.len().min(limits::NOTE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
