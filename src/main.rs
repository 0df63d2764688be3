//! The `duetime` binary.

use std::process::ExitCode;

#[cfg(feature = "fast-alloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    duetime::cli::run()
}
