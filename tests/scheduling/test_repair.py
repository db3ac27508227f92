"""Repair finds replicas past a stage deadline and requests release; overrides pause or approve it."""

from __future__ import annotations

import msgspec
import pytest
from tests.expected import only, present
from tests.factories import assignment, binding, cache_of, meta, node, replica, with_new_revision

from holdfast.model import input_freshness, limits
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import Object
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.replica import PlacementBlock, Replica, ReplicaStatus
from holdfast.model.times import micro_text
from holdfast.model.writes import Outcome, SetStatus
from holdfast.scheduling.eviction import release, repair
from holdfast.scheduling.eviction.repair import REPAIRS_PER_MINUTE

NOW = 1_800_000_000.0
DECIDE = repair.decider("us-east")


def bound(ordinal: int = 0, *, since_s: float = limits.STAGE_DEADLINE_S["Bound"] + 40.0) -> Replica:
    placed = PlacementBlock(
        attempt=1,
        node="n1",
        zone="z",
        reservation=f"c{ordinal}.1",
        binding=f"c{ordinal}.1",
        epoch=1,
        bound_at=micro_text(NOW - since_s),
    )
    return replica(ordinal, status=ReplicaStatus(placement=placed))


def override(kind: OverrideKind) -> Override:
    status = OverrideStatus(phase="Active", expires_at=micro_text(NOW + 60))
    return Override(metadata=meta(kind.value.lower()), spec=OverrideSpec(kind=kind, reason="x"), status=status)


def after(item: Replica, *others: Object) -> tuple[Replica, Outcome]:
    outcome = DECIDE(repair.SINGLE_KEY, cache_of(item, *others), NOW)
    for write in outcome.writes:
        assert isinstance(write, SetStatus)
        if write.key != item.key:
            continue
        item = with_new_revision(item, status=msgspec.structs.replace(item.status, repair=write.blocks["repair"]))
    return item, outcome


def test_repair_before_stage_deadline_does_nothing() -> None:
    _, outcome = after(bound(since_s=10))
    assert outcome.writes == ()


def test_repair_of_never_started_replica_requests_release() -> None:
    item, outcome = after(bound())
    assert present(item.status.repair).state == "ReleaseRequested" and outcome.notices
    again_, second = after(item)
    assert second.writes == () and again_ is item  # idempotent
    everything = cache_of(item, binding(item), node(), assignment())
    write = only(release.decide(item.key, everything, NOW).writes, SetStatus)
    assert write.blocks["release"].reason == "RescheduledByRepair" and write.blocks["release"].requested_by == "repair"


def test_repair_under_pause_override_is_paused() -> None:
    item, _ = after(bound(), override(OverrideKind.PAUSE_REPAIR))
    assert present(item.status.repair).state == "Paused" and repair.release_request(item) == ""


@pytest.mark.parametrize(
    ("scope", "paused"),
    [
        (OverrideScope(region="us-east"), True),
        (OverrideScope(region="eu-west"), False),
        (OverrideScope(region="us-east", tenant="acme", workload="api"), True),
        (OverrideScope(region="us-east", tenant="rival"), False),
        (OverrideScope(tenant="acme", workload="other"), False),
    ],
)
def test_pause_repair_override_applies_only_in_scope(scope: OverrideScope, paused: bool) -> None:
    made = override(OverrideKind.PAUSE_REPAIR)
    item, _ = after(bound(), with_new_revision(made, spec=msgspec.structs.replace(made.spec, scope=scope)))
    assert present(item.status.repair).state == ("Paused" if paused else "ReleaseRequested")


def test_repairs_beyond_rate_await_approval() -> None:
    done = [after(bound(n))[0] for n in range(1, REPAIRS_PER_MINUTE + 1)]
    item, _ = after(bound(), *done)
    assert present(item.status.repair).state == "AwaitingApproval"
    item, _ = after(item, *done, override(OverrideKind.APPROVE_REPAIR))
    assert present(item.status.repair).state == "ReleaseRequested"


def test_repair_reports_stuck_finalizer_with_owner() -> None:
    item = replica(terminating=True)
    late = msgspec.structs.replace(item.metadata, deletion_timestamp=micro_text(NOW - 700))
    item, _ = after(with_new_revision(item, metadata=late))
    assert "of release" in present(item.status.repair).message and present(item.status.repair).state == "Reported"


def test_repair_killed_mid_pass_requests_each_release_once() -> None:
    """Each write is its own commit, and the controller is killed after every possible one."""
    stuck = [bound(n) for n in range(REPAIRS_PER_MINUTE + 3)]
    for survives in range(len(stuck) + 1):
        items = {item.key: item for item in stuck}
        asks: dict[object, int] = {}
        for attempt in range(3):
            outcome = DECIDE(repair.SINGLE_KEY, cache_of(*items.values()), NOW)
            for number, write in enumerate(outcome.writes):
                if attempt == 0 and number >= survives:
                    break  # killed: the rest of the pass is lost
                assert isinstance(write, SetStatus)
                item = items[write.key]
                asks[write.key] = asks.get(write.key, 0) + (write.blocks["repair"].state == "ReleaseRequested")
                status = msgspec.structs.replace(item.status, repair=write.blocks["repair"])
                items[write.key] = with_new_revision(item, status=status)
        assert max(asks.values()) == 1, "no release is requested twice"
        assert sum(asks.values()) == REPAIRS_PER_MINUTE, "the rate limit survives the crash"
        states = sorted(present(item.status.repair).state for item in items.values())
        assert states == ["AwaitingApproval"] * 3 + ["ReleaseRequested"] * REPAIRS_PER_MINUTE
        assert DECIDE(repair.SINGLE_KEY, cache_of(*items.values()), NOW).writes == ()


def test_repair_approval_without_recent_contact_is_ignored() -> None:
    many = [after(bound(n))[0] for n in range(1, REPAIRS_PER_MINUTE + 1)]
    approved = override(OverrideKind.APPROVE_REPAIR)
    for silent_s, state in ((5.0, "ReleaseRequested"), (input_freshness.OVERRIDE.seconds + 1, "AwaitingApproval")):
        spec = GrantCopySpec(last_contact_at=micro_text(NOW - silent_s))
        item, _ = after(bound(0), *many, approved, GrantCopy(metadata=meta("normal", "acme"), spec=spec))
        assert present(item.status.repair).state == state
