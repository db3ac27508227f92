"""S2 on the machines: a task starts only after every earlier user of its devices and ports has ended.

The stored claims may be right while a task of a released claim still holds a device.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.sim.checkers import Finding
from holdfast.sim.machine import Machine, TaskRun

WHOLE_DEVICE_MILLI = 1000


def conflicting_tasks(machine: Machine, work: TaskRun) -> Iterator[Finding]:
    """Devices and ports of the started task that other running tasks of the machine hold too."""
    others = [other for other in machine.running() if other is not work]
    for device in work.task.devices:
        holders = [other for other in others if any(held.id == device.id for held in other.task.devices)]
        held_milli = sum(held.milli for other in holders for held in other.task.devices if held.id == device.id)
        if held_milli + device.milli > WHOLE_DEVICE_MILLI:
            yield "S2", _message(work, f"device {device.id}", holders), _keys(work, holders)
    for protocol, port in _ports(work):
        holders = [other for other in others if (protocol, port) in _ports(other)]
        if holders:
            yield "S2", _message(work, f"port {port}", holders), _keys(work, holders)


def _ports(run: TaskRun) -> list[tuple[str, int]]:
    """(protocol, number) of the task's ports."""
    protocols = {port.name: port.protocol.value for port in run.task.template.ports}
    return [(protocols.get(name, "TCP"), port) for name, port in run.task.ports.items()]


def _message(work: TaskRun, what: str, holders: list[TaskRun]) -> str:
    names = " and ".join(other.task.binding for other in holders)
    return f"task {work.task.binding} starts with {what}, which {names} still holds"


def _keys(work: TaskRun, holders: list[TaskRun]) -> tuple[str, ...]:
    return tuple(f"/bindings/{run.task.namespace}/{run.task.binding}" for run in (work, *holders))
