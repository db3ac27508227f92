"""The rows of the table of kinds for access: roles, their bindings, and break-glass sessions."""

from __future__ import annotations

from holdfast.model import break_glass_session, rbac
from holdfast.model.api_groups import RBAC_GROUP
from holdfast.model.kind import Home, Kind

ACCESS_KINDS: tuple[Kind, ...] = (
    Kind(
        name="Role",
        plural="roles",
        note="Permitted verbs on resources of one tenant. As in Kubernetes.",
        type=rbac.Role,
        home=Home.GLOBAL,
        namespaced=True,
        mirrored=True,
        group=RBAC_GROUP,
        categories=(),
        validate=rbac.validate_role,
        has_status=False,
    ),
    Kind(
        name="ClusterRole",
        plural="clusterroles",
        note="Permitted verbs on resources of all tenants and of the platform. As in Kubernetes.",
        type=rbac.ClusterRole,
        home=Home.GLOBAL,
        mirrored=True,
        group=RBAC_GROUP,
        categories=(),
        validate=rbac.validate_role,
        has_status=False,
    ),
    Kind(
        name="RoleBinding",
        plural="rolebindings",
        note="Gives a Role or a ClusterRole to users and groups in one tenant. As in Kubernetes.",
        type=rbac.RoleBinding,
        home=Home.GLOBAL,
        namespaced=True,
        mirrored=True,
        group=RBAC_GROUP,
        categories=(),
        validate=rbac.validate_binding_of_role,
        has_status=False,
    ),
    Kind(
        name="ClusterRoleBinding",
        plural="clusterrolebindings",
        note="Gives a ClusterRole to users and groups everywhere. As in Kubernetes.",
        type=rbac.ClusterRoleBinding,
        home=Home.GLOBAL,
        mirrored=True,
        group=RBAC_GROUP,
        categories=(),
        validate=rbac.validate_binding_of_role,
        has_status=False,
    ),
    Kind(
        name="BreakGlassSession",
        plural="breakglasssessions",
        note=(
            "Rights that a person opens for themselves in an emergency: scoped, short, alarmed, reviewed by another "
            "person. Effective in the cell where it is created."
        ),
        type=break_glass_session.BreakGlassSession,
        home=Home.CELL,
        validate=break_glass_session.validate_break_glass_session,
        short_names=("bgs",),
        has_status=False,
    ),
)
