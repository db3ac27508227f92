"""finalizers: finds objects that are being deleted and are not let go: which finalizer, whose, how long past its time.

Covers every kind a cell has. It removes nothing: a finalizer is somebody's promise to clean up, and taking it away
would break that. It tells, with the owner, the deadline and when that owner was last heard, so that a person knows whom
to look at. Saying it again says the same, so that events are counted and not piled up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.model import limits
from holdfast.model.core import Lease
from holdfast.model.kinds import ALL as KINDS
from holdfast.model.kinds import Home, Kind, kind_of
from holdfast.model.meta import Key, Object
from holdfast.model.ownership import FINALIZERS
from holdfast.model.reasons import Reason
from holdfast.model.times import parse_time
from holdfast.model.view import View
from holdfast.model.writes import Notice, Outcome

ALL = Key("", "finalizers")
LEASES = "holdfast-system"
ELECTION = "controllers"
NOBODY = "nobody here"
_NEVER = frozenset({"Event", "Lease", "Term", "LeasePage", "Reservation", "Binding", "Decision"})
"""Kinds that are written by one part alone, without finalizers, and come in great numbers."""


class Stuck(msgspec.Struct, frozen=True, rename="camel"):
    """`heartbeat` is the last renewal of the election under which the owner works; empty when nobody leads."""

    kind: str
    namespace: str
    name: str
    finalizer: str
    owner: str
    deadline_seconds: float
    deleted_at: str
    heartbeat: str = ""
    leader: str = ""


def kinds_of(cell: str) -> tuple[Kind, ...]:
    """Kinds whose objects are at home in a cell; copies have no finalizers."""
    other = Home.REGION if cell == "global" else Home.GLOBAL
    return tuple(k for k in KINDS if k.home is not other and k.name not in _NEVER)


def stuck(items: Iterable[Object], leases: Iterable[Lease], now: float) -> list[Stuck]:
    """Every finalizer past its time."""
    held = next((lease for lease in leases if lease.metadata.name == ELECTION), None)
    heartbeat = held.spec.renew_time or "" if held is not None else ""
    leader = held.spec.holder_identity if held is not None else ""
    found = []
    for item in items:
        meta = item.metadata
        if not meta.terminating or not meta.finalizers:
            continue
        gone_s = now - parse_time(meta.deletion_timestamp)
        for name in meta.finalizers:
            owner, deadline_s = FINALIZERS.get(name, ("", limits.UNKNOWN_FINALIZER_S))
            if gone_s > deadline_s:
                found.append(
                    Stuck(
                        kind=kind_of(item).name,
                        namespace=meta.namespace,
                        name=meta.name,
                        finalizer=name,
                        owner=owner or NOBODY,
                        deadline_seconds=deadline_s,
                        deleted_at=meta.deletion_timestamp,
                        heartbeat=heartbeat if owner else "",
                        leader=leader if owner else "",
                    )
                )
    return found


def decider(cell: str) -> Callable[[Key, View, float], Outcome]:
    """One look at everything a cell has."""
    kinds = kinds_of(cell)

    def decide(key: Key, view: View, now: float) -> Outcome:
        going = [item for kind in kinds for item in view.list(kind.type) if item.metadata.terminating]
        late = stuck(going, view.list(Lease), now) if going else []
        by_key = {(kind_of(item).name, item.metadata.namespace, item.metadata.name): item for item in going}
        notices = tuple(
            Notice(by_key[s.kind, s.namespace, s.name], Reason.FINALIZER_STUCK, said(s, now), warning=True)
            for s in late[: limits.REPAIRS_PER_PASS]
        )
        return Outcome(notices=notices)

    return decide


def said(found: Stuck, now: float) -> str:
    """Without anything that moves while nothing happens."""
    silent = not found.heartbeat or now - parse_time(found.heartbeat) > limits.LEADER_TTL_S
    if found.owner == NOBODY:
        who = "no part of Holdfast removes it: whoever added it must"
    elif silent:
        who = f"{found.owner} is not heard (last {found.heartbeat or 'never'})"
    else:
        who = f"{found.owner} is heard from {found.leader}"
    return (
        f"finalizer {found.finalizer} was to be removed within {found.deadline_seconds:.0f} s of the deletion at "
        f"{found.deleted_at}; {who}"
    )


def keys(view: View) -> Iterable[Key]:
    return (ALL,)
