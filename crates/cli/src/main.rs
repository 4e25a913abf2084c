//! The `tenure` binary.

use std::process::ExitCode;

/// It gives back what is not used any more, and takes less time.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tenure_cli::main_with(tenure::store::Registry::new())
}
