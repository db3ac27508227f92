"""Decisions of simulations with faults: each replays identically or is NotReplayable with a known reason."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.insight.replay_state import fetch

from holdfast.insight.replay import NotReplayable, replay
from holdfast.model.decision import Decision
from holdfast.model.kinds import kind_of
from holdfast.sim.disk import Disk
from holdfast.sim.simulation import Simulation
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

EXPECTED = {
    "HistoryCompacted",
    "AssumedDecisionMissing",
    "EarlierDecisionMissing",
    "AdoptedClaims",
    "PolicyMissing",
    "RequestMissing",
}


async def outcomes(region: str, disk: Disk) -> Counter[str]:
    found: Counter[str] = Counter()
    objects = Objects(disk.store, MemoryStore())
    await objects.start()
    for decision in objects.list(kind_of(Decision))[0]:
        assert isinstance(decision, Decision)
        past = await fetch(objects, decision)
        made = past if isinstance(past, NotReplayable) else replay(region, decision, past)
        if isinstance(made, NotReplayable):
            assert made.reason in EXPECTED, made
            found[made.reason] += 1
        else:
            assert made.identical, made.differences
            found["same"] += 1
    await objects.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_no_decision_of_faulty_simulation_replays_differently(seed: int) -> None:
    found: Counter[str] = Counter()
    world = Simulation(seed)
    disks = [(region.name, region.disk) for region in world.regions]
    assert world.run().ok
    for region, disk in disks:
        found += asyncio.run(outcomes(region, disk))
    assert found["same"], "some decisions survive history compaction"
