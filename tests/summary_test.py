#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""That cases are counted as they went, however ctest put them together."""
import os
import tempfile
import unittest

import summary

GROUP = """<testsuites tests="4"><testsuite name="Tcp/TcpParity">
<testcase name="Same/bind_a" status="run" result="completed"/>
<testcase name="Same/bind_b" status="run" result="completed"><failure message="differ"/></testcase>
<testcase name="Same/bind_c" status="run" result="skipped"><skipped message="not here"/></testcase>
<testcase name="Same/bind_d" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
LOG = """12/40 Test  #3: rdma.Tcp/TcpParity.bind ........***Failed    8.31 sec
[  FAILED  ] Tcp/TcpParity.Same/bind_b, where GetParam() = bind.b (31 ms)
[  FAILED  ] Tcp/TcpParity.Same/bind_b, where GetParam() = bind.b
[  FAILED  ] Tcp/TcpParity.Same/bind_b, where GetParam() = bind.b (35 ms)
    Test  #4: bench.xsk_raw ........***Timeout  60.01 sec
    Test  #5: Udp.TurnedOff ........   Passed   0.01 sec
"""


class Summary(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def write(self, name, text):
        path = os.path.join(self.directory.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def count(self, tests):
        return summary.count(self.write("junit", f"<testsuite>{tests}</testsuite>"), self.directory.name)

    def test_single_tests_count_as_one(self):
        self.assertEqual(self.count('<testcase name="a" status="run"/><testcase name="b" status="fail"><failure/></testcase>'
                                    '<testcase name="c" status="notrun"><skipped/></testcase>'
                                    '<testcase name="d" status="disabled"/>'), (1, 1))

    def test_a_group_counts_its_cases(self):
        self.write("rdma.Tcp.TcpParity.bind.xml", GROUP)
        self.assertEqual(self.count('<testcase name="rdma.Tcp/TcpParity.bind" status="fail"><failure/></testcase>'), (1, 1))

    def test_a_group_that_died_is_a_failure(self):
        self.write("G.xml", "<testsuites><testsuite")
        self.assertEqual(self.count('<testcase name="G" status="fail"><failure/></testcase>'), (0, 1))

    def test_a_group_that_failed_outside_of_its_cases(self):
        self.write("G.xml", '<testsuites><testcase name="a" status="run"/></testsuites>')
        self.assertEqual(self.count('<testcase name="G" status="fail"><failure/></testcase>'), (1, 1))

    def test_names_what_failed_once(self):
        self.assertEqual(summary.failed_once(LOG), {"Tcp/TcpParity.Same/bind_b": 2, "bench.xsk_raw": 1})


if __name__ == "__main__":
    unittest.main()
