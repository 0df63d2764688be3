//! Whatever was acknowledged outlives SIGKILL, at any moment and at each step that makes something durable.
//!
//! ```text
//!   callers, a worker ──▶ duetime serve ──▶ receiver        what was answered, started and seen
//!          │                    ✗ killed                                │
//!          └──────────────▶ started again ◀── all is looked at ──── ledger
//! ```
//!
//! After each death: nothing acknowledged is lost, no attempt has started twice or too early, ended, paused and moved
//! tasks are as they were told to be, a request without an answer is done or not, counts agree with lists.
//!
//! ```sh
//! cargo test --features failpoints --test crash                          # 60 cycles
//! cargo test --features failpoints --test crash -- --cycles 1000 --seed 7
//! ```
//!
//! The seed repeats the requests and the places of death; which of them meet is up to the machine.

#![expect(clippy::print_stdout, reason = "a program says what it does")]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

#[expect(dead_code, reason = "each program uses its part")]
mod ledger;
mod look;
mod run;
mod traffic;

use std::process::ExitCode;

const CYCLES: u64 = 60;

fn main() -> ExitCode {
    let asked = run::Asked::of("crash", CYCLES);
    asked.map_or(ExitCode::SUCCESS, |asked| asked.run(|_| {}))
}
