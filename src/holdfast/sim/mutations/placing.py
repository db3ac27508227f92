"""Mutations of reserve, bind and release."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authority import checks
from holdfast.authority import release as releasing
from holdfast.authority.account import NodeAccount
from holdfast.authority.ledger import Ledger
from holdfast.authority.reserve import Placing
from holdfast.fleet import assign
from holdfast.flow import filter as gates
from holdfast.flow import purse, replicate
from holdfast.flow.filter import residency
from holdfast.flow.retreat import release
from holdfast.model.binding import Desired
from holdfast.model.placement import ReleaseAction
from holdfast.model.replica import PlacementBlock
from holdfast.model.writes import Outcome
from holdfast.sim.mutations.patch import Mutation, Patch
from holdfast.store.contract import Txn
from holdfast.store.head import Head


def residency_ignored(patch: Patch) -> None:
    """Assign, planner and authority ignore residency."""
    rules, why_not, allowed = (
        checks.__dict__["rules"],
        assign.__dict__["why_not"],
        residency.__dict__["region_allowed"],
    )

    def anywhere(found: Any, who: Any, region: str, this_region: Any) -> Any:
        return rules(found, _without_residency(who), region, this_region)

    def any_region(workload: Any, region: Any) -> str:
        return str(why_not(_without_residency(workload), region))

    def allowed_here(placement: Any, snapshot: Any) -> bool:
        return bool(allowed(msgspec.structs.replace(placement, residency=()), snapshot))

    patch.set(checks, "rules", anywhere)
    patch.set(assign, "why_not", any_region)
    patch.set(residency, "region_allowed", allowed_here)


def _without_residency(item: Any) -> Any:
    placement = msgspec.structs.replace(item.spec.placement, residency=())
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, placement=placement))


def _leave_out_filter(patch: Patch, name: str) -> None:
    """Removes one filter from the planner's tables."""
    for table, rows in list(vars(gates).items()):
        if isinstance(rows, tuple) and any(isinstance(row, tuple) and str(row[0]) == name for row in rows):
            patch.set(gates, table, tuple(row for row in rows if str(row[0]) != name))
            return
    raise LookupError(f"the planner has no filter {name}")


def quota_left_out(patch: Patch) -> None:
    """The planner's quota check is disabled too; otherwise it would hardly ever propose too much."""
    patch.set(Ledger, "over_limit", lambda *_: None)
    patch.set(purse, "affordable", lambda ask: len(ask.members))


def ledger_left_out(patch: Patch) -> None:
    """The planner's resource filter is removed too; otherwise it would hardly ever propose too much."""
    patch.set(NodeAccount, "shortage", lambda *_: {})
    _leave_out_filter(patch, "Resources")


def token_not_checked(patch: Patch) -> None:
    """The store does not compare the term of a commit."""
    stage = Head.__dict__["stage"]

    def unchecked(self: Any, txn: Txn) -> Any:
        kept = tuple(c for c in txn.compares if not c.key.startswith("/terms/"))
        return stage(self, Txn(kept, txn.writes, txn.appends))

    patch.set(Head, "stage", unchecked)


def freed_without_proof(patch: Patch) -> None:
    """Release requests the stop and frees the claim at once, while the task may still run."""
    carry_on = release.__dict__["_carry_on"]

    def hasty(replica: Any, binding: Any, node: Any, asked: Any, now: float) -> Any:
        if binding is not None and binding.spec.desired is Desired.STOP:
            return Outcome(releases=(release._item(replica, ReleaseAction.FREE, asked),), again_in_s=1.0)
        return carry_on(replica, binding, node, asked, now)

    def unproven(self: Any, item: Any, replica: Any, binding: Any) -> Any:
        return releasing.freed(self._state, replica, binding, item.reason)

    patch.set(release, "_carry_on", hasty)
    patch.set(releasing.Release, "_free", unproven)


def identity_reused(patch: Patch) -> None:
    """A replica recreated under its name gets its old uid."""
    from hashlib import sha256

    def uid(assignment: Any, name: str, *_: Any) -> str:
        text = sha256(f"{assignment.uid}/{name}".encode()).hexdigest()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"

    patch.set(replicate, "_uid", uid)


class _Forgetful:
    """The authority's state without the claims of replicas."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def replica(self, namespace: str, name: str) -> Any:
        found = self._state.replica(namespace, name)
        if found is None:
            return None
        blank = PlacementBlock(attempt=found.status.placement.attempt)
        return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, placement=blank))


def claimed_twice(patch: Patch) -> None:
    """A repeated proposal creates a second claim with another name, because the existing claim is ignored."""
    plan, want = Placing.__dict__["plan"], Placing.__dict__["_want"]

    def carried_out(self: Any, item: Any) -> Any:
        kept, self._state = self._state, _Forgetful(self._state)
        try:
            return plan(self, item)
        finally:
            self._state = kept

    def named(self: Any, item: Any, replica: Any) -> Any:
        found = want(self, item, replica)
        held = sum(key.startswith(f"{found.namespace}/{found.name}") for key in self._state.ledger.claims)
        return found if not held else msgspec.structs.replace(found, name=f"{found.name}.{held + 1}")

    patch.set(Placing, "plan", carried_out)
    patch.set(Placing, "_want", named)
    patch.set(Placing, "_name_in_use", lambda self, item: None)


def old_attempt_accepted(patch: Patch) -> None:
    patch.set(checks, "attempt", lambda *_: None)


def finalizer_removed_early(patch: Patch) -> None:
    decide = release.__dict__["decide"]

    def early(key: Any, view: Any, now: float) -> Any:
        from holdfast.model.replica import Replica

        replica = view.get(Replica, key.name, key.namespace)
        if replica is not None and replica.metadata.terminating:
            return release._let_go(replica)
        return decide(key, view, now)

    patch.set(release, "decide", early)


TABLE = (
    Mutation(
        "residency-ignored",
        "residency is checked nowhere",
        residency_ignored,
        "residency ignored on reassignment",
        scenario="drained-in-turn",
    ),
    Mutation(
        "quota-left-out",
        "placement does not check the tenant's limit",
        quota_left_out,
        "quota left out of the transaction",
    ),
    Mutation(
        "ledger-left-out",
        "placement does not check the node's capacity",
        ledger_left_out,
        "ledger left out of the transaction",
    ),
    Mutation(
        "token-not-checked",
        "commits do not compare the fencing token",
        token_not_checked,
        "fencing token not checked",
        scenario="late-commits",
    ),
    Mutation(
        "freed-without-proof",
        "a claim is freed without waiting for the stop",
        freed_without_proof,
        "drain does not wait for the stop",
    ),
    Mutation(
        "identity-reused",
        "a recreated replica has its old uid",
        identity_reused,
        "uid reuse on recreate",
    ),
    Mutation(
        "claimed-twice",
        "a proposal that is delivered twice is applied twice",
        claimed_twice,
        scenario="duplicate-reservation-race",
    ),
    Mutation(
        "old-attempt-accepted",
        "a proposal for an ended attempt is accepted",
        old_attempt_accepted,
    ),
    Mutation(
        "finalizer-removed-early",
        "a replica's finalizer is removed before its claim",
        finalizer_removed_early,
        "finalizer removed early",
    ),
)
