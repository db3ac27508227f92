"""Shrinks a failing run: removes faults and user actions while the run still fails in the same way.

Delta debugging: every fault and action has a name and its own random stream, so that the remaining ones happen as
before. The search is bounded in runs and in time, and reports if it was cut short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.sim.fault_injection import FaultKind, InjectedFault
from holdfast.sim.fault_schedule import ScheduledFault
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import RunOutcome, RunRecording, Simulation

RUNS_MAX = 150
TIME_MAX_S = 300.0
LATER_VIOLATION_S = 60.0
"""A smaller run may violate the invariant this much later than the first run. After that it counts as passed."""
RunResult = tuple[RunOutcome, RunRecording]


class RunSpec(msgspec.Struct, frozen=True):
    """The run to shrink: a seed, or a seed with a declared size and fault schedule."""

    seed: int
    size: SimulationSize | None = None
    enabled: tuple[FaultKind, ...] | None = None
    planned: tuple[ScheduledFault, ...] | None = None

    def simulation(self, only: frozenset[str] | None = None, violation_by_s: float | None = None) -> Simulation:
        return Simulation(
            self.seed, self.size, enabled=self.enabled, planned=self.planned, only=only, violation_by_s=violation_by_s
        )


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest failing run: names of its faults and user actions. `of` has their original counts. `cut_short` says
    why the search stopped early."""

    faults: tuple[str, ...]
    user_actions: tuple[str, ...]
    runs: int
    outcome: RunOutcome
    recording: RunRecording
    cut_short: str = ""
    original_counts: tuple[int, int] = (0, 0)


def failure_kind(outcome: RunOutcome) -> str:
    """The kind of failure: the violated invariant, `failure` or `convergence`; empty for a passed run."""
    if outcome.violations:
        return outcome.violations[0].invariant
    if outcome.failures:
        return "failure"
    return "convergence" if outcome.unconverged else ""


class _ShrinkSearch:
    """One search. `faults` and `user_actions` are the smallest lists that are known to fail."""

    def __init__(self, subject: RunSpec, first: RunResult, *, time_max_s: float) -> None:
        self._subject = subject
        self._until_s = time.monotonic() + time_max_s
        self._time_max_s = time_max_s
        self.progress: Callable[[str], None] = lambda _: None
        self.runs = 1
        self.best = first
        outcome, recording = first
        self.kind = failure_kind(outcome)
        # Events after the violation cannot have caused it.
        violation_s = outcome.violations[0].at_s if outcome.violations else None
        self._by_s = None if violation_s is None else violation_s + LATER_VIOLATION_S
        self.faults = _names(recording.injected, violation_s)
        self.user_actions = _names(recording.user_actions, violation_s)
        self.of = (len(self.faults), len(self.user_actions))

    def cut_short(self) -> str:
        """Why the search must stop now; empty if it may continue."""
        if self.runs >= RUNS_MAX:
            return f"stopped after {self.runs} runs, a smaller reproduction may exist"
        if time.monotonic() >= self._until_s:
            return f"stopped after {self._time_max_s:.0f} s, a smaller reproduction may exist"
        return ""

    def fails(self, faults: Sequence[str], user_actions: Sequence[str]) -> bool:
        self.runs += 1
        result = run_to_result(self._subject.simulation(frozenset((*faults, *user_actions)), self._by_s))
        if failure_kind(result[0]) != self.kind:
            return False
        self.best, self.faults, self.user_actions = result, list(faults), list(user_actions)
        self.progress(
            f"still fails with {len(faults)} fault(s) and {len(user_actions)} user action(s) ({self.runs} runs)"
        )
        return True

    def fewer(self, names: Sequence[str], still_fails: Callable[[Sequence[str]], bool]) -> None:
        """Delta debugging over one list: removes halves first, then smaller parts."""
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


def run_to_result(simulation: Simulation) -> RunResult:
    outcome = simulation.run()
    return outcome, simulation.recording()


def _names(things: Iterable[InjectedFault], until_s: float | None) -> list[str]:
    """Names sorted by kind, because often a whole kind can be removed."""
    found = dict.fromkeys(thing.name for thing in things if until_s is None or thing.at_s <= until_s)
    return sorted(found, key=lambda name: name.partition("@")[0].partition("#")[0])


def shrink(
    subject: RunSpec,
    *,
    first: RunResult | None = None,
    progress: Callable[[str], None] = lambda _: None,
    time_max_s: float = TIME_MAX_S,
) -> Shrunk | None:
    """The smallest failing run; None if the run passes. `first` is the result of the full run, if it is known."""
    search = _ShrinkSearch(subject, first or run_to_result(subject.simulation()), time_max_s=time_max_s)
    search.progress = progress
    if not search.kind:
        return None
    progress(f"fails ({search.kind}) with {len(search.faults)} fault(s) and {len(search.user_actions)} user action(s)")
    search.fewer(search.faults, lambda rest: search.fails(rest, search.user_actions))
    search.fewer(search.user_actions, lambda rest: search.fails(search.faults, rest))
    if len(search.faults) > 1:
        # With fewer user actions, more faults may be removable.
        search.fewer(search.faults, lambda rest: search.fails(rest, search.user_actions))
    left = tuple(search.faults), tuple(search.user_actions)
    return Shrunk(*left, search.runs, *search.best, search.cut_short(), search.of)
