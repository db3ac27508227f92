"""Protected quota: checks nominations against the quota that other tenants may not preempt. Reads only.

Invariant: after every accepted nomination, the tenant's firm, ordinary work without the victims of all open nominations
is at least its protected quota, in each resource that another tenant takes. The commit compares the GrantCopy, so that
a concurrent increase is not overlooked.
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
    """Protected quota and usage of tenants, read once per round."""

    def __init__(self, state: AuthorityState) -> None:
        self._state = state
        self._used: dict[str, Amounts] = {}

    def compared_revisions(self, preemptor: str, victims: Iterable[Claim]) -> dict[str, int]:
        """Store keys and revisions that the check of this nomination depends on."""
        found: dict[str, int] = {}
        for claim in victims:
            if claim.namespace != preemptor and _is_protectable(claim):
                copy = self._copy(claim.namespace)
                name, revision = (copy.metadata.name, copy.revision) if copy is not None else (_COPY, 0)
                found[GRANT_COPY.store_key(claim.namespace, name)] = revision
        return found

    def protected_victim(self, preemptor: str, victims: Iterable[Claim]) -> tuple[Claim, str] | None:
        """A victim that protected quota exempts from preemption by this tenant, and why; None if all are allowed."""
        by_tenant: dict[str, list[Claim]] = {}
        for claim in victims:
            if claim.namespace != preemptor and _is_protectable(claim):
                by_tenant.setdefault(claim.namespace, []).append(claim)
        for tenant, claims in by_tenant.items():
            copy = self._copy(tenant)
            protected = amounts(copy.spec.protected) if copy is not None else {}
            if not protected:
                continue
            evicted: Amounts = {}
            for claim in claims:
                add(evicted, claim.amounts)
            remaining = self._remaining_usage(tenant)
            add(remaining, evicted, times=-1)
            violated = {
                n: protected[n] for n, amount in evicted.items() if amount and remaining.get(n, 0) < protected.get(n, 0)
            }
            if violated:
                named = ", ".join(f"{text} {name}" for name, text in amounts_text(violated).items())
                return claims[0], f"the quota of tenant {tenant} protects {named} here, and less would remain"
        return None

    def _copy(self, tenant: str) -> GrantCopy | None:
        copies = self._state.list_all(GrantCopy, tenant)
        return next((copy for copy in copies if copy.spec.grant_class is GrantClass.NORMAL), None)

    def _remaining_usage(self, tenant: str) -> Amounts:
        """Usage of the tenant's firm, ordinary claims, without stopping claims and victims of open nominations."""
        if tenant not in self._used:
            used: Amounts = {}
            for binding in self._state.list_all(Binding, tenant):
                spec = binding.spec
                keeps_running = spec.desired is DesiredRunState.RUN and not spec.quota_released
                if keeps_running and spec.capacity_class is CapacityClass.FIRM and not spec.run_until:
                    add(used, amounts(spec.resources))
            self._used[tenant] = used
        remaining = dict(self._used[tenant])
        ledger = self._state.ledger
        victims = {victim_key(c.namespace, v): None for c in ledger.unbound.values() for v in c.victims}
        for key in victims:
            claim = ledger.claims.get(key)
            if claim is None or claim.namespace != tenant or not _is_protectable(claim):
                continue
            bound = self._state.binding(tenant, claim.name)
            if bound is not None and bound.spec.desired is DesiredRunState.RUN:
                add(remaining, claim.amounts, times=-1)
        return remaining


def _is_protectable(claim: Claim) -> bool:
    return claim.bound and claim.quota_held and claim.capacity_class is CapacityClass.FIRM and not claim.run_until
