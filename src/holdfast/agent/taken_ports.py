"""Whether the ports that work was given are free on this machine, asked of the kernel just before a start.

The region counts what its own work holds; a program of someone else's it cannot know. Never keeps a port: the work is
to have it a moment later.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping


def taken_port(ports: Mapping[str, int]) -> tuple[str, int] | None:
    """The first port, with its name, that somebody listens on. What cannot be asked counts as free."""
    for name, port in sorted(ports.items()):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger are nobody's
            try:
                probe.bind(("", port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return name, port
    return None
