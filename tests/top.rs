//! `duetime top`: one plain frame for pipes, and a live view that gives the terminal back.

#![expect(
    clippy::unwrap_used,
    reason = "a test may stop at what it did not expect"
)]

#[path = "support/mod.rs"]
#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};
use parking_lot::Mutex;
use serde_json::Value;

use support::service::{Service, command};
use support::{SOON, until};

fn url(service: &Service) -> String {
    format!("http://{}", service.address)
}

#[test]
fn one_frame_shows_each_part_and_each_shard() {
    let service = Service::start();
    // Standard output is no terminal here, so `--once` says nothing new.
    for arguments in [&["top"][..], &["top", "--once"]] {
        let top = command(arguments).args(["--url", &url(&service)]).output();
        let top = top.unwrap();
        assert!(top.status.success(), "{top:?}");
        let frame = String::from_utf8(top.stdout).unwrap();
        let line_of = |name: &str| {
            let line = frame.lines().find(|line| line.starts_with(name));
            line.unwrap_or_else(|| panic!("no line of {name}:\n{frame}"))
        };
        for part in ["scheduler", "shard-00", "shard-01"] {
            let line = line_of(part);
            assert!(line.contains("running") && line.contains("live"), "{line}");
        }
        assert!(line_of("SHARD").contains("EPOCH"), "{frame}");
        assert!(!frame.contains('\u{1b}'), "{frame:?}");
    }
    let top = command(&["top", "--json", "--url", &url(&service)]).output();
    let told: Value = serde_json::from_slice(&top.unwrap().stdout).unwrap();
    let shards = told["shards"]["items"].as_array().unwrap().len();
    assert!(shards >= 2 && told["actors"]["items"].as_array().unwrap().len() > shards);
}

#[test]
fn without_a_service_one_frame_fails_and_says_what_to_do() {
    let top = command(&["top", "--once", "--url", "http://127.0.0.1:9"]).output();
    let top = top.unwrap();
    assert_eq!(top.status.code(), Some(1));
    let told = String::from_utf8(top.stderr).unwrap();
    assert!(
        told.contains("cannot look at the parts of the service"),
        "{told}"
    );
}

fn ended(child: &mut Child) -> ExitStatus {
    until("top leaves", SOON, || child.try_wait().unwrap())
}

#[test]
fn the_live_view_follows_the_service_and_gives_the_terminal_back() {
    let mut service = Service::start();
    for (leave, is_plain) in [(&b"q"[..], true), (b"\x03", false)] {
        let size = Winsize {
            ws_row: 60,
            ws_col: 160,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut top = command(&["top", "--url", &url(&service)]);
        top.stdin(end()).stdout(end()).stderr(Stdio::null());
        let mut top = match is_plain {
            true => top.env("NO_COLOR", "1").spawn().unwrap(),
            false => top.env_remove("NO_COLOR").spawn().unwrap(),
        };
        let drawn = Arc::new(Mutex::new(String::new()));
        let (mut from, to) = (File::from(pty.master.try_clone().unwrap()), drawn.clone());
        // Ends when the last of this terminal's other side is closed.
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut piece) {
                to.lock()
                    .push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        });
        let shows = |words: &str| {
            until(words, SOON, || drawn.lock().contains(words).then_some(()));
        };
        shows("\u{1b}[?1049h");
        shows("shard-01");
        let local = || tcgetattr(&pty.slave).unwrap().local_flags;
        assert!(!local().intersects(LocalFlags::ICANON | LocalFlags::ECHO));
        if is_plain {
            service.kill();
            shows("cannot connect to");
            drawn.lock().clear();
            service.start_again();
            shows("all well");
        }
        File::from(pty.master.try_clone().unwrap())
            .write_all(leave)
            .unwrap();
        assert!(ended(&mut top).success());
        shows("\u{1b}[?1049l");
        assert!(local().contains(LocalFlags::ICANON | LocalFlags::ECHO));
        assert_eq!(drawn.lock().contains("\u{1b}[38;5;"), !is_plain);
    }
}
