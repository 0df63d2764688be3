//! What a shard decides, played through: a core on a clock that is moved by hand, over a disk in memory.
//!
//! - `shell`: the world around the core; it takes steps as the actor does, may die between any two, and checks
//!   at each that nothing starts early, twice or uncommitted;
//! - `sound`: what holds of a core after every step, whatever happened;
//! - `due`, `guards`, `stages`, `topics`, `workers`, `task_clocks`, `polls`, `keys`, `notes`, `late`, `callbacks`, `clocks`, `lists`:
//!   what it does, as sentences;
//! - `crash`, `simulation`: the same through deaths at every point, and through random lives;
//! - `races`: several ends at one instant, ten thousand times over;
//! - `model`: every order of events, within small bounds.

#![expect(
    clippy::unwrap_used,
    reason = "a test may stop at what it did not expect"
)]

mod callbacks;
mod clocks;
mod crash;
mod doors;
mod due;
mod guards;
mod keys;
mod late;
mod lists;
mod model;
mod notes;
mod polls;
mod races;
mod rescue;
mod shell;
mod simulation;
mod sound;
mod stages;
mod task_clocks;
mod topics;
mod workers;

use super::*;
use crate::shard::create::Created;
use crate::shard::messages::*;
use crate::shard::place::Alarm;
use crate::task::model::Lane;
use crate::task::model::{DeadReason, PauseClock, WaitingFor};
use crate::task::spec::Action;
use crate::task::topic::OnExisting;
use crate::testing::fixtures::*;
use shell::{Shell, folding, key, topic};

/// The topic of a fixture that names none.
const USUAL: &str = "order.unpaid";
