#!/usr/bin/env bash
# Stands in for rustc (RUSTC_WORKSPACE_WRAPPER) and links `tenure` statically. The
# packages that it depends on stay compiled as for the tests: only the linker has to
# know. (In bash: other shells drop variables with a `-`, such as CARGO_BIN_EXE_http-registers.)
case " $* " in
    *' --crate-name tenure '*' --crate-type bin '*) exec "$@" -C target-feature=+crt-static ;;
esac
exec "$@"
