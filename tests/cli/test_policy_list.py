"""`holdfast policy list`: of several revisions that were active, only the last one is shown as Active."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import cache_of, meta, with_new_revision

from holdfast.cli.commands.policy import (
    foreign_revision_notes,
    listed_revisions,
    other_node,
    recovery_note,
    refuse_second_policy,
    replaced_revisions,
    replacing_patch,
    rollback_target,
    rollback_text,
    rule_text,
)
from holdfast.controllers.cache import Cache
from holdfast.fleet import policy
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.scheduler_policy import (
    PolicyRevision,
    PolicyRules,
    PreemptionRules,
    PromotionStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
)
from holdfast.model.writes import Create, SetStatus, Update
from holdfast.server.patches import merge_patch

PLAIN, NONE, FEW = (PolicyRules(preemption=PreemptionRules(per_tenant_per_minute=n)) for n in (60, 0, 3))


class GlobalCell:
    """A global cell with one policy. Each change is processed by the policy controller."""

    def __init__(self) -> None:
        self.cache: Cache = cache_of()
        self.policy = SchedulerPolicy(metadata=meta("default"))

    def promote(self, rules: PolicyRules, stage: PromotionStage = PromotionStage.ACTIVE) -> str:
        spec = SchedulerPolicySpec(rules=rules, stage=stage, canary_regions=("a",) if stage == "Canary" else ())
        self.policy = with_new_revision(self.policy, spec=spec)
        self.cache.put(self.policy)
        for write in policy.decide(self.policy.key, self.cache, 1.0).writes:
            match write:
                case Create():
                    self.cache.put(with_new_revision(write.object, metadata=meta(write.object.metadata.name)))
                case Update():
                    self.cache.put(with_new_revision(write.object))
                case SetStatus():
                    status = msgspec.structs.replace(self.policy.status, revision=write.blocks["revision"])
                    self.policy = with_new_revision(self.policy, status=status)
                    self.cache.put(self.policy)
        return self.policy.status.revision

    def rolled_back(self) -> str:
        """The text of a rollback, after its effect."""
        plain: list[dict[str, Any]] = [msgspec.to_builtins(r) for r in self.cache.list(PolicyRevision)]
        plain.sort(key=lambda r: -r["spec"].get("sequence", 1))
        current = self.policy.status.revision
        target = rollback_target(plain, current)
        assert target is not None
        self.promote(msgspec.convert(target["spec"]["rules"], PolicyRules))
        return rollback_text("default", plain, current, target)

    def shown(self) -> dict[str, str]:
        """Each revision with its displayed stage."""
        plain: list[dict[str, Any]] = [msgspec.to_builtins(r) for r in self.cache.list(PolicyRevision)]
        replaced = replaced_revisions(plain)
        return {
            r["metadata"]["name"]: "Replaced" if r["metadata"]["name"] in replaced else r["spec"]["stage"]
            for r in plain
        }


def test_one_revision_is_active_after_rollback() -> None:
    cell = GlobalCell()
    old = cell.promote(PLAIN)
    assert cell.shown() == {old: "Active"}
    new = cell.promote(NONE)
    assert cell.shown() == {old: "Replaced", new: "Active"}
    assert cell.promote(PLAIN) == old
    assert cell.shown() == {old: "Active", new: "Replaced"}


def test_promoting_a_canary_leaves_the_active_revision_active() -> None:
    cell = GlobalCell()
    old = cell.promote(PLAIN)
    canary = cell.promote(FEW, PromotionStage.CANARY)
    assert cell.shown() == {old: "Active", canary: "Canary"}
    assert cell.promote(FEW) == canary
    assert cell.shown() == {old: "Replaced", canary: "Active"}


def test_draft_revision_without_active_revision_is_listed_as_draft() -> None:
    cell = GlobalCell()
    draft = cell.promote(PLAIN, PromotionStage.DRAFT)
    assert cell.shown() == {draft: "Draft"}


def test_rollback_says_that_a_second_one_returns_to_the_removed_rules() -> None:
    """Regression: the second rollback activated the rules just removed, and said nothing."""
    cell = GlobalCell()
    old, new = cell.promote(PLAIN), cell.promote(NONE)
    first = cell.rolled_back()
    assert f"rolled back from revision {new} to the rules of revision {old}" in first
    assert f"another rollback would return to revision {new}" in first
    assert f"rolled back from revision {old} to the rules of revision {new}" in cell.rolled_back()
    assert cell.policy.status.revision == new


def test_rollback_of_a_canary_returns_to_the_active_rules() -> None:
    cell = GlobalCell()
    old, canary = cell.promote(PLAIN), cell.promote(FEW, PromotionStage.CANARY)
    text = cell.rolled_back()
    assert text == f"policy default: rolled back from revision {canary} to the rules of revision {old}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "not set"),
        ("Wait", "Wait"),
        (3, "3"),
        (True, "true"),
        ([{"name": "Spread", "weight": 2}, {"name": "Taints"}], "[{name: Spread, weight: 2}, {name: Taints}]"),
        ({"enabled": False}, "{enabled: false}"),
        ([{"expression": "'gpu' in x " * 30}], "[{expression: '" + "''gpu'' in x " * 30 + "'}]"),
    ],
)
def test_rules_are_shown_as_yaml_in_one_line(value: Any, expected: str) -> None:
    """Regression: `policy diff` printed None and Python's quotes."""
    assert rule_text(value) == expected


EXPRESSION = {"name": "x", "expression": "true"}


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ({"filterExpressions": [EXPRESSION], "queue": ["Age"]}, {"queue": ["Age"]}),
        ({"preemption": {"enabled": False, "perTenantPerMinute": 1}}, {"preemption": {"perTenantPerMinute": 60}}),
        ({"scores": [{"name": "Spread", "weight": 2}]}, {"scores": [], "filters": ["Taints"]}),
        ({}, {"queue": ["Age"]}),
        ({"queue": ["Age"]}, {}),
    ],
)
def test_patch_that_replaces_rules_leaves_none_of_the_former_rules(
    before: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert merge_patch(before, replacing_patch(before, wanted)) == wanted


def revision(policy: str, sequence: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{policy}-{sequence}"},
        "spec": {"policy": policy, "stage": "Active", "sequence": sequence},
    }


TWO = [revision("gpu-guard", 2), revision("default", 1)]


def test_revision_in_use_is_listed_although_its_policy_is_deleted() -> None:
    """Regression: it decided in every region, and no listing showed it."""
    using = {"gpu-guard-2": ["eu-west", "us-east"]}
    assert [r["metadata"]["name"] for r in listed_revisions("default", TWO, using)] == ["gpu-guard-2", "default-1"]
    assert replaced_revisions(TWO) == {"default-1"}
    (note,) = foreign_revision_notes("default", TWO, using, {"default"})
    assert note == "eu-west us-east: decided by revision gpu-guard-2 of policy gpu-guard, which was deleted"
    (note,) = foreign_revision_notes("default", TWO, using, {"default", "gpu-guard"})
    assert note.endswith("of policy gpu-guard")


def test_own_revisions_need_no_note_and_the_built_in_rules_do() -> None:
    assert foreign_revision_notes("default", TWO, {"default-1": ["a"], "": ["b"]}, {"default"}) == []
    (note,) = foreign_revision_notes("default", TWO, {"builtin": ["a"]}, {"default"})
    assert note.startswith("a: decided by the built-in rules")
    assert [r["metadata"]["name"] for r in listed_revisions("default", TWO, {})] == ["default-1"]


def test_promoting_beside_another_active_policy_is_refused_with_the_next_step() -> None:
    """Regression: the command said "Active in all regions", although the other policy decided."""
    policies: list[dict[str, Any]] = [{"metadata": {"name": "default"}, "spec": {}}]
    refuse_second_policy("default", policies)
    refuse_second_policy("gpu-guard", [{"metadata": {"name": "default"}, "spec": {"stage": "Draft"}}])
    with pytest.raises(CommandError) as refusal:
        refuse_second_policy("gpu-guard", policies)
    assert "policy default is in stage Active" in refusal.value.message
    assert refusal.value.next_step.startswith("holdfast policy shadow default -f FILE")
    assert refusal.value.code is ExitCode.CONFLICT


def test_promotion_names_the_filters_that_the_recovery_condition_does_not_count() -> None:
    gate = {"name": "gpu-only", "expression": "'gpu' in request.resources"}
    plain = {"name": "no-lab", "expression": "node.pool != 'lab'"}
    assert not recovery_note({"queue": ["Age"]})
    assert "RecoveryBacked" not in recovery_note({"filterExpressions": [plain]})
    note = recovery_note({"filterExpressions": [gate, plain]})
    assert "RecoveryBacked does not count gpu-only," in note and note.endswith(
        "next: holdfast plan --lose-region REGION"
    )


def test_columns_of_a_shadow_comparison_add_up_to_the_replicas() -> None:
    """Regression: a replica that only one policy places was counted in two columns."""
    row = {"same": 4, "different": 6, "additional": 1, "missing": 2}
    assert other_node(row) == 3
    assert row["same"] + other_node(row) + row["additional"] + row["missing"] == row["same"] + row["different"]
