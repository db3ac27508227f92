"""Mistakes with grants, ordinals and the queue."""

from __future__ import annotations

from typing import Any

from holdfast.fleet import assign, grant_demand, grants, ordinals
from holdfast.link import grant_sync
from holdfast.scheduler.proposals import InFlightProposals
from holdfast.sim.mutations.patch import Mutation, Patch


def shrink_unacknowledged(patch: Patch) -> None:
    """What a region still enforces is not counted: a smaller limit frees at once."""
    share_out = grants.__dict__["divide_quota"]

    def blind(hard: Any, caps: Any, wanted: Any, current: Any, enforced: Any, *more: Any, **named: Any) -> Any:
        return share_out(hard, caps, wanted, current, {}, *more, **named)

    patch.set(grants, "divide_quota", blind)


def acknowledged_too_early(patch: Patch) -> None:
    """A region acknowledges a smaller limit that it does not enforce yet."""
    copy_writes = grant_sync.__dict__["copy_writes"]

    def slow(key: Any, grants_: Any, here: Any, region: str, heard_s: float, **more: Any) -> Any:
        return () if int(heard_s) % 40 < 30 else copy_writes(key, grants_, here, region, heard_s, **more)

    acknowledgement = grant_sync.__dict__["acknowledgement"]

    def early(key: Any, grants_: Any, here: Any, region: str, now: float) -> Any:
        import msgspec

        for write in acknowledgement(key, grants_, here, region, now):
            grant = next(g for g in grants_.list(type_of_grant(), key.namespace) if g.uid == write.uid)
            blocks = {**write.blocks, "limit": dict(grant.spec.limit), "acknowledgedEpoch": grant.spec.epoch}
            yield msgspec.structs.replace(write, blocks=blocks)

    patch.set(grant_sync, "copy_writes", slow)
    patch.set(grant_sync, "acknowledgement", early)


def lease_from_the_cache(patch: Patch) -> None:
    """Reading a grant from the cache renews its lease: a region that is cut off goes on spending for ever."""
    from holdfast.link.link import Link

    beat = Link.__dict__["_beat"]

    async def renewing(self: Any) -> None:
        import asyncio

        async def renew() -> None:
            while True:
                self.heard_s = self._ports.clock.now()
                self.runners["grant-sync"].resync_now()
                await self._ports.clock.sleep(5.0)

        async with asyncio.TaskGroup() as group:
            group.create_task(renew())
            group.create_task(beat(self))

    patch.set(Link, "_beat", renewing)


def provisional_without_part(patch: Patch) -> None:
    """Provisional work is not counted against the part that was set aside for it."""
    from holdfast.authority.ledger import Ledger

    patch.set(Ledger, "_over_provisional", lambda *_: None)


def type_of_grant() -> Any:
    from holdfast.model.quota import Grant

    return Grant


def finished_batch_keeps_grant(patch: Patch) -> None:
    patch.set(grant_demand, "_unfinished_replicas", lambda assignment: assignment.spec.replicas)


def ordinal_in_two_regions(patch: Patch) -> None:
    def each_its_own(shares: Any, stored: Any) -> Any:
        return {region: tuple(range(share)) for region, share in shares.items()}

    patch.set(assign, "assign_ordinals", each_its_own)


def ordinal_moved_too_early(patch: Patch) -> None:
    """An ordinal may go elsewhere as soon as its Assignment says so, not when its region has let go."""
    patch.set(ordinals, "has_released", lambda *_: True)


def tenure_not_waited_for(patch: Patch) -> None:
    """An ordinal of scope Global moves as soon as it was taken away, while the region's tenure still runs."""
    patch.set(ordinals, "has_tenure_expired", lambda assignment: assignment.spec.withdrawal is not None)


def tenure_ignored(patch: Patch) -> None:
    """Agents let exclusive work of scope Global run as long as their own lease, whatever the region's tenure."""
    from holdfast.agent.supervisor import TaskSupervisor
    from holdfast.agent.task_decision import LeaseState

    patch.set(LeaseState, "exclusive_deadline_mono_s", lambda self, binding: self.until_mono_s)
    patch.set(TaskSupervisor, "_tenure_end", lambda self, unit: None)


def member_hogs(patch: Patch) -> None:
    """A member that needs no place any more keeps being planned before its mates: nobody leaves it out."""
    patch.set(InFlightProposals, "_leave_out", lambda self, waiting, member: None)


def budget_of_each_region(patch: Patch) -> None:
    """Every region takes the whole disruption budget for its own."""
    patch.set(assign, "disruption_shares", lambda workload, regions, stored: {})


TABLE = (
    Mutation(
        "budget-per-region",
        "the disruption budget is counted by each region for itself",
        budget_of_each_region,
        scenario="drained-in-turn",
    ),
    Mutation(
        "grant-shrink-unacknowledged",
        "a shrunk grant frees its quota before the region has acknowledged",
        shrink_unacknowledged,
        "grant shrunk without acknowledgement",
    ),
    Mutation(
        "grant-acknowledged-early",
        "a region acknowledges a limit that it does not enforce yet",
        acknowledged_too_early,
    ),
    Mutation(
        "grant-lease-renewed-from-cache",
        "a region renews its grants' lease by reading its own cache",
        lease_from_the_cache,
        scenario="cut-off-provisional",
    ),
    Mutation(
        "provisional-share-ignored",
        "provisional work is not held to its part of the grant",
        provisional_without_part,
        scenario="cut-off-provisional",
    ),
    Mutation(
        "finished-batch-keeps-grant",
        "batch work that is done still counts as demand",
        finished_batch_keeps_grant,
    ),
    Mutation(
        "ordinal-in-two-regions",
        "each region numbers exclusive replicas by itself",
        ordinal_in_two_regions,
    ),
    Mutation(
        "ordinal-moved-before-release",
        "an ordinal moves before its region has let go of it",
        ordinal_moved_too_early,
    ),
    Mutation(
        "tenure-wait-skipped",
        "an ordinal of scope Global moves while a tenure still runs",
        tenure_not_waited_for,
    ),
    Mutation(
        "tenure-ignored",
        "agents do not end work of scope Global with the region's tenure",
        tenure_ignored,
        scenario="tenure",
    ),
    Mutation(
        "finished-member-still-planned",
        "a finished member of a request keeps taking its mates' place",
        member_hogs,
    ),
)
