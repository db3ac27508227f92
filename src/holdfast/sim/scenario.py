"""Scenarios: worlds declared in a few lines of TOML (`sim/scenarios/*.toml`) instead of drawn from the seed.

A declaration names the shape, the troubles with their times, the faults that ride along, and, where it sweeps, the
values that one trouble's length takes in turn. The seed still decides everything else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import msgspec

from holdfast.sim import story
from holdfast.sim.chaos import Kind
from holdfast.sim.troubles import Trouble
from holdfast.sim.world import Outcome, Shape, World

SEEDS = 2
"""How many seeds each scenario is run with."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One trouble as it is written down."""

    kind: Kind
    target: str
    at_s: float = 10.0
    for_s: float = 10.0
    amount: float = 0.5


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`riding` are faults that come with calls and commits; `lasting_s` and `amounts` are the
    lengths and the amounts that the first trouble takes in turn."""

    name: str
    says: str
    shape: Shape = msgspec.field(default_factory=Shape)
    troubles: tuple[Declared, ...] = ()
    riding: tuple[Kind, ...] = ()
    lasting_s: tuple[float, ...] = ()
    amounts: tuple[float, ...] = ()

    def variants(self) -> Iterator[tuple[str, tuple[Trouble, ...]]]:
        rows = self._rows()
        if not rows:
            yield self.name, ()
            return
        first, others = rows[0], rows[1:]
        yield from (
            (f"{self.name} ({for_s:g} s)", (msgspec.structs.replace(first, for_s=for_s), *others))
            for for_s in self.lasting_s
        )
        yield from (
            (f"{self.name} ({amount:g})", (msgspec.structs.replace(first, amount=amount), *others))
            for amount in self.amounts
        )
        if not self.lasting_s and not self.amounts:
            yield self.name, (first, *others)

    def _rows(self) -> list[Trouble]:
        return [
            Trouble(f"{row.kind}#{number}", row.kind, row.at_s, row.target, row.for_s, row.amount)
            for number, row in enumerate(self.troubles, 1)
        ]


def load(name: str) -> Scenario:
    text = (files("holdfast.sim") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
    settings: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert({"name": name, **settings}, Scenario)


def names() -> list[str]:
    folder = files("holdfast.sim") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def play(scenario: Scenario, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Every variant with one seed."""
    for title, planned in scenario.variants():
        yield title, World(seed, scenario.shape, enabled=scenario.riding, planned=planned).run()


def run_scenarios(name: str, *, first: int, told: Callable[[str], None]) -> int:
    """The command: one scenario, or all; tells a line for each run. 0 when all are well."""
    known = names()
    chosen = known if name == "all" else [name]
    if not set(chosen) <= set(known):
        told(f"there is no scenario {name!r}; there are: {', '.join(known)}")
        return 2
    failed = 0
    for each in chosen:
        for seed in range(first, first + SEEDS):
            for title, outcome in play(load(each), seed):
                told(f"{title}: {story.headline(outcome)}")
                for line in story.complaints(outcome):
                    told(f"  {line}")
                failed += not outcome.ok
    told(f"{failed} of the scenarios' runs failed" if failed else "all scenarios are well")
    return 1 if failed else 0
