#!/usr/bin/env bash
# Builds and runs the tests that `cargo test --lib --bins --tests` with these
# arguments would run, several binaries at a time: most tests wait for leases,
# elections and the ends of processes, and cargo runs one binary after the
# other. Tests that need the machine for themselves run last, one by one.
#
#     tools/tests/run.sh -p tenure-cli --features full
#
# After `--and` come the arguments of another build, whose tests run with those of the
# first.
#
# As many binaries run at the same time as there are processors, or as
# TENURE_TESTS_TOGETHER says, and beside them one of those that mostly wait. Each
# runs as many of its tests at a time as there are processors. What then is left of
# the processors goes to the program that TENURE_TESTS_BESIDE names; it fails as a
# test does.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
together="${TENURE_TESTS_TOGETHER:-$(nproc)}"

# These take longest and begin first, or the others would end before them.
first=(
    cli:all tenure:all cli:faults server:cluster server:wal cli:lost tenure:postgres sim:ha
    sim:seeds sim:planted sim:model alpo:all alpo:trio
)
# These take long and use less than half of a processor.
waiting=(
    cli:agent cli:ha cli:failover tenure:heartbeats
)
# These attack a server until it is busy, or measure times that other tests would
# lengthen. The first few mostly wait, so what runs at the lowest priority may go on.
alone=(
    cli:distant tenure:many cli:quota
)
alone_and_busy=(
    cli:crowd cli:denial cli:given_up cli:handshakes cli:memory cli:stalled cli:watched
)
for name in "${first[@]}" "${waiting[@]}" "${alone[@]}" "${alone_and_busy[@]}"; do
    tests="$here/../../crates/${name%:*}/tests/${name#*:}"
    [ -e "$tests.rs" ] || [ -e "$tests/main.rs" ] ||
        { echo "tools/tests/run.sh: expected tests in $tests.rs, found none" >&2; exit 1; }
done

TENURE_LATER="$(mktemp -d)"
export TENURE_LATER
trap 'rm -rf "$TENURE_LATER"' EXIT
host="$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')"
export "CARGO_TARGET_${host}_RUNNER=$here/later.sh"
build=()
for argument in "$@" --and; do
    if [ "$argument" = --and ]; then
        cargo test --lib --bins --tests "${build[@]}"
        build=()
    else
        build+=("$argument")
    fi
done
unset "CARGO_TARGET_${host}_RUNNER"

# Those with these names that are to run.
of() {
    local name
    for name in "$@"; do
        (cd "$TENURE_LATER" && compgen -G "$name-*") || true
    done
}
run() {
    sed '/^$/d' | xargs -r -d '\n' -n 1 -P "$1" "$here/one.sh"
}
all="$(ls "$TENURE_LATER")"
late="$(of "${alone[@]}")"
last="$(of "${alone_and_busy[@]}")"
early="$(of "${first[@]}")"
beside="$(of "${waiting[@]}")"
others="$(grep -vxF -e "$early" -e "$beside" -e "$late" -e "$last" <<<"$all" || true)"
background=
if [ -n "${TENURE_TESTS_BESIDE:-}" ]; then
    name="beside:$(basename "$TENURE_TESTS_BESIDE")-"
    printf 'exec nice -n 19 %q\n' "$TENURE_TESTS_BESIDE" >"$TENURE_LATER/$name"
    TENURE_TESTS_SECONDS="${TENURE_TESTS_SECONDS:-2400}" run 1 <<<"$name" &
    background=$!
fi
run 1 <<<"$beside" &
waits=$!
printf '%s\n' "$early" "$others" | run "$together"
wait "$waits"
run 1 <<<"$late"
[ -z "$background" ] || wait "$background"
run 1 <<<"$last"

if [ -e "$TENURE_LATER/failed" ]; then
    printf '\nfailed: %s\n' "$(sort "$TENURE_LATER/failed" | paste -sd ' ')" >&2
    exit 1
fi
