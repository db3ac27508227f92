"""Commands beside tasks, for exec probes and `holdfast exec`. A helper process starts them (`agent.shim_calls`).

- A command has the limits, the view and the user of its task. When it has ended or timed out, nothing of its
  session is left.
- Waiting needs no thread, so commands that hang cost nothing. Of the output only the beginning is kept.
- If the helper dies, its commands fail, and the next command starts another helper.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
from pathlib import Path

from holdfast.agent.drivers.command_session import CommandSession, open_pipes, open_terminal
from holdfast.agent.drivers.contract import ExecResult
from holdfast.agent.drivers.shim_processes import start_command_server
from holdfast.agent.shim_calls import COMMAND_FAILED, MESSAGE_BYTES_MAX

_READ_BYTES = 65536


class CommandRunner:
    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._number = 0
        self._ended: dict[str, asyncio.Future[int]] = {}

    async def run(
        self, task_dir: Path, run: int, command: tuple[str, ...], *, timeout_s: float, output_bytes: int
    ) -> ExecResult:
        """Raises TimeoutError, and OSError if the command cannot be handed over."""
        self._number += 1
        number = str(self._number)
        message = "\0".join(("run", number, str(task_dir), str(run), *command)).encode(errors="surrogateescape")
        if len(message) > MESSAGE_BYTES_MAX:
            return ExecResult(code=COMMAND_FAILED, output=f"the command is longer than {MESSAGE_BYTES_MAX} bytes")
        kept = bytearray()
        loop = asyncio.get_running_loop()
        out_r, out_w = os.pipe()
        os.set_blocking(out_r, False)

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                data = os.read(out_r, _READ_BYTES)
                kept.extend(data[: output_bytes - len(kept)])
                if not data:
                    loop.remove_reader(out_r)

        ended: asyncio.Future[int] = loop.create_future()
        try:
            try:
                socket.send_fds(self._connected(), [message], [out_w])
            finally:
                os.close(out_w)
            self._ended[number] = ended
            loop.add_reader(out_r, drain)
            async with asyncio.timeout(timeout_s):
                code = await ended
            drain()
        finally:
            if self._ended.pop(number, None) is not None and (ended.cancelled() or not ended.done()):
                self._kill(number)  # its time has expired, or no caller waits for it any more
            loop.remove_reader(out_r)
            os.close(out_r)
        return ExecResult(code=code, output=kept.decode(errors="replace").strip())

    def open(self, task_dir: Path, run: int, command: tuple[str, ...], *, tty: bool) -> CommandSession:
        """Starts the command of an exec session. Raises OSError if it cannot be handed over."""
        self._number += 1
        number = str(self._number)
        words = ("open", number, str(task_dir), str(run), "tty" if tty else "pipes", *command)
        message = "\0".join(words).encode(errors="surrogateescape")
        if len(message) > MESSAGE_BYTES_MAX:
            raise OSError(errno.E2BIG, f"the command is longer than {MESSAGE_BYTES_MAX} bytes")
        own, theirs = open_terminal() if tty else open_pipes()
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            socket.send_fds(self._connected(), [message], theirs)
        except OSError:
            for descriptor in dict.fromkeys(own):
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._ended[number] = ended
        return CommandSession(own, ended, lambda: self._kill(number), tty=tty)

    def _kill(self, number: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(f"kill\0{number}".encode())

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._server = start_command_server(theirs.fileno())
            self._socket.setblocking(False)
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)
        return self._socket

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return
        _, number, code = data.decode().split("\0")
        ended = self._ended.pop(number, None)
        if ended is not None and not ended.done():
            ended.set_result(int(code))

    def _disconnect(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        for ended in self._ended.values():
            if not ended.done():
                ended.set_exception(ConnectionError("the process that runs commands ended"))
                ended.exception()  # of a session that was closed, nobody waits for it
        self._ended.clear()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def close(self) -> None:
        self._disconnect()
