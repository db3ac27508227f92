"""On real processes: every place that is kept for recovery is lent out to reclaimable work. A region is killed; that
work makes way, whatever its rank, and nothing else does; the plan has said so before."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_up import free_port_base

from holdfast.cli.drills.world import Watcher
from holdfast.cli.platform.layout import Layout

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("platform"),
]
REGIONS = ("a", "b")
HOME, OTHER = REGIONS


def holdfast(*words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.fixture
def state(tmp_path: Path) -> Iterator[str]:
    folder = str(tmp_path / "platform")
    up = holdfast(
        "up", "--detach", "--quiet", "--regions", "a,b,c", "--agents", "1", "--no-samples", "--state", folder,
        "--port-base", str(free_port_base()), timeout_s=200,
    )  # fmt: skip
    try:
        assert up.returncode == 0, up.stderr
        yield folder
    finally:
        holdfast("down", "--purge", "--quiet", "--state", folder, timeout_s=120)


def until(true: Callable[[], Any], what: str, within_s: float = 90.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = true()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"not within {within_s:.0f} s: {what}")


def workload(replicas: int, cpu: str, **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["sleep", "10000"], "resources": {"cpu": cpu, "memory": "32Mi"}, "terminationGraceSeconds": 1,
        "probes": {"readiness": {"exec": {"command": ["true"]}, "periodSeconds": 1}},
    }  # fmt: skip
    return {"replicas": replicas, "template": template, **spec}


def lend_everything(watcher: Watcher) -> None:
    """A critical workload in one region, places for it in another, and reclaimable work all over those."""
    whole = {"cpu": "100", "memory": "100Gi"}
    quota = {"hard": whole, "recoveryAllowance": {"cpu": "8", "memory": "8Gi"}}
    slots = [{"resources": {"cpu": "1", "memory": "32Mi"}, "count": 4}]
    risk = workload(
        4, "1", priorityClassName="critical", placement={"regions": list(REGIONS), "spreadRegions": 1},
        recovery={"minServing": 4},
    )  # fmt: skip
    for plural, kind, namespace, name, spec in (
        ("tenants", "Tenant", "", "pay", {}),
        ("tenants", "Tenant", "", "spare", {}),
        ("priorityclasses", "PriorityClass", "", "critical", {"rank": 100}),
        ("priorityclasses", "PriorityClass", "", "lent", {"rank": 500, "reclaimable": True}),
        ("quotas", "Quota", "pay", "quota", quota),
        ("quotas", "Quota", "spare", "quota", {"hard": whole}),
        ("recoverybudgets", "RecoveryBudget", "", HOME, {"region": HOME, "slots": slots}),
        ("recoverybudgets", "RecoveryBudget", "", OTHER, {"region": OTHER, "slots": slots}),
        ("workloads", "Workload", "pay", "risk", risk),
    ):
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}
        watcher.api().apply(body, plural, manager="test")


def status_of(watcher: Watcher, plural: str, name: str) -> dict[str, Any]:
    found = [i for i in watcher.list(plural) if i["metadata"]["name"] == name]
    return found[0].get("status", {}) if found else {}


def test_work_on_loan_makes_way_when_a_region_is_killed(state: str) -> None:
    layout = Layout(state)
    watcher = Watcher(layout, layout.load())
    lend_everything(watcher)
    until(lambda: status_of(watcher, "workloads", "risk").get("summary", {}).get("serving") == 4, "risk serves")
    (held,) = [a for a in watcher.list("assignments") if a["spec"]["workload"] == "risk"]
    home = held["spec"]["region"]
    other = OTHER if home == HOME else HOME
    until(lambda: status_of(watcher, "recoverybudgets", other).get("held") == 4, "its places are kept")
    capacity = status_of(watcher, "regions", other)["report"]["capacity"]
    full = int(capacity["cpu"])
    fill = workload(full, "1", priorityClassName="lent", placement={"regions": [other]})
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": "fill", "namespace": "spare"}}
    watcher.api().apply({**body, "spec": fill}, "workloads", manager="test")
    until(lambda: status_of(watcher, "workloads", "fill").get("summary", {}).get("serving") == full, "all is lent out")

    told = json.loads(holdfast("plan", "--lose-region", home, "--state", state, "-o", "json", timeout_s=60).stdout)
    assert told["short"] == [] and [(r["workload"], r["region"]) for r in told["recovers"]] == [("risk", other)]
    assert len(told["evicts"]) == 4 and {e["tenant"] for e in told["evicts"]} == {"spare"} and told["waits"] == []

    ran = holdfast(
        "drill", "run", "region-loss", "--region", home, "--no-fail-back", "--state", state, "-o", "json",
        timeout_s=240,
    )  # fmt: skip
    assert ran.stdout, ran.stderr
    report = json.loads(ran.stdout)
    assert report["seconds_to_four_serving"] < 60, ran.stdout
    assert report["violations"] == []
    decided = watcher.list("decisions", other)
    victims = {v for d in decided for e in d["spec"]["entries"] for v in e.get("victims", ())}
    assert len(victims) == 4 and all(v.startswith("spare/fill-") for v in victims), victims
    watcher.close()
