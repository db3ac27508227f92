"""On real processes: reclaimable replicas use all recovery slots. When a region is lost they are preempted regardless
of their priority, and nothing else is. The plan predicts it, and DNS
names follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import pytest
from tests.e2e.drilled import holdfast
from tests.platforms import running_platform, wait_until

from holdfast.drills import outage
from holdfast.drills.platform_observer import PlatformObserver, serving_by_region, violations
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(400)]
REGIONS = ("a", "b")
HOME, OTHER = REGIONS


@pytest.fixture
def state(tmp_path: Path) -> Iterator[str]:
    with running_platform(tmp_path / "platform", "--regions", "a,b,c", "--agents", "1", "--no-samples") as running:
        yield str(running.state)


def workload(replicas: int, cpu: str, **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["sleep", "10000"],
        "resources": {"cpu": cpu, "memory": "32Mi"},
        "terminationGraceSeconds": 1,
        "ports": [{"name": "http"}],
        "probes": {"readiness": {"exec": {"command": ["true"]}, "periodSeconds": 1}},
    }
    return {"replicas": replicas, "template": template, **spec}


def apply_workloads(observer: PlatformObserver) -> None:
    """A critical workload with recovery slots in two regions, and a tenant with reclaimable capacity."""
    whole = {"cpu": "100", "memory": "100Gi"}
    quota = {"hard": whole, "recoveryAllowance": {"cpu": "8", "memory": "8Gi"}}
    slots = [{"resources": {"cpu": "1", "memory": "32Mi"}, "count": 4}]
    risk = workload(
        4,
        "1",
        priorityClassName="critical",
        placement={"regions": list(REGIONS), "spreadRegions": 1},
        recovery={"minServing": 4},
    )
    for plural, kind, namespace, name, spec in (
        ("tenants", "Tenant", "", "pay", {}),
        ("tenants", "Tenant", "", "spare", {}),
        ("priorityclasses", "PriorityClass", "", "critical", {"priority": 100}),
        ("priorityclasses", "PriorityClass", "", "lent", {"priority": 500, "reclaimable": True}),
        ("quotas", "Quota", "pay", "quota", quota),
        ("quotas", "Quota", "spare", "quota", {"hard": whole}),
        ("recoverybudgets", "RecoveryBudget", "", HOME, {"region": HOME, "slotShapes": slots}),
        ("recoverybudgets", "RecoveryBudget", "", OTHER, {"region": OTHER, "slotShapes": slots}),
        ("workloads", "Workload", "pay", "risk", risk),
    ):
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}
        observer.api().apply(body, plural, manager="test")


def status_of(observer: PlatformObserver, plural: str, name: str) -> dict[str, Any]:
    found = [i for i in observer.list(plural) if i["metadata"]["name"] == name]
    return found[0].get("status", {}) if found else {}


def named_regions(layout: Layout) -> list[str]:
    """The regions in the DNS records of the critical workload, as an application would find them."""
    query = dns.message.make_query("_http._tcp.risk.pay.holdfast.internal", "SRV")
    response = dns.query.tcp(query, "127.0.0.1", port=layout.load().dns_port, timeout=10)
    return sorted(item.target.labels[3].decode() for records in response.answer for item in records)


def test_reclaimable_workload_yields_when_a_region_is_lost(state: str) -> None:
    layout = Layout(state)
    observer = PlatformObserver(layout, layout.load())
    apply_workloads(observer)
    wait_until(
        lambda: status_of(observer, "workloads", "risk").get("summary", {}).get("serving") == 4, "risk serves", 90
    )
    (assigned,) = [a for a in observer.list("assignments") if a["spec"]["workload"] == "risk"]
    home = assigned["spec"]["region"]
    other = OTHER if home == HOME else HOME
    wait_until(
        lambda: status_of(observer, "recoverybudgets", other).get("admitted") == 4,
        "its recovery slots are reserved",
        90,
    )
    capacity = status_of(observer, "regions", other)["report"]["capacity"]
    cpus = int(capacity["cpu"])
    fill = workload(cpus, "1", priorityClassName="lent", placement={"regions": [other]})
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": "fill", "namespace": "spare"}}
    observer.api().apply({**body, "spec": fill}, "workloads", manager="test")
    wait_until(
        lambda: status_of(observer, "workloads", "fill").get("summary", {}).get("serving") == cpus,
        "reclaimable replicas use the whole region",
        90,
    )

    forecast = json.loads(holdfast("plan", "--lose-region", home, "--state", state, "-o", "json", timeout_s=60).stdout)
    assert forecast["short"] == [] and [(r["workload"], r["region"]) for r in forecast["recovers"]] == [("risk", other)]
    assert (
        len(forecast["evicts"]) == 4
        and {e["tenant"] for e in forecast["evicts"]} == {"spare"}
        and forecast["waits"] == []
    )

    wait_until(lambda: named_regions(layout) == [home] * 4, "names lead to the region that serves", 30)
    names = outage.process_names(outage.region_plan(layout.load(), home))
    outage.hold_down(layout, names)
    outage.kill_processes(layout, names)
    wait_until(
        lambda: serving_by_region(observer.get("workloads", "risk", "pay")).get(other) == 4,
        "four replicas serve in the other region",
        90,
    )
    wait_until(lambda: named_regions(layout) == [other] * 4, "names lead to the other region", 30)
    assert violations(observer, {}) == []
    victims: dict[str, set[str]] = {}
    for decision in observer.list("decisions", other):
        for entry in decision["spec"]["entries"]:
            victims.setdefault(decision["spec"]["workload"], set()).update(entry.get("victims", ()))
    assert len(victims["risk"]) == 4, victims
    assert all(victim.startswith("spare/fill-") for chosen in victims.values() for victim in chosen), victims
    observer.close()
