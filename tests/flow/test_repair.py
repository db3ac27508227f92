"""Repair finds what stays too long, asks and never acts, and can be paused or made to ask for approval."""

from __future__ import annotations

import msgspec

from holdfast.flow.retreat import release, repair
from holdfast.model import limits
from holdfast.model.override import Override, OverrideKind, OverrideSpec, OverrideStatus
from holdfast.model.replica import PlacementBlock, ReplicaStatus
from holdfast.model.times import micro_text
from making import again, assignment, binding, meta, node, replica, view

NOW = 1_800_000_000.0


def bound(ordinal: int = 0, *, since_s: float = 100.0):
    placed = PlacementBlock(
        attempt=1, node="n1", zone="z", reservation=f"c{ordinal}.1", binding=f"c{ordinal}.1", epoch=1,
        bound_at=micro_text(NOW - since_s),
    )  # fmt: skip
    return replica(ordinal, status=ReplicaStatus(placement=placed))


def override(kind: OverrideKind) -> Override:
    status = OverrideStatus(phase="Active", expires_at=micro_text(NOW + 60))
    return Override(metadata=meta(kind.value.lower()), spec=OverrideSpec(kind=kind, reason="x"), status=status)


def after(item, *others):
    outcome = repair.decide(repair.ALL, view(item, *others), NOW)
    for write in outcome.writes:
        if write.key != item.key:
            continue
        item = again(item, status=msgspec.structs.replace(item.status, repair=write.blocks["repair"]))
    return item, outcome


def test_nothing_before_the_deadline():
    _, outcome = after(bound(since_s=10))
    assert outcome.writes == ()


def test_work_that_its_agent_never_started_is_asked_to_move_and_release_does_it():
    item, outcome = after(bound())
    assert item.status.repair.state == "Asked" and outcome.notices
    again_, second = after(item)
    assert second.writes == () and again_ is item  # doing it again finds the same
    everything = view(item, binding(item), node(), assignment())
    (write,) = release.decide(item.key, everything, NOW).writes
    assert write.blocks["release"].reason == "Repaired" and write.blocks["release"].requested_by == "repair"


def test_a_pause_stops_it_and_says_so():
    item, _ = after(bound(), override(OverrideKind.PAUSE_REPAIR))
    assert item.status.repair.state == "Paused" and repair.asked(item) == ""


def test_many_at_once_need_an_approval():
    done = [after(bound(n))[0] for n in range(1, limits.REPAIRS_PER_MINUTE + 1)]
    item, _ = after(bound(), *done)
    assert item.status.repair.state == "AwaitingApproval"
    item, _ = after(item, *done, override(OverrideKind.APPROVE_REPAIR))
    assert item.status.repair.state == "Asked"


def test_a_stuck_finalizer_is_told_with_its_owner():
    item = replica(terminating=True)
    late = msgspec.structs.replace(item.metadata, deletion_timestamp=micro_text(NOW - 700))
    item, _ = after(again(item, metadata=late))
    assert "of release" in item.status.repair.message and item.status.repair.state == "Told"
