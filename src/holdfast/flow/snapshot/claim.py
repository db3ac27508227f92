"""A claim: what one placed, reserved or assumed replica takes from a node. Derived from the objects, never stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.model.binding import Binding, CapacityClass, Desired, Reservation, ReservationPhase
from holdfast.model.meta import Object
from holdfast.model.node import Node
from holdfast.model.placement_rules import AffinityRule
from holdfast.model.quantity import amounts

Labels = tuple[tuple[str, str], ...]

LIVE_PHASES = frozenset({ReservationPhase.NOMINATED, ReservationPhase.FIRM})


class ClaimKey(NamedTuple):
    """Namespace and claim name: a Reservation, its Binding and an assumption of both share it."""

    namespace: str
    name: str


class Claim(msgspec.Struct, frozen=True, gc=False):
    """`open_ports` counts ports the node is still to choose; `ports` are known by number.

    A claim that is not `live` only keeps its node's capacity: its replica is free to be placed elsewhere. One that is
    `bound` and not `stopping` can be asked to leave; `victims` are the claims a nominated one waits for.
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
    rank: int = 0
    max_unavailable: int = 0
    victims: tuple[str, ...] = ()
    keeps_off: tuple[AffinityRule, ...] = ()
    bound: bool = False
    stopping: bool = False
    live: bool = True
    ordinary: bool = True
    """Whether it counts against the tenant's ordinary limit: recovery and provisional work have limits of their own."""
    stamp: int = 0


def stamp_of(kind: str, item: Object) -> int:
    """Stands for the object's whole content in the snapshot's hash: a revision is never used twice."""
    meta = item.metadata
    return stamp_text(f"{kind}/{meta.namespace}/{meta.name}/{meta.uid}/{meta.resource_version}")


def stamp_text(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def claim_of_binding(binding: Binding) -> Claim:
    """A Binding claims its node until it is deleted, even after its quota was released: that takes proof."""
    spec = binding.spec
    live = not spec.quota_released
    return Claim(
        node=spec.node,
        namespace=binding.metadata.namespace,
        replica_uid=spec.intent.replica_uid,
        workload=spec.workload if live else "",
        template_hash=spec.intent.template_hash,
        labels=tuple(sorted(spec.template.labels.items())) if live else (),
        amounts=tuple(amounts(spec.resources).items()),
        reclaimable=spec.capacity_class is CapacityClass.RECLAIMABLE,
        devices=tuple((d.id, d.milli) for d in spec.devices),
        ports=tuple(sorted(spec.ports.values())),
        rank=spec.rank,
        max_unavailable=spec.max_unavailable,
        keeps_off=spec.keeps_off if live else (),
        bound=True,
        stopping=spec.desired is Desired.STOP,
        live=live,
        ordinary=spec.capacity_class is not CapacityClass.RECOVERY and not spec.run_until,
        stamp=stamp_of("Binding", binding),
    )


def claim_of_reservation(reservation: Reservation) -> Claim | None:
    """Nothing once it was consumed (the Binding claims) or released."""
    spec, phase = reservation.spec, reservation.status.phase
    if phase not in LIVE_PHASES:
        return None
    return Claim(
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
        ports=tuple(sorted(spec.ports.values())),
        rank=spec.rank,
        keeps_off=spec.keeps_off,
        ordinary=spec.capacity_class is not CapacityClass.RECOVERY,
        victims=tuple(v if "/" in v else f"{reservation.metadata.namespace}/{v}" for v in spec.victims),
        stamp=stamp_of("Reservation", reservation),
    )


def ports_in_range(node: Node | None, ports: Iterable[int]) -> int:
    """How many of these fixed ports are among those that the node gives out itself, and has one fewer of each."""
    low, high = node.spec.port_range if node is not None else (1, 0)
    return sum(low <= port <= high for port in ports)
