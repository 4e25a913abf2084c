#!/usr/bin/env bash
# Lints without the default features and with all, and the documentation. Those with
# the default features, which are between these, are in ./check.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo clippy -p tenure -p tenure-cli --no-default-features --locked -- -D warnings
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
# With all features, as docs.rs has it and as the lints have compiled them.
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --all-features --no-deps --locked
