# SPDX-License-Identifier: BSD-2-Clause
"""What a newcomer asks first: latency and rates, libvma on both sides beside the kernel on both sides."""
import suite_tcp
import suite_udp
from table import Row

BY_DEFAULT = False   # the others measure the same, and more
SIDES = {"kernel": {}, "libvma": {"client_vma": True, "server_vma": True}}
TCP_SIZES = (100, 1400, 64000)


def tcp_measurements(wire, seconds):
    """Name -> function that measures it once: what the kernel's congestion control may change."""
    result = {}
    for side, vma in SIDES.items():
        result[f"tcp ping-pong {side}"] = lambda vma=vma: suite_tcp.ping_pong(wire, seconds, **vma)
        for size in TCP_SIZES:
            result[f"tcp {size} {side}"] = (
                lambda vma=vma, size=size: suite_tcp.throughput(wire, seconds, size, **vma))
    return result


def measurements(wire, seconds, _programs):
    """Name -> function that measures it once."""
    result = {}
    for side, vma in SIDES.items():
        result[f"udp ping-pong {side}"] = lambda vma=vma: suite_udp.ping_pong(wire, seconds, **vma)
        result[f"udp 100 {side}"] = lambda vma=vma: suite_udp.throughput(wire, seconds, 100, **vma)
    return result | tcp_measurements(wire, seconds)


def rows_of(protocol, sizes):
    section = protocol.upper()
    for field in ("p50", "p99"):
        yield row(f"{protocol} ping-pong {field}", f"ping-pong, 64 bytes, half round trip in us, {field}",
                  f"{protocol} ping-pong", field, less=True, section=section)
        section = None
    for size in sizes:
        yield row(f"{protocol} {size}", f"one way, {size} bytes, received, 1000 msg/s", f"{protocol} {size}",
                  "received")


def tcp_rows():
    return rows_of("tcp", TCP_SIZES)


def rows():
    yield from rows_of("udp", (100,))
    yield from tcp_rows()


def row(key, title, reading, field, **more):
    return Row(key, title, f"{reading} kernel", f"{reading} libvma", field, **more)
