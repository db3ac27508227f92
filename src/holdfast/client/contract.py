"""The client contract, used by controllers, schedulers, agents, the link and the command line.

In process it is `LocalClient`, over HTTP `HttpClient`; callers cannot tell the difference. Returned objects are shared
and immutable. Faults are those of `model.errors`. `commit` raises `Ambiguous` only if reading back did
not show the outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.model.meta import Object
from holdfast.model.placement_api import BindRequest, PlacementResponse, ReleaseRequest, RenewRequest, ReserveRequest
from holdfast.model.writes import Notice, Write

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class FencingToken(msgspec.Struct, frozen=True, gc=False):
    """Fencing token: the revision of the election's term. Every commit made with it compares that revision (S5)."""

    election: str
    revision: int


class Listing(msgspec.Struct, Generic[O], frozen=True):
    """Everything that matched, as of `revision`. A watch from there misses nothing."""

    items: tuple[O, ...]
    revision: int


class WatchEvent(msgspec.Struct, Generic[O], frozen=True, gc=False):
    """One watch event. `object` is the new state, or the last state if `deleted`; `old` is the previous state.

    A watch with `fields` reports an object that stops matching as deleted, and one that starts matching as new. A
    bookmark has no object: only the revision advanced.
    """

    object: O | None
    old: O | None
    deleted: bool
    revision: int


class CommitReceipt(msgspec.Struct, frozen=True, gc=False):
    """The objects as stored, one per write, in order; None if one was removed."""

    revision: int
    objects: tuple[Object | None, ...]


class Client(Protocol):
    @property
    def cell(self) -> str:
        """The cell it talks to: `global`, or the name of a region."""

    async def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        """The newest acknowledged state; None if the object does not exist."""

    async def list(self, kind: type[O], namespace: str = "", *, fields: Mapping[str, str] | None = None) -> Listing[O]:
        """`fields` are names of `model.indexes` (`{"node": "n1"}`), or "metadata.name"."""

    def watch(
        self, kind: type[O], namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[WatchEvent[O]]]:
        """Changes after a revision, in batches. Ends with `Expired` (list again) or `Unavailable` (resume)."""

    async def commit(
        self, writes: Sequence[Write], *, token: FencingToken | None = None, brief: bool = False
    ) -> CommitReceipt:
        """Commits all writes or none, through the gate. After `Conflict`, read again and decide again.

        `brief`: the response contains only the revision, without the objects.
        """

    async def reserve(self, request: ReserveRequest) -> PlacementResponse: ...

    async def bind(self, request: BindRequest) -> PlacementResponse: ...

    async def release(self, request: ReleaseRequest, *, token: FencingToken | None = None) -> PlacementResponse: ...

    async def renew(self, request: RenewRequest) -> PlacementResponse: ...

    async def notify(self, notices: Sequence[Notice], *, component: str) -> None:
        """Best effort: Events are for people, and no decision reads them."""

    async def close(self) -> None: ...


class SessionLink(Protocol):
    """The other side of one exec, attach or port-forward session, with the messages of `model.pod_session`."""

    async def receive(self) -> tuple[int, bytes] | None: ...

    async def send(self, channel: int, data: bytes) -> None: ...
