"""A proposal that was made under an override is refused once the override has ended, and planned again (S8)."""

from __future__ import annotations

import msgspec
from tests.authority.cell import TENANT, Cell
from tests.controllers.virtual import until
from tests.scheduling.test_scheduler import Region, in_region

from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import PlacementOutcome, PlacementResponse, ReserveRequest
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica

FAR = "2099-01-01T00:00:00Z"


def avoidance(name: str, region: str, *, phase: str = "Active") -> Override:
    spec = OverrideSpec(OverrideKind.AVOID_ZONE, OverrideScope(region=region, zone="z0"), "smoke")
    return Override(ObjectMeta(name=name), spec, OverrideStatus(phase=phase, expires_at=FAR))


def decision_for(replica: Replica, *overrides: str) -> Decision:
    entry = DecisionEntry(replica=replica.metadata.name, uid=replica.uid, node="n1")
    spec = DecisionSpec(request="web", workload="web", overrides=overrides, entries=(entry,))
    return Decision(metadata=ObjectMeta(name=f"of-{replica.metadata.name}", namespace=TENANT), spec=spec)


async def test_proposal_delivered_after_the_expiry_of_its_override_is_refused(cell: Cell) -> None:
    await cell.put(avoidance("smoke", "us-east"))
    early, late = await cell.replica("early"), await cell.replica("late")
    (accepted,) = await cell.reserve(cell.item(early), decision=decision_for(early, "smoke"))
    assert accepted.result is PlacementOutcome.ACCEPTED
    await cell.put(avoidance("smoke", "us-east", phase="Expired"))
    (refused,) = await cell.reserve(cell.item(late), decision=decision_for(late, "smoke"))
    assert (refused.result, refused.reason) == (PlacementOutcome.REJECTED, Reason.OVERRIDE_EXPIRED)
    assert "override smoke" in refused.message and "next: plan again" in refused.message
    (repeated,) = await cell.reserve(cell.item(early), decision=decision_for(early, "smoke"))
    assert repeated.result is PlacementOutcome.ALREADY, "what was committed in time stays"
    (without,) = await cell.reserve(cell.item(late), decision=decision_for(late))
    assert without.result is PlacementOutcome.ACCEPTED


async def test_proposal_under_a_revoked_or_deleted_override_is_refused(cell: Cell) -> None:
    await cell.put(avoidance("over", "us-east", phase="Revoked"))
    for number, name in enumerate(("over", "deleted")):
        replica = await cell.replica(f"web-{number}")
        (answer,) = await cell.reserve(cell.item(replica), decision=decision_for(replica, name))
        assert answer.reason == Reason.OVERRIDE_EXPIRED and answer.facts["override"] == name


def test_scheduler_plans_again_without_the_override_that_ended_on_the_way() -> None:
    async def test(region: Region) -> None:
        active = avoidance("smoke", "us-east")
        await region.cell.put(active)
        await until(lambda: region.informers.cache.get(Override, "smoke") is not None)
        send = region.scheduler_client.reserve

        async def send_late(request: ReserveRequest) -> PlacementResponse:
            region.scheduler_client.reserve = send  # type: ignore[method-assign]
            stored = region.cell.every(Override)[0]
            await region.cell.put(
                msgspec.structs.replace(stored, status=OverrideStatus(phase="Expired", expires_at=FAR))
            )
            return await send(request)

        region.scheduler_client.reserve = send_late  # type: ignore[method-assign]
        await region.request("web", await region.replicas(1))
        await until(lambda: len(region.bound()) == 1)
        placed = [d for d in region.cell.every(Decision) if d.spec.entries[0].result == "Accepted"]
        assert [d.spec.overrides for d in placed] == [()]

    in_region(test)


def test_decision_names_only_overrides_of_its_own_region() -> None:
    async def test(region: Region) -> None:
        for name, where in (("here", "us-east"), ("elsewhere", "eu-west")):
            await region.cell.put(avoidance(name, where))
        await until(lambda: len(region.informers.cache.list(Override)) == 2)
        await region.request("web", await region.replicas(1))
        await until(lambda: len(region.bound()) == 1)
        (decision,) = region.cell.every(Decision)
        assert decision.spec.overrides == ("here",)

    in_region(test)
