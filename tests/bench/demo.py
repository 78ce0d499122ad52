#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Measures programs on the kernel and the same programs with libvma preloaded, side by side, and prints one table.

A number from one machine at one moment says little: clocks, neighbours and hypervisors move it by tens of per cent.
So everything is measured in rounds, each round measures everything once, every other round in reverse order, and what
counts is the ratio inside a round. Beside the library stands what AF_XDP gives with nothing on top of it (xsk_raw), so
it shows how much there was to gain.

The tests run in two network namespaces made for this and joined by a veth pair. A reading with libvma counts only if
the kernel's own UDP counters stood still meanwhile: a library that silently left the work to the kernel is an error here.
"""
import argparse
import ctypes
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREFIX = "vmademo"                           # of the namespaces' names; the process id follows
ADDRESS = {"a": "198.18.7.1", "b": "198.18.7.2"}
DEVICE = {"a": "veth0", "b": "veth1"}        # in their namespaces
UDP_PORT, TCP_PORT = 11111, 5201
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 10.0                              # seconds a program may take longer than it was asked to
OFFLOADED = 0.1                              # at most this part of the datagrams may pass the kernel's UDP

# Row -> least ratio to aim at, from what AF_XDP in copy mode on veth allows (docs/performance.md). None: no aim.
TARGETS = {   # how many times better than the kernel; the limits as fractions of the kernel's time: 0.33, 0.5, 0.65
    "both p50": 1 / 0.33, "both p99": 1 / 0.5,
    "client p50": 1 / 0.65, "client p99": None,
    "server p50": 1 / 0.65, "server p99": None,
    "spin p50": None, "spin p99": None,
    "rate": 2.2,
    "beside": 0.75,
}
# libvma beside the raw limit: at most 1.35 times its latency, at least 0.7 of its rate.
RAW_TARGETS = {"both p50": 1.35, "rate": 0.7}


class Failure(Exception):
    """A measurement that could not be made; the text says why."""


# ---- What the programs print ----------------------------------------------------------------------------------------

def parse_ping_pong(text):
    """Output of sockperf's ping-pong client -> {"p50", "p99"} in microseconds (half of the round trip) and messages."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    percentiles = {m[1]: float(m[2]) for m in re.finditer(r"percentile\s+([0-9.]+)\s*=\s*([0-9.]+)", text)}
    run = re.search(r"\[Total Run\].*ReceivedMessages=(\d+)", text)
    if run is None or "50.000" not in percentiles or "99.000" not in percentiles:
        raise Failure("sockperf's client printed no percentiles:\n" + text[-2000:])
    return {"p50": percentiles["50.000"], "p99": percentiles["99.000"], "messages": int(run[1])}


def parse_throughput_client(text):
    """Output of sockperf's throughput client -> (messages sent, seconds)."""
    found = re.search(r"Total of (\d+) messages sent in ([0-9.]+) sec", text)
    if found is None:
        raise Failure("sockperf's client printed no total:\n" + text[-2000:])
    return int(found[1]), float(found[2])


def parse_server(text):
    """Output of sockperf's server after SIGINT -> messages that its program received."""
    found = re.search(r"Total (\d+) messages received and handled", text)
    if found is None:
        raise Failure("sockperf's server printed no total:\n" + text[-2000:])
    return int(found[1])


def parse_iperf3(text):
    """iperf3 -J -> Gbit/s that the receiver counted."""
    try:
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9
    except (ValueError, KeyError) as error:
        raise Failure("iperf3 gave no result:\n" + text[-2000:]) from error


def parse_udp_counters(text):
    """/proc/net/snmp -> datagrams that the kernel's UDP delivered and sent."""
    names, values = [line.split()[1:] for line in text.splitlines() if line.startswith("Udp:")]
    row = dict(zip(names, map(int, values)))
    return row["InDatagrams"], row["OutDatagrams"]


# ---- Processes and namespaces ---------------------------------------------------------------------------------------

def die_with_parent():
    """Runs in the child: a killed demo leaves nothing running."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run(*command, timeout=PATIENCE):
    """Runs a command to its end and returns what it printed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                          preexec_fn=die_with_parent)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Wire:
    """Two namespaces joined by a veth pair, and the processes in them. Leaving the context removes all of it."""

    def __init__(self, library):
        self.library = library
        self.name = {side: f"{PREFIX}{os.getpid()}{side}" for side in "ab"}
        self.running = []

    def __enter__(self):
        remove_stale()
        try:
            for side in "ab":
                run("ip", "netns", "add", self.name[side])
                # Neighbour discovery and router solicitations would only be noise.
                self.inside(side, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true")
            run("ip", "link", "add", DEVICE["a"], "netns", self.name["a"], "type", "veth",
                "peer", "name", DEVICE["b"], "netns", self.name["b"])
            for side in "ab":
                run("ip", "-n", self.name[side], "addr", "add", ADDRESS[side] + "/24", "dev", DEVICE[side])
                run("ip", "-n", self.name[side], "link", "set", "lo", "up")
                run("ip", "-n", self.name[side], "link", "set", DEVICE[side], "up")
            self.wait_until(lambda: all(self.link(side)["operstate"] == "UP" for side in "ab"), "the veth pair is up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # A second Ctrl-C must not leave the rest in place.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        for side in "ab":
            subprocess.run(["ip", "netns", "del", self.name[side]], stderr=subprocess.DEVNULL, check=False)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def inside(self, side, *command, timeout=PATIENCE):
        return run("ip", "netns", "exec", self.name[side], *command, timeout=timeout)

    def start(self, side, *command, vma=False, environment=()):
        """Starts a program in a namespace, with the library if asked. The process id is the program's own."""
        prefix = ["ip", "netns", "exec", self.name[side]]
        if vma:
            prefix += ["env", "LD_PRELOAD=" + self.library, "VMA_TRACELEVEL=warn", *environment]
        process = subprocess.Popen([*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent)
        process.what = ("libvma " if vma else "kernel ") + " ".join(command)
        self.running.append(process)
        return process

    def finish(self, process, seconds=0.0, may_fail=False):
        """Waits for a program's end and returns its output."""
        try:
            output, _ = process.communicate(timeout=seconds + PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            raise Failure(f"{process.what}: did not end in time; it printed:\n{output[-2000:]}") from None
        self.running.remove(process)
        if process.returncode != 0 and not may_fail:
            raise Failure(f"{process.what}: exit status {process.returncode}; it printed:\n{output[-2000:]}")
        return output

    def interrupt(self, process):
        """Ends a server with SIGINT, as a user would, and returns its output."""
        process.send_signal(signal.SIGINT)
        return self.finish(process)

    def wait_until(self, condition, what, process=None):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if process is not None and process.poll() is not None:
                raise Failure(f"{process.what}: ended early; it printed:\n{self.finish(process, may_fail=True)}")
            if time.monotonic() > deadline:
                raise Failure("waited in vain until " + what)
            time.sleep(0.02)

    def wait_bound(self, process, protocol, port):
        """Waits until the kernel knows a socket on the port in the process's namespace."""
        def bound():
            try:
                with open(f"/proc/{process.pid}/net/{protocol}", encoding="ascii") as file:
                    return any(line.split()[1].endswith(f":{port:04X}") for line in file.readlines()[1:])
            except OSError:
                return False
        self.wait_until(bound, f"{process.what} has bound its port", process)

    def link(self, side):
        return json.loads(run("ip", "-n", self.name[side], "-j", "link", "show", "dev", DEVICE[side]))[0]

    def has_program(self, side):
        return "xdp" in self.link(side)

    def udp_counters(self, side):
        return parse_udp_counters(self.inside(side, "cat", "/proc/net/snmp"))


def remove_stale():
    """Namespaces of demos that were killed."""
    for line in run("ip", "netns", "list").splitlines():
        found = re.match(PREFIX + r"(\d+)[ab]\b", line)
        if found and not os.path.exists("/proc/" + found[1]):
            subprocess.run(["ip", "netns", "del", found[0]], stderr=subprocess.DEVNULL, check=False)


class OffloadCheck:
    """Around a run: the sides that have the library must not have used the kernel's UDP for its datagrams."""

    def __init__(self, wire, sides):
        self.wire, self.sides = wire, sides
        self.before = {side: wire.udp_counters(side) for side in sides}

    def verify(self, datagrams):
        for side in self.sides:
            after = self.wire.udp_counters(side)
            used = max(after[i] - self.before[side][i] for i in (0, 1))
            if used > datagrams * OFFLOADED:
                raise Failure(f"not offloaded: of {datagrams} datagrams {used} went through the kernel's UDP on the side "
                              "that has the library (VMA_TRACELEVEL=debug tells why)")


# ---- Measurements ---------------------------------------------------------------------------------------------------

def ping_pong(wire, seconds, client_vma=False, server_vma=False, spin=False):
    """sockperf's ping-pong from a to b, 64 bytes."""
    options = ["--nonblocked"] if spin else []
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    server = wire.start("b", "sockperf", "sr", "-i", ADDRESS["b"], "-p", str(UDP_PORT), *options, vma=server_vma)
    wire.wait_bound(server, "udp", UDP_PORT)
    client = wire.start("a", "sockperf", "pp", "-i", ADDRESS["b"], "-p", str(UDP_PORT), "-t", str(seconds), "-m", "64",
                        *options, vma=client_vma)
    result = parse_ping_pong(wire.finish(client, seconds))
    wire.interrupt(server)
    check.verify(result["messages"])
    return {"p50": result["p50"], "p99": result["p99"]}


def throughput(wire, seconds, vma=False):
    """sockperf's throughput test, 100 bytes: thousands of messages per second that the server's program received."""
    check = OffloadCheck(wire, ["a", "b"] if vma else [])
    server = wire.start("b", "sockperf", "sr", "-i", ADDRESS["b"], "-p", str(UDP_PORT), vma=vma)
    wire.wait_bound(server, "udp", UDP_PORT)
    client = wire.start("a", "sockperf", "tp", "-i", ADDRESS["b"], "-p", str(UDP_PORT), "-t", str(seconds), "-m", "100",
                        vma=vma)
    sent, duration = parse_throughput_client(wire.finish(client, seconds))
    time.sleep(0.1)   # what is queued still counts: it was sent in time
    received = parse_server(wire.interrupt(server))
    check.verify(sent)
    return {"received": received / duration / 1e3, "sent": sent / duration / 1e3}


def kernel_tcp(wire, seconds, beside=False):
    """iperf3 over the kernel's TCP from a to b, Gbit/s; with `beside` while a process with libvma holds b's device."""
    neighbour = None
    if beside:   # it sleeps in recvfrom: the question is what its XDP program costs, not what its spinning costs
        neighbour = wire.start("b", "sockperf", "sr", "-i", ADDRESS["b"], "-p", str(UDP_PORT), vma=True,
                               environment=["VMA_RX_POLL=1"])
        wire.wait_until(lambda: wire.has_program("b"), "the library has attached its XDP program", neighbour)
    server = wire.start("b", "iperf3", "-s", "-1", "-p", str(TCP_PORT), "-B", ADDRESS["b"])
    wire.wait_bound(server, "tcp", TCP_PORT)
    client = wire.start("a", "iperf3", "-c", ADDRESS["b"], "-p", str(TCP_PORT), "-t", str(seconds), "-J")
    rate = parse_iperf3(wire.finish(client, seconds))
    wire.finish(server)
    if neighbour is not None:
        wire.interrupt(neighbour)
    return {"rate": rate}


def raw(wire, seconds, program, what):
    """AF_XDP with nothing on top."""
    places = [f"{wire.name[side]}:{DEVICE[side]}" for side in "ab"]
    result = json.loads(run(program, what, *places, "--seconds", str(seconds), timeout=seconds + PATIENCE))
    if what == "latency":
        return result["half_rtt_us"]
    return {"received": result["received_per_second"] / 1e3, "sent": result["sent_per_second"] / 1e3}


def measurements(wire, seconds, xsk_raw):
    """Name -> function that measures it once."""
    return {
        "kernel": lambda: ping_pong(wire, seconds),
        "vma both": lambda: ping_pong(wire, seconds, client_vma=True, server_vma=True),
        "vma client": lambda: ping_pong(wire, seconds, client_vma=True),
        "vma server": lambda: ping_pong(wire, seconds, server_vma=True),
        "kernel spin": lambda: ping_pong(wire, seconds, spin=True),
        "raw": lambda: raw(wire, seconds, xsk_raw, "latency"),
        "kernel rate": lambda: throughput(wire, seconds),
        "vma rate": lambda: throughput(wire, seconds, vma=True),
        "raw rate": lambda: raw(wire, seconds, xsk_raw, "rate"),
        "tcp alone": lambda: kernel_tcp(wire, seconds),
        "tcp beside": lambda: kernel_tcp(wire, seconds, beside=True),
    }


# ---- The table ------------------------------------------------------------------------------------------------------

def rows():
    """(key, title, kernel, libvma, raw, field, less is better)."""
    latency = [("both", "libvma on both sides", "kernel", "vma both", "raw"),
               ("client", "libvma client only", "kernel", "vma client", None),
               ("server", "libvma server only", "kernel", "vma server", None),
               ("spin", "both, kernel spinning too", "kernel spin", "vma both", "raw")]
    for key, title, kernel, vma, limit in latency:
        for field in ("p50", "p99"):
            yield f"{key} {field}", f"{title}, {field}", kernel, vma, limit, field, True
    yield "rate", "received, 1000 msg/s", "kernel rate", "vma rate", "raw rate", "received", False
    yield "beside", "kernel TCP alone, beside; Gbit/s", "tcp alone", "tcp beside", None, "rate", False


SECTIONS = {"both p50": "UDP ping-pong, 64 bytes, half of the round trip in us", "rate": "UDP one way, 100 bytes",
            "beside": "A neighbour on the same device"}


def evaluate(rounds):
    """Readings of all rounds -> one dictionary for each row of the table. Ratios are taken inside each round."""
    result = []
    for key, title, kernel, vma, limit, field, less in rows():
        base = [r[kernel][field] for r in rounds]
        with_vma = [r[vma][field] for r in rounds]
        ratios = [k / v if less else v / k for k, v in zip(base, with_vma)]
        result.append({"key": key, "title": title, "kernel": spread(base), "libvma": spread(with_vma),
                       "ratio": spread(ratios), "target": TARGETS[key],
                       "raw": spread([r[limit][field] for r in rounds]) if limit else None,
                       "to_raw": spread([v / r[limit][field] for v, r in zip(with_vma, rounds)]) if limit else None,
                       "less": less})
    return result


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def number(value):
    """Three digits, more would pretend."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(value):
    if value is None:
        return "-"
    if value["min"] == value["max"]:
        return number(value["median"])
    return f"{number(value['median'])} ({number(value['min'])}-{number(value['max'])})"


def raw_target(row):
    limit = RAW_TARGETS.get(row["key"])
    if limit is None or row["to_raw"] is None:
        return "-"
    reached = row["to_raw"]["median"]
    met = reached <= limit if row["less"] else reached >= limit
    return f"{'<=' if row['less'] else '>='} {number(limit)}" + ("" if met else " missed")


def table(evaluated):
    lines = [["", "kernel", "libvma", "times better", "target", "raw limit", "libvma / raw", "target"]]
    for row in evaluated:
        if row["key"] in SECTIONS:
            lines.append([SECTIONS[row["key"]]])
        target = "-"
        if row["target"] is not None:
            target = f">= {number(row['target'])}" + ("" if row["ratio"]["median"] >= row["target"] else " missed")
        lines.append(["  " + row["title"], cell(row["kernel"]), cell(row["libvma"]), cell(row["ratio"]), target,
                      cell(row["raw"]), cell(row["to_raw"]), raw_target(row)])
    widths = [max(len(line[i]) for line in lines if len(line) > 1) for i in range(8)]
    text = []
    for line in lines:
        if len(line) == 1:
            text.append(line[0])
        else:
            text.append((line[0].ljust(widths[0]) + "".join("  " + c.rjust(w) for c, w in zip(line[1:], widths[1:]))).rstrip())
    return "\n".join(text)


# ---- The program ----------------------------------------------------------------------------------------------------

def check_machine():
    if os.geteuid() != 0:
        raise Failure("root is needed, for network namespaces and XDP: sudo ./demo")
    missing = [tool for tool in ("ip", "sockperf", "iperf3") if shutil.which(tool) is None]
    if missing:
        raise Failure("not installed: " + ", ".join(missing) + " (tools/setup installs what is needed)")
    release = os.uname().release
    version = tuple(map(int, re.match(r"(\d+)\.(\d+)", release).groups()))
    if version < (6, 6):
        print(f"warning: Linux {release}; before 6.6 AF_XDP lacks what the library uses for full speed", file=sys.stderr)


def find_library(build):
    library = os.path.join(build, "libvma", "libvma.so")
    xsk_raw = os.path.join(build, "tests", "bench", "xsk_raw")
    for path in (library, xsk_raw):
        if not os.path.exists(path):
            raise Failure(f"{path} is missing: build first, or start this as ./demo")
    return os.path.realpath(library), xsk_raw


def measure(wire, xsk_raw, number_of_rounds, seconds):
    rounds = []
    for number in range(number_of_rounds):
        steps = list(measurements(wire, seconds, xsk_raw).items())
        readings = {}
        for name, step in steps if number % 2 == 0 else reversed(steps):
            progress(f"round {number + 1} of {number_of_rounds}: {name}")
            try:   # the last holder's program leaves the device a moment after the process has ended
                wire.wait_until(lambda: not any(map(wire.has_program, "ab")), "no XDP program is attached")
                readings[name] = step()
            except Failure as error:
                raise Failure(f"{name}: {error}") from None
        rounds.append(readings)
    progress("")
    return rounds


def progress(text):
    if sys.stderr.isatty():
        print("\r\x1b[K" + text, end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="demo", description="Kernel and libvma side by side, on a veth pair.")
    parser.add_argument("--rounds", type=int, help="rounds, each measures everything once (default 5)")
    parser.add_argument("--seconds", type=int, help="length of one reading (default 2)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1 second unless told otherwise")
    parser.add_argument("--json", metavar="FILE", help="write all readings and the table there")
    parser.add_argument("--build", default=os.path.join(REPOSITORY, "build-release"), help="build directory")
    options = parser.parse_args()
    number_of_rounds = options.rounds or (2 if options.quick else 5)
    seconds = options.seconds or (1 if options.quick else 2)
    if number_of_rounds < 1 or seconds < 1:
        parser.error("rounds and seconds must be at least 1")

    def stop(*_):
        raise KeyboardInterrupt
    for number in STOPPING:
        signal.signal(number, stop)
    check_machine()
    library, xsk_raw = find_library(options.build)
    with Wire(library) as wire:
        rounds = measure(wire, xsk_raw, number_of_rounds, seconds)
    evaluated = evaluate(rounds)
    print(f"Linux {os.uname().release}, {os.cpu_count()} CPUs, veth; medians of {number_of_rounds} rounds "
          f"of {seconds} s (smallest-largest)\n")
    print(table(evaluated))
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                       "kernel": os.uname().release, "cpus": os.cpu_count(), "rounds": rounds, "table": evaluated},
                      file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    try:
        main()
    except (Failure, subprocess.TimeoutExpired) as failure:
        progress("")
        sys.exit(f"demo: {failure}")
    except KeyboardInterrupt:
        progress("")
        sys.exit("demo: interrupted")
