"""Each score alone: the value of a node, 0 to 100."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.model.artifact import Artifact
from holdfast.model.binding import Binding, BindingSpec, CapacityClass, Intent
from holdfast.model.meta import Object
from holdfast.model.node import Device, Node, NodeImage
from holdfast.model.placement_rules import AffinityRule, PlacementRules, Taint, TaintEffect
from holdfast.model.scheduler_policy import PolicyRules, ScoreName, WeightedScore
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import DriverName, Template
from holdfast.scheduling.plan import plan, requirements_of, tie_number
from holdfast.scheduling.snapshot.builder import build_snapshot


def request(template: Any = None, **spec: Any) -> SchedulingRequest:
    given = {"command": ("x",), "resources": {"cpu": "1"}, **(template or {})}
    spec = {"members": (RequestMember("web-0", "u0"),), "workload": "web", **spec}
    return SchedulingRequest(
        factories.meta("web", "acme"),
        SchedulingRequestSpec(assignment="a", revision="1", template=Template(**given), **spec),
    )


def value(name: ScoreName, node: Node, *others: Object, request_item: SchedulingRequest | None = None) -> int:
    """The score of one node; the other objects must not be feasible."""
    rules = PolicyRules(scores=(WeightedScore(name=name, weight=1),))
    made = plan(
        build_snapshot("here", [node, *others]), [requirements_of(request_item or request())], rules, 0.0, 1
    ).request_plans[0]
    assert made.proposals[0].node == node.metadata.name
    (part,) = made.proposals[0].scores
    assert part.value == made.proposals[0].score and 0 <= part.value <= 100
    return part.value


def bound(name: str, node: str, **spec: Any) -> Binding:
    intent = Intent(replica_uid=f"uid-{name}", template_hash="h", attempt=1)
    template = spec.pop("template", Template())
    return Binding(
        factories.meta(f"{name}.1", "acme"),
        BindingSpec(replica=name, intent=intent, node=node, template=template, **spec),
    )


@pytest.mark.parametrize(
    ("name", "used_cpu", "used_memory", "expected"),
    [
        (ScoreName.BALANCE, "0", "0", 90),
        (ScoreName.BALANCE, "4", "0", 50),
        (ScoreName.BALANCE, "4", "8Gi", 20),
        (ScoreName.PACKING, "0", "0", 5),
        (ScoreName.PACKING, "9", "10Gi", 100),
        (ScoreName.FRAGMENTATION, "0", "0", 90),
        (ScoreName.FRAGMENTATION, "4", "5Gi", 100),
        (ScoreName.FRAGMENTATION, "9", "0", 0),
    ],
)
def test_resource_scores_by_usage(name: ScoreName, used_cpu: str, used_memory: str, expected: int) -> None:
    node = factories.node("n", capacity={"cpu": "10", "memory": "10Gi"})
    assert value(name, node, bound("x", "n", resources={"cpu": used_cpu, "memory": used_memory})) == expected


def test_spread_score_prefers_emptiest_zone_then_node() -> None:
    here, there = factories.node("n", zone="a"), factories.node("m", zone="b", capacity={"cpu": "500m"})
    assert value(ScoreName.SPREAD, here, there) == 100
    mine = bound("w1", "n", workload="web")
    assert value(ScoreName.SPREAD, here, there, mine) == 75 // 2 + 25 // 2
    assert value(ScoreName.SPREAD, here, there, mine, bound("w2", "m", workload="web")) == 75 + 25 // 2
    assert value(ScoreName.SPREAD, here, there, bound("d", "n", workload="db")) == 100


def test_taints_score_loses_25_points_per_taint() -> None:
    disliked = tuple(Taint(key=k, effect=TaintEffect.PREFER_NO_SCHEDULE) for k in "abc")
    assert [value(ScoreName.TAINTS, factories.node("n", taints=disliked[:i])) for i in range(4)] == [100, 75, 50, 25]


def test_cost_score_is_relative_to_cheapest_node() -> None:
    def priced(name: str, price: str, **spec: Any) -> Node:
        node = factories.node(name, **spec)
        labels = {"holdfast.dev/cost": price} if price else {}
        return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))

    cheap = priced("m", "20", unschedulable=True)
    assert value(ScoreName.COST, priced("n", "20"), cheap) == 100
    assert value(ScoreName.COST, priced("n", "40"), cheap) == 50
    assert value(ScoreName.COST, priced("n", ""), cheap) == 50
    assert value(ScoreName.COST, priced("n", "free"), cheap) == 50
    assert value(ScoreName.COST, factories.node("n")) == 50


def test_image_locality_prefers_nodes_that_have_the_digest() -> None:
    digest = "sha256:" + "ab" * 32
    made = factories.node("n1", drivers=("process", "oci", "oci-image"))
    held = NodeImage(names=(f"r.example/web@{digest}", "r.example/web:1"), size_bytes=5)
    execution = msgspec.structs.replace(made.status.execution, images=(held,))
    warm = msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, execution=execution))
    template = {"command": (), "driver": DriverName.OCI, "image": "r.example/web:1", "image_digest": digest}
    assert value(ScoreName.IMAGE_LOCALITY, warm, request_item=request(template)) == 100
    assert value(ScoreName.IMAGE_LOCALITY, made, request_item=request(template)) == 0
    pinned = {**template, "image": f"r.example/web@{digest}", "image_digest": ""}
    assert value(ScoreName.IMAGE_LOCALITY, warm, request_item=request(pinned)) == 100
    assert value(ScoreName.IMAGE_LOCALITY, warm, request_item=request()) == 0


def test_artifact_score_is_percentage_of_cached_artifacts() -> None:
    node = factories.node("n")
    warm = msgspec.structs.replace(
        node,
        status=msgspec.structs.replace(
            node.status,
            execution=msgspec.structs.replace(node.status.execution, cached_artifacts=("sha256:aa", "file:b")),
        ),
    )
    artifacts = (Artifact("a", "file:a", "sha256:aa"), Artifact("b", "file:b"), Artifact("c", "file:c"))
    request_item = request({"artifacts": artifacts})
    assert value(ScoreName.ARTIFACT_LOCALITY, warm, request_item=request_item) == 66
    assert value(ScoreName.ARTIFACT_LOCALITY, node, request_item=request_item) == 0


def test_locality_score_follows_preferred_affinity() -> None:
    rules = (
        AffinityRule(workload_labels={"app": "db"}, preferred=True),
        AffinityRule(workload_labels={"app": "noisy"}, preferred=True, apart=True),
    )
    request_item = request(placement=PlacementRules(affinity=rules))
    db = bound("db", "n", workload="db", template=Template(labels={"app": "db"}))
    noisy = bound("x", "n", workload="x", template=Template(labels={"app": "noisy"}))
    node = factories.node("n")
    assert value(ScoreName.LOCALITY, node, db, request_item=request_item) == 100
    assert value(ScoreName.LOCALITY, node, request_item=request_item) == 50
    assert value(ScoreName.LOCALITY, node, noisy, request_item=request_item) == 0


def test_fragmentation_score_is_halved_on_nodes_with_free_gpus() -> None:
    gpus = factories.node("n", capacity={"cpu": "10", "memory": "10Gi"}, devices=(Device("a"), Device("b")))
    assert value(ScoreName.FRAGMENTATION, gpus) == 45
    share = request({"resources": {"gpu": "500m"}})
    assert value(ScoreName.FRAGMENTATION, gpus, request_item=share) == 75 // 2
    begun = bound("x", "n", resources={"gpu": "100m"}, devices=())
    assert value(ScoreName.FRAGMENTATION, gpus, begun, request_item=share) == 70 // 2, (
        "the claim is on no device, so no GPU is split"
    )


def test_evictions_score_falls_with_reclaimable_work() -> None:
    node = factories.node("n", capacity={"cpu": "10", "memory": "10Gi"})
    loose = bound("x", "n", resources={"cpu": "4"}, capacity_class=CapacityClass.RECLAIMABLE)
    assert value(ScoreName.EVICTIONS, node, loose) == 60
    assert value(ScoreName.EVICTIONS, node, loose, request_item=request(reclaimable=True)) == 100


def test_equal_scores_are_ordered_by_seeded_hash_of_node_name() -> None:
    nodes = [factories.node(f"n{i}") for i in range(20)]
    for seed in range(5):
        made = plan(
            build_snapshot("here", nodes), [requirements_of(request())], PolicyRules(), 0.0, seed
        ).request_plans[0]
        expected = sorted(nodes, key=lambda n: (tie_number(seed, n.metadata.name), n.metadata.name))
        assert made.proposals[0].node == expected[0].metadata.name
        assert made.proposals[0].runner_up == expected[1].metadata.name
        assert made.proposals[0].runner_up_score == made.proposals[0].score
    assert len({min(range(20), key=lambda i: tie_number(seed, f"n{i}")) for seed in range(30)}) > 5


def test_balance_score_of_huge_amounts_does_not_overflow() -> None:
    node = factories.node("n", capacity={"cpu": "10", "memory": "900Pi"})
    assert value(ScoreName.BALANCE, node, bound("x", "n", resources={"memory": "450Pi"})) in (49, 50)
