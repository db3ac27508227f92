"""The HAProxy process of one directory: start, check of a configuration, reload, drain, stop.

- A configuration is checked by HAProxy itself before the running process sees it.
- A reload keeps the sockets: a new worker accepts, the old ones finish their connections.
- The process outlives this one. A later one adopts it through its master socket, so a restart of Holdfast costs no
  connection. Only one process at a time may manage a directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
from pathlib import Path

import structlog

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.foundation.ports import Clock

CONFIG, CANDIDATE, MASTER_SOCKET, LOG = "haproxy.cfg", "haproxy.cfg.new", "master.sock", "haproxy.log"
CHECK_S = 20.0
"""Time limit of a check. A configuration that takes longer is refused."""
COMMAND_S = 5.0
"""Time limit of one command on the master socket."""
STARTED_S = 10.0
"""Time until a started or reloaded process has a worker that accepts."""
ANSWER_BYTES_MAX = 256 * 1024
LOG_BYTES_MAX = 16 * 1024 * 1024
"""A larger log is replaced when HAProxy starts. One old log is kept."""
_WORKER = re.compile(r"^(\d+)\s+worker\s+(\d+)\s", re.MULTILINE)

_log = structlog.get_logger()


class ProxyRefusal(Exception):
    """HAProxy refused a configuration, or does not run it."""


class HaproxyProcess:
    def __init__(self, program: str, folder: Path, clock: Clock) -> None:
        self._program, self._folder, self._clock = program, folder, clock
        self._popen: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._lock: int | None = None
        self.pid = 0
        self.exited = asyncio.Event()
        """Set while no process runs."""
        self.exited.set()

    def take_lock(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(
                f"proxy {self._folder}: another `holdfast proxy` uses this directory",
                next_step="stop it, or choose another --directory",
                code=ExitCode.CONFLICT,
            ) from None

    def release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def running(self) -> bool:
        return not self.exited.is_set()

    async def adopt(self) -> bool:
        """Takes over the process that an earlier manager of this directory left running."""
        try:
            with contextlib.closing(self._connect()) as channel:
                credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid = int(struct.unpack("3i", credentials)[0])
            self._watch(os.pidfd_open(pid), pid)
        except OSError:
            return False
        _log.info("proxy_adopted", pid=pid)
        return True

    async def check(self, text: str) -> None:
        """Writes the candidate and lets HAProxy check it. Raises `ProxyRefusal` with what HAProxy says."""
        (self._folder / CANDIDATE).write_text(text, encoding="utf-8")
        await self._checked(CANDIDATE)

    async def check_current(self) -> None:
        await self._checked(CONFIG)

    async def _checked(self, name: str) -> None:
        checker = await asyncio.create_subprocess_exec(
            self._program,
            "-c",
            "-f",
            name,
            cwd=self._folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(CHECK_S):
                _, said = await checker.communicate()
        except TimeoutError:
            checker.kill()
            await checker.wait()
            raise ProxyRefusal(f"the check took longer than {CHECK_S:g} s") from None
        if checker.returncode != 0:
            alerts = [line for line in said.decode(errors="replace").splitlines() if "[ALERT]" in line]
            raise ProxyRefusal("; ".join(alerts[:3])[:600] or f"the check ended with code {checker.returncode}")

    def accept(self) -> None:
        """The checked candidate becomes the configuration."""
        os.replace(self._folder / CANDIDATE, self._folder / CONFIG)

    def restore(self, text: str) -> None:
        """An earlier configuration becomes the one of the next start. The running process does not see it."""
        (self._folder / CANDIDATE).write_text(text, encoding="utf-8")
        self.accept()

    async def start(self) -> None:
        log = self._folder / LOG
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            os.replace(log, log.with_suffix(".log.1"))
        self._popen = self._spawn(log)
        self._watch(os.pidfd_open(self._popen.pid), self._popen.pid)
        await self._wait_for_worker(other_than=frozenset())
        _log.info("proxy_started", pid=self.pid)

    def _spawn(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [self._program, "-W", "-S", f"unix@{MASTER_SOCKET},mode,600", "-f", CONFIG],
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def reload(self) -> None:
        """Raises `ProxyRefusal` if no new worker took over. The old workers then keep accepting."""
        before = frozenset(await self._workers())
        await self._command("reload")
        await self._wait_for_worker(other_than=before)

    async def drain(self, servers: list[str]) -> None:
        """Stops every worker, also those that a reload replaced, from choosing these servers for new requests."""
        try:
            for worker in await self._workers():
                for server in servers:
                    await self._command(f"@!{worker} set server {server} state drain")
        except (OSError, ProxyRefusal) as error:
            _log.warning("proxy_drain_failed", error=str(error))  # the reload that follows removes them

    async def stop(self, patience_s: float) -> None:
        """Lets open connections finish for up to `patience_s`, then ends them."""
        for number, wait_s in ((signal.SIGUSR1, patience_s), (signal.SIGTERM, COMMAND_S), (signal.SIGKILL, COMMAND_S)):
            if not self.running or self._pidfd is None:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.exited.wait()

    def _watch(self, pidfd: int, pid: int) -> None:
        self._pidfd, self.pid = pidfd, pid
        self.exited.clear()
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

    def _on_exit(self) -> None:
        assert self._pidfd is not None
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._popen.wait() if self._popen is not None else None
        self._popen = self._pidfd = None
        _log.warning("proxy_exited", pid=self.pid, code=code)
        self.pid = 0
        self.exited.set()

    async def _wait_for_worker(self, other_than: frozenset[int]) -> None:
        deadline = self._clock.monotonic() + STARTED_S
        while self.running and self._clock.monotonic() < deadline:
            with contextlib.suppress(OSError, ProxyRefusal):
                current = [pid for pid, reloads in (await self._workers()).items() if reloads == 0]
                if current and current[0] not in other_than:
                    return
                if other_than and not current:
                    break  # the master could not start a worker with the new configuration
            await self._clock.sleep(0.05)
        why = "" if self.running else "; the process exited"
        raise ProxyRefusal(f"HAProxy did not start a worker with the new configuration{why} (see {self._folder / LOG})")

    async def _workers(self) -> dict[int, int]:
        """Reloads since its start, by the pid of each worker. Workers that were replaced have at least one."""
        said = await self._command("show proc")
        return {int(pid): int(reloads) for pid, reloads in _WORKER.findall(said)}

    async def _command(self, text: str) -> str:
        channel = self._connect()
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        try:
            async with asyncio.timeout(COMMAND_S):
                writer.write(text.encode() + b"\n")
                await writer.drain()
                writer.write_eof()
                return (await reader.read(ANSWER_BYTES_MAX)).decode(errors="replace")
        except TimeoutError:
            raise ProxyRefusal(f"HAProxy did not answer `{text[:60]}` within {COMMAND_S:g} s") from None
        finally:
            writer.close()

    def _connect(self) -> socket.socket:
        """Through the directory's handle, because the path of a socket has at most 107 bytes."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            channel.setblocking(True)
            channel.settimeout(COMMAND_S)
            channel.connect(f"/proc/self/fd/{folder}/{MASTER_SOCKET}")
            channel.setblocking(False)
            return channel
        except OSError:
            channel.close()
            raise
        finally:
            os.close(folder)


def _environment() -> dict[str, str]:
    """HAProxy gets no credentials of this process."""
    kept = ("PATH", "LD_LIBRARY_PATH", "HOLDFAST_PLATFORM", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ}
