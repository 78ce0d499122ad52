#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""call_cost.py: instructions of one call of the socket API, and the share of each layer of the library.

    tests/bench/call_cost.py             prints the table
    tests/bench/call_cost.py --check     exits with 1 if a call takes 10 % more than in call_cost.limits
    tests/bench/call_cost.py --renew     writes that file
    tests/bench/call_cost.py --logic 20  with a ring for each thread

The library is preloaded into socket_instructions, over the mlx5 data path on the simulated adapter. Callgrind
counts the calls alone: the adapter and the peer move between them. The figures do not depend on the machine's
load, so a test runs --check. Needs valgrind and, without root, the right to make a user namespace: the
process has a network namespace of its own, which goes with it.
"""
import argparse
import collections
import os
import subprocess
import sys
import tempfile

import callgrind
from wire import REPOSITORY, Failure, add_build_option, run_tool

LIMITS = os.path.join(REPOSITORY, "tests", "bench", "call_cost.limits")
GROWTH = 1.1
CALLS = 512
# What is counted -> protocol, calls in a row, function of socket_instructions.
CASES = {
    "UDP sendto": ("udp", 1, "measured_sendto"),
    "UDP sendto, 32 in a row": ("udp", 32, "measured_sendto"),
    "UDP recvfrom": ("udp", 1, "measured_recvfrom"),
    "UDP recvfrom, 32 wait": ("udp", 32, "measured_recvfrom"),
    "UDP recv, nothing there": ("udp", 1, "measured_nothing"),
    "UDP epoll_wait": ("udp", 1, "measured_epoll"),
    "UDP poll and free": ("poll", 1, "measured_poll"),
    "UDP poll and free, 32 wait": ("poll", 32, "measured_poll"),
    "UDP poll, nothing there": ("poll", 1, "measured_poll_nothing"),
    "TCP send": ("tcp", 1, "measured_send"),
    "TCP send, 32 in a row": ("tcp", 32, "measured_send"),
    "TCP recv": ("tcp", 1, "measured_recv"),
    "TCP recv, 32 wait": ("tcp", 32, "measured_recv"),
    "zero-copy receive, free": ("extra", 1, "measured_zcopy"),
    "zero-copy receive, free, 32 wait": ("extra", 32, "measured_zcopy"),
    "receive callback": ("extra", 1, "measured_callback"),
    "receive callback, 32 wait": ("extra", 32, "measured_callback"),
    "UDP sendmany, one of 32": ("extra", 32, "measured_sendmany"),
    "TCP sendmany, one of 32": ("extra-tcp", 32, "measured_sendmany"),
    "UDP sendto of 1400 bytes, 32 in a row": ("buffers", 32, "measured_sendto_long"),
    "UDP send_zcopy of 1400 bytes, one of 32": ("buffers", 32, "measured_send_zcopy"),
}
ADDRESS, PEER = "198.18.0.1", "198.18.0.2"
MAC, PEER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
# In a network namespace that is the process's own.
NETDEV = f"""set -e
ip link add sim0 address {MAC} type veth peer name sim1 address {PEER_MAC}
ip link set lo up
ip link set sim0 up
ip link set sim1 up
ip addr add {ADDRESS}/24 dev sim0
ip neigh replace {PEER} lladdr {PEER_MAC} dev sim0 nud permanent
exec "$@"
"""


def environment(tree, logic=0):
    """Ours, without the settings of the library that it may have. `logic`: of VMA_RING_ALLOCATION_LOGIC_*."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VMA_", "MLX5_SIM_"))
            and name != "LD_PRELOAD"}
    # Over the adapter or not at all; no rules of the machine; the internal thread takes no frames away.
    return {**kept, "SYSFS_PATH": tree, "VMA_XDP_INTERFACES": "", "VMA_CONFIG_FILE": "/dev/null",
            "VMA_TRACELEVEL": "warn", "VMA_PROGRESS_ENGINE_INTERVAL": "0",
            "VMA_RING_ALLOCATION_LOGIC_RX": str(logic), "VMA_RING_ALLOCATION_LOGIC_TX": str(logic)}


def measure(build, logic=0, layers=True, chosen=tuple(CASES)):
    """Name of a case -> instructions of a call by layer, or only "all". `logic`: see environment()."""
    cases = {name: CASES[name] for name in chosen}
    program, library, sysfs = (os.path.join(build, *path) for path in (
        ("tests", "bench", "socket_instructions"), ("libvma", "libvma.so"),
        ("tests", "mlx5_sim", "mlx5_sim_sysfs")))
    for path in (program, library, sysfs):
        if not os.path.exists(path):
            raise Failure(f"{path} is missing: build first")
    # Without root, the right to make a network namespace comes from a user namespace.
    namespace = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    with tempfile.TemporaryDirectory() as scratch:
        tree = os.path.join(scratch, "sysfs")
        subprocess.run([sysfs, tree, f"sim0={MAC}"], check=True)

        def command(protocol, burst, count):
            return [*namespace, "sh", "-c", NETDEV, "sh", "env", "LD_PRELOAD=" + os.path.realpath(library),
                    f"VMA_SOCKETXTREME={int(protocol == 'poll')}",
                    callgrind.VALGRIND, program, protocol, str(burst), str(count)]

        def counted(count_by, run, functions):
            return count_by(lambda count: command(*run, count), functions, CALLS, environment(tree, logic))
        if layers:
            return {name: counted(callgrind.per_call, run, [function])
                    for name, (*run, function) in cases.items()}
        result = {}
        for run in dict.fromkeys(tuple(run) for *run, _ in cases.values()):
            names = {function: name for name, (*of, function) in cases.items() if tuple(of) == run}
            for function, instructions in counted(callgrind.all_per_call, run, list(names)).items():
                result[names[function]] = collections.Counter(all=instructions)
        return {name: result[name] for name in cases}


def table(measured):
    """Lines of text: a row for each case, a column for each layer that has a part in one."""
    shown = [layer for layer in callgrind.LAYERS if any(round(row[layer]) for row in measured.values())]
    width = max(map(len, measured))
    lines = [" " * width + "".join(name.rjust(9) for name in ("all", *shown))]
    for name, row in measured.items():
        lines.append(name.ljust(width) + "".join(f"{row[key]:9.0f}" for key in ("all", *shown)))
    return lines


def shares(measured):
    """The same in Markdown, with per cent for the layers."""
    shown = [layer for layer in callgrind.LAYERS if any(row[layer] >= row["all"] / 100
                                                        for row in measured.values())]
    # Without spaces the head fits into a line.
    lines = ["|" + "|".join(("Call", "all", *shown)) + "|", "|" + "---|" * (len(shown) + 2)]
    for name, row in measured.items():
        cells = [f"{row[layer] / row['all'] * 100:.0f}" for layer in shown]
        lines.append(f"| {name} | {row['all']:.0f} | " + " | ".join(cells) + " |")
    return lines


def read_limits(text):
    """Name -> instructions."""
    rows = (line.rpartition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: int(number) for name, _, number in rows}


def write_limits(measured):
    return ("# Instructions of a call, written by tests/bench/call_cost.py --renew.\n"
            "# A test fails when one grows by 10 %. A figure that grows needs its reason in the commit.\n"
            + "".join(f"{name}: {row['all']:.0f}\n" for name, row in measured.items()))


def grown(measured, limits):
    """Names of the cases that take more than they may."""
    return [name for name, row in measured.items() if row["all"] > limits.get(name, row["all"]) * GROWTH]


def compare(measured, limits):
    """(what is wrong, what the file should be renewed for): lines of text."""
    wrong, better = [], []
    for name in limits.keys() - measured.keys():
        wrong.append(f"{name}: in {os.path.basename(LIMITS)}, but not measured")
    for name, row in measured.items():
        if name not in limits:
            wrong.append(f"{name}: not in {os.path.basename(LIMITS)}")
        elif grown({name: row}, limits):
            wrong.append(f"{name}: {row['all']:.0f} instructions, {limits[name]} allow "
                         f"{limits[name] * GROWTH:.0f}")
        elif row["all"] < limits[name] / GROWTH:
            better.append(f"{name}: {row['all']:.0f} instructions, no longer {limits[name]}")
    return wrong, better


def main():
    parser = argparse.ArgumentParser(prog="call_cost.py",
                                     description="Instructions of one call of the socket API, by layer.")
    parser.add_argument("--check", action="store_true", help="fail if a call takes 10 %% more than it did")
    parser.add_argument("--renew", action="store_true", help="write the figures that --check compares with")
    parser.add_argument("--markdown", action="store_true", help="layers in per cent, as docs/performance.md")
    add_build_option(parser)
    parser.add_argument("--logic", type=int, default=0, help="ring allocation logic; the limits are of 0")
    options = parser.parse_args()
    # A check does without the layers: a run serves several cases then.
    build = os.path.abspath(options.build)
    measured = measure(build, options.logic, layers=not options.check)
    if options.check:
        with open(LIMITS, encoding="ascii") as file:
            limits = read_limits(file.read())
        # The library's internal thread may hold a lock when a counted call wants it. The smaller of two
        # readings has no such wait in it.
        suspects = grown(measured, limits)
        for name, row in (measure(build, options.logic, False, suspects) if suspects else {}).items():
            measured[name] = min(measured[name], row, key=lambda one: one["all"])
    print("\n".join(shares(measured) if options.markdown else table(measured)))
    if options.renew:
        with open(LIMITS, "w", encoding="ascii") as file:
            file.write(write_limits(measured))
    if not options.check:
        return 0
    wrong, better = compare(measured, limits)
    for line in better:
        print(line + ": tests/bench/call_cost.py --renew")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    run_tool("call_cost.py", main)
