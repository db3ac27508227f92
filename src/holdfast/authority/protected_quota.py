"""What a tenant's protected quota keeps from others here, judged by the records when a nomination is made. Reads only.

What always holds: after every accepted nomination, what a tenant runs of firm, ordinary work without the victims of all
open nominations is still as much as its GrantCopy protects, in each resource that another tenant made it give up. The
commit compares that copy, so that a part that was just raised is not overlooked.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.authority.claims import Claim, victim_key
from holdfast.authority.state import GRANT_COPY, AuthorityState
from holdfast.model.binding import Binding, CapacityClass, DesiredRunState
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.quantity import Amounts, add, amounts, amounts_text
from holdfast.model.quota import GrantClass

_COPY = GrantClass.NORMAL.value.lower()


class ProtectedQuota:
    """The protected parts of tenants, and what they run, read once for a round."""

    def __init__(self, state: AuthorityState) -> None:
        self._state = state
        self._used: dict[str, Amounts] = {}

    def compared_revisions(self, taker: str, victims: Iterable[Claim]) -> dict[str, int]:
        """The records that a nomination of these by this tenant was judged by, with their revisions."""
        found: dict[str, int] = {}
        for claim in victims:
            if claim.namespace != taker and _counts(claim):
                copy = self._copy(claim.namespace)
                name, revision = (copy.metadata.name, copy.revision) if copy is not None else (_COPY, 0)
                found[GRANT_COPY.store_key(claim.namespace, name)] = revision
        return found

    def protected_victim(self, taker: str, victims: Iterable[Claim]) -> tuple[Claim, str] | None:
        """One of the victims that its tenant's protected part keeps from this taker, and why; None if all may go."""
        given: dict[str, list[Claim]] = {}
        for claim in victims:
            if claim.namespace != taker and _counts(claim):
                given.setdefault(claim.namespace, []).append(claim)
        for tenant, claims in given.items():
            copy = self._copy(tenant)
            protected = amounts(copy.spec.protected) if copy is not None else {}
            if not protected:
                continue
            taken: Amounts = {}
            for claim in claims:
                add(taken, claim.amounts)
            left = self._runs_on(tenant)
            add(left, taken, times=-1)
            short = {n: protected[n] for n, amount in taken.items() if amount and left.get(n, 0) < protected.get(n, 0)}
            if short:
                named = ", ".join(f"{text} {name}" for name, text in amounts_text(short).items())
                return claims[0], f"the quota of tenant {tenant} protects {named} here, and less would be left to it"
        return None

    def _copy(self, tenant: str) -> GrantCopy | None:
        copies = self._state.list_all(GrantCopy, tenant)
        return next((copy for copy in copies if copy.spec.grant_class is GrantClass.NORMAL), None)

    def _runs_on(self, tenant: str) -> Amounts:
        """What the tenant's firm, ordinary work comes to, without what stops or is to make way already."""
        if tenant not in self._used:
            used: Amounts = {}
            for binding in self._state.list_all(Binding, tenant):
                spec = binding.spec
                stays = spec.desired is DesiredRunState.RUN and not spec.quota_released
                if stays and spec.capacity_class is CapacityClass.FIRM and not spec.run_until:
                    add(used, amounts(spec.resources))
            self._used[tenant] = used
        left = dict(self._used[tenant])
        ledger = self._state.ledger
        going = {victim_key(c.namespace, v): None for c in ledger.unbound.values() for v in c.victims}
        for key in going:
            claim = ledger.claims.get(key)
            if claim is None or claim.namespace != tenant or not _counts(claim):
                continue
            bound = self._state.binding(tenant, claim.name)
            if bound is not None and bound.spec.desired is DesiredRunState.RUN:
                add(left, claim.amounts, times=-1)
        return left


def _counts(claim: Claim) -> bool:
    return claim.bound and claim.quota_held and claim.capacity_class is CapacityClass.FIRM and not claim.run_until
