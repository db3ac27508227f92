"""batch-ttl: deletes a finished batch workload after its `ttlAfterFinishedSeconds`."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.meta import Key, find_condition
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.workload import Workload
from holdfast.model.writes import NO_CHANGES, Delete, Outcome


def decide(key: Key, view: View, now: float) -> Outcome:
    """Deletes the workload if its TTL has passed; otherwise waits for the rest of it."""
    workload: Workload | None = view.get(Workload, key.name, key.namespace)
    if workload is None or workload.metadata.terminating or workload.spec.batch is None:
        return NO_CHANGES
    ttl_s = workload.spec.batch.ttl_after_finished_seconds
    conditions = [find_condition(workload.status.conditions, name) for name in ("Complete", "Failed")]
    ended = next((c for c in conditions if c is not None and c.status == "True"), None)
    if ttl_s is None or ended is None or not ended.last_transition_time:
        return NO_CHANGES
    left_s = parse_time(ended.last_transition_time) + ttl_s - now
    if left_s > 0:
        return Outcome(requeue_after_s=left_s)
    return Outcome(writes=(Delete("Workload", workload.key, workload.uid),))


def keys(view: View) -> Iterable[Key]:
    return [w.key for w in view.list(Workload) if w.spec.batch is not None]


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    if new is None or new.spec.batch is None or new.spec.batch.ttl_after_finished_seconds is None:
        return ()
    return (new.key,)
