//! Finding the way through JSON text: is it sound, where does each part begin and end?
//!
//! Two ways over a text. One trusts nothing and decides whether the whole is sound; it tells the outermost parts as it
//! passes them, so that a body need not be walked over again. The other goes over text that was found sound, only
//! looks for where parts end, and so need not look at what they are made of:
//!
//! ```text
//!          {"topic": "orders", "payload": {"n": [1, 2]}}
//!  value   ^ every byte has to be where it is ─────────^    grammar, depth, escapes
//!  parts    ^─────── ^──────── ^───────── ^────────────^    quotes and brackets
//! ```
//!
//! Sound is what the general parser takes as one value *and* [`guard`](super::guard) lets pass; a property test holds the three
//! together. Words for what is wrong are theirs: here it is only yes or no.
//!
//! **Invariants.** No recursion, no allocation (but for a text with escapes), linear in the input; inside texts 8 bytes
//! at a time. Text that is not sound makes [`parts`] tell nonsense, but never panic or run on for ever.

use std::borrow::Cow;

use crate::limits;
use crate::wire::guard::unit;

/// The one JSON value that a text holds, without the space around it; `None` when it is not sound. The value's own
/// parts are told on the way, as [`parts`] does: they are worth nothing when the whole is not sound.
pub fn value<'j>(text: &'j str, part: impl FnMut(Cow<'j, str>, &'j str)) -> Option<&'j str> {
    let mut walk = Walk { text, at: 0 };
    walk.space();
    let begin = walk.at;
    walk.value(part)?;
    let value = walk.from(begin);
    walk.space().is_none().then_some(value)
}

/// The parts of a sound object or list, in order: the name of each, empty in a list, and its value.
pub fn parts<'j>(json: &'j str, mut part: impl FnMut(Cow<'j, str>, &'j str)) {
    let is_object = json.starts_with('{');
    let mut walk = Walk { text: json, at: 1 };
    while let Some(next) = walk.space() {
        if matches!(next, b'}' | b']') {
            return;
        }
        let mut name = Cow::Borrowed("");
        if is_object {
            name = text(walk.cut()).unwrap_or_default();
            walk.space();
            // The colon.
            walk.at += 1;
            walk.space();
        }
        part(name, walk.cut());
        if walk.space() == Some(b',') {
            walk.at += 1;
        }
    }
}

/// What a sound text says; `None` for any other value.
pub fn text(json: &str) -> Option<Cow<'_, str>> {
    let inside = json.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') {
        serde_json::from_str(json).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inside))
    }
}

/// A place in a text.
struct Walk<'j> {
    text: &'j str,
    at: usize,
}

impl<'j> Walk<'j> {
    fn bytes(&self) -> &'j [u8] {
        self.text.as_bytes()
    }

    /// What has been passed since `begin`.
    fn from(&self, begin: usize) -> &'j str {
        self.text.get(begin..self.at).unwrap_or_default()
    }

    fn next(&self) -> Option<u8> {
        self.bytes().get(self.at).copied()
    }

    /// Goes over space; what comes then.
    fn space(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.next() {
            self.at += 1;
        }
        self.next()
    }

    /// Goes over one value of any kind, and tells its parts.
    fn value(&mut self, mut part: impl FnMut(Cow<'j, str>, &'j str)) -> Option<()> {
        // A bit for each open bracket, the innermost the lowest: set for an object.
        const _: () = assert!(limits::JSON_DEPTH_MAX <= u64::BITS as usize);
        let (mut objects, mut depth) = (0_u64, 0);
        // Of the outermost part that is being passed.
        let (mut name, mut begin) = ("", 0);
        loop {
            let first = self.space()?;
            if depth == 1 {
                begin = self.at;
            }
            match first {
                b'"' => self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                b'{' | b'[' if depth < limits::JSON_DEPTH_MAX => {
                    self.at += 1;
                    let is_object = first == b'{';
                    match (self.space()?, is_object) {
                        (b'}', true) | (b']', false) => self.at += 1,
                        _ => {
                            objects = objects << 1 | u64::from(is_object);
                            depth += 1;
                            if is_object {
                                let passed = self.name()?;
                                name = if depth == 1 { passed } else { name };
                            }
                            continue;
                        }
                    }
                }
                _ => return None,
            }
            // Behind a value comes another, or the end of what it stands in.
            loop {
                if depth == 0 {
                    return Some(());
                }
                if depth == 1 {
                    part(text(name).unwrap_or_default(), self.from(begin));
                }
                let is_object = objects & 1 == 1;
                let next = self.space()?;
                self.at += 1;
                match (next, is_object) {
                    (b',', true) => {
                        self.space();
                        let passed = self.name()?;
                        name = if depth == 1 { passed } else { name };
                        break;
                    }
                    (b',', false) => break,
                    (b'}', true) | (b']', false) => {}
                    _ => return None,
                }
                objects >>= 1;
                depth -= 1;
            }
        }
    }

    /// Goes over a name and its colon; the name, as it is written.
    fn name(&mut self) -> Option<&'j str> {
        if self.next() != Some(b'"') {
            return None;
        }
        let begin = self.at;
        self.string()?;
        let name = self.from(begin);
        let is_colon = self.space() == Some(b':');
        self.at += 1;
        is_colon.then_some(name)
    }

    /// Goes over a text; it stands on the first quote.
    fn string(&mut self) -> Option<()> {
        let mut at = self.at + 1;
        loop {
            at = next_mark(self.bytes(), at);
            match self.bytes().get(at)? {
                b'"' => break,
                b'\\' => at = escape_end(self.bytes(), at)?,
                _ => return None,
            }
        }
        self.at = at + 1;
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        if self.next() == Some(b'-') {
            self.at += 1;
        }
        if self.next() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.next() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.next() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.next() {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let begin = self.at;
        while let Some(b'0'..=b'9') = self.next() {
            self.at += 1;
        }
        (self.at > begin).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        let is_there = self.bytes()[self.at..].starts_with(word);
        self.at += word.len();
        is_there.then_some(())
    }

    /// Goes over a value that is known to be sound, and cuts it out.
    fn cut(&mut self) -> &'j str {
        let begin = self.at;
        match self.next() {
            Some(b'"') => self.over_text(),
            Some(b'{' | b'[') => self.over_brackets(),
            _ => {
                while let Some(byte) = self.next()
                    && !matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\t' | b'\r')
                {
                    self.at += 1;
                }
            }
        }
        self.from(begin)
    }

    fn over_text(&mut self) {
        if self.string().is_none() {
            self.at = self.text.len();
        }
    }

    fn over_brackets(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.next() {
            match byte {
                b'"' => {
                    self.over_text();
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }
}

/// The place of the next quote, backslash or control character.
fn next_mark(json: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // A byte that is less borrows from its top bit; others may follow suit only above it.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGHS;
    let equal = |word: u64, wanted: u8| below(word ^ (ONES * u64::from(wanted)), 1);
    while let Some(eight) = json.get(at..).and_then(|rest| rest.first_chunk()) {
        let word = u64::from_le_bytes(*eight);
        let found = equal(word, b'"') | equal(word, b'\\') | below(word, b' ');
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = json.get(at..).unwrap_or_default();
    let is_mark = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..b' ');
    at + rest.iter().position(is_mark).unwrap_or(rest.len())
}

/// The place behind an escape whose backslash is at `at`; behind both, for a surrogate pair.
fn escape_end(json: &[u8], at: usize) -> Option<usize> {
    match json.get(at + 1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 2),
        b'u' => match (unit(json, at)?, unit(json, at + 6)) {
            (0xD800..=0xDBFF, Some(0xDC00..=0xDFFF)) => Some(at + 12),
            (0xD800..=0xDFFF, _) => None,
            _ => Some(at + 6),
        },
        _ => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;
    use crate::wire::guard;

    /// What the general parser and the guard say together.
    fn by_the_book(text: &str) -> Option<&str> {
        let value: &RawValue = serde_json::from_str(text).ok()?;
        guard::check(text.as_bytes()).ok()?;
        Some(value.get())
    }

    fn sound(text: &str) -> Option<&str> {
        value(text, |_, _| {})
    }

    fn parts_of(json: &str) -> Vec<(String, &str)> {
        let mut found = Vec::new();
        parts(json, |name, value| found.push((name.into_owned(), value)));
        found
    }

    #[test]
    fn what_is_sound_is_cut_out_of_the_space_around_it() {
        for (text, its) in [
            (" {\"a\": [1, {}]}\r\n", Some("{\"a\": [1, {}]}")),
            ("\t-0.5e+3 ", Some("-0.5e+3")),
            ("\"\\ud83d\\ude00\"", Some("\"\\ud83d\\ude00\"")),
            ("[]", Some("[]")),
            ("", None),
            ("{} {}", None),
            ("[1,]", None),
            ("{\"a\":1,}", None),
            ("{,}", None),
            ("[1}", None),
            ("{\"a\" 1}", None),
            ("01", None),
            ("1.", None),
            ("-", None),
            ("nul", None),
            ("\"\\x\"", None),
            ("\"\\ud83d\"", None),
            ("\"a\nb\"", None),
            ("\u{c}1", None),
        ] {
            assert_eq!(sound(text), its, "{text}");
            assert_eq!(by_the_book(text), its, "{text}");
        }
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(sound(&nested(64)).is_some() && sound(&nested(65)).is_none());
    }

    #[test]
    fn parts_are_told_in_order_with_their_names() {
        let object = r#"{ "a" : "x\"}" , "b\u0041\"":{"c":[1,"]"]},"":[], "n":-1.5e3 ,"a":null}"#;
        let found = parts_of(object);
        let named: Vec<(&str, &str)> = found.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        assert_eq!(
            named,
            [
                ("a", r#""x\"}""#),
                ("bA\"", r#"{"c":[1,"]"]}"#),
                ("", "[]"),
                ("n", "-1.5e3"),
                ("a", "null"),
            ]
        );
        let values: Vec<&str> = parts_of("[1 ,[2],\"3\",{}]")
            .into_iter()
            .map(|(_, v)| v)
            .collect();
        assert_eq!(values, ["1", "[2]", "\"3\"", "{}"]);
        assert!(parts_of("{}").is_empty() && parts_of("[ ]").is_empty());
    }

    /// JSON, or nearly: tokens in any order, many of them balanced.
    fn nearly_json() -> impl Strategy<Value = String> {
        let scalar = prop_oneof![
            Just("1".to_owned()),
            "-?(0|[1-9][0-9]{0,2})(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?",
            prop::sample::select(vec!["true", "false", "null", "nul", "\"\""])
                .prop_map(str::to_owned),
            r#""([a-zü ]|\\(u(d83d|de00|0041)|[\\"/bfnrtx])|[\x00-\x1f\x7f]?){0,12}""#,
        ];
        let value = scalar.prop_recursive(6, 40, 5, |inner| {
            let space = "[ \n\t\r\u{c}]{0,1}";
            let item = (space, inner.clone(), space).prop_map(|(a, v, b)| format!("{a}{v}{b}"));
            let member =
                (r#""(a|b|\\u0041|\\")?" ?"#, item.clone()).prop_map(|(n, v)| format!("{n}:{v}"));
            prop_oneof![
                prop::collection::vec(item, 0..4).prop_map(|all| format!("[{}]", all.join(","))),
                prop::collection::vec(member, 0..4)
                    .prop_map(|all| format!("{{{}}}", all.join(","))),
            ]
        });
        // One byte may be missing or stand twice.
        (value, any::<prop::sample::Index>(), 0..4_u8).prop_map(|(text, place, how)| {
            let mut chars: Vec<char> = text.chars().collect();
            let place = place.index(chars.len());
            match how {
                0 => drop(chars.remove(place)),
                1 => chars.insert(place, chars[place]),
                _ => {}
            }
            chars.into_iter().collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn sound_is_what_the_parser_takes_and_the_guard_lets_pass(text in prop_oneof![
            nearly_json(),
            "\\PC{0,30}",
            r#"[\[\]{}",:0-9a-f\\ud. \n-]{0,40}"#,
        ]) {
            prop_assert_eq!(sound(&text), by_the_book(&text));
        }

        #[test]
        fn parts_are_those_that_the_parser_finds(text in nearly_json()) {
            let mut told = Vec::new();
            let tell = |name: Cow<'_, str>, value| told.push((name.into_owned(), value));
            let Some(sound) = value(&text, tell) else { return Ok(()) };
            let mut theirs: Vec<(String, &str)> = Vec::new();
            if sound.starts_with('[') {
                let all: Vec<&RawValue> = serde_json::from_str(sound).unwrap();
                theirs.extend(all.into_iter().map(|value| (String::new(), value.get())));
            } else if sound.starts_with('{') {
                struct Members<'j>(Vec<(String, &'j str)>);
                impl<'j> serde::de::Visitor<'j> for Members<'j> {
                    type Value = Self;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'j>>(mut self, mut map: A) -> Result<Self, A::Error> {
                        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                            self.0.push((name, value.get()));
                        }
                        Ok(self)
                    }
                }
                let mut parser = serde_json::Deserializer::from_str(sound);
                theirs = serde::Deserializer::deserialize_map(&mut parser, Members(theirs)).unwrap().0;
            } else {
                return Ok(());
            }
            prop_assert_eq!(&parts_of(sound), &theirs);
            prop_assert_eq!(told, theirs);
        }

        #[test]
        fn parts_of_what_is_not_sound_come_to_an_end(text in r#"[\[\]{}",:0-9a\\ü ]{0,40}"#) {
            for begin in ["", "{", "["] {
                let text = format!("{begin}{text}");
                prop_assert!(parts_of(&text).len() <= text.len() + 1);
            }
        }
    }
}
