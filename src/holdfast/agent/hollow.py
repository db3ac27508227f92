"""Many pretended nodes in one process: for benchmarks and drills, against a region that cannot tell.

Every Binding is decided by the very function that decides for real nodes (`decide`), reported through the same
`Reports`, and acknowledged under the same rules; only the work itself is a timer. One watch serves all nodes: the
region selects Bindings by the beginning of the node's name.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import PurePath

import msgspec
import structlog

from holdfast.agent.config import AgentConfig
from holdfast.agent.decide import Acknowledge, Forget, Local, Now, Start, Stop, decide
from holdfast.agent.describe import acknowledgement, execution_of, execution_write, may_wait_s
from holdfast.agent.follow import follow_bindings
from holdfast.agent.hollow_nodes import HollowNode, HollowNodes
from holdfast.agent.reports import Reports
from holdfast.agent.steps import BUSY, ended, is_zombie, running, starting, stopping
from holdfast.client.contract import Client
from holdfast.model import times
from holdfast.model.binding import Binding
from holdfast.model.meta import Key
from holdfast.model.node import Device
from holdfast.model.quantity import Amount
from holdfast.model.reasons import Reason
from holdfast.model.replica import Exit
from holdfast.model.template import Driver, RestartPolicy
from holdfast.runtime.ports import Ports
from holdfast.runtime.tasks import end

_NAME_DIGITS = 5

_log = structlog.get_logger()


class Span(msgspec.Struct, frozen=True):
    """A delay drawn evenly between two bounds."""

    low_s: float
    high_s: float

    def draw_s(self, chance: random.Random) -> float:
        return chance.uniform(self.low_s, self.high_s)


class Delays(msgspec.Struct, frozen=True):
    """How long pretended work takes to start, to pass its probes, to stop, and, where it ends by itself, to end."""

    start: Span = Span(0.2, 1.0)
    probe: Span = Span(0.2, 1.0)
    stop: Span = Span(0.1, 0.5)
    work: Span = Span(5.0, 15.0)


class HollowConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`count` nodes named `prefix` and a number, spread over `zones` in turn."""

    region: str
    prefix: str
    count: int
    zones: tuple[str, ...]
    capacity: dict[str, Amount]
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    pool: str = "default"
    delays: Delays = Delays()

    def node(self, number: int) -> AgentConfig:
        return AgentConfig(
            name=f"{self.prefix}{number:0{_NAME_DIGITS}}",
            region=self.region,
            zone=self.zones[number % len(self.zones)],
            state_dir=str(PurePath()),
            pool=self.pool,
            capacity=self.capacity,
            devices=self.devices,
            labels=self.labels,
            drivers=tuple(driver.value for driver in Driver),
        )


class _Unit:
    """One Binding's pretended work."""

    def __init__(self, node: HollowNode, binding: Binding) -> None:
        self.node = node
        self.uid = binding.uid
        self.binding: Binding | None = binding
        self.last = binding
        self.local = Local()
        self.acknowledged = False
        self.step: asyncio.TimerHandle | None = None
        """The next thing that happens to the work by itself."""
        self.look: asyncio.TimerHandle | None = None
        """When to decide again."""

    def rest(self) -> None:
        for timer in (self.step, self.look):
            if timer is not None:
                timer.cancel()
        self.step = self.look = None


class HollowHost:
    """`run` returns only by cancellation; what ran is gone with the process, as with a machine that lost power."""

    def __init__(self, config: HollowConfig, client: Client, ports: Ports) -> None:
        self._config = config
        self._client = client
        self._ports = ports
        self._clock = ports.clock
        self._reports = Reports(client, ports)
        self._nodes = HollowNodes(
            [config.node(number) for number in range(config.count)],
            client,
            self._reports,
            ports,
            changed=self._lease_changed,
        )
        self._units: dict[str, _Unit] = {}
        self._by_node: dict[str, dict[str, _Unit]] = {}

    async def run(self) -> None:
        loops = [
            asyncio.create_task(self._reports.run(), name="hollow:reports"),
            asyncio.create_task(self._nodes.run(), name="hollow:nodes"),
            asyncio.create_task(
                follow_bindings(
                    self._client, f"{self._config.prefix}*", self._ports, listed=self._see_all, changed=self._see
                ),
                name="hollow:bindings",
            ),
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in done:
                loop.result()
        finally:
            for unit in self._units.values():
                unit.rest()
            await end(*loops)

    @property
    def running(self) -> int:
        return sum(node.running for node in self._nodes.by_name.values())

    # What is wanted

    async def _see_all(self, bindings: tuple[Binding, ...]) -> None:
        listed = {binding.uid for binding in bindings}
        for unit in list(self._units.values()):
            if unit.uid not in listed:
                unit.binding = None
                self._act(unit)
        for binding in bindings:
            self._see(binding, deleted=False)
        self._nodes.now_listed()

    def _see(self, binding: Binding, *, deleted: bool) -> None:
        unit = self._units.get(binding.uid)
        if unit is None:
            node = self._nodes.by_name.get(binding.spec.node)
            if deleted or node is None:
                return
            unit = self._units[binding.uid] = _Unit(node, binding)
            self._by_node.setdefault(node.name, {})[unit.uid] = unit
        unit.binding = None if deleted else binding
        unit.last = binding
        self._act(unit)

    def _lease_changed(self, node: HollowNode) -> None:
        for unit in list(self._by_node.get(node.name, {}).values()):
            self._act(unit)

    # Deciding and pretending

    def _now(self) -> Now:
        return Now(wall_s=self._clock.now(), mono_s=self._clock.monotonic())

    def _act(self, unit: _Unit) -> None:
        verdict = decide(unit.binding, unit.local, unit.node.lease, self._now())
        if unit.look is not None:
            unit.look.cancel()
            unit.look = None
        if verdict.again_in_s is not None:
            unit.look = asyncio.get_running_loop().call_later(verdict.again_in_s, self._act, unit)
        match verdict.action:
            case Start(run=run):
                self._start(unit, run)
            case Stop() as stop:
                self._stop(unit, stop)
            case Acknowledge() as said:
                self._acknowledge(unit, said)
            case Forget():
                self._forget(unit)
            case None:
                pass

    def _set(self, unit: _Unit, local: Local) -> None:
        """Keeps the node's counts, and tells the region."""
        unit.node.running += (local.state in BUSY) - (unit.local.state in BUSY)
        unit.local = local
        if unit.binding is not None:
            block = execution_of(unit.binding, local, unit.node.config)
            if block is not None:
                self._reports.put(execution_write(unit.binding, block), wait_s=may_wait_s(block))
        if unit.node.lease.fenced or unit.node.zombies:
            self._count_zombies(unit.node)
        self._nodes.say(unit.node)

    def _count_zombies(self, node: HollowNode) -> None:
        now = self._now()
        units = self._by_node.get(node.name, {}).values()
        node.zombies = sum(is_zombie(unit.binding, unit.local, node.lease, now) for unit in units)

    def _next(self, unit: _Unit, delay: Span, then: Callable[[_Unit], None]) -> None:
        if unit.step is not None:
            unit.step.cancel()
        delay_s = delay.draw_s(self._ports.random)
        unit.step = asyncio.get_running_loop().call_later(delay_s, then, unit)

    def _start(self, unit: _Unit, run: int) -> None:
        self._set(unit, starting(unit.local, run))
        self._next(unit, self._config.delays.start, self._started)

    def _started(self, unit: _Unit) -> None:
        probes = unit.last.spec.template.probes
        waits = probes.startup is not None or probes.readiness is not None
        now = self._now()
        begun = running(unit.local, pid=unit.local.run, started_at_s=now.wall_s, now=now)
        since_s = 0.0 if waits else now.wall_s
        self._set(
            unit,
            msgspec.structs.replace(
                begun, startup_passed=probes.startup is None, ready=not waits, ready_since_s=since_s
            ),
        )
        if waits:
            self._next(unit, self._config.delays.probe, self._passed)
        else:
            self._let_work(unit)
        self._act(unit)

    def _passed(self, unit: _Unit) -> None:
        self._set(
            unit,
            msgspec.structs.replace(unit.local, startup_passed=True, ready=True, ready_since_s=self._clock.now()),
        )
        self._let_work(unit)

    def _let_work(self, unit: _Unit) -> None:
        if unit.last.spec.template.restart_policy is not RestartPolicy.ALWAYS:
            self._next(unit, self._config.delays.work, self._finished)

    def _finished(self, unit: _Unit) -> None:
        self._ended(unit, Exit(code=0, reason=Reason.FINISHED, at=times.micro_text(self._clock.now())), "")

    def _stop(self, unit: _Unit, stop: Stop) -> None:
        self._set(unit, stopping(unit.local, stop, self._now()))
        self._next(unit, self._config.delays.stop, self._stopped)

    def _stopped(self, unit: _Unit) -> None:
        at = times.micro_text(self._clock.now())
        self._ended(unit, Exit(signal="SIGTERM", reason=Reason.STOPPED_AS_ASKED, at=at), unit.local.stop_reason)

    def _ended(self, unit: _Unit, exit_: Exit, stop_reason: str) -> None:
        self._set(unit, ended(unit.local, exit_, stop_reason, self._now()))
        self._act(unit)

    def _acknowledge(self, unit: _Unit, said: Acknowledge) -> None:
        if unit.acknowledged or unit.binding is None:
            return
        unit.acknowledged = True
        self._reports.put(acknowledgement(unit.binding, said, self._clock.now()))

    def _forget(self, unit: _Unit) -> None:
        unit.rest()
        if self._units.pop(unit.uid, None) is None:
            return
        del self._by_node[unit.node.name][unit.uid]
        self._reports.forget("Binding", unit.last.key, unit.uid)
        replica = Key(unit.last.metadata.namespace, unit.last.spec.replica)
        self._reports.forget("Replica", replica, unit.last.spec.intent.replica_uid)
