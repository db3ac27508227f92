"""A large fleet for tests of the console: real cells, 5,000 hollow nodes and 20,000 replicas, all in one region.

One region is the hardest case: whatever a page needs is computed by one cell.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.cells import REGION, BenchCells, Process, bench_cells
from bench.https import connect, request, send_all
from bench.load import ProgressPoller, posts, workload_body, workloads_path
from bench.pipeline import Stage
from bench.shapes import in_workloads

PER_CONNECTION = 8
READY_S = 300.0
CHURN_REPLICAS = 20
CHURN_LIVES = 8
"""A churn workload is deleted after this many newer ones were created."""


class LargeFleet:
    """A running fleet: a global cell, one region, and a process of hollow nodes."""

    def __init__(self, cells: BenchCells, parts: dict[str, Process]) -> None:
        self.cells = cells
        self.parts = parts
        self._next = 0

    @property
    def console(self) -> str:
        return self.cells.urls["global"].replace("https:", "http:") + "/console"

    def link(self) -> str:
        """A new sign-in link of the operator."""
        asked = urllib.request.Request(
            self.cells.urls["global"] + "/console/api/links", method="POST", headers={"X-Holdfast-Console": "command"}
        )
        with urllib.request.urlopen(asked, context=self.cells.tls(self.cells.operator), timeout=30) as answer:
            path: str = json.loads(answer.read())["path"]
        return self.console.removesuffix("/console") + path

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each cell since its start."""
        return {name: self.parts[name].cpu_s() for name in ("global", "region")}

    def churn(self, *, seconds: float, every_s: float) -> int:
        """Creates a workload in each interval and deletes an old one. Returns how many were created."""
        return asyncio.run(self._churn(seconds, every_s))

    async def _churn(self, seconds: float, every_s: float) -> int:
        url, made = self.cells.urls["global"], 0
        link = await connect(url, self.cells.tls(self.cells.user))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        try:
            while loop.time() < until_s:
                await link.ask(posts(url, [workload_body(f"churn{self._next:05}", CHURN_REPLICAS)])[0])
                if self._next >= CHURN_LIVES:
                    old = f"{workloads_path()}/churn{self._next - CHURN_LIVES:05}"
                    await link.ask(request(url, "DELETE", old))
                self._next, made = self._next + 1, made + 1
                await asyncio.sleep(every_s)
        finally:
            link.close()
        return made


@contextlib.contextmanager
def large_fleet(nodes: int, replicas: int) -> Iterator[LargeFleet]:
    """Runs the fleet until the block ends. Every replica is ready when it begins."""
    with tempfile.TemporaryDirectory(prefix="holdfast-fleet-") as place, bench_cells(Path(place)) as cells:
        stage = Stage(cells)
        asyncio.run(_build(stage, nodes, replicas))
        yield LargeFleet(cells, stage.parts)


async def _build(stage: Stage, nodes: int, replicas: int) -> None:
    cells = stage.bench
    await stage.build(nodes)
    url = cells.urls["global"]
    messages = posts(url, in_workloads(replicas))
    await send_all(url, cells.tls(cells.user), messages, min(PER_CONNECTION, len(messages)))
    async with asyncio.timeout(READY_S):
        await ProgressPoller(cells).until_ready(replicas)
    await stage.rest()


__all__ = ["REGION", "LargeFleet", "large_fleet"]
