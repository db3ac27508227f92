"""Pods with their Replicas in a region, and the reports of their agents."""

from __future__ import annotations

from typing import Any

from tests import factories

from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.principal import agent
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, PlacementBlock, Replica
from holdfast.model.times import seconds_text
from holdfast.model.writes import Create, Delete, SetStatus

from .conftest import World

CRASHED = ExitStatus(code=3, reason="Exited", at=seconds_text(1_767_225_600.0))


class BoundPod:
    """A Replica of workload web in tenant shop that is bound to a node."""

    def __init__(self, cell: World, region: str, name: str, node: str) -> None:
        self.cell, self.region, self.name, self.node = cell, region, name, node
        self.claim = f"{name}.1"
        self.uid = ""

    async def bind(self) -> None:
        made = factories.replica(0, factories.assignment("web", self.region, namespace="shop"))
        replica = Replica(metadata=ObjectMeta(name=self.name, namespace="shop"), spec=made.spec)
        await self.cell.commit(Create(replica), role="replicate")
        stored = self.cell.objects.get(BY_NAME["Replica"], "shop", self.name)
        assert stored is not None
        self.uid = stored.uid
        placed = PlacementBlock(attempt=1, node=self.node, binding=self.claim)
        spec = BindingSpec(
            replica=self.name,
            intent=Intent(self.uid, "h", 1),
            node=self.node,
            workload="web",
            template=made.spec.template,
            resources={"cpu": "500m"},
        )
        claim = Binding(metadata=ObjectMeta(name=self.claim, namespace="shop"), spec=spec)
        write = SetStatus("Replica", Key("shop", self.name), self.uid, blocks={"placement": placed})
        await self.cell.commit(Create(claim), write, role="authority")

    async def report(self, phase: Phase, **more: Any) -> None:
        execution = ExecutionBlock(phase=phase, attempt=1, address="127.0.0.1", **more)
        write = SetStatus("Replica", Key("shop", self.name), self.uid, blocks={"execution": execution})
        await self.cell.gate.commit(agent(self.node, region=self.region), [write])

    async def remove(self) -> None:
        claim = self.cell.objects.get(BY_NAME["Binding"], "shop", self.claim)
        assert claim is not None
        await self.cell.commit(Delete("Binding", claim.key, claim.uid), role="authority")
