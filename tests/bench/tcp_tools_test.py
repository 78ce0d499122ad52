# SPDX-License-Identifier: BSD-2-Clause
"""The TCP measuring programs must count what really happened, and the check must see what the kernel did."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire as ground  # noqa: E402
from offload import OffloadCheck  # noqa: E402
from readings import parse_json  # noqa: E402

CONN_RATE, MANY_CONNECTIONS, WATCH_MANY, DATAGRAMS = (sys.argv.pop(1) for _ in range(4))
PORT = "12000"


class TcpTools(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.fail("network namespaces need root")
        self.wire = ground.Wire("").__enter__()
        self.addCleanup(self.wire.__exit__)

    def converse(self, program, *options):
        """(the client's result, what the server served)."""
        server = self.wire.start("b", program, "server", ground.ADDRESS["b"], PORT)
        self.wire.wait_bound(server, "tcp", int(PORT))
        client = self.wire.start("a", program, "client", ground.ADDRESS["b"], PORT, *options)
        result = parse_json(self.wire.finish(client, 20), program)
        return result, int(self.wire.interrupt(server).split()[1])

    def test_short_connections_are_counted_by_both(self):
        for at_once in (1, 16):
            with self.subTest(at_once):
                result, served = self.converse(CONN_RATE, "--seconds", "0.3", "--at-once", str(at_once))
                self.assertGreater(result["connections"], 0)
                self.assertLessEqual(result["connections"], served)
                self.assertLessEqual(served, result["connections"] + at_once)   # those under way at the end

    def test_many_connections(self):
        check = OffloadCheck(self.wire, ["a", "b"], "Tcp")
        result, served = self.converse(MANY_CONNECTIONS, "--connections", "300", "--pings", "200")
        self.assertEqual((result["connections"], served), (300, 301))
        for times in (result["alone_us"], result["among_us"]):
            self.assertLessEqual(0, times["p50"])
            self.assertLessEqual(times["p50"], times["p99"])
        with self.assertRaises(ground.Failure):   # the kernel's segments are not taken for offloaded ones
            check.verify(700)

    def test_watch_many(self):
        result, served = self.converse(WATCH_MANY, "--connections", "300", "--calls", "200")
        self.assertEqual((result["connections"], served), (300, 300))
        for name in ("one_ready_ns", "many_ready_ns", "one_empty_ns", "many_empty_ns"):
            self.assertGreater(result[name], 0)

    def test_datagrams(self):
        server = self.wire.start("b", DATAGRAMS, "server", ground.ADDRESS["b"], PORT)
        self.wire.wait_bound(server, "udp", int(PORT))
        client = self.wire.start("a", DATAGRAMS, "client", ground.ADDRESS["b"], PORT, "--seconds", "0.2",
                                 "--batch", "7")
        sent = parse_json(self.wire.finish(client, 5), "datagrams")["sent"]
        received = int(self.wire.interrupt(server).split()[1])
        self.assertGreater(received, 0)
        self.assertLessEqual(received, sent)
        with self.assertRaises(ground.Failure) as caught:
            ground.run(DATAGRAMS, "client", "127.0.0.1", PORT, "--batch", "0")
        self.assertIn("--batch", str(caught.exception))

    def test_errors_are_told(self):
        for program in (CONN_RATE, MANY_CONNECTIONS, WATCH_MANY):
            with self.subTest(program), self.assertRaises(ground.Failure) as caught:
                self.wire.inside("a", program, "client", ground.ADDRESS["b"], PORT)
            self.assertIn("Connection refused", str(caught.exception))
            with self.subTest(program), self.assertRaises(ground.Failure) as caught:
                ground.run(program, "client", "nowhere", "0")
            self.assertIn("nowhere", str(caught.exception))
            with self.subTest(program), self.assertRaises(ground.Failure) as caught:
                ground.run(program, "nonsense")
            self.assertIn("usage", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
