"""The commands of docs/how-to/run-an-image.md, from an empty directory to an image that serves, on a real platform."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.agent.image_registry import free_port, program
from tests.e2e.test_tutorials import reader_folder, run_page
from tests.page_commands import command_blocks
from tests.platforms import ROOT, RunningPlatform, holdfast, running_platform
from tests.requirements import skip_or_fail

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(300)]
PROGRAMS = ("docker-registry", "umoci", "skopeo", "runc")


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[RunningPlatform]:
    if os.geteuid() != 0:
        skip_or_fail("images need an agent that is root")
    for name in PROGRAMS:
        program(name)
    with running_platform(tmp_path / "state", "--regions", "us-east") as running:
        yield running


def test_page_runs_an_image_of_its_own(platform: RunningPlatform, tmp_path: Path) -> None:
    here = f"127.0.0.1:{free_port()}"
    blocks = [
        msgspec.structs.replace(block, commands=block.commands.replace("127.0.0.1:5000", here))
        for block in command_blocks(ROOT / "docs/how-to/run-an-image.md")
    ]
    with reader_folder(tmp_path / "reader", platform) as folder:
        *_, seen = run_page(blocks, platform, folder)
        assert "hello from an image" in seen and "response:200" in seen
        state = str(platform.state)
        assert holdfast("logs", "images/site", "--state", state).stdout
        refused = holdfast("logs", "images/site", "--previous", "--state", state, check=False).stderr
        assert "it never restarted" in refused
        (folder / "note").write_text("one\n")
        names = platform.kubectl("--context", "us-east", "-n", "images", "get", "replicas", "-o", "name")
        replica = f"images/{names.strip().rpartition('/')[2]}"
        for pair in (
            (str(folder / "note"), f"{replica}:/tmp/note"),
            (f"{replica}:/srv/index.html", str(folder / "index")),
        ):
            failed = holdfast("cp", *pair, "--state", state, check=False).stderr
            assert "there is no program tar in its image" in failed and "next: use an image that contains tar" in failed
