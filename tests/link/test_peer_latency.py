"""Links measure the round trip to other regions with their probes."""

from __future__ import annotations

import asyncio

import msgspec
from tests.controllers import virtual
from tests.factories import region, with_new_revision

from holdfast.link.peer_probes import LATENCY_PROBES_MAX, PEER_PROBE_FAILURES_MAX, PeerProber
from holdfast.model.region import Region


class SlowPeer:
    """A peer whose answers take these times, then none any more."""

    def __init__(self, *took_s: float) -> None:
        self._took_s = list(took_s)

    async def reachable(self, region: str, endpoint: str) -> bool:
        if not self._took_s:
            return False
        await asyncio.sleep(self._took_s.pop(0))
        return True


def peer(name: str) -> Region:
    made = region(name)
    return with_new_revision(made, spec=msgspec.structs.replace(made.spec, endpoint=f"https://{name}.example"))


def probed(*took_s: float, times: int) -> list[tuple[bool, float]]:
    found: list[tuple[bool, float]] = []

    async def main() -> None:
        prober = PeerProber("east", SlowPeer(*took_s), virtual.VirtualPorts())
        for _ in range(times):
            await prober.probe_all([peer("east"), peer("west")])
            found.extend((result.reachable, result.latency_ms) for result in prober.results())

    virtual.run(main)
    return found


def test_shortest_round_trip_of_the_last_probes_is_reported() -> None:
    assert probed(0.2, 0.05, 0.08, times=3) == [(True, 200.0), (True, 50.0), (True, 50.0)]
    many = probed(0.01, *[0.03] * LATENCY_PROBES_MAX, times=LATENCY_PROBES_MAX + 1)
    assert [latency for _, latency in many] == [*[10.0] * LATENCY_PROBES_MAX, 30.0], "an old measurement is forgotten"


def test_latency_of_an_unreachable_peer_is_unknown() -> None:
    found = probed(0.05, times=1 + PEER_PROBE_FAILURES_MAX)
    assert found[0] == (True, 50.0) and found[-1] == (False, 0.0)
    assert found[1] == (True, 50.0), "one failed probe proves nothing"
