# SPDX-License-Identifier: BSD-2-Clause
"""A real RDMA stack without hardware: a guest with rdma_rxe (Soft-RoCE).

It has two RDMA devices on the two ends of a veth pair: rxe0 (198.18.9.1) and rxe1 (198.18.9.2); traffic
between the two addresses takes the wire.
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support" / "guest"))
import guest  # noqa: E402
from guest import Step  # noqa: E402, F401

ADDRESS = ("198.18.9.1", "198.18.9.2")       # of rxe0 and rxe1; guest.sh sets them


def suite(programs=()):
    """`programs`: what the steps run, with its packages."""
    # Without the provider libibverbs sees no rxe device.
    return guest.Suite(HERE / "guest.sh", ("veth", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"),
                       programs=(("rdma", "iproute2"), *programs),
                       files=(("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),))
