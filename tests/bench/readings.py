# SPDX-License-Identifier: BSD-2-Clause
"""Reads what the measured programs print."""
import json
import re

from wire import Failure


def parse_ping_pong(text):
    """Output of sockperf's ping-pong client -> {"p50", "p99"} in microseconds (half of the round trip),
    messages of the whole run, and its seconds."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    percentiles = {m[1]: float(m[2]) for m in re.finditer(r"percentile\s+([0-9.]+)\s*=\s*([0-9.]+)", text)}
    run = re.search(r"\[Total Run\] RunTime=([0-9.]+) sec.*ReceivedMessages=(\d+)", text)
    if run is None or "50.000" not in percentiles or "99.000" not in percentiles:
        raise Failure("sockperf's client printed no percentiles:\n" + text[-2000:])
    return {"p50": percentiles["50.000"], "p99": percentiles["99.000"], "messages": int(run[2]),
            "seconds": float(run[1])}


def parse_throughput_client(text):
    """Output of sockperf's throughput client -> (messages sent, seconds)."""
    found = re.search(r"Total of (\d+) messages sent in ([0-9.]+) sec", text)
    if found is None:
        raise Failure("sockperf's client printed no total:\n" + text[-2000:])
    return int(found[1]), float(found[2])


def parse_server(text):
    """Output of sockperf's server after SIGINT -> messages that its program received."""
    found = re.search(r"Total (\d+) messages received and handled", text)
    if found is None:
        raise Failure("sockperf's server printed no total:\n" + text[-2000:])
    return int(found[1])


def parse_iperf3(text):
    """iperf3 -J -> Gbit/s that the receiver counted."""
    try:
        result = json.loads(text)
        if "error" in result:
            raise Failure("iperf3: " + result["error"])
        return result["end"]["sum_received"]["bits_per_second"] / 1e9
    except (ValueError, KeyError) as error:
        raise Failure("iperf3 gave no result:\n" + text[-2000:]) from error


def parse_counters(text, protocol, names):
    """/proc/net/snmp -> the named counters of a protocol."""
    titles, values = [line.split()[1:] for line in text.splitlines() if line.startswith(protocol + ":")]
    row = dict(zip(titles, map(int, values)))
    return tuple(row[name] for name in names)


def parse_json(text, what):
    """The one line of JSON that a program of tests/bench prints."""
    try:
        return json.loads(text.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise Failure(f"{what} gave no result:\n" + text[-2000:]) from error
