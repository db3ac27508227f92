"""What a controller may ask for: writes, releases and notices, as data.

`decide` returns them; the runtime carries them out. All writes of one outcome are one transaction: all or none.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.meta import Condition, Key, Object
from holdfast.model.placement import ReleaseItem


class Create(msgspec.Struct, frozen=True, gc=False):
    """Must not exist yet. The gate gives it uid, generation 1, timestamps and its starting finalizers."""

    object: Object


class Update(msgspec.Struct, frozen=True, gc=False):
    """Replaces the object, if its revision is still the one in `object`.

    Without `subresource` everything but the status is taken from `object`; with `status`, only the status is.
    """

    object: Object
    subresource: str = ""


class SetStatus(msgspec.Struct, frozen=True, gc=False):
    """Sets whole status blocks of the object that still has this uid, on top of whatever it holds now.

    Each block has one writer, so no revision needs to match: that is what keeps five writers of a Replica from
    conflicting. `if_revision` asks for the match all the same. A block set to None is removed.
    """

    kind: str
    key: Key
    uid: str
    blocks: dict[str, Any] = {}
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    if_revision: int = 0


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Asks for deletion of exactly this identity; a recreated namesake is never hit."""

    kind: str
    key: Key
    uid: str
    if_revision: int = 0
    propagation: str = "Background"


Write = Create | Update | SetStatus | Delete


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Becomes a Kubernetes Event on the object, aggregated with its like."""

    about: Object
    reason: str
    message: str
    warning: bool = False


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """Everything one decision wants done, and when to look again even if nothing happens."""

    writes: tuple[Write, ...] = ()
    releases: tuple[ReleaseItem, ...] = ()
    notices: tuple[Notice, ...] = ()
    again_in_s: float | None = None


NOTHING = Outcome()
