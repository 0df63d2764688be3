//! The real binary, on a directory and a loopback port of its own. It can be killed, asked to stop, and started
//! again on both.

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::client::Client;
use super::{LOOK_EVERY, SOON, assert_no_blobs, pass, signal, until};

/// Ports below those that the system gives to outgoing connections, so that a restarted service finds its own
/// still free.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Longest start, in a debug build on a busy machine.
pub const START_MAX: Duration = Duration::from_secs(30);
/// Of a log, in the account of a start that failed.
const LOG_LINES_SHOWN: usize = 12;
/// The binary that Cargo built for these tests.
const BINARY: &str = env!("CARGO_BIN_EXE_duetime");

/// `duetime serve`. Speaks through its [`Client`]; dropping it kills it and looks whether it panicked.
pub struct Service {
    home: TempDir,
    data: PathBuf,
    environment: Vec<(String, String)>,
    /// The binary, or something that takes the same arguments.
    program: PathBuf,
    child: Option<Child>,
    client: Client,
}

impl Deref for Service {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Service {
    /// Started and ready, with the defaults.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Started and ready, with these environment variables.
    pub fn with(environment: &[(&str, &str)]) -> Self {
        let mut service = Self::unstarted(environment);
        service.start_again();
        service
    }

    /// Started and ready, with its data in this directory.
    pub fn with_data(data: PathBuf, environment: &[(&str, &str)]) -> Self {
        let mut service = Self::unstarted(environment);
        service.set_data(data);
        service.start_again();
        service
    }

    /// Not started yet.
    pub fn unstarted(environment: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let home = tempfile::tempdir().expect("a temporary directory");
        Self {
            data: home.path().join("data"),
            home,
            environment: environment.iter().map(own).collect(),
            program: PathBuf::from(BINARY),
            child: None,
            client: Client {
                address: free_address(),
            },
        }
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// Another data directory for the next start.
    pub fn set_data(&mut self, data: PathBuf) {
        self.data = data;
    }

    /// Another program than the binary, for the next start.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Starts the process on the same directory and port, and waits until it is ready.
    pub fn start_again(&mut self) {
        let started = self.try_start(START_MAX);
        started.unwrap_or_else(|why| panic!("{why}"));
    }

    /// The same; or says why it is not ready by then. It is gone in that case.
    pub fn try_start(&mut self, within: Duration) -> Result<(), String> {
        let address = self.client.address.to_string();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path());
        let log = log.expect("the log can be written");
        let mut command = Command::new(&self.program);
        let child = configured_by_nothing(&mut command)
            .args(["serve", "--listen", &address])
            .arg("--data")
            .arg(&self.data)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("the binary can be started"));
        let end = Instant::now() + within;
        let why = loop {
            if let Some(status) = self.is_gone() {
                break format!("the service left with {status} before it was ready");
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.client.readiness(left) {
                Ok(reply) if reply.status == 200 => return Ok(()),
                Ok(reply) if left.is_zero() => {
                    break format!("the service is not ready: {}", reply.text());
                }
                Err(error) if left.is_zero() => {
                    break format!("the service does not answer: {error}");
                }
                _ => pass(LOOK_EVERY),
            }
        };
        self.kill();
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        Err(format!("{why}\n{}", last.join("\n")))
    }

    /// How the process left, if it did by itself.
    pub fn is_gone(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        child.try_wait().expect("its status can be asked for")
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGKILL and a new start.
    pub fn kill_and_start(&mut self) {
        self.kill();
        self.start_again();
    }

    /// SIGTERM; the exit status and the time it took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let mut child = self.child.take().expect("it runs");
        let asked_at = Instant::now();
        signal(child.id(), "TERM");
        let status = until("the service leaves after SIGTERM", SOON, || {
            child.try_wait().expect("its status can be asked for")
        });
        (status, asked_at.elapsed())
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        let child = self.child.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let stdin = child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{line}")
    }

    /// Another environment variable for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// The process, while it runs.
    pub fn process_id(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// All it has logged, over all its starts.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Leaves the directory and the log where they are, for somebody to look at, and says where.
    pub fn keep(&mut self) -> PathBuf {
        self.kill();
        self.home.disable_cleanup(true);
        if !self.data.starts_with(self.home.path()) {
            let copied = Command::new("cp")
                .arg("-r")
                .arg(&self.data)
                .arg(self.home.path())
                .status();
            assert!(
                copied.is_ok_and(|status| status.success()),
                "the directory can be copied"
            );
        }
        self.home.path().to_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        let log = self.log();
        if std::thread::panicking() {
            return;
        }
        // Those of a failpoint are wanted.
        let panicked = log
            .lines()
            .any(|line| line.contains("panicked: ") && !line.contains("failpoint"));
        assert!(!panicked, "the service panicked:\n{log}");
        assert_no_blobs(&self.data);
    }
}

/// The binary with these arguments, in an environment that configures nothing.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    configured_by_nothing(&mut command)
        .args(arguments)
        .stdin(Stdio::null());
    command
}

fn configured_by_nothing(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DUETIME_") {
            command.env_remove(name);
        }
    }
    command
}

/// One service for all tests of a file that run at the same time. It is not kept in a static for good: those are
/// never dropped, and the process would stay behind.
pub struct Shared(Mutex<Weak<Service>>);

impl Shared {
    pub const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    /// The running one, or a new one.
    pub fn service(&self) -> Arc<Service> {
        let mut shared = self.0.lock();
        shared.upgrade().unwrap_or_else(|| {
            let service = Arc::new(Service::start());
            *shared = Arc::downgrade(&service);
            service
        })
    }
}

/// A loopback address that nobody listens on.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test binaries that run at the same time begin at different places.
    let start = (std::process::id() % 1000) as u16 * 10;
    let count = PORTS.end - PORTS.start;
    (0..count)
        .map(|_| (start + NEXT.fetch_add(1, Ordering::Relaxed)) % count + PORTS.start)
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .find(|address| TcpListener::bind(address).is_ok())
        .expect("one of ten thousand ports is free")
}
