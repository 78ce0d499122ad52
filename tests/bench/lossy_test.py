# SPDX-License-Identifier: BSD-2-Clause
"""The relay must spoil the frames of its list and no others, and pass all bytes as they are."""
import ctypes
import os
import socket
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire as ground  # noqa: E402
from lossy_wire import LossyWire  # noqa: E402
from readings import parse_json  # noqa: E402

RELAY, REQUESTS = (sys.argv.pop(1) for _ in range(2))
PORT = "12000"
CLONE_NEWNET, SO_RCVBUFFORCE = 0x40000000, 33
# Sends frames of hand-made TCP segments: sys.argv: device, ports of connections, segments of each, ECN bits.
# Behind each with data goes one without.
SEND = """
import socket, struct, sys
def checksum(data):
    value = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while value >> 16:
        value = (value & 0xffff) + (value >> 16)
    return ~value & 0xffff
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
s.bind((sys.argv[1], 0))
for number in range(int(sys.argv[3])):
    for port in map(int, sys.argv[2].split(',')):
        for size in (200, 0):
            data = struct.pack('!I', number) * (size // 4)
            tcp = struct.pack('!HHIIBBHHH', port, 80, number * 200, 1, 5 << 4, 16, 1000, 0xabcd, 0)
            ip = struct.pack('!BBHHHBBH4s4s', 0x45, int(sys.argv[4]), 40 + size, 7, 0x4000, 64, 6, 0,
                             bytes((198, 18, 7, 1)), bytes((198, 18, 7, 2)))
            ip = ip[:10] + struct.pack('!H', checksum(ip)) + ip[12:]
            s.send(b'\\2\\0\\0\\0\\0\\2\\2\\0\\0\\0\\0\\1\\x08\\0' + ip + tcp + data)
"""


def socket_in(name):
    """A packet socket in the named network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net", encoding="ascii") as here, \
            open("/run/netns/" + name, encoding="ascii") as there:
        try:
            if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        finally:
            libc.setns(here.fileno(), CLONE_NEWNET)


def checksum(data):
    value = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while value >> 16:
        value = (value & 0xffff) + (value >> 16)
    return value


class Relay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise PermissionError("network namespaces need root")
        cls.wire = LossyWire("", RELAY).__enter__()
        cls.addClassCleanup(cls.wire.__exit__)
        cls.arrived = socket_in(cls.wire.name["b"])
        cls.arrived.bind((ground.DEVICE["b"], 0))
        cls.arrived.settimeout(0.3)
        cls.arrived.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)    # nobody reads meanwhile
        cls.addClassCleanup(cls.arrived.close)

    def pass_through(self, *options, ports="1000", segments=400, ecn=0):
        """Sends segments from a to b. Port -> [(number, IP header)] of those with data that arrive, in their
        order; and what the relay printed."""
        with self.wire.relay(*options) as did:
            self.wire.inside("a", sys.executable, "-S", "-E", "-c", SEND, ground.DEVICE["a"], ports,
                             str(segments), str(ecn))
            seen, empty = {int(port): [] for port in ports.split(",")}, 0
            while True:
                try:
                    frame = self.arrived.recv(2048)
                except TimeoutError:
                    break
                if frame[:2] != b"\2\0" or frame[12:14] != b"\x08\0":
                    continue
                self.assertEqual(checksum(frame[14:34]), 0xffff)
                port, = struct.unpack("!H", frame[34:36])
                number = struct.unpack("!I", frame[38:42])[0] // 200
                if len(frame) == 54:
                    empty += 1
                else:
                    self.assertEqual(frame[54:], struct.pack("!I", number) * 50)
                    self.assertEqual(frame[50:52], b"\xab\xcd")
                    seen[port].append((number, frame[14:34]))
        self.assertEqual(empty, segments * len(seen))    # no list has segments without data
        return seen, did

    @staticmethod
    def numbers(seen, port=1000):
        return [number for number, _ in seen[port]]

    def test_drops_the_numbers_that_are_named(self):
        lost = [0, 3, 4, 250, 399]
        seen, did = self.pass_through("--drop-numbers", ",".join(map(str, lost)), ports="1000,1001")
        for port in seen:
            self.assertEqual(self.numbers(seen, port), [n for n in range(400) if n not in lost])
        there, back = did["directions"]
        self.assertEqual(sorted(there["drops"]), [[connection, n] for connection in (0, 1) for n in lost])
        self.assertEqual((there["data"], there["dropped"], back["dropped"]), (800, 10, 0))

    def test_list_is_made_of_the_seed(self):
        first, did = self.pass_through("--drop", "0.1", "--seed", "5", ports="1000,1001")
        again, _ = self.pass_through("--drop", "0.1", "--seed", "5", ports="2000,2001")
        other, _ = self.pass_through("--drop", "0.1", "--seed", "6")
        lost = {number for connection, number in did["directions"][0]["drops"] if connection == 0}
        self.assertEqual(self.numbers(first), [n for n in range(400) if n not in lost])
        for port in (1000, 1001):    # whatever the ports
            self.assertEqual(self.numbers(first, port), self.numbers(again, port + 1000))
        self.assertNotEqual(self.numbers(first), self.numbers(first, 1001))
        self.assertNotEqual(self.numbers(first), self.numbers(other))
        self.assertTrue(15 <= len(lost) <= 80, lost)

    def test_one_direction_only(self):
        seen, did = self.pass_through("--drop", "0.5", "--from", "1")
        self.assertEqual(self.numbers(seen), list(range(400)))
        self.assertEqual(did["directions"][0]["dropped"], 0)

    def test_doubles_and_overtakes(self):
        seen, did = self.pass_through("--duplicate", "0.1", "--reorder", "0.1", "--late", "20000")
        numbers = self.numbers(seen)
        self.assertEqual(set(numbers), set(range(400)))
        self.assertEqual(len(numbers), 400 + did["directions"][0]["duplicated"])
        self.assertGreater(did["directions"][0]["duplicated"], 10)
        self.assertGreater(did["directions"][0]["reordered"], 10)
        self.assertNotEqual(numbers, sorted(numbers))

    def test_marks_only_who_knows_ecn(self):
        for ecn in (0, 1, 2):
            with self.subTest(ecn):
                seen, did = self.pass_through("--mark", "0.1", ecn=ecn)
                marks = [header[1] for _, header in seen[1000]]
                there = did["directions"][0]
                self.assertEqual(marks.count(3), there["marked"])
                self.assertEqual(marks.count(ecn), 400 - there["marked"])
                self.assertGreater(there["unmarkable" if ecn == 0 else "marked"], 10)

    def test_link_has_a_queue(self):
        _, did = self.pass_through("--rate", "1000", "--queue", "1000", segments=100)
        self.assertEqual(did["directions"][0]["overflowed"], 0)

    def test_programs_over_a_bad_wire(self):
        with self.wire.relay("--delay", "500", "--drop", "0.02", "--duplicate", "0.02", "--reorder", "0.02",
                             "--late", "200") as did:
            server = self.wire.start("b", REQUESTS, "server", ground.ADDRESS["b"], PORT)
            self.wire.wait_bound(server, "tcp", int(PORT))
            client = self.wire.start("a", REQUESTS, "client", ground.ADDRESS["b"], PORT, "--count", "300")
            result = parse_json(self.wire.finish(client, 20), "requests")
            self.assertEqual(self.wire.interrupt(server), "served 300\n")
        self.assertEqual(result["requests"], 300)
        self.assertLessEqual(result["us"]["p50"], result["us"]["p99"])
        self.assertGreaterEqual(result["us"]["p50"], 1000)    # the relay's delay, there and back
        self.assertGreater(did["directions"][1]["dropped"], 0)
        self.assertEqual(did["connections"], 16)

    def test_errors_are_told(self):
        for arguments in ((), ("port0",), ("port0", "port1", "--drop", "2"), ("port0", "port1", "--drop"),
                          ("port0", "nosuch")):
            with self.subTest(arguments), self.assertRaises(ground.Failure):
                self.wire.inside("m", RELAY, *arguments)


if __name__ == "__main__":
    unittest.main()
