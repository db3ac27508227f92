"""The command lines of reference pages, run in order on a real platform, each of them or with a reason why not.

The tutorials and the pages of the installation have tests of their own. `make prove STAGE=platforms`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.page_lines import PAGES, command_lines
from tests.platforms import ROOT, RunningPlatform, running_platform

from holdfast.platform.supervisor import path_with_venv

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="takes minutes; make prove STAGE=platforms runs it"),
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("pages") / "state") as running:
        yield running


@pytest.mark.parametrize("name", PAGES)
def test_command_lines_of_page_succeed(name: str, platform: RunningPlatform, tmp_path: Path) -> None:
    page = PAGES[name]
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast.cli "$@"\n')
    program.chmod(0o755)
    env = {
        **os.environ,
        "KUBECONFIG": platform.up_output["kubeconfig"],
        "HOLDFAST_STATE": str(platform.state),
        "PATH": f"{programs}:{path_with_venv(os.environ['PATH'])}:{ROOT / '.tools' / 'bin'}",
        "CI": "true",
        "EXAMPLES": str(ROOT / "examples"),
    }
    subprocess.run(["bash", "-c", page.setup], cwd=tmp_path, check=True)
    ran, failed = 0, []
    for line in command_lines(name):
        if any(line.startswith(start) for start in page.not_run):
            continue
        typed = page.command(line)
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        ran += 1
        if done.returncode != 0:
            failed.append(f"{typed}: exit {done.returncode}: {done.stdout[-300:]}{done.stderr[-500:]}")
    assert failed == [], "\n".join(failed)
    assert ran >= 1
