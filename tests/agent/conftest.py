"""Mounts small disks for tests that fill them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.requirements import skip_or_fail


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(where)], capture_output=True).returncode:
        skip_or_fail("only root can mount a small disk; next: run as root")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)
