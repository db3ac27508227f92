"""The columns of every kind in `kubectl get`, as data.

A column reads one object. Ages are text, computed with the server's clock. `wide` columns show only with `-o wide`.
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


def _join_list(values: Any) -> str:
    texts = [str(v) for v in values]
    if not texts:
        return NONE
    more = f" + {len(texts) - SHOWN_ITEMS} more..." if len(texts) > SHOWN_ITEMS else ""
    return ",".join(texts[:SHOWN_ITEMS]) + more


def _format_amounts(values: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={_short_amount(name, str(value))}" for name, value in sorted(values.items())) or NONE


def _short_amount(resource: str, amount: str) -> str:
    """Memory shares have odd byte counts that are hard to read, so the column shows MiB. The object has the exact
    value.
    """
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
        return _join_list(reasons)
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
    if status.release is not None and stage(replica) not in PLACED:  # otherwise it was released and placed again
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


def _event_object(event: Any) -> str:
    return f"{event.involved_object.kind.lower()}/{event.involved_object.name}"


def _claimed_resources(item: Any) -> str:
    return _format_amounts(item.spec.resources)


def _refusals(item: Any) -> str:
    return _join_list(f"{r.reason}({r.nodes})" for r in item.status.reasons)


def _recovered_count(recovery: Any) -> str:
    done = sum(1 for w in recovery.status.workloads if w.serving >= w.wanted)
    return f"{done}/{len(recovery.status.workloads)}"


def _field(dotted: str) -> Cell:
    names = dotted.split(".")

    def cell(item: Any) -> Any:
        for name in names:
            item = getattr(item, name)
        return item if isinstance(item, bool | int | float) else str(item)

    return cell


# kind → columns between NAME and AGE.
COLUMNS: dict[str, tuple[Column, ...]] = {
    "Namespace": (Column("Status", _field("status.phase")),),
    "Tenant": (
        Column("Status", _tenant_status),
        Column("Isolation", _field("spec.isolation")),
        Column("Description", _field("spec.description"), wide=True),
    ),
    "Region": (
        Column("Health", _field("status.health.state"), says="health as judged by the global cell"),
        Column("Zones", lambda r: _join_list(r.spec.zones)),
        Column("Nodes", _region_nodes, says="live/all"),
        Column("CPU", _region_used("cpu"), says="used/capacity"),
        Column("Memory", _region_used("memory"), wide=True, says="used/capacity"),
        Column("Residency", lambda r: _join_list(r.spec.residency), wide=True),
        Column("Endpoint", _field("spec.endpoint"), wide=True),
    ),
    "PriorityClass": (
        Column("Rank", _field("spec.rank"), "integer"),
        Column("Preempts", _field("spec.may_preempt"), "boolean"),
        Column("Reclaimable", _field("spec.reclaimable"), "boolean"),
    ),
    "Quota": (
        Column("Hard", lambda q: _format_amounts(q.spec.hard)),
        Column("Granted", lambda q: _format_amounts(q.status.granted)),
        Column("Used", lambda q: _format_amounts(q.status.used)),
        Column("Protected", lambda q: _format_amounts(q.spec.protected), wide=True),
    ),
    "Grant": (
        Column("Region", _field("spec.region")),
        Column("Class", _field("spec.grant_class")),
        Column("Limit", lambda g: _format_amounts(g.spec.limit)),
        Column("Enforced", lambda g: _format_amounts(g.status.limit)),
        Column("Used", lambda g: _format_amounts(g.status.used)),
        Column("Epoch", lambda g: f"{g.status.acknowledged_epoch}/{g.spec.epoch}", says="acknowledged/desired"),
    ),
    "GrantCopy": (
        Column("Class", _field("spec.grant_class")),
        Column("Limit", lambda g: _format_amounts(g.spec.limit)),
        Column("Used", lambda g: _format_amounts(g.status.used)),
        Column("Epoch", _field("spec.epoch"), "integer"),
        Column("Spend-Until", _field("spec.spend_until"), wide=True),
    ),
    "RecoveryBudget": (
        Column("Region", _field("spec.region")),
        Column("Slots", lambda b: sum(s.count for s in b.spec.slots), "integer"),
        Column("Held", _field("status.held"), "integer"),
        Column("Drawn", _field("status.drawn"), "integer"),
    ),
    "SchedulerPolicy": (
        Column("Stage", _field("spec.stage")),
        Column("Revision", _field("status.revision")),
        Column("Sequence", _field("status.sequence"), "integer"),
    ),
    "PolicyRevision": (
        Column("Policy", _field("spec.policy")),
        Column("Stage", _field("spec.stage")),
        Column("Sequence", _field("spec.sequence"), "integer"),
        Column("Regions", lambda p: _join_list(p.spec.regions), wide=True),
    ),
    "Workload": (
        Column("Ready", _workload_ready, says="serving/desired; for batch workloads succeeded/completions"),
        Column("Type", _field("spec.type")),
        Column("Priority", _field("spec.priority_class_name")),
        Column("Regions", lambda w: _join_list(r.region for r in w.status.summary.regions)),
        Column("Pending", _workload_pending, says="why replicas are pending or failing"),
        Column("Command", _command, wide=True),
        Column("Resources", lambda w: _format_amounts(w.spec.template.resources), wide=True),
        Column("Revision", lambda w: w.status.rollout.revision if w.status.rollout else "", wide=True),
    ),
    "Assignment": (
        Column("Workload", _field("spec.workload")),
        Column("Region", _field("spec.region")),
        Column("Purpose", _field("spec.purpose")),
        Column("Ready", lambda a: f"{a.status.serving}/{a.spec.replicas}", says="serving/desired"),
        Column("Bound", _field("status.bound"), "integer"),
        Column(
            "Pending", lambda a: _join_list(f"{p.reason}({p.count})" for p in (*a.status.pending, *a.status.failing))
        ),
        Column("Epoch", lambda a: f"{a.status.observed_epoch}/{a.spec.epoch}", wide=True),
        Column("Revision", _field("spec.revision"), wide=True),
    ),
    "Override": (
        Column("Kind", _field("spec.kind")),
        Column("Phase", _field("status.phase")),
        Column("Scope", lambda o: _format_amounts({k: v for k, v in msgspec.to_builtins(o.spec.scope).items() if v})),
        Column("Expires", _field("status.expires_at")),
        Column("Reason", _field("spec.reason"), wide=True),
        Column("Requester", _field("spec.requester"), wide=True),
    ),
    "Recovery": (
        Column("Region", _field("spec.region")),
        Column("Phase", _field("status.phase")),
        Column("Recovered", _recovered_count, says="workloads that serve minServing/all"),
        Column("Cause", _field("spec.cause"), wide=True),
    ),
    "Node": (
        Column("Status", _node_status),
        Column("Zone", _field("spec.zone")),
        Column("Pool", _field("spec.pool")),
        Column("Running", _field("status.execution.running"), "integer"),
        Column("CPU", lambda n: str(n.spec.capacity.get("cpu", NONE))),
        Column("Memory", lambda n: str(n.spec.capacity.get("memory", NONE))),
        Column("GPUs", _node_gpus),
        Column("Address", _field("spec.address"), wide=True),
        Column("Epoch", _field("status.execution.epoch"), "integer", wide=True),
        Column("Taints", lambda n: _join_list(f"{t.key}:{t.effect}" for t in n.spec.taints), wide=True),
        Column("Version", _field("status.execution.agent_version"), wide=True),
    ),
    "Hold": (
        Column("Budget", _field("spec.budget")),
        Column("Node", _field("spec.node")),
        Column("Resources", _claimed_resources),
        Column("Drawn-By", lambda h: h.status.draw.replica_uid if h.status.draw else ""),
    ),
    "Replica": (
        Column("Stage", lambda r: str(stage(r))),
        Column("Node", lambda r: r.status.placement.node or NONE),
        Column("Zone", lambda r: r.status.placement.zone or NONE),
        Column("Restarts", _replica_restarts, "integer"),
        Column("Reason", _replica_reason),
        Column("Address", _replica_address, wide=True),
        Column("Attempt", _field("status.placement.attempt"), "integer", wide=True),
        Column("Revision", _field("spec.revision"), wide=True),
    ),
    "SchedulingRequest": (
        Column("Workload", _field("spec.workload")),
        Column("Pending", _field("status.pending"), "integer"),
        Column("Attempts", _field("status.attempts"), "integer"),
        Column("Reasons", _refusals),
        Column("Next-Try", _field("status.next_try_at"), wide=True),
        Column("Wakes-On", lambda r: _join_list(r.status.wake_on), wide=True),
    ),
    "Reservation": (
        Column("Replica", _field("spec.replica")),
        Column("Node", _field("spec.node")),
        Column("Phase", _field("status.phase")),
        Column("Expires", _field("spec.expires_at")),
        Column("Resources", _claimed_resources, wide=True),
    ),
    "Binding": (
        Column("Replica", _field("spec.replica")),
        Column("Node", _field("spec.node")),
        Column("Desired", _field("spec.desired")),
        Column("Phase", lambda b: str(b.status.phase or "")),
        Column("Epoch", _field("spec.epoch"), "integer"),
        Column("Resources", _claimed_resources, wide=True),
        Column("Class", _field("spec.capacity_class"), wide=True),
    ),
    "Decision": (
        Column("Workload", _field("spec.workload")),
        Column("Placed", lambda d: f"{sum(1 for e in d.spec.entries if e.node)}/{len(d.spec.entries)}"),
        Column("Feasible", lambda d: f"{d.spec.feasible}/{d.spec.nodes}", says="nodes that fit/all"),
        Column("Refusals", lambda d: _join_list(f"{r.reason}({r.nodes})" for r in d.spec.refusals)),
        Column("Policy", _field("spec.policy_revision"), wide=True),
        Column("Snapshot", _field("spec.snapshot_revision"), "integer", wide=True),
    ),
    "Endpoint": (
        Column("Workload", _field("spec.workload")),
        Column("Region", _field("spec.region")),
        Column("Addresses", lambda e: len(e.spec.addresses), "integer"),
    ),
    "Pod": (
        Column("Node", _field("spec.node_name")),
        Column("Status", _field("status.phase")),
        Column("Workload", lambda p: p.metadata.labels.get(LABEL_WORKLOAD, "")),
    ),
    "NodePool": (
        Column("Nodes", lambda p: f"{len(p.status.nodes)}/{p.spec.max_nodes}", says="desired nodes/maximum"),
        Column("State", _field("status.reason")),
        Column("Says", _field("status.message"), wide=True),
    ),
    "JoinToken": (
        Column("Node", lambda t: t.spec.node or "any"),
        Column("Used", lambda t: f"{len(t.status.used)}/{t.spec.uses}", says="uses so far/allowed"),
        Column("Expires", lambda t: seconds_text(t.expires_at_s)),
    ),
    "NodeIdentity": (
        Column("Generation", _field("spec.generation"), "integer"),
        Column("Revoked", lambda n: str(n.revoked)),
        Column("Token", _field("spec.token")),
        Column("Expires", _field("spec.expires_at")),
        Column("Serial", _field("spec.serial"), wide=True),
    ),
    "LeasePage": (Column("Leases", lambda p: len(p.spec.leases), "integer"),),
    "Term": (Column("Holder", _field("spec.holder")), Column("Term", _field("spec.term"), "integer")),
    "Event": (
        Column("Type", _field("type")),
        Column("Reason", _field("reason")),
        Column("Object", _event_object),
        Column("Message", _field("message")),
        Column("Count", _field("count"), "integer", wide=True),
        Column("Source", _field("source.component"), wide=True),
    ),
    "Lease": (Column("Holder", _field("spec.holder_identity")),),
}
_NAME_COLUMN = (Column("Name", lambda item: item.metadata.name, says="the name of the object"),)


def definitions(kind: str) -> list[dict[str, Any]]:
    """The columnDefinitions of a kind's Table."""
    columns = (*_NAME_COLUMN, *COLUMNS.get(kind, ()))
    made = [
        {
            "name": c.name, "type": c.type, "format": "name" if c.name == "Name" else "",
            "description": c.says, "priority": int(c.wide),
        }
        for c in columns
    ]  # fmt: skip
    age = {"name": "Age", "type": "string", "format": "", "description": "time since creation", "priority": 0}
    return [*made, age] if kind != "Event" else [{**age, "name": "Last Seen"}, *made[1:], {**made[0], "priority": 1}]


def cells(kind: str, item: Object, now_s: float) -> list[Any]:
    """One row. A cell that raises is left empty: a table never fails a request."""
    made = [_cell(c, item) for c in COLUMNS.get(kind, ())]
    if kind != "Event":
        return [item.metadata.name, *made, _format_age(item.metadata.creation_timestamp, now_s)]
    seen = item.last_timestamp or item.event_time or item.metadata.creation_timestamp  # type: ignore[attr-defined]
    return [_format_age(seen, now_s), *made, item.metadata.name]


def _cell(column: Column, item: Object) -> Any:
    try:
        return column.cell(item)
    except (AttributeError, ValueError, TypeError, KeyError):
        return None


def _format_age(since: str, now_s: float) -> str:
    try:
        return age_text(since, now_s)
    except ValueError:
        return NONE
