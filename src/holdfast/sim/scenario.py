"""Runs declared scenarios (`sim/declared.py`) with a few seeds each and reports the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from holdfast.sim import story
from holdfast.sim.declared import Scenario, load, names
from holdfast.sim.expected import missed
from holdfast.sim.shrink import Subject, lived
from holdfast.sim.single import tell_small, with_bug
from holdfast.sim.world import Outcome, Telling

SEEDS = 2
"""Number of seeds per scenario."""


class Played(msgspec.Struct, frozen=True):
    """One run of one variant. `missed` are its unmet expectations."""

    title: str
    subject: Subject
    outcome: Outcome
    telling: Telling
    missed: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.outcome.ok and not self.missed

    def complaints(self) -> list[str]:
        broken = story.complaints(self.outcome, most=story.COMPLAINTS_SHOWN)
        return [*broken, *(f"unmet expectation: {text}" for text in self.missed)]


def play(scenario: Scenario, seed: int, *, every: bool = False) -> Iterator[Played]:
    """Runs every variant with one seed."""
    for title, planned in scenario.variants(every=every):
        subject = Subject(seed, scenario.shape_for(planned), scenario.riding, planned)
        outcome, telling = lived(subject.world())
        yield Played(title, subject, outcome, telling, tuple(missed(scenario, planned, outcome, telling)))


class Asked(msgspec.Struct, frozen=True):
    """Scenario name or `all`, first seed, mutation to apply (`bug`), whether to add the values of long runs (`every`),
    and the time limit for shrinking a failed run."""

    name: str
    first: int = 1
    bug: str = ""
    every: bool = False
    shrink_s: float = 0.0


def run_scenarios(asked: Asked, told: Callable[[str], None]) -> int:
    """Runs the scenarios. Prints a line per run and a report of each failed run. Returns 0 if all passed."""
    known = names()
    chosen = known if asked.name == "all" else [asked.name]
    if not set(chosen) <= set(known):
        told(f"error: scenario {asked.name}: not found (expected one of {', '.join(known)})")
        return 2
    failed = 0
    with with_bug(asked.bug):
        for each in chosen:
            for seed in range(asked.first, asked.first + (1 if asked.bug else SEEDS)):
                for played in play(load(each), seed, every=asked.every):
                    told(f"{played.title}: {story.headline(played.outcome)}")
                    failed += not played.ok
                    if not played.ok:
                        _tell(played, asked, told)
    told(f"{failed} scenario runs failed" if failed else "all scenarios passed")
    return 1 if failed else 0


def _tell(played: Played, asked: Asked, told: Callable[[str], None]) -> None:
    for line in played.complaints():
        told(f"  {line}")
    first = (played.outcome, played.telling)
    if played.outcome.ok:
        return
    if asked.shrink_s > 0:
        tell_small(played.subject, first, asked.shrink_s, told)
    else:
        told(story.LEGEND)
        for line in story.timeline(*first):
            told(line)
    bug, name = f" --mutation {asked.bug}" if asked.bug else "", played.title.partition(" (")[0]
    told("")
    told(f"reproduce:       python -m holdfast.sim --scenario {name} --from {played.outcome.seed}{bug}")
