#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The library's functions that run often lie side by side.

    hot_functions_test.py BUILD
"""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hot_functions  # noqa: E402
from wire import run  # noqa: E402

BUILD = sys.argv.pop() if len(sys.argv) > 1 else ""


class Reading(unittest.TestCase):
    def test_the_script_says_what_was_written(self):
        names = ["_ZN3vma4ring4Ring4pollEv", "tcp_input", "recv.part.0"]
        self.assertEqual(hot_functions.named(hot_functions.written(names)), names)

    def test_largest_share_of_any_pair_of_programs_comes_first(self):
        self.assertEqual(hot_functions.chosen([{"a": 10, "b": 90}, {"c": 60, "a": 40, "[unknown]": 9}]),
                         ["b", "c", "a"])

    def test_what_hardly_runs_is_left_out(self):
        self.assertEqual(hot_functions.chosen([{"often": 99_999, "once": 1}]), ["often"])


class Library(unittest.TestCase):
    def test_the_list_is_not_old(self):
        self.assertEqual(hot_functions.check(BUILD), 0, "hot_functions.py --renew writes a new one")

    def test_they_lie_side_by_side(self):
        printed = run("readelf", "-SW", os.path.join(BUILD, "libvma", "libvma.so"))
        found = re.search(re.escape(hot_functions.SECTION) + r" +PROGBITS +\w+ \w+ (\w+)", printed)
        self.assertIsNotNone(found, "the linker was not asked to")
        self.assertGreater(int(found[1], 16), 100_000)


if __name__ == "__main__":
    sys.exit(unittest.main())
