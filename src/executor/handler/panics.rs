//! Foreign code may panic with anything, anywhere: what it panics with ends here, in words.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code; a panic becomes its message.
///
/// What the code has changed before it panicked is its own business: nothing of ours is behind the closure.
pub(super) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let words = words_of(payload.as_ref());
        discard(payload);
        words
    })
}

fn words_of(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|words| (*words).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked without a message".to_owned())
}

/// A payload has a destructor, which may panic in its turn, and so may that payload's. The second one is kept for
/// ever: a leak that needs two faults ends there, a loop might not.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Panics with itself, one level down, each time it is dropped.
    struct Spiteful(u32);

    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic_any(Spiteful(self.0 + 1));
        }
    }

    #[test]
    fn a_panic_becomes_its_message_whatever_it_was_made_of() {
        let number = 7;
        assert_eq!(contained(|| number), Ok(7));
        assert_eq!(contained(|| panic!("plain")), Err::<(), _>("plain".into()));
        let formatted = contained(|| panic!("with {number}"));
        assert_eq!(formatted, Err::<(), _>("with 7".into()));
        let wordless = contained(|| panic_any(number)).map(|(): ()| ());
        assert!(wordless.is_err_and(|words| words.contains("without a message")));
    }

    #[test]
    fn a_payload_that_panics_whenever_it_is_dropped_is_survived() {
        let ended = contained(|| panic_any(Spiteful(0))).map(|(): ()| ());
        assert!(ended.is_err_and(|words| words.contains("without a message")));
    }
}
