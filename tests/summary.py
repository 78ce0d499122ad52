#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What a run of ctest found, counted by case, though ctest runs the cases of a group in one process.

    summary.py PRESET JUNIT RESULTS LOG DOCUMENT
        prints "PASSED FAILED SKIPPED", then a line for each case that needs a look: "unstable NAME" when it
        failed and then passed, "skipped NAME: REASON" when DOCUMENT does not allow it to be skipped (it
        counts as failed)

    summary.py --cases FILE
        prints "PASSED FAILED" of a file in GoogleTest's XML; a skipped case counts as failed

JUNIT is the file of `ctest --output-junit`, RESULTS the directory with the groups' own results
(cmake/GroupTests.cmake), LOG what ctest printed with failures shown, and DOCUMENT docs/testing.md, whose
table of skipped tests is the rule.
"""
import os
import re
import sys
import xml.etree.ElementTree
from dataclasses import dataclass, field

TABLE = "| Build | Reason, as the test prints it |"    # how the table of skipped tests begins
NO_TEST = ("disabled",
           "notrun")    # ctest's and GoogleTest's words for a test that was skipped or could not run
DEVICE = re.compile(r"^(?:rdma|mlx5)\.")    # prefixes of ctest's names that GoogleTest's do not have


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: list = field(default_factory=list)    # (name, reason)


def allowed_reasons(document, preset):
    """The reasons for which a case of this preset may be skipped."""
    rows = document.partition(TABLE)[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {row[1] for row in cells if len(row) > 1 and row[0] in (preset, "all")}


def reason_in(text):
    """The reason in GoogleTest's message of a skipped case: what follows the line with its place."""
    found = re.search(r"^\S+:\d+(?:: Skipped)?\n(.+?)\n*(?:^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else "no reason"


def count_group(path):
    """Counts of a group's cases; None without a file, as when the group died."""
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return None
    counts = Counts()
    for case in root.iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None:
            counts.failed += 1
        elif skipped is not None:
            counts.skipped.append((case.get("name"), reason_in(skipped.get("message", ""))))
        elif case.get("result") == "skipped" or case.get("status") in NO_TEST:
            counts.skipped.append((case.get("name"), "did not run"))
        else:
            counts.passed += 1
    return counts


def count(junit, results):
    """Counts of a ctest run."""
    total = Counts()
    for test in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):
        name, bad = test.get("name"), test.find("failure") is not None
        if not bad and (test.find("skipped") is not None or test.get("status") in NO_TEST):
            total.skipped.append((name, reason_in(test.findtext("system-out") or "")))
            continue
        group = count_group(os.path.join(results, name.replace("/", ".") + ".xml"))
        if group is None:
            group = Counts(failed=1) if bad else Counts(passed=1)
        elif bad and group.failed == 0:      # it failed elsewhere than in a case
            group.failed = 1
        total.passed += group.passed
        total.failed += group.failed
        prefix = DEVICE.match(name)
        total.skipped += [((prefix[0] if prefix else "") + case, reason) for case, reason in group.skipped]
    return total


def attempts(log):
    """Test -> for each time ctest ran it, the set of cases that failed: its own name for what failed outside
    of a case."""
    tests = {}
    # GoogleTest shows a parameter behind the name: "NAME  # GetParam() = VALUE ....".
    parts = re.split(r"^.*?Test +#\d+: (\S+).*?((?:Passed|\*\*\*).*)$", log, flags=re.MULTILINE)
    for name, result, output in zip(parts[1::3], parts[2::3], parts[3::3]):
        failed = set()
        if not re.match(r"Passed|\*\*\*Skipped", result):
            prefix = DEVICE.match(name)
            # GoogleTest names a failed case twice, once when it ends (with its time) and once in its list.
            cases = re.findall(r"^\[  FAILED  \] ([^ ,]+)(?:, where .*)? \(\d+ ms\)$", output, re.MULTILINE)
            failed = {(prefix[0] if prefix else "") + case for case in cases} or {name}
        tests.setdefault(name, []).append(failed)
    return tests


def unstable(log):
    """The cases that failed, but not when ctest ran them last."""
    return sorted(case for runs in attempts(log).values() for case in set().union(*runs) - runs[-1])


def main():
    if sys.argv[1] == "--cases":
        counts = count_group(sys.argv[2])
        if counts is None:
            sys.exit(f"summary.py: no results in {sys.argv[2]}")
        print(counts.passed, counts.failed + len(counts.skipped))
        return
    preset, junit, results, log, document = sys.argv[1:]
    counts = count(junit, results)
    with open(document, encoding="utf-8") as file:
        allowed = allowed_reasons(file.read(), preset)
    wrong = [(name, reason) for name, reason in counts.skipped if reason not in allowed]
    print(counts.passed, counts.failed + len(wrong), len(counts.skipped) - len(wrong))
    with open(log, encoding="utf-8", errors="replace") as file:
        for name in unstable(file.read()):
            print("unstable", name)
    for name, reason in wrong:
        print(f"skipped {name}: {reason}")


if __name__ == "__main__":
    main()
