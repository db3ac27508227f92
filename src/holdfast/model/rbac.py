"""Role, ClusterRole, RoleBinding and ClusterRoleBinding, in the form of `rbac.authorization.k8s.io/v1`.

A role lists permitted verbs on resources. A binding gives a role to users and groups: a RoleBinding in its own tenant,
a ClusterRoleBinding everywhere. Names that begin with `holdfast:` belong to the built-in roles (`gate/builtin_roles`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.model.api_groups import RBAC_GROUP
from holdfast.model.meta import ApiStruct, Object
from holdfast.model.principal import COMPONENT_GROUPS
from holdfast.model.validation import Causes, forbidden, has_control_characters, invalid, required, unsupported

BUILTIN_PREFIX = "holdfast:"
"""Prefix of the built-in ClusterRoles, which nobody can change, and of the platform's groups."""
ANY = "*"
ROLE_KINDS = ("Role", "ClusterRole")
BINDING_KINDS = ("RoleBinding", "ClusterRoleBinding")
SUBJECT_KINDS = ("User", "Group")

# Rules of one role. More are refused; every rule is compiled for each of the role's subjects.
ROLE_RULES_MAX = 64
# Entries of one list of a rule: verbs, resources, groups, names or paths. More are refused.
RULE_ENTRIES_MAX = 64
# Length of one entry of a rule and of the name of a subject. A longer one is refused.
RULE_TEXT_CHARS_MAX = 253
# Subjects of one binding. More are refused; a group names many people at once.
BINDING_SUBJECTS_MAX = 64
# Bindings that name one subject in a cell. More are refused; each costs time on the subject's requests.
SUBJECT_BINDINGS_MAX = 128

_RESOURCE = re.compile(r"(\*|[a-z0-9][-a-z0-9]*)(/(\*|[a-z][-a-z0-9]*))?")
_VERB = re.compile(r"\*|[a-z]+")
_GROUP = re.compile(r"\*|[a-z0-9.-]*")
_PATH = re.compile(r"\*|/[A-Za-z0-9/._~-]*\*?")


class PolicyRule(ApiStruct, frozen=True):
    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class RoleRef(ApiStruct, frozen=True):
    kind: str = ""
    name: str = ""
    api_group: str = msgspec.field(default_factory=lambda: RBAC_GROUP)


class RoleSubject(ApiStruct, frozen=True):
    kind: str
    name: str
    api_group: str = msgspec.field(default_factory=lambda: RBAC_GROUP)
    namespace: str = ""


class Role(Object, frozen=True):
    rules: tuple[PolicyRule, ...] = msgspec.field(default_factory=tuple)


class ClusterRole(Object, frozen=True):
    rules: tuple[PolicyRule, ...] = msgspec.field(default_factory=tuple)


class RoleBinding(Object, frozen=True):
    role_ref: RoleRef = msgspec.field(default_factory=RoleRef)
    subjects: tuple[RoleSubject, ...] = ()


class ClusterRoleBinding(Object, frozen=True):
    role_ref: RoleRef = msgspec.field(default_factory=RoleRef)
    subjects: tuple[RoleSubject, ...] = ()


def subject_keys(binding: RoleBinding | ClusterRoleBinding) -> Iterable[str]:
    """The subjects of a binding as index values: `User:ann`, `Group:dev`."""
    return tuple(dict.fromkeys(f"{subject.kind}:{subject.name}" for subject in binding.subjects))


def validate_role(role: Role | ClusterRole, old: Any) -> Causes:
    """The form of the rules. Whether the writer may give them is decided at admission."""
    if len(role.rules) > ROLE_RULES_MAX:
        yield invalid("rules", f"{len(role.rules)} rules", f"at most {ROLE_RULES_MAX}")
    for index, rule in enumerate(role.rules[:ROLE_RULES_MAX]):
        yield from _validate_rule(f"rules[{index}]", rule, namespaced=isinstance(role, Role))


def _validate_rule(path: str, rule: PolicyRule, *, namespaced: bool) -> Causes:
    yield from _check_entries(f"{path}.verbs", rule.verbs, _VERB, "a verb such as get, or *")
    if not rule.verbs:
        yield required(f"{path}.verbs")
    yield from _check_entries(f"{path}.apiGroups", rule.api_groups, _GROUP, 'an API group, "", or *')
    yield from _check_entries(
        f"{path}.resources", rule.resources, _RESOURCE, "a plural such as workloads or workloads/scale, or *"
    )
    yield from _check_entries(f"{path}.resourceNames", rule.resource_names, None, "a name")
    urls = rule.non_resource_urls
    yield from _check_entries(f"{path}.nonResourceURLs", urls, _PATH, "a path such as /metrics, or *")
    if urls and (namespaced or rule.resources or rule.api_groups):
        why = "only in a ClusterRole, in a rule without resources: paths belong to no tenant"
        yield forbidden(f"{path}.nonResourceURLs", why)
    elif not urls and not rule.resources:
        yield required(f"{path}.resources")
    elif not urls and not rule.api_groups:
        yield required(f"{path}.apiGroups")


def _check_entries(path: str, entries: tuple[str, ...], form: re.Pattern[str] | None, expected: str) -> Causes:
    if len(entries) > RULE_ENTRIES_MAX:
        yield invalid(path, f"{len(entries)} entries", f"at most {RULE_ENTRIES_MAX}")
    for index, entry in enumerate(entries[:RULE_ENTRIES_MAX]):
        if len(entry) > RULE_TEXT_CHARS_MAX or has_control_characters(entry) or (form and not form.fullmatch(entry)):
            yield invalid(f"{path}[{index}]", entry[:80], f"must be {expected}")


def validate_binding_of_role(binding: RoleBinding | ClusterRoleBinding, old: Any) -> Causes:
    ref = binding.role_ref
    kinds = ROLE_KINDS if isinstance(binding, RoleBinding) else ("ClusterRole",)
    if ref.api_group != RBAC_GROUP:
        yield unsupported("roleRef.apiGroup", ref.api_group, (RBAC_GROUP,))
    if ref.kind not in kinds:
        yield unsupported("roleRef.kind", ref.kind, kinds)
    if not ref.name:
        yield required("roleRef.name")
    if old is not None and old.role_ref != ref:
        yield invalid("roleRef", f"{ref.kind}/{ref.name}", "cannot change roleRef; delete the binding and create it")
    if len(binding.subjects) > BINDING_SUBJECTS_MAX:
        yield invalid("subjects", f"{len(binding.subjects)} subjects", f"at most {BINDING_SUBJECTS_MAX}")
    for index, subject in enumerate(binding.subjects[:BINDING_SUBJECTS_MAX]):
        yield from _validate_subject(f"subjects[{index}]", subject)


def _validate_subject(path: str, subject: RoleSubject) -> Causes:
    if subject.kind not in SUBJECT_KINDS:
        yield unsupported(f"{path}.kind", subject.kind, SUBJECT_KINDS)
    if subject.api_group != RBAC_GROUP:
        yield unsupported(f"{path}.apiGroup", subject.api_group, (RBAC_GROUP,))
    if not subject.name:
        yield required(f"{path}.name")
    if len(subject.name) > RULE_TEXT_CHARS_MAX or has_control_characters(subject.name):
        yield invalid(f"{path}.name", subject.name[:80], f"at most {RULE_TEXT_CHARS_MAX} printable characters")
    if subject.kind == "Group" and subject.name in COMPONENT_GROUPS:
        yield forbidden(f"{path}.name", "components of the platform have their own rights; roles are for people")
