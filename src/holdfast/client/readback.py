"""Read-back of a commit without a response: whether it happened, and in which form it may be repeated.

A commit is one transaction, so proof about one write is proof about all. A repeated write has a precondition: a Create
requires absence, an Update and a Delete name the object they replace, and a SetStatus is tied to the revision that was
read. `foundation.unknown_outcome` decides when to read and when to repeat.

All clients use it: in process, over HTTP, and in the simulation.
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
    """What read-back needs: a fresh read, and a commit that is sent exactly once."""

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None: ...

    async def commit_once(self, writes: Sequence[Write], *, token: FencingToken | None = None) -> CommitReceipt:
        """Raises `Ambiguous` if it may or may not have happened; after any other fault it did not."""


class ReadBackResult(enum.StrEnum):
    """Evidence of one read about one write."""

    DONE = "Done"
    """Its effect is present, and another writer is very unlikely to have made it."""
    LOOKS_DONE = "LooksDone"
    """Its effect is present, but may have been there before, or come from another writer."""
    NOT_DONE = "NotDone"
    UNKNOWN = "Unknown"
    """A newer state is present: the write may have happened and been replaced."""


async def commit(
    once: SingleShotClient, writes: Sequence[Write], *, token: FencingToken | None = None, ports: Ports
) -> CommitReceipt:
    """Commits, and reads back if there is no response."""
    try:
        return await once.commit_once(writes, token=token)
    except Ambiguous as unknown:
        what = f"commit of {len(writes)} writes ({_describe(writes[0])} first)"
        attempt = _UnansweredCommit(once, tuple(writes), token)
        return await resolve(
            what,
            unknown,
            attempt.look,
            attempt.repeat,
            clock=ports.clock,
            pause_s=Backoff(ports.random).next_s,
            verdicts=metrics.CLIENT_READ_BACKS,
        )


class _UnansweredCommit:
    """A commit without a response, and its objects as last read."""

    def __init__(self, once: SingleShotClient, writes: tuple[Write, ...], token: FencingToken | None) -> None:
        self._once = once
        self._writes = writes
        self._token = token
        self._found: list[Object | None] = []

    async def look(self) -> CommitReceipt | NoProof:
        self._found = [await _read(self._once, write) for write in self._writes]
        verdict = _combined_result(
            [read_back_result(write, item) for write, item in zip(self._writes, self._found, strict=True)]
        )
        if verdict is ReadBackResult.DONE:
            return _committed(self._found)
        can_repeat = verdict is ReadBackResult.NOT_DONE and all(map(_is_repeatable, self._writes))
        return NoProof.ABSENT if can_repeat else NoProof.REPLACED

    async def repeat(self) -> CommitReceipt | None:
        again = tuple(_with_precondition(write, item) for write, item in zip(self._writes, self._found, strict=True))
        try:
            return await self._once.commit_once(again, token=self._token)
        except Conflict:
            if again == self._writes:
                raise
            return None  # only the revision that a status was tied to has changed: not a refusal


def _combined_result(verdicts: Sequence[ReadBackResult]) -> ReadBackResult:
    """The result of the transaction: proof about one write is proof about all."""
    if ReadBackResult.NOT_DONE in verdicts:
        return ReadBackResult.NOT_DONE
    if ReadBackResult.DONE in verdicts or (verdicts and all(v is ReadBackResult.LOOKS_DONE for v in verdicts)):
        return ReadBackResult.DONE
    return ReadBackResult.UNKNOWN


def read_back_result(write: Write, found: Object | None) -> ReadBackResult:
    """Evidence of the object read back about a write to it."""
    match write:
        case Create():
            if found is None:
                return ReadBackResult.NOT_DONE
            return ReadBackResult.DONE if _same_creation(write.object, found) else ReadBackResult.NOT_DONE
        case Update():
            return _update_result(write, found)
        case SetStatus():
            if found is None or found.uid != write.uid:
                return ReadBackResult.UNKNOWN
            return ReadBackResult.LOOKS_DONE if _status_set(write, found) else ReadBackResult.NOT_DONE
        case Delete():
            if found is None or found.uid != write.uid or found.metadata.terminating:
                return ReadBackResult.LOOKS_DONE
            return ReadBackResult.NOT_DONE


def _update_result(write: Update, found: Object | None) -> ReadBackResult:
    intended = write.object
    if found is None or found.uid != intended.uid:
        last_finalizer_gone = intended.metadata.terminating and not intended.metadata.finalizers
        return ReadBackResult.LOOKS_DONE if last_finalizer_gone else ReadBackResult.UNKNOWN
    if found.revision == intended.revision:
        # A write that changes nothing keeps the revision: it counts as done.
        return ReadBackResult.LOOKS_DONE if _same_update(write, found) else ReadBackResult.NOT_DONE
    return ReadBackResult.DONE if _same_update(write, found) else ReadBackResult.UNKNOWN


def _same_creation(intended: Object, found: Object) -> bool:
    kind = kind_of(intended)
    if kind.default is not None:
        intended = kind.default(intended)
    return _content(intended, kind) == _content(found, kind) and _owners(intended) == _owners(found)


def _same_update(write: Update, found: Object) -> bool:
    kind, intended = kind_of(found), write.object
    if write.subresource == "status":
        return bool(_plain(getattr(intended, "status", None)) == _plain(getattr(found, "status", None)))
    if kind.default is not None:
        intended = kind.default(intended)
    if _content(intended, kind) != _content(found, kind):
        return False
    return _labels(intended.metadata) == _labels(found.metadata)


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
    held = {condition.type: _without_times(condition) for condition in getattr(status, "conditions", ())}
    if any(held.get(condition.type) != _without_times(condition) for condition in write.conditions):
        return False
    return not write.observed_generation or getattr(status, "observed_generation", 0) >= write.observed_generation


def _without_times(condition: Condition) -> tuple[str, str, str, str]:
    """A condition without its times: the server keeps the time of the last transition."""
    return (condition.type, condition.status, condition.reason, condition.message)


def _is_repeatable(write: Write) -> bool:
    """Whether a repeat can never take effect twice."""
    match write:
        case Create():
            return bool(write.object.metadata.name)
        case Update():
            return write.object.revision > 0
        case SetStatus() | Delete():
            return bool(write.uid)


def _with_precondition(write: Write, found: Object | None) -> Write:
    """The write in the form in which it may be repeated."""
    if isinstance(write, SetStatus) and not write.if_revision and found is not None:
        return msgspec.structs.replace(write, if_revision=found.revision)
    return write


def write_target(write: Write) -> tuple[Kind, Key]:
    """The kind and key of a write."""
    match write:
        case Create() | Update():
            return kind_of(write.object), write.object.key
        case SetStatus() | Delete():
            return BY_NAME[write.kind], write.key


def _describe(write: Write) -> str:
    kind, key = write_target(write)
    return f"{type(write).__name__} {kind.name} {key}"


async def _read(once: SingleShotClient, write: Write) -> Object | None:
    kind, key = write_target(write)
    if not key.name:
        return None
    found: Object | None = await once.get(kind.type, key.name, key.namespace)
    return found


def _committed(found: Sequence[Object | None]) -> CommitReceipt:
    """The receipt of a commit that is known to have happened, with its objects as they are now."""
    return CommitReceipt(
        revision=max((item.revision for item in found if item is not None), default=0), objects=tuple(found)
    )
