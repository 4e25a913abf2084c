#!/usr/bin/env bash
# Tries elect.py against a cluster of three: two candidates, one of which is
# killed, what they wrote to the log, and `tenure` asking the other to resign.
# Needs PyPI; without it there is nothing to try, and that is said.
set -euo pipefail
cd "$(dirname "$0")/../.."

place="$(mktemp -d)"
pids=()
end() {
    { kill "${pids[@]}"; wait "${pids[@]}"; } 2>/dev/null || true
    rm -rf "$place"
}
trap end EXIT

fail() {
    echo "examples/python/test.sh: $1" >&2
    tail -n 5 "$place"/*.out >&2 || true
    exit 1
}

if ! python3 -m venv "$place/venv" >/dev/null 2>&1 ||
    ! timeout 60 "$place/venv/bin/pip" install -q -r examples/python/requirements.txt >"$place/pip.out" 2>&1; then
    echo 'skipped: no Python with venv, or PyPI cannot be reached'
    exit 0
fi
"$place/venv/bin/python" -m grpc_tools.protoc -I crates/api/proto \
    --python_out="$place" --grpc_python_out="$place" tenure/v1/tenure.proto

tenure="${TENURE_BINARY:-}"
if [ -z "$tenure" ]; then
    cargo build -q --locked -p tenure-cli
    tenure="${CARGO_TARGET_DIR:-target}/debug/tenure"
fi
port=$((20000 + $$ % 8000))
# The token of the user is one of this test alone.
export XDG_STATE_HOME="$place/state"
"$tenure" dev --port "$port" >"$place/dev.out" 2>&1 &
pids+=($!)
servers="127.0.0.1:$port,127.0.0.1:$((port + 1)),127.0.0.1:$((port + 2))"
export TENURE_STORE="tenure://$servers"

# Waits until a command succeeds: SECONDS, then the command.
within() {
    local until=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || fail "expected in time: $*"
        sleep 0.1
    done
}
candidate() {
    PYTHONPATH="$place" "$place/venv/bin/python" examples/python/elect.py "$servers" demo \
        --name "$1" --lease 5 \
        --token-file "$XDG_STATE_HOME/tenure/token" >"$place/$1.out" 2>&1 &
    pids+=($!)
    started=$!
}

within 60 "$tenure" status
candidate one; first=$started
within 60 grep -q 'one leads in term 1, says entry 1' "$place/one.out"
# Not by `grep -q`: it ends at the first match, and so does who still writes.
led="$("$tenure" leader demo)"
[[ "$led" == *one* ]] || fail "expected that tenure knows who leads, found: $led"
candidate two
{ kill -9 "$first"; wait "$first"; } 2>/dev/null || true
within 60 grep -q 'two leads in term 2, says entry 2' "$place/two.out"
id="$("$tenure" leader demo --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["leader_id"])')"
"$tenure" resign demo --leader-id "$id" >/dev/null
within 60 grep -q 'two leads no more' "$place/two.out"
code=0; "$tenure" leader demo >/dev/null || code=$?
[ "$code" = 3 ] || fail "expected a vacant election (3), found $code"
log="$("$tenure" log read)"
[ "$log" = $'one leads in term 1\ntwo leads in term 2' ] || fail "expected two entries, found: $log"
# And the other way round: what tenure's candidates left is understood.
term="$("$tenure" run demo --once --quiet -- sh -c 'echo "$TENURE_TERM"')"
[ "$term" = 3 ] || fail "expected term 3, found $term"
candidate three
within 60 grep -q 'three leads in term 4, says entry 3' "$place/three.out"
echo "elected 4 times, in ${SECONDS}s"
