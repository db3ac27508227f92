"""The API group of every kind. It imports no kind, so that a command can name an object's path and still start fast."""

from __future__ import annotations

from holdfast.model.meta import GROUP

CORE_GROUP = ""
COORDINATION_GROUP = "coordination.k8s.io"
RBAC_GROUP = "rbac.authorization.k8s.io"

_KUBERNETES_GROUPS = {
    "secrets": CORE_GROUP,
    "configmaps": CORE_GROUP,
    "events": CORE_GROUP,
    "leases": COORDINATION_GROUP,
    "roles": RBAC_GROUP,
    "rolebindings": RBAC_GROUP,
    "clusterroles": RBAC_GROUP,
    "clusterrolebindings": RBAC_GROUP,
}
"""Kinds that belong to a group of Kubernetes, by plural. Every other kind belongs to the group of Holdfast."""


def group_of(plural: str) -> str:
    return _KUBERNETES_GROUPS.get(plural, GROUP)


def api_path(plural: str) -> str:
    """Path prefix of the kind's API group: `/apis/holdfast.dev/v1`, `/api/v1`."""
    group = group_of(plural)
    return f"/apis/{group}/v1" if group else "/api/v1"
