"""What explain advises for replicas that do not stay up."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.insight.explain import spread_lines
from holdfast.insight.failed_starts import failed_start_fix, image_fix, termination_lines
from holdfast.model.assignment import Assignment, AssignmentSpec, Purpose
from holdfast.model.meta import Condition, ObjectMeta
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.replica import ExecutionBlock, ExitStatus, Phase, Replica, ReplicaSpec
from holdfast.model.template import Template
from holdfast.model.workload import Workload, WorkloadSpec

SPEC = ReplicaSpec(workload="api", workload_uid="u", assignment="api.west", template=Template(), revision="r1")
REPLICA = Replica(metadata=ObjectMeta(name="api-0", namespace="shop"), spec=SPEC)


@pytest.mark.parametrize(
    ("last", "fix"),
    [
        (
            ExitStatus(reason="SecretMissing", message="Secret db: does not exist in the tenant, or …"),
            "create it: kubectl --context global -n shop create secret generic db --from-literal=KEY=VALUE",
        ),
        (
            ExitStatus(reason="SecretMissing", message='Secret db: has no key "token"'),
            "add the key: kubectl --context global -n shop edit secret db",
        ),
        (ExitStatus(reason="ConfigMissing", message="ConfigMap c: does not exist"), "create it: kubectl"),
        (ExitStatus(reason="TemplateUnusable", message="image a/b: no cmd"), "correct the template's command"),
        (ExitStatus(reason="CommandNotFound", message="no-such: not found"), "correct the template's command"),
        (ExitStatus(code=1, reason="Exited", message="process 7 exited with code 1"), "read its output: holdfast logs"),
        (ExitStatus(signal="SIGKILL", reason="OutOfMemory"), "read its output: holdfast logs shop/api-0"),
        (None, "read its output: holdfast logs shop/api-0"),
    ],
)
def test_fix_fits_the_reason(last: ExitStatus | None, fix: str) -> None:
    assert failed_start_fix(REPLICA, ExecutionBlock(Phase.BACKING_OFF, last_exit=last)).startswith(fix)


def test_tag_that_does_not_exist_has_a_next_step() -> None:
    absent = Condition(type="ImageResolved", status="False", reason="ImageNotFound", message="404")
    assert image_fix((absent,)) == ("fix: correct the image of the template, or push it to its registry",)
    assert image_fix((msgspec.structs.replace(absent, status="True", reason="Resolved"),)) == ()


def test_explanation_shows_the_last_lines_of_a_message() -> None:
    message = "\n".join(f"line {n}" for n in range(30))
    lines = termination_lines(ExitStatus(termination_message=message))
    assert len(lines) == 10 and lines[-1] == "it said: line 29"
    assert termination_lines(ExitStatus()) == () and termination_lines(None) == ()


def test_lowered_spread_is_said() -> None:
    def lines(limit: int, *regions: str) -> list[str]:
        spec = WorkloadSpec(placement=PlacementRules(spread_regions=limit))
        found = [AssignmentSpec("w", "u", region, "r1", Template(), replicas=1) for region in regions]
        return spread_lines(
            Workload(metadata=ObjectMeta(name="w"), spec=spec),
            [Assignment(metadata=ObjectMeta(name="w"), spec=one) for one in found],
        )

    assert lines(0, "a", "b") == [] and lines(2, "a", "b") == []
    (said,) = lines(1, "b", "a")
    assert said.startswith("spreadRegions is 1, and replicas are in 2 regions (a, b): running ones stay")


def test_recovery_replicas_are_no_further_region() -> None:
    """They go to a region that has replicas already, or to one more for as long as the lost region is away."""
    rules = PlacementRules(spread_regions=2)
    placed = (("a", Purpose.NORMAL), ("b", Purpose.NORMAL), ("b", Purpose.RECOVERY), ("c", Purpose.RECOVERY))
    specs = [AssignmentSpec("w", "u", region, "r1", Template(), replicas=1, purpose=why) for region, why in placed]
    found = [Assignment(metadata=ObjectMeta(name="w"), spec=one) for one in specs]
    assert spread_lines(Workload(metadata=ObjectMeta(name="w"), spec=WorkloadSpec(placement=rules)), found) == []
