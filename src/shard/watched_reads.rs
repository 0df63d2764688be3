//! A shard's own reads of chunks, told to the watchdog before they begin.
//!
//! The thread of a shard reads its chunks itself: ahead of their time, or because somebody asks. On a disk that takes its
//! time it is silent meanwhile, and must not be taken for one that hangs. So it says first that it waits, as the thread
//! that commits does (`shard::committer`). Whoever else reads the same chunks has no part in that: a pulse has one
//! writer.

use std::sync::Arc;

use crate::clock::Clock;
use crate::failpoints;
use crate::store::StoreError;
use crate::store::chunk::{ChunkId, ChunkIndex, PackedChunk, ReadChunks};
use crate::watchdog::Pulse;

/// See the module's header.
pub struct WatchedReads {
    reader: Arc<dyn ReadChunks>,
    pulse: Arc<Pulse>,
    clock: Clock,
}

impl WatchedReads {
    /// The reads of whoever beats that pulse.
    pub fn over(reader: Arc<dyn ReadChunks>, pulse: Arc<Pulse>, clock: Clock) -> Self {
        Self {
            reader,
            pulse,
            clock,
        }
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&dyn ReadChunks) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.pulse.waiting_long(self.clock.now().mono);
        let reached = failpoints::reach("shard::read").map_err(|source| StoreError::Io {
            doing: "read",
            file: "chunk".into(),
            source,
        });
        let found = reached.and_then(|()| read(&*self.reader));
        self.pulse.busy(self.clock.now().mono);
        found
    }
}

impl ReadChunks for WatchedReads {
    fn index(&self, chunk: ChunkId) -> Result<ChunkIndex, StoreError> {
        self.read(|reader| reader.index(chunk))
    }

    fn packed(&self, chunk: ChunkId) -> Result<PackedChunk, StoreError> {
        self.read(|reader| reader.packed(chunk))
    }
}
