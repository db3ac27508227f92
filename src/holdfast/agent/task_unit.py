"""The supervisor's record of one Binding: desired state, observation, timer and probes.

Only the supervisor changes it. Everything that decisions read is in `observation`, which is replaced as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from holdfast.agent.drivers.contract import Driver, Task
from holdfast.agent.limits import AGENT_RETRY_FIRST_S, AGENT_RETRY_MAX_S
from holdfast.agent.probes import Prober, ProbeTarget, TaskProbes
from holdfast.agent.task_decision import TaskObservation, TaskState
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Clock, Ports
from holdfast.model import times
from holdfast.model.binding import Binding
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, ExitStatus

_log = structlog.get_logger()


class TaskUnit:
    def __init__(self, id_: str, uid: str, driver: Driver | None) -> None:
        self.id = id_
        self.uid = uid
        self.driver = driver
        self.task: Task | None = None
        self.observation = TaskObservation()
        self.acknowledged = False
        self.early_exit: ExitStatus | None = None
        self.run_until = ""
        self.probes: TaskProbes | None = None
        self.last_binding: Binding | None = None
        self._binding: Binding | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def binding(self) -> Binding | None:
        return self._binding

    @binding.setter
    def binding(self, binding: Binding | None) -> None:
        self._binding = binding
        self.last_binding = binding or self.last_binding

    def set(self, **changes: Any) -> None:
        self.observation = msgspec.structs.replace(self.observation, **changes)

    def restore_report(self, reported: ExecutionBlock | None) -> None:
        """Takes readiness and last exit of this run from the region's record, if the record is about this attempt."""
        assert self._binding is not None
        if reported is None or reported.attempt != self._binding.spec.intent.attempt:
            return
        if self.observation.state is TaskState.RUNNING:
            ready_since_s = times.parse_time(reported.ready_since) if reported.ready_since else 0.0
            self.set(ready_since_s=ready_since_s, exit=reported.last_exit)

    async def stop(self, grace_s: float, ports: Ports) -> ExitStatus:
        """Retries until the driver confirms that nothing runs: a stop is never given up."""
        assert self.driver is not None
        backoff = Backoff(ports.random, first_s=AGENT_RETRY_FIRST_S, max_s=AGENT_RETRY_MAX_S)
        while True:
            try:
                return await self.driver.stop(self.id, grace_s)
            except Exception:
                _log.exception("task_stop_crashed", task=self.id, failures=backoff.failures)
                await ports.clock.sleep(backoff.next_s())

    def schedule_recheck(self, in_s: float | None, act: Callable[[TaskUnit], None]) -> None:
        """Replaces the timer; at most one is set."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if in_s is not None:
            self._timer = asyncio.get_running_loop().call_later(in_s, act, self)

    def cancel_timers(self) -> None:
        """Cancels the timer and the probes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.stop_probes()

    def stop_probes(self) -> None:
        if self.probes is not None:
            self.probes.stop()
            self.probes = None

    def start_probes(self, address: str, prober: Prober, clock: Clock, changed: Callable[[TaskUnit], None]) -> None:
        """Starts the probes of a run. A task without probes is ready as soon as it runs."""
        assert self.task is not None
        probes = self.task.template.probes
        ports = {p.name: self.task.ports[p.name] for p in self.task.template.ports if p.name in self.task.ports}
        target = ProbeTarget(task_id=self.id, address=address, ports=ports, driver=self.task.template.driver)
        if probes.startup is None:
            self.set(startup_passed=True)
            if probes.readiness is None:
                self._set_ready(True, clock.now())
        has_readiness = probes.readiness is not None

        def on_result(name: str, ok: bool, message: str) -> None:
            if self.observation.state is not TaskState.RUNNING:
                return
            self._on_probe(name, ok, message, clock.now(), has_readiness=has_readiness)
            changed(self)

        self.probes = TaskProbes(probes, target, prober, clock, on_result)

    def _on_probe(self, name: str, ok: bool, message: str, now_s: float, *, has_readiness: bool) -> None:
        if name == "startup":
            if not ok:
                self.set(failed_probe=Reason.STARTUP_FAILED, probe_message=message)
                return
            self.set(startup_passed=True, probe_message="")
            if not has_readiness:
                self._set_ready(True, now_s)
        elif name == "liveness":
            if not ok:
                self.set(failed_probe=Reason.LIVENESS_FAILED, probe_message=message)
        else:
            self._set_ready(ok, now_s)
            self.set(probe_message="" if ok else message)

    def _set_ready(self, ready: bool, now_s: float) -> None:
        """An adopted task that is still ready keeps its earlier `ready_since_s`."""
        kept = self.observation.ready is None and self.observation.ready_since_s > 0
        since_s = self.observation.ready_since_s if kept else now_s
        self.set(ready=ready, ready_since_s=since_s if ready else 0.0)
