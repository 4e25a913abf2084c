#!/usr/bin/env bash
# What test.sh looks at beside its tests: lints without the default features, and of
# examples and benches; documentation, and the tests in it. All other lints come with
# the compiling of the tests (tests/rustc.sh). The arguments are those of these tests.
#
#     tools/lints.sh CARGO_ARGUMENTS [--and CARGO_ARGUMENTS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo clippy -p tenure -p tenure-cli --no-default-features --locked -- -D warnings

TENURE_DOCUMENTATION="$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/doc"
export TENURE_DOCUMENTATION RUSTDOC="$PWD/tools/tests/rustdoc.sh"
arguments=()
for argument in "$@" --and; do
    if [ "$argument" = --and ]; then
        cargo test --no-run --examples --benches "${arguments[@]}"
        cargo test --doc "${arguments[@]}"
        arguments=()
    else
        arguments+=("$argument")
    fi
done
