"""People of a platform: their bindings, credentials, and who may do what, through the API and the platform's files."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.foundation.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from holdfast.client.sync_api import CellApi
    from holdfast.platform.layout import Layout

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"
TENANT_ROLES = ("tenant-admin", "tenant-user")
ROLES = ("viewer", "operator", "approver", "break-glass", *TENANT_ROLES)
BUILTIN_GROUPS = ("holdfast:operators", "holdfast:viewers", "holdfast:approvers", "holdfast:break-glass")


def binding_of(user: str, role: str, tenant: str) -> tuple[str, dict[str, Any]]:
    """Path and body of the binding that gives a user a built-in role, or the custom role of that name."""
    if role in TENANT_ROLES and not tenant:
        text = f"role {role}: belongs to a tenant"
        raise CommandError(text, next_step=f"add --tenant NAME: --role {role} --tenant payments", code=ExitCode.USAGE)
    name = re.sub(r"[^A-Za-z0-9.@:_-]", "-", f"user-{user}-{role}")[:253]
    ref = f"holdfast:{role}" if role in ROLES else role
    group = "rbac.authorization.k8s.io"
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ref},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    where = f"/namespaces/{quote(tenant, safe='')}/rolebindings" if tenant else "/clusterrolebindings"
    return RBAC + where, body


def bindings(api: CellApi, user: str = "") -> list[dict[str, Any]]:
    """All bindings, or those of one user."""
    query = {"fieldSelector": f"subject=User:{user}"} if user else {}
    found: list[dict[str, Any]] = []
    for plural in ("rolebindings", "clusterrolebindings"):
        for item in api.get(f"{RBAC}/{plural}", **query)["items"]:
            found.append({"plural": plural, **item})
    return found


def remove_bindings(api: CellApi, user: str) -> int:
    """Removes the bindings that name only this user. Returns how many there were."""
    removed = 0
    for item in bindings(api, user):
        if len(item["subjects"]) == 1:
            tenant = item["metadata"].get("namespace", "")
            where = f"/namespaces/{quote(tenant, safe='')}" if tenant else ""
            api.request("DELETE", f"{RBAC}{where}/{item['plural']}/{quote(item['metadata']['name'], safe='')}")
            removed += 1
    return removed


def issue_user_certificate(layout: Layout, user: str, days: int) -> str:
    """Issues a client certificate without groups: rights come from bindings. Returns the serial."""
    from holdfast.identity.certificates import issue

    try:
        return issue(layout.pki, f"user-{user}", user, (), now_s=time.time(), days=days, anew=True).serial
    except (ValueError, OSError) as wrong:
        raise CommandError(f"user {user}: no certificate could be issued ({wrong})") from None


def revoke_user_certificate(layout: Layout, user: str) -> bool:
    """Revokes the user's certificate. Returns whether there was one."""
    from holdfast.identity.certificates import revoke

    if "/" in user or not (layout.pki / f"user-{user}.crt").exists():
        return False
    revoke(layout.pki, f"user-{user}")
    return True


def access_review(api: CellApi, attributes: dict[str, str], user: str = "", groups: tuple[str, ...] = ()) -> Any:
    """The status of an access review: of the caller itself, or of a user and groups."""
    spec: dict[str, Any] = {"resourceAttributes": {k: v for k, v in attributes.items() if v}}
    plural = "selfsubjectaccessreviews"
    if user or groups:
        spec |= {"user": user or "system:anonymous", "groups": [*groups, "system:authenticated"]}
        plural = "subjectaccessreviews"
    return api.request("POST", f"{REVIEWS}/{plural}", {"spec": spec})["status"]


def subjects_allowed(api: CellApi, attributes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Every subject of a binding, and every group of a built-in role, that may do this. The server decides."""
    namespace = attributes.get("namespace", "")
    groups = (
        *BUILTIN_GROUPS,
        *((f"holdfast:tenant:{namespace}", f"holdfast:tenant-admin:{namespace}") if namespace else ()),
    )
    asked = [("Group", group) for group in groups]
    asked += [(s["kind"], s["name"]) for item in bindings(api) for s in item.get("subjects", [])]
    for kind, name in dict.fromkeys(asked):
        found = (
            access_review(api, attributes, name, ()) if kind == "User" else access_review(api, attributes, "", (name,))
        )
        if found["allowed"]:
            yield kind, name


def access_attributes(verb: str, resource: str, namespace: str) -> dict[str, str]:
    """The attributes of `workloads`, `workload` or `workloads/scale`."""
    from holdfast.model.kinds import BY_NAME, BY_PLURAL

    path, _, subresource = resource.partition("/")
    plural, _, group = path.partition(".")
    by_name = next((kind for name, kind in BY_NAME.items() if name.lower() == plural.lower()), None)
    kind = BY_PLURAL.get(plural) or by_name
    return {
        "verb": verb,
        "resource": kind.plural if kind is not None else plural,
        "group": group or (kind.group if kind is not None else ""),
        "subresource": subresource,
        "namespace": namespace,
    }
