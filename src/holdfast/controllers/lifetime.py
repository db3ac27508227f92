"""Process lifetime: components start in order and stop in reverse order, on a signal or when one of them fails.

- The first SIGTERM or SIGINT stops every component cleanly within a deadline; the second one exits at once.
- If a component fails, the process exits and names it. A supervisor restarts the whole process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import structlog

from holdfast.foundation.tasks import cancel_and_wait

# Time that commits in flight get when a component stops. After that, they are cancelled.
STOP_DEADLINE_S = 10.0
# Fraction of systemd's watchdog interval at which the process reports that it is alive. Two reports fit into it.
WATCHDOG_NOTIFY_FRACTION = 0.4

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Component(Protocol):
    async def start(self) -> None:
        """Returns when the component is ready or starting in the background."""

    async def stop(self) -> None:
        """Stops cleanly. Called at most once, and only after `start`."""


class _Managed(msgspec.Struct):
    name: str
    part: Component
    runs: Callable[[], Awaitable[None]] | None


class Lifetime:
    """Add components in dependency order, then call `run`."""

    def __init__(self, name: str, *, stop_deadline_s: float = STOP_DEADLINE_S) -> None:
        self.name = name
        self.ready = asyncio.Event()
        """Set while all components are started."""
        self._managed: list[_Managed] = []
        self._stop_deadline_s = stop_deadline_s
        self._stop_requested: asyncio.Future[str] | None = None
        self._failed = ""
        self._signals = 0
        self._log = structlog.get_logger().bind(process=name)

    def add(self, name: str, part: Component, *, runs: Callable[[], Awaitable[None]] | None = None) -> None:
        """Adds a component. `runs` is awaited after its start; if it returns before the process stops, that is a
        failure."""
        self._managed.append(_Managed(name, part, runs))

    def request_stop(self, reason: str) -> None:
        """Requests a clean stop."""
        if self._stop_requested is not None and not self._stop_requested.done():
            self._stop_requested.set_result(reason)

    async def run(self) -> int:
        """Starts all components, waits for a stop request, stops them. Returns the exit status: 1 after a failure."""
        loop = asyncio.get_running_loop()
        self._stop_requested = loop.create_future()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        started: list[_Managed] = []
        watchers: list[asyncio.Task[None]] = []
        watchdog = asyncio.create_task(notify_watchdog(), name="watchdog")
        try:
            for managed in self._managed:
                if self._stop_requested.done():
                    break
                started.append(managed)
                if not await self._start(managed):
                    break
                if managed.runs is not None:
                    watchers.append(
                        asyncio.create_task(self._watch(managed, managed.runs), name=f"runs {managed.name}")
                    )
            else:
                self.ready.set()
                notify_systemd("READY=1")
                self._log.info("process_started", parts=[managed.name for managed in self._managed])
            reason = await self._stop_requested
            self._log.info("process_stopping", reason=reason)
            notify_systemd("STOPPING=1")
        finally:
            self.ready.clear()
            await cancel_and_wait(*watchers)
            for managed in reversed(started):
                await self._stop(managed)
            await cancel_and_wait(watchdog)
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        self._log.info("process_stopped", failed=self._failed)
        return 1 if self._failed else 0

    async def _start(self, managed: _Managed) -> bool:
        try:
            await managed.part.start()
        except Exception as error:
            self._fail(managed, "start", error)
            return False
        return True

    async def _watch(self, managed: _Managed, runs: Callable[[], Awaitable[None]]) -> None:
        try:
            await runs()
        except Exception as error:
            self._fail(managed, "run", error)
        else:
            self._fail(managed, "run", RuntimeError("ended unexpectedly"))

    def _fail(self, managed: _Managed, phase: str, error: Exception) -> None:
        self._failed = self._failed or managed.name
        self._log.error(
            "component_failed",
            part=managed.name,
            phase=phase,
            message=str(error) or type(error).__name__,
            exc_info=error,
        )
        self.request_stop(f"{managed.name} failed: {error}")

    async def _stop(self, managed: _Managed) -> None:
        try:
            async with asyncio.timeout(self._stop_deadline_s):
                await managed.part.stop()
        except TimeoutError:
            self._log.warning("component_stop_timed_out", part=managed.name, deadline_s=self._stop_deadline_s)
        except Exception:
            # Continue with the other components.
            self._log.exception("component_stop_failed", part=managed.name)

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            self._log.warning("process_killed_by_second_signal", signal=number.name)
            os._exit(128 + number)
        self.request_stop(number.name)


async def notify_watchdog() -> None:
    """Sends watchdog keep-alives to systemd if `WatchdogSec=` is set. If the event loop hangs for that long, systemd
    restarts the process."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    is_for_this_process = os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    if not microseconds.isdigit() or not int(microseconds) or not is_for_this_process:
        return
    while True:
        notify_systemd("WATCHDOG=1")
        await asyncio.sleep(int(microseconds) / 1e6 * WATCHDOG_NOTIFY_FRACTION)


def notify_systemd(state: str) -> None:
    """Sends a state to systemd if NOTIFY_SOCKET is set (`Type=notify`)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.connect("\0" + address[1:] if address.startswith("@") else address)
        wire.send(state.encode())
