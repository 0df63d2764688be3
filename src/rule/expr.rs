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
//! An error is never a silent true: a field that is missing, a comparison that makes no sense, a panic in the library
//! are all a [`Fault`]. `has(body.paid)` asks whether a field is there.
//!
//! Invariant: nothing else in the crate knows the library behind this.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr as Node, LiteralValue, SelectExpr, SourceInfo, operators};
use cel::parser::Macro;
use cel::{Context, Env, IdedExpr, Value};
use parking_lot::Mutex;
use serde_json::Value as Json;

use crate::limits::{EXPR_BYTES_MAX, EXPR_INPUT_BYTES_MAX};

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

/// The names an expression over an answer may use: the number, an object of texts by lower-case name, and the body's
/// JSON (the text itself if it is none).
pub const ANSWER: Names = &["status", "headers", "body"];

/// Functions called as `size(x)`, each of one argument.
const FUNCTIONS: [&str; 6] = ["size", "string", "int", "uint", "double", "bool"];
/// Functions called as `x.contains(y)`, with their number of arguments.
const METHODS: [(&str, usize); 4] = [
    ("size", 0),
    ("contains", 1),
    ("startsWith", 1),
    ("endsWith", 1),
];
/// Operators whose result is true, false or a number, whatever they are given.
const TO_SCALAR: [&str; 16] = [
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
    root: IdedExpr,
    reads: Vec<&'static str>,
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
            cost: 0,
        };
        check.node(&root, 1)?;
        if check.cost > COST_MAX {
            return Err(Flaw::whole(format!(
                "may cost {} units at worst, at most {COST_MAX} are allowed: each operation costs the size of what \
                 it works on, and an input counts as {EXPR_INPUT_BYTES_MAX}",
                check.cost
            )));
        }
        let reads = check.reads;
        let expr = Self { root, reads };
        if expr.reads.is_empty() {
            // It always has the same value, so its faults can be told now.
            expr.holds(|_| Ok(Json::Null))
                .map_err(|fault| Flaw::whole(fault.to_string()))?;
        }
        Ok(expr)
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

    /// Whether it is true. `input` is asked once for each name that it reads.
    ///
    /// # Errors
    /// When it has no value, or one that is neither true nor false; and as `input` says.
    pub fn holds(&self, input: impl Fn(&str) -> Result<Json, Fault>) -> Result<bool, Fault> {
        let mut context = Context::with_env(Arc::clone(&ENV));
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
            Ok(Ok(Value::Bool(holds))) => Ok(holds),
            Ok(Ok(other)) => Err(Fault::NotBool(cut(&other.type_of().to_string()))),
            Ok(Err(error)) => Err(Fault::Failed(cut(&error.to_string()))),
            Err(_) => Err(Fault::Failed("the evaluation broke off".to_owned())),
        }
    }
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
    cost: usize,
}

impl Check<'_> {
    /// Checks a part of the expression; gives the largest size that its value may have.
    fn node(&mut self, node: &IdedExpr, depth: u16) -> Result<usize, Flaw> {
        if depth > DEPTH_MAX {
            return self.refuse(node, too_deep());
        }
        let mut sum = |parts: &mut dyn Iterator<Item = &IdedExpr>| {
            let mut size = 1;
            for part in parts {
                size += self.node(part, depth + 1)?;
            }
            Ok(size)
        };
        let (worked_on, size) = match &node.expr {
            Node::Literal(LiteralValue::String(text)) => (1, 1 + text.inner().len()),
            Node::Literal(LiteralValue::Bytes(bytes)) => (1, 1 + bytes.inner().len()),
            Node::Literal(_) => (1, 1),
            Node::Ident(name) => (1, self.name(node, name)?),
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
        self.cost = self.cost.saturating_add(worked_on);
        Ok(size)
    }

    /// Notes that a name is read.
    fn name(&mut self, node: &IdedExpr, name: &str) -> Result<usize, Flaw> {
        let Some(known) = self.names.iter().find(|known| **known == name) else {
            let names = self.names.join(", ");
            let detail = format!("there is no name `{}`; there are {names}", cut(name));
            return self.refuse(node, detail);
        };
        if !self.reads.contains(known) {
            self.reads.push(known);
        }
        Ok(EXPR_INPUT_BYTES_MAX)
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
