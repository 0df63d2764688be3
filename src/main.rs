//! The `duetime` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    duetime::cli::run()
}
