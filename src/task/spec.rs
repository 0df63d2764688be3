//! What a caller asks for: names, action, limits. Fixed when the task is created, shared by all its copies.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::{Xxh3Builder, xxh3_64};

use crate::clock::{DurationMs, WallMs};
use crate::ids::TaskId;
use crate::limits;
use crate::task::clocks::Thens;
use crate::task::guard::Guard;
use crate::task::retry::RetryPolicy;
use crate::task::stage::Stages;

/// Why a text is not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("must not be empty")]
    Empty,
    /// Longer than allowed.
    #[error("is {is} bytes long, at most {max} are allowed")]
    TooLong {
        /// Its length, in bytes.
        is: usize,
        /// The most allowed, in bytes.
        max: usize,
    },
    /// Has a control character.
    #[error("must not contain control characters")]
    Control,
}

fn check_name(text: &str, max: usize) -> Result<(), NameError> {
    if text.is_empty() {
        Err(NameError::Empty)
    } else if text.len() > max {
        Err(NameError::TooLong {
            is: text.len(),
            max,
        })
    } else if text.chars().any(char::is_control) {
        Err(NameError::Control)
    } else {
        Ok(())
    }
}

macro_rules! names {
    ($(#[$doc:meta] $name:ident, $max:expr;)*) => {$(
        #[$doc]
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes a name.
            ///
            /// # Errors
            /// When it is empty, too long, or has a control character.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                check_name(text, $max)?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    )*};
}
names! {
    /// Business line and kind of timeout, such as `order.unpaid`: at most 128 bytes, no control characters.
    TopicName, limits::TOPIC_BYTES_MAX;
    /// The caller's own id inside a topic: at most 256 bytes, no control characters.
    TaskKey, limits::KEY_BYTES_MAX;
    /// A stage of a task: at most 64 bytes, no control characters.
    StageName, limits::STAGE_NAME_BYTES_MAX;
    /// A calendar's, rule's or schedule's name: at most 128 bytes, no control characters.
    ResourceName, limits::RESOURCE_NAME_BYTES_MAX;
}

/// A map by topic.
pub type ByTopic<T> = HashMap<TopicName, T, Xxh3Builder>;

/// JSON text that is passed on as it came.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(pub Bytes);

impl RawJson {
    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("null")
    }

    /// The text as a type of the caller's own; none counts as JSON's `null`.
    ///
    /// # Errors
    /// Which field does not fit and why; `name` is what the whole is called there.
    pub fn read_as<T: DeserializeOwned>(json: Option<&Self>, name: &str) -> Result<T, String> {
        let mut json = serde_json::Deserializer::from_str(json.map_or("null", Self::as_str));
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let place = match error.path().to_string() {
                path if path == "." => name.to_owned(),
                path => format!("{name}.{path}"),
            };
            format!("{place}: {}", error.into_inner())
        })
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<String> for RawJson {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

/// What is done when the task is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Push to a URL.
    Http(HttpAction),
    /// Wait for an outside worker to lease it.
    Pull,
    /// Ask an outside system again and again, until a condition over its answer holds.
    Poll(Box<Poll>),
    /// Wait for somebody outside to say that it is done.
    CompleteOnly,
    /// Run a handler of the embedding process.
    Handler {
        /// The name it was registered under.
        name: String,
    },
    /// Run a program.
    Command(CommandAction),
    /// End as succeeded when due.
    None,
}

impl Action {
    /// The action's kind, as the API names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Pull => "pull",
            Self::Poll(_) => "poll",
            Self::CompleteOnly => "complete_only",
            Self::Handler { .. } => "handler",
            Self::Command(_) => "command",
            Self::None => "none",
        }
    }

    /// Whom it goes to, if only so many may at a time: the host of a request, this machine for a command.
    pub fn host(&self) -> Option<HostId> {
        match self {
            Self::Http(http) => Some(http.host()),
            Self::Poll(poll) => Some(poll.http.host()),
            Self::Command(_) => Some(HostId::COMMANDS),
            Self::Pull | Self::CompleteOnly | Self::Handler { .. } | Self::None => None,
        }
    }

    /// Whether an executor of ours starts it, so that a start must be written before.
    pub fn is_dispatched(&self) -> bool {
        matches!(
            self,
            Self::Http(_) | Self::Handler { .. } | Self::Command(_) | Self::Poll(_)
        )
    }

    /// The poll, if it is one.
    pub fn poll(&self) -> Option<&Poll> {
        match self {
            Self::Poll(poll) => Some(poll),
            _ => None,
        }
    }
}

/// Asks every so often until an answer says that it is done, or that it failed, or the time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll {
    /// The question.
    pub http: HttpAction,
    /// From one answer to the next question.
    pub every: DurationMs,
    /// From the due time to the last question; `None`: the task's total time, else [`POLL_FOR`].
    pub within: Option<DurationMs>,
    /// What is true of the answer that ends it: an expression over `status`, `headers` and `body`.
    pub done_if: String,
    /// What is true of an answer that ends it as failed.
    pub failed_if: Option<String>,
}

/// Asked before anything is tried again of which nobody knows whether it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verify {
    /// The question.
    pub http: HttpAction,
    /// What is true of an answer that says that it was done.
    pub done_if: String,
    /// What is true of an answer that says that it failed, for good.
    pub failed_if: Option<String>,
    /// When there is no answer.
    pub on_no_answer: OnNoAnswer,
}

/// Who is told how a task has ended: by a task of its own, a callback.
#[derive(Clone, Debug, PartialEq)]
pub struct OnEnd {
    /// What is sent.
    pub http: HttpAction,
    /// What follows when it does not arrive; `None` is the policy of the callbacks' topic.
    pub retry: Option<RetryPolicy>,
}

/// What follows when nobody answers whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnNoAnswer {
    /// It is tried again; what may be attempted only once is dead.
    #[default]
    Retry,
    /// Paused for a person.
    Hold,
    /// Dead.
    Dead,
}

/// How long a poll goes on that has no other end.
pub const POLL_FOR: DurationMs = DurationMs::secs(300);

/// An HTTP request to a customer's receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAction {
    /// `http` or `https`, with a host.
    pub url: String,
    /// Upper case.
    pub method: String,
    /// Checked: no line breaks, none of ours, none hop-by-hop.
    pub headers: Vec<(String, String)>,
    /// Statuses that mean success; empty means 200 to 299.
    pub expect_status: Vec<u16>,
    /// What must be true of an answer with such a status: an expression over `status`, `headers` and `body`.
    pub success_if: Option<String>,
    /// The receiver may complete it later, by a URL that the request carries: so much later, unless its answer (a 202)
    /// says otherwise.
    pub complete_by: Option<DurationMs>,
}

/// A program that is run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAction {
    /// An absolute path, or a bare name that is looked for in `PATH`.
    pub program: String,
    /// Its arguments, without its own name.
    pub args: Vec<String>,
    /// Environment variables beside those that every command gets.
    pub env: Vec<(String, String)>,
    /// The directory that it runs in, absolute; without one it is `/`.
    pub cwd: Option<String>,
}

/// Whom a push goes to: a host and its port. All commands go to the same, which is this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(u64);

impl HostId {
    /// This machine, for commands.
    pub const COMMANDS: Self = Self(0);
    /// Stands for all hosts, while nobody is there to push.
    pub const PUSHES: Self = Self(1);

    /// Of a host with its port, unless that is the scheme's own. A hash: that two of them should share one is not to be
    /// expected, and would only make them share their slots.
    pub fn of(authority: &str) -> Self {
        Self(xxh3_64(authority.to_ascii_lowercase().as_bytes()))
    }
}

impl HostId {
    /// Stands for a handler, while there is no thread for it. No host has such a name.
    pub fn of_handler(name: &str) -> Self {
        Self(xxh3_64(format!("handler/{name}").as_bytes()))
    }
}

impl HttpAction {
    /// Whom it goes to.
    pub fn host(&self) -> HostId {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let port = if scheme.eq_ignore_ascii_case("https") {
            ":443"
        } else {
            ":80"
        };
        HostId::of(authority.strip_suffix(port).unwrap_or(authority))
    }
}

/// How often a task may run when its outcome is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delivery {
    /// Attempted again.
    #[default]
    AtLeastOnce,
    /// Never attempted again: it goes to a person.
    AtMostOnce,
}

/// Which tasks give way to which under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Class {
    /// Slowed last.
    Core,
    /// The usual.
    #[default]
    Normal,
    /// Slowed first.
    Bulk,
}

/// Time limits of a task: see [`clocks`](crate::task::clocks).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// One attempt; for a pull action the lease.
    pub attempt: DurationMs,
    /// From the cut-off to the hard stop.
    pub grace: DurationMs,
    /// All attempts of a generation, from its first due time.
    pub total: Option<DurationMs>,
    /// From one sign of life to the next.
    pub heartbeat: Option<DurationMs>,
    /// From coming due to a start.
    pub queue: Option<DurationMs>,
    /// What follows when one of them is over, where that was said.
    pub then: Thens,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            attempt: DurationMs::secs(30),
            grace: DurationMs::secs(2),
            total: None,
            heartbeat: None,
            queue: None,
            then: Thens::default(),
        }
    }
}

/// Everything a caller fixed about a task when creating it.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSpec {
    /// What is done when due; in a staged task, by stages that do not say it themselves.
    pub action: Action,
    /// Its stages, if it has any.
    pub stages: Option<Stages>,
    /// Handed to the action.
    pub payload: Option<RawJson>,
    /// What follows a failed attempt.
    pub retry: RetryPolicy,
    /// Its time limits.
    pub timeouts: Timeouts,
    /// What an unknown outcome means.
    pub delivery: Delivery,
    /// Its place under load.
    pub class: Class,
    /// How late it may start without anybody minding.
    pub max_lateness: Option<DurationMs>,
    /// Sorted by name.
    pub tags: Vec<(String, String)>,
    /// What rules read.
    pub facts: Option<RawJson>,
    /// Asked when nobody knows whether it was done.
    pub verify: Option<Box<Verify>>,
    /// Decides whether it fires.
    pub guard: Option<Guard>,
    /// What gave its due time, if that was a rule.
    pub rule: Option<RuleRef>,
    /// Told how it has ended, each time it ends.
    pub on_end: Option<Box<OnEnd>>,
    /// It is a callback: it tells how this task has ended.
    pub callback_of: Option<TaskId>,
}

/// A version of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleRef {
    /// The rule.
    pub name: ResourceName,
    /// Its version.
    pub version: u64,
    /// When the task was created, for the rule and from then on for everybody.
    pub at: WallMs,
}

impl RuleRef {
    /// Why a task is called off that its rule says is not needed.
    pub fn skip_reason(&self) -> String {
        format!("rule {} says that none is needed", self.name)
    }
}

impl Default for TaskSpec {
    fn default() -> Self {
        Self {
            action: Action::Pull,
            stages: None,
            payload: None,
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
            delivery: Delivery::default(),
            class: Class::default(),
            max_lateness: None,
            tags: Vec::new(),
            facts: None,
            verify: None,
            guard: None,
            rule: None,
            on_end: None,
            callback_of: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_in_bytes_and_free_of_control_characters() {
        assert!(TopicName::parse(&"t".repeat(128)).is_ok());
        assert!(matches!(
            TopicName::parse(&"ü".repeat(65)),
            Err(NameError::TooLong { is: 130, .. })
        ));
        assert_eq!(TaskKey::parse(""), Err(NameError::Empty));
        assert_eq!(TaskKey::parse("a\nb"), Err(NameError::Control));
        assert!(TaskKey::parse(&"k".repeat(257)).is_err());
    }

    #[test]
    fn a_host_is_the_same_however_it_is_written() {
        let host = |url: &str| {
            let (url, method) = (url.to_owned(), "POST".to_owned());
            let (headers, expect_status) = (Vec::new(), Vec::new());
            HttpAction {
                url,
                method,
                headers,
                expect_status,
                success_if: None,
                complete_by: None,
            }
            .host()
        };
        for url in [
            "http://a.example:80/x",
            "HTTP://A.example?y",
            "https://a.example:443",
        ] {
            assert_eq!(host(url), host("http://a.example/"), "{url}");
        }
        for url in [
            "http://b.example/",
            "http://a.example:81/",
            "http://[::1]:80/",
        ] {
            assert_ne!(host(url), host("http://a.example/"), "{url}");
        }
        assert_ne!(host("http://127.0.0.1:1/"), host("http://127.0.0.1:2/"));
    }
}
