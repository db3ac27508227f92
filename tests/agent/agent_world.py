"""A region for agent tests: the real store, gate and client, the authority's lease book, and scripted drivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.expected import of_type, present

from holdfast.agent.cgroups import Usage
from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.contract import DiscoveredTask, Driver, ExecResult, StartedTask, StartFailed, Task, TaskExit
from holdfast.agent.persisted_state import PersistedState, StateStore
from holdfast.agent.probes import Prober, ProbeResult, ProbeTarget
from holdfast.authority.lease_book import LeaseBook
from holdfast.client.contract import CommitReceipt, FencingToken
from holdfast.foundation.ports import Ports
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient, PlacementService
from holdfast.model import times
from holdfast.model.binding import Binding, BindingSpec, DesiredRunState, Intent, claim_name
from holdfast.model.errors import Refused, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, Object, ObjectMeta
from holdfast.model.node import FenceBlock, Node
from holdfast.model.placement_api import PlacementOutcome, PlacementResponse, PlacementResult, RenewRequest
from holdfast.model.principal import NODES, Principal, controller, from_identity
from holdfast.model.probe import Probe
from holdfast.model.replica import ExitStatus, PlacementBlock, Replica, ReplicaSpec
from holdfast.model.template import Template, template_hash
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

REGION = "us-east"
TENANT = "acme"

T = TypeVar("T", bound=Object)


class RenewalService:
    """The part of an authority that an agent calls. The authority's own lease book answers renewals."""

    def __init__(self, ports: Ports) -> None:
        self.book = LeaseBook(15.0)
        self.floor: dict[str, int] = {}
        self.ports = ports
        self.requests: list[tuple[str, int]] = []
        self.away = False
        self.identity = ""
        self.incarnation = 0
        self.confirms_deletion = False

    async def reserve(self, who: Principal, request: object) -> PlacementResponse:
        raise AssertionError("an agent only renews")

    async def bind(self, who: Principal, request: object) -> PlacementResponse:
        raise AssertionError("an agent only renews")

    async def release(self, who: Principal, request: object, *, token: object = None) -> PlacementResponse:
        raise AssertionError("an agent only renews")

    async def renew(self, who: Principal, request: RenewRequest) -> PlacementResponse:
        if self.away:
            raise Unavailable("the region cannot be reached")
        answers = []
        for item in request.items:
            self.requests.append((item.node, item.epoch))
            held = self.book.by_node.get(item.node)
            known = held.lease if held is not None else None
            granted = self.book.next_lease(
                item.node, item.epoch, known, self.floor.get(item.node, 0), self.ports.clock.now()
            )
            if isinstance(granted, Refused):
                answers.append(
                    PlacementResult(result=PlacementOutcome.REJECTED, reason=granted.reason, message=granted.message)
                )
                continue
            self.book.record(item.node, 0, granted, self.ports.clock.monotonic())
            answers.append(
                PlacementResult(result=PlacementOutcome.ACCEPTED, epoch=granted.epoch, ttl_seconds=granted.ttl_s)
            )
        return PlacementResponse(
            tuple(answers),
            incarnation=self.incarnation,
            identity=self.identity,
            confirms_deletion=self.confirms_deletion,
        )

    def fence(self, node: str) -> int:
        self.floor[node] = self.book.epoch(node)
        return self.floor[node]


class World:
    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.renewal_service = RenewalService(ports)

    async def start(self) -> World:
        self.objects = Objects(MemoryStore(), MemoryStore())
        await self.objects.start()
        self.gate = Gate(REGION, self.objects, self.ports)
        self.commits: list[list[Write]] = []
        await self.write("link", Create(Tenant(metadata=ObjectMeta(name=TENANT))))
        return self

    async def close(self) -> None:
        await self.objects.close()

    def agent(self, name: str = "n1", *, placement: PlacementService | None = None) -> LocalClient:
        who = from_identity(f"holdfast:node:{REGION}:{name}", (NODES,), credential="test")
        return RecordingClient(self, who, placement or self.renewal_service)

    async def write(self, role: str, *writes: Write) -> tuple[Object | None, ...]:
        done = await self.gate.commit(controller(role, cell=REGION), writes)
        return done.objects

    async def bind(self, name: str, template: Template, *, node: str = "n1", attempt: int = 1, **spec: Any) -> Binding:
        """A replica bound to the node, as replicate and the authority would leave it."""
        made = Replica(
            metadata=ObjectMeta(name=name, namespace=TENANT),
            spec=ReplicaSpec(workload="api", workload_uid="w", assignment="a", revision="r", template=template),
        )
        (replica,) = await self.write("replicate", Create(made))
        assert replica is not None
        claim = claim_name(name, attempt)
        intent = Intent(replica_uid=replica.uid, template_hash=template_hash(template), attempt=attempt)
        ports = spec.pop("ports", {})
        binding = Binding(
            metadata=ObjectMeta(name=claim, namespace=TENANT),
            spec=BindingSpec(
                replica=name,
                intent=intent,
                node=node,
                template=template,
                workload="api",
                ports=ports,
                node_epoch=spec.pop("node_epoch", self.renewal_service.book.epoch(node)),
                **spec,
            ),
        )
        block = PlacementBlock(attempt=attempt, node=node, binding=claim, reservation=claim)
        placed = SetStatus("Replica", Key(TENANT, name), replica.uid, blocks={"placement": block})
        _, stored = await self.write("authority", placed, Create(binding))
        assert isinstance(stored, Binding)
        return stored

    async def request_stop(self, name: str, **more: Any) -> None:
        binding = self.binding(name)
        spec = msgspec.structs.replace(binding.spec, desired=DesiredRunState.STOP, **more)
        await self.write("authority", Update(msgspec.structs.replace(binding, spec=spec)))

    async def free(self, name: str) -> None:
        binding = self.binding(name)
        await self.write("authority", Delete("Binding", binding.key, binding.uid))

    async def fence(self, epoch: int, name: str = "n1") -> None:
        """Sets the fence only in the Node: the renewal endpoint does not know of it."""
        node = self.node(name)
        assert node is not None
        block = FenceBlock(fenced_epoch=epoch, reason="LeaseExpired")
        await self.write("authority", SetStatus("Node", node.key, node.uid, blocks={"fence": block}))

    def _one(self, kind: type[T], name: str, namespace: str = TENANT) -> T | None:
        found = self.objects.get(kind_of(kind), namespace, name)
        return of_type(found, kind) if found is not None else None

    def binding(self, name: str, attempt: int = 1) -> Binding:
        return present(self._one(Binding, claim_name(name, attempt)))

    def replica(self, name: str) -> Replica:
        return present(self._one(Replica, name))

    def node(self, name: str = "n1") -> Node | None:
        return self._one(Node, name, "")

    def phase(self, name: str) -> str:
        block = self.replica(name).status.execution
        return str(block.phase) if block is not None else ""

    def ready(self, name: str) -> bool:
        block = self.replica(name).status.execution
        return block is not None and block.ready


class RecordingClient(LocalClient):
    """The agent's client. Records every commit, and can be partitioned."""

    def __init__(self, world: World, who: Principal, placement: PlacementService) -> None:
        super().__init__(world.gate, who, placement=placement)
        self._world = world

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        if self._world.renewal_service.away:
            raise Unavailable("the region cannot be reached")
        self._world.commits.append(list(writes))
        return await super().commit(writes, token=token, brief=brief)


class Behaviour(msgspec.Struct):
    """How a scripted task behaves: when it ends by itself, how long its artifacts and a stop take, when its probes
    pass."""

    start_s: float = 0.02
    fetch_s: float = 0.0
    run_s: float | None = None
    code: int = 0
    stop_s: float = 0.5
    well: bool = True
    fails: str = ""


class ScriptedDriver(Driver):
    """Tasks in virtual time. They outlive agents: a second supervisor on the same driver finds them."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.acts: dict[str, Behaviour] = {}
        self.tasks: dict[str, Task] = {}
        self.found: dict[str, DiscoveredTask] = {}
        self.log: list[str] = []
        self.exits: asyncio.Queue[TaskExit] = asyncio.Queue()
        self.permits: list[tuple[int, float]] = []
        self._pid = 100

    @property
    def name(self) -> str:
        return "process"

    def act(self, task: Task) -> Behaviour:
        return self.acts.setdefault(task.replica, Behaviour())

    def running(self) -> list[str]:
        return [found.task.replica for found in self.found.values() if found.exit is None]

    async def inspect(self) -> list[DiscoveredTask]:
        return [self.found[name] for name in sorted(self.found)]

    async def fetch(self, task: Task) -> None:
        """Nothing is fetched; it only takes its time."""
        await self.ports.clock.sleep(self.act(task).fetch_s)

    async def start(self, task: Task) -> StartedTask:
        act = self.act(task)
        await self.ports.clock.sleep(act.start_s)
        if act.fails:
            raise StartFailed(act.fails, f"{task.replica} cannot be started")
        assert task.id not in self.found or self.found[task.id].exit is not None, "started twice"
        self._pid += 1
        self.log.append(f"start {task.replica} run {task.run}")
        found = DiscoveredTask(task=task, pid=self._pid, started_at_s=self.ports.clock.now())
        self.found[task.id] = found
        if act.run_s is not None:
            asyncio.get_running_loop().call_later(act.run_s, self._end, task.id, task.run, act.code)
        return StartedTask(pid=found.pid, started_at_s=found.started_at_s)

    def _finish(self, task_id: str, exit_: ExitStatus) -> None:
        self.found[task_id] = msgspec.structs.replace(self.found[task_id], exit=exit_)

    def _end(self, task_id: str, run: int, code: int) -> None:
        found = self.found.get(task_id)
        if found is None or found.exit is not None or found.task.run != run:
            return
        exit_ = ExitStatus(code=code, reason="Exited", message=f"exited with code {code}", at=self._at())
        self._finish(task_id, exit_)
        self.log.append(f"end {found.task.replica} run {run}")
        self.exits.put_nowait(TaskExit(task_id=task_id, run=run, exit=exit_))

    def _at(self) -> str:
        return times.micro_text(self.ports.clock.now())

    async def stop(self, task_id: str, grace_s: float) -> ExitStatus:
        found = self.found[task_id]
        if found.exit is not None:
            return found.exit
        await self.ports.clock.sleep(min(grace_s, self.act(found.task).stop_s))
        if self.found[task_id].exit is None:
            self._finish(task_id, ExitStatus(code=143, signal="SIGTERM", reason="StoppedOnRequest", at=self._at()))
            self.log.append(f"stop {found.task.replica} run {found.task.run}")
        exit_ = self.found[task_id].exit
        assert exit_ is not None
        return exit_

    def set_lease(self, epoch: int, until_mono_s: float) -> None:
        self.permits.append((epoch, until_mono_s))

    def set_run_until(self, task_id: str, until_mono_s: float | None) -> None:
        return None

    def usage(self, task_id: str) -> Usage | None:
        return None

    async def next_exit(self) -> TaskExit:
        return await self.exits.get()

    async def forget(self, task_id: str) -> None:
        del self.found[task_id]

    async def execute(
        self, task_id: str, command: tuple[str, ...], timeout_s: float, output_bytes: int = 0
    ) -> ExecResult:
        return ExecResult(code=0, output="")

    def logs(self, task_id: str) -> Path | None:
        return None

    async def close(self) -> None:
        return None


class ScriptedProber(Prober):
    def __init__(self, driver: ScriptedDriver) -> None:
        self._driver = driver

    async def check(self, target: ProbeTarget, probe: Probe) -> ProbeResult:
        well = self._driver.act(self._driver.found[target.task_id].task).well
        return ProbeResult(ok=well, message="200" if well else "503 from the work")


class KeptMemory(StateStore):
    def __init__(self) -> None:
        self.facts = PersistedState()

    def load(self) -> PersistedState:
        return self.facts

    def save(self, facts: PersistedState) -> None:
        self.facts = facts


def unnumbered(block: Any) -> Any:
    """An execution block without the number of its report."""
    return msgspec.structs.replace(block, sequence=0)


def config(name: str = "n1", state_dir: str = "/nowhere", **more: Any) -> AgentConfig:
    return AgentConfig(
        name=name, region=REGION, zone="z-a", state_dir=state_dir, capacity={"cpu": "4", "memory": "8Gi"}, **more
    )


def template(*command: str, **more: Any) -> Template:
    return Template(command=command or ("serve",), **more)


def task(id_: str, *command: str, run: int = 1, env: dict[str, str] | None = None, **more: Any) -> Task:
    return Task(
        id=id_,
        run=run,
        namespace=TENANT,
        replica=id_,
        replica_uid=f"uid-{id_}",
        workload="api",
        binding=f"{id_}.1",
        binding_uid=f"b-{id_}",
        attempt=1,
        epoch=1,
        node_epoch=1,
        template=template(*command, **more),
        env=env or {},
    )


async def eventually(fact: Callable[[], Any], *, within_s: float = 30.0) -> Any:
    """Polls a condition in real time, with a deadline."""
    deadline = time.monotonic() + within_s
    while not (found := fact()):
        assert time.monotonic() < deadline, f"did not become true within {within_s} s"
        await asyncio.sleep(0.01)
    return found
