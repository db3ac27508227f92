"""The disruption budget in recorded histories: one cell by commit order, several cells by their skewed clocks."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from tests.factories import assignment, replica, serving_status

from holdfast.gate.audit import AuditEntry as Written
from holdfast.gate.audit import AuditRecord
from holdfast.model import codec
from holdfast.model.kinds import kind_of
from holdfast.model.reasons import Reason
from holdfast.model.replica import ReleaseBlock, Replica
from holdfast.model.times import micro_text
from holdfast.model.workload import Disruption
from holdfast.sim.recorded_disruption import CLOCK_SKEW_MAX_S
from holdfast.sim.recorded_history import RecordedHistory, check_histories
from holdfast.store.contract import Change, StoredEntry

replace = msgspec.structs.replace
BEGAN_S = 1_800_000_000.0


class Region:
    """A constructed history: one object per commit, each with its audit record."""

    def __init__(self, name: str, *, budget: int = 1, replicas: int = 3, clock_s: float = 0.0) -> None:
        self.name = name
        self._clock_s = clock_s
        self._revisions = itertools.count(1)
        self._last: dict[str, StoredEntry] = {}
        self._commits: list[tuple[Change, ...]] = []
        self._audit: list[AuditRecord] = []
        stored_assignment = assignment(where=name, disruption=Disruption(max_unavailable=budget))
        self.write(0.0, stored_assignment, "link")
        self._replicas = [replica(number, stored_assignment, status=serving_status()) for number in range(replicas)]
        for item in self._replicas:
            self.write(1.0, item, "replicate")

    def write(self, at_s: float, item: Any, controller: str) -> None:
        kind, meta = kind_of(item), item.metadata
        key = kind.store_key(meta.namespace, meta.name)
        revision, previous = next(self._revisions), self._last.get(key)
        entry = StoredEntry(key, codec.encode(item), revision, previous.created if previous is not None else revision)
        self._last[key] = entry
        self._commits.append((Change(key, revision, entry, previous),))
        before = previous.revision if previous is not None else 0
        wrote = Written("update" if before else "create", kind.name, meta.name, meta.namespace, meta.uid, before)
        when = micro_text(BEGAN_S + at_s + self._clock_s)
        self._audit.append(
            AuditRecord(when, f"holdfast:controller:{controller}", "update", "Committed", entries=(wrote,))
        )

    def evict(self, at_s: float, number: int, reason: Reason = Reason.DRAINED) -> None:
        block = ReleaseBlock(reason=reason, attempt=1)
        self.write(at_s, self._with(number, release=block), "release")

    def serves(self, at_s: float, number: int) -> None:
        self.write(at_s, self._replicas[number], "serve")

    def _with(self, number: int, **blocks: Any) -> Replica:
        stored = self._replicas[number]
        return replace(stored, status=replace(stored.status, **blocks))

    def history(self) -> RecordedHistory:
        return RecordedHistory(self.name, (), tuple(self._commits), tuple(self._audit))


def budget_violations(*regions: Region) -> list[str]:
    return [
        str(v) for v in check_histories([region.history() for region in regions]).violations if v.invariant == "budget"
    ]


def test_evictions_one_after_another_are_allowed() -> None:
    east = Region("us-east")
    east.evict(10.0, 0)
    east.serves(20.0, 0)
    east.evict(21.0, 1)
    assert budget_violations(east) == []


def test_short_overlap_of_evictions_in_one_region_is_found() -> None:
    east = Region("us-east")
    east.evict(10.0, 0)
    east.evict(10.1, 1)
    east.serves(10.2, 0)
    (found,) = budget_violations(east)
    assert "2 replicas of api are evicted at once (budget 1)" in found


def test_overlapping_evictions_in_two_regions_are_found() -> None:
    east, west = Region("us-east"), Region("us-west")
    east.evict(10.0, 0)
    west.evict(15.0, 1)
    east.serves(30.0, 0)
    west.serves(40.0, 1)
    (found,) = budget_violations(east, west)
    assert "api-us-east-0 in us-east" in found and "api-us-west-1 in us-west" in found


def test_evictions_without_return_are_found() -> None:
    east, west = Region("us-east"), Region("us-west")
    east.evict(10.0, 0)
    west.evict(15.0, 1)
    assert len(budget_violations(east, west)) == 1


def test_small_clock_skew_causes_no_violation() -> None:
    """West evicts just after east's replica serves again. By its slow clock it was just before."""
    east, west = Region("us-east"), Region("us-west", clock_s=-CLOCK_SKEW_MAX_S * 0.9)
    east.evict(10.0, 0)
    east.serves(20.0, 0)
    west.evict(20.5, 1)
    west.serves(30.0, 1)
    assert budget_violations(east, west) == []


@pytest.mark.parametrize("reason", [Reason.NODE_LOST, Reason.EXITED])
def test_failures_are_not_counted_as_evictions(reason: Reason) -> None:
    east = Region("us-east")
    east.evict(10.0, 0, reason)
    east.evict(10.5, 1, reason)
    assert budget_violations(east) == []


def test_verdict_lists_checked_and_unchecked_properties() -> None:
    east = Region("us-east")
    east.evict(10.0, 0)
    east.evict(11.0, 1)
    verdict = check_histories([east.history()])
    text = "\n".join(verdict.lines())
    assert verdict.objects == 4 and verdict.cells == ("us-east",)
    assert "checked: 1 cells (us-east), 4 objects" in text
    assert "budget violated at" in text and "(disruption)" in text
    assert "us-east: limits against grants, because the global cell's history is missing" in text
    compacted = replace(east.history(), first=(StoredEntry("/x", b"{}", 1, 1),))
    assert "the time before its compaction; 1 entries" in "\n".join(check_histories([compacted]).lines())
