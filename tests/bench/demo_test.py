# SPDX-License-Identifier: BSD-2-Clause
"""The demo must read what the programs print, take ratios inside a round, and leave nothing behind."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import beside  # noqa: E402
import demo  # noqa: E402
import offload  # noqa: E402
import readings  # noqa: E402
import suite_hardware  # noqa: E402
import suite_mux  # noqa: E402
import suite_stats  # noqa: E402
import suite_tcp  # noqa: E402
import suite_udp  # noqa: E402
import table  # noqa: E402
import wire as ground  # noqa: E402

PING_PONG = """sockperf: \x1b[2;35m== version #3.7-no.git == \x1b[0m
sockperf: Test ended
sockperf: [Total Run] RunTime=1.001 sec; Warm up time=400 msec; SentMessages=16083; ReceivedMessages=16082
sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=6831; ReceivedMessages=6831
sockperf: \x1b[2;35m====> avg-latency=40.252 (std-dev=19.954)\x1b[0m
sockperf: \x1b[2;35mTotal 6831 observations\x1b[0m; each percentile contains 68.31 observations
sockperf: ---> <MAX> observation = 1200.312
sockperf: ---> percentile 99.999 = 1200.312
sockperf: ---> percentile 99.900 =  211.832
sockperf: ---> percentile 99.000 =   66.255
sockperf: ---> percentile 50.000 =   38.627
"""
SNMP = """Ip: Forwarding DefaultTTL
Ip: 2 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors
Udp: 204 1 2 33 4
Tcp: RtoAlgorithm InSegs OutSegs InErrs
Tcp: 1 20 30 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors
UdpLite: 9 9 9 9 9
"""


def round_of(kernel, vma):
    """A round of the UDP suite."""
    latency = {"p50": kernel, "p99": 2 * kernel}
    fast = {"p50": vma, "p99": 2 * vma}
    return {"kernel": latency, "kernel spin": latency, "vma both": fast, "vma client": fast,
            "vma server": fast, "raw": fast,
            "kernel rate": {"received": 1.0}, "vma rate": {"received": 4.0}, "raw rate": {"received": 5.0},
            "tcp alone": {"rate": 20.0}, "tcp beside": {"rate": 15.0}}


def tcp_round(offloaded):
    """A round of the TCP suite in which every number of the kernel is 2 and every other 1."""
    names = suite_tcp.measurements(None, 1, {"xsk_raw": "", "conn_rate": "", "many_connections": ""})
    fields = {row.field for row in suite_tcp.rows()}
    return {name: {**{field: 2.0 if "kernel" in name and "bulk" not in name else 1.0 for field in fields},
                   **({"offloaded": offloaded} if "vma" in name else {})} for name in names}


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Readings(unittest.TestCase):
    def test_ping_pong(self):
        self.assertEqual(readings.parse_ping_pong(PING_PONG),
                         {"p50": 38.627, "p99": 66.255, "messages": 16082, "seconds": 1.001})

    def test_ping_pong_without_answers_is_a_failure(self):
        with self.assertRaises(ground.Failure):
            readings.parse_ping_pong("sockperf: No messages were received from the server. "
                                     "Is the server down?\n")

    def test_throughput(self):
        sent = "sockperf: Total of 204069 messages sent in 1.000 sec\n"
        self.assertEqual(readings.parse_throughput_client(sent), (204069, 1.0))
        self.assertEqual(readings.parse_server("sockperf: Total 199196 messages received and handled\n"),
                         199196)
        with self.assertRaises(ground.Failure):
            readings.parse_server("")

    def test_iperf3(self):
        self.assertEqual(readings.parse_iperf3('{"end": {"sum_received": {"bits_per_second": 2.5e9}}}'), 2.5)
        for text in ('{"error": "unable to connect"}',
                     '{"error": "reset", "end": {"sum_received": {"bits_per_second": 1}}}', ""):
            with self.assertRaises(ground.Failure):
                readings.parse_iperf3(text)

    def test_line_of_json(self):
        self.assertEqual(readings.parse_json('VMA WARNING: a line of the log\n{"connections": 3}\n', "x"),
                         {"connections": 3})
        with self.assertRaises(ground.Failure):
            readings.parse_json("", "x")

    def test_kernel_counters(self):
        self.assertEqual(readings.parse_counters(SNMP, "Udp", offload.COUNTERS["Udp"]), (204, 33))
        self.assertEqual(readings.parse_counters(SNMP, "Tcp", offload.COUNTERS["Tcp"]), (20, 30))


class Table(unittest.TestCase):
    def test_ratio_is_taken_inside_a_round(self):
        # The machine was three times slower in the second round: the ratio of medians would not show 2, 2, 4.
        rows = {row["key"]: row
                for row in table.evaluate(suite_udp.rows(),
                                          [round_of(8.0, 4.0), round_of(24.0, 12.0), round_of(8.0, 2.0)])}
        self.assertEqual(rows["both p50"]["ratio"], {"median": 2.0, "min": 2.0, "max": 4.0})
        self.assertEqual(rows["rate"]["ratio"]["median"], 4.0)      # more is better
        self.assertEqual(rows["beside"]["ratio"]["median"], 0.75)

    def test_a_row_for_each_target(self):
        self.assertEqual({row.key for row in suite_udp.rows()}, set(suite_udp.TARGETS))
        self.assertEqual({row.key for row in suite_tcp.rows()},
                         set(suite_tcp.TARGETS) | set(suite_tcp.LIMITS))
        for suite in (suite_udp, suite_tcp):
            self.assertLessEqual(set(suite.RAW_TARGETS), {row.key for row in suite.rows() if row.raw})

    def test_rows_compare_what_is_measured(self):
        for suite in (suite_udp, suite_tcp, suite_mux, suite_stats):
            names = set(suite.measurements(None, 1,
                                           dict.fromkeys(("xsk_raw", "conn_rate", "many_connections",
                                                          "watch_many"), "")))
            used = {name for row in suite.rows() for name in (row.kernel, row.vma, row.raw) if name}
            self.assertEqual(used, names)

    def test_hardware_compares_every_device(self):
        with unittest.mock.patch.object(suite_hardware, "environments",
                                        lambda *_: dict.fromkeys(suite_hardware.DEVICES, ())):
            names = set(suite_hardware.measurements(None, 1, {}))
        self.assertEqual({name for row in suite_hardware.rows() for name in (row.kernel, row.vma)}, names)

    def test_limits_are_libvmas_own(self):
        rows = {row["key"]: row for row in table.evaluate(suite_tcp.rows(), [tcp_round(True)])}
        self.assertIsNone(rows["crowd"]["ratio"])
        self.assertEqual(table.target(rows["crowd"]), "<= 1.50")
        rows["crowd"]["libvma"] = table.spread([1.6])
        self.assertEqual(table.target(rows["crowd"]), "<= 1.50 missed")

    def test_what_went_through_the_kernel_is_marked(self):
        self.assertNotIn("not offloaded", table.table(table.evaluate(suite_tcp.rows(), [tcp_round(True)])))
        rows = table.evaluate(suite_tcp.rows(), [tcp_round(True), tcp_round(False)])
        self.assertFalse({row["key"]: row for row in rows}["both p50"]["offloaded"])

    def test_spread(self):
        self.assertEqual(table.cell({"median": 2.0, "min": 1.5, "max": 12.34}), "2.00 (1.50-12.3)")
        self.assertEqual(table.cell(None), "-")

    def test_missed_targets_are_marked(self):
        text = table.table(table.evaluate(suite_udp.rows(), [round_of(8.0, 4.0)]))
        line = next(line for line in text.splitlines() if "both sides, p50" in line)
        self.assertRegex(line, r"8\.00 +4\.00 +2\.00 ")
        self.assertEqual("missed" in line, suite_udp.TARGETS["both p50"] > 2)


class Beside(unittest.TestCase):
    def test_a_ratio_above_1_says_that_the_later_build_is_better(self):
        rounds = [{"before": {"p50": 2.0, "received": 100.0}, "after": {"p50": 1.0, "received": 50.0}}]
        self.assertEqual(beside.ratios(rounds, "before", "after", "p50", less=True), [2.0])
        self.assertEqual(beside.ratios(rounds, "before", "after", "received", less=False), [0.5])

    def test_every_row_reads_a_measurement(self):
        for name, (function, field, less) in beside.ROWS.items():
            with self.subTest(name):
                self.assertTrue(callable(function) or callable(beside.ROWS[function][0]))
                self.assertEqual(less, field != "received")


class Programs(unittest.TestCase):
    def test_the_demo_builds_all_that_it_measures_with(self):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "CMakeLists.txt"),
                  encoding="ascii") as file:
            built = re.search(r"add_dependencies\(demo_programs\s([^)]*)\)", file.read()).group(1).split()
        with unittest.mock.patch("os.path.exists", return_value=True):
            library, programs = demo.find_programs("/build")
        wanted = {re.sub(r"^lib|\.so$", "", os.path.basename(path)) for path in (library, *programs.values())}
        self.assertEqual(set(built), wanted)


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class Cleaning(unittest.TestCase):
    def namespaces(self):
        return {line.split()[0] for line in ground.run("ip", "netns", "list").splitlines()}

    def test_wire_is_removed_with_its_processes(self):
        with ground.Wire("") as wire:
            names = set(wire.name.values())
            self.assertLessEqual(names, self.namespaces())
            sleeper = wire.start("a", "sleep", "1000")
        self.assertFalse(names & self.namespaces())
        self.assertIsNotNone(sleeper.poll())

    def test_wire_is_removed_after_an_error(self):
        with self.assertRaises(ZeroDivisionError), ground.Wire("") as wire:
            names = set(wire.name.values())
            raise ZeroDivisionError
        self.assertFalse(names & self.namespaces())

    def test_what_a_killed_demo_left_is_removed(self):
        script = ("import wire, time\nwith wire.Wire('') as w:\n"
                  " p = w.start('a', 'sleep', '1000')\n"
                  " print(p.pid, *w.name.values(), flush=True)\n time.sleep(1000)")
        killed = subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True,
                                  cwd=os.path.dirname(os.path.abspath(ground.__file__)))
        child, *names = killed.stdout.readline().split()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        killed.stdout.close()
        self.assertLessEqual(set(names), self.namespaces())
        ground.remove_stale()
        self.assertFalse(set(names) & self.namespaces())
        for _ in range(100):   # the signal of the parent's death needs a moment
            if not is_running(child):
                break
            time.sleep(0.05)
        self.assertFalse(is_running(child))

    def test_programs_of_a_side_keep_to_its_processor(self):
        with ground.Wire("", pinned=True, congestion="cubic") as wire:
            ask = ("python3", "-c", "import os; print(*os.sched_getaffinity(0))")
            for side in "ab":
                self.assertEqual(wire.finish(wire.start(side, *ask)).split(), [str(ground.CPU[side])])
            self.assertEqual(wire.congestion_control(), "cubic")

    def test_kernel_datagrams_are_not_taken_for_offloaded_ones(self):
        with ground.Wire("") as wire:
            check = offload.OffloadCheck(wire, ["a", "b"])
            check.verify(100)
            wire.inside("a", sys.executable, "-c",
                        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n"
                        "for _ in range(100): s.sendto(b'x', ('198.18.7.2', 9))")
            with self.assertRaises(ground.Failure):
                check.verify(100)


if __name__ == "__main__":
    unittest.main()
