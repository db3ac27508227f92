"""finalizers: reports objects whose deletion is stuck on a finalizer past its deadline, with its owner.

Covers every kind of the cell. It never removes a finalizer: its owner must clean up first, or a person approves the
removal (`drills/finalizer_repair.py`). The event names the owner, the deadline and the owner's last heartbeat. Its text
does not change while nothing happens, so events aggregate.
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

# Findings handled in one pass of repair, and overdue finalizers reported in one pass. The rest follows in the next one.
REPAIRS_PER_PASS = 64
# Time after which a finalizer without a known owner is reported as overdue.
UNKNOWN_FINALIZER_DEADLINE_S = 3600.0

SINGLE_KEY = Key("", "finalizers")
LEASE_NAMESPACE = "holdfast-system"
CONTROLLER_ELECTION = "controllers"
UNKNOWN_OWNER = "nobody here"
_NEVER = frozenset({"Event", "Lease", "Term", "LeasePage", "Reservation", "Binding", "Decision"})
"""Kinds without finalizers, each written by a single component and numerous."""


class StuckFinalizer(msgspec.Struct, frozen=True, rename="camel"):
    """One overdue finalizer. `heartbeat` is the last renewal of the owner's election; empty if there is no leader."""

    kind: str
    namespace: str
    name: str
    finalizer: str
    owner: str
    deadline_seconds: float
    deleted_at: str
    heartbeat: str = ""
    leader: str = ""


def kinds_with_finalizers(cell: str) -> tuple[Kind, ...]:
    """Kinds whose originals the cell stores and that may have finalizers. Copies have none."""
    other = Home.REGION if cell == "global" else Home.GLOBAL
    return tuple(k for k in KINDS if k.home is not other and k.collected and k.name not in _NEVER)


def stuck_finalizers(items: Iterable[Object], leases: Iterable[Lease], now: float) -> list[StuckFinalizer]:
    """All finalizers past their deadline."""
    lease = next((lease for lease in leases if lease.metadata.name == CONTROLLER_ELECTION), None)
    heartbeat = lease.spec.renew_time or "" if lease is not None else ""
    leader = lease.spec.holder_identity if lease is not None else ""
    found = []
    for item in items:
        meta = item.metadata
        if not meta.terminating or not meta.finalizers:
            continue
        deleted_for_s = now - parse_time(meta.deletion_timestamp)
        for name in meta.finalizers:
            owner, deadline_s = FINALIZERS.get(name, ("", UNKNOWN_FINALIZER_DEADLINE_S))
            if deleted_for_s > deadline_s:
                found.append(
                    StuckFinalizer(
                        kind=kind_of(item).name,
                        namespace=meta.namespace,
                        name=meta.name,
                        finalizer=name,
                        owner=owner or UNKNOWN_OWNER,
                        deadline_seconds=deadline_s,
                        deleted_at=meta.deletion_timestamp,
                        heartbeat=heartbeat if owner else "",
                        leader=leader if owner else "",
                    )
                )
    return found


def decider(cell: str) -> Callable[[Key, View, float], Outcome]:
    """Returns the decide function; each decision scans all objects of the cell."""
    kinds = kinds_with_finalizers(cell)

    def decide(key: Key, view: View, now: float) -> Outcome:
        terminating = [item for kind in kinds for item in view.list(kind.type) if item.metadata.terminating]
        stuck = stuck_finalizers(terminating, view.list(Lease), now) if terminating else []
        by_key = {(kind_of(item).name, item.metadata.namespace, item.metadata.name): item for item in terminating}
        notices = tuple(
            Notice(by_key[s.kind, s.namespace, s.name], Reason.FINALIZER_STUCK, stuck_message(s, now), warning=True)
            for s in stuck[:REPAIRS_PER_PASS]
        )
        return Outcome(notices=notices)

    return decide


def stuck_message(found: StuckFinalizer, now: float) -> str:
    """The event message. It contains no running time, so that equal events aggregate."""
    is_silent = not found.heartbeat or now - parse_time(found.heartbeat) > limits.LEADER_TTL_S
    if found.owner == UNKNOWN_OWNER:
        owner_text = "Holdfast does not own it; the component that added it must remove it"
    elif is_silent:
        owner_text = f"its owner {found.owner} is out of contact (last heartbeat: {found.heartbeat or 'never'})"
    else:
        owner_text = f"its owner {found.owner} is running on {found.leader}"
    return (
        f"finalizer {found.finalizer} was not removed within {found.deadline_seconds:.0f} s of the deletion at "
        f"{found.deleted_at}; {owner_text}"
    )


def keys(view: View) -> Iterable[Key]:
    return (SINGLE_KEY,)
