"""A real Prometheus scrapes a platform: alerts fire and clear, agents have metrics, dashboard queries are answered."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.prometheus_server import Prometheus, running_prometheus, shortened_rules, tool
from tests.platforms import ROOT, TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.client.sync_api import CellApi
from holdfast.drills import outage
from holdfast.drills.external_scheduler import PLACEMENT_PATH
from holdfast.platform.credentials import Credentials
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(300)]
REGIONS = ("east", "west")


def workload(name: str, command: list[str]) -> dict[str, Any]:
    probes = {"readiness": {"exec": {"command": ["true"]}, "periodSeconds": 1}}
    template = {"command": command, "resources": {"cpu": "100m", "memory": "32Mi"}, "probes": probes}
    meta = {"name": name, "namespace": "acme"}
    spec = {"replicas": 2, "template": template, "placement": {"spreadRegions": 2}}
    return {"apiVersion": V1, "kind": "Workload", "metadata": meta, "spec": spec}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("prometheus") / "state"
    with running_platform(folder, "--regions", ",".join(REGIONS), "--agents", "1", "--no-samples") as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(platform: RunningPlatform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With the shipped configuration and rules; only the waiting times are shortened."""
    with running_prometheus(platform, tmp_path_factory.mktemp("prometheus"), shortened_rules({})) as server:
        yield server


def test_cells_and_nodes_are_scraped_each_with_its_own_metrics(
    platform: RunningPlatform, prometheus: Prometheus
) -> None:
    def nodes() -> dict[str, float]:
        return {labels["node"]: value for labels, value in prometheus.values("holdfast_agent_lease_remaining_seconds")}

    wait_until(
        lambda: len(nodes()) == len(REGIONS) and all(value > 0 for value in nodes().values()), "nodes have metrics"
    )
    assert {labels["job"] for labels, _ in prometheus.values("holdfast_agent_tasks")} == {"holdfast-nodes"}
    regions = {labels["node"]: labels["region"] for labels, _ in prometheus.values("holdfast_agent_tasks")}
    assert regions == {f"{region}-1": region for region in REGIONS}

    def up() -> dict[str, float]:
        return {labels["cell"]: value for labels, value in prometheus.values('up{job="holdfast"}')}

    wait_until(lambda: up() == dict.fromkeys(("global", *REGIONS), 1.0), "every cell was scraped")


def test_metrics_follow_the_naming_conventions(platform: RunningPlatform) -> None:
    token = holdfast("token", "create", "lint", "--monitor", "--state", str(platform.state)).stdout.strip()
    for cell, url in Layout(platform.state).load().cells:
        paths = ["/metrics"]
        if cell != "global":
            listed = json.loads(read(platform, f"{url}/metrics/nodes", token))
            paths += [row["labels"]["__metrics_path__"] for row in listed]
            assert len(paths) == 2
        for path in paths:
            text = read(platform, url + path, token)
            assert ("holdfast_shim_processes" in text) == (path != "/metrics")
            ran = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
            assert ran.returncode == 0, f"{url}{path}: {ran.stdout}{ran.stderr}"


def read(platform: RunningPlatform, url: str, token: str) -> str:
    import ssl

    context = ssl.create_default_context(cafile=str(platform.state / "pki" / "ca.crt"))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20, context=context) as reply:
        body: bytes = reply.read()
    return body.decode()


def back_up(platform: RunningPlatform, folder: Path) -> None:
    for cell, _ in Layout(platform.state).load().cells:
        options = ("--cell", cell, "--state", str(Layout(platform.state).cell(cell)))
        holdfast("backup", *options, "--to-dir", str(folder / cell), "--verify")


def test_backup_alert_clears_after_a_backup(platform: RunningPlatform, prometheus: Prometheus, tmp_path: Path) -> None:
    wait_until(lambda: "HoldfastBackupTooOld" in prometheus.firing(), "the alert fires without a backup")
    back_up(platform, tmp_path)
    wait_until(lambda: "HoldfastBackupTooOld" not in prometheus.firing(), "the alert clears after a backup")


def propose_missing_node(platform: RunningPlatform) -> None:
    """A second scheduler proposes a replica and a node that do not exist; the authority refuses it."""
    credentials, url = Credentials(Layout(platform.state)), dict(Layout(platform.state).load().cells)["east"]
    files = credentials.issue_drill_scheduler()
    api = CellApi(url, name="east", ca=files.ca, cert=files.cert, key=files.key, timeout_s=10.0)
    intent = {"replicaUid": "none", "templateHash": "none", "attempt": 1}
    proposal = {"namespace": "acme", "replica": "missing", "intent": intent, "node": "missing"}
    try:
        answer: Any = api.request("POST", f"{PLACEMENT_PATH}/reserve", {"items": [proposal], "bind": True})
        assert answer["results"][0]["reason"], answer
    finally:
        api.close()
        credentials.remove(files)


def test_dashboard_queries_are_answered_with_values(
    platform: RunningPlatform, prometheus: Prometheus, tmp_path: Path
) -> None:
    """After a workload that serves, a task that fails, a proposal that is refused, and a verified backup, no panel of a
    dashboard is empty."""
    expressions = {
        f"{path.stem}: {panel['title']}: {target['expr']}": target["expr"].replace("[5m]", "[1m]")
        for path in (ROOT / "deploy/dashboards").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", [])
    }
    assert len(expressions) > 40
    platform.apply(*TENANCY, workload("web", ["sleep", "3600"]), workload("fails", ["false"]))
    budget = {"region": "east", "slotShapes": [{"resources": {"cpu": "100m"}, "count": 1}], "tenants": ["acme"]}
    platform.apply({"apiVersion": V1, "kind": "RecoveryBudget", "metadata": {"name": "acme"}, "spec": budget})
    back_up(platform, tmp_path)
    empty = set(expressions)

    def all_answered() -> bool:
        propose_missing_node(platform)
        empty.difference_update(name for name in tuple(empty) if prometheus.values(expressions[name]))
        return not empty

    with contextlib.suppress(AssertionError):
        wait_until(all_answered, "every query is answered", 120)
    assert not empty


def test_alerts_fire_when_a_region_is_lost_and_clear_when_it_returns(
    platform: RunningPlatform, prometheus: Prometheus
) -> None:
    expected = {"HoldfastCellDown", "HoldfastLinkLag", "HoldfastRegionNotHealthy"}
    wait_until(lambda: not expected & prometheus.firing(), "nothing fires on a healthy platform")
    layout = Layout(platform.state)
    names = outage.process_names(outage.region_plan(layout.load(), "west"))
    outage.hold_down(layout, names)
    outage.kill_processes(layout, names)
    wait_until(lambda: expected <= prometheus.firing(), f"{expected} fire", 90)
    outage.allow_restart(layout, names)
    wait_until(lambda: not expected & prometheus.firing(), "they clear when the region is back", 120)
