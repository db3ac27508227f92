"""Checks the expectations of a scenario on a finished run."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.sim.chaos import Kind
from holdfast.sim.checkers.recovering import not_recovered
from holdfast.sim.declared import Scenario, Serves
from holdfast.sim.troubles import Trouble
from holdfast.sim.world import Outcome, Telling


def missed(scenario: Scenario, planned: tuple[Trouble, ...], outcome: Outcome, telling: Telling) -> Iterator[str]:
    """The unmet expectations, as text."""
    expects, coverage = scenario.expects, telling.coverage
    struck = {fault.name for fault in telling.struck}
    for trouble in planned:
        if trouble.name not in struck:
            yield f"{trouble.kind} of {trouble.target} at {trouble.at_s:g} s was not injected"
    if scenario.riding and not any(coverage.faults[kind.value] for kind in scenario.riding):
        yield f"no operation fault was injected: {', '.join(scenario.riding)}"
    for reason in expects.sees:
        if not coverage.reasons[reason]:
            yield f"reason {reason} did not occur"
    for reason in expects.never_sees:
        if coverage.reasons[reason]:
            yield f"reason {reason} occurred {coverage.reasons[reason]} times (expected 0)"
    for step in expects.passes:
        source, _, target = step.partition(" → ")
        if not coverage.transitions[(source, target)]:
            yield f"transition {step} did not occur"
    for serves in expects.serves:
        yield from _not_serving(serves, telling)
    losses = {t.name: t.target for t in planned if t.kind is Kind.REGION_LOSS and expects.recovers_within_s}
    for fault in telling.struck:
        if fault.name in losses:
            yield from not_recovered(telling.history, losses[fault.name], fault.at_s, expects.recovers_within_s)
    if outcome.settled_in_s > expects.settles_in_s:
        yield f"convergence took {outcome.settled_in_s:.0f} s (limit {expects.settles_in_s:.0f} s)"


def _not_serving(serves: Serves, telling: Telling) -> Iterator[str]:
    events = [e for e in telling.history.of([f"/workloads/{serves.workload}"]) if e.at_s <= serves.by_s]
    new = events[-1].new if events else None
    count = new.status.summary.serving if new is not None else 0
    if count < serves.at_least:
        yield f"{serves.workload}: {count} replicas served after {serves.by_s:g} s (expected {serves.at_least})"
