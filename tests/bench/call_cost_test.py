# SPDX-License-Identifier: BSD-2-Clause
"""call_cost.py must read callgrind's file, give each instruction to its layer, and see what has grown."""
import collections
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import callgrind  # noqa: E402
import call_cost  # noqa: E402
import wire as ground  # noqa: E402

# What valgrind 3.19 writes: names once, lines relative, the cost of a call behind "calls=".
FILE = """# callgrind format
version: 1
positions: line
events: Ir
summary: 1160

ob=(10) /src/build/tests/bench/socket_instructions
fl=(195) /src/tests/bench/socket_instructions.cpp
fn=(1) measured_send
59 1000
cob=(9) /src/build/libvma/libvma.so
cfi=(612) /src/libvma/preload/send.cpp
cfn=(2) sendto
calls=10 -11
* 160

ob=(9)
fl=(612)
fn=(2)
48 10
+2 20
fi=(7) /src/libvma/ring/ring.h
* 5
fi=(8) /usr/include/c++/12/bits/stl_vector.h
-100 6
fe=(612)
80 1
cob=(11) /usr/lib/x86_64-linux-gnu/libc.so.6
cfi=(9) ./string/../memmove.S
cfn=(4) memcpy
calls=10 200
82 40
calls=1 300
83 8

fn=(5) lwip_input
fl=(13) /src/build/lwip-2.1.3/src/core/tcp_in.c
20 30
fl=(14) ???
fn=(6) std::function::operator()
0 9

ob=(11)
fl=(9)
fn=(4)
200 40
totals: 1160
"""


def measured(**figures):
    return {name.replace("_", " "): collections.Counter(all=value) for name, value in figures.items()}


class Callgrind(unittest.TestCase):
    def test_each_instruction_has_its_layer(self):
        # Not the calling program's own, and not what a call cost in all, which the callee's lines say again.
        self.assertEqual(callgrind.by_layer(FILE),
                         {"preload": 37, "ring": 5, "lwip": 30, "other": 9, "libc": 40})

    def test_total(self):
        self.assertEqual(callgrind.total(FILE), 1160)
        with self.assertRaises(ground.Failure):
            callgrind.total("events: Ir\n")

    def test_a_function_with_what_it_calls(self):
        self.assertEqual(callgrind.inclusive(FILE, "measured_send"), 1160)
        self.assertEqual(callgrind.inclusive(FILE, "sendto"), 10 + 20 + 5 + 6 + 1 + 40 + 8)
        self.assertEqual(callgrind.inclusive(FILE, "memcpy"), 40)
        with self.assertRaises(ground.Failure):
            callgrind.inclusive(FILE, "measured_recv")

    def test_layers_of_files(self):
        for path, layer in (("/home/x/libvma/libvma/tcp/send/sender.cpp", "tcp"),
                            ("/home/x/libvma/tests/bench/first.cpp", None),
                            ("/home/x/libvma/libvma/tcp/lwip/entry.cpp", "lwip"),
                            ("/usr/include/c++/12/bits/stl_vector.h", None), ("???", None)):
            with self.subTest(path):
                self.assertEqual(callgrind.layer_of(path), layer)

    def test_a_call_is_what_a_longer_run_adds(self):
        # Starting costs 5000, of which a shorter run and a longer one have the same.
        def run(command, _functions, _environment):
            count = int(command[-1])
            return f"{count}\n", FILE.replace("summary: 1160", f"summary: {5000 + 7 * count}")
        original, callgrind.run = callgrind.run, run
        self.addCleanup(setattr, callgrind, "run", original)
        row = callgrind.per_call(lambda count: ["program", str(count)], ["f"], 100)
        self.assertEqual((row["all"], row["ring"]), (7, 0))

    def test_a_program_that_fails_is_told(self):
        with self.assertRaises(ground.Failure) as caught:
            callgrind.run(["sh", "-c", "echo broken >&2; exit 1", callgrind.VALGRIND], ["f"])
        self.assertIn("broken", str(caught.exception))


class Limits(unittest.TestCase):
    def test_what_is_written_is_read(self):
        rows = measured(UDP_send=1274.4, TCP_send=2645.0)
        self.assertEqual(call_cost.read_limits(call_cost.write_limits(rows)),
                         {"UDP send": 1274, "TCP send": 2645})

    def test_growth(self):
        limits = {"UDP send": 1000, "TCP send": 2000}
        self.assertEqual(call_cost.compare(measured(UDP_send=1100, TCP_send=1819), limits), ([], []))
        wrong, better = call_cost.compare(measured(UDP_send=1101, TCP_send=1800), limits)
        self.assertIn("UDP send: 1101", wrong[0])
        self.assertIn("TCP send: 1800", better[0])

    def test_a_case_without_a_figure_and_a_figure_without_a_case(self):
        wrong, _ = call_cost.compare(measured(UDP_send=1), {"TCP send": 1})
        self.assertEqual(len(wrong), 2)

    def test_the_file_in_the_tree_has_every_case(self):
        with open(call_cost.LIMITS, encoding="ascii") as file:
            self.assertEqual(set(call_cost.read_limits(file.read())), set(call_cost.CASES))

    def test_table(self):
        rows = {"UDP send": collections.Counter(all=200, ring=150, sockets=50)}
        self.assertEqual([line.split() for line in call_cost.table(rows)],
                         [["all", "sockets", "ring"], ["UDP", "send", "200", "50", "150"]])
        self.assertEqual(call_cost.shares(rows)[2], "| UDP send | 200 | 25 | 75 |")


if __name__ == "__main__":
    unittest.main()
