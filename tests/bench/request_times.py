# SPDX-License-Identifier: BSD-2-Clause
"""The program requests, as several commands measure with it: the time of a request over lasting connections.
The answers are the data, so the server is the side that sends."""
import os

from readings import parse_json
from suite_tcp import PORTS
from wire import ADDRESS, Failure


def find_programs(build, *names):
    """The library and these programs of tests/bench, in a build directory."""
    paths = [os.path.join(build, "libvma", "libvma.so"),
             *(os.path.join(build, "tests", "bench", name) for name in names)]
    for path in paths:
        if not os.path.exists(path):
            raise Failure(f"{path} is missing: build first")
    return [os.path.realpath(path) for path in paths]


def serve_requests(wire, program, vma, port=None):
    """Starts the server on side a. Returns its process and its port."""
    port = port or str(next(PORTS))
    server = wire.start("a", program, "server", ADDRESS["a"], port, vma=vma)
    wire.wait_bound(server, "tcp", int(port))
    return server, port


def request_times(wire, program, port, count, answer, at_once, vma=False):
    """The client on side b, to its end: requests and ms of one, by percentile. `answer`: bytes."""
    client = wire.start("b", program, "client", ADDRESS["a"], port, "--count", str(count),
                        "--bytes", str(answer), "--at-once", str(at_once), vma=vma)
    result = parse_json(wire.finish(client, 60), "requests")
    return {name: us / 1e3 for name, us in result["us"].items()}, result["requests"]
