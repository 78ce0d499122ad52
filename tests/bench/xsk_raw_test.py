# SPDX-License-Identifier: BSD-2-Clause
"""The raw limit must be measured on frames that really arrived, and those must be valid UDP."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire as ground  # noqa: E402
from offload import OffloadCheck  # noqa: E402

PROGRAM = sys.argv.pop(1)
# A packet socket on the way checks the frames as a receiver would.
CHECK_FRAMES = """
import socket, struct, sys
def total(data):
    data += b'\\0' * (len(data) % 2)
    value = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while value >> 16:
        value = (value & 0xffff) + (value >> 16)
    return value
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 0))
s.settimeout(5)
print('ready', flush=True)
seen = 0
while seen < 20:
    frame = s.recv(2048)
    if frame[12:14] != b'\\x08\\0' or frame[23] != 17:
        continue
    ip, udp = frame[14:34], frame[34:]
    assert total(ip) == 0xffff, 'IP header checksum'
    assert struct.unpack('!H', ip[2:4])[0] == len(ip) + len(udp), 'IP length'
    assert struct.unpack('!H', udp[4:6])[0] == len(udp), 'UDP length'
    assert udp[6:8] != b'\\0\\0', 'UDP checksum absent'
    assert total(ip[12:20] + b'\\0\\x11' + udp[4:6] + udp) == 0xffff, 'UDP checksum'
    seen += 1
"""


class XskRaw(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.fail("network namespaces and XDP need root")
        self.wire = ground.Wire("").__enter__()
        self.addCleanup(self.wire.__exit__)
        self.places = [f"{self.wire.name[side]}:{ground.DEVICE[side]}" for side in "ab"]

    def measure(self, *arguments):
        return json.loads(ground.run(PROGRAM, arguments[0], *self.places, "--seconds", "0.3", *arguments[1:]))

    def test_ping_pong(self):
        for mode in ("skb", "drv"):
            with self.subTest(mode):
                result = self.measure("latency", "--mode", mode)
                self.assertGreater(result["round_trips"], 0)
                self.assertLessEqual(result["half_rtt_us"]["p50"], result["half_rtt_us"]["p99"])

    def test_kernel_udp_sees_nothing(self):
        check = OffloadCheck(self.wire, ["a", "b"])
        check.verify(self.measure("latency")["round_trips"])

    def test_rate_counts_what_the_receiver_got(self):
        for batch in ("1", "32"):
            with self.subTest(batch):
                result = self.measure("rate", "--batch", batch)
                self.assertGreater(result["received"], 0)
                self.assertLessEqual(result["received"], result["sent"])

    def test_frames_are_valid(self):
        # An XSK's frames pass no packet socket on their own device, so they take a way with a bridge in the
        # middle.
        bridge, ends = self.wire.name["b"], self.wire.name["a"]
        ground.run("ip", "-n", bridge, "link", "add", "bridge0", "type", "bridge")
        for i in "01":
            ground.run("ip", "-n", ends, "link", "add", "end" + i, "type", "veth", "peer", "name", "port" + i,
                       "netns", bridge)
            ground.run("ip", "-n", ends, "addr", "add", f"198.18.8.{int(i) + 1}/24", "dev", "end" + i)
            ground.run("ip", "-n", ends, "link", "set", "end" + i, "up")
            ground.run("ip", "-n", bridge, "link", "set", "port" + i, "master", "bridge0", "up")
        ground.run("ip", "-n", bridge, "link", "set", "bridge0", "up")
        self.wire.wait_until(lambda: ground.run("bridge", "-n", bridge,
                                                "link").count("state forwarding") == 2, "ports forward")
        watchers = [self.wire.start("b", sys.executable, "-c", CHECK_FRAMES, "port" + i) for i in "01"]
        for watcher in watchers:
            self.assertEqual(watcher.stdout.readline(), "ready\n")
        ground.run(PROGRAM, "latency", f"{ends}:end0", f"{ends}:end1", "--seconds", "0.3", "--payload", "67")
        for watcher in watchers:
            self.wire.finish(watcher)

    def test_pinned(self):
        self.assertGreater(self.measure("latency", "--cpus", "0,0")["round_trips"], 0)
        for cpus in ("0", "0,1,2", "-1,0", "0,100000", "a,b"):
            with self.subTest(cpus), self.assertRaises(ground.Failure) as caught:
                self.measure("latency", "--cpus", cpus)
            self.assertIn("usage", str(caught.exception))

    def test_errors_are_told(self):
        for places in (["nosuchnamespace:veth0", self.places[1]],
                       [self.places[0], f"{self.wire.name['b']}:nosuchdevice"]):
            with self.subTest(places), self.assertRaises(ground.Failure) as caught:
                ground.run(PROGRAM, "latency", *places)
            self.assertIn("nosuch", str(caught.exception))

    def test_nothing_stays_attached(self):
        self.measure("rate")
        self.wire.wait_until(lambda: not any(map(self.wire.has_program, "ab")), "the program is gone")


if __name__ == "__main__":
    unittest.main()
