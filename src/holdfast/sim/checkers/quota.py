"""S3: usage within the region's limit, limit within the grant, grants within the quota.

Checked on every increase. A quota may be lowered below its usage, which then shrinks; an increase of that usage is a
violation.

A restore of the global cell undoes grants that regions may enforce, or have received and are about to enforce. They
count as granted until the region has acknowledged the restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.fleet.post_restore import has_acknowledged_restore
from holdfast.model import limits
from holdfast.model.binding import CapacityClass, ReservationPhase
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.override import Override, OverrideKind
from holdfast.model.quantity import Amounts, add, amount_text, amounts, amounts_text
from holdfast.model.quota import Grant, GrantClass, Quota, grant_name
from holdfast.model.region import Region
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

GLOBAL = "global"
LOST = OverrideKind.DECLARE_REGION_LOST
"""After a restore the global cell does not wait for a region that an operator declares lost."""
OPEN_PHASES = (ReservationPhase.FIRM, ReservationPhase.NOMINATED)
COMMIT_DELAY_MAX_S = 60.0
"""Maximum delay between check and commit. Stores are slow and processes are paused."""


class QuotaChecker:
    """Checker of all cells together, because grants connect them."""

    def __init__(self, state_of: Callable[[str], dict[str, Any]]) -> None:
        self._state_of = state_of
        self._last_contact_s: dict[str, float] = {}
        """Time of the last committed report of each region. Its grant leases started no later."""
        self._undone: dict[str, Grant] = {}
        """Grants before a restore of the global cell, by key, until their region has acknowledged the restore. The
        limit is the highest that the region may enforce."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        if commit.cell == GLOBAL:
            self._follow_restores(commit)
            for change in commit.changes:
                if change.kind.name == "Grant" and _raises(change):
                    yield from self._granted(change, commit.state)
                if change.kind.name == "Grant" and change.old is not None and change.new is not None:
                    yield from self._acknowledged(change)
            for change in commit.changes:
                if change.kind.name == "Region" and change.new is not None and _reported(change):
                    self._last_contact_s[change.new.metadata.name] = commit.at_s
            return
        spenders: dict[str, str] = {}
        for change in commit.changes:
            if change.kind.name in ("Binding", "Reservation") and change.old is None and not change.is_stop_order:
                if change.new.spec.capacity_class is not CapacityClass.RECOVERY and change.new.spec.resources:
                    if not _reserved_before(commit, change):
                        spenders[change.new.metadata.namespace] = change.key
                    yield from self._in_time(commit, change)
            elif change.kind.name == "GrantCopy" and _raises(change):
                yield from self._check_holding(commit.cell, change)
        for tenant, key in spenders.items():
            yield from self._spent(commit, tenant, key)

    def _follow_restores(self, commit: ObservedCommit) -> None:
        regions = [(c.old, c.new) for c in commit.changes if c.kind.name == "Region" and c.new is not None]
        if any(new.status.restore_incarnation > _restore_incarnation(old) for old, new in regions):
            for change in commit.changes:
                if change.kind.name == "Grant" and change.old is not None:
                    limit = dict(amounts_text(self._counted(change.key, change.old)))
                    spec = msgspec.structs.replace(change.old.spec, limit=limit)
                    self._undone[change.key] = msgspec.structs.replace(change.old, spec=spec)
        done = {new.metadata.name for _, new in regions if has_acknowledged_restore(new)}
        self._undone = {key: grant for key, grant in self._undone.items() if grant.spec.region not in done}

    def _counted(self, key: str, grant: Grant | None) -> Amounts:
        """The amount that counts against the quota for a Grant, undone ones included."""
        counted = _counted(grant) if grant is not None else {}
        undone = self._undone.get(key)
        for name, amount in amounts(undone.spec.limit).items() if undone is not None else ():
            counted[name] = max(amount, counted.get(name, 0))
        return counted

    def _in_time(self, commit: ObservedCommit, change: ObservedChange) -> Iterator[Finding]:
        """A region whose grant lease has expired makes only provisional claims, within the provisional quota."""
        made, tenant = change.new, change.new.metadata.namespace
        binding = commit.state.get(f"/bindings/{tenant}/{made.metadata.name}")
        silent_s = commit.at_s - self._last_contact_s.get(commit.cell, commit.at_s)
        if binding is None or not binding.spec.run_until:
            if silent_s > limits.GRANT_LEASE_S + COMMIT_DELAY_MAX_S and not _reserved_before(commit, change):
                yield (
                    "S3",
                    f"{change.key} was made {silent_s:.0f} s after the last contact of {commit.cell}",
                    (change.key,),
                )
            return
        if binding.spec.capacity_class is not CapacityClass.RECLAIMABLE or binding.spec.exclusive is not None:
            yield "S3", f"{change.key} is provisional, but exclusive or not reclaimable", (change.key,)
        copy: GrantCopy | None = commit.state.get(f"/grantcopies/{tenant}/normal")
        part = amounts(copy.spec.provisional) if copy is not None else {}
        used: Amounts = {}
        for key, item in commit.state.items():
            if key.startswith(f"/bindings/{tenant}/") and item.spec.run_until and not item.spec.quota_released:
                add(used, amounts(item.spec.resources))
        for name, amount in used.items():
            if amount > part.get(name, 0):
                used_text, own = amount_text(name, amount), amount_text(name, part.get(name, 0))
                what = f"{change.key} exceeds the provisional quota of {name} (limit {own}, used {used_text})"
                yield "S3", what, (change.key, f"/grantcopies/{tenant}/normal")

    def _spent(self, commit: ObservedCommit, tenant: str, key: str) -> Iterator[Finding]:
        limit: Amounts = {}
        for name in (GrantClass.NORMAL, GrantClass.EMERGENCY):
            copy: GrantCopy | None = commit.state.get(f"/grantcopies/{tenant}/{name.value.lower()}")
            if copy is not None:
                add(limit, amounts(copy.spec.limit))
        used = used_by(tenant, commit.state)
        over = {name: (amount, limit.get(name, 0)) for name, amount in used.items() if amount > limit.get(name, 0)}
        if over:
            what = f"{key} exceeds the limit of tenant {tenant} in {commit.cell}: " + ", ".join(
                f"{name} (limit {amount_text(name, reserved)}, used {amount_text(name, used)})"
                for name, (used, reserved) in sorted(over.items())
            )
            if not limit:
                what = f"{what}; the region has no limit for the tenant"
            yield "S3", what, (key, f"/grantcopies/{tenant}/normal")

    def _check_holding(self, region: str, change: ObservedChange) -> Iterator[Finding]:
        copy: GrantCopy = change.new
        tenant = copy.metadata.namespace
        key = f"/grants/{tenant}/{grant_name(region, copy.spec.grant_class)}"
        grant: Grant | None = self._state_of(GLOBAL).get(key)
        counted = self._counted(key, grant)
        for name, amount in amounts(copy.spec.limit).items():
            if amount > max(counted.get(name, 0), amounts(change.old.spec.limit).get(name, 0) if change.old else 0):
                reserved, granted_text = amount_text(name, amount), amount_text(name, counted.get(name, 0))
                what = f"{region} has a limit of {reserved} {name} for tenant {tenant} (granted {granted_text})"
                yield "S3", what, (change.key, key)

    def _acknowledged(self, change: ObservedChange) -> Iterator[Finding]:
        """A region acknowledges a lower limit only after it enforces it, and never less than it uses: claims of before
        the shrink, open reservations among them, are kept and may still be bound."""
        old, grant = _counted(change.old), change.new
        tenant, region = grant.metadata.namespace, grant.spec.region
        key = f"/grantcopies/{tenant}/{grant.spec.grant_class.value.lower()}"
        copy: GrantCopy | None = self._state_of(region).get(key)
        reserved, counted = amounts(copy.spec.limit) if copy is not None else {}, _counted(grant)
        for name, amount in reserved.items():
            if counted.get(name, 0) < min(amount, old.get(name, 0)):
                counts, enforces = amount_text(name, counted.get(name, 0)), amount_text(name, amount)
                what = f"{change.key} counts {counts} {name}, but {region} still enforces {enforces}"
                yield "S3", what, (change.key, key)
        emergency = f"/grantcopies/{tenant}/{GrantClass.EMERGENCY.value.lower()}"
        if grant.spec.grant_class is not GrantClass.NORMAL or emergency in self._state_of(region):
            return
        for name, amount in used_by(tenant, self._state_of(region)).items():
            if counted.get(name, 0) < min(amount, old.get(name, 0)):
                counts, uses = amount_text(name, counted.get(name, 0)), amount_text(name, amount)
                yield "S3", f"{change.key} counts {counts} {name}, but {region} uses {uses}", (change.key, key)

    def _granted(self, change: ObservedChange, state: dict[str, Any]) -> Iterator[Finding]:
        """Checks the sum of the grants of a class. Emergency grants are checked by `expiry`.

        A raised limit and all that the other regions may enforce must be within the quota. That the region itself still
        enforces a higher limit from before a shrink is no excuse: the quota may have been lowered meanwhile."""
        tenant, grant_class = change.new.metadata.namespace, change.new.spec.grant_class
        quota: Quota | None = state.get(f"/quotas/{tenant}/quota")
        if grant_class is GrantClass.EMERGENCY:
            return
        hard: Amounts = {}
        if quota is not None:
            recovery = grant_class is GrantClass.RECOVERY
            hard = amounts(quota.spec.recovery_allowance if recovery else quota.spec.hard)
        total = amounts(change.new.spec.limit)
        keys = [change.key]
        lost = {o.spec.scope.region for o in state.values() if isinstance(o, Override) and o.spec.kind is LOST}
        undone = {key: grant for key, grant in self._undone.items() if grant.spec.region not in lost}
        for key, item in {**undone, **state}.items():
            is_tenant_grant = isinstance(item, Grant) and item.metadata.namespace == tenant
            if is_tenant_grant and item.spec.grant_class is grant_class and key != change.key:
                add(total, _counted(item) if item.spec.region in lost else self._counted(key, item))
                keys.append(key)
        old = amounts(change.old.spec.limit) if change.old is not None else {}
        for name, amount in amounts(change.new.spec.limit).items():
            if amount > old.get(name, 0) and total[name] > hard.get(name, 0):
                granted_text, whole = amount_text(name, total[name]), amount_text(name, hard.get(name, 0))
                what = f"{change.key} raises {name}: grants exceed the quota (quota {whole}, granted {granted_text})"
                yield "S3", what, (*keys, f"/quotas/{tenant}/quota")


def used_by(tenant: str, state: dict[str, Any]) -> Amounts:
    """Sum of a tenant's claims and volumes in a region, without recovery work."""
    used: Amounts = {}
    for key, item in state.items():
        if key.startswith(f"/bindings/{tenant}/"):
            if not item.spec.quota_released and item.spec.capacity_class is not CapacityClass.RECOVERY:
                add(used, amounts(item.spec.resources))
        elif key.startswith(f"/reservations/{tenant}/"):
            open_ = item.status.phase in OPEN_PHASES
            bound = f"/bindings/{tenant}/{item.metadata.name}" in state
            if open_ and not bound and item.spec.capacity_class is not CapacityClass.RECOVERY:
                add(used, amounts(item.spec.resources))
        elif key.startswith(f"/volumes/{tenant}/") and not item.spec.recovery:
            add(used, amounts({"storage": item.spec.size}))
    return used


def _reserved_before(commit: ObservedCommit, change: ObservedChange) -> bool:
    """Whether the new Binding uses what its reservation already held before the commit. It claims nothing new: the
    limit may have been lowered since then, and the region reports the reserved amount as still held."""
    if change.kind.name != "Binding":
        return False
    key = f"/reservations/{change.new.metadata.namespace}/{change.new.metadata.name}"
    before = next((other.old for other in commit.changes if other.key == key), commit.state.get(key))
    if before is None or before.status.phase not in OPEN_PHASES:
        return False
    held = amounts(before.spec.resources)
    return all(amount <= held.get(name, 0) for name, amount in amounts(change.new.spec.resources).items())


def _counted(grant: Grant) -> Amounts:
    """The amount that counts against the quota: the highest limit that the region may enforce.

    This is the maximum of the granted limit, the acknowledged limit and, until the newest epoch is acknowledged, the
    peak of the limits in between.
    """
    counted = amounts(grant.spec.limit)
    behind = grant.status.acknowledged_epoch < grant.spec.epoch
    for other in (grant.status.limit, grant.spec.unacknowledged_peak if behind else {}):
        for name, amount in amounts(other).items():
            counted[name] = max(amount, counted.get(name, 0))
    return counted


def _restore_incarnation(region: Region | None) -> int:
    return region.status.restore_incarnation if region is not None else 0


def _reported(change: ObservedChange) -> bool:
    old = change.old.status.report if change.old is not None else None
    return bool(change.new.status.report != old)


def _raises(change: ObservedChange) -> bool:
    if change.new is None:
        return False
    old = amounts(change.old.spec.limit) if change.old is not None else {}
    return any(amount > old.get(name, 0) for name, amount in amounts(change.new.spec.limit).items())
