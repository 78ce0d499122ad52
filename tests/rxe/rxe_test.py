# SPDX-License-Identifier: BSD-2-Clause
"""Verbs on a real RDMA stack: one guest (see guest.py) runs all steps, then each test looks at what its steps did.

Asserted is what was done, counted and said, never how fast.
"""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest  # noqa: E402
from guest import ADDRESS, Step  # noqa: E402

BUILD = sys.argv.pop(1)
STEPS = []
RESULTS = {}


def perftest(name, program, *options, env=None):
    """A step with perftest's program on both devices."""
    common = [program, "-F", "-x", "1", *options]
    return Step(name, [*common, "-d", "rxe0", ADDRESS[1]], server=[*common, "-d", "rxe1"], ready="tcp:18515", env=env or {})


def setUpModule():
    RESULTS.update(guest.Guest(BUILD).run(STEPS))


class Case(unittest.TestCase):
    longMessage = True

    def both_succeeded(self, name):
        """The outputs of command and server, both of which ended well."""
        for role, output in zip(("command", "server"), RESULTS[name]):
            self.assertEqual(output.code, 0, f"{name}, {role}:\n{output.out}\n{output.err}")
        return RESULTS[name]


STEPS += [
    Step("devinfo", ["ibv_devinfo"]),
    Step("rping", ["rping", "-c", "-a", ADDRESS[1], "-p", "7471", "-C", "10", "-v"],
         server=["rping", "-s", "-a", ADDRESS[1], "-p", "7471", "-C", "10", "-v"], ready="cm:7471"),
    perftest("send_bw", "ib_send_bw", "-n", "200", "-s", "4096"),
    perftest("send_lat", "ib_send_lat", "-n", "50"),
]


class Ground(Case):
    """The guest itself, by the programs that everybody uses."""

    def test_there_are_two_active_devices(self):
        output = RESULTS["devinfo"][0]
        self.assertEqual(output.code, 0, output.err)
        self.assertEqual([line.split()[1] for line in output.out.splitlines() if "hca_id" in line], ["rxe0", "rxe1"])
        self.assertEqual(output.out.count("PORT_ACTIVE"), 2)

    def test_rping_pings_ten_times(self):
        for output in self.both_succeeded("rping"):
            self.assertEqual(output.out.count("ping data: rdma-ping-"), 10)

    def test_perftest_sends_all_it_should(self):
        for name, size, count in (("send_bw", "4096", "200"), ("send_lat", "2", "50")):
            output = self.both_succeeded(name)[0]
            rows = [line.split()[:2] for line in output.out.splitlines()]
            self.assertIn([size, count], rows, output.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
