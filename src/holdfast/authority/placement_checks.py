"""Checks of a placement against current state, in the order they run. Pure; each refusal carries its facts.

They enforce invariants, not policy: preferences are left to the planner; rules of the workload, the operator and the
node are enforced here (S4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.binding import Intent
from holdfast.model.decision import Decision
from holdfast.model.errors import Refused
from holdfast.model.host_paths import host_path_needs, refused_host_path
from holdfast.model.lifecycle import final_phase
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.override import ACTIVE, Override, avoidance_of, stays_until_s
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.template import required_driver, template_hash
from holdfast.model.tenant import Tenant, is_dedicated

_NODE_REASON_TEXT: dict[str, str] = {
    Reason.NODE_TERMINATING: "it is being deleted",
    Reason.NODE_DRAINING: "it is being drained",
    Reason.NODE_CORDONED: "an operator marked it unschedulable",
    Reason.NODE_QUARANTINED: "too many task starts failed on it",
    Reason.NODE_UNREACHABLE: "its agent is out of contact",
    Reason.NODE_FENCED: "it is fenced and has not registered again",
    Reason.NODE_RECONCILING: "its agent has not reconciled running tasks with bindings yet",
}


def replica_refusal(node: Replica | None, namespace: str, name: str, intent: Intent) -> Refused | None:
    """Why the intent does not apply to the current replica; None if it does."""
    if node is None or node.uid != intent.replica_uid:
        return Refused(
            Reason.REPLICA_NOT_FOUND,
            f"replica {namespace}/{name}: not found with uid {intent.replica_uid}; next: drop the proposal",
            {"replica": f"{namespace}/{name}", "uid": node.uid if node is not None else ""},
        )
    if node.metadata.terminating:
        return Refused(
            Reason.REPLICA_TERMINATING,
            f"replica {namespace}/{name}: is being deleted and cannot be placed",
            {"replica": f"{namespace}/{name}", "deletionTimestamp": node.metadata.deletion_timestamp},
        )
    ended = final_phase(node)
    if ended is not None and not node.status.placement.binding:
        return Refused(
            Reason.REPLICA_ENDED,
            f"replica {namespace}/{name}: has ended ({ended}) and cannot be placed again; next: drop the proposal",
            {"replica": f"{namespace}/{name}", "phase": ended.value},
        )
    current = template_hash(node.spec.template)
    if current != intent.template_hash:
        return Refused(
            Reason.TEMPLATE_CHANGED,
            f"replica {namespace}/{name}: the template changed (expected {intent.template_hash}, found {current})",
            {"expected": intent.template_hash, "current": current},
        )
    return attempt_refusal(node, intent.attempt)


def attempt_refusal(node: Replica, attempt_proposed: int) -> Refused | None:
    current = node.status.placement.attempt
    if attempt_proposed == current:
        return None
    return Refused(
        Reason.STALE_ATTEMPT,
        f"replica {node.key}: stale attempt (expected {current}, found {attempt_proposed}); next: plan again",
        {"attempt": attempt_proposed, "current": current, "releasedReason": node.status.placement.released_reason},
    )


def node_refusal(node: Node | None, name: str, epoch: int, *, live: bool) -> Refused | None:
    """Why the node takes no new work; None if it does. `epoch` and `live` come from the lease book."""
    if node is None:
        return Refused(Reason.NODE_NOT_FOUND, f"node {name}: not found in this region", {"node": name})
    reason = unschedulable_reason(node)
    if not reason and not live:
        reason = Reason.NODE_UNREACHABLE
    if not reason and node.status.execution.epoch != epoch:
        reason = Reason.NODE_RECONCILING
    if not reason:
        return None
    facts = {
        "node": name,
        "contact": node.status.contact.state.value,
        "epoch": node.status.execution.epoch,
        "leaseEpoch": epoch,
        "fencedEpoch": node.status.fence.fenced_epoch,
    }
    return Refused(reason, f"node {name}: takes no new replicas ({_NODE_REASON_TEXT[reason]})", facts)


def replica_stays_until_s(replica: Replica, now: float) -> float:
    spec = replica.spec
    return stays_until_s(spec.template, spec.disruption.max_unavailable, spec.active_until, now)


def override_refusal(
    node: Node, replica: Replica, region: str, avoidances: Sequence[Override], now: float
) -> Refused | None:
    override = avoidance_of(
        avoidances,
        region=region,
        zone=node.spec.zone,
        tenant=replica.metadata.namespace,
        workload=replica.spec.workload,
        stays_until_s=replica_stays_until_s(replica, now),
        node=node.metadata.name,
    )
    if override is None:
        return None
    return Refused(
        Reason.NODE_EXCLUDED_BY_OVERRIDE,
        f"override {override.metadata.name} keeps new work away from node {node.metadata.name}",
        {
            "node": node.metadata.name,
            "override": override.metadata.name,
            "zone": node.spec.zone,
            "expiresAt": override.status.expires_at,
        },
    )


def ended_override_refusal(decision: Decision | None, overrides: Iterable[Override]) -> Refused | None:
    """A proposal made under an override that has ended since: it may have arrived late, and an ended override has no
    effect (S8). The record decides, which follows the monotonic clock; the planner compares the time."""
    if decision is None or not decision.spec.overrides:
        return None
    active = {o.metadata.name for o in overrides if o.status.phase == ACTIVE and not o.spec.revoked}
    ended = next((name for name in decision.spec.overrides if name not in active), None)
    if ended is None:
        return None
    return Refused(
        Reason.OVERRIDE_EXPIRED,
        f"override {ended} is no longer in force, and the proposal was made under it; next: plan again",
        {"override": ended, "decidedAt": decision.spec.decided_at},
    )


def driver_refusal(node: Node, replica: Replica) -> Refused | None:
    driver = required_driver(replica.spec.template)
    if eligibility.has_driver(node.spec.drivers, driver):
        return _host_path_refusal(node, replica)
    return Refused(
        Reason.DRIVER_MISSING,
        f"node {node.metadata.name}: no {driver} driver (found {', '.join(node.spec.drivers) or 'none'})",
        {"node": node.metadata.name, "driver": driver, "drivers": list(node.spec.drivers)},
    )


def _host_path_refusal(node: Node, replica: Replica) -> Refused | None:
    needs = host_path_needs(replica.spec.template)
    path = refused_host_path(node.spec.host_paths, replica.metadata.namespace, needs) if needs else ""
    if not path:
        return None
    return Refused(
        Reason.HOST_PATH_NOT_ALLOWED,
        f"node {node.metadata.name}: path {path} is not allowed for tenant {replica.metadata.namespace}",
        {"node": node.metadata.name, "path": path},
    )


def placement_rules_refusal(node: Node, replica: Replica, region: str, this_region: Region | None) -> Refused | None:
    """Why the workload's placement rules forbid the node: region, residency, zone or pool (S4); None if allowed."""
    allowed = replica.spec.placement
    tags = this_region.spec.residency if this_region is not None else ()
    forbidden = ""
    if not eligibility.allows_region(allowed, region):
        forbidden = f"region {region}"
    elif not eligibility.satisfies_residency(allowed, tags):
        forbidden = f"residency {', '.join(tags) or 'unknown'} of region {region}"
    elif not eligibility.allows_zone(allowed, node.spec.zone):
        forbidden = f"zone {node.spec.zone}"
    elif not eligibility.allows_pool(allowed, node.spec.pool):
        forbidden = f"pool {node.spec.pool}"
    if not forbidden:
        return None
    return Refused(
        Reason.RESIDENCY_VIOLATED,
        f"replica {replica.key}: its placement rules forbid {forbidden}",
        {
            "node": node.metadata.name,
            "region": region,
            "zone": node.spec.zone,
            "pool": node.spec.pool,
            "residency": list(tags),
            "forbidden": forbidden,
        },
    )


def tenancy_refusal(node: Node, replica: Replica, tenant: Tenant | None) -> Refused | None:
    """Why tenant isolation forbids the node; None if allowed. Nodes of a dedicated tenant run only its replicas."""
    dedicated = replica.spec.dedicated or is_dedicated(tenant)
    if eligibility.can_use_node(replica.metadata.namespace, node.spec.tenant, dedicated=dedicated):
        return None
    owner = f"node {node.metadata.name} belongs to {node.spec.tenant or 'everyone'}"
    return Refused(
        Reason.TENANCY_VIOLATED,
        f"{owner}; tenant {replica.metadata.namespace} uses {'its own' if dedicated else 'shared'} nodes only",
        {
            "node": node.metadata.name,
            "nodeTenant": node.spec.tenant,
            "tenant": replica.metadata.namespace,
            "dedicated": dedicated,
        },
    )
