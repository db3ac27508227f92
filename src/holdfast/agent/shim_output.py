"""The task log written by a shim: lines of both streams in order, timestamped, in a bounded number of bounded files.

A full disk costs log lines, never the task. Lost bytes are counted and reported in the log once there is space.
"""

from __future__ import annotations

import os
import time

from holdfast.agent.shim_termination import TERMINATION_OUTPUT_BYTES_MAX

# Longest line of a task log. A longer one is split into several lines.
LINE_BYTES_MAX = 16384


class LogWriter:
    """A line is `TIME TAG text`. The tag is O or E for a complete line of stdout or stderr, o or e for a part of a
    line.
    """

    def __init__(self, path: str, max_bytes: int, files: int) -> None:
        self.path, self.max_bytes, self.files = path, max_bytes, files
        self.pending = [b"", b""]
        self.tail = b""
        """The last TERMINATION_OUTPUT_BYTES_MAX bytes of this run."""
        self.lost_bytes = 0
        self.loss_reason = ""
        self._unreported = 0
        self.fd = -1
        self.size = 0
        self._open()

    def _open(self) -> None:
        try:
            self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self.size = os.fstat(self.fd).st_size
        except OSError as error:
            self.fd, self.size, self.loss_reason = -1, 0, error.strerror or str(error)

    def feed(self, stream: int, data: bytes) -> None:
        kept = TERMINATION_OUTPUT_BYTES_MAX
        self.tail = data[-kept:] if len(data) >= kept else (self.tail + data)[-kept:]
        data = self.pending[stream] + data
        cut = data.rfind(b"\n") + 1
        self.pending[stream] = data[cut:]
        if cut:
            mark = self._line_prefix(b"OE"[stream : stream + 1])
            self._write(mark + data[: cut - 1].replace(b"\n", b"\n" + mark) + b"\n")
        while len(self.pending[stream]) > LINE_BYTES_MAX:
            self._write(self._line_prefix(b"oe"[stream : stream + 1]) + self.pending[stream][:LINE_BYTES_MAX] + b"\n")
            self.pending[stream] = self.pending[stream][LINE_BYTES_MAX:]

    def flush(self) -> None:
        for stream, rest in enumerate(self.pending):
            if rest:
                self._write(self._line_prefix(b"oe"[stream : stream + 1]) + rest + b"\n")
                self.pending[stream] = b""

    def _line_prefix(self, tag: bytes) -> bytes:
        now = time.time()
        return b"%s.%06dZ %s " % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)).encode(), now % 1 * 1e6, tag)

    def _write(self, data: bytes) -> None:
        # One write never exceeds the file limit, so the limit holds whatever the task prints.
        for start in range(0, len(data), self.max_bytes):
            piece = data[start : start + self.max_bytes]
            if self.size + len(piece) > self.max_bytes:
                self._rotate()
            self._write_piece(piece)

    def _write_piece(self, piece: bytes) -> None:
        if self.fd < 0:
            self._open()
        if self._unreported and self.fd >= 0:
            notice = f"holdfast: {self._unreported} bytes of output lost here: {self.loss_reason}\n".encode()
            piece = self._line_prefix(b"E") + notice + piece
        try:
            written = os.write(self.fd, piece)
        except OSError as error:
            written, self.loss_reason = 0, error.strerror or str(error)
        self.size += written
        if written < len(piece):
            self.lost_bytes += len(piece) - written
            self._unreported += len(piece) - written
            self.loss_reason = self.loss_reason or "No space left on device"
        else:
            self._unreported = 0

    def _rotate(self) -> None:
        try:
            if self.fd >= 0:
                os.close(self.fd)
            for index in range(self.files - 1, 0, -1):
                older = f"{self.path}.{index - 1}" if index > 1 else self.path
                if os.path.exists(older):
                    os.rename(older, f"{self.path}.{index}")
            if self.files <= 1:
                os.unlink(self.path)
        except OSError as error:
            self.loss_reason = error.strerror or str(error)
        finally:
            self._open()
