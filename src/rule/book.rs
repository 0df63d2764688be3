//! All that rules are made of, at one moment: each kind of resource by name. Never changed, only replaced, so whoever
//! holds one works by the same versions throughout.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::WallMs;
use crate::rule::{Calendar, Schedule};
use crate::task::spec::ResourceName;

/// A resource as it stands: what it says, and how it was said.
#[derive(Clone, PartialEq, Debug)]
pub struct Kept<T> {
    /// What the body says.
    pub meaning: T,
    /// The body of the latest PUT, JSON as it came.
    pub body: String,
    /// Grows with each PUT, also over a delete.
    pub version: u64,
    /// When that was.
    pub changed_at: WallMs,
}

/// All of one kind, by name.
pub type Named<T> = BTreeMap<ResourceName, Arc<Kept<T>>>;

/// See the module's header.
#[derive(Clone, Default, Debug)]
pub struct RuleBook {
    /// When people work.
    pub calendars: Named<Calendar>,
    /// What repeats.
    pub schedules: Named<Schedule>,
}
