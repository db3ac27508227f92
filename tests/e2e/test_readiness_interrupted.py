"""An interrupted `make readiness` stops the platform of its drills and keeps the evidence that it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.platforms import ROOT, processes_of, wait_until
from tests.scripts.test_readiness import supporting

from holdfast.readiness.claims import all_needs
from holdfast.readiness.evidence import write_evidence

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]


def test_terminated_review_leaves_no_process(tmp_path: Path) -> None:
    out, place = tmp_path / "out", tmp_path / "place"
    place.mkdir()
    for need in all_needs():
        if need.title != "drill region-loss":
            write_evidence(out / "evidence", supporting(need))
    review = subprocess.Popen(
        [sys.executable, "scripts/readiness.py", "--out", out],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: len(processes_of(place)) > 3, "the platform of the drill runs", within_s=90)
        time.sleep(1)
        review.send_signal(signal.SIGTERM)
        printed, _ = review.communicate(timeout=120)
    finally:
        review.kill()
        review.wait()
    assert review.returncode == 130, printed
    assert "interrupted; the same command continues" in printed
    wait_until(lambda: not processes_of(place), "no process of the platform is left", within_s=30)
    assert not list(place.iterdir())
