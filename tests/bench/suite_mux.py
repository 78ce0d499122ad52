# SPDX-License-Identifier: BSD-2-Clause
"""Waiting: what epoll_wait costs among many sockets, select and epoll beside recv, sleeping and being
woken."""
import csv
import os
import tempfile
import time

from offload import OffloadCheck
from readings import parse_json, parse_ping_pong
from suite_tcp import PORTS as TCP_PORTS, Pair, SEGMENTS
from suite_udp import UDP_PORT
from table import Row
from wire import ADDRESS

CONNECTIONS = 10_000
CALLS = {"epoll": "e", "select": "s", "poll": "p"}   # sockperf -F; beside recvfrom: r
CONTROL_PORT = 18600   # of vma_perf
ASLEEP = ["VMA_RX_POLL=0", "VMA_SELECT_POLL=0"]

# What is aimed at: epoll_wait among 10,000 at most 1.3 times what it costs with one; latency by epoll and
# select at most 1.15 times that by recvfrom; woken from sleep at most 1.1 times the kernel's time; less than
# one per cent of a processor when idle.
AMONG_MANY = 1.3
BESIDE_RECEIVE = 1 / 1.15
WOKEN = 1 / 1.1
IDLE = 1.0


def watch_many(wire, program, vma=False):
    pair = Pair(wire, vma, vma)
    server = pair.serve(program, "server", ADDRESS["b"], pair.port)
    result = parse_json(pair.ask(30, program, "client", ADDRESS["b"], pair.port, "--connections",
                                 str(CONNECTIONS)), "watch_many")
    wire.interrupt(server)
    time.sleep(1)  # the kernel still has ten thousand sockets to take apart
    return {"ready one": result["one_ready_ns"], "ready many": result["many_ready_ns"],
            "ready": result["many_ready_ns"] / result["one_ready_ns"],
            "empty": result["many_empty_ns"] / result["one_empty_ns"],
            "offloaded": pair.check.offloaded(result["connections"] * SEGMENTS)}


def by_call(wire, seconds, call, client_vma=False, server_vma=False, environment=(), groups=()):
    """sockperf's ping-pong over UDP, 64 bytes; both sides wait with `call` (sockperf -F). With `groups` over
    these in turn, each with a port and a socket of its own."""
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    with tempfile.NamedTemporaryFile("w", suffix=".feed", encoding="ascii") as feed:
        feed.writelines(f"U:{address}:{UDP_PORT + number}\n"
                        for number, address in enumerate(groups or [ADDRESS["b"]]))
        feed.flush()
        options = {side: ["-f", feed.name, "-F", call] for side in "ab"}
        for side in options if groups else ():
            options[side] += ["--mc-rx-if", ADDRESS[side], "--mc-tx-if", ADDRESS[side]]
        server = wire.start("b", "sockperf", "sr", *options["b"], vma=server_vma, environment=environment)
        wire.wait_bound(server, "udp", UDP_PORT)
        client = wire.start("a", "sockperf", "pp", *options["a"], "-t", str(seconds), "-m", "64",
                            vma=client_vma, environment=environment)
        result = parse_ping_pong(wire.finish(client, seconds))
        wire.interrupt(server)
    check.verify(result["messages"])
    return {"p50": result["p50"], "p99": result["p99"]}


def idle(wire, seconds, call, vma=True):
    """Per cent of a processor that a server uses which nobody asks."""
    with tempfile.NamedTemporaryFile("w", suffix=".feed", encoding="ascii") as feed:
        feed.write(f"U:{ADDRESS['b']}:{UDP_PORT}\n")
        feed.flush()
        server = wire.start("b", "sockperf", "sr", "-f", feed.name, "-F", call, vma=vma, environment=ASLEEP)
        if vma:
            wire.wait_until(lambda: wire.has_program("b"), "the library has attached its XDP program", server)
        else:
            wire.wait_bound(server, "udp", UDP_PORT)
        time.sleep(0.2)

        def used():  # seconds; the accounting in ticks of 10 ms would be too coarse
            total = 0
            for thread in os.listdir(f"/proc/{server.pid}/task"):
                with open(f"/proc/{server.pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
            return total / 1e9
        before, began = used(), time.monotonic()
        time.sleep(max(seconds, 3))
        result = (used() - before) / (time.monotonic() - began) * 100
        wire.interrupt(server)
    return {"cpu": result}


def round_trips(wire, seconds, threads, sockets=20, client_vma=False, server_vma=False):
    """Thousands of round trips a second of a sockperf client, one message at a time over each of as many
    sockets of UDP and of TCP in turn. The server's threads share them; all wait with epoll_wait."""
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    ports = [next(TCP_PORTS) for _ in range(sockets)]
    with tempfile.NamedTemporaryFile("w", suffix=".feed", encoding="ascii") as feed:
        feed.writelines(f"{kind}:{ADDRESS['b']}:{port}\n" for kind in "UT" for port in ports)
        feed.flush()
        options = ["-f", feed.name, "-F", "e"]
        server = wire.start("b", "sockperf", "sr", *options, "--threads-num", str(threads), vma=server_vma)
        for protocol in ("udp", "tcp"):
            for port in ports:
                wire.wait_bound(server, protocol, port)
        client = wire.start("a", "sockperf", "pp", *options, "-t", str(seconds), "-m", "64", vma=client_vma)
        result = parse_ping_pong(wire.finish(client, seconds))
        wire.interrupt(server)
    check.verify(result["messages"] / 2)
    return {"rate": result["messages"] / result["seconds"] / 1e3, "p50": result["p50"], "p99": result["p99"]}


def perf(wire, seconds, program, command, *options, environment=(), client_vma=False, server_vma=False):
    """The last line of what vma_perf says of a run: name of a column -> text."""
    check = OffloadCheck(wire, ["a"] * client_vma + ["b"] * server_vma)
    server = wire.start("b", program, "server", "--clients", "1", vma=server_vma, environment=environment)
    wire.wait_bound(server, "tcp", CONTROL_PORT)
    text = wire.finish(wire.start("a", program, command, ADDRESS["b"], "-T", str(seconds), *options, "--csv",
                                  vma=client_vma, environment=environment), seconds)
    wire.finish(server)
    result, = csv.DictReader(text.splitlines()[-2:])   # what comes before is the library's log
    check.verify(int(result["received"]))
    return result


def threads_apart(wire, seconds, program, protocol, threads, logic=0, **sides):
    """Thousands of round trips a second of vma_perf, all threads together. Each thread has a socket of its
    own on both sides, and waits in recv(). `logic`: VMA_RING_ALLOCATION_LOGIC_RX and _TX."""
    environment = [f"VMA_RING_ALLOCATION_LOGIC_{way}={logic}" for way in ("RX", "TX")]
    result = perf(wire, seconds, program, "pingpong", "-t", protocol, "-s", "64", "--threads", str(threads),
                  environment=environment, **sides)
    return {"rate": float(result["received_per_s"]) / 1e3}


def extra_api(wire, seconds, program, command, size, mode=None, burst=1):
    """vma_perf over UDP with the library on both sides; `mode`: of the extra API, see docs/vma_perf.md."""
    result = perf(wire, seconds, program, command, "-s", str(size), "-b", str(burst),
                  *([f"--extra-api={mode}"] if mode else []), client_vma=True, server_vma=True)
    if command == "pingpong":
        return {name: float(result[name + "_us"]) for name in ("p50", "p99")}
    return {"sent": float(result["sent"]) / float(result["seconds"]) / 1e3}


def measurements(wire, seconds, programs):
    """Name -> function that measures it once."""
    both = {"client_vma": True, "server_vma": True}
    result = {"watch kernel": lambda: watch_many(wire, programs["watch_many"]),
              "watch vma": lambda: watch_many(wire, programs["watch_many"], vma=True),
              "vma receive": lambda: by_call(wire, seconds, "r", **both)}
    for name, call in CALLS.items():
        result["vma " + name] = lambda call=call: by_call(wire, seconds, call, **both)
    for name, call in (("receive", "r"), ("epoll", "e")):
        result["sleeping kernel " + name] = lambda call=call: by_call(wire, seconds, call)
        result["sleeping vma " + name] = lambda call=call: by_call(wire, seconds, call, server_vma=True,
                                                                   environment=ASLEEP)
        result["idle kernel " + name] = lambda call=call: idle(wire, seconds, call, vma=False)
        result["idle " + name] = lambda call=call: idle(wire, seconds, call)
    return result


def rows():
    section = f"epoll_wait: {CONNECTIONS:,} TCP connections watched, one active, beside one watched"
    for key, title in (("ready", "call that finds it / the same with one"),
                       ("empty", "call that finds nothing / the same with one")):
        yield Row("watch " + key, title, "watch kernel", "watch vma", key, less=True, limit=AMONG_MANY,
                  section=section)
        section = None
    section = "UDP ping-pong under libvma, by recvfrom and by others, half of the round trip in us"
    for name in CALLS:
        yield Row("call " + name, f"recvfrom, {name}; p50", "vma receive", "vma " + name, "p50", less=True,
                  target=BESIDE_RECEIVE,
                  section=section)
        section = None
    section = "Woken from sleep, kernel peer, half of the round trip in us"
    for name in ("receive", "epoll"):
        yield Row("woken " + name, name + "; p50", "sleeping kernel " + name, "sleeping vma " + name, "p50",
                  less=True, target=WOKEN,
                  section=section)
        section = None
    section = "Idle, told not to poll: per cent of a processor"
    for name in ("receive", "epoll"):
        yield Row("idle " + name, name, "idle kernel " + name, "idle " + name, "cpu", less=True, limit=IDLE,
                  section=section)
        section = None
