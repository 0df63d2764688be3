//! One fold on its way into the tree, a slice at a time.
//!
//! ```text
//!  sort ─▶ chunks ─▶ notes ─▶ marks ─▶ checkpoint ─▶ sync, beside ─▶ what is dropped ─▶ what marks replaced ─▶ through
//! ```
//!
//! Nothing of it counts before the checkpoint is synced, and all of it does after; what follows only cleans.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use super::ShardHome;
use super::tree::{MARKS_MAX, Tree};
use crate::store::chunk::{ChunkId, Cutter, Fold, Folded, Marks, Mask, Memtable};
use crate::store::codec::Checkpoint;
use crate::store::{RecordKey, StoreError};

/// A fold that is not through.
pub(super) struct Folding {
    table: Arc<Memtable>,
    marks: Vec<(ChunkId, Mask)>,
    drop: Vec<ChunkId>,
    /// What holds once it is through.
    checkpoint: Checkpoint,
    folded: Folded,
    step: Step,
}

/// What is to be done next. Places count what is done of a list.
enum Step {
    Sort,
    Chunks(Cutter),
    Notes(Vec<RecordKey>),
    Marks(usize),
    Sync(Receiver<Result<(), StoreError>>),
    Drop(usize),
    Replaced,
    Through,
}

impl Folding {
    /// A fold with which everything up to that sequence is covered. `before` is the last checkpoint otherwise.
    pub(super) fn of(fold: Fold, before: Checkpoint) -> Self {
        let number = before.fold + 1;
        let (mut marks, marks_from) = match fold.marks {
            Marks::Changed(marks) => (marks, before.marks_from),
            Marks::All(marks) => (marks, number),
        };
        // In this order: of two marks of one chunk the later counts.
        marks.extend(fold.drop.iter().map(|chunk| (*chunk, Mask::MAX)));
        Self {
            table: fold.table,
            marks,
            drop: fold.drop,
            checkpoint: Checkpoint {
                fold: number,
                marks_from,
                ..before
            },
            folded: Folded::default(),
            step: Step::Sort,
        }
    }

    /// What holds from here on, and what the owner is told.
    pub(super) fn end(self) -> (Checkpoint, Folded) {
        (self.checkpoint, self.folded)
    }

    /// Goes on as long as a slice lasts, and for at least so many bytes. Whether it is through.
    pub(super) fn advance(
        &mut self,
        tree: &Arc<Tree>,
        home: &ShardHome,
        bytes_min: usize,
    ) -> Result<bool, StoreError> {
        let end = Instant::now() + home.options.slice;
        let mut bytes = 0;
        loop {
            bytes += self.do_one(tree, home)?;
            match self.step {
                Step::Through => return Ok(true),
                // Others wait for this thread.
                Step::Sync(_) => return Ok(false),
                _ if bytes >= bytes_min && Instant::now() >= end => return Ok(false),
                _ => {}
            }
        }
    }

    /// Does one thing. How many bytes of the table it has carried over.
    fn do_one(&mut self, tree: &Arc<Tree>, home: &ShardHome) -> Result<usize, StoreError> {
        let number = self.checkpoint.fold;
        match &mut self.step {
            Step::Sort => {
                let cutter = Cutter::new(self.table.clone(), self.checkpoint.next_chunk);
                self.step = Step::Chunks(cutter);
            }
            Step::Chunks(cutter) => match cutter.next() {
                Some(cut) => {
                    tree.put_chunk(&cut.index, &cut.body)?;
                    self.folded.chunks.push(cut.index);
                    return Ok(cut.bytes);
                }
                None => {
                    self.checkpoint.next_chunk = cutter.next_id();
                    self.step = Step::Notes(self.table.notes.keys().copied().collect());
                }
            },
            Step::Notes(keys) => match keys.pop() {
                Some(key) => {
                    let value = self.table.notes.get(&key).and_then(Option::as_deref);
                    tree.write_note(key, value, number)?;
                    return Ok(size_of::<RecordKey>() + value.map_or(0, <[u8]>::len));
                }
                None => self.step = Step::Marks(0),
            },
            Step::Marks(done) => match self.marks.chunks(MARKS_MAX).nth(*done) {
                Some(marks) => {
                    tree.put_marks(number, *done as u32, marks)?;
                    *done += 1;
                }
                None => {
                    tree.put_checkpoint(self.checkpoint)?;
                    self.step = Step::Sync(sync_beside(tree, home)?);
                }
            },
            Step::Sync(done) => match done.recv_timeout(home.options.slice) {
                Ok(synced) => {
                    synced?;
                    self.step = Step::Drop(0);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(StoreError::Poisoned),
            },
            Step::Drop(done) => match self.drop.get(*done) {
                Some(chunk) => {
                    tree.remove_chunk(*chunk)?;
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
        Ok(0)
    }
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
    let thread = thread::Builder::new()
        .name(format!("sync-{}", home.shard))
        .spawn(sync);
    thread.map(|_| done).map_err(|source| StoreError::Io {
        doing: "start a thread to sync",
        file: home.path.clone(),
        source,
    })
}
