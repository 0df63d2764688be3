//! What a panic says, for everybody who catches one or tells of one.
//!
//! A panic is thrown with a value. Nearly always that is a text, and then the text is all there is to know; code that we
//! do not know may throw anything, though, even a value that panics when it is dropped.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The words of a panic, from what was thrown.
pub fn words_of(thrown: &(dyn Any + Send)) -> &str {
    let words = thrown.downcast_ref::<&str>().copied();
    let words = words.or_else(|| thrown.downcast_ref::<String>().map(String::as_str));
    words.unwrap_or("(a value that is no text)")
}

/// The one sentence in which a panic is told, whoever tells it.
pub fn panicked(words: impl fmt::Display) -> String {
    format!("panicked: {words}")
}

/// Runs foreign code; a panic becomes its words.
///
/// What the code has changed before it panicked is its own business: nothing of ours is behind the closure.
///
/// # Errors
/// The panic's words.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(told)
}

/// The words of a panic that was caught. What was thrown ends here.
pub fn told(thrown: Box<dyn Any + Send>) -> String {
    let words = words_of(&*thrown).to_owned();
    discard(thrown);
    words
}

/// What was thrown has a destructor, which may panic in its turn, and so may what that throws. The second one is kept
/// for ever: a leak that needs two faults ends there, a loop might not.
fn discard(thrown: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    const WORDLESS: &str = "(a value that is no text)";

    /// Panics with itself, one level down, each time it is dropped.
    struct Spiteful(u32);

    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic_any(Spiteful(self.0 + 1));
        }
    }

    #[test]
    fn a_panic_becomes_its_words_whatever_it_was_made_of() {
        let number = 7;
        assert_eq!(contained(|| number), Ok(7));
        assert_eq!(contained(|| panic!("plain")), Err::<(), _>("plain".into()));
        let formatted = contained(|| panic!("with {number}"));
        assert_eq!(formatted, Err::<(), _>("with 7".into()));
        let wordless = contained(|| panic_any(number));
        assert_eq!(wordless, Err::<(), _>(WORDLESS.into()));
    }

    #[test]
    fn a_thrown_value_that_panics_whenever_it_is_dropped_is_survived() {
        let ended = contained(|| panic_any(Spiteful(0)));
        assert_eq!(ended, Err::<(), _>(WORDLESS.into()));
    }
}
