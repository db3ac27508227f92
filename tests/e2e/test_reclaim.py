"""On real processes: every place that is kept for recovery is lent out to reclaimable work. A region is killed; that
work makes way, whatever its rank, and nothing else does; the plan has said so before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drilled import holdfast
from tests.platforms import running_platform, wait_until

from holdfast.drills.platform_observer import PlatformObserver
from holdfast.platform.layout import Layout

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
REGIONS = ("a", "b")
HOME, OTHER = REGIONS


@pytest.fixture
def state(tmp_path: Path) -> Iterator[str]:
    with running_platform(tmp_path / "platform", "--regions", "a,b,c", "--agents", "1", "--no-samples") as up:
        yield str(up.state)


def workload(replicas: int, cpu: str, **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["sleep", "10000"], "resources": {"cpu": cpu, "memory": "32Mi"}, "terminationGraceSeconds": 1,
        "probes": {"readiness": {"exec": {"command": ["true"]}, "periodSeconds": 1}},
    }  # fmt: skip
    return {"replicas": replicas, "template": template, **spec}


def lend_everything(observer: PlatformObserver) -> None:
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
        ("priorityclasses", "PriorityClass", "", "critical", {"priority": 100}),
        ("priorityclasses", "PriorityClass", "", "lent", {"priority": 500, "reclaimable": True}),
        ("quotas", "Quota", "pay", "quota", quota),
        ("quotas", "Quota", "spare", "quota", {"hard": whole}),
        ("recoverybudgets", "RecoveryBudget", "", HOME, {"region": HOME, "slots": slots}),
        ("recoverybudgets", "RecoveryBudget", "", OTHER, {"region": OTHER, "slots": slots}),
        ("workloads", "Workload", "pay", "risk", risk),
    ):
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}
        observer.api().apply(body, plural, manager="test")


def status_of(observer: PlatformObserver, plural: str, name: str) -> dict[str, Any]:
    found = [i for i in observer.list(plural) if i["metadata"]["name"] == name]
    return found[0].get("status", {}) if found else {}


def test_work_on_loan_makes_way_when_a_region_is_killed(state: str) -> None:
    layout = Layout(state)
    observer = PlatformObserver(layout, layout.load())
    lend_everything(observer)
    wait_until(
        lambda: status_of(observer, "workloads", "risk").get("summary", {}).get("serving") == 4, "risk serves", 90
    )
    (held,) = [a for a in observer.list("assignments") if a["spec"]["workload"] == "risk"]
    home = held["spec"]["region"]
    other = OTHER if home == HOME else HOME
    wait_until(lambda: status_of(observer, "recoverybudgets", other).get("held") == 4, "its places are kept", 90)
    capacity = status_of(observer, "regions", other)["report"]["capacity"]
    full = int(capacity["cpu"])
    fill = workload(full, "1", priorityClassName="lent", placement={"regions": [other]})
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": "fill", "namespace": "spare"}}
    observer.api().apply({**body, "spec": fill}, "workloads", manager="test")
    wait_until(
        lambda: status_of(observer, "workloads", "fill").get("summary", {}).get("serving") == full,
        "all is lent out",
        90,
    )

    told = json.loads(holdfast("plan", "--lose-region", home, "--state", state, "-o", "json", timeout_s=60).stdout)
    assert told["short"] == [] and [(r["workload"], r["region"]) for r in told["recovers"]] == [("risk", other)]
    assert len(told["evicts"]) == 4 and {e["tenant"] for e in told["evicts"]} == {"spare"} and told["waits"] == []

    ran = holdfast(
        "drill", "run", "region-loss", "--region", home, "--no-fail-back", "--state", state, "-o", "json",
        timeout_s=240,
    )  # fmt: skip
    assert ran.stdout, ran.stderr
    report = json.loads(ran.stdout)
    assert report["secondsToMinServing"] < 60, ran.stdout
    assert report["violations"] == []
    decided = observer.list("decisions", other)
    victims = {v for d in decided for e in d["spec"]["entries"] for v in e.get("victims", ())}
    assert len(victims) == 4 and all(v.startswith("spare/fill-") for v in victims), victims
    observer.close()
