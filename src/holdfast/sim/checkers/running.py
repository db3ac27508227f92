"""S7, at the machines: no two of them run the same exclusive replica at the same moment.

An identity is a workload and an ordinal, wherever the replica object that carries it came from. Every run is judged as
it begins, against what really runs anywhere at that instant.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.replica import Replica
from holdfast.model.workload import ExclusiveScope
from holdfast.sim.checkers import Changed, Commit, Found
from holdfast.sim.machine import Machine, Work

Identity = tuple[str, int]


class RunningChecker:
    def __init__(self) -> None:
        self._identities: dict[str, Identity] = {}
        """Of every exclusive replica there ever was, by uid."""
        self._bindings: dict[Identity, dict[tuple[str, str], None]] = {}
        """Live bindings of each ordinal, by cell and key."""
        self.distrusted: set[str] = set()
        """Machines and cells whose clocks ran beyond the bound; a machine is named after its region."""
        self._runs: dict[Identity, list[tuple[str, Work]]] = {}

    def learn(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            if change.kind.name == "Replica" and change.old is None:
                replica: Replica = change.new
                if replica.spec.exclusive is not None:
                    self._identities[replica.uid] = (replica.spec.workload_uid, replica.spec.ordinal)
            elif change.kind.name == "Binding":
                yield from self._bound(commit.cell, change)

    def _bound(self, cell: str, change: Changed) -> Iterator[Found]:
        """On record, too: an ordinal is bound in one region at a time, whether or not anything runs yet."""
        spec = change.item.spec
        identity = self._identities.get(spec.intent.replica_uid)
        if identity is None or spec.exclusive is None or spec.exclusive.scope is not ExclusiveScope.REGION:
            return  # of scope Global it may be bound elsewhere once its tenure is over, and stops by itself
        there = self._bindings.setdefault(identity, {})
        there.pop((cell, change.key), None)
        if change.new is None or change.new.spec.quota_released:
            return
        others = [(region, key) for region, key in there if region != cell]
        there[(cell, change.key)] = None
        if change.old is None and others:
            what = (
                f"{change.key} in {cell} is for ordinal {identity[1]}, which {others[0][0]} has bound as {others[0][1]}"
            )
            yield "S7", what, (change.key, others[0][1])

    def began(self, machine: Machine, work: Work) -> Iterator[Found]:
        identity = self._identities.get(work.task.replica_uid)
        if identity is None:
            return
        others = [(name, run) for name, run in self._runs.get(identity, ()) if run.exit is None]
        self._runs[identity] = [*others, (machine.name, work)]
        for name, run in others:
            if self.distrusted & {name, machine.name, _region(name), _region(machine.name)}:
                continue
            task = work.task
            what = (
                f"{task.namespace}/{task.replica} (ordinal {identity[1]}) begins on {machine.name} as {task.binding} "
                f"while {run.task.replica} runs on {name} as {run.task.binding} since {run.started_s:.3f} s"
            )
            about = tuple(
                f"/{kind}/{t.namespace}/{name}"
                for t in (task, run.task)
                for kind, name in (("replicas", t.replica), ("bindings", t.binding))
            )
            yield "S7", what, tuple(dict.fromkeys((*about, f"/nodes/{machine.name}", f"/nodes/{name}")))


def _region(machine: str) -> str:
    return machine.rpartition("-")[0]
