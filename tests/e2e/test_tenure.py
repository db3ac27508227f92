"""An exclusive workload of scope Global stops while the global cell is down, and runs again afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import running_platform, wait_until

from holdfast.model import limits
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout
from holdfast.platform.supervisor import load_records

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]
REGION = "solo"


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    state = tmp_path / "platform"
    with running_platform(state, "--regions", REGION, "--agents", "1", "--no-samples"):
        yield Layout(str(state))


def execution(layout: Layout) -> dict[str, Any]:
    found = connect_cell(layout, layout.load(), REGION).list("replicas", "shop")
    return (found[0].get("status", {}).get("execution") or {}) if found else {}


def test_exclusive_workload_stops_with_its_tenure_and_runs_with_the_next(layout: Layout) -> None:
    api = connect_cell(layout, layout.load(), "global")
    template = {"command": ["sleep", "1000"], "resources": {"cpu": "1", "memory": "64Mi"}}
    for plural, kind, namespace, name, spec in (
        ("tenants", "Tenant", "", "shop", {}),
        ("priorityclasses", "PriorityClass", "", "standard", {"priority": 0}),
        ("quotas", "Quota", "shop", "quota", {"hard": {"cpu": "8", "memory": "8Gi"}}),
        ("workloads", "Workload", "shop", "only", {"exclusive": {"scope": "Global"}, "template": template}),
    ):
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}
        api.apply(body, plural, manager="test")
    wait_until(lambda: execution(layout).get("phase") == "Running", within_s=60, what="the work runs")
    marker = layout.held_down("cell-global")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    (cell,) = [r.identity for r in load_records(layout) if r.program.name == "cell-global"]
    assert cell is not None and cell.pid > 1
    os.kill(cell.pid, signal.SIGKILL)
    killed_s = time.monotonic()
    wait_until(
        lambda: execution(layout).get("phase") != "Running", within_s=limits.TENURE_S + 15, what="the work ended"
    )
    assert time.monotonic() - killed_s < limits.TENURE_S + 5.0
    assert execution(layout)["reason"] == "LeaseExpired"
    marker.unlink()
    wait_until(
        lambda: execution(layout).get("phase") == "Running", within_s=60, what="it runs again after reconnection"
    )
