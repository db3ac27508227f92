"""Why a replica makes way for a stronger one: the answer `release` asks for, with who and why in words. Pure.

The planner proved that the preemptor fits once its victims are gone, and the authority holds the place for it. Here
the disruption budgets are judged by what serves now, for all victims of one nomination together: either all of them
may go, or none is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.model import limits
from holdfast.model.binding import Reservation, ReservationPhase
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.workload import WorkloadType

INDEX = "victim"
LOOK_AGAIN_S = 2.0


def nomination_of(replica: Replica, view: View) -> Reservation | None:
    """The reservation that waits for this replica to leave."""
    placed = replica.status.placement
    if not placed.binding:
        return None
    name = f"{replica.metadata.namespace}/{placed.binding}"
    waiting: Iterable[Reservation] = view.by(Reservation, INDEX, name)
    nominated = (r for r in waiting if r.status.phase is ReservationPhase.NOMINATED)
    return next(iter(sorted(nominated, key=lambda r: r.key)), None)


def why(replica: Replica, view: View) -> tuple[Reason, str, str] | None:
    """The reason to make way, who wants it, and the sentence for people; None to stay, for now."""
    nomination = nomination_of(replica, view)
    if nomination is None or not all_may_go(nomination, view):
        return None
    spec = nomination.spec
    message = (
        f"{nomination.metadata.namespace}/{spec.replica} of rank {spec.rank} needs the place on node {spec.node}; "
        f"this one has rank {replica.spec.rank}"
    )
    return Reason.PREEMPTED, "preempt", message


def all_may_go(nomination: Reservation, view: View) -> bool:
    """Whether every victim of a nomination may leave now, those counted that leave for it already."""

    def mates(victim: Replica) -> Mates:
        workload = victim.spec.workload
        kept = view.total(Replica, victim.metadata.namespace, away_and_here)
        return Mates(kept.get((workload, "staying"), 0), kept.get((workload, "serving"), 0))

    return not over_budget(victims_of(nomination, view), mates)


class Mates(NamedTuple):
    """How many replicas of a workload are in the region and not to go, and how many of those serve."""

    staying: int
    serving: int


def mates_among(replicas: Iterable[Replica]) -> Mates:
    staying = [r for r in replicas if not r.metadata.terminating]
    return Mates(len(staying), sum(stage(r) is Stage.SERVING for r in staying))


def away_and_here(replica: Replica) -> dict[tuple[str, str], int]:
    """What one replica adds to its workload's `Mates`, in a total that is kept rather than counted each time."""
    if replica.metadata.terminating:
        return {}
    workload = replica.spec.workload
    if stage(replica) is not Stage.SERVING:
        return {(workload, "staying"): 1}
    return {(workload, "staying"): 1, (workload, "serving"): 1}


def over_budget(victims: Iterable[Replica], mates: Callable[[Replica], Mates]) -> str:
    """The workload whose disruption budget all of these together would break; empty when they may go.

    `mates` counts the replicas of a victim's workload in the region.
    """
    leaving: dict[tuple[str, str], list[Replica]] = {}
    for victim in victims:
        if victim.spec.reclaimable or victim.spec.type is not WorkloadType.SERVICE:
            continue
        if stage(victim) is not Stage.SERVING:
            continue  # it leaves already, or nothing is lost that serves
        leaving.setdefault((victim.metadata.namespace, victim.spec.workload), []).append(victim)
    for (namespace, workload), replicas in leaving.items():
        if not _within_budget(replicas, mates(replicas[0])):
            return f"{namespace}/{workload}"
    return ""


def victims_of(nomination: Reservation, view: View) -> list[Replica]:
    found = []
    for name in victim_names(nomination):
        namespace, _, claim = name.partition("/")
        replica: Replica | None = view.get(Replica, claim.rpartition(".")[0], namespace)
        if replica is not None and replica.status.placement.binding == claim:
            found.append(replica)
    return found


def victim_names(nomination: Reservation) -> list[str]:
    """`tenant/claim` of each; a bare name is of the preemptor's own tenant."""
    own = nomination.metadata.namespace
    return [name if "/" in name else f"{own}/{name}" for name in nomination.spec.victims]


def _within_budget(victims: list[Replica], mates: Mates) -> bool:
    """Whether all but `maxUnavailable` replicas of the workload would go on serving without these."""
    away_max = max(1, victims[0].spec.disruption.max_unavailable)
    return mates.serving - len(victims) >= mates.staying - away_max


def grace_s(replica: Replica, reason: str) -> float:
    """How long the work may take to end: its own wish, but reclaimable work that makes way yields soon."""
    own = replica.spec.template.termination_grace_seconds
    yields = replica.spec.reclaimable and reason == Reason.PREEMPTED
    return min(own, limits.RECLAIM_GRACE_S) if yields else own


def woken_by_reservation(new: Reservation | None, old: Reservation | None, view: View) -> Iterable[Key]:
    """A nomination concerns its victims."""
    if new is None or new.status.phase is not ReservationPhase.NOMINATED:
        return ()
    return [victim.key for victim in victims_of(new, view)]
