"""S4 of the simulation's checker: affinity and anti-affinity, also to the workload's own replicas."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories
from tests.sim.test_shrunk_nodes import Region

from holdfast.model.binding import Binding, BindingSpec, DesiredRunState, Intent
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node, NodeSpec
from holdfast.model.placement_rules import AffinityRule, PlacementRules, required_anti_affinity
from holdfast.model.template import Template

OWN = AffinityRule(workload_labels={"app": "web"}, topology="zone", own_replicas=True)
APART = msgspec.structs.replace(OWN, apart=True)


def region() -> Region:
    made = Region()
    for name, zone in (("a", "a"), ("a2", "a"), ("b", "b")):
        made.commit(Node(metadata=ObjectMeta(name=name), spec=NodeSpec(zone=zone, capacity={"cpu": "9"})))
    return made


def bound(made: Region, name: str, node: str, rule: AffinityRule | None, **fields: Any) -> list[str]:
    """Binds a replica of workload web with label app=web. Returns the violated invariants."""
    rules = PlacementRules(affinity=(rule,) if rule is not None else ())
    template = Template(command=("x",), labels={"app": "web"})
    item = factories.replica()
    spec = msgspec.structs.replace(item.spec, placement=rules, template=template, workload="web")
    item = msgspec.structs.replace(item, metadata=ObjectMeta(name=name, namespace="acme", uid=name), spec=spec)
    made.commit(item)
    binding = BindingSpec(
        replica=name,
        intent=Intent(replica_uid=item.uid, template_hash="h", attempt=1),
        node=node,
        template=template,
        workload="web",
        anti_affinity=required_anti_affinity(rules),
        **fields,
    )
    return made.commit(Binding(metadata=ObjectMeta(name=f"{name}.1", namespace="acme"), spec=binding))


@pytest.mark.parametrize(
    ("rule", "second", "violated"),
    [(OWN, "a2", []), (OWN, "b", ["S4"]), (APART, "b", []), (APART, "a2", ["S4"]), (None, "a", [])],
)
def test_second_own_replica_must_satisfy_the_rule(rule: AffinityRule | None, second: str, violated: list[str]) -> None:
    made = region()
    assert bound(made, "web-0", "a", rule) == []
    assert bound(made, "web-1", second, rule) == violated


def test_own_replica_may_be_first_after_the_others_began_to_stop() -> None:
    made = region()
    assert bound(made, "web-0", "a", OWN, desired=DesiredRunState.STOP) == []
    assert bound(made, "web-1", "b", OWN) == []


def test_rule_without_own_replicas_needs_another_workload() -> None:
    made = region()
    assert bound(made, "web-0", "a", msgspec.structs.replace(OWN, own_replicas=False)) == ["S4"]


def test_anti_affinity_of_a_placed_own_replica_holds_for_the_next() -> None:
    made = region()
    assert bound(made, "web-0", "a", APART) == []
    assert bound(made, "web-1", "a2", None) == ["S4"]
