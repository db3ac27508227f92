"""Decides `rollout` and `workload-status` of one workload together, so that a change of its regions is one write.

Both read the same objects and are woken by the same changes. All writes of an outcome to one object are one row.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.fleet import rollout, workload_status
from holdfast.model.assignment import Assignment
from holdfast.model.meta import Key
from holdfast.model.region import Region
from holdfast.model.view import View
from holdfast.model.workload import Workload
from holdfast.model.writes import Outcome


def decide(key: Key, view: View, now: float) -> Outcome:
    """The rollout step, the counts and the conditions of one workload."""
    rolled, counted = rollout.decide(key, view, now), workload_status.decide(key, view, now)
    waits_s = [wait for wait in (rolled.requeue_after_s, counted.requeue_after_s) if wait is not None]
    return Outcome(
        writes=(*rolled.writes, *counted.writes),
        notices=(*rolled.notices, *counted.notices),
        requeue_after_s=min(waits_s, default=None),
    )


def keys(view: View) -> Iterable[Key]:
    return workload_status.keys(view)


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    return workload_status.woken_by_workload(new, old, view) or rollout.woken_by_workload(new, old, view)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    return workload_status.woken_by_assignment(new, old, view)


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """`workload-status` is woken by a change of health or spec, of which a change of health wakes `rollout`."""
    return workload_status.woken_by_region(new, old, view)
