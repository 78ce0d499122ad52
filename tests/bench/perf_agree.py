#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Do vma_perf and sockperf say the same? Both measure the same things on the same wire, on the kernel and on
libvma, one after the other in each round, every other round backwards, the two sides on a processor each.
What counts is the ratio inside a round: the machine's load moves both. Prints a table; the exit status is 0
when all medians agree within the tolerance.

    sudo tests/bench/perf_agree.py [--rounds 7] [--seconds 2] [--only udp|tcp] [--json FILE]
"""
import argparse
import csv
import json
import os
import statistics
import sys
import time

from offload import OffloadCheck
from readings import parse_ping_pong, parse_server, parse_throughput_client
from suite_tcp import LARGEST
from table import number
from wire import ADDRESS, Failure, Wire, add_build_option, run_tool

TOLERANCE = 0.10
PING_SIZE, ONE_WAY_SIZE = 64, 100
PORT = 11111
SERVER_ON, CLIENT_ON = (["taskset", "-c", "1"],
                        ["taskset", "-c", "0"]) if os.cpu_count() > 1 else ([], [])   # no luck with placement
CONTROL_PORT = 18600


class Measurement:
    """A transport, a test and a stack; each tool measures it once."""

    def __init__(self, transport, one_way, vma):
        self.transport, self.one_way, self.vma = transport, one_way, vma
        what = "one way, 100 bytes, received/s" if one_way else "ping-pong, 64 bytes, p50 in us"
        self.title = f"{transport.upper()} {what}"
        self.stack = "libvma" if vma else "kernel"

    def check(self, wire):
        return OffloadCheck(wire, ["a", "b"] if self.vma else [], self.transport.capitalize())

    def verify(self, check, messages):
        # What the kernel would at least have counted.
        check.verify(messages if self.transport == "udp" else max(messages * PING_SIZE // LARGEST, 1000))

    def sockperf(self, wire, seconds):
        protocol = ["--tcp"] if self.transport == "tcp" else []
        where = [*protocol, "-i", ADDRESS["b"], "-p", str(PORT)]
        check = self.check(wire)
        server = wire.start("b", *SERVER_ON, "sockperf", "sr", *where, vma=self.vma)
        wire.wait_bound(server, self.transport, PORT)
        test, size = ("tp", ONE_WAY_SIZE) if self.one_way else ("pp", PING_SIZE)
        text = wire.finish(wire.start("a", *CLIENT_ON, "sockperf", test, *where, "-t", str(seconds), "-m",
                                      str(size), vma=self.vma),
                           seconds)
        if self.one_way:
            sent, duration = parse_throughput_client(text)
            time.sleep(0.1)   # what is queued still counts: it was sent in time
            messages = parse_server(wire.interrupt(server))
            value = messages / duration
        else:
            result = parse_ping_pong(text)
            wire.interrupt(server)
            messages, value = result["messages"], result["p50"]
        self.verify(check, messages)
        return value

    def vma_perf(self, wire, seconds, program):
        check = self.check(wire)
        server = wire.start("b", *SERVER_ON, program, "server", "--clients", "1", vma=self.vma)
        wire.wait_bound(server, "tcp", CONTROL_PORT)
        test, size = ("throughput", ONE_WAY_SIZE) if self.one_way else ("pingpong", PING_SIZE)
        text = wire.finish(wire.start("a", *CLIENT_ON, program, test, ADDRESS["b"], "-t", self.transport,
                                      "-T", str(seconds), "-s", str(size),
                                      "--csv", vma=self.vma), seconds)
        wire.finish(server)
        result, = csv.DictReader(text.splitlines()[-2:])   # what comes before is the library's log
        self.verify(check, int(result["received"]))
        return float(result["received_per_s" if self.one_way else "p50_us"])


def rounds_of(wire, measurements, options, program):
    """[{measurement: {"sockperf", "vma_perf"}}], one for each round."""
    rounds = []
    for number_of_round in range(options.rounds):
        steps = [(m, tool) for m in measurements for tool in ("sockperf", "vma_perf")]
        readings = {}
        for m, tool in steps if number_of_round % 2 == 0 else reversed(steps):
            print(f"round {number_of_round + 1} of {options.rounds}: {m.title}, {m.stack}, {tool}",
                  file=sys.stderr, flush=True)
            wire.wait_until(lambda: not any(map(wire.has_program, "ab")), "no XDP program is attached")
            value = (m.sockperf(wire, options.seconds) if tool == "sockperf"
                     else m.vma_perf(wire, options.seconds, program))
            readings.setdefault(m, {})[tool] = value
        rounds.append(readings)
    return rounds


def evaluate(measurements, rounds):
    rows = []
    for m in measurements:
        sockperf, perf = ([r[m][tool] for r in rounds] for tool in ("sockperf", "vma_perf"))
        ratios = [b / a for a, b in zip(sockperf, perf)]
        ratio = statistics.median(ratios)
        rows.append({"title": m.title, "stack": m.stack, "sockperf": statistics.median(sockperf),
                     "vma_perf": statistics.median(perf),
                     "ratio": ratio, "smallest": min(ratios), "largest": max(ratios),
                     "agrees": abs(ratio - 1) <= TOLERANCE})
    return rows


def print_table(rows):
    print(f"{'':40}{'sockperf':>12}{'vma_perf':>12}{'ratio':>8}  (smallest-largest)")
    for row in rows:
        apart = "" if row["agrees"] else "  more than 10 % apart"
        print(f"{row['title'] + ', ' + row['stack']:40}{number(row['sockperf']):>12}"
              f"{number(row['vma_perf']):>12}{row['ratio']:>8.3f}"
              f"  ({row['smallest']:.3f}-{row['largest']:.3f}){apart}")


def main():
    parser = argparse.ArgumentParser(
        description="vma_perf and sockperf side by side, on the kernel and on libvma.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=2, help="length of one reading")
    parser.add_argument("--only", choices=("udp", "tcp"))
    parser.add_argument("--json", metavar="FILE", help="write all readings there")
    add_build_option(parser)
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds < 1:
        parser.error("rounds and seconds must be at least 1")
    if os.geteuid() != 0:
        raise Failure("root is needed, for network namespaces and XDP")
    library = os.path.realpath(os.path.join(options.build, "libvma", "libvma.so"))
    program = os.path.join(options.build, "tools", "vma_perf", "vma_perf")
    for path in (library, program):
        if not os.path.exists(path):
            raise Failure(f"{path} is missing: build first")

    measurements = [Measurement(transport, one_way, vma) for transport in ("udp", "tcp")
                    if options.only in (None, transport)
                    for one_way in (False, True) for vma in (False, True)]
    with Wire(library) as wire:
        rounds = rounds_of(wire, measurements, options, program)
    rows = evaluate(measurements, rounds)
    print_table(rows)
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"rows": rows,
                       "rounds": [{f"{m.title}, {m.stack}": v for m, v in r.items()} for r in rounds]}, file,
                      indent=1)
            file.write("\n")
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    run_tool("perf_agree", main)
