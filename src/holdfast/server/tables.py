"""How kinds look in `kubectl get`: the columns of every kind, as data.

A column reads one object; ages are text, made with the server's clock. `wide` columns show with `-o wide` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.lifecycle import PLACED, stage
from holdfast.model.meta import Object, find_condition
from holdfast.model.node import Contact, why_not_schedulable
from holdfast.model.quantity import DISK, MEMORY
from holdfast.model.times import age_text, seconds_text
from holdfast.model.workload import WorkloadType, wanted_replicas

Cell = Callable[[Any], Any]
NONE = "<none>"
MIB = 1 << 20
SHOWN_ITEMS = 3


class Column(msgspec.Struct, frozen=True):
    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False
    says: str = ""


def _listed(values: Any) -> str:
    texts = [str(v) for v in values]
    if not texts:
        return NONE
    more = f" + {len(texts) - SHOWN_ITEMS} more..." if len(texts) > SHOWN_ITEMS else ""
    return ",".join(texts[:SHOWN_ITEMS]) + more


def _amounts(values: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={_short(name, str(value))}" for name, value in sorted(values.items())) or NONE


def _short(resource: str, amount: str) -> str:
    """Shares of memory come out at odd bytes, which nobody can read; the object itself has them exactly."""
    if resource not in (MEMORY, DISK) or not amount.isdigit() or int(amount) < MIB:
        return amount
    return f"{int(amount) // MIB}Mi"


def _condition(kind: str) -> Cell:
    def cell(item: Any) -> str:
        found = find_condition(item.status.conditions, kind)
        return "" if found is None else found.status

    return cell


def _reason(kind: str) -> Cell:
    def cell(item: Any) -> str:
        found = find_condition(item.status.conditions, kind)
        return "" if found is None or found.status == "True" else found.reason

    return cell


def _workload_ready(workload: Any) -> str:
    summary = workload.status.summary
    if workload.spec.type is WorkloadType.BATCH and workload.spec.batch is not None:
        return f"{summary.succeeded}/{workload.spec.batch.completions}"
    return f"{summary.serving}/{wanted_replicas(workload)}"


def _workload_pending(workload: Any) -> str:
    reasons = sorted({r.pending_reason for r in workload.status.summary.regions if r.pending_reason})
    if reasons:
        return _listed(reasons)
    for condition in workload.status.conditions:
        if condition.status != "True" and condition.type in ("Assigned", "Serving"):
            return str(condition.reason)
    return ""


def _command(item: Any) -> str:
    template = item.spec.template
    text = " ".join((*template.command, *template.args)) or template.bundle
    return text if len(text) <= 60 else text[:57] + "..."


def _replica_restarts(replica: Any) -> int:
    return replica.status.execution.restarts if replica.status.execution is not None else 0


def _replica_reason(replica: Any) -> str:
    status = replica.status
    if status.release is not None and stage(replica) not in PLACED:  # else it left, and is back elsewhere
        return str(status.release.reason)
    return str(status.execution.reason) if status.execution is not None else ""


def _replica_address(replica: Any) -> str:
    ran = replica.status.execution
    if ran is None or not ran.address:
        return NONE
    return ",".join(f"{ran.address}:{port}" for _, port in sorted(ran.ports.items())) or str(ran.address)


def _node_status(node: Any) -> str:
    state = {Contact.LIVE: "Ready"}.get(node.status.contact.state, str(node.status.contact.state))
    why = why_not_schedulable(node)
    shown = ("NodeCordoned", "NodeDraining", "NodeReconciling", "NodeQuarantined")
    extra = why.removeprefix("Node") if why in shown else ""
    if node.metadata.terminating:
        extra = "Terminating"
    return f"{state},{extra}" if extra else state


def _node_gpus(node: Any) -> str:
    return str(len(node.spec.devices))


def _region_used(resource: str) -> Cell:
    def cell(region: Any) -> str:
        report = region.status.report
        if report is None or resource not in report.capacity:
            return NONE
        return f"{report.used.get(resource, 0)}/{report.capacity[resource]}"

    return cell


def _region_nodes(region: Any) -> str:
    report = region.status.report
    return NONE if report is None else f"{report.live_nodes}/{report.nodes}"


def _tenant_status(tenant: Any) -> str:
    return "Terminating" if tenant.metadata.terminating else "Active"


def _about(event: Any) -> str:
    return f"{event.involved_object.kind.lower()}/{event.involved_object.name}"


def _claimed(item: Any) -> str:
    return _amounts(item.spec.resources)


def _refusals(item: Any) -> str:
    return _listed(f"{r.reason}({r.nodes})" for r in item.status.reasons)


def _recovered(recovery: Any) -> str:
    done = sum(1 for w in recovery.status.workloads if w.serving >= w.wanted)
    return f"{done}/{len(recovery.status.workloads)}"


def _of(dotted: str) -> Cell:
    names = dotted.split(".")

    def cell(item: Any) -> Any:
        for name in names:
            item = getattr(item, name)
        return item if isinstance(item, bool | int | float) else str(item)

    return cell


# kind → columns between NAME and AGE.
COLUMNS: dict[str, tuple[Column, ...]] = {
    "Namespace": (Column("Status", _of("status.phase")),),
    "Tenant": (
        Column("Status", _tenant_status),
        Column("Isolation", _of("spec.isolation")),
        Column("Description", _of("spec.description"), wide=True),
    ),
    "Region": (
        Column("Health", _of("status.health.state"), says="what the global cell concludes"),
        Column("Zones", lambda r: _listed(r.spec.zones)),
        Column("Nodes", _region_nodes, says="live/all"),
        Column("CPU", _region_used("cpu"), says="used/capacity"),
        Column("Memory", _region_used("memory"), wide=True, says="used/capacity"),
        Column("Residency", lambda r: _listed(r.spec.residency), wide=True),
        Column("Endpoint", _of("spec.endpoint"), wide=True),
    ),
    "PriorityClass": (
        Column("Rank", _of("spec.rank"), "integer"),
        Column("Preempts", _of("spec.may_preempt"), "boolean"),
        Column("Reclaimable", _of("spec.reclaimable"), "boolean"),
    ),
    "Quota": (
        Column("Hard", lambda q: _amounts(q.spec.hard)),
        Column("Granted", lambda q: _amounts(q.status.granted)),
        Column("Used", lambda q: _amounts(q.status.used)),
        Column("Protected", lambda q: _amounts(q.spec.protected), wide=True),
    ),
    "Grant": (
        Column("Region", _of("spec.region")),
        Column("Class", _of("spec.grant_class")),
        Column("Limit", lambda g: _amounts(g.spec.limit)),
        Column("Enforced", lambda g: _amounts(g.status.limit)),
        Column("Used", lambda g: _amounts(g.status.used)),
        Column("Epoch", lambda g: f"{g.status.acknowledged_epoch}/{g.spec.epoch}", says="acknowledged/wanted"),
    ),
    "GrantCopy": (
        Column("Class", _of("spec.grant_class")),
        Column("Limit", lambda g: _amounts(g.spec.limit)),
        Column("Used", lambda g: _amounts(g.status.used)),
        Column("Epoch", _of("spec.epoch"), "integer"),
        Column("Spend-Until", _of("spec.spend_until"), wide=True),
    ),
    "RecoveryBudget": (
        Column("Region", _of("spec.region")),
        Column("Slots", lambda b: sum(s.count for s in b.spec.slots), "integer"),
        Column("Held", _of("status.held"), "integer"),
        Column("Drawn", _of("status.drawn"), "integer"),
    ),
    "SchedulerPolicy": (
        Column("Stage", _of("spec.stage")),
        Column("Revision", _of("status.revision")),
        Column("Sequence", _of("status.sequence"), "integer"),
    ),
    "PolicyRevision": (
        Column("Policy", _of("spec.policy")),
        Column("Stage", _of("spec.stage")),
        Column("Sequence", _of("spec.sequence"), "integer"),
        Column("Regions", lambda p: _listed(p.spec.regions), wide=True),
    ),
    "Workload": (
        Column("Ready", _workload_ready, says="serving/wanted; for batch work succeeded/completions"),
        Column("Type", _of("spec.type")),
        Column("Priority", _of("spec.priority_class_name")),
        Column("Regions", lambda w: _listed(r.region for r in w.status.summary.regions)),
        Column("Pending", _workload_pending, says="why replicas wait or fail"),
        Column("Command", _command, wide=True),
        Column("Resources", lambda w: _amounts(w.spec.template.resources), wide=True),
        Column("Revision", lambda w: w.status.rollout.revision if w.status.rollout else "", wide=True),
    ),
    "Assignment": (
        Column("Workload", _of("spec.workload")),
        Column("Region", _of("spec.region")),
        Column("Purpose", _of("spec.purpose")),
        Column("Ready", lambda a: f"{a.status.serving}/{a.spec.replicas}", says="serving/wanted"),
        Column("Bound", _of("status.bound"), "integer"),
        Column("Pending", lambda a: _listed(f"{p.reason}({p.count})" for p in (*a.status.pending, *a.status.failing))),
        Column("Epoch", lambda a: f"{a.status.observed_epoch}/{a.spec.epoch}", wide=True),
        Column("Revision", _of("spec.revision"), wide=True),
    ),
    "Override": (
        Column("Kind", _of("spec.kind")),
        Column("Phase", _of("status.phase")),
        Column("Scope", lambda o: _amounts({k: v for k, v in msgspec.to_builtins(o.spec.scope).items() if v})),
        Column("Expires", _of("status.expires_at")),
        Column("Reason", _of("spec.reason"), wide=True),
        Column("Requester", _of("spec.requester"), wide=True),
    ),
    "Recovery": (
        Column("Region", _of("spec.region")),
        Column("Phase", _of("status.phase")),
        Column("Recovered", _recovered, says="workloads back at their promise/all"),
        Column("Cause", _of("spec.cause"), wide=True),
    ),
    "Node": (
        Column("Status", _node_status),
        Column("Zone", _of("spec.zone")),
        Column("Pool", _of("spec.pool")),
        Column("Running", _of("status.execution.running"), "integer"),
        Column("CPU", lambda n: str(n.spec.capacity.get("cpu", NONE))),
        Column("Memory", lambda n: str(n.spec.capacity.get("memory", NONE))),
        Column("GPUs", _node_gpus),
        Column("Address", _of("spec.address"), wide=True),
        Column("Epoch", _of("status.execution.epoch"), "integer", wide=True),
        Column("Taints", lambda n: _listed(f"{t.key}:{t.effect}" for t in n.spec.taints), wide=True),
        Column("Version", _of("status.execution.agent_version"), wide=True),
    ),
    "Hold": (
        Column("Budget", _of("spec.budget")),
        Column("Node", _of("spec.node")),
        Column("Resources", _claimed),
        Column("Drawn-By", lambda h: h.status.draw.replica_uid if h.status.draw else ""),
    ),
    "Replica": (
        Column("Stage", lambda r: str(stage(r))),
        Column("Node", lambda r: r.status.placement.node or NONE),
        Column("Zone", lambda r: r.status.placement.zone or NONE),
        Column("Restarts", _replica_restarts, "integer"),
        Column("Reason", _replica_reason),
        Column("Address", _replica_address, wide=True),
        Column("Attempt", _of("status.placement.attempt"), "integer", wide=True),
        Column("Revision", _of("spec.revision"), wide=True),
    ),
    "SchedulingRequest": (
        Column("Workload", _of("spec.workload")),
        Column("Pending", _of("status.pending"), "integer"),
        Column("Attempts", _of("status.attempts"), "integer"),
        Column("Reasons", _refusals),
        Column("Next-Try", _of("status.next_try_at"), wide=True),
        Column("Wakes-On", lambda r: _listed(r.status.wake_on), wide=True),
    ),
    "Reservation": (
        Column("Replica", _of("spec.replica")),
        Column("Node", _of("spec.node")),
        Column("Phase", _of("status.phase")),
        Column("Expires", _of("spec.expires_at")),
        Column("Resources", _claimed, wide=True),
    ),
    "Binding": (
        Column("Replica", _of("spec.replica")),
        Column("Node", _of("spec.node")),
        Column("Desired", _of("spec.desired")),
        Column("Phase", lambda b: str(b.status.phase or "")),
        Column("Epoch", _of("spec.epoch"), "integer"),
        Column("Resources", _claimed, wide=True),
        Column("Class", _of("spec.capacity_class"), wide=True),
    ),
    "Decision": (
        Column("Workload", _of("spec.workload")),
        Column("Placed", lambda d: f"{sum(1 for e in d.spec.entries if e.node)}/{len(d.spec.entries)}"),
        Column("Feasible", lambda d: f"{d.spec.feasible}/{d.spec.nodes}", says="nodes that fit/all"),
        Column("Refusals", lambda d: _listed(f"{r.reason}({r.nodes})" for r in d.spec.refusals)),
        Column("Policy", _of("spec.policy_revision"), wide=True),
        Column("Snapshot", _of("spec.snapshot_revision"), "integer", wide=True),
    ),
    "Endpoint": (
        Column("Workload", _of("spec.workload")),
        Column("Region", _of("spec.region")),
        Column("Addresses", lambda e: len(e.spec.addresses), "integer"),
    ),
    "Pod": (
        Column("Node", _of("spec.node_name")),
        Column("Status", _of("status.phase")),
        Column("Workload", lambda p: p.metadata.labels.get(LABEL_WORKLOAD, "")),
    ),
    "NodePool": (
        Column("Nodes", lambda p: f"{len(p.status.nodes)}/{p.spec.max_nodes}", says="nodes that should exist/at most"),
        Column("State", _of("status.reason")),
        Column("Says", _of("status.message"), wide=True),
    ),
    "JoinToken": (
        Column("Node", lambda t: t.spec.node or "any"),
        Column("Used", lambda t: f"{len(t.status.used)}/{t.spec.uses}", says="uses so far/allowed"),
        Column("Expires", lambda t: seconds_text(t.expires_at_s)),
    ),
    "NodeIdentity": (
        Column("Generation", _of("spec.generation"), "integer"),
        Column("Revoked", lambda n: str(n.revoked)),
        Column("Token", _of("spec.token")),
        Column("Expires", _of("spec.expires_at")),
        Column("Serial", _of("spec.serial"), wide=True),
    ),
    "LeasePage": (Column("Leases", lambda p: len(p.spec.leases), "integer"),),
    "Term": (Column("Holder", _of("spec.holder")), Column("Term", _of("spec.term"), "integer")),
    "Event": (
        Column("Type", _of("type")),
        Column("Reason", _of("reason")),
        Column("Object", _about),
        Column("Message", _of("message")),
        Column("Count", _of("count"), "integer", wide=True),
        Column("Source", _of("source.component"), wide=True),
    ),
    "Lease": (Column("Holder", _of("spec.holder_identity")),),
}
_ALWAYS = (Column("Name", lambda item: item.metadata.name, says="the name of the object"),)


def definitions(kind: str) -> list[dict[str, Any]]:
    """The columnDefinitions of a kind's Table."""
    columns = (*_ALWAYS, *COLUMNS.get(kind, ()))
    made = [
        {
            "name": c.name, "type": c.type, "format": "name" if c.name == "Name" else "",
            "description": c.says, "priority": int(c.wide),
        }
        for c in columns
    ]  # fmt: skip
    age = {"name": "Age", "type": "string", "format": "", "description": "time since it was created", "priority": 0}
    return [*made, age] if kind != "Event" else [{**age, "name": "Last Seen"}, *made[1:], {**made[0], "priority": 1}]


def cells(kind: str, item: Object, now_s: float) -> list[Any]:
    """One row. A cell that cannot be made is left empty: a table is for people and never fails a request."""
    made = [_cell(c, item) for c in COLUMNS.get(kind, ())]
    if kind != "Event":
        return [item.metadata.name, *made, _age(item.metadata.creation_timestamp, now_s)]
    seen = item.last_timestamp or item.event_time or item.metadata.creation_timestamp  # type: ignore[attr-defined]
    return [_age(seen, now_s), *made, item.metadata.name]


def _cell(column: Column, item: Object) -> Any:
    try:
        return column.cell(item)
    except (AttributeError, ValueError, TypeError, KeyError):
        return None


def _age(since: str, now_s: float) -> str:
    try:
        return age_text(since, now_s)
    except ValueError:
        return NONE
