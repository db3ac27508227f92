"""Filter and score expressions of a policy: validation with positions, and errors that never fail a plan."""

from __future__ import annotations

import pytest
from tests import factories

from holdfast.model.node import Node
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import FilterExpression, PolicyRules, ScoreExpression, validate_rules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template
from holdfast.scheduling import policy_expressions
from holdfast.scheduling.plan import RequestPlan, plan, requirements_of
from holdfast.scheduling.snapshot.builder import build_snapshot

ENDLESS = "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2].exists(b, [0,1,2].exists(c, a + b + c > 100)))"


def nodes() -> list[Node]:
    small = factories.node("small", zone="a", capacity={"cpu": "4", "memory": "8Gi"})
    large = factories.node("large", zone="b", capacity={"cpu": "64", "memory": "256Gi"})
    return [small, large]


def request(count: int = 1) -> SchedulingRequest:
    template = Template(command=("x",), resources={"cpu": "1", "memory": "1Gi"}, labels={"app": "web"})
    return SchedulingRequest(
        factories.meta("r", "acme"),
        SchedulingRequestSpec(
            workload="web",
            assignment="web",
            revision="1",
            template=template,
            members=tuple(RequestMember(f"m{i}", f"m{i}") for i in range(count)),
        ),
    )


def planned(rules: PolicyRules, count: int = 1) -> RequestPlan:
    return plan(build_snapshot("us-east", nodes()), [requirements_of(request(count))], rules, 0.0, 1).request_plans[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node.capacity.cpu > 8000", "large"),
        ("node.zone == 'a'", "small"),
        ("node.name.startsWith('l') && request.tenant == 'acme'", "large"),
        ("request.labels.app == 'web' && node.capacity.memory < 10000000000", "small"),
    ],
)
def test_filter_expression_excludes_other_nodes(text: str, expected: str) -> None:
    rules = PolicyRules(filter_expressions=(FilterExpression(name="mine", expression=text),))
    assert policy_expressions.find_error(text, score=False) is None
    made = planned(rules, 3)
    assert {p.node for p in made.proposals} == {expected}
    assert made.refusals[0].reason == Reason.EXPRESSION_REFUSED


def test_score_expression_is_weighted_and_recorded() -> None:
    text = "node.capacity.cpu / 1000"
    rules = PolicyRules(scores=(), score_expressions=(ScoreExpression(name="size", expression=text, weight=3),))
    (proposal,) = planned(rules).proposals
    assert (proposal.node, proposal.score) == ("large", 64 * 3)
    assert [(s.name, s.value, s.weight) for s in proposal.scores] == [("size", 64, 3)]


@pytest.mark.parametrize(
    ("text", "score", "message"),
    [
        ("node.zone ==", False, "line 1, column 13"),
        ("nod.zone == 'a'", False, "undeclared reference to 'nod"),
        ("true &&\n 'a' + 1", False, "line 2, column 6"),
        ("node.capacity.cpu > 1", True, "expected a number, found BOOL"),
        ("1 + 1", False, "expected true or false, found INT"),
        ("1 / 0", True, "divide by zero"),
        ("0.0 / 0.0", True, "found nan"),
        ("1.0 / 0.0", True, "found inf"),
        (ENDLESS, False, "line 1, column 56: too many loops (at most 2, found 3)"),
    ],
)
def test_invalid_expression_error_has_position_and_cause(text: str, score: bool, message: str) -> None:
    wrong = policy_expressions.find_error(text, score=score)
    assert wrong is not None
    assert message in wrong.text


@pytest.mark.parametrize("text", ["1 / 0 == 1", "node.labels.missing == 'x'", "node.zone == ", ENDLESS])
def test_filter_expression_with_evaluation_error_refuses_node(text: str) -> None:
    made = planned(PolicyRules(filter_expressions=(FilterExpression(name="mine", expression=text),)))
    assert not made.proposals
    assert made.refusals[0].reason == Reason.EXPRESSION_REFUSED


@pytest.mark.parametrize("text", ["1 / 0", "0.0 / 0.0", "int(node.labels.missing)", "-5", "nonsense("])
def test_score_expression_with_evaluation_error_scores_zero(text: str) -> None:
    made = planned(PolicyRules(scores=(), score_expressions=(ScoreExpression(name="mine", expression=text),)))
    assert made.proposals[0].score == 0


def test_score_expression_with_invalid_name_weight_or_size_is_rejected() -> None:
    rules = PolicyRules(
        score_expressions=(
            ScoreExpression(name="Balance", expression="1"),
            ScoreExpression(name="mine", expression="1", weight=-1),
            ScoreExpression(name="long", expression="1" * 2000),
        )
    )
    fields = {cause.field for cause in validate_rules("spec.rules", rules)}
    assert fields == {
        "spec.rules.scoreExpressions[Balance].name",
        "spec.rules.scoreExpressions[1].weight",
        "spec.rules.scoreExpressions[long].expression",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("!('gpu' in node.capcity) || 'gpu' in request.resources", "node.capcity: unknown"),
        ("node.zone == 'z1' || request.teant == 'a'", "request.teant: unknown"),
        ("!('gpu' in node.capacity) || request.resources", "evaluation for a sample node failed"),
    ],
)
def test_error_in_a_part_that_is_skipped_for_some_nodes_is_found(text: str, found: str) -> None:
    error = policy_expressions.find_error(text, score=False)
    assert error is not None and found in error.text


def test_field_names_in_strings_are_not_fields() -> None:
    text = "node.labels['node.kubernetes.io/role'] == 'x' || node.pool == \"request.it\""
    assert policy_expressions.find_error(text, score=False) is None


UNTESTED_KEYS = [
    ("node.capacity.gpu == 0 || request.resources.gpu > 0", "a node without gpu", "'gpu' in node.capacity && node"),
    ("node.capacity['gpu'] > 0", "a node without gpu", "'gpu' in node.capacity && node.capacity['gpu'] > 0"),
    ("request.resources.gpu == 0", "every node for a request without gpu", "!('gpu' in request.resources) || "),
    ("node.labels.tier != 'lab'", "a node without label tier", "!('tier' in node.labels) || node.labels.tier != 'x'"),
    ('request.labels["app"] != "a" || node.pool == "b"', "a request without label app", "'app' in request.labels"),
]


@pytest.mark.parametrize(("text", "found", "idiom"), UNTESTED_KEYS)
def test_filter_that_reads_a_key_untested_is_invalid_and_told_the_idiom(text: str, found: str, idiom: str) -> None:
    """Regression: such a filter was accepted, and refused every node or request without the key."""
    error = policy_expressions.find_error(text, score=False)
    assert error is not None and found in error.text and idiom in error.text


@pytest.mark.parametrize(
    "text",
    [
        "'gpu' in node.capacity && node.capacity.gpu > 0",
        "!('gpu' in node.capacity) || 'gpu' in request.resources",
        "has(node.labels.tier) && node.labels.tier != 'lab'",
        "!('tier' in node.labels) || node.labels.tier != 'lab'",
        "node.labels['disk'] == 'slow'",
        "node.labels.disk == 'slow' && node.labels.tier == 'lab'",
        "int(node.labels.generation) > 3",
    ],
)
def test_filter_that_tests_its_keys_or_refuses_other_labels_too_is_valid(text: str) -> None:
    assert policy_expressions.find_error(text, score=False) is None


def test_score_that_reads_a_missing_key_is_valid() -> None:
    """Where the key is missing, the score is 0."""
    assert policy_expressions.find_error("node.capacity.gpu / 100", score=True) is None
