"""What a decision may read: the newest state its process has seen, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from holdfast.model.meta import Object

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class View(Protocol):
    """Lists are in key order, so that decisions are reproducible."""

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None: ...

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]: ...

    def by(self, kind: type[O], index: str, value: str) -> Sequence[O]:
        """Objects by an index of `model.indexes`."""
