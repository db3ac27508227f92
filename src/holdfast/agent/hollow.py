"""Hollow nodes: many simulated nodes in one process, for benchmarks and drills. The region cannot tell the difference.

Each Binding is decided by the same function as on real nodes (`task_decision.decide`), reported through the same
`ReportQueue` and acknowledged under the same rules; only the task itself is a timer. One watch serves all nodes,
because the region can select Bindings by a prefix of the node name.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import PurePath

import msgspec
import structlog

from holdfast.agent.binding_watch import list_and_watch_bindings
from holdfast.agent.config import AgentConfig
from holdfast.agent.hollow_nodes import HollowNode, HollowNodes
from holdfast.agent.reports import ReportQueue
from holdfast.agent.status_blocks import acknowledgement, execution_block, execution_write, max_delay_s
from holdfast.agent.task_decision import Acknowledge, ForgetTask, Now, StartTask, StopTask, TaskObservation, decide
from holdfast.agent.task_transitions import ACTIVE_STATES, is_zombie, to_ended, to_running, to_starting, to_stopping
from holdfast.client.contract import Client
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import times
from holdfast.model.binding import Binding
from holdfast.model.meta import Key
from holdfast.model.node import Device
from holdfast.model.quantity import Amount
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus
from holdfast.model.template import DriverName, RestartPolicy

_NAME_DIGITS = 5

_log = structlog.get_logger()


class DelayRange(msgspec.Struct, frozen=True):
    """A delay drawn uniformly between two bounds."""

    low_s: float
    high_s: float

    def draw_s(self, chance: random.Random) -> float:
        return chance.uniform(self.low_s, self.high_s)


class HollowDelays(msgspec.Struct, frozen=True):
    """How long a hollow task takes to start, to pass its probes, to stop and, if it ends by itself, to finish."""

    start: DelayRange = DelayRange(0.2, 1.0)
    probe: DelayRange = DelayRange(0.2, 1.0)
    stop: DelayRange = DelayRange(0.1, 0.5)
    work: DelayRange = DelayRange(5.0, 15.0)


class HollowConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`count` nodes named `prefix` plus a number, spread over `zones` in turn."""

    region: str
    prefix: str
    count: int
    zones: tuple[str, ...]
    capacity: dict[str, Amount]
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    pool: str = "default"
    delays: HollowDelays = HollowDelays()

    def agent_config(self, number: int) -> AgentConfig:
        return AgentConfig(
            name=f"{self.prefix}{number:0{_NAME_DIGITS}}",
            region=self.region,
            zone=self.zones[number % len(self.zones)],
            state_dir=str(PurePath()),
            pool=self.pool,
            capacity=self.capacity,
            devices=self.devices,
            labels=self.labels,
            drivers=tuple(driver.value for driver in DriverName),
        )


class _HollowTask:
    """The hollow task of one Binding."""

    def __init__(self, node: HollowNode, binding: Binding) -> None:
        self.node = node
        self.uid = binding.uid
        self.binding: Binding | None = binding
        self.last = binding
        self.local = TaskObservation()
        self.acknowledged = False
        self.transition_timer: asyncio.TimerHandle | None = None
        self.decision_timer: asyncio.TimerHandle | None = None

    def cancel_timers(self) -> None:
        for timer in (self.transition_timer, self.decision_timer):
            if timer is not None:
                timer.cancel()
        self.transition_timer = self.decision_timer = None


class HollowHost:
    """`run` returns only by cancellation. Its tasks then disappear, as on a machine that lost power."""

    def __init__(self, config: HollowConfig, client: Client, ports: Ports) -> None:
        self._config = config
        self._client = client
        self._ports = ports
        self._clock = ports.clock
        self._reports = ReportQueue(client, ports)
        self._nodes = HollowNodes(
            [config.agent_config(number) for number in range(config.count)],
            client,
            self._reports,
            ports,
            changed=self._lease_changed,
        )
        self._units: dict[str, _HollowTask] = {}
        self._by_node: dict[str, dict[str, _HollowTask]] = {}

    async def run(self) -> None:
        loops = [
            asyncio.create_task(self._reports.run(), name="hollow:reports"),
            asyncio.create_task(self._nodes.run(), name="hollow:nodes"),
            asyncio.create_task(
                list_and_watch_bindings(
                    self._client,
                    f"{self._config.prefix}*",
                    self._ports,
                    listed=self._bindings_listed,
                    changed=self._binding_changed,
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
                unit.cancel_timers()
            await cancel_and_wait(*loops)

    @property
    def running(self) -> int:
        return sum(node.running for node in self._nodes.by_name.values())

    # Bindings

    async def _bindings_listed(self, bindings: tuple[Binding, ...]) -> None:
        listed = {binding.uid for binding in bindings}
        for unit in list(self._units.values()):
            if unit.uid not in listed:
                unit.binding = None
                self._act(unit)
        for binding in bindings:
            self._binding_changed(binding, deleted=False)
        self._nodes.mark_listed()

    def _binding_changed(self, binding: Binding, *, deleted: bool) -> None:
        unit = self._units.get(binding.uid)
        if unit is None:
            node = self._nodes.by_name.get(binding.spec.node)
            if deleted or node is None:
                return
            unit = self._units[binding.uid] = _HollowTask(node, binding)
            self._by_node.setdefault(node.name, {})[unit.uid] = unit
        unit.binding = None if deleted else binding
        unit.last = binding
        self._act(unit)

    def _lease_changed(self, node: HollowNode) -> None:
        for unit in list(self._by_node.get(node.name, {}).values()):
            self._act(unit)

    # Decisions and simulated tasks

    def _now(self) -> Now:
        return Now(wall_s=self._clock.now(), mono_s=self._clock.monotonic())

    def _act(self, unit: _HollowTask) -> None:
        verdict = decide(unit.binding, unit.local, unit.node.lease, self._now())
        if unit.decision_timer is not None:
            unit.decision_timer.cancel()
            unit.decision_timer = None
        if verdict.recheck_in_s is not None:
            unit.decision_timer = asyncio.get_running_loop().call_later(verdict.recheck_in_s, self._act, unit)
        match verdict.action:
            case StartTask(run=run):
                self._start(unit, run)
            case StopTask() as stop:
                self._stop(unit, stop)
            case Acknowledge() as acknowledge:
                self._acknowledge(unit, acknowledge)
            case ForgetTask():
                self._forget(unit)
            case None:
                pass

    def _set(self, unit: _HollowTask, local: TaskObservation) -> None:
        """Updates the node's counts and reports the task to the region."""
        unit.node.running += (local.state in ACTIVE_STATES) - (unit.local.state in ACTIVE_STATES)
        unit.local = local
        if unit.binding is not None:
            block = execution_block(unit.binding, local, unit.node.config)
            if block is not None:
                self._reports.put(execution_write(unit.binding, block), wait_s=max_delay_s(block))
        if unit.node.lease.fenced or unit.node.zombies:
            self._count_zombies(unit.node)
        self._nodes.report(unit.node)

    def _count_zombies(self, node: HollowNode) -> None:
        now = self._now()
        units = self._by_node.get(node.name, {}).values()
        node.zombies = sum(is_zombie(unit.binding, unit.local, node.lease, now) for unit in units)

    def _schedule(self, unit: _HollowTask, delay: DelayRange, then: Callable[[_HollowTask], None]) -> None:
        if unit.transition_timer is not None:
            unit.transition_timer.cancel()
        delay_s = delay.draw_s(self._ports.random)
        unit.transition_timer = asyncio.get_running_loop().call_later(delay_s, then, unit)

    def _start(self, unit: _HollowTask, run: int) -> None:
        self._set(unit, to_starting(unit.local, run))
        self._schedule(unit, self._config.delays.start, self._started)

    def _started(self, unit: _HollowTask) -> None:
        probes = unit.last.spec.template.probes
        waits = probes.startup is not None or probes.readiness is not None
        now = self._now()
        started = to_running(unit.local, pid=unit.local.run, started_at_s=now.wall_s, now=now)
        since_s = 0.0 if waits else now.wall_s
        self._set(
            unit,
            msgspec.structs.replace(
                started, startup_passed=probes.startup is None, ready=not waits, ready_since_s=since_s
            ),
        )
        if waits:
            self._schedule(unit, self._config.delays.probe, self._probes_passed)
        else:
            self._finish_later(unit)
        self._act(unit)

    def _probes_passed(self, unit: _HollowTask) -> None:
        self._set(
            unit, msgspec.structs.replace(unit.local, startup_passed=True, ready=True, ready_since_s=self._clock.now())
        )
        self._finish_later(unit)

    def _finish_later(self, unit: _HollowTask) -> None:
        if unit.last.spec.template.restart_policy is not RestartPolicy.ALWAYS:
            self._schedule(unit, self._config.delays.work, self._finished)

    def _finished(self, unit: _HollowTask) -> None:
        self._ended(unit, ExitStatus(code=0, reason=Reason.FINISHED, at=times.micro_text(self._clock.now())), "")

    def _stop(self, unit: _HollowTask, stop: StopTask) -> None:
        self._set(unit, to_stopping(unit.local, stop, self._now()))
        self._schedule(unit, self._config.delays.stop, self._stopped)

    def _stopped(self, unit: _HollowTask) -> None:
        at = times.micro_text(self._clock.now())
        self._ended(unit, ExitStatus(signal="SIGTERM", reason=Reason.STOPPED_ON_REQUEST, at=at), unit.local.stop_reason)

    def _ended(self, unit: _HollowTask, exit_: ExitStatus, stop_reason: str) -> None:
        self._set(unit, to_ended(unit.local, exit_, stop_reason, self._now()))
        self._act(unit)

    def _acknowledge(self, unit: _HollowTask, acknowledge: Acknowledge) -> None:
        if unit.acknowledged or unit.binding is None:
            return
        unit.acknowledged = True
        self._reports.put(acknowledgement(unit.binding, acknowledge, self._clock.now()))

    def _forget(self, unit: _HollowTask) -> None:
        unit.cancel_timers()
        if self._units.pop(unit.uid, None) is None:
            return
        del self._by_node[unit.node.name][unit.uid]
        self._reports.forget("Binding", unit.last.key, unit.uid)
        replica = Key(unit.last.metadata.namespace, unit.last.spec.replica)
        self._reports.forget("Replica", replica, unit.last.spec.intent.replica_uid)
