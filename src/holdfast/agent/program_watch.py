"""Follows the programs of a task whose main task starts after init tasks and sidecars.

Reads what the shim recorded, at a short interval: the shim does not know the agent. A new agent process that adopts the
task reads the same states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.agent.drivers.contract import Driver, TaskPrograms
from holdfast.foundation.ports import Clock
from holdfast.model.task_programs import ProgramKind, ProgramState, ProgramStatus

# Interval at which the agent reads the states of the programs of a task.
PROGRAMS_READ_EVERY_S = 0.25


class ProgramWatch:
    """`changed` gets every new state. `main_started` is called once, when the main task runs."""

    def __init__(
        self,
        task_id: str,
        driver: Driver,
        clock: Clock,
        *,
        changed: Callable[[TaskPrograms], None],
        main_started: Callable[[], None],
    ) -> None:
        self._task_id, self._driver, self._clock = task_id, driver, clock
        self._changed, self._main_started = changed, main_started
        self._last: TaskPrograms | None = None
        self._started = False
        self._loop = asyncio.create_task(self._run(), name=f"programs:{task_id}")

    def stop(self) -> None:
        self._loop.cancel()

    def last(self) -> TaskPrograms | None:
        """The states now, for a run that has ended."""
        return self._driver.programs(self._task_id) or self._last

    async def _run(self) -> None:
        while True:
            self._read()
            await self._clock.sleep(PROGRAMS_READ_EVERY_S)

    def _read(self) -> None:
        found = self._driver.programs(self._task_id)
        if found is None or found == self._last:
            return
        self._last = found
        self._changed(found)
        if found.main_runs and not self._started:
            self._started = True
            self._main_started()


def start_progress(programs: tuple[ProgramStatus, ...]) -> str:
    """What the start of the main task waits for, as a message for people; empty if it runs."""
    main = next((one for one in programs if one.kind is ProgramKind.MAIN), None)
    if main is None or main.state is not ProgramState.WAITING:
        return main.message if main is not None else ""
    init = [one for one in programs if one.kind is ProgramKind.INIT]
    for index, one in enumerate(init):
        if one.state is not ProgramState.ENDED:
            return f"init task {one.name} ({index + 1} of {len(init)}) is {one.state.value.lower()}"
    for one in programs:
        if one.kind is ProgramKind.SIDECAR and not one.ready:
            why = one.message or f"it is {one.state.value.lower()}"
            return f"sidecar {one.name} is not ready: {why}"
    return ""
