"""Checks that a task's ports are free on this machine, right before a start.

The region tracks the ports of its own tasks; other processes are unknown to it. The check does not reserve a port: the
task binds it a moment later.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Mapping


def find_port_in_use(ports: Mapping[str, int], udp: Collection[str] = ()) -> tuple[str, int] | None:
    """The first port, with its name, that another process listens on. A port that cannot be checked counts as free.
    `udp`: names of the UDP ports."""
    for name, port in sorted(ports.items()):
        with socket.socket(type=socket.SOCK_DGRAM if name in udp else socket.SOCK_STREAM) as probe:
            if name not in udp:  # for UDP it would share the port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
            try:
                probe.bind(("", port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return name, port
    return None
