"""The informer keeps its promises whatever the watch does to it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedCell, ScriptedClient, meta
from virtual import VirtualPorts, run, until

from holdfast.client.contract import Seen
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import Unavailable
from holdfast.model.meta import Key
from holdfast.runtime.informer import Cache, Changed, Informer, Informers

replace = msgspec.structs.replace


def endpoint(name: str, region: str = "west", namespace: str = "t") -> Endpoint:
    return Endpoint(metadata=meta(name, namespace), spec=EndpointSpec(workload="w", region=region))


class Setup:
    """A cell, an informer on it, and everything the informer has handed out."""

    def __init__(self, **options: Any) -> None:
        self.ports = VirtualPorts()
        self.cell = ScriptedCell()
        self.client = ScriptedClient(self.cell, self.ports)
        self.cache = Cache()
        self.informer = Informer(self.client, Endpoint, self.cache, self.ports, **options)
        self.changes: list[Changed[Endpoint]] = []
        self.informer.on_change(self.changes.extend)

    async def __aenter__(self) -> Setup:
        self.informer.start()
        await self.informer.synced.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.informer.stop()

    def names(self) -> list[str]:
        return [item.metadata.name for item in self.cache.list(Endpoint)]

    def true(self) -> bool:
        return list(self.cache.list(Endpoint)) == self.cell.all(Endpoint)


def test_lists_then_follows() -> None:
    async def main() -> None:
        setup = Setup()
        setup.cell.put(endpoint("a"))
        async with setup:
            assert setup.names() == ["a"]
            setup.cell.put(endpoint("c"))
            setup.cell.put(endpoint("b"))
            changed = setup.cell.put(endpoint("a", region="east"))
            setup.cell.remove(Endpoint, Key("t", "c"))
            await until(setup.true)
            assert setup.names() == ["a", "b"]
            assert [item.metadata.name for item in setup.cache.by(Endpoint, "region", "east")] == ["a"]
            assert [item.metadata.name for item in setup.cache.by(Endpoint, "region", "west")] == ["b"]
            assert setup.changes[-2].new == changed and setup.changes[-2].old is not None
            assert setup.changes[-1].new is None and setup.changes[-1].old is not None
            assert setup.cell.lists == 1

    run(main)


def test_a_dropped_watch_resumes_without_a_list() -> None:
    async def main() -> None:
        async with Setup() as setup:
            setup.cell.put(endpoint("a"))
            await until(setup.true)
            setup.client.broken.set()
            setup.cell.put(endpoint("b"))
            await until(lambda: setup.client.watches == 2 and setup.true())
            assert setup.cell.lists == 1

    run(main)


def test_an_expired_watch_lists_and_hands_out_the_deletions_it_missed() -> None:
    async def main() -> None:
        setup = Setup()
        setup.cell.put(endpoint("a"))
        setup.cell.put(endpoint("b"))
        async with setup:
            setup.client.stalled = True
            setup.cell.remove(Endpoint, Key("t", "a"))
            setup.cell.compact()
            setup.client.stalled = False
            await until(setup.true, within_s=10)
            gone = setup.changes[-1]
            assert gone.new is None and gone.old is not None and gone.old.metadata.name == "a"

    run(main)


def test_what_was_made_anew_under_its_name_is_told_as_one_gone_and_one_new() -> None:
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
            await until(setup.true, within_s=10)
            assert setup.changes[-2:] == [Changed(None, old), Changed(new, None)]

    run(main)


def test_a_resync_repairs_what_the_watch_dropped_and_takes_a_new_watch() -> None:
    async def main() -> None:
        async with Setup(resync_s=30.0) as setup:
            setup.client.edit_batch = lambda batch: []
            setup.cell.put(endpoint("a"))
            await asyncio.sleep(5)
            assert setup.names() == []
            setup.client.edit_batch = list
            await until(setup.true, within_s=45)
            await until(lambda: setup.client.watches == 2)

    run(main)


def test_a_stalled_watch_costs_one_resync() -> None:
    async def main() -> None:
        async with Setup(resync_s=30.0) as setup:
            setup.client.stalled = True
            setup.cell.put(endpoint("a"))
            setup.cell.put(endpoint("b"))
            await until(setup.true, within_s=45)

    run(main)


def test_it_starts_and_recovers_while_the_cell_is_down() -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.down = True
        setup.informer.start()
        await asyncio.sleep(20)
        assert not setup.informer.synced.is_set()
        setup.client.down = False
        setup.cell.put(endpoint("a"))
        await asyncio.wait_for(setup.informer.synced.wait(), 10)
        await until(setup.true)
        await setup.informer.stop()

    run(main)


def test_a_list_that_fails_is_tried_again() -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.on_list = [Unavailable("no"), Unavailable("no")]
        async with setup:
            assert setup.cell.lists == 1

    run(main)


def test_a_restored_cell_is_followed_again_and_a_lagging_one_waited_for() -> None:
    async def main() -> None:
        setup = Setup(resync_s=1000.0)
        for n in range(5):
            setup.cell.put(endpoint(f"e{n}"))
        async with setup:
            # The cell comes back from a backup: fewer objects, lower revisions, and it refuses to watch from ours.
            setup.cell.objects.clear()
            setup.cell.log.clear()
            setup.cell.revision = 0
            setup.cell.put(endpoint("e0", region="east"))
            setup.cell.refuse_above = True
            setup.client.broken.set()
            await asyncio.sleep(1)
            assert setup.names() == [f"e{n}" for n in range(5)]
            await until(setup.true, within_s=60)
            assert [c.old.metadata.name for c in setup.changes if c.new is None and c.old] == ["e1", "e2", "e3", "e4"]
            setup.cell.put(endpoint("new"))
            await until(setup.true, within_s=5)

    run(main)


def test_fields_narrow_the_cache_and_leaving_them_is_a_deletion() -> None:
    async def main() -> None:
        setup = Setup(fields={"region": "west"})
        setup.cell.put(endpoint("a", region="east"))
        setup.cell.put(endpoint("b", region="west"))
        async with setup:
            assert setup.names() == ["b"]
            setup.informer.absorb([setup.cell.put(endpoint("b", region="east"))])
            assert setup.names() == []
            assert setup.changes[-1].new is None

    run(main)


def test_own_writes_are_seen_ahead_of_the_watch_and_told_once() -> None:
    async def main() -> None:
        async with Setup() as setup:
            setup.client.stalled = True
            mine = setup.cell.put(endpoint("a"))
            setup.informer.absorb([mine])
            assert setup.cache.get(Endpoint, "a", "t") is mine
            setup.cell.remove(Endpoint, Key("t", "a"))
            setup.informer.absorb([], [Key("t", "a")], revision=setup.cell.revision)
            assert setup.names() == []
            told = len(setup.changes)
            setup.client.stalled = False
            setup.client.broken.set()
            await asyncio.sleep(5)
            # The creation that the watch delivers late must not bring it back.
            assert setup.names() == [] and len(setup.changes) == told

    run(main)


def test_a_failing_handler_stops_nobody() -> None:
    async def main() -> None:
        setup = Setup()

        def fails(_: object) -> None:
            raise RuntimeError("a bug")

        setup.informer.on_change(fails)
        later: list[Changed[Any]] = []
        setup.informer.on_change(later.extend)
        setup.cell.put(endpoint("a"))
        async with setup:
            assert len(later) == 1

    run(main)


def test_a_set_shares_informers_and_refuses_other_fields() -> None:
    async def main() -> None:
        ports = VirtualPorts()
        cell = ScriptedCell()
        informers = Informers(ScriptedClient(cell, ports), ports)
        one = informers.of(Endpoint, {"region": "west"})
        assert informers.of(Endpoint) is one
        with pytest.raises(ValueError, match="already followed"):
            informers.of(Endpoint, {"region": "east"})
        await informers.start()
        await informers.synced()
        cell.put(endpoint("a"))
        await informers.refresh([Endpoint])
        assert informers.cache.get(Endpoint, "a", "t") is not None
        await informers.stop()

    run(main)


def test_an_unknown_index_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="has no index"):
        Cache().by(Endpoint, "colour", "red")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(5, 60))
def test_under_drops_repeats_and_disorder_it_never_goes_back_and_ends_true(seed: int, steps: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        setup = Setup(resync_s=20.0)
        delivered: list[Seen[Any]] = []
        newest: dict[str, int] = {}

        def edit(batch: list[Seen[Any]]) -> list[Seen[Any]]:
            delivered.extend(batch)
            kept = [seen for seen in batch if chance.random() > 0.2]
            kept += chance.sample(delivered, min(len(delivered), chance.randrange(3)))
            if chance.random() < 0.3:
                chance.shuffle(kept)
            return kept

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
            await until(setup.true, within_s=60)

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
