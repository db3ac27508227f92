"""The explanation of failed requests in installation tests names address, error, step and the logs of that moment."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.failed_requests import Steps, explanation, lines_between
from tests.machines import Fleet


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def test_explanation_names_address_error_step_and_log_lines(tmp_path: Path) -> None:
    fleet, steps, now_s = Fleet(tmp_path), Steps(), time.time()
    node = fleet.add("us-east-1", 3)
    node.address = "10.77.0.3"
    log = node.folder / "data" / "holdfast" / "agent" / "service.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{stamp(now_s - 60)} long before\n{stamp(now_s + 1)} task stopped\nno time\n")
    steps.ended("installed")
    failure = {
        "at": now_s + 1.5,
        "attempts": ["10.77.0.3:20001: TimeoutError: timed out after 0.50 s"],
        "known": ["10.77.0.3:20001"],
        "addressesAgeSeconds": 0.4,
        "load": 3.0,
    }
    change = {"at": now_s + 0.5, "added": [], "removed": [["10.77.0.4", 20001]]}
    text = explanation({"sent": 9, "failed": 1, "failures": [failure], "changes": [change]}, steps, fleet)
    assert "1 of 9 requests failed" in text
    assert 'after "installed" and before "the end"' in text
    assert "TimeoutError: timed out after 0.50 s (us-east-1)" in text
    assert "removed [['10.77.0.4', 20001]]" in text
    assert "us-east-1: " in text and "task stopped" in text and "long before" not in text
    assert len(lines_between(log, now_s - 61, now_s + 2)) == 2
