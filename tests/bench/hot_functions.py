#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""hot_functions.py: the list of functions that lie side by side in libvma.so.

    tests/bench/hot_functions.py             exits with 1 if the library has lost too many of them
    sudo tests/bench/hot_functions.py --renew   measures, and writes libvma/hot_functions.ld

A short connection enters some 500 functions of the library, few of them twice. Their order is the linker's:
by source file. Then each lies on a page of its own, between others that hardly ever run, and the processor
waits for code. The linker script puts those that run beside each other.

--renew runs unmodified programs with the library on both sides, pinned, and samples both with perf. It takes
the functions that have a share of the library's samples in one of them, the largest first.
"""
import argparse
import os
import re
import tempfile
import time

from demo import check_machine, find_programs
from wire import ADDRESS, PATIENCE, REPOSITORY, Failure, Wire, add_build_option, progress, run, run_tool

SCRIPT = os.path.join(REPOSITORY, "libvma", "hot_functions.ld")
SECTION = ".text.vma_hot"
SHARE = 0.0002      # of the samples of a pair of programs; less is what happens once
KEPT = 0.8          # of the list: the compiler inlines another function with every change
SECONDS = 6         # of one pair
PORT = 7000
HEAD = f"""/* SPDX-License-Identifier: BSD-2-Clause
 * Functions that run often, beside each other. tests/bench/hot_functions.py writes this file. The linker
 * passes over a name that the library has not. */
SECTIONS
{{
  {SECTION} :
  {{
"""
TAIL = """  }
}
INSERT BEFORE .text;
"""


def named(script):
    """The functions that a linker script of ours names."""
    return re.findall(r"\*\(\.text\.([\w.$]+)\)", script)


def written(names):
    return HEAD + "".join(f"    *(.text.{name})\n" for name in names) + TAIL


def chosen(profiles):
    """Samples of functions, for each pair of programs -> names, the largest share first."""
    shares = {}
    for profile in profiles:
        total = sum(profile.values())
        for name, count in profile.items():
            if count >= SHARE * total and re.fullmatch(r"[A-Za-z_][\w.$]*", name):
                shares[name] = max(shares.get(name, 0), count / total)
    return sorted(shares, key=lambda name: (-shares[name], name))


def missing(library, names):
    """Those that are not functions of the library."""
    there = set(re.findall(r" [tTwW] (\S+)$", run("nm", library), re.MULTILINE))
    return [name for name in names if name not in there]


def programs_of(built):
    """What runs: (its protocol, server, client). The client's time is left out."""
    where, sockperf_where = [ADDRESS["b"], str(PORT)], ["-i", ADDRESS["b"], "-p", str(PORT)]
    yield "tcp", [built["conn_rate"], "server", *where], \
        [built["conn_rate"], "client", *where, "--at-once", "16", "--seconds"]
    for protocol, options in (("udp", []), ("tcp", ["--tcp"])):
        for ask in (["ping-pong", "-m", "64"], ["throughput", "-m", "100"], ["throughput", "-m", "1400"]):
            yield protocol, ["sockperf", "server", *sockperf_where, *options], \
                ["sockperf", *ask, *sockperf_where, *options, "-t"]


def profile(wire, scratch, protocol, serve, ask):
    """Samples of each of the library's functions in both programs."""
    out = os.path.join(scratch, "perf.data")
    server = wire.start("b", *serve, vma=True)
    wire.wait_bound(server, protocol, PORT)
    client = wire.start("a", *ask, str(SECONDS + 2), vma=True)
    time.sleep(1)    # the device is open by then
    run("perf", "record", "-q", "-e", "cpu-clock", "-F", "5000", "-o", out,
        "-p", f"{server.pid},{client.pid}", "--", "sleep", str(SECONDS), timeout=SECONDS + PATIENCE)
    wire.finish(client, SECONDS)
    wire.interrupt(server)
    printed = run("perf", "report", "-i", out, "--stdio", "--no-demangle", "-g", "none", "-n", "-q",
                  "--sort", "sym", "--dso", os.path.basename(wire.library), timeout=60)
    return {name: int(samples) for samples, name in
            re.findall(r"^ *[\d.]+% +(\d+) +\[\.\] (\S+)", printed, re.MULTILINE)}


def renew(build):
    check_machine()
    library, programs = find_programs(build)
    profiles = []
    with Wire(library, pinned=True) as wire, tempfile.TemporaryDirectory() as scratch:
        for protocol, serve, ask in programs_of(programs):
            progress(" ".join(ask))
            profiles.append(profile(wire, scratch, protocol, serve, ask))
            if not profiles[-1]:
                raise Failure(f"{' '.join(ask)}: perf saw nothing of {library}")
    progress("")
    names = chosen(profiles)
    with open(SCRIPT, "w", encoding="ascii") as file:
        file.write(written(names))
    print(f"{SCRIPT}: {len(names)} functions")


def check(build):
    with open(SCRIPT, encoding="ascii") as file:
        names = named(file.read())
    lost = missing(os.path.join(build, "libvma", "libvma.so"), names)
    print(f"{len(names) - len(lost)} of {len(names)} functions are in the library")
    return len(names) - len(lost) < KEPT * len(names)


def main():
    parser = argparse.ArgumentParser(prog="hot_functions.py",
                                     description="The functions that lie side by side in libvma.so.")
    add_build_option(parser)
    parser.add_argument("--renew", action="store_true", help="measure, and write libvma/hot_functions.ld")
    options = parser.parse_args()
    if options.renew:
        return renew(options.build)
    if check(options.build):
        raise Failure("the list is old: --renew writes a new one, and the library is linked anew")
    return 0


if __name__ == "__main__":
    run_tool("hot_functions.py", main)
