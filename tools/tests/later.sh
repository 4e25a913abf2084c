#!/usr/bin/env bash
# Stands in for cargo where it would run a test binary (run.sh sets
# CARGO_TARGET_…_RUNNER): writes down how, and leaves the running to run.sh.
set -euo pipefail
printf 'cd %q && export CARGO=%q CARGO_MANIFEST_DIR=%q && exec' "$PWD" "$CARGO" "$CARGO_MANIFEST_DIR" \
    >"$TENURE_LATER/$(basename "$PWD"):$(basename "$1")"
printf ' %q' "$@" >>"$TENURE_LATER/$(basename "$PWD"):$(basename "$1")"
