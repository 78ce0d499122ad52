#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""attacked.py: an honest TCP client beside an attacker at a fixed rate, kernel beside library.

    sudo tests/bench/attacked.py [--rounds 7] [--rate 5000] [--only TEXT]

A server on side a answers requests of the honest client on side b, which is the kernel's in both columns. The
attacker (attack.py) on side b sends its frames to the server. The times are the honest client's.

Each round measures everything once, every other round in reverse order. A ratio is that of libvma to the
kernel, inside a round; the table shows medians, with the smallest and the largest.
"""
import argparse
import contextlib
import os
import sys

from columns import add_options, choose, heading, parse_options, ratios, steps_of, table, write_readings
from demo import check_machine, measure
from offload import OffloadCheck
from readings import parse_json
from request_times import find_programs, request_times, serve_requests
from table import aim, spread
from wire import ADDRESS, DEVICE, Failure, Wire, progress, run_tool

REQUESTS, ANSWER, AT_ONCE = 20_000, 1024, 4
ATTACKS = {"no attack": None, "SYN flood": "syns", "SACK blocks that jump": "sack",
           "forged ICMP errors": "errors", "neighbours that change": "neighbours",
           "segments out of the window": "outside"}
AIM = "<=", 1.2    # of the kernel's p99
FASTEST = 0.5      # of its rate the attacker must have reached
ATTACKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attack.py")


@contextlib.contextmanager
def attack(wire, kind, port, rate):
    """An attacker runs meanwhile. Afterwards the dictionary has what it did."""
    result = {}
    if kind is None:
        yield result
        return
    process = wire.start("b", sys.executable, "-S", "-E", ATTACKER, kind, DEVICE["b"], ADDRESS["a"], port,
                         str(rate))
    if process.stdout.readline() != "ready\n":
        raise Failure("the attacker did not start: " + wire.finish(process, may_fail=True))
    yield result
    result.update(parse_json(wire.interrupt(process), "attack"))
    if result["sent"] < rate * result["seconds"] * FASTEST:
        raise Failure(f"the attacker reached {result['sent']} frames in {result['seconds']} s only")


def reading(wire, program, kind, rate):
    """A measurement, to be called with the library on the server's side or not."""
    def call(vma=False):
        check = OffloadCheck(wire, ["a"] * vma, "Tcp")
        server, port = serve_requests(wire, program, vma)
        with attack(wire, kind, port, rate) as did:
            times, requests = request_times(wire, program, port, REQUESTS, ANSWER, AT_ONCE)
        wire.interrupt(server)
        check.verify(requests)
        return {**times, "attack": did}
    return call


def main():
    parser = argparse.ArgumentParser(prog="attacked.py", description="An honest client beside an attacker.")
    parser.add_argument("--only", metavar="TEXT", help="rows whose name contains TEXT, in either case")
    parser.add_argument("--rate", type=int, default=5000, help="frames of the attacker in a second")
    parser.add_argument("--unpinned", action="store_true", help="let the scheduler place the programs")
    add_options(parser, 7)
    options = parse_options(parser)
    columns = {"kernel": {}, "libvma": {"vma": True}}

    check_machine()
    library, requests = find_programs(options.build, "requests")
    with Wire(library, not options.unpinned, options.congestion) as wire:
        rows = {}
        for name, kind in ATTACKS.items():
            call = reading(wire, requests, kind, options.rate)
            rows.update({f"{name}, {field}, ms": (call, field) for field in ("p50", "p99")})
        chosen = choose(parser, options, rows)
        rounds = measure(wire, "attacked", steps_of(chosen, columns), options.rounds)
    progress("")
    print(heading(options, not options.unpinned))
    print(f"{REQUESTS:,} requests of {ANSWER:,} bytes, {AT_ONCE} at once; {options.rate:,} hostile frames a "
          "second\n")
    for name, line in zip(["", *chosen], table(chosen, rounds, columns)):
        if "p99" in name:
            line += "   " + aim(*AIM, spread(ratios(chosen, rounds, name, "libvma", "kernel"))["median"])
        print(line)
    write_readings(options, rounds)


if __name__ == "__main__":
    run_tool("attacked.py", main)
