"""What a controller is: a name, what wakes it, and a pure function from a key and a view to an outcome.

A controller is handed a *key*, never an event: it must come to the same decision however it was woken (level, not
edge). It reads only its view, and only the runtime acts on what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.view import View
from holdfast.model.writes import Outcome

__all__ = ["Controller", "Decide", "View", "Wake"]

Wake = Callable[[Any, Any, View], Iterable[Key]]
"""(state now, None when deleted; state before, None when new; the view) → keys to decide about.

Filters by what changed, and cheaply: it runs for every event of its kind."""

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
    batch: bool = False
    """Decide up to `limits.BATCH` waiting keys in one pass, from one view, and commit their writes together.

    Only where keys share no budget: none of these decisions sees what the others of its pass do."""
    calm_s: float = 0.0
    """How long a key waits first while many are added (`limits.CALM_KEYS_PER_S`), for decisions that only sum up."""
    pace_s: float = 0.0
    """The least time between two decisions about one key, for those that go over many objects each time.

    A decision that asks to be made again at once is."""
    ordered: bool = False
    """Decisions of one pass see the status blocks that the ones before them set, so that they may share a budget."""
