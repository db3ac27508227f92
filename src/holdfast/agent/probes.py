"""Runs the probes of a task: startup first, then readiness and liveness in parallel.

Each probe has its own timeout and asyncio task, so a hanging check delays no other. The result of the last check
becomes the message that people read. `task_decision` decides what follows from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from holdfast.agent.drivers.contract import PROBE_OUTPUT_BYTES_MAX, Driver
from holdfast.foundation.ports import Clock
from holdfast.model.probe import ExecProbe, HttpProbe, Probe, TcpProbe
from holdfast.model.template import Probes


class ProbeTarget(msgspec.Struct, frozen=True):
    """Where the task listens. `ports` are in the template's order; a probe without a port name uses the first."""

    task_id: str
    address: str
    ports: dict[str, int] = {}
    driver: str = ""

    def port(self, name: str) -> int:
        return self.ports.get(name, 0) if name else next(iter(self.ports.values()), 0)


class ProbeResult(msgspec.Struct, frozen=True):
    ok: bool
    message: str = ""


class Prober(Protocol):
    """Performs a single check. The simulation has its own implementation."""

    async def check(self, target: ProbeTarget, probe: Probe) -> ProbeResult:
        """Returns within the probe's timeout, whatever the task does."""


class ThresholdCounter:
    """Turns single checks into a stable result, which changes after `success_threshold` or `failure_threshold` in a
    row.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._passes = self._failures = 0
        self.passing: bool | None = None

    def add(self, ok: bool) -> bool:
        """Returns whether the result changed."""
        self._passes, self._failures = (self._passes + 1, 0) if ok else (0, self._failures + 1)
        before = self.passing
        if self._passes >= self._probe.success_threshold:
            self.passing = True
        elif self._failures >= self._probe.failure_threshold:
            self.passing = False
        return self.passing is not before


ProbeCallback = Callable[[str, bool, str], None]
"""(startup, readiness or liveness; whether it passes; the message of the last check)"""


class TaskProbes:
    """The probes of one run of a task, from its start until `stop`."""

    def __init__(
        self, probes: Probes, target: ProbeTarget, prober: Prober, clock: Clock, on_result: ProbeCallback
    ) -> None:
        self._target, self._prober, self._clock, self._on_result = target, prober, clock, on_result
        first = asyncio.create_task(self._run(probes), name=f"probes:{target.task_id}")
        self._tasks: list[asyncio.Task[bool]] = [first]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _run(self, probes: Probes) -> bool:
        if probes.startup is not None and not await self._follow("startup", probes.startup):
            return False
        standing = [("readiness", probes.readiness), ("liveness", probes.liveness)]
        self._tasks += [asyncio.create_task(self._follow(name, probe)) for name, probe in standing if probe is not None]
        return True

    async def _follow(self, name: str, probe: Probe) -> bool:
        """Checks every period. Startup returns with its result; the others run until cancelled."""
        streak = ThresholdCounter(probe)
        await self._clock.sleep(probe.initial_delay_seconds)
        while True:
            began = self._clock.monotonic()
            checked = await self._check(probe)
            if streak.add(checked.ok):
                self._on_result(name, bool(streak.passing), checked.message)
                if name == "startup":
                    return bool(streak.passing)
            took_s = self._clock.monotonic() - began
            await self._clock.sleep(max(0.0, probe.period_seconds - took_s))

    async def _check(self, probe: Probe) -> ProbeResult:
        try:
            return await self._prober.check(self._target, probe)
        except Exception as error:  # a crashed prober counts as a failed check
            return ProbeResult(ok=False, message=f"the check crashed: {type(error).__name__}: {error}")


class NetworkProber(Prober):
    """Real checks: HTTP and TCP against the node's address, commands through the task's driver."""

    def __init__(self, driver: Driver, others: Mapping[str, Driver] | None = None) -> None:
        self._driver = driver
        self._others = others or {}

    async def check(self, target: ProbeTarget, probe: Probe) -> ProbeResult:
        try:
            async with asyncio.timeout(probe.timeout_seconds):
                if probe.http is not None:
                    return await _http(target, probe.http)
                if probe.tcp is not None:
                    return await _tcp(target, probe.tcp)
                if probe.exec is not None:
                    return await self._exec(target, probe.exec, probe.timeout_seconds)
        except TimeoutError:
            return ProbeResult(
                ok=False, message=f"{_name(target, probe)}: no response within {probe.timeout_seconds:g} s"
            )
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            return ProbeResult(ok=False, message=f"{_name(target, probe)}: {error}")
        return ProbeResult(ok=True)

    async def _exec(self, target: ProbeTarget, probe: ExecProbe, timeout_s: float) -> ProbeResult:
        driver = self._others.get(target.driver, self._driver)
        result = await driver.execute(target.task_id, probe.command, timeout_s)
        message = f"{' '.join(probe.command)}: exit code {result.code}: {result.output}"
        return ProbeResult(ok=result.code == 0, message=message)


def _name(target: ProbeTarget, probe: Probe) -> str:
    if probe.http is not None:
        return f"GET {probe.http.scheme.lower()}://{target.address}:{target.port(probe.http.port)}{probe.http.path}"
    if probe.tcp is not None:
        return f"TCP {target.address}:{target.port(probe.tcp.port)}"
    return " ".join(probe.exec.command) if probe.exec is not None else "probe"


async def _tcp(target: ProbeTarget, probe: TcpProbe) -> ProbeResult:
    _, writer = await asyncio.open_connection(target.address, target.port(probe.port))
    _drop(writer)
    return ProbeResult(ok=True, message=f"TCP {target.address}:{target.port(probe.port)}: connected")


async def _http(target: ProbeTarget, probe: HttpProbe) -> ProbeResult:
    """One GET over a new connection; status 200 to 399 passes. Only the beginning of the response is read."""
    port = target.port(probe.port)
    context = _unverified() if probe.scheme.upper() == "HTTPS" else None
    reader, writer = await asyncio.open_connection(target.address, port, limit=PROBE_OUTPUT_BYTES_MAX * 16, ssl=context)
    try:
        head = f"GET {probe.path} HTTP/1.1\r\nHost: {target.address}:{port}\r\nUser-Agent: holdfast-probe\r\n"
        writer.write(f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readuntil(b"\n")
        parts = line.decode("latin-1").split(maxsplit=2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/") or not parts[1].isdigit():
            raise ValueError(f"not an HTTP response: {line[:80]!r}")
        code = int(parts[1])
        ok = 200 <= code < 400
        body = "" if ok else await _some_body(reader)
    finally:
        _drop(writer)
    where = f"GET {probe.scheme.lower()}://{target.address}:{port}{probe.path}"
    return ProbeResult(ok=ok, message=f"{where}: {code}{': ' + body if body else ''}")


async def _some_body(reader: asyncio.StreamReader) -> str:
    """The beginning of a failing response's body, for the message."""
    with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await reader.readuntil(b"\r\n\r\n")
    data = await reader.read(PROBE_OUTPUT_BYTES_MAX)
    return " ".join(data.decode(errors="replace").split())[:200]


def _drop(writer: asyncio.StreamWriter) -> None:
    """Closes the connection without waiting for the peer."""
    transport = writer.transport
    transport.abort()


def _unverified() -> ssl.SSLContext:
    """TLS context without verification: a probe checks that the task responds, not who it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
