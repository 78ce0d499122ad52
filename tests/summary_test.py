#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""That cases are counted as they went, however ctest put them together, and that the rules of run-tests
hold."""
import os
import subprocess
import sys
import tempfile
import unittest

import summary

HERE = os.path.dirname(os.path.abspath(__file__))
GROUP = """<testsuites tests="4"><testsuite name="Tcp/TcpParity">
<testcase name="Same/bind_a" status="run" result="completed"/>
<testcase name="Same/bind_b" status="run" result="completed"><failure message="differ"/></testcase>
<testcase name="Same/bind_c" status="run" result="skipped">\
<skipped message="/x/y.cpp:31&#x0A;not here"/></testcase>
<testcase name="Same/bind_d" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
LOG = """    Test  #3: rdma.Tcp/TcpParity.bind ........***Failed    8.31 sec
[  FAILED  ] Tcp/TcpParity.Same/bind_b, where GetParam() = bind.b (31 ms)
[  FAILED  ] Tcp/TcpParity.Same/bind_c, where GetParam() = bind.c (31 ms)
[  FAILED  ] Tcp/TcpParity.Same/bind_b, where GetParam() = bind.b
      Start  3: rdma.Tcp/TcpParity.bind
12/40 Test  #3: rdma.Tcp/TcpParity.bind ........***Failed    8.31 sec
[  FAILED  ] Tcp/TcpParity.Same/bind_b, where GetParam() = bind.b (35 ms)
    Test  #4: bench.xsk_raw ........***Timeout  60.01 sec
    Test  #4: bench.xsk_raw ........   Passed   0.01 sec
    Test  #5: Udp.TurnedOff ........   Passed   0.01 sec
    Test  #6: Udp.Ends ........Subprocess aborted***Exception:   0.01 sec
    Test  #6: Udp.Ends ........   Passed   0.01 sec
    Test  #7: Gone ........***Failed   0.01 sec
    Test  #8: Two/Cases.Same/b  # GetParam() = b c ........***Failed   0.01 sec
    Test  #8: Two/Cases.Same/b  # GetParam() = b c ........   Passed   0.01 sec
"""
DOCUMENT = f"""Text.

{summary.TABLE} Tests |
|---|---|---|
| asan | not here | `bind_c` |
| all | nowhere | all |

| asan | not of this table | x |
"""
SKIPPED = """<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>\
<system-out>Note
[ RUN      ] A.C
/x/y.cpp:31: Skipped
not
here
[  SKIPPED ] A.C (0 ms)
</system-out></testcase>"""


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
        counts = summary.count(self.write("junit", f"<testsuite>{tests}</testsuite>"), self.directory.name)
        return counts.passed, counts.failed, counts.skipped

    def test_single_tests_count_as_one(self):
        two = '<testcase name="a" status="run"/><testcase name="b" status="fail"><failure/></testcase>'
        self.assertEqual(self.count(two + SKIPPED + '<testcase name="d" status="disabled"/>'),
                         (1, 1, [("c", "not here"), ("d", "no reason")]))

    def test_a_group_counts_its_cases(self):
        self.write("rdma.Tcp.TcpParity.bind.xml", GROUP)
        failed = '<testcase name="rdma.Tcp/TcpParity.bind" status="fail"><failure/></testcase>'
        self.assertEqual(self.count(failed),
                         (1, 1, [("rdma.Same/bind_c", "not here"), ("rdma.Same/bind_d", "did not run")]))

    def test_a_group_that_died_is_a_failure(self):
        self.write("G.xml", "<testsuites><testsuite")
        self.assertEqual(self.count('<testcase name="G" status="fail"><failure/></testcase>'), (0, 1, []))

    def test_a_group_that_failed_outside_of_its_cases(self):
        self.write("G.xml", '<testsuites><testcase name="a" status="run"/></testsuites>')
        self.assertEqual(self.count('<testcase name="G" status="fail"><failure/></testcase>'), (1, 1, []))

    def test_what_failed_and_then_passed_is_unstable(self):
        self.assertEqual(summary.unstable(LOG),
                         ["Two/Cases.Same/b", "Udp.Ends", "bench.xsk_raw", "rdma.Tcp/TcpParity.Same/bind_c"])

    def test_reasons_are_those_of_the_table_and_the_preset(self):
        self.assertEqual(summary.allowed_reasons(DOCUMENT, "asan"), {"not here", "nowhere"})
        self.assertEqual(summary.allowed_reasons(DOCUMENT, "release"), {"nowhere"})

    def run_program(self, preset):
        junit = self.write("junit", f'<testsuite><testcase name="a" status="run"/>{SKIPPED}</testsuite>')
        return subprocess.run([sys.executable, "-B", os.path.join(HERE, "summary.py"), preset, junit,
                               self.directory.name,
                               self.write("log", LOG), self.write("document", DOCUMENT)],
                              check=True, capture_output=True, text=True).stdout.splitlines()

    def test_a_skipped_case_needs_its_reason_in_the_document(self):
        self.assertEqual(self.run_program("asan")[0], "1 0 1")
        lines = self.run_program("release")
        self.assertEqual(lines[0], "1 1 0")
        self.assertEqual(lines[-1], "skipped c: not here")

    def test_the_document_of_this_project_has_the_table(self):
        with open(os.path.join(HERE, "../docs/testing.md"), encoding="utf-8") as file:
            self.assertNotEqual(summary.allowed_reasons(file.read(), "asan"), set())

    def rule(self, unstable):
        """What run-tests makes of 10 passed cases and this many unstable ones: (passed, failed)."""
        with open(os.path.join(HERE, "../run-tests"), encoding="utf-8") as file:
            text = file.read()
        function = text[text.index("judge_unstable()"):]
        function = function[:function.index("\n}\n") + 3]
        names = " ".join(f"case{i}" for i in range(unstable))
        return subprocess.run(["bash", "-uc",
                               f"passed=10 failed=0 summaries=() unstable=({names})\n{function}"
                                              'judge_unstable\necho "$passed $failed ${#summaries[@]}"'],
                              check=True, capture_output=True, text=True).stdout.split()

    def test_more_than_one_unstable_case_fails(self):
        self.assertEqual(self.rule(0), ["10", "0", "0"])
        self.assertEqual(self.rule(1), ["10", "0", "1"])
        self.assertEqual(self.rule(2), ["8", "2", "1"])


if __name__ == "__main__":
    unittest.main()
