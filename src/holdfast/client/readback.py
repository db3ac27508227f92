"""What to do when a commit got no answer: read back, and only then decide whether it happened.

A commit is one transaction, so that what any of its writes shows holds for all of them. It is sent again only when
reading back shows that it did not happen, and only in a form that cannot take effect twice: a Create must not exist,
an Update and a Delete name what they replace, and a SetStatus is tied to the revision that was read. If the first one
arrives late after all, one of the two is refused. Who cannot tell after `READ_BACK_ATTEMPTS` raises `Ambiguous`.

Used by every client alike: in process, over HTTP, and with faults put in between.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.client.contract import Committed, Token
from holdfast.model import limits
from holdfast.model.errors import (
    AlreadyExists,
    Ambiguous,
    Conflict,
    Final,
    NotFound,
    Overloaded,
    StaleToken,
    Unavailable,
)
from holdfast.model.kinds import BY_NAME, Kind, kind_of
from holdfast.model.meta import Condition, Key, Object, ObjectMeta, OwnerReference
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write
from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.ports import Ports

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class OneShot(Protocol):
    """What reading back needs: a fresh read, and a commit that is sent once and never again by itself."""

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None: ...

    async def commit_once(self, writes: Sequence[Write], *, token: Token | None = None) -> Committed:
        """Raises `Ambiguous` when it may or may not have happened; any other fault means that it did not."""


class Verdict(enum.StrEnum):
    """What one read says about one write."""

    DONE = "Done"
    """Its effect is there, and hardly anyone else can have made it."""
    LOOKS_DONE = "LooksDone"
    """Its effect is there, though it may have been there before, or be another's."""
    NOT_DONE = "NotDone"
    UNKNOWN = "Unknown"
    """Something newer is there: it may have happened and been replaced."""


async def commit(once: OneShot, writes: Sequence[Write], *, token: Token | None = None, ports: Ports) -> Committed:
    """Commits, reading back whenever there is no answer."""
    try:
        return await once.commit_once(writes, token=token)
    except Ambiguous as first:
        return await _settle(once, tuple(writes), token, ports, first)


async def _settle(
    once: OneShot, writes: tuple[Write, ...], token: Token | None, ports: Ports, doubt: Ambiguous
) -> Committed:
    backoff = Backoff(ports.random)
    refused: Conflict | Final | None = None
    for _ in range(limits.READ_BACK_ATTEMPTS):
        try:
            found = [await _read(once, write) for write in writes]
        except (Unavailable, Overloaded, Ambiguous) as fault:
            await ports.clock.sleep(max(backoff.next_s(), getattr(fault, "retry_after_s", 0.0)))
            continue
        verdict = _overall([judge(write, item) for write, item in zip(writes, found, strict=True)])
        if verdict is Verdict.DONE:
            metrics.CLIENT_READ_BACKS.labels("done").inc()
            return _committed(found)
        if verdict is Verdict.UNKNOWN or not all(map(_guarded, writes)):
            break
        if refused is not None:
            # Refused, and not there: the first one can no longer happen either, as it rests on the same conditions.
            metrics.CLIENT_READ_BACKS.labels("refused").inc()
            raise refused
        again = tuple(_tied(write, item) for write, item in zip(writes, found, strict=True))
        try:
            done = await once.commit_once(again, token=token)
            metrics.CLIENT_READ_BACKS.labels("repeated").inc()
            return done
        except (Conflict, AlreadyExists, NotFound, StaleToken) as fault:
            # Either the first one arrived in the meantime, or someone else was there: one more look tells. Where
            # only the revision we tied a status to has moved, nothing is refused yet.
            refused = None if isinstance(fault, Conflict) and again != writes else fault
        except Ambiguous as again_in_doubt:
            doubt = again_in_doubt
            await ports.clock.sleep(backoff.next_s())
        except (Unavailable, Overloaded) as fault:
            await ports.clock.sleep(max(backoff.next_s(), getattr(fault, "retry_after_s", 0.0)))
    metrics.CLIENT_READ_BACKS.labels("ambiguous").inc()
    raise Ambiguous(
        f"no answer to a commit of {len(writes)} writes ({_describe(writes[0])} first), and reading back does not show "
        f"whether it happened; decide again from fresh state ({doubt.message})",
        facts=doubt.facts,
    )


def _overall(verdicts: Sequence[Verdict]) -> Verdict:
    """One transaction: what any write proves holds for all."""
    if Verdict.NOT_DONE in verdicts:
        return Verdict.NOT_DONE
    if Verdict.DONE in verdicts or (verdicts and all(v is Verdict.LOOKS_DONE for v in verdicts)):
        return Verdict.DONE
    return Verdict.UNKNOWN


def judge(write: Write, found: Object | None) -> Verdict:
    """What the object read back says about a write of it."""
    match write:
        case Create():
            if found is None:
                return Verdict.NOT_DONE
            return Verdict.DONE if _same_creation(write.object, found) else Verdict.NOT_DONE
        case Update():
            return _judge_update(write, found)
        case SetStatus():
            if found is None or found.uid != write.uid:
                return Verdict.UNKNOWN
            return Verdict.LOOKS_DONE if _status_set(write, found) else Verdict.NOT_DONE
        case Delete():
            if found is None or found.uid != write.uid or found.metadata.terminating:
                return Verdict.LOOKS_DONE
            return Verdict.NOT_DONE


def _judge_update(write: Update, found: Object | None) -> Verdict:
    meant = write.object
    if found is None or found.uid != meant.uid:
        last_finalizer_gone = meant.metadata.terminating and not meant.metadata.finalizers
        return Verdict.LOOKS_DONE if last_finalizer_gone else Verdict.UNKNOWN
    if found.revision == meant.revision:
        # A write that changes nothing keeps the revision: it is as good as done.
        return Verdict.LOOKS_DONE if _same_update(write, found) else Verdict.NOT_DONE
    return Verdict.DONE if _same_update(write, found) else Verdict.UNKNOWN


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


async def _read(once: OneShot, write: Write) -> Object | None:
    kind, key = named(write)
    if not key.name:
        return None
    found: Object | None = await once.get(kind.type, key.name, key.namespace)
    return found


def _committed(found: Sequence[Object | None]) -> Committed:
    """What a commit that is known to have happened left behind, as far as it is still there."""
    return Committed(
        revision=max((item.revision for item in found if item is not None), default=0), objects=tuple(found)
    )
