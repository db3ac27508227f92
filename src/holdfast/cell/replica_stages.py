"""Metrics of a region's replicas: how many are in each stage or under repair, and how long each step took.

The step times are read from the replica when it first serves in an attempt, so none is counted twice. Replicas that
begin to serve while no process of the cell runs are not counted. Clocks of nodes and cells may differ; a negative time
counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.controllers.cache import CacheChange
from holdfast.controllers.informer import Informers
from holdfast.foundation import metrics
from holdfast.foundation.ports import Clock
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.replica import Replica
from holdfast.model.times import parse_time

STEPS = ("scheduling", "binding", "startup", "readiness", "serving")


def step_times(replica: Replica) -> dict[str, float]:
    """Seconds of each step up to serving, in order. A step whose begin or end is not recorded is left out."""
    placed, ran, traffic = replica.status.placement, replica.status.execution, replica.status.traffic
    if ran is None or traffic is None:
        return {}
    queued = replica.metadata.creation_timestamp if placed.attempt == 1 else ""  # later attempts: not recorded
    reserved = placed.reserved_at or placed.bound_at
    started = ran.started_at
    periods = (
        (queued, reserved),
        (reserved, placed.bound_at),
        (placed.bound_at if ran.restarts == 0 else "", started),
        (started, ran.ready_since),
        (ran.ready_since, traffic.since),
    )
    return {
        name: max(0.0, parse_time(end) - parse_time(begin))
        for name, (begin, end) in zip(STEPS, periods, strict=True)
        if begin and end
    }


class ReplicaStages:
    """Keeps the metrics up to date with the changes of the region's replicas."""

    def __init__(self, informers: Informers, clock: Clock) -> None:
        self._clock = clock
        self._queued_since: dict[str, str] = {}
        """Replica uid → time, of the replicas that wait for a node."""
        for step in STEPS:
            # A series must exist before its first value: Prometheus sees no increase in one that begins with it.
            metrics.REGION_STEP.labels(step)
        for one in Stage:
            metrics.REGION_REPLICAS.labels(one.value)
        informers.of(Replica).on_change(self._on_replicas)
        metrics.REGION_QUEUE_AGE.set_function(self._queue_age_s)

    def _queue_age_s(self) -> float:
        """Read when Prometheus asks. Times of one format sort as texts."""
        oldest = min(self._queued_since.values(), default="")
        return max(0.0, self._clock.now() - parse_time(oldest)) if oldest else 0.0

    def _on_replicas(self, changes: Sequence[CacheChange[Replica]]) -> None:
        for new, old in changes:
            now_in = stage(new) if new is not None else None
            was_in = stage(old) if old is not None else None
            if now_in is not was_in:
                if was_in is not None:
                    metrics.REGION_REPLICAS.labels(was_in.value).dec()
                if now_in is not None:
                    metrics.REGION_REPLICAS.labels(now_in.value).inc()
            if new is not None and now_in is Stage.QUEUED:
                self._queued_since[new.uid] = new.status.placement.released_at or new.metadata.creation_timestamp
            elif (item := new if new is not None else old) is not None:
                self._queued_since.pop(item.uid, None)
            _count_repair(new, 1)
            _count_repair(old, -1)
            if new is not None and old is not None and now_in is Stage.SERVING and _serves_first(new, old):
                for step, seconds in step_times(new).items():
                    metrics.REGION_STEP.labels(step).observe(seconds)


def _count_repair(replica: Replica | None, change: int) -> None:
    if replica is None or (repair := replica.status.repair) is None or not repair.state:
        return
    if repair.attempt == replica.status.placement.attempt:
        metrics.REGION_REPAIRS.labels(repair.state).inc(change)


def _serves_first(new: Replica, old: Replica) -> bool:
    """Whether the replica did not serve before in this attempt."""
    before = old.status.traffic
    return before is None or before.attempt != new.status.placement.attempt
