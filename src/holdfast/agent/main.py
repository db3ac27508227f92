"""The agent process: state directory, drivers, probes, supervisor, and shutdown.

SIGTERM and SIGINT leave tasks running for the next agent to adopt, unless `stop_work_on_exit` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from pathlib import Path

import structlog

from holdfast import __version__
from holdfast.agent.answers import Answers
from holdfast.agent.artifacts import Artifacts
from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.contract import Driver
from holdfast.agent.drivers.oci import OciDriver, find_runtime
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.groups import confinement
from holdfast.agent.memory import FileMemory
from holdfast.agent.node_report import Traits
from holdfast.agent.probes import NetworkProber
from holdfast.agent.supervisor import Supervisor
from holdfast.client.contract import Client
from holdfast.model.errors import Invalid
from holdfast.model.template import Driver as DriverName
from holdfast.runtime.ports import Ports, SystemPorts
from holdfast.runtime.tasks import end

_log = structlog.get_logger()


async def run_agent(config: AgentConfig, client: Client | None = None, ports: Ports | None = None) -> None:
    """Runs until a signal or a failure. Without a client it creates its own from the configuration and closes it."""
    _raise_file_limit()
    ports = ports or SystemPorts()
    memory = FileMemory(Path(config.state_dir))
    held = confinement(config.name, config.isolation)
    own = client is None
    background: tuple[asyncio.Task[None], ...] = ()
    try:
        if client is None:
            client, background = await _connect(config, ports)
        artifacts = Artifacts(Path(config.state_dir) / "artifacts")
        driver: Driver = ProcessDriver(config.tasks_dir, ports.clock, confinement=held, artifacts=artifacts)
        drivers: dict[str, Driver] = {DriverName.PROCESS: driver}
        if DriverName.OCI in config.drivers:
            inner = ProcessDriver(config.oci_dir / "tasks", ports.clock, confinement=held, artifacts=artifacts)
            drivers[DriverName.OCI] = OciDriver(inner, config.oci_dir, find_runtime())
        supervisor = Supervisor(
            config, client, drivers=drivers, prober=NetworkProber(driver, drivers), memory=memory, ports=ports,
            traits=lambda: Traits(warm=artifacts.warm(), isolation=held.kind, weakness=held.weakness),
        )  # fmt: skip
        _log.info("agent_started", node=config.name, region=config.region, version=__version__, state=config.state_dir)
        answering = _start_rpc_server(config, client, supervisor, ports)
        try:
            await _run_until_signal(supervisor, config)
        finally:
            await end(*answering)
        _log.info("agent_ended", node=config.name, work="stopped" if config.stop_work_on_exit else "left running")
    finally:
        await end(*background)
        if own and client is not None:
            await client.close()
        held.close()
        memory.close()


def _start_rpc_server(
    config: AgentConfig, client: Client, supervisor: Supervisor, ports: Ports
) -> tuple[asyncio.Task[None], ...]:
    """Agent calls exist only over HTTP: a client inside the cell's process has no stream for them."""
    from holdfast.client.http import HttpClient

    if not isinstance(client, HttpClient):
        return ()
    answers = Answers(config.name, client, (config.tasks_dir, config.oci_dir / "tasks"), ports, supervisor.tasks)
    return (asyncio.create_task(answers.run(), name="agent:answers"),)


async def _connect(config: AgentConfig, ports: Ports) -> tuple[Client, tuple[asyncio.Task[None], ...]]:
    """A client with the configured certificate, or with the agent's own, which a background task keeps valid."""
    from holdfast.client.http import HttpClient

    if not config.url:
        raise Invalid(f"agent {config.name}: `url` is missing; next: set `url` to the address of the region's API")
    if config.cert or config.url.startswith("http:"):
        shown = HttpClient(config.url, ports, cell=config.region, ca=config.ca, cert=config.cert, key=config.key)
        return shown, ()
    from holdfast.agent.identity import Identity

    identity = Identity(config, ports)
    await identity.obtain()
    client = HttpClient(config.url, ports, cell=config.region, ca=config.ca, cert=str(identity.path))
    return client, (asyncio.create_task(identity.keep(client), name="agent:identity"),)


async def _run_until_signal(supervisor: Supervisor, config: AgentConfig) -> None:
    stop_signal = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_signal.set)
    running = asyncio.create_task(supervisor.run(), name="agent:supervisor")
    waiting = asyncio.create_task(_wait(stop_signal), name="agent:signal")
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        elif config.stop_work_on_exit:
            await supervisor.stop_work()
    finally:
        await end(running, waiting)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _raise_file_limit() -> None:
    """Raises the file descriptor limit: each task needs one, and the soft limit of 1,024 only protects programs
    that use select.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
