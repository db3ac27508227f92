"""A failing run shrinks to the few faults and user actions that it needs, and these reproduce it."""

from __future__ import annotations

import math

import msgspec
import pytest

from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.checkers import Violation
from holdfast.sim.fault_injection import FaultInjector, FaultKind, kind_of_name
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.shrink import RunSpec, failure_signature, run_to_result, shrink
from holdfast.sim.simulation import RunOutcome

SMALL = SimulationSize(nodes_per_region=2, faults_s=10.0, convergence_timeout_s=60.0, stable_s=10.0, profiles=())


def test_kind_is_the_part_of_a_name_before_site_and_number() -> None:
    assert kind_of_name("watch stalled@global/Override#21") == "watch stalled"
    assert kind_of_name("clock step#6") == "clock step"
    assert kind_of_name("user#3") == "user"
    assert kind_of_name("user creates acme/api") == "user creates acme/api"


def test_only_permits_named_faults_and_whole_kinds() -> None:
    faults = FaultInjector(1, lambda: 0.0, only=frozenset({"watch stalled", "clock step#6"}))
    assert faults.allows("watch stalled@west/Lease#48") and faults.allows("clock step#6")
    assert not faults.allows("clock step#5") and not faults.allows("conflict@west#1")


def test_signature_ignores_names_and_numbers_and_keeps_the_kind_of_failure() -> None:
    def outcome(message: str, invariant: str = "S8") -> RunOutcome:
        violation = Violation(invariant, 1.0, "global", message, ())
        return RunOutcome(1, (violation,), (), (), 1.0, 1.0, 1.0, 1, 1, {}, "")

    first = failure_signature(outcome("/overrides/a-1 expiry moved from 08:02:47 to 08:06:15"))
    assert first == failure_signature(outcome("/overrides/b-2 expiry moved from 09:00:00 to 09:00:01"))
    assert first != failure_signature(outcome("/overrides/a-1 becomes active 12 s after its expiry"))
    assert first != failure_signature(outcome("/overrides/a-1 expiry moved from 08:02:47 to 08:06:15", "S6"))
    passed = RunOutcome(1, (), (), (), 1.0, 1.0, 1.0, 1, 1, {}, "")
    assert failure_signature(passed) == ""
    unconverged = msgspec.structs.replace(passed, unconverged=("east: replica acme/api-1 is Running",))
    assert failure_signature(unconverged) == "convergence: … replica … is Running"


def test_another_schedule_of_a_seed_is_another_run_and_as_deterministic() -> None:
    parallel_runs.silence_logs()
    spec = RunSpec(3, SMALL, (FaultKind.SLOW,))
    first, other, again = (run_to_result(spec.simulation(schedule=number))[0] for number in (0, 1, 1))
    assert first.digest != other.digest == again.digest


@pytest.mark.slow
def test_mutated_simulation_shrinks_to_a_handful_of_faults_that_reproduce_it() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("one-missed-heartbeat-fences"):
        spec = RunSpec(4)
        first = run_to_result(spec.simulation(violation_by_s=math.inf))
        found = shrink(spec, first=first)
        assert found is not None and not found.cut_short
        needed = frozenset((*found.faults, *found.user_actions))
        assert sum(found.original_counts) > 100 and len(needed) <= 5
        again, _ = run_to_result(spec.simulation(needed, violation_by_s=math.inf, schedule=found.schedule))
    assert failure_signature(again) == failure_signature(first[0]) == failure_signature(found.outcome)
    assert again.violations[0] == found.outcome.violations[0]
    assert len(list(failure_report.timeline(found.outcome, found.recording))) < 45, "one screen"
