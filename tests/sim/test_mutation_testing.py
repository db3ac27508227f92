"""Planted bugs are caught within a bounded number of seeds, each by what it breaks, and the same seeds without them are
clean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.sim import mutation_report, mutation_runner, mutation_testing
from holdfast.sim.mutation_report import MutationTable
from holdfast.sim.mutation_results import MutationResultLog
from holdfast.sim.mutations import CATALOGUE, MUTATIONS, Patch, applied_mutation, find_mutation
from holdfast.sim.scenario_files import base_scenario


def test_every_mistake_of_the_catalogue_is_planted_and_no_name_is_used_twice() -> None:
    assert {m.catalogue_entry for m in MUTATIONS if m.catalogue_entry} == set(CATALOGUE)
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)


def test_a_planted_bug_leaves_nothing_behind() -> None:
    class Spying(Patch):
        def set(self, owner: Any, name: str, value: Any) -> None:
            before.append((owner, name, owner.__dict__[name]))
            super().set(owner, name, value)

    for mutation in MUTATIONS:
        before: list[tuple[Any, str, Any]] = []
        patch = Spying()
        mutation.apply(patch)
        assert before, f"{mutation.name} changes nothing"
        assert any(owner.__dict__[name] is not was for owner, name, was in before), f"{mutation.name} changes nothing"
        patch.undo()
        first = {(id(owner), name): (owner, name, was) for owner, name, was in reversed(before)}
        assert all(owner.__dict__[name] is was for owner, name, was in first.values()), mutation.name


class Victim:
    def answer(self, number: int) -> int:
        return number

    async def later(self, number: int) -> int:
        return number


def test_a_patch_counts_its_calls() -> None:
    patch = Patch()
    patch.set(Victim, "answer", lambda self, number: -number)
    assert not patch.executed
    assert Victim().answer(3) == -3
    assert patch.calls == {"Victim.answer": 1}
    patch.undo()
    assert Victim().answer(3) == 3


async def test_code_that_stumbles_over_a_bug_is_not_the_bugs_own_mistake() -> None:
    patch = Patch()

    async def stumbles(self: Any, number: int) -> int:
        found: dict[int, int] = {}
        return found[number]

    patch.set(Victim, "later", stumbles)
    with pytest.raises(KeyError):
        await Victim().later(3)
    assert patch.mutation_error == ""
    patch.undo()


def catch(
    name: str, seeds: Iterable[int], control: mutation_testing.ControlRun | None = None
) -> mutation_testing.MutationCaught:
    """Searches in this process, one world after the other."""
    control = control or mutation_testing.ControlRun()
    asking = mutation_testing.search(name, seeds)
    try:
        ask = next(asking)
        while True:
            if ask.name:
                ask = asking.send(mutation_testing.run_trial(ask.seed, ask.name))
                continue
            if ask.seed not in control.failures:
                control.failures[ask.seed] = mutation_testing.run_trial(ask.seed).invariant
            ask = asking.send(mutation_testing.TrialResult(ask.seed, control.failures[ask.seed]))
    except StopIteration as end:
        caught: mutation_testing.MutationCaught = end.value
        return caught


def test_a_mutation_whose_signature_is_out_of_date_is_told_and_has_caught_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch = Patch()
    patch.set(Victim, "answer", lambda self: 0)
    with pytest.raises(TypeError):
        Victim().answer(3)
    patch.undo()
    assert "Victim.answer: TypeError" in patch.mutation_error

    def tripped(seed: int, name: str = "") -> mutation_testing.TrialResult:
        return mutation_testing.TrialResult(seed, invariant="convergence", mutation_error=patch.mutation_error)

    monkeypatch.setattr(mutation_testing, "run_trial", tripped)
    with pytest.raises(RuntimeError, match=r"the mutation itself failed: Victim\.answer"):
        catch("quota-check-skipped", [1])


def test_a_seed_that_fails_without_the_bug_has_caught_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def sick_world(seed: int, name: str = "") -> mutation_testing.TrialResult:
        return mutation_testing.TrialResult(seed, invariant="S1" if name or seed == 1 else "")

    monkeypatch.setattr(mutation_testing, "run_trial", sick_world)
    control = mutation_testing.ControlRun()
    caught = catch("quota-check-skipped", [1, 2, 3], control)
    assert (caught.seed, caught.tried) == (2, (1, 2))
    assert control.failing_seeds == [1]


def test_a_bug_with_a_scenario_is_looked_for_in_seeds_that_begin_from_it() -> None:
    mutation = next(m for m in MUTATIONS if m.scenario)
    seeds = list(mutation_testing.seeds_for(mutation, first=1, seeds=2))
    assert seeds[: mutation_testing.PLAIN_SEEDS] == [1]
    bases = [base_scenario(seed) for seed in seeds[mutation_testing.PLAIN_SEEDS :]]
    assert len(bases) == 2 and all(base is not None and base.title.startswith(mutation.scenario) for base in bases)


@pytest.mark.parametrize(("seeds", "well"), [((1, 3, 25, 26), True), ((26, 26, 30), False)])
def test_a_catalogue_that_takes_too_long_fails(
    seeds: tuple[int, ...], well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole: what some take is their own affair."""
    chosen = MUTATIONS[: len(seeds)]
    needs = {mutation.name: seed for mutation, seed in zip(chosen, seeds, strict=True)}
    monkeypatch.setattr(mutation_runner, "MUTATIONS", chosen)
    monkeypatch.setattr(mutation_runner, "seeds_for", lambda mutation, first, seeds: [needs[mutation.name]])
    monkeypatch.setattr(
        mutation_runner,
        "run_trial",
        lambda seed, name="": mutation_testing.TrialResult(seed, invariant="S1" if name else ""),
    )
    told: list[str] = []
    assert mutation_runner.run_mutations(mutation_runner.MutationRunOptions("all", 1), told.append) == (
        0 if well else 1
    )
    assert any("(limit 25)" in line for line in told) is not well


def test_a_search_that_was_stopped_goes_on_and_runs_no_world_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"

    def world(seed: int, name: str = "") -> mutation_testing.TrialResult:
        with ran.open("a") as file:  # each in a process of its own
            file.write(f"{name}@{seed}\n")
        if seed == 2 and name and not (tmp_path / "calm").exists():
            raise OSError("the machine went down")
        return mutation_testing.TrialResult(seed, invariant="S3" if name and seed == 3 else "")

    monkeypatch.setattr(mutation_runner, "run_trial", world)
    wish = mutation_runner.MutationRunOptions(
        "quota-check-skipped,capacity-check-skipped",
        5,
        workers=2,
        results_path=tmp_path / "kept",
        report_path=tmp_path / "page",
    )
    with pytest.raises(RuntimeError, match="the machine went down"):
        mutation_runner.run_mutations(wish, lambda text: None)
    (tmp_path / "calm").touch()
    told: list[str] = []
    assert mutation_runner.run_mutations(wish, told.append) == 0
    assert told[0].startswith("continuing after")
    planted_at_1 = [line for line in ran.read_text().split() if line.endswith("-check-skipped@1")]
    assert sorted(planted_at_1) == ["capacity-check-skipped@1", "quota-check-skipped@1"]
    assert sorted(line for line in ran.read_text().split() if line.startswith("@")) == ["@1", "@2", "@3"]
    page = (tmp_path / "page").read_text()
    assert "2 of 2 caught, after 3 seeds in the median and 3 at most" in page
    assert "control: 3 seeds without mutation, 0 failures" in page


def test_answers_of_another_state_of_the_code_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    MutationResultLog(path).add(mutation_testing.TrialRequest("", 1), mutation_testing.TrialResult(1))
    with path.open("a") as file:
        file.write('{"ask": {"na')
    assert list(MutationResultLog(path).results) == [mutation_testing.TrialRequest("", 1)]
    assert list(MutationResultLog(path).results) == [mutation_testing.TrialRequest("", 1)]
    path.write_text("another\n" + path.read_text().partition("\n")[2])
    assert not MutationResultLog(path).results


def test_the_page_says_how_often_a_bug_ran_and_lists_what_is_proven_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_a_bug_takes_is_counted_from_the_first_seed_of_the_search() -> None:
    table = MutationTable(first=5001)
    assert table.seeds_to_catch(mutation_testing.MutationCaught("quota-check-skipped", (5001, 5203), seed=5203)) == 203
    mutation = next(m for m in MUTATIONS if m.scenario)
    seeds = list(mutation_testing.seeds_for(mutation, first=5001, seeds=50))
    assert seeds[0] == 5001 and len(seeds) > 10 and seeds[-1] < 5001 + mutation_testing.SEED_SPAN


def test_a_bug_that_nobody_planted_is_not_there() -> None:
    with pytest.raises(LookupError, match="no-such-bug: not found"), applied_mutation("no-such-bug"):
        pass
