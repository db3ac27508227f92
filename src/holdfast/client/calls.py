"""The calls of the Python client, without I/O: requests out, typed objects and faults in.

`Holdfast` and `AsyncHoldfast` send these requests; everything that they have in common is here. A fault names the
object, what is wrong and the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from holdfast.client.cell_access import CellAccess
from holdfast.client.refusal_text import NEXT, refusal_text
from holdfast.client.resources import field_selector_query, resource_path
from holdfast.client.sync_api import STRICT, ApiRefusal
from holdfast.client.wire import decode_object, fault_of
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model import limits
from holdfast.model.errors import BadRequest, Fault, Invalid, Overloaded, Unavailable
from holdfast.model.kinds import BY_NAME, Kind, kind_of
from holdfast.model.meta import Object
from holdfast.model.region import RegionSpec

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object

FIELD_MANAGER = "holdfast-python"
JSON, MERGE_PATCH, APPLY_PATCH = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
_APPLIED_META = ("name", "namespace", "labels", "annotations")
"""Metadata that users set. The server sets the rest, and refuses it in an apply."""


class ApiCall(msgspec.Struct, frozen=True):
    """One request. `target` is the path with its query."""

    method: str
    path: str
    query: dict[str, str] = {}
    body: bytes = b""
    content_type: str = ""

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


def get_call(kind: type[Object], name: str, namespace: str) -> ApiCall:
    return ApiCall("GET", _named_path(kind, name, namespace))


def list_call(
    kind: type[Object], namespace: str, *, name: str = "", labels: Mapping[str, str] | None = None, after: str = ""
) -> ApiCall:
    """One page. `after` is the token that the page before returned."""
    query = {"limit": str(limits.LIST_PAGE_OBJECTS), **_selection(name, labels)}
    return ApiCall("GET", resource_path(kind_of(kind), namespace), {**query, **({"continue": after} if after else {})})


def watch_call(
    kind: type[Object], namespace: str, *, revision: int, name: str = "", labels: Mapping[str, str] | None = None
) -> ApiCall:
    query = {"resourceVersion": str(revision), "allowWatchBookmarks": "true", **_selection(name, labels)}
    return ApiCall("GET", resource_path(kind_of(kind), namespace), query)


def apply_call(item: Object | Mapping[str, Any], *, manager: str, force: bool, dry_run: bool) -> ApiCall:
    """Server-side apply of a typed object or of a manifest."""
    document = manifest_of(item) if isinstance(item, Object) else dict(item)
    kind = _kind_named(document)
    meta = document.get("metadata") or {}
    if not meta.get("name"):
        raise BadRequest(f"{kind.singular}: metadata.name is missing{NEXT}set it in the manifest")
    query = {"fieldManager": manager, "force": str(force).lower(), **STRICT, **({"dryRun": "All"} if dry_run else {})}
    path = resource_path(kind, meta.get("namespace", ""), meta["name"])
    return ApiCall("PATCH", path, query, msgspec.json.encode(document), APPLY_PATCH)


def patch_call(kind: type[Object], name: str, namespace: str, changes: Mapping[str, Any], *, manager: str) -> ApiCall:
    """JSON merge patch: None removes a field."""
    query = {"fieldManager": manager, **STRICT}
    return ApiCall("PATCH", _named_path(kind, name, namespace), query, msgspec.json.encode(changes), MERGE_PATCH)


def delete_call(kind: type[Object], name: str, namespace: str) -> ApiCall:
    return ApiCall("DELETE", _named_path(kind, name, namespace))


def manifest_of(item: Object) -> dict[str, Any]:
    """A typed object as a manifest: without status, and without the metadata that the server sets."""
    kind = kind_of(item)
    built: dict[str, Any] = msgspec.to_builtins(item)
    meta = {name: value for name, value in built["metadata"].items() if name in _APPLIED_META and value}
    content = {name: value for name, value in built.items() if name not in ("metadata", "status")}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **content}


def decode_reply(call: ApiCall, cell: str, status: int, body: bytes, kind: type[O] | None = None) -> O:
    """The object of a reply. Raises the fault of a refusal."""
    check_reply(call, cell, status, body)
    try:
        found: O = decode_object(body, kind_of(kind) if kind is not None else None)  # type: ignore[assignment]
        return found
    except msgspec.DecodeError as error:
        text = f"{cell}: unexpected answer ({error}){NEXT}compare `holdfast version` with the server's /version"
        raise Unavailable(text) from error


def check_reply(call: ApiCall, cell: str, status: int, body: bytes) -> None:
    if status >= 400:
        raise refusal_fault(cell, call.path, status, body)


def refusal_fault(cell: str, path: str, status: int, body: bytes) -> Fault:
    """The fault of a refusal, with a message that names the object and the next step."""
    fault = fault_of(status, body)
    what, step = refusal_text(cell, path, status, fault.message)
    message = f"{what}{NEXT}{step or _default_step(fault)}"
    if isinstance(fault, Invalid):
        return Invalid(message, fault.causes, facts=fault.facts)
    if isinstance(fault, Overloaded):
        return Overloaded(message, retry_after_s=fault.retry_after_s, facts=fault.facts)
    return type(fault)(message, facts=fault.facts)


def fault_of_command(error: CommandError) -> Fault:
    """An error of the command line's transport as a fault."""
    if isinstance(error, ApiRefusal):
        fault = fault_of(error.status, error.body)
        return type(fault)(f"{error.message}{NEXT}{error.next_step or _default_step(fault)}")
    message = f"{error.message}{NEXT}{error.next_step}" if error.next_step else error.message
    return (BadRequest if error.code is ExitCode.USAGE else Unavailable)(message)


def region_access(known: CellAccess, spec: RegionSpec, region: str) -> CellAccess:
    """Access to the servers of a region's own cell, with the credentials of the global cell."""
    if not spec.servers:
        raise BadRequest(f"region {region}: spec.endpoint is empty{NEXT}connect with a kubeconfig that has its context")
    return msgspec.structs.replace(known, url=spec.servers[0], others=spec.servers[1:])


def _default_step(fault: Fault) -> str:
    steps = {
        "Forbidden": "kubectl auth can-i --list",
        "Unauthorized": "use a valid token or certificate",
        "Conflict": "read the object again and repeat the change, or apply with force=True",
        "Expired": "list again",
    }
    return steps.get(fault.reason, "repeat the call later" if fault.retryable else "correct the request")


def _named_path(kind: type[Object], name: str, namespace: str) -> str:
    row = kind_of(kind)
    if not name:
        raise BadRequest(f"{row.singular}: the name is missing{NEXT}pass name=…")
    if row.namespaced and not namespace:
        raise BadRequest(f"{row.singular} {name}: the tenant is missing{NEXT}pass namespace=TENANT")
    return resource_path(row, namespace, name)


def _kind_named(document: Mapping[str, Any]) -> Kind:
    row = BY_NAME.get(str(document.get("kind", "")))
    if row is None:
        found = document.get("kind") or "none"
        raise BadRequest(f"manifest: unknown kind (found {found}){NEXT}kubectl api-resources lists the kinds")
    return row


def _selection(name: str, labels: Mapping[str, str] | None) -> dict[str, str]:
    found = field_selector_query({"metadata.name": name}) if name else {}
    if labels:
        found["labelSelector"] = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return found
