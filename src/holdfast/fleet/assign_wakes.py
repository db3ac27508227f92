"""Which changes wake the assign controller, and for which workloads. Pure.

A change that affects no decision wakes nobody: replicas report progress far more often than it matters here.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.fleet.spillover import waits_for_room
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.meta import Key
from holdfast.model.override import ACTIVE, AVOIDANCES, Override
from holdfast.model.priority_class import PriorityClass
from holdfast.model.region import Region
from holdfast.model.view import View
from holdfast.model.workload import RolloutPhase, Workload


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload)]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    if new is None:
        return ()
    if old is not None and new.metadata.generation == old.metadata.generation:
        same_scale = new.status.scale == old.status.scale and new.metadata.finalizers == old.metadata.finalizers
        same_scale &= new.status.summary.succeeded_indexes == old.status.summary.succeeded_indexes
        if same_scale and (_progress(new) == _progress(old) or _runs_everywhere(new, view)):
            return ()
    return (new.key,)


def _progress(workload: Workload) -> tuple[object, ...]:
    """The fields of the rollout status that select templates."""
    block = workload.status.rollout
    rolled = () if block is None else (block.revision, block.phase, block.regions)
    return (*rolled, workload.status.image)


def _runs_everywhere(workload: Workload, view: View) -> bool:
    """Whether every Assignment already has the revision of a rollout that is not rolling back."""
    block = workload.status.rollout
    if block is None or block.phase not in (RolloutPhase.PROGRESSING, RolloutPhase.COMPLETE):
        return False
    held = view.by(Assignment, "workload", str(workload.key))
    return bool(held) and all(a.spec.revision == block.revision for a in held)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    """Wakes the workload, except for replica progress that affects no decision and for assign's own new Assignments."""
    item = new or old
    if item is None:
        return ()
    if new is not None:
        if old is None and new.spec.purpose is Purpose.NORMAL and new.status == _NO_REPORT:
            return ()
        if old is not None and (
            _decision_inputs(new) == _decision_inputs(old) or _only_region_progressed(new, old, view)
        ):
            return ()
    return (Key(item.metadata.namespace, item.spec.workload),)


def _decision_inputs(assignment: Assignment) -> tuple[object, ...]:
    """The fields of an Assignment that a decision reads; the stages of its replicas are not among them."""
    meta, status = assignment.metadata, assignment.status
    reported = (
        status.observed_epoch,
        status.replicas,
        status.serving,
        status.evictions_blocked,
        bool(status.pending_evictions),
        status.awaiting_quota,
        waits_for_room(assignment),
    )
    return (assignment.spec, meta.deletion_timestamp, meta.finalizers, reported, status.ordinals)


def _only_region_progressed(new: Assignment, old: Assignment, view: View) -> bool:
    """Whether only the progress of the workload's single region changed, which affects no decision."""
    spec = new.spec
    if spec != old.spec or not spec.replicas or spec.exclusive is not None or new.metadata.terminating:
        return False
    if waits_for_room(new) or waits_for_room(old):
        return False
    workload: Workload | None = view.get(Workload, spec.workload, new.metadata.namespace)
    alone = len(view.by(Assignment, "workload", f"{new.metadata.namespace}/{spec.workload}")) == 1
    return alone and workload is not None and not workload.metadata.terminating


_NO_REPORT = AssignmentStatus()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """Wakes all workloads if the region's health or spec changes, but not on the reports every few seconds."""
    if new is not None and old is not None:
        same = new.spec == old.spec and new.status.health.state is old.status.health.state
        first_report = old.status.report is None and new.status.report is not None
        if same and not first_report and new.metadata.terminating == old.metadata.terminating:
            return ()
    return [w.key for w in view.list(Workload)]


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    """Wakes all workloads when an avoidance ends: pending replicas may use the region again."""
    if old is None or old.spec.kind not in AVOIDANCES or old.status.phase != ACTIVE:
        return ()
    if new is not None and new.status.phase == ACTIVE:
        return ()
    return [w.key for w in view.list(Workload)]


def woken_by_priority(new: PriorityClass | None, old: PriorityClass | None, view: View) -> Iterable[Key]:
    if new is not None and old is not None and new.spec == old.spec:
        return ()
    item = new or old
    return [w.key for w in view.list(Workload) if item is not None and w.spec.priority_class_name == item.metadata.name]
