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
//! sequence 8, `durable_through` 8. An *opening* is a frame whose payload is the previous segment and its seal; a
//! *bookmark* is a frame without a payload.
//!
//! **The seal is the cut.** A torn tail and a zombie's late frames are the same thing: bytes past the length that
//! the next owner read. Nothing is truncated or overwritten; the next opening names the length that counts. The
//! arbiter between two owners is the file system: a segment is created only if no file has its name, so a zombie
//! that wants a next segment finds it taken and is poisoned.
//!
//! **Torn or rotten?** A bad frame is cut, with one warning, when nothing shows that it was ever synced. It is an
//! error ([`JournalError::Corrupt`]) when something does: a seal behind it, a later frame whose
//! `durable_through` covers it, the caller's checkpoint, or the bookmark. A segment whose opening is bad and has no
//! witness was never begun and is passed over.
//!
//! **The bookmark** is the last frame's witness: a file beside the segments, written over after each sync and before
//! anybody is told of it, that says which segment is the last and how far it is safe. So a last segment that is cut off,
//! overwritten or gone is missed, down to the one commit that the disk no longer has. Nobody waits for it to be durable:
//! a process that is killed leaves it as it is, a power cut may leave one of half a minute before, which says less and
//! nothing wrong. A zombie may write its own over the owner's: one in a segment that was sealed says nothing. Journals
//! from before it, and copies, have none. (Those from before have *footnotes* instead: the same, behind the last frame,
//! and behind a seal the name of the segment where it goes on.)
//!
//! **Rotten, and what then?** A start refuses, and changes nothing. [`Journal::salvage`] is for a repair: it goes on with
//! the next good frame of the same segment and tells what stood between. Where an opening is bad, or a segment missing,
//! what counts behind it can't be told, and it refuses too.
//!
//! **A sync is never trusted twice.** The frame without a witness may be in the page cache only, left there by a
//! sync that failed. [`Journal::start_epoch`] writes those same bytes again before it seals them, so that its
//! own sync covers them. Up to the bookmark no sync has failed.
//!
//! **Segments** are files of 2 MiB, set to that length when created but not filled. Measured on ext4 with 2 cores,
//! one write and `sync_data` a commit of 256 B / 24 KiB / 256 KiB, p99 in brackets: growing file
//! 6 800 (0.3 ms) / 5 000 (1.1) / 2 200 (1.5) commits a second; length set 9 200 (0.2) / 5 800 (1.1) / 2 200 (1.4);
//! filled with zeros 9 400 (0.2) / 7 400 (2.3) / 1 800 (3.6): zeros buy a quarter in the middle and pay for it with
//! twice the bytes, stalls of 7 ms at each new segment, and the loss of the large commits.
//!
//! Cost: one write, one sync and the bookmark's write per append, one directory sync more per segment; at a start a read
//! of what was not checkpointed, and two syncs, or four if the bookmark does not cover what was read. Limits: a frame holds at most [`FRAME_BYTES_MAX`]; one larger than a segment gets a
//! segment of its own size. The journal knows nothing of tasks, of sled, of threads and of the epoch gate: its
//! owner raises the gate *before* opening, and checks it again after each append, before answering.

mod files;
mod frame;
mod replay;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::path::PathBuf;

use self::files::BOOKMARK;
pub use self::files::{JournalDirectory, JournalFiles, SegmentFile, SegmentId};
pub(super) use self::frame::Followed;
use self::frame::{Bookmark, Header, Kind, Opening};
use self::replay::{bookmarked_in, chain_of};
use crate::failpoints;
use crate::ids::ShardEpoch;

/// Most bytes of one frame's payload.
pub const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;

const SEGMENT_BYTES: u64 = 2 * 1024 * 1024;
/// No segment is longer: an opening, the largest frame and, in those from before bookmarks, a footnote.
const SEGMENT_BYTES_MAX: u64 =
    OPENING_BYTES + (HEADER_BYTES + FRAME_BYTES_MAX) as u64 + FOOTNOTE_BYTES;
/// Behind the last frame, in segments from before bookmarks.
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

/// What a replay comes upon.
#[derive(Debug, Clone)]
pub enum Met {
    /// A commit.
    Frame(Frame),
    /// Commits that do not read back.
    Lost(Lost),
}

/// Frames that were durable and do not read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The segment they stand in.
    pub file: PathBuf,
    /// Where the first of them begins.
    pub offset: u64,
    /// What is wrong with it.
    pub why: &'static str,
    /// Its number.
    pub first: u64,
    /// The number of the last one; before the first if what is damaged holds none.
    pub last: u64,
    /// What was given to [`Journal::append`], as it stands there now: parts of it may be wrong. Of frames that `after`
    /// covers none.
    pub payloads: Vec<Vec<u8>>,
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
    /// How far the last segment is safe, as the bookmark said; 0 if it said nothing of it.
    bookmarked: u64,
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
    bookmark: Box<dyn SegmentFile>,
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
        Self::salvage(files, after, &mut whole(visit))
    }

    /// The same, but that `visit` is told of what does not read back between good frames, and may go on.
    ///
    /// # Errors
    /// As [`Journal::open`], save for what `visit` has let pass.
    pub fn salvage(
        files: Box<dyn JournalFiles>,
        after: u64,
        visit: &mut dyn FnMut(Met) -> Result<(), String>,
    ) -> Result<Self, JournalError> {
        Self::open_sized(files, SEGMENT_BYTES, after, visit)
    }

    fn open_sized(
        files: Box<dyn JournalFiles>,
        segment_bytes: u64,
        after: u64,
        visit: &mut dyn FnMut(Met) -> Result<(), String>,
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
        let bookmarked = bookmarked_in(&*files, head)?;
        let mut journal = Self {
            files,
            segment_bytes,
            segments: VecDeque::new(),
            next_id: ids.last().map_or(first, |last| SegmentId(last.0 + 1)),
            last_sequence: chain.first().map_or(0, |opening| opening.after),
            last_epoch: chain.last().map(|opening| opening.epoch),
            bookmarked,
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
        // Its name is made durable with the segment's.
        let bookmark = self.files.open_bookmark();
        let bookmark = bookmark.map_err(bookmark_error(&*self.files, "opening"))?;
        let mut page = self.next_page(epoch, bookmark, 0)?;
        self.flush(&mut page)?;
        self.bookmark(&mut page)?;
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
        if self.end() + frame_bytes > page.bytes {
            page = self.next_page(page.epoch, page.bookmark, frame_bytes)?;
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
        self.bookmark(&mut page)?;
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

    /// How many files these are.
    pub fn segments(&self) -> usize {
        self.segments.len()
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
    fn next_page(
        &mut self,
        epoch: ShardEpoch,
        bookmark: Box<dyn SegmentFile>,
        frame_bytes: u64,
    ) -> Result<Page, JournalError> {
        let id = self.next_id;
        let bytes = self.segment_bytes.max(OPENING_BYTES + frame_bytes);
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
            bookmark,
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

    /// Says how far the book is safe. Not synced: it is there for who starts on a damaged file.
    fn bookmark(&mut self, page: &mut Page) -> Result<(), JournalError> {
        let bookmark = Bookmark {
            segment: page.id,
            epoch: page.epoch,
            sequence: self.last_sequence,
        };
        bookmark.encode(&mut self.buffer);
        let written = page.bookmark.write_at(0, &self.buffer);
        self.buffer.clear();
        written.map_err(bookmark_error(&*self.files, "writing to"))
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

/// Lets nothing pass that does not read back.
fn whole(
    visit: &mut dyn FnMut(Frame) -> Result<(), String>,
) -> impl FnMut(Met) -> Result<(), String> {
    move |met| match met {
        Met::Frame(frame) => visit(frame),
        Met::Lost(lost) => Err(lost.why.to_owned()),
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

fn bookmark_error(
    files: &dyn JournalFiles,
    doing: &'static str,
) -> impl FnOnce(io::Error) -> JournalError {
    let file = files.directory().join(BOOKMARK);
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
