#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""lossy.py: TCP on a wire that loses, doubles, overtakes and marks frames, kernel beside library.

    sudo tests/bench/lossy.py [--rounds 7] [--seconds 5] [--only TEXT] [--congestion bbr] [--both]

The wire is a relay (relay.cpp) with a round trip of 5 ms. Which frames it spoils is a list made of a number:
that of the round. So in a round the kernel and the library lose the same frames. The library sends, and the
kernel receives; --both adds a column with the library on both sides.

Each round measures everything once, every other round in reverse order. A ratio is that of libvma to the
kernel, inside a round; the table shows medians, with the smallest and the largest.
"""
import argparse
import collections

from columns import add_options, choose, heading, parse_options, ratios, steps_of, table, write_readings
from demo import check_machine, measure
from lossy_wire import LossyWire
from offload import OffloadCheck
from readings import parse_iperf3
from request_times import find_programs, request_times, serve_requests
from suite_tcp import PORTS
from table import aim, spread
from wire import ADDRESS, Failure, progress, run_tool

ROUND_TRIP = 5000             # us
RATE, QUEUE = 500, 1000       # Mbit/s and frames of the link in each direction
MSS = 1448                    # bytes of data in a frame
REQUESTS, ANSWER, AT_ONCE = 10_000, 10_240, 16
LOSSES = (0.001, 0.01, 0.05)
FAULTS = {"1 % late by 1 ms": ("--reorder", "0.01", "--late", "1000"),
          "1 % doubled": ("--duplicate", "0.01"),
          "1 % marked (ECN)": ("--mark", "0.01")}
# libvma beside the kernel with CUBIC: at least for goodput, at most for times.
AIMS = {"goodput": (">=", 0.95), "p50": ("<=", 1.05), "p99": ("<=", 1.2)}


class Bench:
    def __init__(self, wire, seconds, program):
        self.wire, self.seconds, self.program = wire, seconds, program
        self.turns = collections.Counter()

    def on_wire(self, faults, reading):
        """A measurement, to be called with the sides that have the library, on a wire with these faults."""
        def call(client_vma=False, server_vma=False):
            # The n-th reading with the library meets the same wire as the n-th without it.
            turn = (faults, reading, client_vma, server_vma)
            self.turns[turn] += 1
            if "--mark" in faults:
                self.wire.set_ecn(1)
            try:
                with self.wire.relay("--delay", str(ROUND_TRIP / 2), "--rate", str(RATE),
                                     "--queue", str(QUEUE), "--seed", str(self.turns[turn]), *faults) as did:
                    check = OffloadCheck(self.wire, ["a"] * client_vma + ["b"] * server_vma, "Tcp")
                    result, frames = reading(str(next(PORTS)), client_vma, server_vma)
                    check.verify(frames)
            finally:
                self.wire.set_ecn(2)
            for direction in did["directions"]:
                del direction["drops"]
            return {**result, "relay": did["directions"]}
        return call

    def goodput(self, port, client_vma, server_vma):
        """iperf3 from a to b: Mbit/s that the receiver counted."""
        server = self.wire.start("b", "iperf3", "-s", "-1", "-p", port, "-B", ADDRESS["b"], vma=server_vma)
        self.wire.wait_bound(server, "tcp", int(port))
        client = self.wire.start("a", "iperf3", "-c", ADDRESS["b"], "-p", port, "-t", str(self.seconds), "-J",
                                 vma=client_vma)
        rate = parse_iperf3(self.wire.finish(client, self.seconds)) * 1e3
        self.wire.finish(server)
        if rate <= 0:
            raise Failure("iperf3 moved nothing")
        return {"rate": rate}, rate * 1e6 / 8 * self.seconds / MSS

    def requests(self, port, client_vma, server_vma):
        """Time of a request in ms."""
        server, _ = serve_requests(self.wire, self.program, client_vma, port)
        times, requests = request_times(self.wire, self.program, port, REQUESTS, ANSWER, AT_ONCE, server_vma)
        self.wire.interrupt(server)
        return times, requests * ANSWER / MSS


def rows(bench):
    """Name -> (function that measures, field of its reading, what is aimed at)."""
    wires = {f"{loss * 100:g} % lost": ("--drop", str(loss)) for loss in LOSSES} | FAULTS
    result = {}
    for name, faults in wires.items():
        result[f"goodput, {name}, Mbit/s"] = bench.on_wire(faults, bench.goodput), "rate", AIMS["goodput"]
    for name in ("1 % lost", *FAULTS):
        call = bench.on_wire(wires[name], bench.requests)
        for field in ("p50", "p99"):
            result[f"requests, {name}, {field}, ms"] = call, field, AIMS[field]
    return result


def main():
    parser = argparse.ArgumentParser(prog="lossy.py", description="TCP on a bad wire, kernel beside libvma.")
    parser.add_argument("--only", metavar="TEXT", help="rows whose name contains TEXT, in either case")
    parser.add_argument("--both", action="store_true", help="the library on both sides, too")
    parser.add_argument("--unpinned", action="store_true", help="let the scheduler place the programs")
    add_options(parser, 7)
    parser.set_defaults(seconds=5)
    options = parse_options(parser)
    columns = {"kernel": {}, "libvma sends": {"client_vma": True}}
    if options.both:
        columns["libvma both"] = {"client_vma": True, "server_vma": True}

    check_machine()
    library, relay, requests = find_programs(options.build, "relay", "requests")
    with LossyWire(library, relay, not options.unpinned, options.congestion) as wire:
        chosen = choose(parser, options, rows(Bench(wire, options.seconds, requests)))
        rounds = measure(wire, "lossy", steps_of(chosen, columns), options.rounds)
    progress("")
    print(heading(options, not options.unpinned))
    print(f"round trip {ROUND_TRIP / 1e3:g} ms, link of {RATE} Mbit/s; {REQUESTS:,} requests of "
          f"{ANSWER:,} bytes, {AT_ONCE} at once\n")
    for name, line in zip(["", *chosen], table(chosen, rounds, columns)):
        if name:
            reached = spread(ratios(chosen, rounds, name, "libvma sends", "kernel"))["median"]
            line += "   " + aim(*chosen[name][2], reached)
        print(line)
    write_readings(options, rounds)


if __name__ == "__main__":
    run_tool("lossy.py", main)
