# SPDX-License-Identifier: BSD-2-Clause
"""Multicast: a feed of many groups, and copies of one group for several sockets of a process."""
import json

import suite_mux
from offload import OffloadCheck
from wire import ADDRESS

GROUP = "239.1.2.3"
FEED = [f"239.4.4.{number}" for number in range(1, 101)]
CONTROL_PORT = 18600


def feed(wire, seconds, **sides):
    """sockperf's ping-pong over the groups of a feed file in turn, with epoll on both sides. Of one second
    sockperf leaves nothing where many sockets warm up."""
    return suite_mux.by_call(wire, max(seconds, 2), "e", groups=FEED, **sides)


def copies(wire, seconds, program, sockets, client_vma=False, server_vma=False):
    """vma_perf's throughput to one group that so many sockets of the server receive, 100 bytes: thousands a
    second that the program received on each socket. One thread asks them in turn without waiting, in each row
    and column alike."""
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    server = wire.start("b", program, "server", "--clients", "1", vma=server_vma)
    wire.wait_bound(server, "tcp", CONTROL_PORT)
    client = wire.start("a", program, "throughput", ADDRESS["b"], "--group", GROUP, "--group-sockets",
                        str(sockets), "--server-wait", "nonblocking", "-T", str(seconds), "--json", "-q",
                        vma=client_vma)
    text = wire.finish(client, seconds)
    wire.finish(server)
    result = json.loads(text[text.index("{"):])    # what comes before is the library's log
    check.verify(result["sent"])
    return {"each": result["received_per_s"] / sockets / 1e3}
