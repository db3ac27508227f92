"""A platform with the sample workloads, for drills: one per test module, whose history is checked at the end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests import platforms


def holdfast(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a command without checking its exit code, which the tests check themselves."""
    return platforms.holdfast(*arguments, timeout_s=timeout_s, check=False)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with platforms.running_platform(tmp_path_factory.mktemp("drill") / "platform") as running:
        yield str(running.state)
