"""Load shapes of the pipeline benchmark: the existing workloads and the measured ones.

They follow Kubernetes' scheduler_perf (SchedulingBasic, TopologySpreading, SchedulingPodAntiAffinity,
Unschedulable, PreemptionBasic, SchedulingWithMixedChurn): nodes of 4 CPU and 32Gi, replicas of 100m and 500Mi.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.__main__ import Unknown
from bench.cells import TENANT
from bench.load import workload_body
from holdfast.model.placement_rules import AffinityRule, PlacementRules, SpreadRule
from holdfast.model.workload import Disruption

PER_WORKLOAD = 500
LATER = ("--start-delay", "300")
"""Hollow tasks start after the measurement, because nodes in scheduler_perf run nothing."""
BESIDE = "beside"
"""Tenant of the existing workloads."""
NODE_MILLI = 4_000
LOW_MILLI, HIGH_MILLI = 900, 3_000
"""Four low-priority replicas fill a node; a high-priority replica preempts three, as in PreemptionBasic."""


class Shape(NamedTuple):
    """`posted` creates the measured requests, `before` those of the existing workloads, of which `placed_before`
    replicas are placed and the others stay pending.

    `nodes` and `replicas` are the size that the bounds apply to. More than `per_node` replicas per node do not fit.
    """

    posted: Callable[[int], list[bytes]]
    before: Callable[[int, int], list[bytes]] | None = None
    placed_before: Callable[[int], int] = lambda nodes: 0
    nodes: int = 5_000
    replicas: int = 10_000
    per_node: float = 40.0
    until_ready: bool = False
    churn: bool = False
    hollow: tuple[str, ...] = LATER

    def size(self, nodes: int, replicas: int) -> tuple[int, int]:
        """The size to run: what was requested (0: the shape's own). Too many replicas for the nodes are refused."""
        nodes = nodes or self.nodes
        fitting = max(1, int(nodes * self.per_node))
        if replicas > fitting:
            raise Unknown(f"{replicas} replicas: {nodes} nodes of this shape hold at most {fitting}; raise --nodes")
        return nodes, replicas or min(self.replicas, fitting)


def in_workloads(replicas: int) -> list[bytes]:
    """Workloads of 500 replicas."""
    return [workload_body(name, count) for name, count in _parts(replicas, PER_WORKLOAD)]


def singles(replicas: int) -> list[bytes]:
    return [workload_body(name, 1) for name, _ in _parts(replicas, 1)]


def all_different(replicas: int) -> list[bytes]:
    """Single replicas that all have different requests."""
    return [
        workload_body(name, 1, resources={"cpu": f"{100 + number % 1_009}m", "memory": f"{400 + number % 211}Mi"})
        for number, (name, _) in enumerate(_parts(replicas, 1))
    ]


def spread(replicas: int) -> list[bytes]:
    """Workloads spread evenly over zones, with maximum skew 1."""
    rules = PlacementRules(spread=(SpreadRule(topology="zone", max_skew=1),))
    return [workload_body(name, count, placement=rules) for name, count in _parts(replicas, PER_WORKLOAD)]


def anti_affinity(replicas: int) -> list[bytes]:
    """At most one replica per node: anti-affinity between workloads and node spread within a workload."""
    green = {"color": "green"}
    rules = PlacementRules(
        affinity=(AffinityRule(workload_labels=green, topology="node", apart=True),),
        spread=(SpreadRule(topology="node", max_skew=1),),
    )
    parts = _parts(replicas, max(1, replicas // 20))
    return [workload_body(name, count, placement=rules, labels=green) for name, count in parts]


def unplaceable(nodes: int, replicas: int) -> list[bytes]:
    """As many unschedulable single replicas as are measured."""
    more = {"cpu": f"{NODE_MILLI + 1_000}m", "memory": "500Mi"}
    return [workload_body(name, 1, tenant=BESIDE, resources=more) for name, _ in _parts(replicas, 1, "b")]


def low_rank(nodes: int, replicas: int) -> list[bytes]:
    """Low-priority workloads that fill every node and may be evicted without drain delay."""
    low = {"cpu": f"{LOW_MILLI}m", "memory": "500Mi"}
    whole = nodes * (NODE_MILLI // LOW_MILLI)
    return [
        workload_body(
            name, count, tenant=BESIDE, resources=low, disruption=Disruption(max_unavailable=count), drain_delay_s=0.0
        )
        for name, count in _parts(whole, PER_WORKLOAD, "l")
    ]


def high_rank(replicas: int) -> list[bytes]:
    high = {"cpu": f"{HIGH_MILLI}m", "memory": "500Mi"}
    return [
        workload_body(name, count, resources=high, priority_class_name="urgent")
        for name, count in _parts(replicas, PER_WORKLOAD)
    ]


def _parts(replicas: int, each: int, letter: str = "w") -> list[tuple[str, int]]:
    """Names and sizes of workloads with this total of replicas."""
    found = [(f"{letter}{number:05}", each) for number in range(replicas // each)]
    rest = replicas % each
    return [*found, (f"{letter}{len(found):05}", rest)] if rest else found


SHAPES: dict[str, Shape] = {
    "workloads": Shape(in_workloads),
    "singles": Shape(singles),
    "ready": Shape(in_workloads, until_ready=True, hollow=()),
    "spread": Shape(spread),
    "anti-affinity": Shape(anti_affinity, replicas=2_000, per_node=0.4),
    "backlog": Shape(in_workloads, before=unplaceable),
    "preemption": Shape(
        high_rank,
        before=low_rank,
        placed_before=lambda nodes: nodes * (NODE_MILLI // LOW_MILLI),
        nodes=1_000,
        replicas=1_000,
        per_node=1.0,
        hollow=(),
    ),
    "churn": Shape(in_workloads, churn=True),
    "different": Shape(all_different),
}

__all__ = ["BESIDE", "SHAPES", "TENANT", "Shape"]
