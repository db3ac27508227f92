"""S7, at the machines: no two of them run the same exclusive replica at the same moment.

An identity is a workload and an ordinal, wherever the replica object that carries it came from. Every run is judged as
it begins, against what really runs anywhere at that instant.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.replica import Replica
from holdfast.sim.checkers import Commit, Found
from holdfast.sim.machine import Machine, Work

Identity = tuple[str, int]


class RunningChecker:
    def __init__(self) -> None:
        self._identities: dict[str, Identity] = {}
        """Of every exclusive replica there ever was, by uid."""
        self._runs: dict[Identity, list[tuple[str, Work]]] = {}

    def learn(self, commit: Commit) -> None:
        for change in commit.changed:
            if change.kind.name == "Replica" and change.old is None:
                replica: Replica = change.new
                if replica.spec.exclusive is not None:
                    self._identities[replica.uid] = (replica.spec.workload_uid, replica.spec.ordinal)

    def began(self, machine: Machine, work: Work) -> Iterator[Found]:
        identity = self._identities.get(work.task.replica_uid)
        if identity is None:
            return
        others = [(name, run) for name, run in self._runs.get(identity, ()) if run.exit is None]
        self._runs[identity] = [*others, (machine.name, work)]
        for name, run in others:
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
