"""Which lower-priority claims may be preempted together, given disruption budgets and protected quota. Pure.

- Disruption budget: firm replicas of a workload may be evicted only while all but `maxUnavailable` of its replicas in
  the region keep serving. A replica that does not serve costs nothing.
- Protected quota: work within a tenant's protected quota is never preempted by another tenant. The tenant's own
  higher-priority work may preempt it.
- Serving counts are not in the snapshot. They are read through `SiblingStatusSource` and recorded for replay. If they
  are unknown, every victim counts as serving, and claims that are stopping count against the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.model.decision import PreemptionEvidence, SiblingEvidence
from holdfast.model.quantity import Amounts, add
from holdfast.scheduling.eviction.preempted import SiblingCounts
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.snapshot import Snapshot, SnapshotClaim

# Workloads, and claims that do not serve, that a plan reads for one request. For workloads beyond the bound only
# the number of victims is compared with `maxUnavailable`. Bounded because the Decision stores all of them for replay.
PREEMPTION_WORKLOADS_READ_MAX = 256

WorkloadKey = tuple[str, str]
"""Tenant and workload."""
_PERMILLE = 1000


class Victim(NamedTuple):
    """A possible victim: claim name (tenant/claim), claim, and effective priority."""

    name: str
    claim: SnapshotClaim
    priority: int


class SiblingStatusSource(Protocol):
    """Source of serving counts, which a snapshot of claims does not contain."""

    def siblings(self, namespace: str, workload: str) -> SiblingCounts | None:
        """Replicas of the workload in the region and how many serve; None if unknown."""

    def counts_as_serving(self, claim: str) -> bool:
        """Whether evicting this claim (tenant/claim) counts against the disruption budget."""


class UnknownSiblings:
    """Knows no serving counts: every claim counts as serving."""

    def siblings(self, namespace: str, workload: str) -> SiblingCounts | None:
        return None

    def counts_as_serving(self, claim: str) -> bool:
        return True


UNKNOWN_SIBLINGS = UnknownSiblings()


class RecordedSiblings:
    """The serving counts recorded in a Decision."""

    def __init__(self, weighed: PreemptionEvidence) -> None:
        self._siblings = {w.workload: SiblingCounts(w.total, w.serving) for w in weighed.workloads}
        self._not_serving = frozenset(weighed.not_serving)

    def siblings(self, namespace: str, workload: str) -> SiblingCounts | None:
        return self._siblings.get(f"{namespace}/{workload}")

    def counts_as_serving(self, claim: str) -> bool:
        return claim not in self._not_serving


class VictimSelection:
    """Tracks possible victims and chosen victims during one plan."""

    def __init__(self, snapshot: Snapshot, sibling_status: SiblingStatusSource) -> None:
        self._sibling_status = sibling_status
        self._protected = snapshot.protected
        self._used: dict[str, Amounts] = {}
        """Per tenant with protected quota: resources of its firm, ordinary claims that stay."""
        self._leaving: dict[WorkloadKey, int] = {}
        """Per workload: claims that are stopping or chosen as victims."""
        self._victims: dict[WorkloadKey, dict[str, None]] = {}
        """Per workload: chosen victims, which may serve until they stop."""
        self._serving_victims: dict[WorkloadKey, int] = {}
        """Per workload read for this request: chosen victims that serve."""
        self._siblings: dict[WorkloadKey, SiblingCounts] = {}
        self._not_serving: dict[str, None] = {}
        self._checked: dict[str, None] = {}
        self.protected_tenants: dict[str, None] = {}
        """Tenants whose protected quota blocked victims of the request."""
        self.budgeted_workloads: dict[WorkloadKey, None] = {}
        """Workloads whose disruption budget blocked victims of the request."""

    def begin_request(self) -> None:
        """Starts the next request: reads are recorded for it from here on."""
        self._serving_victims, self._siblings, self._not_serving, self._checked = {}, {}, {}, {}
        self.protected_tenants, self.budgeted_workloads = {}, {}

    def preemption_evidence(self) -> PreemptionEvidence | None:
        """The sibling counts read for the request; None if none were read."""
        if not self._siblings:
            return None
        rows_read = sorted(
            (f"{tenant}/{workload}", siblings) for (tenant, workload), siblings in self._siblings.items()
        )
        rows = tuple(SiblingEvidence(workload=n, total=m.total, serving=m.serving) for n, m in rows_read)
        return PreemptionEvidence(workloads=rows, not_serving=tuple(sorted(self._not_serving)))

    def add_claim(self, claim: SnapshotClaim) -> None:
        """Adds one claim of the snapshot. Called once per claim."""
        if not claim.live:
            return
        if claim.stopping:
            self._count_leaving(claim, 1)
        else:
            self._count_used(claim, 1)

    def mark_victim(self, name: str, claim: SnapshotClaim, sign: int) -> None:
        """Marks the claim as a victim (1), or undoes that (-1)."""
        if claim.stopping:
            return
        self._count_leaving(claim, sign)
        self._count_used(claim, -sign)
        workload_key = (claim.namespace, claim.workload)
        if workload_key in self._serving_victims:
            self._serving_victims[workload_key] += sign * self._is_serving(name)
        chosen = self._victims.setdefault(workload_key, {})
        if sign > 0:
            chosen[name] = None
        else:
            chosen.pop(name, None)

    def allows(self, requirements: ReplicaRequirements, victims: Sequence[Victim]) -> bool:
        """Whether all these victims may be evicted for the request. Reclaimable ones always may."""
        firm = [victim for victim in victims if not victim.claim.reclaimable]
        return not firm or (self._within_budgets(firm) and self._outside_protected_quota(requirements, firm))

    def disruption_cost(self, victims: Sequence[Victim]) -> int:
        """Disruption cost of the victims: for each serving one, the permille of its siblings that would not serve."""
        total = 0
        for victim in victims:
            claim = victim.claim
            siblings = None if claim.reclaimable else self._siblings_of((claim.namespace, claim.workload))
            if siblings is not None and siblings.total and self._is_serving(victim.name):
                total += _PERMILLE * (siblings.total - siblings.serving + 1) // siblings.total
        return total

    # Inside

    def _within_budgets(self, firm: Sequence[Victim]) -> bool:
        going: dict[WorkloadKey, int] = {}
        for victim in firm:
            claim = victim.claim
            workload_key = (claim.namespace, claim.workload)
            siblings, most = self._siblings_of(workload_key), max(1, claim.max_unavailable)
            if siblings is not None and not self._is_serving(victim.name):
                continue
            going[workload_key] = going.get(workload_key, 0) + 1
            if siblings is None:
                if going[workload_key] + self._leaving.get(workload_key, 0) > most:
                    self.budgeted_workloads[workload_key] = None
                    return False
                continue
            if (
                siblings.serving - self._serving_victim_count(workload_key) - going[workload_key]
                < siblings.total - most
            ):
                self.budgeted_workloads[workload_key] = None
                return False
        return True

    def _outside_protected_quota(self, requirements: ReplicaRequirements, firm: Sequence[Victim]) -> bool:
        if not self._protected:
            return True
        evicted: dict[str, Amounts] = {}
        for victim in firm:
            claim = victim.claim
            if claim.ordinary and claim.namespace != requirements.namespace and claim.namespace in self._protected:
                add(evicted.setdefault(claim.namespace, {}), dict(claim.amounts))
        for tenant, amounts in evicted.items():
            used, protected = self._used.get(tenant, {}), self._protected[tenant]
            if any(amount and used.get(name, 0) - amount < protected.get(name, 0) for name, amount in amounts.items()):
                self.protected_tenants[tenant] = None
                return False
        return True

    def _count_leaving(self, claim: SnapshotClaim, sign: int) -> None:
        workload_key = (claim.namespace, claim.workload)
        self._leaving[workload_key] = self._leaving.get(workload_key, 0) + sign

    def _count_used(self, claim: SnapshotClaim, sign: int) -> None:
        if claim.namespace in self._protected and claim.bound and claim.ordinary and not claim.reclaimable:
            add(self._used.setdefault(claim.namespace, {}), dict(claim.amounts), times=sign)

    def _siblings_of(self, workload_key: WorkloadKey) -> SiblingCounts | None:
        """Sibling counts, read once per request. Bounded, because the Decision stores them."""
        found = self._siblings.get(workload_key)
        if found is None and len(self._siblings) < PREEMPTION_WORKLOADS_READ_MAX:
            found = self._sibling_status.siblings(*workload_key)
            if found is not None:
                self._siblings[workload_key] = found
        return found

    def _serving_victim_count(self, workload_key: WorkloadKey) -> int:
        """Earlier victims of the workload that still serve, counted once per request."""
        found = self._serving_victims.get(workload_key)
        if found is None:
            found = self._serving_victims[workload_key] = sum(
                self._is_serving(name) for name in self._victims.get(workload_key, ())
            )
        return found

    def _is_serving(self, name: str) -> bool:
        if name not in self._checked:
            self._checked[name] = None
            if len(self._not_serving) < PREEMPTION_WORKLOADS_READ_MAX and not self._sibling_status.counts_as_serving(
                name
            ):
                self._not_serving[name] = None
        return name not in self._not_serving
