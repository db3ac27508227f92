"""volume-claim: keeps a VolumeClaim while workloads refer to it or its data must still be deleted.

Owns VolumeClaim.status and its finalizer.
- Data is deleted by an order, `status.dataDeletion`, which the link copies to every region. A claim that is missing is
  no order: the global cell may have been restored from a backup that is older than the claim.
- A claim with the policy `Delete` is there until every region has reported that it has no Volume of it. The reports are
  recorded in the order, so that a region need not repeat them: each has room for a limited number of claims.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.assignment import Assignment
from holdfast.model.meta import Condition, Key, find_condition
from holdfast.model.ownership import VOLUME_CLAIM_FINALIZER
from holdfast.model.reasons import Reason
from holdfast.model.region import Region
from holdfast.model.template import Template, template_claims
from holdfast.model.template_volume import with_claim_terms
from holdfast.model.times import micro_text
from holdfast.model.view import View
from holdfast.model.volume import DataDeletion, ReclaimPolicy, VolumeClaim
from holdfast.model.workload import Workload
from holdfast.model.writes import NO_CHANGES, Outcome, SetStatus, Update

# Workloads, and regions, named in a condition of a claim.
NAMED_MAX = 5


def with_claims(template: Template, namespace: str, view: View) -> Template | None:
    """The template with the terms of its VolumeClaims; None while one of them is missing."""
    names = [claim.name for claim in template_claims(template)]
    if not names:
        return template
    found = {name: claim for name in names if (claim := view.get(VolumeClaim, name, namespace)) is not None}
    if len(found) < len(names):
        return None
    return msgspec.structs.replace(template, volumes=with_claim_terms(template.volumes, found))


def missing_claims(template: Template, namespace: str, view: View) -> list[str]:
    names = (claim.name for claim in template_claims(template))
    return [name for name in names if view.get(VolumeClaim, name, namespace) is None]


def decide(key: Key, view: View, now: float) -> Outcome:
    """The condition `InUse` of one claim, and the end of its deletion."""
    claim = view.get(VolumeClaim, key.name, key.namespace)
    if claim is None:
        return Outcome()
    users = _users(claim, view)
    wanted = [_in_use(claim, users)]
    order = claim.status.data_deletion
    if claim.metadata.terminating and not users and VOLUME_CLAIM_FINALIZER in claim.metadata.finalizers:
        confirmed = _confirmed_by(claim, view)
        remains = [r.metadata.name for r in view.list(Region) if r.metadata.name not in confirmed]
        if claim.spec.reclaim_policy is not ReclaimPolicy.DELETE or not remains:
            return Outcome(writes=(_without_finalizer(claim),))
        order = DataDeletion(at=order.at if order is not None else micro_text(now), confirmed_by=confirmed)
        wanted.append(_data_remains(claim, remains))
    if order == claim.status.data_deletion and not any(_is_news(claim, condition) for condition in wanted):
        return NO_CHANGES
    blocks = {"dataDeletion": order} if order != claim.status.data_deletion else {}
    return Outcome(writes=(SetStatus("VolumeClaim", claim.key, claim.uid, blocks=blocks, conditions=tuple(wanted)),))


def _confirmed_by(claim: VolumeClaim, view: View) -> tuple[str, ...]:
    """Regions that have reported that they have no Volume of the claim left. They report it only on the order."""
    order = claim.status.data_deletion
    known = set(order.confirmed_by) if order is not None else set()
    return tuple(sorted(r.metadata.name for r in view.list(Region) if r.metadata.name in known or _reports(r, claim)))


def _reports(region: Region, claim: VolumeClaim) -> bool:
    return region.status.report is not None and claim.uid in region.status.report.claims_without_data


def _without_finalizer(claim: VolumeClaim) -> Update:
    rest = tuple(f for f in claim.metadata.finalizers if f != VOLUME_CLAIM_FINALIZER)
    meta = msgspec.structs.replace(claim.metadata, finalizers=rest)
    return Update(msgspec.structs.replace(claim, metadata=meta))


def _in_use(claim: VolumeClaim, users: list[str]) -> Condition:
    return Condition(
        type="InUse",
        status="True" if users else "False",
        reason=Reason.VOLUME_CLAIM_IN_USE if users else Reason.VOLUME_CLAIM_UNUSED,
        message=f"workloads: {_named(users)}" if users else "",
        observed_generation=claim.metadata.generation,
    )


def _data_remains(claim: VolumeClaim, regions: list[str]) -> Condition:
    return Condition(
        type="DataDeleted",
        status="False",
        reason=Reason.VOLUME_CLAIM_DATA_REMAINS,
        message=f"regions that have not confirmed the deletion of the data: {_named(regions)}; "
        "next: wait; if a region never returns, delete its Region",
        observed_generation=claim.metadata.generation,
    )


def _named(names: list[str]) -> str:
    return ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")


def _is_news(claim: VolumeClaim, wanted: Condition) -> bool:
    known = find_condition(claim.status.conditions, wanted.type)
    return known is None or (known.status, known.message) != (wanted.status, wanted.message)


def _users(claim: VolumeClaim, view: View) -> list[str]:
    """Workloads that refer to the claim, and those whose Assignments still do."""
    name, namespace = claim.metadata.name, claim.metadata.namespace
    found = {w.metadata.name for w in view.list(Workload, namespace) if _refers(w.spec.template, name)}
    found |= {a.spec.workload for a in view.list(Assignment, namespace) if _refers(a.spec.template, name)}
    return sorted(found)


def _refers(template: Template, name: str) -> bool:
    return bool(template.volumes) and any(claim.name == name for claim in template_claims(template))


def keys(view: View) -> Iterable[Key]:
    return [claim.key for claim in view.list(VolumeClaim)]


def woken_by_claim(new: VolumeClaim | None, old: VolumeClaim | None, view: View) -> Iterable[Key]:
    return (new.key,) if new is not None else ()


def woken_by_region(new: Region | None, old: Region | None, view: View) -> Iterable[Key]:
    """The claims whose data a region deleted. A region that is gone has reported nothing and is waited for no more."""
    before, after = _reported(old), _reported(new)
    if new is not None and before == after:
        return ()
    return [claim.key for claim in view.list(VolumeClaim) if claim.status.data_deletion is not None]


def _reported(region: Region | None) -> tuple[str, ...]:
    report = region.status.report if region is not None else None
    return report.claims_without_data if report is not None else ()


def woken_by_user(new: Workload | Assignment | None, old: Workload | Assignment | None, view: View) -> Iterable[Key]:
    """The claims that a Workload or Assignment began or ceased to refer to."""
    before, after = _claim_keys(old), _claim_keys(new)
    return sorted(before ^ after)


def _claim_keys(item: Workload | Assignment | None) -> set[Key]:
    if item is None or not item.spec.template.volumes:
        return set()
    return {Key(item.metadata.namespace, claim.name) for claim in template_claims(item.spec.template)}


def workloads_woken_by_claim(new: VolumeClaim | None, old: VolumeClaim | None, view: View) -> Iterable[Key]:
    """For `assign` and `workload-status`: the workloads that wait for a claim."""
    item = new or old
    if item is None or (new is not None and old is not None):
        return ()
    name, namespace = item.metadata.name, item.metadata.namespace
    return [w.key for w in view.list(Workload, namespace) if _refers(w.spec.template, name)]
