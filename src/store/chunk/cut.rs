//! Cuts a memtable into chunks: by class, and within a class by when its records matter.

use std::sync::Arc;

use super::{CHUNK_BYTES, CHUNK_RECORDS_MAX, ChunkId, ChunkIndex, Class, Memtable, PackedChunk};

/// Gives one chunk after the other.
#[derive(Debug)]
pub(in crate::store) struct Cutter {
    table: Arc<Memtable>,
    /// Keys of its tasks, sorted: small, so that sorting moves little.
    order: Vec<(Class, i64, usize)>,
    at: usize,
    next: ChunkId,
}

/// A chunk that is to be written.
pub(in crate::store) struct Cut {
    pub(in crate::store) index: ChunkIndex,
    pub(in crate::store) body: PackedChunk,
    /// Of its records before they were packed.
    pub(in crate::store) bytes: usize,
}

impl Cutter {
    /// Chunks of these tasks, numbered from `first`. Sorts, which takes about 0.1 µs a task.
    pub(in crate::store) fn new(table: Arc<Memtable>, first: ChunkId) -> Self {
        let tasks = table.tasks.values().enumerate();
        let mut order: Vec<_> = tasks
            .map(|(place, recent)| (recent.entry.class, recent.entry.wake_ms, place))
            .collect();
        order.sort_unstable();
        Self {
            table,
            order,
            at: 0,
            next: first,
        }
    }

    /// The number of the chunk that comes next.
    pub(in crate::store) fn next_id(&self) -> ChunkId {
        self.next
    }
}

impl Iterator for Cutter {
    type Item = Cut;

    fn next(&mut self) -> Option<Cut> {
        let (class, ..) = *self.order.get(self.at)?;
        let id = self.next;
        self.next = ChunkId(id.0 + 1);
        // First only looked up: each is somewhere else in memory, and so the processor fetches many at once.
        let mut records = Vec::with_capacity(CHUNK_RECORDS_MAX);
        let mut bytes = 0;
        while let Some((of, _, place)) = self.order.get(self.at)
            && *of == class
            && records.len() < CHUNK_RECORDS_MAX
            && bytes < CHUNK_BYTES
        {
            let recent = &self.table.tasks[*place];
            bytes += recent.value.len();
            records.push(recent);
            self.at += 1;
        }
        let body = PackedChunk::pack(id, records.iter().map(|recent| &*recent.value));
        let entries = records.iter().map(|recent| recent.entry.clone()).collect();
        let index = ChunkIndex {
            id,
            class,
            entries,
            packed_bytes: body.bytes.len() as u32,
        };
        Some(Cut { index, body, bytes })
    }
}
