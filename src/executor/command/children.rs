//! The processes that this one has started, and those that it adopts.
//!
//! When a process ends, its own children go to its nearest ancestor that adopts, at last to the machine's first process.
//! A service adopts, so that nobody whom a command has left behind gets out of sight, and reaps them: in a container it
//! is often the first process anyway, and nobody else would. An embedding process has children of its own, of which we
//! know nothing; there, orphans are the system's.
//!
//! ```text
//!  who is our child        started by us   not started by us
//!  has ended               its waiter's    reaped
//!  lives, commands run     –               may belong to one of them: left alone
//!  lives, no command runs  –               killed, and reaped
//! ```

use std::collections::HashSet;
use std::fs;
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;

/// Longest wait for those to be gone who were killed.
const SWEEP_MAX: Duration = Duration::from_secs(1);
/// Between two looks whether they are.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// See the module's header.
#[derive(Debug)]
pub(super) struct Children {
    adopts: bool,
    /// Starts that are under way: who is being started is nobody's orphan, though not known yet.
    starting: AtomicUsize,
    known: Mutex<HashSet<i32>>,
}

impl Children {
    pub fn new(adopts: bool) -> Self {
        #[cfg(target_os = "linux")]
        if adopts && let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
            tracing::warn!(%error, "what commands leave behind can't be adopted");
        }
        Self {
            adopts,
            starting: AtomicUsize::new(0),
            known: Mutex::default(),
        }
    }

    /// Starts a child.
    pub fn start(&self, command: &mut Command) -> io::Result<Child> {
        self.starting.fetch_add(1, Ordering::SeqCst);
        let started = command.spawn();
        if let Ok(child) = &started {
            self.known.lock().insert(child.id() as i32);
        }
        self.starting.fetch_sub(1, Ordering::SeqCst);
        started
    }

    /// Waits until a child is gone. How it ended is not told: it may be swept up meanwhile.
    pub fn reap(&self, child: &mut Child) {
        // Forgotten first: once it is reaped, its number may be another's.
        self.known.lock().remove(&(child.id() as i32));
        let _ = child.wait();
    }

    /// Reaps whom commands have left behind; kills them first if no command runs any more.
    pub fn sweep(&self) {
        let end = Instant::now() + SWEEP_MAX;
        while self.adopts && self.sweep_once() && Instant::now() < end {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Whether some were killed that have yet to go.
    fn sweep_once(&self) -> bool {
        let found = of_this_process();
        let known = self.known.lock();
        // Whoever was started before the look is known by now, or is about to be.
        if self.starting.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let mut left = false;
        for orphan in found.into_iter().filter(|id| !known.contains(id)) {
            let orphan = Pid::from_raw(orphan);
            let lives = waitpid(orphan, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive);
            if lives && known.is_empty() {
                left |= kill(orphan, Signal::SIGKILL).is_ok();
            }
        }
        left
    }
}

/// The processes whose parent this one is.
fn of_this_process() -> Vec<i32> {
    let own = std::process::id();
    let is_own = |id: &i32| parent_of(*id) == Some(own);
    super::strays::processes().filter(is_own).collect()
}

/// The second field behind a process's name, which stands in brackets and may hold anything.
fn parent_of(id: i32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_is_found_by_its_parent_and_known_until_it_is_reaped() {
        let children = Children::new(false);
        let mut cat = Command::new("/bin/cat");
        let mut child = children.start(cat.stdin(Stdio::piped())).unwrap();
        let id = child.id() as i32;
        assert_eq!(parent_of(id), Some(std::process::id()));
        assert!(of_this_process().contains(&id) && children.known.lock().contains(&id));
        children.sweep();
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "who does not adopt sweeps nobody up"
        );
        drop(child.stdin.take());
        children.reap(&mut child);
        assert!(children.known.lock().is_empty() && parent_of(id).is_none());
        let missing = children.start(&mut Command::new("/no/such/program"));
        assert!(missing.is_err() && children.known.lock().is_empty());
        assert_eq!(children.starting.load(Ordering::SeqCst), 0);
    }
}
