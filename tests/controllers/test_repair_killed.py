"""The repair controller on a real cell, killed before and after every call and restarted each time.

A killed process never returns from its call: the call took effect or not, and nothing follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from tests.controllers.virtual import VirtualPorts, run
from tests.factories import replica

from holdfast.cell.controller_table import regional_controllers
from holdfast.client.contract import CommitReceipt, FencingToken, Listing
from holdfast.controllers.informer import Informers
from holdfast.controllers.runner import Runner
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.model import input_freshness, limits
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.principal import controller
from holdfast.model.replica import PlacementBlock, Replica
from holdfast.model.tenant import Tenant
from holdfast.model.times import micro_text
from holdfast.model.writes import Create, Notice, SetStatus, Update, Write
from holdfast.scheduling.eviction.repair import REPAIRS_PER_MINUTE
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

REGION = "west"
STUCK = REPAIRS_PER_MINUTE + 3
CALLS = 10
"""Kill points; a complete run makes fewer calls."""
REPAIR = next(c for c in regional_controllers(REGION) if c.name == "repair")


T = TypeVar("T")


class KillableClient:
    """A client that kills its process at call number `killed_at_call`, before or after the call takes effect."""

    def __init__(self, client: LocalClient, killed_at_call: int, *, after: bool) -> None:
        self._client, self._dies_at, self._after = client, killed_at_call, after
        self.calls = 0
        self.died = asyncio.Event()
        self.cell = client.cell

    async def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        killable = self.calls == self._dies_at
        if self.died.is_set() or (killable and not self._after):
            await self._kill()
        done = await act()
        if killable:
            await self._kill()
        return done

    async def _kill(self) -> None:
        self.died.set()
        await asyncio.Event().wait()

    async def list(
        self, kind: type[Any], namespace: str = "", *, fields: Mapping[str, str] | None = None
    ) -> Listing[Any]:
        return await self._call(lambda: self._client.list(kind, namespace, fields=fields))

    def watch(self, kind: type[Any], namespace: str = "", **more: Any) -> Any:
        return self._client.watch(kind, namespace, **more)

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        return await self._call(lambda: self._client.commit(writes, token=token, brief=brief))

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        await self._call(lambda: self._client.notify(notices, component=component))


class Cell:
    def __init__(self) -> None:
        self.ports = VirtualPorts()
        self.objects = Objects(MemoryStore(), MemoryStore())
        self.gate = Gate(REGION, self.objects, self.ports)

    def client(self, role: str) -> LocalClient:
        return LocalClient(self.gate, controller(role, cell=REGION))

    async def fill(self) -> None:
        """Creates replicas that were bound long ago and have no report from the agent."""
        await self.objects.start()
        await self.client("link").commit([Create(Tenant(metadata=ObjectMeta(name="acme")))])
        long_ago = micro_text(self.ports.clock.now() - limits.STAGE_DEADLINE_S["Bound"] - 60)
        for number in range(STUCK):
            made = replica(number)
            meta = ObjectMeta(name=made.metadata.name, namespace="acme")
            stored = (await self.client("replicate").commit([Create(Replica(meta, made.spec))])).objects[0]
            assert stored is not None
            placed = PlacementBlock(
                attempt=1, node="n1", zone="z", reservation="r", binding="b", epoch=1, bound_at=long_ago
            )
            block = SetStatus("Replica", stored.key, stored.uid, blocks={"placement": placed})
            await self.client("authority").commit([block])

    async def override(self, kind: OverrideKind, *, active: bool) -> None:
        ends = micro_text(self.ports.clock.now() + 3600)
        status = OverrideStatus(phase="Active" if active else "Expired", expires_at=ends)
        spec = OverrideSpec(kind=kind, scope=OverrideScope(region=REGION), reason="x", requester="ann")
        override_item = Override(ObjectMeta(name=kind.value.lower()), spec, status)
        known = await self.client("link").get(Override, kind.value.lower())
        write: Write = Create(override_item)
        if known is not None:
            write = Update(msgspec.structs.replace(known, status=status))
        await self.client("link").commit([write])

    async def run_process(self, killable: KillableClient, *, run_s: float) -> None:
        """Runs one controller process until it is killed or `run_s` is over."""
        informers = Informers(killable, self.ports)  # type: ignore[arg-type]
        runner = Runner(REPAIR, killable, informers, self.ports)  # type: ignore[arg-type]
        living = asyncio.ensure_future(self._run(informers, runner))
        dying = asyncio.ensure_future(killable.died.wait())
        await asyncio.wait({dying}, timeout=run_s)
        killable.died.set()  # later calls have no effect
        for task in (living, dying, runner._run_task):
            if task is not None:
                task.cancel()
        await informers.stop()
        await asyncio.sleep(0)

    async def _run(self, informers: Informers, runner: Runner) -> None:
        await informers.start()
        await runner.start()

    async def states(self) -> list[str]:
        found = (await self.client("repair").list(Replica)).items
        return sorted(r.status.repair.state if r.status.repair is not None else "" for r in found)

    async def release_requested_at(self) -> dict[str, str]:
        found = (await self.client("repair").list(Replica)).items
        return {
            r.metadata.name: r.status.repair.at
            for r in found
            if r.status.repair and r.status.repair.state == "ReleaseRequested"
        }


DONE = sorted(["ReleaseRequested"] * REPAIRS_PER_MINUTE + ["AwaitingApproval"] * 3)


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after it"])
def test_repair_killed_at_any_call_requests_each_release_once(after: bool) -> None:
    for killed_at_call in range(1, CALLS + 1):

        async def main(killed_at_call: int = killed_at_call) -> None:
            cell = Cell()
            await cell.fill()
            first = KillableClient(cell.client("repair"), killed_at_call, after=after)
            await cell.run_process(first, run_s=5.0)
            before = await cell.release_requested_at()
            await cell.run_process(KillableClient(cell.client("repair"), 0, after=False), run_s=5.0)
            assert await cell.states() == DONE, f"killed at call {killed_at_call}"
            now = await cell.release_requested_at()
            assert before.items() <= now.items(), "no release is requested twice: the first record stays"
            await cell.objects.close()

        run(main)


def test_repair_pause_and_approval_survive_crash() -> None:
    async def main() -> None:
        cell = Cell()
        await cell.fill()
        await cell.override(OverrideKind.PAUSE_REPAIR, active=True)
        await cell.run_process(KillableClient(cell.client("repair"), 5, after=True), run_s=5.0)
        await cell.run_process(KillableClient(cell.client("repair"), 0, after=False), run_s=5.0)
        assert await cell.states() == ["Paused"] * STUCK
        await cell.override(OverrideKind.PAUSE_REPAIR, active=False)
        await cell.run_process(KillableClient(cell.client("repair"), 0, after=False), run_s=5.0)
        assert await cell.states() == DONE, "repairs beyond the rate limit await approval"
        await cell.override(OverrideKind.APPROVE_REPAIR, active=True)
        await cell.run_process(KillableClient(cell.client("repair"), 0, after=False), run_s=5.0)
        assert await cell.states() == ["ReleaseRequested"] * STUCK
        for item in (await cell.client("repair").list(Replica)).items:
            block = item.status.repair
            assert (
                block is not None
                and block.reason == "StageDeadlineExceeded"
                and "since" in block.message
                and block.attempt == 1
            )
        await cell.objects.close()

    run(main)


@pytest.mark.parametrize("silent_s", [5.0, input_freshness.OVERRIDE.seconds + 1.0])
def test_repair_approval_past_contact_age_is_ignored(silent_s: float) -> None:
    async def main() -> None:
        cell = Cell()
        await cell.fill()
        last_contact_at = micro_text(cell.ports.clock.now() - silent_s)
        spec = GrantCopySpec(limit={"cpu": "9"}, last_contact_at=last_contact_at, lease_expires_at=last_contact_at)
        copy = GrantCopy(ObjectMeta(name="normal", namespace="acme"), spec)
        await cell.client("grant-sync").commit([Create(copy)])
        await cell.override(OverrideKind.APPROVE_REPAIR, active=True)
        await cell.run_process(KillableClient(cell.client("repair"), 0, after=False), run_s=5.0)
        assert await cell.states() == (
            ["ReleaseRequested"] * STUCK if silent_s < input_freshness.OVERRIDE.seconds else DONE
        )
        await cell.objects.close()

    run(main)


def test_repair_run_makes_fewer_calls_than_kill_points() -> None:
    async def main() -> None:
        cell = Cell()
        await cell.fill()
        whole = KillableClient(cell.client("repair"), 0, after=False)
        await cell.run_process(whole, run_s=5.0)
        assert 3 <= whole.calls < CALLS, f"{whole.calls} calls: CALLS must cover them all"
        await cell.objects.close()

    run(main)
