"""Leader election: one leader at a time by clocks, and by the fencing token whatever the clocks say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controllers.scripted import ScriptedCell, ScriptedClient, meta, no_answer
from tests.controllers.virtual import VirtualClock, VirtualPorts, run, until

from holdfast.client.contract import FencingToken
from holdfast.controllers.leader_election import NAMESPACE, Election
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model.core import Lease
from holdfast.model.election_term import Term
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import Conflict, StaleToken
from holdfast.model.limits import LEADER_TTL_S
from holdfast.model.meta import Key
from holdfast.model.writes import Create


class SlowClock(VirtualClock):
    """A clock that drifts by `rate`."""

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate

    def monotonic(self) -> float:
        return super().monotonic() * self.rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)


def contender(
    cell: ScriptedCell, identity: str, *, seed: int = 1, rate: float = 1.0
) -> tuple[Election, ScriptedClient]:
    ports: Any = VirtualPorts(seed)
    ports.clock = SlowClock(rate)
    client = ScriptedClient(cell, ports)
    return Election(client, "boss", identity, ports), client


def test_first_contender_wins_and_keeps_leading() -> None:
    async def main() -> None:
        cell = ScriptedCell()
        one, _ = contender(cell, "one")
        two, _ = contender(cell, "two", seed=2)
        await one.start()
        token = await asyncio.wait_for(one.wait_until_leading(), 1)
        await two.start()
        await asyncio.sleep(600)
        assert one.token == token and not two.leading
        assert token.revision == cell.objects[(Term, Key("", "boss"))].revision
        await two.stop()
        await one.stop()

    run(main)


def test_takeover_waits_full_ttl_and_raises_term() -> None:
    async def main() -> None:
        cell, loop = ScriptedCell(), asyncio.get_running_loop()
        one, client = contender(cell, "one")
        two, _ = contender(cell, "two", seed=2)
        await one.start()
        first = await one.wait_until_leading()
        await two.start()
        await asyncio.sleep(20)
        client.down = True
        last_renewal = cell.objects[(Lease, Key(NAMESPACE, "boss"))].revision
        cut_at = loop.time()
        await one.wait_until_not_leading()
        lost_at = loop.time()
        second = await two.wait_until_leading()
        assert lost_at < loop.time(), "the old leader stops before the new one starts"
        assert loop.time() - cut_at > LEADER_TTL_S - 5.0
        assert last_renewal < second.revision and first != second
        assert cell.objects[(Term, Key("", "boss"))].spec.term == 2
        await one.stop()
        await two.stop()

    run(main)


@pytest.mark.parametrize("rate", [0.99, 1.0, 1.01])
def test_contenders_with_clock_drift_never_lead_at_once(rate: float) -> None:
    async def main() -> None:
        cell = ScriptedCell()
        one, one_client = contender(cell, "one", rate=rate)
        two, two_client = contender(cell, "two", seed=2, rate=2.0 - rate)
        await one.start()
        await two.start()
        turns: set[str] = set()
        for step in range(4000):
            await asyncio.sleep(0.1)
            one_client.down = step % 400 < 200
            two_client.down = step % 400 >= 250
            assert not (one.leading and two.leading)
            turns |= {e.identity for e in (one, two) if e.leading}
        assert turns == {"one", "two"}
        await one.stop()
        await two.stop()

    run(main)


def test_late_write_of_paused_leader_is_refused() -> None:
    async def main() -> None:
        cell = ScriptedCell()
        one, client = contender(cell, "one")
        await one.start()
        stale = await one.wait_until_leading()
        client.down = True
        two, _ = contender(cell, "two", seed=2)
        await two.start()
        await two.wait_until_leading()
        client.down = False
        late = Create(Endpoint(metadata=meta("late"), spec=EndpointSpec(workload="w", region="west")))
        with pytest.raises(StaleToken):
            await client.commit([late], token=stale)
        assert not cell.all(Endpoint)
        one.token_rejected(FencingToken("boss", stale.revision))
        assert one.token is None
        await one.stop()
        await two.stop()

    run(main)


def test_clean_stop_releases_lease_and_crash_does_not() -> None:
    async def main() -> None:
        cell, loop = ScriptedCell(), asyncio.get_running_loop()
        one, _ = contender(cell, "one")
        two, _ = contender(cell, "two", seed=2)
        async with one, two:
            await one.wait_until_leading()
            await one.stop()
            began = loop.time()
            await two.wait_until_leading()
            assert loop.time() - began < 5.0
            with pytest.raises(ZeroDivisionError):
                async with two:
                    raise ZeroDivisionError
            assert cell.objects[(Lease, Key(NAMESPACE, "boss"))].spec.holder_identity == "two"

    run(main)


def test_restarted_identity_takes_its_own_lease_at_once() -> None:
    async def main() -> None:
        cell, loop = ScriptedCell(), asyncio.get_running_loop()
        crashed, _ = contender(cell, "only")
        await crashed.start()
        old = await crashed.wait_until_leading()
        restarted, _ = contender(cell, "only", seed=3)
        began = loop.time()
        await restarted.start()
        new = await restarted.wait_until_leading()
        assert loop.time() - began < 1.0 and new.revision > old.revision
        await restarted.stop()

    run(main)


def test_unanswered_renewal_keeps_leadership() -> None:
    async def main() -> None:
        cell = ScriptedCell()
        one, client = contender(cell, "one")
        await one.start()
        token = await one.wait_until_leading()
        for _ in range(10):
            client.after_commit.append(no_answer())
            client.before_commit.append(Conflict("late renewal of the same leader"))
            await asyncio.sleep(7)
            assert one.token == token
        await one.stop()

    run(main)


def test_expired_lease_ends_leadership_and_notifies_listeners() -> None:
    async def main() -> None:
        cell = ScriptedCell()
        one, client = contender(cell, "one")
        observed: list[FencingToken | None] = []

        async def work(token: FencingToken) -> None:
            observed.append(token)
            try:
                await asyncio.Event().wait()
            finally:
                observed.append(None)

        working = asyncio.create_task(one.while_leading(work))
        await one.start()
        await one.wait_until_leading()
        client.down = True
        await asyncio.wait_for(one.wait_until_not_leading(), LEADER_TTL_S)
        await until(lambda: len(observed) == 2, within_s=1)
        assert observed[0] is not None and observed[1] is None
        client.down = False
        await asyncio.wait_for(one.wait_until_leading(), 10)
        await until(lambda: len(observed) == 3 and observed[2] is not None, within_s=1)
        await cancel_and_wait(working)
        assert observed[3:] == [None]
        await one.stop()

    run(main)
