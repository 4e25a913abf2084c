#!/usr/bin/env python3
"""How long writes stand still when the leader of three servers goes.

Starts three private servers on the loopback interface, puts load on them
with `tenure bench`, and in the middle of it kills the leader (SIGKILL), stops
it (SIGSTOP: as silent as one whose network was cut, but its connections stay
open), ends it (SIGTERM), or has it hand over. What is told is the longest
time without an acknowledged write; that of a run in which nothing happens is
told too, since a busy machine has gaps of its own. Then how long a server
takes from its start until it is ready, and what memory it has.

    bench/outages.py --tenure target/release/tenure [--etcd DIR/etcd] [--rounds 20]

With --etcd the same is done to three servers of etcd, in turns with ours. The
binary of tenure must have been built with the feature `etcd` then. Where the
data is: $TMPDIR, which must be on a disk for figures that mean anything.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# Under load before anything is measured, and before anything happens.
WARM_UP, BEFORE = 0.5, 0.7


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return None, ""


def until(what, found, seconds=60, pause=0.02):
    """The first thing that `found` gives which is not None."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value is not None:
            return value
        time.sleep(pause)
    sys.exit(f"expected {what} within {seconds} s")


def ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    numbers = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return numbers


class Cluster:
    """Three servers, by number from 0."""

    def __init__(self, binary, place, size=3):
        self.binary, self.place = binary, place
        numbers = ports(2 * size)
        self.clients, self.peers = numbers[:size], numbers[size:]
        self.processes = [None] * size
        for at in range(size):
            self.start(at)
        self.settled()

    def start(self, at):
        log = open(os.path.join(self.place, f"{self.name}{at}.log"), "a")
        self.processes[at] = subprocess.Popen(self.command(at), stdout=log, stderr=log)

    def settled(self):
        """Everybody is ready; the number of the leader."""
        until("all servers to be ready", lambda: all(map(self.ready, range(len(self.clients)))) or None)
        leads = lambda: next(filter(self.leads, range(len(self.clients))), None)
        return until("a leader", leads)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Tenure(Cluster):
    name = "tenure"
    measured = "2s"

    def command(self, at):
        peers = ",".join(f"{n + 1}=127.0.0.1:{port}" for n, port in enumerate(self.peers))
        data = os.path.join(self.place, f"tenure{at}")
        return [self.binary, "serve", "--id", str(at + 1), "--peers", peers, "--data", data,
                "--listen", f"127.0.0.1:{self.clients[at]}"]

    def url(self):
        return "tenure://" + ",".join(f"127.0.0.1:{port}" for port in self.clients)

    def ready(self, at):
        return fetch(f"http://127.0.0.1:{self.clients[at]}/readyz")[0] == 200

    def leads(self, at):
        return fetch(f"http://127.0.0.1:{self.clients[at]}/leader")[0] == 200

    def hand_over(self, at):
        command = [self.binary, "member", "transfer", "--store", self.url()]
        subprocess.run(command, check=True, capture_output=True)


class Etcd(Cluster):
    name = "etcd"
    measured = "6s"

    def command(self, at):
        client = f"http://127.0.0.1:{self.clients[at]}"
        peer = f"http://127.0.0.1:{self.peers[at]}"
        cluster = ",".join(f"s{n}=http://127.0.0.1:{port}" for n, port in enumerate(self.peers))
        data = os.path.join(self.place, f"etcd{at}")
        return [self.binary, "--name", f"s{at}", "--data-dir", data, "--log-level", "warn",
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", cluster, "--initial-cluster-state", "new"]

    def url(self):
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.clients)

    def ready(self, at):
        return fetch(f"http://127.0.0.1:{self.clients[at]}/health")[0] == 200

    def leads(self, at):
        metrics = fetch(f"http://127.0.0.1:{self.clients[at]}/metrics")[1]
        return "\netcd_server_is_leader 1" in metrics

    hand_over = None


def outage(tenure, cluster, kind):
    """The longest gap in milliseconds, and how many calls failed."""
    leader = cluster.settled()
    process = cluster.processes[leader]
    load = subprocess.Popen(
        [tenure, "bench", cluster.url(), "--clients", "4", "--duration", cluster.measured,
         "--warm-up", f"{WARM_UP}s", "--timeout", "4s", "--json"],
        stdout=subprocess.PIPE, text=True)
    time.sleep(WARM_UP + BEFORE)
    if kind == "kill":
        process.kill()
    elif kind == "silence":
        process.send_signal(signal.SIGSTOP)
    elif kind == "end":
        process.terminate()
    elif kind == "hand-over":
        cluster.hand_over(leader)
    said = load.communicate(timeout=60)[0]
    if kind == "silence":
        process.send_signal(signal.SIGCONT)
    elif kind in ("kill", "end"):
        process.wait()
        cluster.start(leader)
    store = json.loads(said)["stores"][0]
    failures = {name: count for name, count in store["failures"].items() if count}
    return store["longest_gap_us"] / 1000, failures


def describe(values):
    values = sorted(values)
    return (f"median {statistics.median(values):.0f} ms, least {values[0]:.0f}, "
            f"most {values[-1]:.0f}, of {len(values)}")


def start_times(binary, place, rounds):
    """From the start of a process to its readiness, in milliseconds."""
    alone, again, rejoining = [], [], []
    for turn in range(rounds):
        where = os.path.join(place, f"alone{turn}")
        os.mkdir(where)
        began = time.monotonic()
        cluster = Tenure.__new__(Tenure)
        cluster.binary, cluster.place = binary, where
        cluster.clients, cluster.peers = ports(1), ports(1)
        cluster.processes = [None]
        for times in (alone, again):
            began = time.monotonic()
            cluster.start(0)
            until("a server to be ready", lambda: cluster.ready(0) or None, pause=0.001)
            times.append((time.monotonic() - began) * 1000)
            cluster.stop()
    cluster = Tenure(binary, place)
    for _ in range(rounds):
        follower = (cluster.settled() + 1) % 3
        cluster.processes[follower].kill()
        cluster.processes[follower].wait()
        began = time.monotonic()
        cluster.start(follower)
        until("a server to be ready", lambda: cluster.ready(follower) or None, pause=0.001)
        rejoining.append((time.monotonic() - began) * 1000)
    memory = []
    for process in cluster.processes:
        with open(f"/proc/{process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
            memory.append(int(line.split()[1]) / 1024)
    cluster.stop()
    print(f"tenure, alone and new, until ready: {describe(alone)}")
    print(f"tenure, alone, started again, until ready: {describe(again)}")
    print(f"tenure, rejoining a live cluster, until ready: {describe(rejoining)}")
    print(f"tenure, idle: {max(memory):.1f} MiB resident")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tenure", required=True)
    parser.add_argument("--etcd")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kinds", default="nothing,kill,silence,end,hand-over")
    asked = parser.parse_args()
    place = tempfile.mkdtemp()
    clusters = []
    try:
        start_times(asked.tenure, place, max(1, asked.rounds // 4))
        shutil.rmtree(place)
        os.mkdir(place)
        clusters.append(Tenure(asked.tenure, place))
        if asked.etcd:
            clusters.append(Etcd(asked.etcd, place))
        for kind in asked.kinds.split(","):
            gaps = {cluster.name: [] for cluster in clusters}
            failures = {cluster.name: [] for cluster in clusters}
            rounds = max(1, asked.rounds // 4) if kind == "nothing" else asked.rounds
            for _ in range(rounds):
                for cluster in clusters:
                    if kind == "hand-over" and not cluster.hand_over:
                        continue
                    gap, failed = outage(asked.tenure, cluster, kind)
                    gaps[cluster.name].append(gap)
                    failures[cluster.name] += [failed] if failed else []
            for name, found in gaps.items():
                if found:
                    failed = failures[name] or "none"
                    print(f"{name}, {kind}: {describe(found)}; failed calls: {failed}", flush=True)
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
