//! A local shard looked at by nobody's owner: what stands in it, damaged or not, entry by entry.
//!
//! No epoch is minted and nothing of ours is written, so it looks at the same store twice and sees the same. (sled, as
//! each time that it is opened, may tidy its own file.) The directory's lock keeps everybody else away meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::journal::{Journal, JournalDirectory, JournalError, Met};
use super::salvage::LostCommits;
use super::tree::Tree;
use super::{LocalOptions, path_of};
use crate::ids::ShardId;
use crate::store::chunk::{ChunkId, ChunkIndex, Mask, PackedChunk, ReadChunks};
use crate::store::codec::Checkpoint;
use crate::store::{Batch, Note, RecordKey, StoreError};

/// What stands in the journal, in order.
#[derive(Debug)]
pub enum Committed {
    /// A commit.
    Batch(Batch),
    /// Commits that do not read back as a whole.
    Lost(LostCommits),
}

/// What the journal holds.
#[derive(Debug, Default)]
pub struct JournalFound {
    /// Batches that no fold has covered.
    pub batches: u64,
    /// Where a tail is torn that nobody was told of: the next start cuts it.
    pub torn: Option<(PathBuf, u64)>,
}

/// A shard at rest. See the module's header.
pub struct Inspection {
    path: PathBuf,
    tree: Tree,
    checkpoint: Checkpoint,
}

impl Inspection {
    /// Whether there is such a shard.
    pub fn is_there(data: &Path, shard: ShardId) -> bool {
        let path = path_of(data, shard);
        path.join("wheel").is_dir() && path.join("journal").is_dir()
    }

    /// Opens a shard that is there.
    ///
    /// # Errors
    /// When its database or its checkpoint can't be read.
    pub fn open(data: &Path, shard: ShardId, options: &LocalOptions) -> Result<Self, StoreError> {
        let path = path_of(data, shard);
        let tree = Tree::open(&path.join("wheel"), options)?;
        let checkpoint = tree.checkpoint()?.unwrap_or_default();
        Ok(Self {
            path,
            tree,
            checkpoint,
        })
    }

    /// The seed of its key hashes.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn seed(&self) -> Result<u64, StoreError> {
        self.tree.seed()
    }

    /// Reads the journal to its end, past what does not read back.
    ///
    /// # Errors
    /// When it can't be told what counts.
    pub fn journal(&self, visit: &mut dyn FnMut(Committed)) -> Result<JournalFound, StoreError> {
        let files = JournalDirectory::open(&self.path.join("journal"))?;
        let mut found = JournalFound::default();
        let covered = self.checkpoint.covered;
        let journal = Journal::salvage(Box::new(files), covered, &mut |met| {
            visit(match met {
                Met::Frame(frame) => {
                    found.batches += 1;
                    let batch = Batch::decode(frame.payload);
                    Committed::Batch(batch.map_err(|damaged| damaged.to_string())?)
                }
                Met::Lost(lost) => Committed::Lost(LostCommits::of(lost, covered)),
            });
            Ok(())
        });
        found.torn = journal
            .map_err(|error: JournalError| StoreError::from(error))?
            .torn_at();
        Ok(found)
    }

    /// Which records of chunks are dead. Chunks, marks and notes that are missing are told here, too.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn masks(
        &self,
        damaged: &mut dyn FnMut(String, String),
    ) -> Result<HashMap<ChunkId, Mask>, StoreError> {
        let masks = self.tree.masks(&self.checkpoint, &mut |fault| {
            damaged(fault.place, fault.why);
        })?;
        let chunks = self
            .tree
            .indexes(&self.checkpoint, &masks, &mut |_, _| {})?;
        let notes = self.tree.notes(&self.checkpoint, &mut |_, _| {})?;
        for fault in chunks.into_iter().chain(notes) {
            damaged(fault.place, fault.why);
        }
        Ok(masks)
    }

    /// All chunks that count, by an index or a body.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn chunks(&self) -> Result<BTreeSet<ChunkId>, StoreError> {
        self.tree.chunks(&self.checkpoint)
    }

    /// A chunk's entries, checked.
    ///
    /// # Errors
    /// When they don't read back, or the database can't be read.
    pub fn index(&self, chunk: ChunkId) -> Result<ChunkIndex, StoreError> {
        self.tree.index(chunk)
    }

    /// A chunk's index as it stands there, if there is one.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn raw_index(&self, chunk: ChunkId) -> Result<Option<Bytes>, StoreError> {
        self.tree.raw_index(chunk)
    }

    /// A chunk's body, not checked.
    ///
    /// # Errors
    /// When a part of it is missing, or the database can't be read.
    pub fn body(&self, chunk: ChunkId) -> Result<PackedChunk, StoreError> {
        self.tree.packed(chunk)
    }

    /// Visits all notes.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn notes(
        &self,
        visit: &mut dyn FnMut(RecordKey, Result<Note, (String, String)>),
    ) -> Result<(), StoreError> {
        self.tree.notes(&self.checkpoint, &mut |key, note| {
            visit(key, note.map_err(|fault| (fault.place, fault.why)));
        })?;
        Ok(())
    }

    /// How many entries a fold that was cut off has left; the next start removes them.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn left_behind(&self) -> Result<usize, StoreError> {
        Ok(self.tree.left_behind(&self.checkpoint)?.len())
    }

    /// Names a chunk, for a person.
    pub fn place_of(&self, chunk: ChunkId) -> String {
        format!("{chunk} in {}", self.path.join("wheel").display())
    }
}
