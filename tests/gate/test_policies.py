"""Invalid policies are refused on write, with the position of the error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.errors import Fault, Invalid
from holdfast.model.meta import ObjectMeta
from holdfast.model.scheduler_policy import (
    FilterExpression,
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
    ScoreExpression,
    ScoreName,
    WeightedScore,
)
from holdfast.model.writes import Create, Delete, Update

from .conftest import OPERATOR, World, by


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


def staged(name: str, stage: PromotionStage) -> SchedulerPolicy:
    return SchedulerPolicy(ObjectMeta(name=name), SchedulerPolicySpec(stage=stage))


async def restaged(world: World, name: str, stage: PromotionStage) -> Any:
    stored = world.get(SchedulerPolicy, name)
    spec = msgspec.structs.replace(stored.spec, stage=stage)
    return await world.do(OPERATOR, Update(msgspec.structs.replace(stored, spec=spec)))


@pytest.mark.parametrize("stage", [PromotionStage.SHADOW, PromotionStage.CANARY, PromotionStage.ACTIVE])
async def test_second_policy_outside_draft_is_refused_with_the_name_of_the_first(
    world: World, stage: PromotionStage
) -> None:
    """Regression: a second active policy decided in all regions, while both were shown as Active."""
    await world.create(OPERATOR, staged("default", PromotionStage.ACTIVE))
    refusal = "policy default is in stage Active, and only one policy.*next: holdfast policy shadow default -f FILE"
    with pytest.raises(Fault, match=refusal):
        await world.create(OPERATOR, staged("gpu-guard", stage))
    await world.create(OPERATOR, staged("gpu-guard", PromotionStage.DRAFT))
    with pytest.raises(Fault, match=refusal):
        await restaged(world, "gpu-guard", stage)
    await restaged(world, "default", PromotionStage.DRAFT)
    assert (await restaged(world, "gpu-guard", stage)).spec.stage is stage
    with pytest.raises(Fault, match=f"policy gpu-guard is in stage {stage}"):
        await restaged(world, "default", PromotionStage.ACTIVE)


async def test_only_policy_passes_through_all_stages(world: World) -> None:
    await world.create(OPERATOR, staged("default", PromotionStage.DRAFT))
    for stage in (*PromotionStage, PromotionStage.DRAFT):
        await restaged(world, "default", stage)


async def test_policy_whose_revision_decides_is_not_deleted(world: World) -> None:
    """Regression: the revision of the deleted policy went on deciding, and no policy showed it."""

    async def revision(policy: str, sequence: int, stage: PromotionStage = PromotionStage.ACTIVE) -> None:
        spec = PolicyRevisionSpec(policy=policy, rules=PolicyRules(), sequence=sequence, stage=stage)
        await world.do(by("policy"), Create(PolicyRevision(ObjectMeta(name=f"{policy}-{sequence}"), spec)))

    first = await world.create(OPERATOR, staged("default", PromotionStage.ACTIVE))
    await revision("default", 1)
    with pytest.raises(Fault, match=r"its revision default-1 decides in north; next: set spec.stage of policy default"):
        await world.do(OPERATOR, Delete("SchedulerPolicy", first.key, first.uid))
    await restaged(world, "default", PromotionStage.DRAFT)
    with pytest.raises(Fault, match="default-1 decides"):
        await world.do(OPERATOR, Delete("SchedulerPolicy", first.key, first.uid))
    await world.create(OPERATOR, staged("gpu-guard", PromotionStage.ACTIVE))
    await revision("gpu-guard", 2)
    await world.do(OPERATOR, Delete("SchedulerPolicy", first.key, first.uid))
    assert world.get(SchedulerPolicy, "default") is None
