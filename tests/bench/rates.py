#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""rates.py: messages and bytes a second, kernel beside library, with the library on both sides or on one.

    sudo tests/bench/rates.py [--rounds 7] [--seconds 1] [--only TEXT] [--congestion bbr] [--unpinned] [--cpu]

Each round measures everything once, every other round in reverse order. A ratio is that of libvma to the
kernel on both sides, inside a round; the table shows medians, with the smallest and the largest. --cpu adds
what the sending and the receiving program used of a processor for each message that arrived.
"""
import argparse
import statistics

import suite_tcp
import suite_udp
from columns import add_options, choose, heading, parse_options, steps_of, table, write_readings
from demo import check_machine, find_programs, measure
from table import number
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


def cpu_table(measured, rounds):
    """Lines of text: median microseconds of the sending and the receiving program for each message."""
    width = max(map(len, measured))
    lines = [" " * width + "".join(side.rjust(18) for side in SIDES)]
    for name in measured:
        lines.append(name.ljust(width))
        for side in SIDES:
            used = [number(statistics.median(r[f"{name}: {side}"]["cpu " + end] for r in rounds))
                    for end in ("sender", "receiver")]
            lines[-1] += " + ".join(used).rjust(18)
    return lines


def main():
    parser = argparse.ArgumentParser(prog="rates.py", description="Rates, kernel beside libvma.")
    parser.add_argument("--only", metavar="TEXT", help="rows whose name contains TEXT, in either case")
    parser.add_argument("--unpinned", action="store_true", help="let the scheduler place the programs")
    parser.add_argument("--cpu", action="store_true", help="a second table: processor time for each message")
    add_options(parser, 7)
    options = parse_options(parser)

    check_machine()
    library, programs = find_programs(options.build)
    with Wire(library, not options.unpinned, options.congestion) as wire:
        chosen = choose(parser, options, rows(wire, options.seconds, programs))
        rounds = measure(wire, "rates", steps_of(chosen, SIDES), options.rounds)
    progress("")
    print(heading(options, not options.unpinned))
    print("\n".join(table(chosen, rounds, SIDES)))
    if options.cpu:
        print("\nmicroseconds of a processor for each message (iperf3: 128 KB; a connection), sending and "
              "receiving program\n")
        print("\n".join(cpu_table(chosen, rounds)))
    write_readings(options, rounds)


if __name__ == "__main__":
    run_tool("rates.py", main)
