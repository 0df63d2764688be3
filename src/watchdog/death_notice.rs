//! The last thing a child does: a drop guard that tells the watchdog.
//!
//! actix says nothing when an actor goes: later messages to it vanish. But whatever ends an actor (a panic, a
//! stop, its arbiter going down) drops it, and dropping a field of it is enough to be heard. The one end that
//! is not heard is a thread that never comes back; for that there is the [`pulse`](super::pulse).
//!
//! Fields drop in the order they are declared: make the notice the **last** field, so that a successor is
//! only started when everything else of its predecessor is gone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::NOTE_BYTES_MAX;
use crate::panics::words_of;

use super::child::{ChildId, Generation};

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathCause {
    /// It was dropped by a panic.
    Panicked,
    /// It was dropped in the ordinary way.
    Stopped,
}

/// What a death notice says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Death {
    /// Which child.
    pub child: ChildId,
    /// Which incarnation of it.
    pub generation: Generation,
    /// How it ended.
    pub cause: DeathCause,
    /// Why, in the child's own words; at most 1 KiB.
    pub last_words: Option<String>,
}

/// Held by a child for as long as it lives; reports the [`Death`] when dropped.
pub struct DeathNotice {
    child: ChildId,
    generation: Generation,
    last_words: LastWords,
    report: Option<Box<dyn FnOnce(Death) + Send>>,
}

impl DeathNotice {
    /// A notice that calls `report` when it is dropped. `report` must neither block nor panic: it may run
    /// while a panic unwinds.
    pub fn new(
        child: ChildId,
        generation: Generation,
        report: impl FnOnce(Death) + Send + 'static,
    ) -> Self {
        Self {
            child,
            generation,
            last_words: LastWords::default(),
            report: Some(Box::new(report)),
        }
    }

    /// Leaves word of why the child is about to end. The watchdog logs it; the child need not.
    pub fn last_words(&mut self, fault: impl Into<String>) {
        self.last_words.say(fault);
    }

    /// What its last words are written on, to be had while the child is at work.
    pub fn words(&self) -> LastWords {
        self.last_words.clone()
    }
}

/// A slip of paper for a child's last words. Clones are the same slip.
#[derive(Clone, Default)]
pub struct LastWords(Arc<Mutex<Option<String>>>);

impl LastWords {
    fn say(&self, fault: impl Into<String>) {
        let mut fault = fault.into();
        fault.truncate(fault.floor_char_boundary(NOTE_BYTES_MAX));
        *self.0.lock() = Some(fault);
    }

    /// Does `work`; if it panics, writes down with which message, and lets the panic go on.
    pub fn hear<T>(&self, work: impl FnOnce() -> T) -> T {
        // Whatever the panic has left half done goes down with the child.
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|thrown| {
            self.say(words_of(&*thrown));
            resume_unwind(thrown)
        })
    }
}

impl Drop for DeathNotice {
    fn drop(&mut self) {
        let cause = if std::thread::panicking() {
            DeathCause::Panicked
        } else {
            DeathCause::Stopped
        };
        if let Some(report) = self.report.take() {
            report(Death {
                child: self.child,
                generation: self.generation,
                cause,
                last_words: self.last_words.0.lock().take(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;

    use super::*;

    fn death_of(end: impl FnOnce(DeathNotice)) -> Option<Death> {
        let (told, hear) = mpsc::channel();
        let notice = DeathNotice::new(ChildId(3), Generation(7), move |death| {
            let _ = told.send(death);
        });
        let _ = catch_unwind(AssertUnwindSafe(|| end(notice)));
        let death = hear.try_recv().ok();
        assert!(hear.try_recv().is_err(), "told twice");
        death
    }

    #[test]
    fn a_dropped_child_says_that_it_stopped_and_why() {
        let found = death_of(|mut notice| notice.last_words("commit failed"));
        let expected = Death {
            child: ChildId(3),
            generation: Generation(7),
            cause: DeathCause::Stopped,
            last_words: Some("commit failed".into()),
        };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn a_panicking_child_says_that_it_panicked() {
        let found = death_of(|_notice| panic!("a test's panic"));
        assert_eq!(found.map(|death| death.cause), Some(DeathCause::Panicked));
    }

    #[test]
    fn the_message_of_a_panic_that_was_heard_is_handed_on() {
        let found = death_of(|notice| notice.words().hear(|| panic!("a test's {}", "panic")));
        let expected = (DeathCause::Panicked, Some("a test's panic".to_owned()));
        assert_eq!(
            found.map(|death| (death.cause, death.last_words)),
            Some(expected)
        );
    }

    #[test]
    fn last_words_are_cut_at_a_character() {
        let found = death_of(|mut notice| notice.last_words("é".repeat(NOTE_BYTES_MAX)));
        let words = found.and_then(|death| death.last_words);
        assert_eq!(words.map(|words| words.len()), Some(NOTE_BYTES_MAX));
    }
}
