"""The planner's view of a claim: resources of one bound, reserved or assumed replica. Derived, never stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.model.binding import Binding, CapacityClass, DesiredRunState, Reservation, ReservationPhase
from holdfast.model.meta import Object
from holdfast.model.node import Node
from holdfast.model.placement_rules import AffinityRule
from holdfast.model.quantity import STORAGE, amounts
from holdfast.model.template import port_keys, port_number, udp_ports
from holdfast.model.volume import Volume, volume_bytes

Labels = tuple[tuple[str, str], ...]

LIVE_PHASES = frozenset({ReservationPhase.NOMINATED, ReservationPhase.FIRM})


class ClaimKey(NamedTuple):
    """Namespace and claim name, shared by a Reservation, its Binding and their assumed claim."""

    namespace: str
    name: str


class SnapshotClaim(msgspec.Struct, frozen=True, gc=False):
    """`ports` are keys of ports (`model.template.port_key`); `open_ports` counts ports that the node will choose.

    A claim that is not `live` only blocks its node's capacity: its replica may be scheduled elsewhere. A claim that is
    `bound` and not `stopping` can be evicted. `victims` are the claims that a nominated claim waits for.
    """

    node: str
    namespace: str
    replica_uid: str
    workload: str = ""
    template_hash: str = ""
    labels: Labels = ()
    amounts: tuple[tuple[str, int], ...] = ()
    reclaimable: bool = False
    nominated: bool = False
    devices: tuple[tuple[str, int], ...] = ()
    ports: tuple[int, ...] = ()
    open_ports: int = 0
    priority: int = 0
    max_unavailable: int = 0
    victims: tuple[str, ...] = ()
    anti_affinity: tuple[AffinityRule, ...] = ()
    bound: bool = False
    stopping: bool = False
    live: bool = True
    ordinary: bool = True
    """Whether it counts against the tenant's ordinary limit. Recovery and provisional work have separate limits."""
    gang_min: int = 0
    """Members of the claim's gang that must run together; 0 if it has none. Gangs are told apart by template hash."""
    stamp: int = 0


def stamp_of(kind: str, item: Object) -> int:
    """The object's contribution to the snapshot hash. It identifies the content, because revisions are unique."""
    meta = item.metadata
    return stamp_text(f"{kind}/{meta.namespace}/{meta.name}/{meta.uid}/{meta.resource_version}")


def stamp_text(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def claim_of_binding(binding: Binding) -> SnapshotClaim:
    """A Binding claims its node until it is deleted, even after its quota is released: deletion needs proof of stop."""
    spec = binding.spec
    live = not spec.quota_released
    return SnapshotClaim(
        node=spec.node,
        namespace=binding.metadata.namespace,
        replica_uid=spec.intent.replica_uid,
        workload=spec.workload if live else "",
        template_hash=spec.intent.template_hash,
        labels=tuple(sorted(spec.template.labels.items())) if live else (),
        amounts=tuple(amounts(spec.resources).items()),
        reclaimable=spec.capacity_class is CapacityClass.RECLAIMABLE,
        devices=tuple((d.id, d.milli) for d in spec.devices),
        ports=tuple(sorted(port_keys(spec.ports, udp_ports(spec.template) if spec.ports else ()))),
        priority=spec.priority,
        max_unavailable=spec.max_unavailable,
        anti_affinity=spec.anti_affinity if live else (),
        gang_min=spec.gang_min if live else 0,
        bound=True,
        stopping=spec.desired is DesiredRunState.STOP,
        live=live,
        ordinary=spec.capacity_class is not CapacityClass.RECOVERY and not spec.run_until,
        stamp=stamp_of("Binding", binding),
    )


def claim_of_reservation(reservation: Reservation) -> SnapshotClaim | None:
    """The claim; None if the Reservation is consumed (its Binding is the claim) or released."""
    spec, phase = reservation.spec, reservation.status.phase
    if phase not in LIVE_PHASES:
        return None
    return SnapshotClaim(
        node=spec.node,
        namespace=reservation.metadata.namespace,
        replica_uid=spec.intent.replica_uid,
        workload=spec.workload,
        template_hash=spec.intent.template_hash,
        labels=tuple(sorted(spec.labels.items())),
        amounts=tuple(amounts(spec.resources).items()),
        reclaimable=spec.capacity_class is CapacityClass.RECLAIMABLE,
        nominated=phase is ReservationPhase.NOMINATED,
        devices=tuple((d.id, d.milli) for d in spec.devices),
        ports=tuple(sorted(port_keys(spec.ports, spec.udp_ports))),
        priority=spec.priority,
        anti_affinity=spec.anti_affinity,
        ordinary=spec.capacity_class is not CapacityClass.RECOVERY,
        victims=tuple(v if "/" in v else f"{reservation.metadata.namespace}/{v}" for v in spec.victims),
        stamp=stamp_of("Reservation", reservation),
    )


def claim_of_volume(volume: Volume) -> SnapshotClaim:
    """The space of a Volume: it is held on its node until the Volume is deleted, and nothing evicts it."""
    return SnapshotClaim(
        node=volume.spec.node,
        namespace=volume.metadata.namespace,
        replica_uid=volume.uid,
        amounts=((STORAGE, volume_bytes(volume.spec.size)),),
        ordinary=not volume.spec.recovery,
        stamp=stamp_of("Volume", volume),
    )


def ports_in_range(node: Node | None, ports: Iterable[int]) -> int:
    """Number of port numbers in the node's range of dynamic ports that these ports (keys) take."""
    low, high = node.spec.port_range if node is not None else (1, 0)
    return len({number for number in map(port_number, ports) if low <= number <= high})
