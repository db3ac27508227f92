"""Liveness: critical workloads of a lost region serve `minServing` in another region in time.

Checked after a run on the histories of the other regions, not on the status in the global cell.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.lifecycle import Stage, stage
from holdfast.model.workload import Workload
from holdfast.sim.commit_history import CommitHistory, HistoryEvent

WORKLOADS, REPLICAS = "/workloads/", "/replicas/"
WorkloadName = tuple[str, str]


def missed_recoveries(history: CommitHistory, region: str, lost_s: float, within_s: float) -> Iterator[str]:
    """Workloads that did not recover in time, as text. A loss without critical work is also reported. Workloads that
    users changed or deleted meanwhile are not checked."""
    by_s = lost_s + within_s
    events = history.matching(REPLICAS)
    before, after = _serving(events, lost_s), _serving(events, by_s)
    hit = 0
    for workload in _critical(history, lost_s, by_s):
        name = (workload.metadata.namespace, workload.metadata.name)
        used = before.get((name, region), 0)
        hit += bool(used)
        promised = min(workload.spec.replicas, workload.spec.recovery.min_serving) if workload.spec.recovery else 0
        found = max((count for (of, where), count in after.items() if of == name and where != region), default=0)
        if used and found < promised:
            yield (
                f"{name[0]}/{name[1]}: not recovered {within_s:g} s after the loss of {region}, where {used} replicas "
                f"served (expected {promised} in another region, found {found})"
            )
    if not hit:
        yield f"no unchanged critical workload served in {region} when it was lost"


def _critical(history: CommitHistory, lost_s: float, by_s: float) -> Iterator[Workload]:
    """Critical workloads that existed at the loss and were not changed until the deadline."""
    newest: dict[str, Workload | None] = {}
    changed: set[str] = set()
    for event in history.matching(WORKLOADS):
        if not event.key.startswith(WORKLOADS) or event.cell != "global" or event.at_s > by_s:
            continue
        newest[event.key] = event.new
        if event.at_s > lost_s and (event.old is None or event.new is None or event.old.spec != event.new.spec):
            changed.add(event.key)
    for key, workload in sorted(newest.items()):
        if workload is not None and key not in changed and workload.spec.recovery is not None:
            yield workload


def _serving(events: list[HistoryEvent], at_s: float) -> dict[tuple[WorkloadName, str], int]:
    """Serving replicas by workload and region at a time, from the regions' histories."""
    newest: dict[tuple[str, str], HistoryEvent] = {}
    for event in events:
        if event.key.startswith(REPLICAS) and event.at_s <= at_s:
            newest[(event.cell, event.key)] = event
    counts: dict[tuple[WorkloadName, str], int] = {}
    for (cell, _), event in newest.items():
        if event.new is not None and stage(event.new) is Stage.SERVING:
            of = ((event.new.metadata.namespace, event.new.spec.workload), cell)
            counts[of] = counts.get(of, 0) + 1
    return counts
