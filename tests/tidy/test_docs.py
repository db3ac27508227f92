"""Generated docs are current, and names in other docs exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
from tests.page_commands import command_blocks, normalized

from holdfast.agent.config import AgentConfig
from holdfast.agent.drivers.artifact_sources import ArtifactSources
from holdfast.cli.app import COMMANDS, HIDDEN, holdfast
from holdfast.model import limits
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import FilterName, ScoreName


def all_commands() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    root = click.Context(holdfast, info_name="holdfast")

    def add(path: str, command: click.Command) -> None:
        found.append((path, command))
        if isinstance(command, click.Group):
            ctx = click.Context(command, info_name=path, parent=root)
            for name in command.list_commands(ctx):
                child = command.get_command(ctx, name)
                assert child is not None
                add(f"{path} {name}", child)

    for name in (*COMMANDS, *HIDDEN):
        command = holdfast.get_command(root, name)
        assert command is not None
        add(f"holdfast {name}", command)
    return found


def test_generated_pages_are_current(generator: ModuleType) -> None:
    assert generator.drifted() == [], "next: make docs"


def test_every_setting_of_an_agent_is_documented(root: Path) -> None:
    page = (root / "docs" / "agent.md").read_text()
    settings = (*AgentConfig.__struct_fields__, *ArtifactSources.__struct_fields__)
    assert [name for name in settings if f"`{name}`" not in page] == []


def test_every_threat_names_its_tests(root: Path) -> None:
    """Each row of the threat model ends with test functions that exist."""
    rows = [line for line in (root / "docs" / "threat-model.md").read_text().splitlines() if line.startswith("| ")]
    attacks = [row for row in rows if not row.startswith("| attack ")]
    assert len(attacks) > 50
    for row in attacks:
        cell = row.split(" | ")[-1]
        named = re.findall(r"`(tests/[\w/.]+)::(test_\w+)`", cell)
        assert named and len(named) == cell.count("`tests/"), f"a test without its function, or none: {row}"
        for path, function in named:
            assert f"def {function}(" in (root / path).read_text(), f"{path}::{function}: not found"


def test_every_reason_is_documented(root: Path) -> None:
    page = (root / "docs" / "reasons.md").read_text()
    missing = [reason.value for reason in Reason if f"| `{reason.value}` | {reason.sentence} | " not in page]
    assert not missing


def test_every_shared_limit_is_documented(root: Path) -> None:
    page = (root / "docs" / "limits.md").read_text()
    missing = [name for name in vars(limits) if name.isupper() and f"| `{name}` |" not in page]
    assert not missing


def test_every_metric_is_documented_and_well_named(root: Path, generator: ModuleType) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", generator.metrics_page(), re.MULTILINE)
    assert rows
    page = (root / "docs" / "metrics.md").read_text()
    for name, kind in rows:
        assert f"`{name}`" in page, name
        assert re.fullmatch(r"holdfast(_[a-z0-9]+){2,}", name), name
        if kind == "counter":
            assert name.endswith("_total"), name


@pytest.mark.parametrize(("path", "command"), all_commands(), ids=lambda v: v if isinstance(v, str) else "")
def test_every_command_has_help_and_an_example(path: str, command: click.Command) -> None:
    assert command.help, f"{path} has no help"
    assert "Example" in command.help, f"{path} shows no example"
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{path} {option.opts[-1]} has no help"
            assert option.help.rstrip().endswith((".", "]")), f"{path} {option.opts[-1]}: help is a sentence"


def test_command_list_repeats_each_first_help_line() -> None:
    ctx = click.Context(holdfast)
    for name, (_, line) in {**COMMANDS, **HIDDEN}.items():
        command = holdfast.get_command(ctx, name)
        assert command is not None
        assert command.help is not None
        first_line = command.help.strip().splitlines()[0]
        assert first_line.rstrip(".") == line.rstrip("."), name


def test_every_command_that_prints_data_prints_json() -> None:
    without_json = {
        "holdfast serve",
        "holdfast agent",
        "holdfast hollow",
        "holdfast dns",
        "holdfast proxy",
        "holdfast supervise",
        "holdfast kubeconfig",
        "holdfast completion",
        "holdfast pool provide",
        "holdfast token",
    }
    for path, command in all_commands():
        names = {name for option in command.params for name in option.opts}
        group = isinstance(command, click.Group)
        assert group or path in without_json or "--output" in names, f"{path} has no -o json"


def test_every_make_target_has_help(root: Path) -> None:
    text = (root / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):(?!=)", text, re.MULTILINE)
    help_text = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=root, capture_output=True, text=True
    ).stdout
    assert targets
    for target in targets:
        assert re.search(rf"make {target}\s+\S", help_text), f"make {target} is not explained"
        assert f".PHONY: {target}" in text, target


def test_docs_name_existing_commands_and_targets(root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):(?!=)", makefile, re.MULTILINE))
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    for page in pages:
        code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), re.DOTALL))
        for target in re.findall(r"(?:^|[`\s])make ([a-z-]+)", code):
            assert target in targets, f"{page.name}: make {target} does not exist"
        for name in re.findall(r"(?:^|[`\s/])holdfast ([a-z][a-z-]+)", code):
            assert name in {**COMMANDS, **HIDDEN}, f"{page.name}: holdfast {name} does not exist"


def test_readme_is_one_screen_with_one_picture_and_two_commands(root: Path) -> None:
    text = (root / "README.md").read_text()
    assert len(text.splitlines()) <= 50
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert len(commands.splitlines()) == 2


def test_links_between_docs_resolve(root: Path) -> None:
    broken = []
    for page in [root / "README.md", root / "CONTRIBUTING.md", root / "CHANGELOG.md", *(root / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in link and not (page.parent / link).exists():
                broken.append(f"{page.relative_to(root)} → {link}")
    assert not broken


def test_shown_output_has_no_number_that_differs_between_runs(root: Path) -> None:
    """A date or a run's number that the comparison of pages does not normalize fails the tutorials on another day."""
    kept = [
        f"{page.name}: {line.strip()}"
        for page in sorted((root / "docs").rglob("*.md"))
        for block in command_blocks(page)
        for line in (block.shown or "").splitlines()
        if re.search(r"\d{3}", normalized(line))
    ]
    assert kept == []


def test_policies_page_names_every_filter_and_score(root: Path) -> None:
    page = (root / "docs" / "policies.md").read_text()
    missing = [name.value for name in (*FilterName, *ScoreName) if f"`{name.value}`" not in page]
    assert not missing


def test_design_page_lists_every_controller(root: Path) -> None:
    table = (root / "src" / "holdfast" / "cell" / "controller_table.py").read_text()
    names = set(re.findall(r'^ +name="([a-z-]+)",', table, re.MULTILINE))
    page = (root / "docs" / "design.md").read_text()
    listed = {name for row in re.findall(r"^\| ([a-z, -]+) \|", page, re.MULTILINE) for name in row.split(", ")}
    assert names
    assert not names - listed


def test_help_is_fast(root: Path) -> None:
    """The budget is 150 ms on an idle machine. The test checks its precondition: no heavy import."""
    code = "import sys; from holdfast.cli.app import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    loaded = set(completed.stderr.split())
    heavy = {"msgspec", "aiohttp", "numpy", "rich", "yaml", "uvicorn", "asyncio", "prometheus_client", "cryptography"}
    assert not loaded & heavy
