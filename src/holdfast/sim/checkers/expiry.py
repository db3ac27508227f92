"""S8: nothing acts past its end. Judged by the times that are written into the records, as clocks are stepped and
commits are late: what is compared is when something was decided with when its ground had ended.

The lease of a grant counts in true time from when it was written; where the authority lost count, as another process
began, it may last for what that cell's clock says by then, and for its whole time at most: a region that was down while
its clock was set back cannot know better, and what it may spend is given to nobody else meanwhile.

Overrides are judged by true time as well: no cell's clock, skewed or stepped, may make one act for longer than it was
asked for. What forbids has one exception. A cell that lost count, as another process began to count, cannot know how
long it was down, and its wall clock may have been set back meanwhile: there it may go on for what its copy says by that
clock, and for its whole time at most; and where that cell is its home, in all others as well, which go by its word.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from holdfast.fleet.override_rules import RULES
from holdfast.model import limits
from holdfast.model.binding import CapacityClass
from holdfast.model.decision import Decision
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Key
from holdfast.model.override import MAX_TTL_S, Override, break_glass_prefix, is_break_glass
from holdfast.model.placement import Result
from holdfast.model.quota import Grant, GrantClass
from holdfast.model.times import parse_time
from holdfast.sim.checkers import Changed, Commit, Found

SECOND_S = 1.0
"""Creation times are whole seconds."""


SPENDING = "authority"
"""Whoever wins this one counts the leases of grants."""


COUNTING = "controllers"
"""Whoever wins this election counts the time of overrides, and knows nothing of what was counted before."""


LATE_S = 20.0
"""A decision is on disk so long after it was made at most, and so long after it the end of an override is written."""


class ExpiryChecker:
    """One cell's. `ends` is shared by all: uid of an override → when it is over in true time. `distrusted` cells have
    clocks beyond what is promised for; `clock` is what this cell's own says now, where that is known."""

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
        """When the lease of each grant was last written, in true time: it began no later than that."""
        self._recounted: dict[str, float] = {}
        """uid → until when what forbids may go on in this cell, which lost count."""

    def check(self, commit: Commit) -> Iterator[Found]:
        for change in commit.changed:
            if change.new is None:
                continue
            match change.kind.name:
                case "Binding" if change.old is None:
                    yield from self._bound(change, commit)
                case "GrantCopy" if change.old is None or change.old.spec.heard_at != change.new.spec.heard_at:
                    self._renewed_s[change.new.key] = commit.at_s
                case "Override" if self._cell == "global":
                    yield from self._override(change)
                    self._begun(change.new, commit)
                case "Override":
                    self._begun(change.new, commit)
                    yield from self._kept_active(change, commit)
                case "Term" if change.key == f"/terms/{COUNTING}":
                    self._lost_count(commit)
                case "Term" if change.key == f"/terms/{SPENDING}":
                    self._lost_leases(commit)
                case "Decision" if change.old is None:
                    yield from self._decided(change, commit)
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
        if copy is not None and copy.spec.spend_until:
            over_s = commit.at_s - commit.way_s - self._renewed_s.get(copy.key, commit.at_s) - _lease_s(copy)
            if over_s > LATE_S:
                what = f"{change.key} was bound {over_s:.0f} s after the grant's lease had ended"
                yield "S8", what, (change.key, f"/grantcopies/{meta.namespace}/normal")

    def _begun(self, override: Override, commit: Commit) -> None:
        """The first time it is active, where it was given."""
        if self._given_here(override) and override.status.phase == "Active" and override.uid not in self._ends:
            self._ends[override.uid] = commit.at_s + _whole_s(override)

    def _given_here(self, override: Override) -> bool:
        name = override.metadata.name
        if self._cell == "global":
            return not is_break_glass(name)
        return name.startswith(break_glass_prefix(self._cell))

    def _lost_count(self, commit: Commit) -> None:
        """Someone begins to count anew. What this cell's clock says is in the lease that was won with the term."""
        lease = commit.state.get(f"/leases/holdfast-system/{COUNTING}")
        if lease is None:
            return
        here_s = parse_time(lease.spec.renew_time)
        for override in commit.state.values():
            if not isinstance(override, Override) or RULES[override.spec.kind].permissive:
                continue
            if override.status.phase == "Active" and override.status.expires_at:
                left_s = max(0.0, parse_time(override.status.expires_at) - here_s)
                until_s = commit.at_s + min(left_s + SECOND_S, _whole_s(override))
                self._recounted[override.uid] = until_s
                if self._given_here(override):
                    self._ends[override.uid] = max(self._ends.get(override.uid, until_s), until_s)

    def _lost_leases(self, commit: Commit) -> None:
        """Someone begins to count the leases of grants anew, from where the clock of the cell is."""
        if self._clock is None:
            return
        for copy in commit.state.values():
            if isinstance(copy, GrantCopy) and copy.spec.spend_until:
                left_s = parse_time(copy.spec.spend_until) - self._clock()
                counted_s = commit.at_s - _lease_s(copy) + min(left_s, _lease_s(copy))
                self._renewed_s[copy.key] = max(self._renewed_s.get(copy.key, counted_s), counted_s)

    def _over(self, override: Override, commit: Commit) -> float:
        """For how long it has been over, in true time; less than nothing while it is not, or not known to be."""
        if self._cell in self._distrusted or "global" in self._distrusted:
            return -1.0
        end_s = self._ends.get(override.uid, commit.at_s + 1.0)
        return commit.at_s - commit.way_s - max(end_s, self._recounted.get(override.uid, end_s)) - LATE_S

    def _kept_active(self, change: Changed, commit: Commit) -> Iterator[Found]:
        over_s = self._over(change.new, commit)
        if change.new.status.phase == "Active" and over_s > 0:
            yield "S8", f"{change.key} is made active {over_s + LATE_S:.0f} s after its end", (change.key,)

    def _decided(self, change: Changed, commit: Commit) -> Iterator[Found]:
        """A decision names the overrides it was made under. What was placed is judged when it is handed to the disk:
        a process that stands still in that can look at no clock. What placed nothing is only told of: an authority
        that has just begun may take half a minute to write it down; by then it is still as old as it says."""
        decision: Decision = change.new
        placed = any(entry.result == Result.ACCEPTED.value for entry in decision.spec.entries)
        lay_s = 0.0 if placed else max(0.0, self._lay_s(decision) - commit.way_s)
        for name in decision.spec.overrides:
            key = f"/overrides/{name}"
            override = commit.state.get(key)
            if override is not None and (over_s := self._over(override, commit) - lay_s) > 0:
                what = f"{change.key} was made under {name}, {over_s + LATE_S:.0f} s after its end in true time"
                yield "S8", what, (change.key, key)

    def _lay_s(self, decision: Decision) -> float:
        """Between the decision and its record, both by the clock of its cell."""
        if not decision.spec.decided_at:
            return 0.0
        written_s = parse_time(decision.metadata.creation_timestamp)
        if self._clock is not None:
            written_s = max(written_s, self._clock())
        return max(0.0, written_s - parse_time(decision.spec.decided_at))

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


def _whole_s(override: Override) -> float:
    """Counted by a clock that may be slow within the bound."""
    return override.spec.ttl_seconds * (1 + limits.CLOCK_DRIFT)


def _for_tenant(override: Override, tenant: str) -> bool:
    spec = override.spec
    active = override.status.phase == "Active" and not spec.revoked
    return spec.kind.value == "EmergencyQuota" and spec.scope.tenant == tenant and active


def _raises(change: Changed) -> bool:
    def limit(item: Any) -> dict[str, Any]:
        return dict(item.spec.limit) if item is not None else {}

    return limit(change.new) != limit(change.old) and bool(limit(change.new))


def _lease_s(copy: GrantCopy) -> float:
    """How long a limit may be spent after it was heard. Both times are of one clock, wherever that is put later."""
    return parse_time(copy.spec.spend_until) - parse_time(copy.spec.heard_at) if copy.spec.heard_at else 0.0
