#!/usr/bin/env python3
"""How long writes stand still when the leader of three servers goes.

Starts three private servers on the loopback interface, puts load on them
with `tenure bench`, and in the middle of it kills the leader (SIGKILL), stops
it (SIGSTOP: as silent as one whose network was cut, but its connections stay
open), ends it (SIGTERM), or has it hand over. What is told is the longest
time without an acknowledged write; that of a run in which nothing happens is
told too, since a busy machine has gaps of its own. So may its disk: nothing
is acknowledged that is not synced, so beside every row stands what a file of
this program's own, synced every few milliseconds meanwhile, had to wait at
most, and what the gaps were in those rounds in which it waited for nothing.
Before that, how long a server takes from its start until it is ready, and what
memory it has.

    bench/outages.py --tenure target/release/tenure [--etcd DIR/etcd] [--rounds 20]

With `cut` among the --kinds each server is in a network of its own on a
bridge, and the leader is taken off the bridge: nothing reaches it and nothing
leaves it, no connection is closed, and it runs on and does not know yet.
That needs root, `unshare`, `nsenter` and `ip`; all of it is made in namespaces
that end with this program.

    bench/outages.py --tenure target/release/tenure --kinds nothing,cut

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
import threading
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


ROOM = "TENURE_OUTAGES_ROOM"


def enter_room():
    """Goes on in namespaces of its own, in which it may do what it likes."""
    if os.geteuid() != 0:
        sys.exit("expected root for the kind cut, which makes networks: start this with sudo, "
                 "or leave cut out of --kinds")
    for tool in ("unshare", "nsenter", "ip"):
        if not shutil.which(tool):
            sys.exit(f"expected {tool} for the kind cut, found none: install util-linux and "
                     "iproute2, or leave cut out of --kinds")
    os.environ[ROOM] = "1"
    os.execvp("unshare", ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount",
                          "--mount-proc", sys.executable, *sys.argv])


class Network:
    """A namespace for each server, and a bridge between them, on which this
    program is too."""

    def __init__(self, size):
        sh("ip link add hub type bridge; ip addr add 10.77.0.254/24 dev hub; "
           "ip link set hub up")
        self.keepers = [self.add(at) for at in range(size)]

    def add(self, at):
        # It says that it is there, and keeps the namespace.
        keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up; echo; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not keeper.stdout.readline():
            sys.exit("expected a namespace of networks for each server, found no leave for it")
        space = f"/proc/{keeper.pid}/ns/net"
        sh(f"ip link add v{at} type veth peer name eth0 netns {keeper.pid}; "
           f"ip link set v{at} master hub up; nsenter --net={space} sh -ec "
           f"'ip addr add {self.address(at)}/24 dev eth0; ip link set eth0 up'")
        return keeper

    def address(self, at):
        return f"10.77.0.{at + 1}"

    def prefix(self, at):
        return ["nsenter", f"--net=/proc/{self.keepers[at].pid}/ns/net"]

    def cut(self, at):
        sh(f"ip link set v{at} nomaster")

    def heal(self, at):
        sh(f"ip link set v{at} master hub")

    def stop(self):
        for keeper in self.keepers:
            keeper.kill()
            keeper.wait()


def sh(script):
    subprocess.run(["sh", "-ec", script], check=True)


class Cluster:
    """Three servers, by number from 0, on the loopback interface or each in
    its place of a network."""

    network = None

    def __init__(self, binary, place, size=3, network=None):
        self.binary, self.place, self.network = binary, place, network
        numbers = ports(2 * size)
        self.clients, self.peers = numbers[:size], numbers[size:]
        self.processes = [None] * size
        for at in range(size):
            self.start(at)
        self.settled()

    def start(self, at):
        log = open(os.path.join(self.place, f"{self.name}{at}.log"), "a")
        prefix = self.network.prefix(at) if self.network else []
        self.processes[at] = subprocess.Popen(prefix + self.command(at), stdout=log, stderr=log)

    def host(self, at):
        return self.network.address(at) if self.network else "127.0.0.1"

    def client(self, at):
        return f"{self.host(at)}:{self.clients[at]}"

    def peer(self, at):
        return f"{self.host(at)}:{self.peers[at]}"

    def url(self):
        return f"{self.name}://" + ",".join(map(self.client, range(len(self.clients))))

    def alive(self, at):
        return fetch(f"http://{self.client(at)}/{self.health}")[0] is not None

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
    health = "healthz"
    measured = "2s"

    def command(self, at):
        peers = ",".join(f"{n + 1}={self.peer(n)}" for n in range(len(self.peers)))
        data = os.path.join(self.place, f"tenure{at}")
        return [self.binary, "serve", "--id", str(at + 1), "--peers", peers, "--data", data,
                "--listen", self.client(at)] + (["--insecure"] if self.network else [])

    def ready(self, at):
        return fetch(f"http://{self.client(at)}/readyz")[0] == 200

    def leads(self, at):
        return fetch(f"http://{self.client(at)}/leader")[0] == 200

    def hand_over(self, at):
        command = [self.binary, "member", "transfer", "--store", self.url()]
        subprocess.run(command, check=True, capture_output=True)


class Etcd(Cluster):
    name = "etcd"
    health = "health"
    measured = "6s"

    def command(self, at):
        client = f"http://{self.client(at)}"
        peer = f"http://{self.peer(at)}"
        cluster = ",".join(f"s{n}=http://{self.peer(n)}" for n in range(len(self.peers)))
        data = os.path.join(self.place, f"etcd{at}")
        return [self.binary, "--name", f"s{at}", "--data-dir", data, "--log-level", "warn",
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", cluster, "--initial-cluster-state", "new"]

    def ready(self, at):
        return fetch(f"http://{self.client(at)}/health")[0] == 200

    def leads(self, at):
        metrics = fetch(f"http://{self.client(at)}/metrics")[1]
        return "\netcd_server_is_leader 1" in metrics

    hand_over = None


class Disk:
    """How long a sync of the disk takes, all the time."""

    # Between two syncs; and what is more than the disk's own work, in ms.
    pause, calm = 0.005, 10

    def __init__(self, place):
        self.syncs, self.ended = [], False
        self.thread = threading.Thread(target=self.sync, args=(os.path.join(place, "probe"),))
        self.thread.start()

    def sync(self, path):
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
        while not self.ended:
            os.pwrite(file, bytes(512), 0)
            began = time.monotonic()
            os.fdatasync(file)
            self.syncs.append((began, time.monotonic()))
            time.sleep(self.pause)
        os.close(file)

    def longest(self, since):
        """Of those that were under way after `since`, in milliseconds."""
        # One may be under way now.
        count = len(self.syncs)
        until("a sync of the disk", lambda: len(self.syncs) > count or None, pause=0.001)
        return max((end - began) * 1000 for began, end in self.syncs if end > since)

    def stop(self):
        self.ended = True
        self.thread.join()


def outage(tenure, cluster, kind, disk):
    """The longest gap in milliseconds, how many calls failed, and the longest
    sync of the disk."""
    leader = cluster.settled()
    process = cluster.processes[leader]
    load = subprocess.Popen(
        [tenure, "bench", cluster.url(), "--clients", "4", "--duration", cluster.measured,
         "--warm-up", f"{WARM_UP}s", "--timeout", "4s", "--json"],
        stdout=subprocess.PIPE, text=True)
    time.sleep(WARM_UP)
    since = time.monotonic()
    time.sleep(BEFORE)
    if kind == "kill":
        process.kill()
    elif kind == "silence":
        process.send_signal(signal.SIGSTOP)
    elif kind == "cut":
        cluster.network.cut(leader)
    elif kind == "end":
        process.terminate()
    elif kind == "hand-over":
        cluster.hand_over(leader)
    said = load.communicate(timeout=60)[0]
    synced = disk.longest(since)
    if kind == "silence":
        process.send_signal(signal.SIGCONT)
    elif kind == "cut":
        if cluster.alive(leader):
            sys.exit("expected no way to a leader that was cut off, found one")
        cluster.network.heal(leader)
        until("a way to the leader that was cut off", lambda: cluster.alive(leader) or None)
    elif kind in ("kill", "end"):
        process.wait()
        cluster.start(leader)
    store = json.loads(said)["stores"][0]
    failures = {name: count for name, count in store["failures"].items() if count}
    return store["longest_gap_us"] / 1000, failures, synced


def describe(values):
    values = sorted(values)
    return (f"median {statistics.median(values):.0f} ms, least {values[0]:.0f}, "
            f"most {values[-1]:.0f}, of {len(values)}")


def told(rounds):
    """What a row says of its rounds."""
    gaps, failures, syncs = zip(*rounds)
    failed = [it for it in failures if it] or "none"
    calm = [gap for gap, _, synced in rounds if synced <= Disk.calm]
    beside = f"with a calm disk {describe(calm)}" if calm else "the disk was never calm"
    return (f"{describe(gaps)}; {beside}; failed calls: {failed}; "
            f"longest sync of the disk: {describe(syncs)}")


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
    parser.add_argument("--kinds", default="nothing,kill,silence,end,hand-over",
                        help="of nothing, kill, silence, end, hand-over, cut; with cut all of "
                             "them in networks of their own, as root (default: %(default)s)")
    asked = parser.parse_args()
    kinds = asked.kinds.split(",")
    for unknown in set(kinds) - {"nothing", "kill", "silence", "end", "hand-over", "cut"}:
        parser.error(f"expected kinds from its list, found {unknown!r}")
    cuts = "cut" in kinds
    if cuts and ROOM not in os.environ:
        enter_room()
    if cuts:
        sh("ip link set lo up")
    place = tempfile.mkdtemp()
    clusters, network, disk = [], None, None
    try:
        start_times(asked.tenure, place, max(1, asked.rounds // 4))
        shutil.rmtree(place)
        os.mkdir(place)
        # Two clusters share the networks: one is idle while the other is cut.
        network = Network(3) if cuts else None
        clusters.append(Tenure(asked.tenure, place, network=network))
        if asked.etcd:
            clusters.append(Etcd(asked.etcd, place, network=network))
        disk = Disk(place)
        for kind in kinds:
            found = {cluster.name: [] for cluster in clusters}
            rounds = max(1, asked.rounds // 4) if kind == "nothing" else asked.rounds
            for _ in range(rounds):
                for cluster in clusters:
                    if kind == "hand-over" and not cluster.hand_over:
                        continue
                    found[cluster.name].append(outage(asked.tenure, cluster, kind, disk))
            for name, of_it in found.items():
                if of_it:
                    print(f"{name}, {kind}: {told(of_it)}", flush=True)
    finally:
        if disk:
            disk.stop()
        for cluster in clusters:
            cluster.stop()
        if network:
            network.stop()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
