"""backing: whether every recovery objective holds after any single loss, and when it was last proven. Owns
Workload.status.backing.

Every region and every zone is assumed lost once. Only free recovery slots and the tenants' recovery allowances count,
and all critical workloads of the lost region must fit together. `holdfast plan --lose-region` uses the same function,
and admission calls it before a RecoveryBudget shrinks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.fleet.assign import open_zones
from holdfast.fleet.recovery.need import CriticalWorkload, critical_workloads, target_refusal_reason, volumes_obstacle
from holdfast.fleet.recovery.proof import proof_of_workload
from holdfast.fleet.recovery.slot_matching import NO_REGION_LEFT, MatchResult, RecoveryDemand, SlotGroup, match_slots
from holdfast.model.assignment import Assignment
from holdfast.model.meta import Key
from holdfast.model.override import AVOIDANCES, Override, active_avoidances
from holdfast.model.quantity import Amounts, amounts
from holdfast.model.quota import Quota
from holdfast.model.reasons import Reason
from holdfast.model.recovery import Recovery
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PolicyRevision, filters_that_read_requests
from holdfast.model.tenant import Tenant, is_dedicated
from holdfast.model.times import seconds_text
from holdfast.model.view import View
from holdfast.model.workload import BackingBlock, Workload
from holdfast.model.writes import Outcome, SetStatus, Write

ALL_OBJECTIVES = Key("", "objectives")
REGIONS_NAMED_MAX = 4
"""Regions named in one message; the rest is omitted."""
SEARCH_GAVE_UP = "not proven: the search for a better distribution reached its limit"


class Loss(msgspec.Struct, frozen=True, order=True):
    region: str
    zone: str = ""

    def __str__(self) -> str:
        return f"zone {self.zone} of region {self.region}" if self.zone else f"region {self.region}"


class LossForecast(msgspec.Struct, frozen=True):
    """Result of a loss: `safe` workloads need nothing, `match` places the others."""

    loss: Loss
    safe: tuple[CriticalWorkload, ...]
    match: MatchResult


def single_losses(view: View) -> list[Loss]:
    """The loss of every single region and of every single zone."""
    found = []
    for region in view.list(Region):
        found.append(Loss(region.metadata.name))
        found += [Loss(region.metadata.name, zone) for zone in region.spec.zones]
    return found


class PresentCover(msgspec.Struct, frozen=True):
    """A critical workload before any loss. `options` are its eligible regions with the replicas missing there, best
    first; in the regions of `enough` none is missing."""

    critical: CriticalWorkload
    options: tuple[tuple[str, int], ...]
    enough: frozenset[str]

    def is_safe(self, region: str) -> bool:
        """Whether the objective holds whatever is lost in this region."""
        return bool(self.enough - {region})


class _Fleet:
    """The regions as forecasts read them."""

    def __init__(self, view: View, now: float) -> None:
        self.regions = view.list(Region)
        self.avoidances = active_avoidances(view.list(Override), now)
        self._by_name = {region.metadata.name: region for region in self.regions}
        self._shared: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}
        """Equal options are one object, because thousands of workloads have the same."""
        self._left_for = ""
        self._left: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}
        """Options without the region `_left_for`, by the whole ones."""

    def cover(self, critical: CriticalWorkload) -> PresentCover:
        names = (r.metadata.name for r in self.regions if not target_refusal_reason(critical, r, self.avoidances))
        found = self._sorted((name, critical.need(name)) for name in names)
        options = self._shared.setdefault(found, found)
        return PresentCover(critical, options, frozenset(name for name, need in options if not need))

    def options_after(self, cover: PresentCover, loss: Loss) -> tuple[tuple[str, int], ...]:
        """The options that are left. In a region that loses a zone, all replicas may be in it."""
        left = self._without(cover.options, loss.region)
        region, critical = self._by_name.get(loss.region), cover.critical
        if not loss.zone or region is None:
            return left
        if target_refusal_reason(critical, region, self.avoidances, lost_zone=loss.zone):
            return left
        return self._sorted((*left, (loss.region, critical.objective.min_serving)))

    def obstacle(self, critical: CriticalWorkload, loss: Loss) -> str:
        """Why no region is left for the workload."""
        refused = []
        for name, region in sorted(self._by_name.items()):
            if name != loss.region or loss.zone:
                zone = loss.zone if name == loss.region else ""
                refused.append(f"{name}: {target_refusal_reason(critical, region, self.avoidances, lost_zone=zone)}")
        return f"no other region can run it ({'; '.join(refused[:REGIONS_NAMED_MAX])})" if refused else NO_REGION_LEFT

    def _without(self, options: tuple[tuple[str, int], ...], region: str) -> tuple[tuple[str, int], ...]:
        if self._left_for != region:
            self._left_for, self._left = region, {}
        found = self._left.get(options)
        if found is None:
            found = self._left[options] = tuple(option for option in options if option[0] != region)
        return found

    def _sorted(self, options: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(options, key=lambda option: (option[1], self._by_name[option[0]].spec.cost, option[0])))


def forecast_loss(
    loss: Loss,
    view: View,
    budgets: Sequence[RecoveryBudget],
    now: float,
    promised: Sequence[CriticalWorkload] | None = None,
) -> LossForecast:
    """Forecast of one loss. `promised` are the critical workloads, if the caller already has them."""
    fleet = _Fleet(view, now)
    covers = [fleet.cover(c) for c in (critical_workloads(view) if promised is None else promised)]
    return _forecast(loss, view, budgets, fleet, covers)


def _forecast(
    loss: Loss, view: View, budgets: Sequence[RecoveryBudget], fleet: _Fleet, covers: Sequence[PresentCover]
) -> LossForecast:
    safe: list[CriticalWorkload] = []
    items: list[RecoveryDemand] = []
    for cover in covers:
        critical = cover.critical
        options = () if cover.is_safe(loss.region) else fleet.options_after(cover, loss)
        if cover.is_safe(loss.region) or any(not need for _, need in options):
            safe.append(critical)
        else:
            dedicated = is_dedicated(view.get(Tenant, critical.tenant))
            closed = _closed_zones(critical.workload, fleet.regions, fleet.avoidances)
            items.append(
                RecoveryDemand(
                    critical.tenant,
                    critical.name,
                    critical.shape,
                    options,
                    closed,
                    dedicated,
                    volumes_obstacle(critical) or ("" if options else fleet.obstacle(critical, loss)),
                )
            )
    if not items:
        return LossForecast(loss, tuple(safe), MatchResult((), ()))
    by_zone = any(item.closed for item in items)
    groups = [g for region in fleet.regions for g in surviving_slots(region, budgets, loss, by_zone=by_zone)]
    allowance = {q.metadata.namespace: amounts(q.spec.recovery_allowance) for q in view.list(Quota)}
    return LossForecast(loss, tuple(safe), match_slots(items, groups, allowance))


def _closed_zones(
    workload: Workload, regions: Sequence[Region], avoidances: Collection[Override]
) -> frozenset[tuple[str, str]]:
    """The (region, zone) pairs whose slots the workload may not use."""
    if not workload.spec.placement.zones and not avoidances:
        return frozenset()
    every = {(region.metadata.name, zone) for region in regions for zone in region.spec.zones}
    return frozenset(every - {(r.metadata.name, zone) for r in regions for zone in open_zones(workload, r, avoidances)})


def surviving_slots(
    region: Region, budgets: Sequence[RecoveryBudget], loss: Loss, *, by_zone: bool = False
) -> list[SlotGroup]:
    """Free recovery slots that survive the loss, at most the count of their shape. `by_zone` separates the zones, which
    matters only if some workload may not use all of them."""
    report = region.status.report
    name = region.metadata.name
    if report is None or (name == loss.region and not loss.zone):
        return []
    found: list[SlotGroup] = []
    for budget in budgets:
        if budget.spec.region != name:
            continue
        for index, slot in enumerate(budget.spec.slot_shapes):
            mine = [p for p in report.recovery_slots if p.budget == budget.metadata.name and p.shape_index == index]
            left = [p for p in mine if not (name == loss.region and p.zone == loss.zone)]
            shape = _smaller(amounts(slot.resources), left and amounts(left[0].resources))
            wanted = slot.count
            for zone in sorted({p.zone for p in left}) if by_zone else ("",):
                free = min(wanted, sum(p.admitted - p.consumed for p in left if zone in ("", p.zone)))
                found.append(SlotGroup(name, shape, budget.spec.tenants, free, zone))
                wanted -= free
    return found


def _smaller(asked: Amounts, kept: object) -> Amounts:
    """Usable resources of a slot: the minimum of the budget's shape and the admitted slots (different in a change)."""
    if not isinstance(kept, dict):
        return asked
    return {name: min(amount, kept.get(name, 0)) for name, amount in asked.items()}


def unbacked_objectives(view: View, now: float, budgets: Sequence[RecoveryBudget] | None = None) -> dict[Key, str]:
    """Workloads whose recovery objective some single loss would break, with the loss and the bottleneck.

    A loss for which the search finished is named before one for which it reached its bound.
    """
    known = view.list(RecoveryBudget) if budgets is None else budgets
    proven: dict[Key, str] = {}
    unproven: dict[Key, str] = {}
    promised, fleet = critical_workloads(view), _Fleet(view, now)
    covers = [fleet.cover(critical) for critical in promised]
    covered: set[str] = set()
    for loss in single_losses(view) if promised else ():
        if loss.region in covered:
            continue  # what fits without the whole region fits without one of its zones
        # Most workloads serve elsewhere: without this a pass compares every workload, loss and region.
        exposed = [cover for cover in covers if not cover.is_safe(loss.region)]
        match = _forecast(loss, view, known, fleet, exposed).match
        if not loss.zone and not match.shortages:
            covered.add(loss.region)
        for shortage in match.shortages:
            key = Key(shortage.demand.tenant, shortage.demand.name)
            message = f"if {loss} is lost: {shortage.message}"
            if match.exact:
                proven.setdefault(key, message)
            else:
                unproven.setdefault(key, f"{message}; {SEARCH_GAVE_UP}")
    return unproven | proven


def decide(key: Key, view: View, now: float) -> Outcome:
    """Sets the backing status of all critical workloads together, because they share recovery slots and allowances."""
    short = unbacked_objectives(view, now)
    uncounted = _filters_not_counted(view)
    writes: list[Write] = []
    for workload in view.list(Workload):
        block: BackingBlock | None = None
        if workload.spec.recovery is not None and not workload.metadata.terminating:
            why = short.get(workload.key, "")
            reason = Reason.NOT_BACKED if why else Reason.BACKED
            said = why or f"recovery slots and allowances cover the loss of any one region or zone{uncounted}"
            old = workload.status.backing
            known = old.last_proven if old is not None else None
            since = old.since if old is not None and old.backed == (not why) else seconds_text(now)
            proven = proof_of_workload(view.list(Recovery), workload.metadata.namespace, workload.metadata.name, known)
            block = BackingBlock(backed=not why, reason=reason, message=said, last_proven=proven, since=since)
        if block != workload.status.backing:
            writes.append(SetStatus("Workload", workload.key, workload.uid, blocks={"backing": block}))
    return Outcome(writes=tuple(writes[:256]))


def _filters_not_counted(view: View) -> str:
    """The filter expressions of the regions' policies that may refuse a critical workload the nodes of free slots."""
    used = {region.status.report.policy for region in view.list(Region) if region.status.report is not None}
    named = [
        f"{', '.join(names)} of policy revision {revision.metadata.name}"
        for revision in sorted(view.list(PolicyRevision), key=lambda r: r.metadata.name)
        if revision.metadata.name in used and (names := filters_that_read_requests(revision.spec.rules))
    ]
    if not named:
        return ""
    return (
        f", not counting filter expressions that read the request ({'; '.join(named)}); see holdfast plan --lose-region"
    )


def keys(view: View) -> Iterable[Key]:
    return (ALL_OBJECTIVES,)


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    if new is not None and old is not None:
        slots = [r.status.report.recovery_slots if r.status.report is not None else () for r in (new, old)]
        if slots[0] == slots[1] and new.status.health.state is old.status.health.state and new.spec == old.spec:
            return ()
    return (ALL_OBJECTIVES,)


def woken_by_spec(new: object, old: object, view: View) -> Iterable[Key]:
    """Wakes the controller if the spec of a RecoveryBudget or Quota changes."""
    return () if getattr(new, "spec", None) == getattr(old, "spec", None) else (ALL_OBJECTIVES,)


def woken_by_recovery(new: Recovery | None, old: Recovery | None, view: View) -> Iterable[Key]:
    """Wakes the controller when a Recovery meets its objectives, which proves them."""
    proven = new is not None and new.status.recovered_at and (old is None or not old.status.recovered_at)
    return (ALL_OBJECTIVES,) if proven else ()


def woken_by_override(new: Override | None, old: Override | None, view: View) -> Iterable[Key]:
    """Wakes the controller when an avoidance starts or ends: an avoided region is not a recovery target."""
    item = new or old
    if item is None or item.spec.kind not in AVOIDANCES:
        return ()
    phases = [o.status.phase if o is not None else "" for o in (new, old)]
    return (ALL_OBJECTIVES,) if phases[0] != phases[1] else ()


def woken_by_workload(new: Workload | None, old: Workload | None, view: View) -> Iterable[Key]:
    """Wakes the controller if the spec of a critical workload changes."""
    if all(item is None or item.spec.recovery is None for item in (new, old)):
        return ()
    return woken_by_spec(new, old, view)


def woken_by_assignment(new: Assignment | None, old: Assignment | None, view: View) -> Iterable[Key]:
    """Wakes the controller if an Assignment of a critical workload changes."""
    item = new or old
    if item is None:
        return ()
    workload: Workload | None = view.get(Workload, item.spec.workload, item.metadata.namespace)
    if workload is None or workload.spec.recovery is None:
        return ()
    return woken_by_spec(new, old, view)
