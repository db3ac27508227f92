"""The matrix of a decision: groups by cause, nodes left after each filter, scores, and the nearest miss."""

from __future__ import annotations

from typing import Any

from tests import factories

from holdfast.insight.decision_matrix import DecisionMatrix, decision_matrix
from holdfast.model.node import Node
from holdfast.model.placement_rules import Taint, TaintEffect
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling.plan import plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot


def node(name: str, cpu: str = "8", **spec: Any) -> Node:
    return factories.node(name, zone="z-a", capacity={"cpu": cpu, "memory": "8Gi"}, **spec)


def request(cpu: str = "2") -> SchedulingRequest:
    template = Template(command=("x",), resources={"cpu": cpu, "memory": "1Gi"})
    members = (RequestMember("web-0", "u0"),)
    spec = SchedulingRequestSpec(workload="web", assignment="a", revision="1", template=template, members=members)
    return SchedulingRequest(factories.meta("web", "acme"), spec)


def matrix_of(*nodes: Node, cpu: str = "2") -> DecisionMatrix:
    return decision_matrix(build_snapshot("here", nodes), requirements_of(request(cpu)), PolicyRules(), 0.0)


def test_groups_count_every_node_once_and_begin_with_the_nearest_miss() -> None:
    tainted = (Taint(key="dedicated", value="x", effect=TaintEffect.NO_SCHEDULE),)
    made = matrix_of(
        node("open"),
        *(node(f"small-{i}", cpu="1") for i in range(3)),
        node("both", cpu="1", taints=tainted),
        node("drained", drain=True),
    )
    assert (made.nodes, made.feasible_count) == (6, 1)
    assert [row.node for row in made.feasible] == ["open"]
    groups = {group.reason: (group.filter, group.nodes) for group in made.groups}
    assert groups == {
        "NodeDraining": ("Health", 1),
        "TaintNotTolerated": ("Taints", 1),
        "InsufficientCpu": ("Resources", 3),
    }
    assert sum(group.nodes for group in made.groups) + made.feasible_count == made.nodes
    assert made.groups[0].rows[0].node == made.nearest
    both = next(row for group in made.groups for row in group.rows if row.node == "both")
    assert both.refused == {"Taints": "TaintNotTolerated", "Resources": "InsufficientCpu"}


def test_filters_leave_fewer_and_fewer_nodes_and_end_at_the_feasible_ones() -> None:
    made = matrix_of(node("a"), node("b", cpu="1"), node("c", drain=True))
    left = [column.left for column in made.filters]
    assert left == sorted(left, reverse=True) and left[-1] == made.feasible_count == 1


def test_best_row_is_the_node_that_the_planner_chooses_with_its_score() -> None:
    nodes = [node("a", cpu="4"), node("b", cpu="16"), node("c", cpu="8")]
    made = matrix_of(*nodes)
    snapshot = build_snapshot("here", nodes)
    chosen = plan(snapshot, [requirements_of(request())], PolicyRules(), 0.0, 1).request_plans[0].proposals[0]
    assert (made.feasible[0].node, made.feasible[0].total) == (chosen.node, chosen.score)
    assert [part.name for part in chosen.scores] == [column.name for column in made.scores]
    weighed = sum(v * c.weight for v, c in zip(made.feasible[0].scores, made.scores, strict=True))
    assert weighed == made.feasible[0].total


def test_region_without_nodes_has_an_empty_matrix() -> None:
    made = matrix_of()
    assert (made.nodes, made.feasible_count, made.groups, made.nearest) == (0, 0, (), "")


def test_nearest_miss_is_the_node_with_most_room_and_the_group_names_it() -> None:
    made = matrix_of(node("a", cpu="1"), node("b", cpu="3"), node("c", cpu="2"), cpu="4")
    assert made.nearest == "b"
    assert [row.node for row in made.groups[0].rows] == ["b", "c", "a"]
    assert "best free 3" in made.groups[0].message and "on node b" in made.groups[0].message
