"""S7, at the machines: no two of them run the same exclusive replica at the same moment.

An identity is a workload and an ordinal, wherever the replica object that carries it came from. Every run is judged as
it begins, against what really runs anywhere at that instant. What the promise rests on is judged as well, at the moment
it goes on record: a fence, the end of a tenure, or an ordinal given to another region says that nothing of it runs any
more, and then nothing may.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model import limits
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.node import Node
from holdfast.model.replica import Replica
from holdfast.model.tenure import needs_tenure
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
        self._machines: dict[str, Machine] = {}
        """Those that ever ran anything, by name."""
        self._newest: dict[str, tuple[str, Work]] = {}
        """The newest run of each binding, exclusive or not, by its uid; with the machine."""

    def learn(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            if change.kind.name == "Replica" and change.old is None:
                replica: Replica = change.new
                if replica.spec.exclusive is not None:
                    self._identities[replica.uid] = (replica.spec.workload_uid, replica.spec.ordinal)
            elif change.kind.name == "Binding":
                yield from self._bound(commit.cell, change)
                if change.new is None:
                    yield from self._freed(change, commit)
            elif change.new is None:
                continue
            elif change.kind.name == "Node":
                yield from self._fenced(change)
            elif change.kind.name == "Assignment" and commit.cell == "global":
                yield from self._given(change)

    def _freed(self, change: Changed, commit: Commit) -> Iterator[Found]:
        """A place is given away only when its work has ended; where the node was fenced, that is the proof."""
        binding: Binding = change.old
        machine, work = self._newest.pop(binding.uid, ("", None))
        node: Node | None = commit.state.get(f"/nodes/{binding.spec.node}")
        if work is None or work.exit is not None or self.distrusted & {machine, _region(machine)}:
            return
        if node is not None and node.status.fence.fenced_epoch < binding.spec.node_epoch:
            what = f"{change.key} is gone while its work runs on {machine} since {work.started_s:.3f} s"
            yield "S2", what, (change.key, f"/nodes/{machine}")

    def _still_runs(self, identity: Identity) -> list[tuple[str, Work]]:
        """Where an ordinal runs at this instant, on machines whose clocks can be trusted."""
        runs = self._runs.get(identity, ())
        return [(m, w) for m, w in runs if w.exit is None and not self.distrusted & {m, _region(m), "global"}]

    def _fenced(self, change: Changed) -> Iterator[Found]:
        """A fence is the proof that nothing exclusive of that epoch runs on the node any more."""
        node: Node = change.new
        before = change.old.status.fence.fenced_epoch if change.old is not None else 0
        now = node.status.fence.fenced_epoch
        if now <= before:
            return
        machine = self._machines.get(node.metadata.name)
        if machine is not None and not self.distrusted & {machine.name, _region(machine.name)}:
            epoch, until_mono_s = machine.lease
            left_s = until_mono_s - machine.clock.monotonic()
            if 0 < epoch <= now and left_s > 0 and machine.powered:
                what = (
                    f"{change.key} is fenced up to epoch {now}, so all its exclusive work counts as over; by the lease "
                    f"that the node itself counts, of epoch {epoch}, such work may run for {left_s:.3f} s more"
                )
                yield "S7", what, (change.key,)
        for identity in self._runs:
            for name, work in self._still_runs(identity):
                if name == node.metadata.name and work.task.node_epoch <= now:
                    what = (
                        f"{change.key} is fenced up to epoch {now}, so all its exclusive work counts as over, while "
                        f"{work.task.binding} of epoch {work.task.node_epoch} still runs there"
                    )
                    yield "S7", what, (change.key, f"/bindings/{work.task.namespace}/{work.task.binding}")

    def _given(self, change: Changed) -> Iterator[Found]:
        """An ordinal is given to a region only when it runs in no other; no tenure is over while it runs."""
        new: Assignment = change.new
        old: Assignment | None = change.old
        if new.spec.exclusive is None:
            return
        before = old.spec.ordinals if old is not None and old.uid == new.uid else ()
        region = new.spec.region
        for ordinal in (n for n in new.spec.ordinals if n not in before):
            for machine, work in self._still_runs((new.spec.workload_uid, ordinal)):
                if _region(machine) != region and region not in self.distrusted:
                    what = f"{change.key} gets ordinal {ordinal} while {work.task.binding} runs on {machine}"
                    yield "S7", what, (change.key, f"/bindings/{work.task.namespace}/{work.task.binding}")
        if not _waited(new) or (old is not None and _waited(old)):
            return
        for identity in self._runs:
            if identity[0] != new.spec.workload_uid or identity[1] in new.spec.ordinals:
                continue
            for machine, work in self._still_runs(identity):
                if _region(machine) == region:
                    what = f"{change.key}: the tenure of ordinal {identity[1]} counts as over, and it runs on {machine}"
                    yield "S7", what, (change.key, f"/bindings/{work.task.namespace}/{work.task.binding}")

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
        self._machines[machine.name] = machine
        self._newest[work.task.binding_uid] = (machine.name, work)
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


def _waited(assignment: Assignment) -> bool:
    """Whether what was taken from the region counts as ended, as a whole tenure has passed."""
    withdrawal = assignment.spec.withdrawal
    if not needs_tenure(assignment.spec.exclusive) or withdrawal is None:
        return False
    return withdrawal.waited_seconds >= limits.TENURE_WAIT_S


def _region(machine: str) -> str:
    return machine.rpartition("-")[0]
