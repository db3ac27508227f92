"""How fast the planner chooses: like replicas, and replicas that all differ, on 5,000 nodes."""

from __future__ import annotations

import time

from holdfast.flow.plan import Ask, ask_of, plan
from holdfast.flow.snapshot import ClaimKey, SnapshotBuilder
from holdfast.model.binding import claim_name
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Contact, ContactBlock, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.scheduler_policy import Rules
from holdfast.model.scheduling_request import Member, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template

NODES = 5_000
ZONES = 3
BATCH = 256
LIKE_REPLICAS = 10_000
DIFFERENT_REPLICAS = 1_500


def _builder() -> SnapshotBuilder:
    builder = SnapshotBuilder("bench")
    status = NodeStatus(contact=ContactBlock(state=Contact.LIVE), execution=NodeExecution(epoch=1, reconciled=True))
    for number in range(NODES):
        spec = NodeSpec(
            zone=f"zone-{number % ZONES}", capacity={"cpu": 8 + number % 3 * 8, "memory": f"{32 + number % 5 * 8}Gi"}
        )
        builder.upsert(Node(metadata=ObjectMeta(name=f"node-{number:05}", uid=f"n{number}"), spec=spec, status=status))
    return builder


def _ask(name: str, replicas: int, cpu_milli: int) -> Ask:
    template = Template(command=("run",), resources={"cpu": f"{cpu_milli}m", "memory": "512Mi"})
    members = tuple(Member(name=f"{name}-{i}", uid=f"{name}-{i}") for i in range(replicas))
    spec = SchedulingRequestSpec(workload=name, assignment=name, revision="1", template=template, members=members)
    return ask_of(SchedulingRequest(metadata=ObjectMeta(name=name, namespace="acme"), spec=spec))


def _run(builder: SnapshotBuilder, batches: list[list[Ask]]) -> float:
    """Seconds to plan all batches, each from a fresh snapshot that counts the ones before."""
    began = time.perf_counter()
    for revision, asks in enumerate(batches, 1):
        made = plan(builder.freeze(revision), asks, Rules(), 0.0, 1)
        for outcome in made.asks:
            for proposal in outcome.proposals:
                key = ClaimKey("acme", claim_name(proposal.member.name, 1))
                builder.assume(key, outcome.ask.claim(proposal.node, proposal.member, proposal.devices))
    return time.perf_counter() - began


async def run() -> dict[str, float]:
    """Replicas planned and assumed per second, snapshots included."""
    workloads = 20
    like = [
        [_ask(f"w{number % workloads}-{number}", BATCH, 100 + number % workloads * 10)]
        for number in range(LIKE_REPLICAS // BATCH)
    ]
    differing = [_ask(f"d{number}", 1, 50 + number) for number in range(DIFFERENT_REPLICAS)]
    different = [differing[i : i + BATCH] for i in range(0, len(differing), BATCH)]
    like_s = _run(_builder(), like)
    different_s = _run(_builder(), different)
    planned = sum(len(ask.members) for batch in like for ask in batch)
    return {
        "nodes": NODES,
        "like_per_s": round(planned / like_s),
        "like_us": round(like_s / planned * 1e6, 1),
        "different_per_s": round(DIFFERENT_REPLICAS / different_s),
        "different_us": round(different_s / DIFFERENT_REPLICAS * 1e6, 1),
    }
