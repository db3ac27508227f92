"""The checks of a placement against current state, in the order they are made. Pure; each refusal names its facts.

They judge invariants, never policy: what the planner preferred is its own affair, what the workload's rules, the
operator and the node forbid is not (S4).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model import placement_eligibility as eligibility
from holdfast.model.binding import Intent
from holdfast.model.errors import Refused
from holdfast.model.node import Node, unschedulable_reason
from holdfast.model.override import Override, avoidance_of
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.model.template import template_hash
from holdfast.model.tenant import Tenant, is_dedicated

_NODE_SAYS: dict[str, str] = {
    Reason.NODE_TERMINATING: "it is being deleted",
    Reason.NODE_DRAINING: "it is being drained",
    Reason.NODE_CORDONED: "an operator marked it unschedulable",
    Reason.NODE_QUARANTINED: "starts failed on it too often",
    Reason.NODE_UNREACHABLE: "its agent is not heard",
    Reason.NODE_FENCED: "it was fenced and has not registered anew",
    Reason.NODE_RECONCILING: "it has not yet matched what runs with what is bound",
}


def replica_refusal(found: Replica | None, namespace: str, name: str, intent: Intent) -> Refused | None:
    """Whether the intent is still about this replica as it is."""
    if found is None or found.uid != intent.replica_uid:
        return Refused(
            Reason.REPLICA_NOT_FOUND,
            f"replica {namespace}/{name} with uid {intent.replica_uid} does not exist; drop the proposal",
            {"replica": f"{namespace}/{name}", "uid": found.uid if found is not None else ""},
        )
    if found.metadata.terminating:
        return Refused(
            Reason.REPLICA_TERMINATING,
            f"replica {namespace}/{name} is being deleted and gets no new place",
            {"replica": f"{namespace}/{name}", "deletionTimestamp": found.metadata.deletion_timestamp},
        )
    current = template_hash(found.spec.template)
    if current != intent.template_hash:
        return Refused(
            Reason.TEMPLATE_CHANGED,
            f"the proposal is for template {intent.template_hash}, replica {namespace}/{name} has {current}",
            {"expected": intent.template_hash, "current": current},
        )
    return attempt_refusal(found, intent.attempt)


def attempt_refusal(found: Replica, asked: int) -> Refused | None:
    current = found.status.placement.attempt
    if asked == current:
        return None
    return Refused(
        Reason.STALE_ATTEMPT,
        f"attempt {asked} of replica {found.key} is over, the current one is {current}; plan again",
        {"attempt": asked, "current": current, "releasedReason": found.status.placement.released_reason},
    )


def node_refusal(found: Node | None, name: str, epoch: int, *, live: bool) -> Refused | None:
    """Whether the node takes new work by its own state and by the lease book (`epoch` and `live` are the book's)."""
    if found is None:
        return Refused(Reason.NODE_NOT_FOUND, f"node {name} does not exist in this region", {"node": name})
    reason = unschedulable_reason(found)
    if not reason and not live:
        reason = Reason.NODE_UNREACHABLE
    if not reason and found.status.execution.epoch != epoch:
        reason = Reason.NODE_RECONCILING
    if not reason:
        return None
    facts = {
        "node": name,
        "contact": found.status.contact.state.value,
        "epoch": found.status.execution.epoch,
        "leaseEpoch": epoch,
        "fencedEpoch": found.status.fence.fenced_epoch,
    }
    return Refused(reason, f"node {name} takes no new work: {_NODE_SAYS[reason]}", facts)


def override_refusal(found: Node, who: Replica, region: str, avoidances: Sequence[Override]) -> Refused | None:
    override = avoidance_of(
        avoidances, region=region, zone=found.spec.zone, tenant=who.metadata.namespace, workload=who.spec.workload
    )
    if override is None:
        return None
    return Refused(
        Reason.NODE_EXCLUDED_BY_OVERRIDE,
        f"override {override.metadata.name} keeps new work away from node {found.metadata.name}",
        {"node": found.metadata.name, "override": override.metadata.name, "zone": found.spec.zone,
         "expiresAt": override.status.expires_at},
    )  # fmt: skip


def driver_refusal(found: Node, who: Replica) -> Refused | None:
    wanted = who.spec.template.driver.value
    if eligibility.has_driver(found.spec.drivers, wanted):
        return None
    return Refused(
        Reason.DRIVER_MISSING,
        f"node {found.metadata.name} has no {wanted} driver",
        {"node": found.metadata.name, "driver": wanted, "drivers": list(found.spec.drivers)},
    )


def placement_rules_refusal(found: Node, who: Replica, region: str, this_region: Region | None) -> Refused | None:
    """Region, residency, zone and pool, as the workload's rules say (S4)."""
    allowed = who.spec.placement
    tags = this_region.spec.residency if this_region is not None else ()
    broken = ""
    if not eligibility.allows_region(allowed, region):
        broken = f"region {region}"
    elif not eligibility.satisfies_residency(allowed, tags):
        broken = f"residency {', '.join(tags) or 'unknown'} of region {region}"
    elif not eligibility.allows_zone(allowed, found.spec.zone):
        broken = f"zone {found.spec.zone}"
    elif not eligibility.allows_pool(allowed, found.spec.pool):
        broken = f"pool {found.spec.pool}"
    if not broken:
        return None
    return Refused(
        Reason.RESIDENCY_VIOLATED,
        f"the rules of {who.key} forbid {broken}",
        {"node": found.metadata.name, "region": region, "zone": found.spec.zone, "pool": found.spec.pool,
         "residency": list(tags), "forbidden": broken},
    )  # fmt: skip


def tenancy_refusal(found: Node, who: Replica, tenant: Tenant | None) -> Refused | None:
    """A dedicated tenant's work runs on its own nodes only, and nobody else's runs there."""
    dedicated = who.spec.dedicated or is_dedicated(tenant)
    if eligibility.can_use_node(who.metadata.namespace, found.spec.tenant, dedicated=dedicated):
        return None
    whose = f"node {found.metadata.name} belongs to {found.spec.tenant or 'everyone'}"
    return Refused(
        Reason.TENANCY_VIOLATED,
        f"{whose}; tenant {who.metadata.namespace} uses {'its own' if dedicated else 'shared'} nodes only",
        {"node": found.metadata.name, "nodeTenant": found.spec.tenant, "tenant": who.metadata.namespace,
         "dedicated": dedicated},
    )  # fmt: skip
