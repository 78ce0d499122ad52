# SPDX-License-Identifier: BSD-2-Clause
"""The ground of the measurements: two network namespaces joined by a veth pair, and the programs that run in
them."""
import ctypes
import ipaddress
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

PREFIX = "vmademo"                           # of the namespaces' names; the process id follows
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ADDRESS = {"a": "198.18.7.1", "b": "198.18.7.2"}
DEVICE = {"a": "veth0", "b": "veth1"}        # in their namespaces
# A processor each: unpinned, the scheduler puts both on one or wakes a sleeping one.
CPU = {"a": 0, "b": 1}
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Prints how many tcx programs a netdev has; Debian 12's bpftool does not know them. 46: BPF_TCX_INGRESS.
COUNT_TCX = """
import ctypes, socket
count = ctypes.c_uint32(0)
ctypes.CDLL("libbpf.so.1").bpf_prog_query(socket.if_nametoindex("%s"), 46, 0, None, None, ctypes.byref(count))
print(count.value)
"""
PATIENCE = 10.0                              # seconds a program may take longer than it was asked to


class Failure(Exception):
    """A measurement that could not be made; the text says why."""


def progress(text):
    if sys.stderr.isatty():
        print("\r\x1b[K" + text, end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def run_tool(name, main):
    """Runs main() as a command: it ends in order on a signal, and says in one line what went wrong."""
    def stop(*_):
        raise KeyboardInterrupt
    for number in STOPPING:
        signal.signal(number, stop)
    try:
        sys.exit(main())
    except (Failure, subprocess.TimeoutExpired) as failure:
        progress("")
        sys.exit(f"{name}: {failure}")
    except KeyboardInterrupt:
        progress("")
        sys.exit(f"{name}: interrupted")


def add_build_option(parser):
    """--build of a command line (argparse): where the library and the programs are."""
    parser.add_argument("--build", default=os.path.join(REPOSITORY, "build-release"), help="build directory")


def die_with_parent():
    """Runs in the child: a killed demo leaves nothing running."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def cpu_of_children():
    """Seconds of a processor, by the programs and by the kernel for them, of all that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_each(sender, receiver, count):
    """Two finished processes -> microseconds of a processor that each used for one of `count` messages."""
    return {name: process.cpu * 1e6 / count if count else 0.0
            for name, process in (("cpu sender", sender), ("cpu receiver", receiver))}


def run(*command, timeout=PATIENCE):
    """Runs a command to its end and returns what it printed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                          preexec_fn=die_with_parent)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Wire:
    """Two namespaces joined by a veth pair, and the processes in them. Leaving the context removes all of
    it."""

    def __init__(self, library, pinned=False, congestion=None):
        """`pinned`: programs of a side keep to that side's processor, with all their threads. `congestion`:
        the kernel's congestion control in both namespaces; None: the machine's."""
        self.library = library
        self.pinned, self.congestion = pinned and os.cpu_count() > 1, congestion
        self.name = {side: f"{PREFIX}{os.getpid()}{side}" for side in "ab"}
        self.running = []
        self.kept = []    # directories of measurements (TemporaryDirectory), removed with the wire

    def __enter__(self):
        remove_stale()
        try:
            for side in self.name:
                run("ip", "netns", "add", self.name[side])
                # Neighbour discovery and router solicitations would only be noise.
                self.inside(side, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true")
                # Many short connections: the usual 28,000 ports run out, and the kernel searches long before
                # they do.
                self.inside(side, "sh", "-c", "echo 1024 65535 > /proc/sys/net/ipv4/ip_local_port_range")
            self.join()
            for side in "ab":
                run("ip", "-n", self.name[side], "addr", "add", ADDRESS[side] + "/24", "dev", DEVICE[side])
                run("ip", "-n", self.name[side], "link", "set", "lo", "up")
                run("ip", "-n", self.name[side], "link", "set", DEVICE[side], "up")
                if self.congestion:
                    # By the route: in a namespace the default may only be the machine's own, or reno.
                    network = str(ipaddress.ip_interface(ADDRESS[side] + "/24").network)
                    run("ip", "-n", self.name[side], "route", "replace", network, "dev", DEVICE[side],
                        "proto", "kernel", "scope", "link",
                        "src", ADDRESS[side], "congctl", self.congestion)
            self.wait_until(lambda: all(self.link(side)["operstate"] == "UP" for side in "ab"),
                            "the veth pair is up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def join(self):
        """Makes the devices of both sides."""
        run("ip", "link", "add", DEVICE["a"], "netns", self.name["a"], "type", "veth",
            "peer", "name", DEVICE["b"], "netns", self.name["b"])

    def __exit__(self, *_):
        # A second Ctrl-C must not leave the rest in place.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        for directory in self.kept:
            directory.cleanup()
        for side in self.name:
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
        def prepare():
            die_with_parent()
            if self.pinned and side in CPU:
                os.sched_setaffinity(0, {CPU[side]})
        process = subprocess.Popen([*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, preexec_fn=prepare)
        process.what = ("libvma " if vma else "kernel ") + " ".join(command)
        self.running.append(process)
        return process

    def finish(self, process, seconds=0.0, may_fail=False):
        """Waits for a program's end and returns its output. `process.cpu`: seconds of a processor it used."""
        before = cpu_of_children()
        try:
            output, _ = process.communicate(timeout=seconds + PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            raise Failure(f"{process.what}: did not end in time; it printed:\n{output[-2000:]}") from None
        self.running.remove(process)
        process.cpu = cpu_of_children() - before
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
                raise Failure(f"{process.what}: ended early; it printed:\n"
                              f"{self.finish(process, may_fail=True)}")
            if time.monotonic() > deadline:
                raise Failure("waited in vain until " + what)
            time.sleep(0.02)

    def wait_bound(self, process, protocol, port):
        """Waits until the kernel knows a socket on the port in the process's namespace; of TCP one that
        listens, since connections of a server before may be there for a while."""
        def bound():
            try:
                with open(f"/proc/{process.pid}/net/{protocol}", encoding="ascii") as file:
                    sockets = [line.split() for line in file.readlines()[1:]]
                    return any(s[1].endswith(f":{port:04X}") and (protocol != "tcp" or s[3] == "0A")
                               for s in sockets)
            except OSError:
                return False
        self.wait_until(bound, f"{process.what} has bound its port", process)

    def link(self, side):
        return json.loads(run("ip", "-n", self.name[side], "-j", "link", "show", "dev", DEVICE[side]))[0]

    def has_program(self, side):
        """Whether a program takes frames from the device: by XDP or, on a veth device, by tcx."""
        return "xdp" in self.link(side) or self.inside(
            side, sys.executable, "-S", "-E", "-c", COUNT_TCX % DEVICE[side]).strip() not in ("", "0")

    def congestion_control(self):
        """What a connection from a to b begins with."""
        ask = (f"import socket; s = socket.socket(); s.setblocking(False); "
               f"s.connect_ex(('{ADDRESS['b']}', 9)); "
               "print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b'\\0')[0].decode())")
        return self.inside("a", sys.executable, "-c", ask).strip()

    def snmp(self, side):
        """The kernel's own protocol counters in the namespace."""
        return self.inside(side, "cat", "/proc/net/snmp")


def remove_stale():
    """Namespaces of demos that were killed."""
    for line in run("ip", "netns", "list").splitlines():
        found = re.match(PREFIX + r"(\d+)[abm]\b", line)
        if found and not os.path.exists("/proc/" + found[1]):
            subprocess.run(["ip", "netns", "del", found[0]], stderr=subprocess.DEVNULL, check=False)
