"""Invalid policies are refused on write, with the position of the error."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.errors import Invalid
from holdfast.model.meta import ObjectMeta
from holdfast.model.scheduler_policy import (
    FilterExpression,
    PolicyRules,
    SchedulerPolicy,
    SchedulerPolicySpec,
    ScoreExpression,
    ScoreName,
    WeightedScore,
)

from .conftest import OPERATOR, World


def policy(**rules: Any) -> SchedulerPolicy:
    return SchedulerPolicy(ObjectMeta(name="mine"), SchedulerPolicySpec(rules=PolicyRules(**rules)))


def score(text: str) -> dict[str, Any]:
    return {"score_expressions": (ScoreExpression(name="mine", expression=text),)}


def filtering(text: str) -> dict[str, Any]:
    return {"filter_expressions": (FilterExpression(name="mine", expression=text),)}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (filtering("node.zone =="), r"spec.rules.filterExpressions\[0\].expression.*line 1, column 13"),
        (filtering("[1].all(a, [1].all(b, [1].all(c, true)))"), "too many loops"),
        (score("1 / 0"), "divide by zero"),
        (score("0.0 / 0.0"), "found nan"),
        (score("'text'"), "expected a number"),
        ({"scores": (WeightedScore(name=ScoreName.BALANCE, weight=-1),)}, r"spec.rules.scores\[0\].weight"),
        ({"queue": ()}, "spec.rules.queue"),
    ],
)
async def test_invalid_policy_is_refused_with_position(world: World, rules: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        await world.create(OPERATOR, policy(**rules))


async def test_valid_policy_is_accepted(world: World) -> None:
    rules = {**filtering("node.zone != 'lab'"), **score("node.capacity.cpu / 1000")}
    await world.create(OPERATOR, policy(**rules))
