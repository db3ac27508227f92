"""VolumeClaims above regions: terms in Assignments, deletion that waits, and work that stays with its data."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.factories import TEMPLATE, assignment, cache_of, meta, priority, region, tenant, workload

from holdfast.fleet import assign, volume_claims
from holdfast.fleet.grant_demand import quota_demand, rollout_surge_demand
from holdfast.fleet.reassign import reassign_after_s
from holdfast.fleet.recovery.backing import unbacked_objectives
from holdfast.fleet.recovery.need import VOLUMES_WAIT, critical_workload, target_refusal_reason
from holdfast.fleet.spillover import _must_stay_together
from holdfast.fleet.workload_status import _unassigned_reason
from holdfast.model.assignment import Assignment, AssignmentStatus, Purpose
from holdfast.model.ownership import VOLUME_CLAIM_FINALIZER
from holdfast.model.quantity import STORAGE
from holdfast.model.reasons import Reason
from holdfast.model.region import Region, RegionReport
from holdfast.model.template import Template, template_claims
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.volume import (
    DataDeletion,
    OnRegionLoss,
    ReclaimPolicy,
    VolumeClaim,
    VolumeClaimSpec,
    VolumeClaimStatus,
)
from holdfast.model.workload import RecoveryObjective, Workload
from holdfast.model.writes import Create, SetStatus, Update


def claim(*, deleted: bool = False, **spec: Any) -> VolumeClaim:
    more = {"deletion_timestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    made = meta("orders", "acme", finalizers=(VOLUME_CLAIM_FINALIZER,), **more)
    return VolumeClaim(made, VolumeClaimSpec(**{"size": "1Gi", **spec}))


def stateful(size: str = "", lost: OnRegionLoss = OnRegionLoss.WAIT) -> Template:
    named = ClaimVolume("orders", size, on_region_loss=lost)
    return msgspec.structs.replace(TEMPLATE, volumes=(TemplateVolume(name="d", mount_path="/d", claim=named),))


def assigned(*items: Any) -> list[Assignment]:
    service = workload(template=stateful(), replicas=2)
    outcome = assign.decide(service.key, cache_of(service, tenant(), priority(), region("us-east"), *items), 0.0)
    return [w.object for w in outcome.writes if isinstance(w, Create) and isinstance(w.object, Assignment)]


def test_assignment_has_the_terms_of_the_claim() -> None:
    (made,) = assigned(claim(on_region_loss=OnRegionLoss.START_EMPTY))
    (terms,) = template_claims(made.spec.template)
    assert (terms.size, terms.on_region_loss) == ("1Gi", OnRegionLoss.START_EMPTY)


def test_workload_without_its_claim_gets_no_region_and_the_status_says_why() -> None:
    assert assigned() == []
    service = workload(template=stateful())
    reason, message = _unassigned_reason(service, cache_of(service, region("us-east")))
    assert reason is Reason.VOLUME_CLAIM_NOT_FOUND and "orders" in message


def test_new_claim_wakes_the_workloads_that_wait_for_it() -> None:
    service = workload(template=stateful())
    view = cache_of(service, workload("other"))
    assert list(volume_claims.workloads_woken_by_claim(claim(), None, view)) == [service.key]


def test_claim_in_use_is_kept_and_names_its_users() -> None:
    item = claim(deleted=True)
    users = (workload(template=stateful()), assignment("old", template=stateful("1Gi")))
    for user in users:
        outcome = volume_claims.decide(item.key, cache_of(item, user), 0.0)
        (write,) = outcome.writes
        assert isinstance(write, SetStatus)
        (condition,) = write.conditions
        assert (condition.status, condition.reason) == ("True", Reason.VOLUME_CLAIM_IN_USE)
        assert ("api" if isinstance(user, Workload) else "old") in condition.message


def reporting(name: str, *uids: str) -> Region:
    found = region(name)
    report = RegionReport(claims_without_data=uids)
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, report=report))


def test_deleted_claim_orders_the_deletion_of_its_data_and_waits_for_every_region() -> None:
    item = claim(deleted=True, reclaim_policy=ReclaimPolicy.DELETE)
    unheard = (reporting("us-east", "of another"), region("eu-west"))
    (order,) = volume_claims.decide(item.key, cache_of(item, *unheard), 5.0).writes
    assert isinstance(order, SetStatus) and isinstance(order.blocks["dataDeletion"], DataDeletion)
    waits = order.conditions[-1]
    assert (waits.type, waits.reason) == ("DataDeleted", Reason.VOLUME_CLAIM_DATA_REMAINS)
    assert "eu-west, us-east" in waits.message
    ordered = msgspec.structs.replace(
        item, status=VolumeClaimStatus(conditions=order.conditions, data_deletion=order.blocks["dataDeletion"])
    )
    assert not volume_claims.decide(item.key, cache_of(ordered, *unheard), 6.0).writes, "ordered once"
    heard = (reporting("us-east", item.uid), reporting("eu-west", item.uid))
    (some,) = volume_claims.decide(item.key, cache_of(ordered, heard[0], unheard[1]), 6.0).writes
    assert isinstance(some, SetStatus) and "us-east" not in some.conditions[-1].message
    recorded = some.blocks["dataDeletion"]
    assert isinstance(recorded, DataDeletion) and (recorded.at, recorded.confirmed_by) == (
        order.blocks["dataDeletion"].at,
        ("us-east",),
    )
    (end,) = volume_claims.decide(item.key, cache_of(ordered, *heard), 6.0).writes
    assert isinstance(end, Update) and end.object.metadata.finalizers == ()
    assert list(volume_claims.woken_by_region(heard[0], unheard[0], cache_of(ordered))) == [item.key]
    assert list(volume_claims.woken_by_region(None, unheard[0], cache_of(ordered))) == [item.key]
    assert list(volume_claims.woken_by_region(heard[0], heard[0], cache_of(ordered))) == []


def test_claim_in_use_orders_nothing() -> None:
    item = claim(deleted=True, reclaim_policy=ReclaimPolicy.DELETE)
    (write,) = volume_claims.decide(item.key, cache_of(item, workload(template=stateful()), region("a")), 0.0).writes
    assert isinstance(write, SetStatus) and not write.blocks


def test_unused_claim_that_is_deleted_and_retains_its_data_loses_its_finalizer() -> None:
    item = claim(deleted=True)
    (write,) = volume_claims.decide(item.key, cache_of(item, workload()), 0.0).writes
    assert isinstance(write, Update) and write.object.metadata.finalizers == ()


def test_storage_is_demanded_of_the_quota_without_surge() -> None:
    item = assignment(template=stateful("1Gi"), replicas=2)
    assert quota_demand(item)[Purpose.NORMAL, "us-east", STORAGE] == 2 * 1024**3
    assert not any(rollout_surge_demand(item).values())


def test_workload_with_claims_neither_spills_over_nor_is_reassigned() -> None:
    service = workload(template=stateful())
    assert _must_stay_together(service) and not _must_stay_together(workload())
    assert reassign_after_s(service, cache_of(priority(reassign_after_seconds=60.0))) == 0.0


def recovered_by(lost: OnRegionLoss, serving: int = 0) -> str:
    """Why eu-west is no target for a workload of us-east; empty if it is."""
    objective = RecoveryObjective(min_serving=2)
    service = workload(template=stateful(), recovery=objective)
    parts = [assignment(template=stateful("1Gi", lost))]
    parts.append(
        assignment(
            where="eu-west", template=stateful("1Gi", lost), status=AssignmentStatus(serving=serving), replicas=0
        )
    )
    critical = critical_workload(service, objective, cache_of(service, priority(), *parts))
    return target_refusal_reason(critical, region("eu-west"), ())


def test_recovery_starts_without_data_only_if_the_claim_says_so() -> None:
    assert VOLUMES_WAIT in recovered_by(OnRegionLoss.WAIT) and "orders" in recovered_by(OnRegionLoss.WAIT)
    assert recovered_by(OnRegionLoss.START_EMPTY) == ""


def test_region_that_serves_enough_already_is_a_target() -> None:
    assert recovered_by(OnRegionLoss.WAIT, serving=2) == ""


def test_unbacked_objective_and_the_plan_of_a_loss_name_the_claim() -> None:
    objective = RecoveryObjective(min_serving=2)
    service = workload(template=stateful(), recovery=objective)
    part = assignment(template=stateful("1Gi"), status=AssignmentStatus(serving=3))
    view = cache_of(service, priority(), part, region("us-east"), region("eu-west"), claim())
    (message,) = unbacked_objectives(view, 0.0).values()
    assert VOLUMES_WAIT in message and "VolumeClaim orders" in message


def test_each_unbacked_objective_names_its_own_claim() -> None:
    objective = RecoveryObjective(min_serving=2)
    items: list[Any] = [priority(), region("us-east"), region("eu-west")]
    for name in ("orders", "parts"):
        named = ClaimVolume(name, "1Gi")
        template = msgspec.structs.replace(TEMPLATE, volumes=(TemplateVolume(name="d", mount_path="/d", claim=named),))
        service = workload(name, template=template, recovery=objective)
        items += [service, assignment(name, template=template, status=AssignmentStatus(serving=3))]
    for key, message in unbacked_objectives(cache_of(*items), 0.0).items():
        assert f"VolumeClaim {key.name}:" in message
    assert len(unbacked_objectives(cache_of(*items), 0.0)) == 2
