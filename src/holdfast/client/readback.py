"""How a client tells whether a commit without an answer happened, and in which form it may be repeated.

A commit is one transaction, so what any of its writes shows holds for all of them. A repeated write has a precondition:
a Create must not exist, an Update and a Delete name the object they replace, and a SetStatus is tied to the revision
that was read. `runtime.unknown_outcome` decides when to look and when to repeat.

Used by every client alike: in process, over HTTP, and with faults put in between.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.client.contract import CommitReceipt, FencingToken
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff
from holdfast.foundation.ports import Ports
from holdfast.foundation.unknown_outcome import NoProof, resolve
from holdfast.model.errors import Ambiguous, Conflict
from holdfast.model.kinds import BY_NAME, Kind, kind_of
from holdfast.model.meta import Condition, Key, Object, ObjectMeta, OwnerReference
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class SingleShotClient(Protocol):
    """What reading back needs: a fresh read, and a commit that is sent once and never again by itself."""

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None: ...

    async def commit_once(self, writes: Sequence[Write], *, token: FencingToken | None = None) -> CommitReceipt:
        """Raises `Ambiguous` when it may or may not have happened; any other fault means that it did not."""


class ReadBackResult(enum.StrEnum):
    """What one read says about one write."""

    DONE = "Done"
    """Its effect is there, and hardly anyone else can have made it."""
    LOOKS_DONE = "LooksDone"
    """Its effect is there, though it may have been there before, or be another's."""
    NOT_DONE = "NotDone"
    UNKNOWN = "Unknown"
    """Something newer is there: it may have happened and been replaced."""


async def commit(once: SingleShotClient, writes: Sequence[Write], *, token: FencingToken | None = None, ports: Ports) -> CommitReceipt:
    """Commits, reading back whenever there is no answer."""
    try:
        return await once.commit_once(writes, token=token)
    except Ambiguous as unknown:
        what = f"commit of {len(writes)} writes ({_describe(writes[0])} first)"
        attempt = _Unanswered(once, tuple(writes), token)
        return await resolve(
            what,
            unknown,
            attempt.look,
            attempt.repeat,
            clock=ports.clock,
            pause_s=Backoff(ports.random).next_s,
            verdicts=metrics.CLIENT_READ_BACKS,
        )


class _Unanswered:
    """A commit that got no answer, and the objects it writes as they were last read."""

    def __init__(self, once: SingleShotClient, writes: tuple[Write, ...], token: FencingToken | None) -> None:
        self._once = once
        self._writes = writes
        self._token = token
        self._found: list[Object | None] = []

    async def look(self) -> CommitReceipt | NoProof:
        self._found = [await _read(self._once, write) for write in self._writes]
        verdict = _overall([judge(write, item) for write, item in zip(self._writes, self._found, strict=True)])
        if verdict is ReadBackResult.DONE:
            return _committed(self._found)
        can_repeat = verdict is ReadBackResult.NOT_DONE and all(map(_guarded, self._writes))
        return NoProof.ABSENT if can_repeat else NoProof.REPLACED

    async def repeat(self) -> CommitReceipt | None:
        again = tuple(_tied(write, item) for write, item in zip(self._writes, self._found, strict=True))
        try:
            return await self._once.commit_once(again, token=self._token)
        except Conflict:
            if again == self._writes:
                raise
            return None  # the revision that a status was tied to has moved: nothing is refused yet


def _overall(verdicts: Sequence[ReadBackResult]) -> ReadBackResult:
    """One transaction: what any write proves holds for all."""
    if ReadBackResult.NOT_DONE in verdicts:
        return ReadBackResult.NOT_DONE
    if ReadBackResult.DONE in verdicts or (verdicts and all(v is ReadBackResult.LOOKS_DONE for v in verdicts)):
        return ReadBackResult.DONE
    return ReadBackResult.UNKNOWN


def judge(write: Write, found: Object | None) -> ReadBackResult:
    """What the object read back says about a write of it."""
    match write:
        case Create():
            if found is None:
                return ReadBackResult.NOT_DONE
            return ReadBackResult.DONE if _same_creation(write.object, found) else ReadBackResult.NOT_DONE
        case Update():
            return _judge_update(write, found)
        case SetStatus():
            if found is None or found.uid != write.uid:
                return ReadBackResult.UNKNOWN
            return ReadBackResult.LOOKS_DONE if _status_set(write, found) else ReadBackResult.NOT_DONE
        case Delete():
            if found is None or found.uid != write.uid or found.metadata.terminating:
                return ReadBackResult.LOOKS_DONE
            return ReadBackResult.NOT_DONE


def _judge_update(write: Update, found: Object | None) -> ReadBackResult:
    meant = write.object
    if found is None or found.uid != meant.uid:
        last_finalizer_gone = meant.metadata.terminating and not meant.metadata.finalizers
        return ReadBackResult.LOOKS_DONE if last_finalizer_gone else ReadBackResult.UNKNOWN
    if found.revision == meant.revision:
        # A write that changes nothing keeps the revision: it is as good as done.
        return ReadBackResult.LOOKS_DONE if _same_update(write, found) else ReadBackResult.NOT_DONE
    return ReadBackResult.DONE if _same_update(write, found) else ReadBackResult.UNKNOWN


def _same_creation(meant: Object, found: Object) -> bool:
    kind = kind_of(meant)
    if kind.default is not None:
        meant = kind.default(meant)
    return _content(meant, kind) == _content(found, kind) and _owners(meant) == _owners(found)


def _same_update(write: Update, found: Object) -> bool:
    kind, meant = kind_of(found), write.object
    if write.subresource == "status":
        return bool(_plain(getattr(meant, "status", None)) == _plain(getattr(found, "status", None)))
    if kind.default is not None:
        meant = kind.default(meant)
    if _content(meant, kind) != _content(found, kind):
        return False
    return _labels(meant.metadata) == _labels(found.metadata)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _content(item: Object, kind: Kind) -> dict[str, Any]:
    """Everything but metadata and status, as plain data."""
    skipped = ("metadata", "status") if kind.has_status else ("metadata",)
    return {
        field.name: msgspec.to_builtins(getattr(item, field.name))
        for field in msgspec.structs.fields(type(item))
        if field.name not in skipped
    }


def _owners(item: Object) -> tuple[OwnerReference, ...]:
    return item.metadata.owner_references


def _labels(meta: ObjectMeta) -> tuple[Any, ...]:
    return (meta.labels, meta.annotations, meta.owner_references, meta.finalizers)


def _status_set(write: SetStatus, found: Object) -> bool:
    status: Any = getattr(found, "status", None)
    for name, block in write.blocks.items():
        if _plain(getattr(status, name, None)) != _plain(block):
            return False
    held = {condition.type: _said(condition) for condition in getattr(status, "conditions", ())}
    if any(held.get(condition.type) != _said(condition) for condition in write.conditions):
        return False
    return not write.observed_generation or getattr(status, "observed_generation", 0) >= write.observed_generation


def _said(condition: Condition) -> tuple[str, str, str, str]:
    """A condition without its times: the server keeps the moment of the last transition."""
    return (condition.type, condition.status, condition.reason, condition.message)


def _guarded(write: Write) -> bool:
    """Whether it can be sent again without a chance to take effect twice."""
    match write:
        case Create():
            return bool(write.object.metadata.name)
        case Update():
            return write.object.revision > 0
        case SetStatus() | Delete():
            return bool(write.uid)


def _tied(write: Write, found: Object | None) -> Write:
    """The write in the form it may be repeated in."""
    if isinstance(write, SetStatus) and not write.if_revision and found is not None:
        return msgspec.structs.replace(write, if_revision=found.revision)
    return write


def named(write: Write) -> tuple[Kind, Key]:
    """The kind and key a write is about."""
    match write:
        case Create() | Update():
            return kind_of(write.object), write.object.key
        case SetStatus() | Delete():
            return BY_NAME[write.kind], write.key


def _describe(write: Write) -> str:
    kind, key = named(write)
    return f"{type(write).__name__} {kind.name} {key}"


async def _read(once: SingleShotClient, write: Write) -> Object | None:
    kind, key = named(write)
    if not key.name:
        return None
    found: Object | None = await once.get(kind.type, key.name, key.namespace)
    return found


def _committed(found: Sequence[Object | None]) -> CommitReceipt:
    """What a commit that is known to have happened left behind, as far as it is still there."""
    return CommitReceipt(
        revision=max((item.revision for item in found if item is not None), default=0), objects=tuple(found)
    )
