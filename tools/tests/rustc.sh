#!/usr/bin/env bash
# Stands in for rustc (RUSTC_WORKSPACE_WRAPPER) where test.sh compiles.
#
# With TENURE_LINTS, tests, examples and benches are compiled by clippy, which is rustc
# and lints; the tests of a library are all of it. So nothing is compiled once more for
# its lints. What is under test is compiled by rustc. Warnings are errors of both; clippy
# takes that from CLIPPY_ARGS, as `cargo clippy` sets it.
#
# `tenure` is linked statically. The packages that it depends on stay compiled as for the
# tests: only the linker has to know. (In bash: other shells drop variables with a `-`,
# such as CARGO_BIN_EXE_http-registers.)
case " $* " in
    *' --crate-name tenure '*' --crate-type bin '*) set -- "$@" -C target-feature=+crt-static ;;
esac
[ -n "${TENURE_LINTS:-}" ] || exec "$@"
case " $* " in
    *' --test '* | *'/examples/'*'.rs '* | *'/benches/'*'.rs '*)
        exec "$(dirname "$1")/clippy-driver" "$@" ;;
esac
exec "$@" -D warnings
