# SPDX-License-Identifier: BSD-2-Clause
"""The library on drivers that the host does not have: a guest (machines.py) runs all steps, then each test
looks at what its steps did.

    nic_test.py BUILD GUEST [--full]

--full sends 100 messages of 40 sizes, instead of 4 of 17, and has all events of each device (machines.SOME).
"""
import json
import pathlib
import sys
import unittest

import machines
from machines import WIRES, guest

BUILD, GUEST = pathlib.Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1)
FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
LIBRARY, TALK = BUILD / "libvma" / "libvma.so", BUILD / "tests" / "app_talk"
# Around what drivers treat apart: short frames, where checksums are left to the device, the MTU, chunks of
# 2,048 bytes and pages. The last one comes in super-frames.
SIZES = (1, 17, 46, 100, 250, 255, 256, 257, 300, 511, 512, 1000, 1400, 1472, 1473, 4000, 9000, 150000)
ALL_SIZES = tuple(sorted({*SIZES, 2, 18, 45, 47, 60, 64, 128, 213, 214, 215, 254, 258, 1448, 1460, 1471, 1792,
                          1793, 2006, 2048, 3000, 4096, 6000, 8972}))
EACH, SECONDS = (100, 400) if FULL else (4, 100)
STEPS, RESULTS = [], {}


def talk(wire, side, role, library, event=None):
    command = ["ip", "netns", "exec", f"{wire}.{side}"]
    if library:
        command += ["env", f"LD_PRELOAD={LIBRARY}"]
    server = "1" if (side == "a") == (role == "server") else "2"
    command += [str(TALK), role, f"198.18.{WIRES[wire].number}.{server}"]
    if role == "client":
        sizes = ALL_SIZES if FULL else SIZES[::4] if event else SIZES
        command += [str(EACH), ",".join(map(str, sizes))]
        midst = event or WIRES[wire].midst
        command += [midst] if midst else []
    return command


def killed(wire):
    """A client with the library that is killed; what is left of it on the interface."""
    client = talk(wire, "a", "client", True, "sleep 100")
    script = 'timeout -s KILL 4 "$@"; ip netns exec "$0" ip link'
    STEPS.append(guest.Step(f"{wire}.killed", ["sh", "-c", script, f"{wire}.a", *client],
                            server=talk(wire, "b", "server", False), seconds=40))


def conversation(name, wire, client, library=None, event=None, before=None):
    """`client`: the client's side; `library`: the side that has the library; `event`: what happens; `before`:
    what happened before."""
    other = "b" if client == "a" else "a"
    if before:
        STEPS.append(guest.Step(f"{name}.before", ["ip", "netns", "exec", f"{wire}.a", "sh", "-c", before]))
    if WIRES[wire].begins_anew:
        waits = "until grep -qs 1 /sys/class/net/eth0/carrier; do sleep 0.1; done"
        STEPS.append(guest.Step(f"{name}.up", ["ip", "netns", "exec", f"{wire}.a", "sh", "-c", waits]))
    server = talk(wire, other, "server", library == other)
    if event and ":7002" in event:
        others = " ".join(f'"$@":{port} &' for port in (7001, 7002))
        server = ["sh", "-c", f'{others} exec "$@"', "sh", *server]
    STEPS.append(guest.Step(name, talk(wire, client, "client", library == client, event), server=server,
                            seconds=SECONDS))
    if WIRES[wire].after:
        STEPS.append(guest.Step(f"{name}.after", ["ip", "netns", "exec", f"{wire}.{client}", "sh", "-c",
                                                  f"{WIRES[wire].after}; sleep 2"]))


def events(wire):
    """Those that are tried with the wire, on its side a."""
    if not WIRES[wire].devices:
        return {}
    wanted = machines.EVENTS.keys() - machines.WITHOUT.get(wire, ()) if FULL else machines.SOME.get(wire, ())
    network = f"198.18.{WIRES[wire].number}"
    return {name: event.format(address=f"{network}.1", peer=f"{network}.2", talk=TALK, library=LIBRARY)
            for name, event in machines.EVENTS.items() if name in wanted}


def has_a_killed_client(wire):
    return bool(WIRES[wire].devices) and (FULL or wire in machines.KILLED)


def plan(wires):
    for name in wires:
        for what, event in events(name).items():
            before = machines.BEFORE.get(what)
            conversation(f"{name}.{what}.kernel", name, "a", event=event, before=before)
            conversation(f"{name}.{what}.library", name, "a", library="a", event=event, before=before)
        if has_a_killed_client(name):
            killed(name)
        for client in ("a", "b"):
            conversation(f"{name}.{client}.kernel", name, client)
        for library in WIRES[name].library:
            for client in ("a", "b"):
                conversation(f"{name}.{client}.library.{library}", name, client, library=library)
    STEPS.append(guest.Step("dmesg", ["dmesg"]))


def setUpModule():
    for file in (LIBRARY, TALK):
        if not file.exists():
            raise guest.Failure(f"{file} is not there: build the targets vma and app_talk")
    plan(machines.GUESTS[GUEST][2])
    machine = guest.Guest(BUILD, machines.suite(GUEST))
    RESULTS.update(machine.run(STEPS, 3600 if FULL else guest.GUEST_SECONDS))
    print(f"the guest ran for {machine.seconds:.0f} s", file=sys.stderr)


class Wires(unittest.TestCase):
    def talked(self, name, library=None):
        """The client's result; `library`: the client or the server has it."""
        client, server = RESULTS[name]
        said = f"\n{client.out}\n{client.err[-3000:]}\n---- server\n{server.out}\n{server.err[-3000:]}"
        self.assertEqual(client.code, 0, said)
        result = json.loads(client.out.splitlines()[-1])
        if library is not None:
            where = client if library == "client" else server
            result["log"] = where.err
            kernel = result if library == "client" else json.loads(server.out.splitlines()[-1])
            result["by the kernel"] = kernel["kernel"]
        return result

    def test_conversations(self):
        for wire in machines.GUESTS[GUEST][2]:
            for side, words in machines.words(GUEST, wire).items():
                for client in ("a", "b"):
                    with self.subTest(wire=wire, client=client, library=side):
                        self.check(wire, client, side, words)

    def check(self, wire, client, side, words):
        kernel = self.talked(f"{wire}.{client}.kernel")
        self.assertEqual(kernel["tcp"], kernel["of"])
        got = self.talked(f"{wire}.{client}.library.{side}", "client" if client == side else "server")
        self.assertRegex(got["log"], f"sockets on {words}")
        self.assertEqual(got["tcp"], got["of"])
        # What a failing port swallows, both lose.
        allowed = 2 + len(kernel["lost"]) if WIRES[wire].midst else 0
        self.assertLessEqual(len(got["lost"]), allowed, got)
        # Datagrams of several frames are the kernel's.
        if "are offloaded by" in got["log"]:
            self.assertLessEqual(got["by the kernel"], got["long"] + 2, got)

    def test_events(self):
        for wire in machines.GUESTS[GUEST][2]:
            for what in events(wire):
                with self.subTest(wire=wire, event=what):
                    kernel = self.talked(f"{wire}.{what}.kernel")
                    got = self.talked(f"{wire}.{what}.library", "client")
                    self.assertEqual(kernel["tcp"], kernel["of"])
                    self.assertEqual(got["tcp"], got["of"], got)
                    if what == "queues":
                        self.assertRegex(got["log"], " 1 of 1 queues(.|\n)* 2 of 2 queues")
                    # What is on its way when the event comes may be lost, and while a driver begins anew.
                    self.assertLessEqual(len(got["lost"]), len(kernel["lost"]) + 2, got)
                    # The ring has the datagrams again afterwards; those of several frames are the kernel's.
                    if wire not in machines.PROGRAM_LOST:
                        others = 8 if what == "others" else 0
                        self.assertLessEqual(got["by the kernel"], got["long"] + got["of"] // 4 + others, got)

    def test_a_client_that_is_killed(self):
        for wire in machines.GUESTS[GUEST][2]:
            if has_a_killed_client(wire):
                # The conversations after it find the interface free.
                output = RESULTS[f"{wire}.killed"][0]
                self.assertIn("offloaded by", output.err)
                self.assertIn("eth0", output.out)
                self.assertNotIn("xdp", output.out)

    def test_the_kernel_does_not_complain(self):
        said = RESULTS["dmesg"][0].out
        self.assertIn("Linux version", said)
        self.assertNotRegex(said, "WARNING:|Call Trace:|BUG:|Oops|checksum_partial", said[-5000:])


if __name__ == "__main__":
    unittest.main(verbosity=2)
