#!/usr/bin/env python3
"""Elects a leader and appends to the log of a Tenure cluster, over plain gRPC.

Needs nothing of Tenure's but its .proto file:

    pip install grpcio grpcio-tools
    python -m grpc_tools.protoc -I crates/api/proto \
        --python_out=. --grpc_python_out=. tenure/v1/tenure.proto
    python elect.py 127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 payroll --name web-1

It stands in the election as `tenure run` does, so `tenure leader`, `resign`
and `transfer` work with it, and both kinds of candidates can compete. What a
candidate must do, and why, is in docs/design/election.md; how commands take effect
once, in docs/reference/api.md, section 3.
"""

import argparse
import os
import secrets
import sys
import time

import grpc
from tenure.v1 import tenure_pb2 as v1
from tenure.v1 import tenure_pb2_grpc as rpc

# Causes of errors after which the same may be asked again, elsewhere.
AGAIN = {v1.NOT_LEADER, v1.NOT_READY, v1.BUSY, v1.INTERRUPTED}
# What a candidate allows for clocks that run at different rates.
DRIFT = 0.02


def boot():
    """Seconds on a clock that goes on in suspend, and that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Cluster:
    """Finds the leader, and has each command done once."""

    def __init__(self, addresses, ca=None, cert=None, key=None, token_file=None, ttl=30):
        self.addresses = addresses.split(",")
        self.leader = self.addresses[0]
        # Servers that speak TLS want a certificate of ours too, unless they run
        # with --tls-any-client.
        self.tls = [open(file, "rb").read() if file else None for file in (ca, key, cert)]
        self.token = open(token_file).read().strip() if token_file else None
        self.channels = {}
        self.session, self.serial = None, 0
        self.session = self.ask("Sessions", "Open", v1.OpenSessionRequest(ttl_millis=ttl * 1000)).session

    def ask(self, service, call, request, within=10):
        """Asks the leader; goes on asking, unchanged, while that is safe."""
        end = boot() + within
        while True:
            try:
                return self._once(service, call, request)
            except grpc.RpcError as error:
                carried = dict(error.trailing_metadata() or ()).get("tenure-error-bin")
                told = v1.Error.FromString(carried) if carried else None
                if told and told.cause not in AGAIN or boot() > end:
                    raise
                if told and told.leader_address:
                    self.leader = told.leader_address
                else:
                    turn = self.addresses.index(self.leader) if self.leader in self.addresses else -1
                    self.leader = self.addresses[(turn + 1) % len(self.addresses)]
                    time.sleep(0.02)

    def _once(self, service, call, request):
        if self.leader not in self.channels:
            # Refused connections are tried again soon: a server may be restarting.
            options = [("grpc.max_reconnect_backoff_ms", 200)]
            if self.tls[0]:
                secret = grpc.ssl_channel_credentials(*self.tls)
                channel = grpc.secure_channel(self.leader, secret, options)
            else:
                channel = grpc.insecure_channel(self.leader, options)
            self.channels[self.leader] = channel
        stub = getattr(rpc, service + "Stub")(self.channels[self.leader])
        metadata = [("authorization", "Bearer " + self.token)] if self.token else None
        return getattr(stub, call)(request, timeout=1, metadata=metadata)

    def command(self, service, call, request):
        """A command under the next number: however often it is asked, it is done once."""
        self.serial += 1
        request.numbered.CopyFrom(
            v1.Numbered(session=self.session, serial=self.serial, outstanding=self.serial)
        )
        return self.ask(service, call, request)

    def append(self, text):
        request = v1.AppendRequest(entries=[text.encode()])
        return self.command("Log", "Append", request).numbers[0]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def encode(record):
    """The record of an election: text, a field a line, and a checksum."""
    lines = "".join(f"{key} {value}\n" for key, value in record.items())
    text = "tenure-election 1\n" + lines
    return (text + f"crc32c {crc32c(text.encode()):08x}\n").encode()


def decode(data):
    text, _, checksum = data.decode().rpartition("crc32c ")
    if not text.startswith("tenure-election 1\n") or crc32c(text.encode()) != int(checksum, 16):
        raise ValueError("expected the record of an election, found something else; leave it alone")
    return dict(line.split(" ", 1) for line in text.splitlines()[1:])


class Candidate:
    def __init__(self, cluster, election, name, lease):
        self.cluster, self.election, self.name, self.lease = cluster, election, name, lease
        self.key = "elections/" + election
        self.term = self.version = self.record = None
        self.valid_until = 0.0

    def read(self):
        """The record, its version, and whether the grant is over."""
        found = self.cluster.ask("Registers", "Read", v1.ReadRequest(key=self.key))
        if not found.HasField("register"):
            return None, None, True
        record = decode(found.register.value)
        # The log's own time, which cannot step, against the record's lease.
        age = found.now.nanos - found.register.stamp.nanos
        over = "leader" not in record or age > int(record["lease_ns"]) * (1 + DRIFT)
        return record, found.register.version, over

    def write(self, fields, version):
        """Writes the record if it is still at `version`; whether it was."""
        swap = v1.Swap(key=self.key, value=encode(fields))
        if version is not None:
            swap.expect = version
        # Validity counts from before the write was sent, never from its answer.
        start = boot()
        done = self.cluster.command("Registers", "CompareAndSwap", v1.CompareAndSwapRequest(swap=swap))
        if done.swapped:
            self.record, self.version = fields, done.version
            self.valid_until = start + self.lease * (1 - DRIFT)
        return done.swapped

    def elected(self):
        """Waits until this candidate leads."""
        while True:
            held, version, over = self.read()
            if over:
                sequence = int(held["sequence"]) + 1 if held else 1
                now = int(time.time() * 1000)
                fields = {
                    "election": self.election,
                    "term": int(held["term"]) + 1 if held else 1,
                    "sequence": sequence,
                    "renewal": sequence,
                    "lease_ns": int(self.lease * 1e9),
                    "acquired_at_ms": now,
                    "renewed_at_ms": now,
                    # Another for every leadership: nothing is adopted.
                    "leader": secrets.token_hex(16),
                    "name": self.name,
                }
                if self.write(fields, version):
                    self.term = fields["term"]
                    return
            time.sleep(self.lease / 20)

    def renew(self):
        """Goes on for another lease. False if the election is lost, or asked for."""
        held, version, _ = self.read()
        if held is None or held.get("leader") != self.record["leader"] or "request" in held:
            self.version, self.asked = version, held is not None and "request" in held
            return False
        sequence = int(held["sequence"]) + 1
        now = int(time.time() * 1000)
        fields = self.record | {"sequence": sequence, "renewal": sequence, "renewed_at_ms": now}
        return self.write(fields, version)

    def resign(self):
        """Vacates the election, after its work has ended. The term stays."""
        held, version, _ = self.read()
        if held and held.get("leader") == self.record["leader"]:
            gone = ("leader", "name", "address", "params", "request")
            fields = {key: value for key, value in held.items() if key not in gone}
            fields["sequence"] = fields["renewal"] = int(held["sequence"]) + 1
            self.write(fields, version)
        self.valid_until = 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", help="host:port,host:port,…")
    parser.add_argument("election")
    parser.add_argument("--name", default=os.uname().nodename)
    parser.add_argument("--lease", type=float, default=10.0, help="seconds")
    parser.add_argument("--hold", type=float, default=float("inf"), help="resign after so many seconds")
    parser.add_argument("--ca", help="the authority of servers that speak TLS")
    parser.add_argument("--cert", help="our certificate, for servers that ask for one; with --ca and --key")
    parser.add_argument("--key", help="the key of our certificate")
    parser.add_argument("--token-file", default=os.environ.get("TENURE_TOKEN_FILE"))
    args = parser.parse_args()

    if bool(args.cert) != bool(args.key) or args.cert and not args.ca:
        parser.error("expected --ca, --cert and --key together, or --ca alone")
    cluster = Cluster(args.servers, args.ca, args.cert, args.key, args.token_file)
    candidate = Candidate(cluster, args.election, args.name, args.lease)
    candidate.elected()
    number = cluster.append(f"{args.name} leads in term {candidate.term}")
    print(f"{args.name} leads in term {candidate.term}, says entry {number}", flush=True)

    end = boot() + args.hold
    renew_at = boot() + args.lease / 5
    # Work is what happens while this holds; whatever it does outside carries
    # the term along, for others to refuse a lower one.
    while boot() < min(candidate.valid_until, end):
        if boot() >= renew_at:
            if not candidate.renew():
                break
            renew_at = boot() + args.lease / 5
        time.sleep(0.01)
    candidate.resign()
    print(f"{args.name} leads no more", flush=True)


if __name__ == "__main__":
    sys.exit(main())
