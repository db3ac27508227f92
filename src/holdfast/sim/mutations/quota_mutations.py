"""Mutations of grants, ordinals, disruption budgets and the queue."""

from __future__ import annotations

from typing import Any

from holdfast.fleet import assign, grant_demand, grants, ordinals, quota_division
from holdfast.link import grant_sync
from holdfast.scheduler.proposals import InFlightProposals
from holdfast.sim.mutations.patch import Mutation, Patch


def shrink_unacknowledged(patch: Patch) -> None:
    """A lowered grant frees its quota before the region has acknowledged it."""
    share_out = grants.__dict__["divide_quota"]

    def blind(hard: Any, caps: Any, wanted: Any, current: Any, enforced: Any, *more: Any, **named: Any) -> Any:
        return share_out(hard, caps, wanted, current, {}, *more, **named)

    patch.set(grants, "divide_quota", blind)


def acknowledged_too_early(patch: Patch) -> None:
    """A region acknowledges a smaller limit that it does not enforce yet."""
    copy_writes = grant_sync.__dict__["copy_writes"]

    def slow(key: Any, grants_: Any, here: Any, region: str, last_contact_s: float, **more: Any) -> Any:
        return () if int(last_contact_s) % 40 < 30 else copy_writes(key, grants_, here, region, last_contact_s, **more)

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
    """Reading a grant from the cache renews its lease, so that a partitioned region spends forever."""
    from holdfast.link.link import Link

    report = Link.__dict__["_report"]

    async def renewing(self: Link) -> None:
        import asyncio

        async def renew() -> None:
            while True:
                self.contacts.last_contact_s = self._ports.clock.now()
                self.runners["grant-sync"].resync_now()
                await self._ports.clock.sleep(5.0)

        async with asyncio.TaskGroup() as group:
            group.create_task(renew())
            group.create_task(report(self))

    patch.set(Link, "_report", renewing)


def provisional_without_part(patch: Patch) -> None:
    """Provisional work is not limited by the provisional quota."""
    from holdfast.authority.ledger import Ledger

    patch.set(Ledger, "_provisional_refusal", lambda *_: None)


def returned_while_over_counted(patch: Patch) -> None:
    """A region gets back what it still enforces from before a shrink, even while more is counted than exists."""

    def unbounded(self: Any, region: str, want: int) -> int:
        limit = self._new[region].get(self._resource, 0)
        lacking = want - limit
        if lacking <= 0:
            return 0
        owned = self._counted[region] - limit
        granted = min(lacking, owned + max(0, self.free))
        self.free -= max(0, granted - owned)
        if granted > 0:
            self._new[region][self._resource] = limit + granted
            self._counted[region] = max(self._counted[region], limit + granted)
        return int(lacking - granted)

    patch.set(quota_division._ResourceDivision, "raise_to", unbounded)


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
    """An ordinal moves when its Assignment changes, before the region has released it."""
    patch.set(ordinals, "has_released", lambda *_: True)


def tenure_not_waited_for(patch: Patch) -> None:
    """An ordinal of scope Global moves at its withdrawal, while the region's tenure is valid."""
    patch.set(ordinals, "has_tenure_expired", lambda assignment: assignment.spec.withdrawal is not None)


def tenure_ignored(patch: Patch) -> None:
    """Agents run exclusive work of scope Global for their own lease and ignore the region's tenure."""
    from holdfast.agent.supervisor import TaskSupervisor
    from holdfast.agent.task_decision import LeaseState

    patch.set(LeaseState, "exclusive_deadline_mono_s", lambda self, binding: self.expires_mono_s)
    patch.set(TaskSupervisor, "_tenure_end", lambda self, unit: None)


def member_hogs(patch: Patch) -> None:
    """A finished member of a request is still planned before its siblings."""
    patch.set(InFlightProposals, "_drop_member", lambda self, pending, member: None)


def budget_of_each_region(patch: Patch) -> None:
    """Every region uses the whole disruption budget."""
    patch.set(assign, "disruption_shares", lambda workload, regions, stored: {})


TABLE = (
    Mutation(
        "budget-per-region",
        "every region uses the whole disruption budget",
        budget_of_each_region,
        scenario="drained-in-turn",
    ),
    Mutation(
        "grant-shrink-unacknowledged",
        "a lowered grant frees its quota before the region has acknowledged it",
        shrink_unacknowledged,
        "grant shrunk without acknowledgement",
    ),
    Mutation(
        "grant-acknowledged-early", "a region acknowledges a limit that it does not enforce yet", acknowledged_too_early
    ),
    Mutation(
        "grant-lease-renewed-from-cache",
        "a region renews its grant leases by reading its own cache",
        lease_from_the_cache,
        scenario="cut-off-provisional",
    ),
    Mutation(
        "provisional-share-ignored",
        "provisional work is not limited by the provisional quota",
        provisional_without_part,
        scenario="cut-off-provisional",
    ),
    Mutation(
        "grant-returned-while-over-counted",
        "a shrunk grant is raised again although more is counted than the quota has",
        returned_while_over_counted,
    ),
    Mutation("finished-batch-keeps-grant", "finished batch work still counts as demand", finished_batch_keeps_grant),
    Mutation("ordinal-in-two-regions", "every region numbers exclusive replicas on its own", ordinal_in_two_regions),
    Mutation(
        "ordinal-moved-before-release", "an ordinal moves before its region has released it", ordinal_moved_too_early
    ),
    Mutation(
        "tenure-wait-skipped", "an ordinal of scope Global moves while the tenure is valid", tenure_not_waited_for
    ),
    Mutation(
        "tenure-ignored",
        "agents do not stop work of scope Global when the tenure ends",
        tenure_ignored,
        scenario="tenure",
    ),
    Mutation(
        "finished-member-still-planned",
        "a finished member of a request is still planned before its siblings",
        member_hogs,
    ),
)
