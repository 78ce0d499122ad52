# SPDX-License-Identifier: BSD-2-Clause
"""A client's short connection makes no system call that the library can do without.

    short_connections_test.py LIBRARY CONN_RATE

conn_rate runs under strace with the library; its server is the kernel's. A test gives each kind of call its
most for a connection, so what opens the device counts little.
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

CONN_RATE, LIBRARY = (os.path.realpath(sys.argv.pop()), os.path.realpath(sys.argv.pop())) \
    if len(sys.argv) > 2 else ("", "")
PORT = 7000
LEAST = 200         # connections, so that what happens once does not count
ONCE = 100          # calls of a kind that the process makes whatever the number of connections
# The most of each kind for a connection: a connection has a socket, its port and a copy of the descriptor,
# which keeps the port until the connection is over.
MOST = {"bpf": 0, "prlimit64": 0, "socket": 1, "bind": 1, "getsockname": 1, "fcntl": 1, "close": 2,
        "epoll_ctl": 2}


def count_calls(trace):
    """strace -f's file -> how many calls of each name; one that another thread's interrupts counts once."""
    return collections.Counter(found.group(1) for found in re.finditer(r"^\d+ +(\w+)\(", trace, re.MULTILINE))


class Reading(unittest.TestCase):
    def test_calls_are_counted(self):
        self.assertEqual(count_calls("""7  bpf(BPF_MAP_CREATE, 0x7f) = 3
8  epoll_pwait(3,  <unfinished ...>
7  bpf(BPF_MAP_CREATE, 0x7f) = 4
8  <... epoll_pwait resumed>[], 16, 10, NULL, 8) = 0
8  +++ exited with 0 +++
"""), {"bpf": 2, "epoll_pwait": 1})


class ShortConnections(unittest.TestCase):
    def test_client(self):
        if os.geteuid() != 0:
            self.fail("network namespaces and XDP need root")
        if shutil.which("strace") is None:
            self.fail("strace is missing: tools/setup")
        with ground.Wire(LIBRARY, pinned=True) as wire, tempfile.TemporaryDirectory() as scratch:
            trace = os.path.join(scratch, "trace")
            check = OffloadCheck(wire, "a", "Tcp")
            server = wire.start("b", CONN_RATE, "server", ground.ADDRESS["b"], str(PORT))
            wire.wait_bound(server, "tcp", PORT)
            client = wire.start("a", "strace", "-f", "-o", trace, "-E", "LD_PRELOAD=" + LIBRARY,
                                "-E", "VMA_TRACELEVEL=warn", CONN_RATE, "client", ground.ADDRESS["b"],
                                str(PORT), "--seconds", "2")
            made = parse_json(wire.finish(client, 60), "the client")["connections"]
            with open(trace, encoding="ascii", errors="replace") as file:
                calls = count_calls(file.read())
            check.verify(5 * made)
        self.assertGreater(made, LEAST)
        # The system's settings are read once in 10 ms, from files that strace makes slow: no connection's.
        calls["close"] -= calls["openat"]
        for name, most in MOST.items():
            self.assertLessEqual(calls[name], ONCE + most * (made + 16), f"{name}: {calls}")


if __name__ == "__main__":
    unittest.main()
