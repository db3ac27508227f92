"""One budget over regions that act late and on their own: never more away than it allows, and everyone gets a turn."""

from __future__ import annotations

import random

import msgspec
import pytest

from holdfast.fleet import away_shares as deciding
from holdfast.fleet.away_shares import away_shares, part_of
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.workload import Batch, Disruption, Workload, WorkloadType
from making import assignment, workload

NAMES = ("east", "north", "west")
EACH = 3
replace = msgspec.structs.replace


class Region:
    """Knows the Assignment it last received, takes replicas away while that allows it, and reports when it likes."""

    def __init__(self) -> None:
        self.copy: Assignment | None = None
        self.away = 0
        self.draining = False

    def act(self) -> None:
        if self.copy is not None and self.draining and self.away < part_of(self.copy):
            self.away += 1

    def report(self) -> AssignmentStatus:
        assert self.copy is not None
        waits = self.draining and self.away >= part_of(self.copy)
        return AssignmentStatus(
            observed_epoch=self.copy.spec.epoch, replicas=EACH, serving=EACH - self.away, held_back=int(waits)
        )


class Fleet:
    def __init__(self, budget: int) -> None:
        self.workload: Workload = workload(replicas=9, disruption=Disruption(max_unavailable=budget))
        self.stored: dict[str, Assignment] = {}
        self.regions = {name: Region() for name in NAMES}

    def decide(self) -> None:
        parts = away_shares(self.workload, NAMES, list(self.stored.values()))
        for name, part in parts.items():
            old = self.stored.get(name)
            if old is None:
                budget = self.workload.spec.disruption
                self.stored[name] = assignment(where=name, replicas=EACH, disruption=budget, away_share=part)
            elif (part, self.workload.spec.disruption) != (old.spec.away_share, old.spec.disruption):
                spec = replace(
                    old.spec, away_share=part, disruption=self.workload.spec.disruption, epoch=old.spec.epoch + 1
                )
                self.stored[name] = replace(old, spec=spec)

    def step(self, what: str, name: str) -> None:
        region = self.regions[name]
        match what:
            case "decide":
                self.decide()
            case "deliver":
                region.copy = self.stored.get(name, region.copy)
            case "act":
                region.act()
            case "report" if region.copy is not None:
                self.stored[name] = replace(self.stored[name], status=region.report())
            case "drain":
                region.draining = not region.draining
            case "return":
                region.away = max(0, region.away - 1)

    @property
    def away(self) -> int:
        return sum(region.away for region in self.regions.values())


def most_over(seeds: range) -> int:
    """How far beyond its budget any of these random walks got."""
    worst = 0
    for seed in seeds:
        chance = random.Random(seed)
        budget = chance.randint(0, 4)
        fleet = Fleet(budget)
        for _ in range(300):
            fleet.step(chance.choice(("decide", "deliver", "act", "report", "drain", "return")), chance.choice(NAMES))
            worst = max(worst, fleet.away - budget)
    return worst


def test_no_more_are_away_than_the_budget_allows() -> None:
    assert most_over(range(300)) == 0


def test_the_walks_find_a_part_that_is_given_on_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "_settled", lambda assignment: True)
    assert most_over(range(300)) > 0


@pytest.mark.parametrize("budget", [1, 2, 4])
def test_every_region_that_drains_gets_its_turn(budget: int) -> None:
    fleet = Fleet(budget)
    turns = dict.fromkeys(NAMES, 0)
    for name in NAMES:
        fleet.regions[name].draining = True
    for _ in range(60):
        fleet.decide()
        for name in NAMES:
            for what in ("deliver", "act", "report"):
                fleet.step(what, name)
            if fleet.regions[name].away:
                turns[name] += 1
                fleet.regions[name].away -= 1
                if turns[name] >= EACH:
                    fleet.regions[name].draining = False
            fleet.step("report", name)
    assert all(count >= EACH for count in turns.values()), turns


def test_a_region_alone_has_the_whole_budget_and_batch_has_none() -> None:
    alone = workload(replicas=3)
    assert away_shares(alone, ["east"], []) == {"east": None}
    assert away_shares(alone, ["east"], [assignment(where="east")]) == {"east": None}
    batch = workload(type=WorkloadType.BATCH, batch=Batch(completions=4, parallelism=2))
    assert set(away_shares(batch, NAMES, []).values()) == {None}


def test_a_second_region_starts_with_nothing_until_the_first_has_given_some() -> None:
    fleet = Fleet(2)
    stored = assignment(where="east", replicas=EACH, disruption=Disruption(max_unavailable=2))
    assert away_shares(fleet.workload, ("east", "west"), [stored]) == {"east": 1, "west": 0}
