"""A policy with unknown names is refused with the position of the error, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import V1, Api

POLICIES = f"{V1}/schedulerpolicies"


def policy(**rules: Any) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1", "kind": "SchedulerPolicy", "metadata": {"name": "mine"},
        "spec": {"rules": rules},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"filters": ["Labels", "Moonphase"]}, "rules.filters[1]"),
        ({"scores": [{"name": "Luck", "weight": 1}]}, "rules.scores[0].name"),
        ({"scores": [{"name": "Balance", "weight": -1}]}, "rules.scores[0].weight"),
        ({"scores": [{"name": "Balance", "weight": "much"}]}, "rules.scores[0].weight"),
        ({"queue": ["Priority", "Beauty"]}, "rules.queue[1]"),
        ({"filterExpressions": [{"name": "mine", "expression": "node.zone =="}]}, "line 1, column 13"),
        ({"scoreExpressions": [{"name": "mine", "expression": "1 / 0"}]}, "rules.scoreExpressions[0].expression"),
    ],
)
async def test_invalid_policy_is_refused_with_position(api: Api, rules: dict[str, Any], message: str) -> None:
    answer = await api.post(POLICIES, policy(**rules))
    assert answer.code in (400, 422), answer.body
    assert message in answer.body.decode()
    assert (await api.get(f"{POLICIES}/mine")).code == 404
