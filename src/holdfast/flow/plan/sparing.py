"""Who of the weaker ones may go together: what disruption budgets and protected quota leave of a set of victims. Pure.

Two rules. A budget counts those that serve: firm work of a workload goes only as long as all but so many of its mates
would go on serving, and one that does not serve costs nothing of it. And of what a tenant runs within the protected
part of its quota nothing makes way for another tenant; its own stronger work may take its place.

What is weighed is in the snapshot, but for how the mates stand: that is read through `Standing`, and what was read for
an ask is noted, so that its Decision can be planned again. Where it is not known, every victim counts as serving, and
those that leave already count against the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.flow.ask import Ask
from holdfast.flow.retreat.preempt import Mates
from holdfast.flow.snapshot import Claim, Snapshot
from holdfast.model import limits
from holdfast.model.decision import Weighed, WeighedWorkload
from holdfast.model.quantity import Amounts, add

Owner = tuple[str, str]
"""Tenant and workload."""
_PERMILLE = 1000


class Prey(NamedTuple):
    """One claim that could leave, by its name (tenant/claim), with the rank that counts now."""

    name: str
    claim: Claim
    rank: int


class Standing(Protocol):
    """How work stands now: what the snapshot of places does not tell."""

    def mates(self, namespace: str, workload: str) -> Mates | None:
        """The replicas of a workload here, and how many serve; None where that is not known."""

    def serves(self, claim: str) -> bool:
        """Whether the loss of this claim (tenant/claim) counts against its budget."""


class Unknown:
    """Nothing is known of who serves."""

    def mates(self, namespace: str, workload: str) -> Mates | None:
        return None

    def serves(self, claim: str) -> bool:
        return True


UNKNOWN = Unknown()


class Recorded:
    """How work stood when a decision was made, as far as that looked."""

    def __init__(self, weighed: Weighed) -> None:
        self._mates = {w.workload: Mates(w.staying, w.serving) for w in weighed.workloads}
        self._idle = frozenset(weighed.idle)

    def mates(self, namespace: str, workload: str) -> Mates | None:
        return self._mates.get(f"{namespace}/{workload}")

    def serves(self, claim: str) -> bool:
        return claim not in self._idle


class Sparing:
    """What one plan knows of those that could leave, and of those that do."""

    def __init__(self, snapshot: Snapshot, standing: Standing) -> None:
        self._standing = standing
        self._protected = snapshot.protected
        self._used: dict[str, Amounts] = {}
        """Per tenant with a protected part: what it runs of firm, ordinary work, and keeps."""
        self._gone: dict[Owner, int] = {}
        """Per workload: how many of its claims leave already."""
        self._pledged: dict[Owner, dict[str, None]] = {}
        """Per workload: claims that were chosen to leave and may serve until then."""
        self._promised: dict[Owner, int] = {}
        """How many of those serve, of the workloads that the ask has read about."""
        self._mates: dict[Owner, Mates] = {}
        self._idle: dict[str, None] = {}
        self._seen: dict[str, None] = {}
        self.kept: dict[str, None] = {}
        """Tenants whose protected part stood in the way of the ask."""

    def begin(self) -> None:
        """The next ask: what is read from here on is noted for it."""
        self._promised, self._mates, self._idle, self._seen, self.kept = {}, {}, {}, {}, {}

    def weighed(self) -> Weighed | None:
        """What was read for the ask."""
        if not self._mates:
            return None
        read = sorted((f"{tenant}/{workload}", mates) for (tenant, workload), mates in self._mates.items())
        rows = tuple(WeighedWorkload(workload=n, staying=m.staying, serving=m.serving) for n, m in read)
        return Weighed(workloads=rows, idle=tuple(sorted(self._idle)))

    def count(self, claim: Claim) -> None:
        """Takes in a claim of the snapshot, each once."""
        if not claim.live:
            return
        if claim.stopping:
            self._count_gone(claim, 1)
        else:
            self._count_used(claim, 1)

    def leaves(self, name: str, claim: Claim, sign: int) -> None:
        """The claim was chosen to leave, or (-1) is not after all."""
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

    def allows(self, ask: Ask, victims: Sequence[Prey]) -> bool:
        """Whether all of these may go for the ask; reclaimable work always may."""
        firm = [prey for prey in victims if not prey.claim.reclaimable]
        return not firm or (self._within_budgets(firm) and self._beyond_protected(ask, firm))

    def hurt(self, victims: Sequence[Prey]) -> int:
        """What the loss of these does to their workloads: for each that serves, the share of its mates, in permille,
        that would be away then."""
        total = 0
        for prey in victims:
            claim = prey.claim
            mates = None if claim.reclaimable else self._mates_of((claim.namespace, claim.workload))
            if mates is not None and mates.staying and self._serves(prey.name):
                total += _PERMILLE * (mates.staying - mates.serving + 1) // mates.staying
        return total

    # Inside

    def _within_budgets(self, firm: Sequence[Prey]) -> bool:
        going: dict[Owner, int] = {}
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
            if mates.serving - self._promised_of(owner) - going[owner] < mates.staying - most:
                return False
        return True

    def _beyond_protected(self, ask: Ask, firm: Sequence[Prey]) -> bool:
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
                self.kept[tenant] = None
                return False
        return True

    def _count_gone(self, claim: Claim, sign: int) -> None:
        owner = (claim.namespace, claim.workload)
        self._gone[owner] = self._gone.get(owner, 0) + sign

    def _count_used(self, claim: Claim, sign: int) -> None:
        if claim.namespace in self._protected and claim.bound and claim.ordinary and not claim.reclaimable:
            add(self._used.setdefault(claim.namespace, {}), dict(claim.amounts), times=sign)

    def _mates_of(self, owner: Owner) -> Mates | None:
        """At most so many workloads are read about for one ask, as a Decision keeps them all."""
        found = self._mates.get(owner)
        if found is None and len(self._mates) < limits.WORKLOADS_WEIGHED:
            found = self._standing.mates(*owner)
            if found is not None:
                self._mates[owner] = found
        return found

    def _promised_of(self, owner: Owner) -> int:
        """Those of a workload that were chosen before, and serve until they leave: counted once for an ask."""
        found = self._promised.get(owner)
        if found is None:
            found = self._promised[owner] = sum(self._serves(name) for name in self._pledged.get(owner, ()))
        return found

    def _serves(self, name: str) -> bool:
        if name not in self._seen:
            self._seen[name] = None
            if len(self._idle) < limits.WORKLOADS_WEIGHED and not self._standing.serves(name):
                self._idle[name] = None
        return name not in self._idle
