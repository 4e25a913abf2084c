#!/usr/bin/env bash
# Everything the project promises, tried on a bare Debian machine with Rust.
set -euo pipefail
cd "$(dirname "$0")"
cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
cargo test --workspace
# The checkers prove themselves on mistakes that only this build can make.
cargo clippy -p tenure-sim --all-targets --features planted-bugs -- -D warnings
cargo test -p tenure-sim --features planted-bugs --test planted
