"""Which deletions a region carries out. The absence of an object from the global cell is never an order. Pure.

The global cell deletes an Assignment only after the region has reported that no replica of it is left. So a copy that
still wants replicas, and whose original is missing, was replaced or is older, was not deleted: the global cell has lost
records. The region holds the copy and its work until the original returns or an Override of kind ConfirmDeletion is in
force. Then the copy is emptied first, and deleted when its last replica is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.lifecycle import final_phase
from holdfast.model.meta import Key
from holdfast.model.override import Override, is_deletion_confirmed
from holdfast.model.replica import Replica
from holdfast.model.tenant import Tenant
from holdfast.model.view import View
from holdfast.model.writes import Delete, Update, Write

# Window in which a region counts the workloads that it is ordered to remove.
MASS_DELETION_WINDOW_S = 600.0
# Removals in the window that never pause, whatever their share: small regions and single tenants are deleted by hand.
MASS_DELETION_WORKLOADS_MIN = 20
# Share of the region's workloads above which removals pause.
MASS_DELETION_FRACTION = 0.5

HELD_NAMES_MAX = 3
"""Held Assignments that a message names. The count covers the others."""


def removal_writes(copy: Assignment | Tenant, here: View, region: str, now: float) -> Iterable[Write]:
    """The writes for a copy of an Assignment or Tenant whose original the global cell does not have."""
    if isinstance(copy, Tenant):
        # The tenant of held work stays: without it the gate refuses every object of its namespace.
        held = bool(here.list(Assignment, copy.metadata.name) or here.list(Replica, copy.metadata.name))
        return () if held else (Delete("Tenant", copy.key, copy.uid),)
    if copy.spec.replicas:
        return (emptied(copy),) if is_outdated(copy) or is_confirmed(copy, here, region, now) else ()
    return () if has_live_replicas(copy.key, here) else (Delete("Assignment", copy.key, copy.uid),)


def emptied(copy: Assignment) -> Update:
    """The update that makes the region remove every replica of the Assignment. It ends a suspension, which would keep
    them: nobody is left to end it."""
    batch = copy.spec.batch
    spec = msgspec.structs.replace(
        copy.spec,
        replicas=0,
        ordinals=(),
        suspended=False,
        batch=msgspec.structs.replace(batch, completions=0, parallelism=0) if batch is not None else None,
        epoch=copy.spec.epoch + 1,
        reason="not in the global cell; an override confirms the deletion",
    )
    return Update(msgspec.structs.replace(copy, spec=spec))


def is_older(original: Assignment, copy: Assignment) -> bool:
    """Whether the global cell has an older state of the Assignment than it once had. Its generation never decreases."""
    return original.uid == copy.uid and original.metadata.generation < copy.metadata.generation


def is_outdated(copy: Assignment) -> bool:
    """Whether the copy comes from a backup of this region and the global cell has not updated it since. Then this
    region has lost records, not the global cell. Its work does not run: a restore of a region fences every node."""
    return copy.metadata.generation == 0


def removes_work(copy: AssignmentSpec, wanted: AssignmentSpec) -> bool:
    """Whether the change removes the workload from the region."""
    return bool(copy.replicas) and not wanted.replicas


def has_live_replicas(assignment: Key, here: View) -> bool:
    return any(final_phase(r) is None for r in here.by(Replica, "assignment", str(assignment)))


def is_confirmed(copy: Assignment, here: View, region: str, now: float) -> bool:
    """Whether an override in force confirms the deletion of this Assignment."""
    return is_deletion_confirmed(
        here.list(Override), region=region, tenant=copy.metadata.namespace, workload=copy.spec.workload, now=now
    )


def confirms_region(overrides: Iterable[Override], region: str) -> bool:
    """Whether one of the global cell's overrides, read just now, confirms the deletion of everything in the region.

    Its phase tells whether it is in force: the global cell ends it on its own clock, which this region may not know."""
    return is_deletion_confirmed(overrides, region=region, tenant="", workload="", now=0.0)


def held_assignments(there: View, here: View) -> list[Assignment]:
    """Copies that want replicas and that the global cell does not have, or has only in an older state."""
    held = []
    for copy in here.list(Assignment):
        original = there.get(Assignment, copy.metadata.name, copy.metadata.namespace)
        missing = original is None or original.uid != copy.uid or is_older(original, copy)
        if missing and copy.spec.replicas and not is_outdated(copy):
            held.append(copy)
    return held


def held_text(held: Sequence[Assignment]) -> str:
    names = [f"{copy.metadata.namespace}/{copy.spec.workload}" for copy in held[:HELD_NAMES_MAX]]
    return ", ".join(names) + (" …" if len(held) > HELD_NAMES_MAX else "")


class RemovalGuard:
    """Counts the workloads whose removal from this region was ordered, and pauses when too many go too fast.

    A region must be able to lose its last workloads by ordinary deletions, so both bounds must be exceeded. Paused, it
    removes nothing more until an override confirms it, or until no removal is ordered any more.
    """

    def __init__(self) -> None:
        self.paused = False
        self._removed: dict[str, float] = {}
        """uid of each Assignment whose removal was carried out → when, on the monotonic clock."""

    def allows(self, copy: Assignment, here: View, mono_s: float) -> bool:
        """Whether the removal may be carried out now. Without live replicas it stops nothing and does not count."""
        if copy.uid in self._removed or not has_live_replicas(copy.key, here):
            return True
        if self.paused:
            return False
        self._removed = {uid: at_s for uid, at_s in self._removed.items() if mono_s - at_s < MASS_DELETION_WINDOW_S}
        removed = len(self._removed) + 1
        working = sum(bool(other.spec.replicas) for other in here.list(Assignment)) + len(self._removed)
        if removed > MASS_DELETION_WORKLOADS_MIN and removed > MASS_DELETION_FRACTION * working:
            self.paused = True
            return False
        self._removed[copy.uid] = mono_s
        return True

    def resume(self) -> None:
        """Forgets the count: the removals were confirmed or taken back."""
        self.paused = False
        self._removed.clear()


def paused_removals(there: View, here: View) -> list[Assignment]:
    """Copies that want replicas although the global cell orders their removal."""
    found = []
    for copy in here.list(Assignment):
        original = there.get(Assignment, copy.metadata.name, copy.metadata.namespace)
        if original is not None and original.uid == copy.uid and removes_work(copy.spec, original.spec):
            found.append(copy)
    return found
