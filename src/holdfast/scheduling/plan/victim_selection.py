"""Which lower-priority claims may be preempted together, given disruption budgets and protected quota. Pure.

- Disruption budget: firm replicas of a workload may be evicted only while all but `maxUnavailable` of its replicas in
  the region keep serving. A replica that does not serve costs nothing.
- Protected quota: work within a tenant's protected quota is never preempted by another tenant. The tenant's own
  higher-priority work may preempt it.
- Serving counts are not in the snapshot. They are read through `Standing` and recorded for the replay of the Decision.
  If they are unknown, every victim counts as serving, and claims that are stopping count against the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.model import limits
from holdfast.model.decision import PreemptionEvidence, SiblingEvidence
from holdfast.model.quantity import Amounts, add
from holdfast.scheduling.eviction.preempted import SiblingCounts
from holdfast.scheduling.replica_requirements import ReplicaRequirements
from holdfast.scheduling.snapshot import Snapshot, SnapshotClaim

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
        self._mates = {w.workload: SiblingCounts(w.total, w.serving) for w in weighed.workloads}
        self._idle = frozenset(weighed.not_serving)

    def siblings(self, namespace: str, workload: str) -> SiblingCounts | None:
        return self._mates.get(f"{namespace}/{workload}")

    def counts_as_serving(self, claim: str) -> bool:
        return claim not in self._idle


class VictimSelection:
    """Tracks possible victims and chosen victims during one plan."""

    def __init__(self, snapshot: Snapshot, standing: SiblingStatusSource) -> None:
        self._standing = standing
        self._protected = snapshot.protected
        self._used: dict[str, Amounts] = {}
        """Per tenant with protected quota: resources of its firm, ordinary claims that stay."""
        self._gone: dict[WorkloadKey, int] = {}
        """Per workload: claims that are stopping or chosen as victims."""
        self._pledged: dict[WorkloadKey, dict[str, None]] = {}
        """Per workload: chosen victims, which may serve until they stop."""
        self._promised: dict[WorkloadKey, int] = {}
        """Per workload read for this request: chosen victims that serve."""
        self._mates: dict[WorkloadKey, SiblingCounts] = {}
        self._idle: dict[str, None] = {}
        self._seen: dict[str, None] = {}
        self.protected_tenants: dict[str, None] = {}
        """Tenants whose protected quota blocked victims of the request."""

    def begin_request(self) -> None:
        """Starts the next request: reads are recorded for it from here on."""
        self._promised, self._mates, self._idle, self._seen, self.protected_tenants = {}, {}, {}, {}, {}

    def preemption_evidence(self) -> PreemptionEvidence | None:
        """The sibling counts read for the request; None if none were read."""
        if not self._mates:
            return None
        read = sorted((f"{tenant}/{workload}", mates) for (tenant, workload), mates in self._mates.items())
        rows = tuple(SiblingEvidence(workload=n, total=m.total, serving=m.serving) for n, m in read)
        return PreemptionEvidence(workloads=rows, not_serving=tuple(sorted(self._idle)))

    def add_claim(self, claim: SnapshotClaim) -> None:
        """Adds one claim of the snapshot. Called once per claim."""
        if not claim.live:
            return
        if claim.stopping:
            self._count_gone(claim, 1)
        else:
            self._count_used(claim, 1)

    def mark_victim(self, name: str, claim: SnapshotClaim, sign: int) -> None:
        """Marks the claim as a victim (1), or undoes that (-1)."""
        if claim.stopping:
            return
        self._count_gone(claim, sign)
        self._count_used(claim, -sign)
        owner = (claim.namespace, claim.workload)
        if owner in self._promised:
            self._promised[owner] += sign * self._serves(name)
        pledged = self._pledged.setdefault(owner, {})
        if sign > 0:
            pledged[name] = None
        else:
            pledged.pop(name, None)

    def allows(self, ask: ReplicaRequirements, victims: Sequence[Victim]) -> bool:
        """Whether all these victims may be evicted for the request. Reclaimable ones always may."""
        firm = [prey for prey in victims if not prey.claim.reclaimable]
        return not firm or (self._within_budgets(firm) and self._beyond_protected(ask, firm))

    def disruption_cost(self, victims: Sequence[Victim]) -> int:
        """Disruption cost of the victims: for each serving one, the permille of its siblings that would not serve."""
        total = 0
        for prey in victims:
            claim = prey.claim
            mates = None if claim.reclaimable else self._mates_of((claim.namespace, claim.workload))
            if mates is not None and mates.total and self._serves(prey.name):
                total += _PERMILLE * (mates.total - mates.serving + 1) // mates.total
        return total

    # Inside

    def _within_budgets(self, firm: Sequence[Victim]) -> bool:
        going: dict[WorkloadKey, int] = {}
        for prey in firm:
            claim = prey.claim
            owner = (claim.namespace, claim.workload)
            mates, most = self._mates_of(owner), max(1, claim.max_unavailable)
            if mates is not None and not self._serves(prey.name):
                continue
            going[owner] = going.get(owner, 0) + 1
            if mates is None:
                if going[owner] + self._gone.get(owner, 0) > most:
                    return False
                continue
            if mates.serving - self._promised_of(owner) - going[owner] < mates.total - most:
                return False
        return True

    def _beyond_protected(self, ask: ReplicaRequirements, firm: Sequence[Victim]) -> bool:
        if not self._protected:
            return True
        taken: dict[str, Amounts] = {}
        for prey in firm:
            claim = prey.claim
            if claim.ordinary and claim.namespace != ask.namespace and claim.namespace in self._protected:
                add(taken.setdefault(claim.namespace, {}), dict(claim.amounts))
        for tenant, amounts in taken.items():
            used, kept = self._used.get(tenant, {}), self._protected[tenant]
            if any(amount and used.get(name, 0) - amount < kept.get(name, 0) for name, amount in amounts.items()):
                self.protected_tenants[tenant] = None
                return False
        return True

    def _count_gone(self, claim: SnapshotClaim, sign: int) -> None:
        owner = (claim.namespace, claim.workload)
        self._gone[owner] = self._gone.get(owner, 0) + sign

    def _count_used(self, claim: SnapshotClaim, sign: int) -> None:
        if claim.namespace in self._protected and claim.bound and claim.ordinary and not claim.reclaimable:
            add(self._used.setdefault(claim.namespace, {}), dict(claim.amounts), times=sign)

    def _mates_of(self, owner: WorkloadKey) -> SiblingCounts | None:
        """Sibling counts, read once per request. Bounded, because the Decision stores them."""
        found = self._mates.get(owner)
        if found is None and len(self._mates) < limits.PREEMPTION_WORKLOADS_READ_MAX:
            found = self._standing.siblings(*owner)
            if found is not None:
                self._mates[owner] = found
        return found

    def _promised_of(self, owner: WorkloadKey) -> int:
        """Earlier victims of the workload that still serve, counted once per request."""
        found = self._promised.get(owner)
        if found is None:
            found = self._promised[owner] = sum(self._serves(name) for name in self._pledged.get(owner, ()))
        return found

    def _serves(self, name: str) -> bool:
        if name not in self._seen:
            self._seen[name] = None
            if len(self._idle) < limits.PREEMPTION_WORKLOADS_READ_MAX and not self._standing.counts_as_serving(name):
                self._idle[name] = None
        return name not in self._idle
