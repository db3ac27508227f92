"""Mistakes of reserve, bind and release."""

from __future__ import annotations

from typing import Any

from holdfast.authority import checks
from holdfast.authority import release as releasing
from holdfast.authority.account import NodeAccount
from holdfast.authority.ledger import Ledger
from holdfast.fleet import assign
from holdfast.flow import filter as gates
from holdfast.flow import replicate
from holdfast.flow.retreat import release
from holdfast.store.contract import Txn
from holdfast.store.follower import Follower


def residency_ignored(patch: Any) -> None:
    patch.set(checks, "rules", lambda *_: None)
    patch.set(assign, "why_not", lambda *_: "")
    _leave_out_filter(patch, "Residency")


def _leave_out_filter(patch: Any, name: str) -> None:
    """The planner goes without one of its filters, wherever its table keeps it."""
    for table, rows in list(vars(gates).items()):
        if isinstance(rows, tuple) and any(isinstance(row, tuple) and str(row[0]) == name for row in rows):
            patch.set(gates, table, tuple(row for row in rows if str(row[0]) != name))
            return
    raise LookupError(f"the planner has no filter {name}")


def quota_left_out(patch: Any) -> None:
    patch.set(Ledger, "over_limit", lambda *_: None)


def ledger_left_out(patch: Any) -> None:
    """And the planner does not look at resources either, or it would hardly ever propose too much."""
    patch.set(NodeAccount, "shortage", lambda *_: {})
    _leave_out_filter(patch, "Resources")


def token_not_checked(patch: Any) -> None:
    commit = Follower.__dict__["commit"]

    async def unchecked(self: Any, txn: Txn) -> Any:
        kept = tuple(c for c in txn.compares if not c.key.startswith("/terms/"))
        return await commit(self, Txn(kept, txn.writes, txn.appends))

    patch.set(Follower, "commit", unchecked)


def freed_without_proof(patch: Any) -> None:
    """Release does not wait for the stop: the place is given away while the work may still run."""
    patch.set(
        releasing.Release,
        "_free",
        lambda self, item, replica, binding: releasing.freed(self._state, replica, binding, item.reason),
    )
    patch.set(release, "_runs", lambda *_: False)


def identity_reused(patch: Any) -> None:
    """A replica that comes back under its old name has its old uid."""
    from hashlib import sha256

    def uid(assignment: Any, name: str, *_: Any) -> str:
        text = sha256(f"{assignment.uid}/{name}".encode()).hexdigest()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"

    patch.set(replicate, "_uid", uid)


def old_attempt_accepted(patch: Any) -> None:
    patch.set(checks, "attempt", lambda *_: None)


def finalizer_removed_early(patch: Any) -> None:
    decide = release.__dict__["decide"]

    def early(key: Any, view: Any, now: float) -> Any:
        from holdfast.model.replica import Replica

        replica = view.get(Replica, key.name, key.namespace)
        if replica is not None and replica.metadata.terminating:
            return release._let_go(replica)
        return decide(key, view, now)

    patch.set(release, "decide", early)


TABLE = (
    ("residency-ignored", "residency is checked nowhere", residency_ignored),
    ("quota-left-out", "the tenant's limit is left out of the check of a placement", quota_left_out),
    ("ledger-left-out", "the node's capacity is left out of the check of a placement", ledger_left_out),
    ("token-not-checked", "commits do not compare the fencing token", token_not_checked),
    ("freed-without-proof", "a place is freed without waiting for the stop", freed_without_proof),
    ("identity-reused", "a replica made again under its name has the uid it had", identity_reused),
    ("old-attempt-accepted", "a proposal for a released attempt is accepted", old_attempt_accepted),
    ("finalizer-removed-early", "a replica's finalizer goes before its place is freed", finalizer_removed_early),
)
