"""S8: nothing is effective after its expiry.

- Reservations: by the times in the records, because clocks are stepped and commits are late.
- Grant leases: in true time from their write. After a change of the authority a lease may last as long as the cell's
  clock then shows, at most its full length. The quota is not given to another region meanwhile.
- Overrides: in true time. After a restart lost the remaining time, a restrictive override may last as long as its copy
  shows on the cell's clock, at most its full TTL; if the cell is its home, also in all other cells.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from holdfast.fleet.override_kinds import RULES
from holdfast.model import limits
from holdfast.model.binding import CapacityClass
from holdfast.model.decision import Decision
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key
from holdfast.model.override import MAX_TTL_S, Override, break_glass_prefix, is_break_glass
from holdfast.model.placement_api import PlacementOutcome
from holdfast.model.quantity import amounts
from holdfast.model.quota import Grant, GrantClass
from holdfast.model.times import parse_time
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

TIMESTAMP_RESOLUTION_S = 1.0
"""Resolution of creation timestamps."""


AUTHORITY_ELECTION = "authority"
"""The winner of this election measures grant leases."""


CONTROLLER_ELECTION = "controllers"
"""The winner of this election measures the time of overrides, from scratch."""


WRITE_DELAY_MAX_S = 20.0
"""Maximum delay between a decision and its commit, and between the expiry of an override and its record."""


class ExpiryChecker:
    """Checker of one cell. `ends` is shared by all cells: override uid → expiry in true time. `distrusted` cells have
    clocks beyond the bound. `clock` is this cell's wall clock, if it is known."""

    def __init__(
        self,
        cell: str,
        ends: dict[str, float] | None = None,
        distrusted: Container[str] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._cell = cell
        self._clock = clock
        self._ends = ends if ends is not None else {}
        self._distrusted = distrusted
        self._renewed_s: dict[Key, float] = {}
        """True time of the last renewal of each grant lease."""
        self._recounted: dict[str, float] = {}
        """Override uid → time until which a restrictive override may last in this cell after a restart."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            if change.new is None:
                continue
            match change.kind.name:
                case "Binding" if change.old is None and not change.is_stop_order:
                    yield from self._bound(change, commit)
                case "GrantCopy" if (
                    change.old is None or change.old.spec.last_contact_at != change.new.spec.last_contact_at
                ):
                    self._renewed_s[change.new.key] = commit.at_s
                case "Override" if self._cell == "global":
                    yield from self._override(change)
                    self._record_expiry(change.new, commit)
                case "Override":
                    if self._is_home(change.new):
                        yield from self._override(change)
                    self._record_expiry(change.new, commit)
                    yield from self._check_active(change, commit)
                case "Term" if change.key == f"/terms/{CONTROLLER_ELECTION}":
                    self._restart_count(commit)
                case "Term" if change.key == f"/terms/{AUTHORITY_ELECTION}":
                    self._lost_leases(commit)
                case "Decision" if change.old is None:
                    yield from self._decided(change, commit)
                case "Grant" if self._cell == "global":
                    yield from self._emergency(change, commit)

    def _bound(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        """Checks that no expired reservation is bound and no expired grant lease is spent."""
        binding = change.new
        made_s = parse_time(binding.metadata.creation_timestamp)
        meta = binding.metadata
        reservation = commit.state.get(f"/reservations/{meta.namespace}/{meta.name}")
        if (
            reservation is not None
            and reservation.spec.expires_at
            and parse_time(reservation.spec.expires_at) + TIMESTAMP_RESOLUTION_S < made_s
        ):
            end = reservation.spec.expires_at
            what = f"{change.key} was bound at {meta.creation_timestamp}; its reservation ended at {end}"
            yield "S8", what, (change.key, f"/reservations/{meta.namespace}/{meta.name}")
        if binding.spec.capacity_class is CapacityClass.RECOVERY or binding.spec.run_until:
            return
        copy: GrantCopy | None = commit.state.get(f"/grantcopies/{meta.namespace}/normal")
        if reservation is not None and reservation.metadata.creation_timestamp != meta.creation_timestamp:
            return  # the quota was spent by the reservation
        if copy is not None and copy.spec.lease_expires_at:
            over_s = commit.at_s - commit.latency_s - self._renewed_s.get(copy.key, commit.at_s) - _lease_s(copy)
            if over_s > WRITE_DELAY_MAX_S:
                what = f"{change.key} was bound {over_s:.0f} s after the grant's lease had ended"
                yield "S8", what, (change.key, f"/grantcopies/{meta.namespace}/normal")

    def _record_expiry(self, override: Override, commit: ObservedCommit) -> None:
        """Records the expiry when the override first becomes active in its home cell."""
        if self._is_home(override) and override.status.phase == "Active" and override.uid not in self._ends:
            self._ends[override.uid] = commit.at_s + _max_ttl_s(override)

    def _is_home(self, override: Override) -> bool:
        name = override.metadata.name
        if self._cell == "global":
            return not is_break_glass(name)
        return name.startswith(break_glass_prefix(self._cell))

    def _restart_count(self, commit: ObservedCommit) -> None:
        """A new leader measures overrides from scratch. The cell's clock is in the election lease."""
        lease = commit.state.get(f"/leases/holdfast-system/{CONTROLLER_ELECTION}")
        if lease is None:
            return
        renewed_s = parse_time(lease.spec.renew_time)
        for override in commit.state.values():
            if not isinstance(override, Override) or RULES[override.spec.kind].permissive:
                continue
            if override.status.phase == "Active" and override.status.expires_at:
                left_s = max(0.0, parse_time(override.status.expires_at) - renewed_s)
                until_s = commit.at_s + min(left_s + TIMESTAMP_RESOLUTION_S, _max_ttl_s(override))
                self._recounted[override.uid] = until_s
                if self._is_home(override):
                    self._ends[override.uid] = max(self._ends.get(override.uid, until_s), until_s)

    def _lost_leases(self, commit: ObservedCommit) -> None:
        """A new authority measures grant leases from scratch, by the cell's clock."""
        if self._clock is None:
            return
        for copy in commit.state.values():
            if isinstance(copy, GrantCopy) and copy.spec.lease_expires_at:
                left_s = parse_time(copy.spec.lease_expires_at) - self._clock()
                counted_s = commit.at_s - _lease_s(copy) + min(left_s, _lease_s(copy))
                self._renewed_s[copy.key] = max(self._renewed_s.get(copy.key, counted_s), counted_s)

    def _over(self, override: Override, commit: ObservedCommit) -> float:
        """True time since the expiry, minus the tolerance; negative if the override is not known to be expired."""
        if self._cell in self._distrusted or "global" in self._distrusted:
            return -1.0
        end_s = self._ends.get(override.uid, commit.at_s + 1.0)
        return commit.at_s - commit.latency_s - max(end_s, self._recounted.get(override.uid, end_s)) - WRITE_DELAY_MAX_S

    def _check_active(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        over_s = self._over(change.new, commit)
        if change.new.status.phase == "Active" and over_s > 0:
            yield (
                "S8",
                f"{change.key} becomes active {over_s + WRITE_DELAY_MAX_S:.0f} s after its expiry",
                (change.key,),
            )

    def _decided(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        """Checks the overrides that a Decision names. A placement is checked at the time its commit was sent. A
        Decision without placement may be recorded late by a new authority, so its own age is subtracted."""
        decision: Decision = change.new
        placed = any(entry.result == PlacementOutcome.ACCEPTED.value for entry in decision.spec.entries)
        delay_s = 0.0 if placed else max(0.0, self._delay_s(decision) - commit.latency_s)
        for name in decision.spec.overrides:
            key = f"/overrides/{name}"
            override = commit.state.get(key)
            if override is not None and (over_s := self._over(override, commit) - delay_s) > 0:
                late_s = over_s + WRITE_DELAY_MAX_S
                what = f"{change.key} used override {name} {late_s:.0f} s after its expiry in true time"
                yield "S8", what, (change.key, key)

    def _delay_s(self, decision: Decision) -> float:
        """Time between the decision and its record, by the cell's clock."""
        if not decision.spec.decided_at:
            return 0.0
        written_s = parse_time(decision.metadata.creation_timestamp)
        if self._clock is not None:
            written_s = max(written_s, self._clock())
        return max(0.0, written_s - parse_time(decision.spec.decided_at))

    def _override(self, change: ObservedChange) -> Iterator[Finding]:
        new: Override = change.new
        old: Override | None = change.old
        if not new.spec.reason or not new.spec.requester or new.spec.ttl_seconds > MAX_TTL_S:
            yield "S8", f"{change.key} has no reason, no requester or no valid TTL", (change.key,)
        if not new.status.expires_at:
            return
        ends_s = parse_time(new.status.expires_at)
        before = old.status.expires_at if old is not None else ""
        if before and parse_time(before) < ends_s:
            yield "S8", f"{change.key} expiry moved from {before} to {new.status.expires_at}", (change.key,)
        active = next((c for c in new.status.conditions if c.type == "Active" and c.status == "True"), None)
        if not before and active is not None:
            begun_s = parse_time(active.last_transition_time)
            if ends_s > begun_s + new.spec.ttl_seconds + 2 * TIMESTAMP_RESOLUTION_S:
                what = f"{change.key} is active from {active.last_transition_time} to {new.status.expires_at}"
                yield "S8", f"{what}, longer than its {new.spec.ttl_seconds:g} s", (change.key,)

    def _emergency(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        """Checks that an emergency grant increases only while an override allows it."""
        grant: Grant = change.new
        if grant.spec.grant_class is not GrantClass.EMERGENCY or not _raises(change):
            return
        tenant = grant.metadata.namespace
        acting = [o for o in commit.state.values() if isinstance(o, Override) and _for_tenant(o, tenant)]
        if not acting:
            yield "S8", f"{change.key} increased without an active EmergencyQuota for tenant {tenant}", (change.key,)


def _max_ttl_s(override: Override) -> float:
    """The TTL on a clock that is slow within the bound."""
    return override.spec.ttl_seconds * (1 + limits.CLOCK_DRIFT)


def _for_tenant(override: Override, tenant: str) -> bool:
    spec = override.spec
    active = override.status.phase == "Active" and not spec.revoked
    return spec.kind.value == "EmergencyQuota" and spec.scope.tenant == tenant and active


def _raises(change: ObservedChange) -> bool:
    before = amounts(change.old.spec.limit) if change.old is not None else {}
    return any(amount > before.get(name, 0) for name, amount in amounts(change.new.spec.limit).items())


def _lease_s(copy: GrantCopy) -> float:
    """Length of the grant lease. Both times are from one clock."""
    return (
        parse_time(copy.spec.lease_expires_at) - parse_time(copy.spec.last_contact_at)
        if copy.spec.last_contact_at
        else 0.0
    )
