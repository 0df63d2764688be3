//! The real binary, on a directory and a loopback port of its own. It can be killed, asked to stop, and started
//! again on both.

use std::fs::File;
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
use super::{SOON, until};

/// Ports below those that the system gives to outgoing connections, so that a restarted service finds its own
/// still free.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Longest start, in a debug build on a busy machine.
const START_MAX: Duration = Duration::from_secs(30);
/// The binary that Cargo built for these tests.
const BINARY: &str = env!("CARGO_BIN_EXE_duetime");

/// `duetime serve`. Speaks through its [`Client`]; dropping it kills it and looks whether it panicked.
pub struct Service {
    home: TempDir,
    data: PathBuf,
    environment: Vec<(String, String)>,
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
        let home = tempfile::tempdir().expect("a temporary directory");
        let data = home.path().join("data");
        Self::begin(home, data, environment)
    }

    /// Started and ready, with its data in this directory.
    pub fn with_data(data: PathBuf, environment: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        Self::begin(home, data, environment)
    }

    fn begin(home: TempDir, data: PathBuf, environment: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut service = Self {
            home,
            data,
            environment: environment.iter().map(own).collect(),
            child: None,
            client: Client {
                address: free_address(),
            },
        };
        service.start_again();
        service
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// Starts the process on the same directory and port, and waits until it is ready.
    pub fn start_again(&mut self) {
        let address = self.client.address.to_string();
        let data = self.data();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path());
        let log = log.expect("the log can be written");
        let mut command = command(&["serve", "--listen", &address]);
        let child = command
            .arg("--data")
            .arg(data)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.home.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("the binary can be started"));
        until("the service is ready", START_MAX, || {
            let child = self.child.as_mut().expect("it was started above");
            if let Some(status) = child.try_wait().expect("its status can be asked for") {
                panic!(
                    "the service left with {status} before it was ready:\n{}",
                    self.log()
                );
            }
            let reply = self.client.send("GET", "/readyz", &[], b"").ok()?;
            (reply.status == 200).then_some(())
        });
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
        let told = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status();
        assert!(
            told.is_ok_and(|status| status.success()),
            "SIGTERM can be sent"
        );
        let status = until("the service leaves after SIGTERM", SOON, || {
            child.try_wait().expect("its status can be asked for")
        });
        (status, asked_at.elapsed())
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
        assert!(!log.contains("panicked at"), "the service panicked:\n{log}");
    }
}

/// The binary with these arguments, in an environment that configures nothing.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).stdin(Stdio::null());
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
