//! The guard of a command: a small process that lives as long as its program does, and outlives the engine if need be.
//!
//! The engine starts programs, ends them and reaps them itself. What it can't do is end them when it is itself killed.
//! So each command has a guard beside it, which is this same binary, started anew:
//!
//! ```text
//!  engine ──── spawns ───▶ program, and whatever it starts
//!     │                       ▲
//!     └─ a pipe ─▶ guard ─────┘ kills them all when the pipe closes and nobody has told it to leave
//! ```
//!
//! That the pipe closes is how a process learns that another is gone, however it went: no timer, no process number that
//! could be another's meanwhile. The program does not wait for its guard, so it makes nothing late.
//!
//! Limits: one more process for each command that runs. A guard that is killed guards nobody, and the command goes on.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::children::Children;
use super::strays;

/// The argument that a guard is started with.
const ARGUMENT: &str = "command-guard";

/// Which program guards commands. There are two ways to have one: the program itself, if its `main` begins with
/// [`enter`](Self::enter), or another whose `main` does, such as the `duetime` binary.
#[derive(Clone, Debug)]
pub struct CommandGuard {
    program: PathBuf,
}

impl CommandGuard {
    /// To be called first thing in `main`. In a process that was started as a guard it does the guard's work and does
    /// not return; in any other it returns at once.
    pub fn enter() -> Self {
        let mut arguments = std::env::args_os().skip(1);
        if arguments
            .next()
            .is_some_and(|argument| argument == ARGUMENT)
        {
            stand_guard(io::stdin().lock());
            std::process::exit(0);
        }
        let own = if cfg!(target_os = "linux") {
            // The same version, even when another has been put in its place since the start.
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe().unwrap_or_default()
        };
        Self { program: own }
    }

    /// Another program, whose `main` begins with [`enter`](Self::enter).
    pub fn program(path: impl Into<PathBuf>) -> Self {
        Self {
            program: path.into(),
        }
    }
}

/// A guard that was started. Dropping it ends it, and blocks until it is reaped.
pub(super) struct Guard {
    child: Child,
    children: Arc<Children>,
}

impl Guard {
    /// Starts a guard over all who carry these badges.
    pub fn start(
        guard: &CommandGuard,
        badges: &[String],
        children: &Arc<Children>,
    ) -> io::Result<Self> {
        let mut command = Command::new(&guard.program);
        command.arg(ARGUMENT).env_clear().process_group(0);
        // A directory that nobody can take away.
        command.current_dir("/").stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut guard = Self {
            child: children.start(&mut command)?,
            children: Arc::clone(children),
        };
        guard.tell(&serde_json::to_string(badges)?)?;
        Ok(guard)
    }

    /// Tells it the program's group.
    pub fn watch(&mut self, group: Pid) -> io::Result<()> {
        self.tell(&group.to_string())
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let pipe = self.child.stdin.as_mut();
        let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(format!("{line}\n").as_bytes())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.children.reap(&mut self.child);
    }
}

/// The guard's whole work: hears whom it guards, waits, and kills them when nothing more can come.
fn stand_guard(pipe: impl BufRead) {
    let (mut badges, mut group) = (None::<Vec<String>>, None);
    for line in pipe.lines().map_while(Result::ok) {
        match badges {
            None => badges = serde_json::from_str(&line).ok(),
            Some(_) => group = line.parse().ok().map(Pid::from_raw),
        }
    }
    if let Some(group) = group {
        // It is gone already, or goes now.
        let _ = killpg(group, Signal::SIGKILL);
    }
    if let Some(badges) = badges {
        strays::kill_all(&badges);
    }
}
