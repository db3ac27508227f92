"""`POST /console/api/what-if`: what applying manifests would do. Nothing is written."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from holdfast.console.region_calls import RegionRequest
from holdfast.console.viewer import read_refusal
from holdfast.console.what_if_reads import what_if_applied
from holdfast.insight.what_if import ManifestWorkload, problems, workloads_in
from holdfast.model.errors import BadRequest, Forbidden
from holdfast.server.asserted_calls import AssertedCalls
from holdfast.server.console import require_viewer, secured, service_of
from holdfast.server.request import Request, Response, json_response
from holdfast.server.request_bodies import decode_yaml

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Size of the manifests of one question.
MANIFEST_BYTES_MAX = 64 * 1024
# Documents of one question, of whatever kind. More are refused before they are decoded.
DOCUMENTS_MAX = 100

ADMISSION = frozenset({("patch", "workloads", "")})
"""The only request that is made for a question: a dry run of a server-side apply."""
_SEPARATOR = re.compile(rb"^---[ \t]*$", re.MULTILINE)


async def apply(app: Application, request: Request) -> Response:
    viewer = require_viewer(app, request)
    refused = read_refusal(viewer, "recoveries")
    if refused is not None:
        app.gate.audit.record_refusal(
            request.principal, "read", "console/what-if", refused.reason, message=refused.message, request=request.id
        )
        raise Forbidden(refused.message, facts=refused.facts)
    manifests = await asyncio.to_thread(_manifests, await request.body())
    calls = AssertedCalls(app, ADMISSION)

    async def admission(document: dict[str, Any]) -> str:
        meta = document["metadata"]
        path = f"/apis/holdfast.dev/v1/namespaces/{meta.get('namespace', '')}/workloads/{meta.get('name', '')}"
        wanted = RegionRequest(
            method="PATCH",
            path=path,
            query=urlencode({"fieldManager": "console", "force": "true", "dryRun": "All"}),
            body=msgspec.json.encode(document).decode(),
            content_type="application/apply-patch+yaml",
        )
        found = await calls.call(request.principal, wanted)
        return "" if found.code < 300 else str(msgspec.json.decode(found.body).get("message", found.code))

    outcome = await what_if_applied(service_of(app).reader, viewer, manifests, admission)
    return secured(json_response(msgspec.to_builtins(outcome)))


def _manifests(body: bytes) -> list[ManifestWorkload]:
    """The workloads of a YAML stream. Refuses what cannot be planned, with the name of the workload."""
    parts = [part for part in _SEPARATOR.split(body) if part.strip()]
    if len(parts) > DOCUMENTS_MAX:
        raise BadRequest(f"manifest: too many documents (limit {DOCUMENTS_MAX}, found {len(parts)})")
    documents = [decode_yaml(part) for part in parts]
    try:
        found = workloads_in(documents)
    except msgspec.ValidationError as wrong:
        raise BadRequest(f"manifest: not a valid Workload ({wrong})") from wrong
    if not found:
        raise BadRequest("manifest: no Workload in it (expected kind: Workload)")
    for manifest in found:
        meta = manifest.workload.metadata
        wrong_fields = problems(manifest.workload)
        if wrong_fields or not meta.namespace or not meta.name:
            text = "; ".join(wrong_fields) or "metadata.namespace and metadata.name are required"
            raise BadRequest(f"workload {meta.namespace}/{meta.name}: invalid ({text})")
    return found
