#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Measures programs on the kernel and the same programs with libvma preloaded, side by side, and prints one
table.

A number from one machine at one moment says little: clocks, neighbours and hypervisors move it by tens of per
cent. So everything is measured in rounds, each round measures everything once, every other round in reverse
order, and what counts is the ratio inside a round. Beside the library stands what AF_XDP gives with nothing
on top of it (xsk_raw), so it shows how much there was to gain.

What is measured and what is aimed at stands in the files suite_*.py; all run in two network namespaces made
for this and joined by a veth pair (wire.py). A reading with libvma counts only if the kernel's own protocol
counters stood still meanwhile (offload.py): a library that silently left the work to the kernel is an error
here.
"""
import argparse
import datetime
import json
import os
import re
import shutil
import sys

import suite_first
import suite_hardware
import suite_mux
import suite_stats
import suite_tcp
import suite_udp
from table import evaluate, table
from wire import Failure, Wire, add_build_option, progress, run_tool

SUITES = {"first": suite_first, "udp": suite_udp, "tcp": suite_tcp, "mux": suite_mux, "stats": suite_stats,
          "hardware": suite_hardware}
ALL = [name for name, suite in SUITES.items() if getattr(suite, "BY_DEFAULT", True)]
# TCP has three times as many readings as UDP.
ROUNDS = {"first": 3, "udp": 5, "tcp": 3, "mux": 3, "stats": 5, "hardware": 3}
QUICK_ROUNDS = {"first": 1, "udp": 2, "tcp": 1, "mux": 1, "stats": 3, "hardware": 1}


def check_machine():
    if os.geteuid() != 0:
        raise Failure("root is needed, for network namespaces and XDP: sudo ./demo")
    missing = [tool for tool in ("ip", "sockperf", "iperf3") if shutil.which(tool) is None]
    if missing:
        raise Failure("not installed: " + ", ".join(missing) + " (tools/setup installs what is needed)")
    release = os.uname().release
    version = tuple(map(int, re.match(r"(\d+)\.(\d+)", release).groups()))
    if version < (6, 6):
        print(f"warning: Linux {release}; before 6.6 AF_XDP lacks what the library uses for full speed",
              file=sys.stderr)


def find_programs(build):
    """(library, programs of tests/bench by name)."""
    library = os.path.join(build, "libvma", "libvma.so")
    programs = {name: os.path.join(build, "tests", "bench", name)
                for name in ("xsk_raw", "conn_rate", "datagrams", "many_connections", "watch_many")}
    simulator = {name: os.path.join(build, "tests", "mlx5_sim", name)
                 for name in ("libmlx5_sim.so", "mlx5_sim_sysfs")}
    for path in (library, *programs.values()):
        if not os.path.exists(path):
            raise Failure(f"{path} is missing: build first, or start this as ./demo")
    return os.path.realpath(library), programs | simulator   # whoever needs the simulator looks for it


def measure(wire, title, measurements, number_of_rounds):
    """Readings of all rounds. `measurements`: name -> function that measures it once."""
    rounds = []
    for number in range(number_of_rounds):
        steps = list(measurements.items())
        readings = {}
        for name, step in steps if number % 2 == 0 else reversed(steps):
            progress(f"{title}, round {number + 1} of {number_of_rounds}: {name}")
            try:   # the last holder's program leaves the device a moment after the process has ended
                wire.wait_until(lambda: not any(map(wire.has_program, "ab")), "no XDP program is attached")
                readings[name] = step()
            except Failure as error:
                raise Failure(f"{title}, {name}: {error}") from None
        rounds.append(readings)
    progress("")
    return rounds


def print_other_congestion_control(library, options, seconds):
    """TCP once more, with the other congestion control in wide use on the kernel's side."""
    other = "bbr" if options.congestion != "bbr" else "cubic"
    with Wire(library, not options.unpinned, other) as wire:
        rounds = measure(wire, "TCP with " + other, suite_first.tcp_measurements(wire, seconds),
                         options.rounds or ROUNDS["first"])
    print(f"\nkernel TCP with {other}\n")
    print(table(evaluate(suite_first.tcp_rows(), rounds)))


def main():
    parser = argparse.ArgumentParser(prog="demo",
                                     description="Kernel and libvma side by side, on a veth pair.")
    parser.add_argument("--full", action="store_true",
                        help="measure everything, and TCP with BBR in a second table "
                             "(default: one table in two minutes)")
    parser.add_argument("--rounds", type=int,
                        help="rounds, each measures everything once (default 3, with --full 5 for UDP)")
    parser.add_argument("--seconds", type=int, help="length of one reading (default 1, with --full 2)")
    parser.add_argument("--quick", action="store_true",
                        help="readings of 1 second, 2 rounds for UDP, else 1, unless told otherwise")
    parser.add_argument("--only", choices=SUITES, help="measure only this (hardware: only if asked for)")
    parser.add_argument("--unpinned", action="store_true",
                        help="let the scheduler place the programs "
                             "(default: client and server on a processor each)")
    parser.add_argument("--congestion", default="cubic", metavar="NAME",
                        help="the kernel's TCP congestion control "
                             "(default cubic; bbr is the other one in wide use)")
    parser.add_argument("--json", metavar="FILE", help="write all readings and the table there")
    add_build_option(parser)
    options = parser.parse_args()
    chosen = [options.only] if options.only else ALL if options.full else ["first"]
    rounds_of = {name: options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)[name] for name in chosen}
    seconds = options.seconds or (1 if options.quick or chosen == ["first"] else 2)
    if min(rounds_of.values()) < 1 or seconds < 1:
        parser.error("rounds and seconds must be at least 1")

    check_machine()
    library, programs = find_programs(options.build)
    rounds, evaluated = {}, []
    with Wire(library, not options.unpinned, options.congestion) as wire:
        placed = "client and server pinned to a processor each" if wire.pinned else "programs not pinned"
        for name, number in rounds_of.items():
            rounds[name] = measure(wire, name.upper(), SUITES[name].measurements(wire, seconds, programs),
                                   number)
            evaluated += evaluate(SUITES[name].rows(), rounds[name])
    print(f"Linux {os.uname().release}, {os.cpu_count()} CPUs, veth; {placed}; "
          f"kernel TCP with {options.congestion}; "
          f"medians of rounds of {seconds} s (smallest-largest): "
          + ", ".join(f"{number} for {name.upper()}" for name, number in rounds_of.items()) + "\n")
    print(table(evaluated))
    if options.full:
        print_other_congestion_control(library, options, seconds)
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                       "kernel": os.uname().release, "cpus": os.cpu_count(), "pinned": wire.pinned,
                       "congestion": options.congestion, "rounds": rounds, "table": evaluated},
                      file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    run_tool("demo", main)
