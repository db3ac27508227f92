"""The disruption budget over recorded histories: of one cell by its order, of several by times that need not agree."""

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
    """A history that is written by hand: one object per commit, each with its record in the audit log."""

    def __init__(self, name: str, *, budget: int = 1, replicas: int = 3, clock_s: float = 0.0) -> None:
        self.name = name
        self._clock_s = clock_s
        self._revisions = itertools.count(1)
        self._last: dict[str, StoredEntry] = {}
        self._commits: list[tuple[Change, ...]] = []
        self._audit: list[AuditRecord] = []
        mine = assignment(where=name, disruption=Disruption(max_unavailable=budget))
        self.write(0.0, mine, "link")
        self._replicas = [replica(number, mine, status=serving_status()) for number in range(replicas)]
        for each in self._replicas:
            self.write(1.0, each, "replicate")

    def write(self, at_s: float, item: Any, who: str) -> None:
        kind, meta = kind_of(item), item.metadata
        key = kind.store_key(meta.namespace, meta.name)
        revision, previous = next(self._revisions), self._last.get(key)
        entry = StoredEntry(key, codec.encode(item), revision, previous.created if previous is not None else revision)
        self._last[key] = entry
        self._commits.append((Change(key, revision, entry, previous),))
        before = previous.revision if previous is not None else 0
        wrote = Written("update" if before else "create", kind.name, meta.name, meta.namespace, meta.uid, before)
        when = micro_text(BEGAN_S + at_s + self._clock_s)
        self._audit.append(AuditRecord(when, f"holdfast:controller:{who}", "update", "Committed", entries=(wrote,)))

    def let_go(self, at_s: float, number: int, reason: Reason = Reason.DRAINED) -> None:
        block = ReleaseBlock(reason=reason, attempt=1)
        self.write(at_s, self._with(number, release=block), "release")

    def serves(self, at_s: float, number: int) -> None:
        self.write(at_s, self._replicas[number], "serve")

    def _with(self, number: int, **blocks: Any) -> Replica:
        one = self._replicas[number]
        return replace(one, status=replace(one.status, **blocks))

    def past(self) -> RecordedHistory:
        return RecordedHistory(self.name, (), tuple(self._commits), tuple(self._audit))


def broken(*regions: Region) -> list[str]:
    return [
        str(v) for v in check_histories([region.past() for region in regions]).violations if v.invariant == "budget"
    ]


def test_one_after_the_other_is_right() -> None:
    east = Region("us-east")
    east.let_go(10.0, 0)
    east.serves(20.0, 0)
    east.let_go(21.0, 1)
    assert broken(east) == []


def test_two_at_once_of_one_region_are_found_however_short_it_lasts() -> None:
    east = Region("us-east")
    east.let_go(10.0, 0)
    east.let_go(10.1, 1)
    east.serves(10.2, 0)
    (found,) = broken(east)
    assert "2 replicas of api are evicted at once (budget 1)" in found


def test_two_at_once_in_two_regions_are_found() -> None:
    east, west = Region("us-east"), Region("us-west")
    east.let_go(10.0, 0)
    west.let_go(15.0, 1)
    east.serves(30.0, 0)
    west.serves(40.0, 1)
    (found,) = broken(east, west)
    assert "api-us-east-0 in us-east" in found and "api-us-west-1 in us-west" in found


def test_what_is_never_back_is_found_too() -> None:
    east, west = Region("us-east"), Region("us-west")
    east.let_go(10.0, 0)
    west.let_go(15.0, 1)
    assert len(broken(east, west)) == 1


def test_clocks_that_differ_a_little_make_no_breach() -> None:
    """West lets go just after east's serves again; by its clock, which is slow, it was just before."""
    east, west = Region("us-east"), Region("us-west", clock_s=-CLOCK_SKEW_MAX_S * 0.9)
    east.let_go(10.0, 0)
    east.serves(20.0, 0)
    west.let_go(20.5, 1)
    west.serves(30.0, 1)
    assert broken(east, west) == []


@pytest.mark.parametrize("reason", [Reason.NODE_LOST, Reason.EXITED])
def test_accidents_count_nothing(reason: Reason) -> None:
    east = Region("us-east")
    east.let_go(10.0, 0, reason)
    east.let_go(10.5, 1, reason)
    assert broken(east) == []


def test_a_verdict_says_what_it_judged_and_what_it_could_not() -> None:
    east = Region("us-east")
    east.let_go(10.0, 0)
    east.let_go(11.0, 1)
    verdict = check_histories([east.past()])
    told = "\n".join(verdict.lines())
    assert verdict.objects == 4 and verdict.cells == ("us-east",)
    assert "checked: 1 cells (us-east), 4 objects" in told
    assert "budget violated at" in told and "(disruption)" in told
    assert "us-east: limits against grants, because the global cell's history is missing" in told
    compacted = replace(east.past(), first=(StoredEntry("/x", b"{}", 1, 1),))
    assert "the time before its compaction; 1 entries" in "\n".join(check_histories([compacted]).lines())
