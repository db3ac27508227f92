"""Rules that no node can satisfy are refused at admission; nothing else is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_rules import (
    AffinityRule,
    Expression,
    NodeTerm,
    Operator,
    PlacementRules,
    SpreadRule,
    decimal_integer,
    matches_expression,
    validate_placement,
)
from holdfast.model.probe import Probe, TcpProbe
from holdfast.model.rule_conflicts import contradictory_keys
from holdfast.model.template import Port, Probes, Protocol, Template
from holdfast.model.workload import Batch, Gang, Workload, WorkloadSpec, WorkloadType, validate_workload

NO_LABEL = Operator.DOES_NOT_EXIST
VALUES = ("a", "b", "3", "5", "007", "1_000")
EVERY_LABEL: list[dict[str, str]] = [{}, *({"k": v} for v in (*VALUES, "other", *map(str, range(-20, 21))))]

expressions = st.one_of(
    st.builds(
        Expression,
        key=st.just("k"),
        operator=st.sampled_from([Operator.IN, Operator.NOT_IN]),
        values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    st.builds(Expression, key=st.just("k"), operator=st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST])),
    st.builds(
        Expression,
        key=st.just("k"),
        operator=st.sampled_from([Operator.GT, Operator.LT]),
        values=st.integers(-6, 8).map(lambda n: (str(n),)),
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(expressions, max_size=4), st.sampled_from([None, "a", "3"]))
def test_key_is_contradictory_exactly_if_no_label_satisfies_it(found: list[Expression], selected: str | None) -> None:
    rules = PlacementRules(expressions=tuple(found), node_selector={} if selected is None else {"k": selected})
    satisfied = any(
        (selected is None or labels.get("k") == selected) and all(matches_expression(e, labels) for e in found)
        for labels in EVERY_LABEL
    )
    assert list(contradictory_keys(rules)) == ([] if satisfied or (not found and selected is None) else ["k"])


@pytest.mark.parametrize("text", ["+-5", "²", "+5", "--5", "1_000", "", "٣", "5 ", "1e3", "0x5", "9" * 19])
def test_operand_that_is_not_a_plain_integer_is_refused(text: str) -> None:
    rules = PlacementRules(expressions=(Expression(key="k", operator=Operator.GT, values=(text,)),))
    assert [cause.field for cause in validate_placement("p", rules)] == ["p.expressions[0].values"]
    assert decimal_integer(text) is None
    limit = Expression(key="k", operator=Operator.GT, values=("0",))
    assert not matches_expression(limit, {"k": text}), "a label that is not a plain integer satisfies no bound"


@pytest.mark.parametrize(("text", "value"), [("5", 5), ("-5", -5), ("0", 0), ("007", 7)])
def test_plain_integer_is_accepted(text: str, value: int) -> None:
    rules = PlacementRules(expressions=(Expression(key="k", operator=Operator.LT, values=(text,)),))
    assert not list(validate_placement("p", rules))
    assert decimal_integer(text) == value


def causes(**spec: object) -> list[str]:
    spec = {"template": Template(command=("x",)), **spec}
    workload = Workload(metadata=ObjectMeta(name="web", namespace="acme"), spec=WorkloadSpec(**spec))  # type: ignore[arg-type]
    return [cause.field for cause in validate_workload(workload, None)]


def test_template_with_one_fixed_port_twice_is_refused() -> None:
    twice = Template(command=("x",), ports=(Port("a", 8080), Port("b", 8080)))
    assert causes(template=twice) == ["spec.template.ports[1]"]
    both = Template(command=("x",), ports=(Port("a", 53), Port("b", 53, Protocol.UDP)))
    assert causes(template=both) == []
    udp_twice = Template(command=("x",), ports=(Port("a", 53, Protocol.UDP), Port("b", 53, Protocol.UDP)))
    assert causes(template=udp_twice) == ["spec.template.ports[1]"]
    open_ports = Template(command=("x",), ports=(Port("a", 8080), Port("b"), Port("c")))
    assert causes(template=open_ports) == []


@pytest.mark.parametrize(
    ("near", "apart", "refused"),
    [("node", "node", True), ("node", "zone", True), ("zone", "zone", True), ("zone", "node", False)],
)
def test_affinity_to_neighbours_that_are_kept_apart_is_refused(near: str, apart: str, refused: bool) -> None:
    rules = (
        AffinityRule(workload_labels={"app": "db", "tier": "1"}, topology=near),
        AffinityRule(workload_labels={"app": "db"}, topology=apart, apart=True),
    )
    assert bool(causes(placement=PlacementRules(affinity=rules))) is refused
    soft = (rules[0], AffinityRule(workload_labels={"app": "db"}, topology=apart, apart=True, preferred=True))
    assert not causes(placement=PlacementRules(affinity=soft))


def test_rule_about_own_replicas_must_match_the_template() -> None:
    def found(*rules: AffinityRule) -> list[str]:
        return causes(
            placement=PlacementRules(affinity=rules), template=Template(command=("x",), labels={"app": "web"})
        )

    own = AffinityRule(workload_labels={"app": "web"}, topology="zone", own_replicas=True)
    other = AffinityRule(workload_labels={"app": "db"}, own_replicas=True)
    not_web = Expression(key="app", operator=Operator.NOT_IN, values=("web",))
    assert found(own) == []
    assert found(own, other) == ["spec.placement.affinity[1].ownReplicas"]
    assert found(AffinityRule(expressions=(not_web,), own_replicas=True)) == ["spec.placement.affinity[0].ownReplicas"]
    apart = AffinityRule(workload_labels={"app": "web"}, topology="zone", apart=True)
    assert found(own, apart) == [], "near its own replicas, apart from other workloads with their label"
    assert found(own, msgspec.structs.replace(apart, own_replicas=True)) == ["spec.placement.affinity"]


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        (PlacementRules(spread=(SpreadRule(topology="rack", min_domains=3),)), ""),
        (PlacementRules(spread=(SpreadRule(topology="not a key"),)), "spec.placement.spread[0].topology"),
        (PlacementRules(spread=(SpreadRule(topology=""),)), "spec.placement.spread[0].topology"),
        (PlacementRules(spread=(SpreadRule(topology="rack", preferred=True),)), "spec.placement.spread[0].topology"),
        (PlacementRules(spread=(SpreadRule(min_domains=2, preferred=True),)), "spec.placement.spread[0].minDomains"),
        (PlacementRules(spread=(SpreadRule(min_domains=-1),)), "spec.placement.spread[0].minDomains"),
        (PlacementRules(affinity=(AffinityRule({"app": "db"}, topology="rack"),)), ""),
        (
            PlacementRules(affinity=(AffinityRule({"app": "db"}, topology="a b"),)),
            "spec.placement.affinity[0].topology",
        ),
        (
            PlacementRules(spread=(SpreadRule(topology="rack"),), expressions=(Expression("rack", NO_LABEL),)),
            "spec.placement.expressions",
        ),
        (
            PlacementRules(
                affinity=(AffinityRule({"app": "db"}, topology="rack", apart=True),),
                expressions=(Expression("rack", NO_LABEL),),
            ),
            "",
        ),
        (
            PlacementRules(
                affinity=(AffinityRule({"app": "db"}, topology="rack"),),
                node_terms=(NodeTerm((Expression("rack", NO_LABEL),)),),
            ),
            "spec.placement.nodeTerms",
        ),
    ],
)
def test_topology_is_a_label_key_that_nodes_can_have(rules: PlacementRules, field: str) -> None:
    assert causes(placement=rules) == ([field] if field else [])


@pytest.mark.parametrize(
    ("near", "apart", "refused"), [("rack", "rack", True), ("rack", "zone", False), ("node", "rack", False)]
)
def test_affinity_contradicts_anti_affinity_only_in_the_same_domains(near: str, apart: str, refused: bool) -> None:
    rules = (
        AffinityRule(workload_labels={"app": "db"}, topology=near),
        AffinityRule(workload_labels={"app": "db"}, topology=apart, apart=True),
    )
    assert bool(causes(placement=PlacementRules(affinity=rules))) is refused


def test_affinity_that_no_replica_can_satisfy_is_refused() -> None:
    missing = Expression(key="app", operator=Operator.DOES_NOT_EXIST)
    rule = AffinityRule(workload_labels={"app": "db"}, expressions=(missing,))
    assert causes(placement=PlacementRules(affinity=(rule,))) == ["spec.placement.affinity"]
    alone = AffinityRule(expressions=(missing,))
    assert causes(placement=PlacementRules(affinity=(alone,))) == []
    assert causes(placement=PlacementRules(affinity=(AffinityRule(),))) == ["spec.placement.affinity[0].workloadLabels"]
    bad = AffinityRule(expressions=(Expression(key="app", operator=Operator.GT, values=("+5",)),))
    assert "spec.placement.affinity[0].expressions[0].values" in causes(placement=PlacementRules(affinity=(bad,)))


def test_node_terms_that_the_other_label_rules_exclude_are_refused() -> None:
    ssd = NodeTerm(expressions=(Expression(key="disk", operator=Operator.IN, values=("ssd",)),))
    hdd = NodeTerm(expressions=(Expression(key="disk", operator=Operator.IN, values=("hdd",)),))
    rules = PlacementRules(node_selector={"disk": "tape"}, node_terms=(ssd, hdd))
    assert causes(placement=rules) == ["spec.placement.nodeTerms"]
    assert causes(placement=PlacementRules(node_selector={"disk": "ssd"}, node_terms=(ssd, hdd))) == []
    assert causes(placement=PlacementRules(node_terms=(NodeTerm(),))) == ["spec.placement.nodeTerms[0].expressions"]


@pytest.mark.parametrize(
    ("ports", "probed", "field"),
    [
        ((Port("dns", 53, Protocol.UDP),), "", "spec.template.probes.readiness"),
        ((Port("dns", 53, Protocol.UDP), Port("http", 80)), "dns", "spec.template.probes.readiness.port"),
        ((Port("dns", 53, Protocol.UDP), Port("http", 80)), "", ""),
    ],
)
def test_probe_needs_a_tcp_port(ports: tuple[Port, ...], probed: str, field: str) -> None:
    probe = Probe(tcp=TcpProbe(port=probed))
    template = Template(command=("x",), ports=ports, probes=Probes(readiness=probe))
    assert causes(template=template) == ([field] if field else [])


def test_gang_larger_than_the_parallelism_of_its_batch_is_refused() -> None:
    batch = {"type": WorkloadType.BATCH, "replicas": 8, "batch": Batch(completions=8, parallelism=2)}
    template = Template(command=("x",), restart_policy="Never")  # type: ignore[arg-type]
    assert causes(template=template, gang=Gang(min_available=3), **batch) == ["spec.gang.minAvailable"]
    assert causes(template=template, gang=Gang(min_available=2), **batch) == []
