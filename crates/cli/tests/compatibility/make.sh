#!/usr/bin/env bash
# Makes the files that the test of this folder reads: make.sh BINARY DIRECTORY. The binary is
# a release of before; the files are kept, and never made again by a newer one.
set -euo pipefail
tenure=$(realpath "$1")
mkdir -p "$2"
cd "$2"
export HOME=$PWD/home XDG_STATE_HOME=$PWD/state
mkdir -p home state

# SQLite: one election that was resigned, in term 2, and one whose holder was
# killed, in term 1.
sqlite="sqlite://$PWD/elections.db"
for _ in 1 2; do "$tenure" run payroll --once --name a --store "$sqlite" -- true; done
"$tenure" run reports --name b --lease 5s --store "$sqlite" -- sleep 60 & run=$!
until "$tenure" leader reports --store "$sqlite" >/dev/null 2>&1; do sleep 0.1; done
kill -9 $run; pkill -9 -P $run || true

# A group with a workload, on SQLite too, whose node was drained.
group="sqlite://$PWD/group.db"
"$tenure" node --group web --name n1 --store "$group" >/dev/null 2>&1 & node=$!
until "$tenure" deploy hello --group web --store "$group" -- sh -c 'echo hello; exec sleep 600' 2>/dev/null; do sleep 0.3; done
until grep -q hello state/tenure/nodes/web/n1/logs/hello/0.log; do sleep 0.1; done
"$tenure" undeploy hello --group web --store "$group"
kill -TERM $node; wait $node || true

# A server's data directory: registers, sessions, the log, a snapshot and what
# came after it.
"$tenure" serve --id 1 --peers 1=127.0.0.1:29931 --listen 127.0.0.1:29932 --data data ${SERVE_FLAGS:-} >/dev/null 2>&1 & serve=$!
store=tenure://127.0.0.1:29932
until "$tenure" leader payroll --store $store >/dev/null 2>&1 || [ $? = 3 ]; do sleep 0.1; done
"$tenure" run payroll --once --name a --store $store -- true
for text in one two three; do "$tenure" log append $text --store $store; done
"$tenure" snapshot --store $store
"$tenure" log append four --store $store
"$tenure" run payroll --once --name a --store $store -- true
"$tenure" backup backup --store $store
kill -TERM $serve; wait $serve || true
rm -rf home
tar -czf ../files.tar.gz --sparse .
