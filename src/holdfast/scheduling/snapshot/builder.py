"""Builds snapshots incrementally: applies one object change at a time, and freezes the columns on request.

- The cost of a change depends on the change, not on the size of the region.
- Objects of different kinds may arrive in any order. A claim may precede its node and may outlive it.
- The snapshot hash is a sum over objects, so it does not depend on their order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.binding import Binding, Reservation
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Object
from holdfast.model.node import Node
from holdfast.model.override import Override
from holdfast.model.quantity import Amounts, add, amounts
from holdfast.model.quota import GrantClass
from holdfast.model.recovery_slot import RecoverySlot, is_rejected
from holdfast.model.region import Region
from holdfast.model.volume import HeldVolume, Volume
from holdfast.scheduling.snapshot.claim import (
    ClaimKey,
    SnapshotClaim,
    claim_of_binding,
    claim_of_reservation,
    claim_of_volume,
    stamp_of,
    stamp_text,
)
from holdfast.scheduling.snapshot.frozen import Snapshot
from holdfast.scheduling.snapshot.node_table import NodeTable
from holdfast.scheduling.snapshot.usage_table import UsageTable

_MASK = 2**64 - 1


class _Sources(msgspec.Struct):
    """The sources of one claim. Only the strongest is used, so a Binding and its Reservation are one claim."""

    binding: SnapshotClaim | None = None
    reservation: SnapshotClaim | None = None
    assumed: SnapshotClaim | None = None
    counted: SnapshotClaim | None = None

    def record(self) -> SnapshotClaim | None:
        return self.binding or self.reservation

    def strongest(self) -> SnapshotClaim | None:
        record = self.record()
        if record is not None and self.assumed is not None and record.replica_uid != self.assumed.replica_uid:
            # The replica was deleted and recreated under its name. The authority accepts the new claim only after the
            # old one is released: either the old record is stale, or the proposal will be rejected.
            return self.assumed
        if self.binding is not None:
            return self.binding
        if self.reservation is not None:
            if self.assumed is None or self.reservation.workload:
                return self.reservation
            # The Reservation does not name its workload; the assumed claim does.
            return msgspec.structs.replace(self.reservation, workload=self.assumed.workload, labels=self.assumed.labels)
        return self.assumed


class SnapshotBuilder:
    """Not safe for concurrent use: changes and `freeze` run on one event loop, without an await in between."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._residency: tuple[str, ...] | None = None
        self._nodes = NodeTable()
        self._usage = UsageTable(self._nodes)
        self._claims: dict[ClaimKey, _Sources] = {}
        self._uids: dict[str, dict[ClaimKey, None]] = {}
        self._slots: dict[str, RecoverySlot] = {}
        self._overrides: dict[str, Override] = {}
        self._volumes: dict[tuple[str, str], HeldVolume] = {}
        self._protected: dict[str, Amounts] = {}
        self._tenant_use: dict[str, Amounts] = {}
        self._ordinary_use: dict[str, Amounts] = {}
        self._assumed = 0
        self._hash = 0

    def upsert(self, item: Object) -> None:
        """Applies the newest state of a Node, Binding, Reservation, Volume, RecoverySlot, Override, GrantCopy or
        Region."""
        match item:
            case Node():
                self._put_node(item)
            case Binding():
                self._put_claim(ClaimKey(*_names(item)), "binding", claim_of_binding(item))
            case Reservation():
                self._put_claim(ClaimKey(*_names(item)), "reservation", claim_of_reservation(item))
            case Volume():
                self._put_volume(item, item)
            case RecoverySlot():
                self._put_slot(item.metadata.name, item)
            case Override():
                self._put_override(item.metadata.name, item)
            case GrantCopy():
                self._put_protected(item, amounts(item.spec.protected))
            case Region():
                if item.metadata.name == self._region:
                    self._residency = item.spec.residency
            case _:
                raise TypeError(f"{type(item).__name__} {item.key}: this kind is not part of a snapshot")

    def delete(self, item: Object) -> None:
        match item:
            case Node():
                self._drop_node(item.metadata.name)
            case Binding():
                self._put_claim(ClaimKey(*_names(item)), "binding", None)
            case Reservation():
                self._put_claim(ClaimKey(*_names(item)), "reservation", None)
            case Volume():
                self._put_volume(item, None)
            case RecoverySlot():
                self._put_slot(item.metadata.name, None)
            case Override():
                self._put_override(item.metadata.name, None)
            case GrantCopy():
                self._put_protected(item, {})
            case Region():
                if item.metadata.name == self._region:
                    self._residency = None
            case _:
                raise TypeError(f"{type(item).__name__} {item.key}: this kind is not part of a snapshot")

    def assume(self, key: ClaimKey, claim: SnapshotClaim) -> None:
        """Counts a proposal as if it were committed, until its record is observed or `drop_assumption` is called."""
        stamp = stamp_text(f"assumed/{key.namespace}/{key.name}/{claim.node}")
        self._put_claim(key, "assumed", msgspec.structs.replace(claim, stamp=stamp))

    def drop_assumption(self, key: ClaimKey) -> None:
        """Drops the assumption only; does nothing if there is none."""
        if key in self._claims:
            self._put_claim(key, "assumed", None)

    def confirm_assumption(self, key: ClaimKey) -> bool:
        """Drops the assumption if its claim is committed; returns whether it was. The record of a former replica of the
        same name does not count."""
        sources = self._claims.get(key)
        if sources is None or sources.assumed is None or not self.is_recorded(key, sources.assumed.replica_uid):
            return False
        self._put_claim(key, "assumed", None)
        return True

    def has_claim(self, replica_uid: str) -> bool:
        """Whether the replica has a claim, committed or assumed."""
        return replica_uid in self._uids

    def is_assumed(self, key: ClaimKey) -> bool:
        """Whether the claim is still assumed."""
        sources = self._claims.get(key)
        return sources is not None and sources.assumed is not None

    def is_recorded(self, key: ClaimKey, replica_uid: str) -> bool:
        """Whether a Binding or live Reservation of this name is known and belongs to this replica."""
        sources = self._claims.get(key)
        record = sources.record() if sources is not None else None
        return record is not None and record.replica_uid == replica_uid

    def retained_claims(self, namespace: str, workload: str, template: str) -> int:
        """Number of replicas of a workload with this template that have a claim, or an assumed one, and do not stop."""
        return self._usage.retained_claims(namespace, workload, template)

    def total_capacity(self) -> Amounts:
        """Capacity of all nodes, schedulable or not; the denominator of tenant shares."""
        return {name: int(self._nodes.capacity[row].sum()) for name, row in self._nodes.resources.items()}

    def tenant_use(self) -> dict[str, Amounts]:
        """Resources of each tenant's claims, including assumed ones."""
        return {tenant: dict(use) for tenant, use in self._tenant_use.items()}

    def ordinary_use(self, tenant: str) -> Amounts:
        """Resources that count against the tenant's ordinary limit, including assumed claims."""
        return self._ordinary_use.get(tenant, {})

    def node(self, name: str) -> Node | None:
        return self._nodes.node(name)

    def overrides(self) -> tuple[Override, ...]:
        return tuple(self._overrides[name] for name in sorted(self._overrides))

    def freeze(self, revision: int) -> Snapshot:
        """An immutable snapshot of the present state, labelled with `revision`."""
        nodes, usage = self._nodes, self._usage
        top = nodes.top
        placed, stopping = usage.freeze_workloads()
        return Snapshot(
            revision=revision,
            hash=f"{self._hash:016x}",
            region=self._region,
            residency=self._residency,
            overrides=self.overrides(),
            static=nodes.freeze(),
            slots=nodes.frozen_slots(),
            resources=dict(nodes.resources),
            capacity=nodes.capacity[:, :top].copy(),
            firm=usage.firm[:, :top].copy(),
            reclaimable=usage.reclaimable[:, :top].copy(),
            recovery_reserved=usage.recovery_reserved[:, :top].copy(),
            nominated=usage.nominated[:, :top].copy(),
            gpu_free=usage.gpu_free[:, :top].copy(),
            ports=tuple(usage.ports[:top]),
            ports_free=usage.ports_free[:top].copy(),
            open_ports=dict(usage.open_ports),
            placed=placed,
            assumed=self._assumed,
            claims=usage.freeze_claims(),
            guards=usage.freeze_guards(),
            protected=dict(self._protected),
            stopping=stopping,
            nominations=usage.freeze_nominations(),
            volumes=dict(self._volumes),
        )

    def _put_node(self, node: Node) -> None:
        name = node.metadata.name
        old = self._nodes.node(name)
        if old is not None:
            self._stamp(-stamp_of("Node", old))
        self._stamp(stamp_of("Node", node))
        shape_changed = self._nodes.put(node)
        if shape_changed:
            self._usage.refill(name)

    def _drop_node(self, name: str) -> None:
        old = self._nodes.node(name)
        if old is None:
            return
        self._stamp(-stamp_of("Node", old))
        self._usage.clear(name)
        self._nodes.drop(name)

    def _put_override(self, name: str, override: Override | None) -> None:
        old = self._overrides.pop(name, None)
        if old is not None:
            self._stamp(-stamp_of("Override", old))
        if override is not None:
            self._overrides[name] = override
            self._stamp(stamp_of("Override", override))

    def _put_protected(self, copy: GrantCopy, part: Amounts) -> None:
        """Of a GrantCopy only the protected quota is in the snapshot; limit and usage change too often."""
        if copy.spec.grant_class is not GrantClass.NORMAL:
            return
        tenant = copy.metadata.namespace
        old = self._protected.pop(tenant, None)
        if old is not None:
            self._stamp(-_stamp_protected(tenant, old))
        if part:
            self._protected[tenant] = part
            self._stamp(_stamp_protected(tenant, part))

    def _put_volume(self, volume: Volume, now: Volume | None) -> None:
        names = _names(volume)
        if now is None:
            self._volumes.pop(names, None)
        else:
            self._volumes[names] = HeldVolume(names[1], now.spec.node, terminating=now.metadata.terminating)
        claim = claim_of_volume(now) if now is not None else None
        self._put_claim(ClaimKey(names[0], f"volume/{names[1]}"), "reservation", claim)

    def _put_slot(self, name: str, slot: RecoverySlot | None) -> None:
        old = self._slots.pop(name, None)
        if old is not None:
            self._stamp(-stamp_of("RecoverySlot", old))
            self._usage.put_slot(old.spec.node, name, None)
        if slot is None:
            return
        self._slots[name] = slot
        self._stamp(stamp_of("RecoverySlot", slot))
        consumed = slot.status.consumer is not None and bool(slot.status.consumer.replica_uid)
        if not consumed and not is_rejected(slot):  # a consumed slot is counted by the claim that consumes it
            self._usage.put_slot(slot.spec.node, name, tuple(amounts(slot.spec.resources).items()))

    def _put_claim(self, key: ClaimKey, source: str, claim: SnapshotClaim | None) -> None:
        sources = self._claims.get(key)
        if sources is None:
            if claim is None:
                return
            sources = self._claims[key] = _Sources()
        if source == "assumed":
            self._assumed += (claim is not None) - (sources.assumed is not None)
        setattr(sources, source, claim)
        old, new = sources.counted, sources.strongest()
        if new is None:
            del self._claims[key]
        if old is new:
            return
        sources.counted = new
        if old is not None and new is not None and _same_usage(old, new):
            # The committed claim equals the assumed one: the node's usage does not change.
            self._stamp(new.stamp - old.stamp)
            self._usage.restate(key, new)
            return
        if old is not None:
            self._count(key, old, -1)
        if new is not None:
            self._count(key, new, 1)

    def _count(self, key: ClaimKey, claim: SnapshotClaim, sign: int) -> None:
        self._stamp(sign * claim.stamp)
        if sign > 0:
            self._usage.put(key, claim)
        else:
            self._usage.drop(key, claim)
        if not claim.live:
            return
        claimed = dict(claim.amounts)
        use = self._tenant_use.setdefault(claim.namespace, {})
        add(use, claimed, times=sign)
        if claim.ordinary:
            add(self._ordinary_use.setdefault(claim.namespace, {}), claimed, times=sign)
        keys = self._uids.setdefault(claim.replica_uid, {})
        if sign > 0:
            keys[key] = None
        else:
            keys.pop(key, None)
        if not keys:
            del self._uids[claim.replica_uid]
        if not use:
            del self._tenant_use[claim.namespace]

    def _stamp(self, amount: int) -> None:
        self._hash = (self._hash + amount) & _MASK


def _stamp_protected(tenant: str, part: Amounts) -> int:
    return stamp_text(f"protected/{tenant}/{sorted(part.items())}")


def _same_usage(old: SnapshotClaim, new: SnapshotClaim) -> bool:
    """Whether two claims use the same resources in the same way."""
    return msgspec.structs.replace(old, stamp=new.stamp, bound=new.bound) == new


def build_snapshot(region: str, items: Iterable[Object], *, revision: int = 0) -> Snapshot:
    """A snapshot of exactly these objects, for replay and what-if."""
    builder = SnapshotBuilder(region)
    for item in items:
        builder.upsert(item)
    return builder.freeze(revision)


def _names(item: Object) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name
