//! Reading a journal when it is opened: which segments count, how far each is good, and whether a bad end is torn or rotten.

use std::io;

use super::files::{BOOKMARK, JournalFiles, SegmentId};
use super::frame::{Bookmark, Decoded, Kind, Opening, next_good, payloads_in, u64_at, witness};
use super::{
    Frame, Journal, JournalError, Lost, Met, OPENING_BYTES, SEGMENT_BYTES_MAX, Segment, State,
    Unwitnessed, bookmark_error, corrupt,
};

impl Journal {
    /// Reads one segment up to its seal or, if it has none yet, as far as it is good. Returns where it is torn.
    pub(super) fn replay(
        &mut self,
        opening: &Opening,
        next: Option<&Opening>,
        after: u64,
        visit: &mut dyn FnMut(Met) -> Result<(), String>,
    ) -> Result<Option<(SegmentId, u64)>, JournalError> {
        let id = opening.id;
        let seal = next.and_then(|next| next.previous).map(|(_, seal)| seal);
        let bytes = self.read(id, seal.unwrap_or(SEGMENT_BYTES_MAX))?;
        let known = after.max(self.bookmarked);
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
                        visit(Met::Frame(frame)).map_err(|why| self.corrupt(id, at as u64, why))?;
                    }
                    // A segment's first frame shares its sync with the opening, so it is no witness of it.
                    if expected > opening.after + 1 {
                        witnessed = at;
                    }
                    at += found.bytes;
                    self.last_sequence = expected;
                }
                Err(why) if seal.is_some() || expected <= known || witness(rest, id, expected) => {
                    let goes_on = next_good(rest, id, opening.epoch, expected);
                    let (bytes, last) = goes_on.unwrap_or_else(|| {
                        let end = seal.map_or(bytes.len(), |seal| seal as usize);
                        let last = next.map_or(known, |next| next.after);
                        (end.saturating_sub(at).max(1), last.max(expected - 1))
                    });
                    let lost = Lost {
                        file: self.files.path(id),
                        offset: at as u64,
                        why,
                        first: expected,
                        last,
                        payloads: match expected > after {
                            true => payloads_in(&rest[..bytes.min(rest.len())], id),
                            false => Vec::new(),
                        },
                    };
                    visit(Met::Lost(lost)).map_err(|why| self.corrupt(id, at as u64, why))?;
                    at += bytes;
                    self.last_sequence = last;
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
        // Up to the bookmark all was synced.
        if next.is_none() && self.last_sequence > self.bookmarked {
            self.state = State::Replayed(Some(Unwitnessed {
                id,
                offset: witnessed as u64,
                bytes: bytes[witnessed..at.min(bytes.len())].to_vec(),
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
    pub(super) fn pass_over(
        &self,
        id: SegmentId,
    ) -> Result<Option<(SegmentId, u64)>, JournalError> {
        let bytes = self.read(id, SEGMENT_BYTES_MAX)?;
        // It was begun if a second frame is there, for that was written after the opening was synced.
        if witness(&bytes, id, self.last_sequence + 1) {
            return Err(self.corrupt(id, 0, "its opening is bad, yet it holds frames"));
        }
        Ok(bytes.iter().any(|byte| *byte != 0).then_some((id, 0)))
    }
}

/// How far the last segment, `head`, is known to be safe by the bookmark; 0 if that says nothing of it.
pub(super) fn bookmarked_in(
    files: &dyn JournalFiles,
    head: Option<SegmentId>,
) -> Result<u64, JournalError> {
    let bytes = files.read_bookmark();
    let bytes = bytes.map_err(bookmark_error(files, "reading"))?;
    let Some(bookmark) = Bookmark::decode(&bytes) else {
        if !bytes.is_empty() {
            let file = files.directory().join(BOOKMARK);
            tracing::warn!(file = %file.display(), "it does not read back: whether the journal ends where it did can't be told");
        }
        return Ok(0);
    };
    let segment = bookmark.segment;
    if Some(segment) > head {
        let why = format!("it is missing or was overwritten, yet the {BOOKMARK} is in it");
        return Err(corrupt(files, segment, 0, why));
    }
    Ok(match Some(segment) == head {
        true => bookmark.sequence,
        false => 0,
    })
}

/// The segments that count, oldest first: from the last one that was begun back to the one that holds `after`.
/// What is not named by a successor (a zombie's, or one never begun) is not among them.
pub(super) fn chain_of(
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
