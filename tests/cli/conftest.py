"""Commands are run as users run them: as processes, with their output and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.platform.credentials import Credentials
from holdfast.platform.kubeconfig import write_kubeconfig
from holdfast.platform.layout import Layout, Platform, design_platform

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `holdfast …` in an empty directory."""

    def once(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=tmp_path,
            env={**env, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return once


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / ".holdfast")


@pytest.fixture
def platform(layout: Layout) -> Platform:
    """A prepared platform of which nothing runs: ports of the range nobody listens on."""
    made = design_platform(("us-east", "eu-west"), agents_per_region=2, port_base=61400, samples=True)
    layout.prepare()
    Credentials(layout).prepare(made)
    layout.save(made)
    write_kubeconfig(layout, made, layout.kubeconfig)
    return made
