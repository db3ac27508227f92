"""Makes `import agent_world` work, and mounts small disks for tests that fill them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.requirements import skip_or_fail

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "controllers"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(where)], capture_output=True).returncode:
        skip_or_fail("only root can mount a small disk; next: run as root")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)
