//! What the service has promised, task by task, and whether that is what is found.
//!
//! Think of the drawer of a pawnbroker's strict customer: a slip for each answer he was given. A request that got no
//! answer leaves two slips, "done" and "not done", and he accepts either, but no third thing. What he has once seen
//! with his own eyes is a slip, too.
//!
//! ```text
//!   asking(after)         told(answer)          the process dies unasked
//!   may be: before        may be: the answer    may be: before, after
//!           after         refused(): before     looked at(found): found
//! ```
//!
//! By itself a task only goes from *live* to an end, when it is due and was started; everything else is on a slip.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::support::receiver::Hit;
use super::support::{iso, ms, now_ms};

/// A push or a handler's attempt is written ahead of its time by so much, in milliseconds.
const ARMED_AHEAD_MS: i64 = 50;
const NEVER: i64 = i64::MAX;

/// Who ends a task that is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nobody has to: it ends when it is due.
    None,
    /// Whoever is called.
    Push,
    /// A worker.
    Pull,
    /// A function of the process that is killed.
    Handler,
}

impl Kind {
    /// Whether this is a topic of promises; others belong to those who measure.
    pub fn is_topic(topic: &Value) -> bool {
        topic
            .as_str()
            .is_some_and(|topic| topic.starts_with("crash."))
    }

    pub fn topic(self) -> &'static str {
        match self {
            Self::None => "crash.none",
            Self::Push => "crash.push",
            Self::Pull => "crash.pull",
            Self::Handler => "crash.handler",
        }
    }
}

/// How a task is, as far as a promise can say.
#[derive(Clone, PartialEq, Debug)]
pub enum Held {
    /// There is no such task.
    Nothing,
    /// It fires when it is due.
    Live {
        due_ms: i64,
    },
    /// It was asked to be due then. "In the past" means now, so an unanswered request leaves the time open upwards.
    Asked {
        due_ms: i64,
        paused: bool,
    },
    Paused {
        due_ms: i64,
    },
    /// With a result, if one was given from outside.
    Ended {
        state: String,
        result: Option<Value>,
    },
}

impl Held {
    /// What a task, whole or slim, says of itself.
    pub fn of(task: &Value) -> Self {
        let state = task["state"].as_str().unwrap_or_default().to_owned();
        let due_ms = ms(&task["due_at"]);
        match state.as_str() {
            "succeeded" | "cancelled" | "dead" => Self::Ended {
                state,
                result: task.get("result").cloned(),
            },
            "paused" => Self::Paused { due_ms },
            _ => Self::Live { due_ms },
        }
    }

    pub fn ended(state: &str, result: Option<Value>) -> Self {
        Self::Ended {
            state: state.to_owned(),
            result,
        }
    }

    /// The earliest instant at which it may start.
    fn starts_at(&self) -> i64 {
        match self {
            Self::Live { due_ms }
            | Self::Asked {
                due_ms,
                paused: false,
            } => *due_ms,
            Self::Nothing
            | Self::Paused { .. }
            | Self::Asked { paused: true, .. }
            | Self::Ended { .. } => NEVER,
        }
    }

    /// Whether a task that was so may now be as it is found.
    /// `at_most_once`: it ends in doubt rather than start twice.
    fn allows(&self, found: &Value, now: i64, at_most_once: bool) -> bool {
        let state = found["state"].as_str().unwrap_or_default();
        let due = ms(&found["due_at"]);
        let live = match state {
            "pending" => true,
            "dispatched" => now + ARMED_AHEAD_MS >= due,
            "running" | "retrying" | "succeeded" => now >= due,
            "dead" => at_most_once && found["dead_reason"] == "outcome_unknown" && now >= due,
            _ => false,
        };
        let soon_after =
            |asked: i64| due == asked || due > asked && due <= ms(&found["updated_at"]);
        match self {
            Self::Nothing => false,
            Self::Live { due_ms } => due == *due_ms && live,
            Self::Paused { due_ms } => due == *due_ms && state == "paused",
            Self::Asked {
                due_ms,
                paused: true,
            } => soon_after(*due_ms) && state == "paused",
            Self::Asked {
                due_ms,
                paused: false,
            } => soon_after(*due_ms) && live,
            Self::Ended {
                state: ended,
                result,
            } => {
                state == ended
                    && result
                        .as_ref()
                        .is_none_or(|result| found["result"] == *result)
            }
        }
    }
}

/// An attempt that was started, as whoever does the work sees it.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub attempt: u64,
    /// A handler is not told its own.
    pub token: Option<u64>,
    pub at_ms: i64,
}

/// From when to when an attempt may start, and not before which instant.
#[derive(Debug)]
struct Term {
    from_ms: i64,
    until_ms: Option<i64>,
    starts_at_ms: i64,
}

/// One task.
#[derive(Debug)]
pub struct Promise {
    pub kind: Kind,
    /// What was sent to create it, for sending it again.
    pub request: Value,
    /// Whether it was sent with an idempotency key, which is its key.
    pub once: bool,
    /// Whether it must not be started again when nobody knows whether it was done.
    pub at_most_once: bool,
    id: Option<String>,
    /// More than one while nobody knows whether the last request was done.
    may_be: Vec<Held>,
    /// How many of them there were before that request.
    known: usize,
    terms: Vec<Term>,
    /// Attempts that were started, as they were seen, and how many there must be by the last mark.
    pub started: Vec<Start>,
    attempts_min: u64,
    /// As it was found when it had ended: nothing of it ever changes.
    last_seen: Option<Value>,
}

/// All of them, by key.
#[derive(Default)]
pub struct Ledger {
    promises: BTreeMap<String, Promise>,
    /// Pushes that are noted.
    pub hits: usize,
    /// What was found wrong, for people.
    pub violations: Vec<String>,
}

impl Ledger {
    pub fn len(&self) -> usize {
        self.promises.len()
    }

    pub fn promise(&self, key: &str) -> &Promise {
        &self.promises[key]
    }

    /// All of them.
    pub fn promises(&self) -> impl Iterator<Item = (&str, &Promise)> {
        self.promises
            .iter()
            .map(|(key, promise)| (key.as_str(), promise))
    }

    /// A task is invented; it is not there yet.
    pub fn invented(&mut self, key: &str, kind: Kind, request: Value, once: bool) {
        let promise = Promise {
            kind,
            once,
            at_most_once: request["delivery"] == "at_most_once",
            request,
            id: None,
            may_be: vec![Held::Nothing],
            known: 1,
            terms: Vec::new(),
            started: Vec::new(),
            attempts_min: 0,
            last_seen: None,
        };
        self.promises.insert(key.to_owned(), promise);
    }

    /// Its create is about to be sent.
    pub fn creating(&mut self, key: &str) {
        let due_ms = ms(&self.promises[key].request["due_at"]);
        self.asking(
            key,
            Held::Asked {
                due_ms,
                paused: false,
            },
        );
    }

    /// A request is about to be sent that makes this of the task, if it is done.
    pub fn asking(&mut self, key: &str, after: Held) {
        let promise = self.of(key);
        promise.known = promise.may_be.len();
        promise.begin_term(&after);
        promise.may_be.push(after);
    }

    /// It was done, and this is the task now. `is_quiet`: no attempt can be under way.
    pub fn told(&mut self, key: &str, task: &Value, is_quiet: bool) {
        let told = Held::of(task);
        if let Some(id) = task["id"].as_str() {
            let promise = self.of(key);
            if promise.id.get_or_insert_with(|| id.to_owned()) != id {
                let was = promise.id.clone();
                self.violate(key, &format!("was promised as {was:?}, and is {id}"));
            }
        }
        let promise = self.of(key);
        if is_quiet {
            promise.end_terms();
            promise.begin_term(&told);
        }
        promise.may_be = vec![told];
    }

    /// It was refused, and so not done.
    pub fn refused(&mut self, key: &str) {
        let promise = self.of(key);
        promise.may_be.truncate(promise.known);
    }

    /// What it may be now: one thing, unless a request got no answer.
    pub fn held(&self, key: &str) -> Option<&Held> {
        match self.promises[key].may_be.as_slice() {
            [held] => Some(held),
            _ => None,
        }
    }

    pub fn id(&self, key: &str) -> Option<String> {
        self.promises[key].id.clone()
    }

    /// Somebody was called.
    pub fn hit(&mut self, hit: &Hit) {
        self.hits += 1;
        let key = hit.body["key"].as_str().unwrap_or_default().to_owned();
        if !self.promises.contains_key(&key) {
            return self
                .violations
                .push(format!("a push of a task that nobody made: {}", hit.body));
        }
        if hit.header("duetime-attempt") != hit.attempt().to_string() {
            self.violate(&key, "header and body of a push name different attempts");
        }
        let start = Start {
            attempt: hit.attempt(),
            token: hit.body["token"].as_u64(),
            at_ms: hit.at_ms,
        };
        self.started(&key, start);
    }

    /// An attempt was started, as whoever does the work sees it.
    pub fn started(&mut self, key: &str, start: Start) {
        let Start { attempt, at_ms, .. } = start;
        let promise = self.of(key);
        let is_first = promise.attempts().all(|known| known != attempt);
        promise.started.push(start);
        let in_time = promise.terms.iter().any(|term| {
            term.from_ms <= at_ms
                && term.until_ms.is_none_or(|until| at_ms <= until)
                && term.starts_at_ms <= at_ms
        });
        if !is_first {
            self.violate(
                key,
                &format!(
                    "attempt {attempt} was started twice, the second time at {}",
                    iso(at_ms)
                ),
            );
        }
        if !in_time {
            self.violate(
                key,
                &format!(
                    "attempt {attempt} was started at {}, when it must not",
                    iso(at_ms)
                ),
            );
        }
    }

    /// Whoever looks from now on must find all that was started so far.
    pub fn mark(&mut self) {
        for promise in self.promises.values_mut() {
            // Not by their numbers: one that is given back before it is begun has a number, and counts for nothing.
            promise.attempts_min = promise.started.len() as u64;
        }
    }

    /// A task is found as it is here. Unless that is wrong, it is a promise from now on.
    pub fn looked_at(&mut self, key: &str, found: &Value, is_quiet: bool) {
        let now = now_ms();
        let promise = self.of(key);
        let mut wrong = Vec::new();
        let allowed = |held: &Held| held.allows(found, now, promise.at_most_once);
        if !promise.may_be.iter().any(allowed) {
            wrong.push("is none of what it may be");
        }
        if found["payload"] != promise.request["payload"] {
            wrong.push("its payload is not whole");
        }
        if found["generation"] != 1 {
            wrong.push("its generation has changed");
        }
        let attempts = found["attempts"].as_u64().unwrap_or_default();
        if attempts < promise.attempts_min {
            wrong.push("an attempt that was started is not counted");
        }
        let is_done_alone = promise
            .may_be
            .iter()
            .all(|held| !matches!(held, Held::Ended { .. }));
        if is_done_alone
            && found["state"] == "succeeded"
            && promise.kind != Kind::None
            && promise.started.is_empty()
        {
            wrong.push("has succeeded, and nobody was ever called");
        }
        let ended = matches!(Held::of(found), Held::Ended { .. }).then(|| {
            let mut lasting = found.clone();
            lasting["remaining_ms"].take();
            lasting
        });
        if promise.last_seen.is_some() && promise.last_seen != ended {
            wrong.push("had ended otherwise");
        }
        let before = promise.last_seen.clone();
        promise.last_seen = ended;
        for wrong in wrong {
            let before = before.as_ref().map_or(String::new(), |before| {
                format!("\n      seen before: {before}")
            });
            self.violate(key, &format!("{wrong}\n      found: {found}{before}"));
        }
        self.told(key, found, is_quiet);
    }

    /// A task is nowhere to be found.
    pub fn missed(&mut self, key: &str) {
        let promise = self.of(key);
        if promise.may_be.contains(&Held::Nothing) {
            promise.may_be = vec![Held::Nothing];
            promise.end_terms();
        } else {
            self.violate(key, "is gone");
        }
    }

    /// All tasks that are promised, or may be there.
    pub fn wanted(&self) -> BTreeSet<String> {
        let is_nothing = |promise: &Promise| promise.may_be == [Held::Nothing];
        let wanted = self
            .promises
            .iter()
            .filter(|(_, promise)| !is_nothing(promise));
        wanted.map(|(key, _)| key.clone()).collect()
    }

    /// Whose create got no answer, and was sent so that it can be sent again.
    pub fn doubtful_creates(&self) -> Vec<String> {
        let is_doubtful = |promise: &Promise| {
            promise.once && promise.may_be.len() > 1 && promise.may_be.contains(&Held::Nothing)
        };
        self.promises
            .iter()
            .filter(|(_, promise)| is_doubtful(promise))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// What is due by itself and has not ended.
    pub fn overdue(&self) -> Vec<String> {
        let now = now_ms();
        let is_overdue = |promise: &Promise| matches!(promise.may_be.as_slice(), [Held::Live { due_ms }] if *due_ms <= now);
        self.promises
            .iter()
            .filter(|(_, promise)| is_overdue(promise))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Something is not as promised; with all that is known of the task.
    pub fn violate(&mut self, key: &str, wrong: &str) {
        let promise = &self.promises[key];
        let terms: Vec<String> = promise.terms.iter().map(Term::to_string).collect();
        self.violations.push(format!(
            "{} {key} ({}): {wrong}\n      promised: {:?}\n      may start: {}\n      attempts started: {:?}",
            promise.kind.topic(),
            promise.id.as_deref().unwrap_or("its id was never told"),
            promise.may_be,
            terms.join(", "),
            promise.attempts().collect::<Vec<_>>(),
        ));
    }

    fn of(&mut self, key: &str) -> &mut Promise {
        self.promises
            .get_mut(key)
            .expect("every key used is one that was created")
    }
}

impl Promise {
    fn attempts(&self) -> impl Iterator<Item = u64> {
        self.started.iter().map(|start| start.attempt)
    }

    fn begin_term(&mut self, held: &Held) {
        let starts_at_ms = held.starts_at();
        self.terms.push(Term {
            from_ms: now_ms(),
            until_ms: None,
            starts_at_ms,
        });
    }

    fn end_terms(&mut self) {
        let now = now_ms();
        for term in self.terms.iter_mut().filter(|term| term.until_ms.is_none()) {
            term.until_ms = Some(now);
        }
    }
}

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |at_ms: i64| {
            if at_ms == NEVER {
                "never".to_owned()
            } else {
                iso(at_ms)
            }
        };
        let until = self.until_ms.map_or("now".to_owned(), iso);
        write!(
            f,
            "[{} to {until}: from {}]",
            iso(self.from_ms),
            at(self.starts_at_ms)
        )
    }
}
