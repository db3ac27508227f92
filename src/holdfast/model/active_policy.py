"""Selects the policy revision that is in force in a region, and the revision in shadow evaluation. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.override import Override, OverrideKind, in_force, is_in_scope
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRules, PromotionStage

BUILT_IN = "builtin"


class ActivePolicy(msgspec.Struct, frozen=True):
    revision: str
    sequence: int
    rules: PolicyRules


def active_policy(
    revisions: Iterable[PolicyRevision], overrides: Iterable[Override], region: str, now: float
) -> ActivePolicy:
    """The revision in force: one pinned by an override, else the highest sequence that is active or in canary for
    this region, else the built-in rules."""
    known = {revision.metadata.name: revision for revision in revisions}
    for override in sorted(in_force(overrides, OverrideKind.PIN_POLICY, now), key=lambda o: o.metadata.name):
        pinned = known.get(override.spec.policy_revision)
        if pinned is not None and is_in_scope(override, region=region, tenant="", workload=""):
            return _policy(pinned)
    chosen = [r for r in known.values() if not r.metadata.terminating and acts_in(r, region)]
    newest = max(chosen, key=lambda r: (r.spec.sequence, r.metadata.name), default=None)
    return _policy(newest) if newest is not None else ActivePolicy(BUILT_IN, 0, PolicyRules())


def shadow_policy(revisions: Iterable[PolicyRevision]) -> ActivePolicy | None:
    """The newest revision if it is in the shadow stage: it is evaluated beside the active one, without effect."""
    newest = max(
        (r for r in revisions if not r.metadata.terminating),
        key=lambda r: (r.spec.sequence, r.metadata.name),
        default=None,
    )
    return _policy(newest) if newest is not None and newest.spec.stage is PromotionStage.SHADOW else None


def acts_in(revision: PolicyRevision, region: str) -> bool:
    """Whether the stage of the revision lets it decide in the region."""
    if revision.spec.stage is PromotionStage.ACTIVE:
        return True
    return revision.spec.stage is PromotionStage.CANARY and region in revision.spec.regions


def _policy(revision: PolicyRevision) -> ActivePolicy:
    return ActivePolicy(revision.metadata.name, revision.spec.sequence, revision.spec.rules)
