//! A wall clock for one process, moved while that runs: a small library that is loaded before the C library's own, made
//! with the compiler that Rust links with anyway.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use tempfile::TempDir;

use crate::support::now_ms;

const SOURCE: &str = include_str!("wall_clock.c");
const NS_PER_MS: i64 = 1_000_000;

/// See the module's header.
pub struct WallClock {
    home: TempDir,
    ahead: File,
    ahead_ms: i64,
}

impl WallClock {
    /// One that shows what the machine's does.
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let source = home.path().join("wall_clock.c");
        std::fs::write(&source, SOURCE).expect("the source is written");
        let made = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(home.path().join("wall_clock.so"))
            .arg(&source)
            .status();
        let made = made.unwrap_or_else(|why| {
            panic!("cc: {why}; install a C compiler: Rust needs it as its linker, and this test to move a clock")
        });
        assert!(
            made.success(),
            "cc makes a library of tests/clocks/wall_clock.c"
        );
        let ahead = File::create_new(home.path().join("ahead")).expect("a file");
        let clock = Self {
            home,
            ahead,
            ahead_ms: 0,
        };
        clock.show();
        clock
    }

    /// What a process must be started with to have this clock.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let path = |name| self.home.path().join(name).display().to_string();
        [
            ("LD_PRELOAD", path("wall_clock.so")),
            ("WALL_CLOCK_AHEAD", path("ahead")),
        ]
    }

    /// Forth, or back.
    pub fn step(&mut self, ms: i64) {
        self.ahead_ms += ms;
        self.show();
    }

    /// What it shows, in milliseconds of Unix time.
    pub fn now_ms(&self) -> i64 {
        self.shown_at(now_ms())
    }

    /// What it shows, as it stands, when the machine's shows this.
    pub fn shown_at(&self, machine_ms: i64) -> i64 {
        machine_ms + self.ahead_ms
    }

    fn show(&self) {
        let ns = self.ahead_ms * NS_PER_MS;
        let written = self.ahead.write_all_at(&ns.to_ne_bytes(), 0);
        written.expect("the file can be written");
    }
}
