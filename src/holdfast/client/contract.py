"""The one client everything uses: controllers, schedulers, agents, the link, the command line.

In process it is `gate.local.LocalClient`, over HTTP `client.http.HttpClient`; callers cannot tell. Objects that come
out are shared and immutable. Faults are those of `model.errors`; `Ambiguous` is never raised by `commit` before the
client has read back and still does not know.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.model.meta import Object
from holdfast.model.placement import Answers, BindRequest, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.writes import Notice, Write

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class Token(msgspec.Struct, frozen=True, gc=False):
    """Proof of leadership: the revision of the election's Term object. Compared in every commit made with it (S5)."""

    election: str
    revision: int


class Listing(msgspec.Struct, Generic[O], frozen=True):
    """Everything that matched, as of `revision`; watch from there and nothing is missed."""

    items: tuple[O, ...]
    revision: int


class Seen(msgspec.Struct, Generic[O], frozen=True, gc=False):
    """One change. `object` is the new state, or the last one when `deleted`; `old` is what the watcher saw before.

    A watch with `fields` reports an object that stops matching as deleted, and one that starts as new.
    A bookmark has no object: only the revision moved.
    """

    object: O | None
    old: O | None
    deleted: bool
    revision: int


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The objects as stored, one per write, in order; None where one was removed for good."""

    revision: int
    objects: tuple[Object | None, ...]


class Client(Protocol):
    @property
    def cell(self) -> str:
        """The cell it talks to: `global`, or the name of a region."""

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        """The newest acknowledged state; None when there is none."""

    async def list(self, kind: type[O], namespace: str = "", *, fields: Mapping[str, str] | None = None) -> Listing[O]:
        """`fields` are names of `model.indexes` (`{"node": "n1"}`), and "metadata.name"."""

    def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[Seen[O]]]:
        """Changes after a revision, in batches. Ends with `Expired` (list again) or `Unavailable` (resume)."""

    async def commit(self, writes: Sequence[Write], *, token: Token | None = None, brief: bool = False) -> Committed:
        """All of the writes or none, through the gate. `Conflict` asks for a fresh decision.

        `brief`: the revision alone is wanted, and the answer need not carry the objects.
        """

    async def reserve(self, request: ReserveRequest) -> Answers: ...

    async def bind(self, request: BindRequest) -> Answers: ...

    async def release(self, request: ReleaseRequest, *, token: Token | None = None) -> Answers: ...

    async def renew(self, request: RenewRequest) -> Answers: ...

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        """Best effort: events are for people and never decide anything."""

    async def close(self) -> None: ...
