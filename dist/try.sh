#!/usr/bin/env bash
# Tries a binary that is to be one static file: that it needs no shared library,
# finds hosts by name, and runs a command in office.
#
#     dist/try.sh BINARY
set -euo pipefail
binary="$1"

fail() {
    echo "dist/try.sh: $1" >&2
    exit 1
}

linked="$(ldd "$binary" 2>&1 || true)"
[[ "$linked" == *'statically linked'* || "$linked" == *'not a dynamic executable'* ]] ||
    fail "expected a static binary, found: $linked"

# A name is found (and then nobody listens on port 1), and one that is none is not.
found="$("$binary" leader x --store postgres://u@localhost:1/db 2>&1 || true)"
[[ "$found" == *refused* ]] || fail "expected localhost to be found, and to refuse: $found"
lost="$("$binary" leader x --store postgres://u@no-such-host.invalid:1/db 2>&1 || true)"
[[ "$lost" == *lookup* ]] || fail "expected an error of the name look-up, found: $lost"

place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
term="$("$binary" run try --once --quiet --store "sqlite://$place/t.db" -- sh -c 'echo $TENURE_TERM')"
[ "$term" = 1 ] || fail "expected to run a command in term 1, found: $term"
