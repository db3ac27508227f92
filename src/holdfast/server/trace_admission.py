"""Keeps the caller's W3C trace context with the Workload that its request admits.

The annotation belongs to the server: a `traceparent` of an earlier request, or one that the caller wrote itself, is
replaced with each change of the spec. Used only while traces are exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.foundation.tracing import CURRENT_REQUEST
from holdfast.model.kinds import kind_of
from holdfast.model.trace_ids import ADMIT, TRACEPARENT_ANNOTATION, TraceContext, span_id, traceparent
from holdfast.model.workload import Workload
from holdfast.model.writes import Create, Update, Write

if TYPE_CHECKING:
    from holdfast.server.app import Application

_WORKLOAD = kind_of(Workload)


def with_context(app: Application, write: Write) -> Write:
    """The write with the caller's context, if it creates a Workload or changes its spec."""
    if not isinstance(write, Create | Update) or not isinstance(write.object, Workload):
        return write
    item = write.object
    if isinstance(write, Update):
        before = app.objects.get(_WORKLOAD, item.metadata.namespace, item.metadata.name)
        if write.subresource or not isinstance(before, Workload) or before.spec == item.spec:
            return write
    request = CURRENT_REQUEST.get()
    annotations = {k: v for k, v in item.metadata.annotations.items() if k != TRACEPARENT_ANNOTATION}
    if request is not None and request.caller is not None:
        trace = request.caller.trace_id
        admit = TraceContext(trace, span_id(trace, ADMIT, request.id), request.caller.sampled)
        annotations[TRACEPARENT_ANNOTATION] = traceparent(admit)
    if annotations == item.metadata.annotations:
        return write
    meta = msgspec.structs.replace(item.metadata, annotations=annotations)
    return msgspec.structs.replace(write, object=msgspec.structs.replace(item, metadata=meta))
