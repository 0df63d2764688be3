//! Other shards in the place of those that are there, all at once.
//!
//! ```text
//!  built in new/ ─▶ SWAP written ─▶ shards/ ▶ old/shards, new/shards ▶ shards/ ─▶ FORMAT ─▶ SWAP gone ─▶ old/ gone
//!                  └──────────────── cut off in here, the next to open the directory goes on ────────┘
//! ```
//!
//! Until `SWAP` is there the old count, and what stands in `new` is thrown away; from then on the new do. Each step is
//! seen to be done by what is there, so it does not matter how often, and where, it was cut off.

use std::fs;
use std::io;
use std::path::Path;

use super::{read_shards, write_format};
use crate::store::directory;

/// Where it is built.
pub(super) const NEW: &str = "new";
const OLD: &str = "old";
const SWAP: &str = "SWAP";
/// What takes the place of what: the registry only if one was built.
const PARTS: [&str; 2] = ["shards", "registry"];

/// Whether a swap has begun and is not through.
pub(super) fn is_due(data: &Path) -> bool {
    data.join(SWAP).exists()
}

/// What is built counts from here on.
pub(super) fn begin(data: &Path, shards: u16) -> io::Result<()> {
    directory::remove(&data.join(OLD))?;
    directory::sync(&data.join(NEW))?;
    directory::write_whole(data, SWAP, &format!("shards {shards}\n"))
}

/// Goes through with a swap that has begun, if one has.
pub(super) fn finish(data: &Path) -> io::Result<()> {
    let (new, old) = (data.join(NEW), data.join(OLD));
    let said = match fs::read_to_string(data.join(SWAP)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return directory::remove(&old),
        Err(error) => return Err(error),
    };
    let shards = said.lines().next().and_then(read_shards);
    let shards = shards.ok_or_else(|| io::Error::other("the file SWAP does not say how many"))?;
    for part in PARTS {
        let (built, place) = (new.join(part), data.join(part));
        if !built.exists() {
            continue;
        }
        if place.exists() {
            directory::make(&old)?;
            fs::rename(&place, old.join(part))?;
        }
        fs::rename(&built, &place)?;
    }
    directory::sync(data)?;
    write_format(data, shards)?;
    fs::remove_file(data.join(SWAP))?;
    directory::sync(data)?;
    directory::remove(&new)?;
    directory::remove(&old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::data_dir::DataDir;

    /// A directory with `old` in its shards, and `new` built beside them.
    fn prepared() -> tempfile::TempDir {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = DataDir::open(temp.path(), 2).expect("it is free");
        for part in PARTS {
            fs::create_dir_all(temp.path().join(part)).expect("it can be made");
            fs::write(temp.path().join(part).join("what"), "old").expect("it is written");
        }
        let new = dir.build().expect("it can be made");
        fs::create_dir(new.join("shards")).expect("it can be made");
        fs::write(new.join("shards").join("what"), "new").expect("it is written");
        temp
    }

    fn what(data: &Path) -> (String, String, u16) {
        let dir = DataDir::open_existing(data).expect("it opens");
        let part = |name| fs::read_to_string(data.join(name).join("what")).expect("it is there");
        for gone in [NEW, OLD, SWAP] {
            assert!(!data.join(gone).exists(), "{gone}");
        }
        (part("shards"), part("registry"), dir.shards())
    }

    #[test]
    fn a_swap_that_has_not_begun_leaves_the_old() {
        let temp = prepared();
        assert_eq!(what(temp.path()), ("old".into(), "old".into(), 2));
    }

    #[test]
    fn a_swap_replaces_what_was_built_and_leaves_the_rest() {
        let temp = prepared();
        begin(temp.path(), 5).expect("it begins");
        finish(temp.path()).expect("it is finished");
        assert_eq!(what(temp.path()), ("new".into(), "old".into(), 5));
    }

    #[test]
    fn a_swap_that_was_cut_off_anywhere_is_finished_by_whoever_opens_the_directory() {
        type Step = fn(&Path) -> io::Result<()>;
        let steps: [Step; 5] = [
            |data| fs::create_dir(data.join(OLD)),
            |data| fs::rename(data.join("shards"), data.join("old/shards")),
            |data| fs::rename(data.join("new/shards"), data.join("shards")),
            |data| write_format(data, 5),
            |data| fs::remove_file(data.join(SWAP)),
        ];
        for done in 0..=steps.len() {
            let temp = prepared();
            begin(temp.path(), 5).expect("it begins");
            for step in &steps[..done] {
                step(temp.path()).expect("it is done");
            }
            assert_eq!(
                what(temp.path()),
                ("new".into(), "old".into(), 5),
                "{done} steps"
            );
        }
    }
}
