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
from holdfast.agent.cgroups import choose_isolation
from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.artifacts import ArtifactCache
from holdfast.agent.drivers.contract import Driver
from holdfast.agent.drivers.oci import OciDriver, find_runtime
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.node_report import NodeTraits
from holdfast.agent.persisted_state import FileStateStore
from holdfast.agent.probes import NetworkProber
from holdfast.agent.rpc_server import AgentRpcServer
from holdfast.agent.supervisor import TaskSupervisor
from holdfast.client.contract import Client
from holdfast.foundation.ports import Ports, SystemPorts
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model.errors import Invalid
from holdfast.model.template import DriverName

_log = structlog.get_logger()


async def run_agent(config: AgentConfig, client: Client | None = None, ports: Ports | None = None) -> None:
    """Runs until a signal or a failure. Without a client it creates its own from the configuration and closes it."""
    _raise_file_limit()
    ports = ports or SystemPorts()
    memory = FileStateStore(Path(config.state_dir))
    held = choose_isolation(config.name, config.isolation)
    own = client is None
    background: tuple[asyncio.Task[None], ...] = ()
    try:
        if client is None:
            client, background = await _connect(config, ports)
        artifacts = ArtifactCache(Path(config.state_dir) / "artifacts")
        driver: Driver = ProcessDriver(config.tasks_dir, ports.clock, confinement=held, artifacts=artifacts)
        drivers: dict[str, Driver] = {DriverName.PROCESS: driver}
        if DriverName.OCI in config.drivers:
            inner = ProcessDriver(config.oci_dir / "tasks", ports.clock, confinement=held, artifacts=artifacts)
            drivers[DriverName.OCI] = OciDriver(inner, config.oci_dir, find_runtime())
        supervisor = TaskSupervisor(
            config,
            client,
            drivers=drivers,
            prober=NetworkProber(driver, drivers),
            memory=memory,
            ports=ports,
            traits=lambda: NodeTraits(
                cached_artifacts=artifacts.cached_digests(), isolation=held.kind, limitation=held.limitation
            ),
        )
        _log.info("agent_started", node=config.name, region=config.region, version=__version__, state=config.state_dir)
        answering = _start_rpc_server(config, client, supervisor, ports)
        try:
            await _run_until_signal(supervisor, config)
        finally:
            await cancel_and_wait(*answering)
        _log.info("agent_ended", node=config.name, work="stopped" if config.stop_work_on_exit else "left running")
    finally:
        await cancel_and_wait(*background)
        if own and client is not None:
            await client.close()
        held.close()
        memory.close()


def _start_rpc_server(
    config: AgentConfig, client: Client, supervisor: TaskSupervisor, ports: Ports
) -> tuple[asyncio.Task[None], ...]:
    """Agent calls exist only over HTTP: a client inside the cell's process has no stream for them."""
    from holdfast.client.http import HttpClient

    if not isinstance(client, HttpClient):
        return ()
    server = AgentRpcServer(
        config.name, client, (config.tasks_dir, config.oci_dir / "tasks"), ports, supervisor.running_tasks
    )
    return (asyncio.create_task(server.run(), name="agent:rpc-server"),)


async def _connect(config: AgentConfig, ports: Ports) -> tuple[Client, tuple[asyncio.Task[None], ...]]:
    """A client with the configured certificate, or with the agent's own, which a background task keeps valid."""
    from holdfast.client.http import HttpClient

    if not config.url:
        raise Invalid(f"agent {config.name}: `url` is missing; next: set `url` to the address of the region's API")
    if config.cert or config.url.startswith("http:"):
        shown = HttpClient(config.url, ports, cell=config.region, ca=config.ca, cert=config.cert, key=config.key)
        return shown, ()
    from holdfast.agent.identity import AgentIdentity

    identity = AgentIdentity(config, ports)
    await identity.obtain()
    client = HttpClient(config.url, ports, cell=config.region, ca=config.ca, cert=str(identity.path))
    return client, (asyncio.create_task(identity.keep_valid(client), name="agent:identity"),)


async def _run_until_signal(supervisor: TaskSupervisor, config: AgentConfig) -> None:
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
        await cancel_and_wait(running, waiting)
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
