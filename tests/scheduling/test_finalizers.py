"""Stuck finalizers are reported for every kind, with owner, deadline and last heartbeat; none is removed."""

from __future__ import annotations

import pytest
from tests.factories import cache_of, meta, region, replica, tenant, with_new_revision, workload

from holdfast.model import limits
from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.meta import Object
from holdfast.model.ownership import FINALIZERS
from holdfast.model.times import micro_text, seconds_text
from holdfast.scheduling.eviction import stuck_finalizers
from holdfast.scheduling.eviction.stuck_finalizers import UNKNOWN_FINALIZER_DEADLINE_S

NOW = 1_800_000_000.0


def terminating(item: Object, *names: str, for_s: float) -> Object:
    deletion_fields = {"finalizers": names, "deletion_timestamp": seconds_text(NOW - for_s)}
    return with_new_revision(item, metadata=meta(item.metadata.name, item.metadata.namespace, **deletion_fields))


def lease(ago_s: float) -> Lease:
    spec = LeaseSpec(holder_identity="cell-1", renew_time=micro_text(NOW - ago_s))
    return Lease(metadata=meta("controllers", stuck_finalizers.LEASE_NAMESPACE), spec=spec)


@pytest.mark.parametrize("name", sorted(FINALIZERS))
def test_known_finalizer_past_deadline_is_stuck_with_owner(name: str) -> None:
    owner, deadline_s = FINALIZERS[name]
    assert owner and deadline_s > 0
    early = terminating(workload(), name, for_s=deadline_s - 5)
    assert stuck_finalizers.stuck_finalizers([early], [lease(1)], NOW) == []
    late = terminating(workload(), name, for_s=deadline_s + 5)
    (found,) = stuck_finalizers.stuck_finalizers([late], [lease(1)], NOW)
    assert (found.finalizer, found.owner, found.deadline_seconds) == (name, owner, deadline_s)
    assert found.heartbeat and found.leader == "cell-1"


@pytest.mark.parametrize(
    ("cell", "item"),
    [("global", workload()), ("global", tenant()), ("global", region("east")), ("eu-west", replica(0))],
)
def test_stuck_finalizer_of_any_kind_emits_stable_event_with_owner(cell: str, item: Object) -> None:
    late = terminating(item, "holdfast.dev/release", for_s=5000)
    decide = stuck_finalizers.decider(cell)
    outcome = decide(stuck_finalizers.SINGLE_KEY, cache_of(late, lease(1)), NOW)
    assert outcome.writes == () and len(outcome.notices) == 1
    assert outcome.notices[0].warning and "its owner release is running on cell-1" in outcome.notices[0].message
    later = decide(stuck_finalizers.SINGLE_KEY, cache_of(late, lease(3)), NOW + 2)
    assert later.notices[0].message == outcome.notices[0].message, "an unchanged message aggregates into one event"
    silent = decide(stuck_finalizers.SINGLE_KEY, cache_of(late, lease(limits.LEADER_TTL_S + 60)), NOW)
    assert "its owner release is out of contact" in silent.notices[0].message


def test_foreign_finalizer_past_deadline_has_unknown_owner() -> None:
    item = terminating(workload(), "example.com/hook", for_s=UNKNOWN_FINALIZER_DEADLINE_S + 1)
    (found,) = stuck_finalizers.stuck_finalizers([item], [lease(1)], NOW)
    assert (
        found.owner == stuck_finalizers.UNKNOWN_OWNER
        and "the component that added it must" in stuck_finalizers.stuck_message(found, NOW)
    )


def test_object_not_being_deleted_is_not_stuck() -> None:
    assert stuck_finalizers.stuck_finalizers([workload()], [lease(1)], NOW) == []
    assert stuck_finalizers.decider("global")(stuck_finalizers.SINGLE_KEY, cache_of(workload()), NOW).notices == ()
