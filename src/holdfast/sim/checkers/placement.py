"""S1, S2 and S4: one live binding per replica, one owner per device, no node above its capacity, nothing where it may
not be. Keeps its own sums, from the records alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import Binding, CapacityClass, Reservation, ReservationPhase, claim_name
from holdfast.model.node import Node
from holdfast.model.quantity import GPU, Amounts, add, amount_text, amounts
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.replica import Replica
from holdfast.sim.checkers import Changed, Commit, Found

_OPEN = (ReservationPhase.FIRM,)
"""A nominated one waits for its victims to leave, and takes nothing until then."""


class PlacementChecker:
    """The records of one region, as they are on disk."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._live: dict[str, dict[str, None]] = {}
        """Live bindings by the uid of their replica."""
        self._claims: dict[str, dict[str, Any]] = {}
        """By node, then by claim: the spec that holds the node's capacity."""
        self._named: set[str] = set()
        """Claims that were ever to make way for a nominated one."""

    def check(self, commit: Commit) -> Iterator[Found]:
        touched: dict[str, None] = {}
        """Nodes that something more is claimed of. A node that shrank under its claims breaks nothing by it."""
        bound: list[Binding] = []
        for change in commit.changed:
            name = change.kind.name
            if name == "Binding":
                self._count_binding(change.key, change.old, change.new)
                if change.old is None:
                    bound.append(change.new)
            elif name == "Reservation" and change.new is not None:
                own = change.new.metadata.namespace
                self._named.update(v if "/" in v else f"{own}/{v}" for v in change.new.spec.victims)
            if name in ("Binding", "Reservation"):
                if grown := self._count_claim(change.item.metadata, commit.state):
                    touched[grown] = None
            elif name == "Replica" and change.new is None:
                yield from self._left_nothing(change)
            elif name == "Replica" and change.old is not None and change.new is not None:
                yield from self._attempt(change)
                yield from self._made_way(change)
            if name == "Binding" and change.old is not None and change.new is not None:
                yield from self._asked_to_stop(change, commit.state)
            if name == "Reservation" and change.old is None and change.new.spec.holds:
                yield from self._drawn_once(change, commit.state)
        for binding in bound:
            yield from self._unique(binding)
            yield from self._allowed(binding, commit.state)
        for node in touched:
            yield from self._node(node, commit.state)

    def _count_binding(self, key: str, old: Binding | None, new: Binding | None) -> None:
        """A released one only keeps the node's capacity until the work is proven gone."""
        if old is not None and not old.spec.quota_released:
            self._live.get(old.spec.intent.replica_uid, {}).pop(key, None)
        if new is not None and not new.spec.quota_released:
            self._live.setdefault(new.spec.intent.replica_uid, {})[key] = None

    def _count_claim(self, meta: Any, state: dict[str, Any]) -> str:
        """A binding and its reservation are one claim, under one name. Answers the node that something more is claimed
        of: none, where what was firm is bound, though the node may have shrunk under it meanwhile."""
        name = f"{meta.namespace}/{meta.name}"
        before = next((_taken(node, claims[name]) for node, claims in self._claims.items() if name in claims), None)
        binding: Binding | None = state.get(f"/bindings/{name}")
        held: Reservation | None = state.get(f"/reservations/{name}")
        for claims in self._claims.values():
            claims.pop(name, None)
        spec: Any = None
        if binding is not None:
            spec = binding.spec
        elif held is not None and held.status.phase in _OPEN:
            spec = held.spec
        if spec is None:
            return ""
        self._claims.setdefault(spec.node, {})[name] = spec
        return str(spec.node) if _taken(spec.node, spec) != before else ""

    def _attempt(self, change: Changed) -> Iterator[Found]:
        """The attempt only rises: what was released is not resurrected by a delayed proposal."""
        old, new = change.old.status.placement.attempt, change.new.status.placement.attempt
        if change.old.uid == change.new.uid and new < old:
            yield "S1", f"{change.key} went back from attempt {old} to {new}", (change.key,)

    def _left_nothing(self, change: Changed) -> Iterator[Found]:
        """A replica is gone only when its place is: else nobody would ever give that up."""
        live = tuple(self._live.get(change.old.uid, ())) if change.old is not None else ()
        if live:
            yield "finalizer", f"{change.key} is gone while {' and '.join(live)} keeps its place", (change.key, *live)

    def _made_way(self, change: Changed) -> Iterator[Found]:
        """Nobody makes way unless a place is kept for whoever wants it: a nomination names each claim that is to go."""
        new: Replica = change.new
        asked = new.status.release
        if asked is None or asked == change.old.status.release or asked.reason != Reason.PREEMPTED:
            return
        claim = f"{new.metadata.namespace}/{claim_name(new.metadata.name, asked.attempt)}"
        if claim not in self._named:
            yield (
                "preemption",
                f"{change.key} makes way in attempt {asked.attempt}, and no place is kept",
                (change.key,),
            )

    def _asked_to_stop(self, change: Changed, state: dict[str, Any]) -> Iterator[Found]:
        """A place is given up because this very replica, in this very attempt, is to leave it."""
        old: Binding = change.old
        new: Binding = change.new
        if old.spec.desired is new.spec.desired or new.spec.quota_released:
            return
        key = f"/replicas/{new.metadata.namespace}/{new.spec.replica}"
        replica: Replica | None = state.get(key)
        if replica is None or replica.uid != new.spec.intent.replica_uid:
            return
        release = replica.status.release
        if release is None or release.attempt != new.spec.intent.attempt:
            what = f"{change.key} is told to stop, and nobody decided that attempt {new.spec.intent.attempt} ends"
            yield "identity", what, (change.key, key)

    def _drawn_once(self, change: Changed, state: dict[str, Any]) -> Iterator[Found]:
        """A recovery place is used by one claim at a time, and by recovery only."""
        new: Reservation = change.new
        if new.spec.capacity_class is not CapacityClass.RECOVERY:
            yield "S2", f"{change.key} draws {new.spec.holds}, and is no recovery", (change.key,)
        for key, other in state.items():
            if key == change.key or not isinstance(other, Reservation):
                continue
            both = tuple(f"/holds/{name}" for name in new.spec.holds if name in other.spec.holds)
            if both:
                yield "S2", f"{change.key} draws {' and '.join(both)}, which {key} draws", (change.key, key, *both)

    def _unique(self, binding: Binding) -> Iterator[Found]:
        live = tuple(self._live.get(binding.spec.intent.replica_uid, ()))
        if len(live) > 1:
            yield "S1", f"replica {binding.spec.replica} is bound by {' and '.join(live)}", live

    def _node(self, name: str, state: dict[str, Any]) -> Iterator[Found]:
        machine: Node | None = state.get(f"/nodes/{name}")
        if machine is None:
            return
        used: Amounts = {}
        devices: dict[str, list[tuple[str, int]]] = {}
        ports: dict[int, str] = {}
        claims = self._claims.get(name, {})
        for claim, spec in claims.items():
            add(used, amounts(spec.resources))
            for device in spec.devices:
                devices.setdefault(device.id, []).append((claim, device.milli))
            for port in spec.ports.values():
                if port in ports:
                    yield "S2", f"port {port} of node {name} belongs to {ports[port]} and {claim}", (claim, ports[port])
                ports[port] = claim
        whole = {d.id: d.milli for d in machine.spec.devices}
        for device_id, owners in devices.items():
            if sum(milli for _, milli in owners) > whole.get(device_id, 0):
                what = (
                    f"device {device_id} of node {name} is claimed by {owners}, beyond its {whole.get(device_id, 0)}m"
                )
                yield "S2", what, tuple(claim for claim, _ in owners)
        capacity = amounts(machine.spec.capacity)
        for resource, amount in used.items():
            if resource != GPU and amount > capacity.get(resource, 0):
                claimed, there = amount_text(resource, amount), amount_text(resource, capacity.get(resource, 0))
                what = f"node {name} has {claimed} of {resource} claimed, and {there} in all"
                yield "S2", what, tuple(claims)

    def _allowed(self, binding: Binding, state: dict[str, Any]) -> Iterator[Found]:
        """Judged by the rules of the replica as it is on disk, and by the node it was bound to."""
        namespace = binding.metadata.namespace
        about = (f"/bindings/{namespace}/{binding.metadata.name}", f"/replicas/{namespace}/{binding.spec.replica}")
        replica: Replica | None = state.get(about[1])
        node: Node | None = state.get(f"/nodes/{binding.spec.node}")
        if replica is None or replica.uid != binding.spec.intent.replica_uid:
            yield "S4", f"{about[0]} is for a replica that does not exist", about
            return
        if node is None:
            yield "S4", f"{about[0]} is on node {binding.spec.node}, which does not exist", about
            return
        rules, broken = replica.spec.placement, []
        here: Region | None = state.get(f"/regions/{self._region}")
        tags = here.spec.residency if here is not None else ()
        if rules.regions and self._region not in rules.regions:
            broken.append(f"region {self._region}")
        if self._region in rules.excluded_regions:
            broken.append(f"region {self._region}")
        if rules.residency and not set(rules.residency) & set(tags):
            broken.append(f"residency {', '.join(tags) or 'unknown'}")
        if rules.zones and node.spec.zone not in rules.zones:
            broken.append(f"zone {node.spec.zone}")
        if rules.pools and node.spec.pool not in rules.pools:
            broken.append(f"pool {node.spec.pool}")
        if node.spec.tenant != (namespace if replica.spec.dedicated else ""):
            broken.append(f"tenancy of {node.spec.tenant or 'everyone'}")
        if broken:
            yield "S4", f"{about[0]} is where its rules forbid: {', '.join(broken)}", about


def _taken(node: str, spec: Any) -> tuple[Any, ...]:
    """What a claim takes of its node."""
    return node, amounts(spec.resources), spec.devices, spec.ports
