"""Regions with nodes and claims, whose reports are made by the product. Used by the `regions` benchmark."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.controllers.cache import Cache
from holdfast.fleet import assign
from holdfast.link.report import region_report
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import ContactBlock, ContactState, Node, NodeExecution, NodeSpec, NodeStatus
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.priority_class import PriorityClass
from holdfast.model.reasons import Reason
from holdfast.model.region import HealthState, Region, RegionHealth, RegionReport, RegionSpec, RegionStatus
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.model.writes import Create, SetStatus, Update

TENANT = "acme"
CREATED = "2026-01-01T00:00:00Z"
STARTED_S = parse_time(CREATED) + 3600.0
LIVE = NodeStatus(contact=ContactBlock(state=ContactState.LIVE), execution=NodeExecution(epoch=1, reconciled=True))

Shape = tuple[int, int]
"""CPU in thousandths and memory in GiB."""


class World:
    """A global cell and its regions. `by_node`: whether regions report free resources by node. `tight`: whether they
    fill node after node."""

    def __init__(
        self, regions: Mapping[str, Sequence[Shape]], costs: Mapping[str, int], *, by_node: bool, tight: bool = False
    ) -> None:
        self._revisions = itertools.count(1)
        self._by_node, self._tight = by_node, tight
        self.now = STARTED_S
        self.free: dict[str, list[list[int]]] = {name: [list(n) for n in nodes] for name, nodes in regions.items()}
        self.cache = Cache()
        self._cells: dict[str, Cache] = {}
        self._bound: dict[str, list[tuple[Binding, int, Shape]]] = {name: [] for name in regions}
        self.cache.put(Tenant(metadata=self._meta(TENANT)))
        self.cache.put(PriorityClass(metadata=self._meta("standard")))
        for name, nodes in regions.items():
            cell = self._cells[name] = Cache()
            for index, (cpu, memory) in enumerate(nodes):
                spec = NodeSpec(zone=f"{name}-a", capacity={"cpu": f"{cpu}m", "memory": f"{memory}Gi"})
                cell.put(Node(metadata=self._meta(f"n{index:03}"), spec=spec, status=LIVE))
            spec_of_region = RegionSpec(zones=(f"{name}-a",), cost=costs[name])
            self.cache.put(Region(metadata=self._meta(name), spec=spec_of_region))
            self.report(name)

    def _meta(self, name: str, namespace: str = "") -> ObjectMeta:
        return ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{namespace}-{name}",
            generation=1,
            creation_timestamp=CREATED,
            resource_version=str(next(self._revisions)),
        )

    def report(self, region: str) -> None:
        """The region's report reaches the global cell."""
        (write,) = region_report(self.cache, self._cells[region], region, self.now)
        assert isinstance(write, SetStatus)
        report: RegionReport = write.blocks["report"]
        if not self._by_node:
            report = msgspec.structs.replace(report, free_shapes=(), node_shapes=())
        known = self.cache.get(Region, region)
        assert known is not None
        status = RegionStatus(report=report, health=RegionHealth(state=HealthState.HEALTHY, last_sequence=1))
        self.cache.put(msgspec.structs.replace(known, metadata=self._meta(region), status=status))

    def region(self, name: str) -> Region:
        found = self.cache.get(Region, name)
        assert found is not None
        return found

    def place(self, region: str, shape: Shape, count: int) -> int:
        """Places replicas on the node with most free CPU, or least if regions are tight. Returns how many."""
        for placed in range(count):
            able = [n for n, (cpu, memory) in enumerate(self.free[region]) if cpu >= shape[0] and memory >= shape[1]]
            if not able:
                return placed
            best = min if self._tight else max
            node = best(able, key=lambda n: (self.free[region][n][0], -n))
            self.free[region][node][0] -= shape[0]
            self.free[region][node][1] -= shape[1]
            self._bind(region, node, shape)
        return count

    def _bind(self, region: str, node: int, shape: Shape) -> None:
        meta = self._meta(f"b{next(self._revisions)}", TENANT)
        spec = BindingSpec(
            replica=meta.name,
            intent=Intent(replica_uid=meta.name, template_hash="", attempt=1),
            node=f"n{node:03}",
            template=Template(command=("run",)),
            resources={"cpu": f"{shape[0]}m", "memory": f"{shape[1]}Gi"},
        )
        binding = Binding(metadata=meta, spec=spec)
        self._cells[region].put(binding)
        self._bound[region].append((binding, node, shape))

    def fill(self, chance: Random, shapes: Sequence[Shape], part: float) -> None:
        """Fills every region with replicas of these shapes. Then random ones leave, down to this part of its CPU."""
        for name, nodes in self.free.items():
            goal = sum(cpu for cpu, _ in nodes) * (1 - part)
            refused = 0
            while refused < 20:
                refused += not self.place(name, chance.choice(shapes), 1)
            while sum(cpu for cpu, _ in nodes) < goal and self._bound[name]:
                binding, node, shape = self._bound[name].pop(chance.randrange(len(self._bound[name])))
                nodes[node][0] += shape[0]
                nodes[node][1] += shape[1]
                self._cells[name].remove(Binding, binding.key, next(self._revisions))
            self.report(name)

    def fits(self, region: str, shape: Shape) -> int:
        """How many replicas really fit."""
        return sum(min(cpu // shape[0], memory // shape[1]) for cpu, memory in self.free[region])

    def workload(self, name: str, shape: Shape, replicas: int, spread_regions: int = 0) -> Workload:
        template = Template(command=("run",), resources={"cpu": f"{shape[0]}m", "memory": f"{shape[1]}Gi"})
        rules = PlacementRules(spread_regions=spread_regions)
        spec = WorkloadSpec(template=template, replicas=replicas, placement=rules, priority_class_name="standard")
        item = Workload(metadata=self._meta(name, TENANT), spec=spec)
        self.cache.put(item)
        return item

    def stored(self, name: str) -> Workload:
        found = self.cache.get(Workload, name, TENANT)
        assert found is not None
        return found

    def assign(self, workload: Workload) -> dict[str, int]:
        """The product's decision, applied."""
        for write in assign.decide(workload.key, self.cache, self.now).writes:
            match write:
                case Create() | Update() if isinstance(write.object, Assignment):
                    self._store(write.object)
                case SetStatus():
                    self._spillover(workload, write.blocks)
                case _:
                    pass
        return self.shares(workload)

    def assign_as(self, workload: Workload, shares: Mapping[str, int]) -> None:
        """Assignments of another rule."""
        for region, count in shares.items():
            spec = assign.assignment_spec(workload, region, count, self.cache)
            assert spec is not None
            self._store(Assignment(metadata=assign.assignment_meta(workload, region), spec=spec))

    def shares(self, workload: Workload) -> dict[str, int]:
        found = self.cache.by(Assignment, "workload", str(workload.key))
        return {item.spec.region: item.spec.replicas for item in found if item.spec.replicas}

    def run(self, workload: Workload, shape: Shape) -> int:
        """Regions place what they can of their Assignments and report. Returns the replicas placed now."""
        placed = 0
        for item in self.cache.by(Assignment, "workload", str(workload.key)):
            more = self.place(item.spec.region, shape, item.spec.replicas - item.status.bound)
            placed += more
            bound, waiting = item.status.bound + more, item.spec.replicas - item.status.bound - more
            pending = (PendingReason(reason=Reason.INSUFFICIENT_CPU, count=waiting),) if waiting else ()
            status = AssignmentStatus(
                observed_epoch=item.spec.epoch,
                replicas=item.spec.replicas,
                queued=waiting,
                bound=bound,
                serving=bound,
                pending=pending,
            )
            self._store(msgspec.structs.replace(item, status=status))
            self.report(item.spec.region)
        return placed

    def _store(self, item: Assignment) -> None:
        meta = msgspec.structs.replace(item.metadata, resource_version=str(next(self._revisions)))
        self.cache.put(msgspec.structs.replace(item, metadata=meta))

    def _spillover(self, workload: Workload, blocks: Mapping[str, Any]) -> None:
        known = self.stored(workload.metadata.name)
        status = msgspec.structs.replace(known.status, spillover=blocks["spillover"])
        meta = msgspec.structs.replace(known.metadata, resource_version=str(next(self._revisions)))
        self.cache.put(msgspec.structs.replace(known, metadata=meta, status=status))
