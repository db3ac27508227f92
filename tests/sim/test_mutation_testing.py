"""The mutation tests themselves: patching, search, control runs, results and the report page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.platforms import wait_until

from holdfast.sim import mutation_report, mutation_runner, mutation_testing
from holdfast.sim.mutation_report import MutationTable
from holdfast.sim.mutation_results import MutationResultLog
from holdfast.sim.mutations import CATALOGUE, MUTATIONS, Patch, applied_mutation, find_mutation
from holdfast.sim.scenario_files import base_scenario


def test_mutations_cover_the_catalogue_with_unique_names() -> None:
    assert {m.catalogue_entry for m in MUTATIONS if m.catalogue_entry} == set(CATALOGUE)
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)


def test_undone_mutation_restores_the_code() -> None:
    class Spying(Patch):
        def set(self, owner: Any, name: str, value: Any) -> None:
            before.append((owner, name, owner.__dict__[name]))
            super().set(owner, name, value)

    for mutation in MUTATIONS:
        before: list[tuple[Any, str, Any]] = []
        patch = Spying()
        mutation.apply(patch)
        assert before, f"{mutation.name} changes nothing"
        assert any(owner.__dict__[name] is not original for owner, name, original in before), (
            f"{mutation.name} changes nothing"
        )
        patch.undo()
        first = {(id(owner), name): (owner, name, original) for owner, name, original in reversed(before)}
        assert all(owner.__dict__[name] is original for owner, name, original in first.values()), mutation.name


class Victim:
    def answer(self, number: int) -> int:
        return number

    async def later(self, number: int) -> int:
        return number


def test_patch_counts_its_calls() -> None:
    patch = Patch()
    patch.set(Victim, "answer", lambda self, number: -number)
    assert not patch.executed
    assert Victim().answer(3) == -3
    assert patch.calls == {"Victim.answer": 1}
    patch.undo()
    assert Victim().answer(3) == 3


async def test_exception_inside_mutated_code_is_not_a_mutation_error() -> None:
    patch = Patch()

    async def raises(self: Any, number: int) -> int:
        found: dict[int, int] = {}
        return found[number]

    patch.set(Victim, "later", raises)
    with pytest.raises(KeyError):
        await Victim().later(3)
    assert patch.mutation_error == ""
    patch.undo()


def catch(
    name: str, seeds: Iterable[int], control: mutation_testing.ControlRun | None = None
) -> mutation_testing.MutationCaught:
    """Searches in this process, one run at a time."""
    control = control or mutation_testing.ControlRun()
    requests = mutation_testing.search(name, seeds)
    try:
        request = next(requests)
        while True:
            if request.name:
                request = requests.send(mutation_testing.run_trial(request.seed, request.name))
                continue
            if request.seed not in control.failures:
                control.failures[request.seed] = mutation_testing.run_trial(request.seed).invariant
            request = requests.send(mutation_testing.TrialResult(request.seed, control.failures[request.seed]))
    except StopIteration as end:
        caught: mutation_testing.MutationCaught = end.value
        return caught


def test_mutation_with_outdated_signature_is_an_error_not_a_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = Patch()
    patch.set(Victim, "answer", lambda self: 0)
    with pytest.raises(TypeError):
        Victim().answer(3)
    patch.undo()
    assert "Victim.answer: TypeError" in patch.mutation_error

    def failing_run(seed: int, name: str = "") -> mutation_testing.TrialResult:
        return mutation_testing.TrialResult(seed, invariant="convergence", mutation_error=patch.mutation_error)

    monkeypatch.setattr(mutation_testing, "run_trial", failing_run)
    with pytest.raises(RuntimeError, match=r"the mutation itself failed: Victim\.answer"):
        catch("quota-check-skipped", [1])


def test_seed_failing_without_mutation_is_not_a_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_run(seed: int, name: str = "") -> mutation_testing.TrialResult:
        return mutation_testing.TrialResult(seed, invariant="S1" if name or seed == 1 else "")

    monkeypatch.setattr(mutation_testing, "run_trial", failing_run)
    control = mutation_testing.ControlRun()
    caught = catch("quota-check-skipped", [1, 2, 3], control)
    assert (caught.seed, caught.tried) == (2, (1, 2))
    assert control.failing_seeds == [1]


def test_mutation_with_scenario_uses_seeds_of_that_scenario() -> None:
    mutation = next(m for m in MUTATIONS if m.scenario)
    seeds = list(mutation_testing.seeds_for(mutation, first=1, seeds=2))
    assert seeds[: mutation_testing.PLAIN_SEEDS] == [1]
    bases = [base_scenario(seed) for seed in seeds[mutation_testing.PLAIN_SEEDS :]]
    assert len(bases) == 2 and all(base is not None and base.title.startswith(mutation.scenario) for base in bases)


@pytest.mark.parametrize(("seeds", "passes"), [((1, 3, 25, 26), True), ((26, 26, 30), False)])
def test_mutation_run_above_median_seed_limit_fails(
    seeds: tuple[int, ...], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the median over all mutations is limited; one mutation may need more seeds."""
    chosen = MUTATIONS[: len(seeds)]
    needs = {mutation.name: seed for mutation, seed in zip(chosen, seeds, strict=True)}
    monkeypatch.setattr(mutation_runner, "MUTATIONS", chosen)
    monkeypatch.setattr(mutation_runner, "seeds_for", lambda mutation, first, seeds: [needs[mutation.name]])
    monkeypatch.setattr(
        mutation_runner,
        "run_trial",
        lambda seed, name="": mutation_testing.TrialResult(seed, invariant="S1" if name else ""),
    )
    lines: list[str] = []
    assert mutation_runner.run_mutations(mutation_runner.MutationRunOptions("all", 1), lines.append) == (
        0 if passes else 1
    )
    assert any("(limit 25)" in line for line in lines) is not passes


def test_interrupted_search_continues_without_repeating_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, kept = tmp_path / "ran", tmp_path / "kept"

    def run_recorded(seed: int, name: str = "") -> mutation_testing.TrialResult:
        with ran.open("a") as file:  # each run has its own process
            file.write(f"{name}@{seed}\n")
        if seed == 2 and name and not (tmp_path / "repaired").exists():
            # A run that has not ended when the machine goes down is repeated, so both must have ended.
            wait_until(lambda: kept.read_text().count('"seed":1},') == 2, "two results")
            raise OSError("the machine went down")
        return mutation_testing.TrialResult(seed, invariant="S3" if name and seed == 3 else "")

    monkeypatch.setattr(mutation_runner, "run_trial", run_recorded)
    options = mutation_runner.MutationRunOptions(
        "quota-check-skipped,capacity-check-skipped", 5, workers=2, results_path=kept, report_path=tmp_path / "page"
    )
    with pytest.raises(RuntimeError, match="the machine went down"):
        mutation_runner.run_mutations(options, lambda text: None)
    (tmp_path / "repaired").touch()
    lines: list[str] = []
    assert mutation_runner.run_mutations(options, lines.append) == 0
    assert lines[0].startswith("continuing after")
    runs_at_1 = [line for line in ran.read_text().split() if line.endswith("-check-skipped@1")]
    assert sorted(runs_at_1) == ["capacity-check-skipped@1", "quota-check-skipped@1"]
    assert sorted(line for line in ran.read_text().split() if line.startswith("@")) == ["@1", "@2", "@3"]
    page = (tmp_path / "page").read_text()
    assert "2 of 2 caught, after 3 seeds in the median and 3 at most" in page
    assert "control: 3 seeds without mutation, 0 failures" in page


def test_results_of_other_code_are_discarded(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    MutationResultLog(path).add(mutation_testing.TrialRequest("", 1), mutation_testing.TrialResult(1))
    with path.open("a") as file:
        file.write('{"ask": {"na')
    assert list(MutationResultLog(path).results) == [mutation_testing.TrialRequest("", 1)]
    assert list(MutationResultLog(path).results) == [mutation_testing.TrialRequest("", 1)]
    path.write_text("another\n" + path.read_text().partition("\n")[2])
    assert not MutationResultLog(path).results


def test_mutation_page_lists_seeds_and_equivalent_mutations(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MutationTable()
    table.rows = [
        mutation_testing.MutationCaught("quota-check-skipped", (1, 2, 3, 4), seed=4, invariant="S3", not_executed=1),
        mutation_testing.MutationCaught("capacity-check-skipped", (1, 2)),
    ]
    page = "\n".join(mutation_report.report_lines(table))
    assert "| quota-check-skipped | placement does not check the tenant's limit | 4 | 4 | 75% | S3 |  |" in page
    assert "None: every mutation changes the behaviour" in page
    assert table.missed == ["capacity-check-skipped"] and not table.wrongly_equivalent

    proven = msgspec.structs.replace(find_mutation("capacity-check-skipped"), equivalent="Nothing is ever placed.")
    monkeypatch.setattr(
        mutation_report, "find_mutation", lambda name: proven if name == proven.name else find_mutation(name)
    )
    page = "\n".join(mutation_report.report_lines(table))
    assert "1 of 1 caught" in page and "| 2 | 100% | equivalent, see below |" in page
    assert f"- capacity-check-skipped ({proven.description}): Nothing is ever placed." in page
    assert not table.missed
    table.rows[1] = mutation_testing.MutationCaught("capacity-check-skipped", (1,), seed=1, invariant="S2")
    assert table.wrongly_equivalent == ["capacity-check-skipped"] and "the proof is wrong" in "\n".join(
        mutation_report.report_lines(table)
    )


def test_number_of_seeds_to_catch_includes_skipped_seeds() -> None:
    table = MutationTable(first=5001)
    assert table.seeds_to_catch(mutation_testing.MutationCaught("quota-check-skipped", (5001, 5203), seed=5203)) == 203
    mutation = next(m for m in MUTATIONS if m.scenario)
    seeds = list(mutation_testing.seeds_for(mutation, first=5001, seeds=50))
    assert seeds[0] == 5001 and len(seeds) > 10 and seeds[-1] < 5001 + mutation_testing.SEED_SPAN


def test_unknown_mutation_is_not_found() -> None:
    with pytest.raises(LookupError, match="no-such-bug: not found"), applied_mutation("no-such-bug"):
        pass
