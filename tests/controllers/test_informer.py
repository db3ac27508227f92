"""The informer's guarantees under dropped, repeated and stalled watches."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controllers.scripted import ScriptedCell, ScriptedClient, meta
from tests.controllers.virtual import VirtualPorts, run, until

from holdfast.client.contract import WatchEvent
from holdfast.controllers.informer import Cache, CacheChange, Informer, Informers
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import Unavailable
from holdfast.model.meta import Key

replace = msgspec.structs.replace


def endpoint(name: str, region: str = "west", namespace: str = "t") -> Endpoint:
    return Endpoint(metadata=meta(name, namespace), spec=EndpointSpec(workload="w", region=region))


class Setup:
    """A cell, an informer on it, and all changes the informer emitted."""

    def __init__(self, **options: Any) -> None:
        self.ports = VirtualPorts()
        self.cell = ScriptedCell()
        self.client = ScriptedClient(self.cell, self.ports)
        self.cache = Cache()
        self.informer = Informer(self.client, Endpoint, self.cache, self.ports, **options)
        self.changes: list[CacheChange[Endpoint]] = []
        self.informer.on_change(self.changes.extend)

    async def __aenter__(self) -> Setup:
        self.informer.start()
        await self.informer.synced.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.informer.stop()

    def names(self) -> list[str]:
        return [item.metadata.name for item in self.cache.list(Endpoint)]

    def matches_cell(self) -> bool:
        return list(self.cache.list(Endpoint)) == self.cell.all(Endpoint)


def test_informer_lists_then_watches() -> None:
    async def main() -> None:
        setup = Setup()
        setup.cell.put(endpoint("a"))
        async with setup:
            assert setup.names() == ["a"]
            setup.cell.put(endpoint("c"))
            setup.cell.put(endpoint("b"))
            changed = setup.cell.put(endpoint("a", region="east"))
            setup.cell.remove(Endpoint, Key("t", "c"))
            await until(setup.matches_cell)
            assert setup.names() == ["a", "b"]
            assert [item.metadata.name for item in setup.cache.by(Endpoint, "region", "east")] == ["a"]
            assert [item.metadata.name for item in setup.cache.by(Endpoint, "region", "west")] == ["b"]
            assert setup.changes[-2].new == changed and setup.changes[-2].old is not None
            assert setup.changes[-1].new is None and setup.changes[-1].old is not None
            assert setup.cell.lists == 1

    run(main)


def test_informer_with_dropped_watch_resumes_without_list() -> None:
    async def main() -> None:
        async with Setup() as setup:
            setup.cell.put(endpoint("a"))
            await until(setup.matches_cell)
            setup.client.broken.set()
            setup.cell.put(endpoint("b"))
            await until(lambda: setup.client.watches == 2 and setup.matches_cell())
            assert setup.cell.lists == 1

    run(main)


def test_informer_with_expired_watch_emits_missed_deletions() -> None:
    async def main() -> None:
        setup = Setup()
        setup.cell.put(endpoint("a"))
        setup.cell.put(endpoint("b"))
        async with setup:
            setup.client.stalled = True
            setup.cell.remove(Endpoint, Key("t", "a"))
            setup.cell.compact()
            setup.client.stalled = False
            await until(setup.matches_cell, within_s=10)
            gone = setup.changes[-1]
            assert gone.new is None and gone.old is not None and gone.old.metadata.name == "a"

    run(main)


def test_recreated_object_is_emitted_as_removal_and_addition() -> None:
    async def main() -> None:
        setup = Setup()
        old = setup.cell.put(endpoint("a"))
        async with setup:
            setup.client.stalled = True
            setup.cell.remove(Endpoint, Key("t", "a"))
            fresh = endpoint("a", region="east")
            new = setup.cell.put(replace(fresh, metadata=replace(fresh.metadata, uid="another")))
            assert new.uid != old.uid
            setup.cell.compact()
            setup.client.stalled = False
            await until(setup.matches_cell, within_s=10)
            assert setup.changes[-2:] == [CacheChange(None, old), CacheChange(new, None)]

    run(main)


def test_resync_after_dropped_events_repairs_cache_and_replaces_watch() -> None:
    async def main() -> None:
        async with Setup(resync_s=30.0) as setup:
            setup.client.edit_batch = lambda batch: []
            setup.cell.put(endpoint("a"))
            await asyncio.sleep(5)
            assert setup.names() == []
            setup.client.edit_batch = list
            await until(setup.matches_cell, within_s=45)
            await until(lambda: setup.client.watches == 2)

    run(main)


def test_stalled_watch_is_repaired_by_next_resync() -> None:
    async def main() -> None:
        async with Setup(resync_s=30.0) as setup:
            setup.client.stalled = True
            setup.cell.put(endpoint("a"))
            setup.cell.put(endpoint("b"))
            await until(setup.matches_cell, within_s=45)

    run(main)


def test_informer_started_while_cell_is_down_syncs_later() -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.down = True
        setup.informer.start()
        await asyncio.sleep(20)
        assert not setup.informer.synced.is_set()
        setup.client.down = False
        setup.cell.put(endpoint("a"))
        await asyncio.wait_for(setup.informer.synced.wait(), 10)
        await until(setup.matches_cell)
        await setup.informer.stop()

    run(main)


def test_informer_retries_failed_list() -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.on_list = [Unavailable("no"), Unavailable("no")]
        async with setup:
            assert setup.cell.lists == 1

    run(main)


def test_informer_resets_cache_after_cell_restore() -> None:
    async def main() -> None:
        setup = Setup(resync_s=1000.0)
        for n in range(5):
            setup.cell.put(endpoint(f"e{n}"))
        async with setup:
            # The cell is restored from a backup: fewer objects, lower revisions, and watches from ours are refused.
            setup.cell.objects.clear()
            setup.cell.log.clear()
            setup.cell.revision = 0
            setup.cell.put(endpoint("e0", region="east"))
            setup.cell.refuse_above = True
            setup.client.broken.set()
            await asyncio.sleep(1)
            assert setup.names() == [f"e{n}" for n in range(5)]
            await until(setup.matches_cell, within_s=60)
            assert [c.old.metadata.name for c in setup.changes if c.new is None and c.old] == ["e1", "e2", "e3", "e4"]
            setup.cell.put(endpoint("new"))
            await until(setup.matches_cell, within_s=5)

    run(main)


def test_object_that_no_longer_matches_fields_is_emitted_as_removal() -> None:
    async def main() -> None:
        setup = Setup(fields={"region": "west"})
        setup.cell.put(endpoint("a", region="east"))
        setup.cell.put(endpoint("b", region="west"))
        async with setup:
            assert setup.names() == ["b"]
            setup.informer.apply_commit([setup.cell.put(endpoint("b", region="east"))])
            assert setup.names() == []
            assert setup.changes[-1].new is None

    run(main)


def test_own_commit_is_visible_before_watch_and_emitted_once() -> None:
    async def main() -> None:
        async with Setup() as setup:
            setup.client.stalled = True
            mine = setup.cell.put(endpoint("a"))
            setup.informer.apply_commit([mine])
            assert setup.cache.get(Endpoint, "a", "t") is mine
            setup.cell.remove(Endpoint, Key("t", "a"))
            setup.informer.apply_commit([], [Key("t", "a")], revision=setup.cell.revision)
            assert setup.names() == []
            notified = len(setup.changes)
            setup.client.stalled = False
            setup.client.broken.set()
            await asyncio.sleep(5)
            # The late watch event of the creation must not bring the object back.
            assert setup.names() == [] and len(setup.changes) == notified

    run(main)


def test_failing_handler_does_not_affect_other_handlers() -> None:
    async def main() -> None:
        setup = Setup()

        def fails(_: object) -> None:
            raise RuntimeError("a bug")

        setup.informer.on_change(fails)
        later: list[CacheChange[Any]] = []
        setup.informer.on_change(later.extend)
        setup.cell.put(endpoint("a"))
        async with setup:
            assert len(later) == 1

    run(main)


def test_informers_share_one_informer_per_kind_and_refuse_other_fields() -> None:
    async def main() -> None:
        ports = VirtualPorts()
        cell = ScriptedCell()
        informers = Informers(ScriptedClient(cell, ports), ports)
        one = informers.of(Endpoint, {"region": "west"})
        assert informers.of(Endpoint) is one
        with pytest.raises(ValueError, match="the informer has other fields"):
            informers.of(Endpoint, {"region": "east"})
        await informers.start()
        await informers.synced()
        cell.put(endpoint("a"))
        await informers.refresh([Endpoint])
        assert informers.cache.get(Endpoint, "a", "t") is not None
        await informers.stop()

    run(main)


def test_cache_with_unknown_index_raises_key_error() -> None:
    with pytest.raises(KeyError, match="has no index"):
        Cache().by(Endpoint, "colour", "red")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(5, 60))
def test_informer_under_lossy_watch_is_monotonic_and_converges(seed: int, steps: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        setup = Setup(resync_s=20.0)
        delivered: list[WatchEvent[Any]] = []
        newest: dict[str, int] = {}

        def edit(batch: list[WatchEvent[Any]]) -> list[WatchEvent[Any]]:
            delivered.extend(batch)
            redelivered = [seen for seen in batch if chance.random() > 0.2]
            redelivered += chance.sample(delivered, min(len(delivered), chance.randrange(3)))
            if chance.random() < 0.3:
                chance.shuffle(redelivered)
            return redelivered

        def check(changes: Any) -> None:
            for new, _ in changes:
                if new is not None:
                    assert new.revision > newest.get(new.metadata.name, 0), "an object went back in time"
                    newest[new.metadata.name] = new.revision

        setup.informer.on_change(check)
        setup.client.edit_batch = edit
        async with setup:
            for _ in range(steps):
                await _one_step(setup, chance)
            setup.client.edit_batch = list
            await until(setup.matches_cell, within_s=60)

    run(main)


async def _one_step(setup: Setup, chance: random.Random) -> None:
    name = f"e{chance.randrange(4)}"
    roll = chance.random()
    if roll < 0.6:
        setup.cell.put(endpoint(name, region=chance.choice(["west", "east"])))
    elif roll < 0.8 and (Endpoint, Key("t", name)) in setup.cell.objects:
        setup.cell.remove(Endpoint, Key("t", name))
    elif roll < 0.9:
        setup.client.broken.set()
    elif roll < 0.95:
        setup.cell.compact()
    await asyncio.sleep(chance.choice([0, 0, 0.05, 3.0]))
