//! What can still be got out of a journal that is damaged in its midst.
//!
//! ```text
//!  101  102 ░░░ 103  104        102 does not read back as a whole, and was acknowledged
//!        │ its changes, one by one: each value has a sum of its own, over the record's key too
//!        ├─ put A ✓   put B ░   cancel C ✓
//!        └─▶ A, C as 102 made them;  B as 101 left it, in doubt;  103 and 104 as ever
//! ```
//!
//! A start refuses such a journal, since B may have been cancelled, or paid. For a repair what is lost is told commit by
//! commit, and record by record as far as they can be told apart.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::journal::Lost;
use crate::store::{Batch, RecordKey};

/// Most records that are named one by one.
const NAMED_MAX: usize = 20;

/// Commits that were acknowledged and do not read back.
#[derive(Debug)]
pub struct LostCommits {
    /// The segment they stand in.
    pub file: PathBuf,
    /// The segment and the place in it.
    pub place: String,
    /// What can still be read of them.
    pub readable: Vec<Batch>,
    /// Records of which the latest change does not read back.
    pub doubtful: Vec<RecordKey>,
    /// Whether these are all; else they may have changed any task of the shard.
    pub is_all: bool,
    why: &'static str,
    first: u64,
    last: u64,
    /// Whether they are in chunks too.
    is_covered: bool,
}

impl LostCommits {
    /// Looks into what a replay has met, after the last commit that is in chunks.
    pub(super) fn of(lost: Lost, covered: u64) -> Self {
        let salvaged: Vec<_> = lost.payloads.iter().map(|it| Batch::salvage(it)).collect();
        let is_covered = lost.last <= covered;
        let are_all_there = salvaged.len() as u64 == (lost.last + 1).saturating_sub(lost.first);
        let is_all = are_all_there && salvaged.iter().all(|it| it.is_all);
        let mut this = Self {
            place: format!("{} at byte {}", lost.file.display(), lost.offset),
            file: lost.file,
            readable: Vec::new(),
            doubtful: Vec::new(),
            is_all: is_covered || is_all,
            why: lost.why,
            first: lost.first,
            last: lost.last,
            is_covered,
        };
        for salvaged in salvaged {
            this.readable.push(salvaged.batch);
            this.doubtful.extend(salvaged.doubtful);
        }
        this
    }

    /// What is lost, for a person.
    pub fn words(&self) -> String {
        let (first, last) = (self.first, self.last);
        let mut text = match last.saturating_sub(first) {
            0 => format!("commit {first} does not read back"),
            _ => format!("commits {first} to {last} do not read back"),
        };
        // A string takes any text.
        let _ = write!(text, " ({})", self.why);
        if self.is_covered {
            text.push_str("; chunks have what they changed, so nothing is lost");
            return text;
        }
        let readable: usize = self.readable.iter().map(Batch::len).sum();
        let _ = write!(
            text,
            ": {readable} changes in there do, each by its own sum"
        );
        for (place, key) in self.doubtful.iter().take(NAMED_MAX).enumerate() {
            let before = if place == 0 { "; not those of " } else { ", " };
            let _ = write!(text, "{before}{key}");
        }
        if self.doubtful.len() > NAMED_MAX {
            let _ = write!(text, " and {} more", self.doubtful.len() - NAMED_MAX);
        }
        if !self.is_all {
            text.push_str("; what else they changed can't be told, and is as it was before them");
        }
        text
    }
}
