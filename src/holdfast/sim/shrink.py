"""Makes a failing run small: leaves out faults, and what users do, as long as it still fails in the same way.

Delta debugging: every fault and every act has a name and its own stream of chance, so that those that are left happen
as they did before, as far as the course of events allows. Bounded in runs and in time; a search that was cut short
says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.sim.chaos import Kind, Struck
from holdfast.sim.declared import Shape
from holdfast.sim.troubles import Trouble
from holdfast.sim.world import Outcome, Telling, World

RUNS_MAX = 150
TIME_MAX_S = 300.0
LATER_S = 60.0
"""A smaller run may break its promise so much later than the first one did; nobody waits for longer."""
Lived = tuple[Outcome, Telling]


class Subject(msgspec.Struct, frozen=True):
    """The run to make small: a seed as it is drawn, or with a shape and troubles of its own."""

    seed: int
    shape: Shape | None = None
    enabled: tuple[Kind, ...] | None = None
    planned: tuple[Trouble, ...] | None = None

    def world(self, only: frozenset[str] | None = None, breach_by_s: float | None = None) -> World:
        return World(
            self.seed, self.shape, enabled=self.enabled, planned=self.planned, only=only, breach_by_s=breach_by_s
        )


class Shrunk(msgspec.Struct, frozen=True):
    """What is left: the names of faults and of users' acts, `of` so many of each that there were before. `cut_short`
    says why there may be still fewer."""

    faults: tuple[str, ...]
    acts: tuple[str, ...]
    runs: int
    outcome: Outcome
    telling: Telling
    cut_short: str = ""
    of: tuple[int, int] = (0, 0)


def complaint(outcome: Outcome) -> str:
    """What kind of failure it is; a smaller run must fail in the same way."""
    if outcome.violations:
        return outcome.violations[0].promise
    if outcome.failures:
        return "failure"
    return "unsettled" if outcome.unsettled else ""


class _Search:
    """One search for the least: `faults` and `acts` are the smallest lists that are known to fail."""

    def __init__(self, subject: Subject, first: Lived, *, time_max_s: float) -> None:
        self._subject = subject
        self._until_s = time.monotonic() + time_max_s
        self._time_max_s = time_max_s
        self.told: Callable[[str], None] = lambda _: None
        self.runs = 1
        self.best = first
        outcome, telling = first
        self.kind = complaint(outcome)
        # What came after the breach cannot have brought it about.
        breach_s = outcome.violations[0].at_s if outcome.violations else None
        self._by_s = None if breach_s is None else breach_s + LATER_S
        self.faults = _names(telling.struck, breach_s)
        self.acts = _names(telling.acts, breach_s)
        self.of = (len(self.faults), len(self.acts))

    def cut_short(self) -> str:
        """Why the search must end here, or an empty string."""
        if self.runs >= RUNS_MAX:
            return f"the search ended after {self.runs} runs; there may be a smaller story"
        if time.monotonic() >= self._until_s:
            return f"the search ended after {self._time_max_s:.0f} s; there may be a smaller story"
        return ""

    def fails(self, faults: Sequence[str], acts: Sequence[str]) -> bool:
        self.runs += 1
        tried = lived(self._subject.world(frozenset((*faults, *acts)), self._by_s))
        if complaint(tried[0]) != self.kind:
            return False
        self.best, self.faults, self.acts = tried, list(faults), list(acts)
        self.told(f"still fails with {len(faults)} fault(s) and {len(acts)} act(s) of users ({self.runs} runs)")
        return True

    def fewer(self, names: Sequence[str], still_fails: Callable[[Sequence[str]], bool]) -> None:
        """Delta debugging over one list: halves first, then smaller and smaller parts."""
        left, parts = list(names), 2
        if not left or self.cut_short() or still_fails(()):
            return
        while len(left) > 1 and not self.cut_short():
            size = max(1, len(left) // parts)
            for start in range(0, len(left), size):
                rest = left[:start] + left[start + size :]
                if self.cut_short():
                    return
                if still_fails(rest):
                    left, parts = rest, max(2, parts - 1)
                    break
            else:
                if size == 1:
                    return
                parts = min(len(left), parts * 2)


def lived(world: World) -> Lived:
    outcome = world.run()
    return outcome, world.telling()


def _names(things: Iterable[Struck], until_s: float | None) -> list[str]:
    """Kind by kind, so that parts of the list are of one kind: most often a whole kind does not matter."""
    found = dict.fromkeys(thing.name for thing in things if until_s is None or thing.at_s <= until_s)
    return sorted(found, key=lambda name: name.partition("@")[0].partition("#")[0])


def shrink(
    subject: Subject,
    *,
    first: Lived | None = None,
    told: Callable[[str], None] = lambda _: None,
    time_max_s: float = TIME_MAX_S,
) -> Shrunk | None:
    """The smallest story found with which it still fails; None when it does not fail. `first` is the whole run, if
    someone has it."""
    search = _Search(subject, first or lived(subject.world()), time_max_s=time_max_s)
    search.told = told
    if not search.kind:
        return None
    told(f"fails ({search.kind}) with {len(search.faults)} fault(s) and {len(search.acts)} act(s) of users")
    search.fewer(search.faults, lambda rest: search.fails(rest, search.acts))
    search.fewer(search.acts, lambda rest: search.fails(search.faults, rest))
    if len(search.faults) > 1:
        # With less work about, some of the faults may not matter any more.
        search.fewer(search.faults, lambda rest: search.fails(rest, search.acts))
    left = tuple(search.faults), tuple(search.acts)
    return Shrunk(*left, search.runs, *search.best, search.cut_short(), search.of)
