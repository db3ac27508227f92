"""Admission of Overrides: in the global cell, and in a partitioned region (break-glass). Pure.

A region accepts a break-glass override only if its kind neither spends quota, breaks placement rules nor fences, for a
short time, about itself, and only while the link reports the global cell unreachable or the requester insists, which is
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.fleet.override_kinds import RULES
from holdfast.gate.scope import GLOBAL_CELL
from holdfast.model import connectivity, limits
from holdfast.model.errors import Cause, Refused
from holdfast.model.meta import Object
from holdfast.model.override import (
    EXPIRED,
    REVOKED,
    BreakGlass,
    Override,
    OverrideSpec,
    break_glass_prefix,
    is_break_glass,
)
from holdfast.model.ownership import REGION
from holdfast.model.principal import Principal
from holdfast.model.validation import forbidden, invalid, unsupported

if TYPE_CHECKING:
    from holdfast.gate.admission import AdmissionCase


def override_scope(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """A new override must name existing objects and stay within the TTL of its kind."""
    after: Any = case.after
    spec, scope = after.spec, after.spec.scope
    if case.before is not None or REGION in case.who.roles:
        return  # a region's report was admitted there and is already effective
    rule = RULES[spec.kind]
    if spec.ttl_seconds > rule.max_ttl_s and spec.maintenance is None:
        most = f"must be at most {rule.max_ttl_s:g} for {spec.kind}; create another override when it expires"
        yield invalid("spec.ttlSeconds", spec.ttl_seconds, most)
    if spec.approver or spec.revoked:
        yield forbidden("spec.approver", "must be empty on creation: approval and revocation are separate requests")
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
        yield invalid("spec.scope.workload", scope.workload, f"workload {scope.tenant}/{scope.workload} not found")
    if spec.policy_revision and case.find("PolicyRevision", spec.policy_revision) is None:
        known = [r.metadata.name for r in case.all("PolicyRevision")]
        yield unsupported("spec.policyRevision", spec.policy_revision, known[-20:])


def override_home(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """Which cell accepts it: break-glass names belong to regions, all other names to the global cell."""
    after: Any = case.after
    name: str = after.metadata.name
    if case.before is not None:
        return
    if REGION in case.who.roles:
        yield from _break_glass_rules(case.who.region, name, after.spec)
        if after.spec.approver:
            yield forbidden("spec.approver", "must be empty: a break-glass override has no approver")
        return
    if case.cell == GLOBAL_CELL:
        if is_break_glass(name) or after.spec.break_glass is not None:
            why = "names that begin with break-glass- are reserved for overrides created in a region"
            yield forbidden("metadata.name", why)
        return
    yield from _break_glass_rules(case.cell, name, after.spec)
    lease = case.find("Lease", connectivity.NAME, connectivity.NAMESPACE)
    insisted = after.spec.break_glass is not None and after.spec.break_glass.insisted
    if lease is not None and connectivity.is_connected(lease) and not insisted:
        yield Refused(
            "GlobalCellReachable",
            f"region {case.cell} is connected to the global cell since {lease.spec.acquire_time} (break-glass is "
            f"allowed only while it is unreachable); next: holdfast override create {after.spec.kind} "
            f'--region {case.cell} --reason "…", or add --insist if the global cell does not answer you',
            {"heardSince": lease.spec.acquire_time},
        )


def _break_glass_rules(region: str, name: str, spec: OverrideSpec) -> Iterator[Cause | Refused]:
    """Rules for a break-glass override, in its region and when the region reports it."""
    if not name.startswith(break_glass_prefix(region)):
        yield invalid("metadata.name", name, f"must begin with {break_glass_prefix(region)} in region {region}")
    if not RULES[spec.kind].break_glass:
        known = [kind.value for kind, rule in RULES.items() if rule.break_glass]
        yield unsupported("spec.kind", spec.kind.value, known)
    if spec.ttl_seconds > limits.BREAK_GLASS_MAX_S:
        most = f"must be at most {limits.BREAK_GLASS_MAX_S:g} for break-glass; create another one when it expires"
        yield invalid("spec.ttlSeconds", spec.ttl_seconds, most)
    if spec.scope.region != region:
        own = f"must be {region}: a break-glass override applies only to its own region"
        yield invalid("spec.scope.region", spec.scope.region, own)


def override_change(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """After creation an override can only be approved or revoked, each once."""
    before, after = cast("Any", case.before), cast("Any", case.after)
    if before is None:
        return
    old, new = before.spec, after.spec
    same = msgspec.structs.replace(new, approver=old.approver, revoked=old.revoked) == old
    if not same or (old.revoked and not new.revoked) or (old.approver and new.approver != old.approver):
        why = "an override is immutable except for approval and revocation; revoke it and create another one"
        yield forbidden("spec", why)
        return
    if new.approver != old.approver:
        if new.approver == new.requester:
            why = (
                f"the requester cannot approve it (expected an approver other than {new.requester}); next: another "
                f"operator runs holdfast override approve {after.metadata.name}"
            )
            yield forbidden("spec.approver", why)
        if before.status.phase in (EXPIRED, REVOKED):
            ended = f"cannot be approved, because it is {before.status.phase}; next: create another override"
            yield Refused("OverrideEnded", ended)


def override_ended(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """An override is deleted only after it has ended: it is ended by revocation, which stays on record."""
    before = cast("Any", case.before)
    if before.status.phase not in (EXPIRED, REVOKED):
        name = before.metadata.name
        text = f"it is {before.status.phase or 'new'} and can only be revoked; next: holdfast override revoke {name}"
        yield Refused("OverrideInForce", text, {"phase": before.status.phase})


def with_requester(who: Principal, cell: str, before: Object | None, given: Object) -> Object:
    """Sets requester and approver of an Override to the authenticated user; names in the request are ignored.

    For a break-glass override the region reports the requester.
    """
    if not isinstance(given, Override):
        return given
    spec = given.spec
    if not isinstance(before, Override):
        if REGION in who.roles:
            return given
        if cell != GLOBAL_CELL:
            insisted = spec.break_glass is not None and spec.break_glass.insisted
            spec = msgspec.structs.replace(spec, break_glass=BreakGlass(region=cell, insisted=insisted))
        return msgspec.structs.replace(given, spec=msgspec.structs.replace(spec, requester=who.name))
    approver = who.name if spec.approver and not before.spec.approver else spec.approver
    spec = msgspec.structs.replace(spec, requester=before.spec.requester, approver=approver)
    return msgspec.structs.replace(given, spec=spec)
