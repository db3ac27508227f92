"""Losses on a running platform, alone and in pairs, while a client counts failed requests.

The platform is that of `holdfast up`. Processes are stopped with SIGSTOP: connections stay open and nothing is
answered, as with a machine that hangs. The client sends requests to risk-api (six replicas in two regions, four to
serve within five minutes of a region's loss) as nginx does by default: an address that failed is not used for ten
seconds, and a failed request is repeated once on another address. Addresses come from `holdfast endpoints --follow`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from bench.__main__ import Unknown
from holdfast.drills.outage import pause_processes, process_names, region_plan, resume_all
from holdfast.drills.platform_observer import PlatformObserver, serving_by_region
from holdfast.foundation.exit_codes import CommandError
from holdfast.platform.layout import Layout, Platform

TENANT, WORKLOAD = "payments", "risk-api"
REPLICAS = 6
MIN_SERVING = 4
STOPPED_S = 75.0
REQUEST_EVERY_S = 0.05
REQUEST_TIMEOUT_S = 1.0
AVOIDED_S = 10.0
RETURNED_WITHIN_S = 300.0
PORT_BASE = 26400


class Loss(NamedTuple):
    """What is stopped: regions with all their processes, agents of regions without their tasks, the global cell."""

    regions: tuple[int, ...] = ()
    agents: tuple[int, ...] = ()
    global_cell: bool = False


LOSSES = {
    "region": Loss(regions=(0,)),
    "agents": Loss(agents=(0,)),
    "global": Loss(global_cell=True),
    "region-and-region": Loss(regions=(0, 1)),
    "region-and-agents": Loss(regions=(0,), agents=(1,)),
    "region-and-global": Loss(regions=(0,), global_cell=True),
    "agents-and-agents": Loss(agents=(0, 1)),
    "agents-and-global": Loss(agents=(0,), global_cell=True),
}
"""By name. Regions are numbered by how many replicas of the workload serve in them, most first."""

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "region.recovered_seconds": (0, 60),
    "region-and-region.recovered_seconds": (0, 60),
    "region-and-agents.recovered_seconds": (0, 60),
    "agents.failed": (None, 0),
    "agents-and-agents.failed_last_seconds": (None, 60),
    "global.failed": (None, 0),
    "agents-and-global.failed": (None, 0),
    **{f"{name}.returned_seconds": (0, RETURNED_WITHIN_S) for name in LOSSES},
}


class Client:
    """Sends requests at a fixed rate, whether or not earlier ones were answered."""

    def __init__(self, addresses: Path) -> None:
        self._file = addresses
        self._avoided_until: dict[str, float] = {}
        self._turn = 0
        self.requests = 0
        self.repeated = 0
        self.failed_at: list[float] = []

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._request(session))
                await asyncio.sleep(REQUEST_EVERY_S)

    def _next_address(self, tried: str = "") -> str:
        """The next address that did not fail lately; any other if all did."""
        known = [
            f"http://{a['address']}:{a['ports']['http']}/" for a in json.loads(self._file.read_text())["addresses"]
        ]
        others = [address for address in known if address != tried]
        now = time.monotonic()
        usable = [address for address in others if self._avoided_until.get(address, 0.0) <= now] or others
        if not usable:
            return ""
        self._turn += 1
        return usable[self._turn % len(usable)]

    async def _request(self, session: aiohttp.ClientSession) -> None:
        self.requests += 1
        first = self._next_address()
        if await self._answered(session, first):
            return
        self.repeated += 1
        if not await self._answered(session, self._next_address(first)):
            self.failed_at.append(time.monotonic())

    async def _answered(self, session: aiohttp.ClientSession, address: str) -> bool:
        if not address:
            return False
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with session.get(address) as response:
                await response.read()
                return response.status == 200
        self._avoided_until[address] = time.monotonic() + AVOIDED_S
        return False


class Losses:
    """Inflicts losses on one platform and measures them."""

    def __init__(self, layout: Layout, addresses: Path) -> None:
        self._layout = layout
        self._platform: Platform = layout.load()
        self._observer = PlatformObserver(layout, self._platform)
        self._addresses = addresses

    def close(self) -> None:
        self._observer.close()

    async def measure(self, loss: Loss) -> dict[str, Any]:
        ranked = await asyncio.to_thread(self._regions_by_serving)
        client = Client(self._addresses)
        sending = asyncio.create_task(client.run())
        try:
            began = time.monotonic()
            self._stop(loss, ranked)
            figures = await self._recovery(loss, ranked, began)
            await asyncio.sleep(began + STOPPED_S - time.monotonic())
            resume_all(self._layout)
            resumed = time.monotonic()
            await self._until_whole(resumed + RETURNED_WITHIN_S)
            returned = time.monotonic() - resumed
        finally:
            resume_all(self._layout)
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
        while_stopped = [at for at in client.failed_at if at < resumed]
        return {
            "requests": client.requests,
            "repeated": client.repeated,
            "failed": len(client.failed_at),
            "failed_last_seconds": round(max(while_stopped, default=began) - began, 1),
            "failed_after_return": len(client.failed_at) - len(while_stopped),
            **figures,
            "returned_seconds": round(returned, 1),
        }

    async def _recovery(self, loss: Loss, ranked: list[str], began: float) -> dict[str, float]:
        """The time until a region that nothing happened to serves what the objective asks for. Only the loss of a
        region needs a recovery, and only the global cell opens one."""
        affected = {ranked[i] for i in (*loss.regions, *loss.agents)}
        while loss.regions and not loss.global_cell and time.monotonic() - began < STOPPED_S:
            if await asyncio.to_thread(self._served_outside, affected):
                return {"recovered_seconds": round(time.monotonic() - began, 1)}
            await asyncio.sleep(0.5)
        return {}

    def _regions_by_serving(self) -> list[str]:
        serving = serving_by_region(self._observer.get("workloads", WORKLOAD, TENANT))
        return sorted(self._observer.regions, key=lambda region: (-serving.get(region, 0), region))

    def _stop(self, loss: Loss, ranked: list[str]) -> None:
        cells = ["cell-global"] if loss.global_cell else []
        for i in loss.regions:
            cells += process_names(region_plan(self._platform, ranked[i]))
        pause_processes(self._layout, cells)
        for i in loss.agents:
            agents = process_names(region_plan(self._platform, ranked[i]), cell=False)
            pause_processes(self._layout, agents, with_tasks=False)

    def _served_outside(self, affected: set[str]) -> bool:
        serving = serving_by_region(self._observer.get("workloads", WORKLOAD, TENANT))
        return any(count >= MIN_SERVING for region, count in serving.items() if region not in affected)

    def _whole(self) -> bool:
        """Whether the regions are healthy, every recovery ended and the workload serves as it did."""
        try:
            states = [r.get("status", {}).get("health", {}).get("state") for r in self._observer.list("regions")]
            open_recoveries = [r for r in self._observer.list("recoveries") if r["status"].get("phase") != "Closed"]
            summary = self._observer.get("workloads", WORKLOAD, TENANT)["status"]["summary"]
        except (CommandError, KeyError):
            return False
        return not open_recoveries and set(states) == {"Healthy"} and summary.get("serving", 0) == REPLICAS

    async def _until_whole(self, deadline: float) -> None:
        while not await asyncio.to_thread(self._whole) and time.monotonic() < deadline:
            await asyncio.sleep(0.5)


def _holdfast(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "holdfast.cli", *arguments], check=True, capture_output=True)


@contextmanager
def _platform(state: Path) -> Iterator[Path]:
    """A platform with its samples. Yields the file of risk-api's addresses, which is kept up to date."""
    state_option = ("--state", str(state))
    addresses = state.parent / "addresses.json"
    follow = ("endpoints", f"{TENANT}/{WORKLOAD}", "--format", "json", "--write", str(addresses), "--follow")
    try:
        _holdfast("up", "--detach", *state_option, "--port-base", str(PORT_BASE), "--timeout", "180")
        _holdfast(*follow[:-1], *state_option)
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *follow, *state_option],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as following:
            try:
                yield addresses
            finally:
                following.terminate()
    finally:
        _holdfast("down", *state_option)


async def run(shapes: tuple[str, ...] = ()) -> dict[str, Any]:
    """`shapes` names losses; all if empty."""
    unknown = [name for name in shapes if name not in LOSSES]
    if unknown:
        raise Unknown(f"loss {', '.join(unknown)}: not found (expected {', '.join(LOSSES)})")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, _platform(Path(folder) / "platform") as addresses:
        losses = Losses(Layout(str(Path(folder) / "platform")), addresses)
        try:
            for name in shapes or LOSSES:
                figures[name] = await losses.measure(LOSSES[name])
                print(f"  {name}: {figures[name]}", flush=True)
        finally:
            losses.close()
    return figures
