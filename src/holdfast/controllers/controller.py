"""A controller: a name, the changes that wake it, and a pure function from key and view to an outcome.

- It gets a key, never an event: its decision must not depend on how it was woken (level-triggered).
- It reads only its view; only the runtime acts on its outcome.
- A link controller reads two cells: its own, and the global cell as `view.peer`. Changes in either wake it, and it
  writes to one of them.
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
    """The controller's own cell. `peer` is the other cell of the link; only link controllers may read it."""

    @property
    def peer(self) -> View: ...


Wake = Callable[[Any, Any, ControllerView], Iterable[Key]]
"""(new state, None if deleted; old state, None if created; the view) → keys to decide.

It runs for every event of its kind, so it must be cheap and should skip changes that cannot alter a decision."""

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
    """All keys; a resync queues them, so that lost events cost only time."""
    reads: tuple[type[Any], ...] = ()
    """Kinds it reads without being woken by them."""
    resync_s: float = limits.RESYNC_S
    batch: bool = False
    """Decides up to `limits.PLACEMENT_BATCH_MAX` keys in one pass, from one view, and commits their writes together.

    Only for keys that share no budget: a decision does not see the others of its pass."""
    debounce_s: float = 0.0
    """Debounce for summary statuses: in a burst, a key waits this long first."""
    settle_s: float = 0.0
    """The same without a burst: how long a key waits for the changes that follow the first one."""
    min_interval_s: float = 0.0
    """Minimum interval between two decisions of one key, for decisions that read many objects.

    A decision that requests an immediate retry is exempt."""
    pause_per_pass: float = 0.0
    """How many times the duration of a pass its keys wait for the next, for decisions that grow with the fleet and that
    nothing waits for."""
    sees_earlier_statuses: bool = False
    """Decisions of one pass see the status blocks set by earlier ones, so that they can share a budget."""
    peer_wakes: dict[type[Any], Wake] = field(default_factory=dict)
    """Kinds of the other cell that wake it. Only link controllers have any."""
    writes_peer: bool = False
    """Whether it writes to the other cell. This cell's fencing token has no meaning there, so none is sent."""
    prepare: Callable[[Key], Awaitable[None]] | None = None
    """Runs before each decision. If it raises a Fault, nothing is decided and the key is retried later."""
