#!/usr/bin/env bash
# Everything the project promises, tried on a bare Debian machine with Rust.
set -euo pipefail
cd "$(dirname "$0")"
cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
cargo test --workspace
