"""A platform with the sample work for drills, and the command line to it; one module starts one, and it is judged when
the module is done (`platforms.running`)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests import platforms


def holdfast(*words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Whatever it says: drills and refusals have exit codes of their own, which the tests look at."""
    return platforms.holdfast(*words, timeout_s=timeout_s, check=False)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with platforms.running_platform(tmp_path_factory.mktemp("drill") / "platform") as up:
        yield str(up.state)
