"""A controller that reads two cells and writes to the other one: the guarantees of the link."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.controllers.scripted import ScriptedCell, ScriptedClient, meta
from tests.controllers.virtual import VirtualPorts, run, until

from holdfast.client.contract import CommitReceipt, FencingToken
from holdfast.controllers.controller import Controller, ControllerView, woken_by_object
from holdfast.controllers.informer import Informers
from holdfast.controllers.runner import LINK_BATCH_MAX, Runner
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.link.report import endpoint_writes
from holdfast.model import limits
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import Forbidden, Overloaded, Unavailable
from holdfast.model.meta import Key
from holdfast.model.writes import Create, Outcome, Write


class RefusingClient(ScriptedClient):
    """Refuses every commit that creates the object named `refused`, every time; counts the calls."""

    refused = ""
    calls = 0

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        self.calls += 1
        assert token is None, "a token of this cell means nothing in the other"
        if any(isinstance(w, Create) and w.object.metadata.name == self.refused for w in writes):
            raise Forbidden(f"{self.refused} may not be created")
        return await super().commit(writes, token=token, brief=brief)


class Region:
    """Every Endpoint of the region is copied to the other cell."""

    def __init__(self, **options: Any) -> None:
        self.ports = VirtualPorts()
        self.here, self.there = ScriptedCell(), ScriptedCell()
        self.client = RefusingClient(self.there, self.ports)
        self.informers = Informers(ScriptedClient(self.here, self.ports), self.ports)
        self.peer = Informers(self.client, self.ports)

        def decide(key: Key, view: ControllerView, now: float) -> Outcome:
            return Outcome(writes=tuple(endpoint_writes(key, view.peer, view)))

        self.controller = Controller(
            "endpoint-report",
            decide,
            {Endpoint: woken_by_object},
            lambda view: [e.key for side in (view.peer, view) for e in side.list(Endpoint)],
            peer_wakes={Endpoint: woken_by_object},
            writes_peer=True,
            **options,
        )
        self.runner = Runner(self.controller, self.client, self.informers, self.ports, peer=self.peer)
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Region:
        for informers in (self.informers, self.peer):
            await informers.start()
            await informers.synced()
        self._running = asyncio.create_task(self.runner.run())
        await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._running)
        await self.peer.stop()
        await self.informers.stop()

    def put(self, *names: str) -> None:
        for name in names:
            self.here.put(Endpoint(metadata=meta(name), spec=EndpointSpec(workload="w", region="west")))

    def copied(self) -> list[str]:
        return [item.metadata.name for item in self.there.all(Endpoint)]


def test_a_change_in_either_cell_wakes_the_key() -> None:
    async def main() -> None:
        async with Region() as region:
            region.put("a")
            await until(lambda: region.copied() == ["a"], within_s=1)
            region.there.remove(Endpoint, Key("t", "a"))
            await until(lambda: region.copied() == ["a"], within_s=1)
            region.here.remove(Endpoint, Key("t", "a"))
            await until(lambda: not region.copied(), within_s=1)

    run(main)


def test_keys_of_one_burst_are_committed_together() -> None:
    async def main() -> None:
        async with Region() as region:
            for name in "abc":
                region.put(name)
                await asyncio.sleep(limits.LINK_FLUSH_EVERY_S / 4)
            await until(lambda: region.copied() == ["a", "b", "c"], within_s=1)
            assert len(region.there.commits) == 1

    run(main)


def test_a_full_batch_does_not_wait_and_is_bounded() -> None:
    async def main() -> None:
        async with Region() as region:
            region.put(*(f"e{number:03}" for number in range(2 * LINK_BATCH_MAX)))
            await until(lambda: len(region.there.commits) == 2, within_s=limits.LINK_FLUSH_EVERY_S / 2, step_s=0.001)
            assert {len(writes) for writes in region.there.commits} == {LINK_BATCH_MAX}

    run(main)


def test_a_refused_key_is_tried_again_and_delays_no_other_key() -> None:
    async def main() -> None:
        async with Region() as region:
            region.client.refused = "b"
            region.put("a", "b", "c")
            await until(lambda: region.copied() == ["a", "c"], within_s=1)
            await asyncio.sleep(60)
            region.put("d")
            await until(lambda: region.copied() == ["a", "c", "d"], within_s=1)
            region.client.refused = ""
            await until(lambda: region.copied() == ["a", "b", "c", "d"], within_s=limits.RECONNECT_MAX_S + 1)

    run(main)


@pytest.mark.parametrize("fault", [Unavailable("down"), Overloaded("busy")])
def test_unavailable_cell_gets_few_calls_and_later_all_keys(fault: Exception) -> None:
    async def main() -> None:
        async with Region() as region:
            region.client.before_commit = [fault] * 10_000  # type: ignore[list-item]
            names = [f"e{number:04}" for number in range(10 * LINK_BATCH_MAX)]
            region.put(*names)
            await asyncio.sleep(10)
            before = region.client.calls
            await asyncio.sleep(60)
            assert region.client.calls - before <= 60 / (limits.RECONNECT_MAX_S / 2) + 1
            region.client.before_commit.clear()
            await until(lambda: region.copied() == names, within_s=2 * limits.RECONNECT_MAX_S + 2)

    run(main)


def test_failing_prepare_delays_only_its_key() -> None:
    async def main() -> None:
        prepared: list[str] = []
        failing = {"b"}

        async def prepare(key: Key) -> None:
            await asyncio.sleep(0.001)
            if key.name in failing:
                raise Unavailable("its replicas cannot be read")
            prepared.append(key.name)

        async with Region(prepare=prepare) as region:
            region.put("a", "b", "c")
            await until(lambda: region.copied() == ["a", "c"], within_s=1)
            assert "b" not in prepared
            failing.clear()
            await until(lambda: region.copied() == ["a", "b", "c"], within_s=limits.RECONNECT_MAX_S + 1)
            assert prepared.index("b") >= 2

    run(main)
