#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""One end of a conversation over TCP and UDP, which checks each byte.

    talk.py server ADDRESS
    talk.py client ADDRESS [COMMAND]

The server answers with what it gets, to one client. The client sends messages of many sizes, one after the
other, and prints as JSON how many came back whole. COMMAND, for a shell, runs in the middle, without a
library that is preloaded here.
"""
import json
import os
import socket
import subprocess
import sys
import threading
import time

PORT = 7000
# Around what drivers treat apart: short frames, where checksums are left to the device, the MTU.
SIZES = (1, 17, 46, 100, 250, 255, 256, 257, 300, 511, 512, 1000, 1400, 1472, 1473, 4000, 9000)
LONGEST = 1472      # datagram that is one frame
EACH = 4            # messages of a size
PATIENCE = 60       # seconds until a connection is there
ANSWER = 3          # seconds for a datagram's answer


def content(size, number):
    return bytes((7 * i + number) & 255 for i in range(size))


def receive(connection, size):
    parts = []
    while size > 0:
        part = connection.recv(size)
        if not part:
            raise ConnectionError("the connection ends early")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def datagrams_of_the_kernel():
    with open("/proc/net/snmp", encoding="ascii") as file:
        lines = [line.split() for line in file if line.startswith("Udp:")]
    return int(lines[1][lines[0].index("InDatagrams")])


def serve(address):
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, PORT))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, PORT))
    listener.listen()

    def answer():
        while True:
            data, peer = datagrams.recvfrom(65536)
            datagrams.sendto(data, peer)

    threading.Thread(target=answer, daemon=True).start()
    connection, _ = listener.accept()
    before = datagrams_of_the_kernel()
    while data := connection.recv(65536):
        connection.sendall(data)
    print(json.dumps({"kernel": datagrams_of_the_kernel() - before}), flush=True)
    os._exit(0)     # the thread waits


def connect(address):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=PATIENCE)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


def talk(address, command):
    connection = connect(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.connect((address, PORT))
    datagrams.settimeout(ANSWER)
    before = datagrams_of_the_kernel()
    result = {"tcp": 0, "udp": 0, "of": EACH * len(SIZES), "lost": [],
              "long": EACH * sum(size > LONGEST for size in SIZES)}
    for number in range(EACH):
        if number == EACH // 2 and command:
            environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
            subprocess.run(command, shell=True, check=True, env=environment)
        for size in SIZES:
            data = content(size, number)
            connection.sendall(data)
            result["tcp"] += receive(connection, size) == data
            datagrams.send(data)
            try:
                while (got := datagrams.recv(65536)) != data:
                    if len(got) == size:
                        raise ValueError(f"a datagram of {size} bytes is damaged")
                result["udp"] += 1
            except TimeoutError:
                result["lost"].append(size)
    result["kernel"] = datagrams_of_the_kernel() - before
    print(json.dumps(result))


def main():
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        talk(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)


main()
