#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""rates.py: messages and bytes a second, kernel beside library, with the library on both sides or on one.

    sudo tests/bench/rates.py [--rounds 7] [--seconds 1] [--only TEXT] [--congestion bbr] [--unpinned]

Each round measures everything once, every other round in reverse order. A ratio is that of libvma to the
kernel on both sides, inside a round; the table shows medians, with the smallest and the largest.
"""
import argparse
import json
import os

import suite_tcp
import suite_udp
from demo import REPOSITORY, check_machine, find_programs, measure
from table import cell, number, spread
from wire import Wire, progress, run_tool

SIDES = {"kernel": {}, "both": {"client_vma": True, "server_vma": True}, "sends": {"client_vma": True},
         "receives": {"server_vma": True}}


def rows(wire, seconds, programs):
    """Name -> (function that measures with the library on these sides, field of the reading)."""
    def bulk(streams):
        return lambda **sides: suite_tcp.bulk(wire, seconds, streams, False, **sides)
    return {
        "UDP 100 B, 1000/s": (lambda **sides: suite_udp.throughput(wire, seconds, 100, **sides), "received"),
        "UDP 1400 B, 1000/s": (lambda **sides: suite_udp.throughput(wire, seconds, 1400, **sides),
                               "received"),
        "UDP 100 B, sendmmsg of 32, 1000/s": (
            lambda **sides: suite_udp.many_at_once(wire, seconds, programs["datagrams"], **sides),
            "received"),
        **{f"TCP {size} B, 1000/s": (lambda size=size, **sides: suite_tcp.throughput(wire, seconds, size,
                                                                                     **sides), "received")
           for size in (100, 1400, 64000)},
        "TCP iperf3, 1 stream, Gbit/s": (bulk(1), "rate"),
        "TCP iperf3, 8 streams, Gbit/s": (bulk(8), "rate"),
        "TCP short connections, 1000/s": (
            lambda **sides: suite_tcp.short_connections(wire, seconds, programs["conn_rate"], **sides),
            "rate"),
    }


def ratio(rounds, name, side, field):
    """Of a side's readings to the kernel's, in each round."""
    return [r[f"{name}: {side}"][field] / r[f"{name}: kernel"][field] for r in rounds]


def table(measured, rounds):
    """Lines of text."""
    width = max(map(len, measured))
    lines = [" " * width + "".join(side.rjust(24) for side in ("kernel", "both", "sends", "receives"))]
    for name, (_, field) in measured.items():
        base = spread([r[f"{name}: kernel"][field] for r in rounds])
        line = name.ljust(width) + cell(base).rjust(24)
        for side in ("both", "sends", "receives"):
            own = spread([r[f"{name}: {side}"][field] for r in rounds])["median"]
            line += f"{number(own)}: {cell(spread(ratio(rounds, name, side, field)))}".rjust(24)
        lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(prog="rates.py", description="Rates, kernel beside libvma.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=1, help="length of one reading")
    parser.add_argument("--only", metavar="TEXT", help="rows whose name contains TEXT, in either case")
    parser.add_argument("--unpinned", action="store_true", help="let the scheduler place the programs")
    parser.add_argument("--congestion", default="cubic", metavar="NAME",
                        help="the kernel's TCP congestion control (default cubic)")
    parser.add_argument("--build", default=os.path.join(REPOSITORY, "build-release"), help="build directory")
    parser.add_argument("--json", metavar="FILE", help="write all readings there")
    options = parser.parse_args()
    if min(options.rounds, options.seconds) < 1:
        parser.error("rounds and seconds must be at least 1")

    check_machine()
    library, programs = find_programs(options.build)
    with Wire(library, not options.unpinned, options.congestion) as wire:
        chosen = {name: row for name, row in rows(wire, options.seconds, programs).items()
                  if (options.only or "").lower() in name.lower()}
        if not chosen:
            parser.error(f"no row's name contains {options.only}")
        steps = {f"{name}: {side}": lambda call=call, sides=sides: call(**sides)
                 for name, (call, _) in chosen.items() for side, sides in SIDES.items()}
        rounds = measure(wire, "rates", steps, options.rounds)
    progress("")
    placed = "programs not pinned" if options.unpinned else "client and server pinned to a processor each"
    print(f"Linux {os.uname().release}, {os.cpu_count()} CPUs, veth; {placed}; kernel TCP with "
          f"{options.congestion}; medians of {options.rounds} rounds of {options.seconds} s "
          "(smallest-largest)\n")
    print("\n".join(table(chosen, rounds)))
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump(rounds, file, indent=1)


if __name__ == "__main__":
    run_tool("rates.py", main)
