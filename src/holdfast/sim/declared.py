"""Worlds as they are declared: how large one is, and scenarios in a few lines of TOML (`sim/scenarios/*.toml`).

A declaration names the shape, the troubles with their times, the faults that ride along, and, where it sweeps, the
values that one trouble's length takes in turn. The seed still decides everything else. Some seeds begin from a
scenario too, and add what they draw (`base_of`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from holdfast.model.scheduler_policy import PartitionMode
from holdfast.sim.chaos import Kind
from holdfast.sim.ports import stream
from holdfast.sim.troubles import Trouble

AFTERWARDS_S = 20.0
SHARE_BASED = 0.15
"""How many seeds begin from a scenario."""
FIRST = (
    "autoscaler-under-low-readiness", "cut-off", "cut-off-provisional", "drained-in-turn",
    "duplicate-reservation-race", "late-commits", "leader-dies-at-awaits", "leader-dies-at-commits", "leases-run-out",
    "lost-answers", "override-by-skewed-clock", "override-expires", "policy-in-the-middle", "recovery-crowded",
    "region-lost-and-recovered", "region-lost-then-nodes", "repair-in-incident", "rollback-race", "skewed-clocks",
    "stale-scheduler-and-drain", "tenure", "timeout-at-every-commit", "watches-expire", "work-ends-unheard",
    "zombie-returns", "zone-lost",
)  # fmt: skip
"""Seeds draw from these. Any other scenario takes a share of its own of their seeds, so that one more leaves nearly all
seeds the worlds they were: those that are kept because they failed once, too."""
SHARES = {"failures-unheard": 0.02}
"""Scenarios that show what hardly any other world does: so many of all seeds begin from each, by a draw of its own."""
SHARE_UNSYNCED = 0.1
"""In how many of the others nothing is ever compared as a whole: what was not heard of stays undone, and is seen."""


class Shape(msgspec.Struct, frozen=True):
    """How large the world is, for how long things go wrong in it, and how long it may take to come right."""

    regions: tuple[str, ...] = ("east", "west")
    tenants: tuple[str, ...] = ("acme", "globex")
    nodes_per_region: int = 12
    faults_s: float = 150.0
    settle_s: float = 600.0
    stable_s: float = 300.0
    sorts: tuple[str, ...] | None = None
    """What users run (`sim/sorts.py`); None leaves it to the seed."""
    partition_mode: PartitionMode = PartitionMode.WAIT
    changing: bool = True
    """Whether users keep changing what they want while things go wrong."""
    watching: bool = True
    """Whether watches say anything; without them everything must be found by listing from time to time."""
    resyncing: bool = True
    """Whether anything is compared as a whole from time to time; without it no wake-up may be missing."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One trouble as it is written down."""

    kind: Kind
    target: str
    at_s: float = 10.0
    for_s: float = 10.0
    amount: float = 0.5


class Serves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At `by_s`, counted since the world began, a workload must have at least so many replicas that serve."""

    workload: str
    at_least: int
    by_s: float


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run of a scenario must show beyond that all promises hold and all comes right; else it proved nothing.

    Every declared trouble must have struck, and something of what rides along; `sees` and `never_sees` are reasons,
    `passes` transitions of replicas ("Serving → Unknown").
    """

    sees: tuple[str, ...] = ()
    never_sees: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    serves: tuple[Serves, ...] = ()
    settles_in_s: float = 300.0
    recovers_within_s: float = 0.0
    """So long after each loss of a region the critical work it took must serve elsewhere; 0: not asked."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`riding` are faults that come with calls and commits. `lasting_s`, `amounts` and `starting_s` are the lengths,
    the amounts and the times that the first trouble takes in turn; long runs take those of `more` too, and every whole
    amount up to `every_to`."""

    name: str
    says: str
    expects: Expected = msgspec.field(default_factory=Expected)
    shape: Shape = msgspec.field(default_factory=Shape)
    troubles: tuple[Declared, ...] = ()
    riding: tuple[Kind, ...] = ()
    lasting_s: tuple[float, ...] = ()
    amounts: tuple[float, ...] = ()
    starting_s: tuple[float, ...] = ()
    more: tuple[float, ...] = ()
    every_to: int = 0
    bug: str = ""
    """The mistake (`sim/mutations`) that it shows when that is planted, in examples made for it."""

    def variants(self, *, every: bool = False) -> Iterator[tuple[str, tuple[Trouble, ...]]]:
        """Each with its title; `every` adds those that only long runs have."""
        rows = self._rows()
        if not rows:
            yield self.name, ()
            return
        first, others = rows[0], rows[1:]
        swept = [("for_s", " s", self.lasting_s), ("amount", "", self.amounts), ("at_s", " s in", self.starting_s)]
        found = False
        for field, unit, values in swept:
            long = (*self.more, *range(1, self.every_to + 1)) if values and every else ()
            for value in dict.fromkeys((*values, *long)):
                found = True
                changed = msgspec.structs.replace(first, **{field: value})
                yield f"{self.name} ({value:g}{unit})", (changed, *others)
        if not found:
            yield self.name, (first, *others)

    def shape_for(self, planned: tuple[Trouble, ...]) -> Shape:
        """Things may go wrong for as long as the longest of its troubles lasts."""
        needed_s = max((t.at_s + t.for_s + AFTERWARDS_S for t in planned), default=0.0)
        longer = self.lasting_s and needed_s > self.shape.faults_s
        return msgspec.structs.replace(self.shape, faults_s=needed_s) if longer else self.shape

    def _rows(self) -> list[Trouble]:
        return [
            Trouble(f"{row.kind}#s{number}", row.kind, row.at_s, row.target, row.for_s, row.amount)
            for number, row in enumerate(self.troubles, 1)
        ]


@cache
def load(name: str) -> Scenario:
    text = (files("holdfast.sim") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
    settings: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert({"name": name, **settings}, Scenario)


def names() -> list[str]:
    folder = files("holdfast.sim") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


class Origin(msgspec.Struct, frozen=True):
    """The scenario a seed begins from: one of its variants."""

    title: str
    shape: Shape
    troubles: tuple[Trouble, ...]
    riding: frozenset[Kind]


def base_of(seed: int) -> Origin | None:
    chance = stream(seed, "base")
    own = next((name for name, share in SHARES.items() if stream(seed, f"begins/{name}").random() < share), "")
    if chance.random() >= SHARE_BASED and not own:
        return None
    scenario = load(own or _chosen(seed, chance.choice(FIRST)))
    title, troubles = chance.choice(list(scenario.variants()))
    return Origin(title, scenario.shape_for(troubles), troubles, frozenset(scenario.riding))


def _chosen(seed: int, drawn: str) -> str:
    others = (name for name in names() if name not in FIRST and name not in SHARES)
    return next((name for name in others if stream(seed, f"base/{name}").random() < 1 / len(FIRST)), drawn)


def shape_of(seed: int) -> Shape:
    """The shape of a world that begins from no scenario."""
    return Shape(resyncing=stream(seed, "resyncing").random() >= SHARE_UNSYNCED)
