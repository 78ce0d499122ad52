# SPDX-License-Identifier: BSD-2-Clause
"""The guests of the suite: kernels, devices, and how the library works on each.

A wire connects the devices of two namespaces, WIRE.a and WIRE.b (guest.sh). The same conversation
(tests/apps/talk.cpp) goes over it on the kernel alone, with the library at the client, and with it at the
server.
"""
import dataclasses
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support" / "guest"))
import guest  # noqa: E402

# Debian's releases with newer kernels, and with an emulator that has igb (QEMU 8).
BACKPORTS, NEXT_BACKPORTS = "bookworm-backports", "trixie-backports"


@dataclasses.dataclass(frozen=True)
class Wire:
    """`number` is in its addresses; `library` is for each side with the library what it says of its
    interface. `midst` happens in the middle of a conversation, in the client's namespace; `after` before the
    next one. `begins_anew`: side a loses its link for a while when an XDP program comes or goes."""
    number: int
    library: dict
    devices: tuple = ()
    midst: str = ""
    after: str = ""
    begins_anew: bool = False


def pair(number, *models, taps=()):
    """A hub is a wire between two devices of the guest. Two taps are one, too: by a bridge of the emulator's
    host, which takes super-frames and partial sums. `taps`: the queues of each."""
    words = ()
    for side, model in enumerate(models, 1):
        name = f"port{number}.{side}"
        backend = f"hubport,hubid={number}"
        if taps:
            backend = f"tap,ifname=tap{number}.{side},script=no,downscript=no,queues={taps[side - 1]}"
        words += ("-netdev", f"{backend},id={name}",
                  "-device", f"{model},netdev={name},romfile=,mac=52:54:00:00:0{number}:0{side}")
    return words


WIRES = {
    "virtio": Wire(1, {"a": "eth0 .*driver virtio_net, native XDP, ", "b": "eth0 .*generic XDP, "},
                   pair(1, "virtio-net-pci", "e1000e")),
    "vmxnet3": Wire(2, {"a": "eth0 .*driver vmxnet3, ", "b": "eth0 .*driver 8139cp, generic XDP, "},
                    pair(2, "vmxnet3", "rtl8139")),
    "backup": Wire(3, {"a": "bond0 .*driver bonding, generic XDP, "},
                   midst="ip link set port0 down", after="ip link set port0 up"),
    "lacp": Wire(4, {"a": "bond0 .*driver bonding, generic XDP, "},
                 midst="ip link set port1 down", after="ip link set port1 up"),
    # Without copies both since Linux 6.14; virtio if the device is told of an IOMMU.
    "igb": Wire(5, {"a": "eth0 .*driver igb, native XDP without copies, ",
                    "b": "eth0 .*driver virtio_net, native XDP without copies, "},
                pair(5, "igb", "virtio-net-pci,iommu_platform=on,disable-legacy=on"), begins_anew=True),
    # A host that offloads, as clouds have it. One that lets the guest switch nothing off refuses native XDP.
    "offloads": Wire(6, {"a": "eth0 .*driver virtio_net, native XDP, .* 2 of 2 queues",
                         "b": "eth0 are (served by the kernel: .*GRO_HW|offloaded by .*tcx, )"},
                     pair(6, "virtio-net-pci,mq=on,vectors=6", "virtio-net-pci,ctrl_guest_offloads=off",
                          taps=(2, 1))),
}
# What happens in the middle of a conversation, to the client's interface: {address} is its own. The peer has
# servers for two more clients: one without the library, and a second process with it.
EVENTS = {
    "link": "ip link set eth0 down; sleep 1; ip link set eth0 up",
    "mtu": "ip link set eth0 mtu 1280; sleep 1; ip link set eth0 mtu 1500",
    "address": "ip addr del {address}/24 dev eth0; sleep 1; ip addr add {address}/24 dev eth0",
    "queues": "ethtool -L eth0 combined 2; sleep 3",
    "others": "{talk} client {peer}:7001 2 1,1000 && LD_PRELOAD={library} {talk} client {peer}:7002 2 1,1000",
}
# What comes before the conversation with an event.
BEFORE = {"queues": "ethtool -L eth0 combined 1"}
# Wire: its events without --full, where a client is killed then, and what the device has no setting for.
SOME = {"igb": tuple(EVENTS), "virtio": ("address",)}
KILLED = ("igb", "virtio")
# virtio_net takes no other number while a native program is on it.
WITHOUT = {"virtio": ("queues",), "vmxnet3": ("queues",), "offloads": ("queues",)}
# After link and MTU the driver runs no XDP program any more (6.12): the kernel has the datagrams.
PROGRAM_LOST = ("vmxnet3",)
# Guest: kernel, emulator (releases), wires.
GUESTS = {
    "guest": ("", "", ("virtio", "vmxnet3", "backup", "lacp", "offloads")),
    "newest": (NEXT_BACKPORTS, BACKPORTS, ("igb", "offloads")),
    "backports": (BACKPORTS, BACKPORTS, ("virtio", "vmxnet3", "backup", "lacp", "igb", "offloads")),
}
MODULES = {"virtio": ("virtio_net", "e1000e"), "vmxnet3": ("vmxnet3", "8139cp"), "igb": ("igb", "virtio_net"),
           "offloads": ("virtio_net",)}


def words(name, wire):
    """For each side of the guest's wire what the log says there."""
    newest = GUESTS[name][0] == NEXT_BACKPORTS
    return {side: text if newest else text.replace(" without copies", "")
            for side, text in WIRES[wire].library.items()}


def suite(name):
    kernel, emulator, wires = GUESTS[name]
    devices = sum((WIRES[wire].devices for wire in wires), ())
    modules = dict.fromkeys(("veth", "bonding", *sum((MODULES.get(wire, ()) for wire in wires), ())))
    return guest.Suite(HERE / "guest.sh", tuple(modules), devices=devices, kernel=kernel, emulator=emulator,
                       programs=(("ethtool", "ethtool"),),
                       taps=tuple((name, queues != "1") for name, queues in
                                  re.findall("ifname=([^,]*),.*?queues=([0-9]*)", " ".join(devices))))
