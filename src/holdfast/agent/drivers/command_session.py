"""The agent's end of a command that runs beside a task in an exec session: its input, output, terminal and end.

Nothing is buffered here beyond the pipes of the kernel: output that is not read stops the command. The command is
killed when the session is closed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Callable
from typing import Any

from holdfast.model.pod_session import Channel, TerminalSize

_READ_BYTES = 32 * 1024
# Time for the rest of the output after a command has ended. A process that it left behind may hold the pipe open.
COMMAND_OUTPUT_DRAIN_S = 0.5


def open_pipes() -> tuple[tuple[int, int, int], list[int]]:
    """The agent's ends of standard input, output and error, and those of the command."""
    in_r, in_w = os.pipe()
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    return (in_w, out_r, err_r), [in_r, out_w, err_w]


def open_terminal() -> tuple[tuple[int, int, int], list[int]]:
    master, slave = pty.openpty()
    return (master, master, -1), [slave]


class CommandSession:
    def __init__(
        self, own: tuple[int, int, int], ended: asyncio.Future[int], kill: Callable[[], None], *, tty: bool
    ) -> None:
        self._stdin, self._stdout, self._stderr = own
        self.ended, self._kill = ended, kill
        self.tty = tty
        for descriptor in own:
            if descriptor >= 0:
                os.set_blocking(descriptor, False)

    async def wait(self) -> int:
        """The exit code; negative for a signal. Raises OSError if the process that runs commands died."""
        return await asyncio.shield(self.ended)

    async def read(self, channel: Channel) -> bytes:
        """Output of one channel; empty at its end."""
        descriptor = self._stdout if channel is Channel.STDOUT else self._stderr
        while descriptor >= 0:
            try:
                return os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                if not await self._readable(descriptor):
                    return b""
            except OSError:  # a terminal reports EIO when the last process has closed it
                return b""
        return b""

    async def _readable(self, descriptor: int) -> bool:
        """Waits for output. After the end of the command only for a short time."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(descriptor, arrived.set)
        waiting = asyncio.ensure_future(arrived.wait())
        try:
            await self._either(waiting)
            if not waiting.done():
                await asyncio.wait({waiting}, timeout=COMMAND_OUTPUT_DRAIN_S)
            return waiting.done()
        finally:
            waiting.cancel()
            loop.remove_reader(descriptor)

    async def _either(self, waiting: asyncio.Future[Any]) -> None:
        """Returns when `waiting` is done or the command has ended."""
        futures: set[asyncio.Future[Any]] = {waiting, self.ended}
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)

    async def write(self, data: bytes) -> None:
        """Returns when the command has taken the data, or takes no more."""
        left = memoryview(data)
        while left and self._stdin >= 0 and not self.ended.done():
            try:
                left = left[os.write(self._stdin, left) :]
            except BlockingIOError:
                await self._writable()
            except OSError:  # the command has closed its input
                return

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        free = asyncio.Event()
        loop.add_writer(self._stdin, free.set)
        waiting = asyncio.ensure_future(free.wait())
        try:
            await self._either(waiting)
        finally:
            waiting.cancel()
            loop.remove_writer(self._stdin)

    async def close_stdin(self) -> None:
        """The end of the input. A terminal has no end of its own, so its end-of-file character is typed."""
        if self.tty:
            await self.write(b"\x04")
        elif self._stdin >= 0:
            descriptor, self._stdin = self._stdin, -1
            os.close(descriptor)

    def resize(self, size: TerminalSize) -> None:
        if self.tty:
            fcntl.ioctl(self._stdout, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))

    def kill(self) -> None:
        if not self.ended.done():
            self._kill()

    def close(self) -> None:
        """Kills the command if it runs. No other method but `kill` is called afterwards."""
        self.kill()
        for descriptor in {self._stdin, self._stdout, self._stderr} - {-1}:
            os.close(descriptor)
        self._stdin = self._stdout = self._stderr = -1
