# SPDX-License-Identifier: BSD-2-Clause
"""Verbs on a real RDMA stack: one guest (see rxe.py) runs all steps, then each test looks at what its steps
did.

Asserted is what was done, counted and said, never how fast.
"""
import json
import os
import shlex
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rxe  # noqa: E402
from rxe import ADDRESS, Step, guest  # noqa: E402

BUILD, VMA_PERF, VMA_TRACE = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
PERF_PORT = "18600"
STEPS, RESULTS, FILES = [], {}, {}
OK, FAILED, USAGE, ENDED, VERSION, UNSUPPORTED = 0, 1, 2, 4, 5, 7   # exit statuses of vma_perf
KILLED = 128 + 9
NEEDED = (("ibv_devinfo", "ibverbs-utils"), ("rping", "rdmacm-utils"), ("ib_send_bw", "perftest"),
          ("nc", "netcat-openbsd"),
          ("pgrep", "procps"))


def perftest(name, program, *options, env=None):
    """perftest's program on both devices; by events, since two programs that poll take each other's processor
    away."""
    common = [program, "-F", "-e", "-x", "1", *options]
    return Step(name, [*common, "-d", "rxe0", ADDRESS[1]], server=[*common, "-d", "rxe1"], ready="tcp:18515",
                env=env or {})


PATIENCE = {"pingpong": ["--timeout", "40", "--lost-after", "20"],
            "throughput": ["--timeout", "40"]}   # in a slow guest


def server(address=ADDRESS[1], clients=1):
    return [VMA_PERF, "server", "--bind", address, "--clients", str(clients)]


def vma_perf(name, test, *options, env=None, address=ADDRESS[1], warmup="0.02"):
    return Step(name,
                [VMA_PERF, test, address, "-q", "--json", "-", "--warmup", warmup, *PATIENCE[test], *options],
                server=server(address), ready=f"tcp:{PERF_PORT}", env=env or {})


def broken(name, test, *options, by, after="", clients=1):
    """A client that measures until `by`, words for a shell, breaks it; then `after`. The step's exit status
    is the client's.

    `by` may use $client, its process, and $server. What the client printed is in FILES["NAME.client"].
    """
    client = shlex.join([VMA_PERF, test, ADDRESS[1], "-q", "--time", "300", "--stages", "--interval", "0.2",
                         *PATIENCE[test],
                         *options])
    # The client's running table tells that it measures.
    script = f"""
        {client} >/run/results/{name}.client & client=$!
        server=$(pgrep -fx '/[^ ]*/vma_perf server .*')
        until grep -q '^\\[' /run/results/{name}.client || ! kill -0 $client; do sleep 0.2; done
        {by}
        wait $client; status=$?
        {after}
        exit $status"""
    return Step(name, ["bash", "-c", script], server=server(clients=clients), ready=f"tcp:{PERF_PORT}")


def traced(name):
    """Environment for a step whose programs are traced; reports() finds what was written."""
    return {"LD_PRELOAD": VMA_TRACE, "VMA_TRACE_JSON": f"/run/results/trace-{name}-%d",
            "VMA_TRACE_LINES": "2"}


def reports(name):
    """The tracer's queues of a step's two processes, by device: {"rxe0": {"send": [...], "receive": [...]},
    ...}."""
    found = {device: {"send": [], "receive": []} for device in ("rxe0", "rxe1")}
    for file, text in FILES.items():
        if file.startswith(f"trace-{name}-"):
            for queue in json.loads(text)["queues"]:
                found[queue["device"]][queue["side"]].append(queue)
    return found


def total(queues, what):
    return sum(queue[what] for queue in queues)


def setUpModule():
    for file in (VMA_PERF, VMA_TRACE):
        if not os.path.exists(file):
            raise guest.Failure(f"{file} is not there: build the targets vma_perf and vma_trace")
    machine = guest.Guest(BUILD, rxe.suite(NEEDED))
    RESULTS.update(machine.run(STEPS))
    FILES.update(machine.files)
    slowest = sorted(((output.seconds, name) for name, (output, _) in RESULTS.items()), reverse=True)[:5]
    print(f"the guest ran for {machine.seconds:.0f} s; longest steps: " +
          ", ".join(f"{name} {s:.1f} s" for s, name in slowest),
          file=sys.stderr)


class Case(unittest.TestCase):
    maxDiff = None

    def both_succeeded(self, name):
        """The outputs of command and server, both of which ended well."""
        both = RESULTS[name]
        for role, output in zip(("command", "server"), both):
            self.assertEqual(output.code, 0, f"{name}: exit status of the {role}; {self.said(name)}")
        return both

    @staticmethod
    def said(name):
        """All that the step's programs said; 124 is the status of one that took too long."""
        return "".join(f"\n{role}, exit status {output.code}, output:\n{output.out}\nerrors:\n{output.err}"
                       for role, output in zip(("command", "server"), RESULTS[name]))

    def measured(self, name):
        return json.loads(self.both_succeeded(name)[0].out)

    def refused(self, name, status, text):
        """The command ended with this status and message, a regular expression."""
        output = RESULTS[name][0]
        self.assertEqual(output.code, status, name + self.said(name))
        self.assertRegex(output.err, text)


STEPS += [
    Step("devinfo", ["ibv_devinfo"]),
    Step("rping", ["rping", "-c", "-a", ADDRESS[1], "-p", "7471", "-C", "10", "-v"],
         server=["rping", "-s", "-a", ADDRESS[1], "-p", "7471", "-C", "10", "-v"], ready="cm:7471",
         env=traced("rping")),
    perftest("send_lat", "ib_send_lat", "-n", "20"),
]


class Ground(Case):
    """The guest itself, by the programs that everybody uses."""

    def test_there_are_two_active_devices(self):
        output = RESULTS["devinfo"][0]
        self.assertEqual(output.code, 0, output.err)
        self.assertEqual([line.split()[1] for line in output.out.splitlines() if "hca_id" in line],
                         ["rxe0", "rxe1"])
        self.assertEqual(output.out.count("PORT_ACTIVE"), 2)

    def test_rping_pings_ten_times(self):
        for output in self.both_succeeded("rping"):
            self.assertEqual(output.out.count("ping data: rdma-ping-"), 10)

    def test_perftest_sends_all_it_should(self):
        for name, size, count in (("send_lat", "2", "20"), ("send_bw", "4096", "100"),
                                  ("send_bw_ud", "1024", "100")):
            output = self.both_succeeded(name)[0]
            rows = [line.split()[:2] for line in output.out.splitlines()]
            self.assertIn([size, count], rows, output.out)


STEPS += [
    perftest("send_bw", "ib_send_bw", "-n", "100", "-s", "4096", "--use_old_post", env=traced("send_bw")),
    # Two QPs, and only every tenth send is signalled.
    perftest("send_bw_ud", "ib_send_bw", "-c", "UD", "-q", "2", "-n", "50", "-s", "1024", "-Q", "10",
             env=traced("send_bw_ud")),
]


class Trace(Case):
    """vma_trace counts what programs say they did."""

    def check_sound(self, name):
        """No request is lost from sight; the queues by device."""
        found = reports(name)
        for device in found.values():
            for queue in device["send"] + device["receive"]:
                self.assertEqual(queue["unmatched"], 0, queue)
                self.assertEqual(queue["posted"],
                                 queue["completed"] + queue["outstanding"] + queue["forgotten"], queue)
                self.assertEqual(queue["latency_us"]["count"], queue["completed"], queue)
        return found

    def test_send_bw(self):
        self.both_succeeded("send_bw")
        found = self.check_sound("send_bw")
        sends, receives = found["rxe0"]["send"], found["rxe1"]["receive"]
        self.assertEqual((len(sends), len(receives)), (1, 1))
        self.assertEqual(total(sends, "completed"), 100)
        self.assertEqual(total(receives, "completed"), 100)
        self.assertEqual(total(sends, "bytes"), 100 * 4096)
        self.assertEqual(total(receives, "bytes"), 100 * 4096)
        self.assertIn("rxe0 RC", RESULTS["send_bw"][0].err)
        self.assertRegex(RESULTS["send_bw"][0].err, r"wr_id=0 send 4096 bytes, posted .* latency .* Gbit/s")

    def test_unsignalled_sends_of_two_qps(self):
        self.both_succeeded("send_bw_ud")
        found = self.check_sound("send_bw_ud")
        self.assertEqual([queue["completed"] for queue in found["rxe0"]["send"]], [50, 50])
        self.assertEqual([queue["completions"] for queue in found["rxe0"]["send"]], [5, 5])
        self.assertEqual(total(found["rxe0"]["send"], "bytes"), 100 * 1024)
        # The 40 bytes in front of a datagram count at the receiver.
        self.assertEqual(total(found["rxe1"]["receive"], "bytes"), 100 * (1024 + 40))

    def test_rping_through_librdmacm(self):
        self.both_succeeded("rping")
        found = reports("rping")
        # Each ping: the client tells where its data are, twice, and the server reads, writes and answers
        # twice.
        self.assertEqual(total(found["rxe0"]["send"], "completed"), 20)
        self.assertEqual(total(found["rxe1"]["send"], "completed"), 40)

    def test_vma_perf_counts_the_same(self):
        for name in ("rc", "rc_builder", "rc_ring", "ud_builder"):
            result, found = self.measured(name), self.check_sound(name)
            for device, report in (("rxe0", result["transport_report"]),
                                   ("rxe1", result["server_report"]["transport"])):
                with self.subTest(f"{name} {device}"):
                    self.assertEqual(report["device"], device)
                    self.assertEqual(total(found[device]["send"], "posted"), report["sends"])
                    self.assertEqual(total(found[device]["send"], "completions"), report["send_completions"])
                    receives = found[device]["receive"]
                    received = total(receives, "completed") - total(receives, "errors")
                    self.assertEqual(received, report["receives"])


STEPS += [
    vma_perf("rc", "pingpong", "-t", "rc", "-n", "30", "--verify", env=traced("rc")),
    vma_perf("rc_builder", "pingpong", "-t", "rc", "-n", "60", "-c", "2", "-w", "4", "--wr-api",
             "--cq-events", "--verify",
             env=traced("rc_builder")),
    vma_perf("rc_ring", "throughput", "-t", "rc", "-n", "100", "-s", "8192", "-b", "4", "--inline", "0",
             "--send-depth", "16",
             "--signal-every", "4", "--receive-depth", "8", "--rnr-retry", "7", "--cq-events", "--verify",
             env=traced("rc_ring")),
    vma_perf("rc_signal_all", "pingpong", "-t", "rc", "-n", "200", "--signal-every", "1", "--cq-events",
             warmup="0"),
    vma_perf("rc_starved", "throughput", "-t", "rc", "-n", "300", "--signal-every", "0", "--send-depth",
             "32"),
    vma_perf("rc_no_device", "pingpong", "-t", "rc", "-n", "5", address="127.0.0.1"),
    Step("rc_group", [VMA_PERF, "pingpong", ADDRESS[1], "-t", "rc", "--group", "239.1.1.7"]),
]


class Rc(Case):
    def test_every_request_is_answered(self):
        for name, count in (("rc", 30), ("rc_builder", 60), ("rc_signal_all", 200)):
            with self.subTest(name):
                result = self.measured(name)
                self.assertEqual((result["sent"], result["received"], result["lost"], result["corrupt"]),
                                 (count, count, 0, 0))
                self.assertIn("p50", result["latency_us"])
                self.assertEqual(result["server_report"]["received"], count)

    def test_a_registered_ring_carries_what_is_not_inline(self):
        result = self.measured("rc_ring")
        self.assertEqual((result["sent"], result["received"], result["corrupt"]), (100, 100, 0))
        self.assertEqual(result["transport_report"]["inline"], 0)

    def test_every_send_may_be_signalled(self):
        report = self.measured("rc_signal_all")["transport_report"]
        self.assertEqual(report["signalled"], report["sends"])
        some = self.measured("rc_builder")["transport_report"]
        self.assertGreater(some["sends"], some["signalled"])

    def test_events_are_waited_for_where_wanted(self):
        self.assertEqual(self.measured("rc")["transport_report"]["events"], 0)
        self.assertGreater(self.measured("rc_signal_all")["transport_report"]["events"], 0)

    def test_without_signals_the_send_queue_starves(self):
        self.refused("rc_starved", ENDED, "stalled: the send queue is full after 32 sends")

    def test_what_cannot_be_is_said(self):
        self.refused("rc_no_device", UNSUPPORTED, "no RDMA device has the address 127.0.0.1")
        self.refused("rc_group", USAGE, "--group: rc has no multicast")


# Packets to a wrong MAC address are lost; with them the control connection's.
LOSE = f"ip neigh replace {ADDRESS[1]} lladdr 02:00:00:00:00:99 dev veth0 nud permanent"
FIND = f"ip neigh del {ADDRESS[1]} dev veth0"
STEPS += [
    broken("rc_server_dies", "pingpong", "-t", "rc", "--cq-events", by="kill -KILL $server"),
    broken("rc_client_dies", "pingpong", "-t", "rc", "--cq-events", by="kill -KILL $client", clients=2,
           after=shlex.join([VMA_PERF, "pingpong", ADDRESS[1], "-t", "rc", "-n", "5", "--cq-events", "-q",
                             *PATIENCE["pingpong"]])),
    broken("rc_retry", "pingpong", "-t", "rc", "--cq-events", "--retry", "1", by=LOSE, after=FIND),
    # A process that is stopped posts no receives, but its adapter goes on acknowledging.
    broken("rc_rnr_retry", "throughput", "-t", "rc", "--rnr-retry", "1", "--receive-depth", "8",
           "--server-wait", "blocking",
           by="kill -STOP $server", after="kill -CONT $server"),
]


class RcBreaks(Case):
    """What the client says and how it ends when a connection breaks during a run, and that the server lives
    on."""

    def test_the_server_dies(self):
        self.refused("rc_server_dies", ENDED,
                     "the server .* ended|the connection is broken|does not acknowledge any more")
        self.assertEqual(RESULTS["rc_server_dies"][1].code, KILLED)

    def test_the_client_dies(self):
        client, server = RESULTS["rc_client_dies"]
        self.assertEqual(client.code, KILLED, self.said("rc_client_dies"))
        self.assertRegex(server.out, r"198[.]18[.]9[.]1:\d+: .*(ended|connection is broken)")
        # The next one is served.
        self.assertIn("sent 5, received 5", client.out)
        self.assertEqual(server.code, OK, self.said("rc_client_dies"))

    def test_retries_are_exhausted(self):
        self.refused("rc_retry", ENDED, r"the other side does not acknowledge any more \(--retry\)")
        self.assertEqual(RESULTS["rc_retry"][1].code, OK, self.said("rc_retry"))

    def test_retries_for_want_of_receives_are_exhausted(self):
        self.refused("rc_rnr_retry", FAILED,
                     r"no receive posted: more of them \(--receive-depth\) or a longer patience "
                     r"\(--rnr-retry\)")
        self.assertEqual(RESULTS["rc_rnr_retry"][1].code, OK, self.said("rc_rnr_retry"))


# Another version's greeting, as a file of the guest; and a client and a server that say it and print what
# they hear.
GREETING = json.dumps({"protocol": 99, "version": "9.9", "byte_order": "little"}).encode()
GREETED = b"VMAPERF\n" + struct.pack(">I", len(GREETING)) + GREETING
GREET = "printf '%b' '" + "".join(f"\\x{byte:02x}" for byte in GREETED) + "'"
UD_CLIENT = [VMA_PERF, "pingpong", ADDRESS[1], "-t", "ud", "-n", "5", "--cq-events", "-q",
             *PATIENCE["pingpong"]]
STEPS += [
    # The stranger first, then a client of the server's version.
    Step("ud_other_client",
         ["bash", "-c", f"exec 3<>/dev/tcp/{ADDRESS[1]}/{PERF_PORT}; {GREET} >&3; cat <&3; exec 3>&-; "
                             f"exec {shlex.join(UD_CLIENT)}"], server=server(clients=2),
         ready=f"tcp:{PERF_PORT}"),
    Step("ud_other_server", UD_CLIENT, server=["bash", "-c", f"{GREET} | nc -N -l {ADDRESS[1]} {PERF_PORT}"],
         ready=f"tcp:{PERF_PORT}"),
]


class Versions(Case):
    """The exchange of versions before ud's addresses are exchanged."""
    MESSAGE = ("is vma_perf 9.9 with protocol 99, this is .* with protocol .*: "
               "use the same version on both sides")

    def test_a_server_survives_a_client_of_another_version(self):
        client, server = self.both_succeeded("ud_other_client")
        self.assertRegex(server.out, r"198[.]18[.]9[.]\d:\d+ " + self.MESSAGE)
        # The stranger heard why, and the status; the next client was served.
        self.assertRegex(client.out, self.MESSAGE)
        self.assertIn(f'"status":{VERSION}', client.out)
        self.assertIn("sent 5, received 5", client.out)

    def test_a_client_refuses_a_server_of_another_version(self):
        self.refused("ud_other_server", VERSION, "the server .* " + self.MESSAGE)


STEPS += [
    vma_perf("ud", "pingpong", "-t", "ud", "-n", "60", "-c", "3", "--threads", "2", "--cq-events",
             "--verify"),
    vma_perf("ud_builder", "pingpong", "-t", "ud", "-n", "50", "--wr-api", "--cq-events",
             env=traced("ud_builder")),
    vma_perf("ud_index", "throughput", "-t", "ud", "-n", "50", "-s", "1024", "-r", "200", "--rdma-device",
             "rxe0", "--gid-index", "1",
             "--server-rdma-device", "rxe1", "--server-gid-index", "1"),
    Step("route",
         ["sh", "-c", "ip route add 239.1.1.0/24 dev veth0 table 99 && ip rule add pref 150 lookup 99"]),
    vma_perf("ud_group", "pingpong", "-t", "ud", "-n", "30", "-c", "2", "--group", "239.1.1.7,239.1.1.8",
             "--cq-events"),
    vma_perf("ud_no_device", "pingpong", "-t", "ud", "--server-rdma-device", "rxe9"),
    vma_perf("ud_no_index", "pingpong", "-t", "ud", "--gid-index", "777"),
    Step("small_mtu", ["sh", "-c", "ip link set veth0 mtu 1500 && ip link set veth1 mtu 1500"]),
    vma_perf("ud_mtu", "pingpong", "-t", "ud", "-s", "2048"),
    vma_perf("ud_fits", "pingpong", "-t", "ud", "-s", "1024", "-n", "10", "--cq-events"),
]


class Ud(Case):
    def test_requests_are_answered(self):
        for name, count in (("ud", 60), ("ud_builder", 50), ("ud_fits", 10)):
            with self.subTest(name):
                result = self.measured(name)
                self.assertEqual(result["sent"], count)
                self.assertEqual(result["received"] + result["lost"], count)
                # On a busy machine an answer may be late; most are not.
                self.assertGreater(result["received"], count / 2)
                self.assertEqual(result["corrupt"], 0)

    def test_devices_by_name_and_gid_index(self):
        result = self.measured("ud_index")
        self.assertEqual(result["sent"], 50)
        self.assertEqual(result["server_report"]["transport"]["device"], "rxe1")
        self.assertGreater(result["server_report"]["received"], 0)

    def test_multicast_groups(self):
        result = self.measured("ud_group")
        self.assertEqual(result["sent"], 30)
        self.assertGreater(result["received"], 15)

    def test_a_message_is_one_packet(self):
        self.refused("ud_mtu", USAGE,
                     "--size: 2048 bytes do not fit: a datagram of ud is one packet, "
                     "and the MTU of rxe1 is 1024 bytes")

    def test_what_is_not_there_is_said(self):
        self.refused("ud_no_device", UNSUPPORTED, "there is no RDMA device rxe9, only rxe0 rxe1")
        self.refused("ud_no_index", UNSUPPORTED, "has GID index 777")


if __name__ == "__main__":
    unittest.main(verbosity=2)
