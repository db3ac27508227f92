"""The node provider of a simulation: starts desired pool nodes and stops surplus ones.

As every provider, it stops a node only after the region shows no Binding on it. A pool has the name of its region.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.agent.config import AgentConfig
from holdfast.model.binding import Binding
from holdfast.model.errors import Fault
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node
from holdfast.model.node_pool import NodePool, NodePoolSpec, PoolNode
from holdfast.model.writes import Delete
from holdfast.sim import actors
from holdfast.sim.hosts import AgentHost, CellHost

if TYPE_CHECKING:
    from holdfast.sim.simulation import Simulation

POLL_EVERY_S = 5.0
NODES_MAX = 2
IDLE_S = 30.0


class SimNodeProvider:
    """Reconciles the pools of all regions until the run ends. A restarted node keeps its machine."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._machines: dict[str, AgentHost] = {}

    async def run(self) -> None:
        while True:
            for region in self._simulation.regions:
                try:
                    await self._provide(region)
                except Fault:
                    continue
            await asyncio.sleep(POLL_EVERY_S)

    async def _provide(self, region: CellHost) -> None:
        client = self._simulation.operator_client(region.name, user="provider")
        pool = await client.get(NodePool, region.name)
        if pool is None:
            zones = actors.zones_of(region.name)
            spec = NodePoolSpec(zones, {"cpu": "1", "memory": "2Gi"}, max_nodes=NODES_MAX, idle_seconds=IDLE_S)
            await actors.create_object(client, NodePool(metadata=ObjectMeta(name=region.name), spec=spec))
            return
        meant = {node.name: node for node in pool.status.nodes}
        for node in pool.status.nodes:
            self._start(region, pool, node)
        nodes = [n for n in (await client.list(Node)).items if n.spec.pool == region.name]
        bound = {b.spec.node for b in (await client.list(Binding)).items}
        for stored in nodes:
            name = stored.metadata.name
            if name not in meant and name not in bound and not stored.metadata.terminating:
                self._stop(name)
                await client.commit([Delete("Node", stored.key, stored.uid)])

    def _start(self, region: CellHost, pool: NodePool, node: PoolNode) -> None:
        host = self._machines.get(node.name)
        if host is None:
            config = AgentConfig(
                name=node.name,
                region=region.name,
                zone=node.zone,
                state_dir="",
                pool=pool.metadata.name,
                capacity=pool.spec.capacity,
            )
            host = self._machines[node.name] = self._simulation.new_agent_host(region, config)
        if host not in self._simulation.agents:
            self._simulation.agents.append(host)
            host.decommissioned = False
            host.boot()

    def _stop(self, name: str) -> None:
        host = self._machines.get(name)
        if host is not None and host in self._simulation.agents:
            host.lose_power()
            host.decommissioned = True
            self._simulation.agents.remove(host)
