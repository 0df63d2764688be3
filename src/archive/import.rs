//! Tasks and late answers from lines of JSON, into a data directory that is new or at rest.
//!
//! ```text
//!   file ──blocks of lines──▶ readers ──tasks──▶ sink ◀──tasks── what the directory holds
//!                                                 └──▶ swapped in
//! ```
//!
//! All or nothing: what was there and what comes are made into new shards beside the old ones, and only if every line
//! was right do these take their place. So a file with a mistake in its last line changes nothing. The price is that
//! what is there is written once more.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, sync_channel};

use parking_lot::Mutex;

use crate::archive::reshard::{feed_all, latest_steady, settle};
use crate::archive::sink::{Feeder, Item, OnTaken, Sink};
use crate::archive::{ArchiveError, Carried, Options, Progress};
use crate::clock::SteadyMs;
use crate::store::Note;
use crate::store::codec::encode_task;
use crate::store::data_dir::DataDir;
use crate::wire::problem::{Code, Problem};
use crate::wire::task_line::{self, LINE_BYTES_MAX, Line};

/// Lines that are handed to a reader at a time, in bytes.
const BLOCK_BYTES: usize = 256 * 1024;

/// Puts the tasks of `lines` into a directory; a new one gets `shards`. The progress counts bytes of the input and, on
/// top, the tasks that were there.
///
/// # Errors
/// The first line found to be wrong, or to name what is there already; the directory is as it was then.
pub fn import(
    dir: &mut DataDir,
    shards: u16,
    lines: &mut (dyn BufRead + Send),
    on_taken: OnTaken,
    options: &Options,
    progress: &Progress,
) -> Result<Carried, ArchiveError> {
    let is_new = dir.shards() == 0;
    let shards = if is_new { shards } else { dir.shards() };
    let place = dir.build()?;
    let made = (|| {
        let steady = match is_new {
            true => SteadyMs(0),
            false => latest_steady(dir, options)?,
        };
        let sink = Sink::begin(&place, shards, steady, on_taken, options)?;
        let fed = if is_new {
            Ok(0)
        } else {
            feed_all(dir, &sink, options, progress).map(|()| progress.done())
        };
        let held = *fed.as_ref().unwrap_or(&0);
        let fed = fed.and_then(|_| read_all(lines, &sink, options, progress));
        let mut carried = settle(fed, sink)?;
        progress.undamaged(options)?;
        carried.tasks -= held;
        Ok(carried)
    })();
    match made {
        Ok(carried) => {
            dir.swap(shards)?;
            Ok(carried)
        }
        Err(error) => {
            dir.give_up()?;
            Err(error)
        }
    }
}

/// Some lines, and the number of the first.
struct Block {
    first: u64,
    text: Vec<u8>,
}

fn read_all(
    lines: &mut (dyn BufRead + Send),
    sink: &Sink,
    options: &Options,
    progress: &Progress,
) -> Result<(), ArchiveError> {
    let wrong = Mutex::new(None::<ArchiveError>);
    let (hand, blocks) = sync_channel::<Block>(2 * options.threads.max(1));
    let blocks = Mutex::new(blocks);
    let read = std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            let mut feeder = sink.feeder();
            let (blocks, wrong) = (&blocks, &wrong);
            scope.spawn(move || {
                let done = read_blocks(blocks, &mut feeder, progress);
                if let Err(error) = done.and_then(|()| feeder.flush()) {
                    let mut wrong = wrong.lock();
                    if wrong.as_ref().is_none_or(|known| is_before(&error, known)) {
                        *wrong = Some(error);
                    }
                    drop(wrong);
                    // Whoever hands out blocks must not wait for room.
                    while blocks.lock().recv().is_ok() {}
                }
            });
        }
        let mut number = 1;
        loop {
            progress.go_on()?;
            let block = next_block(lines, &mut number)?;
            if block.text.is_empty() || wrong.lock().is_some() || hand.send(block).is_err() {
                break;
            }
        }
        // The readers end with it, also after an error above.
        drop(hand);
        Ok(())
    });
    wrong.into_inner().map_or(read, Err)
}

fn read_blocks(
    blocks: &Mutex<Receiver<Block>>,
    feeder: &mut Feeder,
    progress: &Progress,
) -> Result<(), ArchiveError> {
    loop {
        let next = blocks.lock().recv();
        let Ok(Block { first, text }) = next else {
            return Ok(());
        };
        for (number, line) in (first..).zip(text.split(|byte| *byte == b'\n')) {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let read = task_line::read(line).map_err(|problem| ArchiveError::Line {
                line: number,
                problem,
            })?;
            feeder.put(match read {
                Line::Task(task) => Item::Task {
                    id: task.id,
                    value: encode_task(&task),
                    line: number,
                },
                Line::Late(late) => Item::Note(Note::Late(late)),
            })?;
        }
        progress.add_done(text.len() as u64);
    }
}

/// Whole lines, some hundred KiB of them; nothing at the end.
fn next_block(lines: &mut dyn BufRead, number: &mut u64) -> Result<Block, ArchiveError> {
    let mut block = Block {
        first: *number,
        text: Vec::with_capacity(BLOCK_BYTES + 8 * 1024),
    };
    while block.text.len() < BLOCK_BYTES {
        let before = block.text.len();
        let mut limited = std::io::Read::take(&mut *lines, LINE_BYTES_MAX as u64 + 1);
        let read = limited.read_until(b'\n', &mut block.text);
        let read = read.map_err(ArchiveError::io("read", "the input".as_ref()))?;
        if read == 0 {
            break;
        }
        if block.text.len() - before > LINE_BYTES_MAX {
            let detail = format!("is longer than {LINE_BYTES_MAX} bytes");
            return Err(ArchiveError::Line {
                line: *number,
                problem: Problem::new(Code::TooLarge, detail),
            });
        }
        *number += 1;
    }
    Ok(block)
}

/// Of two mistakes the one in the earlier line is told.
fn is_before(one: &ArchiveError, other: &ArchiveError) -> bool {
    match (one, other) {
        (ArchiveError::Line { line: a, .. }, ArchiveError::Line { line: b, .. }) => a < b,
        (_, ArchiveError::CutOff) => true,
        _ => false,
    }
}
