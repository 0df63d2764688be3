//! A bulk job: what it was asked, how far it is, and what a wish makes of it. No clock, no store, no shard.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::clock::{Now, WallMs};
use crate::ids::TaskId;
use crate::limits;
use crate::shard::query::Position;
use crate::store::database::ENTRY_BYTES_MAX;
use crate::task::event::{Event, NewDue};
use crate::task::model::{Due, PauseClock, Task};
use crate::wire::bulk::{BulkAction, BulkAsk};

/// Which bulk job: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BulkId(pub u64);

impl fmt::Display for BulkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text is not the id of a bulk job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the id of a bulk job has 16 hexadecimal digits")]
pub struct NotABulkId;

impl FromStr for BulkId {
    type Err = NotABulkId;

    fn from_str(text: &str) -> Result<Self, NotABulkId> {
        let id = u64::from_str_radix(text, 16).map(Self);
        // Only as it is written, so that one job has one name.
        id.ok()
            .filter(|id| id.to_string() == text)
            .ok_or(NotABulkId)
    }
}

/// Where a bulk job stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkState {
    /// On its way through the tasks.
    Running,
    /// Held.
    Paused,
    /// Through.
    Done,
    /// Ended before it was through.
    Stopped,
    /// Taking back what it did.
    Undoing,
    /// What could be taken back is.
    Undone,
}

impl BulkState {
    /// Its word in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Undoing => "undoing",
            Self::Undone => "undone",
        }
    }

    /// Whether nothing more happens by itself or by a resume.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Stopped | Self::Undone)
    }
}

/// What a person may want of a bulk job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkVerb {
    /// Hold it.
    Pause,
    /// Let it go on.
    Resume,
    /// End it where it is.
    Stop,
    /// Take back what it did.
    Undo,
}

impl BulkVerb {
    /// Its word in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Stop => "stop",
            Self::Undo => "undo",
        }
    }
}

/// Why a bulk job does not do it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BulkRefused {
    /// As many as may be are under way.
    #[error(
        "there are {} bulk jobs under way already, which is the most; stop one, or wait for its end",
        limits::BULK_LIVE_MAX
    )]
    TooMany,
    /// There is none of that id.
    #[error("there is no bulk job {0}; ended ones are kept for 7 days, the latest {max}", max = limits::BULK_ENDED_MAX)]
    Unknown(String),
    /// Not in this state.
    #[error("a bulk job that is {} can't {}", state.name(), verb.name())]
    IllegalState {
        /// The state it is in.
        state: BulkState,
        /// What was wanted.
        verb: BulkVerb,
    },
    /// What it did can't be taken back.
    #[error("{0}")]
    NotUndoable(String),
}

/// What became of the tasks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BulkCounts {
    /// Records that were looked at.
    pub looked_at: u64,
    /// Tasks that the filter takes in.
    pub matched: u64,
    /// Those that it was done to, or that it would be done to.
    pub done: u64,
    /// Those that did not let it be done, by the code of the reason.
    pub refused: BTreeMap<String, u64>,
    /// Those that could not be read.
    pub failed: u64,
    /// Of those that it was done to: taken back.
    pub undone: u64,
    /// Of those: left as they are, because somebody has changed them since.
    pub kept: u64,
}

/// A task that is named: one that it would be done to, or that did not let it be done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Its id.
    pub id: String,
    /// The code of the reason why not.
    pub refused: Option<String>,
}

/// How far a bulk job is, as it is stored. Instants are Unix milliseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Where it stands.
    pub state: BulkState,
    /// When it began; newer tasks are none of its business.
    pub begun_ms: i64,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// The place behind which it goes on: due time and id.
    pub after: Option<(i64, String)>,
    /// Nothing is behind that place.
    pub is_looked_through: bool,
    /// Pages of tasks that it has had in hand.
    pub pages: u32,
    /// So many of the latest of them are not counted yet, and are done once more if need be.
    pub in_hand: u32,
    /// The page that is taken back next is the one before this.
    pub undo_before: Option<u32>,
    /// What became of the tasks.
    pub counts: BulkCounts,
    /// Some of them, at most [`limits::BULK_SAMPLE_MAX`].
    pub sample: Vec<Sample>,
}

/// A bulk job.
#[derive(Clone, PartialEq, Debug)]
pub struct BulkJob {
    /// Which.
    pub id: BulkId,
    /// What it was asked.
    pub ask: BulkAsk,
    /// By whom.
    pub by: String,
    /// How far it is.
    pub progress: Progress,
}

impl BulkJob {
    /// At its beginning.
    pub fn new(id: BulkId, ask: BulkAsk, by: String, begun: WallMs) -> Self {
        let progress = Progress {
            state: BulkState::Running,
            begun_ms: begun.0,
            ended_ms: None,
            after: None,
            is_looked_through: false,
            pages: 0,
            in_hand: 0,
            undo_before: None,
            counts: BulkCounts::default(),
            sample: Vec::new(),
        };
        Self {
            id,
            ask,
            by,
            progress,
        }
    }

    /// Who changes the tasks, as their logs say.
    pub fn hand(&self) -> String {
        format!("bulk:{}", self.id)
    }

    /// Who takes it back.
    pub fn undoing_hand(&self) -> String {
        format!("bulk:{}:undo", self.id)
    }

    /// By what a task remembers that the job has been there.
    pub fn request(&self) -> u64 {
        self.id.0
    }

    /// Whether there is something to do.
    pub fn is_at_work(&self) -> bool {
        let state = self.progress.state;
        self.progress.in_hand > 0 || matches!(state, BulkState::Running | BulkState::Undoing)
    }

    /// The place to go on from.
    pub fn after(&self) -> Option<Position> {
        let (at, id) = self.progress.after.as_ref()?;
        Some(Position {
            at: WallMs(*at),
            id: id.parse().ok()?,
        })
    }

    /// Whether the pages are kept, so that it can be undone.
    pub fn keeps_pages(&self) -> bool {
        !self.ask.dry_run
            && self.ask.action.can_be_undone()
            && self.progress.counts.matched <= limits::BULK_UNDO_MAX
    }

    /// The numbers of the pages in hand. Those that are not to be taken back make room for the next.
    pub fn pages_in_hand(&self) -> Range<u32> {
        let Progress { pages, in_hand, .. } = self.progress;
        match self.keeps_pages() {
            true => pages.saturating_sub(in_hand)..pages,
            false => 0..in_hand,
        }
    }

    /// Tasks of a step, so that several steps make a second.
    pub fn step_max(&self) -> usize {
        const STEPS_PER_S: usize = 4;
        match self.ask.dry_run {
            true => limits::BULK_STEP_MAX,
            false => (self.ask.rate as usize)
                .div_ceil(STEPS_PER_S)
                .min(limits::BULK_STEP_MAX),
        }
    }

    /// What a wish makes of it; whether it made anything.
    ///
    /// # Errors
    /// When its state does not allow it; it is unchanged then.
    pub fn wish(&mut self, verb: BulkVerb, now: WallMs) -> Result<bool, BulkRefused> {
        use BulkState::{Done, Paused, Running, Stopped, Undoing, Undone};
        let state = self.progress.state;
        if verb == BulkVerb::Undo {
            self.can_undo()?;
        }
        let next = match (verb, state) {
            (BulkVerb::Pause, Running | Paused) => Paused,
            (BulkVerb::Resume, Paused | Running) => Running,
            (BulkVerb::Stop, Running | Paused | Undoing | Stopped) => Stopped,
            (BulkVerb::Undo, Running | Paused | Done | Stopped | Undoing) => Undoing,
            (BulkVerb::Undo, Undone) => Undone,
            (verb, state) => return Err(BulkRefused::IllegalState { state, verb }),
        };
        if next == state {
            return Ok(false);
        }
        self.turn(next, now);
        Ok(true)
    }

    /// Into another state.
    pub fn turn(&mut self, next: BulkState, now: WallMs) {
        if next == BulkState::Undoing && self.progress.undo_before.is_none() {
            self.progress.undo_before = Some(self.progress.pages);
        }
        self.progress.ended_ms = next.has_ended().then_some(now.0);
        self.progress.state = next;
    }

    fn can_undo(&self) -> Result<(), BulkRefused> {
        let word = self.ask.action.word();
        let why = if self.ask.dry_run {
            "a dry run has changed nothing".to_owned()
        } else if !self.ask.action.can_be_undone() {
            format!(
                "a {word} can't be taken back: only pause, resume, reschedule and recompute can"
            )
        } else if !self.keeps_pages() {
            format!(
                "it took in more than {} tasks, which is the most that can be taken back",
                limits::BULK_UNDO_MAX
            )
        } else {
            return Ok(());
        };
        Err(BulkRefused::NotUndoable(why))
    }

    /// Counts a task that did not let it be done.
    pub fn count_refused(&mut self, id: TaskId, code: &str) {
        *self
            .progress
            .counts
            .refused
            .entry(code.to_owned())
            .or_default() += 1;
        self.name(id, Some(code));
    }

    /// Names a task, if there is room.
    pub fn name(&mut self, id: TaskId, refused: Option<&str>) {
        if self.progress.sample.len() < limits::BULK_SAMPLE_MAX {
            self.progress.sample.push(Sample {
                id: id.to_string(),
                refused: refused.map(str::to_owned),
            });
        }
    }
}

/// How a task was before a bulk job changed it, as far as an undo needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Nothing is taken back.
    Any,
    /// It waited.
    Waiting,
    /// It was held.
    Paused(PauseClock),
    /// It was due then.
    Due(WallMs),
}

impl Before {
    /// Of a task that this is about to be done to.
    pub fn of(task: &Task, action: &BulkAction) -> Self {
        match action {
            BulkAction::Pause { .. } => Self::Waiting,
            BulkAction::Resume => task
                .pause
                .map_or(Self::Any, |pause| Self::Paused(pause.clock)),
            BulkAction::Reschedule(_) => Self::Due(task.next.at),
            BulkAction::Cancel { .. }
            | BulkAction::Replay
            | BulkAction::RunNow
            | BulkAction::Discard
            | BulkAction::Recompute => Self::Any,
        }
    }

    /// Of a task to which a recompute is about to let this happen. Stages, and what is called off, are not brought back.
    pub fn of_recomputed(task: &Task, event: &Event) -> Self {
        match event {
            Event::Amend { spec, .. } if spec.stages.is_none() && task.spec.stages.is_none() => {
                Self::Due(task.next.at)
            }
            _ => Self::Any,
        }
    }

    /// What brings it back. A due time that has passed meanwhile means now.
    pub fn back(self, now: Now) -> Option<Event> {
        match self {
            Self::Any => None,
            Self::Waiting => Some(Event::Resume),
            Self::Paused(clock) => Some(Event::Pause { clock }),
            Self::Due(at) => Some(Event::Reschedule {
                due: NewDue::To(Due::at(at, now)),
            }),
        }
    }
}

/// A task in hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InHand {
    /// Which.
    pub id: TaskId,
    /// How it was.
    pub before: Before,
}

/// Id, kind of before, time.
const IN_HAND_BYTES: usize = 16 + 1 + 8;
// With its key, which is shorter than a task of it.
const _: () = assert!((limits::BULK_PAGE_MAX + 1) * IN_HAND_BYTES <= ENTRY_BYTES_MAX);

/// A page as it is stored.
pub fn page_bytes(tasks: &[InHand]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tasks.len() * IN_HAND_BYTES);
    for task in tasks {
        let (kind, at_ms) = match task.before {
            Before::Any => (0, 0),
            Before::Waiting => (1, 0),
            Before::Paused(PauseClock::Keep) => (2, 0),
            Before::Paused(PauseClock::Freeze) => (3, 0),
            Before::Due(at) => (4, at.0),
        };
        bytes.extend(task.id.to_bytes());
        bytes.push(kind);
        bytes.extend(i64::to_be_bytes(at_ms));
    }
    bytes
}

/// Reads a page back; what is not one gives nothing.
pub fn read_page(bytes: &[u8]) -> Option<Vec<InHand>> {
    let tasks = bytes.chunks(IN_HAND_BYTES).map(|bytes| {
        let (id, rest) = bytes.split_first_chunk()?;
        let (kind, at_ms) = rest.split_first()?;
        let at_ms = i64::from_be_bytes(at_ms.try_into().ok()?);
        let before = match kind {
            0 => Before::Any,
            1 => Before::Waiting,
            2 => Before::Paused(PauseClock::Keep),
            3 => Before::Paused(PauseClock::Freeze),
            4 => Before::Due(WallMs(at_ms)),
            _ => return None,
        };
        let id = TaskId::from_bytes(*id);
        Some(InHand { id, before })
    });
    tasks.collect()
}
