"""Mutations of watches, statuses and audit records."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authority import bind, reserve
from holdfast.controllers.informer import Informer
from holdfast.fleet import workload_status
from holdfast.gate import write_plan
from holdfast.gate.local_client import LocalClient
from holdfast.model import replica
from holdfast.model.kinds import kind_of
from holdfast.sim.mutations.patch import Mutation, Patch
from holdfast.store.contract import Txn
from holdfast.store.follower import Follower


def watch_resumes_at_now(patch: Patch) -> None:
    watch = LocalClient.__dict__["watch"]

    def from_now(self: LocalClient, kind: Any, namespace: str = "", *, after: int, fields: Any = None) -> Any:
        return watch(self, kind, namespace, after=self._objects.head(kind_of(kind)), fields=fields)

    patch.set(LocalClient, "watch", from_now)


def compaction_ignored(patch: Patch) -> None:
    """After `Expired` the informer takes only the revision of the list, and it never resyncs."""
    listing = Informer.__dict__["_list"]

    async def skip(self: Informer[Any], cause: str) -> int:
        if cause == "first":
            return int(await listing(self, cause))
        if cause == "expired":
            found = await self._client.list(self.kind, fields=self.fields or None)
            self.revision = max(self.revision, found.revision)
        return 0

    patch.set(Informer, "_list", skip)


def audit_after_commit(patch: Patch) -> None:
    """The audit record is written in a second transaction."""
    commit = Follower.__dict__["commit"]

    async def recorded_later(self: Follower, txn: Txn) -> Any:
        if not txn.writes or not txn.appends:
            return await commit(self, txn)
        committed = await commit(self, Txn(txn.compares, txn.writes, ()))
        await commit(self, Txn((), (), txn.appends))
        return committed

    patch.set(Follower, "commit", recorded_later)


def observed_too_much(patch: Patch) -> None:
    """A status has an observedGeneration that does not exist yet."""
    decide = workload_status.__dict__["decide"]

    def ahead(key: Any, view: Any, now: float) -> Any:
        outcome = decide(key, view, now)
        writes = tuple(
            msgspec.structs.replace(w, observed_generation=w.observed_generation + 1)
            if getattr(w, "observed_generation", 0)
            else w
            for w in outcome.writes
        )
        return msgspec.structs.replace(outcome, writes=writes)

    patch.set(workload_status, "decide", ahead)
    patch.set(write_plan, "_observed_causes", lambda *_: ())


def late_report_accepted(patch: Patch) -> None:
    """The gate does not compare the numbers of an agent's reports."""
    is_older = replica.__dict__["_is_older_report"]

    def unnumbered(old: Any, new: Any) -> bool:
        return bool(is_older(old, msgspec.structs.replace(new, sequence=0) if new is not None else None))

    patch.set(replica, "_is_older_report", unnumbered)


def fencing_token_repeats(patch: Patch) -> None:
    """The fencing token counts the attempts of one Replica, as HOLDFAST_EPOCH does."""

    def attempts(assignment: Any, item: Any) -> str:
        return f"{item.status.placement.attempt:016x}" if item.spec.exclusive is not None else ""

    for module in (bind, reserve):
        patch.set(module, "fencing_token", attempts)


TABLE = (
    Mutation(
        "watch-resumes-at-now",
        "a watch resumes at the head instead of its last revision",
        watch_resumes_at_now,
        'watch resumes at "now"',
    ),
    Mutation(
        "compaction-ignored",
        "after a compaction the informer does not list again",
        compaction_ignored,
        "compaction ignored",
        scenario="watches-expire",
    ),
    Mutation(
        "audit-after-commit",
        "the audit record is written in a second transaction",
        audit_after_commit,
        "audit written after commit",
    ),
    Mutation("late-report-accepted", "a report that was delayed on its way replaces a newer one", late_report_accepted),
    Mutation(
        "fencing-token-repeats", "a successor of exclusive work has no higher fencing token", fencing_token_repeats
    ),
    Mutation("observed-generation-ahead", "a status has an observedGeneration that does not exist", observed_too_much),
)
