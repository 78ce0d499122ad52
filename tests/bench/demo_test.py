# SPDX-License-Identifier: BSD-2-Clause
"""The demo must read what the programs print, take ratios inside a round, and leave nothing behind."""
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import demo  # noqa: E402

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
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors
UdpLite: 9 9 9 9 9
"""


def round_of(kernel, vma):
    latency = {"p50": kernel, "p99": 2 * kernel}
    fast = {"p50": vma, "p99": 2 * vma}
    return {"kernel": latency, "kernel spin": latency, "vma both": fast, "vma client": fast, "vma server": fast, "raw": fast,
            "kernel rate": {"received": 1.0}, "vma rate": {"received": 4.0}, "raw rate": {"received": 5.0},
            "tcp alone": {"rate": 20.0}, "tcp beside": {"rate": 15.0}}


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Readings(unittest.TestCase):
    def test_ping_pong(self):
        self.assertEqual(demo.parse_ping_pong(PING_PONG), {"p50": 38.627, "p99": 66.255, "messages": 16082})

    def test_ping_pong_without_answers_is_a_failure(self):
        with self.assertRaises(demo.Failure):
            demo.parse_ping_pong("sockperf: No messages were received from the server. Is the server down?\n")

    def test_throughput(self):
        self.assertEqual(demo.parse_throughput_client("sockperf: Total of 204069 messages sent in 1.000 sec\n"), (204069, 1.0))
        self.assertEqual(demo.parse_server("sockperf: Total 199196 messages received and handled\n"), 199196)
        with self.assertRaises(demo.Failure):
            demo.parse_server("")

    def test_iperf3(self):
        self.assertEqual(demo.parse_iperf3('{"end": {"sum_received": {"bits_per_second": 2.5e9}}}'), 2.5)
        with self.assertRaises(demo.Failure):
            demo.parse_iperf3('{"error": "unable to connect"}')

    def test_kernel_counters(self):
        self.assertEqual(demo.parse_udp_counters(SNMP), (204, 33))


class Table(unittest.TestCase):
    def test_ratio_is_taken_inside_a_round(self):
        # The machine was three times slower in the second round: the ratio of medians would not show 2, 2, 4.
        rows = {row["key"]: row for row in demo.evaluate([round_of(8.0, 4.0), round_of(24.0, 12.0), round_of(8.0, 2.0)])}
        self.assertEqual(rows["both p50"]["ratio"], {"median": 2.0, "min": 2.0, "max": 4.0})
        self.assertEqual(rows["rate"]["ratio"]["median"], 4.0)      # more is better
        self.assertEqual(rows["beside"]["ratio"]["median"], 0.75)

    def test_a_row_for_each_target(self):
        self.assertEqual({row[0] for row in demo.rows()}, set(demo.TARGETS))

    def test_spread(self):
        self.assertEqual(demo.cell({"median": 2.0, "min": 1.5, "max": 12.34}), "2.00 (1.50-12.3)")
        self.assertEqual(demo.cell(None), "-")

    def test_missed_targets_are_marked(self):
        text = demo.table(demo.evaluate([round_of(8.0, 4.0)]))
        line = next(line for line in text.splitlines() if "both sides, p50" in line)
        self.assertRegex(line, r"8\.00 +4\.00 +2\.00 ")
        self.assertEqual("missed" in line, demo.TARGETS["both p50"] > 2)


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class Cleaning(unittest.TestCase):
    def namespaces(self):
        return {line.split()[0] for line in demo.run("ip", "netns", "list").splitlines()}

    def test_wire_is_removed_with_its_processes(self):
        with demo.Wire("") as wire:
            names = set(wire.name.values())
            self.assertLessEqual(names, self.namespaces())
            sleeper = wire.start("a", "sleep", "1000")
        self.assertFalse(names & self.namespaces())
        self.assertIsNotNone(sleeper.poll())

    def test_wire_is_removed_after_an_error(self):
        with self.assertRaises(ZeroDivisionError), demo.Wire("") as wire:
            names = set(wire.name.values())
            raise ZeroDivisionError
        self.assertFalse(names & self.namespaces())

    def test_what_a_killed_demo_left_is_removed(self):
        script = ("import demo, time\nwith demo.Wire('') as w:\n"
                  " p = w.start('a', 'sleep', '1000')\n print(p.pid, *w.name.values(), flush=True)\n time.sleep(1000)")
        killed = subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True,
                                  cwd=os.path.dirname(os.path.abspath(demo.__file__)))
        child, *names = killed.stdout.readline().split()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        killed.stdout.close()
        self.assertLessEqual(set(names), self.namespaces())
        demo.remove_stale()
        self.assertFalse(set(names) & self.namespaces())
        for _ in range(100):   # the signal of the parent's death needs a moment
            if not is_running(child):
                break
            time.sleep(0.05)
        self.assertFalse(is_running(child))

    def test_kernel_datagrams_are_not_taken_for_offloaded_ones(self):
        with demo.Wire("") as wire:
            check = demo.OffloadCheck(wire, ["a", "b"])
            check.verify(100)
            wire.inside("a", sys.executable, "-c", "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n"
                        "for _ in range(100): s.sendto(b'x', ('198.18.7.2', 9))")
            with self.assertRaises(demo.Failure):
                check.verify(100)


if __name__ == "__main__":
    unittest.main()
