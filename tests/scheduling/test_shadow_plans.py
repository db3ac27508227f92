"""Which batches are compared with the shadow policy, and what the Decision says of the others."""

from __future__ import annotations

from tests.controllers.virtual import until
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.model.decision import Decision, Shadow
from holdfast.model.meta import ObjectMeta
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRevisionSpec, PolicyRules, PromotionStage

TOO_LARGE = {"resources": {"cpu": "500"}}


async def shadow_the_same_rules(region: Region) -> None:
    for name, sequence, stage in (("active", 1, PromotionStage.ACTIVE), ("tried", 2, PromotionStage.SHADOW)):
        spec = PolicyRevisionSpec(policy="p", rules=PolicyRules(), sequence=sequence, stage=stage)
        await region.cell.put(PolicyRevision(ObjectMeta(name=name), spec))
    await until(lambda: len(region.informers.cache.list(PolicyRevision)) == 2)


def decisions(region: Region) -> list[Decision]:
    return list(region.cell.every(Decision))


def recorded(region: Region, request: str) -> Shadow | None:
    (found,) = [d.spec.shadow for d in decisions(region) if d.spec.request == request]
    return found


def test_batch_that_places_nothing_is_not_the_same_and_hides_no_placement() -> None:
    """Regression: a refused batch was counted as the same, and the batch that placed its replicas was not compared."""

    async def test(region: Region) -> None:
        await shadow_the_same_rules(region)
        await region.request("large", [await region.cell.replica("large-0", template=TOO_LARGE)])
        await until(lambda: bool(decisions(region)))
        await region.request("web", await region.replicas(2))
        await until(lambda: len(region.bound()) == 2)
        assert recorded(region, "large") is None
        assert recorded(region, "web") == Shadow(revision="tried", same=2)

    in_region(test)


def test_second_placement_within_the_interval_is_counted_as_skipped() -> None:
    async def test(region: Region) -> None:
        await shadow_the_same_rules(region)
        await region.request("first", [await region.cell.replica("first-0")])
        await until(lambda: len(region.bound()) == 1)
        await region.request("second", [await region.cell.replica("second-0")])
        await until(lambda: len(region.bound()) == 2)
        assert recorded(region, "first") == Shadow(revision="tried", same=1)
        assert recorded(region, "second") == Shadow(revision="tried", skipped=1)

    in_region(test)
