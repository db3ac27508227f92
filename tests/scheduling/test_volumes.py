"""Replicas with persistent volumes in a region: stable ordinals, plans that follow the data, deletion that waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories
from tests.factories import assignment, cache_of, replica, serving_status

from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.meta import Object
from holdfast.model.ownership import VOLUME_DATA_FINALIZER
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template, template_hash
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.volume import (
    BoundVolume,
    DataDeletion,
    DataPhase,
    ReclaimPolicy,
    Volume,
    VolumeClaim,
    VolumeClaimSpec,
    VolumeClaimStatus,
    VolumeData,
    VolumeSpec,
    VolumeStatus,
)
from holdfast.model.workload import Rollout
from holdfast.model.writes import Create, Delete, Outcome, SetStatus, Update
from holdfast.scheduling import replicate, volume_release
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot

DATA = TemplateVolume(name="d", mount_path="/d", claim=ClaimVolume("orders", "1Gi"))
STATEFUL = msgspec.structs.replace(factories.TEMPLATE, volumes=(DATA,))
NEWER = msgspec.structs.replace(STATEFUL, env={"VERSION": "2"})
STORAGE = {"cpu": "8", "memory": "32Gi", "storage": "2Gi"}
decide = replicate.decider("us-east")


CLAIM = VolumeClaim(factories.meta("orders", "acme"), VolumeClaimSpec(size="1Gi"))
ORDERED = msgspec.structs.replace(
    CLAIM, status=VolumeClaimStatus(data_deletion=DataDeletion(at="2026-01-01T00:00:00Z"))
)


def names(outcome: Outcome) -> tuple[list[str], list[str]]:
    """Names of created and of deleted replicas."""
    made = [w.object.metadata.name for w in outcome.writes if isinstance(w, Create) and isinstance(w.object, Replica)]
    return made, [w.key.name for w in outcome.writes if isinstance(w, Delete) and w.kind == "Replica"]


def volume(node: str = "n2", ordinal: int = 0, *, deleted: bool = False, **more: Any) -> Volume:
    name, data = f"api-us-east-{ordinal}", more.pop("data", None)
    extra: dict[str, Any] = {"finalizers": (VOLUME_DATA_FINALIZER,)}
    if deleted:
        extra["deletion_timestamp"] = "2026-01-01T00:00:00Z"
    policy = more.pop("policy", ReclaimPolicy.DELETE)
    spec = VolumeSpec(claim="orders", workload="api", replica=name, node=node, size="1Gi", reclaim_policy=policy)
    spec = msgspec.structs.replace(spec, claim_uid=more.pop("claim_uid", CLAIM.uid))
    status = VolumeStatus(data=VolumeData(phase=data) if data is not None else None)
    return Volume(factories.meta(f"orders.{name}", "acme", **extra), spec, status)


def binding_with(used: Volume) -> Binding:
    bound = BoundVolume("orders", used.metadata.name, used.uid, "1Gi")
    intent = Intent(replica_uid="r", template_hash="h", attempt=1)
    spec = BindingSpec(
        replica=used.spec.replica, intent=intent, node=used.spec.node, template=STATEFUL, volumes=(bound,)
    )
    return Binding(factories.meta(f"{used.spec.replica}.1", "acme"), spec)


# replicate


def test_missing_ordinal_is_created_and_no_other() -> None:
    desired = assignment(template=STATEFUL, replicas=3)
    there = [replica(n, desired, status=serving_status()) for n in (0, 2)]
    assert names(decide(desired.key, cache_of(desired, *there), 1.0)) == (["api-us-east-1"], [])


def test_replica_that_is_being_deleted_keeps_its_ordinal() -> None:
    desired = assignment(template=STATEFUL, replicas=2)
    there = [
        replica(0, desired, terminating=True, status=serving_status()),
        replica(1, desired, status=serving_status()),
    ]
    assert names(decide(desired.key, cache_of(desired, *there), 1.0)) == ([], []), "no third ordinal beside the two"


def test_rollout_replaces_one_at_a_time_in_place_without_surge() -> None:
    desired = assignment(template=NEWER, replicas=3, rollout=Rollout(max_surge=2, max_unavailable=0))
    old = [replica(n, desired, revision=template_hash(STATEFUL), status=serving_status()) for n in range(3)]
    assert names(decide(desired.key, cache_of(desired, *old), 1.0)) == ([], ["api-us-east-2"])


def test_scale_down_removes_the_highest_ordinals() -> None:
    desired = assignment(template=STATEFUL, replicas=1)
    there = [replica(n, desired, status=serving_status()) for n in range(3)]
    assert sorted(names(decide(desired.key, cache_of(desired, *there), 1.0))[1]) == ["api-us-east-1", "api-us-east-2"]


# plan


def request(count: int, template: Template = STATEFUL) -> SchedulingRequest:
    members = tuple(RequestMember(f"api-us-east-{n}", f"u{n}") for n in range(count))
    spec = SchedulingRequestSpec(workload="api", assignment="a", revision="1", template=template, members=members)
    return SchedulingRequest(factories.meta("api", "acme"), spec)


def planned(*objects: Object, count: int = 1) -> Any:
    snapshot = build_snapshot("us-east", objects)
    return plan(snapshot, [requirements_of(request(count))], PolicyRules(), 0.0, 1).request_plans[0]


def nodes(**more: Any) -> list[Object]:
    return [factories.node(name, capacity=STORAGE, **more) for name in ("n1", "n2", "n3")]


def test_each_replica_is_planned_on_the_node_of_its_volume() -> None:
    made = planned(*nodes(), volume("n3", 0), volume("n1", 1), count=3)
    chosen = {p.member.name: p.node for p in made.proposals}
    assert (chosen["api-us-east-0"], chosen["api-us-east-1"]) == ("n3", "n1") and len(chosen) == 3


def test_volumes_fill_a_node_whether_they_are_used_or_not() -> None:
    full = [volume("n1", n) for n in (7, 8)]
    made = planned(factories.node("n1", capacity=STORAGE), *full)
    assert made.unplaced and made.refusals[0].reason == Reason.INSUFFICIENT_STORAGE
    assert "needs 1Gi storage" in made.refusals[0].message


def test_plan_counts_the_new_volumes_of_the_replicas_before() -> None:
    made = planned(*nodes(), count=7)
    assert sorted(p.node for p in made.proposals) == ["n1", "n1", "n2", "n2", "n3", "n3"] and len(made.unplaced) == 1


def test_lost_node_is_named_with_its_state() -> None:
    (lost,) = (r for r in planned(*nodes(), volume("gone")).refusals if r.reason == Reason.VOLUME_NODE_LOST)
    assert (
        lost.nodes == 3 and "orders.api-us-east-0 is on node gone, which takes no work (NodeNotFound)" in lost.message
    )


# volume


def writes(item: Volume, *others: Object) -> list[Any]:
    return list(volume_release.decide(item.key, cache_of(item, *others), 0.0).writes)


NODE = factories.node("n2")


def test_volume_is_deleted_on_the_order_of_its_claim_by_its_policy() -> None:
    (deletion,) = writes(volume(), NODE, ORDERED)
    assert isinstance(deletion, Delete)
    assert writes(volume(), NODE, CLAIM) == []
    assert writes(volume(policy=ReclaimPolicy.RETAIN), NODE, ORDERED) == []


def test_volume_whose_claim_is_missing_is_kept_and_says_so() -> None:
    (said,) = writes(volume(), NODE)
    assert isinstance(said, SetStatus)
    (condition,) = said.conditions
    assert (condition.type, condition.status, condition.reason) == ("Claimed", "False", Reason.VOLUME_CLAIM_MISSING)
    assert "the data is kept" in condition.message
    told = msgspec.structs.replace(volume(), status=VolumeStatus(conditions=said.conditions))
    assert writes(told, NODE) == [], "it says so once"
    (again,) = writes(told, NODE, CLAIM)
    assert again.conditions[0].status == "True"
    assert writes(volume(policy=ReclaimPolicy.RETAIN), NODE) == []


@pytest.mark.parametrize("made_for", ["", "another"])
def test_order_of_another_claim_with_the_name_deletes_nothing(made_for: str) -> None:
    made = writes(volume(claim_uid=made_for), NODE, ORDERED)
    assert not any(isinstance(write, Delete) for write in made)


def test_order_wakes_the_volumes_of_the_claim() -> None:
    view = cache_of(volume(), ORDERED)
    assert list(volume_release.woken_by_claim(ORDERED, CLAIM, view)) == [volume().key]
    assert list(volume_release.woken_by_claim(None, CLAIM, view)) == [volume().key]
    assert list(volume_release.woken_by_claim(CLAIM, CLAIM, view)) == []


def test_volume_in_use_is_not_deleted() -> None:
    assert writes(volume(), NODE, ORDERED, binding_with(volume())) == []
    assert writes(volume(), NODE, ORDERED, replica(0)) == []


def test_finalizer_is_removed_when_the_node_has_deleted_the_data_or_is_gone() -> None:
    assert writes(volume(deleted=True), NODE) == []
    assert writes(volume(deleted=True, data=DataPhase.PRESENT), NODE) == []
    for done in (writes(volume(deleted=True, data=DataPhase.DELETED), NODE), writes(volume(deleted=True))):
        (update,) = done
        assert isinstance(update, Update) and update.object.metadata.finalizers == ()
    assert writes(volume(deleted=True), binding_with(volume())) == [], "its task may still run"
