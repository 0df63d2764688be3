//! The journal of one shard: what makes a commit durable. When [`Journal::append`] returns, the frame stands on
//! the disk; everything slower (the wheel in sled, the index, the history) may follow at its own pace.
//!
//! Think of a bound notebook. Entries are only ever added, each entry says how far the book was known to be safe
//! when it was written, and whoever takes the book over begins a fresh volume whose first line reads "of the
//! volume before, these many bytes count".
//!
//! ```text
//!  …0004.segment (epoch 7)                          …0005.segment (epoch 8)
//!  ┌─────────┬─────┬─────┬─────┐╎┌─────────────┐    ┌────────────────────────────┬─────┬─────┬ zeros
//!  │ opening │ 101 │ 102 │ 103 │╎│ torn, or a  │    │ opening: follows 4, sealed │ 104 │ 105 │
//!  │         │     │     │     │╎│ zombie's    │    │ at ╎, after sequence 103   │     │     │
//!  └─────────┴─────┴─────┴─────┘╎└─────────────┘    └────────────────────────────┴─────┴─────┴
//!                               seal
//! ```
//!
//! **Frame.** 48 bytes of header, little-endian, then the payload, padded with zeros to 8 bytes:
//! magic 4, CRC-32 of all that follows 4, format version 2, kind 2, payload length 4, segment id 8, epoch 8,
//! sequence 8, `durable_through` 8. An *opening* is a frame whose payload is the previous segment and its seal; the
//! payload of a *footnote* is the next segment, or zero.
//!
//! **The seal is the cut.** A torn tail and a zombie's late frames are the same thing: bytes past the length that
//! the next owner read. Nothing is truncated or overwritten; the next opening names the length that counts. The
//! arbiter between two owners is the file system: a segment is created only if no file has its name, so a zombie
//! that wants a next segment finds it taken and is poisoned.
//!
//! **Torn or rotten?** A bad frame is cut, with one warning, when nothing shows that it was ever synced. It is an
//! error ([`JournalError::Corrupt`]) when something does: a seal behind it, a later frame whose
//! `durable_through` covers it, or the caller's checkpoint. So that the last frame has a witness too, each sync is
//! followed by a *footnote* behind it, a frame that says only how far the book is safe; nobody waits for it to be
//! durable, and the next frame is written over it. Where a segment was sealed stands a footnote that names the next
//! one: if that is missing, it was lost. A segment whose opening is bad and has no witness was never begun and is
//! passed over.
//!
//! **A sync is never trusted twice.** The frame without a witness may be in the page cache only, left there by a
//! sync that failed. [`Journal::start_epoch`] writes those same bytes again before it seals them, so that its
//! own sync covers them.
//!
//! **Segments** are files of 2 MiB, set to that length when created but not filled. Measured on ext4 with 2 cores,
//! one write and `sync_data` a commit of 256 B / 24 KiB / 256 KiB, p99 in brackets: growing file
//! 6 800 (0.3 ms) / 5 000 (1.1) / 2 200 (1.5) commits a second; length set 9 200 (0.2) / 5 800 (1.1) / 2 200 (1.4);
//! filled with zeros 9 400 (0.2) / 7 400 (2.3) / 1 800 (3.6): zeros buy a quarter in the middle and pay for it with
//! twice the bytes, stalls of 7 ms at each new segment, and the loss of the large commits.
//!
//! Cost: one write, one sync and the footnote's write per append, one directory sync more per segment; a read of what was not
//! checkpointed, at start. Limits: a frame holds at most [`FRAME_BYTES_MAX`]; one larger than a segment gets a
//! segment of its own size. The journal knows nothing of tasks, of sled, of threads and of the epoch gate: its
//! owner raises the gate *before* opening, and checks it again after each append, before answering.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::failpoints;
use crate::ids::ShardEpoch;

/// Most bytes of one frame's payload.
pub const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;

const SEGMENT_BYTES: u64 = 2 * 1024 * 1024;
/// No segment is longer: an opening, the largest frame and a footnote.
const SEGMENT_BYTES_MAX: u64 =
    OPENING_BYTES + (HEADER_BYTES + FRAME_BYTES_MAX) as u64 + FOOTNOTE_BYTES;
/// Behind the last frame.
const FOOTNOTE_BYTES: u64 = (HEADER_BYTES + 8) as u64;
const OPENING_BYTES: u64 = (HEADER_BYTES + 16) as u64;
const HEADER_BYTES: usize = 48;
const ALIGNMENT: usize = 8;
const MAGIC: [u8; 4] = *b"dueJ";
const FORMAT_VERSION: u16 = 1;

/// What can go wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused. The journal is poisoned.
    #[error("{doing} {}", file.display())]
    Io {
        doing: &'static str,
        file: PathBuf,
        source: io::Error,
    },
    /// Something that was durable is no longer there, or is not what was written.
    #[error("{} is damaged at byte {offset}: {why}", file.display())]
    Corrupt {
        file: PathBuf,
        offset: u64,
        why: String,
    },
    /// An earlier call failed; only opening the journal anew helps.
    #[error("the journal is poisoned by an earlier error")]
    Poisoned,
    /// The payload is over [`FRAME_BYTES_MAX`]. Nothing was written, the journal goes on.
    #[error("a frame of {bytes} bytes is larger than {FRAME_BYTES_MAX}")]
    TooLarge { bytes: usize },
    /// The epoch is not larger than all before it. Nothing was written.
    #[error("epoch {asked} is not after {last}")]
    StaleEpoch { asked: ShardEpoch, last: ShardEpoch },
    /// A change before [`Journal::start_epoch`]. Nothing was done.
    #[error("no epoch was started since the journal was opened")]
    NoEpoch,
}

/// One commit, as replay hands it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The owner that wrote it.
    pub epoch: ShardEpoch,
    /// Its number: consecutive from 1, over all segments and epochs.
    pub sequence: u64,
    /// What was given to [`Journal::append`].
    pub payload: Vec<u8>,
}

/// Number of a segment file, from 1. Shown as the file's name, which sorts like the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}.segment", self.0)
    }
}

impl SegmentId {
    fn parse(name: &str) -> Option<Self> {
        name.strip_suffix(".segment")?.parse().ok().map(Self)
    }
}

/// The directory that segments live in. [`JournalDirectory`] is the real one; tests have one that tears, drops
/// and fails.
pub trait JournalFiles: Send {
    /// Where it is.
    fn directory(&self) -> &Path;
    /// Where a segment is.
    fn path(&self, id: SegmentId) -> PathBuf {
        self.directory().join(id.to_string())
    }
    /// All segments there are, in any order.
    fn list(&self) -> io::Result<Vec<SegmentId>>;
    /// The first `bytes_max` bytes of a segment, fewer if it is shorter.
    fn read(&self, id: SegmentId, bytes_max: u64) -> io::Result<Vec<u8>>;
    /// Creates a segment of `bytes` zeros; an error if there is one of that name.
    fn create(&self, id: SegmentId, bytes: u64) -> io::Result<Box<dyn SegmentFile>>;
    /// Opens a segment for writing.
    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>>;
    /// Removes a segment.
    fn remove(&self, id: SegmentId) -> io::Result<()>;
    /// Makes the names of created segments durable.
    fn sync_directory(&self) -> io::Result<()>;
}

/// A segment that is open for writing.
pub trait SegmentFile: Send {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes everything written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A journal's directory on a real file system.
#[derive(Debug)]
pub struct JournalDirectory {
    path: PathBuf,
    handle: File,
}

impl JournalDirectory {
    /// Opens `path`, created if need be. In `<data>/shards/NNN/journal` all four names are durable on return.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Io {
            doing: "opening",
            file: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        for above in path.ancestors().skip(1).take(4) {
            File::open(above)
                .and_then(|d| d.sync_all())
                .map_err(failed)?;
        }
        let handle = File::open(&path).map_err(failed)?;
        Ok(Self { path, handle })
    }
}

impl JournalFiles for JournalDirectory {
    fn directory(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<SegmentId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            ids.extend(entry?.file_name().to_str().and_then(SegmentId::parse));
        }
        Ok(ids)
    }

    fn read(&self, id: SegmentId, bytes_max: u64) -> io::Result<Vec<u8>> {
        let file = File::open(self.path(id))?;
        let length = file.metadata()?.len().min(bytes_max);
        let mut bytes = Vec::with_capacity(usize::try_from(length).map_err(io::Error::other)?);
        file.take(length).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, id: SegmentId, bytes: u64) -> io::Result<Box<dyn SegmentFile>> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.path(id))?;
        file.set_len(bytes)?;
        Ok(Box::new(file))
    }

    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(
            OpenOptions::new().write(true).open(self.path(id))?,
        ))
    }

    fn remove(&self, id: SegmentId) -> io::Result<()> {
        fs::remove_file(self.path(id))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

impl SegmentFile for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The journal of one shard. Synchronous, for one thread of its own: its calls wait for the disk.
pub struct Journal {
    files: Box<dyn JournalFiles>,
    segment_bytes: u64,
    /// Oldest first. The last is being written or, before the first epoch, is where replay ended.
    segments: VecDeque<Segment>,
    next_id: SegmentId,
    last_sequence: u64,
    last_epoch: Option<ShardEpoch>,
    /// Segments older than all that replay needed.
    superfluous: Vec<SegmentId>,
    torn: Option<(SegmentId, u64)>,
    state: State,
    /// What is to be written next; kept for its memory.
    buffer: Vec<u8>,
}

struct Segment {
    id: SegmentId,
    /// The last sequence number before this segment.
    after: u64,
    /// How many of its bytes count.
    end: u64,
}

enum State {
    /// Read, and not yet owned.
    Replayed(Option<Unwitnessed>),
    Writing(Page),
    /// A call failed, or is under way: it takes the state out and puts it back only when all went well.
    Poisoned,
}

/// Bytes of the last segment that were read but that nothing shows to be on the disk.
struct Unwitnessed {
    id: SegmentId,
    offset: u64,
    bytes: Vec<u8>,
}

/// The segment being written.
struct Page {
    file: Box<dyn SegmentFile>,
    id: SegmentId,
    epoch: ShardEpoch,
    bytes: u64,
    /// Whether its name is durable.
    entered: bool,
}

impl Journal {
    /// Replays, in order, every good frame after sequence `after` (the caller's last durable checkpoint, 0 without
    /// one) through `visit`, which may refuse a frame by saying why.
    ///
    /// Changes nothing on the disk. Until [`Journal::start_epoch`] has returned, nothing replayed may be acted upon.
    /// A crash before, during or after finds the same frames, save a last one that no append acknowledged.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] names file and offset of what was durable and is bad, of what `visit` refused, and
    /// of what is missing between `after` and the first frame there is.
    pub fn open(
        files: Box<dyn JournalFiles>,
        after: u64,
        visit: &mut dyn FnMut(Frame) -> Result<(), String>,
    ) -> Result<Self, JournalError> {
        Self::open_sized(files, SEGMENT_BYTES, after, visit)
    }

    fn open_sized(
        files: Box<dyn JournalFiles>,
        segment_bytes: u64,
        after: u64,
        visit: &mut dyn FnMut(Frame) -> Result<(), String>,
    ) -> Result<Self, JournalError> {
        let first = SegmentId(1);
        let mut ids = files.list().map_err(|source| JournalError::Io {
            doing: "listing",
            file: files.directory().to_owned(),
            source,
        })?;
        ids.sort_unstable();
        let chain = chain_of(&*files, &ids, after)?;
        let oldest = chain.first().map(|opening| opening.id);
        let head = chain.last().map(|opening| opening.id);
        let mut journal = Self {
            files,
            segment_bytes,
            segments: VecDeque::new(),
            next_id: ids.last().map_or(first, |last| SegmentId(last.0 + 1)),
            last_sequence: chain.first().map_or(0, |opening| opening.after),
            last_epoch: chain.last().map(|opening| opening.epoch),
            superfluous: ids
                .iter()
                .copied()
                .filter(|id| Some(*id) < oldest)
                .collect(),
            torn: None,
            state: State::Replayed(None),
            buffer: Vec::new(),
        };
        for (n, opening) in chain.iter().enumerate() {
            journal.torn = journal.replay(opening, chain.get(n + 1), after, visit)?;
        }
        for id in ids.iter().copied().filter(|id| Some(*id) > head) {
            journal.torn = journal.pass_over(id)?.or(journal.torn);
        }
        if let Some((file, offset)) = journal.torn_at() {
            tracing::warn!(file = %file.display(), offset, "cutting a torn tail");
        }
        Ok(journal)
    }

    /// Begins a segment for `epoch`, and with it ownership: what was read or written so far is sealed, whatever an
    /// earlier owner still writes is past the seal. Then removes what the replay did not need.
    ///
    /// Dying in here leaves the frames as they were; afterwards every frame replayed is durable.
    ///
    /// # Errors
    /// [`JournalError::StaleEpoch`] unless `epoch` is larger than any before. [`JournalError::Io`] also when
    /// another owner was faster: open anew.
    pub fn start_epoch(&mut self, epoch: ShardEpoch) -> Result<(), JournalError> {
        if let Some(last) = self.last_epoch.filter(|last| epoch <= *last) {
            return Err(JournalError::StaleEpoch { asked: epoch, last });
        }
        match mem::replace(&mut self.state, State::Poisoned) {
            State::Replayed(Some(tail)) => self.write_again(&tail)?,
            State::Replayed(None) | State::Writing(_) => {}
            State::Poisoned => return Err(JournalError::Poisoned),
        }
        let before = self.sealed();
        let mut page = self.next_page(epoch, 0)?;
        self.flush(&mut page)?;
        self.name_next(before)?;
        // Only now: the opening that made them superfluous may have stood in the cache alone.
        for id in mem::take(&mut self.superfluous) {
            self.remove(id)?;
        }
        self.last_epoch = Some(epoch);
        self.state = State::Writing(page);
        Ok(())
    }

    /// Writes one frame, its payload given in parts, and returns its sequence number. It is durable on return; a
    /// process that dies before may leave the whole frame or nothing of it.
    ///
    /// # Errors
    /// After [`JournalError::Io`] the journal is poisoned and every later call fails: whether the frame is there,
    /// only the next replay tells.
    pub fn append(&mut self, payload: &[&[u8]]) -> Result<u64, JournalError> {
        let payload_bytes = payload.iter().map(|part| part.len()).sum();
        if payload_bytes > FRAME_BYTES_MAX {
            return Err(JournalError::TooLarge {
                bytes: payload_bytes,
            });
        }
        let mut page = match mem::replace(&mut self.state, State::Poisoned) {
            State::Writing(page) => page,
            State::Poisoned => return Err(JournalError::Poisoned),
            unowned @ State::Replayed(_) => {
                self.state = unowned;
                return Err(JournalError::NoEpoch);
            }
        };
        let frame_bytes = (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGNMENT) as u64;
        let mut before = None;
        if self.end() + frame_bytes + FOOTNOTE_BYTES > page.bytes {
            before = self.sealed();
            page = self.next_page(page.epoch, frame_bytes)?;
        }
        let header = Header {
            kind: Kind::Changes,
            segment: page.id,
            epoch: page.epoch,
            sequence: self.last_sequence + 1,
            durable_through: self.last_sequence,
        };
        header.encode(payload, &mut self.buffer);
        self.flush(&mut page)?;
        self.last_sequence += 1;
        self.footnote(&mut page)?;
        self.name_next(before)?;
        self.state = State::Writing(page);
        Ok(self.last_sequence)
    }

    /// Removes the segments that hold nothing after `sequence`, save the one being written. Call it once a
    /// checkpoint at `sequence` is durable; it needs no sync, for what a power cut brings back is removed again by
    /// [`Journal::start_epoch`].
    pub fn drop_through(&mut self, sequence: u64) -> Result<(), JournalError> {
        match self.state {
            State::Writing(_) => {}
            State::Replayed(_) => return Err(JournalError::NoEpoch),
            State::Poisoned => return Err(JournalError::Poisoned),
        }
        while let Some(next) = self.segments.get(1)
            && next.after <= sequence
        {
            self.remove(self.segments[0].id)?;
            self.segments.pop_front();
        }
        Ok(())
    }

    /// Bytes that count in all segments: how much a start would have to read.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end).sum()
    }

    /// Sequence number of the last frame, 0 before the first.
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// The largest epoch that began a segment, if any did.
    pub fn last_epoch(&self) -> Option<ShardEpoch> {
        self.last_epoch
    }

    /// Where opening the journal cut a torn tail, if it did; the one warning it gave said the same.
    pub fn torn_at(&self) -> Option<(PathBuf, u64)> {
        self.torn.map(|(id, offset)| (self.files.path(id), offset))
    }

    fn end(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.end)
    }

    /// Reads one segment up to its seal or, if it has none yet, as far as it is good. Returns where it is torn.
    fn replay(
        &mut self,
        opening: &Opening,
        next: Option<&Opening>,
        after: u64,
        visit: &mut dyn FnMut(Frame) -> Result<(), String>,
    ) -> Result<Option<(SegmentId, u64)>, JournalError> {
        let id = opening.id;
        let seal = next.and_then(|next| next.previous).map(|(_, seal)| seal);
        let bytes = self.read(id, seal.unwrap_or(SEGMENT_BYTES_MAX))?;
        let mut at = OPENING_BYTES as usize;
        let mut witnessed = 0;
        let mut torn = None;
        while seal != Some(at as u64) {
            let expected = self.last_sequence + 1;
            let rest = bytes.get(at..).unwrap_or_default();
            let found = Decoded::read(rest, id).and_then(|found| {
                let header = &found.header;
                let in_order = header.kind == Kind::Changes
                    && header.epoch == opening.epoch
                    && header.sequence == expected;
                in_order.then_some(found).ok_or("a frame out of order")
            });
            match found {
                Ok(found) => {
                    if expected > after {
                        let frame = Frame {
                            epoch: opening.epoch,
                            sequence: expected,
                            payload: found.payload.to_vec(),
                        };
                        visit(frame).map_err(|why| self.corrupt(id, at as u64, why))?;
                    }
                    // A segment's first frame shares its sync with the opening, so it is no witness of it.
                    if expected > opening.after + 1 {
                        witnessed = at;
                    }
                    at += found.bytes;
                    self.last_sequence = expected;
                }
                Err(why) if seal.is_some() || expected <= after || witness(rest, id, expected) => {
                    return Err(self.corrupt(id, at as u64, why));
                }
                Err(_) => {
                    torn = self.torn_behind(rest, id)?.then_some((id, at as u64));
                    break;
                }
            }
        }
        if let Some(next) = next
            && next.after != self.last_sequence
        {
            return Err(self.corrupt(next.id, 0, "does not go on where its predecessor ends"));
        }
        self.segments.push_back(Segment {
            id,
            after: opening.after,
            end: at as u64,
        });
        if next.is_none() {
            self.state = State::Replayed(Some(Unwitnessed {
                id,
                offset: witnessed as u64,
                bytes: bytes[witnessed..at].to_vec(),
            }));
        }
        Ok(torn)
    }

    /// Whether something stands behind the last frame of the last segment that is neither zeros nor a footnote.
    fn torn_behind(&self, rest: &[u8], id: SegmentId) -> Result<bool, JournalError> {
        let mut rest = rest;
        if let Ok(found) = Decoded::read(rest, id)
            && found.header.kind == Kind::Footnote
            && found.header.sequence == self.last_sequence
        {
            let next = SegmentId(u64_at(found.payload, 0));
            if next.0 != 0 {
                let why = format!(
                    "it is missing or was never begun, yet {id} says that it goes on there"
                );
                return Err(self.corrupt(next, 0, why));
            }
            rest = &rest[found.bytes..];
        }
        Ok(rest.iter().any(|byte| *byte != 0))
    }

    /// Makes sure that a segment without an opening was never begun. Returns where it is torn.
    fn pass_over(&self, id: SegmentId) -> Result<Option<(SegmentId, u64)>, JournalError> {
        let bytes = self.read(id, SEGMENT_BYTES_MAX)?;
        // It was begun if a second frame is there, for that was written after the opening was synced.
        if witness(&bytes, id, self.last_sequence + 1) {
            return Err(self.corrupt(id, 0, "its opening is bad, yet it holds frames"));
        }
        Ok(bytes.iter().any(|byte| *byte != 0).then_some((id, 0)))
    }

    fn write_again(&mut self, tail: &Unwitnessed) -> Result<(), JournalError> {
        let file = self.files.open(tail.id);
        let mut file = file.map_err(io_error(&*self.files, "opening", tail.id))?;
        file.write_at(tail.offset, &tail.bytes).map_err(io_error(
            &*self.files,
            "writing to",
            tail.id,
        ))?;
        file.sync()
            .map_err(io_error(&*self.files, "syncing", tail.id))?;
        let entered = self.files.sync_directory();
        entered.map_err(io_error(&*self.files, "syncing the name of", tail.id))
    }

    /// Creates the next segment, with room for `frame_bytes`; its opening waits in the buffer to be flushed.
    fn next_page(&mut self, epoch: ShardEpoch, frame_bytes: u64) -> Result<Page, JournalError> {
        let id = self.next_id;
        let bytes = OPENING_BYTES + frame_bytes + FOOTNOTE_BYTES;
        let bytes = self.segment_bytes.max(bytes);
        let file = failpoints::reach("journal::create")
            .and_then(|()| self.files.create(id, bytes))
            .and_then(|file| failpoints::reach("journal::created").map(|()| file));
        let file = file.map_err(io_error(&*self.files, "creating", id))?;
        let opening = Opening {
            id,
            epoch,
            after: self.last_sequence,
            previous: self
                .segments
                .back()
                .map(|segment| (segment.id, segment.end)),
        };
        opening.encode(&mut self.buffer);
        self.next_id = SegmentId(id.0 + 1);
        self.segments.push_back(Segment {
            id,
            after: self.last_sequence,
            end: 0,
        });
        Ok(Page {
            file,
            id,
            epoch,
            bytes,
            entered: false,
        })
    }

    /// Writes the buffer at the end of the page and makes it durable.
    fn flush(&mut self, page: &mut Page) -> Result<(), JournalError> {
        let file = &mut page.file;
        let written = failpoints::reach("journal::write")
            .and_then(|()| file.write_at(self.end(), &self.buffer));
        written.map_err(io_error(&*self.files, "writing to", page.id))?;
        let synced = failpoints::reach("journal::written").and_then(|()| file.sync());
        synced.map_err(io_error(&*self.files, "syncing", page.id))?;
        if !page.entered {
            let entered =
                failpoints::reach("journal::enter").and_then(|()| self.files.sync_directory());
            entered.map_err(io_error(&*self.files, "syncing the name of", page.id))?;
            page.entered = true;
        }
        let told = failpoints::reach("journal::synced");
        told.map_err(io_error(&*self.files, "syncing", page.id))?;
        if let Some(segment) = self.segments.back_mut() {
            segment.end += self.buffer.len() as u64;
        }
        self.buffer.clear();
        self.buffer.shrink_to(SEGMENT_BYTES as usize);
        Ok(())
    }

    /// Says behind the last frame that it is durable. Not synced: it is there for who starts on a damaged file.
    fn footnote(&mut self, page: &mut Page) -> Result<(), JournalError> {
        let header = Header {
            kind: Kind::Footnote,
            segment: page.id,
            epoch: page.epoch,
            sequence: self.last_sequence,
            durable_through: self.last_sequence,
        };
        header.encode(&[&[0; 8]], &mut self.buffer);
        let written = page.file.write_at(self.end(), &self.buffer);
        self.buffer.clear();
        written.map_err(io_error(&*self.files, "writing to", page.id))
    }

    /// The segment that is about to be left, with its epoch.
    fn sealed(&self) -> Option<(SegmentId, u64, ShardEpoch)> {
        let segment = self.segments.back()?;
        Some((segment.id, segment.end, self.last_epoch?))
    }

    /// Says in the segment that was left, now that the present one is durable, that it goes on there.
    fn name_next(
        &mut self,
        left: Option<(SegmentId, u64, ShardEpoch)>,
    ) -> Result<(), JournalError> {
        let (Some((id, seal, epoch)), Some(next)) = (left, self.segments.back()) else {
            return Ok(());
        };
        let header = Header {
            kind: Kind::Footnote,
            segment: id,
            epoch,
            sequence: next.after,
            durable_through: next.after,
        };
        header.encode(&[&next.id.0.to_le_bytes()], &mut self.buffer);
        let file = self.files.open(id);
        let written = file.and_then(|mut file| file.write_at(seal, &self.buffer));
        self.buffer.clear();
        written.map_err(io_error(&*self.files, "writing to", id))
    }

    fn remove(&mut self, id: SegmentId) -> Result<(), JournalError> {
        let removed = failpoints::reach("journal::remove")
            .and_then(|()| self.files.remove(id))
            .and_then(|()| failpoints::reach("journal::removed"));
        removed.map_err(|source| {
            self.state = State::Poisoned;
            io_error(&*self.files, "removing", id)(source)
        })
    }

    fn read(&self, id: SegmentId, bytes_max: u64) -> Result<Vec<u8>, JournalError> {
        self.files
            .read(id, bytes_max)
            .map_err(io_error(&*self.files, "reading", id))
    }

    fn corrupt(&self, id: SegmentId, offset: u64, why: impl Into<String>) -> JournalError {
        corrupt(&*self.files, id, offset, why)
    }
}

fn io_error(
    files: &dyn JournalFiles,
    doing: &'static str,
    id: SegmentId,
) -> impl FnOnce(io::Error) -> JournalError {
    let file = files.path(id);
    move |source| JournalError::Io {
        doing,
        file,
        source,
    }
}

fn corrupt(
    files: &dyn JournalFiles,
    id: SegmentId,
    offset: u64,
    why: impl Into<String>,
) -> JournalError {
    JournalError::Corrupt {
        file: files.path(id),
        offset,
        why: why.into(),
    }
}

/// The segments that count, oldest first: from the last one that was begun back to the one that holds `after`.
/// What is not named by a successor (a zombie's, or one never begun) is not among them.
fn chain_of(
    files: &dyn JournalFiles,
    ids: &[SegmentId],
    after: u64,
) -> Result<Vec<Opening>, JournalError> {
    let mut chain = Vec::new();
    for id in ids.iter().rev() {
        if let Ok(head) = Opening::read(files, *id)? {
            chain.push(head);
            break;
        }
    }
    if chain.is_empty() && after > 0 {
        let why = format!("the journal is gone, though a checkpoint at {after} was made of it");
        return Err(corrupt(files, SegmentId(1), 0, why));
    }
    while let Some(oldest) = chain.last().filter(|oldest| oldest.after > after) {
        let before = oldest.previous.filter(|(id, _)| *id < oldest.id);
        let Some((id, _)) = before else {
            return Err(corrupt(files, oldest.id, 0, "its predecessor is not named"));
        };
        let read = Opening::read(files, id).map_err(|error| match error {
            JournalError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                let why = format!("it is missing, and what came after {after} stands in it");
                corrupt(files, id, 0, why)
            }
            error => error,
        });
        match read? {
            Ok(opening) => chain.push(opening),
            Err(why) => return Err(corrupt(files, id, 0, why)),
        }
    }
    chain.reverse();
    Ok(chain)
}

/// Whether a good frame in `bytes` says that frame `sequence` was durable when it was written.
fn witness(bytes: &[u8], id: SegmentId, sequence: u64) -> bool {
    (0..bytes.len()).step_by(ALIGNMENT).any(|at| {
        bytes[at..].starts_with(&MAGIC)
            && Decoded::read(&bytes[at..], id)
                .is_ok_and(|found| found.header.durable_through >= sequence)
    })
}

/// The first frame of a segment.
struct Opening {
    id: SegmentId,
    epoch: ShardEpoch,
    /// The last sequence number before this segment.
    after: u64,
    /// The segment this one follows, and how many of its bytes count.
    previous: Option<(SegmentId, u64)>,
}

impl Opening {
    fn encode(&self, buffer: &mut Vec<u8>) {
        let (id, seal) = self.previous.unwrap_or((SegmentId(0), 0));
        let header = Header {
            kind: Kind::Opening,
            segment: self.id,
            epoch: self.epoch,
            sequence: self.after,
            durable_through: self.after,
        };
        header.encode(&[&id.0.to_le_bytes(), &seal.to_le_bytes()], buffer);
    }

    /// The opening of a segment, or why it has none.
    fn read(
        files: &dyn JournalFiles,
        id: SegmentId,
    ) -> Result<Result<Self, &'static str>, JournalError> {
        let bytes = files.read(id, OPENING_BYTES);
        let bytes = bytes.map_err(io_error(files, "reading", id))?;
        // A segment of a later format must not pass for one that was never begun.
        if bytes.len() >= HEADER_BYTES
            && bytes.starts_with(&MAGIC)
            && u64_at(&bytes, 8) as u16 > FORMAT_VERSION
        {
            let why = format!("its format version is later than {FORMAT_VERSION}");
            return Err(corrupt(files, id, 8, why));
        }
        Ok(Decoded::read(&bytes, id).and_then(|found| {
            let is_opening = found.header.kind == Kind::Opening && found.payload.len() == 16;
            is_opening.then_some(()).ok_or("it has no opening")?;
            let previous = SegmentId(u64_at(found.payload, 0));
            Ok(Self {
                id,
                epoch: found.header.epoch,
                after: found.header.sequence,
                previous: (previous.0 != 0).then(|| (previous, u64_at(found.payload, 8))),
            })
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Opening = 1,
    Changes = 2,
    Footnote = 3,
}

/// What a frame says of itself, less what only guards it (magic, checksum, version, length).
struct Header {
    kind: Kind,
    segment: SegmentId,
    epoch: ShardEpoch,
    sequence: u64,
    durable_through: u64,
}

impl Header {
    fn encode(&self, payload: &[&[u8]], buffer: &mut Vec<u8>) {
        let start = buffer.len();
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        buffer.extend_from_slice(&MAGIC);
        buffer.extend_from_slice(&[0; 4]);
        buffer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        buffer.extend_from_slice(&(self.kind as u16).to_le_bytes());
        buffer.extend_from_slice(&(payload_bytes as u32).to_le_bytes());
        buffer.extend_from_slice(&self.segment.0.to_le_bytes());
        buffer.extend_from_slice(&self.epoch.0.to_le_bytes());
        buffer.extend_from_slice(&self.sequence.to_le_bytes());
        buffer.extend_from_slice(&self.durable_through.to_le_bytes());
        for part in payload {
            buffer.extend_from_slice(part);
        }
        let frame_bytes = (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGNMENT);
        buffer.resize(start + frame_bytes, 0);
        let checksum = crc32fast::hash(&buffer[start + 8..]);
        buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// A good frame at the beginning of some bytes.
struct Decoded<'a> {
    header: Header,
    payload: &'a [u8],
    /// Its whole length.
    bytes: usize,
}

impl<'a> Decoded<'a> {
    /// The frame of segment `id` that `bytes` begin with, or why there is none. Allocates nothing, and believes no
    /// length before it has checked it.
    fn read(bytes: &'a [u8], id: SegmentId) -> Result<Self, &'static str> {
        let header = bytes
            .get(..HEADER_BYTES)
            .ok_or("the file ends in a frame's header")?;
        if !header.starts_with(&MAGIC) {
            return Err("no frame begins here");
        }
        // Before the checksum: a text that imitates frames can't hold the zeros of an id, so it costs no time.
        if u64_at(header, 16) != id.0 {
            return Err("the frame belongs to another segment");
        }
        let guard = u64_at(header, 8);
        let payload_bytes = (guard >> 32) as usize;
        if payload_bytes > FRAME_BYTES_MAX {
            return Err("the frame's length is over the limit");
        }
        let frame_bytes = (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGNMENT);
        let frame = bytes.get(..frame_bytes).ok_or("the file ends in a frame")?;
        if u64::from(crc32fast::hash(&frame[8..])) != u64_at(frame, 0) >> 32 {
            return Err("the frame's checksum is wrong");
        }
        if guard as u16 != FORMAT_VERSION {
            return Err("the frame's format version is unknown");
        }
        let kind = match (guard >> 16) as u16 {
            1 => Kind::Opening,
            2 => Kind::Changes,
            3 if payload_bytes == 8 => Kind::Footnote,
            _ => return Err("the frame's kind is unknown"),
        };
        let header = Header {
            kind,
            segment: id,
            epoch: ShardEpoch(u64_at(frame, 24)),
            sequence: u64_at(frame, 32),
            durable_through: u64_at(frame, 40),
        };
        Ok(Self {
            header,
            payload: &frame[HEADER_BYTES..HEADER_BYTES + payload_bytes],
            bytes: frame_bytes,
        })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
#[expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should say where"
)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;

    const SECTOR: usize = 64;
    /// An opening, fifteen frames of 64 bytes and a footnote.
    const SMALL_SEGMENT: u64 = 17 * 64;
    const HEADER: u64 = HEADER_BYTES as u64;

    /// A disk in memory that can lose what was not synced. Clones share it.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<Platters>>);

    #[derive(Default)]
    struct Platters {
        files: Vec<Arc<Mutex<Inode>>>,
        /// Names as programs see them, and as a power cut leaves them: the number of a file.
        names: BTreeMap<SegmentId, usize>,
        durable_names: BTreeMap<SegmentId, usize>,
        faults: Arc<Mutex<Faults>>,
    }

    /// How many more calls succeed before one fails.
    #[derive(Default)]
    struct Faults {
        write: Option<u32>,
        sync: Option<u32>,
        /// Whether a failed sync leaves the pages clean, as Linux does, though only the cache has them.
        forgets: bool,
    }

    #[derive(Default)]
    struct Inode {
        cached: Vec<u8>,
        durable: Vec<u8>,
        dirty: Vec<(usize, Vec<u8>)>,
    }

    fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
        bytes.resize(bytes.len().max(offset + new.len()), 0);
        bytes[offset..offset + new.len()].copy_from_slice(new);
    }

    /// Counts down to a fault and says whether this call is the one that fails.
    fn strikes(fault: &mut Option<u32>) -> bool {
        match fault.take() {
            Some(0) => true,
            left => {
                *fault = left.map(|left| left - 1);
                false
            }
        }
    }

    /// A small generator, so that a failing case can be run again from its seed.
    fn coin(seed: &mut u64) -> bool {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        seed.count_ones().is_multiple_of(2)
    }

    impl Disk {
        /// Of each sector written and each name made or removed since the last sync, the seed decides what stays.
        fn cut_power(&self, mut seed: u64) {
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

        fn fail_write_after(&self, calls: u32) {
            self.0.lock().faults.lock().write = Some(calls);
        }

        fn fail_sync_after(&self, calls: u32, forgets: bool) {
            let platters = self.0.lock();
            let mut faults = platters.faults.lock();
            (faults.sync, faults.forgets) = (Some(calls), forgets);
        }

        fn inode(&self, id: SegmentId) -> io::Result<Arc<Mutex<Inode>>> {
            let platters = self.0.lock();
            let file = platters.names.get(&id).ok_or(io::ErrorKind::NotFound)?;
            Ok(platters.files[*file].clone())
        }

        /// Changes a file behind everybody's back.
        fn tamper(&self, id: u64, change: impl FnOnce(&mut Vec<u8>)) {
            let inode = self.inode(SegmentId(id)).unwrap();
            let mut inode = inode.lock();
            change(&mut inode.cached);
            inode.durable = inode.cached.clone();
        }

        /// As after a power cut that came right behind the last sync.
        fn lose_footnote(&self, journal: &Journal) {
            let last = journal.segments.back().unwrap();
            let (id, end) = (last.id.0, last.end as usize);
            self.tamper(id, |bytes| bytes[end..].fill(0));
        }

        fn bytes_of(&self, id: u64) -> Vec<u8> {
            self.inode(SegmentId(id)).unwrap().lock().cached.clone()
        }

        /// A second disk with the same contents, everything on it durable.
        fn copy(&self) -> Self {
            let copy = Self::default();
            for id in self.list().unwrap() {
                copy.create(id, 0).unwrap();
                copy.tamper(id.0, |bytes| *bytes = self.bytes_of(id.0));
            }
            copy.sync_directory().unwrap();
            copy
        }

        fn ids(&self) -> Vec<u64> {
            self.list().unwrap().iter().map(|id| id.0).collect()
        }

        fn writer(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
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
            Ok(self.0.lock().names.keys().copied().collect())
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

        fn sync_directory(&self) -> io::Result<()> {
            let mut platters = self.0.lock();
            if strikes(&mut platters.faults.lock().sync) {
                return Err(io::Error::other("injected"));
            }
            platters.durable_names = platters.names.clone();
            Ok(())
        }
    }

    struct Writer {
        inode: Arc<Mutex<Inode>>,
        faults: Arc<Mutex<Faults>>,
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

    type Read = (Journal, Vec<(u64, Vec<u8>)>);

    fn open(disk: &Disk, after: u64) -> Result<Read, JournalError> {
        let mut frames = Vec::new();
        let mut visit = |frame: Frame| {
            frames.push((frame.sequence, frame.payload));
            Ok(())
        };
        let journal =
            Journal::open_sized(Box::new(disk.clone()), SMALL_SEGMENT, after, &mut visit)?;
        Ok((journal, frames))
    }

    fn sequences(disk: &Disk, after: u64) -> Vec<u64> {
        let (_, frames) = open(disk, after).unwrap();
        frames.into_iter().map(|(sequence, _)| sequence).collect()
    }

    /// A disk with `frames` frames of 16 bytes, all of epoch 1; each takes 64 bytes.
    fn written(frames: u64) -> (Disk, Journal) {
        let disk = Disk::default();
        let (mut journal, _) = open(&disk, 0).unwrap();
        journal.start_epoch(ShardEpoch(1)).unwrap();
        for n in 1..=frames {
            assert_eq!(journal.append(&[&[0xA5; 8], &n.to_le_bytes()]).unwrap(), n);
        }
        (disk, journal)
    }

    fn damage(result: Result<Read, JournalError>) -> (PathBuf, u64) {
        match result.err() {
            Some(JournalError::Corrupt { file, offset, .. }) => (file, offset),
            other => panic!("expected damage, got {other:?}"),
        }
    }

    #[test]
    fn what_was_appended_is_replayed_from_real_files() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("000").join("journal");
        let payloads: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 5_000, 3 << 20, 2 << 20, 100]
            .iter()
            .enumerate()
            .map(|(n, bytes)| vec![n as u8; *bytes])
            .collect();
        let replay = |expected: &[Vec<u8>], epoch: u64| {
            let files = JournalDirectory::open(&path).unwrap();
            let mut seen = Vec::new();
            let mut journal = Journal::open(Box::new(files), 0, &mut |frame| {
                assert_eq!(frame.sequence, seen.len() as u64 + 1);
                seen.push(frame.payload);
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, expected);
            journal.start_epoch(ShardEpoch(epoch)).unwrap();
            journal
        };
        let mut journal = replay(&[], 1);
        for payload in &payloads[..7] {
            journal.append(&[payload]).unwrap();
        }
        drop(journal);
        let mut journal = replay(&payloads[..7], 2);
        for payload in &payloads[7..] {
            journal.append(&[&payload[..50], &payload[50..]]).unwrap();
        }
        assert_eq!(journal.last_sequence(), 9);
        let before = journal.bytes();
        journal.drop_through(8).unwrap();
        assert!(before > 5 << 20 && journal.bytes() < 1 << 20);
        let files = JournalDirectory::open(&path).unwrap();
        let mut left = Vec::new();
        Journal::open(Box::new(files), 8, &mut |frame| {
            left.push(frame);
            Ok(())
        })
        .unwrap();
        let last = Frame {
            epoch: ShardEpoch(2),
            sequence: 9,
            payload: payloads[8].clone(),
        };
        assert_eq!(left, [last]);
    }

    #[test]
    fn a_frame_torn_at_any_length_is_cut_and_all_before_it_stay() {
        let (disk, journal) = written(5);
        let end = usize::try_from(journal.end()).unwrap();
        for length in end - 64..end {
            for refilled in [false, true] {
                let torn = disk.copy();
                torn.tamper(1, |bytes| {
                    bytes.truncate(length);
                    bytes.resize(if refilled { 1024 } else { length }, 0);
                });
                // The last byte is a zero that refilling restores.
                let (mut journal, frames) = open(&torn, 0).unwrap();
                let whole = torn.bytes_of(1).get(..end) == disk.bytes_of(1).get(..end);
                assert_eq!(frames.len(), if whole { 5 } else { 4 }, "{length}");
                journal.start_epoch(ShardEpoch(2)).unwrap();
                let next = journal.append(&[b"next"]).unwrap();
                assert_eq!(next, frames.len() as u64 + 1);
                assert_eq!(sequences(&torn, 0), (1..=next).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_segment_torn_at_any_length_of_its_beginning_was_never_begun() {
        let (disk, mut journal) = written(3);
        let before = disk.bytes_of(1);
        journal.start_epoch(ShardEpoch(2)).unwrap();
        journal.append(&[b"first of its segment"]).unwrap();
        disk.tamper(1, |bytes| *bytes = before);
        disk.lose_footnote(&journal);
        for length in 0..OPENING_BYTES as usize {
            for frame_is_there in [false, true] {
                let torn = disk.copy();
                torn.tamper(2, |bytes| {
                    bytes[length..OPENING_BYTES as usize].fill(0);
                    bytes.truncate(if frame_is_there {
                        SMALL_SEGMENT as usize
                    } else {
                        length
                    });
                });
                if torn.bytes_of(2) == disk.bytes_of(2) {
                    continue; // the opening ends in zeros
                }
                let (mut journal, frames) = open(&torn, 0).unwrap();
                assert_eq!(
                    (frames.len(), journal.last_epoch()),
                    (3, Some(ShardEpoch(1)))
                );
                journal.start_epoch(ShardEpoch(2)).unwrap();
                assert_eq!(journal.append(&[b"again"]).unwrap(), 4);
                assert_eq!(sequences(&torn, 0), [1, 2, 3, 4]);
                assert_eq!(torn.ids(), [1, 2, 3]);
            }
        }
    }

    #[test]
    fn a_new_owner_that_dies_at_any_sync_leaves_a_journal_that_opens() {
        for (calls, seed) in (0..5).flat_map(|calls| (1..50).map(move |seed| (calls, seed << 20))) {
            let (disk, mut journal) = written(15);
            disk.fail_sync_after(1, false);
            let failure = journal.append(&[b"in a segment whose name is not durable"]);
            assert!(failure.is_err() && disk.ids() == [1, 2]);
            let (mut next, frames) = open(&disk, 0).unwrap();
            assert_eq!(frames.len(), 16);
            disk.fail_sync_after(calls, false);
            let started = next.start_epoch(ShardEpoch(2));
            disk.cut_power(seed);
            let left = sequences(&disk, 0).len();
            assert!(left == 16 || left == 15 && started.is_err());
        }
    }

    #[test]
    fn a_flipped_bit_in_a_durable_frame_is_an_error_that_names_file_and_offset() {
        let (disk, journal) = written(5);
        let file = disk.path(SegmentId(1));
        for position in 0..journal.end() - 64 {
            let rotten = disk.copy();
            rotten.tamper(1, |bytes| bytes[position as usize] ^= 0x10);
            let (named, offset) = damage(open(&rotten, 0));
            assert_eq!(named, file);
            // A bad version of the opening is named by its own place.
            let expected = if position / 64 == 0 {
                [0, 8]
            } else {
                [position / 64 * 64; 2]
            };
            assert!(expected.contains(&offset), "{position}: {offset}");
        }
    }

    #[test]
    fn a_flipped_bit_in_the_last_frame_is_an_error_and_in_its_footnote_harmless() {
        let (disk, journal) = written(5);
        let last = journal.end() - 64;
        for position in last..last + 64 + FOOTNOTE_BYTES {
            let rotten = disk.copy();
            rotten.tamper(1, |bytes| bytes[position as usize] ^= 0x10);
            if position < last + 64 {
                assert_eq!(damage(open(&rotten, 0)), (disk.path(SegmentId(1)), last));
            } else {
                assert_eq!(sequences(&rotten, 0), [1, 2, 3, 4, 5]);
            }
        }
    }

    #[test]
    fn a_bad_last_frame_without_its_footnote_is_cut_unless_a_checkpoint_knows_better() {
        let (disk, journal) = written(5);
        disk.lose_footnote(&journal);
        let last = journal.end() - 64;
        for position in last..last + 64 {
            let rotten = disk.copy();
            rotten.tamper(1, |bytes| bytes[position as usize] ^= 0x10);
            assert_eq!(sequences(&rotten, 0), [1, 2, 3, 4]);
            assert_eq!(damage(open(&rotten, 5)), (disk.path(SegmentId(1)), last));
        }
    }

    #[test]
    fn a_last_segment_that_is_lost_is_missed() {
        for is_new_owner in [false, true] {
            let (disk, mut journal) = written(12);
            match is_new_owner {
                true => journal.start_epoch(ShardEpoch(2)).unwrap(),
                false => assert_eq!(journal.append(&[&[0; 300]]).unwrap(), 13),
            }
            assert_eq!(disk.ids(), [1, 2]);
            disk.remove(SegmentId(2)).unwrap();
            assert_eq!(damage(open(&disk, 0)), (disk.path(SegmentId(2)), 0));
        }
    }

    #[test]
    fn a_sealed_segment_may_not_lose_its_last_frame() {
        let (disk, mut journal) = written(5);
        let last = journal.end() - 64;
        journal.start_epoch(ShardEpoch(2)).unwrap();
        disk.tamper(1, |bytes| bytes.truncate(last as usize));
        assert_eq!(damage(open(&disk, 0)), (disk.path(SegmentId(1)), last));
    }

    #[test]
    fn a_cut_is_told_once_and_a_clean_end_not_at_all() {
        let (disk, journal) = written(2);
        let (clean, _) = open(&disk, 0).unwrap();
        assert_eq!(clean.torn_at(), None);
        disk.lose_footnote(&journal);
        let last = journal.end() - 64;
        disk.tamper(1, |bytes| bytes[last as usize + 50] ^= 1);
        let (mut next, _) = open(&disk, 0).unwrap();
        assert_eq!(next.torn_at(), Some((disk.path(SegmentId(1)), last)));
        next.start_epoch(ShardEpoch(2)).unwrap();
        let (sealed, _) = open(&disk, 0).unwrap();
        assert_eq!(sealed.torn_at(), None);
    }

    #[test]
    fn any_failing_write_or_sync_poisons_for_good() {
        for (calls, is_write) in [
            (0, true),
            (3, true),
            (20, true),
            (0, false),
            (3, false),
            (20, false),
        ] {
            let (disk, mut journal) = written(2);
            if is_write {
                disk.fail_write_after(calls);
            } else {
                disk.fail_sync_after(calls, true);
            }
            let mut acknowledged = 2;
            let failure = loop {
                match journal.append(&[&[7; 40]]) {
                    Ok(sequence) => acknowledged = sequence,
                    Err(error) => break error,
                }
            };
            assert!(matches!(failure, JournalError::Io { .. }), "{failure:?}");
            assert!(matches!(
                journal.append(&[b"more"]),
                Err(JournalError::Poisoned)
            ));
            assert!(matches!(
                journal.start_epoch(ShardEpoch(9)),
                Err(JournalError::Poisoned)
            ));
            assert!(matches!(
                journal.drop_through(1),
                Err(JournalError::Poisoned)
            ));
            disk.cut_power(0x5EED);
            let left = sequences(&disk, 0).len() as u64;
            assert!((acknowledged..=acknowledged + 1).contains(&left));
        }
    }

    #[test]
    fn a_frame_left_in_the_cache_by_a_failed_sync_is_written_again_before_it_counts() {
        let (disk, mut journal) = written(3);
        disk.fail_sync_after(0, true);
        assert!(journal.append(&[b"only in the cache"]).is_err());
        let (mut next, frames) = open(&disk, 0).unwrap();
        assert_eq!(frames.len(), 4);
        next.start_epoch(ShardEpoch(2)).unwrap();
        disk.cut_power(0x5EED);
        assert_eq!(sequences(&disk, 0), [1, 2, 3, 4]);
    }

    #[test]
    fn dropping_keeps_what_is_needed_across_a_reopen() {
        let (disk, mut journal) = written(60);
        let segments = disk.ids().len();
        assert_eq!(segments, 4);
        journal.drop_through(14).unwrap();
        assert_eq!(
            disk.ids(),
            [1, 2, 3, 4],
            "frame 15 stands in the first segment"
        );
        journal.drop_through(40).unwrap();
        assert_eq!(disk.ids(), [3, 4]);
        assert_eq!(sequences(&disk, 40), (41..=60).collect::<Vec<_>>());
        journal.drop_through(60).unwrap();
        assert_eq!(disk.ids(), [4], "the last one carries the numbers on");
        let (mut journal, frames) = open(&disk, 60).unwrap();
        assert_eq!((frames.len(), journal.last_sequence()), (0, 60));
        journal.start_epoch(ShardEpoch(2)).unwrap();
        assert_eq!(journal.append(&[b"on"]).unwrap(), 61);
    }

    #[test]
    fn removals_that_a_power_cut_undid_are_made_again() {
        let (disk, _) = written(60);
        let with_a_gap = disk.copy();
        with_a_gap.remove(SegmentId(2)).unwrap();
        let (mut journal, frames) = open(&with_a_gap, 50).unwrap();
        assert_eq!((frames[0].0, frames.len()), (51, 10));
        assert_eq!(with_a_gap.ids(), [1, 3, 4], "opening changes nothing");
        journal.start_epoch(ShardEpoch(2)).unwrap();
        assert_eq!(with_a_gap.ids(), [4, 5]);
    }

    #[test]
    fn nothing_is_removed_for_the_sake_of_an_opening_that_may_be_lost() {
        for seed in 1..50 {
            let (disk, mut journal) = written(15);
            disk.fail_sync_after(0, false);
            assert!(journal.append(&[b"in a segment of its own"]).is_err());
            let (mut next, _) = open(&disk, 15).unwrap();
            disk.fail_sync_after(0, false);
            assert!(next.start_epoch(ShardEpoch(2)).is_err());
            disk.cut_power(seed << 20);
            let (last, _) = open(&disk, 15).unwrap();
            assert!(last.last_sequence() >= 15);
        }
    }

    #[test]
    fn a_missing_segment_or_journal_is_an_error_when_its_frames_are_needed() {
        let (disk, _) = written(60);
        disk.remove(SegmentId(2)).unwrap();
        let error = open(&disk, 16).err().unwrap();
        assert!(error.to_string().contains("00002.segment"), "{error}");
        assert_eq!(damage(open(&Disk::default(), 1)).1, 0);
    }

    #[test]
    fn frames_of_an_older_epoch_past_the_seal_are_ignored() {
        let (disk, mut zombie) = written(3);
        let (mut owner, _) = open(&disk, 0).unwrap();
        owner.start_epoch(ShardEpoch(2)).unwrap();
        assert_eq!(zombie.append(&[b"too late"]).unwrap(), 4);
        assert_eq!(owner.append(&[b"in time"]).unwrap(), 4);
        assert_eq!(zombie.append(&[b"later still"]).unwrap(), 5);
        let (_, frames) = open(&disk, 0).unwrap();
        assert_eq!(frames.len(), 4);
        assert_eq!(frames[3], (4, b"in time".to_vec()));
        // A zombie that wants a segment of its own finds the name taken.
        let failure = (0..100).find_map(|_| zombie.append(&[&[0; 100]]).err());
        assert!(matches!(
            failure,
            Some(JournalError::Io {
                doing: "creating",
                ..
            })
        ));
    }

    #[test]
    fn of_two_owners_that_start_at_once_one_is_refused() {
        let (disk, _) = written(3);
        let (mut slow, _) = open(&disk, 0).unwrap();
        let (mut fast, _) = open(&disk, 0).unwrap();
        fast.start_epoch(ShardEpoch(3)).unwrap();
        assert!(matches!(
            slow.start_epoch(ShardEpoch(2)),
            Err(JournalError::Io { .. })
        ));
        assert_eq!(fast.append(&[b"mine"]).unwrap(), 4);
        assert_eq!(sequences(&disk, 0), [1, 2, 3, 4]);
    }

    #[test]
    fn a_late_owner_that_finds_its_name_free_again_is_ignored() {
        let disk = Disk::default();
        let (mut slow, _) = open(&disk, 0).unwrap();
        let (mut fast, _) = open(&disk, 0).unwrap();
        fast.start_epoch(ShardEpoch(3)).unwrap();
        for _ in 0..40 {
            fast.append(&[&[1; 16]]).unwrap();
        }
        fast.drop_through(40).unwrap();
        assert_eq!(disk.ids(), [3]);
        slow.start_epoch(ShardEpoch(2)).unwrap();
        slow.append(&[b"into the void"]).unwrap();
        assert_eq!(disk.ids(), [1, 3]);
        let (mut next, frames) = open(&disk, 35).unwrap();
        assert_eq!((frames[0].0, frames.len()), (36, 5));
        next.start_epoch(ShardEpoch(4)).unwrap();
        assert_eq!(disk.ids(), [3, 4]);
    }

    #[test]
    fn misuse_is_refused_and_leaves_the_journal_whole() {
        let (disk, mut journal) = written(1);
        assert!(matches!(
            journal.start_epoch(ShardEpoch(1)),
            Err(JournalError::StaleEpoch { .. })
        ));
        let megabyte = vec![0; 1 << 20];
        let parts = vec![megabyte.as_slice(); 257];
        assert!(matches!(
            journal.append(&parts),
            Err(JournalError::TooLarge { .. })
        ));
        assert_eq!(journal.append(&[b"fine"]).unwrap(), 2);
        let (mut unowned, _) = open(&disk, 0).unwrap();
        assert!(matches!(
            unowned.append(&[b"x"]),
            Err(JournalError::NoEpoch)
        ));
        let refused = Journal::open(Box::new(disk.clone()), 0, &mut |_| {
            Err("no such task".into())
        });
        let refused = refused.err().unwrap().to_string();
        assert!(
            refused.ends_with("damaged at byte 64: no such task"),
            "{refused}"
        );
    }

    #[test]
    fn a_length_that_lies_allocates_nothing_and_a_later_format_is_not_cut() {
        let (disk, journal) = written(1);
        disk.lose_footnote(&journal);
        for lie in [u32::MAX, FRAME_BYTES_MAX as u32, 2_000] {
            let lying = disk.copy();
            lying.tamper(1, |bytes| {
                bytes[64 + 12..64 + 16].copy_from_slice(&lie.to_le_bytes())
            });
            assert_eq!(sequences(&lying, 0), [0_u64; 0]);
        }
        disk.tamper(1, |bytes| bytes[8] = 2);
        assert_eq!(damage(open(&disk, 0)).1, 8);
        assert_eq!(OPENING_BYTES, HEADER + 16);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append(usize),
        Checkpoint(u64),
        FailWrite(u32),
        FailSync(u32, bool),
        /// The old owner lives on as a zombie.
        Replace,
        Zombie(usize),
        /// The process dies; what it wrote stays.
        Kill,
        CutPower(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            12 => (0_usize..400).prop_map(Step::Append),
            1 => (900_usize..3_000).prop_map(Step::Append),
            2 => (0_u64..=100).prop_map(Step::Checkpoint),
            1 => (0_u32..6).prop_map(Step::FailWrite),
            2 => (0_u32..9, any::<bool>()).prop_map(|(calls, forgets)| Step::FailSync(calls, forgets)),
            1 => Just(Step::Replace),
            2 => (0_usize..400).prop_map(Step::Zombie),
            1 => Just(Step::Kill),
            2 => (1_u64..).prop_map(Step::CutPower),
        ];
        prop::collection::vec(step, 1..120)
    }

    /// What must hold: `attempted[..acknowledged]` is there, in order; behind it at most what else was attempted.
    #[derive(Default)]
    struct Model {
        disk: Disk,
        attempted: Vec<Vec<u8>>,
        acknowledged: usize,
        checkpoint: usize,
        epoch: u64,
    }

    impl Model {
        /// Opens until an owner stands, with a power cut after each failure.
        fn take_over(&mut self) -> Journal {
            for seed in 1..10 {
                let (mut journal, frames) = open(&self.disk, self.checkpoint as u64).unwrap();
                for (n, (sequence, payload)) in frames.iter().enumerate() {
                    assert_eq!(*sequence as usize, self.checkpoint + n + 1);
                    assert_eq!(Some(payload), self.attempted.get(self.checkpoint + n));
                }
                let found = self.checkpoint + frames.len();
                assert!(
                    found >= self.acknowledged,
                    "{found} < {}",
                    self.acknowledged
                );
                assert_eq!(journal.last_sequence() as usize, found);
                self.attempted.truncate(found);
                self.epoch += 1;
                match journal.start_epoch(ShardEpoch(self.epoch)) {
                    Ok(()) => {
                        self.acknowledged = found;
                        return journal;
                    }
                    Err(_) => self.disk.cut_power(seed * 0x9E37_79B9),
                }
            }
            panic!("no owner stands though the disk is well")
        }

        fn append(&mut self, journal: &mut Journal, bytes: usize) {
            let payload = vec![self.attempted.len() as u8; bytes];
            match journal.append(&[&payload]) {
                Ok(sequence) => {
                    self.attempted.push(payload);
                    self.acknowledged += 1;
                    assert_eq!(sequence as usize, self.acknowledged);
                }
                Err(JournalError::Poisoned) => {}
                Err(_) => self.attempted.push(payload),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_was_acknowledged_survives_everything_and_nothing_else_is_made_up(steps in steps()) {
            let mut model = Model::default();
            let mut journal = model.take_over();
            let mut zombies: Vec<Journal> = Vec::new();
            for step in steps {
                match step {
                    Step::Append(bytes) => model.append(&mut journal, bytes),
                    Step::Checkpoint(percent) => {
                        let sequence = model.acknowledged * percent as usize / 100;
                        model.checkpoint = model.checkpoint.max(sequence);
                        // A poisoned journal refuses; the next open makes up for it.
                        journal.drop_through(model.checkpoint as u64).ok();
                    }
                    Step::FailWrite(calls) => model.disk.fail_write_after(calls),
                    Step::FailSync(calls, forgets) => model.disk.fail_sync_after(calls, forgets),
                    Step::Replace => zombies.push(mem::replace(&mut journal, model.take_over())),
                    Step::Zombie(bytes) => {
                        for zombie in &mut zombies {
                            zombie.append(&[&vec![0xFF; bytes]]).ok();
                        }
                    }
                    Step::Kill => {
                        zombies.clear();
                        journal = model.take_over();
                    }
                    Step::CutPower(seed) => {
                        zombies.clear();
                        model.disk.cut_power(seed);
                        journal = model.take_over();
                    }
                }
            }
            model.take_over();
        }
    }
}
