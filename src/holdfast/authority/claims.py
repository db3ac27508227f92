"""A claim: what one attempt of one replica holds on a node and of its tenant's quota. Pure.

A claim is read from a Binding, or from a Reservation that was not bound yet; both carry the same name, so that one
attempt can never hold two. It has two legs: the quota leg is given up at the stop or the fence, the node leg (capacity,
devices, ports) only when the work is proven to be gone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.binding import Binding, CapacityClass, DeviceClaim, Reservation, ReservationPhase
from holdfast.model.quantity import Amounts, amounts
from holdfast.model.quota import GrantClass
from holdfast.model.replica import Phase, Replica
from holdfast.model.tenure import needs_tenure

ENDED_PHASES = frozenset({Phase.STOPPED, Phase.FAILED, Phase.SUCCEEDED})
"""What the agent says of a Binding once nothing of it runs any more, or ever will."""


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
    node_epoch: int = 0
    bound: bool = False
    nominated: bool = False
    quota_held: bool = True
    victims: tuple[str, ...] = ()
    recovery_slots: tuple[str, ...] = ()
    expires_at: str = ""
    run_until: str = ""
    """Set while it is provisional: it spends the provisional part of the grant, and the agent ends it then."""
    needs_tenure: bool = False
    """Exclusive work of scope Global: it runs only as long as the region's tenure names it."""

    @property
    def grant_class(self) -> GrantClass:
        return grant_class(self.capacity_class)

    def facts(self) -> dict[str, object]:
        """How a refusal names the claim that won."""
        return {
            "claim": self.key,
            "replica": f"{self.namespace}/{self.replica}",
            "replicaUid": self.replica_uid,
            "attempt": self.attempt,
        }


class ClaimRequest(msgspec.Struct, frozen=True, gc=False):
    """What a proposal asks of a node. Amounts and ports come from the replica; only the choice comes from outside."""

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

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


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
    """Victims may be of other tenants: `tenant/claim`. A bare name is of the proposer's own."""
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
        nominated=reservation.status.phase is ReservationPhase.NOMINATED,
        victims=spec.victims,
        recovery_slots=spec.recovery_slots,
        expires_at=spec.expires_at,
    )


def claim_from_binding(binding: Binding, reservation: Reservation | None) -> Claim:
    """The holds a bound claim drew on are recorded on the Reservation it consumed."""
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
        node_epoch=spec.node_epoch,
        bound=True,
        quota_held=not spec.quota_released,
        recovery_slots=reservation.spec.recovery_slots if reservation is not None else (),
        run_until=spec.run_until,
        needs_tenure=needs_tenure(spec.exclusive),
    )


def claim_from_records(reservation: Reservation | None, binding: Binding | None) -> Claim | None:
    """The claim these two records of one name stand for; None when nothing is held."""
    if binding is not None:
        return claim_from_binding(binding, reservation)
    if reservation is None or reservation.status.phase is ReservationPhase.RELEASED:
        return None
    return claim_from_reservation(reservation)


def claims_from_records(reservations: Iterable[Reservation], bindings: Iterable[Binding]) -> list[Claim]:
    """Every claim of a region, from its records."""
    by_key = {(r.metadata.namespace, r.metadata.name): r for r in reservations}
    found = [claim_from_binding(b, by_key.pop((b.metadata.namespace, b.metadata.name), None)) for b in bindings]
    rest = (claim_from_records(r, None) for r in by_key.values())
    return found + [claim for claim in rest if claim is not None]
