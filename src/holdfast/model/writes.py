"""Outcome of a controller's decision as data: writes, releases and events.

`decide` returns it and the controller runtime applies it. All writes of one outcome are one transaction.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.meta import Condition, Key, Object
from holdfast.model.placement_api import ReleaseItem


class Create(msgspec.Struct, frozen=True, gc=False):
    """Creates an object that must not exist. The gate sets uid, generation 1, timestamps and initial finalizers."""

    object: Object


class Update(msgspec.Struct, frozen=True, gc=False):
    """Replaces the stored object if it still has the revision of `object`.

    Without `subresource` everything except the status is replaced; with `status`, only the status.
    """

    object: Object
    subresource: str = ""


class SetStatus(msgspec.Struct, frozen=True, gc=False):
    """Sets whole status blocks of the object with this uid.

    Each block has one writer, so the revision need not match, and the five writers of a Replica do not conflict. With
    `if_revision` it must match. A block set to None is removed.
    """

    kind: str
    key: Key
    uid: str
    blocks: dict[str, Any] = {}
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    if_revision: int = 0


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Deletes the object with this uid, never a recreated one of the same name."""

    kind: str
    key: Key
    uid: str
    if_revision: int = 0
    propagation: str = "Background"


Write = Create | Update | SetStatus | Delete


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Becomes a Kubernetes Event on the object. Equal notices are aggregated."""

    about: Object
    reason: str
    message: str
    warning: bool = False


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """Everything that one decision requests. `requeue_after_s`: decide again after this time, even without an event."""

    writes: tuple[Write, ...] = ()
    releases: tuple[ReleaseItem, ...] = ()
    notices: tuple[Notice, ...] = ()
    requeue_after_s: float | None = None


NO_CHANGES = Outcome()
