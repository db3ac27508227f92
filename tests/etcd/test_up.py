"""`holdfast up --store etcd`: the whole thread on a local cluster of three; and cells of different stores together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import etcd_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]


def holdfast(*words: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=timeout_s
    )


@pytest.mark.parametrize("store", ["etcd", "global=etcd"])
def test_the_whole_thread_on_etcd(store: str, tmp_path: Path) -> None:
    etcd_cluster.etcd_binary()
    base = next(p for p in range(23000, 60000, 700) if _free(p))
    state = str(tmp_path / "platform")
    try:
        done = holdfast(
            "up", "--store", store, "--regions", "us-east", "--state", state, "--port-base", str(base), "--detach",
            "--timeout", "150", "--output", "json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout)["serving"] is True
        sqlite = sorted(path.parent.name for path in (tmp_path / "platform" / "cells").glob("*/store.sqlite"))
        assert sqlite == ([] if store == "etcd" else ["us-east"])
        marked = sorted(path.parent.name for path in (tmp_path / "platform" / "cells").glob("*/etcd.json"))
        assert marked == (["global", "us-east"] if store == "etcd" else ["global"])
        again = holdfast("up", "--store", "sqlite", "--state", state, "--detach")
        assert again.returncode != 0 and "--store" in again.stderr
    finally:
        down = holdfast("down", "--state", state)
    assert down.returncode == 0, down.stderr


def _free(base: int) -> bool:
    """Whether the ports a small platform needs are free."""
    import socket

    for port in (base, base + 1, *range(base + 40, base + 46)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def test_a_store_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for wrong in ("mysql", "nowhere=etcd", "global=mysql"):
        done = holdfast("up", "--store", wrong, "--state", str(tmp_path / "none"))
        assert done.returncode == 2, done.stderr
        assert "--store" in done.stderr
