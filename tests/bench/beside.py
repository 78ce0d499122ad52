#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""beside.py BEFORE AFTER: two builds of libvma.so side by side, so that a change shows what it costs.

    git worktree add ../before COMMIT
    (cd ../before && cmake --preset release && cmake --build --preset release --target vma)
    sudo tests/bench/beside.py ../before/build-release/libvma/libvma.so build-release/libvma/libvma.so

Each round measures everything with both builds, every other round in reverse order. Client and server are
pinned to a processor each. A ratio above 1 says that AFTER is better; it is taken inside a round.
"""
import argparse
import os

import suite_tcp
import suite_udp
from demo import check_machine, measure
from table import cell, spread
from wire import Wire, run_tool

BOTH = {"client_vma": True, "server_vma": True}
# Name -> (function of wire and seconds, field, less is better)
ROWS = {
    "UDP ping-pong, 64 bytes, p50 in us": (lambda w, s: suite_udp.ping_pong(w, s, **BOTH), "p50", True),
    "UDP ping-pong, 64 bytes, p99 in us": ("UDP ping-pong, 64 bytes, p50 in us", "p99", True),
    "TCP ping-pong, 64 bytes, p50 in us": (lambda w, s: suite_tcp.ping_pong(w, s, **BOTH), "p50", True),
    "TCP ping-pong, 64 bytes, p99 in us": ("TCP ping-pong, 64 bytes, p50 in us", "p99", True),
    "UDP one way, 100 bytes, 1000 msg/s": (lambda w, s: suite_udp.throughput(w, s, vma=True), "received",
                                           False),
    "TCP one way, 100 bytes, 1000 msg/s": (lambda w, s: suite_tcp.throughput(w, s, 100, vma=True), "received",
                                           False),
    "TCP one way, 1400 bytes, 1000 msg/s": (lambda w, s: suite_tcp.throughput(w, s, 1400, vma=True),
                                            "received", False),
}


def reading(wire, library, function, seconds):
    wire.library = library
    return function(wire, seconds)


def ratios(rounds, before, after, field, less):
    """For each round, how many times better AFTER is."""
    pairs = [(r[before][field], r[after][field]) for r in rounds]
    return [b / a if less else a / b for b, a in pairs]


def main():
    parser = argparse.ArgumentParser(prog="beside.py",
                                     description="Two builds of libvma.so side by side, pinned.")
    parser.add_argument("before", help="libvma.so of the commit before")
    parser.add_argument("after", help="libvma.so with the change")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=1, help="length of one reading")
    parser.add_argument("--only", metavar="TEXT", help="rows whose name contains TEXT, in either case")
    options = parser.parse_args()
    if min(options.rounds, options.seconds) < 1:
        parser.error("rounds and seconds must be at least 1")
    libraries = {"before": os.path.realpath(options.before), "after": os.path.realpath(options.after)}
    for library in libraries.values():
        if not os.path.exists(library):
            parser.error(f"{library} does not exist")

    check_machine()
    rows = {name: row for name,
            row in ROWS.items() if not options.only or options.only.lower() in name.lower()}
    steps = {}
    for name, (function, field, _) in rows.items():
        del field
        source = name if callable(function) else function
        for which, library in libraries.items():
            steps[f"{source}, {which}"] = (lambda s=ROWS[source][0],
                                           l=library: reading(wire, l, s, options.seconds))
    with Wire("", pinned=True, congestion="cubic") as wire:
        rounds = measure(wire, "builds", steps, options.rounds)
    print(f"{options.rounds} rounds of {options.seconds} s, pinned; medians (smallest-largest)")
    for name, (function, field, less) in rows.items():
        source = name if callable(function) else function
        before, after = f"{source}, before", f"{source}, after"
        print(f"{name:37} before {cell(spread([r[before][field] for r in rounds])):20} "
              f"after {cell(spread([r[after][field] for r in rounds])):20} "
              f"ratio {cell(spread(ratios(rounds, before, after, field, less)))}")


if __name__ == "__main__":
    run_tool("beside.py", main)
