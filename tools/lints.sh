#!/usr/bin/env bash
# Lints without the default features and with all, and the documentation. Those with
# the default features, which are between these, are in ./check.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo clippy -p tenure -p tenure-cli --no-default-features --locked -- -D warnings
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
# With all features, as docs.rs has it. What the lints have checked is not checked again
# for it: cargo finds the same compiler with the same arguments, which `cargo clippy`
# sets, and with examples among the targets the same features of what is depended on.
RUSTC_WORKSPACE_WRAPPER="$(rustc --print sysroot)/bin/clippy-driver"
export RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --lib --examples --all-features --no-deps --locked
