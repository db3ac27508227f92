"""Fixtures that run commands as processes, as users do."""

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

    def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *arguments],
            cwd=tmp_path,
            env={**env, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run_command


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / ".holdfast")


@pytest.fixture
def platform(layout: Layout) -> Platform:
    """A prepared platform without running processes, on unused ports."""
    designed = design_platform(("us-east", "eu-west"), agents_per_region=2, port_base=61400, samples=True)
    layout.prepare()
    Credentials(layout).prepare(designed)
    layout.save(designed)
    write_kubeconfig(layout, designed, layout.kubeconfig)
    return designed
