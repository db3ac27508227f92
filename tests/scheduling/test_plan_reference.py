"""The planner against a slow reference in plain Python that scores every node for every replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import factories

from holdfast.model.binding import Binding, BindingSpec, CapacityClass, DesiredRunState, DeviceClaim, Intent
from holdfast.model.node import Device, Node, node_capacity, unschedulable_reason
from holdfast.model.placement_rules import (
    AffinityRule,
    Expression,
    NodePreference,
    NodeTerm,
    Operator,
    PlacementRules,
    SpreadRule,
    Taint,
    TaintEffect,
    Toleration,
    matches_expression,
    tolerates,
)
from holdfast.model.quantity import Amount, amounts
from holdfast.model.reasons import Reason
from holdfast.model.recovery_slot import RecoverySlot, RecoverySlotSpec
from holdfast.model.scheduler_policy import PolicyRules, ScoreName, WeightedScore
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Port, Protocol, Template
from holdfast.model.workload import Gang
from holdfast.scheduling.plan import plan, requirements_of, tie_number
from holdfast.scheduling.plan.planner import _PlanRun
from holdfast.scheduling.plan.preemption import PreemptionPlanner
from holdfast.scheduling.plan.victim_selection import UNKNOWN_SIBLINGS
from holdfast.scheduling.snapshot import SnapshotBuilder
from holdfast.scheduling.snapshot.builder import build_snapshot

ZONES = ("a", "b", "c")
HEADROOMS: list[dict[str, int] | None] = [
    None,
    None,
    {"cpu": 3_000, "memory": 6 * 2**30, "gpu": 1_300},
    {"cpu": 100_000, "memory": 2**40},
    {"cpu": 100_000},
    {},
]
"""Quota headrooms of the tenant; None is unlimited."""


def has_quota(headroom: dict[str, int] | None, amounts: dict[str, int]) -> bool:
    """Whether the headroom covers one more replica. Without a grant it covers nothing, not even empty amounts."""
    return headroom is None or (
        bool(headroom) and all(headroom.get(name, 0) >= amount for name, amount in amounts.items())
    )


class ReferencePlanner:
    """The planner without indexes: every question scans all claims."""

    def __init__(self, nodes: list[Node], claims: list[dict[str, Any]], slots: Sequence[RecoverySlot]) -> None:
        self.nodes, self.claims, self.slots = nodes, claims, slots

    def on(self, node: Node) -> list[dict[str, Any]]:
        return [c for c in self.claims if c["node"] == node.metadata.name]

    def used(self, node: Node, resource: str, *, reclaimable: bool | None = None) -> int:
        return sum(
            c["amounts"].get(resource, 0)
            for c in self.on(node)
            if reclaimable is None or c["reclaimable"] is reclaimable
        )

    def fits(self, node: Node, needs: dict[str, Any]) -> bool:
        """The capacity rule of the design, word by word."""
        capacity = node_capacity(node)
        for resource, amount in needs["amounts"].items():
            firm = self.used(node, resource, reclaimable=False)
            reclaimable_used = self.used(node, resource, reclaimable=True)
            reserved = sum(
                amounts(h.spec.resources).get(resource, 0) for h in self.slots if h.spec.node == node.metadata.name
            )
            if needs["reclaimable"]:
                if firm + reclaimable_used + amount > capacity.get(resource, 0):
                    return False
            elif max(firm + reserved, firm + reclaimable_used) + amount > capacity.get(resource, 0):
                return False
        return True

    def gpus_free(self, node: Node) -> dict[str, int]:
        free = {d.id: d.milli for d in node.spec.devices}
        for claim in self.on(node):
            for device, milli in claim["devices"]:
                free[device] -= milli
        return free

    def devices(self, node: Node, needs: dict[str, Any]) -> tuple[tuple[str, int], ...] | None:
        milli = needs["amounts"].get("gpu", 0)
        if not milli:
            return ()
        free = self.gpus_free(node)
        matching = [d.id for d in node.spec.devices if not needs["models"] or d.model in needs["models"]]
        if milli >= 1000:
            whole = [i for i in matching if free[i] >= 1000][: milli // 1000]
            return tuple((i, 1000) for i in whole) if len(whole) == milli // 1000 else None
        fitting = sorted((free[i], list(free).index(i), i) for i in matching if free[i] >= milli)
        return ((fitting[0][2], milli),) if fitting else None

    def eligible(self, node: Node, needs: dict[str, Any]) -> bool:
        rules: PlacementRules = needs["placement"]
        return (
            not unschedulable_reason(node)
            and (not rules.zones or node.spec.zone in rules.zones)
            and all(node.metadata.labels.get(k) == v for k, v in rules.node_selector.items())
            and all(matches_expression(e, node.metadata.labels) for e in rules.expressions)
            and (
                not rules.node_terms
                or any(
                    all(matches_expression(e, node.metadata.labels) for e in t.expressions) for t in rules.node_terms
                )
            )
            and not any(
                t.effect is not TaintEffect.PREFER_NO_SCHEDULE and not tolerates(rules.tolerations, t)
                for t in node.spec.taints
            )
        )

    def own_replicas(self, node: Node, needs: dict[str, Any]) -> int:
        return sum(c["workload"] == needs["workload"] and not c.get("stopping") for c in self.on(node))

    def zone_counts(self, needs: dict[str, Any]) -> dict[str, int]:
        zones = {n.spec.zone for n in self.nodes if self.eligible(n, needs)}
        return {z: sum(self.own_replicas(n, needs) for n in self.nodes if n.spec.zone == z) for z in sorted(zones)}

    def domain(self, node: Node, topology: str) -> str | None:
        if topology == "node":
            return node.metadata.name
        return node.spec.zone if topology == "zone" else node.metadata.labels.get(topology)

    def spread_ok(self, node: Node, needs: dict[str, Any]) -> bool:
        for rule in needs["placement"].spread:
            if rule.preferred:
                continue
            domains = {self.domain(n, rule.topology) for n in self.nodes if self.eligible(n, needs)} - {None}
            counts = {
                d: sum(self.own_replicas(n, needs) for n in self.nodes if self.domain(n, rule.topology) == d)
                for d in domains
            }
            fewest = min(counts.values(), default=0) if len(counts) >= rule.min_domains else 0
            own = self.domain(node, rule.topology)
            if own is None or counts[own] + 1 - fewest > rule.max_skew:
                return False
        return True

    def near(self, node: Node, topology: str) -> list[Node]:
        own = self.domain(node, topology)
        return [n for n in self.nodes if own is not None and self.domain(n, topology) == own]

    def affinity_matches(self, node: Node, needs: dict[str, Any], rule: AffinityRule) -> bool:
        return any(self.matches(c, needs, rule) for n in self.near(node, rule.topology) for c in self.on(n))

    def matches(self, claim: dict[str, Any], needs: dict[str, Any], rule: AffinityRule) -> bool:
        return (
            (rule.own_replicas or claim["workload"] != needs["workload"])
            and rule.workload_labels.items() <= claim["labels"].items()
            and (rule.apart or not claim.get("stopping"))
        )

    def affinity_ok(self, node: Node, needs: dict[str, Any], rule: AffinityRule) -> bool:
        """Required affinity. The first of the replicas that match their own rule needs no neighbour."""
        if self.affinity_matches(node, needs, rule):
            return not rule.apart
        if rule.apart or not rule.own_replicas or not rule.workload_labels.items() <= needs["labels"].items():
            return rule.apart
        return self.domain(node, rule.topology) is not None and not any(
            self.matches(c, needs, rule) for c in self.claims
        )

    def is_guarded(self, node: Node, needs: dict[str, Any]) -> bool:
        """Whether a placed replica has anti-affinity against this one."""
        for other in self.nodes:
            for claim in self.on(other):
                for rule in claim.get("apart", ()):
                    near = other in self.near(node, rule.topology)
                    about = rule.own_replicas or claim["workload"] != needs["workload"]
                    if near and about and rule.workload_labels.items() <= needs["labels"].items():
                        return True
        return False

    def feasible(self, node: Node, needs: dict[str, Any]) -> bool:
        return (
            self.eligible(node, needs)
            and all(self.affinity_ok(node, needs, r) for r in needs["placement"].affinity if not r.preferred)
            and not self.is_guarded(node, needs)
            and self.fits(node, needs)
            and self.devices(node, needs) is not None
            and not any(p in c["ports"] for c in self.on(node) for p in needs["ports"] if p[1])
        )

    def score(self, node: Node, needs: dict[str, Any], rules: PolicyRules) -> int:
        capacity = node_capacity(node)
        shares = []
        for resource in sorted({"cpu", "memory", *needs["amounts"]}):
            used = self.used(node, resource) + needs["amounts"].get(resource, 0)
            shares.append(used * 100 // max(capacity.get(resource, 0), 1))
        zones = self.zone_counts(needs)
        disliked = sum(
            t.effect is TaintEffect.PREFER_NO_SCHEDULE and not tolerates(needs["placement"].tolerations, t)
            for t in node.spec.taints
        )
        even = max(0, min(100, 100 - (max(shares) - min(shares))))
        free = self.gpus_free(node)
        milli = needs["amounts"].get("gpu", 0)
        any_gpus = any(n.spec.devices for n in self.nodes)
        if any_gpus and not milli:
            even = even // 2 if any(v > 0 for v in free.values()) else even
        elif any_gpus and milli < 1000:
            models = {d.id: d.model for d in node.spec.devices}
            begun = [
                i
                for i, v in free.items()
                if milli <= v < 1000 and (not needs["models"] or models[i] in needs["models"])
            ]
            even = even if begun else even // 2
        preferred = [r for r in needs["placement"].affinity if r.preferred]
        value = {
            ScoreName.BALANCE: max(0, min(100, 100 - max(shares))),
            ScoreName.PACKING: max(0, min(100, sum(shares) // len(shares))),
            ScoreName.SPREAD: 75 // (1 + zones[node.spec.zone] - min(zones.values()))
            + 25 // (1 + self.own_replicas(node, needs)),
            ScoreName.TAINTS: max(0, 100 - 25 * disliked),
            ScoreName.FRAGMENTATION: even,
            ScoreName.LOCALITY: (
                sum(self.affinity_matches(node, needs, r) is not r.apart for r in preferred)
                + sum(
                    p.weight * all(matches_expression(e, node.metadata.labels) for e in p.expressions)
                    for p in needs["placement"].preferred_nodes
                )
            )
            * 100
            // max(1, len(preferred) + sum(p.weight for p in needs["placement"].preferred_nodes)),
        }
        return sum(value[s.name] * s.weight for s in rules.scores)

    def place(self, needs: dict[str, Any], rules: PolicyRules, seed: int) -> tuple[str, int] | None:
        allowed = [n for n in self.nodes if self.feasible(n, needs) and self.spread_ok(n, needs)]
        if not allowed:
            return None
        ranked = sorted(
            allowed, key=lambda n: (-self.score(n, needs, rules), tie_number(seed, n.metadata.name), n.metadata.name)
        )
        best = ranked[0]
        score = self.score(best, needs, rules)
        self.claims.append(
            {
                "node": best.metadata.name,
                "amounts": needs["amounts"],
                "reclaimable": needs["reclaimable"],
                "devices": self.devices(best, needs),
                "ports": needs["ports"],
                "workload": needs["workload"],
                "labels": needs["labels"],
                "apart": [r for r in needs["placement"].affinity if r.apart and not r.preferred],
            }
        )
        return best.metadata.name, score


# Generators

taints = st.sampled_from(
    [
        (),
        (),
        (Taint(key="dirty"),),
        (Taint(key="slow", effect=TaintEffect.PREFER_NO_SCHEDULE),),
        (Taint(key="slow", effect=TaintEffect.PREFER_NO_SCHEDULE), Taint(key="odd", value="1")),
    ]
)


@st.composite
def node_lists(draw: Any) -> list[Node]:
    made = []
    zones = draw(st.sampled_from([ZONES, ZONES, ("a",)]))
    for number in range(draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 12]))):
        devices = tuple(
            Device(id=f"g{i}", model=draw(st.sampled_from(["x", "y"])))
            for i in range(draw(st.sampled_from([0, 0, 1, 3])))
        )
        item = factories.node(
            f"n{number}",
            zone=draw(st.sampled_from(zones)),
            capacity={"cpu": draw(st.integers(1, 6)), "memory": f"{draw(st.integers(1, 8))}Gi"},
            devices=devices,
            taints=draw(taints),
            unschedulable=draw(st.sampled_from([False, False, False, True])),
        )
        labels = draw(st.sampled_from([{}, {"disk": "ssd"}, {"disk": "hdd", "rack": "7"}, {"rack": "9"}]))
        made.append(msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels=labels)))
    return made


placements = st.builds(
    PlacementRules,
    zones=st.sampled_from([(), (), ("a", "b")]),
    node_selector=st.sampled_from([{}, {}, {"disk": "ssd"}]),
    expressions=st.sampled_from(
        [
            (),
            (),
            (Expression(key="rack", operator=Operator.GT, values=("7",)),),
            (Expression(key="disk", operator=Operator.NOT_IN, values=("hdd",)),),
        ]
    ),
    node_terms=st.sampled_from(
        [
            (),
            (),
            (
                NodeTerm(expressions=(Expression(key="disk", operator=Operator.IN, values=("ssd",)),)),
                NodeTerm(expressions=(Expression(key="rack", operator=Operator.GT, values=("7",)),)),
            ),
        ]
    ),
    preferred_nodes=st.sampled_from(
        [
            (),
            (),
            (
                NodePreference(expressions=(Expression(key="disk", operator=Operator.IN, values=("ssd",)),)),
                NodePreference(expressions=(Expression(key="rack", operator=Operator.EXISTS),), weight=3),
            ),
        ]
    ),
    tolerations=st.sampled_from([(), (Toleration(key="dirty", exists=True),), (Toleration(key="", exists=True),)]),
    spread=st.sampled_from(
        [
            (),
            (),
            (SpreadRule(topology="zone"),),
            (SpreadRule(topology="node"),),
            (SpreadRule(topology="zone", max_skew=2), SpreadRule(topology="node", max_skew=2)),
            (SpreadRule(topology="node", preferred=True), SpreadRule(topology="zone")),
            (SpreadRule(topology="rack"),),
            (SpreadRule(topology="disk", max_skew=2), SpreadRule(topology="zone", max_skew=3)),
            (SpreadRule(topology="zone", min_domains=3),),
            (SpreadRule(topology="node", max_skew=2, min_domains=4),),
            (SpreadRule(topology="disk", min_domains=3, max_skew=2), SpreadRule(topology="node")),
        ]
    ),
    affinity=st.sampled_from(
        [
            (),
            (),
            (AffinityRule(workload_labels={"app": "old"}),),
            (AffinityRule(workload_labels={"app": "old"}, topology="zone", apart=True),),
            (AffinityRule(workload_labels={"app": "w0"}, topology="zone", preferred=True),),
            (AffinityRule(workload_labels={"own": "yes"}, topology="zone", own_replicas=True),),
            (AffinityRule(workload_labels={"own": "yes"}, own_replicas=True),),
            (AffinityRule(workload_labels={"own": "yes"}, apart=True, own_replicas=True),),
            (AffinityRule(workload_labels={"own": "yes"}, topology="zone", apart=True, own_replicas=True),),
            (AffinityRule(workload_labels={"own": "yes"}, topology="zone", preferred=True, own_replicas=True),),
            (AffinityRule(workload_labels={"own": "yes"}, apart=True, preferred=True, own_replicas=True),),
            (AffinityRule(workload_labels={"app": "w1"}, topology="zone", own_replicas=True),),
            (AffinityRule(workload_labels={"app": "old"}, topology="rack"),),
            (AffinityRule(workload_labels={"app": "old"}, topology="disk", apart=True),),
            (AffinityRule(workload_labels={"own": "yes"}, topology="disk", own_replicas=True),),
            (AffinityRule(workload_labels={"own": "yes"}, topology="rack", apart=True, own_replicas=True),),
            (AffinityRule(workload_labels={"app": "old"}, topology="disk", preferred=True),),
        ]
    ),
)
resources = st.sampled_from(
    [
        {"cpu": "500m", "memory": "1Gi"},
        {"cpu": "1"},
        {"memory": "3Gi"},
        {"cpu": "250m", "gpu": "1"},
        {"gpu": "300m"},
        {"gpu": "2"},
        {},
    ]
)


@st.composite
def request_lists(draw: Any) -> list[SchedulingRequest]:
    made = []
    for number in range(draw(st.integers(1, 3))):
        drawn_resources = draw(resources)
        template = Template(
            command=("x",),
            resources=drawn_resources,
            gpu_models=draw(st.sampled_from([(), ("x",)])) if "gpu" in drawn_resources else (),
            ports=draw(
                st.sampled_from(
                    [
                        (),
                        (),
                        (Port(name="p", port=8080),),
                        (Port(name="p", port=8080, protocol=Protocol.UDP),),
                        (Port(name="p", port=8080), Port(name="q", port=8080, protocol=Protocol.UDP)),
                    ]
                )
            ),
            labels={"app": f"w{number}", "own": draw(st.sampled_from(["yes", "yes", "no"]))},
        )
        members = tuple(
            RequestMember(name=f"r{number}-{i}", uid=f"u{number}-{i}")
            for i in range(draw(st.one_of(st.just(1), st.integers(1, 14))))
        )
        spec = SchedulingRequestSpec(
            workload=f"w{number}",
            assignment="x",
            revision="1",
            template=template,
            placement=draw(placements),
            reclaimable=draw(st.booleans()),
            members=members,
        )
        made.append(SchedulingRequest(metadata=factories.meta(f"q{number}", "acme"), spec=spec))
    return made


@st.composite
def old_bindings(draw: Any, nodes: list[Node]) -> list[Binding]:
    made: list[Binding] = []
    for number in range(draw(st.sampled_from([0, 1, 2, 3, 4, 6, 12]))):
        where = draw(st.sampled_from(nodes))
        devices: tuple[DeviceClaim, ...] = ()
        if where.spec.devices and draw(st.booleans()):
            devices = (DeviceClaim(id=where.spec.devices[0].id, milli=100),)
        ports = draw(
            st.sampled_from([(), (), (), (Port("x", 8080, Protocol.UDP),), (Port("x", 8080),)])
            if all(b.spec.node != where.metadata.name for b in made)
            else st.just(())
        )
        spec = BindingSpec(
            replica=f"o{number}",
            intent=Intent(replica_uid=f"o{number}", template_hash="h", attempt=1),
            node=where.metadata.name,
            template=Template(labels={"app": "old", "own": draw(st.sampled_from(["no", "no", "yes"]))}, ports=ports),
            ports={port.name: port.port for port in ports},
            workload=draw(st.sampled_from(["w0", "z"])),
            resources={"cpu": "300m", **({"gpu": "100m"} if devices else {})},
            devices=devices,
            capacity_class=draw(st.sampled_from([CapacityClass.FIRM, CapacityClass.RECLAIMABLE])),
            desired=draw(st.sampled_from([DesiredRunState.RUN, DesiredRunState.RUN, DesiredRunState.STOP])),
        )
        made.append(Binding(metadata=factories.meta(f"o{number}.1", "acme"), spec=spec))
    return made


def _web_request(spread: tuple[SpreadRule, ...], members: int) -> SchedulingRequest:
    spec = SchedulingRequestSpec(
        workload="web",
        assignment="web",
        revision="1",
        template=Template(command=("serve",), resources={"cpu": "1"}),
        placement=PlacementRules(spread=spread),
        members=tuple(RequestMember(f"web-new-{n}", f"uid-web-new-{n}") for n in range(members)),
    )
    return SchedulingRequest(factories.meta("web", "acme"), spec)


def _bound(name: str, workload: str, node: str, cpu: str = "1", **fields: Any) -> Binding:
    spec = BindingSpec(
        replica=name,
        intent=Intent(replica_uid=f"uid-{name}", template_hash="h", attempt=1),
        node=node,
        template=Template(resources={"cpu": cpu}),
        workload=workload,
        resources={"cpu": cpu},
        **fields,
    )
    return Binding(metadata=factories.meta(f"{name}.1", "acme"), spec=spec)


rule_sets = st.builds(
    PolicyRules,
    scores=st.sampled_from(
        [
            PolicyRules().scores,
            (WeightedScore(name=ScoreName.PACKING, weight=3),),
            (
                WeightedScore(name=ScoreName.FRAGMENTATION, weight=2),
                WeightedScore(name=ScoreName.LOCALITY, weight=1),
                WeightedScore(name=ScoreName.SPREAD, weight=1),
            ),
            (),
        ]
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), node_lists(), request_lists(), rule_sets, st.integers(0, 3))
def test_plan_equals_reference_planner(
    data: st.DataObject, nodes: list[Node], requests: list[SchedulingRequest], rules: PolicyRules, seed: int
) -> None:
    bindings = data.draw(old_bindings(nodes))
    reserved: dict[str, Amount] = data.draw(st.sampled_from([{}, {"cpu": "1"}]))
    slots = (
        [RecoverySlot(metadata=factories.meta("h0"), spec=RecoverySlotSpec(budget="b", node="n0", resources=reserved))]
        if reserved
        else []
    )
    headroom = data.draw(st.sampled_from(HEADROOMS))
    check_against_reference(World(nodes, bindings, slots, headroom), requests, rules, seed)


@st.composite
def scale_ups(draw: Any) -> tuple[list[Node], list[Binding], SchedulingRequest]:
    """One more replica of a workload with hard spread, on many nodes of few zones, most of them in use."""
    zones = draw(st.sampled_from([("a",), ("a", "b")]))
    nodes = [
        factories.node(f"n{n}", zone=draw(st.sampled_from(zones)), capacity={"cpu": "8", "memory": "8Gi"})
        for n in range(draw(st.integers(3, 10)))
    ]
    bindings = [
        _bound(
            f"b{n}",
            draw(st.sampled_from(["web", "web", "other"])),
            draw(st.sampled_from(nodes)).metadata.name,
            desired=draw(st.sampled_from([DesiredRunState.RUN, DesiredRunState.RUN, DesiredRunState.STOP])),
        )
        for n in range(draw(st.integers(2, 12)))
    ]
    spread = draw(
        st.sampled_from(
            [
                (SpreadRule(topology="node"),),
                (SpreadRule(topology="node", max_skew=2),),
                (SpreadRule(topology="zone"), SpreadRule(topology="node")),
            ]
        )
    )
    return nodes, bindings, _web_request(spread, members=draw(st.integers(1, 2)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scale_ups(), rule_sets, st.integers(0, 3))
def test_scale_up_with_hard_spread_equals_reference_planner(
    drawn: tuple[list[Node], list[Binding], SchedulingRequest], rules: PolicyRules, seed: int
) -> None:
    nodes, bindings, request = drawn
    check_against_reference(World(nodes, bindings), [request], rules, seed)


class World(NamedTuple):
    """What the plan starts from; `headroom` is the tenant's."""

    nodes: list[Node]
    bindings: list[Binding]
    slots: Sequence[RecoverySlot] = ()
    headroom: dict[str, int] | None = None


def check_against_reference(world: World, requests: list[SchedulingRequest], rules: PolicyRules, seed: int) -> None:
    nodes, bindings, slots, headroom = world
    snapshot = build_snapshot("here", [*nodes, *bindings, *slots])
    made = plan(snapshot, [requirements_of(r, quota_headroom=headroom) for r in requests], rules, 0.0, seed)
    left = dict(headroom) if headroom is not None else None

    claims = [
        {
            "node": b.spec.node,
            "amounts": amounts(b.spec.resources),
            "ports": [(port.protocol, b.spec.ports[port.name]) for port in b.spec.template.ports],
            "workload": b.spec.workload,
            "reclaimable": b.spec.capacity_class is CapacityClass.RECLAIMABLE,
            "labels": b.spec.template.labels,
            "devices": [(d.id, d.milli) for d in b.spec.devices],
            "stopping": b.spec.desired is DesiredRunState.STOP,
        }
        for b in bindings
    ]
    slow = ReferencePlanner(nodes, claims, slots)
    for request, outcome in zip(requests, made.request_plans, strict=True):
        template = request.spec.template
        needs: dict[str, Any] = {
            "amounts": amounts(template.resources),
            "placement": request.spec.placement,
            "labels": template.labels,
            "reclaimable": request.spec.reclaimable,
            "workload": request.spec.workload,
            "models": template.gpu_models,
            "ports": [(p.protocol, p.port) for p in template.ports],
        }
        looked_at = has_quota(left, needs["amounts"])
        assert outcome.feasible == (sum(slow.feasible(n, needs) for n in nodes) if looked_at else 0)
        expected = []
        short = False
        for _ in request.spec.members:
            short = not has_quota(left, needs["amounts"])
            found = slow.place(needs, rules, seed) if not short else None
            if found is None:
                break
            expected.append(found)
            if left is not None:
                left = {name: amount - needs["amounts"].get(name, 0) for name, amount in left.items()}
        assert [(p.node, p.score) for p in outcome.proposals] == expected
        for proposal in outcome.proposals:
            assert proposal.score == sum(part.value * part.weight for part in proposal.scores)
        assert len(outcome.unplaced) == len(request.spec.members) - len(expected)
        if outcome.unplaced:
            refused = sum(r.nodes for r in outcome.refusals)
            assert refused == (0 if short else len(nodes)), "every node has exactly one first reason"
            over = (
                {Reason.QUOTA_EXCEEDED if headroom else Reason.NO_GRANT}
                if short
                else {r.reason for r in outcome.refusals}
            )
            assert outcome.refusals[0].reason in over


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), node_lists(), request_lists())
def test_snapshot_and_plan_are_independent_of_event_order(
    data: st.DataObject, nodes: list[Node], requests: list[SchedulingRequest]
) -> None:
    """The snapshot depends only on the final objects, not on the order of additions, changes and removals."""
    bindings = data.draw(old_bindings(nodes))
    items = [*nodes, *bindings]
    plain = build_snapshot("here", items)
    builder = SnapshotBuilder("here")
    shuffled = data.draw(st.permutations(items))
    extra = factories.node("gone", zone="a")
    builder.upsert(extra)
    for item in shuffled:
        builder.upsert(item)
        if data.draw(st.booleans()):
            builder.delete(item)
            builder.upsert(item)
    builder.delete(extra)
    other = builder.freeze(0)
    assert other.hash == plain.hash
    asks = [requirements_of(r) for r in requests]
    left, right = plan(plain, asks, PolicyRules(), 0.0, 7), plan(other, asks, PolicyRules(), 0.0, 7)
    assert [a.proposals for a in left.request_plans] == [a.proposals for a in right.request_plans]
    assert [a.refusals for a in left.request_plans] == [a.refusals for a in right.request_plans]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(node_lists(), request_lists(), st.integers(1, 14))
def test_planned_gang_is_placed_as_a_whole_or_leaves_no_trace(
    nodes: list[Node], requests: list[SchedulingRequest], minimum: int
) -> None:
    snapshot = build_snapshot("here", nodes)
    gang = msgspec.structs.replace(
        requests[0], spec=msgspec.structs.replace(requests[0].spec, gang=Gang(min_available=minimum))
    )
    after = requests[1:]
    made = plan(snapshot, [requirements_of(gang), *map(requirements_of, after)], PolicyRules(), 0.0, 1)
    first = made.request_plans[0]
    minimum = min(minimum, len(gang.spec.members)) if first.proposals else minimum
    assert not first.proposals or len(first.proposals) >= minimum
    if not first.proposals:
        alone = plan(snapshot, list(map(requirements_of, after)), PolicyRules(), 0.0, 1)
        assert [a.proposals for a in alone.request_plans] == [a.proposals for a in made.request_plans[1:]], (
            "the rejected gang changed the plan"
        )


def test_scale_up_by_one_finds_the_nodes_that_spread_by_node_leaves_open() -> None:
    """The two best nodes of the zone are closed by spread, and one member keeps only two candidates per zone."""
    nodes = [factories.node(f"n{n}", zone="a", capacity={"cpu": "8", "memory": "8Gi"}) for n in range(4)]
    placed = [_bound(f"web-{n}", "web", f"n{n}") for n in (0, 1)]
    other = [_bound(f"other-{n}", "other", f"n{n}", "4") for n in (2, 3)]
    rules = PolicyRules(scores=(WeightedScore(name=ScoreName.BALANCE, weight=1),))
    ask = _web_request((SpreadRule(topology="node"),), members=1)
    made = plan(build_snapshot("here", [*nodes, *placed, *other]), [requirements_of(ask)], rules, 0.0, 1)
    assert [p.node in ("n2", "n3") for p in made.request_plans[0].proposals] == [True]


def _tables(run: _PlanRun) -> dict[str, Any]:
    """Every table of a plan in progress, as plain values."""
    scratch, preemption = run._scratch, run._preemption
    found: dict[str, Any] = {
        "placed": {key: groups for key, groups in scratch._placed.items()},
        "guards": {guard: sorted(slots) for guard, slots in scratch._guards.items() if slots},
        "ports": {slot: dict(taken) for slot, taken in scratch._ports.items()},
        "unreliable": scratch._unreliable,
        "open ports": dict(scratch._open_ports),
        "evicted": run._evicted,
        "spent": run._spent,
    }
    for name in ("free_for_reclaimable", "unreserved", "free_for_firm", "used", "gpu_free", "ports_free"):
        found[name] = getattr(scratch, name).tolist()
    if preemption is not None:
        selection = preemption.victim_selection
        found["leaving"] = [preemption._leaving.tolist(), preemption._leaving_firm.tolist()]
        found["chosen"] = [sorted(preemption._chosen), preemption._available.tolist()]
        found["selection"] = [
            {key: count for key, count in selection._leaving.items() if count},
            {key: victims for key, victims in selection._victims.items() if victims},
            selection._used,
        ]
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), node_lists(), request_lists())
def test_refused_gang_leaves_every_table_of_the_plan_unchanged(
    data: st.DataObject, nodes: list[Node], requests: list[SchedulingRequest]
) -> None:
    """The gang needs more members than it has, so it is always refused, whatever was placed or nominated for it."""
    bindings = [
        _bound(
            f"low-{n}",
            f"low-{n % 3}",
            data.draw(st.sampled_from(nodes)).metadata.name,
            data.draw(st.sampled_from(["1", "2"])),
            ports=data.draw(st.sampled_from([{}, {"p": 8080}])),
            max_unavailable=data.draw(st.sampled_from([1, 5])),
        )
        for n in range(data.draw(st.integers(0, 8)))
    ]
    *before, last = requests
    spec = msgspec.structs.replace(
        last.spec, gang=Gang(min_available=len(last.spec.members) + 1), priority=9, may_preempt=True
    )
    gang = msgspec.structs.replace(last, spec=spec)
    run = _PlanRun(build_snapshot("here", [*nodes, *bindings]), PolicyRules(), 0.0, 1, UNKNOWN_SIBLINGS)
    for request in before:
        preempting = msgspec.structs.replace(request.spec, priority=5, may_preempt=True)
        run.plan(requirements_of(msgspec.structs.replace(request, spec=preempting), evictions_left=100))
    if run._preemption is None:
        run._preemption = PreemptionPlanner(run._scratch)
    empty = {key: groups for key, groups in run._scratch.snapshot.placed.items() if key[1] == gang.spec.workload}
    tables = _tables(run)
    planned = run.plan(requirements_of(gang, evictions_left=100))
    assert not planned.proposals
    after = _tables(run)
    key = ("acme", gang.spec.workload)
    if key not in tables["placed"]:  # the table of the gang's workload is copied from the snapshot on first use
        counted = {labels: counts for labels, counts in after["placed"].pop(key, {}).items() if counts}
        assert counted == dict(empty.get(key, {})) or not counted
    assert after == tables


def test_refused_gang_does_not_free_the_port_of_its_victim() -> None:
    """One of two members would evict the owner of port 8080. The next request must still see the port in use."""
    snapshot = build_snapshot(
        "here",
        [
            factories.node("n1", capacity={"cpu": "4", "memory": "8Gi"}),
            _bound("low", "low", "n1", ports={"p": 8080}, max_unavailable=1),
        ],
    )
    template = Template(command=("serve",), resources={"cpu": "1"}, ports=(Port("p", 8080),))
    gang = SchedulingRequestSpec(
        workload="gang",
        assignment="gang",
        revision="1",
        template=template,
        members=tuple(RequestMember(f"g{n}", f"g{n}") for n in range(2)),
        gang=Gang(min_available=2),
        priority=5,
        may_preempt=True,
    )
    single = msgspec.structs.replace(gang, workload="one", members=gang.members[:1], gang=None, may_preempt=False)
    asks = [
        requirements_of(SchedulingRequest(factories.meta(spec.workload, "acme"), spec), evictions_left=9)
        for spec in (gang, single)
    ]
    refused, other = plan(snapshot, asks, PolicyRules(), 0.0, 1).request_plans
    assert not refused.proposals and not other.proposals
    assert other.refusals[0].reason == Reason.PORT_IN_USE


def test_fixed_port_in_dynamic_range_reduces_dynamic_ports_in_same_plan() -> None:
    """The node has two dynamic ports; a fixed port in the range leaves one."""
    snapshot = build_snapshot("here", [factories.node("n1", port_range=(20007, 20008))])
    asks = []
    for name, ports, members in (("fixed", (Port("http", 20007),), 1), ("open", (Port("http"),), 2)):
        template = Template(command=("serve",), resources={"cpu": "1"}, ports=ports)
        spec = SchedulingRequestSpec(
            workload=name,
            assignment=name,
            revision="1",
            template=template,
            members=tuple(RequestMember(f"{name}-{n}", f"uid-{name}-{n}") for n in range(members)),
        )
        asks.append(requirements_of(SchedulingRequest(factories.meta(name, "acme"), spec)))
    fixed, others = plan(snapshot, asks, PolicyRules(), 1_767_225_610.0, seed=7).request_plans
    assert len(fixed.proposals) == len(others.proposals) == 1
    assert [refusal.reason for refusal in others.refusals] == [Reason.PORTS_EXHAUSTED]
