"""S7 on the machines: no two machines run the same exclusive ordinal at the same time.

The identity is workload and ordinal. Every task run is checked at its start against all running tasks. The evidence is
checked too: when a fence, the end of a tenure, or the reassignment of an ordinal is committed, no such task may run.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.fleet.ordinals import TENURE_WAIT_S
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding
from holdfast.model.node import Node
from holdfast.model.replica import Replica
from holdfast.model.tenure import needs_tenure
from holdfast.model.workload import ExclusiveScope
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit
from holdfast.sim.machine import Machine, TaskRun

ExclusiveIdentity = tuple[str, int]


class SingleInstanceChecker:
    def __init__(self) -> None:
        self._identities: dict[str, ExclusiveIdentity] = {}
        """Identities of all exclusive replicas by uid."""
        self._bindings: dict[ExclusiveIdentity, dict[tuple[str, str], None]] = {}
        """Live bindings of each ordinal, by cell and key."""
        self.excluded_clocks: set[str] = set()
        """Machines and cells with clocks beyond the bound. A machine's name starts with its region."""
        self._runs: dict[ExclusiveIdentity, list[tuple[str, TaskRun]]] = {}
        self._machines: dict[str, Machine] = {}
        """Machines that ran a task, by name."""
        self._tokens: dict[ExclusiveIdentity, tuple[str, str]] = {}
        """Highest fencing token of each ordinal, and the uid of its Binding."""
        self._newest: dict[str, tuple[str, TaskRun]] = {}
        """Newest run and machine of each Binding by uid."""

    def observe(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            if change.kind.name == "Replica" and change.old is None:
                replica: Replica = change.new
                if replica.spec.exclusive is not None:
                    self._identities[replica.uid] = (replica.spec.workload_uid, replica.spec.ordinal)
            elif change.kind.name == "Binding":
                yield from self._bound(commit.cell, change)
                if change.new is None:
                    yield from self._check_deleted_binding(change, commit)
            elif change.new is None:
                continue
            elif change.kind.name == "Node":
                yield from self._fenced(change)
            elif change.kind.name == "Assignment" and commit.cell == "global":
                yield from self._check_binding(change)

    def _check_deleted_binding(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        """A Binding is deleted only after its task has ended, or when its Node was removed. A fence frees only the
        replica and its quota."""
        binding: Binding = change.old
        machine, work = self._newest.pop(binding.uid, ("", None))
        node: Node | None = commit.state.get(f"/nodes/{binding.spec.node}")
        if work is None or work.exit is not None or self.excluded_clocks & {machine, _region(machine)}:
            return
        if node is not None:
            what = f"{change.key} is deleted while its task runs on {machine} since {work.started_s:.3f} s"
            yield "S2", what, (change.key, f"/nodes/{machine}")

    def _still_runs(self, identity: ExclusiveIdentity) -> list[tuple[str, TaskRun]]:
        """Running tasks of an ordinal, on machines with clocks within the bound."""
        runs = self._runs.get(identity, ())
        return [(m, w) for m, w in runs if w.exit is None and not self.excluded_clocks & {m, _region(m), "global"}]

    def _fenced(self, change: ObservedChange) -> Iterator[Finding]:
        """When a fence is committed, no exclusive task of that epoch may run on the node."""
        node: Node = change.new
        before = change.old.status.fence.fenced_epoch if change.old is not None else 0
        now = node.status.fence.fenced_epoch
        if now <= before:
            return
        machine = self._machines.get(node.metadata.name)
        if machine is not None and not self.excluded_clocks & {machine.name, _region(machine.name)}:
            epoch, until_mono_s = machine.lease
            left_s = until_mono_s - machine.clock.monotonic()
            if 0 < epoch <= now and left_s > 0 and machine.powered:
                what = (
                    f"{change.key} is fenced up to epoch {now}, but by the node's own lease of epoch {epoch} exclusive "
                    f"tasks may run for {left_s:.3f} s more"
                )
                yield "S7", what, (change.key,)
        for identity in self._runs:
            for name, work in self._still_runs(identity):
                if name == node.metadata.name and work.task.node_epoch <= now:
                    what = (
                        f"{change.key} is fenced up to epoch {now}, while the exclusive task {work.task.binding} of "
                        f"epoch {work.task.node_epoch} still runs there"
                    )
                    yield "S7", what, (change.key, f"/bindings/{work.task.namespace}/{work.task.binding}")

    def _check_binding(self, change: ObservedChange) -> Iterator[Finding]:
        """An ordinal is assigned to a region only when it runs in no other. No tenure ends while it runs."""
        new: Assignment = change.new
        old: Assignment | None = change.old
        if new.spec.exclusive is None:
            return
        before = old.spec.ordinals if old is not None and old.uid == new.uid else ()
        region = new.spec.region
        for ordinal in (n for n in new.spec.ordinals if n not in before):
            for machine, work in self._still_runs((new.spec.workload_uid, ordinal)):
                if _region(machine) != region and region not in self.excluded_clocks:
                    what = f"{change.key} gets ordinal {ordinal} while {work.task.binding} runs on {machine}"
                    yield "S7", what, (change.key, f"/bindings/{work.task.namespace}/{work.task.binding}")
        if not _is_wait_over(new) or (old is not None and _is_wait_over(old)):
            return
        for identity in self._runs:
            if identity[0] != new.spec.workload_uid or identity[1] in new.spec.ordinals:
                continue
            for machine, work in self._still_runs(identity):
                if _region(machine) == region:
                    what = f"{change.key}: the tenure of ordinal {identity[1]} has ended while it runs on {machine}"
                    yield "S7", what, (change.key, f"/bindings/{work.task.namespace}/{work.task.binding}")

    def _bound(self, cell: str, change: ObservedChange) -> Iterator[Finding]:
        """An ordinal is bound in one region at a time, whether or not a task runs."""
        spec = change.item.spec
        identity = self._identities.get(spec.intent.replica_uid)
        if identity is None or spec.exclusive is None or spec.exclusive.scope is not ExclusiveScope.REGION:
            return  # scope Global: after its tenure it may be bound in another region; the old task stops by itself
        instances = self._bindings.setdefault(identity, {})
        instances.pop((cell, change.key), None)
        if change.new is None or change.new.spec.quota_released:
            return
        others = [(region, key) for region, key in instances if region != cell]
        instances[(cell, change.key)] = None
        if change.old is None and others:
            what = (
                f"{change.key} in {cell} is for ordinal {identity[1]}, which {others[0][0]} has bound as {others[0][1]}"
            )
            yield "S7", what, (change.key, others[0][1])

    def task_started(self, machine: Machine, work: TaskRun) -> Iterator[Finding]:
        self._machines[machine.name] = machine
        self._newest[work.task.binding_uid] = (machine.name, work)
        identity = self._identities.get(work.task.replica_uid)
        if identity is None:
            return
        yield from self._check_token(identity, machine.name, work)
        others = [(name, run) for name, run in self._runs.get(identity, ()) if run.exit is None]
        self._runs[identity] = [*others, (machine.name, work)]
        for name, run in others:
            if self.excluded_clocks & {name, machine.name, _region(name), _region(machine.name)}:
                continue
            task = work.task
            what = (
                f"{task.namespace}/{task.replica} (ordinal {identity[1]}) starts on {machine.name} as {task.binding} "
                f"while {run.task.replica} runs on {name} as {run.task.binding} since {run.started_s:.3f} s"
            )
            about = tuple(
                f"/{kind}/{t.namespace}/{name}"
                for t in (task, run.task)
                for kind, name in (("replicas", t.replica), ("bindings", t.binding))
            )
            yield "S7", what, tuple(dict.fromkeys((*about, f"/nodes/{machine.name}", f"/nodes/{name}")))

    def _check_token(self, identity: ExclusiveIdentity, machine: str, work: TaskRun) -> Iterator[Finding]:
        """Every placement of an ordinal has a higher fencing token than all before it. A restart keeps the token."""
        task = work.task
        token = task.env.get("HOLDFAST_FENCING_TOKEN", "")
        highest, binding_uid = self._tokens.get(identity, ("", ""))
        if token > highest:
            self._tokens[identity] = (token, task.binding_uid)
        elif self.excluded_clocks & {machine, _region(machine), "global"}:
            return
        elif token < highest or task.binding_uid != binding_uid:
            what = (
                f"{task.namespace}/{task.replica} (ordinal {identity[1]}) starts as {task.binding} with the fencing "
                f"token {token or 'none'}, which is not above {highest}"
            )
            yield "S7", what, (f"/bindings/{task.namespace}/{task.binding}",)


def _is_wait_over(assignment: Assignment) -> bool:
    """Whether the tenure wait of a withdrawal is over."""
    withdrawal = assignment.spec.withdrawal
    if not needs_tenure(assignment.spec.exclusive) or withdrawal is None:
        return False
    return withdrawal.elapsed_seconds >= TENURE_WAIT_S


def _region(machine: str) -> str:
    return machine.rpartition("-")[0]
