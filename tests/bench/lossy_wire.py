# SPDX-License-Identifier: BSD-2-Clause
"""The ground of measurements on a bad wire: a third namespace between the two, in which the program relay
carries frames from one to the other."""
import contextlib
import sys

from readings import parse_json
from wire import DEVICE, Failure, Wire, run

PORT = {"a": "port0", "b": "port1"}    # the relay's ends
# As `ethtool -K DEVICE tso off gso off gro off tx off`: each frame is one of the MTU, with
# its checksum. The numbers: SIOCETHTOOL; ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM.
PLAIN_FRAMES = """
import array, fcntl, socket, struct, sys
s = socket.socket()
for command in (0x1f, 0x24, 0x2c, 0x17):
    value = array.array("B", struct.pack("II", command, 0))
    fcntl.ioctl(s, 0x8946, struct.pack("16sP", sys.argv[1].encode(), value.buffer_info()[0]))
"""


class LossyWire(Wire):
    """As Wire, but nothing passes unless a relay runs."""

    def __init__(self, library, program, pinned=False, congestion=None):
        """`program`: relay of tests/bench."""
        super().__init__(library, pinned, congestion)
        self.program = program
        self.name["m"] = self.name["a"][:-1] + "m"

    def join(self):
        for side, port in PORT.items():
            run("ip", "link", "add", DEVICE[side], "netns", self.name[side], "type", "veth",
                "peer", "name", port, "netns", self.name["m"])
            run("ip", "-n", self.name["m"], "link", "set", port, "up")
            for where, device in ((side, DEVICE[side]), ("m", port)):
                self.inside(where, sys.executable, "-S", "-E", "-c", PLAIN_FRAMES, device)

    @contextlib.contextmanager
    def relay(self, *options):
        """A relay runs meanwhile. Afterwards the dictionary has what it printed."""
        process = self.start("m", self.program, PORT["a"], PORT["b"], *options)
        if process.stdout.readline() != "ready\n":
            raise Failure("the relay did not start: " + self.finish(process, may_fail=True))
        result = {}
        yield result
        result.update(parse_json(self.interrupt(process), "relay"))
        if any(direction["missed"] for direction in result["directions"]):
            raise Failure("the relay was too slow for the frames that came")

    def set_ecn(self, value):
        """net.ipv4.tcp_ecn on both sides: 1 asks for congestion marks, 2 answers who asks."""
        for side in DEVICE:
            self.inside(side, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/tcp_ecn")
