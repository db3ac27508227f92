"""Builds the objects of a claim: Reservation, Binding and the replica's placement block. Pure.

Reservation and Binding have no owner references: garbage collection must not release a claim without proof of the stop.
The authority deletes them itself, in the transaction that clears the replica's placement.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authority.claims import Claim
from holdfast.model import codec
from holdfast.model.binding import (
    Binding,
    BindingSpec,
    Intent,
    Reservation,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds import Kind, kind_of
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import Object, ObjectMeta, with_condition
from holdfast.model.node import Node
from holdfast.model.placement_rules import required_anti_affinity
from holdfast.model.replica import PlacementBlock, Replica, bound_condition
from holdfast.model.validation import MAX_LABEL
from holdfast.model.volume import BoundVolume
from holdfast.store.contract import Put

_REPLICA: Kind = kind_of(Replica)
_RESERVATION: Kind = kind_of(Reservation)
_BINDING: Kind = kind_of(Binding)


def put_object(kind: Kind, item: Object) -> Put:
    """The write that stores a new state of an object, with its encoding."""
    return Put(kind.store_key(item.metadata.namespace, item.metadata.name), codec.encode(item), item)


def without_revision(meta: ObjectMeta, *, generation: int = 0) -> ObjectMeta:
    """A copy of the metadata without resource version, for a new state of the object."""
    if generation:
        return msgspec.structs.replace(meta, resource_version="", generation=generation)
    return msgspec.structs.replace(meta, resource_version="")


def status_put(kind: Kind, item: Any, status: Any) -> Put:
    """The same object with another status."""
    return put_object(kind, msgspec.structs.replace(item, metadata=without_revision(item.metadata), status=status))


def replica_put(replica: Replica, placement: PlacementBlock) -> Put:
    """The replica with another placement and the condition `Bound` that follows from it."""
    at = placement.bound_at or placement.reserved_at or placement.released_at
    generation = replica.metadata.generation
    status = msgspec.structs.replace(
        replica.status,
        observed_generation=generation,
        conditions=with_condition(replica.status.conditions, bound_condition(placement, generation), at),
        placement=placement,
    )
    return status_put(_REPLICA, replica, status)


def claim_meta(namespace: str, name: str, node: str, workload: str, *, uid: str, created: str) -> ObjectMeta:
    labels = {"holdfast.dev/node": node}
    if len(workload) <= MAX_LABEL:
        labels[LABEL_WORKLOAD] = workload
    return ObjectMeta(name=name, namespace=namespace, uid=uid, generation=1, creation_timestamp=created, labels=labels)


def reservation_put(
    claim: Claim,
    replica: Replica,
    intent: Intent,
    phase: ReservationPhase,
    *,
    uid: str,
    created: str,
    policy: str,
    auto_bind: bool = False,
) -> Put:
    spec = ReservationSpec(
        replica=claim.replica,
        intent=intent,
        node=claim.node,
        resources=replica.spec.template.resources,
        capacity_class=claim.capacity_class,
        devices=claim.devices,
        ports=claim.ports,
        udp_ports=claim.udp_ports,
        victims=claim.victims,
        recovery_slots=claim.recovery_slots,
        policy_revision=policy,
        expires_at=claim.expires_at,
    )
    if phase is not ReservationPhase.CONSUMED:
        spec = msgspec.structs.replace(
            spec,
            workload=replica.spec.workload,
            labels=replica.spec.template.labels,
            priority=replica.spec.priority,
            anti_affinity=required_anti_affinity(replica.spec.placement),
            auto_bind=auto_bind,
        )
    meta = claim_meta(claim.namespace, claim.name, claim.node, replica.spec.workload, uid=uid, created=created)
    return put_object(_RESERVATION, Reservation(meta, spec, ReservationStatus(phase=phase)))


def reservation_change(reservation: Reservation, phase: ReservationPhase, spec: ReservationSpec | None = None) -> Put:
    """The write that changes the Reservation's phase, and its spec if given."""
    status = msgspec.structs.replace(reservation.status, phase=phase)
    moved = msgspec.structs.replace(
        reservation, metadata=without_revision(reservation.metadata), spec=spec or reservation.spec, status=status
    )
    return put_object(_RESERVATION, moved)


def binding_put(
    claim: Claim,
    replica: Replica,
    node: Node,
    intent: Intent,
    *,
    uid: str,
    created: str,
    decision: str,
    policy: str,
    fencing_token: str,
    gang_min: int,
    annotations: dict[str, str],
    volumes: tuple[BoundVolume, ...] = (),
) -> Put:
    spec = BindingSpec(
        replica=claim.replica,
        intent=intent,
        node=claim.node,
        template=replica.spec.template,
        zone=node.spec.zone,
        workload=replica.spec.workload,
        revision=replica.spec.revision,
        resources=replica.spec.template.resources,
        capacity_class=claim.capacity_class,
        devices=claim.devices,
        ports=claim.ports,
        exclusive=replica.spec.exclusive,
        priority=replica.spec.priority,
        max_unavailable=replica.spec.disruption.max_unavailable,
        anti_affinity=required_anti_affinity(replica.spec.placement) if replica.spec.placement.affinity else (),
        gang_min=gang_min,
        epoch=claim.attempt,
        node_epoch=claim.node_epoch,
        decision=decision,
        policy_revision=policy,
        run_until=claim.run_until,
        fencing_token=fencing_token,
        index=replica.spec.index,
        volumes=volumes,
    )
    meta = claim_meta(claim.namespace, claim.name, claim.node, replica.spec.workload, uid=uid, created=created)
    if annotations:
        meta = msgspec.structs.replace(meta, annotations=annotations)
    return put_object(_BINDING, Binding(meta, spec))


def binding_change(binding: Binding, spec: BindingSpec) -> Put:
    """The write that changes the Binding's spec. Its generation rises, so that older agent reports are recognized."""
    meta = without_revision(binding.metadata, generation=binding.metadata.generation + 1)
    return put_object(_BINDING, msgspec.structs.replace(binding, metadata=meta, spec=spec))
