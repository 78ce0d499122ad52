# SPDX-License-Identifier: BSD-2-Clause
"""UDP: sockperf on the kernel and on libvma, and what the library costs others on the same device."""
import contextlib
import json
import time

from offload import OffloadCheck
from readings import parse_iperf3, parse_json, parse_ping_pong, parse_server, parse_throughput_client
from table import Row
from wire import ADDRESS, CPU, DEVICE, PATIENCE, cpu_each, run

UDP_PORT, TCP_PORT, NEIGHBOUR_PORT = 11111, 5201, 11112

# Row -> least ratio to aim at, from what AF_XDP in copy mode on veth allows (docs/performance.md). None: no
# aim.
# How many times better than the kernel; the limits as fractions of the kernel's time: 0.33, 0.5, 0.65.
TARGETS = {
    "both p50": 1 / 0.33, "both p99": 1 / 0.5,
    "client p50": 1 / 0.65, "client p99": None,
    "server p50": 1 / 0.65, "server p99": None,
    "spin p50": None, "spin p99": None,
    "rate": 2.2,
    "beside": 0.75,
}
# libvma beside the raw limit: at most 1.35 times its latency, at least 0.7 of its rate.
RAW_TARGETS = {"both p50": 1.35, "rate": 0.7}


def ping_pong(wire, seconds, client_vma=False, server_vma=False, spin=False, environment=(), group=None):
    """sockperf's ping-pong from a to b, 64 bytes; with `group` both ways over that group."""
    options = ["--nonblocked"] if spin else []
    def to(side):
        if group is None:
            return ["-i", ADDRESS["b"]]
        return ["-i", group, "--mc-rx-if", ADDRESS[side], "--mc-tx-if", ADDRESS[side]]
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    server = wire.start("b", "sockperf", "sr", *to("b"), "-p", str(UDP_PORT), *options, vma=server_vma,
                        environment=environment)
    wire.wait_bound(server, "udp", UDP_PORT)
    client = wire.start("a", "sockperf", "pp", *to("a"), "-p", str(UDP_PORT), "-t", str(seconds),
                        "-m", "64", *options, vma=client_vma, environment=environment)
    result = parse_ping_pong(wire.finish(client, seconds))
    wire.interrupt(server)
    check.verify(result["messages"])
    return {"p50": result["p50"], "p99": result["p99"]}


def throughput(wire, seconds, size=100, vma=False, client_vma=False, server_vma=False, environment=()):
    """sockperf's throughput test: thousands of messages per second that the server's program received."""
    client_vma, server_vma = vma or client_vma, vma or server_vma
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    server = wire.start("b", "sockperf", "sr", "-i", ADDRESS["b"], "-p", str(UDP_PORT), vma=server_vma,
                        environment=environment)
    wire.wait_bound(server, "udp", UDP_PORT)
    client = wire.start("a", "sockperf", "tp", "-i", ADDRESS["b"], "-p", str(UDP_PORT), "-t", str(seconds),
                        "-m", str(size),
                        vma=client_vma, environment=environment)
    sent, duration = parse_throughput_client(wire.finish(client, seconds))
    time.sleep(0.1)   # what is queued still counts: it was sent in time
    received = parse_server(wire.interrupt(server))
    check.verify(sent)
    return {"received": received / duration / 1e3, "sent": sent / duration / 1e3,
            **cpu_each(client, server, received)}


def many_at_once(wire, seconds, program, client_vma=False, server_vma=False):
    """sendmmsg() of 32 datagrams of 100 bytes: thousands a second that the server's program received."""
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    server = wire.start("b", program, "server", ADDRESS["b"], str(UDP_PORT), vma=server_vma)
    wire.wait_bound(server, "udp", UDP_PORT)
    client = wire.start("a", program, "client", ADDRESS["b"], str(UDP_PORT), "--seconds", str(seconds),
                        vma=client_vma)
    result = parse_json(wire.finish(client, seconds), "datagrams")
    time.sleep(0.1)   # what is queued still counts: it was sent in time
    received = int(wire.interrupt(server).split()[1])
    check.verify(result["sent"])
    return {"received": received / result["seconds"] / 1e3, "sent": result["sent"] / result["seconds"] / 1e3,
            **cpu_each(client, server, received)}


@contextlib.contextmanager
def neighbour(wire, sides="b"):
    """A process with libvma holds the device of each of the sides. It sleeps in recvfrom: the question is
    what its XDP program costs, not what its spinning costs."""
    running = [wire.start(side, "sockperf", "sr", "-i", ADDRESS[side], "-p", str(NEIGHBOUR_PORT), vma=True,
                          environment=["VMA_RX_POLL=1"]) for side in sides]
    for side, process in zip(sides, running):
        wire.wait_until(lambda: wire.has_program(side), "the library has attached its XDP program", process)
    yield
    for process in running:
        wire.interrupt(process)


def kernel_tcp(wire, seconds, beside=False):
    """iperf3 over the kernel's TCP from a to b, Gbit/s; with `beside` while a process with libvma holds b's
    device."""
    with neighbour(wire) if beside else contextlib.nullcontext():
        server = wire.start("b", "iperf3", "-s", "-1", "-p", str(TCP_PORT), "-B", ADDRESS["b"])
        wire.wait_bound(server, "tcp", TCP_PORT)
        client = wire.start("a", "iperf3", "-c", ADDRESS["b"], "-p", str(TCP_PORT), "-t", str(seconds), "-J")
        rate = parse_iperf3(wire.finish(client, seconds))
        wire.finish(server)
    return {"rate": rate}


def run_raw(wire, seconds, program, what, *options):
    """xsk_raw from a to b: its line of JSON."""
    places = [f"{wire.name[side]}:{DEVICE[side]}" for side in "ab"]
    pins = ["--cpus", f"{CPU['a']},{CPU['b']}"] if wire.pinned else []
    return json.loads(run(program, what, *places, "--seconds", str(seconds), *pins, *options,
                          timeout=seconds + PATIENCE))


def raw(wire, seconds, program, what, *options):
    """AF_XDP with nothing on top."""
    result = run_raw(wire, seconds, program, what, *options)
    if what == "latency":
        return result["half_rtt_us"]
    return {"received": result["received_per_second"] / 1e3, "sent": result["sent_per_second"] / 1e3}


def measurements(wire, seconds, programs):
    """Name -> function that measures it once."""
    return {
        "kernel": lambda: ping_pong(wire, seconds),
        "vma both": lambda: ping_pong(wire, seconds, client_vma=True, server_vma=True),
        "vma client": lambda: ping_pong(wire, seconds, client_vma=True),
        "vma server": lambda: ping_pong(wire, seconds, server_vma=True),
        "kernel spin": lambda: ping_pong(wire, seconds, spin=True),
        "raw": lambda: raw(wire, seconds, programs["xsk_raw"], "latency"),
        "kernel rate": lambda: throughput(wire, seconds),
        "vma rate": lambda: throughput(wire, seconds, vma=True),
        "raw rate": lambda: raw(wire, seconds, programs["xsk_raw"], "rate"),
        "tcp alone": lambda: kernel_tcp(wire, seconds),
        "tcp beside": lambda: kernel_tcp(wire, seconds, beside=True),
    }


def rows():
    def row(key, title, kernel, vma, field, **more):
        return Row(key, title, kernel, vma, field, target=TARGETS[key], raw_target=RAW_TARGETS.get(key),
                   **more)

    section = "UDP ping-pong, 64 bytes, half of the round trip in us"
    for key, title, kernel, vma, limit in (("both", "libvma on both sides", "kernel", "vma both", "raw"),
                                           ("client", "libvma client only", "kernel", "vma client", None),
                                           ("server", "libvma server only", "kernel", "vma server", None),
                                           ("spin", "both, kernel spinning too", "kernel spin", "vma both",
                                            "raw")):
        for field in ("p50", "p99"):
            yield row(f"{key} {field}", f"{title}, {field}", kernel, vma, field, less=True, raw=limit,
                      section=section)
            section = None
    yield row("rate", "received, 1000 msg/s", "kernel rate", "vma rate", "received", raw="raw rate",
              section="UDP one way, 100 bytes")
    yield row("beside", "kernel TCP alone, beside; Gbit/s", "tcp alone", "tcp beside", "rate",
              section="A neighbour on the same device")
