//! The kinds of resources that are kept by name under growing versions, all in one way.
//!
//! To add a kind: give [`Kind`] a word and a tree, [`RuleBook`] a field, and its type a [`Resource`] that reads its body;
//! then the registry stores it, numbers its versions, keeps the older ones, and refuses to delete what another one needs.

use std::fmt;

use crate::clock::WallMs;
use crate::limits;
use crate::rule::book::{Named, RuleBook};
use crate::rule::{Calendar, Rollout, Rule, Schedule};
use crate::task::spec::{Action, ResourceName};
use crate::wire;
use crate::wire::due::InLimits;
use crate::wire::problem::Problem;

/// What was allowed when it was put stays allowed.
pub(super) const NO_LIMITS: InLimits = InLimits {
    max_delay: limits::MAX_DELAY,
    now: WallMs(0),
};

/// Which kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// When people work.
    Calendar,
    /// What repeats.
    Schedule,
    /// When tasks are due that do not say it.
    Rule,
    /// Who gets a rule's latest version.
    Rollout,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Calendar, Self::Schedule, Self::Rule, Self::Rollout];

    /// The word for one.
    pub fn word(self) -> &'static str {
        match self {
            Self::Calendar => "calendar",
            Self::Schedule => "schedule",
            Self::Rule => "rule",
            Self::Rollout => "rollout",
        }
    }

    /// The word for many: in paths, and the name of the tree that holds them.
    pub fn words(self) -> &'static str {
        match self {
            Self::Calendar => "calendars",
            Self::Schedule => "schedules",
            Self::Rule => "rules",
            Self::Rollout => "rollouts",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Another resource that one rests on.
pub type Need = (Kind, ResourceName);

/// What a resource of one kind says.
pub trait Resource: Clone + fmt::Debug + Send + Sync + 'static {
    /// Its kind.
    const KIND: Kind;

    /// Reads a body.
    ///
    /// # Errors
    /// 400, 422.
    fn read(body: &[u8], limits: &InLimits) -> Result<Self, Problem>;

    /// All of its kind.
    fn all(book: &RuleBook) -> &Named<Self>;

    /// All of its kind, to be changed.
    fn all_mut(book: &mut RuleBook) -> &mut Named<Self>;

    /// What it has done, and where it says so, as a JSON pointer.
    fn actions(&self) -> Vec<(String, &Action)> {
        Vec::new()
    }

    /// What must be there as long as it is.
    fn needs(&self) -> Vec<Need> {
        Vec::new()
    }
}

impl Resource for Calendar {
    const KIND: Kind = Kind::Calendar;

    fn read(body: &[u8], _: &InLimits) -> Result<Self, Problem> {
        wire::calendar::calendar(body)
    }

    fn all(book: &RuleBook) -> &Named<Self> {
        &book.calendars
    }

    fn all_mut(book: &mut RuleBook) -> &mut Named<Self> {
        &mut book.calendars
    }
}

impl Resource for Schedule {
    const KIND: Kind = Kind::Schedule;

    fn read(body: &[u8], limits: &InLimits) -> Result<Self, Problem> {
        wire::schedule::schedule(body, limits)
    }

    fn all(book: &RuleBook) -> &Named<Self> {
        &book.schedules
    }

    fn all_mut(book: &mut RuleBook) -> &mut Named<Self> {
        &mut book.schedules
    }

    fn actions(&self) -> Vec<(String, &Action)> {
        let action = self.action.iter();
        action
            .map(|action| ("/action".to_owned(), action))
            .collect()
    }
}

impl Resource for Rule {
    const KIND: Kind = Kind::Rule;

    fn read(body: &[u8], limits: &InLimits) -> Result<Self, Problem> {
        wire::rule::rule(body, limits)
    }

    fn all(book: &RuleBook) -> &Named<Self> {
        &book.rules
    }

    fn all_mut(book: &mut RuleBook) -> &mut Named<Self> {
        &mut book.rules
    }

    fn actions(&self) -> Vec<(String, &Action)> {
        Rule::actions(self)
    }

    fn needs(&self) -> Vec<Need> {
        let calendars = self.calendars().into_iter();
        calendars.map(|name| (Kind::Calendar, name)).collect()
    }
}

impl Resource for Rollout {
    const KIND: Kind = Kind::Rollout;

    fn read(body: &[u8], limits: &InLimits) -> Result<Self, Problem> {
        wire::rule::rollout(body, limits)
    }

    fn all(book: &RuleBook) -> &Named<Self> {
        &book.rollouts
    }

    fn all_mut(book: &mut RuleBook) -> &mut Named<Self> {
        &mut book.rollouts
    }

    fn needs(&self) -> Vec<Need> {
        let calendars = self.base.calendars().into_iter();
        calendars.map(|name| (Kind::Calendar, name)).collect()
    }
}

/// Whether a resource is there.
pub(in crate::engine) fn is_there(book: &RuleBook, (kind, name): &Need) -> bool {
    match kind {
        Kind::Calendar => book.calendars.contains_key(name),
        Kind::Schedule => book.schedules.contains_key(name),
        Kind::Rule => book.rules.contains_key(name),
        Kind::Rollout => book.rollouts.contains_key(name),
    }
}

/// Whether a resource has its say: a rollout has until its rule gets another version.
fn is_in_force(book: &RuleBook, kind: Kind, name: &ResourceName) -> bool {
    kind != Kind::Rollout
        || book
            .rules
            .get(name)
            .is_some_and(|rule| book.rollout(name, rule.version).is_some())
}

/// What rests on a resource, in words.
pub(super) fn users(book: &RuleBook, need: &Need) -> Vec<String> {
    fn of<R: Resource>(book: &RuleBook, need: &Need) -> Vec<String> {
        let users = R::all(book).iter().filter(|(name, kept)| {
            is_in_force(book, R::KIND, name) && kept.meaning.needs().contains(need)
        });
        users
            .map(|(name, _)| format!("{} {name}", R::KIND))
            .collect()
    }
    [
        of::<Calendar>(book, need),
        of::<Schedule>(book, need),
        of::<Rule>(book, need),
        of::<Rollout>(book, need),
    ]
    .concat()
}
