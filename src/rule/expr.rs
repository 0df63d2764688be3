//! Expressions of users, in [CEL](https://cel.dev): `status == 200 && body.paid`.
//!
//! An expression is input, so it is taken in with suspicion and bounded before it ever runs:
//!
//! ```text
//!  source ≤ 1 KiB ─ parse, depth ≤ 32 ─ names and functions known? ─ worst cost ≤ 1 Mi ─▶ Expr
//!  inputs ≤ 8 KiB each, only those it reads ───────────────────────────────────────────▶ true, false or a Fault
//! ```
//!
//! There are no comprehensions (`all`, `exists`, `map`, …), so an expression has no loops, and what it may cost at
//! worst is known from its text: each operation costs the size of what it works on, an input counts as 8 KiB. What
//! could cost more than the budget is refused when it is given, not cut off when it runs; the worst that passes takes
//! about 25 ms, a usual one 2 µs. Parsing takes 5 to 50 µs, and is done once per text ([`Expr::shared`]).
//!
//! Times and lengths of time are told apart from numbers, and from one another, by the text alone (`kinds`), so a
//! [`TimeExpr`] gives an instant whenever it gives anything.
//!
//! An error is never a silent true: a field that is missing, a comparison that makes no sense, a panic in the library
//! are all a [`Fault`]. `has(body.paid)` asks whether a field is there.
//!
//! Invariant: nothing else in the crate knows the library behind this.

mod kinds;

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr as Node, LiteralValue, SelectExpr, SourceInfo, operators};
use cel::parser::Macro;
use cel::{Context, Env, ExecutionError, IdedExpr, Value};
use parking_lot::Mutex;
use serde_json::Value as Json;

use crate::clock::WallMs;
use crate::task::duration;

use crate::limits::{EXPR_BYTES_MAX, EXPR_INPUT_BYTES_MAX};
use kinds::Kind;

/// Deepest nesting, of brackets and of operations.
const DEPTH_MAX: u16 = 32;
/// Most that evaluating may cost at worst, in bytes looked at.
const COST_MAX: usize = 1024 * 1024;
/// Most expressions that are kept parsed.
const SHARED_MAX: usize = 1024;
/// Longest part of the library's own message that is passed on, in characters.
const MESSAGE_CHARS_MAX: usize = 160;

/// Names that an expression may use.
pub type Names = &'static [&'static str];

/// The names that stand for times, wherever they may be used.
const TIMES: [&str; 2] = ["created_at", "now"];
/// Whoever evaluates gives these as milliseconds of Unix time.
const TIME_FUNCTIONS: [&str; 2] = ["timestamp", "duration"];

/// The names an expression over a task may use: its facts (an object), topic, key (a text or null), tags (an object of
/// texts), and two times.
pub const TASK: Names = &["facts", "topic", "key", "tags", "created_at", "now"];

/// The names an expression over an answer may use: the number, an object of texts by lower-case name, and the body's
/// JSON (the text itself if it is none).
pub const ANSWER: Names = &["status", "headers", "body"];

/// Functions called as `size(x)`, each of one argument.
const FUNCTIONS: [&str; 8] = [
    "size",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "timestamp",
    "duration",
];
/// Functions called as `x.contains(y)`, with their number of arguments.
const METHODS: [(&str, usize); 4] = [
    ("size", 0),
    ("contains", 1),
    ("startsWith", 1),
    ("endsWith", 1),
];
/// Operators whose result is true, false or a number, whatever they are given.
const TO_SCALAR: [&str; 18] = [
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::NEGATE,
    "size",
    "timestamp",
    "duration",
];
/// Operators whose result is as large as what they are given.
const TO_SAME: [&str; 3] = [operators::ADD, operators::CONDITIONAL, operators::INDEX];

/// The library's standard functions and `has`, without its loops.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::default().with_optional_support(false).with_stdlib();
    let has = Macro::global(operators::HAS, 1, |helper, _, args| match args.pop() {
        Some(IdedExpr {
            expr: Node::Select(field),
            ..
        }) => Ok(Some(helper.next_expr(Node::Select(SelectExpr {
            test: true,
            ..field
        })))),
        other => {
            let at = other.map_or(0, |node| node.id);
            Err(helper.new_error(at, "has(…) asks for a field, such as has(body.paid)"))
        }
    });
    env.add_macro(has)
        .expect("an environment without macros has no other `has`");
    Arc::new(env)
});

/// Expressions that were asked for lately.
static SHARED: LazyLock<Mutex<Shared>> = LazyLock::new(Mutex::default);

/// By the names that they may use, and their source.
type Shared = HashMap<(Names, String), Arc<Expr>>;

/// An expression that was parsed, and can be evaluated within the budget.
#[derive(Debug)]
pub struct Expr {
    source: String,
    root: IdedExpr,
    reads: Vec<&'static str>,
    /// Uses the functions that make times and lengths of texts.
    reckons: bool,
    cost: usize,
    /// Gives a time whenever it gives anything.
    is_time: bool,
}

/// What is wrong with an expression, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Line and column, both from 1; `None`: all of it.
    pub at: Option<(usize, usize)>,
    /// What is wrong there, and what would be right.
    pub detail: String,
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// What it reads is larger than an expression may look at.
    #[error("`{name}` is larger than the {EXPR_INPUT_BYTES_MAX} bytes that an expression may read")]
    TooLarge {
        /// The name of what is too large.
        name: String,
    },
    /// It went wrong.
    #[error("{0}")]
    Failed(String),
    /// It has a value, but not true or false.
    #[error("gives {0}, where true or false is needed")]
    NotBool(String),
    /// Its value is no instant.
    #[error("{0}")]
    NotTime(String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((1, column)) => write!(f, "at character {column}: {}", self.detail),
            Some((line, column)) => {
                write!(f, "at line {line}, character {column}: {}", self.detail)
            }
            None => f.write_str(&self.detail),
        }
    }
}

impl Expr {
    /// Parses an expression that may use `names`.
    ///
    /// # Errors
    /// With what is wrong in it: its syntax, a name or function that there is not, its length, depth or cost.
    pub fn parse(source: &str, names: Names) -> Result<Self, Flaw> {
        match Self::of(source, names)? {
            (expr, Kind::Plain) => {
                if expr.reads.is_empty() {
                    let told = |fault: Fault| Flaw::whole(fault.to_string());
                    expr.holds(|_| Ok(Json::Null)).map_err(told)?;
                }
                Ok(expr)
            }
            (_, Kind::Time | Kind::Length) => {
                let detail = "gives a time, where true or false is needed";
                Err(Flaw::whole(detail.to_owned()))
            }
        }
    }

    fn of(source: &str, names: Names) -> Result<(Self, Kind), Flaw> {
        if source.len() > EXPR_BYTES_MAX {
            let is = source.len();
            return Err(Flaw::whole(format!(
                "is {is} bytes long, at most {EXPR_BYTES_MAX} are allowed"
            )));
        }
        let parser = ENV.parser().max_recursion_depth(DEPTH_MAX);
        let parsed = catch_unwind(AssertUnwindSafe(|| parser.parse_with_source_info(source)));
        let (root, places) = match parsed {
            Ok(parsed) => parsed.map_err(|errors| flaw_of(&errors))?,
            Err(_) => return Err(Flaw::whole("can't be read".to_owned())),
        };
        let mut check = Check {
            names,
            source,
            places: &places,
            reads: Vec::new(),
            reckons: false,
            cost: 0,
        };
        let (_, kind) = check.node(&root, 1)?;
        if check.cost > COST_MAX {
            return Err(Flaw::whole(format!(
                "may cost {} units at worst, at most {COST_MAX} are allowed: each operation costs the size of what \
                 it works on, and an input counts as {EXPR_INPUT_BYTES_MAX}",
                check.cost
            )));
        }
        let (reads, reckons, cost) = (check.reads, check.reckons, check.cost);
        let expr = Self {
            source: source.to_owned(),
            root,
            reads,
            reckons,
            cost,
            is_time: kind == Kind::Time,
        };
        if expr.reads.is_empty() {
            // It always has the same value, so its faults can be told now.
            expr.value(|_| Ok(Json::Null))
                .map_err(|fault| Flaw::whole(fault.to_string()))?;
        }
        Ok((expr, kind))
    }

    /// The same as [`parse`](Self::parse), from those that were parsed already.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn shared(source: &str, names: Names) -> Result<Arc<Self>, Flaw> {
        let key = (names, source.to_owned());
        let known = SHARED.lock().get(&key).cloned();
        if let Some(expr) = known {
            return Ok(expr);
        }
        let expr = Arc::new(Self::parse(source, names)?);
        let mut shared = SHARED.lock();
        if shared.len() >= SHARED_MAX {
            shared.clear();
        }
        shared.insert(key, Arc::clone(&expr));
        Ok(expr)
    }

    /// What evaluating it may cost at worst, in bytes looked at: about 40 to the microsecond.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Whether it reads this name.
    pub fn reads(&self, name: &str) -> bool {
        self.reads.contains(&name)
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it is true. `input` is asked once for each name that it reads.
    ///
    /// # Errors
    /// When it has no value, or one that is neither true nor false; and as `input` says.
    pub fn holds(&self, input: impl Fn(&str) -> Result<Json, Fault>) -> Result<bool, Fault> {
        match self.value(input)? {
            Value::Bool(holds) => Ok(holds),
            other => Err(not_bool(&other)),
        }
    }

    fn value(&self, input: impl Fn(&str) -> Result<Json, Fault>) -> Result<Value, Fault> {
        let mut context = Context::with_env(Arc::clone(&ENV));
        if self.reckons {
            let added = [
                context.add_function(TIME_FUNCTIONS[0], timestamp),
                context.add_function(TIME_FUNCTIONS[1], length),
            ];
            debug_assert!(added.iter().all(Result::is_ok));
        }
        for name in &self.reads {
            let mut room = EXPR_INPUT_BYTES_MAX;
            let value = value_of(input(name)?, &mut room);
            let value = value.ok_or_else(|| Fault::TooLarge {
                name: (*name).to_owned(),
            })?;
            context.add_variable_from_value(*name, value);
        }
        let value = catch_unwind(AssertUnwindSafe(|| Value::resolve(&self.root, &context)));
        match value {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Fault::Failed(cut(&error.to_string()))),
            Err(_) => Err(Fault::Failed("the evaluation broke off".to_owned())),
        }
    }
}

/// An expression that gives an instant: `created_at + duration("30m")`, `timestamp(facts.pay_by)`, or a text that says
/// one, `facts.pay_by`. A number is none.
#[derive(Debug)]
pub struct TimeExpr(Expr);

impl TimeExpr {
    /// Parses an expression that may use `names`, of which `created_at` and `now` are times.
    ///
    /// # Errors
    /// As [`Expr::parse`]; and when it gives something else.
    pub fn parse(source: &str, names: Names) -> Result<Self, Flaw> {
        match Expr::of(source, names)? {
            (_, Kind::Length) => {
                let detail = "gives a length of time, where an instant is needed: created_at + …";
                Err(Flaw::whole(detail.to_owned()))
            }
            (expr, Kind::Time | Kind::Plain) => {
                let time = Self(expr);
                if time.0.reads.is_empty() {
                    let told = |fault: Fault| Flaw::whole(fault.to_string());
                    time.at(|_| Ok(Json::Null)).map_err(told)?;
                }
                Ok(time)
            }
        }
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        self.0.source()
    }

    /// The instant. `input` is asked once for each name that it reads; times are given as milliseconds of Unix time.
    ///
    /// # Errors
    /// When it has no value; and as `input` says.
    pub fn at(&self, input: impl Fn(&str) -> Result<Json, Fault>) -> Result<WallMs, Fault> {
        let ms = match (self.0.value(input)?, self.0.is_time) {
            (Value::Int(ms), true) => ms,
            (Value::String(text), false) => {
                timestamp(text).map_err(|error| Fault::Failed(cut(&error.to_string())))?
            }
            (other, _) => {
                return Err(Fault::NotTime(format!(
                    "gives {}, where an instant is needed: a text such as 2026-12-01T10:30:00Z, or created_at + …",
                    cut(&other.type_of().to_string())
                )));
            }
        };
        match (TIME_MIN_MS..TIME_MAX_MS).contains(&ms) {
            true => Ok(WallMs(ms)),
            false => {
                let detail = "gives no instant between the years 0 and 9999";
                Err(Fault::NotTime(detail.to_owned()))
            }
        }
    }
}

/// The years 0 and 10000.
const TIME_MIN_MS: i64 = -62_167_219_200_000;
const TIME_MAX_MS: i64 = 253_402_300_800_000;

/// `timestamp("2026-12-01T10:00:00+01:00")`, in milliseconds of Unix time; what is finer is rounded up.
fn timestamp(text: Arc<String>) -> Result<i64, ExecutionError> {
    let at: jiff::Timestamp = text.parse().map_err(|_| {
        let detail = format!(
            "`{}` is no time with an offset, such as 2026-12-01T10:30:00Z",
            cut(&text)
        );
        ExecutionError::function_error("timestamp", detail)
    })?;
    Ok(up_to_millis(at.as_nanosecond()))
}

/// `duration("PT30M")`, `duration("90m")`, `duration("1h30m")`, in milliseconds; what is finer is rounded up.
fn length(text: Arc<String>) -> Result<i64, ExecutionError> {
    let bad = || {
        let detail = format!(
            "`{}` is no length of time, such as PT30M, 90m or 1h30m",
            cut(&text)
        );
        ExecutionError::function_error("duration", detail)
    };
    let (sign, plain) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.as_str()),
    };
    let millis = if plain.starts_with(['P', 'p']) {
        i64::try_from(duration::parse(plain).map_err(|_| bad())?.0).map_err(|_| bad())?
    } else {
        let length: jiff::SignedDuration = plain.parse().map_err(|_| bad())?;
        up_to_millis(length.as_nanos())
    };
    Ok(sign * millis)
}

/// Nanoseconds as milliseconds, rounded up. What is too long for them is longer than anything else.
fn up_to_millis(nanos: i128) -> i64 {
    let millis = nanos.div_euclid(1_000_000) + i128::from(nanos.rem_euclid(1_000_000) > 0);
    i64::try_from(millis).unwrap_or(i64::MAX)
}

fn not_bool(value: &Value) -> Fault {
    Fault::NotBool(cut(&value.type_of().to_string()))
}

impl Flaw {
    fn whole(detail: String) -> Self {
        Self { at: None, detail }
    }
}

/// Looks over an expression: which names it reads, and what it may cost.
struct Check<'a> {
    names: Names,
    source: &'a str,
    places: &'a SourceInfo,
    reads: Vec<&'static str>,
    reckons: bool,
    cost: usize,
}

impl Check<'_> {
    /// Checks a part of the expression; gives the largest size that its value may have, and whether it is a time.
    fn node(&mut self, node: &IdedExpr, depth: u16) -> Result<(usize, Kind), Flaw> {
        if depth > DEPTH_MAX {
            return self.refuse(node, too_deep());
        }
        let mut args = Vec::new();
        let mut sum = |parts: &mut dyn Iterator<Item = &IdedExpr>| {
            let mut size = 1;
            for part in parts {
                let (part, kind) = self.node(part, depth + 1)?;
                size += part;
                args.push(kind);
            }
            Ok(size)
        };
        let mut kind = Kind::Plain;
        let (worked_on, size) = match &node.expr {
            Node::Literal(LiteralValue::String(text)) => (1, 1 + text.inner().len()),
            Node::Literal(LiteralValue::Bytes(bytes)) => (1, 1 + bytes.inner().len()),
            Node::Literal(_) => (1, 1),
            Node::Ident(name) => {
                let is_time = TIMES.contains(&name.as_str());
                kind = if is_time { Kind::Time } else { Kind::Plain };
                self.name(node, name)?;
                (1, if is_time { 1 } else { EXPR_INPUT_BYTES_MAX })
            }
            Node::Select(field) => {
                let operand = sum(&mut std::iter::once(&*field.operand))?;
                // A field of an input is not copied; one of a value that was made is.
                let worked_on = if is_path(&field.operand) { 1 } else { operand };
                (worked_on, if field.test { 1 } else { operand })
            }
            Node::Call(call) => {
                let name = call.func_name.as_str();
                let is_method = call.target.is_some();
                let known = if is_method {
                    METHODS.contains(&(name, call.args.len()))
                } else {
                    FUNCTIONS.contains(&name) && call.args.len() == 1
                        || TO_SAME.contains(&name)
                        || TO_SCALAR.contains(&name) && !FUNCTIONS.contains(&name)
                };
                if !known {
                    return self.refuse(node, no_function(name, is_method, call.args.len()));
                }
                let all = sum(&mut call.target.as_deref().into_iter().chain(&call.args))?;
                let scalar = is_method || TO_SCALAR.contains(&name);
                self.reckons |= TIME_FUNCTIONS.contains(&name);
                kind = kinds::of_call(name, &args).or_else(|why| self.refuse(node, why))?;
                args.clear();
                (all, if scalar { 1 } else { all })
            }
            Node::List(list) => {
                let all = sum(&mut list.elements.iter())?;
                (all, all)
            }
            Node::Map(map) => {
                let mut entries = map.entries.iter().flat_map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => [&entry.key, &entry.value],
                    EntryExpr::StructField(field) => [&field.value, &field.value],
                });
                let all = sum(&mut entries)?;
                (all, all)
            }
            Node::Struct(_) | Node::Comprehension(_) | Node::Unspecified => {
                return self.refuse(node, "this kind of value can't be made here".to_owned());
            }
        };
        for arg in args {
            kinds::of_part(arg).or_else(|why| self.refuse(node, why))?;
        }
        self.cost = self.cost.saturating_add(worked_on);
        Ok((size, kind))
    }

    /// Notes that a name is read.
    fn name(&mut self, node: &IdedExpr, name: &str) -> Result<(), Flaw> {
        let Some(known) = self.names.iter().find(|known| **known == name) else {
            let names = self.names.join(", ");
            let detail = format!("there is no name `{}`; there are {names}", cut(name));
            return self.refuse(node, detail);
        };
        if !self.reads.contains(known) {
            self.reads.push(known);
        }
        Ok(())
    }

    fn refuse<T>(&self, node: &IdedExpr, detail: String) -> Result<T, Flaw> {
        let at = self.places.offset_for(node.id).map(|(start, _)| {
            let before = self.source.chars().take(start as usize);
            before.fold((1, 1), |(line, column), c| match c {
                '\n' => (line + 1, 1),
                _ => (line, column + 1),
            })
        });
        Err(Flaw { at, detail })
    }
}

/// Whether a part is a name, or a field of one.
fn is_path(node: &IdedExpr) -> bool {
    match &node.expr {
        Node::Ident(_) => true,
        Node::Select(field) => is_path(&field.operand),
        _ => false,
    }
}

fn too_deep() -> String {
    format!("is nested deeper than {DEPTH_MAX} levels")
}

fn no_function(name: &str, is_method: bool, arguments: usize) -> String {
    let functions = FUNCTIONS.map(|name| format!("{name}(x)")).join(", ");
    let methods = METHODS.map(|(name, arguments)| match arguments {
        0 => format!("x.{name}()"),
        _ => format!("x.{name}(y)"),
    });
    format!(
        "there is no {} `{}` of {arguments} arguments; there are has(x.y), {functions}, {}, and no loops",
        if is_method { "method" } else { "function" },
        cut(name),
        methods.join(", ")
    )
}

/// The first thing that the parser found wrong.
fn flaw_of(errors: &cel::ParseErrors) -> Flaw {
    let Some(first) = errors.errors.first() else {
        return Flaw::whole("can't be read".to_owned());
    };
    let detail = if first.msg.contains("Recursion limit") {
        too_deep()
    } else {
        let message = first.msg.strip_prefix("Syntax error: ");
        cut(message.unwrap_or(&first.msg))
    };
    let at = |n: isize| usize::try_from(n).ok().filter(|n| *n > 0);
    Flaw {
        at: at(first.pos.0).zip(at(first.pos.1)),
        detail,
    }
}

fn cut(message: &str) -> String {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

/// A JSON value as one of the library, if there is room for it. Whole numbers are signed where they can be.
fn value_of(json: Json, room: &mut usize) -> Option<Value> {
    let text = match &json {
        Json::String(text) => text.len(),
        _ => 0,
    };
    *room = room.checked_sub(1 + text)?;
    Some(match json {
        Json::Null => Value::Null,
        Json::Bool(it) => Value::Bool(it),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Some(whole)) => Value::UInt(whole),
            (None, None) => Value::Float(number.as_f64()?),
        },
        Json::String(text) => text.into(),
        Json::Array(list) => {
            let list = list.into_iter().map(|item| value_of(item, room));
            list.collect::<Option<Vec<Value>>>()?.into()
        }
        Json::Object(map) => {
            let mut entries = HashMap::with_capacity(map.len());
            for (name, value) in map {
                *room = room.checked_sub(name.len())?;
                entries.insert(name, value_of(value, room)?);
            }
            entries.into()
        }
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
