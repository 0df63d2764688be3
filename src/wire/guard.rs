//! What is no mistake of grammar, and is refused all the same.
//!
//! Parts of a body are kept as they came (a payload is handed on byte for byte), and a parser that skips over such
//! parts checks their grammar but neither their depth nor their escapes. What would hurt later is refused, so that
//! every piece of text cut out of the body afterwards is safe to keep, to embed and to parse:
//!
//! ```text
//!  [[[[[[…        deeper than 64 levels: a reader that recurses would run out of stack
//!  "\ud83d"       half of a surrogate pair: no text at all, and other readers refuse it
//! ```
//!
//! It is no parser: of text that is not JSON it may say anything, as the parser refuses it in any case. One pass,
//! no recursion, no allocation. It is asked for its words, once `scan` has said no.

use crate::limits;

/// What was found, and at which byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Flaw {
    /// Nested too deeply.
    #[error(
        "is nested more than {} levels deep at byte {at}",
        limits::JSON_DEPTH_MAX
    )]
    TooDeep {
        /// Offset of the bracket that is one too many.
        at: usize,
    },
    /// Half of a surrogate pair.
    #[error("has half of a surrogate pair (\\uD800 to \\uDFFF come in pairs) at byte {at}")]
    LoneSurrogate {
        /// Offset of the escape.
        at: usize,
    },
}

/// Looks through a JSON text.
///
/// # Errors
/// The first flaw.
pub fn check(json: &[u8]) -> Result<(), Flaw> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at = string_end(json, at + 1)?;
                continue;
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > limits::JSON_DEPTH_MAX {
                    return Err(Flaw::TooDeep { at });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The place behind a string whose first byte (behind the quote) is at `at`.
fn string_end(json: &[u8], mut at: usize) -> Result<usize, Flaw> {
    loop {
        match json.get(at) {
            Some(b'\\') => at = escape_end(json, at)?,
            Some(b'"') => return Ok(at + 1),
            Some(_) => at += 1,
            None => return Ok(at),
        }
    }
}

/// The place behind an escape whose backslash is at `at`; behind both, for a surrogate pair.
fn escape_end(json: &[u8], at: usize) -> Result<usize, Flaw> {
    match unit(json, at) {
        None => Ok((at + 2).min(json.len())),
        Some(0xD800..=0xDBFF) => match unit(json, at + 6) {
            Some(0xDC00..=0xDFFF) => Ok(at + 12),
            _ => Err(Flaw::LoneSurrogate { at }),
        },
        Some(0xDC00..=0xDFFF) => Err(Flaw::LoneSurrogate { at }),
        Some(_) => Ok(at + 6),
    }
}

/// The UTF-16 unit that `\uXXXX` at `at` stands for; `None` for anything else.
pub(super) fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some((unit << 4) | value as u16)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sixty_four_levels_are_taken_and_one_more_is_not() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(check(nested(64).as_bytes()), Ok(()));
        assert_eq!(check(nested(65).as_bytes()), Err(Flaw::TooDeep { at: 64 }));
        assert_eq!(
            check(nested(100_000).as_bytes()),
            Err(Flaw::TooDeep { at: 64 })
        );
        assert_eq!(
            check("[[]],".repeat(1000).as_bytes()),
            Ok(()),
            "side by side is not deep"
        );
    }

    #[test]
    fn brackets_inside_texts_do_not_count() {
        let json = format!(r#"{{"a": "{}\"{}"}}"#, "[".repeat(100), "{".repeat(100));
        assert_eq!(check(json.as_bytes()), Ok(()));
    }

    #[test]
    fn half_a_surrogate_pair_is_refused_wherever_it_stands() {
        for (json, at) in [
            (r#""\ud83d""#, 1),
            (r#""\ud83d\ud83d""#, 1),
            (r#""\ud83dx\ude00""#, 1),
            (r#"{"abcdefghij\uDE00": 1}"#, 12),
            (r#"["\\\ude00"]"#, 4),
        ] {
            assert_eq!(
                check(json.as_bytes()),
                Err(Flaw::LoneSurrogate { at }),
                "{json}"
            );
        }
        for json in [
            r#""\ud83d\ude00""#,
            r#""\\ud83d""#,
            r#""\u00fc""#,
            r#""\"[\ud83d\uDE00]""#,
            "\"\\",
            "\"\\ud8",
        ] {
            assert_eq!(check(json.as_bytes()), Ok(()), "{json}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_through(bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(prop::sample::select(&b"\"\\u{}[]dD8cf0 ,:"[..]), 0..200),
        ]) {
            let _ = check(&bytes);
        }

        /// serde_json reads whole values with a recursion limit of its own, and refuses lone surrogates.
        #[test]
        fn what_passes_and_is_json_can_be_parsed_in_full(text in r#"(\[|\{"a":)?("(\\u(d83d|de00|0041)|\\\\|\\"|[a-z\[]){0,6}",?){1,3}(\]|\})?"#) {
            let passes = check(text.as_bytes()).is_ok();
            let is_json = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            if is_json {
                prop_assert_eq!(passes, serde_json::from_str::<serde_json::Value>(&text).is_ok());
            }
        }
    }
}
