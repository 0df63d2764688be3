//! Where a live task stands inside its shard, and which alarms are set for it.
//!
//! Each live task stands in exactly one [`Place`]. Its alarms follow from task and place alone
//! ([`alarms_of`]), so after any change the shard compares before and after, and moves only what differs.

use crate::ids::TaskId;
use crate::store::chunk::{ChunkId, Class};
use crate::task::model::{Lane, State, Task};
use crate::wheel::Wheel;

pub use crate::limits::ARM_AHEAD;

/// The one place of a task in its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the wheel, until its next due time.
    Wheel,
    /// Due, for a worker to lease.
    Ready,
    /// Due, waiting for an executor's slot.
    Queued,
    /// Due, while its topic is held.
    Held,
    /// An attempt is out.
    InFlight,
    /// Paused or ended: nothing happens by itself but the end of its retention.
    AtRest,
    /// Due, to be completed by somebody outside.
    Awaiting,
}

impl Place {
    /// All places, each at its number.
    pub const ALL: [Self; 8] = [
        Self::Wheel,
        Self::Ready,
        Self::Queued,
        Self::Held,
        Self::InFlight,
        Self::AtRest,
        Self::Awaiting,
        // There is none with this number.
        Self::AtRest,
    ];

    /// Whether the task has come due, and waits for somebody to take it.
    pub fn is_due(self) -> bool {
        matches!(
            self,
            Self::Ready | Self::Queued | Self::Held | Self::Awaiting
        )
    }
}

/// The clock an alarm follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlarmClock {
    /// The wall clock.
    Wall,
    /// Steady time.
    Steady,
    /// The monotonic clock.
    Mono,
}

/// What an alarm is about. The order is the order in which alarms of the same millisecond are served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Alarm {
    /// The task is due, or nearly so.
    Due(TaskId),
    /// The attempt that is out has not answered, or one of its clocks has run out.
    Overdue(TaskId),
    /// The time of the task, or its time in line, is over, or a later one of its stages takes over.
    Until(TaskId),
    /// The task's record may go.
    Expire(TaskId),
    /// A tombstone ends.
    Tombstone([u8; 16]),
    /// A kept answer may go.
    Answer([u8; 16]),
    /// It is to be looked whether the task of a late answer is still there.
    Late([u8; 16]),
    /// The first of a chunk's tasks is due soon, or the last of its ended ones expires.
    Chunk(ChunkId),
}

/// An alarm with its time.
pub type Setting = (AlarmClock, i64, Alarm);

/// The alarms that a task needs where it stands.
pub fn alarms_of(task: &Task, place: Place) -> [Option<Setting>; 2] {
    let main = match place {
        Place::Wheel => {
            let (clock, ahead) = (
                match task.next.lane {
                    Lane::Wall => AlarmClock::Wall,
                    Lane::Steady => AlarmClock::Steady,
                },
                if task.starts_here() {
                    ARM_AHEAD.0 as i64
                } else {
                    0
                },
            );
            Some((
                clock,
                task.next.fire_ms.saturating_sub(ahead),
                Alarm::Due(task.id),
            ))
        }
        Place::InFlight => task
            .looked_at()
            .map(|at| (AlarmClock::Mono, at.0, Alarm::Overdue(task.id))),
        Place::AtRest => task
            .expires
            .map(|at| (AlarmClock::Steady, at.0, Alarm::Expire(task.id))),
        Place::Ready | Place::Queued | Place::Held | Place::Awaiting => None,
    };
    let counts = !task.state.is_ended() && task.state != State::Paused;
    let until = match place {
        Place::Wheel => task.until_while_waiting(),
        // The time in line stands still while the topic is held.
        Place::Ready | Place::Queued => task.until().into_iter().chain(task.queue_until()).min(),
        _ => task.until(),
    };
    let until = until
        .filter(|_| counts)
        .map(|at| (AlarmClock::Steady, at.0, Alarm::Until(task.id)));
    [main, until]
}

/// The alarm of a task that is known by its entry alone, if it has one: see [`Entry::has_more_alarms`].
///
/// [`Entry::has_more_alarms`]: crate::store::chunk::Entry::has_more_alarms
pub fn alarm_of_entry(class: Class, wake_ms: i64, id: TaskId) -> Option<Setting> {
    match class {
        Class::Wall => Some((AlarmClock::Wall, wake_ms, Alarm::Due(id))),
        Class::Steady => Some((AlarmClock::Steady, wake_ms, Alarm::Due(id))),
        Class::Succeeded | Class::Dead | Class::Cancelled | Class::Cancels => {
            Some((AlarmClock::Steady, wake_ms, Alarm::Expire(id)))
        }
        Class::InFlight | Class::Paused => None,
    }
}

/// One wheel per clock.
#[derive(Debug)]
pub struct Wheels {
    wall: Wheel<Alarm>,
    steady: Wheel<Alarm>,
    mono: Wheel<Alarm>,
}

impl Wheels {
    /// Three empty wheels that stand at `now`.
    pub fn new(now: crate::clock::Now) -> Self {
        Self {
            wall: Wheel::new(now.wall.0),
            steady: Wheel::new(now.steady.0),
            mono: Wheel::new(now.mono.0),
        }
    }

    fn of(&mut self, clock: AlarmClock) -> &mut Wheel<Alarm> {
        match clock {
            AlarmClock::Wall => &mut self.wall,
            AlarmClock::Steady => &mut self.steady,
            AlarmClock::Mono => &mut self.mono,
        }
    }

    /// Sets an alarm.
    pub fn set(&mut self, (clock, at, alarm): Setting) {
        self.of(clock).insert(at, alarm);
    }

    /// Takes an alarm back.
    pub fn unset(&mut self, (clock, at, alarm): Setting) {
        self.of(clock).remove(at, alarm);
    }

    /// Pops what has come due on any clock, at most `max` per clock, earliest first per clock.
    pub fn advance(&mut self, now: crate::clock::Now, max: usize, out: &mut Vec<Setting>) {
        let mut due = Vec::new();
        for (clock, to) in [
            (AlarmClock::Mono, now.mono.0),
            (AlarmClock::Wall, now.wall.0),
            (AlarmClock::Steady, now.steady.0),
        ] {
            self.of(clock).advance(to, max, &mut due);
            out.extend(due.drain(..).map(|(at, alarm)| (clock, at, alarm)));
        }
    }

    /// All alarms that are set, for tests that count them again.
    #[cfg(test)]
    pub fn settings(&self) -> Vec<Setting> {
        let all = |clock, wheel: &Wheel<Alarm>| {
            let mut due = Vec::new();
            wheel.clone().advance(i64::MAX, usize::MAX, &mut due);
            due.into_iter().map(move |(at, alarm)| (clock, at, alarm))
        };
        let wall = all(AlarmClock::Wall, &self.wall);
        wall.chain(all(AlarmClock::Steady, &self.steady))
            .chain(all(AlarmClock::Mono, &self.mono))
            .collect()
    }

    /// Milliseconds until the next alarm may ring; `None` when none is set.
    pub fn next_in_ms(&self, now: crate::clock::Now) -> Option<i64> {
        [
            self.wall
                .next_due_ms()
                .map(|at| at.saturating_sub(now.wall.0)),
            self.steady
                .next_due_ms()
                .map(|at| at.saturating_sub(now.steady.0)),
            self.mono
                .next_due_ms()
                .map(|at| at.saturating_sub(now.mono.0)),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
