"""Release reason of replicas that were nominated as preemption victims. Pure; used by `release`.

The planner proved that the preemptor fits after its victims leave, and the authority reserved the capacity. Disruption
budgets are checked again here with current serving counts, for all victims of a nomination together: either all of
them may be evicted, or none is. If victims bring a gang below its minimum, its other members are evicted with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.model.assignment import Assignment
from holdfast.model.binding import Reservation, ReservationPhase
from holdfast.model.lifecycle import Stage, final_phase, stage
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.workload import Gang, WorkloadType
from holdfast.scheduling.disruption_budget import disruption_share

# Maximum termination grace of reclaimable work that is preempted. Short, so that recovery gets its capacity soon.
RECLAIM_GRACE_S = 10.0

VICTIM_INDEX = "victim"


def nomination_of(replica: Replica, view: View) -> Reservation | None:
    """The nominated Reservation that waits for the release of this replica."""
    placed = replica.status.placement
    if not placed.binding:
        return None
    name = f"{replica.metadata.namespace}/{placed.binding}"
    waiting: Iterable[Reservation] = view.by(Reservation, VICTIM_INDEX, name)
    nominated = (r for r in waiting if r.status.phase is ReservationPhase.NOMINATED)
    return next(iter(sorted(nominated, key=lambda r: r.key)), None)


def preemption_reason(replica: Replica, view: View) -> tuple[Reason, str, str] | None:
    """Reason, requester and message of a preemption; None if the replica stays for now."""
    nomination = nomination_of(replica, view)
    gang = "" if nomination is not None else "with the rest of its gang, of which a member is "
    nomination = nomination or gang_nomination_of(replica, view)
    if nomination is None or not all_victims_evictable(nomination, view):
        return None
    spec = nomination.spec
    message = (
        f"{gang}preempted on node {spec.node} by {nomination.metadata.namespace}/{spec.replica} "
        f"(priority {spec.priority}, this replica has {replica.spec.priority})"
    )
    return Reason.PREEMPTED, "preempt", message


def gang_nomination_of(replica: Replica, view: View) -> Reservation | None:
    """The nominated Reservation whose victims bring the replica's gang below its minimum; None if there is none."""
    if not replica.status.placement.binding or not view.total(Reservation, "", nomination_measure):
        return None
    assignment: Assignment | None = view.get(Assignment, replica.spec.assignment, replica.metadata.namespace)
    if assignment is None or assignment.spec.gang is None:
        return None
    for member in _gang_members(replica, view):
        nomination = nomination_of(member, view)
        if nomination is not None and replica in gang_rest(victims_of(nomination, view), view):
            return nomination
    return None


def gang_rest(victims: Sequence[Replica], view: View) -> list[Replica]:
    """The other members of every gang that these victims bring below its minimum."""
    found: list[Replica] = []
    leaving = {victim.key for victim in victims}
    for victim in {(v.spec.assignment, v.spec.revision): v for v in victims}.values():
        assignment: Assignment | None = view.get(Assignment, victim.spec.assignment, victim.metadata.namespace)
        if assignment is not None and assignment.spec.gang is not None:  # else its siblings need not be read
            found += broken_gang(assignment.spec.gang, _gang_members(victim, view), leaving)
    return found


def broken_gang(gang: Gang | None, members: Iterable[Replica], leaving: Collection[Key]) -> list[Replica]:
    """The members that would run without their gang if the replicas in `leaving` leave; empty if enough stay."""
    if gang is None:
        return []
    unfinished = [member for member in members if not member.metadata.terminating and final_phase(member) is None]
    staying = [member for member in unfinished if _stays(member) and member.key not in leaving]
    return staying if len(staying) < min(gang.min_available, len(unfinished)) else []


def _gang_members(replica: Replica, view: View) -> list[Replica]:
    key = Key(replica.metadata.namespace, replica.spec.assignment)
    siblings: Iterable[Replica] = view.by(Replica, "assignment", str(key))
    return sorted((r for r in siblings if r.spec.revision == replica.spec.revision), key=lambda r: r.key)


def _stays(replica: Replica) -> bool:
    placed, release = replica.status.placement, replica.status.release
    return bool(placed.binding) and (release is None or release.attempt != placed.attempt)


def all_victims_evictable(nomination: Reservation, view: View) -> bool:
    """Whether every victim of the nomination may be evicted now, including those that stop already."""
    victims = victims_of(nomination, view)
    leaving = [*victims, *gang_rest(victims, view)]
    return not over_budget_workload(leaving, lambda victim: _siblings_of(victim, view))


def _siblings_of(victim: Replica, view: View) -> SiblingCounts:
    workload = victim.spec.workload
    totals = view.total(Replica, victim.metadata.namespace, sibling_measure)
    total, serving = totals.get((workload, "staying"), 0), totals.get((workload, "serving"), 0)
    assignment: Assignment | None = view.get(Assignment, victim.spec.assignment, victim.metadata.namespace)
    if assignment is None or not assignment.spec.disruption.max_unavailable:
        return SiblingCounts(total, serving)
    return SiblingCounts(total, serving, disruption_share(victim, assignment))


def nomination_measure(reservation: Reservation) -> Mapping[str, int]:
    return _NOMINATED if reservation.status.phase is ReservationPhase.NOMINATED else _OTHER


_NOMINATED: Mapping[str, int] = {"reservations": 1}
_OTHER: Mapping[str, int] = {}


def blocked_preemptions(replicas: Sequence[Replica], view: View) -> int:
    """Number of these replicas of one workload that are nominated and stay only because of the disruption budget."""
    if not replicas or not view.total(Reservation, "", nomination_measure):
        return 0
    siblings = _siblings_of(replicas[0], view)
    if siblings.total <= _max_unavailable(replicas[0], siblings):
        return 0  # the budget allows all replicas to be unavailable
    blocked: dict[Key, list[Replica]] = {}
    nominations: dict[Key, Reservation] = {}
    for replica in replicas:
        release = replica.status.release
        if release is not None and release.attempt == replica.status.placement.attempt:
            continue  # it is being released
        found = nomination_of(replica, view)
        if found is not None:
            nominations[found.key] = found
            blocked.setdefault(found.key, []).append(replica)
    blocked_victims = [replica for group in blocked.values() for replica in group]
    if not blocked_victims or _within_budget(blocked_victims, siblings):
        return 0  # the workload's own budget blocks none of them
    return sum(len(blocked[key]) for key, found in nominations.items() if not all_victims_evictable(found, view))


class SiblingCounts(NamedTuple):
    """Replicas of a workload in the region that are not being deleted, and how many of them serve.

    `max_unavailable` is the region's disruption share; None means that the workload's whole budget applies.
    """

    total: int
    serving: int
    max_unavailable: int | None = None


def count_siblings(replicas: Iterable[Replica]) -> SiblingCounts:
    total = [r for r in replicas if not r.metadata.terminating]
    return SiblingCounts(len(total), sum(stage(r) is Stage.SERVING for r in total))


def sibling_measure(replica: Replica) -> dict[tuple[str, str], int]:
    """One replica's contribution to its workload's counts, for a total that the view maintains."""
    if replica.metadata.terminating:
        return {}
    workload = replica.spec.workload
    if stage(replica) is not Stage.SERVING:
        return {(workload, "staying"): 1}
    return {(workload, "staying"): 1, (workload, "serving"): 1}


def over_budget_workload(victims: Iterable[Replica], siblings: Callable[[Replica], SiblingCounts]) -> str:
    """The workload whose disruption budget these victims would exceed; empty if all may be evicted.

    `siblings` returns the sibling counts of a victim's workload.
    """
    leaving: dict[str, list[Replica]] = {}
    for victim in victims:
        workload = charged_workload(victim)
        if workload:
            leaving.setdefault(workload, []).append(victim)
    for workload, replicas in leaving.items():
        if not _within_budget(replicas, siblings(replicas[0])):
            return workload
    return ""


def charged_workload(victim: Replica) -> str:
    """The workload whose disruption budget the victim counts against; empty if it is reclaimable or does not serve."""
    if victim.spec.reclaimable or victim.spec.type is not WorkloadType.SERVICE or stage(victim) is not Stage.SERVING:
        return ""
    return f"{victim.metadata.namespace}/{victim.spec.workload}"


def victims_of(nomination: Reservation, view: View) -> list[Replica]:
    found = []
    for name in victim_names(nomination):
        namespace, _, claim = name.partition("/")
        replica: Replica | None = view.get(Replica, claim.rpartition(".")[0], namespace)
        if replica is not None and replica.status.placement.binding == claim:
            found.append(replica)
    return found


def victim_names(nomination: Reservation) -> list[str]:
    """The victims as `tenant/claim`; a bare name belongs to the preemptor's tenant."""
    grace = nomination.metadata.namespace
    return [name if "/" in name else f"{grace}/{name}" for name in nomination.spec.victims]


def _within_budget(victims: Sequence[Replica], siblings: SiblingCounts) -> bool:
    """Whether enough replicas of the workload would keep serving without these victims."""
    return siblings.serving - len(victims) >= siblings.total - _max_unavailable(victims[0], siblings)


def _max_unavailable(victim: Replica, siblings: SiblingCounts) -> int:
    return (
        max(1, victim.spec.disruption.max_unavailable) if siblings.max_unavailable is None else siblings.max_unavailable
    )


def termination_grace_s(replica: Replica, reason: str) -> float:
    """Termination grace period: the template's, but at most RECLAIM_GRACE_S for preempted reclaimable replicas."""
    grace = replica.spec.template.termination_grace_seconds
    reclaimed = replica.spec.reclaimable and reason == Reason.PREEMPTED
    return min(grace, RECLAIM_GRACE_S) if reclaimed else grace


def woken_by_reservation(new: Reservation | None, old: Reservation | None, view: View) -> Iterable[Key]:
    """Wakes the victims of a nomination, and the rest of the gangs that they break."""
    if new is None or new.status.phase is not ReservationPhase.NOMINATED:
        return ()
    victims = victims_of(new, view)
    return [victim.key for victim in (*victims, *gang_rest(victims, view))]
