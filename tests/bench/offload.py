# SPDX-License-Identifier: BSD-2-Clause
"""Was a reading with libvma really libvma's? The kernel's own protocol counters tell: they must have stood
still."""
from readings import parse_counters
from wire import Failure

TOLERATED = 0.1    # at most this part of the traffic may pass the kernel's protocol
COUNTERS = {"Udp": ("InDatagrams", "OutDatagrams"), "Tcp": ("InSegs", "OutSegs")}


class OffloadCheck:
    """Around a run: the sides that have the library must not have used the kernel's protocol, "Udp" or
    "Tcp"."""

    def __init__(self, wire, sides, protocol="Udp"):
        self.wire, self.sides, self.protocol = wire, sides, protocol
        self.before = {side: self.read(side) for side in sides}

    def read(self, side):
        return parse_counters(self.wire.snmp(side), self.protocol, COUNTERS[self.protocol])

    def used(self):
        """The most that a side's kernel has sent or received since."""
        return max((after - before for side in self.sides for after,
                    before in zip(self.read(side), self.before[side])),
                   default=0)

    def offloaded(self, count):
        """`count`: how many datagrams or segments the kernel would at least have needed."""
        return self.used() <= count * TOLERATED

    def verify(self, count):
        if not self.offloaded(count):
            raise Failure(f"not offloaded: of {count} packets {self.used()} went through the kernel's "
                          f"{self.protocol} on the side that has the library "
                          "(VMA_TRACELEVEL=debug tells why)")
