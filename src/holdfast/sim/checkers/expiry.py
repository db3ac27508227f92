"""S8: nothing acts past its end. Judged by the times that are written into the records, as clocks are stepped and
commits are late: what is compared is when something was decided with when its ground had ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.binding import CapacityClass
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.override import MAX_TTL_S, Override
from holdfast.model.quota import Grant, GrantClass
from holdfast.model.times import parse_time
from holdfast.sim.checkers import Changed, Commit, Found

SECOND_S = 1.0
"""Creation times are whole seconds."""


class ExpiryChecker:
    """One cell's."""

    def __init__(self, cell: str) -> None:
        self._cell = cell

    def check(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            if change.new is None:
                continue
            match change.kind.name:
                case "Binding" if change.old is None:
                    yield from self._bound(change, commit)
                case "Override" if self._cell == "global":
                    yield from self._override(change)
                case "Grant" if self._cell == "global":
                    yield from self._emergency(change, commit)

    def _bound(self, change: Changed, commit: Commit) -> Iterator[Found]:
        """A reservation that ran out is not bound, and a grant that ran out is not spent."""
        binding = change.new
        made_s = parse_time(binding.metadata.creation_timestamp)
        meta = binding.metadata
        held = commit.state.get(f"/reservations/{meta.namespace}/{meta.name}")
        if held is not None and held.spec.expires_at and parse_time(held.spec.expires_at) + SECOND_S < made_s:
            what = (
                f"{change.key} was bound at {meta.creation_timestamp}; its reservation ended at {held.spec.expires_at}"
            )
            yield "S8", what, (change.key, f"/reservations/{meta.namespace}/{meta.name}")
        if binding.spec.capacity_class is CapacityClass.RECOVERY or binding.spec.run_until:
            return
        copy: GrantCopy | None = commit.state.get(f"/grantcopies/{meta.namespace}/normal")
        if held is not None and held.metadata.creation_timestamp != meta.creation_timestamp:
            return  # spent when it was reserved
        if copy is not None and copy.spec.spend_until and parse_time(copy.spec.spend_until) + SECOND_S < made_s:
            what = f"{change.key} was bound at {meta.creation_timestamp}; the grant ended at {copy.spec.spend_until}"
            yield "S8", what, (change.key, f"/grantcopies/{meta.namespace}/normal")

    def _override(self, change: Changed) -> Iterator[Found]:
        new: Override = change.new
        old: Override | None = change.old
        if not new.spec.reason or not new.spec.requester or new.spec.ttl_seconds > MAX_TTL_S:
            yield "S8", f"{change.key} has no reason, no requester or no end", (change.key,)
        if not new.status.expires_at:
            return
        ends_s = parse_time(new.status.expires_at)
        before = old.status.expires_at if old is not None else ""
        if before and parse_time(before) < ends_s:
            yield "S8", f"{change.key} was to end at {before} and now at {new.status.expires_at}", (change.key,)
        active = next((c for c in new.status.conditions if c.type == "Active" and c.status == "True"), None)
        if not before and active is not None:
            begun_s = parse_time(active.last_transition_time)
            if ends_s > begun_s + new.spec.ttl_seconds + 2 * SECOND_S:
                what = f"{change.key} acts from {active.last_transition_time} to {new.status.expires_at}"
                yield "S8", f"{what}, longer than its {new.spec.ttl_seconds:g} s", (change.key,)

    def _emergency(self, change: Changed, commit: Commit) -> Iterator[Found]:
        """More than usual is granted only while someone's override says so."""
        grant: Grant = change.new
        if grant.spec.grant_class is not GrantClass.EMERGENCY or not _raises(change):
            return
        tenant = grant.metadata.namespace
        acting = [o for o in commit.state.values() if isinstance(o, Override) and _for_tenant(o, tenant)]
        if not acting:
            yield "S8", f"{change.key} is raised, and no override gives tenant {tenant} more", (change.key,)


def _for_tenant(override: Override, tenant: str) -> bool:
    spec = override.spec
    active = override.status.phase == "Active" and not spec.revoked
    return spec.kind.value == "EmergencyQuota" and spec.scope.tenant == tenant and active


def _raises(change: Changed) -> bool:
    def limit(item: Any) -> dict[str, Any]:
        return dict(item.spec.limit) if item is not None else {}

    return limit(change.new) != limit(change.old) and bool(limit(change.new))
