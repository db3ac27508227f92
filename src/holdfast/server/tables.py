"""The columns of every kind in `kubectl get`, as data.

A column reads one object; cells that need others are passed in. Ages are text, computed with the server's clock. `wide`
columns show only with `-o wide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.join import join_token_purpose
from holdfast.model.lifecycle import PLACED_STAGES, last_transition, stage
from holdfast.model.meta import Object, find_condition
from holdfast.model.newest_template import unserved_template
from holdfast.model.node import ContactState, unschedulable_reason
from holdfast.model.quantity import DISK, MEMORY
from holdfast.model.region import current_report, health_text
from holdfast.model.times import age_text, seconds_text
from holdfast.model.workload import WorkloadType, wanted_replicas
from holdfast.server.notification_columns import NOTIFICATION_COLUMNS
from holdfast.server.pod_columns import POD_COLUMNS
from holdfast.server.recovery_columns import RECOVERY_COLUMNS
from holdfast.server.table_column import NONE, Cell, TableColumn
from holdfast.server.table_column import column_field as _field
from holdfast.server.volume_tables import VOLUME_COLUMNS

MIB = 1 << 20
NOTHING_BESIDE: Mapping[str, Cell] = {}
SHOWN_ITEMS = 3


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


def _proven(proof: Any) -> str:
    """When a promise was last proven, and how long the recovery took."""
    return f"{proof.at.partition('.')[0]}Z ({proof.seconds:.0f}s)" if proof is not None else "never"


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
    unserved = unserved_template(workload)
    return str(unserved.reason) if unserved is not None else ""


def _command(item: Any) -> str:
    template = item.spec.template
    text = " ".join((*template.command, *template.args)) or template.bundle or template.image
    return text if len(text) <= 60 else text[:57] + "..."


def _replica_restarts(replica: Any) -> int:
    return replica.status.execution.restarts if replica.status.execution is not None else 0


def _replica_image(replica: Any) -> str:
    execution = replica.status.execution
    return str(execution.image) if execution is not None and execution.image else NONE


def _replica_reason(replica: Any) -> str:
    status = replica.status
    if status.release is not None and stage(replica) not in PLACED_STAGES:  # otherwise it was released and placed again
        return str(status.release.reason)
    return str(status.execution.reason) if status.execution is not None else ""


def _replica_address(replica: Any) -> str:
    ran = replica.status.execution
    if ran is None or not ran.address:
        return NONE
    return ",".join(f"{ran.address}:{port}" for _, port in sorted(ran.ports.items())) or str(ran.address)


def _node_status(node: Any) -> str:
    state = {ContactState.LIVE: "Ready"}.get(node.status.contact.state, str(node.status.contact.state))
    why = unschedulable_reason(node)
    shown = ("NodeCordoned", "NodeDraining", "NodeReconciling", "NodeQuarantined")
    extra = why.removeprefix("Node") if why in shown else ""
    if node.metadata.terminating:
        extra = "Terminating"
    return f"{state},{extra}" if extra else state


def _node_gpus(node: Any) -> str:
    return str(len(node.spec.devices))


def _region_used(resource: str) -> Cell:
    def cell(region: Any) -> str:
        report = current_report(region)
        if report is None or resource not in report.capacity:
            return NONE
        return f"{report.used.get(resource, 0)}/{report.capacity[resource]}"

    return cell


def _region_nodes(region: Any) -> str:
    report = current_report(region)
    return NONE if report is None else f"{report.live_nodes}/{report.nodes}"


def _tenant_status(tenant: Any) -> str:
    return "Terminating" if tenant.metadata.terminating else "Active"


def _event_object(event: Any) -> str:
    return f"{event.involved_object.kind.lower()}/{event.involved_object.name}"


def _claimed_resources(item: Any) -> str:
    return _format_amounts(item.spec.resources)


def _refusals(found: Any) -> str:
    """Reasons with the number of nodes, which a reason that no node causes does not have."""
    return _join_list(f"{r.reason}({r.nodes})" if r.nodes else r.reason for r in found)


# kind → columns between NAME and AGE.
_BINDING_COLUMNS = (
    TableColumn("Role", lambda b: f"{b.role_ref.kind}/{b.role_ref.name}"),
    TableColumn("Subjects", lambda b: _join_list(f"{s.kind}:{s.name}" for s in b.subjects)),
)

COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "Namespace": (TableColumn("Status", _field("status.phase")),),
    "Tenant": (
        TableColumn("Status", _tenant_status),
        TableColumn("Isolation", _field("spec.isolation")),
        TableColumn("Description", _field("spec.description"), wide=True),
    ),
    "Region": (
        TableColumn("Health", health_text, description="health as determined by the global cell"),
        TableColumn("Zones", lambda r: _join_list(r.spec.zones)),
        TableColumn("Nodes", _region_nodes, description="live/all"),
        TableColumn("CPU", _region_used("cpu"), description="used/capacity"),
        TableColumn("Memory", _region_used("memory"), wide=True, description="used/capacity"),
        TableColumn("Residency", lambda r: _join_list(r.spec.residency), wide=True),
        TableColumn("Endpoint", _field("spec.endpoint"), wide=True),
    ),
    "PriorityClass": (
        TableColumn("Priority", _field("spec.priority"), "integer"),
        TableColumn("Preempts", _field("spec.may_preempt"), "boolean"),
        TableColumn("Reclaimable", _field("spec.reclaimable"), "boolean"),
    ),
    "Quota": (
        TableColumn("Hard", lambda q: _format_amounts(q.spec.hard)),
        TableColumn("Granted", lambda q: _format_amounts(q.status.granted)),
        TableColumn("Used", lambda q: _format_amounts(q.status.used)),
        TableColumn("Protected", lambda q: _format_amounts(q.spec.protected), wide=True),
    ),
    "Grant": (
        TableColumn("Region", _field("spec.region")),
        TableColumn("Class", _field("spec.grant_class")),
        TableColumn("Limit", lambda g: _format_amounts(g.spec.limit)),
        TableColumn("Enforced", lambda g: _format_amounts(g.status.limit)),
        TableColumn("Used", lambda g: _format_amounts(g.status.used)),
        TableColumn(
            "Epoch", lambda g: f"{g.status.acknowledged_epoch}/{g.spec.epoch}", description="acknowledged/desired"
        ),
    ),
    "GrantCopy": (
        TableColumn("Class", _field("spec.grant_class")),
        TableColumn("Limit", lambda g: _format_amounts(g.spec.limit)),
        TableColumn("Used", lambda g: _format_amounts(g.status.used)),
        TableColumn("Epoch", _field("spec.epoch"), "integer"),
        TableColumn("Lease-Expires", _field("spec.lease_expires_at"), wide=True),
    ),
    "RecoveryBudget": (
        TableColumn("Region", _field("spec.region")),
        TableColumn("Slots", lambda b: sum(s.count for s in b.spec.slot_shapes), "integer"),
        TableColumn("Admitted", _field("status.admitted"), "integer"),
        TableColumn("Consumed", _field("status.consumed"), "integer"),
        TableColumn(
            "Last-Proven", lambda b: _proven(b.status.last_proven), description="the newest recovery that used it"
        ),
    ),
    "SchedulerPolicy": (
        TableColumn("Stage", _field("spec.stage")),
        TableColumn("Revision", _field("status.revision")),
        TableColumn("Sequence", _field("status.sequence"), "integer"),
    ),
    "PolicyRevision": (
        TableColumn("Policy", _field("spec.policy")),
        TableColumn("Stage", _field("spec.stage")),
        TableColumn("Sequence", _field("spec.sequence"), "integer"),
        TableColumn("Regions", lambda p: _join_list(p.spec.regions), wide=True),
    ),
    "Workload": (
        TableColumn("Ready", _workload_ready, description="serving/desired; for batch workloads succeeded/completions"),
        TableColumn("Type", _field("spec.type")),
        TableColumn("Priority", _field("spec.priority_class_name")),
        TableColumn("Regions", lambda w: _join_list(r.region for r in w.status.summary.regions)),
        TableColumn("Pending", _workload_pending, description="why replicas or the newest template do not serve"),
        TableColumn("Command", _command, wide=True),
        TableColumn("Resources", lambda w: _format_amounts(w.spec.template.resources), wide=True),
        TableColumn("Revision", lambda w: w.status.rollout.revision if w.status.rollout else "", wide=True),
        TableColumn(
            "Last-Proven",
            lambda w: _proven(w.status.backing.last_proven) if w.status.backing else "",
            wide=True,
            description="the newest recovery that met the objective; never, if none did",
        ),
    ),
    "CronWorkload": (
        TableColumn("Schedule", _field("spec.schedule")),
        TableColumn("Timezone", _field("spec.time_zone")),
        TableColumn("Suspend", _field("spec.suspend"), "boolean"),
        TableColumn("Active", lambda c: len(c.status.active), "integer", description="runs that have not finished"),
        TableColumn("Last-Schedule", lambda c: c.status.last_schedule_time or NONE),
        TableColumn("Next", lambda c: c.status.next_schedule_time or NONE),
        TableColumn("Missed", lambda c: c.status.missed.count if c.status.missed else 0, "integer"),
        TableColumn("Last-Success", lambda c: c.status.last_successful_time or NONE, wide=True),
        TableColumn("Concurrency", _field("spec.concurrency_policy"), wide=True),
        TableColumn("State", lambda c: c.status.conditions[0].reason if c.status.conditions else "", wide=True),
    ),
    "Assignment": (
        TableColumn("Workload", _field("spec.workload")),
        TableColumn("Region", _field("spec.region")),
        TableColumn("Purpose", _field("spec.purpose")),
        TableColumn("Ready", lambda a: f"{a.status.serving}/{a.spec.replicas}", description="serving/desired"),
        TableColumn("Bound", _field("status.bound"), "integer"),
        TableColumn(
            "Pending", lambda a: _join_list(f"{p.reason}({p.count})" for p in (*a.status.pending, *a.status.failing))
        ),
        TableColumn("Epoch", lambda a: f"{a.status.observed_epoch}/{a.spec.epoch}", wide=True),
        TableColumn("Revision", _field("spec.revision"), wide=True),
    ),
    "Override": (
        TableColumn("Kind", _field("spec.kind")),
        TableColumn("Phase", _field("status.phase")),
        TableColumn(
            "Scope", lambda o: _format_amounts({k: v for k, v in msgspec.to_builtins(o.spec.scope).items() if v})
        ),
        TableColumn("Expires", _field("status.expires_at")),
        TableColumn("Reason", _field("spec.reason"), wide=True),
        TableColumn("Requester", _field("spec.requester"), wide=True),
    ),
    "MaintenanceWindow": (
        TableColumn("Region", _field("spec.region")),
        TableColumn("Scope", lambda w: w.spec.zone or ",".join(w.spec.nodes) or "region"),
        TableColumn("Phase", _field("status.phase")),
        TableColumn("Starts", lambda w: w.status.starts_at or NONE),
        TableColumn("Ends", lambda w: w.status.ends_at or NONE),
        TableColumn("Owner", _field("spec.owner")),
        TableColumn("Recurrence", lambda w: w.spec.recurrence or NONE, wide=True),
        TableColumn("Reason", _field("spec.reason"), wide=True),
        TableColumn("Override", lambda w: w.status.override or NONE, wide=True),
    ),
    **NOTIFICATION_COLUMNS,
    **RECOVERY_COLUMNS,
    "Node": (
        TableColumn("Status", _node_status),
        TableColumn("Zone", _field("spec.zone")),
        TableColumn("Pool", _field("spec.pool")),
        TableColumn("Running", _field("status.execution.running"), "integer"),
        TableColumn("CPU", lambda n: str(n.spec.capacity.get("cpu", NONE))),
        TableColumn("Memory", lambda n: str(n.spec.capacity.get("memory", NONE))),
        TableColumn("GPUs", _node_gpus),
        TableColumn("Address", _field("spec.address"), wide=True),
        TableColumn("Epoch", _field("status.execution.epoch"), "integer", wide=True),
        TableColumn("Taints", lambda n: _join_list(f"{t.key}:{t.effect}" for t in n.spec.taints), wide=True),
        TableColumn("Version", _field("status.execution.agent_version"), wide=True),
    ),
    "RecoverySlot": (
        TableColumn("Budget", _field("spec.budget")),
        TableColumn("Node", _field("spec.node")),
        TableColumn("Resources", _claimed_resources),
        TableColumn("Consumer", lambda s: s.status.consumer.replica_uid if s.status.consumer else ""),
    ),
    "Replica": (
        TableColumn("Stage", lambda r: str(stage(r))),
        TableColumn("Node", lambda r: r.status.placement.node or NONE),
        TableColumn("Zone", lambda r: r.status.placement.zone or NONE),
        TableColumn("Restarts", _replica_restarts, "integer"),
        TableColumn("Reason", _replica_reason),
        TableColumn("Address", _replica_address, wide=True),
        TableColumn("Attempt", _field("status.placement.attempt"), "integer", wide=True),
        TableColumn("Image", _replica_image, wide=True, description="image with the digest that runs"),
        TableColumn("Revision", _field("spec.revision"), wide=True),
        TableColumn("By", lambda r: last_transition(r).owner, wide=True, description="Who made the last transition."),
        TableColumn("Since", lambda r: last_transition(r).at or NONE, wide=True),
    ),
    "SchedulingRequest": (
        TableColumn("Workload", _field("spec.workload")),
        TableColumn("Pending", _field("status.pending"), "integer"),
        TableColumn("Attempts", _field("status.attempts"), "integer"),
        TableColumn("Reasons", lambda r: _refusals(r.status.reasons)),
        TableColumn("Next-Retry", _field("status.next_retry_at"), wide=True),
        TableColumn("Retry-On", lambda r: _join_list(r.status.retry_on), wide=True),
    ),
    **VOLUME_COLUMNS,
    "Reservation": (
        TableColumn("Replica", _field("spec.replica")),
        TableColumn("Node", _field("spec.node")),
        TableColumn("Phase", _field("status.phase")),
        TableColumn("Expires", _field("spec.expires_at")),
        TableColumn("Resources", _claimed_resources, wide=True),
    ),
    "Binding": (
        TableColumn("Replica", _field("spec.replica")),
        TableColumn("Node", _field("spec.node")),
        TableColumn("Desired", _field("spec.desired")),
        TableColumn("Phase", lambda b: str(b.status.phase or "")),
        TableColumn("Epoch", _field("spec.epoch"), "integer"),
        TableColumn("Resources", _claimed_resources, wide=True),
        TableColumn("Class", _field("spec.capacity_class"), wide=True),
    ),
    "Decision": (
        TableColumn("Workload", _field("spec.workload")),
        TableColumn("Placed", lambda d: f"{sum(1 for e in d.spec.entries if e.node)}/{len(d.spec.entries)}"),
        TableColumn("Feasible", lambda d: f"{d.spec.feasible}/{d.spec.nodes}", description="nodes that fit/all"),
        TableColumn("Refusals", lambda d: _refusals(d.spec.refusals)),
        TableColumn("Policy", _field("spec.policy_revision"), wide=True),
        TableColumn("Snapshot", _field("spec.snapshot_revision"), "integer", wide=True),
    ),
    "Endpoint": (
        TableColumn("Workload", _field("spec.workload")),
        TableColumn("Region", _field("spec.region")),
        TableColumn("Addresses", lambda e: len(e.spec.addresses), "integer"),
    ),
    "Pod": POD_COLUMNS,
    "NodePool": (
        TableColumn(
            "Nodes", lambda p: f"{len(p.status.nodes)}/{p.spec.max_nodes}", description="desired nodes/maximum"
        ),
        TableColumn("State", _field("status.reason")),
        TableColumn("Message", _field("status.message"), wide=True),
    ),
    "JoinToken": (
        TableColumn("For", join_token_purpose, description="what joins with it"),
        TableColumn("Used", lambda t: f"{len(t.status.used)}/{t.spec.uses}", description="uses so far/allowed"),
        TableColumn("Expires", lambda t: seconds_text(t.expires_at_s)),
    ),
    "NodeIdentity": (
        TableColumn("Generation", _field("spec.generation"), "integer"),
        TableColumn("Revoked", lambda n: str(n.revoked)),
        TableColumn("Token", _field("spec.token")),
        TableColumn("Expires", _field("spec.expires_at")),
        TableColumn("Serial", _field("spec.serial"), wide=True),
    ),
    "Server": (
        TableColumn("Cell", _field("spec.cell")),
        TableColumn("URL", _field("spec.url")),
        TableColumn("Revoked", lambda s: str(s.spec.revoked)),
        TableColumn("Expires", _field("status.expires_at")),
        TableColumn("Serial", _field("status.serial"), wide=True),
    ),
    "LeasePage": (TableColumn("Leases", lambda p: len(p.spec.leases), "integer"),),
    "Term": (TableColumn("Holder", _field("spec.holder")), TableColumn("Term", _field("spec.term"), "integer")),
    "Event": (
        TableColumn("Type", _field("type")),
        TableColumn("Reason", _field("reason")),
        TableColumn("Object", _event_object),
        TableColumn("Message", _field("message")),
        TableColumn("Count", _field("count"), "integer", wide=True),
        TableColumn("Source", _field("source.component"), wide=True),
    ),
    "Secret": (
        TableColumn("Type", _field("type")),
        TableColumn("Data", lambda secret: len(secret.data), type="integer"),
    ),
    "ConfigMap": (TableColumn("Data", lambda config: len(config.data) + len(config.binary_data), type="integer"),),
    "Lease": (TableColumn("Holder", _field("spec.holder_identity")),),
    "BreakGlassSession": (
        TableColumn("Requester", _field("spec.requester")),
        TableColumn("Tenant", lambda s: s.spec.tenant or "all"),
        TableColumn("Ends", lambda s: seconds_text(s.ends_s)),
        TableColumn("Closed", _field("spec.closed"), "boolean"),
        TableColumn("Reviewer", lambda s: s.spec.review.reviewer if s.spec.review else NONE),
        TableColumn("Reason", _field("spec.reason"), wide=True),
    ),
    "Role": (TableColumn("Rules", lambda r: len(r.rules), "integer"),),
    "ClusterRole": (TableColumn("Rules", lambda r: len(r.rules), "integer"),),
    "RoleBinding": _BINDING_COLUMNS,
    "ClusterRoleBinding": _BINDING_COLUMNS,
}
_NAME_COLUMN = (TableColumn("Name", lambda item: item.metadata.name, description="the name of the object"),)


def definitions(kind: str) -> list[dict[str, Any]]:
    """The columnDefinitions of a kind's Table."""
    columns = (*_NAME_COLUMN, *COLUMNS.get(kind, ()))
    made = [
        {
            "name": c.name,
            "type": c.type,
            "format": "name" if c.name == "Name" else "",
            "description": c.description,
            "priority": int(c.wide),
        }
        for c in columns
    ]
    age = {"name": "Age", "type": "string", "format": "", "description": "time since creation", "priority": 0}
    return [*made, age] if kind != "Event" else [{**age, "name": "Last Seen"}, *made[1:], {**made[0], "priority": 1}]


def cells(kind: str, item: Object, now_s: float, beside: Mapping[str, Cell] = NOTHING_BESIDE) -> list[Any]:
    """One row. A cell that raises is left empty: a table never fails a request. `beside` are functions, by
    column, for cells that read other objects; a text that is not empty replaces the cell of the column."""
    made = [(beside[c.name](item) if c.name in beside else "") or _cell(c, item) for c in COLUMNS.get(kind, ())]
    if kind != "Event":
        return [item.metadata.name, *made, _format_age(item.metadata.creation_timestamp, now_s)]
    seen = item.last_timestamp or item.event_time or item.metadata.creation_timestamp  # type: ignore[attr-defined]
    return [_format_age(seen, now_s), *made, item.metadata.name]


def _cell(column: TableColumn, item: Object) -> Any:
    try:
        return column.cell(item)
    except (AttributeError, ValueError, TypeError, KeyError):
        return None


def _format_age(since: str, now_s: float) -> str:
    try:
        return age_text(since, now_s)
    except ValueError:
        return NONE
