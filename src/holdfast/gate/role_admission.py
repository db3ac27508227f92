"""Admission of roles and bindings: nobody gives more than they have, and the built-in roles stay as they are. Pure.

As in Kubernetes, the verb `escalate` on a role and the verb `bind` on a role lift the comparison. Rights that a
break-glass session gives never count: a role would outlive the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from holdfast.gate.allowance import ANY, AccessRequest, Allowance, uncovered
from holdfast.gate.authorize import allowances
from holdfast.gate.granted_access import bound_rows, role_rows, rule_rows
from holdfast.model.errors import Cause, Refused
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Object
from holdfast.model.ownership import BUILTIN_ROLES
from holdfast.model.principal import CONTROLLERS, OPERATORS, from_identity
from holdfast.model.rbac import BUILTIN_PREFIX, SUBJECT_BINDINGS_MAX, PolicyRule, subject_keys
from holdfast.model.validation import invalid

if TYPE_CHECKING:
    from holdfast.gate.admission import AdmissionCase

# Missing rights named in one refusal. The rest is only counted.
MISSING_RIGHTS_SHOWN = 3


def builtin_role(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """Names with the prefix of the platform belong to it."""
    item: Any = case.after if case.after is not None else case.before
    if item.metadata.name.startswith(BUILTIN_PREFIX) and BUILTIN_ROLES not in case.who.roles:
        yield Refused(
            "BuiltInRole",
            f"names that begin with {BUILTIN_PREFIX} belong to the built-in roles, which cannot be changed; next: "
            "create a role of another name",
        )


def writer_has_verb(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """Users of a tenant own the fields of its roles, because its admins are users too. The verb tells them apart, also
    for writes that came through `/commit/v1`, which authorizes no single object."""
    if CONTROLLERS in case.who.groups:
        return
    meta = cast("Object", case.after if case.after is not None else case.before).metadata
    verbs = ("update", "patch") if case.before is not None else ("create",)
    if case.deleting:
        verbs = ("delete", "deletecollection")
    held = _held(case)
    requests = [AccessRequest(verb, case.kind.plural, "", meta.namespace, meta.name) for verb in verbs]
    if not any(row.covers(request) for row in held for request in requests):
        yield Refused("Forbidden", f'User "{case.who.name}" cannot {verbs[0]} {case.kind.plural}')


def role_within_rights(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """Who writes a role must hold everything in it."""
    after, before = _states(case)
    if CONTROLLERS in case.who.groups or (before is not None and before.rules == after.rules):
        return
    if OPERATORS not in case.who.groups and any(_has_wildcard(rule) for rule in after.rules):
        yield Refused(
            "WildcardNotPermitted",
            f'User "{case.who.name}" may not write a rule with * (only operators); next: list the verbs and resources',
        )
        return
    where = frozenset({after.metadata.namespace}) if after.metadata.namespace else None
    held = _held(case)
    if not _has_verb(held, "escalate", case, after.metadata.name):
        yield from _escalation(case, rule_rows(after.rules, where), held)


def binding_within_rights(case: AdmissionCase) -> Iterator[Cause | Refused]:
    """Who binds a role must hold everything in it, or have the verb `bind` on it."""
    after, before = _states(case)
    if before is not None and before.subjects == after.subjects and before.role_ref == after.role_ref:
        return
    known = set(subject_keys(before)) if before is not None else set()
    for subject in subject_keys(after):
        held_bindings = len(case.all(case.kind.name, subject=subject)) if subject not in known else 0
        if subject.endswith(ANY):
            yield invalid("subjects", subject, "a name cannot end with *")
        elif held_bindings >= SUBJECT_BINDINGS_MAX:
            more = f"{subject} has {held_bindings} {case.kind.plural} (limit {SUBJECT_BINDINGS_MAX})"
            yield Refused("TooManyBindings", f"{more}; next: put their rules into one role")
    ref, tenant = after.role_ref, after.metadata.namespace
    rows = role_rows(case.objects, ref, tenant)
    if rows is None:
        found = f'{ref.kind} "{ref.name}" not found' + (f" in tenant {tenant}" if ref.kind == "Role" else "")
        yield Refused("RoleNotFound", f"roleRef: {found}; next: kubectl get {ref.kind.lower()}s")
        return
    held = _held(case)
    if not _has_verb(held, "bind", case, ref.name, role_kind=ref.kind):
        yield from _escalation(case, rows, held)


def _states(case: AdmissionCase) -> tuple[Any, Any]:
    return case.after, case.before


def _held(case: AdmissionCase) -> tuple[Allowance, ...]:
    """All rows of the writer: a request that a bound role allowed has the roles of that one request only."""
    who = from_identity(case.who.name, case.who.groups, credential=case.who.credential)
    return (*allowances(who, case.cell), *bound_rows(case.objects, who))


def _has_verb(held: tuple[Allowance, ...], verb: str, case: AdmissionCase, name: str, role_kind: str = "") -> bool:
    item: Any = case.after
    kind = BY_NAME[role_kind] if role_kind else case.kind
    request = AccessRequest(verb, kind.plural, namespace=item.metadata.namespace, name=name)
    return any(row.covers(request) for row in held)


def _has_wildcard(rule: PolicyRule) -> bool:
    return any(ANY in text for text in (*rule.verbs, *rule.api_groups, *rule.resources, *rule.non_resource_urls))


def _escalation(case: AdmissionCase, rows: Any, held: tuple[Allowance, ...]) -> Iterator[Refused]:
    missing = list(islice(uncovered(rows, held), MISSING_RIGHTS_SHOWN + 1))
    if missing:
        shown = "; ".join(missing[:MISSING_RIGHTS_SHOWN]) + (" and more" if len(missing) > MISSING_RIGHTS_SHOWN else "")
        yield Refused(
            "PrivilegeEscalation",
            f'User "{case.who.name}" may not give rights that it does not have: {shown}; next: leave these rules out, '
            "or ask someone who has them",
            {"missing": missing[:MISSING_RIGHTS_SHOWN]},
        )
