//! What stands in a segment: its opening and frames, as bytes and back. See the journal's header for the layout.

use super::files::{JournalFiles, SegmentId};
use super::{
    ALIGNMENT, FORMAT_VERSION, FRAME_BYTES_MAX, HEADER_BYTES, JournalError, MAGIC, OPENING_BYTES,
    corrupt, io_error,
};
use crate::ids::ShardEpoch;

/// Whether a good frame in `bytes` says that frame `sequence` was durable when it was written.
pub(super) fn witness(bytes: &[u8], id: SegmentId, sequence: u64) -> bool {
    (0..bytes.len()).step_by(ALIGNMENT).any(|at| {
        bytes[at..].starts_with(&MAGIC)
            && Decoded::read(&bytes[at..], id)
                .is_ok_and(|found| found.header.durable_through >= sequence)
    })
}

/// Where in `bytes`, which begin with a frame that is bad, the next good one begins, and the last sequence before it: a
/// frame of changes that may follow, or the footnote behind the last one.
pub(super) fn next_good(
    bytes: &[u8],
    id: SegmentId,
    epoch: ShardEpoch,
    expected: u64,
) -> Option<(usize, u64)> {
    (ALIGNMENT..bytes.len()).step_by(ALIGNMENT).find_map(|at| {
        if !bytes[at..].starts_with(&MAGIC) {
            return None;
        }
        let header = Decoded::read(&bytes[at..], id).ok()?.header;
        let last = match header.kind {
            Kind::Changes => header.sequence.saturating_sub(1),
            Kind::Footnote => header.durable_through,
            Kind::Opening | Kind::Bookmark => return None,
        };
        (header.epoch == epoch && last + 1 >= expected).then_some((at, last))
    })
}

/// The payloads of bad frames, as far as their headers say where they stand; the first needs none.
pub(super) fn payloads_in(bytes: &[u8], id: SegmentId) -> Vec<Vec<u8>> {
    let is_header = |at: &usize| {
        let header = &bytes[*at..];
        header.len() >= HEADER_BYTES && header.starts_with(&MAGIC) && u64_at(header, 16) == id.0
    };
    let mut begin: Vec<usize> = (0..bytes.len())
        .step_by(ALIGNMENT)
        .filter(is_header)
        .collect();
    if begin.first() != Some(&0) {
        begin.insert(0, 0);
    }
    let ends = begin.iter().skip(1).copied().chain([bytes.len()]);
    let frames = begin.iter().zip(ends);
    frames
        .filter_map(|(begin, end)| bytes.get(begin + HEADER_BYTES..end))
        .map(<[u8]>::to_vec)
        .collect()
}

/// The first frame of a segment.
pub(super) struct Opening {
    pub(super) id: SegmentId,
    pub(super) epoch: ShardEpoch,
    /// The last sequence number before this segment.
    pub(super) after: u64,
    /// The segment this one follows, and how many of its bytes count.
    pub(super) previous: Option<(SegmentId, u64)>,
}

impl Opening {
    pub(super) fn encode(&self, buffer: &mut Vec<u8>) {
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
    pub(super) fn read(
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
        Ok(Self::decode(&bytes, id))
    }

    pub(super) fn decode(bytes: &[u8], id: SegmentId) -> Result<Self, &'static str> {
        let found = Decoded::read(bytes, id)?;
        let is_opening = found.header.kind == Kind::Opening && found.payload.len() == 16;
        is_opening.then_some(()).ok_or("it has no opening")?;
        let previous = SegmentId(u64_at(found.payload, 0));
        Ok(Self {
            id,
            epoch: found.header.epoch,
            after: found.header.sequence,
            previous: (previous.0 != 0).then(|| (previous, u64_at(found.payload, 8))),
        })
    }
}

/// How far a journal is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bookmark {
    /// The last segment.
    pub(super) segment: SegmentId,
    /// Its owner's.
    pub(super) epoch: ShardEpoch,
    /// The last frame that was synced.
    pub(super) sequence: u64,
}

impl Bookmark {
    pub(super) fn encode(&self, buffer: &mut Vec<u8>) {
        let header = Header {
            kind: Kind::Bookmark,
            segment: self.segment,
            epoch: self.epoch,
            sequence: self.sequence,
            durable_through: self.sequence,
        };
        header.encode(&[], buffer);
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let segment = SegmentId(u64_at(bytes.get(..HEADER_BYTES)?, 16));
        let header = Decoded::read(bytes, segment).ok()?.header;
        (header.kind == Kind::Bookmark).then_some(Self {
            segment,
            epoch: header.epoch,
            sequence: header.sequence,
        })
    }
}

/// A segment as somebody follows it who does not write it: how far its frames were read.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::local) struct Followed {
    /// Which.
    pub(in crate::store::local) id: SegmentId,
    /// The segment before it, and how many bytes of that count.
    pub(in crate::store::local) previous: Option<(SegmentId, u64)>,
    /// The last sequence number before it.
    pub(in crate::store::local) after: u64,
    /// The last one of it that was read.
    pub(in crate::store::local) sequence: u64,
    /// Where the next frame begins.
    pub(in crate::store::local) end: u64,
    epoch: ShardEpoch,
}

impl Followed {
    /// How many bytes have to be there to begin.
    pub(in crate::store::local) const OPENING_BYTES: usize = OPENING_BYTES as usize;
    /// How many bytes tell how long a frame is.
    pub(in crate::store::local) const HEADER_BYTES: usize = HEADER_BYTES;

    /// From the first bytes of a segment; `None` while it is not begun.
    pub(in crate::store::local) fn begin(bytes: &[u8], id: SegmentId) -> Option<Self> {
        let opening = Opening::decode(bytes, id).ok()?;
        Some(Self {
            id,
            previous: opening.previous,
            after: opening.after,
            sequence: opening.after,
            end: OPENING_BYTES,
            epoch: opening.epoch,
        })
    }

    /// How long the next frame is, if `header` is that of one.
    pub(in crate::store::local) fn next_bytes(&self, header: &[u8]) -> Option<usize> {
        let header = header.get(..HEADER_BYTES)?;
        let is_next = header.starts_with(&MAGIC)
            && u64_at(header, 16) == self.id.0
            && u64_at(header, 24) == self.epoch.0
            && u64_at(header, 32) == self.sequence + 1;
        let payload_bytes = (u64_at(header, 8) >> 32) as usize;
        (is_next && payload_bytes <= FRAME_BYTES_MAX)
            .then(|| (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGNMENT))
    }

    /// Reads on in `bytes`, which stand at its end: how many of them are whole frames of changes.
    pub(in crate::store::local) fn go_on(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Ok(found) = Decoded::read(&bytes[at..], self.id) {
            let header = &found.header;
            let is_next = header.kind == Kind::Changes
                && header.epoch == self.epoch
                && header.sequence == self.sequence + 1;
            if !is_next {
                break;
            }
            self.sequence = header.sequence;
            self.end += found.bytes as u64;
            at += found.bytes;
        }
        at
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Opening = 1,
    Changes = 2,
    Footnote = 3,
    Bookmark = 4,
}

/// What a frame says of itself, less what only guards it (magic, checksum, version, length).
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) segment: SegmentId,
    pub(super) epoch: ShardEpoch,
    pub(super) sequence: u64,
    pub(super) durable_through: u64,
}

impl Header {
    pub(super) fn encode(&self, payload: &[&[u8]], buffer: &mut Vec<u8>) {
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
pub(super) struct Decoded<'a> {
    pub(super) header: Header,
    pub(super) payload: &'a [u8],
    /// Its whole length.
    pub(super) bytes: usize,
}

impl<'a> Decoded<'a> {
    /// The frame of segment `id` that `bytes` begin with, or why there is none. Allocates nothing, and believes no
    /// length before it has checked it.
    pub(super) fn read(bytes: &'a [u8], id: SegmentId) -> Result<Self, &'static str> {
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
            4 if payload_bytes == 0 => Kind::Bookmark,
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

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
