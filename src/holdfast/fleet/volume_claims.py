"""volume-claim: keeps a VolumeClaim while workloads refer to it. Owns VolumeClaim.status and its finalizer.

When the claim is gone, the link removes its copies, and `volume` in each region deletes or retains the Volumes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.assignment import Assignment
from holdfast.model.meta import Condition, Key, find_condition
from holdfast.model.ownership import VOLUME_CLAIM_FINALIZER
from holdfast.model.reasons import Reason
from holdfast.model.template import Template, template_claims
from holdfast.model.template_volume import with_claim_terms
from holdfast.model.view import View
from holdfast.model.volume import VolumeClaim
from holdfast.model.workload import Workload
from holdfast.model.writes import Outcome, SetStatus, Update, Write

# Workloads named in the condition of a claim.
USERS_NAMED_MAX = 5


def with_claims(template: Template, namespace: str, view: View) -> Template | None:
    """The template with the terms of its VolumeClaims; None while one of them is missing."""
    names = [claim.name for claim in template_claims(template)]
    if not names:
        return template
    found = {name: claim.spec for name in names if (claim := view.get(VolumeClaim, name, namespace)) is not None}
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
    writes: list[Write] = []
    if claim.metadata.terminating and not users and VOLUME_CLAIM_FINALIZER in claim.metadata.finalizers:
        rest = tuple(f for f in claim.metadata.finalizers if f != VOLUME_CLAIM_FINALIZER)
        meta = msgspec.structs.replace(claim.metadata, finalizers=rest)
        return Outcome(writes=(Update(msgspec.structs.replace(claim, metadata=meta)),))
    named = ", ".join(users[:USERS_NAMED_MAX]) + (" …" if len(users) > USERS_NAMED_MAX else "")
    wanted = Condition(
        type="InUse",
        status="True" if users else "False",
        reason=Reason.VOLUME_CLAIM_IN_USE if users else Reason.VOLUME_CLAIM_UNUSED,
        message=f"workloads: {named}" if users else "",
        observed_generation=claim.metadata.generation,
    )
    known = find_condition(claim.status.conditions, "InUse")
    if known is None or (known.status, known.message) != (wanted.status, wanted.message):
        writes.append(SetStatus("VolumeClaim", claim.key, claim.uid, conditions=(wanted,)))
    return Outcome(writes=tuple(writes))


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
