//! The whole command line of `tenure`, with stores at `etags://host:port` too.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_cli::main_with(http_registers::registry())
}
