"""The supervisor's record of one Binding: desired state, observation, timer and probes.

Only the supervisor changes it. Everything that decisions read is in `observation`, which is replaced as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from holdfast.agent.drivers.contract import Driver, StartFailed, Task, TaskPrograms
from holdfast.agent.drivers.program_launch import has_programs
from holdfast.agent.limits import AGENT_RETRY_FIRST_S, AGENT_RETRY_MAX_S
from holdfast.agent.probes import Prober, ProbeTarget, TaskProbes
from holdfast.agent.program_watch import ProgramWatch
from holdfast.agent.task_decision import TaskObservation, TaskState
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Clock, Ports
from holdfast.model import times
from holdfast.model.binding import Binding
from holdfast.model.config_references import has_values
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, ExitStatus
from holdfast.model.template import Template, udp_ports
from holdfast.model.trace_ids import trace_of

# Interval at which the agent checks whether a task may still run while its artifacts or image are fetched.
FETCH_RECHECK_S = 1.0
# Every so many checks the agent reports how far the fetch is. Each report is a write in the region.
FETCH_REPORT_ROUNDS = 5

_log = structlog.get_logger()


def needs_fetch(template: Template) -> bool:
    """Whether something must be fetched before the task can start."""
    return bool(template.artifacts or template.image) or has_values(template)


class TaskUnit:
    def __init__(self, id_: str, uid: str, driver: Driver | None) -> None:
        self.id = id_
        self.uid = uid
        self.driver = driver
        self.task: Task | None = None
        self.observation = TaskObservation()
        self.acknowledged = False
        self.deletion_seen = False
        """Whether the watch delivered the deletion of the Binding."""
        self.early_exit: ExitStatus | None = None
        self.run_until = ""
        self.probes: TaskProbes | None = None
        self._watch: ProgramWatch | None = None
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

    @property
    def trace(self) -> str:
        """Trace id of the Binding, for logs; empty if it is not traced."""
        return trace_of(self.last_binding) if self.last_binding is not None else ""

    def log_exit(self, exit_: ExitStatus) -> None:
        _log.info(
            "task_ended",
            task=self.id,
            run=self.observation.run,
            code=exit_.code,
            signal=exit_.signal,
            reason=exit_.reason,
            message=exit_.message,
            trace=self.trace,
        )

    @property
    def is_held(self) -> bool:
        """Whether the task runs or is being stopped, and its Binding is missing without having been deleted."""
        runs = self.observation.state in (TaskState.RUNNING, TaskState.STOPPING)
        return runs and self._binding is None and not self.deletion_seen

    def is_task_of(self, binding: Binding) -> bool:
        """Whether the task was started for this claim: the same replica and attempt, whatever the Binding's uid."""
        task, intent = self.task, binding.spec.intent
        return task is not None and (task.replica_uid, task.attempt) == (intent.replica_uid, intent.attempt)

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

    async def fetch(self, task: Task, may_run: Callable[[], bool], report: Callable[[TaskUnit], None]) -> bool:
        """Fetches the task's artifacts and image, which may take minutes. Gives up as soon as the task may not run any
        more. Returns whether it has any."""
        assert self.driver is not None
        if not needs_fetch(task.template):
            return False
        rounds = 0
        fetching = asyncio.create_task(self.driver.fetch(task), name=f"agent:fetch:{self.id}")
        try:
            while not fetching.done():
                await asyncio.wait((fetching,), timeout=FETCH_RECHECK_S)
                rounds += 1
                if rounds % FETCH_REPORT_ROUNDS == 0 and (progress := self.driver.fetch_progress(task)):
                    self.set(fetch_message=progress)
                    report(self)
                if not may_run():
                    raise StartFailed(Reason.NEVER_STARTED, "withdrawn while its artifacts or image were fetched")
        except BaseException:
            fetching.cancel()
            with contextlib.suppress(asyncio.CancelledError, StartFailed):
                await fetching
            raise
        fetching.result()
        self.set(fetching=False)
        return True

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
        if self._watch is not None:
            self._watch.stop()
            if (found := self._watch.last()) is not None:
                self.set(programs=found.programs)
            self._watch = None

    def start_probes(self, address: str, prober: Prober, clock: Clock, changed: Callable[[TaskUnit], None]) -> None:
        """Starts the probes of a run, when its main task runs. A task without probes is ready as soon as it runs."""
        assert self.task is not None
        if self._watch is not None:
            return
        if self.driver is not None and has_programs(self.task):

            def on_change(found: TaskPrograms) -> None:
                if self.observation.state is TaskState.RUNNING:
                    self.set(programs=found.programs, pid=found.pid or self.observation.pid)
                    changed(self)

            def on_main() -> None:
                self._start_probes(address, prober, clock, changed)
                changed(self)

            if self.observation.ready is None:
                self.set(ready=False if not self.observation.ready_since_s else None)
            self._watch = ProgramWatch(self.id, self.driver, clock, changed=on_change, main_started=on_main)
            return
        self._start_probes(address, prober, clock, changed)

    def _start_probes(self, address: str, prober: Prober, clock: Clock, changed: Callable[[TaskUnit], None]) -> None:
        assert self.task is not None
        probes = self.task.template.probes
        udp, given = udp_ports(self.task.template), self.task.ports
        ports = {p.name: given[p.name] for p in self.task.template.ports if p.name in given and p.name not in udp}
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


def take_over(units: dict[str, TaskUnit], binding: Binding) -> TaskUnit | None:
    """Removes and returns the unit of a lost Binding that was written again: the same claim, with another uid.

    Without this the agent would acknowledge that the new Binding runs nothing, while the old task runs.
    """
    for uid, unit in units.items():
        if unit.binding is None and unit.is_task_of(binding):
            del units[uid]
            unit.uid, unit.acknowledged = binding.uid, False
            _log.info("task_taken_over", task=unit.id, binding=str(binding.key))
            return unit
    return None
