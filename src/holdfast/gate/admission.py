"""Admission rules that need more than the object itself: references, use by other objects, quota.

A rule is a small function of an `AdmissionCase`, in a table by kind. It reads only published objects. It yields causes
(the object is invalid), refusals (the object is valid, the state forbids it) and warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from holdfast.fleet.recovery.backing import unbacked_objectives
from holdfast.foundation.time_zones import find_zone
from holdfast.gate.break_glass_admission import session_changed, session_opened, session_reviewed
from holdfast.gate.event_scope import event_refusal
from holdfast.gate.override_admission import override_change, override_ended, override_home, override_scope
from holdfast.gate.published_view import PublishedView
from holdfast.gate.role_admission import binding_within_rights, builtin_role, role_within_rights, writer_has_verb
from holdfast.model import limits
from holdfast.model.active_policy import active_policy
from holdfast.model.binding import ReservationPhase
from holdfast.model.core import Event
from holdfast.model.cron_workload import CronWorkload, run_of
from holdfast.model.errors import Cause, Refused
from holdfast.model.kinds import BY_NAME, Home, Kind
from holdfast.model.meta import Object
from holdfast.model.override import Override, OverrideKind, in_force, is_in_scope
from holdfast.model.ownership import GARBAGE_COLLECTOR, OPERATOR, TENANT_CONTENTS
from holdfast.model.principal import CONTROLLERS, Principal
from holdfast.model.priority_class import PriorityClass
from holdfast.model.quantity import BadQuantity, amount_text, amounts, scaled, shortfall
from holdfast.model.reasons import Reason
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PolicyRevision, PromotionStage, SchedulerPolicy, another_policy_text
from holdfast.model.tenant import user_refusal
from holdfast.model.validation import forbidden, invalid, unsupported
from holdfast.model.workload import wanted_replicas
from holdfast.scheduling import policy_expressions
from holdfast.store.objects import Objects

# Secrets and ConfigMaps of one tenant. More are refused.
CONFIG_OBJECTS_PER_TENANT_MAX = 2_000
# Stored size of a tenant's Secrets and ConfigMaps. While they are larger, changes other than deletions are refused.
CONFIG_BYTES_PER_TENANT_MAX = 32 * 1024 * 1024


class AdmissionWarning(msgspec.Struct, frozen=True, gc=False):
    """A warning returned with a success."""

    text: str


Finding = Cause | Refused | AdmissionWarning
OWNER_EXISTS = "OwnerExists"


class AdmissionCase(msgspec.Struct, frozen=True):
    """One write as the rules see it. `after` is None for a removal or a requested deletion."""

    who: Principal
    kind: Kind
    before: Object | None
    after: Object | None
    objects: Objects
    cell: str
    deleting: bool = False
    now: float = 0.0

    def find(self, kind: str, name: str, namespace: str = "") -> Any:
        return self.objects.get(BY_NAME[kind], namespace, name)

    @property
    def by_platform(self) -> bool:
        """Whether an operator or a component of the platform writes, not a user of a tenant."""
        return OPERATOR in self.who.roles or CONTROLLERS in self.who.groups

    def all(self, kind: str, namespace: str = "", **fields: str) -> list[Any]:
        return self.objects.list(BY_NAME[kind], namespace, fields=fields or None)[0]


Rule = Callable[[AdmissionCase], Iterator[Finding]]


def workload_priority_class(case: AdmissionCase) -> Iterator[Finding]:
    """A class must exist, and its `spec.tenants` must list the tenant, unless an operator sets it: a higher priority
    takes capacity from other tenants.
    """
    after: Any = case.after
    name = after.spec.priority_class_name
    before: Any = case.before
    if not name or (before is not None and before.spec.priority_class_name == name):
        return
    found: PriorityClass | None = case.find("PriorityClass", name)
    tenant = after.metadata.namespace
    if found is not None and not found.spec.permits(tenant) and not case.by_platform:
        yield Refused(
            "PriorityClassNotPermitted",
            f'spec.priorityClassName: tenant {tenant} may not use priority class "{name}"; next: use another class, or '
            f"an operator adds {tenant} to spec.tenants of priorityclass {name}",
            {"priorityClass": name},
        )
    if found is None:
        known = ", ".join(f'"{c.metadata.name}"' for c in case.all("PriorityClass")[:20]) or "none"
        yield Cause(
            "spec.priorityClassName",
            "FieldValueNotSupported",
            f'Unsupported value: "{name}": supported values: {known}',
        )


def event_about_own_object(case: AdmissionCase) -> Iterator[Finding]:
    """An agent or a region's link writes, changes and deletes only Events about its own objects."""
    for state in (case.before, case.after):
        refused = event_refusal(case.who, case.cell, state, case.objects) if isinstance(state, Event) else None
        if refused is not None:
            yield refused
            return


def workload_user(case: AdmissionCase) -> Iterator[Finding]:
    """A named user needs the permission of the tenant, which an operator gives. The node's agent checks its own."""
    after: Any = case.after
    user = after.spec.template.user
    why = user_refusal(case.find("Tenant", after.metadata.namespace), user)
    if why:
        yield forbidden("spec.template.user", f"{user}: {why}")


def workload_quota(case: AdmissionCase) -> Iterator[Finding]:
    """One replica above the tenant's whole quota can never run, so it is refused. Replicas beyond it only warn."""
    after: Any = case.after
    tenant = after.metadata.namespace
    quota = case.find("Quota", "quota", tenant)
    if quota is None:
        yield AdmissionWarning(
            f"tenant {tenant} has no Quota: its replicas stay pending with reason NoGrant until an operator creates one"
        )
        return
    try:
        one, hard = amounts(after.spec.template.resources), amounts(quota.spec.hard)
    except BadQuantity:
        return
    before: Any = case.before
    changed = before is None or before.spec.template.resources != after.spec.template.resources
    over = shortfall(one, hard)
    for resource in over:
        path = f"spec.template.resources.{resource}"
        limit = amount_text(resource, hard.get(resource, 0))
        if changed:
            requested = after.spec.template.resources[resource]
            said = f"one replica exceeds the quota of tenant {tenant} (limit {limit}); next: ask for less, or raise it"
            yield invalid(path, requested, f"{said}: kubectl edit quota -n {tenant}")
    wanted = wanted_replicas(after)
    if not over and shortfall(scaled(one, wanted), hard):
        fits = min(hard.get(r, 0) // amount for r, amount in one.items())
        yield AdmissionWarning(
            f"the quota of tenant {tenant} fits {fits} of these {wanted} replicas; the others stay pending"
        )


def workload_pending_cap(case: AdmissionCase) -> Iterator[Finding]:
    """Bounds a tenant's pending replicas, so that one tenant cannot fill the scheduling queue of all."""
    after: Any = case.after
    before: Any = case.before
    more = wanted_replicas(after) - (wanted_replicas(before) if before is not None else 0)
    tenant = after.metadata.namespace
    quota = case.find("Quota", "quota", tenant)
    if quota is None or more <= 0:
        return
    waiting = case.objects.tally(case.kind, "pending", tenant)
    if waiting + more > quota.spec.pending_cap:
        yield Refused(
            "PendingCapExceeded",
            f"too many pending replicas in tenant {tenant} (limit {quota.spec.pending_cap}, found {waiting} + {more} "
            f"new); next: reduce spec.replicas, or an operator raises spec.pendingCap of quota {tenant}/quota",
            {"pendingCap": quota.spec.pending_cap, "waiting": waiting, "added": more},
        )


def cron_time_zone(case: AdmissionCase) -> Iterator[Finding]:
    after = cast("CronWorkload", case.after)
    if find_zone(after.spec.time_zone) is None:
        yield invalid("spec.timeZone", after.spec.time_zone, "unknown; write an IANA name, for example Europe/Berlin")


def cron_runs(case: AdmissionCase) -> Iterator[Finding]:
    """The rules of a Workload that its author must meet. The controller that creates the runs passes them all, so a
    user must not get through it what a Workload of his own could not have."""
    states = (case.before, case.after)
    before, after = (run_of(c, c.metadata.name, 0.0) if isinstance(c, CronWorkload) else None for c in states)
    run = msgspec.structs.replace(case, kind=BY_NAME["Workload"], before=before, after=after)
    for rule in (workload_priority_class, workload_user, workload_quota):
        for finding in rule(run):
            if isinstance(finding, Cause):
                yield msgspec.structs.replace(finding, field=f"spec.workload.{finding.field}")
            else:
                yield finding


def config_within_tenant_limits(case: AdmissionCase) -> Iterator[Finding]:
    """Bounds what one tenant's Secrets and ConfigMaps take of the store that all tenants share."""
    tenant = cast("Object", case.after).metadata.namespace
    count = total = 0
    for kind in ("Secret", "ConfigMap"):
        entries = case.objects.entries(BY_NAME[kind], tenant)[0]
        count, total = count + len(entries), total + sum(len(entry.value) for entry in entries)
    if case.before is None and count >= CONFIG_OBJECTS_PER_TENANT_MAX:
        what = f"too many Secrets and ConfigMaps in tenant {tenant} (limit {CONFIG_OBJECTS_PER_TENANT_MAX})"
        yield Refused("TooManyObjects", f"{what}; next: delete some")
    elif total > CONFIG_BYTES_PER_TENANT_MAX:
        what = f"Secrets and ConfigMaps of tenant {tenant} are too large (limit {CONFIG_BYTES_PER_TENANT_MAX} bytes)"
        yield Refused("TooManyObjects", f"{what}; next: delete some")


def workload_regions(case: AdmissionCase) -> Iterator[Finding]:
    if not case.all("Region"):
        yield AdmissionWarning("no Region exists: the workload stays pending until an operator creates one")


def region_name(case: AdmissionCase) -> Iterator[Finding]:
    after: Any = case.after
    if after.metadata.name == "global":
        yield forbidden("metadata.name", 'the name "global" is reserved for the global cell')


def slot_not_consumed(case: AdmissionCase) -> Iterator[Finding]:
    """A slot that a claim consumes is not deleted: a new slot of the same name could be consumed a second time."""
    before: Any = case.before
    for claim in case.all("Reservation", node=before.spec.node):
        if before.metadata.name in claim.spec.recovery_slots and claim.status.phase is not ReservationPhase.RELEASED:
            yield Refused("SlotInUse", f"in use by claim {claim.key}; it can be deleted after that claim has ended")
            return


def budget_backs_objectives(case: AdmissionCase) -> Iterator[Finding]:
    """A budget that backs a recovery objective shrinks only under an approved ShrinkBudget override."""
    before: Any = case.before
    if before is None:
        return
    after: Any = case.after if not case.deleting else None
    here = PublishedView(case.objects)
    approved = in_force(here.list(Override), OverrideKind.SHRINK_BUDGET, case.now)
    budgets = list(here.list(RecoveryBudget))
    changed = [b for b in budgets if b.metadata.name != before.metadata.name] + ([after] if after is not None else [])
    broken = {
        key: why
        for key, why in unbacked_objectives(here, case.now, changed).items()
        if not any(is_in_scope(o, region=before.spec.region, tenant=key.namespace, workload=key.name) for o in approved)
    }
    unbacked_before = unbacked_objectives(here, case.now, budgets) if broken else {}
    lost = sorted(key for key in broken if key not in unbacked_before)
    if lost:
        yield Refused(
            "BacksObjective",
            f"the change would leave workload {lost[0]} without recovery capacity ({broken[lost[0]]}); next: add slots "
            f'in another region, or holdfast override create ShrinkBudget --region {before.spec.region} --reason "…"',
            {"workloads": [str(key) for key in lost]},
        )


def quota_in_use(case: AdmissionCase) -> Iterator[Finding]:
    """A limit below current use is refused: enforcing it would mean stopping running work."""
    before, after = cast("Any", case.before), cast("Any", case.after)
    if before is None:
        return
    try:
        used, hard = amounts(before.status.used), amounts(after.spec.hard)
        lowered = shortfall(amounts(before.spec.hard), hard)
    except BadQuantity:
        return
    for resource in sorted(set(shortfall(used, hard)) & set(lowered)):
        in_use = amount_text(resource, used[resource])
        why = f"below current use ({in_use}); scale the tenant's workloads down first"
        yield invalid(f"spec.hard.{resource}", after.spec.hard.get(resource, "0"), why)


def policy_filters_match_nodes(case: AdmissionCase) -> Iterator[Finding]:
    """Refuses a filter expression that no node can pass: it would stop all placement."""
    rules: Any = case.after.spec.rules  # type: ignore[union-attr]
    zones = sorted({zone for r in case.all("Region") for zone in r.spec.zones})
    for index, item in enumerate(rules.filter_expressions):
        if (
            len(item.expression) > limits.EXPRESSION_CHARS_MAX
            or policy_expressions.find_error(item.expression, score=False) is not None
        ):
            continue
        why = policy_expressions.never_true_reason(item.expression, zones)
        if why:
            yield invalid(
                f"spec.rules.filterExpressions[{index}].expression",
                item.expression,
                f"{why}; write a condition that nodes can meet, for example node.zone != 'lab'",
            )


def policy_regions(case: AdmissionCase) -> Iterator[Finding]:
    """Canary regions must exist."""
    after: Any = case.after
    known = [r.metadata.name for r in case.all("Region")]
    for index, name in enumerate(after.spec.canary_regions):
        if known and name not in known:
            yield unsupported(f"spec.canaryRegions[{index}]", name, known)


def policy_only_one(case: AdmissionCase) -> Iterator[Finding]:
    """Only one policy may be in a stage other than Draft. Of two, the revision with the newer sequence would decide
    everywhere, although both look active."""
    after = cast("SchedulerPolicy", case.after)
    if after.spec.stage is PromotionStage.DRAFT:
        return
    others = (p for p in case.all("SchedulerPolicy") if p.metadata.name != after.metadata.name)
    other = next((p for p in others if p.spec.stage is not PromotionStage.DRAFT), None)
    if other is not None:
        yield Refused(
            Reason.ANOTHER_POLICY_ACTIVE.value,
            another_policy_text(other.metadata.name, other.spec.stage.value),
            {"policy": other.metadata.name},
        )


def policy_not_deciding(case: AdmissionCase) -> Iterator[Finding]:
    """A policy with a revision in use is not deleted: its rules would go on deciding, and no policy would show them."""
    name = cast("Object", case.before).metadata.name
    here = PublishedView(case.objects)
    revisions, overrides = here.list(PolicyRevision), here.list(Override)
    owners = {r.metadata.name: r.spec.policy for r in revisions}
    using: dict[str, list[str]] = {}
    for region in sorted(r.metadata.name for r in here.list(Region)):
        used = active_policy(revisions, overrides, region, case.now).revision
        if owners.get(used) == name:
            using.setdefault(used, []).append(region)
    for used, regions in using.items():
        yield Refused(
            "InUse",
            f"in use: its revision {used} decides in {', '.join(regions)}; next: set spec.stage of "
            f"policy {name} to Draft, then holdfast policy promote OTHER with the policy that shall decide",
            {"revision": used, "regions": regions},
        )
        return


def quota_unused(case: AdmissionCase) -> Iterator[Finding]:
    if case.before is not None and case.all("Workload", case.before.metadata.namespace):
        yield AdmissionWarning(
            f"tenant {case.before.metadata.namespace} still has workloads: without a Quota their running replicas "
            "stay, and no new replica is placed"
        )


def priority_class_unused(case: AdmissionCase) -> Iterator[Finding]:
    name = case.before.metadata.name  # type: ignore[union-attr]
    users = [w for w in case.all("Workload") if w.spec.priority_class_name == name]
    users += [c for c in case.all("CronWorkload") if c.spec.workload.spec.priority_class_name == name]
    if users:
        yield Refused(
            "InUse",
            f"in use by {len(users)} workloads, for example {users[0].key}; next: set their spec.priorityClassName to "
            "another class",
            {"workloads": len(users)},
        )


def region_empty(case: AdmissionCase) -> Iterator[Finding]:
    name = case.before.metadata.name  # type: ignore[union-attr]
    held = case.all("Assignment", region=name)
    if held:
        yield Refused(
            "InUse",
            f"in use by {len(held)} assignments, for example {held[0].key}; next: add the region to "
            "spec.placement.excludedRegions of these workloads, or delete them",
            {"assignments": len(held)},
        )


def node_empty(case: AdmissionCase) -> Iterator[Finding]:
    """Removing a Node releases the claims on it. An operator may do so, which attests that nothing runs there."""
    name = case.before.metadata.name  # type: ignore[union-attr]
    bound = case.all("Binding", node=name)
    if not bound:
        return
    if OPERATOR in case.who.roles:
        yield AdmissionWarning(
            f"node {name} has {len(bound)} bindings: removing it attests that none of their tasks runs"
        )
        return
    used = f"in use by {len(bound)} bindings, for example {bound[0].key}; next: holdfast node drain {name}"
    yield Refused("InUse", used)


def owners_gone(case: AdmissionCase) -> Iterator[Finding]:
    """The garbage collector works from a cache; here its deletions are checked against current state."""
    before: Any = case.before
    if GARBAGE_COLLECTOR not in case.who.roles or not before.metadata.owner_references:
        return
    tenant = case.find("Tenant", before.metadata.namespace) if before.metadata.namespace else None
    if tenant is not None and tenant.metadata.terminating:
        return
    for ref in before.metadata.owner_references:
        kind = BY_NAME.get(ref.kind)
        owner = (
            None
            if kind is None
            else case.objects.get(kind, before.metadata.namespace if kind.namespaced else "", ref.name)
        )
        if owner is None or owner.uid != ref.uid:
            continue
        if owner.metadata.terminating and "foregroundDeletion" in owner.metadata.finalizers:
            continue
        yield Refused(OWNER_EXISTS, f"owner {ref.kind} {ref.name} still exists")


def tenant_empty(case: AdmissionCase) -> Iterator[Finding]:
    """Refuses to remove the collector's finalizer while the tenant is not empty: the collector's cache may be stale."""
    before, after = cast("Object", case.before), cast("Object", case.after)
    lets_go = TENANT_CONTENTS in before.metadata.finalizers and TENANT_CONTENTS not in after.metadata.finalizers
    if GARBAGE_COLLECTOR not in case.who.roles or not lets_go:
        return
    for kind in BY_NAME.values():
        if kind.namespaced and kind.home is Home.GLOBAL and (left := case.all(kind.name, before.metadata.name)):
            yield Refused(OWNER_EXISTS, f"not empty: {len(left)} {kind.plural}, for example {left[0].key}")


def policy_expressions_compile(case: AdmissionCase) -> Iterator[Finding]:
    """Compiles and tries every expression, so that an invalid one never reaches a scheduler."""
    rules: Any = case.after.spec.rules  # type: ignore[union-attr]
    written = [("filterExpressions", i, e.expression, False) for i, e in enumerate(rules.filter_expressions)]
    written += [("scoreExpressions", i, e.expression, True) for i, e in enumerate(rules.score_expressions)]
    for field, index, text, score in written:
        wrong = policy_expressions.find_error(text, score=score) if len(text) <= limits.EXPRESSION_CHARS_MAX else None
        if wrong is not None:
            yield invalid(f"spec.rules.{field}[{index}].expression", text, wrong.text)


ON_WRITE: dict[str, tuple[Rule, ...]] = {
    "SchedulerPolicy": (policy_expressions_compile, policy_filters_match_nodes, policy_regions, policy_only_one),
    "Workload": (workload_priority_class, workload_user, workload_quota, workload_pending_cap, workload_regions),
    "CronWorkload": (cron_time_zone, cron_runs),
    "Secret": (config_within_tenant_limits,),
    "ConfigMap": (config_within_tenant_limits,),
    "Region": (region_name,),
    "Override": (override_home, override_scope, override_change),
    "RecoveryBudget": (budget_backs_objectives,),
    "Quota": (quota_in_use,),
    "Event": (event_about_own_object,),
    "BreakGlassSession": (session_opened, session_changed),
    "Role": (writer_has_verb, builtin_role, role_within_rights),
    "ClusterRole": (builtin_role, role_within_rights),
    "RoleBinding": (writer_has_verb, binding_within_rights),
    "ClusterRoleBinding": (binding_within_rights,),
}

ON_DELETE: dict[str, tuple[Rule, ...]] = {
    "PriorityClass": (priority_class_unused,),
    "SchedulerPolicy": (policy_not_deciding,),
    "Region": (region_empty,),
    "Node": (node_empty,),
    "Override": (override_ended,),
    "Quota": (quota_unused,),
    "RecoveryBudget": (budget_backs_objectives,),
    "RecoverySlot": (slot_not_consumed,),
    "Event": (event_about_own_object,),
    "BreakGlassSession": (session_reviewed,),
    "Role": (writer_has_verb, builtin_role),
    "RoleBinding": (writer_has_verb,),
    "ClusterRole": (builtin_role,),
}

ON_FINALIZER_REMOVED: dict[str, tuple[Rule, ...]] = {"Tenant": (tenant_empty,)}
"""Rules for removing a finalizer."""


def admit(case: AdmissionCase) -> list[Finding]:
    """All findings of the rules on one write. Mirrors were admitted in their home cell."""
    if case.deleting:
        rules: tuple[Rule, ...] = (owners_gone, *ON_DELETE.get(case.kind.name, ()))
    elif case.after is None:
        return []
    elif case.before is not None and case.before.metadata.finalizers != case.after.metadata.finalizers:
        written = () if _content_unchanged(case) else ON_WRITE.get(case.kind.name, ())
        rules = (*ON_FINALIZER_REMOVED.get(case.kind.name, ()), *written)
    elif _content_unchanged(case):
        return []
    else:
        rules = ON_WRITE.get(case.kind.name, ())
    return [finding for rule in rules for finding in rule(case)]


def _content_unchanged(case: AdmissionCase) -> bool:
    """A change of only metadata or status needs no admission; otherwise a full queue could never drain. Of an object
    without spec, such as an Event or a Role, all is content.
    """
    return (
        case.before is not None
        and hasattr(case.before, "spec")
        and getattr(case.before, "spec", None) == getattr(case.after, "spec", None)
    )
