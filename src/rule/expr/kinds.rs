//! Times and lengths of time in expressions.
//!
//! A time is a number of milliseconds when an expression runs, and so is a length. What keeps them apart from other
//! numbers, and from one another, is known from the text alone: `created_at` and `timestamp("…")` are times,
//! `duration("…")` is a length, and
//!
//! ```text
//!  time + length = time     time - time = length     length + length = length     length * number = length
//! ```
//!
//! Everything else that a time would meet is a mistake, and is told when the expression is given. So a fact that
//! happens to be a number never becomes a due time by accident: `created_at + facts.wait` has to say what `facts.wait`
//! is.

use cel::common::ast::operators;

/// What a part of an expression gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Something else: a text, a number, true or false, or not known before it runs.
    Plain,
    /// An instant.
    Time,
    /// A length of time.
    Length,
}

use Kind::{Length, Plain, Time};

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Time => "a time",
            Length => "a length of time",
            Plain => "something that is neither a time nor a length of time",
        }
    }
}

/// What a call gives for arguments of these kinds (a method's target is the first).
///
/// # Errors
/// When it makes no sense, with why.
pub(super) fn of_call(name: &str, args: &[Kind]) -> Result<Kind, String> {
    if args.iter().all(|kind| *kind == Plain) {
        return Ok(match name {
            "timestamp" => Time,
            "duration" => Length,
            _ => Plain,
        });
    }
    let given = match (name, args) {
        (operators::ADD, [Time, Length] | [Length, Time]) => Time,
        (operators::ADD | operators::SUBSTRACT, [Length, Length]) => Length,
        (operators::SUBSTRACT, [Time, Length]) => Time,
        (operators::SUBSTRACT, [Time, Time]) => Length,
        (operators::MULTIPLY, [Length, Plain] | [Plain, Length]) => Length,
        (operators::DIVIDE, [Length, Plain]) | (operators::NEGATE, [Length]) => Length,
        (operators::DIVIDE, [Length, Length]) => Plain,
        (
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS,
            [Time, Time] | [Length, Length],
        ) => Plain,
        (operators::CONDITIONAL, [Plain, one, other]) if one == other => *one,
        _ => return Err(why_not(name, args)),
    };
    Ok(given)
}

/// What a list, a map or a field of something may hold.
///
/// # Errors
/// When it is a time or a length.
pub(super) fn of_part(kind: Kind) -> Result<(), String> {
    match kind {
        Plain => Ok(()),
        Time | Length => Err(format!(
            "{} has no parts, and is no part of anything",
            kind.words()
        )),
    }
}

fn why_not(name: &str, args: &[Kind]) -> String {
    let symbol = name.trim_matches('_');
    let hint = "a text becomes a time by timestamp(…), and a length by duration(…)";
    match args {
        [one, other] => format!(
            "`{symbol}` makes no sense between {} and {}; {hint}",
            one.words(),
            other.words()
        ),
        _ => {
            let what = args.iter().find(|kind| **kind != Plain);
            let what = what.map_or("this", |kind| kind.words());
            format!("`{symbol}` makes no sense for {what}; {hint}")
        }
    }
}
