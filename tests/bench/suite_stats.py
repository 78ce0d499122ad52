# SPDX-License-Identifier: BSD-2-Clause
"""What statistics cost: the library with a block for each socket beside the library with neither blocks nor a
file.

Totals are counted in both, so a file and blocks are what makes the difference. Ratios below 1 mean that
statistics cost something; what matters is whether they stay within the noise that the smallest and the
largest ratio show.
"""
import suite_tcp
import suite_udp
from table import Row

OFF = ("VMA_STATS_FD_NUM=0", "VMA_STATS_SHMEM_DIR=")
TARGETS = {"udp p50": 0.97, "tcp p50": 0.97, "udp rate": 0.97, "tcp rate": 0.97}


def measurements(wire, seconds, programs):
    """Name -> function that measures it once."""
    del programs
    result = {}
    for name, environment in (("off", OFF), ("on", ())):
        result |= {
            f"udp {name}": lambda e=environment: suite_udp.ping_pong(wire, seconds, True, True,
                                                                     environment=e),
            f"tcp {name}": lambda e=environment: suite_tcp.ping_pong(wire, seconds, True, True,
                                                                     environment=e),
            f"udp rate {name}": lambda e=environment: suite_udp.throughput(wire, seconds, vma=True,
                                                                           environment=e),
            f"tcp rate {name}": lambda e=environment: suite_tcp.throughput(wire, seconds, 100, vma=True,
                                                                           environment=e),
        }
    return result


def rows():
    def row(key, title, reading, field, **more):
        return Row(key, title, f"{reading} off", f"{reading} on", field, target=TARGETS[key], **more)

    yield row("udp p50", "UDP ping-pong, 64 bytes, p50 in us", "udp", "p50", less=True,
              section="Statistics: off, on")
    yield row("tcp p50", "TCP ping-pong, 64 bytes, p50 in us", "tcp", "p50", less=True)
    yield row("udp rate", "UDP one way, 100 bytes, 1000 msg/s", "udp rate", "received")
    yield row("tcp rate", "TCP one way, 100 bytes, 1000 msg/s", "tcp rate", "received")
