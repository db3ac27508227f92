"""Drills partition-wait and partition-provisional: a region is without the global cell for longer than its grant lease,
and then loses a node.

In both partition modes bound replicas keep running. With mode Wait nothing new is placed until the global cell is back.
With mode Provisional the region replaces the replicas of the lost node at once, and confirms them afterwards.
"""

from __future__ import annotations

import time

from holdfast.drills.drill_run import DrillRun
from holdfast.drills.drill_tenant import MERGE_PATCH, TENANT, DrillTenant
from holdfast.drills.outage import allow_restart, hold_down, kill_processes
from holdfast.model import limits
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PartitionMode

NAME = "cut-off"
REPLICAS = 4
POLICY_PATH = "/apis/holdfast.dev/v1/schedulerpolicies/default"
MARGIN_S = 10.0
"""The grant lease counts from the last contact, which may be a report interval before the partition."""
WATCHED_S = 20.0
"""With mode Wait, the time in which nothing may be placed."""


def run(drill: DrillRun, *, mode: PartitionMode) -> None:
    observer = drill.observer
    tenant = DrillTenant(drill, reclaimable=True)  # which alone may be placed provisionally
    rule = {"topology": "zone", "maxSkew": 1, "preferred": True}
    tenant.workload(NAME, REPLICAS, placement={"spread": [rule]})
    if not drill.wait_until("the drill's workload serves", lambda: tenant.serving(NAME) == REPLICAS, within_s=60):
        return
    if not _set_mode(drill, mode) or not drill.wait_until(
        "the region has its share for provisional work", lambda: _has_share(drill, mode), within_s=60
    ):
        return
    node = max((a.name for a in drill.plan.agents), key=_nodes(tenant).count)
    lost = _nodes(tenant).count(node)
    drill.expect(lost, f"no replica of the drill runs on {node}")
    known = {r["metadata"]["name"] for r in observer.list("recoveries")}
    names = ["cell-global", f"agent-{node}"]
    drill.add_undo("the global cell and the node", lambda: _restart(drill, names))
    hold_down(drill.layout, names[:1])
    drill.failure_starts(f"the global cell is killed; partition mode {mode}")
    drill.global_cell_down = True
    kill_processes(drill.layout, names[:1])
    expired_mono_s = time.monotonic() + limits.GRANT_LEASE_S + MARGIN_S
    drill.wait_until("the grant lease is over", lambda: time.monotonic() >= expired_mono_s, within_s=300)
    drill.expect(
        tenant.serving(NAME) == REPLICAS, f"{tenant.serving(NAME)} of {REPLICAS} replicas serve after the lease"
    )
    hold_down(drill.layout, names[1:])
    kill_processes(drill.layout, names[1:])
    drill.mark(f"node {node} is killed")
    drill.facts |= {"partitionMode": mode.value, "lostNode": node, "replicasLost": lost}
    drill.wait_until("the region detects the lost node", lambda: tenant.serving(NAME) < REPLICAS, within_s=90)
    if mode is PartitionMode.PROVISIONAL:
        drill.wait_until("replaced without the global cell", lambda: tenant.serving(NAME) == REPLICAS, within_s=120)
        drill.facts["provisionalBindings"] = len(_provisional(tenant))
        drill.expect(_provisional(tenant), "no Binding is marked as provisional")
    else:
        drill.wait_until("the request waits for its grant", lambda: _waits(drill), within_s=90)
        bound = {b["metadata"]["uid"] for b in tenant.bindings(NAME)}
        watched_mono_s = time.monotonic() + WATCHED_S
        drill.wait_until("nothing was placed meanwhile", lambda: time.monotonic() >= watched_mono_s, within_s=60)
        placed = {b["metadata"]["uid"] for b in tenant.bindings(NAME)} - bound
        drill.expect(not placed, f"{len(placed)} replicas were placed on an expired grant")
        drill.expect(tenant.serving(NAME) == REPLICAS - lost, f"{tenant.serving(NAME)} bound replicas still serve")
    _restart(drill, names)
    drill.mark("the partition ends")
    drill.wait_until("all regions are healthy", lambda: _all_healthy(drill), within_s=120)
    drill.wait_until("all replicas serve", lambda: tenant.serving(NAME) == REPLICAS, within_s=120)
    drill.wait_until("no Binding is provisional", lambda: not _provisional(tenant), within_s=60)
    opened = [r["metadata"]["name"] for r in observer.list("recoveries") if r["metadata"]["name"] not in known]
    drill.expect(not opened, f"the global cell opened a Recovery because of its own downtime: {', '.join(opened)}")


def _has_share(drill: DrillRun, mode: PartitionMode) -> bool:
    """Whether the region may place provisional work of the drill, if the mode allows any."""
    copies = drill.observer.list("grantcopies", drill.region)
    own = [c["spec"] for c in copies if c["metadata"]["namespace"] == TENANT and c["spec"]["grantClass"] == "Normal"]
    return mode is not PartitionMode.PROVISIONAL or any(spec.get("provisional") for spec in own)


def _set_mode(drill: DrillRun, mode: PartitionMode) -> bool:
    """Sets the partition mode of the active policy, and waits until the region uses it."""
    before = drill.observer.get("schedulerpolicies", "default")
    old = before["spec"]["rules"].get("partitionMode", PartitionMode.WAIT.value)
    if old == mode.value:
        return True
    drill.add_undo("the partition mode", lambda: _patch_mode(drill, old))
    _patch_mode(drill, mode.value)
    return drill.wait_until("the region uses the partition mode", lambda: _current(drill), within_s=30)


def _patch_mode(drill: DrillRun, mode: str) -> None:
    body = {"spec": {"rules": {"partitionMode": mode}}}
    drill.observer.api().request("PATCH", POLICY_PATH, body, content_type=MERGE_PATCH)


def _current(drill: DrillRun) -> bool:
    policy = drill.observer.get("schedulerpolicies", "default")
    report = drill.observer.get("regions", drill.region)["status"].get("report", {})
    seen = policy["status"].get("observedGeneration") == policy["metadata"]["generation"]
    return bool(seen and report.get("policy") == policy["status"]["revision"])


def _nodes(tenant: DrillTenant) -> list[str]:
    return [r["status"]["placement"].get("node", "") for r in tenant.replicas(NAME)]


def _provisional(tenant: DrillTenant) -> list[str]:
    return [b["metadata"]["name"] for b in tenant.bindings(NAME) if b["spec"].get("runUntil")]


def _waits(drill: DrillRun) -> bool:
    found = drill.observer.list("schedulingrequests", drill.region)
    own = [r for r in found if r["metadata"]["namespace"] == TENANT]
    reasons = {reason["reason"] for r in own for reason in r.get("status", {}).get("reasons", [])}
    return Reason.GRANT_EXPIRED.value in reasons


def _restart(drill: DrillRun, names: list[str]) -> None:
    allow_restart(drill.layout, names)
    drill.global_cell_down = False


def _all_healthy(drill: DrillRun) -> bool:
    regions = drill.observer.list("regions")
    return all(r["status"].get("health", {}).get("state") == "Healthy" for r in regions)
