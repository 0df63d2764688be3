//! A disk in memory that loses what was not synced, tears what is being written, and fails when it is told to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::*;
use super::SECTOR;

/// The bookmark's name, which is no segment's.
const BOOKMARK_ID: SegmentId = SegmentId(0);

/// A disk in memory that can lose what was not synced. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Disk(pub(super) Arc<Mutex<Platters>>);

#[derive(Default)]
pub(super) struct Platters {
    pub(super) files: Vec<Arc<Mutex<Inode>>>,
    /// Names as programs see them, and as a power cut leaves them: the number of a file.
    pub(super) names: BTreeMap<SegmentId, usize>,
    pub(super) durable_names: BTreeMap<SegmentId, usize>,
    pub(super) faults: Arc<Mutex<Faults>>,
}

/// How many more calls succeed before one fails.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) write: Option<u32>,
    pub(super) sync: Option<u32>,
    /// Whether a failed sync leaves the pages clean, as Linux does, though only the cache has them.
    pub(super) forgets: bool,
}

#[derive(Default)]
pub(super) struct Inode {
    pub(super) cached: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) dirty: Vec<(usize, Vec<u8>)>,
}

pub(super) fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    bytes.resize(bytes.len().max(offset + new.len()), 0);
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

/// Counts down to a fault and says whether this call is the one that fails.
pub(super) fn strikes(fault: &mut Option<u32>) -> bool {
    match fault.take() {
        Some(0) => true,
        left => {
            *fault = left.map(|left| left - 1);
            false
        }
    }
}

/// A small generator, so that a failing case can be run again from its seed.
pub(super) fn coin(seed: &mut u64) -> bool {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    seed.count_ones().is_multiple_of(2)
}

impl Disk {
    /// Of each sector written and each name made or removed since the last sync, the seed decides what stays.
    pub(super) fn cut_power(&self, mut seed: u64) {
        let mut platters = self.0.lock();
        *platters.faults.lock() = Faults::default();
        for file in &platters.files {
            let mut inode = file.lock();
            for (offset, bytes) in mem::take(&mut inode.dirty) {
                for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                    if coin(&mut seed) {
                        put(&mut inode.durable, offset + n * SECTOR, sector);
                    }
                }
            }
            inode.cached = inode.durable.clone();
        }
        let (old, new) = (mem::take(&mut platters.durable_names), &platters.names);
        let both = old.keys().chain(new.keys()).copied();
        let kept = both.filter_map(|id| {
            let name = if coin(&mut seed) {
                old.get(&id)
            } else {
                new.get(&id)
            };
            Some((id, *name?))
        });
        platters.durable_names = kept.collect();
        platters.names = platters.durable_names.clone();
    }

    pub(super) fn fail_write_after(&self, calls: u32) {
        self.0.lock().faults.lock().write = Some(calls);
    }

    pub(super) fn fail_sync_after(&self, calls: u32, forgets: bool) {
        let platters = self.0.lock();
        let mut faults = platters.faults.lock();
        (faults.sync, faults.forgets) = (Some(calls), forgets);
    }

    pub(super) fn inode(&self, id: SegmentId) -> io::Result<Arc<Mutex<Inode>>> {
        let platters = self.0.lock();
        let file = platters.names.get(&id).ok_or(io::ErrorKind::NotFound)?;
        Ok(platters.files[*file].clone())
    }

    /// Changes a file behind everybody's back.
    pub(super) fn tamper(&self, id: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let inode = self.inode(SegmentId(id)).unwrap();
        let mut inode = inode.lock();
        change(&mut inode.cached);
        inode.durable = inode.cached.clone();
    }

    /// As after a power cut that came right behind the last sync.
    pub(super) fn lose_bookmark(&self) {
        self.remove(BOOKMARK_ID).unwrap();
    }

    /// Writes behind the last frame what journals from before bookmarks have there, and no bookmark.
    pub(super) fn footnote(&self, journal: &Journal, next: u64) {
        self.lose_bookmark();
        let last = journal.segments.back().unwrap();
        let header = Header {
            kind: Kind::Footnote,
            segment: last.id,
            epoch: journal.last_epoch.unwrap(),
            sequence: journal.last_sequence,
            durable_through: journal.last_sequence,
        };
        let mut footnote = Vec::new();
        header.encode(&[&next.to_le_bytes()], &mut footnote);
        self.tamper(last.id.0, |bytes| put(bytes, last.end as usize, &footnote));
    }

    /// Changes the bookmark behind everybody's back.
    pub(super) fn tamper_bookmark(&self, change: impl FnOnce(&mut Vec<u8>)) {
        self.tamper(BOOKMARK_ID.0, change);
    }

    pub(super) fn bytes_of(&self, id: u64) -> Vec<u8> {
        self.inode(SegmentId(id)).unwrap().lock().cached.clone()
    }

    /// A second disk with the same contents, everything on it durable.
    pub(super) fn copy(&self) -> Self {
        let copy = Self::default();
        let ids: Vec<SegmentId> = self.0.lock().names.keys().copied().collect();
        for id in ids {
            copy.create(id, 0).unwrap();
            copy.tamper(id.0, |bytes| *bytes = self.bytes_of(id.0));
        }
        copy.sync_directory().unwrap();
        copy
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.list().unwrap().iter().map(|id| id.0).collect()
    }

    pub(super) fn writer(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        let faults = self.0.lock().faults.clone();
        Ok(Box::new(Writer {
            inode: self.inode(id)?,
            faults,
        }))
    }
}

impl JournalFiles for Disk {
    fn directory(&self) -> &Path {
        Path::new("journal")
    }

    fn list(&self) -> io::Result<Vec<SegmentId>> {
        let platters = self.0.lock();
        let segments = platters.names.keys().copied();
        Ok(segments.filter(|id| *id != BOOKMARK_ID).collect())
    }

    fn read(&self, id: SegmentId, bytes_max: u64) -> io::Result<Vec<u8>> {
        let inode = self.inode(id)?;
        let bytes = &inode.lock().cached;
        let length = bytes.len().min(usize::try_from(bytes_max).unwrap());
        Ok(bytes[..length].to_vec())
    }

    fn create(&self, id: SegmentId, bytes: u64) -> io::Result<Box<dyn SegmentFile>> {
        {
            let mut platters = self.0.lock();
            let file = platters.files.len();
            if platters.names.contains_key(&id) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            platters.names.insert(id, file);
            platters.files.push(Arc::new(Mutex::new(Inode {
                cached: vec![0; usize::try_from(bytes).unwrap()],
                ..Inode::default()
            })));
        }
        self.writer(id)
    }

    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        self.writer(id)
    }

    fn remove(&self, id: SegmentId) -> io::Result<()> {
        let removed = self.0.lock().names.remove(&id);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn read_bookmark(&self) -> io::Result<Vec<u8>> {
        match self.inode(BOOKMARK_ID) {
            Ok(inode) => Ok(inode.lock().cached.clone()),
            Err(_) => Ok(Vec::new()),
        }
    }

    fn open_bookmark(&self) -> io::Result<Box<dyn SegmentFile>> {
        let opened = self.writer(BOOKMARK_ID);
        opened.or_else(|_| self.create(BOOKMARK_ID, 0))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut platters = self.0.lock();
        if strikes(&mut platters.faults.lock().sync) {
            return Err(io::Error::other("injected"));
        }
        platters.durable_names = platters.names.clone();
        Ok(())
    }
}

pub(super) struct Writer {
    pub(super) inode: Arc<Mutex<Inode>>,
    pub(super) faults: Arc<Mutex<Faults>>,
}

impl SegmentFile for Writer {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let fails = strikes(&mut self.faults.lock().write);
        let bytes = if fails {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        let offset = usize::try_from(offset).unwrap();
        let mut inode = self.inode.lock();
        put(&mut inode.cached, offset, bytes);
        inode.dirty.push((offset, bytes.to_vec()));
        if fails {
            Err(io::Error::other("injected"))
        } else {
            Ok(())
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inode = self.inode.lock();
        let mut faults = self.faults.lock();
        if strikes(&mut faults.sync) {
            if faults.forgets {
                inode.dirty.clear();
            }
            return Err(io::Error::other("injected"));
        }
        let dirty = mem::take(&mut inode.dirty);
        let length = inode.cached.len();
        inode.durable.resize(length, 0);
        for (offset, bytes) in dirty {
            put(&mut inode.durable, offset, &bytes);
        }
        Ok(())
    }
}
