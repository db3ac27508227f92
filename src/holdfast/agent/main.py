"""The agent process: state directory, drivers, probes, supervisor, and shutdown.

SIGTERM and SIGINT leave tasks running for the next agent to adopt, unless `stop_work_on_exit` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast import __version__
from holdfast.agent.cgroups import TaskIsolation, choose_isolation, group_of_agent
from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.artifacts import ArtifactCache
from holdfast.agent.drivers.container_network import ContainerNetwork
from holdfast.agent.drivers.contract import Driver, Task
from holdfast.agent.drivers.images import ImageCache
from holdfast.agent.drivers.local_volumes import LocalVolumes, VolumeStore
from holdfast.agent.drivers.oci import OciDriver
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.volume_images import choose_scratch_limit
from holdfast.agent.drivers.volumes import TaskVolumes
from holdfast.agent.node_report import NodeTraits
from holdfast.agent.persisted_state import FileStateStore
from holdfast.agent.probes import NetworkProber
from holdfast.agent.rpc_server import AgentRpcServer
from holdfast.agent.sessions import TaskSessions
from holdfast.agent.shim_metrics import ShimUsage
from holdfast.agent.supervisor import TaskSupervisor
from holdfast.agent.system_facts import detect_system
from holdfast.agent.task_config import ContainerConfig, TaskConfig
from holdfast.agent.task_memory import TaskMemory, find_tmpfs
from holdfast.agent.task_spans import TaskSpans
from holdfast.agent.task_users import RuntimeUser, TaskUsers, runtime_paths
from holdfast.agent.volume_upkeep import VolumeUpkeep
from holdfast.client.contract import Client
from holdfast.foundation.container_runtime import find_runtime
from holdfast.foundation.daemon_threads import run_in_thread
from holdfast.foundation.ports import Ports, SystemPorts
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.foundation.tracing import Tracer, trace_settings
from holdfast.model.errors import Invalid
from holdfast.model.template import DriverName

_log = structlog.get_logger()


async def run_agent(config: AgentConfig, client: Client | None = None, ports: Ports | None = None) -> None:
    """Runs until a signal or a failure. Without a client it creates its own from the configuration and closes it."""
    _raise_file_limit()
    ports = ports or SystemPorts()
    memory = FileStateStore(Path(config.state_dir))
    held = choose_isolation(group_of_agent(config.name, config.state_dir), config.isolation)
    users = TaskUsers(
        Path(config.state_dir), uids=config.task_uids, allowed=config.allowed_users, host_paths=config.host_paths
    )
    own = client is None
    background: tuple[asyncio.Task[None], ...] = ()
    try:
        if client is None:
            client, background = await _connect(config, ports)
        artifacts = ArtifactCache(Path(config.state_dir) / "artifacts", config.artifacts)
        volumes = _task_volumes(config, users)
        values, values_in_containers = _task_config(config, client)
        driver = ProcessDriver(
            config.tasks_dir,
            ports.clock,
            confinement=held,
            artifacts=artifacts,
            users=users,
            volumes=volumes,
            config=values,
        )
        images: ImageCache | None = None
        drivers: dict[str, Driver] = {DriverName.PROCESS: driver}
        if DriverName.OCI in config.drivers:
            mounted = _task_volumes(config, users, of=volumes)
            drivers[DriverName.OCI], images = _container_driver(
                config, ports, held, artifacts, users=users, volumes=mounted, values=values_in_containers
            )
        system = detect_system()
        tracer = _tracer(config)
        supervisor = TaskSupervisor(
            config,
            client,
            drivers=drivers,
            prober=NetworkProber(driver, drivers),
            memory=memory,
            ports=ports,
            traits=lambda: NodeTraits(
                cached_artifacts=artifacts.cached_digests(),
                images=images.images() if images is not None else (),
                isolation=held.kind,
                limitation=held.limitation,
                exposure=users.limitation,
                scratch_limit=volumes.limit,
                unconfirmed="; ".join(driver.unconfirmed().values()),
                system=system,
            ),
            spans=TaskSpans(tracer, config, ports.clock) if tracer is not None else None,
        )
        _log.info("agent_started", node=config.name, region=config.region, version=__version__, state=config.state_dir)
        running = lambda: [task for task, _ in supervisor.running_tasks()]  # noqa: E731 - read at every refresh
        refreshing = asyncio.create_task(values.keep_files_current(running, ports.clock), name="agent:values")
        keeping = _start_upkeep(config, client, ports, volumes.store, running)
        answering = (refreshing, *keeping, *_start_rpc_server(config, client, supervisor, ports))
        try:
            await _run_until_signal(supervisor, config)
        finally:
            await cancel_and_wait(*answering)
            if tracer is not None:
                await run_in_thread(tracer.close)
        _log.info("agent_ended", node=config.name, work="stopped" if config.stop_work_on_exit else "left running")
    finally:
        await cancel_and_wait(*background)
        if own and client is not None:
            await client.close()
        held.close()
        memory.close()


def _tracer(config: AgentConfig) -> Tracer | None:
    """Every Binding with a trace context was sampled by its region, so the agent needs no ratio."""
    settings = trace_settings(config.otlp_endpoint, 1.0, os.environ)
    if not settings.url:
        return None
    return Tracer(settings, service="holdfast-agent", instance=config.name, region=config.region)


def _container_driver(
    config: AgentConfig,
    ports: Ports,
    held: TaskIsolation,
    artifacts: ArtifactCache,
    *,
    users: TaskUsers,
    volumes: TaskVolumes,
    values: ContainerConfig,
) -> tuple[Driver, ImageCache | None]:
    """The driver oci, and the image cache if the node runs images."""
    as_runtime = RuntimeUser()
    inner = ProcessDriver(
        config.oci_dir / "tasks",
        ports.clock,
        confinement=held,
        artifacts=artifacts,
        users=as_runtime,
        volumes=volumes,
        config=values,
    )
    images: ImageCache | None = None
    if config.runs_images:
        images = ImageCache(
            config.images_dir, config.images, high_bytes=config.image_cache_bytes, logins=values.registry_login
        )
    elif config.images.registries:
        _log.warning("images_unavailable", node=config.name, why="the agent is not root, or finds no crun or runc")
    driver = OciDriver(
        inner,
        config.oci_dir,
        find_runtime(),
        users,
        config.bundle_dirs,
        images=images,
        runtime_user=as_runtime,
        volumes=volumes,
        values=values,
        network=ContainerNetwork(config.address),
    )
    return driver, images


def _task_volumes(config: AgentConfig, users: TaskUsers, of: TaskVolumes | None = None) -> TaskVolumes:
    """The volumes of processes; or those of containers, beside the ones `of` processes."""
    can_mount, kept = users.makes_views, config.volumes.path
    limit = of.limit if of is not None else choose_scratch_limit(config.scratch_limit, can_mount=can_mount)
    store = of.store if of is not None else None
    if of is None and kept:
        store = LocalVolumes(Path(kept), limit=limit, can_mount=can_mount)
    return TaskVolumes(
        can_mount=can_mount,
        in_view=of is None,
        owner=users.identify if of is not None else None,
        limit=limit,
        rules=config.volume_paths,
        hidden=(*runtime_paths(), config.state_dir, *((kept,) if kept else ())),
        store=store,
    )


def _start_upkeep(
    config: AgentConfig, client: Client, ports: Ports, store: VolumeStore | None, running: Callable[[], list[Task]]
) -> tuple[asyncio.Task[None], ...]:
    if store is None:
        return ()
    upkeep = VolumeUpkeep(config.name, client, ports, store, running=running)
    return (asyncio.create_task(upkeep.run(), name="agent:volumes"),)


def _task_config(config: AgentConfig, client: Client) -> tuple[TaskConfig, ContainerConfig]:
    """For processes and for containers. Values are served over HTTP only. Those of tasks that are not on this node any
    more are removed.
    """
    from holdfast.client.http import HttpClient

    memory = TaskMemory(Path(config.state_dir), find_tmpfs())
    folders = (config.tasks_dir, config.oci_dir / "tasks")
    memory.keep_only(path.name for folder in folders for path in folder.glob("*"))
    source = client if isinstance(client, HttpClient) else None
    return TaskConfig(config.name, source, memory), ContainerConfig(config.name, source, memory)


def _start_rpc_server(
    config: AgentConfig, client: Client, supervisor: TaskSupervisor, ports: Ports
) -> tuple[asyncio.Task[None], ...]:
    """Agent calls exist only over HTTP: a client inside the cell's process has no stream for them."""
    from holdfast.client.every_server import EveryServer
    from holdfast.client.http import HttpClient

    if not isinstance(client, HttpClient):
        return ()

    folders = (config.tasks_dir, config.oci_dir / "tasks")
    shims = ShimUsage(folders)

    async def serve(one: HttpClient) -> None:
        """Calls arrive at any server of the region, so each of them needs a stream."""
        sessions = TaskSessions(config.name, config.address, one, ports, supervisor.running_tasks)
        server = AgentRpcServer(
            config.name, one, folders, ports, supervisor.running_tasks, sessions=sessions, shims=shims
        )
        await server.run()

    return (asyncio.create_task(EveryServer(client, serve, ports.clock).run(), name="agent:rpc-server"),)


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
    client = HttpClient(identity.servers(), ports, cell=config.region, ca=config.ca, cert=str(identity.path))
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
