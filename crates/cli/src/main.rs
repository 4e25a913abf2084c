//! The `tenure` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_cli::main_with(tenure::store::Registry::new())
}
