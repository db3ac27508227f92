"""A cell's objects, decoded once and shared: current state, indexes, and ordered change streams for any number of readers.

Follows one ordered watch of the store. Reads here are of what the store has published, so they never show a write that
could still be lost. Events (ephemeral kinds) live in a second, volatile store behind the same interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from holdfast.model.kinds import Kind
from holdfast.model.meta import Object
from holdfast.store.contract import Committed, Store, Txn


class ObjectChange(msgspec.Struct, gc=False):
    """One change of one object. `value` is what the store holds (the last state for a deletion): splice, do not encode."""

    kind: Kind
    revision: int
    new: Object | None
    old: Object | None
    value: bytes
    line: bytes | None = None
    """The watch line for plain JSON watchers, made by the first that needs it and shared by all."""


class ObjectPage(msgspec.Struct, frozen=True):
    items: tuple[Object, ...]
    revision: int
    more: bool
    remaining: int


class Objects:
    """Typed access to one cell's store. All synchronous reads are of one consistent, published state."""

    def __init__(self, store: Store, volatile: Store) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Loads everything and follows the store from there."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def store_of(self, kind: Kind) -> Store:
        """The durable store, or the volatile one for ephemeral kinds."""
        raise NotImplementedError

    def head(self, kind: Kind) -> int:
        raise NotImplementedError

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        raise NotImplementedError

    def list(
        self, kind: Kind, namespace: str = "", *, fields: Mapping[str, str] | None = None
    ) -> tuple[list[Object], int]:
        """In key order, with the revision it is true at. `fields`: indexes of model.indexes, or metadata.name."""
        raise NotImplementedError

    async def page(self, kind: Kind, namespace: str = "", *, at: int | None, after: str, limit: int) -> ObjectPage:
        """One page; `at` a past revision reads history, so that all pages of one list show one state."""
        raise NotImplementedError

    def stream(
        self, kind: Kind, namespace: str = "", *, after: int, fields: Mapping[str, str] | None = None
    ) -> AsyncIterator[Sequence[ObjectChange]]:
        """Changes after a revision. Raises Expired when compacted, or when the reader fell too far behind."""
        raise NotImplementedError

    async def wait_for(self, kind: Kind, revision: int, *, timeout_s: float) -> bool:
        """Whether this revision was reached in time (lists that ask for "at least N")."""
        raise NotImplementedError

    async def commit(self, kind: Kind | None, txn: Txn) -> Committed:
        """Commits, and returns only when the result can be read here."""
        raise NotImplementedError
