"""A claim: the node resources and quota of one attempt of one replica. Pure.

A claim is read from a Binding, or from a Reservation that is not bound yet. Both have the same name, so one attempt
never holds two claims. Its quota is released at the stop or the fence, its node resources (capacity,
devices, ports) only on proof that the task has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.binding import Binding, CapacityClass, DesiredRunState, DeviceClaim, Reservation, ReservationPhase
from holdfast.model.placement_eligibility import Labels
from holdfast.model.placement_rules import AffinityRule
from holdfast.model.quantity import STORAGE, Amounts, amounts
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Phase, Replica
from holdfast.model.template import port_keys, udp_ports
from holdfast.model.tenure import needs_tenure
from holdfast.model.volume import Volume, volume_bytes

ENDED_PHASES = frozenset({Phase.STOPPED, Phase.FAILED, Phase.SUCCEEDED})
"""Phases of a Binding whose task has ended or will never start."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """`key` is namespace/name of the Reservation and Binding that record it."""

    key: str
    namespace: str
    name: str
    replica: str
    replica_uid: str
    attempt: int
    node: str
    amounts: Amounts
    capacity_class: CapacityClass
    devices: tuple[DeviceClaim, ...] = ()
    ports: dict[str, int] = {}
    udp_ports: tuple[str, ...] = ()
    """Names of the ports that are UDP ports."""
    node_epoch: int = 0
    bound: bool = False
    nominated: bool = False
    quota_held: bool = True
    victims: tuple[str, ...] = ()
    recovery_slots: tuple[str, ...] = ()
    expires_at: str = ""
    run_until: str = ""
    """Set while the claim is provisional: it spends provisional quota, and the agent stops the task at this time."""
    needs_tenure: bool = False
    """Exclusive work of scope Global: it runs only while the region's tenure lists it."""
    workload: str = ""
    labels: Labels = ()
    anti_affinity: tuple[AffinityRule, ...] = ()
    stopping: bool = False
    """The stop is requested. The task may run until the agent confirms it."""
    volumes: tuple[str, ...] = ()
    """Names of the Volumes that it uses."""

    @property
    def grant_class(self) -> GrantClass:
        return grant_class(self.capacity_class)

    @property
    def port_keys(self) -> list[int]:
        return port_keys(self.ports, self.udp_ports)

    def facts(self) -> dict[str, object]:
        """Facts that identify the winning claim in a refusal."""
        return {
            "claim": self.key,
            "replica": f"{self.namespace}/{self.replica}",
            "replicaUid": self.replica_uid,
            "attempt": self.attempt,
        }


class ClaimRequest(msgspec.Struct, frozen=True, gc=False):
    """A requested claim. Resources and ports come from the replica; only the choice of node comes from the proposal."""

    namespace: str
    name: str
    replica: str
    replica_uid: str
    attempt: int
    amounts: Amounts
    capacity_class: CapacityClass
    gpu_models: tuple[str, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    devices: tuple[DeviceClaim, ...] = ()
    victims: tuple[str, ...] = ()
    recovery_slots: tuple[str, ...] = ()
    nominated: bool = False
    run_until: str = ""
    workload: str = ""
    labels: Labels = ()
    anti_affinity: tuple[AffinityRule, ...] = ()
    udp_ports: tuple[str, ...] = ()
    """Names of the ports that are UDP ports."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class VolumeHold(msgspec.Struct, frozen=True, gc=False):
    """Space of a Volume: it counts on its node and against the quota, whether a claim uses it or not."""

    namespace: str
    name: str
    node: str
    amounts: Amounts
    grant_class: GrantClass

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def hold_of(volume: Volume) -> VolumeHold:
    meta, spec = volume.metadata, volume.spec
    spent_as = GrantClass.RECOVERY if spec.recovery else GrantClass.NORMAL
    return VolumeHold(meta.namespace, meta.name, spec.node, {STORAGE: volume_bytes(spec.size)}, spent_as)


def grant_class(capacity: CapacityClass) -> GrantClass:
    """Recovery work spends the recovery allowance; everything else the normal grant."""
    return GrantClass.RECOVERY if capacity is CapacityClass.RECOVERY else GrantClass.NORMAL


def capacity_class(replica: Replica) -> CapacityClass:
    if replica.spec.reclaimable:
        return CapacityClass.RECLAIMABLE
    return CapacityClass.RECOVERY if replica.spec.purpose is Purpose.RECOVERY else CapacityClass.FIRM


def claim_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def victim_key(namespace: str, victim: str) -> str:
    """Claim key of a victim: `tenant/claim`. A bare name belongs to the proposer's tenant."""
    return victim if "/" in victim else f"{namespace}/{victim}"


def claim_from_reservation(reservation: Reservation) -> Claim:
    spec, meta = reservation.spec, reservation.metadata
    return Claim(
        key=f"{meta.namespace}/{meta.name}",
        namespace=meta.namespace,
        name=meta.name,
        replica=spec.replica,
        replica_uid=spec.intent.replica_uid,
        attempt=spec.intent.attempt,
        node=spec.node,
        amounts=amounts(spec.resources),
        capacity_class=spec.capacity_class,
        devices=spec.devices,
        ports=spec.ports,
        udp_ports=spec.udp_ports,
        nominated=reservation.status.phase is ReservationPhase.NOMINATED,
        victims=spec.victims,
        recovery_slots=spec.recovery_slots,
        expires_at=spec.expires_at,
        workload=spec.workload,
        labels=tuple(sorted(spec.labels.items())),
        anti_affinity=spec.anti_affinity,
    )


def claim_from_binding(binding: Binding, reservation: Reservation | None) -> Claim:
    """The claim of a Binding. Its recovery slots are recorded on the Reservation it consumed."""
    spec, meta = binding.spec, binding.metadata
    return Claim(
        key=f"{meta.namespace}/{meta.name}",
        namespace=meta.namespace,
        name=meta.name,
        replica=spec.replica,
        replica_uid=spec.intent.replica_uid,
        attempt=spec.intent.attempt,
        node=spec.node,
        amounts=amounts(spec.resources),
        capacity_class=spec.capacity_class,
        devices=spec.devices,
        ports=spec.ports,
        udp_ports=udp_ports(spec.template) if spec.ports else (),
        node_epoch=spec.node_epoch,
        bound=True,
        quota_held=not spec.quota_released,
        recovery_slots=reservation.spec.recovery_slots if reservation is not None else (),
        run_until=spec.run_until,
        needs_tenure=needs_tenure(spec.exclusive),
        workload=spec.workload,
        labels=tuple(sorted(spec.template.labels.items())),
        anti_affinity=spec.anti_affinity,
        stopping=spec.desired is DesiredRunState.STOP,
        volumes=tuple(volume.name for volume in spec.volumes),
    )


def claim_from_records(reservation: Reservation | None, binding: Binding | None) -> Claim | None:
    """The claim of a Reservation and Binding of one name; None if neither claims anything."""
    if binding is not None:
        return claim_from_binding(binding, reservation)
    if reservation is None or reservation.status.phase is ReservationPhase.RELEASED:
        return None
    return claim_from_reservation(reservation)


def claims_from_records(reservations: Iterable[Reservation], bindings: Iterable[Binding]) -> list[Claim]:
    """All claims of a region, from its Reservations and Bindings."""
    by_key = {(r.metadata.namespace, r.metadata.name): r for r in reservations}
    bound = [claim_from_binding(b, by_key.pop((b.metadata.namespace, b.metadata.name), None)) for b in bindings]
    unbound = (claim_from_records(r, None) for r in by_key.values())
    return bound + [claim for claim in unbound if claim is not None]
