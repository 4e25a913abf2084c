#!/usr/bin/env bash
# A leader's script that is stopped in mid command, and its successor, by
# `tenure fence`. Prints what happens. `crates/cli/tests/fence.rs` runs it.
#
#     TENURE_BINARY=target/debug/tenure examples/fences/shell.sh
set -euo pipefail

tenure="${TENURE_BINARY:-tenure}"
place="$(mktemp -d)"
group=
end() {
    if [ -n "$group" ]; then kill -KILL -- "-$group" 2>/dev/null || true; fi
    rm -rf "$place"
}
trap end EXIT

fail() {
    echo "shell.sh: $1" >&2
    exit 1
}
say() {
    printf '%s\n' "$*"
}

# What a leader runs: it reads the ledger, takes a while, and writes by what it
# has read. `$place/go` lets one go on that is to take a while.
cat >"$place/pay" <<'SCRIPT'
#!/bin/sh
place=$1 term=$2
found=$(wc -l <"$place/ledger")
if [ "${SLOW-}" ]; then
    echo "$$" >"$place/started"
    read -r _ <"$place/go"
fi
echo "term $term: payment $((found + 1))" >>"$place/ledger"
SCRIPT
chmod +x "$place/pay"
: >"$place/ledger"
mkfifo "$place/go"

# pay TERM [FLAGS]
pay() {
    local term="$1"; shift
    "$tenure" fence --mark "$place/mark" --term "$term" "$@" -- "$place/pay" "$place" "$term"
}

say '# the leader of term 7 is stopped in mid command'
SLOW=1 pay 7 2>/dev/null &
until [ -s "$place/started" ]; do sleep 0.02; done
# Its fifth field: `tenure fence` leads a process group of its own.
group="$(cut -d ' ' -f 5 "/proc/$(cat "$place/started")/stat")"
kill -STOP -- "-$group"

say '# the leader of term 8 waits for half a second'
code=0; pay 8 --wait 500ms 2>"$place/said" || code=$?
sed "s,$place/,,g" "$place/said"
say "exit code $code; the ledger has $(wc -l <"$place/ledger") lines"
[ "$code" = 1 ] || fail "expected that the successor has no turn (1), found $code"

say '# it kills the process group of the one that is stopped'
pay 8 --wait 500ms --kill 2>"$place/said"
sed "s,$place/,,g" "$place/said"
cat "$place/ledger"
[ "$(cat "$place/ledger")" = 'term 8: payment 1' ] || fail 'expected the line of term 8 alone'
wait || true
group=

say '# another command of term 7 is refused'
code=0; pay 7 2>"$place/said" || code=$?
sed "s,$place/,,g" "$place/said"
say "exit code $code; the mark is: $(cat "$place/mark")"
[ "$code" = 1 ] || fail "expected that term 7 is refused (1), found $code"
[ "$(wc -l <"$place/ledger")" = 1 ] || fail 'expected one line in the ledger'
