//! What the process says about itself while it runs: log lines on standard error, as text or as JSON.
//!
//! Standard output stays free for what commands answer. A panic is one log line like any other, with thread,
//! message and place; the watchdog says separately what it did about it.
//!
//! Logging never harms the service: a standard error that nobody reads any more loses lines, nothing else.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;

use tracing::Dispatch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogConfig, LogFormat};
use crate::panics::{panicked, words_of};

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not made of `level` and `target=level`. A loaded configuration has checked this before.
    #[error("cannot read the log level")]
    Filter(#[from] ParseError),
    /// Somebody, perhaps this function, has set up logging for this process before.
    #[error("logging is set up already")]
    Twice(#[source] TryInitError),
}

/// Sends the log of the whole process to standard error, panics included. Once per process: a second call
/// changes nothing and is an error.
pub fn init(log: &LogConfig) -> Result<(), TelemetryError> {
    let colours = log.format == LogFormat::Text && io::stderr().is_terminal();
    subscriber(log, colours, io::stderr)?
        .try_init()
        .map_err(TelemetryError::Twice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// The subscriber that `log` asks for, writing to `writer`.
fn subscriber<W>(log: &LogConfig, colours: bool, writer: W) -> Result<Dispatch, ParseError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(log.level.as_str())?)
        .with_writer(writer)
        .with_ansi(colours)
        // A failed write would be reported on standard error, and panic there when that is what failed.
        .log_internal_errors(false);
    Ok(match log.format {
        LogFormat::Text => builder.into(),
        LogFormat::Json => builder.json().flatten_event(true).into(),
    })
}

/// Takes the place of the standard library's print, so that a panic is told once, in the log's own format.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    // Only with RUST_BACKTRACE, as ever.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    tracing::error!(
        thread = thread.name().unwrap_or("unnamed"),
        location = panic.location().map(tracing::field::display),
        backtrace = backtrace.map(tracing::field::display),
        "{}",
        panicked(words_of(panic.payload()))
    );
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use std::process::Command;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::dispatcher::with_default;

    use super::*;
    use crate::config::{LogConfig, LogFilter};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: &str) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let level = LogFilter::parse(level).unwrap();
        let dispatch =
            subscriber(&LogConfig { format, level }, false, move || writer.clone()).unwrap();
        with_default(&dispatch, || {
            tracing::info!(shard = 7, "started");
            tracing::debug!(target: "wheel", "turned");
        });
        let bytes = lines.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_level_decides_what_is_logged() {
        let text = logged(LogFormat::Text, "info");
        assert!(
            text.contains("started") && text.contains("shard=7"),
            "{text}"
        );
        assert!(!text.contains("turned"), "{text}");
        let text = logged(LogFormat::Text, "warn,wheel=debug");
        assert!(
            text.contains("turned") && !text.contains("started"),
            "{text}"
        );
    }

    #[test]
    fn a_json_log_is_one_object_per_line() {
        let text = logged(LogFormat::Json, "info");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "started");
        assert_eq!(line["shard"], 7);
        assert_eq!(line["level"], "INFO");
    }

    /// Sets up the whole process, so it runs in one of its own; see below.
    #[test]
    #[ignore = "run by a_panic_is_logged_once_with_its_thread_and_place"]
    fn in_a_process_of_its_own() {
        let log = LogConfig {
            format: LogFormat::Json,
            ..LogConfig::default()
        };
        init(&log).unwrap();
        assert!(matches!(init(&log), Err(TelemetryError::Twice(_))));
        let shard = std::thread::Builder::new().name("shard-00".to_owned());
        let died = shard
            .spawn(|| panic!("the wheel lost {} teeth", 3))
            .unwrap()
            .join();
        assert!(died.is_err());
    }

    /// The test above, in a child process.
    fn own_process() -> Command {
        let (_crate, here) = module_path!().split_once("::").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", &format!("{here}::in_a_process_of_its_own")])
            .args(["--ignored", "--nocapture"])
            .env_remove("RUST_BACKTRACE")
            .env_remove("RUST_LIB_BACKTRACE");
        child
    }

    #[test]
    fn a_panic_is_logged_once_with_its_thread_and_place() {
        let output = own_process().output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        assert_eq!(
            errors.matches("the wheel lost 3 teeth").count(),
            1,
            "{errors}"
        );
        let line = errors.lines().find(|line| line.contains("teeth")).unwrap();
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["message"], "panicked: the wheel lost 3 teeth");
        assert_eq!(line["thread"], "shard-00");
        assert!(
            line["location"].as_str().unwrap().contains("telemetry.rs:"),
            "{line}"
        );
        assert!(line.get("backtrace").is_none(), "{line}");
    }

    #[test]
    fn a_log_that_nobody_reads_harms_nothing() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = own_process().stderr(writer).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
