"""The disk of the global cell fills up and is freed again: reads are answered throughout, and nobody restarts it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platforms import holdfast, running_platform, wait_until

from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(300)]

HELD_FULL_S = 15.0
"""Longer than any lease of an election."""


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "32m") -> Iterator[None]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and a mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_cell_continues_by_itself_after_full_disk(tmp_path: Path) -> None:
    state = tmp_path / "state"
    layout = Layout(state)
    disk = layout.cell("global")
    log = layout.log("cell-global")
    with small_disk(disk), running_platform(state, "--regions", "us-east", "--agents", "1", "--no-samples") as running:
        pid = running.pid("cell-global")

        def has_filled_up() -> bool:
            fill(disk)
            return "store_full" in log.read_text()

        def create(name: str) -> str:
            return running.kubectl("create", "-f", str(manifests / f"{name}.json"), check=False)

        manifests = tmp_path / "manifests"
        manifests.mkdir()
        for name in ("refused", "stored"):
            text = (
                f'{{"apiVersion": "holdfast.dev/v1", "kind": "Tenant", "metadata": {{"name": "{name}"}}, "spec": {{}}}}'
            )
            (manifests / f"{name}.json").write_text(text)
        wait_until(has_filled_up, within_s=60, what="the store has refused a write")
        assert "disk is full" in create("refused")
        time.sleep(HELD_FULL_S)
        assert "us-east" in running.kubectl("get", "regions")
        assert "disk is full" in create("refused")
        (disk / "ballast").unlink()
        wait_until(lambda: "created" in create("stored"), within_s=60, what="writes are accepted again")
        assert "stored" in running.kubectl("get", "tenants")
        wait_until(
            lambda: "Healthy" in running.kubectl("get", "region", "us-east", "-o", "json"),
            within_s=60,
            what="the region is healthy",
        )
        assert running.pid("cell-global") == pid, "the process was restarted"
        holdfast("check-store", "--cell", "global", "--state", str(disk))
