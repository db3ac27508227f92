"""S1, S2 and S4: one live Binding per replica, one owner per device, no node above its capacity, placement rules met.

Computes usage itself from the stored Bindings and Reservations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.model.binding import (
    Binding,
    BindingSpec,
    CapacityClass,
    DesiredRunState,
    Reservation,
    ReservationPhase,
    claim_name,
)
from holdfast.model.node import Node
from holdfast.model.placement_rules import AffinityRule, Expression, Operator, PlacementRules, TaintEffect
from holdfast.model.quantity import GPU, Amounts, add, amount_text, amounts
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.replica import TERMINAL_PHASES, Replica
from holdfast.model.workload import WorkloadType
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

_OPEN = (ReservationPhase.FIRM,)
"""Phases that hold capacity. A nominated reservation waits for its victims and holds none."""


class PlacementChecker:
    """Checker of one region."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._live: dict[str, dict[str, None]] = {}
        """Live Bindings by replica uid."""
        self._claims: dict[str, dict[str, Any]] = {}
        """Specs that hold capacity, by node and claim."""
        self._named: set[str] = set()
        """All claims that were ever named as victims."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        touched: dict[str, set[str]] = {}
        """Nodes with additional claims, and the resources these ask for. A node that shrinks below its claims does not
        violate S2, and neither does a claim there that asks for other resources."""
        bound: list[Binding] = []
        for change in commit.changes:
            name = change.kind.name
            if name == "Binding":
                self._count_binding(change.key, change.old, change.new)
                if change.old is None:
                    bound.append(change.new)
            elif name == "Reservation" and change.new is not None:
                own = change.new.metadata.namespace
                self._named.update(v if "/" in v else f"{own}/{v}" for v in change.new.spec.victims)
            if name in ("Binding", "Reservation"):
                if (grown := self._count_claim(change.item.metadata, commit.state)) is not None:
                    asked = {resource for resource, amount in amounts(grown.resources).items() if amount}
                    if change.is_stop_order:  # its node may have shrunk since it was bound
                        asked = set()
                    touched.setdefault(grown.node, set()).update(asked)
            elif name == "Replica" and change.new is None:
                yield from self._check_deleted_replica(change)
            elif name == "Replica" and change.old is not None and change.new is not None:
                yield from self._attempt(change)
                yield from self._check_ended(change)
                yield from self._check_preempted(change, commit.state)
            if name == "Binding" and change.old is not None and change.new is not None:
                yield from self._check_stop_request(change, commit.state)
            if name == "Reservation" and change.old is None and change.new.spec.recovery_slots:
                yield from self._check_slot_consumer(change, commit.state)
        for binding in bound:
            yield from self._unique(binding)
            if binding.spec.desired is DesiredRunState.RUN:
                yield from self._rule_findings(binding, commit.state)
        for node, asked in touched.items():
            yield from self._node(node, asked, commit.state)

    def _count_binding(self, key: str, old: Binding | None, new: Binding | None) -> None:
        """A released Binding is not live. It only holds node capacity until the stop is confirmed."""
        if old is not None and not old.spec.quota_released:
            self._live.get(old.spec.intent.replica_uid, {}).pop(key, None)
        if new is not None and not new.spec.quota_released:
            self._live.setdefault(new.spec.intent.replica_uid, {})[key] = None

    def _count_claim(self, meta: Any, state: dict[str, Any]) -> Any:
        """Updates the claim of a Binding and its Reservation. Returns its spec if the node's claims increased, else
        None: binding a firm reservation adds nothing."""
        name = f"{meta.namespace}/{meta.name}"
        before = next((_usage(node, claims[name]) for node, claims in self._claims.items() if name in claims), None)
        binding: Binding | None = state.get(f"/bindings/{name}")
        reservation: Reservation | None = state.get(f"/reservations/{name}")
        known = [held for claims in self._claims.values() if (held := claims.pop(name, None)) is not None]
        spec: Any = None
        if binding is not None:
            spec = binding.spec
        elif any(_is_lost(name, held, state) for held in known):
            spec = known[0]
        elif reservation is not None and reservation.status.phase in _OPEN:
            spec = reservation.spec
        if spec is None:
            return None
        self._claims.setdefault(spec.node, {})[name] = spec
        return spec if _usage(spec.node, spec) != before else None

    def _attempt(self, change: ObservedChange) -> Iterator[Finding]:
        """The attempt never decreases, so that a delayed proposal cannot revive a released claim."""
        old, new = change.old.status.placement.attempt, change.new.status.placement.attempt
        if change.old.uid == change.new.uid and new < old:
            yield "S1", f"{change.key} attempt decreased from {old} to {new}", (change.key,)

    def _check_ended(self, change: ObservedChange) -> Iterator[Finding]:
        """A batch replica that ended is never placed again. A retry is another replica."""
        before, after = change.old.status, change.new.status.placement
        ended = before.execution is not None and before.execution.phase in TERMINAL_PHASES
        was_placed = before.placement.binding or before.placement.reservation
        batch = change.old.uid == change.new.uid and change.new.spec.type is WorkloadType.BATCH
        if batch and ended and not was_placed and (after.binding or after.reservation):
            phase = before.execution.phase.value
            yield "S1", f"{change.key} is placed again although it ended ({phase})", (change.key,)

    def _check_deleted_replica(self, change: ObservedChange) -> Iterator[Finding]:
        """A replica is deleted only after its claim; otherwise the claim would never be released."""
        live = tuple(self._live.get(change.old.uid, ())) if change.old is not None else ()
        if live:
            yield "finalizer", f"{change.key} is deleted while {' and '.join(live)} exists", (change.key, *live)

    def _check_preempted(self, change: ObservedChange, state: dict[str, Any]) -> Iterator[Finding]:
        """A replica is preempted only if a nomination has named its claim as victim, or a member of its gang."""
        new: Replica = change.new
        release_block = new.status.release
        if (
            release_block is None
            or release_block == change.old.status.release
            or release_block.reason != Reason.PREEMPTED
        ):
            return
        claim = f"{new.metadata.namespace}/{claim_name(new.metadata.name, release_block.attempt)}"
        if claim not in self._named and not self._is_gang_named(new, state):
            yield (
                "preemption",
                f"{change.key} is preempted in attempt {release_block.attempt} without a nomination",
                (change.key,),
            )

    def _is_gang_named(self, replica: Replica, state: dict[str, Any]) -> bool:
        namespace = replica.metadata.namespace
        assignment = state.get(f"/assignments/{namespace}/{replica.spec.assignment}")
        if assignment is None or assignment.spec.gang is None:
            return False
        return any(
            item.spec.assignment == replica.spec.assignment
            and any(name.startswith(f"{namespace}/{item.metadata.name}.") for name in self._named)
            for item in state.values()
            if isinstance(item, Replica) and item.metadata.namespace == namespace
        )

    def _check_stop_request(self, change: ObservedChange, state: dict[str, Any]) -> Iterator[Finding]:
        """A stop is requested only for a release of this replica in this attempt."""
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
            what = f"{change.key} is stopped without a release of attempt {new.spec.intent.attempt}"
            yield "identity", what, (change.key, key)

    def _check_slot_consumer(self, change: ObservedChange, state: dict[str, Any]) -> Iterator[Finding]:
        """A recovery slot has one consumer at a time, which is recovery work."""
        new: Reservation = change.new
        if new.spec.capacity_class is not CapacityClass.RECOVERY:
            yield "S2", f"{change.key} consumes {new.spec.recovery_slots} and is not recovery work", (change.key,)
        for key, other in state.items():
            if key == change.key or not isinstance(other, Reservation):
                continue
            both = tuple(
                f"/recoveryslots/{name}" for name in new.spec.recovery_slots if name in other.spec.recovery_slots
            )
            if both:
                what = f"{change.key} consumes {' and '.join(both)}, which {key} also consumes"
                yield "S2", what, (change.key, key, *both)

    def _unique(self, binding: Binding) -> Iterator[Finding]:
        live = tuple(self._live.get(binding.spec.intent.replica_uid, ()))
        if len(live) > 1:
            yield "S1", f"replica {binding.spec.replica} is bound by {' and '.join(live)}", live

    def _node(self, name: str, asked: set[str], state: dict[str, Any]) -> Iterator[Finding]:
        machine: Node | None = state.get(f"/nodes/{name}")
        if machine is None:
            return
        used: Amounts = {}
        devices: dict[str, list[tuple[str, int]]] = {}
        ports: dict[tuple[str, int], str] = {}
        claims = self._held(name, state)
        for claim, spec in claims.items():
            add(used, amounts(spec.resources))
            for device in spec.devices:
                devices.setdefault(device.id, []).append((claim, device.milli))
            for port_name, port in spec.ports.items():
                key = (_protocol(spec, port_name), port)
                if key in ports:
                    yield "S2", f"port {port} of node {name} belongs to {ports[key]} and {claim}", (claim, ports[key])
                ports[key] = claim
        whole = {d.id: d.milli for d in machine.spec.devices}
        for device_id, owners in devices.items():
            if sum(milli for _, milli in owners) > whole.get(device_id, 0):
                what = f"device {device_id} of node {name} is claimed by {owners} (capacity {whole.get(device_id, 0)}m)"
                yield "S2", what, tuple(claim for claim, _ in owners)
        capacity = amounts(machine.spec.capacity)
        for resource, amount in used.items():
            if resource in asked - {GPU} and amount > capacity.get(resource, 0):
                claimed, available = amount_text(resource, amount), amount_text(resource, capacity.get(resource, 0))
                what = f"node {name}: {resource} claims exceed capacity (capacity {available}, claimed {claimed})"
                yield "S2", what, tuple(claims)

    def _held(self, node: str, state: dict[str, Any]) -> dict[str, Any]:
        """The claims of a node. A lost Binding counts while its replica names it."""
        return {
            claim: spec
            for claim, spec in self._claims.get(node, {}).items()
            if not isinstance(spec, BindingSpec) or f"/bindings/{claim}" in state or _is_lost(claim, spec, state)
        }

    def _rule_findings(self, binding: Binding, state: dict[str, Any]) -> Iterator[Finding]:
        """Checks the stored replica's placement rules against the node of the Binding."""
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
        if node.spec.unschedulable or node.spec.drain or node.metadata.terminating:
            yield "S4", f"{about[0]} is on node {binding.spec.node}, which takes no new work", about
        rules, broken = replica.spec.placement, []
        region_object: Region | None = state.get(f"/regions/{self._region}")
        tags = region_object.spec.residency if region_object is not None else ()
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
        broken += _broken_node_rules(rules, node)
        broken += self._broken_affinity(binding, replica, node, state)
        if broken:
            yield "S4", f"{about[0]} violates placement rules: {', '.join(broken)}", about

    def _broken_affinity(self, binding: Binding, replica: Replica, node: Node, state: dict[str, Any]) -> Iterator[str]:
        """Required affinity in both directions. Stopping work still keeps apart. A replica that matches its own rule
        needs no neighbour while no matching replica stays elsewhere."""
        others = list(self._others(binding, state))
        own = replica.spec.template.labels
        for rule in replica.spec.placement.affinity:
            if rule.preferred:
                continue
            found = [o for o in others if (rule.own_replicas or not o.same_workload) and _selects(rule, o.labels)]
            near = [o for o in found if _is_near(o.node, node, rule.topology)]
            if rule.apart and near:
                yield "anti-affinity"
            elif not rule.apart and not any(o.runs for o in near):
                alone = not any(o.runs and not o.victim for o in found)
                if not (rule.own_replicas and alone and _selects(rule, own)):
                    yield "affinity"
        for other in others:
            if any(
                _is_near(other.node, node, guard.topology)
                and _selects(guard, own)
                and (guard.own_replicas or not other.same_workload)
                for guard in other.guards
            ):
                yield "anti-affinity of another replica"

    def _others(self, binding: Binding, state: dict[str, Any]) -> Iterator[_OtherReplica]:
        """The other live claims of the tenant."""
        namespace, workload = binding.metadata.namespace, binding.spec.workload
        for node_name in self._claims:
            machine: Node | None = state.get(f"/nodes/{node_name}")
            if machine is None:
                continue
            for name, spec in self._held(node_name, state).items():
                own = name == f"{namespace}/{binding.metadata.name}"
                if own or not name.startswith(f"{namespace}/") or not spec.workload:
                    continue
                labels, runs = spec.labels if not isinstance(spec, BindingSpec) else spec.template.labels, True
                if isinstance(spec, BindingSpec):
                    if spec.quota_released:
                        continue
                    runs = spec.desired is DesiredRunState.RUN
                same = spec.workload == workload
                yield _OtherReplica(machine, labels, spec.anti_affinity, runs, name in self._named, same)


class _OtherReplica(NamedTuple):
    """A claim that affinity rules may be about. `runs`: it is not stopping. `victim`: a nomination has named it."""

    node: Node
    labels: dict[str, str]
    guards: Sequence[AffinityRule]
    runs: bool
    victim: bool
    same_workload: bool


def _is_lost(claim: str, spec: Any, state: dict[str, Any]) -> bool:
    """Whether the store lost the Binding of this claim: its replica still names it, and its task may run."""
    namespace, name = claim.split("/", 1)
    if not isinstance(spec, BindingSpec) or f"/bindings/{claim}" in state:
        return False
    replica: Replica | None = state.get(f"/replicas/{namespace}/{spec.replica}")
    return replica is not None and replica.status.placement.binding == name


def _broken_node_rules(rules: PlacementRules, node: Node) -> Iterator[str]:
    """Node labels and taints. Every policy of the simulation has these filters."""
    labels = node.metadata.labels
    for key, value in rules.node_selector.items():
        if labels.get(key) != value:
            yield f"label {key}"
    yield from (f"label {key}" for key in _unmet(rules.expressions, labels))
    if rules.node_terms and all(any(_unmet(term.expressions, labels)) for term in rules.node_terms):
        yield "node terms"
    for taint in node.spec.taints:
        tolerated = any(
            t.key in ("", taint.key)
            and (t.exists or not t.key or t.value == taint.value)
            and t.effect in (None, taint.effect)
            for t in rules.tolerations
        )
        if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE and not tolerated:
            yield f"taint {taint.key}"


def _unmet(expressions: Sequence[Expression], labels: dict[str, str]) -> Iterator[str]:
    """Keys of the expressions that these labels do not satisfy."""
    for rule in expressions:
        value, there = labels.get(rule.key, ""), rule.key in labels
        match rule.operator:
            case Operator.IN:
                holds = there and value in rule.values
            case Operator.NOT_IN:
                holds = not there or value not in rule.values
            case Operator.EXISTS:
                holds = there
            case Operator.DOES_NOT_EXIST:
                holds = not there
            case Operator.GT:
                holds = value.isdecimal() and int(value) > int(rule.values[0])
            case Operator.LT:
                holds = value.isdecimal() and int(value) < int(rule.values[0])
        if not holds:
            yield rule.key


def _selects(rule: AffinityRule, labels: dict[str, str]) -> bool:
    return rule.workload_labels.items() <= labels.items() and not any(_unmet(rule.expressions, labels))


def _is_near(other: Node, node: Node, topology: str) -> bool:
    if topology == "node":
        return other.metadata.name == node.metadata.name
    if topology == "zone":
        return other.spec.zone == node.spec.zone
    value = node.metadata.labels.get(topology)
    return value is not None and other.metadata.labels.get(topology) == value


def _protocol(spec: Any, port_name: str) -> str:
    if not isinstance(spec, BindingSpec):
        return "UDP" if port_name in spec.udp_ports else "TCP"
    return next((port.protocol.value for port in spec.template.ports if port.name == port_name), "TCP")


def _usage(node: str, spec: Any) -> tuple[Any, ...]:
    """The resources that a claim takes from its node."""
    return node, amounts(spec.resources), spec.devices, spec.ports
