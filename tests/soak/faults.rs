//! What is done to the service: which kind of fault, in which part, at which point.

use super::house::SHARDS;
use super::support::Random;

/// Kinds of faults, in the words of the report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Panic,
    Error,
    /// A thread blocks until it is replaced, and then wakes.
    Block,
    /// The same, and keeps a core busy.
    Livelock,
    Slow,
    /// SIGKILL and a new start.
    Kill,
    /// SIGSTOP for a second.
    Stop,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Panic,
        Self::Error,
        Self::Block,
        Self::Livelock,
        Self::Slow,
        Self::Kill,
        Self::Stop,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Error => "error",
            Self::Block => "block",
            Self::Livelock => "livelock",
            Self::Slow => "slow",
            Self::Kill => "kill -9",
            Self::Stop => "stop",
        }
    }

    /// What is set at the point.
    pub fn action(self) -> &'static str {
        match self {
            Self::Panic => "1*panic",
            Self::Error => "1*return(error)",
            Self::Block => "1*pause",
            Self::Livelock => "1*return(livelock)",
            Self::Slow => "4*sleep(300)",
            Self::Kill => "return(kill)",
            Self::Stop => unreachable!("a process is stopped from outside"),
        }
    }
}

/// Where a part can be broken.
struct Place {
    /// A child of the watchdog; of shards, each.
    part: &'static str,
    point: &'static str,
    /// The shard's thread that is hit.
    thread: Option<&'static str>,
    /// Whether the part passes it only when it is sent away.
    at_its_ends: bool,
    /// Whether a fault there ends the part; else it ends one attempt at most.
    is_fatal: bool,
}

const fn place(
    part: &'static str,
    point: &'static str,
    thread: Option<&'static str>,
    at_its_ends: bool,
    is_fatal: bool,
) -> Place {
    Place {
        part,
        point,
        thread,
        at_its_ends,
        is_fatal,
    }
}

const PLACES: [Place; 15] = [
    place("shard", "shard::handler", Some("shard"), false, true),
    place("shard", "shard::future", Some("journal"), false, true),
    place("shard", "journal::write", Some("journal"), false, true),
    place("shard", "journal::written", Some("journal"), false, true),
    place("shard", "journal::synced", Some("journal"), false, true),
    place("shard", "fold::chunk", Some("journal"), false, true),
    place("shard", "shard::started", Some("shard"), true, true),
    place("shard", "shard::stopped", Some("shard"), true, false),
    place("scheduler", "scheduler::handler", None, false, true),
    place("scheduler", "scheduler::future", None, false, true),
    place("scheduler", "scheduler::started", None, true, true),
    place("http-push", "push::handler", None, false, true),
    place("http-push", "push::future", None, false, false),
    place("http-push", "push::started", None, true, true),
    place("http-push", "push::stopped", None, true, false),
];

/// One of them, at one place.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    /// The child that is hit, or the process.
    pub part: String,
    /// Without one it comes from outside.
    pub point: Option<String>,
    /// The part that is sent away, so that somebody comes by.
    pub sends_away: Option<String>,
    /// Restarts of the part that must follow.
    pub restarts: u64,
}

impl Fault {
    /// The part without its number, for the report.
    pub fn sort_of_part(&self) -> &str {
        self.part.split("-0").next().unwrap_or(&self.part)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.point.as_deref().unwrap_or("from outside");
        write!(f, "{} of {} ({at})", self.kind.name(), self.part)
    }
}

/// All kinds in turn, each time in another order and at other places.
pub struct Deck {
    random: Random,
    left: Vec<Kind>,
}

impl Deck {
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0xFA17),
            left: Vec::new(),
        }
    }

    pub fn draw(&mut self) -> Fault {
        if self.left.is_empty() {
            self.left = Kind::ALL.to_vec();
        }
        let at = self.random.below(self.left.len() as u64) as usize;
        let kind = self.left.swap_remove(at);
        let from_outside = kind == Kind::Stop || kind == Kind::Kill && self.random.below(2) == 0;
        if from_outside {
            return Fault {
                kind,
                part: "process".to_owned(),
                point: None,
                sends_away: None,
                restarts: 0,
            };
        }
        let place = &PLACES[self.random.below(PLACES.len() as u64) as usize];
        let shard = self.random.below(u64::from(SHARDS));
        let part = match place.thread {
            Some(_) => format!("{}-{shard:02}", place.part),
            None => place.part.to_owned(),
        };
        let point = match place.thread {
            Some(thread) => format!("{}@{thread}-{shard:02}", place.point),
            None => place.point.to_owned(),
        };
        let ends_it = place.is_fatal && !matches!(kind, Kind::Slow | Kind::Kill);
        Fault {
            kind,
            part: match kind {
                Kind::Kill => "process".to_owned(),
                _ => part.clone(),
            },
            point: Some(point),
            sends_away: place.at_its_ends.then_some(part),
            restarts: u64::from(place.at_its_ends) + u64::from(ends_it),
        }
    }

    /// Between two faults, in milliseconds.
    pub fn pause_ms(&mut self) -> u64 {
        100 + self.random.below(400)
    }
}
