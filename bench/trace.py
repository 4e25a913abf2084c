#!/usr/bin/env python3
"""Where the time of one durable write goes.

Starts three private servers on the loopback interface and one client that
writes register after register, records their system calls with `perf` (which
needs root, or kernel.perf_event_paranoid=-1 and a readable tracefs), and cuts
each request at the calls it cannot do without: it arrives at the leader,
leaves for the followers, arrives there, is written, is on the disk, is
reported, is answered. What is told is the median of each stretch over all
requests that show every step, on the path of the follower that answered
first. Recording costs a few microseconds a call.

    bench/trace.py --tenure target/release/tenure [--seconds 2]

Where the data is: $TMPDIR, which must be on a disk for figures that mean
anything.
"""

import argparse
import os
import re
import statistics
import subprocess
import tempfile
import time

from outages import Tenure

CALLS = {
    "enter": ["writev", "sendto", "pwrite64", "fdatasync"],
    "exit": ["recvfrom", "fdatasync"],
}
LINE = re.compile(r"\s*\S+\s+(\d+)/\d+\s+([\d.]+):\s+syscalls:sys_(enter|exit)_(\w+):\s+(.*)")
STRETCHES = [
    "client sends until the leader has it",
    "leader decides and sends it to the first follower",
    "on its way to the follower that answers first",
    "follower checks it and begins to write",
    "written and synced there",
    "follower says so",
    "on its way back to the leader",
    "leader counts a majority, applies it, answers",
    "on its way to the client",
]


def record(seconds, pids, place):
    events = [f"syscalls:sys_{side}_{call}" for side, calls in CALLS.items() for call in calls]
    data = os.path.join(place, "perf.data")
    subprocess.run(
        ["perf", "record", "-q", "-o", data, "-e", ",".join(events), "-p", ",".join(map(str, pids)),
         "--", "sleep", str(seconds)], check=True, capture_output=True)
    text = subprocess.run(
        ["perf", "script", "-i", data, "-F", "comm,pid,tid,time,event,trace"],
        check=True, capture_output=True, text=True).stdout
    found = filter(None, map(LINE.match, text.splitlines()))
    # Of what was received, only what there was.
    events = [(float(at) * 1e6, int(pid), f"{side} {call}", rest) for pid, at, side, call, rest in
              (one.groups() for one in found)]
    return sorted(event for event in events if not is_empty(*event[2:]))


def is_empty(what, rest):
    value = rest.split()[0] if rest else "0"
    return what == "exit recvfrom" and int(value, 16) in range(1 << 31, 1 << 64)


def steps(request, client, leader, followers):
    """The times at which a request took each step, or None if one is missing;
    and when the leader had it on its own disk."""
    def first(pid, what, after):
        return next((at for at, who, did, _ in request if who == pid and did == what and at >= after), None)

    def walk(path, start):
        times = [start]
        for pid, what in path:
            at = first(pid, what, times[-1])
            if at is None:
                return None
            times.append(at)
        return times

    begin = walk([(leader, "exit recvfrom"), (leader, "enter sendto")], request[0][0])
    paths = [
        walk([(it, "exit recvfrom"), (it, "enter pwrite64"), (it, "exit fdatasync"), (it, "enter sendto"),
              (leader, "exit recvfrom"), (leader, "enter writev"), (client, "exit recvfrom")], begin[-1])
        for it in followers
    ] if begin else []
    paths = [path for path in paths if path]
    if not paths:
        return None
    quickest = min(paths, key=lambda path: path[4])
    own = walk([(leader, "enter pwrite64"), (leader, "exit fdatasync")], begin[0])
    return begin + quickest[1:], own and own[-1] - begin[0]


def main():
    options = argparse.ArgumentParser(description="Where the time of one durable write goes.")
    options.add_argument("--tenure", required=True, help="the binary")
    options.add_argument("--seconds", type=float, default=2.0, help="how long to record")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        cluster = Tenure(given.tenure, place)
        try:
            leader = cluster.processes[cluster.settled()].pid
            servers = [process.pid for process in cluster.processes]
            bench = subprocess.Popen(
                [given.tenure, "bench", cluster.url(), "--clients", "1", "--duration",
                 f"{given.seconds + 3:.0f}s"], stdout=subprocess.DEVNULL)
            time.sleep(1.5)
            events = record(given.seconds, servers + [bench.pid], place)
            bench.wait()
        finally:
            cluster.stop()
    sent = [at for at, event in enumerate(events) if event[1:3] == (bench.pid, "enter writev")]
    requests = [events[one:other + 1] for one, other in zip(sent, sent[1:])]
    followers = [pid for pid in servers if pid != leader]
    walked = [steps(request, bench.pid, leader, followers) for request in requests]
    walked = [found for found in walked if found]
    if not walked:
        raise SystemExit(f"expected requests among {len(events)} system calls, found none that is whole")
    print(f"{len(walked)} of {len(requests)} requests were seen whole; medians in microseconds")
    for at, stretch in enumerate(STRETCHES):
        took = statistics.median(times[at + 1] - times[at] for times, _ in walked)
        print(f"{took:7.0f}  {stretch}")
    print(f"{statistics.median(times[-1] - times[0] for times, _ in walked):7.0f}  in all")
    own = statistics.median(own for _, own in walked if own)
    print(f"{own:7.0f}  from the start until the leader has it on its own disk (beside the rest)")


if __name__ == "__main__":
    main()
