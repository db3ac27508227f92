"""Every command block of the tour, the tutorials and some how-to pages prints what the page shows, on a real platform.

`REWRITE_PAGES=1` puts the printed output into the pages instead of comparing it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.page_commands import EXECUTED_PAGES, CommandBlock, command_blocks, lines_not_seen, rewrite
from tests.platforms import ROOT, RunningPlatform, processes_of, running_platform

from holdfast.platform.supervisor import path_with_venv

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]

# The fixture does the same: a platform in the background, and the two variables.
DONE_BY_FIXTURE = ("make install", "make up", "export KUBECONFIG=")
REWRITES = bool(os.environ.get("REWRITE_PAGES"))


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("tutorials") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, platform: RunningPlatform) -> Iterator[Path]:
    with reader_folder(tmp_path_factory.mktemp("tutorials") / "reader", platform) as made:
        yield made


@contextlib.contextmanager
def reader_folder(made: Path, platform: RunningPlatform) -> Iterator[Path]:
    """The reader's directory: files that the pages write, the examples, and the state of the platform. Processes that a
    page started in it end with the block."""
    made.mkdir()
    (made / ".holdfast").symlink_to(platform.state)
    (made / "examples").symlink_to(ROOT / "examples")
    programs = made / "bin"
    programs.mkdir()
    holdfast = programs / "holdfast"
    holdfast.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast.cli "$@"\n')
    holdfast.chmod(0o755)
    yield made
    for line in processes_of(made):
        os.kill(int(line.split()[0]), signal.SIGKILL)


def script_of(block: CommandBlock) -> str:
    if block.language == "python":
        return f"{sys.executable} - <<'PYTHON'\n{block.commands}PYTHON\n"
    kept = [line for line in block.commands.splitlines() if not line.startswith(DONE_BY_FIXTURE)]
    return "\n".join(kept) + "\n"


def run_page(blocks: list[CommandBlock], platform: RunningPlatform, folder: Path) -> list[str]:
    """Runs all blocks of a page in one shell, as a reader pastes them, and returns the output of each."""
    mark = "=== end of block"
    script = "set -m -e\n" + f'\necho "{mark}"\n'.join(map(script_of, blocks)) + f'\necho "{mark}"\n'
    env = {
        **os.environ,
        "KUBECONFIG": platform.up_output["kubeconfig"],
        "HOLDFAST_STATE": str(platform.state),
        "PATH": f"{folder / 'bin'}:{path_with_venv(os.environ['PATH'])}:{ROOT / '.tools' / 'bin'}",
        "CI": "true",
        "HOME": str(folder),
    }
    # A file, because a process that a failed page leaves behind would keep a pipe open.
    with (folder / "output.txt").open("w+") as output:
        completed = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=env, stdout=output, stderr=output, timeout=200
        )
        output.seek(0)
        printed = output.read().replace(str(platform.state), ".holdfast")
    # The shell's own note on a finished job.
    printed = re.sub(r"^\[1\][+-]? .*\n", "", printed, flags=re.MULTILINE)
    outputs = printed.split(f"{mark}\n")
    assert completed.returncode == 0, f"{blocks[len(outputs) - 1].commands}\n{outputs[-1]}"
    return outputs[:-1]


@pytest.mark.parametrize("name", EXECUTED_PAGES)
def test_page_commands_print_what_the_page_shows(name: str, platform: RunningPlatform, folder: Path) -> None:
    blocks = command_blocks(ROOT / name)
    assert blocks
    outputs = run_page(blocks, platform, folder)
    if REWRITES:
        rewrite(ROOT / name, dict(enumerate(outputs)))
        return
    for block, seen in zip(blocks, outputs, strict=True):
        if block.shown is not None:
            missing = lines_not_seen(block.shown, seen)
            assert not missing, f"{name} shows lines that were not printed: {missing}\nprinted:\n{seen}"
