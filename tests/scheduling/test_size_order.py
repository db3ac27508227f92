"""The queue key `Size` fills nodes better: replicas that fill all nodes exactly, planned in both orders."""

from __future__ import annotations

from random import Random

from tests import factories

from holdfast.model.node import ContactBlock, ContactState, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.scheduler_policy import DEFAULT_QUEUE, PolicyRules, QueueKey
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.queue_order import order_requests
from holdfast.scheduling.snapshot import SnapshotBuilder

LIVE = NodeStatus(contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True))
NODES, NODE_CPU = 6, 8
LARGE_FIRST = tuple(QueueKey)


def exact_parts(chance: Random) -> list[int]:
    """CPU of replicas that fill every node, in random order."""
    found = []
    for _ in range(NODES):
        left = NODE_CPU
        while left:
            found.append(min(left, chance.choice((1, 1, 2, 3, 4, 6))))
            left -= found[-1]
    chance.shuffle(found)
    return found


def all_are_placed(parts: list[int], keys: tuple[QueueKey, ...]) -> bool:
    builder = SnapshotBuilder("test")
    for index in range(NODES):
        spec = NodeSpec(zone="a", capacity={"cpu": NODE_CPU, "memory": "64Gi"})
        builder.upsert(Node(metadata=factories.meta(f"n{index}"), spec=spec, status=LIVE))
    queued = []
    for index, cpu in enumerate(parts):
        name, template = f"r{index:03}", Template(command=("run",), resources={"cpu": cpu, "memory": "1Gi"})
        members = (RequestMember(name=name, uid=name),)
        spec_of_request = SchedulingRequestSpec(
            workload=name, assignment=name, revision="1", template=template, members=members
        )
        queued.append(SchedulingRequest(metadata=factories.meta(name, "acme"), spec=spec_of_request))
    ordered = order_requests(queued, keys, {}, {})
    planned = plan(builder.freeze(1), [requirements_of(request) for request in ordered], PolicyRules(), 0.0, 1)
    return not any(request.unplaced for request in planned.request_plans)


def test_large_replicas_first_fill_nodes_that_age_order_leaves_in_parts() -> None:
    worlds = [exact_parts(Random(seed)) for seed in range(20)]
    by_age = sum(all_are_placed(parts, DEFAULT_QUEUE) for parts in worlds)
    by_size = sum(all_are_placed(parts, LARGE_FIRST) for parts in worlds)
    assert by_size >= 19 and by_age <= 5, (by_age, by_size)
