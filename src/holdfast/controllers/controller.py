"""What a controller is: a name, what wakes it, and a pure function from a key and a view to an outcome.

A controller is handed a *key*, never an event: it must come to the same decision however it was woken (level, not
edge). It reads only its view, and only the runtime acts on what it returns.

A controller of the link reads two cells: its own, and the global cell as `view.peer`. It is woken by changes in either,
and writes to one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.model import limits
from holdfast.model.meta import Key
from holdfast.model.view import View
from holdfast.model.writes import Outcome

__all__ = ["Controller", "ControllerView", "Decide", "View", "Wake", "woken_by_object"]


class ControllerView(View, Protocol):
    """The controller's own cell. `peer` is the other cell of a link; only controllers of the link may read it."""

    @property
    def peer(self) -> View: ...


Wake = Callable[[Any, Any, ControllerView], Iterable[Key]]
"""(state now, None when deleted; state before, None when new; the view) → keys to decide about.

Filters by what changed, and cheaply: it runs for every event of its kind."""

Decide = Callable[[Key, ControllerView, float], Outcome]


def woken_by_object(new: Any, old: Any, view: View) -> Iterable[Key]:
    """A change of an object wakes the key of that object."""
    return ((new if new is not None else old).key,)


@dataclass(frozen=True)
class Controller:
    """`name` is also the identity it writes as in its own cell (model.ownership)."""

    name: str
    decide: Decide
    wakes: dict[type[Any], Wake]
    keys: Callable[[ControllerView], Iterable[Key]]
    """Every key worth a look: what a resync goes over, so that lost events cost only time."""
    reads: tuple[type[Any], ...] = ()
    """Kinds it reads without being woken by them."""
    resync_s: float = limits.RESYNC_S
    batch: bool = False
    """Decide up to `limits.BATCH` waiting keys in one pass, from one view, and commit their writes together.

    Only where keys share no budget: none of these decisions sees what the others of its pass do."""
    debounce_s: float = 0.0
    """How long a key waits first while many are added (`limits.DEBOUNCE_FREE_KEYS_PER_S`), for decisions that only sum up."""
    min_interval_s: float = 0.0
    """The least time between two decisions about one key, for those that go over many objects each time.

    A decision that asks to be made again at once is."""
    sees_earlier_statuses: bool = False
    """Decisions of one pass see the status blocks that the ones before them set, so that they may share a budget."""
    peer_wakes: dict[type[Any], Wake] = field(default_factory=dict)
    """Kinds of the other cell that wake it. A controller that has some is a controller of the link."""
    writes_peer: bool = False
    """Whether it writes to the other cell. The fencing token of this cell means nothing there, so none is sent."""
    prepare: Callable[[Key], Awaitable[None]] | None = None
    """Done for each key right before the decision about it. If it raises a Fault, nothing is decided, and the key is
    tried again later."""
