"""Mutations of reserve, bind and release."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authority import placement_checks
from holdfast.authority import release as releasing
from holdfast.authority.bind import BindHandler
from holdfast.authority.ledger import Ledger
from holdfast.authority.node_account import NodeAccount
from holdfast.authority.placement_gates import NO_RELIANCE, PlacementGates
from holdfast.authority.reserve import ReserveJob
from holdfast.authority.state import NODE
from holdfast.model import placement_eligibility as eligibility
from holdfast.model.binding import DesiredRunState
from holdfast.model.node import Node
from holdfast.model.placement_api import ReleaseAction
from holdfast.model.replica import PlacementBlock
from holdfast.model.writes import Outcome
from holdfast.scheduling import filters as gates
from holdfast.scheduling import quota_headroom, replicate
from holdfast.scheduling.eviction import release
from holdfast.scheduling.filters import taints
from holdfast.sim.mutations.patch import Mutation, Patch
from holdfast.store.contract import Txn
from holdfast.store.head import StoreHead


def residency_ignored(patch: Patch) -> None:
    """Assign, planner and authority ignore residency."""
    patch.set(eligibility, "satisfies_residency", lambda rules, tags: True)


def affinity_ignored(patch: Patch) -> None:
    """Planner and authority ignore affinity and anti-affinity."""
    _leave_out_filter(patch, "Affinity")
    patch.set(PlacementGates, "_anti_affinity_refusal", lambda *_: None)
    patch.set(PlacementGates, "_near_required", lambda *_: NO_RELIANCE)


def taints_ignored(patch: Patch) -> None:
    """Planner and authority place replicas on tainted nodes."""
    patch.set(eligibility, "first_untolerated_taint", lambda taints, tolerations: None)
    patch.set(taints, "first_untolerated_taint", lambda there, tolerations: None)


def taint_evicts_beyond_budget(patch: Patch) -> None:
    """A NoExecute taint evicts all replicas of a node at once."""
    blocked = release.__dict__["eviction_blocked_reason"]

    def unblocked(replica: Any, view: Any) -> str:
        node = view.get(Node, replica.status.placement.node)
        tainted = node is not None and eligibility.evicting_taint(node.spec.taints, replica.spec.placement.tolerations)
        return "" if tainted else str(blocked(replica, view))

    patch.set(release, "eviction_blocked_reason", unblocked)


def _leave_out_filter(patch: Patch, name: str) -> None:
    """Removes one filter from the planner's tables."""
    for table, rows in list(vars(gates).items()):
        if isinstance(rows, tuple) and any(isinstance(row, tuple) and str(row[0]) == name for row in rows):
            patch.set(gates, table, tuple(row for row in rows if str(row[0]) != name))
            return
    raise LookupError(f"the planner has no filter {name}")


def quota_left_out(patch: Patch) -> None:
    """The planner's quota check is disabled too; otherwise it would hardly ever propose too much."""
    patch.set(Ledger, "limit_refusal", lambda *_: None)
    patch.set(quota_headroom, "affordable_members", lambda ask: len(ask.members))


def ledger_left_out(patch: Patch) -> None:
    """The planner's resource filter is removed too; otherwise it would hardly ever propose too much."""
    patch.set(NodeAccount, "shortage", lambda *_: {})
    _leave_out_filter(patch, "Resources")


def token_not_checked(patch: Patch) -> None:
    """The store does not compare the term of a commit."""
    stage = StoreHead.__dict__["stage"]

    def unchecked(self: StoreHead, txn: Txn) -> Any:
        compares = tuple(c for c in txn.compares if not c.key.startswith("/terms/"))
        return stage(self, Txn(compares, txn.writes, txn.appends))

    patch.set(StoreHead, "stage", unchecked)


def freed_without_proof(patch: Patch) -> None:
    """Release requests the stop and frees the claim at once, while the task may still run."""
    carry_on = release.__dict__["_continue_release"]

    def hasty(replica: Any, binding: Any, node: Any, requested: Any, now: float) -> Any:
        if binding is not None and binding.spec.desired is DesiredRunState.STOP:
            return Outcome(releases=(release._item(replica, ReleaseAction.FREE, requested),), requeue_after_s=1.0)
        return carry_on(replica, binding, node, requested, now)

    def unproven(self: Any, item: Any, replica: Any, binding: Any) -> Any:
        return releasing.free_step(self._state, replica, binding, item.reason)

    patch.set(release, "_continue_release", hasty)
    patch.set(releasing.ReleaseHandler, "_free", unproven)


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
    plan, want = ReserveJob.__dict__["plan"], ReserveJob.__dict__["_claim_request"]

    def carried_out(self: Any, item: Any) -> Any:
        real_state, self._state = self._state, _Forgetful(self._state)
        try:
            return plan(self, item)
        finally:
            self._state = real_state

    def named(self: ReserveJob, item: Any, *more: Any) -> Any:
        found = want(self, item, *more)
        claims = sum(key.startswith(f"{found.namespace}/{found.name}") for key in self._state.ledger.claims)
        return found if not claims else msgspec.structs.replace(found, name=f"{found.name}.{claims + 1}")

    patch.set(ReserveJob, "plan", carried_out)
    patch.set(ReserveJob, "_claim_request", named)
    patch.set(ReserveJob, "_name_in_use", lambda self, item: None)


def old_attempt_accepted(patch: Patch) -> None:
    patch.set(placement_checks, "attempt_refusal", lambda *_: None)


def finalizer_removed_early(patch: Patch) -> None:
    decide = release.__dict__["decide"]

    def early(key: Any, view: Any, now: float) -> Any:
        from holdfast.model.replica import Replica

        replica = view.get(Replica, key.name, key.namespace)
        if replica is not None and replica.metadata.terminating:
            return release._remove_finalizer(replica, view)
        return decide(key, view, now)

    patch.set(release, "decide", early)


def bind_without_node(patch: Patch) -> None:
    """The second step of a bind does not compare the Node, which may be cordoned or fenced meanwhile."""
    plan = BindHandler.__dict__["_step"]

    def blind(self: Any, item: Any, replica: Any, node: Any, *more: Any) -> Any:
        step = plan(self, item, replica, node, *more)
        step.compares.pop(NODE.store_key("", node.metadata.name))
        return step

    patch.set(BindHandler, "_step", blind)


TABLE = (
    Mutation(
        "residency-ignored",
        "residency is checked nowhere",
        residency_ignored,
        "residency ignored on reassignment",
        scenario="drained-in-turn",
    ),
    Mutation(
        "affinity-ignored",
        "affinity and anti-affinity are checked nowhere",
        affinity_ignored,
        "affinity not checked at the commit",
    ),
    Mutation(
        "taints-ignored",
        "taints are checked nowhere",
        taints_ignored,
        "taints not checked at the commit",
        scenario="tainted-in-turn",
    ),
    Mutation(
        "taint-evicts-beyond-budget",
        "a NoExecute taint ignores disruption budgets",
        taint_evicts_beyond_budget,
        "eviction by a taint outside the budgeted path",
        scenario="tainted-in-turn",
    ),
    Mutation(
        "quota-check-skipped",
        "placement does not check the tenant's limit",
        quota_left_out,
        "quota left out of the transaction",
    ),
    Mutation(
        "capacity-check-skipped",
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
        "freed-before-stop-confirmed",
        "a claim is freed without waiting for the stop",
        freed_without_proof,
        "drain does not wait for the stop",
    ),
    Mutation("uid-reused", "a recreated replica has its old uid", identity_reused, "uid reuse on recreate"),
    Mutation(
        "proposal-applied-twice",
        "a proposal that is delivered twice is applied twice",
        claimed_twice,
        scenario="duplicate-reservation-race",
    ),
    Mutation("bind-ignores-node-change", "a bind in two steps does not compare the Node", bind_without_node),
    Mutation("old-attempt-accepted", "a proposal for an ended attempt is accepted", old_attempt_accepted),
    Mutation(
        "finalizer-removed-early",
        "a replica's finalizer is removed before its claim",
        finalizer_removed_early,
        "finalizer removed early",
    ),
)
