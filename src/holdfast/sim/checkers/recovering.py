"""Liveness: critical work of a region that is lost serves elsewhere in time.

Judged after a run from the histories of the regions that were not lost: there so many replicas must serve, when the
time is up, as the workload is promised. What the global cell says of it is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.lifecycle import Stage, stage
from holdfast.model.workload import Workload
from holdfast.sim.history import Event, History

WORKLOADS, REPLICAS = "/workloads/", "/replicas/"
Name = tuple[str, str]


def not_recovered(history: History, region: str, lost_s: float, within_s: float) -> Iterator[str]:
    """What did not come back in time, in words. A loss that took no critical work with it proves nothing, and is told
    too. Work that people changed or gave up meanwhile is not judged: its time begins anew."""
    by_s = lost_s + within_s
    events = history.matching(REPLICAS)
    before, after = _serving(events, lost_s), _serving(events, by_s)
    hit = 0
    for workload in _critical(history, lost_s, by_s):
        name = (workload.metadata.namespace, workload.metadata.name)
        taken = before.get((name, region), 0)
        hit += bool(taken)
        promised = min(workload.spec.replicas, workload.spec.recovery.min_serving) if workload.spec.recovery else 0
        found = max((count for (of, where), count in after.items() if of == name and where != region), default=0)
        if taken and found < promised:
            yield (
                f"{name[0]}/{name[1]} had {taken} replicas serving in {region} when that was lost; {within_s:g} s later"
                f" {found} served elsewhere, {promised} are promised"
            )
    if not hit:
        yield f"no critical work that stayed as it was served in {region} when that was lost"


def _critical(history: History, lost_s: float, by_s: float) -> Iterator[Workload]:
    """Critical workloads that were wanted at the loss, and just so until the time was up."""
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


def _serving(events: list[Event], at_s: float) -> dict[tuple[Name, str], int]:
    """How many replicas of each workload served in each region at a moment, by the regions' own records."""
    newest: dict[tuple[str, str], Event] = {}
    for event in events:
        if event.key.startswith(REPLICAS) and event.at_s <= at_s:
            newest[(event.cell, event.key)] = event
    counts: dict[tuple[Name, str], int] = {}
    for (cell, _), event in newest.items():
        if event.new is not None and stage(event.new) is Stage.SERVING:
            of = ((event.new.metadata.namespace, event.new.spec.workload), cell)
            counts[of] = counts.get(of, 0) + 1
    return counts
