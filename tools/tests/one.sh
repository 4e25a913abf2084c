#!/usr/bin/env bash
# Runs one test binary that later.sh wrote down. When it ends, prints all that
# it said, and how long it took in true time and in that of processors. One that
# does not end within TENURE_TESTS_SECONDS is killed with the processes that it
# started, and fails: of its tests, those hung that have no result.
set -euo pipefail
job="$TENURE_LATER/$1"
# So that one that hangs is known.
printf '%s\n' "begun: ${1%-*}"
code=0
TIMEFORMAT='%1R s, processors %1U s, system %1S s'
limit="${TENURE_TESTS_SECONDS:-900}"
took="$({ time timeout --kill-after=10 "$limit" bash "$job" >"$job.said" 2>&1; } 2>&1)" || code=$?
[ "$code" != 124 ] || took="did not end within $limit s, $took"
[ "$code" = 0 ] || printf '%s\n' "${1%-*}" >>"$TENURE_LATER/failed"
# One write, because others end at the same time.
printf '\n--- %s: %s\n%s\n' "${1%-*}" "$took" "$(cat "$job.said")"
