"""A real Prometheus scrapes a platform: alerts fire and clear, agents have metrics, dashboard queries are answered."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.prometheus_server import Prometheus, running_prometheus, shortened_rules, tool
from tests.platforms import ROOT, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(300)]
REGIONS = ("east", "west")


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
    up = prometheus.values('up{job="holdfast"}')
    assert {labels["cell"]: value for labels, value in up} == dict.fromkeys(("global", *REGIONS), 1.0)


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
            ran = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
            assert ran.returncode == 0, f"{url}{path}: {ran.stdout}{ran.stderr}"


def read(platform: RunningPlatform, url: str, token: str) -> str:
    import ssl

    context = ssl.create_default_context(cafile=str(platform.state / "pki" / "ca.crt"))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20, context=context) as reply:
        body: bytes = reply.read()
    return body.decode()


def test_dashboard_queries_are_answered(prometheus: Prometheus) -> None:
    expressions = [
        target["expr"].replace("$__rate_interval", "1m").replace("$cell", ".*").replace("$region", ".*")
        for path in (ROOT / "deploy/dashboards").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(expressions) > 5
    for expression in expressions:
        prometheus.values(expression)


def test_backup_alert_clears_after_a_backup(platform: RunningPlatform, prometheus: Prometheus, tmp_path: Path) -> None:
    wait_until(lambda: "HoldfastBackupTooOld" in prometheus.firing(), "the alert fires without a backup")
    for cell, _ in Layout(platform.state).load().cells:
        where = str(Layout(platform.state).cell(cell))
        holdfast("backup", "--cell", cell, "--state", where, "--to", str(tmp_path / f"{cell}.backup"))
    wait_until(lambda: "HoldfastBackupTooOld" not in prometheus.firing(), "the alert clears after a backup")


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
