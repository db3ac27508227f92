"""The Grafana dashboards separate the steps of a replica and use existing metrics and labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase
from tests.cell.test_replica_stages import serving

from holdfast.cell.replica_stages import step_times
from holdfast.foundation import metrics
from holdfast.model.lifecycle import Stage

ROOT = Path(__file__).parents[2]
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "deploy/dashboards").glob("*.json"))
}
STEPS = tuple(step_times(serving()))
SCRAPE_LABELS = {"cell", "region", "node", "job", "instance", "le"}
"""Labels that Prometheus adds, by deploy/prometheus/prometheus.yaml and the list of nodes."""


def expressions(dashboard: str = "stages") -> list[str]:
    return [target["expr"] for panel in DASHBOARDS[dashboard]["panels"] for target in panel.get("targets", ())]


def test_dashboard_has_a_row_per_stage() -> None:
    rows = [panel["title"].lower() for panel in DASHBOARDS["stages"]["panels"] if panel["type"] == "row"]
    assert rows == list(STEPS) == ["scheduling", "binding", "startup", "readiness", "serving"]
    for step in STEPS:
        assert any(f'holdfast_region_step_seconds_bucket{{step="{step}"}}' in text for text in expressions())


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_dashboard_uses_known_metrics(dashboard: str) -> None:
    known: dict[str, tuple[str, ...]] = {}
    for item in vars(metrics).values():
        if isinstance(item, MetricWrapperBase):
            for suffix in {"counter": ("_total",), "histogram": ("_bucket",)}.get(str(item._type), ("",)):
                known[item._name + suffix] = item._labelnames
    used = {name for text in expressions(dashboard) for name in re.findall(r"holdfast_[a-z_]+", text)}
    assert used and used <= set(known)
    for text in expressions(dashboard):
        labels = {label for name in re.findall(r"holdfast_[a-z_]+", text) for label in known[name]} | SCRAPE_LABELS
        matched = re.findall(r"[{,]\s*([a-z_]+)=~?\"", text)
        grouped = [name.strip() for group in re.findall(r"by \(([^)]*)\)", text) for name in group.split(",")]
        assert {*matched, *grouped} <= labels, text


def test_dashboard_names_existing_stages() -> None:
    named = {
        stage for text in expressions() for part in re.findall(r'stage=~?"([^"]+)"', text) for stage in part.split("|")
    }
    assert named and named <= {stage.value for stage in Stage}


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_panels_have_unique_ids_and_do_not_overlap(dashboard: str) -> None:
    panels = DASHBOARDS[dashboard]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        area = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & area, panel["title"]
        taken |= area
