//! Those of a command who have left its process group, and perhaps have lost their parents.
//!
//! A process hands its environment on to those that it starts, and the system shows it. So whoever carries the task and
//! the token of an attempt belongs to it, and no other process does, whatever its number. Who throws these variables
//! away, or writes over them, is found only where orphans are adopted ([`super::children`]).
//!
//! Cost: a look at every process of the machine, some 10 µs each, once an attempt has ended. Needs Linux.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest hunt: they may start others faster than we look.
const HUNT_MAX: Duration = Duration::from_secs(1);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Kills whoever carries all these badges, each `NAME=value`, until nobody is found any more. How many were killed.
pub(super) fn kill_all(badges: &[String]) -> usize {
    let (end, mut killed) = (Instant::now() + HUNT_MAX, 0);
    while Instant::now() < end {
        let found = carriers(badges);
        if found.is_empty() {
            break;
        }
        for stray in found {
            killed += usize::from(kill(stray, Signal::SIGKILL).is_ok());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    killed
}

/// All processes of the machine.
pub(super) fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn carriers(badges: &[String]) -> Vec<Pid> {
    let carries = |id: &i32| {
        // Of a zombie it is empty, and of others' processes not ours to read.
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let has = |badge: &String| {
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == badge.as_bytes())
        };
        !environment.is_empty() && badges.iter().all(has)
    };
    processes().filter(carries).map(Pid::from_raw).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_who_carries_all_of_the_marks_is_killed() {
        let task = uuid::Uuid::new_v4().to_string();
        let started = |token: &str| {
            let mut command = Command::new("/bin/cat");
            command
                .env("DUETIME_TASK_ID", &task)
                .env("DUETIME_TOKEN", token);
            command.stdin(Stdio::piped()).spawn().unwrap()
        };
        let (mut first, mut second) = (started("1"), started("12"));
        let badges = |token: &str| {
            [
                format!("DUETIME_TASK_ID={task}"),
                format!("DUETIME_TOKEN={token}"),
            ]
        };
        assert_eq!(kill_all(&badges("2")), 0);
        assert_eq!(kill_all(&badges("1")), 1);
        assert!(!first.wait().unwrap().success());
        assert_eq!(second.try_wait().unwrap(), None);
        drop(second.stdin.take());
        assert!(second.wait().unwrap().success());
    }
}
