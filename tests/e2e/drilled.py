"""A platform with the sample work for drills, and the command line to it; one module starts one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_up import free_port_base

from holdfast.sim.recorded import check_platform


def holdfast(*words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    state: Path = tmp_path_factory.mktemp("drill") / "platform"
    up = holdfast(
        "up", "--detach", "--quiet", "--state", str(state), "--port-base", str(free_port_base()), timeout_s=180
    )
    try:
        assert up.returncode == 0, up.stderr
        yield str(state)
        verdict = check_platform(state)
        assert not verdict.violations, "\n".join(map(str, verdict.violations[:10]))
    finally:
        holdfast("down", "--purge", "--quiet", "--state", str(state), timeout_s=120)
