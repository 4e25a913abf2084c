#!/usr/bin/env bash
# Builds and runs the tests that `cargo test --lib --bins --tests` with these
# arguments would run (those of `--test NAME` alone where that is among them), several
# binaries at a time: most tests wait for leases, elections and the ends of processes,
# and cargo runs one binary after the other. Tests that need the machine for themselves
# run last, one by one.
#
#     tools/tests/run.sh -p tenure-cli --features full
#
# After `--and` come the arguments of another build, whose tests run with those of the
# first.
#
# As many binaries run at the same time as there are processors, or as
# TENURE_TESTS_TOGETHER says, and beside them one of those that mostly wait. Each
# runs as many of its tests at a time as there are processors. What then is left of
# the processors goes to the command in TENURE_TESTS_BESIDE, which fails as a test does,
# and to the simulators.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
together="${TENURE_TESTS_TOGETHER:-$(nproc)}"

# These take longest and begin first, or the others would end before them.
first=(
    cli:all tenure:all cli:faults server:cluster server:wal cli:lost tenure:postgres
)
# These take long and use less than half of a processor.
waiting=(
    cli:agent cli:ha cli:failover tenure:heartbeats
)
# These wait for nothing but processors.
computing=(
    sim:seeds sim:model sim:ha sim:planted alpo:all
)
# These attack a server until it is busy, or measure times that other tests would
# lengthen. The first few leave processors to what runs at low priorities.
alone=(
    cli:chaos cli:distant tenure:many cli:quota
)
alone_and_busy=(
    cli:crowd cli:denial cli:given_up cli:handshakes cli:memory cli:stalled cli:watched
)
for name in "${first[@]}" "${waiting[@]}" "${computing[@]}" "${alone[@]}" "${alone_and_busy[@]}"; do
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
        case " ${build[*]} " in
            *' --test '*) cargo test "${build[@]}" ;;
            *) cargo test --lib --bins --tests "${build[@]}" ;;
        esac
        build=()
    else
        build+=("$argument")
    fi
done
unset "CARGO_TARGET_${host}_RUNNER"

# Floods of ports and storms are tests of a binary whose others need no machine for
# themselves.
for job in "$TENURE_LATER"/cli:faults-*; do
    [ -e "$job" ] || continue
    cp "$job" "${job/:faults-/:floods-}"
    printf ' --skip ports:: --skip storms::' >>"$job"
    printf ' ports:: storms::' >>"${job/:faults-/:floods-}"
done

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
# At this priority, below that of what waits for leases and for answers in time.
run_beside() {
    local seconds="${TENURE_TESTS_SECONDS:-2400}"
    sed '/^$/d' | TENURE_TESTS_SECONDS="$seconds" nice -n "$1" xargs -r -d '\n' -n 1 -P 1 "$here/one.sh"
}
all="$(ls "$TENURE_LATER")"
early="$(of "${first[@]}")"
slow="$(of "${waiting[@]}")"
beside="$(of "${computing[@]}")"
late="$(of "${alone[@]}" cli:floods)"
last="$(of "${alone_and_busy[@]}")"
others="$(grep -vxF -e "$early" -e "$slow" -e "$beside" -e "$late" -e "$last" <<<"$all" || true)"
compiles=''
if [ -n "${TENURE_TESTS_BESIDE:-}" ]; then
    compiles='beside:lints-'
    printf 'exec %s\n' "$TENURE_TESTS_BESIDE" >"$TENURE_LATER/$compiles"
fi
# What compiles cannot use all processors to its end, and what simulates can. So the
# former is to end first.
run_beside 16 <<<"$compiles" &
background=("$!")
run_beside 19 <<<"$beside" &
background+=("$!")
run 1 <<<"$slow" &
waits=$!
printf '%s\n' "$early" "$others" | run "$together"
wait "$waits"
run 1 <<<"$late"
for one in "${background[@]}"; do wait "$one"; done
run 1 <<<"$last"

if [ -e "$TENURE_LATER/failed" ]; then
    printf '\nfailed: %s\n' "$(sort "$TENURE_LATER/failed" | paste -sd ' ')" >&2
    exit 1
fi
