"""A commit without a response takes effect exactly once, or raises Ambiguous."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controllers.scripted import ScriptedCell, ScriptedClient, meta, no_answer
from tests.controllers.virtual import VirtualPorts, run
from tests.expected import of_type

from holdfast.client.contract import CommitReceipt, FencingToken
from holdfast.client.readback import ReadBackResult, read_back_result
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import AlreadyExists, Ambiguous, Conflict, Fault, StaleToken, Unavailable
from holdfast.model.meta import Condition
from holdfast.model.region import Region, RegionHealth, RegionSpec
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write


def endpoint(name: str = "a", region: str = "west") -> Endpoint:
    return Endpoint(metadata=meta(name), spec=EndpointSpec(workload="w", region=region))


def moved(item: Endpoint, region: str) -> Endpoint:
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, region=region))


def setup() -> tuple[ScriptedCell, ScriptedClient]:
    cell = ScriptedCell()
    return cell, ScriptedClient(cell, VirtualPorts())


def test_create_without_response_that_happened_is_found() -> None:
    async def main() -> None:
        cell, client = setup()
        client.after_commit = [no_answer()]
        done = await client.commit([Create(endpoint())])
        assert done.objects[0] == cell.all(Endpoint)[0] and done.revision == 1
        assert len(cell.commits) == 1

    run(main)


def test_create_without_response_that_did_not_happen_is_repeated() -> None:
    async def main() -> None:
        cell, client = setup()
        client.before_commit = [no_answer(), no_answer(), no_answer()]
        await client.commit([Create(endpoint())])
        assert len(cell.commits) == 1

    run(main)


def test_create_without_response_is_not_confused_with_other_object() -> None:
    async def main() -> None:
        cell, client = setup()
        client.before_commit = [no_answer()]
        cell.put(endpoint(region="east"))
        with pytest.raises(AlreadyExists):
            await client.commit([Create(endpoint(region="west"))])

    run(main)


def test_update_without_response_is_recognised_by_content() -> None:
    async def main() -> None:
        cell, client = setup()
        held = cell.put(endpoint())
        client.after_commit = [no_answer()]
        done = await client.commit([Update(moved(held, "east"))])
        assert done.objects[0] == cell.all(Endpoint)[0]
        # Another writer replaces it before the read back: the result is unknown.
        held = cell.all(Endpoint)[0]
        client.before_commit = [no_answer()]
        cell.put(moved(held, "north"))
        with pytest.raises(Ambiguous, match="reading back does not show"):
            await client.commit([Update(moved(held, "south"))])

    run(main)


def test_lost_update_is_repeated() -> None:
    async def main() -> None:
        cell, client = setup()
        held = cell.put(endpoint())
        client.before_commit = [no_answer()]
        await client.commit([Update(moved(held, "east"))])
        assert cell.all(Endpoint)[0].spec.region == "east"

    run(main)


def test_lost_status_write_is_repeated_with_read_revision() -> None:
    async def main() -> None:
        cell, client = setup()
        region = cell.put(Region(metadata=meta("r", ""), spec=RegionSpec()))
        write = SetStatus("Region", region.key, region.uid, blocks={"health": RegionHealth(reason="Why")})
        client.before_commit = [no_answer()]
        await client.commit([write])
        (sent,) = cell.commits[-1]
        assert isinstance(sent, SetStatus) and sent.if_revision == region.revision
        client.after_commit = [no_answer()]
        await client.commit([write])
        assert len(cell.commits) == 2, "it took effect: nothing is sent again"

    run(main)


def test_deletion_without_response_is_done_when_uid_is_gone() -> None:
    async def main() -> None:
        cell, client = setup()
        held = cell.put(endpoint())
        client.after_commit = [no_answer()]
        done = await client.commit([Delete("Endpoint", held.key, held.uid)])
        assert done.objects == (None,)
        again = cell.put(endpoint())
        client.before_commit = [no_answer()]
        await client.commit([Delete("Endpoint", held.key, held.uid)])
        assert cell.all(Endpoint) == [again], "a recreated object of the same name is not deleted"

    run(main)


def test_one_missing_write_shows_that_commit_did_not_happen() -> None:
    async def main() -> None:
        cell, client = setup()
        held = cell.put(endpoint("old"))
        client.before_commit = [no_answer()]
        writes: list[Write] = [Create(endpoint("new")), Update(moved(held, "east"))]
        await client.commit(writes)
        assert len(cell.commits) == 1 and len(cell.all(Endpoint)) == 2

    run(main)


def test_create_with_generated_name_is_never_repeated() -> None:
    async def main() -> None:
        cell, client = setup()
        client.before_commit = [no_answer()]
        nameless = msgspec.structs.replace(endpoint(), metadata=msgspec.structs.replace(meta(""), generate_name="e-"))
        with pytest.raises(Ambiguous):
            await client.commit([Create(nameless)])
        assert not cell.commits

    run(main)


def test_read_back_with_stale_token_raises_stale_token() -> None:
    async def main() -> None:
        cell, client = setup()
        term = cell.put(Term(metadata=meta("boss", ""), spec=TermSpec(holder="me")))
        token = FencingToken("boss", term.revision)
        client.before_commit = [no_answer()]
        cell.put(msgspec.structs.replace(term, spec=TermSpec(holder="you", term=2)))
        with pytest.raises(StaleToken):
            await client.commit([Create(endpoint())], token=token)

    run(main)


def test_failing_read_backs_are_bounded() -> None:
    async def main() -> None:
        _, client = setup()
        client.after_commit = [no_answer()]
        client.on_get = [Unavailable("no")] * 100
        with pytest.raises(Ambiguous):
            await client.commit([Create(endpoint())])
        assert client.gets == 8

    run(main)


def test_read_back_compares_conditions_without_times() -> None:
    region = Region(metadata=meta("r", ""), spec=RegionSpec())
    condition = Condition(type="Ready", status="True", reason="Because", last_transition_time="2026-01-01T00:00:00Z")
    held = msgspec.structs.replace(region, status=msgspec.structs.replace(region.status, conditions=(condition,)))
    later = msgspec.structs.replace(condition, last_transition_time="2026-02-02T00:00:00Z")
    write = SetStatus("Region", region.key, region.uid, conditions=(later,))
    assert read_back_result(write, held) is ReadBackResult.LOOKS_DONE
    assert read_back_result(write, region) is ReadBackResult.NOT_DONE


class LateClient(ScriptedClient):
    """Loses responses, loses requests, and delivers some requests late."""

    def __init__(self, cell: ScriptedCell, ports: Any, chance: random.Random) -> None:
        super().__init__(cell, ports)
        self._chance = chance
        self._late: set[asyncio.Task[None]] = set()

    async def commit_once(self, writes: Sequence[Write], *, token: FencingToken | None = None) -> CommitReceipt:
        roll = self._chance.random()
        if roll < 0.25:
            raise no_answer()
        if roll < 0.5:
            task = asyncio.create_task(self._deliver(writes, token, self._chance.choice([0.0, 0.02, 0.2, 2.0])))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise no_answer()
        done = await super().commit_once(writes, token=token)
        if roll < 0.75:
            raise no_answer()
        return done

    async def _deliver(self, writes: Sequence[Write], token: FencingToken | None, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            self._cell.apply(writes, token)
        except Fault:
            return


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_counter_with_lost_responses_counts_each_commit_once(seed: int) -> None:
    """A counter incremented by compare-and-swap: acknowledged increments are present, none counts twice."""

    async def main() -> None:
        chance = random.Random(seed)
        cell = ScriptedCell()
        client = LateClient(cell, VirtualPorts(seed), chance)
        held = cell.put(msgspec.structs.replace(endpoint(), spec=EndpointSpec(workload="w", region="0")))
        acknowledged = unknown = 0
        for _ in range(25):
            held = await client.get(Endpoint, "a", "t")
            try:
                await client.commit([Update(moved(held, str(int(held.spec.region) + 1)))])
                acknowledged += 1
            except Ambiguous:
                unknown += 1
            except Conflict:
                pass
        await asyncio.sleep(10)
        counted = int(cell.all(Endpoint)[0].spec.region)
        assert acknowledged <= counted <= acknowledged + unknown
        revisions = [int(of_type(c[0].object, Endpoint).spec.region) for c in cell.commits if isinstance(c[0], Update)]
        assert revisions == sorted(set(revisions))

    run(main)
