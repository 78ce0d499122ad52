#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""tools/structure counts right, and the sources of this tree are within tools/structure.limits."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]

HEADER = """// A comment with a member_ that is none;
#pragma once
#include "libvma/low/low.h"
class Thing final : public Other {
  public:
    Thing() noexcept : a_(1) {}
    int count() const { return a_; }
  private:
    struct Inner {
        int one_, two_;
    };
    static constexpr int kMany = 3;
    int a_ = 0, b_{1};
    std::uint64_t until(std::uint64_t deadline_ns, int known) const;
    std::map<int, std::pair<int, int>> table_;
    std::atomic<bool> flag_{
        false};  // wrapped by the formatter
    alignas(64) Inner inner_;
    char text_[4];
};
"""
SOURCE = """#include "thing.h"
int g_first = 0;
void Thing::call() {
    one(1);
    two(2);
    three(3);
    four(4);
    five(5);
    six(6);
    seven(7);
}
"""


class Structure(unittest.TestCase):
    def run_tool(self, top, *arguments):
        return subprocess.run([TOP / "tools" / "structure", "--top", top, *arguments], capture_output=True,
                              text=True, check=False)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.top = pathlib.Path(self.folder.name)
        for name in ("libvma/high", "libvma/low", "tools", "docs", "tests", "cmake", "include"):
            (self.top / name).mkdir(parents=True)
        (self.top / "libvma/high/thing.h").write_text(HEADER)
        for name in ("a", "b"):
            (self.top / f"libvma/high/{name}.cpp").write_text(SOURCE)
        (self.top / "docs/text.md").write_text(
            "# A title\n\nShort. " + "word " * 26 + "end.\n\n    " + "code " * 30 + "\n\n| " +
            "cell " * 20 + "|\n")

    def figures(self):
        lines = self.run_tool(self.top).stdout.splitlines()
        return dict((name, int(number)) for name, number in (line.rsplit(": ", 1) for line in lines))

    def test_counts(self):
        figures = self.figures()
        self.assertEqual(figures["data members of the largest class"], 6)
        self.assertEqual(figures["classes with more than 25 data members"], 0)
        self.assertEqual(figures["arrows between folders"], 1)
        self.assertEqual(figures["pairs of duplicates"], 1)
        self.assertEqual(figures["global variables"], 2)
        self.assertEqual(figures["times that are plain integers"], 1)
        self.assertEqual(figures["sentences over 25 words in documents"], 1)
        self.assertEqual(figures["lines over 110 columns"], 2)  # the sentence and the code

    def test_files_of_a_class(self):
        for name in ("c", "d"):
            (self.top / f"libvma/high/{name}.cpp").write_text(f"void Thing::{name}() {{}}\n")
        self.assertEqual(self.figures()["classes in more than 3 files"], 1)
        self.assertIn("4 Thing", self.run_tool(self.top, "--list", "in more than").stdout)

    def test_limits(self):
        limits = self.top / "tools/structure.limits"
        limits.write_text("# a comment\nglobal variables: 2\n")
        self.assertEqual(self.run_tool(self.top, "--check").returncode, 0)
        limits.write_text("global variables: 1\n")
        result = self.run_tool(self.top, "--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("g_first", result.stdout)
        limits.write_text("no such figure: 1\n")
        self.assertEqual(self.run_tool(self.top, "--check").returncode, 1)
        limits.write_text("global variables 1\n")
        result = self.run_tool(self.top, "--check")
        self.assertIn("structure.limits:1:", result.stderr)
        self.assertEqual(result.returncode, 1)

    def test_this_tree(self):
        result = self.run_tool(TOP, "--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())
