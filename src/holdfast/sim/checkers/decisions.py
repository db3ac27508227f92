"""Decisions use one policy: scores match the policy revision that the Decision and its Bindings name.

Also: the autoscaler requests no more replicas while existing ones are pending or not ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.fleet.autoscale import AUTOSCALE_READY_FRACTION
from holdfast.model import limits
from holdfast.model.assignment import Purpose
from holdfast.model.decision import Decision
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRules, ScoreName
from holdfast.model.workload import Workload
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

BUILT_IN = "builtin"
CACHE_LAG_MAX_S = limits.RESYNC_S * 1.25 + 5.0
"""Maximum age of a controller's cache: it lists again at the next resync even if its watch is silent."""


class DecisionsChecker:
    """Checker of one cell."""

    def __init__(self, cell: str) -> None:
        self._cell = cell
        self._unchanged_since_s: dict[str, float] = {}
        """Workloads whose replicas are pending or not ready, by key, with the start of that state."""

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        for change in commit.changes:
            if change.kind.name == "Decision" and change.old is None:
                yield from _check_scores(change, commit.state)
            elif change.kind.name == "Binding" and change.old is None:
                yield from _named(change, commit.state)
            elif self._cell == "global" and change.kind.name == "Assignment":
                self._follow(f"/workloads/{change.item.metadata.namespace}/{change.item.spec.workload}", commit)
            elif self._cell == "global" and change.kind.name == "Workload":
                yield from self._scaled(change, commit)
                self._follow(change.key, commit)

    def _follow(self, key: str, commit: ObservedCommit) -> None:
        workload: Workload | None = commit.state.get(key)
        if workload is not None and workload.status.scale is not None and _has_pending_replicas(workload, commit.state):
            self._unchanged_since_s.setdefault(key, commit.at_s)
        else:
            self._unchanged_since_s.pop(key, None)

    def _scaled(self, change: ObservedChange, commit: ObservedCommit) -> Iterator[Finding]:
        """Checks that no scale-up happens while replicas have been pending or not ready for long."""
        if change.old is None or change.new is None or not _scales_up(change.old, change.new):
            return
        since_s = self._unchanged_since_s.get(change.key, commit.at_s)
        if commit.at_s - since_s > CACHE_LAG_MAX_S:
            before, now = change.old.status.scale.replicas, change.new.status.scale.replicas
            what = f"{change.key} requests {now} replicas; too many of {before} have been pending or not ready"
            yield "scaling", f"{what} for {commit.at_s - since_s:.0f} s", (change.key,)


def _has_pending_replicas(workload: Workload, state: dict[str, Any]) -> bool:
    """Whether replicas are pending or too few are ready, by the Assignments in the global cell."""
    meta, scale = workload.metadata, workload.status.scale
    overlapping = [
        item.status
        for key, item in state.items()
        if key.startswith(f"/assignments/{meta.namespace}/")
        and item.spec.workload == meta.name
        and item.spec.purpose is Purpose.NORMAL
    ]
    waits = any(status.queued and any(p.count for p in status.pending) for status in overlapping)
    requested = scale.replicas if scale is not None else 0
    return waits or sum(status.ready for status in overlapping) < requested * AUTOSCALE_READY_FRACTION


def _scales_up(old: Workload, new: Workload) -> bool:
    before, now = old.status.scale, new.status.scale
    return before is not None and now is not None and now.replicas > before.replicas


def _check_scores(change: ObservedChange, state: dict[str, Any]) -> Iterator[Finding]:
    """Checks that scores and weights are those of the policy revision that the Decision names."""
    decision: Decision = change.new
    name = decision.spec.policy_revision
    revision: PolicyRevision | None = state.get(f"/policyrevisions/{name}")
    if revision is None and name != BUILT_IN:
        return  # the revision was garbage collected, so its rules are unknown
    rules = revision.spec.rules if revision is not None else PolicyRules()
    expected = {s.name.value: s.weight for s in rules.scores if s.weight}
    expected.update({s.name: s.weight for s in rules.score_expressions if s.weight})
    # Locality is scored only for replicas with preferred affinity.
    without_locality = {score: weight for score, weight in expected.items() if score != ScoreName.LOCALITY}
    for entry in decision.spec.entries:
        found = {part.name: part.weight for part in entry.scores}
        replica: Replica | None = state.get(f"/replicas/{decision.metadata.namespace}/{entry.replica}")
        prefers = replica is not None and (
            bool(replica.spec.placement.preferred_nodes) or any(r.preferred for r in replica.spec.placement.affinity)
        )
        if found and found != expected and (prefers or found != without_locality):
            weighs, used = _weights(expected), _weights(found)
            what = f"{change.key} names policy {name} with scores {weighs}; {entry.replica} was scored with {used}"
            yield "S10", what, (change.key, f"/policyrevisions/{name}")
            return


def _weights(weights: dict[str, int]) -> str:
    return ", ".join(f"{name} {weight}" for name, weight in weights.items()) or "none"


def _named(change: ObservedChange, state: dict[str, Any]) -> Iterator[Finding]:
    """Checks that a Binding names the policy of its Decision."""
    spec, namespace = change.new.spec, change.new.metadata.namespace
    decision: Decision | None = state.get(f"/decisions/{namespace}/{spec.decision}") if spec.decision else None
    if decision is not None and decision.spec.policy_revision != spec.policy_revision:
        what = f"{change.key} names policy {spec.policy_revision}, its decision {decision.spec.policy_revision}"
        yield "S10", what, (change.key, f"/decisions/{namespace}/{spec.decision}")
