"""Gangs among possible victims: a gang that falls below its minimum leaves as a whole. Pure.

If evicting some members leaves fewer than the gang's minimum, the other members run for nothing. They count as victims
in cost, budgets and limits, and `eviction/preempted` evicts them too. They are not named by the nomination, because a
nomination names victims of its own node only.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from holdfast.scheduling.plan.victim_selection import Victim

_GangKey = tuple[str, str, str]
"""Tenant, workload and template hash."""


class GangVictims:
    """The gangs of one snapshot. `chosen` are the claims that are victims already; the caller changes it."""

    def __init__(self, candidates: Sequence[Victim], chosen: Set[str]) -> None:
        self._chosen = chosen
        self._members: dict[_GangKey, list[Victim]] = {}
        for victim in candidates:
            if victim.claim.gang_min:
                self._members.setdefault(_key(victim), []).append(victim)

    def __bool__(self) -> bool:
        """Whether any candidate belongs to a gang."""
        return bool(self._members)

    def rest(self, victims: Sequence[Victim]) -> list[Victim]:
        """The other members of every gang that these victims bring below its minimum. Members of a gang that earlier
        victims brought below it leave anyway, so they are not counted again."""
        if not self._members:
            return []
        evicted: dict[_GangKey, list[str]] = {}
        for victim in victims:
            if victim.claim.gang_min:
                evicted.setdefault(_key(victim), []).append(victim.name)
        found: list[Victim] = []
        for key, names in evicted.items():
            members = self._members[key]
            staying = [member for member in members if member.name not in self._chosen]
            minimum = max(member.claim.gang_min for member in members)
            broken_before = len(staying) < len(members) and len(staying) < minimum
            if not broken_before and len(staying) - len(names) < minimum:
                found += [member for member in staying if member.name not in names]
        return found


def _key(victim: Victim) -> _GangKey:
    return victim.claim.namespace, victim.claim.workload, victim.claim.template_hash
