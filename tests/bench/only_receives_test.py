# SPDX-License-Identifier: BSD-2-Clause
"""A program that spins in one thread and only receives makes no system call and wakes no other thread, but
for what is listed here with its reason.

    only_receives_test.py LIBRARY

The receiver runs in a network namespace, the kernel sends to it from another one. It is watched twice: by
strace, for which calls, and without, for how often its threads slept and were woken.
"""
import collections
import os
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire as ground  # noqa: E402
from offload import OffloadCheck  # noqa: E402
from readings import parse_json  # noqa: E402

LIBRARY = os.path.realpath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""
PORT, COUNT = 7000, 30_000
# Receives COUNT times between two calls that nothing else makes, then says how long that took, how many bytes
# came, and for each thread how often it slept.
RECEIVE = """
import json, os, socket, sys, time
protocol, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def sleeps():
    threads = {}
    for thread in os.listdir('/proc/self/task'):
        with open(f'/proc/self/task/{thread}/status') as file:
            fields = dict(line.split(':', 1) for line in file.read().splitlines() if ':' in line)
        threads[thread] = fields['Name'].strip(), int(fields['voluntary_ctxt_switches'])
    return threads
buffer, bytes = bytearray(65536), 0
if protocol == 'udp':
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, port))
else:
    s, _ = socket.create_server((address, port)).accept()
for i in range(1000):
    s.recv_into(buffer)
before, began = sleeps(), time.monotonic()
os.access('/begin', 0)
for i in range(count):
    bytes += s.recv_into(buffer)
os.access('/end', 0)
seconds = time.monotonic() - began
print(json.dumps({'seconds': seconds, 'bytes': bytes, 'pid': os.getpid(), 'sleeps': [
    [thread, name, number - before.get(thread, (name, 0))[1]]
    for thread, (name, number) in sleeps().items()]}))
"""
SEND = """
import socket, sys
kind = socket.SOCK_DGRAM if sys.argv[1] == 'udp' else socket.SOCK_STREAM
with socket.socket(socket.AF_INET, kind) as s:
    s.connect((sys.argv[2], int(sys.argv[3])))
    if kind == socket.SOCK_STREAM:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while True:
            s.send(b'x' * 100)
    except OSError:
        pass    # the receiver has gone
"""
# Where other spinning threads want the processors, as in a crowded test machine, the thread asks which it may
# use and offers its own (libvma/runtime/spinners.h). Neither wakes a thread.
CROWD = {"sched_yield", "sched_getaffinity"}
# A buffer on a page that is not known yet is looked at (process_vm_readv); a look of the internal thread at
# the rings holds a lock for a moment (futex).
RARE = COUNT // 1000


def calls_between(trace):
    """strace -f's file -> calls of each thread between the marks, by name: a counter for each thread. What
    was under way at the begin is left out; what is under way at the end counts."""
    result = collections.defaultdict(collections.Counter)
    inside = False
    for line in trace.splitlines():
        call = re.match(r"(\d+) +(\w+)\((.*)", line)
        if call is None:
            continue
        thread, name, rest = call.groups()
        if name == "access" and rest.startswith(('"/begin"', '"/end"')):
            inside = rest.startswith('"/begin"')
        elif inside:
            result[int(thread)][name] += 1
    return result


class Trace(unittest.TestCase):
    def test_calls_between_the_marks(self):
        self.assertEqual(calls_between("""7  mmap(NULL, 4096) = 0x7f
8  epoll_pwait(3,  <unfinished ...>
7  access("/begin", F_OK) = -1 ENOENT (No such file or directory)
8  <... epoll_pwait resumed>[], 16, 10, NULL, 8) = 0
7  sendto(5, NULL, 0, MSG_DONTWAIT, NULL, 0) = 0
7  access("/etc/libvma.conf", F_OK) = -1 ENOENT (No such file or directory)
7  sendto(5, NULL, 0, MSG_DONTWAIT, NULL, 0 <unfinished ...>
8  read(4, "", 8) = 0
7  <... sendto resumed>) = 0
7  access("/end", F_OK) = -1 ENOENT (No such file or directory)
7  write(1, "x", 1) = 1
8  +++ exited with 0 +++
"""), {7: {"sendto": 2, "access": 1}, 8: {"read": 1}})


class OnlyReceives(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.fail("network namespaces and XDP need root")
        if shutil.which("strace") is None:
            self.fail("strace is missing: tools/setup")
        self.wire = ground.Wire(LIBRARY, pinned=True).__enter__()
        self.addCleanup(self.wire.__exit__)

    def receive(self, protocol, *settings, trace=None):
        """What the receiver says."""
        settings = ["VMA_RX_POLL=-1", "VMA_TRACELEVEL=warn", *settings]
        program = [sys.executable, "-S", "-E", "-c", RECEIVE, protocol, ground.ADDRESS["b"], str(PORT),
                   str(COUNT)]
        check = OffloadCheck(self.wire, "b", protocol.title())
        if trace is None:
            receiver = self.wire.start("b", *program, vma=True, environment=settings)
        else:   # the library in the program, not in strace
            settings.append("LD_PRELOAD=" + LIBRARY)
            receiver = self.wire.start("b", "strace", "-f", "-o", trace,
                                       *(word for setting in settings for word in ("-E", setting)), *program)
        self.wire.wait_until(lambda: self.wire.has_program("b"), "the library has attached its XDP program",
                             receiver)
        self.wire.wait_bound(receiver, protocol, PORT)
        sender = self.wire.start("a", sys.executable, "-S", "-E", "-c", SEND, protocol, ground.ADDRESS["b"],
                                 str(PORT))
        result = parse_json(self.wire.finish(receiver, 60), "the receiver")
        sender.kill()
        self.wire.finish(sender, may_fail=True)
        check.verify(COUNT)
        self.wire.wait_until(lambda: not self.wire.has_program("b"), "the XDP program is gone")
        return result

    def traced(self, protocol, *settings):
        """(what the receiver says, the calls of its thread)."""
        with tempfile.TemporaryDirectory() as scratch:
            trace = os.path.join(scratch, "trace")
            result = self.receive(protocol, *settings, trace=trace)
            with open(trace, encoding="ascii", errors="replace") as file:
                return result, calls_between(file.read())[result["pid"]]

    def untraced(self, protocol):
        """(what the receiver says, how often its thread slept, how often each other one did)."""
        result = self.receive(protocol)
        own = [number for thread, _, number in result["sleeps"] if int(thread) == result["pid"]]
        others = [number for thread, _, number in result["sleeps"] if int(thread) != result["pid"]]
        self.assertGreater(len(others), 0, "the library's own thread is missing")
        return result, own[0], others

    def assert_only(self, reasons, calls):
        """The thread makes calls for these reasons, and but for these a call in a thousand receives."""
        rest = {name: number for name, number in calls.items() if name not in CROWD | reasons}
        self.assertLessEqual(sum(rest.values()), RARE, calls)

    def test_udp_makes_no_call(self):
        # The kernel has what comes by another way, such as the loopback device. It is asked as seldom as one
        # may choose.
        _, calls = self.traced("udp", "VMA_RX_UDP_POLL_OS_RATIO=1000000")
        self.assert_only(set(), calls)

    def test_udp_asks_the_kernel_after_so_many_polls(self):
        _, calls = self.traced("udp")    # by default 100
        self.assert_only({"recvmsg"}, calls)

    def test_udp_wakes_nobody(self):
        result, own, others = self.untraced("udp")
        self.assertEqual(own, 0, result)
        # Its own timers, such as that of the statistics, are slower than this.
        self.assertLessEqual(max(others), 2 + result["seconds"] * 10, result)

    def test_tcp_makes_calls_for_acks_only(self):
        result, calls = self.traced("tcp")
        self.assert_only({"sendto", "timerfd_settime"}, calls)
        # A kick for an ACK. Data that comes slowly is acknowledged segment by segment (RFC 1122, 4.2.3.2).
        self.assertLessEqual(calls["sendto"], COUNT)
        # The timer of delayed ACKs, when it is armed for earlier than the internal thread looks. That happens
        # once for each time it has fired, which is once in VMA_TCP_TIMER_RESOLUTION_MSEC at most.
        self.assertLessEqual(calls["timerfd_settime"], 2 + result["seconds"] * 1000)

    def test_tcp_wakes_the_internal_thread_for_timers_only(self):
        result, own, others = self.untraced("tcp")
        # Each look of the internal thread at the rings (VMA_PROGRESS_ENGINE_INTERVAL) may hold a lock.
        self.assertLessEqual(own, 2 + result["seconds"] * 100, result)
        # Those looks, and its TCP timers.
        self.assertLessEqual(max(others), 2 + result["seconds"] * (100 + 1000), result)


if __name__ == "__main__":
    unittest.main()
