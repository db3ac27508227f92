"""Policy guard: pauses or rolls back a revision on enough evidence, and never oscillates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present
from tests.factories import cache_of, meta, region, with_new_revision

from holdfast.fleet import policy, policy_guard
from holdfast.link.policy_trial import count_outcomes
from holdfast.model.active_policy import ActivePolicy, active_policy
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec
from holdfast.model.meta import Object
from holdfast.model.region import HealthState, PolicyTrial, Region
from holdfast.model.scheduler_policy import (
    GuardAction,
    PolicyGuard,
    PolicyRevision,
    PolicyRevisionSpec,
    PolicyRules,
    PromotionStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
    ScoreName,
    WeightedScore,
    rules_hash,
    validate_scheduler_policy,
)
from holdfast.model.scheduling_request import SchedulingRequest, SchedulingRequestSpec, SchedulingRequestStatus
from holdfast.model.template import Template
from holdfast.model.times import micro_text
from holdfast.model.writes import Create, Notice, SetStatus, Update, Write

GOOD = PolicyRules()
BAD = PolicyRules(scores=(WeightedScore(name=ScoreName.PACKING, weight=5),))
NOW = 1_800_000_000.0


class PolicyHarness:
    """The policy controller and its objects. Its writes are applied at once."""

    def __init__(self, *regions: Region) -> None:
        self.items: dict[tuple[str, str], Object] = {("Region", r.metadata.name): r for r in regions}
        self.notices: list[Notice] = []

    def put(self, item: Object) -> None:
        self.items[type(item).__name__, item.metadata.name] = item

    def write(self, spec: SchedulerPolicySpec, generation: int) -> None:
        known = self.items.get(("SchedulerPolicy", "default"))
        status = known.status if isinstance(known, SchedulerPolicy) else SchedulerPolicy(meta("x")).status
        self.put(SchedulerPolicy(metadata=meta("default", generation=generation), spec=spec, status=status))
        self.settle()

    def settle(self) -> None:
        for _ in range(5):
            found = self.policy
            outcome = policy.decide(found.key, cache_of(*self.items.values()), NOW)
            self.notices += outcome.notices
            if not outcome.writes:
                return
            for write in outcome.writes:
                self.apply(write)
        raise AssertionError("the policy controller does not come to rest")

    def apply(self, write: Write) -> None:
        match write:
            case Create(object=made):
                self.put(with_new_revision(made, metadata=meta(made.metadata.name)))
            case Update(object=made):
                self.put(with_new_revision(made))
            case SetStatus():
                known = self.policy
                status = msgspec.structs.replace(known.status, **write.blocks, conditions=write.conditions)
                self.put(with_new_revision(known, status=status))

    @property
    def policy(self) -> SchedulerPolicy:
        return of_type(self.items["SchedulerPolicy", "default"], SchedulerPolicy)

    def revision(self, rules: PolicyRules) -> PolicyRevision:
        return of_type(self.items["PolicyRevision", f"default-{rules_hash(rules)}"], PolicyRevision)

    def decides(self, where: str) -> ActivePolicy:
        return active_policy([i for i in self.items.values() if isinstance(i, PolicyRevision)], (), where, NOW)

    def report(self, where: str, **trial: Any) -> None:
        found = of_type(self.items["Region", where], Region)
        deciding = self.decides(where).revision
        said = PolicyTrial(revision=deciding, **trial)
        report = msgspec.structs.replace(present(found.status.report), policy=deciding, policy_trial=said)
        self.put(with_new_revision(found, status=msgspec.structs.replace(found.status, report=report)))
        self.settle()


def on_trial(action: GuardAction, stage: PromotionStage = PromotionStage.ACTIVE, **guard: Any) -> PolicyHarness:
    harness = PolicyHarness(region("east"), region("west"))
    harness.write(SchedulerPolicySpec(rules=GOOD), 1)
    harness.report("east")
    harness.report("west")
    canary = ("east",) if stage is PromotionStage.CANARY else ()
    given = PolicyGuard(action=action, **{"min_decisions": 10, **guard})
    harness.write(SchedulerPolicySpec(rules=BAD, stage=stage, canary_regions=canary, guard=given), 2)
    return harness


@pytest.mark.parametrize(
    "trial",
    [
        {"decisions": 12, "proposed": 40, "refused": 20},
        {"decisions": 1, "oldest_pending_seconds": 400.0},
        {"decisions": 20, "proposed": 10, "unplaced": 30},
    ],
)
def test_breached_revision_is_rolled_back_with_a_higher_sequence(trial: dict[str, Any]) -> None:
    harness = on_trial(GuardAction.ROLLBACK, min_placed_percent=50)
    before = harness.decides("east")
    assert before.revision == harness.revision(BAD).metadata.name
    harness.report("east", **trial)
    for where in ("east", "west"):
        after = harness.decides(where)
        assert after.revision == harness.revision(GOOD).metadata.name and after.sequence > before.sequence
    assert harness.revision(BAD).spec.stage is PromotionStage.DRAFT
    assert (
        present(harness.policy.status.stopped).action is GuardAction.ROLLBACK
        and "region east" in present(harness.policy.status.stopped).message
    )
    assert [n.reason for n in harness.notices] == ["GuardBreached"]


def test_policy_stop_lasts_until_the_policy_changes() -> None:
    harness = on_trial(GuardAction.ROLLBACK)
    harness.report("east", decisions=20, proposed=40, refused=40)
    harness.report("east", decisions=20, proposed=40, refused=0)
    present(harness.policy.status.stopped)
    assert harness.revision(BAD).spec.stage is PromotionStage.DRAFT
    held_at = harness.decides("east").sequence
    harness.write(msgspec.structs.replace(harness.policy.spec, guard=PolicyGuard(max_conflict_percent=90)), 3)
    assert harness.policy.status.stopped is None
    assert (
        harness.decides("east").revision == harness.revision(BAD).metadata.name
        and harness.decides("east").sequence > held_at
    )


def test_paused_canary_is_not_promoted() -> None:
    harness = on_trial(GuardAction.PAUSE, PromotionStage.CANARY)
    harness.report("east", decisions=20, proposed=40, refused=40)
    assert harness.revision(BAD).spec.stage is PromotionStage.CANARY and harness.revision(BAD).spec.regions == ("east",)
    assert harness.decides("west").revision == harness.revision(GOOD).metadata.name


def test_paused_active_revision_stays_in_its_regions() -> None:
    harness = on_trial(GuardAction.PAUSE)
    harness.report("east", decisions=20, proposed=40, refused=40)
    assert harness.revision(BAD).spec.regions == ("east",)
    assert harness.decides("west").revision == harness.revision(GOOD).metadata.name


@pytest.mark.parametrize(
    "trial",
    [
        {"decisions": 9, "proposed": 9, "refused": 9},
        {"decisions": 50, "proposed": 100, "refused": 20},
        {"decisions": 50, "proposed": 100, "unplaced": 300},
    ],
)
def test_guard_ignores_few_decisions_and_small_violations(trial: dict[str, Any]) -> None:
    harness = on_trial(GuardAction.ROLLBACK)
    harness.report("east", **trial)
    assert harness.policy.status.stopped is None and harness.revision(BAD).spec.stage is PromotionStage.ACTIVE


def test_guard_ignores_regions_out_of_contact_or_on_another_revision() -> None:
    guard = PolicyGuard(min_decisions=1)
    wanted = SchedulerPolicy(meta("default"), SchedulerPolicySpec(rules=BAD, guard=guard))
    name = f"default-{rules_hash(BAD)}"
    bad = PolicyTrial(revision=name, decisions=5, proposed=5, refused=5)
    silent = region("east", state=HealthState.SUSPECT)
    behind = region("west")
    for found, deciding in ((silent, name), (behind, "default-other")):
        report = msgspec.structs.replace(present(found.status.report), policy=deciding, policy_trial=bad)
        told = with_new_revision(found, status=msgspec.structs.replace(found.status, report=report))
        assert policy_guard.detect_breach(wanted, name, [told], NOW) is None


def test_policy_trial_counts_authority_results_in_the_window() -> None:
    def decision(name: str, at: float, *entries: DecisionEntry, revision: str = "r") -> Decision:
        spec = DecisionSpec(
            request="q", workload="w", policy_revision=revision, decided_at=micro_text(at), entries=entries
        )
        return Decision(metadata=meta(name, "acme"), spec=spec)

    placed = DecisionEntry(replica="a", uid="1", node="n1", result="Accepted")
    refused = DecisionEntry(replica="b", uid="2", node="n1", result="Rejected", reason="DeviceInUse")
    nowhere = DecisionEntry(replica="c", uid="3", result="Unplaced")
    waits = SchedulingRequest(
        metadata=meta("q", "acme", creation_timestamp=micro_text(NOW - 500)),
        spec=SchedulingRequestSpec(workload="w", assignment="a", revision="1", template=Template(command=("x",))),
        status=SchedulingRequestStatus(pending=1),
    )
    found = count_outcomes(
        "r",
        PolicyGuard(window_seconds=60.0),
        [
            decision("d1", NOW - 10, placed, refused, nowhere),
            decision("d2", NOW - 90, refused),
            decision("d3", NOW - 5, refused, revision="other"),
        ],
        [waits],
        NOW,
    )
    assert (found.decisions, found.proposed, found.refused, found.unplaced) == (1, 2, 1, 1)
    assert found.oldest_pending_seconds == 90.0, "pending since before the revision was used"


def test_invalid_guard_is_refused() -> None:
    wrong = SchedulerPolicy(
        meta("p"), SchedulerPolicySpec(guard=PolicyGuard(max_conflict_percent=101, min_decisions=0))
    )
    assert {c.field for c in validate_scheduler_policy(wrong, None)} == {
        "spec.guard.maxConflictPercent",
        "spec.guard.minDecisions",
    }


class TwoPolicies(PolicyHarness):
    """Policy `default` is active, and so is the newer revision of another policy."""

    def __init__(self, *regions: Region, other: SchedulerPolicy | None) -> None:
        super().__init__(*regions)
        self.write(SchedulerPolicySpec(rules=GOOD), 1)
        rules = PolicyRevisionSpec(policy="gpu-guard", rules=BAD, sequence=2)
        self.put(PolicyRevision(meta("gpu-guard-1"), rules))
        if other is not None:
            self.put(other)
        self.settle()


@pytest.mark.parametrize(
    "other", [None, SchedulerPolicy(meta("gpu-guard"), SchedulerPolicySpec(stage=PromotionStage.DRAFT))]
)
def test_active_policy_decides_again_after_another_one_is_deleted_or_a_draft(other: SchedulerPolicy | None) -> None:
    harness = TwoPolicies(region("east"), other=other)
    found = harness.revision(GOOD)
    assert found.spec.sequence == harness.policy.status.sequence == 3
    assert harness.decides("east").revision == found.metadata.name


def test_policy_that_does_not_decide_names_the_one_that_does() -> None:
    """Regression: it was reported as stalled, as if the connection of the regions were lost."""
    harness = TwoPolicies(region("east"), other=SchedulerPolicy(meta("gpu-guard")))
    promoted = next(c for c in harness.policy.status.conditions if c.type == "Promoted")
    assert (promoted.status, promoted.reason) == ("False", "AnotherPolicyActive")
    assert "revision gpu-guard-1 of policy gpu-guard" in promoted.message
