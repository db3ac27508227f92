"""Starts the processes of `agent.shim`: the shim of a run, and its short calls. None of them inherits the agent's
environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

SHIM = str(Path(__file__).resolve().parent.parent / "shim.py")
_ENV = {"PATH": os.defpath}


def spawn_shim(task_dir: Path, run: int, report_fd: int) -> int:
    """Starts the shim of a run in a session of its own. Returns its pid. It reports the start on `report_fd`."""
    argv = [sys.executable, "-I", "-S", SHIM, str(task_dir), str(run)]
    shim_log = str(task_dir / "shim.log")
    actions = [
        (os.POSIX_SPAWN_DUP2, report_fd, 3),
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, shim_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640),
    ]
    defaults = [signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1]
    return os.posix_spawn(
        sys.executable, argv, _ENV, file_actions=actions, setsid=True, setsigmask=(), setsigdef=defaults
    )


async def read_start_report(fd: int, timeout_s: float) -> str:
    """The shim's report on the start; empty if it died or took too long."""
    os.set_blocking(fd, False)
    loop = asyncio.get_running_loop()
    received: asyncio.Future[bytes] = loop.create_future()

    def readable() -> None:
        loop.remove_reader(fd)
        if not received.done():
            received.set_result(os.read(fd, 4096))

    loop.add_reader(fd, readable)
    try:
        async with asyncio.timeout(timeout_s):
            return (await received).decode()
    except TimeoutError:
        return ""
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def start_command_server(connection: int) -> subprocess.Popen[bytes]:
    """Starts the process that runs commands beside tasks (`shim_calls.CommandServer`), with its end of a socket."""
    return subprocess.Popen([sys.executable, "-I", "-S", SHIM, "commands"], env=_ENV, stdin=connection)


def sweep_run(task_dir: Path, run: int) -> subprocess.CompletedProcess[str]:
    """Kills what is left of a run whose shim was killed (`shim_calls.sweep`)."""
    return subprocess.run(
        [sys.executable, "-I", "-S", SHIM, "sweep", str(task_dir), str(run)],
        capture_output=True,
        text=True,
        check=False,
        env=_ENV,
    )
