//! Why a service did not do what it was asked.

use std::time::Duration;

/// Why a service did not do what it was asked; [`may_pass`](Self::may_pass) says whether to ask again.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The HTTP client could not be made.
    #[error("cannot set up the HTTP client: {0}")]
    SetUp(String),
    /// No address of a service.
    #[error("not the address of a service: {0}")]
    Address(String),
    /// A payload or facts that are no JSON.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// A topic or key whose name means something else in a URL. Such a task can be reached by its id.
    #[error("a URL cannot hold the name `.` or `..`")]
    DotName,
    /// Nobody listens there.
    #[error("cannot connect to {service}: {cause}")]
    Unreachable {
        /// The address.
        service: String,
        /// What the system says.
        cause: String,
    },
    /// It may have been done all the same.
    #[error("{service} did not answer within {} s", .within.as_secs_f64())]
    TimedOut {
        /// The address.
        service: String,
        /// How long was waited.
        within: Duration,
    },
    /// It may have been done all the same.
    #[error("the connection to {service} broke: {cause}")]
    Broken {
        /// The address.
        service: String,
        /// What happened to it.
        cause: String,
    },
    /// The service said no: nothing was changed.
    #[error("{detail} ({})", format!("{status} {code}").trim_end())]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The stable code, such as `illegal_state`.
        code: String,
        /// What it says, for a person.
        detail: String,
        /// When to ask again.
        retry_after: Option<Duration>,
        /// The whole problem (RFC 9457), as JSON.
        body: String,
    },
    /// More than is taken in.
    #[error("the answer is over 512 MiB")]
    TooLarge,
    /// Redirects are not followed.
    #[error("the answer was {status}, a redirect to {to}")]
    Redirected {
        /// The HTTP status.
        status: u16,
        /// Where to.
        to: String,
    },
    /// Something else is at the address, or before it.
    #[error("the answer was {status} and none of a duetime service: {start}")]
    NotDuetime {
        /// The HTTP status.
        status: u16,
        /// The first characters of the answer.
        start: String,
    },
}

impl ClientError {
    /// The stable code of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the same call may fare better a moment later: the service was not there, or busy, or being restarted.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Broken { .. } => true,
            Self::Refused { status, code, .. } => passes(*status) || code == "in_progress",
            // A proxy that finds the service away.
            Self::NotDuetime { status, .. } => passes(*status),
            _ => false,
        }
    }

    /// When the service asks to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Of a status: the request was not at fault. A full disk (507) does not pass by itself.
fn passes(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502..=504)
}
