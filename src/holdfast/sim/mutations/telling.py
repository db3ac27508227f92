"""Mistakes of watches, statuses and records."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.fleet import workload_status
from holdfast.gate.local import LocalClient
from holdfast.model.kinds import kind_of
from holdfast.runtime.informer import Informer
from holdfast.store.contract import Txn
from holdfast.store.follower import Follower


def watch_resumes_at_now(patch: Any) -> None:
    watch = LocalClient.__dict__["watch"]

    def from_now(self: Any, kind: Any, namespace: str = "", *, after: int, fields: Any = None) -> Any:
        return watch(self, kind, namespace, after=self._objects.head(kind_of(kind)), fields=fields)

    patch.set(LocalClient, "watch", from_now)


def compaction_ignored(patch: Any) -> None:
    """After `Expired` the informer goes on at the head without listing, and never compares either."""
    listing = Informer.__dict__["_list"]

    async def skip(self: Any, cause: str) -> int:
        if cause in ("expired", "resync"):
            return 0
        return int(await listing(self, cause))

    patch.set(Informer, "_list", skip)
    patch.set(
        LocalClient, "watch", _from_now(LocalClient.__dict__["watch"])
    )  # the stream itself still knows what was compacted


def _from_now(watch: Any) -> Any:
    def from_now(self: Any, kind: Any, namespace: str = "", *, after: int, fields: Any = None) -> Any:
        return watch(self, kind, namespace, after=self._objects.head(kind_of(kind)), fields=fields)

    return from_now


def audit_after_commit(patch: Any) -> None:
    """The audit record is not part of the transaction."""
    commit = Follower.__dict__["commit"]

    async def unrecorded(self: Any, txn: Txn) -> Any:
        return await commit(self, Txn(txn.compares, txn.writes, ()))

    patch.set(Follower, "commit", unrecorded)


def observed_too_much(patch: Any) -> None:
    """A status claims to be about a generation that does not exist yet."""
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


TABLE = (
    ("watch-resumes-at-now", "a watch goes on at the head instead of where it was", watch_resumes_at_now),
    ("compaction-ignored", "after a compaction nothing is listed again", compaction_ignored),
    ("audit-after-commit", "the audit record is not in the transaction", audit_after_commit),
    ("observed-too-much", "a status names a generation that does not exist", observed_too_much),
)
