"""`GET /audit/v1`: records of the cell's audit log, oldest first, for operators and viewers.

One request examines a bounded number of records. `next` is the sequence number to continue after, `more` whether
records are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.errors import BadRequest
from holdfast.server.request import Request, Response, json_response

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Audit records that one request examines. The caller continues with the next request.
AUDIT_PAGE_RECORDS_MAX = 1_000
_FILTERS = frozenset({"principal", "result", "kind", "namespace", "name"})


async def read_audit_log(app: Application, request: Request) -> Response:
    unknown = sorted(set(request.query) - _FILTERS - {"after", "raw"})
    if unknown:
        raise BadRequest(f"{unknown[0]}: unknown parameter (expected after, {', '.join(sorted(_FILTERS))})")
    text = request.query.get("after", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadRequest(f"after: must be a sequence number (found {text[:40]!r})")
    if request.flag("raw"):
        return await _raw_page(app, int(text))
    page = await app.gate.audit.read(after=int(text), limit=AUDIT_PAGE_RECORDS_MAX)
    wanted = {name: value for name, value in request.query.items() if name in _FILTERS}
    found = [{"sequence": number, **record} for number, record in page if is_selected(record, wanted)]
    last = page[-1][0] if page else int(text)
    return json_response({"records": found, "next": last, "more": len(page) == AUDIT_PAGE_RECORDS_MAX})


async def _raw_page(app: Application, after: int) -> Response:
    """Records exactly as stored, as text, for verification."""
    page = await app.gate.audit.read_stored(after=after, limit=AUDIT_PAGE_RECORDS_MAX)
    records = [{"sequence": record.sequence, "value": record.value.decode()} for record in page]
    last = page[-1].sequence if page else after
    return json_response({"records": records, "next": last, "more": len(page) == AUDIT_PAGE_RECORDS_MAX})


async def read_checkpoints(app: Application, request: Request) -> Response:
    """`GET /audit/v1/checkpoints`: the signed checkpoints that the cell has kept outside of its store."""
    found = await asyncio.to_thread(app.audit_checkpoints)
    return json_response({"cell": app.cell, "checkpoints": msgspec.to_builtins(found)})


def is_selected(record: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether the record has the principal and result, and one of its objects the kind, namespace and name."""
    if any(record.get(field, "") != wanted[field] for field in ("principal", "result") if field in wanted):
        return False
    of_object = {field: wanted[field] for field in ("kind", "namespace", "name") if field in wanted}
    if not of_object:
        return True
    entries = record.get("entries", ())
    return any(all(entry.get(field, "") == value for field, value in of_object.items()) for entry in entries)
