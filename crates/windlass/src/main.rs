//! The `windlass` command.

use std::process::ExitCode;

/// Facts are made by the loop and freed by the log's writer: an allocator that takes memory back from another thread
/// without a lock gives a quarter more steps a second (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    windlass::cli::main()
}
