#!/bin/sh
# Stands in for rustc (RUSTC_WORKSPACE_WRAPPER) and links `tenure` statically. The
# packages that it depends on stay compiled as for the tests: only the linker has to
# know.
case " $* " in
    *' --crate-name tenure '*' --crate-type bin '*) exec "$@" -C target-feature=+crt-static ;;
esac
exec "$@"
