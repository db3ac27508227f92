"""Waits for a command that was started beside a task, and keeps the beginning of its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess

from holdfast.agent.drivers.contract import ExecResult


async def wait_and_read(process: subprocess.Popen[bytes], timeout_s: float, output_bytes: int) -> ExecResult:
    """Waits without a thread, so hanging commands cost nothing. Keeps the beginning of the output."""
    assert process.stdout is not None
    out = process.stdout.fileno()
    os.set_blocking(out, False)
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(process.pid)
    ended = asyncio.Event()
    kept = bytearray()

    def drain() -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(out, 65536)
            kept.extend(data[: output_bytes - len(kept)])
            if not data:
                loop.remove_reader(out)

    loop.add_reader(pidfd, ended.set)
    loop.add_reader(out, drain)
    try:
        async with asyncio.timeout(timeout_s):
            await ended.wait()
        drain()
    finally:
        loop.remove_reader(pidfd)
        loop.remove_reader(out)
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still valid
        code = process.wait()
    return ExecResult(code=code, output=kept.decode(errors="replace").strip())
