"""Shrinks a failing run: removes faults and user actions while the run still fails in the same way.

The order is from coarse to fine: everything; all operation faults, scheduled faults or user actions; kinds; halves and
smaller parts in order of time; one by one.
Candidates run in worker processes. A removed fault changes the interleaving of everything after it, which may hide the
failure. So coarse candidates that pass are run again with another interleaving (`schedule`). The search is bounded in
runs and in time, and reports if it was cut short.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.sim.fault_injection import FAULT_RATES, SCHEDULED_FAULTS, FaultKind, InjectedFault, kind_of_name
from holdfast.sim.fault_schedule import ScheduledFault
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import NOT_STABLE, RunOutcome, RunRecording, Simulation
from holdfast.sim.worker_pool import WorkerPool

RUNS_MAX = 1000
TIME_MAX_S = 300.0
WORKERS = 2
LATER_VIOLATION_S = 60.0
"""A smaller run may violate the invariant this much later than the first run. After that it counts as passed."""
SCHEDULES = 3
"""Interleavings that a coarse candidate is run with."""
RETRIED_FROM = 4
"""Candidates that remove this many faults and user actions or more are run with every interleaving, others with one."""
POLL_S = 0.2
RunResult = tuple[RunOutcome, RunRecording]
_OPERATION_KINDS = frozenset(kind.value for kind in FAULT_RATES)
_SCHEDULED_KINDS = frozenset(kind.value for kind in SCHEDULED_FAULTS)
_CATEGORIES: tuple[Callable[[str], bool], ...] = (
    lambda kind: kind in _OPERATION_KINDS,
    lambda kind: kind in _SCHEDULED_KINDS,
    lambda kind: kind not in _OPERATION_KINDS | _SCHEDULED_KINDS,
)
"""Operation faults, scheduled faults and user actions."""
_VARYING = re.compile(r"\S*[\d/:]\S*")


class RunSpec(msgspec.Struct, frozen=True):
    """The run to shrink: a seed, or a seed with a declared size and fault schedule."""

    seed: int
    size: SimulationSize | None = None
    enabled: tuple[FaultKind, ...] | None = None
    planned: tuple[ScheduledFault, ...] | None = None

    def simulation(
        self,
        only: frozenset[str] | None = None,
        violation_by_s: float | None = None,
        *,
        schedule: int = 0,
        until_converged: bool = False,
    ) -> Simulation:
        return Simulation(
            self.seed,
            self.size,
            enabled=self.enabled,
            planned=self.planned,
            only=only,
            violation_by_s=violation_by_s,
            schedule=schedule,
            until_converged=until_converged,
        )


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest failing run: names of its faults and user actions, and its interleaving. `original_counts` are the
    counts of the first run. `cut_short` says why the search stopped early."""

    faults: tuple[str, ...]
    user_actions: tuple[str, ...]
    runs: int
    outcome: RunOutcome
    recording: RunRecording
    cut_short: str = ""
    original_counts: tuple[int, int] = (0, 0)
    schedule: int = 0


class _Candidate(msgspec.Struct, frozen=True):
    """A smaller run to try. `only` has names, or whole kinds."""

    only: frozenset[str]
    schedule: int


class _Trial(msgspec.Struct, frozen=True):
    """Result of a candidate, as it is sent from the worker process."""

    signature: str
    faults: tuple[str, ...]
    user_actions: tuple[str, ...]
    """In order of time, up to the violation."""


def failure_kind(outcome: RunOutcome) -> str:
    """The kind of failure: the violated invariant, `failure` or `convergence`; empty for a passed run."""
    if outcome.violations:
        return outcome.violations[0].invariant
    if outcome.failures:
        return "failure"
    return "convergence" if outcome.unconverged else ""


def failure_signature(outcome: RunOutcome) -> str:
    """The kind of failure and its message without names and numbers. A smaller run must fail with the same."""
    messages = (*(v.message for v in outcome.violations[:1]), *outcome.failures[:1], *outcome.unconverged[:1])
    text = _VARYING.sub("…", messages[0]) if messages else ""
    return f"{failure_kind(outcome)}: {text}" if messages else ""


class _ShrinkSearch:
    """One search. `faults` and `user_actions` are the smallest lists that are known to fail with `schedule`."""

    def __init__(self, subject: RunSpec, first: RunResult, *, time_max_s: float, workers: int) -> None:
        self._subject = subject
        self._until_s = time.monotonic() + time_max_s
        self._time_max_s = time_max_s
        self._workers = max(1, workers)
        self.progress: Callable[[str], None] = lambda _: None
        self.runs = 1
        self.schedule = 0
        self.changed = False
        outcome, recording = first
        self.signature = failure_signature(outcome)
        # Events after the violation cannot have caused it.
        violation_s = outcome.violations[0].at_s if outcome.violations else None
        self._by_s = None if violation_s is None else violation_s + LATER_VIOLATION_S
        stays_unconverged = bool(outcome.unconverged) and not outcome.unconverged[0].startswith(NOT_STABLE)
        self._until_converged = stays_unconverged and not outcome.violations and not outcome.failures
        self.faults = _names(recording.injected, violation_s)
        self.user_actions = _names(recording.user_actions, violation_s)
        self.original_counts = (len(self.faults), len(self.user_actions))

    def cut_short(self) -> str:
        """Why the search must stop now; empty if it may continue."""
        if self.runs >= RUNS_MAX:
            return f"stopped after {self.runs} runs, a smaller reproduction may exist"
        if time.monotonic() >= self._until_s:
            return f"stopped after {self._time_max_s:.0f} s, a smaller reproduction may exist"
        return ""

    def names(self) -> list[str]:
        return [*self.faults, *self.user_actions]

    def simulation(self, candidate: _Candidate) -> Simulation:
        return self._subject.simulation(
            candidate.only, self._by_s, schedule=candidate.schedule, until_converged=self._until_converged
        )

    def search(self) -> None:
        """Removes everything, then categories, kinds, and parts in order of time down to single ones."""
        if self._try([()], retried=True) is not None:
            return
        for category in _CATEGORIES:
            kept = [kind for kind in self._kinds() if not category(kind)]
            if len(kept) < len(self._kinds()) and not self.cut_short():
                self._try([kept], retried=True)
        self._remove(self._kinds, retried=True)
        self._remove(self.names, retried=False)
        while not self.cut_short() and self._remove_parts(self.names, 1, retried=False):
            continue

    def _remove(self, remaining: Callable[[], list[str]], *, retried: bool) -> None:
        """Removes halves of the remaining names or kinds, then smaller parts, down to single ones."""
        size = len(remaining())
        while size > 1 and not self.cut_short():
            size = min(size, len(remaining()) + 1) // 2
            self._remove_parts(remaining, size, retried=retried or size >= RETRIED_FROM)

    def _remove_parts(self, remaining: Callable[[], list[str]], size: int, *, retried: bool) -> bool:
        """Removes parts of `size`, in order. Returns whether any was removed."""
        start, removed = 0, False
        while start < len(names := remaining()) and not self.cut_short():
            found = self._try(
                [names[:at] + names[at + size :] for at in range(start, len(names), size)], retried=retried
            )
            if found is None:
                break
            start, removed = start + found * size, True
        return removed

    def _kinds(self) -> list[str]:
        """The kinds, most frequent first. A kind that is kept may happen anywhere, not only where it did before."""
        return [kind for kind, _ in Counter(kind_of_name(name) for name in self.names()).most_common()]

    def _try(self, kept: Sequence[Iterable[str]], *, retried: bool) -> int | None:
        """Runs each smaller list, until one fails. Returns its index."""
        schedules = [(self.schedule + number) % SCHEDULES for number in range(SCHEDULES if retried else 1)]
        found = self._first_failing([_Candidate(frozenset(names), number) for number in schedules for names in kept])
        return None if found is None else found % len(kept)

    def _first_failing(self, todo: Sequence[_Candidate]) -> int | None:
        """Runs candidates until one fails as the first run did, and takes it over. Returns its index."""
        pool: WorkerPool[_Trial] = WorkerPool(lambda number: self._run(todo[number]))
        begun, found, running = 0, len(todo), set[int]()
        trials: dict[int, _Trial] = {}
        try:
            while any(number < found for number in running) or (begun < found and not self.cut_short()):
                while begun < found and len(running) < self._workers and not self.cut_short():
                    pool.begin(begun)
                    running.add(begun)
                    begun += 1
                    self.runs += 1
                for end in pool.ended(POLL_S):
                    running.discard(end.number)
                    if end.result is not None and end.result.signature == self.signature:
                        trials[end.number] = end.result
                        found = min(found, end.number)
                if time.monotonic() >= self._until_s:
                    break
        finally:
            pool.stop()
        if found not in trials:
            return None
        self._accept(trials[found], todo[found].schedule)
        return found

    def _run(self, candidate: _Candidate) -> _Trial:
        simulation = self.simulation(candidate)
        outcome = simulation.run_without_teardown()
        violation_s = outcome.violations[0].at_s if outcome.violations else None
        faults = _names(simulation.faults.injected, violation_s)
        actions = _names(simulation.faults.user_actions, violation_s)
        return _Trial(failure_signature(outcome), tuple(faults), tuple(actions))

    def _accept(self, trial: _Trial, schedule: int) -> None:
        self.faults, self.user_actions, self.schedule = list(trial.faults), list(trial.user_actions), schedule
        self.changed = True
        self.progress(f"still fails with {self.counts()} ({self.runs} runs)")

    def counts(self) -> str:
        return f"{len(self.faults)} fault(s) and {len(self.user_actions)} user action(s)"


def run_to_result(simulation: Simulation) -> RunResult:
    outcome = simulation.run()
    return outcome, simulation.recording()


def _names(things: Iterable[InjectedFault], until_s: float | None) -> list[str]:
    """Names in order of time, up to `until_s`."""
    return list(dict.fromkeys(thing.name for thing in things if until_s is None or thing.at_s <= until_s))


def shrink(
    subject: RunSpec,
    *,
    first: RunResult | None = None,
    progress: Callable[[str], None] = lambda _: None,
    time_max_s: float = TIME_MAX_S,
    workers: int = WORKERS,
) -> Shrunk | None:
    """The smallest failing run; None if the run passes. `first` is the result of the full run, if it is known."""
    best = first or run_to_result(subject.simulation())
    search = _ShrinkSearch(subject, best, time_max_s=time_max_s, workers=workers)
    search.progress = progress
    if not search.signature:
        return None
    progress(f"fails ({failure_kind(best[0])}) with {search.counts()}")
    search.search()
    if search.changed:
        # The workers send back only names; the report needs the history.
        best = run_to_result(search.simulation(_Candidate(frozenset(search.names()), search.schedule)))
    left = tuple(search.faults), tuple(search.user_actions)
    return Shrunk(*left, search.runs, *best, search.cut_short(), search.original_counts, search.schedule)
