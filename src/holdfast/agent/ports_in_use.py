"""Checks that a task's ports are free on this machine, right before a start.

The region tracks the ports of its own tasks; other processes are unknown to it. The check does not reserve a port: the
task binds it a moment later.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Mapping

from holdfast.agent.drivers.contract import StartFailed
from holdfast.model.reasons import Reason
from holdfast.model.template import Template


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


def port_in_use_failure(template: Template, name: str, port: int) -> StartFailed:
    """The failure of a start whose port is taken. A port that the region chose is chosen again; a fixed one is not."""
    what = f"port {port} ({name}): in use by a process that is no task of this node"
    if any(p.name == name and p.port for p in template.ports):
        return StartFailed(Reason.PORT_IN_USE, f"{what}; next: stop that process, or let the node choose (port 0)")
    step = "the replica is placed again with another port; to avoid the port, exclude it from `port_range`"
    return StartFailed(Reason.ASSIGNED_PORT_IN_USE, f"{what}; {step}")
