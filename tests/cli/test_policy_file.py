"""`--policy FILE`: a policy that the API would refuse is refused with the same error, and never ignored."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.conftest import Run

from holdfast.cli.commands.replay import exit_code, read_rules, replay_text
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.gate.admission import policy_expressions_compile
from holdfast.insight.replay import NotReplayable, ReplayResult
from holdfast.model import limits
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.scheduler_policy import FilterExpression, PolicyRules, ScoreExpression
from holdfast.platform.layout import Platform

UNKNOWN_FIELD = "node.capacty.cpu > 0"


def policy_file(folder: Path, **rules: Any) -> str:
    path = folder / "policy.yaml"
    path.write_text(json.dumps({"kind": "SchedulerPolicy", "metadata": {"name": "default"}, "spec": {"rules": rules}}))
    return str(path)


def admission_errors(rules: PolicyRules) -> list[str]:
    case: Any = SimpleNamespace(after=SimpleNamespace(spec=SimpleNamespace(rules=rules)))
    found: list[Any] = list(policy_expressions_compile(case))
    return [f"{cause.field}: {cause.message}" for cause in found]


@pytest.mark.parametrize("text", ["node.zone ||| true", UNKNOWN_FIELD, "1 + 1", "[1].all(x, x > 0", "1 / 0 > 0"])
def test_filter_that_the_api_refuses_is_refused_with_its_error(text: str, tmp_path: Path) -> None:
    """Regression: such a filter refused every node, so that every decision seemed to differ."""
    (expected,) = admission_errors(PolicyRules(filter_expressions=(FilterExpression("mine", text),)))
    with pytest.raises(CommandError) as refusal:
        read_rules(policy_file(tmp_path, filterExpressions=[{"name": "mine", "expression": text}]))
    assert expected in refusal.value.message and "spec.rules.filterExpressions[0].expression" in expected
    assert refusal.value.next_step


def test_score_that_the_api_refuses_is_refused_with_its_error(tmp_path: Path) -> None:
    text = "node.zone == 'a'"
    (expected,) = admission_errors(PolicyRules(score_expressions=(ScoreExpression("mine", text),)))
    with pytest.raises(CommandError) as refusal:
        read_rules(policy_file(tmp_path, scoreExpressions=[{"name": "mine", "expression": text}]))
    assert expected in refusal.value.message


def test_valid_expressions_are_read_and_too_long_ones_are_not_compiled(tmp_path: Path) -> None:
    valid = {"name": "mine", "expression": "!('gpu' in node.capacity) || 'gpu' in request.resources"}
    assert read_rules(policy_file(tmp_path, filterExpressions=[valid])).filter_expressions[0].name == "mine"
    long = {"name": "mine", "expression": "|" * (limits.EXPRESSION_CHARS_MAX + 1)}
    with pytest.raises(CommandError) as refusal:
        read_rules(policy_file(tmp_path, filterExpressions=[long]))
    assert refusal.value.message.count("spec.rules.filterExpressions") == 1


def test_plan_refuses_an_invalid_policy_before_it_connects(run: Run, platform: Platform, tmp_path: Path) -> None:
    path = policy_file(tmp_path, filterExpressions=[{"name": "mine", "expression": UNKNOWN_FIELD}])
    completed = run("plan", "--policy", path)
    assert completed.returncode == ExitCode.FAILED
    assert "node.capacty: unknown" in completed.stderr and "next:" in completed.stderr


@pytest.mark.parametrize("option", ["--lose-region", "--rebalance"])
def test_plan_with_the_active_policy_refuses_another(option: str, run: Run, platform: Platform, tmp_path: Path) -> None:
    """Regression: the policy was ignored without a word."""
    completed = run("plan", option, "us-east", "--policy", policy_file(tmp_path))
    assert completed.returncode == ExitCode.USAGE
    assert f"not possible with {option}" in completed.stderr and "next:" in completed.stderr


SPEC = DecisionSpec(request="r", workload="web", policy_revision="default-1")
RECORDED = Decision(metadata=ObjectMeta(name="d", namespace="shop"), spec=SPEC)
NO_PLAN: Any = None


def test_replay_under_another_policy_names_its_file_and_exits_as_plan_does() -> None:
    """Regression: it named the recorded policy, and exited with 0 although the outcome differed."""
    differs, same = ReplayResult(NO_PLAN, ("web-0: …",)), ReplayResult(NO_PLAN, ())
    assert "policy old.yaml instead of default-1" in replay_text("shop/d", RECORDED, differs, "old.yaml")
    assert "policy old.yaml instead of default-1" in replay_text("shop/d", RECORDED, same, "old.yaml")
    assert ", policy default-1)" in replay_text("shop/d", RECORDED, same, "")
    assert exit_code(differs, other=True) is ExitCode.PLAN_CHANGES
    assert exit_code(same, other=True) is exit_code(same, other=False) is ExitCode.OK
    assert exit_code(differs, other=False) is ExitCode.FAILED
    assert exit_code(NotReplayable("PolicyMissing", ""), other=True) is ExitCode.FAILED
