"""Delays and drops the frames between a machine and the bridge, for kernels without netem.

`lossy_link.py MACHINE_SIDE BRIDGE_SIDE DELAY_MS JITTER_MS LOSS` forwards frames between two interfaces. Frames keep
their order, as on a real line. Offloads must be off at the sender (`disable_offloads`): a raw socket sends checksums
and sizes as they are.
"""

from __future__ import annotations

import array
import fcntl
import heapq
import random
import select
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
# Commands of ethtool that turn off checksums, segmentation and merging in the device.
OFFLOADS_OFF = (0x15, 0x17, 0x1F, 0x24, 0x2C)
ALL_PROTOCOLS = 0x0003
FRAME_BYTES_MAX = 70_000
PACKET_OUTGOING = 4


def disable_offloads(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS_OFF:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(control.fileno(), SIOCETHTOOL, request)
            except OSError:
                continue  # the device has no such offload


def _open(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024 * 1024)
    made.bind((interface, 0))
    made.setblocking(False)
    return made


def forward(first: str, second: str, delay_s: float, jitter_s: float, loss: float) -> None:
    sockets = (_open(first), _open(second))
    chance = random.Random(first)
    waiting: list[tuple[float, int, int, bytes]] = []
    newest = [0.0, 0.0]
    number = 0
    while True:
        pause_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(sockets, (), (), pause_s)
        now_s = time.monotonic()
        for side, source in enumerate(sockets):
            while source in readable:
                try:
                    frame, address = source.recvfrom(FRAME_BYTES_MAX)
                except OSError:
                    break  # nothing left to read, or the interface was taken down
                if address[2] == PACKET_OUTGOING or chance.random() < loss:
                    continue
                due_s = max(newest[side], now_s + delay_s + chance.uniform(-jitter_s, jitter_s))
                newest[side] = due_s
                number += 1
                heapq.heappush(waiting, (due_s, number, 1 - side, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, side, frame = heapq.heappop(waiting)
            try:
                sockets[side].send(frame)
            except OSError:
                continue  # the interface is down or its queue is full: the frame is lost


if __name__ == "__main__":
    if sys.argv[1] == "--disable-offloads":
        disable_offloads(sys.argv[2])
    else:
        delay, jitter, lost = (float(text) for text in sys.argv[3:6])
        forward(sys.argv[1], sys.argv[2], delay / 1000, jitter / 1000, lost)
