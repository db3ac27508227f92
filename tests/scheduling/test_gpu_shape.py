"""The gpu_shape score: on small nodes, against a reference computation, and in the shipped policy."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests import factories

from holdfast.model.binding import Binding, BindingSpec, DeviceClaim, Intent, claim_name
from holdfast.model.node import Device, Node
from holdfast.model.quantity import Amount
from holdfast.model.scheduler_policy import PolicyRules, ScoreName, WeightedScore
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.gpu_request_shapes import PLANNER_GPU_SHAPES_MAX, GpuShapeCounter
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.snapshot import ClaimKey, SnapshotBuilder
from holdfast.scheduling.snapshot.builder import build_snapshot

RULES = PolicyRules(scores=(WeightedScore(name=ScoreName.GPU_SHAPE, weight=1),))
STEEPNESS = 4000
Shape = tuple[int, int]
Free = tuple[int, list[int]]


def gpu_node(name: str, cpu: int, gpus: int) -> Node:
    devices = tuple(Device(id=f"gpu-{i}", model="T4") for i in range(gpus))
    return factories.node(name, capacity={"cpu": str(cpu), "memory": "1Ti"}, devices=devices)


def gpu_requirements(number: int, cpu_milli: int, gpu_milli: int) -> ReplicaRequirements:
    resources: dict[str, Amount] = {"cpu": f"{cpu_milli}m", **({"gpu": f"{gpu_milli}m"} if gpu_milli else {})}
    name = f"w{number:04}"
    spec = SchedulingRequestSpec(
        workload=name,
        assignment=name,
        revision="1",
        template=Template(command=("x",), resources=resources),
        members=(RequestMember(name, name),),
    )
    return requirements_of(SchedulingRequest(factories.meta(name, "acme"), spec))


def stranded(shapes: list[Shape], cpu: int, gpus: list[int]) -> int:
    """Reference: GPU milli that a shape cannot use, summed over all shapes."""
    used = 0
    for need_cpu, need_gpu in shapes:
        share, devices = min(need_gpu, 1000), max(1, need_gpu // 1000)
        large = [free for free in gpus if free >= share]
        usable = sum(large) if len(large) >= devices else 0
        if cpu >= need_cpu:
            used += usable + (min(usable, cpu // need_cpu * need_gpu) if need_cpu else usable)
    return sum(gpus) * len(shapes) - used // 2


def points(shapes: list[Shape], free: Free, need: Shape) -> int:
    cpu, gpus = free
    after = list(gpus)
    if need[1] >= 1000:
        for i in [i for i, left in enumerate(gpus) if left >= 1000][: need[1] // 1000]:
            after[i] -= 1000
    elif need[1]:
        after[min((left, i) for i, left in enumerate(gpus) if left >= need[1])[1]] -= need[1]
    gained = stranded(shapes, cpu, gpus) - stranded(shapes, cpu - need[0], after)
    milli = gained // max(1, len(shapes))
    return max(0, min(100, 50 + 50 * milli // (STEEPNESS + abs(milli))))


@pytest.mark.parametrize(
    ("need", "better"),
    [
        ((4000, 0), "ample"),  # "tight" has just enough CPU for its four GPUs
        ((8000, 0), "ample"),
    ],
)
def test_gpu_shape_score_keeps_cpu_for_free_gpus(need: Shape, better: str) -> None:
    nodes = [gpu_node("tight", 8, 4), gpu_node("ample", 32, 4), gpu_node("busy", 4, 2)]
    existing = [
        Binding(
            factories.meta(f"past{i}.1", "acme"),
            BindingSpec(
                replica=f"past{i}",
                intent=Intent(replica_uid=f"past{i}", template_hash="h", attempt=1),
                node="busy",
                template=Template(),
                resources={"cpu": cpu, "gpu": "1"},
                devices=(DeviceClaim(id=f"gpu-{i}"),),
            ),
        )
        for i, cpu in enumerate(("2", "2"))
    ]
    snapshot = build_snapshot("here", [*nodes, *existing])
    for tie in range(4):
        chosen = plan(snapshot, [gpu_requirements(1, *need)], RULES, 0.0, tie).request_plans[0].proposals[0]
        assert chosen.node == better


@pytest.mark.parametrize("seed", range(6))
def test_gpu_shape_score_equals_reference_computation(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [gpu_node(f"n{i}", chance.choice((8, 16, 32)), chance.choice((0, 1, 2, 4, 8))) for i in range(12)]
    free: dict[str, Free] = {
        n.metadata.name: (int(str(n.spec.capacity["cpu"])) * 1000, [1000] * len(n.spec.devices)) for n in nodes
    }
    needs = [(chance.choice((250, 1000, 4000)), chance.choice((0, 200, 500, 1000, 2000))) for _ in range(60)]
    made = plan(
        build_snapshot("here", nodes), [gpu_requirements(i, *need) for i, need in enumerate(needs)], RULES, 0.0, seed
    )
    counted: list[Shape] = []
    for need, outcome in zip(needs, made.request_plans, strict=True):
        if not outcome.proposals:
            continue
        weighed = [*counted, need] if need[1] else counted
        (proposal,) = outcome.proposals
        cpu, gpus = free[proposal.node]
        assert proposal.score == points(weighed, (cpu, gpus), need)
        left = list(gpus)
        for device in proposal.devices:
            left[int(device.id.removeprefix("gpu-"))] -= device.milli
        free[proposal.node] = (cpu - need[0], left)
        if need[1]:
            counted.append(need)


def test_gpu_shapes_are_exact_if_few_and_rounded_up_if_many() -> None:
    few = GpuShapeCounter(build_snapshot("here", []))
    for cpu_milli, gpu_milli in ((1500, 810), (1500, 810), (250, 2000), (0, 500)):
        few.add({"cpu": cpu_milli, "gpu": gpu_milli}.items(), 1)
    made = few.columns()
    assert (made.count, made.occurrences.tolist()) == (4, [2, 1, 1])
    assert made.gpu_milli_with_cpu(np.array([0, 3100])).tolist()[:2] == [[0, 2 * 810], [0, 12 * 2000]]
    assert made.gpu_milli_with_cpu(np.array([0]))[2, 0] > 16_000, "a shape without CPU is not limited by CPU"

    many = GpuShapeCounter(build_snapshot("here", []))
    chance = random.Random(1)
    needs = [(chance.randint(100, 64_000), chance.choice((chance.randint(10, 999), 1000, 8000))) for _ in range(5000)]
    for cpu_milli, gpu_milli in needs:
        many.add({"cpu": cpu_milli, "gpu": gpu_milli}.items(), 1)
    made = many.columns()
    assert PLANNER_GPU_SHAPES_MAX // 8 < len(made.occurrences) <= PLANNER_GPU_SHAPES_MAX
    assert made.count == made.occurrences.sum() == len(needs)
    assert set(made.gpu_milli.tolist()) >= {1000, 8000} and made.shares.max() == 1000


def test_shipped_gpu_shape_policy_uses_gpu_shape_score() -> None:
    path = Path(__file__).parents[2] / "examples" / "policies" / "gpu-shape.yaml"
    manifest = msgspec.yaml.decode(path.read_bytes())
    assert manifest["metadata"]["name"] == "default"
    assert msgspec.convert(manifest["spec"]["rules"], PolicyRules) == RULES


def test_gpu_shapes_count_earlier_placements_like_claims_of_the_snapshot() -> None:
    """The second request of a plan, and the same request alone after the first was assumed."""
    builder = SnapshotBuilder("here")
    for node in (gpu_node("a", 16, 2), gpu_node("b", 8, 4), gpu_node("c", 32, 1)):
        builder.upsert(node)
    requests = [gpu_requirements(i, *need) for i, need in enumerate([(4000, 0), (1000, 500), (4000, 2000), (250, 200)])]
    together = plan(builder.freeze(1), requests, RULES, 0.0, 1).request_plans
    for made in together:
        assert plan(builder.freeze(1), [made.requirements], RULES, 0.0, 1).request_plans[0] == made
        for proposal in made.proposals:
            claim = made.requirements.claim(proposal.node, proposal.member, proposal.devices, proposal.victims)
            builder.assume(ClaimKey("acme", claim_name(proposal.member.name, 1)), claim)
