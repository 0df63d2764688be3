//! From bytes to values, with the exact place of everything that is wrong.
//!
//! A body is read like a form by a friendly clerk: field by field, noting every mistake, and only at the end
//! saying yes or no. So a caller learns of all mistakes at once, each with a pointer:
//!
//! ```text
//!  bytes ─▶ text (UTF-8, JSON, depth)      wrong here: 400 for the whole
//!            └▶ Node  a value and its path        ┐
//!                ├─ text(), length(), whole(), …  │ wrong here: noted in Errors, 422
//!                └─ object(&Shape) ─▶ Object      │
//!                    └─ optional("key", f) ───────┘
//! ```
//!
//! Why not serde's derive: it stops at the first mistake, loses its place in untagged and flattened types, speaks of
//! Rust's types, and takes the last of two fields of one name without a word. Here a [`Shape`] declares the fields
//! once; what it does not name is refused, and `null` is the same as absent. Nothing is copied until a value is
//! taken: an [`Object`] holds slices of the body, one slot per declared field.
//!
//! **The one rule for readers:** a function that takes a [`Node`] returns `None` only after it has noted why.
//!
//! Cost: about 1 ns per byte for the check of the whole, less for each level of nesting that is looked into; the fields
//! of a body that is an object come with the check ([`decode_object`]).

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::RangeInclusive;

use serde_json::value::RawValue;

use crate::clock::DurationMs;
use crate::task::duration::{self, DurationError};
use crate::task::spec::{NameError, RawJson};
use crate::wire::guard::{self, Flaw};
use crate::wire::problem::{Code, FieldError, Problem};
use crate::wire::scan;

/// Most mistakes that are told in full; the rest is counted.
const ERRORS_TOLD_MAX: usize = 32;
/// Longest step of a pointer, in bytes; a longer name is cut.
const STEP_BYTES_MAX: usize = 256;
/// Most fields of one [`Shape`], with those beside it.
const SLOTS: usize = 20;

/// Reads a body.
///
/// # Errors
/// 400 when it is not JSON, 422 with all mistakes that `read` noted.
pub fn decode<T>(bytes: &[u8], read: impl FnOnce(Node<'_, '_>) -> Option<T>) -> Result<T, Problem> {
    decode_sound(sound(bytes)?, read)
}

/// Reads a body that is an object of this shape, in one walk over it.
///
/// # Errors
/// As [`decode`].
pub fn decode_object<T>(
    bytes: &[u8],
    shape: &'static Shape,
    read: impl FnOnce(&Object<'_, '_>) -> Option<T>,
) -> Result<T, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|_| not_json(bytes))?;
    let errors = Errors::default();
    let node = Node {
        json: text,
        path: Path::default(),
        errors: &errors,
    };
    let mut object = Object::new(node, shape, &[]);
    let sound = scan::value(text, |name, json| object.take(&name, json));
    object.node.json = sound.ok_or_else(|| not_json(bytes))?;
    if !object.node.is_object() {
        // What was told were no fields.
        return decode(bytes, |node| read(&node.object(shape)?));
    }
    let value = read(&object);
    errors.close()?;
    Ok(value.expect("a reader notes why it returns nothing"))
}

/// Reads a body that may be left out: an empty one counts as `{}`.
///
/// # Errors
/// As [`decode`].
pub fn decode_or_empty<T>(
    bytes: &[u8],
    read: impl FnOnce(Node<'_, '_>) -> Option<T>,
) -> Result<T, Problem> {
    let empty = bytes.iter().all(u8::is_ascii_whitespace);
    decode(if empty { b"{}" } else { bytes }, read)
}

/// Reads a part of a body that was found sound as a whole.
pub(super) fn decode_part<T>(
    bytes: &[u8],
    read: impl FnOnce(Node<'_, '_>) -> Option<T>,
) -> Result<T, Problem> {
    decode_sound(
        std::str::from_utf8(bytes).expect("it was cut out of a text"),
        read,
    )
}

fn decode_sound<T>(json: &str, read: impl FnOnce(Node<'_, '_>) -> Option<T>) -> Result<T, Problem> {
    let errors = Errors::default();
    let value = read(Node {
        json,
        path: Path::default(),
        errors: &errors,
    });
    errors.close()?;
    Ok(value.expect("a reader notes why it returns nothing"))
}

/// The one JSON value that the bytes hold, as text.
fn sound(bytes: &[u8]) -> Result<&str, Problem> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| scan::value(text, |_, _| {}))
        .ok_or_else(|| not_json(bytes))
}

/// Why the bytes are not one JSON value that is taken here.
#[cold]
fn not_json(bytes: &[u8]) -> Problem {
    let not_json = |why: &dyn fmt::Display| {
        Problem::new(Code::NotJson, format!("the body is not JSON: {why}"))
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return not_json(&"it is empty");
    }
    if let Err(error) = std::str::from_utf8(bytes) {
        return not_json(&format!("no UTF-8 at byte {}", error.valid_up_to()));
    }
    match guard::check(bytes) {
        // By JSON's grammar it may stand there, but it is no text.
        Err(flaw @ Flaw::LoneSurrogate { .. }) => {
            return Problem::of_field("", "invalid_text", flaw.to_string());
        }
        Err(flaw) => return Problem::new(Code::Malformed, format!("the body {flaw}")),
        Ok(()) => {}
    }
    match serde_json::from_slice::<&RawValue>(bytes) {
        Err(error) => not_json(&error),
        Ok(_) => not_json(&"it can't be read"),
    }
}

/// What is wrong with a body, gathered while it is read.
#[derive(Debug, Default)]
pub struct Errors {
    told: RefCell<Vec<FieldError>>,
    untold: Cell<usize>,
}

impl Errors {
    /// Notes a mistake.
    pub fn note(&self, path: &Path<'_>, code: &'static str, detail: impl Into<String>) {
        self.note_at(path, code, detail);
    }

    fn note_at(&self, at: impl fmt::Display, code: &'static str, detail: impl Into<String>) {
        let mut told = self.told.borrow_mut();
        if told.len() >= ERRORS_TOLD_MAX {
            self.untold.set(self.untold.get() + 1);
            return;
        }
        told.push(FieldError {
            pointer: at.to_string(),
            code,
            detail: detail.into(),
        });
    }

    /// The verdict.
    ///
    /// # Errors
    /// All that was noted, as one problem.
    pub fn close(self) -> Result<(), Problem> {
        let told = self.told.into_inner();
        if told.is_empty() {
            Ok(())
        } else {
            Err(Problem::of_fields(told, self.untold.get()))
        }
    }
}

/// Where a value stands: a chain of steps from the root, written out as a JSON pointer only when needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path<'p> {
    above: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Step<'p> {
    #[default]
    Root,
    Name(&'p str),
    Place(usize),
}

impl<'p> Path<'p> {
    /// One step down, to a field.
    pub fn field(&'p self, name: &'p str) -> Self {
        Self {
            above: Some(self),
            step: Step::Name(name),
        }
    }

    fn place(&'p self, place: usize) -> Self {
        Self {
            above: Some(self),
            step: Step::Place(place),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Place(place) => write!(f, "/{place}"),
            Step::Name(name) => {
                let end = (0..=name.len().min(STEP_BYTES_MAX))
                    .rev()
                    .find(|end| name.is_char_boundary(*end));
                let shown = &name[..end.unwrap_or(0)];
                write!(f, "/{}", shown.replace('~', "~0").replace('/', "~1"))?;
                f.write_str(if shown.len() < name.len() { "…" } else { "" })
            }
        }
    }
}

/// The fields that an object may have.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Those that are read.
    pub fields: &'static [&'static str],
    /// Those of the contract that are not built yet: refused with `not_supported`.
    pub not_built: &'static [&'static str],
}

/// An object without fields.
pub const NO_FIELDS: Shape = Shape {
    fields: &[],
    not_built: &[],
};

/// A value in a body: `'j` is the body's life, `'p` that of the path to it.
#[derive(Clone, Copy, Debug)]
pub struct Node<'j, 'p> {
    json: &'j str,
    path: Path<'p>,
    errors: &'p Errors,
}

impl<'j> Node<'j, '_> {
    /// Notes what is wrong with this value.
    pub fn refuse<T>(&self, code: &'static str, detail: impl Into<String>) -> Option<T> {
        self.errors.note(&self.path, code, detail);
        None
    }

    fn kind(&self) -> &'static str {
        match self.json.as_bytes().first() {
            Some(b'{') => "an object",
            Some(b'[') => "a list",
            Some(b'"') => "a text",
            Some(b't' | b'f') => "true or false",
            Some(b'n') => "null",
            _ => "a number",
        }
    }

    fn wrong_kind<T>(&self, wanted: &str) -> Option<T> {
        self.refuse(
            "wrong_type",
            format!("must be {wanted}, not {}", self.kind()),
        )
    }

    /// What was made of it as a text or body of its own; what is wrong there is wrong here.
    pub fn taken<T>(&self, read: Result<T, Problem>) -> Option<T> {
        let problem = match read {
            Ok(value) => return Some(value),
            Err(problem) => problem,
        };
        for error in problem.errors {
            let at = format_args!("{}{}", self.path, error.pointer);
            self.errors.note_at(at, error.code, error.detail);
        }
        None
    }

    /// As it stands in the body.
    pub fn bytes(&self) -> &'j [u8] {
        self.json.as_bytes()
    }

    /// Whether it is `null`, which is the same as absent.
    pub fn is_null(&self) -> bool {
        self.json == "null"
    }

    /// Whether it is an object.
    pub fn is_object(&self) -> bool {
        self.json.starts_with('{')
    }

    /// Whether it is a list.
    pub fn is_list(&self) -> bool {
        self.json.starts_with('[')
    }

    /// Any JSON of at most `bytes_max` bytes, as it came.
    pub fn raw(&self, bytes_max: usize) -> Option<RawJson> {
        if self.json.len() > bytes_max {
            let detail = format!(
                "is {} bytes long, at most {bytes_max} are allowed",
                self.json.len()
            );
            return self.refuse("too_long", detail);
        }
        Some(RawJson::from(self.json.to_owned()))
    }

    /// Any text.
    pub fn text(&self) -> Option<Cow<'j, str>> {
        scan::text(self.json).or_else(|| self.wrong_kind("a text"))
    }

    /// A text that the system takes: it may have line breaks, and no NUL.
    pub fn text_without_nul(&self) -> Option<String> {
        let text = self.text()?;
        if text.contains('\0') {
            return self.refuse("control_character", "must not contain NUL");
        }
        Some(text.into_owned())
    }

    /// A text that `parse` takes as a name.
    pub fn name<T>(&self, parse: impl FnOnce(&str) -> Result<T, NameError>) -> Option<T> {
        match parse(&self.text()?) {
            Ok(name) => Some(name),
            Err(error) => {
                let code = match error {
                    NameError::Empty => "empty",
                    NameError::TooLong { .. } => "too_long",
                    NameError::Control => "control_character",
                };
                self.refuse(code, error.to_string())
            }
        }
    }

    /// A text of 1 to `bytes_max` bytes without control characters.
    pub fn line(&self, bytes_max: usize) -> Option<Cow<'j, str>> {
        let text = self.text()?;
        self.name(|_| check_line(&text, bytes_max))?;
        Some(text)
    }

    /// One of these words, as what it stands for.
    pub fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, meaning)| *meaning);
        found.or_else(|| {
            self.refuse(
                "unknown_value",
                format!("must be {}", listed(words.iter().map(|(word, _)| *word))),
            )
        })
    }

    /// `true` or `false`.
    pub fn flag(&self) -> Option<bool> {
        match self.json {
            "true" => Some(true),
            "false" => Some(false),
            _ => self.wrong_kind("true or false"),
        }
    }

    /// A whole number in this range.
    pub fn whole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        if !self.is_number() {
            return self.wrong_kind("a number");
        }
        let number = self
            .json
            .parse()
            .ok()
            .filter(|number| range.contains(number));
        number.or_else(|| {
            let detail = format!(
                "must be a whole number from {} to {}",
                range.start(),
                range.end()
            );
            self.refuse("out_of_range", detail)
        })
    }

    /// A whole number with a sign.
    pub fn signed(&self) -> Option<i64> {
        if !self.is_number() {
            return self.wrong_kind("a number");
        }
        let number = self.json.parse().ok();
        number.or_else(|| self.refuse("out_of_range", "must be a whole number of 64 bits"))
    }

    /// A number in this range.
    pub fn number(&self, range: RangeInclusive<f64>) -> Option<f64> {
        if !self.is_number() {
            return self.wrong_kind("a number");
        }
        let number = self
            .json
            .parse()
            .ok()
            .filter(|number| range.contains(number));
        number.or_else(|| {
            let detail = format!("must be a number from {} to {}", range.start(), range.end());
            self.refuse("out_of_range", detail)
        })
    }

    fn is_number(&self) -> bool {
        self.json
            .starts_with(|first: char| first == '-' || first.is_ascii_digit())
    }

    /// An ISO 8601 duration in this range of milliseconds.
    pub fn length(&self, range_ms: RangeInclusive<u64>) -> Option<DurationMs> {
        if !self.json.starts_with('"') {
            return self.wrong_kind("a duration such as \"PT30M\"");
        }
        let bounds = || {
            let text = |ms: &u64| duration::format(DurationMs(*ms));
            format!(
                "must be a duration from {} to {}",
                text(range_ms.start()),
                text(range_ms.end())
            )
        };
        match duration::parse(&self.text()?) {
            Ok(length) if range_ms.contains(&length.0) => Some(length),
            Ok(_) => self.refuse("out_of_range", bounds()),
            Err(DurationError::TooLong | DurationError::Negative) => {
                self.refuse("out_of_range", bounds())
            }
            Err(error) => self.refuse("invalid_duration", error.to_string()),
        }
    }

    /// A list of at most `max` values, each read by `read`.
    pub fn list<T>(
        &self,
        max: usize,
        mut read: impl FnMut(Node<'j, '_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let parts = self.elements(max)?;
        let mut values = Vec::with_capacity(parts.len());
        for (place, json) in parts.iter().enumerate() {
            let path = self.path.place(place);
            values.extend(read(Node {
                json,
                path,
                errors: self.errors,
            }));
        }
        (values.len() == parts.len()).then_some(values)
    }

    /// The values of a list of at most `max`, as text.
    pub fn elements(&self, max: usize) -> Option<Vec<&'j str>> {
        if !self.json.starts_with('[') {
            return self.wrong_kind("a list");
        }
        let (mut found, mut count) = (Vec::new(), 0);
        scan::parts(self.json, |_, json| {
            count += 1;
            if count <= max {
                found.push(json);
            }
        });
        self.counted(count, max)?;
        Some(found)
    }

    fn counted(&self, count: usize, max: usize) -> Option<()> {
        if count > max {
            let detail = format!("has {count} entries, at most {max} are allowed");
            return self.refuse("too_many", detail);
        }
        Some(())
    }

    /// An object used as a map of at most `max` entries, each read by `read` with its name.
    pub fn entries<T>(
        &self,
        max: usize,
        mut read: impl FnMut(&str, Node<'j, '_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        if !self.is_object() {
            return self.wrong_kind("an object");
        }
        let (mut found, mut count) = (Vec::new(), 0);
        scan::parts(self.json, |name, json| {
            count += 1;
            if count <= max {
                found.push((name, json));
            }
        });
        self.counted(count, max)?;
        let mut values = Vec::with_capacity(found.len());
        for (place, (name, json)) in found.iter().enumerate() {
            let node = Node {
                json,
                path: self.path.field(name),
                errors: self.errors,
            };
            if found[..place].iter().any(|(earlier, _)| earlier == name) {
                node.refuse::<()>("duplicate_field", "stands there twice");
            } else {
                values.extend(read(name, node));
            }
        }
        (values.len() == found.len()).then_some(values)
    }

    /// An object of this shape.
    pub fn object(&self, shape: &'static Shape) -> Option<Object<'j, '_>> {
        self.object_beside(shape, &[])
    }

    /// An object of this shape that has the fields `beside` too.
    pub fn object_beside(
        &self,
        shape: &'static Shape,
        beside: &'static [&'static str],
    ) -> Option<Object<'j, '_>> {
        if !self.is_object() {
            return self.wrong_kind("an object");
        }
        let mut object = Object::new(*self, shape, beside);
        scan::parts(self.json, |name, json| object.take(&name, json));
        Some(object)
    }
}

fn check_line(text: &str, bytes_max: usize) -> Result<(), NameError> {
    if text.is_empty() {
        Err(NameError::Empty)
    } else if text.len() > bytes_max {
        Err(NameError::TooLong {
            is: text.len(),
            max: bytes_max,
        })
    } else if text.chars().any(char::is_control) {
        Err(NameError::Control)
    } else {
        Ok(())
    }
}

/// The word for a meaning: the reverse of [`Node::word`].
pub(super) fn word_of<T: PartialEq>(words: &[(&'static str, T)], meaning: &T) -> &'static str {
    let found = words.iter().find(|(_, known)| known == meaning);
    found.expect("every meaning has a word").0
}

/// `a`, `b` or `c`.
fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
    match words.as_slice() {
        [] => "absent".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// An object with declared fields.
#[derive(Debug)]
pub struct Object<'j, 'p> {
    node: Node<'j, 'p>,
    shape: &'static Shape,
    beside: &'static [&'static str],
    /// By place in `shape.fields`, then in `beside`.
    values: [Option<&'j str>; SLOTS],
    /// Of the fields that are there.
    marks: u64,
    /// A field was refused by its name.
    has_strangers: bool,
}

impl<'j, 'p> Object<'j, 'p> {
    fn new(node: Node<'j, 'p>, shape: &'static Shape, beside: &'static [&'static str]) -> Self {
        Self {
            node,
            shape,
            beside,
            values: [None; SLOTS],
            marks: 0,
            has_strangers: false,
        }
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.shape.fields.iter().chain(self.beside).copied()
    }

    fn slot(&self, name: &str) -> Option<usize> {
        // Most names differ in length or first letter, which is seen at once.
        let begin = |name: &str| (name.len(), name.as_bytes().first().copied());
        let wanted = begin(name);
        let is_it = |known: &&str| begin(known) == wanted && *known == name;
        let place = |names: &[&str]| names.iter().position(is_it);
        let beside = || place(self.beside).map(|place| self.shape.fields.len() + place);
        place(self.shape.fields).or_else(beside)
    }

    fn take(&mut self, name: &str, json: &'j str) {
        let slot = self.slot(name);
        let path = self.node.path.field(name);
        match slot.map(|slot| &mut self.values[slot]) {
            Some(value @ None) => {
                *value = Some(json);
                self.marks |= mark(name);
            }
            Some(Some(_)) => self
                .node
                .errors
                .note(&path, "duplicate_field", "stands there twice"),
            None if self.shape.not_built.contains(&name) => {
                // `null` asks for nothing.
                if json != "null" {
                    self.node.errors.note(
                        &path,
                        Code::NotSupported.name(),
                        "is not built yet in this version",
                    );
                    self.has_strangers = true;
                }
            }
            None => {
                let known = match self.names().next() {
                    Some(_) => format!(
                        "is not known here; known are {}",
                        listed(self.names()).replace(" or ", ", ")
                    ),
                    None => "is not known here; there are no fields".to_owned(),
                };
                self.node.errors.note(&path, "unknown_field", known);
                self.has_strangers = true;
            }
        }
    }

    fn get<'s>(&'s self, name: &'static str) -> Option<Node<'j, 's>> {
        if self.marks & mark(name) == 0 {
            debug_assert!(self.slot(name).is_some(), "{name} is no field here");
            return None;
        }
        let slot = self.slot(name);
        let json = self.values[slot.expect("only declared fields are asked for")]?;
        (json != "null").then_some(Node {
            json,
            path: self.node.path.field(name),
            errors: self.node.errors,
        })
    }

    /// Whether the field is there, and not null.
    pub fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    /// The field's value; `None` when it is absent, or wrong and noted.
    pub fn optional<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Node<'j, '_>) -> Option<T>,
    ) -> Option<T> {
        self.get(name).and_then(read)
    }

    /// The field's value; `None` when it is absent or wrong, both noted.
    pub fn required<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Node<'j, '_>) -> Option<T>,
    ) -> Option<T> {
        match self.get(name) {
            Some(node) => read(node),
            None => self.refuse(name, "missing", "is missing and always needed"),
        }
    }

    /// Which one of `names` is there; noted when it is none, or several.
    pub fn one_of(&self, names: &'static [&'static str]) -> Option<&'static str> {
        let mut given = names.iter().filter(|name| self.has(name));
        match (given.next(), given.next()) {
            (Some(one), None) => Some(one),
            (Some(one), Some(other)) => self.refuse(
                other,
                "conflict",
                format!("stands beside `{one}`; give one of them"),
            ),
            // What was meant has been refused by name already.
            (None, _) if self.has_strangers => None,
            (None, _) => self.node.refuse(
                "missing",
                format!("needs {}", listed(names.iter().copied())),
            ),
        }
    }

    /// Notes what is wrong with a field.
    pub fn refuse<T>(
        &self,
        name: &str,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Option<T> {
        self.node
            .errors
            .note(&self.node.path.field(name), code, detail);
        None
    }
}

/// A bit by which most names that are not there can be told apart from those that are.
fn mark(name: &str) -> u64 {
    let first = name.as_bytes().first().copied().unwrap_or_default();
    1 << ((usize::from(first) + 7 * name.len()) % 64)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests;
