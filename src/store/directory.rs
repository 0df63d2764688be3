//! Directories and their entries: made for their owner alone, and lasting once that is said.
//!
//! What is stored is nobody's business but the service's, so each directory that is made has mode 0700, those above it
//! that had to be made too. One that is there already keeps the mode that somebody chose for it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

const OWNER_ONLY: u32 = 0o700;

/// Makes a directory, and those above it, as far as they are not there.
///
/// # Errors
/// Of the file system.
pub fn make(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(OWNER_ONLY).create(path)
}

/// Makes a directory where nothing is.
///
/// # Errors
/// Of the file system; when something is there.
pub fn make_new(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(OWNER_ONLY).create(path)
}

/// Makes what was entered into a directory, renamed in it and removed from it durable.
///
/// # Errors
/// Of the file system.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a directory with all that is in it, if it is there.
///
/// # Errors
/// Of the file system.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Writes a file of a directory, aside at first, so that a crash leaves what was there or all of the new; durable on
/// return.
///
/// # Errors
/// Of the file system.
pub fn write_whole(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let aside = directory.join(format!("{name}.new"));
    let mut file = File::create(&aside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, directory.join(name))?;
    sync(directory)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_made_is_for_its_owner_alone_and_what_is_there_stays_as_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let shared = temp.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        make(&shared.join("made/below")).unwrap();
        make_new(&shared.join("new")).unwrap();
        let mode = |name: &str| {
            fs::metadata(shared.join(name))
                .unwrap()
                .permissions()
                .mode()
        };
        for (name, expected) in [
            ("", 0o755),
            ("made", 0o700),
            ("made/below", 0o700),
            ("new", 0o700),
        ] {
            assert_eq!(mode(name) & 0o777, expected, "{name:?}");
        }
        make(&shared.join("made")).unwrap();
        assert!(make_new(&shared.join("new")).is_err());
    }
}
