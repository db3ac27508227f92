"""HTTP/1.1 server of the samples: one poll loop that starts within milliseconds.

`/healthz` succeeds while the process runs, `/readyz` after the warm-up; other paths are served by the sample as JSON.
On SIGTERM the listener closes first, then the sample's exit handler runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

CONNECTIONS_MAX = 512
HEAD_BYTES_MAX = 16384
_TICK_MS = 100
_TEXTS = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}


class CannotAnswer(Exception):
    """Raised by a sample that cannot answer now. The response is 503 with the text."""


def task_identity() -> dict[str, Any]:
    """Identity of the task, from the environment variables that the agent sets."""
    names = ("workload", "tenant", "region", "zone", "node", "replica")
    identity: dict[str, Any] = {name: os.environ.get(f"HOLDFAST_{name.upper()}", "") for name in names}
    identity["epoch"] = int(os.environ.get("HOLDFAST_EPOCH") or 0)
    identity["pid"] = os.getpid()
    return identity


def log_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Sample:
    """One program: its request handler, its periodic work, and its exit handler."""

    def __init__(
        self,
        name: str,
        *,
        warm_up_s: float = 0.0,
        answer: Callable[[str], dict[str, Any] | None] | None = None,
        tick: Callable[[], None] | None = None,
        last: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.answer = answer or (lambda path: {} if path == "/" else None)
        self.on_tick = tick
        self.on_exit = last
        self.ready_at = time.monotonic() + float(os.environ.get("WARM_UP_SECONDS") or warm_up_s)
        self.stopping = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        address = os.environ.get("HOLDFAST_ADDRESS") or "127.0.0.1"
        port = int(os.environ.get("PORT") or 8080)
        _SampleServer(self, address, port).serve()
        if self.on_exit is not None:
            self.on_exit()
        log_line(f"{self.name} stopped")
        return 0

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def respond(self, path: str) -> tuple[int, dict[str, Any]]:
        if path == "/healthz":
            return 200, {"ok": True}
        if path == "/readyz":
            ready = time.monotonic() >= self.ready_at
            return (200 if ready else 503), {"ready": ready}
        try:
            own = self.answer(path)
        except CannotAnswer as error:
            return 503, {**task_identity(), "error": str(error)}
        if own is None:
            return 404, {"error": f"{self.name} has nothing at {path}"}
        return 200, {**task_identity(), **own}


class _SampleServer:
    def __init__(self, sample: Sample, address: str, port: int) -> None:
        self.sample = sample
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((address, port))
        self.listener.listen(128)
        self.listener.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self.listener, select.POLLIN)
        self.open: dict[int, tuple[socket.socket, bytearray]] = {}
        log_line(f"{sample.name} listens on {address}:{port}")

    def serve(self) -> None:
        tick_ms = _TICK_MS if self.sample.on_tick is not None else 1000
        while not self.sample.stopping:
            for fd, _ in self.poll.poll(tick_ms):
                if fd == self.listener.fileno():
                    self._accept()
                else:
                    self._read(fd)
            if self.sample.on_tick is not None:
                self.sample.on_tick()
        self.listener.close()
        for fd in list(self.open):
            self._close(fd)

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        if len(self.open) >= CONNECTIONS_MAX:
            connection.close()
            return
        connection.settimeout(1.0)
        self.open[connection.fileno()] = (connection, bytearray())
        self.poll.register(connection, select.POLLIN)

    def _read(self, fd: int) -> None:
        connection, buffer = self.open[fd]
        try:
            data = connection.recv(65536)
            buffer.extend(data)
            if not data or len(buffer) > HEAD_BYTES_MAX:
                self._close(fd)
                return
            while (end := buffer.find(b"\r\n\r\n")) >= 0:
                head = bytes(buffer[:end]).decode("latin-1")
                del buffer[: end + 4]
                if not self._answer(connection, head):
                    self._close(fd)
                    return
        except OSError:
            self._close(fd)

    def _answer(self, connection: socket.socket, head: str) -> bool:
        """Sends the response. Returns whether the connection stays open."""
        parts = head.split(None, 2)
        code, body = self.sample.respond(parts[1].partition("?")[0] if len(parts) > 1 else "/")
        data = json.dumps(body).encode()
        stays = "connection: close" not in head.lower()
        lines = (
            f"HTTP/1.1 {code} {_TEXTS[code]}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            f"Connection: {'keep-alive' if stays else 'close'}",
            "",
            "",
        )
        connection.sendall("\r\n".join(lines).encode() + data)
        return stays

    def _close(self, fd: int) -> None:
        connection, _ = self.open.pop(fd)
        self.poll.unregister(fd)
        connection.close()
