"""Wire format of commits, notices and faults over HTTP: one codec for client and server.

    POST /commit/v1   {"writes": [WRITE…], "token": {"election", "revision"}?, "dryRun": false, "brief": false}
                    → {"revision": 17, "objects": [OBJECT or null…]}        one per write, in order; none if "brief"
    POST /notify/v1   {"component": "agent", "notices": [NOTICE…]}
                      NOTICE: {"about": {kind, namespace, name, uid}, "reason", "message", "warning"}

A WRITE names its `op`:

    {"op": "create", "object": {…}}
    {"op": "update", "object": {…}, "subresource": "status"?}
    {"op": "setStatus", "kind", "namespace", "name", "uid", "blocks": {…}, "conditions": […],
     "observedGeneration", "ifRevision"}
    {"op": "delete", "kind", "namespace", "name", "uid", "ifRevision", "propagation"}

Objects have apiVersion, kind and resourceVersion, as everywhere in the API. Decoding a request raises only BadRequest.
Fields and status blocks that this release does not know are dropped, because peers may run another release during an
upgrade. An unknown kind, op or fault is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from holdfast.client.contract import CommitReceipt, FencingToken
from holdfast.model import errors, limits
from holdfast.model.codec import object_wire_bytes
from holdfast.model.kinds import ALL, BY_NAME, Kind, kind_of
from holdfast.model.meta import ApiStruct, Condition, Key, Object
from holdfast.model.writes import Create, Delete, Notice, SetStatus, Update, Write

TOKEN_HEADER = "holdfast-token"
"""Header with the fencing token of a release call: `<revision>@<election>`."""
COMMIT_PATH = "/commit/v1"
NOTIFY_PATH = "/notify/v1"
PLACEMENT_PATH = "/placement/v1"

_encoder = msgspec.json.Encoder()
_object_decoders: dict[str, msgspec.json.Decoder[Any]] = {kind.name: msgspec.json.Decoder(kind.type) for kind in ALL}


_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NO_OBJECT = msgspec.Raw()
_NULL = msgspec.Raw(b"null")


class _KindForm(ApiStruct, frozen=True):
    kind: str = ""


class _WriteForm(ApiStruct, frozen=True):
    """Any write on the wire; `op` determines which fields count."""

    op: str
    object: msgspec.Raw = _NO_OBJECT
    subresource: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    blocks: dict[str, msgspec.Raw] = {}
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    if_revision: int = 0
    propagation: str = "Background"


class _TokenForm(ApiStruct, frozen=True):
    election: str
    revision: int


class _CommitForm(ApiStruct, frozen=True):
    writes: tuple[_WriteForm, ...] = ()
    token: _TokenForm | None = None
    dry_run: bool = False
    brief: bool = False


class _CommittedForm(ApiStruct, frozen=True):
    revision: int
    objects: tuple[msgspec.Raw, ...] = ()


class CommitRequest(msgspec.Struct, frozen=True):
    """A decoded `POST /commit/v1`."""

    writes: tuple[Write, ...]
    token: FencingToken | None
    dry_run: bool
    brief: bool = False
    unknown: tuple[str, ...] = ()
    """Warnings about dropped blocks that this release does not know."""


class ObjectReferenceForm(ApiStruct, frozen=True):
    """Names the object of a notice."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class NoticeForm(ApiStruct, frozen=True):
    about: ObjectReferenceForm
    reason: str
    message: str = ""
    warning: bool = False


class NotifyRequest(ApiStruct, frozen=True):
    component: str = ""
    notices: tuple[NoticeForm, ...] = ()


_commit_decoder = msgspec.json.Decoder(_CommitForm)
_committed_decoder = msgspec.json.Decoder(_CommittedForm)
_notify_decoder = msgspec.json.Decoder(NotifyRequest)
_named_decoder = msgspec.json.Decoder(_KindForm)


def encode_commit(
    writes: Sequence[Write], token: FencingToken | None = None, *, dry_run: bool = False, brief: bool = False
) -> bytes:
    form = None if token is None else _TokenForm(election=token.election, revision=token.revision)
    forms = tuple(map(_write_form, writes))
    return _encoder.encode(_CommitForm(writes=forms, token=form, dry_run=dry_run, brief=brief))


def decode_commit(body: bytes) -> CommitRequest:
    """Raises BadRequest with the position of the error."""
    try:
        form = _commit_decoder.decode(body)
        if len(form.writes) > limits.MAX_WRITES_PER_COMMIT:
            raise errors.BadRequest(f"commit: too many writes (limit {limits.MAX_WRITES_PER_COMMIT})")
        writes = tuple(_write_of(write, index) for index, write in enumerate(form.writes))
        unknown = tuple(text for write in form.writes if write.blocks for text in _unknown_blocks(write))
    except _UNDECODABLE as wrong:
        raise errors.BadRequest(f"commit: cannot decode the request ({wrong})") from wrong
    token = None if form.token is None else FencingToken(election=form.token.election, revision=form.token.revision)
    return CommitRequest(writes, token, form.dry_run, form.brief, unknown)


def encode_token(token: FencingToken) -> str:
    return f"{token.revision}@{token.election}"


def decode_token(text: str) -> FencingToken | None:
    """The token of a header; None if it is empty."""
    if not text:
        return None
    revision, at, election = text.partition("@")
    if not at or not election or not revision.isdigit() or len(revision) > 18:
        raise errors.BadRequest(f"header {TOKEN_HEADER}: invalid (expected <revision>@<election>)")
    return FencingToken(election=election, revision=int(revision))


def encode_committed(done: CommitReceipt, *, brief: bool = False) -> bytes:
    objects = (
        () if brief else tuple(_NULL if item is None else msgspec.Raw(object_wire_bytes(item)) for item in done.objects)
    )
    return _encoder.encode(_CommittedForm(revision=done.revision, objects=objects))


def decode_committed(body: bytes) -> CommitReceipt:
    form = _committed_decoder.decode(body)
    objects = tuple(None if _is_null(raw) else decode_object(raw) for raw in form.objects)
    return CommitReceipt(revision=form.revision, objects=objects)


def encode_notify(notices: Sequence[Notice], *, component: str) -> bytes:
    forms = tuple(
        NoticeForm(
            about=ObjectReferenceForm(
                kind=kind_of(n.about).name,
                name=n.about.metadata.name,
                namespace=n.about.metadata.namespace,
                uid=n.about.uid,
            ),
            reason=n.reason,
            message=n.message,
            warning=n.warning,
        )
        for n in notices
    )
    return _encoder.encode(NotifyRequest(component=component, notices=forms))


def decode_notify(body: bytes) -> NotifyRequest:
    try:
        return _notify_decoder.decode(body)
    except _UNDECODABLE as wrong:
        raise errors.BadRequest(f"notify: cannot decode the request ({wrong})") from wrong


def decode_object(data: bytes | msgspec.Raw, kind: Kind | None = None) -> Object:
    """An object as the API encodes it. Without `kind`, the object's own `kind` determines its type."""
    if kind is None:
        name = _named_decoder.decode(data).kind
        if name not in BY_NAME:
            raise errors.BadRequest(f"unknown kind {name}")
        kind = BY_NAME[name]
    found: Object = _object_decoders[kind.name].decode(data)
    return found


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw).strip() == b"null"


def _write_form(write: Write) -> _WriteForm:
    match write:
        case Create():
            return _WriteForm(op="create", object=msgspec.Raw(object_wire_bytes(write.object)))
        case Update():
            return _WriteForm(
                op="update", object=msgspec.Raw(object_wire_bytes(write.object)), subresource=write.subresource
            )
        case SetStatus():
            names = _block_names(write.kind)
            blocks = {names.get(name, name): msgspec.Raw(_encoder.encode(v)) for name, v in write.blocks.items()}
            return _WriteForm(
                op="setStatus",
                kind=write.kind,
                namespace=write.key.namespace,
                name=write.key.name,
                uid=write.uid,
                blocks=blocks,
                conditions=write.conditions,
                observed_generation=write.observed_generation,
                if_revision=write.if_revision,
            )
        case Delete():
            return _WriteForm(
                op="delete",
                kind=write.kind,
                namespace=write.key.namespace,
                name=write.key.name,
                uid=write.uid,
                if_revision=write.if_revision,
                propagation=write.propagation,
            )


def _write_of(form: _WriteForm, index: int) -> Write:
    where = f"writes[{index}]"
    match form.op:
        case "create" | "update":
            if not bytes(form.object):
                raise errors.BadRequest(f"{where}: {form.op}: object is missing")
            item = decode_object(form.object)
            return Create(item) if form.op == "create" else Update(item, subresource=form.subresource)
        case "setStatus":
            return SetStatus(
                kind=_kind_named(form.kind, where).name,
                key=Key(form.namespace, form.name),
                uid=form.uid,
                blocks=_blocks(form),
                conditions=form.conditions,
                observed_generation=form.observed_generation,
                if_revision=form.if_revision,
            )
        case "delete":
            return Delete(
                kind=_kind_named(form.kind, where).name,
                key=Key(form.namespace, form.name),
                uid=form.uid,
                if_revision=form.if_revision,
                propagation=form.propagation,
            )
    raise errors.BadRequest(f"{where}: unknown op {form.op} (expected create, update, setStatus or delete)")


def _kind_named(name: str, where: str) -> Kind:
    kind = BY_NAME.get(name)
    if kind is None:
        raise errors.BadRequest(f"{where}: unknown kind {name}")
    return kind


class _Block(msgspec.Struct, frozen=True):
    """One status block of a kind."""

    name: str
    encode_name: str
    decoder: msgspec.json.Decoder[Any]


@cache
def _status_blocks(kind_name: str) -> dict[str, _Block]:
    """By JSON name. Cached, because inspecting types costs more than decoding."""
    fields = {field.name: field.type for field in msgspec.structs.fields(BY_NAME[kind_name].type)}
    if "status" not in fields:
        raise errors.BadRequest(f"kind {kind_name} has no status")
    return {
        field.encode_name: _Block(field.name, field.encode_name, msgspec.json.Decoder(field.type))
        for field in msgspec.structs.fields(fields["status"])
    }


@cache
def _block_names(kind_name: str) -> dict[str, str]:
    return {block.name: block.encode_name for block in _status_blocks(kind_name).values()}


def _blocks(form: _WriteForm) -> dict[str, Any]:
    """The blocks that this release knows."""
    known = _status_blocks(form.kind)
    # null removes a block whatever its type, so it is handled before decoding.
    return {
        name: None if _is_null(raw) else known[name].decoder.decode(raw)
        for name, raw in form.blocks.items()
        if name in known
    }


def _unknown_blocks(form: _WriteForm) -> Iterator[str]:
    known = _status_blocks(form.kind)
    for name in form.blocks:
        if name not in known:
            about = f"{form.namespace}/{form.name}" if form.namespace else form.name
            yield f"{form.kind} {about}: unknown status block {name} was dropped"


# Faults ---------------------------------------------------------------------------------------------------------

_FAULTS: dict[str, type[errors.Fault]] = {
    fault.reason: fault
    for fault in (
        errors.Unavailable,
        errors.Overloaded,
        errors.Conflict,
        errors.Ambiguous,
        errors.NotFound,
        errors.AlreadyExists,
        errors.BadRequest,
        errors.Invalid,
        errors.Unauthorized,
        errors.Forbidden,
        errors.Expired,
        errors.StaleToken,
        errors.StoreFailed,
    )
}

_BY_CODE: dict[int, type[errors.Fault]] = {
    fault.code: fault
    for fault in (errors.NotFound, errors.Conflict, errors.Unauthorized, errors.Forbidden, errors.Expired)
}


class _CauseForm(ApiStruct, frozen=True):
    field: str = ""
    reason: str = ""
    message: str = ""


class _DetailsForm(ApiStruct, frozen=True):
    causes: tuple[_CauseForm, ...] = ()
    retry_after_seconds: float = 0.0


class _StatusForm(ApiStruct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _DetailsForm = msgspec.field(default_factory=_DetailsForm)


def fault_of(code: int, body: bytes, *, retry_after_s: float = 0.0) -> errors.Fault:
    """The fault of a 4xx or 5xx response: by its reason, or by its code if the reason is unknown. If both are unknown,
    it is Unavailable from 500 on, else BadRequest.
    """
    try:
        status = msgspec.json.decode(body, type=_StatusForm)
    except _UNDECODABLE:
        status = _StatusForm(message=body[:200].decode("utf-8", "replace"), code=code)
    fault = _FAULTS.get(status.reason)
    message = status.message or f"request failed with status {code}"
    if fault is errors.Invalid:
        causes = tuple(errors.Cause(c.field, c.reason, c.message) for c in status.details.causes)
        return errors.Invalid(message, causes)
    if fault is errors.Overloaded or code == 429:
        return errors.Overloaded(message, retry_after_s=retry_after_s or status.details.retry_after_seconds or 1.0)
    if fault is None:
        # A reason that this release does not know: the code decides.
        fault = _BY_CODE.get(code, errors.Unavailable if code >= 500 else errors.BadRequest)
    return fault(message)
