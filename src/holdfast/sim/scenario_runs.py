"""Runs declared scenarios (`sim/scenario_files.py`) with a few seeds each and reports the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from holdfast.sim import failure_report
from holdfast.sim.scenario_expectations import unmet_expectations
from holdfast.sim.scenario_files import Scenario, load_scenario, scenario_names
from holdfast.sim.shrink import RunSpec, run_to_result
from holdfast.sim.simulation import RunOutcome, RunRecording
from holdfast.sim.single_run import report_shrunk, with_mutation

SEEDS_PER_SCENARIO = 3
"""Number of seeds per scenario."""


class ScenarioRun(msgspec.Struct, frozen=True):
    """One run of one variant. `unmet` are the expectations that it missed."""

    title: str
    subject: RunSpec
    outcome: RunOutcome
    recording: RunRecording
    unmet: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.outcome.ok and not self.unmet

    def failure_lines(self) -> list[str]:
        broken = failure_report.failure_lines(self.outcome, most=failure_report.FAILURES_SHOWN)
        return [*broken, *(f"unmet expectation: {text}" for text in self.unmet)]


def run_variants(
    scenario: Scenario, seed: int, *, every: bool = False, titles: Collection[str] | None = None
) -> Iterator[ScenarioRun]:
    """Runs every variant with one seed, or only those with these titles."""
    for title, planned in scenario.variants(every=every):
        if titles is not None and title not in titles:
            continue
        subject = RunSpec(seed, scenario.size_for(planned), scenario.operation_faults, planned)
        outcome, recording = run_to_result(subject.simulation())
        yield ScenarioRun(
            title, subject, outcome, recording, tuple(unmet_expectations(scenario, planned, outcome, recording))
        )


class ScenarioOptions(msgspec.Struct, frozen=True):
    """Scenario name or `all`, first seed, mutation to apply, whether to add the values of long runs, and the time limit
    for shrinking a failed run."""

    name: str
    first: int = 1
    mutation: str = ""
    all_values: bool = False
    shrink_s: float = 0.0


def run_scenarios(options: ScenarioOptions, print_line: Callable[[str], None]) -> int:
    """Runs the scenarios. Prints a line per run and a report of each failed run. Returns 0 if all passed."""
    known = scenario_names()
    chosen = known if options.name == "all" else [options.name]
    if not set(chosen) <= set(known):
        print_line(f"error: scenario {options.name}: not found (expected one of {', '.join(known)})")
        return 2
    failed = 0
    with with_mutation(options.mutation):
        for name in chosen:
            for seed in range(options.first, options.first + (1 if options.mutation else SEEDS_PER_SCENARIO)):
                for played in run_variants(load_scenario(name), seed, every=options.all_values):
                    print_line(f"{played.title}: {failure_report.headline(played.outcome)}")
                    failed += not played.ok
                    if not played.ok:
                        _report(played, options, print_line)
    print_line(f"{failed} scenario runs failed" if failed else "all scenarios passed")
    return 1 if failed else 0


def _report(played: ScenarioRun, options: ScenarioOptions, print_line: Callable[[str], None]) -> None:
    for line in played.failure_lines():
        print_line(f"  {line}")
    first = (played.outcome, played.recording)
    if played.outcome.ok:
        return
    if options.shrink_s > 0:
        report_shrunk(played.subject, first, options.shrink_s, print_line)
    else:
        print_line(failure_report.LEGEND)
        for line in failure_report.timeline(*first):
            print_line(line)
    mutation_flag, name = f" --mutation {options.mutation}" if options.mutation else "", played.title.partition(" (")[0]
    print_line("")
    print_line(f"reproduce:       python -m holdfast.sim --scenario {name} --from {played.outcome.seed}{mutation_flag}")
