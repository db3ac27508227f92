"""The scheduler with a real store, gate and authority, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from tests.authority.cell import TENANT, Cell
from tests.controllers.virtual import VirtualClock, run, until
from tests.expected import of_type

from holdfast.authority.reserve import RESERVATION_TTL_S
from holdfast.client.contract import Client
from holdfast.controllers.informer import Informers
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.model import limits
from holdfast.model.active_policy import shadow_policy
from holdfast.model.binding import Binding, Reservation
from holdfast.model.core import Event
from holdfast.model.decision import Decision
from holdfast.model.errors import Ambiguous, Unavailable
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.node import Node
from holdfast.model.override import Override, OverrideKind, OverrideScope, OverrideSpec, OverrideStatus
from holdfast.model.placement_api import (
    PlacementOutcome,
    PlacementResponse,
    PlacementResult,
    ReleaseAction,
    ReserveRequest,
)
from holdfast.model.principal import controller
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import (
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
    ScoreName,
    WeightedScore,
)
from holdfast.model.scheduling_request import (
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.times import seconds_text
from holdfast.model.workload import Gang
from holdfast.scheduler.proposals import ASSUMED_TTL_S
from holdfast.scheduler.request_queue import EXPIRED_VICTIM_BACKOFF_S
from holdfast.scheduler.scheduler import Scheduler
from holdfast.scheduling.replica_requirements import requirements_of
from holdfast.scheduling.snapshot import claim_of_binding
from holdfast.store.contract import Remove, Txn

PROPOSED_MAX = 2000


class FaultyClient:
    """A client whose calls to the authority can fail before or after they take effect."""

    def __init__(self, inner: Client) -> None:
        self._inner = inner
        self.faults: list[str] = []
        self.proposed: list[ReserveRequest] = []
        self.bindings_visible = asyncio.Event()
        """While it is not set, the watch of Bindings is stalled."""
        self.bindings_visible.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch(self, kind: type[Any], namespace: str = "", **more: Any) -> AsyncIterator[Any]:
        batches = self._inner.watch(kind, namespace, **more)
        return self._delayed(batches) if kind is Binding else batches

    async def _delayed(self, batches: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for batch in batches:
            await self.bindings_visible.wait()
            yield batch

    async def reserve(self, request: ReserveRequest) -> PlacementResponse:
        self.proposed.append(request)
        assert len(self.proposed) < PROPOSED_MAX, "busy loop: time does not advance"
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "unavailable":
            raise Unavailable("the authority is not there")
        if fault == "lost":
            raise Ambiguous("no answer; nothing happened")
        if fault == "fleeting":  # accepted, and released before any watch event
            return PlacementResponse(
                tuple(PlacementResult(PlacementOutcome.ACCEPTED, node=item.node, attempt=1) for item in request.items)
            )
        answers = await self._inner.reserve(request)
        if fault == "unheard":
            raise Ambiguous("no answer; it happened")
        return answers


class Region:
    """A regional cell with a scheduler; node leases are renewed automatically."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        gate = Gate("us-east", cell.objects, cell.ports)
        who = controller("scheduler", cell="us-east")
        self.scheduler_client = FaultyClient(LocalClient(gate, who, placement=cell.authority))
        self.informers = Informers(self.scheduler_client, cell.ports)
        self.scheduler = Scheduler(self.scheduler_client, self.informers, cell.ports, "us-east")

    async def renew_leases(self) -> None:
        while True:
            await asyncio.sleep(4.0)
            for node in self.cell.every(Node):
                await self.cell.renew(node.metadata.name, node.status.execution.epoch)

    async def request(
        self,
        name: str,
        replicas: list[Replica],
        *,
        status: SchedulingRequestStatus | None = None,
        created: str = "2026-01-01T00:00:00Z",
        **spec: Any,
    ) -> None:
        members = tuple(RequestMember(r.metadata.name, r.uid, r.status.placement.attempt) for r in replicas)
        spec = {"template": replicas[0].spec.template, **spec}
        await self.cell.put(
            SchedulingRequest(
                ObjectMeta(name=name, namespace=TENANT, generation=1, creation_timestamp=created),
                SchedulingRequestSpec(workload="web", assignment="a", revision="1", members=members, **spec),
                status or SchedulingRequestStatus(),
            )
        )

    def stored(self, name: str = "web") -> SchedulingRequest:
        found = self.cell.objects.get(kind_of(SchedulingRequest), TENANT, name)
        assert isinstance(found, SchedulingRequest)
        return found

    def bound(self) -> dict[str, str]:
        return {b.spec.replica: b.spec.node for b in self.cell.every(Binding)}

    async def replicas(self, count: int, **more: Any) -> list[Replica]:
        return [await self.cell.replica(f"web-{i}", **more) for i in range(count)]


def in_region(test: Callable[[Region], Awaitable[None]], *, nodes: int = 3, chores: bool = False) -> None:
    async def main() -> None:
        cell = await Cell.open(clock=VirtualClock())
        for number in range(nodes):
            await cell.node(f"n{number}", zone=f"z{number % 3}")
        await cell.grant()
        await cell.lead(run=chores)
        region = Region(cell)
        leases = asyncio.create_task(region.renew_leases())
        await region.informers.start()
        await region.scheduler.start()
        try:
            await test(region)
            cell.check_ledger()
        finally:
            await region.scheduler.stop()
            await region.informers.stop()
            leases.cancel()
            await cell.close()

    run(main)


def test_scheduler_places_all_members_and_records_decision() -> None:
    async def test(region: Region) -> None:
        await region.request("web", await region.replicas(6))
        first = region.stored().revision
        await until(lambda: len(region.bound()) == 6)
        assert sorted(region.bound().values()) == ["n0", "n0", "n1", "n1", "n2", "n2"]
        (decision,) = region.cell.every(Decision)
        assert decision.spec.policy_revision == "builtin"
        assert (decision.spec.nodes, decision.spec.feasible) == (3, 3)
        assert len(decision.spec.entries) == 6
        for entry in decision.spec.entries:
            assert entry.result == "Accepted"
            assert entry.score == sum(part.value * part.weight for part in entry.scores)
            assert entry.runner_up != entry.node
        assert all(b.spec.decision == decision.metadata.name for b in region.cell.every(Binding))
        assert region.stored().revision == first, "a request placed at the first attempt is never written"

    in_region(test)


def test_assumed_claim_equals_claim_of_binding() -> None:
    """The observed Binding must not change usage in the snapshot."""

    async def test(region: Region) -> None:
        template = {"labels": {"tier": "front"}, "resources": {"cpu": "1", "memory": "1Gi"}}
        await region.request("web", await region.replicas(1, template=template), max_unavailable=1)
        await until(lambda: len(region.bound()) == 1)
        (binding,) = region.cell.every(Binding)
        ask = requirements_of(region.stored())
        assumed, known = ask.claim(binding.spec.node, ask.members[0], ()), claim_of_binding(binding)
        assert msgspec.structs.replace(assumed, stamp=known.stamp, bound=True) == known

    in_region(test)


def test_600_replicas_are_proposed_in_batches_of_256() -> None:
    async def test(region: Region) -> None:
        for number in range(3):
            await region.cell.change_node(f"n{number}", capacity={"cpu": "400", "memory": "400Gi"})
        await region.request("web", await region.replicas(600))
        await until(lambda: len(region.bound()) == 600)
        assert max(len(r.items) for r in region.scheduler_client.proposed) <= 256
        counts = [list(region.bound().values()).count(f"n{i}") for i in range(3)]
        assert max(counts) - min(counts) <= 1
        assert all(a.result == "Accepted" for d in region.cell.every(Decision) for a in d.spec.entries)

    in_region(test)


def test_unschedulable_request_reports_reason_and_is_placed_on_new_node() -> None:
    async def test(region: Region) -> None:
        await region.request("web", await region.replicas(1, template={"resources": {"cpu": "20"}}))
        await until(lambda: region.stored().status.pending == 1)
        status = region.stored().status
        assert [r.reason for r in status.reasons] == [Reason.INSUFFICIENT_CPU]
        assert status.reasons[0].nodes == 3
        assert status.reasons[0].message == "needs 20 cpu, best free 8 on node n0"
        assert status.attempts >= 1 and status.next_retry_at and "NodeAdded" in status.retry_on
        await until(lambda: bool(region.cell.objects.list(kind_of(Event))[0]), within_s=5)
        (event, *_) = region.cell.objects.list(kind_of(Event))[0]
        assert isinstance(event, Event) and event.reason == Reason.UNSCHEDULABLE and "needs 20 cpu" in event.message
        await asyncio.sleep(30)
        assert not region.bound()
        began = asyncio.get_running_loop().time()
        await region.cell.node("big", zone="z0", capacity={"cpu": "64", "memory": "64Gi"})
        await until(lambda: region.bound() == {"web-0": "big"})
        assert asyncio.get_running_loop().time() - began < 5, "the NodeAdded event triggered a retry"
        await until(lambda: region.stored().status.pending == 0)
        assert region.stored().status.reasons == ()

    in_region(test)


def test_missing_grant_is_announced_only_if_it_does_not_arrive() -> None:
    """An Assignment and its Grant reach a region separately, so a request is often a moment older than its grant."""

    async def test(region: Region) -> None:
        copies = region.cell.every(GrantCopy)
        for copy in copies:
            await region.cell.remove(copy)
        now = seconds_text(region.cell.ports.clock.now())
        for name in ("web", "late"):
            replica = await region.cell.replica(f"{name}-0")
            await region.request(name, [replica], created=now)
        await until(lambda: [r.reason for r in region.stored().status.reasons] == [Reason.NO_GRANT])
        await asyncio.sleep(5)
        assert not region.cell.objects.list(kind_of(Event))[0]
        await asyncio.sleep(60)
        events = [of_type(event, Event) for event in region.cell.objects.list(kind_of(Event))[0]]
        assert events and all("no Normal grant" in event.message for event in events)

    in_region(test)


def test_request_beyond_quota_is_placed_after_grant_increase() -> None:
    async def test(region: Region) -> None:
        await region.cell.grant(limit={"cpu": "2", "memory": "1000Gi"})
        await region.request("web", await region.replicas(4))
        await until(lambda: len(region.bound()) == 2)
        await until(lambda: region.stored().status.pending == 2)
        await until(lambda: [r.reason for r in region.stored().status.reasons] == [Reason.QUOTA_EXCEEDED])
        assert "GrantChanged" in region.stored().status.retry_on
        await region.cell.grant()
        await until(lambda: len(region.bound()) == 4, within_s=5)

    in_region(test)


def test_request_that_waits_is_placed_by_the_next_scheduler() -> None:
    """The queue is the stored requests: a scheduler that starts later finds those of the scheduler before it."""

    async def test(region: Region) -> None:
        await region.request("big", await region.replicas(1, template={"resources": {"cpu": "12"}}))
        await until(lambda: region.stored("big").status.pending == 1)
        await region.scheduler.stop()
        await region.informers.stop()
        await region.cell.node("large", capacity={"cpu": "16", "memory": "64Gi"})
        await asyncio.sleep(60.0)
        assert region.bound() == {}, "no scheduler runs"
        following = Region(region.cell)
        await following.informers.start()
        await following.scheduler.start()
        await until(lambda: region.bound() == {"web-0": "large"})
        await following.scheduler.stop()
        await following.informers.stop()

    in_region(test)


def test_released_replica_is_placed_again_with_next_attempt() -> None:
    async def test(region: Region) -> None:
        (replica,) = await region.replicas(1)
        await region.request("web", [replica])
        await until(lambda: len(region.bound()) == 1)
        node = region.bound()["web-0"]
        await region.cell.release(region.cell.get_replica(), ReleaseAction.STOP)
        await region.cell.acknowledge("web-0.1")
        await region.cell.change_node(node, unschedulable=True)
        await region.cell.release(region.cell.get_replica(), ReleaseAction.FREE)
        await until(lambda: region.cell.binding("web-0.2") is not None, within_s=10)
        assert region.bound()["web-0"] != node

    in_region(test)


def test_recreated_replica_is_proposed_once_despite_stale_claim_of_same_name() -> None:
    async def test(region: Region) -> None:
        (old,) = await region.replicas(1)
        await region.request("old", [old])
        await until(lambda: len(region.informers.cache.list(Binding)) == 1)
        region.scheduler_client.bindings_visible.clear()
        await region.cell.release(region.cell.get_replica(), ReleaseAction.STOP)
        await region.cell.acknowledge("web-0.1")
        await region.cell.release(region.cell.get_replica(), ReleaseAction.FREE)
        await region.cell.remove(region.stored("old"))
        await region.cell.remove(region.cell.get_replica())
        (new,) = await region.replicas(1)
        assert new.uid != old.uid
        region.scheduler_client.proposed.clear()
        await region.request("web", [new])
        await until(lambda: region.cell.binding("web-0.1") is not None)
        await asyncio.sleep(5)
        (known,) = region.informers.cache.list(Binding)
        assert known.spec.intent.replica_uid == old.uid, "the watch has not delivered the new Binding"
        assert len(region.scheduler_client.proposed) == 1, "an accepted proposal is not repeated"
        region.scheduler_client.bindings_visible.set()
        await until(lambda: region.informers.cache.list(Binding)[0].spec.intent.replica_uid == new.uid)
        await asyncio.sleep(ASSUMED_TTL_S + 1)
        assert len(region.scheduler_client.proposed) == 1, "late events change nothing"

    in_region(test)


def test_capacity_freed_by_replaced_binding_in_list_wakes_request() -> None:
    """No watch event reports the deletion: a list shows a Binding of the same name for another, smaller replica."""

    async def test(region: Region) -> None:
        cell = region.cell
        (old,) = await region.replicas(1, template={"resources": {"cpu": "6"}})
        await region.request("old", [old])
        await until(lambda: len(region.informers.cache.list(Binding)) == 1)
        big = await cell.replica("big-0", template={"resources": {"cpu": "6"}})
        await region.request("big", [big])
        await until(lambda: region.stored("big").status.pending == 1)
        await asyncio.sleep(4 * limits.QUEUE_BACKOFF_MAX_S)
        region.scheduler_client.bindings_visible.clear()
        await cell.release(cell.get_replica(), ReleaseAction.STOP)
        await cell.acknowledge("web-0.1")
        await cell.release(cell.get_replica(), ReleaseAction.FREE)
        await cell.remove(region.stored("old"))
        await cell.remove(cell.get_replica())
        (new,) = await region.replicas(1)
        (answer,) = await cell.reserve(cell.item(new, "n0"))
        assert answer.binding == "web-0.1" and new.uid != old.uid
        began = asyncio.get_running_loop().time()
        await region.informers.refresh([Binding])
        await until(lambda: "big-0" in region.bound())
        assert asyncio.get_running_loop().time() - began < 2, "it did not wait for its backoff"
        region.scheduler_client.bindings_visible.set()

    in_region(test, nodes=1)


def test_unanswered_proposal_is_read_back_and_not_repeated() -> None:
    async def test(region: Region) -> None:
        region.scheduler_client.faults = ["unheard"]
        await region.request("web", await region.replicas(3))
        await until(lambda: len(region.bound()) == 3)
        await asyncio.sleep(5)
        assert len(region.scheduler_client.proposed) == 1, "committed claims are not proposed again"

    in_region(test)


def test_failed_proposals_are_repeated_with_same_intents() -> None:
    async def test(region: Region) -> None:
        region.scheduler_client.faults = ["lost", "unavailable", "lost"]
        await region.request("web", await region.replicas(3))
        await until(lambda: len(region.bound()) == 3)
        intents = [item.intent for request in region.scheduler_client.proposed for item in request.items]
        assert len(set(intents)) == 3, "always the same three intents"

    in_region(test)


def test_accepted_proposal_not_observed_in_time_is_planned_again() -> None:
    async def test(region: Region) -> None:
        region.scheduler_client.faults = ["fleeting"]
        began = asyncio.get_running_loop().time()
        await region.request("web", await region.replicas(2))
        await until(lambda: len(region.bound()) == 2)
        took_s = asyncio.get_running_loop().time() - began
        assert ASSUMED_TTL_S <= took_s < ASSUMED_TTL_S + 0.5, "the next resync may be later"

    in_region(test)


def test_scheduler_stop_concurrent_with_event_ends() -> None:
    async def test(region: Region) -> None:
        await region.request("web", await region.replicas(1))
        await until(lambda: len(region.bound()) == 1)
        await asyncio.sleep(1.0)  # the scheduler is idle
        region.scheduler._work_available.set()
        async with asyncio.timeout(5.0):
            await region.scheduler.stop()

    in_region(test)


def test_outcompeted_request_is_placed_soon_after_rejected_proposal() -> None:
    """Both requests have long backoffs, so a retry within seconds is caused by the rejection."""

    async def test(region: Region) -> None:
        await region.scheduler.stop()
        for name, priority in (("first", 9), ("second", 0)):
            made = await region.cell.replica(f"{name}-0", template={"resources": {"cpu": "6"}})
            await region.request(name, [made], priority=priority, status=SchedulingRequestStatus(pending=1, attempts=9))
        await until(lambda: len(region.informers.cache.list(SchedulingRequest)) == 2)
        region.scheduler_client.faults = ["unavailable"]
        await region.scheduler.start()
        await until(lambda: region.bound() == {"second-0": "n0"}, within_s=5)
        assert [item.replica for sent_request in region.scheduler_client.proposed for item in sent_request.items] == [
            "first-0",
            "second-0",
        ]

    in_region(test, nodes=1)


def test_victim_of_an_expired_nomination_is_not_nominated_again_soon() -> None:
    """Seed 912: the victim may not be evicted, which the planner cannot see. It was nominated every minute, forever."""

    async def test(region: Region) -> None:
        low = await region.cell.replica("low-0", template={"resources": {"cpu": "6"}})
        await region.request("low", [low])
        await until(lambda: region.bound() == {"low-0": "n0"})
        high = await region.cell.replica("web-0", priority=9, template={"resources": {"cpu": "6"}})
        await region.request("web", [high], priority=9, may_preempt=True)
        await until(lambda: len(region.cell.every(Reservation)) == 1)
        assert region.cell.every(Reservation)[0].spec.victims
        await until(lambda: not region.cell.every(Reservation), within_s=RESERVATION_TTL_S + 10)
        began_s = asyncio.get_running_loop().time()
        # As `replicate` does: the request was deleted while its replica had a nomination, and is created again.
        stored = region.stored()
        await region.cell.objects.commit(None, Txn(writes=(Remove(kind_of(stored).store_key(TENANT, "web")),)))
        released = region.cell.objects.get(kind_of(Replica), TENANT, "web-0")
        assert isinstance(released, Replica) and released.status.placement.attempt == 2
        await region.request("web", [released], priority=9, may_preempt=True)
        await until(lambda: "NoVictims" in {r.reason for r in region.stored().status.reasons}, within_s=30)
        assert "could not be evicted lately" in str(region.stored().status.reasons)
        await until(lambda: bool(region.cell.every(Reservation)), within_s=2 * EXPIRED_VICTIM_BACKOFF_S)
        waited_s = asyncio.get_running_loop().time() - began_s
        assert waited_s >= EXPIRED_VICTIM_BACKOFF_S - 10, "tried again, but not soon"

    in_region(test, nodes=1, chores=True)


def test_two_schedulers_bind_each_replica_once() -> None:
    async def test(region: Region) -> None:
        second = Region(region.cell)
        await second.informers.start()
        await second.scheduler.start()
        await region.request("web", await region.replicas(20))
        await until(lambda: len(region.bound()) == 20)
        await second.scheduler.stop()
        await second.informers.stop()
        assert len(region.cell.every(Binding)) == 20

    in_region(test)


def test_gang_is_pending_until_all_members_fit() -> None:
    async def test(region: Region) -> None:
        replicas = await region.replicas(4, template={"resources": {"cpu": "8"}})
        await region.request("web", replicas, gang=Gang(min_available=4))
        await until(lambda: region.stored().status.pending == 4)
        assert not region.bound()
        assert region.stored().status.reasons[0].reason == Reason.GANG_INCOMPLETE
        expected = "the gang needs 4 members placed together (found nodes for 3 of 4)"
        assert region.stored().status.reasons[0].message == expected
        await region.cell.node("n3", zone="z0")
        await until(lambda: len(region.bound()) == 4)

    in_region(test)


def test_avoid_zone_override_keeps_replicas_out_of_zone() -> None:
    async def test(region: Region) -> None:
        spec = OverrideSpec(OverrideKind.AVOID_ZONE, OverrideScope(region="us-east", zone="z0"), "smoke")
        status = OverrideStatus(phase="Active", expires_at="2099-01-01T00:00:00Z")
        await region.cell.put(Override(ObjectMeta(name="smoke"), spec, status))
        await until(lambda: region.informers.cache.get(Override, "smoke") is not None)
        await region.request("web", await region.replicas(4))
        await until(lambda: len(region.bound()) == 4)
        assert set(region.bound().values()) == {"n1", "n2"}

    in_region(test)


def test_scheduler_uses_canary_policy_of_its_region() -> None:
    async def test(region: Region) -> None:
        packing = PolicyRules(scores=(WeightedScore(name=ScoreName.PACKING, weight=1),))
        spec = PolicyRevisionSpec(
            policy="p", rules=packing, sequence=3, stage=PromotionStage.CANARY, regions=("us-east",)
        )
        elsewhere = PolicyRevisionSpec(policy="p", rules=PolicyRules(), sequence=9, stage=PromotionStage.CANARY)
        await region.cell.put(PolicyRevision(ObjectMeta(name="packed"), spec))
        await region.cell.put(PolicyRevision(ObjectMeta(name="other"), elsewhere))
        await until(lambda: len(region.informers.cache.list(PolicyRevision)) == 2)
        await region.request("web", await region.replicas(5))
        await until(lambda: len(region.bound()) == 5)
        assert len(set(region.bound().values())) == 1
        assert {b.spec.policy_revision for b in region.cell.every(Binding)} == {"packed"}
        assert {d.spec.policy_sequence for d in region.cell.every(Decision)} == {3}

    in_region(test)


def test_shadow_policy_is_compared_and_not_applied() -> None:
    async def test(region: Region) -> None:
        packing = PolicyRules(scores=(WeightedScore(name=ScoreName.PACKING, weight=1),))
        active = PolicyRevisionSpec(policy="p", rules=PolicyRules(), sequence=1)
        shadow = PolicyRevisionSpec(policy="p", rules=packing, sequence=2, stage=PromotionStage.SHADOW)
        await region.cell.put(PolicyRevision(ObjectMeta(name="spread"), active))
        await region.cell.put(PolicyRevision(ObjectMeta(name="packed"), shadow))
        await until(lambda: len(region.informers.cache.list(PolicyRevision)) == 2)
        await region.request("web", await region.replicas(6))
        await until(lambda: len(region.bound()) == 6)
        assert len(set(region.bound().values())) == 3, "the active policy spreads"
        (decision,) = region.cell.every(Decision)
        said = decision.spec.shadow
        assert decision.spec.policy_revision == "spread"
        assert said is not None and said.revision == "packed"
        assert said.same + said.different == 6 and said.different >= 4 and not said.additional and not said.missing
        assert len({entry.node for entry in said.entries}) == 1, "the shadow would have packed"

    in_region(test)


def test_shadow_policy_older_than_active_is_ignored() -> None:
    shadow = PolicyRevisionSpec(policy="p", rules=PolicyRules(), sequence=2, stage=PromotionStage.SHADOW)
    active = PolicyRevisionSpec(policy="p", rules=PolicyRules(), sequence=3)
    tried = PolicyRevision(ObjectMeta(name="tried"), shadow)
    assert shadow_policy([tried]) is not None
    assert shadow_policy([tried, PolicyRevision(ObjectMeta(name="newer"), active)]) is None


def test_terminating_member_is_not_proposed_again() -> None:
    async def test(region: Region) -> None:
        (replica,) = await region.replicas(1)
        await region.request("web", [replica])
        await until(lambda: len(region.bound()) == 1)
        await region.cell.release(region.cell.get_replica(), ReleaseAction.STOP)
        await region.cell.acknowledge("web-0.1")
        gone = msgspec.structs.replace(
            region.cell.get_replica(),
            metadata=msgspec.structs.replace(
                region.cell.get_replica().metadata, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=("x",)
            ),
        )
        await region.cell.put(gone)
        await region.cell.release(region.cell.get_replica(), ReleaseAction.FREE)
        await asyncio.sleep(20)
        assert not region.bound()
        assert len(region.scheduler_client.proposed) <= 3

    in_region(test)
