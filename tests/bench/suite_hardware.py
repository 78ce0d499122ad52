# SPDX-License-Identifier: BSD-2-Clause
"""An RDMA adapter below the library, simulated (tests/support/mlx5_sim), beside AF_XDP and the kernel. For
information only.

The simulator is a thread that plays the adapter, on the same processors as the program, so its figures are no
forecast of a card's. What they show is that unmodified programs run over the verbs devices, and what lies
between plain verbs and the library's own queues on the same adapter. The library is on side b, side a is the
kernel's.
"""
import os
import tempfile

import suite_tcp
import suite_udp
from table import Row
from wire import DEVICE, Failure, run

DEVICES = {"xdp": "AF_XDP", "rdma": "adapter, plain verbs", "mlx5": "adapter, own queues"}
BY_DEFAULT = False    # not part of a demo that is not asked for it


def environments(wire, programs):
    """What programs on side b need, by device. The adapter's sysfs goes with the wire."""
    for name in ("libmlx5_sim.so", "mlx5_sim_sysfs"):
        if not os.path.exists(programs[name]):
            raise Failure(f"{programs[name]} is missing: build first, or start this as ./demo")
    sysfs = tempfile.TemporaryDirectory(prefix="vmademo-sysfs-")
    wire.kept.append(sysfs)
    run(programs["mlx5_sim_sysfs"], sysfs.name, f"{DEVICE['b']}={wire.link('b')['address']}")
    adapter = (f"LD_PRELOAD={wire.library}:{programs['libmlx5_sim.so']}", f"SYSFS_PATH={sysfs.name}",
               "MLX5_SIM_WIRE=netdev")
    return {"xdp": (), "rdma": (*adapter, "VMA_MLX5_DIRECT=0"), "mlx5": (*adapter, "VMA_MLX5_DIRECT=1")}


def measurements(wire, seconds, programs):
    """Name -> function that measures it once."""
    result = {}
    for name, environment in {"kernel": None, **environments(wire, programs)}.items():
        vma = environment is not None
        environment = environment or ()
        result |= {
            f"udp {name}": lambda v=vma,
            e=environment: suite_udp.ping_pong(wire, seconds, server_vma=v, environment=e),
            f"tcp {name}": lambda v=vma,
            e=environment: suite_tcp.ping_pong(wire, seconds, False, v, environment=e),
            f"udp rate {name}": lambda v=vma,
            e=environment: suite_udp.throughput(wire, seconds, server_vma=v, environment=e),
            f"tcp rate {name}": lambda v=vma,
            e=environment: suite_tcp.throughput(wire, seconds, 100, server_vma=v, environment=e),
        }
    return result


def rows():
    for reading, title, field, less in (("udp", "UDP ping-pong, 64 bytes, p50 in us", "p50", True),
                                        ("tcp", "TCP ping-pong, 64 bytes, p50 in us", "p50", True),
                                        ("udp rate", "UDP one way, 100 bytes, 1000 msg/s received",
                                         "received", False),
                                        ("tcp rate", "TCP one way, 100 bytes, 1000 msg/s received",
                                         "received", False)):
        section = title + "; the library receives, the kernel sends"
        for device, name in DEVICES.items():
            yield Row(f"{reading} {device}", name, f"{reading} kernel", f"{reading} {device}", field,
                      less=less, section=section)
            section = None
