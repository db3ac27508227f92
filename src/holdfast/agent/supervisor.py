"""Executes the decision for every Binding of this node and reports the result to the region.

Runs in production with real drivers and in the simulation with simulated ones.
- One driver call at a time per task, except a stop that became more urgent.
- No running task is stopped because its Binding is missing from a list: the region may have lost its records.
- Losing the region stops no committed task. No task blocks another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import structlog

from holdfast.agent.binding_watch import list_and_watch_bindings
from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.contract import DiscoveredTask, Driver, StartFailed, Task, TaskExit
from holdfast.agent.node_report import NodeReport, NodeTraits
from holdfast.agent.persisted_state import StateStore, record_start
from holdfast.agent.probes import Prober
from holdfast.agent.registration import Registration
from holdfast.agent.reports import ReportQueue
from holdfast.agent.start_failures import StartFailures
from holdfast.agent.status_blocks import (
    acknowledgement,
    execution_block,
    execution_write,
    max_delay_s,
    overcommit_message,
    task_from_binding,
    task_id,
)
from holdfast.agent.task_decision import (
    Acknowledge,
    ForgetTask,
    Now,
    StartTask,
    StopTask,
    TaskObservation,
    TaskState,
    assumed_failures,
    decide,
    decide_without_binding,
    desired_state,
    failures_after_exit,
    run_until_mono_s,
)
from holdfast.agent.task_spans import TaskSpans
from holdfast.agent.task_transitions import ACTIVE_STATES, is_zombie, to_ended, to_running, to_starting, to_stopping
from holdfast.agent.task_unit import TaskUnit, needs_fetch, take_over
from holdfast.client.contract import Client
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import times
from holdfast.model.binding import Binding
from holdfast.model.errors import Fault
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExitStatus, Replica
from holdfast.model.tenure import needs_tenure

# Tasks that an agent starts at the same time. Further starts wait.
AGENT_STARTS_IN_FLIGHT_MAX = 8

_log = structlog.get_logger()


class TaskSupervisor:
    """`drivers` are keyed by their names in templates. `run` ends only by cancellation and leaves tasks running."""

    def __init__(
        self,
        config: AgentConfig,
        client: Client,
        *,
        drivers: Mapping[str, Driver],
        prober: Prober,
        memory: StateStore,
        ports: Ports,
        traits: Callable[[], NodeTraits] = NodeTraits,
        spans: TaskSpans | None = None,
    ) -> None:
        """`spans` exists only while traces are exported."""
        self._config = config
        self._client = client
        self._drivers = drivers
        self._prober = prober
        self._clock = ports.clock
        self._units: dict[str, TaskUnit] = {}
        self._listed = False
        self._starts = asyncio.Semaphore(AGENT_STARTS_IN_FLIGHT_MAX)
        self._all_stopped = asyncio.Event()
        self._calls: dict[asyncio.Task[None], None] = {}
        self._shutting_down = False
        self._reports = ReportQueue(client, ports, started_s=record_start(memory, ports.clock.now()))
        changed = self._lease_changed
        self._registration = Registration(
            config, client, memory, ports, changed=changed, quiesce=self._wait_all_stopped, active=self.active_count
        )
        self._node_report = NodeReport(self._registration, self._reports, ports.clock)
        self._ports = ports
        self._traits = traits
        self._spans = spans
        self._start_failures = StartFailures()
        self._bound: list[Binding | None] = []
        self._overcommitted = ""
        """Overcommit message of `_bound`, cached: read at every renewal, and it seldom changes."""

    # --- start and shutdown ------------------------------------------------------------------------------------

    async def _watch_bindings(self) -> None:
        node, listed, changed = self._config.name, self._bindings_listed, self._binding_changed
        await list_and_watch_bindings(self._client, node, self._ports, listed=listed, changed=changed)

    async def run(self) -> None:
        for driver in self._drivers.values():
            for found in await driver.inspect():
                self._adopt(driver, found)
        loops = [
            asyncio.create_task(self._reports.run(), name="agent:reports"),
            asyncio.create_task(self._registration.run(), name="agent:registration"),
            asyncio.create_task(self._watch_bindings(), name="agent:bindings"),
            *(asyncio.create_task(self._watch_exits(d), name=f"agent:exits:{d.name}") for d in self._drivers.values()),
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop in done:
                    loop.result()
        finally:
            await self._shutdown(loops)

    async def _shutdown(self, loops: list[asyncio.Task[None]]) -> None:
        self._shutting_down = True
        for unit in self._units.values():
            unit.cancel_timers()
        self._node_report.cancel_timer()
        await cancel_and_wait(*loops, *self._calls)
        for driver in self._drivers.values():
            await driver.close()

    async def stop_work(self) -> None:
        """Stops every task with its own grace period and reports the exits. For `stop_work_on_exit`."""
        self._shutting_down = True
        for unit in list(self._units.values()):
            unit.cancel_timers()
            if unit.observation.state is TaskState.RUNNING and unit.task is not None:
                self._stop(unit, StopTask(unit.task.template.termination_grace_seconds, Reason.STOPPED_ON_REQUEST))
        await self._wait_all_stopped()
        await self._reports.flush()

    def running_tasks(self) -> list[tuple[Task, Driver]]:
        """The running tasks with their drivers."""
        return [
            (unit.task, unit.driver)
            for unit in self._units.values()
            if unit.observation.state is TaskState.RUNNING and unit.task is not None and unit.driver is not None
        ]

    def active_count(self) -> int:
        return sum(unit.observation.state in ACTIVE_STATES for unit in self._units.values())

    async def _wait_all_stopped(self) -> None:
        while self.active_count():
            self._all_stopped.clear()
            await self._all_stopped.wait()

    # --- observations ------------------------------------------------------------------------------------------

    def _now(self) -> Now:
        return Now(wall_s=self._clock.now(), mono_s=self._clock.monotonic())

    def _adopt(self, driver: Driver, found: DiscoveredTask) -> None:
        now = self._now()
        task = found.task
        ago_s = max(0.0, now.wall_s - (found.started_at_s or now.wall_s))
        local = TaskObservation(
            state=TaskState.RUNNING,
            run=task.run,
            failures=assumed_failures(task.run, task.template.restart_policy),
            pid=found.pid,
            started_at_s=found.started_at_s,
            started_mono_s=now.mono_s - ago_s,
            ready=None,
        )
        if found.exit is not None:
            local = msgspec.structs.replace(
                local, state=TaskState.ENDED, exit=found.exit, ended_mono_s=now.mono_s, ready=False
            )
            failures = failures_after_exit(local, found.exit, "", now)
            local = msgspec.structs.replace(local, failures=failures)
        unit = TaskUnit(task.id, task.binding_uid, driver)
        unit.task, unit.observation = task, local
        self._units[task.binding_uid] = unit
        _log.info("task_adopted", task=task.id, run=task.run, pid=found.pid, ended=found.exit is not None)

    async def _bindings_listed(self, bindings: tuple[Binding, ...]) -> None:
        """Applies a complete list. A Binding that is missing from it was lost, or its task has ended."""
        first = not self._listed
        listed = {binding.uid: binding for binding in bindings}
        if first:
            await self._restore_readiness([b for b in bindings if b.uid in self._units])
        self._listed = True
        for unit in list(self._units.values()):
            if unit.uid not in listed:
                if unit.binding is not None and unit.observation.state is TaskState.RUNNING:
                    _log.error("binding_missing", task=unit.id, kept=True)
                unit.binding = None
                self._act(unit)
        for binding in bindings:
            self._update_unit(binding, deleted=False)
            self._report_again(self._units[binding.uid])
        self._refresh()

    def _report_again(self, unit: TaskUnit) -> None:
        """Repeats reports that the region has not stored: a refused report is not retried."""
        self._report_task(unit)
        if unit.acknowledged and unit.binding is not None and not unit.binding.status.acknowledged_at:
            unit.acknowledged = False
            self._act(unit)

    async def _restore_readiness(self, bindings: list[Binding]) -> None:
        """Restores readiness and last exit of adopted tasks from the region, so that an agent restart does not look
        like a task restart.
        """
        for binding in bindings:
            unit = self._units[binding.uid]
            unit.binding = binding
            try:
                replica = await self._client.get(Replica, binding.spec.replica, binding.metadata.namespace)
            except Fault:
                continue
            unit.restore_report(replica.status.execution if replica is not None else None)

    def _binding_changed(self, binding: Binding, *, deleted: bool) -> None:
        self._update_unit(binding, deleted=deleted)
        self._refresh()

    def _update_unit(self, binding: Binding, *, deleted: bool) -> None:
        unit = self._units.get(binding.uid)
        if unit is None:
            if deleted:
                return
            driver = self._drivers.get(binding.spec.template.driver)
            known = take_over(self._units, binding)
            unit = self._units[binding.uid] = known or TaskUnit(task_id(binding), binding.uid, driver)
            if self._spans is not None and known is None:
                self._spans.received(binding)
        unit.binding, unit.deletion_seen = None if deleted else binding, deleted
        self._convert_run_until(unit)
        if unit.observation.state is TaskState.RUNNING and unit.probes is None and not deleted:
            self._begin_probes(unit)
        self._act(unit)

    def _lease_changed(self) -> None:
        self._set_leases()
        for unit in list(self._units.values()):
            self._act(unit)
        self._refresh()

    def _set_leases(self) -> None:
        """Sets the deadlines of the watchdogs before anything is decided under the new lease."""
        lease = self._registration.lease
        until_mono_s = 0.0 if lease.fenced else lease.expires_mono_s
        for driver in self._drivers.values():
            try:
                driver.set_lease(lease.epoch, until_mono_s)
            except OSError as error:
                _log.warning("lease_deadline_write_failed", driver=driver.name, error=str(error))
        for unit in self._units.values():
            end_mono_s = self._tenure_end(unit)
            if end_mono_s is not None:
                self._set_run_until(unit, end_mono_s)

    def _tenure_end(self, unit: TaskUnit) -> float | None:
        """End of the tenure of exclusive work of scope Global; None for other tasks and before the first response."""
        if unit.binding is None or not needs_tenure(unit.binding.spec.exclusive):
            return None
        return (self._registration.lease.tenures or {}).get(unit.binding.uid)

    def _convert_run_until(self, unit: TaskUnit) -> None:
        """Converts `runUntil` (wall clock) to the monotonic clock when it is first observed."""
        text = unit.binding.spec.run_until if unit.binding is not None else ""
        if text == unit.run_until:
            return
        unit.run_until = text
        until_mono_s = run_until_mono_s(unit.binding, self._now()) if text and unit.binding is not None else None
        unit.set(run_until_mono_s=until_mono_s)
        self._set_run_until(unit, until_mono_s)

    def _set_run_until(self, unit: TaskUnit, until_mono_s: float | None) -> None:
        """Updates the watchdog's deadline. If that fails, the earlier deadline stays, and the supervisor still
        enforces the new one.
        """
        if unit.driver is None or unit.observation.state not in ACTIVE_STATES:
            return
        try:
            unit.driver.set_run_until(unit.id, until_mono_s)
        except OSError as error:
            _log.warning("task_deadline_write_failed", task=unit.id, error=str(error))

    async def _watch_exits(self, driver: Driver) -> None:
        while True:
            ended = await driver.next_exit()
            for unit in self._units.values():
                if unit.id == ended.task_id:
                    self._on_exit(unit, ended)
                    break

    def _on_exit(self, unit: TaskUnit, ended: TaskExit) -> None:
        if unit.observation.run != ended.run:
            return
        if unit.observation.state is TaskState.STARTING:
            unit.early_exit = ended.exit  # it ended before the driver's `start` returned
        elif unit.observation.state is TaskState.RUNNING:
            self._ended(unit, ended.exit, "")

    def _refresh(self) -> None:
        """Updates the node report."""
        now, lease = self._now(), self._registration.lease
        zombies = sum(is_zombie(unit.binding, unit.observation, lease, now) for unit in self._units.values())
        running = self.active_count()
        held = sum(unit.is_held for unit in self._units.values()) if self._listed else 0
        metrics.AGENT_TASKS.set(running)
        metrics.AGENT_HELD_TASKS.set(held)
        if running == 0:
            self._all_stopped.set()
        quarantine = self._start_failures.quarantine(now.mono_s)
        bound = [unit.binding for unit in self._units.values()]
        if bound != self._bound:
            self._bound, self._overcommitted = bound, overcommit_message(self._config.capacity, bound)
        self._node_report.update(
            listed=self._listed,
            zombies=zombies,
            held=held,
            running=running,
            traits=self._traits(),
            quarantine=quarantine,
            overcommitted=self._overcommitted,
        )

    # --- decisions and actions ---------------------------------------------------------------------------------

    def _act(self, unit: TaskUnit) -> None:
        if self._shutting_down:
            return
        now, lease = self._now(), self._registration.lease
        if self._listed and not unit.is_held:
            verdict = decide(unit.binding, unit.observation, lease, now)
        else:
            exclusive = unit.task is not None and unit.task.exclusive
            verdict = decide_without_binding(exclusive, unit.observation, lease, now)
        unit.schedule_recheck(verdict.recheck_in_s, self._act)
        match verdict.action:
            case StartTask(run=run):
                self._start(unit, run)
            case StopTask() as stop:
                self._stop(unit, stop)
            case Acknowledge() as action:
                self._acknowledge(unit, action)
            case ForgetTask():
                self._forget(unit)
            case None:
                pass

    def _call(self, unit: TaskUnit, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"agent:{unit.id}")
        self._calls[task] = None
        task.add_done_callback(lambda done: self._calls.pop(done, None))

    def _start(self, unit: TaskUnit, run: int) -> None:
        assert unit.binding is not None
        tenure_mono_s = self._tenure_end(unit)
        until_mono_s = unit.observation.run_until_mono_s if tenure_mono_s is None else tenure_mono_s
        unit.task = task_from_binding(unit.binding, run, self._config, until_mono_s=until_mono_s)
        unit.observation = to_starting(unit.observation, run, fetching=needs_fetch(unit.task.template))
        unit.early_exit = None
        self._report(unit)
        self._call(unit, self._do_start(unit))

    async def _do_start(self, unit: TaskUnit) -> None:
        task = unit.task
        assert task is not None
        began_mono_s = self._clock.monotonic()
        try:
            if unit.driver is None:
                missing = f"driver {task.template.driver}: not available on node {self._config.name}"
                raise StartFailed(Reason.DRIVER_MISSING, missing)
            if await unit.fetch(task, lambda: self._may_run(unit), self._report):
                self._report(unit)  # what follows is the start of the task itself
            async with self._starts:
                started = await unit.driver.start(task)
        except StartFailed as failure:
            self._record_start_failure(task, failure.reason, failure.message)
            exit_ = ExitStatus(reason=failure.reason, message=failure.message, at=times.micro_text(self._clock.now()))
            self._ended(unit, exit_, "")
            return
        except Exception as error:
            # The driver broke its contract and the task may be running, so it is stopped first.
            _log.exception("task_start_crashed", task=task.id, run=task.run)
            unit.set(state=TaskState.STOPPING, stop_by_mono_s=self._clock.monotonic())
            await unit.stop(0.0, self._ports)
            exit_ = ExitStatus(reason=Reason.START_ERROR, message=str(error), at=times.micro_text(self._clock.now()))
            self._ended(unit, exit_, "")
            return
        self._start_failures.record_success()
        metrics.AGENT_START.observe(self._clock.monotonic() - began_mono_s)
        _log.info("task_started", task=task.id, run=task.run, pid=started.pid, trace=unit.trace)
        unit.observation = to_running(
            unit.observation, pid=started.pid, started_at_s=started.started_at_s, now=self._now()
        )
        if unit.early_exit is not None:
            self._ended(unit, unit.early_exit, "")
            return
        self._begin_probes(unit)
        self._act(unit)

    def _may_run(self, unit: TaskUnit) -> bool:
        return desired_state(unit.binding, self._registration.lease, self._now(), unit.observation.run_until_mono_s).run

    def _record_start_failure(self, task: Task, reason: str, message: str) -> None:
        now = self._now()
        workload = f"{task.namespace}/{task.workload}"
        self._start_failures.record_failure(workload, reason, message, mono_s=now.mono_s, wall_s=now.wall_s)
        again_s = self._start_failures.recheck_in_s(now.mono_s)
        if again_s is not None:
            asyncio.get_running_loop().call_later(again_s, self._refresh)

    def _begin_probes(self, unit: TaskUnit) -> None:
        unit.start_probes(self._config.address, self._prober, self._clock, self._probe_changed)
        self._report(unit)

    def _probe_changed(self, unit: TaskUnit) -> None:
        self._report(unit)
        self._act(unit)

    def _stop(self, unit: TaskUnit, stop: StopTask) -> None:
        again = unit.observation.state is TaskState.STOPPING
        # A stop by a failed probe is overridden only by a request to stop permanently.
        unit.observation = to_stopping(unit.observation, stop, self._now())
        unit.stop_probes()
        if not again:
            _log.info("task_stopping", task=unit.id, reason=stop.reason, grace_s=stop.grace_s)
        self._report(unit)
        self._call(unit, self._do_stop(unit, stop.grace_s, unit.observation.run))

    async def _do_stop(self, unit: TaskUnit, grace_s: float, run: int) -> None:
        exit_ = await unit.stop(grace_s, self._ports)
        if unit.observation.state is TaskState.STOPPING and unit.observation.run == run:
            self._ended(unit, exit_, unit.observation.stop_reason)

    def _ended(self, unit: TaskUnit, exit_: ExitStatus, stop_reason: str) -> None:
        unit.stop_probes()
        if stop_reason in (Reason.STARTUP_FAILED, Reason.LIVENESS_FAILED):
            message = "; ".join(part for part in (unit.observation.probe_message, exit_.message) if part)
            exit_ = msgspec.structs.replace(exit_, reason=stop_reason, message=message)
        unit.observation = to_ended(unit.observation, exit_, stop_reason, self._now())
        metrics.AGENT_EXITS.labels(reason=exit_.reason).inc()
        unit.log_exit(exit_)
        self._report(unit)
        self._act(unit)
        self._refresh()

    def _acknowledge(self, unit: TaskUnit, action: Acknowledge) -> None:
        if unit.acknowledged or unit.binding is None:
            return
        unit.acknowledged = True
        self._report(unit)
        self._reports.put(acknowledgement(unit.binding, action, self._clock.now()))
        _log.info("task_acknowledged", task=unit.id, phase=action.phase, reason=action.exit.reason)

    def _forget(self, unit: TaskUnit) -> None:
        unit.cancel_timers()
        if self._units.pop(unit.uid, None) is None:
            return
        if unit.last_binding is not None:
            spec, meta = unit.last_binding.spec, unit.last_binding.metadata
            self._reports.forget("Binding", unit.last_binding.key, unit.uid)
            self._reports.forget("Replica", Key(meta.namespace, spec.replica), spec.intent.replica_uid)
        if unit.driver is not None and unit.task is not None:
            self._call(unit, unit.driver.forget(unit.id))

    def _report(self, unit: TaskUnit) -> None:
        if unit.binding is not None:
            self._report_task(unit)
            self._refresh()

    def _report_task(self, unit: TaskUnit) -> None:
        if unit.binding is None:
            return
        if self._spans is not None:
            self._spans.observed(unit.binding, unit.observation)
        block = execution_block(unit.binding, unit.observation, self._config)
        if block is not None:
            self._reports.put(execution_write(unit.binding, block), wait_s=max_delay_s(block))
