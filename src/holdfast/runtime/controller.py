"""What a controller is: a name, what wakes it, and a pure function from a key and a view to an outcome.

A controller is handed a *key*, never an event: it must come to the same decision however it was woken (level, not
edge). It reads only its view, and only the runtime acts on what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.model import limits
from holdfast.model.meta import Key, Object
from holdfast.model.writes import Outcome

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class View(Protocol):
    """The newest state this process has seen. Lists are in key order, so that decisions are reproducible."""

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None: ...

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]: ...

    def by(self, kind: type[O], index: str, value: str) -> Sequence[O]:
        """Objects by an index of `model.indexes`."""


Wake = Callable[[Any, Any], Iterable[Key]]
"""(new state or last state, state before or None) → keys to decide about. Filters by what changed, and cheaply."""

Decide = Callable[[Key, View, float], Outcome]


@dataclass(frozen=True)
class Controller:
    """`name` is also the identity it writes as (model.ownership). Singletons run only on their election's winner."""

    name: str
    decide: Decide
    wakes: dict[type[Any], Wake]
    keys: Callable[[View], Iterable[Key]]
    """Every key worth a look: what a resync goes over, so that lost events cost only time."""
    reads: tuple[type[Any], ...] = ()
    """Kinds it reads without being woken by them."""
    resync_s: float = limits.RESYNC_S
    workers: int = 1
    singleton: bool = True
