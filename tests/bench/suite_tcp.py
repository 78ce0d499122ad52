# SPDX-License-Identifier: BSD-2-Clause
"""TCP: latency, message rates, bulk data, short connections and many of them, on the kernel and on libvma.

Every reading has a server port of its own, so that no connection of an earlier one, in TIME_WAIT, is met.
"""
import itertools
import time

from offload import OffloadCheck
from readings import parse_iperf3, parse_json, parse_ping_pong, parse_server, parse_throughput_client
from suite_udp import run_raw
from table import Row
from wire import ADDRESS, Failure, cpu_each

FRAME = 1400               # bytes of a frame of the raw limit for bulk data
RAW_PAYLOAD = FRAME - 42   # without its Ethernet, IPv4 and UDP headers
LARGEST = 65536            # bytes that the kernel moves as one segment at most; it counts that at least
IPERF3_BLOCK = 131072      # bytes of one write
AT_ONCE = 16               # short connections under way
CONNECTIONS = 10_000       # in one process
# Of a connection that is opened and closed: the kernel counts that at least. A process that ends hands over
# to the kernel what is not acknowledged yet, so the kernel sees some.
SEGMENTS = 6

# Until the library offloads TCP, a reading that went through the kernel is marked in the table; then it is an
# error.
MUST_BE_OFFLOADED = False

PEERS = {"kernel": {"client_vma": True},
         "libvma": {"client_vma": True, "server_vma": True}}   # of libvma on side a
STREAMS = (1, 8)
DIRECTIONS = {"sends": False, "receives": True}   # side a; iperf3 -R

# Row -> how many times better than the kernel; the latencies' limits as fractions of the kernel's time: 0.38,
# 0.7. iperf3 has none: on veth the kernel moves 64 KB in one piece, which AF_XDP cannot.
TARGETS = {
    "both p50": 1 / 0.38, "both p99": None,
    "client p50": 1 / 0.7, "client p99": None,
    "server p50": 1 / 0.7, "server p99": None,
    "rate 100": 2.0, "rate 1400": 2.0,
    **{f"bulk {peer} {streams} {direction}": None for peer in PEERS for streams in STREAMS
       for direction in DIRECTIONS},
    "short both": 1.0, "short client": None, "short server": None,
}
# libvma beside the raw limit.
RAW_TARGETS = {key: 0.8 for key in TARGETS if key.startswith("bulk")}
# libvma's own value at most: KiB for each connection; latency of one among many as a multiple of one alone.
LIMITS = {"memory client": 4.0, "memory server": 4.0, "crowd": 1.5}

PORTS = itertools.count(12000)


def measured(check, count, reading):
    """The reading, with a word on whether the library did it.

    `count`: segments the kernel would at least have needed.
    """
    if MUST_BE_OFFLOADED:
        check.verify(count)
    return {**reading, "offloaded": check.offloaded(count)}


class Pair:
    """A server on b and the check around both programs."""

    def __init__(self, wire, client_vma, server_vma, environment=()):
        self.wire, self.environment = wire, environment
        self.client_vma, self.server_vma = client_vma, server_vma
        self.port = str(next(PORTS))
        self.check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma, "Tcp")

    def serve(self, *command):
        self.server = self.wire.start("b", *command, vma=self.server_vma, environment=self.environment)
        self.wire.wait_bound(self.server, "tcp", int(self.port))
        return self.server

    def ask(self, seconds, *command):
        """Runs the client to its end; its output."""
        self.client = self.wire.start("a", *command, vma=self.client_vma, environment=self.environment)
        return self.wire.finish(self.client, seconds)

    def cpu(self, count):
        """Both have ended: what each used of a processor for one of `count` messages from the client."""
        return cpu_each(self.client, self.server, count)


def ping_pong(wire, seconds, client_vma=False, server_vma=False, environment=()):
    """sockperf's ping-pong from a to b, 64 bytes."""
    pair = Pair(wire, client_vma, server_vma, environment)
    where = ["--tcp", "-i", ADDRESS["b"], "-p", pair.port]
    server = pair.serve("sockperf", "sr", *where)
    result = parse_ping_pong(pair.ask(seconds, "sockperf", "pp", *where, "-t", str(seconds), "-m", "64"))
    wire.interrupt(server)
    return measured(pair.check, result["messages"], {"p50": result["p50"], "p99": result["p99"]})


def throughput(wire, seconds, size, vma=False, client_vma=False, server_vma=False, environment=()):
    """sockperf's throughput test: thousands of messages per second that the server's program received."""
    pair = Pair(wire, vma or client_vma, vma or server_vma, environment)
    where = ["--tcp", "-i", ADDRESS["b"], "-p", pair.port]
    server = pair.serve("sockperf", "sr", *where)
    sent, duration = parse_throughput_client(
        pair.ask(seconds, "sockperf", "tp", *where, "-t", str(seconds), "-m", str(size)))
    time.sleep(0.1)   # what is queued still counts: it was sent in time
    received = parse_server(wire.interrupt(server))
    return measured(pair.check, received * size // LARGEST,
                    {"received": received / duration / 1e3, **pair.cpu(received)})


def bulk(wire, seconds, streams, reverse, client_vma=False, server_vma=False):
    """iperf3 between a and b: Gbit/s that the receiver counted."""
    pair = Pair(wire, client_vma, server_vma)
    server = pair.serve("iperf3", "-s", "-1", "-p", pair.port, "-B", ADDRESS["b"])
    rate = parse_iperf3(pair.ask(seconds, "iperf3", "-c", ADDRESS["b"], "-p", pair.port, "-t", str(seconds),
                                 "-P", str(streams), "-J", *["-R"] * reverse))
    wire.finish(server)
    if rate <= 0:
        raise Failure("iperf3 moved nothing")
    blocks = rate * 1e9 / 8 * seconds / IPERF3_BLOCK
    return measured(pair.check, blocks * IPERF3_BLOCK // LARGEST, {"rate": rate, **pair.cpu(blocks)})


def raw_bulk(wire, seconds, program):
    """AF_XDP with nothing on top: frames of 1400 bytes, all of whose bytes count."""
    frames = run_raw(wire, seconds, program, "rate", "--payload", str(RAW_PAYLOAD))["received_per_second"]
    return {"received": frames / 1e3, "rate": frames * FRAME * 8 / 1e9}


def short_connections(wire, seconds, program, client_vma=False, server_vma=False):
    pair = Pair(wire, client_vma, server_vma)
    server = pair.serve(program, "server", ADDRESS["b"], pair.port)
    result = parse_json(pair.ask(seconds, program, "client", ADDRESS["b"], pair.port, "--seconds",
                                 str(seconds),
                                 "--at-once", str(AT_ONCE)), "conn_rate")
    wire.interrupt(server)
    return measured(pair.check, result["connections"],
                    {"rate": result["per_second"] / 1e3, **pair.cpu(result["connections"])})


def many_connections(wire, program, vma=False):
    pair = Pair(wire, vma, vma)
    server = pair.serve(program, "server", ADDRESS["b"], pair.port)
    result = parse_json(pair.ask(30, program, "client", ADDRESS["b"], pair.port, "--connections",
                                 str(CONNECTIONS)),
                        "many_connections")
    wire.interrupt(server)
    return measured(pair.check, result["connections"] * SEGMENTS,
                    {"memory client": result["client_bytes_each"] / 1024,
                     "memory server": result["server_bytes_each"] / 1024,
                     "alone": result["alone_us"]["p50"] / 2, "among": result["among_us"]["p50"] / 2,
                     "crowd": result["among_us"]["p50"] / result["alone_us"]["p50"]})


def measurements(wire, seconds, programs):
    """Name -> function that measures it once."""
    both = {"client_vma": True, "server_vma": True}
    sides = {"kernel": {}, "vma both": both, "vma client": {"client_vma": True},
             "vma server": {"server_vma": True}}
    result = {}

    def add(name, function, *arguments, **options):
        result[name] = lambda: function(wire, *arguments, **options)

    for name, side in sides.items():
        add(name, ping_pong, seconds, **side)
    add("raw", lambda *arguments: run_raw(*arguments)["half_rtt_us"], seconds, programs["xsk_raw"], "latency")
    for size in (100, 1400):
        add(f"kernel rate {size}", throughput, seconds, size)
        add(f"vma rate {size}", throughput, seconds, size, vma=True)
    add("raw bulk", raw_bulk, seconds, programs["xsk_raw"])
    for streams in STREAMS:
        for direction, reverse in DIRECTIONS.items():
            add(f"bulk none {streams} {direction}", bulk, seconds, streams, reverse)
            for peer, side in PEERS.items():
                add(f"bulk {peer} {streams} {direction}", bulk, seconds, streams, reverse, **side)
    for name, side in sides.items():
        add("short " + name, short_connections, seconds, programs["conn_rate"], **side)
    add("many kernel", many_connections, programs["many_connections"])
    add("many vma", many_connections, programs["many_connections"], vma=True)
    return result


def rows():
    def row(key, title, kernel, vma, field, **more):
        return Row(key, title, kernel, vma, field, target=TARGETS.get(key), raw_target=RAW_TARGETS.get(key),
                   limit=LIMITS.get(key), **more)

    sides = {"both": "libvma on both sides", "client": "libvma client only", "server": "libvma server only"}
    section = "TCP ping-pong, 64 bytes, half of the round trip in us"
    for key, title in sides.items():
        for field in ("p50", "p99"):
            yield row(f"{key} {field}", f"{title}, {field}", "kernel", "vma " + key, field, less=True,
                      raw="raw" if key == "both" else None, section=section)
            section = None
    section = "TCP one way, received, 1000 msg/s"
    for size, limit in ((100, None),
                        (1400, "raw bulk")):   # short messages share frames: frames are no limit for them
        yield row(f"rate {size}", f"{size} bytes", f"kernel rate {size}", f"vma rate {size}", "received",
                  raw=limit,
                  section=section)
        section = None
    section = "TCP bulk data (iperf3), Gbit/s; raw: frames of 1400 bytes"
    for peer in PEERS:
        for streams in STREAMS:
            for direction in DIRECTIONS:
                title = f"{streams} stream{'s' if streams > 1 else ''}, {direction}, {peer} peer"
                yield row(f"bulk {peer} {streams} {direction}", title, f"bulk none {streams} {direction}",
                          f"bulk {peer} {streams} {direction}", "rate", raw="raw bulk", section=section)
                section = None
    section = f"TCP short connections, {AT_ONCE} at once, 1000/s"
    for key, title in sides.items():
        yield row("short " + key, title, "short kernel", "short vma " + key, "rate", section=section)
        section = None
    section = f"{CONNECTIONS:,} TCP connections in one process"
    for key, title in (("memory client", "client's memory for each, KiB"),
                       ("memory server", "server's memory for each, KiB"),
                       ("crowd", "latency of one among all / of one alone")):
        yield row(key, title, "many kernel", "many vma", key, less=True, section=section)
        section = None
