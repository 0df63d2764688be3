//! What is behind an error: each of its causes, and all of them on one line.

use std::error::Error;
use std::io;
use std::iter;

/// An error, and then each that is behind it.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| {
        // The `source` of an I/O error skips the error it was made of.
        let made_of = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        made_of.map(|inner| inner as _).or_else(|| error.source())
    })
}

/// What an error says, and then what each behind it says, if it says anything new.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("open the shop")]
    struct Outer(#[source] io::Error);

    #[test]
    fn every_cause_is_told_once_from_the_outside_in() {
        let inner = io::Error::other("the key is lost");
        let told = chain(&Outer(io::Error::other(inner)));
        assert_eq!(told, "open the shop: the key is lost");
        assert_eq!(chain(&io::Error::other("alone")), "alone");
    }
}
