"""What is asked of an override before it is taken: in the global cell, and in a region that must do without it.

A region takes one (break-glass) only of kinds that neither spend, place against a rule nor fence, for a short time,
about itself, and only while its link says that the global cell is out of reach. Pure; reads the published objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.fleet.override_rules import RULES
from holdfast.gate.scope import GLOBAL_CELL
from holdfast.model import limits, reach
from holdfast.model.errors import Cause, Refused
from holdfast.model.override import EXPIRED, REVOKED, OverrideSpec, break_glass_prefix, is_break_glass
from holdfast.model.ownership import REGION
from holdfast.model.validation import forbidden, invalid, unsupported

if TYPE_CHECKING:
    from holdfast.gate.admission import Case


def override_scope(case: Case) -> Iterator[Cause | Refused]:
    """A new override names what exists, and asks for no more time than its kind allows."""
    after: Any = case.after
    spec, scope = after.spec, after.spec.scope
    if case.before is not None or REGION in case.who.roles:
        return  # what a region reports was admitted there, and has acted already
    rule = RULES[spec.kind]
    if spec.ttl_seconds > rule.max_ttl_s:
        most = f"{spec.kind} lasts at most {rule.max_ttl_s:g} s; ask for less, and again when that is over"
        yield invalid("spec.ttlSeconds", spec.ttl_seconds, most)
    if spec.approver or spec.revoked:
        yield forbidden("spec.approver", "it is approved or revoked after it was asked for, not with the request")
    region = case.find("Region", scope.region) if scope.region else None
    if scope.region and region is None:
        known = [r.metadata.name for r in case.all("Region")]
        yield unsupported("spec.scope.region", scope.region, known)
    elif region is not None and scope.zone and scope.zone not in region.spec.zones:
        yield unsupported("spec.scope.zone", scope.zone, region.spec.zones)
    if scope.tenant and case.find("Tenant", scope.tenant) is None:
        known = [t.metadata.name for t in case.all("Tenant")[:20]]
        yield unsupported("spec.scope.tenant", scope.tenant, known)
    elif scope.workload and case.cell == GLOBAL_CELL and case.find("Workload", scope.workload, scope.tenant) is None:
        yield invalid("spec.scope.workload", scope.workload, f"tenant {scope.tenant!r} has no such workload")
    if spec.policy_revision and case.find("PolicyRevision", spec.policy_revision) is None:
        known = [r.metadata.name for r in case.all("PolicyRevision")]
        yield unsupported("spec.policyRevision", spec.policy_revision, known[-20:])


def override_home(case: Case) -> Iterator[Cause | Refused]:
    """Where it may be given: in the global cell under any other name, in a region under one that says so."""
    after: Any = case.after
    name: str = after.metadata.name
    if case.before is not None:
        return
    if REGION in case.who.roles:
        yield from _about_itself(case.who.region, name, after.spec)
        if after.spec.approver:
            yield forbidden("spec.approver", "what a region reports needs no approval, and brings none")
        return
    if case.cell == GLOBAL_CELL:
        if is_break_glass(name) or after.spec.break_glass is not None:
            why = "such names are of overrides that were given in a region; leave it out, and ask under another name"
            yield forbidden("metadata.name", why)
        return
    yield from _about_itself(case.cell, name, after.spec)
    lease = case.find("Lease", reach.NAME, reach.NAMESPACE)
    if lease is not None and reach.is_heard(lease):
        yield Refused(
            "GlobalCellReachable",
            f"region {case.cell} hears the global cell since {lease.spec.acquire_time}: ask for the override there, "
            "under a name of its own; a region takes one only while the global cell is out of reach",
            {"heardSince": lease.spec.acquire_time},
        )


def _about_itself(region: str, name: str, spec: OverrideSpec) -> Iterator[Cause | Refused]:
    """What a region may be told without the global cell, and may report as told."""
    if not name.startswith(break_glass_prefix(region)):
        yield invalid("metadata.name", name, f"in region {region} it begins with {break_glass_prefix(region)}")
    if not RULES[spec.kind].break_glass:
        known = [kind.value for kind, rule in RULES.items() if rule.break_glass]
        yield unsupported("spec.kind", spec.kind.value, known)
    if spec.ttl_seconds > limits.BREAK_GLASS_MAX_S:
        most = f"without the global cell an override lasts at most {limits.BREAK_GLASS_MAX_S:g} s; ask again after that"
        yield invalid("spec.ttlSeconds", spec.ttl_seconds, most)
    if spec.scope.region != region:
        yield invalid("spec.scope.region", spec.scope.region, f"it can only be about the region itself, {region}")


def override_change(case: Case) -> Iterator[Cause | Refused]:
    """After it was asked for, an override is approved or revoked, once; anything else is another override."""
    before, after = cast("Any", case.before), cast("Any", case.after)
    if before is None:
        return
    old, new = before.spec, after.spec
    same = msgspec.structs.replace(new, approver=old.approver, revoked=old.revoked) == old
    if not same or (old.revoked and not new.revoked) or (old.approver and new.approver != old.approver):
        why = "an override never changes: revoke it and ask for another one, which is then on record by itself"
        yield forbidden("spec", why)
        return
    if new.approver != old.approver:
        if new.approver == new.requester:
            why = (
                f"{new.requester} asked for it, and whoever asks for an override cannot approve it: ask a second person"
            )
            yield forbidden("spec.approver", why)
        if before.status.phase in (EXPIRED, REVOKED):
            yield Refused("OverrideEnded", f"it is {before.status.phase}: ask for another one")
