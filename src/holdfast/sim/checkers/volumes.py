"""Persistent volumes: one node per volume, one user at a time, no task without its data, no overcommitted space.

- A Volume never changes its node, and the volumes of a node fit its `storage` when one is created.
- A Binding of a replica with claims names a Volume of each claim, of its tenant and on its node, and no other Binding
  uses it.
- A Volume is deleted only while its region has the order of the claim that it was made for.
- A task runs only on the machine that has the data of its volumes, and two running tasks never use one volume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import Binding
from holdfast.model.node import Node
from holdfast.model.volume import Volume
from holdfast.sim.checkers import Finding, ObservedCommit
from holdfast.sim.machine import Machine, TaskRun

_MIB = 1024 * 1024
_UNITS = {"Ki": 1024, "Mi": _MIB, "Gi": 1024 * _MIB}


class VolumesChecker:
    """Checker of all cells and machines together. `people_delete`: an operator may delete a Volume, as the runbook of a
    lost node says. People of the simulation delete claims and tenants, never a Volume."""

    def __init__(self, *, people_delete: bool = False) -> None:
        self._people_delete = people_delete
        self._nodes: dict[str, str] = {}
        """Node of each volume, by uid."""
        self._running: dict[str, tuple[Machine, TaskRun]] = {}
        """The newest run with each volume, by uid."""
        self._written: dict[str, str] = {}
        """Machine on which each volume first had data, by uid."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            if isinstance(change.new, Volume):
                volume = change.new
                was_on = self._nodes.setdefault(volume.uid, volume.spec.node)
                if was_on != volume.spec.node:
                    yield "volumes", f"{change.key} moved from {was_on} to {volume.spec.node}", (change.key,)
                begins = volume.metadata.deletion_timestamp and not _is_terminating(change.old)
                if begins and not self._people_delete:
                    yield from _check_order(volume, change.key, commit.state)
                if change.old is None:
                    yield from _overcommitted(volume, change.key, commit.state)
            elif isinstance(change.new, Binding) and change.old is None and change.new.spec.desired.value == "Run":
                yield from _check_binding(change.new, change.key, commit.state)

    def task_started(self, machine: Machine, work: TaskRun) -> Iterator[Finding]:
        task = work.task
        claims = [volume.claim.name for volume in task.template.volumes if volume.claim is not None]
        bound = {volume.claim: volume for volume in task.volumes}
        about = (f"/bindings/{task.namespace}/{task.binding}",)
        for claim in claims:
            volume = bound.get(claim)
            if volume is None:
                yield "volumes", f"task {task.id} runs on {machine.name} without a volume of claim {claim}", about
                continue
            first = self._written.setdefault(volume.uid, machine.name)
            if first != machine.name:
                what = f"task {task.id} uses volume {volume.name} on {machine.name}, and its data is on {first}"
                yield "volumes", what, about
            other = self._running.get(volume.uid)
            if other is not None and other[1].exit is None and other[1].task.id != task.id:
                what = f"task {task.id} uses volume {volume.name} while {other[1].task.id} runs with it"
                yield "volumes", what, about
            self._running[volume.uid] = (machine, work)


def _check_binding(binding: Binding, key: str, state: dict[str, Any]) -> Iterator[Finding]:
    spec, namespace = binding.spec, binding.metadata.namespace
    named = {volume.claim: volume for volume in spec.volumes}
    for wanted in (volume.claim for volume in spec.template.volumes if volume.claim is not None):
        found = named.get(wanted.name)
        if found is None:
            yield "volumes", f"{key} has no volume of claim {wanted.name}", (key,)
            continue
        volume = state.get(f"/volumes/{namespace}/{found.name}")
        if volume is None or volume.uid != found.uid:
            yield "volumes", f"{key} uses volume {found.name}, which does not exist", (key,)
        elif volume.spec.node != spec.node:
            yield "volumes", f"{key} is on {spec.node}, and its volume on {volume.spec.node}", (key,)
        elif volume.metadata.deletion_timestamp:
            yield "volumes", f"{key} uses volume {found.name}, which is being deleted", (key,)
        for other_key, other in state.items():
            if other_key == key or not isinstance(other, Binding):
                continue
            if any(used.uid == found.uid for used in other.spec.volumes):
                yield "volumes", f"{key} and {other_key} use volume {found.name}", (key, other_key)


def _is_terminating(volume: Any) -> bool:
    return isinstance(volume, Volume) and bool(volume.metadata.deletion_timestamp)


def _check_order(volume: Volume, key: str, state: dict[str, Any]) -> Iterator[Finding]:
    claim = state.get(f"/volumeclaims/{volume.metadata.namespace}/{volume.spec.claim}")
    ordered = claim is not None and claim.uid == volume.spec.claim_uid and claim.status.data_deletion is not None
    if not ordered:
        yield "volumes", f"{key} is deleted without an order of its claim", (key,)


def _overcommitted(volume: Volume, key: str, state: dict[str, Any]) -> Iterator[Finding]:
    node = state.get(f"/nodes/{volume.spec.node}")
    if not isinstance(node, Node):
        return
    held = [v for v in state.values() if isinstance(v, Volume) and v.spec.node == volume.spec.node]
    used, capacity = sum(_bytes(v.spec.size) for v in held), _bytes(node.spec.capacity.get("storage", "0Mi"))
    if used > capacity:
        what = f"{key}: the volumes of node {volume.spec.node} need {used} bytes, and it has {capacity}"
        yield "volumes", what, (key,)


def _bytes(amount: object) -> int:
    text = str(amount)
    return int(text[:-2]) * _UNITS[text[-2:]] if text[-2:] in _UNITS else int(text)
