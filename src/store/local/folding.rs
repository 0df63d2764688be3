//! One fold on its way into the tree, a slice at a time.
//!
//! ```text
//!  fold-00     sort, cut, pack ─┐ a few pieces ahead
//!  committer                    └▶ chunks ─▶ notes ─▶ marks ─▶ checkpoint ─┐        ┌▶ drop ─▶ what is superseded ─▶ through
//!  sync-00                                                                 └▶ sync ─┘
//! ```
//!
//! Nothing of it counts before the checkpoint is synced, and all of it does after; what follows only cleans. Commits
//! wait while a slice runs, so a slice does no more than put into sled what another thread has made ready.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use super::ShardHome;
use super::tree::{MARKS_MAX, Tree};
use crate::failpoints;
use crate::store::chunk::{ChunkId, Cut, Cutter, Fold, Folded, Marks, Mask, Memtable};
use crate::store::codec::{Checkpoint, Tally};
use crate::store::{RecordKey, StoreError};

/// Pieces that are made ready ahead of their writing.
const PIECES_AHEAD: usize = 8;
/// Longest wait for another thread in one slice.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// A fold that is not through.
pub(super) struct Folding {
    table: Arc<Memtable>,
    marks: Vec<(ChunkId, Mask)>,
    drop: Vec<ChunkId>,
    /// Notes that newer ones have replaced.
    superseded: Vec<sled::IVec>,
    /// What holds once it is through.
    checkpoint: Checkpoint,
    folded: Folded,
    step: Step,
}

/// How far a slice has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slice {
    Through,
    More,
    /// It has waited for a thread beside, in vain.
    Waits,
}

/// What is to be done next. Places count what is done of a list.
enum Step {
    Start,
    Chunks(Receiver<Piece>),
    Notes(Vec<RecordKey>),
    Forget(usize),
    Marks(usize),
    Sync(Receiver<Result<(), StoreError>>),
    Drop(usize),
    Superseded(usize),
    Replaced,
    Through,
}

/// What the thread beside has made ready.
enum Piece {
    /// A chunk, and its index as it is stored.
    Chunk(Cut, Vec<u8>),
    /// That was all; these are the notes.
    End(Vec<RecordKey>),
}

impl Folding {
    /// A fold with which everything up to that sequence is covered. `before` is the last checkpoint otherwise.
    pub(super) fn of(fold: Fold, before: Checkpoint) -> Self {
        let number = before.fold + 1;
        let (mut marks, marks_from, counted) = match fold.marks {
            Marks::Changed(marks) => (marks, before.marks_from, before.marks),
            Marks::All(marks) => (marks, number, Tally::default()),
        };
        // A full mask is how a drop is made durable, so one that was handed in is a drop, too.
        let full = marks.iter().filter(|(_, mask)| *mask == Mask::MAX);
        let mut drop: Vec<ChunkId> = full.map(|(chunk, _)| *chunk).chain(fold.drop).collect();
        drop.sort_unstable();
        drop.dedup();
        // In this order: of two marks of one chunk the later counts.
        marks.extend(drop.iter().map(|chunk| (*chunk, Mask::MAX)));
        Self {
            table: fold.table,
            marks,
            drop,
            superseded: Vec::new(),
            checkpoint: Checkpoint {
                fold: number,
                marks_from,
                marks: counted,
                ..before
            },
            folded: Folded::default(),
            step: Step::Start,
        }
    }

    /// What is folded.
    #[cfg(test)]
    pub(super) fn table(&self) -> &Arc<Memtable> {
        &self.table
    }

    /// What holds from here on, and what the owner is told.
    pub(super) fn end(self) -> (Checkpoint, Folded) {
        (self.checkpoint, self.folded)
    }

    /// Goes on as long as a slice lasts, and for at least so many bytes.
    pub(super) fn advance(
        &mut self,
        tree: &Arc<Tree>,
        home: &ShardHome,
        bytes_min: usize,
    ) -> Result<Slice, StoreError> {
        let end = Instant::now() + home.options.slice;
        let mut bytes = 0;
        loop {
            let did = self.do_one(tree, home)?;
            bytes += did.unwrap_or_default();
            match self.step {
                Step::Through => return Ok(Slice::Through),
                // Others wait for this thread.
                Step::Sync(_) if did.is_some() => return Ok(Slice::More),
                Step::Sync(_) => return Ok(Slice::Waits),
                _ if bytes < bytes_min => {}
                _ if did.is_none() => return Ok(Slice::Waits),
                _ if Instant::now() >= end => return Ok(Slice::More),
                _ => {}
            }
        }
    }

    /// Does one thing. How many bytes of the table it has carried over; `None` if it has waited in vain.
    fn do_one(&mut self, tree: &Arc<Tree>, home: &ShardHome) -> Result<Option<usize>, StoreError> {
        let number = self.checkpoint.fold;
        let mut bytes = 0;
        match &mut self.step {
            Step::Start => {
                let pieces = cut_beside(self.table.clone(), self.checkpoint.next_chunk, home)?;
                self.step = Step::Chunks(pieces);
            }
            Step::Chunks(pieces) => match pieces.recv_timeout(WAIT_MAX) {
                Ok(Piece::Chunk(cut, index)) => {
                    reach("fold::chunk", home)?;
                    tree.put_chunk(&index, &cut.body, &mut self.checkpoint.chunks)?;
                    self.checkpoint.next_chunk = ChunkId(cut.index.id.0 + 1);
                    self.folded.chunks.push(cut.index);
                    bytes = cut.bytes;
                }
                Ok(Piece::End(notes)) => {
                    reach("fold::chunks_written", home)?;
                    self.step = Step::Notes(notes);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(StoreError::Poisoned),
            },
            Step::Notes(keys) => match keys.pop() {
                Some(key) => {
                    let value = self.table.notes.get(&key).and_then(Option::as_deref);
                    let (tally, superseded) = (&mut self.checkpoint.notes, &mut self.superseded);
                    tree.write_note(key, value, number, tally, superseded)?;
                    bytes = size_of::<RecordKey>() + value.map_or(0, <[u8]>::len);
                }
                None => self.step = Step::Forget(0),
            },
            Step::Forget(done) => match self.drop.get(*done) {
                Some(chunk) => {
                    tree.forget_chunk(*chunk, &mut self.checkpoint.chunks)?;
                    *done += 1;
                }
                None => self.step = Step::Marks(0),
            },
            Step::Marks(done) => match self.marks.chunks(MARKS_MAX).nth(*done) {
                Some(marks) => {
                    tree.put_marks(number, *done as u32, marks, &mut self.checkpoint.marks)?;
                    *done += 1;
                }
                None => {
                    tree.put_checkpoint(self.checkpoint)?;
                    reach("fold::checkpoint_written", home)?;
                    self.step = Step::Sync(sync_beside(tree, home)?);
                }
            },
            Step::Sync(done) => match done.recv_timeout(WAIT_MAX) {
                Ok(synced) => {
                    synced?;
                    reach("fold::synced", home)?;
                    self.step = Step::Drop(0);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(StoreError::Poisoned),
            },
            Step::Drop(done) => match self.drop.get(*done) {
                Some(chunk) => {
                    tree.remove_chunk(*chunk)?;
                    *done += 1;
                }
                None => self.step = Step::Superseded(0),
            },
            Step::Superseded(done) => match self.superseded.get(*done) {
                Some(entry) => {
                    tree.remove_note(entry)?;
                    *done += 1;
                }
                None => self.step = Step::Replaced,
            },
            Step::Replaced => match tree.oldest_marks_before(self.checkpoint.marks_from)? {
                Some(entry) => tree.remove(&entry)?,
                None => self.step = Step::Through,
            },
            Step::Through => {}
        }
        Ok(Some(bytes))
    }
}

/// Sorts, cuts and packs on a thread of its own, which ends when it is through or nobody takes its pieces any more.
fn cut_beside(
    table: Arc<Memtable>,
    first: ChunkId,
    home: &ShardHome,
) -> Result<Receiver<Piece>, StoreError> {
    let (give, pieces) = mpsc::sync_channel(PIECES_AHEAD);
    let cut = move || cut_all(&table, first, &give);
    beside("fold", home, cut)?;
    Ok(pieces)
}

fn cut_all(table: &Arc<Memtable>, first: ChunkId, give: &SyncSender<Piece>) {
    for cut in Cutter::new(table.clone(), first) {
        let index = cut.index.encode();
        if give.send(Piece::Chunk(cut, index)).is_err() {
            return;
        }
    }
    let notes = table.notes.keys().copied().collect();
    // Whoever has given the fold up does not miss it.
    let _ = give.send(Piece::End(notes));
}

pub(super) fn reach(point: &'static str, home: &ShardHome) -> Result<(), StoreError> {
    failpoints::reach(point).map_err(|source| StoreError::Io {
        doing: "fold into",
        file: home.path.clone(),
        source,
    })
}

/// Syncs the tree on a thread of its own: commits must not wait for it.
fn sync_beside(
    tree: &Arc<Tree>,
    home: &ShardHome,
) -> Result<Receiver<Result<(), StoreError>>, StoreError> {
    let (tell, done) = mpsc::channel();
    let tree = tree.clone();
    let sync = move || {
        // An owner that is gone does not hear it, and its successor syncs again.
        let _ = tell.send(tree.sync());
    };
    beside("sync", home, sync)?;
    Ok(done)
}

/// Works on a thread of its own, which is named for what it does: `fold-03`.
fn beside(
    name: &str,
    home: &ShardHome,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), StoreError> {
    let thread = thread::Builder::new().name(format!("{name}-{:02}", home.shard.0));
    let started = thread.spawn(work);
    started.map(|_| ()).map_err(|source| StoreError::Io {
        doing: "start a thread to fold or sync",
        file: home.path.clone(),
        source,
    })
}
