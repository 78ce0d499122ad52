# SPDX-License-Identifier: BSD-2-Clause
"""Uses memcached as a program would, over several connections at once, and checks every byte that comes back.

   memcached_client.py ADDRESS PORT CONNECTIONS KEYS

Each connection has keys of its own. Values go from nothing to 100 KB; requests go one by one, many in one
packet, and as one get of many keys.
"""
import hashlib
import socket
import sys
import threading

SIZES = (0, 1, 63, 1000, 1400, 1448, 2900, 100_000)


def value(connection, key):
    """Different for each key, and long ones have no period."""
    size = SIZES[0] if key % 50 == 3 else SIZES[-1] if key % 50 == 7 else SIZES[key % (len(SIZES) - 1)]
    return hashlib.shake_128(b"%d %d" % (connection, key)).digest(size)


def name(connection, key):
    return b"connection%d:key%d" % (connection, key)


class Client:
    def __init__(self, address, port, number):
        self.number = number
        self.socket = socket.create_connection((address, port), timeout=30)
        self.reader = self.socket.makefile("rb")

    def line(self, expected):
        line = self.reader.readline()
        assert line == expected + b"\r\n", (line, expected)

    def set_command(self, key):
        data = value(self.number, key)
        return b"set %s %d 0 %d\r\n%s\r\n" % (name(self.number, key), key % 65536, len(data), data)

    def expect_value(self, key):
        data = value(self.number, key)
        self.line(b"VALUE %s %d %d" % (name(self.number, key), key % 65536, len(data)))
        read = self.reader.read(len(data) + 2)
        assert read == data + b"\r\n", f"{name(self.number, key)} came back changed"

    def work(self, keys):
        half = keys // 2
        for key in range(half):                                   # one by one
            self.socket.sendall(self.set_command(key))
            self.line(b"STORED")
        batch = 20
        for first in range(half, keys,
                           batch):                    # many commands before the first answer is read
            group = range(first, min(first + batch, keys))
            self.socket.sendall(b"".join(map(self.set_command, group)))
            for _ in group:
                self.line(b"STORED")
        for key in range(half):
            self.socket.sendall(b"get %s\r\n" % name(self.number, key))
            self.expect_value(key)
            self.line(b"END")
        for first in range(half, keys, batch):                    # one answer of many values
            group = range(first, min(first + batch, keys))
            self.socket.sendall(b"get %s\r\n" % b" ".join(name(self.number, key) for key in group))
            for key in group:
                self.expect_value(key)
            self.line(b"END")
        self.socket.sendall(b"delete %s\r\nget %s\r\n" % (name(self.number, 0), name(self.number, 0)))
        self.line(b"DELETED")
        self.line(b"END")
        self.socket.sendall(b"quit\r\n")
        assert self.reader.read() == b"", "bytes after the end"
        self.reader.close()
        self.socket.close()


def main():
    address, port, connections, keys = sys.argv[1], *map(int, sys.argv[2:])
    failures = []

    def run(number):
        try:
            Client(address, port, number).work(keys)
        except Exception as error:   # a thread's failure is the program's
            failures.append(f"connection {number}: {error!r}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"verified {connections * keys} keys")


main()
