#!/usr/bin/env bash
# Searches for bytes that break a promise (crates/server/src/fuzzed/mod.rs):
#
#     fuzz/run.sh [TARGET…] [SECONDS]
#
# All targets, 600 seconds each, if nothing else is said. What is found to
# break a promise lies in fuzz/found/TARGET/; whatever reaches code that
# nothing in the corpus reaches is added to fuzz/corpus/TARGET/, which the
# tests replay. Needs a C++ compiler, for libFuzzer; Rust is stable Rust.
# JOBS is how many targets are tried at the same time (the processors).
set -euo pipefail
cd "$(dirname "$0")"

seconds=600
targets=()
for word in "$@"; do
    case "$word" in
    *[!0-9]*) targets+=("$word") ;;
    *) seconds=$word ;;
    esac
done
if [ ${#targets[@]} = 0 ]; then
    mapfile -t targets < <(cd corpus && printf '%s\n' *)
fi
for target in "${targets[@]}"; do
    if [ ! -d "corpus/$target" ]; then
        printf 'expected one of: %s; found %s\n' "$(cd corpus && echo *)" "$target" >&2
        exit 2
    fi
done

# What cargo-fuzz would say to the compiler, but for the sanitizers, which
# need a nightly one: nothing here is unsafe.
flags='--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module'
for flag in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage-$flag"
done
host=$(rustc -vV | sed -n 's/^host: //p')
# With a target named, the flags are not for build scripts and macros.
RUSTFLAGS=$flags cargo build --release --locked --target "$host" --bin fuzz
binary="${CARGO_TARGET_DIR:-target}/$host/release/fuzz"

search() {
    local target=$1 new
    new=$(mktemp -d)
    mkdir -p "found/$target"
    local status=0
    TENURE_FUZZ=$target "$binary" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
        -max_len=8192 -print_final_stats=1 -artifact_prefix="found/$target/" \
        "$new" "corpus/$target" >"found/$target/log" 2>&1 || status=$?
    # As few files as reach what nothing in the corpus reaches. How often it is
    # reached does not count: that would keep ten times as many.
    TENURE_FUZZ=$target "$binary" -set_cover_merge=1 -use_counters=0 \
        -artifact_prefix="found/$target/" "corpus/$target" "$new" >/dev/null 2>&1 || status=$?
    rm -r "$new"
    local runs
    runs=$(sed -n 's/^stat::number_of_executed_units: //p' "found/$target/log")
    printf '%s: %s inputs, %s in the corpus, exit code %s (fuzz/found/%s/log)\n' \
        "$target" "${runs:-?}" "$(find "corpus/$target" -type f | wc -l)" "$status" "$target"
    return "$status"
}

failed=0
running=0
for target in "${targets[@]}"; do
    if [ "$running" -ge "${JOBS:-$(nproc)}" ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    search "$target" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit "$failed"
