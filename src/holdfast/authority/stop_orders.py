"""Rebuilds a lost Binding from its replica: as a stop order for the agent, and as a claim for the ledger. Pure.

The task of a lost Binding may run until the agent proves its end. Until then the claim counts, so that no other task
gets its resources, devices, ports or volumes. The replica's spec and `status.placement` name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.authority.claims import Claim, capacity_class, claim_from_binding
from holdfast.authority.records import claim_meta
from holdfast.model.binding import Binding, BindingSpec, DesiredRunState, DeviceClaim, Intent, Reservation
from holdfast.model.lifecycle import current_execution
from holdfast.model.placement_rules import required_anti_affinity
from holdfast.model.quantity import GPU, WHOLE_GPU_MILLI, amounts
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.template import template_claims, template_hash
from holdfast.model.volume import BoundVolume, Volume, volume_name


def stop_order(
    replica: Replica,
    volumes: Iterable[Volume],
    *,
    node_epoch: int = 0,
    uid: str = "",
    created: str = "",
    grace_s: float = 0.0,
) -> Binding:
    """The lost Binding, as a request to stop. `volumes` are those of the replica."""
    spec, placed, namespace = replica.spec, replica.status.placement, replica.metadata.namespace
    resources = spec.template.resources
    share = min(amounts(resources).get(GPU, 0), WHOLE_GPU_MILLI)
    order = BindingSpec(
        replica=replica.metadata.name,
        intent=Intent(replica.uid, template_hash(spec.template), placed.attempt),
        node=placed.node,
        template=spec.template,
        zone=placed.zone,
        workload=spec.workload,
        revision=spec.revision,
        resources=resources,
        capacity_class=capacity_class(replica),
        devices=tuple(DeviceClaim(device, share) for device in placed.devices),
        ports=_ports(replica),
        exclusive=spec.exclusive,
        priority=spec.priority,
        anti_affinity=required_anti_affinity(spec.placement),
        epoch=placed.attempt,
        node_epoch=node_epoch,
        desired=DesiredRunState.STOP,
        stop_reason=Reason.CLAIM_LOST.value,
        stop_grace_seconds=grace_s,
        volumes=tuple(BoundVolume(v.spec.claim, v.metadata.name, v.uid, v.spec.size) for v in volumes),
    )
    return Binding(claim_meta(namespace, placed.binding, placed.node, spec.workload, uid=uid, created=created), order)


def lost_claim(replica: Replica, reservation: Reservation | None, volumes: Iterable[Volume]) -> Claim:
    """The claim of a replica whose Binding is not in the store."""
    return claim_from_binding(stop_order(replica, volumes), reservation)


def lost_claims(
    replicas: Iterable[Replica],
    reservations: Iterable[Reservation],
    bindings: Iterable[Binding],
    volumes: Iterable[Volume],
) -> Iterator[Claim]:
    """The claims of all replicas whose Binding is not among these Bindings."""
    stored = {(b.metadata.namespace, b.metadata.name) for b in bindings}
    reserved = {(r.metadata.namespace, r.metadata.name): r for r in reservations}
    held = {(v.metadata.namespace, v.metadata.name): v for v in volumes}
    for replica in replicas:
        key = (replica.metadata.namespace, replica.status.placement.binding)
        if key[1] and key not in stored:
            own = (held.get((key[0], name)) for name in volume_names(replica))
            yield lost_claim(replica, reserved.get(key), [volume for volume in own if volume is not None])


def volume_names(replica: Replica) -> list[str]:
    """Names of the Volumes that the replica uses, as far as they exist."""
    return [volume_name(claim.name, replica.metadata.name) for claim in template_claims(replica.spec.template)]


def _ports(replica: Replica) -> dict[str, int]:
    """The ports of the bound task. An earlier release recorded them only in the agent's report."""
    execution = current_execution(replica)
    return replica.status.placement.ports or (execution.ports if execution is not None else {})
