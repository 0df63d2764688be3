//! Commands: programs that are run on this machine, in a process group of their own, and really ended.
//!
//! ```text
//!  RunAttempt ─ allowed? ─ in time? ─▶ program ─▶ whatever it starts
//!                                        │ stdin   the attempt as JSON, as a push has it
//!                                        │ stdout  ≤ 64 KiB: the result
//!                                        └ stderr  its end: the failure's words
//!            time is up, cancelled ─▶ SIGTERM ─ grace ─▶ SIGKILL, to all of them
//! ```
//!
//! | what happened                        | outcome                                                    |
//! |--------------------------------------|------------------------------------------------------------|
//! | exit code 0                          | `Succeeded`; stdout is the result: its JSON, else its text |
//! | the same, stdout over 64 KiB         | `Succeeded` without the result                             |
//! | any other exit code                  | `exit_<code>`, with the end of stderr, or of stdout        |
//! | ended by a signal that was not ours  | `signal_<number>`, in doubt                                |
//! | its time is up                       | `TimedOut`, whatever it says within its grace              |
//! | there is no such program, directory  | `program_not_found`, `cwd_not_found`, not retryable        |
//! | it may not be executed               | `program_not_executable`, not retryable                    |
//! | the configuration does not allow it  | `commands_off`, `command_not_allowed`, not retryable       |
//! | the machine has no process for it    | `spawn`                                                    |
//!
//! An attempt ends as a whole: when its program has ended, whatever it left running is killed, in its group or out of it
//! (`strays`, `children`), and reaped. What is written after that is not waited for, so that nobody who keeps a pipe
//! open keeps the slot. When the engine goes, so does all that it has run: at once if it was killed (`guard`); a stop
//! gives the programs their SIGTERM and their grace, up to five seconds.
//!
//! Of this process's environment a program gets [`HANDED_ON`], and nothing else. Cost: two processes, four pipes and a
//! waiting thread for each. How many run at a time is for the caller to bound. Limits: who changes the user id to one
//! that we may not signal gets away, as does who leaves group, environment and parents behind in an embedding process;
//! who runs such programs puts the service into a cgroup of its own.

mod allow;
mod children;
mod guard;
mod strays;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::deadline::Deadlines;
use super::http_push::{AWAY, CATCH_UP_MAX, as_json, failure, without_secrets};
use super::{OwedReport, RunAttempt, Work};
use crate::clock::Clock;
use crate::limits::{COMMAND_BYTES_MAX, RESULT_BYTES_MAX};
use crate::task::outcome::{Failure, Outcome};
use crate::task::spec::CommandAction;

pub use allow::{Allow, CommandRefused};
use children::Children;
pub use guard::CommandGuard;
use guard::Guard;

/// Variables of this process that every command gets.
pub const HANDED_ON: [&str; 8] = [
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR",
];
/// Where a command runs that names no directory.
const CWD_DEFAULT: &str = "/";
/// Most that is kept of what a program writes to one of its outputs, in bytes.
const OUTPUT_BYTES_MAX: usize = RESULT_BYTES_MAX;
/// How much of its last words goes into a failure's message, in characters.
const WORDS_CHARS_MAX: usize = 200;
/// What is kept for that, in bytes: long enough that a variable's value among them is never seen cut in two.
const WORDS_BYTES_MAX: usize = 4 * WORDS_CHARS_MAX + COMMAND_BYTES_MAX;
/// Longest wait for the rest of the outputs after the program's end.
const OUTPUT_REST: Duration = Duration::from_millis(100);
/// Longest wait for a command to be gone that was killed. It is seen to in the background from then on.
const END_MAX: Duration = Duration::from_secs(2);
/// The variables that say whose attempt a process belongs to.
const BADGES: [&str; 2] = ["DUETIME_TASK_ID", "DUETIME_TOKEN"];

/// What commands may be, and how many of them.
#[derive(Clone, Debug)]
pub struct CommandOptions {
    /// Who ends them when this process is killed. `None`: nobody does, and they go on.
    pub guard: Option<CommandGuard>,
    /// Whether this process adopts what they leave behind. Only for a process that starts no others: those would be taken
    /// for left behind, too.
    pub adopts: bool,
    /// What may be run.
    pub allow: Allow,
    /// How many may run at a time, over all shards; each shard may have its part, rounded up.
    pub running_max: usize,
}

/// One command to run: what a task asks for, and what its attempt adds.
#[derive(Clone, Debug)]
pub struct CommandCall {
    /// The action.
    pub action: CommandAction,
    /// What the program is told about the attempt: `DUETIME_…`.
    pub variables: Vec<(&'static str, String)>,
    /// Its standard input.
    pub input: Bytes,
}

/// Runs commands.
pub struct Commands {
    on: Option<(CommandOptions, Handle)>,
    parts: Arc<Parts>,
}

struct Parts {
    clock: Clock,
    deadlines: Deadlines,
    running: AtomicUsize,
    since_start: Mutex<CommandCounts>,
    children: Arc<Children>,
}

/// What commands have come to since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CommandCounts {
    /// That run now.
    pub running: usize,
    /// Whose program was started.
    pub started: u64,
    /// Attempts that ended so.
    pub succeeded: u64,
    /// Attempts that ended so, those included whose program could not be started.
    pub failed: u64,
    /// Attempts that ended so.
    pub timed_out: u64,
    /// Attempts that ended so.
    pub cancelled: u64,
}

impl CommandCounts {
    fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Succeeded { .. } => self.succeeded += 1,
            Outcome::TimedOut => self.timed_out += 1,
            Outcome::Cancelled => self.cancelled += 1,
            _ => self.failed += 1,
        }
    }
}

/// Counts one command that runs.
struct Counted(Arc<Parts>);

impl Counted {
    fn new(parts: &Arc<Parts>) -> Self {
        parts.running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(parts))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Commands {
    /// An executor whose programs are looked after on a runtime with timers and I/O. `None`: it runs none.
    pub fn new(on: Option<(CommandOptions, Handle)>, clock: Clock) -> Self {
        let parts = Parts {
            deadlines: Deadlines::new(clock.clone()),
            clock,
            running: AtomicUsize::new(0),
            since_start: Mutex::default(),
            children: Arc::new(Children::new(
                on.as_ref().is_some_and(|(options, _)| options.adopts),
            )),
        };
        Self {
            on,
            parts: Arc::new(parts),
        }
    }

    /// Whether this may be run here.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, action: &CommandAction) -> Result<(), CommandRefused> {
        self.allowed(action).map(drop)
    }

    fn allowed(&self, action: &CommandAction) -> Result<&(CommandOptions, Handle), CommandRefused> {
        let on = self.on.as_ref().ok_or(CommandRefused::Off)?;
        on.0.allow.check(action).map(|()| on)
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.parts.running.load(Ordering::Relaxed)
    }

    /// What they have come to.
    pub fn counts(&self) -> CommandCounts {
        CommandCounts {
            running: self.running(),
            ..*self.parts.since_start.lock()
        }
    }

    /// Takes an attempt and returns at once; the report follows in every case.
    pub fn run(&self, attempt: RunAttempt, mut owed: OwedReport) {
        let Work::Command(call) = &attempt.work else {
            // Only commands are run here; anything else is given back.
            return;
        };
        let (options, io) = match self.allowed(&call.action) {
            Ok(on) => on,
            // It was allowed when the task was made, or came with an import.
            Err(refused) => {
                let told = failure(refused.code(), refused.to_string());
                return owed.settle(Outcome::Failed(Failure {
                    retryable: false,
                    ..told
                }));
            }
        };
        let (parts, counted) = (Arc::clone(&self.parts), Counted::new(&self.parts));
        let guard = options.guard.clone();
        io.spawn(async move {
            if parts.clock.now().mono < attempt.deadline {
                owed.start();
                let outcome = parts.run(&attempt, guard).await;
                parts.since_start.lock().count(&outcome);
                owed.settle(outcome);
            }
            drop(counted);
        });
    }
}

impl Parts {
    async fn run(&self, attempt: &RunAttempt, guard: Option<CommandGuard>) -> Outcome {
        let Work::Command(call) = &attempt.work else {
            return Outcome::GivenBack;
        };
        // Reading a program may take its time, and who waits here would wait in everybody's way. One that comes too late
        // is dropped, and ended by that.
        let (to_start, children) = (call.clone(), Arc::clone(&self.children));
        let start = move || Started::start(&to_start, guard.as_ref(), children);
        let mut starting = spawn_blocking(start);
        let started = tokio::select! {
            biased;
            started = &mut starting => started,
            () = attempt.cancel.cancelled() => return Outcome::Cancelled,
            () = self.deadlines.reached(attempt.deadline) => {
                match self.caught_up(attempt, starting).await {
                    Some(started) => started,
                    None => return Outcome::TimedOut,
                }
            }
        };
        match started {
            Ok(Ok((started, pipes))) => {
                self.since_start.lock().started += 1;
                self.see_through(attempt, call, started, pipes).await
            }
            Ok(Err(failure)) => Outcome::Failed(failure),
            Err(error) => Outcome::Failed(failure("spawn", error.to_string())),
        }
    }

    /// From the start of a program to its end, and that of all that it has started.
    async fn see_through(
        &self,
        attempt: &RunAttempt,
        call: &CommandCall,
        started: Started,
        pipes: Pipes,
    ) -> Outcome {
        let mut ending = pin!(ending(started.group, &call.input, pipes));
        // The first that is ready wins, in this order.
        let mut cut_off = tokio::select! {
            biased;
            said = &mut ending => Err(said),
            () = attempt.cancel.cancelled() => Ok(Outcome::Cancelled),
            () = self.deadlines.reached(attempt.deadline) => Ok(Outcome::TimedOut),
        };
        if matches!(cut_off, Ok(Outcome::TimedOut))
            && let Some(said) = self.caught_up(attempt, &mut ending).await
        {
            cut_off = Err(said);
        }
        if cut_off.is_ok() {
            signal(started.group, Signal::SIGTERM);
            let end = self.clock.now().mono.after(attempt.grace);
            tokio::select! {
                biased;
                _ = ending => {}
                () = self.deadlines.reached(end) => {}
            }
        }
        let ended = spawn_blocking(move || drop(started));
        if timeout(END_MAX, ended).await.is_err() {
            let program = &call.action.program;
            tracing::warn!(program, "a command that was killed is not gone yet");
        }
        cut_off.unwrap_or_else(|said| outcome_of(said, &call.action))
    }

    /// What should have been heard before the deadline, if this process stood still then: it may have come in time, and
    /// only we have not heard of it.
    async fn caught_up<T>(
        &self,
        attempt: &RunAttempt,
        heard: impl Future<Output = T>,
    ) -> Option<T> {
        if self.clock.now().mono.since(attempt.deadline) < AWAY {
            return None;
        }
        timeout(CATCH_UP_MAX, heard).await.ok()
    }
}

/// The whole environment: what every command gets, what its task asks for, and what is said of the attempt.
fn command_of(call: &CommandCall) -> Command {
    let action = &call.action;
    let mut command = Command::new(&action.program);
    command.args(&action.args).env_clear();
    for name in HANDED_ON {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.envs(action.env.iter().map(|(name, value)| (name, value)));
    command.envs(call.variables.iter().map(|(name, value)| (name, value)));
    command.current_dir(action.cwd.as_deref().unwrap_or(CWD_DEFAULT));
    command.process_group(0).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Why a program could not be started. What another attempt would find just the same is for good.
fn refusal(action: &CommandAction, error: &io::Error) -> Failure {
    let for_good = |code: &str, message: String| Failure {
        retryable: false,
        ..failure(code, message)
    };
    let CommandAction { program, cwd, .. } = action;
    if let Some(cwd) = cwd
        && !Path::new(cwd).is_dir()
    {
        return for_good("cwd_not_found", format!("there is no directory {cwd}"));
    }
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR) => for_good(
            "program_not_found",
            format!("there is no program {program}"),
        ),
        Some(Errno::EACCES | Errno::EPERM | Errno::ENOEXEC | Errno::EISDIR | Errno::ELOOP) => {
            for_good("program_not_executable", format!("{program}: {error}"))
        }
        _ => failure("spawn", format!("{program}: {error}")),
    }
}

/// A program that was started. Dropping it ends it and all that it has started, and blocks until they are gone.
struct Started {
    program: Child,
    /// Its own group, whose number is its own until it is reaped.
    group: Pid,
    /// What whoever belongs to it carries in its environment.
    badges: Vec<String>,
    guard: Option<Guard>,
    children: Arc<Children>,
}

/// The ends of a program's input and outputs.
struct Pipes {
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Started {
    fn start(
        call: &CommandCall,
        guard: Option<&CommandGuard>,
        children: Arc<Children>,
    ) -> Result<(Self, Pipes), Failure> {
        let badges = call.variables.iter();
        let badges = badges.filter(|(name, _)| BADGES.contains(name));
        let badges: Vec<String> = badges
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let no_guard = |error: io::Error| failure("spawn", format!("no guard: {error}"));
        // Both at the same time: the program is not late because of its guard, and hardly a moment without.
        let (guard, program) = thread::scope(|scope| {
            let guard = guard.map(|guard| {
                let thread = thread::Builder::new().name("guard".to_owned());
                thread.spawn_scoped(scope, || Guard::start(guard, &badges, &children))
            });
            let program = children.start(&mut command_of(call));
            (guard.map(joined).transpose(), program)
        });
        let program = program.map_err(|error| refusal(&call.action, &error))?;
        let mut started = Self {
            group: Pid::from_raw(program.id() as i32),
            program,
            badges,
            guard: None,
            children,
        };
        started.guard = guard.map_err(no_guard)?;
        if let Some(guard) = &mut started.guard {
            guard.watch(started.group).map_err(no_guard)?;
        }
        let pipes = started.pipes();
        let pipes = pipes.map_err(|error| failure("spawn", format!("no pipes: {error}")))?;
        Ok((started, pipes))
    }

    fn pipes(&mut self) -> io::Result<Pipes> {
        let Child {
            stdin,
            stdout,
            stderr,
            ..
        } = &mut self.program;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (stdin.take(), stdout.take(), stderr.take())
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Pipes {
            stdin: pipe::Sender::from_owned_fd(stdin.into())?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
        })
    }
}

fn joined(guard: io::Result<ScopedJoinHandle<'_, io::Result<Guard>>>) -> io::Result<Guard> {
    let started = guard?.join();
    started.map_err(|_| io::Error::other("its start panicked"))?
}

impl Drop for Started {
    fn drop(&mut self) {
        signal(self.group, Signal::SIGKILL);
        self.children.reap(&mut self.program);
        let left = strays::kill_all(&self.badges);
        if left > 0 {
            tracing::debug!(left, "a command had left some behind");
        }
        drop(self.guard.take());
        self.children.sweep();
    }
}

/// Signals a group whose first process has not been reaped.
fn signal(group: Pid, signal: Signal) {
    // Nobody in it, or nobody that we may signal.
    let _ = killpg(group, signal);
}

/// What a command came to.
#[derive(Debug)]
struct Said {
    ended: Option<Ended>,
    stdout: Kept,
    stderr: Kept,
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// With this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

/// Feeds a program, reads what it writes, and waits for its end. Then its group goes with it; it is left to be reaped.
async fn ending(group: Pid, input: &[u8], pipes: Pipes) -> Said {
    let (mut out, mut err) = (Kept::default(), Kept::default());
    let over = CancellationToken::new();
    let talking = async {
        let all = async {
            tokio::join!(
                feed(pipes.stdin, input),
                out.read(pipes.stdout),
                err.read(pipes.stderr)
            )
        };
        let too_long = async {
            over.cancelled().await;
            sleep(OUTPUT_REST).await;
        };
        tokio::select! { _ = all => {}, () = too_long => {} }
    };
    let waiting = async {
        let ended = spawn_blocking(move || end_of(group)).await;
        signal(group, Signal::SIGKILL);
        over.cancel();
        ended.ok().flatten()
    };
    let ((), ended) = tokio::join!(talking, waiting);
    Said {
        ended,
        stdout: out,
        stderr: err,
    }
}

/// Waits until a program has ended, without reaping it. `None`: somebody else has reaped it, and knows how it ended.
fn end_of(program: Pid) -> Option<Ended> {
    loop {
        match waitid(
            Id::Pid(program),
            WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT,
        ) {
            Ok(WaitStatus::Exited(_, code)) => return Some(Ended::Exited(code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Some(Ended::Signalled(signal as i32)),
            Err(Errno::EINTR) => {}
            _ => return None,
        }
    }
}

/// Gives a program its input, as far as it reads it.
async fn feed(pipe: pipe::Sender, mut input: &[u8]) {
    while !input.is_empty() && pipe.writable().await.is_ok() {
        match pipe.try_write(input) {
            Ok(written) => input = &input[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// What is kept of an output: its beginning, its end, and how long it was.
#[derive(Debug, Default)]
struct Kept {
    begin: Vec<u8>,
    /// Of what came after `begin` was full.
    end: Vec<u8>,
    length: u64,
}

impl Kept {
    /// Reads to the end, and keeps what there is room for.
    async fn read(&mut self, pipe: pipe::Receiver) {
        let mut room = vec![0; 16 * 1024];
        while pipe.readable().await.is_ok() {
            match pipe.try_read(&mut room) {
                Ok(0) => return,
                Ok(count) => self.keep(&room[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        let (begin, rest) = bytes.split_at(bytes.len().min(OUTPUT_BYTES_MAX - self.begin.len()));
        self.begin.extend_from_slice(begin);
        self.end.extend_from_slice(rest);
        let over = self.end.len().saturating_sub(WORDS_BYTES_MAX);
        self.end.drain(..over);
    }

    /// All of it, if it was kept whole.
    fn whole(self) -> Option<Bytes> {
        (self.length <= OUTPUT_BYTES_MAX as u64).then(|| self.begin.into())
    }

    /// Its last words, without the values of these variables.
    fn words(&self, env: &[(String, String)]) -> String {
        let all = [&self.begin[..], &self.end].concat();
        let all = all.trim_ascii();
        let seen = &all[all.len().saturating_sub(WORDS_BYTES_MAX)..];
        let values = env.iter().map(|(_, value)| value.as_str());
        let words = without_secrets(String::from_utf8_lossy(seen).into_owned(), values);
        let too_many = words.chars().count().saturating_sub(WORDS_CHARS_MAX);
        words.chars().skip(too_many).collect()
    }
}

/// What a command's end means for its attempt.
fn outcome_of(said: Said, action: &CommandAction) -> Outcome {
    let words = || {
        let stderr = said.stderr.words(&action.env);
        if stderr.is_empty() {
            said.stdout.words(&action.env)
        } else {
            stderr
        }
    };
    let Some(ended) = said.ended else {
        return Outcome::Unknown;
    };
    match ended {
        Ended::Exited(0) => {
            let kept = said.stdout.whole().map(result_of);
            let fits = |text: &Bytes| text.len() <= RESULT_BYTES_MAX;
            let kept = kept.filter(|result| result.as_ref().is_none_or(fits));
            Outcome::Succeeded {
                result_dropped: kept.is_none(),
                result: kept.flatten(),
            }
        }
        Ended::Exited(code) => Outcome::Failed(failure(
            &format!("exit_{code}"),
            format!("exit code {code} {}", words()),
        )),
        Ended::Signalled(signal) => Outcome::Failed(Failure {
            in_doubt: true,
            ..failure(
                &format!("signal_{signal}"),
                format!("ended by signal {signal} {}", words()),
            )
        }),
    }
}

/// What a program wrote, as a task's result: its JSON, or its text as JSON, or nothing if it wrote nothing.
fn result_of(stdout: Bytes) -> Option<Bytes> {
    let text = stdout.trim_ascii();
    if text.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(text);
    as_json(stdout.clone()).or_else(|| serde_json::to_vec(&text).ok().map(Bytes::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ended: Ended, stdout: &[u8], stderr: &[u8]) -> Said {
        let kept = |bytes: &[u8]| {
            let mut kept = Kept::default();
            bytes.chunks(1000).for_each(|part| kept.keep(part));
            kept
        };
        Said {
            ended: Some(ended),
            stdout: kept(stdout),
            stderr: kept(stderr),
        }
    }

    fn action() -> CommandAction {
        CommandAction {
            program: "/bin/sh".to_owned(),
            args: Vec::new(),
            env: vec![("KEY".to_owned(), "s3cr3t-value".to_owned())],
            cwd: None,
        }
    }

    fn failure_of(said: Said) -> Failure {
        match outcome_of(said, &action()) {
            Outcome::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn standard_output_becomes_the_result_as_json_as_text_or_not_at_all() {
        let result =
            |stdout: &[u8]| match outcome_of(said(Ended::Exited(0), stdout, b"noise"), &action()) {
                Outcome::Succeeded {
                    result,
                    result_dropped,
                } => (result, result_dropped),
                other => panic!("{other:?}"),
            };
        let text = |text: &'static str| (Some(Bytes::from(text)), false);
        assert_eq!(result(b" {\"a\": 1}\n"), text("{\"a\": 1}"));
        assert_eq!(result(b"7\n"), text("7"));
        assert_eq!(result(b"good\nbetter\n"), text(r#""good\nbetter""#));
        assert_eq!(result(b"{\"a\""), text(r#""{\"a\"""#));
        assert_eq!(result(b"\xff"), text("\"\u{fffd}\""));
        assert_eq!(result(b""), (None, false));
        assert_eq!(result(b" \n"), (None, false));
        assert!(
            !result(&vec![b'x'; OUTPUT_BYTES_MAX - 2]).1,
            "with its quotes it fits"
        );
        assert_eq!(result(&vec![b'x'; OUTPUT_BYTES_MAX - 1]), (None, true));
        assert_eq!(result(&vec![b'x'; OUTPUT_BYTES_MAX + 1]), (None, true));
        assert_eq!(
            result(&vec![0; OUTPUT_BYTES_MAX / 2]),
            (None, true),
            "as JSON it is longer"
        );
    }

    #[test]
    fn an_exit_code_is_a_failure_with_the_last_words() {
        let long = [&[b'x'; 200_000][..], b" the end\n"].concat();
        let failure = failure_of(said(Ended::Exited(7), b"out", &long));
        assert_eq!(
            (failure.code.as_str(), failure.retryable, failure.in_doubt),
            ("exit_7", true, false)
        );
        assert!(
            failure.message.ends_with("x the end"),
            "{}",
            failure.message
        );
        assert!(failure.message.chars().count() <= "exit code 7 ".len() + WORDS_CHARS_MAX);
        let failure = failure_of(said(Ended::Exited(1), b"only out", b" \n"));
        assert_eq!(failure.message, "exit code 1 only out");
        let failure = failure_of(said(Ended::Exited(1), b"", b"key s3cr3t-value is wrong"));
        assert_eq!(failure.message, "exit code 1 key *** is wrong");
        assert_eq!(
            failure_of(said(Ended::Exited(255), b"", b"")).message,
            "exit code 255"
        );
    }

    #[test]
    fn a_signal_that_was_not_ours_leaves_it_in_doubt() {
        let failure = failure_of(said(Ended::Signalled(9), b"", b""));
        assert_eq!(
            (failure.code.as_str(), failure.in_doubt, failure.retryable),
            ("signal_9", true, true)
        );
    }

    #[test]
    fn nothing_is_run_where_commands_are_off_or_do_not_allow_it() {
        let commands = Commands::new(None, Clock::machine());
        assert_eq!(commands.check(&action()), Err(CommandRefused::Off));
    }
}
