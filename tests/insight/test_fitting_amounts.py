"""The smaller request that `to fit` names fits now, for all replicas that wait."""

from __future__ import annotations

import random

import pytest
from tests import factories

from holdfast.insight.explain import workload_wide_amounts
from holdfast.insight.why_not import WhyNotQuery
from holdfast.model.meta import Object
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.snapshot import Snapshot
from holdfast.scheduling.snapshot.builder import build_snapshot


def request(replicas: int, cpu: str, memory: str) -> SchedulingRequest:
    members = tuple(RequestMember(f"web-{i}", f"u{i}") for i in range(replicas))
    template = Template(command=("serve",), resources={"cpu": cpu, "memory": memory})
    spec = SchedulingRequestSpec(workload="web", assignment="web", revision="1", template=template, members=members)
    return SchedulingRequest(factories.meta("web", "acme"), spec)


def cluster(chance: random.Random) -> Snapshot:
    objects: list[Object] = []
    for number in range(chance.randint(1, 4)):
        capacity = {"cpu": chance.choice(["2", "8"]), "memory": chance.choice(["4Gi", "32Gi"])}
        objects.append(factories.node(f"n{number}", capacity=capacity, unschedulable=chance.random() < 0.2))
        held = factories.assignment(f"a{number}", "us-east", namespace="acme")
        replica = factories.replica(of=held, status=factories.bound_status(f"n{number}"))
        used = {"cpu": chance.choice(["100m", "1300m", "2"]), "memory": chance.choice(["64Mi", "1333Mi", "4Gi"])}
        objects.append(factories.binding(replica, f"n{number}", resources=used))
    return build_snapshot("us-east", objects)


@pytest.mark.parametrize("seed", range(80))
def test_all_waiting_replicas_are_placed_with_the_named_amounts(seed: int) -> None:
    chance = random.Random(seed)
    snapshot = cluster(chance)
    asked = request(chance.randint(1, 5), chance.choice(["500m", "3", "64"]), chance.choice(["1Gi", "7Gi", "64Gi"]))
    query = WhyNotQuery(snapshot, requirements_of(asked), PolicyRules(), 0.0)
    found = query.fitting_amounts()
    alone = [c for c in query.suggested_fix().choices if c.text.startswith("ask for") and "cordon" not in c.text]
    assert found or not alone
    if found:
        template = asked.spec.template
        texts = {**template.resources, **{n: str(a) if n == "memory" else f"{a}m" for n, a in found.items()}}
        smaller = request(len(asked.spec.members), str(texts["cpu"]), str(texts["memory"]))
        assert not plan(snapshot, [requirements_of(smaller)], PolicyRules(), 0.0, 1).request_plans[0].unplaced


def test_regions_name_one_amount_that_fits_in_each_of_them() -> None:
    queries = []
    for capacity in ("8", "4"):
        snapshot = build_snapshot("r", [factories.node("n1", capacity={"cpu": capacity, "memory": "64Gi"})])
        queries.append(WhyNotQuery(snapshot, requirements_of(request(1, "64", "1Gi")), PolicyRules(), 0.0))
    workload_wide_amounts(queries)
    assert [q.suggested_fix().text.partition(" cpu")[0] for q in queries] == ["ask for at most 4"] * 2
