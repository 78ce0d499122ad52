#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a run of ctest found, counted by case, though ctest runs the cases of a group in one process.

    summary.py JUNIT RESULTS LOG   prints "PASSED FAILED", then a line with the cases that failed at least once

    summary.py --cases FILE        the same of a file in GoogleTest's XML

JUNIT is the file of `ctest --output-junit`, RESULTS the directory with the groups' own results (cmake/GroupTests.cmake),
LOG what ctest printed with failures shown.
"""
import collections
import os
import re
import sys
import xml.etree.ElementTree

NO_TEST = "notrun"    # ctest's word for a test that was skipped or could not run


def count_group(path):
    """(passed, failed) of a group's cases; None without a file, as when the group died. Skipped cases are neither."""
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return None
    passed = failed = 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
        elif case.get("status") == "run" and case.find("skipped") is None and case.get("result") != "skipped":
            passed += 1
    return passed, failed


def count(junit, results):
    """(passed, failed) of a ctest run. A test that did not run is no pass; a skipped one is neither."""
    passed = failed = 0
    for test in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):
        bad = test.find("failure") is not None
        if not bad and (test.find("skipped") is not None or test.get("status") in ("disabled", NO_TEST)):
            continue
        group = count_group(os.path.join(results, test.get("name").replace("/", ".") + ".xml"))
        if group is None:
            group = (0, 1) if bad else (1, 0)
        elif bad and group[1] == 0:      # it failed elsewhere than in a case
            group = (group[0], 1)
        passed, failed = passed + group[0], failed + group[1]
    return passed, failed


def failed_once(log):
    """Name -> how often, of the cases that failed in some run; of a test without cases its own name."""
    # GoogleTest names a failed case twice, once when it ends (with its time) and once in its list.
    cases = collections.Counter(re.findall(r"^\[  FAILED  \] ([^ ,]+)(?:, where .*)? \(\d+ ms\)$", log, re.MULTILINE))
    for test in re.findall(r"^.*Test +#\d+: (\S+) \.*\*\*\*(?:Failed|Timeout|Exception)", log, re.MULTILINE):
        plain = re.sub(r"^(rdma|mlx5)\.", "", test)
        if not any(case == plain or case.startswith(plain.split(".")[0] + ".") for case in cases):
            cases[test] += 1
    return cases


def main():
    if sys.argv[1] == "--cases":
        counts = count_group(sys.argv[2])
        if counts is None:
            sys.exit(f"summary.py: no results in {sys.argv[2]}")
        print(*counts)
        return
    junit, results, log = sys.argv[1:]
    print(*count(junit, results))
    with open(log, encoding="utf-8", errors="replace") as file:
        print(", ".join(f"{name} ({times})" for name, times in sorted(failed_once(file.read()).items())))


if __name__ == "__main__":
    main()
