"""The judgement of branch coverage: exempted branches do not count, modules never imported do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import branch_coverage
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One deciding module, alone."""
    path = tmp_path / "decision.py"
    path.write_text("if a:\n    b()\nif c:\n    d()\n")
    monkeypatch.setattr(branch_coverage, "SOURCE", tmp_path)
    monkeypatch.setattr(branch_coverage, "GROUPS", {"one": ("decision.py",)})
    monkeypatch.setattr(branch_coverage, "modules", lambda group: iter([path]))
    exemptions = tmp_path / "exemptions.txt"
    exemptions.write_text("# a comment\n")
    monkeypatch.setattr(branch_coverage, "EXEMPTIONS", exemptions)
    return path


def report(path: Path) -> dict[str, Any]:
    row = {"executed_branches": [[1, 2], [1, 3], [3, 4]], "missing_branches": [[3, -1]]}
    return {"files": {str(path): row}}


def test_missing_branch_is_counted_and_shown(module: Path) -> None:
    (row,) = branch_coverage.judge(report(module))
    assert (row.taken, row.missing, row.exempt, row.share) == (3, ["3 → end: if c:"], 0, 0.75)


def test_exempted_branch_is_not_counted(module: Path) -> None:
    branch_coverage.EXEMPTIONS.write_text("decision.py | if c: | never so; tests/test_decision.py\n")
    (row,) = branch_coverage.judge(report(module))
    assert (row.missing, row.exempt, row.share) == ([], 1, 1.0)


def test_module_that_was_never_imported_has_no_coverage(module: Path) -> None:
    (row,) = branch_coverage.judge({"files": {}})
    assert row.share == 0.0 and row.missing == ["never imported"]


@pytest.mark.parametrize(
    ("minimum", "failure", "code"), [(0.7, "", 0), (0.8, "", 1), (0.7, "S3 at 12.5 s", 1)], ids=["ok", "few", "failed"]
)
def test_share_below_the_minimum_or_a_failed_simulation_fails(
    module: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    minimum: float,
    failure: str,
    code: int,
) -> None:
    def measure(first: int, seeds: int, workers: int, folder: Path) -> None:
        (folder / "seeds.jsonl").write_text(json.dumps({"seed": 1, "failure": failure}) + "\n")

    monkeypatch.setattr(branch_coverage, "RESULTS", module.parent / "results")
    monkeypatch.setattr(branch_coverage, "SHARE_MIN", minimum)
    monkeypatch.setattr(branch_coverage, "measure", measure)
    monkeypatch.setattr(branch_coverage, "read_report", lambda _: report(module))
    monkeypatch.setattr("sys.argv", ["branch_coverage.py", "--seeds", "1"])
    assert branch_coverage.main() == code
    said = capsys.readouterr().out
    assert "75.0% of 4 branches over 1 seeds" in said
    assert ("seed 1 failed: S3 at 12.5 s; next: make sim SEED=1" in said) == bool(failure)


def test_interrupted_run_continues_and_a_change_of_the_source_discards_it(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program in place of the simulations that records its seeds."""
    record = 'json.dumps({"seed": seed, "failure": ""}) + "\\n"'
    program = "import json, sys\nfolder, _, seeds = json.load(sys.stdin)\n"
    program += f"for seed in seeds:\n    open(folder + '/seeds.jsonl', 'a').write({record})\n"
    monkeypatch.setattr(branch_coverage, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(branch_coverage, "RUN", program)
    folder = branch_coverage.results_folder(5)
    for seeds in (2, 4):
        branch_coverage.measure(5, seeds, 2, folder)
    ran = [json.loads(line)["seed"] for line in (folder / "seeds.jsonl").read_text().splitlines()]
    assert sorted(ran) == [5, 6, 7, 8] and set(ran[:2]) == {5, 6}
    assert branch_coverage.results_folder(5) == folder and (folder / "seeds.jsonl").exists()
    module.write_text(module.read_text() + "e()\n")
    assert branch_coverage.results_folder(5) != folder and not folder.exists()


def test_every_exemption_names_existing_code_and_an_existing_test() -> None:
    for (path, source), why in branch_coverage.exempt_lines().items():
        lines = [line.strip() for line in (ROOT / "src" / "holdfast" / path).read_text().splitlines()]
        assert source in lines, f"{path}: no line {source!r}"
        test, _, function = why.rpartition(" ")[2].partition("::")
        assert function and f"def {function}(" in (ROOT / test).read_text(), f"{path}: {source}: no test {why!r}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_simulation_is_measured(tmp_path: Path) -> None:
    branch_coverage.measure(2, 1, 1, tmp_path)
    assert branch_coverage.measured_seeds(tmp_path) == {2: ""}
    rows = {row.path: row for row in branch_coverage.judge(branch_coverage.read_report(tmp_path))}
    assert rows["authority/reserve.py"].share > 0.5
    assert rows["authority/restore_records.py"].share < 0.5, "no restore happens in this seed"
