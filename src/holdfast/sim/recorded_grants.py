"""Grants of the global cell's recorded history, for the check of the limits that regions enforce.

Limits and Grants are compared by epoch, because the clocks of two cells may differ. A history that starts at a restore,
a migration or a compaction lacks earlier Grants, and the epochs of a tenant that is created again start again. So a
limit from before the start of the history is compared with no Grant. After the start, a limit without a Grant of its
epoch is a violation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.link.restore_handshake import GLOBAL_INCARNATION_TERM
from holdfast.model.election_term import Term
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.quantity import amounts, shortfall
from holdfast.model.quota import Grant
from holdfast.model.region import Region
from holdfast.sim.checkers import ObservedChange
from holdfast.sim.recorded_disruption import CLOCK_SKEW_MAX_S


class RecordedGrants:
    """Grants by key and epoch, and the time and incarnations from which on they are complete."""

    def __init__(self) -> None:
        self._by_epoch: dict[tuple[str, int], dict[str, Grant]] = {}
        self._incarnations: dict[str, set[str]] = {}
        """By region: uid of the Region and incarnation of the global cell, as the region records them."""
        self._starts_with_state = False
        self._complete_from_s = 0.0

    def record_initial(self, changes: Iterable[ObservedChange]) -> None:
        """Records the state that a restored, migrated or compacted history starts with."""
        self._starts_with_state = True
        self._record(changes)

    def record(self, changes: Iterable[ObservedChange], wall_s: float) -> None:
        """Records a commit of the global cell."""
        if self._starts_with_state and not self._complete_from_s and wall_s:
            self._complete_from_s = wall_s + CLOCK_SKEW_MAX_S
        self._record(changes)

    def _record(self, changes: Iterable[ObservedChange]) -> None:
        for change in changes:
            if isinstance(change.new, Grant):
                self._by_epoch.setdefault((change.key, change.new.spec.epoch), {})[change.new.uid] = change.new
            elif isinstance(change.new, Region):
                region = change.new
                known = f"{region.uid} {region.status.restore_incarnation}"
                self._incarnations.setdefault(region.metadata.name, set()).add(known)

    def covers(self, region: str, state: Mapping[str, Any], wall_s: float) -> bool:
        """Whether the Grants that the region follows, in this state and at this time, are recorded."""
        term: Term | None = state.get(f"/terms/{GLOBAL_INCARNATION_TERM}")
        known = term is None or term.spec.holder in self._incarnations.get(region, ())
        return known and wall_s >= self._complete_from_s

    def grant_of_limit(self, key: str, copy: GrantCopy) -> Grant | None:
        """The Grant of a limit: the first of its epoch that covers the limit, because several may have the epoch. None
        if no Grant has it."""
        limit = amounts(copy.spec.limit)
        lives = list(self._by_epoch.get((key, copy.spec.epoch), {}).values())
        covering = (grant for grant in lives if not shortfall(limit, amounts(grant.spec.limit)))
        return next(covering, lives[-1] if lives else None)
