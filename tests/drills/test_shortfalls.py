"""A failed drill names the workloads that lack replicas, and what each lacks."""

from __future__ import annotations

from typing import Any

from holdfast.drills.shortfalls import SHORTFALLS_MAX, missed_objective, service_shortfall, shortfalls


def workload(name: str, serving: dict[str, int], *, tenant: str = "acme", replicas: int = 4, **spec: Any) -> Any:
    rows = [{"region": region, "serving": count} for region, count in serving.items()]
    summary = {"serving": sum(serving.values()), "regions": rows}
    meta = {"name": name, "namespace": tenant}
    return {"metadata": meta, "spec": {"replicas": replicas, **spec}, "status": {"summary": summary}}


def recovery(phase: str = "Open", conditions: tuple[Any, ...] = (), **row: Any) -> Any:
    rows = [{"tenant": "acme", "workload": "api", "target": "west", "assigned": 4, "bound": 1, **row}]
    status = {"phase": phase, "workloads": rows, "conditions": list(conditions)}
    return {"metadata": {"name": "east-1", "creationTimestamp": "2026-01-01"}, "spec": {}, "status": status}


def test_critical_workload_is_named_with_its_target_stages_and_reason() -> None:
    critical = workload("api", {"east": 4, "west": 1}, recovery={"minServing": 4})
    rows = recovery(ready=1, serving=1, reason="InsufficientCpu", message="needs 1 cpu")
    assert shortfalls([critical], [rows], lost_region="east") == [
        "acme/api: 1 of 4 serve; target west: assigned 4, bound 1, ready 1, serving 1 (InsufficientCpu: needs 1 cpu)"
    ]
    assert shortfalls([critical], [recovery("Closed")], lost_region="east") == [
        "acme/api: 1 of 4 serve in west; no Recovery lists it"
    ]
    assert shortfalls([critical], [rows]) == [], "nothing is lost, and four serve in east"


def test_workload_of_the_drill_is_named_and_others_without_objective_are_not() -> None:
    own, other = workload("probe", {"east": 1}, tenant="drill", replicas=2), workload("web", {"east": 1})
    own["status"]["conditions"] = [{"type": "Serving", "status": "False", "reason": "SomeServing", "message": "1 of 2"}]
    assert shortfalls([own, other], []) == ["drill/probe: 1 of 2 replicas serve (SomeServing: 1 of 2)"]
    assert service_shortfall(other) == ["acme/web: 1 of 4 replicas serve"]
    assert service_shortfall(workload("job", {}, type="Batch")) == []


def test_many_shortfalls_are_counted() -> None:
    many = [workload(f"api{n}", {}, recovery={"minServing": 4}) for n in range(SHORTFALLS_MAX + 3)]
    assert shortfalls(many, [])[-1] == "3 more workload(s)"


def test_missed_objective_is_read_from_the_condition() -> None:
    met = {"type": "ObjectiveMet", "status": "True", "reason": "Recovered"}
    late = {"type": "ObjectiveMet", "status": "False", "reason": "ObjectiveMissed", "message": "late: acme/api"}
    assert missed_objective(recovery(conditions=(met,))) == ""
    assert missed_objective(recovery(conditions=(late,))) == "recovery east-1: ObjectiveMissed: late: acme/api"
    assert "no condition" in missed_objective(recovery())
