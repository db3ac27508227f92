"""What the tasks of each node use now, asked of the agents while someone looks at the map.

Agents measure on demand and report nothing by themselves. So a small region asks each of them now and then; a large
region asks only for the chosen node (`server/console_regions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.console.region_calls import RegionApi, RegionRequest
from holdfast.foundation.ports import Ports
from holdfast.model.agent_rpc import UsageRow
from holdfast.model.principal import Principal
from holdfast.model.quantity import CPU, MEMORY

# Nodes of a region up to which the map shows their use. Above, only allocations are shown.
USAGE_NODES_MAX = 200
# Interval at which the agents are asked. Each measures for half a second.
USAGE_EVERY_S = 15.0
# Agents that are asked at the same time.
USAGE_CALLS_AT_ONCE = 8

_decoder = msgspec.json.Decoder(UsageRow)


def usage_request(node: str) -> RegionRequest:
    path = f"/agent/v1/nodes/{node}"
    return RegionRequest(method="POST", path=path, body='{"kind":"Usage"}', content_type="application/json")


class NodeUsage:
    """The last known use of every node, in base units. A node that did not answer has none."""

    def __init__(self, api: RegionApi, ports: Ports) -> None:
        self.used: dict[str, dict[str, int]] = {}
        self._api = api
        self._ports = ports
        self._sampling: asyncio.Task[None] | None = None
        self._next_s = 0.0

    def refresh(self, who: Principal, nodes: Sequence[str]) -> None:
        """Starts to ask the agents, if it is time. The answers are there for a later map."""
        now_s = self._ports.clock.monotonic()
        busy = self._sampling is not None and not self._sampling.done()
        if busy or now_s < self._next_s or len(nodes) > USAGE_NODES_MAX:
            return
        self._next_s = now_s + USAGE_EVERY_S
        self._sampling = asyncio.ensure_future(self._sample(who, nodes))

    def stop(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()

    async def _sample(self, who: Principal, nodes: Sequence[str]) -> None:
        seats = asyncio.Semaphore(USAGE_CALLS_AT_ONCE)

        async def ask(node: str) -> tuple[str, dict[str, int] | None]:
            async with seats:
                return node, _summed((await self._api.call(who, usage_request(node))).body)

        answers = await asyncio.gather(*map(ask, nodes))
        self.used = {node: found for node, found in answers if found is not None}


def _summed(lines: str) -> dict[str, int] | None:
    """The sum of the rows of one agent; None if it gave an error."""
    try:
        rows = [_decoder.decode(line) for line in lines.splitlines() if line.strip()]
    except msgspec.MsgspecError:
        return None
    return {CPU: sum(r.cpu for r in rows), MEMORY: sum(r.memory for r in rows)}
