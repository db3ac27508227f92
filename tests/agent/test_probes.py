"""Single probe checks against real servers and commands, and thresholds over many checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.agent_world import task

from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.probes import NetworkProber, ProbeResult, ProbeTarget, TaskProbes, ThresholdCounter
from holdfast.foundation.ports import SystemClock
from holdfast.model.probe import ExecProbe, HttpProbe, Probe, TcpProbe
from holdfast.model.template import Probes

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 12\r\n\r\nstill waking"

Serve = Callable[[bytes | None], Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers = []

    async def start(answer: bytes | None) -> int:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                if answer is None:
                    await asyncio.sleep(60)
                else:
                    writer.write(answer)
                    await writer.drain()
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    made = ProcessDriver(tmp_path, SystemClock())
    await made.start(task("a", "sleep", "60"))
    yield made
    await made.stop("a", 0.0)
    await made.close()


def at(port: int) -> ProbeTarget:
    return ProbeTarget(task_id="a", address="127.0.0.1", ports={"http": port})


def http(path: str = "/", *, timeout_s: float = 30.0, **more: Any) -> Probe:
    return Probe(http=HttpProbe(path=path), timeout_seconds=timeout_s, **more)


async def test_http_probe_passes_only_on_success_status(serve: Serve, driver: ProcessDriver) -> None:
    prober = NetworkProber(driver)
    good = await prober.check(at(await serve(OK)), http())
    assert good.ok
    bad = await prober.check(at(await serve(BUSY)), http("/readyz"))
    assert not bad.ok and "503" in bad.message and "/readyz" in bad.message and "still waking" in bad.message
    hung = await prober.check(at(await serve(None)), http(timeout_s=0.3))
    assert not hung.ok and "no response within 0.3 s" in hung.message
    rude = await prober.check(at(await serve(b"SSH-2.0-nope\r\n")), http())
    assert not rude.ok and "not an HTTP response" in rude.message
    endless = await prober.check(at(await serve(b"x" * 200_000)), http())
    assert not endless.ok
    nobody = await prober.check(at(1), http())
    assert not nobody.ok and "127.0.0.1:1" in nobody.message


async def test_tcp_probe_passes_only_when_port_accepts(serve: Serve, driver: ProcessDriver) -> None:
    prober = NetworkProber(driver)
    probe = Probe(tcp=TcpProbe(), timeout_seconds=30.0)
    assert (await prober.check(at(await serve(OK)), probe)).ok
    assert not (await prober.check(at(1), probe)).ok


async def test_exec_probe_passes_only_on_exit_code_zero(driver: ProcessDriver) -> None:
    prober = NetworkProber(driver)

    def run(*command: str, timeout_s: float = 30.0) -> Probe:
        return Probe(exec=ExecProbe(command=command), timeout_seconds=timeout_s)

    assert (await prober.check(at(0), run("true"))).ok
    bad = await prober.check(at(0), run("sh", "-c", "echo why; exit 9"))
    assert not bad.ok and "code 9" in bad.message and "why" in bad.message
    hung = await prober.check(at(0), run("sleep", "60", timeout_s=0.3))
    assert not hung.ok and "no response" in hung.message


async def test_hanging_probes_do_not_delay_other_probes(serve: Serve, driver: ProcessDriver) -> None:
    prober = NetworkProber(driver)
    hanging = at(await serve(None))
    good = at(await serve(OK))
    loop = asyncio.get_running_loop()
    stuck = [asyncio.create_task(prober.check(hanging, Probe(http=HttpProbe(), timeout_seconds=5))) for _ in range(50)]
    stuck += [
        asyncio.create_task(prober.check(hanging, Probe(exec=ExecProbe(command=("sleep", "60")), timeout_seconds=5)))
        for _ in range(10)
    ]
    await asyncio.sleep(0.05)
    began = loop.time()
    assert (await prober.check(good, Probe(http=HttpProbe(), timeout_seconds=4))).ok
    assert loop.time() - began < 2.0
    for one in stuck:
        one.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


def test_probe_result_changes_after_consecutive_thresholds() -> None:
    streak = ThresholdCounter(Probe(tcp=TcpProbe(), success_threshold=2, failure_threshold=3))
    verdicts = [(streak.add(ok), streak.passing) for ok in (True, True, False, False, True, False, False, False, False)]
    assert verdicts == [
        (False, None),
        (True, True),
        (False, True),
        (False, True),
        (False, True),
        (False, True),
        (False, True),
        (True, False),
        (False, False),
    ]


async def test_startup_probe_runs_first_and_hung_readiness_does_not_block_liveness() -> None:
    results: list[tuple[str, bool]] = []
    attempts: list[str] = []

    class Slow:
        async def check(self, target: ProbeTarget, probe: Probe) -> ProbeResult:
            name = probe.exec.command[0] if probe.exec is not None else ""
            attempts.append(name)
            if name == "readiness":
                await asyncio.sleep(60)
            return ProbeResult(ok=name != "liveness" or len(attempts) < 4, message=name)

    def probe(name: str) -> Probe:
        return Probe(exec=ExecProbe(command=(name,)), period_seconds=0.02, failure_threshold=1)

    probes = Probes(startup=probe("startup"), readiness=probe("readiness"), liveness=probe("liveness"))
    run = TaskProbes(probes, at(0), Slow(), SystemClock(), lambda name, ok, _: results.append((name, ok)))
    async with asyncio.timeout(5):
        while ("liveness", False) not in results:
            await asyncio.sleep(0.01)
    run.stop()
    assert results[0] == ("startup", True) and attempts[0] == "startup" and attempts.count("startup") == 1
    assert attempts.count("readiness") == 1
