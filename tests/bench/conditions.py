#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""conditions.py: what the library does when others want the processors or the device, and beside raw AF_XDP.

    sudo tests/bench/conditions.py threads      a server's threads are more than the processors
    sudo tests/bench/conditions.py busy         two busy programs run beside a ping-pong
    sudo tests/bench/conditions.py neighbours   kernel traffic of others on a device that the library holds
    sudo tests/bench/conditions.py latency      ping-pong beside raw AF_XDP, pinned and not
    sudo tests/bench/conditions.py groups       ping-pong over a multicast group beside unicast
    sudo tests/bench/conditions.py rings        threads with sockets of their own, by ring allocation logic
    sudo tests/bench/conditions.py feed         ping-pong over 100 groups of a feed file, with epoll
    sudo tests/bench/conditions.py copies       one group that several sockets of a process receive
    sudo tests/bench/conditions.py extra        receiving by the extra API beside recvfrom
    sudo tests/bench/conditions.py sending      sending by the extra API beside sendto and raw AF_XDP

Each round measures everything once, every other round in reverse order. A ratio is that to the first column,
inside a round; tables show medians, with the smallest and the largest.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

import suite_multicast
import suite_mux
import suite_tcp
import suite_udp
from columns import add_options, heading, parse_options, steps_of, table
from demo import check_machine, find_programs, measure
from wire import Wire, cpu_of_children, die_with_parent, progress, run_tool

KERNEL, BOTH = {}, {"client_vma": True, "server_vma": True}
ROUNDS = 5
THREADS = (1, 2, 4, 10)
RING_THREADS = (1, 2, 4, 8)
LOGICS = (0, 10, 20, 31)
BUSY = 2    # programs
SOCKETS = (1, 2, 4, 8, 16)    # of one group
EXTRA_SIZES = (64, 1400)


@contextlib.contextmanager
def busy_programs(number):
    """So many loops that want a processor each, placed by the scheduler. Afterwards the dictionary has their
    share of all processors in per cent."""
    result = {}
    began = time.monotonic()
    running = [subprocess.Popen([sys.executable, "-S", "-E", "-c", "while True: pass"],
                                preexec_fn=die_with_parent) for _ in range(number)]
    try:
        yield result
    finally:
        before = cpu_of_children()
        for process in running:
            process.kill()
            process.wait()
        used, lasted = cpu_of_children() - before, time.monotonic() - began
        result["share"] = used / lasted / (os.cpu_count() or 1) * 100


def beside_busy(wire, seconds, ping_pong, busy, **sides):
    """A ping-pong's reading, with the share of the busy programs in per cent of all processors."""
    with busy_programs(BUSY if busy else 0) as programs:
        reading = ping_pong(wire, seconds, **sides)
    return {**reading, **programs}


def beside_neighbour(wire, beside, reading):
    """reading() while a process with the library holds the devices of both sides, or not."""
    with suite_udp.neighbour(wire, "ab") if beside else contextlib.nullcontext():
        return reading()


def threads(wire, seconds, _programs):
    def row(number):
        return (lambda **sides: suite_mux.round_trips(wire, seconds, number, **sides)), "rate"
    rows = {f"{number} thread{'s' if number > 1 else ''}, 1000/s": row(number) for number in THREADS}
    return rows, {"kernel": KERNEL, "libvma": BOTH}


def busy(wire, seconds, _programs):
    rows = {}
    for protocol, suite in (("UDP", suite_udp), ("TCP", suite_tcp)):
        def call(suite=suite, **arguments):
            return beside_busy(wire, seconds, suite.ping_pong, **arguments)
        for field, unit in (("p50", "us"), ("p99", "us"), ("share", "%")):
            rows[f"{protocol} {field}, {unit}"] = call, field
    return rows, {"libvma alone": {"busy": False, **BOTH}, "libvma beside two": {"busy": True, **BOTH},
                  "kernel alone": {"busy": False}, "kernel beside two": {"busy": True}}


def neighbours(wire, seconds, _programs):
    def row(reading, field):
        return (lambda beside: beside_neighbour(wire, beside, reading)), field
    rows = {
        "UDP 100 B, 1000/s": row(lambda: suite_udp.throughput(wire, seconds, 100), "received"),
        "UDP 1400 B, 1000/s": row(lambda: suite_udp.throughput(wire, seconds, 1400), "received"),
        "TCP 100 B, 1000/s": row(lambda: suite_tcp.throughput(wire, seconds, 100), "received"),
        "TCP 1400 B, 1000/s": row(lambda: suite_tcp.throughput(wire, seconds, 1400), "received"),
        "TCP iperf3, Gbit/s": row(lambda: suite_udp.kernel_tcp(wire, seconds), "rate"),
        "TCP iperf3, 8 streams, Gbit/s": row(lambda: suite_tcp.bulk(wire, seconds, 8, False), "rate"),
    }
    return rows, {"device alone": {"beside": False}, "held by libvma": {"beside": True}}


def latency(wire, seconds, programs):
    def call(protocol, **sides):
        if protocol == "raw":
            return suite_udp.raw(wire, seconds, programs["xsk_raw"], "latency")
        return {"udp": suite_udp, "tcp": suite_tcp}[protocol].ping_pong(wire, seconds, **sides)
    rows = {f"64 bytes, {field}, us": (call, field) for field in ("p50", "p99")}
    return rows, {"raw AF_XDP": {"protocol": "raw"}, "libvma UDP": {"protocol": "udp", **BOTH},
                  "libvma TCP": {"protocol": "tcp", **BOTH}}


def groups(wire, seconds, _programs):
    def call(**arguments):
        return suite_udp.ping_pong(wire, seconds, **arguments)
    rows = {f"64 bytes, {field}, us": (call, field) for field in ("p50", "p99")}
    return rows, {"libvma unicast": BOTH, "libvma group": {"group": suite_multicast.GROUP, **BOTH},
                  "kernel unicast": KERNEL, "kernel group": {"group": suite_multicast.GROUP, **KERNEL}}


def feed(wire, seconds, _programs):
    def call(**sides):
        return suite_multicast.feed(wire, seconds, **sides)
    rows = {f"{len(suite_multicast.FEED)} groups, {field}, us": (call, field) for field in ("p50", "p99")}
    return rows, {"kernel": KERNEL, "libvma": BOTH}


def copies(wire, seconds, programs):
    def row(number):
        return (lambda **sides: suite_multicast.copies(wire, seconds, programs["vma_perf"], number, **sides),
                "each")
    rows = {f"{number} socket{'s' if number > 1 else ''}, 1000/s each": row(number) for number in SOCKETS}
    return rows, {"kernel": KERNEL, "libvma": BOTH}


def rings(wire, seconds, programs):
    """vma_perf: each thread has a socket of its own, on both sides."""
    def row(protocol, number):
        return (lambda **sides: suite_mux.threads_apart(wire, seconds, programs["vma_perf"], protocol,
                                                        number, **sides)), "rate"
    rows = {f"{protocol.upper()} {number} thread{'s' if number > 1 else ''}, 1000/s": row(protocol, number)
            for protocol in ("udp", "tcp") for number in RING_THREADS}
    columns = {"kernel": KERNEL}
    columns.update({f"logic {logic}": {"logic": logic, **BOTH} for logic in LOGICS})
    return rows, columns


def extra(wire, seconds, programs):
    rows = {}
    for size in EXTRA_SIZES:
        def call(mode, size=size):
            return suite_mux.extra_api(wire, seconds, programs["vma_perf"], "pingpong", size, mode)
        rows.update({f"{size} bytes, {field}, us": (call, field) for field in ("p50", "p99")})
    return rows, {"recvfrom": {"mode": None}, "zcopy": {"mode": "zcopy"}, "callback": {"mode": "callback"}}


def sending(wire, seconds, programs):
    def row(size):
        def call(mode):
            if mode == "raw":
                return suite_udp.raw(wire, seconds, programs["xsk_raw"], "rate", "--payload", str(size))
            return suite_mux.extra_api(wire, seconds, programs["vma_perf"], "throughput", size, mode,
                                       burst=32)
        return call, "sent"
    rows = {f"{size} bytes, sent, 1000/s": row(size) for size in (100, 1400)}
    return rows, {"raw AF_XDP": {"mode": "raw"}, "sendto": {"mode": None}, "sendmany": {"mode": "sendmany"},
                  "send_zcopy": {"mode": "send_zcopy"}}


# Name -> (function of wire, seconds and programs that gives rows and columns; pinned or not, one table each).
CONDITIONS = {"threads": (threads, [False]), "busy": (busy, [True]), "neighbours": (neighbours, [True]),
              "latency": (latency, [True, False]), "groups": (groups, [True]),
              "rings": (rings, [False]),
              "feed": (feed, [True]), "copies": (copies, [True]), "extra": (extra, [True]),
              "sending": (sending, [True])}


def main():
    parser = argparse.ArgumentParser(prog="conditions.py",
                                     description="The library under conditions that others make.")
    parser.add_argument("condition", choices=CONDITIONS)
    add_options(parser, ROUNDS)
    options = parse_options(parser)

    check_machine()
    library, programs = find_programs(options.build)
    programs["vma_perf"] = os.path.join(options.build, "tools", "vma_perf", "vma_perf")
    condition, placings = CONDITIONS[options.condition]
    everything = {}
    for pinned in placings:
        with Wire(library, pinned, options.congestion) as wire:
            rows, columns = condition(wire, options.seconds, programs)
            rounds = measure(wire, options.condition, steps_of(rows, columns), options.rounds)
        progress("")
        print(heading(options, pinned))
        print("\n".join(table(rows, rounds, columns)) + "\n", flush=True)
        everything["pinned" if pinned else "unpinned"] = rounds
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    run_tool("conditions.py", main)
