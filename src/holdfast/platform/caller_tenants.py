"""The tenants of the caller, as the API knows them, for commands that read one tenant where not all may be read."""

from __future__ import annotations

from typing import Any

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import ExitCode
from holdfast.model.principal import TENANT_PREFIX

_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def tenants_of(api: CellApi) -> tuple[str, ...]:
    """Names of the tenants that the caller's credential belongs to; empty for operators and viewers."""
    found = api.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", _REVIEW)
    groups = found["status"]["userInfo"].get("groups", ())
    return tuple(sorted(g.removeprefix(TENANT_PREFIX) for g in groups if g.startswith(TENANT_PREFIX)))


def list_visible(api: CellApi, plural: str, *, namespaced: bool = True) -> list[dict[str, Any]]:
    """All objects of a kind, or those of the caller's tenants if it may not list all. Raises if it may list none."""
    try:
        return api.list(plural)
    except ApiRefusal as refusal:
        tenants = tenants_of(api) if namespaced and refusal.code is ExitCode.DENIED else ()
        if not tenants:
            raise
        return [item for tenant in tenants for item in api.list(plural, tenant)]
