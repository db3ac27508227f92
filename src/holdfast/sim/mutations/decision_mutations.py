"""Mutations of decisions: elections, policies, preemption, autoscaling, and commits without a response."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from holdfast.authority.commits import Commits
from holdfast.controllers.leader_election import NAMESPACE, Election
from holdfast.fleet import autoscale
from holdfast.fleet.recovery import failback
from holdfast.model.active_policy import ActivePolicy
from holdfast.model.core import Lease
from holdfast.model.errors import Fault
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.writes import Update
from holdfast.scheduler.scheduler import Scheduler
from holdfast.scheduling.eviction import preempted, rebalance
from holdfast.sim.mutations.patch import Mutation, Patch
from holdfast.store.contract import Txn

AGAIN_AFTER_S = 5.0
RULES_KEPT_S = 20.0


def bind_retried_blindly(patch: Patch) -> None:
    """A commit without a response is repeated without its compares."""

    async def again(self: Commits, txn: Any, probe: Any, token: Any, unknown: Any) -> Any:
        await self._clock.sleep(AGAIN_AFTER_S)
        term = tuple(c for c in txn.compares if c.key.startswith("/terms/"))
        return await self._objects.commit(None, Txn(term, txn.writes, txn.appends))

    patch.set(Commits, "_resolve", again)


def lease_revoked_in_finally(patch: Patch) -> None:
    """A leader that loses its term clears the lease, even if another leader holds it by now."""
    lose = Election.__dict__["_lose"]

    async def revoke(self: Any) -> None:
        with contextlib.suppress(Fault):
            lease = await self._client.get(Lease, self.name, NAMESPACE)
            if lease is not None:
                spec = msgspec.structs.replace(lease.spec, holder_identity="")
                await self._client.commit([Update(msgspec.structs.replace(lease, spec=spec))])

    def revoking(self: Any, why: str) -> None:
        led = self._token is not None
        lose(self, why)
        if led:
            self._revoking = asyncio.get_running_loop().create_task(revoke(self))

    patch.set(Election, "_lose", revoking)


def policy_read_twice(patch: Patch) -> None:
    """The planner uses rules of an earlier read; the recorded revision is read again."""
    launch = Scheduler.__dict__["_plan_and_send"]

    def mixed(self: Any, parts: Any, policy: Any) -> None:
        now = self._ports.clock.monotonic()
        read_s, rules = getattr(self, "_first_read", (now, policy.rules))
        if now - read_s > RULES_KEPT_S:
            read_s, rules = now, policy.rules
        self._first_read = (read_s, rules)
        launch(self, parts, ActivePolicy(policy.revision, policy.sequence, rules))

    patch.set(Scheduler, "_plan_and_send", mixed)


def evicted_without_destination(patch: Patch) -> None:
    """Reclaimable work is evicted as soon as higher-priority work is pending, even if that would not fit."""
    why = preempted.__dict__["preemption_reason"]

    def at_once(replica: Any, view: Any) -> Any:
        found = why(replica, view)
        if found is not None or not replica.spec.reclaimable or not replica.status.placement.binding:
            return found
        rank = replica.spec.priority
        waiting = [r for r in view.list(Replica) if stage(r) is Stage.QUEUED and r.spec.priority > rank]
        if not waiting:
            return None
        return Reason.PREEMPTED, "preempt", f"{waiting[0].key} is pending and has higher priority"

    patch.set(preempted, "preemption_reason", at_once)


def pending_ignored(patch: Patch) -> None:
    """The autoscaler adds replicas although earlier ones are still pending."""
    patch.set(autoscale, "scale_up_blocked_reason", lambda current, observed: "")


def stale_serving_trusted(patch: Patch) -> None:
    """A failback counts the reported serving replicas, however old the report is."""
    patch.set(failback, "_serves_fully", lambda item, view: item.status.serving >= item.spec.replicas)


def moved_without_gain(patch: Patch) -> None:
    """A replica moves for a more even spread although the spread is even and no better node is planned."""

    def unplanned(assignment: Any, replica: Any, *context: Any, **named: Any) -> rebalance.Move:
        return rebalance.Move(replica, "", "", "it has been there for long")

    patch.set(rebalance, "_crowded", lambda replicas, nodes: list(replicas))
    patch.set(rebalance, "_planned", unplanned)
    patch.set(rebalance, "_did_not_help", lambda replica, now: False)


TABLE = (
    Mutation(
        "moved-without-gain",
        "rebalancing moves replicas of a service that is spread evenly",
        moved_without_gain,
        scenario="uneven-spread",
    ),
    Mutation(
        "bind-retried-blindly",
        "a commit without a response is repeated without its compares",
        bind_retried_blindly,
        "bind retried blindly after a timeout",
        scenario="lost-answers",
    ),
    Mutation(
        "lease-revoked-in-finally",
        "a former leader clears a lease that another leader holds",
        lease_revoked_in_finally,
        "lease revoked in a finally",
    ),
    Mutation(
        "policy-read-twice",
        "a decision uses one policy revision and names another",
        policy_read_twice,
        "policy revision read twice within one decision",
        scenario="policy-in-the-middle",
    ),
    Mutation(
        "evicted-without-destination",
        "reclaimable work is evicted for a replica that does not fit even then",
        evicted_without_destination,
        "reclaimable work evicted without a node for the preemptor",
    ),
    Mutation(
        "failback-trusts-stale-serving",
        "a failback trusts a report from before the incident",
        stale_serving_trusted,
        scenario="stale-failback",
    ),
    Mutation(
        "autoscaler-ignores-pending",
        "the autoscaler adds replicas while replicas are pending",
        pending_ignored,
        "autoscaler ignores pending reasons",
        scenario="autoscaler-under-low-readiness",
    ),
)
