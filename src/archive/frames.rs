//! A file of records, packed in frames: what a backup is made of.
//!
//! ```text
//!  file    magic 16 │ frame │ frame │ … │ last frame: no records, the count of all before it
//!  frame   crc32 4 │ number 4 │ records 4 │ bytes 4 │ packed bytes 4 │ content, packed (LZ4)
//!  record  key length 2 │ key │ value length 4 │ value
//! ```
//!
//! Numbers are little-endian. A frame's sum covers all of it but itself, and its number is part of it, so a frame that
//! is missing, twice there or in another's place is noticed like one with a flipped bit; and a file without its last
//! frame is cut short. Lengths are bounded before anything is allocated. A record in the buffer of its frame is shared,
//! not copied.

use std::io::{self, Read, Write};

use bytes::{Buf, BufMut, Bytes};

use crate::store::codec::RECORD_BYTES_MAX;

/// What each file begins with.
const MAGIC: [u8; 16] = *b"duetime-frames 1";
const HEADER_BYTES: usize = 20;
/// A frame is closed once its records come to so many bytes, unpacked.
const FRAME_BYTES: usize = 512 * 1024;
const CONTENT_BYTES_MAX: usize = FRAME_BYTES + RECORD_BYTES_MAX + 64 * 1024;

/// Writes a file of records.
pub struct Writer<W> {
    to: W,
    content: Vec<u8>,
    /// What is being written, with room for its header.
    packed: Vec<u8>,
    frame: u32,
    in_frame: u32,
    records: u64,
    bytes: u64,
    sum: crc32fast::Hasher,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// Of the file.
    pub fn new(to: W) -> io::Result<Self> {
        let mut writer = Self {
            to,
            content: Vec::with_capacity(FRAME_BYTES + 64 * 1024),
            packed: Vec::new(),
            frame: 0,
            in_frame: 0,
            records: 0,
            bytes: 0,
            sum: crc32fast::Hasher::new(),
        };
        writer.write(&MAGIC)?;
        Ok(writer)
    }

    /// Adds a record; its key is at most 64 KiB long.
    ///
    /// # Errors
    /// Of the file.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let length = u16::try_from(key.len()).map_err(io::Error::other)?;
        self.content.put_u16_le(length);
        self.content.extend_from_slice(key);
        self.content.put_u32_le(value.len() as u32);
        self.content.extend_from_slice(value);
        self.in_frame += 1;
        self.records += 1;
        match self.content.len() >= FRAME_BYTES {
            true => self.close_frame(),
            false => Ok(()),
        }
    }

    /// Ends the file: its last frame is written, and it is given back with its size and sum.
    ///
    /// # Errors
    /// Of the file.
    pub fn finish(mut self) -> io::Result<(W, Written)> {
        if self.in_frame > 0 {
            self.close_frame()?;
        }
        self.content.put_u64_le(self.records);
        self.close_frame()?;
        let written = Written {
            records: self.records,
            bytes: self.bytes,
            crc32: self.sum.finalize(),
        };
        Ok((self.to, written))
    }

    /// How many bytes are written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn close_frame(&mut self) -> io::Result<()> {
        let room = lz4_flex::block::get_maximum_output_size(self.content.len());
        let mut packed = std::mem::take(&mut self.packed);
        packed.resize(HEADER_BYTES + room, 0);
        let length = lz4_flex::block::compress_into(&self.content, &mut packed[HEADER_BYTES..])
            .map_err(io::Error::other)?;
        packed.truncate(HEADER_BYTES + length);
        let mut header = &mut packed[4..HEADER_BYTES];
        header.put_u32_le(self.frame);
        header.put_u32_le(self.in_frame);
        header.put_u32_le(self.content.len() as u32);
        header.put_u32_le(length as u32);
        let sum = crc32fast::hash(&packed[4..]);
        packed[..4].copy_from_slice(&sum.to_le_bytes());
        self.write(&packed)?;
        self.packed = packed;
        self.content.clear();
        self.frame += 1;
        self.in_frame = 0;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

/// A file that was written, or read to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// How many records it has.
    pub records: u64,
    /// How long it is.
    pub bytes: u64,
    /// The sum of all its bytes.
    pub crc32: u32,
}

/// Why a file of records could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not what was written.
    #[error("{why} at byte {at}")]
    Damaged {
        /// Where.
        at: u64,
        /// What is wrong.
        why: &'static str,
    },
}

/// Reads a file of records, frame by frame.
pub struct Reader<R> {
    from: R,
    frame: u32,
    records: u64,
    bytes: u64,
    sum: crc32fast::Hasher,
}

impl<R: Read> Reader<R> {
    /// Begins to read a file.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(from: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            from,
            frame: 0,
            records: 0,
            bytes: 0,
            sum: crc32fast::Hasher::new(),
        };
        let mut magic = [0; MAGIC.len()];
        reader.read(&mut magic)?;
        if magic != MAGIC {
            return Err(ReadError::Damaged {
                at: 0,
                why: "it does not begin like a file of records",
            });
        }
        Ok(reader)
    }

    /// The records of the next frame; `None` at the end.
    ///
    /// # Errors
    /// Of the file, and when it is not what was written.
    pub fn next_frame(&mut self) -> Result<Option<Records>, ReadError> {
        let at = self.bytes;
        let damaged = |why| ReadError::Damaged { at, why };
        let mut header = [0; HEADER_BYTES];
        self.read(&mut header)?;
        let mut fields = &header[..];
        let sum = fields.get_u32_le();
        let number = fields.get_u32_le();
        let records = fields.get_u32_le();
        let length = fields.get_u32_le() as usize;
        let packed_length = fields.get_u32_le() as usize;
        let packed_max = lz4_flex::block::get_maximum_output_size(CONTENT_BYTES_MAX);
        if length > CONTENT_BYTES_MAX || packed_length > packed_max {
            return Err(damaged("a frame that is too long"));
        }
        let mut packed = vec![0; packed_length];
        self.read(&mut packed)?;
        let mut found = crc32fast::Hasher::new();
        found.update(&header[4..]);
        found.update(&packed);
        if found.finalize() != sum {
            return Err(damaged("a frame with a wrong sum"));
        }
        if number != self.frame {
            return Err(damaged("a frame out of its order"));
        }
        let mut content = vec![0; length];
        let unpacked = lz4_flex::block::decompress_into(&packed, &mut content);
        if unpacked.ok() != Some(length) {
            return Err(damaged("a frame that does not unpack"));
        }
        self.frame += 1;
        if records == 0 {
            return self.end(&content).map(|()| None);
        }
        self.records += u64::from(records);
        Ok(Some(Records {
            rest: content.into(),
            left: records,
            at,
        }))
    }

    fn end(&mut self, content: &[u8]) -> Result<(), ReadError> {
        let at = self.bytes;
        let counted = content.try_into().ok().map(u64::from_le_bytes);
        if counted != Some(self.records) {
            let why = "an end that counts other records than there are";
            return Err(ReadError::Damaged { at, why });
        }
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(ReadError::Damaged {
                at,
                why: "more behind its end",
            }),
        }
    }

    /// What was read so far; all of the file after its last frame.
    pub fn read_so_far(&self) -> Written {
        Written {
            records: self.records,
            bytes: self.bytes,
            crc32: self.sum.clone().finalize(),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), ReadError> {
        match self.from.read_exact(into) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ReadError::Damaged {
                    at: self.bytes,
                    why: "it is cut short",
                });
            }
            Err(error) => return Err(error.into()),
        }
        self.sum.update(into);
        self.bytes += into.len() as u64;
        Ok(())
    }
}

/// The records of a frame: key and value.
#[derive(Debug)]
pub struct Records {
    rest: Bytes,
    left: u32,
    at: u64,
}

impl Iterator for Records {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let damaged = |why| Some(Err(ReadError::Damaged { at: self.at, why }));
        if self.left == 0 {
            if self.rest.is_empty() {
                return None;
            }
            self.rest.clear();
            return damaged("a frame with more than its records");
        }
        match record(&mut self.rest) {
            Some(record) => {
                self.left -= 1;
                Some(Ok(record))
            }
            None => {
                (self.left, self.rest) = (0, Bytes::new());
                damaged("a record that is cut short")
            }
        }
    }
}

fn record(rest: &mut Bytes) -> Option<(Bytes, Bytes)> {
    let length = usize::from(rest.try_get_u16_le().ok()?);
    let key = (rest.len() >= length).then(|| rest.split_to(length))?;
    let length = rest.try_get_u32_le().ok()? as usize;
    let value = (rest.len() >= length).then(|| rest.split_to(length))?;
    Some((key, value))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn written(records: &[(Vec<u8>, Vec<u8>)]) -> (Vec<u8>, Written) {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (key, value) in records {
            writer.put(key, value).unwrap();
        }
        writer.finish().unwrap()
    }

    fn read(file: &[u8]) -> Result<(Pairs, Written), ReadError> {
        let mut reader = Reader::new(file)?;
        let mut found = Vec::new();
        while let Some(records) = reader.next_frame()? {
            for record in records {
                let (key, value) = record?;
                found.push((key.to_vec(), value.to_vec()));
            }
        }
        Ok((found, reader.read_so_far()))
    }

    fn many() -> Pairs {
        (0..3_000_u32)
            .map(|n| (n.to_le_bytes().to_vec(), vec![n as u8; 700]))
            .collect()
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(records in vec((vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..3_000)), 0..300)) {
            let (file, told) = written(&records);
            let (found, read) = read(&file).unwrap();
            prop_assert_eq!(found, records);
            prop_assert_eq!(read, told);
        }
    }

    #[test]
    fn many_frames_are_read_in_order_and_empty_files_too() {
        for records in [many(), Vec::new()] {
            let (file, told) = written(&records);
            assert_eq!(read(&file).unwrap(), (records, told));
        }
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_noticed() {
        let records: Vec<_> = many().into_iter().take(40).collect();
        let (file, _) = written(&records);
        for at in 0..file.len() {
            let mut flipped = file.clone();
            flipped[at] ^= 1;
            assert!(read(&flipped).is_err(), "byte {at}");
            assert!(read(&file[..at]).is_err(), "cut at {at}");
        }
        assert!(read(&[&file[..], b"x"].concat()).is_err());
    }

    #[test]
    fn a_frame_that_is_missing_or_twice_there_is_noticed() {
        let (file, _) = written(&many());
        let start = MAGIC.len();
        let packed = u32::from_le_bytes(*file[start + 16..].first_chunk().unwrap());
        let end = start + HEADER_BYTES + packed as usize;
        let without = [&file[..start], &file[end..]].concat();
        let twice = [&file[..end], &file[start..]].concat();
        for wrong in [without, twice] {
            let error = read(&wrong).unwrap_err();
            assert!(error.to_string().contains("out of its order"), "{error}");
        }
    }
}
