"""Speed of the planner for identical and for different replicas, on 100 to 20,000 nodes.

Every batch is planned on a new snapshot and then assumed, as in the scheduler; both are part of the time. `memory_mb`
is the memory of the planner's state.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.cell.freed_memory import keep_freed_memory
from holdfast.model.binding import claim_name
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.plan import ReplicaRequirements, plan, requirements_of
from holdfast.scheduling.snapshot import ClaimKey, SnapshotBuilder

NODES = (100, 1_000, 5_000, 20_000)
ASKED_AT = 5_000
"""Number of nodes to which the bounds apply."""
ZONES = 3
BATCH = 256
LIKE_REPLICAS = 10_000
DIFFERENT_REPLICAS = 1_500

BOUNDS = {f"like_per_s_{ASKED_AT}": (20_000, None), f"different_per_s_{ASKED_AT}": (5_000, None)}
BY_SPEED = frozenset(BOUNDS)


def _builder(nodes: int) -> SnapshotBuilder:
    builder = SnapshotBuilder("bench")
    status = NodeStatus(
        contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True)
    )
    for number in range(nodes):
        spec = NodeSpec(
            zone=f"zone-{number % ZONES}", capacity={"cpu": 8 + number % 3 * 8, "memory": f"{32 + number % 5 * 8}Gi"}
        )
        builder.upsert(Node(metadata=ObjectMeta(name=f"node-{number:05}", uid=f"n{number}"), spec=spec, status=status))
    return builder


def _ask(name: str, replicas: int, cpu_milli: int) -> ReplicaRequirements:
    template = Template(command=("run",), resources={"cpu": f"{cpu_milli}m", "memory": "512Mi"})
    members = tuple(RequestMember(name=f"{name}-{i}", uid=f"{name}-{i}") for i in range(replicas))
    spec = SchedulingRequestSpec(workload=name, assignment=name, revision="1", template=template, members=members)
    return requirements_of(SchedulingRequest(metadata=ObjectMeta(name=name, namespace="acme"), spec=spec))


def _run(builder: SnapshotBuilder, batches: list[list[ReplicaRequirements]]) -> tuple[int, float]:
    """Plans all batches. Returns the number of placed replicas and the seconds."""
    placed = 0
    began = time.perf_counter()
    for revision, batch in enumerate(batches, 1):
        planned = plan(builder.freeze(revision), batch, PolicyRules(), 0.0, 1)
        for outcome in planned.request_plans:
            for proposal in outcome.proposals:
                key = ClaimKey("acme", claim_name(proposal.member.name, 1))
                builder.assume(key, outcome.requirements.claim(proposal.node, proposal.member, proposal.devices))
                placed += 1
    return placed, time.perf_counter() - began


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def run(nodes: int | Sequence[int] = ()) -> dict[str, float]:
    """Replicas planned and assumed per second, snapshots included."""
    keep_freed_memory()  # as in a cell; otherwise large arrays are mapped and unmapped for every replica
    sizes = (nodes,) if isinstance(nodes, int) else nodes or NODES
    figures: dict[str, float] = {}
    for size in sizes:
        gc.collect()
        before_mb = _resident_mb()
        builder = _builder(size)
        like_each = min(BATCH, size)
        like = [
            [_ask(f"w{number}", like_each, 100 + number % 20 * 10)]
            for number in range(max(1, min(LIKE_REPLICAS, size * 20) // like_each))
        ]
        differing = [_ask(f"d{number}", 1, 50 + number) for number in range(min(DIFFERENT_REPLICAS, size * 4))]
        different = [differing[i : i + BATCH] for i in range(0, len(differing), BATCH)]
        like_placed, like_s = _run(builder, like)
        memory_mb = _resident_mb() - before_mb
        different_placed, different_s = _run(_builder(size), different)
        figures |= {
            f"like_per_s_{size}": round(like_placed / like_s),
            f"like_us_{size}": round(like_s / like_placed * 1e6, 1),
            f"different_per_s_{size}": round(different_placed / different_s),
            f"different_us_{size}": round(different_s / different_placed * 1e6, 1),
            f"memory_mb_{size}": round(memory_mb, 1),
        }
    return figures
