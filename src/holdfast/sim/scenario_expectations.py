"""Checks the expectations of a scenario on a finished run."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.sim.checkers.recovery_deadline import missed_recoveries
from holdfast.sim.fault_injection import FaultKind
from holdfast.sim.fault_schedule import ScheduledFault
from holdfast.sim.scenario_files import Scenario, ServingExpectation
from holdfast.sim.simulation import RunOutcome, RunRecording


def unmet_expectations(
    scenario: Scenario, planned: tuple[ScheduledFault, ...], outcome: RunOutcome, recording: RunRecording
) -> Iterator[str]:
    """The unmet expectations, as text."""
    expects, coverage = scenario.expects, recording.coverage
    struck = {fault.name for fault in recording.injected}
    for scheduled in planned:
        if scheduled.name not in struck:
            yield f"{scheduled.kind} of {scheduled.target} at {scheduled.at_s:g} s was not injected"
    if scenario.operation_faults and not any(coverage.faults[kind.value] for kind in scenario.operation_faults):
        yield f"no operation fault was injected: {', '.join(scenario.operation_faults)}"
    for reason in expects.reasons:
        if not coverage.reasons[reason]:
            yield f"reason {reason} did not occur"
    for reason in expects.absent_reasons:
        if coverage.reasons[reason]:
            yield f"reason {reason} occurred {coverage.reasons[reason]} times (expected 0)"
    for step in expects.transitions:
        source, _, target = step.partition(" → ")
        if not coverage.transitions[(source, target)]:
            yield f"transition {step} did not occur"
    for serves in expects.serving:
        yield from _not_serving(serves, recording)
    losses = {t.name: t.target for t in planned if t.kind is FaultKind.REGION_LOSS and expects.recovers_within_s}
    for fault in recording.injected:
        if fault.name in losses:
            yield from missed_recoveries(recording.history, losses[fault.name], fault.at_s, expects.recovers_within_s)
    if outcome.converged_in_s > expects.converges_within_s:
        yield f"convergence took {outcome.converged_in_s:.0f} s (limit {expects.converges_within_s:.0f} s)"


def _not_serving(serves: ServingExpectation, recording: RunRecording) -> Iterator[str]:
    events = [e for e in recording.history.events_of([f"/workloads/{serves.workload}"]) if e.at_s <= serves.by_s]
    new = events[-1].new if events else None
    count = new.status.summary.serving if new is not None else 0
    if count < serves.at_least:
        yield f"{serves.workload}: {count} replicas served after {serves.by_s:g} s (expected {serves.at_least})"
