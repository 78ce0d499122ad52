# SPDX-License-Identifier: BSD-2-Clause
"""The library on drivers that the host does not have: one guest (tests/support/guest) runs all steps, then
each test looks at what its steps did.

Each device carries the same conversation (talk.py) on the kernel, with the library at the client, and with it
at the server.
"""
import json
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support" / "guest"))
import guest  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
LIBRARY = BUILD / "libvma" / "libvma.so"


def nic(model, hub, address):
    name = "port" + address.replace(":", "")
    return ("-netdev", f"hubport,id={name},hubid={hub}",
            "-device", f"{model},netdev={name},mac=52:54:00:00:{address}")


# A hub is a wire between two devices of the guest.
SUITE = guest.Suite(HERE / "guest.sh",
                    ("veth", "bonding", "virtio_net", "vmxnet3", "e1000e", "8139cp"),
                    devices=(*nic("virtio-net-pci", 1, "01:01"), *nic("e1000e", 1, "01:02"),
                             *nic("vmxnet3", 2, "02:01"), *nic("rtl8139", 2, "02:02")),
                    programs=(("python3", "python3"),))
# Wire -> its number in addresses; for each side its interface, and how the library works on it.
WIRES = {
    "virtio": (1, {"a": ("eth0", "driver virtio_net, native XDP, "), "b": ("eth0", "generic XDP, ")}),
    "vmxnet3": (2, {"a": ("eth0", "driver vmxnet3, "), "b": ("eth0", "driver 8139cp, generic XDP, ")}),
    "backup": (3, {"a": ("bond0", "driver bonding, generic XDP, ")}),
    "lacp": (4, {"a": ("bond0", "driver bonding, generic XDP, ")}),
}
# What happens in the middle, in the client's namespace.
MIDST = {"backup": "ip link set port0 down", "lacp": "ip link set port1 down"}
# Before the next conversation.
AFTER = {"backup": "ip link set port0 up", "lacp": "ip link set port1 up"}
STEPS, RESULTS = [], {}


def talk(wire, side, role, library):
    number = WIRES[wire][0]
    command = ["ip", "netns", "exec", f"{wire}.{side}"]
    if library:
        command += ["env", f"LD_PRELOAD={LIBRARY}"]
    server = "1" if (side == "a") == (role == "server") else "2"
    command += ["python3", str(HERE / "talk.py"), role, f"198.18.{number}.{server}"]
    if role == "client" and wire in MIDST:
        command.append(MIDST[wire])
    return command


def conversation(name, wire, client, server=None, library=None):
    """`client`: the client's side; `library`: the side that has the library."""
    other = "b" if client == "a" else "a"
    STEPS.append(guest.Step(name, talk(wire, client, "client", library == client),
                            server=talk(wire, other, "server", library == other), seconds=100))
    if wire in AFTER:
        STEPS.append(guest.Step(f"{name}.after", ["ip", "netns", "exec", f"{wire}.{client}", "sh", "-c",
                                                  f"{AFTER[wire]}; sleep 2"]))


for name, (_, sides) in WIRES.items():
    for client in ("a", "b"):
        conversation(f"{name}.{client}.kernel", name, client)
    for library in sides:
        for client in ("a", "b"):
            conversation(f"{name}.{client}.library.{library}", name, client, library=library)
STEPS.append(guest.Step("dmesg", ["dmesg"]))


def setUpModule():
    if not LIBRARY.exists():
        raise guest.Failure(f"{LIBRARY} is not there: build the target vma")
    RESULTS.update(guest.Guest(BUILD, SUITE).run(STEPS))


class Wires(unittest.TestCase):
    def talked(self, name, library=None):
        """The client's result; `library`: the client or the server has it."""
        client, server = RESULTS[name]
        said = f"\n{client.out}\n{client.err[-3000:]}\n---- server\n{server.out}\n{server.err[-3000:]}"
        self.assertEqual(client.code, 0, said)
        result = json.loads(client.out)
        if library is not None:
            where = client if library == "client" else server
            result["log"] = where.err
            kernel = result if library == "client" else json.loads(server.out)
            result["by the kernel"] = kernel["kernel"]
        return result

    def check(self, wire):
        for side, (interface, words) in WIRES[wire][1].items():
            for client in ("a", "b"):
                with self.subTest(client=client, library=side):
                    kernel = self.talked(f"{wire}.{client}.kernel")
                    self.assertEqual(kernel["tcp"], kernel["of"])
                    got = self.talked(f"{wire}.{client}.library.{side}",
                                      "client" if client == side else "server")
                    self.assertRegex(got["log"], f"sockets on {interface} are offloaded by .*{words}")
                    self.assertEqual(got["tcp"], got["of"])
                    # What a failing port swallows, both lose.
                    allowed = 2 + len(kernel["lost"]) if wire in MIDST else 0
                    self.assertLessEqual(len(got["lost"]), allowed, got)
                    # Datagrams of several frames are the kernel's.
                    self.assertLessEqual(got["by the kernel"], got["long"] + 2, got)

    def test_virtio_and_e1000e(self):
        self.check("virtio")

    def test_vmxnet3_and_rtl8139(self):
        self.check("vmxnet3")

    def test_bond_with_a_backup(self):
        self.check("backup")

    def test_bond_by_802_3ad(self):
        self.check("lacp")

    def test_the_kernel_does_not_complain(self):
        said = RESULTS["dmesg"][0].out
        self.assertIn("Linux version", said)
        self.assertNotRegex(said, "WARNING:|Call Trace:|BUG:|Oops", said[-5000:])


if __name__ == "__main__":
    unittest.main(verbosity=2)
