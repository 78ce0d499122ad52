# SPDX-License-Identifier: BSD-2-Clause
"""Tables with a column for each circumstance must compare inside a round, and what measures processor time
must count the right programs'."""
import os
import re
import subprocess
import sys
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import columns  # noqa: E402
import conditions  # noqa: E402
import rates  # noqa: E402
import wire as ground  # noqa: E402

SPIN = "import time\nwhile time.process_time() < 0.3: pass"


class Columns(unittest.TestCase):
    def setUp(self):
        self.calls = []

        def call(value):
            self.calls.append(value)
            return {"p50": value, "p99": 2 * value}
        self.rows = {"p50, us": (call, "p50"), "p99, us": (call, "p99")}
        self.columns = {"one": {"value": 1.0}, "two": {"value": 3.0}}

    def test_rows_of_one_function_share_a_measurement(self):
        steps = columns.steps_of(self.rows, self.columns)
        round_ = {name: step() for name, step in steps.items()}
        self.assertEqual(self.calls, [1.0, 3.0])
        lines = columns.table(self.rows, [round_], self.columns)
        self.assertEqual([line.split() for line in lines],
                         [["one", "two"], ["p50,", "us", "1.00", "3.00:", "3.00"],
                          ["p99,", "us", "2.00", "6.00:", "3.00"]])

    def test_ratio_is_taken_inside_a_round(self):
        rounds = [{"p50, us: one": {"p50": one}, "p50, us: two": {"p50": two}}
                  for one, two in ((1.0, 2.0), (10.0, 20.0), (1.0, 4.0))]
        self.assertEqual(columns.ratios(self.rows, rounds, "p50, us", "two", "one"), [2.0, 2.0, 4.0])
        line = columns.table({"p50, us": self.rows["p50, us"]}, rounds, self.columns)[1]
        self.assertRegex(line, r"1\.00 \(1\.00-10\.0\) +4\.00: 2\.00 \(2\.00-4\.00\)$")

    def test_beside_nothing_there_is_no_ratio(self):
        rounds = [{"p50, us: one": {"p50": 0.0}, "p50, us: two": {"p50": 50.0}}]
        line = columns.table({"p50, us": self.rows["p50, us"]}, rounds, self.columns)[1]
        self.assertRegex(line, r"0\.00 +50\.0$")

    def test_processor_time_of_both_ends(self):
        row = {"UDP": (None, "received")}
        rounds = [{f"UDP: {side}": {"cpu sender": 1.0, "cpu receiver": own} for side in rates.SIDES}
                  for own in (2.0, 9.0, 4.0)]
        self.assertEqual(rates.cpu_table(row, rounds)[1].split(), ["UDP"] + ["1.00", "+", "4.00"] * 4)


class Conditions(unittest.TestCase):
    def test_each_has_rows_and_a_column_to_compare_with(self):
        for name, (condition, placings) in conditions.CONDITIONS.items():
            with self.subTest(name):
                rows, circumstances = condition(None, 1, {"xsk_raw": "", "vma_perf": ""})
                self.assertGreater(len(circumstances), 1)
                self.assertTrue(all(callable(row[0]) for row in rows.values()))
                self.assertGreater(len(placings), 0)
                # The same round's readings give every row.
                names = columns.steps_of(rows, circumstances)
                for row in rows:
                    for column in circumstances:
                        self.assertIn(f"{columns.source_of(rows, row)}: {column}", names)

    def test_what_a_row_measures_is_asked_for_what_the_column_says(self):
        rows, circumstances = conditions.threads(None, 1, {})
        asked = []
        with unittest.mock.patch.object(conditions.suite_mux, "round_trips",
                                        lambda wire, seconds, number, **sides: asked.append((number, sides))):
            for step in columns.steps_of(rows, circumstances).values():
                step()
        self.assertEqual({number for number, _ in asked}, set(conditions.THREADS))
        self.assertEqual(len(asked), 2 * len(conditions.THREADS))
        self.assertIn((10, conditions.BOTH), asked)

    def test_busy_programs_are_counted_and_ended(self):
        with conditions.busy_programs(1) as programs:
            self.assertEqual(programs, {})
            time.sleep(0.3)
        self.assertGreater(programs["share"], 0)
        self.assertLessEqual(programs["share"], 100 / os.cpu_count() * 1.1)
        with conditions.busy_programs(0) as programs:
            pass
        self.assertEqual(programs["share"], 0)
        with self.assertRaises(ZeroDivisionError), conditions.busy_programs(2):
            raise ZeroDivisionError
        with self.assertRaises(ChildProcessError):    # no child is left
            os.waitpid(-1, os.WNOHANG)

    def test_unknown_condition(self):
        done = subprocess.run([sys.executable, "-B", conditions.__file__, "weather"], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertTrue(re.search("threads.*busy.*neighbours.*latency", done.stderr))


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class ProcessorTime(unittest.TestCase):
    def test_of_a_process_alone(self):
        with ground.Wire("") as wire:
            busy = wire.start("a", sys.executable, "-S", "-c", SPIN)
            idle = wire.start("b", "sleep", "0.1")
            wire.finish(idle)
            wire.finish(busy)
            self.assertGreaterEqual(busy.cpu, 0.3)
            self.assertLess(idle.cpu, 0.3)
            self.assertAlmostEqual(ground.cpu_each(busy, idle, 1000)["cpu sender"], busy.cpu * 1000)
            self.assertEqual(ground.cpu_each(busy, idle, 0)["cpu receiver"], 0)


if __name__ == "__main__":
    unittest.main()
